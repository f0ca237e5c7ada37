// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_stats.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace switchyard {
namespace {

/// E = 4, k = 2, one layer, all logits 0. Each row lists its candidates best first; the first two
/// are chosen and kept.
RoutingTrace by_hand(const std::vector<std::vector<std::uint16_t>>& rows) {
  RoutingTrace trace;
  trace.header.gate = gate_mixtral(4, 2);
  trace.header.layers = {5};
  trace.header.candidates = 4;
  trace.header.slots = 2;
  trace.sequences = {{1, 0, "", ""}};
  trace.step_begin = {0, rows.size()};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    trace.tokens.sequence.push_back(0);
    trace.tokens.position.push_back(static_cast<std::uint32_t>(r));
    trace.tokens.token.push_back(1);
    trace.tokens.phase.push_back(0);
    trace.tokens.step.push_back(0);
    TraceRouting& out = trace.routing;
    out.candidates.insert(out.candidates.end(), rows[r].begin(), rows[r].end());
    out.logit.insert(out.logit.end(), 4, 0.0F);
    out.lse.push_back(std::log(4.0F));
    for (std::size_t j = 0; j < 2; ++j) {
      out.first.push_back(rows[r][j]);
      out.chosen.push_back(rows[r][j]);
      out.weights.push_back(0.5F);
      out.outcome.push_back(1);
    }
  }
  return trace;
}

const std::vector<std::vector<std::uint16_t>> kThree = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}};

TEST(TraceStats, MatchAHandCalculation) {
  const TraceStats stats = trace_stats(by_hand(kThree));
  ASSERT_EQ(stats.layers.size(), 1U);
  const LayerStats& layer = stats.layers[0];
  EXPECT_EQ(layer.layer, 5U);
  EXPECT_EQ(layer.load, (std::vector<std::uint64_t>{3, 2, 1, 0}));
  EXPECT_EQ(layer.assignments, 6U);
  EXPECT_EQ(layer.kept, 6U);
  EXPECT_EQ(layer.overflow(), 0U);
  // Mean 1.5, variance (2.25 + 0.25 + 0.25 + 2.25) / 4 = 1.25.
  EXPECT_DOUBLE_EQ(*layer.load_cv, std::sqrt(1.25) / 1.5);
  EXPECT_DOUBLE_EQ(*layer.top3_share, 1.0);
  EXPECT_DOUBLE_EQ(*layer.imbalance, 2.0);  // 3 / 1.5
  // 1/2 log2 2 + 1/3 log2 3 + 1/6 log2 6
  EXPECT_NEAR(*layer.entropy_load, 0.5 + std::log2(3.0) / 3 + std::log2(6.0) / 6, 1e-12);
  EXPECT_NEAR(*layer.entropy_gate_mean, 2.0, 1e-6);  // Four equal logits.
  EXPECT_NEAR(*layer.entropy_gate_p95, 2.0, 1e-6);
  EXPECT_DOUBLE_EQ(*layer.switch_rate, 0.5);  // 0 → 0 → 1.
  EXPECT_DOUBLE_EQ(*layer.set_switch, 0.5);   // Each pair shares one of two.
  // Ids 0 1 0 2 1 0: mean of squares 1, mean 2/3.
  EXPECT_NEAR(*layer.index_variance, 1.0 - 4.0 / 9.0, 1e-12);
  EXPECT_EQ(stats.load_cv, layer.load_cv);
  EXPECT_DOUBLE_EQ(stats.top3_fair, 0.75);
  EXPECT_EQ(stats.window, 3U);
  EXPECT_DOUBLE_EQ(*stats.load_cv_floor, std::sqrt(0.5 / 1.5));
}

TEST(TraceStats, UseWholeWindowsOnly) {
  // W = 1: loads 1 1 0 0 in every window, std 0.5, mean 0.5.
  EXPECT_DOUBLE_EQ(*trace_stats(by_hand(kThree), 1).load_cv, 1.0);
  // W = 2: loads 2 1 1 0, variance 0.5, mean 1; the third token is left out.
  const TraceStats two = trace_stats(by_hand(kThree), 2);
  EXPECT_DOUBLE_EQ(*two.load_cv, std::sqrt(0.5));
  EXPECT_EQ(two.layers[0].load, (std::vector<std::uint64_t>{3, 2, 1, 0}));
  EXPECT_EQ(trace_stats(by_hand(kThree), 100).window, 3U);
}

