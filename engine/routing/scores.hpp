// SPDX-License-Identifier: Apache-2.0
// Decisions from the order of the candidates alone.
//
// Under most policies step 11 needs to know which candidate comes first and not by how much.
// CandidatesView may then have no logit and no lse (both empty; every candidate counts as finite):
// decide() and route_layer() leave LayerDecision::weights empty, all else is the same. A caller that
// moves bytes and not numbers, as the simulator does, saves what the logits and the weights cost.
#pragma once
#include "engine/routing/policy.hpp"

namespace switchyard {

/// Whether decisions or their counts depend on the candidates' logits and not on their order alone.
/// True: candidates without logits are a programmer error (asserted).
[[nodiscard]] bool reads_scores(const RoutingPolicy& policy);

}  // namespace switchyard
