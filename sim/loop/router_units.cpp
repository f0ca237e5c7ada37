// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/router_units.hpp"

#include <algorithm>
#include <set>

#include "engine/base/error.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

std::int64_t Calendar::take(std::int64_t ready_ps, std::int64_t length_ps) {
  if (length_ps == 0) return ready_ps;
  auto next = std::lower_bound(taken_.begin(), taken_.end(), ready_ps,
                               [](const auto& t, std::int64_t ps) { return t.second <= ps; });
  std::int64_t begin = ready_ps;
  while (next != taken_.end() && next->first < begin + length_ps) {
    begin = std::max(begin, next->second);
    ++next;
  }
  taken_.insert(next, {begin, begin + length_ps});
  return begin;
}

void Calendar::forget_before(std::int64_t now_ps) {
  const auto first = std::find_if(taken_.begin(), taken_.end(),
                                  [now_ps](const auto& t) { return t.second > now_ps; });
  taken_.erase(taken_.begin(), first);
}

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
  for (std::size_t u = 0; u < devices.size(); ++u) {
    if (served[u].empty()) continue;
    units_.push_back({devices[u], graph.devices()[devices[u]].name, served[u], 0, 0, {}});
  }
  for (const cluster::DirectedLink& l : graph.links()) names_.push_back(l.name);
  const cluster::RouteTable used = routes_of(graph);
  links_ = std::make_unique<network::BottleneckModel>(used);
  sets_ = sets_of(used);
  carried_.assign(names_.size(), 0);
  scratch_.assign(used.links(), 0);
}

cluster::RouteTable RouterUnits::routes_of(const cluster::ClusterGraph& graph) const {
  std::vector<std::uint32_t> endpoints = graph.gpus();
  for (const Unit& u : units_) endpoints.push_back(u.device);
  return graph.routes(endpoints);
}

void RouterUnits::rewire(const scenario::Scenario& changed) {
  const cluster::ClusterGraph graph = network::cluster_of(changed);
  std::vector<std::uint32_t> link_of;
  for (const cluster::DirectedLink& l : graph.links()) {
    const auto same = std::find(names_.begin(), names_.end(), l.name);
    SWITCHYARD_ASSERT(same != names_.end(), l.name);
    link_of.push_back(static_cast<std::uint32_t>(same - names_.begin()));
  }
  cluster::RouteTable used;
  try {
    used = routes_of(graph);
  } catch (const InputError& e) {
    throw CutError(e.where(), e.message(), e.hint());
  }
  auto model = std::make_unique<network::BottleneckModel>(used);
  sets_ = sets_of(used);
  links_ = std::move(model);
  link_of_ = std::move(link_of);
  scratch_.assign(used.links(), 0);
}

std::vector<std::vector<std::uint32_t>> RouterUnits::sets_of(
    const cluster::RouteTable& used) const {
  std::vector<std::vector<std::uint32_t>> sets;
  std::vector<std::set<std::uint32_t>> of;
  for (std::uint32_t u = 0; u < units_.size(); ++u) {
    std::set<std::uint32_t> mine;
    for (const std::uint32_t g : units_[u].gpus) {
      for (const auto& [a, b] : {std::pair(g, gpus_ + u), std::pair(gpus_ + u, g)}) {
        mine.insert(used.links_of(a, b).begin(), used.links_of(a, b).end());
      }
    }
    of.push_back(std::move(mine));
    sets.push_back({u});
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
  for (std::size_t i = 0; i < sets.size();) {
    std::size_t j = i + 1;
    while (j < sets.size() && !meet(sets[i], sets[j])) ++j;
    if (j == sets.size()) {
      ++i;
      continue;
    }
    sets[i].insert(sets[i].end(), sets[j].begin(), sets[j].end());
    sets.erase(sets.begin() + static_cast<std::ptrdiff_t>(j));
    i = 0;
  }
  return sets;
}

const std::vector<RouterUnits::Batch>& RouterUnits::run(std::span<const std::int64_t> ready_ps,
                                                        std::span<const std::uint64_t> up,
                                                        std::span<const std::uint64_t> down,
                                                        std::uint64_t up_bytes,
                                                        std::uint64_t down_bytes) {
  batches_.clear();
  for (const std::vector<std::uint32_t>& set : sets_) {
    Batch b;
    std::vector<std::pair<std::uint32_t, std::int64_t>> computes;
    for (const std::uint32_t u : set) {
      std::uint64_t rows = 0;
      for (const std::uint32_t g : units_[u].gpus) {
        rows += up[g];
        if (up[g] + down[g] > 0) b.gpus.push_back(g);
      }
      const std::int64_t t = rows > 0 ? gate_(rows).ps() : 0;
      units_[u].busy_ps += t;
      units_[u].rows += rows;
      computes.emplace_back(u, t);
    }
    if (b.gpus.empty()) continue;
    std::sort(b.gpus.begin(), b.gpus.end());
    b.last_ready = b.gpus.front();
    for (const std::uint32_t g : b.gpus) {
      if (ready_ps[g] > ready_ps[b.last_ready]) b.last_ready = g;
    }
    b.begin_ps = ready_ps[b.last_ready];
    Trip trip;
    trip.compute = [this, &computes](std::int64_t arrival_ps) {
      std::int64_t end = arrival_ps;
      for (const auto& [u, t] : computes) {
        end = std::max(end, units_[u].calendar.take(arrival_ps, t) + t);
      }
      return end - arrival_ps;
    };
    for (const std::uint32_t u : set) {
      for (const std::uint32_t g : units_[u].gpus) {
        const std::uint64_t out = up[g] * up_bytes, home = down[g] * down_bytes;
        if (out > 0) trip.up.push_back({g, gpus_ + u, out});
        if (home > 0) trip.down.push_back({gpus_ + u, g, home});
        bytes_ += out + home;
      }
    }
    const auto transfer = [&](const std::vector<network::Transfer>& transfers) {
      const network::BottleneckTime t = links_->evaluate(transfers, scratch_);
      for (std::size_t k = 0; k < scratch_.size(); ++k) {
        carried_[link_of_.empty() ? k : link_of_[k]] += scratch_[k];
      }
      return t.duration.ps();
    };
    const std::int64_t arrival = b.begin_ps + transfer(trip.up), home = transfer(trip.down);
    if (time_) {
      b.gpu_end_ps.assign(b.gpus.size(), b.begin_ps);
      time_(trip, ready_ps, b);
    } else {
      b.end_ps = arrival + trip.compute(arrival) + home;
      b.gpu_end_ps.assign(b.gpus.size(), b.end_ps);
    }
    batches_.push_back(std::move(b));
  }
  return batches_;
}

void RouterUnits::forget_before(std::int64_t now_ps) {
  for (Unit& u : units_) u.calendar.forget_before(now_ps);
}

void RouterUnits::take_links(std::vector<std::uint64_t>& bytes) {
  for (std::size_t k = 0; k < carried_.size(); ++k) bytes[k] += carried_[k];
  std::fill(carried_.begin(), carried_.end(), 0);
}

}  // namespace switchyard::sim
