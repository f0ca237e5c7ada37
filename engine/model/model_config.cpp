// SPDX-License-Identifier: Apache-2.0
#include "engine/model/model_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/json_input.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

// Bounds that no real model comes near and that keep every product below 2^63 (checked again as a
// whole in check()).
constexpr std::uint64_t kMaxLayers = 1U << 14U;
constexpr std::uint64_t kMaxExperts = 65534;  // 65535 marks "none" in traces
constexpr std::uint64_t kMaxWidth = 1U << 24U;
constexpr std::uint64_t kMaxVocabulary = 1U << 28U;
constexpr std::uint64_t kMaxPositions = 1ULL << 40U;

constexpr std::array<std::string_view, 10> kFamilyNames = {
    "mixtral",     "qwen2_moe",   "qwen3_moe", "olmoe",   "deepseek",
    "deepseek_v2", "deepseek_v3", "gpt_oss",   "article", "switchyard_lab"};

std::uint64_t divided(const JsonObject& o, std::uint64_t hidden, std::uint64_t heads) {
  if (hidden % heads != 0) {
    o.fail("num_attention_heads",
           fmt::format("hidden_size {} is not a multiple of {} heads", hidden, heads),
           "give head_dim");
  }
  return hidden / heads;
}

/// The reader of one config: every family fills the same ModelConfig.
class Reader {
 public:
  Reader(const JsonObject& object, std::string name) : o_(object) { c_.name = std::move(name); }

  ModelConfig read() {
    c_.model_type = o_.text("model_type");
    const auto& known = supported_model_types();
    const auto it = std::find(known.begin(), known.end(), c_.model_type);
    if (it == known.end()) {
      o_.fail("model_type", fmt::format("unsupported model type \"{}\"", c_.model_type),
              fmt::format("supported: {}", fmt::join(known, ", ")));
    }
    c_.family = static_cast<Family>(it - known.begin());
    switch (c_.family) {
      case Family::kMixtral:
        mixtral();
        break;
      case Family::kQwen2Moe:
        qwen(false);
        break;
      case Family::kQwen3Moe:
        qwen(true);
        break;
      case Family::kOlmoe:
        olmoe();
        break;
      case Family::kDeepseekMoe:
      case Family::kDeepseekV2:
      case Family::kDeepseekV3:
        deepseek();
        break;
      case Family::kGptOss:
        gpt_oss();
        break;
      case Family::kArticle:
        article();
        break;
      case Family::kLab:
        lab();
        break;
    }
    check();
    if (!o_.defaults().empty()) {
      c_.notes.push_back(
          fmt::format("class defaults used for: {}", fmt::join(o_.defaults(), ", ")));
    }
    return std::move(c_);
  }

 private:
  struct Defaults {
    std::uint64_t vocab, hidden, layers, heads, kv_heads, max_position;
    double eps, theta;
  };

  void common(const Defaults& d) {
    c_.vocab_size = o_.count_or("vocab_size", d.vocab, 1, kMaxVocabulary);
    c_.hidden_size = o_.count_or("hidden_size", d.hidden, 1, kMaxWidth);
    c_.num_layers = o_.count_or("num_hidden_layers", d.layers, 1, kMaxLayers);
    c_.num_heads = o_.count_or("num_attention_heads", d.heads, 1, kMaxWidth);
    c_.num_kv_heads =
        o_.has("num_key_value_heads") || d.kv_heads == 0
            ? (o_.has("num_key_value_heads") ? o_.count("num_key_value_heads", 1, kMaxWidth)
                                             : c_.num_heads)
            : o_.count_or("num_key_value_heads", d.kv_heads, 1, kMaxWidth);
    c_.max_position_embeddings =
        o_.count_or("max_position_embeddings", d.max_position, 1, kMaxPositions);
    c_.rms_norm_eps = o_.number_or("rms_norm_eps", d.eps, 1e-12, 1e-1);
    c_.tie_word_embeddings = o_.flag_or("tie_word_embeddings", false);
    c_.router_aux_loss_coef = o_.number_or("router_aux_loss_coef", 0.001, 0, 1e6);
    if (o_.has("head_dim")) {
      c_.head_dim = o_.count("head_dim", 1, kMaxWidth);
    }
    if (const auto act = o_.text_or("hidden_act", "silu"); act != "silu") {
      o_.fail("hidden_act", fmt::format("unsupported activation \"{}\"", act), "supported: silu");
    }
    const std::vector<std::uint32_t> first = tokens("bos_token_id");
    if (first.size() > 1) {
      o_.fail("bos_token_id", "unsupported: several tokens before a text");
    }
    if (!first.empty()) {
      c_.bos_token = first.front();
    }
    c_.eos_tokens = tokens("eos_token_id");
    const auto type = o_.has("router_dtype") ? o_.text("router_dtype") : "float32";
    c_.gate.bf16_linear = type == "bfloat16";
    if (!c_.gate.bf16_linear && type != "float32") {
      o_.fail("router_dtype", fmt::format("unsupported \"{}\"", type),
              "supported: float32, bfloat16");
    }
    rope(d.theta);
    stored_dtype();
    quantization();
  }

