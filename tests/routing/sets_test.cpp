// SPDX-License-Identifier: Apache-2.0
// Step 10 of routing.md in the pipeline (M12, M13, M14, M17, M18, M19, M21, M22): definitions
// worked by hand, what every one of them must conserve, keys and their ranges.
#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

float weight(const LayerDecision& d, std::uint32_t t, std::uint32_t j) {
  return d.weights[row_offset(t, d.slots, j)];
}

/// `count` rows of the same probabilities, as logits.
std::vector<float> same_rows(std::uint32_t count, const std::vector<double>& p) {
  return log_rows(Rows(count, p));
}

const std::vector<double> kFalling{.4, .3, .2, .1};

/// Four experts on four GPUs, one each.
struct FourGpus {
  std::vector<double> used{0, 0, 0, 0};
  std::vector<std::uint32_t> first{0, 1, 2, 3, 4}, gpu{0, 1, 2, 3};
  [[nodiscard]] Signals signals() const { return {0, used, used, first, gpu}; }
};

/// Whatever the GPUs: experts e of any E on GPU e mod 4.
struct ManyExperts {
  std::vector<double> used{0.95, 0.86, 0.85, 0.1};
  std::vector<std::uint32_t> first, gpu;
  explicit ManyExperts(std::uint32_t experts) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      first.push_back(e);
      gpu.push_back(e % 4);
    }
    first.push_back(experts);
  }
  [[nodiscard]] Signals signals() const { return {0, used, used, first, gpu}; }
};

RoutingTable small_table(std::uint32_t experts, std::uint32_t k) {
  RoutingTable table({TablePrefix::kTokens, 256, 1, experts, k, "m", "0123456789abcdef"});
  std::vector<std::uint16_t> ids;
  std::vector<float> p;
  for (std::uint32_t j = 0; j < k; ++j) {
    ids.push_back(static_cast<std::uint16_t>(experts - 1 - j));
    p.push_back(0.5F / static_cast<float>(j + 1));
  }
  (void)table.add(table_key(TablePrefix::kTokens, std::vector<std::uint32_t>{1}, ""), ids, p);
  return table;
}

// ---- what all of them conserve -----------------------------------------------------------------

const char* const kPolicies[] = {
    "soft_balance.limit=2 soft_balance.low_limit=1",
    "soft_balance.limit=2 soft_balance.low_limit=0 soft_balance.k3=choose "
    "soft_balance.batch_limit=1",
    "soft_balance.limit=1 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
    "soft_balance.batch_limit=2",
    "decode_rebalance.level=0.85 decode_rebalance.period=2 decode_rebalance.credits=5",
    "decode_rebalance.level=0.1 decode_rebalance.period=1 decode_rebalance.target=third "
    "decode_rebalance.max_score_drop=0.5",
    "table.file=t",
    "soft.experts=4 soft.requests=all",
    "soft.experts=3 soft.requests=all soft.renorm=true",
    "two_tier.first=int4 two_tier.scorer=s",
    "set.rule=round_robin",
    "set.rule=batch",
    "pinned.requests=named",
    "soft_balance.limit=2 soft_balance.low_limit=2 decode_rebalance.level=0.85 "
    "pinned.requests=named soft.experts=4 "
    "soft.requests=all table.file=t two_tier.first=int4 two_tier.scorer=s bonus.lambda=0.05"};
const char* const kCapacities[] = {
    "",
    " capacity.rule=share capacity.factor=1",
    " capacity.rule=absolute capacity.absolute=2 capacity.mode=rounds",
    " capacity.rule=absolute capacity.absolute=2 capacity.exhausted=drop_token "
    "capacity.max_score_drop=0.5",
    " capacity.rule=absolute capacity.absolute=2 capacity.order=prob capacity.exhausted=drop_token",
    " capacity.rule=absolute capacity.absolute=1 capacity.order=prob capacity.exhausted=queue"};

/// Tokens per step: sequences 1 and 4 are pinned, 3 is in the table, the policy may make all soft.
void describe(RoutingState& state, const RoutingPolicy& policy, const RoutingTable& table) {
  for (std::uint32_t s = 0; s < 6; ++s) {
    const std::uint32_t token = s == 3 ? 1 : 9;
    state.request(s) = request_info(policy, policy.table.on() ? &table : nullptr, {&token, 1}, "",
                                    s == 1 || s == 4 ? std::uint16_t{7} : kNoExpert);
  }
}

