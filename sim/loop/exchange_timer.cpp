// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/exchange_timer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

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

std::vector<std::vector<std::uint32_t>> groups_of(const scenario::Scenario& s) {
  const auto gpus = static_cast<std::uint32_t>(s.hardware.gpu_count());
  // Tensor-parallel groups are the groups of one copy of the experts, or parts of them; without
  // experts they alone exchange.
  const std::uint32_t size = std::max(s.parallel.tp, s.parallel.ep);
  std::vector<std::vector<std::uint32_t>> parts(gpus / size);
  for (std::uint32_t g = 0; g < gpus; ++g) parts[g / size].push_back(g);
  return parts;
}

/// Whether the exchanges of several groups are timed each by itself although they share links.
bool groups_contend(const scenario::Scenario& s, const cluster::RouteTable& routes) {
  const network::Model model = network::model_of(s.network.model);
  const bool kind = model == network::Model::kAuto || model == network::Model::kCoflow;
  if (!kind || s.network.dispatch == scenario::DispatchKind::kPerNode ||
      !s.network.measured.points.empty()) {
    return false;
  }
  const auto parts = groups_of(s);
  return parts.size() > 1 && !link_disjoint(routes, parts);
}

}  // namespace

struct ExchangeTimer::State {
  std::vector<LinkDescription> links;
  std::vector<std::uint32_t> start_gpu, end_gpu;  // [links]
  std::vector<BytesPerSecond> bandwidth;          // [links] now
  std::vector<std::uint32_t> link_of;  // Index in the models → in `links`; empty: same.
  bool ports_tell_bytes = false;
  std::vector<std::vector<std::uint32_t>> groups;  // members of each model below
  std::vector<network::NetworkModel> models;
  // Where the groups have models of their own: all GPUs as one, made when it is first asked for.
  std::function<network::NetworkModel()> make_whole;
  std::vector<network::NetworkModel> whole;  // One or none.
  std::vector<std::vector<std::uint32_t>> everybody;
  // Other ways to group the GPUs, made when first asked for; none without stages and wide ep.
  struct Partition {
    std::vector<std::vector<std::uint32_t>> groups;
    std::vector<network::NetworkModel> models;
  };
  std::function<Partition()> make_shards, make_direct;
  std::optional<Partition> shards, direct;
  void choose(Among among, std::vector<network::NetworkModel>*& models,
              std::vector<std::vector<std::uint32_t>>*& groups);
  network::ExchangeResult result;
  std::vector<SimTime> ready;
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint8_t> sends;
  network::Algorithm algorithm = network::Algorithm::kDirect;
  Sharing sharing = Sharing::kTask;
  std::unique_ptr<TransferQueue> copies;
  std::vector<std::uint32_t> host, ssd, pool, endpoint_device;
  bool pages = false;        // KV pages travel between replicas.
  bool together = false;     // Groups share links.
  bool hosts = false;        // `copies` has host memory and SSDs,
  bool loads_go_on = false;  // and is used after the start-up.
  // [G] while a step is computed: what the clock follows (empty: nothing yet), and what it showed
  // by that when it began to.
  std::vector<std::vector<Anchor>> anchors;
  std::vector<std::int64_t> known;
  std::vector<TransferQueue::Exchange> beside;
  std::vector<std::size_t> group_of;  // [beside]
  /// After which exchanges of its GPUs this one begins.
  void chain(const ExchangeTiming& t, std::span<const std::int64_t> ready_ps,
             TransferQueue::Exchange& e) const;
  void build(const scenario::Scenario& scenario, const cluster::ClusterGraph& graph,
             cluster::RouteTable routes);
};

void check_groups(const scenario::Scenario& s) {
  const bool ring = s.network.algorithm == scenario::ExchangeAlgorithm::kRing ||
                    s.network.algorithm == scenario::ExchangeAlgorithm::kRingBidirectional;
  if (ring && groups_of(s).size() > 1) const ExchangeTimer timer(s);
}

