// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/short_run.hpp"

#include <filesystem>
#include <optional>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/two_tier_router.hpp"
#include "experiments/cli/trace.hpp"
#include "experiments/coupled/coupled_run.hpp"
#include "experiments/tables/scratch_folder.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/metrics.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

/// Whose decisions are recorded: prompts of scenarios/prompts/SET.jsonl, of one domain or all.
struct Recorded {
  std::string set = "mixed", domain = {}, policy = {};
};

/// What the shipped checkpoint decides for these prompts and 16 tokens after each; `use` gets
/// the trace's file before it goes.
template <typename Use>
TraceRunSummary record_shipped(const TableContext& context, const Recorded& what, const Use& use) {
  const fs::path checkpoint = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(checkpoint, {.threads = context.threads});
  const auto tokenizer = model::Tokenizer::load(checkpoint);
  constexpr std::uint32_t kAnswer = 16;
  TraceRunOptions options;
  std::optional<TwoTierRouter> tiers;
  if (!what.policy.empty()) {
    PolicyFiles files;
    options.policy = scenario::read_policy_file(
        (context.scenarios / "policies" / (what.policy + ".toml")).string(), &files);
    SWITCHYARD_ASSERT(options.policy.two_tier.on(), "only policies of two tiers are loaded whole");
    tiers = TwoTierRouter::load(options.policy, files, engine.weights(), engine.config());
    options.tiers = &*tiers;
  }
  const fs::path set = context.scenarios / "prompts" / (what.set + ".jsonl");
  auto prompts = cli::read_trace_prompts(set, kAnswer, options.policy, engine, tokenizer);
  std::erase_if(prompts, [&](const TracePrompt& p) {
    return !what.domain.empty() && p.domain != what.domain;
  });
  if (prompts.empty()) {
    throw InputError(set.string(), "has no prompt of the domain " + what.domain);
  }
  options.batch = static_cast<std::uint32_t>(prompts.size());
  const ScratchFolder scratch;
  const fs::path file = scratch.folder() / "shipped.h5";
  TraceRunSummary summary = record_trace(engine, prompts, options, file);
  use(file);
  return summary;
}

}  // namespace

run::RunData ShortRuns::run(const std::string& text,
                            const std::function<void(scenario::Scenario&)>& edit,
                            const RoutingTrace* routing) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = context_.scenarios.string();
  scenario::Scenario s =
      scenario::read_scenario_text(text, (context_.scenarios / "table.toml").string(), options);
  if (edit) {
    edit(s);
  }
  SWITCHYARD_ASSERT(s.network.model == scenario::NetworkModelKind::kBottleneck,
                    "several simulations in one process");
  const bool from_trace = text.find("shipped.h5") != std::string::npos;
  SWITCHYARD_ASSERT(from_trace || routing == nullptr, "the scenario asks for a trace");
  if (from_trace && routing == nullptr) {
    routing = &shipped();
  }
  const auto sink = sim::memory_sink();
  const auto result = sim::simulate(s, routing, "", *sink);
  if (!result.violations.empty()) {
    throw InputError(result.violations.front().where, result.violations.front().message);
  }
  return std::move(sink->data());
}

const RoutingTrace& ShortRuns::shipped() {
  if (!shipped_) {
    shipped_ = std::make_unique<RoutingTrace>(trace("mixed", ""));
  }
  return *shipped_;
}

RoutingTrace ShortRuns::trace(const std::string& set, const std::string& domain) const {
  RoutingTrace out;
  (void)record_shipped(context_, {.set = set, .domain = domain},
                       [&](const fs::path& file) { out = read_trace(file); });
  return out;
}

TraceRunSummary ShortRuns::engine(const std::string& policy) const {
  return record_shipped(context_, {.policy = policy}, [](const fs::path&) {});
}

double metric(const run::RunData& run, const std::string& name) {
  return coupled::metric_of(run, name);
}

double step_p95(const run::RunData& run) {
  std::vector<double> seconds;
  for (const run::StepScalars& s : run.steps) {
    if (!s.warmup) {
      seconds.push_back(static_cast<double>(s.end_ps - s.start_ps) * 1e-12);
    }
  }
  return run::nearest_rank(std::move(seconds), 95);
}

}  // namespace switchyard::tables
