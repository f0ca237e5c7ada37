// SPDX-License-Identifier: Apache-2.0
// Calibrations: the file, the fit, the times between and beyond the points.
#include "sim/cost/calibrated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

using scenario::Calibration;
using scenario::OpKind;
using scenario::OpTable;

constexpr const char* kHead = R"(schema = "switchyard-calibration 1"
device = "toy"
source = "made up"
licence = "Apache-2.0"
hbm = "1000 GB/s"
link = "100 GB/s"
peak = { bf16 = "100 TFLOP/s" }
)";
constexpr const char* kGemm = R"([[tables]]
op = "gemm"
library = "a1"
dtype = "bf16"
shape = [1000, 1000]
overhead = 5
rate_share = 0.8
compute_share = 0.5
points = [[1, 7.5], [16, 7.6]]
)";

Calibration toy() { return scenario::parse_calibration(std::string(kHead) + kGemm, "toy.toml"); }

/// A GEMM of 1000 x 1000 on the toy device: 2 µs of weights at peak rate, 0.02 µs per row of FLOPs.
double true_time(double m) {
  const double bytes = 2e6 + m * 2000 * 2;
  return 5 + std::max(bytes / (0.8 * 1e12), m * 2e6 / (0.5 * 1e14)) * 1e6;
}

std::string error_of(const std::string& text) {
  try {
    scenario::parse_calibration(text, "bad.toml");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Calibration, ReadsBackWhatItWrites) {
  const Calibration a = toy();
  const Calibration b = scenario::parse_calibration(scenario::calibration_text(a), "b.toml");
  EXPECT_EQ(scenario::calibration_text(a), scenario::calibration_text(b));
  ASSERT_EQ(b.tables.size(), 1U);
  EXPECT_EQ(b.tables[0].shape, (std::vector<std::uint64_t>{1000, 1000}));
  EXPECT_EQ(b.tables[0].points[1].at[0], 16);
  EXPECT_EQ(b.tables[0].points[1].us, 7.6);
  EXPECT_EQ(b.hbm.value, 1e12);
  EXPECT_NE(a.hash, b.hash) << "the hash is of the text";
}

TEST(Calibration, SaysWhereItIsWrong) {
  const std::string good = std::string(kHead) + kGemm;
  EXPECT_EQ(error_of(good), "accepted");
  EXPECT_NE(error_of(replaced(good, "overhead = 5", "overheat = 5")).find("bad.toml:13:1"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "overhead = 5", "overheat = 5")).find("overhead"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "[16, 7.6]", "[16, nan]")).find("Violated"), std::string::npos);
  EXPECT_NE(error_of(replaced(good, "[16, 7.6]", "[16, 0.0]")).find("Violated"), std::string::npos);
  EXPECT_NE(error_of(replaced(good, "[16, 7.6]", "[16, 1, 7.6]")).find("has 2 numbers"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "rate_share = 0.8", "rate_share = 1.2")).find("Violated"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "1000 GB/s", "1000")).find("unit"), std::string::npos);
  EXPECT_NE(error_of(replaced(good, "calibration 1", "calibration 2")).find("schema"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "\"gemm\"", "\"gem\"")).find("did you mean \"gemm\"?"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "shape = [1000, 1000]", "shape = [1000, 0]")).find("is 0"),
            std::string::npos);
  EXPECT_NE(error_of(good + kGemm).find("the same table as the one at bad.toml"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(good, "bf16 = \"100 TFLOP/s\"", "")).find("no peak"),
            std::string::npos);
  EXPECT_NE(error_of(kHead).find("tables is missing"), std::string::npos);
}

