// SPDX-License-Identifier: Apache-2.0
#include "experiments/coupled/coupled_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "engine/base/error.hpp"
#include "engine/trace/trace.hpp"
#include "sim/loop/simulator.hpp"

namespace switchyard::coupled {
namespace {

scenario::Scenario scenario_of(const std::string& text, const std::filesystem::path& presets) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = presets.string();
  scenario::Scenario s =
      scenario::read_scenario_text(text, (presets / "table.toml").string(), options);
  SWITCHYARD_ASSERT(s.network.model == scenario::NetworkModelKind::kBottleneck,
                    "several simulations in one process");
  return s;
}

run::RunData simulate(const scenario::Scenario& s, const RoutingTrace& trace,
                      const sim::SimulationExtras& extras) {
  const auto sink = sim::memory_sink();
  const sim::SimulationResult result = sim::simulate(s, &trace, "", *sink, {}, extras);
  if (!result.violations.empty()) {
    throw InputError(result.violations.front().where, result.violations.front().message);
  }
  return std::move(sink->data());
}

}  // namespace

CoupledRun run_coupled(const Engine& engine, std::span<const TracePrompt> prompts,
                       const std::string& scenario_text, std::uint32_t rounds,
                       const std::filesystem::path& presets, const std::filesystem::path& scratch) {
  const scenario::Scenario s = scenario_of(scenario_text, presets);
  Hooks hooks;
  hooks.engine = [&](std::uint32_t, const SignalTable* signals) {
    TraceRunOptions run;
    run.batch = static_cast<std::uint32_t>(prompts.size());
    run.seed = run.sampling.seed = s.run.seed;
    if (signals != nullptr || !needs_signals(s.policy)) {
      run.policy = s.policy;
      run.signals = signals;
    }
    const std::filesystem::path file = scratch / "trace.h5";
    (void)record_trace(engine, prompts, run, file);
    return read_trace(file);
  };
  CoupledRun out;
  hooks.simulate = [&](std::uint32_t, const RoutingTrace& trace) {
    SignalTable table;
    sim::SimulationExtras extras;
    extras.signals = &table;
    out.data = simulate(s, trace, extras);
    validate_signals(table, "coupled run");
    return table;
  };
  out.outcome = couple(hooks, rounds);
  // Settled: the last trace decides as the one before, which was simulated.
  if (!out.outcome.converged) out.data = simulate(s, out.outcome.trace, {});
  return out;
}

run::RunData run_alone(const RoutingTrace& trace, const std::string& scenario_text,
                       const std::filesystem::path& presets) {
  return simulate(scenario_of(scenario_text, presets), trace, {});
}

double metric_of(const run::RunData& run, const std::string& name) {
  const auto it = std::find_if(run.metrics.begin(), run.metrics.end(),
                               [&](const run::Metric& m) { return m.name == name; });
  if (it == run.metrics.end()) throw InputError("run", fmt::format("has no metric {}", name));
  return it->value;
}

}  // namespace switchyard::coupled
