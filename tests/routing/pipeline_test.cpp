// SPDX-License-Identifier: Apache-2.0
// Steps 1 to 9 of routing.md: definitions worked by hand, and what every policy must conserve.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/error.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

/// The i-th weight of token t.
float weight(const LayerDecision& d, std::uint32_t t, std::uint32_t j) {
  return d.weights[row_offset(t, d.slots, j)];
}

/// Policies that touch every step; each must conserve and repeat itself.
const char* const kPolicies[] = {
    "",
    "condition.clamp=0.5",
    "noise.mode=fixed noise.std=0.5",
    "noise.mode=adaptive",
    "temperature.place=before temperature.value=2",
    "temperature.place=after temperature.value=0.5",
    "step_time=1 temperature.place=before temperature.controller=across temperature.run=2",
    "gumbel.mode=tau_noise gumbel.tau=0.5",
    "gumbel.mode=tau_all gumbel.tau=2",
    "load_aware.u=queue capacity.rule=share",
    "score.rule=linear",
    "bonus.lambda=0.05",
    "window.beta=0.2 window.gamma=0.5",
    "groups.by=block groups.count=2",
    "groups.by=block groups.count=4 groups.k_in_group=all"};
const char* const kCapacities[] = {
    "", " capacity.rule=share capacity.factor=1",
    " capacity.rule=absolute capacity.absolute=2 capacity.mode=rounds",
    " capacity.rule=absolute capacity.absolute=2 capacity.exhausted=drop_token "
    "capacity.max_score_drop=0.5",
    " capacity.rule=absolute capacity.absolute=1 capacity.order=prob capacity.exhausted=queue"};

TEST(Pipeline, ConservesAssignmentsUnderEveryPolicyAndCapacityRule) {
  for (const GateSpec& gate : {gate_mixtral(16, 2), gate_deepseek_v3(16, 2, 4, 2),
                               gate_deepseek_v2(16, 2, 4, 2, 16.0F), gate_gpt_oss(16, 4)}) {
    const std::vector<float> bias(gate.score == GateScore::kSigmoid ? 16 : 0, 0.1F);
    for (const char* policy : kPolicies) {
      for (const char* capacity : kCapacities) {
        if (std::string(policy).find("capacity.rule") != std::string::npos && *capacity != 0) {
          continue;
        }
        const std::string text = std::string(policy) + capacity;
        Router a(gate, text, bias);
        Router b(gate, text, bias);
        Draw draw(3);
        for (int step = 0; step < 4; ++step) {
          const std::vector<float> logits = draw.logits(12 * 16);
          const std::vector<std::uint32_t> sequence{0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5};
          const LayerDecision& d = a.step(logits, sequence);
          EXPECT_EQ(not_conserved(d), "") << text;
          const std::uint32_t k = policy_slots(policy_of(text), gate);
          EXPECT_EQ(d.assignments, 12U * k) << text;
          EXPECT_EQ(d.truncated_slots, 0U) << text;
          // The same with the candidates only: M = E.
          b.all_logits = false;
          const LayerDecision& again = b.step(logits, sequence);
          EXPECT_EQ(again.first, d.first) << text;
          EXPECT_EQ(again.chosen, d.chosen) << text;
          EXPECT_EQ(again.weights, d.weights) << text;
          for (std::uint32_t t = 0; t < d.tokens; ++t) {
            for (std::uint32_t j = 0; j < d.slots; ++j) {
              for (std::uint32_t i = 0; i < j; ++i) {
                const std::uint16_t e = d.chosen[row_offset(t, d.slots, j)];
                EXPECT_TRUE(e == kNoExpert || e != d.chosen[row_offset(t, d.slots, i)]) << text;
              }
            }
          }
        }
      }
    }
  }
}

