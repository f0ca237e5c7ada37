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
