// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/simulators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "sim/run/metrics.hpp"
#include "sim/scenario/calibration.hpp"

namespace switchyard::tables {
namespace {

using validation::RequestTimes;

constexpr const char* kVllm = "vLLM 0.19, Qwen3-30B-A3B, 2 x RTX PRO 6000, DP2 + EP2";
constexpr const char* kV3 = "DeepSeek-V3, H800";
constexpr const char* kQwen = "SGLang, Qwen3-30B-A3B, H20";
constexpr const char* kServingSim =
    "casys-kaist/LLMServingSim 5daddb2, bench/examples/RTXPRO6000/Qwen3-30B-A3B-Instruct-2507/"
    "validation/summary.txt";
constexpr const char* kInferSim = "alibaba/InferSim README";

/// LLMServingSim's summary: mean, p50, p90, p95, p99 as it prints them, ms. Its percentiles are
/// not the nearest rank, so its simulation is held against its own figures of the measurement.
struct Published {
  const char* name;
  double RequestTimes::*member;
  std::array<double, 5> measured, simulated;
};
constexpr std::array<Published, 3> kPublished{{{"TTFT",
                                                &RequestTimes::ttft_ms,
                                                {1086.0, 138.8, 5182.6, 8431.3, 9587.9},
                                                {938.6, 108.6, 4616.6, 7542.1, 9491.6}},
                                               {"TPOT",
                                                &RequestTimes::tpot_ms,
                                                {47.3, 48.9, 52.2, 52.6, 53.3},
                                                {46.5, 48.1, 51.8, 52.2, 53.0}},
                                               {"latency",
                                                &RequestTimes::latency_ms,
                                                {32344.6, 31462.3, 38448.2, 39648.9, 43901.1},
                                                {31649.1, 30817.5, 37770.9, 38939.3, 43089.4}}}};
constexpr std::array<int, 5> kPercentiles{0, 50, 90, 95, 99};  // 0: the mean

double statistic(const std::vector<RequestTimes>& times, double RequestTimes::*member, int p) {
  std::vector<double> v;
  for (const RequestTimes& t : times) v.push_back(t.*member);
  return p == 0 ? std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size())
                : run::nearest_rank(std::move(v), p);
}

std::string percent(double share) { return fmt::format("{:+.1f}", 100 * share); }

Table rows_table(const std::vector<SimulatorRow>& rows) {
  Table t;
  t.name = "simulators";
  t.title = "ours and published simulators against the same measurements";
  t.columns = {"experiment",
               "quantity",
               "measured",
               "simulator",
               "simulated",
               "error [%]",
               "source of the simulator's figure"};
  for (const SimulatorRow& r : rows) {
    t.rows.push_back({r.experiment, r.quantity, fmt::format("{:.1f}", r.measured), r.simulator,
                      r.simulated ? fmt::format("{:.1f}", *r.simulated) : "n/a",
                      r.simulated ? percent(r.error()) : "n/a", r.source});
  }
  t.notes.emplace_back(
      "measured: casys-kaist/LLMServingSim 5daddb2 (300 ShareGPT requests; ms); deepseek-ai/"
      "profile-data and SGLang as alibaba/InferSim lists them (tokens/s and GPU)");
  t.notes.emplace_back(
      "ours: the code of switchyard validate; nothing is fitted to these measurements. Kernel "
      "times "
      "of the same GPU and model go into ours and into the published ones");
  t.notes.emplace_back(
      "InferSim is a closed form per step, LLMServingSim and ours run the requests. What a "
      "simulator leaves out can cancel in a mean: the percentiles show more");
  return t;
}

Table summary_table(const std::vector<SimulatorRow>& rows) {
  Table t;
  t.name = "simulators-errors";
  t.title = "the same by simulator and experiment";
  t.columns = {"experiment",         "simulator",         "rows",     "mean |error| [%]",
               "median |error| [%]", "worst |error| [%]", "worst row"};
  std::vector<std::pair<std::string, std::string>> groups;
  for (const SimulatorRow& r : rows) {
    if (r.simulated && std::find(groups.begin(), groups.end(),
                                 std::pair(r.experiment, r.simulator)) == groups.end()) {
      groups.emplace_back(r.experiment, r.simulator);
    }
  }
  for (const auto& [experiment, simulator] : groups) {
    std::vector<double> errors;
    const SimulatorRow* worst = nullptr;
    for (const SimulatorRow& r : rows) {
      if (!r.simulated || r.experiment != experiment || r.simulator != simulator) continue;
      errors.push_back(std::abs(r.error()));
      if (worst == nullptr || errors.back() > std::abs(worst->error())) worst = &r;
    }
    const double mean =
        std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
    const auto summary = validation::summarise(errors);
    t.rows.push_back({experiment, simulator, fmt::to_string(summary.rows),
                      fmt::format("{:.1f}", 100 * mean),
                      fmt::format("{:.1f}", 100 * summary.median),
                      fmt::format("{:.1f}", 100 * summary.worst), worst->quantity});
  }
  return t;
}

Table operations_table(const TableContext& context) {
  Table t;
  t.name = "simulators-operations";
  t.title = "our operation times against measured ones that were not fitted";
  t.columns = {"GPU", "rows judged", "median |error| [%]", "p95 |error| [%]", "worst |error| [%]"};
  for (const char* device : {"h200", "h100", "a100", "h800"}) {
    const auto calibration = scenario::read_calibration(
        (context.scenarios / "calibrations" / (std::string(device) + ".toml")).string());
    const auto measured =
        validation::read_measured(context.scenarios / "validation" / device, device);
    std::vector<double> errors;
    for (const auto& j : validation::judge(calibration, measured.rows)) {
      if (!j.row->fitted() && j.known()) errors.push_back(std::abs(j.error()));
    }
    const auto s = validation::summarise(std::move(errors));
    t.rows.push_back({device, fmt::to_string(s.rows), fmt::format("{:.1f}", 100 * s.median),
                      fmt::format("{:.1f}", 100 * s.p95), fmt::format("{:.1f}", 100 * s.worst)});
  }
  t.notes.emplace_back(
      "kernels and exchanges alone (switchyard validate --hardware GPU has them by kind), NCCL "
      "rows "
      "below 1 MiB included; no published simulator lists errors on these rows");
  return t;
}

}  // namespace

