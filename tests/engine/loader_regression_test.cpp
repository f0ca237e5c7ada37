// SPDX-License-Identifier: Apache-2.0
// Public bug reports about loaders as tests (engines.md, section 5, by row; the reports in
// brackets).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/model/gguf.hpp"
#include "engine/model/mapping.hpp"
#include "engine/nn/session.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing_support::changed_checkpoint;
using testing_support::expect_contains;
using testing_support::family;
using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::Tensors;

void write_plain(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string load_error(const fs::path& model) {
  try {
    (void)Engine::load(model, {});
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

const std::string kExpert = "model.layers.1.block_sparse_moe.experts.3.";

// Row 20 (kekzl/imp#1190, #1192): experts silently skipped.
TEST(LoaderRow20, AFileThatLacksOneExpertIsRefused) {
  const auto folder = changed_checkpoint("f32", "row20_missing",
                                         [](Tensors& t) { t.erase(kExpert + "w2.weight"); });
  expect_contains(load_error(folder), '"' + kExpert + "w2.weight\" is missing");
}

// Row 20 (1Cat-vLLM#21): fused tensors ignored where the experts are there one by one as well.
TEST(LoaderRow20, FusedAndSingleExpertsAtOnceAreRefused) {
  const auto folder = changed_checkpoint("f32", "row20_both", [](Tensors& t) {
    const auto& c = t.at(kExpert + "w1.weight");
    const std::uint64_t inner = c.shape[0];
    const std::uint64_t hidden = c.shape[1];
    for (const auto& [name, shape] :
         {std::pair<std::string, std::vector<std::uint64_t>>{"gate_up_proj",
                                                             {8, 2 * inner, hidden}},
          std::pair<std::string, std::vector<std::uint64_t>>{"down_proj", {8, hidden, inner}}}) {
      const std::vector<float> zeros(shape[0] * shape[1] * shape[2]);
      const std::string key = "model.layers.1.mlp.experts." + name;
      t[key] = model::TensorData::from_floats(key, model::DType::kF32, shape, zeros);
    }
    // The fused layout keeps its router under mlp too.
    t["model.layers.1.mlp.gate.weight"] = t.at("model.layers.1.block_sparse_moe.gate.weight");
  });
  expect_contains(load_error(folder), "the config has no place for");
  expect_contains(load_error(folder), "model.layers.1.block_sparse_moe.experts.0.w1.weight");
}

// Row 20 (vllm#57473): a doubled ".weight".
TEST(LoaderRow20, ADoubledSuffixIsAnotherTensor) {
  const auto folder = changed_checkpoint("f32", "row20_suffix", [](Tensors& t) {
    auto node = t.extract(kExpert + "w1.weight");
    node.key() = kExpert + "w1.weight.weight";
    t.insert(std::move(node));
  });
  expect_contains(load_error(folder), '"' + kExpert + "w1.weight\" is missing");
}

// Row 20: a wrong shape with the right number of bytes.
TEST(LoaderRow20, ATransposedMatrixIsRefused) {
  const auto folder = changed_checkpoint("f32", "row20_shape", [](Tensors& t) {
    auto& w = t.at(kExpert + "w1.weight");
    std::swap(w.shape[0], w.shape[1]);
  });
  expect_contains(load_error(folder), "has shape [32, 36], the config asks for [36, 32]");
}

// Row 20 (vllm#40888, #45818): state that leaks from shard to shard.
TEST(LoaderRow20, ATensorThatLiesInTwoShardsIsRefused) {
  const auto folder = fresh_folder("row20_shards");
  write_plain(folder / "config.json", read_file(fixture("f32") / "config.json"));
  const auto weights = model::Safetensors::open(fixture("f32") / "model.safetensors");
  std::vector<model::TensorData> first;
  std::vector<model::TensorData> second;
  std::string map;
  for (const auto& [name, view] : weights.tensors()) {
    const bool early = first.size() <= second.size();
    (early ? first : second)
        .push_back({name, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
    map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name,
                       early ? "a.safetensors" : "b.safetensors");
  }
  write_plain(folder / "model.safetensors.index.json",
              fmt::format("{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}", map));
  write_plain(folder / "a.safetensors", model::safetensors_bytes(first));
  write_plain(folder / "b.safetensors", model::safetensors_bytes(second));
  EXPECT_EQ(load_error(folder), "accepted");
  second.push_back(first.front());
  write_plain(folder / "b.safetensors", model::safetensors_bytes(second));
  expect_contains(load_error(folder),
                  fmt::format("tensor \"{}\": the index places it in a.safe", first.front().name));
  second.pop_back();
  const std::string lost = second.back().name;
  second.pop_back();
  write_plain(folder / "b.safetensors", model::safetensors_bytes(second));
  expect_contains(load_error(folder),
                  fmt::format("tensor \"{}\" is missing from b.safetensors", lost));
}

// Row 10 (transformers#42580): the correction bias cast to the model's BF16.
TEST(LoaderRow10, TheCorrectionBiasKeepsItsFloat32Bits) {
  const Engine engine = Engine::load(family("deepseek_v3"), {});
  const auto weights = model::Safetensors::open(family("deepseek_v3") / "model.safetensors");
  std::size_t finer_than_bf16 = 0;
  for (std::size_t l = 1; l < engine.config().num_layers; ++l) {
    const auto stored =
        weights.find(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", l))
            ->to_float();
    EXPECT_EQ(engine.weights().layers[l].selection_bias, stored);
    for (const float v : stored) {
      finer_than_bf16 += model::bf16_to_float(model::float_to_bf16(v)) != v ? 1U : 0U;
    }
  }
  EXPECT_GT(finer_than_bf16, 0U);
}

// Row 18 (transformers#47435, mobius#548): DeepSeek's attention scale without mscale squared.
TEST(LoaderRow18, DeepSeekScalesScoresByTheSquareOfItsTemperature) {
  // 0.1 * mscale_all_dim * ln(factor) + 1 with the fixtures' values; heads of 6 + 8 entries.
  for (const auto& [name, all] : {std::pair{"deepseek_v3", 1.0}, std::pair{"deepseek_v2", 0.707}}) {
    const Engine engine = Engine::load(family(name), {});
    const double m = 0.1 * all * std::log(4.0) + 1;
    EXPECT_FLOAT_EQ(engine.attention_rule(0).scale, static_cast<float>(m * m / std::sqrt(14.0)))
        << name;
  }
}

/// A file of `size` bytes that takes no room on disk but for its ends.
void write_sparse(const fs::path& path, const std::string& head, std::uint64_t size,
                  const std::string& tail) {
  write_plain(path, head);
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
  ASSERT_EQ(::pwrite(fd, tail.data(), tail.size(), static_cast<off_t>(size - tail.size())),
            static_cast<ssize_t>(tail.size()));
  ::close(fd);
}

constexpr std::uint64_t kBeyond32Bits = (1ULL << 32U) + 4096;

// Row 12 (sglang#4727, vllm#19770 and others): offsets cut to 32 bits. The files are sparse.
TEST(LoaderRow12, ASafetensorsTensorBeyondFourGibibytesIsFound) {
  const std::string header =
      fmt::format(R"({{"big": {{"dtype": "U8", "shape": [{0}], "data_offsets": [0, {0}]}}, )"
                  R"("x": {{"dtype": "F32", "shape": [2], "data_offsets": [{0}, {1}]}}}})",
                  kBeyond32Bits, kBeyond32Bits + 8);
  std::string head(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(head.data(), &length, 8);
  head += header;
  const std::array<float, 2> x{1.5F, -2.5F};
  write_sparse("beyond.safetensors", head, head.size() + kBeyond32Bits + 8,
               {reinterpret_cast<const char*>(x.data()), sizeof x});
  EXPECT_EQ(model::Safetensors::open("beyond.safetensors").find("x")->to_float(),
            (std::vector<float>{1.5F, -2.5F}));
  fs::remove("beyond.safetensors");
}

TEST(LoaderRow12, RowsBeyondFourGibibytesAreWidenedFromTheRightPlace) {
  // The last row of a matrix whose index or byte offset does not fit 32 bits; only it is written.
  struct Case {
    WeightType type;
    std::size_t row_bytes;  // of 256 values
    std::string row;
    float first;
  };
  const std::string half_one("\x00\x3c", 2);  // 1.0 as FP16
  std::string q8;
  std::string q4;
  for (int b = 0; b < 8; ++b) {
    q8 += half_one + std::string(32, '\x03');
    q4 += half_one + std::string(16, '\x99');
  }
  const std::string q4k = half_one + half_one + std::string(8, '\x01') + std::string(4, '\x11') +
                          std::string(128, '\x55');
  // Scales of 1, halves of 0x3 and 0x1: (0x13 = 19) - 32.
  const std::string q6k =
      std::string(128, '\x33') + std::string(64, '\x55') + std::string(16, '\x01') + half_one;
  std::string mx4;
  for (int b = 0; b < 8; ++b) {
    mx4 += '\x80' + std::string(16, '\x55');  // 2^(128 - 127) * 3
  }
  std::string bf16;
  for (int i = 0; i < 256; ++i) {
    bf16 += std::string("\x40\x40", 2);
  }
  for (const Case& c : {Case{WeightType::kQ8, 272, q8, 3}, Case{WeightType::kQ4, 144, q4, 1},
                        Case{WeightType::kQ4K, 144, q4k, 4}, Case{WeightType::kQ6K, 210, q6k, -13},
                        Case{WeightType::kMx4, 136, mx4, 6}, Case{WeightType::kBf16, 512, bf16, 3},
                        Case{WeightType::kFp8, 256, std::string(256, '\x40'), 2}}) {
    ASSERT_EQ(c.row.size(), c.row_bytes);
    const std::size_t rows = kBeyond32Bits / c.row_bytes + 2;
    write_sparse("beyond.bin", "", rows * c.row_bytes, c.row);
    const model::Mapping file("beyond.bin");
    WeightView w{file.bytes().data(), c.type, rows, 256};
    std::vector<float> scales;
    if (c.type == WeightType::kFp8) {
      scales.assign((rows + 127) / 128 * 2, 1.0F);
      w.scales = scales.data();
    }
    std::vector<float> row(256);
    widen_rows(w, rows - 1, rows, row.data());
    EXPECT_EQ(row.front(), c.first);
    EXPECT_EQ(row, std::vector<float>(256, c.first));
    widen_rows(w, rows - 2, rows - 1, row.data());
    EXPECT_NE(row.front(), c.first);
  }
  fs::remove("beyond.bin");
}

TEST(Loader, HugePagesHoldTheBytesOfTheFileAtTheSameAddresses) {
  std::string content(std::size_t{11} << 20U, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * 2654435761U >> 13U);
  }
  write_plain("pages.bin", content);
  const model::Mapping file("pages.bin");
  const auto bytes = file.bytes();
  const std::size_t moved = model::into_huge_pages(bytes.subspan(12345, content.size() - 20000));
  EXPECT_EQ(moved % (std::size_t{2} << 20U), 0U);
  EXPECT_GE(moved, std::size_t{6} << 20U);  // at most the two blocks at the ends are not whole
  EXPECT_EQ(model::into_huge_pages(bytes.first(std::size_t{1} << 20U)), 0U);
  // What was moved no longer depends on the file.
  write_plain("other.bin", std::string(content.size(), 'x'));
  fs::copy_file("other.bin", "pages.bin", fs::copy_options::overwrite_existing);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < content.size(); i += 4096) {
    kept += bytes[i] == static_cast<std::byte>(content[i]) ? 1U : 0U;
  }
  EXPECT_GE(kept * 4096, moved);
  fs::remove("other.bin");
  fs::remove("pages.bin");
}

// DeepSeek-MoE 16B (model_type "deepseek") can be accounted and simulated, not run.
TEST(Loader, DeepSeekOfTheFirstGenerationIsRefusedByName) {
  const auto folder = fresh_folder("deepseek_v1");
  write_plain(folder / "config.json",
              R"({"model_type": "deepseek", "vocab_size": 64, "hidden_size": 32,
                  "num_hidden_layers": 2, "num_attention_heads": 4, "moe_intermediate_size": 12,
                  "n_routed_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40,
                  "n_shared_experts": 2, "first_k_dense_replace": 1})");
  const std::vector<float> zeros(64 * 32);
  const std::vector<model::TensorData> one{model::TensorData::from_floats(
      "model.embed_tokens.weight", model::DType::kF32, {64, 32}, zeros)};
  write_plain(folder / "model.safetensors", model::safetensors_bytes(one));
  EXPECT_EQ(model::read_model_config(folder).num_experts, 8U);
  expect_contains(load_error(folder), "unsupported by the engine: model_type \"deepseek\"");
}

}  // namespace
}  // namespace switchyard
