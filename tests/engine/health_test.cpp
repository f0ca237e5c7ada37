// SPDX-License-Identifier: Apache-2.0
// Health checks: a bit of a weight flips, is noticed, the expert is read again, generation goes on.
#include "engine/nn/health.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
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
using testing_support::family;
using testing_support::fixture;
using testing_support::input_error_of;
using testing_support::Tensors;

/// Prefills a prompt and decodes greedily; all logits. `monitor` may be null.
std::vector<float> run(const Engine& engine, HealthMonitor* monitor, std::size_t steps = 6) {
  Session session(engine, {});
  const std::vector<std::uint32_t> prompt{3, 57, 12, 5, 50, 41, 8, 60, 33, 21, 2, 31};
  const std::uint32_t s = session.add_sequence();
  std::vector<float> out;
  std::uint32_t token = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const SequenceTokens work{s, step == 0 ? std::span(prompt) : std::span(&token, 1)};
    if (monitor != nullptr) {
      monitor->before_step(step);
    }
    const StepResult& r = session.step({&work, 1}, step == 0 ? Phase::kPrefill : Phase::kDecode);
    if (monitor != nullptr) {
      monitor->after_step(r);
    }
    out.insert(out.end(), r.logits.begin(), r.logits.end());
    token = sample(r.logits_of(0), {}, s, 0);
  }
  return out;
}

TEST(Health, RepairsAFlippedBitBeforeItDoesHarm) {
  struct Case {
    const char* flip;
    bool norm, not_finite;
  };
  // bf16: bit 15 sign, 14 … 7 exponent, 6 … 0 fraction.
  for (const Case& c :
       {Case{"layers.1.experts.3.gate:17:14@2", true, false},  // x 2^128
        Case{"layers.0.experts.0.down:5:15@0", false, false},  // sign
        Case{"layers.1.router:40:6@3", false, false},          // fraction
        Case{"layers.0.q:0:0@1", false, false}, Case{"final_norm:3:14@4", true, false},
        Case{"embedding:1280:14@5", true, false}}) {
    Engine engine = Engine::load(fixture("bf16"), {});
    const auto undisturbed = run(engine, nullptr);
    HealthMonitor monitor(engine, {});
    monitor.inject(parse_bit_flip(c.flip, "test"));
    EXPECT_EQ(run(engine, &monitor), undisturbed) << c.flip;
    const HealthReport& r = monitor.report();
    EXPECT_EQ(r.flips, 1U);
    EXPECT_EQ(r.crc, 1U) << c.flip;
    EXPECT_EQ(r.norm + r.not_finite, c.norm || c.not_finite ? 1U : 0U) << c.flip;
    EXPECT_EQ(r.reloads, 1U);
    EXPECT_EQ(r.damaged_steps, 0U);
    EXPECT_EQ(r.checks, 6U);
    EXPECT_EQ(r.router_alarms + r.nan_alarms, 0U);
  }
}

TEST(Health, RepairsFromWidenedTransposedAndRoundedWeights) {
  for (const char* name : {"gpt_oss_mxfp4", "deepseek_v3_fp8"}) {
    const QuantiseOptions rounded = parse_quantise("experts=int4,group=16", "test");
    Engine engine = Engine::load(family(name), {.quantise = rounded});
    const auto undisturbed = run(engine, nullptr);
    HealthMonitor monitor(engine, {});
    monitor.inject(parse_bit_flip("layers.1.experts.2.up:9:30@1", "test"));
    monitor.inject(parse_bit_flip("layers.1.experts.2.down:9:1@1", "test"));
    EXPECT_EQ(run(engine, &monitor), undisturbed) << name;
    EXPECT_EQ(monitor.report().crc, 2U);
    EXPECT_EQ(monitor.report().reloads, 1U) << "one expert, read once";
  }
}

