// SPDX-License-Identifier: Apache-2.0
// File: packed_weights.hpp. Weights that are not plain row-major floats, as float32 rows:
//   kFp8    e4m3(w[r, c]) * scale[r / 128, c / 128]            (DeepSeek-V3; rounded to float32
//   once) kMxfp4  {0, .5, 1, 1.5, 2, 3, 4, 6, and negatives}[nibble] * 2^(s - 127); low half first
//   kQ8, kQ4, kQ4K  GGUF blocks, see engine/model/ggml_blocks.hpp
//   stored transposed: element (r, c) at data[c * stored_width + r]      (GPT-OSS's plain experts)
#pragma once
#include <cstddef>

#include "engine/backend/backend.hpp"

namespace switchyard {

/// Edge of an FP8 scale block.
inline constexpr std::size_t kFp8Block = 128;

/// Rows [first, last) of any view, plain or packed, as float32, row-major, into
/// out[(last - first) * w.cols].
void widen_rows(const WeightView& w, std::size_t first, std::size_t last, float* out);

}  // namespace switchyard