  /// One token or a list of them, or none.
  std::vector<std::uint32_t> tokens(const std::string& key) const {
    if (!o_.has(key)) {
      return {};
    }
    if (!o_.raw(key).is_array()) {
      return {static_cast<std::uint32_t>(o_.count(key, 0, kMaxVocabulary))};
    }
    std::vector<std::uint32_t> out;
    for (const std::uint64_t id : o_.counts(key, 0, kMaxVocabulary)) {
      if (std::find(out.begin(), out.end(), id) == out.end()) {
        out.push_back(static_cast<std::uint32_t>(id));
      }
    }
    return out;
  }

  void rope(double theta) {
    c_.rope_theta = o_.number_or("rope_theta", theta, 1e-3, 1e15);
    const std::string key = o_.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    if (!o_.has(key)) {
      return;
    }
    const JsonObject r = o_.object(key);
    if (r.has("rope_theta")) {
      c_.rope_theta = r.number("rope_theta", 1e-3, 1e15);
    }
    if (r.number_or("partial_rotary_factor", 1, 0, 1) != 1) {
      r.fail("partial_rotary_factor", "unsupported partial rotary embedding");
    }
    const std::string type_key = r.has("rope_type") ? "rope_type" : "type";
    const auto type = r.text_or(type_key, "default");
    if (type == "default") {
      return;
    }
    if (type != "yarn") {
      r.fail(type_key, fmt::format("unsupported rope scaling \"{}\"", type),
             "supported: default, yarn");
    }
    if (r.has("attention_factor")) {
      r.fail("attention_factor", "unsupported: a rotation gain of its own",
             "leave it out; it then follows from factor and mscale");
    }
    auto& s = c_.rope_scaling;
    s.type = "yarn";
    s.factor = r.number("factor", 1, 1e6);
    s.original_max_position = r.count("original_max_position_embeddings", 1, kMaxPositions);
    s.beta_fast = r.number_or("beta_fast", 32, 1e-6, 1e6);
    s.beta_slow = r.number_or("beta_slow", 1, 1e-6, 1e6);
    s.truncate = r.flag_or("truncate", true);
    s.has_mscale = r.has("mscale") || r.has("mscale_all_dim");
    s.mscale = r.number_or("mscale", 1, 0, 1e3);
    s.mscale_all_dim = r.number_or("mscale_all_dim", 0, 0, 1e3);
  }

  void stored_dtype() {
    const std::string key = o_.has("torch_dtype") ? "torch_dtype" : "dtype";
    if (o_.has(key)) {
      c_.stored_dtype = parse_dtype(o_.text(key), fmt::format("{}: /{}", o_.where(), key));
    } else if (c_.family != Family::kArticle) {
      c_.notes.push_back(
          fmt::format("torch_dtype is not stated: what has no format of its own counts as {}",
                      dtype_name(c_.stored_dtype)));
    }
    c_.expert_dtype = c_.stored_dtype;
  }

  void quantization() {
    if (!o_.has("quantization_config")) {
      return;
    }
    const JsonObject q = o_.object("quantization_config");
    const auto method = q.text("quant_method");
    if (method == "fp8") {
      const auto block = q.counts("weight_block_size", 1, 1 << 20);
      if (block != std::vector<std::uint64_t>{128, 128}) {
        q.fail("weight_block_size", "unsupported FP8 block size", "supported: [128, 128]");
      }
      c_.quantization = "fp8_block";
      c_.expert_dtype = DType::kF8E4M3;
    } else if (method == "mxfp4") {
      c_.quantization = "mxfp4";
      c_.expert_dtype = DType::kMxfp4;
    } else {
      q.fail("quant_method", fmt::format("unsupported quantisation \"{}\"", method),
             "supported: fp8 (128×128 blocks), mxfp4");
    }
  }

