// SPDX-License-Identifier: Apache-2.0
// The routed experts of a layer for many rows (prefill), on tensor cores: BF16 operands, float32
// sums. The same function as expert_ffn.hpp, whose activations are float32; here x and the gated
// inner values are rounded to BF16. CPU twin: Backend::moe without its last loop.
//   h[p] = bf16(silu(gate_e x + bias) * (up_e x + bias)),  y[p] = down_e h[p] + bias
// A block computes 128 rows of one expert by 64 inner columns (gate and up of the same columns lie
// in the same thread) or by 128 outputs of down: mma.sync m16n8k16, operands through two stages of
// shared memory filled by cp.async, 32 of K at a time, zeros beyond the ends. The tile list is
// built on the device. K is passed in one order, so a row's bits depend on neither its tile nor its
// neighbours.
// Dense products of many rows are the same kernel without a list: out[r, j ldh + n] = w_j[n] .
// x[r, j xdh …], x rounded to BF16 by the caller; CPU twin Backend::linear and linear_heads.
// Not modelled: wgmma and TMA of sm_90, more than 48 KiB of shared memory, weights other than BF16.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_compat.hpp"
#include "kernels/expert_ffn.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Limits: E <= 1024; H and I multiples of 8. Matrices, x and h begin at multiples of 16 bytes. All
/// pointers are device memory, borrowed until the stream has passed.
struct GroupedGemmParams {
  std::uint32_t tokens = 0;                 ///< T.
  std::uint32_t slots = 0;                  ///< K >= 1.
  std::uint32_t experts = 0;                ///< E >= 1.
  std::uint32_t hidden = 0;                 ///< H.
  std::uint32_t inner = 0;                  ///< I.
  float limit = 0;                          ///< ExpertView::limit.
  const ExpertPointers* weights = nullptr;  ///< [E] of BF16 matrices, a device array.
  const gpu::Bf16* x = nullptr;             ///< [T][H].
  const std::uint32_t* offsets = nullptr;   ///< [E + 1], of expert_sort.
  const std::uint32_t* order = nullptr;     ///< [T K], of expert_sort.
  gpu::Bf16* h = nullptr;                   ///< Scratch [T K][I].
  float* y = nullptr;                       ///< Out [T K][H], by place.
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const GroupedGemmParams& params);
/// 12 bytes per possible tile, and 4.
[[nodiscard]] std::size_t workspace_bytes(const GroupedGemmParams& params);
[[nodiscard]] gpu::Status launch(const GroupedGemmParams& params, gpu::Stream stream);

/// Limits: K, x_stride and x_head multiples of 8; rows <= 8388480. x and all matrices begin at
/// multiples of 16 bytes. All pointers are device memory, borrowed until the stream has passed. No
/// overlap of x and out.
struct DenseGemmParams {
  std::uint32_t rows = 0;
  std::uint32_t outputs = 0;  ///< N >= 1.
  std::uint32_t depth = 0;    ///< K >= 1.
  std::uint32_t heads = 1;
  const gpu::Bf16* w = nullptr;       ///< [N, K] with heads = 1 …
  const void* const* w_of = nullptr;  ///< … else [heads] matrices [N, K]; a device array.
  const gpu::Bf16* x = nullptr;       ///< [rows], `x_stride` values from row to row.
  std::uint64_t x_stride = 0;         ///< >= K.
  std::uint64_t x_head = 0;           ///< Values from head to head.
  float* out = nullptr;               ///< Out [rows], `out_stride` from row to row.
  std::uint64_t out_stride = 0;
  std::uint64_t out_head = 0;
};

[[nodiscard]] gpu::Status can_run(const DenseGemmParams& params);
[[nodiscard]] std::size_t workspace_bytes(const DenseGemmParams& params);
[[nodiscard]] gpu::Status launch(const DenseGemmParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
