// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/exchange_timer.hpp"

#include <algorithm>

#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {
struct ExchangeTimer::State {
  std::vector<LinkDescription> links;
  network::NetworkModel model;
  network::ExchangeResult result;
  std::vector<SimTime> ready;
};

ExchangeTimer::ExchangeTimer(const scenario::Scenario& scenario) {
  const cluster::ClusterGraph graph = cluster::build_cluster(scenario.hardware);
  state_ = std::make_unique<State>(State{{}, network::make_network(scenario), {}, {}});
  for (const cluster::DirectedLink& l : graph.links()) {
    state_->links.push_back(
        {l.name, graph.devices()[l.from].name, graph.devices()[l.to].name,
         std::string(scenario::kLinkClassNames[static_cast<std::size_t>(l.link_class)]),
         l.bandwidth});
  }
}
ExchangeTimer::~ExchangeTimer() = default;

const std::vector<LinkDescription>& ExchangeTimer::links() const { return state_->links; }

void ExchangeTimer::run(std::span<const std::uint64_t> bytes,
                        std::span<const std::int64_t> ready_ps, ExchangeTiming& out) {
  const std::size_t n = ready_ps.size();
  state_->ready.resize(n);
  for (std::size_t g = 0; g < n; ++g) state_->ready[g] = SimTime::from_ps(ready_ps[g]);
  network::ExchangeResult& r = state_->result;
  state_->model.exchange(bytes, state_->ready, r);

  out.end_ps.resize(n);
  out.participates.assign(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    out.end_ps[i] = r.end[i].ps();
    for (std::size_t j = 0; j < n; ++j) {
      if (i != j && bytes[i * n + j] > 0) {
        out.participates[i] = 1;
        out.participates[j] = 1;
      }
    }
  }
  out.begin_ps = r.start.ps();
  out.duration_ps = r.duration.ps();
  out.floor_ps = r.floor.ps();
  out.bottleneck_gpu = r.straggler;
  out.last_ready = 0;
  std::int64_t latest = INT64_MIN, waits = 0, members = 0;
  for (std::size_t g = 0; g < n; ++g) {
    if (out.participates[g] == 0) continue;
    ++members;
    waits += out.begin_ps - ready_ps[g];
    if (ready_ps[g] > latest) {
      latest = ready_ps[g];
      out.last_ready = static_cast<std::uint32_t>(g);
    }
  }
  out.lateness_ps = members > 1 ? waits / (members - 1) : 0;
  out.link_bytes = r.link_bytes;
  out.link_busy_ps.resize(r.link_bytes.size());
  for (std::size_t k = 0; k < r.link_bytes.size(); ++k) {
    out.link_busy_ps[k] = SimTime::from_seconds(static_cast<double>(r.link_bytes[k]) /
                                                state_->links[k].bandwidth.value)
                              .ps();
  }
}

}  // namespace switchyard::sim
