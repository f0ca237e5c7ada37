// SPDX-License-Identifier: Apache-2.0
#include "engine/model/model_config.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/accounting.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path preset(const std::string& name) { return find_model(name, SWITCHYARD_SOURCE_DIR); }

json mixtral() { return json::parse(read_file(preset("mixtral_8x7b"))); }

ModelConfig parse(const json& j) { return parse_model_config(j.dump(), "config.json", "test"); }

/// The one-line error that `text` gives.
std::string error_of(const std::string& text) {
  try {
    parse_model_config(text, "config.json", "test");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}
std::string error_of(const json& j) { return error_of(j.dump()); }

json with(json j, const std::string& key, const json& value) {
  j[key] = value;
  return j;
}

TEST(ModelConfig, MixtralWithItsDefaults) {
  const auto c = read_model_config(preset("mixtral_8x7b"));
  EXPECT_EQ(c.name, "mixtral_8x7b");
  EXPECT_EQ(c.family, Family::kMixtral);
  EXPECT_EQ(c.head_dim, 128U);
  EXPECT_EQ(c.num_moe_layers(), 32U);
  EXPECT_TRUE(c.gate.renormalize);
  EXPECT_EQ(c.gate.score, GateScore::kSoftmax);
  // Class defaults: the empty config is Mixtral-8x7B with a longer context.
  const auto d = parse(json{{"model_type", "mixtral"}});
  EXPECT_EQ(count_parameters(d).total(), 46'702'792'704U);
  EXPECT_EQ(d.max_position_embeddings, 131072U);
  EXPECT_EQ(d.rope_theta, 1e6);
  ASSERT_FALSE(d.notes.empty());
  EXPECT_NE(d.notes.back().find("vocab_size"), std::string::npos);
}

TEST(ModelConfig, EveryPresetReads) {
  const auto names = model_preset_names(SWITCHYARD_SOURCE_DIR);
  EXPECT_GE(names.size(), 29U);
  for (const auto& name : names) {
    SCOPED_TRACE(name);
    const auto c = read_model_config(preset(name));
    EXPECT_EQ(c.layers.size(), c.num_layers);
    EXPECT_GT(count_parameters(c).total(), 1'000'000'000U);
    if (c.family == Family::kArticle) {
      EXPECT_EQ(c.name, name);
    }
  }
}

TEST(ModelConfig, FamiliesDiffer) {
  const auto qwen2 = read_model_config(preset("qwen1_5_moe_a2_7b"));
  EXPECT_FALSE(qwen2.gate.renormalize);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_TRUE(qwen2.shared_expert_gate);
  EXPECT_EQ(qwen2.layers[0].sliding_window, 0U);  // use_sliding_window is false
  const auto qwen3 = read_model_config(preset("qwen3_30b_a3b"));
  EXPECT_TRUE(qwen3.gate.renormalize);
  EXPECT_TRUE(qwen3.qk_norm_per_head);
  EXPECT_EQ(qwen3.num_heads * qwen3.head_dim, 4096U);
  const auto olmoe = read_model_config(preset("olmoe_1b_7b"));
  EXPECT_TRUE(olmoe.qk_norm_full);
  EXPECT_FALSE(olmoe.clip_qkv.has_value());
  const auto lite = read_model_config(preset("deepseek_v2_lite"));
  EXPECT_EQ(lite.attention, AttentionKind::kMla);
  EXPECT_EQ(lite.q_lora_rank, 0U);
  EXPECT_EQ(lite.gate.group_score, GroupScore::kNone);
  EXPECT_EQ(lite.layers[0].ffn, FfnKind::kDense);
  EXPECT_EQ(lite.moe_layers().front(), 1U);
  EXPECT_EQ(lite.rope_scaling.type, "yarn");
  EXPECT_EQ(lite.rope_scaling.mscale, 0.707);
  const auto v2 = read_model_config(preset("deepseek_v2"));
  EXPECT_EQ(v2.gate.group_score, GroupScore::kMax);
  EXPECT_TRUE(v2.gate.mask_with_zero);
  EXPECT_TRUE(v2.gate.scale_excludes_renorm);
  EXPECT_EQ(v2.gate.scale, 16.0);
  const auto v3 = read_model_config(preset("deepseek_v3"));
  EXPECT_EQ(v3.gate.score, GateScore::kSigmoid);
  EXPECT_EQ(v3.gate.group_score, GroupScore::kSumTop2);
  EXPECT_TRUE(v3.gate.correction_bias);
  EXPECT_FALSE(v3.gate.mask_with_zero);
  EXPECT_EQ(v3.num_nextn_layers, 1U);
  EXPECT_EQ(v3.quantization, "fp8_block");
  EXPECT_EQ(v3.num_moe_layers(), 58U);
  const auto oss = read_model_config(preset("gpt_oss_20b"));
  EXPECT_EQ(oss.gate.score, GateScore::kIdentity);
  EXPECT_TRUE(oss.gate.linear_bias);
  EXPECT_EQ(oss.layers[0].sliding_window, 128U);
  EXPECT_EQ(oss.layers[1].sliding_window, 0U);
  EXPECT_FALSE(oss.rope_scaling.truncate);
  EXPECT_EQ(oss.expert_kind, ExpertKind::kSwiGluClamped);
}

TEST(ModelConfig, EveryEndTokenEndsAText) {
  const auto c = parse(with(mixtral(), "eos_token_id", {7, 9, 7}));
  EXPECT_EQ(c.eos_tokens, (std::vector<std::uint32_t>{7, 9}));
  EXPECT_TRUE(c.ends_text(9));
  EXPECT_FALSE(c.ends_text(8));
  EXPECT_EQ(parse(with(mixtral(), "eos_token_id", 5)).eos_tokens, std::vector<std::uint32_t>{5});
  EXPECT_TRUE(parse(with(mixtral(), "eos_token_id", nullptr)).eos_tokens.empty());
  EXPECT_EQ(error_of(with(mixtral(), "bos_token_id", {1, 2})),
            "config.json: /bos_token_id: unsupported: several tokens before a text");
}

TEST(ModelConfig, GptOssSaysHowItRotates) {
  auto j = json::parse(read_file(preset("gpt_oss_20b")));
  EXPECT_EQ(parse(j).rope_scaling.factor, 32);
  j["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(j).rope_scaling.type, "none");
  j.erase("rope_scaling");
  j.erase("rope_parameters");
  EXPECT_NE(error_of(j).find("config.json: /rope_scaling: missing: is the rotation plain or YaRN?"),
            std::string::npos)
      << error_of(j);
}

TEST(ModelConfig, SparseStepAndDenseLayers) {
  auto j = json::parse(read_file(preset("qwen3_30b_a3b")));
  j["decoder_sparse_step"] = 2;
  j["mlp_only_layers"] = {1, 3};
  const auto c = parse(j);
  EXPECT_EQ(c.layers[0].ffn, FfnKind::kDense);
  EXPECT_EQ(c.layers[1].ffn, FfnKind::kDense);
  EXPECT_EQ(c.layers[5].ffn, FfnKind::kMoe);
  EXPECT_EQ(c.num_moe_layers(), 22U);
}

TEST(ModelConfig, ArticleShapes) {
  const auto s0 = read_model_config(preset("gpt4-s0"));
  EXPECT_EQ(s0.num_moe_layers(), 64U);
  EXPECT_EQ(s0.layers[0].ffn, FfnKind::kNone);
  EXPECT_EQ(s0.layers[1].ffn, FfnKind::kMoe);
  EXPECT_EQ(s0.router, RouterKind::kTokenMlp);
  const auto s1 = read_model_config(preset("gpt4-s1"));
  EXPECT_EQ(s1.moe_layers().front(), 32U);
  EXPECT_EQ(s1.layers[0].ffn, FfnKind::kDense);
  EXPECT_EQ(read_model_config(preset("gpt4_s4_int4")).expert_dtype, DType::kInt4);
  EXPECT_EQ(read_model_config(preset("dense_28b")).num_experts, 0U);
}

TEST(ModelConfig, BothKeysForTheNumberOfExperts) {
  auto j = mixtral();
  j.erase("num_local_experts");
  j["num_experts"] = 4;
  EXPECT_EQ(parse(j).num_experts, 4U);
  j["num_local_experts"] = 8;
  EXPECT_EQ(error_of(j), "config.json: /num_experts: 4 contradicts num_local_experts 8");
}

TEST(ModelConfig, RopeParametersOfNewerFiles) {
  auto j = mixtral();
  j.erase("rope_theta");
  j["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "default"}};
  EXPECT_EQ(parse(j).rope_theta, 5000.0);
  j["rope_parameters"]["rope_type"] = "llama3";
  EXPECT_EQ(error_of(j),
            "config.json: /rope_parameters/rope_type: unsupported rope scaling \"llama3\"; "
            "supported: default, yarn");
  j["rope_parameters"] = {{"rope_type", "yarn"},
                          {"factor", 4.0},
                          {"original_max_position_embeddings", 4096},
                          {"attention_factor", 1.5}};
  EXPECT_EQ(error_of(j),
            "config.json: /rope_parameters/attention_factor: unsupported: a rotation gain of its "
            "own; leave it out; it then follows from factor and mscale");
}

TEST(ModelConfig, MistakesNameFileAndPointer) {
  EXPECT_EQ(error_of(with(mixtral(), "model_type", "llama")),
            "config.json: /model_type: unsupported model type \"llama\"; supported: mixtral, "
            "qwen2_moe, qwen3_moe, olmoe, deepseek, deepseek_v2, deepseek_v3, gpt_oss, article, "
            "switchyard_lab");
  EXPECT_EQ(error_of(json::object()), "config.json: /model_type: missing");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_size", -4096)),
            "config.json: /hidden_size: -4096 is outside [1, 16777216]");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_size", 0)),
            "config.json: /hidden_size: 0 is outside [1, 16777216]");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_size", 4096.5)),
            "config.json: /hidden_size: expected a whole number, found 4096.5");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_size", "4096")),
            "config.json: /hidden_size: expected a whole number, found \"4096\"");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_size", json::array({1}))),
            "config.json: /hidden_size: expected a whole number, found a list");
  EXPECT_EQ(error_of(with(mixtral(), "vocab_size", 18446744073709551615ULL)),
            "config.json: /vocab_size: 18446744073709551615 is outside [1, 268435456]");
  EXPECT_EQ(error_of(with(mixtral(), "num_experts_per_tok", 9)),
            "config.json: /num_experts_per_tok: 9 of 8 experts cannot be chosen");
  EXPECT_EQ(error_of(with(mixtral(), "num_key_value_heads", 5)),
            "config.json: /num_key_value_heads: 5 key/value heads do not divide 32 heads");
  EXPECT_EQ(error_of(with(mixtral(), "num_attention_heads", 24)),
            "config.json: /num_attention_heads: hidden_size 4096 is not a multiple of 24 heads; "
            "give head_dim");
  EXPECT_EQ(error_of(with(mixtral(), "head_dim", 127)),
            "config.json: /head_dim: 127 is odd; rotary embedding needs pairs");
  EXPECT_EQ(error_of(with(mixtral(), "rms_norm_eps", -1)),
            "config.json: /rms_norm_eps: -1 is outside [1e-12, 0.1]");
  EXPECT_EQ(error_of(with(mixtral(), "hidden_act", "gelu")),
            "config.json: /hidden_act: unsupported activation \"gelu\"; supported: silu");
  EXPECT_EQ(error_of(with(mixtral(), "quantization_config", {{"quant_method", "gptq"}})),
            "config.json: /quantization_config/quant_method: unsupported quantisation \"gptq\"; "
            "supported: fp8 (128×128 blocks), mxfp4");
  EXPECT_EQ(error_of(with(mixtral(), "torch_dtype", "bfloat61")),
            "config.json: /torch_dtype: unknown number format \"bfloat61\"; known: fp64, fp32, "
            "fp16, bf16, fp8, fp8_e5m2, int64, int32, int16, int8, uint8, bool, int4, int4_g128, "
            "mxfp4, q8_0, q4_0, q4_k, q6_k");
  EXPECT_EQ(error_of(with(mixtral(), "tie_word_embeddings", 1)),
            "config.json: /tie_word_embeddings: expected true or false, found 1");
  EXPECT_EQ(error_of(json::array()), "config.json: /: expected an object, found a list");
}

