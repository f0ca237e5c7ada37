// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

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

using Owned = std::vector<std::shared_ptr<const std::vector<std::byte>>>;

/// A copy of rows first, first + step, … (`rows` of them) of the transpose of w; w [cols, *] has
/// `width` columns. Element size only matters, so nothing is rounded.
WeightView transposed(const WeightView& w, std::size_t width, std::size_t first, std::size_t step,
                      std::size_t rows, std::size_t cols, Owned& owned) {
  const std::size_t size = weight_bytes(w.type);
  const auto* from = static_cast<const std::byte*>(w.data);
  auto copy = std::make_shared<std::vector<std::byte>>(rows * cols * size);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      std::memcpy(copy->data() + (r * cols + c) * size,
                  from + (c * width + first + r * step) * size, size);
    }
  }
  const WeightView view{copy->data(), w.type, rows, cols};
  owned.push_back(std::move(copy));
  return view;
}

constexpr std::size_t kFp8Block = 128;

/// OCP E4M3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, all ones is NaN.
float e4m3_to_float(std::uint8_t bits) {
  const int exponent = (bits >> 3U) & 15U;
  const int mantissa = bits & 7U;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if (exponent == 15 && mantissa == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x80U) != 0 ? -value : value;
}

/// w[n, k] * scale[n / 128, k / 128], in float32.
WeightView widened_fp8(const model::TensorView& w, const std::vector<float>& scale,
                       std::size_t rows, std::size_t cols, Owned& owned) {
  std::array<float, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = e4m3_to_float(static_cast<std::uint8_t>(i));
  }
  const std::size_t across = (cols + kFp8Block - 1) / kFp8Block;
  auto copy = std::make_shared<std::vector<std::byte>>(rows * cols * sizeof(float));
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const float value = table[std::to_integer<std::size_t>(w.data[r * cols + c])] *
                          scale[r / kFp8Block * across + c / kFp8Block];
      std::memcpy(copy->data() + (r * cols + c) * sizeof value, &value, sizeof value);
    }
  }
  const WeightView view{copy->data(), WeightType::kF32, rows, cols};
  owned.push_back(std::move(copy));
  return view;
}

/// Rows first, first + step, … (`rows` of them, `cols` values each) of MXFP4 blocks, as BF16, which
/// holds every value exactly: 32 values share a scale 2^(s - 127); of a byte, the low half is
/// first.
WeightView widened_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                         std::size_t first, std::size_t step, std::size_t rows, std::size_t cols,
                         Owned& owned) {
  static constexpr std::array<float, 16> kValue{0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  auto copy = std::make_shared<std::vector<std::byte>>(rows * cols * 2);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t start = (first + r * step) * cols;
    for (std::size_t c = 0; c < cols; ++c) {
      const auto byte = std::to_integer<unsigned>(blocks[(start + c) / 2]);
      const auto scale = std::to_integer<int>(scales[(start + c) / 32]);
      const float value =
          scale == 255 ? std::numeric_limits<float>::quiet_NaN()
                       : std::ldexp(kValue[c % 2 == 0 ? byte & 15U : byte >> 4U], scale - 127);
      const std::uint16_t bits = model::float_to_bf16(value);
      std::memcpy(copy->data() + (r * cols + c) * 2, &bits, 2);
    }
  }
  const WeightView view{copy->data(), WeightType::kBf16, rows, cols};
  owned.push_back(std::move(copy));
  return view;
}

/// Reads the tensors of one checkpoint by the names of its family.
class Taker {
 public:
  explicit Taker(model::Checkpoint& checkpoint) : in_(checkpoint), c_(checkpoint.config()) {}

  ModelWeights take() {
    const std::uint64_t h = c_.hidden_size;
    out_.embedding = matrix(in_, "model.embed_tokens.weight", c_.vocab_size, h);
    out_.layers.resize(c_.num_layers);
    for (std::size_t l = 0; l < c_.num_layers; ++l) {
      const std::string prefix = fmt::format("model.layers.{}.", l);
      LayerWeights& layer = out_.layers[l];
      layer.input_norm = vector(in_, prefix + "input_layernorm.weight", h);
      layer.post_attention_norm = vector(in_, prefix + "post_attention_layernorm.weight", h);
      if (c_.attention == model::AttentionKind::kMla) {
        latent_attention(layer, prefix + "self_attn.");
      } else {
        grouped_attention(layer, prefix + "self_attn.");
      }
      if (c_.is_moe(l)) {
        experts(layer, prefix);
        shared(layer, prefix + "mlp.");
      } else {
        layer.shared = {swiglu(prefix + "mlp.", c_.dense_intermediate)};
      }
    }
    out_.final_norm = vector(in_, "model.norm.weight", h);
    out_.head =
        c_.tie_word_embeddings ? out_.embedding : weight("lm_head.weight", c_.vocab_size, h);
    in_.finish();
    return std::move(out_);
  }

