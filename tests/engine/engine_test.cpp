// SPDX-License-Identifier: Apache-2.0
// The forward pass: against Hugging Face transformers (committed fixtures), against slow double
// precision loops under a policy, against itself in other batches, and on broken input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::changed_checkpoint;
using testing_support::expect_contains;
using testing_support::fixture;
using testing_support::floats_of;
using testing_support::ids_of;
using testing_support::input_error_of;
using testing_support::set_value;
using testing_support::Tensors;

constexpr double kLogitTolerance = 1e-4;

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

/// Everything a sequence got from the model, gathered over its steps, in order of position.
struct SequenceRecord {
  std::vector<float> logits;         // [T, V]
  std::vector<float> router_logits;  // [L, T, E] by layer below
  std::vector<std::vector<float>> router, weights;
  std::vector<std::vector<std::uint16_t>> chosen, candidates;
  std::vector<std::vector<float>> lse;
  bool operator==(const SequenceRecord&) const = default;
};

void append(SequenceRecord& record, const StepResult& r, std::uint32_t sequence) {
  const std::size_t layers = r.layers.size();
  record.router.resize(layers);
  record.weights.resize(layers);
  record.chosen.resize(layers);
  record.candidates.resize(layers);
  record.lse.resize(layers);
  for (std::size_t t = 0; t < r.tokens(); ++t) {
    if (r.sequence[t] != sequence) {
      continue;
    }
    const auto logits = r.logits_of(t);
    record.logits.insert(record.logits.end(), logits.begin(), logits.end());
    for (std::size_t l = 0; l < layers; ++l) {
      const std::size_t experts = r.router_logits.size() / layers / r.tokens();
      const auto row = std::span(r.router_logits).subspan((l * r.tokens() + t) * experts, experts);
      record.router[l].insert(record.router[l].end(), row.begin(), row.end());
      const LayerDecision& d = r.layers[l].decision;
      const Candidates& c = r.layers[l].candidates;
      for (std::size_t j = 0; j < d.slots; ++j) {
        record.chosen[l].push_back(d.chosen[t * d.slots + j]);
        record.weights[l].push_back(d.weights[t * d.slots + j]);
      }
      for (std::size_t m = 0; m < c.width; ++m) {
        record.candidates[l].push_back(c.ids[t * c.width + m]);
      }
      record.lse[l].push_back(c.lse[t]);
    }
  }
}

/// Runs one sequence alone, `chunk` tokens a step.
SequenceRecord run_alone(const Engine& engine, const std::vector<std::uint32_t>& ids,
                         std::size_t chunk) {
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
  const std::uint32_t s = session.add_sequence();
  SequenceRecord record;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const SequenceTokens work{s, std::span(ids).subspan(at, std::min(chunk, ids.size() - at))};
    append(record, session.step({&work, 1}, Phase::kPrefill), s);
  }
  return record;
}

class HuggingFace : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, LogitsAndRoutingAgree) {
  const Engine engine = Engine::load(fixture(GetParam()), {});
  const auto expected = model::Safetensors::open(fixture(GetParam()) / "expected.safetensors");
  for (int n = 0; n < 3; ++n) {
    const std::string prefix = "seq" + std::to_string(n) + ".";
    const auto ids = ids_of(expected, prefix + "ids");
    const SequenceRecord got = run_alone(engine, ids, ids.size());
    EXPECT_LE(largest_difference(got.logits, floats_of(expected, prefix + "logits")),
              kLogitTolerance);
    std::vector<float> router;
    std::vector<float> weights;
    std::vector<std::uint32_t> chosen;
    for (std::size_t l = 0; l < got.router.size(); ++l) {
      router.insert(router.end(), got.router[l].begin(), got.router[l].end());
      weights.insert(weights.end(), got.weights[l].begin(), got.weights[l].end());
      chosen.insert(chosen.end(), got.chosen[l].begin(), got.chosen[l].end());
    }
    EXPECT_LE(largest_difference(router, floats_of(expected, prefix + "router_logits")),
              kLogitTolerance);
    const auto oracle = ids_of(expected, prefix + "chosen");
    EXPECT_EQ(chosen, oracle) << testing_support::margins_of_differences(
        router, chosen, oracle, engine.gate().experts, engine.gate().top_k);
    EXPECT_LE(largest_difference(weights, floats_of(expected, prefix + "weights")), 1e-5);
  }
}

