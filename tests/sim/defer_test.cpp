// SPDX-License-Identifier: Apache-2.0
// policy.capacity.queue = "defer" (sim/loop/deferral.cpp) on the machine of the worked example:
// 8 GPUs, expert e on GPU e, two MoE layers, a hidden state of 2,048 B.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;

const std::string kDefer =
    "policy.capacity={ rule = \"absolute\", absolute = 1, reroute = \"none\", "
    "exhausted = \"queue\", queue = \"defer\" }";
const std::string kWave =
    "policy.capacity={ rule = \"absolute\", absolute = 1, reroute = \"none\", "
    "exhausted = \"queue\", queue = \"wave\" }";

MemoryRun sound(std::vector<std::string> set, const RoutingTrace* trace = nullptr) {
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(set)), trace);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

/// Sequences that gave a token in each step.
std::map<std::uint32_t, std::vector<std::uint64_t>> given(const MemoryRun& r) {
  std::map<std::uint32_t, std::vector<std::uint64_t>> out;
  for (const run::TokenRecord& t : r.data.tokens) out[t.step].push_back(t.request);
  return out;
}

/// All four want expert 1 in layer 0, and different ones in layer 1.
RoutingTrace one_wanted() {
  return test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
                            8);
}

std::vector<std::string> steps(int n, std::string policy) {
  return {std::move(policy), "workload.steps=" + std::to_string(n), "run.detail=tokens",
          "workload.warmup_steps=0"};
}

}  // namespace

TEST(Defer, AFullExpertTakesWhatWaitsFirstAndOneATime) {
  const RoutingTrace trace = one_wanted();
  const MemoryRun r = sound(steps(6, kDefer), &trace);
  // Step 0: sequence 0 gets expert 1, the others stop in layer 0. Then expert 1 takes one of those
  // that wait in each step; sequence 0's second token waits behind them from step 1 on, sequence
  // 1's, which begins in step 2, behind that, and so on.
  using Ids = std::vector<std::uint64_t>;
  const std::map<std::uint32_t, Ids> want{{0, {0}}, {1, {1}}, {2, {2}},
                                          {3, {3}}, {4, {0}}, {5, {1}}};
  EXPECT_EQ(given(r), want);
  // Tokens count in the step that gives them, and so do requests' first ones.
  for (std::size_t s = 0; s < 6; ++s) EXPECT_EQ(r.data.steps[s].tokens, 1U) << s;
  for (std::size_t q = 0; q < 4; ++q) {
    EXPECT_EQ(r.data.requests[q].first_token_ps, r.data.steps[q].end_ps) << q;
    EXPECT_EQ(r.data.requests[q].end_ps, r.data.steps[q < 2 ? q + 4 : q].end_ps) << q;
    EXPECT_EQ(r.data.requests[q].output_tokens, q < 2 ? 2U : 1U) << q;
  }
  // Step 0 decides 4 tokens in layer 0 and one in layer 1.
  EXPECT_EQ(r.data.steps[0].assignments, 2U * (4 + 1));
  EXPECT_EQ(r.data.steps[0].queued, 3U);
  EXPECT_EQ(r.data.steps[1].queued, 1U);
  EXPECT_EQ(r.data.steps[2].longest_queue, 3U) << "sequences 3, 0 and 1 wait when it ends";
  EXPECT_EQ(metric(r, "assignments deferred"), 3 + 5);
  // 3 wait in every step.
  EXPECT_EQ(metric(r, "tokens that came no further in a step"), 3 * 6);
}

TEST(Defer, BytesMoveInTheStepThatRunsTheSlot) {
  const RoutingTrace trace = one_wanted();
  const MemoryRun r = sound(steps(3, kDefer), &trace);
  // What GPU 2 sends. Step 0: sequence 2's row to expert 3, and expert 2's output to GPU 1. Step 1:
  // nothing, sequence 2 waits. Step 2: its row to expert 1, expert 2's output for sequence 1's next
  // token, and in layer 1 its row to expert 6.
  const auto out = [&](std::size_t step) { return r.data.gpus.bytes_out[step * 8 + 2]; };
  EXPECT_EQ(out(0), 2 * 2048U);
  EXPECT_EQ(out(1), 0U);
  EXPECT_EQ(out(2), 3 * 2048U);
  EXPECT_EQ(r.data.gpus.bytes_in[2 * 8 + 2], 3 * 2048U) << "what it sends comes back";
}