 private:
  /// A matrix as stored, or widened from FP8 blocks when it is stored so.
  WeightView weight(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    const model::TensorView* stored = in_.weights().find(name);
    if (c_.quantization != "fp8_block" || stored == nullptr ||
        stored->dtype != model::DType::kF8E4M3) {
      return matrix(in_, name, rows, cols);
    }
    const model::TensorView w = in_.take_stored(name, {rows, cols}, model::DType::kF8E4M3);
    const model::TensorView scale =
        in_.take(name + "_scale_inv",
                 {(rows + kFp8Block - 1) / kFp8Block, (cols + kFp8Block - 1) / kFp8Block});
    return widened_fp8(w, scale.to_float(), rows, cols, out_.owned);
  }

  void grouped_attention(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t q = c_.num_heads * c_.head_dim;
    const std::uint64_t kv = c_.num_kv_heads * c_.head_dim;
    layer.q = weight(prefix + "q_proj.weight", q, h);
    layer.k = weight(prefix + "k_proj.weight", kv, h);
    layer.v = weight(prefix + "v_proj.weight", kv, h);
    layer.o = weight(prefix + "o_proj.weight", h, q);
    if (c_.qkv_bias) {
      layer.q_bias = vector(in_, prefix + "q_proj.bias", q);
      layer.k_bias = vector(in_, prefix + "k_proj.bias", kv);
      layer.v_bias = vector(in_, prefix + "v_proj.bias", kv);
    }
    if (c_.output_bias) {
      layer.o_bias = vector(in_, prefix + "o_proj.bias", h);
    }
    if (c_.qk_norm_per_head || c_.qk_norm_full) {
      layer.q_norm = vector(in_, prefix + "q_norm.weight", c_.qk_norm_full ? q : c_.head_dim);
      layer.k_norm = vector(in_, prefix + "k_norm.weight", c_.qk_norm_full ? kv : c_.head_dim);
    }
    if (c_.attention_sinks) {
      layer.sinks = vector(in_, prefix + "sinks", c_.num_heads);
    }
  }

  void latent_attention(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t heads = c_.num_heads;
    const std::uint64_t plain = c_.qk_nope_head_dim;
    const std::uint64_t latent = c_.kv_lora_rank;
    if (c_.q_lora_rank == 0) {
      layer.q = weight(prefix + "q_proj.weight", heads * c_.head_dim, h);
    } else {
      layer.q_a = weight(prefix + "q_a_proj.weight", c_.q_lora_rank, h);
      layer.q_a_norm = vector(in_, prefix + "q_a_layernorm.weight", c_.q_lora_rank);
      layer.q_b = weight(prefix + "q_b_proj.weight", heads * c_.head_dim, c_.q_lora_rank);
    }
    layer.kv_a = weight(prefix + "kv_a_proj_with_mqa.weight", latent + c_.qk_rope_head_dim, h);
    layer.kv_a_norm = vector(in_, prefix + "kv_a_layernorm.weight", latent);
    const std::uint64_t per_head = plain + c_.v_head_dim;
    const WeightView b = weight(prefix + "kv_b_proj.weight", heads * per_head, latent);
    for (std::size_t j = 0; j < heads; ++j) {
      layer.k_absorbed.push_back(transposed(part(b, j * per_head, plain, latent), latent, 0, 1,
                                            latent, plain, out_.owned));
      layer.v_absorbed.push_back(part(b, j * per_head + plain, c_.v_head_dim, latent));
    }
    layer.o = weight(prefix + "o_proj.weight", h, heads * c_.v_head_dim);
  }

  ExpertView swiglu(const std::string& prefix, std::uint64_t inner) {
    return {weight(prefix + "gate_proj.weight", inner, c_.hidden_size),
            weight(prefix + "up_proj.weight", inner, c_.hidden_size),
            weight(prefix + "down_proj.weight", c_.hidden_size, inner)};
  }