/// Where each GPU loads experts from, and the queue of copies over GPUs, hosts and SSDs.
void ExchangeTimer::find_hosts(const cluster::ClusterGraph& graph, bool ssd, bool pool, State& s) {
  const auto gpus = static_cast<std::uint32_t>(graph.gpus().size());
  s.endpoint_device = graph.gpus();
  for (const cluster::DeviceKind kind :
       {cluster::DeviceKind::kCpu, cluster::DeviceKind::kSsd, cluster::DeviceKind::kCxl}) {
    for (std::uint32_t d = 0; d < graph.devices().size(); ++d) {
      const bool unused = (kind == cluster::DeviceKind::kSsd && !ssd) ||
                          (kind == cluster::DeviceKind::kCxl && !pool);
      if (graph.devices()[d].kind == kind && !unused) s.endpoint_device.push_back(d);
    }
  }
  cluster::RouteTable routes = graph.routes(s.endpoint_device);
  const auto nearest = [&](std::uint32_t gpu, cluster::DeviceKind kind) {
    std::uint32_t best = UINT32_MAX;
    std::pair<bool, std::size_t> least;
    for (std::uint32_t e = gpus; e < s.endpoint_device.size(); ++e) {
      const cluster::GraphDevice& device = graph.devices()[s.endpoint_device[e]];
      if (device.kind != kind) continue;
      const std::pair<bool, std::size_t> far{
          device.node != graph.devices()[s.endpoint_device[gpu]].node,
          routes.links_of(e, gpu).size()};
      if (best == UINT32_MAX || far < least) {
        best = e;
        least = far;
      }
    }
    return best;
  };
  for (std::uint32_t g = 0; g < gpus; ++g) {
    s.host.push_back(nearest(g, cluster::DeviceKind::kCpu));
    s.ssd.push_back(nearest(g, cluster::DeviceKind::kSsd));
    s.pool.push_back(nearest(g, cluster::DeviceKind::kCxl));
  }
  s.hosts = true;
  s.copies = std::make_unique<TransferQueue>(std::move(routes), 2 * gpus, s.sharing,
                                             s.pages || s.together);
}

ExchangeTimer::ExchangeTimer(const scenario::Scenario& scenario)
    : state_(std::make_unique<State>()) {
  const cluster::ClusterGraph graph = network::cluster_of(scenario);
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
    s.bandwidth.push_back(l.bandwidth);
    s.start_gpu.push_back(rank(l.from));
    s.end_gpu.push_back(rank(l.to));
  }
  const network::Algorithm algorithm = network::algorithm_of(scenario.network.algorithm);
  const network::Model model = network::model_of(scenario.network.model);
  s.algorithm = algorithm;
  const scenario::MemorySpec& memory = scenario.memory;
  const bool swaps =
      scenario.workload.serves() && scenario.workload.serving.batching.swaps_over_links();
  s.pages = scenario.workload.serves() &&
            scenario.workload.serving.front_end.prefill_replicas > 0 &&
            model != network::Model::kBottleneck && scenario.network.measured.points.empty();
  cluster::RouteTable routes = graph.routes();
  s.together = groups_contend(scenario, routes);
  s.sharing = model == network::Model::kFlow         ? Sharing::kPairs
              : model == network::Model::kBottleneck ? Sharing::kRefused
                                                     : Sharing::kTask;
  if (memory.residency.on() || memory.loading.on() || swaps) {
    const scenario::ResidencySpec& r = memory.residency;
    const bool cxl = r.on() && r.store == scenario::ExpertStore::kCxl;
    const bool ssd = memory.loading.from == scenario::LoadingSpec::From::kSsd ||
                     (r.on() && !cxl && r.host_slots < scenario.model.num_experts);
    const bool pool = cxl || (swaps && scenario.workload.serving.batching.swap_to_pool);
    find_hosts(graph, ssd, pool, s);
    s.loads_go_on = memory.residency.on() || swaps;
  }
  const std::size_t all = graph.gpus().size();
  if ((s.pages || s.together) && !s.copies) {
    s.copies = std::make_unique<TransferQueue>(routes, static_cast<std::uint32_t>(2 * all),
                                               s.sharing, true);
  }
  s.anchors.resize(all);
  s.known.assign(all, 0);
  const auto none = [](const std::vector<std::uint8_t>& v) {
    return std::all_of(v.begin(), v.end(), [](std::uint8_t x) { return x == 0; });
  };
  s.ports_tell_bytes = algorithm == network::Algorithm::kDirect && !shared_medium &&
                       none(routes.through_gpu) && none(routes.staged);
  s.build(scenario, graph, routes);
}

