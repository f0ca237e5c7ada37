// SPDX-License-Identifier: Apache-2.0
// Properties of the step loop: conservation, limits, monotony, and the exact combinatorics of
// synthetic routing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/trace/trace_parts.hpp"
#include "sim/cost/cost.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/memory/ledger.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace {

using switchyard::InputError;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace sim = switchyard::sim;
namespace run = switchyard::run;

constexpr const char* kLognormal = R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })";
constexpr const char* kUniform = R"(workload.routing={ synthetic = "uniform" })";

MemoryRun synthetic_run(std::vector<std::string> settings) {
  settings.insert(settings.begin(), kLognormal);
  return run_in_memory(worked_scenario(std::move(settings)), nullptr);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST(Loop, WithoutExpertParallelismNothingTravels) {
  const MemoryRun r = synthetic_run({"workload.batch=32", "parallel.ep=1"});
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.totals.bytes_sent, 0U);
  EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 0);
  EXPECT_EQ(r.data.steps[0].assignments, 32U * 2 * 2);
}

TEST(Loop, HalfThePayloadHalvesTheTimeAboveTheLatency) {
  const std::vector<std::string> base{"workload.batch=256"};
  auto half = base;
  half.push_back("network.payload={ dispatch = \"fp8\", combine = \"bf16\", scale_block = 0 }");
  const MemoryRun a = synthetic_run(base);
  const MemoryRun b = synthetic_run(half);
  const std::int64_t alpha = 2'000'000;
  EXPECT_NEAR(static_cast<double>(a.data.layer_steps.dispatch_ps[0] - alpha),
              2.0 * static_cast<double>(b.data.layer_steps.dispatch_ps[0] - alpha), 2.0);
  EXPECT_EQ(a.data.layer_steps.combine_ps[0], b.data.layer_steps.combine_ps[0]);
}

TEST(Loop, CapacityFactorOneAgainstTwo) {
  run::Totals totals[2];
  const char* factors[2] = {"1.0", "2.0"};
  for (int i = 0; i < 2; ++i) {
    const MemoryRun r = synthetic_run(
        {"workload.batch=64", "workload.steps=3",
         std::string("policy.capacity={ rule = \"share\", factor = ") + factors[i] + " }"});
    EXPECT_TRUE(r.result.violations.empty());
    totals[i] = r.data.totals;
    EXPECT_EQ(totals[i].assignments, 64U * 2 * 2 * 3);
    EXPECT_EQ(totals[i].assignments,
              totals[i].kept + totals[i].rerouted + totals[i].queued + totals[i].dropped);
  }
  EXPECT_GT(totals[0].overflow, totals[1].overflow);
  EXPECT_GT(totals[0].rerouted, totals[1].rerouted);
  EXPECT_GT(totals[1].kept, totals[0].kept);
}

