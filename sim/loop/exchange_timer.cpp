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

/// The GPUs of each layout in groups of size(layout).
std::vector<std::vector<std::uint32_t>> groups_of(
    const scenario::Scenario& s,
    const std::function<std::uint32_t(const scenario::Parallel&)>& size) {
  std::vector<std::vector<std::uint32_t>> parts;
  for (const scenario::Parallel* p : s.layouts()) {
    const std::uint32_t each = size(*p);
    for (std::uint32_t g = p->first_gpu; p->has(g); g += each) {
      parts.emplace_back(each);
      std::iota(parts.back().begin(), parts.back().end(), g);
    }
  }
  return parts;
}

/// Tensor-parallel groups are the groups of one copy of the experts, or parts of them; without
/// experts they alone exchange.
std::vector<std::vector<std::uint32_t>> groups_of(const scenario::Scenario& s) {
  return groups_of(s, [](const scenario::Parallel& p) { return p.exchange_gpus(); });
}

/// Whether tensor-parallel groups of any layout are parts of a copy of the experts.
bool any_wide(const scenario::Scenario& s) {
  const auto layouts = s.layouts();
  return std::any_of(layouts.begin(), layouts.end(),
                     [](const scenario::Parallel* p) { return p->tp > 1 && p->ep > p->tp; });
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

/// Whether exchanges of this scenario may be under way at the same time although they are of one
/// group, or links change: under flow and coflow the queue of transfers times all of them then.
bool timed_by_queue(const scenario::Scenario& s, const cluster::RouteTable& routes) {
  const network::Model model = network::model_of(s.network.model);
  if (model != network::Model::kFlow && model != network::Model::kCoflow) return false;
  if (!s.network.measured.points.empty()) return true;  // SimGrid knows no table.
  const scenario::Parallel& p = s.parallel;
  const bool of_link =
      std::any_of(s.faults.events.begin(), s.faults.events.end(), [](const scenario::FaultRule& r) {
        return r.kind == scenario::FaultKind::kLinkDown ||
               r.kind == scenario::FaultKind::kLinkDegraded;
      });
  const bool rings = (s.network.algorithm == scenario::ExchangeAlgorithm::kRing ||
                      s.network.algorithm == scenario::ExchangeAlgorithm::kRingBidirectional) &&
                     groups_of(s).size() > 1;
  const bool by_tokens = p.sequence_parallel || (s.prefill && s.prefill->sequence_parallel);
  return p.pp > 1 || by_tokens || any_wide(s) || p.router != scenario::RouterPlacement::kGpu ||
         s.network.chunks > 1 || s.network.two_batch || of_link || rings ||
         (s.workload.serves() && s.workload.serving.front_end.replicas > 1 &&
          s.workload.serving.front_end.prefill_replicas == 0 &&
          !link_disjoint(routes, groups_of(s)));
}

/// Hidden states that pass from stage to stage share links with the exchanges inside the stages.
bool stages_contend(const scenario::Scenario& s) {
  return s.parallel.pp > 1 && network::model_of(s.network.model) == network::Model::kAuto &&
         s.network.measured.points.empty();
}

/// What goes to routers off the GPUs and back meets other steps' traffic, exchanges of the other
/// half or loads of experts.
bool routers_contend(const scenario::Scenario& s) {
  return s.parallel.router != scenario::RouterPlacement::kGpu &&
         network::model_of(s.network.model) == network::Model::kAuto &&
         (s.network.two_batch || s.memory.residency.on() ||
          (s.workload.serves() && s.workload.serving.front_end.replicas > 1));
}

}  // namespace

