// SPDX-License-Identifier: Apache-2.0
// File: weights.hpp. The tensors of a Mixtral-family model, checked against its configuration.
#pragma once
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/model/model_config.hpp"

namespace switchyard {

/// One layer: x + attention(norm(x)), then x + experts(norm(x)). h heads, g KV heads, d head_dim.
struct LayerWeights {
  WeightView input_norm;           ///< [1, H]
  WeightView q, k, v, o;           ///< [h*d, H], [g*d, H], [g*d, H], [H, h*d]
  WeightView post_attention_norm;  ///< [1, H]
  WeightView router;               ///< [E, H]
  std::vector<ExpertView> experts;
};

/// All tensors, borrowed from whoever holds the checkpoint (or, in tests, the arrays).
struct ModelWeights {
  WeightView embedding;  ///< [V, H]
  std::vector<LayerWeights> layers;
  WeightView final_norm;  ///< [1, H]
  WeightView head;        ///< [V, H]; the embedding when tied.
};

/// Throws InputError(where, …) that names the feature when the engine cannot run the model: any
/// family but Mixtral, rope scaling, quantised weights, an odd head_dim.
void require_runnable(const model::ModelConfig& config, const std::string& where);

/// Takes every tensor of a Mixtral checkpoint (per-expert names w1/w2/w3, or Hugging Face v5's
/// fused gate_up_proj/down_proj) and calls Checkpoint::finish(), so a missing, extra or misshapen
/// tensor is an InputError that names it. Views live as long as the checkpoint.
[[nodiscard]] ModelWeights take_weights(model::Checkpoint& checkpoint);

}  // namespace switchyard
