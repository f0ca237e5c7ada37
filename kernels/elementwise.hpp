// SPDX-License-Identifier: Apache-2.0
// The small operations of a forward pass over float32 rows. CPU twin: the operations of the same
// names of Backend (engine/backend/cpu_backend.cpp); equal to the bit except rms_norm (its sum has
// another order: thread i of B adds elements i, i + B, … by fused multiply-add, then warps as a
// tree, then the warps in order; B depends on the width alone) and swiglu (the machine's expf).
// Not modelled: BF16 rows as input.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// What one launch does to `out`; all arrays are device memory, borrowed until the stream has
/// passed. Indices are 64 bits wide.
enum class RowOperation : std::uint8_t {
  kEmbed,    ///< out[r, c] = widened w[index[r], c].
  kGather,   ///< out[r, c] = x[index[r], c].
  kCopy,     ///< out[r, c] = x[r, c], with strides.
  kAdd,      ///< out[r, c] = out[r, c] + x[r, c].
  kAddBias,  ///< out[r, c] = out[r, c] + x[c].
  kSwiglu,   ///< out[r, c] = gated(out[r, c], x[r, c], limit), ExpertView::limit.
  kClamp,    ///< out[r, c] = min(max(out[r, c], -limit), limit); a NaN stays.
  kSigmoid,  ///< out[r, c] = 1 / (1 + exp(-x[r, c])), in double, rounded once.
  kToBf16,   ///< out as BF16 [r, c] = x[r, c] rounded to nearest even.
  kRound,    ///< The same, widened again: out[r, c] = x[r, c] as BF16 holds it.
};

/// Limits: rows * ceil(columns / 256) < 2^31.
struct RowParams {
  RowOperation operation = RowOperation::kCopy;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  const void* w = nullptr;  ///< kEmbed: the table.
  gpu::Stored type = gpu::Stored::kF32;
  const float* x = nullptr;
  std::uint64_t x_stride = 0;
  const std::uint32_t* index = nullptr;
  void* out = nullptr;  ///< float, or BF16 bits (kToBf16).
  std::uint64_t out_stride = 0;
  float limit = 0;
};

[[nodiscard]] gpu::Status can_run(const RowParams& params);
[[nodiscard]] std::size_t workspace_bytes(const RowParams& params);
[[nodiscard]] gpu::Status launch(const RowParams& params, gpu::Stream stream);

/// out[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)); out may be x. Rows < 2^31.
struct RmsNormParams {
  std::uint64_t rows = 0;
  std::uint32_t columns = 0;  ///< >= 1.
  float eps = 0;
  const float* x = nullptr;       ///< [rows][columns]
  const float* weight = nullptr;  ///< [columns]
  float* out = nullptr;           ///< Out [rows][columns].
};

[[nodiscard]] gpu::Status can_run(const RmsNormParams& params);
[[nodiscard]] std::size_t workspace_bytes(const RmsNormParams& params);
[[nodiscard]] gpu::Status launch(const RmsNormParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
