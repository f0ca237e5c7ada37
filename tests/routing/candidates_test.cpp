// SPDX-License-Identifier: Apache-2.0
// Golden vectors of engines.md 1.9 and the bug reports of engines.md 5 that concern the gate.
#include "engine/routing/candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
// The golden numbers are printed with 7 digits; half a unit of the last digit plus fp32 rounding.
constexpr double kGolden = 3e-7;

std::vector<int> ids(const LayerDecision& d, std::uint32_t t = 0) {
  const auto begin = d.first.begin() + static_cast<std::ptrdiff_t>(row_offset(t, d.slots));
  return {begin, begin + d.slots};
}

void expect_weights(const LayerDecision& d, const std::vector<double>& want,
                    double tolerance = kGolden) {
  ASSERT_EQ(d.weights.size(), want.size());
  for (std::size_t j = 0; j < want.size(); ++j) {
    EXPECT_NEAR(d.weights[j], want[j], tolerance * std::max(1.0, want[j])) << "slot " << j;
  }
}

TEST(GateGolden, SoftmaxOfTheFourLogits) {
  const std::vector<float> z{1, 3, 2, 0};
  const GateSpec gate = gate_qwen(4, 2, false);
  const Candidates c = ranked(gate, z);
  EXPECT_EQ(c.ids, (std::vector<std::uint16_t>{1, 2, 0, 3}));
  const double want[] = {0.6439143, 0.2368828, 0.0871443, 0.0320586};
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_NEAR(gate_probability(gate, c.logit[r], c.lse[0]), want[r], kGolden);
  }
}

// engines.md 1.9, and 5, row 6 (sglang#35160): the renormalise flag decides, both values are
// pinned.
TEST(IssueRow6, EveryFamilyOnTheFourLogitsWithItsOwnRenormalisation) {
  const std::vector<float> z{1, 3, 2, 0};
  const std::vector<int> idx{1, 2};
  const RoutingPolicy plain;
  for (const GateSpec& gate : {gate_mixtral(4, 2), gate_gpt_oss(4, 2), gate_qwen(4, 2, true)}) {
    const LayerDecision d = route(gate, plain, z);
    EXPECT_EQ(ids(d), idx);
    expect_weights(d, {0.7310586, 0.2689414});
  }
  const LayerDecision raw = route(gate_qwen(4, 2, false), plain, z);
  EXPECT_EQ(ids(raw), idx);
  expect_weights(raw, {0.6439143, 0.2368828});
  const LayerDecision sigmoid = route(gate_deepseek_v3(4, 2, 1, 1, 1.0F), plain, z);
  EXPECT_EQ(ids(sigmoid), idx);
  expect_weights(sigmoid, {0.5195752, 0.4804248});
}

const std::vector<float> kEight{-2, -1.5F, .5F, .25F, -.5F, 1, -3, 2};

TEST(IssueRow4, DeepSeekV3KeepsItsGroupsUnderANegativeBias) {
  const std::vector<float> bias(8, -0.9F);
  GateSpec gate = gate_deepseek_v3(8, 3, 4, 2, 2.5F);
  const LayerDecision d = route(gate, {}, kEight, bias);
  EXPECT_EQ(ids(d), (std::vector<int>{5, 2, 3}));
  expect_weights(d, {0.9540386, 0.8123155, 0.7336458});
  // engines.md 5, row 4 (transformers#45440): with the mask value 0.0 experts of unselected groups
  // win.
  gate.group_mask = GroupMask::kZero;
  EXPECT_EQ(ids(route(gate, {}, kEight, bias)), (std::vector<int>{0, 1, 6}));
}

