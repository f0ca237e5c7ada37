// SPDX-License-Identifier: Apache-2.0
// M03 semantic gating, M47's LayerNorm and M10's jitter.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/routing/condition.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

/// D = 2 E: pairs (+z, -z), so that gelu(a z) - gelu(-a z) = a z gives z back: an exact identity.
SemanticWeights identity_weights(std::uint32_t experts) {
  SemanticWeights w;
  w.inputs = w.outputs = experts;
  w.hidden = 2 * experts;
  w.w1.assign(std::size_t{w.hidden} * experts, 0);
  w.b1.assign(w.hidden, 0);
  w.w2.assign(std::size_t{experts} * w.hidden, 0);
  w.b2.assign(experts, 0);
  for (std::uint32_t e = 0; e < experts; ++e) {
    w.w1[(2 * e) * experts + e] = 1;
    w.w1[(2 * e + 1) * experts + e] = -1;
    w.w2[e * w.hidden + 2 * e] = 1;
    w.w2[e * w.hidden + 2 * e + 1] = -1;
  }
  return w;
}

SemanticWeights random_weights(std::uint32_t inputs, std::uint32_t hidden, std::uint32_t experts) {
  Draw draw(99);
  SemanticWeights w;
  w.inputs = inputs;
  w.hidden = hidden;
  w.outputs = experts;
  w.w1 = draw.logits(hidden * inputs);
  w.b1 = draw.logits(hidden);
  w.w2 = draw.logits(experts * hidden);
  w.b2 = draw.logits(experts);
  return w;
}

const char* const kMlp = "semantic.mode=mlp semantic.file=w.safetensors";

TEST(SemanticGate, IsTheFormulaOfRoutingMd) {
  // z = (1, 2), W1 = [[1, 0], [1, -1], [0, 2]], b1 = (0, .5, -1), W2 = [[1, 0, .5], [0, 2, 0]],
  // b2 = (.1, -.2). W1 z + b1 = (1, -.5, 3); gelu = .841344746, -.154268770, 2.995950306.
  const SemanticWeights w{
      2, 3, 2, {1, 0, 1, -1, 0, 2}, {0, 0.5F, -1}, {1, 0, 0.5F, 0, 2, 0}, {0.1F, -0.2F}};
  const std::vector<double> z{1, 2};
  std::vector<double> scratch, out(2);
  semantic_gate(w, z, scratch, out);
  EXPECT_NEAR(out[0], 0.841344746 + 0.5 * 2.995950306 + 0.1, 1e-8);
  EXPECT_NEAR(out[1], 2 * -0.154268770 - 0.2, 1e-8);
}

TEST(SemanticGate, ActsBeforeTemperatureAndScoreOnly) {
  LayerPolicyWeights w;
  w.semantic = {2, 1, 2, {0, 1}, {0}, {1, 0}, {0, 3}};  // z' = (gelu(z1), 3)
  Router r(gate_qwen(2, 2, false),
           std::string(kMlp) + " temperature.place=before temperature.value=2");
  r.weights = &w;
  const LayerDecision& d = r.step({5.0F, 1.0F});
  EXPECT_EQ(show(d), "1K 0K");
  EXPECT_NEAR(d.weights[0], 1 / (1 + std::exp((0.841344746 - 3) / 2)), 1e-6);
  // The recorded candidates are the raw logits.
  EXPECT_EQ(r.candidates().logit[0], 5.0F);
}

