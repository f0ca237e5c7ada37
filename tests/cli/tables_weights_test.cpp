// SPDX-License-Identifier: Apache-2.0
// The tables `quantisation`, `bit-flips`, `temperature`, `gumbel`: their counts by hand, on small
// models, and verdicts that follow from what was measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/tables/bit_flips.hpp"
#include "experiments/tables/quantisation.hpp"
#include "experiments/tables/router_noise.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard::tables {
namespace {

using testing_support::fixture;
using Texts = std::vector<std::vector<std::uint32_t>>;

claims::Verdict verdict_of(const std::vector<claims::Judged>& judged, const std::string& row) {
  const auto it = std::find_if(judged.begin(), judged.end(),
                               [&](const claims::Judged& j) { return j.claim.row == row; });
  EXPECT_NE(it, judged.end()) << row;
  return it->verdict;
}

TEST(Agreement, CountsBestExpertAndSetByHand) {
  // Two tokens of two layers, k = 2. Token 0: layer 0 swapped, layer 1 equal. Token 1: layer 0
  // other second expert, layer 1 nothing in common.
  const ForcedRun a{2, 2, {1, 2, 3, 4, 5, 6, 7, 8}, 0, 0};
  const ForcedRun b{2, 2, {2, 1, 3, 4, 5, 7, 1, 2}, 0, 0};
  const Agreement same = agreement(a, b);
  EXPECT_DOUBLE_EQ(same.first, 2.0 / 4);
  EXPECT_DOUBLE_EQ(same.set, 2.0 / 4);
  EXPECT_DOUBLE_EQ(same.set_layer_0, 1.0 / 2);
  EXPECT_DOUBLE_EQ(agreement(a, a).set, 1);
}

TEST(ForcedRun, HasThePerplexityOfItsLogitsInAnyBatch) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const Texts texts{{3, 57, 12}, {5}, {9, 9, 70, 1}};
  double nll = 0;
  for (const auto& text : texts) {
    Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
    const SequenceTokens work{session.add_sequence(), text};
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    for (std::size_t t = 0; t + 1 < text.size(); ++t) {
      long double sum = 0;
      for (const float z : r.logits_of(t)) {
        sum += std::exp(static_cast<long double>(z));
      }
      nll -= static_cast<double>(
          std::log(std::exp(static_cast<long double>(r.logits_of(t)[text[t + 1]])) / sum));
    }
  }
  for (const std::size_t batch : {1U, 2U, 8U}) {
    const ForcedRun run = forced_run(engine, texts, batch);
    EXPECT_EQ(run.predicted, 5U);
    EXPECT_NEAR(run.nll, nll, 1e-6);
    EXPECT_NEAR(run.perplexity(), std::exp(nll / 5), 1e-6);
    EXPECT_EQ(run.chosen.size(), 8U * 2 * 2);
  }
}

TEST(QuantisationTable, JudgesWhatItMeasured) {
  Texts texts(2);
  for (std::uint32_t i = 0; i < 60; ++i) {
    texts[0].push_back((i * i * 7 + 3) % 128);
    texts[1].push_back((i * 31 + i * i) % 128);
  }
  QuantisationRun run = run_quantisation(fixture("bf16"), texts, 1);
  EXPECT_EQ(run.tokens, 120U);
  EXPECT_EQ(run.predicted, 118U);
  const auto row = [&](const std::string& options) -> QuantisationRow& {
    const auto it = std::find_if(run.rows.begin(), run.rows.end(),
                                 [&](const auto& r) { return r.options == options; });
    EXPECT_NE(it, run.rows.end()) << options;
    return *it;
  };
  // Rounded experts cannot change the first layer's choices, a rounded router can.
  EXPECT_EQ(row("experts=int4").agreement.set_layer_0, 1);
  EXPECT_LT(row("router=int4").agreement.set_layer_0, 1);
  EXPECT_GE(row("router=int8").agreement.set, row("router=int4").agreement.set);
  const auto claims = claims::claims_of("quantisation");
  const auto judge = [&] { return claims::judge(claims, measure_quantisation(run)); };
  EXPECT_EQ(verdict_of(judge(), "C44a-first_layer"), claims::Verdict::kContradicted);
  row("router=int4").agreement = {1, 0.9975, 0.9975};
  EXPECT_EQ(verdict_of(judge(), "C44a-first_layer"), claims::Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judge(), "C87b-choices"), claims::Verdict::kContradicted);
  run.perplexity = 20;
  row("experts=int4").perplexity = 20.16;
  EXPECT_EQ(verdict_of(judge(), "C87a-channels_kept"), claims::Verdict::kReproduced);
  row("experts=int4").perplexity = 21;
  EXPECT_EQ(verdict_of(judge(), "C87a-channels_kept"), claims::Verdict::kDirection);
  EXPECT_EQ(quantisation_tables(run, claims).front().rows.size(), run.rows.size() + 1);
}

