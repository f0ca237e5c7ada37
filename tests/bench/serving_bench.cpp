// SPDX-License-Identifier: Apache-2.0
// Serving, timed with its results checked: Mixtral 8x7B on 8 H100, requests arriving as they can be
// served. An hour of it, 72,000 steps of 50 ms, has to take 60 s at most (simulation.md §6).
//   serving_bench --benchmark_filter=72000      the whole hour
#include <benchmark/benchmark.h>

#include <string>

#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace {

namespace sim = switchyard::sim;
namespace scenario = switchyard::scenario;

bool wrong = false;

void serve(benchmark::State& state) {
  const auto steps = static_cast<std::uint64_t>(state.range(0));
  scenario::ReadOptions options;
  options.presets_root = SWITCHYARD_SOURCE_DIR "/scenarios";
  options.settings = {"parallel.ep=8",
                      "workload.front_end.replicas=1",
                      "workload.arrivals.requests=0",
                      "workload.arrivals.duration=\"1 h\"",
                      "workload.arrivals.per_second=16.0",
                      "workload.lengths.prompt=256",
                      "host.per_step=\"40 ms\"",
                      "run.detail=\"summary\"",
                      "workload.max_steps=" + std::to_string(steps)};
  const scenario::Scenario s =
      scenario::read_scenario(SWITCHYARD_SOURCE_DIR "/scenarios/serving_mixtral.toml", options);
  for (auto _ : state) {
    const auto sink = sim::memory_sink();
    const sim::SimulationResult result = sim::simulate(s, nullptr, "", *sink);
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
BENCHMARK(serve)->Arg(500)->Arg(72000)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return wrong ? 1 : 0;
}