void ExchangeTimer::State::build(const scenario::Scenario& scenario,
                                 const cluster::ClusterGraph& graph, cluster::RouteTable routes) {
  State& s = *this;
  const std::optional<network::MeasuredLinks> measured = network::measured_of(scenario, graph);
  const network::MeasuredLinks* const curve = measured ? &*measured : nullptr;
  const network::Model model = network::model_of(scenario.network.model);
  const network::Algorithm algorithm = network::algorithm_of(scenario.network.algorithm);
  s.models.clear();
  s.groups.clear();
  s.whole.clear();
  s.make_whole = nullptr;
  s.make_shards = nullptr;
  s.make_direct = nullptr;
  s.shards.reset();
  s.direct.reset();
  const auto gpus = static_cast<std::uint32_t>(scenario.hardware.gpu_count());
  std::vector<std::vector<std::uint32_t>> parts = groups_of(scenario);
  const bool closed = model == network::Model::kAuto || model == network::Model::kBottleneck;
  const std::uint32_t tp = scenario.parallel.tp;
  const bool wide = tp > 1 && scenario.parallel.ep > tp;
  if (wide || scenario.parallel.pp > 1) {
    // Scenarios with these layouts use the closed form (the reader refuses the others).
    const auto partition = [model, measured, routes, gpus](std::uint32_t size) {
      std::vector<std::vector<std::uint32_t>> members(gpus / size);
      for (std::uint32_t g = 0; g < gpus; ++g) members[g / size].push_back(g);
      if (members.size() > 1 && !link_disjoint(routes, members)) {
        members.assign(1, std::vector<std::uint32_t>(gpus));
        std::iota(members[0].begin(), members[0].end(), 0U);
      }
      Partition p;
      for (const auto& m : members) {
        p.models.emplace_back(model, network::Algorithm::kDirect, routes.subset(m),
                              measured ? &*measured : nullptr);
      }
      p.groups = std::move(members);
      return p;
    };
    if (wide) s.make_shards = [partition, tp] { return partition(tp); };
    if (scenario.parallel.pp > 1) s.make_direct = [partition, gpus] { return partition(gpus); };
  }
  const bool by_group =
      parts.size() > 1 && scenario.network.dispatch != scenario::DispatchKind::kPerNode;
  // Links that fail may leave groups with links in common, but they make no queue.
  const bool apart = by_group && link_disjoint(routes, parts);
  if (by_group && ((closed && apart) || model == network::Model::kCoflow || s.together)) {
    // The closed form is coflow's time of an exchange alone on its links; the queue sees to others.
    const network::Model alone =
        model == network::Model::kCoflow ? network::Model::kBottleneck : model;
    for (const auto& members : parts) {
      s.models.emplace_back(alone, algorithm, routes.subset(members), curve);
    }
    s.groups = std::move(parts);
    s.everybody.assign(1, std::vector<std::uint32_t>(gpus));
    std::iota(s.everybody[0].begin(), s.everybody[0].end(), 0U);
    s.make_whole = [alone, algorithm, routes, measured] {
      return network::NetworkModel(alone, algorithm, routes, measured ? &*measured : nullptr);
    };
    return;
  }
  if ((algorithm == network::Algorithm::kRing ||
       algorithm == network::Algorithm::kRingBidirectional) &&
      parts.size() > 1) {
    throw InputError(
        scenario::origin_of(scenario, "network.algorithm"),
        fmt::format("network.algorithm = \"ring\" with {} groups of {} of the {} GPUs is "
                    "unsupported here: their links meet, and under this network.model their "
                    "exchanges are one, whose ring would go round all GPUs",
                    parts.size(), parts[0].size(), gpus),
        "use model = \"auto\" or \"coflow\", or algorithm = \"direct\" or \"hierarchical\"");
  }
  s.groups.emplace_back(gpus);
  std::iota(s.groups[0].begin(), s.groups[0].end(), 0U);
  s.models.emplace_back(model, algorithm, std::move(routes), curve);
}

