// SPDX-License-Identifier: Apache-2.0
// Balancing losses of a routing trace (M23), as the systems that train with them define them, all
// with coefficient 1. Per MoE layer, over the rows that are not warm-up (so padding never counts).
//
// T rows, E experts, k per token; p[t,e] probability of the gate over all E (softmax; a sigmoid
// gate's scores divided by their sum); f[e] share of rows whose first slot is e; c[e] slots that
// chose e, before capacity; s[b,e] mean of p over sequence b, S_b its rows, c_b[e] its slots.
//   switch        E sum_e f[e] mean_t p[t,e]                        GShard, Switch; even: 1
//   megatron      E / (k T^2) sum_e c[e] sum_t p[t,e]               Megatron, MegaBlocks; even: 1
//   hugging_face  E sum_e (c[e] / T) mean_t p[t,e], all layers' rows concatenated: one value for
//   the
//                 model (transformers' load_balancing_loss_func); even: k
//   deepseek_seq  mean_b sum_e c_b[e] E / (k S_b) s[b,e]            DeepSeek-V2; even: 1
//   z             mean_t lse[t]^2                                   ST-MoE, Megatron
//   importance_cv2, load_cv2   var / (mean^2 + 1e-10) of sum_t p[t,e] and of c[e], variance with
//                 E - 1 (Shazeer); even: 0
//   max_violation max_e c[e] / mean_e c[e] - 1, what DeepSeek-V3's bias update (+- rate by the sign
//                 of mean - c[e]) works against
// All but z, load_cv2 and max_violation need p over all E experts: from the logits where all are
// stored (M = E), else from gate_sum, which the engine records; without either no value.
//
// Not modelled: gradients; Tutel's noisy load; padding that a trace recorded as real rows.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard {

struct LayerLosses {
  std::uint32_t layer = 0;  ///< Number of the layer in the model.
  std::optional<double> switch_loss, megatron, deepseek_seq, z, importance_cv2, load_cv2,
      max_violation;
};

struct TraceLosses {
  std::uint64_t tokens = 0;         ///< T, warm-up left out.
  std::vector<LayerLosses> layers;  ///< [L]
  std::optional<double> hugging_face;
};

/// The trace must have its decisions (asserted).
[[nodiscard]] TraceLosses trace_losses(const RoutingTrace& trace);

}  // namespace switchyard
