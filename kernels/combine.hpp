// SPDX-License-Identifier: Apache-2.0
// Weighted sum of the experts' outputs, back in token order. CPU twin: the last loop of
// Backend::moe (engine/backend/cpu_backend.cpp):
//   out[t] = sum over slots j = 0…K-1, in that order, of weights[t][j] * y[place[t][j]]
// in float32 by fused multiply-add from 0, rounded once to the output's type; a slot without a
// place contributes nothing, so a token without experts is exactly 0. Equal to the CPU to the bit.
// One thread per output element. Not modelled: shared expert and residual in the same pass.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

enum class Element : std::uint8_t { kF32, kBf16 };

/// Limits: H <= 16776960. All pointers are device memory, borrowed until the stream has passed.
struct CombineParams {
  std::uint32_t tokens = 0;  ///< T <= 2^31 - 1.
  std::uint32_t slots = 0;   ///< K >= 1.
  std::uint32_t hidden = 0;  ///< H >= 1.
  Element y_type = Element::kBf16;
  Element out_type = Element::kBf16;
  const void* y = nullptr;               ///< [rows][H], in expert order.
  const std::uint32_t* place = nullptr;  ///< [T][K], row of y < rows, or 0xFFFFFFFF: nothing.
  const float* weights = nullptr;        ///< [T][K].
  void* out = nullptr;                   ///< Out [T][H]; must not overlap y.
};

[[nodiscard]] gpu::Status can_run(const CombineParams& params);
[[nodiscard]] std::size_t workspace_bytes(const CombineParams& params);
[[nodiscard]] gpu::Status launch(const CombineParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