TEST_P(HuggingFace, GreedyDecodingAgrees) {
  const Engine engine = Engine::load(fixture(GetParam()), {});
  const auto expected = model::Safetensors::open(fixture(GetParam()) / "expected.safetensors");
  const auto prompt = ids_of(expected, "decode.prompt");
  const auto continuation = ids_of(expected, "decode.ids");
  const auto logits = floats_of(expected, "decode.logits");
  const std::size_t vocab = engine.config().vocab_size;
  Session session(engine, {});
  const std::uint32_t s = session.add_sequence();
  const SequenceTokens all{s, prompt};
  const StepResult* r = &session.step({&all, 1}, Phase::kPrefill);
  for (std::size_t i = 0; i < continuation.size(); ++i) {
    EXPECT_LE(largest_difference(r->logits_of(0), std::span(logits).subspan(i * vocab, vocab)),
              kLogitTolerance);
    const std::uint32_t token = sample(r->logits_of(0), {}, s, 0);
    ASSERT_EQ(token, continuation[i]) << "at new token " << i;
    const SequenceTokens one{s, {&token, 1}};
    r = &session.step({&one, 1}, Phase::kDecode);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFace,
                         testing::Values("f32", "bf16", "tied_wide_head", "window"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '_');
                           return name;
                         });

TEST(Session, GivesTheSameBitsPrefilledChunkedAndDecoded) {
  for (const char* variant : {"bf16", "window"}) {
    const Engine engine = Engine::load(fixture(variant), {});
    const auto expected = model::Safetensors::open(fixture(variant) / "expected.safetensors");
    const auto ids = ids_of(expected, "seq2.ids");
    const SequenceRecord whole = run_alone(engine, ids, ids.size());
    for (const std::size_t chunk : {1U, 2U, 5U, 16U}) {
      EXPECT_TRUE(run_alone(engine, ids, chunk) == whole) << variant << " chunk " << chunk;
    }
  }
}

TEST(Session, GivesTheSameBitsInAnyBatchAndForAnyThreads) {
  // Long enough together that the backend does share the work between threads.
  std::vector<std::vector<std::uint32_t>> prompts;
  for (const std::uint32_t length : {1U, 7U, 33U, 64U, 64U, 64U}) {
    auto& prompt = prompts.emplace_back();
    for (std::uint32_t i = 0; i < length; ++i) {
      prompt.push_back((i * i * 7 + static_cast<std::uint32_t>(prompts.size()) * 31 + i) % 128);
    }
  }
  const Engine single = Engine::load(fixture("bf16"), {.threads = 1});
  for (const unsigned threads : {1U, 2U, 3U}) {
    const Engine engine = Engine::load(fixture("bf16"), {.threads = threads});
    Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
    std::vector<SequenceTokens> work;
    for (const auto& prompt : prompts) {
      work.push_back({session.add_sequence(), prompt});
    }
    const StepResult& r = session.step(work, Phase::kPrefill);
    for (std::size_t n = 0; n < prompts.size(); ++n) {
      SequenceRecord batched;
      append(batched, r, work[n].sequence);
      EXPECT_TRUE(batched == run_alone(single, prompts[n], prompts[n].size()))
          << threads << " threads, sequence " << n;
    }
  }
}