// A policy whose steps change nothing must leave the decision of decide() to the last bit.
TEST(Pipeline, StepsWithoutEffectGiveThePlainDecision) {
  const char* const same[] = {"condition.clamp=50", "bonus.lambda=1e-30",
                              "step_time=1 temperature.place=before temperature.controller=across",
                              "groups.by=block groups.count=2"};
  for (const GateSpec& gate : {gate_mixtral(16, 2), gate_qwen(16, 4, false),
                               gate_deepseek_v3(16, 2, 4, 2), gate_gpt_oss(16, 4)}) {
    const std::vector<float> bias(gate.score == GateScore::kSigmoid ? 16 : 0, 0.1F);
    for (const char* capacity : kCapacities) {
      for (const char* policy : same) {
        const bool grouped = std::string(policy).starts_with("groups");
        if (grouped && *capacity != 0) {
          continue;  // a full expert's next candidate may be of the other group
        }
        Router with(gate, std::string(policy) + capacity, bias);
        Router plain(gate, capacity, bias);
        Draw draw(9);
        std::vector<float> logits = draw.logits(10 * 16);
        if (grouped) {  // no effect where the first group is far ahead
          for (std::size_t i = 0; i < logits.size(); ++i) {
            logits[i] -= i % 16 < 8 ? 0.0F : 100.0F;
          }
        }
        const LayerDecision& a = with.step(logits);
        const LayerDecision& b = plain.step(logits);
        EXPECT_EQ(a.chosen, b.chosen) << policy << capacity;
        EXPECT_EQ(a.weights, b.weights) << policy << capacity;
        EXPECT_EQ(a.load, b.load) << policy << capacity;
        EXPECT_EQ(a.waves, b.waves) << policy << capacity;
      }
    }
  }
}

TEST(RouterConditioning, ClampsTheLogitsBeforeEverythingElse) {
  Router r(gate_qwen(4, 2, false), "condition.clamp=50");
  const LayerDecision& d = r.step({80.0F, 60.0F, 10.0F, -90.0F});
  // 80 and 60 both become 50: a tie goes to the lower id and the weights are equal.
  EXPECT_EQ(show(d), "0K 1K");
  EXPECT_NEAR(weight(d, 0, 0), 0.5, 1e-6);
  EXPECT_EQ(weight(d, 0, 0), weight(d, 0, 1));
}

TEST(Noise, IsKeyedBySequenceLayerPositionAndExpert) {
  const GateSpec gate = gate_gpt_oss(4, 1);
  const std::vector<float> logits{0.3F, 0.1F, 0.2F, 0.0F};
  Router r(gate, "noise.mode=fixed noise.std=2");
  const LayerDecision d = r.step(logits);
  std::uint32_t best = 0;
  double best_z = -1e9;
  for (std::uint32_t e = 0; e < 4; ++e) {
    const double z = logits[e] + 2 * random_normal(1, random_purpose("noise"), {0, 0, 0, e});
    if (z > best_z) {
      best = e;
      best_z = z;
    }
  }
  EXPECT_EQ(d.first[0], best);
  // Neither the other tokens of the step nor the order of calls matter.
  Router two(gate, "noise.mode=fixed noise.std=2");
  std::vector<float> both = logits;
  both.insert(both.end(), logits.begin(), logits.end());
  EXPECT_EQ(two.step(both).first[0], best);
}

TEST(Noise, AdaptiveStdGrowsByAHundredthEveryFiftyStepsWhileOneExpertTakesMoreThanFortyPercent) {
  const GateSpec gate = gate_gpt_oss(4, 1);
  Router r(gate, "noise.mode=adaptive");
  const std::vector<float> one_sided{9, 0, 0, 0};
  for (int step = 0; step < 49; ++step) {
    r.step(one_sided);
  }
  EXPECT_DOUBLE_EQ(r.layer().noise_std, 0.05);
  r.step(one_sided);
  EXPECT_DOUBLE_EQ(r.layer().noise_std, 0.06);
  // Four tokens that share the experts evenly: 25 % each.
  const std::vector<float> even{9, 0, 0, 0, 0, 9, 0, 0, 0, 0, 9, 0, 0, 0, 0, 9};
  for (int step = 0; step < 50; ++step) {
    r.step(even);
  }
  EXPECT_DOUBLE_EQ(r.layer().noise_std, 0.06);
  for (int step = 0; step < 50 * 20; ++step) {
    r.step(one_sided);
  }
  EXPECT_DOUBLE_EQ(r.layer().noise_std, 0.2);
}

TEST(Temperature, BeforeDividesTheLogits) {
  Router r(gate_qwen(2, 2, false), "temperature.place=before temperature.value=2");
  const LayerDecision& d = r.step({2.0F, 0.0F});
  EXPECT_NEAR(weight(d, 0, 0), 1 / (1 + std::exp(-1.0)), 1e-7);
}