  /// num_local_experts and num_experts are the same thing.
  std::uint64_t experts(std::uint64_t fallback) {
    if (o_.has("num_local_experts") && o_.has("num_experts")) {
      const auto a = o_.count("num_local_experts", 1, kMaxExperts);
      const auto b = o_.count("num_experts", 1, kMaxExperts);
      if (a != b) {
        o_.fail("num_experts", fmt::format("{} contradicts num_local_experts {}", b, a));
      }
      return a;
    }
    return o_.has("num_local_experts") ? o_.count("num_local_experts", 1, kMaxExperts)
                                       : o_.count_or("num_experts", fallback, 1, kMaxExperts);
  }

  void top_k(std::uint64_t fallback) {
    c_.top_k = o_.count_or("num_experts_per_tok", fallback, 1, kMaxExperts);
    if (c_.top_k > c_.num_experts) {
      o_.fail("num_experts_per_tok",
              fmt::format("{} of {} experts cannot be chosen", c_.top_k, c_.num_experts));
    }
  }

  void heads() {
    if (c_.head_dim == 0) {
      c_.head_dim = divided(o_, c_.hidden_size, c_.num_heads);
    }
    c_.v_head_dim = c_.head_dim;
  }

  void all_layers(std::uint64_t window) {
    c_.layers.assign(c_.num_layers, LayerSpec{FfnKind::kMoe, window});
  }

  /// layer_types, when given, says which layers use the window.
  void layer_types(std::uint64_t window) {
    const auto types = o_.texts("layer_types");
    if (types.size() != c_.num_layers) {
      o_.fail("layer_types", fmt::format("{} entries for {} layers", types.size(), c_.num_layers));
    }
    for (std::size_t l = 0; l < types.size(); ++l) {
      if (types[l] == "sliding_attention") {
        if (window == 0) {
          o_.fail("sliding_window", "missing, but layer_types has sliding_attention");
        }
        c_.layers[l].sliding_window = window;
      } else if (types[l] != "full_attention") {
        o_.fail("layer_types", fmt::format("unsupported layer type \"{}\"", types[l]),
                "supported: full_attention, sliding_attention");
      }
    }
  }

  void mixtral() {
    common({32000, 4096, 32, 32, 8, 131072, 1e-5, 1e6});
    heads();
    c_.num_experts = experts(8);
    top_k(2);
    c_.expert_intermediate = o_.count_or("intermediate_size", 14336, 1, kMaxWidth);
    c_.router_jitter = o_.number_or("router_jitter_noise", 0, 0, 1);
    all_layers(o_.has("sliding_window") ? o_.count("sliding_window", 1, kMaxPositions) : 0);
  }

