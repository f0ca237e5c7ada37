// SPDX-License-Identifier: Apache-2.0
// The recorded critical path on the machine of the worked example (sim/README.md): whatever the
// layout, its pieces follow each other from the step's start to its end and are the step's phases.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using run::CriticalEntry;
using run::Phase;
using run::StragglerReason;
using test::MemoryRun;

const std::string kLognormal = R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })";

MemoryRun run_of(std::vector<std::string> settings) {
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

/// Every token of both layers has these experts.
MemoryRun traced(const std::vector<std::vector<std::uint16_t>>& tokens,
                 std::vector<std::string> settings) {
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=" + std::to_string(tokens.size()));
  return test::run_in_memory(test::worked_scenario(std::move(settings)), &trace);
}

std::vector<CriticalEntry> pieces(const MemoryRun& r, Phase phase) {
  std::vector<CriticalEntry> out;
  for (const CriticalEntry& e : r.data.critical_path) {
    if (e.phase == phase) out.push_back(e);
  }
  return out;
}

/// `stretched`: the step took longer in the end than when its phases were first known.
void expect_path(const MemoryRun& r, const std::string& what, bool stretched = false) {
  ASSERT_FALSE(r.data.critical_path.empty()) << what;
  const std::uint32_t step = r.data.critical_path.front().step;
  const run::StepScalars& s = r.data.steps[step];
  for (const run::StepScalars& other : r.data.steps) {
    EXPECT_LE(other.end_ps - other.start_ps, s.end_ps - s.start_ps) << what;
  }
  std::int64_t at = s.start_ps;
  std::array<std::int64_t, run::kPhases> phases{};
  for (const CriticalEntry& e : r.data.critical_path) {
    EXPECT_EQ(e.step, step) << what;
    EXPECT_EQ(e.start_ps, at) << what;
    EXPECT_GT(e.duration_ps, 0) << what;
    at = e.start_ps + e.duration_ps;
    phases[static_cast<std::size_t>(e.phase)] += e.duration_ps;
  }
  EXPECT_EQ(at, s.end_ps) << what;
  if (!stretched) {
    EXPECT_EQ(phases, s.phase_ps) << what;
  }
}

}  // namespace

TEST(CriticalPath, PiecesFillTheSlowestStepInEveryLayout) {
  const std::vector<std::vector<std::string>> layouts{
      {},
      {"parallel.ep=2"},
      {"parallel.ep=1"},
      {"network.two_batch=true"},
      {"network.two_batch=true", "parallel.ep=4", "network.comm_sms=20 %"},
      {"network.chunks=2"},
      {"network.chunks=3", "network.comm_sms=50 %"},
      {"network.chunks=3", "network.chunk_by=experts", "parallel.ep=2"},
      {"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4", "parallel.ep=4"},
      {"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4", "parallel.ep=2",
       "parallel.micro_batches=3"},
      {"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4", "parallel.ep=2"},
      {"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4", "parallel.ep=8"},
      {"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4", "parallel.ep=2",
       "parallel.sequence_parallel=true"},
      {"parallel.attention=hub"},
      {"network.dispatch=per_node"},
      {"network.algorithm=ring"},
      {"network.model=auto", "parallel.ep=2"},
      {"network.payload={ wire = \"int4\" }"},
      {"memory.kv={placement=\"by_token\"}"},
      {"faults.events=[{kind=\"slow_gpu\",gpu=\"gpu1\",factor=2,step=1}]"},
      {"network.two_batch=true",
       "faults.events=[{kind=\"slow_gpu\",gpu=\"gpu1\",factor=2,step=1}]"},
      {"faults.events=[{kind=\"gather_failure\",gpu=\"gpu1\",timeout=\"30 us\",step=1}]"},
      {"faults.detection=100 us", "faults.reload=10 GB/s",
       "faults.events=[{kind=\"gpu_loss\",gpu=\"gpu3\",step=1}]"},
      {"parallel.placement=\"eplb\"", "parallel.placement_options={ redundant = 8 }",
       "parallel.rebalance={ signal = \"load\", threshold = 1.01, window = 1, cooldown = 1 }"}};
  for (const std::vector<std::string>& layout : layouts) {
    std::vector<std::string> set{kLognormal, "workload.batch=24", "workload.steps=3"};
    std::string what;
    for (const std::string& s : layout) what += s + " ";
    set.insert(set.end(), layout.begin(), layout.end());
    SCOPED_TRACE(what);
    const MemoryRun r = run_of(set);
    expect_path(r, what);
    EXPECT_FALSE(pieces(r, Phase::kAttention).empty());
    EXPECT_FALSE(pieces(r, Phase::kHead).empty());
    EXPECT_FALSE(pieces(r, Phase::kExpert).empty());
  }
}

