// SPDX-License-Identifier: Apache-2.0
// Stage 2 of routing: from ranked candidates to what runs (routing.md, pipeline steps 10-12). It
// reads candidates, the step's shape and the policy only, never logits outside the candidates, so
// that the engine, the replay of a trace and the simulator get the same bits from the same call.
//
// sequential:  for each token in canonical order, for each slot: accept while load[e] < C, else the
//              first candidate after the first k that has room.
// rounds:      every pending slot asks its current expert; an expert accepts its best ones up to
//              C - load; losers take their token's next untried candidate; repeat.
// Full text with golden rows: routing.md, "M05/M06/M08".
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/candidates.hpp"
#include "engine/routing/capacity.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard {

/// Fate of one slot; the numbers are those of the routing trace.
enum class SlotOutcome : std::uint8_t {
  kNoSlot = 0,
  kKept = 1,
  kRerouted = 2,
  kQueued = 3,
  kDropped = 4
};

/// The step a layer's tokens belong to. Tokens are in canonical order (sequence arrival, position);
/// spans are borrowed for the call and either empty or of T entries. Build it with make_step() or
/// fill the counts by hand.
struct StepContext {
  std::uint64_t seed = 1;
  std::uint32_t layer = 0;  ///< Index of the MoE layer, key of the random order.
  std::uint32_t step = 0;
  std::array<std::uint64_t, 3> tokens{};     ///< By Phase; sums to T.
  std::array<std::uint64_t, 3> sequences{};  ///< By Phase.
  /// B of the whole step when these tokens are only a part of it (an EP group); 0: the sum of
  /// sequences.
  std::uint64_t batch = 0;
  [[nodiscard]] std::uint64_t batch_size() const {
    return batch > 0 ? batch : sequences[0] + sequences[1] + sequences[2];
  }
  std::span<const std::uint32_t> sequence;  ///< Needed by order = random, and batch_seqs per scope.
  std::span<const std::uint32_t> position;  ///< Needed by order = random.
  std::span<const std::uint8_t> phase;      ///< Empty: all tokens are of the one phase counted.
  std::span<const std::uint16_t> rank;      ///< Source rank; empty: one rank.
  std::uint32_t ranks = 1;                  ///< Number of source ranks, > every rank[t].
  /// Assignments waiting from the last step (LayerDecision::deferred), [E] or, with scope = rank,
  /// [ranks][E]; empty: none (always with scope = group).
  std::span<const std::uint32_t> backlog;
};

/// Fills the counts from the spans (all of T entries; equal sequence numbers are adjacent).
[[nodiscard]] StepContext make_step(std::span<const std::uint32_t> sequence,
                                    std::span<const std::uint32_t> position,
                                    std::span<const std::uint8_t> phase, std::uint64_t seed,
                                    std::uint32_t layer, std::uint32_t step);

/// What the mechanisms of step 10 did in one layer of one step (or, summed, in a run).
struct SetCounts {
  std::uint64_t balanced = 0;       ///< M12: slots that left a long queue.
  std::uint64_t unbalanced = 0;     ///< M12: slots above their limit with nowhere to go.
  std::uint64_t third = 0;          ///< M12: tokens for which a third expert was taken.
  std::uint64_t rebalanced = 0;     ///< M13: slots that moved.
  std::uint64_t table_tokens = 0;   ///< M14: tokens decided by the table.
  std::uint64_t table_slots = 0;    ///< M14: their slots …
  std::uint64_t table_agreed = 0;   ///< M14: … of which the live router would have taken as many.
  std::uint64_t soft_tokens = 0;    ///< M17
  std::uint64_t reranked = 0;       ///< M18: tokens whose set differs from tier 1's.
  std::uint64_t pinned_tokens = 0;  ///< M22
  SetCounts& operator+=(const SetCounts& o);
  bool operator==(const SetCounts&) const = default;
};

/// Caller-owned result for one layer of one step; decide() resizes and overwrites all of it.
struct LayerDecision {
  std::uint32_t tokens = 0, slots = 0;  ///< T, K = top_k.
  std::vector<std::uint16_t> first;     ///< [T][K] choice before capacity; kNoExpert: no slot.
  std::vector<std::uint16_t> chosen;    ///< [T][K] what runs; kNoExpert: nothing.
  std::vector<float> weights;           ///< [T][K] 0 where nothing runs; always finite.
  std::vector<std::uint8_t> outcome;    ///< [T][K] SlotOutcome.
  std::vector<std::uint32_t> demand;    ///< [E] first choices.
  std::vector<std::uint32_t> overflow;  ///< [E] first choices that found the expert full.
  /// [E] accepted in this step (kept + rerouted), without backlog and without queued.
  std::vector<std::uint32_t> load;
  std::vector<std::uint32_t> queued;  ///< [E] queued, whether as waves or deferred.
  /// Backlog of the next step, shaped as StepContext::backlog: what queue = defer postponed, and
  /// backlog beyond C. All zero otherwise.
  std::vector<std::uint32_t> deferred;
  std::uint32_t capacity = kUnlimitedCapacity;      ///< C; the largest of the scopes' when several.
  std::uint64_t capacity_sum = kUnlimitedCapacity;  ///< C summed over the scopes.
  /// Passes of <= C that the busiest expert needs; 0 when no slot runs, 1 without a queue.
  std::uint32_t waves = 0;
  std::uint64_t assignments = 0;  ///< Slots with an expert: kept + rerouted + queued + dropped.
  std::uint64_t kept = 0, rerouted = 0, queued_slots = 0, dropped = 0;
  std::uint64_t overflowed = 0;  ///< Sum of overflow[E].
  /// While M < E: slots that ran out of *stored* candidates, or that a policy gave, or may have
  /// given, to an expert outside them.
  std::uint64_t truncated_slots = 0;
  /// Tokens of score.rule = linear whose logits were not all > 0 and became a softmax.
  std::uint64_t linear_fallbacks = 0;
  SetCounts sets;  ///< What step 10 did.
  [[nodiscard]] bool truncated() const { return truncated_slots > 0; }
};

/// Scratch of decide(), its contents are private to it; reusable, no allocation after the first
/// call of a shape.
class DecideWorkspace {
 public:
  struct Pending {
    std::uint64_t key;
    std::uint32_t token;
    std::uint32_t place;  // partition * E + expert
    std::uint16_t slot;
    std::uint16_t rank;  // index of the candidate asked
  };
  std::vector<std::uint32_t> load, capacity, count, partition, queue;
  std::vector<Pending> pending, sorted;
  std::vector<std::uint16_t> next, usable, slot_rank;
  std::vector<std::uint16_t> more;     // [tokens that ran out][E]
  std::vector<std::uint32_t> more_of;  // [T] row of `more`, or 0xFFFFFFFF; empty: none did
  std::vector<std::uint32_t> groups_seen;
  std::vector<std::uint8_t> tried;  // [T][M]
  std::vector<ScopeCounts> scopes;
};

/// Decides one layer under a policy without steps before 11 (has_policy_steps() is false;
/// route_layer() in route.hpp takes any). `gate` and `policy` have passed validate(); `gate_bias`
/// is [E] or empty, as given to rank_candidates; candidates.width >= top_k. Violations are
/// programmer errors. Deterministic, no allocation after warm-up, sums in slot order.
void decide(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
            const CandidatesView& candidates, std::span<const float> gate_bias,
            DecideWorkspace& workspace, LayerDecision& out);

}  // namespace switchyard
