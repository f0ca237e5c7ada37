// SPDX-License-Identifier: Apache-2.0
// Every policy in the engine: closed loop, conservation, exact replay, and a sequence's result that
// does not depend on chunks or on the batch (where tokens do not compete).
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/nn/trace_run.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::ids_of;

std::vector<TracePrompt> prompts(std::uint32_t max_new) {
  const auto expected = model::Safetensors::open(fixture("bf16") / "expected.safetensors");
  std::vector<TracePrompt> out;
  for (int n = 0; n < 3; ++n) {
    out.push_back({"p" + std::to_string(n), "",
                   ids_of(expected, "seq" + std::to_string(n) + ".ids"), max_new});
  }
  return out;
}

/// Small random tensors for every file a policy may name: E = 8, H = 32, 2 layers.
PolicyWeights some_weights(std::uint32_t semantic_inputs) {
  PolicyWeights out;
  out.layers.resize(2);
  const auto fill = [](std::vector<float>& v, std::size_t n, const char* name, std::uint32_t l) {
    for (std::uint32_t i = 0; i < n; ++i) {
      v.push_back(0.3F * static_cast<float>(random_normal(5, random_purpose(name), {l, 0, 0, i})));
    }
  };
  for (std::uint32_t l = 0; l < 2; ++l) {
    SemanticWeights& s = out.layers[l].semantic;
    s.inputs = semantic_inputs;
    s.hidden = 12;
    s.outputs = 8;
    fill(s.w1, 12 * semantic_inputs, "w1", l);
    fill(s.b1, 12, "b1", l);
    fill(s.w2, 96, "w2", l);
    fill(s.b2, 8, "b2", l);
    AdapterWeights& a = out.layers[l].adapter;
    a.rank = 3;
    a.inputs = 32;
    a.outputs = 8;
    fill(a.a, 96, "a", l);
    fill(a.b, 24, "b", l);
  }
  return out;
}

/// GPU 0 holds experts 0 to 3 and fills up, GPU 1 the others.
SignalTable some_signals() {
  SignalTable t;
  t.gpus = 2;
  t.layers = 2;
  t.experts = 8;
  for (std::uint32_t s = 0; s < 4; ++s) {
    t.start.push_back(s * 0.5);
    t.used.insert(t.used.end(), {0.5 + 0.1 * s, 0.3});
    t.elastic.insert(t.elastic.end(), {0.2 * s, 0.1});
  }
  t.end = 2;
  for (std::uint32_t l = 0; l < 2; ++l) {
    for (std::uint32_t e = 0; e <= 8; ++e) {
      t.first_gpu.push_back(static_cast<std::uint32_t>(t.gpu.size()));
      if (e < 8) {
        t.gpu.push_back(e / 4);
      }
    }
  }
  return t;
}

struct Case {
  const char* policy;
  bool independent;  ///< A row depends on its own sequence only.
  bool replays = true;
  std::uint32_t semantic_inputs = 8;
};

const Case kCases[] = {
    {"condition.clamp=0.2", true},
    {"condition.layer_norm=on", true},
    {"condition.adapter=a.safetensors", true},
    {"condition.layer_norm=on condition.adapter=a.safetensors noise.jitter=0.05", true},
    {"noise.jitter=0.2", true},
    {"noise.mode=fixed noise.std=0.5", true},
    {"noise.mode=adaptive capacity.rule=share capacity.factor=1", false},
    {"semantic.mode=mlp semantic.file=w.safetensors", true},
    {"semantic.mode=mlp semantic.file=w.safetensors semantic.on=input", true, false, 32},
    {"semantic.mode=ema semantic.alpha=0.4", true},
    {"semantic.mode=identity", true},
    {"temperature.place=before temperature.value=1.5 gumbel.mode=tau_noise gumbel.tau=0.5", true},
    {"temperature.place=after temperature.value=3 gumbel.mode=tau_all", true},
    {"temperature.place=before temperature.controller=sequence temperature.run=2", false},
    {"load_aware.u=total", false},
    {"load_aware.u=elastic load_aware.lambda=2 capacity.rule=share", false},
    {"load_aware.u=queue capacity.rule=share", false},
    {"score.rule=linear", true},
    {"bonus.lambda=0.1", true},
    {"window.beta=0.2 capacity.rule=share capacity.factor=1", false},
    {"window.beta=0.2", true},
    {"groups.by=block groups.count=2", true},
    {"groups.by=block groups.count=2 groups.k_in_group=all", true},
    {"groups.by=placement bonus.lambda=0.05", true},
};

