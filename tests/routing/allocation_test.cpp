// SPDX-License-Identifier: Apache-2.0
// The inner loops allocate nothing after the first call of a shape. Counts every operator new of
// this binary.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/routing/helpers.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Not inlined: g++ 12 otherwise takes malloc and free for a mismatched pair.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) {
    return p;
  }
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace switchyard {
namespace {

TEST(Allocation, TheCounterCounts) {
  const std::uint64_t before = allocations;
  const std::vector<int> v(100, 1);
  EXPECT_EQ(v[99], 1);
  EXPECT_GT(allocations, before);
}

TEST(Allocation, RankAndDecideAllocateNothingAfterWarmUp) {
  const std::uint32_t tokens = 64;
  const char* policies[] = {
      "capacity.rule=none",
      "capacity.rule=share",
      "capacity.rule=share capacity.mode=rounds capacity.exhausted=drop_token",
      "capacity.rule=share capacity.factor=0.5 capacity.order=prob capacity.exhausted=queue",
      "capacity.rule=share capacity.order=random capacity.max_score_drop=0.5",
      "capacity.rule=mesh capacity.group_size=16 capacity.min_capacity=1 weights.renorm=first"};
  for (const GateSpec& gate :
       {gate_mixtral(16, 2), gate_deepseek_v3(128, 8, 8, 4), gate_gpt_oss(128, 4)}) {
    Draw draw(5);
    std::vector<float> block[2];
    for (auto& z : block) {
      z = draw.logits(tokens * gate.experts);
    }
    const std::vector<float> bias(gate.score == GateScore::kSigmoid ? gate.experts : 0, 0.1F);
    const Step step(tokens);
    for (const char* text : policies) {
      const RoutingPolicy policy = policy_of(text);
      RankWorkspace rank_workspace;
      DecideWorkspace workspace;
      Candidates candidates;
      LayerDecision decision;
      const auto run = [&](const std::vector<float>& z) {
        rank_candidates(gate, z, bias, stored_candidates(gate.experts, gate.top_k), rank_workspace,
                        candidates);
        decide(gate, policy, step.context, candidates.view(), bias, workspace, decision);
      };
      run(block[0]);
      run(block[1]);
      const std::uint64_t before = allocations;
      run(block[0]);
      run(block[1]);
      EXPECT_EQ(allocations - before, 0U) << text << ", E = " << gate.experts;
      EXPECT_EQ(decision.assignments, std::uint64_t{tokens} * gate.top_k);
    }
  }
}

TEST(Allocation, RouteLayerAllocatesNothingAfterWarmUp) {
  for (const char* text :
       {"noise.mode=adaptive gumbel.mode=tau_noise load_aware.u=queue capacity.rule=share",
        "step_time=1 temperature.place=before temperature.controller=sequence bonus.lambda=0.05 "
        "window.beta=0.1 groups.by=block groups.count=2",
        "score.rule=linear condition.clamp=1 capacity.rule=share capacity.order=prob",
        "soft_balance.limit=2 soft_balance.low_limit=1 soft_balance.k3_memory=0 "
        "soft_balance.batch_limit=off decode_rebalance.level=0.5 decode_rebalance.period=1 "
        "capacity.rule=share",
        "soft.experts=10 soft.requests=all pinned.requests=named capacity.rule=share",
        "set.rule=round_robin capacity.rule=share", "set.rule=batch",
        "two_tier.first=int4 two_tier.scorer=s"}) {
    for (const GateSpec& gate : {gate_mixtral(16, 2), gate_deepseek_v3(128, 8, 8, 4)}) {
      const std::uint32_t tokens = 32;
      Draw draw(5);
      const std::vector<float> z = draw.logits(tokens * gate.experts);
      const std::vector<float> bias(gate.score == GateScore::kSigmoid ? gate.experts : 0, 0.1F);
      const RoutingPolicy policy = policy_of(text);
      const Candidates candidates =
          ranked(gate, z, bias, std::min(gate.experts, policy_slots(policy, gate) + 2));
      const std::vector<double> used(4, 0.7);
      std::vector<std::uint32_t> first_gpu;
      std::vector<std::uint32_t> gpu;
      for (std::uint32_t e = 0; e < gate.experts; ++e) {
        first_gpu.push_back(e);
        gpu.push_back(e % 4);
      }
      first_gpu.push_back(gate.experts);
      const Signals signals{0, used, used, first_gpu, gpu};
      Step step(tokens);
      RoutingState state(1);
      RouteWorkspace workspace;
      LayerDecision decision;
      RouteInput input;
      input.candidates = candidates.view();
      input.logits = z;
      input.gate_bias = bias;
      input.signals = &signals;
      input.tier2 = z;
      for (std::uint32_t s = 0; s < tokens; ++s) {
        state.request(s).soft = policy.soft.on();
        state.request(s).expert =
            policy.pinned.on() && s % 3 == 0 ? static_cast<std::uint16_t>(5) : kNoExpert;
      }
      input.requests = state.requests();
      const auto run = [&] {
        route_layer(gate, policy, step.context, input, state.layer(0), workspace, decision);
        ++step.context.step;
      };
      run();
      run();
      const std::uint64_t before = allocations;
      run();
      run();
      EXPECT_EQ(allocations - before, 0U) << text << ", E = " << gate.experts;
    }
  }
}

}  // namespace
}  // namespace switchyard