TEST(BitFlipTable, FindsWhatEachCheckSeesAndLeavesTheModelAsItWas) {
  Engine engine = Engine::load(fixture("bf16"), {});
  const std::vector<std::uint32_t> tokens{3, 57, 12, 99, 4, 61, 60, 60};
  const auto logits = [&] {
    Session session(engine, {});
    const SequenceTokens work{session.add_sequence(), tokens};
    return session.step({&work, 1}, Phase::kPrefill).logits;
  };
  const auto before = logits();
  const auto rows = flip_bits(engine, "bf16", tokens, 20, 5);
  EXPECT_EQ(logits(), before);
  ASSERT_EQ(rows.size(), 16U);
  std::size_t harmed = 0;
  for (const FlipRow& row : rows) {
    EXPECT_EQ(row.draws, 20U);
    EXPECT_EQ(row.by_crc, 20U);
    EXPECT_EQ(row.runs, 5U);
    harmed +=
        static_cast<std::size_t>(std::count_if(row.logit_change.begin(), row.logit_change.end(),
                                               [](double change) { return change > 0; }));
    if (row.bit == 15) {  // the sign
      EXPECT_EQ(row.by_norm + row.not_finite, 0U);
    }
    if (row.bit == 14) {  // x 2^128 for weights below 2
      EXPECT_EQ(row.by_norm + row.not_finite, 20U);
    }
    if (row.bit < 7) {  // less than a factor 2
      EXPECT_EQ(row.by_norm, 0U);
    }
  }
  EXPECT_GT(harmed, 20U);
  auto fp16 = rows;
  for (FlipRow& row : fp16) {
    row.dtype = "fp16";
  }
  fp16.insert(fp16.end(), rows.begin(), rows.end());
  const auto judged = claims::judge(claims::claims_of("bit-flips"), measure_bit_flips(fp16));
  EXPECT_EQ(verdict_of(judged, "C18a-bf16"), claims::Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judged, "C18c-bf16"), claims::Verdict::kReproduced);
}

Texts two_texts() {
  Texts texts(2);
  for (std::uint32_t i = 0; i < 40; ++i) {
    texts[0].push_back((i * i * 7 + 3) % 128);
    texts[1].push_back(i < 20 ? 5 : (i * 31 + i * i) % 128);
  }
  return texts;
}

TEST(RoutingEffect, CountsSharesRunsAndLoadsOfTheTraceByHand) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const Texts texts = two_texts();
  const RoutingEffect e = routing_effect(engine, texts, {}, 2, 7);
  const ForcedRun whole = forced_run(engine, texts, 2);
  EXPECT_EQ(e.tokens, 80U);
  EXPECT_EQ(e.predicted, 78U);
  EXPECT_NEAR(e.perplexity, whole.perplexity(), 1e-6);
  // From the other run: [T, L, k] in order of texts.
  const std::size_t layers = whole.layers;
  double share_max = 0;
  double cv = 0;
  double runs = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    std::vector<double> first(engine.gate().experts);
    std::vector<double> load(engine.gate().experts);
    int length = 0;
    for (std::size_t t = 0; t < 80; ++t) {
      const auto* slot = &whole.chosen[(t * layers + l) * 2];
      first[slot[0]] += 1.0 / 80;
      load[slot[0]] += 1;
      load[slot[1]] += 1;
      const bool again = t % 40 != 0 && slot[0] == *(slot - 2 * layers);
      length = again ? length + 1 : 1;
      runs += length >= 5 ? 1.0 / 80 / static_cast<double>(layers) : 0;
    }
    share_max = std::max(share_max, *std::max_element(first.begin(), first.end()));
    const double mean = 160.0 / static_cast<double>(load.size());
    double squares = 0;
    for (const double n : load) {
      squares += (n - mean) * (n - mean);
    }
    cv +=
        std::sqrt(squares / static_cast<double>(load.size())) / mean / static_cast<double>(layers);
  }
  EXPECT_NEAR(e.top1_share_max, share_max, 1e-12);
  EXPECT_NEAR(e.load_cv, cv, 1e-12);
  EXPECT_NEAR(e.runs_share, runs, 1e-12);
  EXPECT_GT(e.runs_share, 0);
}

