// SPDX-License-Identifier: Apache-2.0
// `mpirun -n N switchyard sweep`: the same bytes as one process, what is there is kept, a point
// that fails is named by all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Root may run mpirun in a container; more ranks than cores are fine.
ProcessOptions in(const fs::path& folder) {
  return {.folder = folder,
          .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"}}};
}

ProcessResult sweep(const fs::path& folder, int ranks, const std::string& output,
                    const Words& more = {}) {
  Words command{SWITCHYARD_BINARY, "sweep", "s.toml", "-o", output};
  if (ranks > 0) {
    const Words mpi{SWITCHYARD_MPIRUN, "--oversubscribe", "-n", std::to_string(ranks)};
    command.insert(command.begin(), mpi.begin(), mpi.end());
  }
  command.insert(command.end(), more.begin(), more.end());
  return run_process(command, in(folder));
}

fs::path with_scenario(const std::string& name, const std::string& batches) {
  const fs::path f = fresh_folder(name);
  std::string text =
      "[model]\nfile = \"" + source_path("scenarios/models/mixtral_8x7b.json").string() +
      "\"\n[hardware]\nfile = \"" + source_path("scenarios/hardware/hgx_h100.toml").string() +
      "\"\n[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 64\nsteps = 2\n"
      "routing = { synthetic = \"zipf\", s = 0.7 }\n"
      "[[sweep]]\nkey = \"workload.batch\"\nvalues = " +
      batches +
      "\n[[sweep]]\nkey = \"network.dispatch\"\nvalues = [\"per_rank\", \"per_expert\"]\n";
  switchyard::write_file(f / "s.toml", text);
  return f;
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      out[fs::relative(entry.path(), folder).string()] = switchyard::read_file(entry.path());
    }
  }
  return out;
}

TEST(SweepUnderMpi, GivesTheBytesOfOneProcess) {
  const fs::path f = with_scenario("same", "[8, 16, 24]");
  const ProcessResult alone = sweep(f, 0, "one");
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto expected = contents(f / "one");
  EXPECT_EQ(expected.size(), 7U);
  for (const int ranks : {2, 4}) {
    const std::string name = "ranks" + std::to_string(ranks);
    const ProcessResult r = sweep(f, ranks, name, {"-j", "2"});
    ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_EQ(r.out, alone.out) << "one rank prints";
    EXPECT_TRUE(contents(f / name) == expected) << ranks;
  }
}

TEST(SweepUnderMpi, GoesOnWhereItWasStopped) {
  const fs::path f = with_scenario("resume", "[8, 16, 24]");
  ASSERT_EQ(sweep(f, 0, "out").exit_code, 0);
  const auto expected = contents(f / "out");
  // As a killed sweep leaves it: two points missing, a file cut short, no index.
  fs::remove(f / "out/index.csv");
  std::vector<fs::path> points;
  for (const auto& entry : fs::directory_iterator(f / "out/points")) points.push_back(entry.path());
  ASSERT_EQ(points.size(), 6U);
  fs::remove(points[0]);
  fs::remove(points[3]);
  fs::resize_file(points[4], 1000);
  const ProcessResult r = sweep(f, 3, "out");
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("3 run now, 3 were there already, 0 failed"), std::string::npos) << r.out;
  EXPECT_TRUE(contents(f / "out") == expected);
}

TEST(SweepUnderMpi, MistakesAreSaidOnceAndEndTheJob) {
  const fs::path f = with_scenario("wrong", "[8, 0]");
  const ProcessResult r = sweep(f, 3, "out");
  EXPECT_EQ(r.exit_code, 2);
  const std::size_t first = r.err.find("switchyard: ");
  ASSERT_NE(first, std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("switchyard: ", first + 1), std::string::npos) << r.err;
  EXPECT_EQ(listing(f), Words{"s.toml"});
}

}  // namespace
