// SPDX-License-Identifier: Apache-2.0
// The shape of a model, read from a Hugging Face config.json or from one of our article presets.
// Key names and class defaults: transformers' configuration_*.py and DeepSeek's remote code, as
// compiled in engine/README.md. Plain data: no weight, no routing code.
//
// Not modelled: multi-token prediction layers (counted nowhere, skipped when a checkpoint has
// them), encoder-decoder models, vision towers, linear attention.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/dtype.hpp"

namespace switchyard::model {

enum class Family : std::uint8_t {
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kOlmoe,
  kDeepseekMoe,  ///< model_type "deepseek" (DeepSeek-MoE 16B: MHA, softmax, greedy).
  kDeepseekV2,
  kDeepseekV3,
  kGptOss,
  kArticle,  ///< our presets of the articles' models and dense baselines (model_type "article").
  kLab,      ///< our lab checkpoints: Mixtral with other positions, or dense (engine/README.md).
};
/// The model_type text: "mixtral", "qwen2_moe", …
std::string_view family_name(Family family);

enum class AttentionKind : std::uint8_t { kGqa, kMla };

/// How a model tells positions apart. kAbsolute: sinusoids of the position added to the embedding.
/// kAlibi: a penalty on attention scores, linear in the distance.
enum class PositionKind : std::uint8_t { kRope, kAbsolute, kAlibi };

/// What follows attention in a layer. kNone: attention only (gpt4_s0's odd layers).
enum class FfnKind : std::uint8_t { kDense, kMoe, kNone };

/// How one expert (and a dense FFN of the same model) is built.
enum class ExpertKind : std::uint8_t {
  kSwiGlu,         ///< w2(silu(w1 x) · (w3 x)): three matrices.
  kTwoMatrix,      ///< w2(act(w1 x)): two matrices (article presets).
  kSwiGluClamped,  ///< GPT-OSS: interleaved gate/linear, clamps, biases.
};

enum class GateScore : std::uint8_t { kSoftmax, kSigmoid, kIdentity };
enum class GroupScore : std::uint8_t { kNone, kMax, kSumTop2 };

/// The family's routing rule as plain fields (generic router of engine/README.md); engine/nn turns
/// it into a routing::GateSpec.
struct GateFields {
  GateScore score = GateScore::kSoftmax;
  bool renormalize = true;             ///< weights divided by their sum over the k slots.
  double eps = 0;                      ///< added to that sum (DeepSeek 1e-20).
  double scale = 1;                    ///< routed_scaling_factor.
  bool scale_excludes_renorm = false;  ///< DeepSeek-V2: scale only when not renormalised.
  std::uint32_t n_group = 1;
  std::uint32_t topk_group = 1;
  GroupScore group_score = GroupScore::kNone;
  bool mask_with_zero = false;   ///< DeepSeek-V2 masks other groups with 0.0, V3 with −inf.
  bool correction_bias = false;  ///< e_score_correction_bias, selection only.
  bool linear_bias = false;      ///< the router's own bias (GPT-OSS).
  bool fp32_linear = false;      ///< reference computes the router GEMM in fp32.
  /// config.json asks for a router in BF16 (router_dtype); the engine's default is float32.
  bool bf16_linear = false;
};

/// rope_scaling / rope_parameters. type "none" when absent.
struct RopeScaling {
  std::string type = "none";  ///< none | yarn
  double factor = 1;
  std::uint64_t original_max_position = 0;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 1, mscale_all_dim = 0;
  bool truncate = true;
  bool has_mscale = false;  ///< mscale and mscale_all_dim were given.
};

struct LayerSpec {
  FfnKind ffn = FfnKind::kMoe;
  std::uint64_t sliding_window = 0;  ///< tokens; 0 = full attention.
};

/// How the router is built. Real models: one linear map [E,H] per MoE layer.
enum class RouterKind : std::uint8_t {
  kLinear,
  kHiddenMlp,  ///< H → router_hidden → E with biases, per MoE layer (gpt4_s1, gpt4_s3).
  kTokenMlp,   ///< token id → 128 → LayerNorm → 1024 → E, one for all layers (gpt4_s0).
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): few exist; fields stand by meaning
struct ModelConfig {
  std::string name;        ///< file stem or folder name; a preset's own "name".
  std::string model_type;  ///< as in the file.
  Family family = Family::kMixtral;

  std::uint64_t vocab_size = 0;
  std::uint64_t hidden_size = 0;
  std::uint64_t num_layers = 0;  ///< transformer layers, MTP not counted.
  bool tie_word_embeddings = false;
  std::uint64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  bool final_norm = true;  ///< article presets may leave it out.

