// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/shipped.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

namespace switchyard::scenario {
namespace {

namespace fs = std::filesystem;

TEST(ShippedScenarios, LieBesideAnInstalledProgramElseInTheSourceTree) {
  ::unsetenv("SWITCHYARD_SCENARIOS");
  fs::create_directories("prefix/bin");
  fs::create_directories("source/scenarios");
  fs::remove_all("prefix/share");
  EXPECT_EQ(shipped_scenarios("source/scenarios", "prefix/bin/program"), "source/scenarios");
  EXPECT_EQ(shipped_scenarios("no/such/folder", "prefix/bin/program"), "");
  fs::create_directories("prefix/share/switchyard/scenarios");
  EXPECT_EQ(shipped_scenarios("source/scenarios", "prefix/bin/program"),
            "prefix/share/switchyard/scenarios");
  EXPECT_EQ(shipped_scenarios("no/such/folder", "prefix/bin/program"),
            "prefix/share/switchyard/scenarios");
  // The running program is a test in the build tree.
  EXPECT_EQ(shipped_scenarios("source/scenarios"), "source/scenarios");
  ::setenv("SWITCHYARD_SCENARIOS", "elsewhere", 1);
  EXPECT_EQ(shipped_scenarios("source/scenarios", "prefix/bin/program"), "elsewhere");
  ::unsetenv("SWITCHYARD_SCENARIOS");
}

}  // namespace
}  // namespace switchyard::scenario
