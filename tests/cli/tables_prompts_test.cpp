// SPDX-License-Identifier: Apache-2.0
// The tables of single prompts: `prompt-routing`, `static-table`, `domain-adapter`. What they
// count, by hand and on a small model, and verdicts that follow from what was measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "experiments/tables/domain_adapter.hpp"
#include "experiments/tables/prompt_routing.hpp"
#include "experiments/tables/static_table.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard::tables {
namespace {

using claims::Verdict;
using testing_support::fixture;

std::map<std::string, Verdict> verdicts(const std::string& table,
                                        const claims::Measurements& measured) {
  std::map<std::string, Verdict> out;
  for (const auto& j : claims::judge(claims::claims_of(table), measured)) {
    out[j.claim.row] = j.verdict;
  }
  return out;
}

constexpr RouterShape kShape{1, 4, 2, 2};

/// One layer of 4 experts; logits [T][4].
PromptDecisions prompt(std::vector<float> logits, std::vector<float> input = {}) {
  PromptDecisions p;
  p.name = "p";
  p.tokens = logits.size() / 4;
  p.logits = std::move(logits);
  p.input = std::move(input);
  return p;
}

TEST(PromptDecisions, BestExpertsFallByLogitThenId) {
  const std::vector<float> z{1, 3, 3, 2};
  EXPECT_EQ(best_experts(z, 4), (std::vector<std::uint16_t>{1, 2, 3, 0}));
  EXPECT_EQ(best_experts(z, 1), (std::vector<std::uint16_t>{1}));
  const auto p = probabilities(std::vector<float>{0, std::log(3.0F)});
  EXPECT_NEAR(p[0], 0.25, 1e-7);
  EXPECT_NEAR(p[1], 0.75, 1e-7);
}

TEST(PromptDecisions, StatisticsByHand) {
  const float ln2 = std::log(2.0F);
  // Token 0: probabilities 1/5 2/5 1/5 1/5. Token 1: 4/7 1/7 1/7 1/7.
  const std::vector<PromptDecisions> one{prompt({0, ln2, 0, 0, 2 * ln2, 0, 0, 0})};
  const GateStatistics g = gate_statistics(one, kShape, false);
  EXPECT_EQ(g.tokens, 2U);
  EXPECT_NEAR(g.p[0], (0.4 + 4.0 / 7) / 2, 1e-6);
  EXPECT_NEAR(g.p[1], (0.2 + 1.0 / 7) / 2, 1e-6);
  // Variance of {0, a, 0, 0} over 4 is 3 a^2 / 16.
  const double a = std::log(2.0);
  EXPECT_NEAR(g.logit_variance, (3 * a * a + 12 * a * a) / 16 / 2, 1e-6);
  const double h0 = -0.4 * std::log2(0.4) - 0.6 * std::log2(0.2);
  const double h1 = -4.0 / 7 * std::log2(4.0 / 7) - 3.0 / 7 * std::log2(1.0 / 7);
  EXPECT_NEAR(g.entropy, (h0 + h1) / 2, 1e-6);
  EXPECT_NEAR(g.margin, 0, 1e-9) << "second and third are equal";
  EXPECT_NEAR(gate_statistics(one, kShape, true).entropy, h1, 1e-6);
  // Choices: {1, 0} and {0, 1}: loads 2 2 0 0, mean 1, std 1.
  const LoadSpread spread = load_spread(one, kShape, false);
  EXPECT_NEAR(spread.cv, 1, 1e-12);
  EXPECT_NEAR(spread.floor, std::sqrt(0.5 / (2 * 0.5)), 1e-12);
  const LargestShare share = largest_share(one, kShape);
  EXPECT_EQ(share.first, 0.5);
  EXPECT_EQ(share.tokens, 1);
  EXPECT_EQ(share.assignments, 0.5);
  EXPECT_EQ(share.requests, 1);
  EXPECT_EQ(top_expert(one[0], kShape, 0), 0) << "mean probability 0.386 against 0.271";
}

TEST(PromptDecisions, AreTheSessionsAndDoNotDependOnCompany) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const RouterShape s = router_shape(engine);
  std::vector<std::vector<std::uint32_t>> texts;
  for (std::uint32_t n = 0; n < 20; ++n) {
    texts.push_back({3 + n, 57, 12, (n * n) % 128});
  }
  texts[7].push_back(9);
  const auto all = decide_tokens(engine, texts, true);
  ASSERT_EQ(all.size(), 20U);
  for (const std::size_t i : {0U, 7U, 17U}) {
    Session session(engine, {.policy = {}, .seed = 1});
    const SequenceTokens work{session.add_sequence(), texts[i]};
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    EXPECT_EQ(all[i].logits, r.router_logits) << i;
    EXPECT_EQ(all[i].input.size(), s.layers * texts[i].size() * s.hidden);
  }
  EXPECT_THROW((void)decide_tokens(engine, std::vector<std::vector<std::uint32_t>>{{}}, false),
               InputError);
}

