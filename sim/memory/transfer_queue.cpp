// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/transfer_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

}  // namespace

TransferQueue::TransferQueue(cluster::RouteTable routes, std::uint32_t lanes, Sharing sharing,
                             bool keeps_exchanges)
    : routes_(std::move(routes)),
      sharing_(sharing),
      keeps_(keeps_exchanges),
      rest_(routes_.links(), 0),
      weight_(routes_.links(), 0) {
  SWITCHYARD_ASSERT(!keeps_ || sharing_ != Sharing::kRefused, "exchanges that may not meet");
  state_.lane_free.assign(lanes, 0);
}

TransferQueue::Task TransferQueue::task_of(std::span<const network::Transfer> transfers,
                                           std::int64_t begin_ps, bool continues) const {
  Task t;
  // Bytes per link; a pair alone needs no table of all links.
  std::map<std::uint32_t, double> few;
  std::vector<double> table(transfers.size() > 4 ? routes_.links() : 0, 0);
  for (const network::Transfer& x : transfers) {
    if (x.src == x.dst || x.bytes == 0) continue;
    const SimTime latency =
        continues ? routes_.phase_latency(x.src, x.dst) : routes_.latency(x.src, x.dst);
    t.latency_ps = std::max(t.latency_ps, latency.ps());
    t.path_bytes = static_cast<double>(x.bytes);
    for (const std::uint32_t link : routes_.links_of(x.src, x.dst)) {
      (table.empty() ? few[link] : table[link]) += static_cast<double>(x.bytes);
    }
  }
  std::vector<Use> use;
  for (const auto& [link, bytes] : few) use.push_back({link, bytes});
  for (std::uint32_t link = 0; link < table.size(); ++link) {
    if (table[link] > 0) use.push_back({link, table[link]});
  }
  const bool nothing = use.empty();
  t.use = std::make_shared<const std::vector<Use>>(std::move(use));
  t.begin_ps = begin_ps;
  if (begin_ps >= 0) t.move_ps = begin_ps + t.latency_ps;
  if (nothing) {
    t.left = 0;
    t.end_ps = begin_ps;
  }
  return t;
}

void TransferQueue::measure(network::MeasuredLinks links) {
  SWITCHYARD_ASSERT(links.on_link.size() == routes_.links(),
                    fmt::format("{} marks, {} links", links.on_link.size(), routes_.links()));
  measured_ = std::move(links);
}

void TransferQueue::bound(std::span<Task> tasks) {
  if (!measured_) return;
  std::map<std::uint32_t, double> bytes;
  for (const Task& t : tasks) {
    for (const Use& u : *t.use) {
      if (measured_->on_link[u.link] != 0) bytes[u.link] += u.bytes;
    }
  }
  struct Limit {
    Id key;
    double rate;
  };
  std::map<std::uint32_t, Limit> limits;
  for (const auto& [link, sum] : bytes) {
    const BytesPerSecond nominal{routes_.bandwidth[link]};
    const double seconds =
        measured_->curve.time(static_cast<std::uint64_t>(std::llround(sum)), nominal).seconds;
    // Where the table is above the link's rate that one is the bound already.
    if (seconds * nominal.value > sum) limits.emplace(link, Limit{next_bound_++, sum / seconds});
  }
  for (Task& t : tasks) {
    std::vector<Bound> own;
    for (const Use& u : *t.use) {
      const auto it = limits.find(u.link);
      if (it != limits.end()) own.push_back({it->second.key, u.bytes, it->second.rate});
    }
    if (!own.empty()) t.bounds = std::make_shared<const std::vector<Bound>>(std::move(own));
  }
}

void TransferQueue::rewire(cluster::RouteTable routes) {
  SWITCHYARD_ASSERT(routes.links() == routes_.links(),
                    fmt::format("{} links became {}", routes_.links(), routes.links()));
  // Of most exchanges it is the first change: they share what was best.
  std::map<const std::vector<double>*, std::shared_ptr<const std::vector<double>>> better;
  for (Running& x : state_.exchanges) {
    if (!keeps_) break;
    std::shared_ptr<const std::vector<double>>& best = better[x.best.get()];
    if (best == nullptr) {
      std::vector<double> most = x.best != nullptr ? *x.best : routes_.bandwidth;
      for (std::size_t l = 0; l < most.size(); ++l) {
        most[l] = std::max(most[l], routes.bandwidth[l]);
      }
      best = std::make_shared<const std::vector<double>>(std::move(most));
    }
    x.best = best;
  }
  routes_ = std::move(routes);
  stale_ = true;
  has_cursor_ = false;
}

