// SPDX-License-Identifier: Apache-2.0
// Traces of other programs' dumps, which state the experts that each token took and no logits.
// Their `precision` says so; candidates are the experts taken, in the dump's order, and the row
// ends there; logit and lse are -inf, as for logits that were NaN; weights are 0; outcome kept.
// Such a trace can be counted and simulated as it is, but nothing can be decided anew from it.
#pragma once
#include <string>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {

inline constexpr std::string_view kExpertsOnly = "experts only, no logits";

[[nodiscard]] inline bool is_experts_only(const TraceHeader& header) {
  return header.precision == kExpertsOnly;
}

/// InputError(where) when the trace has no logits and `policy` does more than take each token's
/// experts as they are.
inline void require_decidable(const TraceHeader& header, const RoutingPolicy& policy,
                              const std::string& where) {
  if (is_experts_only(header) && !(policy == RoutingPolicy{})) {
    throw InputError(where,
                     "unsupported: the routing trace states the experts taken and no logits, so "
                     "there is nothing to route by but as they are",
                     "drop the policy, or trace the model with switchyard trace");
  }
}

}  // namespace switchyard