std::vector<SimulatorRow> vllm_rows(const validation::VllmCase& result) {
  std::vector<SimulatorRow> rows;
  for (const Published& p : kPublished) {
    for (std::size_t i = 0; i < kPercentiles.size(); ++i) {
      const std::string quantity =
          fmt::format("{} {} [ms]", p.name,
                      kPercentiles[i] == 0 ? "mean" : fmt::format("p{}", kPercentiles[i]));
      const double measured = statistic(result.measured, p.member, kPercentiles[i]);
      const auto ours = [&](const char* name, const std::vector<RequestTimes>& times,
                            const char* how) {
        if (times.empty()) return;
        rows.push_back(
            {kVllm, quantity, name, measured, statistic(times, p.member, kPercentiles[i]), how});
      };
      ours("ours", result.simulated, "validate: vLLM's scheduler on the kernel table");
      ours("ours, step loop", result.loop, "validate --step-loop: the simulator's own loop");
      rows.push_back(
          {kVllm, quantity, "LLMServingSim", p.measured[i], p.simulated[i], kServingSim});
    }
  }
  return rows;
}

std::vector<SimulatorRow> infersim_rows(const std::vector<validation::Throughput>& ours) {
  struct Case {
    const char *experiment, *quantity;
    double measured, simulated;
  };
  constexpr std::array<Case, 4> kCases{{{kV3, "prefill", 7839, 9034},
                                        {kV3, "decode", 2324, 2675},
                                        {kQwen, "prefill", 16594, 17350},
                                        {kQwen, "decode", 2749, 2632}}};
  std::vector<SimulatorRow> rows;
  for (const Case& c : kCases) {
    const std::string quantity = fmt::format("{} [tokens/s/GPU]", c.quantity);
    SimulatorRow mine{c.experiment, quantity, "ours", c.measured, {}, ""};
    const auto it = std::find_if(ours.begin(), ours.end(), [&](const validation::Throughput& t) {
      return t.phase == c.quantity;
    });
    if (c.experiment != std::string(kV3)) {
      mine.source = "not run: no hardware file and no kernel times of an H20";
    } else if (it == ours.end()) {
      mine.source = "not run with --quick";
    } else {
      mine.simulated = it->simulated;
      mine.source = "validate --step-loop, two micro-batches";
    }
    rows.push_back(std::move(mine));
    rows.push_back({c.experiment, quantity, "InferSim", c.measured, c.simulated, kInferSim});
  }
  return rows;
}

std::vector<Table> simulators_tables(const std::vector<SimulatorRow>& rows) {
  return {rows_table(rows), summary_table(rows)};
}

std::vector<Table> make_simulators(const TableContext& context) {
  const auto folder = context.scenarios / "validation" / "rtx_pro_6000_qwen3_30b";
  validation::VllmCase vllm = validation::run_vllm_case(folder);
  std::vector<validation::Throughput> v3;
  if (!context.quick) {
    vllm.loop =
        validation::run_vllm_loop(folder, context.scenarios, validation::MoeRows::kGathered);
    v3 = {validation::run_deepseek_prefill(context.scenarios),
          validation::run_deepseek_decode(context.scenarios)};
  }
  std::vector<SimulatorRow> rows = vllm_rows(vllm);
  for (SimulatorRow& r : infersim_rows(v3)) rows.push_back(std::move(r));
  std::vector<Table> tables = simulators_tables(rows);
  tables.push_back(operations_table(context));
  if (context.quick) {
    tables.front().notes.emplace_back("quick: without our step loop");
  }
  return tables;
}

}  // namespace switchyard::tables