TEST(Calibration, FitFindsTheSharesOfARoofline) {
  Calibration c = toy();
  OpTable& t = c.tables[0];
  t.points.clear();
  for (double m = 1; m <= 16384; m *= 2) t.points.push_back({{m, 0, 0}, true_time(m)});
  fit_tables(c);
  EXPECT_NEAR(t.overhead_us, 5, 0.1);
  EXPECT_NEAR(t.rate_share, 0.8, 0.02);
  EXPECT_NEAR(t.compute_share, 0.5, 0.01);
  const OpTimer timer(c, t);
  for (const double m : {3.0, 48.0, 700.0, 6000.0}) {
    const OpTime time = timer.time(std::vector{m});
    EXPECT_NEAR(time.us / true_time(m), 1, 0.01) << m;
    EXPECT_FALSE(time.extrapolated);
  }
  // Beyond the table the roofline goes on: twice the rows, twice the time above the overhead.
  const OpTime far = timer.time(std::vector{65536.0});
  EXPECT_TRUE(far.extrapolated);
  EXPECT_NEAR(far.us / true_time(65536), 1, 0.01);
}

TEST(Calibration, FollowsMeasuredTimesThatNoRooflineGives) {
  // 1.5 times the roofline between 100 and 1000 rows.
  Calibration c = toy();
  OpTable& t = c.tables[0];
  t.points.clear();
  for (double m = 1; m <= 16384; m *= 1.5) {
    t.points.push_back({{std::floor(m), 0, 0}, true_time(m) * (m > 100 && m < 1000 ? 1.5 : 1)});
  }
  fit_tables(c);
  EXPECT_NEAR(OpTimer(c, t).time(std::vector{320.0}).us / true_time(320), 1.5, 0.08);
  EXPECT_NEAR(OpTimer(c, t).time(std::vector{10.0}).us / true_time(10), 1.0, 0.05);
}

TEST(Calibration, IsNeverBelowThePhysicalFloor) {
  // Measured times of a tenth of what reading the weights takes.
  Calibration c = toy();
  c.tables[0].points = {{{1, 0, 0}, 0.2}, {{16, 0, 0}, 0.2}};
  c.tables[0].overhead_us = 0;
  EXPECT_DOUBLE_EQ(OpTimer(c, c.tables[0]).time(std::vector{1.0}).us, 2.0);
}

TEST(Calibration, CountsExpertsByTheDistinctOnes) {
  Calibration c = toy();
  OpTable t;
  t.kind = OpKind::kExperts;
  t.shape = {100, 50, 3};
  // 4 experts of 3·100·50 weights of 2 bytes; 8 rows of (2·100 + 3·50) activations of 2 bytes.
  const OpUse use = use_of(c, t, std::vector{8.0, 4.0, 2.0});
  EXPECT_NEAR(use.rate_us, (4 * 30000 + 8 * 700) / 1e12 * 1e6, 1e-12);
  EXPECT_NEAR(use.compute_us, 6.0 * 8 * 5000 / 1e14 * 1e6, 1e-12);
}

TEST(Calibration, CountsAttentionInTilesAndItsFloorWithout) {
  Calibration c = toy();
  OpTable t;
  t.kind = OpKind::kAttentionDecode;
  t.shape = {8, 2, 64, 0};
  const OpUse one = use_of(c, t, std::vector{3.0, 1.0});
  const OpUse tile = use_of(c, t, std::vector{3.0, 128.0});
  EXPECT_EQ(one.rate_us, tile.rate_us);
  EXPECT_LT(one.floor_us, tile.floor_us);
  t.shape[3] = 128;  // A window of 128 positions lies in two tiles.
  EXPECT_EQ(use_of(c, t, std::vector{3.0, 100000.0}).place[1], 1);
  // A causal prompt of 256: 3 of 4 tiles of pairs, 256·257/2 pairs.
  t.kind = OpKind::kAttentionPrefill;
  t.shape[3] = 0;
  const OpUse prompt = use_of(c, t, std::vector{1.0, 256.0, 0.0});
  EXPECT_NEAR(prompt.compute_us, 4.0 * 8 * 64 * 3 * 128 * 128 / 1e14 * 1e6, 1e-9);
}

