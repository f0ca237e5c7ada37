// SPDX-License-Identifier: Apache-2.0
// Cohesion of the tokens of an expert, step by step, on the machine of the worked example: layer 1
// gives tokens 0 … 3 to experts {4, 5}, {5, 6}, {6, 7}, {7, 0}, so 5, 6 and 7 have two tokens each.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/trace/trace_activity.hpp"
#include "engine/trace/trace_parts.hpp"
#include "sim/run/run_file.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

/// Inputs of the last layer (1,0), (3,0), (2,3), (2,-3): mean (2,0), centred -x, x, 3y, -3y. What
/// layer 0 saw is other and must not matter.
RoutingTrace with_hidden_states() {
  RoutingTrace t = test::decode_trace(
      {{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  t.header.hidden = 2;
  const std::vector<float> last{1, 0, 3, 0, 2, 3, 2, -3};
  for (std::size_t row = 0; row < 4; ++row) {
    for (const float v : {1.0F, 1.0F, last[2 * row], last[2 * row + 1]}) {
      t.routing.router_input.push_back(
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16U));
    }
  }
  return t;
}

std::string refusal(const scenario::Scenario& s, const RoutingTrace* trace) {
  try {
    (void)test::run_in_memory(s, trace);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

double metric(const run::RunData& run, const std::string& name) {
  for (const run::Metric& m : run.metrics) {
    if (m.name == name) return m.value;
  }
  return -9;
}

const std::string kBelow = R"({signal="cohesion",below=-0.5,window=2)";

}  // namespace

TEST(StepCohesion, IsTheMeanCosineOfAnExpertsTokens) {
  const RoutingTrace trace = with_hidden_states();
  const test::MemoryRun r =
      test::run_in_memory(test::worked_scenario({"workload.steps=300"}), &trace);
  ASSERT_TRUE(r.result.violations.empty());
  ASSERT_TRUE(r.data.cohesion);
  // Expert 5: tokens 0, 1, opposite: -1. Expert 6: tokens 1, 2: 0. Expert 7: tokens 2, 3: -1.
  double base = 0;
  bool differ = false;
  for (const run::StepScalars& s : r.data.steps) {
    ASSERT_NEAR(s.cohesion, -2.0 / 3, 1e-6);
    base += s.cohesion_baseline / 300;
    differ = differ || s.cohesion_baseline != r.data.steps[0].cohesion_baseline;
  }
  // Of the six pairs two are opposite, the others at right angles: -1/3; three draws a step, so the
  // mean of 900 has a standard deviation of sqrt(2 / 9 / 900) = 0.016.
  EXPECT_NEAR(base, -1.0 / 3, 0.065);
  EXPECT_TRUE(differ) << "every step has draws of its own";
  EXPECT_NEAR(metric(r.data, "cohesion"), -2.0 / 3, 1e-6);
  EXPECT_NEAR(metric(r.data, "cohesion of random tokens"), base, 1e-12);
  // The first step holds the whole trace: what `inspect --activation` says of it.
  const auto whole = trace_cohesion(trace, 1);
  ASSERT_TRUE(whole);
  EXPECT_EQ(r.data.steps[0].cohesion, *whole->mean);
  EXPECT_EQ(r.data.steps[0].cohesion_baseline, *whole->baseline);
}

TEST(StepCohesion, IsNotThereWithoutHiddenStatesNorForOneToken) {
  RoutingTrace trace = with_hidden_states();
  // Two sequences: tokens 0 and 1 share expert 5 alone; one sequence: nobody shares anything.
  const test::MemoryRun two =
      test::run_in_memory(test::worked_scenario({"workload.batch=2"}), &trace);
  EXPECT_NEAR(two.data.steps[0].cohesion, -1, 1e-6);
  EXPECT_NEAR(two.data.steps[0].cohesion_baseline, -1, 1e-6) << "the only pair there is";
  const test::MemoryRun one =
      test::run_in_memory(test::worked_scenario({"workload.batch=1"}), &trace);
  EXPECT_TRUE(one.data.cohesion);
  EXPECT_TRUE(std::isnan(one.data.steps[0].cohesion));
  EXPECT_TRUE(std::isnan(metric(one.data, "cohesion")));
  trace.header.hidden = 0;
  trace.routing.router_input.clear();
  const test::MemoryRun none = test::run_in_memory(test::worked_scenario(), &trace);
  EXPECT_FALSE(none.data.cohesion);
  EXPECT_TRUE(std::isnan(none.data.steps[0].cohesion));
  EXPECT_EQ(metric(none.data, "cohesion"), -9);
}

TEST(StepCohesion, IsInTheRunFileAndInTheTraceFile) {
  write_trace("hidden.h5", with_hidden_states());
  const RoutingTrace trace = open_trace("hidden.h5", true, kTraceBytesInMemory, true);
  EXPECT_EQ(trace.last_input.width, 2U);
  EXPECT_EQ(trace.last_input.values.size(), 8U);
  EXPECT_TRUE(open_trace("hidden.h5").last_input.values.empty());
  const auto sink = file_sink("cohesion.h5");
  (void)simulate(test::worked_scenario({"workload.steps=3"}), &trace, "", *sink);
  const run::RunData back = run::read_run("cohesion.h5");
  ASSERT_TRUE(back.cohesion);
  for (const run::StepScalars& s : back.steps) EXPECT_NEAR(s.cohesion, -2.0 / 3, 1e-6);
  EXPECT_LE(back.steps[2].cohesion_baseline, 0);
  // By parts of the trace file, too.
  const RoutingTrace parts = open_trace("hidden.h5", true, 64, true);
  ASSERT_NE(parts.parts, nullptr);
  const test::MemoryRun again =
      test::run_in_memory(test::worked_scenario({"workload.steps=3"}), &parts);
  EXPECT_EQ(again.data.steps[2].cohesion_baseline, back.steps[2].cohesion_baseline);
}

TEST(StepCohesion, RaisesAnAlarmThatActs) {
  write_file("one_each.toml", "[capacity]\nrule = \"absolute\"\nabsolute = 1\nreroute = \"none\"\n");
  const RoutingTrace trace = with_hidden_states();
  const test::MemoryRun r = test::run_in_memory(
      test::worked_scenario({"workload.steps=5", "monitor.alarms=[" + kBelow +
                                                     R"(,action="policy",policy="one_each.toml"}])"}),
      &trace);
  // Raised by steps 0 and 1; from step 2 on an expert takes one token, so that no two are alike.
  std::size_t raised = 0;
  for (const run::Event& e : r.data.events) {
    raised += e.kind == run::EventKind::kAlarm ? 1 : 0;
    if (e.kind == run::EventKind::kAlarm) {
      EXPECT_EQ(e.step, 1U);
      EXPECT_EQ(e.text, "alarm \"cohesion\" raised: mean of cohesion over 2 steps -0.6667 < -0.5");
    }
  }
  EXPECT_EQ(raised, 1U);
  EXPECT_FALSE(std::isnan(r.data.steps[1].cohesion));
  EXPECT_TRUE(std::isnan(r.data.steps[2].cohesion));
}

TEST(StepCohesion, AlarmsRefuseWhatTheyCannotWatch) {
  RoutingTrace trace = with_hidden_states();
  trace.header.hidden = 0;
  trace.routing.router_input.clear();
  const auto s = test::worked_scenario({"monitor.alarms=[" + kBelow + "}]"});
  const std::string none = refusal(s, &trace);
  EXPECT_NE(none.find("signal = \"cohesion\" needs hidden states: the routing trace has none"),
            std::string::npos)
      << none;
  EXPECT_NE(none.find("--router-input"), std::string::npos) << none;
  EXPECT_NE(refusal(test::worked_scenario({"workload.routing={synthetic=\"uniform\"}",
                                           "monitor.alarms=[" + kBelow + "}]"}),
                    nullptr)
                .find("synthetic routing has none"),
            std::string::npos);
  const auto read = [](const std::string& alarm) -> std::string {
    try {
      (void)test::worked_scenario({"monitor.alarms=[" + alarm + "]"});
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(read(R"({signal="cohesion",below=-1.5})").find("below"), std::string::npos);
  EXPECT_NE(read(R"({signal="cohesion",below=0.1,action="reload"})").find("names an expert"),
            std::string::npos);
}

}  // namespace switchyard::sim