TEST(ModelConfig, DeepSeekMistakes) {
  auto v3 = json::parse(read_file(preset("deepseek_v3")));
  EXPECT_EQ(error_of(with(v3, "n_group", 7)),
            "config.json: /n_group: 7 groups do not divide 256 experts");
  EXPECT_EQ(error_of(with(v3, "topk_method", "greedy")),
            "config.json: /topk_method: unsupported \"greedy\" for deepseek_v3; supported: "
            "noaux_tc");
  EXPECT_EQ(error_of(with(v3, "scoring_func", "softmax")),
            "config.json: /scoring_func: unsupported \"softmax\" for deepseek_v3");
  v3["topk_group"] = 1;
  v3["num_experts_per_tok"] = 33;
  EXPECT_EQ(error_of(v3),
            "config.json: /topk_group: 1 groups of 32 experts hold fewer than top-33");
  v3.erase("kv_lora_rank");
  v3["num_experts_per_tok"] = 8;
  EXPECT_EQ(error_of(v3), "config.json: /kv_lora_rank: missing");
}

TEST(ModelConfig, ArticleMistakes) {
  auto j = json::parse(read_file(preset("gpt4_s4")));
  EXPECT_EQ(error_of(with(j, "hiden_size", 1)),
            "config.json: /hiden_size: unknown key; did you mean \"hidden_size\"?");
  EXPECT_EQ(error_of(with(j, "moe_layers", {{"every", 2}, {"last", 3}})),
            "config.json: /moe_layers: give either \"every\" (every n-th layer) or \"last\" (the "
            "last n)");
  EXPECT_EQ(error_of(with(j, "moe_layers", {{"every", 2}})),
            "config.json: /intermediate_size: missing, but some layers are dense");
  EXPECT_EQ(error_of(with(j, "stated", {{"totl", 3}})),
            "config.json: /stated/totl: unknown key; did you mean \"total\"?");
  EXPECT_EQ(error_of(with(j, "expert_matrices", 4)),
            "config.json: /expert_matrices: 4 is outside [2, 3]");
}

