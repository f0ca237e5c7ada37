// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/serving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/error.hpp"
#include "sim/run/metrics.hpp"
#include "sim/serving/arrivals.hpp"
#include "sim/serving/kv_links.hpp"
#include "sim/serving/prefix_cache.hpp"

namespace switchyard::sim {
namespace {

using Wide = __int128;
using scenario::Balance;

constexpr std::uint32_t kNoRank = UINT32_MAX;
constexpr std::uint64_t kMostPreemptionEvents = 1000;
constexpr std::int64_t kAfterRejectionPs = 1'000'000'000;  // 1 ms

enum class State : std::uint8_t { kFront, kWaiting, kRunning, kHandover, kTravelling, kLeft };

struct Request {
  std::int64_t arrival = 0, scheduled = -1, first = -1, last = -1, left = -1;
  std::uint32_t prompt = 0, output = 0, tier = 0, user = 0, turn = 0;
  std::uint32_t generated = 0;  // tokens sampled
  std::uint32_t computed = 0;   // tokens whose keys and values are in the cache
  std::uint32_t in_step = 0;    // further ones that the step under way computes
  std::uint64_t held = 0;       // tokens whose pages are allocated at `rank`
  std::uint64_t shared = 0;     // of those: the first ones, whose pages the rank's cache has
  std::uint32_t block = PrefixCache::kRoot;  // the last one of them there
  std::uint32_t cached = 0;                  // of `computed`: found in a cache
  std::uint32_t found = 0;                   // such tokens in its whole life
  std::vector<std::uint64_t> pages;  // bytes on each GPU of the pool; empty without a kv_round
  std::uint32_t rank = kNoRank;
  std::uint32_t epoch = 0;  // changes when its replica loses it
  std::uint32_t preemptions = 0;
  State state = State::kFront;
  bool swapped = false;
  /// While swapped: memory beside the GPUs (index into park_left_) and bytes of its pages there.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> parked;
  bool waits = false;  // its token has not passed all layers (queue = defer); in_step counts it
  run::RequestOutcome outcome = run::RequestOutcome::kRunning;
  double itl_sum = 0, itl_square = 0;  // ps
  [[nodiscard]] std::uint32_t known() const { return prompt + generated; }
};

/// Order of admission; the last one is preempted first.
struct Key {
  std::uint32_t behind = 0;  // highest priority less its own
  std::int64_t arrival = 0;
  std::uint32_t id = 0;
  auto operator<=>(const Key&) const = default;
};

/// Of a request whose pages travel away.
struct Leaving {
  std::uint32_t id = 0;
  std::uint32_t epoch = 0;                   // when they left
  std::uint64_t tokens = 0;                  // on its own pages here
  std::vector<std::uint64_t> pages;          // bytes on each GPU of the pool, with a kv_round
  std::uint32_t block = PrefixCache::kRoot;  // its last one in the cache
};

struct Rank {
  std::uint32_t engine = 0, home = 0;
  std::uint32_t pool = 0, pool_end = 0;  // ranks that keep pages on the same GPUs
  std::set<Key> waiting, running;
  std::set<std::uint32_t> resident;          // requests with pages here
  std::map<std::uint32_t, Leaving> leaving;  // by number of the travel: pages that go away
  PrefixCache cache;                         // with batching.prefix_caching
  // Requests whose pages travel here. They count: a whole batch is handed over before any arrives.
  std::uint32_t travelling = 0;
  bool held_back = false;  // by the watermark, when it last planned
  bool gone = false;       // its GPU is lost
  [[nodiscard]] std::size_t queue() const { return waiting.size() + running.size() + travelling; }
};

struct Flight {
  std::uint32_t id = 0, tokens = 0, epoch = 0;
  bool samples = false;
  bool deferred = false;  // goes on in a later step
};

struct Engine {
  bool prefill = false;  // hands finished prompts over
  std::uint32_t first_gpu = 0, last_gpu = 0, width = 1, first_rank = 0, last_rank = 0;
  bool busy = false, down = false, open = false, checked = false;
  bool may_work = false;
  bool sheds = false;         // an alarm has new requests rejected
  std::uint32_t outages = 0;  // under way
  std::uint32_t failures = 0;
  std::vector<KvSwap> swaps;  // before the next step, over the links
  std::vector<Flight> flight;
  std::uint32_t step = 0;  // that `flight` is of
  bool warmup = false;
  std::int64_t end = 0;       // of that step, as far as is known
  std::uint32_t version = 0;  // of its event
};

/// Pages on their way.
struct Travel {
  std::uint32_t id = 0, epoch = 0, from = 0;
  std::int64_t begin = 0, end = 0;
  std::uint32_t version = 0;
  std::vector<std::uint64_t> copies;
};

enum class EventKind : std::uint8_t {
  kStepEnd,
  kTransferEnd,
  kOutageEnd,
  kOutageStart,
  kHealth,
  kArrival
};

struct Event {
  std::int64_t time = 0;
  EventKind kind = EventKind::kArrival;
  std::uint64_t order = 0;
  std::uint32_t a = 0, b = 0, c = 0;  // engine, version | travel, version | user, turn
};
struct Later {
  bool operator()(const Event& x, const Event& y) const {
    return std::tie(x.time, x.kind, x.order) > std::tie(y.time, y.kind, y.order);
  }
};

struct Bucket {
  double tokens = 0;
  std::int64_t at = 0;
};

class ServingBatch final : public BatchSource {
 public:
  ServingBatch(const scenario::Scenario& scenario, ServingMachine machine)
      : s_(scenario),
        w_(scenario.workload.serving),
        machine_(std::move(machine)),
        arrivals_(scenario),
        closed_(scenario.workload.kind == scenario::WorkloadKind::kClosed) {
    make_ranks();
    make_parks();
    for (const scenario::Tier& t : w_.tiers) {
      highest_ = std::max(highest_, t.priority);
      buckets_.push_back({static_cast<double>(t.burst), 0});
    }
    for (std::uint32_t i = 0; i < w_.front_end.outages.size(); ++i) {
      const scenario::Outage& o = w_.front_end.outages[i];
      push({o.from.ps(), EventKind::kOutageStart, 0, o.replica, 0, 0});
      push({o.until.ps(), EventKind::kOutageEnd, 0, o.replica, 0, 0});
    }
    for (std::uint32_t e = 0; machine_.ready_ps > 0 && e < engines_.size(); ++e) {
      engines_[e].busy = true;
      push({machine_.ready_ps, EventKind::kStepEnd, 0, e, 0, 0});
    }
    if (closed_) {
      for (std::uint32_t u = 0; u < w_.arrivals.users; ++u) {
        push({arrivals_.think_ps(u, 0), EventKind::kArrival, 0, u, 0, 0});
      }
    } else {
      expect_arrival();
    }
  }

  bool await(std::uint64_t step, StepPlan& plan) override {
    if (w_.max_steps != 0 && step == w_.max_steps) return false;
    for (;;) {
      while (!events_.empty() && events_.top().time <= now_) {
        const Event e = events_.top();
        events_.pop();
        handle(e);
      }
      if (handover_due_) hand_over();
      for (std::uint32_t e = 0; e < engines_.size(); ++e) {
        Engine& engine = engines_[e];
        if (engine.busy || engine.down || !engine.may_work) continue;
        if (has_work(e)) {
          plan.engine = e;
          plan.first_gpu = engine.first_gpu;
          plan.last_gpu = engine.last_gpu;
          plan.earliest_ps = now_;
          return true;
        }
        engine.may_work = false;
      }
      if (events_.empty()) {
        stuck_ = in_system_ > 0;
        return false;
      }
      area_ += static_cast<Wide>(in_system_) * (events_.top().time - now_);
      now_ = events_.top().time;
    }
  }

  bool plan(std::uint64_t step, StepPlan& plan) override {
    const std::uint32_t e = plan.engine;
    if (engines_[e].down) return false;  // A fault has taken it.
    if (plan_step(e, step, plan)) return true;
    engines_[e].may_work = false;
    return false;
  }

  std::vector<MovedSequence> evacuate(std::uint32_t gpu, std::span<const std::uint32_t> to,
                                      bool keep_kv) override {
    const std::uint32_t at = rank_of(gpu);
    if (at == kNoRank) return {};
    // All that leave with this one, so that nothing moves to them.
    for (Rank& k : ranks_) k.gone = k.gone || std::find(to.begin(), to.end(), k.home) == to.end();
    ranks_[at].gone = true;
    if (!keep_kv) {
      std::erase_if(kv_, [&](const KvChange& c) { return c.gpu == gpu; });  // Freed already.
    }
    std::vector<MovedSequence> moved;
    for (const std::uint32_t id : requests_of(at)) {
      moved.push_back(move_away(id, choose(false, {}), keep_kv, keep_kv));
    }
    while (keep_kv && ranks_[at].cache.idle() > 0) drop_block(ranks_[at]);
    if (!keep_kv) lose_cache(ranks_[at]);
    return moved;
  }

  void lose_kv(std::uint32_t gpu) override {
    const std::uint32_t at = rank_of(gpu);
    if (at == kNoRank) return;
    std::erase_if(kv_, [&](const KvChange& c) { return c.gpu == gpu; });  // Freed already.
    // Of several replicas the front end does not know: its requests stay until a check fails.
    const bool fail = engines_.size() == 1 && w_.front_end.on_failure == scenario::OnFailure::kFail;
    for (const std::uint32_t id : requests_of(at)) {
      Request& r = requests_[id];
      if (r.held == 0) continue;
      forget_pages(id);
      ranks_[at].running.erase(key(id));
      ranks_[at].waiting.erase(key(id));
      if (r.state == State::kHandover) {
        handovers_.erase(std::find(handovers_.begin(), handovers_.end(), id));
      }
      if (r.state == State::kTravelling) --ranks_[at].travelling;
      if (fail) {
        r.rank = kNoRank;
        leave(id, run::RequestOutcome::kFailed);
      } else {
        enqueue(id, at);
      }
    }
    // Pages on their way from here never arrive: where they go they are computed again.
    const std::map<std::uint32_t, Leaving> leaving = std::move(ranks_[at].leaving);
    ranks_[at].leaving.clear();
    for (const auto& [number, left] : leaving) {
      const std::uint32_t id = left.id;
      used_[gpu] -= bytes(ranks_[at], left.tokens);
      const Request& r = requests_[id];
      // It may have been lost, or have left, since, and travel again from elsewhere.
      if (r.epoch != left.epoch) continue;
      const std::uint32_t to = r.rank;
      drop_pages(id);
      ++lost_pages_;
      --ranks_[to].travelling;
      enqueue(id, to);
    }
    lose_cache(ranks_[at]);
  }

