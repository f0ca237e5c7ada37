// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/weights.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

WeightType weight_type(const model::TensorView& tensor) {
  switch (tensor.dtype) {
    case model::DType::kF32:
      return WeightType::kF32;
    case model::DType::kF16:
      return WeightType::kF16;
    default:
      // Checkpoint::take() hands out no other formats.
      SWITCHYARD_ASSERT(tensor.dtype == model::DType::kBf16, tensor.name);
      return WeightType::kBf16;
  }
}

WeightView matrix(model::Checkpoint& checkpoint, const std::string& name, std::uint64_t rows,
                  std::uint64_t cols) {
  const model::TensorView t = checkpoint.take(name, {rows, cols});
  return {t.data.data(), weight_type(t), rows, cols};
}

WeightView vector(model::Checkpoint& checkpoint, const std::string& name, std::uint64_t size) {
  const model::TensorView t = checkpoint.take(name, {size});
  return {t.data.data(), weight_type(t), 1, size};
}

/// Rows [first, first + rows) of a [*, cols] block that starts at `view`.
WeightView part(const WeightView& view, std::size_t first, std::size_t rows, std::size_t cols) {
  const auto* bytes = static_cast<const std::byte*>(view.data);
  return {bytes + first * cols * weight_bytes(view.type), view.type, rows, cols};
}

}  // namespace

void require_runnable(const model::ModelConfig& config, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(where, "unsupported by the engine: " + what,
                     "the engine runs the Mixtral family; other models can be accounted and "
                     "simulated");
  };
  if (config.family != model::Family::kMixtral) {
    refuse(fmt::format("model_type \"{}\"", config.model_type));
  }
  if (config.rope_scaling.type != "none") {
    refuse(fmt::format("rope scaling \"{}\"", config.rope_scaling.type));
  }
  if (config.quantization != "none") {
    refuse(fmt::format("quantization \"{}\"", config.quantization));
  }
  if (config.head_dim % 2 != 0) {
    refuse(fmt::format("odd head_dim {}", config.head_dim));
  }
}

ModelWeights take_weights(model::Checkpoint& checkpoint) {
  const model::ModelConfig& c = checkpoint.config();
  const std::uint64_t h = c.hidden_size;
  const std::uint64_t q = c.num_heads * c.head_dim;
  const std::uint64_t kv = c.num_kv_heads * c.head_dim;
  const std::uint64_t inner = c.expert_intermediate;
  ModelWeights out;
  out.embedding = matrix(checkpoint, "model.embed_tokens.weight", c.vocab_size, h);
  out.layers.resize(c.num_layers);
  for (std::size_t l = 0; l < c.num_layers; ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    LayerWeights& layer = out.layers[l];
    layer.input_norm = vector(checkpoint, prefix + "input_layernorm.weight", h);
    layer.q = matrix(checkpoint, prefix + "self_attn.q_proj.weight", q, h);
    layer.k = matrix(checkpoint, prefix + "self_attn.k_proj.weight", kv, h);
    layer.v = matrix(checkpoint, prefix + "self_attn.v_proj.weight", kv, h);
    layer.o = matrix(checkpoint, prefix + "self_attn.o_proj.weight", h, q);
    layer.post_attention_norm = vector(checkpoint, prefix + "post_attention_layernorm.weight", h);
    layer.experts.resize(c.num_experts);
    if (checkpoint.has(prefix + "mlp.experts.gate_up_proj")) {
      layer.router = matrix(checkpoint, prefix + "mlp.gate.weight", c.num_experts, h);
      const model::TensorView up =
          checkpoint.take(prefix + "mlp.experts.gate_up_proj", {c.num_experts, 2 * inner, h});
      const model::TensorView down =
          checkpoint.take(prefix + "mlp.experts.down_proj", {c.num_experts, h, inner});
      const WeightView all_up{up.data.data(), weight_type(up), 0, 0};
      const WeightView all_down{down.data.data(), weight_type(down), 0, 0};
      for (std::size_t e = 0; e < c.num_experts; ++e) {
        layer.experts[e] = {part(all_up, 2 * e * inner, inner, h),
                            part(all_up, (2 * e + 1) * inner, inner, h),
                            part(all_down, e * h, h, inner)};
      }
      continue;
    }
    layer.router = matrix(checkpoint, prefix + "block_sparse_moe.gate.weight", c.num_experts, h);
    for (std::size_t e = 0; e < c.num_experts; ++e) {
      const std::string expert = fmt::format("{}block_sparse_moe.experts.{}.", prefix, e);
      layer.experts[e].gate = matrix(checkpoint, expert + "w1.weight", inner, h);
      layer.experts[e].up = matrix(checkpoint, expert + "w3.weight", inner, h);
      layer.experts[e].down = matrix(checkpoint, expert + "w2.weight", h, inner);
    }
  }
  out.final_norm = vector(checkpoint, "model.norm.weight", h);
  out.head =
      c.tie_word_embeddings ? out.embedding : matrix(checkpoint, "lm_head.weight", c.vocab_size, h);
  checkpoint.finish();
  return out;
}

}  // namespace switchyard
