// SPDX-License-Identifier: Apache-2.0
// Number formats a scenario can name, with their exact size.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard::scenario {

/// Storage or arithmetic format. fp8 is either 8-bit float layout; int4 and fp4 pack two values in
/// a byte. Not modelled: the scales of block-quantised weights (they are below 2 % at 128 values).
enum class Precision : std::uint8_t { kFp32, kBf16, kFp16, kFp8, kInt8, kInt4, kFp4 };
inline constexpr std::size_t kPrecisionCount = 7;
inline constexpr std::array<std::string_view, kPrecisionCount> kPrecisionNames{
    "fp32", "bf16", "fp16", "fp8", "int8", "int4", "fp4"};

/// Bits of one value: 32, 16, 16, 8, 8, 4, 4.
[[nodiscard]] constexpr std::uint32_t bits(Precision p) {
  constexpr std::array<std::uint32_t, kPrecisionCount> kBits{32, 16, 16, 8, 8, 4, 4};
  return kBits[static_cast<std::size_t>(p)];
}
/// Bytes of `count` packed values, rounded up to a whole byte.
[[nodiscard]] constexpr std::uint64_t bytes_of(Precision p, std::uint64_t count) {
  return (count * bits(p) + 7) / 8;
}
[[nodiscard]] constexpr std::string_view name_of(Precision p) {
  return kPrecisionNames[static_cast<std::size_t>(p)];
}
/// Throws InputError(where, …) with a suggestion. `key` is the name shown in the message.
Precision parse_precision(std::string_view text, const std::string& where, const std::string& key);

}  // namespace switchyard::scenario
