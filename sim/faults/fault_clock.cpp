// SPDX-License-Identifier: Apache-2.0
#include "sim/faults/fault_clock.hpp"

#include <algorithm>

#include "engine/base/random.hpp"

namespace switchyard::sim {

using scenario::FaultKind;
using scenario::FaultRule;
using scenario::kAnyTarget;

namespace {

bool of_link(FaultKind k) { return k == FaultKind::kLinkDown || k == FaultKind::kLinkDegraded; }
bool of_expert(FaultKind k) {
  return k == FaultKind::kSlowExpert || k == FaultKind::kBitFlip || k == FaultKind::kMisSharding;
}

}  // namespace

FaultClock::FaultClock(const scenario::Scenario& scenario)
    : s_(scenario), done_(scenario.faults.events.size(), 0) {
  refresh();
}

std::vector<FaultChange> FaultClock::advance(std::uint64_t step, std::int64_t now_ps) {
  std::vector<FaultChange> changes;
  for (const Active& a : active_) {
    if (a.until <= step) changes.push_back({a.rule, false, a.target});
  }
  std::erase_if(active_, [&](const Active& a) { return a.until <= step; });
  const auto begin = [&](std::size_t rule, std::uint32_t target) {
    const FaultRule& r = s_.faults.events[rule];
    active_.push_back({rule, target, r.lasts == 0 ? UINT64_MAX : step + r.lasts, {}});
    changes.push_back({rule, true, target});
  };
  // A step may be asked for again, when nothing was left to plan or by another replica: its draws
  // would fall the same.
  const bool again = drawn_ == step;
  drawn_ = step;
  for (std::size_t i = 0; i < s_.faults.events.size(); ++i) {
    const FaultRule& r = s_.faults.events[i];
    const std::uint32_t target = of_link(r.kind) ? r.link : of_expert(r.kind) ? r.expert : r.gpu;
    if (r.probability == 0) {
      const bool due = r.step ? step >= *r.step : now_ps >= r.time->ps();
      if (due && done_[i] == 0) {
        done_[i] = 1;
        begin(i, target);
      }
      continue;
    }
    if (again) continue;
    // One draw for every target; a fault that is there already does not begin again.
    const auto all = static_cast<std::uint32_t>(of_link(r.kind) ? s_.hardware.links.size()
                                                                : s_.hardware.gpu_count());
    const bool one = target != kAnyTarget || r.kind == FaultKind::kHostStall || of_expert(r.kind);
    for (std::uint32_t t = one ? target : 0; one ? t == target : t < all; ++t) {
      const bool there = std::any_of(active_.begin(), active_.end(),
                                     [&](const Active& a) { return a.rule == i && a.target == t; });
      if (!there && random_uniform(s_.run.seed, random_purpose("fault"),
                                   {static_cast<std::uint32_t>(i), t,
                                    static_cast<std::uint32_t>(step), 0}) < r.probability) {
        begin(i, t);
      }
      if (one) break;
    }
  }
  refresh();
  return changes;
}

bool FaultClock::hits(const Active& a, std::uint32_t layer, std::uint32_t expert) const {
  const FaultRule& r = s_.faults.events[a.rule];
  return of_expert(r.kind) && r.expert == expert &&
         (r.layer == kAnyTarget ? !a.repaired.contains(layer) : r.layer == layer);
}

bool FaultClock::repair_expert(std::uint32_t layer, std::uint32_t expert) {
  return end_in_layer(layer, expert, false);
}

bool FaultClock::load_sound(std::uint32_t layer, std::uint32_t expert) {
  return any_damaged_ && end_in_layer(layer, expert, true);
}

bool FaultClock::end_in_layer(std::uint32_t layer, std::uint32_t expert, bool flips_only) {
  bool any = false;
  for (Active& a : active_) {
    if (!hits(a, layer, expert)) continue;
    if (flips_only && s_.faults.events[a.rule].kind != FaultKind::kBitFlip) continue;
    any = true;
    a.repaired.insert(layer);
  }
  if (!any) return false;
  const std::size_t layers = s_.model.num_moe_layers();
  std::erase_if(active_, [&](const Active& a) {
    const FaultRule& r = s_.faults.events[a.rule];
    return r.layer == kAnyTarget ? of_expert(r.kind) && a.repaired.size() >= layers
                                 : a.repaired.contains(r.layer);
  });
  refresh();
  return true;
}

bool FaultClock::repair(FaultKind kind, std::uint32_t target) {
  const std::size_t n = std::erase_if(active_, [&](const Active& a) {
    return s_.faults.events[a.rule].kind == kind && a.target == target;
  });
  refresh();
  return n > 0;
}

bool FaultClock::active(FaultKind kind, std::uint32_t target) const {
  return std::any_of(active_.begin(), active_.end(), [&](const Active& a) {
    return s_.faults.events[a.rule].kind == kind && a.target == target;
  });
}

double FaultClock::expert_factor(std::uint32_t layer, std::uint32_t expert) const {
  double factor = 1;
  for (const Active& a : active_) {
    const FaultRule& r = s_.faults.events[a.rule];
    if (r.kind == FaultKind::kSlowExpert && hits(a, layer, expert)) factor *= r.factor;
  }
  return factor;
}

bool FaultClock::damaged(std::uint32_t layer, std::uint32_t expert) const {
  return std::any_of(active_.begin(), active_.end(), [&](const Active& a) {
    return s_.faults.events[a.rule].kind == FaultKind::kBitFlip && hits(a, layer, expert);
  });
}

std::vector<FaultClock::BadGather> FaultClock::bad_gathers(std::uint32_t layer) const {
  std::vector<BadGather> out;
  for (const Active& a : active_) {
    const FaultRule& r = s_.faults.events[a.rule];
    if (r.kind == FaultKind::kGatherFailure && (r.layer == kAnyTarget || r.layer == layer)) {
      out.push_back({&r, a.target});
    }
  }
  return out;
}

void FaultClock::refresh() {
  const std::size_t gpus = s_.hardware.gpu_count();
  gpu_factor_.assign(gpus, 1);
  link_factor_.assign(s_.hardware.links.size(), 1);
  stall_ps_.assign(gpus, 0);
  leak_.assign(gpus, 0);
  touches_.assign(gpus, 0);
  clock_.assign(gpus, 1);
  any_slow_expert_ = any_damaged_ = any_bad_gather_ = false;
  for (const Active& a : active_) {
    const FaultRule& r = s_.faults.events[a.rule];
    switch (r.kind) {
      case FaultKind::kGpuLoss:
        break;
      case FaultKind::kSlowGpu:
        gpu_factor_[a.target] *= r.factor;
        touches_[a.target] = 1;
        break;
      case FaultKind::kLinkDown:
        link_factor_[a.target] = 0;
        break;
      case FaultKind::kLinkDegraded:
        link_factor_[a.target] *= r.factor;
        break;
      case FaultKind::kSlowExpert:
        any_slow_expert_ = true;
        break;
      case FaultKind::kBitFlip:
        any_damaged_ = true;
        break;
      case FaultKind::kHostStall:
        for (std::size_t g = 0; g < gpus; ++g) {
          if (a.target == kAnyTarget || a.target == g) stall_ps_[g] += r.stall.ps();
        }
        break;
      case FaultKind::kKvLeak:
        leak_[a.target] += r.bytes;
        break;
      case FaultKind::kHotGpu:
        clock_[a.target] *= r.factor;
        touches_[a.target] = 1;
        break;
      case FaultKind::kGatherFailure:
        any_bad_gather_ = true;
        break;
      case FaultKind::kMisSharding:
        touches_[r.gpu] = 1;
        break;
    }
    if (of_link(r.kind)) {
      const scenario::Link& l = s_.hardware.links[a.target];
      for (std::size_t g = 0; g < gpus; ++g) {
        if (s_.hardware.gpus[g] == l.a || s_.hardware.gpus[g] == l.b) touches_[g] = 1;
      }
    }
  }
}

}  // namespace switchyard::sim