// S0 divides after the penalty: for a gate without bias or bonus that can never change a choice.
TEST(Temperature, AfterNeverChangesTheSelectionOnlyTheWeights) {
  for (const GateSpec& gate : {gate_mixtral(16, 2), gate_gpt_oss(16, 4),
                               gate_deepseek_v3(16, 2, 1, 1), gate_deepseek_v3(16, 2, 4, 2)}) {
    for (const char* rest : {"", " capacity.rule=share capacity.factor=1",
                             " noise.mode=fixed gumbel.mode=tau_noise gumbel.tau=3"}) {
      for (const char* value : {"0.01", "0.5", "1.5", "1000000"}) {
        Router plain(gate, std::string(rest));
        Router warm(gate, std::string("temperature.place=after temperature.value=") + value + rest);
        Draw draw(17);
        double moved = 0;
        for (int step = 0; step < 20; ++step) {
          std::vector<float> logits = draw.logits(32 * 16);
          // Near-ties that a division rounds together.
          for (std::size_t i = 0; i + 1 < logits.size(); i += 5) {
            logits[i + 1] = std::nextafter(logits[i], 10.0F);
          }
          const LayerDecision& a = plain.step(logits);
          const LayerDecision& b = warm.step(logits);
          if (gate.grouped()) {
            continue;  // the group scores are sums of probabilities, which T does change
          }
          ASSERT_EQ(a.first, b.first) << rest << value;
          ASSERT_EQ(a.chosen, b.chosen) << rest << value;
          for (std::size_t i = 0; i < a.weights.size(); ++i) {
            moved = std::max(moved, std::abs(double{a.weights[i]} - double{b.weights[i]}));
          }
        }
        EXPECT_TRUE(gate.grouped() || moved > 1e-3) << rest << value;
      }
    }
  }
}

TEST(TemperatureController, RaisesAfterFiveEqualTop1OfASequenceAndFallsBackAfterThirtySeconds) {
  const GateSpec gate = gate_qwen(2, 1, false);
  const std::vector<float> a{2.0F, 0.0F};
  const std::vector<float> b{0.0F, 2.0F};
  const double cold = 1 / (1 + std::exp(-2.0));
  const double warm = 1 / (1 + std::exp(-2.0 / 1.5));
  Router r(gate, "step_time=10 temperature.place=after temperature.controller=sequence");
  for (int step = 0; step < 5; ++step) {  // steps 0…4; the fifth equal top-1 falls in step 4
    EXPECT_NEAR(weight(r.step(a), 0, 0), cold, 1e-6) << step;
  }
  // Raised from step 5 (50 s) on; step 5 still repeats: its end moves the fall to 60 + 30 s.
  EXPECT_NEAR(weight(r.step(a), 0, 0), warm, 1e-6);
  EXPECT_NEAR(weight(r.step(b), 0, 0), warm, 1e-6);  // 60 s
  EXPECT_NEAR(weight(r.step(a), 0, 0), warm, 1e-6);  // 70 s
  EXPECT_NEAR(weight(r.step(b), 0, 0), warm, 1e-6);  // 80 s
  EXPECT_NEAR(weight(r.step(a), 0, 0), cold, 1e-6);  // 90 s: back to T0
}

// The clock of a run with signals: steps of 1, 40, 25 and 10 s. The trigger of step 4, which ends
// at 41 s, holds until 71 s.
TEST(TemperatureController, CountsTheHoldFromTheEndOfTheStepThatTriggered) {
  const std::vector<float> a{2.0F, 0.0F};
  const std::vector<float> b{0.0F, 2.0F};
  const double cold = 1 / (1 + std::exp(-2.0));
  const double warm = 1 / (1 + std::exp(-2.0 / 1.5));
  Router r(gate_qwen(2, 1, false), "temperature.place=after temperature.controller=sequence");
  Signals signals;
  r.signals = &signals;
  for (int step = 0; step < 5; ++step) {
    signals.start = 0.25 * step;
    r.step(a);
  }
  signals.start = 41;
  EXPECT_NEAR(weight(r.step(b), 0, 0), warm, 1e-6);
  signals.start = 66;
  EXPECT_NEAR(weight(r.step(a), 0, 0), warm, 1e-6);
  signals.start = 76;
  EXPECT_NEAR(weight(r.step(b), 0, 0), cold, 1e-6);
}

