// SPDX-License-Identifier: Apache-2.0
// The placement of a scenario's experts, made from what it names: arithmetic, a file, or loads.
//
// Loads "profile": the scenario's own routing of its first profile_steps steps, each token's k best
// experts, before capacity and other policies; together[e, f] counts the tokens that chose both.
// Loads of a file: any unit. topology_hot's speed of rank r is the mean over the other ranks s of
// its EP group of the narrowest link on the way s → r (the mean over EP groups when there are
// several).
//
// Not modelled: the profile sees no effect of the placement it leads to (a policy that reads memory
// levels may route otherwise later).
#pragma once
#include <cstdint>
#include <vector>

#include "engine/trace/trace.hpp"
#include "sim/placement/placement.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

struct RoutingProfile {
  std::vector<std::vector<double>> load;      ///< [L][E] assignments.
  std::vector<std::vector<double>> together;  ///< [L][E·E], symmetric; empty unless asked for.
};
/// `trace` as for simulate(). Throws what make_routing_source throws.
RoutingProfile profile_routing(const scenario::Scenario& scenario, const RoutingTrace* trace,
                               std::uint32_t steps, bool with_pairs);

/// Ranks are EP ranks. Throws InputError at parallel.placement when the experts cannot be placed
/// so.
placement::Placement resolve_placement(const scenario::Scenario& scenario,
                                       const RoutingTrace* trace);

}  // namespace switchyard::sim
