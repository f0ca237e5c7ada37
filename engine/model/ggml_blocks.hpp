// SPDX-License-Identifier: Apache-2.0
// GGUF's block formats Q8_0, Q4_0, Q4_K, Q6_K and MXFP4: a row is a sequence of blocks, each with
// its own scale.
//   Q8_0  32 values: d (FP16), q[32] (int8)                          x = d q
//   Q4_0  32 values: d (FP16), 16 bytes; low halves are values 0-15  x = d (q - 8)
//   Q4_K 256 values: d, m (FP16), 12 bytes of 6-bit (s_j, t_j), j < 8, 128 bytes
//                                                                    x = (d s_j) q - (m t_j)
//   Q6_K 256 values: 128 bytes of low, 64 of high bits, s_j (int8), j < 16, d (FP16)
//                                                                    x = (d s_j) (q - 32)
//   MXFP4 32 values: e (8 bits), 16 bytes as in Q4_0                 x = 2^(e - 127) v[q],
//         v = 0, .5, 1, 1.5, 2, 3, 4, 6 and negatives; e = 255 is ggml's 2^128 where OCP says NaN
// Layout and rounding of ggml (ggml-quants.c, MIT), which the tests compare bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model/dtype.hpp"

namespace switchyard::model {

/// Values and bytes of one block; {1, n} for formats without blocks.
struct BlockShape {
  std::size_t values = 1;
  std::size_t bytes = 0;
};
[[nodiscard]] BlockShape block_shape(DType dtype);
/// True for Q8_0, Q4_0, Q4_K, Q6_K, MXFP4.
[[nodiscard]] bool is_block_format(DType dtype);

/// Widens out.size() values (whole blocks, asserted) that begin at `source`, unaligned.
void widen_blocks(DType dtype, const std::byte* source, std::span<float> out);

/// Largest magnitude that pack_values stores as a finite value for certain (the scale of a block is
/// FP16); infinity for F32 and BF16.
[[nodiscard]] float largest_packed(DType dtype);

/// Packs whole blocks of values into `out` (block_shape bytes each): F32, F16, BF16, Q8_0, Q4_0 and
/// Q4_K (asserted); Q6_K and MXFP4 are only read. Rounds as ggml's reference does, so equal inputs
/// give equal files.
void pack_values(DType dtype, std::span<const float> values, std::byte* out);

}  // namespace switchyard::model
