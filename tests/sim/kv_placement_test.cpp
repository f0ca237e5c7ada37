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
      "memory.kv.placement = \"by_token\": unsupported with faults");
  says({"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, "
        "arrivals = { process = \"poisson\", per_second = 40.0, requests = 2 }, "
        "lengths = { prompt = 16, output = 4 } }"},
       "requests that arrive with this memory.kv.placement are unsupported");
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
       "memory.kv.placement = \"by_expert\": unsupported with faults");
  says({"model.file=gpt_oss_20b"}, "unsupported with sliding-window attention");
  says({"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, "
        "arrivals = { process = \"poisson\", per_second = 40.0, requests = 2 }, "
        "lengths = { prompt = 16, output = 4 } }"},
       "requests that arrive with this memory.kv.placement are unsupported");
}

}  // namespace switchyard::sim