  void shared(LayerWeights& layer, const std::string& prefix) {
    if (c_.shared_intermediate == 0) {
      return;
    }
    if (c_.shared_expert_gate) {
      layer.shared = {swiglu(prefix + "shared_expert.", c_.shared_intermediate)};
      layer.shared_gate = weight(prefix + "shared_expert_gate.weight", 1, c_.hidden_size);
    } else {
      layer.shared = {swiglu(prefix + "shared_experts.", c_.shared_intermediate)};
    }
  }

  void experts(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t inner = c_.expert_intermediate;
    if (c_.family == model::Family::kGptOss) {
      gpt_oss_experts(layer, prefix + "mlp.");
      return;
    }
    layer.experts.resize(c_.num_experts);
    const std::string fused = prefix + "mlp.experts.gate_up_proj";
    const bool mixtral = (c_.family == model::Family::kMixtral && !in_.has(fused)) ||
                         c_.family == model::Family::kLab;
    layer.router =
        weight(prefix + (mixtral ? "block_sparse_moe" : "mlp") + ".gate.weight", c_.num_experts, h);
    if (c_.gate.correction_bias) {
      const model::TensorView bias =
          in_.take(prefix + "mlp.gate.e_score_correction_bias", {c_.num_experts});
      layer.selection_bias = bias.to_float();
    }
    if (in_.has(fused)) {
      const model::TensorView up = in_.take(fused, {c_.num_experts, 2 * inner, h});
      const model::TensorView down =
          in_.take(prefix + "mlp.experts.down_proj", {c_.num_experts, h, inner});
      const WeightView all_up{up.data.data(), weight_type(up), 0, 0};
      const WeightView all_down{down.data.data(), weight_type(down), 0, 0};
      for (std::size_t e = 0; e < c_.num_experts; ++e) {
        layer.experts[e] = {part(all_up, 2 * e * inner, inner, h),
                            part(all_up, (2 * e + 1) * inner, inner, h),
                            part(all_down, e * h, h, inner)};
      }
      return;
    }
    for (std::size_t e = 0; e < c_.num_experts; ++e) {
      if (!mixtral) {
        layer.experts[e] = swiglu(fmt::format("{}mlp.experts.{}.", prefix, e), inner);
        continue;
      }
      const std::string expert = fmt::format("{}block_sparse_moe.experts.{}.", prefix, e);
      layer.experts[e] = {weight(expert + "w1.weight", inner, h),
                          weight(expert + "w3.weight", inner, h),
                          weight(expert + "w2.weight", h, inner)};
    }
  }

  struct Packed {
    std::span<const std::byte> blocks, scales;
  };
  /// NAME_blocks [E, rows, cols/32, 16] and NAME_scales [E, rows, cols/32].
  Packed take_packed(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    if (cols % 32 != 0) {
      throw InputError(
          in_.folder().string(),
          fmt::format("tensor \"{}_blocks\": {} inputs are no multiple of 32", name, cols));
    }
    const std::uint64_t count = c_.num_experts;
    return {in_.take_stored(name + "_blocks", {count, rows, cols / 32, 16}, model::DType::kU8).data,
            in_.take_stored(name + "_scales", {count, rows, cols / 32}, model::DType::kU8).data};
  }

