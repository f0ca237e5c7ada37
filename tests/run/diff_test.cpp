// SPDX-License-Identifier: Apache-2.0
#include "sim/run/diff.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "experiments/cli/diff.hpp"
#include "experiments/cli/inspect_run.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"
#include "tests/run/sample_run.hpp"

namespace switchyard::run {
namespace {

using testing::sample_run;
using Row = std::vector<std::string>;

RunData small(double tokens_per_second, double step_time) {
  RunData run = sample_run(10, Detail::kSummary);
  run.metrics = {{"tokens per second", tokens_per_second, "1/s"},
                 {"step time mean", step_time, "us"},
                 {"MBU", kNoData, ""},
                 {"gate entropy", 1.5, "bit"}};
  return run;
}

TEST(Diff, ListsInputsThatDifferFirstThenMetricsWithTheBetterSide) {
  const RunData a = small(100, 50);
  RunData b = small(120, 40);
  b.meta.scenario_text = "workload.batch = 4\npolicy.capacity.factor = 2.0\nnetwork.model = flow\n";
  b.meta.trace_hash = "cc";
  b.metrics.push_back({"own", 3, "s"});
  const Table t = diff_runs(a, b);
  EXPECT_EQ(t.columns, (Row{"kind", "name", "unit", "A", "B", "B-A", "B/A", "better"}));
  const std::vector<Row> expected = {
      {"input", "policy.capacity.factor", "", "1.5", "2.0", "", "", ""},
      {"input", "network.model", "", "-", "flow", "", "", ""},
      {"input", "trace hash", "", "-", "cc", "", "", ""},
      {"metric", "tokens per second", "1/s", "100", "120", "20", "1.2", "B"},
      {"metric", "step time mean", "us", "50", "40", "-10", "0.8", "B"},
      {"metric", "MBU", "", "n/a", "n/a", "n/a", "n/a", "-"},
      {"metric", "gate entropy", "bit", "1.5", "1.5", "0", "1", "same"},
      {"metric", "own", "s", "n/a", "3", "n/a", "n/a", "-"},
  };
  EXPECT_EQ(t.rows, expected);
  EXPECT_TRUE(t.notes.empty());
}

TEST(Diff, SwappedRunsSwapTheBetterSide) {
  const Table t = diff_runs(small(120, 50), small(100, 50));
  EXPECT_EQ(t.rows[0].back(), "A");
  EXPECT_EQ(t.rows[1].back(), "same");
}

TEST(Seeds, MedianRangeAndNoiseOfTwoScenarios) {
  const auto run = [](std::uint64_t seed, const char* factor, double tokens, double time) {
    RunData r = small(tokens, time);
    r.meta.seed = seed;
    r.meta.scenario_text =
        "run.seed = " + std::to_string(seed) + "\npolicy.factor = " + factor + "\n";
    return r;
  };
  const RunData a1 = run(1, "1", 100, 50);
  const RunData a2 = run(2, "1", 110, 60);
  const RunData a3 = run(3, "1", 104, 52);
  const RunData b1 = run(1, "2", 120, 58);
  const RunData b2 = run(2, "2", 130, 70);
  EXPECT_TRUE(same_but_seed(a1.meta, a2.meta));
  EXPECT_FALSE(same_but_seed(a1.meta, b1.meta));
  const Table t = diff_seeds({&a1, &a2, &a3}, {&b1, &b2});
  const std::vector<Row> expected = {
      {"input", "policy.factor", "", "1", "", "2", "", "", "", ""},
      {"metric", "tokens per second", "1/s", "104", "100 .. 110", "125", "120 .. 130", "21",
       "1.20192", "B"},
      {"metric", "step time mean", "us", "52", "50 .. 60", "64", "58 .. 70", "12", "1.23077",
       "noise"},
      {"metric", "MBU", "", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a", "-"},
      {"metric", "gate entropy", "bit", "1.5", "1.5 .. 1.5", "1.5", "1.5 .. 1.5", "0", "1", "same"},
  };
  EXPECT_EQ(t.rows, expected);
  EXPECT_NE(t.title.find("3 seeds: 1, 2, 3"), std::string::npos) << t.title;
  // One scenario alone: its spread.
  const Table alone = diff_seeds({&a1, &a2}, {});
  EXPECT_EQ(alone.rows[0],
            (Row{"metric", "tokens per second", "1/s", "105", "100 .. 110", "", "", "", "", ""}));
  EXPECT_THROW((void)diff_seeds({&a1, &a1}, {&b1}), InputError);
  EXPECT_THROW((void)diff_seeds({&a1, &b2}, {&b1}), InputError);
}

TEST(Seeds, NoiseNeedsASecondSeedAndTouchingRanges) {
  const Spread one{1, 5, 5, 5};
  const Spread near{3, 5.5, 5, 6};
  const Spread far{3, 8, 7, 9};
  EXPECT_FALSE(within_noise(one, one)) << "one run a side says nothing about noise";
  EXPECT_TRUE(within_noise(one, near));
  EXPECT_TRUE(within_noise(near, one));
  EXPECT_FALSE(within_noise(near, far));
  EXPECT_FALSE(within_noise(Spread{}, near));
}

TEST(Diff, ReportsAChangedInputThatChangedNoResult) {
  const RunData a = small(100, 50);
  RunData b = a;
  b.meta.scenario_text = "workload.batch = 4\npolicy.capacity.factor = 9.0\n";
  b.meta.seed = 8;
  EXPECT_EQ(diff_runs(a, b).notes,
            (Row{"changed input that changed no result: policy.capacity.factor, seed"}));
  b.totals.expert_kept[0] += 1;
  EXPECT_TRUE(diff_runs(a, b).notes.empty());
}

TEST(Diff, SaysWhenRunsAreTheSameAndWhenDeterminismIsBroken) {
  const RunData a = small(100, 50);
  EXPECT_EQ(diff_runs(a, a).notes, (Row{"inputs and results are the same"}));
  EXPECT_EQ(diff_runs(a, small(101, 50)).notes,
            (Row{"results differ although no input does: this breaks determinism"}));
}

TEST(ScenarioEntries, ReadsFlatKeysAndTables) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(scenario_entries("# c\na.b = 1\n\n[net.x]\nmodel = \"a = b\"\r\nflag\n"),
            (Pairs{{"a.b", "1"}, {"net.x.model", "\"a = b\""}, {"net.x.flag", ""}}));
  EXPECT_TRUE(scenario_entries("").empty());
}

RunData with_metrics(RunData run) {
  run.metrics = compute_metrics(run);
  return run;
}

TEST(DiffVerb, PrintsTheTableOfTheTwoFiles) {
  write_run("a.h5", with_metrics(sample_run(10, Detail::kLayers)));
  RunData other = with_metrics(sample_run(6, Detail::kSteps));
  other.meta.scenario_text = "workload.batch = 4\npolicy.capacity.factor = 2.0\n";
  write_run("b.h5", other);
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(cli::run_diff({"a.h5", "b.h5", TableFormat::kCsv, true}), 0);
  const std::string csv = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(csv.rfind("kind,name,unit,A,B,B-A,B/A,better\n"
                      "input,policy.capacity.factor,,1.5,2.0,,,\n"
                      "metric,measured steps,,8,4,-4,0.5,-\n",
                      0),
            0U)
      << csv;
  EXPECT_NE(csv.find("metric,overflow share,,0.0234375,0.03125,0.0078125,1.33333,A\n"),
            std::string::npos)
      << csv;
  EXPECT_THROW((void)cli::run_diff({"a.h5", "missing.h5", TableFormat::kCsv, true}), InputError);
}

TEST(DiffVerb, SeveralSeedsPrintMedianAndRange) {
  const auto file = [](const char* name, std::uint64_t seed, const char* factor,
                       std::uint32_t steps) {
    RunData r = with_metrics(sample_run(steps, Detail::kSteps));
    r.meta.seed = seed;
    r.meta.scenario_text = std::string("policy.capacity.factor = ") + factor + "\n";
    write_run(name, r);
  };
  file("a1.h5", 1, "1.5", 10);
  file("a2.h5", 2, "1.5", 14);
  file("a3.h5", 3, "1.5", 11);
  file("b1.h5", 1, "2.0", 12);
  file("third.h5", 1, "3.0", 12);
  const auto diff = [](std::vector<std::string> more) {
    return cli::run_diff({"a1.h5", "b1.h5", TableFormat::kCsv, true, std::move(more)});
  };
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(diff({"a2.h5", "a3.h5"}), 0);
  const std::string csv = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(csv.rfind("kind,name,unit,A,A range,B,B range,B-A,B/A,better\n"
                      "input,policy.capacity.factor,,1.5,,2.0,,,,\n"
                      "metric,measured steps,,9,8 .. 12,10,10 .. 10,1,1.11111,noise\n",
                      0),
            0U)
      << csv;
  EXPECT_THROW((void)diff({"third.h5"}), InputError);
  EXPECT_THROW((void)diff({"a1.h5"}), InputError) << "the same seed twice";
}

TEST(InspectRun, ShowsRunMetricsAndConservation) {
  write_run("a.h5", with_metrics(sample_run(10, Detail::kLayers)));
  const std::vector<Table> tables = cli::inspect_run("a.h5");
  ASSERT_EQ(tables.size(), 3U);
  const auto has = [](const Table& t, const Row& row) {
    return std::find(t.rows.begin(), t.rows.end(), row) != t.rows.end();
  };
  EXPECT_TRUE(has(tables[0], {"scenario", "sample"}));
  EXPECT_TRUE(has(tables[0], {"detail", "layers"}));
  EXPECT_TRUE(has(tables[0], {"rerouted", "3"}));
  EXPECT_TRUE(has(tables[0], {"events: drop", "1"}));
  EXPECT_EQ(tables[0].notes, (Row{"made by a test"}));
  EXPECT_TRUE(has(tables[1], {"tokens per second", "40000", "1/s", "tokens / span"}));
  EXPECT_TRUE(tables[2].rows.empty());
  EXPECT_EQ(tables[2].notes, (Row{"all hold, as far as detail = \"layers\" shows"}));
  for (const Table& t : tables) EXPECT_FALSE(render(t, TableFormat::kMarkdown).empty());

  RunData bad = sample_run(10, Detail::kLayers);
  bad.steps[3].bytes_sent = 1;
  write_run("bad.h5", bad);
  EXPECT_TRUE(has(cli::inspect_run("bad.h5")[2], {"bytes", "step 3", "sent = 1, received = 7000"}));
}

TEST(InspectRun, LeavesTheLayersOfAVeryLongRunOutUnlessAsked) {
  RunData run = sample_run(10, Detail::kLayers);
  ++run.layer_experts[0].kept[5];
  write_run("layers.h5", run);
  const auto laws = [](cli::InspectRunOptions options) {
    return cli::inspect_run("layers.h5", options)[2];
  };
  EXPECT_FALSE(laws({}).rows.empty());
  const Table without = laws({.most_layer_numbers = 10});
  EXPECT_TRUE(without.rows.empty());
  ASSERT_EQ(without.notes.size(), 2U);
  EXPECT_NE(without.notes[1].find("--layers checks them too"), std::string::npos);
  EXPECT_FALSE(laws({.layers = true, .most_layer_numbers = 10}).rows.empty());
}

}  // namespace
}  // namespace switchyard::run