  /// Our own: every key is required to be known, so a misspelt one cannot be taken for a default.
  void lab() {
    o_.only({"model_type",
             "vocab_size",
             "hidden_size",
             "num_hidden_layers",
             "num_attention_heads",
             "num_key_value_heads",
             "head_dim",
             "intermediate_size",
             "max_position_embeddings",
             "rms_norm_eps",
             "rope_theta",
             "tie_word_embeddings",
             "torch_dtype",
             "bos_token_id",
             "eos_token_id",
             "position_embedding",
             "position_gain",
             "num_local_experts",
             "num_experts_per_tok",
             "router_aux_loss_coef"});
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "max_position_embeddings"}) {
      if (!o_.has(key)) {
        o_.fail(key, "missing");
      }
    }
    common({1, 1, 1, 1, 0, 1, 1e-5, 10000});
    heads();
    const auto positions = o_.text("position_embedding");
    if (positions == "absolute") {
      c_.positions = PositionKind::kAbsolute;
    } else if (positions == "alibi") {
      c_.positions = PositionKind::kAlibi;
      if ((c_.num_heads & (c_.num_heads - 1)) != 0) {
        o_.fail("num_attention_heads",
                fmt::format("ALiBi slopes are defined for a power of two, not {}", c_.num_heads));
      }
    } else if (positions != "rope") {
      o_.fail("position_embedding", fmt::format("unsupported \"{}\"", positions),
              "supported: rope, absolute, alibi");
    }
    if (o_.has("position_gain")) {
      if (c_.positions != PositionKind::kAbsolute) {
        o_.fail("position_gain", "given, but position_embedding is not absolute");
      }
      c_.position_gain = o_.number("position_gain", 1e-6, 1e6);
    }
    if (c_.positions == PositionKind::kAbsolute && c_.hidden_size % 2 != 0) {
      o_.fail("hidden_size", fmt::format("{} is odd; sinusoids come in pairs", c_.hidden_size));
    }
    if (!o_.has("num_local_experts")) {
      for (const char* key : {"num_experts_per_tok", "router_aux_loss_coef"}) {
        if (o_.has(key)) {
          o_.fail(key, "given, but num_local_experts is not: the model is dense");
        }
      }
      c_.router_aux_loss_coef = 0;
      c_.dense_intermediate = o_.count("intermediate_size", 1, kMaxWidth);
      c_.layers.assign(c_.num_layers, LayerSpec{FfnKind::kDense, 0});
      return;
    }
    c_.num_experts = o_.count("num_local_experts", 1, kMaxExperts);
    top_k(2);
    c_.expert_intermediate = o_.count("intermediate_size", 1, kMaxWidth);
    all_layers(0);
  }

  /// Which layers are MoE in the Qwen families.
  void sparse_step() {
    const auto step = o_.count_or("decoder_sparse_step", 1, 1, kMaxLayers);
    for (std::uint64_t l = 0; l < c_.num_layers; ++l) {
      if ((l + 1) % step != 0) {
        c_.layers[l].ffn = FfnKind::kDense;
      }
    }
    if (o_.has("mlp_only_layers")) {
      for (const auto l : o_.counts("mlp_only_layers", 0, c_.num_layers - 1)) {
        c_.layers[l].ffn = FfnKind::kDense;
      }
    }
  }

  void qwen(bool three) {
    if (three) {
      common({151936, 2048, 24, 32, 4, 32768, 1e-6, 10000});
    } else {
      common({151936, 2048, 24, 16, 16, 32768, 1e-6, 10000});
    }
    heads();
    c_.num_experts = experts(three ? 128 : 60);
    top_k(three ? 8 : 4);
    c_.expert_intermediate = o_.count_or("moe_intermediate_size", three ? 768 : 1408, 1, kMaxWidth);
    c_.dense_intermediate = o_.count_or("intermediate_size", three ? 6144 : 5632, 1, kMaxWidth);
    c_.gate.renormalize = o_.flag_or("norm_topk_prob", false);
    if (three) {
      c_.qk_norm_per_head = true;
      c_.qkv_bias = c_.output_bias = o_.flag_or("attention_bias", false);
    } else {
      c_.qkv_bias = o_.flag_or("qkv_bias", true);
      c_.shared_intermediate = o_.count_or("shared_expert_intermediate_size", 5632, 1, kMaxWidth);
      c_.num_shared_experts = 1;
      c_.shared_expert_gate = true;
    }
    all_layers(0);
    if (o_.flag_or("use_sliding_window", false)) {
      if (!o_.has("layer_types")) {
        o_.fail("use_sliding_window", "unsupported without layer_types",
                "transformers versions disagree on which layers use the window");
      }
      layer_types(o_.count("sliding_window", 1, kMaxPositions));
    }
    sparse_step();
  }

  void olmoe() {
    common({50304, 2048, 16, 16, 0, 4096, 1e-5, 10000});
    heads();
    c_.num_experts = experts(64);
    top_k(8);
    c_.expert_intermediate = o_.count_or("intermediate_size", 2048, 1, kMaxWidth);
    c_.gate.renormalize = o_.flag_or("norm_topk_prob", false);
    c_.qk_norm_full = true;
    c_.qkv_bias = c_.output_bias = o_.flag_or("attention_bias", false);
    if (o_.has("clip_qkv")) {
      c_.clip_qkv = o_.number("clip_qkv", 1e-9, 1e9);
    }
    all_layers(0);
  }

  void deepseek() {
    const bool v1 = c_.family == Family::kDeepseekMoe;
    const bool v3 = c_.family == Family::kDeepseekV3;
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
                            "intermediate_size"}) {
      if (!o_.has(key)) {  // the class defaults are another model's: never what the user means
        o_.fail(key, "missing");
      }
    }
    common({1, 1, 1, 1, 0, v1 ? 2048U : 4096U, 1e-6, 10000});
    if (o_.flag_or("attention_bias", false)) {
      o_.fail("attention_bias", "unsupported attention bias in DeepSeek models");
    }
    c_.num_experts = o_.count("n_routed_experts", 1, kMaxExperts);
    top_k(1);
    c_.expert_intermediate = o_.count("moe_intermediate_size", 1, kMaxWidth);
    c_.dense_intermediate = o_.count("intermediate_size", 1, kMaxWidth);
    if (o_.has("n_shared_experts")) {
      c_.num_shared_experts = o_.count("n_shared_experts", 0, 1024);
      c_.shared_intermediate = c_.num_shared_experts * c_.expert_intermediate;
    }
    const auto first = o_.count_or("first_k_dense_replace", 0, 0, c_.num_layers);
    const auto frequency = o_.count_or("moe_layer_freq", 1, 1, kMaxLayers);
    c_.layers.resize(c_.num_layers);
    for (std::uint64_t l = 0; l < c_.num_layers; ++l) {
      c_.layers[l].ffn = l >= first && l % frequency == 0 ? FfnKind::kMoe : FfnKind::kDense;
    }
    auto& g = c_.gate;
    const auto scoring = o_.text_or("scoring_func", v3 ? "sigmoid" : "softmax");
    if (scoring != (v3 ? "sigmoid" : "softmax")) {
      o_.fail("scoring_func", fmt::format("unsupported \"{}\" for {}", scoring, c_.model_type));
    }
    g.score = v3 ? GateScore::kSigmoid : GateScore::kSoftmax;
    g.renormalize = o_.flag_or("norm_topk_prob", v3);
    g.eps = 1e-20;
    if (v1) {
      heads();
      return;
    }
    g.fp32_linear = true;
    g.scale = o_.number_or("routed_scaling_factor", 1, 1e-6, 1e6);
    g.scale_excludes_renorm = !v3;
    const auto method = o_.text_or("topk_method", v3 ? "noaux_tc" : "greedy");
    if (v3 ? method != "noaux_tc" : (method != "greedy" && method != "group_limited_greedy")) {
      o_.fail("topk_method", fmt::format("unsupported \"{}\" for {}", method, c_.model_type),
              v3 ? "supported: noaux_tc" : "supported: greedy, group_limited_greedy");
    }
    if (method != "greedy") {
      g.n_group = static_cast<std::uint32_t>(o_.count("n_group", 1, kMaxExperts));
      g.topk_group = static_cast<std::uint32_t>(o_.count("topk_group", 1, g.n_group));
      g.group_score = v3 ? GroupScore::kSumTop2 : GroupScore::kMax;
      g.mask_with_zero = !v3;
      if (c_.num_experts % g.n_group != 0) {
        o_.fail("n_group",
                fmt::format("{} groups do not divide {} experts", g.n_group, c_.num_experts));
      }
      if (c_.top_k > g.topk_group * (c_.num_experts / g.n_group)) {
        o_.fail("topk_group", fmt::format("{} groups of {} experts hold fewer than top-{}",
                                          g.topk_group, c_.num_experts / g.n_group, c_.top_k));
      }
    }
    g.correction_bias = v3;
    c_.attention = AttentionKind::kMla;
    c_.num_kv_heads = c_.num_heads;
    c_.q_lora_rank = o_.has("q_lora_rank") ? o_.count("q_lora_rank", 1, kMaxWidth) : 0;
    c_.kv_lora_rank = o_.count("kv_lora_rank", 1, kMaxWidth);
    c_.qk_nope_head_dim = o_.count("qk_nope_head_dim", 1, kMaxWidth);
    c_.qk_rope_head_dim = o_.count("qk_rope_head_dim", 1, kMaxWidth);
    c_.v_head_dim = o_.count("v_head_dim", 1, kMaxWidth);
    c_.head_dim = c_.qk_nope_head_dim + c_.qk_rope_head_dim;
    c_.rope_interleaved = o_.flag_or("rope_interleave", true);
    c_.num_nextn_layers =
        o_.has("num_nextn_predict_layers") ? o_.count("num_nextn_predict_layers", 0, 64) : 0;
    if (c_.num_nextn_layers > 0) {
      c_.notes.push_back(
          fmt::format("{} multi-token prediction module(s) of the checkpoint are not modelled",
                      c_.num_nextn_layers));
    }
  }

  void gpt_oss() {
    // transformers' class default is YaRN by 32 (to 131072 positions); what a file without the key
    // means depends on who wrote it. null, or rope_type "default", is plain rotation.
    if (!o_.contains("rope_scaling") && !o_.contains("rope_parameters")) {
      o_.fail("rope_scaling", "missing: is the rotation plain or YaRN?",
              "null for plain, or the published model's {\"rope_type\": \"yarn\", \"factor\": 32, "
              "\"original_max_position_embeddings\": 4096, \"truncate\": false}");
    }
    common({201088, 2880, 36, 64, 8, 131072, 1e-5, 150000});
    if (c_.head_dim == 0) {
      c_.head_dim = 64;
    }
    heads();
    c_.num_experts = experts(128);
    if (o_.has("experts_per_token") && !o_.has("num_experts_per_tok")) {
      c_.top_k = o_.count("experts_per_token", 1, c_.num_experts);
    } else {
      top_k(4);
    }
    c_.expert_intermediate = o_.count_or("intermediate_size", 2880, 1, kMaxWidth);
    c_.expert_kind = ExpertKind::kSwiGluClamped;
    c_.swiglu_limit = o_.number_or("swiglu_limit", 7, 1e-3, 1e6);
    if (o_.number_or("swiglu_alpha", 1.702, 0, 1e6) != 1.702) {
      o_.fail("swiglu_alpha", "unsupported slope of the sigmoid", "supported: 1.702");
    }
    c_.qkv_bias = c_.output_bias = o_.flag_or("attention_bias", true);
    c_.attention_sinks = true;
    c_.gate.score = GateScore::kIdentity;
    c_.gate.renormalize = false;
    c_.gate.linear_bias = true;
    const auto window = o_.count_or("sliding_window", 128, 1, kMaxPositions);
    all_layers(0);
    if (o_.has("layer_types")) {
      layer_types(window);
    } else {
      for (std::size_t l = 0; l < c_.layers.size(); l += 2) {
        c_.layers[l].sliding_window = window;
      }
    }
  }

  void article() {
    o_.only({"model_type",
             "name",
             "source",
             "note",
             "vocab_size",
             "hidden_size",
             "num_hidden_layers",
             "num_attention_heads",
             "num_key_value_heads",
             "head_dim",
             "max_position_embeddings",
             "tie_word_embeddings",
             "final_norm",
             "expert_matrices",
             "num_experts",
             "num_experts_per_tok",
             "moe_intermediate_size",
             "intermediate_size",
             "shared_expert_intermediate_size",
             "moe_layers",
             "other_layers",
             "router",
             "dtype",
             "expert_dtype",
             "stated"});
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "expert_matrices", "source"}) {
      if (!o_.has(key)) {
        o_.fail(key, "missing");
      }
    }
    common({1, 1, 1, 1, 0, 32768, 1e-5, 10000});
    c_.name = o_.text_or("name", c_.name);
    c_.router_aux_loss_coef = 0;
    heads();
    c_.final_norm = o_.flag_or("final_norm", true);
    c_.expert_kind =
        o_.count("expert_matrices", 2, 3) == 2 ? ExpertKind::kTwoMatrix : ExpertKind::kSwiGlu;
    if (o_.has("intermediate_size")) {
      c_.dense_intermediate = o_.count("intermediate_size", 1, kMaxWidth);
    }
    const auto other = o_.text_or("other_layers", "dense");
    if (other != "dense" && other != "attention_only") {
      o_.fail("other_layers", fmt::format("unknown value \"{}\"", other),
              "known: dense, attention_only");
    }
    c_.layers.assign(c_.num_layers,
                     LayerSpec{other == "dense" ? FfnKind::kDense : FfnKind::kNone, 0});
    article_moe();
    const bool any_dense = std::any_of(c_.layers.begin(), c_.layers.end(),
                                       [](const LayerSpec& l) { return l.ffn == FfnKind::kDense; });
    if (any_dense && c_.dense_intermediate == 0) {
      o_.fail("intermediate_size", "missing, but some layers are dense");
    }
    if (!any_dense) {
      c_.dense_intermediate = 0;
    }
    if (o_.has("expert_dtype")) {
      c_.expert_dtype =
          parse_dtype(o_.text("expert_dtype"), fmt::format("{}: /expert_dtype", o_.where()));
    }
    if (o_.has("stated")) {
      const JsonObject s = o_.object("stated");
      const std::vector<std::string> known = {"total",     "active",    "expert",
                                              "embedding", "attention", "backbone"};
      s.only(known);
      for (const auto& key : known) {
        if (s.has(key)) {
          c_.stated[key] = s.count(key, 1, 1ULL << 60U);
        }
      }
    }
    if (o_.has("note")) {
      c_.notes.push_back(o_.text("note"));
    }
  }

  void article_moe() {
    if (!o_.has("num_experts")) {
      for (const char* key : {"moe_layers", "num_experts_per_tok", "moe_intermediate_size",
                              "router", "shared_expert_intermediate_size"}) {
        if (o_.has(key)) {
          o_.fail(key, "given, but num_experts is not: the model is dense");
        }
      }
      return;
    }
    c_.num_experts = o_.count("num_experts", 1, kMaxExperts);
    if (!o_.has("num_experts_per_tok")) {
      o_.fail("num_experts_per_tok", "missing");
    }
    top_k(1);
    c_.expert_intermediate = o_.count("moe_intermediate_size", 1, kMaxWidth);
    if (o_.has("shared_expert_intermediate_size")) {
      c_.shared_intermediate = o_.count("shared_expert_intermediate_size", 1, kMaxWidth);
      c_.num_shared_experts = 1;
    }
    const JsonObject m = o_.object("moe_layers");
    m.only({"every", "last"});
    if (m.has("every") == m.has("last")) {
      o_.fail("moe_layers", "give either \"every\" (every n-th layer) or \"last\" (the last n)");
    }
    if (m.has("every")) {
      const auto every = m.count("every", 1, c_.num_layers);
      for (std::uint64_t l = every - 1; l < c_.num_layers; l += every) {
        c_.layers[l].ffn = FfnKind::kMoe;
      }
    } else {
      const auto last = m.count("last", 1, c_.num_layers);
      for (std::uint64_t l = c_.num_layers - last; l < c_.num_layers; ++l) {
        c_.layers[l].ffn = FfnKind::kMoe;
      }
    }
    if (!o_.has("router")) {
      return;
    }
    const JsonObject r = o_.object("router");
    r.only({"kind", "hidden"});
    const auto kind = r.text("kind");
    if (kind == "linear") {
      return;
    }
    c_.router_hidden = r.counts("hidden", 1, kMaxWidth);
    if (kind == "hidden_mlp") {
      c_.router = RouterKind::kHiddenMlp;
      if (c_.router_hidden.size() != 1) {
        r.fail("hidden", "hidden_mlp has one inner width");
      }
    } else if (kind == "token_mlp") {
      c_.router = RouterKind::kTokenMlp;
      if (c_.router_hidden.size() != 2) {
        r.fail("hidden", "token_mlp has two inner widths: embedding and hidden");
      }
    } else {
      r.fail("kind", fmt::format("unknown router \"{}\"", kind),
             "known: linear, hidden_mlp, token_mlp");
    }
  }

  void check() {
    if (c_.num_heads % c_.num_kv_heads != 0) {
      o_.fail("num_key_value_heads", fmt::format("{} key/value heads do not divide {} heads",
                                                 c_.num_kv_heads, c_.num_heads));
    }
    const auto rotary = c_.attention == AttentionKind::kMla ? c_.qk_rope_head_dim : c_.head_dim;
    if (rotary % 2 != 0) {
      o_.fail("head_dim", fmt::format("{} is odd; rotary embedding needs pairs", rotary));
    }
    if (c_.num_experts == 0) {
      c_.gate = GateFields{};
    } else if (c_.num_moe_layers() == 0) {
      o_.fail("num_experts", "experts given, but no layer is MoE");
    }
    // An estimate in floating point is enough to refuse what 64-bit counts could not hold.
    const auto d = [](std::uint64_t v) { return static_cast<double>(v); };
    const double layers = d(c_.num_layers);
    const double hidden = d(c_.hidden_size);
    const double total =
        2 * d(c_.vocab_size) * hidden +
        layers * hidden *
            (3 * d(c_.num_experts) * d(c_.expert_intermediate) + 3 * d(c_.dense_intermediate) +
             3 * d(c_.shared_intermediate) + 4 * d(c_.num_heads) * d(c_.head_dim + c_.v_head_dim)) +
        layers * d(c_.num_heads) * d(c_.head_dim + c_.v_head_dim) *
            (d(c_.q_lora_rank) + d(c_.kv_lora_rank));
    if (total > 0x1p56) {
      throw InputError(o_.where(),
                       fmt::format("the shape gives about {:.3g} parameters; more than 2^56 cannot "
                                   "be a model",
                                   total));
    }
  }

  const JsonObject& o_;
  ModelConfig c_;
};

