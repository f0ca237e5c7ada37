// SPDX-License-Identifier: Apache-2.0
// Serving, timed with its results checked: Mixtral 8x7B on 8 H100, routing from a trace, about 40
// requests at a time. An hour of it, 72,000 steps of 50 ms, has to take 60 s at most.
//   serving_bench --benchmark_filter=72000      the whole hour
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "engine/base/random.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace {

namespace sim = switchyard::sim;
namespace scenario = switchyard::scenario;

bool wrong = false;

/// 64 sequences with 64 prompt rows and 64 answer rows each, 4 layers, logits drawn at random.
switchyard::RoutingTrace made_trace() {
  using namespace switchyard;  // NOLINT(google-build-using-namespace): one function
  constexpr std::uint32_t kSequences = 64, kRows = 128, kLayers = 4, kExperts = 8;
  RoutingTrace t;
  t.header.model = "made";
  t.header.gate = gate_mixtral(kExperts, 2);
  for (std::uint32_t l = 0; l < kLayers; ++l) t.header.layers.push_back(l);
  t.header.candidates = stored_candidates(kExperts, 2);
  t.header.slots = 2;
  t.header.config_hash = t.header.weight_hash = "0000000000000000";
  t.header.engine = "made";
  t.header.precision = "f32";
  RankWorkspace workspace;
  Candidates c;
  t.step_begin = {0, std::uint64_t{kSequences} * kRows};
  std::vector<float> logits(kExperts);
  for (std::uint32_t q = 0; q < kSequences; ++q) {
    t.sequences.push_back({1, q, "", ""});
    for (std::uint32_t p = 0; p < kRows; ++p) {
      t.tokens.sequence.push_back(q);
      t.tokens.position.push_back(p);
      t.tokens.token.push_back(p);
      t.tokens.phase.push_back(p < kRows / 2 ? 0 : 1);
      t.tokens.step.push_back(0);
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        for (std::uint32_t e = 0; e < kExperts; ++e) {
          logits[e] = static_cast<float>(random_normal(1, random_purpose("bench"), {q, l, p, e}));
        }
        rank_candidates(t.header.gate, logits, {}, t.header.candidates, workspace, c);
        t.routing.candidates.insert(t.routing.candidates.end(), c.ids.begin(), c.ids.end());
        t.routing.logit.insert(t.routing.logit.end(), c.logit.begin(), c.logit.end());
        t.routing.lse.push_back(c.lse[0]);
      }
    }
  }
  t.decisions_present = false;
  replay(t, ReplayOptions::recorded(t.header));
  return t;
}

void serve(benchmark::State& state) {
  const auto steps = static_cast<std::uint64_t>(state.range(0));
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  options.settings = {"parallel.ep=8",
                      "workload.front_end.replicas=1",
                      "workload.arrivals.requests=0",
                      "workload.arrivals.duration=\"1 h\"",
                      "workload.routing={ trace = \"made\", layers = \"cycle\" }",
                      "workload.arrivals.per_second=14.0",
                      "workload.lengths.prompt=64",
                      "host.per_step=\"40 ms\"",
                      "run.detail=\"summary\"",
                      "workload.max_steps=" + std::to_string(steps)};
  const scenario::Scenario s = scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/serving_mixtral.toml", options);
  const switchyard::RoutingTrace trace = made_trace();
  for (auto _ : state) {
    const auto sink = sim::memory_sink();
    const sim::SimulationResult result = sim::simulate(s, &trace, "", *sink);
    if (!result.violations.empty() || sink->data().totals.steps != steps) {
      wrong = true;
      state.SkipWithError("the run is not sound");
      return;
    }
    double sequences = 0;
    for (const auto& x : sink->data().steps) sequences += static_cast<double>(x.sequences);
    state.counters["sequences"] = sequences / static_cast<double>(steps);
    state.counters["simulated_s"] = static_cast<double>(sink->data().steps.back().end_ps) * 1e-12;
  }
  state.counters["steps/s"] =
      benchmark::Counter(static_cast<double>(steps) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(serve)
    ->Arg(500)
    ->Arg(72000)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return wrong ? 1 : 0;
}
