// SPDX-License-Identifier: Apache-2.0
// Raises and clears alarms step by step (rules: sim/scenario/alarms.hpp).
//
// Statistic over the last `window` steps: mean, max, min, p95 (nearest rank), growth = last -
// first; steps without data do not count. The summed signals are computed from the experts'
// counters of the window. An alarm cannot be raised before its window is full.
//
// Several replicas step by themselves: each rule watches each of them, its window is of that
// replica's steps, and GPUs are the replica's own (links are everybody's).
//
// Not modelled: alarms that depend on each other, alarms on sums over replicas.
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
  std::uint32_t engine = 0;  ///< The replica.
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
  /// In the replica; in any of them.
  [[nodiscard]] bool raised(std::size_t rule, std::uint32_t engine) const {
    return engines_[engine].states[rule].raised;
  }
  [[nodiscard]] bool raised(std::size_t rule) const;
  /// Last statistic of a rule, of the replica that stepped last; NaN before its window was full.
  [[nodiscard]] double statistic(std::size_t rule) const {
    return engines_[last_engine_].states[rule].value;
  }
  /// The sample of the last step.
  [[nodiscard]] const HealthSample& last() const { return last_; }

 private:
  struct State {
    std::deque<double> window;
    std::uint64_t pushed = 0;
    ExpertSums sums;
    bool raised = false;
    std::uint64_t since = 0;  // `pushed` at the last action.
    double value = run::kNoData;
  };
  struct Engine {
    std::vector<State> states;  // of the rules
    // Steps before this one, the newest last: kept, time.
    std::deque<std::pair<std::vector<std::uint32_t>, std::vector<std::int64_t>>> experts;
  };
  void update_sums(Engine& engine, std::size_t rule, const run::StepRecord& record) const;

  const std::vector<scenario::AlarmRule>& rules_;
  const run::Inventory& inventory_;
  std::vector<Engine> engines_;
  std::uint32_t last_engine_ = 0;
  std::uint32_t longest_ = 0;  // Window of the summed rules.
  HealthSample last_;
};

/// The statistic of a window's values, NaN left out; NaN when none is left.
double statistic_of(scenario::AlarmStatistic statistic, const std::deque<double>& window);

}  // namespace switchyard::health