TEST(TemperatureController, ATriggerWhileRaisedDoesNotCompound) {
  Router r(gate_qwen(2, 1, false),
           "step_time=1 temperature.place=before temperature.value=2 "
           "temperature.controller=sequence");
  const std::vector<float> a{4.0F, 0.0F};
  for (int step = 0; step < 5; ++step) {
    r.step(a);
  }
  for (int step = 0; step < 40; ++step) {  // each of them triggers again
    EXPECT_NEAR(weight(r.step(a), 0, 0), 1 / (1 + std::exp(-4.0 / 3)), 1e-6);
  }
}

TEST(TemperatureController, OneHundredAndTwentyEightEqualTokensRaiseOnlyTheStreamsController) {
  std::vector<float> same;
  for (int t = 0; t < 128; ++t) {
    same.insert(same.end(), {2.0F, 0.0F});
  }
  Router within(gate_qwen(2, 1, false),
                "step_time=1 temperature.place=after temperature.controller=sequence");
  Router across(gate_qwen(2, 1, false),
                "step_time=1 temperature.place=after temperature.controller=across");
  within.step(same);
  across.step(same);
  EXPECT_FALSE(within.layer().triggered);  // one token of each of 128 sequences
  EXPECT_TRUE(across.layer().triggered);
  // Batch 1: the same 128 tokens as one prompt.
  Router one(gate_qwen(2, 1, false),
             "step_time=1 temperature.place=after temperature.controller=sequence");
  one.step(same, std::vector<std::uint32_t>(128, 0));
  EXPECT_TRUE(one.layer().triggered);
}

TEST(Gumbel, TheTwoConventionsDivideDifferentThings) {
  const std::vector<float> z{0.5F, -0.25F};
  double g[2];
  for (std::uint32_t e = 0; e < 2; ++e) {
    g[e] = random_gumbel(1, random_purpose("gumbel"), {0, 0, 0, e});
  }
  const auto share = [](double x, double y) { return 1 / (1 + std::exp(y - x)); };
  const GateSpec gate = gate_qwen(2, 2, false);
  const auto of_expert = [](const LayerDecision& d, std::uint16_t e) {
    return d.chosen[0] == e ? d.weights[0] : d.weights[1];
  };
  Router noise(gate, "gumbel.mode=tau_noise gumbel.tau=4");
  EXPECT_NEAR(of_expert(noise.step(z), 0), share(0.5 / 4 + g[0], -0.25 / 4 + g[1]), 1e-6);
  Router all(gate, "gumbel.mode=tau_all gumbel.tau=4");
  EXPECT_NEAR(of_expert(all.step(z), 0), share((0.5 + g[0]) / 4, (-0.25 + g[1]) / 4), 1e-6);
}

TEST(Gumbel, TauAllSelectsTheSameForEveryTauAndTauNoiseDoesNot) {
  const GateSpec gate = gate_mixtral(16, 2);
  Draw draw(23);
  const std::vector<float> logits = draw.logits(256 * 16);
  Router reference(gate, "gumbel.mode=tau_all");
  const std::vector<std::uint16_t> first = reference.step(logits).first;
  for (const char* tau : {"0.1", "0.7", "5"}) {
    Router all(gate, std::string("gumbel.mode=tau_all gumbel.tau=") + tau);
    EXPECT_EQ(all.step(logits).first, first) << tau;
    Router noise(gate, std::string("gumbel.mode=tau_noise gumbel.tau=") + tau);
    EXPECT_NE(noise.step(logits).first, first) << tau;
  }
  // At tau = 1 the two are one.
  Router noise(gate, "gumbel.mode=tau_noise");
  EXPECT_EQ(noise.step(logits).first, first);
}

TEST(Gumbel, TopOneFollowsTheSoftmax) {
  // argmax(z + G) is distributed as softmax(z): expert 0 has 1 / (1 + e^-1).
  const GateSpec gate = gate_gpt_oss(2, 1);
  std::vector<float> logits;
  for (int t = 0; t < 20000; ++t) {
    logits.insert(logits.end(), {1.0F, 0.0F});
  }
  Router r(gate, "gumbel.mode=tau_all");
  EXPECT_NEAR(r.step(logits).load[0] / 20000.0, 1 / (1 + std::exp(-1.0)), 0.01);
}

