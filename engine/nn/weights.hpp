// SPDX-License-Identifier: Apache-2.0
// File: weights.hpp. The tensors of a model, checked against its configuration.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/model/model_config.hpp"

namespace switchyard {

/// One layer: x + attention(norm(x)), then x + feed_forward(norm(x)). h heads, g KV heads, d
/// head_dim, E experts, I inner width. A view without data (null) is a part the family has not.
struct LayerWeights {
  WeightView input_norm;  ///< [1, H]
  WeightView q, k, v, o;  ///< [h*d, H], [g*d, H], [g*d, H], [H, h*d]; MLA: q (if direct) and o
  WeightView q_bias, k_bias, v_bias, o_bias;  ///< [1, rows of the matrix]
  WeightView q_norm, k_norm;                  ///< [1, d] per head, or [1, h*d] and [1, g*d]
  WeightView sinks;                           ///< [1, h]
  // Multi-head latent attention. n, p, w: width of a head's plain part, rotated part, value.
  WeightView q_a, q_a_norm, q_b;       ///< [rank, H], [1, rank], [h*(n+p), rank]
  WeightView kv_a, kv_a_norm;          ///< [latent + p, H], [1, latent]
  std::vector<WeightView> k_absorbed;  ///< per head [latent, n]: transposed key part of kv_b
  std::vector<WeightView> v_absorbed;  ///< per head [w, latent]: value part of kv_b
  WeightView post_attention_norm;      ///< [1, H]
  WeightView router, router_bias;      ///< [E, H], [1, E]; null in a dense layer
  WeightView selection_bias;           ///< [1, E] e_score_correction_bias in float32, or null
  std::vector<ExpertView> experts;     ///< [E]; empty in a dense layer
  std::vector<ExpertView> shared;  ///< one SwiGLU on every token, or none: the dense layer's FFN
                                   ///< or all shared experts together
  WeightView shared_gate;          ///< [1, H]: the shared output times sigmoid(gate . x)
  /// selection_bias, which lies in host memory on every device; [E] or empty.
  [[nodiscard]] std::span<const float> gate_bias() const {
    return {static_cast<const float*>(selection_bias.data),
            selection_bias.data == nullptr ? 0 : selection_bias.cols};
  }
};

/// All tensors, borrowed from whoever holds the checkpoint (or, in tests, the arrays).
struct ModelWeights {
  WeightView embedding;  ///< [V, H]
  std::vector<LayerWeights> layers;
  WeightView final_norm;  ///< [1, H]
  WeightView head;        ///< [V, H]; the embedding when tied.
  /// Copies that some views point into: MLA's absorbed keys, transposed; GPT-OSS's biases; scales
  /// of FP8 blocks; the rows of q and k that GGUF's llama holds in another order; selection biases;
  /// routers rounded to BF16.
  std::vector<std::shared_ptr<const std::vector<std::byte>>> owned;
};

/// [first, last) of `items` in `parts` consecutive blocks, the first items mod parts one longer.
struct Block {
  std::size_t first = 0, last = 0;
  [[nodiscard]] std::size_t size() const { return last - first; }
};
[[nodiscard]] Block block_of(std::size_t items, std::size_t parts, std::size_t part);

/// What one of several ranks holds of the routed experts: those of `experts`, and of each the
/// `part`-th of `tp` blocks of the rows of gate and up (and their biases), and of down.
struct ExpertShare {
  Block experts{0, static_cast<std::size_t>(-1)};
  std::size_t tp = 1, part = 0;
  [[nodiscard]] bool holds(std::size_t expert) const {
    return expert >= experts.first && expert < experts.last;
  }
};

/// model_type values that the engine runs.
[[nodiscard]] const std::vector<std::string>& runnable_model_types();

/// Throws InputError(where, …) that names the feature when the engine cannot run the model:
/// another family, MXFP4 outside GPT-OSS, an odd head_dim.
void require_runnable(const model::ModelConfig& config, const std::string& where);

/// Takes every tensor of a checkpoint under the names of its family (experts one by one, or fused
/// as Hugging Face v5 holds them; in a .gguf file, llama.cpp's names) and calls
/// Checkpoint::finish(), so a missing, extra or misshapen tensor is an InputError that names it.
/// Views live as long as the checkpoint and `owned`. Routed experts outside `share` keep null views
/// (their matrices are not read); those inside are cut to its part.
[[nodiscard]] ModelWeights take_weights(model::Checkpoint& checkpoint,
                                        const ExpertShare& share = {});

/// Rounds every router and its bias to BF16 where they are stored finer (router_dtype): copies.
void round_routers_to_bf16(ModelWeights& weights);

/// Cuts experts that were taken whole down to `share`.
void cut_experts(ModelWeights& weights, const ExpertShare& share);

/// Calls `visit` on every view of the model that has data, the head last and only if not tied.
/// Names follow the fields above, whatever the checkpoint calls its tensors: "embedding",
/// "layers.0.q", "layers.3.experts.7.down", "layers.3.shared.0.gate", "head".
void for_each_named_view(ModelWeights& weights, bool tied,
                         const std::function<void(const std::string& name, WeightView&)>& visit);
/// The same without names and without selection biases: what a device holds.
void for_each_view(ModelWeights& weights, bool tied, const std::function<void(WeightView&)>& visit);

}  // namespace switchyard
