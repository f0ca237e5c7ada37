// SPDX-License-Identifier: Apache-2.0
#include "gui/core/columns.hpp"

#include <sstream>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/core/colormap.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::unit;

std::shared_ptr<const run::RunData> shared(run::RunData run) {
  return std::make_shared<const run::RunData>(std::move(run));
}

TEST(DemoRun, ObeysTheConservationRules) {
  for (const run::Violation& v : run::check_conservation(demoRun(60))) {
    ADD_FAILURE() << v.check << ", " << v.where << ": " << v.message;
  }
  const run::RunData r = demoRun();
  EXPECT_GT(r.totals.overflow, 0U);
  EXPECT_GT(r.totals.rerouted, 0U);
  EXPECT_GT(r.totals.dropped, 0U);
  EXPECT_GT(r.events.size(), 3U);
}

TEST(Level, HasBinsNoWiderThanAColumn) {
  EXPECT_EQ(levelForColumns({0, 1000}, 1000, 0, 4), 0U);
  EXPECT_EQ(levelForColumns({0, 7999}, 1000, 0, 5), 0U);
  EXPECT_EQ(levelForColumns({0, 8000}, 1000, 0, 5), 1U);
  EXPECT_EQ(levelForColumns({0, 64000}, 1000, 0, 5), 2U);
  // No single steps in the file; no coarser level than there is.
  EXPECT_EQ(levelForColumns({0, 100}, 1000, 1, 4), 1U);
  EXPECT_EQ(levelForColumns({0, 1e9}, 10, 0, 3), 3U);
}

TEST(HeatColumns, AtOneColumnPerStepAreTheData) {
  const RunStore store(shared(demoRun(120)), "demo");
  const HeatColumns c =
      heatColumns(store, kAllLayers, Scale::kTokens, Aggregate::kMax, {0, 120}, 120);
  const run::ExpertSteps& x = store.data().experts;
  for (std::size_t s = 0; s < 120; ++s) {
    for (std::size_t e = 0; e < store.experts(); ++e) {
      const std::size_t i = s * store.experts() + e;
      ASSERT_EQ(c.value[i], static_cast<float>(x.kept[i])) << s << " " << e;
      ASSERT_EQ(c.over[i] != 0, x.overflow[i] > 0) << s << " " << e;
    }
  }
}

TEST(HeatColumns, MeanAndMaximumOfAColumnAgreeWithTheSteps) {
  const RunStore store(shared(demoRun(400)), "demo");
  const run::ExpertSteps& x = store.data().experts;
  // 16 steps a column: level 1, two bins each.
  const TimeWindow all{0, 400};
  const HeatColumns max = heatColumns(store, kAllLayers, Scale::kTokens, Aggregate::kMax, all, 25);
  const HeatColumns mean =
      heatColumns(store, kAllLayers, Scale::kTokens, Aggregate::kMean, all, 25);
  EXPECT_EQ(max.level, 1U);
  for (std::size_t c = 0; c < 25; ++c) {
    for (std::size_t e = 0; e < store.experts(); ++e) {
      double top = 0;
      double sum = 0;
      for (std::size_t s = c * 16; s < c * 16 + 16; ++s) {
        top = std::max<double>(top, x.kept[s * store.experts() + e]);
        sum += x.kept[s * store.experts() + e];
      }
      ASSERT_EQ(max.value[c * store.experts() + e], static_cast<float>(top));
      ASSERT_EQ(mean.value[c * store.experts() + e], static_cast<float>(sum / 16));
    }
  }
}

TEST(HeatColumns, FairShareAveragesToOneOverTheExperts) {
  const RunStore store(shared(demoRun(80)), "demo");
  const HeatColumns c =
      heatColumns(store, kAllLayers, Scale::kFairShare, Aggregate::kMean, {0, 80}, 10);
  for (std::size_t col = 0; col < 10; ++col) {
    double sum = 0;
    for (std::size_t e = 0; e < store.experts(); ++e) sum += c.value[col * store.experts() + e];
    EXPECT_NEAR(sum / store.experts(), 1, 1e-5);
  }
}

TEST(HeatColumns, WithoutCapacitiesHaveNoValueInThatScale) {
  run::RunData data = run::make_run({}, testing::demoInventory());
  for (int s = 0; s < 20; ++s) {
    run::StepRecord r = run::make_step(data.inventory);
    r.expert_kept.assign(r.expert_kept.size(), 3);
    run::append_step(data, r);
  }
  const RunStore store(shared(std::move(data)), "unlimited");
  EXPECT_FALSE(store.hasCapacity());
  const HeatColumns c =
      heatColumns(store, kAllLayers, Scale::kCapacity, Aggregate::kMax, {0, 20}, 20);
  for (const float v : c.value) EXPECT_NE(v, v);
}

