// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/offload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "engine/model/accounting.hpp"
#include "engine/model/model_config.hpp"
#include "experiments/tables/routing_excerpts.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

struct Pcie {
  const char* name;
  double nominal, achievable;  ///< Bytes/s per direction, x16; share that a copy reaches.
};
// Generations 4 and 5: nvbandwidth, host to device (26.0 and 55.4 GB/s); 3: the share of 4.
constexpr std::array<Pcie, 3> kPcie{
    {{"3", 15.75e9, 26.0 / 32}, {"4", 32e9, 26.0 / 32}, {"5", 63e9, 55.4 / 63}}};
constexpr std::uint32_t kExperts = 32, kSteps = 208;

/// What becomes of an expert that is missing.
enum class Miss { kCopied, kComputed };
struct Expert {
  double bytes = 0, parameters = 0;
};

run::RunData decode(ShortRuns& runs, const RoutingTrace& routing, const Pcie& pcie,
                    std::uint32_t slots, std::uint64_t batch, Miss miss = Miss::kCopied,
                    Expert* expert = nullptr) {
  const HostRates host;
  const std::string cache =
      slots == kExperts ? std::string()
      : miss == Miss::kCopied
          ? fmt::format("[memory.residency]\npolicy = \"lru\"\nslots = {}\n", slots)
          : fmt::format(
                "[memory.residency]\npolicy = \"static\"\nslots = {}\nprofile_steps = {}\n"
                "miss = \"cpu\"\ncpu = {{ flops = \"{} TFLOP/s\", bandwidth = \"{} GB/s\" }}\n",
                slots, runs.quick() ? kSteps / 4 : kSteps, 1e-12 * host.flops,
                1e-9 * host.bandwidth);
  return runs.run(
      fixed_batch("gpt_oss_20b", "l40s_nvme", "dp = 1\n",
                  fmt::format("kind = \"decode\"\nbatch = {}\ncontext = 512\nsteps = {}\n"
                              "routing = {{ trace = \"shipped.h5\", layers = \"exact\" }}\n",
                              batch, runs.quick() ? kSteps / 4 : kSteps),
                  cache),
      [&](scenario::Scenario& s) {
        for (scenario::Link& link : s.hardware.links) {
          if (link.bandwidth.value > 10e9) {  // the GPU's; the SSD's has four lanes
            link.bandwidth.value = pcie.nominal;
            link.achievable = pcie.achievable;
          }
        }
        if (expert != nullptr) {
          *expert = {static_cast<double>(model::expert_bytes(s.model, s.dtype.experts)),
                     static_cast<double>(model::expert_matrix_elements(s.model))};
        }
      },
      &routing);
}

}  // namespace

double host_expert_seconds(const HostRates& host, double bytes, double parameters, double rows) {
  return std::max(bytes / host.bandwidth, 2 * parameters * rows / host.flops);
}

double copy_wins_from(const HostRates& host, double bytes, double parameters, double rate) {
  return rate >= host.bandwidth
             ? 1.0
             : std::max(1.0, std::ceil(bytes / rate * host.flops / (2 * parameters)));
}

