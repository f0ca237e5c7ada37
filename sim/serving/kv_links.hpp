// SPDX-License-Identifier: Apache-2.0
// KV pages that travel from a prefill replica to a decode replica over the cluster's links, under
// network.model = "bottleneck" and with measured links. Under the other models they share the links
// with exchanges (sim/loop/exchange_timer.hpp).
//
//   duration = path latency + max over links of bytes / bandwidth (twice that when the way is
//   staged through host memory)
//
// A transfer holds its links: it begins when the last one of them is free, first come, first
// served.
//
// Not modelled: KV transfers and the exchanges of steps do not slow each other (both are timed on
// the full bandwidth); pages sent layer by layer while the prompt is still computed.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/cluster/route_table.hpp"

namespace switchyard::sim {

class KvLinks {
 public:
  explicit KvLinks(cluster::RouteTable routes);
  /// `bytes` from GPU `from` + i to GPU `to` + i for i < width, asked for at `now`. Returns when
  /// the last one has arrived (ps of simulated time), > now.
  std::int64_t send(std::uint32_t from, std::uint32_t to, std::uint32_t width, std::uint64_t bytes,
                    std::int64_t now);

 private:
  cluster::RouteTable routes_;
  std::vector<std::int64_t> free_ps_;  // [links]
};

}  // namespace switchyard::sim