TransferQueue::Id TransferQueue::add(std::uint32_t lane, std::uint32_t src, std::uint32_t dst,
                                     std::uint64_t bytes, std::int64_t ready_ps, bool keep_end) {
  SWITCHYARD_ASSERT(bytes > 0 && src != dst, fmt::format("copy of {} B {} -> {}", bytes, src, dst));
  SWITCHYARD_ASSERT(ready_ps >= state_.now_ps,
                    fmt::format("copy from {} ps on, the time is {}", ready_ps, state_.now_ps));
  Copy c;
  c.id = next_++;
  c.lane = lane;
  c.bytes = bytes;
  c.ready_ps = ready_ps;
  c.keep_end = keep_end;
  const network::Transfer one{src, dst, bytes};
  c.task = task_of({&one, 1}, -1, false);
  bound({&c.task, 1});
  state_.copies.push_back(std::move(c));
  stale_ = true;
  has_cursor_ = false;
  return next_ - 1;
}

const TransferQueue::Copy& TransferQueue::find(const State& state, Id id) const {
  const auto it = std::lower_bound(state.copies.begin(), state.copies.end(), id,
                                   [](const Copy& c, Id value) { return c.id < value; });
  SWITCHYARD_ASSERT(it != state.copies.end() && it->id == id,
                    fmt::format("copy {} is forgotten", id));
  return *it;
}

void TransferQueue::settle() {
  if (!stale_) return;
  // Of copies that have ended state_ tells.
  const auto open = std::find_if(state_.copies.begin(), state_.copies.end(),
                                 [](const Copy& c) { return c.task.end_ps < 0; });
  settled_.now_ps = state_.now_ps;
  settled_.lane_free = state_.lane_free;
  settled_.copies.assign(open, state_.copies.end());
  settled_.exchanges = state_.exchanges;
  settled_.ended = state_.ended;
  simulate(settled_, kForever);
  stale_ = false;
}

std::int64_t TransferQueue::begin(Id id) {
  if (const std::int64_t begin = find(state_, id).task.begin_ps; begin >= 0) return begin;
  settle();
  return find(settled_, id).task.begin_ps;
}
std::int64_t TransferQueue::end(Id id) {
  if (const auto it = ended_copies_.find(id); it != ended_copies_.end()) return it->second;
  if (const std::int64_t end = find(state_, id).task.end_ps; end >= 0) return end;
  settle();
  return find(settled_, id).task.end_ps;
}

bool TransferQueue::cancel(Id id, std::int64_t now_ps) {
  if (begin(id) < now_ps) return false;
  const auto it = std::lower_bound(state_.copies.begin(), state_.copies.end(), id,
                                   [](const Copy& c, Id value) { return c.id < value; });
  state_.copies.erase(it);
  stale_ = true;
  has_cursor_ = false;
  return true;
}

std::size_t TransferQueue::in_flight() const {
  return static_cast<std::size_t>(std::count_if(state_.copies.begin(), state_.copies.end(),
                                                [](const Copy& c) { return c.task.end_ps < 0; }));
}

