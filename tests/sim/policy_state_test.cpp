// SPDX-License-Identifier: Apache-2.0
// What M12 and M13 remember from step to step is of the engine's steps, also for a copy of the
// experts that has no token in one: 8 GPUs of the worked example, two copies (ep = 4), requests at
// stated times, request n at home on GPU n.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;

/// Rows of arrival_ns,prompt_tokens,output_tokens.
MemoryRun run_of(const std::string& rows, const std::string& policy) {
  write_file("requests.csv", "arrival_ns,prompt_tokens,output_tokens\n" + rows);
  std::vector<std::string> set{
      "parallel.ep=4",
      "workload={ kind = \"trace\", routing = { synthetic = \"uniform\" }, arrivals = { file = \"" +
          std::filesystem::absolute("requests.csv").string() +
          "\" }, front_end = { balance = \"round_robin\" } }"};
  if (!policy.empty()) set.push_back(policy);
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(set)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::int64_t expert_ps(const MemoryRun& r, std::size_t step, std::size_t gpu) {
  return r.data.gpus
      .phase_ps[(step * 8 + gpu) * run::kPhases + static_cast<std::size_t>(run::Phase::kExpert)];
}

}  // namespace

TEST(PolicyState, AQueueOfAStepIsForgottenByAnIdleOne) {
  // Request 4 fills the queues of the second copy in step 0 and is gone; request 5 comes many steps
  // later. Its token takes two experts: the step before left no queue.
  const std::string rows = "0,1,60\n0,1,60\n0,1,60\n0,1,60\n0,64,1\n3000000,1,1\n";
  const MemoryRun r = run_of(rows,
                             "policy.soft_balance={ limit = 1000, low_memory = 0.0, k3_memory = "
                             "0.0, batch_limit = 8 }");
  ASSERT_GT(r.data.steps.size(), 30U);
  for (const std::string& note : r.result.notes) {
    EXPECT_EQ(note.find("third expert"), std::string::npos) << note;
  }
  // In the step after request 4's it would be so.
  const MemoryRun next = run_of("0,1,60\n0,1,60\n0,1,60\n0,1,60\n0,64,2\n",
                                "policy.soft_balance={ limit = 1000, low_memory = 0.0, k3_memory = "
                                "0.0, batch_limit = 8 }");
  EXPECT_TRUE(std::any_of(next.result.notes.begin(), next.result.notes.end(),
                          [](const std::string& n) { return n.find("third") != n.npos; }));
}

TEST(PolicyState, EveryFourthDecodeStepIsTheEngines) {
  // Request 4 comes after the engine's second decode step.
  const std::string rows = "0,1,60\n0,1,60\n0,1,60\n0,1,60\n230000,1,60\n";
  const MemoryRun off = run_of(rows, "");
  const MemoryRun on =
      run_of(rows, "policy.decode_rebalance={ level = 0.0001, target = \"third\" }");
  std::size_t decodes = 0, check = 0;
  for (std::size_t s = 0; s < off.data.steps.size() && check == 0; ++s) {
    decodes += off.data.steps[s].kind != run::StepKind::kPrefill ? 1 : 0;
    if (decodes == 4) check = s;
  }
  const auto second_copy = [&](const MemoryRun& r, std::size_t s) {
    std::vector<std::int64_t> out;
    for (std::size_t g = 4; g < 8; ++g) out.push_back(expert_ps(r, s, g));
    return out;
  };
  const std::vector<std::int64_t> idle(4, 0);
  ASSERT_NE(second_copy(off, check), idle);
  EXPECT_EQ(second_copy(off, 1), idle) << "it missed decode steps, so its own fourth comes later";
  for (std::size_t s = 0; s < check; ++s) EXPECT_EQ(second_copy(on, s), second_copy(off, s)) << s;
  EXPECT_NE(second_copy(on, check), second_copy(off, check));
}

}  // namespace switchyard::sim
