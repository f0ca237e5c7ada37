// SPDX-License-Identifier: Apache-2.0
// Uniform routing as a trace in memory: drawing it once is much faster than at every step.
#pragma once
#include "engine/routing/gate.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::validation {

/// 64 sequences of 128 prompt and 128 answer rows, 4 layers, Gumbel logits from a fixed seed; for
/// routing = { …, layers = "cycle" }.
RoutingTrace drawn_routing(const GateSpec& gate);

}  // namespace switchyard::validation
