// SPDX-License-Identifier: Apache-2.0
// engines.md 5: public bug reports as tests. This file holds the rows as they look through the
// whole pipeline, under every policy. More of the same rows, by suite name IssueRow<n>:
// candidates_test.cpp (1, 3, 4, 5, 6, 7, 9, 10), gate_test.cpp (12),
// tests/engine/cpu_kernels_test.cpp (11, 22).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

/// One policy per mechanism that needs no signals and no files.
const char* const kPolicies[] = {"",
                                 "condition.clamp=50",
                                 "noise.mode=fixed",
                                 "semantic.mode=ema",
                                 "temperature.place=before temperature.value=2",
                                 "temperature.place=after temperature.value=2",
                                 "gumbel.mode=tau_noise",
                                 "gumbel.mode=tau_all",
                                 "load_aware.u=queue capacity.rule=share",
                                 "score.rule=linear",
                                 "bonus.lambda=0.05",
                                 "window.beta=0.1",
                                 "groups.by=block groups.count=2",
                                 "soft.experts=4 soft.requests=all",
                                 "set.rule=round_robin",
                                 "set.rule=batch",
                                 "pinned.requests=all pinned.expert=3",
                                 "soft_balance.limit=2 soft_balance.low_memory=0 "
                                 "soft_balance.k3_memory=0 soft_balance.batch_limit=3",
                                 "capacity.rule=share capacity.factor=1",
                                 "capacity.rule=share capacity.factor=1 capacity.order=prob"};

void expect_sound(const LayerDecision& d, const std::string& what) {
  EXPECT_EQ(not_conserved(d), "") << what;
  for (std::uint32_t t = 0; t < d.tokens; ++t) {
    for (std::uint32_t j = 0; j < d.slots; ++j) {
      const std::uint64_t i = row_offset(t, d.slots, j);
      EXPECT_TRUE(std::isfinite(d.weights[i])) << what;
      for (std::uint32_t k = 0; k < j; ++k) {
        const std::uint64_t h = row_offset(t, d.slots, k);
        EXPECT_TRUE(d.first[i] == kNoExpert || d.first[i] != d.first[h]) << what;
        EXPECT_TRUE(d.chosen[i] == kNoExpert || d.chosen[i] != d.chosen[h]) << what;
      }
    }
  }
}

void pin_all(Router& r, const RoutingPolicy& policy, std::uint32_t sequences) {
  for (std::uint32_t s = 0; s < sequences; ++s) {
    r.state().request(s) = request_info(policy, nullptr, {}, "", kNoExpert);
  }
}

// vllm#39391: a row of NaN must not give one expert twice, nor NaN weights; it must not touch the
// other rows either.
TEST(IssueRow1, UnderEveryPolicyARowOfNanGivesDistinctExpertsAndFiniteWeights) {
  for (const GateSpec& gate : {gate_mixtral(8, 2), gate_qwen(8, 2, false), gate_gpt_oss(8, 2)}) {
    for (const char* policy : kPolicies) {
      Router r(gate, policy);
      pin_all(r, policy_of(policy), 4);
      Draw draw(2);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> z = draw.logits(4 * 8);
        std::fill(z.begin() + 8, z.begin() + 16, kNan);
        z[16] = kNan;
        z[17] = std::numeric_limits<float>::infinity();
        const LayerDecision& d = r.step(z);
        EXPECT_EQ(r.candidates().nan_rows, 2U);
        expect_sound(d, policy);
      }
    }
  }
}

// aiter#4636: padding (no expert at all) between two tokens.
TEST(IssueRow3, UnderEveryPolicyPaddingHasNoSlotsAndNoLoad) {
  const GateSpec gate = gate_mixtral(8, 2);
  for (const char* text : kPolicies) {
    const RoutingPolicy policy = policy_of(text);
    Draw draw(4);
    const std::vector<float> z = draw.logits(3 * 8);
    Candidates c = ranked(gate, z);
    std::fill(c.ids.begin() + 8, c.ids.begin() + 16, kNoExpert);
    const Step step(3);
    RoutingState state(1);
    for (std::uint32_t s = 0; s < 3; ++s) {
      state.request(s) = request_info(policy, nullptr, {}, "", kNoExpert);
    }
    RouteInput input;
    input.candidates = c.view();
    input.requests = state.requests();
    RouteWorkspace workspace;
    LayerDecision d;
    route_layer(gate, policy, step.context, input, state.layer(0), workspace, d);
    expect_sound(d, text);
    for (std::uint32_t j = 0; j < d.slots; ++j) {
      EXPECT_EQ(d.first[d.slots + j], kNoExpert) << text;
      EXPECT_EQ(d.weights[d.slots + j], 0.0F) << text;
    }
    EXPECT_GT(d.assignments, 0U);
  }
}