TEST(PolicyInTheEngine, ConservesAndIsReplayedToTheSameDecisions) {
  const auto folder = fresh_folder("replay");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const SignalTable signals = some_signals();
  (void)record_trace(engine, prompts(6), {}, folder / "plain.h5");
  const RoutingTrace plain = read_trace(folder / "plain.h5");
  for (const Case& c : kCases) {
    const PolicyWeights weights = some_weights(c.semantic_inputs);
    TraceRunOptions options;
    options.policy = policy_from_text(c.policy, "test");
    options.seed = 7;
    options.weights = &weights;
    options.signals = &signals;
    const TraceRunSummary s = record_trace(engine, prompts(6), options, folder / "t.h5");
    EXPECT_EQ(s.assignments, s.kept + s.rerouted + s.queued + s.dropped) << c.policy;
    const std::uint32_t slots = policy_slots(options.policy, engine.gate());
    EXPECT_EQ(s.assignments, (s.prefill_tokens + s.decode_tokens) * 2 * slots) << c.policy;
    EXPECT_EQ(s.truncated, 0U);
    const RoutingTrace recorded = read_trace(folder / "t.h5");
    EXPECT_EQ(recorded.header.slots, slots);
    if (std::string(c.policy) != "semantic.mode=identity") {
      EXPECT_TRUE(recorded.routing.weights != plain.routing.weights) << c.policy;
    }
    RoutingTrace again = recorded;
    again.routing.first.clear();
    again.routing.chosen.clear();
    again.routing.weights.clear();
    again.routing.outcome.clear();
    again.decisions_present = false;
    ReplayOptions replaying = ReplayOptions::recorded(again.header);
    replaying.weights = &weights;
    replaying.signals = &signals;
    if (c.replays) {
      replay(again, replaying);
      EXPECT_TRUE(again.routing == recorded.routing) << c.policy;
    } else {
      EXPECT_THROW(replay(again, replaying), InputError) << c.policy;
    }
  }
}

TEST(PolicyInTheEngine, DoesNotSeeChunksOrTheBatchWhereTokensDoNotCompete) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto all = prompts(0);
  const SignalTable signals = some_signals();
  for (const Case& c : kCases) {
    if (!c.independent) {
      continue;
    }
    const PolicyWeights weights = some_weights(c.semantic_inputs);
    SessionOptions options;
    options.policy = policy_from_text(c.policy, "test");
    options.weights = &weights;
    options.signals = &signals;
    const auto& ids = all[2].tokens;
    // Sequence 1 of a batch, at once.
    Session batch(engine, options);
    std::vector<SequenceTokens> work;
    for (const TracePrompt& p : all) {
      work.push_back({batch.add_sequence(), p.tokens});
    }
    std::vector<std::uint16_t> chosen[2];
    std::vector<float> logits[2];
    std::vector<SequenceTokens> order{{0, all[0].tokens}, {1, ids}};
    const StepResult& r = batch.step(order, Phase::kPrefill);
    const std::size_t k = r.layers[0].decision.slots;
    chosen[0].assign(
        r.layers[1].decision.chosen.begin() + static_cast<std::ptrdiff_t>(all[0].tokens.size() * k),
        r.layers[1].decision.chosen.end());
    logits[0].assign(r.logits_of(1).begin(), r.logits_of(1).end());
    // The same sequence number, alone, token by token.
    Session alone(engine, options);
    (void)alone.add_sequence();
    const std::uint32_t s = alone.add_sequence();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const SequenceTokens one{s, {&ids[i], 1}};
      const StepResult& step = alone.step({&one, 1}, Phase::kPrefill);
      const auto& d = step.layers[1].decision;
      chosen[1].insert(chosen[1].end(), d.chosen.begin(), d.chosen.end());
      logits[1].assign(step.logits_of(0).begin(), step.logits_of(0).end());
    }
    EXPECT_EQ(chosen[0], chosen[1]) << c.policy;
    EXPECT_EQ(logits[0], logits[1]) << c.policy;
  }
}

/// Router logits of the first MoE layer, one prompt.
StepResult first_step(const Engine& engine, const SessionOptions& options,
                      const std::vector<std::uint32_t>& ids) {
  Session session(engine, options);
  const SequenceTokens work{session.add_sequence(), ids};
  return session.step({&work, 1}, Phase::kPrefill);
}

