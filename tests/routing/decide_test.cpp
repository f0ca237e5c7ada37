// SPDX-License-Identifier: Apache-2.0
// The golden rows of routing.md and engines.md 2.2, and properties of decide().
#include "engine/routing/decide.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "engine/routing/scores.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

using Loads = std::vector<std::uint32_t>;

const Rows kFive{{.40, .30, .20, .10},
                 {.45, .25, .20, .10},
                 {.50, .05, .30, .15},
                 {.35, .33, .12, .20},
                 {.10, .45, .25, .20}};

LayerDecision five(const std::string& rest, int capacity) {
  return route(
      gate_mixtral(4, 2),
      policy_of(fmt::format("capacity.rule=absolute capacity.absolute={} {}", capacity, rest)),
      log_rows(kFive));
}

TEST(RoutingGolden, TheSixRows) {
  struct Row {
    int capacity;
    const char* policy;
    const char* slots;
    Loads loads;
  };
  const Row rows[] = {
      {2, "", "0K 1K | 0K 1K | 3R 2K | 3R 2R | 1D 2D", {2, 2, 2, 2}},
      {2, "capacity.mode=rounds", "0K 1K | 0K 1D | 3R 2K | 3R 1D | 1K 2K", {2, 2, 2, 2}},
      {2, "capacity.order=prob", "0D 3R | 0K 1D | 0K 2K | 3R 1K | 1K 2K", {2, 2, 2, 2}},
      {3, "", "0K 1K | 0K 1K | 0K 2K | 3R 1K | 3R 2K", {3, 3, 2, 2}},
      {3, "capacity.mode=rounds", "0K 1K | 0K 1K | 0K 2K | 3R 2R | 1K 2K", {3, 3, 3, 1}},
      {3, "capacity.order=prob", "0K 1K | 0K 2R | 0K 2K | 3R 1K | 1K 2K", {3, 3, 3, 1}}};
  for (const Row& row : rows) {
    const LayerDecision d = five(row.policy, row.capacity);
    EXPECT_EQ(show(d), row.slots) << "C = " << row.capacity << " " << row.policy;
    EXPECT_EQ(d.load, row.loads) << "C = " << row.capacity << " " << row.policy;
    EXPECT_EQ(d.kept + d.rerouted + d.dropped, 10U);
  }
}

// "C=2 sequential t2: {3: .15, 2: .30} -> 1/3, 2/3".
TEST(RoutingGolden, WeightsOfTheSetThatRuns) {
  const LayerDecision final_rule = five("", 2);
  EXPECT_NEAR(final_rule.weights[4], 1.0 / 3, 1e-6);
  EXPECT_NEAR(final_rule.weights[5], 2.0 / 3, 1e-6);
  const LayerDecision none = five("weights.renorm=none", 2);
  EXPECT_NEAR(none.weights[4], 0.15, 1e-6);
  EXPECT_NEAR(none.weights[5], 0.30, 1e-6);
  // First choices 0 and 2: denominator .50 + .30.
  const LayerDecision first = five("weights.renorm=first", 2);
  EXPECT_NEAR(first.weights[4], 0.15 / 0.80, 1e-6);
  EXPECT_NEAR(first.weights[5], 0.30 / 0.80, 1e-6);
  // t4 has nothing left: residual only.
  for (const LayerDecision* d : {&final_rule, &none, &first}) {
    EXPECT_EQ(d->weights[8], 0.0F);
    EXPECT_EQ(d->weights[9], 0.0F);
    EXPECT_EQ(d->chosen[8], kNoExpert);
  }
}

// A GPT-OSS gate takes its softmax over the set that runs: the same 1/3 and 2/3.
TEST(RoutingGolden, IdentityGatesFollowTheSameThreeWeightRules) {
  const auto w = [](const char* renorm) {
    return route(gate_gpt_oss(4, 2),
                 policy_of(std::string("capacity.rule=absolute capacity.absolute=2 "
                                       "weights.renorm=") +
                           renorm),
                 log_rows(kFive))
        .weights;
  };
  EXPECT_NEAR(w("final")[4], 1.0 / 3, 1e-6);
  EXPECT_NEAR(w("none")[4], 0.15, 1e-6);
  EXPECT_NEAR(w("first")[4], 0.15 / 0.80, 1e-6);
}

// engines.md 2.2, reroute = none: three answers for one input.
TEST(RoutingGolden, TheThreeDropOrders) {
  const Rows p{{.6, .3, .1}, {.5, .1, .4}, {.7, .2, .1}, {.45, .15, .4}, {.2, .5, .3}};
  using Set = std::set<std::pair<int, int>>;
  const auto kept = [&](const char* order) {
    const LayerDecision d =
        route(gate_mixtral(3, 2),
              policy_of(std::string("capacity.rule=absolute capacity.absolute=2 "
                                    "capacity.reroute=none ") +
                        order),
              log_rows(p));
    Set set;
    for (std::uint32_t t = 0; t < d.tokens; ++t) {
      for (std::uint32_t j = 0; j < 2; ++j) {
        if (const std::uint16_t e = d.chosen[row_offset(t, 2, j)]; e != kNoExpert) {
          set.emplace(t, e);
        }
      }
    }
    EXPECT_EQ(d.rerouted, 0U);
    return set;
  };
  EXPECT_EQ(kept("capacity.mode=rounds"), (Set{{0, 0}, {1, 0}, {4, 1}, {0, 1}, {1, 2}, {3, 2}}));
  EXPECT_EQ(kept("capacity.mode=sequential"),
            (Set{{0, 0}, {0, 1}, {1, 0}, {1, 2}, {2, 1}, {3, 2}}));
  EXPECT_EQ(kept("capacity.order=prob"), (Set{{0, 0}, {0, 1}, {1, 2}, {2, 0}, {3, 2}, {4, 1}}));
}

