// SPDX-License-Identifier: Apache-2.0
// Raises and clears alarms step by step (rules: sim/scenario/alarms.hpp).
//
// Statistic over the last `window` steps: mean, max, min, p95 (nearest rank), growth = last -
// first; steps without data do not count. The summed signals are computed from the experts'
// counters of the window. An alarm cannot be raised before its window is full.
//
// Not modelled: alarms that depend on each other.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/health/health_series.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::health {

/// An alarm that was raised or cleared at the end of a step, or whose action is due again.
struct AlarmChange {
  enum class Kind : std::uint8_t { kRaised, kCleared, kRepeated };
  std::size_t rule = 0;  ///< Index into the rules.
  Kind kind = Kind::kRaised;
  std::uint32_t step = 0;
  std::int64_t time_ps = 0;
  double value = 0;
  Place place;
  std::string text;  ///< One line for people: signal, statistic, value, threshold.
};

class AlarmBoard {
 public:
  /// `rules` and `inventory` are borrowed and must outlive the board.
  AlarmBoard(const std::vector<scenario::AlarmRule>& rules, const run::Inventory& inventory);
  /// Takes the steps in order; returns what changed, in the order of the rules.
  std::vector<AlarmChange> push(const run::StepRecord& record, std::uint32_t step);
  [[nodiscard]] bool raised(std::size_t rule) const { return states_[rule].raised; }
  /// Last statistic of a rule; NaN before its window was full.
  [[nodiscard]] double statistic(std::size_t rule) const { return states_[rule].value; }
  /// The sample of the last step.
  [[nodiscard]] const HealthSample& last() const { return last_; }
  /// Experts' counters of the last steps (at most the longest window of a summed signal).
  [[nodiscard]] const ExpertSums& sums(std::size_t rule) const { return states_[rule].sums; }

 private:
  struct State {
    std::deque<double> window;
    std::uint64_t pushed = 0;
    ExpertSums sums;
    bool raised = false;
    std::uint32_t since = 0;  // Step of the last action.
    double value = run::kNoData;
  };
  void update_sums(std::size_t rule, const run::StepRecord& record);

  const std::vector<scenario::AlarmRule>& rules_;
  const run::Inventory& inventory_;
  std::vector<State> states_;
  std::uint32_t longest_ = 0;  // Window of the summed rules.
  std::deque<std::pair<std::vector<std::uint32_t>, std::vector<std::int64_t>>> experts_;
  HealthSample last_;
};

/// The statistic of a window's values, NaN left out; NaN when none is left.
double statistic_of(scenario::AlarmStatistic statistic, const std::deque<double>& window);

}  // namespace switchyard::health
