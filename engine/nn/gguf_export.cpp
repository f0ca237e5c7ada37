// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/gguf_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/model/ggml_blocks.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/nn/weights.hpp"

namespace switchyard {
namespace {

using model::DType;

/// One tensor of the output: its parts' rows one after another.
struct Planned {
  std::string name;
  std::vector<std::uint64_t> shape;
  DType type = DType::kF32;
  std::vector<WeightView> parts;
  std::size_t paired = 0;  // > 0: rows of each head of that width in llama's order
};

class Plan {
 public:
  Plan(const model::ModelConfig& config, const ModelWeights& weights, std::string arch, DType type)
      : c_(config), w_(weights), arch_(std::move(arch)), type_(type) {
    matrix("token_embd.weight", w_.embedding);
    for (std::size_t l = 0; l < w_.layers.size(); ++l) {
      layer(fmt::format("blk.{}.", l), w_.layers[l]);
    }
    vector("output_norm.weight", w_.final_norm);
    if (!c_.tie_word_embeddings) {
      matrix("output.weight", w_.head);
    }
  }

  std::vector<Planned> tensors;
  std::uint64_t fallbacks = 0;

 private:
  void add(std::string name, std::vector<std::uint64_t> shape, DType type,
           std::vector<WeightView> parts, std::size_t paired = 0) {
    tensors.push_back({std::move(name), std::move(shape), type, std::move(parts), paired});
  }
  void vector(const std::string& name, const WeightView& v) {
    if (v.data != nullptr) {
      add(name, {v.cols}, DType::kF32, {v});
    }
  }
  DType fitting(std::uint64_t cols) {
    if (cols % model::block_shape(type_).values == 0) {
      return type_;
    }
    ++fallbacks;
    return type_ != DType::kQ8_0 && cols % model::block_shape(DType::kQ8_0).values == 0
               ? DType::kQ8_0
               : DType::kF32;
  }
  void matrix(const std::string& name, const WeightView& m, std::size_t paired = 0) {
    if (m.data != nullptr) {
      add(name, {m.rows, m.cols}, fitting(m.cols), {m}, paired);
    }
  }
  /// [views, rows, cols]
  void stack(const std::string& name, std::vector<WeightView> parts) {
    const WeightView& m = parts.front();
    const std::vector<std::uint64_t> shape{parts.size(), m.rows, m.cols};
    add(name, shape, fitting(m.cols), std::move(parts));
  }
  [[nodiscard]] std::vector<WeightView> of_experts(const LayerWeights& l,
                                                   WeightView ExpertView::*which) const {
    std::vector<WeightView> out;
    for (const ExpertView& e : l.experts) {
      out.push_back(e.*which);
    }
    return out;
  }
  void swiglu(const std::string& prefix, const std::string& suffix, const ExpertView& e) {
    matrix(prefix + "ffn_gate" + suffix + ".weight", e.gate);
    matrix(prefix + "ffn_up" + suffix + ".weight", e.up);
    matrix(prefix + "ffn_down" + suffix + ".weight", e.down);
  }

  void layer(const std::string& prefix, const LayerWeights& l) {
    const bool oss = arch_ == "gpt-oss";
    vector(prefix + "attn_norm.weight", l.input_norm);
    if (c_.attention == model::AttentionKind::kMla) {
      matrix(prefix + "attn_q.weight", l.q);
      matrix(prefix + "attn_q_a.weight", l.q_a);
      vector(prefix + "attn_q_a_norm.weight", l.q_a_norm);
      matrix(prefix + "attn_q_b.weight", l.q_b);
      matrix(prefix + "attn_kv_a_mqa.weight", l.kv_a);
      vector(prefix + "attn_kv_a_norm.weight", l.kv_a_norm);
      stack(prefix + "attn_k_b.weight", l.k_absorbed);
      stack(prefix + "attn_v_b.weight", l.v_absorbed);
    } else {
      const std::size_t paired = arch_ == "llama" ? c_.head_dim : 0;
      matrix(prefix + "attn_q.weight", l.q, paired);
      matrix(prefix + "attn_k.weight", l.k, paired);
      matrix(prefix + "attn_v.weight", l.v);
      vector(prefix + "attn_q.bias", l.q_bias);
      vector(prefix + "attn_k.bias", l.k_bias);
      vector(prefix + "attn_v.bias", l.v_bias);
      vector(prefix + "attn_q_norm.weight", l.q_norm);
      vector(prefix + "attn_k_norm.weight", l.k_norm);
      vector(prefix + "attn_sinks.weight", l.sinks);
    }
    matrix(prefix + "attn_output.weight", l.o);
    vector(prefix + "attn_output.bias", l.o_bias);
    vector(prefix + (oss ? "post_attention_norm.weight" : "ffn_norm.weight"),
           l.post_attention_norm);
    if (l.experts.empty()) {
      swiglu(prefix, "", l.shared.front());
      return;
    }
    add(prefix + "ffn_gate_inp.weight", {l.router.rows, l.router.cols}, DType::kF32, {l.router});
    vector(prefix + "ffn_gate_inp.bias", l.router_bias);
    vector(prefix + "exp_probs_b.bias", l.selection_bias);
    stack(prefix + "ffn_gate_exps.weight", of_experts(l, &ExpertView::gate));
    stack(prefix + "ffn_up_exps.weight", of_experts(l, &ExpertView::up));
    stack(prefix + "ffn_down_exps.weight", of_experts(l, &ExpertView::down));
    if (oss) {
      for (const auto& [name, which] : {std::pair{"ffn_gate_exps.bias", &ExpertView::gate_bias},
                                        std::pair{"ffn_up_exps.bias", &ExpertView::up_bias},
                                        std::pair{"ffn_down_exps.bias", &ExpertView::down_bias}}) {
        std::vector<WeightView> parts = of_experts(l, which);
        const std::vector<std::uint64_t> shape{parts.size(), parts.front().cols};
        add(prefix + name, shape, DType::kF32, std::move(parts));
      }
    }
    if (!l.shared.empty()) {
      swiglu(prefix, "_shexp", l.shared.front());
      vector(prefix + "ffn_gate_inp_shexp.weight", l.shared_gate);
    }
  }

