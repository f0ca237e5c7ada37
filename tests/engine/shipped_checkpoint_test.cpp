// SPDX-License-Identifier: Apache-2.0
// The checkpoint we ship: our engine computes what Hugging Face transformers computes from the same
// BF16 weights in FP32, its tokenizer reads back what it wrote, and its routing is learned.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/perplexity.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::floats_of;
using testing_support::ids_of;

std::filesystem::path source(const char* path) {
  return std::filesystem::path(SWITCHYARD_SOURCE_DIR) / path;
}

class Shipped : public testing::Test {
 protected:
  std::filesystem::path folder_ = source("scenarios/checkpoints/sy-16x2");
  model::Safetensors expected_ =
      model::Safetensors::open(source("tests/fixtures/shipped/expected.safetensors"));
  Engine engine_ = Engine::load(folder_, {});
};

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

TEST_F(Shipped, IsTheCheckpointTheFixtureWasMadeFrom) {
  const std::string bytes = read_file(folder_ / "model.safetensors");
  std::array<unsigned char, 32> digest{};
  unsigned size = 0;
  ASSERT_EQ(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr), 1);
  std::string hex;
  for (const unsigned char byte : digest) {
    std::array<char, 3> text{};
    (void)std::snprintf(text.data(), text.size(), "%02x", byte);
    hex += text.data();
  }
  EXPECT_EQ(hex, expected_.metadata().at("weights_sha256"));
}

TEST_F(Shipped, AgreesWithTransformersInLogitsAndRouting) {
  const auto ids = ids_of(expected_, "ids");
  Session session(engine_, {});
  const SequenceTokens work{session.add_sequence(), ids};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  EXPECT_LE(largest_difference(r.logits_of(0), floats_of(expected_, "logits")), 1e-4);
  EXPECT_LE(largest_difference(r.router_logits, floats_of(expected_, "router_logits")), 1e-4);
  std::vector<std::uint32_t> chosen;
  std::vector<float> weights;
  for (const LayerRouting& layer : r.layers) {
    chosen.insert(chosen.end(), layer.decision.chosen.begin(), layer.decision.chosen.end());
    weights.insert(weights.end(), layer.decision.weights.begin(), layer.decision.weights.end());
  }
  EXPECT_EQ(chosen, ids_of(expected_, "chosen"));
  EXPECT_LE(largest_difference(weights, floats_of(expected_, "weights")), 1e-4);
}

// The policies that name files of this checkpoint: a scorer that knows its router, a table of its
// prompts.
TEST_F(Shipped, HasAScorerAndARoutingTable) {
  const std::filesystem::path policies =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios/policies";
  RoutingPolicy policy =
      policy_from_text("two_tier.first=int4 two_tier.scorer=two_tier_sy-16x2.safetensors", "test");
  const TwoTierRouter tiers =
      TwoTierRouter::load(policy, {{"two_tier.scorer", policies / policy.two_tier.scorer}},
                          engine_.weights(), engine_.config());
  EXPECT_NE(policy.two_tier.hash, "any");
  Session session(engine_, {.policy = policy, .tiers = &tiers});
  const auto ids = ids_of(expected_, "ids");
  const SequenceTokens work{session.add_sequence(), ids};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  const std::uint64_t rows = ids.size() * r.layers.size();
  EXPECT_GT(r.tier2_agreed, rows * 9 / 10);
  EXPECT_GE(r.tier2_agreed, r.tier1_agreed);
  policy.two_tier.hash = "0123456789abcdef";
  EXPECT_THROW(
      (void)TwoTierRouter::load(policy, {{"two_tier.scorer", policies / policy.two_tier.scorer}},
                                engine_.weights(), engine_.config()),
      InputError);

  RoutingPolicy with_table = policy_from_text("table.file=sy-16x2_mixed.table", "test");
  const auto table =
      load_table(with_table, {{"table.file", policies / with_table.table.file}}, engine_.gate(), 4);
  ASSERT_TRUE(table);
  EXPECT_GT(table->size(), 100U);
  EXPECT_EQ(table->spec().weight_hash, engine_.checkpoint()->weight_hash().hex());
  EXPECT_THROW((void)load_table(with_table, {{"table.file", policies / with_table.table.file}},
                                engine_.gate(), 5),
               InputError);
}