TEST(Defer, WithRoomForAllItIsTheRunWithoutIt) {
  const auto set = [](const std::string& queue) {
    return steps(4,
                 "policy.capacity={ rule = \"absolute\", absolute = 64, exhausted = \"queue\", "
                 "queue = \"" +
                     queue + "\" }");
  };
  const RoutingTrace trace = one_wanted();
  const MemoryRun a = sound(set("defer"), &trace), b = sound(set("wave"), &trace);
  for (std::size_t s = 0; s < a.data.steps.size(); ++s) {
    EXPECT_EQ(a.data.steps[s].end_ps, b.data.steps[s].end_ps) << s;
    EXPECT_EQ(a.data.steps[s].hbm_bytes, b.data.steps[s].hbm_bytes) << s;
  }
  EXPECT_EQ(a.data.gpus.bytes_out, b.data.gpus.bytes_out);
  EXPECT_EQ(metric(a, "assignments deferred"), 0);
}

TEST(Defer, ArrivingRequestsGetEveryTokenAndEveryAssignmentRunsOnce) {
  const auto set = [](const std::string& policy, std::vector<std::string> more) {
    std::vector<std::string> all{
        policy,
        "workload={ kind = \"closed\", routing = { synthetic = \"zipf\", s = 1.0 }, "
        "arrivals = { users = 24, requests = 24 }, lengths = { prompt = 20, output = 12 } }"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string share =
      "policy.capacity={ rule = \"share\", factor = 1.0, exhausted = "
      "\"queue\", reroute = \"none\", queue = \"";
  for (const auto& more : std::vector<std::vector<std::string>>{
           {},
           {"parallel.ep=4", "network.dispatch=per_expert"},
           {"parallel.ep=4", "network.dispatch=per_expert", "workload.front_end={ replicas = 2 }"},
           {"policy.capacity.scope=rank"},
           {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8"},
           {"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=8",
            "parallel.sequence_parallel=true"},
           {"network.dispatch=per_rank", "network.chunks=2"},
           {"memory.kv.placement=by_token", "memory.kv.decode=merge"},
           {"memory.kv.placement=by_token", "workload.batching={ kv = \"9 MB\" }"},
           {"workload.batching={ kv = \"9 MB\" }"},
           {"workload.batching={ kv = \"9 MB\", preemption = \"swap\", swap_bandwidth = "
            "\"20 GB/s\" }"}}) {
    const std::string shown = more.empty() ? "" : more.back();
    const MemoryRun a = sound(set(share + "defer\" }", more)),
                    b = sound(set(share + "wave\" }", more));
    EXPECT_GT(metric(a, "assignments deferred"), 20) << shown;
    EXPECT_EQ(metric(b, "requests finished"), 24) << shown;
    EXPECT_EQ(metric(a, "requests finished"), 24) << shown;
    for (const run::RequestRecord& r : a.data.requests) EXPECT_EQ(r.output_tokens, 12U) << shown;
    if (metric(a, "preemptions") + metric(b, "preemptions") > 0) continue;
    EXPECT_EQ(a.data.totals.expert_kept, b.data.totals.expert_kept) << shown;
    // Collectives and copies depend on what runs together.
    if (more.empty() || more.front().find("ep=4") != std::string::npos ||
        shown.find("scope") != std::string::npos) {
      EXPECT_EQ(a.data.totals.bytes_sent, b.data.totals.bytes_sent) << shown;
    }
  }
}

TEST(Defer, AnySpreadOfTheCacheGoesWithIt) {
  const RoutingTrace trace = one_wanted();
  for (const char* kv : {"placement=by_token", "placement=replicated"}) {
    for (const char* decode : {"pull", "merge"}) {
      std::vector<std::string> set = steps(5, kDefer);
      set.push_back(std::string("memory.kv.") + kv);
      if (std::string(kv) == "placement=by_token") {
        set.push_back(std::string("memory.kv.decode=") + decode);
      }
      const MemoryRun r = sound(set, &trace);
      EXPECT_EQ(metric(r, "tokens that came no further in a step"), 3 * 5) << kv;
    }
  }
}

TEST(Defer, ALostGpuMakesATokenOnItsWayBeginAnew) {
  for (const char* reaction :
       {"reaction = \"migrate\"", "reaction = \"restart\", restart = \"1 ms\""}) {
    const RoutingTrace trace = one_wanted();
    std::vector<std::string> set = steps(12, kDefer);
    set.push_back(std::string("faults={ reload = \"25 GB/s\", ") + reaction +
                  ", events = [{ kind = \"gpu_loss\", gpu = \"gpu2\", step = 1 }] }");
    const MemoryRun r = sound(set, &trace);
    std::uint64_t tokens = 0;
    for (const run::RequestRecord& q : r.data.requests) tokens += q.output_tokens;
    EXPECT_EQ(tokens, r.data.tokens.size());
    std::vector<std::uint64_t> of(4, 0);
    for (const run::TokenRecord& t : r.data.tokens) EXPECT_EQ(t.index, of[t.request]++);
    EXPECT_GE(of[2], 1U) << reaction;
  }
}

TEST(Defer, AnAlarmMayTakeTheQueueAway) {
  write_file("wave.toml", "[capacity]\nrule = \"none\"\n");
  const RoutingTrace trace = one_wanted();
  std::vector<std::string> set = steps(6, kDefer);
  set.push_back(
      "monitor.alarms=[{ signal = \"longest_queue\", above = 2, window = 1, action = \"policy\", "
      "policy = \"wave.toml\" }]");
  const MemoryRun r = sound(set, &trace);
  // Raised by step 0: what waits runs in step 1 at once, with the new token of sequence 0.
  EXPECT_EQ(given(r).at(1), (std::vector<std::uint64_t>{0, 1, 2, 3}));
}

TEST(Defer, AnAlarmWithoutTheQueueRunsWhatWaitsWhateverItsCapacity) {
  // Of a step whose sequences all wait megatron's capacity is that of no token.
  write_file("drop.toml",
             "[capacity]\nrule = \"megatron\"\nfactor = 1.0\nexhausted = \"drop_token\"\n"
             "reroute = \"none\"\n");
  const MemoryRun r = sound(
      {"policy.capacity={ rule = \"absolute\", absolute = 1, exhausted = \"queue\", reroute = "
       "\"none\", queue = \"defer\" }",
       "workload={ kind = \"closed\", routing = { synthetic = \"zipf\", s = 1.0 }, max_steps = "
       "2000, "
       "arrivals = { users = 24, requests = 24 }, lengths = { prompt = 20, output = 12 } }",
       "monitor.alarms=[{ signal = \"longest_queue\", above = 0, window = 20, action = "
       "\"policy\", policy = \"drop.toml\" }]"});
  EXPECT_EQ(metric(r, "requests finished"), 24);
}

TEST(Defer, PinnedRequestsWaitToo) {
  const auto pinned = [](const std::string& queue) {
    std::vector<std::string> set = steps(
        4,
        "policy.capacity={ rule = \"absolute\", absolute = 1, reroute = \"none\", exhausted = "
        "\"drop_token\", queue = \"" +
            queue + "\" }");
    set.push_back("policy.pinned={ requests = \"all\", expert = 3 }");
    const RoutingTrace trace = one_wanted();
    return sound(set, &trace);
  };
  EXPECT_GT(metric(pinned("defer"), "assignments deferred"), 0);
  EXPECT_LT(pinned("defer").data.tokens.size(), pinned("wave").data.tokens.size());
}

}  // namespace switchyard::sim