TEST(Loop, QueuedAssignmentsRunInFurtherWaves) {
  const auto trace =
      decode_trace({{{0, 1}, {0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}}, 8);
  const std::string capacity =
      "policy.capacity={ rule = \"absolute\", absolute = 2, reroute = \"none\", exhausted = "
      "\"queue\", queue = \"wave\" }";
  const MemoryRun free = run_in_memory(worked_scenario(), &trace);
  const MemoryRun waves = run_in_memory(worked_scenario({capacity}), &trace);
  EXPECT_TRUE(waves.result.violations.empty());
  EXPECT_EQ(waves.data.totals.queued, 4U);
  EXPECT_EQ(waves.data.totals.dropped, 0U);
  // One wave of 4 rows against two waves of 2: the weights are read and the kernels launched twice.
  EXPECT_EQ(free.data.layer_steps.expert_ps[0], 2'000'000 + 12'582'912 + 4 * 12'288);
  EXPECT_EQ(waves.data.layer_steps.expert_ps[0], 2 * (2'000'000 + 12'582'912 + 2 * 12'288));
  EXPECT_EQ(waves.data.layer_steps.expert_ps[1], free.data.layer_steps.expert_ps[1]);
}

// engines.md 5, row 23 (DeepEP#427, 2304 tokens): nothing is lost when all tokens want one expert.
TEST(Loop, AllTokensToOneExpertAreCountedAndTimed) {
  std::int64_t dispatch[2];
  for (const std::uint32_t tokens : {2304U, 1152U}) {
    const std::vector<std::vector<std::uint16_t>> same(tokens, {0, 1});
    const auto trace = decode_trace({same, same}, 8);
    const std::string batch = "workload.batch=" + std::to_string(tokens);
    const MemoryRun free = run_in_memory(worked_scenario({batch}), &trace);
    EXPECT_TRUE(free.result.violations.empty());
    EXPECT_EQ(free.data.totals.kept, tokens * 2U * 2);
    dispatch[tokens == 1152 ? 1 : 0] = free.data.layer_steps.dispatch_ps[0];
    const MemoryRun tight = run_in_memory(
        worked_scenario({batch,
                         "policy.capacity={ rule = \"absolute\", absolute = 100, reroute = "
                         "\"none\", exhausted = \"drop_token\" }"}),
        &trace);
    EXPECT_TRUE(tight.result.violations.empty());
    EXPECT_EQ(tight.data.totals.kept, 100U * 2 * 2);
    EXPECT_EQ(tight.data.totals.kept + tight.data.totals.dropped, tokens * 2U * 2);
  }
  // The GPU that holds the expert receives from the seven others: twice the rows, twice the time.
  const std::int64_t alpha = 2'000'000;
  EXPECT_EQ(dispatch[0] - alpha, 2 * (dispatch[1] - alpha));
}

TEST(Loop, TheHubScattersAndGathers) {
  const MemoryRun r = synthetic_run(
      {"workload.batch=16", "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  EXPECT_TRUE(r.result.violations.empty());
  const auto& pairs = r.data.totals.pair_bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      if (i != 0 && j != 0) {
        EXPECT_EQ(pairs[i * 8 + j], 0U) << i << "→" << j;
      }
    }
  }
  EXPECT_GT(r.data.totals.bytes_sent, 0U);
}

TEST(Loop, FewerCopiesPerRankThanPerExpert) {
  const std::vector<std::string> common{"workload.batch=64", "parallel.ep=2"};
  auto per_expert = common;
  per_expert.push_back("network.dispatch=\"per_expert\"");
  const MemoryRun a = synthetic_run(per_expert);
  const MemoryRun b = synthetic_run(common);
  EXPECT_GT(a.data.totals.bytes_sent, b.data.totals.bytes_sent);
}

TEST(Loop, PrefillMovesTheChunk) {
  const MemoryRun r = synthetic_run({"workload.kind=\"prefill\"", "workload.batch=8",
                                     "workload.tokens=128", "workload.context=0"});
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.steps[0].tokens, 1024U);
  EXPECT_EQ(r.data.steps[0].assignments, 1024U * 2 * 2);
}

TEST(Loop, SaysThatASequenceIsLongerThanTheModelIsMadeFor) {
  const auto notes = [](std::vector<std::string> settings) {
    const MemoryRun r = synthetic_run(std::move(settings));
    return std::count_if(r.result.notes.begin(), r.result.notes.end(), [](const std::string& n) {
      return n.starts_with("the longest sequence has 4097 tokens, ");
    });
  };
  EXPECT_EQ(notes({"workload.context=4094", "workload.steps=3"}), 1);
  EXPECT_EQ(notes({"workload.context=4094", "workload.steps=2"}), 0);
  const std::string serve =
      "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { per_second "
      "= "
      "4.0, requests = 1 }, lengths = { prompt = 4095, output = ";
  EXPECT_EQ(notes({serve + "2 } }"}), 1);
  EXPECT_EQ(notes({serve + "1 } }"}), 0);
}

TEST(Loop, OutOfMemoryIsAResult) {
  const MemoryRun r = synthetic_run({"workload.batch=64", "workload.context=10000000"});
  EXPECT_TRUE(r.result.violations.empty());
  std::size_t events = 0;
  for (const run::Event& e : r.data.events) {
    events += e.kind == run::EventKind::kOutOfMemory ? 1 : 0;
  }
  EXPECT_EQ(events, 8U);
  ASSERT_FALSE(r.result.notes.empty());
  EXPECT_NE(r.result.notes.back().find("OUT OF MEMORY on gpu0"), std::string::npos);
}

TEST(Loop, TraceAndModelMustAgreeUnlessCycled) {
  const auto trace = decode_trace({{{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, 8);
  const std::string error = message_of([&] { run_in_memory(worked_scenario(), &trace); });
  EXPECT_NE(error.find("the trace has 1 MoE layers, the model 2"), std::string::npos) << error;
  EXPECT_NE(error.find("cycle"), std::string::npos) << error;
  const MemoryRun r = run_in_memory(
      worked_scenario({"workload.routing={ trace = \"made.h5\", layers = \"cycle\" }"}), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.meta.routing_source.find("routing: cycled 1 → 2 from made.h5"), 0U)
      << r.data.meta.routing_source;
  const auto other = decode_trace({{{0, 1}}, {{2, 3}}}, 16);
  EXPECT_NE(message_of([&] {
              run_in_memory(worked_scenario(), &other);
            }).find("the trace has E = 16, k = 2; the model has E = 8, k = 2"),
            std::string::npos);
}

TEST(Loop, SaysWhenTheTraceIsShorterThanTheRun) {
  const auto trace =
      decode_trace({{{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, 8);
  EXPECT_TRUE(run_in_memory(worked_scenario(), &trace).result.notes.size() == 1)
      << "only the policy note";
  const MemoryRun r = run_in_memory(worked_scenario({"workload.batch=8"}), &trace);
  EXPECT_NE(r.result.notes.at(0).find("more than once"), std::string::npos);
}

TEST(Loop, ATraceReadByPartsGivesTheSameRun) {
  std::vector<std::vector<std::vector<std::uint16_t>>> choices(2);
  for (std::uint32_t l = 0; l < 2; ++l) {
    for (std::uint32_t r = 0; r < 64; ++r) {
      const std::uint32_t a = (r * r + 3 * l) % 8;
      choices[l].push_back(
          {static_cast<std::uint16_t>(a), static_cast<std::uint16_t>((a + 1 + r % 3) % 8)});
    }
  }
  switchyard::write_trace("parts.h5", decode_trace(choices, 8));
  const auto whole = switchyard::read_trace("parts.h5");
  const auto parts = switchyard::open_trace("parts.h5", true, 2000);
  ASSERT_NE(parts.parts, nullptr);
  ASSERT_TRUE(parts.routing.candidates.empty());
  const auto s = worked_scenario({"workload.batch=64", "workload.steps=3"});
  const MemoryRun a = run_in_memory(s, &whole);
  const MemoryRun b = run_in_memory(s, &parts);
  EXPECT_TRUE(b.result.violations.empty());
  EXPECT_EQ(a.data.experts.kept, b.data.experts.kept);
  EXPECT_EQ(a.data.layer_steps.expert_ps, b.data.layer_steps.expert_ps);
  EXPECT_EQ(a.data.totals.pair_bytes, b.data.totals.pair_bytes);
  EXPECT_GT(parts.parts->reads(), 4U);
  EXPECT_LE(parts.parts->held_bytes(), 2000U);
}

TEST(Loop, RunsAreTheSameBytesInAnotherFolder) {
  namespace fs = std::filesystem;
  const auto s = worked_scenario({kLognormal, "workload.batch=64", "workload.steps=5"});
  for (const char* folder : {"here", "there/deeper"}) {
    fs::create_directories(folder);
    const auto sink = sim::file_sink(fs::path(folder) / "r.h5");
    EXPECT_TRUE(sim::simulate(s, nullptr, "", *sink).violations.empty());
  }
  EXPECT_TRUE(switchyard::read_file("here/r.h5") == switchyard::read_file("there/deeper/r.h5"));
}

TEST(Loop, RoundRobinPlacementRelabelsTheGpusOnly) {
  // E = 8 on 4 ranks: contiguous puts {0,1} together, round robin {0,4}. The work is the same.
  const MemoryRun a = synthetic_run({"workload.batch=32", "parallel.ep=4"});
  const MemoryRun b =
      synthetic_run({"workload.batch=32", "parallel.ep=4", "parallel.placement=\"round_robin\""});
  EXPECT_EQ(a.data.totals.expert_kept, b.data.totals.expert_kept);
  EXPECT_NE(a.data.inventory.placement, b.data.inventory.placement);
}

TEST(Loop, CapacityPerRankIsNotACapacityOfTheExpert) {
  // Every token is on a rank of its own and C = 1 per rank: nothing overflows, one pass of 4 rows.
  const auto trace =
      decode_trace({{{0, 1}, {0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}}, 8);
  const MemoryRun r = run_in_memory(
      worked_scenario({"policy.capacity={ rule = \"absolute\", absolute = 1, scope = \"rank\", "
                       "reroute = \"none\", exhausted = \"queue\" }"}),
      &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.totals.queued, 0U);
  EXPECT_EQ(r.data.layer_steps.expert_ps[0], 2'000'000 + 12'582'912 + 4 * 12'288);
}

TEST(Loop, EachReplicaGroupFillsItsOwnExperts) {
  // ep = 1: 8 copies of every expert. 16 tokens, 2 on each GPU, all to experts 0 and 1; C = 1 per
  // group, so the second token of each GPU waits for a second pass.
  const std::vector<std::vector<std::uint16_t>> all(16, {0, 1});
  const auto trace = decode_trace({all, all}, 8);
  const std::vector<std::string> base{"workload.batch=16", "parallel.ep=1"};
  auto queue = base;
  queue.push_back(
      "policy.capacity={ rule = \"absolute\", absolute = 1, reroute = \"none\", exhausted = "
      "\"queue\" }");
  const MemoryRun free = run_in_memory(worked_scenario(base), &trace);
  const MemoryRun r = run_in_memory(worked_scenario(queue), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.totals.bytes_sent, 0U);
  EXPECT_EQ(r.data.totals.queued, 16U * 2);
  EXPECT_EQ(free.data.layer_steps.expert_ps[0], 2'000'000 + 2 * 12'582'912 + 4 * 12'288);
  EXPECT_EQ(r.data.layer_steps.expert_ps[0], 2 * (2'000'000 + 2 * 12'582'912 + 2 * 12'288));
  EXPECT_EQ(r.data.experts.capacity[0], 8U * 2);  // 8 copies of C = 1, summed over 2 layers
}

TEST(Loop, ABatchIsThatOfTheWholeStepInEveryReplicaGroup) {
  // ep = 2: 4 groups of 200 sequences. C = ceil(CF 200 k / E) = ceil(50 CF), CF = 1 + 0.01 log2 800
  // = 1.0964: 55. A group's own 200 sequences would give 1.0764 and 54.
  const std::vector<std::vector<std::uint16_t>> all(800, {0, 1});
  const auto trace = decode_trace({all, all}, 8);
  const MemoryRun r =
      run_in_memory(worked_scenario({"workload.batch=800", "parallel.ep=2",
                                     "policy.capacity={ rule = \"share\", dynamic = \"log2\" }"}),
                    &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.experts.capacity[0], 4U * 55 * 2);  // 4 groups, 2 layers
}

TEST(Loop, ReplicaGroupsDoNotWaitForEachOther) {
  // ep = 2: sequences 0…8 put two tokens on GPU 0 and one on every other. The group of GPUs 0 and 1
  // is the slow one; the time of the others must be what it is without the second token.
  const std::vector<std::vector<std::uint16_t>> eight(8, {0, 7});
  const std::vector<std::vector<std::uint16_t>> nine(9, {0, 7});
  const auto a = decode_trace({eight, eight}, 8), b = decode_trace({nine, nine}, 8);
  const MemoryRun even = run_in_memory(worked_scenario({"workload.batch=8", "parallel.ep=2"}), &a);
  const MemoryRun odd = run_in_memory(worked_scenario({"workload.batch=9", "parallel.ep=2"}), &b);
  EXPECT_TRUE(odd.result.violations.empty());
  const auto busy = [](const MemoryRun& r, std::size_t gpu) {
    std::int64_t ps = 0;
    for (std::size_t p = 0; p + 1 < run::kPhases; ++p) {  // all but wait
      ps += r.data.gpus.phase_ps[gpu * run::kPhases + p];
    }
    return ps;
  };
  EXPECT_EQ(busy(even, 7), busy(odd, 7));
  const auto wait = static_cast<std::size_t>(run::Phase::kWait);
  // What GPU 7 waits is the end of the step only: the slow group's surplus.
  EXPECT_EQ(odd.data.gpus.phase_ps[7 * run::kPhases + wait],
            odd.data.steps[0].end_ps - odd.data.steps[0].start_ps - busy(odd, 7));
  EXPECT_LT(busy(odd, 7), busy(odd, 0));
}

TEST(Loop, TheClosedFormIsNeverAboveFlowWithReplicaGroups) {
  const std::vector<std::string> base{"workload.batch=9", "parallel.ep=2"};
  auto flow = base;
  flow.push_back("network.model=\"flow\"");
  const MemoryRun closed = synthetic_run(base), fluid = synthetic_run(flow);
  EXPECT_TRUE(fluid.result.violations.empty());
  EXPECT_LE(closed.data.steps[0].end_ps, fluid.data.steps[0].end_ps);
}

TEST(Loop, EveryAlgorithmKeepsTheConservationLaws) {
  for (const char* algorithm : {"direct", "ring", "ring_bidirectional", "hierarchical"}) {
    for (const char* batch : {"1", "3", "9", "64"}) {
      for (const char* ep : {"2", "8"}) {
        for (const char* dispatch : {"per_expert", "per_rank", "per_node"}) {
          // A ring of one of several groups: refused there (Groups.ARingGoesRound…).
          const bool ring = std::string(algorithm).starts_with("ring");
          if (ring && ep[0] == '2' && std::string(dispatch) == "per_node") continue;
          const MemoryRun r = synthetic_run(
              {std::string("network.algorithm=\"") + algorithm + "\"",
               std::string("workload.batch=") + batch, std::string("parallel.ep=") + ep,
               std::string("network.dispatch=\"") + dispatch + "\"", "workload.steps=2"});
          for (const run::Violation& v : r.result.violations) {
            ADD_FAILURE() << algorithm << " batch " << batch << " ep " << ep << " " << dispatch
                          << ": " << v.check << " at " << v.where << ": " << v.message;
          }
        }
      }
    }
  }
}

TEST(Loop, EveryPolicyKeepsTheConservationLawsWithOneOrSeveralCopiesOfTheExperts) {
  for (const char* policy :
       {"policy.condition.clamp=1", "policy.noise={mode=\"adaptive\"}",
        "policy.semantic={mode=\"ema\"}", "policy.temperature={place=\"before\", value=2}",
        "policy.temperature={place=\"before\", controller=\"sequence\", run=2}",
        "policy.gumbel={mode=\"tau_noise\"}", "policy.load_aware={u=\"total\"}",
        "policy.load_aware={u=\"elastic\"}", "policy.load_aware={u=\"queue\"}",
        "policy.score={rule=\"linear\"}", "policy.bonus={lambda=0.1}", "policy.window={beta=0.1}",
        "policy.groups={by=\"block\", count=4}",
        "policy.groups={by=\"block\", count=2, k_in_group=\"all\"}",
        "policy.soft_balance={limit=2, low_limit=1, k3=\"choose\"}",
        "policy.decode_rebalance={level=0.01, period=2}", "policy.set={rule=\"round_robin\"}",
        "policy.set={rule=\"batch\"}", "policy.soft={experts=4, requests=\"all\"}"}) {
    for (const char* ep : {"parallel.ep=8", "parallel.ep=2"}) {
      const MemoryRun r = synthetic_run(
          {"workload.batch=24", "workload.steps=4", ep, policy,
           "policy.capacity={ rule = \"share\", factor = 1.25, exhausted = \"queue\" }"});
      EXPECT_TRUE(r.result.violations.empty()) << policy << " " << ep;
      const run::Totals& t = r.data.totals;
      const std::uint64_t k = std::string(policy).find("all") != std::string::npos ? 4 : 2;
      EXPECT_EQ(t.assignments, 24U * k * 2 * 4) << policy;
      EXPECT_EQ(t.assignments, t.kept + t.rerouted + t.queued + t.dropped) << policy;
    }
  }
}

TEST(Loop, SaysHowOftenAPolicyMayHaveWantedWhatTheTraceDoesNotHold) {
  std::string model = switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                            "/tests/sim/data/worked_model.json");
  const std::string experts = "\"num_local_experts\": 8";
  model.replace(model.find(experts), experts.size(), "\"num_local_experts\": 128");
  switchyard::write_file("model_128.json", model);
  const auto trace =
      decode_trace({{{0, 1}, {5, 6}, {90, 1}, {9, 8}}, {{0, 1}, {5, 6}, {90, 1}, {9, 8}}}, 128);
  const auto notes = [&](const char* policy) {
    const MemoryRun r =
        run_in_memory(worked_scenario({"model.file=\"model_128.json\"", policy}), &trace);
    EXPECT_TRUE(r.result.violations.empty());
    return std::count_if(r.result.notes.begin(), r.result.notes.end(),
                         [](const std::string& n) { return n.starts_with("truncated: "); });
  };
  EXPECT_EQ(notes("policy.noise={ mode = \"fixed\", std = 20 }"), 1);
  EXPECT_EQ(notes("policy.noise={ mode = \"fixed\", std = 0.001 }"), 0);
}

// Traces of more than 64 experts hold k + 2 candidates of a token; a law knows all of them.
TEST(Loop, SyntheticTokensFindRoomWhateverTheNumberOfExperts) {
  std::string model = switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                            "/tests/sim/data/worked_model.json");
  const std::string eight = "\"num_local_experts\": 8";
  for (const int experts : {64, 65}) {
    std::string other = model;
    other.replace(other.find(eight), eight.size(),
                  "\"num_local_experts\": " + std::to_string(experts));
    switchyard::write_file("model_some.json", other);
    for (const char* how : {"", ", mode = \"rounds\"", ", mode = \"rounds\", order = \"prob\"",
                            ", max_score_drop = 1.0"}) {
      for (const char* ep : {"parallel.ep=1", "parallel.ep=8"}) {
        if (experts % 8 != 0 && std::string(ep) == "parallel.ep=8") continue;
        const MemoryRun r = synthetic_run(
            {"model.file=\"model_some.json\"", "workload.batch=512", ep,
             std::string("policy.capacity={ rule = \"share\", factor = 1.25") + how + " }"});
        EXPECT_TRUE(r.result.violations.empty());
        EXPECT_EQ(r.data.totals.dropped, 0U) << experts << how;
        const double rerouted = static_cast<double>(r.data.totals.rerouted) /
                                static_cast<double>(r.data.totals.assignments);
        EXPECT_GT(rerouted, 0.3) << experts << how;
        EXPECT_LT(rerouted, 0.5) << experts << how;
        for (const std::string& note : r.result.notes) {
          EXPECT_FALSE(note.starts_with("truncated")) << experts << how << ": " << note;
        }
      }
    }
  }
}

// M12: GPUs without free memory get a third expert; M13 moves tokens off hot GPUs.
TEST(Loop, StepTenSeesTheMemoryOfEachGpu) {
  const std::vector<std::string> base{"workload.batch=24", "workload.steps=4"};
  auto third = base;
  third.push_back("policy.soft_balance={limit=128, k3_memory=1.0, batch_limit=\"off\"}");
  const MemoryRun r = synthetic_run(third);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.totals.assignments, 24U * 3 * 2 * 4);
  auto rebalance = base;
  rebalance.push_back(
      "policy.decode_rebalance={level=1e-12, period=1, credits=100, target=\"third\"}");
  const MemoryRun moved = synthetic_run(rebalance);
  EXPECT_TRUE(moved.result.violations.empty());
  EXPECT_NE(moved.data.totals.expert_kept, synthetic_run(base).data.totals.expert_kept);
  const auto says = [](const MemoryRun& run, std::string_view what) {
    return std::any_of(run.result.notes.begin(), run.result.notes.end(),
                       [&](const std::string& n) { return n.starts_with(what); });
  };
  EXPECT_TRUE(says(r, "soft balance, tokens x layers with a third expert: 192"));
  EXPECT_TRUE(says(moved, "decode rebalance, slots moved off hot GPUs: "));
  EXPECT_FALSE(says(synthetic_run(base), "soft balance"));
}

// A round-robin needs no router pass; a pinned request neither, and it runs one expert.
TEST(Loop, TokensThatNeedNoRouterDoNotPayForOne) {
  const std::vector<std::string> base{"workload.batch=24", "workload.steps=2"};
  const auto router_time = [&](const char* policy) {
    auto settings = base;
    if (*policy != 0) {
      settings.emplace_back(policy);
    }
    const MemoryRun r = synthetic_run(settings);
    EXPECT_TRUE(r.result.violations.empty()) << policy;
    std::int64_t sum = 0;
    for (const run::StepScalars& step : r.data.steps) {
      sum += step.phase_ps[static_cast<std::size_t>(run::Phase::kRouter)];
    }
    return sum;
  };
  // What is left is the norm before the router and the permutation after it.
  const std::int64_t without = router_time("policy.set={rule=\"round_robin\"}");
  EXPECT_GT(without, 0);
  EXPECT_LT(without, router_time(""));
  EXPECT_EQ(router_time("policy.pinned={requests=\"all\", expert=3}"), without);
  EXPECT_EQ(router_time("policy.set={rule=\"batch\"}"), router_time(""));
}

// A table of one layer over a trace of one layer, cycled to the model's two: the request that hits
// runs experts 6 and 7 in both, and passes no router.
TEST(Loop, ARoutingTableFollowsTheCycledLayersOfItsTrace) {
  auto trace = decode_trace({{{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, 8);
  for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
    trace.sequences[s].text = "prompt " + std::to_string(s);
  }
  switchyard::RoutingTable table(
      {switchyard::TablePrefix::kCharacters, 256, 1, 8, 2, "test", "0000000000000000"});
  (void)table.add(switchyard::table_key(switchyard::TablePrefix::kCharacters, {}, "prompt 0"),
                  std::vector<std::uint16_t>{6, 7}, std::vector<float>{.5F, .25F});
  switchyard::write_file("t.table", table.to_text());
  const auto run = [&](const char* policy) {
    return run_in_memory(
        worked_scenario({"workload.routing={ trace = \"made.h5\", layers = \"cycle\" }", policy}),
        &trace);
  };
  const MemoryRun r = run("policy.table={ file = \"t.table\" }");
  EXPECT_TRUE(r.result.violations.empty());
  for (const std::size_t layer : {0U, 1U}) {
    EXPECT_EQ(r.data.totals.expert_kept[layer * 8 + 6], 1U);
    EXPECT_EQ(r.data.totals.expert_kept[layer * 8 + 7], 1U);
  }
  EXPECT_NE(std::find(r.result.notes.begin(), r.result.notes.end(),
                      "routing table, tokens x layers decided by it: 2"),
            r.result.notes.end());
  // Keywords are looked for in the trace's prompts.
  const MemoryRun soft = run("policy.soft={ experts = 4, keywords = [\"T 1\", \"t 2\"] }");
  EXPECT_EQ(soft.data.totals.assignments, 2U * (2 * 2 + 2 * 4));
  EXPECT_TRUE(soft.result.violations.empty());
}

// Four local experts a GPU: a stacked product computes all four for every soft token that comes.
TEST(Loop, StackedSoftRoutingComputesAllLocalExperts) {
  const auto run = [](const char* policy) {
    return synthetic_run({"workload.batch=24", "workload.steps=2", "parallel.ep=2", policy});
  };
  const MemoryRun gathered = run("policy.soft={experts=3, requests=\"all\"}");
  const MemoryRun stacked = run("policy.soft={experts=3, requests=\"all\", cost=\"stacked\"}");
  EXPECT_TRUE(stacked.result.violations.empty());
  EXPECT_EQ(stacked.data.totals.expert_kept, gathered.data.totals.expert_kept);
  EXPECT_GT(stacked.data.steps[0].flops, gathered.data.steps[0].flops);
  // Waves: what a queue ran later is part of the same soft tokens.
  const auto waves = [](const char* cost) {
    return synthetic_run(
        {"workload.batch=24", "workload.steps=2", "parallel.ep=2",
         std::string("policy.soft={experts=3, requests=\"all\", cost=\"") + cost + "\"}",
         "policy.capacity={rule=\"share\", factor=0.5, reroute=\"none\", "
         "exhausted=\"queue\"}"});
  };
  const MemoryRun w = waves("stacked");
  EXPECT_TRUE(w.result.violations.empty());
  EXPECT_GT(w.data.totals.queued, 0U);
  EXPECT_GT(w.data.steps[0].flops, waves("gathered").data.steps[0].flops);
}

TEST(Loop, SyntheticRequestsHaveNoPrompts) {
  const auto refusal = [](const char* policy) -> std::string {
    try {
      (void)synthetic_run({policy});
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(
      refusal("policy.soft={experts=4, keywords=[\"poem\"]}").find("synthetic requests have none"),
      std::string::npos);
  EXPECT_NE(refusal("policy.pinned={requests=\"named\"}").find("synthetic requests have none"),
            std::string::npos);
  EXPECT_NE(refusal("policy.two_tier={first=\"int4\", scorer=\"nowhere\"}").find("nowhere"),
            std::string::npos);
}

TEST(Loop, ALoadPenaltySeesTheMemoryOfEachGpu) {
  // The hub holds everything but the experts: its experts lose tokens to the others'.
  const std::vector<std::string> base{"workload.batch=64", "workload.steps=2",
                                      "parallel.attention=\"hub\"",
                                      "memory.kv={ placement = \"hub\" }"};
  auto penalised = base;
  penalised.push_back("policy.load_aware={ u = \"total\", lambda = 1000000 }");
  const MemoryRun plain = synthetic_run(base);
  const MemoryRun r = synthetic_run(penalised);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_GT(plain.data.totals.expert_kept[0], 0U);
  EXPECT_EQ(r.data.totals.expert_kept[0], 0U);
  EXPECT_EQ(r.data.totals.assignments, plain.data.totals.assignments);
}

TEST(Loop, GroupsByPlacementKeepATokenOnOneGpu) {
  const std::vector<std::string> base{"workload.batch=32", "parallel.ep=2", "workload.steps=2"};
  auto grouped = base;
  grouped.push_back("policy.groups={ by = \"placement\" }");
  const MemoryRun r = synthetic_run(grouped);
  EXPECT_TRUE(r.result.violations.empty());
  // One copy at most per token, and both experts on the same GPU: less to send.
  EXPECT_LT(r.data.totals.bytes_sent, synthetic_run(base).data.totals.bytes_sent);
  EXPECT_THROW(synthetic_run({"policy.groups={ by = \"placement\" }"}),
               InputError);  // 1 expert a GPU
}

TEST(Loop, WeightOnlyFormatsGainBytesNotArithmetic) {
  const auto bf16 = worked_scenario();
  const auto int4 = worked_scenario({"model.dtype.experts=\"int4\""});
  const sim::CostModel a(bf16.model, bf16.dtype, bf16.activations, bf16.hardware.gpu_type(0));
  const sim::CostModel b(int4.model, int4.dtype, int4.activations, int4.hardware.gpu_type(0));
  const std::uint32_t many[] = {1U << 20}, one[] = {1};
  EXPECT_EQ(a.experts(many).time.ps(), b.experts(many).time.ps());  // bound by FLOPs
  EXPECT_GT(a.experts(one).time.ps(), b.experts(one).time.ps());    // bound by weight bytes
}

TEST(Loop, IdleGpusWait) {
  const MemoryRun r = synthetic_run(
      {"workload.batch=16", "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const auto share = std::find_if(r.data.metrics.begin(), r.data.metrics.end(),
                                  [](const run::Metric& m) { return m.name == "GPU wait share"; });
  ASSERT_NE(share, r.data.metrics.end());
  EXPECT_GT(share->value, 0.3);
}

TEST(Loop, LogitsCountAsActivations) {
  // Prefill of one sequence per GPU: 8,192 logits of 4 B are less than the layer's activations, so
  // the peak is a layer's; with a dense model nothing but these operations allocates.
  const MemoryRun r = synthetic_run({"workload.batch=64"});
  const auto activations = static_cast<std::size_t>(run::MemoryCategory::kActivations);
  EXPECT_GE(r.data.totals.gpu_memory[activations], 8U * 8192 * 4);
}

TEST(Loop, AbsurdTimesAreAnInputError) {
  EXPECT_NE(message_of([] {
              synthetic_run({"hardware.link_types.cable.latency=\"1000000 s\""});
            }).find("<= 1 h"),
            std::string::npos);
  EXPECT_NE(
      message_of([] {
        synthetic_run({"hardware.link_types.cable.bandwidth=\"0.0001 B/s\"", "workload.batch=64"});
      }).find("53 days"),
      std::string::npos);
}

TEST(SyntheticRouting, HitsTheExactCombinatorics) {
  // P(token hits one of R ranks) = 1 − C(E−E/R, k)/C(E, k): (8, 2, 2) → 0.785714.
  const auto s = worked_scenario({kUniform});
  const auto source = sim::make_routing_source(s, nullptr);
  sim::StepTokens tokens;
  constexpr std::uint32_t kTokens = 40000;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    tokens.sequence.push_back(t);
    tokens.position.push_back(7);
    tokens.phase.push_back(1);
    tokens.rank.push_back(0);
    tokens.ordinal.push_back(0);
    tokens.answer.push_back(1);
  }
  switchyard::Candidates c;
  source->candidates(tokens, 0, c, sim::RoutingSource::Need::kChosen);
  std::uint32_t hits = 0;
  double distinct = 0;
  std::set<std::uint16_t> seen;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    const std::uint16_t a = c.ids[t * c.width], b = c.ids[t * c.width + 1];
    EXPECT_NE(a, b);
    hits += a < 4 || b < 4 ? 1 : 0;
    seen.insert(a);
    seen.insert(b);
    if (t % 16 == 15) {
      distinct += static_cast<double>(seen.size());
      seen.clear();
    }
  }
  // Three standard deviations of a binomial with n = 40,000.
  EXPECT_NEAR(hits / double{kTokens}, 0.785714, 3 * std::sqrt(0.7857 * 0.2143 / kTokens));
  // E(1 − (1 − k/E)^T) = 7.9198 for (8, 2, 16).
  EXPECT_NEAR(distinct / (kTokens / 16.0), 7.9198, 0.02);
}

TEST(SyntheticRouting, DistinctRanksAreThoseOfTheCombinatorics) {
  struct Case {
    std::uint32_t experts, k, ranks;
    double hit;  // simulation.md §5
  };
  for (const Case& x : {Case{8, 2, 2, 0.785714}, Case{128, 8, 4, 0.907253},
                        Case{256, 8, 8, 0.661832}, Case{256, 8, 32, 0.227087}}) {
    // 1 − C(E − E/R, k) / C(E, k), as a product without factorials.
    const std::uint32_t each = x.experts / x.ranks;
    double miss = 1;
    for (std::uint32_t i = 0; i < x.k; ++i) {
      miss *= static_cast<double>(x.experts - each - i) / (x.experts - i);
    }
    EXPECT_NEAR(1 - miss, x.hit, 5e-7);
    const auto s = worked_scenario({kUniform, "model.num_experts=" + std::to_string(x.experts),
                                    "model.top_k=" + std::to_string(x.k)});
    const auto source = sim::make_routing_source(s, nullptr);
    sim::StepTokens tokens;
    constexpr std::uint32_t kTokens = 10000;
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      tokens.sequence.push_back(t);
      tokens.position.push_back(3);
      tokens.phase.push_back(1);
      tokens.rank.push_back(0);
      tokens.ordinal.push_back(0);
      tokens.answer.push_back(1);
    }
    switchyard::Candidates c;
    source->candidates(tokens, 0, c, sim::RoutingSource::Need::kChosen);
    std::uint64_t distinct = 0;
    std::set<std::uint32_t> ranks;
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      ranks.clear();
      for (std::uint32_t j = 0; j < x.k; ++j) {
        ranks.insert(c.ids[std::size_t{t} * c.width + j] / each);
      }
      distinct += ranks.size();
    }
    // The hits of one token's ranks are negatively correlated, so the binomial bound is wide.
    const double n = double{kTokens} * x.ranks;
    EXPECT_NEAR(static_cast<double>(distinct) / n, x.hit, 3 * std::sqrt(x.hit * (1 - x.hit) / n))
        << x.experts << " " << x.k << " " << x.ranks;
  }
}

TEST(Ledger, ReportsAWatermarkCrossingOnce) {
  sim::MemoryLedger ledger({100}, 0.5);
  for (int period = 0; period < 4; ++period) {
    ledger.reset_high_water();
    for (int i = 0; i < 10 && period != 2; ++i) {
      ledger.allocate(0, run::MemoryCategory::kActivations, 60, i, 0, "activations");
      ledger.release(0, run::MemoryCategory::kActivations, 60, i, 0, "activations");
    }
  }
  // Once in the first period; again in the last one, because the third stayed below.
  EXPECT_EQ(ledger.take_events().size(), 2U);
}

TEST(Ledger, ExplainsEveryByte) {
  sim::MemoryLedger ledger({100, 100}, 0.9);
  ledger.allocate(0, run::MemoryCategory::kWeights, 85, 0, 0, "weights");
  EXPECT_TRUE(ledger.take_events().empty());
  ledger.allocate(0, run::MemoryCategory::kKv, 10, 5, 1, "KV pages");
  auto events = ledger.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, run::EventKind::kWatermark);
  ledger.allocate(0, run::MemoryCategory::kKv, 10, 6, 2, "KV pages");
  events = ledger.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, run::EventKind::kOutOfMemory);
  EXPECT_EQ(events[0].text, "KV pages needs 10 B, free 5 B of 100 B; value: bytes over capacity");
  EXPECT_TRUE(ledger.out_of_memory(0));
  EXPECT_FALSE(ledger.out_of_memory(1));
  ledger.release(0, run::MemoryCategory::kKv, 20, 7, 2, "KV pages");
  EXPECT_EQ(ledger.check(), "");
  EXPECT_EQ(ledger.allocated(0), 105U);
  EXPECT_EQ(ledger.freed(0), 20U);
  EXPECT_EQ(ledger.high_water(0), 105U);
  EXPECT_EQ(ledger.live(0), 85U);
}

// Every allocation and free of a run has a cause, and their running sums are what the run says.
TEST(Ledger, TellsEveryEntryAndItsCause) {
  const std::vector<std::vector<std::string>> all{
      {"workload.batch=24", "workload.steps=3"},
      {"workload.batch=24", "workload.steps=3", "network.two_batch=true", "network.chunks=2"},
      {"workload.batch=24", "workload.steps=3", "memory.kv.placement=by_expert",
       "memory.kv.decode=merge"},
      {"workload.batch=24", "workload.steps=3", "parallel.attention=pp", "parallel.pp=2",
       "parallel.dp=4", "parallel.ep=4"},
      {"workload.batch=24", "workload.steps=4", "faults.reload=10 GB/s",
       "faults.events=[{kind=\"gpu_loss\",gpu=\"gpu1\",step=1,lasts=2}]"}};
  for (std::vector<std::string> settings : all) {
    settings.insert(settings.begin(), kUniform);
    const auto s = worked_scenario(settings);
    const auto sink = sim::memory_sink();
    sim::SimulationExtras extras;
    std::vector<std::int64_t> live(8 * run::kMemoryCategories, 0), most = live;
    std::size_t entries = 0;
    extras.memory = [&](const sim::MemoryEntry& e) {
      ++entries;
      EXPECT_FALSE(e.cause.empty());
      EXPECT_GT(e.bytes, 0U);
      ASSERT_LT(e.gpu, 8U);
      std::int64_t& now =
          live[e.gpu * run::kMemoryCategories + static_cast<std::size_t>(e.category)];
      now += e.freed ? -static_cast<std::int64_t>(e.bytes) : static_cast<std::int64_t>(e.bytes);
      EXPECT_GE(now, 0) << e.cause;
      std::int64_t& top = most[&now - live.data()];
      top = std::max(top, now);
    };
    const sim::SimulationResult result = sim::simulate(s, nullptr, "", *sink, {}, extras);
    EXPECT_TRUE(result.violations.empty());
    EXPECT_GT(entries, 8U * 10);
    for (const std::int64_t left : live) EXPECT_EQ(left, 0);
    for (std::size_t i = 0; i < most.size(); ++i) {
      EXPECT_EQ(static_cast<std::uint64_t>(most[i]), sink->data().totals.gpu_memory[i]) << i;
    }
  }
}

namespace {

/// Mixtral 8x7B on the 8 GPUs of an HGX H100, tp = ep = 8 unless the settings say otherwise.
switchyard::scenario::Scenario mixtral_tp(std::vector<std::string> settings) {
  const std::string root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
  settings.insert(settings.begin(), {"model.file=" + root + "models/mixtral_8x7b.json",
                                     "hardware.file=" + root + "hardware/hgx_h100.toml",
                                     "parallel.attention=tp", "parallel.dp=1", kUniform});
  return worked_scenario(std::move(settings));
}

}  // namespace

// Golden (issue 4): Mixtral TP8 decode = 2 all-reduces × 32 layers × B·H·2 B. A ring passes
// 2(n−1)/n of the buffer over each of n links, a two-shot sends as much, a one-shot (n−1) times
// all.
TEST(TensorParallel, MixtralDecodeReducesTwiceALayer) {
  const std::uint64_t payload = 2ULL * 32 * 16 * 4096 * 2;
  const std::vector<std::pair<std::string, std::uint64_t>> factors{
      {"ring", 14}, {"direct", 14}, {"one_shot", 56}, {"hierarchical", 14}, {"tree", 14}};
  std::int64_t ring = 0;
  for (const auto& [how, factor] : factors) {
    const MemoryRun r =
        run_in_memory(mixtral_tp({"workload.batch=16", "network.collective=" + how}), nullptr);
    EXPECT_TRUE(r.result.violations.empty()) << how << r.result.violations[0].message;
    EXPECT_EQ(r.data.totals.bytes_sent, factor * payload) << how;
    const auto& step = r.data.steps[0];
    EXPECT_EQ(step.phase_ps[static_cast<std::size_t>(run::Phase::kDispatch)], 0) << how;
    const std::int64_t collective =
        step.phase_ps[static_cast<std::size_t>(run::Phase::kCollective)];
    if (how == "ring") {
      // 64 all-reduces of 14 phases: 16,384 B / (0.62 · 450 GB/s) = 58,724 ps (to nearest) each, 6
      // us before the first and 2 · 390 ns before each of the others.
      EXPECT_EQ(collective, 64LL * (14 * 58724 + 6000000 + 13 * 780000));
      ring = collective;
    } else if (how == "one_shot") {
      // One phase: 7 · 131,072 B / (0.62 · 450 GB/s) = 3,288,545 ps, once the latency.
      EXPECT_EQ(collective, 64LL * (3288545 + 6000000));
      EXPECT_LT(collective, ring);  // Small batches: latency decides.
    }
  }
}

TEST(TensorParallel, DividesHeadsCacheAndWeightsButRunsEveryToken) {
  const MemoryRun one = run_in_memory(
      mixtral_tp({"workload.batch=16", "parallel.attention=dp", "parallel.dp=8"}), nullptr);
  const MemoryRun tp = run_in_memory(mixtral_tp({"workload.batch=16"}), nullptr);
  EXPECT_TRUE(tp.result.violations.empty());
  // The same tokens choose the same experts.
  EXPECT_EQ(tp.data.totals.assignments, one.data.totals.assignments);
  // dp: 2 sequences of 1,025 tokens (65 pages of 16) a GPU, 8 KV heads; tp: 16 sequences, 1 head.
  const auto held = [](const MemoryRun& r, run::MemoryCategory c) {
    return r.data.gpus.memory[3 * run::kMemoryCategories + static_cast<std::size_t>(c)];
  };
  EXPECT_EQ(held(one, run::MemoryCategory::kKv), 2ULL * 1040 * 2 * 8 * 128 * 2 * 32);
  EXPECT_EQ(held(tp, run::MemoryCategory::kKv), 16ULL * 1040 * 2 * 1 * 128 * 2 * 32);
  EXPECT_EQ(held(tp, run::MemoryCategory::kExperts), held(one, run::MemoryCategory::kExperts));
  // Seven eighths of the attention weights of 32 layers are elsewhere: 4096 · 128 · (32 + 2·8) in,
  // 32 · 128 · 4096 out, bf16.
  EXPECT_EQ(held(one, run::MemoryCategory::kWeights) - held(tp, run::MemoryCategory::kWeights),
            32ULL * 2 * (4096 * 128 * 48 + 4096 * 4096) / 8 * 7);
}

TEST(TensorParallel, GroupsOfTwoReduceByThemselves) {
  const MemoryRun r = run_in_memory(
      mixtral_tp({"workload.batch=16", "parallel.dp=4", "parallel.tp=2", "parallel.ep=2"}),
      nullptr);
  EXPECT_TRUE(r.result.violations.empty());
  // Each of 4 groups reduces the hidden states of its 4 sequences: 2(n−1) = 2 times the buffer.
  EXPECT_EQ(r.data.totals.bytes_sent, 4ULL * 2 * 64 * 4 * 4096 * 2);
  EXPECT_EQ(r.data.inventory.replicas, 4U);
}

TEST(TensorParallel, FlowAndCoflowAgreeWithTheClosedForm) {
  const MemoryRun closed = run_in_memory(mixtral_tp({"workload.batch=16"}), nullptr);
  const MemoryRun coflow =
      run_in_memory(mixtral_tp({"workload.batch=16", "network.model=coflow"}), nullptr);
  EXPECT_TRUE(coflow.result.violations.empty());
  const auto end = static_cast<double>(closed.data.steps[0].end_ps);
  EXPECT_NEAR(static_cast<double>(coflow.data.steps[0].end_ps), end, end * 1e-9 + 64 * 14);
}

TEST(Groups, ARingGoesRoundTheGpusOfAGroupOrIsRefused) {
  const auto run = [](std::vector<std::string> more) {
    std::vector<std::string> all{"workload.routing={ synthetic = \"uniform\" }", "parallel.ep=4",
                                 "network.algorithm=ring"};
    all.insert(all.end(), more.begin(), more.end());
    return run_in_memory(worked_scenario(std::move(all)), nullptr);
  };
  // Under the closed form each group has a ring of its own.
  EXPECT_TRUE(run({}).result.violations.empty());
  EXPECT_NE(message_of([&] {
              run({"network.dispatch=per_node"});
            }).find("\"ring\" with 2 groups of 4 of the 8 GPUs"),
            std::string::npos);
}

namespace {

/// Two groups of two GPUs: 0 and 1, 2 and 3, on either side of one cable of 50 GB/s per direction,
/// which carries what 1 and 3 send to and get from the others.
std::vector<std::string> one_cable(std::vector<std::string> more) {
  std::vector<std::string> all{
      "workload.routing={ synthetic = \"uniform\" }", "parallel.ep=2", "parallel.dp=4",
      R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
      R"({ name = "a", kind = "switch" }, { name = "b", kind = "switch" }])",
      R"(hardware.links=[{ from = "gpu0", to = "a", type = "cable" }, )"
      R"({ from = "gpu2", to = "a", type = "cable" }, { from = "gpu1", to = "b", type = "cable" }, )"
      R"({ from = "gpu3", to = "b", type = "cable" }, { from = "a", to = "b", class = "other", )"
      R"(bandwidth = "50 GB/s", latency = "1 us" }])"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST(Groups, ShareTheLinksThatTheirRoutesHaveInCommon) {
  // Both choices of a token are on GPU 1 of its group (GPU 3 for the other): everything of GPUs 0
  // and 2 crosses the cable, one copy of 2,048 B for each token, there and back.
  const auto trace =
      decode_trace({{{4, 5}, {6, 7}, {4, 5}, {6, 7}}, {{4, 5}, {6, 7}, {4, 5}, {6, 7}}}, 8);
  const auto run = [&](std::vector<std::string> more) {
    more.emplace_back("workload.routing={ trace = \"t.h5\" }");
    const MemoryRun r = run_in_memory(worked_scenario(one_cable(std::move(more))), &trace);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    return r;
  };
  const MemoryRun together = run({"network.model=auto"});
  const auto dispatch = [](const MemoryRun& r, std::size_t layer) {
    return r.data.layer_steps.dispatch_ps[layer];
  };
  // Two copies at 50 GB/s, 20 ps a byte, and three hops; alone it would be one.
  EXPECT_NEAR(static_cast<double>(dispatch(together, 0)), 2 * 2048 * 20 + 3e6, 2);
  EXPECT_NEAR(static_cast<double>(dispatch(run({"network.model=auto", "workload.batch=1"}), 0)),
              2048 * 20 + 3e6, 2);
  // coflow with several groups: the same sharing.
  const MemoryRun coflow = run({"network.model=coflow"});
  ASSERT_EQ(coflow.data.steps.size(), together.data.steps.size());
  EXPECT_NEAR(static_cast<double>(coflow.data.steps[0].end_ps),
              static_cast<double>(together.data.steps[0].end_ps), 16);
  // A ring of two goes to and fro.
  EXPECT_TRUE(run({"network.model=coflow", "network.algorithm=ring"}).result.violations.empty());
}

TEST(Groups, ARingThatWouldBeOneIsRefusedWithThePlaceOfItsKey) {
  const auto s = worked_scenario(one_cable({"network.model=bottleneck", "network.algorithm=ring"}));
  const std::string message = message_of([&] { sim::check_groups(s); });
  EXPECT_NE(message.find("\"ring\" with 2 groups of 2 of the 4 GPUs"), std::string::npos)
      << message;
  EXPECT_EQ(message.rfind("--set", 0), 0U) << message;
  sim::check_groups(worked_scenario(one_cable({"network.model=auto", "network.algorithm=ring"})));
}

TEST(Groups, CoflowTimesGroupsThatShareNothingAsTheClosedForm) {
  for (const char* ep : {"parallel.ep=2", "parallel.ep=4"}) {
    std::vector<std::string> all{"workload.routing={ synthetic = \"uniform\" }",
                                 "workload.batch=64", ep};
    const MemoryRun closed = run_in_memory(worked_scenario(all), nullptr);
    all.emplace_back("network.model=coflow");
    const MemoryRun r = run_in_memory(worked_scenario(all), nullptr);
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    EXPECT_NEAR(static_cast<double>(r.data.steps[0].end_ps),
                static_cast<double>(closed.data.steps[0].end_ps), 16);
  }
}

TEST(TensorParallel, WhatDoesNotFitIsRefusedByName) {
  const auto refused = [](std::vector<std::string> settings) {
    return message_of([&] { run_in_memory(mixtral_tp(std::move(settings)), nullptr); });
  };
  EXPECT_NE(refused({"parallel.ep=4", "network.algorithm=ring"})
                .find("means nothing with attention = \"tp\""),
            std::string::npos);
  EXPECT_NE(refused({"network.algorithm=ring"}).find("means nothing with attention = \"tp\""),
            std::string::npos);
  EXPECT_NE(refused({"network.dispatch=per_expert"}).find("means nothing"), std::string::npos);
  EXPECT_NE(refused({"network.payload={ dispatch = \"fp8\" }"}).find("means nothing"),
            std::string::npos);
  EXPECT_NE(refused({"parallel.attention=dp", "parallel.dp=8", "network.collective=ring"})
                .find("there is no all-reduce"),
            std::string::npos);
}

TEST(Wire, PackedPayloadsCarryAQuarterAndPayForThePacking) {
  const MemoryRun native = synthetic_run({"workload.batch=64"});
  const MemoryRun int4 =
      synthetic_run({"workload.batch=64", "network.payload={ wire = \"int4\" }"});
  const MemoryRun halves =
      synthetic_run({"workload.batch=64", "network.payload={ wire = \"int2_halves\" }"});
  for (const MemoryRun* r : {&native, &int4, &halves}) EXPECT_TRUE(r->result.violations.empty());
  // H = 1024: 2,048 B as bf16, 512 B + 8 scales of 4 B packed; the same copies.
  EXPECT_EQ(native.data.totals.bytes_sent % 2048, 0U);
  EXPECT_EQ(int4.data.totals.bytes_sent, native.data.totals.bytes_sent / 2048 * 544);
  EXPECT_EQ(halves.data.totals.bytes_sent, int4.data.totals.bytes_sent);
  // The halves pay the path latency twice, of 2 us.
  EXPECT_NEAR(static_cast<double>(halves.data.layer_steps.dispatch_ps[0]),
              static_cast<double>(int4.data.layer_steps.dispatch_ps[0] + 2'000'000), 2.0);
  EXPECT_LT(int4.data.layer_steps.dispatch_ps[0], native.data.layer_steps.dispatch_ps[0]);
  const auto says = [](const MemoryRun& r, const std::string& text) {
    return std::any_of(r.result.notes.begin(), r.result.notes.end(),
                       [&](const std::string& n) { return n.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says(int4, "INT4 on the wire; packing and unpacking took"));
  EXPECT_TRUE(says(halves, "two INT2 halves on the wire"));
  EXPECT_FALSE(says(native, "on the wire"));
  EXPECT_NE(message_of([] {
              synthetic_run({"network.payload={ wire = \"int4\", dispatch = \"int4\" }"});
            }).find("at 4 bits already"),
            std::string::npos);
}

TEST(Measured, LinksTakeTheTablesTimeAndTheRunSaysWhatLiesOutside) {
  switchyard::write_file("measured.csv", "bytes,GB/s\n1024,1\n1048576,50\n");
  const std::string key = "network.measured={ file = \"measured.csv\", class = \"nvlink4\" }";
  const MemoryRun r = synthetic_run({"workload.batch=64", key});
  EXPECT_TRUE(r.result.violations.empty());
  const MemoryRun plain = synthetic_run({"workload.batch=64"});
  EXPECT_EQ(r.data.totals.bytes_sent, plain.data.totals.bytes_sent);
  EXPECT_GT(r.data.layer_steps.dispatch_ps[0], plain.data.layer_steps.dispatch_ps[0] - 2'000'000);
  EXPECT_TRUE(std::none_of(r.result.notes.begin(), r.result.notes.end(), [](const std::string& n) {
    return n.find("EXTRAPOLATED") != std::string::npos;
  }));
  switchyard::write_file("measured.csv", "bytes,GB/s\n1048576,1\n2097152,50\n");
  const MemoryRun out = synthetic_run({"workload.batch=64", key});
  EXPECT_TRUE(
      std::any_of(out.result.notes.begin(), out.result.notes.end(), [](const std::string& n) {
        return n.find("exchanges lie outside the table") != std::string::npos;
      }));
  EXPECT_NE(message_of([&] {
              synthetic_run({"network.measured={ file = \"measured.csv\", class = \"pcie5\" }"});
            }).find("has a link of that class"),
            std::string::npos);
}

// Settings that change nothing are noted where they stand, not refused: sweeps go through them.
TEST(SimulatorNotes, NameSettingsThatChangeNothing) {
  const auto notes = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), "workload.routing={synthetic=\"uniform\"}");
    const MemoryRun r = run_in_memory(worked_scenario(settings), nullptr);
    EXPECT_TRUE(r.result.violations.empty());
    std::string all;
    for (const std::string& n : r.result.notes) all += n + "\n";
    return all;
  };
  const std::string servers =
      R"(hardware.devices=[{name="gpu",count=8,per_node=4,kind="gpu",type="toy"},)"
      R"({name="switch",kind="nvswitch"}])";
  const auto has = [](const std::string& all, const char* key) {
    return all.find(key) != std::string::npos;
  };
  const char* node = "network.dispatch = \"per_node\"";
  EXPECT_TRUE(has(notes({"network.dispatch=per_node"}), node));
  EXPECT_FALSE(has(notes({"network.dispatch=per_node", servers}), node));
  EXPECT_FALSE(has(notes({}), node));
  const char* scales = "network.payload.scale_block";
  EXPECT_TRUE(has(notes({"network.payload.scale_block=64"}), scales));
  EXPECT_FALSE(has(notes({}), scales));
  EXPECT_FALSE(
      has(notes({"network.payload.scale_block=64", "network.payload.dispatch=fp8"}), scales));
  const char* chunks = "network.chunk_by = \"experts\"";
  const std::vector<std::string> by_experts{"network.chunks=2", "network.chunk_by=experts"};
  EXPECT_TRUE(has(notes(by_experts), chunks));
  EXPECT_FALSE(has(notes({by_experts[0], by_experts[1], "parallel.ep=4"}), chunks));
  EXPECT_FALSE(has(notes({by_experts[0]}), chunks));
}
