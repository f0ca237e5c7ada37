// SPDX-License-Identifier: Apache-2.0
// What one GPU of a tensor-parallel group holds of a model (parallel.attention = "tp").
//
// Divided by tp: heads, KV heads (at least one each: tp / KV heads GPUs hold the same one), columns
// of the dense FFN and of the shared experts. Whole on every GPU: norms, router, embedding, head,
// MLA's latent projections and cache. Routed experts are whole and divided among the GPUs: of the
// group (ep = tp), or of several groups (ep a multiple of tp). In the second case a GPU runs the
// MoE layer for its share of the group's tokens, with the shared experts whole.
//
// Not modelled: vocabulary-parallel embedding and head (every GPU reads them whole), experts cut
// into columns.
#pragma once
#include <algorithm>

#include "engine/model/model_config.hpp"

namespace switchyard::sim {

/// tp divides the sizes (the scenario reader has checked it). tp = 1 gives the model back.
/// `wide`: ep is larger than tp.
inline model::ModelConfig shard_of(model::ModelConfig m, std::uint32_t tp, bool wide = false) {
  m.num_heads /= tp;
  m.num_kv_heads = std::max<decltype(m.num_kv_heads)>(1, m.num_kv_heads / tp);
  m.dense_intermediate /= tp;
  if (!wide) m.shared_intermediate /= tp;
  return m;
}

/// First layer of stage s of a pipeline of pp; s = pp: the number of layers.
inline std::size_t stage_begin(std::size_t layers, std::uint32_t pp, std::uint32_t s) {
  return layers * s / pp;
}
/// What a stage holds of a model: its layers, the embedding in the first, final norm and head in
/// the last. A head that is tied to the embedding is a second copy there. `shard`: of tp or whole.
inline model::ModelConfig stage_of(const model::ModelConfig& shard, std::uint32_t pp,
                                   std::uint32_t s) {
  model::ModelConfig m = shard;
  const std::size_t first = stage_begin(shard.layers.size(), pp, s);
  const std::size_t beyond = stage_begin(shard.layers.size(), pp, s + 1);
  m.layers.assign(shard.layers.begin() + static_cast<std::ptrdiff_t>(first),
                  shard.layers.begin() + static_cast<std::ptrdiff_t>(beyond));
  m.num_layers = m.layers.size();
  m.final_norm = shard.final_norm && s + 1 == pp;
  return m;
}

}  // namespace switchyard::sim
