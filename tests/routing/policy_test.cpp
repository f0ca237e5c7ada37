// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/policy.hpp"

#include <gtest/gtest.h>

#include <set>

#include "engine/base/error.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

template <class F>
std::string error_of(F&& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

std::string set_error(const char* key, const char* value) {
  return error_of([&] {
    RoutingPolicy p;
    set_policy_field(p, key, value, "p.toml:3:1");
  });
}

std::string check(const char* text, std::uint32_t experts = 8, std::uint32_t top_k = 2) {
  return error_of([&] { validate(policy_of(text), experts, top_k, "p.toml:3"); });
}

TEST(RoutingPolicy, DefaultIsDroplessInTheCanonicalText) {
  EXPECT_EQ(policy_to_text({}),
            "capacity.rule=none capacity.factor=1 capacity.absolute=0 capacity.min_capacity=auto "
            "capacity.scope=auto capacity.group_size=1024 capacity.alignment=1 "
            "capacity.dynamic=fixed capacity.prefill_factor=1 capacity.decode_factor=1.25 "
            "capacity.order=position capacity.mode=auto capacity.reroute=next "
            "capacity.exhausted=top1 capacity.queue=wave capacity.max_score_drop=off "
            "weights.renorm=final");
  EXPECT_EQ(check(""), "no error");
}

TEST(RoutingPolicy, TextRoundTripsExactlyForEveryLegalName) {
  std::size_t names = 0;
  for (const PolicyField& field : policy_fields()) {
    // "a, b, c" lists of names; other fields are numbers.
    std::string legal(field.legal);
    if (legal.find(", ") == std::string::npos || legal.find_first_of(">[") != std::string::npos ||
        legal.starts_with("whole")) {
      continue;
    }
    legal += ", ";
    for (std::size_t at = 0; at < legal.size(); at = legal.find(", ", at) + 2) {
      const std::string value = legal.substr(at, legal.find(", ", at) - at);
      RoutingPolicy p;
      set_policy_field(p, field.key, value, "test");
      EXPECT_EQ(get_policy_field(p, field.key), value);
      EXPECT_EQ(policy_of(policy_to_text(p)), p);
      ++names;
    }
  }
  // Steps 1 to 9, step 10, then capacity and weights.
  EXPECT_EQ(names, (2U + 3 + 4 + 2 + 3 + 3 + 3 + 4 + 2 + 3 + 2) + (2 + 2 + 2 + 3 + 3 + 3 + 2 + 2) +
                       (15 + 4 + 3 + 3 + 3 + 2 + 3 + 2 + 3));
}

TEST(RoutingPolicy, TextRoundTripsExactlyForEveryNumber) {
  for (const char* value : {"0.1", "1.1", "1.0000000000000002", "2", "1e-05", "-1.25"}) {
    const RoutingPolicy p = policy_of(std::string("capacity.factor=") + value);
    EXPECT_EQ(policy_of(policy_to_text(p)), p) << value;
  }
  const RoutingPolicy p = policy_of(
      "capacity.max_score_drop=0.15 capacity.min_capacity=4294967295 capacity.absolute=64 "
      "capacity.group_size=2048 capacity.alignment=8 capacity.prefill_factor=0.3 "
      "capacity.decode_factor=1.7");
  EXPECT_EQ(policy_of(policy_to_text(p)), p);
  EXPECT_EQ(p.capacity.max_score_drop, 0.15);
  EXPECT_EQ(p.capacity.min_capacity, 4294967295U);
}

TEST(RoutingPolicy, UnknownKeysNameTheNearestOne) {
  EXPECT_EQ(set_error("capacity.fator", "1"),
            "p.toml:3:1: policy.capacity.fator: unknown key; did you mean \"factor\"?");
  EXPECT_EQ(set_error("capcity.rule", "share"),
            "p.toml:3:1: policy.capcity.rule: unknown key; did you mean \"capacity.rule\"?");
  EXPECT_EQ(set_error("weights.zzzzzzzz", "1"),
            "p.toml:3:1: policy.weights.zzzzzzzz: unknown key; known: renorm");
  // A policy of a later pipeline step is refused, not ignored.
  EXPECT_NE(set_error("temperature", "1.5").find("policy.temperature: unknown key"),
            std::string::npos);
}

TEST(RoutingPolicy, WrongValuesSayWhatIsLegal) {
  EXPECT_EQ(set_error("capacity.rule", "shar"),
            "p.toml:3:1: policy.capacity.rule = \"shar\": unknown value; did you mean \"share\"?");
  EXPECT_EQ(set_error("capacity.factor", "1,25"),
            "p.toml:3:1: policy.capacity.factor = \"1,25\" is not a finite number");
  EXPECT_EQ(set_error("capacity.factor", "nan"),
            "p.toml:3:1: policy.capacity.factor = \"nan\" is not a finite number");
  EXPECT_EQ(set_error("semantic.file", "a b.safetensors"),
            "p.toml:3:1: policy.semantic.file = \"a b.safetensors\" is not the name of a file; "
            "without spaces");
  EXPECT_EQ(
      set_error("semantic.hash", "12"),
      "p.toml:3:1: policy.semantic.hash = \"12\" is neither any nor 16 lower-case hex digits");
  RoutingPolicy named;
  set_policy_field(named, "semantic.file", "some/folder/w.safetensors", "test");
  EXPECT_EQ(get_policy_field(named, "semantic.file"), "w.safetensors");  // no folder in a trace
  EXPECT_EQ(set_error("capacity.absolute", "-1"),
            "p.toml:3:1: policy.capacity.absolute = \"-1\" is not a whole number in "
            "0…4294967295");
  EXPECT_EQ(set_error("capacity.max_score_drop", ""),
            "p.toml:3:1: policy.capacity.max_score_drop = \"\" is not a finite number");
}

TEST(RoutingPolicy, OutOfRangeValuesAndOptionsWithoutEffectAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"capacity.rule=share capacity.factor=0", "policy.capacity.factor = 0. Violated: factor > 0"},
      {"capacity.rule=share capacity.factor=-1",
       "policy.capacity.factor = -1. Violated: factor > 0"},
      {"capacity.rule=share capacity.factor=1e-10",
       "policy.capacity.factor = 1e-10. Violated: factor >= 1e-9"},
      {"capacity.rule=share capacity.factor=1e7",
       "policy.capacity.factor = 10000000. Violated: |factor| <= 1e6"},
      {"capacity.rule=megablocks capacity.factor=-1",
       "policy.capacity.factor = -1. Violated: factor >= 0"},
      {"capacity.factor=1.25",
       "policy.capacity.factor = 1.25. Violated: factor = 1 with rule = none, which does not use "
       "it"},
      {"capacity.rule=share capacity.dynamic=log2 capacity.factor=1.25",
       "policy.capacity.factor = 1.25. Violated: factor = 1 with dynamic = log2 (modes never "
       "multiply)"},
      {"capacity.rule=mesh capacity.dynamic=phase",
       "policy.capacity.dynamic = phase. Violated: dynamic = fixed with rule = mesh; share, "
       "batch_tokens and batch_seqs can be dynamic"},
      {"capacity.rule=share capacity.decode_factor=2",
       "policy.capacity.decode_factor = 2. Violated: 1.25 unless dynamic = phase"},
      {"capacity.rule=share capacity.dynamic=phase capacity.prefill_factor=0",
       "policy.capacity.prefill_factor = 0. Violated: 1e-9 <= factor <= 1e6"},
      {"capacity.rule=share capacity.absolute=3",
       "policy.capacity.absolute = 3. Violated: absolute = 0 with rule = share; capacity.rule = "
       "\"absolute\" uses it"},
      {"capacity.min_capacity=4",
       "policy.capacity.min_capacity = 4. Violated: min_capacity = auto with rule = none"},
      {"capacity.scope=rank",
       "policy.capacity.scope = rank. Violated: scope = auto with rule = none"},
      {"capacity.rule=share capacity.group_size=64",
       "policy.capacity.group_size = 64. Violated: group_size = 1024 unless scope = group"},
      {"capacity.rule=mesh capacity.group_size=0",
       "policy.capacity.group_size = 0. Violated: group_size >= 1"},
      {"capacity.rule=share capacity.alignment=0",
       "policy.capacity.alignment = 0. Violated: alignment >= 1"},
      {"capacity.alignment=8",
       "policy.capacity.alignment = 8. Violated: alignment = 1 with rule = none"},
      {"capacity.order=prob",
       "policy.capacity.order = prob. Violated: a capacity rule with it; with rule = none no "
       "expert is ever full"},
      {"capacity.mode=rounds",
       "policy.capacity.mode = rounds. Violated: a capacity rule with it; with rule = none no "
       "expert is ever full"},
      {"capacity.reroute=none",
       "policy.capacity.reroute = none. Violated: a capacity rule with it; with rule = none no "
       "expert is ever full"},
      {"capacity.exhausted=queue",
       "policy.capacity.exhausted = queue. Violated: a capacity rule with it; with rule = none no "
       "expert is ever full"},
      {"capacity.queue=defer pinned.requests=named",
       "policy.capacity.queue = defer. Violated: a capacity rule with it; with rule = none no "
       "expert is ever full"},
      {"capacity.max_score_drop=0.5",
       "policy.capacity.max_score_drop = 0.5. Violated: a capacity rule with it; with rule = none "
       "no expert is ever full"},
      {"capacity.rule=share capacity.order=prob capacity.mode=sequential",
       "policy.capacity.mode = sequential. Violated: mode = rounds with order = prob; sequential "
       "takes tokens by position"},
      {"capacity.rule=share capacity.queue=defer",
       "policy.capacity.queue = defer. Violated: queue = wave unless exhausted = queue"},
      {"capacity.rule=mesh capacity.exhausted=queue capacity.queue=defer",
       "policy.capacity.queue = defer. Violated: queue = wave with scope = group; a group of "
       "tokens has no next step"},
      {"capacity.rule=megatron capacity.exhausted=queue",
       "policy.capacity.min_capacity = auto. Violated: min_capacity >= 1 with exhausted = queue; "
       "an expert of capacity 0 would never empty its queue"},
      {"capacity.rule=absolute capacity.exhausted=queue",
       "policy.capacity.absolute = 0. Violated: absolute >= 1 with exhausted = queue"},
      {"capacity.rule=share capacity.max_score_drop=1.5",
       "policy.capacity.max_score_drop = 1.5. Violated: 0 <= max_score_drop <= 1"},
      {"capacity.rule=share capacity.max_score_drop=0.2 capacity.reroute=none",
       "policy.capacity.max_score_drop = 0.2. Violated: max_score_drop = off with reroute = none"}};
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(check(text), std::string("p.toml:3: ") + message) << text;
  }
  EXPECT_EQ(check("capacity.rule=fairseq_train", 8, 4),
            "p.toml:3: policy.capacity.rule = fairseq_train. Violated: top_k = 2 (it is 4); "
            "fairseq's rule is written for its top-2 gate");
  EXPECT_EQ(check("", 8, 9), "p.toml:3: top_k = 9. Violated: 1 <= top_k <= experts = 8");
}