TEST(NoiseEffect, FollowsTheNoiseAndForgetsACommonFactor) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto prompts = decide_tokens(
      engine, std::vector<std::vector<std::uint32_t>>{{3, 57, 12, 99, 4, 61, 60, 60, 1, 2}}, true);
  const NoiseEffect none = noise_effect(engine, prompts, {}, 0, 2, 1);
  EXPECT_EQ(none.changed, 0);
  EXPECT_EQ(none.all_differ, 0);
  EXPECT_EQ(none.decisions, 10 * router_shape(engine).layers);
  const NoiseEffect some = noise_effect(engine, prompts, {}, 0.5, 3, 1);
  const NoiseEffect more = noise_effect(engine, prompts, {}, 100, 3, 1);
  EXPECT_GT(some.changed, 0);
  EXPECT_GT(more.changed, some.changed);
  EXPECT_GT(more.all_differ, 0);
  const NoiseEffect twice = noise_effect(engine, prompts, {.inputs = 2}, 0.5, 3, 1);
  EXPECT_EQ(twice.changed, some.changed) << "inputs and noise double together";
  EXPECT_NEAR(twice.highest, 2 * some.highest, 1e-5);
  const NoiseEffect heavy = noise_effect(engine, prompts, {.weights = 4}, 0.5, 3, 1);
  EXPECT_EQ(heavy.changed, some.changed);
  EXPECT_EQ(heavy.lowest, 4 * some.lowest);
  const RouterView norm{.inputs = 1, .weights = 1, .layer_norm = true};
  const RouterView large{.inputs = 64, .weights = 1, .layer_norm = true};
  EXPECT_NEAR(noise_effect(engine, prompts, large, 0, 1, 1).highest,
              noise_effect(engine, prompts, norm, 0, 1, 1).highest, 1e-3)
      << "LayerNorm takes a factor of the inputs away";
}

