// SPDX-License-Identifier: Apache-2.0
// Experts loaded on demand inside the step loop: what a step waits, what travels, what is held.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using test::run_in_memory;

constexpr std::int64_t kExpertBytes = 3LL * 1024 * 2048 * 2;
/// From host memory: one hop of 1 us at 10 GB/s. From the SSD: 10 us and 1 us, 5 GB/s.
constexpr std::int64_t kFromHost = kExpertBytes * 100 + 1'000'000;
constexpr std::int64_t kFromSsd = kExpertBytes * 200 + 11'000'000;

scenario::Scenario offload(std::vector<std::string> settings = {}) {
  scenario::ReadOptions options;
  options.settings = std::move(settings);
  options.require_trace = false;
  return scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/residency/offload.toml", options);
}

/// One token a step on GPU 0, both layers; all experts on GPU 0 and 1 by halves.
const std::vector<std::vector<std::vector<std::uint16_t>>> kOneToken{{{0, 1}}, {{2, 3}}};

std::int64_t duration(const MemoryRun& r, std::size_t step) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}
std::string message(const std::vector<std::string>& settings) {
  try {
    const auto s = offload(settings);
    run_in_memory(s, nullptr);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

/// The decode trace of GPT-OSS-20B in tests/sim/data/residency: one sequence, a step a token.
RoutingTrace gpt_oss_trace() {
  const std::string text = read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                     "/tests/sim/data/residency/gpt_oss_20b_tulu3_if.txt");
  const std::size_t tokens = text.size() / 97;
  std::vector<std::vector<std::vector<std::uint16_t>>> choices(24);
  for (std::size_t l = 0; l < 24; ++l) {
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<std::uint16_t> ids;
      for (std::size_t j = 0; j < 4; ++j) {
        const char c = text[t * 97 + l * 4 + j];
        ids.push_back(static_cast<std::uint16_t>(c <= '9' ? c - '0' : c - 'a' + 10));
      }
      choices[l].push_back(ids);
    }
  }
  RoutingTrace trace = test::decode_trace(choices, 32);
  trace.sequences.resize(1);
  trace.step_begin.clear();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    trace.tokens.sequence[t] = 0;
    trace.tokens.position[t] = t + 1;
    trace.tokens.step[t] = t;
    trace.step_begin.push_back(t);
  }
  trace.step_begin.push_back(static_cast<std::uint32_t>(tokens));
  return trace;
}

}  // namespace

TEST(Residency, AColdStepWaitsForEachExpertAndAWarmOneForNone) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun all = run_in_memory(offload({"memory.residency={ policy = \"all\" }"}), &trace);
  const MemoryRun cold = run_in_memory(offload(), &trace);
  ASSERT_TRUE(cold.result.violations.empty()) << cold.result.violations[0].message;
  // Two layers, two experts of GPU 0 each, one after the other.
  EXPECT_EQ(duration(cold, 0), duration(all, 0) + 2 * 2 * kFromHost);
  EXPECT_EQ(duration(cold, 1), duration(all, 1));
  EXPECT_EQ(cold.data.steps[0].phase_ps[static_cast<std::size_t>(run::Phase::kWait)],
            4 * kFromHost);
  EXPECT_EQ(cold.data.steps[0].straggler_reason, run::StragglerReason::kExpertLoadFromHost);
  EXPECT_EQ(cold.data.layer_steps.straggler_reason[1],
            static_cast<std::uint8_t>(run::StragglerReason::kExpertLoadFromHost));
  EXPECT_DOUBLE_EQ(metric(cold, "expert hit rate"), 0.5);
  EXPECT_DOUBLE_EQ(metric(cold, "expert hit rate, Belady bound"), 0.5);
  EXPECT_DOUBLE_EQ(metric(cold, "experts loaded per step"), 2);
  EXPECT_NEAR(metric(cold, "expert load wait per step"), 4 * kFromHost / 2 * 1e-9, 1e-9);
  // The host's link carried them, nobody sent them to another GPU.
  std::uint64_t on_links = 0;
  for (const std::uint64_t b : cold.data.totals.link_bytes) on_links += b;
  EXPECT_EQ(on_links, 4U * kExpertBytes);
  EXPECT_EQ(cold.data.totals.bytes_sent, 0U);
  std::size_t events = 0;
  for (const run::Event& e : cold.data.events) {
    events +=
        e.text.find("4 experts loaded from host memory and 0 from the SSD") != std::string::npos
            ? 1
            : 0;
  }
  EXPECT_EQ(events, 1U);
}