// ---- exhausted and queue -----------------------------------------------------------------------

// C = 2 sequential: t4's slots are exhausted; the queue keeps them at experts 1 and 2, which then
// need a second wave.
TEST(Exhausted, AQueuedSlotWaitsForItsFirstChoice) {
  const LayerDecision d = five("capacity.exhausted=queue", 2);
  EXPECT_EQ(show(d), "0K 1K | 0K 1K | 3R 2K | 3R 2R | 1Q 2Q");
  EXPECT_EQ(d.load, (Loads{2, 2, 2, 2}));
  EXPECT_EQ(d.queued, (Loads{0, 1, 1, 0}));
  EXPECT_EQ(d.waves, 2U);
  EXPECT_EQ(d.deferred, (Loads{0, 0, 0, 0}));
  EXPECT_NEAR(d.weights[8], 0.45 / 0.70, 1e-6);
  EXPECT_EQ(five("", 2).waves, 1U);
}

// reroute = none: experts 0 and 1 are asked 4 times, expert 2 twice. C = 2: 4 / 2 = 2 waves.
TEST(Exhausted, WavesAreTheBusiestExpertsPasses) {
  const LayerDecision d = five("capacity.exhausted=queue capacity.reroute=none", 2);
  EXPECT_EQ(d.queued, (Loads{2, 2, 0, 0}));
  EXPECT_EQ(d.waves, 2U);
  EXPECT_EQ(five("capacity.exhausted=queue capacity.reroute=none", 1).waves, 4U);
  EXPECT_EQ(five("capacity.exhausted=queue capacity.reroute=none", 4).waves, 1U);
}

TEST(Exhausted, DeferredSlotsBecomeTheNextStepsBacklog) {
  const GateSpec gate = gate_mixtral(4, 2);
  const RoutingPolicy policy = policy_of(
      "capacity.rule=absolute capacity.absolute=2 capacity.exhausted=queue capacity.queue=defer");
  const Candidates c = ranked(gate, log_rows(kFive));
  Step step(5);
  const LayerDecision first = decided(gate, policy, step.context, c);
  EXPECT_EQ(show(first), "0K 1K | 0K 1K | 3R 2K | 3R 2R | 1Q 2Q");
  EXPECT_EQ(first.waves, 1U);
  EXPECT_EQ(first.deferred, (Loads{0, 1, 1, 0}));
  // The next step starts with one place less at experts 1 and 2.
  step.context.backlog = first.deferred;
  const LayerDecision second = decided(gate, policy, step.context, c);
  EXPECT_EQ(show(second), "0K 1K | 0K 2R | 3R 2Q | 3R 1Q | 1Q 2Q");
  EXPECT_EQ(second.load, (Loads{2, 1, 1, 2}));
  EXPECT_EQ(second.deferred, (Loads{0, 2, 2, 0}));
  // Backlog beyond C stays for the step after.
  const Loads much{5, 0, 0, 0};
  step.context.backlog = much;
  const LayerDecision third = decided(gate, policy, step.context, c);
  EXPECT_EQ(third.load[0], 0U);
  EXPECT_EQ(third.deferred[0], 3U + third.queued[0]);
}

TEST(Exhausted, PrefillTokensTakeWavesEvenUnderDefer) {
  const GateSpec gate = gate_mixtral(4, 2);
  const Candidates c = ranked(gate, log_rows(kFive));
  const Step step(5, Phase::kPrefill);
  const LayerDecision d =
      decided(gate,
              policy_of("capacity.rule=absolute capacity.absolute=2 capacity.exhausted=queue "
                        "capacity.queue=defer"),
              step.context, c);
  EXPECT_EQ(d.queued, (Loads{0, 1, 1, 0}));
  EXPECT_EQ(d.deferred, (Loads{0, 0, 0, 0}));
  EXPECT_EQ(d.waves, 2U);
}

// C = 1, reroute none. Sequential: t0 takes 0 and 1; t1 takes 2, finds 1 full and goes as a whole,
// so that expert 2 is free again for t2.
TEST(Exhausted, DropTokenGivesBackWhatTheTokenHeld) {
  const Rows p{{.6, .2, .1, .1}, {.1, .3, .5, .1}, {.1, .1, .45, .35}};
  const std::string base = "capacity.rule=absolute capacity.absolute=1 capacity.reroute=none ";
  const auto run = [&](const std::string& rest) {
    return route(gate_mixtral(4, 2), policy_of(base + rest), log_rows(p));
  };
  EXPECT_EQ(show(run("capacity.exhausted=drop_token")), "0K 1K | 2D 1D | 2K 3K");
  EXPECT_EQ(show(run("")), "0K 1K | 2K 1D | 2D 3K");  // top1 drops the slot only
  // Rounds by prob: t1 wins 1 (.3 > .2) and 2 (.5 > .45), so t0 and t2 go with all they held.
  const LayerDecision d = run("capacity.order=prob capacity.exhausted=drop_token");
  EXPECT_EQ(show(d), "0D 1D | 2K 1K | 2D 3D");
  EXPECT_EQ(d.load, (Loads{0, 1, 1, 0}));
  EXPECT_EQ(d.overflow, (Loads{0, 1, 1, 0}));
}

// ---- reroute -----------------------------------------------------------------------------------