/// Rates of the active tasks, in shares per second.
void TransferQueue::rates(const std::vector<Task*>& active) {
  const std::size_t n = active.size();
  rate_.assign(n, 0);
  fixed_.assign(n, 0);
  links_.clear();
  use_.assign(n, nullptr);
  joint_.resize(std::max(joint_.size(), n));
  bandwidth_.assign(routes_.bandwidth.begin(), routes_.bandwidth.end());
  std::map<Id, std::uint32_t> bounds;  // Those in force → their places as links.
  for (std::size_t i = 0; i < n; ++i) {
    use_[i] = active[i]->use.get();
    if (active[i]->bounds == nullptr) continue;
    joint_[i] = *active[i]->use;
    for (const Bound& b : *active[i]->bounds) {
      const auto [at, fresh] = bounds.emplace(b.key, static_cast<std::uint32_t>(bandwidth_.size()));
      if (fresh) bandwidth_.push_back(b.rate);
      joint_[i].push_back({at->second, b.bytes});
    }
    use_[i] = &joint_[i];
  }
  if (weight_.size() < bandwidth_.size()) {
    weight_.resize(bandwidth_.size(), 0);
    rest_.resize(bandwidth_.size(), 0);
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (const Use& u : *use_[i]) {
      if (weight_[u.link] == 0) {
        links_.push_back(u.link);
        rest_[u.link] = bandwidth_[u.link];
      }
      weight_[u.link] += 1;
    }
  }
  if (sharing_ == Sharing::kPairs) {
    max_min(active);
  } else {
    fair_tasks(active);
  }
  for (const std::uint32_t l : links_) weight_[l] = 0;
}

/// Max-min fair flows: the link with the least for each of its flows fixes them, and so on.
void TransferQueue::max_min(const std::vector<Task*>& active) {
  // A staged path holds a shared medium twice: the flow has the weight 2 there.
  const auto weight = [](const Task& t, const Use& u) { return u.bytes / t.path_bytes; };
  for (const std::uint32_t l : links_) weight_[l] = 0;
  on_link_.resize(std::max(on_link_.size(), bandwidth_.size()));
  for (const std::uint32_t l : links_) on_link_[l].clear();
  for (std::uint32_t i = 0; i < active.size(); ++i) {
    for (const Use& u : *use_[i]) {
      weight_[u.link] += weight(*active[i], u);
      on_link_[u.link].push_back(i);
    }
  }
  for (std::size_t open = active.size(); open > 0;) {
    double least = std::numeric_limits<double>::infinity();
    std::uint32_t narrow = 0;
    for (const std::uint32_t l : links_) {
      if (weight_[l] > 0.5 && rest_[l] / weight_[l] < least) {
        least = rest_[l] / weight_[l];
        narrow = l;
      }
    }
    for (const std::uint32_t i : on_link_[narrow]) {
      const Task& t = *active[i];
      if (fixed_[i] != 0) continue;
      fixed_[i] = 1;
      --open;
      rate_[i] = least / t.path_bytes;
      for (const Use& u : *use_[i]) {
        rest_[u.link] = std::max(0.0, rest_[u.link] - least * weight(t, u));
        weight_[u.link] -= weight(t, u);
      }
    }
  }
}

/// SimGrid 3.32's "fair bottleneck": each round every open task takes its equal part of its
/// narrowest link; a task on a link that is full takes no more. As there, what a closed task took
/// last is set aside again in each further round: a little of a link may stay unused, and the times
/// are those of the model `coflow`.
void TransferQueue::fair_tasks(const std::vector<Task*>& active) {
  const std::size_t n = active.size();
  step_.assign(n, 0);
  std::size_t open = n;
  for (int round = 0; open > 0 && round < 10'000; ++round) {
    for (std::size_t i = 0; i < n; ++i) {
      if (fixed_[i] != 0) continue;
      step_[i] = std::numeric_limits<double>::infinity();
      for (const Use& u : *use_[i]) {
        step_[i] = std::min(step_[i], rest_[u.link] / weight_[u.link] / u.bytes);
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (fixed_[i] == 0) rate_[i] += step_[i];
      for (const Use& u : *use_[i]) rest_[u.link] -= u.bytes * step_[i];
    }
    const std::size_t before = open;
    for (std::size_t i = 0; i < n; ++i) {
      if (fixed_[i] == 0 && std::any_of(use_[i]->begin(), use_[i]->end(), [&](const Use& u) {
            return rest_[u.link] <= 1e-13 * bandwidth_[u.link];
          })) {
        fixed_[i] = 2;
        --open;
      }
    }
    if (open == before) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (fixed_[i] != 2) continue;
      fixed_[i] = 1;
      for (const Use& u : *use_[i]) weight_[u.link] -= 1;
    }
  }
}

std::int64_t TransferQueue::Running::end_of(std::uint32_t gpu) const {
  if (gpu == kAll) return end_ps;
  std::int64_t end = 0;
  for (const Task& t : phases.back()) {
    if (t.src != gpu && t.dst != gpu) continue;
    if (t.end_ps < 0) return -1;
    end = std::max(end, t.end_ps);
  }
  return end;
}

std::int64_t TransferQueue::Ended::end_of(std::uint32_t gpu) const {
  if (gpu == kAll) return end_ps;
  const auto own =
      std::find_if(gpus.begin(), gpus.end(), [gpu](const auto& x) { return x.first == gpu; });
  return own == gpus.end() ? 0 : own->second;
}

/// The first phase of an exchange, or one of its pairs, begins.
void TransferQueue::start(Running& x, std::size_t gate, std::int64_t begin_ps) {
  x.begin_ps = std::max(x.begin_ps, begin_ps);
  for (std::size_t i = 0; i < x.phases.front().size(); ++i) {
    if (x.gates.size() > 1 && i != gate) continue;
    Task& task = x.phases.front()[i];
    task.begin_ps = begin_ps;
    task.move_ps = begin_ps + task.latency_ps;
    if (task.use->empty()) task.end_ps = begin_ps;
  }
}

/// An exchange, its pairs of a GPU or a copy has ended: what waits for it alone begins.
void TransferQueue::release(State& s, Id id, bool copy, std::uint32_t gpu, std::int64_t end_ps) {
  for (Running& y : s.exchanges) {
    for (std::size_t i = 0; i < y.gates.size(); ++i) {
      Running::Gate& gate = y.gates[i];
      const auto ended = std::erase_if(gate.after, [&](const Running::Before& a) {
        if (a.id != id || a.copy != copy || a.gpu != gpu) return false;
        gate.floor_ps = std::max(gate.floor_ps, end_ps + a.gap_ps);
        return true;
      });
      if (ended > 0 && gate.after.empty()) start(y, i, gate.floor_ps);
    }
  }
}

/// Pairs that have ended, to those that wait for one of their GPUs.
void TransferQueue::tell_pairs(State& s) {
  for (Running& x : s.exchanges) {
    if (x.phases.size() > 1) continue;
    for (Task& task : x.phases.front()) {
      if (task.end_ps < 0 || task.told) continue;
      task.told = true;
      for (const std::uint32_t gpu : {task.src, task.dst}) {
        if (const std::int64_t end = x.end_of(gpu); end >= 0) release(s, x.id, false, gpu, end);
      }
    }
  }
}

/// When one that an exchange follows has ended, in this state; −1: it runs; no value: it is
/// forgotten.
std::optional<std::int64_t> TransferQueue::end_in(const State& s, const Exchange::After& a) const {
  const auto found = [](const auto& all, Id id) {
    const auto it = std::lower_bound(all.begin(), all.end(), id,
                                     [](const auto& r, Id value) { return r.id < value; });
    return it != all.end() && it->id == id ? &*it : nullptr;
  };
  if (a.copy) {
    if (const Copy* c = found(s.copies, a.id)) return c->task.end_ps;
    const auto it = ended_copies_.find(a.id);
    return it == ended_copies_.end() ? std::nullopt : std::optional(it->second);
  }
  if (const Running* r = found(s.exchanges, a.id)) return r->end_of(a.gpu);
  // Of those that have ended in the cursor only, the end there.
  for (const auto* const ended : {&s.ended, &ended_}) {
    const auto it = ended->find(a.id);
    if (it != ended->end()) return it->second.end_of(a.gpu);
  }
  return std::nullopt;
}