  void lose_pages(
      const std::function<bool(std::uint32_t, std::uint32_t, std::uint64_t)>& lost) override {
    const bool fail = engines_.size() == 1 && w_.front_end.on_failure == scenario::OnFailure::kFail;
    std::vector<std::uint32_t> ids;
    for (const std::uint32_t id : requests_live_) {
      const Request& r = requests_[id];
      if (r.rank != kNoRank && r.held > 0 && lost(id, ranks_[r.rank].home, r.held)) {
        ids.push_back(id);
      }
    }
    std::sort(ids.begin(), ids.end());
    for (const std::uint32_t id : ids) {
      Request& r = requests_[id];
      const std::uint32_t at = r.rank;
      ranks_[at].running.erase(key(id));
      ranks_[at].waiting.erase(key(id));
      drop_pages(id);
      ++lost_pages_;
      if (fail) {
        r.rank = kNoRank;
        leave(id, run::RequestOutcome::kFailed);
      } else {
        enqueue(id, at);
      }
    }
  }

  std::vector<MovedSequence> come_home(std::uint32_t gpu) override {
    const std::uint32_t at = rank_of(gpu);
    if (at != kNoRank) ranks_[at].gone = false;
    return {};  // New requests go there.
  }

  std::vector<MovedSequence> move_one(std::uint32_t from, std::uint32_t to) override {
    const std::uint32_t at = rank_of(from), other = rank_of(to);
    if (at == kNoRank || other == kNoRank || ranks_[other].gone) return {};
    std::uint32_t longest = UINT32_MAX;
    for (const std::uint32_t id : requests_of(at)) {
      const Request& r = requests_[id];
      // Pages that wait for hand-over or travel have a way of their own.
      if (r.state != State::kWaiting && r.state != State::kRunning) continue;
      if (r.held == 0 || !has_room(ranks_[other], r)) continue;
      if (longest == UINT32_MAX || r.held > requests_[longest].held) longest = id;
    }
    if (longest == UINT32_MAX) return {};
    return {move_away(longest, other, true, true)};
  }

  void set_kv_rooms(const std::vector<std::uint64_t>& rooms) override {
    least_capacity_.fill(UINT64_MAX);
    for (const Rank& k : ranks_) {
      if (k.gone) continue;
      set_room(k, rooms);
      std::uint64_t& least = least_capacity_[kind_of(k)];
      least = std::min(least, least_room(k));
    }
    for (std::uint32_t at = 0; at < ranks_.size(); ++at) {
      Rank& k = ranks_[at];
      if (k.gone) continue;
      for (const std::uint32_t id : requests_of(at)) {
        const Request& r = requests_[id];
        if (bytes(k, std::uint64_t{r.prompt} + r.output - 1) <= least_room(k)) continue;
        k.running.erase(key(id));
        k.waiting.erase(key(id));
        drop_pages(id);
        requests_[id].rank = kNoRank;
        ++no_room_;
        leave(id, run::RequestOutcome::kFailed);
      }
      // Those that came last make room for the others.
      const std::uint64_t before = evicted_;
      while (overdrawn(k)) {
        if (k.cache.idle() > 0) {
          evict(k);
        } else if (!k.running.empty()) {
          preempt(k, k.running.rbegin()->id);
        } else {
          break;
        }
      }
      note_evictions(k, before);
    }
  }

  void outage(std::uint32_t e, std::int64_t until) override {
    handle({now_, EventKind::kOutageStart, 0, e, 0, 0});
    push({until, EventKind::kOutageEnd, 0, e, 0, 0});
  }

  std::uint64_t shed(std::uint32_t e, bool on, std::uint64_t drop) override {
    handover_due_ = handover_due_ || (engines_[e].sheds && !on);
    engines_[e].sheds = on;
    std::uint64_t dropped = 0;
    while (on && dropped < drop) {
      // The newest that waits anywhere in the replica and has not begun.
      std::uint32_t newest = UINT32_MAX;
      for (std::uint32_t i = engines_[e].first_rank; i < engines_[e].last_rank; ++i) {
        for (const Key& w : ranks_[i].waiting) {
          const Request& r = requests_[w.id];
          if (r.scheduled < 0 && (newest == UINT32_MAX || w.id > newest)) newest = w.id;
        }
      }
      if (newest == UINT32_MAX) break;
      ranks_[requests_[newest].rank].waiting.erase(key(newest));
      requests_[newest].rank = kNoRank;
      leave(newest, run::RequestOutcome::kRejected);
      ++turned_away_;
      ++dropped;
    }
    return dropped;
  }

  void done(std::uint64_t step, const StepPlan& plan, std::int64_t start, std::int64_t end,
            run::RunData& data) override {
    Engine& engine = engines_[plan.engine];
    engine.end = end;
    push({end, EventKind::kStepEnd, 0, plan.engine, ++engine.version, 0});
    for (const PlannedSequence& q : plan.sequences) {
      if (q.deferred) {
        for (Flight& f : engine.flight) f.deferred = f.deferred || f.id == q.id;
      } else {
        processed_ += q.fresh;
      }
      if (requests_[q.id].scheduled < 0) requests_[q.id].scheduled = start;
    }
    if (plan.warmup) warm_end_ = std::max(warm_end_, end);
    if (!plan.warmup) {
      begin_ = begin_ < 0 ? start : std::min(begin_, start);
      busy_ps_ += end - start;
    }
    for (run::Event& e : notes_) {
      e.step = static_cast<std::uint32_t>(step);
      data.events.push_back(std::move(e));
    }
    notes_.clear();
    engine.step = static_cast<std::uint32_t>(step);
    engine.warmup = plan.warmup;
    give_tokens(data);
    refresh();  // Its exchanges slow down what was under way.
  }

  void holders(std::uint32_t gpu, std::vector<std::uint64_t>& tokens) const override {
    tokens.clear();
    for (const Rank& k : ranks_) {
      if (k.home != gpu) continue;
      for (const std::uint32_t id : k.resident) {
        const Request& r = requests_[id];
        tokens.push_back(std::uint64_t{r.computed} + r.in_step - r.shared);
      }
      for (const auto& [number, left] : k.leaving) tokens.push_back(left.tokens);
      if (k.cache.blocks() > 0) tokens.push_back(k.cache.blocks() * hash_block());
    }
  }

  [[nodiscard]] std::uint64_t steps() const override {
    // The share of requests that have left, or of the time that arrivals last, as if the steps
    // went the same way.
    const std::uint64_t expected =
        w_.arrivals.trace
            ? std::min<std::uint64_t>(arrivals_.limit(), w_.arrivals.trace->requests.size())
            : arrivals_.limit();
    double share = static_cast<double>(left_) / static_cast<double>(expected);
    if (w_.arrivals.duration) {
      share = std::max(share, static_cast<double>(now_) * 1e-12 / w_.arrivals.duration->seconds());
    }
    const double estimate = static_cast<double>(steps_planned_) / std::clamp(share, 1e-6, 1.0);
    const auto bounded = static_cast<std::uint64_t>(std::min(estimate, 1e15));
    return std::max<std::uint64_t>(1,
                                   w_.max_steps == 0 ? bounded : std::min(bounded, w_.max_steps));
  }

  void finish(std::int64_t, run::RunData& data, std::vector<std::string>& notes,
              std::vector<std::string>& violations) override;

 private:
  /// No event is left although requests are: who waits for what, since when. Empty otherwise.
  [[nodiscard]] std::string deadlock() const {
    if (!stuck_) return {};
    std::string text = fmt::format("deadlock: no event is left and {} request{} cannot go on",
                                   in_system_, in_system_ == 1 ? "" : "s");
    constexpr std::size_t kNamed = 8;
    std::size_t named = 0;
    for (std::uint32_t id = 0; id < requests_.size(); ++id) {
      const Request& r = requests_[id];
      if (r.state == State::kLeft) continue;
      if (named++ == kNamed) {
        text += "; …";
        break;
      }
      const std::string since = format_time(SimTime::from_ps(std::max(r.arrival, r.last)));
      text += fmt::format("; request {} waits ", id);
      if (r.rank == kNoRank || r.state == State::kFront) {
        text += "at the front end for a replica that answers";
      } else {
        const Rank& k = ranks_[r.rank];
        // The smallest part of it that a step could take.
        const std::uint64_t next =
            std::uint64_t{r.computed} +
            std::min<std::uint64_t>(r.known() - r.computed, w_.batching.token_budget);
        std::uint32_t full = gpu_of(k, 0);  // The GPU with the least room.
        const auto left = [&](std::uint32_t g) {
          return room_[g] - std::min(room_[g], needed(k, g));
        };
        for (std::uint32_t i = 1; i < span(); ++i) {
          if (left(gpu_of(k, i)) < left(full)) full = gpu_of(k, i);
        }
        text += fmt::format("on GPU {} for pages of {} tokens ({} B, {} of {} B free)", full, next,
                            bytes(k, next), left(full), room_[full]);
      }
      text += " since " + since;
    }
    return text;
  }

  // ---- the machine ----

  void make_ranks() {
    const scenario::FrontEnd& f = w_.front_end;
    const bool hub = s_.parallel.attention == scenario::AttentionPlacement::kHub;
    if (machine_.replicas.empty()) {
      const std::uint32_t each = machine_.gpus / f.replicas;
      for (std::uint32_t e = 0; e < f.replicas; ++e) {
        machine_.replicas.push_back({e * each, each, s_.parallel.tp});
      }
    }
    engines_.resize(f.replicas);
    for (auto* v : {&used_, &room_, &swapping_}) v->assign(machine_.gpus, 0);
    least_capacity_.fill(UINT64_MAX);
    for (std::uint32_t e = 0; e < f.replicas; ++e) {
      const ServingMachine::Replica& of = machine_.replicas[e];
      Engine& engine = engines_[e];
      engine.prefill = e < f.prefill_replicas;
      engine.first_gpu = of.first_gpu;
      engine.last_gpu = of.first_gpu + of.gpus;
      engine.width = of.width;
      engine.first_rank = static_cast<std::uint32_t>(ranks_.size());
      for (std::uint32_t g = engine.first_gpu; g < engine.last_gpu; g += engine.width) {
        if (hub && g != s_.parallel.hub) continue;
        Rank k;
        k.engine = e;
        k.home = g;
        set_room(k, machine_.kv_capacity);
        for (std::uint32_t i = gpu_of(k, 0); i <= gpu_of(k, span() - 1); i += width(k)) {
          if (room_[i] >= bytes(k, 1)) continue;
          const bool stated = w_.batching.kv > 0;
          throw InputError(
              stated                         ? "workload.batching.kv"
              : s_.prefill && engine.prefill ? "parallel.prefill.ep"
                                             : "parallel.ep",
              fmt::format("GPU {} has {} B for KV pages, one page takes {} B", i, room_[i],
                          bytes(k, 1)),
              stated ? "state room for at least one page"
                     : "the model fills the memory: use more GPUs, a larger ep or a smaller "
                       "format");
        }
        std::uint64_t& least = least_capacity_[kind_of(k)];
        least = std::min(least, least_room(k));
        ranks_.push_back(std::move(k));
      }
      engine.last_rank = static_cast<std::uint32_t>(ranks_.size());
    }
    for (std::uint32_t at = 0; at < ranks_.size(); ++at) {
      Rank& k = ranks_[at];
      const bool joins = spread() && at > 0 && gpu_of(ranks_[at - 1], 0) == gpu_of(k, 0);
      k.pool = joins ? ranks_[at - 1].pool : at;
      for (std::uint32_t i = k.pool; i <= at; ++i) ranks_[i].pool_end = at + 1;
    }
    for (const Rank& k : ranks_) {
      SWITCHYARD_ASSERT(
          !w_.batching.prefix_caching || bytes(k, 2 * hash_block()) == 2 * bytes(k, hash_block()),
          "the pages of blocks do not add up");
    }
    if (f.prefill_replicas > 0 && !machine_.pages.send) {
      SWITCHYARD_ASSERT(machine_.routes.has_value(), "KV transfers need routes");
      links_.emplace(std::move(*machine_.routes));
    }
  }

