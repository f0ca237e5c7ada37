// SPDX-License-Identifier: Apache-2.0
// Placement policies against published vectors, brute force and real loads
// (tests/sim/data/placement).
#include "sim/placement/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace switchyard::placement {
namespace {

// README of EPLB: 2 layers, 12 experts, 4 groups, 2 nodes, 8 GPUs, 16 slots.
const std::vector<std::vector<double>> kReadmeLoads{
    {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
    {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
const std::vector<std::vector<std::uint32_t>> kReadmeSlots{
    {5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
    {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

/// [26 layers][64 experts] choices of DeepSeek-V2-Lite on the task law.
std::vector<std::vector<double>> law_loads() {
  std::istringstream in(read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                  "/tests/sim/data/placement/deepseek_v2_lite_law.csv"));
  std::vector<std::vector<double>> out(26, std::vector<double>(64, -1));
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::size_t layer = 0, expert = 0;
    double count = 0;
    char comma = 0;
    std::istringstream fields(line);
    fields >> layer >> comma >> expert >> comma >> count;
    out.at(layer - 1).at(expert) = count;
  }
  return out;
}

}  // namespace

TEST(Eplb, ReproducesTheReadmeOfTheReference) {
  const EplbShape shape{.slots = 16, .groups = 4, .nodes = 2, .ranks = 8};
  const double imbalances[] = {1.208132, 1.242215};
  for (std::size_t l = 0; l < 2; ++l) {
    const std::vector<std::uint32_t> slots = eplb(kReadmeLoads[l], shape);
    EXPECT_EQ(slots, kReadmeSlots[l]) << "layer " << l;
    const Row row = row_of_slots(slots, 12, 8);
    EXPECT_NEAR(imbalance(row, kReadmeLoads[l], 8), imbalances[l], 5e-7) << "layer " << l;
    EXPECT_TRUE(duplicates({8, {row}}).empty());
  }
}

TEST(Eplb, GroupsThatTheNodesDoNotDivideArePackedGlobally) {
  const std::vector<std::uint32_t> global =
      eplb(kReadmeLoads[0], {.slots = 16, .groups = 1, .nodes = 1, .ranks = 8});
  EXPECT_EQ(eplb(kReadmeLoads[0], {.slots = 16, .groups = 3, .nodes = 2, .ranks = 8}), global);
  EXPECT_NE(global, kReadmeSlots[0]);
  EXPECT_LE(imbalance(row_of_slots(global, 12, 8), kReadmeLoads[0], 8), 1.208132);
}

TEST(Eplb, EqualLoadsGoToTheLowerIdFirstAndTheCopiesThatMeetAreReported) {
  // Packing looks at loads only: with equal ones both copies of an expert end on one rank.
  const std::vector<std::uint32_t> slots =
      eplb(std::vector<double>(4, 1.0), {.slots = 8, .groups = 1, .nodes = 1, .ranks = 2});
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{0, 2, 0, 2, 1, 3, 1, 3}));
  EXPECT_EQ(duplicates({2, {row_of_slots(slots, 4, 2)}}).size(), 4U);
}

TEST(Eplb, ReportsCopiesOfAHotExpertThatShareAGpu) {
  // One hot expert and two GPUs (deepseek-ai/EPLB#28): more copies than GPUs must share.
  const std::vector<double> load{1000, 1};
  const Row row = row_of_slots(eplb(load, {.slots = 6, .groups = 1, .nodes = 1, .ranks = 2}), 2, 2);
  ASSERT_EQ(row[0].size(), 5U);
  const std::vector<Duplicate> found = duplicates({2, {row}});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].expert, 0U);
  EXPECT_EQ(found[0].copies + found[1].copies, 5U);
  EXPECT_NE(describe(found).find("3 copies of an expert on a rank that has one already"),
            std::string::npos)
      << describe(found);
  EXPECT_TRUE(describe({}).empty());
}

TEST(Eplb, NamesTheRuleAShapeBreaks) {
  const std::vector<double> load(12, 1.0);
  const auto refused = [&](const EplbShape& shape, const std::string& rule) {
    EXPECT_NE(message_of([&] { static_cast<void>(eplb(load, shape)); }).find(rule),
              std::string::npos)
        << rule;
  };
  refused({.slots = 16, .groups = 5, .nodes = 1, .ranks = 8}, "the 5 groups divide the 12 experts");
  refused({.slots = 16, .groups = 4, .nodes = 3, .ranks = 8}, "the 3 nodes divide the 8 ranks");
  refused({.slots = 17, .groups = 4, .nodes = 2, .ranks = 8}, "the 8 ranks divide the 17 slots");
  refused({.slots = 8, .groups = 4, .nodes = 2, .ranks = 8}, "8 slots hold the 12 experts");
  const std::vector<double> bad{1, -2};
  EXPECT_NE(message_of([&] {
              static_cast<void>(eplb(bad, {.slots = 2, .groups = 1, .nodes = 1, .ranks = 2}));
            }).find("the load of expert 1 is -2"),
            std::string::npos);
}

