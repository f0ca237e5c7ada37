// SPDX-License-Identifier: Apache-2.0
// M18's two routers, worked by hand.
#include "engine/nn/two_tier_router.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard {
namespace {

using Floats = std::vector<float>;

// max = 7, so s = 1: values round to the nearest whole number, ties to even.
TEST(TwoTierRouter, Int4RoundsToSevenStepsOfTheLargestValue) {
  EXPECT_EQ(int4_router(Floats{7, -3.4F, 2.5F, 0.4F}, 4), (Floats{7, -3, 2, 0}));
  // Rows have their own scale; a row of zeros stays.
  EXPECT_EQ(int4_router(Floats{14, 6.9F, 0, 0}, 2), (Floats{14, 6, 0, 0}));
}

TEST(TwoTierRouter, Int4HasOneScalePerGroupOf128Inputs) {
  Floats w(256, 0.0F);
  w[0] = 7;
  w[1] = 0.4F;
  w[128] = 0.7F;
  w[129] = 0.4F;
  const Floats q = int4_router(w, 256);
  EXPECT_EQ(q[1], 0.0F);
  EXPECT_NEAR(q[129], 0.4F, 1e-6);
}

TEST(TwoTierRouter, FullRankIsTheRouterItself) {
  Floats w;
  for (std::uint32_t i = 0; i < 6 * 10; ++i) {
    w.push_back(static_cast<float>(random_normal(1, random_purpose("test"), {i, 0, 0, 0})));
  }
  const Floats full = low_rank_router(w, 10, 6);
  const auto distance = [&](const Floats& a) {
    double sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      sum += (a[i] - w[i]) * (a[i] - w[i]);
    }
    return std::sqrt(sum);
  };
  EXPECT_LT(distance(full), 1e-5);
  // Every rank less loses something more.
  for (std::uint32_t r = 6; r > 1; --r) {
    EXPECT_LT(distance(low_rank_router(w, 10, r)), distance(low_rank_router(w, 10, r - 1)));
  }
}

// diag(3, 2, 1): the best rank 2 drops the smallest row.
TEST(TwoTierRouter, LowRankKeepsTheLeadingDirections) {
  const Floats q = low_rank_router(Floats{3, 0, 0, 0, 2, 0, 0, 0, 1}, 3, 2);
  const Floats expected{3, 0, 0, 0, 2, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_NEAR(q[i], expected[i], 1e-6) << i;
  }
}

/// A model of two layers, the second with a router of 2 experts over 3 inputs.
struct Tiny {
  Floats router{7, 3.4F, 0, -7, 0, 1.6F};
  Floats bias{0.5F, 0};
  ModelWeights weights;
  model::ModelConfig config;
  Tiny() {
    config.hidden_size = 3;
    config.num_experts = 2;
    config.num_layers = 2;
    weights.layers.resize(2);
    weights.layers[1].router = {router.data(), WeightType::kF32, 2, 3};
    weights.layers[1].router_bias = {bias.data(), WeightType::kF32, 1, 2};
  }
};

std::string write_scorer(const std::string& name, std::vector<std::pair<std::string, Floats>> parts,
                         std::vector<std::vector<std::uint64_t>> shapes) {
  std::vector<model::TensorData> tensors;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    tensors.push_back(model::TensorData::from_floats(parts[i].first, model::DType::kF32, shapes[i],
                                                     parts[i].second));
  }
  model::write_safetensors(name, tensors);
  return name;
}

TEST(TwoTierRouter, ProposesWithTheCheapRouterAndScoresWithTheOther) {
  const Tiny tiny;
  // One hidden unit: u = 2 x0 + 1; scores 3 gelu(u) and -gelu(u) + 4.
  const std::string file = write_scorer("scorer.safetensors",
                                        {{"layers.1.w1", {2, 0, 0}},
                                         {"layers.1.b1", {1}},
                                         {"layers.1.w2", {3, -1}},
                                         {"layers.1.b2", {0, 4}}},
                                        {{1, 3}, {1}, {2, 1}, {2}});
  const TwoTierRouter router(FirstTier::kInt4, 0, file, tiny.weights, tiny.config);
  Floats logits(4);
  const Floats x{1, 1, 1, 0, 2, 3};
  router.propose(0, x, logits);
  // W' = {7 3 0; -7 0 2}: x0 -> 10 + .5, -5; x1 -> 6 + .5, 6.
  EXPECT_EQ(logits, (Floats{10.5F, -5, 6.5F, 6}));
  Floats scores(4);
  router.score(0, x, scores);
  const double three = 3 * 0.5 * (1 + std::erf(3 / std::sqrt(2.0)));  // gelu(3)
  const double one = 0.5 * (1 + std::erf(1 / std::sqrt(2.0)));        // gelu(1)
  EXPECT_NEAR(scores[0], 3 * three, 1e-6);
  EXPECT_NEAR(scores[1], 4 - three, 1e-6);
  EXPECT_NEAR(scores[2], 3 * one, 1e-6);
  EXPECT_NEAR(scores[3], 4 - one, 1e-6);
}

TEST(TwoTierRouter, NamesWhatIsWrongWithTheScorersFile) {
  const Tiny tiny;
  const auto message = [&](const std::string& file) -> std::string {
    try {
      const TwoTierRouter router(FirstTier::kInt4, 0, file, tiny.weights, tiny.config);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  const std::vector<std::pair<std::string, Floats>> good{{"layers.1.w1", {2, 0, 0}},
                                                         {"layers.1.b1", {1}},
                                                         {"layers.1.w2", {3, -1}},
                                                         {"layers.1.b2", {0, 4}}};
  const std::vector<std::vector<std::uint64_t>> shapes{{1, 3}, {1}, {2, 1}, {2}};
  EXPECT_EQ(message(write_scorer("good.safetensors", good, shapes)), "accepted");
  EXPECT_NE(message("nowhere.safetensors").find("nowhere.safetensors"), std::string::npos);
  auto parts = good;
  auto forms = shapes;
  parts.pop_back();
  forms.pop_back();
  EXPECT_NE(
      message(write_scorer("less.safetensors", parts, forms)).find("tensor layers.1.b2 is missing"),
      std::string::npos);
  forms = shapes;
  forms[2] = {1, 2};
  EXPECT_NE(message(write_scorer("shape.safetensors", good, forms))
                .find("tensor layers.1.w2 has shape [1, 2], not [2, 1]"),
            std::string::npos);
  parts = good;
  parts.emplace_back("layers.0.w1", Floats{1});
  forms = shapes;
  forms.push_back({1});
  EXPECT_NE(message(write_scorer("more.safetensors", parts, forms)).find("layers.0.w1 belongs to"),
            std::string::npos);
  parts = good;
  parts[1].second = {std::numeric_limits<float>::quiet_NaN()};
  EXPECT_NE(message(write_scorer("nan.safetensors", parts, shapes)).find("not finite"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard
