// SPDX-License-Identifier: Apache-2.0
// Traces written by the engine: layout of steps, byte identity, replay, bad input.
#include "engine/nn/trace_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "engine/trace/trace_losses.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::changed_checkpoint;
using testing_support::expect_contains;
using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::ids_of;
using testing_support::input_error_of;
using testing_support::set_value;
using testing_support::Tensors;

std::vector<TracePrompt> some_prompts(std::uint32_t max_new) {
  const auto expected = model::Safetensors::open(fixture("bf16") / "expected.safetensors");
  std::vector<TracePrompt> out;
  for (int n = 0; n < 3; ++n) {
    out.push_back({"p" + std::to_string(n), n == 1 ? "code" : "",
                   ids_of(expected, "seq" + std::to_string(n) + ".ids"), max_new});
  }
  return out;
}

TraceRunOptions with_policy(const std::string& text) {
  TraceRunOptions options;
  options.policy = policy_from_text(text, "test");
  options.seed = 7;
  return options;
}

TEST(RecordTrace, LaysStepsOutAsItsHeaderSays) {
  const auto folder = fresh_folder("layout");
  const Engine engine = Engine::load(fixture("bf16"), {});
  // Lengths 1, 7, 33; two at a time; chunks of 4; up to 3 new tokens each.
  const auto prompts = some_prompts(3);
  TraceRunOptions options;
  options.batch = 2;
  options.chunk = 4;
  const TraceRunSummary summary = record_trace(engine, prompts, options, folder / "t.h5");
  const RoutingTrace trace = read_trace(folder / "t.h5");
  EXPECT_EQ(trace.sequences[1].prompt_length, 7U);
  EXPECT_EQ(trace.sequences[1].domain, "code");
  EXPECT_EQ(trace.sequences[2].name, "p2");
  EXPECT_EQ(trace.header.gate, engine.gate());
  EXPECT_EQ(trace.header.precision, "f32");
  EXPECT_EQ(summary.prefill_tokens, 41U);
  EXPECT_EQ(summary.decode_tokens + summary.prefill_tokens, trace.rows());
  EXPECT_EQ(summary.steps, trace.steps());
  const auto size = [&](std::uint32_t step) {
    const auto [a, b] = trace.step_rows(step);
    return b - a;
  };
  // Prompt tokens (p) and new tokens (n) of sequences 0, 1, 2: the third starts when the first has
  // made its three tokens.
  const std::vector<std::uint64_t> sizes{1 + 4,  // p1 p4
                                         1 + 3,  // n1 p3
                                         1 + 1,  // n1 n1, and 0 ends: its third token is not fed
                                         1 + 4,  // n1 p4, and 1 ends
                                         4,     4, 4, 4, 4, 4,  // p4
                                         4,     1, 1, 1};       // p4 p1 n1 n1
  ASSERT_EQ(trace.steps(), sizes.size());
  for (std::uint32_t step = 0; step < sizes.size(); ++step) {
    EXPECT_EQ(size(step), sizes[step]) << step;
  }
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    const bool decode = trace.tokens.phase[row] == static_cast<std::uint8_t>(Phase::kDecode);
    const auto& sequence = trace.sequences[trace.tokens.sequence[row]];
    EXPECT_EQ(decode, trace.tokens.position[row] >= sequence.prompt_length);
    if (!decode) {
      EXPECT_EQ(trace.tokens.token[row],
                prompts[trace.tokens.sequence[row]].tokens[trace.tokens.position[row]]);
    }
  }
  EXPECT_EQ(summary.assignments, trace.rows() * 2 * 2);
  EXPECT_EQ(summary.assignments, summary.kept);
}

/// Enough rows in a step that the backend does share the work between threads.
std::vector<TracePrompt> many_long_prompts() {
  std::vector<TracePrompt> out;
  for (std::uint32_t s = 0; s < 6; ++s) {
    TracePrompt prompt{"s" + std::to_string(s), "", {}, 6};
    for (std::uint32_t i = 0; i < 58; ++i) {
      prompt.tokens.push_back((i * i * 7 + s * 31 + i) % 128);
    }
    out.push_back(prompt);
  }
  return out;
}