/// What has ended among those that it follows has an end that does not change. It may be another
/// than the caller knew when it was timed.
void TransferQueue::append(State& s, Running x, const Exchange& e) const {
  const auto wait = [&](Running::Gate& gate, const std::vector<Exchange::After>& after,
                        std::int64_t floor_ps) {
    gate.floor_ps = std::max(gate.floor_ps, floor_ps);
    for (const Exchange::After& a : after) {
      const std::optional<std::int64_t> end = end_in(s, a);
      if (end == -1) {
        gate.after.push_back({a.id, a.gap_ps, a.copy, a.gpu});
      } else {
        gate.floor_ps = std::max(gate.floor_ps, end ? *end + a.gap_ps : a.ready_ps);
      }
    }
  };
  if (!e.clocks.empty()) {
    x.gates.resize(x.phases.front().size());
    for (std::size_t i = 0; i < x.gates.size(); ++i) {
      for (const std::uint32_t gpu : {x.phases.front()[i].src, x.phases.front()[i].dst}) {
        wait(x.gates[i], e.clocks[gpu].after, e.clocks[gpu].floor_ps);
      }
    }
    x.begin_ps = 0;
  } else if (!e.after.empty()) {
    x.gates.resize(1);
    wait(x.gates[0], e.after, e.floor_ps);
    x.begin_ps = -1;
  }
  for (std::size_t i = 0; i < x.gates.size(); ++i) {
    if (x.gates[i].after.empty()) {
      start(x, i, std::max(x.gates[i].floor_ps, s.now_ps));
      continue;
    }
    for (std::size_t j = 0; j < x.phases.front().size(); ++j) {
      Task& task = x.phases.front()[j];
      if (x.gates.size() == 1 || j == i) task.begin_ps = task.move_ps = -1;
    }
  }
  s.exchanges.push_back(std::move(x));
}

void TransferQueue::simulate(State& s, std::int64_t until_ps, const Id* last_of) {
  // Offsets in seconds from the state's time: SimTime's picoseconds stay exact for an hour.
  const std::int64_t zero = s.now_ps;
  const auto offset = [&](std::int64_t ps) { return static_cast<double>(ps - zero) * 1e-12; };
  const auto absolute = [&](double off) {
    return zero + static_cast<std::int64_t>(std::llround(off * 1e12));
  };
  double t = 0;
  std::vector<Task*> active;
  std::vector<Copy*> heads(s.lane_free.size());
  std::size_t over = 0;  // Copies before this one have ended.
  for (;;) {
    // The head of each lane, and when its bytes move.
    std::fill(heads.begin(), heads.end(), nullptr);
    while (over < s.copies.size() && s.copies[over].task.end_ps >= 0) ++over;
    for (std::size_t i = over; i < s.copies.size(); ++i) {
      Copy& c = s.copies[i];
      if (c.task.end_ps >= 0 || heads[c.lane] != nullptr) continue;
      heads[c.lane] = &c;
      if (c.task.begin_ps < 0) {
        c.task.begin_ps = std::max(c.ready_ps, s.lane_free[c.lane]);
        c.task.move_ps = c.task.begin_ps + c.task.latency_ps;
      }
    }
    active.clear();
    double next = until_ps == kForever ? std::numeric_limits<double>::infinity() : offset(until_ps);
    const auto look = [&](Task& task) {
      if (task.end_ps >= 0 || task.begin_ps < 0) return;
      const double move = offset(task.move_ps);
      if (move <= t) {
        active.push_back(&task);
      } else {
        next = std::min(next, move);
      }
    };
    for (Copy* c : heads) {
      if (c != nullptr) look(c->task);
    }
    const std::size_t copies = active.size();
    for (Running& x : s.exchanges) {
      if (x.phase == x.phases.size() || x.begin_ps < 0) continue;
      for (Task& task : x.phases[x.phase]) look(task);
    }
    if (sharing_ == Sharing::kRefused && active.size() > 1) {
      // Only a meeting on a link is refused.
      for (std::size_t i = 0; i < copies; ++i) {
        for (std::size_t j = i + 1; j < active.size(); ++j) {
          for (const Use& u : *active[i]->use) {
            for (const Use& v : *active[j]->use) {
              if (u.link != v.link) continue;
              throw InputError(
                  "network.model",
                  fmt::format("copies to a GPU use link {} at the same time as {}; the closed form "
                              "holds only for traffic alone on its links",
                              routes_.link_name[u.link], j < copies ? "others" : "an exchange"),
                  "use model = \"auto\", \"coflow\" or \"flow\"");
            }
          }
        }
      }
    }
    if (active.empty() && !std::isfinite(next)) break;
    rates(active);
    double done = next;
    for (std::size_t i = 0; i < active.size(); ++i) {
      done = std::min(done, t + active[i]->left / rate_[i]);
    }
    const double dt = done - t;
    for (std::size_t i = 0; i < active.size(); ++i) {
      const double left = active[i]->left - rate_[i] * dt;
      // What is left of a task that ends now is rounding.
      if (t + active[i]->left / rate_[i] <= done) {
        active[i]->left = 0;
        active[i]->end_ps = absolute(done);
      } else {
        active[i]->left = std::max(left, 0.0);
      }
    }
    t = done;
    for (Copy* c : heads) {
      if (c == nullptr || c->task.end_ps < 0) continue;
      s.lane_free[c->lane] = c->task.end_ps;
      release(s, c->id, true, kAll, c->task.end_ps);
    }
    if (keeps_ && sharing_ == Sharing::kPairs) tell_pairs(s);
    bool open = false;  // One of those that are waited for runs.
    for (Running& x : s.exchanges) {
      while (x.phase < x.phases.size() && x.begin_ps >= 0 &&
             std::all_of(x.phases[x.phase].begin(), x.phases[x.phase].end(),
                         [](const Task& task) { return task.end_ps >= 0; })) {
        std::int64_t end = x.begin_ps;
        for (const Task& task : x.phases[x.phase]) end = std::max(end, task.end_ps);
        if (++x.phase == x.phases.size()) {
          x.end_ps = end;
          release(s, x.id, false, kAll, end);
          break;
        }
        for (Task& task : x.phases[x.phase]) {
          task.begin_ps = end;
          task.move_ps = end + task.latency_ps;
          if (task.use->empty()) task.end_ps = end;
        }
      }
    }
    for (const Running& x : s.exchanges) {
      open = open || (last_of != nullptr && x.id >= *last_of && x.end_ps < 0);
    }
    if (last_of != nullptr && !open) break;
    if (until_ps != kForever && t >= offset(until_ps)) break;
  }
  if (until_ps != kForever) s.now_ps = until_ps;
}

