// SPDX-License-Identifier: Apache-2.0
#include "engine/base/hash.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/base/error.hpp"
#include "engine/base/file_hash.hpp"

namespace switchyard {
namespace {

// xxHash's published values for the empty input.
TEST(Hash, EmptyInputHasThePublishedValue) {
  EXPECT_EQ(hex64(hash64(std::string_view())), "2d06800538d394c2");
  EXPECT_EQ(hash128({}).hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, StreamingInPiecesEqualsOneShot) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += static_cast<char>('a' + i % 26);
  }
  const Hash128 whole = hash128(std::as_bytes(std::span(text)));
  for (const std::size_t piece : {1U, 7U, 256U, 4999U, 5000U}) {
    Hasher128 h;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      h.update(std::string_view(text).substr(at, piece));
    }
    EXPECT_EQ(h.digest(), whole) << piece;
  }
  text[4000] ^= 1;
  EXPECT_FALSE(hash128(std::as_bytes(std::span(text))) == whole);
}

TEST(Hash, HexIsPaddedAndLowerCase) {
  EXPECT_EQ(hex64(0xABCU), "0000000000000abc");
  EXPECT_EQ((Hash128{1, 2}).hex(), "00000000000000020000000000000001");
}

// FIPS 180-2, appendix B.1.
TEST(Sha256, OfAbcIsTheStandardsExample) {
  const std::string_view text = "abc";
  const auto digest = sha256(std::as_bytes(std::span(text.data(), text.size())));
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  EXPECT_EQ(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, OfAFileIsThatOfItsBytes) {
  std::string bytes;
  for (int i = 0; i < (1 << 20) + 77; ++i) bytes += static_cast<char>(i * 31 % 251);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, bytes.size()}) {
    std::ofstream("hashed.bin", std::ios::binary) << bytes.substr(0, size);
    EXPECT_EQ(hash64_of_file("hashed.bin"), hash64(std::string_view(bytes).substr(0, size)));
  }
  EXPECT_THROW((void)hash64_of_file("missing.bin"), InputError);
  EXPECT_THROW((void)hash64_of_file("."), InputError);
}

}  // namespace
}  // namespace switchyard
