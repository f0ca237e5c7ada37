// SPDX-License-Identifier: Apache-2.0
// KV caches spread over the GPUs by token: what is held where, and what travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

constexpr std::size_t kKv = static_cast<std::size_t>(run::MemoryCategory::kKv);

MemoryRun spread(std::vector<std::string> settings = {}) {
  settings.insert(settings.begin(), {R"(workload.routing={ synthetic = "uniform" })",
                                     "memory.kv.placement=by_token"});
  return run_in_memory(worked_scenario(std::move(settings)), nullptr);
}
std::int64_t collective(const MemoryRun& r, std::size_t step) {
  return r.data.steps[step].phase_ps[static_cast<std::size_t>(run::Phase::kCollective)];
}

}  // namespace

TEST(KvByToken, HoldsAnEighthOnEachGpuAndPullsTheRest) {
  // 4 sequences of 1024 tokens in blocks of 4, 256 blocks, 32 on each of 8 GPUs; the new token
  // begins block 256, which is the home's. One token: 512 values, 1024 B a layer, two layers.
  const MemoryRun r = spread();
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  for (std::size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv],
              4U * 128 * 2048 + (g < 4 ? 4U * 2048 : 0U))
        << g;
  }
  // A home pulls 128 tokens from each of seven GPUs over its link of 100 GB/s, each layer.
  EXPECT_EQ(collective(r, 0), 2 * (7 * 128 * 1024 * 10 + 2'000'000));
  std::uint64_t into_home = 0;
  for (std::size_t g = 0; g < 8; ++g) into_home += r.data.totals.pair_bytes[g * 8 + 0];
  EXPECT_GE(into_home, 2U * 7 * 128 * 1024);
}

TEST(KvReplicated, SendsEveryNewTokenToTheOtherGpusInEachLayer) {
  // Four homes, one new token each: 1024 B a layer to seven GPUs over the home's 100 GB/s link.
  const MemoryRun r = spread({"memory.kv.placement=replicated"});
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  EXPECT_EQ(collective(r, 0), 2 * (7 * 1024 * 10 + 2'000'000));
  const MemoryRun here = spread({"memory.kv.placement=by_sequence"});
  EXPECT_EQ(collective(here, 0), 0);
  const std::uint64_t steps = r.data.steps.size();
  std::uint64_t sent = 0, alone = 0;
  for (const run::StepScalars& s : r.data.steps) sent += s.bytes_sent;
  for (const run::StepScalars& s : here.data.steps) alone += s.bytes_sent;
  EXPECT_EQ(sent - alone, steps * 2 * 4 * 7 * 1024);
}

TEST(KvReplicated, BroadcastsByTheAlgorithmThatIsStated) {
  const auto took = [](const char* how) {
    const MemoryRun r = spread({"memory.kv.placement=replicated", "workload.batch=1",
                                std::string("network.broadcast=") + how});
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    return collective(r, 0);
  };
  // One home, 1,024 B a layer: all at once over its link, or three doublings, or a chain.
  EXPECT_EQ(took("direct"), 2 * (7 * 1024 * 10 + 2'000'000));
  EXPECT_EQ(took("tree"), 2 * 3 * (1024 * 10 + 2'000'000));
  EXPECT_EQ(took("ring"), 2 * (1024 * 10 + 2'000'000));  // The home goes on after its own send.
  EXPECT_EQ(took("hierarchical"), took("direct"));       // One server.
}

TEST(KvByToken, KeepsEveryByteThatBySequenceKeeps) {
  const MemoryRun here = spread({"memory.kv.placement=by_sequence", "memory.kv.block=4"});
  for (const char* block : {"memory.kv.block=4", "memory.kv.block=16"}) {
    const MemoryRun r = spread({"workload.steps=9", block});
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  }
  const auto sum = [](const MemoryRun& r) {
    std::uint64_t bytes = 0;
    for (std::size_t g = 0; g < 8; ++g) {
      bytes += r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv];
    }
    return bytes;
  };
  EXPECT_EQ(sum(spread()), sum(here));
  EXPECT_EQ(collective(here, 0), 0);
}

TEST(KvByToken, SendsNewTokensToTheirPlace) {
  // Prefill of 64 tokens, nothing cached: 16 blocks, two on each GPU; the home sends 7 x 8 tokens.
  const MemoryRun r = run_in_memory(
      worked_scenario(
          {R"(workload={ kind = "prefill", tokens = 64, steps = 1, routing = { synthetic = "uniform" } })",
           "memory.kv.placement=by_token"}),
      nullptr);
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  EXPECT_EQ(collective(r, 0), 2 * (7 * 8 * 1024 * 10 + 2'000'000));
}

