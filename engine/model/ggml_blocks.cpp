// SPDX-License-Identifier: Apache-2.0
#include "engine/model/ggml_blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/error.hpp"

namespace switchyard::model {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::size_t kSuper = 256;
constexpr std::size_t kScaleBytes = 12;

std::uint8_t byte_at(const std::byte* p, std::size_t i) {
  return std::to_integer<std::uint8_t>(p[i]);
}
float half_at(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_float(bits);
}
/// Stores a value as FP16 and returns what a reader will see.
float put_half(std::byte* p, float value) {
  const std::uint16_t bits = float_to_f16(value);
  std::memcpy(p, &bits, sizeof bits);
  return f16_to_float(bits);
}

struct ScaleMin {
  std::uint8_t scale, min;
};
ScaleMin scale_min(const std::byte* s, std::size_t j) {
  if (j < 4) {
    return {static_cast<std::uint8_t>(byte_at(s, j) & 63U),
            static_cast<std::uint8_t>(byte_at(s, j + 4) & 63U)};
  }
  return {static_cast<std::uint8_t>((byte_at(s, j + 4) & 15U) | ((byte_at(s, j - 4) >> 6U) << 4U)),
          static_cast<std::uint8_t>((byte_at(s, j + 4) >> 4U) | ((byte_at(s, j) >> 6U) << 4U))};
}

void widen_q8_0(const std::byte* p, float* out) {
  const float d = half_at(p);
  std::array<std::int8_t, kBlock> q{};
  std::memcpy(q.data(), p + 2, kBlock);
  for (std::size_t i = 0; i < kBlock; ++i) {
    out[i] = static_cast<float>(q[i]) * d;
  }
}

void widen_q4_0(const std::byte* p, float* out) {
  const float d = half_at(p);
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const int q = byte_at(p + 2, i);
    out[i] = static_cast<float>((q & 15) - 8) * d;
    out[i + kBlock / 2] = static_cast<float>((q >> 4) - 8) * d;
  }
}

void widen_q4_k(const std::byte* p, float* out) {
  const float d = half_at(p);
  const float m = half_at(p + 2);
  const std::byte* scales = p + 4;
  const std::byte* q = scales + kScaleBytes;
  for (std::size_t j = 0; j < kSuper / kBlock; ++j) {
    const ScaleMin s = scale_min(scales, j);
    const float step = d * static_cast<float>(s.scale);
    const float low = m * static_cast<float>(s.min);
    const std::byte* bytes = q + j / 2 * kBlock;
    const unsigned shift = j % 2 == 0 ? 0 : 4;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const int v = (byte_at(bytes, i) >> shift) & 15;
      out[j * kBlock + i] = step * static_cast<float>(v) - low;
    }
  }
}

void widen_q6_k(const std::byte* p, float* out) {
  const std::byte* low = p;
  const std::byte* high = p + kSuper / 2;
  const std::byte* scales = high + kSuper / 4;
  const float d = half_at(scales + kSuper / 16);
  for (std::size_t half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    for (std::size_t i = 0; i < 32; ++i) {
      for (std::size_t quarter = 0; quarter < 4; ++quarter) {
        const unsigned nibbles = byte_at(low, i + 32 * (quarter % 2));
        const unsigned bits = (quarter < 2 ? nibbles & 15U : nibbles >> 4U) |
                              (((byte_at(high, i) >> (2 * quarter)) & 3U) << 4U);
        const auto scale = static_cast<std::int8_t>(byte_at(scales, i / 16 + 2 * quarter));
        out[i + 32 * quarter] =
            d * static_cast<float>(scale) * static_cast<float>(static_cast<int>(bits) - 32);
      }
    }
  }
}

void widen_mxfp4(const std::byte* p, float* out) {
  // Twice the value, times half the scale, as ggml does: 2^(e - 128) is a float for every e.
  static constexpr std::array<float, 16> kTwice{0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};
  const float scale = std::ldexp(1.0F, static_cast<int>(byte_at(p, 0)) - 128);
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const unsigned q = byte_at(p + 1, i);
    out[i] = kTwice[q & 15U] * scale;
    out[i + kBlock / 2] = kTwice[q >> 4U] * scale;
  }
}

/// 1 / d; 0 where that is no number (d is 0 or so small that its half is 0 too).
float inverse_of(float d) {
  const float inverse = 1.0F / d;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

void pack_q8_0(const float* x, std::byte* out) {
  float top = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    top = std::max(top, std::fabs(x[i]));
  }
  const float d = top / 127.0F;
  const float inverse = inverse_of(d);
  put_half(out, d);
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto q = static_cast<std::int8_t>(std::round(x[i] * inverse));
    std::memcpy(out + 2 + i, &q, 1);
  }
}

