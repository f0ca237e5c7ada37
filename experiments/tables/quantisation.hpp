// SPDX-License-Identifier: Apache-2.0
// The table `quantisation`: formats of router and experts against routing agreement and perplexity,
// by the engine on the shipped checkpoint (claims C44, C87).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/quantise.hpp"
#include "engine/nn/session.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// Teacher-forced run over texts: what the router chose, and how well each token was foretold.
struct ForcedRun {
  std::uint32_t layers = 0, top_k = 0;
  std::vector<std::uint16_t> chosen;  ///< [T, L, k] without a policy, best first
  double nll = 0;                     ///< Sum of -ln p(next token), natural logarithm.
  std::uint64_t predicted = 0;        ///< Tokens in that sum: all but each text's first.
  std::uint32_t experts = 0;
  std::vector<float> router_logits{};  ///< [T, L, E], before any policy.
  [[nodiscard]] double perplexity() const;
};
/// Each text alone is one sequence; `batch` of them run together. Texts are not empty.
[[nodiscard]] ForcedRun forced_run(const Engine& engine,
                                   std::span<const std::vector<std::uint32_t>> texts,
                                   std::size_t batch);

/// Shares of token x layer decisions that two runs over the same texts have in common.
struct Agreement {
  double first = 0;        ///< The best expert is the same.
  double set = 0;          ///< The same k experts, in whatever order.
  double set_layer_0 = 0;  ///< The same in the first MoE layer alone, whose inputs no expert has
                           ///< touched: the effect of rounding the router itself.
};
[[nodiscard]] Agreement agreement(const ForcedRun& a, const ForcedRun& b);

struct QuantisationRow {
  std::string router, experts;  ///< "int4, groups of 128"; "" when as stored
  std::string options;          ///< parse_quantise() takes it.
  std::vector<QuantisedPart> parts;
  Agreement agreement;
  double perplexity = 0;
};
struct QuantisationRun {
  double perplexity = 0;  ///< As stored.
  std::uint64_t tokens = 0, predicted = 0;
  std::string subject;
  std::vector<QuantisationRow> rows;
};
/// Loads `checkpoint` once per combination of formats.
[[nodiscard]] QuantisationRun run_quantisation(const std::filesystem::path& checkpoint,
                                               std::span<const std::vector<std::uint32_t>> texts,
                                               unsigned threads);
[[nodiscard]] claims::Measurements measure_quantisation(const QuantisationRun& run);
[[nodiscard]] std::vector<Table> quantisation_tables(const QuantisationRun& run,
                                                     const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
