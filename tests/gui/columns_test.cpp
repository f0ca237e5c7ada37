// SPDX-License-Identifier: Apache-2.0
#include "gui/core/columns.hpp"
#include "gui/core/latency.hpp"
#include "gui/core/views.hpp"
#include "gui/core/warp.hpp"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/core/colormap.hpp"
#include "gui/core/gallery.hpp"
#include "gui/core/health.hpp"
#include "gui/core/scenariodocument.hpp"
#include "sim/health/alarm_rules.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"
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

// One prefill among decode steps: its column is as even as the experts are, not hot everywhere.
TEST(HeatColumns, AStepWithManyTokensMakesNotEveryExpertHot) {
  run::RunData data = run::make_run({}, testing::demoInventory());
  for (std::uint32_t s = 0; s < 64; ++s) {
    run::StepRecord r = run::make_step(data.inventory);
    r.expert_kept.assign(r.expert_kept.size(), s == 24 ? 4000 : 10);
    run::append_step(data, r);
  }
  const RunStore store(shared(std::move(data)), "mixed");
  for (const std::size_t columns : {64U, 20U, 8U, 3U}) {
    const HeatColumns c =
        heatColumns(store, kAllLayers, Scale::kFairShare, Aggregate::kMax, {0, 64}, columns);
    for (const float v : c.value) ASSERT_NEAR(v, 1, 1e-6) << columns << " columns";
  }
  EXPECT_NEAR(heatTop(store, kAllLayers, Scale::kFairShare), 1, 1e-6);
}

