// SPDX-License-Identifier: Apache-2.0
// Statistics of a routing trace, per MoE layer and over layers. Warm-up rows are left out.
//
//   load[e]       assignments that expert e accepted: kept + rerouted to it (queued ones are
//                 counted apart)
//   load_cv       population std / mean of load[e] over a window of W tokens, mean over windows;
//                 counting floor of an even router: sqrt((1 - k/E) / (W k/E))
//   top3_share    load of the 3 busiest experts / all load, whole run; an even router has 3/E
//   imbalance     max/mean of load[e] (1 is balanced)
//   entropy_load  of load[e] / sum, bits; normalised: / log2(E)
//   entropy_gate  per token: -sum p log2 p of the softmax over all E, from logit and lse, bits;
//                 needs all E logits (M = E), else no value. Printed: mean over tokens; p95 over
//                 tokens; p95 over batches (steps) of the batch's mean, which the 3.2-bit alarm
//                 reads. p95 is the nearest rank
//   switch_rate   share of adjacent positions (same sequence) whose first choice differs; the
//                 choice is the policy's (pipeline step 10), so M03 and M15 show in it
//   set_switch    1 - sum |S_t and S_{t-1}| / sum |S_t| over the same pairs, S = the choices of
//                 step 10
//   index_variance population variance of the chosen ids of a step, mean over steps
//
// Not modelled: what the loads cost; that is the simulator's work.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard {

struct LayerStats {
  std::uint32_t layer = 0;          ///< Number of the layer in the model.
  std::vector<std::uint64_t> load;  ///< [E]
  std::uint64_t assignments = 0;    ///< Slots that had a first choice.
  std::uint64_t kept = 0, rerouted = 0, queued = 0, dropped = 0;
  /// Slots that were not served by their first choice at once: rerouted + queued + dropped.
  [[nodiscard]] std::uint64_t overflow() const { return rerouted + queued + dropped; }
  /// Without a value: nothing to compute from (no tokens, no pairs, M < E).
  std::optional<double> load_cv, top3_share, imbalance, entropy_load, entropy_gate_mean,
      entropy_gate_p95, entropy_gate_batch_p95, switch_rate, set_switch, index_variance;
};

struct TraceStats {
  std::uint64_t tokens = 0, prefill = 0, decode = 0;  ///< Rows counted (warm-up left out).
  std::uint64_t warm_up = 0;                          ///< Rows left out.
  std::uint64_t window = 0;                           ///< W in tokens.
  std::optional<double> load_cv_floor;                ///< At this W.
  double top3_fair = 0;                               ///< min(3, E) / E.
  std::vector<LayerStats> layers;                     ///< [L]
  /// Means over layers that have the value; the largest top3_share and imbalance of any layer.
  std::optional<double> load_cv, top3_share, top3_share_max, imbalance, imbalance_max, entropy_load,
      entropy_gate_mean, entropy_gate_p95, entropy_gate_batch_p95, switch_rate, set_switch,
      index_variance;
  std::uint64_t assignments = 0, kept = 0, rerouted = 0, queued = 0, dropped = 0;
  [[nodiscard]] std::uint64_t overflow() const { return rerouted + queued + dropped; }
};

/// `window` = W in tokens, in row order; 0: all tokens of the run as one window. W is
/// at most the rows counted; a last window that is not full is left out. The trace must have its
/// decisions (asserted): replay() first when it has none.
[[nodiscard]] TraceStats trace_stats(const RoutingTrace& trace, std::uint64_t window = 0);

}  // namespace switchyard