TEST(Calibration, CountsLatentAttentionByRankAndRope) {
  Calibration c = toy();
  OpTable t;
  t.kind = OpKind::kMlaDecode;
  t.shape = {16, 512, 64};
  // 3 sequences of 100 rows of 576 values, 16 queries of 576 and answers of 512; 2 bytes each.
  const OpUse use = use_of(c, t, std::vector{3.0, 100.0});
  EXPECT_NEAR(use.rate_us, 3 * (100 * 576 * 2 + 16 * 1088 * 2) / 1e12 * 1e6, 1e-12);
  EXPECT_NEAR(use.compute_us, 2.0 * 3 * 16 * 100 * 1088 / 1e14 * 1e6, 1e-12);
}

TEST(Calibration, ATableOfFewPointsTakesTheNearestShapesOfItsLibrary) {
  // Three shapes: the near one reaches half of the peak, the far one a tenth, another library's
  // all.
  Calibration c = toy();
  const auto table = [&](std::uint64_t n, const char* library, double share, int points) {
    OpTable t;
    t.kind = OpKind::kGemm;
    t.library = library;
    t.shape = {n, 1000};
    for (int i = 0; i < points; ++i) {
      const double m = 4096.0 * std::pow(1.1, i);
      t.points.push_back({{m, 0, 0}, 2.0 * m * static_cast<double>(n) * 1000 / 1e14 * 1e6 / share});
    }
    return t;
  };
  c.tables = {table(1000, "a", 0.5, 1), table(1100, "a", 0.5, 24), table(64000, "a", 0.1, 24),
              table(1000, "b", 1.0, 24)};
  fit_tables(c);
  EXPECT_NEAR(c.tables[0].compute_share, 0.5, 0.01);
  // The only shape of its library: all of the operation, so something between.
  c.tables = {table(1000, "c", 0.5, 1), table(1000, "b", 1.0, 24)};
  fit_tables(c);
  EXPECT_NEAR(c.tables[0].compute_share, 1.0, 0.05);
}

TEST(Calibration, PicksTheTableOfTheShapeOrTheNearest) {
  const std::string other = replaced(kGemm, "[1000, 1000]", "[4000, 1000]");
  const Calibration c = scenario::parse_calibration(std::string(kHead) + kGemm + other, "toy.toml");
  const auto find = [&](std::string_view library, std::uint64_t n) {
    return find_table(c, OpKind::kGemm, library, "", model::DType::kBf16,
                      std::vector<std::uint64_t>{n, 1000});
  };
  EXPECT_TRUE(find("a", 4000).exact);
  EXPECT_EQ(find("a", 4000).table, &c.tables[1]);
  EXPECT_FALSE(find("a1", 3000).exact);
  EXPECT_EQ(find("a1", 3000).table, &c.tables[1]);
  EXPECT_EQ(find("b", 4000).table, nullptr);
}

TEST(Calibration, MakesSmallCollectivesMonotone) {
  std::string text = replaced(kGemm, "\"gemm\"", "\"collective\"\nvariant = \"all_reduce\"");
  text = replaced(text, "[1000, 1000]", "[8]");
  text = replaced(text, "[[1, 7.5], [16, 7.6]]",
                  "[[1024, 10], [2048, 16], [4096, 9], [4194304, 50], [8388608, 40]]");
  Calibration c = scenario::parse_calibration(std::string(kHead) + text, "toy.toml");
  fit_tables(c);
  const auto& p = c.tables[0].points;
  EXPECT_NEAR(p[0].us, 10, 1e-9);
  EXPECT_NEAR(p[1].us, 12, 1e-9) << "the geometric mean of 16 and 9";
  EXPECT_NEAR(p[2].us, 12, 1e-9);
  EXPECT_EQ(p[4].us, 40) << "large ones stay as measured";
}

}  // namespace
}  // namespace switchyard::sim
