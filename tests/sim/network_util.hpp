// SPDX-License-Identifier: Apache-2.0
// Graphs, matrices and the max-min oracle that the network tests share.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/random.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/network/network_model.hpp"

namespace switchyard::network::test {

using cluster::ClusterGraph;
using cluster::DeviceKind;
using cluster::RouteTable;

/// Seeded numbers in a fixed order.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return random_uniform(seed_, 1, {next_++, 0, 0, 0}); }
  double between(double a, double b) { return a + (b - a) * uniform(); }
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(random_u64(seed_, 2, {next_++, 0, 0, 0}) % n);
  }

 private:
  std::uint64_t seed_;
  std::uint32_t next_ = 0;
};

/// n GPUs on one switch; the path latency is split over the two hops.
inline ClusterGraph star(std::uint32_t n, double rate, SimTime path_latency) {
  ClusterGraph g;
  for (std::uint32_t i = 0; i < n; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu);
  }
  const std::uint32_t hub = g.add_device("switch", DeviceKind::kNvSwitch);
  for (std::uint32_t i = 0; i < n; ++i) {
    g.add_cable(i, hub, BytesPerSecond{rate}, SimTime::from_ps(path_latency.ps() / 2));
  }
  return g;
}

/// Servers of 8 GPUs: NVSwitch inside; outside one NIC per GPU, or one NIC for the whole server.
inline ClusterGraph two_tier(std::uint32_t servers, bool nic_per_gpu) {
  ClusterGraph g;
  const std::uint32_t n = servers * 8;
  for (std::uint32_t i = 0; i < n; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu, i / 8);
  }
  const std::uint32_t fabric = g.add_device("fabric", DeviceKind::kSwitch);
  for (std::uint32_t s = 0; s < servers; ++s) {
    const std::uint32_t nv = g.add_device(fmt::format("nv{}", s), DeviceKind::kNvSwitch, s);
    const std::uint32_t nics = nic_per_gpu ? 8 : 1;
    for (std::uint32_t k = 0; k < 8; ++k) {
      g.add_cable(s * 8 + k, nv, BytesPerSecond{450e9}, SimTime::from_ns(500));
    }
    for (std::uint32_t k = 0; k < nics; ++k) {
      const std::uint32_t nic = g.add_device(fmt::format("nic{}_{}", s, k), DeviceKind::kNic, s);
      if (nic_per_gpu) {
        g.add_cable(s * 8 + k, nic, BytesPerSecond{55e9}, SimTime::from_ns(700));
      } else {
        g.add_cable(nv, nic, BytesPerSecond{200e9}, SimTime::from_ns(700));
      }
      g.add_cable(nic, fabric, BytesPerSecond{50e9}, SimTime::from_us(1));
    }
  }
  return g;
}

/// Connected random graph: GPUs hang on random switches (some on two), switches form a tree with
/// extra cables; every bandwidth is different, some cables are shared media.
inline ClusterGraph random_graph(std::uint64_t seed, std::uint32_t gpus, std::uint32_t switches,
                                 bool with_latency) {
  Draw draw(seed);
  ClusterGraph g;
  for (std::uint32_t i = 0; i < gpus; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu, i % 2);
  }
  for (std::uint32_t s = 0; s < switches; ++s) {
    g.add_device(fmt::format("sw{}", s), DeviceKind::kSwitch);
  }
  const auto cable = [&](std::uint32_t a, std::uint32_t b) {
    cluster::Cable c;
    c.a = a;
    c.b = b;
    c.a_to_b = BytesPerSecond{draw.between(10e9, 100e9)};
    c.shared_medium = draw.uniform() < 0.2;
    c.b_to_a = c.shared_medium ? c.a_to_b : BytesPerSecond{draw.between(10e9, 100e9)};
    c.latency = SimTime::from_ns(with_latency ? draw.below(5000) : 0);
    g.add_cable(c);
  };
  for (std::uint32_t s = 1; s < switches; ++s) {
    cable(gpus + s, gpus + draw.below(s));
  }
  for (std::uint32_t s = 2; s < switches; ++s) {
    if (draw.uniform() < 0.5) {
      cable(gpus + s, gpus + draw.below(s - 1));
    }
  }
  for (std::uint32_t i = 0; i < gpus; ++i) {
    cable(i, gpus + draw.below(switches));
    if (draw.uniform() < 0.3) {
      cable(i, gpus + draw.below(switches));
    }
  }
  return g;
}

inline std::vector<std::uint64_t> uniform_matrix(std::uint32_t n, std::uint64_t per_pair) {
  return std::vector<std::uint64_t>(static_cast<std::size_t>(n) * n, per_pair);
}

/// A share `density` of the pairs carries between `least` and `most` bytes; the diagonal is filled
/// too, since it must be ignored.
inline std::vector<std::uint64_t> random_matrix(Draw& draw, std::uint32_t n, double density,
                                                double least, double most) {
  std::vector<std::uint64_t> m(static_cast<std::size_t>(n) * n, 0);
  for (auto& b : m) {
    if (draw.uniform() < density) {
      b = static_cast<std::uint64_t>(draw.between(least, most));
    }
  }
  return m;
}

/// Max-min fair sharing by progressive filling, with staggered starts: the independent oracle for
/// SimGrid. A flow takes its rate from every link of its path (twice where the link comes twice).
struct OracleFlow {
  double start = 0, bytes = 0;
  std::vector<std::uint32_t> links;
  double end = -1;
};
inline void max_min(std::vector<OracleFlow>& flows, const std::vector<double>& bandwidth) {
  std::vector<double> left(flows.size()), rate(flows.size());
  for (std::size_t f = 0; f < flows.size(); ++f) {
    left[f] = flows[f].bytes;
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  for (double now = 0; now < kNever;) {
    std::vector<double> capacity = bandwidth;
    std::vector<std::size_t> open;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      rate[f] = 0;
      if (flows[f].start <= now && flows[f].end < 0) {
        open.push_back(f);
      }
    }
    while (!open.empty()) {
      std::vector<double> users(bandwidth.size(), 0);
      for (const std::size_t f : open) {
        for (const std::uint32_t l : flows[f].links) {
          users[l] += 1;
        }
      }
      std::uint32_t tight = 0;
      double share = kNever;
      for (std::uint32_t l = 0; l < bandwidth.size(); ++l) {
        if (users[l] > 0 && capacity[l] / users[l] < share) {
          share = capacity[l] / users[l];
          tight = l;
        }
      }
      std::vector<std::size_t> rest;
      for (const std::size_t f : open) {
        const auto& links = flows[f].links;
        if (std::find(links.begin(), links.end(), tight) == links.end()) {
          rest.push_back(f);
          continue;
        }
        rate[f] = share;
        for (const std::uint32_t l : links) {
          capacity[l] -= share;
        }
      }
      open = rest;
    }
    double next = kNever;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (flows[f].end < 0) {
        next = std::min(next, flows[f].start > now ? flows[f].start : now + left[f] / rate[f]);
      }
    }
    for (std::size_t f = 0; f < flows.size() && next < kNever; ++f) {
      left[f] -= rate[f] * (next - now);
      if (rate[f] > 0 && left[f] <= 1e-11 * flows[f].bytes) {
        flows[f].end = next;
      }
    }
    now = next;
  }
}

}  // namespace switchyard::network::test