TEST(Sets, ConserveAssignmentsUnderEveryPolicyAndCapacityRule) {
  for (const GateSpec& gate : {gate_mixtral(16, 2), gate_deepseek_v3(16, 2, 4, 2),
                               gate_deepseek_v2(16, 2, 4, 2, 16.0F), gate_gpt_oss(16, 2)}) {
    const std::vector<float> bias(gate.score == GateScore::kSigmoid ? 16 : 0, 0.1F);
    const ManyExperts machine(16);
    const Signals signals = machine.signals();
    const RoutingTable table = small_table(16, 2);
    for (const char* policy : kPolicies) {
      for (const char* capacity : kCapacities) {
        const std::string text = std::string(policy) + capacity;
        Router a(gate, text, bias);
        Router b(gate, text, bias);
        for (Router* r : {&a, &b}) {
          r->signals = &signals;
          r->table = &table;
          describe(r->state(), policy_of(text), table);
        }
        b.all_logits = false;  // as a replay does it: M = E
        Draw draw(3);
        for (int step = 0; step < 5; ++step) {
          const std::vector<float> logits = draw.logits(12 * 16);
          a.tier2 = b.tier2 = draw.logits(12 * 16);
          const std::vector<std::uint32_t> sequence{0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5};
          const LayerDecision& d = a.step(logits, sequence);
          ASSERT_EQ(not_conserved(d), "") << text;
          ASSERT_EQ(d.truncated_slots, 0U) << text;
          const LayerDecision& again = b.step(logits, sequence);
          ASSERT_EQ(again.first, d.first) << text;
          ASSERT_EQ(again.chosen, d.chosen) << text;
          ASSERT_EQ(again.weights, d.weights) << text;
          ASSERT_EQ(again.sets, d.sets) << text;
          std::uint64_t slots = 0;
          for (std::uint32_t t = 0; t < d.tokens; ++t) {
            for (std::uint32_t j = 0; j < d.slots; ++j) {
              slots += d.first[row_offset(t, d.slots, j)] != kNoExpert ? 1 : 0;
              for (std::uint32_t i = 0; i < j; ++i) {
                const std::uint16_t e = d.chosen[row_offset(t, d.slots, j)];
                ASSERT_TRUE(e == kNoExpert || e != d.chosen[row_offset(t, d.slots, i)]) << text;
                const std::uint16_t f = d.first[row_offset(t, d.slots, j)];
                ASSERT_TRUE(f == kNoExpert || f != d.first[row_offset(t, d.slots, i)]) << text;
              }
            }
          }
          ASSERT_EQ(d.assignments, slots) << text;
          for (const std::uint32_t n : d.load) {
            ASSERT_LE(n, d.capacity) << text;
          }
        }
      }
    }
  }
}

// Switched on but without cause, each leaves the plain decision to the last bit.
TEST(Sets, WithoutCauseGiveThePlainDecision) {
  const FourGpus machine;
  const Signals signals = machine.signals();
  for (const char* policy :
       {"soft_balance.limit=1000 soft_balance.batch_limit=1000", "decode_rebalance.level=0.85",
        "pinned.requests=named", "soft.experts=4 soft.keywords=poem", "table.file=t"}) {
    for (const char* capacity : kCapacities) {
      Router with(gate_mixtral(4, 2), std::string(policy) + capacity);
      with.signals = &signals;
      Router plain(gate_mixtral(4, 2), std::string(capacity));
      Draw draw(9);
      for (int step = 0; step < 5; ++step) {
        const std::vector<float> logits = draw.logits(10 * 4);
        const LayerDecision& a = with.step(logits);
        const LayerDecision& b = plain.step(logits);
        for (std::uint32_t t = 0; t < 10; ++t) {
          for (std::uint32_t j = 0; j < 2; ++j) {
            EXPECT_EQ(a.chosen[row_offset(t, a.slots, j)], b.chosen[row_offset(t, 2, j)]);
            EXPECT_EQ(weight(a, t, j), weight(b, t, j)) << policy << capacity;
          }
        }
      }
    }
  }
}

// ---- M12 ---------------------------------------------------------------------------------------

// Queues 0 1 2 3 for four equal tokens, limit 2: the fourth leaves both experts.
TEST(SoftBalancing, FollowsTheQueuesOfTheStep) {
  Router r(gate_mixtral(4, 2),
           "soft_balance.limit=2 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
           "soft_balance.batch_limit=off");
  const LayerDecision& d = r.step(same_rows(4, kFalling));
  EXPECT_EQ(show(d), "0K 1K | 0K 1K | 0K 1K | 2K 3K");
  EXPECT_EQ(d.sets.balanced, 2U);
  // The weights are those of the set that runs: .2 and .1.
  EXPECT_NEAR(weight(d, 3, 0), 2.0 / 3, 1e-6);
}

