// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/placement_source.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/loop/routing_source.hpp"

namespace switchyard::sim {
namespace {

using scenario::PlacementKind;

}  // namespace

std::vector<double> rank_speeds(const scenario::Scenario& s, const scenario::Parallel& p) {
  const cluster::RouteTable routes = cluster::build_cluster(s.hardware).routes();
  const std::uint32_t span = p.copy_gpus();
  std::vector<double> speed(p.ep, 0);
  for (std::uint32_t g = p.first_gpu; g < p.first_gpu + p.gpus(); ++g) {
    const std::uint32_t first = p.first_of_copy(p.copy_of(g));
    for (std::uint32_t other = first; other < first + span; ++other) {
      if (other == g) continue;
      double narrowest = std::numeric_limits<double>::infinity();
      for (const std::uint32_t link : routes.links_of(other, g)) {
        narrowest = std::min(narrowest, routes.bandwidth[link]);
      }
      speed[p.rank_of(g)] += narrowest;
    }
  }
  if (span == 1) speed[0] = 1;  // one rank: no link decides
  return speed;
}

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
  // Requests that arrive are stood for by the answers of the first ones.
  constexpr std::uint32_t kArriving = 64;
  const bool serves = s.workload.serves();
  const std::uint32_t batch = serves ? kArriving : s.workload.batch;
  const std::uint32_t fresh = serves ? 1 : s.workload.tokens;
  const bool decode = serves || s.workload.kind == scenario::WorkloadKind::kDecode;
  for (std::uint32_t step = 0; step < steps; ++step) {
    tokens = StepTokens{};
    for (std::uint32_t b = 0; b < batch; ++b) {
      for (std::uint32_t j = 0; j < fresh; ++j) {
        const std::uint64_t ordinal = std::uint64_t{step} * fresh + j;
        tokens.sequence.push_back(b);
        tokens.position.push_back(static_cast<std::uint32_t>(s.workload.context + ordinal));
        tokens.ordinal.push_back(static_cast<std::uint32_t>(ordinal));
        tokens.phase.push_back(decode ? 1 : 0);
        tokens.answer.push_back(tokens.phase.back());
        tokens.rank.push_back(0);
      }
    }
    for (std::uint32_t l = 0; l < layers; ++l) {
      source->candidates(tokens, l, candidates, RoutingSource::Need::kRanked);
      const std::uint32_t best = std::min(k, candidates.width);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const std::uint16_t* const id = candidates.ids.data() + t * candidates.width;
        // A row of a trace may hold fewer than k candidates: kNoExpert fills it.
        for (std::uint32_t i = 0; i < best; ++i) {
          if (id[i] >= experts) continue;
          out.load[l][id[i]] += 1;
          for (std::uint32_t j = 0; with_pairs && j < best; ++j) {
            if (j != i && id[j] < experts) out.together[l][id[i] * experts + id[j]] += 1;
          }
        }
      }
    }
  }
  return out;
}

placement::Placement place_by_loads(const scenario::Scenario& s, const scenario::Parallel& p,
                                    PlacementKind kind,
                                    const std::vector<std::vector<double>>& loads,
                                    const std::vector<double>& speed) {
  const scenario::PlacementOptions& o = p.placement_options;
  const auto experts = static_cast<std::uint32_t>(s.model.num_experts);
  placement::Placement out;
  out.ranks = p.ep;
  try {
    for (const std::vector<double>& load : loads) {
      switch (kind) {
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
        case PlacementKind::kTopologyHot:
          out.rows.push_back(placement::topology_hot(load, speed));
          break;
        default:
          SWITCHYARD_ASSERT(false, "a placement that does not follow loads");
      }
    }
  } catch (const InputError& e) {
    throw InputError("parallel.placement", e.what());
  }
  return out;
}

Migration plan_migration(const scenario::Scenario& s, const placement::Placement& from,
                         const placement::Placement& to, std::uint64_t expert_bytes) {
  const auto gpus = static_cast<std::uint32_t>(s.hardware.gpu_count());
  const std::uint32_t ep = s.parallel.ep, cut = s.parallel.expert_tp;
  Migration out;
  out.bytes.assign(std::size_t{gpus} * gpus, 0);
  out.arriving.assign(gpus, 0);
  out.leaving.assign(gpus, 0);
  std::vector<std::int32_t> change(ep);
  for (std::size_t l = 0; l < s.model.num_moe_layers(); ++l) {
    const placement::Row& a = from.row(l);
    const placement::Row& b = to.row(l);
    for (std::size_t e = 0; e < a.size(); ++e) {
      std::fill(change.begin(), change.end(), 0);
      for (const std::uint32_t r : a[e]) --change[r];
      for (const std::uint32_t r : b[e]) ++change[r];
      for (std::uint32_t g = 0; g < gpus; ++g) {
        // Columns come from the GPU with the same ones of another rank.
        const std::uint32_t rank = s.parallel.rank_of(g), base = g - rank * cut;
        if (change[rank] < 0) out.leaving[g] += static_cast<std::uint64_t>(-change[rank]);
        if (change[rank] <= 0) continue;
        const auto copies = static_cast<std::uint64_t>(change[rank]);
        out.arriving[g] += copies;
        out.copies += copies;
        // One transfer serves all copies of a rank.
        const auto better = [&](std::uint32_t x, std::uint32_t y) {
          const auto key = [&](std::uint32_t r) {
            return std::tuple(r != rank,
                              s.hardware.gpu(base + r * cut).node != s.hardware.gpu(g).node, r);
          };
          return key(x) < key(y);
        };
        const std::uint32_t source = *std::min_element(a[e].begin(), a[e].end(), better);
        if (source != rank) {
          out.bytes[std::size_t{base + source * cut} * gpus + g] += expert_bytes;
        }
      }
    }
  }
  return out;
}

placement::Placement resolve_placement(const scenario::Scenario& s, const RoutingTrace* trace) {
  return resolve_placement(s, s.parallel, trace);
}

placement::Placement resolve_placement(const scenario::Scenario& s, const scenario::Parallel& p,
                                       const RoutingTrace* trace) {
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
  if (p.placement == PlacementKind::kAffinity) {
    for (std::size_t l = 0; l < loads->size(); ++l) {
      out.rows.push_back(
          placement::affinity((*loads)[l], profile.together[l], p.ep, o.max_imbalance));
    }
    return out;
  }
  return place_by_loads(
      s, p, p.placement, *loads,
      p.placement == PlacementKind::kTopologyHot ? rank_speeds(s, p) : std::vector<double>());
}

}  // namespace switchyard::sim
