// SPDX-License-Identifier: Apache-2.0
// M21 batch-level routing: one set of k experts for all tokens of a step.
//
//   S = argtop-k_e of sum_t p[t,e], ties to the lower id;   w[t,j] = p[t,S_j] / sum_i p[t,S_i]
//
// The sum runs over the step's tokens in canonical order, in double. Source: routing.md M21.
// Not modelled: p of experts outside a trace's stored candidates: the policy then is refused.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

/// Sets `set` (k = set.size() <= experts) to the common experts of the tokens whose p is [T][E],
/// largest sum first. `sum` is scratch, resized to E and left holding the sums. Without tokens:
/// experts 0…k-1.
void batch_level_set(std::span<const float> p, std::uint32_t experts, std::vector<double>& sum,
                     std::span<std::uint16_t> set);

}  // namespace switchyard