TransferQueue::Running TransferQueue::running_of(const Exchange& e) {
  Running r;
  r.begin_ps = e.begin_ps;
  for (std::size_t p = 0; p < e.phases.size(); ++p) {
    std::vector<Task> tasks;
    const bool continues = p > 0 || e.continues;
    if (sharing_ == Sharing::kPairs) {
      for (const network::Transfer& one : e.phases[p]) {
        const std::int64_t begin = p > 0 ? -1
                                   : e.phases.size() > 1
                                       ? e.begin_ps
                                       : std::max(e.ready_ps[one.src], e.ready_ps[one.dst]);
        tasks.push_back(task_of({&one, 1}, begin, continues));
        tasks.back().src = one.src;
        tasks.back().dst = one.dst;
      }
    } else {
      tasks.push_back(task_of(e.phases[p], p > 0 ? -1 : e.begin_ps, continues));
    }
    bound(tasks);
    r.phases.push_back(std::move(tasks));
  }
  return r;
}

TransferQueue::Ended TransferQueue::ended_of(const Running& x) const {
  Ended e{x.begin_ps, x.end_ps, {}, floor_of(x)};
  if (!by_pairs(x.phases.size())) return e;
  std::map<std::uint32_t, std::int64_t> ends;
  for (const Task& t : x.phases.front()) {
    for (const std::uint32_t gpu : {t.src, t.dst}) ends[gpu] = std::max(ends[gpu], t.end_ps);
  }
  e.gpus.assign(ends.begin(), ends.end());
  return e;
}

std::optional<std::int64_t> TransferQueue::floor_of(const Running& x) const {
  if (x.best == nullptr) return std::nullopt;
  double seconds = 0;
  for (const std::vector<Task>& tasks : x.phases) {
    std::map<std::uint32_t, double> bytes;
    for (const Task& t : tasks) {
      for (const Use& u : *t.use) bytes[u.link] += u.bytes;
    }
    double longest = 0;
    for (const auto& [link, b] : bytes) longest = std::max(longest, b / (*x.best)[link]);
    seconds += longest;
  }
  // Pairs that begin before the last one have had that time, too.
  std::int64_t early = 0;
  for (const Task& t : x.phases.front()) early = std::max(early, x.begin_ps - t.begin_ps);
  // Rounded down as network::ExchangeResult's.
  const auto floor = static_cast<std::int64_t>(std::floor(seconds * 1e12 * (1 - 1e-9)));
  return std::max<std::int64_t>(0, floor - early);
}