TEST(ModelConfig, LabModelsAreDenseOrMixtralWithOtherPositions) {
  const json dense = {{"model_type", "switchyard_lab"},
                      {"vocab_size", 64},
                      {"hidden_size", 32},
                      {"num_hidden_layers", 3},
                      {"num_attention_heads", 4},
                      {"intermediate_size", 12},
                      {"max_position_embeddings", 256},
                      {"position_embedding", "rope"}};
  const auto d = parse(dense);
  EXPECT_EQ(d.num_moe_layers(), 0U);
  EXPECT_EQ(d.num_experts, 0U);
  EXPECT_EQ(d.dense_intermediate, 12U);
  json moe = with(dense, "num_local_experts", 8);
  moe["position_embedding"] = "absolute";
  moe["position_gain"] = 0.5;
  const auto m = parse(moe);
  EXPECT_EQ(m.num_moe_layers(), 3U);
  EXPECT_EQ(m.top_k, 2U);
  EXPECT_TRUE(m.gate.renormalize);
  EXPECT_EQ(m.positions, PositionKind::kAbsolute);
  EXPECT_EQ(m.position_gain, 0.5);
  EXPECT_EQ(parse(with(dense, "position_embedding", "alibi")).positions, PositionKind::kAlibi);

  EXPECT_EQ(error_of(with(dense, "position_embedding", "learned")),
            "config.json: /position_embedding: unsupported \"learned\"; supported: rope, absolute, "
            "alibi");
  EXPECT_EQ(error_of(with(dense, "position_gain", 2)),
            "config.json: /position_gain: given, but position_embedding is not absolute");
  EXPECT_EQ(error_of(with(dense, "num_experts_per_tok", 2)),
            "config.json: /num_experts_per_tok: given, but num_local_experts is not: the model is "
            "dense");
  EXPECT_NE(error_of(with(dense, "sliding_window", 8)).find("sliding_window"), std::string::npos);
  json odd = with(dense, "position_embedding", "alibi");
  odd["num_attention_heads"] = 6;
  odd["head_dim"] = 8;
  EXPECT_EQ(
      error_of(odd),
      "config.json: /num_attention_heads: ALiBi slopes are defined for a power of two, not 6");
}

