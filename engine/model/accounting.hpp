// SPDX-License-Identifier: Apache-2.0
// Parameters, bytes, KV cache, FLOPs and the eight activation rates of a model, in exact integers.
//
// GQA attention of one layer: H·h·d + 2·H·kv·d + h·d·H (+ biases, q/k norms, sinks).
// MLA: q_a, q_b (or q), kv_a, kv_b, o and their norms. SwiGLU FFN: 3·H·I; two-matrix: 2·H·I.
// KV cache per token and layer: GQA 2·kv·d, MLA kv_lora_rank + qk_rope_head_dim values.
//
// Not modelled: quantisation scales other than those of the DType, MTP modules, optimizer states.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/model/model_config.hpp"

namespace switchyard::model {

/// Storage formats by part. `shared` covers everything that is neither a routed expert nor the
/// router: embeddings, attention, norms, dense FFNs, shared experts, head.
struct DTypeChoice {
  DType experts = DType::kBf16;
  DType shared = DType::kBf16;
  DType router = DType::kBf16;
  DType kv = DType::kBf16;
  /// Embeddings, norms and head when they differ from `shared` (FP8 files keep them in BF16).
  std::optional<DType> embedding = std::nullopt;
};

/// Formats the model's own file uses (FP8 block models: experts and other matrices fp8, router,
/// embeddings, norms and head as stored).
DTypeChoice default_dtypes(const ModelConfig& config);

/// Parameters by part. A model with tied embeddings has head = 0.
struct ParameterCount {
  std::uint64_t embedding = 0;
  std::uint64_t attention = 0;       ///< projections, their biases, sinks.
  std::uint64_t norms = 0;           ///< block norms, q/k and latent norms, final norm.
  std::uint64_t router = 0;          ///< with biases and correction biases.
  std::uint64_t experts = 0;         ///< routed experts.
  std::uint64_t expert_biases = 0;   ///< part of `experts`: stored in the `shared` format.
  std::uint64_t shared_experts = 0;  ///< with the shared expert's gate.
  std::uint64_t dense_ffn = 0;
  std::uint64_t head = 0;
  std::uint64_t stated_backbone = 0;  ///< preset with a stated backbone in place of the parts.
  [[nodiscard]] std::uint64_t total() const;
  /// Everything but routed experts.
  [[nodiscard]] std::uint64_t dense() const { return total() - experts; }
};

/// All parameters of the model; `stated` figures replace parts as ModelConfig::stated says.
ParameterCount count_parameters(const ModelConfig& config);
/// Parameters a token passes through: as above with k instead of E experts. The input embedding is
/// counted whole; subtract `.embedding` for the other convention (with tied embeddings the matrix
/// works as head, so nothing is to subtract: active_without_input_embedding does this).
ParameterCount count_active(const ModelConfig& config);
std::uint64_t active_without_input_embedding(const ModelConfig& config);

/// Parameters of one routed expert in one layer (weights and biases).
std::uint64_t expert_parameters(const ModelConfig& config);
/// The same over all MoE layers ("one expert" in the articles' sense).
std::uint64_t expert_parameters_all_layers(const ModelConfig& config);
/// Weights only (no biases) of one routed expert; what an expert GEMM reads per layer.
std::uint64_t expert_matrix_elements(const ModelConfig& config);

/// Parameters by part of one layer (embedding and head 0), without `stated` replacements.
ParameterCount count_layer(const ModelConfig& config, std::size_t layer);

/// Bytes of the whole model / of one routed expert in one layer / of all routed experts of a layer.
/// Expert biases (GPT-OSS) stay in the shared or stored format, as in the published files.
std::uint64_t weight_bytes(const ParameterCount& count, const DTypeChoice& dtype);
std::uint64_t expert_bytes(const ModelConfig& config, DType dtype);
std::uint64_t routed_bytes_per_layer(const ModelConfig& config, DType dtype);

/// KV values one token adds in one layer: GQA 2·kv·d, MLA rank + rope.
std::uint64_t kv_values_per_token_layer(const ModelConfig& config);
/// Bytes one token adds over all layers, sliding windows ignored.
std::uint64_t kv_bytes_per_token(const ModelConfig& config, DType dtype);
/// Bytes held by one sequence of `context` tokens; a windowed layer keeps min(context, window).
std::uint64_t kv_bytes(const ModelConfig& config, DType dtype, std::uint64_t context);
/// What MLA would cost if keys and values were cached per head (naive MHA); equal to
/// kv_bytes_per_token for GQA models.
std::uint64_t kv_bytes_per_token_naive(const ModelConfig& config, DType dtype);

/// FLOPs of one token at context length `context` (a multiply-add is 2; norms, softmax, RoPE and
/// sampling are left out). A windowed layer attends min(context, window) tokens.
struct FlopCount {
  std::uint64_t projections = 0;  ///< attention projections, 2 per weight.
  std::uint64_t scores = 0;       ///< 2·h·(d_qk + d_v) per attended token and layer.
  std::uint64_t router = 0;
  std::uint64_t experts = 0;  ///< k routed experts.
  std::uint64_t shared_experts = 0;
  std::uint64_t dense_ffn = 0;
  std::uint64_t head = 0;
  [[nodiscard]] std::uint64_t total() const;
};
FlopCount flops_per_token(const ModelConfig& config, std::uint64_t context);

/// What a step did, summed over the MoE layers. For an estimate use `expected_step`.
struct StepActivity {
  std::uint64_t tokens = 0;           ///< T, ≥ 1.
  std::uint64_t accepted = 0;         ///< kept + rerouted assignments, all MoE layers.
  std::uint64_t touched_experts = 0;  ///< experts with ≥ 1 token, summed over MoE layers.
  std::uint64_t capacity = 0;         ///< C per expert; 0 = unlimited (slot_occupancy is n/a).
};

/// The eight definitions (fractions, 0…1; NaN = n/a), always shown side by side.
struct ActivationRates {
  double expert_fraction;   ///< k/E
  double touched_fraction;  ///< touched / (E · MoE layers)
  double slot_occupancy;    ///< accepted / (E·C · MoE layers)
  double kept_fraction;     ///< accepted / (T·E · MoE layers)
  double param_narrow;      ///< expert parameters used per token / P_total
  double param_wide;        ///< (dense + expert used per token) / P_total
  double layer_fraction;    ///< one layer's used expert parameters / P_total
  double traffic_share;     ///< weight bytes read in the step / all weight bytes
};
/// "expert_fraction", … in the order of the struct, with the formula of each.
struct ActivationDefinition {
  std::string name, formula;
  double ActivationRates::*value;
};
const std::vector<ActivationDefinition>& activation_definitions();

/// `total_parameters` overrides P_total when not 0 (an article's 1.8 T). Dense models: the expert
/// rates are NaN and param_wide is 1. In traffic_share the embedding counts min(T, V) rows.
ActivationRates activation_rates(const ModelConfig& config, const DTypeChoice& dtype,
                                 const StepActivity& step, std::uint64_t total_parameters = 0);

/// E·(1 − (1 − k/E)^T): expected distinct experts of T tokens with uniform independent choices.
double expected_distinct_experts(std::uint64_t experts, std::uint64_t top_k, std::uint64_t tokens);
/// A step of T tokens under uniform routing without capacity: accepted = T·k per layer, touched =
/// rounded expectation.
StepActivity expected_step(const ModelConfig& config, std::uint64_t tokens);

}  // namespace switchyard::model