TEST_F(Shipped, ContinuesThePromptAsTransformersDoes) {
  auto ids = ids_of(expected_, "ids");
  const auto continuation = ids_of(expected_, "decode.ids");
  Session session(engine_, {});
  const std::uint32_t s = session.add_sequence();
  const SequenceTokens all{s, ids};
  const StepResult* r = &session.step({&all, 1}, Phase::kPrefill);
  for (const std::uint32_t token : continuation) {
    const std::uint32_t got = sample(r->logits_of(0), {}, s, 0);
    ASSERT_EQ(got, token);
    const SequenceTokens one{s, {&got, 1}};
    r = &session.step({&one, 1}, Phase::kDecode);
  }
}

TEST_F(Shipped, FitsItsTokenizer) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder_);
  EXPECT_EQ(tokenizer.vocab_size(), engine_.config().vocab_size);
  const std::string text = "What is Debian? \u7cfb\u7edf int main() { return 0; }";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST_F(Shipped, SurpriseOfEveryTokenIsThatOfTransformers) {
  const auto cases =
      nlohmann::json::parse(read_file(source("tests/fixtures/shipped/perplexity.json")));
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder_);
  std::vector<std::vector<std::uint32_t>> texts;
  double sum = 0;
  double tokens = 0;
  for (const auto& c : cases) {
    texts.push_back(tokenizer.encode(c.at("text").get<std::string>()));
    EXPECT_EQ(texts.back(), c.at("ids").get<std::vector<std::uint32_t>>());
  }
  ASSERT_EQ(texts.size(), 6U);
  const auto scores = score_texts(engine_, texts, {.policy = {}, .batch = 4});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto want = cases[i].at("nll").get<std::vector<double>>();
    ASSERT_EQ(scores[i].nll.size(), want.size());
    for (std::size_t t = 0; t < want.size(); ++t) {
      EXPECT_NEAR(scores[i].nll[t], want[t], 1e-4) << "text " << i << " token " << t;
      sum += want[t];
    }
    tokens += static_cast<double>(want.size());
  }
  EXPECT_NEAR(*perplexity(scores), std::exp(sum / tokens), 1e-4 * std::exp(sum / tokens));
  // Neither batches nor chunks change a bit.
  const auto alone = score_texts(engine_, texts, {.policy = {}, .batch = 1, .chunk = 3});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(alone[i].nll, scores[i].nll);
  }
}

TEST_F(Shipped, PerplexityNamesTextsItCannotScore) {
  const std::vector<std::vector<std::uint32_t>> none{{1, 2}, {}};
  EXPECT_THROW((void)score_texts(engine_, none), InputError);
  const std::vector<std::vector<std::uint32_t>> longer{
      std::vector<std::uint32_t>(engine_.config().max_position_embeddings + 1, 1)};
  EXPECT_THROW((void)score_texts(engine_, longer), InputError);
  // A token outside the vocabulary is found before any chunk runs, and the text is named.
  const std::vector<std::vector<std::uint32_t>> foreign{{1, 2, 3}, {1, 2, 3, 4, 5, 6, 99999, 8}};
  try {
    (void)score_texts(engine_, foreign, {.policy = {}, .chunk = 2});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "text 2: token id 99999 is outside the model's vocabulary of 4096; does the "
                 "tokenizer belong to this checkpoint?");
  }
  const std::vector<std::vector<std::uint32_t>> one{{5}};
  EXPECT_FALSE(perplexity(score_texts(engine_, one)));  // nothing before it
}

TEST_F(Shipped, PredictsTextFarBetterThanChance) {
  // Mean surprise of an English sentence: a blind model has ln(4096) = 8.3 nats per token.
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder_);
  const auto ids = tokenizer.encode(
      "This is a free operating system for your computer. An operating system is the set of basic "
      "programs and utilities that make your computer run.");
  Session session(engine_, {.policy = {}, .seed = 1, .all_logits = true});
  const SequenceTokens work{session.add_sequence(), ids};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  double surprise = 0;
  for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
    const auto logits = r.logits_of(t);
    double sum = 0;
    for (const float v : logits) {
      sum += std::exp(static_cast<double>(v));
    }
    surprise += std::log(sum) - static_cast<double>(logits[ids[t + 1]]);
  }
  EXPECT_LT(surprise / static_cast<double>(ids.size() - 1), 6.0);
}

}  // namespace
}  // namespace switchyard
