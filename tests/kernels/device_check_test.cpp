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

int run_check(const fs::path& folder, const std::string& more) {
  const std::string command = "bash '" + (kSource / "kernels/device_check.sh").string() +
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
