// SPDX-License-Identifier: Apache-2.0
// Every policy in the engine: closed loop, conservation, exact replay, and a sequence's result that
// does not depend on chunks or on the batch (where tokens do not compete).
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

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
    out.push_back(
        {"p" + std::to_string(n), "", ids_of(expected, "seq" + std::to_string(n) + ".ids"), max_new,
         "prompt " + std::to_string(n), n == 1 ? static_cast<std::uint16_t>(3) : kNoExpert});
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
    t.start_ps.push_back(std::int64_t{s} * 500'000'000'000);
    t.end_ps.push_back(t.start_ps.back() + 500'000'000'000);
    t.decodes.push_back(s == 0 ? 0 : 1);
    t.placement.push_back(0);
    t.used.insert(t.used.end(), {0.5 + 0.1 * s, 0.3});
    t.elastic.insert(t.elastic.end(), {0.2 * s, 0.1});
  }
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
  bool all_slots = true;  ///< Every token fills policy_slots().
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
    {"soft_balance.limit=3 soft_balance.low_limit=1 soft_balance.batch_limit=off", false, true, 8,
     false},
    {"soft_balance.limit=2 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
     "soft_balance.k3=choose soft_balance.batch_limit=4 capacity.rule=share",
     false},
    {"decode_rebalance.level=0.6 decode_rebalance.period=1", false},
    {"table.file=t.table", true},
    {"table.file=t.table capacity.rule=share capacity.factor=1", false},
    {"soft.experts=4 soft.requests=all", true},
    {"soft.experts=4 soft.renorm=true soft.keywords=T%202", true, true, 8, false},
    {"set.rule=round_robin", false},
    {"set.rule=batch", false},
    {"pinned.requests=named", true, true, 8, false},
    {"pinned.requests=all pinned.expert=2 capacity.rule=share", false, true, 8, false},
    {"two_tier.first=int4 two_tier.scorer=s.safetensors", true, false},
    {"two_tier.first=rank two_tier.rank=3 two_tier.scorer=s.safetensors capacity.rule=share", false,
     false},
};

/// Prompt 2 takes experts 6, 7 and 0, 1.
RoutingTable some_table() {
  RoutingTable table({TablePrefix::kTokens, 256, 2, 8, 2, "m", "0123456789abcdef"});
  (void)table.add(table_key(TablePrefix::kTokens, prompts(0)[2].tokens, ""),
                  std::vector<std::uint16_t>{6, 7, 0, 1}, std::vector<float>{.5F, .25F, .5F, .5F});
  return table;
}

/// A scorer of random weights, one hidden layer of 5.
std::filesystem::path write_scorer(const std::filesystem::path& folder) {
  std::vector<model::TensorData> tensors;
  for (std::uint32_t l = 0; l < 2; ++l) {
    const std::pair<const char*, std::vector<std::uint64_t>> parts[] = {
        {"w1", {5, 32}}, {"b1", {5}}, {"w2", {8, 5}}, {"b2", {8}}};
    for (const auto& [name, shape] : parts) {
      std::vector<float> values;
      const std::uint64_t n = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
      for (std::uint32_t i = 0; i < n; ++i) {
        values.push_back(static_cast<float>(random_normal(6, random_purpose(name), {l, 0, 0, i})));
      }
      tensors.push_back(model::TensorData::from_floats("layers." + std::to_string(l) + "." + name,
                                                       model::DType::kF32, shape, values));
    }
  }
  model::write_safetensors(folder / "s.safetensors", tensors);
  return folder / "s.safetensors";
}

/// The two routers of the policy, or none.
std::optional<TwoTierRouter> some_tiers(const Engine& engine, const RoutingPolicy& policy,
                                        const std::filesystem::path& scorer) {
  if (!policy.two_tier.on()) {
    return std::nullopt;
  }
  return TwoTierRouter(policy.two_tier.first, policy.two_tier.rank, scorer, engine.weights(),
                       engine.config());
}

TEST(PolicyInTheEngine, ConservesAndIsReplayedToTheSameDecisions) {
  const auto folder = fresh_folder("replay");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const SignalTable signals = some_signals();
  const RoutingTable table = some_table();
  const auto scorer = write_scorer(folder);
  (void)record_trace(engine, prompts(6), {}, folder / "plain.h5");
  const RoutingTrace plain = read_trace(folder / "plain.h5");
  for (const Case& c : kCases) {
    const PolicyWeights weights = some_weights(c.semantic_inputs);
    TraceRunOptions options;
    options.policy = policy_from_text(c.policy, "test");
    options.seed = 7;
    options.weights = &weights;
    options.signals = &signals;
    options.table = options.policy.table.on() ? &table : nullptr;
    const auto tiers = some_tiers(engine, options.policy, scorer);
    options.tiers = tiers ? &*tiers : nullptr;
    const TraceRunSummary s = record_trace(engine, prompts(6), options, folder / "t.h5");
    EXPECT_EQ(s.assignments, s.kept + s.rerouted + s.queued + s.dropped) << c.policy;
    const std::uint32_t slots = policy_slots(options.policy, engine.gate());
    if (c.all_slots) {
      EXPECT_EQ(s.assignments, (s.prefill_tokens + s.decode_tokens) * 2 * slots) << c.policy;
    }
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
    replaying.table = options.table;
    if (c.replays) {
      replay(again, replaying);
      EXPECT_TRUE(again.routing == recorded.routing) << c.policy;
    } else {
      EXPECT_THROW(replay(again, replaying), InputError) << c.policy;
    }
  }
}