TEST(RunStore, FromAFileEqualsTheRunInMemory) {
  const auto run = shared(demoRun(700));  // more than one block of steps
  run::write_run("store.h5", *run);
  const RunStore memory(run, "memory");
  const RunStore file(std::filesystem::path("store.h5"));
  EXPECT_EQ(file.steps(), 700U);
  EXPECT_EQ(file.events().size(), run->events.size());
  for (const std::uint32_t layer : {kAllLayers, 0U, 3U}) {
    for (const std::size_t columns : {50U, 300U, 900U}) {
      for (const TimeWindow w : {TimeWindow{0, 700}, TimeWindow{480, 530}}) {
        const HeatColumns a =
            heatColumns(memory, layer, Scale::kCapacity, Aggregate::kMax, w, columns);
        const HeatColumns b =
            heatColumns(file, layer, Scale::kCapacity, Aggregate::kMax, w, columns);
        ASSERT_EQ(a.value, b.value);
        ASSERT_EQ(a.over, b.over);
      }
    }
  }
  EXPECT_EQ(linkColumns(memory, {10, 40}, 30).max, linkColumns(file, {10, 40}, 30).max);
  EXPECT_EQ(phaseColumns(memory, {10, 40}, 30).sum, phaseColumns(file, {10, 40}, 30).sum);
  EXPECT_EQ(seriesColumns(memory, {0, 700}, 70).max, seriesColumns(file, {0, 700}, 70).max);
  EXPECT_GT(file.cachedBytes(), 0U);
}

TEST(RunStore, GroupsExpertsByGpu) {
  run::Inventory inv = testing::demoInventory();
  for (std::uint32_t e = 0; e < inv.experts; ++e) inv.placement[e] = e % 8;  // round robin, layer 0
  const RunStore store(shared(run::make_run({}, inv)), "placed");
  const auto order = store.expertOrder(kAllLayers);
  ASSERT_EQ(order.size(), 64U);
  EXPECT_EQ(order[0].expert, 0U);
  EXPECT_EQ(order[1].expert, 8U);
  EXPECT_EQ(order[8].expert, 1U);
  EXPECT_EQ(order[8].gpu, 1U);
  EXPECT_TRUE(store.placementVaries());  // layer 1 is contiguous
}

TEST(Links, BusiestComeFirst) {
  const RunStore store(shared(demoRun(40)), "demo");
  const auto links = busiestLinks(store, 4);
  ASSERT_EQ(links.size(), 4U);
  const Columns<float> c = linkColumns(store, {0, 40}, 1);
  for (std::size_t k = 0; k < store.links(); ++k) EXPECT_LE(c.mean(0, k), c.mean(0, links[0]));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GE(c.mean(0, links[i - 1]), c.mean(0, links[i]));
}

TEST(Csv, HoldsTheNumbersOfTheRun) {
  const RunStore store(shared(demoRun(40)), "demo");
  std::istringstream in(csvOf(store, "heatmap", kAllLayers, {10, 12}));
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(line, "step,expert,gpu,kept,overflow,rerouted_in,queued,dropped,capacity,fill");
  int rows = 0;
  while (std::getline(in, line)) {
    unsigned step = 0, expert = 0, gpu = 0, kept = 0, overflow = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "%u,%u,%u,%u,%u", &step, &expert, &gpu, &kept, &overflow),
              5)
        << line;
    const std::size_t i = step * 64 + expert;
    EXPECT_EQ(kept, store.data().experts.kept[i]);
    EXPECT_EQ(overflow, store.data().experts.overflow[i]);
    EXPECT_EQ(gpu, expert / 8);
    ++rows;
  }
  EXPECT_EQ(rows, 2 * 64);
}

TEST(Csv, OfARunWithoutStepsIsRefused) {
  const RunStore store(shared(demoRun(40, run::Detail::kSummary)), "demo.h5");
  try {
    csvOf(store, "all", kAllLayers, {0, 40});
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("demo.h5: unsupported: CSV of a run with detail"),
              std::string::npos)
        << e.what();
  }
}

TEST(ColorTables, GrowLighterAndKeepRedForOverflow) {
  for (const ColorMap map : {ColorMap::kViridis, ColorMap::kCividis, ColorMap::kGrey}) {
    double before = -1;
    for (const std::uint32_t c : colorTable(map)) {
      const double r = (c >> 16) & 0xffU, g = (c >> 8) & 0xffU, b = c & 0xffU;
      const double luma = 0.2126 * r + 0.7152 * g + 0.0722 * b;
      EXPECT_GT(luma, before - 0.75) << "lightness must grow";
      before = luma;
      const double dr = r - ((kOverflowColor >> 16) & 0xffU);
      const double dg = g - ((kOverflowColor >> 8) & 0xffU);
      const double db = b - (kOverflowColor & 0xffU);
      EXPECT_GT(std::sqrt(dr * dr + dg * dg + db * db), 100) << "too close to the reserved red";
    }
  }
}

}  // namespace
}  // namespace switchyard::gui
