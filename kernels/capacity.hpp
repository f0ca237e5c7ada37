// SPDX-License-Identifier: Apache-2.0
// Stage 2 of routing on the GPU: capacity, reroute, exhaustion, and the weights of what runs. CPU
// twin: switchyard::decide (engine/routing/decide.hpp); chosen experts, outcomes, and counts are
// equal to the bit, weights too but for exp() at a rounding border (see router.hpp).
// Three kernels: per token the first choices and the usable candidates; the decision; per token the
// weights. The decision of mode = sequential is one warp that takes the tokens in order, lane j
// holding slot j (first choices of a token are distinct experts, so a token that meets no full
// expert takes one step of the warp). That of mode = rounds is one block: an expert's winners are
// found bit by bit of their keys, so lists filled in any order give the same winners.
// Not modelled: the deferred backlog and the number of waves (the host derives both from outcome
// and load), capacities that depend on the largest demand (tutel with factor <= 0: the caller must
// know C before the launch), rounds over several blocks.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/routing/policy.hpp"
#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Sums over the layer, as the fields of LayerDecision of the same names.
struct CapacityTotals {
  std::uint64_t kept, rerouted, queued, dropped, truncated_slots;
};

/// Limits: top_k <= 32, E <= 1024, partitions * E <= 8192, T top_k < 2^32. All pointers are device
/// memory, borrowed until the stream has passed the launch.
struct CapacityParams {
  GateSpec gate;                 ///< Valid (switchyard::validate).
  RoutingPolicy policy;          ///< Valid for the gate.
  std::uint32_t tokens = 0;      ///< T.
  std::uint32_t width = 0;       ///< M, top_k…E.
  std::uint32_t partitions = 1;  ///< Token sets of the policy's scope, each with its own loads.
  const std::uint16_t* ids = nullptr;  ///< [T][M], as CandidatesView::ids.
  const float* logit = nullptr;        ///< [T][M].
  const float* lse = nullptr;          ///< [T].
  const float* bias = nullptr;         ///< [E] selection bias, or null.
  /// [T] partition of each token < partitions; null: one partition.
  const std::uint32_t* partition = nullptr;
  const std::uint32_t* capacity = nullptr;  ///< [partitions], of expert_capacity().
  const std::uint32_t* backlog = nullptr;  ///< [partitions][E] waiting from the last step, or null.
  std::uint16_t* first = nullptr;          ///< Out [T][K].
  std::uint16_t* chosen = nullptr;         ///< Out [T][K].
  float* weights = nullptr;                ///< Out [T][K].
  std::uint8_t* outcome = nullptr;         ///< Out [T][K], SlotOutcome.
  std::uint32_t* demand = nullptr;         ///< Out [E].
  std::uint32_t* overflow = nullptr;       ///< Out [E].
  std::uint32_t* load = nullptr;           ///< Out [E] accepted now, without backlog and queued.
  CapacityTotals* totals = nullptr;        ///< Out, one.
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
  // Keys of mode = rounds with order = random: StepContext's fields of these names.
  std::uint64_t seed = 1;
  std::uint32_t layer = 0;
  const std::uint32_t* sequence = nullptr;  ///< [T]
  const std::uint32_t* position = nullptr;  ///< [T]
};

/// kInvalidShape also: order = random without sequence and position.
[[nodiscard]] gpu::Status can_run(const CapacityParams& params);
/// 2 bytes for each slot and 4 for each token; in rounds 14 more for each slot, 2 for each token
/// and 4 for each expert and partition.
[[nodiscard]] std::size_t workspace_bytes(const CapacityParams& params);
/// 0 tokens still write the counts.
[[nodiscard]] gpu::Status launch(const CapacityParams& params, gpu::Stream stream);

/// The family's own choice, without a policy: the first K candidates run. What launch() above gives
/// without a capacity, for any number of tokens at once and without the counts.
struct ChooseParams {
  GateSpec gate;                       ///< Valid; top_k <= 32.
  std::uint32_t tokens = 0;            ///< T; T K < 2^32.
  std::uint32_t width = 0;             ///< M, top_k…E.
  const std::uint16_t* ids = nullptr;  ///< [T][M]
  const float* logit = nullptr;        ///< [T][M]
  const float* lse = nullptr;          ///< [T]
  std::uint16_t* chosen = nullptr;     ///< Out [T][K].
  float* weights = nullptr;            ///< Out [T][K].
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const ChooseParams& params);
/// 2 bytes per slot.
[[nodiscard]] std::size_t workspace_bytes(const ChooseParams& params);
[[nodiscard]] gpu::Status launch(const ChooseParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
