// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gate.hpp"

namespace switchyard::model {

GateSpec gate_spec(const ModelConfig& config) {
  GateSpec g;
  if (config.num_moe_layers() == 0) {
    return g;
  }
  const GateFields& f = config.gate;
  g.experts = static_cast<std::uint32_t>(config.num_experts);
  g.top_k = static_cast<std::uint32_t>(config.top_k);
  g.score = f.score == GateScore::kSigmoid    ? switchyard::GateScore::kSigmoid
            : f.score == GateScore::kIdentity ? switchyard::GateScore::kIdentity
                                              : switchyard::GateScore::kSoftmax;
  g.renorm = f.renormalize;
  g.eps = static_cast<float>(f.eps);
  g.scale = static_cast<float>(f.scale);
  g.exclusive_scale = f.scale_excludes_renorm;
  g.n_group = f.n_group;
  g.topk_group = f.topk_group;
  g.group_score = f.group_score == GroupScore::kSumTop2 ? switchyard::GroupScore::kSumTop2
                                                        : switchyard::GroupScore::kMax;
  g.group_mask = f.mask_with_zero ? GroupMask::kZero : GroupMask::kMinusInfinity;
  return g;
}

}  // namespace switchyard::model