TEST(HeatColumns, TheRedsReachToTheLargestDemand) {
  for (const std::uint32_t steps : {5U, 100U}) {  // without and with levels of detail
    run::RunData data = run::make_run({}, testing::demoInventory());
    for (std::uint32_t s = 0; s < steps; ++s) {
      run::StepRecord r = run::make_step(data.inventory);
      r.expert_kept.assign(r.expert_kept.size(), 10);
      r.expert_capacity.assign(r.expert_capacity.size(), 10);
      if (s == 4) r.expert_overflow[3] = 15;
      run::append_step(data, r);
    }
    const RunStore store(shared(std::move(data)), "over");
    EXPECT_DOUBLE_EQ(overTop(store, kAllLayers), 2.5) << steps << " steps";
    EXPECT_DOUBLE_EQ(overTop(store, 0), 2.5) << steps << " steps";
    EXPECT_DOUBLE_EQ(overTop(store, 1), 1) << steps << " steps";
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

TEST(RunStore, ReadsWhatIsShownAndNoMore) {
  // 4096 steps x 256 experts in 2 layers.
  run::Inventory inv = testing::demoInventory();
  inv.experts = 256;
  inv.moe_layers = {0, 1};
  inv.placement.assign(std::size_t{2} * 256, 0);
  run::RunMeta meta;
  meta.detail = run::Detail::kLayers;
  constexpr std::uint64_t kSteps = 4096;
  {
    run::RunWriter writer("pages.h5", meta, inv);
    run::StepRecord r = run::make_step(inv);
    r.expert_capacity.assign(r.expert_capacity.size(), 9);
    for (std::uint64_t s = 0; s < kSteps; ++s) {
      r.scalars.start_ps = static_cast<std::int64_t>(s) * 1000;
      r.scalars.end_ps = r.scalars.start_ps + 1000;
      for (std::size_t i = 0; i < r.expert_kept.size(); ++i) {
        r.expert_kept[i] = static_cast<std::uint32_t>((s * 31 + i * 17) % 8);
      }
      r.expert_overflow[300] = s == 1234 ? 5 : 0;
      writer.append(r);
    }
    (void)writer.finish();
  }
  const RunStore store(std::filesystem::path("pages.h5"));
  const std::uint64_t opened = store.bytesRead();
  // Opening reads the scalars of steps and small tables, no expert and no level of detail.
  EXPECT_EQ(store.pagesRead(), 0U);
  EXPECT_LT(opened, kSteps * 300 + 600'000);

  // The first picture of the whole run, 256 pixels wide: 512 bins of level 1.
  const TimeWindow all{0, static_cast<double>(kSteps)};
  const HeatColumns c = heatColumns(store, kAllLayers, Scale::kCapacity, Aggregate::kMax, all, 256);
  EXPECT_EQ(c.level, 1U);
  EXPECT_EQ(c.over[(1234 / 16) * 256 + 44], 1);
  const std::uint64_t first = store.bytesRead() - opened;
  EXPECT_LT(first, 1'000'000U);
  EXPECT_GE(first, 512U * 256 * 5);  // the largest values, and the flags
  // Again, and other numbers of the same picture: nothing more, or the sums only.
  (void)heatColumns(store, kAllLayers, Scale::kCapacity, Aggregate::kMax, all, 256);
  EXPECT_EQ(store.bytesRead() - opened, first);
  (void)heatColumns(store, kAllLayers, Scale::kCapacity, Aggregate::kMean, all, 256);
  EXPECT_EQ(store.bytesRead() - opened, first + std::uint64_t{512} * 256 * 8);

  // A cursor on a step: two columns of the 128 steps that lie together.
  const std::uint64_t pages = store.pagesRead();
  const std::uint64_t before = store.bytesRead();
  const HeatColumns one = heatColumns(store, 1, Scale::kCapacity, Aggregate::kMax, {1234, 1235}, 1);
  EXPECT_EQ(one.over[44], 1);
  EXPECT_EQ(store.pagesRead() - pages, 2U);
  EXPECT_EQ(store.bytesRead() - before, 2U * 128 * 256 * 4);
  // The next step lies on the same pages.
  (void)heatColumns(store, 1, Scale::kCapacity, Aggregate::kMax, {1233, 1234}, 1);
  EXPECT_EQ(store.pagesRead() - pages, 2U);
}

TEST(ScenarioTexts, ResolvesAFileOnceAndAgainWhenItWasWritten) {
  namespace fs = std::filesystem;
  const fs::path shipped = scenariosFolder();
  const std::string kTiny = "[model]\nfile = \"" + (shipped / "models/mixtral_8x7b.json").string() +
                            "\"\n[hardware]\nfile = \"" +
                            (shipped / "hardware/hgx_h100.toml").string() +
                            "\"\n[workload]\nkind = \"decode\"\nbatch = 32\ncontext = 128\n"
                            "steps = 12\nrouting = { synthetic = \"zipf\", s = 1.0 }\n"
                            "[run]\nseed = 3\n";
  const auto write = [](const std::string& name, const std::string& text) {
    std::ofstream(name, std::ios::binary) << text;
  };
  const std::string other = "faulty.toml";
  write(other, "this is no scenario");
  write("tiny.toml", kTiny);
  const std::vector<fs::path> files = {"missing.toml", other, "tiny.toml"};
  scenario::ReadOptions options;
  options.presets_root = scenariosFolder().string();
  const std::string text = scenario::canonical_text(scenario::read_scenario("tiny.toml", options));
  ScenarioTexts texts;
  EXPECT_EQ(texts.withText(files, text), fs::path("tiny.toml"));
  EXPECT_EQ(texts.resolved(), 2U);
  EXPECT_EQ(texts.withText(files, text), fs::path("tiny.toml"));
  EXPECT_EQ(texts.withText(files, "no such text"), fs::path());
  EXPECT_EQ(texts.withText(files, ""), fs::path());  // as what cannot be read would have
  EXPECT_EQ(texts.resolved(), 2U);
  // Written again with another seed: it is no longer the one.
  std::string changed = kTiny;
  changed.replace(changed.find("seed = 3"), 8, "seed = 4");
  write("tiny.toml", changed);
  fs::last_write_time("tiny.toml", fs::file_time_type::clock::now() + std::chrono::seconds(2));
  EXPECT_EQ(texts.withText(files, text), fs::path());
  EXPECT_EQ(texts.resolved(), 3U);
}

TEST(RunStore, DropsThePagesLongestUnusedAboveItsBudget) {
  // 7 columns x 8 pages of 128 steps, 128 KiB each.
  run::Inventory inv = testing::demoInventory();
  inv.experts = 256;
  inv.moe_layers = {0};
  inv.placement.assign(inv.experts, 0);
  run::RunMeta meta;
  meta.detail = run::Detail::kSteps;
  constexpr std::uint32_t kSteps = 1024;
  {
    run::RunWriter writer("budget.h5", meta, inv);
    run::StepRecord r = run::make_step(inv);
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      r.scalars.start_ps = s;
      r.scalars.end_ps = s + 1;
      r.expert_kept.assign(inv.experts, s);
      writer.append(r);
    }
    (void)writer.finish();
  }
  // The 32 pages used last stay whatever the budget is: those of one row are among them.
  const RunStore store(std::filesystem::path("budget.h5"), {}, 1U << 20);
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t s = 0; s < kSteps; s += 32) {
      EXPECT_EQ(store.expertRow(kAllLayers, s).kept[7], s);
      EXPECT_LE(store.cachedBytes(), 32U * 131072);
    }
  }
  EXPECT_EQ(store.pagesRead(), 2U * 8 * 7);
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

// On an axis of time each column has the steps that its time holds; none is lost.
TEST(Warp, ColumnsOfTimeHoldEveryStepAndTheSpike) {
  const auto run = std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(testing::demoRun(300)), "demo");
  const auto times = timeScaleOf(*run);
  ASSERT_NE(times, nullptr);
  for (const std::size_t columns : {64U, 200U, 900U}) {
    const Columns<double> c =
        overColumns(times.get(), {0, 300}, columns,
                    [&](TimeWindow w, std::size_t n) { return seriesColumns(*run, w, n); });
    ASSERT_EQ(c.columns, columns);
    const auto i = static_cast<std::size_t>(run::StepSeries::kOverflow);
    std::vector<std::uint8_t> seen(300, 0);
    const std::vector<double> edges = columnEdges(times.get(), {0, 300}, columns);
    for (std::size_t col = 0; col < columns; ++col) {
      double most = 0;
      for (auto s = static_cast<std::uint64_t>(edges[col] + 1e-6);
           static_cast<double>(s) < edges[col + 1] - 1e-6 && s < 300; ++s) {
        seen[s] = 1;
        most = std::max(most, static_cast<double>(run->data().steps[s].overflow));
      }
      EXPECT_GE(c.max[col * c.width + i], most) << col;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 300);
  }
}