TEST(LoadAware, LambdaFollowsTheBatch) {
  const std::pair<std::uint64_t, double> golden[] = {{0, 0.3},    {1, 0.3},  {2, 0.383},
                                                     {4, 0.467},  {8, 0.55}, {16, 0.633},
                                                     {32, 0.717}, {64, 0.8}, {128, 0.8}};
  for (const auto& [batch, lambda] : golden) {
    EXPECT_NEAR(load_aware_lambda(batch), lambda, 5e-4) << batch;
  }
}

struct Machine {
  std::vector<double> used, elastic;
  std::vector<std::uint32_t> first_gpu, gpu;
  Signals signals;
  Machine(std::vector<double> u, std::vector<double> el, std::vector<std::uint32_t> first,
          std::vector<std::uint32_t> gpus)
      : used(std::move(u)),
        elastic(std::move(el)),
        first_gpu(std::move(first)),
        gpu(std::move(gpus)),
        signals{0, used, elastic, first_gpu, gpu} {}
};

TEST(LoadAware, SubtractsTheLevelOfTheLeastLoadedCopy) {
  // Expert 0 on GPUs 0 and 1, expert 1 on GPU 1.
  const Machine m({0.9, 0.5}, {0.2, 0.8}, {0, 2, 3}, {0, 1, 1});
  const auto share = [](double x, double y) { return 1 / (1 + std::exp(y - x)); };
  const GateSpec gate = gate_qwen(2, 2, false);
  Router total(gate, "load_aware.u=total");
  total.signals = &m.signals;
  EXPECT_NEAR(weight(total.step({1.0F, 0.0F}), 0, 0), share(1 - 0.3 * 0.5, -0.3 * 0.5), 1e-6);
  Router elastic(gate, "load_aware.u=elastic load_aware.lambda=2");
  elastic.signals = &m.signals;
  // 1 - 2 * min(0.2, 0.8) against 0 - 2 * 0.8.
  EXPECT_NEAR(weight(elastic.step({1.0F, 0.0F}), 0, 0), share(1 - 0.4, -1.6), 1e-6);
}

TEST(LoadAware, QueueIsTheShareOfTheCapacityTakenInTheStepBefore) {
  Router r(gate_qwen(2, 1, false),
           "load_aware.u=queue load_aware.lambda=1 capacity.rule=absolute capacity.absolute=4");
  const std::vector<float> two{0.4F, 0.0F, 0.4F, 0.0F};
  EXPECT_EQ(show(r.step(two)), "0K | 0K");  // nothing is known yet
  // u = 2/4 of expert 0: 0.4 - 0.5 < 0.
  EXPECT_EQ(show(r.step(two)), "1K | 1K");
  EXPECT_EQ(show(r.step(two)), "0K | 0K");
}

// Two groups of one token each with C = 1: expert 0 is full in both, u = 2/2 and not 2/1.
TEST(LoadAware, QueueCountsTheCapacityOfAllScopes) {
  Router r(gate_qwen(2, 1, false),
           "load_aware.u=queue load_aware.lambda=1 capacity.rule=absolute capacity.absolute=1 "
           "capacity.scope=group capacity.group_size=1");
  const std::vector<float> two{1.5F, 0.0F, 1.5F, 0.0F};
  EXPECT_EQ(show(r.step(two)), "0K | 0K");
  EXPECT_EQ(show(r.step(two)), "0K | 0K");  // 1.5 - 1 > 0
}

TEST(LoadAware, LambdaAndLog2TakeTheBatchOfTheWholeStep) {
  Step part(4);
  EXPECT_EQ(part.context.batch_size(), 4U);
  part.context.batch = 64;  // an EP group of a step of 64
  const GateSpec gate = gate_qwen(2, 1, false);
  const RoutingPolicy policy =
      policy_of("capacity.rule=batch_tokens capacity.dynamic=log2 capacity.exhausted=top1");
  const std::vector<float> rows(8, 0.0F);
  const LayerDecision d = decided(gate, policy, part.context, ranked(gate, rows));
  EXPECT_EQ(d.capacity, 4U);  // floor(1.06 * 4)
  const std::vector<float> many(200, 0.0F);
  Step hundred(100);
  EXPECT_EQ(decided(gate, policy, hundred.context, ranked(gate, many)).capacity, 106U);
  hundred.context.batch = 256;
  EXPECT_EQ(decided(gate, policy, hundred.context, ranked(gate, many)).capacity, 108U);
}

