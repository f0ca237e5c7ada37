// SPDX-License-Identifier: Apache-2.0
// File: router_oracle.hpp. The loss oracle of a router (claims.md, "router accuracy"): of all sets
// of k experts the one that minimises the token's own next-token loss.
//
//   loss(t, l, S) = -ln p(token t + 1 | the text up to t), where token t runs on the set S in MoE
//                   layer l, with the family's weights on S; its other layers and all other tokens
//                   run as the router has it
//   oracle(t, l)  = argmin over all C(E, k) sets S; ties: the lower set in the order of numbers
//
// Every loss is computed by running the token: C(E, k) sequences with the same past take the token
// on one set each, layer by layer, and forget it.
//
// Not modelled: what a set does to later tokens through the cache; sets of several layers changed
// together (C(E, k)^L of them); other losses than cross-entropy.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/nn/session.hpp"

namespace switchyard {

/// One MoE layer, over all tokens scored. Sums of nats where not said otherwise.
struct OracleLayer {
  std::uint32_t layer = 0;  ///< Number in the model.
  std::uint64_t tokens = 0;
  double router = 0;         ///< Loss of the router's sets.
  double oracle = 0;         ///< Loss of the best sets.
  double every = 0;          ///< Mean loss of all sets.
  std::uint64_t same = 0;    ///< Tokens whose set is the best one.
  std::uint64_t shared = 0;  ///< Experts of these sets that are in the best ones, of tokens x k.
  std::uint64_t better = 0;  ///< Sets with a smaller loss than the router's, of tokens x C(E, k).
};

struct OracleRun {
  std::uint64_t sets = 0;  ///< C(E, k).
  std::vector<OracleLayer> layers;
};

/// C(E, k), or 0 when it exceeds 4096.
[[nodiscard]] std::uint64_t set_count(std::uint32_t experts, std::uint32_t k);

/// Scores up to `tokens` tokens (>= 1) of the texts, in order; of each at most the first 65 tokens
/// are used. `tiers` and `policy`: M18, or none. InputError("--oracle", …): a dense model, more
/// than 4096 sets or 64 experts, another policy, several ranks; as score_texts for the texts.
[[nodiscard]] OracleRun router_oracle(const Engine& engine,
                                      std::span<const std::vector<std::uint32_t>> texts,
                                      std::uint64_t tokens, const RoutingPolicy& policy = {},
                                      const TwoTierRouter* tiers = nullptr);

}  // namespace switchyard
