// SPDX-License-Identifier: Apache-2.0
// From logits to the next token, greedy or by temperature, top-k and top-p. CPU twin:
// switchyard::sample (engine/nn/sampling.hpp); the same token but where a sum of probabilities
// meets a border within the rounding of a double (the CPU adds one after the other, here a block
// adds as a tree). One block per row. Instead of sorting, the token at which a running sum over the
// order (probability falling, id rising) passes a border is found bit by bit of that order's key.
// Not modelled: penalties, a batch of rows with options of their own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// All pointers are device memory, borrowed until the stream has passed.
struct SamplingParams {
  std::uint32_t rows = 0;
  std::uint32_t vocab = 0;  ///< V >= 1.
  double temperature = 0;   ///< >= 0; 0: greedy.
  double top_p = 1;         ///< (0, 1].
  std::uint32_t top_k = 0;  ///< 0: all.
  std::uint64_t seed = 1;
  const float* logits = nullptr;            ///< [rows][V]
  const std::uint32_t* sequence = nullptr;  ///< [rows]; not read when greedy.
  const std::uint32_t* position = nullptr;  ///< [rows] of the token being chosen.
  std::uint32_t* token = nullptr;           ///< Out [rows].
  std::uint8_t* nan_row = nullptr;          ///< Out [rows]: 1 where a logit is NaN; or null.
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const SamplingParams& params);
/// 8 bytes per logit; greedy: none.
[[nodiscard]] std::size_t workspace_bytes(const SamplingParams& params);
[[nodiscard]] gpu::Status launch(const SamplingParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
