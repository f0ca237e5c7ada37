// SPDX-License-Identifier: Apache-2.0
// Faults and alarm actions while requests arrive, on the machine of fault_test.cpp: 8 GPUs, expert
// e on GPU e in both layers (12,582,912 B each), 2,048 B of KV per token in pages of 16.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/faults/fault_clock.hpp"
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
    const auto any = [&](std::initializer_list<const char*> kinds) {
      return std::any_of(kinds.begin(), kinds.end(),
                         [&](const char* k) { return events.find(k) != std::string::npos; });
    };
    // They mean nothing for the others.
    if (any({"gpu_loss", "link_down"})) set.push_back("faults.detection=100 us");
    if (any({"gpu_loss", "link_down", "bit_flip", "mis_sharding"})) {
      set.push_back("faults.reload=10 GB/s");
    }
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

TEST(ReplicaFaults, GpusThatRestartSideBySideKeepTheirReplicaAwayOnce) {
  const auto recovery = [](const std::string& events) {
    return metric(
        run_of(serving(events, {"parallel.ep=4", "faults.reaction=restart", "faults.restart=5 ms"},
                       ", front_end = { replicas = 2 }")),
        "recovery time");
  };
  const double one = recovery(kLoss);
  EXPECT_GT(one, 5.1);
  const double both = recovery(kLoss + R"(,{kind="gpu_loss",gpu="gpu2",step=20})");
  EXPECT_GE(both, one);
  EXPECT_LT(both, one + 4);  // Their weights share links; detection and restart count once.
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
      std::vector<std::string> set{replicas == 2 ? "parallel.ep=4" : "parallel.ep=2"};
      if (event.find("bit_flip") != std::string::npos) set.emplace_back("faults.check_every=4");
      const MemoryRun r = run_of(serving(
          event, std::move(set), ", front_end = { replicas = " + std::to_string(replicas) + " }"));
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

// ---- alarms of several replicas ----

namespace {

const std::string kTwo = ", front_end = { replicas = 2 }";

MemoryRun two_with(const std::string& alarms, const std::string& events = "",
                   const std::string& arrivals = "") {
  return run_of(
      serving(events, {"parallel.ep=4", "monitor.alarms=[" + alarms + "]"}, kTwo, arrivals));
}
std::size_t count(const MemoryRun& r, const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(r.data.events.begin(), r.data.events.end(),
                    [&](const run::Event& e) { return e.text.find(text) != std::string::npos; }));
}

}  // namespace

TEST(AlarmsOfReplicas, WatchEachByItsOwnSteps) {
  const MemoryRun r = two_with(R"({signal="step_time",above="0 us",window=3})");
  // Full after three steps of the replica, whatever the other did meanwhile.
  for (std::uint32_t engine = 0; engine < 2; ++engine) {
    std::vector<std::uint32_t> steps;
    for (std::uint32_t s = 0; s < r.data.steps.size(); ++s) {
      if (r.data.steps[s].engine == engine) steps.push_back(s);
    }
    std::vector<std::uint32_t> raised;
    for (const run::Event& e : r.data.events) {
      if (e.kind == run::EventKind::kAlarm &&
          e.text.ends_with("replica " + std::to_string(engine))) {
        raised.push_back(e.step);
      }
    }
    EXPECT_EQ(raised, std::vector<std::uint32_t>{steps.at(2)}) << events_of(r);
  }
  // A GPU of the other replica is none of its own.
  const MemoryRun leak = two_with(R"({signal="runtime_memory",above="1 %",window=1})",
                                  R"({kind="kv_leak",gpu="gpu5",bytes="1 GB",step=2})");
  EXPECT_EQ(count(leak, "raised"), 1U) << events_of(leak);
  EXPECT_EQ(count(leak, "replica 1"), 1U) << events_of(leak);
}

