// SPDX-License-Identifier: Apache-2.0
// The GGUF container: a file written by llama.cpp's own package read bit for bit, the same blocks
// written, and files that lie about themselves.
#include "engine/model/gguf.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/ggml_blocks.hpp"
#include "engine/model/gguf_model.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

const fs::path& fixture() {
  static const fs::path path = fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/gguf_types";
  return path;
}

std::vector<float> values_of(const TensorView& t) {
  if (!is_block_format(t.dtype)) {
    return t.to_float();
  }
  std::vector<float> out(t.count());
  widen_blocks(t.dtype, t.data.data(), out);
  return out;
}

/// Equal bits, so that -0 and NaN count too.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

struct TypeCase {
  const char* name;
  DType dtype;
};
constexpr TypeCase kTypes[]{{"f32", DType::kF32},   {"f16", DType::kF16},   {"bf16", DType::kBf16},
                            {"q8_0", DType::kQ8_0}, {"q4_0", DType::kQ4_0}, {"q4_k", DType::kQ4K}};

TEST(Gguf, ReadsEveryTypeAsTheGgufPackageDoes) {
  const Gguf file = Gguf::open(fixture() / "types.gguf");
  const auto expected = Safetensors::open(fixture() / "expected.safetensors");
  EXPECT_EQ(file.tensors().size(), 12U);
  for (const char* prefix : {"", "edge."}) {
    for (const TypeCase& t : kTypes) {
      const std::string name = std::string(prefix) + t.name;
      const TensorView& view = file.tensors().at(name);
      EXPECT_EQ(view.dtype, t.dtype) << name;
      EXPECT_EQ(view.shape, expected.find(name)->shape) << name;
      expect_same_bits(values_of(view), expected.find(name)->to_float(), name);
    }
  }
}

TEST(Gguf, ReadsTypesItDoesNotWriteAsTheGgufPackageDoes) {
  const Gguf file = Gguf::open(fixture() / "read_only.gguf");
  const auto expected = Safetensors::open(fixture() / "read_only.safetensors");
  EXPECT_EQ(file.tensors().size(), 6U);
  for (const char* prefix : {"", "edge.", "any."}) {
    for (const auto& [type, dtype] :
         {std::pair{"q6_k", DType::kQ6K}, std::pair{"mxfp4", DType::kMxfp4}}) {
      const std::string name = std::string(prefix) + type;
      const TensorView& view = file.tensors().at(name);
      EXPECT_EQ(view.dtype, dtype) << name;
      EXPECT_EQ(view.shape, expected.find(name)->shape) << name;
      expect_same_bits(values_of(view), expected.find(name)->to_float(), name);
    }
  }
}

TEST(Gguf, PartsAreOneFile) {
  const Gguf file = Gguf::open(fixture() / "parts-00001-of-00003.gguf");
  EXPECT_EQ(file.text("k.text"), "of the first part");
  ASSERT_EQ(file.tensors().size(), 6U);
  for (int i = 0; i < 6; ++i) {
    std::vector<float> expected(8);
    std::iota(expected.begin(), expected.end(), 10.0F * static_cast<float>(i));
    EXPECT_EQ(file.tensors().at("t." + std::to_string(i)).to_float(), expected) << i;
  }
}

TEST(Gguf, PacksEveryTypeAsGgmlDoes) {
  const Gguf file = Gguf::open(fixture() / "types.gguf");
  const auto expected = Safetensors::open(fixture() / "expected.safetensors");
  for (const auto& [prefix, source] : {std::pair{"", "source"}, std::pair{"edge.", "edge"}}) {
    const auto values = expected.find(source)->to_float();
    for (const TypeCase& t : kTypes) {
      const TensorView& view = file.tensors().at(std::string(prefix) + t.name);
      std::vector<std::byte> packed(view.data.size());
      pack_values(t.dtype, values, packed.data());
      EXPECT_EQ(std::memcmp(packed.data(), view.data.data(), packed.size()), 0) << prefix << t.name;
    }
  }
}

TEST(Gguf, PackingTinyAndLargeValuesStaysFinite) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4K}) {
    for (const float v : {1e-38F, -1e-45F, largest_packed(type), -largest_packed(type)}) {
      std::vector<float> values(256, 0.0F);
      values[7] = v;
      std::vector<std::byte> packed(block_shape(type).bytes * (256 / block_shape(type).values));
      pack_values(type, values, packed.data());
      std::vector<float> back(256);
      widen_blocks(type, packed.data(), back);
      for (const float b : back) {
        EXPECT_TRUE(std::isfinite(b)) << dtype_name(type) << " " << v;
      }
      EXPECT_NEAR(back[7], v, std::fabs(v) / 100 + 1e-7) << dtype_name(type);
    }
  }
}