// C = 2, sequential: expert 0 accepts two, so its queue never passes 2; with limit 1 the third
// token leaves before it could overflow.
TEST(SoftBalancing, SeesWhatCapacityAccepted) {
  const std::string rest =
      " soft_balance.low_memory=0 soft_balance.k3_memory=0 soft_balance.batch_limit=off "
      "capacity.rule=absolute capacity.absolute=2";
  Router two(gate_mixtral(4, 2), "soft_balance.limit=2" + rest);
  EXPECT_EQ(show(two.step(same_rows(3, kFalling))), "0K 1K | 0K 1K | 2R 3R");
  Router one(gate_mixtral(4, 2), "soft_balance.limit=1" + rest);
  const LayerDecision& d = one.step(same_rows(3, kFalling));
  EXPECT_EQ(show(d), "0K 1K | 0K 1K | 2K 3K");
  EXPECT_EQ(d.overflowed, 0U);
}

TEST(SoftBalancing, ActivatesThreeExpertsWhereMemoryIsShort) {
  FourGpus machine;
  machine.used = {0, 0.91, 0, 0};
  const Signals signals = machine.signals();
  Router r(gate_mixtral(4, 2), "soft_balance.limit=128");
  r.signals = &signals;
  const LayerDecision& d = r.step(same_rows(1, kFalling));
  EXPECT_EQ(d.slots, 3U);
  EXPECT_EQ(show(d), "0K 1K 2K");
  EXPECT_EQ(d.sets.third, 1U);
  EXPECT_NEAR(weight(d, 0, 0), .4 / .9, 1e-6);
  EXPECT_NEAR(weight(d, 0, 2), .2 / .9, 1e-6);
  EXPECT_EQ(d.assignments, 3U);
}

// free < 10 % is strict, and 1 - 0.9 must not be less than 0.1 by a rounding.
TEST(SoftBalancing, ExactlyTenPercentFreeIsNotShort) {
  FourGpus machine;
  machine.used = {0, 0.9, 0, 0};
  const Signals signals = machine.signals();
  Router r(gate_mixtral(4, 2), "soft_balance.limit=128");
  r.signals = &signals;
  EXPECT_EQ(show(r.step(same_rows(1, kFalling))), "0K 1K -");  // the third slot stays empty
}

TEST(SoftBalancing, ChoosesTwoOfThreeByQueue) {
  FourGpus machine;
  machine.used = {0, 0.91, 0, 0};
  const Signals signals = machine.signals();
  Router r(gate_mixtral(4, 2), "soft_balance.limit=128 soft_balance.k3=choose");
  r.signals = &signals;
  // t0: queues are equal, the last candidate goes: {0, 1}. t1: q = 1 1 0: {0, 2} (the later of the
  // two longest goes). t2: q = 2 1 1: {1, 2}, and so on.
  const LayerDecision& d = r.step(same_rows(3, kFalling));
  EXPECT_EQ(show(d), "0K 1K | 0K 2K | 1K 2K");
  EXPECT_EQ(d.slots, 2U);
}

// 66 tokens on expert 0: its queue ends above 64, so k = 3 in the next step, and only there.
TEST(SoftBalancing, ALongQueueCallsForAThirdExpertInTheNextStep) {
  Router r(gate_mixtral(4, 2),
           "soft_balance.limit=128 soft_balance.low_memory=0 soft_balance.k3_memory=0");
  EXPECT_EQ(show(r.step(same_rows(66, kFalling)), 0), "0K 1K -");
  EXPECT_EQ(show(r.step(same_rows(2, kFalling))), "0K 1K 2K | 0K 1K 2K");
  EXPECT_EQ(show(r.step(same_rows(2, kFalling))), "0K 1K - | 0K 1K -");
  // 64 is not above 64.
  (void)r.step(same_rows(64, kFalling));
  EXPECT_EQ(show(r.step(same_rows(1, kFalling))), "0K 1K -");
}

// A third expert pushes the reroute targets on: slot 0 finds 0 full and takes the fourth.
TEST(SoftBalancing, RerouteTargetsComeAfterTheThirdExpert) {
  Router r(gate_mixtral(5, 2),
           "soft_balance.limit=1 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
           "soft_balance.batch_limit=0 capacity.rule=absolute capacity.absolute=1");
  const std::vector<float> rows = same_rows(2, {.3, .25, .2, .15, .1});
  (void)r.step(rows);
  EXPECT_EQ(show(r.step(rows)), "0K 1K 2K | 3R 4R 2D");
}