TEST(RoutingPolicy, AutoResolvesToTheRulesOwnScopeModeAndMinimum) {
  const auto c = [](const char* text) { return policy_of(text).capacity; };
  EXPECT_EQ(resolved_mode(c("")), OverflowMode::kSequential);
  EXPECT_EQ(resolved_mode(c("capacity.order=prob")), OverflowMode::kRounds);
  EXPECT_EQ(resolved_mode(c("capacity.mode=rounds")), OverflowMode::kRounds);
  EXPECT_EQ(resolved_scope(c("capacity.rule=share")), CapacityScope::kGlobal);
  EXPECT_EQ(resolved_scope(c("capacity.rule=mesh")), CapacityScope::kGroup);
  EXPECT_EQ(resolved_scope(c("capacity.rule=deepspeed")), CapacityScope::kRank);
  EXPECT_EQ(resolved_scope(c("capacity.rule=megablocks")), CapacityScope::kGlobal);
  EXPECT_EQ(resolved_scope(c("capacity.rule=mesh capacity.scope=global")), CapacityScope::kGlobal);
  EXPECT_EQ(resolved_min_capacity(c("capacity.rule=deepspeed")), 4U);
  EXPECT_EQ(resolved_min_capacity(c("capacity.rule=deepspeed capacity.min_capacity=8")), 8U);
}

