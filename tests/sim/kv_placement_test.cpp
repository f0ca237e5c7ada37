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

TEST(KvReplicated, SendsTheTokensOfAHalfWithThatHalf) {
  const auto sent = [](const char* kv, const char* halves) {
    const MemoryRun r = spread({std::string("memory.kv.placement=") + kv, "workload.batch=16",
                                std::string("network.two_batch=") + halves});
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    return r.data.steps[0].bytes_sent;
  };
  for (const char* halves : {"false", "true"}) {
    EXPECT_EQ(sent("replicated", halves) - sent("by_sequence", halves), 2U * 16 * 7 * 1024)
        << halves;
  }
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

TEST(KvSpread, SaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> settings, const std::string& part) {
    for (const std::string kv : {"by_token", "by_expert"}) {
      std::vector<std::string> all = settings;
      all.push_back("memory.kv.placement=" + kv);
      try {
        spread(std::move(all));
        ADD_FAILURE() << "accepted, not: " << part;
      } catch (const InputError& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    }
  };
  says({"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=8"},
       "means nothing with ep <= tp");
  says(
      {R"(faults={ reload = "25 GB/s", events = [{ kind = "gpu_loss", gpu = "gpu3", step = 0 }] })"},
      "unsupported with faults gpu_loss and link_down and faults.reaction = \"migrate\"");
  says(
      {"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, "
       "arrivals = { process = \"poisson\", per_second = 40.0, requests = 2 }, "
       "lengths = { prompt = 16, output = 4 }, "
       "front_end = { replicas = 2, prefill_replicas = 1 } }",
       "parallel.ep=4",
       R"(faults={ reload = "25 GB/s", reaction = "restart", restart = "1 ms", events = [{ kind = "gpu_loss", gpu = "gpu3", step = 0 }] })"},
      "unsupported with faults gpu_loss and link_down and prefill replicas");
}

namespace {

std::uint64_t sent(const MemoryRun& r) { return r.data.steps[0].bytes_sent; }
void sound(const MemoryRun& r) {
  for (const auto& v : r.result.violations)
    ADD_FAILURE() << v.check << " " << v.where << ": " << v.message;
}
std::vector<std::string> with(std::vector<std::string> more, const std::vector<std::string>& all) {
  more.insert(more.begin(), all.begin(), all.end());
  return more;
}

}  // namespace

TEST(KvSpread, GoesRoundTensorParallelGroups) {
  // Four groups of two GPUs, each GPU with one of the two KV heads: 512 B a token and layer. 256
  // blocks of 4 tokens go round the groups; the new token is the home's.
  const std::vector<std::string> tp{"parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\" }"};
  const MemoryRun here = spread(with({"memory.kv={ placement = \"by_sequence\", block = 4 }"}, tp));
  const MemoryRun r = spread(tp);
  sound(r);
  for (std::size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv],
              4U * 64 * 4 * 1024 + 4 * 1024)
        << g;
  }
  // Every GPU of a home pulls its head's share of 256 tokens from its counterpart in three groups.
  EXPECT_EQ(collective(r, 0) - collective(here, 0), 2 * (3 * 256 * 512 * 10 + 2'000'000));
  EXPECT_EQ(sent(r) - sent(here), 2U * 4 * 2 * 3 * 256 * 512);
  // Attention sees all tokens of the group also where the other parts have a share of them each.
  std::vector<std::string> shares{
      "parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\", sequence_parallel = true }"};
  const MemoryRun alone =
      spread(with({"memory.kv={ placement = \"by_sequence\", block = 4 }"}, shares));
  const MemoryRun parts = spread(shares);
  sound(parts);
  EXPECT_EQ(collective(parts, 0) - collective(alone, 0), 2 * (3 * 256 * 512 * 10 + 2'000'000));
  EXPECT_EQ(sent(parts) - sent(alone), 2U * 4 * 2 * 3 * 256 * 512);
  const MemoryRun merge = spread(with({"memory.kv.decode=merge"}, tp));
  sound(merge);
  // Four heads of 128 a GPU: queries of 1,024 B, parts of 4 x 130 x 4 B.
  EXPECT_EQ(sent(merge) - sent(here), 2U * 4 * 2 * 3 * (1024 + 2080));
}

