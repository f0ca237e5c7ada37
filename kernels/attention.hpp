// SPDX-License-Identifier: Apache-2.0
// Causal attention of one layer over a paged KV cache, for any mix of prefill and decode rows. CPU
// twin: Backend::attention (engine/backend/cpu_attention.cpp). Two kernels:
//   1 rotate q and k (RoPE in halves or interleaved, YaRN's gain) and append k and v to the cache;
//     angles as the CPU: float32 product, cosine and sine in double, rounded once
//   2 out = softmax(scale q K^T [- ALiBi] [with a sink]) V by online softmax over tiles of 64
//     positions in rising order
// Grouped-query, multi-query and latent attention (values are the first `value_dim` entries of the
// keys) are one path. A row's positions are cut, from the first visible one on, into parts of 128;
// the softmax of each part is merged in rising order. With many rows a block does all parts of a
// row and query head; with few (decode of long contexts) each part has a block of its own and a
// third kernel merges. Both do the same operations, so a row's bits depend on neither other rows,
// nor how the parts are shared out, nor the size of a cache block.
// Not modelled: one read of a key for all heads of its group, tensor cores, keys and values in
// fewer bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Limits: head_dim and value_dim <= 1024, heads <= 65535. A block of the cache is, for this layer,
/// [KV head][keys: block x head_dim | values: block x head_dim (not when latent)], `layer` floats
/// from its beginning. All pointers are device memory, borrowed until the stream has passed.
struct AttentionParams {
  std::uint32_t rows = 0;
  std::uint32_t heads = 0, kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t value_dim = 0;  ///< head_dim unless latent.
  bool latent = false;
  bool interleaved = false;  ///< Rotation pairs (2i, 2i + 1) instead of (i, i + half).
  std::uint32_t half = 0;    ///< Rotated pairs, at the end of each head; 0: no rotation.
  std::uint32_t window = 0;  ///< Sliding window, 0: none.
  std::uint32_t block = 0;   ///< Tokens per block.
  std::uint64_t layer = 0;   ///< Floats.
  float gain = 1;
  float scale = 1;
  const float* frequency = nullptr;         ///< [half]
  const std::uint32_t* position = nullptr;  ///< [rows]
  const std::uint32_t* sequence = nullptr;  ///< [rows] row of the table.
  float* const* table = nullptr;            ///< [sequences][table_width] blocks held.
  std::uint32_t table_width = 0;
  const std::uint32_t* first_block = nullptr;  ///< [sequences] number of the first block held.
  const float* sinks = nullptr;                ///< [heads], or null.
  const float* slopes = nullptr;               ///< [heads] of ALiBi, or null.
  float* q = nullptr;                          ///< [rows][heads * head_dim]; rotated in place.
  const float* k = nullptr;                    ///< [rows][kv_heads * head_dim], before rotation.
  const float* v = nullptr;                    ///< The same; not read when latent.
  float* out = nullptr;                        ///< Out [rows][heads * value_dim].
  /// Most positions up to and with a row's own, of all rows; 0: not known, parts are not shared out.
  std::uint32_t longest = 0;
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

[[nodiscard]] gpu::Status can_run(const AttentionParams& params);
[[nodiscard]] std::size_t workspace_bytes(const AttentionParams& params);
[[nodiscard]] gpu::Status launch(const AttentionParams& params, gpu::Stream stream);

}  // namespace switchyard::SWITCHYARD_KERNELS