struct ExchangeTimer::State {
  std::vector<LinkDescription> links;
  std::vector<std::uint32_t> start_gpu, end_gpu;  // [links]
  std::vector<BytesPerSecond> bandwidth;          // [links] now
  std::vector<std::uint32_t> link_of;  // Index in the models → in `links`; empty: same.
  bool ports_tell_bytes = false;
  // Other ways to group the GPUs, made when first asked for; none without stages and wide ep.
  struct Partition {
    std::vector<std::vector<std::uint32_t>> groups;
    std::vector<network::NetworkModel> models;
  };
  /// The models over the links as they are now.
  struct Built {
    std::vector<std::vector<std::uint32_t>> groups;  // members of each model below
    std::vector<network::NetworkModel> models;
    // Where the groups have models of their own: all GPUs as one, made when it is first asked for.
    std::function<network::NetworkModel()> make_whole;
    std::vector<network::NetworkModel> whole;  // One or none.
    std::vector<std::vector<std::uint32_t>> everybody;
    std::function<Partition()> make_shards, make_direct;
    std::optional<Partition> shards, direct;
  };
  Built built;
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
  bool by_queue = false;     // All exchanges are timed by `copies`.
  bool kept = false;         // `copies` keeps all exchanges, for any of these reasons.
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
  /// Of what run() adds to it: why the others waited, as far as the closed form tells.
  struct Reason {
    std::uint32_t straggler = network::kNone, late = UINT32_MAX;
    network::StragglerReason reason = network::StragglerReason::kNone;
    std::int64_t duration_ps = 0, alpha_ps = 0, wait_ps = 0, early_ps = 0;
  };
  std::vector<Reason> reasons;  // [groups with traffic]
  /// Writes what `result` says of the exchange of some GPUs, which send where s.sends is set.
  void tell(const std::vector<std::uint32_t>& members, std::span<const std::int64_t> ready_ps,
            ExchangeTiming& t);
  /// Who stands for the waits of an exchange, and for how long.
  static void blame(const Reason& why, ExchangeTiming& t);
  [[nodiscard]] Built build(const scenario::Scenario& scenario, const cluster::ClusterGraph& graph,
                            cluster::RouteTable routes) const;
  /// End of a GPU's pairs of an exchange of one phase; 0: it has none.
  [[nodiscard]] static std::int64_t end_of_pairs(const TransferQueue::Exchange& e,
                                                 const TransferQueue::Timed& timed,
                                                 std::uint32_t gpu);
  [[nodiscard]] bool by_pairs(const TransferQueue::Exchange& e) const {
    return sharing == Sharing::kPairs && e.phases.size() == 1;
  }
};

void check_groups(const scenario::Scenario& s) {
  const bool ring = s.network.algorithm == scenario::ExchangeAlgorithm::kRing ||
                    s.network.algorithm == scenario::ExchangeAlgorithm::kRingBidirectional;
  if (ring && groups_of(s).size() > 1) const ExchangeTimer timer(s);
}

