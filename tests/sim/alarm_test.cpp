// SPDX-License-Identifier: Apache-2.0
// Alarm rules: reading, windows, hysteresis, statistics, sums over experts; the verb's tables.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/health/alarm_board.hpp"
#include "sim/health/alarm_rules.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/health/plain_table.hpp"
#include "tests/run/sample_run.hpp"
#include "tests/sim/golden_text.hpp"

namespace switchyard::health {
namespace {

using Kind = AlarmChange::Kind;
using scenario::AlarmRule;
using scenario::AlarmStatistic;

/// Steps whose fullest GPU holds the given shares of its 1000 B.
struct Steps {
  run::Inventory inv = run::testing::sample_inventory();
  std::vector<AlarmRule> rules;
  std::uint32_t n = 0;
  run::StepRecord record(double memory) {
    run::StepRecord r = run::testing::sample_step(inv, n);
    r.gpu_memory_peak = {static_cast<std::uint64_t>(std::lround(memory * 1000)), 100};
    return r;
  }
};

AlarmRule memory_rule(double above, double clear, std::uint32_t window, AlarmStatistic s) {
  AlarmRule r;
  r.name = "memory";
  r.signal = HealthSignal::kMemory;
  r.threshold = above;
  r.clear = clear;
  r.window = window;
  r.statistic = s;
  return r;
}

/// "R3" raised in step 3, "C5" cleared, "S7" stands.
std::string changes(Steps& s, const std::vector<double>& memory) {
  AlarmBoard board(s.rules, s.inv);
  std::string out;
  for (const double m : memory) {
    for (const AlarmChange& c : board.push(s.record(m), s.n)) {
      out += (out.empty() ? "" : " ");
      out += c.kind == Kind::kRaised ? 'R' : c.kind == Kind::kCleared ? 'C' : 'S';
      out += std::to_string(c.step);
    }
    ++s.n;
  }
  return out;
}

std::string message(const std::string& text) {
  write_file("rules.toml", text);
  try {
    (void)scenario::read_alarm_file("rules.toml");
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST(AlarmBoard, RaisesAboveTheThresholdAndClearsBelowTheOtherOne) {
  Steps s;
  s.rules = {memory_rule(0.9, 0.8, 1, AlarmStatistic::kMean)};
  // 0.9 is not above 0.9; 0.85 keeps the alarm, 0.8 is no longer above 0.8.
  EXPECT_EQ(changes(s, {0.5, 0.9, 0.91, 0.95, 0.85, 0.8, 0.85, 0.92}), "R2 C5 R7");
}

TEST(AlarmBoard, WaitsForAFullWindow) {
  Steps s;
  s.rules = {memory_rule(0.5, 0.5, 3, AlarmStatistic::kMean)};
  // Means of three: -, -, 0.6, 0.5, 0.4.
  EXPECT_EQ(changes(s, {0.9, 0.6, 0.3, 0.6, 0.3}), "R2 C3");
}

TEST(AlarmBoard, RepeatsAnActionWhileTheAlarmStands) {
  Steps s;
  s.rules = {memory_rule(0.5, 0.5, 1, AlarmStatistic::kMax)};
  s.rules[0].repeat = 2;
  EXPECT_EQ(changes(s, {0.6, 0.6, 0.6, 0.6, 0.6, 0.4}), "R0 S2 S4 C5");
}

TEST(AlarmBoard, GrowthIsLastLessFirst) {
  Steps s;
  s.rules = {memory_rule(0.25, 0.25, 3, AlarmStatistic::kGrowth)};
  // 0.2, 0.3, 0.2: only the second is above 0.25.
  EXPECT_EQ(changes(s, {0.1, 0.2, 0.3, 0.5, 0.5}), "R3 C4");
}

TEST(AlarmBoard, BelowIsTheOtherSide) {
  Steps s;
  s.rules = {memory_rule(0.3, 0.4, 1, AlarmStatistic::kMin)};
  s.rules[0].above = false;
  EXPECT_EQ(changes(s, {0.35, 0.29, 0.39, 0.4}), "R1 C3");
}

TEST(AlarmBoard, StatisticsLeaveOutStepsWithoutData) {
  const double none = run::kNoData;
  EXPECT_DOUBLE_EQ(statistic_of(AlarmStatistic::kMean, {1, none, 3}), 2);
  EXPECT_DOUBLE_EQ(statistic_of(AlarmStatistic::kMin, {none, 3, 2}), 2);
  // Nearest rank of 95 % of 20 values: the 19th.
  std::deque<double> v;
  for (int i = 1; i <= 20; ++i) v.push_back(i);
  EXPECT_DOUBLE_EQ(statistic_of(AlarmStatistic::kP95, v), 19);
  EXPECT_TRUE(std::isnan(statistic_of(AlarmStatistic::kMax, {none})));
}

TEST(SummedSignals, AreOfTheWindowNotOfItsSteps) {
  Steps s;
  AlarmRule r;
  r.name = "cold";
  r.signal = HealthSignal::kColdExpert;
  r.above = false;
  r.threshold = r.clear = 0.9;
  r.window = 2;
  s.rules = {r};
  AlarmBoard board(s.rules, s.inv);
  // Layer 0 keeps 2 2 2 2, in step 1 it keeps 3 3 2 0. Sums: step 1: 5 5 4 2, mean 4 → 0.5; step 2
  // the same; step 3: 4 4 4 4 → 1.
  const std::vector<double> wanted{run::kNoData, 0.5, 0.5, 1};
  for (std::uint32_t n = 0; n < 4; ++n) {
    const auto c = board.push(run::testing::sample_step(s.inv, n), n);
    if (n == 0) {
      EXPECT_TRUE(std::isnan(board.statistic(0)));
      continue;
    }
    EXPECT_DOUBLE_EQ(board.statistic(0), wanted[n]) << n;
    ASSERT_EQ(c.size(), n == 2 ? 0U : 1U) << n;
    if (n == 1) {
      EXPECT_EQ(describe(c[0].place, s.inv), "gpu1 MoE layer 1 expert 3");
    }
  }
}

TEST(SummedSignals, LoadCvIsStdOverMeanAndNamesItsFloor) {
  run::Inventory inv = run::testing::sample_inventory();
  inv.moe_layers = {1};
  // 6 2 4 4: mean 4, std sqrt((4 + 4) / 4) = sqrt(2). Floor sqrt((1 - 2/4) / 4).
  const SummedValue v = summed_signal(HealthSignal::kLoadCv, {{6, 2, 4, 4}, {}, 1}, inv);
  EXPECT_DOUBLE_EQ(v.value, std::sqrt(2.0) / 4);
  EXPECT_DOUBLE_EQ(v.floor, std::sqrt(0.5 / 4));
}

TEST(SummedSignals, ExpertLatencyComparesExpertsThatRan) {
  run::Inventory inv = run::testing::sample_inventory();
  inv.moe_layers = {1};
  // 30 against a mean of (10 + 30 + 20) / 3 = 20; the expert without a call does not count.
  const SummedValue v = summed_signal(HealthSignal::kExpertLatency, {{}, {10, 30, 0, 20}, 1}, inv);
  EXPECT_DOUBLE_EQ(v.value, 1.5);
  EXPECT_EQ(v.place.expert, 1U);
  EXPECT_EQ(v.place.gpu, 0U);
}

TEST(AlarmFile, ReadsThresholdsInTheSignalsUnit) {
  write_file("good.toml",
             "[[alarms]]\nsignal = \"step_time\"\nabove = \"2 ms\"\n"
             "[[alarms]]\nname = \"m\"\nsignal = \"memory\"\nabove = \"95 %\"\nclear = \"90 %\"\n"
             "window = 4\nstatistic = \"p95\"\n"
             "[[alarms]]\nsignal = \"cold_expert\"\nbelow = 0.3\n");
  const auto rules = scenario::read_alarm_file("good.toml");
  ASSERT_EQ(rules.size(), 3U);
  EXPECT_DOUBLE_EQ(rules[0].threshold, 2e-3);
  EXPECT_EQ(rules[0].name, "step_time");
  EXPECT_DOUBLE_EQ(rules[1].threshold, 0.95);
  EXPECT_DOUBLE_EQ(rules[1].clear, 0.90);
  EXPECT_EQ(rules[1].statistic, AlarmStatistic::kP95);
  EXPECT_FALSE(rules[2].above);
}

TEST(AlarmFile, RefusesWhatMeansNothing) {
  const std::string head = "[[alarms]]\nsignal = \"memory\"\n";
  EXPECT_EQ(message(head + "above = 0.95\n"),
            "rules.toml:3:9: alarms[0].above = 0.95 has no unit; write e.g. \"92 %\"");
  EXPECT_EQ(message(head), "rules.toml:1:1: alarms[0].above is missing; give above or below");
  EXPECT_EQ(
      message("[[alarms]]\nsignal = \"memry\"\nabove = \"9 %\"\n"),
      "rules.toml:2:10: alarms[0].signal = \"memry\": unknown value; did you mean \"memory\"?");
  EXPECT_EQ(message(head + "above = \"9 %\"\nclear = \"10 %\"\n"),
            "rules.toml:4:9: alarms[0].clear = \"10 %\". Violated: clear <= above");
  EXPECT_EQ(message("[[alarms]]\nsignal = \"load_cv\"\nabove = 1\nstatistic = \"max\"\n"),
            "rules.toml:4:13: alarms[0].statistic = \"max\": load_cv is computed from the window's "
            "sums");
  EXPECT_EQ(message(head + "above = \"9 %\"\naction = \"policy\"\n"),
            "rules.toml:1:1: alarms[0].policy is missing; name a policy file");
  EXPECT_EQ(message("x = 1\n"), "rules.toml:1:1: x: unknown key; known: alarms");
}

TEST(Monitor, PrintsHealthAndAlarms) {
  const run::RunData run = run::testing::sample_run(12, run::Detail::kLayers);
  auto rules = scenario::default_alarms(0.92);
  rules.push_back(memory_rule(0.415, 0.415, 1, AlarmStatistic::kMax));
  rules.back().name = "memory low";
  const MonitorReport report = monitor_run(run, rules, "sample.h5");
  // Memory reaches 416 of 1000 B in step 6; a drop in step 5.
  EXPECT_EQ(report.raised, 2U);
  test::expect_golden("monitor.txt", render_all(report.tables, TableFormat::kText));
}

TEST(Monitor, TakesTheRulesOfTheRunsOwnScenario) {
  run::RunData run = run::testing::sample_run(12, run::Detail::kLayers);
  const AlarmRules standard = alarm_rules_of(run);
  EXPECT_FALSE(standard.own);
  EXPECT_EQ(standard.source, "the default rules: the run's scenario has no monitor.alarms");
  EXPECT_EQ(standard.rules.size(), scenario::default_alarms(0.92).size());
  run.meta.scenario_text +=
      "memory.watermark = 50 %\nmonitor.alarms[0].signal = memory\n"
      "monitor.alarms[0].name = fill\nmonitor.alarms[0].above = 41.5 %\n"
      "monitor.alarms[0].clear = 41.5 %\nmonitor.alarms[0].window = 1\n"
      "monitor.alarms[0].statistic = max\nmonitor.alarms[0].action = shed\n";
  const AlarmRules own = alarm_rules_of(run);
  ASSERT_EQ(own.rules.size(), 1U) << own.source;
  EXPECT_TRUE(own.own);
  EXPECT_EQ(own.rules[0].name, "fill");
  EXPECT_DOUBLE_EQ(own.rules[0].threshold, 0.415);
  EXPECT_EQ(own.rules[0].action, scenario::AlarmAction::kShed);
  EXPECT_EQ(monitor_run(run, own.rules, "sample.h5").raised, 1U);
  // Of a run just made the scenario's rules are known, also where its text does not read back.
  run.meta.scenario_text += "monitor.alarms[0].above = many\n";
  EXPECT_FALSE(alarm_rules_of(run).own);
  const AlarmRules stated = alarm_rules_of(run, own.rules);
  EXPECT_TRUE(stated.own);
  EXPECT_EQ(stated.source, "the rules of the run's own scenario (monitor.alarms)");
  ASSERT_EQ(stated.rules.size(), 1U);
  EXPECT_EQ(stated.rules[0].name, "fill");
  EXPECT_EQ(alarm_rules_of(run, {}).source, alarm_rules_of(run).source);
}

TEST(Monitor, CountsAlarmsThatOnlyTheRunCouldRaise) {
  run::RunData run = run::testing::sample_run(12, run::Detail::kLayers);
  AlarmRule sick;
  sick.name = "sick";
  sick.signal = HealthSignal::kExpertLatency;
  sick.threshold = sick.clear = 0.5;
  auto rules = scenario::default_alarms(0.92);
  rules.push_back(sick);
  const MonitorReport before = monitor_run(run, rules, "sample.h5");
  EXPECT_EQ(before.raised, 1U);  // drops, in step 5
  ASSERT_EQ(before.tables[1].notes.size(), 2U);
  EXPECT_NE(before.tables[1].notes[1].find("rule \"sick\" cannot be decided here"),
            std::string::npos);
  const auto record = [&](std::uint32_t step, const std::string& text) {
    run::Event e;
    e.step = step;
    e.kind = run::EventKind::kAlarm;
    e.text = text;
    run.events.push_back(e);
  };
  // The board's own one does not count again; an alarm that clears is none.
  record(5, "alarm \"drops\" raised: mean of drop_share over 1 step 6.3 % > 0 %");
  record(6, "alarm \"sick\" cleared: expert_latency over 1 step 0.4, limit 0.5");
  EXPECT_EQ(monitor_run(run, rules, "sample.h5").raised, 1U);
  record(4, "alarm \"sick\" raised: expert_latency over 1 step 3 > 0.5");
  EXPECT_EQ(monitor_run(run, rules, "sample.h5").raised, 2U);
  // A circuit breaker is an alarm of the run as well: once when it opens, not when it closes.
  record(7, "circuit breaker of replica 1 opens after 3 failed checks; 4 requests start again");
  record(8, "circuit breaker of replica 1 closes");
  EXPECT_EQ(monitor_run(run, rules, "sample.h5").raised, 3U);
}

TEST(Monitor, LeavesOutStepsOfWarmUp) {
  // The drop of step 5 and the memory of steps 6 and 7.
  run::RunData run = run::testing::sample_run(12, run::Detail::kLayers);
  for (std::size_t s = 0; s < run.steps.size(); ++s) run.steps[s].warmup = s < 6 ? 1 : 0;
  auto rules = scenario::default_alarms(0.92);
  rules.push_back(memory_rule(0.415, 0.415, 1, AlarmStatistic::kMax));
  rules.back().name = "memory low";
  const MonitorReport report = monitor_run(run, rules, "sample.h5");
  EXPECT_EQ(report.raised, 1U);
  EXPECT_NE(report.tables[0].title.find("health of 6 steps on 2 GPUs, after 6 steps of warm-up"),
            std::string::npos)
      << report.tables[0].title;
}

TEST(Monitor, RefusesARunWithoutSteps) {
  const run::RunData run = run::testing::sample_run(12, run::Detail::kSummary);
  EXPECT_THROW((void)monitor_run(run, scenario::default_alarms(0.92), "sample.h5"), InputError);
}

TEST(Monitor, SaysTheSameWhetherTheRunWasReadOrMade) {
  const run::RunData layers = run::testing::sample_run(12, run::Detail::kLayers);
  run::RunData again = layers;
  again.tokens.clear();
  const auto rules = scenario::default_alarms(0.92);
  EXPECT_EQ(render_all(monitor_run(layers, rules, "a").tables, TableFormat::kJson),
            render_all(monitor_run(again, rules, "a").tables, TableFormat::kJson));
}

TEST(Monitor, SaysTheSameOfAFileThatItReadsByParts) {
  // More than one window of steps.
  for (const run::Detail detail : {run::Detail::kSteps, run::Detail::kLayers}) {
    run::RunData whole = run::testing::sample_run(2 * RecordedSteps::kWindow + 9, detail);
    whole.metrics.clear();
    run::write_run("parts.h5", whole);
    RecordedRun file = read_recorded("parts.h5");
    EXPECT_EQ(file.layers, detail == run::Detail::kLayers);
    int parts = 0;
    file.between = [&parts] { ++parts; };
    const auto rules = scenario::default_alarms(0.92);
    EXPECT_EQ(render_all(monitor_run(file, rules, "a").tables, TableFormat::kText),
              render_all(monitor_run(whole, rules, "a").tables, TableFormat::kText));
    EXPECT_EQ(parts, 3);
    EXPECT_EQ(render_all(diagnose(file.run, "a").tables, TableFormat::kText),
              render_all(diagnose(whole, "a").tables, TableFormat::kText));
  }
  run::write_run("parts.h5", run::testing::sample_run(12, run::Detail::kSummary));
  const RecordedRun none = read_recorded("parts.h5");
  EXPECT_THROW((void)monitor_run(none, scenario::default_alarms(0.92), "a"), InputError);
}

TEST(PlainTables, HaveNumbersInTheirCellsAndUnitsInTheHeaders) {
  Table t;
  t.columns = {"signal", "mean", "share", "time", "rate", "text", "count"};
  t.rows = {{"step_time", "100 us", "5 %", "6.25 ms", "2.5 TB/s", "2 of 4", "7"},
            {"load_cv", "0.25", "n/a", "900 ns", "50 MB/s", "-", "-"},
            {"memory", "41.5 %", "0.125 %", "-", "1 GB/s", "", "9"}};
  const Table p = plain_tables({t}).front();
  EXPECT_EQ(p.columns, (std::vector<std::string>{"signal", "unit", "mean", "share [%]", "time [us]",
                                                 "rate [GB/s]", "text", "count"}));
  using Row = std::vector<std::string>;
  EXPECT_EQ(p.rows[0], (Row{"step_time", "us", "100", "5", "6250", "2500", "2 of 4", "7"}));
  EXPECT_EQ(p.rows[1], (Row{"load_cv", "", "0.25", "", "0.9", "0.05", "-", ""}));
  EXPECT_EQ(p.rows[2], (Row{"memory", "%", "41.5", "0.125", "", "1", "", "9"}));
}

}  // namespace switchyard::health
