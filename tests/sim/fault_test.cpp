// SPDX-License-Identifier: Apache-2.0
// Faults and healing on the machine of the worked example: 8 GPUs, expert e of both layers on GPU
// e, 12,582,912 B each (3 · 1024 · 2048 · 2 B), 2,048 B of KV per token (2 layers · 2 · 2 heads ·
// 128 · 2 B), 16 sequences of 1,024 cached tokens, sequence b on GPU b mod 8.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/faults/fault_clock.hpp"
#include "sim/health/diagnosis.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using run::Phase;
using test::MemoryRun;

constexpr std::int64_t kUs = 1'000'000;
constexpr std::uint64_t kExpert = 12'582'912;

scenario::Scenario faulty(const std::string& events, std::vector<std::string> more = {}) {
  std::vector<std::string> set{"workload.routing={synthetic=\"uniform\"}", "workload.batch=16",
                               "workload.steps=8", "run.detail=layers"};
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

MemoryRun run_of(const std::string& events, std::vector<std::string> more = {}) {
  MemoryRun r = test::run_in_memory(faulty(events, std::move(more)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::string refusal(const std::string& events, std::vector<std::string> more = {}) {
  try {
    (void)faulty(events, std::move(more));
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  return -1;
}

std::int64_t phase(const MemoryRun& r, std::uint32_t step, std::uint32_t gpu, Phase p) {
  return r.data.gpus.phase_ps[(step * 8 + gpu) * run::kPhases + static_cast<std::size_t>(p)];
}
std::uint64_t memory(const MemoryRun& r, std::uint32_t step, std::uint32_t gpu,
                     run::MemoryCategory c) {
  return r.data.gpus
      .memory[(step * 8 + gpu) * run::kMemoryCategories + static_cast<std::size_t>(c)];
}
std::int64_t duration(const MemoryRun& r, std::uint32_t step) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}
std::string events_of(const MemoryRun& r) {
  std::string out;
  for (const run::Event& e : r.data.events) {
    out += std::to_string(e.step) + " " + std::to_string(e.time_ps) + " " + e.text + "\n";
  }
  return out;
}

const std::string kLoss = R"({kind="gpu_loss",gpu="gpu3",step=2})";

}  // namespace

TEST(FaultClock, BeginsByStepOrTimeAndEndsAfterItsSteps) {
  const scenario::Scenario s = faulty(
      R"({kind="slow_gpu",gpu="gpu1",factor=2,step=1,lasts=2},{kind="slow_gpu",gpu="gpu2",factor=3,time="5 us"})");
  FaultClock clock(s);
  EXPECT_TRUE(clock.advance(0, 0).empty());
  const auto first = clock.advance(1, 4 * kUs);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].target, 1U);
  EXPECT_DOUBLE_EQ(clock.gpu_factor(1), 2);
  ASSERT_EQ(clock.advance(2, 5 * kUs).size(), 1U);
  EXPECT_DOUBLE_EQ(clock.gpu_factor(2), 3);
  const auto last = clock.advance(3, 6 * kUs);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_FALSE(last[0].begins);
  EXPECT_DOUBLE_EQ(clock.gpu_factor(1), 1);
  EXPECT_DOUBLE_EQ(clock.gpu_factor(2), 3);
}

// Without faults the copies between GPUs are enough to time an exchange and to count its bytes;
// with them there are matrices of bytes.
TEST(Faults, OneThatNeverBeginsLeavesEveryTimeAndByteAsItWas) {
  for (const char* dispatch : {"per_expert", "per_rank"}) {
    const std::vector<std::string> more{std::string("network.dispatch=") + dispatch};
    const MemoryRun without = run_of("", more);
    const MemoryRun with = run_of(R"({kind="slow_gpu",gpu="gpu1",factor=2,step=1000})", more);
    const run::Totals &a = without.data.totals, &b = with.data.totals;
    EXPECT_GT(*std::max_element(a.pair_bytes.begin(), a.pair_bytes.end()), 0U);
    EXPECT_EQ(a.pair_bytes, b.pair_bytes);
    EXPECT_EQ(a.link_bytes, b.link_bytes);
    EXPECT_EQ(a.gpu_phase_ps, b.gpu_phase_ps);
    ASSERT_EQ(without.data.steps.size(), with.data.steps.size());
    for (std::size_t i = 0; i < without.data.steps.size(); ++i) {
      const run::StepScalars &x = without.data.steps[i], &y = with.data.steps[i];
      EXPECT_EQ(x.end_ps, y.end_ps);
      EXPECT_EQ(x.phase_ps, y.phase_ps);
      EXPECT_EQ(x.bytes_sent, y.bytes_sent);
      EXPECT_EQ(x.bytes_received, y.bytes_received);
      EXPECT_EQ(x.straggler_gpu, y.straggler_gpu);
      EXPECT_EQ(x.straggler_reason, y.straggler_reason);
    }
  }
}

TEST(FaultClock, DrawsRandomFaultsByStepAndTargetAlone) {
  const std::string rule = R"({kind="slow_gpu",factor=2,probability=0.1,lasts=1})";
  const auto begins = [&](const std::string& events, std::size_t which) {
    const scenario::Scenario s = faulty(events);
    FaultClock clock(s);
    std::string out;
    std::size_t n = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      for (const FaultChange& c : clock.advance(step, 0)) {
        if (!c.begins || c.rule != which) continue;
        out += std::to_string(step) + ":" + std::to_string(c.target) + " ";
        ++n;
      }
    }
    // 200 steps · 8 GPUs · 0.1 = 160, standard deviation 12.
    EXPECT_NEAR(static_cast<double>(n), 160, 48);
    return out;
  };
  const std::string alone = begins(rule, 0);
  EXPECT_EQ(alone, begins(rule, 0));
  EXPECT_EQ(alone, begins(rule + R"(,{kind="host_stall",stall="1 us",step=3})", 0));
  EXPECT_NE(alone, begins(R"({kind="host_stall",stall="1 us",step=3},)" + rule, 1));
}

TEST(SlowGpu, TakesItsFactorInEveryKernelAndIsNamedAsTheStraggler) {
  const MemoryRun healthy = run_of("");
  const MemoryRun slow = run_of(R"({kind="slow_gpu",gpu="gpu5",factor=3,step=2,lasts=2})");
  for (const Phase p : {Phase::kAttention, Phase::kRouter, Phase::kExpert, Phase::kHead}) {
    EXPECT_EQ(phase(slow, 2, 5, p), 3 * phase(healthy, 2, 5, p)) << static_cast<int>(p);
    EXPECT_EQ(phase(slow, 2, 4, p), phase(healthy, 2, 4, p));
    EXPECT_EQ(phase(slow, 4, 5, p), phase(healthy, 4, 5, p));
  }
  EXPECT_EQ(phase(slow, 2, 5, Phase::kHost), phase(healthy, 2, 5, Phase::kHost));
  EXPECT_EQ(slow.data.steps[2].straggler_gpu, 5U);
  EXPECT_EQ(slow.data.steps[2].straggler_reason, run::StragglerReason::kFault);
  EXPECT_NE(slow.data.steps[5].straggler_reason, run::StragglerReason::kFault);
}