TEST(Gguf, ReadsEveryKindOfMetadata) {
  const Gguf file = Gguf::open(fixture() / "types.gguf");
  EXPECT_EQ(file.text("general.architecture"), "types-test");
  EXPECT_EQ(file.count("k.u8"), 200U);
  EXPECT_EQ(file.count("k.u16"), 60000U);
  EXPECT_EQ(file.count("k.u32"), 4000000000U);
  EXPECT_EQ(file.count("k.u64"), (1ULL << 63U) + 5);
  EXPECT_EQ(std::get<std::int64_t>(file.metadata().at("k.i8")), -5);
  EXPECT_EQ(std::get<std::int64_t>(file.metadata().at("k.i16")), -30000);
  EXPECT_EQ(std::get<std::int64_t>(file.metadata().at("k.i32")), -2000000000);
  EXPECT_EQ(std::get<std::int64_t>(file.metadata().at("k.i64")), -(1LL << 62));
  EXPECT_EQ(file.number("k.f32"), 1e-5);  // the double of the same text
  EXPECT_EQ(file.number("k.f64"), 0.1);
  EXPECT_TRUE(file.flag_or("k.bool", false));
  EXPECT_EQ(file.text("k.text"), "größe 語");
  EXPECT_EQ(file.texts("k.texts"), (std::vector<std::string>{"a", "", "語"}));
  EXPECT_EQ(file.integers("k.integers"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(std::get<std::vector<double>>(file.metadata().at("k.numbers")),
            (std::vector<double>{0.5, -1e-5}));
}

TEST(Gguf, HalfPrecisionRoundsToNearestEvenOverItsWholeRange) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
      continue;
    }
    ASSERT_EQ(float_to_f16(value), half) << value;
    if (const float next = f16_to_float(static_cast<std::uint16_t>(half + 1));
        (half & 0x7fffU) < 0x7bffU && std::isfinite(next)) {
      // Halfway goes to the even neighbour, a hair beyond to the nearer one.
      const float middle = value + (next - value) / 2;
      const std::uint16_t even = half % 2 == 0 ? half : static_cast<std::uint16_t>(half + 1);
      ASSERT_EQ(float_to_f16(middle), even) << middle;
      ASSERT_EQ(float_to_f16(std::nextafter(middle, value)), half) << middle;
    }
  }
  EXPECT_EQ(float_to_f16(65519.99F), 0x7bffU);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00U);
  EXPECT_EQ(float_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00U);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