/// Choices of the first layer.
std::vector<std::uint16_t> first_layer(const RoutingEffect& e) {
  return {e.first.begin(), e.first.begin() + static_cast<std::ptrdiff_t>(2 * e.tokens)};
}

TEST(TemperatureTable, ATemperatureAloneKeepsTheFirstLayersChoicesAndVerdictsFollowTheRun) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  EffectRun run = run_temperature(engine, two_texts());
  const auto row = [&](const std::string& condition, double t) -> EffectRow& {
    const auto it = std::find_if(run.rows.begin(), run.rows.end(), [&](const EffectRow& r) {
      return r.condition == condition && r.value == t;
    });
    EXPECT_NE(it, run.rows.end()) << condition;
    return *it;
  };
  for (const double t : {0.1, 0.5, 1.2}) {
    EXPECT_EQ(first_layer(row("after", t).effect), first_layer(run.plain)) << t;
    EXPECT_EQ(first_layer(row("before", t).effect), first_layer(run.plain)) << t;
    EXPECT_NE(row("after", t).effect.weights, run.plain.weights) << t;
  }
  EXPECT_NE(first_layer(row("before, load penalty", 0.1).effect),
            first_layer(row("after, load penalty", 0.1).effect));
  // Five equal tokens in a row raise T, which changes weights.
  EXPECT_NE(row("before, controller", 0.1).effect.weights, row("before", 0.1).effect.weights);
  const auto claims = claims::claims_of("temperature");
  const auto judge = [&] { return claims::judge(claims, measure_temperature(run)); };
  row("before", 0.1).effect.top1_share_max = 0.3;
  row("before", 1.0).effect.top1_share_max = 0.35;
  row("before, controller", 0.1).effect.top1_share_max = 0.29;
  EXPECT_EQ(verdict_of(judge(), "C16a-before"), claims::Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judge(), "C16b-before"), claims::Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judge(), "C16c-before"), claims::Verdict::kContradicted);
  row("before", 0.1).effect.top1_share_max = 0.97;
  EXPECT_EQ(verdict_of(judge(), "C16a-before"), claims::Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judge(), "C16b-before"), claims::Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judge(), "C16c-before"), claims::Verdict::kReproduced);
  EXPECT_EQ(effect_tables("temperature", run, judge()).front().rows.size(), run.rows.size() + 1);
}

TEST(GumbelTable, TauOfAllKeepsTheFirstLayersChoicesAndVerdictsFollowTheRun) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  EffectRun run = run_gumbel(engine, two_texts());
  std::map<std::string, std::vector<EffectRow*>> rows;
  for (EffectRow& row : run.rows) {
    rows[row.condition].push_back(&row);
  }
  ASSERT_EQ(rows["tau_all"].size(), 2U);
  ASSERT_EQ(rows["tau_noise"].size(), 2U);
  EXPECT_EQ(first_layer(rows["tau_all"][0]->effect), first_layer(rows["tau_all"][1]->effect));
  EXPECT_NE(first_layer(rows["tau_noise"][0]->effect), first_layer(rows["tau_noise"][1]->effect));
  // At tau = 1 both readings are one.
  EXPECT_EQ(rows["tau_all"][0]->effect.first, rows["tau_noise"][0]->effect.first);
  const auto claims = claims::claims_of("gumbel");
  rows["tau_noise"][0]->effect.load_cv = 0.40;
  rows["tau_noise"][1]->effect.load_cv = 0.13;
  auto judged = claims::judge(claims, measure_gumbel(run));
  EXPECT_EQ(verdict_of(judged, "C22a-tau_noise@1"), claims::Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C22a-tau_noise@1.2"), claims::Verdict::kReproduced);
  rows["tau_noise"][1]->effect.load_cv = 0.45;
  judged = claims::judge(claims, measure_gumbel(run));
  EXPECT_EQ(verdict_of(judged, "C22a-tau_noise@1.2"), claims::Verdict::kContradicted);
  EXPECT_EQ(effect_tables("gumbel", run, judged).front().rows.size(), run.rows.size() + 1);
}

}  // namespace
}  // namespace switchyard::tables
