// SPDX-License-Identifier: Apache-2.0
// The verbs `monitor` and `diagnose` as a user calls them.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace {

using switchyard::write_file;
using switchyard::test::fresh_folder;
using switchyard::test::ProcessResult;
using switchyard::test::run_switchyard;
using switchyard::test::source_path;

const std::string kHub = source_path("scenarios/hub.toml").string();

}  // namespace

TEST(HealthVerbs, WorkOnARunAndMonitorOnItsScenarioAlike) {
  const fs::path f = fresh_folder("health_verbs");
  const std::vector<std::string> set{"--set", "workload.steps=4", "--set",
                                     "workload.warmup_steps=2"};
  std::vector<std::string> sim{"sim", kHub, "-o", "r.h5", "--quiet"};
  sim.insert(sim.end(), set.begin(), set.end());
  ASSERT_EQ(run_switchyard(sim, {.folder = f, .environment = {}}).exit_code, 0);
  const ProcessResult d = run_switchyard({"diagnose", "r.h5"}, {.folder = f, .environment = {}});
  ASSERT_EQ(d.exit_code, 0) << d.err;
  EXPECT_NE(d.out.find("Findings: symptom, cause, check, cure"), std::string::npos) << d.out;
  const ProcessResult m =
      run_switchyard({"monitor", "r.h5", "--json"}, {.folder = f, .environment = {}});
  ASSERT_EQ(m.exit_code, 0) << m.err;
  std::vector<std::string> scenario{"monitor", kHub, "--json"};
  scenario.insert(scenario.end(), set.begin(), set.end());
  const ProcessResult s = run_switchyard(scenario, {.folder = f, .environment = {}});
  ASSERT_EQ(s.exit_code, 0) << s.err;
  EXPECT_EQ(m.out, s.out);
  // For programs: numbers, with the unit in a column or in the header.
  EXPECT_NE(m.out.find("\"unit\": \"us\""), std::string::npos) << m.out;
  EXPECT_EQ(m.out.find("\"mean\": \""), m.out.find("\"mean\": \"\"")) << m.out;
  const ProcessResult csv =
      run_switchyard({"diagnose", "r.h5", "--format", "csv"}, {.folder = f, .environment = {}});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_NE(csv.out.find("phase,critical path [us/step],share [%],"), std::string::npos) << csv.out;
}

TEST(HealthVerbs, FailOnAlarmExitsWithOne) {
  const fs::path f = fresh_folder("health_alarm");
  write_file(f / "rules.toml", "[[alarms]]\nsignal = \"memory\"\nabove = \"1 %\"\nwindow = 1\n");
  const std::vector<std::string> args{"monitor",          kHub,        "--set",
                                      "workload.steps=2", "--set",     "workload.warmup_steps=0",
                                      "--alarms",         "rules.toml"};
  const ProcessResult r = run_switchyard(args, {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("alarm \"memory\" raised"), std::string::npos) << r.out;
  std::vector<std::string> strict = args;
  strict.emplace_back("--fail-on-alarm");
  EXPECT_EQ(run_switchyard(strict, {.folder = f, .environment = {}}).exit_code, 1);
}

// The cohesion of a replayed trace: simulated, monitored, refused where there are no hidden states.
TEST(HealthVerbs, WatchTheCohesionOfATraceWithHiddenStates) {
  const fs::path f = fresh_folder("health_cohesion");
  const auto run = [&](std::vector<std::string> args) {
    return run_switchyard(args, {.folder = f, .environment = {}});
  };
  write_file(f / "p.txt", "int main()\nhello\nfor (;;)\n12345\nreturn\nwhile\nclass\nvoid\n");
  const std::string model = source_path("scenarios/checkpoints/sy-16x2").string();
  for (const bool hidden : {true, false}) {
    std::vector<std::string> trace{"trace", "--model",   model, "--prompts",
                                   "p.txt", "--max-new", "4",   "-o",
                                   hidden ? "hidden.h5" : "plain.h5", "--quiet"};
    if (hidden) trace.emplace_back("--router-input");
    const ProcessResult t = run(trace);
    ASSERT_EQ(t.exit_code, 0) << t.err;
  }
  const std::vector<std::string> set{
      "--set", "workload.batch=8",       "--set", "workload.steps=3",
      "--set", "workload.warmup_steps=0", "--set", "model.file=\"" + model + "\""};
  const auto sim = [&](const std::string& trace, const std::string& out,
                       const std::string& scenario) {
    std::vector<std::string> args{"sim", scenario, "--trace", trace, "-o", out, "--quiet"};
    args.insert(args.end(), set.begin(), set.end());
    return run(args);
  };
  const std::string coupled = source_path("scenarios/coupled_queue.toml").string();
  const ProcessResult a = sim("hidden.h5", "a.h5", coupled), b = sim("plain.h5", "b.h5", coupled);
  ASSERT_EQ(a.exit_code, 0) << a.err;
  ASSERT_EQ(b.exit_code, 0) << b.err;
  write_file(f / "rules.toml",
             "[[alarms]]\nsignal = \"memory\"\nabove = \"99 %\"\n\n[[alarms]]\n"
             "signal = \"cohesion\"\nbelow = 1\nwindow = 2\n");
  const ProcessResult m = run({"monitor", "a.h5", "--alarms", "rules.toml"});
  ASSERT_EQ(m.exit_code, 0) << m.err;
  EXPECT_NE(m.out.find("alarm \"cohesion\" raised: mean of cohesion over 2 steps"),
            std::string::npos)
      << m.out;
  const ProcessResult plain = run({"monitor", "b.h5"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_NE(plain.out.find("cohesion           n/a"), std::string::npos) << plain.out;
  const ProcessResult refused = run({"monitor", "b.h5", "--alarms", "rules.toml"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(refused.err.find("rules.toml:5:"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("needs hidden states: b.h5 has none"), std::string::npos)
      << refused.err;
  // In a scenario: the place of the rule, and no run.
  write_file(f / "s.toml", "[[monitor.alarms]]\nsignal = \"cohesion\"\nbelow = 0.1\n" +
                               switchyard::read_file(coupled));
  const ProcessResult c = sim("plain.h5", "c.h5", "s.toml");
  EXPECT_EQ(c.exit_code, 2) << c.out;
  EXPECT_NE(c.err.find("s.toml:1:"), std::string::npos) << c.err;
  EXPECT_NE(c.err.find("the routing trace has none"), std::string::npos) << c.err;
  EXPECT_FALSE(fs::exists(f / "c.h5"));
}

TEST(HealthVerbs, RefuseBadInput) {
  const fs::path f = fresh_folder("health_bad");
  write_file(f / "r.h5", "no run");
  EXPECT_EQ(run_switchyard({"diagnose", "r.h5"}, {.folder = f, .environment = {}}).exit_code, 2);
  EXPECT_EQ(run_switchyard({"monitor", "none.h5"}, {.folder = f, .environment = {}}).exit_code, 2);
  const ProcessResult set =
      run_switchyard({"monitor", "r.h5", "--set", "run.seed=2"}, {.folder = f, .environment = {}});
  EXPECT_EQ(set.exit_code, 2);
  EXPECT_NE(set.err.find("--set: means nothing for a run that is done"), std::string::npos)
      << set.err;
}