TEST(KvByToken, StaysInsideOneCopyOfTheExperts) {
  const MemoryRun r = spread({"parallel.ep=2"});
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  // Homes 0 to 3 are in the groups {0, 1} and {2, 3}: the other four GPUs hold nothing.
  for (std::size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv] > 0, g < 4) << g;
  }
  EXPECT_EQ(collective(r, 0), 2 * (512 * 1024 * 10 + 2'000'000));
}

TEST(KvMerge, MovesQueriesAndPartsInPlaceOfKeysAndValues) {
  // Eight heads of 128: a query is 8 x 128 x 2 B, a part 8 x (128 + 2) x 4 B, one of each for every
  // sequence and holder beside its home; pull moves 128 tokens x 1,024 B.
  const std::uint64_t query = 2048, part = 4160, pages = 128 * 1024;
  const MemoryRun here = spread({"memory.kv.placement=by_sequence"});
  const MemoryRun pull = spread({"memory.kv.decode=pull"});
  const MemoryRun merge = spread({"memory.kv.decode=merge"});
  for (const auto& v : merge.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  const auto sent = [](const MemoryRun& r) { return r.data.steps[0].bytes_sent; };
  EXPECT_EQ(sent(pull) - sent(here), 2U * 4 * 7 * pages);
  EXPECT_EQ(sent(merge) - sent(here), 2U * 4 * 7 * (query + part));
  // The home's own link of 100 GB/s carries seven queries out, then seven parts in.
  EXPECT_EQ(collective(merge, 0),
            2 * static_cast<std::int64_t>(7 * query * 10 + 7 * part * 10 + 2 * 2'000'000));
  EXPECT_EQ(collective(pull, 0), collective(spread(), 0));  // The default.
  // Every GPU keeps what it kept.
  EXPECT_EQ(merge.data.totals.gpu_memory[5 * run::kMemoryCategories + kKv],
            pull.data.totals.gpu_memory[5 * run::kMemoryCategories + kKv]);
  // Four homes beside four GPUs without sequences: with pull those compute no attention.
  const auto attention = [](const MemoryRun& r, std::size_t g) {
    return r.data.totals
        .gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(run::Phase::kAttention)];
  };
  EXPECT_EQ(attention(pull, 7), 0);
  EXPECT_GT(attention(merge, 7), 0);
}

TEST(KvMerge, FollowsTheExperts) {
  const RoutingTrace trace =
      test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const MemoryRun r = run_in_memory(
      worked_scenario({"memory.kv.placement=by_expert", "memory.kv.decode=merge"}), &trace);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  // Layer 0: GPU 1 gets two queries, sends two parts, keeps two new tokens of 1,024 B. Layer 1:
  // four pairs side by side.
  EXPECT_EQ(collective(r, 0),
            10 * (2 * 2048 + 2 * 4160 + 2 * 1024) + 10 * (2048 + 4160 + 1024) + 6 * 2'000'000);
}

TEST(KvMerge, MeansNothingWithoutKeysAndValuesElsewhere) {
  const auto says = [](std::vector<std::string> settings, const char* part) {
    settings.emplace_back("memory.kv.decode=merge");
    try {
      spread(std::move(settings));
      ADD_FAILURE() << "accepted, not: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says({"memory.kv.placement=by_sequence"}, "lie at its home");
  says({R"(workload={ kind = "prefill", tokens = 64, steps = 1, )"
        R"(routing = { synthetic = "uniform" } })"},
       "no token is decoded");
}

TEST(KvByToken, SaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> settings, const char* part) {
    try {
      spread(std::move(settings));
      ADD_FAILURE() << "accepted, not: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says({"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=8"},
       "unsupported with parallel.attention = \"tp\"");
  says(
      {R"(faults={ reload = "25 GB/s", events = [{ kind = "gpu_loss", gpu = "gpu3", step = 0 }] })"},
      "memory.kv.placement = \"by_token\" is unsupported with faults");
  says({"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, "
        "arrivals = { process = \"poisson\", per_second = 40.0, requests = 2 }, "
        "lengths = { prompt = 16, output = 4 }, "
        "front_end = { replicas = 2, prefill_replicas = 1 } }",
        "parallel.ep=4"},
       "prefill_replicas with memory.kv.placement = \"by_token\" and \"by_expert\" is unsupported");
}

namespace {

/// Layer 0: the tokens of sequences 1, 2 and 3 choose expert 1 first; layer 1: GPUs 4 to 7.
RoutingTrace skewed() {
  return test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}},
                            8);
}
std::uint64_t kv_of(const MemoryRun& r, std::size_t g) {
  return r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv];
}

}  // namespace