void pack_q4_0(const float* x, std::byte* out) {
  float top = 0;
  float extreme = 0;  // the value of largest magnitude, with its sign: it becomes -8
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (top < std::fabs(x[i])) {
      top = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  const float d = extreme / -8.0F;
  const float inverse = inverse_of(d);
  put_half(out, d);
  const auto level = [&](float v) {
    return static_cast<unsigned>(std::clamp(static_cast<int>(v * inverse + 8.5F), 0, 15));
  };
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    out[2 + i] = static_cast<std::byte>(level(x[i]) | (level(x[i + kBlock / 2]) << 4U));
  }
}

/// Nearest integer, ties to even.
int nearest(float v) { return static_cast<int>(std::nearbyint(std::clamp(v, -1e6F, 1e6F))); }

/// Weighted least squares for x ~ scale * level - min with 4-bit levels, searched over 21 steps.
/// Returns the scale; `levels` are the best search step's (zero for a constant block).
float fit_block(const float* x, const std::array<float, kBlock>& weight, float& min_out,
                std::uint8_t* levels) {
  constexpr int kTop = 15;
  float low = x[0];
  float high = x[0];
  float sum_w = weight[0];
  float sum_x = sum_w * x[0];
  for (std::size_t i = 1; i < kBlock; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += weight[i];
    sum_x += weight[i] * x[i];
  }
  low = std::min(low, 0.0F);
  if (high == low) {
    min_out = -low;
    return 0;
  }
  float inverse = static_cast<float>(kTop) / (high - low);
  float scale = 1 / inverse;
  float best = 0;
  const auto level_of = [&](float v) { return std::clamp(nearest(inverse * (v - low)), 0, kTop); };
  for (std::size_t i = 0; i < kBlock; ++i) {
    levels[i] = static_cast<std::uint8_t>(level_of(x[i]));
    const float diff = scale * static_cast<float>(levels[i]) + low - x[i];
    best += weight[i] * (diff * diff);
  }
  float min = low;
  for (int step = 0; step <= 20; ++step) {
    // As in ggml, an improved minimum changes the range of the steps that follow.
    inverse = (-1.0F + 0.1F * static_cast<float>(step) + static_cast<float>(kTop)) / (high - min);
    std::array<std::uint8_t, kBlock> level{};
    float sum_l = 0;
    float sum_l2 = 0;
    float sum_xl = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      level[i] = static_cast<std::uint8_t>(std::clamp(nearest(inverse * (x[i] - min)), 0, kTop));
      const auto l = static_cast<float>(level[i]);
      const float w = weight[i];
      sum_l += w * l;
      sum_l2 += w * l * l;
      sum_xl += w * l * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (determinant <= 0) {
      continue;
    }
    float this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (this_min > 0) {
      this_min = 0;
      this_scale = sum_xl / sum_l2;
    }
    float error = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float diff = this_scale * static_cast<float>(level[i]) + this_min - x[i];
      error += weight[i] * (diff * diff);
    }
    if (error < best) {
      best = error;
      scale = this_scale;
      min = this_min;
      std::copy(level.begin(), level.end(), levels);
    }
  }
  min_out = -min;
  return scale;
}

