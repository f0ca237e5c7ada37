// SPDX-License-Identifier: Apache-2.0
#include "engine/model/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

/// A file of `header` (as is) and `data` zero bytes.
std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + std::string(data, '\0');
}

/// Without write_file's fsync: these tests write thousands of files.
void write_fast(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string error_of(const std::string& bytes) {
  const fs::path path = "hostile.safetensors";
  write_fast(path, bytes);
  try {
    const auto s = Safetensors::open(path);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

std::vector<TensorData> two_tensors() {
  const std::vector<float> a = {1.5F, -2.0F, 3.25F, 0.0F, 5.0F, 6.0F};
  const std::vector<float> b = {0.5F, 1.0F};
  return {TensorData::from_floats("a.weight", DType::kBf16, {2, 3}, a),
          TensorData::from_floats("b", DType::kF32, {2}, b)};
}

TEST(Safetensors, RoundTrip) {
  write_safetensors("round.safetensors", two_tensors(), {{"format", "pt"}});
  const auto s = Safetensors::open("round.safetensors");
  ASSERT_EQ(s.tensors().size(), 2U);
  const auto* a = s.find("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kBf16);
  EXPECT_EQ(a->shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(a->to_float(), (std::vector<float>{1.5F, -2.0F, 3.25F, 0.0F, 5.0F, 6.0F}));
  EXPECT_EQ(s.find("b")->to_float(), (std::vector<float>{0.5F, 1.0F}));
  EXPECT_EQ(s.find("c"), nullptr);
  EXPECT_EQ(s.metadata().at("format"), "pt");
  EXPECT_EQ(s.file_of("b"), "round.safetensors");
}

TEST(Safetensors, WideningIsExactForEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto u = static_cast<std::uint16_t>(bits);
    const float bf = bf16_to_float(u);
    if (!std::isnan(bf)) {
      EXPECT_EQ(float_to_bf16(bf), u);
    } else {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf))));
    }
    // F16 against the definition.
    const double sign = (u & 0x8000U) != 0 ? -1.0 : 1.0;
    const int e = (u >> 10U) & 0x1f;
    const int m = u & 0x3ff;
    const float h = f16_to_float(u);
    if (e == 31) {
      EXPECT_TRUE(m == 0 ? std::isinf(h) : std::isnan(h));
    } else {
      const double expected =
          e == 0 ? sign * m * std::ldexp(1.0, -24) : sign * std::ldexp(1024.0 + m, e - 25);
      EXPECT_EQ(static_cast<double>(h), expected);
      EXPECT_EQ(std::signbit(h), sign < 0);
    }
  }
}

TEST(Safetensors, BfloatRoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3f80);             // half way, down to even
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-7F + 0x1p-8F), 0x3f82);   // half way, up to even
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F + 0x1p-20F), 0x3f81);  // above half
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Safetensors, OtherDtypesAreListedButNotReadAsFloats) {
  write_file("fp8.safetensors",
             file_of(R"({"w":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                     R"("s":{"dtype":"U8","shape":[],"data_offsets":[3,4]}})",
                     4));
  const auto s = Safetensors::open("fp8.safetensors");
  EXPECT_EQ(s.find("w")->dtype, DType::kF8E4M3);
  EXPECT_EQ(s.find("s")->count(), 1U);
  EXPECT_THROW((void)s.find("w")->to_float(), InputError);
}