TEST(Warp, TheOtherRunLiesUnderTheSameTime) {
  // B is A with every step twice as long: at the same time it has done half of the steps.
  run::RunData slow = testing::demoRun(200);
  for (run::StepScalars& s : slow.steps) {
    s.start_ps *= 2;
    s.end_ps *= 2;
  }
  const RunStore a(std::make_shared<const run::RunData>(testing::demoRun(200)), "a");
  const RunStore b(std::make_shared<const run::RunData>(std::move(slow)), "b");
  const auto ta = timeScaleOf(a);
  const auto tb = timeScaleOf(b);
  const auto bySteps = otherSeries(b, nullptr, nullptr, {0, 200}, 100, run::StepSeries::kImbalance);
  const auto byTime =
      otherSeries(b, ta.get(), tb.get(), {0, 200}, 100, run::StepSeries::kImbalance);
  ASSERT_EQ(bySteps.size(), 100U);
  ASSERT_EQ(byTime.size(), 100U);
  const Columns<double> half = seriesColumns(b, {99, 100}, 1);
  EXPECT_NEAR(byTime.back(), half.mean(0, static_cast<std::size_t>(run::StepSeries::kImbalance)),
              0.02);
}

TEST(ExpertNumbers, AreThoseOfTheStepsAndABoundForLongRuns) {
  const RunStore run(std::make_shared<const run::RunData>(testing::demoRun(300)), "demo");
  const ExpertNumbers n = expertNumbers(run, 2);
  ASSERT_EQ(n.p99.size(), 64U);
  EXPECT_FALSE(n.bound);
  std::vector<double> kept;
  std::uint64_t dropped = 0;
  for (std::uint64_t s = 8; s < 300; ++s) {  // without warm-up
    kept.push_back(run.expertRow(2, s).kept[19]);
    dropped += run.expertRow(2, s).dropped[19];
  }
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(n.p99[19], kept[static_cast<std::size_t>(std::ceil(0.99 * 292)) - 1]);
  EXPECT_EQ(n.dropped[19], dropped);
  EXPECT_GT(dropped, 0U);
  const RunStore summary(
      std::make_shared<const run::RunData>(testing::demoRun(300, run::Detail::kSummary)), "s");
  const ExpertNumbers bound = expertNumbers(summary, kAllLayers);
  const ExpertNumbers exact = expertNumbers(run, kAllLayers);
  EXPECT_TRUE(bound.bound);
  EXPECT_TRUE(bound.dropped.empty());
  for (std::size_t e = 0; e < 64; ++e) EXPECT_GE(bound.p99[e], exact.p99[e]) << e;
}

