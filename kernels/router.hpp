// SPDX-License-Identifier: Apache-2.0
// Stage 1 of routing on the GPU: gate logits in, ranked candidates out. CPU twin:
// switchyard::rank_candidates (engine/routing/candidates.hpp), whose order, tie rule, NaN rule, and
// rounding it follows step by step: ids and logits are equal to the bit. lse and probabilities are
// computed in double in the CPU's order and rounded once, so they can only differ where the two
// machines' exp() and log() (each within 1 unit in the last place of a double) straddle a rounding.
// One warp per token, four tokens per block. The sum over the experts is sequential for the sake of
// that order: E dependent additions, about E * 4 ns on an H200 [estimated from the clock and the
// latency of a double addition; not measured].
// With GateRouterParams the gate's product is part of the same kernel, one block per token: the
// logits are those of linear.hpp to the bit. Each block reads the gate's matrix (from the second
// cache), so it is for few tokens; the two kernels apart for many.
// Not modelled: several tokens per block of the fused kernel.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/routing/gate.hpp"
#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Limits: E <= 512, n_group <= 64. All pointers are device memory, borrowed until the stream has
/// passed the launch; 0 tokens: unused.
struct RouterParams {
  GateSpec gate;                    ///< Valid (switchyard::validate).
  std::uint32_t tokens = 0;         ///< T.
  std::uint32_t width = 0;          ///< M, top_k…E.
  const float* logits = nullptr;    ///< [T][E], row-major.
  const float* bias = nullptr;      ///< [E] selection bias, or null.
  std::uint16_t* ids = nullptr;     ///< Out [T][M], best first.
  float* logit = nullptr;           ///< Out [T][M]; NaN and +inf become -inf.
  float* lse = nullptr;             ///< Out [T].
  std::uint8_t* nan_row = nullptr;  ///< Out [T]: 1 where a logit of the row is NaN or +inf.
};

[[nodiscard]] gpu::Status can_run(const RouterParams& params);
[[nodiscard]] std::size_t workspace_bytes(const RouterParams& params);
[[nodiscard]] gpu::Status launch(const RouterParams& params, gpu::Stream stream);

/// The gate's product and stage 1 in one. All pointers are device memory.
struct GateRouterParams {
  RouterParams router;       ///< `logits` is not read.
  std::uint32_t depth = 0;   ///< H >= 1.
  const float* x = nullptr;  ///< [T][H]
  const void* w = nullptr;   ///< [E][H]
  gpu::Stored type = gpu::Stored::kF32;
  const float* linear_bias = nullptr;  ///< [E] added to the logits, or null.
  float* logits = nullptr;             ///< Out [T][E].
  bool aligned = false;                ///< As LinearParams::aligned.
};

[[nodiscard]] gpu::Status can_run(const GateRouterParams& params);
[[nodiscard]] std::size_t workspace_bytes(const GateRouterParams& params);
[[nodiscard]] gpu::Status launch(const GateRouterParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
