// SPDX-License-Identifier: Apache-2.0
// The tables `temperature` (claim C16) and `gumbel` (C22): what a temperature, noise and Gumbel
// numbers do to the routing of the shipped checkpoint, by the engine with the policy in force.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/session.hpp"
#include "engine/routing/policy.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// What one policy did to a teacher-forced run. Shares are of tokens, per MoE layer.
struct RoutingEffect {
  std::uint64_t tokens = 0, predicted = 0;
  double top1_share_mean = 0;  ///< Tokens whose first choice is the layer's most popular expert:
  double top1_share_max = 0;   ///< mean and largest over the layers.
  double load_cv = 0;          ///< claims.md section 1, W = all tokens.
  double runs_share = 0;       ///< Tokens that end a run of >= 5 equal first choices in a sequence.
  double perplexity = 0;
  std::vector<std::uint16_t> first;  ///< [L, T, k] choices before capacity.
  std::vector<float> weights;        ///< [L, T, k]
};
/// Runs every text as one sequence, `batch` of them together, `chunk` tokens of each per step, in
/// one session, so that what a policy remembers lasts over all texts. Texts are not empty.
/// `weights`: of the files that the policy names, or null.
[[nodiscard]] RoutingEffect routing_effect(const Engine& engine,
                                           std::span<const std::vector<std::uint32_t>> texts,
                                           const RoutingPolicy& policy, std::size_t batch,
                                           std::size_t chunk,
                                           const PolicyWeights* weights = nullptr);

struct EffectRow {
  std::string name;
  double value = 0;       ///< Temperature or tau; NaN: none.
  std::string condition;  ///< "before, noise", "tau_noise", …
  RoutingEffect effect;
};
struct EffectRun {
  std::string subject;
  RoutingEffect plain;
  std::uint32_t experts = 0, top_k = 0;
  std::vector<EffectRow> rows;
};
[[nodiscard]] EffectRun run_temperature(const Engine& engine,
                                        std::span<const std::vector<std::uint32_t>> texts);
[[nodiscard]] EffectRun run_gumbel(const Engine& engine,
                                   std::span<const std::vector<std::uint32_t>> texts);
[[nodiscard]] claims::Measurements measure_temperature(const EffectRun& run);
[[nodiscard]] claims::Measurements measure_gumbel(const EffectRun& run);
/// `name`: "temperature" or "gumbel".
[[nodiscard]] std::vector<Table> effect_tables(const std::string& name, const EffectRun& run,
                                               const std::vector<claims::Judged>& judged);

}  // namespace switchyard::tables