  /// Replicas that prefill, or others: their shards may differ.
  [[nodiscard]] std::size_t kind_of(const Rank& k) const {
    return engines_[k.engine].prefill ? 1 : 0;
  }
  [[nodiscard]] std::uint32_t width(const Rank& k) const { return engines_[k.engine].width; }
  /// Bytes of the pages of `tokens` tokens on each GPU of a rank; remembered per page.
  std::uint64_t bytes(const Rank& k, std::uint64_t tokens) const {
    if (tokens == 0) return 0;
    const std::size_t kind = machine_.prefill_kv_bytes ? kind_of(k) : 0;
    std::vector<std::uint64_t>& known = page_bytes_[kind];
    const std::size_t page = (tokens - 1) / s_.memory.kv_block;
    while (known.size() <= page) {
      const std::uint64_t held = (known.size() + 1) * s_.memory.kv_block;
      known.push_back(kind == 1 ? machine_.prefill_kv_bytes(held) : machine_.kv_bytes(held));
    }
    return known[page];
  }

  [[nodiscard]] Key key(std::uint32_t id) const {
    const Request& r = requests_[id];
    return {highest_ - w_.tiers[r.tier].priority, r.arrival, id};
  }

  // Pages of a rank's requests lie on the GPUs gpu_of(rank, i), i < span(): its home, or those of
  // its copy of the experts. The first GPU of a tensor-parallel group stands for all of them.
  [[nodiscard]] bool spread() const { return machine_.kv_round > 0; }
  [[nodiscard]] std::uint32_t span() const { return spread() ? machine_.kv_round : 1; }
  [[nodiscard]] std::uint32_t gpu_of(const Rank& k, std::uint32_t i) const {
    if (!spread()) return k.home;
    const std::uint32_t all = span() * width(k);
    return k.home / all * all + i * width(k);
  }
  void set_room(const Rank& k, const std::vector<std::uint64_t>& rooms) {
    for (std::uint32_t p = 0; p < span(); ++p) {
      const std::uint32_t g = gpu_of(k, p);
      room_[g] = rooms[g];
      for (std::uint32_t i = 1; i < width(k); ++i) room_[g] = std::min(room_[g], rooms[g + i]);
    }
  }
  [[nodiscard]] std::uint64_t least_room(const Rank& k) const {
    std::uint64_t least = UINT64_MAX;
    for (std::uint32_t i = 0; i < span(); ++i) least = std::min(least, room_[gpu_of(k, i)]);
    return least;
  }
  [[nodiscard]] bool overdrawn(const Rank& k) const {
    for (std::uint32_t i = 0; i < span(); ++i) {
      if (used_[gpu_of(k, i)] > room_[gpu_of(k, i)]) return true;
    }
    return false;
  }
  /// Bytes on the i-th GPU of the span: those that it holds (not those it shares), and those of
  /// `tokens` tokens.
  [[nodiscard]] std::uint64_t held_on(const Rank& k, const Request& r, std::uint32_t i) const {
    return !spread() ? bytes(k, r.held - r.shared) : r.pages.empty() ? 0 : r.pages[i];
  }
  [[nodiscard]] std::uint64_t bytes_on(const Rank& k, std::uint32_t id, std::uint32_t i,
                                       std::uint64_t tokens) const {
    if (!spread()) return bytes(k, tokens);
    if (tokens == 0) return 0;
    return machine_.kv_on(id, gpu_of(k, i), k.home, requests_[id].computed, tokens);
  }

  /// Gives request `id` the pages of `tokens` tokens at its rank. `keep`: they come back.
  void hold(std::uint32_t id, std::uint64_t tokens, bool keep = false) {
    Request& r = requests_[id];
    Rank& k = ranks_[r.rank];
    const std::uint64_t own = r.held - r.shared, then = own_of(r, tokens);
    if (!spread()) make_place(k, bytes(k, then) - std::min(bytes(k, then), bytes(k, own)));
    if (spread() ? r.held != tokens : bytes(k, own) != bytes(k, then)) {
      kv_.push_back({k.home, own, then, id, keep});
    }
    reserve(id, tokens);
    if (r.held == 0 && tokens > 0) k.resident.insert(id);
    if (r.held > 0 && tokens == 0) k.resident.erase(id);
    r.held = tokens;
    if (tokens == 0) unshare(k, r);
  }
  /// Of `tokens` tokens those on pages of its own.
  [[nodiscard]] static std::uint64_t own_of(const Request& r, std::uint64_t tokens) {
    return tokens == 0 ? 0 : tokens - r.shared;
  }

  // ---- pages of equal prompts ----

  [[nodiscard]] std::uint64_t hash_block() const { return w_.arrivals.hash_block; }
  [[nodiscard]] std::uint64_t idle_bytes(const Rank& k) const {
    return k.cache.idle() * bytes(k, hash_block());
  }
  /// Bytes of pages that requests use; the others of the cache go when room is needed.
  [[nodiscard]] std::uint64_t needed(const Rank& k, std::uint32_t gpu) const {
    return gpu == k.home ? used_[gpu] - idle_bytes(k) : used_[gpu];
  }
  void drop_block(Rank& k) {
    k.cache.evict();
    used_[k.home] -= bytes(k, hash_block());
    kv_.push_back({k.home, hash_block(), 0, run::kNone, false});
  }
  void evict(Rank& k) {
    drop_block(k);
    ++evicted_;
  }
  /// Pages of the cache that nobody uses make place for `more` bytes, the oldest first.
  void make_place(Rank& k, std::uint64_t more) {
    if (k.cache.idle() == 0 || more == 0) return;
    const std::uint64_t before = evicted_, most = below_mark(k, k.home);
    while (k.cache.idle() > 0 && used_[k.home] + more > most) evict(k);
    note_evictions(k, before);
  }
  /// One event for those since evicted_ was `before`.
  void note_evictions(const Rank& k, std::uint64_t before) {
    if (evicted_ == before || eviction_events_++ >= kMostPreemptionEvents) return;
    note(run::EventKind::kEviction, k.engine,
         fmt::format("prefix cache: {} block{} of {} tokens make place", evicted_ - before,
                     evicted_ - before == 1 ? "" : "s", hash_block()));
    notes_.back().gpu = k.home;
    notes_.back().value = static_cast<double>(evicted_ - before);
  }
  void lose_cache(Rank& k) {
    used_[k.home] -= k.cache.blocks() * bytes(k, hash_block());
    k.cache.clear();
  }
  void unshare(Rank& k, Request& r) {
    k.cache.release(r.block);
    r.block = PrefixCache::kRoot;
    r.shared = 0;
  }
  /// What the rank's cache has of the tokens that request `id` has to compute; one is always left.
  [[nodiscard]] PrefixCache::Hit find_prefix(const Rank& k, std::uint32_t id) const {
    const Request& r = requests_[id];
    if (!w_.batching.prefix_caching || r.computed > 0 || r.held > 0) return {};
    const std::uint64_t most = std::min<std::uint64_t>(r.prompt, r.known() - 1) / hash_block();
    return k.cache.find(w_.arrivals.trace->hashes_of(id), most);
  }
  void take_prefix(Rank& k, std::uint32_t id, const PrefixCache::Hit& hit) {
    if (hit.blocks == 0) return;
    Request& r = requests_[id];
    k.cache.take(hit.last);
    r.block = hit.last;
    r.shared = r.held = hit.blocks * hash_block();
    k.resident.insert(id);
  }
  /// The whole blocks of its prompt that a request has computed are the cache's from now on.
  void share(std::uint32_t id) {
    Request& r = requests_[id];
    if (!w_.batching.prefix_caching || r.held == 0) return;
    Rank& k = ranks_[r.rank];
    const std::span<const std::uint64_t> ids = w_.arrivals.trace->hashes_of(id);
    const std::uint64_t whole = std::min(r.prompt, r.computed) / hash_block() * hash_block();
    while (r.shared < whole) {
      const auto [block, fresh] = k.cache.extend(r.block, ids[r.shared / hash_block()]);
      r.block = block;
      r.shared += hash_block();
      handover_due_ = true;  // Who waits for hand-over may need fewer pages now.
      if (fresh) continue;
      // Another one has computed it as well: one of the two goes.
      used_[k.home] -= bytes(k, hash_block());
      kv_.push_back({k.home, hash_block(), 0, run::kNone, false});
    }
  }
  /// The tokens that a request has computed are lost.
  void forget_tokens(Request& r) {
    anew_ += r.computed - r.cached;
    found_lost_ += r.cached;
    r.computed = r.cached = 0;
  }
  /// Counts the bytes of `tokens` tokens in place of those that it has.
  void reserve(std::uint32_t id, std::uint64_t tokens) {
    Request& r = requests_[id];
    const Rank& k = ranks_[r.rank];
    if (spread() && r.pages.empty()) r.pages.assign(span(), 0);
    for (std::uint32_t i = 0; i < span(); ++i) {
      const std::uint64_t after =
          spread() ? bytes_on(k, id, i, tokens) : bytes(k, own_of(r, tokens));
      std::uint64_t& used = used_[gpu_of(k, i)];
      used = used - held_on(k, r, i) + after;
      if (spread()) r.pages[i] = after;
    }
    if (tokens == 0) r.pages = {};
  }
  enum class Limit : std::uint8_t { kRoom, kMark };
  /// `hit`: what it would take from the cache.
  [[nodiscard]] bool fits_on(const Rank& k, std::uint32_t id, std::uint32_t i, std::uint64_t tokens,
                             Limit limit, const PrefixCache::Hit& hit = {}) const {
    const std::uint32_t g = gpu_of(k, i);
    const Request& r = requests_[id];
    const std::uint64_t more = spread() ? bytes_on(k, id, i, tokens)
                                        : bytes(k, tokens - r.shared - hit.blocks * hash_block()) +
                                              hit.idle * bytes(k, hash_block());
    return needed(k, g) - held_on(k, r, i) + more <=
           (limit == Limit::kMark ? below_mark(k, g) : room_[g]);
  }
  [[nodiscard]] bool fits(const Rank& k, std::uint32_t id, std::uint64_t tokens, Limit limit,
                          const PrefixCache::Hit& hit = {}) const {
    for (std::uint32_t i = 0; i < span(); ++i) {
      if (!fits_on(k, id, i, tokens, limit, hit)) return false;
    }
    return true;
  }
  /// Bytes of pages that bring neither the GPU nor those it stands for above their watermark; its
  /// room without one.
  [[nodiscard]] std::uint64_t below_mark(const Rank& k, std::uint32_t gpu) const {
    std::uint64_t room = room_[gpu];
    if (machine_.watermark.empty()) return room;
    for (std::uint32_t g = gpu; g < gpu + width(k); ++g) {
      const std::uint64_t other = machine_.other_bytes(g), mark = machine_.watermark[g];
      room = std::min(room, mark > other ? mark - other : 0);
    }
    return room;
  }
  /// Those of a request that was swapped out do not come back.
  void forget_swapped(std::uint32_t id) {
    Request& r = requests_[id];
    unpark(r);
    if (r.swapped && spread()) kv_.push_back({ranks_[r.rank].home, 0, 0, id, false});
    r.swapped = false;
  }

