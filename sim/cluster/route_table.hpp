// SPDX-License-Identifier: Apache-2.0
// All routes of a cluster as flat arrays: what the network models read.
// [src][dst] → list of link indices in travel order, compressed rows. 1,024 GPUs with 6 links a
// route: 1,048,576 pairs, 25 MB of links, 8 MB of latencies; no text per pair.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.hpp"

namespace switchyard::cluster {

struct RouteTable {
  std::uint32_t endpoints = 0;           ///< n; endpoint index = GPU rank in the usual case.
  std::vector<std::uint32_t> offset;     ///< [n·n + 1]; row src·n + dst. An (i, i) row is empty.
  std::vector<std::uint32_t> link;       ///< [offset.back()], link indices. A staged route over a
                                         ///< shared medium may hold the same link twice.
  std::vector<std::int64_t> latency_ps;  ///< [n·n], sum over the hops.
  std::vector<std::int64_t>
      phase_latency_ps;                    ///< [n·n] of later phases of a call; empty: the same.
  std::vector<std::uint8_t> staged;        ///< [n·n], 1: two copies through host memory.
  std::vector<std::uint8_t> through_gpu;   ///< [n·n], 1: another GPU forwards.
  std::vector<std::uint32_t> node;         ///< [n] server of the endpoint.
  std::vector<std::string> endpoint_name;  ///< [n]
  std::vector<double> bandwidth;           ///< [links] bytes per second that exchanges reach.
  std::vector<double> achievable;          ///< [links] share of the nominal rate; empty: all of it.
  std::vector<std::string> link_name;      ///< [links]

  [[nodiscard]] std::size_t links() const { return bandwidth.size(); }
  [[nodiscard]] std::size_t pair(std::uint32_t src, std::uint32_t dst) const {
    return static_cast<std::size_t>(src) * endpoints + dst;
  }
  [[nodiscard]] std::span<const std::uint32_t> links_of(std::uint32_t src,
                                                        std::uint32_t dst) const {
    const std::size_t p = pair(src, dst);
    return {link.data() + offset[p], link.data() + offset[p + 1]};
  }
  [[nodiscard]] SimTime latency(std::uint32_t src, std::uint32_t dst) const {
    return SimTime::from_ps(latency_ps[pair(src, dst)]);
  }
  /// What a phase of a call pays that follows another one of it.
  [[nodiscard]] SimTime phase_latency(std::uint32_t src, std::uint32_t dst) const {
    return phase_latency_ps.empty() ? latency(src, dst)
                                    : SimTime::from_ps(phase_latency_ps[pair(src, dst)]);
  }
  /// The same routes for some of the endpoints, in the given order; link indices keep their
  /// meaning. Indices must be < endpoints and distinct (asserted).
  [[nodiscard]] RouteTable subset(std::span<const std::uint32_t> chosen) const;
};

}  // namespace switchyard::cluster
