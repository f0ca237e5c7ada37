// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kHidden = 8, kInner = 12, kExperts = 4, kVocabulary = 10;

json tiny_config() {
  return {
      {"model_type", "mixtral"},       {"vocab_size", kVocabulary},     {"hidden_size", kHidden},
      {"intermediate_size", kInner},   {"num_hidden_layers", 1},        {"num_attention_heads", 2},
      {"num_key_value_heads", 1},      {"num_local_experts", kExperts}, {"num_experts_per_tok", 2},
      {"max_position_embeddings", 64}, {"tie_word_embeddings", true},   {"torch_dtype", "float32"}};
}

using Shapes = std::vector<std::pair<std::string, std::vector<std::uint64_t>>>;

Shapes tiny_shapes() {
  Shapes s = {{"model.embed_tokens.weight", {kVocabulary, kHidden}},
              {"model.norm.weight", {kHidden}}};
  for (std::uint64_t e = 0; e < kExperts; ++e) {
    const auto base = fmt::format("model.layers.0.block_sparse_moe.experts.{}.", e);
    s.push_back({base + "w1.weight", {kInner, kHidden}});
    s.push_back({base + "w2.weight", {kHidden, kInner}});
    s.push_back({base + "w3.weight", {kInner, kHidden}});
  }
  return s;
}

TensorData tensor(const std::string& name, const std::vector<std::uint64_t>& shape,
                  float seed = 1) {
  std::uint64_t n = 1;
  for (const auto d : shape) {
    n *= d;
  }
  std::vector<float> v(n);
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = seed + static_cast<float>(i);
  }
  return TensorData::from_floats(name, DType::kF32, shape, v);
}

fs::path write_tiny(const std::string& folder, const std::vector<TensorData>& tensors,
                    const json& config = tiny_config()) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  write_file(fs::path(folder) / "config.json", config.dump());
  write_safetensors(fs::path(folder) / "model.safetensors", tensors);
  return folder;
}

std::vector<TensorData> tiny_tensors() {
  std::vector<TensorData> out;
  for (const auto& [name, shape] : tiny_shapes()) {
    out.push_back(tensor(name, shape));
  }
  return out;
}

/// Takes all tensors as an engine would.
void take_all(Checkpoint& c) {
  for (const auto& [name, shape] : tiny_shapes()) {
    c.take(name, shape);
  }
  c.finish();
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Checkpoint, EveryTensorIsUsedOnce) {
  auto c = Checkpoint::open(write_tiny("good", tiny_tensors()));
  EXPECT_EQ(c.config().name, "good");
  take_all(c);
  EXPECT_TRUE(c.ignored().empty());
  EXPECT_EQ(error_of([&] { c.take("model.norm.weight", {kHidden}); }),
            "good/model.safetensors: tensor \"model.norm.weight\" is used twice");
}

TEST(Checkpoint, AMissingExpertIsNamed) {
  auto tensors = tiny_tensors();
  tensors.erase(tensors.begin() + 2 + 3 * 2);  // w1 of expert 2
  auto c = Checkpoint::open(write_tiny("missing", tensors));
  EXPECT_EQ(error_of([&] { take_all(c); })
                .rfind("missing: tensor \"model.layers.0.block_sparse_moe.experts.2.w1.weight\" is "
                       "missing",
                       0),
            0U);
}