// d = 0.5: t2 (.50 .05 .30 .15), C = 2 sequential: expert 3 has .15 < .5 * .50, so slot 0 drops.
TEST(MaxScoreDrop, RefusesATargetThatIsTooFarBelow) {
  EXPECT_EQ(show(five("capacity.max_score_drop=0.5", 2), 2), "0D 2K");
  EXPECT_EQ(show(five("capacity.max_score_drop=0.7", 2), 2), "3R 2K");  // .15 >= .3 * .50
  EXPECT_EQ(show(five("capacity.max_score_drop=1", 2)), show(five("", 2)));
}

// routing.md: "A candidate refused by max_score_drop stays free for the other slot".
// t1 (.50, .30, .20): both experts full at C = 1; d = 0.5. Slot 0 needs >= .25, slot 1 needs >=
// .15.
TEST(MaxScoreDrop, ARefusedCandidateStaysFreeForTheOtherSlot) {
  const Rows p{{.60, .30, .10}, {.50, .30, .20}};
  for (const char* mode : {"capacity.mode=sequential", "capacity.mode=rounds"}) {
    const LayerDecision d =
        route(gate_mixtral(3, 2),
              policy_of(std::string("capacity.rule=absolute capacity.absolute=1 "
                                    "capacity.max_score_drop=0.5 ") +
                        mode),
              log_rows(p));
    EXPECT_EQ(show(d), "0K 1K | 0D 2R") << mode;
  }
}

TEST(Reroute, ExpertsOutsideTheKeptGroupsAreNoTargets) {
  // Two groups of 4, one kept: experts 0-3. Two equal tokens, C = 1, k = 2.
  const std::vector<float> row{3, 2, 1, 0, -5, -5, -5, -5};
  std::vector<float> z;
  for (int t = 0; t < 3; ++t) {
    z.insert(z.end(), row.begin(), row.end());
  }
  for (GateSpec gate : {gate_deepseek_v3(8, 2, 2, 1), gate_deepseek_v2(8, 2, 2, 1, 16.0F)}) {
    const LayerDecision d = route(
        gate, policy_of("capacity.rule=absolute capacity.absolute=1"), z,
        gate.score == GateScore::kSigmoid ? std::vector<float>(8, 0.0F) : std::vector<float>{});
    EXPECT_EQ(show(d), "0K 1K | 2R 3R | 0D 1D");
    EXPECT_FALSE(d.truncated());  // nothing beyond the group could have been taken
  }
}

TEST(Reroute, ExpertsWithMinusInfinityAreNoTargetsEvenAsTheOnlyFreeOnes) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> z{2, 1, -inf, -inf, 2, 1, -inf, -inf};
  EXPECT_EQ(
      show(route(gate_mixtral(4, 2), policy_of("capacity.rule=absolute capacity.absolute=1"), z)),
      "0K 1K | 0D 1D");
}

// M = 4 of E = 100: with C = 1 the third identical token needs candidates that were not stored.
TEST(Reroute, NeedingAnExpertBeyondTheStoredOnesSetsTruncated) {
  std::vector<float> z;
  for (int t = 0; t < 3; ++t) {
    for (int e = 0; e < 100; ++e) {
      z.push_back(static_cast<float>(-e));
    }
  }
  const RoutingPolicy policy = policy_of("capacity.rule=absolute capacity.absolute=1");
  const LayerDecision stored = route(gate_mixtral(100, 2), policy, z);
  EXPECT_EQ(show(stored), "0K 1K | 2R 3R | 0D 1D");
  EXPECT_EQ(stored.truncated_slots, 2U);
  const LayerDecision full = route(gate_mixtral(100, 2), policy, z, {}, 100);
  EXPECT_EQ(show(full), "0K 1K | 2R 3R | 4R 5R");
  EXPECT_FALSE(full.truncated());
  EXPECT_TRUE(route(gate_mixtral(100, 2),
                    policy_of("capacity.rule=absolute capacity.absolute=1 capacity.mode=rounds"), z)
                  .truncated());
}

// ---- scopes ------------------------------------------------------------------------------------

// Four equal tokens on two ranks, k = 1, share with CF 1: global C = ceil(4 / 4) = 1, per rank
// C = ceil(2 / 4) = 1 of its own, so twice as many are kept.
TEST(Scope, RankCountsLoadsPerSourceRank) {
  const GateSpec gate = gate_mixtral(4, 1);
  const Candidates c = ranked(gate, {3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0});
  Step step(4);
  const std::vector<std::uint16_t> rank{0, 1, 0, 1};
  step.context.rank = rank;
  step.context.ranks = 2;
  const std::string none = "capacity.rule=share capacity.reroute=none capacity.scope=";
  EXPECT_EQ(show(decided(gate, policy_of(none + "global"), step.context, c)), "0K | 0D | 0D | 0D");
  const LayerDecision d = decided(gate, policy_of(none + "rank"), step.context, c);
  EXPECT_EQ(show(d), "0K | 0K | 0D | 0D");
  EXPECT_EQ(d.load, (Loads{2, 0, 0, 0}));
  EXPECT_EQ(d.deferred.size(), 8U);
  // Sequences are counted per rank too: S = 2 each.
  EXPECT_EQ(show(decided(gate,
                         policy_of("capacity.rule=batch_seqs capacity.reroute=none "
                                   "capacity.scope=rank"),
                         step.context, c)),
            "0K | 0K | 0K | 0K");
}

