// SPDX-License-Identifier: Apache-2.0
// Private to the kernels: a GateSpec as the device reads it, and the probability of one expert in
// exactly the CPU's way (engine/routing/gate.cpp): in double, rounded once to float.
#pragma once
#include "engine/routing/gate.hpp"
#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

struct GateRule {
  std::uint32_t experts, top_k, n_group, topk_group;
  float eps, scale;
  bool sigmoid, identity, renorm, exclusive_scale, grouped, group_sum, mask_zero;
};

inline GateRule gate_rule(const GateSpec& g) {
  return {g.experts,
          g.top_k,
          g.n_group,
          g.topk_group,
          g.eps,
          g.scale,
          g.score == GateScore::kSigmoid,
          g.score == GateScore::kIdentity,
          g.renorm,
          g.exclusive_scale,
          g.grouped(),
          g.group_score == GroupScore::kSumTop2 && g.experts != g.n_group,
          g.group_mask == GroupMask::kZero};
}

/// The part of switchyard::validate(GateSpec) that a kernel would run astray without.
inline bool gate_is_sound(const GateSpec& g) {
  return g.experts >= 1 && g.experts < kNoExpert && g.n_group >= 1 && g.experts % g.n_group == 0 &&
         g.topk_group >= 1 && g.topk_group <= g.n_group && g.top_k >= 1 &&
         g.top_k <= g.topk_group * (g.experts / g.n_group);
}

SWITCHYARD_DEVICE float probability(const GateRule& g, float logit, float lse) {
  if (logit == -kInfinity) {
    return 0.0F;
  }
  const double z = logit;
  if (g.sigmoid) {
    return static_cast<float>(1.0 / (1.0 + exp(-z)));
  }
  const double p = exp(z - static_cast<double>(lse));
  return static_cast<float>(p < 1.0 ? p : 1.0);
}

}  // namespace switchyard::gpu
