// SPDX-License-Identifier: Apache-2.0
// Steps of replicas between which KV pages travel: until a replica goes on, other traffic may still
// slow down the exchanges of its last step. Its record waits for that.
//
// What a step takes longer than when it was first timed shows as waiting of its GPUs; the layers
// and the critical path keep the times of the first timing. Work between two exchanges keeps its
// length, also what ran beside one of them.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {
namespace {

/// Adds `ps` to the waiting of a row of phases; what a negative `ps` takes comes from the exchanges
/// when there is not that much of it.
void stretch(std::int64_t* phases, std::int64_t ps) {
  for (const run::Phase p :
       {run::Phase::kWait, run::Phase::kCombine, run::Phase::kDispatch, run::Phase::kCollective}) {
    std::int64_t& x = phases[at(p)];
    const std::int64_t now = ps >= 0 ? ps : std::max(ps, -x);
    x += now;
    ps -= now;
  }
}

}  // namespace

void Simulator::hold_step() {
  held_steps_.push_back({plan_.first_gpu, std::move(clocks_), record_});
}

std::int64_t Simulator::held_end(std::uint32_t engine) {
  for (const HeldStep& h : held_steps_) {
    if (h.record.scalars.engine != engine || h.clocks.empty()) continue;
    std::int64_t end = h.record.scalars.start_ps;
    for (const ExchangeTimer::StepClock& c : h.clocks) end = std::max(end, exchange_.step_end(c));
    return end;
  }
  return 0;  // It computes none.
}

void Simulator::settle_step(std::uint32_t engine) {
  for (HeldStep& h : held_steps_) {
    run::StepScalars& sc = h.record.scalars;
    if (sc.engine != engine || h.clocks.empty()) continue;
    const std::int64_t end = std::max(held_end(engine), sc.start_ps + 1);
    check_time(end);
    const std::int64_t more = end - sc.end_ps, before = sc.end_ps;
    sc.end_ps = end;
    stretch(sc.phase_ps.data(), more);
    for (std::size_t i = 0; i < h.clocks.size(); ++i) {
      stretch(h.record.gpu_phase_ps.data() + (h.first_gpu + i) * run::kPhases, more);
      // Beyond its step's end: a load that another replica's check asked for.
      ready_[h.first_gpu + i] = end + std::max<std::int64_t>(0, ready_[h.first_gpu + i] - before);
    }
    h.clocks.clear();
    break;
  }
  while (!held_steps_.empty() && held_steps_.front().clocks.empty()) {
    sink_.append(held_steps_.front().record);
    held_steps_.pop_front();
  }
  std::vector<ExchangeTimer::StepClock> wanted;
  for (const HeldStep& h : held_steps_) {
    wanted.insert(wanted.end(), h.clocks.begin(), h.clocks.end());
  }
  if (exchange_.carries_pages()) exchange_.forget_before(wanted);
}

}  // namespace switchyard::sim
