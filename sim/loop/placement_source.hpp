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
/// The same of one of the scenario's layouts; the one above: of `scenario.parallel`.
placement::Placement resolve_placement(const scenario::Scenario& scenario,
                                       const scenario::Parallel& layout, const RoutingTrace* trace);

/// The same from loads ([L or 1][E]) of any origin, in the way of `kind`: kReplicated, kEplb or
/// kTopologyHot (asserted). `speed`: rank_speeds(), read for kTopologyHot only.
placement::Placement place_by_loads(const scenario::Scenario& scenario,
                                    const scenario::Parallel& layout, scenario::PlacementKind kind,
                                    const std::vector<std::vector<double>>& loads,
                                    const std::vector<double>& speed);
/// [ep] bytes per second summed over the other ranks, see above.
std::vector<double> rank_speeds(const scenario::Scenario& scenario,
                                const scenario::Parallel& layout);

/// Copies that a new placement asks for, by replica group: bytes[src·G + dst]. A copy comes from
/// the lowest rank of the receiver's node that held the expert, else from the lowest rank that did;
/// a rank that held it already copies without a link.
struct Migration {
  std::vector<std::uint64_t> bytes;              ///< [G][G]
  std::vector<std::uint64_t> arriving, leaving;  ///< [G] copies.
  std::uint64_t copies = 0;                      ///< Arriving, all GPUs.
};
Migration plan_migration(const scenario::Scenario& scenario, const placement::Placement& from,
                         const placement::Placement& to, std::uint64_t expert_bytes);

}  // namespace switchyard::sim
