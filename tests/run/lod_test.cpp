// SPDX-License-Identifier: Apache-2.0
#include "sim/run/lod.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/base/random.hpp"

namespace switchyard::run {
namespace {

using CountLod = Lod<std::uint32_t, std::uint64_t>;

constexpr std::array<std::uint64_t, 12> kLengths = {0, 1, 2, 7, 8, 9, 63, 64, 65, 511, 513, 4097};

std::uint32_t value_at(std::uint64_t step, std::uint32_t column) {
  return static_cast<std::uint32_t>(
      random_u64(3, random_purpose("lod test"), {static_cast<std::uint32_t>(step), column, 0, 0}) %
      1000);
}

CountLod build(std::uint64_t steps, std::uint32_t width) {
  CountLod lod(width);
  for (std::uint64_t s = 0; s < steps; ++s) {
    std::vector<std::uint32_t> row(width);
    for (std::uint32_t c = 0; c < width; ++c) row[c] = value_at(s, c);
    lod.append(row);
  }
  return lod;
}

TEST(Lod, EveryBinIsTheMaximumAndSumOfItsSteps) {
  for (const std::uint64_t steps : kLengths) {
    const CountLod lod = build(steps, 3);
    ASSERT_EQ(lod.levels(), lod_levels(steps)) << steps;
    for (std::size_t l = 1; l <= lod.levels(); ++l) {
      ASSERT_TRUE(lod.loaded(l));
      for (std::uint64_t bin = 0; bin < lod_bins(steps, l); ++bin) {
        for (std::uint32_t c = 0; c < 3; ++c) {
          std::uint32_t max = 0;
          std::uint64_t sum = 0;
          for (std::uint64_t s = bin * lod_bin_steps(l);
               s < std::min(steps, (bin + 1) * lod_bin_steps(l)); ++s) {
            max = std::max(max, value_at(s, c));
            sum += value_at(s, c);
          }
          ASSERT_EQ(lod.level(l).max[bin * 3 + c], max) << steps << " level " << l;
          ASSERT_EQ(lod.level(l).sum[bin * 3 + c], sum) << steps << " level " << l;
        }
      }
    }
  }
}

TEST(Lod, SumsOfAllLevelsAreEqual) {
  for (const std::uint64_t steps : kLengths) {
    if (steps == 0) continue;
    const CountLod lod = build(steps, 1);
    std::uint64_t expected = 0;
    for (std::uint64_t s = 0; s < steps; ++s) expected += value_at(s, 0);
    for (std::size_t l = 1; l <= lod.levels(); ++l) {
      const auto& sums = lod.level(l).sum;
      EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}), expected)
          << steps << " steps, level " << l;
    }
  }
}

TEST(Lod, AFlagOfOneStepIsVisibleAtEveryLevelAndNowhereElse) {
  for (const std::uint64_t steps : {1ULL, 9ULL, 64ULL, 1000ULL}) {
    for (const std::uint64_t at : {std::uint64_t{0}, steps / 2, steps - 1}) {
      CountLod lod(2);
      for (std::uint64_t s = 0; s < steps; ++s) {
        lod.append(std::vector<std::uint32_t>{s == at ? 9U : 1U, 1},
                   std::vector<std::uint8_t>{s == at ? std::uint8_t{1} : std::uint8_t{0}, 0});
      }
      for (std::size_t l = 1; l <= lod.levels(); ++l) {
        for (std::uint64_t bin = 0; bin < lod_bins(steps, l); ++bin) {
          const bool hit = bin == at / lod_bin_steps(l);
          EXPECT_EQ(lod.level(l).flag[bin * 2], hit ? 1 : 0);
          EXPECT_EQ(lod.level(l).max[bin * 2], hit ? 9U : 1U);
          EXPECT_EQ(lod.level(l).flag[bin * 2 + 1], 0);
        }
      }
    }
  }
}

TEST(Lod, TheCoarsestLevelHasOneBinAndLevelsGrowByEight) {
  EXPECT_EQ(lod_levels(0), 0U);
  EXPECT_EQ(lod_levels(1), 1U);
  EXPECT_EQ(lod_levels(8), 1U);
  EXPECT_EQ(lod_levels(9), 2U);
  EXPECT_EQ(lod_levels(64), 2U);
  EXPECT_EQ(lod_levels(65), 3U);
  // 100 000 steps: 12500, 1563, 196, 25, 4, 1 bins.
  EXPECT_EQ(lod_levels(100'000), 6U);
  EXPECT_EQ(lod_bins(100'000, 2), 1563U);
  EXPECT_EQ(lod_bins(100'000, 6), 1U);
}

TEST(Lod, TheLevelForAWidthOfPixelsIsTheFinestThatFits) {
  EXPECT_EQ(lod_level_for(100'000, 1600), 2U);
  EXPECT_EQ(lod_level_for(100'000, 100'000), 0U);
  EXPECT_EQ(lod_level_for(100'000, 0), 6U);
  EXPECT_EQ(lod_level_for(0, 10), 0U);
}

TEST(Lod, AQueryGivesTheBinsThatOverlapTheRange) {
  const CountLod lod = build(100, 2);  // level 1: 13 bins, the last of 4 steps
  const auto v = lod.query(1, 15, 17);
  EXPECT_EQ(v.first_bin, 1U);
  EXPECT_EQ(v.bins, 2U);
  EXPECT_EQ(v.first_step, 8U);
  EXPECT_EQ(v.end_step, 24U);
  EXPECT_EQ(v.max.size(), 4U);
  EXPECT_EQ(v.max[0], lod.level(1).max[2]);
  const auto tail = lod.query(1, 90, 1'000'000);
  EXPECT_EQ(tail.first_bin, 11U);
  EXPECT_EQ(tail.bins, 2U);
  EXPECT_EQ(tail.end_step, 100U);
  EXPECT_EQ(lod.query(1, 100, 200).bins, 0U);
  EXPECT_EQ(lod.query(1, 5, 5).bins, 0U);
}

TEST(Lod, NaNCountsAsZero) {
  Lod<float, double> lod(1);
  lod.append(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  lod.append(std::vector<float>{0.5F});
  EXPECT_EQ(lod.level(1).max[0], 0.5F);
  EXPECT_EQ(lod.level(1).sum[0], 0.5);
}

// Starts of 100 000 steps of 20 ms: their sum, 1e20 ps, is beyond the type and must not wrap.
TEST(Lod, ASumOfWholeNumbersStopsAtTheLargestOfItsType) {
  Lod<std::int64_t, std::int64_t> starts(1);
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 12;
  for (int i = 0; i < 64; ++i) starts.append(std::array{kFar});
  EXPECT_EQ(starts.level(1).sum[0], 8 * kFar);
  EXPECT_EQ(starts.level(2).sum[0], std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(starts.level(2).max[0], kFar);
}

TEST(Lod, ASeriesWithoutColumnsIsAllowed) {
  CountLod lod(0);
  for (int i = 0; i < 20; ++i) lod.append({});
  EXPECT_EQ(lod.steps(), 20U);
  EXPECT_EQ(lod.levels(), 2U);
  EXPECT_EQ(lod.query(1, 0, 20).bins, 3U);
}

}  // namespace
}  // namespace switchyard::run