TEST(Checkpoint, AnUnknownExtraTensorIsNamed) {
  auto tensors = tiny_tensors();
  tensors.push_back(tensor("model.layers.0.block_sparse_moe.experts.4.w1.weight", {2}));
  tensors.push_back(tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight.weight", {2}));
  auto c = Checkpoint::open(write_tiny("extra", tensors));
  EXPECT_EQ(error_of([&] { take_all(c); }),
            "extra/model.safetensors: 2 tensors the config has no place for: "
            "\"model.layers.0.block_sparse_moe.experts.0.w1.weight.weight\", "
            "\"model.layers.0.block_sparse_moe.experts.4.w1.weight\"; config.json belongs to "
            "another checkpoint, or the layout is unsupported");
}

TEST(Checkpoint, AWrongShapeOrDtypeIsNamed) {
  auto tensors = tiny_tensors();
  tensors[1] = tensor("model.norm.weight", {kHidden + 1});
  auto c = Checkpoint::open(write_tiny("shape", tensors));
  EXPECT_EQ(error_of([&] { take_all(c); }),
            "shape/model.safetensors: tensor \"model.norm.weight\" has shape [9], the config asks "
            "for [8]");
  // The same bytes count in another order is another shape.
  tensors[1] = tensor("model.norm.weight", {2, 4});
  auto d = Checkpoint::open(write_tiny("shape", tensors));
  EXPECT_NE(error_of([&] { take_all(d); }), "accepted");
  tensors[1] = TensorData{"model.norm.weight", DType::kU8, {kHidden}, std::vector<std::byte>(8)};
  auto e = Checkpoint::open(write_tiny("shape", tensors));
  EXPECT_EQ(error_of([&] { take_all(e); }),
            "shape/model.safetensors: tensor \"model.norm.weight\": unsupported weight dtype U8; "
            "supported: F32, F16, BF16");
}

TEST(Checkpoint, TiedHeadMayBeStoredIfEqual) {
  auto tensors = tiny_tensors();
  tensors.push_back(tensor("lm_head.weight", {kVocabulary, kHidden}));
  auto c = Checkpoint::open(write_tiny("tied", tensors));
  take_all(c);
  ASSERT_EQ(c.ignored().size(), 1U);
  tensors.back() = tensor("lm_head.weight", {kVocabulary, kHidden}, 2);
  auto d = Checkpoint::open(write_tiny("tied", tensors));
  EXPECT_EQ(error_of([&] { take_all(d); }),
            "tied/model.safetensors: tensor \"lm_head.weight\" differs from the embedding although "
            "the config ties them; set tie_word_embeddings to false");
}

TEST(Checkpoint, IgnoreRulesAreListed) {
  auto tensors = tiny_tensors();
  tensors.push_back(tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {2}));
  tensors.push_back(tensor("vision.a", {2}));
  tensors.push_back(tensor("vision.b", {2}));
  auto c = Checkpoint::open(write_tiny("rules", tensors));
  EXPECT_EQ(c.ignore_prefix("vision.", "not modelled"), 2U);
  take_all(c);
  EXPECT_EQ(c.ignored(),
            (std::vector<std::string>{"vision.: not modelled (2 tensors)",
                                      "*.rotary_emb.inv_freq: computed from the config (1 "
                                      "tensors)"}));
}

TEST(Checkpoint, HashFollowsContentNotLayout) {
  auto tensors = tiny_tensors();
  const auto a = Checkpoint::open(write_tiny("hash", tensors));
  const auto whole = a.weight_hash();
  std::reverse(tensors.begin(), tensors.end());
  const auto b = Checkpoint::open(write_tiny("hash_reversed", tensors));
  EXPECT_EQ(b.weight_hash(), whole);
  EXPECT_EQ(b.config_hash(), a.config_hash());
  // Two shards.
  fs::remove_all("hash_shards");
  fs::create_directories("hash_shards");
  json map;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    map[tensors[i].name] = i < 5 ? "x.safetensors" : "y.safetensors";
  }
  write_file("hash_shards/config.json", tiny_config().dump());
  write_safetensors("hash_shards/x.safetensors", std::span(tensors).subspan(0, 5));
  write_safetensors("hash_shards/y.safetensors", std::span(tensors).subspan(5));
  write_file("hash_shards/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  EXPECT_EQ(Checkpoint::open("hash_shards").weight_hash(), whole);
  // One bit, one name, one shape, each changes it.
  auto bit = tensors;
  bit[0].bytes[0] ^= std::byte{1};
  EXPECT_NE(Checkpoint::open(write_tiny("hash2", bit)).weight_hash(), whole);
  auto name = tensors;
  name[0].name += "x";
  EXPECT_NE(Checkpoint::open(write_tiny("hash2", name)).weight_hash(), whole);
  auto shape = tensors;
  std::swap(shape[0].shape[0], shape[0].shape[1]);
  EXPECT_NE(Checkpoint::open(write_tiny("hash2", shape)).weight_hash(), whole);
}

TEST(Checkpoint, MissingPartsAreNamed) {
  EXPECT_EQ(error_of([] { Checkpoint::open("nowhere"); }),
            "nowhere: no such checkpoint folder; a checkpoint is a folder with config.json and "
            "model.safetensors, or a .gguf file");
  fs::remove_all("empty");
  fs::create_directories("empty");
  EXPECT_EQ(error_of([] { Checkpoint::open("empty"); }).rfind("empty/config.json", 0), 0U);
  write_file("empty/config.json", tiny_config().dump());
  EXPECT_EQ(error_of([] { Checkpoint::open("empty"); }),
            "empty: no weights: neither model.safetensors nor model.safetensors.index.json");
}

TEST(Checkpoint, FixtureOfTransformersOpens) {
  const fs::path fixture =
      fs::path(SWITCHYARD_SOURCE_DIR) / "tests" / "fixtures" / "mixtral_tiny" / "f32";
  const auto c = Checkpoint::open(fixture);
  EXPECT_EQ(c.config().family, Family::kMixtral);
  std::uint64_t values = 0;
  for (const auto& [name, view] : c.tensors()) {
    values += view.count();
  }
  EXPECT_EQ(values, count_parameters(c.config()).total());
}

}  // namespace
}  // namespace switchyard::model
