// SPDX-License-Identifier: Apache-2.0
// What one GPU of a tensor-parallel group holds of a model (parallel.attention = "tp").
//
// Divided by tp: heads, KV heads (at least one each: tp / KV heads GPUs hold the same one), columns
// of the dense FFN and of the shared experts. Whole on every GPU: norms, router, embedding, head,
// MLA's latent projections and cache. Routed experts are whole and divided among the GPUs (ep =
// tp).
//
// Not modelled: vocabulary-parallel embedding and head (every GPU reads them whole), sequence
// parallelism (norms on a share of the tokens), experts cut into columns.
#pragma once
#include <algorithm>

#include "engine/model/model_config.hpp"

namespace switchyard::sim {

/// tp divides the sizes (the scenario reader has checked it). tp = 1 gives the model back.
inline model::ModelConfig shard_of(model::ModelConfig m, std::uint32_t tp) {
  m.num_heads /= tp;
  m.num_kv_heads = std::max<decltype(m.num_kv_heads)>(1, m.num_kv_heads / tp);
  m.dense_intermediate /= tp;
  m.shared_intermediate /= tp;
  return m;
}

}  // namespace switchyard::sim