TEST(SemanticGate, IdentityWeightsChangeNoDecision) {
  for (const GateSpec& gate : {gate_mixtral(16, 2), gate_qwen(16, 4, false),
                               gate_deepseek_v3(16, 2, 4, 2), gate_gpt_oss(16, 4)}) {
    LayerPolicyWeights w;
    w.semantic = identity_weights(16);
    Router with(gate, std::string(kMlp) + " capacity.rule=share capacity.factor=1");
    Router named(gate, "semantic.mode=identity capacity.rule=share capacity.factor=1");
    Router plain(gate, "capacity.rule=share capacity.factor=1");
    with.weights = &w;
    Draw draw(4);
    const std::vector<float> logits = draw.logits(64 * 16);
    const LayerDecision& a = plain.step(logits);
    const LayerDecision& b = with.step(logits);
    EXPECT_EQ(a.first, b.first);
    EXPECT_EQ(a.chosen, b.chosen);
    for (std::size_t i = 0; i < a.weights.size(); ++i) {
      EXPECT_NEAR(a.weights[i], b.weights[i], 1e-6);
    }
    const LayerDecision& c = named.step(logits);
    EXPECT_EQ(a.chosen, c.chosen);
    EXPECT_EQ(a.weights, c.weights);
  }
}

// Renaming the experts renames the decision: rows of W2 and b2, columns of W1.
TEST(SemanticGate, PermutingTheExpertsPermutesTheDecision) {
  const std::uint32_t experts = 8;
  std::vector<std::uint16_t> to(experts);  // expert e becomes to[e]
  for (std::uint16_t e = 0; e < experts; ++e) {
    to[e] = static_cast<std::uint16_t>((3 * e + 5) % experts);
  }
  LayerPolicyWeights w, moved;
  w.semantic = random_weights(experts, 12, experts);
  moved.semantic = w.semantic;
  for (std::uint32_t d = 0; d < 12; ++d) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      moved.semantic.w1[d * experts + to[e]] = w.semantic.w1[d * experts + e];
      moved.semantic.w2[to[e] * 12U + d] = w.semantic.w2[e * 12 + d];
      moved.semantic.b2[to[e]] = w.semantic.b2[e];
    }
  }
  Draw draw(8);
  const std::vector<float> logits = draw.logits(50 * experts);
  std::vector<float> renamed(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    renamed[i / experts * experts + to[i % experts]] = logits[i];
  }
  Router a(gate_mixtral(experts, 2), std::string(kMlp));
  Router b(gate_mixtral(experts, 2), std::string(kMlp));
  a.weights = &w;
  b.weights = &moved;
  const LayerDecision& before = a.step(logits);
  const LayerDecision& after = b.step(renamed);
  for (std::size_t i = 0; i < before.chosen.size(); ++i) {
    EXPECT_EQ(after.chosen[i], to[before.chosen[i]]);
    EXPECT_NEAR(after.weights[i], before.weights[i], 1e-5);
  }
}

TEST(SemanticGate, OnTheInputReadsTheHiddenState) {
  LayerPolicyWeights w;
  w.semantic = {3, 1, 2, {0, 0, 1}, {0}, {0, 1}, {0.5F, 0}};  // z' = (.5, gelu(x2))
  Router r(gate_qwen(2, 1, false), std::string(kMlp) + " semantic.on=input");
  r.weights = &w;
  r.hidden = {0, 0, 4, 0, 0, 0};
  EXPECT_EQ(show(r.step({9.0F, 0.0F, 9.0F, 0.0F})), "1K | 0K");
}

TEST(SemanticGate, LeavesARowWithAnInfiniteLogitAsItIs) {
  LayerPolicyWeights w;
  w.semantic = random_weights(4, 5, 4);
  Router r(gate_qwen(4, 1, false), std::string(kMlp));
  r.weights = &w;
  EXPECT_EQ(show(r.step({0.0F, std::nanf(""), 2.0F, 1.0F})), "2K");
}