TEST(RecordTrace, WritesTheSameBytesForAnyThreadsFolderAndEnvironment) {
  const std::string policy = "capacity.rule=share capacity.factor=1.0 capacity.order=random";
  std::vector<std::string> files;
  for (const unsigned threads : {1U, 2U, 3U}) {
    const auto folder = fresh_folder("identity" + std::to_string(threads));
    if (threads == 2) {
      setenv("TZ", "Asia/Shanghai", 1);
      setenv("HOME", "/nonexistent", 1);
      std::setlocale(LC_ALL, "C.UTF-8");
    }
    const Engine engine = Engine::load(fixture("bf16"), {.threads = threads});
    (void)record_trace(engine, many_long_prompts(), with_policy(policy), folder / "t.h5");
    files.push_back(read_file(folder / "t.h5"));
  }
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
  // And the bytes do depend on what they should depend on.
  TraceRunOptions other = with_policy(policy);
  other.seed = 8;
  const auto folder = fresh_folder("identity_other");
  const Engine engine = Engine::load(fixture("bf16"), {});
  (void)record_trace(engine, many_long_prompts(), other, folder / "t.h5");
  EXPECT_NE(files[0], read_file(folder / "t.h5"));
}

TEST(RecordTrace, WritesTheSameBytesForAnyBlockOfTheKvCache) {
  const auto folder = fresh_folder("blocks");
  for (const char* variant : {"bf16", "window"}) {
    const Engine engine = Engine::load(fixture(variant), {});
    std::vector<std::string> files;
    for (const std::size_t block : {1U, 5U, 16U}) {
      TraceRunOptions options = with_policy("capacity.rule=share capacity.factor=1.0");
      options.batch = 4;
      options.chunk = 9;
      options.kv.block = block;
      const auto summary = record_trace(engine, many_long_prompts(), options, folder / "t.h5");
      EXPECT_EQ(summary.kv_allocated, summary.kv_freed);
      EXPECT_GE(summary.kv_peak, 4U);
      files.push_back(read_file(folder / "t.h5"));
    }
    EXPECT_EQ(files[0], files[1]);
    EXPECT_EQ(files[0], files[2]);
  }
}

TEST(RecordTrace, StartsAPromptOnlyWhenItsKeysAndValuesFit) {
  const auto folder = fresh_folder("memory");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto& c = engine.config();
  // 58 prompt tokens and 5 of 6 new ones: four blocks of 16 each.
  const std::uint64_t need = 4 * 16 * c.num_layers * c.num_kv_heads * c.head_dim * 2 * 4;
  TraceRunOptions options;
  options.kv.memory = 2 * need + 100;
  const auto tight = record_trace(engine, many_long_prompts(), options, folder / "tight.h5");
  EXPECT_EQ(tight.peak_kv_bytes, 2 * need);
  options.kv.memory = 0;
  const auto wide = record_trace(engine, many_long_prompts(), options, folder / "wide.h5");
  EXPECT_EQ(wide.peak_kv_bytes, 6 * need);
  EXPECT_GT(tight.steps, wide.steps);
  EXPECT_EQ(tight.generated, wide.generated);  // the same tokens, two sequences at a time
  EXPECT_EQ(tight.load, wide.load);
  options.kv.memory = need - 1;
  const std::string text = input_error_of(
      [&] { (void)record_trace(engine, many_long_prompts(), options, folder / "none.h5"); });
  expect_contains(text, "prompt s0: 63 tokens need 16.00 KiB of KV cache; --kv-memory makes");
  EXPECT_FALSE(std::filesystem::exists(folder / "none.h5"));
}