  // ---- events ----

  void push(Event e) {
    e.order = order_++;
    events_.push(e);
  }

  void expect_arrival() {
    pending_ = arrivals_.next();
    if (pending_) push({pending_->time_ps, EventKind::kArrival, 0, 0, 0, 0});
  }

  void handle(const Event& e) {
    switch (e.kind) {
      case EventKind::kStepEnd:
        if (e.b == engines_[e.a].version) end_step(e.a);
        break;
      case EventKind::kTransferEnd: {
        const auto it = travelling_.find(e.a);
        if (it == travelling_.end() || it->second.version != e.b) break;
        const Travel t = std::move(it->second);
        travelling_.erase(it);
        travel_ps_ += now_ - t.begin;
        ++arrived_;
        for (const std::uint64_t c : t.copies) machine_.pages.forget(c);
        arrived_pages(t, e.a);
        break;
      }
      case EventKind::kOutageStart:
        if (engines_[e.a].outages++ > 0) break;  // Away until the last one is over.
        engines_[e.a].down = true;
        note(run::EventKind::kFault, e.a, fmt::format("replica {} does not answer", e.a));
        if (!engines_[e.a].checked) {
          engines_[e.a].checked = true;
          const std::int64_t every = w_.front_end.health_interval.ps();
          push({(now_ / every + 1) * every, EventKind::kHealth, 0, e.a, 0, 0});
        }
        break;
      case EventKind::kOutageEnd:
        if (--engines_[e.a].outages > 0) break;
        engines_[e.a].down = false;
        engines_[e.a].may_work = true;
        note(run::EventKind::kFault, e.a, fmt::format("replica {} answers again", e.a));
        break;
      case EventKind::kHealth:
        check_health(e.a);
        break;
      case EventKind::kArrival:
        if (closed_) {
          if (requests_.size() < arrivals_.limit() && now_ < arrivals_.limit_ps()) {
            arrive(arrivals_.at(static_cast<std::uint32_t>(requests_.size()), now_), e.a, e.b);
          }
        } else {
          const Arrival a = *pending_;
          arrive(a, 0, 0);
          expect_arrival();
        }
        break;
    }
  }

  void note(run::EventKind kind, std::uint32_t engine, std::string text) {
    run::Event e;
    e.time_ps = now_;
    e.kind = kind;
    e.gpu = engines_[engine].first_gpu;
    e.text = std::move(text);
    notes_.push_back(std::move(e));
  }

  void check_health(std::uint32_t e) {
    Engine& engine = engines_[e];
    if (!engine.down) {
      engine.failures = 0;
      engine.checked = false;
      if (engine.open) {
        engine.open = false;
        note(run::EventKind::kAlarm, e, fmt::format("circuit breaker of replica {} closes", e));
        std::deque<std::uint32_t> waiting = std::move(front_);
        front_.clear();
        for (const std::uint32_t id : waiting) dispatch(id);
        handover_due_ = true;
      }
      return;
    }
    push({now_ + w_.front_end.health_interval.ps(), EventKind::kHealth, 0, e, 0, 0});
    if (++engine.failures != w_.front_end.failures || engine.open) return;
    engine.open = true;
    const std::size_t lost = evacuate(e);
    note(run::EventKind::kAlarm, e,
         fmt::format(
             "circuit breaker of replica {} opens after {} failed checks; {} requests {}", e,
             engine.failures, lost,
             w_.front_end.on_failure == scenario::OnFailure::kRetry ? "start again" : "fail"));
  }

  /// Takes every request from a replica.
  std::size_t evacuate(std::uint32_t e) {
    std::set<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < requests_live_.size(); ++i) {
      const Request& r = requests_[requests_live_[i]];
      if (r.rank != kNoRank && ranks_[r.rank].engine == e) ids.insert(requests_live_[i]);
    }
    for (const std::uint32_t id : ids) {
      Request& r = requests_[id];
      Rank& k = ranks_[r.rank];
      k.running.erase(key(id));
      k.waiting.erase(key(id));
      if (r.state == State::kHandover) {
        handovers_.erase(std::find(handovers_.begin(), handovers_.end(), id));
      }
      if (r.state == State::kTravelling) --k.travelling;
      hold(id, 0);
      forget_swapped(id);
      forget_tokens(r);
      r.in_step = 0;
      r.waits = false;
      ++r.epoch;
      r.rank = kNoRank;
    }
    for (const std::uint32_t id : ids) {
      if (w_.front_end.on_failure == scenario::OnFailure::kRetry) {
        ++retries_;
        dispatch(id);
      } else {
        leave(id, run::RequestOutcome::kFailed);
      }
    }
    return ids.size();
  }

  // ---- faults and alarms ----