/// The whole model in double precision and plain loops, one sequence from its start, with the
/// experts and weights that `chosen` and `weights` ([layer][t*k+j]) dictate.
std::vector<double> naive_logits(const std::filesystem::path& folder, const model::ModelConfig& c,
                                 const std::vector<std::uint32_t>& ids,
                                 const std::vector<std::vector<std::uint16_t>>& chosen,
                                 const std::vector<std::vector<float>>& weights) {
  const auto file = model::Safetensors::open(folder);
  using Row = std::vector<double>;
  const auto multiply = [&](const std::string& name, const Row& x) {
    const auto w = floats_of(file, name);
    Row y(w.size() / x.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t k = 0; k < x.size(); ++k) {
        y[i] += static_cast<double>(w[i * x.size() + k]) * x[k];
      }
    }
    return y;
  };
  const auto norm = [&](const std::string& name, const Row& x) {
    const auto w = floats_of(file, name);
    double mean = 0;
    for (const double value : x) {
      mean += value * value / static_cast<double>(x.size());
    }
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = w[i] * x[i] / std::sqrt(mean + c.rms_norm_eps);
    }
    return y;
  };
  const auto rotate = [&](Row& x, std::size_t heads, std::size_t position) {
    const std::size_t d = c.head_dim;
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < d / 2; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / double(d));
        double& a = x[h * d + i];
        double& b = x[h * d + i + d / 2];
        const double old = a;
        a = old * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + old * std::sin(angle);
      }
    }
  };
  const auto embedding = floats_of(file, "model.embed_tokens.weight");
  std::vector<Row> x;
  for (const std::uint32_t id : ids) {
    x.emplace_back(embedding.begin() + static_cast<std::ptrdiff_t>(id * c.hidden_size),
                   embedding.begin() + static_cast<std::ptrdiff_t>((id + 1) * c.hidden_size));
  }
  for (std::size_t l = 0; l < c.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    std::vector<Row> keys;
    std::vector<Row> values;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const Row n = norm(p + "input_layernorm.weight", x[t]);
      Row q = multiply(p + "self_attn.q_proj.weight", n);
      keys.push_back(multiply(p + "self_attn.k_proj.weight", n));
      values.push_back(multiply(p + "self_attn.v_proj.weight", n));
      rotate(q, c.num_heads, t);
      rotate(keys.back(), c.num_kv_heads, t);
      Row mixed(q.size());
      for (std::size_t h = 0; h < c.num_heads; ++h) {
        const std::size_t g = h / (c.num_heads / c.num_kv_heads);
        Row score(t + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          for (std::size_t i = 0; i < c.head_dim; ++i) {
            score[j] += q[h * c.head_dim + i] * keys[j][g * c.head_dim + i];
          }
          score[j] = std::exp(score[j] / std::sqrt(static_cast<double>(c.head_dim)));
          sum += score[j];
        }
        for (std::size_t j = 0; j <= t; ++j) {
          for (std::size_t i = 0; i < c.head_dim; ++i) {
            mixed[h * c.head_dim + i] += score[j] / sum * values[j][g * c.head_dim + i];
          }
        }
      }
      const Row out = multiply(p + "self_attn.o_proj.weight", mixed);
      for (std::size_t i = 0; i < out.size(); ++i) {
        x[t][i] += out[i];
      }
    }
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const Row n = norm(p + "post_attention_layernorm.weight", x[t]);
      for (std::size_t j = 0; j < c.top_k; ++j) {
        const std::uint16_t e = chosen[l][t * c.top_k + j];
        if (e == kNoExpert) {
          continue;
        }
        const std::string expert = p + "block_sparse_moe.experts." + std::to_string(e) + ".";
        Row gate = multiply(expert + "w1.weight", n);
        const Row up = multiply(expert + "w3.weight", n);
        for (std::size_t i = 0; i < gate.size(); ++i) {
          gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        }
        const Row out = multiply(expert + "w2.weight", gate);
        for (std::size_t i = 0; i < out.size(); ++i) {
          x[t][i] += weights[l][t * c.top_k + j] * out[i];
        }
      }
    }
  }
  std::vector<double> logits;
  for (const Row& row : x) {
    const Row out = multiply("lm_head.weight", norm("model.norm.weight", row));
    logits.insert(logits.end(), out.begin(), out.end());
  }
  return logits;
}

TEST(Session, AppliesAPolicyInClosedLoop) {
  const Engine engine = Engine::load(fixture("f32"), {});
  const auto expected = model::Safetensors::open(fixture("f32") / "expected.safetensors");
  const auto ids = ids_of(expected, "seq2.ids");
  const SequenceRecord free = run_alone(engine, ids, ids.size());
  for (const char* text :
       {"capacity.rule=share capacity.factor=0.5 capacity.reroute=none",
        "capacity.rule=share capacity.factor=0.5 capacity.reroute=none "
        "capacity.exhausted=drop_token",
        "capacity.rule=share capacity.factor=1.0",
        "capacity.rule=share capacity.factor=0.75 capacity.order=prob weights.renorm=none"}) {
    const RoutingPolicy policy = policy_from_text(text, "test");
    Session session(engine, {.policy = policy, .seed = 1, .all_logits = true});
    const SequenceTokens work{session.add_sequence(), ids};
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    SequenceRecord got;
    append(got, r, work.sequence);
    std::uint64_t dropped = 0;
    std::uint64_t rerouted = 0;
    for (const LayerRouting& layer : r.layers) {
      const LayerDecision& d = layer.decision;
      EXPECT_EQ(d.assignments, ids.size() * engine.gate().top_k);
      EXPECT_EQ(d.assignments, d.kept + d.rerouted + d.queued_slots + d.dropped) << text;
      EXPECT_LE(*std::max_element(d.load.begin(), d.load.end()), d.capacity) << text;
      dropped += d.dropped;
      rerouted += d.rerouted;
    }
    EXPECT_GT(dropped + rerouted, 0U) << text;
    EXPECT_GT(largest_difference(got.logits, free.logits), 1e-2) << text;
    const auto naive = naive_logits(fixture("f32"), engine.config(), ids, got.chosen, got.weights);
    const std::vector<float> rounded(naive.begin(), naive.end());
    EXPECT_LE(largest_difference(got.logits, rounded), kLogitTolerance) << text;
  }
}