void ExchangeTimer::rewire(const scenario::Scenario& changed, std::int64_t now_ps) {
  State& s = *state_;
  const cluster::ClusterGraph graph = network::cluster_of(changed);
  cluster::RouteTable routes = graph.routes();
  // Ways to host memory, too, where copies go on: nothing has changed yet if there is none.
  std::optional<cluster::RouteTable> hosts;
  if (s.hosts) {
    try {
      hosts = graph.routes(s.endpoint_device);
    } catch (const InputError&) {
      if (s.loads_go_on || s.pages) throw;
    }
  }
  std::map<std::string, std::uint32_t> index;
  for (std::uint32_t k = 0; k < s.links.size(); ++k) {
    index.emplace(s.links[k].name, k);
    s.bandwidth[k] = s.links[k].bandwidth;
  }
  s.link_of.clear();
  for (const cluster::DirectedLink& l : graph.links()) {
    s.link_of.push_back(index.at(l.name));
    s.bandwidth[s.link_of.back()] = l.bandwidth;
  }
  const auto none = [](const std::vector<std::uint8_t>& v) {
    return std::all_of(v.begin(), v.end(), [](std::uint8_t x) { return x == 0; });
  };
  // The queue's links are all there ever were: other replicas' exchanges may be under way. After a
  // start-up no copy to a host follows, and one without a cable is nowhere to be found.
  if (s.copies && (!s.hosts || hosts)) {
    cluster::RouteTable all = hosts ? std::move(*hosts) : routes;
    for (std::uint32_t& link : all.link) link = s.link_of[link];
    all.bandwidth.clear();
    all.link_name.clear();
    for (std::size_t k = 0; k < s.links.size(); ++k) {
      all.bandwidth.push_back(s.bandwidth[k].value);
      all.link_name.push_back(s.links[k].name);
    }
    s.copies->advance(now_ps);
    s.copies->rewire(std::move(all));
  }
  // A way round a broken cable may lead through a GPU or host memory.
  s.ports_tell_bytes = s.ports_tell_bytes && none(routes.through_gpu) && none(routes.staged);
  s.build(changed, graph, std::move(routes));
}
BytesPerSecond ExchangeTimer::bandwidth(std::size_t link) const { return state_->bandwidth[link]; }
ExchangeTimer::~ExchangeTimer() = default;

const std::vector<LinkDescription>& ExchangeTimer::links() const { return state_->links; }
std::uint32_t ExchangeTimer::gpu_at_start(std::size_t link) const {
  return state_->start_gpu[link];
}
std::uint32_t ExchangeTimer::gpu_at_end(std::size_t link) const { return state_->end_gpu[link]; }
TransferQueue* ExchangeTimer::copies() { return state_->copies.get(); }
bool ExchangeTimer::carries_pages() const { return state_->pages; }

TransferQueue::Id ExchangeTimer::send_pages(std::uint32_t from, std::uint32_t to,
                                            std::uint64_t bytes, std::int64_t now_ps) {
  const auto gpus = static_cast<std::uint32_t>(state_->anchors.size());
  return state_->copies->add(gpus + from, from, to, bytes, now_ps, true);
}