TEST(DegradedLink, CarriesItsShareAndIsWholeAgainAfterwards) {
  const MemoryRun healthy = run_of("");
  const MemoryRun slow =
      run_of(R"({kind="link_degraded",link="gpu2--switch",factor=0.25,step=3,lasts=1})");
  const std::size_t links = slow.data.inventory.links.size();
  for (std::size_t k = 0; k < links; ++k) {
    const run::LinkInfo& l = slow.data.inventory.links[k];
    const bool broken = l.from == "gpu2" || l.to == "gpu2";
    EXPECT_EQ(slow.data.links.bytes[3 * links + k], healthy.data.links.bytes[3 * links + k]);
    EXPECT_NEAR(
        static_cast<double>(slow.data.links.busy_ps[3 * links + k]),
        (broken ? 4.0 : 1.0) * static_cast<double>(healthy.data.links.busy_ps[3 * links + k]), 8)
        << l.name;
  }
  EXPECT_GT(duration(slow, 3), duration(healthy, 3));
  EXPECT_EQ(duration(slow, 4), duration(healthy, 4));
}

TEST(GpuLoss, SurvivorsTakeExpertsAndSequencesAndComputeLostPagesAgain) {
  const MemoryRun healthy = run_of("");
  const MemoryRun r = run_of(kLoss);
  // 16 tokens of the step that hung; sequences 3 and 11 had 1,026 tokens each.
  EXPECT_EQ(metric(r, "faults"), 1);
  EXPECT_EQ(metric(r, "tokens lost"), 16);
  EXPECT_EQ(metric(r, "tokens recomputed"), 2 * 1026);
  // All hang for 100 us. Expert 3 goes to GPU 0 in one layer and, since that has one now, to GPU 1
  // in the other: each loads 12,582,912 B at 10 GB/s.
  EXPECT_EQ(metric(r, "recovery time"), 0.1 + kExpert / 1e10 * 1e3);
  EXPECT_EQ(memory(r, 2, 0, run::MemoryCategory::kExperts), 3 * kExpert);
  EXPECT_EQ(memory(r, 2, 1, run::MemoryCategory::kExperts), 3 * kExpert);
  EXPECT_EQ(memory(r, 2, 2, run::MemoryCategory::kExperts), 2 * kExpert);
  // The lost GPU holds and does nothing any more.
  for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
    EXPECT_EQ(memory(r, 3, 3, static_cast<run::MemoryCategory>(c)), 0U) << c;
  }
  EXPECT_EQ(phase(r, 3, 3, Phase::kWait), duration(r, 3));
  EXPECT_EQ(r.data.gpus.bytes_out[3 * 8 + 3] + r.data.gpus.bytes_in[3 * 8 + 3], 0U);
  // No assignment is lost: each step routes its tokens to 2 experts in 2 layers.
  for (const run::StepScalars& s : r.data.steps) EXPECT_EQ(s.assignments, s.tokens * 4);
  EXPECT_EQ(r.data.steps[2].tokens, 14 + 2 * 1026U);
  EXPECT_EQ(r.data.steps[2].kind, run::StepKind::kMixed);
  EXPECT_EQ(r.data.steps[2].straggler_reason, run::StragglerReason::kFault);
  EXPECT_EQ(r.data.steps[3].tokens, 16U);
  // Sequences 3 and 11 lack the token of the step in which they were computed again.
  EXPECT_EQ(r.data.requests[3].output_tokens, 7U);
  EXPECT_EQ(r.data.requests[4].output_tokens, 8U);
  EXPECT_EQ(duration(r, 1), duration(healthy, 1));
}

TEST(GpuLoss, ComputesAgainInChunks) {
  const MemoryRun r = run_of(kLoss, {"faults.recompute_chunk=500"});
  EXPECT_EQ(metric(r, "tokens recomputed"), 2 * 1026);
  EXPECT_EQ(r.data.steps[2].tokens, 14 + 2 * 500U);
  EXPECT_EQ(r.data.steps[4].tokens, 14 + 2 * 26U);
  EXPECT_EQ(r.data.requests[11].output_tokens, 5U);
}

TEST(GpuLoss, HealsWhenTheGpuIsBack) {
  const MemoryRun r = run_of(R"({kind="gpu_loss",gpu="gpu3",step=2,lasts=3})");
  // Experts and sequences return over the links: both experts from GPU 0, and the pages of
  // sequences 3 and 11 (1,026 tokens computed again in step 2, one token in steps 3 and 4: 1,028,
  // in pages of 16: 1,040 tokens).
  std::uint64_t in = 0;
  const run::RunData& d = r.data;
  for (const run::Event& e : d.events) {
    if (e.step == 5 && e.kind == run::EventKind::kPolicyAction)
      in = static_cast<std::uint64_t>(e.value);
  }
  EXPECT_EQ(in, 2 * kExpert + 2 * 1040 * 2048ULL) << events_of(r);
  EXPECT_EQ(memory(r, 6, 3, run::MemoryCategory::kExperts), 2 * kExpert);
  EXPECT_EQ(memory(r, 6, 0, run::MemoryCategory::kExperts), 2 * kExpert);
  EXPECT_EQ(memory(r, 6, 3, run::MemoryCategory::kKv), 2 * 1040 * 2048ULL);
  EXPECT_EQ(memory(r, 6, 3, run::MemoryCategory::kWeights),
            memory(r, 1, 3, run::MemoryCategory::kWeights));
  EXPECT_GT(phase(r, 6, 3, Phase::kExpert), 0);
}

TEST(GpuLoss, CopiesNeedNoLoadFromTheHost) {
  // 16 slots: every expert twice, so none is without a copy when a GPU goes.
  const MemoryRun r =
      run_of(kLoss, {"parallel.placement=eplb", "parallel.placement_options.redundant=8"});
  EXPECT_EQ(metric(r, "recovery time"), 0.1) << events_of(r);
}