TEST(LoadAware, WithoutSignalsIsRefusedByName) {
  const auto refused = [](const char* text, const PolicySupply& supply) {
    try {
      require_supply(policy_of(text), supply, "run");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("load_aware.u=total", {.signals = false, .all_logits = true}),
            "run: policy.load_aware.u = total needs the memory use of each GPU; give --signals, or "
            "use the simulator");
  EXPECT_EQ(refused("temperature.place=before temperature.controller=across",
                    {.signals = false, .all_logits = true}),
            "run: policy.temperature.controller = across needs a clock; give --signals, or set "
            "step_time (seconds per step)");
  EXPECT_EQ(
      refused("groups.by=placement", {.signals = false, .all_logits = true}),
      "run: policy.groups.by = placement needs the GPU of each expert; give --signals, or use "
      "the simulator");
  EXPECT_EQ(refused("step_time=1 temperature.place=before temperature.controller=across",
                    {.signals = false, .all_logits = true}),
            "accepted");
  EXPECT_EQ(
      refused("load_aware.u=total groups.by=placement", {.signals = true, .all_logits = false}),
      "accepted");
}

TEST(LinearScore, NormalisesPositiveLogitsAndElseTakesTheirSoftmax) {
  Router r(gate_mixtral(4, 2), "score.rule=linear");
  const LayerDecision d = r.step({3.0F, 1.0F, -2.0F, 0.5F, 2.0F, -1.0F, -3.0F, -4.0F});
  EXPECT_EQ(show(d), "0K 1K | 0K 1K");
  EXPECT_FLOAT_EQ(weight(d, 0, 0), 0.75F);
  EXPECT_FLOAT_EQ(weight(d, 0, 1), 0.25F);
  EXPECT_NEAR(weight(d, 1, 0), 1 / (1 + std::exp(-3.0)), 1e-6);
  EXPECT_EQ(d.linear_fallbacks, 1U);
}

// The first choices are positive, but token 1 runs on experts 2 and 3, whose logits are not.
TEST(LinearScore, LooksAtTheLogitsOfWhatRunsToo) {
  Router r(gate_mixtral(4, 2),
           "score.rule=linear weights.renorm=first capacity.rule=absolute capacity.absolute=1");
  const LayerDecision d = r.step({3.0F, 2.0F, -1.0F, -2.0F, 3.0F, 2.0F, -1.0F, -2.0F});
  EXPECT_EQ(show(d), "0K 1K | 2R 3R");
  EXPECT_FLOAT_EQ(weight(d, 0, 0), 0.6F);
  const double sum = 1 + std::exp(-1.0);  // of the first choices, relative to e^3
  EXPECT_NEAR(weight(d, 1, 0), std::exp(-4.0) / sum, 1e-6);
  EXPECT_NEAR(weight(d, 1, 1), std::exp(-5.0) / sum, 1e-6);
  EXPECT_EQ(d.linear_fallbacks, 1U);
}

TEST(ConsistencyBonus, PrefersWhatRanForThePreviousTokenOfTheSequence) {
  const GateSpec gate = gate_qwen(3, 1, false);
  const auto z = [](double a, double b, double c) { return log_rows({{a, b, c}}); };
  Router r(gate, "bonus.lambda=0.05");
  EXPECT_EQ(show(r.step(z(.40, .35, .25))), "0K");
  // 0.36 + 0.05 beats 0.40; the weight is p itself, without the bonus.
  const LayerDecision d = r.step(z(.36, .40, .24));
  EXPECT_EQ(show(d), "0K");
  EXPECT_NEAR(d.weights[0], 0.36, 1e-6);
  EXPECT_EQ(show(r.step(z(.34, .40, .26))), "1K");  // 0.39 does not
  // Within one step: the second token follows the first; another sequence has no past.
  Router prompt(gate, "bonus.lambda=0.05");
  std::vector<float> logits = z(.40, .35, .25);
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> next = z(.36, .40, .24);
    logits.insert(logits.end(), next.begin(), next.end());
  }
  EXPECT_EQ(show(prompt.step(logits, {0, 0, 1})), "0K | 0K | 1K");
}

