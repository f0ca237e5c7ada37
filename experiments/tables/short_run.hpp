// SPDX-License-Identifier: Apache-2.0
// Short simulations for the tables: scenario text in, run in memory out. Exchanges are timed in
// closed form (network.model = "bottleneck"), because SimGrid allows one engine per process.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/nn/trace_run.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/tables/tables.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {

/// Lines that every scenario of a table ends with: closed-form exchanges, stated host times (those
/// of scenarios/serving_mixtral.toml), steps kept.
inline constexpr std::string_view kRunTail =
    "[network]\nmodel = \"bottleneck\"\n[host]\nper_step = \"500 us\"\nper_sequence = \"10 us\"\n"
    "[run]\ndetail = \"steps\"\n";
/// For [workload]: the shipped checkpoint's decisions, cycled over steps and layers.
inline constexpr std::string_view kShippedRouting =
    "routing = { trace = \"shipped.h5\", layers = \"cycle\" }\n";
/// For [workload]: a drawn lognormal law.
inline constexpr std::string_view kDrawnRouting =
    "routing = { synthetic = \"lognormal\", sigma = 0.9 }\n";

class ShortRuns {
 public:
  explicit ShortRuns(const TableContext& context) : context_(context) {}
  /// Simulates a scenario text; names in it are presets of the context's folder. InputError: what
  /// scenario and simulator refuse, and a run that breaks a conservation law.
  /// `edit` may change what was read, e.g. the hardware's links. `routing` takes the place of the
  /// shipped trace where the text asks for that; null: the shipped trace itself.
  [[nodiscard]] run::RunData run(const std::string& text,
                                 const std::function<void(scenario::Scenario&)>& edit = {},
                                 const RoutingTrace* routing = nullptr);
  /// The shipped checkpoint's decisions on the mixed prompts and 16 tokens after each.
  [[nodiscard]] const RoutingTrace& shipped();
  /// The same on prompts/SET.jsonl, of one domain or (empty) all. InputError: there are none.
  [[nodiscard]] RoutingTrace trace(const std::string& set, const std::string& domain) const;
  /// The shipped checkpoint on the mixed prompts and 16 tokens after each; `policy` is empty or the
  /// name of a preset of two tiers ("two_tier_int4").
  [[nodiscard]] TraceRunSummary engine(const std::string& policy) const;
  [[nodiscard]] bool quick() const { return context_.quick; }

 private:
  TableContext context_;
  std::unique_ptr<RoutingTrace> shipped_;  // Made when first asked for.
};

/// Share (0…1) of a metric in the run; see coupled::metric_of.
[[nodiscard]] double metric(const run::RunData& run, const std::string& name);
/// 95th percentile of the measured steps' durations (nearest rank), seconds.
[[nodiscard]] double step_p95(const run::RunData& run);

}  // namespace switchyard::tables