TEST(PerToken, DividesTimesAndEnergyAndNothingElse) {
  run::RunData run;
  run.metrics = {{"measured steps", 10, ""},  {"tokens", 200, ""},   {"span", 400, "ms"},
                 {"step time p50", 60, "us"}, {"energy", 1000, "J"}, {"imbalance mean", 1.5, ""}};
  const run::RunData per = perToken(run);
  EXPECT_EQ(per.metrics[1].value, 200);
  EXPECT_EQ(per.metrics[2].value, 2);
  EXPECT_EQ(per.metrics[2].unit, "ms/token");
  EXPECT_EQ(per.metrics[3].value, 3);
  EXPECT_EQ(per.metrics[4].value, 5);
  EXPECT_EQ(per.metrics[5].value, 1.5);
  EXPECT_EQ(per.metrics[5].unit, "");
}

// Five requests: their latencies are counted where the tokens appeared.
TEST(Latency, PercentilesOfABinAreThoseOfItsRequests) {
  run::RunData data = testing::demoRun(100);
  const auto end = [&](std::uint64_t s) { return data.steps[s].end_ps; };
  for (std::uint64_t i = 0; i < 5; ++i) {
    run::RequestRecord r;
    r.id = i;
    r.arrival_ps = end(i);
    r.first_token_ps = end(10 + i);
    r.end_ps = end(40 + 10 * i);
    r.output_tokens = 11;
    data.requests.push_back(r);
  }
  data.meta.scenario_text += "workload.slo.ttft = \"200 ms\"\nworkload.slo.tpot = \"20 ms\"\n";
  EXPECT_EQ(sloTargets(data, "ttft"), std::vector<double>{2e11});
  EXPECT_EQ(sloTargets(data, "tpot"), std::vector<double>{2e10});
  run::RunData tiers = data;
  tiers.meta.scenario_text +=
      "workload.tiers[0].ttft = \"100 ms\"\nworkload.tiers[1].ttft = \"500 ms\"\n";
  EXPECT_EQ(sloTargets(tiers, "ttft"), (std::vector<double>{1e11, 5e11}));
  const std::vector<run::RequestRecord> requests = data.requests;
  const RunStore run(std::make_shared<const run::RunData>(std::move(data)), "demo");
  const LatencySeries series(run);
  ASSERT_FALSE(series.empty());
  const auto bins = series.bins({0, 10, 13, 20, 100});
  ASSERT_EQ(bins.size(), 4U);
  EXPECT_EQ(bins[0].first, 0U);
  EXPECT_TRUE(std::isnan(bins[0].ttft50));
  EXPECT_EQ(bins[1].first, 3U);  // steps 10, 11, 12
  EXPECT_EQ(bins[2].first, 2U);
  const auto ttft = [&](std::size_t i) {
    return static_cast<double>(requests[i].first_token_ps - requests[i].arrival_ps);
  };
  std::vector<double> three = {ttft(0), ttft(1), ttft(2)};
  std::sort(three.begin(), three.end());
  EXPECT_EQ(bins[1].ttft50, three[1]);
  EXPECT_EQ(bins[1].ttft99, three[2]);
  EXPECT_EQ(bins[3].ended, 5U);
  EXPECT_EQ(bins[3].first, 0U);
  // (end - first token) / 10 of the last one is the largest.
  EXPECT_EQ(bins[3].tpot99,
            static_cast<double>(requests[4].end_ps - requests[4].first_token_ps) / 10);
}