TEST(TraceStats, GiveTheCountingFloorsOfTheClaims) {
  // claims.md: E = 16, k = 2: 23.4 % at W = 128, 8.37 % at 1000.
  RoutingTrace trace;
  trace.header.gate = gate_mixtral(16, 2);
  trace.header.layers = {0};
  trace.header.candidates = 16;
  trace.header.slots = 2;
  trace.sequences = {{1000, 0, "", ""}};
  for (std::uint32_t r = 0; r < 1000; ++r) {
    trace.tokens.sequence.push_back(0);
    trace.tokens.position.push_back(r);
    trace.tokens.token.push_back(0);
    trace.tokens.phase.push_back(0);
    trace.tokens.step.push_back(0);
    for (std::uint16_t m = 0; m < 16; ++m) {
      trace.routing.candidates.push_back(static_cast<std::uint16_t>((2 * r + m) % 16));
      trace.routing.logit.push_back(0);
    }
    trace.routing.lse.push_back(std::log(16.0F));
    for (std::uint16_t j = 0; j < 2; ++j) {
      trace.routing.first.push_back(static_cast<std::uint16_t>((2 * r + j) % 16));
      trace.routing.chosen.push_back(trace.routing.first.back());
      trace.routing.weights.push_back(0.5F);
      trace.routing.outcome.push_back(1);
    }
  }
  trace.step_begin = {0, 1000};
  EXPECT_NEAR(*trace_stats(trace, 128).load_cv_floor, 0.234, 5e-4);
  EXPECT_NEAR(*trace_stats(trace).load_cv_floor, 0.0837, 5e-5);
  const TraceStats even = trace_stats(trace);  // Round robin: 125 each.
  EXPECT_DOUBLE_EQ(*even.load_cv, 0.0);
  EXPECT_DOUBLE_EQ(*even.imbalance, 1.0);
  EXPECT_DOUBLE_EQ(*even.top3_share, 3.0 / 16.0);
  EXPECT_DOUBLE_EQ(*even.entropy_load, 4.0);
  EXPECT_DOUBLE_EQ(*even.set_switch, 1.0);
}

TEST(TraceStats, CountOutcomesAndLoadWhereItRuns) {
  RoutingTrace trace = by_hand(kThree);
  trace.routing.chosen[2] = 3;  // t1: 0 rerouted to 3.
  trace.routing.outcome[2] = 2;
  trace.routing.chosen[4] = kNoExpert;  // t2: 1 dropped.
  trace.routing.weights[4] = 0;
  trace.routing.outcome[4] = 4;
  trace.routing.outcome[5] = 3;  // t2: 0 queued.
  const TraceStats stats = trace_stats(trace);
  const LayerStats& layer = stats.layers[0];
  EXPECT_EQ(layer.load, (std::vector<std::uint64_t>{1, 1, 1, 1}));
  EXPECT_EQ(layer.kept, 3U);
  EXPECT_EQ(layer.rerouted, 1U);
  EXPECT_EQ(layer.queued, 1U);
  EXPECT_EQ(layer.dropped, 1U);
  EXPECT_EQ(layer.overflow(), 3U);
  EXPECT_EQ(layer.assignments, layer.kept + layer.overflow());
  EXPECT_EQ(stats.overflow(), 3U);
}

TEST(TraceStats, LeaveWarmUpOutAndSayWhatHasNoData) {
  RoutingTrace trace = by_hand(kThree);
  trace.tokens.phase = {2, 0, 1};
  const TraceStats stats = trace_stats(trace);
  EXPECT_EQ(stats.tokens, 2U);
  EXPECT_EQ(stats.warm_up, 1U);
  EXPECT_EQ(stats.prefill, 1U);
  EXPECT_EQ(stats.decode, 1U);
  EXPECT_EQ(stats.layers[0].load, (std::vector<std::uint64_t>{2, 1, 1, 0}));
  trace.tokens.phase = {2, 2, 2};
  const TraceStats none = trace_stats(trace);
  EXPECT_FALSE(none.load_cv || none.load_cv_floor || none.imbalance || none.switch_rate ||
               none.entropy_gate_mean || none.index_variance || none.top3_share);
}

TEST(TraceStats, SkipPositionsThatAreNotNeighbours) {
  RoutingTrace trace = by_hand(kThree);
  trace.tokens.position = {0, 2, 3};
  EXPECT_DOUBLE_EQ(*trace_stats(trace).switch_rate, 1.0);  // Only 2 → 3 is a pair: 0 → 1.
}

TEST(TraceStats, GateEntropyIsThatOfTheSoftmaxAndItsP95TheNearestRank) {
  RoutingTrace trace = by_hand(kThree);
  // Row 0: p = 1/2 1/4 1/8 1/8 → 1.75 bits. Row 1: one certain expert → 0. Row 2: equal → 2.
  const float ln2 = std::log(2.0F);
  const std::vector<float> first = {3 * ln2, 2 * ln2, ln2, ln2};
  std::copy(first.begin(), first.end(), trace.routing.logit.begin());
  trace.routing.lse[0] = 4 * ln2;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> second = {1.0F, -inf, -inf, -inf};
  std::copy(second.begin(), second.end(), trace.routing.logit.begin() + 4);
  trace.routing.lse[1] = 1.0F;
  const LayerStats layer = trace_stats(trace).layers[0];
  EXPECT_NEAR(*layer.entropy_gate_mean, 3.75 / 3, 1e-6);
  EXPECT_NEAR(*layer.entropy_gate_p95, 2.0, 1e-6);  // ceil(0.95 * 3) = 3rd of 3.
}

TEST(TraceStats, HaveNoGateEntropyWithoutAllLogits) {
  RoutingTrace trace = by_hand(kThree);
  trace.header.gate = gate_mixtral(5, 2);
  const TraceStats stats = trace_stats(trace);
  EXPECT_FALSE(stats.entropy_gate_mean);
  EXPECT_TRUE(stats.load_cv);
}

}  // namespace
}  // namespace switchyard
