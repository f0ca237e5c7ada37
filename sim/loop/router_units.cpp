// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/router_units.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/error.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

RouterUnits::RouterUnits(const scenario::Scenario& s, std::function<SimTime(std::uint64_t)> gate)
    : gpus_(static_cast<std::uint32_t>(s.hardware.gpu_count())), gate_(std::move(gate)) {
  const cluster::ClusterGraph graph = network::cluster_of(s);
  std::vector<std::uint32_t> endpoints = graph.gpus();
  std::vector<std::uint32_t> devices;
  if (s.parallel.router == scenario::RouterPlacement::kCard) {
    devices.push_back(s.parallel.router_card);
  } else {
    for (std::uint32_t d = 0; d < graph.devices().size(); ++d) {
      if (graph.devices()[d].kind == cluster::DeviceKind::kCpu) devices.push_back(d);
    }
  }
  endpoints.insert(endpoints.end(), devices.begin(), devices.end());
  const cluster::RouteTable routes = graph.routes(endpoints);
  std::vector<std::vector<std::uint32_t>> served(devices.size());
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const std::uint32_t node = graph.devices()[graph.gpus()[g]].node;
    std::size_t best = 0;
    std::pair<bool, std::size_t> least{true, SIZE_MAX};
    for (std::size_t u = 0; u < devices.size(); ++u) {
      const auto end = static_cast<std::uint32_t>(gpus_ + u);
      const std::pair<bool, std::size_t> far{graph.devices()[devices[u]].node != node,
                                             routes.links_of(g, end).size()};
      if (far < least) {
        best = u;
        least = far;
      }
    }
    served[best].push_back(g);
  }
  // Only units with GPUs are endpoints from here on.
  std::vector<std::uint32_t> kept(gpus_);
  std::iota(kept.begin(), kept.end(), 0U);
  for (std::size_t u = 0; u < devices.size(); ++u) {
    if (served[u].empty()) continue;
    kept.push_back(static_cast<std::uint32_t>(gpus_ + u));
    units_.push_back({devices[u], graph.devices()[devices[u]].name, served[u], 0, 0});
  }
  const cluster::RouteTable used = routes.subset(kept);
  links_ = std::make_unique<network::BottleneckModel>(used);
  carried_.assign(used.links(), 0);
  scratch_.assign(used.links(), 0);
  std::vector<std::set<std::uint32_t>> of;
  for (std::uint32_t u = 0; u < units_.size(); ++u) {
    std::set<std::uint32_t> mine;
    for (const std::uint32_t g : units_[u].gpus) {
      for (const auto& [a, b] : {std::pair(g, gpus_ + u), std::pair(gpus_ + u, g)}) {
        mine.insert(used.links_of(a, b).begin(), used.links_of(a, b).end());
      }
    }
    of.push_back(std::move(mine));
    sets_.push_back({u});
  }
  const auto meet = [&](const std::vector<std::uint32_t>& x, const std::vector<std::uint32_t>& y) {
    for (const std::uint32_t a : x) {
      for (const std::uint32_t b : y) {
        for (const std::uint32_t link : of[a]) {
          if (of[b].contains(link)) return true;
        }
      }
    }
    return false;
  };
  for (std::size_t i = 0; i < sets_.size();) {
    std::size_t j = i + 1;
    while (j < sets_.size() && !meet(sets_[i], sets_[j])) ++j;
    if (j == sets_.size()) {
      ++i;
      continue;
    }
    sets_[i].insert(sets_[i].end(), sets_[j].begin(), sets_[j].end());
    sets_.erase(sets_.begin() + static_cast<std::ptrdiff_t>(j));
    i = 0;
  }
}

const std::vector<RouterUnits::Batch>& RouterUnits::run(std::span<const std::int64_t> ready_ps,
                                                        std::span<const std::uint64_t> up,
                                                        std::span<const std::uint64_t> down,
                                                        std::uint64_t up_bytes,
                                                        std::uint64_t down_bytes) {
  batches_.clear();
  for (const std::vector<std::uint32_t>& set : sets_) {
    Batch b;
    std::int64_t computes = 0;
    for (const std::uint32_t u : set) {
      std::uint64_t rows = 0;
      for (const std::uint32_t g : units_[u].gpus) {
        rows += up[g];
        if (up[g] + down[g] > 0) b.gpus.push_back(g);
      }
      const std::int64_t t = rows > 0 ? gate_(rows).ps() : 0;
      units_[u].busy_ps += t;
      units_[u].rows += rows;
      computes = std::max(computes, t);
    }
    if (b.gpus.empty()) continue;
    std::sort(b.gpus.begin(), b.gpus.end());
    b.last_ready = b.gpus.front();
    for (const std::uint32_t g : b.gpus) {
      if (ready_ps[g] > ready_ps[b.last_ready]) b.last_ready = g;
    }
    b.begin_ps = ready_ps[b.last_ready];
    const auto transfer = [&](bool out) {
      transfers_.clear();
      for (const std::uint32_t u : set) {
        for (const std::uint32_t g : units_[u].gpus) {
          const std::uint64_t bytes = out ? up[g] * up_bytes : down[g] * down_bytes;
          if (bytes == 0) continue;
          transfers_.push_back({out ? g : gpus_ + u, out ? gpus_ + u : g, bytes});
          bytes_ += bytes;
        }
      }
      const network::BottleneckTime t = links_->evaluate(transfers_, scratch_);
      for (std::size_t k = 0; k < scratch_.size(); ++k) carried_[k] += scratch_[k];
      return t.duration.ps();
    };
    b.end_ps = b.begin_ps + transfer(true) + computes;
    b.end_ps += transfer(false);
    batches_.push_back(std::move(b));
  }
  return batches_;
}

void RouterUnits::take_links(std::vector<std::uint64_t>& bytes) {
  for (std::size_t k = 0; k < carried_.size(); ++k) bytes[k] += carried_[k];
  std::fill(carried_.begin(), carried_.end(), 0);
}

}  // namespace switchyard::sim