TEST(AlarmsOfReplicas, ReclaimAndMoveInsideTheReplica) {
  const MemoryRun r = two_with(R"({signal="runtime_memory",above="1 %",window=1,action="reclaim"})",
                               R"({kind="kv_leak",gpu="gpu5",bytes="1 GB",step=2,lasts=2},)"
                               R"({kind="kv_leak",gpu="gpu1",bytes="100 MB",step=2,lasts=2})");
  EXPECT_EQ(count(r, "1000000000 B reclaimed (replica 1)"), 1U) << events_of(r);
  const std::size_t last = r.data.steps.size() - 1;
  EXPECT_EQ(memory(r, last, 1, run::MemoryCategory::kRuntime),
            memory(r, 0, 1, run::MemoryCategory::kRuntime) + 100'000'000)
      << "gpu1 is of the other replica, below its threshold";
  EXPECT_EQ(memory(r, last, 5, run::MemoryCategory::kRuntime),
            memory(r, 0, 5, run::MemoryCategory::kRuntime));
  const MemoryRun moved =
      two_with(R"({signal="memory",above="0 %",window=4,action="migrate_kv",repeat=3})");
  EXPECT_EQ(outcomes(moved, run::RequestOutcome::kFinished), 60U);
  std::size_t moves = 0;
  for (const run::Event& e : moved.data.events) {
    const std::size_t at = e.text.find(" moves from gpu");
    if (at == std::string::npos) continue;
    ++moves;
    const int from = e.text[at + 15] - '0', to = e.text[e.text.find(" to gpu") + 7] - '0';
    EXPECT_EQ(from / 4, to / 4) << e.text;
  }
  EXPECT_GT(moves, 0U) << events_of(moved);
}

TEST(AlarmsOfReplicas, RequestsThatWaitForHandOverOrTravelDoNotMove) {
  // Eight places in the decode replica for 39 requests: most wait for one where they were computed.
  for (const char* signal : {"gpu_busy", "memory"}) {
    for (const char* model : {"auto", "bottleneck"}) {
      const MemoryRun r =
          run_of(serving("",
                         {"parallel.ep=4", std::string("network.model=") + model,
                          std::string(R"(monitor.alarms=[{signal=")") + signal +
                              R"(",above="0 %",window=1,action="migrate_kv",repeat=1}])"},
                         ", batching = { max_sequences = 2 }, "
                         "front_end = { replicas = 2, prefill_replicas = 1 }",
                         "per_second = 2000000.0, requests = 39"));
      EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 39U) << signal << model;
      EXPECT_GT(count(r, " moves from gpu"), 0U) << signal << model;
      EXPECT_EQ(metric(r, "tokens computed anew"), 0) << signal << model;
    }
  }
}

TEST(AlarmsOfReplicas, AShedReplicaSendsNewRequestsToTheOther) {
  // gpu1 leaks, so replica 0 sheds from its step after that on; replica 1 takes what comes.
  const MemoryRun r = two_with(R"({signal="runtime_memory",above="1 %",window=1,action="shed"})",
                               R"({kind="kv_leak",gpu="gpu1",bytes="1 GB",step=6,lasts=2})");
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << events_of(r);
  EXPECT_EQ(metric(r, "requests shed"), 0);
  EXPECT_EQ(count(r, "new requests are rejected (replica 0)"), 1U) << events_of(r);
  std::int64_t from = -1;
  for (const run::Event& e : r.data.events) {
    if (e.text.find("new requests are rejected") != std::string::npos) from = e.time_ps;
  }
  std::size_t later = 0, of_one = 0;
  for (const run::RequestRecord& q : r.data.requests) {
    if (q.arrival_ps <= from) continue;
    ++later;
    of_one += q.replica == 1 ? 1 : 0;
  }
  EXPECT_GT(later, 10U);
  EXPECT_EQ(of_one, later);
  // Both shed: what comes while both have work is rejected.
  const MemoryRun both = two_with(R"({signal="step_time",above="0 us",window=2,action="shed"})");
  EXPECT_GT(metric(both, "requests shed"), 0);
  EXPECT_EQ(outcomes(both, run::RequestOutcome::kFinished) +
                outcomes(both, run::RequestOutcome::kRejected),
            60U);
}

TEST(AlarmsOfReplicas, APolicyIsInForceInTheReplicaThatAsksForIt) {
  write_file("free.toml", "[capacity]\nrule = \"none\"\n");
  const std::string rule =
      R"({signal="runtime_memory",above="1 %",window=1,action="policy",policy="free.toml"})";
  const MemoryRun r =
      run_of(serving(R"({kind="kv_leak",gpu="gpu5",bytes="1 GB",step=4,lasts=1})",
                     {"parallel.ep=4", "monitor.alarms=[" + rule + "]",
                      R"(policy.capacity={ rule = "share", factor = 1.0, reroute = "none" })"},
                     kTwo));
  std::uint32_t from = 0;
  for (const run::Event& e : r.data.events) {
    if (e.text.find("its policy is in force (replica 1)") != std::string::npos) from = e.step;
  }
  ASSERT_GT(from, 0U) << events_of(r);
  std::uint64_t dropped = 0;
  for (std::size_t s = from; s < r.data.steps.size(); ++s) {
    if (r.data.steps[s].engine == 1) {
      EXPECT_EQ(r.data.steps[s].dropped, 0U) << s;
    } else {
      dropped += r.data.steps[s].dropped;
    }
  }
  EXPECT_GT(dropped, 0U) << "replica 0 goes on with the scenario's policy";
}