TEST(GpuLoss, RestartHoldsEverybodyAndMovesNothing) {
  const MemoryRun r = run_of(kLoss, {"faults.reaction=restart", "faults.restart=2 ms"});
  const std::uint64_t held = memory(r, 1, 3, run::MemoryCategory::kWeights) + 2 * kExpert;
  EXPECT_NEAR(metric(r, "recovery time"), 0.1 + 2 + static_cast<double>(held) / 1e10 * 1e3, 1e-6);
  EXPECT_EQ(metric(r, "tokens recomputed"), 2 * 1026);
  EXPECT_EQ(memory(r, 3, 3, run::MemoryCategory::kExperts), 2 * kExpert);
  EXPECT_GE(phase(r, 2, 0, Phase::kWait), 2100 * kUs);
}

TEST(GpuLoss, TakesItsGroupOutOfServiceAndSavesWhatIsHealthy) {
  const MemoryRun r = run_of(kLoss, {"parallel.ep=4"});
  // GPUs 0 to 3 are one copy of the experts. Their sequences go to GPUs 4 to 7; only those of GPU 3
  // lost their pages, the other six (1,026 tokens: 1,040 in pages) travel.
  EXPECT_EQ(metric(r, "tokens recomputed"), 2 * 1026);
  for (const std::uint32_t g : {0U, 1U, 2U, 3U}) {
    EXPECT_EQ(phase(r, 3, g, Phase::kWait), duration(r, 3)) << g;
  }
  for (const std::uint32_t g : {4U, 5U, 6U, 7U}) EXPECT_GT(phase(r, 3, g, Phase::kExpert), 0);
  const auto sent = [&](std::uint32_t g) { return r.data.gpus.bytes_out[2 * 8 + g]; };
  EXPECT_EQ(sent(0) + sent(1) + sent(2), 6 * 1040 * 2048ULL);
  EXPECT_EQ(sent(3), 0U);
}

TEST(GpuLoss, AStandInMayGoAsTheFirstComesBack) {
  // Sequence 0 waits on GPU 1 when both change: its pages are lost, and released once.
  const MemoryRun r =
      run_of(R"({kind="gpu_loss",gpu="gpu0",step=3,lasts=5},{kind="gpu_loss",gpu="gpu1",step=8})",
             {"workload.steps=11"});
  EXPECT_EQ(memory(r, 9, 1, run::MemoryCategory::kKv), 0U);
  EXPECT_EQ(r.data.gpus.bytes_out[8 * 8 + 1], 0U) << events_of(r);
  EXPECT_GT(phase(r, 9, 0, Phase::kExpert), 0);
  EXPECT_EQ(r.data.steps[10].tokens, 16U);
}

TEST(GpuLoss, TwoOfAGroupAtATimeSendNothing) {
  const MemoryRun r =
      run_of(R"({kind="gpu_loss",gpu="gpu0",step=3},{kind="gpu_loss",gpu="gpu1",step=3})",
             {"parallel.ep=4"});
  // Sequences 0, 1, 8 and 9 had 1,027 tokens; those of GPUs 2 and 3 travel (1,040 in pages).
  EXPECT_EQ(metric(r, "tokens recomputed"), 4 * 1027);
  const auto sent = [&](std::uint32_t g) { return r.data.gpus.bytes_out[3 * 8 + g]; };
  EXPECT_EQ(sent(0) + sent(1), 0U);
  EXPECT_EQ(sent(2) + sent(3), 4 * 1040 * 2048ULL);
  EXPECT_EQ(metric(r, "tokens lost"), 16);
}

TEST(GpuLoss, IsOverWithTheLastOfItsCauses) {
  for (const char* events : {R"({kind="gpu_loss",gpu="gpu3",step=2,lasts=5},)"
                             R"({kind="link_down",link="gpu3--switch",step=3,lasts=1})",
                             R"({kind="link_down",link="gpu3--switch",step=2,lasts=5},)"
                             R"({kind="gpu_loss",gpu="gpu3",step=3,lasts=1})"}) {
    const MemoryRun r = run_of(events);
    EXPECT_EQ(phase(r, 5, 3, Phase::kExpert), 0) << events_of(r);
    EXPECT_GT(phase(r, 7, 3, Phase::kExpert), 0) << events_of(r);
  }
}

TEST(Restart, OfOneShardLosesThePagesOfAll) {
  const MemoryRun r =
      run_of(kLoss, {"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=8",
                     "faults.reaction=restart", "faults.restart=2 ms"});
  EXPECT_EQ(metric(r, "tokens recomputed"), 16 * 1026);
}

TEST(Restart, OfTwoGpusIsSideBySide) {
  const std::vector<std::string> restart{"faults.reaction=restart", "faults.restart=2 ms"};
  const MemoryRun one = run_of(kLoss, restart);
  const MemoryRun two = run_of(kLoss + R"(,{kind="gpu_loss",gpu="gpu4",step=2})", restart);
  EXPECT_EQ(metric(two, "recovery time"), metric(one, "recovery time"));
  EXPECT_EQ(metric(two, "tokens recomputed"), 4 * 1026);
}

TEST(Restart, RepairsTheCableThatCutItsGpuOff) {
  const std::vector<std::string> restart{"faults.reaction=restart", "faults.restart=2 ms"};
  const MemoryRun loss = run_of(kLoss, restart);
  const MemoryRun down = run_of(R"({kind="link_down",link="gpu3--switch",step=2})", restart);
  for (std::uint32_t s = 0; s < loss.data.steps.size(); ++s) {
    EXPECT_EQ(duration(loss, s), duration(down, s)) << s;
  }
  EXPECT_NE(events_of(down).find("gpu3--switch is repaired"), std::string::npos);
}

TEST(LinkDown, CutsItsGpuOffAndItsReturnBringsItBack) {
  const MemoryRun loss = run_of(R"({kind="gpu_loss",gpu="gpu3",step=2,lasts=3})");
  const MemoryRun down = run_of(R"({kind="link_down",link="gpu3--switch",step=2,lasts=3})");
  ASSERT_EQ(loss.data.steps.size(), down.data.steps.size());
  for (std::uint32_t s = 0; s < loss.data.steps.size(); ++s) {
    EXPECT_EQ(duration(loss, s), duration(down, s)) << s;
  }
}

/// A second cable for some GPUs, from one to the next.
std::string ring(const std::string& more) {
  return R"(hardware.links=[{from="gpu[0-7]",to="switch",type="cable"},)" + more + "]";
}

TEST(LinkDown, OfSeveralNamesTheGpuThatHasNoCableLeft) {
  // GPU 0 still has a cable to GPU 1; the way to the others leads through it.
  const MemoryRun r = run_of(R"({kind="link_down",link="gpu0--switch",step=2},)"
                             R"({kind="link_down",link="gpu3--switch",step=2})",
                             {ring(R"({from="gpu0",to="gpu1",type="cable"})")});
  const std::string text = events_of(r);
  EXPECT_NE(text.find("2 sequences leave gpu3"), std::string::npos) << text;
  EXPECT_EQ(text.find("leave gpu0"), std::string::npos) << text;
  EXPECT_GT(phase(r, 4, 0, Phase::kExpert), 0);
  EXPECT_EQ(phase(r, 4, 3, Phase::kExpert), 0);
}

