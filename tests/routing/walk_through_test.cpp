// SPDX-License-Identifier: Apache-2.0
// M68: the twelve-token walk-through. An article routes twelve tokens to two of sixteen experts
// each and lists who gets what, beginning with [[3,7],[3,11],[5,9]…; the list is cut off there. The
// first three tokens are the article's, the other nine are ours, chosen so that expert 3 is wanted
// by seven of twelve.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

struct Token {
  std::uint16_t first, second, third;
};
constexpr std::array<Token, 12> kTokens{{{3, 7, 11},
                                         {3, 11, 7},
                                         {5, 9, 3},
                                         {3, 7, 5},
                                         {7, 3, 11},
                                         {11, 3, 7},
                                         {0, 3, 7},
                                         {5, 7, 9},
                                         {9, 5, 3},
                                         {14, 2, 3},
                                         {3, 5, 9},
                                         {7, 11, 3}}};

/// p = .48, .24, .12 for the three named experts; the other thirteen share the rest, lower ids
/// more.
LayerDecision walk(const std::string& policy) {
  Rows rows;
  for (const Token& t : kTokens) {
    std::vector<double> p(16, 0.0);
    double left = 0.16;
    for (std::size_t e = 0; e < 16; ++e) {
      if (e != t.first && e != t.second && e != t.third) {
        p[e] = left * 0.25;
        left -= p[e];
      }
    }
    p[t.first] = 0.48;
    p[t.second] = 0.24;
    p[t.third] = 0.12;
    rows.push_back(p);
  }
  return route(gate_mixtral(16, 2), policy_of(policy), log_rows(rows));
}

/// Tokens that run on each expert, in order; experts without any are left out.
std::map<int, std::vector<int>> guests(const LayerDecision& d) {
  std::map<int, std::vector<int>> out;
  for (int t = 0; t < 12; ++t) {
    for (int j = 0; j < 2; ++j) {
      const std::uint16_t e = d.chosen[static_cast<std::size_t>(2 * t + j)];
      if (e != kNoExpert) {
        out[e].push_back(t);
      }
    }
  }
  return out;
}

using Guests = std::map<int, std::vector<int>>;

TEST(WalkThrough, WithoutALimitEveryTokenGetsItsTwoExperts) {
  const LayerDecision d = walk("");
  EXPECT_EQ(show(d),
            "3K 7K | 3K 11K | 5K 9K | 3K 7K | 7K 3K | 11K 3K | 0K 3K | 5K 7K | 9K 5K | 14K 2K | "
            "3K 5K | 7K 11K");
  EXPECT_EQ(guests(d), (Guests{{0, {6}},
                               {2, {9}},
                               {3, {0, 1, 3, 4, 5, 6, 10}},
                               {5, {2, 7, 8, 10}},
                               {7, {0, 3, 4, 7, 11}},
                               {9, {2, 8}},
                               {11, {1, 5, 11}},
                               {14, {9}}}));
  // .48 and .24 renormalised.
  EXPECT_NEAR(d.weights[0], 2.0 / 3, 1e-6);
  EXPECT_NEAR(d.weights[1], 1.0 / 3, 1e-6);
  EXPECT_EQ(d.kept, 24U);
}

TEST(WalkThrough, AFairShareOfTwoSendsTheRestToTheNextCandidate) {
  // ceil(1.0 * 12 * 2 / 16) = 2 places per expert.
  const LayerDecision d = walk("capacity.rule=share");
  EXPECT_EQ(d.capacity, 2U);
  EXPECT_EQ(show(d),
            "3K 7K | 3K 11K | 5K 9K | 5R 7K | 11R 0R | 0R 1R | 1R 2R | 9R 2R | 4R 6R | 14K 4R | "
            "6R 8R | 8R 10R");
  // Token 3 finds expert 3 taken by tokens 0 and 1 and goes to its third choice, 5.
  EXPECT_EQ(guests(d), (Guests{{0, {4, 5}},
                               {1, {5, 6}},
                               {2, {6, 7}},
                               {3, {0, 1}},
                               {4, {8, 9}},
                               {5, {2, 3}},
                               {6, {8, 10}},
                               {7, {0, 3}},
                               {8, {10, 11}},
                               {9, {2, 7}},
                               {10, {11}},
                               {11, {1, 4}},
                               {14, {9}}}));
  EXPECT_EQ(d.kept + d.rerouted, 24U);
  EXPECT_EQ(d.dropped, 0U);
  // Token 3 runs 5 (p = .12) and 7 (.24).
  EXPECT_NEAR(d.weights[6], 1.0 / 3, 1e-6);
  EXPECT_NEAR(d.weights[7], 2.0 / 3, 1e-6);
}

TEST(WalkThrough, WithoutRerouteWhoComesLateLosesTheSlot) {
  const LayerDecision d = walk("capacity.rule=share capacity.reroute=none");
  // Places go to the first two that ask: 3 to tokens 0, 1; 7 to 0, 3; 5 to 2, 7; 9 to 2, 8; 11 to
  // 1, 5.
  EXPECT_EQ(guests(d), (Guests{{0, {6}},
                               {2, {9}},
                               {3, {0, 1}},
                               {5, {2, 7}},
                               {7, {0, 3}},
                               {9, {2, 8}},
                               {11, {1, 5}},
                               {14, {9}}}));
  EXPECT_EQ(d.kept, 13U);
  EXPECT_EQ(d.dropped, 11U);
  EXPECT_EQ(d.overflow[3], 5U);                 // Tokens 3, 4, 5, 6, 10.
  for (const std::size_t t : {4U, 10U, 11U}) {  // residual only
    EXPECT_EQ(d.chosen[2 * t], kNoExpert);
    EXPECT_EQ(d.chosen[2 * t + 1], kNoExpert);
  }
}

}  // namespace
}  // namespace switchyard
