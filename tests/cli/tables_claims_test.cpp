// SPDX-License-Identifier: Apache-2.0
// The verdict rule and the reader of claim files.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/error.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::claims {
namespace {

Claim claim(double value, Tolerance tolerance, Sign sign = Sign::kNone) {
  Claim c;
  c.id = c.row = "X01";
  c.value = value;
  c.half_unit = 0.05;
  c.tolerance = tolerance;
  c.sign = sign;
  return c;
}

Verdict at(const Claim& c, double ours, std::optional<double> trend = {}) {
  Measured m;
  m.value = ours;
  m.trend = trend;
  return verdict(c, m);
}

TEST(Verdict, ArithmeticTakesHalfAUnitOrTwoPercentWhicheverIsLarger) {
  const Claim small = claim(1.0, Tolerance::kArithmetic);  // 0.05 > 0.02
  EXPECT_EQ(at(small, 1.0499), Verdict::kReproduced);
  EXPECT_EQ(at(small, 1.0501), Verdict::kContradicted);
  const Claim large = claim(100.0, Tolerance::kArithmetic);  // 2 > 0.05
  EXPECT_EQ(at(large, 98.01), Verdict::kReproduced);
  EXPECT_EQ(at(large, 97.99), Verdict::kContradicted);
}

TEST(Verdict, RatiosTakeTwentyAndAbsolutesTwentyFivePercent) {
  EXPECT_EQ(at(claim(10, Tolerance::kRatio), 11.99), Verdict::kReproduced);
  EXPECT_EQ(at(claim(10, Tolerance::kRatio), 12.01), Verdict::kContradicted);
  EXPECT_EQ(at(claim(10, Tolerance::kAbsolute), 12.49), Verdict::kReproduced);
  EXPECT_EQ(at(claim(10, Tolerance::kAbsolute), 12.51), Verdict::kContradicted);
}

TEST(Verdict, SignAndValueTogetherDecide) {
  const Claim up = claim(10, Tolerance::kRatio, Sign::kUp);
  EXPECT_EQ(at(up, 10, 0.9), Verdict::kReproduced);
  EXPECT_EQ(at(up, 20, 0.9), Verdict::kDirection);
  EXPECT_EQ(at(up, 10, -0.9), Verdict::kContradicted);
  EXPECT_EQ(at(up, 20, -0.9), Verdict::kContradicted);
  EXPECT_EQ(at(up, 10, 0.0), Verdict::kContradicted);
  EXPECT_EQ(at(up, 10, std::nullopt), Verdict::kNotDecided) << "there is no trend to judge";
  Claim flipped = up;
  flipped.sign = Sign::kDown;
  EXPECT_EQ(at(flipped, 10, 0.9), Verdict::kContradicted);
  EXPECT_EQ(at(flipped, 20, -0.9), Verdict::kDirection);
}

TEST(Verdict, RelationsHaveNoSlack) {
  Claim c = claim(92, Tolerance::kArithmetic);
  c.relation = Relation::kAtMost;
  EXPECT_EQ(at(c, 92), Verdict::kReproduced);
  EXPECT_EQ(at(c, 92.01), Verdict::kContradicted);
  c.relation = Relation::kAtLeast;
  EXPECT_EQ(at(c, 91.99), Verdict::kContradicted);
}

TEST(Verdict, ARangeIsItsOwnTolerance) {
  const auto range = [](const std::string& more) {
    return parse_claims(
        "[[claim]]\nid = \"C55\"\nrow = \"C55d\"\nsource = \"S4\"\ntext = \"t\"\nquantity = "
        "\"q\"\nvalue = \"35\"\nunit = \"%\"\ntolerance = \"ratio\"\ndecided_by = "
        "\"simulation\"\n" +
            more,
        "x.toml");
  };
  const Claim c = range("to = \"40\"\n").front();
  EXPECT_EQ(c.printed, "35 to 40");
  EXPECT_EQ(at(c, 35), Verdict::kReproduced);
  EXPECT_EQ(at(c, 40), Verdict::kReproduced);
  EXPECT_EQ(at(c, 34.99), Verdict::kContradicted);
  EXPECT_EQ(at(c, 40.01), Verdict::kContradicted);
  EXPECT_THROW((void)range("to = \"35\"\n"), InputError) << "empty";
  EXPECT_THROW((void)range("to = \"40\"\nrelation = \">=\"\n"), InputError);
}

TEST(Verdict, PeopleAndSiliconDecideForThemselves) {
  Claim c = claim(10, Tolerance::kRatio);
  c.decided_by = DecidedBy::kHuman;
  EXPECT_EQ(verdict(c, {}), Verdict::kOutOfScope);
  EXPECT_EQ(at(c, 10), Verdict::kOutOfScope);
  c.decided_by = DecidedBy::kSilicon;
  EXPECT_EQ(verdict(c, {}), Verdict::kNeedsSilicon);
  EXPECT_EQ(at(c, 10), Verdict::kNeedsSilicon) << "a value that no device decided";
  Measured device;
  device.value = 10;
  device.on_silicon = true;
  EXPECT_EQ(verdict(c, device), Verdict::kReproduced);
  device.value = 20;
  EXPECT_EQ(verdict(c, device), Verdict::kContradicted);
}

TEST(Spearman, OrdersByRankAndAveragesTies) {
  EXPECT_DOUBLE_EQ(*spearman({1, 4, 8}, {10, 20, 1000}), 1.0);
  EXPECT_DOUBLE_EQ(*spearman({1, 4, 8}, {3, 2, 1}), -1.0);
  // Ranks 1 2 3 4 against 1 2.5 2.5 4: sum of products 4.5, sqrt(5 * 4.5).
  EXPECT_NEAR(*spearman({1, 2, 3, 4}, {5, 7, 7, 9}), 4.5 / std::sqrt(5 * 4.5), 1e-15);
  EXPECT_FALSE(spearman({1, 2, 3}, {5, 5, 5}).has_value());
  EXPECT_FALSE(spearman({1}, {5}).has_value());
}

constexpr const char* kSeries = R"([[claim]]
id = "C06"
row = "C06a"
source = "S0 3.2"
text = "activation"
quantity = "activation"
value = ["1.1", "2.30", "3"]
unit = "%"
at = [1, 16, 64]
sign = "+"
tolerance = "ratio"
decided_by = "engine"
)";