TEST(ReplicaFaults, PagesFeelABadCable) {
  const auto run = [](const std::string& events) {
    return run_of(serving(
        events,
        {"parallel.ep=4", "faults.reaction=restart", "faults.restart=200 us", "network.model=auto"},
        ", front_end = { replicas = 2, prefill_replicas = 1, health_interval = "
        "\"1 s\" }"));
  };
  const std::string thin = R"({kind="link_degraded",link="gpu5--switch",factor=0.001,step=4})";
  const MemoryRun slow = run(thin), free = run(R"({kind="host_stall",stall="1 ns",step=4})");
  EXPECT_EQ(outcomes(slow, run::RequestOutcome::kFinished), 60U) << events_of(slow);
  EXPECT_GT(metric(slow, "KV transfer mean"), 2 * metric(free, "KV transfer mean"));
  const MemoryRun cut = run(R"({kind="link_down",link="gpu5--switch",step=9})");
  EXPECT_EQ(outcomes(cut, run::RequestOutcome::kFinished), 60U) << events_of(cut);
  EXPECT_NE(events_of(cut).find("gpu5 restarts"), std::string::npos);
}

TEST(ReplicaFaults, TwoThatRestartAtOnceShareTheLinksOfTheHost) {
  // The worked machine with host memory behind one cable of its switch.
  write_file("host.toml", read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                    "/tests/sim/data/worked_hardware.toml") +
                              "\n[[devices]]\nname = \"host\"\nkind = \"cpu\"\n"
                              "[[links]]\nfrom = \"host\"\nto = \"switch\"\ntype = \"cable\"\n");
  const auto loads = [](const std::string& events) {
    const MemoryRun r = run_of(test::worked_scenario(
        {"hardware.file=\"" + std::filesystem::absolute("host.toml").string() + "\"",
         "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { "
         "per_second = 20000.0, requests = 60 }, lengths = { prompt = 64, output = 20 }" +
             kTwo + " }",
         "parallel.ep=4", "faults.detection=100 us", "faults.reaction=restart",
         "faults.restart=1 ms", "faults.events=[" + events + "]"}));
    EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U);
    std::int64_t gone = -1, back = -1;
    for (const run::Event& e : r.data.events) {
      if (e.text == "replica 0 does not answer") gone = e.time_ps;
      if (e.text == "replica 0 answers again") back = e.time_ps;
    }
    EXPECT_GE(gone, 0) << events_of(r);
    return back - gone - 1100 * kUs;
  };
  const std::string one = R"({kind="gpu_loss",gpu="gpu1",step=20})";
  const auto alone = static_cast<double>(loads(one));
  const auto both = static_cast<double>(loads(one + R"(,{kind="gpu_loss",gpu="gpu5",step=20})"));
  EXPECT_GT(alone, 4 * kExpert * 10)
      << "two experts of each of two layers at 100 GB/s, and the rest";
  EXPECT_NEAR(both / alone, 2, 0.02);
}