TransferQueue::Timed TransferQueue::result_of(const Running& r, const Exchange& e, bool met) const {
  Timed out;
  out.met = met;
  out.id = r.id;
  for (const Task& t : r.phases.back()) out.end_ps = std::max(out.end_ps, t.end_ps);
  if (sharing_ == Sharing::kPairs) {
    for (const Task& t : r.phases.back()) out.transfer_end_ps.push_back(t.end_ps);
  } else {
    out.transfer_end_ps.assign(e.phases.back().size(), out.end_ps);
  }
  return out;
}

std::vector<TransferQueue::Timed> TransferQueue::run(std::span<const Exchange> exchanges) {
  if (keeps_) return run_kept(exchanges);
  std::vector<Timed> out(exchanges.size());
  // An exchange that shares no link with a copy is not ours to time.
  std::vector<std::uint8_t> used(routes_.links(), 0);
  for (const Copy& c : state_.copies) {
    if (c.task.end_ps >= 0) continue;
    for (const Use& u : *c.task.use) used[u.link] = 1;
  }
  std::vector<std::size_t> which(exchanges.size(), SIZE_MAX);
  const std::size_t before = state_.exchanges.size();
  for (std::size_t x = 0; x < exchanges.size(); ++x) {
    Running r = running_of(exchanges[x]);
    bool shares = false;
    for (const std::vector<Task>& tasks : r.phases) {
      for (const Task& t : tasks) {
        shares = shares || std::any_of(t.use->begin(), t.use->end(),
                                       [&](const Use& u) { return used[u.link] != 0; });
      }
    }
    if (!shares) continue;
    which[x] = state_.exchanges.size();
    r.id = next_exchange_++;
    state_.exchanges.push_back(std::move(r));
  }
  if (state_.exchanges.size() == before) return out;
  stale_ = true;
  settle();
  for (std::size_t x = 0; x < exchanges.size(); ++x) {
    if (which[x] != SIZE_MAX) out[x] = result_of(settled_.exchanges[which[x]], exchanges[x], true);
  }
  return out;
}