  AttentionKind attention = AttentionKind::kGqa;
  std::uint64_t num_heads = 0;
  std::uint64_t num_kv_heads = 0;
  std::uint64_t head_dim = 0;    ///< GQA; for MLA qk_nope + qk_rope.
  std::uint64_t v_head_dim = 0;  ///< GQA: head_dim.
  // MLA only (0 otherwise). q_lora_rank 0 = plain q_proj.
  std::uint64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0;
  bool qkv_bias = false;          ///< Qwen2, GPT-OSS.
  bool output_bias = false;       ///< GPT-OSS.
  bool qk_norm_per_head = false;  ///< Qwen3: RMSNorm over head_dim.
  bool qk_norm_full = false;      ///< OLMoE: RMSNorm over heads·head_dim before the split.
  bool attention_sinks = false;   ///< GPT-OSS.
  std::optional<double> clip_qkv;
  PositionKind positions = PositionKind::kRope;
  double position_gain = 1;       ///< kAbsolute: factor of the sinusoids.
  double rope_theta = 10000;      ///< kAbsolute: base of the sinusoids' wavelengths.
  bool rope_interleaved = false;  ///< DeepSeek pairs (2i, 2i+1); halves otherwise.
  RopeScaling rope_scaling;

  ExpertKind expert_kind = ExpertKind::kSwiGlu;
  std::uint64_t num_experts = 0;  ///< E routed experts of a MoE layer; 0 = dense model.
  std::uint64_t top_k = 0;
  std::uint64_t expert_intermediate = 0;  ///< I of one routed expert.
  std::uint64_t dense_intermediate = 0;   ///< I of a dense layer; 0 if there is none.
  std::uint64_t shared_intermediate = 0;  ///< I of the shared MLP (all shared experts together).
  std::uint64_t num_shared_experts = 0;
  bool shared_expert_gate = false;  ///< Qwen2: scalar sigmoid gate per token.
  GateFields gate;
  RouterKind router = RouterKind::kLinear;
  std::vector<std::uint64_t> router_hidden;  ///< inner widths for the MLP routers.
  double router_jitter = 0;                  ///< router_jitter_noise, training only.
  double router_aux_loss_coef = 0;
  double swiglu_limit = 0;  ///< GPT-OSS clamp (7.0); 0 otherwise.

  std::vector<LayerSpec> layers;       ///< [num_layers]
  DType stored_dtype = DType::kBf16;   ///< torch_dtype / dtype of the file.
  std::string quantization = "none";   ///< none | fp8_block | mxfp4
  DType expert_dtype = DType::kBf16;   ///< format of the routed experts (gpt4_s4_int4: int4).
  std::uint64_t num_nextn_layers = 0;  ///< MTP modules in the checkpoint: not modelled.
  std::optional<std::uint32_t> bos_token;
  std::vector<std::uint32_t> eos_tokens;  ///< Each ends a text; the first is the main one.
  /// Totals an article states without a shape that gives them, in parameters: any of total, active,
  /// expert (one routed expert over all layers), embedding, attention, backbone. accounting.hpp
  /// uses them in place of the computed part and says so.
  std::map<std::string, std::uint64_t> stated;
  std::vector<std::string> notes;  ///< what was skipped or assumed, for people.

  [[nodiscard]] bool is_moe(std::size_t layer) const { return layers[layer].ffn == FfnKind::kMoe; }
  [[nodiscard]] bool ends_text(std::uint32_t token) const {
    return std::find(eos_tokens.begin(), eos_tokens.end(), token) != eos_tokens.end();
  }
  /// Layer numbers of the MoE layers, ascending.
  [[nodiscard]] std::vector<std::uint32_t> moe_layers() const;
  [[nodiscard]] std::uint64_t num_moe_layers() const;
};

/// model_type values read_model_config accepts, in the order of Family.
const std::vector<std::string>& supported_model_types();

/// Reads a config.json, `folder/config.json`, or a .gguf file's metadata. InputError names the file
/// and the JSON pointer
/// ("config.json: /num_experts_per_tok"). Refused by name: unknown model_type, unsupported
/// activation, rope scaling, quantisation or attention feature. Each count is within [1, 2^40] and
/// products that matter (heads · head_dim, layers · experts) stay below 2^63.
ModelConfig read_model_config(const std::filesystem::path& path_or_folder);
/// The same on text; `where` is used as the file name in messages.
ModelConfig parse_model_config(std::string_view json, const std::string& where,
                               const std::string& name);

/// Finds a model: an existing file or folder, else `<root>/scenarios/models/<name>.json` with '-'
/// and '_' (and '.') taken as equal, else `<root>/scenarios/checkpoints/<name>`. InputError with
/// the nearest preset's name otherwise. `root` is the folder that contains `scenarios`; if it has
/// no such subfolder it is taken as the `scenarios` folder itself.
std::filesystem::path find_model(const std::string& name_or_path,
                                 const std::filesystem::path& root);
/// Names of the presets under `<root>/scenarios/models`, sorted.
std::vector<std::string> model_preset_names(const std::filesystem::path& root);

}  // namespace switchyard::model
