// SPDX-License-Identifier: Apache-2.0
// Other tools' files in and out: nccl-tests and expert counts, read back by the simulator; a run as
// Chrome trace, a topology for Graphviz, a picture.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/export/dot.hpp"
#include "experiments/export/perfetto.hpp"
#include "experiments/import/expert_counts.hpp"
#include "experiments/import/nccl_tests.hpp"
#include "sim/run/run_file.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace switchyard {
namespace {

using importers::NcclTestsOptions;
using importers::NcclTestsTable;
using importers::read_expert_counts;
using importers::read_nccl_tests;
using test::fresh_folder;
using test::ProcessResult;
using test::run_switchyard;
using test::source_path;

std::string fixture(const std::string& name) {
  return read_file(source_path("tests/fixtures/nccl_tests/" + name));
}

ProcessResult verb(const fs::path& f, std::vector<std::string> arguments) {
  return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
}

/// The text with `from` (which must be there) put as `to`, once.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

std::string refused(const std::string& text, const NcclTestsOptions& options = {}) {
  return refusal([&] { static_cast<void>(read_nccl_tests(text, "t.log", "t.log", options)); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(NcclTests, TheBytesAreThoseOnTheLinkOfOneGpu) {
  const NcclTestsTable t =
      read_nccl_tests(fixture("h100_1node_8gpu.log"), "t.log", "t.log", {"alltoall", false});
  EXPECT_EQ(t.ranks, 8U);
  ASSERT_EQ(t.points.size(), 4U);
  // 32 MiB of which 7/8 leave the GPU, in 124.79 us: 235.28 GB/s as busbw prints it, not 268.89.
  EXPECT_EQ(t.points[0].bytes, 33554432U * 7 / 8);
  EXPECT_NEAR(t.points[0].bandwidth.value, 235.28e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(t.points[0].bytes) / t.points[0].bandwidth.value, 124.79e-6,
              1e-12);
  // A ring all-reduce sends 2 · 7/8 of the buffer.
  const NcclTestsTable r =
      read_nccl_tests(fixture("h100_1node_8gpu.log"), "t.log", "t.log", {"all_reduce", false});
  EXPECT_EQ(r.points[0].bytes, 33554432U * 7 / 4);
  EXPECT_NEAR(r.points[0].bandwidth.value, 321.10e9, 0.005e9);
}

TEST(NcclTests, InPlaceIsTheSecondHalfOfARow) {
  const NcclTestsTable t =
      read_nccl_tests(fixture("h100_1node_8gpu.log"), "t.log", "t.log", {"alltoall", true});
  EXPECT_NEAR(t.points[0].bandwidth.value, 237.47e9, 0.02e9);
  EXPECT_TRUE(has(t.csv, "in-place"));
}

TEST(NcclTests, AnOldHeaderIsReadOnceTheCollectiveIsNamed) {
  const std::string text = fixture("a100_8gpu_alltoall.log");
  EXPECT_EQ(refused(text),
            "--collective: t.log does not say what was measured; name it, e.g. --collective "
            "alltoall");
  const NcclTestsTable t = read_nccl_tests(text, "t.log", "t.log", {"alltoall", false});
  EXPECT_EQ(t.left_out, 2U);  // rows of size 0
  EXPECT_EQ(t.points.size(), 7U);
  // The wrong name is found out by the rates.
  EXPECT_EQ(refused(text, {"all_reduce", false}),
            "t.log:18: busbw = 60.62 GB/s, but all_reduce of 8 ranks has 1.75 · algbw = 121.2 "
            "GB/s; name the collective that was measured");
}

TEST(NcclTests, ASizeThatComesAgainIsAveraged) {
  const std::string text = fixture("a100_8gpu_alltoall.log");
  const std::size_t row = text.find("     8388608"), end = text.find('\n', row);
  std::string again = text.substr(row, end - row + 1);
  again = with(again, "121.1   69.28   60.62", "123.1   68.14   59.63");
  const NcclTestsTable t = read_nccl_tests(std::string(text).insert(end + 1, again), "t.log",
                                           "t.log", {"alltoall", false});
  EXPECT_EQ(t.repeated, 1U);
  EXPECT_NEAR(static_cast<double>(t.points[0].bytes) / t.points[0].bandwidth.value, 122.1e-6,
              1e-12);
}

TEST(NcclTests, BadInputNamesTheLine) {
  const std::string text = fixture("a100_8gpu_alltoall.log");
  const NcclTestsOptions o{"alltoall", false};
  EXPECT_EQ(refused("hello\n"),
            "t.log: no table of nccl-tests; give the text that e.g. "
            "alltoall_perf prints, with its # lines");
  EXPECT_EQ(refused(with(text, "(us)  (GB/s)", "(ms)  (GB/s)"), o),
            "t.log:15: unsupported: units other than B, us and GB/s");
  EXPECT_TRUE(has(refused(with(text, "121.1   69.28", "121.1   69.88"), o),
                  "t.log:18: algbw = 69.88 GB/s, but 8388608 B in 121.1 us are 69.27 GB/s"));
  EXPECT_TRUE(has(refused(with(text, "121.1   69.28", "nan     69.28"), o), "t.log:18: time,"));
  EXPECT_TRUE(has(refused(with(text, "121.1   69.28", "0       69.28"), o), "time > 0"));
  EXPECT_TRUE(has(refused(with(text, "60.62    N/A", "60.62      3"), o),
                  "t.log:18: the test itself found 3 wrong values"));
  EXPECT_TRUE(has(refused(with(text, "  busbw  error     time", "  busbw  error  cputime"), o),
                  "t.log:14: unsupported: a header"));
  EXPECT_TRUE(has(refused(with(text, "8388608        262144   float", "8388608"), o),
                  "t.log:18: 9 columns"));
  EXPECT_TRUE(has(refused(fixture("h100_1node_8gpu.log")),
                  "has tables of all_reduce, alltoall; name one of them"));
  EXPECT_TRUE(has(refused(fixture("h100_1node_8gpu.log"), {"sendrecv", false}),
                  "t.log has no table of sendrecv"));
  EXPECT_TRUE(has(refused(text, {"alltoal", false}), "\"alltoal\" is not known"));
}

TEST(NcclTests, TheSimulatorReadsTheTable) {
  const fs::path f = fresh_folder("nccl_tests");
  const std::string log = source_path("tests/fixtures/nccl_tests/h100_1node_8gpu.log").string();
  const ProcessResult import =
      verb(f, {"import", "nccl-tests", log, "--collective", "alltoall", "-o", "a.csv"});
  ASSERT_EQ(import.exit_code, 0) << import.err;
  EXPECT_TRUE(has(import.out, "29360128 B at 235.3 GB/s")) << import.out;
  const std::string scenarios = source_path("scenarios").string();
  write_file(f / "s.toml", "[model]\nfile = \"" + scenarios +
                               "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                               "/hardware/hgx_h100.toml\"\n[workload]\nkind = \"prefill\"\nbatch "
                               "= 32\ntokens = 2048\nrouting = { synthetic = \"uniform\" }\n"
                               "[network]\nmeasured = { file = \"a.csv\", class = \"nvlink4\" }\n");
  const ProcessResult run = verb(f, {"sim", "s.toml", "-o", "r.h5"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "all hold")) << run.out;
  // Every exchange lies inside the table: 8,192 tokens of a GPU, 1.75 remote copies, 8 KiB: 117 MB.
  EXPECT_FALSE(has(run.out, "EXTRAPOLATED")) << run.out;

  const ProcessResult twice = verb(f, {"import", "nccl-tests", log, "--gpus", "8", "-o", "b.csv"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_EQ(twice.err, "switchyard: --gpus: means nothing with nccl-tests\n");
  const ProcessResult over = verb(f, {"import", "expert-counts", "a.csv", "-o", "a.csv"});
  EXPECT_EQ(over.exit_code, 2);
  EXPECT_TRUE(has(over.err, "is the input itself")) << over.err;
}

TEST(ExpertCounts, MatricesAndTablesGiveTheSameLoads) {
  const std::string want = "layer,expert,load\n3,0,2\n3,1,2\n4,0,3\n4,1,5\n";
  EXPECT_EQ(read_expert_counts("[[2,2],[3,5]]", "m.json", 3).csv, want);
  EXPECT_EQ(read_expert_counts(R"({"weight":[[2,2],[3,5]]})", "m.json", 3).csv, want);
  // SGLang's recorder counts pass by pass.
  EXPECT_EQ(
      read_expert_counts(R"({"rank":0,"logical_count":[[[1,2],[3,4]],[[1,0],[0,1]]]})", "m.json", 3)
          .csv,
      want);
  EXPECT_EQ(read_expert_counts("# real\r\ntask,expert,layer,count,weight_sum\nlaw,1,4,5,0.5\n"
                               "law,0,3,2,0.1\nlaw,1,3,2,0.2\nlaw,0,4,3,0.3\n",
                               "c.csv", 0)
                .csv,
            want);
}

TEST(ExpertCounts, BadInputNamesThePlace) {
  const auto csv = [](const std::string& text, std::uint32_t first = 0) {
    return refusal([&] { static_cast<void>(read_expert_counts(text, "c", first)); });
  };
  EXPECT_TRUE(has(csv("a,b\n1,2\n"), "c:1: the header has no columns layer, expert and count"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0\n"), "c:2: 2 fields, the header has 3"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0,-1\n"), "c:2: count = -1. Violated: 0 <= count"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0,nan\n"), "c:2: count = nan"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0,1\n0,0,2\n"),
                  "c:3: expert 0 of layer 0 has a count already"));
  EXPECT_TRUE(has(csv("model,layer,expert,count\na,0,0,1\nb,0,1,2\n"),
                  "c:3: model = b, the rows above have a: two tables in one file"));
  EXPECT_TRUE(
      has(csv("layer,expert,count\n0,0,1\n0,2,1\n"), "layer 0 states no count of expert 1"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0,1\n", 2), "--first-layer: a CSV names its layers"));
  EXPECT_TRUE(has(csv("layer,expert,count\n0,0,0\n"), "all counts are 0"));
  EXPECT_TRUE(has(csv("[[1,2],[3]]"), "the matrix[1] has 1 experts, others have 2"));
  EXPECT_TRUE(has(csv("[[1,\"x\"]]"), "the matrix[0][1] = \"x\""));
  EXPECT_TRUE(has(csv("{\"counts\":[[1]]}"), "no key \"logical_count\" or \"weight\""));
  EXPECT_TRUE(has(csv("[[1,2"), "no JSON"));
  std::string wide = "layer,expert,count\n";
  for (int l = 0; l < 300; ++l) wide += std::to_string(l) + ",65000,1\n";
  EXPECT_TRUE(has(csv(wide), "c:248: layers times experts are beyond 16000000"));
  EXPECT_TRUE(has(csv(std::string(300'000, '[') + std::string(300'000, ']')),
                  "c: JSON nested deeper than 64 levels"));
  EXPECT_TRUE(has(csv(std::string("PK\x03\x04", 4)), "unsupported: a binary file"));
}

TEST(ExpertCounts, ThePlacementActsOnTheLoads) {
  const fs::path f = fresh_folder("expert_counts");
  const std::string scenarios = source_path("scenarios").string();
  std::string matrix;
  for (int l = 0; l < 32; ++l) {
    matrix += std::string(matrix.empty() ? "[" : ",") + "[80,10,10,10,10,10,10,10]";
  }
  write_file(f / "m.json", "{\"logical_count\":" + matrix + "]}");
  ASSERT_EQ(verb(f, {"import", "expert-counts", "m.json", "-o", "loads.csv"}).exit_code, 0);
  write_file(f / "s.toml",
             "[model]\nfile = \"" + scenarios +
                 "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                 "/hardware/hgx_h100.toml\"\n[parallel]\nep = 4\ntp = 1\nplacement = \"eplb\"\n"
                 "placement_options = { loads = \"loads.csv\" }\n[workload]\nkind = \"decode\"\n"
                 "batch = 16\ncontext = 128\nrouting = { synthetic = \"uniform\" }\n");
  ASSERT_EQ(verb(f, {"sim", "s.toml", "-o", "r.h5"}).exit_code, 0);
  ASSERT_EQ(verb(f, {"export", "placement", "r.h5", "-o", "p.csv"}).exit_code, 0);
  // 150 over 4 ranks of 2 experts: the hot one cannot be split without copies; it stands anywhere,
  // but the file was read: with other loads of another layer count it is refused.
  EXPECT_TRUE(has(read_file(f / "p.csv"), "layer,expert,rank\n0,0,"));
  write_file(f / "loads.csv", "layer,expert,load\n0,0,1\n");
  const ProcessResult bad = verb(f, {"sim", "s.toml", "-o", "new/folder/q.h5"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(has(bad.err, "loads.csv")) << bad.err;
  EXPECT_FALSE(fs::exists(f / "new"));
}

TEST(Sim, ARefusedRunLeavesNoFolder) {
  const fs::path f = fresh_folder("refused_folder");
  const std::string scenario = source_path("scenarios/hub.toml").string();
  fs::create_directories(f / "old");
  // Refused by the simulator, after the scenario was read and the folders were made.
  const ProcessResult r = verb(f, {"sim", scenario, "-o", "old/a/b/r.h5", "--signals-out",
                                   "old/c/s.h5", "--set", "policy.condition.layer_norm=\"on\""});
  EXPECT_EQ(r.exit_code, 2) << r.out;
  EXPECT_TRUE(fs::exists(f / "old"));
  EXPECT_TRUE(fs::is_empty(f / "old"));
  const ProcessResult good = verb(f, {"sim", scenario, "-o", "old/a/b/r.h5", "--quiet"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(fs::exists(f / "old/a/b/r.h5"));
}

class Perfetto : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = fresh_folder("perfetto");
    const std::string scenarios = source_path("scenarios").string();
    write_file(
        folder() / "s.toml",
        "[model]\nfile = \"" + scenarios + "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" +
            scenarios +
            "/hardware/hgx_h100.toml\"\n[parallel]\nattention = \"tp\"\ntp = 8\n[workload]\n"
            "kind = \"open\"\nlengths = { prompt = 64, output = 4 }\narrivals = "
            "{ per_second = 200.0, requests = 6 }\nrouting = { synthetic = \"lognormal\", sigma = "
            "0.9 }\n");
    const ProcessResult r = verb(folder(), {"sim", "s.toml", "-o", "r.h5"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  static fs::path& folder() {
    static fs::path f;
    return f;
  }
};

TEST_F(Perfetto, TheTraceHoldsTheRunToThePicosecond) {
  const ProcessResult r = verb(folder(), {"export", "perfetto", "r.h5", "-o", "r.json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string text = read_file(folder() / "r.json");
  const nlohmann::json root = nlohmann::json::parse(text);
  const run::RunReader reader(folder() / "r.h5");
  const std::vector<run::StepScalars> steps = reader.read_steps(0, reader.steps());
  const run::GpuSteps gpus = reader.read_gpus(0, reader.steps());
  std::size_t step = 0, spawned = 0;
  std::map<std::uint64_t, int> arrows;
  std::map<int, double> phases;  // process → us
  std::set<std::string> names;
  double path_us = 0;
  for (const nlohmann::json& e : root["traceEvents"]) {
    const std::string ph = e["ph"];
    ASSERT_TRUE(e.contains("pid") && e.contains("tid") && e.contains("name")) << e;
    if (ph == "M") {
      if (e["name"] == "process_name") names.insert(e["args"]["name"]);
      continue;
    }
    ASSERT_TRUE(e["ts"].is_number()) << e;
    if (ph == "X" && e["cat"] == "step") {
      ASSERT_LT(step, steps.size());
      // Six decimals of a microsecond: the digits are the picoseconds.
      EXPECT_DOUBLE_EQ(e["ts"].get<double>() * 1e6, static_cast<double>(steps[step].start_ps));
      EXPECT_DOUBLE_EQ(e["dur"].get<double>() * 1e6,
                       static_cast<double>(steps[step].end_ps - steps[step].start_ps));
      EXPECT_EQ(e["args"]["tokens"], steps[step].tokens);
      ++step;
    } else if (ph == "X" && e["cat"] == "phase") {
      phases[e["pid"]] += e["dur"].get<double>();
    } else if (ph == "X" && e["cat"] == "critical path") {
      path_us += e["dur"].get<double>();
    } else if (ph == "s" || ph == "f") {
      arrows[e["id"]] += ph == "s" ? 1 : -1;
    } else if (ph == "b" && e["name"] != "waits") {
      ++spawned;
      EXPECT_EQ(e["args"]["outcome"], "finished");
    }
  }
  EXPECT_EQ(step, steps.size());
  EXPECT_EQ(spawned, 6U);
  EXPECT_FALSE(arrows.empty());
  for (const auto& [id, open] : arrows) EXPECT_EQ(open, 0) << id;
  EXPECT_EQ(names.size(), 9U);  // the run and eight GPUs
  // A GPU's phases fill its steps.
  double steps_us = 0;
  for (const run::StepScalars& s : steps) {
    steps_us += static_cast<double>(s.end_ps - s.start_ps) / 1e6;
  }
  ASSERT_EQ(phases.size(), 8U);
  for (const auto& [pid, sum] : phases) EXPECT_NEAR(sum, steps_us, 1e-6 * steps_us) << pid;
  double recorded_us = 0;
  for (const run::CriticalEntry& c : reader.read_critical_path()) {
    recorded_us += static_cast<double>(c.duration_ps) / 1e6;
  }
  EXPECT_NEAR(path_us, recorded_us, 1e-6 * recorded_us);
  // Requests that wait and run come to 0 at the end.
  nlohmann::json last;
  for (const nlohmann::json& e : root["traceEvents"]) {
    if (e["ph"] == "C" && e["name"] == "requests") last = e["args"];
  }
  EXPECT_EQ(last, (nlohmann::json{{"waiting", 0}, {"running", 0}}));
}

TEST_F(Perfetto, APartOfTheStepsAndTheSameBytesAgain) {
  ASSERT_EQ(
      verb(folder(), {"export", "perfetto", "r.h5", "-o", "a.json", "--first", "1", "--steps", "2"})
          .exit_code,
      0);
  ASSERT_EQ(verb(folder(), {"export", "perfetto", "r.h5", "-o", "b.json", "--first", "1", "--steps",
                            "2", "--quiet"})
                .exit_code,
            0);
  const std::string text = read_file(folder() / "a.json");
  EXPECT_EQ(text, read_file(folder() / "b.json"));
  std::set<std::string> steps;
  const nlohmann::json root = nlohmann::json::parse(text);
  for (const nlohmann::json& e : root["traceEvents"]) {
    if (e["ph"] == "X" && e["cat"] == "step") steps.insert(e["name"]);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"step 1", "step 2"}));
}

// Requests that the run did not end stay in the counts beyond the steps that are asked for.
TEST_F(Perfetto, CountsOfRequestsAreNeverNegative) {
  ASSERT_EQ(
      verb(folder(), {"sim", "s.toml", "--set", "workload.arrivals.requests=40", "--set",
                      "workload.arrivals.per_second=20000.0", "--set", "workload.lengths.output=64",
                      "--set", "workload.max_steps=12", "-o", "cut.h5"})
          .exit_code,
      0);
  ASSERT_EQ(verb(folder(),
                 {"export", "perfetto", "cut.h5", "-o", "cut.json", "--first", "0", "--steps", "4"})
                .exit_code,
            0);
  const run::RunReader reader(folder() / "cut.h5");
  std::size_t unfinished = 0, counts = 0;
  for (const run::RequestRecord& r : reader.read_requests()) unfinished += r.end_ps < 0 ? 1U : 0U;
  ASSERT_GT(unfinished, 4U);
  const nlohmann::json root = nlohmann::json::parse(read_file(folder() / "cut.json"));
  for (const nlohmann::json& e : root["traceEvents"]) {
    if (e["ph"] != "C" || e["name"] != "requests") continue;
    ++counts;
    EXPECT_GE(e["args"]["waiting"].get<int>(), 0) << e;
    EXPECT_GE(e["args"]["running"].get<int>(), 0) << e;
  }
  EXPECT_GT(counts, 0U);
}

TEST_F(Perfetto, BadInputLeavesNoFile) {
  const auto refused_with = [&](std::vector<std::string> words, const std::string& message) {
    const ProcessResult r = verb(folder(), std::move(words));
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_TRUE(has(r.err, message)) << r.err;
    EXPECT_FALSE(fs::exists(folder() / "x.json"));
  };
  refused_with({"export", "perfetto", "r.h5", "-o", "x.json", "--first", "100000"},
               "--first: step 100000 of a run of");
  refused_with({"export", "perfetto", "r.h5", "-o", "x.json", "--steps", "100000"},
               "--steps: 100000 steps from step 0 of a run of");
  refused_with({"export", "perfetto", "s.toml", "-o", "x.json"}, "s.toml");
  refused_with({"export", "csv", "r.h5", "-o", "x.json", "--first", "1"},
               "--first, --steps: mean nothing with csv");
  refused_with({"export", "perfetto", "r.h5", "-o", "x.json", "--type", "f32"},
               "--type: means nothing with perfetto");
  ASSERT_EQ(verb(folder(), {"sim", "s.toml", "-o", "sum.h5", "--set", "run.detail=\"summary\""})
                .exit_code,
            0);
  refused_with({"export", "perfetto", "sum.h5", "-o", "x.json"}, "detail");
}

TEST_F(Perfetto, ThePictureNeedsTheApp) {
  const ProcessResult ending = verb(folder(), {"export", "svg", "r.h5", "-o", "r.png"});
  EXPECT_EQ(ending.exit_code, 2);
  EXPECT_TRUE(has(ending.err, "-o: r.png does not end in .svg")) << ending.err;
  const fs::path app = fs::path(test::switchyard_binary()).parent_path() / "switchyard-gui";
  const ProcessResult r =
      run_switchyard({"export", "svg", "r.h5", "-o", "r.svg"},
                     {.folder = folder(),
                      .environment = {{"PATH", "/nowhere"}, {"QT_QPA_PLATFORM", "offscreen"}}});
  if (fs::exists(app)) {
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_TRUE(has(read_file(folder() / "r.svg"), "<svg"));
  } else {
    EXPECT_EQ(r.exit_code, 3);
    EXPECT_TRUE(has(r.err, "export svg draws with switchyard-gui")) << r.err;
    EXPECT_FALSE(fs::exists(folder() / "r.svg"));
  }
}

TEST(Dot, EveryDeviceAndCableIsThere) {
  scenario::HardwareSpec h =
      scenario::read_hardware(source_path("scenarios/hardware/h100_4x8_rail.toml").string());
  const std::string text = exporters::hardware_dot(h, "a \"name\"\\");
  EXPECT_TRUE(text.starts_with("graph \"h100_4x8_rail\" {\n  label = \"a \\\"name\\\"\\\\\";\n"));
  const auto times = [&](const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++n;
    }
    return n;
  };
  EXPECT_EQ(times(" -- "), h.links.size());
  EXPECT_EQ(times("shape = "), h.devices.size());
  EXPECT_EQ(times("subgraph cluster_"), h.nodes);
  EXPECT_EQ(times("shape = box"), 32U);
  EXPECT_EQ(times("{"), times("}"));
  EXPECT_TRUE(has(text, "nvlink4\\n450 GB/s\\n3 us"));
}

TEST(Dot, ScenariosAndHardwareFilesAreDrawn) {
  const fs::path f = fresh_folder("dot");
  const std::string scenario = source_path("scenarios/hub.toml").string();
  const std::string hardware = source_path("scenarios/hardware/hgx_h100.toml").string();
  ASSERT_EQ(verb(f, {"export", "dot", scenario, "-o", "s.dot"}).exit_code, 0);
  const ProcessResult r = verb(f, {"export", "dot", hardware, "-o", "h.dot"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "next: dot -Tsvg h.dot")) << r.out;
  EXPECT_TRUE(has(read_file(f / "s.dot"), " on "));
  EXPECT_TRUE(has(read_file(f / "h.dot"), "label = \"hgx_h100\""));
  // Graphviz itself, where it is installed.
  if (test::run_process({"sh", "-c", "command -v dot"}).exit_code == 0) {
    const ProcessResult svg =
        test::run_process({"dot", "-Tsvg", (f / "h.dot").string(), "-o", (f / "h.svg").string()});
    EXPECT_EQ(svg.exit_code, 0) << svg.err;
    EXPECT_TRUE(has(read_file(f / "h.svg"), "nvswitch"));
  }
  const ProcessResult bad = verb(f, {"export", "dot", "h.csv", "-o", "x.dot"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(has(bad.err, "h.csv: is no scenario and no hardware file")) << bad.err;
  write_file(f / "b.toml", "name = \"x\"\nbogus = 1\n");
  const ProcessResult broken = verb(f, {"export", "dot", "b.toml", "-o", "x.dot"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_TRUE(has(broken.err, "b.toml:2:1")) << broken.err;
  EXPECT_FALSE(fs::exists(f / "x.dot"));
}

}  // namespace switchyard
