// SPDX-License-Identifier: Apache-2.0
// M13 decode rebalancing: every 4th decode step, an expert on a hot GPU gives away its next two
// tokens.
//
//   decode step n = 1, 2, … of the engine, n mod period = 0:
//     credit[e] = credits if level[e] > level, else 0      (set, not added; unused ones vanish)
//   a decode token that selects e while credit[e] > 0 takes its replacement and uses one credit
//     top          = the first max(3, k_t + 1) candidates
//     third        = the last of top (the first later one, when that is in the set already)
//     least_loaded = of top, without the token's other experts, the lowest (level, q, id); that can
//                    be e itself when the others' GPUs are as hot, and then e stays
//   level[e] = used / capacity of the GPU of e (replicas: minimum); q as in M12
//
// The replacement is unconditional unless max_score_drop = d is set: it then needs
// sel[f] >= (1 - d) sel[e], and without one the token and the credit stay.
// Source: routing.md M13, mechanisms.md M13. Not modelled: a level that changes within the step.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/routing/ranked.hpp"

namespace switchyard {

enum class RebalanceTarget : std::uint8_t { kLeastLoaded, kThird };

struct DecodeRebalancePolicy {
  std::optional<double> level;  ///< GPU level above which experts give away, (0, 1]; unset: off.
  std::uint32_t period = 4;     ///< Decode steps between two checks, >= 1.
  std::uint32_t credits = 2;    ///< Tokens given away per check, >= 1.
  RebalanceTarget target = RebalanceTarget::kLeastLoaded;
  std::optional<double> max_score_drop;  ///< [0, 1]; unset: unconditional.
  bool operator==(const DecodeRebalancePolicy&) const = default;
  [[nodiscard]] bool on() const { return level.has_value(); }
};

/// Of one layer, carried from step to step.
struct DecodeRebalanceState {
  std::uint64_t decode_steps = 0;     ///< Steps with a decode token so far.
  std::vector<std::uint32_t> credit;  ///< [E] or empty before the first check.
};

/// Start of a step with at least one decode token: counts it and, when its number is due, sets the
/// credits from `level` ([E], the level of the GPU of each expert).
void begin_decode_step(const DecodeRebalancePolicy& policy, std::span<const double> level,
                       DecodeRebalanceState& state);

struct DecodeRebalanceInput {
  RankedRow row;
  std::span<const std::uint32_t> queue;  ///< [E] q_e(t)
  std::span<const double> level;         ///< [E]
};

struct DecodeRebalanceCounts {
  std::uint64_t replaced = 0;  ///< Slots that moved.
  std::uint64_t credits = 0;   ///< Credits used.
};

/// Edits the set of one decode token and `state.credit` in place. `counts` grows.
void decode_rebalance(const DecodeRebalancePolicy& policy, const DecodeRebalanceInput& input,
                      DecodeRebalanceState& state, TokenSet set, DecodeRebalanceCounts& counts);

}  // namespace switchyard
