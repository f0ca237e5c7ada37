// SPDX-License-Identifier: Apache-2.0
// Internal: alarms from a merged tree, for a scenario's [monitor] and for files of their own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "sim/scenario/alarms.hpp"
#include "sim/scenario/section.hpp"

namespace switchyard::scenario {

/// Reads the policy that `policy = "…"` of a rule names; the node is the rule's value.
using PolicyLoader = std::function<RoutingPolicy(const Node&, const std::string& key)>;

/// `list` holds the rules (null: none), full keys begin with `path` + "[i]".
std::vector<AlarmRule> alarms_from(Context& context, const Node* list, const std::string& path,
                                   const Node& parent, const PolicyLoader& policy);

}  // namespace switchyard::scenario
