// SPDX-License-Identifier: Apache-2.0
// Delete the decisions of a recorded run, replay with its policy and seed, and get exactly them
// back.
#include "engine/trace/replay.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.hpp"
#include "engine/h5/container.hpp"
#include "tests/trace/sample_trace.hpp"

namespace switchyard {
namespace {
namespace fs = std::filesystem;
using testing_trace::SampleOptions;
using testing_trace::write_sample;

struct Case {
  const char* name;
  const char* policy;
  GateSpec gate;
  bool bias;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Replay : public ::testing::TestWithParam<Case> {};

TEST_P(Replay, GivesBackTheDecisionsOfTheRecordedRun) {
  const Case& c = GetParam();
  SampleOptions o;
  o.policy = policy_from_text(c.policy, "test");
  o.gate = c.gate;
  o.bias = c.bias;
  o.prompts = {12, 1, 9, 17, 3, 3, 2};
  o.decode_steps = 12;
  o.requests = true;
  const fs::path path = std::string(c.name) + ".h5";
  const RoutingTrace recorded = write_sample(path, o);

  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  for (const char* name : {"first", "chosen", "weights", "outcome"}) {
    ASSERT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0);
  }
  ASSERT_GE(H5Fclose(file), 0);
  h5::seal_file(path, h5::FileKind::kTrace, 1);