TEST(PolicyInTheEngine, TheAdapterAddsBTimesATimesTheInput) {
  const Engine engine = Engine::load(fixture("f32"), {});
  const std::vector<std::uint32_t> ids = prompts(0)[1].tokens;
  // A = the router itself, B = -identity: every logit becomes W x - W x = 0, so the first two
  // experts share the token.
  PolicyWeights weights;
  weights.layers.resize(2);
  const auto file = model::Safetensors::open(fixture("f32") / "model.safetensors");
  for (std::size_t l = 0; l < 2; ++l) {
    AdapterWeights& a = weights.layers[l].adapter;
    a.rank = a.outputs = 8;
    a.inputs = 32;
    a.a = file.find("model.layers." + std::to_string(l) + ".block_sparse_moe.gate.weight")
              ->to_float();
    a.b.assign(64, 0.0F);
    for (std::size_t e = 0; e < 8; ++e) {
      a.b[e * 8 + e] = -1.0F;
    }
  }
  SessionOptions options;
  options.policy = policy_from_text("condition.adapter=a.safetensors", "test");
  options.weights = &weights;
  const StepResult r = first_step(engine, options, ids);
  for (const float z : r.router_logits) {
    EXPECT_EQ(z, 0.0F);
  }
  for (std::size_t i = 0; i < r.layers[0].decision.chosen.size(); ++i) {
    EXPECT_EQ(r.layers[0].decision.chosen[i], i % 2);
    EXPECT_EQ(r.layers[0].decision.weights[i], 0.5F);
  }
}

TEST(PolicyInTheEngine, LayerNormAndJitterChangeWhatTheGateSeesAndTheRecordedInput) {
  const Engine engine = Engine::load(fixture("f32"), {});
  const std::vector<std::uint32_t> ids = prompts(0)[1].tokens;
  SessionOptions options;
  options.router_input = true;
  const StepResult plain = first_step(engine, options, ids);
  options.policy = policy_from_text("condition.layer_norm=on", "test");
  const StepResult normed = first_step(engine, options, ids);
  const auto gate = model::Safetensors::open(fixture("f32") / "model.safetensors")
                        .find("model.layers.0.block_sparse_moe.gate.weight")
                        ->to_float();
  for (std::size_t t = 0; t < ids.size(); ++t) {
    std::vector<double> x;
    double mean = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      x.push_back(model::bf16_to_float(plain.router_input[t * 32 + i]));
      mean += x.back() / 32;
    }
    double variance = 0;
    for (const double v : x) {
      variance += (v - mean) * (v - mean) / 32;
    }
    double largest = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      x[i] = (x[i] - mean) / std::sqrt(variance + 1e-5);
      EXPECT_NEAR(model::bf16_to_float(normed.router_input[t * 32 + i]), x[i],
                  0.02 * std::max(1.0, std::abs(x[i])));
      largest = std::max(largest, std::abs(x[i]));
    }
    for (std::size_t e = 0; e < 8; ++e) {
      double z = 0;
      double size = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        z += gate[e * 32 + i] * x[i];
        size += std::abs(gate[e * 32 + i] * x[i]);
      }
      EXPECT_NEAR(normed.router_logits[t * 8 + e], z, 0.01 * size);  // x was rounded to bf16
    }
  }
  options.policy = policy_from_text("noise.jitter=0.5", "test");
  const StepResult jittered = first_step(engine, options, ids);
  bool moved = false;
  for (std::size_t i = 0; i < ids.size() * 32; ++i) {
    const float x = model::bf16_to_float(plain.router_input[i]);
    const float y = model::bf16_to_float(jittered.router_input[i]);
    EXPECT_LE(std::abs(y), 1.51F * std::abs(x));
    EXPECT_GE(std::abs(y), 0.49F * std::abs(x));
    moved = moved || x != y;
  }
  EXPECT_TRUE(moved);
}

TEST(PolicyInTheEngine, SaysWhatIsMissing) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto refusal = [&](const char* text) {
    SessionOptions options;
    options.policy = policy_from_text(text, "test");
    try {
      const Session session(engine, options);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("load_aware.u=total"),
            "policy: policy.load_aware.u = total needs the memory use of each GPU; give --signals, "
            "or use the simulator");
  EXPECT_EQ(refusal("condition.adapter=a.safetensors"),
            "policy: policy.condition.adapter needs its weights");
  EXPECT_EQ(refusal("semantic.mode=mlp semantic.file=w.safetensors"),
            "policy: policy.semantic.file = w.safetensors needs its weights; name the policy file, "
            "which says where they are");
}

TEST(SignalTable, HoldsTheLastSampleAndLetsTheClockGoOn) {
  const SignalTable t = some_signals();
  EXPECT_DOUBLE_EQ(t.view(2, 1).start, 1.0);
  EXPECT_DOUBLE_EQ(t.view(2, 1).used[0], 0.7);
  EXPECT_DOUBLE_EQ(t.view(4, 0).start, 2.0);
  EXPECT_DOUBLE_EQ(t.view(6, 0).start, 3.0);
  EXPECT_DOUBLE_EQ(t.view(6, 0).used[0], 0.8);
  EXPECT_EQ(t.view(0, 1).gpu[t.view(0, 1).first_gpu[5]], 1U);
  EXPECT_DOUBLE_EQ(t.view(0, 1).free(1), 0.7);
}

}  // namespace
}  // namespace switchyard