// ---- M13 ---------------------------------------------------------------------------------------

TEST(DecodeRebalancing, MovesTwoTokensOfAHotExpertEveryFourthStep) {
  FourGpus machine;
  machine.used = {0.9, 0.5, 0.6, 0.1};
  const Signals signals = machine.signals();
  Router r(gate_mixtral(4, 2), "decode_rebalance.level=0.85");
  r.signals = &signals;
  const std::string plain = "0K 1K | 0K 1K | 0K 1K";
  for (int step = 1; step <= 8; ++step) {
    const LayerDecision& d = r.step(same_rows(3, kFalling));
    EXPECT_EQ(show(d), step % 4 == 0 ? "2K 1K | 2K 1K | 0K 1K" : plain) << step;
    EXPECT_EQ(d.sets.rebalanced, step % 4 == 0 ? 2U : 0U);
  }
}

// One token a step: the two credits of step 4 serve steps 4 and 5; those of step 8 replace them.
TEST(DecodeRebalancing, CreditsServeTheNextTokens) {
  FourGpus machine;
  machine.used = {0.9, 0.5, 0.6, 0.1};
  const Signals signals = machine.signals();
  Router r(gate_mixtral(4, 2), "decode_rebalance.level=0.85");
  r.signals = &signals;
  std::string moved;
  for (int step = 1; step <= 12; ++step) {
    moved += r.step(same_rows(1, kFalling)).sets.rebalanced == 1 ? 'x' : '.';
  }
  EXPECT_EQ(moved, "...xx..xx..x");
}

// ---- M14 ---------------------------------------------------------------------------------------

TEST(StaticTable, AHitDecidesEveryTokenAndAMissGoesToTheRouter) {
  const RoutingTable table = small_table(4, 2);  // experts 3 (.5) and 2 (.25)
  Router r(gate_mixtral(4, 2), "table.file=t");
  r.table = &table;
  const std::uint32_t known = 1;
  const std::uint32_t other = 2;
  r.state().request(0) =
      request_info(policy_of("table.file=t"), &table, {&known, 1}, "", kNoExpert);
  r.state().request(1) =
      request_info(policy_of("table.file=t"), &table, {&other, 1}, "", kNoExpert);
  const LayerDecision& d =
      r.step(log_rows({{.4, .3, .2, .1}, {.1, .2, .3, .4}, {.4, .3, .2, .1}}), {0, 0, 1});
  EXPECT_EQ(show(d), "3K 2K | 3K 2K | 0K 1K");
  // The family's rule over the table's p: .5 / .75.
  EXPECT_NEAR(weight(d, 0, 0), 2.0 / 3, 1e-6);
  EXPECT_NEAR(weight(d, 1, 1), 1.0 / 3, 1e-6);
  EXPECT_NEAR(weight(d, 2, 0), 4.0 / 7, 1e-6);
  EXPECT_EQ(d.sets.table_tokens, 2U);
  EXPECT_EQ(d.sets.table_slots, 4U);
  EXPECT_EQ(d.sets.table_agreed, 2U);  // the second token would have taken 3 and 2 itself
}

// Without normalisation the weights are the mean p themselves.
TEST(StaticTable, TheMeanProbabilitiesAreTheWeights) {
  const RoutingTable table = small_table(4, 2);
  Router r(gate_qwen(4, 2, false), "table.file=t");
  r.table = &table;
  r.state().request(0).table_entry = 0;
  const LayerDecision& d = r.step(log_rows({{.4, .3, .2, .1}}));
  EXPECT_NEAR(weight(d, 0, 0), .5, 1e-6);
  EXPECT_NEAR(weight(d, 0, 1), .25, 1e-6);
}

// A table holds probabilities: score.rule = linear has no logits to take there, and no fallback.
TEST(StaticTable, AHitIsNoLinearFallback) {
  const RoutingTable table = small_table(4, 2);
  Router r(gate_qwen(4, 2, false), "table.file=t score.rule=linear");
  r.table = &table;
  r.state().request(0).table_entry = 0;
  const LayerDecision& d = r.step({4, 3, 2, 1, 4, -3, -2, -1});  // sequence 1 asks the router
  EXPECT_EQ(show(d), "3K 2K | 0K 3K");
  EXPECT_EQ(d.linear_fallbacks, 1U);  // its second logit is not positive
  EXPECT_NEAR(weight(d, 0, 0), 2.0 / 3, 1e-6);
}

// ---- M17 ---------------------------------------------------------------------------------------

