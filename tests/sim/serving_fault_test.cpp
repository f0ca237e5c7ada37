// SPDX-License-Identifier: Apache-2.0
// Faults and alarm actions while requests arrive, on the machine of fault_test.cpp: 8 GPUs, expert
// e on GPU e in both layers (12,582,912 B each), 2,048 B of KV per token in pages of 16.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using run::Phase;
using test::MemoryRun;

constexpr std::int64_t kUs = 1'000'000;
constexpr std::uint64_t kExpert = 12'582'912;
const std::string kLoss = R"({kind="gpu_loss",gpu="gpu3",step=20})";

scenario::Scenario serving(const std::string& events, std::vector<std::string> more = {},
                           const std::string& workload = "", const std::string& arrivals = "") {
  std::vector<std::string> set{
      "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { " +
      (arrivals.empty() ? "per_second = 20000.0, requests = 60" : arrivals) +
      " }, lengths = { prompt = 64, output = 20 }" + workload + " }"};
  if (!events.empty()) {
    set.push_back("faults.detection=100 us");
    set.push_back("faults.reload=10 GB/s");
    set.push_back("faults.events=[" + events + "]");
  }
  set.insert(set.end(), more.begin(), more.end());
  return test::worked_scenario(std::move(set));
}

MemoryRun run_of(const scenario::Scenario& s) {
  MemoryRun r = test::run_in_memory(s, nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::string refusal(const std::string& events, std::vector<std::string> more = {},
                    const std::string& workload = "") {
  try {
    (void)test::run_in_memory(serving(events, std::move(more), workload), nullptr);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}
std::int64_t phase(const MemoryRun& r, std::size_t step, std::uint32_t gpu, Phase p) {
  return r.data.gpus.phase_ps[(step * 8 + gpu) * run::kPhases + static_cast<std::size_t>(p)];
}
std::uint64_t memory(const MemoryRun& r, std::size_t step, std::uint32_t gpu,
                     run::MemoryCategory c) {
  return r.data.gpus
      .memory[(step * 8 + gpu) * run::kMemoryCategories + static_cast<std::size_t>(c)];
}
std::size_t outcomes(const MemoryRun& r, run::RequestOutcome o) {
  return static_cast<std::size_t>(
      std::count_if(r.data.requests.begin(), r.data.requests.end(),
                    [&](const run::RequestRecord& q) { return q.outcome == o; }));
}
std::string events_of(const MemoryRun& r) {
  std::string out;
  for (const run::Event& e : r.data.events) out += std::to_string(e.step) + " " + e.text + "\n";
  return out;
}
/// Longest time between arrival and first token.
std::int64_t worst_ttft(const MemoryRun& r) {
  std::int64_t worst = 0;
  for (const run::RequestRecord& q : r.data.requests) {
    if (q.first_token_ps >= 0) worst = std::max(worst, q.first_token_ps - q.arrival_ps);
  }
  return worst;
}

}  // namespace

TEST(GpuLossWhileServing, SurvivorsFinishEveryRequestAndComputeLostPagesAgain) {
  const MemoryRun healthy = run_of(serving(""));
  const MemoryRun r = run_of(serving(kLoss));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << events_of(r);
  const double lost = metric(r, "requests that lost their pages");
  EXPECT_GE(lost, 1);
  // Each had 64 tokens of prompt at most and 19 of its answer in the cache.
  EXPECT_GE(metric(r, "tokens computed anew"), lost);
  EXPECT_LE(metric(r, "tokens computed anew"), lost * 83);
  // Both experts of GPU 3 come from the host, to two GPUs side by side; no step is computed twice.
  EXPECT_EQ(metric(r, "recovery time"), 0.1 + kExpert / 1e10 * 1e3);
  ASSERT_GT(r.data.steps.size(), 25U);
  for (std::size_t s = 20; s < r.data.steps.size(); ++s) {
    EXPECT_EQ(phase(r, s, 3, Phase::kExpert), 0) << s;
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      ASSERT_EQ(memory(r, s, 3, static_cast<run::MemoryCategory>(c)), 0U) << s;
    }
  }
  EXPECT_GE(phase(r, 20, 2, Phase::kWait), 100 * kUs);
  EXPECT_EQ(memory(r, 20, 0, run::MemoryCategory::kExperts), 3 * kExpert);
  for (std::size_t s = 0; s < 20; ++s) {
    EXPECT_EQ(r.data.steps[s].end_ps, healthy.data.steps[s].end_ps) << s;
  }
  // Who arrived meanwhile waited for it.
  EXPECT_GT(worst_ttft(r), worst_ttft(healthy) + 100 * kUs);
}

TEST(GpuLossWhileServing, RequestsFailWhereTheScenarioSaysSo) {
  const MemoryRun r = run_of(serving(kLoss, {}, ", front_end = { on_failure = \"fail\" }"));
  const double lost = metric(r, "requests that lost their pages");
  EXPECT_GE(lost, 1);
  EXPECT_EQ(static_cast<double>(outcomes(r, run::RequestOutcome::kFailed)), lost);
  EXPECT_EQ(static_cast<double>(outcomes(r, run::RequestOutcome::kFinished)), 60 - lost);
}

TEST(GpuLossWhileServing, ANewRequestFindsTheGpuThatIsBack) {
  const MemoryRun r = run_of(serving(R"({kind="gpu_loss",gpu="gpu3",step=20,lasts=4})", {}, "",
                                     "per_second = 20000.0, requests = 200"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 200U);
  EXPECT_NE(events_of(r).find("gpu3 is back"), std::string::npos) << events_of(r);
  EXPECT_EQ(memory(r, 25, 3, run::MemoryCategory::kExperts), 2 * kExpert);
  std::int64_t busy = 0;
  std::uint64_t pages = 0;
  for (std::size_t s = 25; s < r.data.steps.size(); ++s) {
    busy += phase(r, s, 3, Phase::kAttention);
    pages = std::max(pages, memory(r, s, 3, run::MemoryCategory::kKv));
  }
  EXPECT_GT(busy, 0);
  EXPECT_GT(pages, 0U);
}

TEST(GpuLossWhileServing, PagesOfAGroupThatLeavesServiceGoAlong) {
  const MemoryRun r = run_of(serving(kLoss, {"parallel.ep=4"}));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U);
  // GPUs 0 to 3 are out; 0 to 2 send what they hold, GPU 3 has nothing left.
  const auto sent = [&](std::uint32_t g) { return r.data.gpus.bytes_out[20 * 8 + g]; };
  EXPECT_GT(sent(0) + sent(1) + sent(2), 0U) << events_of(r);
  EXPECT_EQ((sent(0) + sent(1) + sent(2)) % (16 * 2048), 0U);
  EXPECT_EQ(sent(3), 0U);
  for (const std::uint32_t g : {0U, 1U, 2U, 3U}) EXPECT_EQ(phase(r, 22, g, Phase::kExpert), 0);
}

TEST(GpuLossWhileServing, RestartHoldsEverybodyAndKeepsOtherPages) {
  const MemoryRun r = run_of(serving(kLoss, {"faults.reaction=restart", "faults.restart=2 ms"}));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U);
  const std::uint64_t held = memory(r, 10, 3, run::MemoryCategory::kWeights) + 2 * kExpert;
  EXPECT_NEAR(metric(r, "recovery time"), 0.1 + 2 + static_cast<double>(held) / 1e10 * 1e3, 1e-6);
  EXPECT_GE(metric(r, "requests that lost their pages"), 1);
  EXPECT_GT(phase(r, 22, 3, Phase::kExpert), 0);
}

