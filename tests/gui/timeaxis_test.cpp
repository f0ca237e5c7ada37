// SPDX-License-Identifier: Apache-2.0
#include "gui/core/timeaxis.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/core/columns.hpp"
#include "tests/gui/demo_run.hpp"

namespace switchyard::gui {
namespace {

using testing::unit;

TEST(TimeAxis, PixelsAndStepsAreInverseWithinOnePixel) {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double steps = std::floor(5 + unit(1, i, 0) * 1e6);
    const double length = std::max(4.0, unit(2, i, 0) * steps);
    const TimeWindow w =
        clampWindow({unit(3, i, 0) * steps, unit(3, i, 0) * steps + length}, steps);
    const double width = std::floor(100 + unit(4, i, 0) * 4000);
    const TimeAxis axis(w, 137, width);
    const double t = w.first + unit(5, i, 0) * w.length();
    EXPECT_NEAR(axis.tOf(axis.xOf(t)), t, w.length() / width) << i;
    EXPECT_NEAR(axis.xOf(w.first), 137, 1e-6) << i;
    EXPECT_NEAR(axis.xOf(w.end), 137 + width, 1e-6) << i;
  }
}

TEST(TimeAxis, ZoomKeepsTheStepUnderTheMouse) {
  int borders = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double steps = 100000;
    // Anywhere in the run, as wide as it may be.
    const double length = 4 + std::pow(unit(6, i, 2), 4) * 99996;
    const double first = unit(6, i, 0) * (steps - length);
    const TimeWindow w{first, first + length};
    const double x = unit(7, i, 0) * 1200;
    const double at = TimeAxis(w, 0, 1200).tOf(x);
    const double factor = 0.5 + unit(8, i, 0);
    const TimeWindow z = zoomAt(w, at, factor, steps);
    // The part of the window before the mouse keeps its share, unless a border of the run or the
    // least length is in the way; then the window touches it.
    const double share = (at - w.first) / w.length();
    const double wanted = std::max(4.0, w.length() * factor);
    if (at - share * wanted < 0 || at + (1 - share) * wanted > steps) {
      ++borders;
      EXPECT_TRUE(z.first < 1e-9 || z.end > steps - 1e-9) << i;
      EXPECT_LE(z.first, at + 1e-9) << i;
      EXPECT_GE(z.end, at - 1e-9) << i;
    } else {
      EXPECT_NEAR(TimeAxis(z, 0, 1200).tOf(x), at, 1e-9) << i;
      EXPECT_NEAR(z.length(), wanted, 1e-9) << i;
    }
  }
  EXPECT_GT(borders, 20);
  EXPECT_LT(borders, 500);
}

TEST(TimeAxis, TheWindowNeverLeavesTheRunNorShrinksUnderFourSteps) {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double steps = std::floor(1 + unit(9, i, 0) * 5000);
    TimeWindow w{0, steps};
    for (std::uint64_t k = 0; k < 20; ++k) {
      const double at = w.first + unit(10, i, k) * w.length();
      if (unit(11, i, k) < 0.7) {
        w = zoomAt(w, at, 0.1 + 1.5 * unit(12, i, k), steps);
      } else {
        w = panBy(w, (unit(13, i, k) - 0.5) * 3 * w.length(), steps);
      }
      ASSERT_GE(w.first, 0) << i;
      ASSERT_LE(w.end, steps) << i;
      ASSERT_GE(w.length(), std::min(4.0, steps) - 1e-9) << i;
    }
  }
}

TEST(TimeAxis, TheRightEdgeBelongsToTheLastStepOnScreen) {
  const TimeAxis axis({10, 20}, 100, 200);
  EXPECT_EQ(axis.stepAt(100, 400), 10U);
  EXPECT_EQ(axis.stepAt(119.9, 400), 10U);
  EXPECT_EQ(axis.stepAt(120, 400), 11U);
  EXPECT_EQ(axis.stepAt(300, 400), 19U);
  EXPECT_EQ(axis.stepAt(99, 400), std::nullopt);
  EXPECT_EQ(axis.stepAt(301, 400), std::nullopt);
}

