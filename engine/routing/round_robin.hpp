// SPDX-License-Identifier: Apache-2.0
// M19 round-robin: the balanced baseline that is blind to meaning. Token t of a step takes the next
// k experts of an endless 0, 1, …, E-1, 0, …; the counter of a layer continues across steps.
//
//   S[t][j] = (counter + j) mod E, counter += k after each token;  weights 1/k
//
// Source: routing.md M19. Loads of a layer therefore differ by at most one, whatever the tokens.
// Not modelled: several front ends with a counter each.
#pragma once
#include <cstdint>

#include "engine/routing/ranked.hpp"

namespace switchyard {

/// Fills the first `top_k` slots of one row (the rest: kNoExpert) and returns the counter after it.
/// 1 <= top_k <= experts, top_k <= row size, counter < experts.
[[nodiscard]] std::uint32_t round_robin_set(std::uint32_t experts, std::uint32_t top_k,
                                            std::uint32_t counter, std::span<std::uint16_t> row);

}  // namespace switchyard
