// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_stats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/trace/trace_activity.hpp"
#include "engine/trace/trace_losses.hpp"
#include "engine/trace/trace_margins.hpp"

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
  EXPECT_NEAR(*layer.entropy_gate_p95, 2.0, 1e-6);         // ceil(0.95 * 3) = 3rd of 3.
  EXPECT_NEAR(*layer.entropy_gate_batch_p95, 1.25, 1e-6);  // One batch: its mean.
  trace.tokens.step = {0, 0, 1};
  // Batches (1.75 + 0) / 2 and 2: ceil(0.95 * 2) = 2nd of 2.
  EXPECT_NEAR(*trace_stats(trace).layers[0].entropy_gate_batch_p95, 2.0, 1e-6);
}

TEST(TraceStats, HaveNoGateEntropyWithoutAllLogits) {
  RoutingTrace trace = by_hand(kThree);
  trace.header.gate = gate_mixtral(5, 2);
  const TraceStats stats = trace_stats(trace);
  EXPECT_FALSE(stats.entropy_gate_mean);
  EXPECT_TRUE(stats.load_cv);
}

/// k = 1 of two experts, two layers, `p0` = probability of expert 0 [layer][row]; the better one is
/// chosen.
RoutingTrace two_experts(const std::vector<std::vector<double>>& p0, double lse) {
  RoutingTrace trace;
  trace.header.gate = gate_mixtral(2, 1);
  trace.header.candidates = 2;
  trace.header.slots = 1;
  const std::size_t rows = p0[0].size();
  for (std::size_t l = 0; l < p0.size(); ++l) {
    trace.header.layers.push_back(static_cast<std::uint32_t>(l));
  }
  trace.sequences = {{2, 0, "", ""}, {2, 1, "", ""}};
  trace.step_begin = {0, rows};
  for (std::size_t r = 0; r < rows; ++r) {
    trace.tokens.sequence.push_back(r < 2 ? 0 : 1);
    trace.tokens.position.push_back(static_cast<std::uint32_t>(r % 2));
    trace.tokens.token.push_back(1);
    trace.tokens.phase.push_back(0);
    trace.tokens.step.push_back(0);
    for (const auto& layer : p0) {
      const double a = layer[r];
      const std::uint16_t best = a >= 0.5 ? 0 : 1;
      const double row_lse = lse + static_cast<double>(r);
      TraceRouting& out = trace.routing;
      out.candidates.insert(out.candidates.end(), {best, static_cast<std::uint16_t>(1 - best)});
      for (const double p : {std::max(a, 1 - a), std::min(a, 1 - a)}) {
        out.logit.push_back(static_cast<float>(std::log(p) + row_lse));
      }
      out.lse.push_back(static_cast<float>(row_lse));
      out.first.push_back(best);
      out.chosen.push_back(best);
      out.weights.push_back(1);
      out.outcome.push_back(1);
    }
  }
  return trace;
}

