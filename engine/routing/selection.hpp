// SPDX-License-Identifier: Apache-2.0
// Private to engine/routing: ranking one row of scores, shared by stage 1 and by the policies.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/gate.hpp"

namespace switchyard {

/// Log-sum-exp in double over e = 0…E-1, rounded once; -inf without a finite logit.
[[nodiscard]] float log_sum_exp(std::span<const float> logits);

/// Puts the `width` best of value[0…E-1] into order[0…width-1]: higher value, then lower id.
/// `order` has E entries.
void rank_row(std::span<const float> value, std::uint32_t width, std::vector<std::uint16_t>& order);

/// Marks the kept groups of one row by the family's group limit (ties: lower group). `score` and
/// `kept` have n_group entries.
void keep_groups(const GateSpec& gate, std::span<const float> selection, std::span<float> score,
                 std::span<std::uint8_t> kept);

}  // namespace switchyard