TEST(Packing, FillsEveryPackAndKeepsSingleItemsInPlace) {
  const std::vector<double> weight{5, 1, 4, 2, 3, 6};
  const Packing p = balanced_packing(weight, 2);
  EXPECT_EQ(p.pack, (std::vector<std::uint32_t>{1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(balanced_packing(weight, 6).pack, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_THROW(static_cast<void>(balanced_packing(weight, 4)), InputError);
}

TEST(RealRouting, ContiguousRanksOfDeepseekV2LiteOnLawAreAsUnevenAsPublished) {
  const std::vector<std::vector<double>> loads = law_loads();
  const std::map<std::uint32_t, std::pair<double, double>> expected{
      {4, {1.181975, 1.626836}}, {8, {1.385225, 2.321444}}, {16, {1.697118, 2.410472}}};
  double all = 0;
  for (const auto& layer : loads) all = std::accumulate(layer.begin(), layer.end(), all);
  EXPECT_EQ(all, 1299012);
  for (const auto& [ranks, figures] : expected) {
    double sum = 0, worst = 0;
    for (const auto& layer : loads) {
      const double i = imbalance(contiguous(64, ranks), layer, ranks);
      sum += i;
      worst = std::max(worst, i);
    }
    EXPECT_NEAR(sum / 26, figures.first, 5e-7) << ranks << " ranks";
    EXPECT_NEAR(worst, figures.second, 5e-7) << ranks << " ranks";
  }
}

TEST(RealRouting, EplbEvensDeepseekV2LiteOutAndCopiesEvenItFurther) {
  double packed = 0, copied = 0, extra = 0;
  for (const auto& layer : law_loads()) {
    const auto with = [&](std::uint32_t slots) {
      return imbalance(
          row_of_slots(eplb(layer, {.slots = slots, .groups = 1, .nodes = 1, .ranks = 8}), 64, 8),
          layer, 8);
    };
    packed += with(64) / 26;
    copied += with(96) / 26;
    extra += imbalance(replicated(layer, 96, 8), layer, 8) / 26;
  }
  EXPECT_LT(packed, 1.15);
  EXPECT_LT(copied, packed);
  EXPECT_LT(copied, 1.01);
  EXPECT_LT(extra, 1.385225);
  EXPECT_GE(extra, copied);
}

TEST(Replicated, SpreadsCopiesOverRanksThatLackTheExpert) {
  const std::vector<double> load{100, 1, 1, 1};
  const Row row = replicated(load, 8, 4);
  EXPECT_EQ(row[0], (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(duplicates({4, {row}}).empty());
  // As many slots as experts times ranks: everything everywhere.
  for (const auto& ranks : replicated(std::vector<double>(4, 1.0), 16, 4)) {
    std::vector<std::uint32_t> sorted = ranks;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  }
}

TEST(Affinity, FindsTheBestPartitionOfASmallGraph) {
  // Brute force over all ways to put 8 experts on 2 ranks of 4.
  std::vector<double> together(64, 0);
  const auto pair = [&](std::size_t a, std::size_t b, double w) {
    together[a * 8 + b] = together[b * 8 + a] = w;
  };
  pair(0, 5, 9), pair(0, 3, 7), pair(3, 6, 8), pair(5, 6, 5), pair(1, 2, 6), pair(2, 4, 7);
  pair(4, 7, 9), pair(1, 7, 4), pair(0, 1, 2), pair(6, 7, 3);
  const std::vector<double> load(8, 1.0);
  double best = 0;
  for (std::uint32_t set = 0; set < 256; ++set) {
    Row row(8);
    std::uint32_t ones = 0;
    for (std::uint32_t e = 0; e < 8; ++e) {
      row[e] = {(set >> e) & 1U};
      ones += (set >> e) & 1U;
    }
    if (ones == 4) best = std::max(best, kept_together(row, together));
  }
  const Row row = affinity(load, together, 2, 0);
  EXPECT_DOUBLE_EQ(kept_together(row, together), best);
  EXPECT_GT(best, kept_together(contiguous(8, 2), together));
  EXPECT_EQ(imbalance(row, load, 2), 1.0);
}

TEST(Affinity, KeepsTheBoundOnARanksLoad) {
  // The two heavy experts belong together, the bound keeps them apart.
  const std::vector<double> load{10, 10, 1, 1};
  std::vector<double> together(16, 0);
  together[1] = together[4] = 100;
  const Row free = affinity(load, together, 2, 0);
  const Row bounded = affinity(load, together, 2, 1.2);
  EXPECT_LE(imbalance(bounded, load, 2), 1.2);
  EXPECT_NE(bounded[0], bounded[1]);
  EXPECT_EQ(free[0], free[1]);
}

TEST(TopologyHot, PutsLoadWhereLinksAreFast) {
  const std::vector<double> load{8, 7, 6, 5, 4, 3, 2, 1};
  const Row even = topology_hot(load, std::vector<double>{1, 1});
  EXPECT_EQ(imbalance(even, load, 2), 1.0);
  const std::vector<double> sums =
      rank_loads(topology_hot(load, std::vector<double>{1, 3}), load, 2);
  EXPECT_EQ(sums, (std::vector<double>{12, 24}));
  EXPECT_THROW(static_cast<void>(topology_hot(load, std::vector<double>{1, 0})), InputError);
}

TEST(Rows, SlotsWithoutAnExpertOrOfAnUnknownOneAreRefused) {
  const std::vector<std::uint32_t> missing{0, 0, 1, 1}, unknown{0, 1, 2, 9};
  EXPECT_NE(message_of([&] {
              static_cast<void>(row_of_slots(missing, 3, 2));
            }).find("expert 2 has a slot"),
            std::string::npos);
  EXPECT_NE(message_of([&] { static_cast<void>(row_of_slots(unknown, 3, 2)); }).find("not 9"),
            std::string::npos);
  EXPECT_EQ(round_robin(4, 2), (Row{{0}, {1}, {0}, {1}}));
  EXPECT_THROW(static_cast<void>(contiguous(6, 4)), InputError);
}

}  // namespace switchyard::placement