TEST(KvByExpert, FollowsTheFirstChoiceOfEachLayer) {
  const RoutingTrace trace = skewed();
  const MemoryRun r = run_in_memory(worked_scenario({"memory.kv.placement=by_expert"}), &trace);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  // 1,025 tokens take 65 pages of 16 tokens x 1,024 B of one layer.
  const std::uint64_t one = 65 * 16 * 1024;
  const std::vector<std::uint64_t> sequences{1, 3, 0, 0, 1, 1, 1, 1};
  for (std::size_t g = 0; g < 8; ++g) EXPECT_EQ(kv_of(r, g), sequences[g] * one) << g;
  // Layer 0: GPU 1 sends 1,024 tokens to GPUs 2 and 3 each and gets a new one from both. Layer 1:
  // four pairs side by side.
  const std::int64_t mib = 1024 * 1024 * 10, token = 1024 * 10, path = 2'000'000;
  EXPECT_EQ(collective(r, 0), 2 * mib + 2 * token + mib + token + 4 * path);
  EXPECT_GE(r.data.totals.pair_bytes[1 * 8 + 2], 1024U * 1024);
  EXPECT_EQ(r.data.totals.pair_bytes[4 * 8 + 0] >= 1024U * 1024, true);
}

TEST(KvByExpert, KeepsEveryTokenWhateverTheLayout) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"parallel.ep=2"},
        {"memory.kv.block=1"},
        {"parallel.placement=eplb", "parallel.placement_options.redundant=8"},
        {"parallel.attention=hub", "network.chunks=2"},
        {"memory.allocator=paged"}}) {
    std::vector<std::string> set{"memory.kv.placement=by_expert", "workload.steps=5",
                                 "workload.batch=16", "workload.context=100"};
    set.insert(set.end(), more.begin(), more.end());
    const MemoryRun r = spread(set);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    std::uint64_t sum = 0;
    for (std::size_t g = 0; g < 8; ++g) sum += kv_of(r, g);
    // At least the tokens themselves: 105 of 2,048 B for each of 16 sequences.
    EXPECT_GE(sum, 16U * 105 * 2048);
    if (!more.empty() && more[0] == "memory.kv.block=1") {
      EXPECT_EQ(sum, 16U * 105 * 2048);
    }
  }
}

TEST(KvByExpert, IsWhereMemoryFollowsRouting) {
  // Everybody's first choice is expert 3 of both layers.
  const RoutingTrace trace =
      test::decode_trace({{{3, 0}, {3, 1}, {3, 2}, {3, 4}}, {{3, 0}, {3, 1}, {3, 2}, {3, 4}}}, 8);
  for (const char* place : {"by_sequence", "by_token", "by_expert"}) {
    const MemoryRun r = run_in_memory(
        worked_scenario({std::string("memory.kv.placement=") + place, "memory.kv.block=16"}),
        &trace);
    std::uint64_t sum = 0;
    for (std::size_t g = 0; g < 8; ++g) sum += kv_of(r, g);
    EXPECT_EQ(kv_of(r, 3) == sum, std::string(place) == "by_expert") << place;
  }
}

TEST(KvByExpert, SaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> settings, const char* part) {
    settings.emplace_back("memory.kv.placement=by_expert");
    try {
      spread(std::move(settings));
      ADD_FAILURE() << "accepted, not: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says({"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=8"},
       "unsupported with parallel.attention = \"tp\"");
  says({R"(faults.events=[{ kind = "slow_gpu", factor = 2, gpu = "gpu3", step = 0 }])"},
       "memory.kv.placement = \"by_expert\" is unsupported with faults");
  says({"model.file=gpt_oss_20b"}, "unsupported with sliding-window attention");
  says({"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, "
        "arrivals = { process = \"poisson\", per_second = 40.0, requests = 2 }, "
        "lengths = { prompt = 16, output = 4 }, "
        "front_end = { replicas = 2, prefill_replicas = 1 } }",
        "parallel.ep=4"},
       "prefill_replicas with memory.kv.placement = \"by_token\" and \"by_expert\" is unsupported");
}