  [[nodiscard]] bool has_work(std::uint32_t e) const {
    for (std::uint32_t i = engines_[e].first_rank; i < engines_[e].last_rank; ++i) {
      if (!ranks_[i].running.empty() || !ranks_[i].waiting.empty()) return true;
    }
    return false;
  }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t gpu) const {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].home == gpu) return i;
    }
    return kNoRank;
  }
  /// By number, so that nothing depends on the order in which others left.
  [[nodiscard]] std::vector<std::uint32_t> requests_of(std::uint32_t rank) const {
    std::vector<std::uint32_t> ids;
    for (const std::uint32_t id : requests_live_) {
      if (requests_[id].rank == rank) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  [[nodiscard]] bool has_room(const Rank& k, const Request& r) const {
    // Pages that move have a home (by_sequence).
    return bytes(k, std::uint64_t{r.prompt} + r.output - 1) <= room_[k.home] &&
           needed(k, k.home) + bytes(k, r.held) <=
               (k.queue() > 0 ? below_mark(k, k.home) : room_[k.home]) &&
           k.queue() < w_.batching.max_sequences;
  }
  /// Its pages are gone, with the ledger's entries of them.
  void forget_pages(std::uint32_t id) {
    Request& r = requests_[id];
    reserve(id, 0);
    ranks_[r.rank].resident.erase(id);
    r.held = 0;
    unshare(ranks_[r.rank], r);
    lost_pages_ += 1;
    forget_tokens(r);
    r.in_step = 0;
    r.waits = false;
    ++r.epoch;
  }
  /// The same, and the next plan frees them.
  void drop_pages(std::uint32_t id) {
    Request& r = requests_[id];
    if (r.held > 0) hold(id, 0);
    forget_swapped(id);
    forget_tokens(r);
    r.in_step = 0;
    r.waits = false;
    ++r.epoch;
  }
  /// A request goes to another rank, with its pages where it may keep them and there is room.
  /// `listed`: the ledger still has its pages here.
  MovedSequence move_away(std::uint32_t id, std::uint32_t to, bool keep, bool listed) {
    Request& r = requests_[id];
    Rank& k = ranks_[r.rank];
    MovedSequence m{id, k.home, ranks_[to].home, 0};
    k.running.erase(key(id));
    k.waiting.erase(key(id));
    if (r.held > 0 && keep && has_room(ranks_[to], r)) {
      m.tokens = r.held;
      hold(id, 0);
      r.rank = to;
      hold(id, m.tokens);
    } else if (r.held > 0) {
      if (listed) kv_.push_back({k.home, r.held - r.shared, 0, id, false});
      forget_pages(id);
      r.rank = kNoRank;
      if (w_.front_end.on_failure == scenario::OnFailure::kFail) {
        leave(id, run::RequestOutcome::kFailed);
        return m;
      }
    }
    enqueue(id, to);
    return m;
  }

  // ---- front end ----

  void arrive(const Arrival& a, std::uint32_t user, std::uint32_t turn) {
    const auto id = static_cast<std::uint32_t>(requests_.size());
    Request r;
    r.arrival = a.time_ps;
    r.prompt = a.prompt;
    r.output = a.output;
    r.tier = a.tier;
    r.user = user;
    r.turn = turn;
    requests_.push_back(r);
    // The last token sampled is never computed.
    const std::uint64_t most = std::uint64_t{a.prompt} + a.output - 1;
    if (turns_away()) {
      ++shed_;
      return reject(id);
    }
    if (!within_rate(a.tier)) {
      ++over_rate_;
      return reject(id);
    }
    if (!fits_anywhere(most)) {
      ++too_long_;
      return reject(id);
    }
    const std::uint32_t rank = choose(w_.front_end.prefill_replicas > 0, {}, true);
    if (rank != kNoRank && w_.batching.max_waiting > 0 &&
        ranks_[rank].waiting.size() >= w_.batching.max_waiting) {
      ++queue_full_;
      return reject(id);
    }
    ++in_system_;
    ++entered_;
    live_at_.push_back(static_cast<std::uint32_t>(requests_live_.size()));
    requests_live_.push_back(id);
    if (rank == kNoRank) {
      front_.push_back(id);
    } else {
      enqueue(id, rank);
    }
  }

  /// Whether every rank of either kind could hold the pages of so many tokens if it were empty.
  [[nodiscard]] bool fits_anywhere(std::uint64_t tokens) const {
    const Rank& last = ranks_.back();
    return bytes(ranks_.front(), tokens) <= least_capacity_[kind_of(ranks_.front())] &&
           bytes(last, tokens) <= least_capacity_[kind_of(last)];
  }

  bool within_rate(std::uint32_t tier) {
    const scenario::Tier& t = w_.tiers[tier];
    if (t.per_second == 0) return true;
    Bucket& b = buckets_[tier];
    b.tokens = std::min(static_cast<double>(t.burst),
                        b.tokens + static_cast<double>(now_ - b.at) * 1e-12 * t.per_second);
    b.at = now_;
    // A bucket that is full to rounding serves.
    if (b.tokens < 1 - 1e-9) return false;
    b.tokens -= 1;
    return true;
  }

  void reject(std::uint32_t id) {
    live_at_.push_back(UINT32_MAX);
    Request& r = requests_[id];
    r.outcome = run::RequestOutcome::kRejected;
    r.state = State::kLeft;
    r.left = now_;
    ++left_;
    if (closed_) {
      think(r, std::max(arrivals_.think_ps(r.user, r.turn + 1), kAfterRejectionPs));
    }
  }
  void think(const Request& r, std::int64_t ps) {
    push({now_ + ps, EventKind::kArrival, 0, r.user, r.turn + 1, 0});
  }

  /// An alarm keeps new requests from a replica. An empty one computes no step that could clear the
  /// alarm: it admits.
  [[nodiscard]] bool sheds(std::uint32_t e) const {
    if (!engines_[e].sheds) return false;
    if (engines_.size() == 1) return in_system_ > 0;
    for (std::uint32_t i = engines_[e].first_rank; i < engines_[e].last_rank; ++i) {
      if (ranks_[i].queue() > 0) return true;
    }
    return false;
  }
  /// No replica that answers takes new requests.
  [[nodiscard]] bool turns_away() const {
    const scenario::FrontEnd& f = w_.front_end;
    const std::uint32_t entries = f.prefill_replicas > 0 ? f.prefill_replicas : f.replicas;
    bool any = false;
    for (std::uint32_t e = 0; e < entries; ++e) {
      if (engines_[e].open) continue;
      if (!sheds(e)) return false;
      any = true;
    }
    return any;
  }

  /// Whether the rank has room for the pages of a request that is elsewhere; those that its cache
  /// has need none.
  [[nodiscard]] bool takes(const Rank& k, std::uint32_t id) const {
    const Request& r = requests_[id];
    PrefixCache::Hit hit;
    if (w_.batching.prefix_caching) {
      hit = k.cache.find(w_.arrivals.trace->hashes_of(id), r.prompt / hash_block());
    }
    for (std::uint32_t i = 0; i < span(); ++i) {
      const std::uint32_t g = gpu_of(k, i);
      const std::uint64_t most = k.queue() > 0 ? below_mark(k, g) : room_[g];
      const std::uint64_t more = bytes_on(k, id, i, r.computed - hit.blocks * hash_block()) +
                                 (hit.idle > 0 ? hit.idle * bytes(k, hash_block()) : 0);
      if (needed(k, g) + more > most) return false;
    }
    return true;
  }
  /// Rank for a request, kNoRank when no breaker is closed. `room`: only ranks that can hold that
  /// request's pages. `fresh`: it has just come, or begins at the rank.
  std::uint32_t choose(bool prefill, std::optional<std::uint32_t> room, bool fresh = false) {
    const scenario::FrontEnd& f = w_.front_end;
    const bool split = f.prefill_replicas > 0;
    const std::uint32_t from = split && !prefill ? f.prefill_replicas : 0;
    const std::uint32_t count = split && prefill ? f.prefill_replicas : f.replicas - from;
    // Replicas of one kind have equally many ranks.
    const std::uint32_t n = count * (engines_[from].last_rank - engines_[from].first_rank);
    std::uint32_t best = kNoRank;
    std::uint64_t& turn = turn_[from > 0 ? 1 : 0];
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint64_t place = f.balance == Balance::kRoundRobin ? (turn + i) % n : i;
      const auto engine = static_cast<std::uint32_t>(from + place % count);
      const auto rank = static_cast<std::uint32_t>(engines_[engine].first_rank + place / count);
      const Rank& k = ranks_[rank];
      if (engines_[engine].open || k.gone || (fresh && sheds(engine))) continue;
      if (room && (k.queue() >= w_.batching.max_sequences || !takes(k, *room))) continue;
      if (f.balance == Balance::kRoundRobin) {
        turn = place + 1;
        return rank;
      }
      if (best == kNoRank || k.queue() < ranks_[best].queue()) best = rank;
    }
    return best;
  }

  void dispatch(std::uint32_t id) {
    const std::uint32_t rank = choose(w_.front_end.prefill_replicas > 0, {});
    if (rank == kNoRank) {
      requests_[id].state = State::kFront;
      front_.push_back(id);
    } else {
      enqueue(id, rank);
    }
  }

  void enqueue(std::uint32_t id, std::uint32_t rank) {
    Request& r = requests_[id];
    r.rank = rank;
    r.state = State::kWaiting;
    ranks_[rank].waiting.insert(key(id));
    engines_[ranks_[rank].engine].may_work = true;
  }

  void leave(std::uint32_t id, run::RequestOutcome outcome) {
    Request& r = requests_[id];
    r.outcome = outcome;
    r.state = State::kLeft;
    r.left = now_;
    --in_system_;
    ++left_;
    time_in_system_ += now_ - r.arrival;
    ended_.push_back(id);
    const std::uint32_t at = live_at_[id], last = requests_live_.back();
    requests_live_[at] = last;
    live_at_[last] = at;
    requests_live_.pop_back();
    if (closed_) think(r, arrivals_.think_ps(r.user, r.turn + 1));
  }

  // ---- batches ----

  /// Memory that swapped pages lie in: each server's CPUs, or all CXL pools together. Without a
  /// stated size, and with stages (whose GPUs are of several servers), there is no limit.
  void make_parks() {
    if (w_.batching.preemption != scenario::Preemption::kSwap || s_.parallel.pp > 1) return;
    const bool pool = w_.batching.swap_to_pool;
    const auto kind = pool ? scenario::DeviceKind::kCxl : scenario::DeviceKind::kCpu;
    std::vector<std::uint8_t> open;
    for (const scenario::Device& d : s_.hardware.devices) {
      const std::uint32_t at = pool ? 0 : d.node;
      if (at >= park_left_.size()) {
        park_left_.resize(at + 1, 0);
        open.resize(at + 1, 0);
      }
      if (d.kind != kind) continue;
      if (d.memory_bytes == 0) open[at] = 1;
      park_left_[at] += d.memory_bytes;
    }
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i] != 0 || park_left_[i] == 0) park_left_[i] = UINT64_MAX;
    }
  }
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint64_t>> parks_of(
      const Rank& k, std::uint32_t id) const {
    std::map<std::uint32_t, std::uint64_t> sums;
    for (std::uint32_t i = 0; i < span() && !park_left_.empty(); ++i) {
      const std::uint64_t n = bytes_on(k, id, i, requests_[id].computed);
      for (std::uint32_t g = gpu_of(k, i); g < gpu_of(k, i) + width(k); ++g) {
        sums[w_.batching.swap_to_pool ? 0 : s_.hardware.gpu(g).node] += n;
      }
    }
    return {sums.begin(), sums.end()};
  }
  /// Takes room for the pages of a request where they would swap to; false: there is not enough.
  bool park(const Rank& k, std::uint32_t id) {
    auto parks = parks_of(k, id);
    for (const auto& [at, n] : parks) {
      if (n > park_left_[at]) return false;
    }
    std::erase_if(parks, [&](const auto& p) { return park_left_[p.first] == UINT64_MAX; });
    for (const auto& [at, n] : parks) park_left_[at] -= n;
    requests_[id].parked = std::move(parks);
    return true;
  }
  void unpark(Request& r) {
    for (const auto& [at, n] : r.parked) park_left_[at] += n;
    r.parked.clear();
  }

  /// The pages of a request go to host memory or come back.
  void swap(const Rank& k, std::uint32_t id, bool out) {
    if (!out) unpark(requests_[id]);
    for (std::uint32_t i = 0; i < span(); ++i) {
      const std::uint64_t n = bytes_on(k, id, i, requests_[id].computed);
      const std::uint32_t gpu = gpu_of(k, i);
      swapped_total_ += n;
      if (!w_.batching.swaps_over_links()) {
        swapping_[gpu] += n;
      } else if (n > 0) {
        engines_[k.engine].swaps.push_back({gpu, n, out});
      }
    }
  }

  void preempt(Rank& k, std::uint32_t id) {
    Request& r = requests_[id];
    const bool wants = w_.batching.preemption == scenario::Preemption::kSwap && r.computed > 0;
    const bool swaps = wants && park(k, id);
    if (preemptions_++ < kMostPreemptionEvents) {
      note(run::EventKind::kPreemption, k.engine,
           fmt::format("request {}: {} tokens {}", id, r.computed,
                       swaps   ? "move to host memory"
                       : wants ? "are computed again later: no room for them in host memory"
                               : "are computed again later"));
      notes_.back().gpu = k.home;
      notes_.back().value = r.computed;
    }
    if (swaps) {
      swap(k, id, true);
      r.swapped = true;
    } else {
      forget_tokens(r);
    }
    if (r.waits) r.in_step = 0;  // Its token begins anew.
    r.waits = false;
    hold(id, 0, swaps);
    ++r.preemptions;
    k.running.erase(key(id));
    k.waiting.insert(key(id));
    r.state = State::kWaiting;
  }

  /// Requests with pages on the GPUs of a rank.
  [[nodiscard]] std::size_t residents(const Rank& k) const {
    std::size_t n = 0;
    for (std::uint32_t i = k.pool; i < k.pool_end; ++i) n += ranks_[i].resident.size();
    return n;
  }
  /// The rank whose last running request is the last of the pool behind `own` that holds pages
  /// where request `id` lacks room for `tokens` tokens; with the request.
  std::pair<std::uint32_t, std::uint32_t> last_in_the_way(const Rank& k, const Key& own,
                                                          std::uint32_t id, std::uint64_t tokens,
                                                          Limit limit) const {
    std::pair<std::uint32_t, std::uint32_t> found{kNoRank, 0};
    const Key* last = nullptr;
    for (std::uint32_t at = k.pool; at < k.pool_end; ++at) {
      const std::set<Key>& running = ranks_[at].running;
      for (auto it = running.rbegin(); it != running.rend() && *it > own; ++it) {
        if (last != nullptr && *it < *last) break;
        bool helps = !spread();
        for (std::uint32_t i = 0; i < span() && !helps; ++i) {
          helps =
              held_on(ranks_[at], requests_[it->id], i) > 0 && !fits_on(k, id, i, tokens, limit);
        }
        if (!helps) continue;
        last = &*it;
        found = {at, it->id};
        break;
      }
    }
    return found;
  }

  /// Pages for `tokens` tokens of request `id`, if need be those of requests behind it. False when
  /// it had to give up its own.
  bool make_room(Rank& k, std::uint32_t id, std::uint64_t tokens, bool& preempted) {
    const Key own = key(id);
    const bool keeps = s_.memory.watermark_action == scenario::WatermarkAction::kPreempt;
    // Alone it may go above the mark.
    const auto limit = [&] { return keeps && residents(k) > 1 ? Limit::kMark : Limit::kRoom; };
    while (!fits(k, id, tokens, limit())) {
      preempted = true;
      by_mark_ += fits(k, id, tokens, Limit::kRoom) ? 1 : 0;
      const auto [at, behind] = last_in_the_way(k, own, id, tokens, limit());
      if (at != kNoRank) {
        preempt(ranks_[at], behind);
        continue;
      }
      // Nobody behind it runs. One that waits with pages (they travelled here) gives them up
      // before the last one that runs does: that one could not go on otherwise.
      const std::uint32_t parked = last_parked(k, UINT32_MAX);
      if (parked == UINT32_MAX) {
        preempt(k, id);
        return false;
      }
      preempt(ranks_[requests_[parked].rank], parked);
    }
    return true;
  }
  /// The last one but `id` that waits with pages on the rank's GPUs; UINT32_MAX: none.
  [[nodiscard]] std::uint32_t last_parked(const Rank& k, std::uint32_t id) const {
    const Key* last = nullptr;
    for (std::uint32_t at = k.pool; at < k.pool_end; ++at) {
      const std::set<Key>& waiting = ranks_[at].waiting;
      for (auto w = waiting.rbegin(); w != waiting.rend(); ++w) {
        if (w->id == id || requests_[w->id].held == 0) continue;
        if (last == nullptr || *last < *w) last = &*w;
        break;
      }
    }
    return last == nullptr ? UINT32_MAX : last->id;
  }

  void schedule(Engine& engine, std::uint32_t request, std::uint32_t tokens, StepPlan& plan) {
    Request& r = requests_[request];
    hold(request, std::uint64_t{r.computed} + tokens);
    r.in_step = tokens;
    const bool samples = r.computed + tokens == r.known();
    engine.flight.push_back({request, tokens, r.epoch, samples});
    PlannedSequence q;
    q.id = request;
    q.gpu = ranks_[r.rank].home;
    q.fresh = tokens;
    q.had = r.computed;
    q.prompt = r.prompt;
    q.prefill = r.generated == 0 || r.computed + 1 < r.known();
    q.samples = samples;
    q.resumes = r.waits;
    r.waits = false;
    plan.sequences.push_back(q);
  }

  /// The ranks [first, beyond) keep pages on the same GPUs: those that run go on in one order, and
  /// who waits follows in one order.
  void plan_pool(std::uint32_t first, std::uint32_t beyond, Engine& engine, StepPlan& plan) {
    const scenario::Batching& b = w_.batching;
    struct Share {
      std::uint32_t budget = 0, sequences = 0;
      bool closed = false, held_back = false;
    };
    std::vector<Share> shares(beyond - first, {b.token_budget, 0, false, false});
    std::vector<std::pair<Key, std::uint32_t>> turns;
    for (std::uint32_t at = first; at < beyond; ++at) {
      for (const Key& k : ranks_[at].running) turns.emplace_back(k, at);
    }
    if (beyond - first > 1) std::sort(turns.begin(), turns.end());
    bool preempted = false;
    for (const auto& [who, at] : turns) {
      Rank& k = ranks_[at];
      Share& share = shares[at - first];
      const Request& r = requests_[who.id];
      if (share.budget == 0 || r.state != State::kRunning) continue;  // Or it made room.
      const std::uint32_t tokens = std::min(r.known() - r.computed, share.budget);
      if (!make_room(k, who.id, std::uint64_t{r.computed} + tokens, preempted)) continue;
      schedule(engine, who.id, tokens, plan);
      share.budget -= tokens;
      ++share.sequences;
    }
    while (!preempted) {
      // The first one that waits at a rank which could take it.
      std::uint32_t at = kNoRank;
      bool any_runs = false;
      for (std::uint32_t i = first; i < beyond; ++i) {
        const Rank& k = ranks_[i];
        any_runs = any_runs || !k.running.empty();
        if (shares[i - first].closed || shares[i - first].budget == 0 ||
            k.running.size() >= b.max_sequences || k.waiting.empty()) {
          continue;
        }
        if (at == kNoRank || *k.waiting.begin() < *ranks_[at].waiting.begin()) at = i;
      }
      if (at == kNoRank) break;
      Rank& k = ranks_[at];
      Share& share = shares[at - first];
      const Key who = *k.waiting.begin();
      Request& r = requests_[who.id];
      const PrefixCache::Hit hit = find_prefix(k, who.id);
      const auto done = static_cast<std::uint32_t>(r.computed + hit.blocks * hash_block());
      const std::uint32_t needs = r.known() - done;
      std::uint32_t tokens = std::min(needs, share.budget);
      if (!b.chunked_prefill && tokens < needs) {
        // A prompt beyond the budget takes a step for itself.
        share.closed = share.sequences > 0;
        if (share.closed) continue;
        tokens = needs;
      }
      const std::uint64_t total = std::uint64_t{done} + tokens;
      const bool has_room = fits(k, who.id, total, Limit::kRoom, hit);
      if (any_runs && has_room && !machine_.watermark.empty() &&
          !fits(k, who.id, total, Limit::kMark, hit)) {
        share.held_back = true;
        break;
      }
      if (!has_room) {
        // Pages of requests that wait behind it would keep it out for ever if nobody runs.
        const std::uint32_t parked = any_runs ? UINT32_MAX : last_parked(k, who.id);
        if (parked == UINT32_MAX) break;
        preempt(ranks_[requests_[parked].rank], parked);
        continue;
      }
      if (r.swapped) {
        swap(k, who.id, false);
        r.swapped = false;
      }
      if (w_.batching.prefix_caching && r.computed == 0) {
        looked_up_ += r.known();
        found_ += hit.blocks * hash_block();
      }
      take_prefix(k, who.id, hit);
      r.cached += done - r.computed;
      r.found += done - r.computed;
      r.computed = done;
      k.waiting.erase(who);
      k.running.insert(who);
      r.state = State::kRunning;
      schedule(engine, who.id, tokens, plan);
      share.budget -= std::min(tokens, share.budget);
      ++share.sequences;
    }
    for (std::uint32_t at = first; at < beyond; ++at) {
      note_mark(ranks_[at], shares[at - first].held_back);
    }
  }

  /// One event when the watermark begins to hold requests back, one when it no longer does.
  void note_mark(Rank& k, bool held_back) {
    held_steps_ += held_back ? 1 : 0;
    if (k.held_back == held_back) return;
    k.held_back = held_back;
    if (mark_events_++ >= kMostPreemptionEvents) return;
    note(run::EventKind::kPolicyAction, k.engine,
         held_back ? fmt::format("watermark: no admission, {} requests wait", k.waiting.size())
                   : std::string("watermark: requests are admitted again"));
    notes_.back().gpu = k.home;
    notes_.back().value = static_cast<double>(k.waiting.size());
  }

  bool plan_step(std::uint32_t e, std::uint64_t step, StepPlan& plan) {
    Engine& engine = engines_[e];
    engine.flight.clear();
    plan = StepPlan{};
    for (std::uint32_t i = engine.first_rank; i < engine.last_rank; i = ranks_[i].pool_end) {
      plan_pool(i, ranks_[i].pool_end, engine, plan);
    }
    if (plan.sequences.empty()) return false;
    std::sort(plan.sequences.begin(), plan.sequences.end(),
              [](const PlannedSequence& x, const PlannedSequence& y) { return x.id < y.id; });
    plan.engine = e;
    plan.first_gpu = engine.first_gpu;
    plan.last_gpu = engine.last_gpu;
    plan.earliest_ps = now_;
    plan.warmup = step < s_.workload.warmup_steps;
    const auto from = swapping_.begin() + plan.first_gpu, to = swapping_.begin() + plan.last_gpu;
    if (const std::uint64_t most = *std::max_element(from, to); most > 0) {
      plan.host_ps =
          SimTime::from_seconds(static_cast<double>(most) / w_.batching.swap_bandwidth.value).ps();
      std::fill(from, to, 0);
    }
    plan.swaps = std::move(engine.swaps);
    engine.swaps.clear();
    plan.transfers = std::move(transfers_);
    transfers_.clear();
    const bool any_prefill = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                         [](const PlannedSequence& q) { return q.prefill; });
    const bool any_decode = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                        [](const PlannedSequence& q) { return !q.prefill; });
    plan.kind = any_prefill && any_decode ? run::StepKind::kMixed
                : any_prefill             ? run::StepKind::kPrefill
                                          : run::StepKind::kDecode;
    plan.kv = std::move(kv_);
    kv_.clear();
    plan.ended = std::move(ended_);
    ended_.clear();
    engine.busy = true;
    ++steps_planned_;
    if (!plan.warmup) {
      for (std::uint32_t i = engine.first_rank; i < engine.last_rank; i = ranks_[i].pool_end) {
        const Rank& k = ranks_[i];
        for (std::uint32_t g = gpu_of(k, 0); g <= gpu_of(k, span() - 1); g += width(k)) {
          if (k.gone || room_[g] == 0) continue;
          const double use = static_cast<double>(needed(k, g)) / static_cast<double>(room_[g]);
          kv_use_ += use;
          kv_most_ = std::max(kv_most_, use);
          ++kv_samples_;
        }
      }
    }
    return true;
  }

  void give_tokens(run::RunData& data) {
    data.tokens.insert(data.tokens.end(), tokens_.begin(), tokens_.end());
    tokens_.clear();
  }

  void end_step(std::uint32_t e) {
    Engine& engine = engines_[e];
    engine.busy = false;
    engine.may_work = true;
    end_ = std::max(end_, now_);
    for (const Flight& f : engine.flight) {
      Request& r = requests_[f.id];
      if (r.epoch != f.epoch) {
        anew_ += f.deferred ? 0 : f.tokens;
        lost_samples_ += f.samples && !f.deferred ? 1 : 0;
        continue;
      }
      if (f.deferred) {
        r.waits = true;
        continue;
      }
      r.computed += f.tokens;
      r.in_step = 0;
      // The router has said where its new tokens lie.
      if (spread() && r.held > 0) reserve(f.id, r.held);
      share(f.id);
      if (!f.samples) continue;
      ++sampled_;
      // Not when the step is planned: a breaker may throw it away while it is under way.
      if (s_.run.detail == scenario::Detail::kTokens && !engine.warmup) {
        run::TokenRecord t;
        t.request = f.id;
        t.index = r.generated;
        t.step = engine.step;
        t.time_ps = now_;
        tokens_.push_back(t);
      }
      ++r.generated;
      if (r.first < 0) {
        r.first = now_;
      } else {
        const std::int64_t gap = now_ - r.last;
        r.itl_sum += static_cast<double>(gap);
        r.itl_square += static_cast<double>(gap) * static_cast<double>(gap);
        if (now_ > warm_end_) {
          itl_ps_.push_back(gap);
          itl_end_ps_.push_back(now_);
        }
      }
      r.last = now_;
      if (now_ > warm_end_) ++tokens_out_;
      Rank& k = ranks_[r.rank];
      if (r.generated == r.output) {
        k.running.erase(key(f.id));
        hold(f.id, 0);
        leave(f.id, run::RequestOutcome::kFinished);
        handover_due_ = true;
      } else if (engine.prefill) {
        k.running.erase(key(f.id));
        r.state = State::kHandover;
        handovers_.push_back(f.id);
        handover_due_ = true;
      }
    }
    engine.flight.clear();
  }

  // ---- prefill replicas to decode replicas ----

  void hand_over() {
    handover_due_ = false;
    while (!handovers_.empty()) {
      const std::uint32_t id = handovers_.front();
      Request& r = requests_[id];
      const std::uint32_t to = choose(false, id, true);
      if (to == kNoRank) break;
      handovers_.pop_front();
      const std::uint32_t from = r.rank;
      Rank& source = ranks_[from];
      const auto number = static_cast<std::uint32_t>(travels_++);
      source.resident.erase(id);
      source.leaving.emplace(number,
                             Leaving{id, r.epoch, r.held - r.shared, std::move(r.pages), r.block});
      r.pages.clear();
      std::vector<KvTransfer> moves;
      if (spread()) moves = machine_.kv_moves(id, source.home, ranks_[to].home, r.computed);
      r.rank = to;
      r.held = r.shared = 0;
      r.block = PrefixCache::kRoot;
      r.state = State::kTravelling;
      ++ranks_[to].travelling;
      // What the cache there has need not travel.
      if (w_.batching.prefix_caching) {
        take_prefix(
            ranks_[to], id,
            ranks_[to].cache.find(w_.arrivals.trace->hashes_of(id), r.prompt / hash_block()));
      }
      const Rank& goal = ranks_[to];
      not_sent_ += bytes(goal, r.shared) * width(goal);
      hold(id, r.computed);
      if (const std::uint64_t pages = bytes(goal, r.computed - r.shared); !spread() && pages > 0) {
        if (machine_.kv_shards) {
          moves = machine_.kv_shards(source.home, goal.home, pages);
        } else {
          moves.push_back({source.home, goal.home, pages, width(goal)});
        }
      }
      Travel t{id, r.epoch, from, now_, now_ + 1, 0, {}};
      for (const KvTransfer& m : moves) {
        if (links_) t.end = std::max(t.end, links_->send(m.from, m.to, m.width, m.bytes, now_));
        for (std::uint32_t i = 0; i < m.width && !links_; ++i) {
          t.copies.push_back(machine_.pages.send(m.from + i, m.to + i, m.bytes, now_));
        }
        transfers_.push_back(m);
        travelled_bytes_ += m.bytes * m.width;
      }
      if (!links_) t.end = arrival(t);
      push({t.end, EventKind::kTransferEnd, 0, number, 0, 0});
      travelling_.emplace(number, std::move(t));
    }
    refresh();  // The pages slow down what is under way.
  }

  [[nodiscard]] std::int64_t arrival(const Travel& t) const {
    std::int64_t end = std::max(t.begin + 1, now_);
    for (const std::uint64_t c : t.copies) end = std::max(end, machine_.pages.arrival(c));
    return end;
  }

  /// Steps and pages that share links with what was added end at other times than was known.
  void refresh() {
    if (!machine_.pages.step_end) return;
    for (std::uint32_t e = 0; e < engines_.size(); ++e) {
      Engine& engine = engines_[e];
      if (!engine.busy) continue;
      const std::int64_t end = std::max(now_, machine_.pages.step_end(e));
      if (end == engine.end) continue;
      if (!engine.warmup) busy_ps_ += end - engine.end;
      if (engine.warmup) warm_end_ = std::max(warm_end_, end);
      engine.end = end;
      push({end, EventKind::kStepEnd, 0, e, ++engine.version, 0});
    }
    for (auto& [number, t] : travelling_) {
      const std::int64_t end = t.copies.empty() ? t.end : arrival(t);
      if (end == t.end) continue;
      t.end = end;
      push({end, EventKind::kTransferEnd, 0, number, ++t.version, 0});
    }
  }

  void arrived_pages(const Travel& t, std::uint32_t number) {
    const std::uint32_t id = t.id;
    Rank& source = ranks_[t.from];
    engines_[source.engine].may_work = true;
    const auto it = source.leaving.find(number);
    if (it == source.leaving.end()) return;  // Lost with the GPU.
    const Leaving& left = it->second;
    kv_.push_back({source.home, left.tokens, 0, id, false, true});
    for (std::uint32_t i = 0; i < span(); ++i) {
      used_[gpu_of(source, i)] -= spread() ? left.pages[i] : bytes(source, left.tokens);
    }
    source.cache.release(left.block);
    source.leaving.erase(it);
    // With another epoch its destination lost it on the way, and evacuate() has counted it out.
    if (requests_[id].epoch != t.epoch) return;
    --ranks_[requests_[id].rank].travelling;
    enqueue(id, requests_[id].rank);
  }

  // ---- results ----

  /// What requests hold at a rank, with what travels away and the cache, is what is counted there;
  /// a block has as many users as there are requests with it.
  void check_caches(std::vector<std::string>& violations) const {
    if (!w_.batching.prefix_caching) return;
    for (std::uint32_t at = 0; at < ranks_.size(); ++at) {
      const Rank& k = ranks_[at];
      std::uint64_t want = k.cache.blocks() * bytes(k, hash_block());
      std::vector<std::uint32_t> users;
      for (const std::uint32_t id : k.resident) {
        want += bytes(k, requests_[id].held - requests_[id].shared);
        users.push_back(requests_[id].block);
      }
      for (const auto& [number, left] : k.leaving) {
        want += bytes(k, left.tokens);
        users.push_back(left.block);
      }
      if (used_[k.home] != want) {
        violations.push_back(fmt::format("GPU {}: {} B of pages counted, {} B are held", k.home,
                                         used_[k.home], want));
      }
      if (!k.cache.counts(users)) {
        violations.push_back(
            fmt::format("GPU {}: a block of the prefix cache has other users than "
                        "requests",
                        k.home));
      }
    }
  }

  void add_limits(run::RunData& data) const;
  void add_metrics(run::RunData& data, std::vector<std::string>& violations);

  const scenario::Scenario& s_;
  const scenario::Serving& w_;
  ServingMachine machine_;
  ArrivalSource arrivals_;
  bool closed_;
  std::uint32_t highest_ = 0;
  std::array<std::uint64_t, 2> least_capacity_{};  // by kind_of()
  // [G] bytes of pages, room for them, and those that swap before the next step; without a kv_round
  // a home stands for its group.
  std::vector<std::uint64_t> used_, room_, swapping_;
  std::vector<std::uint64_t> park_left_;  // bytes; UINT64_MAX: no limit
  std::vector<Engine> engines_;
  std::vector<Rank> ranks_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> requests_live_, live_at_;  // no order; place of a request in it
  std::vector<Bucket> buckets_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::optional<Arrival> pending_;
  std::deque<std::uint32_t> front_, handovers_;
  std::optional<KvLinks> links_;                // pages that travel alone on them
  std::map<std::uint32_t, Travel> travelling_;  // by number
  std::vector<KvTransfer> transfers_;           // since the last plan
  bool handover_due_ = false;
  std::array<std::uint64_t, 2> turn_{};
  std::uint64_t order_ = 0;
  std::int64_t now_ = 0;
  std::vector<KvChange> kv_;
  std::vector<std::uint32_t> ended_;
  std::vector<run::Event> notes_;
  std::vector<run::TokenRecord> tokens_;  // of steps that ended since the last done()
  mutable std::array<std::vector<std::uint64_t>, 2> page_bytes_;  // by kind_of()

  // Counts.
  Wide area_ = 0, time_in_system_ = 0;
  bool stuck_ = false;  // no event is left, requests are
  std::uint64_t in_system_ = 0, entered_ = 0, left_ = 0, over_rate_ = 0, too_long_ = 0,
                queue_full_ = 0, preemptions_ = 0, retries_ = 0, anew_ = 0, processed_ = 0,
                sampled_ = 0, lost_samples_ = 0, tokens_out_ = 0, swapped_total_ = 0,
                travelled_bytes_ = 0, travels_ = 0, arrived_ = 0, steps_planned_ = 0,
                kv_samples_ = 0, by_mark_ = 0, held_steps_ = 0, mark_events_ = 0, lost_pages_ = 0,
                no_room_ = 0, shed_ = 0, turned_away_ = 0, looked_up_ = 0, found_ = 0,
                found_lost_ = 0, not_sent_ = 0, evicted_ = 0, eviction_events_ = 0;
  std::int64_t travel_ps_ = 0, busy_ps_ = 0, begin_ = -1, end_ = 0, warm_end_ = -1;
  double kv_use_ = 0, kv_most_ = 0;
  std::vector<std::int64_t> itl_ps_, itl_end_ps_;  // of tokens in the span: gap, when
};