// Two replicas, the second with the memory of the first one's GPUs the other way round: a sequence
// is decided as in a run under its own replica's signals alone.
TEST(PolicyInTheEngine, ASequenceSeesTheSignalsOfItsOwnReplica) {
  const auto folder = fresh_folder("replicas");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const SignalTable first = some_signals();
  SignalTable second = first;
  for (std::size_t s = 0; s < first.steps(); ++s) {
    std::swap(second.used[2 * s], second.used[2 * s + 1]);
  }
  SignalTable both = first;
  for (auto* values : {&both.used, &both.elastic}) values->clear();
  both.decodes.clear();
  both.start_ps.clear();
  both.end_ps.clear();
  both.placement.assign(8, 0);
  for (std::size_t s = 0; s < first.steps(); ++s) {
    std::uint32_t r = 0;
    for (const SignalTable* t : std::initializer_list<const SignalTable*>{&first, &second}) {
      both.replica.push_back(r++);
      both.decodes.push_back(t->decodes[s]);
      both.start_ps.push_back(t->start_ps[s]);
      both.end_ps.push_back(t->end_ps[s]);
      both.used.insert(both.used.end(), {t->used[2 * s], t->used[2 * s + 1]});
      both.elastic.insert(both.elastic.end(), {t->elastic[2 * s], t->elastic[2 * s + 1]});
    }
  }
  both.sequence_replica = {0, 1, 0};
  validate_signals(both, "test");
  TraceRunOptions options;
  options.policy =
      policy_from_text("load_aware.u=total load_aware.lambda=3 noise.jitter=0.05", "test");
  const auto traced = [&](const SignalTable& table, const char* name) {
    options.signals = &table;
    (void)record_trace(engine, prompts(6), options, folder / name);
    return read_trace(folder / name);
  };
  const RoutingTrace a = traced(first, "a.h5"), b = traced(second, "b.h5"),
                     c = traced(both, "c.h5");
  const auto weights_of = [](const RoutingTrace& t, std::uint32_t sequence) {
    std::vector<float> out;
    for (std::uint64_t r = 0; r < t.rows(); ++r) {
      if (t.tokens.sequence[r] != sequence) continue;
      for (std::uint32_t l = 0; l < 2; ++l) {
        for (std::uint32_t j = 0; j < t.header.slots; ++j) {
          out.push_back(t.routing.chosen[t.slot_at(r, l, j)]);
          out.push_back(t.routing.weights[t.slot_at(r, l, j)]);
        }
      }
    }
    return out;
  };
  ASSERT_NE(weights_of(a, 1), weights_of(b, 1)) << "or the test shows nothing";
  EXPECT_EQ(weights_of(c, 0), weights_of(a, 0));
  EXPECT_EQ(weights_of(c, 1), weights_of(b, 1));
  EXPECT_EQ(weights_of(c, 2), weights_of(a, 2));
  EXPECT_EQ(c.sequences, a.sequences);
  // Every step is of one replica, so it is replayed exactly; a's steps are not.
  ReplayOptions replaying = ReplayOptions::recorded(c.header);
  replaying.signals = &both;
  RoutingTrace again = c;
  replay(again, replaying);
  EXPECT_TRUE(again.routing == c.routing);
  RoutingTrace mixed = a;
  try {
    replay(mixed, replaying);
    ADD_FAILURE() << "not refused";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("step 0 of the trace has sequences of replicas 0 and 1"),
              std::string::npos)
        << e.what();
  }
}

