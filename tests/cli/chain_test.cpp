// SPDX-License-Identifier: Apache-2.0
// The whole chain through the command line: trace → sim → table → inspect → diff, its determinism
// to the byte, and what another capacity factor does.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "sim/run/run_file.hpp"
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

std::vector<std::string> locales() {
  const ProcessResult r = run_process({"locale", "-a"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  std::vector<std::string> names;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

std::string dense_scenario() {
  return "[model]\nfile = \"" + source_path("scenarios/models/dense_28b.json").string() +
         "\"\n[hardware]\nfile = \"" + source_path("scenarios/hardware/hgx_h100.toml").string() +
         "\"\n[parallel]\nattention = \"dp\"\ndp = 8\nep = 1\n"
         "[workload]\nkind = \"decode\"\nbatch = 16\ncontext = 256\nsteps = 4\n"
         "[run]\nseed = 1\ndetail = \"layers\"\n";
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
  r = run_switchyard(
      {"table", "account", "mixed-fabric", "fits", "batch-activation", "--quick", "-o", "tables"},
      options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  // Other kinds of runs: a model without experts, and a prefill.
  r = run_switchyard({"sim", source_path("scenarios/hub.toml").string(), "--set",
                      "workload.kind=prefill", "--set", "workload.batch=4", "--set",
                      "workload.tokens=64", "--set", "workload.steps=3", "-o", "prefill.h5"},
                     options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  switchyard::write_file(folder / "dense.toml", dense_scenario());
  r = run_switchyard({"sim", "dense.toml", "-o", "dense.h5"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const std::string file : {"t", "r", "prefill", "dense"}) {
    r = run_switchyard({"inspect", file + ".h5"}, options);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    if (file != "t") {
      EXPECT_NE(r.out.find("all hold"), std::string::npos) << r.out;
    }
    switchyard::write_file(folder / ("inspect_" + file + ".txt"), r.out);
  }
}

}  // namespace

TEST(Chain, IsByteIdenticalInAnotherFolderHomeZoneLocaleAndThreadCount) {
  // A locale that is not installed would be C again: nothing would be compared.
  const std::vector<std::string> installed = locales();
  const auto has = [&](const char* name) {
    return std::find(installed.begin(), installed.end(), name) != installed.end();
  };
  ASSERT_TRUE(has("POSIX"));
  ASSERT_TRUE(has("C.utf8") || has("C.UTF-8")) << "locale -a does not list C.UTF-8";
  const fs::path a = fresh_folder("identity_a");
  const fs::path b = fresh_folder("identity_another_name");
  run_chain(a, "1", {{"HOME", a.string()}, {"TZ", "UTC"}, {"LC_ALL", "POSIX"}});
  run_chain(b, "2",
            {{"HOME", "/"}, {"TZ", "Asia/Kathmandu"}, {"LC_ALL", "C.UTF-8"}, {"LANG", "C.UTF-8"}});
  const std::vector<std::string> names = listing(a);
  EXPECT_EQ(names, listing(b));
  std::size_t files = 0;
  for (const std::string& name : names) {
    if (fs::is_regular_file(a / name)) {
      ++files;
      EXPECT_TRUE(read_file(a / name) == read_file(b / name)) << name << " differs";
    }
  }
  EXPECT_GE(files, 20U);
  EXPECT_TRUE(fs::exists(a / "tables/batch-activation.txt"));
}

TEST(SimMemoryOut, ListsAllocationsAndFreesThatSumToNothing) {
  const fs::path folder = fresh_folder("memory_out");
  switchyard::write_file(folder / "dense.toml", dense_scenario());
  ProcessResult r = run_switchyard({"sim", "dense.toml", "-o", "d.h5", "--memory-out", "m.csv"},
                                   {.folder = folder, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  std::istringstream in(read_file(folder / "m.csv"));
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "time_ps,step,gpu,category,bytes,cause");
  std::map<std::string, std::int64_t> live;  // GPU and category
  std::size_t entries = 0, frees = 0;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::vector<std::string> f;
    for (std::string x; f.size() < 5 && std::getline(fields, x, ',');) f.push_back(x);
    ASSERT_EQ(f.size(), 5U) << line;
    std::string cause;
    std::getline(fields, cause);
    EXPECT_GT(cause.size(), 2U) << line;
    const std::int64_t bytes = std::stoll(f[4]);
    live[f[2] + " " + f[3]] += bytes;
    ++entries;
    frees += bytes < 0 ? 1 : 0;
  }
  EXPECT_GT(frees, 4U);
  EXPECT_GT(entries, frees);
  for (const auto& [what, bytes] : live) EXPECT_EQ(bytes, 0) << what;
  r = run_switchyard({"sim", "dense.toml", "-o", "d.h5", "--memory-out", "d.h5"},
                     {.folder = folder, .environment = {}});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("--memory-out"), std::string::npos) << r.err;
}

TEST(Chain, IsByteIdenticalWhereTheLocaleWritesADecimalComma) {
  std::string comma;
  for (const std::string& name : locales()) {
    if (name.starts_with("de_") || name.starts_with("fr_")) comma = name;
  }
  if (comma.empty()) {
    GTEST_SKIP() << "no German or French locale is installed (locale -a); only this part is left "
                    "out";
  }
  const fs::path f = fresh_folder("comma");
  std::vector<std::string> printed;
  for (const std::string& locale : {std::string("C"), comma}) {
    const ProcessOptions options{.folder = f, .environment = {{"LC_ALL", locale}}};
    const ProcessResult sim = run_switchyard({"sim", source_path("scenarios/hub.toml").string(),
                                              "--set", "workload.steps=4", "-o", locale + ".h5"},
                                             options);
    ASSERT_EQ(sim.exit_code, 0) << sim.err;
    const ProcessResult table = run_switchyard({"table", "account", "fits"}, options);
    ASSERT_EQ(table.exit_code, 0) << table.err;
    printed.push_back(sim.out + table.out);
  }
  EXPECT_EQ(printed[0], printed[1]);
  EXPECT_TRUE(read_file(f / "C.h5") == read_file(f / (comma + ".h5")));
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
  const ProcessResult help = run_switchyard({"diff", "--help"}, options);
  EXPECT_NE(help.out.find("--no-verify "), std::string::npos) << help.out;
  EXPECT_EQ(help.out.find("{false}"), std::string::npos) << help.out;
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
  // What a killed process left goes; what a living one writes stays. No process has this number.
  const fs::path dead = f / "one/points/00000-abc.h5.4194304.tmp";
  const fs::path alive = f / fmt::format("one/points/00000-abc.h5.{}.tmp", ::getpid());
  switchyard::write_file(dead, "half");
  switchyard::write_file(alive, "half");
  r = run_switchyard({"sweep", scenario, "-o", "one"}, options);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  fs::remove(alive);
  EXPECT_NE(r.out.find("1 run now, 2 were there already, 0 failed"), std::string::npos) << r.out;
  EXPECT_TRUE(read_file(f / "one" / half) == whole);
  // One point of it is a run of its own.
  r = run_switchyard({"sim", scenario, "--set", "policy.capacity.factor=1.25", "--set",
                      "workload.steps=4", "-o", "one.h5"},
                     options);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  // The verb sim sends the user here.
  r = run_switchyard({"sim", scenario, "-o", "r.h5"}, options);
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("switchyard sweep"), std::string::npos) << r.err;
}

namespace {

/// Columns of one row of a sweep's index.csv; no cell of it holds a comma.
std::map<std::string, std::string> index_row(const fs::path& folder, std::size_t point) {
  std::istringstream lines(read_file(folder / "index.csv"));
  const auto cells = [&] {
    std::string line;
    std::getline(lines, line);
    std::vector<std::string> out;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) out.push_back(cell);
    return out;
  };
  const std::vector<std::string> names = cells();
  std::vector<std::string> values;
  for (std::size_t i = 0; i <= point; ++i) values = cells();
  EXPECT_EQ(names.size(), values.size());
  std::map<std::string, std::string> row;
  for (std::size_t i = 0; i < std::min(names.size(), values.size()); ++i) row[names[i]] = values[i];
  return row;
}

/// The demo's scenario with one sweep, beside which "t.h5" is its trace.
std::string swept_demo() {
  std::string text = read_file(source_path("scenarios/demo.toml"));
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  replace("models/", source_path("scenarios/models/").string());
  replace("hardware/", source_path("scenarios/hardware/").string());
  replace("\"policies/", "\"" + source_path("scenarios/policies/").string());
  replace("../out/demo/trace.h5", "t.h5");
  return text + "\n[[sweep]]\nkey = \"workload.batch\"\nvalues = [16]\n";
}

}  // namespace

TEST(Sweep, MakesAPointAgainWhenItsTraceOrTheProgramChanged) {
  const fs::path f = fresh_folder("sweep_trace");
  const ProcessOptions options{.folder = f, .environment = {}};
  switchyard::write_file(f / "demo.toml", swept_demo());
  const auto sweep = [&](const std::string& expected) {
    const ProcessResult r = run_switchyard({"sweep", "demo.toml", "-o", "out"}, options);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_NE(r.out.find(expected), std::string::npos) << r.out;
  };
  ASSERT_EQ(run_switchyard(trace_command("", "2", "t.h5"), options).exit_code, 0);
  sweep("1 run now, 0 were there already, 0 failed");
  sweep("0 run now, 1 were there already, 0 failed");
  const fs::path point = f / "out" / index_row(f / "out", 0)["file"];
  const std::string before = read_file(point);
  ASSERT_EQ(run_switchyard(trace_command("capacity_1.0.toml", "2", "t.h5"), options).exit_code, 0);
  sweep("1 run now, 0 were there already, 0 failed");
  EXPECT_TRUE(fs::exists(point)) << "the scenario, and so the file's name, is the same";
  EXPECT_FALSE(read_file(point) == before);
  switchyard::run::RunData run = switchyard::run::read_run(point);
  run.meta.product_version = "0.0.1";
  switchyard::run::write_run(point, run);
  sweep("1 run now, 0 were there already, 0 failed");
  sweep("0 run now, 1 were there already, 0 failed");
}

TEST(Sweep, NamesWhyAPointFailed) {
  const fs::path f = fresh_folder("sweep_fails");
  const ProcessOptions options{.folder = f, .environment = {}};
  switchyard::write_file(f / "demo.toml", swept_demo());
  switchyard::write_file(f / "t.h5", "not a trace");
  const ProcessResult r = run_switchyard({"sweep", "demo.toml", "-o", "out"}, options);
  EXPECT_EQ(r.exit_code, 2) << "every point has the wrong input";
  EXPECT_NE(r.out.find("1 failed"), std::string::npos) << r.out;
  EXPECT_NE(r.err.find("t.h5"), std::string::npos) << r.err;
  std::map<std::string, std::string> row = index_row(f / "out", 0);
  EXPECT_EQ(row["state"], "failed: the input is wrong");
  EXPECT_EQ(row["step time mean [us]"], "n/a");
  EXPECT_EQ(row["out of memory"], "n/a");
}

TEST(Sweep, SaysWhereMemoryRanOut) {
  const fs::path f = fresh_folder("sweep_memory");
  const ProcessOptions options{.folder = f, .environment = {}};
  for (const auto& [context, out_of_memory] :
       {std::pair<std::string, std::string>{"512", "no"}, {"100000", "yes"}}) {
    const ProcessResult r = run_switchyard(
        {"sweep", source_path("scenarios/normative.toml").string(), "--set", "workload.steps=4",
         "--set", "workload.warmup_steps=1", "--set", "workload.batch=512", "--set",
         "workload.context=" + context, "-j", "2", "-o", context},
        options);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    std::map<std::string, std::string> row = index_row(f / context, 0);
    EXPECT_EQ(row["out of memory"], out_of_memory) << r.out;
    EXPECT_EQ(row["state"], "ok");
  }
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