/// Where each GPU loads experts from, and the queue of copies over GPUs, hosts and SSDs.
void ExchangeTimer::find_hosts(const cluster::ClusterGraph& graph, bool ssd, bool pool,
                               std::uint32_t card, State& s) {
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
  if (card != UINT32_MAX) s.endpoint_device.push_back(card);
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
  s.copies = std::make_unique<TransferQueue>(std::move(routes), 2 * gpus, s.sharing, s.kept);
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
            model != network::Model::kBottleneck &&
            (scenario.network.measured.points.empty() || model != network::Model::kAuto);
  cluster::RouteTable routes = graph.routes();
  s.by_queue = timed_by_queue(scenario, routes);
  s.together =
      groups_contend(scenario, routes) || stages_contend(scenario) || routers_contend(scenario);
  s.kept = s.pages || s.together || s.by_queue;
  s.sharing = model == network::Model::kFlow         ? Sharing::kPairs
              : model == network::Model::kBottleneck ? Sharing::kRefused
                                                     : Sharing::kTask;
  const bool routers = s.kept && scenario.parallel.router != scenario::RouterPlacement::kGpu;
  if (memory.residency.on() || memory.loading.on() || swaps || routers) {
    const scenario::ResidencySpec& r = memory.residency;
    const bool cxl = r.on() && r.store == scenario::ExpertStore::kCxl;
    const bool ssd = memory.loading.from == scenario::LoadingSpec::From::kSsd ||
                     (r.on() && !cxl && r.host_slots < scenario.model.num_experts);
    const bool pool = cxl || (swaps && scenario.workload.serving.batching.swap_to_pool);
    find_hosts(graph, ssd, pool,
               routers && scenario.parallel.router == scenario::RouterPlacement::kCard
                   ? scenario.parallel.router_card
                   : UINT32_MAX,
               s);
    s.loads_go_on = memory.residency.on() || swaps || routers;
  }
  const std::size_t all = graph.gpus().size();
  if (s.kept && !s.copies) {
    s.copies = std::make_unique<TransferQueue>(routes, static_cast<std::uint32_t>(2 * all),
                                               s.sharing, true);
  }
  if (const auto measured = network::measured_of(scenario, graph); measured && s.by_queue) {
    s.copies->measure(*measured);
  }
  s.anchors.resize(all);
  s.known.assign(all, 0);
  const auto none = [](const std::vector<std::uint8_t>& v) {
    return std::all_of(v.begin(), v.end(), [](std::uint8_t x) { return x == 0; });
  };
  s.ports_tell_bytes = algorithm == network::Algorithm::kDirect && !shared_medium &&
                       none(routes.through_gpu) && none(routes.staged);
  s.built = s.build(scenario, graph, std::move(routes));
}

ExchangeTimer::State::Built ExchangeTimer::State::build(const scenario::Scenario& scenario,
                                                        const cluster::ClusterGraph& graph,
                                                        cluster::RouteTable routes) const {
  Built s;
  const std::optional<network::MeasuredLinks> measured = network::measured_of(scenario, graph);
  const network::MeasuredLinks* const curve = measured ? &*measured : nullptr;
  const network::Model model = network::model_of(scenario.network.model);
  const network::Algorithm algorithm = network::algorithm_of(scenario.network.algorithm);
  const auto gpus = static_cast<std::uint32_t>(scenario.hardware.gpu_count());
  std::vector<std::vector<std::uint32_t>> parts = groups_of(scenario);
  const bool closed = model == network::Model::kAuto || model == network::Model::kBottleneck;
  const bool wide = any_wide(scenario);
  // The closed form is coflow's time of an exchange alone on its links; the queue sees to others.
  // Under flow it tells loads and bounds, and the queue the times.
  const bool parted = model == network::Model::kCoflow && parts.size() > 1;
  const network::Model alone = by_queue || parted ? network::Model::kBottleneck : model;
  if (wide || scenario.parallel.pp > 1) {
    const auto partition = [alone, measured, routes, gpus,
                            apart = kept](std::vector<std::vector<std::uint32_t>> members) {
      if (members.size() > 1 && !apart && !link_disjoint(routes, members)) {
        members.assign(1, std::vector<std::uint32_t>(gpus));
        std::iota(members[0].begin(), members[0].end(), 0U);
      }
      Partition p;
      for (const auto& m : members) {
        p.models.emplace_back(alone, network::Algorithm::kDirect, routes.subset(m),
                              measured ? &*measured : nullptr);
      }
      p.groups = std::move(members);
      return p;
    };
    if (wide) {
      s.make_shards = [partition, shards = groups_of(scenario, [](const scenario::Parallel& p) {
                                    return p.tp;
                                  })] { return partition(shards); };
    }
    if (scenario.parallel.pp > 1) {
      s.make_direct = [partition, all = groups_of(scenario, [](const scenario::Parallel& p) {
                                    return p.gpus();
                                  })] { return partition(all); };
    }
  }
  const bool by_group =
      parts.size() > 1 && scenario.network.dispatch != scenario::DispatchKind::kPerNode;
  // Links that fail may leave groups with links in common, but they make no queue.
  const bool apart = by_group && link_disjoint(routes, parts);
  if (by_group && ((closed && apart) || model == network::Model::kCoflow || together || by_queue)) {
    for (const auto& members : parts) {
      s.models.emplace_back(alone, algorithm, routes.subset(members), curve);
    }
    s.groups = std::move(parts);
    s.everybody.assign(1, std::vector<std::uint32_t>(gpus));
    std::iota(s.everybody[0].begin(), s.everybody[0].end(), 0U);
    s.make_whole = [alone, algorithm, routes, measured] {
      return network::NetworkModel(alone, algorithm, routes, measured ? &*measured : nullptr);
    };
    return s;
  }
  if ((algorithm == network::Algorithm::kRing ||
       algorithm == network::Algorithm::kRingBidirectional) &&
      parts.size() > 1) {
    // What makes their exchanges one, and the way out beside another algorithm.
    const bool table = !scenario.network.measured.points.empty();
    const bool other_model = model == network::Model::kBottleneck;
    throw InputError(
        scenario::origin_of(scenario, "network.algorithm"),
        fmt::format("network.algorithm = \"ring\" with {} groups of {} of the {} GPUs is "
                    "unsupported here: their links meet, and {} their exchanges are one, whose "
                    "ring would go round all GPUs",
                    parts.size(), parts[0].size(), gpus,
                    table         ? "with network.measured"
                    : other_model ? "under this network.model"
                                  : "after a change of links"),
        fmt::format("use {}algorithm = \"direct\" or \"hierarchical\"",
                    table         ? "model = \"coflow\" or \"flow\", links without a table, or "
                    : other_model ? "model = \"auto\" or \"coflow\", or "
                                  : ""));
  }
  s.groups.emplace_back(gpus);
  std::iota(s.groups[0].begin(), s.groups[0].end(), 0U);
  s.models.emplace_back(by_queue ? network::Model::kBottleneck : model, algorithm,
                        std::move(routes), curve);
  return s;
}

