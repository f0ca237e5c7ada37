// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/short_run.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/trace_run.hpp"
#include "experiments/cli/trace.hpp"
#include "experiments/coupled/coupled_run.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

/// What the shipped checkpoint decides for the mixed prompts and 16 tokens after each.
RoutingTrace record_shipped(const TableContext& context) {
  const fs::path checkpoint = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(checkpoint, {.threads = context.threads});
  const auto tokenizer = model::Tokenizer::load(checkpoint);
  constexpr std::uint32_t kAnswer = 16;
  auto prompts = cli::read_trace_prompts(context.scenarios / "prompts" / "mixed.jsonl", kAnswer, {},
                                         engine, tokenizer);
  TraceRunOptions options;
  options.batch = static_cast<std::uint32_t>(prompts.size());
  std::string name = (fs::temp_directory_path() / "switchyard-table-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw InputError(name, "cannot make this folder");
  }
  const fs::path file = fs::path(name) / "shipped.h5";
  std::error_code ignored;
  try {
    (void)record_trace(engine, prompts, options, file);
    RoutingTrace trace = read_trace(file);
    fs::remove_all(name, ignored);
    return trace;
  } catch (...) {
    fs::remove_all(name, ignored);
    throw;
  }
}

}  // namespace

run::RunData ShortRuns::run(const std::string& text,
                            const std::function<void(scenario::Scenario&)>& edit) {
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
  if (from_trace && !shipped_) {
    shipped_ = std::make_unique<RoutingTrace>(record_shipped(context_));
  }
  const auto sink = sim::memory_sink();
  const auto result = sim::simulate(s, from_trace ? shipped_.get() : nullptr, "", *sink);
  if (!result.violations.empty()) {
    throw InputError(result.violations.front().where, result.violations.front().message);
  }
  return std::move(sink->data());
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