TEST(SemanticGate, EmaFollowsTheSequence) {
  Router r(gate_qwen(2, 2, false), "semantic.mode=ema semantic.alpha=0.25");
  const auto first_weight = [](double z0, double z1) { return 1 / (1 + std::exp(z1 - z0)); };
  EXPECT_NEAR(r.step({4.0F, 0.0F}).weights[0], first_weight(4, 0), 1e-6);
  // z' = .25 (0, 4) + .75 (4, 0) = (3, 1): expert 0 stays in front.
  const LayerDecision& d = r.step({0.0F, 4.0F});
  EXPECT_EQ(show(d), "0K 1K");
  EXPECT_NEAR(d.weights[0], first_weight(3, 1), 1e-6);
  // Another sequence begins afresh; a prompt at once gives the same as token by token.
  EXPECT_EQ(show(r.step({0.0F, 4.0F}, {1})), "1K 0K");
  Router once(gate_qwen(2, 2, false), "semantic.mode=ema semantic.alpha=0.25");
  const LayerDecision& both = once.step({4.0F, 0.0F, 0.0F, 4.0F}, {0, 0});
  EXPECT_NEAR(both.weights[2], first_weight(3, 1), 1e-6);
}

TEST(SemanticGate, NeedsAllLogitsWeightsOrTheHiddenState) {
  const auto refused = [](const std::string& text, const PolicySupply& supply) {
    try {
      require_supply(policy_of(text), supply, "replay");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  PolicySupply replay;
  replay.weights = true;
  replay.all_logits = true;
  const RoutingPolicy plain;
  replay.recorded = &plain;
  EXPECT_EQ(refused(kMlp, replay), "accepted");
  EXPECT_EQ(refused(std::string(kMlp) + " semantic.on=input", replay),
            "replay: policy.semantic.on = input needs the router's input, which a trace does not "
            "hold; run the engine with the policy");
  PolicySupply few = replay;
  few.all_logits = false;
  EXPECT_EQ(refused("semantic.mode=ema", few),
            "replay: policy.semantic.mode = ema needs the logits of all experts; traces hold them "
            "all for up to 64 experts; run the engine with the policy");
  PolicySupply bare = replay;
  bare.weights = false;
  EXPECT_EQ(refused(kMlp, bare),
            "replay: policy.semantic.file = w.safetensors needs its weights; name the policy file, "
            "which says where they are");
  // What acts before the logits is in them, or is not.
  EXPECT_EQ(refused("condition.layer_norm=on", replay),
            "replay: policy.condition.layer_norm = on acts before the logits, and these were made "
            "with off; run the engine with the policy");
  const RoutingPolicy jittered = policy_of("noise.jitter=0.01");
  PolicySupply same = replay;
  same.recorded = &jittered;
  EXPECT_EQ(refused("noise.jitter=0.01 bonus.lambda=0.05", same), "accepted");
  EXPECT_EQ(
      refused("bonus.lambda=0.05", same),
      "replay: policy.noise.jitter = 0 acts before the logits, and these were made with 0.01; "
      "run the engine with the policy");
}

TEST(LayerNorm, GivesEachRowMeanZeroAndVarianceOne) {
  std::vector<float> x{1, 2, 3, 4, -5, -5, -5, -5};
  layer_norm_rows(x, 4);
  const double s = 1 / std::sqrt(1.25 + 1e-5);
  EXPECT_NEAR(x[0], -1.5 * s, 1e-6);
  EXPECT_NEAR(x[3], 1.5 * s, 1e-6);
  for (std::size_t i = 4; i < 8; ++i) {
    EXPECT_EQ(x[i], 0.0F);
  }
}

TEST(Jitter, ScalesEveryElementByItsOwnKeyedFactor) {
  const Step step(3, Phase::kDecode, 5);
  std::vector<float> x(3 * 4, 2.0F);
  jitter_rows(x, 4, 0.1, step.context);
  for (std::uint32_t t = 0; t < 3; ++t) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      const double u = random_uniform(5, random_purpose("jitter"), {t, 0, 100, i});
      EXPECT_FLOAT_EQ(x[t * 4 + i], static_cast<float>(2 * (0.9 + 0.2 * u)));
    }
  }
  EXPECT_NE(x[0], x[1]);
  EXPECT_NE(x[0], x[4]);
}

}  // namespace
}  // namespace switchyard