// The article's example: .4 + .3 + .15 + .1 = .95, not renormalised.
TEST(SoftRouting, RunsFourExpertsWithTheirRawProbabilities) {
  const std::vector<float> row = log_rows({{.15, .4, .05, .1, .3}});
  Router raw(gate_mixtral(5, 2), "soft.experts=4 soft.keywords=poem");
  raw.state().request(0).soft = true;
  const LayerDecision& d = raw.step(row);
  EXPECT_EQ(show(d), "1K 4K 0K 3K");
  EXPECT_NEAR(weight(d, 0, 0), .4, 1e-6);
  EXPECT_NEAR(weight(d, 0, 0) + weight(d, 0, 1) + weight(d, 0, 2) + weight(d, 0, 3), .95, 1e-6);
  EXPECT_EQ(d.sets.soft_tokens, 1U);
  Router renormed(gate_mixtral(5, 2), "soft.experts=4 soft.renorm=true soft.requests=all");
  renormed.state().request(0).soft = true;
  EXPECT_NEAR(weight(renormed.step(row), 0, 0), .4 / .95, 1e-6);
}

TEST(SoftRouting, OtherRequestsKeepTheirTopK) {
  Router r(gate_mixtral(5, 2), "soft.experts=4 soft.keywords=poem");
  r.state().request(1).soft = true;
  const LayerDecision& d = r.step(log_rows(Rows(2, {.15, .4, .05, .1, .3})));
  EXPECT_EQ(show(d), "1K 4K - - | 1K 4K 0K 3K");
  EXPECT_NEAR(weight(d, 0, 0), 4.0 / 7, 1e-6);
  EXPECT_EQ(d.assignments, 6U);
}

TEST(SoftRouting, IsDecidedFromThePrompt) {
  const RoutingPolicy p = policy_of("soft.experts=4 soft.keywords=Poem|a%20story");
  EXPECT_TRUE(request_info(p, nullptr, {}, "write a poem", kNoExpert).soft);
  EXPECT_TRUE(request_info(p, nullptr, {}, "Tell me A STORY", kNoExpert).soft);
  EXPECT_FALSE(request_info(p, nullptr, {}, "sort a list", kNoExpert).soft);
  EXPECT_THROW(require_text(p, nullptr, "", "trace"), InputError);
  EXPECT_NO_THROW(require_text(policy_of("soft.experts=4 soft.requests=all"), nullptr, "", "t"));
}

// ---- M18 ---------------------------------------------------------------------------------------

TEST(TwoTier, TheScorerPicksTwoOfTheFirstFour) {
  Router r(gate_mixtral(5, 2), "two_tier.first=int4 two_tier.scorer=s");
  r.tier2 = {0, 1, .5F, 2, 9};
  const LayerDecision& d = r.step(log_rows({{.35, .3, .2, .1, .05}}));
  EXPECT_EQ(show(d), "3K 1K");  // 4 was not proposed
  EXPECT_NEAR(weight(d, 0, 0), .25, 1e-6);
  EXPECT_EQ(d.sets.reranked, 1U);
}

TEST(TwoTier, RerouteTargetsFollowTheScorer) {
  Router r(gate_mixtral(5, 1),
           "two_tier.first=int4 two_tier.scorer=s capacity.rule=absolute capacity.absolute=1");
  r.tier2 = {0, 1, 2, 0, 9, 0, 1, 2, 0, 9, 0, 1, 2, 0, 9};
  EXPECT_EQ(show(r.step(same_rows(3, {.35, .3, .2, .1, .05}))), "2K | 1R | 0R");
}

// Candidates in the scorer's order are 0 (.4), 2 (.2), 1 (.3), 3 (.1); a target of 0 needs
// (1 - .4) .4 = .24, so 2 is passed over for 1.
TEST(TwoTier, AScoreDropPassesOverWhatTheScorerPrefersAndTierOneDoesNot) {
  for (const char* mode : {"", " capacity.mode=rounds"}) {
    Router r(gate_mixtral(4, 1), std::string("two_tier.first=int4 two_tier.scorer=s "
                                             "capacity.rule=absolute capacity.absolute=1 "
                                             "capacity.max_score_drop=0.4") +
                                     mode);
    for (int t = 0; t < 3; ++t) {
      r.tier2.insert(r.tier2.end(), {3, 1, 2, 0});
    }
    EXPECT_EQ(show(r.step(same_rows(3, kFalling))), "0K | 1R | 0D") << mode;
  }
}

