// SPDX-License-Identifier: Apache-2.0
// kernels/device_check.sh run, with the host executor in place of a GPU: what it writes and how it
// ends.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/scenario/calibration.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = SWITCHYARD_SOURCE_DIR;

/// A folder as `pack` makes it.
fs::path packed(const std::string& name) {
  const fs::path folder = fs::current_path() / name;
  fs::remove_all(folder);
  fs::create_directories(folder / "bin");
  fs::create_directories(folder / "lib");
  fs::create_symlink(DEVICE_PROGRAM, folder / "bin" / "switchyard-device");
  fs::create_directory_symlink(kSource / "tests/fixtures/family_tiny/qwen3_moe",
                               folder / "checkpoint");
  return folder;
}

int run_check(const fs::path& folder, const std::string& more, const std::string& before = "") {
  const std::string command = before + " bash '" + (kSource / "kernels/device_check.sh").string() +
                              "' run '" + folder.string() + "' --small " + more + " > '" +
                              (folder / "log.txt").string() + "' 2>&1";
  return WEXITSTATUS(std::system(command.c_str()));
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(DeviceCheck, WritesResultsAndACalibration) {
  const fs::path folder = packed("whole");
  ASSERT_EQ(run_check(folder, ""), 0) << text_of(folder / "log.txt");
  const auto results = nlohmann::json::parse(text_of(folder / "results" / "device.json"));
  EXPECT_EQ(results["device"], "host executor");
  EXPECT_EQ(results["agrees"], true);
  EXPECT_EQ(results["kernels"].size(), 13U);
  for (const auto& [name, kernel] : results["kernels"].items()) {
    EXPECT_GT(kernel["shapes"], 0) << name;
    EXPECT_EQ(kernel["failed"], 0) << name;
  }
  for (const char* const precision : {"f32", "bf16"}) {
    const auto& model = results["model"][precision];
    EXPECT_EQ(model["agrees"], true) << precision;
    EXPECT_GT(model["slots"], 0) << precision;
    EXPECT_GT(model["first token cold [ms]"], 0) << precision;
    EXPECT_GT(model["first token warm [ms]"], 0) << precision;
  }
  EXPECT_EQ(results["model"]["bf16"]["backend"], "cuda host executor, own dense products");
  EXPECT_EQ(results["experts"]["toy"].size(), 2U);
  EXPECT_GT(results["experts"]["toy"][0]["few rows [us]"], 0);
  EXPECT_GT(results["experts"]["toy"][0]["unfused [us]"], 0);
  EXPECT_GT(results["gate"][0]["fused [us]"], 0);
  EXPECT_GT(results["gate"][0]["unfused [us]"], 0);
  for (const auto& [layer, k] :
       {std::pair{"8 experts, 2 a token", 2U}, {"128 experts, 8 a token", 8U}}) {
    const auto& times = results["capacity"][layer];
    ASSERT_EQ(times.size(), 2U) << layer;
    EXPECT_EQ(times[1]["tokens"], 16);
    EXPECT_GT(times[1]["sequential [us]"], 0);
    EXPECT_GT(times[1]["rounds [us]"], 0);
    EXPECT_EQ(times[1]["slots kept"].get<unsigned>() + times[1]["slots rerouted"].get<unsigned>() +
                  times[1]["slots dropped"].get<unsigned>(),
              16 * k);
    EXPECT_GT(times[1]["slots rerouted"], 0) << "full experts are part of what is timed";
  }
  EXPECT_EQ(results["dense"]["library"], "none: the host executor runs our own kernels only");
  EXPECT_GT(results["dense"]["24 x 32"][1]["tensor cores [us]"], 0);
  EXPECT_EQ(results["grouped against cuBLAS"]["library"],
            "none: the host executor runs our own kernels only");
  EXPECT_GT(results["attention"]["heads 4/2, width 16"]["decode"][0]["us"], 0);
  const auto calibration =
      scenario::read_calibration((folder / "results" / "calibration.toml").string());
  ASSERT_EQ(calibration.tables.size(), 4U);
  EXPECT_EQ(calibration.tables[1].kind, scenario::OpKind::kGemm);
  EXPECT_EQ(calibration.tables[1].points.size(), 2U);
  EXPECT_EQ(calibration.tables[2].kind, scenario::OpKind::kAttentionDecode);
  EXPECT_EQ(calibration.tables[3].kind, scenario::OpKind::kAttentionPrefill);
  EXPECT_EQ(calibration.tables[0].points.size(), 2U);
  EXPECT_EQ(calibration.tables[0].shape, (std::vector<std::uint64_t>{64, 32, 3}));
}

/// A folder whose program does `program` and whose compute-sanitizer does `tool`, both of bash.
fs::path pretended(const std::string& name, const std::string& program, const std::string& tool) {
  const fs::path folder = packed(name);
  fs::create_directories(folder / "tools");
  fs::remove(folder / "bin" / "switchyard-device");
  for (const auto& [file, text] : {std::pair{folder / "bin" / "switchyard-device", program},
                                   std::pair{folder / "tools" / "compute-sanitizer", tool}}) {
    std::ofstream(file) << "#!/usr/bin/env bash\n" << text << "\n";
    fs::permissions(file, fs::perms::owner_all);
  }
  return folder;
}

int run_pretended(const fs::path& folder, const std::string& limits) {
  return run_check(folder, "", limits + " PATH='" + (folder / "tools").string() + "':\"$PATH\"");
}

TEST(DeviceCheck, AToolOutOfTimeIsNoDisagreementAndStopsNoOther) {
  const fs::path folder =
      pretended("slow_tool", "exit 0", "[ $2 = racecheck ] || sleep 60; echo \"$2 ran\"");
  EXPECT_EQ(run_pretended(folder, "SWITCHYARD_TOOL_SECONDS=1"), 4);
  const std::string log = text_of(folder / "log.txt");
  EXPECT_NE(log.find("memcheck: not finished after 1 s\n"), std::string::npos) << log;
  EXPECT_EQ(log.find("racecheck:"), std::string::npos) << log;
  EXPECT_EQ(text_of(folder / "results" / "racecheck.txt"), "racecheck ran\n");
}

TEST(DeviceCheck, AToolThatFindsSomethingIsADisagreementAndStopsNoOther) {
  const fs::path folder =
      pretended("finding", "exit 0", "[ $2 = racecheck ] || exit 9; echo \"$2 ran\"");
  EXPECT_EQ(run_pretended(folder, ""), 1);
  const std::string log = text_of(folder / "log.txt");
  EXPECT_NE(log.find("memcheck: failed (status 9)\n"), std::string::npos) << log;
  EXPECT_EQ(text_of(folder / "results" / "racecheck.txt"), "racecheck ran\n");
}

TEST(DeviceCheck, AProgramThatDisagreesOrTakesTooLongSaysSo) {
  const fs::path wrong = pretended("wrong", "exit 1", "exit 0");
  EXPECT_EQ(run_pretended(wrong, ""), 1);
  EXPECT_TRUE(fs::exists(wrong / "results" / "memcheck.txt"));
  const fs::path slow = pretended("slow", "sleep 60", "exit 0");
  EXPECT_EQ(run_pretended(slow, "SWITCHYARD_CHECK_SECONDS=1"), 4);
  const std::string log = text_of(slow / "log.txt");
  EXPECT_NE(log.find("switchyard-device: not finished after 1 s\n"), std::string::npos) << log;
  EXPECT_NE(log.find("racecheck: not begun"), std::string::npos) << log;
}

TEST(DeviceCheck, SaysWhatIsMissing) {
  const fs::path folder = packed("incomplete");
  fs::remove(folder / "bin" / "switchyard-device");
  EXPECT_EQ(run_check(folder, ""), 2);
  EXPECT_NE(text_of(folder / "log.txt").find("no bin/switchyard-device in"), std::string::npos);
}

TEST(DeviceCheck, PassesAFailureOn) {
  const fs::path folder = packed("broken");
  fs::remove(folder / "checkpoint");
  fs::create_directory(folder / "checkpoint");
  EXPECT_EQ(run_check(folder, ""), 2) << "a checkpoint without config.json";
  EXPECT_FALSE(fs::exists(folder / "results" / "device.json"));
}

}  // namespace
}  // namespace switchyard
