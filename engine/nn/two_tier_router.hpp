// SPDX-License-Identifier: Apache-2.0
// File: two_tier_router.hpp. The two routers of M18 (routing/two_tier.hpp): a cheap one that
// proposes experts and a scorer that picks among them.
//
//   int4:  W'[e,i] = s q, q = round(W[e,i] / s) in -7…7, s = max |W| / 7 per expert and group of
//          128 inputs
//   rank:  W' = U U^T W, U = the r leading eigenvectors of W W^T: the best approximation of rank r
//   scorer: s = W2 gelu(W1 x + b1) + b2, gelu(v) = v Phi(v) with the error function
//
// z = W' x (+ the router's bias) then is the gate of the model: the trace stores it as the raw
// logits. All sums run in double in the order of the inputs, so results depend on x only.
// Not modelled: the time of either tier (table batch-serving prices tier 2 as a CPU router).
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/nn/weights.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard {

class TwoTierRouter {
 public:
  /// `rank` is read for kRank, 1…min(E, H). InputError: the scorer's file is missing or holds other
  /// tensors than layers.N.{w1, b1, w2, b2} ([h,H], [h], [E,h], [E]) for every MoE layer N.
  TwoTierRouter(FirstTier first, std::uint32_t rank, const std::filesystem::path& scorer,
                const ModelWeights& weights, const model::ModelConfig& config);
  /// As the policy says (it is on). Checks policy.two_tier.hash and sets it. The weights' data is
  /// in host memory.
  static TwoTierRouter load(RoutingPolicy& policy, const PolicyFiles& files,
                            const ModelWeights& weights, const model::ModelConfig& config);
  /// Tier 1's logits, [T][E], of the moe_layer-th MoE layer for its router input x, [T][H].
  void propose(std::size_t moe_layer, std::span<const float> x, std::span<float> logits) const;
  /// Tier 2's scores, [T][E].
  void score(std::size_t moe_layer, std::span<const float> x, std::span<float> scores) const;
  /// W' of a layer, [E][H].
  [[nodiscard]] std::span<const float> first_tier(std::size_t moe_layer) const {
    return layers_[moe_layer].router;
  }

 private:
  struct Layer {
    std::vector<float> router, bias;    // [E][H], [E] or empty
    std::vector<float> w1, b1, w2, b2;  // [h][H], [h], [E][h], [E]
  };
  std::size_t hidden_ = 0, experts_ = 0;
  std::vector<Layer> layers_;
};

/// W' as above; `w` is [rows][cols].
[[nodiscard]] std::vector<float> int4_router(std::span<const float> w, std::size_t cols);
[[nodiscard]] std::vector<float> low_rank_router(std::span<const float> w, std::size_t cols,
                                                 std::uint32_t rank);

}  // namespace switchyard
