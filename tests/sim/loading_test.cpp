// SPDX-License-Identifier: Apache-2.0
// Starting up: the stream of shards by hand, then inside the simulator.
#include "sim/memory/loading.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/error.hpp"
#include "sim/cost/cost.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using scenario::LoadingSpec;
using test::MemoryRun;
using test::run_in_memory;

constexpr std::int64_t kMs = 1'000'000'000;
constexpr std::int64_t kExpertBytes = 3LL * 1024 * 2048 * 2;

/// 40 MB: 10 of shared weights, three layers of 10; 10 GB/s from the SSD, 20 GB/s to the GPU.
LoadJob job() {
  LoadJob j;
  j.backbone = 10'000'000;
  j.layers = {10'000'000, 10'000'000, 10'000'000};
  j.experts = 6;
  j.read = 10e9;
  j.copy = 20e9;
  return j;
}
LoadingSpec spec(std::uint32_t shards, std::uint32_t in_flight) {
  LoadingSpec s;
  s.from = LoadingSpec::From::kSsd;
  s.shards = shards;
  s.in_flight = in_flight;
  return s;
}

scenario::Scenario start(std::vector<std::string> settings) {
  scenario::ReadOptions options;
  settings.insert(settings.begin(),
                  {"memory.residency.policy=all", "workload.routing={ synthetic = \"uniform\" }"});
  settings.front() = "memory.residency={ policy = \"all\" }";
  options.settings = std::move(settings);
  return scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/residency/offload.toml", options);
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

}  // namespace

TEST(Loading, OneShardAtATimeReadsAndCopiesInTurn) {
  // 4 shards of 10 MB, one buffer: read 1 ms, copy 0.5 ms, then the next.
  const LoadTimeline t = load_timeline(spec(4, 1), job());
  EXPECT_EQ(t.backbone_ps, 3 * kMs / 2);
  EXPECT_EQ(t.layer_ps, (std::vector<std::int64_t>{3 * kMs, 9 * kMs / 2, 6 * kMs}));
  EXPECT_EQ(t.ready_ps, 6 * kMs);
  EXPECT_EQ(t.host_buffers, 10'000'000U);
  EXPECT_EQ(t.stream_alone_ps, 4 * kMs);
}

TEST(Loading, TwoShardsInFlightHideTheFasterStage) {
  // Reads follow each other, each copy hides behind the next read: 4 reads and the last copy.
  const LoadTimeline t = load_timeline(spec(4, 2), job());
  EXPECT_EQ(t.ready_ps, 9 * kMs / 2);
  EXPECT_EQ(t.backbone_ps, 3 * kMs / 2);
  EXPECT_EQ(t.host_buffers, 20'000'000U);
  // A checksum of 5 GB/s takes 2 ms a shard: it decides now, with a read before and a copy behind.
  LoadingSpec checked = spec(4, 3);
  checked.checksum.value = 5e9;
  EXPECT_EQ(load_timeline(checked, job()).ready_ps, kMs + 4 * 2 * kMs + kMs / 2);
  EXPECT_EQ(load_timeline(checked, job()).stream_alone_ps, 8 * kMs);
}

TEST(Loading, MoreBuffersAndMoreShardsNeverDelayTheEnd) {
  std::int64_t before = INT64_MAX;
  for (std::uint32_t in_flight = 1; in_flight <= 8; ++in_flight) {
    const LoadTimeline t = load_timeline(spec(16, in_flight), job());
    EXPECT_LE(t.ready_ps, before);
    EXPECT_GE(t.ready_ps, t.stream_alone_ps);
    before = t.ready_ps;
  }
  // Without latency finer shards approach the slower stage alone.
  EXPECT_NEAR(static_cast<double>(load_timeline(spec(4096, 2), job()).ready_ps), 4.0 * kMs,
              1e-3 * kMs);
}

TEST(Loading, FromHostMemoryThereIsOnlyTheCopy) {
  LoadJob j = job();
  j.read = 0;
  j.copy_latency_ps = 7;
  LoadingSpec s = spec(4, 2);
  s.from = LoadingSpec::From::kHost;
  const LoadTimeline t = load_timeline(s, j);
  EXPECT_EQ(t.ready_ps, 2 * kMs + 4 * 7);
  EXPECT_EQ(t.host_buffers, 0U);
}

