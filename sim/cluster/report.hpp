// SPDX-License-Identifier: Apache-2.0
// What a topology can carry, before anything is simulated: bisection, narrowest routes, and the
// link that limits a uniform all-to-all.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/route_table.hpp"

namespace switchyard::cluster {

/// Least bandwidth with which one half of the GPUs can send to the other half: the minimum, over
/// balanced halves (⌊n/2⌋ GPUs against the rest), of the maximum flow from one to the other
/// (Boost.Graph push-relabel; all paths may be used, not only the chosen routes).
struct Bisection {
  BytesPerSecond capacity;
  std::vector<std::uint32_t> half;  ///< GPU ranks of the sending half of the worst cut, ascending.
  bool exact = false;  ///< true: every balanced half was tried (≤ 16 GPUs). false: only contiguous
                       ///< halves starting at up to 32 ranks, so the value is an upper bound.
};
/// Needs at least 2 GPUs (InputError otherwise).
Bisection bisection(const ClusterGraph& graph);

/// Summary of the chosen routes. In a uniform all-to-all each ordered pair sends one byte.
struct RouteReport {
  std::uint32_t longest_hops = 0;
  std::uint64_t staged_pairs = 0;
  std::uint64_t through_gpu_pairs = 0;
  std::uint32_t narrow_src = kNone, narrow_dst = kNone;  ///< First pair of least bandwidth.
  BytesPerSecond narrow_bandwidth;
  std::uint32_t narrow_link = kNone;
  SimTime longest_latency;
  std::vector<std::uint64_t> pairs_on_link;  ///< [links], with multiplicity.
  std::uint32_t uniform_link = kNone;        ///< Link with the most pairs per bandwidth.
  BytesPerSecond
      uniform_per_gpu;  ///< What each GPU sends then: (n−1)·bandwidth/pairs of that link.
};
RouteReport report_routes(const RouteTable& routes);

/// Which classes of links exchanges use at their nominal rate, and which at an achievable share of
/// it, as a sentence.
[[nodiscard]] std::string rates_in_words(const ClusterGraph& graph);

/// Tables "links" (used links, bandwidth, latency, pairs, share of the bottleneck's time), "routes"
/// and "topology" (the figures above) for `inspect --topology`.
Table link_table(const ClusterGraph& graph, const RouteTable& routes);
/// Table "routes": pairs of GPUs with routes alike (hops, narrowest bandwidth, latency, staging,
/// forwarding by a GPU), widest first, each with its number of pairs and its first pair's path.
Table route_kind_table(const RouteTable& routes);
Table topology_table(const ClusterGraph& graph, const RouteTable& routes);

}  // namespace switchyard::cluster
