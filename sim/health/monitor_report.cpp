// SPDX-License-Identifier: Apache-2.0
#include "sim/health/monitor_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "sim/health/alarm_board.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::health {
namespace {

struct Line {
  std::int64_t time_ps = 0;
  std::vector<std::string> cells;
};

/// For most signals high is bad; for these low is.
bool low_is_bad(HealthSignal s) {
  return s == HealthSignal::kColdExpert || s == HealthSignal::kExpertFraction ||
         s == HealthSignal::kSparsityRatio || s == HealthSignal::kCohesion;
}

std::string state_of(HealthSignal signal, const std::vector<scenario::AlarmRule>& rules,
                     const AlarmBoard& board, const std::vector<std::size_t>& raised) {
  std::string state = "no rule";
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].signal != signal) continue;
    if (board.raised(i)) return "ALARM";
    if (raised[i] > 0) {
      state = fmt::format("cleared ({} raised)", raised[i]);
    } else if (state == "no rule") {
      state = std::isnan(board.statistic(i)) ? "n/a" : "ok";
    }
  }
  return state;
}

/// Of the text of an alarm that is raised: `alarm "name" raised`, or all of it where a circuit
/// breaker opens; empty of any other text.
std::string raised_name(const std::string& text) {
  constexpr std::string_view kRaised = "\" raised: ";
  if (text.starts_with("circuit breaker ") && text.find(" opens after ") != std::string::npos) {
    return text;
  }
  const std::size_t at = text.find(kRaised);
  return at == std::string::npos ? std::string() : text.substr(0, at + kRaised.size());
}

