// SPDX-License-Identifier: Apache-2.0
// network.chunks on the machine of the worked example (sim/README.md), against arithmetic: token t
// on GPU t chooses experts t + 1 and t + 2, so every GPU sends and receives two copies of 2,048 B
// and runs two rows of its expert, in both layers.
//   whole   exchange 2 us + 4,096 B / 100 GB/s = 2,040,960 ps; experts of 2 rows: 2 kernels of 1
//   us,
//           8,388,608 + 2 · 6,144 and 4,194,304 + 2 · 6,144 B at 1 B/ps = 14,607,488 ps
//           layer: 2 · 2,040,960 + 14,607,488 = 18,689,408
//   k = 2   exchange 2,020,480; experts of 1 row 14,595,200, weights read twice
//           layer: Σ c + max c = 2 · 2,020,480 + 2 · 14,595,200 = 33,231,360
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;

MemoryRun even(std::vector<std::string> settings) {
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=8");
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), &trace);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::int64_t duration(const MemoryRun& r) {
  return r.data.steps[0].end_ps - r.data.steps[0].start_ps;
}

std::string refusal(std::vector<std::string> settings) {
  try {
    (void)test::worked_scenario(std::move(settings));
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST(Chunks, TakeTheTimeOfThePipelineFormula) {
  const MemoryRun whole = even({});
  EXPECT_EQ(duration(even({"network.chunks=1"})), duration(whole));
  const MemoryRun two = even({"network.chunks=2"});
  EXPECT_EQ(duration(two) - duration(whole), 2 * (33'231'360 - 18'689'408));
  // The same bytes on the wire, and each chunk pays its latency.
  EXPECT_EQ(two.data.steps[0].bytes_sent, whole.data.steps[0].bytes_sent);
  EXPECT_EQ(two.data.links.bytes, whole.data.links.bytes);
  EXPECT_EQ(two.data.layer_steps.dispatch_ps[0], 2 * 2'020'480);
  EXPECT_EQ(two.data.layer_steps.expert_ps[0], 2 * 14'595'200);
}

TEST(Chunks, SlowExpertsTakeTheirFactorInEveryChunk) {
  const MemoryRun well = even({"network.chunks=2"});
  const MemoryRun sick =
      even({"network.chunks=2",
            "faults.events=[{kind=\"slow_expert\",expert=6,layer=1,factor=4,step=0}]"});
  // Two chunks of one row, 12,595,200 ps each beside their launches, three times more.
  EXPECT_EQ(duration(sick) - duration(well), 2 * 3 * 12'595'200);
}

TEST(Chunks, CommunicationTakesItsShareOfTheSms) {
  const MemoryRun two = even({"network.chunks=2"});
  const MemoryRun half = even({"network.chunks=2", "network.comm_sms=50 %"});
  // Experts take twice as long, but for the launches of their kernels; the exchanges hide behind
  // them as before.
  EXPECT_EQ(duration(half) - duration(two), 2 * 2 * (14'595'200 - 2 * 1'000'000));
}

TEST(Chunks, PayWhereExpertsComputeForLong) {
  const std::vector<std::string> prefill{
      "workload={kind=\"prefill\",batch=8,tokens=2048,steps=2,"
      "routing={synthetic=\"uniform\"}}"};
  const auto run = [&](const std::string& chunks) {
    std::vector<std::string> set = prefill;
    set.push_back("network.chunks=" + chunks);
    const MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(set)), nullptr);
    EXPECT_TRUE(r.result.violations.empty());
    return duration(r);
  };
  const std::int64_t one = run("1"), four = run("4");
  EXPECT_LT(four, one);
  EXPECT_GT(four, one / 2);
}

TEST(Chunks, AreRefusedWhereTheyMeanNothing) {
  EXPECT_NE(refusal({"network.comm_sms=10 %"}).find("means nothing with chunks = 1"),
            std::string::npos);
  EXPECT_NE(refusal({"network.chunks=2", "network.comm_sms=95 %"}).find("comm_sms <= 90 %"),
            std::string::npos);
}

}  // namespace switchyard::sim