TEST(KvSpread, GoesRoundTheGpusOfEveryStage) {
  // Two stages of four GPUs with a layer each: 256 blocks go round four GPUs, 1,024 B a token.
  for (const char* micro : {"1", "2", "4"}) {
    const std::vector<std::string> pp{
        std::string("parallel={ dp = 4, pp = 2, ep = 4, attention = \"pp\", micro_batches = ") +
            micro + " }",
        "workload.batch=8"};
    const MemoryRun here =
        spread(with({"memory.kv={ placement = \"by_sequence\", block = 4 }"}, pp));
    const MemoryRun r = spread(pp);
    sound(r);
    for (std::size_t g = 0; g < 8; ++g) {
      EXPECT_EQ(r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv],
                8U * 64 * 4 * 1024 + 2 * 4 * 1024)
          << g;
    }
    // Each sequence is pulled once in each layer, whatever the micro-batches.
    EXPECT_EQ(sent(r) - sent(here), 2U * 8 * 3 * 256 * 1024) << micro;
    const MemoryRun merge = spread(with({"memory.kv.decode=merge"}, pp));
    sound(merge);
    EXPECT_EQ(sent(merge) - sent(here), 2U * 8 * 3 * (2048 + 4160)) << micro;
  }
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
        {"memory.allocator=paged"},
        {"memory.kv.block=1", "parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\" }"},
        {"memory.kv.block=1",
         "parallel={ dp = 4, tp = 2, ep = 4, attention = \"tp\", sequence_parallel = true }"},
        {"memory.kv.block=1", "parallel={ dp = 4, pp = 2, ep = 4, attention = \"pp\" }"},
        {"memory.kv.block=1",
         "parallel={ dp = 2, tp = 2, pp = 2, ep = 4, attention = \"tp\", micro_batches = 3 }"}}) {
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

TEST(KvByExpert, TakesNoSlidingWindows) {
  try {
    spread({"model.file=gpt_oss_20b", "memory.kv.placement=by_expert"});
    ADD_FAILURE() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("unsupported with sliding-window attention"),
              std::string::npos)
        << e.what();
  }
}

TEST(KvSpread, FaultsThatLeaveEveryGpuChangeNoPage) {
  for (const char* event : {R"({kind="slow_gpu",gpu="gpu1",factor=3,step=1})",
                            R"({kind="hot_gpu",gpu="gpu1",factor=0.5,step=1})",
                            R"({kind="host_stall",gpu="gpu1",stall="1 ms",step=1})",
                            R"({kind="kv_leak",gpu="gpu1",bytes="1 MB",step=1})",
                            R"({kind="link_degraded",link="gpu1--switch",factor=0.25,step=1})",
                            R"({kind="slow_expert",expert=1,factor=3,step=1})",
                            R"({kind="mis_sharding",expert=1,gpu="gpu5",step=1})",
                            R"({kind="gather_failure",gpu="gpu1",timeout="1 ms",step=1})"}) {
    for (const char* kv : {"by_token", "by_expert"}) {
      const std::string place = std::string("memory.kv.placement=") + kv;
      const MemoryRun well = spread({place, "workload.steps=4"});
      const MemoryRun r =
          spread({place, "workload.steps=4", std::string("faults.events=[") + event + "]"});
      sound(r);
      for (std::size_t g = 0; g < 8; ++g) {
        EXPECT_EQ(r.data.totals.gpu_memory[g * run::kMemoryCategories + kKv],
                  well.data.totals.gpu_memory[g * run::kMemoryCategories + kKv])
            << event << " " << kv;
      }
      // Nothing here is bound by arithmetic, and a leak takes no time.
      const bool slows = std::string(event).find("hot_gpu") == std::string::npos &&
                         std::string(event).find("kv_leak") == std::string::npos;
      EXPECT_EQ(r.data.steps[2].end_ps > well.data.steps[2].end_ps, slows) << event << " " << kv;
    }
  }
}