// Assignments that are dropped ask for no expert: there is no rate, and none is printed.
TEST(Residency, AStepThatAsksForNothingHasNoRate) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun r =
      run_in_memory(offload({"policy.capacity.rule=\"absolute\"", "policy.capacity.absolute=0",
                             "policy.capacity.exhausted=\"drop_token\""}),
                    &trace);
  ASSERT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  const auto has = [&](const std::string& text) {
    return std::any_of(r.result.notes.begin(), r.result.notes.end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(has("experts: none was asked for"));
  EXPECT_FALSE(has("nan"));
}

TEST(Residency, TheLedgerHoldsWhatIsCached) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const auto experts = static_cast<std::size_t>(run::MemoryCategory::kExperts);
  const auto buffers = static_cast<std::size_t>(run::MemoryCategory::kBuffers);
  const MemoryRun two = run_in_memory(offload(), &trace);
  EXPECT_EQ(two.data.totals.gpu_memory[experts], 4U * kExpertBytes);
  EXPECT_EQ(two.data.totals.gpu_memory[run::kMemoryCategories + experts], 0U);
  // One slot: the second expert of a layer passes through.
  const MemoryRun one = run_in_memory(offload({"memory.residency.slots=1"}), &trace);
  EXPECT_TRUE(one.result.violations.empty());
  EXPECT_EQ(one.data.totals.gpu_memory[experts], 2U * kExpertBytes);
  EXPECT_EQ(one.data.totals.gpu_memory[buffers], 1U * kExpertBytes);
  EXPECT_DOUBLE_EQ(metric(one, "expert hit rate"), 0.25);
}

TEST(Residency, AHotStartHasNoColdMisses) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun all = run_in_memory(offload({"memory.residency={ policy = \"all\" }"}), &trace);
  for (const char* policy : {"lru", "static"}) {
    const MemoryRun hot =
        run_in_memory(offload({std::string("memory.residency.policy=") + policy,
                               "memory.residency.initial=hot", "memory.residency.profile_steps=1"}),
                      &trace);
    EXPECT_DOUBLE_EQ(metric(hot, "expert hit rate"), 1) << policy;
    EXPECT_EQ(duration(hot, 0), duration(all, 0)) << policy;
  }
}

TEST(Residency, AHotStartTakesTheLoadsOfAnotherRun) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  // The trace asks for experts 0 and 1 in layer 0, 2 and 3 in layer 1; the file says that, or the
  // other way round.
  std::string right = "layer,expert,load\n", wrong = right;
  for (int l = 0; l < 2; ++l) {
    for (int e = 0; e < 8; ++e) {
      const std::string row = std::to_string(l) + "," + std::to_string(e) + ",";
      right += row + (e / 2 == l ? "2\n" : "1\n");
      wrong += row + (e / 2 == 1 - l ? "2\n" : "1\n");
    }
  }
  write_file("right.csv", right);
  write_file("wrong.csv", wrong);
  const auto first_hits = [&](const char* file) {
    const MemoryRun r =
        run_in_memory(offload({"memory.residency.policy=static", "memory.residency.slots=2",
                               std::string("memory.residency.loads=./") + file}),
                      &trace);
    EXPECT_TRUE(r.result.violations.empty());
    return metric(r, "expert hit rate");
  };
  EXPECT_DOUBLE_EQ(first_hits("right.csv"), 1);
  EXPECT_DOUBLE_EQ(first_hits("wrong.csv"), 0);
  EXPECT_NE(message({"memory.residency.loads=./right.csv"}).find("means nothing"),
            std::string::npos);
  EXPECT_NE(message({"memory.residency.policy=static", "memory.residency.loads=./right.csv",
                     "memory.residency.profile_steps=3"})
                .find("give one of them"),
            std::string::npos);
}

TEST(Residency, WhatTheHostLacksComesFromTheSsdOnce) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun all = run_in_memory(offload({"memory.residency={ policy = \"all\" }"}), &trace);
  const MemoryRun r =
      run_in_memory(offload({"memory.residency.slots=1", "memory.residency.host_slots=2"}), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(duration(r, 0), duration(all, 0) + 4 * kFromSsd);
  // One of two hits; the other passed through and is in host memory now.
  EXPECT_EQ(duration(r, 1), duration(all, 1) + 2 * kFromHost);
  EXPECT_NEAR(metric(r, "experts from SSD"), 4.0 / 6, 1e-12);
}