TEST(Session, LeavesATokenThatLostAllSlotsItsResidual) {
  // Capacity 1 per expert, drop_token: nearly every token keeps the residual only.
  const Engine engine = Engine::load(fixture("f32"), {});
  const auto expected = model::Safetensors::open(fixture("f32") / "expected.safetensors");
  const auto ids = ids_of(expected, "seq2.ids");
  const RoutingPolicy policy = policy_from_text(
      "capacity.rule=absolute capacity.absolute=1 capacity.reroute=none "
      "capacity.exhausted=drop_token",
      "test");
  Session session(engine, {.policy = policy, .seed = 1, .all_logits = true});
  const SequenceTokens work{session.add_sequence(), ids};
  SequenceRecord got;
  append(got, session.step({&work, 1}, Phase::kPrefill), work.sequence);
  std::size_t empty = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    empty += got.chosen[0][2 * t] == kNoExpert && got.chosen[0][2 * t + 1] == kNoExpert ? 1 : 0;
  }
  EXPECT_GE(empty, ids.size() - 8);
  const auto naive = naive_logits(fixture("f32"), engine.config(), ids, got.chosen, got.weights);
  const std::vector<float> rounded(naive.begin(), naive.end());
  EXPECT_LE(largest_difference(got.logits, rounded), kLogitTolerance);
}

TEST(Session, TakesAStepWithoutTokens) {
  const Engine engine = Engine::load(fixture("f32"), {});
  Session session(engine, {});
  const StepResult& r = session.step({}, Phase::kDecode);
  EXPECT_EQ(r.tokens(), 0U);
  EXPECT_TRUE(r.logits.empty());
  EXPECT_EQ(r.layers[0].decision.assignments, 0U);
}

TEST(Session, SendsAllTokensToOneSetOfExpertsWhenTheRouterIsBlind) {
  // All router weights zero: all logits tie, so every token takes experts 0 and 1, half each.
  const auto folder = changed_checkpoint("f32", "blind", [](Tensors& tensors) {
    for (int l = 0; l < 2; ++l) {
      auto& gate = tensors["model.layers." + std::to_string(l) + ".block_sparse_moe.gate.weight"];
      std::fill(gate.bytes.begin(), gate.bytes.end(), std::byte{0});
    }
  });
  const Engine engine = Engine::load(folder, {});
  const std::vector<std::uint32_t> ids{5, 9, 77, 3, 120};
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
  const SequenceTokens work{session.add_sequence(), ids};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  for (const LayerRouting& layer : r.layers) {
    EXPECT_EQ(layer.decision.load, (std::vector<std::uint32_t>{5, 5, 0, 0, 0, 0, 0, 0}));
    for (const float w : layer.decision.weights) {
      EXPECT_FLOAT_EQ(w, 0.5F);
    }
  }
  SequenceRecord got;
  append(got, r, work.sequence);
  const auto naive = naive_logits(folder, engine.config(), ids, got.chosen, got.weights);
  const std::vector<float> rounded(naive.begin(), naive.end());
  EXPECT_LE(largest_difference(got.logits, rounded), kLogitTolerance);
}