TEST(Scope, GroupsOfTokensHaveLimitsOfTheirOwn) {
  const GateSpec gate = gate_mixtral(4, 1);
  std::vector<float> z;
  for (int t = 0; t < 6; ++t) {
    z.insert(z.end(), {3, 2, 1, 0});
  }
  const std::string mesh =
      "capacity.rule=mesh capacity.min_capacity=1 capacity.reroute=none capacity.group_size=";
  EXPECT_EQ(show(route(gate, policy_of(mesh + "3"), z)), "0K | 0D | 0D | 0K | 0D | 0D");
  EXPECT_EQ(show(route(gate, policy_of(mesh + "6"), z)), "0K | 0D | 0D | 0D | 0D | 0D");
}

TEST(Scope, AMixedStepHasTheSumOfItsPhasesCapacities) {
  const GateSpec gate = gate_mixtral(4, 2);
  Step step(5);
  // 3 prefill tokens (one sequence each here) and 2 decode tokens:
  // ceil(1.0 * 3 * 2 / 4) + ceil(1.25 * 2 * 2 / 4) = 2 + 2.
  step.phase = {0, 0, 0, 1, 1};
  step.context = make_step(step.sequence, step.position, step.phase, 1, 0, 0);
  const LayerDecision d = decided(gate, policy_of("capacity.rule=share capacity.dynamic=phase"),
                                  step.context, ranked(gate, log_rows(kFive)));
  EXPECT_EQ(d.capacity, 4U);
}

TEST(Decide, TheOrderOfTheCandidatesIsEnoughWhereNothingReadsScores) {
  std::vector<float> logits(std::size_t{40} * 8);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(
        random_gumbel(3, random_purpose("test"), {0, 0, static_cast<std::uint32_t>(i), 0}));
  }
  const GateSpec gate = gate_mixtral(8, 2);
  const Candidates full = ranked(gate, logits);
  Candidates order = full;
  order.logit.clear();
  order.lse.clear();
  const Step step(40);
  for (const char* text : {"", "capacity.rule=share capacity.factor=1.1",
                           "capacity.rule=share capacity.exhausted=queue capacity.mode=rounds"}) {
    const RoutingPolicy policy = policy_of(text);
    ASSERT_FALSE(reads_scores(policy)) << text;
    const LayerDecision a = decided(gate, policy, step.context, full);
    const LayerDecision b = decided(gate, policy, step.context, order);
    EXPECT_EQ(a.first, b.first) << text;
    EXPECT_EQ(a.chosen, b.chosen) << text;
    EXPECT_EQ(a.outcome, b.outcome) << text;
    EXPECT_EQ(a.load, b.load) << text;
    EXPECT_EQ(a.demand, b.demand) << text;
    EXPECT_EQ(a.kept, b.kept) << text;
    EXPECT_EQ(a.assignments, 80U) << text;
    EXPECT_EQ(b.assignments, 80U) << text;
    EXPECT_EQ(a.waves, b.waves) << text;
    EXPECT_EQ(a.weights.size(), 80U);
    EXPECT_TRUE(b.weights.empty());
  }
  for (const char* text :
       {"capacity.rule=share capacity.mode=rounds capacity.order=prob", "score.rule=linear",
        "capacity.rule=share capacity.max_score_drop=0.5", "bonus.lambda=0.1"}) {
    EXPECT_TRUE(reads_scores(policy_of(text))) << text;
  }
}

// Eight slots are decided eight at a time where all of them are experts, else one after the other.
TEST(Decide, ARowOfEightEndsAtItsFirstCandidateThatIsNone) {
  constexpr std::uint16_t kNo = kNoExpert;
  const std::vector<std::vector<std::uint16_t>> rows{{0, 1, 2, 3, 4, 5, 6, 7},
                                                     {15, 14, 13, 12, 11, 10, 9, 8},
                                                     {5, 4, kNo, kNo, kNo, kNo, kNo, kNo},
                                                     {9, 8, 7, 6, 5, 4, 3, kNo},
                                                     {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
                                                     {2, 4, 6, 8, 10, 12, 14, 0}};
  const std::uint8_t kept = static_cast<std::uint8_t>(SlotOutcome::kKept);
  const GateSpec gate = gate_mixtral(16, 8);
  const Step step(static_cast<std::uint32_t>(rows.size()));
  for (const std::uint32_t width : {8U, 16U}) {
    Candidates c;
    c.tokens = static_cast<std::uint32_t>(rows.size());
    c.width = width;
    std::vector<std::uint16_t> want;
    std::vector<std::uint32_t> demand(16, 0);
    for (const auto& row : rows) {
      c.ids.insert(c.ids.end(), row.begin(), row.end());
      // Behind the slots stand experts that nobody may take.
      for (std::uint32_t m = 8; m < width; ++m) {
        c.ids.push_back(row[7] == kNo ? kNo : static_cast<std::uint16_t>(m));
      }
      want.insert(want.end(), row.begin(), row.end());
      for (const std::uint16_t e : row) {
        if (e != kNo) ++demand[e];
      }
    }
    const LayerDecision d = decided(gate, RoutingPolicy{}, step.context, c);
    EXPECT_EQ(d.first, want) << width;
    EXPECT_EQ(d.chosen, want) << width;
    EXPECT_EQ(d.demand, demand) << width;
    EXPECT_EQ(d.load, demand) << width;
    EXPECT_EQ(d.assignments, 8U + 8 + 2 + 7 + 0 + 8) << width;
    EXPECT_EQ(d.kept, d.assignments) << width;
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(d.outcome[i], want[i] == kNo ? 0 : kept) << i;
    }
  }
}