std::string normalised(std::string_view name) {
  std::string out(name);
  for (char& ch : out) {
    if (ch == '-' || ch == '.') {
      ch = '_';
    } else if (ch >= 'A' && ch <= 'Z') {
      ch = static_cast<char>(ch - 'A' + 'a');
    }
  }
  return out;
}

fs::path scenarios_folder(const fs::path& root) {
  std::error_code ignored;
  return fs::is_directory(root / "scenarios", ignored) ? root / "scenarios" : root;
}

}  // namespace

std::string_view family_name(Family family) {
  return kFamilyNames[static_cast<std::size_t>(family)];
}

const std::vector<std::string>& supported_model_types() {
  static const std::vector<std::string> names(kFamilyNames.begin(), kFamilyNames.end());
  return names;
}

std::vector<std::uint32_t> ModelConfig::moe_layers() const {
  std::vector<std::uint32_t> out;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (is_moe(l)) {
      out.push_back(static_cast<std::uint32_t>(l));
    }
  }
  return out;
}

std::uint64_t ModelConfig::num_moe_layers() const {
  return static_cast<std::uint64_t>(std::count_if(
      layers.begin(), layers.end(), [](const LayerSpec& l) { return l.ffn == FfnKind::kMoe; }));
}

ModelConfig parse_model_config(std::string_view json, const std::string& where,
                               const std::string& name) {
  const auto parsed = parse_json(json, where);
  const JsonObject object(parsed, where, "");
  return Reader(object, name).read();
}