TEST(Session, FlagsNanInsteadOfChoosingAnExpertTwice) {
  const std::size_t hidden = 32;
  const auto folder = changed_checkpoint("f32", "nan", [&](Tensors& tensors) {
    // The embedding of token 7 is NaN: its whole router row is. Token 8 stays sound.
    set_value(tensors["model.embed_tokens.weight"], 7 * hidden, NAN);
  });
  const Engine engine = Engine::load(folder, {});
  Session session(engine, {});
  const std::vector<std::uint32_t> bad{7};
  const std::vector<std::uint32_t> good{8};
  const std::vector<SequenceTokens> work{{session.add_sequence(), bad},
                                         {session.add_sequence(), good}};
  const StepResult& r = session.step(work, Phase::kPrefill);
  EXPECT_EQ(r.nan_rows, 2U);  // one row, two layers
  EXPECT_EQ(r.nan_logits, 1U);
  for (const LayerRouting& layer : r.layers) {
    EXPECT_EQ(layer.decision.chosen[0], 0);
    EXPECT_EQ(layer.decision.chosen[1], 1);
    EXPECT_TRUE(std::isfinite(layer.decision.weights[0]));
    EXPECT_TRUE(std::isfinite(layer.decision.weights[1]));
  }
  for (const float value : r.logits_of(1)) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Session, RefusesTokensOutsideTheVocabularyAndTooManyPositions) {
  const Engine engine = Engine::load(fixture("f32"), {});
  Session session(engine, {});
  const std::uint32_t s = session.add_sequence();
  const std::vector<std::uint32_t> foreign{1, 128};
  const SequenceTokens a{s, foreign};
  expect_contains(input_error_of([&] {
                    (void)session.step({&a, 1}, Phase::kPrefill);
                  }),
                  "token id 128 is outside the model's vocabulary of 128");
  const std::vector<std::uint32_t> many(65, 1);
  const SequenceTokens b{s, many};
  expect_contains(input_error_of([&] {
                    (void)session.step({&b, 1}, Phase::kPrefill);
                  }),
                  "65 tokens, but the model has 64 positions");
  EXPECT_EQ(session.length(s), 0U);
}

TEST(Session, RefusesAPolicyThatTheEngineCannotRun) {
  const Engine engine = Engine::load(fixture("f32"), {});
  const auto refusal = [&](const char* text) {
    return input_error_of([&] { Session(engine, {.policy = policy_from_text(text, "test")}); });
  };
  expect_contains(refusal("capacity.rule=share capacity.exhausted=queue capacity.queue=defer"),
                  "unsupported by the engine: capacity.queue = defer");
  expect_contains(refusal("capacity.rule=share capacity.scope=rank"),
                  "unsupported by the engine: capacity.scope = rank");
  // The rule's own scope is a rank's, and the step is one rank's.
  EXPECT_NO_THROW(Session(engine, {.policy = policy_from_text("capacity.rule=megatron", "test")}));
}

TEST(Engine, NamesAMissingExpertTensor) {
  const auto folder = changed_checkpoint("f32", "missing", [](Tensors& tensors) {
    tensors.erase("model.layers.1.block_sparse_moe.experts.7.w2.weight");
  });
  expect_contains(input_error_of([&] { (void)Engine::load(folder, {}); }),
                  "model.layers.1.block_sparse_moe.experts.7.w2.weight");
}

TEST(Engine, NamesAnUnknownExtraTensor) {
  const auto folder = changed_checkpoint("f32", "extra", [](Tensors& tensors) {
    const float one = 1;
    tensors["model.layers.0.block_sparse_moe.experts.8.w1.weight"] =
        model::TensorData::from_floats("", model::DType::kF32, {1}, {&one, 1});
  });
  expect_contains(input_error_of([&] { (void)Engine::load(folder, {}); }),
                  "model.layers.0.block_sparse_moe.experts.8.w1.weight");
}

TEST(Engine, NamesATensorOfTheWrongShape) {
  const auto folder = changed_checkpoint("f32", "shape", [](Tensors& tensors) {
    auto& t = tensors["model.layers.0.self_attn.k_proj.weight"];
    std::swap(t.shape[0], t.shape[1]);
  });
  expect_contains(input_error_of([&] { (void)Engine::load(folder, {}); }),
                  "model.layers.0.self_attn.k_proj.weight");
}