TEST(StepContext, CountsTokensAndSequencesByPhase) {
  const std::vector<std::uint32_t> sequence{4, 4, 4, 7, 9, 9};
  const std::vector<std::uint32_t> position{0, 1, 2, 30, 0, 1};
  const std::vector<std::uint8_t> phase{0, 0, 0, 1, 2, 2};
  const StepContext c = make_step(sequence, position, phase, 1, 2, 3);
  EXPECT_EQ(c.tokens, (std::array<std::uint64_t, 3>{3, 1, 2}));
  EXPECT_EQ(c.sequences, (std::array<std::uint64_t, 3>{1, 1, 1}));
}

// ---- an independent, slow re-implementation ----------------------------------------------------

/// routing.md read literally, with sets and maps; shares nothing with decide() but the candidate
/// row, the probability and the keyed hash.
struct Oracle {
  std::vector<std::string> slots;  // as show()
  std::map<int, int> load;
  Oracle(const GateSpec& gate, const CapacityPolicy& cap, const Step& step, const Candidates& c,
         int capacity, const Loads& backlog) {
    const int tokens = static_cast<int>(c.tokens);
    const int k = static_cast<int>(gate.top_k);
    const int m = static_cast<int>(c.width);
    const auto at = [&](int t, int r) { return static_cast<std::size_t>(t * m + r); };
    const auto p = [&](int t, int r) {
      const double z = c.logit[at(t, r)];
      return std::isinf(z)
                 ? 0.0F
                 : static_cast<float>(std::min(
                       1.0, std::exp(z - static_cast<double>(c.lse[static_cast<std::size_t>(t)]))));
    };
    for (std::size_t e = 0; e < backlog.size(); ++e) {
      load[static_cast<int>(e)] = static_cast<int>(backlog[e]);
    }
    std::vector<std::vector<std::string>> out(
        static_cast<std::size_t>(tokens), std::vector<std::string>(static_cast<std::size_t>(k)));
    std::map<std::pair<int, int>, int> held;  // (t, j) -> expert
    std::set<int> gone;                       // tokens dropped as a whole
    const auto cell = [&](int t, int j) -> std::string& {
      return out[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)];
    };
    const auto take = [&](int t, int j, int r) {
      const int e = c.ids[at(t, r)];
      ++load[e];
      held[{t, j}] = e;
      cell(t, j) = fmt::format("{}{}", e, r == j ? 'K' : 'R');
    };
    const auto allowed = [&](int t, int j, int r) {
      return !std::isinf(c.logit[at(t, r)]) &&
             (!cap.max_score_drop || p(t, r) >= (1 - *cap.max_score_drop) * p(t, j));
    };
    const auto exhaust = [&](int t, int j) {
      if (cap.exhausted == Exhausted::kTop1) {
        cell(t, j) = fmt::format("{}D", c.ids[at(t, j)]);
      } else if (cap.exhausted == Exhausted::kQueue) {
        cell(t, j) = fmt::format("{}Q", c.ids[at(t, j)]);
      } else {
        gone.insert(t);
        for (int s = 0; s < k; ++s) {
          if (held.contains({t, s})) {
            --load[held[{t, s}]];
            held.erase({t, s});
          }
          cell(t, s) = fmt::format("{}D", c.ids[at(t, s)]);
        }
      }
    };
    if (resolved_mode(cap) == OverflowMode::kSequential) {
      for (int t = 0; t < tokens; ++t) {
        std::set<int> used;
        for (int j = 0; j < k && !gone.contains(t); ++j) {
          if (load[c.ids[at(t, j)]] < capacity) {
            take(t, j, j);
            continue;
          }
          bool found = false;
          for (int r = k; r < m && !found && cap.reroute == Reroute::kNext; ++r) {
            const int f = c.ids[at(t, r)];
            if (!used.contains(f) && load[f] < capacity && allowed(t, j, r)) {
              take(t, j, r);
              used.insert(f);
              found = true;
            }
          }
          if (!found) {
            exhaust(t, j);
          }
        }
      }
    } else {
      struct Ask {
        int t, j, r;
      };
      std::vector<Ask> pending;
      std::map<int, std::set<int>> tried;  // token -> candidate ranks
      for (int t = 0; t < tokens; ++t) {
        for (int j = 0; j < k; ++j) {
          pending.push_back({t, j, j});
        }
      }
      while (!pending.empty()) {
        std::vector<Ask> losers;
        for (int e = 0; e < static_cast<int>(gate.experts); ++e) {
          std::vector<Ask> mine;
          std::copy_if(pending.begin(), pending.end(), std::back_inserter(mine),
                       [&](const Ask& a) { return c.ids[at(a.t, a.r)] == e; });
          const auto key = [&](const Ask& a) -> std::tuple<double, std::uint64_t, int, int> {
            if (cap.order == OverflowOrder::kProb) {
              return {-p(a.t, a.r), 0, a.t, a.j};
            }
            if (cap.order == OverflowOrder::kRandom) {
              const auto row = static_cast<std::size_t>(a.t);
              return {0,
                      random_u64(step.context.seed, random_purpose("overflow_order"),
                                 {step.sequence[row], step.context.layer, step.position[row],
                                  static_cast<std::uint32_t>(e)}),
                      a.t, a.j};
            }
            return {0, 0, a.j, a.t};
          };
          std::sort(mine.begin(), mine.end(),
                    [&](const Ask& a, const Ask& b) { return key(a) < key(b); });
          for (const Ask& a : mine) {
            if (load[e] < capacity) {
              take(a.t, a.j, a.r);
            } else {
              losers.push_back(a);
            }
          }
        }
        std::sort(losers.begin(), losers.end(), [](const Ask& a, const Ask& b) {
          return std::pair(a.t, a.j) < std::pair(b.t, b.j);
        });
        pending.clear();
        for (const Ask& a : losers) {
          if (gone.contains(a.t)) {
            continue;
          }
          int r = k;
          while (r < m && tried[a.t].contains(r)) {
            ++r;
          }
          if (cap.reroute == Reroute::kNext && r < m && allowed(a.t, a.j, r)) {
            tried[a.t].insert(r);
            pending.push_back({a.t, a.j, r});
          } else {
            exhaust(a.t, a.j);
          }
        }
        std::erase_if(pending, [&](const Ask& a) { return gone.contains(a.t); });
      }
    }
    for (const auto& row : out) {
      slots.push_back(fmt::format("{}", fmt::join(row, " ")));
    }
  }
};