TEST(ComparePairs, CountsCosineAndChangesByHand) {
  // Vectors (1, 0) and (1, 1): cosine 0.7071; less their mean (1, 0.5): opposite.
  const std::vector<PromptDecisions> pair{prompt({3, 1, 0, 0}, {1, 0}),
                                          prompt({0, 3, 1, 0}, {1, 1})};
  const auto rows = compare_pairs(pair, kShape);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_NEAR(rows[0].cosine, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(rows[0].centred, -1, 1e-12);
  EXPECT_EQ(rows[0].top_changed, 1);
  EXPECT_EQ(rows[0].last_changed, 1);
  EXPECT_EQ(rows[0].top2_same, 0.5) << "{0, 1} and {1, 2}";
  const std::vector<PromptDecisions> same{pair[0], pair[0]};
  EXPECT_EQ(compare_pairs(same, kShape)[0].top_changed, 0);
}

/// What the articles say, so that every row of the table holds.
PromptRoutingRun as_claimed() {
  PromptRoutingRun run;
  run.shape = {4, 16, 2, 128};
  const auto add = [&](const std::string& set, const std::string& domain) -> PromptSetRow& {
    run.sets.push_back({});
    run.sets.back().set = set;
    run.sets.back().domain = domain;
    return run.sets.back();
  };
  PromptSetRow brief;
  brief.all.cv = brief.each.cv = 0.45;
  brief.tokens.logit_variance = 0.05;
  brief.agreement = 0.1;
  brief.tokens.entropy = 3.9;
  brief.set = "lengths";
  brief.domain = "4-15";
  run.sets.push_back(brief);
  PromptSetRow& wide = add("lengths", "over-128");
  wide.all.cv = wide.each.cv = 0.2;
  wide.tokens.logit_variance = 2;
  wide.agreement = 0.95;
  PromptSetRow& sales = add("shop_after_sales", "shop_after_sales");
  sales.share = {0.68, 0.68, 0.68, 0.34};
  PromptSetRow& vague = add("vague_clear", "vague");
  vague.tokens.p = vague.last.p = {0.08, 0.075, 0.072};
  vague.tokens.entropy = vague.last.entropy = 3.9;
  PromptSetRow& clear = add("vague_clear", "clear");
  clear.tokens.p = clear.last.p = {0.42, 0.31, 0.1};
  clear.tokens.entropy = clear.last.entropy = 2.6;
  PairRow pair;
  pair.cosine = pair.centred = 0.98;
  pair.top_changed = 1;
  run.pairs = {pair, pair};
  for (const char* reading : {"as shipped", "large inputs", "large weights"}) {
    NormRow row;
    row.reading = reading;
    row.without = {100, 0.04, 1, -200, 300};
    row.with = {100, 0.01, 0, -5, 5};
    run.norms.push_back(row);
  }
  run.three_clean = 1;
  return run;
}

TEST(PromptRouting, VerdictsFollowTheRun) {
  PromptRoutingRun run = as_claimed();
  auto v = verdicts("prompt-routing", measure_prompt_routing(run));
  for (const auto& [row, verdict] : v) {
    EXPECT_EQ(verdict, Verdict::kReproduced) << row;
  }
  EXPECT_EQ(v.size(), 39U);
  run.sets[0].all.cv = 0.9;               // C30a: another value
  run.sets[1].each.cv = 0.5;              // C30b: less even
  run.sets[0].tokens.logit_variance = 3;  // C30c, C30e
  run.sets[1].agreement = 0.88;           // C30f
  run.sets[0].agreement = 0.9;            // C30g
  run.pairs[0].top_changed = 0;           // C62b: one of two is not most
  run.sets[2].share.requests = 0.3;       // C67a
  run.sets[4].last.p[0] = 0.3;            // C89a: up, another value
  run.sets[4].tokens.p[1] = 0.01;         // C89b: down
  run.sets[4].last.entropy = 3.5;         // C89e
  run.norms[0].with.highest = 12;         // C92a
  run.norms[0].with.changed = 0.05;       // C92b: less stable
  run.norms[1].with.changed = 0.03;       // C92b: more, another value
  run.norms[2].with.changed = 0;          // C92b: nothing to divide by
  run.three_clean = 0;                    // C92c
  v = verdicts("prompt-routing", measure_prompt_routing(run));
  for (const char* row :
       {"C30a-all_prompts", "C30b-each_prompt", "C30c", "C30e", "C30f", "C30g", "C62b-most_pairs",
        "C67a-requests", "C89b-all_tokens@1", "C89e-last_token", "C92a-as_shipped",
        "C92b-as_shipped", "C92c-as_it_is"}) {
    EXPECT_EQ(v.at(row), Verdict::kContradicted) << row;
  }
  EXPECT_EQ(v.at("C89a-last_token@1"), Verdict::kDirection);
  EXPECT_EQ(v.at("C92b-large_inputs"), Verdict::kDirection);
  EXPECT_EQ(v.at("C92b-large_weights"), Verdict::kNotDecided);
  EXPECT_EQ(v.at("C62b-some_pair"), Verdict::kReproduced);
  EXPECT_EQ(v.at("C30b-all_prompts"), Verdict::kReproduced) << "0.9 is less even than 0.2";
  for (PairRow& pair : run.pairs) {
    pair.cosine = 0.9;
  }
  v = verdicts("prompt-routing", measure_prompt_routing(run));
  EXPECT_EQ(v.at("C62b-some_pair"), Verdict::kNotDecided) << "no pair is as alike as the claim's";
  run.sets.pop_back();
  EXPECT_THROW((void)measure_prompt_routing(run), InputError);
}

TEST(PromptRouting, FlippingAClaimFlipsItsVerdict) {
  const PromptRoutingRun run = as_claimed();
  auto claims = claims::claims_of("prompt-routing");
  for (auto& claim : claims) {
    if (claim.row == "C30f") claim.value = 96;
    if (claim.row == "C67a-requests") claim.value = 30;
    if (claim.row == "C89a-all_tokens@1") claim.sign = claims::Sign::kDown;
  }
  std::map<std::string, Verdict> v;
  for (const auto& j : claims::judge(claims, measure_prompt_routing(run))) {
    v[j.claim.row] = j.verdict;
  }
  EXPECT_EQ(v.at("C30f"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C67a-requests"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C89a-all_tokens@1"), Verdict::kContradicted);
}

std::vector<std::uint32_t> long_text(std::size_t count) {
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<std::uint32_t>(
        random_u64(1, random_purpose("a text"), {.position = static_cast<std::uint32_t>(i)}) %
        128));
  }
  return out;
}

