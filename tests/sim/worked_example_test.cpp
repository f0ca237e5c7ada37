// SPDX-License-Identifier: Apache-2.0
// The worked example of sim/README.md: 8 GPUs, 2 layers, 4 tokens, one expert per GPU. Every term
// of the step time is computed by hand there; here each is compared in picoseconds. 1 TB/s of HBM
// is one byte per picosecond, so byte counts are times.
#include <gtest/gtest.h>

#include "sim/cost/cost.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace {

using switchyard::run::Phase;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers

constexpr std::int64_t kLaunch = 1'000'000;  // 1 us

std::int64_t phase(const switchyard::run::StepScalars& s, Phase p) {
  return s.phase_ps[static_cast<std::size_t>(p)];
}

}  // namespace

TEST(WorkedExample, EveryOperationByHand) {
  const auto s = worked_scenario();
  const switchyard::sim::CostModel cost(s.model, s.dtype, s.activations, s.hardware.gpu_type(0));
  // T·H·(w + a) = 1·1024·4
  EXPECT_EQ(cost.embedding(1).time.ps(), kLaunch + 4'096);
  // norm 4,096 · QKV 1,572,864 weights · 2 B + 5,120 · RoPE 6,144 · core 1,025 tokens · 1,024 B +
  // 4,096 · output 1,048,576 weights · 2 B + 6,144
  const switchyard::sim::SequenceWork one[] = {{1, 1024}};
  EXPECT_EQ(cost.attention(0, one).time.ps(),
            5 * kLaunch + 4'096 + 3'150'848 + 6'144 + 1'053'696 + 2'103'296);
  // norm 4,096 · gate 1024·8·4 + 2,048 + 32 · top-k 32 · permute 3·2,048
  EXPECT_EQ(cost.router(1, 1).time.ps(), 4 * kLaunch + 4'096 + 34'848 + 32 + 6'144);
  // one expert: 3·1024·2048·2 B of weights, 2·(1024+2048)·2 B per row
  for (const std::uint32_t rows : {1U, 2U, 4U}) {
    const std::uint32_t local[] = {rows};
    EXPECT_EQ(cost.experts(local).time.ps(), 2 * kLaunch + 12'582'912 + 12'288 * rows) << rows;
    EXPECT_EQ(cost.expert_alone(rows).ps(), 12'582'912 + 12'288 * rows);
  }
  // Stacked: two local experts, one soft token on expert 0, one other row on expert 1. Grouped
  // gate+up of one expert 8,388,608 + 6,144; stacked 2·8,388,608 + (1024 + 2·2048)·2; down
  // 2·4,194,304 + 2·6,144.
  const std::uint32_t both[] = {1, 1};
  const std::uint32_t soft[] = {1, 0};
  EXPECT_EQ(cost.experts_stacked(both, soft, 1).time.ps(),
            3 * kLaunch + 8'394'752 + 16'787'456 + 8'400'896);
  EXPECT_EQ(cost.experts_stacked(both, {}, 0).time.ps(), cost.experts(both).time.ps());
  const std::uint32_t idle[] = {0};
  EXPECT_EQ(cost.experts(idle).time.ps(), 0);
  // (k + 2)·H·2
  EXPECT_EQ(cost.combine_sum(1).time.ps(), kLaunch + 8'192);
  // norm 4,096 · 1024·8192·2 + 2,048 + 32,768 · sampling 32,768
  EXPECT_EQ(cost.head(1).time.ps(), 3 * kLaunch + 4'096 + 16'812'032 + 32'768);
}

TEST(WorkedExample, EveryTermOfTheStep) {
  // Token t belongs to GPU t; expert e lives on GPU e.
  const auto trace =
      decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const MemoryRun r = run_in_memory(worked_scenario(), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  ASSERT_EQ(r.data.steps.size(), 1U);
  const auto& step = r.data.steps[0];
  const auto& layers = r.data.layer_steps;

  EXPECT_EQ(phase(step, Phase::kHost), 11'000'000);              // 10 us + 1 us for one sequence
  EXPECT_EQ(phase(step, Phase::kHead), 1'004'096 + 19'848'896);  // embedding, head
  EXPECT_EQ(phase(step, Phase::kAttention), 2 * 11'318'080);
  EXPECT_EQ(phase(step, Phase::kRouter), 2 * 4'045'120);
  // Layer 0: three copies of 2,048 B into GPU 1: 6,144 B at 100 GB/s + 2 us of path.
  EXPECT_EQ(layers.dispatch_ps[0], 2'000'000 + 61'440);
  EXPECT_EQ(layers.combine_ps[0], 2'000'000 + 61'440);
  // Layer 1: two copies at most on any link.
  EXPECT_EQ(layers.dispatch_ps[1], 2'000'000 + 40'960);
  EXPECT_EQ(layers.combine_ps[1], 2'000'000 + 40'960);
  EXPECT_EQ(phase(step, Phase::kDispatch), 2'061'440 + 2'040'960);
  EXPECT_EQ(layers.expert_ps[0], 14'632'064);  // GPU 1: four rows
  EXPECT_EQ(layers.expert_ps[1], 14'607'488);  // GPUs 5, 6, 7: two rows
  EXPECT_EQ(phase(step, Phase::kExpert), 14'632'064 + 14'607'488);
  EXPECT_EQ(phase(step, Phase::kCombine), 2'061'440 + 2'040'960 + 2 * 1'008'192);
  // Layer 0: GPU 1 takes three copies on its link, and its lateness (four rows) is less than that.
  EXPECT_EQ(layers.straggler_gpu[0], 1U);
  EXPECT_EQ(layers.straggler_reason[0],
            static_cast<std::uint8_t>(switchyard::run::StragglerReason::kLoad));
  EXPECT_EQ(step.end_ps - step.start_ps, 102'040'128);

  // 8 copies a layer, less what stays at home (t0→0 and t1→1 in layer 0).
  EXPECT_EQ(step.bytes_sent, 2 * (6 + 8) * 2048U);  // dispatch and combine
  EXPECT_FLOAT_EQ(layers.imbalance[0], 4.0F * 8 / 8);
  EXPECT_FLOAT_EQ(layers.imbalance[1], 2.0F * 8 / 8);
  EXPECT_EQ(layers.distinct_experts[0], 5U);
  EXPECT_EQ(layers.distinct_experts[1], 5U);
  EXPECT_EQ(step.assignments, 16U);
  EXPECT_EQ(step.kept, 16U);
}

TEST(WorkedExample, TheFlowModelAgreesWhereOneLinkDecides) {
  // Layer 0: all three flows into GPU 1 share its link and end together, as in the closed form.
  const auto trace =
      decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const MemoryRun r = run_in_memory(worked_scenario({"network.model=flow"}), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 2'061'440);
  EXPECT_LE(r.data.steps[0].end_ps, 102'040'128);
}