TEST(RecordTrace, SamplesAlikeInAnyBatch) {
  const auto folder = fresh_folder("sampled");
  const Engine engine = Engine::load(fixture("bf16"), {});
  TraceRunOptions options;
  options.sampling = {1.5, 0.9, 11, 40};
  std::vector<std::vector<std::vector<std::uint32_t>>> tokens;  // [run][sequence][position]
  for (const std::uint32_t batch : {1U, 2U, 6U}) {
    options.batch = batch;
    (void)record_trace(engine, many_long_prompts(), options, folder / "t.h5");
    const RoutingTrace trace = read_trace(folder / "t.h5");
    auto& run = tokens.emplace_back(trace.sequences.size());
    for (std::uint64_t row = 0; row < trace.rows(); ++row) {
      run[trace.tokens.sequence[row]].push_back(trace.tokens.token[row]);
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0], tokens[2]);
  options.sampling = {};
  (void)record_trace(engine, many_long_prompts(), options, folder / "t.h5");
  const RoutingTrace greedy = read_trace(folder / "t.h5");
  std::vector<std::vector<std::uint32_t>> other(greedy.sequences.size());
  for (std::uint64_t row = 0; row < greedy.rows(); ++row) {
    other[greedy.tokens.sequence[row]].push_back(greedy.tokens.token[row]);
  }
  EXPECT_NE(tokens[0], other);
}

TEST(RecordTrace, IsReplayedToTheSameDecisions) {
  const auto folder = fresh_folder("replay");
  const Engine engine = Engine::load(fixture("bf16"), {});
  for (const char* text :
       {"", "capacity.rule=share capacity.factor=1.0",
        "capacity.rule=share capacity.factor=0.8 capacity.mode=rounds capacity.order=prob",
        "capacity.rule=share capacity.factor=0.8 capacity.order=random capacity.exhausted=queue",
        "capacity.rule=share capacity.factor=0.5 capacity.reroute=none "
        "capacity.exhausted=drop_token"}) {
    (void)record_trace(engine, some_prompts(8), with_policy(text), folder / "t.h5");
    const RoutingTrace recorded = read_trace(folder / "t.h5");
    RoutingTrace stripped = recorded;
    stripped.routing.first.clear();
    stripped.routing.chosen.clear();
    stripped.routing.weights.clear();
    stripped.routing.outcome.clear();
    stripped.decisions_present = false;
    write_trace(folder / "stripped.h5", stripped);
    RoutingTrace again = read_trace(folder / "stripped.h5");
    ASSERT_FALSE(again.decisions_present);
    replay(again, ReplayOptions::recorded(again.header));
    EXPECT_TRUE(again.routing == recorded.routing) << text;
  }
}