std::vector<TransferQueue::Timed> TransferQueue::run_kept(std::span<const Exchange> exchanges) {
  std::vector<Timed> out(exchanges.size());
  if (exchanges.empty()) return out;
  std::int64_t begin = kForever;
  for (const Exchange& e : exchanges) {
    begin = std::min(begin, e.begin_ps);
    if (!by_pairs(e.phases.size())) continue;
    for (const network::Transfer& x : e.phases[0]) {
      begin = std::min(begin, std::max(e.ready_ps[x.src], e.ready_ps[x.dst]));
    }
  }
  if (!has_cursor_ || cursor_.now_ps > begin) cursor_ = state_;
  has_cursor_ = true;
  if (begin > cursor_.now_ps) simulate(cursor_, begin);
  std::erase_if(cursor_.exchanges, [this](const Running& x) {
    // The committed state may have it under way for a while yet.
    if (x.end_ps >= 0) cursor_.ended.try_emplace(x.id, ended_of(x));
    return x.end_ps >= 0;
  });
  // Who is on a link, from `begin` on: [links] how many exchanges and copies.
  std::vector<std::uint32_t> users(routes_.links(), 0);
  const auto count = [&](const Running& r, std::uint32_t by) {
    std::vector<std::uint32_t> mine;
    for (const std::vector<Task>& tasks : r.phases) {
      for (const Task& t : tasks) {
        for (const Use& u : *t.use) mine.push_back(u.link);
      }
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    bool shared = false;
    for (const std::uint32_t l : mine) {
      users[l] += by;
      shared = shared || users[l] > 1;
    }
    return shared;
  };
  for (const Copy& c : cursor_.copies) {
    if (c.task.end_ps >= 0) continue;
    for (const Use& u : *c.task.use) ++users[u.link];
  }
  for (const Running& r : cursor_.exchanges) count(r, 1);
  const Id first = next_exchange_;
  for (const Exchange& e : exchanges) {
    Running r = running_of(e);
    r.id = next_exchange_++;
    count(r, 1);
    append(state_, r, e);
    append(cursor_, std::move(r), e);
  }
  stale_ = true;
  State done = cursor_;
  simulate(done, kForever, &first);
  for (const Running& r : done.exchanges) {
    if (r.id < first) continue;
    const std::size_t x = r.id - first;
    out[x] = result_of(r, exchanges[x], count(r, 0));
  }
  return out;
}

std::int64_t TransferQueue::exchange_end(Id id, std::uint32_t gpu) {
  if (const auto it = ended_.find(id); it != ended_.end()) {
    return it->second.end_of(gpu);
  }
  return settled_exchange(id).end_of(gpu);
}

std::int64_t TransferQueue::exchange_begin(Id id) {
  const auto it = ended_.find(id);
  return it != ended_.end() ? it->second.begin_ps : settled_exchange(id).begin_ps;
}

std::optional<std::int64_t> TransferQueue::exchange_floor(Id id) {
  const auto it = ended_.find(id);
  return it != ended_.end() ? it->second.floor_ps : floor_of(settled_exchange(id));
}

const TransferQueue::Running& TransferQueue::settled_exchange(Id id) {
  settle();
  const auto it = std::lower_bound(settled_.exchanges.begin(), settled_.exchanges.end(), id,
                                   [](const Running& r, Id value) { return r.id < value; });
  SWITCHYARD_ASSERT(it != settled_.exchanges.end() && it->id == id,
                    fmt::format("exchange {} is forgotten", id));
  return *it;
}

bool TransferQueue::hold_end(Id id) {
  const auto it = std::lower_bound(state_.copies.begin(), state_.copies.end(), id,
                                   [](const Copy& c, Id value) { return c.id < value; });
  if (it == state_.copies.end() || it->id != id || it->task.end_ps >= 0) return false;
  it->keep_end = true;
  return true;
}

void TransferQueue::forget_copy(Id id) {
  if (ended_copies_.erase(id) > 0) return;
  // Not counted yet: it leaves with the next count.
  const auto it = std::lower_bound(state_.copies.begin(), state_.copies.end(), id,
                                   [](const Copy& c, Id value) { return c.id < value; });
  if (it != state_.copies.end() && it->id == id) it->keep_end = false;
}

void TransferQueue::forget_exchanges(Id id) {
  ended_.erase(ended_.begin(), ended_.lower_bound(id));
  cursor_.ended.erase(cursor_.ended.begin(), cursor_.ended.lower_bound(id));
}

void TransferQueue::advance(std::int64_t now_ps) {
  if (now_ps <= state_.now_ps) return;
  simulate(state_, now_ps);
  std::erase_if(state_.exchanges, [&](const Running& x) {
    if (!keeps_ || x.end_ps < 0) return x.end_ps >= 0;
    ended_.insert_or_assign(x.id, ended_of(x));
    return true;
  });
}

void TransferQueue::count_bytes(std::int64_t now_ps, std::span<std::uint64_t> link_bytes) {
  advance(now_ps);
  for (Copy& c : state_.copies) {
    const auto moved = static_cast<std::uint64_t>(
        std::llround((1.0 - c.task.left) * static_cast<double>(c.bytes)));
    for (const Use& u : *c.task.use) {
      // A staged path may hold a link twice.
      link_bytes[u.link] +=
          (moved - c.counted) *
          static_cast<std::uint64_t>(std::llround(u.bytes / static_cast<double>(c.bytes)));
    }
    c.counted = moved;
  }
  has_cursor_ = false;
  const std::size_t before = state_.copies.size();
  std::erase_if(state_.copies, [&](const Copy& c) {
    if (c.keep_end && c.task.end_ps >= 0) ended_copies_.emplace(c.id, c.task.end_ps);
    return c.task.end_ps >= 0;
  });
  stale_ = stale_ || state_.copies.size() != before;
}

}  // namespace switchyard::sim