TEST(Health, JudgesByTheAlarmsOfTheRunsOwnScenario) {
  // The demo run has an event of its own that speaks of the gate entropy: rules' lines only.
  const auto has = [](const Table& t, const std::string& name) {
    for (const auto& row : t.rows) {
      for (const std::string& cell : row) {
        if (cell.starts_with("alarm \"" + name + "\" raised")) return true;
      }
    }
    return false;
  };
  run::RunData run = demoRun(100);
  const HealthReport before = healthOf(run, "demo");
  EXPECT_FALSE(before.ownRules);
  EXPECT_EQ(before.rules, "the default rules: the run's scenario has no monitor.alarms");
  ASSERT_TRUE(has(before.alarms, "gate entropy")) << "the default's name";

  // As the canonical text writes them: no quotes.
  run.meta.scenario_text +=
      "monitor.alarms[0].signal = gate_entropy\nmonitor.alarms[0].name = 7 \"hot\" gates\n"
      "monitor.alarms[0].above = 1.25\nmonitor.alarms[0].clear = 1\n"
      "monitor.alarms[0].window = 2\nmonitor.alarms[0].statistic = max\n"
      "monitor.alarms[0].action = shed\n"
      "monitor.alarms[1].signal = step_time\nmonitor.alarms[1].name = slow\n"
      "monitor.alarms[1].above = 1 h\nmonitor.alarms[1].clear = 1 h\n"
      "monitor.alarms[1].window = 8\nmonitor.alarms[1].statistic = mean\n";
  const health::AlarmRules rules = health::alarm_rules_of(run);
  ASSERT_EQ(rules.rules.size(), 2U) << rules.source;
  EXPECT_TRUE(rules.own);
  EXPECT_EQ(rules.rules[0].name, "7 \"hot\" gates");
  EXPECT_DOUBLE_EQ(rules.rules[0].threshold, 1.25);
  EXPECT_DOUBLE_EQ(rules.rules[0].clear, 1);
  EXPECT_EQ(rules.rules[0].window, 2U);
  EXPECT_EQ(rules.rules[0].statistic, scenario::AlarmStatistic::kMax);
  EXPECT_EQ(rules.rules[0].action, scenario::AlarmAction::kShed);
  EXPECT_DOUBLE_EQ(rules.rules[1].threshold, 3600);
  const HealthReport own = healthOf(run, "demo");
  EXPECT_TRUE(own.ownRules);
  EXPECT_TRUE(has(own.alarms, "7 \"hot\" gates"));
  EXPECT_FALSE(has(own.alarms, "gate entropy")) << "a default rule that the scenario lacks";

  run.meta.scenario_text += "monitor.alarms[2].signal = no_such\n";
  const health::AlarmRules bad = health::alarm_rules_of(run);
  EXPECT_FALSE(bad.own);
  EXPECT_NE(bad.source.find("cannot be read"), std::string::npos) << bad.source;
  EXPECT_NE(bad.source.find("monitor.alarms[2].signal"), std::string::npos) << bad.source;
  EXPECT_GT(bad.rules.size(), 5U);
}

}  // namespace
}  // namespace switchyard::gui