TEST(GpuLossWhileServing, ExpertsThatArriveTakeRoomFromPages) {
  const MemoryRun before = run_of(serving(""));
  const double weights = static_cast<double>(memory(before, 0, 0, run::MemoryCategory::kWeights) +
                                             memory(before, 0, 0, run::MemoryCategory::kExperts));
  // Room for 400 pages of 32,768 B; one expert more takes 384 of them.
  const double share = (weights + 400.5 * 32768) / 80e9;
  const auto with = [&](const std::string& lengths) {
    scenario::Scenario s = serving(kLoss, {}, "", "per_second = 200000.0, requests = 160");
    s.workload.serving.batching.memory_share = share;
    if (!lengths.empty()) s.workload.serving.lengths.prompt = 300;
    return s;
  };
  const MemoryRun r = run_of(with(""));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 160U) << events_of(r);
  EXPECT_GE(metric(r, "preemptions"), 1);
  EXPECT_LE(memory(r, 21, 0, run::MemoryCategory::kKv), 16 * 32768U);
  // 300 + 19 tokens are 20 pages: more than GPU 0 has room for now.
  const MemoryRun longer = run_of(with("longer"));
  EXPECT_GE(outcomes(longer, run::RequestOutcome::kFailed) +
                outcomes(longer, run::RequestOutcome::kRejected),
            1U)
      << events_of(longer);
}

