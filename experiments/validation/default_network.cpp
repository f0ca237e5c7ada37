// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/default_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "experiments/validation/validate.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::validation {
namespace {

using network::Collective;
using network::NetworkModel;

constexpr double kMiB = 1U << 20U;
constexpr std::array<std::string_view, 4> kCollectives{"alltoall", "all_gather", "reduce_scatter",
                                                       "all_reduce"};

std::optional<Collective> ring_of(std::string_view op) {
  if (op == "all_gather") return Collective::kAllGather;
  if (op == "reduce_scatter") return Collective::kReduceScatter;
  if (op == "all_reduce") return Collective::kAllReduce;
  return std::nullopt;
}

/// Phases as byte matrices [n][n].
std::vector<std::vector<std::uint64_t>> phases_of(const scenario::Scenario& s, std::string_view op,
                                                  std::uint64_t bytes, std::uint32_t n) {
  std::vector<std::vector<std::uint64_t>> out;
  if (const auto what = ring_of(op)) {
    std::vector<std::uint32_t> members(n);
    std::iota(members.begin(), members.end(), 0U);
    for (const network::Phase& phase :
         network::collective(*what, network::collective_of(s.network.collective), bytes, members)) {
      auto& matrix = out.emplace_back(std::size_t{n} * n, 0);
      for (const network::Transfer& t : phase) matrix[std::size_t{t.src} * n + t.dst] += t.bytes;
    }
    return out;
  }
  auto& matrix = out.emplace_back(std::size_t{n} * n, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t j = 0; j < n; ++j) {
      matrix[std::size_t{i} * n + j] = (j + 1) * bytes / n - j * bytes / n;
    }
  }
  return out;
}

std::string percent(double v) { return std::isnan(v) ? "n/a" : fmt::format("{:.1f}", 100 * v); }

/// The figures of the GPUs' fastest links: "450 GB/s, 66 % of it achievable, …".
std::string links_in_words(const scenario::HardwareSpec& hardware) {
  const scenario::Link* own = nullptr;
  for (const scenario::Link& l : hardware.links) {
    const bool gpu = l.a == hardware.gpus.front() || l.b == hardware.gpus.front();
    if (gpu && (own == nullptr || l.bandwidth > own->bandwidth)) own = &l;
  }
  if (own == nullptr) return "no links";
  const std::string_view name =
      scenario::kLinkClassNames[static_cast<std::size_t>(own->link_class)];
  return fmt::format(
      "{} at {:g} GB/s, {}, {:g} us a hop, {}", name, own->bandwidth.value * 1e-9,
      own->achievable < 1 ? fmt::format("of it {:g} achievable", own->achievable)
                          : "all of it (no achievable share stated)",
      own->latency.us(),
      own->phase_latency && *own->phase_latency != own->latency
          ? fmt::format("{:g} us in later phases of a call", own->phase_latency->us())
          : "the same in every phase of a call");
}

}  // namespace

DefaultNetwork judge_default_network(const scenario::HardwareSpec& hardware,
                                     const std::vector<MeasuredRow>& rows) {
  scenario::Scenario s;
  s.hardware = hardware;
  std::map<std::uint32_t, NetworkModel> models;
  network::ExchangeResult result;
  DefaultNetwork out;
  for (const MeasuredRow& r : rows) {
    if (r.kind != scenario::OpKind::kCollective || !r.library.starts_with("nccl") || r.fitted()) {
      continue;
    }
    const std::uint64_t gpus = r.shape.front();
    const bool known =
        std::find(kCollectives.begin(), kCollectives.end(), r.variant) != kCollectives.end();
    if (!known || gpus > hardware.gpu_count()) {
      ++out.skipped;
      continue;
    }
    const auto n = static_cast<std::uint32_t>(gpus);
    auto found = models.find(n);
    if (found == models.end()) found = models.emplace(n, network::make_network(s, n)).first;
    NetworkModel& model = found->second;
    const std::vector<SimTime> ready(n);
    SimTime sum;
    bool continues = false;
    for (const auto& matrix :
         phases_of(s, r.variant, static_cast<std::uint64_t>(r.point.at[0]), n)) {
      model.exchange(matrix, ready, result, continues);
      sum += result.duration;
      continues = true;
    }
    out.rows.push_back({&r, sum.us()});
  }
  return out;
}

Table default_network_table(const scenario::HardwareSpec& hardware, const DefaultNetwork& judged) {
  Table table;
  table.name = "validate-default-network";
  table.title =
      fmt::format("Default network settings against NCCL, {} without a calibration", hardware.name);
  table.columns = {"collective",        "rows judged",    "median |error| [%]", "p95 |error| [%]",
                   "worst |error| [%]", "mean error [%]", "worst row"};
  const auto add = [&](const std::string& name, auto&& chosen) {
    std::vector<double> errors;
    double sum = 0;
    const DefaultRow* worst = nullptr;
    for (const DefaultRow& r : judged.rows) {
      if (!chosen(*r.row)) continue;
      errors.push_back(std::abs(r.error()));
      sum += r.error();
      if (worst == nullptr || std::abs(r.error()) > std::abs(worst->error())) worst = &r;
    }
    if (worst == nullptr) return;
    const ErrorSummary e = summarise(errors);
    table.rows.push_back({name, fmt::format("{}", e.rows), percent(e.median), percent(e.p95),
                          percent(e.worst), percent(sum / static_cast<double>(e.rows)),
                          worst->row->label});
  };
  const auto large = [](const MeasuredRow& r) { return r.point.at[0] >= kMiB; };
  for (const std::string_view op : kCollectives) {
    add(fmt::format("{}, 1 MiB and more", op),
        [&](const MeasuredRow& r) { return large(r) && r.variant == op; });
  }
  add("all, 1 MiB and more", large);
  add("all, below 1 MiB", [&](const MeasuredRow& r) { return !large(r); });
  table.notes.push_back(
      fmt::format("nothing was fitted here, no calibration is read, and no goal is "
                  "set: links of hardware/{}.toml ({}), network.model = \"auto\", "
                  "all-to-all direct, the others by a ring",
                  hardware.name, links_in_words(hardware)));
  table.notes.push_back(
      "what the file takes from NCCL rows (its sources say so) is of rows whose key has an even "
      "FNV-1a; judged are the odd ones. NCCL changes protocol with the size and may reduce in the "
      "switch, which one rate and one latency cannot follow");
  if (judged.skipped > 0) {
    table.notes.push_back(fmt::format(
        "{} rows are of more GPUs than the file has or of another collective", judged.skipped));
  }
  return table;
}

}  // namespace switchyard::validation
