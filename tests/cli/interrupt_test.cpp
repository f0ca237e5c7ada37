// SPDX-License-Identifier: Apache-2.0
// A run that is interrupted ends with 128 + signal and leaves neither a temporary nor an output.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace fs = std::filesystem;

std::size_t temporaries(const fs::path& folder) {
  std::size_t n = 0;
  std::error_code ec;
  // The folder changes while it is read: an entry that is gone again is no reason to throw.
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    n += it->path().extension() == ".tmp" ? 1 : 0;
  }
  return n;
}

void expect_clean_end(const std::string& name, std::vector<std::string> arguments, int signal,
                      std::size_t outputs) {
  SCOPED_TRACE(name);
  const fs::path f = fresh_folder(name);
  const std::vector<std::string> before = listing(f);
  bool seen = false;
  const ProcessResult r = interrupt_switchyard(std::move(arguments), signal,
                                               [&] { return seen = temporaries(f) >= outputs; },
                                               {.folder = f, .environment = {}});
  EXPECT_TRUE(seen) << "ended before it wrote anything: " << r.err;
  EXPECT_FALSE(r.died_of_signal);
  EXPECT_EQ(r.exit_code, 128 + signal) << r.out << r.err;
  for (const std::string& left : listing(f)) {
    EXPECT_FALSE(left.ends_with(".tmp") || left.ends_with(".h5") || left.ends_with(".csv")) << left;
  }
}

std::vector<std::string> long_trace() {
  return {"trace",
          "--model",
          source_path("scenarios/checkpoints/sy-16x2").string(),
          "--prompts",
          source_path("scenarios/prompts/mixed.jsonl").string(),
          "--max-new",
          "128",
          "-o",
          "t.h5"};
}

std::vector<std::string> long_sim() {
  return {"sim", source_path("scenarios/hub.toml").string(), "--set", "workload.steps=100000", "-o",
          "r.h5"};
}

TEST(Interrupt, OfATraceLeavesNothing) {
  expect_clean_end("interrupt_trace_int", long_trace(), SIGINT, 1);
  expect_clean_end("interrupt_trace_term", long_trace(), SIGTERM, 1);
}

TEST(Interrupt, OfASimulationLeavesNothing) {
  expect_clean_end("interrupt_sim_int", long_sim(), SIGINT, 1);
  expect_clean_end("interrupt_sim_term", long_sim(), SIGTERM, 1);
}

TEST(Interrupt, WhatAKilledProcessLeftGoesWithTheNextRunOfThatName) {
  const fs::path f = fresh_folder("interrupt_sim_kill");
  const ProcessResult killed = interrupt_switchyard(
      long_sim(), SIGKILL, [&] { return temporaries(f) >= 1; }, {.folder = f, .environment = {}});
  EXPECT_TRUE(killed.died_of_signal);
  ASSERT_EQ(temporaries(f), 1U);
  // Neither of a run that goes on (this process), nor of another output.
  const std::string alive = "r.h5." + std::to_string(getpid()) + ".tmp";
  switchyard::write_file(f / alive, "a run that goes on");
  switchyard::write_file(f / "other.h5.999999999.tmp", "of another output");
  const ProcessResult again =
      run_switchyard({"sim", source_path("scenarios/hub.toml").string(), "-o", "r.h5"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(listing(f), (std::vector<std::string>{"other.h5.999999999.tmp", "r.h5", alive}));
}

TEST(Interrupt, OfASweepStopsItsPointsToo) {
  for (const int signal : {SIGINT, SIGTERM}) {
    expect_clean_end("interrupt_sweep_" + std::to_string(signal),
                     {"sweep", source_path("scenarios/normative.toml").string(), "--set",
                      "workload.steps=100000", "-j", "2", "-o", "out"},
                     signal, 2);
  }
}

}  // namespace