TEST(KvSpread, ALostGpuTakesTheCacheOfAllWithPagesThere) {
  const std::string lost =
      R"(faults={ reload = "25 GB/s", reaction = "restart", restart = "1 ms", events = [{ kind = "gpu_loss", gpu = "gpu1", step = 2 }] })";
  const auto recomputed = [](const MemoryRun& r) {
    for (const run::Metric& m : r.data.metrics) {
      if (m.name == "tokens recomputed") return m.value;
    }
    return -1.0;
  };
  // Sequences of 1,024 tokens and the two of the first steps.
  const MemoryRun all = spread({"workload.steps=6", lost});
  sound(all);
  EXPECT_EQ(recomputed(all), 4 * 1026);
  // Of the copies of the experts {0, 1}, {2, 3} … only the first has lost pages.
  const MemoryRun copy = spread({"workload.steps=6", lost, "parallel.ep=2"});
  sound(copy);
  EXPECT_EQ(recomputed(copy), 2 * 1026);
  // by_expert: those with a token that GPU 1 keeps in any layer: sequences 1, 2, 3 in layer 0.
  const RoutingTrace trace = skewed();
  const MemoryRun expert = run_in_memory(
      worked_scenario({"memory.kv.placement=by_expert", "workload.steps=6", lost}), &trace);
  sound(expert);
  EXPECT_EQ(recomputed(expert), 3 * 1026);
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

TEST(KvSpreadWhileServing, PagesGoFromPrefillToDecodeReplicas) {
  // 64 tokens of 2,048 B each, in blocks of one token so that no page is half full.
  const std::string pd = ", front_end = { replicas = 2, prefill_replicas = 1 }";
  for (const char* kv : {"by_token", "by_expert"}) {
    const MemoryRun r = serve(1, 64, 4, kv, pd, {"memory.kv.block=1", "parallel.ep=4"});
    expect_finished(r);
    EXPECT_DOUBLE_EQ(metric(r, "KV transferred"), 64 * 2048 * 1e-9) << kv;
    ASSERT_EQ(r.data.steps.size(), 4U);
    for (std::size_t step = 0; step < 4; ++step) {
      std::uint64_t first = 0, second = 0;
      for (std::size_t g = 0; g < 4; ++g) {
        first += kv_in(r, step, g);
        second += kv_in(r, step, g + 4);
      }
      // What the prefill replica had is there until the first step of the other one begins.
      if (step != 1) {
        EXPECT_EQ(first, step == 0 ? 64U * 2048 : 0U) << kv << step;
      }
      EXPECT_EQ(second, step == 0 ? 0U : (64 + step) * 2048) << kv << step;
    }
    // by_token: each of four GPUs sends its sixteen tokens, side by side.
    if (std::string(kv) == "by_token") {
      EXPECT_DOUBLE_EQ(metric(r, "KV transfer mean"), (16 * 2048 * 10 + 2'000'000) * 1e-9);
    }
  }
}

TEST(KvSpreadWhileServing, HoldsInEveryLayoutWithLittleRoom) {
  const std::string room = ", batching = { kv = \"262144 B\", token_budget = 24 }";
  const std::string swap =
      ", batching = { kv = \"262144 B\", preemption = \"swap\", swap_bandwidth = \"1 GB/s\" }";
  const std::string pd = ", front_end = { replicas = 2, prefill_replicas = 1 }";
  const std::string out =
      ", front_end = { replicas = 4, prefill_replicas = 2, health_interval = \"100 us\", failures "
      "= "
      "1, outages = [{ replica = 1, from = \"1 ms\", until = \"3 ms\" }, { replica = 2, from = \"2 "
      "ms\", until = \"4 ms\" }] }";
  const std::string lost =
      R"(faults={ reload = "25 GB/s", reaction = "restart", restart = "1 ms", events = [{ kind = "gpu_loss", gpu = "gpu1", step = 5 }, { kind = "kv_leak", gpu = "gpu2", bytes = "1 kB", step = 2 }] })";
  struct Case {
    std::string more;
    std::vector<std::string> settings;
  };
  const std::vector<Case> cases{
      {room, {"parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\" }"}},
      {swap, {"parallel={ dp = 4, tp = 2, ep = 4, attention = \"tp\" }"}},
      {room, {"parallel={ dp = 4, pp = 2, ep = 4, attention = \"pp\" }"}},
      {swap,
       {"parallel={ dp = 2, tp = 2, pp = 2, ep = 4, attention = \"tp\", micro_batches = 3 }"}},
      {room + pd, {"parallel.ep=4"}},
      {swap + pd, {"parallel.ep=4", "network.model=bottleneck"}},
      {room + out, {"parallel.ep=2"}},
      {swap + out, {"parallel.ep=2", "memory.kv.decode=merge"}},
      {room + pd, {"parallel={ dp = 4, tp = 2, ep = 4, attention = \"tp\" }"}},
      {room, {lost}},
      {swap, {lost, "parallel.ep=4"}},
      {room + ", front_end = { replicas = 2, health_interval = \"100 us\", failures = 1 }",
       {lost, "parallel.ep=4"}},
      {room, {lost, "parallel={ dp = 4, pp = 2, ep = 4, attention = \"pp\" }"}},
      {room, {lost, "parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\" }"}},
  };
  for (const Case& c : cases) {
    for (const char* kv : {"by_token", "by_expert"}) {
      SCOPED_TRACE(std::string(kv) + " " + c.more + " " + c.settings.back());
      std::vector<std::string> settings = c.settings;
      settings.emplace_back("memory.kv.block=4");
      const MemoryRun r = serve(14, 40, 18, kv, c.more, settings);
      expect_finished(r);
      EXPECT_LE(most_kv(r), 2U * 262144);  // Pages under way are in both places.
    }
  }
}

TEST(KvSpreadWhileServing, PagesOfPrefillReplicasAreFlowsAmongOthers) {
  const MemoryRun r = serve(14, 40, 18, "by_expert",
                            ", batching = { kv = \"262144 B\", token_budget = 24 }, front_end = { "
                            "replicas = 2, prefill_replicas = 1 }",
                            {"parallel.ep=2", "network.model=flow", "memory.kv.block=4"});
  expect_finished(r);
  EXPECT_GT(metric(r, "KV transferred"), 14 * 40 * 2048 * 1e-9);
}

TEST(KvSpreadWhileServing, WhoHasNoPageOnALostGpuGoesOn) {
  // 7 tokens of the hub's request are in blocks on GPUs 0 and 1.
  const auto run = [](const std::string& gpu) {
    const MemoryRun r = serve(
        1, 5, 12, "by_token", "",
        {"parallel.attention=hub",
         R"(faults={ reload = "25 GB/s", reaction = "restart", restart = "1 ms", events = [{ kind = "gpu_loss", gpu = ")" +
             gpu + R"(", step = 2 }] })"});
    expect_finished(r);
    return r;
  };
  EXPECT_EQ(metric(run("gpu7"), "requests that lost their pages"), 0);
  const MemoryRun r = run("gpu1");
  EXPECT_EQ(metric(r, "requests that lost their pages"), 1);
  EXPECT_EQ(metric(r, "tokens computed anew"), 6);
}

}  // namespace switchyard::sim
