// SPDX-License-Identifier: Apache-2.0
#include "sim/health/alarm_board.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::health {

using scenario::AlarmRule;
using scenario::AlarmStatistic;

namespace {

bool summed(const AlarmRule& r) { return scenario::kHealthSignals[at(r.signal)].summed; }

template <class T>
void add(std::vector<double>& sums, const std::vector<T>& step, double sign) {
  if (sums.size() < step.size()) sums.resize(step.size(), 0);
  for (std::size_t i = 0; i < step.size(); ++i) sums[i] += sign * static_cast<double>(step[i]);
}

}  // namespace

double statistic_of(AlarmStatistic statistic, const std::deque<double>& window) {
  std::vector<double> v;
  for (const double x : window) {
    if (!std::isnan(x)) v.push_back(x);
  }
  if (v.empty()) return run::kNoData;
  switch (statistic) {
    case AlarmStatistic::kMean:
      return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
    case AlarmStatistic::kMax:
      return *std::max_element(v.begin(), v.end());
    case AlarmStatistic::kMin:
      return *std::min_element(v.begin(), v.end());
    case AlarmStatistic::kP95:
      return run::nearest_rank(std::move(v), 95);
    case AlarmStatistic::kGrowth:
      return v.back() - v.front();
  }
  return run::kNoData;
}

AlarmBoard::AlarmBoard(const std::vector<AlarmRule>& rules, const run::Inventory& inventory)
    : rules_(rules), inventory_(inventory) {
  std::uint32_t engines = 1;
  for (const run::GpuInfo& g : inventory.gpus) engines = std::max(engines, g.engine + 1);
  engines_.resize(engines);
  for (Engine& e : engines_) e.states.resize(rules.size());
  for (const AlarmRule& r : rules) {
    if (summed(r)) longest_ = std::max(longest_, r.window);
  }
}

bool AlarmBoard::raised(std::size_t rule) const {
  return std::any_of(engines_.begin(), engines_.end(),
                     [&](const Engine& e) { return e.states[rule].raised; });
}

void AlarmBoard::update_sums(Engine& engine, std::size_t rule,
                             const run::StepRecord& record) const {
  ExpertSums& sums = engine.states[rule].sums;
  add(sums.kept, record.expert_kept, 1);
  add(sums.time_ps, record.expert_time_ps, 1);
  ++sums.steps;
  const std::uint32_t window = rules_[rule].window;
  if (sums.steps > window) {
    const auto& gone = engine.experts[engine.experts.size() - window];
    add(sums.kept, gone.first, -1);
    add(sums.time_ps, gone.second, -1);
    --sums.steps;
  }
}

std::vector<AlarmChange> AlarmBoard::push(const run::StepRecord& record, std::uint32_t step) {
  last_ = sample_step(record, step, inventory_);
  last_engine_ = record.scalars.engine;
  SWITCHYARD_ASSERT(last_engine_ < engines_.size(), fmt::format("replica {}", last_engine_));
  Engine& engine = engines_[last_engine_];
  std::vector<AlarmChange> changes;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const AlarmRule& r = rules_[i];
    State& s = engine.states[i];
    ++s.pushed;
    Place place;
    std::string floor;
    if (summed(r)) {
      update_sums(engine, i, record);
      const SummedValue v = summed_signal(r.signal, s.sums, inventory_);
      s.value = v.value;
      place = v.place;
      if (place.gpu != run::kNone) {
        // The expert's copy in this replica.
        const std::size_t row =
            (std::size_t{place.layer} * inventory_.experts + place.expert) * inventory_.replicas;
        for (std::size_t k = row; k < row + inventory_.replicas; ++k) {
          const std::uint32_t g = inventory_.placement[k];
          if (g < inventory_.gpus.size() && inventory_.gpus[g].engine == last_engine_) {
            place.gpu = g;
            break;
          }
        }
      }
      if (!std::isnan(v.floor)) floor = fmt::format(" (counting alone gives {:.4g})", v.floor);
    } else {
      s.window.push_back(last_.value[at(r.signal)]);
      if (s.window.size() > r.window) s.window.pop_front();
      s.value = statistic_of(r.statistic, s.window);
      place = last_.place[at(r.signal)];
    }
    if (s.pushed < r.window) {
      s.value = run::kNoData;
      continue;
    }
    if (std::isnan(s.value)) continue;
    const double limit = s.raised ? r.clear : r.threshold;
    const bool beyond = r.above ? s.value > limit : s.value < limit;
    AlarmChange::Kind kind = AlarmChange::Kind::kRaised;
    if (beyond == s.raised) {
      if (!s.raised || r.repeat == 0 || s.pushed - s.since < r.repeat) continue;
      kind = AlarmChange::Kind::kRepeated;
    } else {
      kind = beyond ? AlarmChange::Kind::kRaised : AlarmChange::Kind::kCleared;
    }
    s.raised = beyond;
    s.since = s.pushed;
    AlarmChange c;
    c.rule = i;
    c.kind = kind;
    c.step = step;
    c.engine = last_engine_;
    c.time_ps = record.scalars.end_ps;
    c.value = s.value;
    c.place = place;
    const std::string_view verb = kind == AlarmChange::Kind::kRaised    ? "raised"
                                  : kind == AlarmChange::Kind::kCleared ? "cleared"
                                                                        : "stands";
    const std::string what =
        summed(r)
            ? std::string(scenario::kHealthSignals[at(r.signal)].name)
            : fmt::format("{} of {}",
                          scenario::kAlarmStatisticNames[static_cast<std::size_t>(r.statistic)],
                          scenario::kHealthSignals[at(r.signal)].name);
    const bool back = kind == AlarmChange::Kind::kCleared;
    c.text = fmt::format(
        "alarm \"{}\" {}: {} over {} step{} {}{} {} {}", r.name, verb, what, r.window,
        r.window == 1 ? "" : "s", scenario::show_signal(r.signal, s.value), floor,
        r.above != back ? ">" : "<", scenario::show_signal(r.signal, back ? r.clear : r.threshold));
    if (back) {
      c.text =
          fmt::format("alarm \"{}\" {}: {} over {} step{} {}{}, limit {}", r.name, verb, what,
                      r.window, r.window == 1 ? "" : "s", scenario::show_signal(r.signal, s.value),
                      floor, scenario::show_signal(r.signal, r.clear));
    }
    if (engines_.size() > 1) c.text += fmt::format(", replica {}", last_engine_);
    changes.push_back(std::move(c));
  }
  if (longest_ > 0) {
    engine.experts.emplace_back(record.expert_kept, record.expert_time_ps);
    if (engine.experts.size() > longest_) engine.experts.pop_front();
  }
  return changes;
}

}  // namespace switchyard::health