TEST(Safetensors, HostileHeaders) {
  const auto expect = [](const std::string& bytes, const std::string& message) {
    EXPECT_EQ(error_of(bytes), "hostile.safetensors: " + message);
  };
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(error_of(file_of(one, 8)), "accepted");
  expect("", "not a safetensors file: 0 bytes");
  expect("1234567", "not a safetensors file: 7 bytes");
  expect(std::string("\0\0\0\0\0\0\0\x80", 8) + "{}",
         "header length 9223372036854775808 exceeds 100000000 bytes; not a safetensors file, or "
         "damaged");
  expect(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}",
         "header length 18446744073709551615 exceeds 100000000 bytes; not a safetensors file, or "
         "damaged");
  expect(std::string("\x03\0\0\0\0\0\0\0", 8) + "{}",
         "header length 3 does not fit the file of 10 bytes; truncated?");
  expect(std::string(8, '\0'), "header length 0 does not fit the file of 8 bytes; truncated?");
  expect(file_of(one, 7), "tensor \"a\": ends at byte 8 of the data, the file has 7 (truncated?)");
  expect(file_of(one, 9), "1 bytes after the last tensor");
  expect(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7),
         "tensor \"a\": F32 of shape [2] needs 8 bytes, data_offsets give 7");
  expect(file_of(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}})", 8),
         "tensor \"a\": BF16 of shape [2] needs 4 bytes, data_offsets give 8");
  expect(file_of(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8),
         "tensor \"a\": unknown dtype \"F31\"; known: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 "
         "I16 I8 U8 BOOL");
  expect(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2),
         "tensor \"a\": data_offsets must be [begin, end] with begin <= end");
  expect(file_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
         "tensor \"a\": the product of its shape overflows 64 bits");
  expect(file_of(R"({"a":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,0]}})", 0),
         "tensor \"a\": its size in bytes overflows 64 bits");
  expect(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                 6),
         "tensor \"b\": begins at byte 2 of the data, expected 4: its bytes overlap another "
         "tensor's");
  expect(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
                 9),
         "tensor \"b\": begins at byte 5 of the data, expected 4: its bytes leave a gap");
  expect(file_of(R"({"__metadata__":3})", 0), "__metadata__ must map texts to texts");
  expect(file_of(R"([])", 0), "the header does not begin with '{'");
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                             8)),
            "hostile.safetensors (header): duplicate key \"a\"");
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}})", 4)),
            "hostile.safetensors: /a/shape/0: -1 is outside [0, 18446744073709551615]");
  EXPECT_EQ(error_of(file_of(R"({"a":7})", 0)),
            "hostile.safetensors: /a: expected an object, found 7");
  EXPECT_NE(error_of(file_of("{\"a\xff\":1}", 0)).find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(file_of("{\"a\":" + std::string(100000, '['), 0))
                .find("nested deeper than 64 levels"),
            std::string::npos);
}

TEST(Safetensors, CutAtEveryByte) {
  const std::string good = safetensors_bytes(two_tensors());
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_NE(error_of(good.substr(0, n)), "accepted") << n;
  }
  EXPECT_EQ(error_of(good), "accepted");
}

TEST(Safetensors, FlippedBitsNeverDoWorseThanAnInputError) {
  const std::string good = safetensors_bytes(two_tensors(), {{"format", "pt"}});
  const fs::path path = "flipped.safetensors";
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    write_fast(path, bytes);
    try {
      const auto s = Safetensors::open(path);
      for (const auto& [name, view] : s.tensors()) {
        if (is_float_weight(view.dtype)) {
          (void)view.to_float();
        }
      }
    } catch (const InputError& e) {
      EXPECT_EQ(std::string(e.what()).rfind("flipped.safetensors", 0), 0U) << e.what();
    }
  }
}

TEST(Safetensors, Shards) {
  const fs::path folder = "shards";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto t = two_tensors();
  write_safetensors(folder / "one.safetensors", std::span(t).subspan(0, 1));
  write_safetensors(folder / "two.safetensors", std::span(t).subspan(1, 1));
  const auto index = folder / "model.safetensors.index.json";
  const auto error = [&] {
    try {
      const auto s = Safetensors::open(folder);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error(),
            "shards: no weights: neither model.safetensors nor "
            "model.safetensors.index.json");
  write_file(index, R"({"weight_map":{"a.weight":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(error(), "accepted");
  EXPECT_EQ(Safetensors::open(folder).tensors().size(), 2U);
  EXPECT_EQ(Safetensors::open(folder).file_of("b"), "shards/two.safetensors");
  write_file(index, R"({"weight_map":{"a.weight":"one.safetensors","b":"one.safetensors"}})");
  EXPECT_EQ(error(),
            "shards/model.safetensors.index.json: tensor \"b\" is missing from one.safetensors");
  write_file(index, R"({"weight_map":{"a.weight":"two.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(error(),
            "shards/model.safetensors.index.json: tensor \"a.weight\" is missing from "
            "two.safetensors");
  write_file(index, R"({"weight_map":{"a.weight":"one.safetensors","b":"three.safetensors"}})");
  EXPECT_EQ(error(), "shards/three.safetensors: cannot open: No such file or directory");
  write_file(index, R"({"weight_map":{"x":"one.safetensors"}})");
  EXPECT_EQ(error(), "shards/one.safetensors: tensor \"a.weight\" is not in the index");
  write_file(index, R"({"weight_map":{"a.weight":"../one.safetensors"}})");
  EXPECT_EQ(error(),
            "shards/model.safetensors.index.json: /weight_map/a.weight: "
            "\"../one.safetensors\" is not a file name");
  write_file(index, R"({"weight_map":[]})");
  EXPECT_EQ(error(),
            "shards/model.safetensors.index.json: /weight_map: expected an object, found "
            "a list");
  EXPECT_THROW(Safetensors::open("no/such/file.safetensors"), InputError);
}

}  // namespace
}  // namespace switchyard::model