TEST(Residency, PrefetchingOverlapsLoadsWithTheLayerBefore) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun demand = run_in_memory(offload(), &trace);
  const MemoryRun ahead = run_in_memory(offload({"memory.residency.prefetch=trace"}), &trace);
  EXPECT_TRUE(ahead.result.violations.empty());
  // The loads of layer 1 follow those of layer 0 at once, while the GPU computes the experts of
  // layer 0, and attention and router of layer 1.
  const auto& s = demand.data;
  const std::int64_t combine =
      s.steps[0].phase_ps[static_cast<std::size_t>(run::Phase::kCombine)] / 2;
  const std::int64_t beside = s.layer_steps.expert_ps[0] + combine + s.layer_steps.attention_ps[1] +
                              s.layer_steps.router_ps[1];
  EXPECT_EQ(duration(ahead, 0), duration(demand, 0) - beside);
  EXPECT_DOUBLE_EQ(metric(ahead, "prefetched experts used"), 1);
  EXPECT_DOUBLE_EQ(metric(ahead, "expert hit rate, layer 1"), 1);
  EXPECT_DOUBLE_EQ(metric(ahead, "expert hit rate, layer 0"), 0.5);
}

TEST(Residency, APrefetchThatIsNotNeededIsTakenBack) {
  // Steps alternate between two tokens, so the most frequent expert is wrong every other time.
  const RoutingTrace trace = test::decode_trace({{{0, 1}, {0, 1}}, {{2, 3}, {2, 1}}}, 8);
  const MemoryRun r = run_in_memory(
      offload({"memory.residency.prefetch=frequency", "memory.residency.prefetch_experts=2",
               "workload.batch=2", "workload.steps=6", "memory.residency.slots=2"}),
      &trace);
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  EXPECT_LE(metric(r, "prefetched experts used"), 1);
}

TEST(Residency, LoadsSlowDownAnExchangeOnTheSameLink) {
  // Two tokens, one on each GPU. Each sends to the other and loads over its one PCIe link.
  const RoutingTrace trace = test::decode_trace({{{0, 4}, {4, 0}}, {{0, 4}, {4, 0}}}, 8);
  std::int64_t durations[2] = {0, 0};
  int i = 0;
  for (const char* model : {"auto", "coflow"}) {
    const std::vector<std::string> settings{"workload.batch=2", "workload.steps=1",
                                            std::string("network.model=") + model};
    auto resident = settings;
    resident.push_back("memory.residency={ policy = \"all\" }");
    const MemoryRun r = run_in_memory(offload(settings), &trace);
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    durations[i++] = duration(r, 0);
    if (std::string(model) != "auto") continue;
    const MemoryRun all = run_in_memory(offload(resident), &trace);
    // Dispatch: 2048 B each way, its downlink shared with the load: twice the bytes/bandwidth.
    const std::int64_t alone = all.data.layer_steps.dispatch_ps[0];
    EXPECT_EQ(alone, 2048 * 100 + 2'000'000);
    EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 2 * 2048 * 100 + 2'000'000);
    // And the load ends as much later as the exchange took from it: one expert a layer and GPU.
    EXPECT_EQ(duration(r, 0) - duration(all, 0),
              2 * (kFromHost + 2048 * 100) - 2 * (2048 * 100 + 2'000'000));
  }
  EXPECT_NEAR(static_cast<double>(durations[0]), static_cast<double>(durations[1]),
              1e-9 * static_cast<double>(durations[0]) + 4);
}

TEST(Residency, TheClosedFormAloneRefusesTheMeeting) {
  const RoutingTrace trace = test::decode_trace({{{0, 4}, {4, 0}}, {{0, 4}, {4, 0}}}, 8);
  try {
    run_in_memory(offload({"workload.batch=2", "network.model=bottleneck"}), &trace);
    FAIL() << "loads and dispatch met on a link";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("at the same time as an exchange"), std::string::npos)
        << e.what();
  }
}

