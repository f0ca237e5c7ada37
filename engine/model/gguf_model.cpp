// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Architecture {
  const char* gguf;
  const char* model_type;
};
constexpr std::array kArchitectures{
    Architecture{"llama", "mixtral"},         Architecture{"qwen2moe", "qwen2_moe"},
    Architecture{"qwen3moe", "qwen3_moe"},    Architecture{"olmoe", "olmoe"},
    Architecture{"deepseek2", "deepseek_v2"}, Architecture{"deepseek2", "deepseek_v3"},
    Architecture{"gpt-oss", "gpt_oss"}};

// expert_gating_func
constexpr std::uint64_t kSoftmaxGate = 1;
constexpr std::uint64_t kSigmoidGate = 2;

// Each ends a text: of a document, of a turn, of a message.
constexpr std::array kEndTokens{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                "tokenizer.ggml.eom_token_id"};

// tokenizer.ggml.token_type
constexpr std::int64_t kNormalToken = 1;
constexpr std::int64_t kUnknownToken = 2;
constexpr std::int64_t kControlToken = 3;
constexpr std::int64_t kUserToken = 4;
constexpr std::int64_t kUnusedToken = 5;
constexpr std::int64_t kByteToken = 6;

std::string architectures() {
  std::vector<std::string> names;
  for (const auto& a : kArchitectures) {
    if (names.empty() || names.back() != a.gguf) {
      names.emplace_back(a.gguf);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Writes the config.json that the metadata stands for.
class ConfigReader {
 public:
  explicit ConfigReader(const Gguf& file) : f_(file), arch_(file.text("general.architecture")) {}

  json read() {
    const auto it = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                 [&](const Architecture& a) { return arch_ == a.gguf; });
    if (it == kArchitectures.end()) {
      f_.fail("general.architecture", fmt::format("unsupported \"{}\"", arch_),
              "supported: " + architectures());
    }
    c_["model_type"] = it->model_type;
    common();
    if (arch_ == "llama") {
      c_["num_local_experts"] = experts();
      c_["intermediate_size"] = f_.count(key("feed_forward_length"));
    } else if (arch_ == "deepseek2") {
      deepseek();
    } else if (arch_ == "gpt-oss") {
      gpt_oss();
    } else {
      c_["num_experts"] = experts();
      c_["norm_topk_prob"] = arch_ == "qwen3moe";
      c_["intermediate_size"] = f_.count(key("feed_forward_length"));
      if (arch_ != "olmoe") {
        c_["moe_intermediate_size"] =
            f_.has(key("expert_feed_forward_length"))
                ? f_.count(key("expert_feed_forward_length"))
                : f_.count(key("feed_forward_length")) /
                      std::max<std::uint64_t>(1, f_.count(key("expert_used_count")));
      }
      if (arch_ == "qwen2moe") {
        c_["qkv_bias"] = tensor("blk.0.attn_q.bias") != nullptr;
        c_["shared_expert_intermediate_size"] = f_.count_or(
            key("expert_shared_feed_forward_length"), f_.count(key("feed_forward_length")));
      }
    }
    if (arch_ != "deepseek2") {
      const double scale = f_.number_or(key("expert_weights_scale"), 0);
      if (scale != 0 && scale != 1) {
        f_.fail(key("expert_weights_scale"), fmt::format("unsupported {} for {}", scale, arch_));
      }
    }
    return c_;
  }

 private:
  [[nodiscard]] std::string key(const std::string& name) const { return arch_ + "." + name; }
  [[nodiscard]] const TensorView* tensor(const std::string& name) const {
    const auto it = f_.tensors().find(name);
    return it == f_.tensors().end() ? nullptr : &it->second;
  }

  std::uint64_t experts() {
    const std::uint64_t n = f_.count_or(key("expert_count"), 0);
    if (n == 0) {
      f_.fail(key("expert_count"), fmt::format("unsupported: {} without experts", arch_),
              "the engine runs Mixture-of-Experts models");
    }
    return n;
  }

  void common() {
    const TensorView* embedding = tensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      throw InputError(f_.path().string(), "tensor \"token_embd.weight\" is missing or no matrix");
    }
    c_["vocab_size"] = f_.count_or(key("vocab_size"), embedding->shape[0]);
    c_["torch_dtype"] = std::string(dtype_name(embedding->dtype));
    c_["hidden_size"] = f_.count(key("embedding_length"));
    // Multi-token prediction modules follow the layers and are counted with them.
    const std::uint64_t next = f_.count_or(key("nextn_predict_layers"), 0);
    const std::uint64_t blocks = f_.count(key("block_count"));
    c_["num_nextn_predict_layers"] = next;
    c_["num_hidden_layers"] = blocks - std::min(next, blocks);
    c_["num_attention_heads"] = f_.count(key("attention.head_count"));
    c_["num_key_value_heads"] =
        f_.count_or(key("attention.head_count_kv"), f_.count(key("attention.head_count")));
    c_["max_position_embeddings"] = f_.count(key("context_length"));
    c_["rms_norm_eps"] = f_.number(key("attention.layer_norm_rms_epsilon"));
    c_["num_experts_per_tok"] = f_.count_or(key("expert_used_count"), 0);
    c_["tie_word_embeddings"] = tensor("output.weight") == nullptr;
    if (f_.has("tokenizer.ggml.bos_token_id")) {
      c_["bos_token_id"] = f_.count("tokenizer.ggml.bos_token_id");
    }
    for (const char* name : kEndTokens) {
      if (f_.has(name)) {
        c_["eos_token_id"].push_back(f_.count(name));
      }
    }
    if (arch_ != "deepseek2") {
      head_dim();
    }
    rope();
  }

  void head_dim() {
    if (f_.has(key("attention.key_length"))) {
      c_["head_dim"] = f_.count(key("attention.key_length"));
    }
    if (f_.has(key("attention.value_length")) && c_.contains("head_dim") &&
        f_.count(key("attention.value_length")) != c_["head_dim"]) {
      f_.fail(key("attention.value_length"), "unsupported: not the width of the keys");
    }
    if (f_.has(key("rope.dimension_count"))) {
      const std::uint64_t heads = std::max<std::uint64_t>(1, f_.count(key("attention.head_count")));
      const std::uint64_t width = c_.contains("head_dim")
                                      ? c_["head_dim"].get<std::uint64_t>()
                                      : f_.count(key("embedding_length")) / heads;
      if (f_.count(key("rope.dimension_count")) != width) {
        f_.fail(key("rope.dimension_count"), "unsupported partial rotary embedding");
      }
    }
  }

  void rope() {
    c_["rope_theta"] = f_.number_or(key("rope.freq_base"), 10000);
    const std::string type =
        f_.has(key("rope.scaling.type")) ? f_.text(key("rope.scaling.type")) : "none";
    const double factor = f_.number_or(key("rope.scaling.factor"), 1);
    if (f_.number_or(key("rope.scaling.attn_factor"), 1) != 1 ||
        f_.number_or(key("rope.scaling.yarn_attn_factor"), 1) != 1 ||
        f_.number_or(key("rope.scaling.yarn_ext_factor"), 1) != 1) {
      f_.fail(key("rope.scaling.attn_factor"), "unsupported: a rotation gain of its own");
    }
    if (type == "none" || (type == "linear" && factor == 1)) {
      c_["rope_parameters"] = nullptr;
      return;
    }
    if (type != "yarn") {
      f_.fail(key("rope.scaling.type"), fmt::format("unsupported rope scaling \"{}\"", type),
              "supported: none, yarn");
    }
    json r = {
        {"rope_type", "yarn"},
        {"factor", factor},
        {"original_max_position_embeddings",
         f_.count_or(key("rope.scaling.original_context_length"), f_.count(key("context_length")))},
        {"beta_fast", f_.number_or(key("rope.scaling.yarn_beta_fast"), 32)},
        {"beta_slow", f_.number_or(key("rope.scaling.yarn_beta_slow"), 1)}};
    if (arch_ == "deepseek2") {
      // Stored as a tenth of mscale_all_dim; mscale is taken to be equal to it.
      const std::string name = key("rope.scaling.yarn_log_multiplier");
      const double all = std::round(f_.number_or(name, 0) * 1e8) / 1e7;
      r["mscale_all_dim"] = all;
      r["mscale"] = all != 0 ? all : 1.0;
    } else if (f_.number_or(key("rope.scaling.yarn_log_multiplier"), 0) != 0) {
      f_.fail(key("rope.scaling.yarn_log_multiplier"), fmt::format("unsupported for {}", arch_));
    }
    if (arch_ == "gpt-oss") {
      r["truncate"] = false;  // as the published model; llama.cpp rounds the ramp's ends
    }
    c_["rope_parameters"] = r;
  }

  void deepseek() {
    const std::uint64_t gate = f_.count_or(key("expert_gating_func"), kSoftmaxGate);
    if (gate != kSoftmaxGate && gate != kSigmoidGate) {
      f_.fail(key("expert_gating_func"), fmt::format("unsupported value {}", gate),
              "supported: 1 (softmax), 2 (sigmoid)");
    }
    const bool v3 = gate == kSigmoidGate;
    c_["model_type"] = v3 ? "deepseek_v3" : "deepseek_v2";
    c_["n_routed_experts"] = experts();
    c_["moe_intermediate_size"] = f_.count(key("expert_feed_forward_length"));
    c_["intermediate_size"] = f_.count(key("feed_forward_length"));
    c_["n_shared_experts"] = f_.count(key("expert_shared_count"));
    c_["first_k_dense_replace"] = f_.count_or(key("leading_dense_block_count"), 0);
    c_["norm_topk_prob"] = f_.flag_or(key("expert_weights_norm"), false);
    c_["routed_scaling_factor"] = f_.number_or(key("expert_weights_scale"), 1);
    const std::uint64_t groups = f_.count_or(key("expert_group_count"), 1);
    c_["topk_method"] = v3 ? "noaux_tc" : groups > 1 ? "group_limited_greedy" : "greedy";
    c_["n_group"] = std::max<std::uint64_t>(groups, 1);
    c_["topk_group"] =
        std::max<std::uint64_t>(f_.count_or(key("expert_group_used_count"), groups), 1);
    c_["num_key_value_heads"] = c_["num_attention_heads"];  // stored as one latent head
    if (f_.has(key("attention.q_lora_rank")) && tensor("blk.0.attn_q.weight") == nullptr) {
      c_["q_lora_rank"] = f_.count(key("attention.q_lora_rank"));
    }
    const std::uint64_t latent = f_.count(key("attention.kv_lora_rank"));
    const std::uint64_t turned = f_.count(key("rope.dimension_count"));
    const bool split = f_.has(key("attention.key_length_mla"));
    const std::string width = key(split ? "attention.key_length_mla" : "attention.key_length");
    if (f_.count(width) <= turned) {
      f_.fail(width,
              fmt::format("{} leaves nothing beside {} rotated entries", f_.count(width), turned));
    }
    c_["kv_lora_rank"] = latent;
    c_["qk_rope_head_dim"] = turned;
    c_["qk_nope_head_dim"] = f_.count(width) - turned;
    c_["v_head_dim"] =
        f_.count(key(split ? "attention.value_length_mla" : "attention.value_length"));
  }

  void gpt_oss() {
    c_["num_local_experts"] = experts();
    c_["intermediate_size"] = f_.count(key("expert_feed_forward_length"));
    c_["sliding_window"] = f_.count(key("attention.sliding_window"));
    if (f_.has(key("attention.sliding_window_pattern")) &&
        f_.count(key("attention.sliding_window_pattern")) != 2) {
      f_.fail(key("attention.sliding_window_pattern"), "unsupported: not every other layer");
    }
    c_["swiglu_limit"] = 7.0;
    c_["attention_bias"] = true;
  }

  const Gguf& f_;
  std::string arch_;
  json c_ = json::object();
};

}  // namespace