TEST(StaticTable, HitsAreTheTemplatesShare) {
  const auto text = long_text(3000);
  std::vector<std::vector<std::uint32_t>> templates;
  for (std::uint32_t n = 0; n < 3; ++n) {
    templates.emplace_back(32, n);
  }
  const auto none = template_traffic(text, templates, 0, 500, 1);
  const auto all = template_traffic(text, templates, 1, 500, 1);
  ASSERT_EQ(none.build.size(), 500U);
  ASSERT_EQ(none.test.size(), 500U);
  for (const auto* requests : {&none.build, &all.test}) {
    for (const auto& r : *requests) {
      EXPECT_EQ(r.size(), 64U);
    }
  }
  EXPECT_EQ(all.test[0].front(), all.test[0][31]);
  const Engine engine = Engine::load(fixture("bf16"), {});
  const StaticTableRow miss = run_static_table(engine, none, 10);
  EXPECT_EQ(miss.hits, 0U);
  EXPECT_TRUE(std::isnan(miss.agreement));
  EXPECT_EQ(miss.cv_table, miss.cv_live) << "nothing is hit, nothing changes";
  EXPECT_EQ(miss.sampled, 10U);
  EXPECT_EQ(miss.tokens, 640U);
  const StaticTableRow hit = run_static_table(engine, all, 10);
  EXPECT_EQ(hit.hits, 500U);
  EXPECT_EQ(hit.entries, 3U);
  EXPECT_GT(hit.agreement, 0);
  EXPECT_LT(hit.agreement, 1);
  EXPECT_GT(hit.cv_table, hit.cv_live) << "three entries for all tokens";
}

