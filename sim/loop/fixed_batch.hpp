// SPDX-License-Identifier: Apache-2.0
// workload.kind = "decode" and "prefill": the same sequences in every step.
//
// Decode: each has one new token a step after `context` cached ones. Prefill: each adds a chunk of
// `tokens`. A decode batch is caught in the middle of its answers, so its requests have no arrival
// and the first token here is not the answer's first; the chunks of a prefill make one prompt.
//
// After a fault a sequence may have lost its pages: it computes its tokens again, recompute_chunk a
// step, while the others go on, and so ends with fewer new tokens. Those tokens are routed by the
// trace's rows from the first on (a decode trace holds no rows of the prompt).
#pragma once
#include <memory>

#include "sim/loop/step_plan.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// `scenario` is borrowed.
std::unique_ptr<BatchSource> make_fixed_batch(const scenario::Scenario& scenario);

}  // namespace switchyard::sim
