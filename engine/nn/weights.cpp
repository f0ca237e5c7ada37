// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/model/mapping.hpp"

namespace switchyard {
namespace {

WeightType weight_type(const model::TensorView& tensor) {
  switch (tensor.dtype) {
    case model::DType::kF32:
      return WeightType::kF32;
    case model::DType::kF16:
      return WeightType::kF16;
    case model::DType::kQ8_0:
      return WeightType::kQ8;
    case model::DType::kQ4_0:
      return WeightType::kQ4;
    case model::DType::kQ4K:
      return WeightType::kQ4K;
    case model::DType::kQ6K:
      return WeightType::kQ6K;
    case model::DType::kMxfp4:
      return WeightType::kMx4;
    default:
      // Checkpoint::take() and take_any() hand out no other formats.
      SWITCHYARD_ASSERT(tensor.dtype == model::DType::kBf16, tensor.name);
      return WeightType::kBf16;
  }
}

/// A view of a whole tensor, its leading extents taken together as rows.
WeightView view_of(const model::TensorView& t, std::size_t rows, std::size_t cols) {
  return {t.data.data(), weight_type(t), rows, cols};
}

WeightView matrix(model::Checkpoint& checkpoint, const std::string& name, std::uint64_t rows,
                  std::uint64_t cols) {
  return view_of(checkpoint.take(name, {rows, cols}), rows, cols);
}

WeightView vector(model::Checkpoint& checkpoint, const std::string& name, std::uint64_t size) {
  return view_of(checkpoint.take(name, {size}), 1, size);
}

/// Rows [first, first + rows) of a [*, cols] block that starts at `view`.
WeightView part(const WeightView& view, std::size_t first, std::size_t rows, std::size_t cols) {
  WeightView out = view;
  out.rows = rows;
  out.cols = cols;
  if (is_packed(view)) {
    out.first_row += first * view.row_step;
  } else {
    out.data = static_cast<const std::byte*>(view.data) + first * cols * weight_bytes(view.type);
  }
  return out;
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

/// The rows of a packed view as float32.
WeightView widened(const WeightView& w, Owned& owned) {
  auto copy = std::make_shared<std::vector<std::byte>>(w.rows * w.cols * sizeof(float));
  widen_rows(w, 0, w.rows, reinterpret_cast<float*>(copy->data()));
  const WeightView view{copy->data(), WeightType::kF32, w.rows, w.cols};
  owned.push_back(std::move(copy));
  return view;
}

/// A vector as float32, a copy.
WeightView in_float32(const model::TensorView& t, Owned& owned) {
  auto copy = std::make_shared<std::vector<std::byte>>(t.count() * sizeof(float));
  model::widen(t.dtype, t.data, {reinterpret_cast<float*>(copy->data()), t.count()});
  const WeightView view{copy->data(), WeightType::kF32, 1, t.count()};
  owned.push_back(std::move(copy));
  return view;
}

/// The part of an expert that a rank computes: some rows of each matrix.
ExpertView cut(const ExpertView& whole, const ExpertShare& share) {
  if (share.tp == 1) {
    return whole;
  }
  const Block inner = block_of(whole.gate.rows, share.tp, share.part);
  const Block outer = block_of(whole.down.rows, share.tp, share.part);
  const auto bias = [](const WeightView& all, const Block& block) {
    if (all.data == nullptr) {
      return all;
    }
    const WeightView column = part(all, block.first, block.size(), 1);
    return WeightView{column.data, column.type, 1, block.size()};
  };
  ExpertView out = whole;  // with its limit
  out.gate = part(whole.gate, inner.first, inner.size(), whole.gate.cols);
  out.up = part(whole.up, inner.first, inner.size(), whole.up.cols);
  out.down = part(whole.down, outer.first, outer.size(), whole.down.cols);
  out.gate_bias = bias(whole.gate_bias, inner);
  out.up_bias = bias(whole.up_bias, inner);
  out.down_bias = bias(whole.down_bias, outer);
  return out;
}

/// What a format calls the tensors of a layer's attention, below the layer's prefix.
struct AttentionNames {
  const char *q, *k, *v, *o, *q_norm, *k_norm, *sinks;
  const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b;  // multi-head latent attention
};
constexpr AttentionNames kHuggingFace{"q_proj",
                                      "k_proj",
                                      "v_proj",
                                      "o_proj",
                                      "q_norm",
                                      "k_norm",
                                      "sinks",
                                      "q_a_proj",
                                      "q_a_layernorm",
                                      "q_b_proj",
                                      "kv_a_proj_with_mqa",
                                      "kv_a_layernorm",
                                      "kv_b_proj"};
constexpr AttentionNames kGguf{"attn_q",
                               "attn_k",
                               "attn_v",
                               "attn_output",
                               "attn_q_norm",
                               "attn_k_norm",
                               "attn_sinks.weight",
                               "attn_q_a",
                               "attn_q_a_norm",
                               "attn_q_b",
                               "attn_kv_a_mqa",
                               "attn_kv_a_norm",
                               "attn_kv_b"};

/// What both formats of a checkpoint share: the parts of an attention.
class AttentionTaker {
 protected:
  AttentionTaker(model::Checkpoint& checkpoint, const AttentionNames& names)
      : in_(checkpoint), c_(checkpoint.config()), names_(names) {}
  ~AttentionTaker() = default;

  /// A matrix as stored.
  virtual WeightView weight(const std::string& name, std::uint64_t rows, std::uint64_t cols) = 0;
  /// A matrix whose rows are rotated by their position in a head.
  virtual WeightView rotated(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    return weight(name, rows, cols);
  }
  /// Keys and values of latent attention as the format holds them absorbed; false: it does not.
  virtual bool absorbed(LayerWeights& layer, const std::string& prefix) {
    static_cast<void>(layer);
    static_cast<void>(prefix);
    return false;
  }

  void attention(LayerWeights& layer, const std::string& prefix) {
    if (c_.attention == model::AttentionKind::kMla) {
      latent(layer, prefix);
    } else {
      grouped(layer, prefix);
    }
  }

  model::Checkpoint& in_;
  const model::ModelConfig& c_;
  ModelWeights out_;

 private:
  void grouped(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t q = c_.num_heads * c_.head_dim;
    const std::uint64_t kv = c_.num_kv_heads * c_.head_dim;
    const auto name = [&](const char* part, const char* kind) {
      return fmt::format("{}{}.{}", prefix, part, kind);
    };
    layer.q = rotated(name(names_.q, "weight"), q, h);
    layer.k = rotated(name(names_.k, "weight"), kv, h);
    layer.v = weight(name(names_.v, "weight"), kv, h);
    layer.o = weight(name(names_.o, "weight"), h, q);
    if (c_.qkv_bias) {
      layer.q_bias = vector(in_, name(names_.q, "bias"), q);
      layer.k_bias = vector(in_, name(names_.k, "bias"), kv);
      layer.v_bias = vector(in_, name(names_.v, "bias"), kv);
    }
    if (c_.output_bias) {
      layer.o_bias = vector(in_, name(names_.o, "bias"), h);
    }
    if (c_.qk_norm_per_head || c_.qk_norm_full) {
      layer.q_norm = vector(in_, name(names_.q_norm, "weight"), c_.qk_norm_full ? q : c_.head_dim);
      layer.k_norm = vector(in_, name(names_.k_norm, "weight"), c_.qk_norm_full ? kv : c_.head_dim);
    }
    if (c_.attention_sinks) {
      layer.sinks = vector(in_, prefix + names_.sinks, c_.num_heads);
    }
  }

  void latent(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t heads = c_.num_heads;
    const std::uint64_t plain = c_.qk_nope_head_dim;
    const std::uint64_t latent = c_.kv_lora_rank;
    const auto name = [&](const char* part) { return fmt::format("{}{}.weight", prefix, part); };
    if (c_.q_lora_rank == 0) {
      layer.q = weight(name(names_.q), heads * c_.head_dim, h);
    } else {
      layer.q_a = weight(name(names_.q_a), c_.q_lora_rank, h);
      layer.q_a_norm = vector(in_, name(names_.q_a_norm), c_.q_lora_rank);
      layer.q_b = weight(name(names_.q_b), heads * c_.head_dim, c_.q_lora_rank);
    }
    layer.kv_a = weight(name(names_.kv_a), latent + c_.qk_rope_head_dim, h);
    layer.kv_a_norm = vector(in_, name(names_.kv_a_norm), latent);
    if (!absorbed(layer, prefix)) {
      const std::uint64_t per_head = plain + c_.v_head_dim;
      const WeightView b = weight(name(names_.kv_b), heads * per_head, latent);
      for (std::size_t j = 0; j < heads; ++j) {
        absorb_key(layer, part(b, j * per_head, plain, latent));
        layer.v_absorbed.push_back(part(b, j * per_head + plain, c_.v_head_dim, latent));
      }
    }
    layer.o = weight(name(names_.o), h, heads * c_.v_head_dim);
  }

  /// A head's key part [plain, latent], copied transposed: small beside the experts.
  void absorb_key(LayerWeights& layer, const WeightView& w) {
    Owned scratch;
    const WeightView rows = is_packed(w) ? widened(w, scratch) : w;
    layer.k_absorbed.push_back(transposed(rows, w.cols, 0, 1, w.cols, w.rows, out_.owned));
    if (!is_packed(w)) {
      model::release_pages(
          {static_cast<const std::byte*>(w.data), w.rows * w.cols * weight_bytes(w.type)});
    }
  }

  const AttentionNames& names_;
};

/// Reads the tensors of one checkpoint by the names of its family.
class Taker final : private AttentionTaker {
 public:
  explicit Taker(model::Checkpoint& checkpoint) : AttentionTaker(checkpoint, kHuggingFace) {}

  ModelWeights take() {
    const std::uint64_t h = c_.hidden_size;
    out_.embedding = matrix(in_, "model.embed_tokens.weight", c_.vocab_size, h);
    out_.layers.resize(c_.num_layers);
    for (std::size_t l = 0; l < c_.num_layers; ++l) {
      const std::string prefix = fmt::format("model.layers.{}.", l);
      LayerWeights& layer = out_.layers[l];
      layer.input_norm = vector(in_, prefix + "input_layernorm.weight", h);
      layer.post_attention_norm = vector(in_, prefix + "post_attention_layernorm.weight", h);
      attention(layer, prefix + "self_attn.");
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
  /// A matrix as stored; FP8 blocks stay as they are, beside their scales.
  WeightView weight(const std::string& name, std::uint64_t rows, std::uint64_t cols) override {
    const model::TensorView* stored = in_.find(name);
    if (c_.quantization != "fp8_block" || stored == nullptr ||
        stored->dtype != model::DType::kF8E4M3) {
      return matrix(in_, name, rows, cols);
    }
    const model::TensorView w = in_.take_stored(name, {rows, cols}, model::DType::kF8E4M3);
    const model::TensorView scale =
        in_.take(name + "_scale_inv",
                 {(rows + kFp8Block - 1) / kFp8Block, (cols + kFp8Block - 1) / kFp8Block});
    auto wide = std::make_shared<std::vector<std::byte>>(scale.count() * sizeof(float));
    model::widen(scale.dtype, scale.data, {reinterpret_cast<float*>(wide->data()), scale.count()});
    WeightView view{w.data.data(), WeightType::kFp8, rows, cols};
    view.scales = wide->data();
    out_.owned.push_back(std::move(wide));
    return view;
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
      layer.selection_bias = in_float32(
          in_.take(prefix + "mlp.gate.e_score_correction_bias", {c_.num_experts}), out_.owned);
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

  /// NAME_blocks [E, rows, cols/32, 16] and NAME_scales [E, rows, cols/32], all experts' rows.
  WeightView take_mxfp4(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    if (cols % 32 != 0) {
      throw InputError(
          in_.path().string(),
          fmt::format("tensor \"{}_blocks\": {} inputs are no multiple of 32", name, cols));
    }
    const std::uint64_t count = c_.num_experts;
    WeightView view;
    view.data = in_.take_stored(name + "_blocks", {count, rows, cols / 32, 16}, model::DType::kU8)
                    .data.data();
    view.scales =
        in_.take_stored(name + "_scales", {count, rows, cols / 32}, model::DType::kU8).data.data();
    view.type = WeightType::kMxfp4;
    view.rows = count * rows;
    view.cols = cols;
    return view;
  }

  /// gate_up_proj [E, H, 2I] with gate and up alternating, down_proj [E, I, H]: inputs first. MXFP4
  /// has outputs first, [E, 2I, H] and [E, H, I]. Either is read in place.
  void gpt_oss_experts(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t inner = c_.expert_intermediate;
    const std::uint64_t count = c_.num_experts;
    layer.router = weight(prefix + "router.weight", count, h);
    layer.router_bias = vector(in_, prefix + "router.bias", count);
    const auto raw = [&](const std::string& name, std::initializer_list<std::uint64_t> shape) {
      return view_of(in_.take(prefix + "experts." + name, shape), 0, 0);
    };
    const WeightView up_bias = raw("gate_up_proj_bias", {count, 2 * inner});
    const WeightView down_bias = raw("down_proj_bias", {count, h});
    const bool packed = c_.quantization == "mxfp4" && !in_.has(prefix + "experts.gate_up_proj");
    WeightView up;
    WeightView down;
    if (packed) {
      up = take_mxfp4(prefix + "experts.gate_up_proj", 2 * inner, h);
      down = take_mxfp4(prefix + "experts.down_proj", h, inner);
    } else {
      up = raw("gate_up_proj", {count, h, 2 * inner});
      down = raw("down_proj", {count, inner, h});
    }
    for (std::size_t e = 0; e < count; ++e) {
      const WeightView bias_e = part(up_bias, e, 1, 2 * inner);
      ExpertView x;
      if (packed) {
        x.gate = part(up, 2 * e * inner, inner, h);
        x.gate.row_step = 2;
        x.up = x.gate;
        x.up.first_row += 1;
        x.down = part(down, e * h, h, inner);
      } else {
        x.gate = part(up, e * h, inner, 2 * inner);
        x.gate.cols = h;
        x.gate.stored_width = 2 * inner;
        x.gate.row_step = 2;
        x.up = x.gate;
        x.up.first_row = 1;
        x.down = part(down, e * inner, h, h);
        x.down.cols = inner;
        x.down.stored_width = h;
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
};

/// The same from a GGUF file. Experts of a layer are one tensor [E, rows, cols].
class GgufTaker final : private AttentionTaker {
 public:
  explicit GgufTaker(model::Checkpoint& checkpoint) : AttentionTaker(checkpoint, kGguf) {}

  ModelWeights take() {
    const std::uint64_t h = c_.hidden_size;
    out_.embedding = weight("token_embd.weight", c_.vocab_size, h);
    out_.layers.resize(c_.num_layers);
    for (std::size_t l = 0; l < c_.num_layers; ++l) {
      const std::string prefix = fmt::format("blk.{}.", l);
      LayerWeights& layer = out_.layers[l];
      layer.input_norm = vector(in_, prefix + "attn_norm.weight", h);
      const bool oss = c_.family == model::Family::kGptOss;
      layer.post_attention_norm =
          vector(in_, prefix + (oss ? "post_attention_norm.weight" : "ffn_norm.weight"), h);
      attention(layer, prefix);
      if (c_.is_moe(l)) {
        experts(layer, prefix);
      } else {
        layer.shared = {swiglu(prefix, "", c_.dense_intermediate)};
      }
    }
    out_.final_norm = vector(in_, "output_norm.weight", h);
    out_.head = c_.tie_word_embeddings ? out_.embedding : weight("output.weight", c_.vocab_size, h);
    in_.finish();
    return std::move(out_);
  }

 private:
  WeightView weight(const std::string& name, std::uint64_t rows, std::uint64_t cols) override {
    return view_of(in_.take_any(name, {rows, cols}), rows, cols);
  }
  /// [count, rows, cols] as count * rows rows.
  WeightView stack(const std::string& name, std::uint64_t count, std::uint64_t rows,
                   std::uint64_t cols) {
    return view_of(in_.take_any(name, {count, rows, cols}), count * rows, cols);
  }

  /// llama.cpp's llama rotates pairs (2i, 2i + 1), so its files hold the rows of each head in the
  /// order 0, d/2, 1, d/2 + 1, … Put back here (a copy), they rotate as (i, i + d/2): the same
  /// sums in the same order as from safetensors.
  WeightView rotated(const std::string& name, std::uint64_t rows, std::uint64_t cols) override {
    if (c_.family != model::Family::kMixtral) {
      return weight(name, rows, cols);
    }
    const model::TensorView t = in_.take_any(name, {rows, cols});
    const std::size_t row_bytes = t.data.size() / rows;
    const std::size_t d = c_.head_dim;
    auto copy = std::make_shared<std::vector<std::byte>>(t.data.size());
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t i = r % d;
      const std::size_t from = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
      std::memcpy(copy->data() + r * row_bytes, t.data.data() + from * row_bytes, row_bytes);
    }
    model::release_pages(t.data);
    const WeightView view{copy->data(), weight_type(t), rows, cols};
    out_.owned.push_back(std::move(copy));
    return view;
  }

  /// Files of before the absorbed form hold attn_kv_b.
  bool absorbed(LayerWeights& layer, const std::string& prefix) override {
    if (in_.has(prefix + "attn_kv_b.weight")) {
      return false;
    }
    const std::uint64_t heads = c_.num_heads;
    const std::uint64_t plain = c_.qk_nope_head_dim;
    const std::uint64_t latent = c_.kv_lora_rank;
    const WeightView k = stack(prefix + "attn_k_b.weight", heads, latent, plain);
    const WeightView v = stack(prefix + "attn_v_b.weight", heads, c_.v_head_dim, latent);
    for (std::size_t j = 0; j < heads; ++j) {
      layer.k_absorbed.push_back(part(k, j * latent, latent, plain));
      layer.v_absorbed.push_back(part(v, j * c_.v_head_dim, c_.v_head_dim, latent));
    }
    return true;
  }

  /// ffn_gate, ffn_up, ffn_down with a suffix: "" dense, "_shexp" shared.
  ExpertView swiglu(const std::string& prefix, const std::string& suffix, std::uint64_t inner) {
    const std::uint64_t h = c_.hidden_size;
    return {weight(prefix + "ffn_gate" + suffix + ".weight", inner, h),
            weight(prefix + "ffn_up" + suffix + ".weight", inner, h),
            weight(prefix + "ffn_down" + suffix + ".weight", h, inner)};
  }

  void experts(LayerWeights& layer, const std::string& prefix) {
    const std::uint64_t h = c_.hidden_size;
    const std::uint64_t inner = c_.expert_intermediate;
    const std::uint64_t count = c_.num_experts;
    layer.router = weight(prefix + "ffn_gate_inp.weight", count, h);
    if (c_.gate.correction_bias) {
      layer.selection_bias = in_float32(in_.take(prefix + "exp_probs_b.bias", {count}), out_.owned);
    }
    const std::string fused = prefix + "ffn_gate_up_exps.weight";
    WeightView gate;
    WeightView up;
    if (in_.has(fused)) {
      gate = stack(fused, count, 2 * inner, h);
    } else {
      gate = stack(prefix + "ffn_gate_exps.weight", count, inner, h);
      up = stack(prefix + "ffn_up_exps.weight", count, inner, h);
    }
    const WeightView down = stack(prefix + "ffn_down_exps.weight", count, h, inner);
    for (std::size_t e = 0; e < count; ++e) {
      layer.experts.push_back(
          up.data == nullptr
              ? ExpertView{part(gate, 2 * e * inner, inner, h),
                           part(gate, (2 * e + 1) * inner, inner, h), part(down, e * h, h, inner)}
              : ExpertView{part(gate, e * inner, inner, h), part(up, e * inner, inner, h),
                           part(down, e * h, h, inner)});
    }
    if (c_.family == model::Family::kGptOss) {
      layer.router_bias = vector(in_, prefix + "ffn_gate_inp.bias", count);
      const auto bias = [&](const char* name, std::uint64_t width) {
        return view_of(in_.take(prefix + name, {count, width}), count, width);
      };
      const WeightView gate_bias = bias("ffn_gate_exps.bias", inner);
      const WeightView up_bias = bias("ffn_up_exps.bias", inner);
      const WeightView down_bias = bias("ffn_down_exps.bias", h);
      for (std::size_t e = 0; e < count; ++e) {
        layer.experts[e].gate_bias = part(gate_bias, e, 1, inner);
        layer.experts[e].up_bias = part(up_bias, e, 1, inner);
        layer.experts[e].down_bias = part(down_bias, e, 1, h);
        layer.experts[e].limit = static_cast<float>(c_.swiglu_limit);
      }
    }
    if (c_.shared_intermediate > 0) {
      layer.shared = {swiglu(prefix, "_shexp", c_.shared_intermediate)};
      if (c_.shared_expert_gate) {
        layer.shared_gate = vector(in_, prefix + "ffn_gate_inp_shexp.weight", h);
      }
    }
  }
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
    throw InputError(
        where, "unsupported by the engine: " + what,
        fmt::format("the engine runs {}, as F32, F16, BF16, FP8 in blocks, "
                    "(GPT-OSS) MXFP4, or GGUF's Q8_0, Q4_0, Q4_K, Q6_K, MXFP4; other models can be "
                    "accounted and simulated",
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

Block block_of(std::size_t items, std::size_t parts, std::size_t part) {
  const std::size_t small = items / parts;
  const std::size_t larger = items % parts;
  const std::size_t first = part * small + std::min(part, larger);
  return {first, first + small + (part < larger ? 1 : 0)};
}

ModelWeights take_weights(model::Checkpoint& checkpoint, const ExpertShare& share) {
  ModelWeights out =
      checkpoint.gguf() != nullptr ? GgufTaker(checkpoint).take() : Taker(checkpoint).take();
  cut_experts(out, share);
  return out;
}

void round_routers_to_bf16(ModelWeights& weights) {
  const auto round = [&](WeightView& view) {
    if (view.data == nullptr || view.type == WeightType::kBf16) {
      return;
    }
    std::vector<float> wide(view.rows * view.cols);
    widen_rows(view, 0, view.rows, wide.data());
    auto copy = std::make_shared<std::vector<std::byte>>(wide.size() * sizeof(std::uint16_t));
    std::transform(wide.begin(), wide.end(), reinterpret_cast<std::uint16_t*>(copy->data()),
                   model::float_to_bf16);
    view = {copy->data(), WeightType::kBf16, view.rows, view.cols};
    weights.owned.push_back(std::move(copy));
  };
  for (LayerWeights& layer : weights.layers) {
    round(layer.router);
    round(layer.router_bias);
  }
}

void cut_experts(ModelWeights& weights, const ExpertShare& share) {
  for (LayerWeights& layer : weights.layers) {
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      layer.experts[e] = share.holds(e) ? cut(layer.experts[e], share) : ExpertView{};
    }
  }
}

void for_each_named_view(ModelWeights& weights, bool tied,
                         const std::function<void(const std::string&, WeightView&)>& visit) {
  const auto some = [&](const std::string& prefix,
                        std::initializer_list<std::pair<const char*, WeightView*>> views) {
    for (const auto& [name, view] : views) {
      if (view->data != nullptr) {
        visit(prefix + name, *view);
      }
    }
  };
  some("", {{"embedding", &weights.embedding}});
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights& l = weights.layers[i];
    const std::string prefix = fmt::format("layers.{}.", i);
    some(prefix, {{"input_norm", &l.input_norm},
                  {"q", &l.q},
                  {"k", &l.k},
                  {"v", &l.v},
                  {"o", &l.o},
                  {"q_bias", &l.q_bias},
                  {"k_bias", &l.k_bias},
                  {"v_bias", &l.v_bias},
                  {"o_bias", &l.o_bias},
                  {"q_norm", &l.q_norm},
                  {"k_norm", &l.k_norm},
                  {"sinks", &l.sinks},
                  {"q_a", &l.q_a},
                  {"q_a_norm", &l.q_a_norm},
                  {"q_b", &l.q_b},
                  {"kv_a", &l.kv_a},
                  {"kv_a_norm", &l.kv_a_norm},
                  {"post_attention_norm", &l.post_attention_norm},
                  {"router", &l.router},
                  {"router_bias", &l.router_bias},
                  {"selection_bias", &l.selection_bias},
                  {"shared_gate", &l.shared_gate}});
    for (const auto& [name, list] :
         {std::pair{"k_absorbed", &l.k_absorbed}, std::pair{"v_absorbed", &l.v_absorbed}}) {
      for (std::size_t j = 0; j < list->size(); ++j) {
        some(prefix, {{fmt::format("{}.{}", name, j).c_str(), &(*list)[j]}});
      }
    }
    for (const auto& [name, list] :
         {std::pair{"experts", &l.experts}, std::pair{"shared", &l.shared}}) {
      for (std::size_t j = 0; j < list->size(); ++j) {
        ExpertView& e = (*list)[j];
        some(fmt::format("{}{}.{}.", prefix, name, j), {{"gate", &e.gate},
                                                        {"up", &e.up},
                                                        {"down", &e.down},
                                                        {"gate_bias", &e.gate_bias},
                                                        {"up_bias", &e.up_bias},
                                                        {"down_bias", &e.down_bias}});
      }
    }
  }
  some("", {{"final_norm", &weights.final_norm}});
  if (!tied) {
    some("", {{"head", &weights.head}});
  }
}

void for_each_view(ModelWeights& weights, bool tied,
                   const std::function<void(WeightView&)>& visit) {
  for_each_named_view(weights, tied, [&](const std::string& name, WeightView& view) {
    if (!name.ends_with(".selection_bias")) {
      visit(view);
    }
  });
}

}  // namespace switchyard
