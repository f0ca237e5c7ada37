// SPDX-License-Identifier: Apache-2.0
// GGUF as a second door to the engine: what a folder computes, its export computes, bit for bit;
// packed weights compute what their widened values compute; and loading holds a model once.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/nn/gguf_export.hpp"
#include "engine/nn/session.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using model::DType;
using nlohmann::json;
using testing_support::family;
using testing_support::fixture;
using testing_support::fresh_folder;

void write_plain(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A copy of a checkpoint with other config values (null: key taken out) and, if `layers` is not
/// empty, only those layers, renumbered. Fixtures have features that GGUF cannot say.
fs::path variant(const fs::path& source, const std::string& name, const json& changes,
                 const std::vector<int>& layers = {}) {
  const fs::path folder = fresh_folder(name);
  json config = json::parse(read_file(source / "config.json"));
  config.merge_patch(changes);
  if (!layers.empty()) {
    config["num_hidden_layers"] = layers.size();
  }
  write_plain(folder / "config.json", config.dump());
  const auto weights = model::Safetensors::open(source / "model.safetensors");
  std::vector<model::TensorData> kept;
  for (const auto& [key, view] : weights.tensors()) {
    std::string to = key;
    if (const std::string prefix = "model.layers."; !layers.empty() && key.starts_with(prefix)) {
      const std::size_t dot = key.find('.', prefix.size());
      const int l = std::stoi(key.substr(prefix.size(), dot - prefix.size()));
      const auto it = std::find(layers.begin(), layers.end(), l);
      if (it == layers.end()) {
        continue;
      }
      to = fmt::format("{}{}{}", prefix, it - layers.begin(), key.substr(dot));
    }
    kept.push_back({to, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
  }
  write_plain(folder / "model.safetensors", model::safetensors_bytes(kept));
  return folder;
}

/// One checkpoint of each architecture.
fs::path checkpoint(const std::string& name) {
  if (name == "mixtral") {
    return fixture("f32");
  }
  if (name == "mixtral_bf16") {
    return fixture("bf16");
  }
  if (name == "mixtral_tied") {
    return fixture("tied_wide_head");
  }
  if (name == "qwen3_moe") {
    return variant(family(name), name, {{"mlp_only_layers", json::array()}}, {0, 2});
  }
  if (name == "qwen2_moe") {
    return variant(family(name), name, {{"decoder_sparse_step", 1}}, {1, 3});
  }
  if (name == "olmoe") {
    return variant(family(name), name, {{"clip_qkv", nullptr}});
  }
  if (name == "gpt_oss" || name == "gpt_oss_mxfp4") {
    return variant(family(name), name, {{"swiglu_limit", 7.0}});
  }
  return family(name);
}

std::vector<float> logits_of(const fs::path& model, unsigned threads = 1) {
  const Engine engine = Engine::load(model, {.threads = threads});
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 20; ++i) {
    ids.push_back((7 * i * i + 3 * i + 1) % static_cast<std::uint32_t>(engine.config().vocab_size));
  }
  const SequenceTokens work{session.add_sequence(), ids};
  return session.step({&work, 1}, Phase::kPrefill).logits;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

class GgufDoor : public testing::TestWithParam<const char*> {};

/// The F32 export of checkpoint(name), made once.
const fs::path& exported(const std::string& name) {
  static std::map<std::string, fs::path> made;
  fs::path& file = made[name];
  if (file.empty()) {
    const fs::path folder = checkpoint(name);
    file = fresh_folder("export_" + name) / (folder.filename().string() + ".gguf");
    EXPECT_EQ(export_gguf(folder, file, DType::kF32).by_type.size(), 1U);
  }
  return file;
}

TEST_P(GgufDoor, AnExportComputesTheSameBitsAsTheFolder) {
  const fs::path& file = exported(GetParam());
  const std::vector<float> expected = logits_of(checkpoint(GetParam()));
  EXPECT_EQ(logits_of(file), expected);
  EXPECT_EQ(logits_of(file, 3), expected);
}

TEST_P(GgufDoor, AnExportOfTheExportIsTheSameFile) {
  const fs::path& file = exported(GetParam());
  const fs::path again = fresh_folder("again") / file.filename();
  (void)export_gguf(file, again, DType::kF32);
  EXPECT_TRUE(read_file(again) == read_file(file));
}

TEST_P(GgufDoor, TheConfigurationSurvives) {
  const model::ModelConfig a = model::read_model_config(checkpoint(GetParam()));
  const model::ModelConfig b = model::read_model_config(exported(GetParam()));
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rope_scaling.factor, b.rope_scaling.factor);
  EXPECT_EQ(a.rope_scaling.mscale_all_dim, b.rope_scaling.mscale_all_dim);
  EXPECT_EQ(a.rope_scaling.truncate, b.rope_scaling.truncate);
  EXPECT_EQ(a.eos_tokens, b.eos_tokens);
  EXPECT_EQ(a.gate.renormalize, b.gate.renormalize);
  EXPECT_EQ(a.gate.n_group, b.gate.n_group);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
}

TEST_P(GgufDoor, AMissingTensorIsNamed) {
  const fs::path& file = exported(GetParam());
  const model::Gguf whole = model::Gguf::open(file);
  const std::string bytes = read_file(file);
  std::size_t tried = 0;
  for (const auto& [name, view] : whole.tensors()) {
    if (tried++ % 5 != 0 || name == "token_embd.weight" || name == "output.weight") {
      continue;  // without an output matrix the embedding serves
    }
    // Renamed in place: tensor infos follow the metadata.
    std::string changed = bytes;
    changed[changed.find(name, bytes.find("token_embd.weight")) + name.size() - 1] = 'X';
    write_plain("renamed.gguf", changed);
    const std::string text = error_of([] { (void)Engine::load("renamed.gguf", {}); });
    EXPECT_NE(text.find('"' + name + "\" is missing"), std::string::npos) << name << ": " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufDoor,
                         testing::Values("mixtral", "mixtral_bf16", "mixtral_tied", "qwen3_moe",
                                         "qwen2_moe", "olmoe", "deepseek_v2", "deepseek_v3",
                                         "deepseek_v3_fp8", "gpt_oss", "gpt_oss_mxfp4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '_');
                           return name;
                         });

TEST(GgufExport, EveryEndTokenSurvivesAndWhatItCannotSayIsRefused) {
  const fs::path folder = fresh_folder("export_ends");
  fs::copy(family("deepseek_v3"), folder, fs::copy_options::recursive);
  const std::string config = read_file(folder / "config.json");
  const auto with = [&](const std::string& more) {
    std::string changed = config;
    const std::size_t at = changed.find("\"eos_token_id\": 0,");
    changed.replace(at, 18, more);
    write_plain(folder / "config.json", changed);
    return folder;
  };
  const fs::path file = folder / "m.gguf";
  (void)export_gguf(with("\"eos_token_id\": [5, 3, 9],"), file, DType::kF32);
  EXPECT_EQ(model::read_model_config(file).eos_tokens, (std::vector<std::uint32_t>{5, 3, 9}));
  const auto refused = [&](const std::string& more) {
    return error_of([&] { (void)export_gguf(with(more), file, DType::kF32); });
  };
  EXPECT_NE(refused("\"eos_token_id\": [5, 3, 9, 2],").find("4 tokens that end a text"),
            std::string::npos);
  EXPECT_NE(refused("\"rope_interleave\": false,").find("rope_interleave = false in deepseek2"),
            std::string::npos);
  EXPECT_NE(refused("\"router_dtype\": \"bfloat16\",").find("router_dtype = bfloat16"),
            std::string::npos);
}

fs::path shipped() { return fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios/checkpoints/sy-16x2"; }

/// Mixtral with rows of 256, which every block format divides; one layer, seeded values.
fs::path wide_mixtral() {
  const fs::path folder = fresh_folder("wide_mixtral");
  const std::uint64_t h = 256;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> shapes{
      {"model.embed_tokens.weight", {48, h}},
      {"lm_head.weight", {48, h}},
      {"model.norm.weight", {h}}};
  const std::string p = "model.layers.0.";
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
    shapes.push_back({p + norm, {h}});
  }
  for (const char* m : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    shapes.push_back({p + "self_attn." + m + ".weight", {h, h}});
  }
  shapes.push_back({p + "block_sparse_moe.gate.weight", {4, h}});
  for (int e = 0; e < 4; ++e) {
    for (const char* m : {"w1", "w2", "w3"}) {
      shapes.push_back({fmt::format("{}block_sparse_moe.experts.{}.{}.weight", p, e, m), {h, h}});
    }
  }
  std::uint64_t state = 1;
  std::vector<model::TensorData> tensors;
  for (const auto& [name, shape] : shapes) {
    std::vector<float> values(shape.size() == 1 ? h : shape[0] * shape[1]);
    for (float& v : values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      v = (static_cast<float>(state >> 40U) * 0x1p-24F - 0.5F) * 0.25F;
      v = shape.size() == 1 ? 1 + v : v;
    }
    tensors.push_back(model::TensorData::from_floats(name, DType::kF32, shape, values));
  }
  write_plain(folder / "config.json", json{{"model_type", "mixtral"},
                                           {"vocab_size", 48},
                                           {"hidden_size", h},
                                           {"intermediate_size", h},
                                           {"num_hidden_layers", 1},
                                           {"num_attention_heads", 4},
                                           {"num_key_value_heads", 4},
                                           {"num_local_experts", 4},
                                           {"num_experts_per_tok", 2},
                                           {"torch_dtype", "float32"},
                                           {"max_position_embeddings", 64},
                                           {"rope_theta", 100.0}}
                                          .dump());
  write_plain(folder / "model.safetensors", model::safetensors_bytes(tensors));
  return folder;
}

TEST(Gguf, PackedWeightsComputeWhatTheirWidenedValuesCompute) {
  const fs::path folder = wide_mixtral();
  const std::vector<float> exact = logits_of(folder);
  double square = 0;
  for (const float v : exact) {
    square += static_cast<double>(v) * v;
  }
  // Largest relative distance to the unquantised logits: a few rounding steps of the format, whose
  // values have 9, 12, 8 and 4 significant bits.
  for (const auto& [type, bound] :
       {std::pair{DType::kBf16, 0.02}, std::pair{DType::kF16, 0.003}, std::pair{DType::kQ8_0, 0.03},
        std::pair{DType::kQ4_0, 0.4}, std::pair{DType::kQ4K, 0.4}}) {
    const std::string name(model::dtype_name(type));
    const auto summary = export_gguf(folder, "packed.gguf", type);
    EXPECT_EQ(summary.fallbacks, 0U) << name;
    EXPECT_EQ(summary.by_type.at(model::file_dtype_name(type)), 9U) << name;
    const std::vector<float> got = logits_of("packed.gguf");
    if (type != DType::kBf16 && type != DType::kF16) {
      (void)export_gguf("packed.gguf", "wide.gguf", DType::kF32);
      EXPECT_EQ(got, logits_of("wide.gguf")) << name;
    }
    EXPECT_EQ(logits_of("packed.gguf", 2), got) << name;
    double error = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - exact[i], 2);
    }
    EXPECT_LE(std::sqrt(error / square), bound) << name;
    EXPECT_GT(std::sqrt(error / square), bound / 20) << name;
  }
}

TEST(Gguf, RowsThatDoNotFillBlocksAreStoredWiderAndCounted) {
  // Rows of 128 and 192 values: Q4_K asks for 256, Q8_0 for 32.
  const auto summary = export_gguf(shipped(), "shipped.gguf", DType::kQ4K);
  EXPECT_EQ(summary.by_type.count("Q4_K"), 0U);
  EXPECT_EQ(summary.fallbacks, summary.by_type.at("Q8_0"));
  EXPECT_EQ(summary.by_type.at("F32") + summary.by_type.at("Q8_0"), summary.tensors);
}

TEST(Gguf, TheTokenizerTravelsWithTheFile) {
  (void)export_gguf(shipped(), "tokenizer.gguf", DType::kQ8_0);
  const auto from_file = model::load_tokenizer("tokenizer.gguf");
  const auto from_folder = model::load_tokenizer(shipped());
  for (const std::string text : {"The quick brown fox, 12345 times.", "größe 語 \xF0\x9F\x9A\x82",
                                 "a<|endoftext|>b", "int main() {\n\treturn 0;\n}\n"}) {
    const auto ids = from_folder.encode(text);
    EXPECT_EQ(from_file.encode(text), ids) << text;
    EXPECT_EQ(from_file.decode(ids), from_folder.decode(ids)) << text;
  }
  (void)export_gguf(fixture("f32"), "silent.gguf", DType::kF32);
  EXPECT_NE(error_of([] { (void)model::load_tokenizer("silent.gguf"); }).find("no tokenizer"),
            std::string::npos);
}

TEST(Gguf, WhatAnArchitectureCannotSayIsRefusedByName) {
  const auto refused = [](const fs::path& folder, const std::string& what) {
    const std::string text =
        error_of([&] { (void)export_gguf(folder, "refused.gguf", DType::kF32); });
    EXPECT_NE(text.find("unsupported in GGUF: " + what), std::string::npos) << text;
    EXPECT_FALSE(fs::exists("refused.gguf"));
  };
  refused(fixture("window"), "a sliding window in llama");
  refused(family("olmoe"), "clip_qkv in olmoe");
  refused(family("qwen2_moe"), "dense layers in qwen2moe");
  refused(family("qwen3_moe"), "dense layers in qwen3moe");
  refused(family("gpt_oss"), "swiglu_limit = 1.5 in gpt-oss");
  refused(family("deepseek_v2_lite"), "mscale = 1 with mscale_all_dim = 0.5");
  refused(variant(family("qwen3_moe"), "not_renormalised",
                  {{"mlp_only_layers", json::array()}, {"norm_topk_prob", false}}, {0, 2}),
          "norm_topk_prob = false in qwen3moe");
}

TEST(Gguf, NanWeightsAreNotQuantised) {
  const auto folder = testing_support::changed_checkpoint("f32", "nan", [](auto& tensors) {
    testing_support::set_value(tensors.at("model.embed_tokens.weight"), 5,
                               std::numeric_limits<float>::quiet_NaN());
  });
  EXPECT_NE(error_of([&] {
              (void)export_gguf(folder, "nan.gguf", DType::kQ8_0);
            }).find("\"token_embd.weight\" holds a NaN or infinity"),
            std::string::npos);
  EXPECT_FALSE(fs::exists("nan.gguf"));
}

// A block's scale is a 16-bit float of at most 65504: Q8_0 reaches 127 times that.
TEST(Gguf, WeightsBeyondTheScaleOfABlockAreNotQuantised) {
  const auto folder = testing_support::changed_checkpoint("f32", "huge", [](auto& tensors) {
    testing_support::set_value(tensors.at("model.embed_tokens.weight"), 5, 1e7F);
  });
  const std::string error = error_of([&] { (void)export_gguf(folder, "huge.gguf", DType::kQ8_0); });
  EXPECT_NE(error.find("\"token_embd.weight\" holds a value beyond 8.319e+06, more than the FP16 "
                       "scale of q8_0 can say"),
            std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists("huge.gguf"));
  EXPECT_EQ(error_of([&] { (void)export_gguf(folder, "huge_f32.gguf", DType::kF32); }), "accepted");
}

TEST(Loading, ReportsEveryByteOnce) {
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  (void)Engine::load(fixture("f32"),
                     {.threads = 1, .progress = [&](std::uint64_t d, std::uint64_t t) {
                        EXPECT_GT(d, last);
                        last = d;
                        total = t;
                      }});
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, model::Checkpoint::open(fixture("f32")).total_bytes());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kShadowMemory = true;
#else
constexpr bool kShadowMemory = false;
#endif

/// VmHWM or VmRSS of this process in bytes.
std::uint64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoull(line.substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

/// How far loading `model` and running a few tokens raises the peak of a fresh child's memory.
std::uint64_t peak_of_loading(const fs::path& model) {
  int pipe_ends[2];
  EXPECT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts from here
    const std::uint64_t before = status_bytes("VmRSS");
    const Engine engine = Engine::load(model, {});
    Session session(engine, {});
    const std::vector<std::uint32_t> ids{1, 2, 3, 4, 5, 6, 7, 8};
    const SequenceTokens work{session.add_sequence(), ids};
    (void)session.step({&work, 1}, Phase::kPrefill);
    const std::uint64_t risen = status_bytes("VmHWM") - before;
    const bool sent = ::write(pipe_ends[1], &risen, sizeof risen) == sizeof risen;
    ::_exit(sent ? 0 : 1);
  }
  std::uint64_t risen = 0;
  EXPECT_EQ(::read(pipe_ends[0], &risen, sizeof risen), static_cast<ssize_t>(sizeof risen));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  return risen;
}

/// Tensors of arbitrary small values: name -> dtype and shape, written in that order.
void write_large(
    const fs::path& folder, const json& config,
    const std::vector<std::tuple<std::string, DType, std::vector<std::uint64_t>>>& all) {
  write_plain(folder / "config.json", config.dump());
  json header = json::object();
  std::uint64_t at = 0;
  for (const auto& [name, dtype, shape] : all) {
    std::uint64_t bytes = model::dtype_bits_x32(dtype) / 256;
    for (const auto d : shape) {
      bytes *= d;
    }
    header[name] = {{"dtype", std::string(model::safetensors_name(dtype))},
                    {"shape", shape},
                    {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  const std::string text = header.dump();
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text;
  const std::string chunk(1U << 20U, '\x3a');  // F32 and BF16 7e-4, E4M3 1.25, MXFP4 scale 2^-69
  for (std::uint64_t left = at; left > 0;) {
    const std::uint64_t n = std::min<std::uint64_t>(left, chunk.size());
    out.write(chunk.data(), static_cast<std::streamsize>(n));
    left -= n;
  }
}

using Tensors = std::vector<std::tuple<std::string, DType, std::vector<std::uint64_t>>>;

/// GPT-OSS with two layers and about 50 MB of experts, packed or plain.
fs::path large_gpt_oss(bool packed) {
  const std::uint64_t h = 512;
  const std::uint64_t e = packed ? 64 : 16;
  Tensors t{{"model.embed_tokens.weight", DType::kBf16, {64, h}},
            {"lm_head.weight", DType::kBf16, {64, h}},
            {"model.norm.weight", DType::kBf16, {h}}};
  for (int l = 0; l < 2; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      t.push_back({p + norm + ".weight", DType::kBf16, {h}});
    }
    for (const char* m : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      t.push_back({p + "self_attn." + m + ".weight", DType::kBf16, {h, h}});
      t.push_back({p + "self_attn." + m + ".bias", DType::kBf16, {h}});
    }
    t.push_back({p + "self_attn.sinks", DType::kBf16, {8}});
    t.push_back({p + "mlp.router.weight", DType::kBf16, {e, h}});
    t.push_back({p + "mlp.router.bias", DType::kBf16, {e}});
    t.push_back({p + "mlp.experts.gate_up_proj_bias", DType::kBf16, {e, 2 * h}});
    t.push_back({p + "mlp.experts.down_proj_bias", DType::kBf16, {e, h}});
    for (const auto& [m, rows] : {std::pair{"gate_up_proj", 2 * h}, std::pair{"down_proj", h}}) {
      if (packed) {
        t.push_back({p + "mlp.experts." + m + "_blocks", DType::kU8, {e, rows, h / 32, 16}});
        t.push_back({p + "mlp.experts." + m + "_scales", DType::kU8, {e, rows, h / 32}});
      } else {
        t.push_back({p + "mlp.experts." + m, DType::kBf16, {e, h, rows}});
      }
    }
  }
  json config = {
      {"model_type", "gpt_oss"},  {"rope_scaling", nullptr},  {"vocab_size", 64},
      {"hidden_size", h},         {"intermediate_size", h},   {"num_hidden_layers", 2},
      {"num_attention_heads", 8}, {"num_key_value_heads", 8}, {"head_dim", 64},
      {"num_local_experts", e},   {"num_experts_per_tok", 2}, {"max_position_embeddings", 64},
      {"torch_dtype", "bfloat16"}};
  if (packed) {
    config["quantization_config"] = {{"quant_method", "mxfp4"}};
  }
  const fs::path folder = fresh_folder(packed ? "large_mxfp4" : "large_bf16");
  write_large(folder, config, t);
  return folder;
}

/// DeepSeek-V3 with one dense and two sparse layers in FP8 blocks.
fs::path large_deepseek() {
  const std::uint64_t h = 512;
  const std::uint64_t e = 32;
  Tensors t{{"model.embed_tokens.weight", DType::kBf16, {64, h}},
            {"lm_head.weight", DType::kBf16, {64, h}},
            {"model.norm.weight", DType::kBf16, {h}}};
  const auto fp8 = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    t.push_back({name + ".weight", DType::kF8E4M3, {rows, cols}});
    t.push_back(
        {name + ".weight_scale_inv", DType::kF32, {(rows + 127) / 128, (cols + 127) / 128}});
  };
  for (int l = 0; l < 3; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      t.push_back({p + norm + ".weight", DType::kBf16, {h}});
    }
    fp8(p + "self_attn.q_proj", 8 * 96, h);
    fp8(p + "self_attn.kv_a_proj_with_mqa", 128 + 32, h);
    t.push_back({p + "self_attn.kv_a_layernorm.weight", DType::kBf16, {128}});
    fp8(p + "self_attn.kv_b_proj", 8 * 128, 128);
    fp8(p + "self_attn.o_proj", h, 8 * 64);
    std::vector<std::string> mlps;
    if (l == 0) {
      mlps.emplace_back("mlp.");
    } else {
      t.push_back({p + "mlp.gate.weight", DType::kBf16, {e, h}});
      t.push_back({p + "mlp.gate.e_score_correction_bias", DType::kF32, {e}});
      mlps.emplace_back("mlp.shared_experts.");
      for (std::uint64_t i = 0; i < e; ++i) {
        mlps.push_back(fmt::format("mlp.experts.{}.", i));
      }
    }
    for (const std::string& m : mlps) {
      fp8(p + m + "gate_proj", h, h);
      fp8(p + m + "up_proj", h, h);
      fp8(p + m + "down_proj", h, h);
    }
  }
  const json config = {
      {"model_type", "deepseek_v3"},
      {"vocab_size", 64},
      {"hidden_size", h},
      {"intermediate_size", h},
      {"moe_intermediate_size", h},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 8},
      {"n_routed_experts", e},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", 2},
      {"n_group", 1},
      {"topk_group", 1},
      {"first_k_dense_replace", 1},
      {"kv_lora_rank", 128},
      {"qk_nope_head_dim", 64},
      {"qk_rope_head_dim", 32},
      {"v_head_dim", 64},
      {"max_position_embeddings", 64},
      {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}};
  const fs::path folder = fresh_folder("large_fp8");
  write_large(folder, config, t);
  return folder;
}

void expect_held_once(const fs::path& model) {
  if (kShadowMemory) {
    GTEST_SKIP() << "a sanitizer's shadow counts as memory";
  }
  const auto weights = static_cast<double>(model::Checkpoint::open(model).total_bytes());
  ASSERT_GT(weights, 4e7);
  EXPECT_LE(static_cast<double>(peak_of_loading(model)), 1.1 * weights) << model;
  // Not less either: the weights are in memory when loading is done.
  EXPECT_GE(static_cast<double>(peak_of_loading(model)), 0.9 * weights) << model;
  fs::remove_all(model);
}

TEST(Loading, HoldsMxfp4ExpertsOnce) { expect_held_once(large_gpt_oss(true)); }

TEST(Loading, HoldsTransposedExpertsOnce) { expect_held_once(large_gpt_oss(false)); }

TEST(Loading, HoldsFp8BlocksOnce) { expect_held_once(large_deepseek()); }

TEST(Loading, HoldsAGgufFileOnce) {
  const fs::path folder = large_gpt_oss(false);
  (void)export_gguf(folder, "large.gguf", DType::kBf16);
  fs::remove_all(folder);
  expect_held_once("large.gguf");
}

}  // namespace
}  // namespace switchyard
