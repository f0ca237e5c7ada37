// SPDX-License-Identifier: Apache-2.0
// Traces of other programs' dumps, which state the experts that each token took and no logits.
// Their `precision` says so; candidates are the experts taken, in the dump's order, and the row
// ends there; logit and lse are -inf, as for logits that were NaN; weights are 0; outcome kept.
// Such a trace can be counted and simulated as it is. Of policies only those of the family's choice
// with a capacity can be applied to it whose outcome follows from the experts and the order of the
// tokens alone: order = position, reroute = none, no max_score_drop.
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

/// InputError(where) when the trace has no logits and `policy` asks for more than the experts that
/// each token took, names the key.
inline void require_decidable(const TraceHeader& header, const RoutingPolicy& policy,
                              const std::string& where) {
  if (!is_experts_only(header)) return;
  const std::string hint = "drop the policy, or trace the model with switchyard trace";
  if (policy.capacity.rule != CapacityRule::kNone) {
    const auto refuse = [&](bool wrong, const char* key, const char* what) {
      if (!wrong) return;
      throw InputError(where + ".capacity." + key,
                       std::string("unsupported: the routing trace states the experts taken and no "
                                   "logits: ") +
                           what,
                       hint);
    };
    refuse(policy.capacity.reroute != Reroute::kNone, "reroute",
           "who is refused has no next candidate; use reroute = \"none\"");
    refuse(policy.capacity.order != OverflowOrder::kPosition, "order",
           "tokens can be ranked by position only; use order = \"position\"");
    refuse(policy.capacity.max_score_drop.has_value(), "max_score_drop", "there are no scores");
  }
  RoutingPolicy rest = policy;
  if (policy.capacity.rule != CapacityRule::kNone) rest.capacity = {};
  if (!(rest == RoutingPolicy{})) {
    throw InputError(where,
                     "unsupported: the routing trace states the experts taken and no logits, so "
                     "there is nothing to route by but as they are, with a capacity at most",
                     hint);
  }
}

}  // namespace switchyard
