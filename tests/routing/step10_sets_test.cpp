// SPDX-License-Identifier: Apache-2.0
// M17's keywords, M18's re-ranking, M19 and M21: small pure parts of pipeline step 10.
#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "engine/routing/batch_set.hpp"
#include "engine/routing/round_robin.hpp"
#include "engine/routing/soft_routing.hpp"
#include "engine/routing/two_tier.hpp"
#include "tests/routing/step10_helpers.hpp"

namespace switchyard {
namespace {

using Row = std::vector<std::uint16_t>;
using Words = std::vector<std::string>;

// ---- M19 ---------------------------------------------------------------------------------------

// E = 5, k = 2: {0,1} {2,3} {4,0} {1,2} …; the counter goes on where the last step ended.
TEST(RoundRobin, IdsContinueAcrossTokensAndSteps) {
  Row row(3);
  std::uint32_t counter = 0;
  const Row expected[] = {
      {0, 1, kNoExpert}, {2, 3, kNoExpert}, {4, 0, kNoExpert}, {1, 2, kNoExpert}};
  for (const Row& e : expected) {
    counter = round_robin_set(5, 2, counter, row);
    EXPECT_EQ(row, e);
  }
  EXPECT_EQ(counter, 3U);
}

TEST(RoundRobin, LoadsDifferByAtMostOne) {
  std::vector<int> load(7, 0);
  Row row(3);
  std::uint32_t counter = 0;
  for (int t = 0; t < 100; ++t) {
    counter = round_robin_set(7, 3, counter, row);
    for (const std::uint16_t e : row) {
      ++load[e];
    }
    EXPECT_LE(
        *std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
        1);
  }
}

TEST(RoundRobin, AllExpertsOfAModelThatUsesAll) {
  Row row(2);
  EXPECT_EQ(round_robin_set(2, 2, 1, row), 1U);
  EXPECT_EQ(row, (Row{1, 0}));
}

// ---- M21 ---------------------------------------------------------------------------------------

// Sums: 0: .4+.1 = .5, 1: .3+.2 = .5, 2: .2+.4 = .6, 3: .1+.3 = .4 -> 2, then 0 (tie with 1).
TEST(BatchSet, IsTheTopOfTheSummedProbabilities) {
  Ranked r({{.4F, .3F, .2F, .1F}, {.1F, .2F, .4F, .3F}}, 2);
  std::vector<double> sum;
  Row set(2);
  batch_level_set(r.view, sum, set);
  EXPECT_NEAR(sum[2], .6, 1e-6);
  EXPECT_EQ(set[0], 2);
}

TEST(BatchSet, TiesGoToTheLowerId) {
  Ranked r({{.25F, .25F, .25F, .25F}, {.25F, .25F, .25F, .25F}}, 2);
  std::vector<double> sum;
  Row set(3);
  batch_level_set(r.view, sum, set);
  EXPECT_EQ(set, (Row{0, 1, 2}));
}

// One token: its own top-k. No token: 0…k-1.
TEST(BatchSet, OneTokenGetsItsOwnChoice) {
  Ranked r({{.1F, .2F, .4F, .3F}}, 2);
  std::vector<double> sum;
  Row set(2);
  batch_level_set(r.view, sum, set);
  EXPECT_EQ(set, (Row{2, 3}));
  Ranked none({}, 2);
  batch_level_set(none.view, sum, set);
  EXPECT_EQ(set, (Row{0, 1}));
}

// M < E: an expert outside the stored candidates adds nothing.
TEST(BatchSet, ExpertsOutsideTheStoredCandidatesCountAsZero) {
  const Row ids{3, 1, 3, 0};
  const std::vector<float> p{.5F, .25F, .5F, .125F};
  const RankedTokens view{2, 2, 5, ids, p, p};
  std::vector<double> sum;
  Row set(3);
  batch_level_set(view, sum, set);
  EXPECT_EQ(set, (Row{3, 1, 0}));
  EXPECT_EQ(view.row(0).place(0), view.row(0).size());
  EXPECT_EQ(view.row(1).place(0), 1U);
}

// ---- M18 ---------------------------------------------------------------------------------------

// Tier 1 proposes 0, 1, 2, 3 (k = 2); the scorer likes 3, then 1.
TEST(TwoTier, TheScorerPicksAmongTheProposed) {
  Ranked r({{.4F, .3F, .2F, .1F, .0F}}, 2);
  EXPECT_TRUE(rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{0, 1, .5F, 2, 9}, r.at(0)));
  EXPECT_EQ(r.set(0), (std::vector<int>{3, 1}));  // 4 was not proposed
}

TEST(TwoTier, ASetThatOnlyChangesOrderIsUnchanged) {
  Ranked r({{.4F, .3F, .2F, .1F}}, 2);
  EXPECT_FALSE(rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{1, 2, 0, 0}, r.at(0)));
  EXPECT_EQ(r.set(0), (std::vector<int>{1, 0}));
}

TEST(TwoTier, TiesAndNanScoresFallBackToTierOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Ranked r({{.1F, .4F, .2F, .3F}}, 2);
  EXPECT_FALSE(rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{1, 1, 1, 1}, r.at(0)));
  EXPECT_EQ(r.set(0), (std::vector<int>{1, 3}));
  rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{0, nan, 0, nan}, r.at(0));
  EXPECT_EQ(r.set(0), (std::vector<int>{2, 0}));
}

// ---- M17 ---------------------------------------------------------------------------------------

TEST(SoftRouting, FindsKeywordsIgnoringCase) {
  const Words words{"Poem", "头脑风暴"};
  EXPECT_TRUE(holds_keyword(words, "Write me a pOEMs collection"));  // a substring is enough
  EXPECT_TRUE(holds_keyword(words, "我们来头脑风暴一下"));
  EXPECT_FALSE(holds_keyword(words, "Write me a letter"));
  EXPECT_FALSE(holds_keyword(words, ""));
  EXPECT_FALSE(holds_keyword({}, "poem"));
}

TEST(SoftRouting, KeywordListsSurviveTheOneLineText) {
  const Words words{"a poem", "50%|half", "x=y", "头脑"};
  const std::string text = keywords_to_text(words);
  EXPECT_EQ(text, "a%20poem|50%25%7Chalf|x%3Dy|头脑");
  EXPECT_EQ(keywords_from_text(text, "t"), words);
}

TEST(SoftRouting, RefusesEmptyKeywordsAndBadEscapes) {
  for (const char* bad : {"", "a||b", "a|", "%", "%4", "%zz", "a%2|b"}) {
    EXPECT_THROW((void)keywords_from_text(bad, "t"), InputError) << bad;
  }
}

}  // namespace
}  // namespace switchyard