ModelConfig read_model_config(const fs::path& path_or_folder) {
  std::error_code ignored;
  if (is_gguf_path(path_or_folder)) {
    return read_gguf_config(Gguf::open(path_or_folder));
  }
  fs::path file = path_or_folder;
  std::string name = file.stem().string();
  if (fs::is_directory(file, ignored)) {
    auto folder = fs::absolute(file, ignored).lexically_normal();
    if (!folder.has_filename()) {
      folder = folder.parent_path();
    }
    name = folder.filename().string();
    file /= "config.json";
  } else if (file.filename() == "config.json") {
    name = fs::absolute(file, ignored).lexically_normal().parent_path().filename().string();
  }
  if (const auto size = fs::file_size(file, ignored);
      !ignored && size > std::uintmax_t{16} << 20U) {
    throw InputError(file.string(), fmt::format("{} bytes is too large for a config.json", size));
  }
  return parse_model_config(read_file(file), file.string(), name);
}

std::vector<std::string> model_preset_names(const fs::path& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(scenarios_folder(root) / "models", error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") {
      names.push_back(it->path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path find_model(const std::string& name_or_path, const fs::path& root) {
  std::error_code ignored;
  if (!name_or_path.empty() && fs::exists(name_or_path, ignored)) {
    return name_or_path;
  }
  const auto names = model_preset_names(root);
  const auto wanted = normalised(name_or_path);
  for (const auto& name : names) {
    if (normalised(name) == wanted) {
      return scenarios_folder(root) / "models" / (name + ".json");
    }
  }
  auto checkpoint = scenarios_folder(root) / "checkpoints" / name_or_path;
  if (!name_or_path.empty() && name_or_path.find('/') == std::string::npos &&
      fs::is_directory(checkpoint, ignored)) {
    return checkpoint;
  }
  throw InputError(name_or_path, "no such model: neither a file, a folder, nor a preset",
                   suggest_name(name_or_path, names));
}

}  // namespace switchyard::model