TEST(Residency, GivesTheHitRatesOfGptOssInsideTheSimulator) {
  // simulation.md 6: 0.4576, 0.6532, 0.8838 with 4, 8, 16 slots a layer.
  const RoutingTrace trace = gpt_oss_trace();
  for (const auto& [slots, hits] : {std::pair{4, 9137}, {8, 13044}, {16, 17648}}) {
    scenario::ReadOptions options;
    options.settings = {
        "model.file=gpt_oss_20b",
        "workload.steps=208",
        "workload.warmup_steps=0",
        "workload.routing={ trace = \"made_by_the_test.h5\" }",
        "memory.residency={ policy = \"lru\", slots = " + std::to_string(slots) + " }",
        "run.detail=summary"};
    options.require_trace = false;
    options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
    const auto s = scenario::read_scenario(
        std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/offload_lru.toml", options);
    const MemoryRun r = run_in_memory(s, &trace);
    EXPECT_TRUE(r.result.violations.empty());
    EXPECT_DOUBLE_EQ(metric(r, "expert hit rate"), hits / 19968.0) << slots;
    EXPECT_GT(metric(r, "expert hit rate, Belady bound"), hits / 19968.0);
  }
}

namespace {

/// Requests on two replicas of one GPU each, all experts on both.
scenario::Scenario replicas(const std::string& batching, std::vector<std::string> more = {}) {
  std::vector<std::string> set{
      "parallel.ep=1", "parallel.dp=2",
      "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { per_second "
      "= 300.0, requests = 30 }, lengths = { prompt = 40, prompt_cv = 0.5, output = 20 }, "
      "front_end = { replicas = 2 }, batching = { " +
          batching + " } }"};
  set.insert(set.end(), more.begin(), more.end());
  return offload(set);
}
std::uint64_t on_links(const MemoryRun& r) {
  std::uint64_t sum = 0;
  for (const std::uint64_t b : r.data.totals.link_bytes) sum += b;
  return sum;
}

}  // namespace

TEST(Residency, ReplicasLoadBySideOfEachOther) {
  for (const char* prefetch : {"none", "frequency", "trace"}) {
    const MemoryRun r = run_in_memory(
        replicas("token_budget = 64", {std::string("memory.residency.prefetch=") + prefetch}),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    std::size_t second = 0;
    for (const auto& s : r.data.steps) second += s.engine;
    EXPECT_GT(second, 0U);
    EXPECT_LT(second, r.data.steps.size());
    // Nothing but experts travels: a replica is one GPU.
    const double loaded =
        metric(r, "experts loaded per step") * static_cast<double>(r.data.steps.size());
    // What was taken back has not moved, and counts as loaded.
    EXPECT_GT(loaded, 0);
    if (std::string(prefetch) == "none") {
      EXPECT_NEAR(static_cast<double>(on_links(r)), loaded * kExpertBytes, 1);
    } else {
      EXPECT_LE(static_cast<double>(on_links(r)), loaded * kExpertBytes + 1);
    }
    for (const auto& q : r.data.requests) EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
  }
}

TEST(Residency, AStaticCacheServesRequestsThatArrive) {
  const auto hits = [&](const char* policy) {
    const MemoryRun r = run_in_memory(
        replicas("token_budget = 64",
                 {std::string("memory.residency={ policy = \"") + policy + "\", slots = 3 }"}),
        nullptr);
    EXPECT_TRUE(r.result.violations.empty()) << policy;
    for (const auto& q : r.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << policy;
    }
    return metric(r, "expert hit rate");
  };
  const double rate = hits("static");
  EXPECT_GT(rate, 0);
  EXPECT_LT(rate, 1);
  EXPECT_GT(hits("lru\", initial = \"hot"), 0);
}

TEST(Residency, PagesThatSwapTakeTheLinksOfTheLoads) {
  // One GPU's pages for 64 tokens: 2,048 B a token, 16 tokens a page.
  const std::string few = "token_budget = 64, kv = \"262144 B\", preemption = \"swap\"";
  const auto run = [&](const std::string& batching, const char* policy) {
    const MemoryRun r = run_in_memory(
        replicas(batching, {policy == std::string("all")
                                ? "memory.residency={ policy = \"all\" }"
                                : "memory.residency={ policy = \"lru\", slots = 2 }"}),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    for (const auto& q : r.data.requests) {
      // Some prompts are longer than the pages of a GPU.
      EXPECT_TRUE(q.outcome == run::RequestOutcome::kFinished ||
                  q.outcome == run::RequestOutcome::kRejected);
    }
    return r;
  };
  const MemoryRun alone = run(few, "all");
  ASSERT_GT(metric(alone, "preemptions"), 0);
  EXPECT_NEAR(static_cast<double>(on_links(alone)), metric(alone, "KV swapped") * 1e9, 1);
  // A page of 32,768 B waits 1 us + 3.2768 us at least, in the phase that says so.
  std::int64_t waits = 0;
  for (const auto& s : alone.data.steps) {
    waits += s.phase_ps[static_cast<std::size_t>(run::Phase::kWait)];
  }
  EXPECT_GE(waits, 2 * 4'276'800);
  const MemoryRun stated = run(few + ", swap_bandwidth = \"10 GB/s\"", "all");
  EXPECT_EQ(on_links(stated), 0U);
  const MemoryRun both = run(few, "lru");
  ASSERT_GT(metric(both, "preemptions"), 0);
  EXPECT_GT(on_links(both), static_cast<std::uint64_t>(metric(both, "KV swapped") * 1e9));
}

TEST(Residency, SwappingOverTheLinksSaysWhatItDoesNotTake) {
  write_file("measured.csv", "bytes,GB/s\n1000,1\n1000000,9\n");
  const auto says = [](std::vector<std::string> more, const char* part) {
    more.emplace_back("memory.residency={ policy = \"all\" }");
    try {
      (void)run_in_memory(replicas("preemption = \"swap\"", std::move(more)), nullptr);
      ADD_FAILURE() << "accepted, not: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says({"network.chunks=2"}, "over the links is unsupported with network.chunks");
  says({"network.measured={ file = \"measured.csv\", class = \"pcie4\" }"},
       "over the links is unsupported with network.measured");
}

namespace {

/// The two GPUs, their host and a pool behind a port of 4 GB/s.
std::vector<std::string> pooled(std::vector<std::string> more) {
  std::vector<std::string> all{
      R"(hardware.devices=[{ name = "gpu", count = 2, kind = "gpu", type = "toy" }, )"
      R"({ name = "cpu", kind = "cpu", memory = "1 GB" }, )"
      R"({ name = "pool", kind = "cxl", memory = "1 GB" }])",
      R"(hardware.links=[{ from = "gpu[0-1]", to = "cpu", type = "pcie" }, )"
      R"({ from = "pool", to = "cpu", class = "cxl", bandwidth = "4 GB/s", latency = "0.2 us" }])"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST(Residency, ACxlPoolStandsBehindOrInPlaceOfHostMemory) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun all =
      run_in_memory(offload(pooled({"memory.residency={ policy = \"all\" }"})), &trace);
  const auto run = [&](const std::string& tiers) {
    const MemoryRun r = run_in_memory(
        offload(pooled(
            {"memory.residency={ policy = \"lru\", slots = 2, store = \"cxl\"" + tiers + " }"})),
        &trace);
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    return r;
  };
  // Straight from the pool: its port decides, and both hops' latency.
  const std::int64_t from_pool = kExpertBytes * 250 + 1'200'000;
  const MemoryRun straight = run("");
  EXPECT_EQ(duration(straight, 0), duration(all, 0) + 4 * from_pool);
  EXPECT_EQ(duration(straight, 1), duration(all, 1));
  EXPECT_DOUBLE_EQ(metric(straight, "experts from CXL pool"), 1);
  std::size_t events = 0;
  for (const run::Event& e : straight.data.events) {
    events += e.text.find("4 from the CXL pool") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(events, 1U);
  // Host memory keeps two of a layer: the first step takes them from the pool, as above. A GPU
  // that lets go of one finds it in host memory.
  EXPECT_EQ(duration(run(", host_slots = 2"), 0), duration(all, 0) + 4 * from_pool);
  const MemoryRun warm = run(", host_slots = 4, initial = \"hot\", profile_steps = 1");
  EXPECT_EQ(duration(warm, 0), duration(all, 0));
}

TEST(Residency, PagesSwapToAPool) {
  const std::string few = "token_budget = 64, kv = \"262144 B\", preemption = \"swap\"";
  const auto run = [&](const std::string& tier) {
    const MemoryRun r = run_in_memory(
        replicas(few + tier, pooled({"memory.residency={ policy = \"all\" }"})), nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    return r;
  };
  const MemoryRun host = run(""), pool = run(", swap_tier = \"cxl\"");
  ASSERT_GT(metric(pool, "preemptions"), 0);
  // Host memory is one link away, the pool two.
  EXPECT_NEAR(static_cast<double>(on_links(host)), metric(host, "KV swapped") * 1e9, 1);
  EXPECT_NEAR(static_cast<double>(on_links(pool)), 2 * metric(pool, "KV swapped") * 1e9, 1);
}

TEST(Residency, APoolSaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> more, const char* part) {
    EXPECT_NE(message(more).find(part), std::string::npos) << message(more);
  };
  says({"memory.residency={ policy = \"lru\", slots = 2, store = \"cxl\" }"},
       "hardware offload has no cxl device");
  says(
      pooled({"memory.residency={ policy = \"lru\", slots = 2, store = \"cxl\", host_slots = 8 }"}),
      "host memory keeps every expert");
  says(pooled({"memory.residency={ policy = \"all\", store = \"cxl\" }"}),
       "means nothing while every expert is resident");
  std::vector<std::string> small =
      pooled({"memory.residency={ policy = \"lru\", slots = 2, store = \"cxl\" }",
              "workload.routing={ synthetic = \"uniform\" }"});
  small[0].replace(small[0].rfind("1 GB"), 4, "1 MB");
  says(small, "pool has 976.56 KiB");
  for (const char* batching :
       {"swap_tier = \"cxl\"", "preemption = \"swap\", swap_tier = \"cxl\""}) {
    try {
      (void)run_in_memory(replicas(batching, {"memory.residency={ policy = \"all\" }"}), nullptr);
      ADD_FAILURE() << "accepted: " << batching;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("swap_tier"), std::string::npos) << e.what();
    }
  }
}

TEST(Residency, ADegradedLinkCarriesLoadsAtItsShare) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun cold = run_in_memory(offload(), &trace);
  const MemoryRun half = run_in_memory(
      offload({"faults.events=[{ kind = \"link_degraded\", link = \"gpu0--cpu\", factor = 0.5, "
               "step = 0 }]"}),
      &trace);
  EXPECT_TRUE(half.result.violations.empty());
  // Two layers with two experts each, at half the bandwidth.
  EXPECT_EQ(duration(half, 0), duration(cold, 0) + 4 * kExpertBytes * 100);
}

TEST(Residency, FaultsOfGpusAndHostsGoOnBesideIt) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun cold = run_in_memory(offload(), &trace);
  const MemoryRun stall = run_in_memory(
      offload({"faults.events=[{ kind = \"host_stall\", stall = \"3 ms\", step = 1 }]"}), &trace);
  EXPECT_EQ(duration(stall, 1), duration(cold, 1) + 3'000'000'000);
  for (const char* kind :
       {"kind = \"slow_gpu\", gpu = \"gpu0\"", "kind = \"slow_expert\", expert = 2"}) {
    const MemoryRun slow = run_in_memory(
        offload({std::string("faults.events=[{ factor = 3, step = 0, ") + kind + " }]"}), &trace);
    EXPECT_TRUE(slow.result.violations.empty());
    EXPECT_GT(duration(slow, 1), duration(cold, 1)) << kind;
    EXPECT_DOUBLE_EQ(metric(slow, "expert hit rate"), metric(cold, "expert hit rate"));
  }
}

TEST(Residency, SurvivorsLoadTheExpertsOfALostGpuWhenAskedFor) {
  const std::vector<std::string> set{"workload.routing={ synthetic = \"uniform\" }",
                                     "workload.batch=8", "workload.steps=8"};
  std::vector<std::string> lossy = set;
  lossy.emplace_back(
      "faults.events=[{ kind = \"gpu_loss\", gpu = \"gpu1\", step = 3, lasts = 3 }]");
  const MemoryRun healthy = run_in_memory(offload(set), nullptr);
  const MemoryRun r = run_in_memory(offload(lossy), nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
  const auto experts = [](const MemoryRun& m, std::size_t step, std::size_t gpu) {
    return m.data.gpus.memory[(step * 2 + gpu) * run::kMemoryCategories +
                              static_cast<std::size_t>(run::MemoryCategory::kExperts)];
  };
  EXPECT_GT(experts(r, 2, 1), 0U);
  EXPECT_EQ(experts(r, 4, 1), 0U);
  EXPECT_GT(experts(r, 7, 1), 0U);
  EXPECT_GT(metric(r, "experts loaded per step"), metric(healthy, "experts loaded per step"));
  for (const run::StepScalars& s : r.data.steps) EXPECT_EQ(s.assignments, s.tokens * 4);
}

TEST(Residency, CopiesOfAnExpertAreCachedWhereTheyServe) {
  const std::vector<std::string> set{
      "workload.routing={ synthetic = \"zipf\", s = 1.5 }", "workload.batch=16", "workload.steps=6",
      "parallel.placement=eplb", "parallel.placement_options={ redundant = 2 }"};
  for (const char* prefetch : {"none", "trace", "frequency"}) {
    auto with = set;
    with.push_back(std::string("memory.residency.prefetch=") + prefetch);
    const MemoryRun r = run_in_memory(offload(with), nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    EXPECT_GT(metric(r, "expert hit rate"), 0);
    EXPECT_LE(metric(r, "expert hit rate"), 1);
    if (std::string(prefetch) == "none") {
      EXPECT_LE(metric(r, "expert hit rate"), metric(r, "expert hit rate, Belady bound"));
    }
  }
}

TEST(Residency, RebalancingMovesNoWeightsButWhoLoadsThem) {
  const std::vector<std::string> set{
      "workload.routing={ synthetic = \"zipf\", s = 1.5 }",
      "workload.batch=16",
      "workload.steps=12",
      "parallel.placement=eplb",
      "parallel.placement_options={ redundant = 2, profile_steps = 1 }",
      "parallel.rebalance={ signal = \"load\", threshold = 1.0, window = 2, cooldown = 2 }"};
  const MemoryRun r = run_in_memory(offload(set), nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
  std::size_t moves = 0;
  for (const run::Event& e : r.data.events) {
    if (!e.text.starts_with("rebalance: ")) continue;
    ++moves;
    EXPECT_NE(e.text.find("are loaded when asked for"), std::string::npos) << e.text;
  }
  EXPECT_GT(moves, 0U);
  EXPECT_LE(metric(r, "expert hit rate"), metric(r, "expert hit rate, Belady bound"));
  // No GPU holds more than its slots of both layers.
  const auto experts = static_cast<std::size_t>(run::MemoryCategory::kExperts);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_LE(r.data.totals.gpu_memory[g * run::kMemoryCategories + experts],
              std::uint64_t{2 * 2 * kExpertBytes});
  }
}

TEST(Residency, ALoadMendsADamagedExpert) {
  const auto flip = [](const std::vector<std::string>& more) {
    std::vector<std::string> set{
        "workload.routing={ synthetic = \"uniform\" }", "workload.steps=24",
        "faults={ check_every = 1000, reload = \"10 GB/s\", events = [{ kind = \"bit_flip\", "
        "expert = 2, layer = 0, step = 4 }] }"};
    set.insert(set.end(), more.begin(), more.end());
    MemoryRun r = run_in_memory(offload(set), nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    return r;
  };
  // Every assignment of the steps from the flip to the load that mends it; no check comes by. With
  // as many slots as experts nothing is ever loaded again.
  const MemoryRun stays = flip({"memory.residency.slots=4", "memory.residency.initial=hot"});
  const MemoryRun mended = flip({"memory.residency.slots=1", "memory.residency.initial=hot"});
  std::uint64_t kept = 0;
  for (std::size_t s = 4; s < stays.data.steps.size(); ++s) {
    kept += stays.data.layer_experts[0].kept[s * 8 + 2];
  }
  EXPECT_EQ(metric(stays, "assignments on damaged weights"), static_cast<double>(kept));
  EXPECT_LT(metric(mended, "assignments on damaged weights"), static_cast<double>(kept));
}

TEST(Residency, EachColumnOfACutExpertLoadsItsOwn) {
  const auto run = [](const std::string& ep, const std::string& prefetch) {
    MemoryRun r = run_in_memory(
        offload({"workload.routing={ synthetic = \"uniform\" }", "workload.steps=6",
                 "parallel.attention=tp", "parallel.dp=1", "parallel.tp=2", "parallel.ep=" + ep,
                 "memory.residency.slots=1", "memory.residency.prefetch=" + prefetch}),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    return r;
  };
  const auto experts = static_cast<std::size_t>(run::MemoryCategory::kExperts);
  for (const char* prefetch : {"none", "frequency"}) {
    const MemoryRun cut = run("1", prefetch);
    EXPECT_GT(cut.data.totals.gpu_memory[experts], 0U) << prefetch;
    EXPECT_EQ(cut.data.totals.gpu_memory[experts],
              cut.data.totals.gpu_memory[run::kMemoryCategories + experts])
        << prefetch << ": half of each expert on either GPU";
  }
  EXPECT_GT(metric(run("1", "none"), "expert bytes loaded per step"),
            0.9 * metric(run("2", "none"), "expert bytes loaded per step"));
}

TEST(Residency, LoadsGoRoundABrokenCable) {
  const auto run = [](const std::string& faults) {
    MemoryRun r = run_in_memory(
        offload({"workload.routing={ synthetic = \"uniform\" }", "workload.steps=12",
                 "workload.batch=4", "memory.residency.slots=1", "network.model=auto",
                 "hardware.links=[{ from = \"gpu[0-1]\", to = \"cpu\", type = \"pcie\" }, { from = "
                 "\"gpu0\", to = \"gpu1\", type = \"pcie\" }, { from = \"ssd\", to = \"cpu\", "
                 "class = \"pcie4\", bandwidth = \"8 GB/s\", latency = \"10 us\" }]",
                 faults}),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    return r;
  };
  const MemoryRun r =
      run("faults={ reload = \"10 GB/s\", events = [{ kind = \"link_down\", link = \"gpu1--cpu\", "
          "step = 4, lasts = 4 }] }");
  std::size_t cable = r.data.inventory.links.size();
  for (std::size_t k = 0; k < r.data.inventory.links.size(); ++k) {
    const run::LinkInfo& l = r.data.inventory.links[k];
    if (l.from == "cpu" && l.to == "gpu1") cable = k;
  }
  ASSERT_LT(cable, r.data.inventory.links.size());
  const auto carried = [&](std::size_t first, std::size_t beyond) {
    std::uint64_t sum = 0;
    for (std::size_t s = first; s < beyond; ++s) {
      sum += r.data.links.bytes[s * r.data.inventory.links.size() + cable];
    }
    return sum;
  };
  EXPECT_GT(carried(0, 4), 0U);
  EXPECT_EQ(carried(4, 8), 0U);
  EXPECT_GT(carried(8, 12), 0U);
  EXPECT_LT(metric(r, "expert hit rate"), 1);
}

TEST(Residency, SaysWhatItDoesNotTake) {
  const auto says = [](const std::vector<std::string>& settings, const char* part) {
    std::vector<std::string> all{"workload.routing={ synthetic = \"uniform\" }"};
    all.insert(all.end(), settings.begin(), settings.end());
    const std::string got = message(all);
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  says({"memory.residency.slots=0"}, "slots");
  says({"memory.residency.slots=9"}, "slots");
  says({"memory.residency.policy=fifo"}, "fifo");
  says({"memory.residency.host_slots=0"}, "host_slots");
  says({"memory.residency={ policy = \"all\", slots = 2 }"}, "means nothing");
  says({"memory.residency.prefetch_experts=2"}, "means nothing");
  says({"memory.residency.profile_steps=2"}, "means nothing");
  says({"memory.residency.policy=static", "memory.residency.prefetch=trace"},
       "a static cache brings nothing in");
  says({"memory.residency.policy=static", "memory.residency.initial=empty"}, "stays empty");
  says({"hardware.devices=[{ name = \"gpu\", count = 2, kind = \"gpu\", type = \"toy\" }]",
        "hardware.links=[{ from = \"gpu0\", to = \"gpu1\", type = \"pcie\" }]"},
       "has no cpu device to load experts from");
  says({"parallel.placement=eplb", "parallel.placement_options={ redundant = 2 }",
        "parallel.rebalance={ signal = \"load\", threshold = 1.01 }",
        "memory.residency.policy=static", "memory.residency.initial=hot"},
       "a static cache never keeps what moves");
  const std::string fault = "faults.events=[{ step = 1, kind = ";
  says({fault + "\"gpu_loss\", gpu = \"gpu1\" }]", "memory.residency.policy=static",
        "memory.residency.initial=hot"},
       "a static cache never keeps what moves");
  says({fault + "\"slow_expert\", expert = 2, factor = 2 }]",
        "monitor.alarms=[{ signal = \"expert_latency\", above = 2, action = \"reload\" }]"},
       "is unsupported with memory.residency");
  says({"memory.residency.host_slots=8", "hardware.link_types.pcie.bandwidth=\"1 GB/s\""},
       "accepted");
  says({"model.expert_intermediate=16384"},
       "8 experts of 2 layers take 1.50 GiB, cpu has 953.67 MiB");
  says({"memory.residency.host_slots=2", "model.expert_intermediate=16384",
        "hardware.devices=[{ name = \"gpu\", count = 2, kind = \"gpu\", type = \"toy\" }, { name = "
        "\"cpu\", kind = \"cpu\", memory = \"1 GB\" }, { name = \"ssd\", kind = \"ssd\", bandwidth "
        "= "
        "\"5 GB/s\", memory = \"1 GB\" }]"},
       "8 experts of 2 layers take 1.50 GiB, ssd has 953.67 MiB");
}

}  // namespace switchyard::sim
