// SPDX-License-Identifier: Apache-2.0
// M17's keywords, M18's re-ranking, M19 and M21: small pure parts of pipeline step 10.
#include <gtest/gtest.h>

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

using Floats = std::vector<float>;

Row batch(const Floats& p, std::uint32_t experts, std::size_t k) {
  std::vector<double> sum;
  Row set(k);
  batch_level_set(p, experts, sum, set);
  return set;
}

// Sums: 0: .375+.125 = .5, 1: .25+.25 = .5, 2: .25+.375 = .625, 3: .375 -> 2, then 0 (tie with 1).
TEST(BatchSet, IsTheTopOfTheSummedProbabilities) {
  EXPECT_EQ(batch({.375F, .25F, .25F, .125F, .125F, .25F, .375F, .25F}, 4, 2), (Row{2, 0}));
}

TEST(BatchSet, TiesGoToTheLowerId) { EXPECT_EQ(batch(Floats(8, .25F), 4, 3), (Row{0, 1, 2})); }

// One token: its own top-k. No token: 0…k-1.
TEST(BatchSet, OneTokenGetsItsOwnChoice) {
  EXPECT_EQ(batch({.1F, .2F, .4F, .3F}, 4, 2), (Row{2, 3}));
  EXPECT_EQ(batch({}, 4, 2), (Row{0, 1}));
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

// routing.md: ties go to the lower id, whatever tier 1 preferred.
TEST(TwoTier, TiesGoToTheLowerIdAndNanScoresComeLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Ranked r({{.1F, .4F, .2F, .3F}}, 2);
  EXPECT_TRUE(rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{1, 1, 1, 1}, r.at(0)));
  EXPECT_EQ(r.set(0), (std::vector<int>{0, 1}));
  rerank_proposed(r.view.row(0), 3, 2, std::vector<float>{9, 1, 1, 1}, r.at(0));  // 0 not proposed
  EXPECT_EQ(r.set(0), (std::vector<int>{1, 2}));
  rerank_proposed(r.view.row(0), 4, 2, std::vector<float>{0, nan, 0, nan}, r.at(0));
  EXPECT_EQ(r.set(0), (std::vector<int>{0, 2}));
  // Expert 0 is closed: it comes after those with the worst score.
  Ranked closed({{-inf, .4F, .2F, .3F}}, 3);
  rerank_proposed(closed.view.row(0), 4, 3, std::vector<float>{5, nan, -inf, nan}, closed.at(0));
  EXPECT_EQ(closed.set(0), (std::vector<int>{1, 2, 3}));
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

}  // namespace
}  // namespace switchyard