// Sinks and selection biases are neither matrices nor norms, and were copied once.
TEST(Health, WatchesSinksAndSelectionBiases) {
  for (const auto& [name, flip] : {std::pair{"gpt_oss", "layers.0.sinks:1:29@2"},
                                   std::pair{"deepseek_v3", "layers.1.selection_bias:2:30@2"}}) {
    Engine engine = Engine::load(family(name), {});
    const auto undisturbed = run(engine, nullptr);
    HealthMonitor monitor(engine, {});
    monitor.inject(parse_bit_flip(flip, "test"));
    EXPECT_EQ(run(engine, &monitor), undisturbed) << name;
    EXPECT_EQ(monitor.report().crc, 1U) << name;
    EXPECT_EQ(monitor.report().reloads, 1U) << name;

    Engine harmed = Engine::load(family(name), {});
    HealthMonitor late(harmed, {.every = 1000, .logit_limit = INFINITY});
    late.inject(parse_bit_flip(flip, "test"));
    EXPECT_NE(run(harmed, &late), undisturbed) << name;
  }
}

std::size_t mappings_of_checkpoints() {
  std::ifstream in("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(in, line);) {
    n += line.ends_with(".safetensors") ? 1U : 0U;
  }
  return n;
}

TEST(Health, ARepairKeepsNoSecondModel) {
  for (const char* name : {"olmoe", "deepseek_v3_fp8"}) {
    Engine engine = Engine::load(family(name), {});
    HealthMonitor monitor(engine, {});
    const std::size_t before = mappings_of_checkpoints();
    ASSERT_GT(before, 0U);
    for (const char* flip : {"layers.1.experts.0.down:5:7@1", "layers.1.experts.0.up:5:7@1",
                             "layers.1.router:9:7@2", "final_norm:9:7@3"}) {
      monitor.inject(parse_bit_flip(flip, "test"));
    }
    (void)run(engine, &monitor);
    EXPECT_EQ(monitor.report().reloads, 3U) << name;
    EXPECT_EQ(mappings_of_checkpoints(), before) << name;
  }
}

/// Two sequences, the second beginning at step 2, through monitor.step(); all logits.
std::vector<float> run_two(Engine& engine, HealthMonitor* monitor) {
  Session session(engine, {.policy = {}, .may_redo = monitor != nullptr});
  const std::vector<std::uint32_t> prompt{3, 57, 12, 5, 50, 41, 8, 60, 33, 21, 2, 31};
  std::array<std::uint32_t, 2> next{};
  std::vector<float> out;
  for (std::uint32_t step = 0; step < 7; ++step) {
    std::vector<SequenceTokens> work;
    for (std::uint32_t s = 0; s < (step < 2 ? 1U : 2U); ++s) {
      const bool first = step == 2 * s;
      if (first) {
        EXPECT_EQ(session.add_sequence(), s);
      }
      work.push_back({s, first ? std::span(prompt).first(12 - 5 * s) : std::span(&next[s], 1)});
    }
    const StepResult& r = monitor == nullptr ? session.step(work, Phase::kDecode)
                                             : monitor->step(session, work, Phase::kDecode, step);
    EXPECT_EQ(r.step, step);
    out.insert(out.end(), r.logits.begin(), r.logits.end());
    for (std::uint32_t s = 0; s < work.size(); ++s) {
      next[s] = sample(r.logits_of(s), {}, s, 0);
    }
  }
  return out;
}

TEST(Health, AStepThatRaisesTheAlarmIsRunAgainFromItsTokens) {
  for (const auto& [name, flip] :
       {std::pair{fixture("bf16"), "layers.0.post_attention_norm:3:14@4"},
        std::pair{family("gpt_oss"), "layers.1.post_attention_norm:3:30@4"},
        std::pair{family("deepseek_v2"), "layers.0.input_norm:3:30@4"}}) {
    Engine engine = Engine::load(name, {});
    const auto undisturbed = run_two(engine, nullptr);
    HealthMonitor monitor(engine, {.every = 1000});
    monitor.inject(parse_bit_flip(flip, "test"));
    EXPECT_TRUE(run_two(engine, &monitor) == undisturbed) << flip;
    EXPECT_EQ(monitor.report().redone, 1U) << flip;
    EXPECT_EQ(monitor.report().damaged_steps, 1U) << flip;
    EXPECT_EQ(monitor.report().reloads, 1U) << flip;
  }
}

TEST(Health, WithoutAnyCheckTheFlipDoesHarm) {
  Engine engine = Engine::load(fixture("bf16"), {});
  const auto undisturbed = run(engine, nullptr);
  HealthMonitor monitor(engine, {.every = 1000});
  monitor.inject(parse_bit_flip("layers.1.router:40:6@3", "test"));
  EXPECT_NE(run(engine, &monitor), undisturbed);
  EXPECT_EQ(monitor.report().damaged_steps, 3U);
  EXPECT_EQ(monitor.report().reloads, 0U);
}