TEST(Loading, WarmUpAndTableFollowOrMeet) {
  LoadingSpec s = spec(4, 2);
  s.warm_up_per_expert = SimTime::from_ps(2 * kMs);
  s.table = 20'000'000;
  LoadTimeline t = load_timeline(s, job());
  EXPECT_EQ(t.warm_up_end_ps - t.experts_ps, 12 * kMs);
  EXPECT_EQ(t.table_begin_ps, t.warm_up_end_ps);
  EXPECT_EQ(t.ready_ps, t.experts_ps + 13 * kMs);
  s.parallel = true;
  t = load_timeline(s, job());
  EXPECT_EQ(t.table_begin_ps, t.experts_ps);
  EXPECT_EQ(t.ready_ps, t.experts_ps + 12 * kMs);
}

TEST(StartUp, TheFirstStepBeginsWhenTheLastGpuIsReady) {
  const MemoryRun there = run_in_memory(start({}), nullptr);
  const MemoryRun r =
      run_in_memory(start({"memory.loading={ from = \"host\", shards = 1 }"}), nullptr);
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  // Both GPUs hold the same bytes and have a link of 10 GB/s of their own: one copy, 1 us.
  const auto weights = static_cast<std::size_t>(run::MemoryCategory::kWeights);
  const auto experts = static_cast<std::size_t>(run::MemoryCategory::kExperts);
  const std::uint64_t bytes = r.data.totals.gpu_memory[weights] + r.data.totals.gpu_memory[experts];
  EXPECT_EQ(r.data.totals.gpu_memory, there.data.totals.gpu_memory);
  EXPECT_EQ(r.data.steps[0].start_ps, static_cast<std::int64_t>(bytes) * 100 + 1'000'000);
  EXPECT_EQ(r.data.steps[0].end_ps - r.data.steps[0].start_ps,
            there.data.steps[0].end_ps - there.data.steps[0].start_ps);
  EXPECT_NEAR(metric(r, "loading time"), static_cast<double>(r.data.steps[0].start_ps) * 1e-9,
              1e-9);
  EXPECT_NEAR(metric(r, "first token, cold"), static_cast<double>(r.data.steps[0].end_ps) * 1e-9,
              1e-9);
  EXPECT_LT(metric(r, "first token, warm"), metric(r, "first token, cold"));
  std::size_t states = 0;
  for (const run::Event& e : r.data.events) states += e.text.starts_with("loading: ") ? 1 : 0;
  EXPECT_EQ(states, 2U);  // One shard: shared weights and experts are there at once.
}

TEST(StartUp, GpusShareTheSsd) {
  const MemoryRun r =
      run_in_memory(start({"memory.loading={ from = \"ssd\", shards = 1 }"}), nullptr);
  const auto weights = static_cast<std::size_t>(run::MemoryCategory::kWeights);
  const auto experts = static_cast<std::size_t>(run::MemoryCategory::kExperts);
  const std::uint64_t bytes = r.data.totals.gpu_memory[weights] + r.data.totals.gpu_memory[experts];
  // 5 GB/s for two GPUs: 400 ps a byte, then 100 ps a byte to the GPU; 10 and 1 us.
  EXPECT_NEAR(static_cast<double>(r.data.steps[0].start_ps),
              static_cast<double>(bytes) * 500 + 11'000'000, 2);
}

TEST(StartUp, ByLayerTheFirstStepOvertakesTheStream) {
  const auto with = [](const char* start_at) {
    return run_in_memory(
        start({std::string(
                   "memory.loading={ from = \"ssd\", shards = 64, in_flight = 3, start = \"") +
               start_at + "\" }"}),
        nullptr);
  };
  const MemoryRun ready = with("ready"), by_layer = with("by_layer");
  EXPECT_TRUE(by_layer.result.violations.empty()) << by_layer.result.violations[0].message;
  EXPECT_LT(metric(by_layer, "first token, cold"), metric(ready, "first token, cold"));
  EXPECT_GE(metric(by_layer, "first token, cold"), metric(by_layer, "loading time"));
  EXPECT_EQ(by_layer.data.steps[0].straggler_reason, run::StragglerReason::kExpertLoadFromHost);
  EXPECT_EQ(by_layer.data.steps[1].end_ps - by_layer.data.steps[1].start_ps,
            ready.data.steps[1].end_ps - ready.data.steps[1].start_ps);
}