void ExchangeTimer::begin_step(std::uint32_t first, std::uint32_t beyond) {
  for (std::uint32_t g = first; g < beyond; ++g) state_->anchors[g].clear();
}

void ExchangeTimer::follow(std::uint32_t gpu, std::span<const TransferQueue::Id> copies,
                           std::int64_t ready_ps, std::int64_t there_ps) {
  State& s = *state_;
  if (!s.pages) return;
  std::vector<Anchor>& mine = s.anchors[gpu];
  if (mine.empty()) {
    mine.push_back({Anchor::Of::kTime, 0, ready_ps});
  } else {
    for (Anchor& a : mine) a.off_ps += ready_ps - s.known[gpu];
  }
  for (const TransferQueue::Id id : copies) {
    if (s.copies->hold_end(id)) {
      mine.push_back({Anchor::Of::kCopy, id, 0});
    } else {
      mine.push_back({Anchor::Of::kTime, 0, s.copies->end(id)});
    }
  }
  s.known[gpu] = there_ps;
}

std::vector<ExchangeTimer::StepClock> ExchangeTimer::end_step(
    std::uint32_t first, std::uint32_t beyond, std::span<const std::int64_t> ready_ps) const {
  const State& s = *state_;
  std::vector<StepClock> out;
  for (std::uint32_t g = first; g < beyond; ++g) {
    StepClock clock = s.anchors[g];
    for (Anchor& a : clock) a.off_ps += ready_ps[g] - s.known[g];
    if (clock.empty()) clock.push_back({Anchor::Of::kTime, 0, ready_ps[g]});
    out.push_back(std::move(clock));
  }
  return out;
}

std::int64_t ExchangeTimer::step_end(const StepClock& clock) {
  std::int64_t end = 0;
  for (const Anchor& a : clock) {
    const std::int64_t from = a.of == Anchor::Of::kExchange
                                  ? state_->copies->exchange_end(a.id, a.gpu)
                              : a.of == Anchor::Of::kCopy ? state_->copies->end(a.id)
                                                          : 0;
    end = std::max(end, from + a.off_ps);
  }
  return end;
}

void ExchangeTimer::forget(const StepClock& clock) {
  for (const Anchor& a : clock) {
    if (a.of == Anchor::Of::kCopy) state_->copies->forget_copy(a.id);
  }
}

void ExchangeTimer::forget_before(TransferQueue::Id exchange) {
  state_->copies->forget_exchanges(exchange);
}
const std::vector<std::uint32_t>& ExchangeTimer::host_of() const { return state_->host; }
const std::vector<std::uint32_t>& ExchangeTimer::ssd_of() const { return state_->ssd; }
const std::vector<std::uint32_t>& ExchangeTimer::pool_of() const { return state_->pool; }
std::uint32_t ExchangeTimer::device_of(std::uint32_t endpoint) const {
  return state_->endpoint_device[endpoint];
}
bool ExchangeTimer::ports_tell_bytes() const { return state_->ports_tell_bytes; }

void ExchangeTimer::State::choose(Among among, std::vector<network::NetworkModel>*& use,
                                  std::vector<std::vector<std::uint32_t>>*& members) {
  use = &models;
  members = &groups;
  if (among == Among::kAll && make_whole != nullptr) {
    if (whole.empty()) whole.push_back(make_whole());
    use = &whole;
    members = &everybody;
  }
  auto* const make = among == Among::kShards   ? &make_shards
                     : among == Among::kDirect ? &make_direct
                                               : nullptr;
  if (make == nullptr || *make == nullptr) return;
  std::optional<Partition>& p = among == Among::kShards ? shards : direct;
  if (!p) p = (*make)();
  use = &p->models;
  members = &p->groups;
}