// engines.md bug row 19: wrong normalisation by k, padding counted, per layer instead of
// concatenated. Three tokens, the fourth is padding (here: warm-up).
TEST(TraceLosses, MatchAHandCalculationWithoutThePaddedToken) {
  RoutingTrace trace = two_experts({{.75, .75, .25, .75}, {.25, .25, .25, .75}}, 1.0);
  trace.tokens.phase[3] = static_cast<std::uint8_t>(Phase::kWarmUp);
  const TraceLosses losses = trace_losses(trace);
  EXPECT_EQ(losses.tokens, 3U);
  const LayerLosses& a = losses.layers[0];
  // f = 2/3, 1/3; P = 7/12, 5/12.
  EXPECT_NEAR(*a.switch_loss, 2 * (2.0 / 3 * 7 / 12 + 1.0 / 3 * 5 / 12), 1e-6);
  EXPECT_NEAR(*a.megatron, 19.0 / 18, 1e-6);
  // Sequence 0: counts 2, 0 of 2 and P = 3/4, 1/4: 1.5. Sequence 1: one token, 1.5.
  EXPECT_NEAR(*a.deepseek_seq, 1.5, 1e-6);
  EXPECT_NEAR(*a.z, (1.0 + 4.0 + 9.0) / 3, 1e-6);
  EXPECT_NEAR(*a.importance_cv2, 0.125 / 2.25, 1e-6);  // 7/4 and 5/4: variance 1/8, mean 3/2
  EXPECT_NEAR(*a.load_cv2, 0.5 / 2.25, 1e-6);          // 2 and 1
  EXPECT_NEAR(*a.max_violation, 2 / 1.5 - 1, 1e-12);
  EXPECT_NEAR(*losses.layers[1].switch_loss, 1.5, 1e-6);  // f = 0, 1; P = 1/4, 3/4
  // Both layers' rows together: f = 1/3, 2/3; P = 5/12, 7/12. The mean of the layers would
  // be 1.278.
  EXPECT_NEAR(*losses.hugging_face, 19.0 / 18, 1e-6);
}

TEST(TraceLosses, AreOneOrKForAnEvenRouterAndHaveNoValueWithoutAllLogits) {
  RoutingTrace trace = by_hand({{0, 1, 2, 3}, {2, 3, 0, 1}, {1, 0, 3, 2}, {3, 2, 1, 0}});
  const TraceLosses even = trace_losses(trace);
  EXPECT_NEAR(*even.layers[0].switch_loss, 1.0, 1e-6);
  EXPECT_NEAR(*even.layers[0].megatron, 1.0, 1e-6);
  EXPECT_NEAR(*even.layers[0].deepseek_seq, 1.0, 1e-6);
  EXPECT_NEAR(*even.hugging_face, 2.0, 1e-6);  // k
  EXPECT_NEAR(*even.layers[0].load_cv2, 0.0, 1e-12);
  trace.header.gate = gate_mixtral(5, 2);
  const TraceLosses partial = trace_losses(trace);
  EXPECT_FALSE(partial.layers[0].switch_loss || partial.hugging_face ||
               partial.layers[0].deepseek_seq);
  EXPECT_TRUE(partial.layers[0].z && partial.layers[0].load_cv2);
}

/// What the engine records beside candidates that are not all experts.
std::vector<double> gate_sum_of(const RoutingTrace& trace) {
  const TraceHeader& h = trace.header;
  std::vector<double> out(trace.sequences.size() * h.layer_count() * h.experts(), 0.0);
  std::vector<float> logits(h.experts());
  std::vector<double> p(h.experts());
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      for (std::uint32_t m = 0; m < h.candidates; ++m) {
        logits[trace.routing.candidates[trace.candidate_at(row, l, m)]] =
            trace.routing.logit[trace.candidate_at(row, l, m)];
      }
      gate_probabilities(h.gate, logits, trace.routing.lse[trace.layer_at(row, l)], p);
      for (std::uint32_t e = 0; e < h.experts(); ++e) {
        out[(trace.tokens.sequence[row] * h.layer_count() + l) * h.experts() + e] +=
            trace.tokens.phase[row] == static_cast<std::uint8_t>(Phase::kWarmUp) ? 0.0 : p[e];
      }
    }
  }
  return out;
}