ModelConfig read_gguf_config(const Gguf& file) {
  const json config = ConfigReader(file).read();
  ModelConfig out =
      parse_model_config(config.dump(-1, ' ', false, json::error_handler_t::replace),
                         file.path().string() + " (metadata)", file.path().stem().string());
  for (std::size_t l = 0; l < out.layers.size(); ++l) {
    if (const auto it = file.tensors().find(fmt::format("blk.{}.ffn_down_exps.weight", l));
        it != file.tensors().end()) {
      out.expert_dtype = it->second.dtype;
      break;
    }
  }
  return out;
}

namespace {

/// What a pre-tokenizer name of llama.cpp stands for, as the tokenizer.json files of those models
/// say it: patterns that cut the text one after another (none: GPT-2's own), and what surrounds
/// them.
struct PreTokenizerRow {
  const char* name;
  std::vector<const char*> patterns;
  bool nfc = false;
  bool ignore_merges = false;
};
const std::vector<PreTokenizerRow>& pre_tokenizers() {
  static const std::vector<PreTokenizerRow> rows{
      {"gpt-2", {}},
      {"olmo", {}, true},
      {"qwen2",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       true},
      {"llama-bpe",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       false,
       true},
      {"gpt-4o",
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"deepseek-v3",
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./"
        ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}"
        "]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}}};
  return rows;
}

std::string pre_tokenizer_names() {
  std::vector<std::string> names;
  for (const PreTokenizerRow& row : pre_tokenizers()) {
    names.emplace_back(row.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json pre_tokenizer_json(const PreTokenizerRow& row) {
  if (row.patterns.empty()) {
    return byte_level(true);
  }
  json list = json::array();
  for (const char* pattern : row.patterns) {
    list.push_back({{"type", "Split"},
                    {"pattern", {{"Regex", pattern}}},
                    {"behavior", "Isolated"},
                    {"invert", false}});
  }
  list.push_back(byte_level(false));
  return {{"type", "Sequence"}, {"pretokenizers", list}};
}

/// tokenizer.ggml.tokens and .token_type, checked.
struct Vocabulary {
  explicit Vocabulary(const Gguf& file)
      : tokens(file.texts("tokenizer.ggml.tokens")), types(tokens.size(), kNormalToken) {
    if (file.has("tokenizer.ggml.token_type")) {
      types = file.integers("tokenizer.ggml.token_type");
      if (types.size() != tokens.size()) {
        file.fail("tokenizer.ggml.token_type",
                  fmt::format("{} entries for {} tokens", types.size(), tokens.size()));
      }
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      require_utf8(file, "tokenizer.ggml.tokens", i, tokens[i]);
      if (types[i] < kNormalToken || types[i] > kByteToken) {
        file.fail("tokenizer.ggml.token_type",
                  fmt::format("entry {}: unknown type {}", i, types[i]));
      }
      if (types[i] == kUnusedToken) {
        continue;
      }
      if (!ids.emplace(tokens[i], i).second) {
        file.fail("tokenizer.ggml.tokens", fmt::format("entry {} is given twice", i));
      }
      if (types[i] == kControlToken || types[i] == kUnknownToken || types[i] == kUserToken) {
        added.push_back({{"id", i},
                         {"content", tokens[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", types[i] != kUserToken}});
      }
    }
  }
  static void require_utf8(const Gguf& file, const std::string& key, std::size_t i,
                           const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = utf8_length(text, at);
      if (n == 0) {
        file.fail(key, fmt::format("entry {} is not valid UTF-8", i));
      }
      at += n;
    }
  }
  const std::vector<std::string>& tokens;
  std::vector<std::int64_t> types;
  std::map<std::string, std::size_t> ids;
  json added = json::array();
};

json stored_merges(const Gguf& file) {
  const auto& merges = file.texts("tokenizer.ggml.merges");
  json pairs = json::array();
  for (std::size_t i = 0; i < merges.size(); ++i) {
    Vocabulary::require_utf8(file, "tokenizer.ggml.merges", i, merges[i]);
    const std::size_t space = merges[i].empty() ? std::string::npos : merges[i].find(' ', 1);
    if (space == std::string::npos) {
      file.fail("tokenizer.ggml.merges", fmt::format("entry {} is no pair", i));
    }
    pairs.push_back({merges[i].substr(0, space), merges[i].substr(space + 1)});
  }
  return pairs;
}

/// SentencePiece files hold a score per token instead of merges. As transformers does: every way to
/// cut a token into two tokens is a merge, best score first, then the longer left part.
json merges_by_score(const Gguf& file, const Vocabulary& v) {
  const auto it = file.metadata().find("tokenizer.ggml.scores");
  const auto* scores =
      it == file.metadata().end() ? nullptr : std::get_if<std::vector<double>>(&it->second);
  if (scores == nullptr || scores->size() != v.tokens.size() ||
      std::any_of(scores->begin(), scores->end(), [](double s) { return !std::isfinite(s); })) {
    file.fail("tokenizer.ggml.scores", "missing, or not one number for each token");
  }
  constexpr std::size_t kMostBytes = 512;  // beyond any token; keeps hostile files linear
  struct Merge {
    double score;
    std::size_t left_length, right_length;  // in characters
    std::size_t left, right;                // ids
  };
  std::vector<Merge> merges;
  for (const auto& [token, id] : v.ids) {
    if (v.types[id] != kNormalToken && v.types[id] != kUserToken) {
      continue;
    }
    if (token.size() > kMostBytes) {
      file.fail("tokenizer.ggml.tokens", fmt::format("entry {} has {} bytes", id, token.size()));
    }
    std::vector<std::size_t> starts;
    for (std::size_t at = 0; at < token.size(); at += utf8_length(token, at)) {
      starts.push_back(at);
    }
    for (std::size_t i = 1; i < starts.size(); ++i) {
      const auto left = v.ids.find(token.substr(0, starts[i]));
      const auto right = v.ids.find(token.substr(starts[i]));
      if (left != v.ids.end() && right != v.ids.end()) {
        merges.push_back({(*scores)[id], i, starts.size() - i, left->second, right->second});
      }
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, b.left_length, b.right_length, a.left, a.right) <
           std::tuple(-b.score, a.left_length, a.right_length, b.left, b.right);
  });
  json pairs = json::array();
  for (const Merge& m : merges) {
    pairs.push_back({v.tokens[m.left], v.tokens[m.right]});
  }
  return pairs;
}

}  // namespace

std::string gguf_tokenizer_json(const Gguf& file) {
  const std::string kind =
      file.has("tokenizer.ggml.model") ? file.text("tokenizer.ggml.model") : "no_vocab";
  if (kind == "no_vocab" || kind == "none") {
    file.fail("tokenizer.ggml.model", "the file holds no tokenizer",
              "text needs one: export with a tokenizer.json in the folder");
  }
  const bool pieces = kind == "llama";
  if (kind != "gpt2" && !pieces) {
    file.fail("tokenizer.ggml.model", fmt::format("unsupported tokenizer \"{}\"", kind),
              "supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)");
  }
  if (file.flag_or("tokenizer.ggml.add_eos_token", false)) {
    file.fail("tokenizer.ggml.add_eos_token", "unsupported: a token put after every text");
  }
  const Vocabulary v(file);
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", pieces},
                {"byte_fallback", pieces},
                {"ignore_merges", false},
                {"vocab", v.ids}};
  json out = {{"version", "1.0"},         {"truncation", nullptr}, {"padding", nullptr},
              {"added_tokens", v.added},  {"normalizer", nullptr}, {"pre_tokenizer", nullptr},
              {"post_processor", nullptr}};
  if (pieces) {
    for (std::size_t i = 0; i < v.types.size(); ++i) {
      if (v.types[i] == kUnknownToken) {
        model["unk_token"] = v.tokens[i];
      }
    }
    model["merges"] = merges_by_score(file, v);
    const std::string space = "\xE2\x96\x81";
    json steps = json::array();
    if (file.flag_or("tokenizer.ggml.add_space_prefix", true)) {
      steps.push_back({{"type", "Prepend"}, {"prepend", space}});
    }
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}});
    out["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    out["decoder"] = {{"type", "Sequence"},
                      {"decoders",
                       {{{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
                        {{"type", "ByteFallback"}},
                        {{"type", "Fuse"}},
                        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  } else {
    std::string pre = file.has("tokenizer.ggml.pre") ? file.text("tokenizer.ggml.pre") : "default";
    pre = pre == "llama3" || pre == "llama-v3" ? "llama-bpe" : pre;
    const auto& rows = pre_tokenizers();
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const PreTokenizerRow& r) { return pre == r.name; });
    if (row == rows.end()) {
      file.fail("tokenizer.ggml.pre", fmt::format("unsupported pre-tokenizer \"{}\"", pre),
                "supported: " + pre_tokenizer_names());
    }
    if (row->nfc) {
      out["normalizer"] = {{"type", "NFC"}};
    }
    out["pre_tokenizer"] = pre_tokenizer_json(*row);
    out["decoder"] = byte_level(true);
    model["ignore_merges"] = row->ignore_merges;
    model["merges"] = stored_merges(file);
  }
  const bool begins = pieces || (file.has("tokenizer.ggml.pre") &&
                                 file.text("tokenizer.ggml.pre").starts_with("llama"));
  if (file.flag_or("tokenizer.ggml.add_bos_token", begins)) {
    const std::uint64_t id =
        file.count_or("tokenizer.ggml.bos_token_id", pieces ? 1 : v.tokens.size());
    if (id >= v.tokens.size()) {
      file.fail("tokenizer.ggml.bos_token_id", fmt::format("{} of {} tokens", id, v.tokens.size()));
    }
    const std::string& token = v.tokens[id];
    out["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", token}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens", {{token, {{"id", token}, {"ids", {id}}, {"tokens", {token}}}}}}};
  }
  out["model"] = std::move(model);
  return out.dump();
}

Tokenizer load_tokenizer(const fs::path& path) {
  if (!is_gguf_path(path)) {
    return Tokenizer::load(path);
  }
  const Gguf file = Gguf::open(path);
  return Tokenizer::parse(gguf_tokenizer_json(file), path.string() + " (tokenizer)");
}

std::string gguf_architecture(const ModelConfig& c, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(where, "unsupported in GGUF: " + what);
  };
  const auto it = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                               [&](const Architecture& a) { return c.model_type == a.model_type; });
  if (it == kArchitectures.end()) {
    refuse(fmt::format("model_type \"{}\"", c.model_type));
  }
  const std::string arch = it->gguf;
  const bool deepseek = arch == "deepseek2";
  const bool oss = arch == "gpt-oss";
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const std::uint64_t window = c.layers[l].sliding_window;
    const std::uint64_t expected = oss && l % 2 == 0 ? c.layers[0].sliding_window : 0;
    if (window != expected && (oss || window < c.max_position_embeddings)) {
      refuse(oss ? "a window on other layers than the even ones" : "a sliding window in " + arch);
    }
    // Leading dense layers exist in deepseek2 only.
    if (!c.is_moe(l) && !(deepseek && (l == 0 || !c.is_moe(l - 1)))) {
      refuse(deepseek ? "a dense layer after a sparse one" : "dense layers in " + arch);
    }
  }
  if (oss && c.layers[0].sliding_window == 0) {
    refuse("gpt-oss without a window");
  }
  if (c.clip_qkv) {
    refuse("clip_qkv in " + arch);
  }
  if (c.tie_word_embeddings && arch != "llama" && arch != "qwen3moe" && !deepseek) {
    refuse("an output matrix tied to the embedding in " + arch);
  }
  if (c.qkv_bias != (arch == "qwen2moe" || oss)) {
    refuse(fmt::format("{} with{} attention biases", arch, c.qkv_bias ? "" : "out"));
  }
  const bool renormalised = arch == "llama" || arch == "qwen3moe";
  if (!deepseek && !oss && c.gate.renormalize != renormalised) {
    refuse(fmt::format("norm_topk_prob = {} in {}", c.gate.renormalize, arch));
  }
  if ((arch == "qwen2moe" || arch == "olmoe") && c.num_heads * c.head_dim != c.hidden_size) {
    refuse(fmt::format("heads of {} entries in {}", c.head_dim, arch));
  }
  if (arch == "olmoe" && c.num_kv_heads != c.num_heads) {
    refuse("grouped query attention in olmoe");
  }
  if (oss && c.swiglu_limit != 7) {
    refuse(fmt::format("swiglu_limit = {} in gpt-oss", c.swiglu_limit));
  }
  if (deepseek && !c.rope_interleaved) {
    refuse("rope_interleave = false in deepseek2");
  }
  if (c.gate.bf16_linear) {
    refuse("router_dtype = bfloat16");
  }
  if (c.eos_tokens.size() > kEndTokens.size()) {
    refuse(fmt::format("{} tokens that end a text; at most {}", c.eos_tokens.size(),
                       kEndTokens.size()));
  }
  const RopeScaling& s = c.rope_scaling;
  if (((c.max_position_embeddings | s.original_max_position | c.layers[0].sliding_window) >> 32U) !=
      0) {
    refuse("more than 2^32 positions");
  }
  if (s.type == "yarn") {
    if (deepseek ? (s.mscale_all_dim != 0 ? s.mscale != s.mscale_all_dim : s.mscale != 1)
                 : s.has_mscale) {
      refuse(fmt::format("mscale = {} with mscale_all_dim = {}", s.mscale, s.mscale_all_dim));
    }
    if (s.truncate == oss) {
      refuse(fmt::format("YaRN with truncate = {} in {}", s.truncate, arch));
    }
  }
  return arch;
}

void write_gguf_config(GgufWriter& out, const ModelConfig& c) {
  const std::string arch = gguf_architecture(c, c.name);
  const auto key = [&](const std::string& name) { return arch + "." + name; };
  const bool deepseek = arch == "deepseek2";
  out.text("general.architecture", arch);
  out.text("general.type", "model");
  out.text("general.name", c.name);
  out.u32(key("vocab_size"), c.vocab_size);
  out.u32(key("block_count"), c.num_layers);
  out.u32(key("context_length"), c.max_position_embeddings);
  out.u32(key("embedding_length"), c.hidden_size);
  const bool own_width = arch == "llama" || arch == "olmoe";
  out.u32(key("feed_forward_length"),
          own_width || c.dense_intermediate == 0 ? c.expert_intermediate : c.dense_intermediate);
  out.u32(key("attention.head_count"), c.num_heads);
  out.u32(key("attention.head_count_kv"), deepseek ? 1 : c.num_kv_heads);
  out.f32(key("attention.layer_norm_rms_epsilon"), c.rms_norm_eps);
  out.f32(key("rope.freq_base"), c.rope_theta);
  out.u32(key("rope.dimension_count"), deepseek ? c.qk_rope_head_dim : c.head_dim);
  out.u32(key("expert_count"), c.num_experts);
  out.u32(key("expert_used_count"), c.top_k);
  if (!own_width) {
    out.u32(key("expert_feed_forward_length"), c.expert_intermediate);
  }
  if (deepseek) {
    out.u32(key("attention.key_length"), c.kv_lora_rank + c.qk_rope_head_dim);
    out.u32(key("attention.value_length"), c.kv_lora_rank);
    out.u32(key("attention.key_length_mla"), c.head_dim);
    out.u32(key("attention.value_length_mla"), c.v_head_dim);
    out.u32(key("attention.kv_lora_rank"), c.kv_lora_rank);
    if (c.q_lora_rank > 0) {
      out.u32(key("attention.q_lora_rank"), c.q_lora_rank);
    }
    const auto first = static_cast<std::uint64_t>(
        std::find_if(c.layers.begin(), c.layers.end(),
                     [](const LayerSpec& l) { return l.ffn == FfnKind::kMoe; }) -
        c.layers.begin());
    out.u32(key("leading_dense_block_count"), first);
    out.u32(key("expert_shared_count"), c.num_shared_experts);
    const GateFields& g = c.gate;
    out.u32(key("expert_gating_func"),
            g.score == GateScore::kSigmoid ? kSigmoidGate : kSoftmaxGate);
    out.flag(key("expert_weights_norm"), g.renormalize);
    out.f32(key("expert_weights_scale"), g.renormalize && g.scale_excludes_renorm ? 1 : g.scale);
    if (g.n_group > 1) {
      out.u32(key("expert_group_count"), g.n_group);
      out.u32(key("expert_group_used_count"), g.topk_group);
    }
  } else {
    out.u32(key("attention.key_length"), c.head_dim);
    out.u32(key("attention.value_length"), c.head_dim);
  }
  if (arch == "qwen2moe") {
    out.u32(key("expert_shared_feed_forward_length"), c.shared_intermediate);
  }
  if (arch == "gpt-oss") {
    out.u32(key("attention.sliding_window"), c.layers[0].sliding_window);
  }
  if (c.bos_token) {
    out.u32("tokenizer.ggml.bos_token_id", *c.bos_token);
  }
  for (std::size_t i = 0; i < c.eos_tokens.size(); ++i) {
    out.u32(kEndTokens[i], c.eos_tokens[i]);
  }
  if (const RopeScaling& s = c.rope_scaling; s.type == "yarn") {
    out.text(key("rope.scaling.type"), "yarn");
    out.f32(key("rope.scaling.factor"), s.factor);
    out.u32(key("rope.scaling.original_context_length"), s.original_max_position);
    out.f32(key("rope.scaling.yarn_beta_fast"), s.beta_fast);
    out.f32(key("rope.scaling.yarn_beta_slow"), s.beta_slow);
    if (deepseek && s.mscale_all_dim != 0) {
      out.f32(key("rope.scaling.yarn_log_multiplier"), 0.1 * s.mscale_all_dim);
    }
  }
}

namespace {

/// The pre-tokenizer's name for a tokenizer.json that GGUF can hold: byte-level BPE with patterns
/// that llama.cpp knows. Null otherwise.
const char* known_pre_tokenizer(const json& t) {
  const auto part = [&](const char* name) {
    const auto it = t.find(name);
    return it == t.end() ? json() : *it;
  };
  const json model = part("model");
  const json post = part("post_processor");
  const json normalizer = part("normalizer");
  if (!model.is_object() || model.value("type", "") != "BPE" ||
      model.value("byte_fallback", false) ||
      !(post.is_null() || post.value("type", "") == "ByteLevel")) {
    return nullptr;
  }
  // Patterns, from a ByteLevel alone or Splits and a ByteLevel without a pattern of its own.
  json pre = part("pre_tokenizer");
  if (!pre.is_object()) {
    return nullptr;
  }
  std::vector<std::string> patterns;
  if (pre.value("type", "") == "Sequence" && pre["pretokenizers"].is_array() &&
      !pre["pretokenizers"].empty()) {
    const json list = pre["pretokenizers"];
    for (std::size_t i = 0; i + 1 < list.size(); ++i) {
      const json& step = list[i];
      if (step.value("type", "") != "Split" || step.value("behavior", "") != "Isolated" ||
          step.value("invert", false) || !step["pattern"].contains("Regex")) {
        return nullptr;
      }
      patterns.push_back(step["pattern"]["Regex"].get<std::string>());
    }
    pre = list.back();
  }
  if (pre.value("type", "") != "ByteLevel" || pre.value("add_prefix_space", true) ||
      pre.value("use_regex", true) != patterns.empty()) {
    return nullptr;
  }
  if (!normalizer.is_null() && normalizer != json{{"type", "NFC"}}) {
    return nullptr;
  }
  for (const PreTokenizerRow& row : pre_tokenizers()) {
    if (row.nfc == !normalizer.is_null() &&
        row.ignore_merges == model.value("ignore_merges", false) &&
        std::equal(row.patterns.begin(), row.patterns.end(), patterns.begin(), patterns.end())) {
      return row.name;
    }
  }
  return nullptr;
}

}  // namespace

bool copy_gguf_tokenizer(GgufWriter& out, const Gguf& file) {
  const std::string kind =
      file.has("tokenizer.ggml.model") ? file.text("tokenizer.ggml.model") : "no_vocab";
  if (kind == "no_vocab" || kind == "none") {
    out.text("tokenizer.ggml.model", "no_vocab");
    return false;
  }
  for (const auto& [key, value] : file.metadata()) {
    // The ids of bos and eos belong to the model and are written with it.
    if (!key.starts_with("tokenizer.") || key == "tokenizer.ggml.bos_token_id" ||
        key == "tokenizer.ggml.eos_token_id") {
      continue;
    }
    if (const auto* text = std::get_if<std::string>(&value)) {
      out.text(key, *text);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      out.flag(key, *flag);
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      out.texts(key, *texts);
    } else if (const auto* count = std::get_if<std::uint64_t>(&value);
               count && *count >> 32U == 0) {
      out.u32(key, *count);
    } else if (const auto* all = std::get_if<std::vector<std::int64_t>>(&value)) {
      out.integers(key, std::vector<std::int32_t>(all->begin(), all->end()));
    } else if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
      out.numbers(key, *numbers);
    } else {
      file.fail(key, "unsupported kind of value");
    }
  }
  return true;
}

bool write_gguf_tokenizer(GgufWriter& out, const ModelConfig& c, const fs::path& folder) {
  std::error_code error;
  const fs::path path = folder / "tokenizer.json";
  json t;
  if (fs::exists(path, error)) {
    (void)Tokenizer::load(path);  // refuses what is broken
    t = parse_json(read_file(path), path.string());
  }
  const char* const pre = t.is_object() ? known_pre_tokenizer(t) : nullptr;
  if (pre == nullptr) {
    out.text("tokenizer.ggml.model", "no_vocab");
    return false;
  }
  std::vector<std::string> tokens(c.vocab_size);
  std::vector<std::int32_t> types(c.vocab_size, static_cast<std::int32_t>(kUnusedToken));
  const auto place = [&](const std::string& text, std::uint64_t id, std::int64_t type) {
    if (id >= c.vocab_size) {
      throw InputError(path.string(), fmt::format("token id {} is outside the model's vocabulary "
                                                  "of {}",
                                                  id, c.vocab_size));
    }
    tokens[id] = text;
    types[id] = static_cast<std::int32_t>(type);
  };
  const json& model = t["model"];
  for (const auto& item : model["vocab"].items()) {
    place(item.key(), item.value().get<std::uint64_t>(), kNormalToken);
  }
  if (t.contains("added_tokens")) {
    for (const json& a : t["added_tokens"]) {
      place(a["content"].get<std::string>(), a["id"].get<std::uint64_t>(),
            a.value("special", false) ? kControlToken : kUserToken);
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] == kUnusedToken) {
      tokens[i] = fmt::format("[PAD{}]", i);
    }
  }
  std::vector<std::string> merges;
  for (const json& m : model["merges"]) {
    merges.push_back(m.is_string() ? m.get<std::string>()
                                   : m[0].get<std::string>() + " " + m[1].get<std::string>());
  }
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", pre);
  out.texts("tokenizer.ggml.tokens", tokens);
  out.integers("tokenizer.ggml.token_type", types);
  out.texts("tokenizer.ggml.merges", merges);
  out.flag("tokenizer.ggml.add_bos_token", false);
  return true;
}

}  // namespace switchyard::model