// vllm#52679: all logits equal, under policies that keep ties.
TEST(IssueRow9, UnderPoliciesWithoutNoiseTiesGoToTheLowerId) {
  for (const char* policy : {"condition.clamp=50", "temperature.place=before temperature.value=3",
                             "temperature.place=after temperature.value=3", "semantic.mode=ema",
                             "groups.by=block groups.count=2", "set.rule=batch"}) {
    for (const GateSpec& gate : {gate_mixtral(8, 2), gate_gpt_oss(8, 2)}) {
      Router r(gate, policy);
      EXPECT_EQ(show(r.step(std::vector<float>(8, 0.25F))), "0K 1K") << policy;
    }
  }
  Router soft(gate_mixtral(8, 2), "soft.experts=4 soft.requests=all");
  soft.state().request(0).soft = true;
  EXPECT_EQ(show(soft.step(std::vector<float>(8, 0.25F))), "0K 1K 2K 3K");
}

// vllm#14027, sglang#33764: two logits that are one bf16 number keep their fp32 order in every
// policy that ranks by the logits.
TEST(IssueRow10, UnderPoliciesLogitsThatDifferOnlyInFp32AreTold) {
  for (const char* policy : {"condition.clamp=50", "temperature.place=after temperature.value=2",
                             "semantic.mode=identity", "bonus.lambda=0.05",
                             "soft_balance.limit=9 soft_balance.low_memory=0 "
                             "soft_balance.k3_memory=0 soft_balance.batch_limit=off"}) {
    Router r(gate_mixtral(4, 1), policy);
    EXPECT_EQ(show(r.step({1.001F, 1.002F, 0, 0})), "1K") << policy;
  }
}

// grouped_gemm#36: all tokens to experts 3 and 5, the last expert empty; and a step without tokens.
TEST(IssueRow11, ExpertsWithoutTokensAndStepsWithoutTokens) {
  std::vector<float> z;
  for (int t = 0; t < 6; ++t) {
    z.insert(z.end(), {0, 0, 0, 9, 0, 8, 0, 0});
  }
  Router r(gate_mixtral(8, 2), "");
  EXPECT_EQ(r.step(z).load, (std::vector<std::uint32_t>{0, 0, 0, 6, 0, 6, 0, 0}));
  for (const char* policy : kPolicies) {
    Router empty(gate_mixtral(8, 2), policy);
    const LayerDecision& d = empty.step({});
    EXPECT_EQ(d.assignments, 0U) << policy;
    EXPECT_EQ(d.waves, 0U) << policy;
    expect_sound(d, policy);
    expect_sound(empty.step(z), policy);
  }
}

// ik_llama.cpp#249: the same batch a hundred times, to the last bit; experts outside a group never
// have a weight.
TEST(IssueRow22, UnderEveryPolicyTheSameBatchGivesTheSameBits) {
  Draw draw(6);
  const std::vector<float> z = draw.logits(16 * 8);
  for (const char* policy : kPolicies) {
    Router once(gate_mixtral(8, 2), policy);
    pin_all(once, policy_of(policy), 16);
    const LayerDecision first = once.step(z);
    for (int repeat = 0; repeat < 100; ++repeat) {
      Router again(gate_mixtral(8, 2), policy);
      pin_all(again, policy_of(policy), 16);
      const LayerDecision& d = again.step(z);
      ASSERT_EQ(d.chosen, first.chosen) << policy;
      ASSERT_EQ(d.weights, first.weights) << policy;
      ASSERT_EQ(d.outcome, first.outcome) << policy;
    }
  }
  Router grouped(gate_mixtral(8, 2), "groups.by=block groups.count=2");
  const LayerDecision& d = grouped.step(z);
  for (std::uint32_t t = 0; t < 16; ++t) {
    EXPECT_EQ(d.chosen[2 * t] / 4, d.chosen[2 * t + 1] / 4);
  }
}

// DeepEP#427: everything to one expert. Nothing is lost, limits hold.
TEST(IssueRow23, AllTokensToOneExpert) {
  std::vector<float> z;
  for (int t = 0; t < 64; ++t) {
    z.insert(z.end(), {0, 0, 0, 0, 0, 0, 0, 9});
  }
  for (const char* policy : kPolicies) {
    Router r(gate_mixtral(8, 1), policy);
    const LayerDecision& d = r.step(z);
    expect_sound(d, policy);
    EXPECT_GE(d.assignments, 64U) << policy;
    EXPECT_LE(d.assignments, 64U * d.slots) << policy;
    if (d.slots == 1) {
      EXPECT_EQ(d.assignments, 64U) << policy;
    }
    EXPECT_EQ(d.kept + d.rerouted + d.queued_slots + d.dropped, d.assignments) << policy;
    for (const std::uint32_t n : d.load) {
      EXPECT_LE(n, d.capacity) << policy;
    }
  }
}

// FastMoE's rules differ on purpose; none of them is on unless it is named.
TEST(IssueRow25, FastMoeRulesAndJitterAreOffByDefault) {
  const RoutingPolicy policy;
  EXPECT_EQ(policy.capacity.rule, CapacityRule::kNone);
  EXPECT_EQ(policy.noise.mode, NoiseMode::kOff);
  EXPECT_EQ(policy.noise.jitter, 0.0);
  EXPECT_FALSE(has_policy_steps(policy));
  EXPECT_EQ(policy_of("capacity.rule=fastmoe_switch capacity.factor=1.2").capacity.rule,
            CapacityRule::kFastMoeSwitch);
}

}  // namespace
}  // namespace switchyard
