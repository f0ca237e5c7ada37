// SPDX-License-Identifier: Apache-2.0
#include "engine/base/crc32c.hpp"

#include <nmmintrin.h>

#include <cstring>

namespace switchyard {

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
  std::uint64_t crc = before ^ 0xFFFFFFFF;
  std::size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, data.data() + i, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; i < data.size(); ++i) {
    narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(data[i]));
  }
  return narrow ^ 0xFFFFFFFF;
}

}  // namespace switchyard
