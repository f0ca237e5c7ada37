// SPDX-License-Identifier: Apache-2.0
// The table `prompt-routing`: how the shipped checkpoint routes the prompt sets of claims.md
// section 2 (claims C30, C62, C67, C89, C92).
//
// Agreement: share of tokens x layers whose set of k experts a relative noise of 1e-3 on the
// router's input leaves as the FP32 router has it (mean of three draws; the inputs are those of the
// engine, rounded to BF16, for both). Stability of C92: how many sets change without LayerNorm,
// over how many change with it.
//
// Not modelled: embeddings of another model (a prompt's vector is the mean of its tokens' router
// input in the last MoE layer); what readers would call vague or a paraphrase.
#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/prompt_decisions.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// One set of prompts, or one domain of it.
struct PromptSetRow {
  std::string set, domain;
  std::size_t prompts = 0;
  LoadSpread all, each;
  GateStatistics tokens, last;
  LargestShare share;
  double agreement = 0;
};

/// Two prompts that mean the same.
struct PairRow {
  double cosine = 0, centred = 0;  ///< Of the prompts' vectors; centred: less the mean of the set.
  double top_changed = 0;          ///< Share of layers with another top expert.
  double last_changed = 0;         ///< The same of the last token's first choice.
  double top2_same = 0;            ///< Mean over layers of |common of the two most probable| / 2.
  double lead = 0;  ///< Mean probability of the first expert less that of the second, the
                    ///< smaller of the two prompts', mean over layers.
};
/// Pairs in order: prompts 2 i and 2 i + 1 are of one pair. Prompts with inputs.
[[nodiscard]] std::vector<PairRow> compare_pairs(std::span<const PromptDecisions> prompts,
                                                 const RouterShape& shape);

/// C92: the same router with and without LayerNorm on its input.
struct NormRow {
  std::string reading;
  double factor = 1;  ///< Of the inputs or the weights.
  NoiseEffect without, with;
};

struct PromptRoutingRun {
  std::string subject;
  RouterShape shape;
  std::vector<PromptSetRow> sets;
  std::vector<PairRow> pairs;
  std::vector<NormRow> norms;  ///< "as shipped", "large inputs", "large weights"
  double three_clean = 0;      ///< Share of decisions that differ in each of three equal runs.
};
/// `prompts`: the folder of the prompt sets. `most`: of mixed.jsonl's prompts, for C92; 0: all.
[[nodiscard]] PromptRoutingRun run_prompt_routing(const Engine& engine,
                                                  const model::Tokenizer& tokenizer,
                                                  const std::filesystem::path& prompts,
                                                  std::size_t most);
[[nodiscard]] claims::Measurements measure_prompt_routing(const PromptRoutingRun& run);
[[nodiscard]] std::vector<Table> prompt_routing_tables(const PromptRoutingRun& run,
                                                       const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
