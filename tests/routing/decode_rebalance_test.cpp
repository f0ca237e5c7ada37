// SPDX-License-Identifier: Apache-2.0
// M13, worked by hand from routing.md and mechanisms.md.
#include "engine/routing/decode_rebalance.hpp"

#include <gtest/gtest.h>

#include "tests/routing/step10_helpers.hpp"

namespace switchyard {
namespace {

using Set = std::vector<int>;
using Credits = std::vector<std::uint32_t>;
const std::vector<float> kFalling{.4F, .3F, .2F, .1F};
const std::vector<double> kHotZero{0.86, 0.5, 0.6, 0.1};

DecodeRebalancePolicy on() {
  DecodeRebalancePolicy policy;
  policy.level = 0.85;
  return policy;
}

DecodeRebalanceCounts run(const DecodeRebalancePolicy& policy, Ranked& r,
                          DecodeRebalanceState& state, const std::vector<double>& level) {
  std::vector<std::uint32_t> queue(level.size(), 0);
  DecodeRebalanceCounts counts;
  for (std::uint32_t t = 0; t < r.view.tokens; ++t) {
    decode_rebalance(policy, {r.view.row(t), queue, level}, state, r.at(t), counts);
    r.enqueue(t, queue);
  }
  return counts;
}

DecodeRebalanceState due(const std::vector<double>& level) {
  DecodeRebalanceState state;
  for (int step = 0; step < 4; ++step) {
    begin_decode_step(on(), level, state);
  }
  return state;
}

TEST(DecodeRebalance, ChecksEveryFourthDecodeStep) {
  DecodeRebalanceState state;
  const Credits none{0, 0, 0, 0};
  const Credits two{2, 0, 0, 0};
  for (int step = 1; step <= 9; ++step) {
    begin_decode_step(on(), kHotZero, state);
    EXPECT_EQ(state.credit, step < 4 ? none : two) << "decode step " << step;
  }
}

// Exactly 85 % is not above 85 %.
TEST(DecodeRebalance, TheLevelIsStrict) {
  EXPECT_EQ(due({0.85, 0.851, 0.0, 1.0}).credit, (Credits{0, 2, 0, 2}));
}

// Credits are set, not added, and vanish at the next check.
TEST(DecodeRebalance, UnusedCreditsVanishAtTheNextCheck) {
  DecodeRebalanceState state = due(kHotZero);
  state.credit[0] = 1;  // one was used
  const std::vector<double> cool{0.1, 0.1, 0.1, 0.1};
  for (int step = 0; step < 3; ++step) {
    begin_decode_step(on(), cool, state);
    EXPECT_EQ(state.credit[0], 1U);
  }
  begin_decode_step(on(), cool, state);
  EXPECT_EQ(state.credit[0], 0U);
  for (int step = 0; step < 8; ++step) {
    begin_decode_step(on(), kHotZero, state);
  }
  EXPECT_EQ(state.credit[0], 2U);
}

// Top 3 = {0, 1, 2}; 1 is in the set; the cooler of 0 (.86) and 2 (.6) is 2. Two tokens pay, the
// third keeps its set.
TEST(DecodeRebalance, TheNextTwoTokensTakeTheLeastLoadedOfTheTopThree) {
  DecodeRebalanceState state = due(kHotZero);
  Ranked r({kFalling, kFalling, kFalling}, 2);
  const DecodeRebalanceCounts c = run(on(), r, state, kHotZero);
  EXPECT_EQ(r.set(0), (Set{2, 1}));
  EXPECT_EQ(r.set(1), (Set{2, 1}));
  EXPECT_EQ(r.set(2), (Set{0, 1}));
  EXPECT_EQ(c.replaced, 2U);
  EXPECT_EQ(c.credits, 2U);
  EXPECT_EQ(state.credit[0], 0U);
}

// Expert 2's GPU is hotter than expert 0's: least_loaded keeps 0 and pays; third moves all the
// same.
TEST(DecodeRebalance, LeastLoadedKeepsTheExpertWhenTheOtherIsHotter) {
  const std::vector<double> level{0.86, 0.5, 0.99, 0.1};
  DecodeRebalanceState state = due(level);
  Ranked r({kFalling}, 2);
  const DecodeRebalanceCounts c = run(on(), r, state, level);
  EXPECT_EQ(r.set(0), (Set{0, 1}));
  EXPECT_EQ(c.replaced, 0U);
  EXPECT_EQ(state.credit[0], 1U);
  DecodeRebalancePolicy third = on();
  third.target = RebalanceTarget::kThird;
  DecodeRebalanceState again = due(level);
  Ranked s({kFalling}, 2);
  EXPECT_EQ(run(third, s, again, level).replaced, 1U);
  EXPECT_EQ(s.set(0), (Set{2, 1}));
}

// k = 1: the top 3 are 0, 1, 2. Equal levels of 1 and 2: the shorter queue, then the lower id.
TEST(DecodeRebalance, TiesGoToTheShorterQueueThenTheLowerId) {
  const std::vector<double> level{0.9, 0.5, 0.5, 0.1};
  DecodeRebalanceState state = due(level);
  Ranked r({kFalling, kFalling}, 1);
  run(on(), r, state, level);
  EXPECT_EQ(r.set(0), (Set{1}));  // both queues are empty
  EXPECT_EQ(r.set(1), (Set{2}));  // q_1 = 1
}

// third with k = 1 is the third best candidate, not the second.
TEST(DecodeRebalance, ThirdIsTheThirdCandidate) {
  DecodeRebalancePolicy policy = on();
  policy.target = RebalanceTarget::kThird;
  DecodeRebalanceState state = due(kHotZero);
  Ranked r({kFalling}, 1);
  run(policy, r, state, kHotZero);
  EXPECT_EQ(r.set(0), (Set{2}));
}

// d = 0.4: expert 2 has .2 < .6 * .4 = .24: stays, credit and all. d = 0.5 (.2 >= .2): moves.
TEST(DecodeRebalance, MaxScoreDropRefusesACandidateTooFarBelow) {
  DecodeRebalancePolicy policy = on();
  policy.max_score_drop = 0.4;
  DecodeRebalanceState state = due(kHotZero);
  Ranked r({kFalling}, 2);
  run(policy, r, state, kHotZero);
  EXPECT_EQ(r.set(0), (Set{0, 1}));
  EXPECT_EQ(state.credit[0], 2U);
  policy.max_score_drop = 0.51;
  run(policy, r, state, kHotZero);
  EXPECT_EQ(r.set(0), (Set{2, 1}));
}

// k = E: there is nobody to take over, and no credit is used.
TEST(DecodeRebalance, WithoutAFreeCandidateNothingHappens) {
  const std::vector<double> level{0.9, 0.95};
  for (const RebalanceTarget target : {RebalanceTarget::kThird, RebalanceTarget::kLeastLoaded}) {
    DecodeRebalancePolicy policy = on();
    policy.target = target;
    DecodeRebalanceState state = due(level);
    Ranked r({{.6F, .4F}}, 2);
    const DecodeRebalanceCounts c = run(policy, r, state, level);
    EXPECT_EQ(r.set(0), (Set{0, 1}));
    EXPECT_EQ(c.credits, 0U);
    EXPECT_EQ(state.credit, (Credits{2, 2}));
  }
}

}  // namespace
}  // namespace switchyard
