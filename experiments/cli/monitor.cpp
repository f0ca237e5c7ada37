// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/monitor.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/trace/trace_parts.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/sim.hpp"
#include "sim/health/alarm_rules.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/health/plain_table.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
std::string render_health(const std::vector<Table>& tables, TableFormat format) {
  const bool plain = format == TableFormat::kJson || format == TableFormat::kCsv;
  return render_all(plain ? health::plain_tables(tables) : tables, format);
}

int run_monitor(const MonitorOptions& options) {
  std::vector<scenario::AlarmRule> rules;
  std::string source;  // Whose they are.
  run::RunData run;
  bool violated = false;
  std::optional<health::RecordedRun> file;
  if (options.input.ends_with(".toml")) {
    scenario::ReadOptions read;
    read.settings = options.settings;
    read.trace = options.trace;
    read.presets_root = scenarios_root().string();
    const scenario::Scenario s = scenario::read_scenario(options.input, read);
    if (!s.sweep.empty()) {
      throw InputError(
          s.sweep.front().where, "the scenario has a [[sweep]]",
          "run switchyard sweep, then monitor its points, or take one with --set KEY=VALUE for "
          "each swept key");
    }
    std::optional<RoutingTrace> trace;
    std::string hash;
    if (s.workload.routing.source == scenario::RoutingSource::kTrace) {
      trace = open_trace(s.workload.routing.trace_path, true, kTraceBytesInMemory, true);
      hash = trace_file_hash(s.workload.routing.trace_path);
    }
    const auto sink = sim::memory_sink();
    const sim::SimulationResult result = sim::simulate(s, trace ? &*trace : nullptr, hash, *sink);
    for (const run::Violation& v : result.violations) {
      say("conservation violated ({}) at {}: {}\n", v.check, v.where, v.message);
    }
    for (const std::string& note : result.notes) say("note: {}\n", note);
    violated = !result.violations.empty();
    run = std::move(sink->data());
    health::AlarmRules of_run = health::alarm_rules_of(run, s.alarms);
    rules = std::move(of_run.rules);
    source = std::move(of_run.source);
  } else {
    if (options.trace || !options.settings.empty()) {
      throw InputError(options.trace ? "--trace" : "--set", "means nothing for a run that is done",
                       "give the scenario (.toml)");
    }
    file = health::read_recorded(options.input, h5::ReadOptions{options.verify});
    health::AlarmRules of_run = health::alarm_rules_of(file->run);
    rules = std::move(of_run.rules);
    source = std::move(of_run.source);
  }
  if (options.alarms) {
    rules = scenario::read_alarm_file(*options.alarms);
    source = "the rules of " + *options.alarms;
    for (const scenario::AlarmRule& r : rules) {
      if (!scenario::of_hidden_states(r.signal) || (file ? file->run : run).cohesion) continue;
      throw InputError(
          r.where,
          fmt::format("signal = \"{}\" needs hidden states: {} has none",
                      scenario::kHealthSignals[health::at(r.signal)].name, options.input),
          "simulate a trace made with --router-input");
    }
  }
  health::MonitorReport report = file ? health::monitor_run(*file, rules, options.input)
                                      : health::monitor_run(run, rules, options.input);
  report.tables.front().notes.push_back("judged by " + source);
  fmt::print("{}", render_health(report.tables, options.format));
  return violated || (options.fail_on_alarm && report.raised > 0) ? 1 : 0;
}

}  // namespace switchyard::cli