// Order 0 (.35), 3 (.15), 2 (.2), 1 (.25), 4: slot 0 needs .7 * .35 = .245 and takes 1; slot 1
// needs .7 * .15 = .105 and may take 2, which slot 0 was refused.
TEST(TwoTier, ACandidateThatOneSlotMustNotTakeStaysFreeForTheOther) {
  for (const char* mode : {"", " capacity.mode=rounds"}) {
    Router r(gate_mixtral(5, 2), std::string("two_tier.first=int4 two_tier.scorer=s "
                                             "capacity.rule=absolute capacity.absolute=1 "
                                             "capacity.max_score_drop=0.3") +
                                     mode);
    r.tier2 = {4, 1, 2, 3, 0, 4, 1, 2, 3, 0};
    EXPECT_EQ(show(r.step(same_rows(2, {.35, .25, .2, .15, .05}))), "0K 3K | 1R 2R") << mode;
  }
}

// ---- M19 ---------------------------------------------------------------------------------------

TEST(RoundRobinPolicy, ContinuesAcrossStepsWithEqualWeights) {
  for (const GateSpec& gate : {gate_mixtral(5, 2), gate_gpt_oss(5, 2), gate_qwen(5, 2, false)}) {
    Router r(gate, "set.rule=round_robin");
    Draw draw(5);
    EXPECT_EQ(show(r.step(draw.logits(10))), "0K 1K | 2K 3K");
    const LayerDecision& d = r.step(draw.logits(15));
    EXPECT_EQ(show(d), "4K 0K | 1K 2K | 3K 4K");
    for (const float w : d.weights) {
      EXPECT_EQ(w, 0.5F);
    }
  }
}

// ---- M21 ---------------------------------------------------------------------------------------

// Sums: .5, .5, .6, .4 -> {2, 0} for both; each token's own p renormalised, whatever the family.
TEST(BatchLevel, OneSetForTheStepsTokens) {
  for (const GateSpec& gate : {gate_mixtral(4, 2), gate_gpt_oss(4, 2), gate_qwen(4, 2, false)}) {
    Router r(gate, "set.rule=batch");
    const LayerDecision& d = r.step(log_rows({{.42, .28, .2, .1}, {.1, .2, .4, .3}}));
    EXPECT_EQ(show(d), "2K 0K | 2K 0K");
    EXPECT_NEAR(weight(d, 0, 0), .2 / .62, 1e-6);
    EXPECT_NEAR(weight(d, 1, 0), .8, 1e-6);
  }
}

// DeepSeek-V2 either renormalises or scales; a batch-level set renormalises.
TEST(BatchLevel, SharesAreNotScaledWhereTheFamilyDoesOneOrTheOther) {
  GateSpec gate = gate_qwen(4, 2, false);
  gate.scale = 16;
  gate.exclusive_scale = true;
  Router r(gate, "set.rule=batch");
  EXPECT_NEAR(weight(r.step(log_rows({{.1, .2, .4, .3}})), 0, 0), .4 / .7, 1e-6);
}

// ---- M22 ---------------------------------------------------------------------------------------

TEST(Pinned, RunsOnItsExpertWithWeightOneAndOthersAsBefore) {
  for (const GateSpec& gate : {gate_mixtral(4, 2), gate_gpt_oss(4, 2), gate_qwen(4, 2, false)}) {
    Router r(gate, "pinned.requests=named");
    r.state().request(1).expert = 3;
    const LayerDecision& d = r.step(same_rows(2, kFalling));
    EXPECT_EQ(show(d), "0K 1K | 3K -");
    EXPECT_EQ(weight(d, 1, 0), 1.0F);
    EXPECT_EQ(d.assignments, 3U);
    EXPECT_EQ(d.sets.pinned_tokens, 1U);
  }
}

// C = 1: the second pinned token waits for expert 3 in a second wave, under every order and rule of
// exhaustion; an ordinary token is rerouted.
TEST(Pinned, WaitsForAFullExpertAndIsNeverRerouted) {
  for (const char* order : {"", " capacity.mode=rounds", " capacity.order=prob"}) {
    for (const char* exhausted : {"top1", "drop_token", "queue"}) {
      Router r(gate_mixtral(4, 1),
               fmt::format("pinned.requests=named capacity.rule=absolute capacity.absolute=1 "
                           "capacity.exhausted={}{}",
                           exhausted, order));
      r.state().request(0).expert = 3;
      r.state().request(1).expert = 3;
      const LayerDecision& d = r.step(same_rows(4, kFalling));
      EXPECT_EQ(show(d), "3K | 3Q | 0K | 1R") << exhausted << order;
      EXPECT_EQ(d.queued[3], 1U);
      EXPECT_EQ(d.waves, 2U);
      EXPECT_EQ(weight(d, 1, 0), 1.0F);
    }
  }
}

