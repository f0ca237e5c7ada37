// SPDX-License-Identifier: Apache-2.0
// Tables `routing-statistics` and `windowed-imbalance`: how evenly real routers choose, beside what
// an even router would show by chance. Sources: the shipped checkpoint by our engine, and the
// excerpts of scenarios/routing. E experts, k per token, T tokens, D texts of T_d tokens.
//
//   load_cv, top-3 share, entropy_load, switch_rate, set_switch: engine/trace/trace_stats.hpp
//   by chance, an even router whose tokens are independent: load_cv sqrt((1 - k/E) / (W k/E));
//                  dead experts E (1 - k/E)^T; set_switch 1 - k/E; switch_rate 1 - 1/E
//   specialisation Jensen-Shannon divergence of the texts' loads p_d [E], equally weighted:
//                  H(mean of p_d) - mean of H(p_d), bits, 0 … log2 D. By chance
//                  (E - k) / (2 ln 2) · (1/D)(1 - 1/D) · sum over d of 1 / (T_d k), the first
//                  order of the plug-in estimate's bias with k of E drawn without replacement
//   skew           sqrt(load_cv^2 - floor^2): what is left when counting noise is taken out
//
// Not modelled: chance under correlated tokens (neighbours of one text choose alike, so the real
// noise is larger than the floor: column "tokens shuffled"); specialisation of single words.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/tables/routing_excerpts.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

using Loads = std::vector<std::uint64_t>;  ///< [E] choices

/// One layer of one model.
struct LayerChoices {
  std::uint32_t layer = 0;
  std::vector<Loads> by_text;                     ///< [D]
  std::optional<double> switch_rate, set_switch;  ///< Only token by token.
  std::optional<double> entropy_gate;             ///< Bits, mean over tokens; needs logits.
  [[nodiscard]] Loads load() const;               ///< Over all texts.
};
struct RoutingSource {
  std::string model, data;
  std::uint32_t experts = 0, top_k = 0;
  std::vector<std::string> texts;     ///< [D]
  std::vector<std::uint64_t> tokens;  ///< [D]
  std::vector<LayerChoices> layers;
  [[nodiscard]] std::uint64_t all_tokens() const;
};
/// `ranked`: the first choice is the best one, so it can be compared from token to token.
[[nodiscard]] RoutingSource source_of(const RoutingTrace& trace, bool ranked, std::string data);
/// One source per model; every text of a model has the same layers (asserted).
[[nodiscard]] std::vector<RoutingSource> sources_of(const std::vector<ExpertCounts>& counts);

/// load_cv of one window: population std / mean; 0 for no load.
[[nodiscard]] double load_cv(std::span<const std::uint64_t> load);
/// Of a window of `tokens` tokens under an even router.
[[nodiscard]] double load_cv_floor(double experts, double top_k, double tokens);
/// Bits; by the definitions above.
[[nodiscard]] double divergence_bits(std::span<const Loads> by_text);
[[nodiscard]] double divergence_by_chance(double experts, double top_k,
                                          std::span<const std::uint64_t> tokens);
/// Mean over layers and whole windows of `window` tokens of load_cv, rows taken in `order`, a
/// permutation of the rows or a part of it; no value when there is no whole window.
[[nodiscard]] std::optional<double> windowed_load_cv(const RoutingTrace& trace,
                                                     std::span<const std::uint32_t> order,
                                                     std::uint64_t window);
/// Rows that are not warm-up, sequence by sequence, in the order of positions.
[[nodiscard]] std::vector<std::uint32_t> rows_by_sequence(const RoutingTrace& trace);
/// `rows` in an order drawn by `seed` (Fisher-Yates).
[[nodiscard]] std::vector<std::uint32_t> shuffled(std::vector<std::uint32_t> rows,
                                                  std::uint64_t seed);

/// A line per model, a line per layer, and the gates whose entropy was published.
[[nodiscard]] std::vector<Table> routing_statistics_tables(
    const std::vector<RoutingSource>& sources, const std::vector<GateEntropy>& gates);
/// Load variation by window, and the tokens after which it is skew rather than noise.
[[nodiscard]] std::vector<Table> windowed_imbalance_tables(
    const std::vector<std::pair<std::string, RoutingTrace>>& traces,
    const std::vector<RoutingSource>& counted);

}  // namespace switchyard::tables
