// SPDX-License-Identifier: Apache-2.0
// Prefill and decode replicas of different shape ([parallel.prefill]): what each GPU holds, what
// travels between them, and that nothing else changes. One process per case.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/scenario/replicas.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using run::MemoryCategory;
using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

// The worked model (sim/README.md): two MoE layers, H = 1024, 8 heads, 2 KV heads of 128, 8 experts
// of width 2048, top 2, BF16 with an FP32 gate; V = 8192. On 8 GPUs round one switch.
constexpr std::uint64_t kExpert = std::uint64_t{3} * 1024 * 2048 * 2;     // B
constexpr std::uint64_t kPage = std::uint64_t{16} * 2 * 2 * 2 * 128 * 2;  // 16 tokens, 2 layers

std::string workload(int requests, const std::string& lengths, const std::string& front,
                     const std::string& more = "") {
  return fmt::format(
      "workload={{ kind = \"open\", routing = {{ synthetic = \"lognormal\", sigma = 0.9 }}, "
      "arrivals = {{ per_second = 4000.0, requests = {} }}, lengths = {{ {} }}, front_end = {{ {} "
      "}}{} }}",
      requests, lengths, front, more);
}
const char* const kOneEach = "replicas = 2, prefill_replicas = 1";

MemoryRun run_of(std::vector<std::string> settings) {
  const MemoryRun r = run_in_memory(worked_scenario(std::move(settings)), nullptr);
  for (const auto& v : r.result.violations) {
    ADD_FAILURE() << v.check << ' ' << v.where << ": " << v.message;
  }
  return r;
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}
std::uint64_t held(const MemoryRun& r, std::uint32_t gpu, MemoryCategory c) {
  return r.data.totals.gpu_memory[gpu * run::kMemoryCategories + static_cast<std::size_t>(c)];
}
std::uint64_t sent(const MemoryRun& r, std::uint32_t from, std::uint32_t to) {
  return r.data.totals.pair_bytes[std::size_t{from} * r.data.inventory.gpus.size() + to];
}
/// Everything that a run says but its scenario's text, as far as numbers go.
void expect_same(const MemoryRun& a, const MemoryRun& b) {
  ASSERT_EQ(a.data.steps.size(), b.data.steps.size());
  for (std::size_t i = 0; i < a.data.steps.size(); ++i) {
    const run::StepScalars &x = a.data.steps[i], &y = b.data.steps[i];
    EXPECT_EQ(x.start_ps, y.start_ps);
    EXPECT_EQ(x.end_ps, y.end_ps) << "step " << i;
    EXPECT_EQ(x.engine, y.engine);
    EXPECT_EQ(x.phase_ps, y.phase_ps);
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.bytes_sent, y.bytes_sent);
    EXPECT_EQ(x.hbm_bytes, y.hbm_bytes);
    EXPECT_EQ(x.flops, y.flops);
  }
  EXPECT_EQ(a.data.inventory.placement, b.data.inventory.placement);
  EXPECT_EQ(a.data.totals.gpu_memory, b.data.totals.gpu_memory);
  EXPECT_EQ(a.data.totals.pair_bytes, b.data.totals.pair_bytes);
  EXPECT_EQ(a.data.totals.link_bytes, b.data.totals.link_bytes);
  EXPECT_EQ(a.data.totals.link_busy_ps, b.data.totals.link_busy_ps);
  EXPECT_EQ(a.data.totals.gpu_phase_ps, b.data.totals.gpu_phase_ps);
  EXPECT_EQ(a.data.totals.expert_kept, b.data.totals.expert_kept);
  EXPECT_EQ(a.data.links.busy_ps, b.data.links.busy_ps);
  EXPECT_EQ(a.data.gpus.memory, b.data.gpus.memory);
  ASSERT_EQ(a.data.requests.size(), b.data.requests.size());
  for (std::size_t i = 0; i < a.data.requests.size(); ++i) {
    EXPECT_EQ(a.data.requests[i].first_token_ps, b.data.requests[i].first_token_ps);
    EXPECT_EQ(a.data.requests[i].end_ps, b.data.requests[i].end_ps);
  }
  ASSERT_EQ(a.data.metrics.size(), b.data.metrics.size());
  for (std::size_t i = 0; i < a.data.metrics.size(); ++i) {
    EXPECT_EQ(a.data.metrics[i].name, b.data.metrics[i].name);
    const double x = a.data.metrics[i].value, y = b.data.metrics[i].value;
    EXPECT_TRUE(x == y || (x != x && y != y)) << a.data.metrics[i].name << ' ' << x << ' ' << y;
  }
  ASSERT_EQ(a.data.events.size(), b.data.events.size());
  for (std::size_t i = 0; i < a.data.events.size(); ++i) {
    EXPECT_EQ(a.data.events[i].text, b.data.events[i].text);
  }
}