TEST(Engine, ReadsFusedExpertTensorsAsWell) {
  const auto folder = changed_checkpoint("f32", "fused", [](Tensors& tensors) {
    for (int l = 0; l < 2; ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      model::TensorData up{"", model::DType::kF32, {8, 72, 32}, {}};
      model::TensorData down{"", model::DType::kF32, {8, 32, 36}, {}};
      for (int e = 0; e < 8; ++e) {
        const std::string x = p + "block_sparse_moe.experts." + std::to_string(e) + ".";
        for (const char* name : {"w1.weight", "w3.weight"}) {
          const auto& part = tensors[x + name].bytes;
          up.bytes.insert(up.bytes.end(), part.begin(), part.end());
          tensors.erase(x + name);
        }
        const auto& part = tensors[x + "w2.weight"].bytes;
        down.bytes.insert(down.bytes.end(), part.begin(), part.end());
        tensors.erase(x + "w2.weight");
      }
      tensors[p + "mlp.experts.gate_up_proj"] = up;
      tensors[p + "mlp.experts.down_proj"] = down;
      tensors[p + "mlp.gate.weight"] = tensors[p + "block_sparse_moe.gate.weight"];
      tensors.erase(p + "block_sparse_moe.gate.weight");
    }
  });
  const std::vector<std::uint32_t> ids{1, 2, 3, 50, 7};
  EXPECT_TRUE(run_alone(Engine::load(folder, {}), ids, 5) ==
              run_alone(Engine::load(fixture("f32"), {}), ids, 5));
}

TEST(Engine, RefusesFamiliesItCannotRunByName) {
  model::ModelConfig config = Engine::load(fixture("f32"), {}).config();
  config.family = model::Family::kDeepseekMoe;
  config.model_type = "deepseek";
  expect_contains(input_error_of([&] { require_runnable(config, "config.json"); }),
                  "unsupported by the engine: model_type \"deepseek\"");
}

TEST(Sample, TakesTheHighestLogitAndTheLowerIdOfATie) {
  const std::vector<float> logits{1, 3, NAN, 3, -INFINITY};
  EXPECT_EQ(sample(logits, {}, 0, 0), 1U);
  const std::vector<float> broken{NAN, NAN};
  EXPECT_EQ(sample(broken, {}, 0, 0), 0U);
}

TEST(Sample, FollowsTheDistributionWithinTopP) {
  // softmax: 0.5, 0.25, 0.125, 0.125. top_p 0.7 keeps the first two: 2/3 and 1/3.
  const auto ln2 = static_cast<float>(std::log(2.0));
  const std::vector<float> logits{3 * ln2, 2 * ln2, ln2, ln2};
  std::array<int, 4> all{};
  std::array<int, 4> nucleus{};
  for (std::uint32_t i = 0; i < 6000; ++i) {
    ++all[sample(logits, {1.0, 1.0, 9}, 0, i)];
    ++nucleus[sample(logits, {1.0, 0.7, 9}, 0, i)];
  }
  // Three standard deviations of a binomial count: 3 sqrt(6000 p (1-p)) <= 117.
  EXPECT_NEAR(all[0], 3000, 117);
  EXPECT_NEAR(all[1], 1500, 101);
  EXPECT_NEAR(all[2], 750, 77);
  EXPECT_NEAR(nucleus[0], 4000, 110);
  EXPECT_EQ(nucleus[2] + nucleus[3], 0);
  EXPECT_EQ(sample(logits, {1.0, 1.0, 9}, 0, 5), sample(logits, {1.0, 1.0, 9}, 0, 5));
}

TEST(Sample, TakesTopPOfWhatTopKKeeps) {
  // softmax: 0.5, 0.25, 0.125, 0.125. top_k 3 keeps 0.875 in all; half of that are the first only.
  const auto ln2 = static_cast<float>(std::log(2.0));
  const std::vector<float> logits{3 * ln2, 2 * ln2, ln2, ln2};
  std::array<int, 4> three{};
  for (std::uint32_t i = 0; i < 6000; ++i) {
    ++three[sample(logits, {1.0, 1.0, 9, 3}, 0, i)];
    EXPECT_EQ(sample(logits, {1.0, 0.5, 9, 3}, 0, i), 0U);  // 0.5 >= 0.5 * 0.875
    EXPECT_EQ(sample(logits, {1.0, 1.0, 9, 1}, 0, i), 0U);
  }
  EXPECT_NEAR(three[0], 6000 * 4 / 7, 115);
  EXPECT_NEAR(three[2], 6000 / 7, 82);
  EXPECT_EQ(three[3], 0);  // the higher id of the tie
}

TEST(Sample, ValidatesItsOptions) {
  expect_contains(input_error_of([] { validate({-1.0, 1.0, 1}, "x"); }), "temperature = -1");
  expect_contains(input_error_of([] { validate({NAN, 1.0, 1}, "x"); }), "temperature = nan");
  expect_contains(input_error_of([] { validate({1.0, 0.0, 1}, "x"); }), "top_p = 0");
}

}  // namespace
}  // namespace switchyard