TEST(DecideOracle, AgreesOnManyRandomSmallCases) {
  Draw draw(2024);
  const char* orders[] = {"capacity.mode=sequential", "capacity.mode=rounds", "capacity.order=prob",
                          "capacity.order=random"};
  const char* ends[] = {"top1", "drop_token", "queue"};
  const char* drops[] = {"", " capacity.max_score_drop=0.5", " capacity.max_score_drop=0.9"};
  std::uint64_t rerouted = 0;
  std::uint64_t dropped = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::uint32_t experts = 2 + draw.below(7);
    const std::uint32_t top_k = 1 + draw.below(std::min(experts, 3U));
    const std::uint32_t tokens = draw.below(9);
    const std::uint32_t capacity = 1 + draw.below(4);
    const bool next = draw.below(4) != 0;
    const std::string text = fmt::format(
        "capacity.rule=absolute capacity.absolute={} {} capacity.exhausted={} "
        "capacity.reroute={}{}",
        capacity, orders[draw.below(4)], ends[draw.below(3)], next ? "next" : "none",
        next ? drops[draw.below(3)] : "");
    std::vector<float> z(std::size_t{tokens} * experts);
    for (float& v : z) {
      v = static_cast<float>(draw.below(6));  // ties
      if (draw.below(20) == 0) {
        v = std::numeric_limits<float>::quiet_NaN();
      }
    }
    Loads backlog(experts);
    for (auto& b : backlog) {
      b = draw.below(5) == 0 ? draw.below(3) : 0;
    }
    const GateSpec gate = gate_mixtral(experts, top_k);
    const RoutingPolicy policy = policy_of(text);
    const Candidates c = ranked(gate, z);
    Step step(tokens, Phase::kDecode, static_cast<std::uint64_t>(round));
    step.context.backlog = backlog;
    const LayerDecision d = decided(gate, policy, step.context, c);
    const Oracle want(gate, policy.capacity, step, c, static_cast<int>(capacity), backlog);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      ASSERT_EQ(show(d, t), want.slots[t]) << "round " << round << " token " << t << ": " << text;
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      const auto it = want.load.find(static_cast<int>(e));
      ASSERT_EQ(d.load[e] + backlog[e],
                static_cast<std::uint32_t>(it == want.load.end() ? 0 : it->second))
          << "round " << round << ": " << text;
    }
    rerouted += d.rerouted;
    dropped += d.dropped;
  }
  EXPECT_GT(rerouted, 1000U);  // the cases do exercise the rules
  EXPECT_GT(dropped, 1000U);
}

// ---- properties --------------------------------------------------------------------------------

class Properties : public testing::Test {
 protected:
  /// Runs `body` on random cases of several families and policies.
  template <class F>
  void over_cases(F&& body) {
    Draw draw(99);
    const char* policies[] = {
        "capacity.rule=share",
        "capacity.rule=share capacity.factor=0.5 capacity.mode=rounds",
        "capacity.rule=share capacity.factor=1.25 capacity.order=prob capacity.exhausted=queue",
        "capacity.rule=share capacity.factor=0.75 capacity.order=random "
        "capacity.exhausted=drop_token",
        "capacity.rule=share capacity.reroute=none capacity.exhausted=queue",
        "capacity.rule=share capacity.factor=0.4 capacity.exhausted=drop_token",
        "capacity.rule=deepspeed",
        "capacity.rule=mesh capacity.group_size=8 capacity.min_capacity=1"};
    const GateSpec gates[] = {gate_mixtral(8, 2),
                              gate_qwen(60, 4, false),
                              gate_gpt_oss(32, 4),
                              gate_deepseek_v2(20, 3, 5, 2, 16.0F),
                              gate_deepseek_v3(128, 8, 8, 4),
                              gate_mixtral(4, 4)};
    for (int round = 0; round < 6; ++round) {
      for (const GateSpec& gate : gates) {
        const std::uint32_t tokens = 1 + draw.below(40);
        const std::vector<float> z = draw.logits(tokens * gate.experts);
        std::vector<float> bias;
        if (gate.score == GateScore::kSigmoid) {
          bias = draw.logits(gate.experts);
        }
        const Candidates c = ranked(gate, z, bias);
        const Step step(tokens);
        for (const char* text : policies) {
          SCOPED_TRACE(fmt::format("{} | {}", gate_to_text(gate), text));
          body(gate, policy_of(text), step, c, bias);
        }
      }
    }
  }
};