namespace {

/// Requests of that shape that arrive at once; `more` goes into the workload.
MemoryRun serve(std::uint32_t requests, std::uint32_t prompt, std::uint32_t output,
                const std::string& placement, const std::string& more = "",
                std::vector<std::string> settings = {}) {
  settings.insert(
      settings.begin(),
      {"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { "
       "per_second = 1e9, requests = " +
           std::to_string(requests) + " }, lengths = { prompt = " + std::to_string(prompt) +
           ", output = " + std::to_string(output) + " }" + more + " }",
       "memory.kv.placement=" + placement});
  MemoryRun r = run_in_memory(worked_scenario(std::move(settings)), nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  return r;
}
std::uint64_t kv_in(const MemoryRun& r, std::size_t step, std::size_t gpu) {
  return r.data.gpus.memory[(step * 8 + gpu) * run::kMemoryCategories + kKv];
}
std::uint64_t most_kv(const MemoryRun& r) {
  std::uint64_t most = 0;
  for (std::size_t step = 0; step < r.data.steps.size(); ++step) {
    for (std::size_t g = 0; g < 8; ++g) most = std::max(most, kv_in(r, step, g));
  }
  return most;
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}
void expect_finished(const MemoryRun& r) {
  for (const run::RequestRecord& q : r.data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << q.id;
  }
}

}  // namespace

TEST(KvByTokenWhileServing, GoesRoundTheGpusAndIsFreedWithTheRequest) {
  // 64 tokens in 16 blocks of 4, two on each GPU, 2 x 4 x 2,048 B. The home sends 7 x 8 tokens of
  // 1,024 B a layer at 100 GB/s; each token of the answer pulls as many. Its own keys and values go
  // to block 16, which is the home's.
  const MemoryRun r =
      serve(2, 64, 4, "by_token", ", batching = { max_sequences = 1 }", {"parallel.attention=hub"});
  ASSERT_EQ(r.data.steps.size(), 8U);  // One after the other.
  const std::int64_t all = 2 * (7 * 8 * 1024 * 10 + 2'000'000);
  for (std::size_t step = 0; step < 8; ++step) {
    EXPECT_EQ(collective(r, step), all) << step;
    for (std::size_t g = 0; g < 8; ++g) {
      const bool answers = step % 4 > 0;
      // The second request's pages are there before the first one's are counted out of the peak.
      if (step == 4) continue;
      EXPECT_EQ(kv_in(r, step, g), (g == 0 && answers ? 3U : 2U) * 4 * 2048) << step << " " << g;
    }
  }
  expect_finished(r);
}

TEST(KvByTokenWhileServing, ChunksPullWhatEarlierOnesSent) {
  // 32 of 64 tokens: one block for each GPU, seven travel. The second chunk pulls these while its
  // own travel the other way.
  const MemoryRun r = serve(1, 64, 1, "by_token", ", batching = { token_budget = 32 }");
  ASSERT_EQ(r.data.steps.size(), 2U);
  const std::int64_t one = 2 * (7 * 4 * 1024 * 10 + 2'000'000);
  EXPECT_EQ(collective(r, 0), one);
  EXPECT_EQ(collective(r, 1), one);
  EXPECT_GE(r.data.totals.pair_bytes[3 * 8 + 0], 2U * 4 * 1024);
}

TEST(KvByTokenWhileServing, MergesWhereItIsAsked) {
  // As for a fixed batch: queries of 2,048 B and parts of 4,160 B for each of seven GPUs.
  const MemoryRun r = serve(1, 64, 3, "by_token", "", {"memory.kv.decode=merge"});
  ASSERT_EQ(r.data.steps.size(), 3U);
  for (const std::size_t step : {1U, 2U}) {
    EXPECT_EQ(collective(r, step), 2 * (7 * 2048 * 10 + 7 * 4160 * 10 + 2 * 2'000'000)) << step;
  }
}

TEST(KvByTokenWhileServing, AdmitsWhatEveryGpuHasRoomFor) {
  // A page of 4 tokens takes 8,192 B, four of them fit a GPU. 63 tokens are 16 blocks, two a GPU:
  // two requests at a time. At home alone no request would fit.
  const std::string room = ", batching = { kv = \"32768 B\" }";
  const MemoryRun r = serve(6, 60, 4, "by_token", room);
  expect_finished(r);
  for (const run::StepScalars& s : r.data.steps) EXPECT_LE(s.sequences, 2U);
  EXPECT_EQ(metric(r, "preemptions"), 0);
  EXPECT_EQ(most_kv(r), 32768U);
  EXPECT_DOUBLE_EQ(metric(r, "KV use max"), 1);
  const MemoryRun home = serve(6, 60, 4, "by_sequence", room);
  for (const run::RequestRecord& q : home.data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kRejected);
  }
}