TEST(TraceLosses, AreTheSameFromTheSumsOfATraceWithFewCandidates) {
  for (const GateScore score : {GateScore::kSoftmax, GateScore::kSigmoid}) {
    RoutingTrace trace = two_experts({{.75, .65, .25, .75}, {.25, .35, .25, .75}}, 1.0);
    trace.header.gate.score = score;
    trace.tokens.phase[3] = static_cast<std::uint8_t>(Phase::kWarmUp);
    const TraceLosses full = trace_losses(trace);
    trace.gate_sum = gate_sum_of(trace);
    // Only the best of two candidates stays.
    TraceRouting& r = trace.routing;
    for (std::size_t i = 0; 2 * i < r.candidates.size(); ++i) {
      r.candidates[i] = r.candidates[2 * i];
      r.logit[i] = r.logit[2 * i];
    }
    r.candidates.resize(r.candidates.size() / 2);
    r.logit.resize(r.logit.size() / 2);
    trace.header.candidates = 1;
    const TraceLosses few = trace_losses(trace);
    for (std::size_t l = 0; l < 2; ++l) {
      for (const auto field : {&LayerLosses::switch_loss, &LayerLosses::megatron,
                               &LayerLosses::deepseek_seq, &LayerLosses::importance_cv2}) {
        ASSERT_TRUE(full.layers[l].*field && few.layers[l].*field);
        EXPECT_NEAR(*(few.layers[l].*field), *(full.layers[l].*field), 1e-12);
      }
    }
    EXPECT_NEAR(few.hugging_face.value(), full.hugging_face.value(), 1e-12);
    // A row that is not a number leaves no value; without sums there is none either.
    trace.gate_sum[3] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(trace_losses(trace).layers[0].switch_loss.has_value());
    EXPECT_FALSE(trace_losses(trace).layers[1].switch_loss || trace_losses(trace).hugging_face);
    trace.gate_sum.clear();
    EXPECT_FALSE(trace_losses(trace).layers[0].switch_loss.has_value());
  }
}

TEST(TraceMargins, AreTheGapsAfterTheLastExpertChosen) {
  // Two experts, k = 1, probabilities a and 1 - a: the logits differ by ln(a / (1 - a)).
  RoutingTrace trace = two_experts({{.75, .500001, .25, .9}}, 1.0);
  trace.tokens.phase[3] = static_cast<std::uint8_t>(Phase::kWarmUp);
  const auto margins = trace_margins(trace);
  ASSERT_EQ(margins.size(), 2U);
  EXPECT_EQ(margins[0].rows, 3U);
  EXPECT_EQ(margins[0].near_ties, 1U);
  EXPECT_NEAR(margins[0].least.value(), 4e-6, 1e-6);
  EXPECT_NEAR(margins[0].p1.value(), 4e-6, 1e-6);
  EXPECT_NEAR(margins[0].p50.value(), std::log(3.0), 1e-6);
  EXPECT_EQ(margins[1].rows, 3U);
  // With a bias, what is compared is score + bias.
  trace.gate_bias = {0.0F, 0.125F};
  EXPECT_NEAR(trace_margins(trace)[0].p50.value(), 0.375, 1e-6);  // .75 - .25 - .125
  trace.header.gate.top_k = 2;                                    // nothing is left out
  EXPECT_EQ(trace_margins(trace)[0].rows, 0U);
  EXPECT_FALSE(trace_margins(trace)[0].p1);
}

TEST(TraceLosses, DivideASigmoidGatesScoresByTheirSum) {
  RoutingTrace trace = two_experts({{.25}}, 0.0);
  trace.header.gate.score = GateScore::kSigmoid;
  // Logits 0 and ln 3: sigmoid .5 and .75, shares .4 and .6; expert 1 chosen.
  trace.routing.logit = {std::log(3.0F), 0.0F};
  EXPECT_NEAR(*trace_losses(trace).layers[0].switch_loss, 2 * 0.6, 1e-6);
}

