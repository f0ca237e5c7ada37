// SPDX-License-Identifier: Apache-2.0
// Weighted sum of the experts' outputs, back in token order. CPU twin: the last loop of
// Backend::moe (engine/backend/cpu_backend.cpp):
//   out[t] = sum over slots j = 0…K-1, in that order, of weights[t][j] * y[place[t][j]]
// in float32 by fused multiply-add from 0, rounded once to the output's type; a slot without a
// place contributes nothing, so a token without experts is exactly 0. Equal to the CPU to the bit.
// With a residual and a shared expert the layer's two additions are part of the pass, in the order
// of Session::step: (residual[t] + that sum) + shared_weight[t] * shared[t], each rounded once.
// One thread per output element. Not modelled: several shared experts (they are one wide one).
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
  void* out = nullptr;             ///< Out [T][H]; must not overlap y or shared, may be residual.
  const void* residual = nullptr;  ///< [T][H] of out_type, or null.
  const void* shared = nullptr;    ///< [T][H] of y_type, or null.
  const float* shared_weight = nullptr;  ///< [T], or null: 1.
};

[[nodiscard]] gpu::Status can_run(const CombineParams& params);
[[nodiscard]] std::size_t workspace_bytes(const CombineParams& params);
[[nodiscard]] gpu::Status launch(const CombineParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
