// SPDX-License-Identifier: Apache-2.0
// Capacity of one expert in one step: M06, M07 and the rules of other systems (engines.md 2.1).
#pragma once
#include <array>
#include <cstdint>

#include "engine/routing/policy.hpp"

namespace switchyard {

/// "No limit". Also the largest value that expert_capacity returns.
inline constexpr std::uint32_t kUnlimitedCapacity = 0xFFFFFFFFU;

/// Phases of a trace row; warm-up counts as prefill here.
enum class Phase : std::uint8_t { kPrefill = 0, kDecode = 1, kWarmUp = 2 };

/// What a rule counts, within its scope; index = Phase.
struct ScopeCounts {
  std::array<std::uint64_t, 3> tokens{};     ///< T by phase.
  std::array<std::uint64_t, 3> sequences{};  ///< S by phase.
  /// Sequences of the whole step, B of dynamic = log2.
  std::uint64_t step_sequences = 0;
  /// Largest number of first choices that fall on one expert (tutel with factor <= 0).
  std::uint64_t largest_demand = 0;
};

/// C >= 0 for a valid policy. kUnlimitedCapacity for rule = none.
[[nodiscard]] std::uint32_t expert_capacity(const CapacityPolicy& policy, const ScopeCounts& counts,
                                            std::uint32_t experts, std::uint32_t top_k);

/// CF of dynamic = log2: 1 + 0.01 log2(max(B, 1)).
[[nodiscard]] double log2_capacity_factor(std::uint64_t sequences);

/// Group size of scope = group: the largest n / g that is an integer with g >= max(1, n /
/// group_size). 0 tokens: 1.
[[nodiscard]] std::uint64_t capacity_group_size(std::uint64_t tokens, std::uint32_t group_size);

}  // namespace switchyard