TEST(RoutingPolicy, StepsBeforeCapacityAreRefusedOutOfRangeOrWithoutEffect) {
  const std::pair<const char*, const char*> cases[] = {
      {"step_time=1", "policy.step_time = 1. Violated: 0 unless a policy needs a clock"},
      {"condition.clamp=-1", "policy.condition.clamp = -1. Violated: 0 <= value <= 1e6"},
      {"noise.std=0.1",
       "policy.noise.std = 0.1. Violated: 0.05 unless noise.mode is fixed or adaptive"},
      {"noise.mode=fixed noise.std=0", "policy.noise.std = 0. Violated: 0 < value <= 1e6"},
      {"noise.mode=adaptive noise.std=0.3",
       "policy.noise.std = 0.3. Violated: std <= 0.2 with mode = adaptive; it grows to 0.2 and "
       "stops "
       "there"},
      {"condition.adapter_hash=0123456789abcdef",
       "policy.condition.adapter_hash = 0123456789abcdef. Violated: any unless there is a "
       "condition.adapter"},
      {"noise.jitter=1", "policy.noise.jitter = 1. Violated: 0 <= jitter < 1"},
      {"semantic.mode=mlp",
       "policy.semantic.file = off. Violated: a file of weights with semantic.mode = mlp"},
      {"semantic.file=w.safetensors",
       "policy.semantic.file = w.safetensors. Violated: off unless semantic.mode = mlp"},
      {"semantic.mode=ema semantic.on=input",
       "policy.semantic.on = input. Violated: logits unless semantic.mode = mlp"},
      {"semantic.mode=ema semantic.alpha=0", "policy.semantic.alpha = 0. Violated: 0 < alpha <= 1"},
      {"semantic.mode=identity semantic.alpha=0.4",
       "policy.semantic.alpha = 0.4. Violated: 0.5 unless semantic.mode = ema"},
      {"temperature.value=2",
       "policy.temperature.value = 2. Violated: 1 unless temperature.place is before or after"},
      {"temperature.place=after",
       "policy.temperature.value = 1. Violated: value != 1 without a controller; T = 1 changes "
       "nothing"},
      {"temperature.place=after temperature.value=2 temperature.run=4",
       "policy.temperature.run = 4. Violated: 5 unless there is a temperature.controller"},
      {"temperature.controller=across",
       "policy.temperature.controller = across. Violated: off unless temperature.place is before "
       "or "
       "after"},
      {"gumbel.tau=2",
       "policy.gumbel.tau = 2. Violated: 1 unless gumbel.mode is tau_noise or "
       "tau_all"},
      {"load_aware.lambda=0.5",
       "policy.load_aware.lambda = 0.5. Violated: auto unless there is a load_aware.u"},
      {"load_aware.u=queue",
       "policy.load_aware.u = queue. Violated: a capacity rule with u = queue; u is q_e / C"},
      {"score.rule=linear weights.renorm=none",
       "policy.weights.renorm = none. Violated: renorm = final or first with score.rule = linear; "
       "linear weights are normalised logits"},
      {"window.gamma=0.5", "policy.window.gamma = 0.5. Violated: 0.8 unless window.beta > 0"},
      {"window.beta=0.1 window.gamma=0", "policy.window.gamma = 0. Violated: 0 < gamma <= 1"},
      {"groups.by=block groups.count=3",
       "policy.groups.count = 3. Violated: 2 <= count, and count divides experts = 8"},
      {"groups.by=block groups.count=8",
       "policy.groups.count = 8. Violated: groups of at least top_k = 2 experts (they have 1)"},
      {"groups.by=placement groups.k_in_group=all",
       "policy.groups.k_in_group = all. Violated: k unless groups.by = block"}};
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(check(text), std::string("p.toml:3: ") + message) << text;
  }
}

