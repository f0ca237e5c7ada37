// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/capacity.hpp"

#include <gtest/gtest.h>

#include "engine/routing/policy.hpp"

namespace switchyard {
namespace {

/// Capacity of T decode tokens of S sequences.
std::uint32_t capacity(const char* policy, std::uint64_t tokens, std::uint32_t experts,
                       std::uint32_t top_k, std::uint64_t sequences = 1) {
  const RoutingPolicy p = policy_from_text(policy, "test");
  validate(p, experts, top_k, "test");
  ScopeCounts counts;
  counts.tokens = {0, tokens, 0};
  counts.sequences = {0, sequences, 0};
  counts.step_sequences = sequences;
  return expert_capacity(p.capacity, counts, experts, top_k);
}

// M06: T = 1024, k = 2, E = 8: 1024 * 2 / 8 = 256; times 1.25 = 320.
TEST(ExpertCapacity, ShareOfTheEvenSplit) {
  EXPECT_EQ(capacity("capacity.rule=share", 1024, 8, 2), 256U);
  EXPECT_EQ(capacity("capacity.rule=share capacity.factor=1.25", 1024, 8, 2), 320U);
  // ceil(1.25 * 10 * 2 / 4) = ceil(6.25)
  EXPECT_EQ(capacity("capacity.rule=share capacity.factor=1.25", 10, 4, 2), 7U);
}

TEST(ExpertCapacity, FactorsAreDecimalsNotDoubles) {
  // 1.1 * 10 is 11 on paper and 11.000000000000002 in doubles.
  EXPECT_EQ(capacity("capacity.rule=share capacity.factor=1.1", 10, 1, 1), 11U);
  // 0.29 * 100 is 29 on paper and 28.999999999999996 in doubles.
  EXPECT_EQ(capacity("capacity.rule=batch_tokens capacity.factor=0.29", 100, 8, 2), 29U);
}

// engines.md 2.1, "Same input S=10, E=4, k=2, cf=1.25, 1 rank".
TEST(ExpertCapacity, EverySystemOnTheSameInput) {
  EXPECT_EQ(capacity("capacity.rule=mesh capacity.factor=1.25", 10, 4, 2), 4U);
  EXPECT_EQ(capacity("capacity.rule=flaxformer capacity.factor=1.25", 10, 4, 2), 4U);
  EXPECT_EQ(capacity("capacity.rule=deepspeed capacity.factor=1.25", 10, 4, 2), 7U);
  EXPECT_EQ(capacity("capacity.rule=megatron capacity.factor=1.25", 10, 4, 2), 7U);
  EXPECT_EQ(capacity("capacity.rule=tutel capacity.factor=1.25", 10, 4, 2), 6U);
  EXPECT_EQ(capacity("capacity.rule=megablocks capacity.factor=1.25", 10, 4, 2), 6U);
  EXPECT_EQ(capacity("capacity.rule=fairseq_train", 10, 4, 2), 6U);
  EXPECT_EQ(capacity("capacity.rule=fastmoe_gshard capacity.factor=1.2", 10, 4, 2), 6U);
}

TEST(ExpertCapacity, OtherRulesByHand) {
  // fastmoe_switch: ceil(1.2 * 10 / 4) = 3; fairseq_eval: int(0.25 * 10) = 2.
  EXPECT_EQ(capacity("capacity.rule=fastmoe_switch capacity.factor=1.2", 10, 4, 1), 3U);
  EXPECT_EQ(capacity("capacity.rule=fairseq_eval capacity.factor=0.25", 10, 4, 2), 2U);
  // deepspeed k = 1: ceil(1.25 * 10 / 4) = 4 (min 4); k = 4: ceil(2.5 * 5) = 13.
  EXPECT_EQ(capacity("capacity.rule=deepspeed capacity.factor=1.25", 10, 4, 1), 4U);
  EXPECT_EQ(capacity("capacity.rule=deepspeed capacity.factor=1.25", 10, 4, 4), 13U);
  // mesh never exceeds the group, but the minimum of 4 comes last: max(min(2, 8), 4).
  EXPECT_EQ(capacity("capacity.rule=mesh capacity.factor=16", 2, 4, 2), 4U);
  EXPECT_EQ(capacity("capacity.rule=mesh capacity.factor=16", 6, 4, 2), 6U);
  // flaxformer rounds half to even: 18 * 1 / 4 = 4.5 -> 4; 22 / 4 = 5.5 -> 6.
  EXPECT_EQ(capacity("capacity.rule=flaxformer", 18, 4, 1), 4U);
  EXPECT_EQ(capacity("capacity.rule=flaxformer", 22, 4, 1), 6U);
  // absolute: S0's 64 in prefill.
  EXPECT_EQ(capacity("capacity.rule=absolute capacity.absolute=64", 4096, 16, 2), 64U);
  EXPECT_EQ(capacity("capacity.rule=none", 10, 4, 2), kUnlimitedCapacity);
  // megablocks: a result of 0 is "dropless".
  EXPECT_EQ(capacity("capacity.rule=megablocks capacity.factor=0", 10, 4, 2), kUnlimitedCapacity);
}

TEST(ExpertCapacity, BatchRules) {
  EXPECT_EQ(capacity("capacity.rule=batch_tokens capacity.factor=1.25", 10, 4, 2, 3), 12U);
  EXPECT_EQ(capacity("capacity.rule=batch_seqs capacity.factor=1.25", 10, 4, 2, 3), 3U);
  // Ours have a floor of 1, so that a step always moves.
  EXPECT_EQ(capacity("capacity.rule=batch_seqs capacity.factor=0.1", 10, 4, 2, 3), 1U);
  EXPECT_EQ(
      capacity("capacity.rule=batch_seqs capacity.factor=0.1 capacity.min_capacity=0", 10, 4, 2, 3),
      0U);
}

TEST(ExpertCapacity, MinimumAndAlignmentComeLast) {
  EXPECT_EQ(capacity("capacity.rule=share capacity.min_capacity=16", 8, 8, 2), 16U);
  EXPECT_EQ(capacity("capacity.rule=tutel capacity.factor=1.25 capacity.alignment=4", 10, 4, 2),
            8U);
  EXPECT_EQ(capacity("capacity.rule=deepspeed capacity.min_capacity=8", 4, 4, 1), 8U);
}

TEST(ExpertCapacity, TutelFollowsTheDemandForFactorsBelowOrAtZero) {
  const auto tutel = [](const char* factor, std::uint64_t demand) {
    CapacityPolicy p =
        policy_from_text(std::string("capacity.rule=tutel capacity.factor=") + factor, "test")
            .capacity;
    ScopeCounts counts;
    counts.tokens = {0, 10, 0};
    counts.largest_demand = demand;
    return expert_capacity(p, counts, 4, 2);
  };
  EXPECT_EQ(tutel("0", 9), 9U);
  EXPECT_EQ(tutel("-1.25", 9), 6U);
  EXPECT_EQ(tutel("-1.25", 5), 5U);
}

// routing.md M07: 16 -> 1.04, 32 -> 1.05 (limit 33), 64 -> 1.06 (67), 128 -> 1.07 (136), 256
// -> 1.08 (276).
TEST(DynamicCapacity, LogarithmOfTheBatch) {
  const std::uint64_t batch[] = {16, 32, 64, 128, 256};
  const double factor[] = {1.04, 1.05, 1.06, 1.07, 1.08};
  const std::uint32_t limit[] = {16, 33, 67, 136, 276};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(log2_capacity_factor(batch[i]), factor[i], 1e-12);
    EXPECT_EQ(capacity("capacity.rule=batch_seqs capacity.dynamic=log2", batch[i], 16, 2, batch[i]),
              limit[i]);
  }
  EXPECT_EQ(log2_capacity_factor(0), 1.0);
  EXPECT_EQ(log2_capacity_factor(1), 1.0);
}

// A mixed step applies each factor to its own tokens' share: C = sum over phases.
// share, E = 4, k = 2: prefill 80 tokens at 1.0 -> 40; decode 16 at 1.25 -> 10.
TEST(DynamicCapacity, PhasesAddUp) {
  const CapacityPolicy p =
      policy_from_text("capacity.rule=share capacity.dynamic=phase", "test").capacity;
  ScopeCounts counts;
  counts.tokens = {80, 0, 0};
  EXPECT_EQ(expert_capacity(p, counts, 4, 2), 40U);
  counts.tokens = {0, 16, 0};
  EXPECT_EQ(expert_capacity(p, counts, 4, 2), 10U);
  counts.tokens = {80, 16, 0};
  EXPECT_EQ(expert_capacity(p, counts, 4, 2), 50U);
  counts.tokens = {70, 16, 10};  // warm-up counts as prefill
  EXPECT_EQ(expert_capacity(p, counts, 4, 2), 50U);
}

TEST(CapacityGroupSize, SplitsEvenlyAsMeshTensorFlowDoes) {
  EXPECT_EQ(capacity_group_size(0, 1024), 1U);
  EXPECT_EQ(capacity_group_size(10, 1024), 10U);
  EXPECT_EQ(capacity_group_size(2048, 1024), 1024U);
  // 3000 // 1024 = 2 groups of 1500: larger than asked for, as in _split_into_groups.
  EXPECT_EQ(capacity_group_size(3000, 1024), 1500U);
  EXPECT_EQ(capacity_group_size(3001, 1024), 1U);     // prime: groups of one
  EXPECT_EQ(capacity_group_size(3003, 1024), 1001U);  // 2 does not divide, 3 does
  EXPECT_EQ(capacity_group_size(7, 4), 7U);
}

}  // namespace
}  // namespace switchyard