TEST(LinkDown, OfAllCablesOfAGpuIsOverWithTheFirstThatIsUpAgain) {
  const MemoryRun r = run_of(R"({kind="link_down",link="gpu3--switch",step=2,lasts=5},)"
                             R"({kind="link_down",link="gpu2--gpu3",step=2,lasts=2})",
                             {ring(R"({from="gpu2",to="gpu3",type="cable"})")});
  EXPECT_EQ(phase(r, 3, 3, Phase::kExpert), 0) << events_of(r);
  EXPECT_GT(phase(r, 5, 3, Phase::kExpert), 0) << events_of(r);
}

TEST(FaultClock, RepairsAnExpertInOneLayerAtATime) {
  for (const char* kind : {R"(kind="bit_flip")", R"(kind="slow_expert",factor=3)"}) {
    const scenario::Scenario s = faulty("{" + std::string(kind) + ",expert=2,step=0}");
    FaultClock clock(s);
    (void)clock.advance(0, 0);
    const bool flip = s.faults.events[0].kind == scenario::FaultKind::kBitFlip;
    const auto wrong = [&](std::uint32_t layer) {
      return flip ? clock.damaged(layer, 2) : clock.expert_factor(layer, 2) > 1;
    };
    EXPECT_TRUE(wrong(0) && wrong(1));
    EXPECT_TRUE(clock.repair_expert(0, 2));
    EXPECT_FALSE(wrong(0));
    EXPECT_TRUE(wrong(1)) << "the rule names no layer: the others are still ill";
    EXPECT_FALSE(clock.repair_expert(0, 2));
    EXPECT_TRUE(clock.repair_expert(1, 2));
    EXPECT_FALSE(wrong(1));
    EXPECT_FALSE(clock.any_damaged() || clock.any_slow_expert()) << "nothing of the rule is left";
  }
}

TEST(SlowExpert, CostsItsFactorAndIsFoundByDiagnose) {
  const MemoryRun healthy = run_of("");
  const MemoryRun slow = run_of(R"({kind="slow_expert",expert=6,layer=1,factor=4,step=0})");
  const auto time = [](const MemoryRun& r, std::size_t l, std::size_t e) {
    return r.data.totals.expert_time_ps[l * 8 + e];
  };
  EXPECT_EQ(time(slow, 1, 6), 4 * time(healthy, 1, 6));
  EXPECT_EQ(time(slow, 0, 6), time(healthy, 0, 6));
  const health::Diagnosis d = health::diagnose(slow.data, "r.h5");
  EXPECT_TRUE(std::any_of(d.findings.begin(), d.findings.end(), [](const health::Finding& f) {
    return f.id == "sick expert" && f.symptom.find("MoE layer 1 expert 6") != std::string::npos;
  }));
}

TEST(BitFlip, CountsWhatRanOnDamagedWeightsUntilACheck) {
  const MemoryRun r =
      run_of(R"({kind="bit_flip",expert=2,layer=0,step=1})", {"faults.check_every=4"});
  // Steps 1, 2 and 3; the check is before step 4.
  std::uint64_t kept = 0;
  for (std::uint32_t s = 1; s < 4; ++s) kept += r.data.layer_experts[0].kept[s * 8 + 2];
  EXPECT_GT(kept, 0U);
  EXPECT_EQ(metric(r, "assignments on damaged weights"), static_cast<double>(kept));
  EXPECT_NEAR(metric(r, "recovery time"), kExpert / 1e10 * 1e3, 1e-6);
}

TEST(BitFlip, OfACheckStepIsFoundByTheNextCheck) {
  const MemoryRun r =
      run_of(R"({kind="bit_flip",expert=2,layer=0,step=4})", {"faults.check_every=4"});
  std::uint64_t kept = 0;
  for (std::uint32_t s = 4; s < 8; ++s) kept += r.data.layer_experts[0].kept[s * 8 + 2];
  EXPECT_GT(kept, 0U);
  EXPECT_EQ(metric(r, "assignments on damaged weights"), static_cast<double>(kept));
}

TEST(HotGpu, SlowsArithmeticAndNeitherMemoryNorLaunches) {
  const MemoryRun healthy = run_of("");
  // Decode waits for memory: at half the clock nothing changes.
  const MemoryRun half = run_of(R"({kind="hot_gpu",gpu="gpu5",factor=0.5,step=2,lasts=2})");
  for (std::uint32_t s = 0; s < 8; ++s) EXPECT_EQ(duration(half, s), duration(healthy, s)) << s;
  // The head of 2 rows: 2 · 2 · 1024 · 8192 FLOP at 1 TFLOP/s are 33.554432 us, its bytes
  // (1024 · 8192 · 2 + 2 · (2048 + 4 · 8192)) at 1 TB/s 16.846848 us.
  const MemoryRun hot = run_of(R"({kind="hot_gpu",gpu="gpu5",factor=0.01,step=2,lasts=2})");
  EXPECT_NEAR(
      static_cast<double>(phase(hot, 2, 5, Phase::kHead) - phase(healthy, 2, 5, Phase::kHead)),
      16'707'584.0, 2);
  EXPECT_EQ(phase(hot, 2, 4, Phase::kHead), phase(healthy, 2, 4, Phase::kHead));
  EXPECT_EQ(phase(hot, 4, 5, Phase::kHead), phase(healthy, 4, 5, Phase::kHead));
  EXPECT_EQ(hot.data.steps[2].straggler_gpu, 5U);
  EXPECT_EQ(hot.data.steps[2].straggler_reason, run::StragglerReason::kFault);
}

TEST(GatherFailure, IsTheWholeExchangeAndATimeOutForEachTry) {
  const MemoryRun healthy = run_of("", {"network.dispatch=per_expert"});
  const MemoryRun r =
      run_of(R"({kind="gather_failure",gpu="gpu2",layer=1,timeout="50 us",tries=2,step=3,lasts=1})",
             {"network.dispatch=per_expert"});
  EXPECT_EQ(metric(r, "failed gathers"), 2) << events_of(r);
  EXPECT_EQ(metric(r, "assignments lost in gathers"), 0);
  const auto combine = [](const MemoryRun& m, std::size_t step, std::size_t layer) {
    return m.data.layer_steps.combine_ps[step * 2 + layer];
  };
  EXPECT_EQ(combine(r, 3, 1), 3 * combine(healthy, 3, 1));
  EXPECT_EQ(combine(r, 3, 0), combine(healthy, 3, 0));
  EXPECT_EQ(combine(r, 4, 1), combine(healthy, 4, 1));
  EXPECT_EQ(duration(r, 3), duration(healthy, 3) + 2 * (50 * kUs + combine(healthy, 3, 1)));
  EXPECT_EQ(duration(r, 4), duration(healthy, 4));
  EXPECT_EQ(r.data.steps[3].straggler_gpu, 2U);
  EXPECT_EQ(r.data.steps[3].straggler_reason, run::StragglerReason::kFault);
  EXPECT_NEAR(metric(r, "time of failed gathers"),
              0.1 + 2e-9 * static_cast<double>(combine(healthy, 3, 1)), 1e-9);
}

