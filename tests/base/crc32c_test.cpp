// SPDX-License-Identifier: Apache-2.0
#include "engine/base/crc32c.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace switchyard {
namespace {

std::uint32_t crc_of(const std::string& text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(crc_of("123456789"), 0xE3069283U);
  EXPECT_EQ(crc_of(""), 0U);
  // RFC 3720 B.4: 32 bytes of zeros, of ones, ascending, descending.
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62A8AB43U);
  std::string up;
  std::string down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc_of(up), 0x46DD794EU);
  EXPECT_EQ(crc_of(down), 0x113FDB5CU);
  const std::string text = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text).subspan(4)), crc_of("1234")), 0xE3069283U);
}

TEST(Crc32c, SeesEverySingleBit) {
  std::vector<std::byte> data(37, std::byte{0x5A});
  const std::uint32_t whole = crc32c(data);
  for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(crc32c(data), whole) << bit;
    data[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_EQ(crc32c(data), whole);
}

}  // namespace
}  // namespace switchyard