void ExchangeTimer::rewire(const scenario::Scenario& changed, std::int64_t now_ps) {
  State& s = *state_;
  const cluster::ClusterGraph graph = network::cluster_of(changed);
  // Nothing changes before all that may be refused has been asked for.
  const auto connected = [](const auto& find) {
    try {
      return find();
    } catch (const InputError& e) {
      throw CutError(e.where(), e.message(), e.hint());
    }
  };
  cluster::RouteTable routes = connected([&] { return graph.routes(); });
  // Ways to host memory, too, where copies go on.
  std::optional<cluster::RouteTable> hosts;
  if (s.hosts) {
    try {
      hosts = connected([&] { return graph.routes(s.endpoint_device); });
    } catch (const CutError&) {
      if (s.loads_go_on) throw;
    }
  }
  const auto none = [](const std::vector<std::uint8_t>& v) {
    return std::all_of(v.begin(), v.end(), [](std::uint8_t x) { return x == 0; });
  };
  // A way round a broken cable may lead through a GPU or host memory.
  const bool ports = s.ports_tell_bytes && none(routes.through_gpu) && none(routes.staged);
  State::Built built = s.build(changed, graph, routes);

  s.built = std::move(built);
  s.ports_tell_bytes = ports;
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
  if (!s.copies) return;
  // The queue's links are all there ever were: other replicas' exchanges may be under way. After a
  // start-up no copy to a host follows: where one is without a cable, the GPUs' routes are enough.
  cluster::RouteTable all = hosts ? std::move(*hosts) : std::move(routes);
  for (std::uint32_t& link : all.link) link = s.link_of[link];
  all.bandwidth.clear();
  all.achievable.clear();  // The queue's floors are at the rates that exchanges reach.
  all.link_name.clear();
  for (std::size_t k = 0; k < s.links.size(); ++k) {
    all.bandwidth.push_back(s.bandwidth[k].value);
    all.link_name.push_back(s.links[k].name);
  }
  s.copies->advance(now_ps);
  s.copies->rewire(std::move(all));
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
bool ExchangeTimer::ends_move() const { return state_->kept; }

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
  if (!s.kept) return;
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
  Built& b = built;
  use = &b.models;
  members = &b.groups;
  if (among == Among::kAll && b.make_whole != nullptr) {
    if (b.whole.empty()) b.whole.push_back(b.make_whole());
    use = &b.whole;
    members = &b.everybody;
  }
  auto* const make = among == Among::kShards   ? &b.make_shards
                     : among == Among::kDirect ? &b.make_direct
                                               : nullptr;
  if (make == nullptr || *make == nullptr) return;
  std::optional<Partition>& p = among == Among::kShards ? b.shards : b.direct;
  if (!p) p = (*make)();
  use = &p->models;
  members = &p->groups;
}

