// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/sim.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/file_hash.hpp"
#include "engine/base/hash.hpp"
#include "engine/trace/trace_parts.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/progress.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/signals.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/metrics.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/shipped.hpp"

namespace switchyard::cli {
namespace {

void print_event(const nlohmann::json& event) {
  fmt::print("{}\n", event.dump());
  std::fflush(stdout);
}

/// --memory-out: allocations and frees as they come.
class MemoryFile {
 public:
  explicit MemoryFile(const std::filesystem::path& target)
      : file_(target), out_(file_.temporary(), std::ios::binary) {
    out_ << "time_ps,step,gpu,category,bytes,cause\n";
  }
  /// bytes: what came (> 0) or went (< 0). No step: outside of steps.
  void add(const sim::MemoryEntry& e) {
    out_ << fmt::format("{},{},{},{},{}{},\"{}\"\n", e.time_ps,
                        e.step == run::kNone ? std::string() : std::to_string(e.step), e.gpu,
                        run::kMemoryCategoryNames[static_cast<std::size_t>(e.category)],
                        e.freed ? "-" : "", e.bytes, e.cause);
  }
  void commit() {
    out_.close();
    if (!out_) {
      throw InputError(file_.target().string(), "cannot be written", "is the disk full?");
    }
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::ofstream out_;
};

}  // namespace

std::filesystem::path scenarios_root() {
  return scenario::shipped_scenarios(SWITCHYARD_SCENARIOS_DIR);
}

Table sim_summary_table(const run::RunData& run, const std::vector<std::string>& notes,
                        bool sound) {
  Table table;
  table.name = "sim";
  table.title = fmt::format("{}: {} on {}", run.meta.scenario_name, run.meta.model_name,
                            run.meta.hardware_name);
  table.columns = {"metric", "value", "unit"};
  for (const run::Metric& m : run.metrics) {
    if (m.name.find(", layer ") != std::string::npos) continue;  // `inspect` shows them all.
    table.rows.push_back({m.name, run::format_value(m.value), m.unit});
  }
  table.notes.push_back(fmt::format("{}; applied by {}; network model {}; seed {}; scenario {}",
                                    run.meta.routing_source, run.meta.policy_way,
                                    run.meta.network_model, run.meta.seed, run.meta.scenario_hash));
  for (const std::string& note : notes) table.notes.push_back(note);
  table.notes.push_back(sound ? "conservation checks: all hold"
                              : "conservation checks: VIOLATED, see stderr");
  return table;
}

std::string trace_file_hash(const std::string& path) { return hex64(hash64_of_file(path)); }

int run_sim(const SimOptions& options) {
  const bool json = progress_as_json(options.progress);
  scenario::ReadOptions read;
  read.settings = options.settings;
  read.trace = options.trace;
  read.presets_root = scenarios_root().string();
  const scenario::Scenario scenario = scenario::read_scenario(options.scenario, read);
  if (!scenario.sweep.empty() && !options.base_point) {
    throw InputError(
        scenario.sweep.front().where, "the scenario has a [[sweep]]",
        "run switchyard sweep, which simulates every point, or take one with --set KEY=VALUE "
        "for each swept key");
  }
  std::optional<RoutingTrace> trace;
  std::string trace_hash;
  if (scenario.workload.routing.source == scenario::RoutingSource::kTrace) {
    const std::string& path = scenario.workload.routing.trace_path;
    trace = open_trace(path, true, kTraceBytesInMemory, true);
    trace_hash = trace_file_hash(path);
  }
  const std::filesystem::path trace_path = trace ? scenario.workload.routing.trace_path : "";
  remove_stale_temporaries(options.output);
  require_own_output("-o", options.output,
                     {{"the scenario", options.scenario}, {"the routing trace", trace_path}});
  require_own_output("--signals-out", options.signals,
                     {{"the scenario", options.scenario},
                      {"the routing trace", trace_path},
                      {"the run (-o)", options.output}});
  require_own_output("--memory-out", options.memory,
                     {{"the scenario", options.scenario},
                      {"the routing trace", trace_path},
                      {"the run (-o)", options.output},
                      {"the signals (--signals-out)", options.signals}});
  ParentFolders folders;  // Before the sink, whose temporary goes first.
  folders.make("-o", options.output);
  if (!options.signals.empty()) folders.make("--signals-out", options.signals);
  if (!options.memory.empty()) folders.make("--memory-out", options.memory);
  const bool terminal = !json && !options.quiet && isatty(STDERR_FILENO) != 0;
  std::uint64_t last_percent = 0;
  const auto sink = sim::file_sink(options.output);
  SignalTable signals;
  sim::SimulationExtras extras;
  if (!options.signals.empty()) extras.signals = &signals;
  std::optional<MemoryFile> memory;
  if (!options.memory.empty()) {
    memory.emplace(options.memory);
    extras.memory = [&memory](const sim::MemoryEntry& e) { memory->add(e); };
  }
  const sim::SimulationResult result = sim::simulate(
      scenario, trace ? &*trace : nullptr, trace_hash, *sink,
      [&](std::uint64_t done, std::uint64_t total, std::int64_t now) {
        const std::uint64_t percent = 100 * done / total;
        if (percent == last_percent && done != total) return;
        last_percent = percent;
        if (json) {
          print_event({{"event", "progress"},
                       {"phase", "simulate"},
                       {"done", done},
                       {"total", total},
                       {"sim_time_ps", now}});
        } else if (terminal) {
          say("\rsimulating {:3} %", percent);
        }
      },
      extras);
  if (terminal) say("\r                \r");
  for (const run::Violation& v : result.violations) {
    say("conservation violated ({}) at {}: {}\n", v.check, v.where, v.message);
  }
  if (!options.signals.empty()) {
    write_signals(options.signals,
                  signals_file(sink->data().meta, result.policy, std::move(signals)));
  }
  if (memory) memory->commit();
  if (json) {
    print_event({{"event", "done"}, {"output", options.output.string()}});
  } else if (!options.quiet) {
    fmt::print("{}",
               render(sim_summary_table(sink->data(), result.notes, result.violations.empty()),
                      options.format));
  }
  return result.violations.empty() ? 0 : 1;
}

}  // namespace switchyard::cli
