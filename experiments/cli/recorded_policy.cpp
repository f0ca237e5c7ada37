// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/recorded_policy.hpp"

#include <fmt/format.h>

#include <optional>

#include "engine/base/error.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/trace/replay.hpp"

namespace switchyard {

void replay_recorded(RoutingTrace& trace, const NamedPolicy* named, const std::string& where) {
  const TraceHeader& h = trace.header;
  ReplayOptions options = ReplayOptions::recorded(h);
  const std::string key = !h.policy.semantic.file.empty() ? "semantic.file"
                          : h.policy.table.on()           ? "table.file"
                                                          : "";
  if (named == nullptr && !key.empty()) {
    throw InputError(where,
                     fmt::format("the file has no decisions, and policy.{} = {} needs that file "
                                 "for a replay",
                                 key, get_policy_field(h.policy, key)),
                     "give --policy with the policy file of the run");
  }
  PolicyWeights weights;
  std::optional<RoutingTable> table;
  if (named != nullptr) {
    RoutingPolicy policy = named->policy;
    // The adapter is in the recorded logits, and its width is not in the trace.
    policy.condition.adapter.clear();
    policy.condition.adapter_hash = "any";
    weights = model::load_policy_weights(policy, named->files, h.gate, h.layers, h.hidden);
    table = load_table(policy, named->files, h.gate, h.layer_count());
    policy.condition.adapter = named->policy.condition.adapter;
    policy.condition.adapter_hash = h.policy.condition.adapter_hash;
    policy.two_tier.hash = h.policy.two_tier.hash;
    if (policy != h.policy) {
      throw InputError(named->path, "is not the policy that made the trace",
                       fmt::format("that was: {}", policy_to_text(h.policy)));
    }
    options.weights = weights.layers.empty() ? nullptr : &weights;
    options.table = table ? &*table : nullptr;
  }
  replay(trace, options);
}

}  // namespace switchyard
