// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/placement_source.hpp"

#include <algorithm>
#include <limits>

#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/loop/routing_source.hpp"

namespace switchyard::sim {
namespace {

using scenario::PlacementKind;

std::vector<double> rank_speeds(const scenario::Scenario& s) {
  const cluster::RouteTable routes = cluster::build_cluster(s.hardware).routes();
  const std::uint32_t ep = s.parallel.ep;
  std::vector<double> speed(ep, 0);
  for (std::uint32_t g = 0; g < routes.endpoints; ++g) {
    const std::uint32_t first = g / ep * ep;
    for (std::uint32_t other = first; other < first + ep; ++other) {
      if (other == g) continue;
      double narrowest = std::numeric_limits<double>::infinity();
      for (const std::uint32_t link : routes.links_of(other, g)) {
        narrowest = std::min(narrowest, routes.bandwidth[link]);
      }
      speed[g % ep] += narrowest;
    }
  }
  if (ep == 1) speed[0] = 1;  // one rank: no link decides
  return speed;
}

}  // namespace

RoutingProfile profile_routing(const scenario::Scenario& s, const RoutingTrace* trace,
                               std::uint32_t steps, bool with_pairs) {
  const auto layers = static_cast<std::uint32_t>(s.model.num_moe_layers());
  const auto experts = static_cast<std::size_t>(s.model.num_experts);
  const std::unique_ptr<RoutingSource> source = make_routing_source(s, trace);
  const std::uint32_t k = source->gate().top_k;
  RoutingProfile out;
  out.load.assign(layers, std::vector<double>(experts, 0));
  if (with_pairs) out.together.assign(layers, std::vector<double>(experts * experts, 0));
  StepTokens tokens;
  Candidates candidates;
  for (std::uint32_t step = 0; step < steps; ++step) {
    tokens = StepTokens{};
    for (std::uint32_t b = 0; b < s.workload.batch; ++b) {
      for (std::uint32_t j = 0; j < s.workload.tokens; ++j) {
        const std::uint64_t ordinal = std::uint64_t{step} * s.workload.tokens + j;
        tokens.sequence.push_back(b);
        tokens.position.push_back(static_cast<std::uint32_t>(s.workload.context + ordinal));
        tokens.ordinal.push_back(static_cast<std::uint32_t>(ordinal));
        tokens.phase.push_back(s.workload.kind == scenario::WorkloadKind::kDecode ? 1 : 0);
        tokens.rank.push_back(0);
      }
    }
    for (std::uint32_t l = 0; l < layers; ++l) {
      source->candidates(tokens, l, candidates);
      const std::uint32_t best = std::min(k, candidates.width);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const std::uint16_t* const id = candidates.ids.data() + t * candidates.width;
        for (std::uint32_t i = 0; i < best; ++i) {
          out.load[l][id[i]] += 1;
          for (std::uint32_t j = 0; with_pairs && j < best; ++j) {
            if (j != i) out.together[l][id[i] * experts + id[j]] += 1;
          }
        }
      }
    }
  }
  return out;
}

placement::Placement resolve_placement(const scenario::Scenario& s, const RoutingTrace* trace) {
  const scenario::Parallel& p = s.parallel;
  const scenario::PlacementOptions& o = p.placement_options;
  placement::Placement out;
  out.ranks = p.ep;
  if (s.model.num_moe_layers() == 0) return out;
  if (p.placement == PlacementKind::kContiguous || p.placement == PlacementKind::kRoundRobin ||
      p.placement == PlacementKind::kExplicit) {
    for (const std::vector<std::uint32_t>& first : p.expert_rank) {
      placement::Row row(first.size());
      for (std::size_t e = 0; e < first.size(); ++e) row[e] = {first[e]};
      out.rows.push_back(std::move(row));
    }
    for (const scenario::ReplicaPlace& r : p.replicas) {
      out.rows[r.row][r.expert].push_back(r.rank);
    }
    return out;
  }

  RoutingProfile profile;
  const std::vector<std::vector<double>>* loads = &o.loads;
  if (o.loads.empty()) {
    profile = profile_routing(s, trace, o.profile_steps, p.placement == PlacementKind::kAffinity);
    loads = &profile.load;
  }
  const auto experts = static_cast<std::uint32_t>(s.model.num_experts);
  const std::vector<double> speed =
      p.placement == PlacementKind::kTopologyHot ? rank_speeds(s) : std::vector<double>();
  try {
    for (std::size_t l = 0; l < loads->size(); ++l) {
      const std::vector<double>& load = (*loads)[l];
      switch (p.placement) {
        case PlacementKind::kReplicated:
          out.rows.push_back(placement::replicated(load, experts + o.redundant, p.ep));
          break;
        case PlacementKind::kEplb:
          out.rows.push_back(
              placement::row_of_slots(placement::eplb(load, {.slots = experts + o.redundant,
                                                             .groups = o.groups,
                                                             .nodes = o.nodes,
                                                             .ranks = p.ep}),
                                      experts, p.ep));
          break;
        case PlacementKind::kAffinity:
          out.rows.push_back(placement::affinity(load, profile.together[l], p.ep, o.max_imbalance));
          break;
        case PlacementKind::kTopologyHot:
          out.rows.push_back(placement::topology_hot(load, speed));
          break;
        case PlacementKind::kContiguous:
        case PlacementKind::kRoundRobin:
        case PlacementKind::kExplicit:
          break;
      }
    }
  } catch (const InputError& e) {
    throw InputError("parallel.placement", e.what());
  }
  return out;
}

}  // namespace switchyard::sim
