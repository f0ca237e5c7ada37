// SPDX-License-Identifier: Apache-2.0
// Dense products of a few rows: each weight is read once for up to 8 rows. CPU twin:
// Backend::linear and Backend::linear_heads (engine/backend/cpu_backend.cpp); the order of
// summation is that of few_rows.hpp, so values differ from the CPU by rounding only.
//   out[r, j ldh + n] = w_j[n] . x[r, j xdh …] (+ bias[n]),  j < heads, n < outputs
// One warp per 4 outputs and up to 8 rows. More rows read the weights again, from the second cache.
// Not modelled: tensor cores (grouped_gemm.hpp), splitting of one dot product over several warps.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// All pointers are device memory, borrowed until the stream has passed. No overlap of x and out.
struct LinearParams {
  std::uint32_t rows = 0;     ///< <= 524280.
  std::uint32_t outputs = 0;  ///< N >= 1.
  std::uint32_t depth = 0;    ///< K >= 1.
  std::uint32_t heads = 1;
  gpu::Stored type = gpu::Stored::kF32;  ///< Of all matrices.
  const void* w = nullptr;               ///< [N, K] with heads = 1 …
  const void* const* w_of = nullptr;     ///< … else [heads] matrices [N, K]; a device array.
  const float* x = nullptr;              ///< [rows], `x_stride` floats from row to row.
  std::uint64_t x_stride = 0;            ///< >= K.
  std::uint64_t x_head = 0;              ///< Floats from head to head.
  float* out = nullptr;                  ///< Out [rows], `out_stride` from row to row.
  std::uint64_t out_stride = 0;
  std::uint64_t out_head = 0;
  const float* bias = nullptr;  ///< [N], or null.
  /// All matrices and x begin at multiples of 16 bytes, the strides of x are multiples of 4. The
  /// result is the same without; loads are wider with it (and K a multiple of 8).
  bool aligned = false;
};

[[nodiscard]] gpu::Status can_run(const LinearParams& params);
[[nodiscard]] std::size_t workspace_bytes(const LinearParams& params);
[[nodiscard]] gpu::Status launch(const LinearParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