TEST(TraceActivity, CountsWhatAStepTouches) {
  RoutingTrace trace = by_hand(kThree);
  trace.tokens.phase = {0, 1, 2};
  trace.tokens.step = {0, 1, 1};
  trace.step_begin = {0, 1, 3};
  trace.header.policy.capacity.rule = CapacityRule::kShare;
  trace.routing.chosen[2] = 3;  // step 1: 0 rerouted to 3, 2 dropped; its warm-up row is left out
  trace.routing.outcome[2] = 2;
  trace.routing.chosen[3] = kNoExpert;
  trace.routing.outcome[3] = 4;
  const TraceActivity a = trace_activity(trace);
  ASSERT_EQ(a.steps.size(), 2U);
  EXPECT_EQ(a.steps[0].mix, StepMix::kPrefill);
  EXPECT_EQ(a.steps[0].accepted, 2U);
  EXPECT_EQ(a.steps[0].touched, 2U);
  EXPECT_EQ(a.steps[0].capacity, 1U);  // ceil(1 * 2 / 4)
  EXPECT_EQ(a.steps[1].mix, StepMix::kDecode);
  EXPECT_EQ(a.steps[1].tokens, 1U);
  EXPECT_EQ(a.steps[1].accepted, 1U);
  EXPECT_EQ(a.steps[1].touched, 1U);
  EXPECT_EQ(a.steps[1].busiest, 1U);
  EXPECT_EQ(a.steps[1].capacity, 1U);  // both rows of the step: ceil(2 * 2 / 4)
  EXPECT_EQ(a.histogram, (std::vector<std::uint64_t>{5, 3}));  // 2 + 1 of 8 got one token
  trace.header.policy.capacity.rule = CapacityRule::kNone;
  EXPECT_FALSE(trace_activity(trace).steps[0].capacity);
}

TEST(TraceCohesion, IsTheMeanCosineOfCentredPairs) {
  // Inputs (1,0), (3,0), (2,3), (2,-3): mean (2,0), centred (-1,0), (1,0), (0,3), (0,-3).
  RoutingTrace trace = by_hand({{0, 1, 2, 3}, {0, 1, 2, 3}, {2, 1, 0, 3}, {2, 3, 0, 1}});
  EXPECT_FALSE(trace_cohesion(trace));
  trace.header.hidden = 2;
  const auto bf16 = [](float v) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16U);
  };
  for (const float v : {1.0F, 0.0F, 3.0F, 0.0F, 2.0F, 3.0F, 2.0F, -3.0F}) {
    trace.routing.router_input.push_back(bf16(v));
  }
  const auto c = trace_cohesion(trace);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->layer, 5U);
  EXPECT_NEAR(*c->experts[0], -1.0, 1e-12);      // tokens 0, 1: opposite
  EXPECT_NEAR(*c->experts[1], -1.0 / 3, 1e-12);  // tokens 0, 1, 2: -1, 0, 0
  EXPECT_NEAR(*c->experts[2], -1.0, 1e-12);
  EXPECT_FALSE(c->experts[3]);  // one token
  EXPECT_NEAR(*c->mean, -7.0 / 9, 1e-12);
  EXPECT_TRUE(*c->baseline >= -1.0 && *c->baseline <= 0.0);
  EXPECT_EQ(trace_cohesion(trace, 1)->baseline, c->baseline);
}

TEST(TraceCohesion, SamplesPairsOfManyTokens) {
  // 140 tokens in two opposite bundles, each on its own pair of experts.
  std::vector<std::vector<std::uint16_t>> rows;
  for (int t = 0; t < 140; ++t) {
    rows.push_back(t % 2 == 0 ? std::vector<std::uint16_t>{0, 1, 2, 3}
                              : std::vector<std::uint16_t>{2, 3, 0, 1});
  }
  RoutingTrace trace = by_hand(rows);
  trace.header.hidden = 1;
  for (int t = 0; t < 140; ++t) {
    trace.routing.router_input.push_back(t % 2 == 0 ? 0x3F80 : 0xBF80);  // 1, -1
  }
  const auto c = trace_cohesion(trace);
  EXPECT_NEAR(*c->mean, 1.0, 1e-12);  // 70 * 69 / 2 = 2415 pairs, 2000 drawn
  EXPECT_NEAR(*c->baseline, 0.0, 0.1);
}

}  // namespace
}  // namespace switchyard