TEST(ExplainPolicy, ListsEveryStepBeforeCapacityInPipelineOrder) {
  EXPECT_EQ(
      explain_policy(
          gate_mixtral(8, 2),
          policy_of("step_time=1 condition.clamp=50 noise.mode=adaptive temperature.place=before "
                    "temperature.controller=sequence gumbel.mode=tau_all gumbel.tau=2 "
                    "load_aware.u=elastic bonus.lambda=0.05 window.beta=0.1 groups.by=block "
                    "groups.count=4 groups.k_in_group=all")),
      (std::vector<std::string>{
          " 1 z = gate(x), E = 8; NaN and +inf count as -inf", " 1 z = clamp(z, -50, 50)",
          " 2 z += N(0, 0.05), std + 0.01 (up to 0.2) after every 50 steps in which one expert "
          "took "
          "> 40 %",
          " 4 z = z / T, T = 1; 5 equal top-1 in a row within a sequence raise it to 1.5 from the "
          "next step, for 30 s",
          " 5 z = (z + G) / 2, G = -log(-log U) (tau_all)",
          " 6 z -= (0.3 + 0.5 min(1, log2(B) / 6)) u, u = dynamic / (capacity - static) of its GPU",
          " 7 p = softmax(z) over all E",
          " 8 sel += 0.05 if the expert ran for the sequence's previous token; weights never see "
          "it",
          " 8 sel += 0.1 h, h = share of the sequence's last 10 tokens that ran on the expert, "
          "token "
          "i back weighted 0.8^(i-1)",
          " 9 sel = -inf outside the best of 4 blocks of 2 experts by the sum of its 2 best p",
          "10 S = first 2 by sel; ties: lower expert id", "11 capacity: no limit (rule = none)",
          "12 w = p / sum p over the set that runs"}));
  const auto engine_side = explain_policy(
      gate_mixtral(8, 2), policy_of("condition.layer_norm=on condition.adapter=a.safetensors "
                                    "noise.jitter=0.01 semantic.mode=mlp "
                                    "semantic.file=w.safetensors semantic.on=input"));
  EXPECT_EQ(engine_side[0], " 1 x = (x - mean) / sqrt(var + 1e-5), for the gate only");
  EXPECT_EQ(engine_side[1], " 1 x *= U(0.99, 1.01), for the gate only");
  EXPECT_EQ(engine_side[3], " 1 z += B (A x), the adapter of a.safetensors");
  EXPECT_EQ(engine_side[4], " 3 z = W2 gelu(W1 x + b1) + b2, weights of w.safetensors");
  EXPECT_EQ(
      explain_policy(gate_mixtral(8, 2), policy_of("semantic.mode=ema semantic.alpha=0.25"))[1],
      " 3 z = 0.25 z + 0.75 z of the sequence's previous token (baseline EMA)");
  EXPECT_EQ(explain_policy(gate_mixtral(8, 2), policy_of("semantic.mode=identity"))[1],
            " 3 z = z (baseline identity)");
  const auto after = explain_policy(
      gate_gpt_oss(8, 2), policy_of("score.rule=linear temperature.place=after "
                                    "temperature.value=2 noise.mode=fixed noise.std=0.25"));
  EXPECT_EQ(after[1], " 2 z += N(0, 0.25)");
  EXPECT_EQ(after[2], " 7 p = z / T (linear)");
  EXPECT_EQ(after[3], " 7 T = 2");
  EXPECT_EQ(after.back(), "12 w = z / sum z if all z > 0, else softmax(z), over the set that runs");
}

