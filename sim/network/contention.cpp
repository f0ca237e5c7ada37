// SPDX-License-Identifier: Apache-2.0
// The only file that knows SimGrid, and the only place where simulated time is a double.
#include "sim/network/contention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <simgrid/s4u.hpp>

#include "engine/base/error.hpp"

namespace switchyard::network {
namespace {

namespace sg = simgrid::s4u;

bool g_session_made = false;

std::string deadlock_text(const std::vector<DeadlockError::Entry>& table) {
  std::string text = "deadlock in the network model";
  for (const DeadlockError::Entry& e : table) {
    text += fmt::format("; {} waits for {} since {} ps", e.who, e.waits_for, e.since.ps());
  }
  return text;
}

/// Duration in seconds to picoseconds: nearest, at least 1 ps.
SimTime to_time(double seconds) {
  return std::max(SimTime::from_seconds(seconds), SimTime::from_ps(1));
}

}  // namespace

DeadlockError::DeadlockError(std::vector<Entry> table)
    : std::runtime_error(deadlock_text(table)), table_(std::move(table)) {}

struct ContentionSession::Impl {
  Impl(ContentionKind k, const cluster::RouteTable& r) : kind(k), routes(r) {
    std::vector<std::string> text{"switchyard", "--log=root.thresh:warning",
                                  "--cfg=surf/precision:1e-12", "--cfg=contexts/stack-size:256"};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    text.emplace_back("--cfg=contexts/factory:thread");
#endif
    if (kind == ContentionKind::kFlow) {
      for (const char* option :
           {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
            "network/weight-S:0", "network/optim:Full"}) {
        text.push_back(std::string("--cfg=") + option);
      }
    } else {
      text.emplace_back("--cfg=host/model:ptask_L07");
    }
    std::vector<char*> argv;
    argv.reserve(text.size() + 1);
    for (std::string& t : text) {
      argv.push_back(t.data());
    }
    argv.push_back(nullptr);
    int argc = static_cast<int>(text.size());
    // Lives until the process ends: SimGrid keeps pointers to it in its own static objects.
    static sg::Engine* const engine = new sg::Engine(&argc, argv.data());
    this->engine = engine;
    zone = sg::create_full_zone("cluster");
    for (std::uint32_t e = 0; e < routes.endpoints; ++e) {
      // The speed is never used: no computation runs in SimGrid.
      hosts.push_back(zone->create_host(fmt::format("e{}", e), 1e9));
    }
    for (std::size_t l = 0; l < routes.links(); ++l) {
      links.push_back(
          zone->create_link(fmt::format("l{}", l), routes.bandwidth[l])->set_latency(0.0)->seal());
    }
    zone->seal();
    route_known.assign(static_cast<std::size_t>(routes.endpoints) * routes.endpoints, false);
    sg::Engine::on_deadlock_cb([this] { deadlocked = true; });
  }

  /// Routes are entered when a pair first carries bytes: n² of them would cost 100 MB at 1,024.
  void ensure_route(std::uint32_t src, std::uint32_t dst) {
    const std::size_t p = routes.pair(src, dst);
    if (route_known[p]) {
      return;
    }
    route_known[p] = true;
    std::vector<sg::LinkInRoute> list;
    for (const std::uint32_t l : routes.links_of(src, dst)) {
      list.emplace_back(links[l]);
    }
    zone->add_route(hosts[src]->get_netpoint(), hosts[dst]->get_netpoint(), nullptr, nullptr, list,
                    false);
  }

  std::vector<ActivityResult> run(std::span<const Activity> activities);
  void run_one(std::uint32_t index);
  void run_flow(std::uint32_t index, SimTime base);
  void run_coflow(std::uint32_t index, SimTime base);

  /// Sleeps until `when` of the batch's own time.
  void sleep_until(SimTime when) const {
    const double date = origin + when.seconds();
    if (date > sg::Engine::get_clock()) {
      sg::this_actor::sleep_until(date);
    }
  }

  ContentionKind kind;
  const cluster::RouteTable& routes;
  sg::Engine* engine = nullptr;
  sg::NetZone* zone = nullptr;
  std::vector<sg::Host*> hosts;
  std::vector<sg::Link*> links;
  std::vector<bool> route_known;
  bool deadlocked = false, broken = false;