TEST(GatherFailure, IsGivenUpAfterItsRetries) {
  const MemoryRun healthy = run_of("", {"network.dispatch=per_expert"});
  const MemoryRun r =
      run_of(R"({kind="gather_failure",gpu="gpu2",timeout="50 us",tries=5,step=3,lasts=1})",
             {"network.dispatch=per_expert", "faults.retries=1"});
  EXPECT_EQ(metric(r, "failed gathers"), 2 * 2);
  // Each assignment to another GPU is one copy of 2,048 B each way, in both layers.
  const std::uint64_t remote = healthy.data.steps[3].bytes_sent / (2 * 2048);
  EXPECT_GT(remote, 0U);
  EXPECT_EQ(metric(r, "assignments lost in gathers"), static_cast<double>(remote));
  EXPECT_EQ(r.data.steps[3].bytes_sent, remote * 2048 * (1 + 2));
  EXPECT_EQ(r.data.steps[4].bytes_sent, healthy.data.steps[4].bytes_sent);
}

TEST(GatherFailure, HoldsItsGroupOnly) {
  const std::vector<std::string> two{"parallel.ep=4"};
  const MemoryRun healthy = run_of("", two);
  const MemoryRun r =
      run_of(R"({kind="gather_failure",gpu="gpu2",timeout="50 us",step=3,lasts=1})", two);
  EXPECT_EQ(metric(r, "failed gathers"), 2);
  EXPECT_GE(phase(r, 3, 1, Phase::kWait), 100 * kUs);
  EXPECT_EQ(phase(r, 3, 5, Phase::kCombine), phase(healthy, 3, 5, Phase::kCombine));
}

TEST(MisSharding, SendsRowsOnUntilACheckBringsTheWeightsHome) {
  const std::vector<std::string> often{"faults.check_every=4"};
  const MemoryRun healthy = run_of("");
  const MemoryRun r = run_of(R"({kind="mis_sharding",expert=3,layer=0,gpu="gpu6",step=1})", often);
  std::uint64_t rows = 0;
  for (std::uint32_t s = 0; s < 8; ++s) {
    const std::uint64_t here = r.data.layer_experts[0].kept[s * 8 + 3];
    const std::uint64_t more = s >= 1 && s < 4 ? here * 2 * 2048 : s == 4 ? kExpert : 0;
    rows += s >= 1 && s < 4 ? here : 0;
    EXPECT_EQ(r.data.steps[s].bytes_sent, healthy.data.steps[s].bytes_sent + more) << s;
  }
  EXPECT_GT(rows, 0U);
  EXPECT_EQ(metric(r, "assignments sent on"), static_cast<double>(rows));
  EXPECT_EQ(memory(r, 2, 3, run::MemoryCategory::kExperts), kExpert);
  EXPECT_EQ(memory(r, 2, 6, run::MemoryCategory::kExperts), 3 * kExpert);
  EXPECT_EQ(memory(r, 5, 3, run::MemoryCategory::kExperts), 2 * kExpert);
  EXPECT_EQ(memory(r, 5, 6, run::MemoryCategory::kExperts), 2 * kExpert);
  // The kernel itself is as long there as here.
  EXPECT_EQ(r.data.totals.expert_time_ps[3], healthy.data.totals.expert_time_ps[3]);
  EXPECT_GT(duration(r, 2), duration(healthy, 2));
  EXPECT_EQ(duration(r, 6), duration(healthy, 6));
  EXPECT_NE(events_of(r).find("1 misplaced expert"), std::string::npos) << events_of(r);
}

