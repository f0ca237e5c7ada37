// SPDX-License-Identifier: Apache-2.0
// A run in which nobody can go on ends, and says who waits for what.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/serving/serving.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

/// Two requests of 40 tokens on one GPU, in chunks of 32; `bytes_of_two` B for pages of 17 to 32
/// tokens, 10 B otherwise, 50 B in all.
std::vector<std::string> violations(std::uint64_t bytes_of_two) {
  const scenario::Scenario s =
      test::worked_scenario({"workload={kind=\"open\",arrivals={per_second=1000.0,requests=2},"
                             "lengths={prompt=39,output=1},"
                             "batching={token_budget=32},routing={synthetic=\"uniform\"}}",
                             "parallel.attention=\"hub\"", "memory.kv={placement=\"hub\"}"});
  ServingMachine machine;
  machine.gpus = 8;
  machine.kv_capacity.assign(8, 50);
  machine.kv_bytes = [bytes_of_two](std::uint64_t tokens) -> std::uint64_t {
    return tokens > 16 && tokens <= 32 ? bytes_of_two : 10;
  };
  const auto batch = make_serving(s, machine);
  StepPlan plan;
  run::RunData data;
  std::int64_t now = 0;
  for (std::uint64_t step = 0; batch->next(step, plan); ++step) {
    const std::int64_t start = std::max(now, plan.earliest_ps);
    now = start + 1'000'000;
    batch->done(step, plan, start, now, data);
  }
  std::vector<std::string> notes, out;
  batch->finish(now, data, notes, out);
  return out;
}

}  // namespace

TEST(Deadlock, NamesWhoWaitsForWhat) {
  // The whole request fits, its first chunk never does: a machine that no scenario can state.
  const std::vector<std::string> v = violations(60);
  ASSERT_EQ(v.size(), 1U);
  EXPECT_EQ(v[0].find("deadlock: no event is left and 2 requests cannot go on; request 0 waits on "
                      "GPU 0 for pages of 32 tokens (60 B, 50 of 50 B free) since "),
            0U)
      << v[0];
  EXPECT_NE(v[0].find("; request 1 waits on GPU 0"), std::string::npos) << v[0];
}

TEST(Deadlock, IsNotSeenWhereAllGoOn) { EXPECT_TRUE(violations(20).empty()); }

}  // namespace switchyard::sim
