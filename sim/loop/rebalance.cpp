// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

/// Notes the signal and loads of the step, which ended then; true when the placement is due for a
/// change.
bool Simulator::rebalance_due(std::int64_t end_ps) {
  const scenario::RebalanceSpec& r = layout().rebalance;
  if (r.signal == scenario::RebalanceSignal::kOff) return false;
  const run::StepScalars& sc = record_.scalars;
  double signal = sc.imbalance;
  if (r.signal == scenario::RebalanceSignal::kCongestion) {
    std::int64_t busiest = 0;
    for (const std::int64_t ps : record_.link_busy_ps) busiest = std::max(busiest, ps);
    signal = static_cast<double>(busiest) /
             static_cast<double>(std::max<std::int64_t>(end_ps - sc.start_ps, 1));
  }
  window_signal_.push_back(signal);
  window_kept_.push_back(record_.expert_kept);
  if (window_signal_.size() > r.window) {
    window_signal_.pop_front();
    window_kept_.pop_front();
  }
  ++steps_since_move_;
  if (window_signal_.size() < r.window || (tries_ > 0 && steps_since_move_ < r.cooldown)) {
    return false;
  }
  window_mean_ = std::accumulate(window_signal_.begin(), window_signal_.end(), 0.0) / r.window;
  return window_mean_ > r.threshold;
}

/// Makes the placement anew from the window's loads and moves the experts, before the step's own
/// work: the weights travel over the links, and while they do both copies take memory.
void Simulator::rebalance(std::uint64_t step) {
  const scenario::RebalanceSpec& r = layout().rebalance;
  const auto index = static_cast<std::uint32_t>(step);
  std::vector<std::vector<double>> loads(layers_, std::vector<double>(experts_, 0));
  for (const auto& kept : window_kept_) {
    for (std::size_t i = 0; i < kept.size(); ++i) loads[i / experts_][i % experts_] += kept[i];
  }
  placement::Placement next = place_by_loads(s_, layout(), r.to, loads, speed_);
  const std::uint64_t bytes_each = expert_bytes(*pool_);
  const Migration m = plan_migration(s_, pool_->places, next, bytes_each);
  const std::int64_t begin = *std::max_element(ready_.begin(), ready_.end());
  // Experts that are loaded on demand do not travel: the host has them all.
  for (std::uint32_t g = 0; g < gpus_ && !loads_; ++g) {
    ledger_.allocate(g, MemoryCategory::kExperts, m.arriving[g] * bytes_each, ready_[g], index,
                     fmt::format("{} experts arrive", m.arriving[g]));
  }
  std::int64_t duration = 0, floor = 0;
  if (!loads_) exchange(run::Phase::kCollective, run::kNone, {m.bytes}, duration, floor);
  for (std::uint32_t g = 0; g < gpus_ && !loads_; ++g) {
    ledger_.release(g, MemoryCategory::kExperts, m.leaving[g] * bytes_each, ready_[g], index,
                    "experts have left");
  }
  const auto mean_imbalance = [&](const placement::Placement& p) {
    double sum = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      sum += placement::imbalance(p.row(l), loads[l], layout().ep);
    }
    return sum / layers_;
  };
  const std::uint64_t moved =
      loads_ ? 0 : std::accumulate(m.bytes.begin(), m.bytes.end(), std::uint64_t{0});
  run::Event e;
  e.time_ps = begin;
  e.step = index;
  e.kind = run::EventKind::kPolicyAction;
  e.value = static_cast<double>(moved);
  const std::string what =
      loads_
          ? fmt::format("{} copies of experts change GPUs and are loaded when asked for", m.copies)
          : fmt::format("{} copies of experts arrive, {} B over links in {:.4g} us", m.copies,
                        moved, static_cast<double>(duration) * 1e-6);
  e.text = fmt::format(
      "rebalance: {} {:.4g} > {:.4g} over {} steps; {}; imbalance of these loads "
      "{:.4g} -> {:.4g}",
      r.signal == scenario::RebalanceSignal::kLoad ? "load" : "congestion", window_mean_,
      r.threshold, r.window, what, mean_imbalance(pool_->places), mean_imbalance(next));
  sink_.data().events.push_back(std::move(e));
  pool_->place(std::move(next));
  if (loads_) relocate_experts();
  if (duplicates_.empty()) duplicates_ = placement::describe(placement::duplicates(pool_->places));
  window_signal_.clear();
  window_kept_.clear();
  steps_since_move_ = 0;
  ++tries_;
  if (m.copies > 0) ++moves_;
}

}  // namespace switchyard::sim
