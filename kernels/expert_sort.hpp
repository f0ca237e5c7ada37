// SPDX-License-Identifier: Apache-2.0
// Stable counting sort of assignments by expert: the permutation between slot order and expert
// order. CPU twin: the sort inside Backend::moe (engine/backend/cpu_backend.cpp).
// Assignment i = token * K + slot. Three kernels: count per chunk of 1024 assignments; prefix sums
// over chunks and experts; placement. Within an expert the order is that of i: the place of an
// assignment comes from prefix sums and lane order, never from the order of atomics, so the result
// has one value. (The counts add by atomics; sums of integers have one value, too.)
// Not modelled: padding of each expert to a tile's rows.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/routing/gate.hpp"
#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// place[i] of an assignment without expert.
inline constexpr std::uint32_t kNoPlace = 0xFFFFFFFFU;

/// Limits: E <= 1024. All pointers are device memory, borrowed until the stream has passed.
struct ExpertSortParams {
  std::uint32_t assignments = 0;  ///< N = T K < 2^32 - 1.
  std::uint32_t experts = 0;      ///< E >= 1.
  /// [N] expert < E, or kNoExpert: not sorted.
  const std::uint16_t* chosen = nullptr;
  std::uint32_t* offsets =
      nullptr;  ///< Out [E + 1]: expert e has places offsets[e]…offsets[e+1]-1.
  std::uint32_t* order = nullptr;  ///< Out [N]: order[place] = i; beyond offsets[E]: not written.
  std::uint32_t* place = nullptr;  ///< Out [N]: place[i], or kNoPlace.
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const ExpertSortParams& params);
/// E counts of 4 bytes for each chunk of 1024 assignments.
[[nodiscard]] std::size_t workspace_bytes(const ExpertSortParams& params);
/// 0 assignments still write offsets.
[[nodiscard]] gpu::Status launch(const ExpertSortParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