TEST(Pinned, AllPinsTheRequestsThatNameNoExpert) {
  const RoutingPolicy all = policy_of("pinned.requests=all pinned.expert=2");
  EXPECT_EQ(request_info(all, nullptr, {}, "", kNoExpert).expert, 2);
  EXPECT_EQ(request_info(all, nullptr, {}, "", 5).expert, 5);
  const RoutingPolicy named = policy_of("pinned.requests=named");
  EXPECT_EQ(request_info(named, nullptr, {}, "", kNoExpert).expert, kNoExpert);
  EXPECT_EQ(request_info({}, nullptr, {}, "", 5).expert, kNoExpert);  // the policy is off
}

// ---- M < E -------------------------------------------------------------------------------------

// 70 experts, 4 stored: an expert outside them is counted as truncated.
TEST(Sets, CountExpertsOutsideTheStoredCandidates) {
  for (const char* policy : {"pinned.requests=named", "set.rule=round_robin"}) {
    for (const bool engine : {true, false}) {
      Router r(gate_mixtral(70, 2), policy);
      r.all_logits = engine;
      if (policy_of(policy).pinned.on()) {
        r.state().request(0).expert = 69;
      }
      std::vector<float> logits(70, 0.0F);
      logits[40] = logits[41] = logits[42] = logits[43] = 5;
      const LayerDecision& d = r.step(logits);
      EXPECT_EQ(d.truncated_slots, std::string(policy).starts_with("pinned") ? 1U : 2U) << engine;
      EXPECT_EQ(show(d), std::string(policy).starts_with("pinned") ? "69K -" : "0K 1K");
    }
  }
}