TEST(GpuLossWhileServing, ExpertsThatArriveTakeFromAStatedRoomWhatTheyDoNotFindBeside) {
  const MemoryRun before = run_of(serving(""));
  const std::uint64_t weights = memory(before, 0, 0, run::MemoryCategory::kWeights) +
                                memory(before, 0, 0, run::MemoryCategory::kExperts);
  // 400 pages of 32,768 B are stated; beside them and the weights 16 pages are free. One expert
  // more takes 384: 368 of them from the pages.
  const std::uint64_t page = 32768, kv = 400 * page;
  const auto with = [&](std::uint64_t reserve) {
    return run_of(serving(kLoss, {"memory.reserve=\"" + std::to_string(reserve) + " B\""},
                          ", batching = { kv = \"" + std::to_string(kv) + " B\" }",
                          "per_second = 200000.0, requests = 160"));
  };
  const std::uint64_t full = 80'000'000'000 - weights - kv - 16 * page;
  const MemoryRun r = with(full);
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 160U) << events_of(r);
  EXPECT_GE(metric(r, "preemptions"), 1);
  EXPECT_LE(memory(r, 21, 0, run::MemoryCategory::kKv), 32 * page);
  EXPECT_GT(memory(r, 21, 0, run::MemoryCategory::kKv), 16 * page);
  // With room beside nothing is taken.
  EXPECT_EQ(metric(with(full - kExpert), "preemptions"), 0);
}