/// Models that start a SimGrid session: one run a process.
void one_of_each(const std::string& model) {
  const MemoryRun r =
      run_of({workload(20, "prompt = 100, prompt_cv = 1.0, output = 10, output_cv = 1.0", kOneEach),
              "parallel={ ep = 2, prefill = { gpus = 4, attention = \"tp\", tp = 2, ep = 4 } }",
              "network.model=" + model});
  for (const auto& q : r.data.requests) EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
  EXPECT_GT(metric(r, "KV transferred"), 0);
}

void expect_refused(std::vector<std::string> settings, const std::string& message,
                    const std::string& where = "--set") {
  try {
    const scenario::Scenario s = worked_scenario(std::move(settings));
    check_scenario(s);
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    EXPECT_NE(e.where().find(where), std::string::npos) << e.where();
  }
}

}  // namespace

TEST(PrefillLayout, EachLayoutHasItsOwnGpusAndReplicas) {
  const scenario::Scenario s =
      worked_scenario({workload(1, "prompt = 1, output = 1", "replicas = 5, prefill_replicas = 2"),
                       "parallel={ ep = 2, prefill = { gpus = 2, ep = 1 } }"});
  ASSERT_TRUE(s.prefill.has_value());
  EXPECT_EQ(s.prefill->first_gpu, 0U);
  EXPECT_EQ(s.prefill->gpus(), 2U);
  EXPECT_EQ(s.prefill->ep, 1U);
  EXPECT_EQ(s.parallel.first_gpu, 2U);
  EXPECT_EQ(s.parallel.gpus(), 6U);
  EXPECT_EQ(&s.layout_of(1), &*s.prefill);
  EXPECT_EQ(&s.layout_of(2), &s.parallel);
  const std::vector<scenario::GpuRange> r = scenario::replica_gpus(s);
  ASSERT_EQ(r.size(), 5U);
  EXPECT_EQ(r[1].first, 1U);
  EXPECT_EQ(r[1].beyond, 2U);
  EXPECT_EQ(r[2].first, 2U);
  EXPECT_EQ(r[4].beyond, 8U);
  // EP ranks count from the layout's first GPU.
  EXPECT_EQ(s.parallel.copies(), 3U);
  EXPECT_EQ(s.parallel.copy_of(5), 1U);
  EXPECT_EQ(s.parallel.rank_of(5), 1U);
  EXPECT_EQ(s.parallel.first_of_copy(2), 6U);
}