TEST(ModelConfig, SyntaxIsChecked) {
  EXPECT_EQ(error_of(std::string("{\n  \"model_type\": NaN\n}")).rfind("config.json:2:1", 0), 0U);
  EXPECT_NE(error_of(std::string("{\n  \"model_type\": NaN\n}")).find("not valid JSON"),
            std::string::npos);
  EXPECT_EQ(error_of(std::string(R"({"model_type":"mixtral","model_type":"olmoe"})")),
            "config.json: duplicate key \"model_type\"");
  EXPECT_NE(error_of(std::string(R"({"model_type":"mixtral","rms_norm_eps":1e999})")), "accepted");
  EXPECT_NE(error_of(std::string()), "accepted");
  EXPECT_NE(error_of(std::string("{\"model_type\":\"mixtral\xff\"}")).find("not valid JSON"),
            std::string::npos);
  EXPECT_EQ(error_of("{\"a\":" + std::string(1'000'000, '[')),
            "config.json: JSON nested deeper than 64 levels");
}

TEST(ModelConfig, AbsurdShapesAreRefusedAsAWhole) {
  auto j = mixtral();
  j["hidden_size"] = 1 << 24;
  j["intermediate_size"] = 1 << 24;
  j["num_local_experts"] = 65534;
  j["num_hidden_layers"] = 16384;
  EXPECT_NE(error_of(j).find("more than 2^56 cannot be a model"), std::string::npos);
}

