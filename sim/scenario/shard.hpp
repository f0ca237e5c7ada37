// SPDX-License-Identifier: Apache-2.0
// What one GPU of a tensor-parallel group holds of a model (parallel.attention = "tp").
//
// Divided by tp: heads, KV heads (at least one each: tp / KV heads GPUs hold the same one), columns
// of the dense FFN and of the shared experts. Whole on every GPU: norms, router, embedding, head,
// MLA's latent projections and cache. Routed experts are divided among the GPUs of the group, whole
// (ep = tp) or, with ep < tp, cut: EP rank r is tp / ep neighbouring GPUs, each with I / (tp / ep)
// columns of gate and up and as many rows of down of the rank's experts, which adds the same bytes
// a GPU for any ep; the all-reduce after the experts adds up what ranks and columns give. With ep a
// multiple of tp they are whole and divided among several groups; then a GPU runs the MoE layer for
// its share of the group's tokens, with the shared experts whole.
//
// Vocabulary (parallel.vocab_parallel, as in Megatron-LM and vLLM): a GPU has V / tp rows of
// embedding and head, rounded up. It looks up those of its tokens that it has, T / tp of them on
// average, and an all-reduce of T·H·a adds them up (with sequence parallelism a reduce-scatter);
// its part of the logits, in the activations' format, is all-gathered, and every GPU samples from
// all.
//
// Not modelled: a bias of the down projection cut with its expert (each GPU holds it whole); tokens
// that are looked up where their ids say (synthetic ones have none); candidates gathered in place
// of logits.
#pragma once
#include <algorithm>

#include "engine/model/model_config.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::scenario {

/// tp divides the sizes (the scenario reader has checked it). tp = 1 gives the model back.
/// `wide`: ep is larger than tp.
/// `cut`: GPUs that divide an expert; `vocab`: those that divide the vocabulary.
inline model::ModelConfig shard_of(model::ModelConfig m, std::uint32_t tp, bool wide = false,
                                   std::uint32_t cut = 1, std::uint32_t vocab = 1) {
  m.num_heads /= tp;
  m.num_kv_heads = std::max<decltype(m.num_kv_heads)>(1, m.num_kv_heads / tp);
  m.dense_intermediate /= tp;
  if (!wide) m.shared_intermediate /= tp;
  m.expert_intermediate /= cut;
  if (const auto it = m.stated.find("expert"); it != m.stated.end()) it->second /= cut;
  m.vocab_size = (m.vocab_size + vocab - 1) / vocab;
  return m;
}

/// What one GPU of a layout holds of a model.
inline model::ModelConfig shard_of(const model::ModelConfig& m, const Parallel& p) {
  return shard_of(m, p.tp, p.ep > p.tp, p.expert_tp, p.vocab_parallel ? p.tp : 1);
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

}  // namespace switchyard::scenario
