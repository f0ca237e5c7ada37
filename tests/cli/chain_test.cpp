// SPDX-License-Identifier: Apache-2.0
// The whole chain through the command line: trace → sim → table → inspect → diff, its determinism
// to the byte, and what another capacity factor does.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "tests/cli/process.hpp"

namespace {

using switchyard::read_file;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace fs = std::filesystem;

std::vector<std::string> trace_command(const std::string& policy, const std::string& threads,
                                       const std::string& out) {
  std::vector<std::string> c{"trace",
                             "--model",
                             source_path("scenarios/checkpoints/sy-16x2").string(),
                             "--prompts",
                             source_path("scenarios/prompts/mixed.jsonl").string(),
                             "--max-new",
                             "8",
                             "--batch",
                             "16",
                             "--seed",
                             "7",
                             "--threads",
                             threads,
                             "-o",
                             out};
  if (!policy.empty()) {
    c.insert(c.end(), {"--policy", source_path("scenarios/policies/" + policy).string()});
  }
  return c;
}

void run_chain(const fs::path& folder, const std::string& threads,
               const std::map<std::string, std::string>& environment) {
  const ProcessOptions options{.folder = folder, .environment = environment};
  ProcessResult r = run_switchyard(trace_command("capacity_1.0.toml", threads, "t.h5"), options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  r = run_switchyard({"sim", source_path("scenarios/demo.toml").string(), "--trace", "t.h5",
                      "--set", "run.detail=layers", "-o", "r.h5"},
                     options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  switchyard::write_file(folder / "sim.txt", r.out);
  r = run_switchyard({"table", "account", "mixed-fabric", "fits", "-o", "tables"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  r = run_switchyard({"inspect", "t.h5"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  switchyard::write_file(folder / "inspect.txt", r.out);
}

}  // namespace

TEST(Chain, IsByteIdenticalInAnotherFolderHomeZoneLocaleAndThreadCount) {
  const fs::path a = fresh_folder("identity_a");
  const fs::path b = fresh_folder("identity_another_name");
  run_chain(a, "1", {{"HOME", a.string()}, {"TZ", "UTC"}, {"LC_ALL", "C"}});
  run_chain(
      b, "2",
      {{"HOME", "/"}, {"TZ", "Asia/Kathmandu"}, {"LC_ALL", "de_DE.UTF-8"}, {"LANG", "de_DE"}});
  const std::vector<std::string> names = listing(a);
  EXPECT_EQ(names, listing(b));
  std::size_t files = 0;
  for (const std::string& name : names) {
    if (fs::is_regular_file(a / name)) {
      ++files;
      EXPECT_TRUE(read_file(a / name) == read_file(b / name)) << name << " differs";
    }
  }
  EXPECT_GE(files, 7U);
}

TEST(Chain, ReplayRecoversDeletedDecisions) {
  const fs::path f = fresh_folder("replay");
  const ProcessResult r = run_switchyard(trace_command("capacity_1.0.toml", "2", "t.h5"),
                                         {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const switchyard::RoutingTrace recorded = switchyard::read_trace(f / "t.h5");
  switchyard::RoutingTrace bare = recorded;
  bare.routing.first.clear();
  bare.routing.chosen.clear();
  bare.routing.weights.clear();
  bare.routing.outcome.clear();
  bare.decisions_present = false;
  switchyard::write_trace(f / "bare.h5", bare);
  switchyard::RoutingTrace replayed = switchyard::read_trace(f / "bare.h5");
  ASSERT_FALSE(replayed.decisions_present);
  switchyard::replay(replayed, switchyard::ReplayOptions::recorded(replayed.header));
  EXPECT_TRUE(replayed.routing.first == recorded.routing.first);
  EXPECT_TRUE(replayed.routing.chosen == recorded.routing.chosen);
  EXPECT_TRUE(replayed.routing.weights == recorded.routing.weights);
  EXPECT_TRUE(replayed.routing.outcome == recorded.routing.outcome);
}

TEST(Chain, CapacityFactorOneAgainstTwoOnTheShippedCheckpoint) {
  const fs::path f = fresh_folder("capacity");
  std::map<std::string, std::map<int, std::uint64_t>> count;
  for (const std::string policy : {"capacity_1.0.toml", "capacity_2.0.toml"}) {
    const ProcessResult r = run_switchyard(trace_command(policy, "2", policy + ".h5"),
                                           {.folder = f, .environment = {}});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const switchyard::RoutingTrace t = switchyard::read_trace(f / (policy + ".h5"));
    for (const std::uint8_t outcome : t.routing.outcome) {
      ++count[policy][outcome];
    }
    // kept + rerouted + queued + dropped = T · k · layers: no slot without an outcome (K = k here).
    EXPECT_EQ(count[policy][0], 0U);
  }
  EXPECT_GT(count["capacity_1.0.toml"][2], 0U) << "capacity 1.0 must reroute";
  EXPECT_GT(count["capacity_1.0.toml"][2], count["capacity_2.0.toml"][2]);
  EXPECT_LT(count["capacity_1.0.toml"][1], count["capacity_2.0.toml"][1]);
}

TEST(Chain, DiffOfTwoCapacityFactorsShowsTheChange) {
  const fs::path f = fresh_folder("diff");
  const ProcessOptions options{.folder = f, .environment = {}};
  ProcessResult r = run_switchyard(trace_command("", "2", "t.h5"), options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const std::string factor : {"1.0", "2.0"}) {
    r = run_switchyard({"sim", source_path("scenarios/demo.toml").string(), "--trace", "t.h5",
                        "--set", "policy.capacity.factor=" + factor, "-o", factor + ".h5"},
                       options);
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  r = run_switchyard({"diff", "1.0.h5", "2.0.h5", "--format", "csv"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("policy.capacity.factor"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("reroute share"), std::string::npos) << r.out;
}

TEST(Chain, TheNormativeScenarioSweepsAndResumes) {
  const fs::path f = fresh_folder("sweep");
  const ProcessOptions options{.folder = f, .environment = {}};
  const std::string scenario = source_path("scenarios/normative.toml").string();
  ProcessResult r = run_switchyard({"sweep", scenario, "-j", "2", "-o", "two"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("3 run now, 0 were there already, 0 failed"), std::string::npos) << r.out;
  r = run_switchyard({"sweep", scenario, "-o", "one"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::vector<std::string> names = listing(f / "one");
  EXPECT_EQ(names, listing(f / "two"));
  std::string half;
  for (const std::string& name : names) {
    if (!fs::is_regular_file(f / "one" / name)) continue;
    EXPECT_TRUE(read_file(f / "one" / name) == read_file(f / "two" / name)) << name;
    if (name.ends_with(".h5")) half = name;
  }
  // A damaged point is made again, the others are kept.
  const std::string whole = read_file(f / "one" / half);
  switchyard::write_file(f / "one" / half, whole.substr(0, whole.size() / 2));
  r = run_switchyard({"sweep", scenario, "-o", "one"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("1 run now, 2 were there already, 0 failed"), std::string::npos) << r.out;
  EXPECT_TRUE(read_file(f / "one" / half) == whole);
  // The verb sim sends the user here.
  r = run_switchyard({"sim", scenario, "-o", "r.h5"}, options);
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("switchyard sweep"), std::string::npos) << r.err;
}

TEST(Chain, EveryTableFormatIsWellFormed) {
  const fs::path f = fresh_folder("formats");
  const ProcessOptions options{.folder = f, .environment = {}};
  for (const std::string format : {"text", "md", "csv", "tex", "json"}) {
    const ProcessResult r = run_switchyard({"table", "account", "--format", format}, options);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_GT(r.out.size(), 500U) << format;
    if (format == "json") {
      EXPECT_FALSE(nlohmann::json::parse(r.out, nullptr, false).is_discarded()) << r.out;
    }
  }
}

TEST(Chain, GenerateWritesText) {
  const ProcessResult r =
      run_switchyard({"generate", "--model", source_path("scenarios/checkpoints/sy-16x2").string(),
                      "--prompt", "The", "--max-new", "8", "--temperature", "0"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(r.out.size(), 8U);
}

TEST(Chain, WithoutAVerbTheThreeCommandsOfTheReadmeArePrinted) {
  const ProcessResult r = run_switchyard({});
  EXPECT_EQ(r.exit_code, 0);
  for (const std::string verb : {"switchyard trace", "switchyard sim", "switchyard table"}) {
    EXPECT_NE(r.out.find(verb), std::string::npos) << r.out;
  }
}

TEST(Chain, EveryVerbHasHelpWithAnExample) {
  for (const std::string verb : {"trace", "generate", "sim", "sweep", "table", "explain", "inspect",
                                 "diff", "account", "doctor"}) {
    const ProcessResult r = run_switchyard({verb, "--help"});
    EXPECT_EQ(r.exit_code, 0) << verb;
    EXPECT_NE(r.out.find("Example"), std::string::npos) << verb << ": " << r.out;
  }
}