TEST(GateGolden, DeepSeekV2ScalesInsteadOfRenormalising) {
  const LayerDecision d = route(gate_deepseek_v2(8, 3, 4, 2, 16.0F), {}, kEight);
  EXPECT_EQ(ids(d), (std::vector<int>{7, 5, 4}));
  expect_weights(d, {8.4116691, 3.0944801, 0.6904718});
  // With norm_topk_prob the weights sum to 1 and the scale is not applied (1.5).
  const LayerDecision n = route(gate_deepseek_v2(8, 3, 4, 2, 16.0F, true), {}, kEight);
  EXPECT_NEAR(n.weights[0] + n.weights[1] + n.weights[2], 1.0, 1e-6);
  // k = 1 takes the else-branch even with norm_topk_prob: 16 * p.
  const LayerDecision one = route(gate_deepseek_v2(8, 1, 4, 2, 16.0F, true), {}, kEight);
  expect_weights(one, {8.4116691});
}

// engines.md 5, row 1 (vllm#39391): a NaN row gives k distinct ids and finite weights, and is
// counted.
TEST(IssueRow1, ARowOfNanGivesDistinctIdsAndFiniteWeights) {
  std::vector<float> z(16, kNan);
  std::iota(z.begin() + 8, z.end(), 0.0F);
  for (const GateSpec& gate : {gate_mixtral(8, 2), gate_deepseek_v3(8, 2, 4, 2), gate_gpt_oss(8, 2),
                               gate_deepseek_v2(8, 2, 4, 2, 16.0F)}) {
    const Candidates c = ranked(gate, z);
    EXPECT_EQ(c.nan_rows, 1U);
    const Step step(2);
    const LayerDecision d = decided(gate, {}, step.context, c);
    EXPECT_EQ(ids(d, 0), (std::vector<int>{0, 1}));
    EXPECT_EQ(ids(d, 1), (std::vector<int>{7, 6}));
    for (const float w : d.weights) {
      EXPECT_TRUE(std::isfinite(w));
    }
    EXPECT_EQ(d.weights[0], 0.0F);
    EXPECT_GT(d.weights[2], 0.0F);
  }
}

TEST(IssueRow1, OneNanOrInfiniteLogitNeverReachesTheSelection) {
  for (const float broken : {kNan, kInf}) {
    const LayerDecision d = route(gate_mixtral(4, 2), {}, {broken, 1, 2, 0});
    EXPECT_EQ(ids(d), (std::vector<int>{2, 1}));
    EXPECT_NEAR(d.weights[0] + d.weights[1], 1.0, 1e-6);
    EXPECT_EQ(ranked(gate_mixtral(4, 2), {broken, 1, 2, 0}).nan_rows, 1U);
  }
  // -inf is a legal mask and is not flagged.
  EXPECT_EQ(ranked(gate_mixtral(4, 2), {-kInf, 1, 2, 0}).nan_rows, 0U);
  // A NaN bias removes its expert instead of poisoning the order.
  const LayerDecision d = route(gate_deepseek_v3(4, 2, 1, 1), {}, {3, 1, 2, 0}, {kNan, 0, 0, 0});
  EXPECT_EQ(ids(d), (std::vector<int>{2, 1}));
}

// engines.md 5, row 3 (aiter#4636): id -1 (kNoExpert) is no expert.
TEST(IssueRow3, PaddingTokensHaveNoSlotsAndNoLoad) {
  Candidates c = ranked(gate_mixtral(4, 2), {1, 3, 2, 0, 1, 3, 2, 0, 1, 3, 2, 0});
  std::fill(c.ids.begin() + 4, c.ids.begin() + 8, kNoExpert);
  const Step step(3);
  for (const char* policy : {"capacity.rule=none", "capacity.rule=absolute capacity.absolute=1",
                             "capacity.rule=absolute capacity.absolute=1 capacity.mode=rounds"}) {
    const LayerDecision d = decided(gate_mixtral(4, 2), policy_of(policy), step.context, c);
    EXPECT_EQ(show(d, 1), "- -");
    EXPECT_EQ(d.assignments, 4U);
    EXPECT_EQ(d.demand, (std::vector<std::uint32_t>{0, 2, 2, 0}));
    EXPECT_EQ(d.weights[2], 0.0F);
    EXPECT_EQ(d.weights[3], 0.0F);
    EXPECT_EQ(std::accumulate(d.load.begin(), d.load.end(), 0U) + d.dropped, 4U);
  }
}

