// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/deepep_h800.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "engine/base/error.hpp"
#include "experiments/validation/csv.hpp"
#include "experiments/validation/deepseek_v3_case.hpp"
#include "experiments/validation/measured_rows.hpp"
#include "experiments/validation/validate.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/network_model.hpp"

namespace switchyard::validation {
namespace {

constexpr std::uint32_t kServer = 8, kExperts = 256, kTopK = 8, kMostServers = 4;

/// 1 - C(E-R, k) / C(E, k): an expert among R of E is chosen.
double hit(double experts, double of, std::uint32_t k) {
  double miss = 1;
  for (std::uint32_t i = 0; i < k; ++i) miss *= (experts - of - i) / (experts - i);
  return 1 - miss;
}

struct Exchange {
  std::vector<std::uint64_t> bytes;  ///< [G][G]
  double counted = 0;                ///< Bytes that the printed rate is of, per GPU.
};

Exchange exchange_of(const DeepEpRow& r, double tokens) {
  const bool dispatch = r.phase == "dispatch";
  const std::uint32_t gpus = r.ep, servers = gpus / kServer;
  Exchange out;
  out.bytes.assign(std::size_t{gpus} * gpus, 0);
  double peer = 0, rail = 0, local = 0;
  if (r.kernel == "low_latency") {
    peer = tokens * kTopK / gpus * (dispatch ? 7408 : 14336);
  } else {
    const double copy = dispatch ? 7392 : 14336;
    const double held = std::min(servers, kMostServers);  // servers that may hold the experts
    const double pool = kExperts * held / servers;
    const double on_server = held * hit(pool, kExperts / servers, kTopK);
    const double on_gpu = held / servers * hit(pool, kExperts / gpus, kTopK);  // of one GPU
    rail = servers > 1 ? tokens * on_server / servers * copy : 0;
    local = tokens * gpus * on_gpu / kServer * copy;
    out.counted = tokens * (servers > 1 ? on_server : gpus * on_gpu) * copy;
  }
  for (std::uint32_t i = 0; i < gpus; ++i) {
    for (std::uint32_t j = 0; j < gpus; ++j) {
      if (i == j) continue;
      const double b = peer + (i / kServer == j / kServer   ? local
                               : i % kServer == j % kServer ? rail
                                                            : 0);
      out.bytes[std::size_t{i} * gpus + j] = static_cast<std::uint64_t>(std::llround(b));
    }
  }
  return out;
}

/// The share of the link rates for a start-up of `alpha` us, hundredths, and the sum of |ln| it
/// leaves.
double best_share(const std::vector<const DeepEpRow*>& rows, double alpha, double& share) {
  double best = std::numeric_limits<double>::infinity();
  for (int s = 20; s <= 100; ++s) {
    double sum = 0;
    for (const DeepEpRow* r : rows) {
      sum += std::abs(std::log((alpha + r->floor_us / (s / 100.0)) / r->measured_us));
    }
    if (sum < best - 1e-12) {
      best = sum;
      share = s / 100.0;
    }
  }
  return best;
}

}  // namespace

DeepEpCase run_deepep_h800(const std::filesystem::path& scenarios) {
  const auto file = scenarios / "validation" / "h800_deepep" / "published.csv";
  const Csv csv = read_csv(file, "kernel,ep,tokens,phase,bandwidth_GBps,latency_us");
  DeepEpCase out;
  std::map<std::uint32_t, network::NetworkModel> models;
  for (std::size_t i = 0; i < csv.rows.size(); ++i) {
    const auto& fields = csv.rows[i];
    DeepEpRow r;
    r.kernel = fields[0];
    r.phase = fields[3];
    const double ep = number(csv, i, 1, 1), tokens = number(csv, i, 2, 1);
    const std::string& where = csv.where[i];
    if ((r.kernel != "normal" && r.kernel != "low_latency") ||
        (r.phase != "dispatch" && r.phase != "combine") || !(ep >= kServer && ep <= kExperts) ||
        std::fmod(ep, kServer) != 0 || std::fmod(kExperts, ep) != 0) {
      throw InputError(where, "not a row of DeepEP's table",
                       "kernel normal or low_latency, phase dispatch or combine, ep 8 to 256");
    }
    r.ep = static_cast<std::uint32_t>(ep);
    r.judged =
        fnv1a(fmt::format("{},{},{},{}", fields[0], fields[1], fields[2], fields[3])) % 2 == 1;
    auto it = models.find(r.ep);
    if (it == models.end()) {
      const scenario::HardwareSpec hardware = h800_servers(scenarios, r.ep, "160 GB/s", "50 GB/s");
      it = models
               .emplace(r.ep, network::NetworkModel(network::Model::kBottleneck,
                                                    network::Algorithm::kDirect,
                                                    cluster::build_cluster(hardware).routes()))
               .first;
    }
    const Exchange e = exchange_of(r, tokens);
    network::ExchangeResult result;
    it->second.exchange(e.bytes, std::vector<SimTime>(r.ep), result);
    r.floor_us = result.floor.us();
    const double latency = number(csv, i, 5, 0), rate = number(csv, i, 4, 0) * 1e9;
    r.measured_us = r.kernel == "low_latency" ? latency : e.counted / rate * 1e6;
    if (!(r.measured_us > 0 && r.measured_us < 1e12))
      throw InputError(where, "there is no measured time");
    out.rows.push_back(r);
  }
  std::array<std::vector<const DeepEpRow*>, 2> even;
  for (const DeepEpRow& r : out.rows) {
    if (!r.judged) even[r.kernel == "normal" ? 1 : 0].push_back(&r);
  }
  if (even[0].empty() || even[1].empty()) {
    throw InputError(file.string(), "no row of one kind of kernel has an even hash");
  }
  double best = std::numeric_limits<double>::infinity();
  for (int a = 0; a <= 1000; ++a) {
    std::array<double, 2> share{};
    const double sum = best_share(even[0], a, share[0]) + best_share(even[1], a, share[1]);
    if (sum < best - 1e-12) {
      best = sum;
      out.alpha_us = a;
      out.share = share;
    }
  }
  for (DeepEpRow& r : out.rows) {
    r.simulated_us = out.alpha_us + r.floor_us / out.share[r.kernel == "normal" ? 1 : 0];
  }
  return out;
}

Table deepep_table(const DeepEpCase& result) {
  Table table;
  table.name = "validate-deepep-h800";
  table.title = "DeepEP on H800, published times against the network model";
  table.columns = {"kernel",
                   "GPUs",
                   "phase",
                   "measured [us]",
                   "simulated [us]",
                   "error [%]",
                   "at link rates [us]",
                   "set"};
  for (const DeepEpRow& r : result.rows) {
    table.rows.push_back(
        {r.kernel, fmt::to_string(r.ep), r.phase, fmt::format("{:.0f}", r.measured_us),
         fmt::format("{:.0f}", r.simulated_us), fmt::format("{:.1f}", 100 * r.error()),
         fmt::format("{:.0f}", r.floor_us), r.judged ? "judged" : "fitted"});
  }
  for (int kind = 0; kind < 2; ++kind) {
    const std::string name = kind == 0 ? "low_latency" : "normal";
    std::vector<double> errors;
    std::size_t fitted = 0;
    for (const DeepEpRow& r : result.rows) {
      if (r.kernel != name) continue;
      if (r.judged) {
        errors.push_back(std::abs(r.error()));
      } else {
        ++fitted;
      }
    }
    const ErrorSummary s = summarise(errors);
    table.notes.push_back(
        fmt::format("{}: {:.0f} us and {:.0f} % of the link rates from {} rows; {} judged: "
                    "median {:.1f}, "
                    "95th percentile {:.1f}, worst {:.1f} %",
                    name, result.alpha_us, 100 * result.share[static_cast<std::size_t>(kind)],
                    fitted, s.rows, 100 * s.median, 100 * s.p95, 100 * s.worst));
  }
  table.notes.emplace_back(
      "per direction, as the source states them: NVLink 160 (what its H800 reach of 200), NIC 50 "
      "GB/s; a GPU that passes copies on between servers does so at no cost here");
  table.notes.emplace_back("measured: deepseek-ai/DeepEP dd758ca, docs/legacy.md (MIT)");
  return table;
}

}  // namespace switchyard::validation