bool ExchangeTimer::alone(Among among, std::uint32_t size) {
  State& s = *state_;
  // Under "bottleneck" nothing queues, but hidden states pass between stages on the same links.
  if (s.kept || s.loads_go_on || s.built.make_direct) return false;
  std::vector<network::NetworkModel>* models = nullptr;
  std::vector<std::vector<std::uint32_t>>* groups = nullptr;
  s.choose(among, models, groups);
  return std::all_of(groups->begin(), groups->end(), [&](const auto& members) {
    bool in_order = members.size() == size && members.front() % size == 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      in_order = in_order && members[i] == members.front() + i;
    }
    return in_order;
  });
}

void ExchangeTimer::State::chain(const ExchangeTiming& t, std::span<const std::int64_t> ready_ps,
                                 TransferQueue::Exchange& e) const {
  const bool pairs = by_pairs(e);
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
                        Among among, std::span<const std::int64_t> all_ready_ps,
                        const GroupTime* time, bool continues) {
  State& s = *state_;
  std::vector<network::NetworkModel>* chosen = nullptr;
  std::vector<std::vector<std::uint32_t>>* parts = nullptr;
  s.choose(among, chosen, parts);
  std::vector<network::NetworkModel>& models = *chosen;
  const std::size_t gpus = ready_ps.size();
  std::size_t used = 0;
  s.beside.clear();
  s.group_of.clear();
  s.reasons.clear();
  // With pages that travel others may begin before the GPUs here: the step loop advances the queue.
  // What goes from stage to stage begins at clocks of its own, beyond which a group may still
  // begin.
  if (s.copies && !s.pages && among != Among::kDirect) {
    const auto clocks = all_ready_ps.empty() ? ready_ps : all_ready_ps;
    s.copies->advance(*std::min_element(clocks.begin(), clocks.end()));
  }
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
    models[q].exchange(own, s.ready, r, continues);
    if (r.bytes == 0) continue;

    if (out.size() <= used) out.emplace_back();
    ExchangeTiming& t = out[used++];
    s.sends.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n && s.sends[i] == 0; ++j) {
        s.sends[i] = j != i && own[i * n + j] > 0 ? 1 : 0;
      }
    }
    s.tell(members, ready_ps, t);
    if (s.copies && (s.kept || s.copies->in_flight() > 0)) {
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
      e.continues = continues;
      if (s.kept) s.chain(t, ready_ps, e);
      s.beside.push_back(std::move(e));
      s.group_of.push_back(used - 1);
    }
    if (time != nullptr && *time) {
      SWITCHYARD_ASSERT(s.beside.empty(),
                        "an exchange with a time of its own is alone on its links");
      if (const std::int64_t own_ps = (*time)(own, members); own_ps >= 0) {
        t.duration_ps = std::max({own_ps, t.floor_ps, std::int64_t{1}});
        t.extrapolated = false;  // Of the model's links.
        for (std::size_t i = 0; i < n; ++i) {
          if (r.participates[i] != 0) t.end_ps[members[i]] = t.begin_ps + t.duration_ps;
        }
      }
    }
    s.reasons.back().duration_ps = t.duration_ps;
  }
  out.resize(used);
  // Exchanges that share a link with a copy take longer.
  const std::vector<TransferQueue::Timed> timed =
      s.beside.empty() ? std::vector<TransferQueue::Timed>() : s.copies->run(s.beside);
  for (std::size_t i = 0; i < timed.size(); ++i) {
    ExchangeTiming& t = out[s.group_of[i]];
    const TransferQueue::Exchange& e = s.beside[i];
    t.kept = s.kept;
    t.id = timed[i].id;
    const bool flows = s.by_queue && s.sharing == Sharing::kPairs;
    if (!timed[i].met && !s.kept) continue;
    // Alone on its links it may still begin later than its GPUs were known to be ready: what it
    // follows has met others since. Rounding in each of its phases is no such difference.
    const std::int64_t slack = timed[i].met ? 0
                                            : static_cast<std::int64_t>(e.phases.size()) + 1 +
                                                  t.duration_ps / 1'000'000'000;
    for (std::uint32_t g = 0; g < gpus; ++g) {
      if (t.participates[g] == 0) continue;
      const std::int64_t end = s.by_pairs(e)
                                   ? std::max(ready_ps[g], State::end_of_pairs(e, timed[i], g))
                                   : timed[i].end_ps;
      if (flows || end > t.end_ps[g] + slack) t.end_ps[g] = end;
    }
    if (!flows) {
      const std::int64_t took = timed[i].end_ps - t.begin_ps;
      if (took > t.duration_ps + slack) t.duration_ps = took;
      continue;
    }
    // As network::NetworkModel says it of flows.
    State::Reason& why = s.reasons[s.group_of[i]];
    t.duration_ps = why.duration_ps = timed[i].end_ps - t.begin_ps;
    if (s.by_pairs(e)) {
      t.floor_ps = std::max<std::int64_t>(0, t.floor_ps - why.early_ps);
      if (why.straggler != network::kNone && t.end_ps[why.straggler] < timed[i].end_ps) {
        // Max-min sharing can make another GPU the last one.
        why.straggler = 0;
        while (t.participates[why.straggler] == 0 || t.end_ps[why.straggler] < timed[i].end_ps) {
          ++why.straggler;
        }
      }
    }
    why.reason = why.early_ps > t.duration_ps                    ? network::StragglerReason::kLate
                 : why.reason == network::StragglerReason::kLate ? network::StragglerReason::kLoad
                                                                 : why.reason;
  }
  for (std::size_t i = 0; i < used; ++i) State::blame(s.reasons[i], out[i]);
  for (std::size_t i = 0; s.kept && i < timed.size(); ++i) {
    const ExchangeTiming& t = out[s.group_of[i]];
    const TransferQueue::Exchange& e = s.beside[i];
    for (std::uint32_t g = 0; g < gpus; ++g) {
      if (t.participates[g] == 0) continue;
      const bool pairs = s.by_pairs(e);
      const std::int64_t end = pairs ? State::end_of_pairs(e, timed[i], g) : timed[i].end_ps;
      const Anchor own{Anchor::Of::kExchange, t.id, t.end_ps[g] - end,
                       pairs ? g : TransferQueue::kAll};
      if (among == Among::kDirect) {
        // What goes from stage to stage does so beside the work of both.
        const network::Phase& phase = e.phases.front();
        if (std::any_of(phase.begin(), phase.end(),
                        [g](const network::Transfer& x) { return x.src == g; })) {
          continue;
        }
        const std::int64_t now = all_ready_ps.empty() ? ready_ps[g] : all_ready_ps[g];
        std::vector<Anchor>& mine = s.anchors[g];
        if (mine.empty()) mine.push_back({Anchor::Of::kTime, 0, s.known[g] = now});
        const std::int64_t then = std::max(now, t.end_ps[g]);
        for (Anchor& a : mine) a.off_ps += now - s.known[g];
        mine.push_back(own);
        s.known[g] = then;
        continue;
      }
      // What the clock followed is before this exchange in the queue.
      forget(s.anchors[g]);
      s.anchors[g].assign(1, own);
      s.known[g] = t.end_ps[g];
    }
  }
}