void write_plain(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A small valid file: two keys, two tensors.
std::string small_file() {
  static std::string bytes;
  if (!bytes.empty()) {
    return bytes;
  }
  GgufWriter w;
  w.u32("a.count", 7);
  w.texts("a.texts", std::vector<std::string>{"x", "yz"});
  w.tensor("one", {2, 32}, DType::kQ8_0);
  w.tensor("two", {3}, DType::kF32);
  w.write("small.gguf", [](std::size_t i, const GgufWriter::Sink& sink) {
    sink(std::vector<std::byte>(i == 0 ? 68 : 12, std::byte{1}));
  });
  bytes = read_file("small.gguf");
  return bytes;
}

TEST(Gguf, WrittenFilesAreReadBack) {
  (void)small_file();
  const Gguf file = Gguf::open("small.gguf");
  EXPECT_EQ(file.count("a.count"), 7U);
  EXPECT_EQ(file.tensors().at("one").shape, (std::vector<std::uint64_t>{2, 32}));
  EXPECT_EQ(file.tensors().at("two").data.size(), 12U);
}

TEST(Gguf, ATruncatedFileIsRefusedAtEveryLength) {
  const std::string whole = small_file();
  for (std::size_t n = 0; n + 21 < whole.size(); ++n) {  // the last 20 bytes are padding
    write_plain("cut.gguf", whole.substr(0, n));
    const std::string text = error_of([] { (void)Gguf::open("cut.gguf"); });
    ASSERT_NE(text, "accepted") << n;
    ASSERT_TRUE(text.starts_with("cut.gguf: ")) << text;
  }
}

/// The small file with `bytes` put over it at `at`.
std::string refused(std::size_t at, const std::string& bytes) {
  std::string file = small_file();
  file.replace(at, bytes.size(), bytes);
  write_plain("bad.gguf", file);
  return error_of([] { (void)Gguf::open("bad.gguf"); });
}

std::string little(std::uint64_t value, std::size_t bytes) {
  std::string out(bytes, '\0');
  std::memcpy(out.data(), &value, bytes);
  return out;
}

TEST(Gguf, LiesInTheHeaderAreNamed) {
  // Byte positions: 4 version, 8 tensors, 16 keys, 24 first key's length, 32 "a.count", 39 type,
  // 43 value, 47 second key.
  EXPECT_EQ(refused(0, "GGML"), "bad.gguf: not a GGUF file");
  EXPECT_EQ(refused(4, little(1, 4)), "bad.gguf: unsupported GGUF version 1; supported: 2 and 3");
  EXPECT_EQ(refused(4, little(0x03000000, 4)),
            "bad.gguf: unsupported GGUF version 50331648; a big-endian file?");
  EXPECT_NE(refused(8, little(1ULL << 60U, 8)), "accepted");
  EXPECT_NE(refused(16, little(1ULL << 60U, 8)), "accepted");
  EXPECT_EQ(refused(24, little(1ULL << 63U, 8)),
            "bad.gguf: metadata entry 0: a text of 9223372036854775808 bytes, more than 65535");
  EXPECT_EQ(refused(39, little(77, 4)), "bad.gguf: metadata \"a.count\": unknown value type 77");
  EXPECT_NE(refused(39, little(8, 4)).find("metadata \"a.count\""), std::string::npos);
}

TEST(Gguf, LiesAboutTensorsAreNamed) {
  const std::string whole = small_file();
  const std::size_t one = whole.find("one");
  // After the name: dimensions (4), extents (8 each), type (4), offset (8).
  const auto at = [&](std::size_t from_name_end) { return one + 3 + from_name_end; };
  EXPECT_EQ(refused(at(0), little(9, 4)),
            "bad.gguf: tensor \"one\": 9 dimensions; GGUF has 1 to 4");
  EXPECT_EQ(refused(at(4), little(33, 8)),
            "bad.gguf: tensor \"one\": rows of 33 values do not fill blocks of 32 (Q8_0)");
  EXPECT_NE(refused(at(4), little(1ULL << 63U, 8)).find("exceeds 2^63"), std::string::npos);
  EXPECT_EQ(refused(at(20), little(11, 4)),
            "bad.gguf: tensor \"one\": unsupported tensor type Q3_K; supported: F32, F16, BF16, "
            "Q8_0, Q4_0, Q4_K, Q6_K, MXFP4");
  EXPECT_EQ(refused(at(20), little(4711, 4)), "bad.gguf: tensor \"one\": unknown tensor type 4711");
  EXPECT_NE(refused(at(24), little(8, 8)).find("no multiple of 32"), std::string::npos);
  EXPECT_NE(refused(at(24), little(0xffffffffffffffe0ULL, 8)).find("the file has"),
            std::string::npos);
  EXPECT_EQ(refused(whole.find("two") + 3 + 16, little(64, 8)),
            "bad.gguf: tensor \"two\": its bytes overlap tensor \"one\"");
  std::string twice = whole;
  twice.replace(twice.find("two"), 3, "one");
  write_plain("twice.gguf", twice);
  EXPECT_EQ(error_of([] { (void)Gguf::open("twice.gguf"); }),
            "twice.gguf: tensor \"one\": is given twice");
}

TEST(Gguf, PartsThatAreMissingOrOfOthersAreNamed) {
  namespace fs = std::filesystem;
  const auto copy = [](int from, const std::string& to) {
    fs::copy_file(fixture() / fmt::format("parts-0000{}-of-00003.gguf", from), to,
                  fs::copy_options::overwrite_existing);
  };
  const auto opened = [](const char* name) { return error_of([&] { (void)Gguf::open(name); }); };
  copy(1, "m-00001-of-00003.gguf");
  copy(2, "m-00002-of-00003.gguf");
  fs::remove("m-00003-of-00003.gguf");
  EXPECT_NE(opened("m-00001-of-00003.gguf").find("m-00003-of-00003.gguf"), std::string::npos)
      << opened("m-00001-of-00003.gguf");
  EXPECT_EQ(opened("m-00002-of-00003.gguf"),
            "m-00002-of-00003.gguf: is part 2 of 3; name the first, m-00001-of-00003.gguf");
  copy(2, "m-00003-of-00003.gguf");
  EXPECT_NE(opened("m-00001-of-00003.gguf").find("\"t.2\": is given twice"), std::string::npos)
      << opened("m-00001-of-00003.gguf");
  copy(1, "m-00003-of-00003.gguf");
  EXPECT_NE(opened("m-00001-of-00003.gguf").find("is given twice"), std::string::npos);
  copy(3, "m-00003-of-00003.gguf");
  copy(1, "renamed.gguf");
  EXPECT_EQ(opened("renamed.gguf"),
            "renamed.gguf: is part 1 of 3, and is not named so; parts are named "
            "NAME-00001-of-00003.gguf");
  EXPECT_EQ(opened("m-00001-of-00003.gguf"), "accepted");
  GgufWriter w;  // in the place of the second part
  w.write("m-00002-of-00003.gguf", [](std::size_t, const GgufWriter::Sink&) {});
  EXPECT_EQ(opened("m-00001-of-00003.gguf"),
            "m-00002-of-00003.gguf: metadata \"split.no\": expected a whole number, not below 0");
}

TEST(Gguf, AMissingOrMistypedKeyIsNamed) {
  (void)small_file();
  const Gguf file = Gguf::open("small.gguf");
  EXPECT_EQ(error_of([&] { (void)file.count("b"); }), "small.gguf: metadata \"b\": missing");
  EXPECT_EQ(error_of([&] { (void)file.text("a.count"); }),
            "small.gguf: metadata \"a.count\": expected a text");
  EXPECT_EQ(error_of([&] { (void)read_gguf_config(file); }),
            "small.gguf: metadata \"general.architecture\": missing");
}

TEST(Gguf, AnotherArchitectureIsRefusedByName) {
  GgufWriter w;
  w.text("general.architecture", "gemma3");
  w.write("gemma.gguf", [](std::size_t, const GgufWriter::Sink&) {});
  EXPECT_EQ(error_of([] { (void)read_model_config("gemma.gguf"); }),
            "gemma.gguf: metadata \"general.architecture\": unsupported \"gemma3\"; supported: "
            "llama, qwen2moe, qwen3moe, olmoe, deepseek2, gpt-oss");
}

TEST(Gguf, OtherTokenizersAreRefusedByName) {
  const auto refused_tokenizer = [](const char* kind, const char* pre) {
    GgufWriter w;
    if (kind != nullptr) {
      w.text("tokenizer.ggml.model", kind);
    }
    if (pre != nullptr) {
      w.text("tokenizer.ggml.pre", pre);
    }
    w.texts("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
    w.texts("tokenizer.ggml.merges", {});
    w.write("tok.gguf", [](std::size_t, const GgufWriter::Sink&) {});
    return error_of([] { (void)load_tokenizer("tok.gguf"); });
  };
  EXPECT_NE(refused_tokenizer(nullptr, nullptr).find("holds no tokenizer"), std::string::npos);
  EXPECT_NE(refused_tokenizer("t5", nullptr).find("unsupported tokenizer \"t5\""),
            std::string::npos);
  EXPECT_NE(refused_tokenizer("gpt2", "starcoder")
                .find("unsupported pre-tokenizer \"starcoder\"; supported: gpt-2, olmo, qwen2"),
            std::string::npos);
}

TEST(Gguf, SentencePieceScoresBecomeMerges) {
  // abc can be cut as ab|c or a|bc; both pieces exist, and bc scores higher than ab.
  std::vector<std::string> tokens{"<unk>", "<s>"};
  std::vector<std::int32_t> types{2, 3};
  std::vector<double> scores{0, 0};
  for (int byte = 0; byte < 256; ++byte) {  // ids 2 + byte
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
    scores.push_back(0);
  }
  const std::string space = "\xE2\x96\x81";
  std::map<std::string, std::uint32_t> id;
  for (const auto& [token, score] : {std::pair{space, -9.0},
                                     std::pair<std::string, double>{"a", -9},
                                     {"b", -9},
                                     {"c", -9},
                                     {"ab", -3},
                                     {"bc", -2},
                                     {"abc", -4},
                                     {space + space, -5}}) {
    id[token] = static_cast<std::uint32_t>(tokens.size());
    tokens.push_back(token);
    types.push_back(1);
    scores.push_back(score);
  }
  GgufWriter w;
  w.text("tokenizer.ggml.model", "llama");
  w.texts("tokenizer.ggml.tokens", tokens);
  w.integers("tokenizer.ggml.token_type", types);
  w.numbers("tokenizer.ggml.scores", scores);
  w.u32("tokenizer.ggml.bos_token_id", 1);
  w.write("pieces.gguf", [](std::size_t, const GgufWriter::Sink&) {});
  const auto t = load_tokenizer("pieces.gguf");
  using Ids = std::vector<std::uint32_t>;
  EXPECT_EQ(t.encode("abc"), (Ids{id[space], id["abc"]}));  // bc first, then a + bc
  EXPECT_EQ(t.encode("ab c"), (Ids{id[space], id["ab"], id[space], id["c"]}));
  EXPECT_EQ(t.encode("  a!"), (Ids{id[space + space], id[space], id["a"], 2 + '!'}));
  EXPECT_EQ(t.encode("abc", true, true), (Ids{1, id[space], id["abc"]}));
  EXPECT_EQ(t.decode(t.encode("ab c!")), "ab c!");
}

}  // namespace
}  // namespace switchyard::model