TEST(StartUp, DummyTokensWarmEachExpertUpAtTheCostModelsPrice) {
  const auto from_host = [](const std::string& more) {
    return run_in_memory(start({"memory.loading={ from = \"host\", shards = 1" + more + " }"}),
                         nullptr);
  };
  const MemoryRun cold = from_host("");
  const scenario::Scenario s = start({});
  const CostModel cost(s.model, s.dtype, s.activations, s.hardware.gpu_type(0), s.cost);
  for (const std::uint32_t tokens : {1U, 128U}) {
    const MemoryRun r = from_host(", warm_up = { tokens = " + std::to_string(tokens) + " }");
    EXPECT_TRUE(r.result.violations.empty());
    const std::uint32_t rows[] = {tokens};
    const std::int64_t each = cost.experts(rows).time.ps();
    const auto experts =
        static_cast<std::int64_t>(s.model.num_experts * s.model.num_moe_layers() / s.parallel.ep);
    EXPECT_EQ(r.data.steps[0].start_ps - cold.data.steps[0].start_ps, experts * each) << tokens;
    EXPECT_NEAR(metric(r, "warm-up of an expert"), static_cast<double>(each) * 1e-9, 1e-9);
  }
}

TEST(StartUp, OutOfOrderItRunsOutOfMemory) {
  // 80 GB: workspace and table fit one after the other, not at once.
  const auto with = [](const char* order) {
    return run_in_memory(
        start({std::string("memory.loading={ from = \"host\", warm_up_per_expert = \"3.2 s\", "
                           "workspace = \"45 GB\", table = \"40 GB\", order = \"") +
               order + "\" }"}),
        nullptr);
  };
  const auto out_of_memory = [](const MemoryRun& r) {
    for (const run::Event& e : r.data.events) {
      if (e.kind == run::EventKind::kOutOfMemory) return e.text;
    }
    return std::string();
  };
  EXPECT_EQ(out_of_memory(with("serial")), "");
  EXPECT_TRUE(out_of_memory(with("parallel")).starts_with("routing table needs"))
      << out_of_memory(with("parallel"));
}