  // The batch in progress.
  double origin = 0;  ///< SimGrid clock at its zero.
  std::span<const Activity> batch;
  std::vector<ActivityResult> results;
  std::vector<bool> ended;
  std::vector<std::vector<std::uint32_t>> dependants;
  std::vector<sg::SemaphorePtr> gate;
  std::vector<DeadlockError::Entry>
      waits;  ///< Per activity; `who` is empty while it does not wait.
};

ContentionSession::ContentionSession(ContentionKind kind, const cluster::RouteTable& routes) {
  if (g_session_made) {
    throw std::logic_error(
        "a second SimGrid session in one process: a new engine would keep the old one's clock; "
        "run each simulation with flow, coflow or contended auto in its own process");
  }
  g_session_made = true;
  impl_ = std::make_unique<Impl>(kind, routes);
}

ContentionSession::~ContentionSession() = default;

std::vector<ActivityResult> ContentionSession::run(std::span<const Activity> activities) {
  return impl_->run(activities);
}

std::vector<ActivityResult> ContentionSession::Impl::run(std::span<const Activity> activities) {
  if (broken) {
    throw std::logic_error("the network session ended in a deadlock before");
  }
  const auto count = static_cast<std::uint32_t>(activities.size());
  batch = activities;
  origin = sg::Engine::get_clock();
  results.assign(count, {});
  ended.assign(count, false);
  dependants.assign(count, {});
  gate.clear();
  waits.assign(count, {});
  for (std::uint32_t a = 0; a < count; ++a) {
    const Activity& activity = activities[a];
    SWITCHYARD_ASSERT(activity.ready.empty() || activity.ready.size() == routes.endpoints,
                      fmt::format("{} ready times", activity.ready.size()));
    SWITCHYARD_ASSERT(activity.start >= SimTime(), fmt::format("{} ps", activity.start.ps()));
    for (const SimTime r : activity.ready) {
      SWITCHYARD_ASSERT(r >= SimTime(), fmt::format("{} ps", r.ps()));
    }
    for (const Transfer& t : activity.transfers) {
      SWITCHYARD_ASSERT(t.src < routes.endpoints && t.dst < routes.endpoints,
                        fmt::format("{} > {}", t.src, t.dst));
      if (t.src != t.dst && t.bytes != 0) {
        ensure_route(t.src, t.dst);
      }
    }
    for (const std::uint32_t before : activity.after) {
      SWITCHYARD_ASSERT(before < count, fmt::format("after = {} of {}", before, count));
      dependants[before].push_back(a);
    }
    gate.push_back(sg::Semaphore::create(0));
  }
  for (std::uint32_t a = 0; a < count; ++a) {
    sg::Actor::create(fmt::format("a{}", a), hosts[0], [this, a] { run_one(a); });
  }
  if (count > 0) {
    engine->run();
  }
  if (deadlocked || std::find(ended.begin(), ended.end(), false) != ended.end()) {
    broken = true;
    std::vector<DeadlockError::Entry> table;
    for (DeadlockError::Entry& e : waits) {
      if (!e.who.empty()) {
        table.push_back(std::move(e));
      }
    }
    throw DeadlockError(std::move(table));
  }
  return std::move(results);
}

void ContentionSession::Impl::run_one(std::uint32_t index) {
  const Activity& activity = batch[index];
  const auto name = [&](std::uint32_t a) {
    return batch[a].name.empty() ? fmt::format("activity {}", a) : batch[a].name;
  };
  SimTime base = activity.start;
  for (std::size_t got = 0; got < activity.after.size(); ++got) {
    std::string missing;
    SimTime since;  // End of the last predecessor that has ended.
    for (const std::uint32_t before : activity.after) {
      if (!ended[before]) {
        missing += (missing.empty() ? "" : ", ") + name(before);
      } else {
        since = std::max(since, results[before].end);
      }
    }
    waits[index] = {name(index), missing, since};
    gate[index]->acquire();
  }
  waits[index] = {};
  for (const std::uint32_t before : activity.after) {
    base = std::max(base, results[before].end);
  }
  if (kind == ContentionKind::kFlow) {
    run_flow(index, base);
  } else {
    run_coflow(index, base);
  }
  ended[index] = true;
  for (const std::uint32_t next : dependants[index]) {
    gate[next]->release();
  }
}

void ContentionSession::Impl::run_flow(std::uint32_t index, SimTime base) {
  const Activity& activity = batch[index];
  ActivityResult& result = results[index];
  struct Flow {
    SimTime can_start, start;  // Without and with latency.
    std::uint32_t src = 0, dst = 0;
    std::uint64_t bytes = 0;
    double begin = 0;
    SimTime end;
  };
  const auto ready = [&](std::uint32_t e) {
    return activity.ready.empty() ? base : std::max(base, activity.ready[e]);
  };
  const auto latency = [&](const Transfer& t) {
    return activity.continues ? routes.phase_latency(t.src, t.dst) : routes.latency(t.src, t.dst);
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> of_pair;
  std::vector<Flow> flows;
  for (const Transfer& t : activity.transfers) {
    if (t.src == t.dst || t.bytes == 0) {
      continue;
    }
    const auto [it, fresh] = of_pair.try_emplace({t.src, t.dst}, flows.size());
    if (fresh) {
      Flow f;
      f.can_start = std::max(ready(t.src), ready(t.dst));
      f.start = f.can_start + latency(t);
      f.src = t.src;
      f.dst = t.dst;
      flows.push_back(f);
    }
    flows[it->second].bytes += t.bytes;
  }
  std::vector<std::size_t> order(flows.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return flows[x].start < flows[y].start; });
  std::vector<sg::CommPtr> comms;
  for (const std::size_t i : order) {
    Flow& f = flows[i];
    sleep_until(f.start);
    sg::CommPtr comm = sg::Comm::sendto_init(hosts[f.src], hosts[f.dst]);
    comm->set_payload_size(f.bytes);
    f.begin = sg::Engine::get_clock();
    comm->start();
    comms.push_back(comm);
  }
  for (std::size_t k = 0; k < comms.size(); ++k) {
    // The time it finished, not the time this actor saw it: completion callbacks fire in wait().
    comms[k]->wait();
    Flow& f = flows[order[k]];
    f.end = f.start + to_time(comms[k]->get_finish_time() - f.begin);
  }
  result.start = result.end = base;
  bool first = true;
  for (const Flow& f : flows) {
    result.end = std::max(result.end, f.end);
    result.start = first ? f.can_start : std::min(result.start, f.can_start);
    first = false;
  }
  for (const Transfer& t : activity.transfers) {
    result.transfer_end.push_back(t.src == t.dst || t.bytes == 0
                                      ? std::max(ready(t.src), ready(t.dst))
                                      : flows[of_pair.at({t.src, t.dst})].end);
  }
}

void ContentionSession::Impl::run_coflow(std::uint32_t index, SimTime base) {
  const Activity& activity = batch[index];
  ActivityResult& result = results[index];
  const auto ready = [&](std::uint32_t e) {
    return activity.ready.empty() ? base : std::max(base, activity.ready[e]);
  };
  const auto latency = [&](const Transfer& t) {
    return activity.continues ? routes.phase_latency(t.src, t.dst) : routes.latency(t.src, t.dst);
  };
  SimTime alpha;
  result.start = base;
  std::map<std::uint32_t, std::size_t> member;  // Endpoint → row of the task.
  for (const Transfer& t : activity.transfers) {
    if (t.src != t.dst && t.bytes != 0) {
      result.start = std::max({result.start, ready(t.src), ready(t.dst)});
      alpha = std::max(alpha, latency(t));
      member[t.src] = member[t.dst] = 0;
    }
  }
  result.end = result.start;
  if (!member.empty()) {
    std::vector<sg::Host*> task_hosts;
    for (auto& [endpoint, row] : member) {
      row = task_hosts.size();
      task_hosts.push_back(hosts[endpoint]);
    }
    const std::size_t m = task_hosts.size();
    std::vector<double> bytes(m * m, 0.0);
    for (const Transfer& t : activity.transfers) {
      if (t.src != t.dst) {
        bytes[member[t.src] * m + member[t.dst]] += static_cast<double>(t.bytes);
      }
    }
    const SimTime begin = result.start + alpha;
    sleep_until(begin);
    sg::ExecPtr task = sg::Exec::init();
    task->set_hosts(task_hosts);
    task->set_flops_amounts(std::vector<double>(m, 0.0));
    task->set_bytes_amounts(bytes);
    const double clock = sg::Engine::get_clock();
    task->start();
    task->wait();
    result.end = begin + to_time(task->get_finish_time() - clock);
  }
  for (const Transfer& t : activity.transfers) {
    result.transfer_end.push_back(
        t.src == t.dst || t.bytes == 0 ? std::max(ready(t.src), ready(t.dst)) : result.end);
  }
}

}  // namespace switchyard::network