// engines.md 5, row 5 (vllm#12002): weights come from the unbiased scores.
TEST(IssueRow5, ABiasSelectsAnExpertButNeverEntersItsWeight) {
  const GateSpec gate = gate_deepseek_v3(4, 2, 1, 1, 1.0F);
  const LayerDecision d = route(gate, {}, {1, 3, 2, 0}, {0, 0, 0, 10});
  EXPECT_EQ(ids(d), (std::vector<int>{3, 1}));
  const double s3 = 0.5;
  const double s1 = 1 / (1 + std::exp(-3.0));
  expect_weights(d, {s3 / (s3 + s1), s1 / (s3 + s1)});
}

// engines.md 5, row 7 (megablocks#87): top-1 normalisation is per token.
TEST(IssueRow7, TopOneRenormalisationGivesWeightOneForEveryToken) {
  const LayerDecision d = route(gate_mixtral(4, 1), {}, {1, 3, 2, 0, 5, 1, 1, 1, -9, 0, 0, 0});
  EXPECT_EQ(d.weights, (std::vector<float>{1, 1, 1}));
}

// engines.md 5, row 9 (vllm#52679): ties go to the lower id; ids and weights come from the same
// pick; ids above 255.
TEST(IssueRow9, TiesGoToTheLowerId) {
  EXPECT_EQ(ids(route(gate_mixtral(8, 2), {}, std::vector<float>(8, 0.25F))),
            (std::vector<int>{0, 1}));
  // Tie at the k boundary: 5 first, then one of the equal 1, 3, 6.
  EXPECT_EQ(ids(route(gate_mixtral(8, 2), {}, {0, 1, 0, 1, 0, 2, 1, 0})), (std::vector<int>{5, 1}));
  // p[3] = p[7] = .3, p[11] = .2: the answer is {3, 7}.
  std::vector<float> z(32, -5.0F);
  z[3] = z[7] = std::log(0.3F);
  z[11] = std::log(0.2F);
  EXPECT_EQ(ids(route(gate_mixtral(32, 2), {}, z)), (std::vector<int>{3, 7}));
  EXPECT_EQ(ids(route(gate_mixtral(32, 2), {}, std::vector<float>(32, 0.0F))),
            (std::vector<int>{0, 1}));
  // E = 512 with few stored candidates (another code path than a full sort).
  std::vector<float> wide(512, 0.0F);
  wide[300] = wide[511] = 1.0F;
  const Candidates c = ranked(gate_mixtral(512, 3), wide);
  EXPECT_EQ(c.ids, (std::vector<std::uint16_t>{300, 511, 0, 1, 2}));
  const LayerDecision d = route(gate_mixtral(512, 3), {}, wide);
  EXPECT_EQ(d.weights[0], d.weights[1]);
  EXPECT_GT(d.weights[1], d.weights[2]);
}

TEST(IssueRow9, TiesOfGroupsGoToTheLowerGroup) {
  EXPECT_EQ(ids(route(gate_deepseek_v3(8, 3, 4, 2), {}, std::vector<float>(8, 0.0F))),
            (std::vector<int>{0, 1, 2}));
}

// 1.5: scores are > 0, so V2's mask value 0.0 is safe unless exp underflows; then it is a tie.
TEST(IssueRow9, AnUnderflowedScoreTiesWithTheZeroMaskOfDeepSeekV2) {
  // Group 1 (experts 2, 3) is kept; exp(-1000) = 0 for expert 3, and 0, 1 are masked with 0.0.
  const LayerDecision d = route(gate_deepseek_v2(4, 2, 2, 1, 1.0F), {}, {-50, -50, 0, -1000});
  EXPECT_EQ(ids(d), (std::vector<int>{2, 0}));
}