TEST_F(Properties, AssignmentsAreConservedAndLoadsStayWithinCapacity) {
  over_cases([](const GateSpec& gate, const RoutingPolicy& policy, const Step& step,
                const Candidates& c, const std::vector<float>& bias) {
    const LayerDecision d = decided(gate, policy, step.context, c, bias);
    ASSERT_EQ(d.assignments, std::uint64_t{c.tokens} * gate.top_k);
    ASSERT_EQ(d.kept + d.rerouted + d.queued_slots + d.dropped, d.assignments);
    ASSERT_EQ(std::accumulate(d.load.begin(), d.load.end(), std::uint64_t{0}), d.kept + d.rerouted);
    ASSERT_EQ(std::accumulate(d.queued.begin(), d.queued.end(), std::uint64_t{0}), d.queued_slots);
    ASSERT_EQ(std::accumulate(d.demand.begin(), d.demand.end(), std::uint64_t{0}), d.assignments);
    const std::uint64_t groups =
        resolved_scope(policy.capacity) == CapacityScope::kGroup
            ? c.tokens / capacity_group_size(c.tokens, policy.capacity.group_size)
            : 1;
    for (const std::uint32_t load : d.load) {
      ASSERT_LE(load, std::uint64_t{d.capacity} * groups);
    }
  });
}

TEST_F(Properties, ATokenNeverHasAnExpertTwiceAndWeightsAreFinite) {
  over_cases([](const GateSpec& gate, const RoutingPolicy& policy, const Step& step,
                const Candidates& c, const std::vector<float>& bias) {
    const LayerDecision d = decided(gate, policy, step.context, c, bias);
    for (std::uint32_t t = 0; t < d.tokens; ++t) {
      std::set<std::uint16_t> seen;
      float sum = 0;
      for (std::uint32_t j = 0; j < d.slots; ++j) {
        const std::uint64_t i = row_offset(t, d.slots, j);
        ASSERT_TRUE(std::isfinite(d.weights[i]));
        if (d.chosen[i] == kNoExpert) {
          ASSERT_EQ(d.weights[i], 0.0F);
          ASSERT_EQ(d.outcome[i], static_cast<std::uint8_t>(SlotOutcome::kDropped));
        } else {
          ASSERT_TRUE(seen.insert(d.chosen[i]).second);
          ASSERT_EQ(d.outcome[i] == static_cast<std::uint8_t>(SlotOutcome::kRerouted),
                    d.chosen[i] != d.first[i]);
          sum += d.weights[i];
        }
      }
      // Whatever runs, a renormalising family's weights add up to its scale.
      if (!seen.empty() && (gate.renorm || gate.score == GateScore::kIdentity)) {
        ASSERT_NEAR(sum, gate.scale, 1e-5 * gate.scale);
      }
    }
  });
}

TEST_F(Properties, TheSameBatchAHundredTimesIsBitwiseEqual) {
  Draw draw(3);
  const GateSpec gate = gate_mixtral(16, 2);
  const std::vector<float> z = draw.logits(64 * 16);
  const RoutingPolicy policy = policy_of("capacity.rule=share capacity.order=random");
  const LayerDecision first = route(gate, policy, z);
  DecideWorkspace workspace;
  LayerDecision d;
  const Candidates c = ranked(gate, z);
  const Step step(64);
  for (int i = 0; i < 100; ++i) {
    decide(gate, policy, step.context, c.view(), {}, workspace, d);
    ASSERT_EQ(d.chosen, first.chosen);
    ASSERT_EQ(d.weights, first.weights);
    ASSERT_EQ(d.outcome, first.outcome);
  }
}

TEST_F(Properties, AHugeCapacityIsPlainTopK) {
  over_cases([](const GateSpec& gate, const RoutingPolicy& policy, const Step& step,
                const Candidates& c, const std::vector<float>& bias) {
    const LayerDecision plain = decided(gate, {}, step.context, c, bias);
    ASSERT_EQ(plain.kept, plain.assignments);
    ASSERT_EQ(plain.chosen, plain.first);
    ASSERT_EQ(plain.capacity, kUnlimitedCapacity);
    RoutingPolicy huge = policy;
    huge.capacity.factor = 1e5;
    const LayerDecision d = decided(gate, huge, step.context, c, bias);
    ASSERT_EQ(d.chosen, plain.chosen);
    ASSERT_EQ(d.weights, plain.weights);
    ASSERT_EQ(d.overflowed, 0U);
  });
}

TEST_F(Properties, TopKOfAllExpertsIsTheDenseMixture) {
  Draw draw(21);
  const std::vector<float> z = draw.logits(10 * 6);
  const LayerDecision d = route(gate_qwen(6, 6, false), {}, z);
  for (std::uint32_t t = 0; t < 10; ++t) {
    double sum = 0;
    for (std::uint32_t j = 0; j < 6; ++j) {
      sum += d.weights[row_offset(t, 6, j)];
    }
    EXPECT_NEAR(sum, 1.0, 1e-6);  // the softmax over all experts
  }
  EXPECT_EQ(d.demand, (Loads(6, 10)));
}

// With order = prob and distinct probabilities the result does not depend on the order of tokens;
// plain top-k never does.
TEST_F(Properties, PermutingTokensPermutesOrderFreeDecisions) {
  Draw draw(31);
  for (int round = 0; round < 20; ++round) {
    const std::uint32_t tokens = 24;
    const GateSpec gate = gate_mixtral(8, 2);
    const std::vector<float> z = draw.logits(tokens * 8);
    std::vector<std::uint32_t> order(tokens);
    std::iota(order.begin(), order.end(), 0U);
    for (std::uint32_t i = tokens - 1; i > 0; --i) {
      std::swap(order[i], order[draw.below(i + 1)]);
    }
    std::vector<float> shuffled;
    for (const std::uint32_t t : order) {
      shuffled.insert(shuffled.end(), z.begin() + t * 8, z.begin() + (t + 1) * 8);
    }
    for (const char* text : {"", "capacity.rule=share capacity.order=prob capacity.reroute=none",
                             "capacity.rule=share capacity.order=prob"}) {
      const LayerDecision a = route(gate, policy_of(text), z);
      const LayerDecision b = route(gate, policy_of(text), shuffled);
      EXPECT_EQ(a.load, b.load);
      for (std::uint32_t i = 0; i < tokens; ++i) {
        ASSERT_EQ(show(b, i), show(a, order[i])) << text;
        ASSERT_EQ(b.weights[i * 2], a.weights[order[i] * 2]);
      }
    }
  }
}