void ExchangeTimer::State::tell(const std::vector<std::uint32_t>& members,
                                std::span<const std::int64_t> ready_ps, ExchangeTiming& t) {
  const network::ExchangeResult& r = result;
  const std::size_t n = members.size();
  t.end_ps.assign(ready_ps.begin(), ready_ps.end());
  t.participates.assign(ready_ps.size(), 0);
  t.begin_ps = r.start.ps();
  t.duration_ps = r.duration.ps();
  t.floor_ps = r.floor.ps();
  t.extrapolated = r.extrapolated;
  t.last_ready = members[r.last_ready];
  t.kept = false;
  if (link_of.empty()) {
    t.link_bytes = r.link_bytes;
  } else {
    t.link_bytes.assign(links.size(), 0);
    for (std::size_t k = 0; k < r.link_bytes.size(); ++k) {
      t.link_bytes[link_of[k]] = r.link_bytes[k];
    }
  }
  // Idle receivers do not make a GPU late: only senders count.
  std::int64_t last_sender = INT64_MIN, wait = 0, senders = 0, first = r.start.ps();
  std::uint32_t late = UINT32_MAX;
  for (std::size_t i = 0; i < n; ++i) {
    t.end_ps[members[i]] = r.end[i].ps();
    t.participates[members[i]] = r.participates[i];
    if (r.participates[i] != 0) first = std::min(first, ready_ps[members[i]]);
    if (sends[i] == 0) continue;
    ++senders;
    if (ready_ps[members[i]] > last_sender) {
      last_sender = ready_ps[members[i]];
      late = members[i];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (sends[i] != 0) wait += last_sender - ready_ps[members[i]];
  }
  wait = senders > 1 ? wait / (senders - 1) : 0;
  reasons.push_back({r.straggler == network::kNone ? r.straggler : members[r.straggler], late,
                     r.reason, t.duration_ps, r.alpha.ps(), wait, r.start.ps() - first});
}

void ExchangeTimer::State::blame(const Reason& why, ExchangeTiming& t) {
  const std::int64_t transfer = std::max<std::int64_t>(0, why.duration_ps - why.alpha_ps);
  if (why.wait_ps > transfer || why.straggler == network::kNone ||
      why.reason == network::StragglerReason::kLate) {
    t.straggler = why.late;
    t.link_bound = false;
    t.straggler_ps = why.wait_ps;
  } else {
    t.straggler = why.straggler;
    t.link_bound = why.reason == network::StragglerReason::kLink;
    t.straggler_ps = transfer;
  }
}

bool ExchangeTimer::takes_copies() {
  State& s = *state_;
  const State::Built& b = s.built;
  if (s.copies || b.models.size() != 1 || !b.models[0].takes_copies()) return false;
  const std::vector<std::uint32_t>& members = b.groups[0];
  if (members.size() != s.anchors.size()) return false;
  for (std::uint32_t i = 0; i < members.size(); ++i) {
    if (members[i] != i) return false;
  }
  return true;
}

void ExchangeTimer::sum_copies(std::span<const std::uint32_t> copies) {
  state_->built.models[0].sum_copies(copies);
}

void ExchangeTimer::run_copies(std::uint64_t bytes, bool back,
                               std::span<const std::uint64_t> sends,
                               std::span<const std::int64_t> ready_ps,
                               std::vector<ExchangeTiming>& out) {
  State& s = *state_;
  const std::size_t n = ready_ps.size();
  s.reasons.clear();
  s.ready.resize(n);
  s.sends.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    s.ready[i] = SimTime::from_ps(ready_ps[i]);
    s.sends[i] = sends[i] > 0 ? 1 : 0;
  }
  s.built.models[0].exchange_copies(bytes, back, s.ready, s.result);
  out.resize(s.result.bytes == 0 ? 0 : 1);
  if (out.empty()) return;
  s.tell(s.built.groups[0], ready_ps, out[0]);
  State::blame(s.reasons[0], out[0]);
}