TEST(ExplainPolicy, ListsTheActiveStepsInPipelineOrder) {
  EXPECT_EQ(explain_policy(gate_mixtral(8, 2), {}),
            (std::vector<std::string>{
                " 1 z = gate(x), E = 8; NaN and +inf count as -inf", " 7 p = softmax(z) over all E",
                "10 S = first 2 by sel; ties: lower expert id",
                "11 capacity: no limit (rule = none)", "12 w = p / sum p over the set that runs"}));
  EXPECT_EQ(
      explain_policy(gate_deepseek_v3(256, 8, 8, 4),
                     policy_of("capacity.rule=share capacity.factor=1.25 capacity.order=prob "
                               "capacity.exhausted=queue capacity.max_score_drop=0.25")),
      (std::vector<std::string>{
          " 1 z = gate(x), E = 256; NaN and +inf count as -inf", " 7 p = sigmoid(z)",
          " 8 sel = p + bias; weights never see the bias",
          " 9 sel = -inf outside the best 4 of 8 groups by the sum of their two best sel",
          "10 S = first 8 by sel; ties: lower expert id",
          "11 capacity: C = ceil(1.25 T k / E) (rule = share, min 1), scope global",
          "11 overflow: rounds, order prob; reroute next if sel >= 0.75 sel of the first choice; "
          "exhausted queue (wave)",
          "12 w = p / sum p over the set that runs, times 2.5"}));
}

}  // namespace
}  // namespace switchyard