  RoutingTrace trace = read_trace(path);
  fs::remove(path);
  ASSERT_FALSE(trace.decisions_present);
  ASSERT_TRUE(trace.routing.first.empty());
  replay(trace, ReplayOptions::recorded(trace.header));
  EXPECT_TRUE(trace.decisions_present);
  EXPECT_EQ(trace.routing.first, recorded.routing.first);
  EXPECT_EQ(trace.routing.chosen, recorded.routing.chosen);
  EXPECT_EQ(trace.routing.weights, recorded.routing.weights);
  EXPECT_EQ(trace.routing.outcome, recorded.routing.outcome);
  EXPECT_EQ(trace.truncated_slots, recorded.truncated_slots);
  EXPECT_EQ(trace.header, recorded.header);
  // A policy that binds must have left its mark, or the test shows nothing.
  const auto count = [&](int outcome) {
    return std::count(recorded.routing.outcome.begin(), recorded.routing.outcome.end(), outcome);
  };
  EXPECT_EQ(count(2) + count(3) + count(4) > 0, o.policy.capacity.rule != CapacityRule::kNone);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, Replay,
    ::testing::Values(
        Case{"none", "", gate_mixtral(8, 2), false},
        Case{"sequential", "capacity.rule=share capacity.factor=1", gate_mixtral(8, 2), false},
        Case{"rounds", "capacity.rule=share capacity.factor=1 capacity.mode=rounds",
             gate_mixtral(16, 2), false},
        Case{"prob", "capacity.rule=share capacity.factor=1.25 capacity.order=prob",
             gate_qwen(16, 4, false), false},
        Case{"random", "capacity.rule=share capacity.factor=1 capacity.order=random",
             gate_mixtral(8, 2), false},
        Case{"drop", "capacity.rule=absolute capacity.absolute=2 capacity.reroute=none",
             gate_mixtral(8, 2), false},
        Case{"droptoken",
             "capacity.rule=absolute capacity.absolute=2 capacity.reroute=none "
             "capacity.exhausted=drop_token weights.renorm=first",
             gate_mixtral(8, 2), false},
        Case{"wave",
             "capacity.rule=absolute capacity.absolute=1 capacity.reroute=none "
             "capacity.exhausted=queue",
             gate_mixtral(8, 2), false},
        Case{"defer",
             "capacity.rule=absolute capacity.absolute=1 capacity.reroute=none "
             "capacity.exhausted=queue capacity.queue=defer",
             gate_mixtral(8, 2), false},
        Case{"phase", "capacity.rule=share capacity.dynamic=phase weights.renorm=none",
             gate_mixtral(8, 2), false},
        Case{"groups", "capacity.rule=share capacity.factor=1", gate_deepseek_v3(32, 4, 8, 4),
             true},
        Case{"fewcandidates", "capacity.rule=share capacity.factor=1", gate_qwen(128, 4, true),
             false},
        Case{"identity", "capacity.rule=share capacity.factor=1", gate_gpt_oss(32, 4), false},
        // Steps before 11, each with and without what it meets on its way.
        Case{"clamp", "condition.clamp=0.5", gate_mixtral(8, 2), false},
        Case{"noise", "noise.mode=fixed noise.std=0.3", gate_qwen(16, 4, false), false},
        Case{"noiseadaptive", "noise.mode=adaptive capacity.rule=share capacity.factor=1",
             gate_mixtral(8, 2), false},
        Case{"ema", "semantic.mode=ema semantic.alpha=0.3 bonus.lambda=0.1", gate_mixtral(16, 2),
             false},
        Case{"identitygate", "semantic.mode=identity", gate_mixtral(8, 2), false},
        Case{"temperaturebefore", "temperature.place=before temperature.value=1.7",
             gate_qwen(16, 4, false), false},
        Case{"controller",
             "step_time=0.5 temperature.place=after temperature.controller=sequence "
             "temperature.run=2 temperature.hold=1",
             gate_deepseek_v3(32, 4, 8, 4), true},
        Case{"across",
             "step_time=10 temperature.place=before temperature.controller=across "
             "temperature.run=2 capacity.rule=share capacity.factor=1",
             gate_mixtral(8, 2), false},
        Case{"gumbelnoise", "gumbel.mode=tau_noise gumbel.tau=0.7", gate_gpt_oss(32, 4), false},
        Case{"gumbelall",
             "gumbel.mode=tau_all gumbel.tau=2 capacity.rule=share capacity.factor=1 "
             "capacity.mode=rounds",
             gate_mixtral(8, 2), false},
        Case{"loadqueue",
             "load_aware.u=queue capacity.rule=absolute capacity.absolute=2 "
             "capacity.exhausted=queue capacity.queue=defer",
             gate_mixtral(8, 2), false},
        Case{"linear", "score.rule=linear", gate_qwen(16, 4, true), false},
        Case{"bonus", "bonus.lambda=0.2", gate_deepseek_v3(32, 4, 8, 4), true},
        Case{"bonusrounds",
             "bonus.lambda=0.2 capacity.rule=share capacity.factor=1 capacity.order=prob",
             gate_mixtral(8, 2), false},
        Case{"window",
             "window.beta=0.2 capacity.rule=share capacity.factor=1 "
             "capacity.exhausted=drop_token capacity.reroute=none",
             gate_mixtral(8, 2), false},
        Case{"blocks", "groups.by=block groups.count=4", gate_mixtral(16, 2), false},
        Case{"blocksall",
             "groups.by=block groups.count=4 groups.k_in_group=all capacity.rule=absolute "
             "capacity.absolute=3",
             gate_mixtral(16, 2), false},
        // Step 10. Sequence 2 names expert 5; every prompt holds "prompt 1" to "prompt 6".
        Case{"softbalance",
             "soft_balance.limit=2 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
             "soft_balance.batch_limit=5",
             gate_mixtral(8, 2), false},
        Case{"softbalancechoose",
             "soft_balance.limit=3 soft_balance.low_memory=0 soft_balance.k3_memory=0 "
             "soft_balance.k3=choose soft_balance.batch_limit=1 capacity.rule=share "
             "capacity.factor=1",
             gate_qwen(16, 2, true), false},
        Case{"softkeyword", "soft.experts=4 soft.keywords=É%203|T%20%C3%A9%201", gate_mixtral(8, 2),
             false},
        Case{"softall",
             "soft.experts=3 soft.requests=all soft.renorm=true capacity.rule=share "
             "capacity.factor=1",
             gate_deepseek_v3(32, 2, 8, 4), true},
        Case{"roundrobin", "set.rule=round_robin", gate_mixtral(8, 2), false},
        Case{"roundrobincapacity",
             "set.rule=round_robin capacity.rule=absolute capacity.absolute=3 "
             "capacity.exhausted=drop_token",
             gate_gpt_oss(32, 4), false},
        Case{"batchlevel", "set.rule=batch", gate_mixtral(8, 2), false},
        Case{"pinned", "pinned.requests=named", gate_mixtral(8, 2), false},
        Case{"pinnedcapacity",
             "pinned.requests=all pinned.expert=1 capacity.rule=absolute capacity.absolute=3",
             gate_qwen(16, 4, true), false},
        Case{"roundrobinfewcandidates", "set.rule=round_robin", gate_qwen(128, 4, true), false},
        Case{"everything",
             "step_time=1 condition.clamp=2 noise.mode=fixed temperature.place=before "
             "temperature.controller=across temperature.run=3 gumbel.mode=tau_noise "
             "load_aware.u=queue bonus.lambda=0.05 window.beta=0.1 groups.by=block groups.count=2 "
             "capacity.rule=share capacity.factor=1.25 weights.renorm=first",
             gate_qwen(16, 4, true), false}),
    [](const ::testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

TEST(Replay, UnderTheSemanticGateTakesTheSameWeightsAndGivesBackTheDecisions) {
  PolicyWeights weights;
  weights.layers.resize(3);
  for (std::uint32_t l = 0; l < 3; ++l) {
    SemanticWeights& w = weights.layers[l].semantic;
    w = {8,
         5,
         8,
         std::vector<float>(40),
         std::vector<float>(5, 0.1F),
         std::vector<float>(40),
         std::vector<float>(8, -0.2F)};
    for (std::uint32_t i = 0; i < 40; ++i) {
      w.w1[i] = static_cast<float>(random_normal(3, random_purpose("w1"), {l, 0, 0, i}));
      w.w2[i] = static_cast<float>(random_normal(3, random_purpose("w2"), {l, 0, 0, i}));
    }
  }
  SampleOptions o;
  o.policy = policy_from_text(
      "semantic.mode=mlp semantic.file=w.safetensors capacity.rule=share capacity.factor=1",
      "test");
  o.weights = &weights;
  o.prompts = {12, 9, 17};
  const RoutingTrace recorded = write_sample("semantic.h5", o);
  fs::remove("semantic.h5");
  RoutingTrace trace = recorded;
  ReplayOptions options = ReplayOptions::recorded(trace.header);
  EXPECT_THROW(replay(trace, options), InputError);  // without the weights
  options.weights = &weights;
  replay(trace, options);
  EXPECT_EQ(trace.routing, recorded.routing);
  // The weights matter.
  options.policy.semantic = {};
  replay(trace, options);
  EXPECT_NE(trace.routing.first, recorded.routing.first);
}

// A table of the recorded run's own prompts: every request hits and gets its own mean choice.
TEST(Replay, UnderARoutingTableTakesTheSameTableAndGivesBackTheDecisions) {
  RoutingTable table({TablePrefix::kTokens, 64, 3, 8, 2, "sample", "0123456789abcdef"});
  const std::vector<std::uint32_t> first{0, 1, 2};
  (void)table.add(table_key(TablePrefix::kTokens, first, ""),
                  std::vector<std::uint16_t>{0, 1, 2, 3, 7, 6},
                  std::vector<float>{.5F, .25F, .5F, .25F, .75F, .125F});
  SampleOptions o;
  o.policy = policy_from_text("table.file=t.table capacity.rule=share capacity.factor=1", "test");
  o.table = &table;
  RoutingTrace trace = write_sample("table.h5", o);
  fs::remove("table.h5");
  const TraceRouting recorded = trace.routing;
  EXPECT_EQ(recorded.first[trace.slot_at(0, 2, 0)], 7);
  EXPECT_EQ(recorded.first[trace.slot_at(0, 1, 1)], 3);
  ReplayOptions options = ReplayOptions::recorded(trace.header);
  options.table = &table;
  replay(trace, options);
  EXPECT_TRUE(trace.routing == recorded);
  // The other prompts are not in the table.
  const std::vector<RequestInfo> requests = trace_requests(trace, o.policy, &table, "test");
  EXPECT_EQ(requests[0].table_entry, 0U);
  EXPECT_EQ(requests[1].table_entry, kNoTableEntry);
  options.table = nullptr;
  EXPECT_THROW(Replayer(trace, options), InputError);
}

TEST(ReplayOfAnotherPolicy, NamesWhatTheTraceDoesNotHold) {
  SampleOptions o;
  const RoutingTrace trace = write_sample("bare.h5", o);
  fs::remove("bare.h5");
  const auto refusal = [&](const char* text) -> std::string {
    ReplayOptions options;
    options.policy = policy_from_text(text, "test");
    try {
      const Replayer replayer(trace, options);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal("soft.experts=4 soft.keywords=poem").find("prompts' texts"), std::string::npos);
  EXPECT_NE(refusal("table.file=t").find("policy.table.file = t needs the table"),
            std::string::npos);
  EXPECT_NE(refusal("two_tier.first=int4 two_tier.scorer=s").find("the router's input"),
            std::string::npos);
  EXPECT_NE(refusal("decode_rebalance.level=0.85").find("--signals"), std::string::npos);
  EXPECT_EQ(refusal("soft.experts=4 soft.requests=all"), "accepted");
}

TEST(ReplayOfAnotherPolicy, ChangesWhatRunsAndConservesAssignments) {
  SampleOptions o;
  o.prompts = {12, 9, 17};
  RoutingTrace trace = write_sample("other.h5", o);
  fs::remove("other.h5");
  const std::vector<std::uint16_t> first = trace.routing.first;
  const std::vector<std::uint16_t> chosen = trace.routing.chosen;
  ReplayOptions options;
  options.policy = policy_from_text("capacity.rule=share capacity.factor=1", "test");
  options.seed = 3;
  replay(trace, options);
  EXPECT_EQ(trace.routing.first, first);  // Candidates are those of the recorded run.
  EXPECT_NE(trace.routing.chosen, chosen);
  EXPECT_EQ(trace.header.policy, options.policy);
  EXPECT_EQ(trace.header.seed, 3U);
  Replayer replayer(trace, options);
  std::vector<LayerDecision> decisions;
  while (replayer.step() < trace.steps()) {
    const auto [begin, end] = trace.step_rows(replayer.step());
    replayer.next_step(decisions);
    for (const LayerDecision& d : decisions) {
      EXPECT_EQ(d.assignments, (end - begin) * 2);
      EXPECT_EQ(d.kept + d.rerouted + d.queued_slots + d.dropped, d.assignments);
    }
  }
}

TEST(ReplayWithRanks, CountsCapacityPerSourceRank) {
  SampleOptions o;
  o.prompts = {16, 16};
  const RoutingTrace trace = write_sample("ranks.h5", o);
  fs::remove("ranks.h5");
  ReplayOptions options;
  options.policy =
      policy_from_text("capacity.rule=share capacity.factor=1 capacity.scope=rank", "test");
  const std::vector<std::uint16_t> ranks = {0, 1};
  options.rank_of_sequence = ranks;
  options.ranks = 2;
  std::vector<LayerDecision> decisions;
  Replayer(trace, options).next_step(decisions);
  // 16 tokens of a rank, k = 2, E = 8: C = 4 per rank, so an expert takes at most 8.
  EXPECT_EQ(decisions[0].capacity, 4U);
  EXPECT_LE(*std::max_element(decisions[0].load.begin(), decisions[0].load.end()), 8U);
}

TEST(ReplayOptions, ThatDoNotFitAreRefused) {
  SampleOptions o;
  const RoutingTrace trace = write_sample("bad.h5", o);
  fs::remove("bad.h5");
  ReplayOptions options;
  options.policy.capacity.rule = CapacityRule::kShare;
  options.policy.capacity.factor = -1;
  EXPECT_THROW(Replayer(trace, options), InputError);
}

}  // namespace
}  // namespace switchyard