/// `summed`: the experts are those of the sum over layers.
MonitorReport monitor_steps(const run::RunData& run, RecordedSteps steps,
                            const std::vector<scenario::AlarmRule>& rules, bool summed) {
  AlarmBoard board(rules, run.inventory);
  std::vector<HealthSample> samples;
  std::vector<Line> lines;
  std::vector<std::size_t> raised(rules.size(), 0);
  std::set<std::pair<std::uint32_t, std::string>> of_rules;  // step, raised_name()
  std::size_t recorded = 0;
  ExpertSums whole;
  MonitorReport report;
  std::size_t warm_up = 0;
  for (std::uint32_t s = 0; s < steps.size(); ++s) {
    const run::StepRecord& r = steps.record(s);
    if (r.scalars.warmup) {
      // No statistic sees these. What rules did in the run itself is among its events.
      ++warm_up;
      continue;
    }
    for (const AlarmChange& c : board.push(r, s)) {
      if (c.kind == AlarmChange::Kind::kRepeated) continue;
      const bool up = c.kind == AlarmChange::Kind::kRaised;
      raised[c.rule] += up ? 1 : 0;
      if (up) of_rules.emplace(c.step, raised_name(c.text));
      const auto action = static_cast<std::size_t>(rules[c.rule].action);
      lines.push_back({c.time_ps,
                       {std::to_string(c.step), format_time(SimTime::from_ps(c.time_ps)), "rule",
                        c.text, describe(c.place, run.inventory),
                        up ? std::string(scenario::kAlarmActionNames[action]) : "-"}});
    }
    whole.kept.resize(std::max(whole.kept.size(), r.expert_kept.size()), 0);
    for (std::size_t i = 0; i < r.expert_kept.size(); ++i) whole.kept[i] += r.expert_kept[i];
    ++whole.steps;
    samples.push_back(board.last());
  }
  // Per layer, whatever the steps hold.
  if (!run.totals.expert_kept.empty()) {
    whole.kept.assign(run.totals.expert_kept.begin(), run.totals.expert_kept.end());
  }
  for (const std::int64_t t : run.totals.expert_time_ps) {
    whole.time_ps.push_back(static_cast<double>(t));
  }

  Table health;
  health.name = "health";
  health.title = fmt::format(
      "{}: health of {} steps on {} GPUs{}", run.meta.scenario_name, samples.size(),
      run.inventory.gpus.size(),
      warm_up == 0 ? std::string()
                   : fmt::format(", after {} step{} of warm-up", warm_up, warm_up == 1 ? "" : "s"));
  health.columns = {"signal", "mean", "p95", "worst", "step", "where", "state", "definition"};
  for (std::size_t i = 0; i < kHealthSignalCount; ++i) {
    const auto signal = static_cast<HealthSignal>(i);
    const auto show = [&](double v) { return scenario::show_signal(signal, v); };
    const std::string state = state_of(signal, rules, board, raised);
    const std::string name_of(scenario::kHealthSignals[i].name);
    const std::string definition(scenario::kHealthSignals[i].definition);
    if (scenario::kHealthSignals[i].summed) {
      const SummedValue v = summed_signal(signal, whole, run.inventory);
      health.rows.push_back({name_of, show(v.value), "-", show(v.value), "all",
                             describe(v.place, run.inventory), state, definition});
      continue;
    }
    std::vector<double> values;
    const HealthSample* worst = nullptr;
    for (const HealthSample& x : samples) {
      if (std::isnan(x.value[i])) continue;
      values.push_back(x.value[i]);
      if (worst == nullptr ||
          (low_is_bad(signal) ? x.value[i] < worst->value[i] : x.value[i] > worst->value[i])) {
        worst = &x;
      }
    }
    if (worst == nullptr) {
      health.rows.push_back({name_of, "n/a", "n/a", "n/a", "-", "-", state, definition});
      continue;
    }
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    health.rows.push_back({name_of, show(mean), show(run::nearest_rank(values, 95)),
                           show(worst->value[i]), std::to_string(worst->step),
                           describe(worst->place[i], run.inventory), state, definition});
  }
  health.notes.emplace_back(
      "load_cv, cold_expert and expert_latency are of the whole run here, of a window in alarms");
  if (summed) {
    health.notes.emplace_back(
        "the steps hold experts summed over the layers (the run's detail is \"steps\", or it is "
        "very "
        "long): alarms on load_cv and cold_expert cannot be decided");
  }

  for (const run::Event& e : run.events) {
    if (e.kind == run::EventKind::kOverflow) continue;
    // The run had other rules, or saw what it did not keep (the experts' times of a step).
    if (e.kind == run::EventKind::kAlarm) {
      const std::string which = raised_name(e.text);
      recorded += !which.empty() && !of_rules.contains({e.step, which}) ? 1 : 0;
    }
    const Place place{e.gpu, e.link, e.layer, e.expert};
    lines.push_back({e.time_ps,
                     {e.step == run::kNone ? "-" : std::to_string(e.step),
                      format_time(SimTime::from_ps(e.time_ps)),
                      std::string(run::kEventKindNames[static_cast<std::size_t>(e.kind)]), e.text,
                      describe(place, run.inventory), "-"}});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.time_ps < b.time_ps; });
  Table alarms;
  alarms.name = "alarms";
  alarms.title = "Alarms of the rules, and what the run recorded itself (overflows left out)";
  alarms.columns = {"step", "time", "from", "what", "where", "action"};
  for (Line& l : lines) alarms.rows.push_back(std::move(l.cells));
  for (const std::size_t n : raised) report.raised += n;
  alarms.notes.push_back(fmt::format("{} rules, {} alarms raised", rules.size(), report.raised));
  if (recorded > 0) {
    alarms.notes.push_back(fmt::format("{} more that the run raised itself", recorded));
    report.raised += recorded;
  }
  for (const scenario::AlarmRule& r : rules) {
    // Of the default rules the health table says so: state n/a.
    if (r.signal != HealthSignal::kExpertLatency || r.where == "default") continue;
    alarms.notes.push_back(
        fmt::format("rule \"{}\" cannot be decided here: a run keeps the experts' times of all its "
                    "steps together; a simulation with the rule in monitor.alarms raises it itself",
                    r.name));
  }
  report.tables = {std::move(health), std::move(alarms)};
  return report;
}

}  // namespace

MonitorReport monitor_run(const run::RunData& run, const std::vector<scenario::AlarmRule>& rules,
                          const std::string& name) {
  return monitor_steps(run, RecordedSteps(run, name), rules,
                       run.layer_experts.empty() && !run.experts.kept.empty());
}

MonitorReport monitor_run(const RecordedRun& file, const std::vector<scenario::AlarmRule>& rules,
                          const std::string& name) {
  return monitor_steps(file.run, RecordedSteps(file, name), rules,
                       !file.layers && !file.run.steps.empty() && file.run.inventory.experts > 0);
}

}  // namespace switchyard::health