TEST(StepTicks, AreRoundNumbersInsideTheWindowAndNotTooMany) {
  EXPECT_EQ(stepTicks({0, 400}, 400, 10),
            (std::vector<std::uint64_t>{0, 50, 100, 150, 200, 250, 300, 350, 400}));
  EXPECT_EQ(stepTicks({170.5, 260}, 400, 5), (std::vector<std::uint64_t>{180, 200, 220, 240, 260}));
  EXPECT_EQ(stepTicks({3.2, 7.9}, 400, 12), (std::vector<std::uint64_t>{4, 5, 6, 7}));
  for (std::uint64_t i = 0; i < 500; ++i) {
    const double first = unit(14, i, 0) * 90000;
    const double end = first + 4 + unit(15, i, 0) * 10000;
    const int most = 2 + static_cast<int>(unit(16, i, 0) * 20);
    const auto ticks = stepTicks({first, end}, 100000, most);
    ASSERT_LE(ticks.size(), static_cast<std::size_t>(most));
    for (const std::uint64_t t : ticks) {
      ASSERT_GE(static_cast<double>(t), first);
      ASSERT_LE(static_cast<double>(t), end);
    }
  }
}

TEST(NiceCeiling, IsTheNextRoundNumber) {
  EXPECT_DOUBLE_EQ(niceCeiling(0.97), 1);
  EXPECT_DOUBLE_EQ(niceCeiling(1), 1);
  EXPECT_DOUBLE_EQ(niceCeiling(1.01), 1.5);
  EXPECT_DOUBLE_EQ(niceCeiling(23.4), 25);
  EXPECT_DOUBLE_EQ(niceCeiling(8.5), 10);
  EXPECT_DOUBLE_EQ(niceCeiling(0), 1);
  EXPECT_DOUBLE_EQ(niceCeiling(std::numeric_limits<double>::infinity()), 1);
}

