// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/monitor.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/cli/health_input.hpp"
#include "experiments/cli/sim.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

/// Above this many numbers the experts of single layers stay in the file.
constexpr double kMostLayerExperts = 2e7;
constexpr double kWatermark = 0.92;

}  // namespace

run::RunData read_for_health(const std::string& path, bool verify) {
  const h5::ReadOptions read{verify};
  run::RunParts parts;
  parts.lod = parts.tokens = parts.reroutes = false;
  {
    const run::RunReader reader(path, read);
    const run::RunData& base = reader.base();
    if (static_cast<double>(base.totals.steps) *
            static_cast<double>(base.inventory.moe_layers.size()) * base.inventory.experts >
        kMostLayerExperts) {
      parts.layer_experts = false;
    }
  }
  return run::read_run(path, parts, read);
}

int run_monitor(const MonitorOptions& options) {
  std::vector<scenario::AlarmRule> rules;
  run::RunData run;
  if (options.input.ends_with(".toml")) {
    scenario::ReadOptions read;
    read.settings = options.settings;
    read.trace = options.trace;
    read.presets_root = scenarios_root().string();
    const scenario::Scenario s = scenario::read_scenario(options.input, read);
    if (!s.sweep.empty()) {
      throw InputError(s.sweep.front().where, "the scenario has a [[sweep]]",
                       "run switchyard sweep, then monitor its points");
    }
    rules = s.alarms.empty() ? scenario::default_alarms(s.memory.watermark) : s.alarms;
    std::optional<RoutingTrace> trace;
    std::string hash;
    if (s.workload.routing.source == scenario::RoutingSource::kTrace) {
      trace = read_trace(s.workload.routing.trace_path);
      hash = trace_file_hash(s.workload.routing.trace_path);
    }
    const auto sink = sim::memory_sink();
    sim::simulate(s, trace ? &*trace : nullptr, hash, *sink);
    run = std::move(sink->data());
  } else {
    if (options.trace || !options.settings.empty()) {
      throw InputError(options.trace ? "--trace" : "--set", "means nothing for a run that is done",
                       "give the scenario (.toml)");
    }
    run = read_for_health(options.input, options.verify);
    rules = scenario::default_alarms(kWatermark);
  }
  if (options.alarms) rules = scenario::read_alarm_file(*options.alarms);
  const health::MonitorReport report = health::monitor_run(run, rules, options.input);
  fmt::print("{}", render_all(report.tables, options.format));
  return options.fail_on_alarm && report.raised > 0 ? 1 : 0;
}

}  // namespace switchyard::cli