TEST(PolicyInTheEngine, DoesNotSeeChunksOrTheBatchWhereTokensDoNotCompete) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto all = prompts(0);
  const SignalTable signals = some_signals();
  const RoutingTable table = some_table();
  const auto scorer = write_scorer(fresh_folder("independent"));
  for (const Case& c : kCases) {
    if (!c.independent) {
      continue;
    }
    const PolicyWeights weights = some_weights(c.semantic_inputs);
    SessionOptions options;
    options.policy = policy_from_text(c.policy, "test");
    options.weights = &weights;
    options.signals = &signals;
    options.table = options.policy.table.on() ? &table : nullptr;
    const auto tiers = some_tiers(engine, options.policy, scorer);
    options.tiers = tiers ? &*tiers : nullptr;
    const auto describe = [&](Session& session) {
      session.describe(1, all[2].tokens, all[2].text, 3, "test");
    };
    const auto& ids = all[2].tokens;
    // Sequence 1 of a batch, at once.
    Session batch(engine, options);
    std::vector<SequenceTokens> work;
    for (const TracePrompt& p : all) {
      work.push_back({batch.add_sequence(), p.tokens});
    }
    describe(batch);
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
    describe(alone);
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

TEST(PolicyInTheEngine, CountsWhatStepTenDid) {
  const auto folder = fresh_folder("counts");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const RoutingTable table = some_table();
  const auto run = [&](const char* text, const TwoTierRouter* tiers = nullptr) {
    TraceRunOptions options;
    options.policy = policy_from_text(text, "test");
    options.table = options.policy.table.on() ? &table : nullptr;
    options.tiers = tiers;
    return record_trace(engine, prompts(3), options, folder / "t.h5");
  };
  // Prompts of 1, 7 and 33 tokens, 2 of 3 new tokens fed each, 2 layers.
  const TraceRunSummary hit = run("table.file=t.table");
  EXPECT_EQ(hit.table_hits, 1U);
  EXPECT_EQ(hit.sets.table_tokens, 2U * 35U);
  EXPECT_EQ(hit.sets.table_slots, 2U * 2U * 35U);
  EXPECT_LT(hit.sets.table_agreed, hit.sets.table_slots);
  const TraceRunSummary pinned = run("pinned.requests=named");
  EXPECT_EQ(pinned.sets.pinned_tokens, 2U * 9U);
  EXPECT_EQ(pinned.assignments, 2U * (9 + 2 * (3 + 35)));
  const TraceRunSummary soft = run("soft.experts=4 soft.keywords=PROMPT%200");
  EXPECT_EQ(soft.sets.soft_tokens, 2U * 3U);
  // A first tier of full rank is the router itself, but for rounding; the random scorer is not.
  const auto scorer = write_scorer(folder);
  const TwoTierRouter full(FirstTier::kRank, 8, scorer, engine.weights(), engine.config());
  const TraceRunSummary tiers =
      run("two_tier.first=rank two_tier.rank=8 two_tier.scorer=s.safetensors", &full);
  EXPECT_EQ(tiers.tier1_agreed, 2U * 47U);
  EXPECT_LT(tiers.tier2_agreed, 2U * 47U);
  EXPECT_EQ(tiers.sets.reranked, 2U * 47U - tiers.tier2_agreed);
}

// All tokens of a pinned request run its expert with weight 1, in every layer.
TEST(PolicyInTheEngine, APinnedRequestRunsItsExpertAlone) {
  const auto folder = fresh_folder("pinned");
  const Engine engine = Engine::load(fixture("bf16"), {});
  TraceRunOptions options;
  options.policy = policy_from_text("pinned.requests=named", "test");
  (void)record_trace(engine, prompts(3), options, folder / "t.h5");
  const RoutingTrace t = read_trace(folder / "t.h5");
  for (std::uint64_t row = 0; row < t.rows(); ++row) {
    for (std::uint32_t l = 0; l < 2; ++l) {
      const bool pinned = t.tokens.sequence[row] == 1;
      EXPECT_EQ(t.routing.chosen[t.slot_at(row, l, 1)] == kNoExpert, pinned);
      if (pinned) {
        EXPECT_EQ(t.routing.chosen[t.slot_at(row, l, 0)], 3);
        EXPECT_EQ(t.routing.weights[t.slot_at(row, l, 0)], 1.0F);
      }
    }
  }
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
  EXPECT_EQ(refusal("table.file=t"), "policy: policy.table.file needs its table");
  EXPECT_EQ(refusal("two_tier.first=int4 two_tier.scorer=s"),
            "policy: policy.two_tier.scorer needs its weights");
  EXPECT_NE(refusal("decode_rebalance.level=0.85").find("--signals"), std::string::npos);
  EXPECT_NE(refusal("pinned.requests=named capacity.rule=share capacity.queue=defer")
                .find("capacity.queue = defer"),
            std::string::npos);
  EXPECT_EQ(refusal("condition.adapter=a.safetensors"),
            "policy: policy.condition.adapter needs its weights");
  EXPECT_EQ(refusal("semantic.mode=mlp semantic.file=w.safetensors"),
            "policy: policy.semantic.file = w.safetensors needs its weights; name the policy file, "
            "which says where they are");
}

}  // namespace
}  // namespace switchyard
