// SPDX-License-Identifier: Apache-2.0
// The kinds routing-vllm, routing-sglang and moe-balance of the verb `import`.
#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/model_config.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/import/moe_balance.hpp"
#include "experiments/import/routing_dump.hpp"

namespace switchyard::cli {
namespace {

constexpr const char* kExpertsOnlyNote =
    "experts only: the dump has no logits and no weights, so the trace can be counted and "
    "simulated as it is, and no other policy can decide on it";

model::ModelConfig model_that_ran(const ImportOptions& options) {
  if (options.model.empty()) {
    throw InputError("--model", "is missing",
                     "name the model that ran: a preset of scenarios/models, or its config.json");
  }
  return model::read_model_config(model::find_model(options.model, scenarios_root()));
}

}  // namespace

int import_routing(const ImportOptions& options) {
  const model::ModelConfig model = model_that_ran(options);
  const importers::RoutingDump dump = importers::read_routing_dump(
      read_file(options.input), options.input.string(),
      options.kind == "routing-vllm" ? importers::DumpKind::kVllm : importers::DumpKind::kSglang,
      model);
  write_trace(options.output, dump.trace);
  if (options.quiet) return 0;
  const RoutingTrace& t = dump.trace;
  std::uint64_t prompts = 0;
  for (const std::uint8_t phase : t.tokens.phase) {
    prompts += phase == static_cast<std::uint8_t>(Phase::kPrefill) ? 1U : 0U;
  }
  Table table;
  table.name = "import";
  table.title = "Routing trace";
  table.columns = {"quantity", "value"};
  table.rows = {{"model", t.header.model},
                {"sequences", std::to_string(t.sequences.size())},
                {"prompt tokens", std::to_string(prompts)},
                {"generated tokens", std::to_string(t.rows() - prompts)},
                {"MoE layers", std::to_string(t.header.layer_count())},
                {"layers without experts, passed over", std::to_string(dump.passed_over)}};
  table.notes = {
      kExpertsOnlyNote,
      "the dump does not say what ran together: all prompts are step 0, token n of every answer is "
      "step n"};
  if (!dump.token_ids) table.notes.emplace_back("token ids are 0 where the dump has none");
  fmt::print("{}", render(table, options.format));
  return 0;
}

int import_moe_balance(const ImportOptions& options) {
  const model::ModelConfig model = model_that_ran(options);
  const importers::MoeBalanceTrace read = importers::read_moe_balance(options.input, model);
  write_trace(options.output, read.trace);
  if (options.quiet) return 0;
  const RoutingTrace& t = read.trace;
  Table table;
  table.name = "import";
  table.title = "Routing trace";
  table.columns = {"quantity", "value"};
  table.rows = {{"model", t.header.model},
                {"batches, a step and a sequence each", std::to_string(t.steps())},
                {"tokens, all of prompts", std::to_string(t.rows())},
                {"MoE layers", std::to_string(t.header.layer_count())},
                {"layers without experts, passed over", std::to_string(read.passed_over)}};
  table.notes = {kExpertsOnlyNote, "token ids are 0: the file has none"};
  if (read.never_ran > 0) {
    table.notes.push_back(fmt::format(
        "last tokens with zeros in every layer, which never ran, left out: {}", read.never_ran));
  }
  if (read.origins) {
    table.notes.emplace_back(
        "origin_rows are not kept: where tokens come from is the scenario's to say (parallel)");
  }
  if (read.weights) table.notes.emplace_back("topk_weights are not kept: no figure reads them");
  fmt::print("{}", render(table, options.format));
  return 0;
}

}  // namespace switchyard::cli
