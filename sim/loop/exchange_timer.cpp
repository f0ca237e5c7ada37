// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/exchange_timer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {
namespace {

constexpr std::int64_t kLongestLatencyPs = 3'600'000'000'000'000;  // one hour

/// Whether no link lies on routes of two groups.
bool link_disjoint(const cluster::RouteTable& routes,
                   const std::vector<std::vector<std::uint32_t>>& groups) {
  std::vector<std::uint32_t> owner(routes.links(), UINT32_MAX);
  for (std::uint32_t q = 0; q < groups.size(); ++q) {
    for (const std::uint32_t i : groups[q]) {
      for (const std::uint32_t j : groups[q]) {
        if (i == j) continue;
        for (const std::uint32_t link : routes.links_of(i, j)) {
          if (owner[link] != UINT32_MAX && owner[link] != q) return false;
          owner[link] = q;
        }
      }
    }
  }
  return true;
}

}  // namespace

struct ExchangeTimer::State {
  std::vector<LinkDescription> links;
  std::vector<std::uint32_t> start_gpu, end_gpu;  // [links]
  bool ports_tell_bytes = false;
  std::vector<std::vector<std::uint32_t>> groups;  // members of each model below
  std::vector<network::NetworkModel> models;
  network::ExchangeResult result;
  std::vector<SimTime> ready;
  std::vector<std::uint64_t> bytes;
};

ExchangeTimer::ExchangeTimer(const scenario::Scenario& scenario)
    : state_(std::make_unique<State>()) {
  const cluster::ClusterGraph graph = network::cluster_of(scenario);
  const std::optional<network::MeasuredLinks> measured = network::measured_of(scenario, graph);
  const network::MeasuredLinks* const curve = measured ? &*measured : nullptr;
  State& s = *state_;
  bool shared_medium = false;
  for (const cluster::DirectedLink& l : graph.links()) {
    if (l.latency.ps() > kLongestLatencyPs) {
      throw InputError("hardware.links", fmt::format("latency of {} is {}. Violated: <= 1 h",
                                                     l.name, format_time(l.latency)));
    }
    shared_medium = shared_medium || l.shared_medium;
    const auto rank = [&](std::uint32_t device) {
      const auto& gpus = graph.gpus();
      const auto found = std::find(gpus.begin(), gpus.end(), device);
      return found == gpus.end() ? UINT32_MAX : static_cast<std::uint32_t>(found - gpus.begin());
    };
    s.links.push_back(
        {l.name, graph.devices()[l.from].name, graph.devices()[l.to].name,
         std::string(scenario::kLinkClassNames[static_cast<std::size_t>(l.link_class)]),
         l.bandwidth});
    s.start_gpu.push_back(rank(l.from));
    s.end_gpu.push_back(rank(l.to));
  }
  const network::Model model = network::model_of(scenario.network.model);
  const network::Algorithm algorithm = network::algorithm_of(scenario.network.algorithm);
  cluster::RouteTable routes = graph.routes();
  const auto none = [](const std::vector<std::uint8_t>& v) {
    return std::all_of(v.begin(), v.end(), [](std::uint8_t x) { return x == 0; });
  };
  s.ports_tell_bytes = algorithm == network::Algorithm::kDirect && !shared_medium &&
                       none(routes.through_gpu) && none(routes.staged);

  const auto gpus = static_cast<std::uint32_t>(scenario.hardware.gpu_count());
  // Tensor-parallel groups exchange as the groups of one copy of the experts do; they are the same
  // where there are experts.
  const std::uint32_t ep = scenario.parallel.attention == scenario::AttentionPlacement::kTp
                               ? scenario.parallel.tp
                               : scenario.parallel.ep;
  std::vector<std::vector<std::uint32_t>> groups(gpus / ep);
  for (std::uint32_t g = 0; g < gpus; ++g) groups[g / ep].push_back(g);
  const bool closed = model == network::Model::kAuto || model == network::Model::kBottleneck;
  if (closed && groups.size() > 1 &&
      scenario.network.dispatch != scenario::DispatchKind::kPerNode &&
      link_disjoint(routes, groups)) {
    for (const auto& members : groups)
      s.models.emplace_back(model, algorithm, routes.subset(members), curve);
    s.groups = std::move(groups);
    return;
  }
  if (model == network::Model::kCoflow && groups.size() > 1) {
    throw InputError("network.model",
                     fmt::format("\"coflow\" with {} groups of {} of the {} GPUs is unsupported",
                                 groups.size(), ep, gpus),
                     "use auto or flow, or set ep to the number of GPUs");
  }
  s.groups.emplace_back(gpus);
  std::iota(s.groups[0].begin(), s.groups[0].end(), 0U);
  s.models.emplace_back(model, algorithm, std::move(routes), curve);
}
ExchangeTimer::~ExchangeTimer() = default;