void ExchangeTimer::run_trip(std::span<const network::Transfer> up,
                             std::span<const network::Transfer> down,
                             const std::function<std::int64_t(std::int64_t)>& compute,
                             std::span<const std::uint32_t> devices,
                             std::span<const std::int64_t> ready_ps,
                             std::span<const std::uint32_t> gpus, std::span<std::int64_t> end_ps) {
  State& s = *state_;
  const std::size_t all = ready_ps.size(), endpoints = s.endpoint_device.size();
  const auto endpoint = [&](std::uint32_t x) {
    if (x < all) return x;
    const auto at = std::find(s.endpoint_device.begin(), s.endpoint_device.end(), devices[x - all]);
    return static_cast<std::uint32_t>(at - s.endpoint_device.begin());
  };
  const auto exchange = [&](std::span<const network::Transfer> transfers) {
    TransferQueue::Exchange e;
    network::Phase& phase = e.phases.emplace_back();
    for (const network::Transfer& x : transfers) {
      phase.push_back({endpoint(x.src), endpoint(x.dst), x.bytes});
    }
    e.ready_ps.assign(endpoints, 0);
    return e;
  };
  if (!s.pages) s.copies->advance(*std::min_element(ready_ps.begin(), ready_ps.end()));
  // Everybody has tokens to send, or waits for those of its group's others.
  ExchangeTiming who;
  who.participates.assign(all, 0);
  std::int64_t begin = 0;
  for (const std::uint32_t g : gpus) {
    who.participates[g] = 1;
    begin = std::max(begin, ready_ps[g]);
  }
  TransferQueue::Exchange out = exchange(up);
  std::copy(ready_ps.begin(), ready_ps.end(), out.ready_ps.begin());
  out.begin_ps = begin;
  s.chain(who, ready_ps, out);
  if (!out.clocks.empty()) out.clocks.resize(endpoints);
  const TransferQueue::Timed there = s.copies->run({&out, 1})[0];

  TransferQueue::Exchange home = exchange(down);
  const std::int64_t arrival = std::max(begin, there.end_ps);
  const std::int64_t compute_ps = compute(arrival);
  home.begin_ps = arrival + compute_ps;
  home.ready_ps.assign(endpoints, home.begin_ps);
  const TransferQueue::Exchange::After after{there.id, compute_ps, home.begin_ps};
  if (s.by_pairs(home)) {
    home.clocks.resize(endpoints);
    for (const std::uint32_t g : gpus) home.clocks[g].after.assign(1, after);
    // A GPU that sent nothing waits all the same.
    for (TransferQueue::Exchange::Clock& c : home.clocks) c.floor_ps = begin + compute_ps;
  } else {
    home.after.assign(1, after);
    home.floor_ps = begin + compute_ps;
  }
  const TransferQueue::Timed back = s.copies->run({&home, 1})[0];
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const std::uint32_t g = gpus[i];
    const std::int64_t own = s.by_pairs(home) ? State::end_of_pairs(home, back, g) : back.end_ps;
    // Whoever gets nothing goes on with the last.
    const bool gets = own > 0;
    end_ps[i] = gets ? own : back.end_ps;
    forget(s.anchors[g]);
    s.anchors[g].assign(
        1, {Anchor::Of::kExchange, back.id, 0, s.by_pairs(home) && gets ? g : TransferQueue::kAll});
    s.known[g] = end_ps[i];
  }
}

std::int64_t ExchangeTimer::State::end_of_pairs(const TransferQueue::Exchange& e,
                                                const TransferQueue::Timed& timed,
                                                std::uint32_t gpu) {
  std::int64_t end = 0;
  const network::Phase& pairs = e.phases.back();
  for (std::size_t x = 0; x < pairs.size(); ++x) {
    if (pairs[x].src == gpu || pairs[x].dst == gpu) end = std::max(end, timed.transfer_end_ps[x]);
  }
  return end;
}

}  // namespace switchyard::sim