double mean(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return v.empty() ? run::kNoData : sum / static_cast<double>(v.size());
}

void ServingBatch::finish(std::int64_t, run::RunData& data, std::vector<std::string>& notes,
                          std::vector<std::string>& violations) {
  // With max_steps, steps may be under way on other replicas: they end, and nothing begins.
  while (!events_.empty()) {
    const Event e = events_.top();
    events_.pop();
    if (e.kind != EventKind::kStepEnd || e.b != engines_[e.a].version) continue;
    area_ += static_cast<Wide>(in_system_) * (e.time - now_);
    now_ = e.time;
    end_step(e.a);
  }
  if (end_ > now_) {
    area_ += static_cast<Wide>(in_system_) * (end_ - now_);
    now_ = end_;
  }
  for (run::Event& e : notes_) data.events.push_back(std::move(e));
  notes_.clear();
  give_tokens(data);
  if (std::string text = deadlock(); !text.empty()) violations.push_back(std::move(text));
  for (std::uint32_t id = 0; id < requests_.size(); ++id) {
    const Request& r = requests_[id];
    run::RequestRecord q;
    q.id = id;
    q.arrival_ps = r.arrival;
    q.first_token_ps = r.first;
    q.end_ps = r.outcome == run::RequestOutcome::kFinished ? r.last : -1;
    q.prompt_tokens = r.prompt;
    q.output_tokens = r.generated;
    q.outcome = r.outcome;
    q.tier = r.tier;
    q.replica = r.rank == kNoRank ? run::kNone : ranks_[r.rank].engine;
    q.scheduled_ps = r.scheduled;
    q.preemptions = r.preemptions;
    q.cached_tokens = r.found;
    data.requests.push_back(q);
  }
  add_metrics(data, violations);
  const auto say = [&](std::uint64_t n, const std::string& what) {
    if (n > 0) notes.push_back(fmt::format("{}: {}", what, n));
  };
  say(over_rate_, "rejected, tier over its rate");
  say(too_long_, "rejected, pages beyond the KV memory of a rank");
  say(queue_full_, "rejected, queue full");
  say(shed_, "rejected, load shed while an alarm stood");
  say(turned_away_, "rejected while they waited, load shed by an alarm");
  say(lost_pages_, "requests that lost their pages with a GPU");
  say(no_room_, "failed, pages beyond what the GPUs that are left have room for");
  say(retries_, "requests started again on another replica");
  if (preemptions_ > kMostPreemptionEvents) {
    notes.push_back(fmt::format("{} preemptions; the first {} are events", preemptions_,
                                kMostPreemptionEvents));
  }
  if (w_.arrivals.trace) {
    say(w_.arrivals.trace->left_out, "rows of the request trace without an answer, left out");
    if (w_.arrivals.trace->hash_ids && !w_.batching.prefix_caching) {
      notes.push_back(
          "hash_ids of the request trace are not used: workload.batching.prefix_caching = false");
    }
  }
}