TEST(MisSharding, OfTheRightGpuOrOfACopyIsRefused) {
  const auto says = [](std::vector<std::string> more) {
    try {
      (void)test::run_in_memory(
          faulty(R"({kind="mis_sharding",expert=3,gpu="gpu3",step=1})", std::move(more)), nullptr);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(says({}).find("gpu3 is where expert 3 belongs"), std::string::npos) << says({});
  const std::vector<std::string> twice{"parallel.placement=eplb",
                                       "parallel.placement_options.redundant=8"};
  EXPECT_NE(says(twice).find("unsupported with several copies"), std::string::npos) << says(twice);
}

TEST(HostStall, AddsToTheHostOfOneGpuOrOfAll) {
  const MemoryRun healthy = run_of("");
  const MemoryRun one = run_of(R"({kind="host_stall",gpu="gpu1",stall="50 us",step=3})");
  EXPECT_EQ(phase(one, 3, 1, Phase::kHost), phase(healthy, 3, 1, Phase::kHost) + 50 * kUs);
  EXPECT_EQ(phase(one, 3, 2, Phase::kHost), phase(healthy, 3, 2, Phase::kHost));
  EXPECT_EQ(duration(one, 4), duration(healthy, 4));
  const MemoryRun all = run_of(R"({kind="host_stall",stall="50 us",step=3})");
  EXPECT_EQ(duration(all, 3), duration(healthy, 3) + 50 * kUs);
}

TEST(KvLeak, GrowsUntilTheGpuIsFullAndIsDiagnosed) {
  const MemoryRun r = run_of(R"({kind="kv_leak",gpu="gpu7",bytes="16 GB",step=1})");
  EXPECT_EQ(memory(r, 3, 7, run::MemoryCategory::kRuntime), 2 * 16'000'000'000ULL);
  EXPECT_EQ(memory(r, 3, 6, run::MemoryCategory::kRuntime), 0U);
  const auto of_kind = [&](run::EventKind k) {
    return std::any_of(r.data.events.begin(), r.data.events.end(), [&](const run::Event& e) {
      return e.kind == k && e.gpu == 7 &&
             e.text.find("KV pages not given back") != std::string::npos;
    });
  };
  EXPECT_TRUE(of_kind(run::EventKind::kOutOfMemory)) << events_of(r);
  const health::Diagnosis d = health::diagnose(r.data, "r.h5");
  EXPECT_TRUE(std::any_of(d.findings.begin(), d.findings.end(),
                          [](const health::Finding& f) { return f.id == "leak"; }));
}

TEST(Faults, OneThatNeverBeginsIsNoted) {
  const auto notes = [](const std::string& events) {
    std::vector<std::string> out;
    for (const std::string& n : run_of(events, {"workload.steps=4"}).result.notes) {
      if (n.find("never begins") != std::string::npos) out.push_back(n);
    }
    return out;
  };
  const auto late = notes(R"({kind="slow_expert",expert=6,factor=2,step=4},)"
                          R"({kind="slow_gpu",gpu="gpu1",factor=2,time="1 h"})");
  ASSERT_EQ(late.size(), 2U);
  EXPECT_NE(
      late[0].find(": slow_expert never begins: the run has 4 steps, the last of which begins"),
      std::string::npos)
      << late[0];
  EXPECT_NE(late[1].find("slow_gpu"), std::string::npos) << late[1];
  // The last step counts, and so does a chance.
  EXPECT_TRUE(notes(R"({kind="slow_expert",expert=6,factor=2,step=3},)"
                    R"({kind="slow_gpu",gpu="gpu1",factor=2,time="0 s"},)"
                    R"({kind="host_stall",stall="1 us",probability=1e-9})")
                  .empty());
}

TEST(Faults, AreTheSameInEveryRun) {
  const std::string events =
      R"({kind="slow_gpu",factor=2,probability=0.05,lasts=2},{kind="gpu_loss",gpu="gpu3",step=2,lasts=3})";
  const MemoryRun a = run_of(events), b = run_of(events);
  EXPECT_EQ(events_of(a), events_of(b));
  ASSERT_EQ(a.data.steps.size(), b.data.steps.size());
  EXPECT_EQ(a.data.steps.back().end_ps, b.data.steps.back().end_ps);
}

TEST(FaultKeys, AreRefusedWithTheirPlace) {
  EXPECT_EQ(
      refusal(R"({kind="gpu_los",gpu="gpu3",step=1})"),
      "--set: faults.events[0].kind = \"gpu_los\": unknown value; did you mean \"gpu_loss\"?");
  EXPECT_EQ(refusal(R"({kind="gpu_loss",gpu="gpu9",step=1})"),
            "--set: faults.events[0].gpu = \"gpu9\": the hardware has no GPU of that name; did you "
            "mean \"gpu0\"?");
  EXPECT_EQ(refusal(R"({kind="gpu_loss",gpu="gpu3"})"),
            "--set: faults.events[0].step is missing; say when: step, time or probability");
  EXPECT_EQ(refusal(R"({kind="slow_gpu",gpu="gpu3",step=1,factor=0.5})"),
            "--set: faults.events[0].factor = 0.5. Violated: 1 <= factor <= 1000000");
  EXPECT_EQ(refusal(R"({kind="slow_gpu",gpu="gpu3",step=1,factor=2,link="gpu0--switch"})"),
            "--set: faults.events[0].link = \"gpu0--switch\": means nothing for a slow_gpu");
  EXPECT_EQ(refusal(R"({kind="gather_failure",gpu="gpu3",step=1})"),
            "--set: faults.events[0].timeout is missing");
  EXPECT_EQ(refusal(R"({kind="hot_gpu",gpu="gpu3",step=1,factor=1.5})"),
            "--set: faults.events[0].factor = 1.5. Violated: 0 < factor <= 1");
  EXPECT_NE(refusal(R"({kind="hot_gpu",gpu="gpu3",step=1,factor=0.5})", {"faults.retries=2"})
                .find("faults.retries = 2: means nothing without a gather_failure"),
            std::string::npos);
  EXPECT_NE(refusal(R"({kind="mis_sharding",expert=1,gpu="gpu3",step=1},)" + kLoss)
                .find("mis_sharding beside gpu_loss"),
            std::string::npos);
  EXPECT_NE(refusal(kLoss, {"parallel.attention=hub"})
                .find("unsupported with reaction = \"migrate\" "
                      "and attention = \"hub\""),
            std::string::npos);
  EXPECT_NE(refusal(kLoss, {"network.algorithm=ring"}).find("its relays may be the lost GPU"),
            std::string::npos);
}

namespace {
// Two stages of four GPUs, one layer each: experts 2g and 2g + 1 of layer 0 on GPU g, of layer 1 on
// GPU 4 + g.
const std::vector<std::string> kStages{"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4",
                                       "parallel.ep=4", "parallel.micro_batches=2"};
MemoryRun staged(const std::string& events, std::vector<std::string> more = {}) {
  std::vector<std::string> set = kStages;
  set.insert(set.end(), more.begin(), more.end());
  return run_of(events, set);
}
}  // namespace

TEST(FaultsOfStages, ActInTheStageOfTheirGpu) {
  const MemoryRun healthy = staged("");
  const MemoryRun slow = staged(R"({kind="slow_gpu",gpu="gpu5",factor=3,step=3,lasts=1})");
  EXPECT_EQ(phase(slow, 3, 5, Phase::kExpert), 3 * phase(healthy, 3, 5, Phase::kExpert));
  EXPECT_EQ(phase(slow, 3, 1, Phase::kExpert), phase(healthy, 3, 1, Phase::kExpert));
  EXPECT_GT(duration(slow, 3), duration(healthy, 3));
  EXPECT_EQ(duration(slow, 4), duration(healthy, 4));
  const MemoryRun expert = staged(R"({kind="slow_expert",expert=5,layer=1,factor=4,step=0})");
  EXPECT_EQ(expert.data.totals.expert_time_ps[8 + 5],
            4 * healthy.data.totals.expert_time_ps[8 + 5]);
  EXPECT_EQ(expert.data.totals.expert_time_ps[5], healthy.data.totals.expert_time_ps[5]);
  // The stage's holder loads it, the other stage has no such layer.
  const MemoryRun flip =
      staged(R"({kind="bit_flip",expert=5,layer=1,step=1})", {"faults.check_every=4"});
  EXPECT_NEAR(metric(flip, "recovery time"), kExpert / 1e10 * 1e3, 1e-6);
  EXPECT_GT(metric(flip, "assignments on damaged weights"), 0);
  const MemoryRun leak = staged(R"({kind="kv_leak",gpu="gpu6",bytes="1 MB",step=0})");
  EXPECT_EQ(memory(leak, 7, 6, run::MemoryCategory::kRuntime) -
                memory(healthy, 7, 6, run::MemoryCategory::kRuntime),
            7'000'000U);
  const MemoryRun stall = staged(R"({kind="host_stall",stall="1 ms",step=2,lasts=1})");
  EXPECT_GE(duration(stall, 2), duration(healthy, 2) + 1000 * kUs);
}

TEST(FaultsOfStages, GathersFailInEveryMicroBatch) {
  const MemoryRun healthy = staged("");
  const MemoryRun r =
      staged(R"({kind="gather_failure",gpu="gpu6",timeout="30 us",step=2,lasts=1})");
  EXPECT_EQ(metric(r, "failed gathers"), 2) << "two micro-batches, one layer in the stage";
  EXPECT_GT(duration(r, 2), duration(healthy, 2) + 30 * kUs);
  const MemoryRun astray =
      staged(R"({kind="mis_sharding",expert=0,gpu="gpu7",step=2})", {"faults.check_every=4"});
  EXPECT_GT(metric(astray, "assignments sent on"), 0);
  EXPECT_EQ(phase(astray, 3, 3, Phase::kExpert), phase(healthy, 3, 3, Phase::kExpert));
  const auto says = [](const std::string& events, const char* part) {
    try {
      (void)staged(events);
      ADD_FAILURE() << "no error";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says(R"({kind="gather_failure",gpu="gpu6",timeout="30 us",layer=0,step=2})",
       "MoE layer 0 is of another stage than gpu6");
  says(R"({kind="mis_sharding",expert=0,layer=0,gpu="gpu7",step=2})",
       "or of another stage than its layers");
  EXPECT_NE(refusal(kLoss, kStages).find("no other GPU has the layers of the stage"),
            std::string::npos);
}

TEST(FaultsOfStages, ALostGpuRestartsAndItsSequencesBeginAnewInAllStages) {
  for (const char* gpu : {"gpu1", "gpu5"}) {
    const MemoryRun r = staged(std::string(R"({kind="gpu_loss",gpu=")") + gpu + R"(",step=2})",
                               {"faults.reaction=restart", "faults.restart=1 ms"});
    // A quarter of 16 sequences: 1,024 tokens of context and 2 steps' each.
    EXPECT_EQ(metric(r, "tokens recomputed"), 4 * 1026) << gpu;
    EXPECT_GE(duration(r, 2), 1100 * kUs) << gpu;
    const MemoryRun cable =
        staged(std::string(R"({kind="link_down",link=")") + gpu + R"(--switch",step=2})",
               {"faults.reaction=restart", "faults.restart=1 ms"});
    EXPECT_EQ(metric(cable, "tokens recomputed"), 4 * 1026) << gpu;
  }
  const MemoryRun thin =
      staged(R"({kind="link_degraded",link="gpu5--switch",factor=0.01,step=2,lasts=1})");
  EXPECT_GT(duration(thin, 2), duration(thin, 1));
}

TEST(FaultsOfHalves, GoWithTwoBatchOverlap) {
  const std::vector<std::string> halves{"network.two_batch=true", "network.comm_sms=20 %"};
  const MemoryRun healthy = run_of("", halves);
  const MemoryRun slow = run_of(R"({kind="slow_gpu",gpu="gpu5",factor=3,step=3,lasts=1})", halves);
  EXPECT_NEAR(static_cast<double>(phase(slow, 3, 5, Phase::kExpert)),
              3.0 * static_cast<double>(phase(healthy, 3, 5, Phase::kExpert)), 1e5)
      << "beside the slower kernels of the overlap";
  const MemoryRun expert =
      run_of(R"({kind="slow_expert",expert=5,layer=1,factor=4,step=0})", halves);
  EXPECT_EQ(expert.data.totals.expert_time_ps[8 + 5],
            4 * healthy.data.totals.expert_time_ps[8 + 5]);
  const MemoryRun lost = run_of(kLoss, halves);
  for (std::uint32_t s = 2; s < 8; ++s) EXPECT_EQ(phase(lost, s, 3, Phase::kExpert), 0) << s;
  EXPECT_EQ(metric(lost, "tokens recomputed"), 2 * 1026);
  const MemoryRun flip = run_of(R"({kind="bit_flip",expert=2,layer=0,step=1})", halves);
  EXPECT_GT(metric(flip, "assignments on damaged weights"), 0);
  const MemoryRun thin =
      run_of(R"({kind="link_degraded",link="gpu5--switch",factor=0.001,step=2,lasts=1})", halves);
  EXPECT_GT(duration(thin, 2), duration(thin, 1));
}

namespace {
const std::vector<std::vector<std::string>> kParts{{"network.two_batch=true"},
                                                   {"network.chunks=2"}};
}  // namespace

TEST(FaultsOfParts, AGatherFailsInEachChunkOrHalf) {
  const std::string fails =
      R"({kind="gather_failure",gpu="gpu2",layer=1,timeout="50 us",tries=2,step=3,lasts=1})";
  for (std::vector<std::string> set : kParts) {
    set.emplace_back("network.dispatch=per_expert");
    const MemoryRun healthy = run_of("", set), r = run_of(fails, set);
    EXPECT_EQ(metric(r, "failed gathers"), 2 * 2) << set[0];
    EXPECT_EQ(metric(r, "assignments lost in gathers"), 0);
    const auto combine = [](const MemoryRun& m, std::size_t step) {
      return m.data.layer_steps.combine_ps[step * 2 + 1];
    };
    EXPECT_EQ(combine(r, 3), 3 * combine(healthy, 3)) << set[0];
    EXPECT_EQ(combine(r, 4), combine(healthy, 4));
    // Four tries, one after another on the wires; the first ones may begin beside experts.
    EXPECT_GE(duration(r, 3) + combine(healthy, 3) + healthy.data.layer_steps.expert_ps[3 * 2 + 1],
              duration(healthy, 3) + 4 * 50 * kUs)
        << set[0];
    EXPECT_LE(duration(r, 3), duration(healthy, 3) + 4 * 50 * kUs + 2 * combine(healthy, 3));
    EXPECT_EQ(duration(r, 4), duration(healthy, 4));
    EXPECT_EQ(r.data.steps[3].straggler_gpu, 2U);
    EXPECT_EQ(r.data.steps[3].straggler_reason, run::StragglerReason::kFault);
  }
}

TEST(FaultsOfParts, AGatherThatIsGivenUpLosesTheSameAssignments) {
  const std::string fails =
      R"({kind="gather_failure",gpu="gpu2",timeout="50 us",tries=5,step=3,lasts=1})";
  const MemoryRun whole = run_of(fails, {"faults.retries=1", "network.dispatch=per_expert"});
  EXPECT_GT(metric(whole, "assignments lost in gathers"), 0);
  for (std::vector<std::string> set : kParts) {
    set.insert(set.end(), {"faults.retries=1", "network.dispatch=per_expert"});
    const MemoryRun r = run_of(fails, set);
    EXPECT_EQ(metric(r, "failed gathers"), 2 * 2 * 2) << set[0];
    EXPECT_EQ(metric(r, "assignments lost in gathers"),
              metric(whole, "assignments lost in gathers"));
    EXPECT_EQ(r.data.steps[3].bytes_sent, whole.data.steps[3].bytes_sent) << set[0];
  }
}

TEST(FaultsOfParts, RowsOfAnExpertElsewhereTravelWithTheirChunkOrHalf) {
  const std::vector<std::string> often{"faults.check_every=4"};
  const std::string lies = R"({kind="mis_sharding",expert=3,layer=0,gpu="gpu6",step=1})";
  const MemoryRun whole = run_of(lies, often);
  for (std::vector<std::string> set : kParts) {
    const MemoryRun healthy = run_of("", set);
    set.insert(set.end(), often.begin(), often.end());
    const MemoryRun r = run_of(lies, set);
    EXPECT_EQ(metric(r, "assignments sent on"), metric(whole, "assignments sent on")) << set[0];
    for (std::uint32_t s = 0; s < 8; ++s) {
      EXPECT_EQ(r.data.steps[s].bytes_sent, whole.data.steps[s].bytes_sent) << set[0] << s;
    }
    EXPECT_GT(duration(r, 2), duration(healthy, 2)) << set[0];
    EXPECT_EQ(duration(r, 6), duration(healthy, 6)) << set[0];
    // Its rows are computed where it lies.
    EXPECT_GT(phase(r, 2, 6, Phase::kExpert), phase(healthy, 2, 6, Phase::kExpert)) << set[0];
  }
  // Of chunks by experts in the one of its group: as many rows, and here as many bytes.
  std::vector<std::string> groups{"network.chunks=2", "network.chunk_by=experts"};
  groups.insert(groups.end(), often.begin(), often.end());
  const MemoryRun r = run_of(lies, groups);
  EXPECT_EQ(metric(r, "assignments sent on"), metric(whole, "assignments sent on"));
  EXPECT_EQ(r.data.steps[2].bytes_sent, whole.data.steps[2].bytes_sent);
}

TEST(FaultsOfStages, AnAlarmMovesASequenceInAllStages) {
  const MemoryRun r =
      staged("", {"workload.batch=17", R"(monitor.alarms=[{signal="memory",above="0 %",window=2,)"
                                       R"(action="migrate_kv"}])"});
  EXPECT_NE(events_of(r).find("sequence 0 moves from gpu0 to gpu1"), std::string::npos)
      << events_of(r);
  EXPECT_LT(memory(r, 3, 4, run::MemoryCategory::kKv), memory(r, 1, 4, run::MemoryCategory::kKv))
      << "its pages of the second stage went, too";
}

// The worked machine with a host of its own: what a GPU loads again must be in there. Two experts
// of 12,582,912 B a GPU beside the rest of the model.
TEST(GpuLoss, ComesBackFromAHostThatHasItsWeights) {
  const auto with = [](const std::string& memory, const std::string& more,
                       std::vector<std::string> settings = {}) -> std::string {
    settings.insert(
        settings.begin(),
        {"workload.routing={synthetic=\"uniform\"}", "workload.batch=16", "workload.steps=8",
         R"(hardware.devices=[{name="gpu",count=8,kind="gpu",type="toy"},{name="sw",kind="nvswitch"},)"
         R"({name="cpu",kind="cpu",memory=")" +
             memory + R"("}])",
         R"(hardware.links=[{from="gpu[0-7]",to="sw",type="cable"},)"
         R"({from="cpu",to="sw",class="pcie4",bandwidth="10 GB/s",latency="1 us"}])",
         "faults.events=[" + more + "]"});
    try {
      const MemoryRun r = test::run_in_memory(test::worked_scenario(settings), nullptr);
      EXPECT_TRUE(r.result.violations.empty());
      return "runs";
    } catch (const InputError& e) {
      return e.what();
    }
  };
  const std::string back = R"({kind="gpu_loss",gpu="gpu3",step=2,lasts=2})";
  EXPECT_EQ(with("1 GB", back, {"faults.detection=100 us"}), "runs");
  const std::string small = with("1 MB", back, {"faults.detection=100 us"});
  EXPECT_NE(small.find("the weights of gpu3 take"), std::string::npos) << small;
  EXPECT_NE(small.find("cpu has 976.56 KiB"), std::string::npos) << small;
  EXPECT_NE(small.find("state faults.reload"), std::string::npos) << small;
  // From elsewhere at a stated rate.
  EXPECT_EQ(with("1 MB", back, {"faults.detection=100 us", "faults.reload=10 GB/s"}), "runs");
  // A GPU that stays away: each of its two experts goes to a survivor, one at a time or both.
  const std::string away = with("1 MB", kLoss, {"faults.detection=100 us"});
  EXPECT_NE(away.find("cpu has 976.56 KiB"), std::string::npos) << away;
  EXPECT_EQ(with("26 MB", kLoss, {"faults.detection=100 us"}), "runs");
  // One damaged expert of one layer.
  const std::string flip = R"({kind="bit_flip",expert=3,layer=1,step=2})";
  EXPECT_EQ(with("12.6 MB", flip, {"faults.check_every=4"}), "runs");
  EXPECT_NE(with("12.5 MB", flip, {"faults.check_every=4"}), "runs");
}

// Two sockets: the far one is named first.
TEST(GpuLoss, ComesBackFromTheNearestSocket) {
  const auto with = [](const std::string& far, const std::string& near) -> std::string {
    try {
      static_cast<void>(test::run_in_memory(
          test::worked_scenario(
              {"workload.routing={synthetic=\"uniform\"}", "workload.batch=16", "workload.steps=8",
               R"(hardware.devices=[{name="gpu",count=8,kind="gpu",type="toy"},)"
               R"({name="sw",kind="nvswitch"},{name="far",kind="cpu",memory=")" +
                   far + R"("},{name="near",kind="cpu",memory=")" + near + R"("}])",
               R"(hardware.links=[{from="gpu[0-7]",to="sw",type="cable"},)"
               R"({from="near",to="sw",class="pcie4",bandwidth="10 GB/s",latency="1 us"},)"
               R"({from="far",to="near",class="pcie4",bandwidth="40 GB/s",latency="1 us"}])",
               "faults.detection=100 us",
               R"(faults.events=[{kind="gpu_loss",gpu="gpu3",step=2,lasts=2}])"}),
          nullptr));
      return "runs";
    } catch (const InputError& e) {
      return e.what();
    }
  };
  EXPECT_EQ(with("1 MB", "1 GB"), "runs");
  EXPECT_NE(with("1 GB", "1 MB").find("near has 976.56 KiB"), std::string::npos);
}

TEST(FaultKeys, NeedARateWhereTheHardwareHasNoHost) {
  try {
    (void)test::worked_scenario(
        {"workload.routing={synthetic=\"uniform\"}", "faults.events=[" + kLoss + "]"});
    ADD_FAILURE() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("faults.reload is missing: the hardware has no cpu"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace switchyard::sim