TEST(ModelConfig, AMutatedConfigNeverDoesWorseThanAnInputError) {
  const std::string good = mixtral().dump();
  const auto purpose = random_purpose("mutate config");
  int refused = 0;
  for (std::uint32_t i = 0; i < 4000; ++i) {
    std::string text = good;
    for (std::uint32_t edit = 0; edit < 1 + i % 3; ++edit) {
      const auto r = random_u64(7, purpose, {i, edit, 0, 0});
      const std::size_t at = r % text.size();
      switch ((r >> 32U) % 3) {
        case 0:
          text[at] = static_cast<char>(r >> 40U);
          break;
        case 1:
          text.erase(at, 1 + (r >> 40U) % 8);
          break;
        default:
          text.insert(at, 1 + (r >> 40U) % 3, "0-e[{\"9,"[(r >> 48U) % 8]);
      }
      if (text.empty()) {
        text = "{";
      }
    }
    try {
      const auto c = parse_model_config(text, "config.json", "test");
      count_parameters(c);
      flops_per_token(c, 4096);
    } catch (const InputError& e) {
      ++refused;
      EXPECT_EQ(std::string(e.what()).rfind("config.json", 0), 0U) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(ModelConfig, FindsByNameFileAndFolder) {
  EXPECT_EQ(preset("Mixtral-8x7B").filename(), "mixtral_8x7b.json");
  EXPECT_EQ(find_model("mixtral_8x7b", fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios").filename(),
            "mixtral_8x7b.json");
  const auto file = preset("olmoe_1b_7b");
  EXPECT_EQ(find_model(file.string(), "/nonexistent"), file);
  try {
    preset("mixtral_8x7c");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "mixtral_8x7c: no such model: neither a file, a folder, nor a preset; did you "
                 "mean \"mixtral_8x7b\"?");
  }
  EXPECT_THROW(find_model("", SWITCHYARD_SOURCE_DIR), InputError);
  const fs::path folder = "found_model";
  fs::create_directories(folder);
  write_file(folder / "config.json", mixtral().dump());
  EXPECT_EQ(read_model_config(folder).name, "found_model");
  EXPECT_EQ(read_model_config(folder / "").name, "found_model");
  EXPECT_EQ(read_model_config(folder / "config.json").name, "found_model");
  EXPECT_THROW(read_model_config("found_model/none.json"), InputError);
}

}  // namespace
}  // namespace switchyard::model