/// What attainment and goodput ask, beside them.
void ServingBatch::add_limits(run::RunData& data) const {
  for (const scenario::Tier& t : w_.tiers) {
    const std::string of = w_.tiers.size() == 1 ? "" : fmt::format(", tier {}", t.name);
    for (const auto& [name, limit] : {std::pair{"SLO TTFT", t.ttft}, {"SLO TPOT", t.tpot}}) {
      if (limit.ps() > 0) {
        data.metrics.push_back({name + of, static_cast<double>(limit.ps()) * 1e-9, "ms"});
      }
    }
  }
}

void ServingBatch::add_metrics(run::RunData& data, std::vector<std::string>& violations) {
  const double span = begin_ < 0 ? 0 : static_cast<double>(end_ - begin_) * 1e-12;
  const auto per_second = [&](double n) { return span > 0 ? n / span : run::kNoData; };
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : run::kNoData; };
  std::array<std::uint64_t, 4> outcomes{};
  std::vector<double> wait_ms, latency_ms, jitter_ms;
  double finished = 0, measured = 0, met = 0;
  Wide still_in_system = 0, computed = 0, generated = 0;
  for (std::size_t id = 0; id < requests_.size(); ++id) {
    const Request& r = requests_[id];
    ++outcomes[static_cast<std::size_t>(r.outcome)];
    computed += r.computed;
    generated += r.generated;
    if (r.state != State::kLeft) {
      still_in_system += now_ - r.arrival;
      continue;
    }
    if (r.outcome == run::RequestOutcome::kFinished &&
        (r.computed != r.prompt + r.output - 1 || r.generated != r.output)) {
      violations.push_back(fmt::format("request {}: {} of {} tokens computed, {} of {} sampled", id,
                                       r.computed, r.prompt + r.output - 1, r.generated, r.output));
    }
    if (r.left <= warm_end_) continue;
    ++measured;
    const scenario::Tier& tier = w_.tiers[r.tier];
    if (r.outcome != run::RequestOutcome::kFinished) continue;
    ++finished;
    wait_ms.push_back(static_cast<double>(r.scheduled - r.arrival) * 1e-9);
    latency_ms.push_back(static_cast<double>(r.left - r.arrival) * 1e-9);
    const double gaps = r.output - 1;
    if (r.output > 2) {
      const double m = r.itl_sum / gaps;
      jitter_ms.push_back(std::sqrt(std::max(0.0, r.itl_square / gaps - m * m)) * 1e-9);
    }
    const bool in_time = tier.ttft.ps() == 0 || r.first - r.arrival <= tier.ttft.ps();
    const bool fluent =
        tier.tpot.ps() == 0 || r.output == 1 ||
        static_cast<double>(r.last - r.first) <= static_cast<double>(tier.tpot.ps()) * gaps;
    const bool ok = in_time && fluent;
    met += ok ? 1 : 0;
    data.requests[data.requests.size() - requests_.size() + id].met_slo = ok ? 1 : 0;
  }
  const bool objective = std::any_of(w_.tiers.begin(), w_.tiers.end(), [](const auto& t) {
    return t.ttft.ps() > 0 || t.tpot.ps() > 0;
  });
  if (area_ != time_in_system_ + still_in_system) {
    violations.push_back(fmt::format(
        "requests in system over time add up to {} ps, their times to {} ps",
        static_cast<double>(area_), static_cast<double>(time_in_system_ + still_in_system)));
  }
  const Wide owed = computed + static_cast<Wide>(anew_) + static_cast<Wide>(found_lost_);
  if (owed != static_cast<Wide>(processed_) + static_cast<Wide>(found_)) {
    violations.push_back(
        fmt::format("{} tokens in steps and {} from caches, requests account for "
                    "{}",
                    processed_, found_, static_cast<double>(owed)));
  }
  check_caches(violations);
  if (generated != static_cast<Wide>(sampled_)) {
    violations.push_back(fmt::format("{} tokens sampled, answers have {}", sampled_,
                                     static_cast<double>(generated)));
  }
  const std::uint64_t out = left_ - outcomes[2] + turned_away_;
  if (entered_ != out + in_system_) {
    violations.push_back(fmt::format("{} requests entered, {} left, {} are in the system", entered_,
                                     out, in_system_));
  }
  std::vector<double> itl_ms;
  itl_ms.reserve(itl_ps_.size());
  for (const std::int64_t ps : itl_ps_) itl_ms.push_back(static_cast<double>(ps) * 1e-9);
  const double worst =
      itl_ms.empty() ? run::kNoData : *std::max_element(itl_ms.begin(), itl_ms.end());
  const std::vector<double> values = {
      static_cast<double>(requests_.size()),
      static_cast<double>(outcomes[0]),
      static_cast<double>(outcomes[2]),
      static_cast<double>(outcomes[3]),
      static_cast<double>(outcomes[1]),
      per_second(finished),
      per_second(static_cast<double>(tokens_out_)),
      mean(wait_ms),
      run::nearest_rank(wait_ms, 50),
      run::nearest_rank(wait_ms, 99),
      mean(latency_ms),
      run::nearest_rank(latency_ms, 50),
      run::nearest_rank(latency_ms, 99),
      mean(itl_ms),
      run::nearest_rank(itl_ms, 50),
      run::nearest_rank(itl_ms, 99),
      worst,
      run::windowed_p99_std(itl_end_ps_, itl_ms, begin_, end_),
      run::nearest_rank(jitter_ms, 50),
      objective ? ratio(met, measured) : run::kNoData,
      objective ? per_second(met) : run::kNoData,
      static_cast<double>(preemptions_),
      static_cast<double>(anew_),
      static_cast<double>(swapped_total_) * 1e-9,
      static_cast<double>(travelled_bytes_) * 1e-9,
      arrived_ == 0 ? run::kNoData
                    : static_cast<double>(travel_ps_) * 1e-9 / static_cast<double>(arrived_),
      ratio(static_cast<double>(area_), static_cast<double>(end_)),
      ratio(static_cast<double>(busy_ps_) * 1e-12, span * static_cast<double>(engines_.size())),
      ratio(kv_use_, static_cast<double>(kv_samples_)),
      kv_samples_ == 0 ? run::kNoData : kv_most_,
  };
  const auto& definitions = run::serving_metric_definitions();
  SWITCHYARD_ASSERT(values.size() == definitions.size(),
                    fmt::format("{} values, {} definitions", values.size(), definitions.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::string_view(definitions[i].name) == "SLO attainment") add_limits(data);
    data.metrics.push_back({definitions[i].name, values[i], definitions[i].unit});
  }
  if (s_.faults.on()) {
    data.metrics.push_back(
        {"requests that lost their pages", static_cast<double>(lost_pages_), ""});
  }
  if (std::any_of(s_.alarms.begin(), s_.alarms.end(), [](const scenario::AlarmRule& r) {
        return r.action == scenario::AlarmAction::kShed;
      })) {
    data.metrics.push_back({"requests shed", static_cast<double>(shed_ + turned_away_), ""});
  }
  if (w_.batching.prefix_caching) {
    data.metrics.push_back({"prefix hit rate",
                            ratio(static_cast<double>(found_), static_cast<double>(looked_up_)),
                            ""});
    data.metrics.push_back({"prefix tokens not computed", static_cast<double>(found_), ""});
    data.metrics.push_back({"prefix blocks evicted", static_cast<double>(evicted_), ""});
    if (w_.front_end.prefill_replicas > 0) {
      data.metrics.push_back({"prefix KV not sent", static_cast<double>(not_sent_) * 1e-9, "GB"});
    }
  }
  if (!machine_.watermark.empty()) {
    data.metrics.push_back(
        {"steps without admission (watermark)", static_cast<double>(held_steps_), ""});
    data.metrics.push_back({"preemptions at the watermark", static_cast<double>(by_mark_), ""});
  }
}

}  // namespace

std::unique_ptr<BatchSource> make_serving(const scenario::Scenario& scenario,
                                          ServingMachine machine) {
  return std::make_unique<ServingBatch>(scenario, std::move(machine));
}

}  // namespace switchyard::sim
