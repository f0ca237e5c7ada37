// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster/route_table.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard::cluster {

RouteTable RouteTable::subset(std::span<const std::uint32_t> chosen) const {
  RouteTable t;
  t.endpoints = static_cast<std::uint32_t>(chosen.size());
  t.bandwidth = bandwidth;
  t.link_name = link_name;
  t.achievable = achievable;
  t.offset.push_back(0);
  std::vector<bool> seen(endpoints, false);
  for (const std::uint32_t src : chosen) {
    SWITCHYARD_ASSERT(src < endpoints && !seen[src],
                      fmt::format("endpoint {} of {}, or chosen twice", src, endpoints));
    seen[src] = true;
    t.node.push_back(node[src]);
    t.endpoint_name.push_back(endpoint_name[src]);
    for (const std::uint32_t dst : chosen) {
      const std::size_t p = pair(src, dst);
      t.link.insert(t.link.end(), link.begin() + offset[p], link.begin() + offset[p + 1]);
      t.offset.push_back(static_cast<std::uint32_t>(t.link.size()));
      t.latency_ps.push_back(latency_ps[p]);
      if (!phase_latency_ps.empty()) t.phase_latency_ps.push_back(phase_latency_ps[p]);
      t.staged.push_back(staged[p]);
      t.through_gpu.push_back(through_gpu[p]);
    }
  }
  return t;
}

}  // namespace switchyard::cluster