TEST(ConsistencyBonus, IsTheSameForAPromptAtOnceInChunksAndTokenByToken) {
  const GateSpec gate = gate_mixtral(16, 2);
  for (const char* text :
       {"bonus.lambda=0.1", "window.beta=0.2", "bonus.lambda=0.1 window.beta=0.2"}) {
    Draw draw(31);
    const std::vector<float> logits = draw.logits(40 * 16);
    Router once(gate, std::string(text));
    const std::vector<std::uint16_t> all =
        once.step(logits, std::vector<std::uint32_t>(40, 0)).chosen;
    for (const std::size_t chunk : {1U, 7U, 16U}) {
      Router r(gate, std::string(text));
      std::vector<std::uint16_t> chosen;
      for (std::size_t at = 0; at < 40; at += chunk) {
        const std::size_t n = std::min<std::size_t>(chunk, 40 - at);
        const std::vector<float> part(logits.begin() + static_cast<std::ptrdiff_t>(at * 16),
                                      logits.begin() + static_cast<std::ptrdiff_t>((at + n) * 16));
        const LayerDecision& d = r.step(part, std::vector<std::uint32_t>(n, 0));
        chosen.insert(chosen.end(), d.chosen.begin(), d.chosen.end());
      }
      EXPECT_EQ(chosen, all) << text << " " << chunk;
    }
  }
}

TEST(ConsistencyBonus, WithCapacityFollowsWhatRanNotWhatWasChosen) {
  // C = 1: token 0 takes expert 0; token 1, which wants 0 too, is rerouted to 1; token 2 of the
  // same sequence as token 1 gets the bonus for 1.
  Router r(gate_qwen(3, 1, false), "bonus.lambda=0.05 capacity.rule=absolute capacity.absolute=1");
  std::vector<float> logits = log_rows({{.50, .30, .20}, {.50, .30, .20}});
  EXPECT_EQ(show(r.step(logits)), "0K | 1R");
  EXPECT_EQ(show(r.step(log_rows({{.20, .30, .50}, {.40, .38, .22}}))), "2K | 1K");
}

TEST(StatefulWindow, WeighsTheLastTenTokens) {
  // Weights .224 .179 .143 .115 .092 .073 .059 .047 .038 .030 of the tokens 1 to 10 back.
  const double golden[] = {.224, .179, .143, .115, .092, .073, .059, .047, .038, .030};
  const GateSpec gate = gate_qwen(2, 1, false);
  const double beta = 0.2;
  for (std::size_t back = 1; back <= 11; ++back) {
    const double h = back <= 10 ? golden[back - 1] : 0;
    // Expert 1 ran `back` tokens ago, expert 0 at all the other 9 of the last ten: the bonus of 0
    // exceeds that of 1 by beta (1 - 2 h), so 1 needs that much more p.
    const double rest = back <= 10 ? 1 - h : 1;
    const double edge = beta * (rest - h);
    for (const double slack : {-0.001, 0.001}) {
      Router r(gate, "window.beta=0.2");
      for (std::size_t i = 12; i >= 1; --i) {
        r.step(i == back ? log_rows({{.01, .99}}) : log_rows({{.99, .01}}));
      }
      const double p1 = 0.5 + (edge + slack) / 2;
      EXPECT_EQ(show(r.step(log_rows({{1 - p1, p1}}))), slack > 0 ? "1K" : "0K") << back;
    }
  }
}

TEST(StatefulWindow, MissingPredecessorsAreZeroAndTheDenominatorStays) {
  // One predecessor on expert 0: h = .224, worth .0448 at beta = .2.
  const GateSpec gate = gate_qwen(2, 1, false);
  for (const double slack : {-0.001, 0.001}) {
    Router r(gate, "window.beta=0.2");
    r.step(log_rows({{.99, .01}}));
    const double p1 = 0.5 + (0.2 * 0.224 + slack) / 2;
    EXPECT_EQ(show(r.step(log_rows({{1 - p1, p1}}))), slack > 0 ? "1K" : "0K");
  }
}

