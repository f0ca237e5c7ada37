// SPDX-License-Identifier: Apache-2.0
// Reads the safetensors files that a policy names. N is the number of the MoE layer in the model;
// every MoE layer needs its tensors, and a file holds no others. F32, BF16 or F16.
//
//   semantic.file        layers.N.semantic.w1 [D, E] (on = input: [D, H])   .b1 [D]
//                        layers.N.semantic.w2 [E, D]                        .b2 [E]
//   condition.adapter    layers.N.router.lora_a [r, H]                      .lora_b [E, r]
#pragma once
#include <cstdint>
#include <span>

#include "engine/routing/policy.hpp"
#include "engine/routing/policy_weights.hpp"

namespace switchyard::model {

/// `layers`: numbers of the MoE layers, ascending; `hidden`: H. Empty when the policy names no
/// file. Fills the policy's hash fields with the XXH3 of each file, so that a trace tells which
/// weights made it. InputError: a file that is missing or no safetensors file, a tensor that is
/// missing, unknown, misshapen or not finite, a hash that the policy states and the file has not.
[[nodiscard]] PolicyWeights load_policy_weights(RoutingPolicy& policy, const PolicyFiles& files,
                                                const GateSpec& gate,
                                                std::span<const std::uint32_t> layers,
                                                std::uint64_t hidden);

}  // namespace switchyard::model