TEST(ReplicaFaults, PagesOnTheirWayAreComputedAgainInTheDecodeReplica) {
  for (const char* gpu : {"gpu1", "gpu6"}) {  // Of the prefill replica; of the decode replica.
    for (const char* model : {"auto", "bottleneck"}) {
      const std::string loss = std::string(R"({kind="gpu_loss",gpu=")") + gpu + R"(",step=9})";
      const MemoryRun r = run_of(
          serving(loss,
                  {"parallel.ep=4", "faults.reaction=restart", "faults.restart=200 us",
                   std::string("network.model=") + model},
                  ", front_end = { replicas = 2, prefill_replicas = 1, health_interval = \"1 s\" }",
                  "per_second = 200000.0, requests = 60"));
      EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << gpu << model << events_of(r);
      EXPECT_GE(metric(r, "requests that lost their pages"), 1) << gpu << model;
      EXPECT_GT(metric(r, "tokens computed anew"), 0) << gpu << model;
    }
  }
}

TEST(ReplicaFaults, ABrokenCableHoldsUpTheReplicaThatUsesIt) {
  const std::vector<std::string> split{"parallel.ep=4", "faults.reaction=restart",
                                       "faults.restart=1 ms"};
  // Replica 1 is cut off: it restarts. Replica 0 goes on without a hang.
  const MemoryRun r = run_of(serving(R"({kind="link_down",link="gpu6--switch",step=20})", split,
                                     ", front_end = { replicas = 2, health_interval = \"1 s\" }"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << events_of(r);
  EXPECT_NE(events_of(r).find("gpu6 restarts, replica 1 is away for"), std::string::npos);
  std::int64_t slowest = 0;
  for (const run::StepScalars& s : r.data.steps) {
    if (s.engine == 0) slowest = std::max(slowest, s.end_ps - s.start_ps);
  }
  EXPECT_LT(slowest, 400 * kUs) << "no step of replica 0 waited";
  // A cable of a ring with a way round it: no GPU is cut off, the replica hangs for the detection.
  const MemoryRun ring = run_of(
      serving(R"({kind="link_down",link="gpu5--switch",step=20,lasts=30})",
              {"parallel.ep=4", "faults.reaction=restart", "faults.restart=1 ms",
               "hardware.links=[{from=\"gpu[0-7]\",to=\"switch\",type=\"cable\"},{from=\"gpu5\",to="
               "\"gpu6\",type=\"cable\"}]"},
              ", front_end = { replicas = 2, health_interval = \"1 s\" }"));
  EXPECT_EQ(outcomes(ring, run::RequestOutcome::kFinished), 60U) << events_of(ring);
  std::size_t hung = 0;
  for (std::size_t s = 0; s < ring.data.steps.size(); ++s) {
    const bool waits = phase(ring, s, ring.data.steps[s].engine * 4, Phase::kWait) >= 100 * kUs;
    hung += waits ? 1 : 0;
    if (waits) {
      EXPECT_EQ(ring.data.steps[s].engine, 1U) << s;
    }
  }
  EXPECT_EQ(hung, 1U) << events_of(ring);
}

TEST(ReplicaFaults, PagesGoRoundABrokenCableAfterAStartUpToo) {
  const std::string h = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
  const auto transfer = [&](const std::string& more) {
    return metric(
        run_of(scenario::read_scenario_text(
            "[model]\nfile = \"" + h + "models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + h +
                "hardware/hgx_h100.toml\"\n[parallel]\nep = 4\n[workload]\nkind = \"open\"\n"
                "routing = { synthetic = \"uniform\" }\narrivals = { per_second = 60.0, requests "
                "= 90 }\nlengths = { prompt = 64, output = 4 }\nfront_end = { replicas = 2, "
                "prefill_replicas = 1 }\n" +
                more,
            "pages.toml")),
        "KV transfer mean");
  };
  const std::string broken =
      "[faults]\nreaction = \"restart\"\nrestart = \"1 ms\"\nevents = [{ kind = \"link_down\", "
      "link = \"gpu6--nvswitch\", step = 2 }]\n";
  const std::string loads = "[memory]\nloading = { from = \"host\" }\n";
  EXPECT_GT(transfer(broken), transfer(""));
  EXPECT_GT(transfer(loads + broken), transfer(loads));
}

// ---- what a review found ----

TEST(FaultReview, RequestsMoveToGpusThatStay) {
  // Groups of two: pages of the healthy half travel, and not to a group that goes as well.
  const std::string events =
      R"({kind="gpu_loss",gpu="gpu0",step=12},{kind="gpu_loss",gpu="gpu2",step=12})";
  const MemoryRun r = run_of(serving(events, {"parallel.ep=2"}));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 60U) << events_of(r);
  ASSERT_GT(r.data.steps.size(), 13U);
  std::uint64_t travels = 0;
  for (std::uint32_t g = 0; g < 8; ++g) travels += r.data.gpus.bytes_out[12 * 8 + g];
  EXPECT_GT(r.data.gpus.bytes_out[12 * 8 + 1] + r.data.gpus.bytes_out[12 * 8 + 3], 0U)
      << "pages leave the healthy halves";
  for (std::uint32_t g = 0; g < 4; ++g) {
    EXPECT_EQ(r.data.gpus.bytes_in[12 * 8 + g], 0U) << g;
    EXPECT_EQ(memory(r, 13, g, run::MemoryCategory::kKv), 0U) << g;
  }
  EXPECT_GT(travels, 0U);
}

namespace {
/// Requests at stated times: rows of arrival_ns,prompt_tokens,output_tokens.
scenario::Scenario at_times(const std::string& rows, std::vector<std::string> more,
                            const std::string& workload = "") {
  write_file("requests.csv", "arrival_ns,prompt_tokens,output_tokens\n" + rows);
  std::vector<std::string> set{
      "workload={ kind = \"trace\", routing = { synthetic = \"uniform\" }, arrivals = { file = "
      "\"" +
      std::filesystem::absolute("requests.csv").string() + "\" }" + workload + " }"};
  set.insert(set.end(), more.begin(), more.end());
  return test::worked_scenario(std::move(set));
}
}  // namespace

TEST(FaultReview, AShedSystemAdmitsWhenItIsEmpty) {
  // The alarm stands from the first step on; requests 1 and 3 find nobody, request 2 does.
  const std::string alarm =
      R"(monitor.alarms=[{signal="step_time",above="0 us",window=1,action="shed"}])";
  const MemoryRun r =
      run_of(at_times("0,64,20\n500000000,64,20\n501000000,64,20\n900000000,64,20\n", {alarm}));
  using O = run::RequestOutcome;
  const std::vector<O> want{O::kFinished, O::kFinished, O::kRejected, O::kFinished};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(r.data.requests[i].outcome, want[i]) << i;
  EXPECT_EQ(metric(r, "requests shed"), 1);
}

TEST(FaultReview, AHangThatPassedIsNotPaidAgain) {
  // The only request fails with its GPU; the next one comes long after the hang and the loads.
  const auto second = [](const std::string& detection) {
    const MemoryRun r = run_of(at_times("0,64,20\n500000000,64,20\n",
                                        {"faults.detection=" + detection, "faults.reload=10 GB/s",
                                         R"(faults.events=[{kind="gpu_loss",gpu="gpu0",step=6}])"},
                                        ", front_end = { on_failure = \"fail\" }"));
    EXPECT_EQ(outcomes(r, run::RequestOutcome::kFailed), 1U) << events_of(r);
    const run::RequestRecord& q = r.data.requests.at(1);
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    return q.first_token_ps - q.arrival_ps;
  };
  EXPECT_EQ(second("1 ms"), second("10 us"));
}

TEST(FaultReview, MigratedPagesNeverOverfillAGpu) {
  // Room for five requests of 84 tokens on each GPU, more than that wait.
  const std::uint64_t page = 16 * 2048, kv = 5 * 6 * page;
  const MemoryRun r = run_of(serving(
      "",
      {R"(monitor.alarms=[{signal="memory",above="0 %",window=2,action="migrate_kv",repeat=1}])"},
      ", batching = { kv = \"" + std::to_string(kv) + " B\" }",
      "per_second = 2000000.0, requests = 90"));
  EXPECT_EQ(outcomes(r, run::RequestOutcome::kFinished), 90U);
  EXPECT_GT(count(r, "tokens of KV"), 0U) << events_of(r);
  for (std::size_t s = 0; s < r.data.steps.size(); ++s) {
    for (std::uint32_t g = 0; g < 8; ++g) {
      ASSERT_LE(memory(r, s, g, run::MemoryCategory::kKv), kv) << s << " " << g;
    }
  }
}

TEST(FaultReview, RandomFaultsAreDrawnOnceAStep) {
  // Asked twice about a step, when nothing was left to do for it after all.
  const scenario::Scenario s = serving(R"({kind="slow_gpu",factor=2,probability=0.3,lasts=1})");
  FaultClock once(s), twice(s);
  std::size_t seen = 0, again = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto now = static_cast<std::int64_t>(step) * kUs;
    seen += once.advance(step, now).size();
    again += twice.advance(step, now).size();
    again += twice.advance(step, now + 1).size();
  }
  EXPECT_EQ(again, seen);
  EXPECT_GT(seen, 50U);
}

TEST(ServingFaultKeys, SayWhatTheyDoNotTake) {
  const std::string two = ", front_end = { replicas = 2 }";
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(refusal(kLoss, {"parallel.ep=4"}, two), "use faults.reaction = \"restart\"");
  says(refusal(R"({kind="link_down",link="gpu3--switch",step=2})",
               {"parallel.ep=4", "faults.reaction=restart", "faults.restart=1 ms"},
               ", front_end = { replicas = 2, prefill_replicas = 1 }"),
       "pages travel by themselves there");
  says(refusal(R"({kind="mis_sharding",expert=1,gpu="gpu2",step=2})", {"parallel.ep=4"}, two),
       "unsupported with several replicas");
  says(refusal(kLoss, {"faults.recompute_chunk=100"}),
       "faults.recompute_chunk = 100: means nothing with requests that arrive");
  says(refusal("",
               {"parallel.ep=1",
                R"(monitor.alarms=[{signal="memory",above="1 %",action="migrate_kv"}])"},
               ", front_end = { replicas = 8 }"),
       "has no other GPU to move to");
}

}  // namespace switchyard::sim
