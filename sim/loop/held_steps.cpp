// SPDX-License-Identifier: Apache-2.0
// Steps whose exchanges may still be slowed down after they were timed: by KV pages that travel
// between replicas, by exchanges of other replicas, groups and stages on the same links. Until its
// replica goes on, the step's record waits for that.
//
// What a step takes longer than when it was first timed shows as waiting of its GPUs; dispatch and
// combine of its layers take what they took in the end, and alarms see that. The critical path
// waits at its end for what has come. Work between two exchanges keeps its length, also what ran
// beside one of them; loads of experts are asked for when the first timing says.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {
namespace {

constexpr std::int64_t kRounding = 2;  // ps

/// What can become shorter: the other phases are work.
constexpr std::array kNotWork{run::Phase::kWait, run::Phase::kCombine, run::Phase::kDispatch,
                              run::Phase::kCollective};

std::int64_t work_of(const std::int64_t* phases) {
  std::int64_t ps = std::accumulate(phases, phases + run::kPhases, std::int64_t{0});
  for (const run::Phase p : kNotWork) ps -= phases[at(p)];
  return ps;
}

/// Adds `ps` to the waiting of a row of phases; what a negative `ps` takes comes from the exchanges
/// when there is not that much of it.
void stretch(std::int64_t* phases, std::int64_t ps) {
  for (const run::Phase p : kNotWork) {
    std::int64_t& x = phases[at(p)];
    const std::int64_t now = ps >= 0 ? ps : std::max(ps, -x);
    x += now;
    ps -= now;
  }
}

}  // namespace

void Simulator::hold_step() {
  held_steps_.push_back({step_, plan_.first_gpu, std::move(clocks_), std::move(times_), record_,
                         std::move(step_critical_)});
  times_.clear();
}

void Simulator::keep_times(std::uint32_t moe, const std::int64_t& duration) {
  if (moe == run::kNone || !exchange_.ends_move()) return;
  run::LayerRecord& layer = record_.layers[moe];
  LayerTime x;
  x.moe = moe;
  if (&layer.dispatch_ps == &duration) {
    x.time = &run::LayerRecord::dispatch_ps;
    x.floor = &run::LayerRecord::dispatch_floor_ps;
  } else if (&layer.combine_ps == &duration) {
    x.time = &run::LayerRecord::combine_ps;
    x.floor = &run::LayerRecord::combine_floor_ps;
  } else {
    return;  // Counted elsewhere.
  }
  for (const ExchangeTiming& t : timings_) {
    if (!t.kept) return;
    x.exchanges.push_back(t.id);
    x.floors.push_back(t.floor_ps);
    x.longest_ps = std::max(x.longest_ps, t.duration_ps);
  }
  if (!x.exchanges.empty()) times_.push_back(std::move(x));
}

std::int64_t Simulator::held_end(std::uint32_t engine) {
  for (const HeldStep& h : held_steps_) {
    if (h.record.scalars.engine != engine || h.clocks.empty()) continue;
    return end_by(h.record, h.first_gpu, h.clocks);
  }
  return 0;  // It computes none.
}

std::int64_t Simulator::end_by(const run::StepRecord& record, std::uint32_t first_gpu,
                               const std::vector<ExchangeTimer::StepClock>& clocks) {
  const run::StepScalars& step = record.scalars;
  // Of work beside an exchange the clocks do not know: it bounds what a shorter one leaves.
  std::int64_t work = std::max<std::int64_t>(1, work_of(step.phase_ps.data()));
  for (std::size_t i = 0; i < clocks.size(); ++i) {
    work = std::max(work, work_of(record.gpu_phase_ps.data() + (first_gpu + i) * run::kPhases));
  }
  std::int64_t end = step.start_ps + work;
  for (const ExchangeTimer::StepClock& c : clocks) end = std::max(end, exchange_.step_end(c));
  // Earlier than it was timed, too: a link that is itself again makes what is under way shorter.
  // What the queue rounds otherwise than the closed form is no difference.
  return std::abs(end - step.end_ps) <= kRounding ? step.end_ps : end;
}

void Simulator::settle_step(std::uint32_t engine) {
  for (HeldStep& h : held_steps_) {
    run::StepScalars& sc = h.record.scalars;
    if (sc.engine != engine || h.clocks.empty()) continue;
    const std::int64_t end = held_end(engine);
    check_time(end);
    const std::int64_t more = end - sc.end_ps, before = sc.end_ps;
    sc.end_ps = end;
    settle_signals(h.step, end);
    stretch(sc.phase_ps.data(), more);
    if (more > 0 && !h.path.empty()) {
      run::CriticalEntry e = h.path.back();
      e.layer = run::kNone;
      e.phase = run::Phase::kWait;
      e.reason = StragglerReason::kLink;
      e.start_ps = before;
      e.duration_ps = more;
      h.path.push_back(e);
    }
    while (!h.path.empty() && h.path.back().start_ps >= end) h.path.pop_back();
    if (!h.path.empty()) h.path.back().duration_ps = end - h.path.back().start_ps;
    offer_critical(sc, std::move(h.path));
    for (std::size_t i = 0; i < h.clocks.size(); ++i) {
      stretch(h.record.gpu_phase_ps.data() + (h.first_gpu + i) * run::kPhases, more);
      ready_[h.first_gpu + i] = end;
      // A load that another replica's check asked for begins when the step is over.
      std::int64_t& loads = loads_until_[h.first_gpu + i];
      if (loads > before) loads += std::max<std::int64_t>(more, 0);
    }
    TransferQueue* const queue = exchange_.copies();
    for (const LayerTime& x : h.times) {
      run::LayerRecord& layer = h.record.layers[x.moe];
      std::int64_t longest = 0, floor = 0;
      for (std::size_t i = 0; i < x.exchanges.size(); ++i) {
        const TransferQueue::Id id = x.exchanges[i];
        longest = std::max(longest, queue->exchange_end(id) - queue->exchange_begin(id));
        // A link that is itself again meanwhile lowers what is needed at least.
        floor =
            std::max(floor, std::min(x.floors[i], queue->exchange_floor(id).value_or(x.floors[i])));
      }
      if (std::abs(longest - x.longest_ps) > kRounding) {
        layer.*x.time += longest - x.longest_ps;
      }
      layer.*x.floor += floor - *std::max_element(x.floors.begin(), x.floors.end());
    }
    h.times.clear();
    note_length(sc, h.step);
    for (const ExchangeTimer::StepClock& c : h.clocks) exchange_.forget(c);
    h.clocks.clear();
    break;
  }
  while (!held_steps_.empty() && held_steps_.front().clocks.empty()) {
    sink_.append(held_steps_.front().record);
    if (board_ != nullptr) watch(held_steps_.front().record, held_steps_.front().step);
    held_steps_.pop_front();
  }
  if (!exchange_.ends_move()) return;
  TransferQueue::Id least = UINT64_MAX;
  for (const HeldStep& h : held_steps_) {
    for (const LayerTime& x : h.times) {
      for (const TransferQueue::Id id : x.exchanges) least = std::min(least, id);
    }
    for (const ExchangeTimer::StepClock& c : h.clocks) {
      for (const ExchangeTimer::Anchor& a : c) {
        if (a.of == ExchangeTimer::Anchor::Of::kExchange) least = std::min(least, a.id);
      }
    }
  }
  exchange_.forget_before(least);
}

}  // namespace switchyard::sim
