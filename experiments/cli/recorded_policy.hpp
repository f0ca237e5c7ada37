// SPDX-License-Identifier: Apache-2.0
// Replay of a trace under the policy that made it, for files without decisions.
#pragma once
#include <string>

#include "engine/routing/policy.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {

/// A policy file and where the files lie that it names (scenario::read_policy_file).
struct NamedPolicy {
  std::string path;  ///< For messages.
  RoutingPolicy policy;
  PolicyFiles files;
};

/// Decides `trace` again with its recorded policy and seed. `named` gives the weights and the table
/// that the policy needs; null: none was named. InputError(where, …): the policy needs a file and
/// none was named; what a trace does not hold; `named` is another policy than the recorded one.
void replay_recorded(RoutingTrace& trace, const NamedPolicy* named, const std::string& where);

}  // namespace switchyard