Table offload_table(ShortRuns& runs, const RoutingTrace& routing) {
  Table t;
  t.name = "offload";
  t.title =
      "gpt_oss_20b (MXFP4 experts) on one L40S, experts in host memory, LRU per layer: decode with "
      "the model's own routing";
  t.columns = {"PCIe x16",
               "GB/s",
               "resident [%]",
               "slots a layer",
               "batch",
               "TPOT [ms]",
               "of it waiting [%]",
               "over resident",
               "hit rate [%]",
               "Belady [%]",
               "experts loaded a step",
               "loaded [GB/step]",
               "tokens/s",
               "CPU: TPOT [ms]",
               "CPU: hit rate [%]",
               "CPU: experts a step",
               "CPU: by arithmetic [ms]",
               "CPU: apart [%]"};
  const std::vector<std::uint64_t> batches = runs.quick()
                                                 ? std::vector<std::uint64_t>{1, 16}
                                                 : std::vector<std::uint64_t>{1, 2, 4, 8, 16, 32};
  std::map<std::uint64_t, double> resident;  // [batch] µs; no byte over PCIe
  for (const std::uint64_t batch : batches) {
    resident[batch] = metric(decode(runs, routing, kPcie[0], kExperts, batch), "step time mean");
  }
  for (const Pcie& pcie : kPcie) {
    if (runs.quick() && std::string(pcie.name) == "3") {
      continue;
    }
    for (const std::uint32_t slots : {4U, 8U, 16U, 24U, 32U}) {
      if (runs.quick() && slots % 16 == 8) {
        continue;
      }
      for (const std::uint64_t batch : batches) {
        const auto run = decode(runs, routing, pcie, slots, batch);
        const double step = metric(run, "step time mean");
        const bool cached = slots < kExperts;
        const auto number = [&](const char* name, double scale, const char* form) {
          return cached ? fmt::format(fmt::runtime(form), scale * metric(run, name))
                        : std::string("-");
        };
        t.rows.push_back({pcie.name, fmt::format("{:.1f}", 1e-9 * pcie.nominal * pcie.achievable),
                          percent(static_cast<double>(slots) / kExperts), fmt::to_string(slots),
                          fmt::to_string(batch), ms(step), percent(metric(run, "step wait share")),
                          fmt::format("{:.2f}", step / resident.at(batch)),
                          number("expert hit rate", 100, "{:.2f}"),
                          number("expert hit rate, Belady bound", 100, "{:.2f}"),
                          number("experts loaded per step", 1, "{:.1f}"),
                          number("expert bytes loaded per step", 1e-9, "{:.3f}"),
                          fmt::format("{:.1f}", metric(run, "tokens per second"))});
        if (!cached) {
          t.rows.back().resize(t.columns.size(), "-");
          continue;
        }
        Expert expert;
        const auto cpu = decode(runs, routing, pcie, slots, batch, Miss::kComputed, &expert);
        // All of them one after the other, with nothing beside them.
        const double missed = metric(cpu, "experts on the CPU per step");
        const double rows = missed > 0 ? metric(cpu, "rows to the CPU per step") / missed : 0;
        const double sum =
            resident.at(batch) +
            1e6 * missed * host_expert_seconds({}, expert.bytes, expert.parameters, rows);
        const double simulated = metric(cpu, "step time mean");
        for (std::string& cell :
             std::vector<std::string>{ms(simulated), percent(metric(cpu, "expert hit rate")),
                                      fmt::format("{:.1f}", missed), ms(sum),
                                      fmt::format("{:+.1f}", 100 * (sum / simulated - 1))}) {
          t.rows.back().push_back(std::move(cell));
        }
      }
    }
  }
  t.notes.push_back(fmt::format(
      "routing: two answers of 208 and 41 tokens (scenarios/routing/gpt_oss_20b.txt), sequences "
      "beyond the second begin elsewhere in them, so a large batch repeats itself; {} steps from "
      "an "
      "empty cache, 512 tokens of context; host 500 us a step and 10 us a sequence, assumed",
      runs.quick() ? kSteps / 4 : kSteps));
  t.notes.emplace_back(
      "rate of a copy: measured by nvbandwidth for generations 4 and 5 (26.0 and 55.4 GB/s), for 3 "
      "the share of 4; a layer waits for its missing experts, copied one after another when the "
      "router has decided; over resident: TPOT / that with all experts on the GPU");
  t.notes.emplace_back(
      "CPU: missing experts computed there (memory.residency.miss = \"cpu\"), 307.2 GB/s and 21 "
      "TFLOP/s as in offload-host; the GPU keeps those that these same steps ask for most; by "
      "arithmetic: TPOT of resident experts + experts a step x the larger of bytes / bandwidth and "
      "2 x weights x rows / FLOP/s; apart: that against the simulated TPOT, in which the GPU "
      "computes only its own experts, meanwhile, and rows travel there and back, 5 us a hop; CPU "
      "and GPU read side by side, so fewer resident experts may take less time");
  return t;
}

Table offload_host_table(const std::filesystem::path& scenarios) {
  const HostRates host;
  struct Case {
    const char* model;
    model::DType dtype;
    const char* format;
  };
  constexpr std::array<Case, 4> kCases{{{"gpt_oss_20b", model::DType::kMxfp4, "mxfp4"},
                                        {"qwen3_30b_a3b", model::DType::kBf16, "bf16"},
                                        {"mixtral_8x7b", model::DType::kBf16, "bf16"},
                                        {"deepseek_v3", model::DType::kF8E4M3, "fp8"}}};
  Table t;
  t.name = "offload-host";
  t.title =
      "arithmetic, not simulated: a missing expert, copied to the GPU or computed on the host";
  t.columns = {"model",
               "format",
               "expert [MB]",
               "PCIe x16",
               "copy [ms]",
               "host, 1 row [ms]",
               "host, 64 [ms]",
               "host, 512 [ms]",
               "copy wins from rows an expert",
               "that is a batch of, even routing"};
  for (const Case& c : kCases) {
    const auto config =
        model::read_model_config(scenarios / "models" / (std::string(c.model) + ".json"));
    const auto bytes = static_cast<double>(model::expert_bytes(config, c.dtype));
    const auto parameters = static_cast<double>(model::expert_matrix_elements(config));
    for (const Pcie& pcie : kPcie) {
      const double rate = pcie.nominal * pcie.achievable;
      const double rows = copy_wins_from(host, bytes, parameters, rate);
      const auto on_host = [&](double n) {
        return fmt::format("{:.3f}", 1e3 * host_expert_seconds(host, bytes, parameters, n));
      };
      t.rows.push_back({c.model, c.format, fmt::format("{:.2f}", 1e-6 * bytes), pcie.name,
                        fmt::format("{:.3f}", 1e3 * bytes / rate), on_host(1), on_host(64),
                        on_host(512), fmt::format("{:.0f}", rows),
                        fmt::format("{:.0f}", rows * static_cast<double>(config.num_experts) /
                                                  static_cast<double>(config.top_k))});
    }
  }
  t.notes.emplace_back(
      "host: the larger of bytes / 307.2 GB/s (eight channels DDR5-4800 of one Xeon of the 4th "
      "generation, nominal) and 2 x weights x rows / 21 TFLOP/s (BF16 with AMX on it, "
      "kvcache-ai/ktransformers 073ce60, doc/en/AMX.md); copy: bytes / the rate of a copy, the "
      "GPU's "
      "own time left out");
  t.notes.emplace_back(
      "left out here: the way of the rows to the host and back and what the GPU computes meanwhile "
      "(simulated in table offload, columns CPU), NUMA");
  return t;
}

std::vector<Table> make_offload(const TableContext& context) {
  ShortRuns runs(context);
  return {offload_table(runs, read_excerpt(context.scenarios, "gpt_oss_20b").trace),
          offload_host_table(context.scenarios)};
}

}  // namespace switchyard::tables