TEST(Health, TwoFlipsOfOneBitAreNoDamage) {
  for (const char* second : {"layers.1.router:40:6@3", "layers.1.router:40:6@4"}) {
    Engine engine = Engine::load(fixture("bf16"), {});
    const auto undisturbed = run(engine, nullptr);
    HealthMonitor monitor(engine, {.every = 1000});
    monitor.inject(parse_bit_flip("layers.1.router:40:6@3", "test"));
    monitor.inject(parse_bit_flip(second, "test"));
    EXPECT_EQ(run(engine, &monitor) == undisturbed, second[21] == '3') << second;
    EXPECT_EQ(monitor.report().flips, 2U);
    EXPECT_EQ(monitor.report().damaged_steps, second[21] == '3' ? 0U : 1U) << second;
  }
}

TEST(Health, AnAlarmOfTheLogitsChecksAtOnce) {
  Engine engine = Engine::load(fixture("bf16"), {});
  HealthMonitor monitor(engine, {.every = 1000});
  // A norm's weight of about 1 becomes about 2^128: router logits are beyond every limit. At the
  // last step, as keys and values that are not finite stay in the cache.
  monitor.inject(parse_bit_flip("layers.0.post_attention_norm:3:14@5", "test"));
  (void)run(engine, &monitor);
  const HealthReport& r = monitor.report();
  EXPECT_EQ(r.router_alarms + r.nan_alarms, 1U);
  EXPECT_EQ(r.damaged_steps, 1U);
  EXPECT_EQ(r.reloads, 1U);
  EXPECT_EQ(r.checks, 2U);  // at step 0 and at the alarm
}

TEST(Health, TheNormAloneMissesASignAndTheCrcAloneMissesNothing) {
  for (const bool crc : {false, true}) {
    Engine engine = Engine::load(fixture("bf16"), {});
    HealthMonitor monitor(engine, {.norms = !crc, .crc = crc});
    monitor.inject(parse_bit_flip("layers.0.experts.0.down:5:15@1", "test"));
    (void)run(engine, &monitor);
    EXPECT_EQ(monitor.report().reloads, crc ? 1U : 0U);
  }
}

TEST(Health, SaysThatTheCheckpointChangedOnDisk) {
  const auto folder = changed_checkpoint("f32", "health_changed", [](Tensors&) {});
  Engine engine = Engine::load(folder, {});
  HealthMonitor monitor(engine, {});
  (void)changed_checkpoint("f32", "health_changed", [](Tensors& tensors) {
    testing_support::set_value(tensors["model.layers.0.block_sparse_moe.experts.1.w1.weight"], 0,
                               9);
  });
  monitor.inject(parse_bit_flip("layers.0.experts.1.gate:17:30@0", "test"));
  expect_contains(input_error_of([&] { monitor.before_step(0); }),
                  "layers.0.experts.1.gate is damaged, and the file holds other bytes");
}

TEST(Health, NamesWhatItCannotDo) {
  const auto parse = [](const char* text) {
    return input_error_of([&] { (void)parse_bit_flip(text, "--flip"); });
  };
  expect_contains(parse("layers.0.q"), "is no TENSOR:VALUE:BIT@STEP");
  expect_contains(parse("layers.0.q:1:2"), "is no TENSOR:VALUE:BIT@STEP");
  expect_contains(parse("layers.0.q:x:2@0"), "value \"x\" is not a whole number");
  Engine engine = Engine::load(fixture("bf16"), {});
  HealthMonitor monitor(engine, {});
  const auto inject = [&](const char* text) {
    return input_error_of([&] { monitor.inject(parse_bit_flip(text, "--flip")); });
  };
  expect_contains(inject("layers.0.quu:1:2@0"), "the model has no tensor \"layers.0.quu\"");
  expect_contains(inject("layers.0.q:1:16@0"), "values of 16 bits");
  expect_contains(inject("layers.0.q:99999999:1@0"), "value 99999999");
  expect_contains(input_error_of([&] { HealthMonitor(engine, {.every = 0}); }), "every = 0");
  expect_contains(input_error_of([&] { HealthMonitor(engine, {.norms = false, .crc = false}); }),
                  "neither norms nor CRCs");
}

}  // namespace
}  // namespace switchyard