TEST(RecordTrace, StoresWhatTheRouterSawOnRequest) {
  const auto folder = fresh_folder("router_input");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto prompts = some_prompts(2);
  TraceRunOptions options;
  (void)record_trace(engine, prompts, options, folder / "plain.h5");
  options.router_input = true;
  (void)record_trace(engine, prompts, options, folder / "t.h5");
  TraceReadOptions all;
  all.router_input = true;
  const RoutingTrace trace = read_trace(folder / "t.h5", all);
  const RoutingTrace plain = read_trace(folder / "plain.h5", all);
  EXPECT_EQ(plain.header.hidden, 0U);
  EXPECT_EQ(plain.routing.logit, trace.routing.logit);
  EXPECT_EQ(plain.routing.chosen, trace.routing.chosen);
  const std::size_t h = engine.config().hidden_size;
  ASSERT_EQ(trace.header.hidden, h);
  const std::uint32_t layers = trace.header.layer_count();
  ASSERT_EQ(trace.routing.router_input.size(), trace.rows() * layers * h);
  // The router of the file on the stored input gives the stored logits, up to BF16.
  const auto weights = model::Safetensors::open(fixture("bf16") / "model.safetensors");
  for (std::uint32_t l = 0; l < layers; ++l) {
    const auto router = testing_support::floats_of(
        weights, "model.layers." + std::to_string(l) + ".block_sparse_moe.gate.weight");
    for (std::uint64_t t = 0; t < trace.rows(); ++t) {
      const std::size_t cell = t * layers + l;
      for (std::uint32_t m = 0; m < trace.header.candidates; ++m) {
        const std::size_t e = trace.routing.candidates[cell * trace.header.candidates + m];
        double z = 0;
        double size = 0;
        for (std::size_t i = 0; i < h; ++i) {
          const double term = static_cast<double>(router[e * h + i]) *
                              model::bf16_to_float(trace.routing.router_input[cell * h + i]);
          z += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(z, trace.routing.logit[cell * trace.header.candidates + m], size / 250)
            << "layer " << l << " row " << t << " expert " << e;
      }
    }
  }
}

TEST(RecordTrace, ChangesWithTheCapacityFactorAndConservesAssignments) {
  const auto folder = fresh_folder("factor");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto tight =
      record_trace(engine, some_prompts(4), with_policy("capacity.rule=share"), folder / "a.h5");
  const auto wide =
      record_trace(engine, some_prompts(4), with_policy("capacity.rule=share capacity.factor=2"),
                   folder / "b.h5");
  EXPECT_GT(tight.overflowed, wide.overflowed);
  EXPECT_GT(tight.rerouted, wide.rerouted);
  for (const auto& s : {tight, wide}) {
    EXPECT_EQ(s.assignments, s.kept + s.rerouted + s.queued + s.dropped);
  }
}

TEST(RecordTrace, EveryEndTokenOfTheModelEndsAText) {
  const auto checkpoint = changed_checkpoint("f32", "end_tokens", [](Tensors&) {});
  const std::vector<TracePrompt> prompts{{"a", "", {8, 7, 3}, 8}};
  const auto tokens = [&] {
    const Engine engine = Engine::load(checkpoint, {});
    (void)record_trace(engine, prompts, {}, checkpoint / "t.h5");
    return read_trace(checkpoint / "t.h5").tokens.token;
  };
  const auto whole = tokens();
  ASSERT_EQ(whole.size(), 3U + 7U);
  // The third new token as the second of two end tokens.
  std::string config = read_file(checkpoint / "config.json");
  const std::string from = "\"eos_token_id\": 0";
  const std::uint32_t end = whole[5];
  ASSERT_EQ(std::count(whole.begin() + 3, whole.begin() + 5, end), 0);
  config.replace(config.find(from), from.size(),
                 "\"eos_token_id\": [0, " + std::to_string(end) + "]");
  write_file(checkpoint / "config.json", config);
  EXPECT_EQ(tokens(), std::vector<std::uint32_t>(whole.begin(), whole.begin() + 5));
}

TEST(RecordTrace, AStepThatIsRunAgainStandsOnceInTheTrace) {
  const auto folder = fresh_folder("redone");
  Engine engine = Engine::load(fixture("bf16"), {});
  const auto plain =
      record_trace(engine, some_prompts(6), {.batch = 2, .policy = {}}, folder / "plain.h5");
  HealthMonitor monitor(engine, {.every = 1000});
  monitor.inject(parse_bit_flip("layers.0.post_attention_norm:3:14@3", "test"));
  const auto redone = record_trace(
      engine, some_prompts(6), {.batch = 2, .policy = {}, .monitor = &monitor}, folder / "t.h5");
  EXPECT_EQ(monitor.report().redone, 1U);
  EXPECT_EQ(redone.steps, plain.steps);
  EXPECT_EQ(redone.nan_rows, 0U);
  EXPECT_TRUE(read_file(folder / "t.h5") == read_file(folder / "plain.h5"));
}

// More than 64 experts: the file holds k + 2 candidates of a row, and the sums that losses need.
TEST(RecordTrace, KeepsWhatBalancingLossesNeedOfManyExperts) {
  constexpr std::uint32_t kExperts = 66;
  const auto checkpoint = changed_checkpoint("f32", "many_experts", [](Tensors& tensors) {
    Tensors more;
    for (auto& [name, t] : tensors) {
      const std::size_t at = name.find(".experts.");
      if (name.ends_with("block_sparse_moe.gate.weight")) {
        const model::TensorView view{name, t.dtype, t.shape, t.bytes};
        const std::vector<float> few = view.to_float();
        const std::size_t h = t.shape[1];
        std::vector<float> many(kExperts * h);
        for (std::size_t i = 0; i < many.size(); ++i) {  // each row another mixture of the eight
          many[i] = few[i % few.size()] * (1.0F - 0.01F * static_cast<float>(i / few.size())) +
                    few[(i * 7 + i / h) % few.size()];
        }
        more[name] = model::TensorData::from_floats(name, model::DType::kF32, {kExperts, h}, many);
      } else if (at != std::string::npos && name[at + 9] == '0') {
        for (std::uint32_t e = 8; e < kExperts; ++e) {
          std::string other = name;
          other.replace(at + 9, 1, std::to_string(e));
          more[other] = t;
        }
      }
    }
    for (auto& [name, t] : more) {
      tensors[name] = t;
    }
  });
  std::string config = read_file(checkpoint / "config.json");
  const std::string from = "\"num_local_experts\": 8";
  ASSERT_NE(config.find(from), std::string::npos);
  config.replace(config.find(from), from.size(), "\"num_local_experts\": 66");
  write_file(checkpoint / "config.json", config);
  const Engine engine = Engine::load(checkpoint, {});
  const auto prompts = some_prompts(2);
  (void)record_trace(engine, prompts, {.batch = 2, .chunk = 4, .policy = {}}, checkpoint / "t.h5");
  const RoutingTrace trace = read_trace(checkpoint / "t.h5");
  ASSERT_EQ(trace.header.candidates, 4U);
  // The rows' logits once more, all at once.
  Session session(engine, {});
  std::vector<double> expected(trace.gate_sum.size(), 0.0);
  ASSERT_EQ(expected.size(), 3U * trace.header.layer_count() * kExperts);
  for (std::uint32_t s = 0; s < 3; ++s) {
    std::vector<std::uint32_t> ids;
    for (std::uint64_t row = 0; row < trace.rows(); ++row) {
      if (trace.tokens.sequence[row] == s) {
        ids.push_back(trace.tokens.token[row]);
      }
    }
    const SequenceTokens work{session.add_sequence(), ids};
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    for (std::size_t i = 0; i < r.router_logits.size(); i += kExperts) {
      const auto z = std::span(r.router_logits).subspan(i, kExperts);
      double sum = 0;
      for (const float v : z) {
        sum += std::exp(static_cast<double>(v));
      }
      const std::size_t l = i / kExperts / ids.size();
      for (std::size_t e = 0; e < kExperts; ++e) {
        expected[(s * trace.header.layer_count() + l) * kExperts + e] +=
            std::exp(static_cast<double>(z[e])) / sum;
      }
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(trace.gate_sum[i], expected[i], 1e-5) << i;
  }
  const TraceLosses losses = trace_losses(trace);
  EXPECT_TRUE(losses.hugging_face && losses.layers[0].switch_loss &&
              losses.layers[0].deepseek_seq && losses.layers[0].importance_cv2);
}

TEST(RecordTrace, FlagsNanRows) {
  const auto checkpoint = changed_checkpoint("f32", "nan_trace", [](Tensors& tensors) {
    set_value(tensors["model.embed_tokens.weight"], 7 * 32, NAN);
  });
  const Engine engine = Engine::load(checkpoint, {});
  const std::vector<TracePrompt> prompts{{"a", "", {8, 7}, 0}};
  const auto summary = record_trace(engine, prompts, {}, checkpoint / "t.h5");
  EXPECT_EQ(summary.nan_rows, 2U);
  EXPECT_EQ(read_trace(checkpoint / "t.h5").nan_rows, 2U);
}

TEST(RecordTrace, RefusesWhatItCannotRunAndLeavesNoFile) {
  const auto folder = fresh_folder("refuse");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto out = folder / "t.h5";
  expect_contains(input_error_of([&] { (void)record_trace(engine, {}, {}, out); }),
                  "there is no prompt");
  const std::vector<TracePrompt> empty{{"e", "", {}, 1}};
  expect_contains(input_error_of([&] { (void)record_trace(engine, empty, {}, out); }),
                  "prompt e: has no tokens");
  const std::vector<TracePrompt> lengthy{{"l", "", std::vector<std::uint32_t>(60, 1), 6}};
  expect_contains(input_error_of([&] { (void)record_trace(engine, lengthy, {}, out); }),
                  "60 tokens and 6 new ones exceed the model's 64 positions");
  expect_contains(input_error_of([&] {
                    (void)record_trace(engine, some_prompts(1), {}, folder / "missing" / "t.h5");
                  }),
                  "missing");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace switchyard