const std::vector<LinkDescription>& ExchangeTimer::links() const { return state_->links; }
std::uint32_t ExchangeTimer::gpu_at_start(std::size_t link) const {
  return state_->start_gpu[link];
}
std::uint32_t ExchangeTimer::gpu_at_end(std::size_t link) const { return state_->end_gpu[link]; }
bool ExchangeTimer::ports_tell_bytes() const { return state_->ports_tell_bytes; }

void ExchangeTimer::run(std::span<const std::uint64_t> bytes,
                        std::span<const std::int64_t> ready_ps, std::vector<ExchangeTiming>& out) {
  State& s = *state_;
  const std::size_t gpus = ready_ps.size();
  std::size_t used = 0;
  for (std::size_t q = 0; q < s.models.size(); ++q) {
    const std::vector<std::uint32_t>& members = s.groups[q];
    const std::size_t n = members.size();
    s.ready.resize(n);
    s.bytes.resize(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      s.ready[i] = SimTime::from_ps(ready_ps[members[i]]);
      for (std::size_t j = 0; j < n; ++j) {
        s.bytes[i * n + j] = i == j ? 0 : bytes[members[i] * gpus + members[j]];
      }
    }
    network::ExchangeResult& r = s.result;
    s.models[q].exchange(s.bytes, s.ready, r);
    if (r.bytes == 0) continue;

    if (out.size() <= used) out.emplace_back();
    ExchangeTiming& t = out[used++];
    t.end_ps.assign(ready_ps.begin(), ready_ps.end());
    t.participates.assign(gpus, 0);
    t.begin_ps = r.start.ps();
    t.duration_ps = r.duration.ps();
    t.floor_ps = r.floor.ps();
    t.extrapolated = r.extrapolated;
    t.last_ready = members[r.last_ready];
    t.link_bytes = r.link_bytes;
    // Idle receivers do not make a GPU late: only senders count.
    std::int64_t last_sender = INT64_MIN, wait = 0, senders = 0;
    std::uint32_t late = UINT32_MAX;
    for (std::size_t i = 0; i < n; ++i) {
      t.end_ps[members[i]] = r.end[i].ps();
      t.participates[members[i]] = r.participates[i];
      const bool sends = std::any_of(s.bytes.begin() + static_cast<std::ptrdiff_t>(i * n),
                                     s.bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * n),
                                     [](std::uint64_t b) { return b > 0; });
      if (!sends) continue;
      ++senders;
      if (ready_ps[members[i]] > last_sender) {
        last_sender = ready_ps[members[i]];
        late = members[i];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const bool sends = std::any_of(s.bytes.begin() + static_cast<std::ptrdiff_t>(i * n),
                                     s.bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * n),
                                     [](std::uint64_t b) { return b > 0; });
      if (sends) wait += last_sender - ready_ps[members[i]];
    }
    wait = senders > 1 ? wait / (senders - 1) : 0;
    const std::int64_t transfer = std::max<std::int64_t>(0, r.duration.ps() - r.alpha.ps());
    if (wait > transfer || r.straggler == network::kNone ||
        r.reason == network::StragglerReason::kLate) {
      t.straggler = late;
      t.link_bound = false;
      t.straggler_ps = wait;
    } else {
      t.straggler = members[r.straggler];
      t.link_bound = r.reason == network::StragglerReason::kLink;
      t.straggler_ps = transfer;
    }
  }
  out.resize(used);
}

}  // namespace switchyard::sim
