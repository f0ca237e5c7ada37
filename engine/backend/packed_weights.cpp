// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/packed_weights.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/model/ggml_blocks.hpp"

namespace switchyard {
namespace {

/// OCP E4M3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, all ones is NaN.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> table{};
  for (unsigned bits = 0; bits < table.size(); ++bits) {
    const int exponent = static_cast<int>((bits >> 3U) & 15U);
    const auto mantissa = static_cast<float>(bits & 7U);
    float value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((bits & 127U) == 127U) {
      value = std::numeric_limits<float>::quiet_NaN();
    }
    table[bits] = (bits & 0x80U) != 0 ? -value : value;
  }
  return table;
}

void widen_fp8(const WeightView& w, std::size_t row, float* out) {
  static const std::array<float, 256> kValues = e4m3_values();
  const auto* in = static_cast<const std::uint8_t*>(w.data) + row * w.cols;
  const std::size_t across = (w.cols + kFp8Block - 1) / kFp8Block;
  const float* scale = static_cast<const float*>(w.scales) + row / kFp8Block * across;
  for (std::size_t c = 0; c < w.cols; ++c) {
    out[c] = kValues[in[c]] * scale[c / kFp8Block];
  }
}

void widen_mxfp4(const WeightView& w, std::size_t row, float* out) {
  static constexpr std::array<float, 16> kValue{0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  const auto* in = static_cast<const std::uint8_t*>(w.data) + row * w.cols / 2;
  const auto* scale = static_cast<const std::uint8_t*>(w.scales) + row * w.cols / 32;
  for (std::size_t b = 0; b < w.cols / 32; ++b) {
    // 2^(s - 127) is a float for every s but 255, which means NaN.
    const float factor = scale[b] == 255 ? std::numeric_limits<float>::quiet_NaN()
                                         : std::ldexp(1.0F, scale[b] - 127);
    for (std::size_t i = 0; i < 16; ++i) {
      const unsigned byte = in[b * 16 + i];
      out[b * 32 + 2 * i] = kValue[byte & 15U] * factor;
      out[b * 32 + 2 * i + 1] = kValue[byte >> 4U] * factor;
    }
  }
}

model::DType block_type(WeightType type) {
  switch (type) {
    case WeightType::kQ8:
      return model::DType::kQ8_0;
    case WeightType::kQ4:
      return model::DType::kQ4_0;
    case WeightType::kQ4K:
      return model::DType::kQ4K;
    case WeightType::kQ6K:
      return model::DType::kQ6K;
    default:
      return model::DType::kMxfp4;
  }
}

/// Reads the stored matrix along its own rows: `count` neighbours of one input at a time.
void widen_transposed(const WeightView& w, std::size_t first, std::size_t last, float* out) {
  const std::size_t size = weight_bytes(w.type);
  constexpr std::size_t kMost = 256;
  std::array<float, kMost> line;
  const std::size_t per_line = std::max<std::size_t>(1, (kMost - 1) / w.row_step + 1);
  for (std::size_t r = first; r < last; r += per_line) {
    const std::size_t count = std::min(per_line, last - r);
    const std::size_t stored = w.first_row + r * w.row_step;
    const std::size_t extent = (count - 1) * w.row_step + 1;
    for (std::size_t c = 0; c < w.cols; ++c) {
      const WeightView plain{
          static_cast<const std::byte*>(w.data) + (c * w.stored_width + stored) * size, w.type, 1,
          extent};
      cpu::widen(plain, 0, extent, line.data());
      for (std::size_t i = 0; i < count; ++i) {
        out[(r - first + i) * w.cols + c] = line[i * w.row_step];
      }
    }
  }
}

}  // namespace

void widen_rows(const WeightView& w, std::size_t first, std::size_t last, float* out) {
  if (w.stored_width > 0) {
    widen_transposed(w, first, last, out);
    return;
  }
  if (!is_packed(w)) {
    cpu::widen(w, first * w.cols, (last - first) * w.cols, out);
    return;
  }
  for (std::size_t r = first; r < last; ++r, out += w.cols) {
    const std::size_t row = w.first_row + r * w.row_step;
    if (w.type == WeightType::kFp8) {
      widen_fp8(w, row, out);
    } else if (w.type == WeightType::kMxfp4) {
      widen_mxfp4(w, row, out);
    } else {
      const model::DType type = block_type(w.type);
      const model::BlockShape shape = model::block_shape(type);
      const auto* data = static_cast<const std::byte*>(w.data);
      model::widen_blocks(type, data + row * (w.cols / shape.values) * shape.bytes, {out, w.cols});
    }
  }
}

}  // namespace switchyard