  const model::ModelConfig& c_;
  const ModelWeights& w_;
  std::string arch_;
  DType type_;
};

constexpr std::size_t kRowsAtOnce = 64;

/// The rows of a tensor, a few at a time.
void produce(const Planned& t, const std::string& where, const model::GgufWriter::Sink& sink) {
  std::vector<float> rows;
  std::vector<std::byte> packed;
  for (const WeightView& part : t.parts) {
    const std::size_t row_bytes = model::tensor_bytes(where, t.type, std::array{part.cols});
    // Permuted rows stay within a head: take whole heads.
    const std::size_t step =
        t.paired > 0 ? (kRowsAtOnce + t.paired - 1) / t.paired * t.paired : kRowsAtOnce;
    for (std::size_t first = 0; first < part.rows; first += step) {
      const std::size_t last = std::min(part.rows, first + step);
      rows.resize((last - first) * part.cols);
      packed.resize((last - first) * row_bytes);
      widen_rows(part, first, last, rows.data());
      if (model::is_block_format(t.type) &&
          !std::all_of(rows.begin(), rows.end(), [](float v) { return std::isfinite(v); })) {
        throw InputError(where, fmt::format("tensor \"{}\" holds a NaN or infinity", t.name),
                         "the weights are broken; f32 keeps them as they are");
      }
      if (const float limit = model::largest_packed(t.type);
          std::any_of(rows.begin(), rows.end(), [&](float v) { return std::fabs(v) > limit; })) {
        throw InputError(
            where,
            fmt::format("tensor \"{}\" holds a value beyond {:.4g}, more than the FP16 "
                        "scale of {} can say",
                        t.name, limit, model::dtype_name(t.type)),
            "f32 and bf16 hold it");
      }
      for (std::size_t r = 0; r < last - first; ++r) {
        std::size_t from = r;
        if (const std::size_t d = t.paired; d > 0) {
          const std::size_t i = r % d;
          from = r - i + (i % 2 == 0 ? i / 2 : d / 2 + i / 2);
        }
        model::pack_values(t.type, std::span(rows).subspan(from * part.cols, part.cols),
                           packed.data() + r * row_bytes);
      }
      sink(packed);
    }
  }
}

}  // namespace

model::DType parse_gguf_type(const std::string& text) {
  static const std::array<std::string, 6> kTypes{"f32", "bf16", "f16", "q8_0", "q4_0", "q4_k"};
  static constexpr std::array kDTypes{DType::kF32,  DType::kBf16, DType::kF16,
                                      DType::kQ8_0, DType::kQ4_0, DType::kQ4K};
  const auto it = std::find(kTypes.begin(), kTypes.end(), text);
  if (it == kTypes.end()) {
    throw InputError("--type", fmt::format("unknown type \"{}\"", text),
                     suggest_name(text, kTypes));
  }
  return kDTypes[static_cast<std::size_t>(it - kTypes.begin())];
}

GgufExportSummary export_gguf(const std::filesystem::path& model,
                              const std::filesystem::path& output, model::DType type,
                              const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  auto checkpoint = model::Checkpoint::open(model);
  const model::ModelConfig& config = checkpoint.config();
  const std::string where = checkpoint.config_place();
  require_runnable(config, where);
  GgufExportSummary summary;
  summary.architecture = model::gguf_architecture(config, where);
  const ModelWeights weights = take_weights(checkpoint);
  Plan plan(config, weights, summary.architecture, type);

  model::GgufWriter writer;
  model::write_gguf_config(writer, config);
  // general.file_type: the values of llama.cpp's LLAMA_FTYPE.
  const std::map<DType, std::uint64_t> file_types{{DType::kF32, 0},  {DType::kF16, 1},
                                                  {DType::kQ4_0, 2}, {DType::kQ8_0, 7},
                                                  {DType::kQ4K, 14}, {DType::kBf16, 32}};
  writer.u32("general.file_type", file_types.at(type));
  writer.u32("general.quantization_version", 2);
  if (checkpoint.gguf() == nullptr) {
    summary.tokenizer = model::write_gguf_tokenizer(writer, config, model);
  } else {
    summary.tokenizer = model::copy_gguf_tokenizer(writer, *checkpoint.gguf());
  }
  for (const Planned& t : plan.tensors) {
    writer.tensor(t.name, t.shape, t.type);
    summary.bytes += model::tensor_bytes(t.name, t.type, t.shape);
    ++summary.by_type[model::file_dtype_name(t.type)];
  }
  summary.tensors = plan.tensors.size();
  summary.fallbacks = plan.fallbacks;
  std::uint64_t done = 0;
  writer.write(output, [&](std::size_t i, const model::GgufWriter::Sink& sink) {
    produce(plan.tensors[i], checkpoint.path().string(), [&](std::span<const std::byte> bytes) {
      sink(bytes);
      done += bytes.size();
      if (progress) {
        progress(done, summary.bytes);
      }
    });
  });
  return summary;
}

}  // namespace switchyard