TEST(KvByTokenWhileServing, PreemptsTheLastOneOfAnyRank) {
  // Three requests of 8 blocks fill three pages of each GPU; they grow to 16 blocks. The last ones
  // make room, wherever they are at home, and come back.
  for (const std::string how :
       {"", ", preemption = \"swap\", swap_bandwidth = \"1 GB/s\"", ", preemption = \"swap\""}) {
    const MemoryRun r = serve(3, 32, 33, "by_token", ", batching = { kv = \"24576 B\"" + how + " }",
                              {"hardware.file=worked_cpu.toml"});
    expect_finished(r);
    EXPECT_LE(most_kv(r), 24576U);
    EXPECT_EQ(r.data.requests[0].preemptions, 0U) << how;
    EXPECT_GE(r.data.requests[2].preemptions, 1U) << how;
    EXPECT_EQ(r.data.requests[0].output_tokens, 33U);
    if (how.empty()) {
      EXPECT_GE(metric(r, "tokens computed anew"), 32);
      continue;
    }
    // All its blocks go there and come back.
    EXPECT_EQ(metric(r, "tokens computed anew"), 0);
    EXPECT_GE(metric(r, "KV swapped"), 2 * 8 * 8192 * 1e-9);
    std::uint64_t up = 0;
    for (std::size_t k = 0; k < r.data.links.bytes.size(); ++k) {
      const std::size_t link = k % r.data.inventory.links.size();
      up += r.data.inventory.links[link].name == "gpu5>cpu1" ? r.data.links.bytes[k] : 0;
    }
    EXPECT_EQ(up >= 8192U, how.find("bandwidth") == std::string::npos) << how;
  }
}

TEST(KvByExpertWhileServing, KeepsEveryTokenOnceAndGivesItBack) {
  // Blocks of one token: 2,048 B a token over all GPUs, wherever the router sends them.
  const MemoryRun r = serve(2, 64, 4, "by_expert", ", batching = { max_sequences = 1 }",
                            {"memory.kv.block=1", "parallel.attention=hub"});
  ASSERT_EQ(r.data.steps.size(), 8U);
  for (std::size_t step = 0; step < 8; ++step) {
    if (step == 4) continue;  // Both were there for a moment.
    std::uint64_t sum = 0;
    for (std::size_t g = 0; g < 8; ++g) sum += kv_in(r, step, g);
    EXPECT_EQ(sum, (64 + step % 4) * 2048) << step;
  }
  expect_finished(r);
  const MemoryRun chunked =
      serve(3, 64, 4, "by_expert", ", batching = { token_budget = 16 }", {"memory.kv.block=1"});
  expect_finished(chunked);
  const MemoryRun merged = serve(3, 64, 4, "by_expert", "", {"memory.kv.decode=merge"});
  expect_finished(merged);
}

TEST(KvByExpertWhileServing, StaysWithinTheRoomOfEachGpu) {
  // 40 + 23 tokens would take 63 pages of one token in each of two layers if one GPU got all.
  for (const std::string how :
       {"", ", preemption = \"swap\", swap_bandwidth = \"1 GB/s\"", ", preemption = \"swap\""}) {
    for (const char* layout : {"parallel.ep=8", "parallel.ep=4"}) {
      const MemoryRun r = serve(24, 40, 24, "by_expert",
                                ", batching = { kv = \"131072 B\", token_budget = 16" + how + " }",
                                {"memory.kv.block=1", "hardware.file=worked_cpu.toml", layout});
      expect_finished(r);
      EXPECT_LE(most_kv(r), 131072U);
      EXPECT_GE(metric(r, "preemptions"), 1) << how << layout;
      if (!how.empty()) {
        EXPECT_EQ(metric(r, "tokens computed anew"), 0);
      }
    }
  }
}

TEST(KvByExpertWhileServing, ReplicasKeepTheirOwn) {
  const MemoryRun r = serve(24, 40, 24, "by_expert",
                            ", batching = { kv = \"131072 B\", token_budget = 16, preemption = "
                            "\"swap\", swap_bandwidth = \"1 GB/s\" }, front_end = { replicas = 2, "
                            "health_interval = \"100 us\", failures = 1, outages = [{ replica = 0, "
                            "from = \"2 ms\", until = \"3 ms\" }] }",
                            {"memory.kv.block=1", "parallel.ep=4"});
  expect_finished(r);
  EXPECT_LE(most_kv(r), 131072U);
}

}  // namespace switchyard::sim