// engines.md 5, row 10 (vllm#14027, sglang#33764): the selection sees fp32. 1.001 and 1.002 are one
// bf16 number.
TEST(IssueRow10, LogitsThatDifferOnlyInFp32AreTold) {
  EXPECT_EQ(ids(route(gate_mixtral(4, 1), {}, {1.001F, 1.002F, 0, 0})), (std::vector<int>{1}));
  // Even where fp32 probabilities would tie: both round to 1/2.
  const float up = std::nextafter(10.0F, 11.0F);
  EXPECT_EQ(ids(route(gate_mixtral(2, 1), {}, {10.0F, up})), (std::vector<int>{1}));
}

TEST(Candidates, StoredWidthKeepsTwoSparesAndAllOfSixtyFour) {
  EXPECT_EQ(stored_candidates(8, 2), 8U);
  EXPECT_EQ(stored_candidates(64, 6), 64U);
  EXPECT_EQ(stored_candidates(128, 8), 10U);
  EXPECT_EQ(stored_candidates(65, 65), 65U);
}

TEST(Candidates, LseCoversAllExpertsWhateverTheWidth) {
  Draw draw(7);
  const std::vector<float> z = draw.logits(200);
  double sum = 0;
  for (const float v : z) {
    sum += std::exp(static_cast<double>(v));
  }
  EXPECT_NEAR(ranked(gate_mixtral(200, 2), z).lse[0], std::log(sum), 1e-6);
  EXPECT_EQ(ranked(gate_mixtral(200, 2), z).lse, ranked(gate_mixtral(200, 2), z, {}, 200).lse);
}

TEST(Candidates, APartialRankingIsThePrefixOfTheFullOne) {
  Draw draw(11);
  for (int round = 0; round < 50; ++round) {
    const std::uint32_t experts = 65 + draw.below(200);
    std::vector<float> z(experts);
    for (float& v : z) {
      v = static_cast<float>(draw.below(20));  // many ties
    }
    const GateSpec gate = gate_mixtral(experts, 1 + draw.below(8));
    const Candidates few = ranked(gate, z);
    const Candidates all = ranked(gate, z, {}, experts);
    ASSERT_TRUE(std::equal(few.ids.begin(), few.ids.end(), all.ids.begin()));
    std::vector<std::uint16_t> want(experts);
    std::iota(want.begin(), want.end(), std::uint16_t{0});
    std::stable_sort(want.begin(), want.end(), [&](auto a, auto b) { return z[a] > z[b]; });
    ASSERT_EQ(all.ids, want);
  }
}

TEST(Candidates, ScalingAllLogitsKeepsTheOrder) {
  Draw draw(13);
  for (int round = 0; round < 30; ++round) {
    const std::vector<float> z = draw.logits(64);
    const Candidates base = ranked(gate_mixtral(64, 4), z);
    for (const float factor : {0.25F, 3.0F, 100.0F}) {
      std::vector<float> scaled = z;
      for (float& v : scaled) {
        v *= factor;
      }
      EXPECT_EQ(ranked(gate_mixtral(64, 4), scaled).ids, base.ids) << "factor " << factor;
    }
  }
}

TEST(Candidates, GroupedCandidatesStartWithAllExpertsOfTheKeptGroups) {
  Draw draw(17);
  for (int round = 0; round < 50; ++round) {
    const GateSpec gate = gate_deepseek_v3(32, 4, 8, 3);
    std::vector<float> bias(32);
    for (float& b : bias) {
      b = static_cast<float>(draw.uniform() - 0.5);
    }
    const Candidates c = ranked(gate, draw.logits(32), bias);
    std::set<int> groups;
    for (std::size_t r = 0; r < 12; ++r) {
      groups.insert(c.ids[r] / 4);
    }
    EXPECT_EQ(groups.size(), 3U);
    EXPECT_TRUE(std::is_sorted(c.ids.begin() + 12, c.ids.end()));  // -inf ties: lower id
  }
}

TEST(Candidates, ZeroTokensAreNoRows) {
  const Candidates c = ranked(gate_mixtral(8, 2), {});
  EXPECT_EQ(c.tokens, 0U);
  EXPECT_TRUE(c.ids.empty());
}

}  // namespace
}  // namespace switchyard
