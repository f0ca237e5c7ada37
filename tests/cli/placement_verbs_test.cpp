// SPDX-License-Identifier: Apache-2.0
// `import eplb` and `export placement`: other tools' placements in, a run's placement out, and the
// way round through a simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace {

using switchyard::read_file;
using switchyard::write_file;
using switchyard::test::fresh_folder;
using switchyard::test::ProcessResult;
using switchyard::test::run_switchyard;
using switchyard::test::source_path;

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST(ImportEplb, ReadsTheMapOfTheReadme) {
  const fs::path f = fresh_folder("placement_json");
  write_file(f / "map.json",
             R"({"num_gpus": 8, "phy2log": [[5,6,5,7,8,4,3,4,10,9,10,2,0,1,11,1],
                                            [7,10,6,8,6,11,8,9,2,4,5,1,5,0,3,1]]})");
  const ProcessResult r =
      run_switchyard({"import", "eplb", "map.json", "--first-layer", "3", "-o", "p.csv"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string csv = read_file(f / "p.csv");
  EXPECT_EQ(lines(csv), 1 + 2 * 16U);
  EXPECT_TRUE(csv.starts_with("layer,expert,rank\n3,0,6\n3,1,6\n3,1,7\n3,2,5\n")) << csv;
  EXPECT_NE(csv.find("\n4,8,1\n4,8,3\n"), std::string::npos) << csv;
  EXPECT_EQ(r.out.find("memory without effect"), std::string::npos) << r.out;
}

TEST(ImportEplb, ReadsDeviceListsAndZerosAndOnesAlike) {
  const fs::path f = fresh_folder("placement_lists");
  write_file(f / "lists.csv", "layer,device,experts\n0,0,0 1\n0,1,2 3\n0,2,0 3\n");
  write_file(f / "bits.txt", "3 1 4\n1 1 0 0 0 0 1 1 1 0 0 1\n");
  for (const char* name : {"lists.csv", "bits.txt"}) {
    const ProcessResult r =
        run_switchyard({"import", "eplb", name, "-o", "p.csv"}, {.folder = f, .environment = {}});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(read_file(f / "p.csv"),
              "layer,expert,rank\n0,0,0\n0,0,2\n0,1,0\n0,2,1\n0,3,1\n0,3,2\n");
  }
  const ProcessResult real = run_switchyard(
      {"import", "eplb",
       source_path("tests/sim/data/placement/deepseek_v3_gsm8k_32_layer0.csv").string(), "-o",
       "p.csv"},
      {.folder = f, .environment = {}});
  ASSERT_EQ(real.exit_code, 0) << real.err;
  EXPECT_EQ(lines(read_file(f / "p.csv")), 1 + 32 * 8U + 32U);  // 256 experts and 32 copies
}

TEST(ImportEplb, RefusesWhatIsNoPlacement) {
  const fs::path f = fresh_folder("placement_bad");
  const auto refused = [&](const std::string& content, const std::string& message) {
    write_file(f / "in", content);
    const ProcessResult r =
        run_switchyard({"import", "eplb", "in", "-o", "p.csv"}, {.folder = f, .environment = {}});
    EXPECT_EQ(r.exit_code, 2) << content;
    EXPECT_NE(r.err.find(message), std::string::npos) << r.err;
    EXPECT_FALSE(fs::exists(f / "p.csv"));
  };
  refused("", "in:1: no placement that is known here");
  refused("{", "no JSON");
  refused("{}", "no physical_to_logical_map");
  refused(R"({"phy2log": [[0,1]]})", "give --gpus N");
  refused(R"({"num_gpus": 2, "phy2log": [[0,-1]]})", "phy2log[0][1] is no expert id");
  refused(R"({"num_gpus": 2, "phy2log": [[0,2]]})", "phy2log[0]: placement: Violated: expert 1");
  refused(R"({"num_gpus": 3, "phy2log": [[0,1]]})", "the 3 ranks divide the 2 slots");
  refused(R"({"num_gpus": 1, "phy2log": [7]})", "phy2log[0] is no list of slots");
  refused("layer,device,experts\n0,0,0 x\n", "in:2: \"x\" is no whole number");
  refused("layer,device,experts\n0,0,1\n", "expert 0 of row 0 has no place");
  refused("layer,device,experts\n", "the file places no expert");
  refused("2 1 2\n1 0 0\n", "device 1, layer 0, expert 1: expected 0 or 1");
  refused("1 9999999 50\n", "499999950 values do not fit into a file of 13 bytes");
  refused("1 1 1\n1 1\n", "more values");
  refused("9 9\n1\n", "in:1: expected \"devices layers experts\"");
  const ProcessResult unknown =
      run_switchyard({"import", "eplbb", "in", "-o", "p.csv"}, {.folder = f, .environment = {}});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("eplb"), std::string::npos) << unknown.err;
}