void ExchangeTimer::State::chain(const ExchangeTiming& t, std::span<const std::int64_t> ready_ps,
                                 TransferQueue::Exchange& e) const {
  const bool pairs = sharing == Sharing::kPairs && e.phases.size() == 1;
  if (pairs) e.clocks.resize(ready_ps.size());
  for (std::size_t g = 0; g < ready_ps.size(); ++g) {
    if (t.participates[g] == 0) continue;
    std::vector<TransferQueue::Exchange::After>& after = pairs ? e.clocks[g].after : e.after;
    std::int64_t& floor = pairs ? e.clocks[g].floor_ps : e.floor_ps;
    const std::int64_t since = ready_ps[g] - known[g];
    if (anchors[g].empty() || since < 0) {
      floor = std::max(floor, ready_ps[g]);
      continue;
    }
    for (const Anchor& a : anchors[g]) {
      if (a.of == Anchor::Of::kTime) {
        floor = std::max(floor, a.off_ps + since);
        continue;
      }
      // The queue's end of an exchange may be a picosecond beyond the closed form's.
      const std::int64_t gap = std::max<std::int64_t>(0, a.off_ps + since);
      const bool copy = a.of == Anchor::Of::kCopy;
      const auto same = std::find_if(after.begin(), after.end(), [&](const auto& x) {
        return x.id == a.id && x.copy == copy && x.gpu == a.gpu;
      });
      if (same == after.end()) {
        after.push_back({a.id, gap, ready_ps[g], copy, a.gpu});
      } else if (gap > same->gap_ps) {
        same->gap_ps = gap;
        same->ready_ps = ready_ps[g];
      }
    }
  }
}

