// SPDX-License-Identifier: Apache-2.0
#include "engine/model/dtype.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::model {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::string_view safetensors;
  std::uint64_t bits_x32;
};
constexpr std::array kRows = {
    Row{DType::kF64, "fp64", "F64", 2048},      Row{DType::kF32, "fp32", "F32", 1024},
    Row{DType::kF16, "fp16", "F16", 512},       Row{DType::kBf16, "bf16", "BF16", 512},
    Row{DType::kF8E4M3, "fp8", "F8_E4M3", 256}, Row{DType::kF8E5M2, "fp8_e5m2", "F8_E5M2", 256},
    Row{DType::kI64, "int64", "I64", 2048},     Row{DType::kI32, "int32", "I32", 1024},
    Row{DType::kI16, "int16", "I16", 512},      Row{DType::kI8, "int8", "I8", 256},
    Row{DType::kU8, "uint8", "U8", 256},        Row{DType::kBool, "bool", "BOOL", 256},
    Row{DType::kInt4, "int4", "", 128},         Row{DType::kInt4G128, "int4_g128", "", 133},
    Row{DType::kMxfp4, "mxfp4", "", 136},       Row{DType::kQ8_0, "q8_0", "", 272},
    Row{DType::kQ4_0, "q4_0", "", 144},         Row{DType::kQ4K, "q4_k", "", 144},
    Row{DType::kQ6K, "q6_k", "", 210},
};

/// "int3": the width is what was meant, so the format of this kind with the nearest one (int4), not
/// the name with the fewest other letters (int32).
std::string suggest_width(std::string_view text, const std::vector<std::string>& names) {
  const auto width = [](std::string_view name, std::string_view& kind) -> int {
    const std::size_t digits = name.find_first_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos || name.size() - digits > 3) return 0;
    kind = name.substr(0, digits);
    int bits = 0;
    for (const char c : name.substr(digits)) {
      if (c < '0' || c > '9') return 0;
      bits = 10 * bits + (c - '0');
    }
    return bits;
  };
  std::string_view kind, other;
  const int wanted = width(text, kind);
  std::string best;
  int nearest = 0;
  for (const std::string& name : names) {
    const int bits = width(name, other);
    if (wanted == 0 || bits == 0 || other != kind) continue;
    if (best.empty() || std::abs(bits - wanted) < nearest) {
      nearest = std::abs(bits - wanted);
      best = name;
    }
  }
  return best.empty() ? suggest_name(text, names) : fmt::format("did you mean \"{}\"?", best);
}

const Row& row(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  SWITCHYARD_ASSERT(i < kRows.size() && kRows[i].dtype == dtype, fmt::format("dtype {}", i));
  return kRows[i];
}

std::uint16_t load_u16(const std::byte* p) {
  std::uint16_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

std::string_view dtype_name(DType dtype) { return row(dtype).name; }
std::string_view safetensors_name(DType dtype) { return row(dtype).safetensors; }
std::string file_dtype_name(DType dtype) {
  std::string name(row(dtype).safetensors.empty() ? row(dtype).name : row(dtype).safetensors);
  for (char& c : name) {
    c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}
std::uint64_t dtype_bits_x32(DType dtype) { return row(dtype).bits_x32; }

DType parse_dtype(std::string_view text, const std::string& where) {
  for (const auto& r : kRows) {
    if (text == r.name) {
      return r.dtype;
    }
  }
  constexpr std::array<std::pair<std::string_view, DType>, 9> kAliases = {{
      {"f32", DType::kF32},
      {"float32", DType::kF32},
      {"bfloat16", DType::kBf16},
      {"f16", DType::kF16},
      {"float16", DType::kF16},
      {"f8_e4m3", DType::kF8E4M3},
      {"fp8_e4m3", DType::kF8E4M3},
      {"float64", DType::kF64},
      {"f64", DType::kF64},
  }};
  for (const auto& [alias, dtype] : kAliases) {
    if (text == alias) {
      return dtype;
    }
  }
  std::vector<std::string> names;
  names.reserve(kRows.size());
  for (const auto& r : kRows) {
    names.emplace_back(r.name);
  }
  throw InputError(where, fmt::format("unknown number format \"{}\"", text),
                   suggest_width(text, names));
}

std::uint64_t dtype_bytes(DType dtype, std::uint64_t count) {
  const unsigned __int128 bits = static_cast<unsigned __int128>(count) * row(dtype).bits_x32;
  const unsigned __int128 bytes = (bits + 255) / 256;
  if (bytes >> 63 != 0) {
    throw InputError(
        "model", fmt::format("{} values of {} do not fit 2^63 bytes", count, dtype_name(dtype)));
  }
  return static_cast<std::uint64_t>(bytes);
}

bool is_float_weight(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bf16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((u >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  }
  // Subnormal: mantissa · 2^-24, exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t float_to_f16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U);
  }
  if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  }
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded by the addition.
    const auto sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F);
    return static_cast<std::uint16_t>(sign | (sum - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

void widen(DType dtype, std::span<const std::byte> source, std::span<float> out) {
  SWITCHYARD_ASSERT(is_float_weight(dtype), std::string(dtype_name(dtype)));
  SWITCHYARD_ASSERT(source.size() == dtype_bytes(dtype, out.size()),
                    fmt::format("{} bytes for {} values", source.size(), out.size()));
  if (dtype == DType::kF32) {
    if (!out.empty()) {
      std::memcpy(out.data(), source.data(), source.size());
    }
    return;
  }
  const bool bf16 = dtype == DType::kBf16;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint16_t bits = load_u16(source.data() + 2 * i);
    out[i] = bf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

}  // namespace switchyard::model