  /// gate_up_proj [E, H, 2I] with gate and up alternating, down_proj [E, I, H]: inputs first, so
  /// both are copied transposed.
  void gpt_oss_experts(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t inner = c_.expert_intermediate;
    const std::uint64_t count = c_.num_experts;
    layer.router = weight(prefix + "router.weight", count, h);
    layer.router_bias = vector(in_, prefix + "router.bias", count);
    const auto raw = [&](const std::string& name, std::initializer_list<std::uint64_t> shape) {
      const model::TensorView t = in_.take(prefix + "experts." + name, shape);
      return WeightView{t.data.data(), weight_type(t), 0, 0};
    };
    const WeightView up_bias = raw("gate_up_proj_bias", {count, 2 * inner});
    const WeightView down_bias = raw("down_proj_bias", {count, h});
    const bool packed = c_.quantization == "mxfp4" && !in_.has(prefix + "experts.gate_up_proj");
    WeightView up;
    WeightView down;
    Packed packed_up;
    Packed packed_down;
    if (packed) {  // outputs first: [E, 2I, H] and [E, H, I]
      packed_up = take_packed(prefix + "experts.gate_up_proj", 2 * inner, h);
      packed_down = take_packed(prefix + "experts.down_proj", h, inner);
    } else {
      up = raw("gate_up_proj", {count, h, 2 * inner});
      down = raw("down_proj", {count, inner, h});
    }
    for (std::size_t e = 0; e < count; ++e) {
      const WeightView bias_e = part(up_bias, e, 1, 2 * inner);
      ExpertView x;
      if (packed) {
        x.gate = widened_mxfp4(packed_up.blocks, packed_up.scales, 2 * e * inner, 2, inner, h,
                               out_.owned);
        x.up = widened_mxfp4(packed_up.blocks, packed_up.scales, 2 * e * inner + 1, 2, inner, h,
                             out_.owned);
        x.down =
            widened_mxfp4(packed_down.blocks, packed_down.scales, e * h, 1, h, inner, out_.owned);
      } else {
        const WeightView up_e = part(up, e * h, h, 2 * inner);
        x.gate = transposed(up_e, 2 * inner, 0, 2, inner, h, out_.owned);
        x.up = transposed(up_e, 2 * inner, 1, 2, inner, h, out_.owned);
        x.down = transposed(part(down, e * inner, inner, h), h, 0, 1, h, inner, out_.owned);
      }
      x.gate_bias = one_row(transposed(bias_e, 2 * inner, 0, 2, inner, 1, out_.owned));
      x.up_bias = one_row(transposed(bias_e, 2 * inner, 1, 2, inner, 1, out_.owned));
      x.down_bias = part(down_bias, e, 1, h);
      x.limit = static_cast<float>(c_.swiglu_limit);
      layer.experts.push_back(x);
    }
  }

  static WeightView one_row(const WeightView& column) {
    return {column.data, column.type, 1, column.rows};
  }

  model::Checkpoint& in_;
  const model::ModelConfig& c_;
  ModelWeights out_;
};

}  // namespace

const std::vector<std::string>& runnable_model_types() {
  static const std::vector<std::string> types{"mixtral", "qwen2_moe",     "qwen3_moe",
                                              "olmoe",   "deepseek_v2",   "deepseek_v3",
                                              "gpt_oss", "switchyard_lab"};
  return types;
}

void require_runnable(const model::ModelConfig& config, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(where, "unsupported by the engine: " + what,
                     fmt::format("the engine runs {}, as F32, F16, BF16, FP8 in blocks or "
                                 "(GPT-OSS) MXFP4; other models can be accounted and simulated",
                                 fmt::join(runnable_model_types(), ", ")));
  };
  const auto& types = runnable_model_types();
  if (std::find(types.begin(), types.end(), config.model_type) == types.end()) {
    refuse(fmt::format("model_type \"{}\"", config.model_type));
  }
  const bool readable = config.quantization == "none" || config.quantization == "fp8_block" ||
                        (config.quantization == "mxfp4" && config.family == model::Family::kGptOss);
  if (!readable) {
    refuse(fmt::format("quantization \"{}\"", config.quantization));
  }
  const bool latent = config.attention == model::AttentionKind::kMla;
  if ((latent ? config.qk_rope_head_dim : config.head_dim) % 2 != 0) {
    refuse(fmt::format("odd head_dim {}", config.head_dim));
  }
}

ModelWeights take_weights(model::Checkpoint& checkpoint) { return Taker(checkpoint).take(); }

void for_each_view(ModelWeights& weights, bool tied,
                   const std::function<void(WeightView&)>& visit) {
  const auto some = [&](std::initializer_list<WeightView*> views) {
    for (WeightView* view : views) {
      if (view->data != nullptr) {
        visit(*view);
      }
    }
  };
  some({&weights.embedding});
  for (LayerWeights& l : weights.layers) {
    some({&l.input_norm, &l.q,           &l.k,
          &l.v,          &l.o,           &l.q_bias,
          &l.k_bias,     &l.v_bias,      &l.o_bias,
          &l.q_norm,     &l.k_norm,      &l.sinks,
          &l.q_a,        &l.q_a_norm,    &l.q_b,
          &l.kv_a,       &l.kv_a_norm,   &l.post_attention_norm,
          &l.router,     &l.router_bias, &l.shared_gate});
    for (auto* list : {&l.k_absorbed, &l.v_absorbed}) {
      for (WeightView& view : *list) {
        some({&view});
      }
    }
    for (auto* list : {&l.experts, &l.shared}) {
      for (ExpertView& e : *list) {
        some({&e.gate, &e.up, &e.down, &e.gate_bias, &e.up_bias, &e.down_bias});
      }
    }
  }
  some({&weights.final_norm});
  if (!tied) {
    some({&weights.head});
  }
}

}  // namespace switchyard
