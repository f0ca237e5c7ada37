// SPDX-License-Identifier: Apache-2.0
// M18 two-tier routing: a cheap router proposes k+2 experts, a better scorer picks k of them.
//
//   tier 1: z = W' x, W' = W in INT4 (per expert, groups of 128 inputs) or of rank r; top k + 2
//   tier 2: s = W2 gelu(W1 x + b1) + b2 in FP32 (H -> 64 -> E); the k best of the proposed by s,
//           ties to the lower expert id
//
// Here: the re-ranking. The two routers need hidden states and live in the engine; a replay cannot
// re-decide M18 and says so. Source: routing.md M18.
// Not modelled: the loss oracle (claims' business); tier 2's host time is the simulator's.
#pragma once
#include <cstdint>
#include <span>

#include "engine/routing/ranked.hpp"

namespace switchyard {

/// Re-ranks the first `proposed` candidates of a token by `score` ([E] of this token) and writes
/// the best of them to `set` (its leading `top_k` slots; the others are left alone). Returns true
/// when the set differs from the first top_k candidates. Scores that are NaN come last, and after
/// them candidates that are not open. top_k <= proposed <= row.size().
bool rerank_proposed(const RankedRow& row, std::uint32_t proposed, std::uint32_t top_k,
                     std::span<const float> score, TokenSet set);

}  // namespace switchyard