// A smaller factor never overflows less. (With reroute = next the later demand of an expert depends
// on earlier reroutes, so the property is stated where first choices are the whole demand.)
TEST_F(Properties, OverflowFallsAsTheFactorGrows) {
  Draw draw(41);
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> z = draw.logits(48 * 8);
    for (const char* mode : {"sequential", "rounds"}) {
      std::uint64_t before = ~std::uint64_t{0};
      for (const double factor : {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0}) {
        const LayerDecision d =
            route(gate_mixtral(8, 2),
                  policy_of(fmt::format("capacity.rule=share capacity.factor={} capacity.mode={} "
                                        "capacity.reroute=none",
                                        factor, mode)),
                  z);
        EXPECT_LE(d.overflowed, before) << factor;
        EXPECT_EQ(d.overflowed, d.dropped);
        before = d.overflowed;
      }
      EXPECT_EQ(before, 0U);
    }
  }
}

TEST_F(Properties, CapacityZeroDropsEverything) {
  const LayerDecision d = five("", 0);
  EXPECT_EQ(d.dropped, 10U);
  EXPECT_EQ(d.waves, 0U);
  EXPECT_EQ(show(d, 0), "0D 1D");
}

TEST_F(Properties, ZeroTokensDecideNothing) {
  for (const char* text : {"", "capacity.rule=share", "capacity.rule=mesh",
                           "capacity.rule=share capacity.order=prob"}) {
    const LayerDecision d = route(gate_mixtral(8, 2), policy_of(text), {});
    EXPECT_EQ(d.assignments, 0U);
    EXPECT_EQ(d.load, Loads(8, 0));
  }
}

TEST_F(Properties, AllTokensOnOneExpertFillItToTheBrim) {
  std::vector<float> z;
  for (int t = 0; t < 100; ++t) {
    z.insert(z.end(), {9, 0, 0, 0});
  }
  const LayerDecision d =
      route(gate_mixtral(4, 1), policy_of("capacity.rule=share capacity.factor=1"), z);
  EXPECT_EQ(d.load, (Loads{25, 25, 25, 25}));  // 75 rerouted to 1, 2, 3 in this order
  EXPECT_EQ(d.overflow, (Loads{75, 0, 0, 0}));
  EXPECT_EQ(d.rerouted, 75U);
}

// A law's candidates beyond the M at hand are asked for when these are full, and decide as all
// would.
TEST(Decide, FetchesFurtherCandidatesOfTokensThatHaveNoneLeft) {
  constexpr std::uint32_t kTokens = 300, kExperts = 100;
  const GateSpec gate = gate_mixtral(kExperts, 2);
  std::vector<float> logits;
  for (std::uint32_t i = 0; i < kTokens * kExperts; ++i) {
    const std::uint32_t e = i % kExperts;
    logits.push_back(static_cast<float>(random_normal(3, 7, {i / kExperts, e, 0, 0})) -
                     0.1F * static_cast<float>(e));
  }
  const auto unscored = [&](std::uint32_t width) {
    Candidates c = ranked(gate, logits, {}, width);
    c.logit.clear();
    c.lse.clear();
    return c;
  };
  const Candidates all = unscored(kExperts), few = unscored(4);
  class Rest final : public MoreCandidates {
   public:
    explicit Rest(const Candidates& all) : all_(all) {}
    void all(std::uint32_t t, std::span<std::uint16_t> ids) override {
      ++asked[t];
      std::copy_n(all_.ids.begin() + t * kExperts, kExperts, ids.begin());
    }
    std::map<std::uint32_t, int> asked;

   private:
    const Candidates& all_;
  };
  const Step step(kTokens);
  DecideWorkspace workspace;
  for (const char* how : {"", "capacity.mode=rounds", "capacity.mode=rounds capacity.order=random",
                          "capacity.exhausted=drop_token"}) {
    const RoutingPolicy policy =
        policy_of(std::string("capacity.rule=share capacity.factor=1.0 ") + how);
    LayerDecision whole, lazy, cut;
    decide(gate, policy, step.context, all.view(), {}, workspace, whole);
    Rest rest(all);
    CandidatesView view = few.view();
    view.more = &rest;
    decide(gate, policy, step.context, view, {}, workspace, lazy);
    EXPECT_EQ(lazy.chosen, whole.chosen) << how;
    EXPECT_EQ(lazy.outcome, whole.outcome) << how;
    EXPECT_EQ(lazy.load, whole.load) << how;
    EXPECT_EQ(lazy.truncated_slots, 0U) << how;
    EXPECT_EQ(lazy.dropped, 0U) << how;  // As many places as assignments.
    EXPECT_LT(rest.asked.size(), kTokens) << how;
    for (const auto& [t, n] : rest.asked) EXPECT_EQ(n, 1) << how << ": token " << t;
    decide(gate, policy, step.context, few.view(), {}, workspace, cut);
    EXPECT_GT(cut.dropped, 0U) << how;
    EXPECT_GT(cut.truncated_slots, 0U) << how;
  }
}

}  // namespace
}  // namespace switchyard