TEST(CriticalPath, FollowsTheFlowsOfEachGpu) {
  expect_path(run_of({kLognormal, "workload.batch=24", "workload.steps=3", "parallel.ep=4",
                      "network.model=flow"}),
              "flow");
}

TEST(CriticalPath, OfRequestsThatArriveAndOfPagesThatTravel) {
  const std::string requests =
      "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { per_second "
      "= 20000.0, requests = 40 }, lengths = { prompt = 64, output = 8 }";
  expect_path(run_of({requests + " }"}), "one replica");
  expect_path(run_of({requests + ", front_end = { replicas = 2 } }", "parallel.ep=4"}), "two");
  expect_path(run_of({requests + ", front_end = { replicas = 2, prefill_replicas = 1 } }",
                      "parallel.ep=4", "network.model=auto"}),
              "pages", true);
}

TEST(CriticalPath, IsTheChainOfTheWorkedExample) {
  // One token a GPU, two copies out and in: all GPUs alike, so the path is one GPU's own step.
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const MemoryRun r = traced(tokens, {});
  std::vector<Phase> order;
  for (const CriticalEntry& e : r.data.critical_path) order.push_back(e.phase);
  std::vector<Phase> want{Phase::kHost, Phase::kHead};
  for (int layer = 0; layer < 2; ++layer) {
    // The weighted sum is of the combine, by the GPU; the exchange is a piece of its own.
    want.insert(want.end(), {Phase::kAttention, Phase::kRouter, Phase::kDispatch, Phase::kExpert,
                             Phase::kCombine, Phase::kCombine});
  }
  want.push_back(Phase::kHead);
  if (order.size() < want.size()) {
    // Where the exchange names the same GPU as the sum after it they are one piece.
    want.erase(std::unique(want.begin(), want.end()), want.end());
  }
  EXPECT_EQ(order, want);
  const std::vector<CriticalEntry> dispatch = pieces(r, Phase::kDispatch);
  ASSERT_EQ(dispatch.size(), 2U);
  EXPECT_EQ(dispatch[0].duration_ps, 2'040'960);
  EXPECT_EQ(dispatch[0].layer, 0U);
  EXPECT_EQ(dispatch[1].layer, 1U);
}

TEST(CriticalPath, LeavesOutWhatNobodyWaitedFor) {
  // layout_test.cpp, TwoBatch: everything but the last combine is hidden.
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t t = 0; t < 16; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const MemoryRun hidden = traced(tokens, {"network.two_batch=true"});
  EXPECT_TRUE(pieces(hidden, Phase::kDispatch).empty());
  std::int64_t combine = 0;
  for (const CriticalEntry& e : pieces(hidden, Phase::kCombine)) combine += e.duration_ps;
  EXPECT_EQ(combine, 3 * 1'008'192 + 2'040'960);
  // Two groups: the exchanges of the one that ends last only.
  const MemoryRun groups = traced(tokens, {"parallel.ep=4"});
  const std::vector<CriticalEntry> dispatch = pieces(groups, Phase::kDispatch);
  ASSERT_EQ(dispatch.size(), 2U);
  EXPECT_EQ(dispatch[0].gpu / 4, dispatch[1].gpu / 4);
}

TEST(CriticalPath, SaysWhyTheOthersWaited) {
  const MemoryRun slow =
      run_of({kLognormal, "workload.batch=24",
              "faults.events=[{kind=\"slow_gpu\",gpu=\"gpu1\",factor=20,step=0}]"});
  for (const CriticalEntry& e : pieces(slow, Phase::kAttention)) {
    EXPECT_EQ(e.gpu, 1U);
    EXPECT_EQ(e.reason, StragglerReason::kFault);
  }
  const MemoryRun stall =
      run_of({kLognormal, "workload.batch=24",
              "faults.events=[{kind=\"gather_failure\",gpu=\"gpu5\",timeout=\"30 us\",step=0}]"});
  const std::vector<CriticalEntry> waits = pieces(stall, Phase::kWait);
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_EQ(waits[0].gpu, 5U);
  EXPECT_EQ(waits[0].reason, StragglerReason::kFault);
  EXPECT_EQ(waits[0].duration_ps, 30'000'000);
}

TEST(CriticalPath, TellsTheStragglerOfAnInnerChunk) {
  // ep = 2, four experts a GPU in groups {0, 1}, {2}, {3}: every copy travels with the second of
  // three chunks.
  const std::vector<std::vector<std::uint16_t>> tokens{{2, 6}, {2, 6}, {2, 6}};
  const MemoryRun r =
      traced(tokens, {"parallel.ep=2", "network.chunks=3", "network.chunk_by=experts"});
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_NE(r.data.layer_steps.straggler_gpu[l], run::kNone) << l;
  }
  EXPECT_NE(r.data.steps[0].straggler_gpu, run::kNone);
}

}  // namespace switchyard::sim