TEST(Sets, SayWhatTheyNeedAndDoNotGet) {
  const auto message = [](const std::string& policy, const PolicySupply& supply) -> std::string {
    try {
      require_supply(policy_of(policy), supply, "replay");
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const PolicySupply replay{.signals = false, .all_logits = false, .hidden = false};
  const auto has = [&](const std::string& policy, const std::string& part) {
    EXPECT_NE(message(policy, replay).find(part), std::string::npos) << message(policy, replay);
  };
  has("soft_balance.limit=128", "policy.soft_balance.k3_memory = 0.1 needs the memory use");
  has("decode_rebalance.level=0.85", "--signals");
  has("set.rule=batch", "policy.set.rule = batch needs the logits of all experts");
  has("two_tier.first=int4 two_tier.scorer=s",
      "policy.two_tier.first = int4 needs the router's input");
  EXPECT_EQ(
      message("soft_balance.limit=128 soft_balance.low_memory=0 soft_balance.k3_memory=0", replay),
      "");
}

// ---- keys --------------------------------------------------------------------------------------

TEST(SetPolicies, SurviveTheirText) {
  for (const char* text :
       {"soft.experts=4 soft.renorm=true soft.keywords=a%20poem|50%25|诗",
        "table.file=my.table table.hash=0123456789abcdef", "set.rule=batch",
        "pinned.requests=all pinned.expert=3 pinned.names=code:1|a%3Ab:2",
        "soft.experts=4 soft.keywords=%6Fff",
        "two_tier.first=rank two_tier.rank=4 two_tier.scorer=s.safetensors",
        "soft_balance.limit=128 soft_balance.k3=choose soft_balance.batch_limit=off",
        "decode_rebalance.level=0.8 decode_rebalance.target=third"}) {
    const RoutingPolicy p = policy_of(text);
    const std::string line = policy_to_text(p);
    EXPECT_EQ(policy_of(line), p) << line;
    EXPECT_TRUE(has_policy_steps(p));
    validate(p, 16, 2, "test");
  }
  EXPECT_EQ(policy_of("soft.experts=1 soft.keywords=a%20poem|50%25").soft.keywords,
            (std::vector<std::string>{"a poem", "50%"}));
  EXPECT_EQ(policy_of("pinned.requests=named pinned.names=a%3Ab:2").pinned.names[0].first, "a:b");
}

TEST(SetPolicies, RefuseWhatWouldDoNothingOrCannotBe) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      validate(policy_of(text), 16, 2, "test");
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted " + text;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"soft.experts=17 soft.requests=all", "soft.experts = 17. Violated: experts <= 16"},
      {"soft.experts=4 soft.requests=all groups.by=block groups.count=8",
       "experts <= 2, the experts of a group"},
      {"set.rule=batch weights.renorm=none",
       "weights.renorm = none. Violated: renorm = final with set.rule = round_robin or batch"},
      {"soft.experts=4 soft.requests=all weights.renorm=first",
       "renorm = final with soft.requests = all"},
      {"pinned.requests=all pinned.expert=1 table.file=t weights.renorm=none",
       "renorm = final with pinned.requests = all"},
      {"soft.experts=4", "soft.keywords = off. Violated: at least one"},
      {"soft.experts=4 soft.requests=all soft.keywords=x", "off with soft.requests = all"},
      {"soft.keywords=x", "off unless soft.experts > 0"},
      {"soft.experts=4 soft.keywords=x||y", "an empty keyword"},
      {"soft.experts=4 soft.keywords=%4", "% is not followed by two hex digits"},
      {"soft.experts=4 soft.requests=all set.rule=batch", "off unless set.rule = top_k"},
      {"table.hash=0123456789abcdef", "any unless there is a table.file"},
      {"table.file=t table.hash=xyz", "16 lower-case hex digits"},
      {"two_tier.first=int4 two_tier.scorer=s condition.adapter=a", "off with two_tier.first"},
      {"pinned.requests=all", "an expert with pinned.requests = all"},
      {"pinned.requests=all pinned.expert=16", "expert < 16"},
      {"pinned.requests=named pinned.expert=1", "off unless pinned.requests = all"},
      {"pinned.requests=named pinned.names=a:16", "experts < 16"},
      {"pinned.requests=named pinned.names=a", "is not name:expert"},
      {"pinned.requests=named pinned.names=a:1|a:2", "stands twice"},
      {"pinned.requests=named capacity.rule=absolute", "absolute >= 1 with pinned requests"},
      {"two_tier.first=int4", "a file with two_tier.first"},
      {"two_tier.first=rank two_tier.scorer=s", "1 <= rank <= experts = 16"},
      {"two_tier.scorer=s", "off unless two_tier.first is int4 or rank"},
      {"soft_balance.k3=choose", "unless there is a soft_balance.limit"},
      {"soft_balance.limit=9 soft_balance.low_memory=1.5", "0 <= value <= 1"},
      {"soft_balance.limit=9", "low_limit <= limit = 9"},
      {"decode_rebalance.period=2", "unless there is a decode_rebalance.level"},
      {"decode_rebalance.level=0", "0 < level <= 1"},
      {"decode_rebalance.level=1 decode_rebalance.credits=0", "credits >= 1"}};
  for (const auto& [text, part] : cases) {
    EXPECT_NE(message(text).find(part), std::string::npos) << text << ": " << message(text);
  }
  // Tokens of the table keep the family's rule beside a set rule.
  EXPECT_NO_THROW(
      validate(policy_of("set.rule=batch table.file=t weights.renorm=none"), 16, 2, "test"));
  // A third expert is for k < 3.
  EXPECT_THROW(validate(policy_of("soft_balance.limit=128"), 16, 4, "test"), InputError);
  EXPECT_NO_THROW(validate(policy_of("soft_balance.limit=128 soft_balance.k3_memory=0 "
                                     "soft_balance.batch_limit=off"),
                           16, 4, "test"));
}

TEST(SetPolicies, HaveALineInExplain) {
  const auto explained = [](const std::string& text) {
    std::string out;
    for (const std::string& line : explain_policy(gate_mixtral(16, 2), policy_of(text))) {
      out += line + "\n";
    }
    return out;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"soft_balance.limit=128", "10 soft balance: q > 128 (64 where < 0.2 of memory is free)"},
      {"soft_balance.limit=128",
       "10 soft balance: k = 3 (three run) where < 0.1 is free, or after a step with q > 64"},
      {"decode_rebalance.level=0.85",
       "10 decode rebalance: every 4 decode steps an expert whose GPU is above 0.85 gives its next "
       "2 tokens to the least loaded of the top 3"},
      {"table.file=t.table", "10 table: S and p from t.table"},
      {"soft.experts=4 soft.keywords=a|b",
       "10 soft: requests with one of 2 keywords run 4 experts"},
      {"two_tier.first=int4 two_tier.scorer=s", "10 two-tier: the gate is the router in INT4"},
      {"set.rule=round_robin", "10 round-robin: S = the next 2 of 0…15, weights 1/2"},
      {"set.rule=batch", "10 batch: S = the 2 best by sum of p"},
      {"pinned.requests=all pinned.expert=3",
       "10 pinned: S = the expert that the request names (or 3)"}};
  for (const auto& [text, part] : cases) {
    EXPECT_NE(explained(text).find(part), std::string::npos) << explained(text);
  }
  EXPECT_EQ(explained("").find("10 soft"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