TEST(PrefillLayout, WhatIsLeftOutIsAsInParallel) {
  const scenario::Scenario s = worked_scenario(
      {workload(1, "prompt = 1, output = 1", kOneEach),
       "parallel={ attention = \"tp\", tp = 2, ep = 2, placement = \"round_robin\", "
       "sequence_parallel = true, prefill = { gpus = 4, tp = 4, ep = 4 } }"});
  EXPECT_EQ(s.prefill->attention, scenario::AttentionPlacement::kTp);
  EXPECT_EQ(s.prefill->tp, 4U);
  EXPECT_EQ(s.prefill->dp, 1U);
  EXPECT_TRUE(s.prefill->sequence_parallel);
  EXPECT_EQ(s.prefill->placement, scenario::PlacementKind::kRoundRobin);
  EXPECT_EQ(s.prefill->expert_rank[0], (std::vector<std::uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(s.parallel.expert_rank[0], (std::vector<std::uint32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  const scenario::Scenario t = worked_scenario(
      {workload(1, "prompt = 1, output = 1", kOneEach),
       "parallel={ attention = \"tp\", tp = 2, ep = 2, sequence_parallel = true, prefill = { gpus "
       "= 4, attention = \"dp\", ep = 4 } }"});
  EXPECT_EQ(t.prefill->tp, 1U);
  EXPECT_EQ(t.prefill->dp, 4U);
  EXPECT_FALSE(t.prefill->sequence_parallel);
}

TEST(PrefillLayout, TheSameShapeStatedChangesNothing) {
  const std::string lengths = "prompt = 200, prompt_cv = 1.0, output = 20, output_cv = 1.0";
  const std::string more = ", batching = { token_budget = 128, kv = \"2 MB\" }";
  struct Case {
    const char *plain, *stated, *model;
  };
  for (const Case& c : {
           Case{"ep = 4", "gpus = 4", "bottleneck"},
           Case{"ep = 4, placement = \"eplb\", placement_options = { redundant = 4 }",
                "gpus = 4, dp = 4, tp = 1", "auto"},
           Case{"attention = \"tp\", tp = 2, ep = 4", "gpus = 4, tp = 2, ep = 4", "auto"},
           Case{"attention = \"tp\", tp = 4, ep = 2", "gpus = 4, tp = 4, ep = 2", "auto"},
           Case{"ep = 2", "gpus = 4, ep = 2", "auto"},
       }) {
    const std::string work = workload(40, lengths, kOneEach, more);
    const std::string model = std::string("network.model=") + c.model;
    const MemoryRun plain = run_of({work, fmt::format("parallel={{ {} }}", c.plain), model});
    const MemoryRun stated = run_of(
        {work, fmt::format("parallel={{ {}, prefill = {{ {} }} }}", c.plain, c.stated), model});
    expect_same(plain, stated);
  }
}

TEST(PrefillLayout, WeightsAndExpertsOfEachGpu) {
  // Prefill: GPUs 0 and 1 divide heads and experts. Decode: GPUs 2 to 7, three copies on two each.
  const MemoryRun r =
      run_of({workload(4, "prompt = 64, output = 3", kOneEach),
              "parallel={ ep = 2, prefill = { gpus = 2, attention = \"tp\", tp = 2, ep = 2 } }"});
  constexpr std::uint64_t kAttention = 1024 * (1024 + 2 * 256) + 1024 * 1024;  // Q, K, V; output
  constexpr std::uint64_t kWhole = 2 * 8192 * 1024 + 2 * 2 * 1024 + 1024;      // vocabulary, norms
  constexpr std::uint64_t kGate = 2 * 8 * 1024 * 4;                            // FP32, both layers
  for (std::uint32_t g = 0; g < 8; ++g) {
    const std::uint64_t shards = g < 2 ? 2 : 1;
    EXPECT_EQ(held(r, g, MemoryCategory::kWeights), 2 * (2 * kAttention / shards + kWhole) + kGate)
        << g;
    EXPECT_EQ(held(r, g, MemoryCategory::kExperts), 2 * 4 * kExpert) << g;
  }
  // With eight ranks in place of two a decode GPU would have one expert a layer; see the places.
  const run::Inventory& inv = r.data.inventory;
  EXPECT_EQ(inv.replicas, 4U);  // one of prefill, three of decode
  for (std::uint32_t l = 0; l < 2; ++l) {
    for (std::uint32_t e = 0; e < 8; ++e) {
      const std::uint32_t rank = e / 4;
      const std::vector<std::uint32_t> want{rank, 2 + rank, 4 + rank, 6 + rank};
      EXPECT_TRUE(std::equal(want.begin(), want.end(), inv.placement.begin() + (l * 8 + e) * 4));
    }
  }
  for (std::uint32_t g = 0; g < 8; ++g) EXPECT_EQ(inv.gpus[g].engine, g < 2 ? 0U : 1U);
}

TEST(PrefillLayout, RedundantCopiesOfEachLayout) {
  // Prefill: 8 experts and 4 further slots on 4 ranks; decode: none further on 2 ranks of 4 GPUs.
  const MemoryRun r = run_of(
      {workload(4, "prompt = 64, output = 3", kOneEach),
       "parallel={ ep = 2, prefill = { gpus = 4, ep = 4, placement = \"eplb\", placement_options = "
       "{ redundant = 4 } } }"});
  for (std::uint32_t g = 0; g < 8; ++g) {
    EXPECT_EQ(held(r, g, MemoryCategory::kExperts), 2 * (g < 4 ? 3 : 4) * kExpert) << g;
  }
  // Each expert has a place in the prefill replicas at least, and two in the decode replicas.
  const run::Inventory& inv = r.data.inventory;
  for (std::size_t i = 0; i < 16; ++i) {
    std::size_t prefill = 0, decode = 0;
    for (std::uint32_t k = 0; k < inv.replicas; ++k) {
      const std::uint32_t g = inv.placement[i * inv.replicas + k];
      if (g == run::kNone) continue;
      ++(g < 4 ? prefill : decode);
    }
    EXPECT_GE(prefill, 1U);
    EXPECT_EQ(decode, 2U);
  }
}

TEST(PrefillLayout, ShardsOfKeysAndValuesOnTheLinks) {
  // One request of 64 tokens, four pages. Decode GPUs have all experts: nothing else leaves them.
  const std::vector<std::string> base{workload(1, "prompt = 64, output = 3", kOneEach)};
  const auto with = [&](const std::string& parallel) {
    return run_of({base[0], "parallel={ " + parallel + " }"});
  };
  // Two GPUs with a KV head each to one with both: half from each.
  MemoryRun r = with("ep = 1, prefill = { gpus = 2, attention = \"tp\", tp = 2, ep = 2 }");
  EXPECT_EQ(sent(r, 0, 2), 2 * kPage);
  EXPECT_EQ(sent(r, 1, 2), 2 * kPage);
  EXPECT_EQ(metric(r, "KV transferred"), 4 * kPage * 1e-9);
  EXPECT_EQ(held(r, 0, MemoryCategory::kKv), 2 * kPage);
  EXPECT_EQ(held(r, 2, MemoryCategory::kKv), 5 * kPage);  // the answer begins another page
  // Four GPUs, two to a head: of each two one sends.
  r = with("ep = 1, prefill = { gpus = 4, attention = \"tp\", tp = 4, ep = 4 }");
  EXPECT_EQ(sent(r, 0, 4), 2 * kPage);
  EXPECT_EQ(sent(r, 1, 4), 0U);
  EXPECT_EQ(sent(r, 2, 4), 2 * kPage);
  EXPECT_EQ(sent(r, 3, 4), 0U);
  EXPECT_EQ(held(r, 1, MemoryCategory::kKv), 2 * kPage);  // a whole head all the same
  // One GPU to four: the same head twice. The decode replica's all-reduces are among themselves.
  r = with(
      "attention = \"tp\", tp = 4, ep = 4, prefill = { gpus = 4, attention = \"dp\", ep = 1 }");
  for (std::uint32_t g = 4; g < 8; ++g) {
    EXPECT_EQ(sent(r, 0, g), 2 * kPage) << g;
    EXPECT_EQ(held(r, g, MemoryCategory::kKv), (g < 8 ? 5 : 0) * kPage / 2) << g;
  }
  EXPECT_EQ(metric(r, "KV transferred"), 8 * kPage * 1e-9);
}

TEST(PrefillLayout, LatentsAreWholeOnEveryGpu) {
  // DeepSeek-V2-Lite: 27 layers of 512 + 64 values of 2 B a token. 64 tokens from the first of two
  // prefill GPUs, both of which hold them.
  const MemoryRun r =
      run_of({workload(1, "prompt = 64, output = 2", kOneEach),
              "model={ file = \"deepseek_v2_lite\", dtype = { experts = \"bf16\", shared = "
              "\"bf16\", router "
              "= \"fp32\", kv = \"bf16\" } }",
              "parallel={ ep = 1, prefill = { gpus = 2, attention = \"tp\", tp = 2, ep = 2 } }"});
  constexpr std::uint64_t kLatents = std::uint64_t{64} * 27 * 576 * 2;
  EXPECT_EQ(sent(r, 0, 2), kLatents);
  EXPECT_EQ(sent(r, 1, 2), 0U);
  EXPECT_EQ(held(r, 0, MemoryCategory::kKv), kLatents);
  EXPECT_EQ(held(r, 1, MemoryCategory::kKv), kLatents);
}

TEST(PrefillLayout, StepsAreThoseOfAClusterOfTheirOwn) {
  // One prompt and its answer: the prefill step is that of two GPUs alone, the decode steps those
  // of four alone, whatever else is in the cluster.
  const std::string two =
      R"(hardware.devices=[{ name = "gpu", count = 2, kind = "gpu", type = "toy" }, )"
      R"({ name = "switch", kind = "nvswitch" }])";
  const std::string four =
      R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
      R"({ name = "switch", kind = "nvswitch" }])";
  const std::string six =
      R"(hardware.devices=[{ name = "gpu", count = 6, kind = "gpu", type = "toy" }, )"
      R"({ name = "switch", kind = "nvswitch" }])";
  const auto links = [](int gpus) {
    return fmt::format(
        "hardware.links=[{{ from = \"gpu[0-{}]\", to = \"switch\", type = \"cable\" }}]", gpus - 1);
  };
  const std::string prefill = "attention = \"tp\", tp = 2, ep = 2";
  const MemoryRun both = run_of({workload(1, "prompt = 48, output = 4", kOneEach), six, links(6),
                                 "parallel={ ep = 4, prefill = { gpus = 2, " + prefill + " } }"});
  const MemoryRun first = run_of({workload(1, "prompt = 48, output = 1", "replicas = 1"), two,
                                  links(2), "parallel={ " + prefill + " }"});
  const MemoryRun then = run_of({workload(1, "prompt = 48, output = 4", "replicas = 1"), four,
                                 links(4), "parallel={ ep = 4 }"});
  ASSERT_EQ(both.data.steps.size(), 4U);
  ASSERT_EQ(then.data.steps.size(), 4U);
  const auto took = [](const MemoryRun& r, std::size_t i) {
    return r.data.steps[i].end_ps - r.data.steps[i].start_ps;
  };
  EXPECT_EQ(took(both, 0), took(first, 0));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(took(both, i), took(then, i)) << i;
    EXPECT_EQ(both.data.steps[i].phase_ps, then.data.steps[i].phase_ps);
    EXPECT_EQ(both.data.steps[i].imbalance, then.data.steps[i].imbalance);
    EXPECT_EQ(both.data.steps[i].hbm_bytes, then.data.steps[i].hbm_bytes);
  }
}

TEST(PrefillLayout, EverythingIsConserved) {
  const std::string lengths = "prompt = 200, prompt_cv = 1.0, output = 20, output_cv = 1.0";
  const std::string more = ", batching = { token_budget = 128, kv = \"2 MB\" }";
  for (const char* parallel : {
           "ep = 2, prefill = { gpus = 2, attention = \"tp\", tp = 2, ep = 2 }",
           "attention = \"tp\", tp = 2, ep = 4, prefill = { gpus = 4, tp = 4, ep = 2 }",
           "ep = 4, prefill = { gpus = 4, attention = \"tp\", tp = 2, ep = 4 }",
           "attention = \"tp\", tp = 4, ep = 4, sequence_parallel = true, vocab_parallel = true, "
           "prefill = { gpus = 4, attention = \"dp\", ep = 2, placement = \"eplb\", "
           "placement_options = { redundant = 2, choice = \"round_robin\" } }",
           "ep = 2, placement = \"topology_hot\", prefill = { gpus = 4, ep = 4 }",
           "ep = 2, prefill = { gpus = 4, ep = 4, placement = \"affinity\" }",
       }) {
    for (const char* model : {"bottleneck", "auto"}) {
      for (const char* dispatch : {"per_rank", "per_expert"}) {
        const MemoryRun r = run_of(
            {workload(30, lengths, kOneEach, more), fmt::format("parallel={{ {} }}", parallel),
             std::string("network.model=") + model, std::string("network.dispatch=") + dispatch,
             "policy.capacity={ rule = \"share\", factor = 1.0 }"});
        for (const auto& q : r.data.requests) {
          EXPECT_NE(q.outcome, run::RequestOutcome::kRunning) << parallel << ' ' << model;
        }
        EXPECT_GT(metric(r, "KV transferred"), 0) << parallel << ' ' << model;
      }
    }
  }
}

TEST(PrefillLayout, FlowsConserveEverything) { one_of_each("flow"); }
TEST(PrefillLayout, CoflowsConserveEverything) { one_of_each("coflow"); }

TEST(PrefillLayout, SeveralReplicasOfEachAndTwoRunsAgree) {
  const std::vector<std::string> settings{
      workload(60, "prompt = 100, prompt_cv = 1.0, output = 10, output_cv = 1.0",
               "replicas = 4, prefill_replicas = 2, balance = \"round_robin\""),
      "parallel={ attention = \"tp\", tp = 2, ep = 2, prefill = { gpus = 4, attention = \"dp\", ep "
      "= 2 } }",
      "network.model=auto"};
  const MemoryRun a = run_of(settings), b = run_of(settings);
  expect_same(a, b);
  std::vector<std::size_t> steps(4, 0);
  for (const run::StepScalars& s : a.data.steps) ++steps[s.engine];
  for (const std::size_t n : steps) EXPECT_GT(n, 0U);
  for (const auto& q : a.data.requests) EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
}

TEST(PrefillLayout, AGpuOfEitherKindIsLostAndComesBack) {
  for (const char* gpu : {"gpu0", "gpu5"}) {
    const MemoryRun r = run_of(
        {workload(40, "prompt = 100, output = 10",
                  "replicas = 2, prefill_replicas = 1, health_interval = \"1 ms\""),
         "parallel={ ep = 2, prefill = { gpus = 4, attention = \"tp\", tp = 2, ep = 4 } }",
         fmt::format("faults={{ detection = \"1 ms\", restart = \"1 ms\", reload = \"1000 GB/s\", "
                     "reaction = \"restart\", events = [{{ kind = \"gpu_loss\", gpu = \"{}\", step "
                     "= 6 }}] }}",
                     gpu)});
    EXPECT_EQ(metric(r, "faults"), 1);
    for (const auto& q : r.data.requests) EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
  }
}

TEST(PrefillLayout, TheShippedScenarioFitsAndHandsEveryPromptOver) {
  scenario::ReadOptions options;
  options.settings = {"workload.arrivals.requests=6", "workload.lengths.output=4"};
  const scenario::Scenario s = scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/prefill_decode_v3.toml", options);
  const MemoryRun r = run_in_memory(s, nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  // 58 MoE layers of FP8 experts: 256 over 16 GPUs, 288 over 32.
  constexpr std::uint64_t kBytes = std::uint64_t{3} * 7168 * 2048;
  std::uint64_t in = 0;
  for (std::uint32_t g = 0; g < 48; ++g) {
    EXPECT_EQ(held(r, g, MemoryCategory::kExperts), 58 * (g < 16 ? 16 : 9) * kBytes) << g;
    EXPECT_LT(r.data.totals.gpu_memory_peak[g], 80'000'000'000U) << g;
    for (std::uint32_t f = 0; f < 16; ++f) in += g >= 16 ? sent(r, f, g) : 0;
  }
  // Whole latents of every prompt, in pages of 16 tokens: 61 layers of 512 + 64 values of 2 B.
  std::uint64_t want = 0;
  for (const auto& q : r.data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    want += (q.prompt_tokens + 15) / 16 * 16 * std::uint64_t{61} * 576 * 2;
  }
  EXPECT_EQ(in, want);
}

TEST(PrefillLayout, WhatDoesNotAddUpIsRefusedByPlace) {
  const std::string good = workload(1, "prompt = 1, output = 1", kOneEach);
  const auto parallel = [](const std::string& text) { return "parallel={ " + text + " }"; };
  expect_refused({good, parallel("ep = 2, prefill = { ep = 2 }")},
                 "parallel.prefill.gpus is missing");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 8 }")}, "gpus < 8 GPUs of worked");
  expect_refused({good, parallel("dp = 8, ep = 2, prefill = { gpus = 4 }")},
                 "dp * tp * pp = 4 GPUs left: 8 of worked less 4 of parallel.prefill");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, dp = 3 }")},
                 "dp * tp = parallel.prefill.gpus = 4");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, ep = 3 }")},
                 "ep divides the 4 GPUs");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, tp = 2 }")},
                 "set parallel.prefill.attention");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, attention = \"pp\" }")}, "pp");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, pp = 2 }")},
                 "is unsupported for prefill replicas");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4, epp = 2 }")}, "epp");
  expect_refused({good, parallel("ep = 1, prefill = { gpus = 3, ep = 3 }")},
                 "ep divides the 8 experts");
  expect_refused({workload(1, "prompt = 1, output = 1", "replicas = 4, prefill_replicas = 2"),
                  parallel("ep = 2, prefill = { gpus = 4, ep = 4 }")},
                 "2 prefill replicas of 4 GPUs", "");
  expect_refused({workload(1, "prompt = 1, output = 1", "replicas = 3, prefill_replicas = 1"),
                  parallel("ep = 4, prefill = { gpus = 4 }")},
                 "2 decode replicas of 4 GPUs", "");
  expect_refused({workload(1, "prompt = 1, output = 1", "replicas = 2"),
                  parallel("ep = 2, prefill = { gpus = 4 }")},
                 "means nothing: no replica only computes prompts");
  expect_refused({good, parallel("ep = 2, prefill = { gpus = 4 }"), "memory.kv.placement=by_token"},
                 "memory.kv.placement");
}

TEST(PrefillLayout, AFileNamesTheLineOfWhatIsWrong) {
  const std::string folder = std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/";
  const std::string text =
      "[model]\nfile = \"worked_model.json\"\n[hardware]\nfile = \"worked_hardware.toml\"\n"
      "[parallel]\nep = 2\n[parallel.prefill]\ngpus = 4\nep = 3\n[workload]\nkind = \"decode\"\n"
      "batch = 1\ncontext = 1\nrouting = { synthetic = \"uniform\" }\n";
  try {
    static_cast<void>(scenario::read_scenario_text(text, folder + "pools.toml"));
    ADD_FAILURE() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(e.where().find("pools.toml:9:"), std::string::npos) << e.where();
    EXPECT_NE(std::string(e.what()).find("parallel.prefill.ep = 3"), std::string::npos) << e.what();
  }
}

}  // namespace switchyard::sim
