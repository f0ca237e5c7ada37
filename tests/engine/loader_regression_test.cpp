// SPDX-License-Identifier: Apache-2.0
// Public bug reports about loaders as tests (engines.md, section 5, by row; the reports in
// brackets).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
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

/// Logits of the fixtures' longest sequence.
std::vector<float> logits_of(const fs::path& model) {
  const auto expected = model::Safetensors::open(fixture("bf16") / "expected.safetensors");
  const auto ids = testing_support::ids_of(expected, "seq2.ids");
  const Engine engine = Engine::load(model, {});
  Session session(engine, {.policy = {}, .all_logits = true});
  const SequenceTokens work{session.add_sequence(), ids};
  return session.step({&work, 1}, Phase::kPrefill).logits;
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
  EXPECT_EQ(logits_of(folder), logits_of(fixture("f32")));
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
    const auto held = engine.weights().layers[l].gate_bias();
    EXPECT_EQ(std::vector<float>(held.begin(), held.end()), stored);
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

/// An engine of a published model's shape, without its weights: what follows from config.json.
Engine shape_of(const std::string& preset) {
  model::ModelConfig config = model::read_model_config(fs::path(SWITCHYARD_SOURCE_DIR) /
                                                       "scenarios/models" / (preset + ".json"));
  ModelWeights none;
  none.layers.resize(config.num_layers);
  return {std::move(config), none, make_cpu_backend(1)};
}

TEST(LoaderRow18, ThePublishedModelsHaveTheScalesOfEnginesMd) {
  EXPECT_NEAR(shape_of("deepseek_v3").attention_rule(0).scale, 0.13523378, 1e-8);
  const float lite = shape_of("deepseek_v2_lite").attention_rule(0).scale;
  EXPECT_NEAR(lite, 0.11472139, 1e-8);
  EXPECT_NEAR(lite * std::sqrt(192.0), 1.58962617, 2e-7);  // mscale squared
  EXPECT_EQ(shape_of("deepseek_v3").attention_rule(0).rotation_gain, 1.0F);
  EXPECT_NEAR(shape_of("gpt_oss_20b").attention_rule(0).rotation_gain, 1.34657359, 1e-7);
}

/// Where YaRN's ramp begins and ends, from two frequencies inside it.
std::pair<double, double> ramp_of(const Engine& engine, std::size_t inside) {
  const auto f = engine.attention_rule(0).inverse_frequency;
  const double factor = engine.config().rope_scaling.factor;
  const auto ramp = [&](std::size_t i) {
    const double plain = std::pow(engine.config().rope_theta,
                                  -static_cast<double>(i) / static_cast<double>(f.size()));
    return (1 - f[i] / plain) / (1 - 1 / factor);
  };
  const double slope = ramp(inside + 1) - ramp(inside);
  const double low = static_cast<double>(inside) - ramp(inside) / slope;
  EXPECT_NEAR(ramp(static_cast<std::size_t>(low)), 0, 1e-6);
  EXPECT_NEAR(ramp(static_cast<std::size_t>(low + 1 / slope) + 1), 1, 1e-6);
  return {low, low + 1 / slope};
}

TEST(LoaderRow18, YarnsRampEndsWhereEnginesMdSays) {
  const auto [low, high] = ramp_of(shape_of("deepseek_v3"), 15);  // rounded outward
  EXPECT_NEAR(low, 10, 1e-4);
  EXPECT_NEAR(high, 23, 1e-4);
  const auto [begin, end] = ramp_of(shape_of("gpt_oss_20b"), 12);  // not rounded
  EXPECT_NEAR(begin, 8.0928, 1e-4);
  EXPECT_NEAR(end, 17.3980, 1e-4);
}

// Row 10 (vllm#14027, sglang#33764): logits that differ in float32 are equal in a BF16 router.
TEST(LoaderRow10, ARouterInBf16TiesWhatFloat32TellsApart) {
  const std::string gate = "model.layers.0.block_sparse_moe.gate.weight";
  const auto folder = changed_checkpoint("f32", "row10", [&](Tensors& t) {
    auto& w = t.at(gate);
    const std::size_t h = w.shape[1];
    std::copy_n(w.bytes.begin() + static_cast<std::ptrdiff_t>(3 * h * 4), h * 4,
                w.bytes.begin() + static_cast<std::ptrdiff_t>(5 * h * 4));
    float v = 0;
    std::memcpy(&v, w.bytes.data() + 5 * h * 4, sizeof v);
    testing_support::set_value(w, 5 * h, v * (1 + 1e-4F));
  });
  const auto logits_at = [&](const EngineOptions& options, const fs::path& where) {
    const Engine engine = Engine::load(where, options);
    Session session(engine, {});
    const std::vector<std::uint32_t> ids{3, 57, 12, 5, 50, 41, 8, 60};
    const SequenceTokens work{session.add_sequence(), ids};
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    const auto& ids0 = r.layers[0].candidates.ids;
    std::size_t later_first = 0;  // rows that put expert 5 before expert 3
    for (std::size_t t = 0; t < 8; ++t) {
      const auto row = std::span(ids0).subspan(t * 8, 8);
      later_first += std::find(row.begin(), row.end(), 5) < std::find(row.begin(), row.end(), 3);
    }
    return std::pair(r.router_logits, later_first);
  };
  const auto [fine, fine_later] = logits_at({}, folder);
  const auto [coarse, coarse_later] = logits_at({.router_bf16 = true}, folder);
  EXPECT_GT(fine_later, 0U);
  EXPECT_EQ(coarse_later, 0U);
  for (std::size_t t = 0; t < 8; ++t) {
    EXPECT_NE(fine[t * 8 + 3], fine[t * 8 + 5]);
    EXPECT_EQ(coarse[t * 8 + 3], coarse[t * 8 + 5]);
  }
  for (std::size_t i = 0; i < 64; ++i) {  // layer 0: its input is the same
    EXPECT_EQ(coarse[i], model::bf16_to_float(model::float_to_bf16(coarse[i])));
    EXPECT_NEAR(coarse[i], fine[i], 0.03 * (1 + std::abs(fine[i])));
  }
  // The checkpoint may ask for it, and the caller may overrule that.
  std::string config = read_file(folder / "config.json");
  config.insert(config.find('{') + 1, "\"router_dtype\": \"bfloat16\", ");
  write_plain(folder / "config.json", config);
  EXPECT_EQ(logits_at({}, folder).first, coarse);
  EXPECT_EQ(logits_at({.router_bf16 = false}, folder).first, fine);
  config.replace(config.find("bfloat16"), 8, "float16");
  write_plain(folder / "config.json", config);
  expect_contains(load_error(folder), "/router_dtype: unsupported \"float16\"");
}

// FP16 safetensors: BF16 values of moderate size are exact in FP16, so the oracle is the same.
TEST(Loader, AnFp16CheckpointAgreesWithTheOracle) {
  const auto folder = changed_checkpoint("bf16", "fp16", [](Tensors& tensors) {
    for (auto& [name, t] : tensors) {
      const model::TensorView view{name, t.dtype, t.shape, t.bytes};
      const std::vector<float> values = view.to_float();
      t.dtype = model::DType::kF16;
      t.bytes.resize(values.size() * 2);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t half = model::float_to_f16(values[i]);
        std::memcpy(t.bytes.data() + 2 * i, &half, 2);
      }
    }
  });
  EXPECT_EQ(model::Checkpoint::open(folder).tensors().begin()->second.dtype, model::DType::kF16);
  const auto expected = model::Safetensors::open(fixture("bf16") / "expected.safetensors");
  const auto oracle = testing_support::floats_of(expected, "seq2.logits");
  const auto got = logits_of(folder);
  ASSERT_EQ(got.size(), oracle.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], oracle[i], 1e-4) << i;
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
  const std::size_t step = std::size_t{2} << 20U;
  const std::size_t skipped =
      (step - (reinterpret_cast<std::uintptr_t>(bytes.data()) + 12345) % step) % step;
  const double share = model::share_in_huge_pages(bytes.subspan(12345 + skipped, moved));
  EXPECT_GE(share, 0);  // 1 unless memory was too scattered
  EXPECT_LE(share, 1);
  EXPECT_EQ(model::share_in_huge_pages({}), 0);
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