TEST(ExportPlacement, GivesAFileThatTheNextRunTakes) {
  const fs::path f = fresh_folder("placement_round");
  const std::string scenario = source_path("tests/sim/data/worked.toml").string();
  const auto simulate = [&](const std::string& out, const std::vector<std::string>& settings) {
    std::vector<std::string> arguments{"sim", scenario, "-o", out, "--quiet"};
    for (const std::string& s : settings) arguments.insert(arguments.end(), {"--set", s});
    return run_switchyard(arguments, {.folder = f, .environment = {}});
  };
  const std::string routing = R"(workload.routing={ synthetic = "zipf", s = 1.2 })";
  ProcessResult r = simulate("a.h5", {routing, "parallel.ep=4", "parallel.placement=eplb",
                                      "parallel.placement_options={ redundant = 4 }"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  r = run_switchyard({"export", "placement", "a.h5", "-o", "p.csv"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(lines(read_file(f / "p.csv")), 1 + 2 * 12U);
  r = simulate("b.h5", {routing, "parallel.ep=4", "parallel.placement=\"./p.csv\""});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  r = run_switchyard({"export", "placement", "b.h5", "-o", "q.csv"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(read_file(f / "p.csv"), read_file(f / "q.csv"));
}

TEST(ExportPlacement, RefusesAFormatOfWeights) {
  const fs::path f = fresh_folder("placement_type");
  const ProcessResult r =
      run_switchyard({"export", "placement", "r.h5", "-o", "p.csv", "--type", "bf16"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("--type: means nothing with placement"), std::string::npos) << r.err;
}

TEST(ImportTopoM, PrintsATableInEveryFormat) {
  const fs::path f = fresh_folder("topo_m_format");
  const ProcessResult r = run_switchyard(
      {"import", "topo-m", source_path("tests/fixtures/topo_m/hgx_h100_8gpu.txt").string(),
       "--like", "hgx_h100", "--numa", "67.2 GB/s", "-o", "mine.toml", "--format", "csv"},
      {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("\nGPUs,8\n"), std::string::npos) << r.out;
}

// A long name ends at a whole character, so that the JSON is valid UTF-8.
TEST(InspectGguf, CutsLongTextsBetweenCharacters) {
  const fs::path f = fresh_folder("gguf_names");
  for (const int blanks : {0, 1, 2}) {
    std::string name(static_cast<std::size_t>(blanks), 'x');
    for (int i = 0; i < 30; ++i) {
      name += "\xe8\xb7\xaf";  // U+8DEF, three bytes
    }
    fs::create_directory_symlink(source_path("scenarios/checkpoints/sy-16x2"), f / name);
    const ProcessResult exported =
        run_switchyard({"export", "gguf", name, "-o", "m.gguf", "--type", "q4_0", "--quiet"},
                       {.folder = f, .environment = {}});
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
    const ProcessResult r =
        run_switchyard({"inspect", "m.gguf", "--json"}, {.folder = f, .environment = {}});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const std::string text = nlohmann::json::parse(r.out).dump();  // throws on invalid UTF-8
    const std::string shown =
        name.substr(0, static_cast<std::size_t>(blanks == 0 ? 60 : blanks + 57));
    EXPECT_NE(text.find(shown + "\xe2\x80\xa6 (" + std::to_string(name.size()) + " bytes)"),
              std::string::npos)
        << text;
  }
}
