// SPDX-License-Identifier: Apache-2.0
// What the router makes of single prompts, by the engine: raw logits and router inputs of every
// token and MoE layer (prefill), and what tables compute from them.
//
//   p[t, e]        softmax of the raw logits over all E
//   top expert     of a prompt in a layer: argmax_e sum_t p[t, e], ties to the lower id (the rule
//   of
//                  a routing table's entry, engine/routing/static_table.hpp)
//   logit variance population variance over E of a token's raw logits, mean over tokens and layers
//   margin         of a token and layer: z(k) - z(k+1) of the logits in falling order, what a
//                  disturbance has to overcome to change the set
//   entropy        -sum p log2 p, bits
//   load_cv        claims.md section 1: std / mean of the choices per expert, mean over layers
//
// Not modelled: decode; policies (the router is as the model has it); gates that choose by
// something else than their logits (a selection bias, groups): asserted.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {

/// Shape of a model's routers.
struct RouterShape {
  std::size_t layers = 0, experts = 0, top_k = 0, hidden = 0;
};
[[nodiscard]] RouterShape router_shape(const Engine& engine);

struct PromptDecisions {
  std::string name, domain;
  std::size_t tokens = 0;
  std::vector<float> logits;  ///< [L, T, E] raw
  std::vector<float> input;   ///< [L, T, H], rounded to BF16; empty unless asked for
  [[nodiscard]] std::span<const float> row(const RouterShape& s, std::size_t layer,
                                           std::size_t t) const {
    return std::span(logits).subspan((layer * tokens + t) * s.experts, s.experts);
  }
};

/// Each prompt is a sequence by itself, so no result depends on the others. InputError: a prompt
/// without tokens or longer than the model's positions.
[[nodiscard]] std::vector<PromptDecisions> decide_prompts(const Engine& engine,
                                                          const model::Tokenizer& tokenizer,
                                                          std::span<const cli::PromptText> prompts,
                                                          bool with_input);
/// The same for prompts that are tokens already; names and domains stay empty.
[[nodiscard]] std::vector<PromptDecisions> decide_tokens(
    const Engine& engine, std::span<const std::vector<std::uint32_t>> prompts, bool with_input);

/// Ids of the k largest logits, best first; ties to the lower id. k <= logits.size().
[[nodiscard]] std::vector<std::uint16_t> best_experts(std::span<const float> logits, std::size_t k);
/// Softmax over all logits.
[[nodiscard]] std::vector<double> probabilities(std::span<const float> logits);
/// Mean probability of each expert over a prompt's tokens in a layer; [E].
[[nodiscard]] std::vector<double> mean_probability(const PromptDecisions& p, const RouterShape& s,
                                                   std::size_t layer);
/// See the head of the file.
[[nodiscard]] std::uint16_t top_expert(const PromptDecisions& p, const RouterShape& s,
                                       std::size_t layer);

/// Means over the tokens and layers of a set of prompts.
struct GateStatistics {
  std::uint64_t tokens = 0;
  double logit_variance = 0, entropy = 0, margin = 0;
  std::array<double, 3> p{};  ///< The three largest probabilities; 0 beyond E.
};
/// `last_only`: of each prompt's last token alone.
[[nodiscard]] GateStatistics gate_statistics(std::span<const PromptDecisions> prompts,
                                             const RouterShape& s, bool last_only);

/// load_cv of all tokens of the prompts as one window, mean over layers, and its counting floor;
/// `each`: every prompt is a window, mean over prompts.
struct LoadSpread {
  double cv = 0, floor = 0;
};
[[nodiscard]] LoadSpread load_spread(std::span<const PromptDecisions> prompts, const RouterShape& s,
                                     bool each);

/// Largest share of one expert in a layer: the largest over the layers.
struct LargestShare {
  double requests = 0;     ///< Of the prompts, whose top expert it is.
  double first = 0;        ///< Of the tokens, whose first choice it is.
  double tokens = 0;       ///< Of the tokens, among whose k choices it is.
  double assignments = 0;  ///< Of all choices.
};
[[nodiscard]] LargestShare largest_share(std::span<const PromptDecisions> prompts,
                                         const RouterShape& s);

/// How a disturbed router sees the recorded inputs: z = W f(a x), W scaled by `weights`, x by
/// `inputs`; f = layer_norm ? (x - mean) / sqrt(var + 1e-5) : identity.
struct RouterView {
  double inputs = 1, weights = 1;
  bool layer_norm = false;
};
/// What `noise` does, `draws` times over: x + noise rms(x) n, n standard normal, before f.
struct NoiseEffect {
  std::uint64_t decisions = 0;  ///< Tokens x layers.
  double changed = 0;           ///< Share of sets that differ from the undisturbed, mean of draws.
  double all_differ = 0;        ///< Share of decisions with a different set in every draw.
  double lowest = 0, highest = 0;  ///< Undisturbed logits, over everything.
};
/// Prompts with inputs. draws >= 1; the numbers follow from `seed`, prompt, layer, token and draw.
[[nodiscard]] NoiseEffect noise_effect(const Engine& engine,
                                       std::span<const PromptDecisions> prompts,
                                       const RouterView& view, double noise, std::uint32_t draws,
                                       std::uint64_t seed);

}  // namespace switchyard::tables