TEST(ExpertGroups, TakeTheGroupWithTheBestSumAndStayInIt) {
  // Blocks {0,1,2} and {3,4,5}: the best two sum to .45 and .48, though expert 0 is the best of
  // all.
  Router r(gate_qwen(6, 2, false), "groups.by=block groups.count=2");
  EXPECT_EQ(show(r.step(log_rows({{.35, .10, .02, .25, .23, .05}}))), "3K 4K");
  // A tie goes to the lower group.
  EXPECT_EQ(show(r.step(log_rows({{.25, .20, .05, .05, .20, .25}}))), "0K 1K");
  // Experts of the other group are no reroute targets.
  Router full(gate_qwen(6, 2, false),
              "groups.by=block groups.count=2 capacity.rule=absolute capacity.absolute=1");
  EXPECT_EQ(
      show(full.step(log_rows({{.35, .10, .02, .25, .23, .05}, {.35, .10, .02, .25, .23, .05}}))),
      "3K 4K | 5R 4D");
}

TEST(ExpertGroups, AllRunsEveryExpertOfTheGroup) {
  Router r(gate_qwen(6, 2, true), "groups.by=block groups.count=2 groups.k_in_group=all");
  const LayerDecision d = r.step(log_rows({{.35, .10, .02, .25, .23, .05}}));
  EXPECT_EQ(show(d), "3K 4K 5K");
  EXPECT_NEAR(weight(d, 0, 0), .25 / .53, 1e-6);
}

// Another policy may give a token three slots; the group still has two experts.
TEST(ExpertGroups, AllStaysInTheGroupWhenAnotherPolicyHasMoreSlots) {
  Router r(gate_qwen(8, 2, true),
           "groups.by=block groups.count=4 groups.k_in_group=all soft_balance.limit=128 "
           "soft_balance.k3_memory=0 soft_balance.low_memory=0");
  const LayerDecision d = r.step(log_rows({{.05, .05, .3, .2, .2, .1, .05, .05}}));
  EXPECT_EQ(d.slots, 3U);
  EXPECT_EQ(show(d), "2K 3K -");
}

TEST(ExpertGroups, ByPlacementAreTheExpertsOfAGpu) {
  // GPU 0: experts 0, 3; GPU 1: 1, 2.
  const Machine m({0, 0}, {0, 0}, {0, 1, 2, 3, 4}, {0, 1, 1, 0});
  Router r(gate_qwen(4, 2, false), "groups.by=placement");
  r.signals = &m.signals;
  EXPECT_EQ(show(r.step(log_rows({{.40, .30, .25, .05}}))), "1K 2K");
  const Machine uneven({0, 0}, {0, 0}, {0, 1, 2, 3, 4}, {0, 1, 1, 1});
  r.signals = &uneven.signals;
  EXPECT_THROW(r.step(log_rows({{.40, .30, .25, .05}})), InputError);
}

// M < E: the engine decides with all logits; a replay from the candidates either agrees or says
// that it may not.
TEST(Pipeline, FewerCandidatesThanExpertsAgreeOrAreCounted) {
  const char* const policies[] = {"noise.mode=fixed noise.std=0.2", "bonus.lambda=0.001",
                                  "temperature.place=before temperature.value=1.5",
                                  "gumbel.mode=tau_noise gumbel.tau=0.2"};
  for (const GateSpec& gate : {gate_qwen(128, 4, true), gate_deepseek_v3(128, 4, 1, 1)}) {
    std::vector<float> bias;
    Draw more(77);
    for (std::uint32_t e = 0; gate.score == GateScore::kSigmoid && e < gate.experts; ++e) {
      bias.push_back(static_cast<float>(0.2 * more.uniform()));
    }
    for (const char* policy : policies) {
      Router engine(gate, std::string(policy), bias);
      Router replay(gate, std::string(policy), bias);
      replay.all_logits = false;
      Draw draw(41);
      std::uint64_t agreed = 0;
      std::uint64_t outside = 0;
      for (int step = 0; step < 60; ++step) {
        const std::vector<float> logits = draw.logits(128);
        const LayerDecision& a = engine.step(logits);
        const LayerDecision& b = replay.step(logits);
        outside += a.truncated_slots;
        if (a.first == b.first) {
          ++agreed;
        } else {
          EXPECT_GT(b.truncated_slots, 0U) << policy;
        }
        if (a.truncated_slots > 0) {
          EXPECT_GT(b.truncated_slots, 0U) << policy;
        }
      }
      EXPECT_GT(agreed, 0U) << policy;
      if (std::string(policy).starts_with("gumbel")) {
        EXPECT_GT(outside, 0U) << "the test would show nothing";
      }
      if (std::string(policy).starts_with("temperature") && bias.empty()) {
        EXPECT_EQ(agreed, 60U) << "a temperature keeps the order of the logits";
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
