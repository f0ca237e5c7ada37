// SPDX-License-Identifier: Apache-2.0
// M12, worked by hand from routing.md.
#include "engine/routing/soft_balance.hpp"

#include <gtest/gtest.h>

#include "tests/routing/step10_helpers.hpp"

namespace switchyard {
namespace {

using Set = std::vector<int>;
const std::vector<float> kFalling{.4F, .3F, .2F, .1F};

SoftBalancePolicy on(std::uint32_t limit) {
  SoftBalancePolicy policy;
  policy.limit = limit;
  return policy;
}

struct Outcome {
  SoftBalanceCounts counts;
  std::vector<std::uint32_t> queue;
};

Outcome run(const SoftBalancePolicy& policy, Ranked& ranked,
            const std::vector<std::uint32_t>& backlog = {}, const std::vector<double>& free = {},
            bool third_for_all = false) {
  Outcome out;
  out.queue = backlog;
  out.queue.resize(ranked.view.experts, 0);
  for (std::uint32_t t = 0; t < ranked.view.tokens; ++t) {
    soft_balance(policy, {ranked.view.row(t), out.queue, free, third_for_all}, ranked.at(t),
                 out.counts);
    ranked.enqueue(t, out.queue);
  }
  return out;
}

// Limit 2, k = 2, four equal tokens. q_0 before t: 0 1 2 3 -> only t3 finds q > 2 ("strictly").
// t3 moves slot 0 to expert 2 (q = 0) and slot 1 to expert 3.
TEST(SoftBalance, LeavesAnExpertWhoseQueueIsStrictlyAboveTheLimit) {
  Ranked r({kFalling, kFalling, kFalling, kFalling}, 2);
  const Outcome o = run(on(2), r);
  EXPECT_EQ(r.set(0), (Set{0, 1}));
  EXPECT_EQ(r.set(2), (Set{0, 1}));
  EXPECT_EQ(r.set(3), (Set{2, 3}));
  EXPECT_EQ(o.counts.replaced, 2U);
  EXPECT_EQ(o.counts.stuck, 0U);
  EXPECT_EQ(o.queue, (std::vector<std::uint32_t>{3, 3, 1, 1}));
}

TEST(SoftBalance, TheQueueBeginsWithTheBacklog) {
  Ranked r({kFalling}, 2);
  run(on(128), r, {129, 128, 0, 0});
  EXPECT_EQ(r.set(0), (Set{2, 1}));  // 129 > 128 leaves, 128 stays
}

// Expert 2 is the first candidate not in the set, but its queue is above its limit too: expert 3.
TEST(SoftBalance, TakesTheFirstCandidateWithRoom) {
  Ranked r({kFalling}, 2);
  run(on(10), r, {11, 0, 11, 10});
  EXPECT_EQ(r.set(0), (Set{3, 1}));
}

TEST(SoftBalance, StaysWhenNoCandidateIsFree) {
  Ranked r({kFalling}, 2);
  const Outcome o = run(on(10), r, {11, 11, 11, 11});
  EXPECT_EQ(r.set(0), (Set{0, 1}));
  EXPECT_EQ(o.counts.stuck, 2U);
  EXPECT_EQ(o.counts.replaced, 0U);
}

// Masked experts are no targets: 2 and 3 have a selection of -inf.
TEST(SoftBalance, NeverTakesAMaskedExpert) {
  const float inf = std::numeric_limits<float>::infinity();
  Ranked r({{.6F, .4F, -inf, -inf}}, 2);
  run(on(0), r, {1, 1, 0, 0});
  EXPECT_EQ(r.set(0), (Set{0, 1}));
}

// 19 % free: limit 64, so a queue of 100 leaves; 20 % free keeps the limit of 128.
TEST(SoftBalance, TheLimitIsLowerWhereMemoryIsLow) {
  Ranked r({kFalling}, 2);
  run(on(128), r, {100, 100, 0, 0}, {0.19, 0.20, 0.5, 0.5});
  EXPECT_EQ(r.set(0), (Set{2, 1}));
}

// Free < 10 % on the GPU of a chosen expert: three experts run; exactly 10 % does not count.
TEST(SoftBalance, ActivatesAThirdExpertWhenMemoryIsShort) {
  Ranked r({kFalling, {.1F, .2F, .3F, .4F}}, 2, 3);
  const Outcome o = run(on(128), r, {}, {0.5, 0.09, 0.10, 0.5});
  EXPECT_EQ(r.set(0), (Set{0, 1, 2}));  // expert 1 is short
  EXPECT_EQ(r.set(1), (Set{3, 2}));     // experts 3 and 2 are not
  EXPECT_EQ(o.counts.third, 1U);
}

// choose: of {0, 1, 2} with queues 5, 7, 6 the longest goes; order of preference is kept.
TEST(SoftBalance, ChooseKeepsTheTwoShortestQueuesOfThree) {
  SoftBalancePolicy policy = on(128);
  policy.k3 = ThirdExpert::kChoose;
  Ranked r({kFalling}, 2);
  const Outcome o = run(policy, r, {5, 7, 6, 0}, {0.5, 0.09, 0.5, 0.5});
  EXPECT_EQ(r.set(0), (Set{0, 2}));
  EXPECT_EQ(o.counts.third, 1U);
}

// All three queues equal: the last candidate goes, so the set is the plain top 2.
TEST(SoftBalance, ChooseWithTiesIsPlainTopTwo) {
  SoftBalancePolicy policy = on(128);
  policy.k3 = ThirdExpert::kChoose;
  Ranked r({kFalling}, 2);
  run(policy, r, {4, 4, 4, 4}, {}, true);
  EXPECT_EQ(r.set(0), (Set{0, 1}));
}

TEST(SoftBalance, TheBatchRuleTakesAThirdExpertInTheNextStep) {
  const SoftBalancePolicy policy = on(128);
  EXPECT_FALSE(third_in_next_step(policy, std::vector<std::uint32_t>{64, 3}));
  EXPECT_TRUE(third_in_next_step(policy, std::vector<std::uint32_t>{3, 65}));
  SoftBalancePolicy off = policy;
  off.batch_limit.reset();
  EXPECT_FALSE(third_in_next_step(off, std::vector<std::uint32_t>{3, 65}));
  Ranked r({kFalling}, 2, 3);
  run(policy, r, {}, {}, true);
  EXPECT_EQ(r.set(0), (Set{0, 1, 2}));
}

// All logits tied, batch of one: ties to the lower id, nothing to balance.
TEST(SoftBalance, OneTokenWithTiedExpertsKeepsTheLowestIds) {
  Ranked r({{.25F, .25F, .25F, .25F}}, 2);
  const Outcome o = run(on(0), r);
  EXPECT_EQ(r.set(0), (Set{0, 1}));
  EXPECT_EQ(o.counts.replaced, 0U);
}

TEST(SoftBalance, AStepWithoutTokensChangesNothing) {
  Ranked r({}, 2);
  const Outcome o = run(on(2), r);
  EXPECT_EQ(o.counts.replaced + o.counts.stuck + o.counts.third, 0U);
}

// Padding rows have no experts and no queue.
TEST(SoftBalance, PaddingRowsStayEmpty) {
  Ranked r({kFalling, kFalling}, 2, 3);
  std::fill(r.sets.begin(), r.sets.begin() + 3, kNoExpert);
  const Outcome o = run(on(2), r, {}, {}, true);
  EXPECT_EQ(r.set(0), Set{});
  EXPECT_EQ(r.set(1), (Set{0, 1, 2}));
  EXPECT_EQ(o.queue, (std::vector<std::uint32_t>{1, 1, 1, 0}));
}

}  // namespace
}  // namespace switchyard