// 8 experts of 2 layers of 12,582,912 B, 4 of each layer on a GPU; router 8 · 1024 · 4 B and the
// rest of the model twice if it is replicated, once in host memory.
TEST(StartUp, TheSourceHoldsEachWeightOnce) {
  const auto machine = [](const std::string& cpu, const std::string& ssd) {
    return R"(hardware.devices=[{ name = "gpu", count = 2, kind = "gpu", type = "toy" }, )"
           R"({ name = "cpu", kind = "cpu", memory = ")" +
           cpu + R"(" }, { name = "ssd", kind = "ssd", bandwidth = "5 GB/s", memory = ")" + ssd +
           R"(" }])";
  };
  const auto run = [&](const std::string& cpu, const std::string& ssd,
                       std::vector<std::string> more) -> std::string {
    more.insert(more.begin(), machine(cpu, ssd));
    try {
      static_cast<void>(run_in_memory(start(more), nullptr));
    } catch (const InputError& e) {
      return e.what();
    }
    return "runs";
  };
  const MemoryRun plain = run_in_memory(start({"memory.loading={ from = \"host\" }"}), nullptr);
  const std::uint64_t experts = 16 * kExpertBytes;
  // What a GPU holds beside its experts: all of the model that is not cut up.
  const auto on_gpu = [&](run::MemoryCategory c) {
    return plain.data.gpus.memory[static_cast<std::size_t>(c)];
  };
  const std::uint64_t whole = experts + on_gpu(run::MemoryCategory::kWeights);
  ASSERT_EQ(on_gpu(run::MemoryCategory::kExperts), experts / 2);
  const auto bytes = [](std::uint64_t b) { return std::to_string(b) + " B"; };
  for (const char* from : {"host", "ssd"}) {
    const std::string load =
        std::string("memory.loading={ from = \"") + from + "\", shards = 1024 }";
    const bool ssd = from == std::string("ssd");
    const auto with = [&](std::uint64_t room, std::vector<std::string> more = {}) {
      more.push_back(load);
      return run(ssd ? "1 GB" : bytes(room), ssd ? bytes(room) : "1 GB", more);
    };
    EXPECT_EQ(with(whole), "runs") << from;
    const std::string refused = with(whole - 1);
    EXPECT_NE(refused.find("the weights of the 2 GPUs that load from it take"), std::string::npos)
        << refused;
    EXPECT_NE(refused.find(ssd ? "ssd has" : "cpu has"), std::string::npos) << refused;
    // Two copies of the model on the GPUs are one in its source.
    EXPECT_EQ(with(whole, {"parallel={ dp = 2, ep = 1 }"}), "runs") << from;
    EXPECT_NE(with(whole - 1, {"parallel={ dp = 2, ep = 1 }"}), "runs") << from;
  }
  // Shards cut from the same weights: no more than those.
  EXPECT_EQ(run(bytes(whole), "1 GB",
                {"memory.loading={ from = \"host\" }",
                 "parallel={ attention = \"tp\", tp = 2, ep = 2 }"}),
            "runs");
  EXPECT_NE(run(bytes(whole - 1), "1 GB",
                {"memory.loading={ from = \"host\" }",
                 "parallel={ attention = \"tp\", tp = 2, ep = 2 }"}),
            "runs");
  EXPECT_NE(run("1 MB", "1 GB", {"memory.loading={ from = \"host\" }"}).find("memory.loading"),
            std::string::npos);
}

TEST(StartUp, HostBuffersMustFit) {
  const auto run = [](const char* shards) -> std::string {
    try {
      static_cast<void>(run_in_memory(
          start({R"(hardware.devices=[{ name = "gpu", count = 2, kind = "gpu", type = "toy" }, )"
                 R"({ name = "cpu", kind = "cpu", memory = "64 MB" }, )"
                 R"({ name = "ssd", kind = "ssd", bandwidth = "5 GB/s" }])",
                 std::string("memory.loading={ from = \"ssd\", in_flight = 2, shards = ") + shards +
                     " }"}),
          nullptr));
    } catch (const InputError& e) {
      return e.what();
    }
    return "runs";
  };
  EXPECT_EQ(run("64"), "runs");
  EXPECT_NE(run("2").find("2 shards in flight to each GPU take"), std::string::npos) << run("2");
}

TEST(StartUp, SaysWhatItDoesNotTake) {
  const auto says = [](const std::string& loading, const char* part) {
    try {
      static_cast<void>(start({"memory.loading=" + loading}));
      ADD_FAILURE() << loading << " was accepted";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says(R"({ from = "tape" })", "tape");
  says(R"({ from = "host", warm_up = { tokens = 8 }, warm_up_per_expert = "1 s" })",
       "keep one of the two");
  says(R"({ from = "host", warm_up = { tokens = 0 } })", "tokens");
  says(R"({ from = "host", warm_up = { token = 1 } })", "unknown key");
  says(R"({ warm_up = { tokens = 8 } })", "means nothing while the weights are there");
  says(R"({ from = "host", warm_up = { tokens = 8 }, start = "by_layer" })", "no warm-up");
  says(R"({ shards = 4 })", "means nothing while the weights are there");
  says(R"({ from = "ssd", shards = 0 })", "shards");
  says(R"({ from = "ssd", shards = 4, in_flight = 5 })", "in_flight");
  says(R"({ from = "host", in_flight = 2 })", "one copy at a time");
  says(R"({ from = "ssd", checksum = "0 GB/s" })", "checksum");
  says(R"({ from = "ssd", workspace = "1 GB" })", "there is no warm-up");
  says(R"({ from = "ssd", order = "parallel", table = "1 GB" })", "when both are there");
  says(R"({ from = "ssd", start = "by_layer", table = "1 GB" })", "by layer has no warm-up");
}

}  // namespace switchyard::sim