TEST(ReplicaFaults, AReplicaRestartsWhileTheOthersGoOn) {
  const std::vector<std::string> split{"parallel.ep=4", "faults.reaction=restart",
                                       "faults.restart=20 ms"};
  const std::string replicas =
      ", front_end = { replicas = 2, health_interval = \"1 ms\", failures = 2 }";
  const MemoryRun r = run_of(serving(kLoss, split, replicas));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << events_of(r);
  const std::string text = events_of(r);
  EXPECT_NE(text.find("gpu3 restarts, replica 0 is away for"), std::string::npos) << text;
  EXPECT_NE(text.find("replica 0 does not answer"), std::string::npos) << text;
  EXPECT_NE(text.find("circuit breaker of replica 0 opens after 2 failed checks"),
            std::string::npos)
      << text;
  // Nothing of replica 0 begins while it is away.
  std::int64_t away = -1;
  for (const run::Event& e : r.data.events) {
    if (e.text.find("gpu3 restarts") != std::string::npos) away = e.time_ps;
  }
  ASSERT_GE(away, 0);
  for (const run::StepScalars& s : r.data.steps) {
    if (s.engine == 0) {
      EXPECT_TRUE(s.start_ps < away || s.start_ps >= away + 20'100 * kUs) << s.start_ps;
    }
  }
}

TEST(ReplicaFaults, ThatEndBeforeTheBreakerOpensLeaveTheRequestsWhereTheyAre) {
  const MemoryRun r =
      run_of(serving(kLoss, {"parallel.ep=4", "faults.reaction=restart", "faults.restart=1 ms"},
                     ", front_end = { replicas = 2, health_interval = \"1 s\", failures = 2 }"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U);
  EXPECT_EQ(events_of(r).find("circuit breaker"), std::string::npos);
  EXPECT_GE(metric(r, "requests that lost their pages"), 1);
}

TEST(ReplicaFaults, SlowDamagedAndStalledOnesStayInTheirReplica) {
  const std::string two = ", front_end = { replicas = 2 }";
  for (const char* event : {R"({kind="slow_gpu",gpu="gpu1",factor=3,step=4})",
                            R"({kind="host_stall",stall="1 ms",step=4,lasts=2})",
                            R"({kind="bit_flip",expert=2,step=4})",
                            R"({kind="gather_failure",gpu="gpu6",timeout="30 us",step=4,lasts=6})",
                            R"({kind="kv_leak",gpu="gpu5",bytes="1 MB",step=4})"}) {
    const MemoryRun r = run_of(serving(event, {"parallel.ep=4"}, two));
    EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << event;
  }
}

TEST(ReplicaFaults, OfAnyKindAndNumberLeaveEveryStepInOrder) {
  // Steps of replicas interleave, so what one asks of another must not move its start.
  for (const int replicas : {2, 4}) {
    for (const std::string event : {R"({kind="bit_flip",expert=2,layer=1,probability=0.1})",
                                    R"({kind="slow_gpu",factor=3,probability=0.05,lasts=3})",
                                    R"({kind="host_stall",stall="1 ms",probability=0.05})",
                                    R"({kind="gather_failure",timeout="30 us",probability=0.05})",
                                    R"({kind="kv_leak",bytes="1 MB",probability=0.05})",
                                    R"({kind="link_degraded",factor=0.5,probability=0.05})"}) {
      const MemoryRun r = run_of(serving(
          event, {replicas == 2 ? "parallel.ep=4" : "parallel.ep=2", "faults.check_every=4"},
          ", front_end = { replicas = " + std::to_string(replicas) + " }"));
      EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << event;
      EXPECT_GT(metric(r, "faults"), 0) << event;
    }
  }
  // Pages travel between these two.
  const MemoryRun r = run_of(serving(R"({kind="bit_flip",expert=2,step=4})",
                                     {"parallel.ep=4", "faults.check_every=4"},
                                     ", front_end = { replicas = 2, prefill_replicas = 1 }"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U);
}

TEST(ReplicaFaults, AReloadHoldsUpTheNextStepOfEachReplicaByItself) {
  // Check at step 8; replica 1 also has the expert and loads it after the step it is in.
  const MemoryRun r =
      run_of(serving(R"({kind="bit_flip",expert=2,layer=0,step=4})",
                     {"parallel.ep=4", "faults.check_every=8"}, ", front_end = { replicas = 2 }"));
  const auto load = static_cast<std::int64_t>(kExpert * 100);  // At 10 GB/s.
  std::array<bool, 2> paid{};
  std::array<std::int64_t, 2> last{};
  for (std::size_t s = 0; s < r.data.steps.size(); ++s) {
    const run::StepScalars& x = r.data.steps[s];
    if (s >= 8 && !paid[x.engine]) {
      paid[x.engine] = true;
      const std::int64_t idle =
          s == 8 ? 0 : x.start_ps - std::max(last[x.engine], last[1 - x.engine]);
      EXPECT_GE(phase(r, s, x.engine * 4 + 2, Phase::kWait), load - std::max<std::int64_t>(idle, 0))
          << s;
    }
    last[x.engine] = x.end_ps;
  }
  EXPECT_TRUE(paid[0] && paid[1]);
}

TEST(BitFlipWhileServing, IsFoundByACheckAndLoadedAnew) {
  const MemoryRun r =
      run_of(serving(R"({kind="bit_flip",expert=2,layer=0,step=5})", {"faults.check_every=8"}));
  std::uint64_t kept = 0;
  for (std::size_t s = 5; s < 8; ++s) kept += r.data.layer_experts[0].kept[s * 8 + 2];
  EXPECT_EQ(metric(r, "assignments on damaged weights"), static_cast<double>(kept));
  EXPECT_NEAR(metric(r, "recovery time"), kExpert / 1e10 * 1e3, 1e-6);
}

TEST(AlarmsWhileServing, ShedNewRequestsWhileTheyStand) {
  const auto shed = [](const std::string& rule) {
    return run_of(serving("", {"monitor.alarms=[" + rule + "]"}));
  };
  // Raised by step 4, and never cleared.
  const MemoryRun r = shed(R"({signal="step_time",above="0 us",window=5,action="shed"})");
  const std::size_t rejected = outcomes(r, run::RequestOutcome::kRejected);
  EXPECT_GT(rejected, 0U);
  EXPECT_EQ(rejected + outcomes(r, run::RequestOutcome::kFinished), 60U);
  EXPECT_EQ(metric(r, "requests shed"), static_cast<double>(rejected));
  const std::int64_t raised = r.data.steps[4].end_ps;
  for (const run::RequestRecord& q : r.data.requests) {
    // The action comes before the next step, so an arrival during that wait is still admitted.
    if (q.arrival_ps < raised) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << q.id;
    }
  }
  EXPECT_NE(events_of(r).find("new requests are rejected"), std::string::npos);
  EXPECT_EQ(events_of(r).find("admitted again"), std::string::npos);
}

TEST(AlarmsWhileServing, AdmitAgainWhenTheyAreCleared) {
  const MemoryRun r = run_of(serving(
      R"({kind="kv_leak",gpu="gpu7",bytes="1 GB",step=2,lasts=1})",
      {R"(monitor.alarms=[{name="shed",signal="runtime_memory",above="1 %",window=1,action="shed"},)"
       R"({signal="runtime_memory",above="1 %",window=3,action="reclaim"}])"}));
  EXPECT_NE(events_of(r).find("new requests are rejected"), std::string::npos) << events_of(r);
  EXPECT_NE(events_of(r).find("admitted again"), std::string::npos) << events_of(r);
  EXPECT_LT(metric(r, "requests shed"), 60);
}

TEST(AlarmsWhileServing, DropTheNewestThatWait) {
  // One sequence a step and GPU: the others wait.
  const std::string one = ", batching = { max_sequences = 1 }";
  const std::string rule = R"(signal="step_time",above="0 us",window=4,action="shed")";
  const auto with = [&](const std::string& more) {
    return run_of(serving("", {"monitor.alarms=[{" + rule + more + "}]"}, one,
                          "per_second = 2000000.0, requests = 60"));
  };
  const MemoryRun none = with("");
  const MemoryRun some = with(",drop=5");
  EXPECT_EQ(metric(some, "requests shed"), metric(none, "requests shed") + 5);
  EXPECT_EQ(some.data.requests[59].outcome, run::RequestOutcome::kRejected);
  EXPECT_EQ(some.data.requests[0].outcome, run::RequestOutcome::kFinished);
}

TEST(AlarmsWhileServing, MoveARequestWithItsPagesToAnEmptierGpu) {
  const MemoryRun r = run_of(
      serving("",
              {R"(monitor.alarms=[{signal="memory",above="0 %",window=4,action="migrate_kv",)"
               R"(repeat=3}])"},
              "", "per_second = 20000.0, requests = 20"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 20U);
  EXPECT_NE(events_of(r).find("tokens of KV"), std::string::npos) << events_of(r);
  EXPECT_EQ(metric(r, "tokens computed anew"), 0);
}

TEST(ServingFaultKeys, SayWhatTheyDoNotTake) {
  const std::string two = ", front_end = { replicas = 2 }";
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(refusal(kLoss, {"parallel.ep=4"}, two), "use faults.reaction = \"restart\"");
  says(refusal(kLoss, {"parallel.ep=4", "faults.reaction=restart", "faults.restart=1 ms"},
               ", front_end = { replicas = 2, prefill_replicas = 1 }"),
       "unsupported with workload.front_end.prefill_replicas");
  says(refusal(R"({kind="link_down",link="gpu3--switch",step=2})",
               {"parallel.ep=4", "faults.reaction=restart", "faults.restart=1 ms"}, two),
       "several replicas: all would hang");
  says(refusal(R"({kind="mis_sharding",expert=1,gpu="gpu2",step=2})", {"parallel.ep=4"}, two),
       "unsupported with several replicas");
  says(refusal(kLoss, {"faults.recompute_chunk=100"}),
       "faults.recompute_chunk = 100: means nothing with requests that arrive");
  says(refusal("",
               {"parallel.ep=4", R"(monitor.alarms=[{signal="memory",above="1 %",action="shed"}])"},
               two),
       "acting alarms with several replicas are unsupported");
}

}  // namespace switchyard::sim
