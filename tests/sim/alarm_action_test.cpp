// SPDX-License-Identifier: Apache-2.0
// [[monitor.alarms]]: alarms of a running simulation and their actions, on the machine of the
// worked example (fault_test.cpp: 2,048 B of KV per token, experts of 12,582,912 B).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;

scenario::Scenario watched(const std::string& alarms, std::vector<std::string> more = {}) {
  std::vector<std::string> set{"workload.routing={synthetic=\"uniform\"}", "workload.batch=16",
                               "workload.steps=6", "monitor.alarms=[" + alarms + "]"};
  set.insert(set.end(), more.begin(), more.end());
  return test::worked_scenario(std::move(set));
}

MemoryRun run_of(const std::string& alarms, std::vector<std::string> more = {}) {
  MemoryRun r = test::run_in_memory(watched(alarms, std::move(more)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::string refusal(const std::string& alarms, std::vector<std::string> more = {}) {
  try {
    (void)watched(alarms, std::move(more));
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

std::uint64_t memory(const MemoryRun& r, std::uint32_t step, std::uint32_t gpu,
                     run::MemoryCategory c) {
  return r.data.gpus
      .memory[(step * 8 + gpu) * run::kMemoryCategories + static_cast<std::size_t>(c)];
}

std::size_t count(const MemoryRun& r, run::EventKind kind, const std::string& text) {
  std::size_t n = 0;
  for (const run::Event& e : r.data.events) {
    n += e.kind == kind && e.text.find(text) != std::string::npos ? 1 : 0;
  }
  return n;
}

const std::vector<std::string> kLeak{
    "faults.events=[{kind=\"kv_leak\",gpu=\"gpu7\",bytes=\"1 GB\",step=0}]"};

}  // namespace

TEST(AlarmActions, APolicyIsInForceWhileItsAlarmStands) {
  write_file("unlimited.toml", "[capacity]\nrule = \"none\"\n");
  // C = 4 · 1 of 32 assignments over 8 experts: some overflow in every step, and are dropped.
  const std::vector<std::string> capacity{
      "policy.capacity.rule=share", "policy.capacity.factor=1.0", "policy.capacity.reroute=none"};
  const MemoryRun plain = test::MemoryRun(
      test::run_in_memory(watched("{signal=\"step_time\",above=\"1 h\"}", capacity), nullptr));
  for (const run::StepScalars& s : plain.data.steps) ASSERT_GT(s.dropped, 0U);
  const MemoryRun r = run_of(
      R"({signal="drop_share",above="0 %",window=1,action="policy",policy="unlimited.toml"})",
      capacity);
  // Raised by step 0, nothing is dropped in step 1, cleared by it, and so on.
  for (std::size_t i = 0; i < r.data.steps.size(); ++i) {
    EXPECT_EQ(r.data.steps[i].dropped, i % 2 == 0 ? plain.data.steps[i].dropped : 0U) << i;
  }
  EXPECT_EQ(count(r, run::EventKind::kAlarm, "raised"), 3U);
  EXPECT_EQ(count(r, run::EventKind::kAlarm, "cleared"), 3U);
}

TEST(AlarmActions, MigrationMovesASequenceWithItsPagesOverTheLinks) {
  // 17 sequences: GPU 0 has three, the others two. The rule is raised by step 1.
  const std::vector<std::string> batch{"workload.batch=17"};
  const std::string rule = R"({signal="memory",above="0 %",window=2,action="migrate_kv"})";
  const MemoryRun r = run_of(rule, batch);
  EXPECT_EQ(count(r, run::EventKind::kPolicyAction,
                  "sequence 0 moves from gpu0 to gpu1 with 1026 tokens of KV"),
            1U);
  // 1,026 tokens: 1,040 in pages of 16.
  const auto sequences = [&](std::uint32_t step, std::uint32_t g) {
    return memory(r, step, g, run::MemoryCategory::kKv) / (1040 * 2048ULL);
  };
  EXPECT_EQ(sequences(1, 0), 3U);
  EXPECT_EQ(sequences(1, 1), 2U);
  EXPECT_EQ(sequences(3, 0), 2U);
  EXPECT_EQ(sequences(3, 1), 3U);
  EXPECT_EQ(sequences(3, 2), 2U);
  const std::size_t pair = std::size_t{2} * 8;
  EXPECT_GE(r.data.gpus.bytes_out[pair], 1040 * 2048ULL);
  EXPECT_LT(r.data.gpus.bytes_out[pair + 1], 1040 * 2048ULL);
  // Where nobody is emptier, nothing moves and the event says so.
  EXPECT_EQ(count(run_of(rule), run::EventKind::kPolicyAction, "no emptier GPU"), 1U);
}

// scenarios/alarms/busy_gpu.toml, named by a scenario.
TEST(AlarmActions, AGpuAboveItsLimitGivesPagesAwayAndIsRoutedRound) {
  const std::string rules = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/alarms/busy_gpu.toml";
  // 17 sequences, GPU 0 has three, the others two.
  const MemoryRun probe = run_of("{signal=\"step_time\",above=\"1 h\"}", {"workload.batch=17"});
  std::uint64_t most = 0, second = 0;
  for (std::uint32_t g = 0; g < 8; ++g) {
    std::uint64_t sum = 0;
    for (const auto c : {run::MemoryCategory::kWeights, run::MemoryCategory::kExperts,
                         run::MemoryCategory::kKv, run::MemoryCategory::kRuntime}) {
      sum += memory(probe, 1, g, c);
    }
    second = std::max(second, std::min(sum, most));
    most = std::max(most, sum);
  }
  ASSERT_GT(most, second);
  const MemoryRun r = test::run_in_memory(
      test::worked_scenario(
          {"workload.routing={synthetic=\"uniform\"}", "workload.batch=17", "workload.steps=8",
           "run.detail=layers",
           "hardware.gpu_types.toy.memory=" +
               std::to_string(static_cast<std::uint64_t>(static_cast<double>(most) / 0.96)) + " B",
           "monitor.alarms=\"" + rules + "\""}),
      nullptr);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_GE(count(r, run::EventKind::kPolicyAction, "sequence 0 moves from gpu0 to"), 1U);
  EXPECT_GE(count(r, run::EventKind::kAlarm, "alarm \"full GPU, routing\" raised"), 1U);
}

TEST(AlarmActions, MigrationTakesASequenceFromAHotGpu) {
  // Expert kernels of GPU 2 at a thousandth of the clock: it computes while the others wait.
  const std::vector<std::string> hot{
      R"(faults.events=[{kind="hot_gpu",gpu="gpu2",factor=0.001,step=0}])"};
  const MemoryRun r =
      run_of(R"({signal="gpu_busy",above="90 %",window=2,action="migrate_kv"})", hot);
  EXPECT_EQ(count(r, run::EventKind::kPolicyAction, "sequence 2 moves from gpu2 to"), 1U);
  const std::uint64_t one = 1040 * 2048ULL;
  EXPECT_EQ(memory(r, 1, 2, run::MemoryCategory::kKv), 2 * one);
  EXPECT_EQ(memory(r, 3, 2, run::MemoryCategory::kKv), one);
}

TEST(AlarmActions, TheSparsityRatioIsOneWhereEveryTokenGetsItsExperts) {
  const std::string low = R"({signal="sparsity_ratio",below=1,window=1})";
  EXPECT_EQ(count(run_of(low), run::EventKind::kAlarm, "raised"), 0U);
  const MemoryRun r = run_of(low, {"policy.capacity.rule=share", "policy.capacity.factor=1.0",
                                   "policy.capacity.reroute=none"});
  // 16 tokens, 2 layers, 2 experts each: 64 without drops.
  ASSERT_EQ(count(r, run::EventKind::kAlarm, "raised"), 1U);
  const auto raised =
      std::find_if(r.data.events.begin(), r.data.events.end(),
                   [](const run::Event& e) { return e.kind == run::EventKind::kAlarm; });
  EXPECT_DOUBLE_EQ(raised->value, 1 - static_cast<double>(r.data.steps[0].dropped) / 64);
}

TEST(AlarmActions, AWatchdogReclaimsWhatLeaked) {
  const MemoryRun leak = run_of("{signal=\"step_time\",above=\"1 h\"}", kLeak);
  EXPECT_EQ(memory(leak, 5, 7, run::MemoryCategory::kRuntime), 5'000'000'000U);
  // 80 GB: 1 GB a step is 1.25 %. Growth over 3 steps is above 2 % at the end of step 2 (steps see
  // 0, 1 and 2 GB), so 3 GB are freed before step 3.
  const MemoryRun r = run_of(
      R"({signal="runtime_memory",above="2 %",window=3,statistic="growth",action="reclaim"})",
      kLeak);
  EXPECT_EQ(memory(r, 3, 7, run::MemoryCategory::kRuntime), 0U);
  EXPECT_EQ(memory(r, 5, 7, run::MemoryCategory::kRuntime), 2'000'000'000U);
  EXPECT_EQ(count(r, run::EventKind::kPolicyAction, "3000000000 B reclaimed"), 1U);
}

TEST(AlarmActions, AReloadCuresASickExpert) {
  const std::vector<std::string> faults{
      "faults.reload=10 GB/s",
      "faults.events=[{kind=\"slow_expert\",expert=6,layer=1,factor=9,step=0}]"};
  const MemoryRun r =
      run_of(R"({signal="expert_latency",above=2.5,window=2,action="reload"})", faults);
  EXPECT_EQ(count(r, run::EventKind::kPolicyAction, "expert 6 of MoE layer 1 loaded anew"), 1U);
  const MemoryRun sick = run_of("{signal=\"step_time\",above=\"1 h\"}", faults);
  const auto phase = [](const MemoryRun& m, std::uint32_t step) {
    return m.data.gpus
        .phase_ps[(step * 8 + 6) * run::kPhases + static_cast<std::size_t>(run::Phase::kExpert)];
  };
  EXPECT_EQ(phase(r, 1), phase(sick, 1));
  EXPECT_LT(phase(r, 2), phase(sick, 2));
}

namespace {

/// A step's routing as a text.
std::string kept(const MemoryRun& r, std::uint32_t step) {
  std::string out;
  for (std::uint32_t l = 0; l < 2; ++l) {
    for (std::uint32_t e = 0; e < 8; ++e) {
      out += std::to_string(r.data.layer_experts[l].kept[step * 8 + e]) + " ";
    }
  }
  return out;
}

}  // namespace

TEST(MemorySamples, HoldUntilTheNextOneIsDue) {
  // GPU 7 loses 16 GB of its 80 a step; load_aware turns tokens away from it.
  const std::string leak = R"(faults.events=[{kind="kv_leak",gpu="gpu7",bytes="16 GB",step=0}])";
  const std::vector<std::string> aware{"policy.load_aware.u=total", "policy.load_aware.lambda=4",
                                       "workload.batch=64"};
  const auto with = [&](const std::string& more, bool leaks) {
    std::vector<std::string> set = aware;
    if (leaks) set.push_back(leak);
    if (!more.empty()) set.push_back(more);
    return run_of(R"({signal="step_time",above="1 h"})", set);
  };
  const MemoryRun sound = with("", false), each = with("", true);
  const MemoryRun once = with("memory.sample_every=10 s", true);
  // Two steps of the healthy run are shorter than this, four are longer.
  const std::int64_t step = sound.data.steps[0].end_ps - sound.data.steps[0].start_ps;
  const MemoryRun some = with("memory.sample_every=" + std::to_string(step * 5 / 2) + " ps", true);
  for (std::uint32_t s = 0; s < 6; ++s) EXPECT_EQ(kept(once, s), kept(sound, s)) << s;
  EXPECT_EQ(kept(each, 0), kept(sound, 0));
  EXPECT_NE(kept(each, 2), kept(sound, 2));
  EXPECT_EQ(kept(some, 1), kept(sound, 1));
  EXPECT_NE(kept(some, 4), kept(sound, 4));
}

TEST(MemorySamples, AreAlsoTakenInsideAStep) {
  // One prompt of 4,096 tokens: 8,388,608 B of KV pages on GPU 0, there when the first layer
  // decides, but not when the step begins. A small memory makes that a tenth.
  const std::vector<std::string> prompt{"workload.kind=prefill",
                                        "workload.batch=1",
                                        "workload.context=0",
                                        "workload.tokens=4096",
                                        "hardware.gpu_types.toy.memory=\"100 MB\"",
                                        "policy.load_aware.u=total",
                                        "policy.load_aware.lambda=4"};
  std::vector<std::string> inside = prompt;
  inside.emplace_back("memory.sample_every=1 ns");
  const std::string none = R"({signal="step_time",above="1 h"})";
  const MemoryRun start = run_of(none, prompt), now = run_of(none, inside);
  EXPECT_NE(kept(start, 0), kept(now, 0));
  EXPECT_LT(now.data.layer_experts[0].kept[0], start.data.layer_experts[0].kept[0]);
}

TEST(MemorySamples, AreRefusedWhereNobodyReadsThem) {
  const auto says = [](std::vector<std::string> more) {
    more.emplace_back("memory.sample_every=1 ms");
    try {
      (void)run_of(R"({signal="step_time",above="1 h"})", std::move(more));
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(says({}).find("means nothing: no policy has load_aware.u"), std::string::npos);
  EXPECT_NE(says({"policy.load_aware.u=queue", "policy.capacity.rule=share",
                  "policy.capacity.factor=1.0"})
                .find("means nothing: no policy has load_aware.u"),
            std::string::npos);
  EXPECT_NE(says({"policy.load_aware.u=total", "policy.decode_rebalance.level=0.85"})
                .find("their levels are those at the start of a step"),
            std::string::npos)
      << says({"policy.load_aware.u=total", "policy.decode_rebalance.level=0.85"});
  EXPECT_NE(refusal(R"({signal="step_time",above="1 h"})", {"memory.sample_every=0 ms"})
                .find("Violated: sample_every > 0"),
            std::string::npos);
}

TEST(AlarmActions, APolicyIsRefusedForWhatTheScenariosOwnIs) {
  write_file("by_place.toml", "[groups]\nby = \"placement\"\n");
  const std::string rule =
      R"({signal="step_time",above="1 ms",action="policy",policy="by_place.toml"})";
  EXPECT_NE(refusal(rule, {"faults.reload=10 GB/s",
                           "faults.events=[{kind=\"gpu_loss\",gpu=\"gpu3\",step=2}]"})
                .find("groups.by = \"placement\" is unsupported with gpu_loss"),
            std::string::npos);
  const scenario::Scenario copies =
      watched(rule, {"parallel.placement=eplb", "parallel.placement_options.redundant=8"});
  try {
    (void)test::run_in_memory(copies, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("with several copies of an expert"), std::string::npos)
        << e.what();
  }
}

TEST(AlarmActions, AreRefusedWhereTheyMeanNothing) {
  EXPECT_NE(refusal(R"({signal="runtime_memory",above="1 %",action="reclaim"})")
                .find("monitor.alarms[0].action = \"reclaim\" means nothing: nothing leaks"),
            std::string::npos);
  EXPECT_NE(refusal(R"({signal="step_time",above="1 ms",action="shed"})")
                .find("needs requests that arrive"),
            std::string::npos);
  EXPECT_NE(refusal(R"({signal="step_time",above="1 ms",drop=3})")
                .find("monitor.alarms[0].drop = 3: means nothing without action"),
            std::string::npos);
  EXPECT_NE(refusal(R"({signal="step_time",above="1 ms",action="migrate_kv"})")
                .find("needs an alarm that names a full GPU"),
            std::string::npos);
  EXPECT_NE(refusal(R"({signal="expert_latency",above=2,action="reload"})")
                .find("means nothing without faults"),
            std::string::npos);
  EXPECT_NE(refusal(R"({signal="memory",above="1 %",action="policy",policy="none_such.toml"})")
                .find("No such file"),
            std::string::npos);
}

}  // namespace switchyard::sim
