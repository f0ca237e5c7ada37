// SPDX-License-Identifier: Apache-2.0
// The routed experts of a layer for a few rows each (decode): gate, up and SwiGLU in one kernel,
// then down. CPU twin: Backend::moe without its last loop (combine.hpp is that); order of summation
// as in few_rows.hpp.
//   h[p] = silu(gate_e x + bias) * (up_e x + bias), x = row order[p] / slots of the step
//   y[p] = down_e h[p] + bias, for the places p that expert_sort gave to expert e
// A tile is up to R rows of one expert, R = 1, 2, 4 or 8 by the rows of the step (a token's experts
// are distinct, so an expert has at most one row per token). Each weight is read once per tile. The
// list of tiles is built on the device from the sort's offsets, so nothing waits for the host.
// Not modelled: tensor cores; tiles of more than 8 rows (grouped_gemm.hpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Matrices of one expert in device memory, row-major: gate and up [I, H], down [H, I]. Biases are
/// float32, [I], [I], [H], or null.
struct ExpertPointers {
  const void* gate;
  const void* up;
  const void* down;
  const float* gate_bias;
  const float* up_bias;
  const float* down_bias;
};

/// Limits: E <= 1024. All pointers are device memory, borrowed until the stream has passed.
struct ExpertFfnParams {
  std::uint32_t tokens = 0;                    ///< T.
  std::uint32_t slots = 0;                     ///< K >= 1.
  std::uint32_t experts = 0;                   ///< E >= 1.
  std::uint32_t hidden = 0;                    ///< H >= 1.
  std::uint32_t inner = 0;                     ///< I >= 1.
  gpu::Stored gate_type = gpu::Stored::kBf16;  ///< Of gate and up.
  gpu::Stored down_type = gpu::Stored::kBf16;
  float limit = 0;                          ///< ExpertView::limit.
  const ExpertPointers* weights = nullptr;  ///< [E], a device array.
  const float* x = nullptr;                 ///< [T][H].
  const std::uint32_t* offsets = nullptr;   ///< [E + 1], of expert_sort.
  const std::uint32_t* order = nullptr;     ///< [T K], of expert_sort.
  float* h = nullptr;                       ///< Scratch [T K][I].
  float* y = nullptr;                       ///< Out [T K][H], by place.
  /// Inner values are rounded to BF16 (held as floats), as grouped_gemm does with its own.
  bool round_inner = false;
  /// All matrices, x, h, and their rows begin at multiples of 16 bytes (H and I multiples of 8).
  bool aligned = false;
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const ExpertFfnParams& params);
/// 12 bytes per possible tile, and 4.
[[nodiscard]] std::size_t workspace_bytes(const ExpertFfnParams& params);
[[nodiscard]] gpu::Status launch(const ExpertFfnParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