TEST(Claims, ASeriesIsOneRowPerPointAndDigitsGiveHalfAUnit) {
  const auto claims = parse_claims(kSeries, "x.toml");
  ASSERT_EQ(claims.size(), 3U);
  EXPECT_EQ(claims[1].row, "C06a@16");
  EXPECT_EQ(claims[1].value, 2.3);
  EXPECT_NEAR(claims[0].half_unit, 0.05, 1e-15);
  EXPECT_NEAR(claims[1].half_unit, 0.005, 1e-15);
  EXPECT_NEAR(claims[2].half_unit, 0.5, 1e-15);
}

TEST(Claims, ASeriesIsJudgedPointByPointWithOneTrend) {
  const auto claims = parse_claims(kSeries, "x.toml");
  Measurements m;
  m.add_series("activation", {1, 16, 64}, {1.2, 50, 60}, "");
  auto judged = judge(claims, m);
  ASSERT_EQ(judged.size(), 3U);
  EXPECT_EQ(judged[0].verdict, Verdict::kReproduced);
  EXPECT_EQ(judged[1].verdict, Verdict::kDirection);
  Measurements falling;
  falling.add_series("activation", {1, 16, 64}, {1.2, 1.1, 1.0}, "");
  for (const auto& j : judge(claims, falling)) {
    EXPECT_EQ(j.verdict, Verdict::kContradicted);
  }
  Measurements level;
  level.add_series("activation", {1, 16, 64}, {1.2, 1.2, 1.2}, "");
  judged = judge(claims, level);
  for (const auto& j : judged) {
    EXPECT_EQ(j.verdict, Verdict::kNotDecided);
  }
  const Table counted = tables::verdicts_table("t", judged);
  EXPECT_EQ(counted.columns.back(), "not-decided");
  EXPECT_EQ(counted.rows.at(0),
            (std::vector<std::string>{"C06", "3", "0", "0", "0", "0", "0", "3"}));
  EXPECT_EQ(counted.notes.size(), 1U);
  EXPECT_EQ(tables::verdicts_table("t", judge(claims, falling)).columns.back(), "out-of-scope");
  Measurements few;
  few.add_series("activation", {1, 16}, {1.2, 50}, "");
  EXPECT_EQ(judge(claims, few).size(), 2U) << "a point that was not measured is left out";
}

TEST(Claims, AClaimWithoutAMeasurementIsRefused) {
  Measurements m;
  m.add_series("activatoin", {1}, {1}, "");
  try {
    (void)judge(parse_claims(kSeries, "x.toml"), m);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "claim C06a@1: its quantity \"activation\" is not measured; did you mean "
                 "\"activatoin\"?");
  }
}

std::string refused(const std::string& from, const std::string& to) {
  std::string text = kSeries;
  const std::size_t at = text.find(from);
  text.replace(at, from.size(), to);
  try {
    (void)parse_claims(text, "x.toml");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Claims, MistakesNameTheirPlace) {
  EXPECT_EQ(refused("source", "sources"),
            "x.toml:4:1: claim.sources: unknown key; did you mean \"source\"?");
  EXPECT_EQ(refused("\"2.30\"", "\"2,30\""),
            "x.toml:7:17: claim.value = \"2,30\" is not a plain decimal; write the digits as the "
            "article prints them");
  EXPECT_EQ(refused("\"ratio\"", "\"ration\""),
            "x.toml:11:13: claim.tolerance = \"ration\": unknown value; did you mean \"ratio\"?");
  EXPECT_EQ(refused("[1, 16, 64]", "[1, 16]"),
            "x.toml:7:9: claim.value has 3 members and claim.at 2");
  EXPECT_EQ(refused("quantity = \"activation\"\n", ""), "x.toml:1:1: claim.quantity is missing");
  EXPECT_EQ(refused("row = \"C06a\"", "row = \"C07a\""),
            "x.toml:3:7: claim.row = \"C07a\". Violated: starts with the id \"C06\"");
}

TEST(Claims, EveryTableHasItsFileAndEveryFileItsTable) {
  std::size_t judging = 0;
  for (const auto& entry : tables::table_entries()) {
    if (entry.judges) {
      EXPECT_FALSE(claims_of(entry.name).empty()) << entry.name;
      ++judging;
    }
  }
  EXPECT_EQ(embedded_files().size(), judging);
}

}  // namespace
}  // namespace switchyard::claims