TEST(StaticTable, OneSharedBlockSendsAllTokensToOneEntry) {
  const auto text = long_text(3000);
  const auto traffic = block_traffic("one", text, std::vector<std::uint32_t>(40, 7));
  EXPECT_EQ(traffic.build.size(), 20U);
  const Engine engine = Engine::load(fixture("bf16"), {});
  const StaticTableRow row = run_static_table(engine, traffic, 100);
  EXPECT_EQ(row.hits, 20U);
  EXPECT_EQ(row.entries, 1U);
  EXPECT_EQ(row.sampled, 20U) << "no more than there are";
  const RouterShape s = router_shape(engine);
  EXPECT_NEAR(row.top_table, 1 / static_cast<double>(s.top_k), 1e-12);
  const double e = static_cast<double>(s.experts);
  const double k = static_cast<double>(s.top_k);
  EXPECT_NEAR(row.cv_table, std::sqrt(e / k - 1), 1e-9) << "k experts have all, E - k nothing";
  const auto apart = block_traffic("apart", text, {1, 2, 3, 4, 1, 2, 9, 9});
  EXPECT_EQ(run_static_table(engine, apart, 8).hits, 2U);
}

TEST(StaticTable, VerdictsFollowTheTraffic) {
  StaticTableRun run;
  run.lookup = {1000, 128};
  for (const char* name :
       {"template 0 %", "template 25 %", "template 50 %", "template 75 %", "template 95 %",
        "template 100 %", "Mooncake conversation", "Mooncake synthetic"}) {
    StaticTableRow row;
    row.traffic = name;
    row.built = row.tested = 100;
    row.hits = 95;
    run.rows.push_back(row);
  }
  auto v = verdicts("static-table", measure_static_table(run));
  for (const auto& [row, verdict] : v) {
    EXPECT_EQ(verdict, Verdict::kReproduced) << row;  // 0.05 + 0.128 = 0.178
  }
  EXPECT_EQ(v.size(), 17U);
  run.rows[0].hits = 0;   // no gain: 1.128
  run.rows[2].hits = 50;  // 0.628
  run.lookup.lookup_ns = 10;
  v = verdicts("static-table", measure_static_table(run));
  EXPECT_EQ(v.at("C13a-template_0_%"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C13b-template_0_%"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C13a-template_50_%"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C13b-template_50_%"), Verdict::kDirection);
  EXPECT_EQ(v.at("C13b-template_95_%"), Verdict::kDirection) << "0.06";
  EXPECT_EQ(v.at("C13a-template_95_%"), Verdict::kReproduced);
}

TEST(DomainAdapter, ScoresSetsAndVerdictsFollow) {
  RoutingEffect a;
  a.first = {1, 2, 3, 4, 5, 6, 7, 8};
  RoutingEffect b;
  b.first = {2, 1, 3, 4, 5, 9, 1, 2};
  const DomainScore score = domain_score(a, b, 2);
  EXPECT_DOUBLE_EQ(score.set, 0.5) << "{1, 2} in another order and {3, 4}";
  EXPECT_DOUBLE_EQ(score.first, 0.5);
  EXPECT_DOUBLE_EQ(domain_score(a, a, 2).set, 1);

  DomainRun run;
  run.rows = {{"original", {0.61, 0.61, 10}, {0.73, 0.73, 10}},
              {"adapter", {0.91, 0.91, 10}, {0.7, 0.7, 10}},
              {"reference", {1, 1, 10}, {1, 1, 10}}};
  auto v = verdicts("domain-adapter", measure_domain_adapter(run));
  for (const auto& [row, verdict] : v) {
    EXPECT_EQ(verdict, Verdict::kReproduced) << row;
  }
  EXPECT_EQ(v.size(), 6U);
  run.rows[1].fresh.set = 0.65;    // up, another value
  run.rows[1].fresh.first = 0.55;  // down
  run.rows[0].old.set = 0.5;
  v = verdicts("domain-adapter", measure_domain_adapter(run));
  EXPECT_EQ(v.at("C75a-set@1"), Verdict::kDirection);
  EXPECT_EQ(v.at("C75a-first_expert@1"), Verdict::kContradicted);
  EXPECT_EQ(v.at("C75b-set"), Verdict::kContradicted);
  run.rows.erase(run.rows.begin() + 1);
  EXPECT_THROW((void)measure_domain_adapter(run), InputError);
}

}  // namespace
}  // namespace switchyard::tables
