// SPDX-License-Identifier: Apache-2.0
// M12 soft load balancing: a token leaves an expert whose queue is long for the next best one, and
// takes a third expert when memory or queues are short.
//
//   q_e(t)   = backlog[e] + assignments accepted by e from tokens before t of this step
//   limit(e) = limit, or low_limit if the free memory of e's GPU < low_memory at step start
//   slot by slot: q_e > limit(e)  ->  first candidate not in the set with q <= its limit; none:
//   stays k_t      = 3 if the free memory on the GPU of any chosen expert < k3_memory, or if in the
//              previous step some queue of this layer ended above batch_limit
//              activate: three experts run; choose: the best k of the three by queue
//
// Order within a token: k_t, then `choose`, then the substitution slot by slot. Candidates are all
// of the row in order, also those that a slot has left. Source: routing.md M12. Not modelled: queue
// lengths seen with a delay.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/routing/ranked.hpp"

namespace switchyard {

enum class ThirdExpert : std::uint8_t { kActivate, kChoose };

struct SoftBalancePolicy {
  std::optional<std::uint32_t> limit;  ///< Longest queue that is left alone; unset: M12 is off.
  std::uint32_t low_limit = 64;        ///< The same where memory is low.
  double low_memory = 0.20;  ///< Free fraction of a GPU below which low_limit holds, [0, 1].
  double k3_memory = 0.10;   ///< Free fraction below which k_t = 3, [0, 1]; 0: never.
  ThirdExpert k3 = ThirdExpert::kActivate;
  /// A queue that ends a step above it makes k_t = 3 in the next; unset: this rule is off.
  std::optional<std::uint32_t> batch_limit = 64;
  bool operator==(const SoftBalancePolicy&) const = default;
  [[nodiscard]] bool on() const { return limit.has_value(); }
  [[nodiscard]] bool takes_third() const { return on() && (k3_memory > 0 || batch_limit); }
  /// True when a rule reads the memory of GPUs, which replay and engine know from signals only.
  [[nodiscard]] bool needs_memory() const { return on() && (low_memory > 0 || k3_memory > 0); }
  /// k_t when the third expert is taken.
  static constexpr std::uint32_t kThree = 3;
};

struct SoftBalanceInput {
  RankedRow row;
  std::span<const std::uint32_t> queue;  ///< [E] q_e(t)
  std::span<const double> free_memory;   ///< [E] free fraction of the expert's GPU; empty: all free
  bool third_for_all = false;            ///< The batch rule fired in the previous step.
};

struct SoftBalanceCounts {
  std::uint64_t replaced = 0;  ///< Slots that moved.
  std::uint64_t stuck = 0;     ///< Slots above their limit with nowhere to go.
  std::uint64_t third = 0;     ///< Tokens with k_t = 3 (after `choose` they run k again).
};

/// Edits one token's set in place; with k3 = activate it needs 3 slots. `counts` grows.
void soft_balance(const SoftBalancePolicy& policy, const SoftBalanceInput& input, TokenSet set,
                  SoftBalanceCounts& counts);

/// The batch rule: does this layer's longest queue at the end of a step call for a third expert in
/// the next? `queue_at_end` is [E].
[[nodiscard]] bool third_in_next_step(const SoftBalancePolicy& policy,
                                      std::span<const std::uint32_t> queue_at_end);

}  // namespace switchyard