TEST(GoTo, UnderstandsStepsRangesAndTimes) {
  const std::vector<std::int64_t> starts = {0, 1'000'000'000, 2'000'000'000, 3'000'000'000};
  EXPECT_EQ(parseGoTo(" 2 ", 4, starts), (TimeWindow{2, 3}));
  EXPECT_EQ(parseGoTo("1..3", 4, starts), (TimeWindow{1, 4}));
  EXPECT_EQ(parseGoTo("1 - 2", 4, starts), (TimeWindow{1, 3}));
  // Step 2 runs from 2 ms to 3 ms.
  EXPECT_EQ(parseGoTo("2.5 ms", 4, starts), (TimeWindow{2, 3}));
  EXPECT_EQ(parseGoTo("99 s", 4, starts), (TimeWindow{3, 4}));
}

TEST(GoTo, SaysWhatIsWrong) {
  const auto message = [](const std::string& text, const std::vector<std::int64_t>& starts) {
    try {
      parseGoTo(text, 4, starts);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("4", {0, 1, 2, 3}), "go to: step 4 is beyond the last step 3");
  EXPECT_EQ(message("3..2", {0, 1, 2, 3}), "go to: \"3..2\" ends before it begins");
  EXPECT_EQ(parseGoTo("3..3", 4, {0, 1, 2, 3}), (TimeWindow{3, 4}));
  EXPECT_EQ(message("0..4", {0, 1, 2, 3}), "go to: step 4 is beyond the last step 3");
  EXPECT_NE(message("soon", {0, 1, 2, 3}).find("neither a step nor a time"), std::string::npos);
  EXPECT_NE(message("2 ms", {}).find("no times per step"), std::string::npos);
}

TEST(Texts, AreShortAndRounded) {
  EXPECT_EQ(groupDigits(0), "0");
  EXPECT_EQ(groupDigits(1234567), "1\u00a0234\u00a0567");
  EXPECT_EQ(shortNumber(1.2434), "1.243");
  EXPECT_EQ(shortNumber(0.5), "0.500");
  EXPECT_EQ(shortNumber(23.514), "23.51");
  EXPECT_EQ(shortNumber(12345), "12\u00a0345");
  EXPECT_EQ(shortNumber(run::kNoData), "n/a");
  EXPECT_EQ(timeText(0), "0 s");
  EXPECT_EQ(timeText(1.4451e9), "1.445 ms");
  EXPECT_EQ(timeText(10.41e12), "10.41 s");
  EXPECT_EQ(expertName(7, 64), "e07");
  EXPECT_EQ(expertName(7, 8), "e7");
  EXPECT_EQ(percentText(0.1234), "12.3 %");
  EXPECT_EQ(percentText(0), "0.0 %");
  EXPECT_EQ(percentText(2226 / 6553600.0), "0.034 %");
  EXPECT_EQ(percentText(1e-9), "<0.0001 %");
  EXPECT_EQ(bytesText(2.343e8), "234.3 MB");
}

/// Steps of irregular length: 1, 2, 4 or 8 us.
TimeScale unevenScale(std::uint64_t steps) {
  std::vector<std::int64_t> starts;
  std::int64_t at = 0;
  for (std::uint64_t s = 0; s < steps; ++s) {
    starts.push_back(at);
    at += 1'000'000LL << (testing::mix(s) % 4);
  }
  return {starts, 1, steps, at};
}

TEST(TimeScale, StepsAndTimesAreInverse) {
  const TimeScale scale = unevenScale(1000);
  EXPECT_EQ(scale.psOf(0), 0);
  EXPECT_EQ(scale.stepOf(scale.endPs()), 1000);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double step = unit(7, i, 0) * 1000;
    EXPECT_NEAR(scale.stepOf(scale.psOf(step)), step, 1e-9);
  }
  // Beyond the ends it stays at the ends.
  EXPECT_EQ(scale.stepOf(-5), 0);
  EXPECT_EQ(scale.psOf(2000), scale.endPs());
}

// Replicas may begin a step at the same time: the last of them has the width.
TEST(TimeScale, StepsThatBeginTogetherDoNotBreakTheOrder) {
  const TimeScale scale({0, 10, 10, 10, 30}, 1, 5, 40);
  EXPECT_EQ(scale.psOf(1), 10);
  EXPECT_EQ(scale.psOf(3), 10);
  EXPECT_EQ(scale.stepOf(10), 3);
  EXPECT_EQ(scale.stepOf(20), 3.5);
  EXPECT_EQ(scale.stepOf(40), 5);
}

TEST(TimeScale, AxisOfTimeHasEqualTimesInEqualPixels) {
  const TimeScale scale = unevenScale(100);
  const TimeAxis axis({10, 50}, 100, 800, &scale);
  const double perPs = 800 / (scale.psOf(50) - scale.psOf(10));
  for (double step = 10; step < 50; step += 1) {
    EXPECT_NEAR(axis.xOf(step + 1) - axis.xOf(step),
                (scale.psOf(step + 1) - scale.psOf(step)) * perPs, 1e-6);
    EXPECT_NEAR(axis.tOf(axis.xOf(step)), step, 1e-6);
    EXPECT_EQ(axis.stepAt(axis.xOf(step) + 0.01, 100), static_cast<std::uint64_t>(step));
  }
}

TEST(TimeScale, ZoomKeepsTheTimeUnderTheMouseAndPanKeepsTheLength) {
  const TimeScale scale = unevenScale(2000);
  const TimeWindow w{500, 900};
  const double at = 700.25;
  const TimeWindow z = zoomInTime(scale, w, at, 0.5, 2000);
  const auto share = [&](TimeWindow v) {
    return (scale.psOf(at) - scale.psOf(v.first)) / (scale.psOf(v.end) - scale.psOf(v.first));
  };
  EXPECT_NEAR(share(z), share(w), 1e-9);
  EXPECT_NEAR(scale.psOf(z.end) - scale.psOf(z.first),
              (scale.psOf(w.end) - scale.psOf(w.first)) / 2, 1);
  const TimeWindow p = panInTime(scale, w, 0.25, 2000);
  EXPECT_NEAR(scale.psOf(p.end) - scale.psOf(p.first), scale.psOf(w.end) - scale.psOf(w.first), 1);
  EXPECT_GT(p.first, w.first);
  // It stops at the ends, at its length, and at four steps.
  const TimeWindow end = panInTime(scale, w, 1000, 2000);
  EXPECT_EQ(end.end, 2000);
  TimeWindow least = w;
  for (int i = 0; i < 60; ++i) least = zoomInTime(scale, least, at, 0.7, 2000);
  EXPECT_GE(least.length(), kMinWindowSteps - 1e-9);
  EXPECT_LE(least.first, at);
  EXPECT_GE(least.end, at);
}

TEST(TimeTicks, AreRoundTimesAndTextsWithoutZeros) {
  const std::vector<double> ticks = timeTicks(1.05e9, 4.2e9, 8);
  ASSERT_GE(ticks.size(), 3U);
  EXPECT_LE(ticks.size(), 8U);
  EXPECT_DOUBLE_EQ(ticks[0], 1.5e9);
  EXPECT_DOUBLE_EQ(ticks[1], 2e9);
  EXPECT_EQ(tickText(1.5e9), "1.5 ms");
  EXPECT_EQ(tickText(2e12), "2 s");
  EXPECT_EQ(tickText(0), "0 s");
  EXPECT_EQ(niceFloor(0.0137), 0.01);
  EXPECT_EQ(niceFloor(7), 5);
}

}  // namespace
}  // namespace switchyard::gui