void pack_q4_k(const float* x, std::byte* out) {
  constexpr std::size_t kParts = kSuper / kBlock;
  std::array<float, kParts> scales{};
  std::array<float, kParts> mins{};
  std::array<std::uint8_t, kSuper> level{};
  float max_scale = 0;
  float max_min = 0;
  for (std::size_t j = 0; j < kParts; ++j) {
    const float* part = x + j * kBlock;
    float squares = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      squares += part[i] * part[i];
    }
    const float rms = std::sqrt(squares / static_cast<float>(kBlock));
    std::array<float, kBlock> weight{};
    for (std::size_t i = 0; i < kBlock; ++i) {
      weight[i] = rms + std::fabs(part[i]);
    }
    scales[j] = fit_block(part, weight, mins[j], level.data() + j * kBlock);
    max_scale = std::max(max_scale, scales[j]);
    max_min = std::max(max_min, mins[j]);
  }
  const float inverse_scale = max_scale > 0 ? 63.0F / max_scale : 0.0F;
  const float inverse_min = max_min > 0 ? 63.0F / max_min : 0.0F;
  std::array<std::uint8_t, kScaleBytes> packed{};
  for (std::size_t j = 0; j < kParts; ++j) {
    const auto s = static_cast<unsigned>(
        std::min<std::uint8_t>(63, static_cast<std::uint8_t>(nearest(inverse_scale * scales[j]))));
    const auto m = static_cast<unsigned>(
        std::min<std::uint8_t>(63, static_cast<std::uint8_t>(nearest(inverse_min * mins[j]))));
    if (j < 4) {
      packed[j] = static_cast<std::uint8_t>(s);
      packed[j + 4] = static_cast<std::uint8_t>(m);
    } else {
      packed[j + 4] = static_cast<std::uint8_t>((s & 15U) | ((m & 15U) << 4U));
      packed[j - 4] = static_cast<std::uint8_t>(packed[j - 4] | ((s >> 4U) << 6U));
      packed[j] = static_cast<std::uint8_t>(packed[j] | ((m >> 4U) << 6U));
    }
  }
  const float d = put_half(out, max_scale / 63.0F);
  const float dm = put_half(out + 2, max_min / 63.0F);
  std::memcpy(out + 4, packed.data(), kScaleBytes);
  for (std::size_t j = 0; j < kParts; ++j) {
    const ScaleMin s = scale_min(out + 4, j);
    const float step = d * static_cast<float>(s.scale);
    if (step == 0) {
      continue;  // any level gives the same value; ggml leaves the search's
    }
    const float low = dm * static_cast<float>(s.min);
    for (std::size_t i = 0; i < kBlock; ++i) {
      level[j * kBlock + i] =
          static_cast<std::uint8_t>(std::clamp(nearest((x[j * kBlock + i] + low) / step), 0, 15));
    }
  }
  std::byte* q = out + 4 + kScaleBytes;
  for (std::size_t j = 0; j < kSuper; j += 2 * kBlock, q += kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      q[i] = static_cast<std::byte>(level[j + i] | (level[j + kBlock + i] << 4U));
    }
  }
}

}  // namespace

bool is_block_format(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4K ||
         dtype == DType::kQ6K || dtype == DType::kMxfp4;
}

BlockShape block_shape(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return {kBlock, 34};
    case DType::kQ4_0:
      return {kBlock, 18};
    case DType::kQ4K:
      return {kSuper, 144};
    case DType::kQ6K:
      return {kSuper, 210};
    case DType::kMxfp4:
      return {kBlock, 17};
    default:
      return {1, dtype_bits_x32(dtype) / 256};
  }
}

void widen_blocks(DType dtype, const std::byte* source, std::span<float> out) {
  const BlockShape shape = block_shape(dtype);
  SWITCHYARD_ASSERT(is_block_format(dtype) && out.size() % shape.values == 0,
                    fmt::format("{} values of {}", out.size(), dtype_name(dtype)));
  for (std::size_t i = 0; i < out.size(); i += shape.values, source += shape.bytes) {
    float* const to = out.data() + i;
    switch (dtype) {
      case DType::kQ8_0:
        widen_q8_0(source, to);
        break;
      case DType::kQ4_0:
        widen_q4_0(source, to);
        break;
      case DType::kQ4K:
        widen_q4_k(source, to);
        break;
      case DType::kQ6K:
        widen_q6_k(source, to);
        break;
      default:
        widen_mxfp4(source, to);
    }
  }
}

float largest_packed(DType dtype) {
  constexpr float kHalf = 65504.0F;
  switch (dtype) {
    case DType::kF16:
      return kHalf;
    case DType::kQ8_0:
      return kHalf * 127;
    case DType::kQ4_0:
      return kHalf * 8;
    case DType::kQ4K:
      return kHalf * 63;
    default:
      return std::numeric_limits<float>::infinity();
  }
}

void pack_values(DType dtype, std::span<const float> values, std::byte* out) {
  const BlockShape shape = block_shape(dtype);
  SWITCHYARD_ASSERT((dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4K ||
                     is_float_weight(dtype)) &&
                        values.size() % shape.values == 0,
                    fmt::format("{} values of {}", values.size(), dtype_name(dtype)));
  if (dtype == DType::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); i += shape.values, out += shape.bytes) {
    const float* x = values.data() + i;
    if (dtype == DType::kQ8_0) {
      pack_q8_0(x, out);
    } else if (dtype == DType::kQ4_0) {
      pack_q4_0(x, out);
    } else if (dtype == DType::kQ4K) {
      pack_q4_k(x, out);
    } else {
      const std::uint16_t bits = dtype == DType::kBf16 ? float_to_bf16(*x) : float_to_f16(*x);
      std::memcpy(out, &bits, sizeof bits);
    }
  }
}

}  // namespace switchyard::model