void ExchangeTimer::run(std::span<const std::uint64_t> bytes,
                        std::span<const std::int64_t> ready_ps, std::vector<ExchangeTiming>& out,
                        Among among, std::span<const std::int64_t> all_ready_ps) {
  State& s = *state_;
  std::vector<network::NetworkModel>* chosen = nullptr;
  std::vector<std::vector<std::uint32_t>>* parts = nullptr;
  s.choose(among, chosen, parts);
  std::vector<network::NetworkModel>& models = *chosen;
  const std::size_t gpus = ready_ps.size();
  std::size_t used = 0;
  s.beside.clear();
  s.group_of.clear();
  // With pages that travel others may begin before the GPUs here: the step loop advances the queue.
  // What goes from stage to stage begins at clocks of its own, beyond which a group may still
  // begin.
  if (s.copies && !s.pages && among != Among::kDirect) {
    const auto clocks = all_ready_ps.empty() ? ready_ps : all_ready_ps;
    s.copies->advance(*std::min_element(clocks.begin(), clocks.end()));
  }
  const bool kept = s.pages || s.together;
  const bool chained = s.pages;
  for (std::size_t q = 0; q < models.size(); ++q) {
    const std::vector<std::uint32_t>& members = (*parts)[q];
    const std::size_t n = members.size();
    s.ready.resize(n);
    for (std::size_t i = 0; i < n; ++i) s.ready[i] = SimTime::from_ps(ready_ps[members[i]]);
    // Everybody in order: the matrix as it is, whose diagonal no model reads.
    std::span<const std::uint64_t> own = bytes;
    if (n != gpus) {
      s.bytes.resize(n * n);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          s.bytes[i * n + j] = i == j ? 0 : bytes[members[i] * gpus + members[j]];
        }
      }
      own = s.bytes;
    }
    network::ExchangeResult& r = s.result;
    models[q].exchange(own, s.ready, r);
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
    t.kept = false;
    if (s.link_of.empty()) {
      t.link_bytes = r.link_bytes;
    } else {
      t.link_bytes.assign(s.links.size(), 0);
      for (std::size_t k = 0; k < r.link_bytes.size(); ++k) {
        t.link_bytes[s.link_of[k]] = r.link_bytes[k];
      }
    }
    // Idle receivers do not make a GPU late: only senders count.
    std::int64_t last_sender = INT64_MIN, wait = 0, senders = 0;
    std::uint32_t late = UINT32_MAX;
    s.sends.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      t.end_ps[members[i]] = r.end[i].ps();
      t.participates[members[i]] = r.participates[i];
      for (std::size_t j = 0; j < n && s.sends[i] == 0; ++j) {
        s.sends[i] = j != i && own[i * n + j] > 0 ? 1 : 0;
      }
      if (s.sends[i] == 0) continue;
      ++senders;
      if (ready_ps[members[i]] > last_sender) {
        last_sender = ready_ps[members[i]];
        late = members[i];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (s.sends[i] != 0) wait += last_sender - ready_ps[members[i]];
    }
    wait = senders > 1 ? wait / (senders - 1) : 0;
    if (s.copies && (kept || s.copies->in_flight() > 0)) {
      TransferQueue::Exchange e;
      e.phases = network::all_to_all(models[q].algorithm(), own, models[q].routes().node);
      for (network::Phase& phase : e.phases) {
        for (network::Transfer& x : phase) {
          x.src = members[x.src];
          x.dst = members[x.dst];
        }
      }
      e.ready_ps.assign(ready_ps.begin(), ready_ps.end());
      e.begin_ps = t.begin_ps;
      if (chained) s.chain(t, ready_ps, e);
      s.beside.push_back(std::move(e));
      s.group_of.push_back(used - 1);
    }
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
  if (s.beside.empty()) return;
  // Exchanges that share a link with a copy take longer.
  const std::vector<TransferQueue::Timed> timed = s.copies->run(s.beside);
  for (std::size_t i = 0; i < timed.size(); ++i) {
    ExchangeTiming& t = out[s.group_of[i]];
    t.kept = chained;
    t.id = timed[i].id;
    if (!timed[i].met) continue;
    const network::Phase& last = s.beside[i].phases.back();
    const bool pairs = s.sharing == Sharing::kPairs && s.beside[i].phases.size() == 1;
    std::vector<std::int64_t> end(ready_ps.begin(), ready_ps.end());
    for (std::size_t x = 0; pairs && x < last.size(); ++x) {
      end[last[x].src] = std::max(end[last[x].src], timed[i].transfer_end_ps[x]);
      end[last[x].dst] = std::max(end[last[x].dst], timed[i].transfer_end_ps[x]);
    }
    for (std::size_t g = 0; g < gpus; ++g) {
      if (t.participates[g] != 0)
        t.end_ps[g] = std::max(t.end_ps[g], pairs ? end[g] : timed[i].end_ps);
    }
    t.duration_ps = std::max(t.duration_ps, timed[i].end_ps - t.begin_ps);
  }
  for (std::size_t i = 0; chained && i < timed.size(); ++i) {
    const ExchangeTiming& t = out[s.group_of[i]];
    for (std::size_t g = 0; g < gpus; ++g) {
      if (t.participates[g] == 0) continue;
      // What the clock followed is before this exchange in the queue.
      forget(s.anchors[g]);
      std::int64_t end = timed[i].end_ps;
      std::uint32_t whose = TransferQueue::kAll;
      if (s.sharing == Sharing::kPairs && s.beside[i].phases.size() == 1) {
        end = 0;
        whose = static_cast<std::uint32_t>(g);
        const network::Phase& pairs = s.beside[i].phases[0];
        for (std::size_t x = 0; x < pairs.size(); ++x) {
          if (pairs[x].src == g || pairs[x].dst == g) {
            end = std::max(end, timed[i].transfer_end_ps[x]);
          }
        }
      }
      s.anchors[g].assign(1, {Anchor::Of::kExchange, t.id, t.end_ps[g] - end, whose});
      s.known[g] = t.end_ps[g];
    }
  }
  // Nobody asks again for an end that no later exchange hangs on.
  if (kept && !chained) s.copies->forget_exchanges(UINT64_MAX);
}

}  // namespace switchyard::sim
