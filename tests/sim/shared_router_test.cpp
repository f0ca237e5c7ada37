// SPDX-License-Identifier: Apache-2.0
// Routers off the GPUs that stages, replicas, halves of a batch and an expert cache share, on the
// machine of the worked example (sim/README.md) against arithmetic. A layer's router on the CPU, of
// one token on each of four GPUs: norm 1,004,096, 2,048 B up 2,204,800, 10 us + 41,216 B / 100 GB/s
// 10,412,160, 12 B down 2,001,200, permutation 1,006,144; together 16,628,400 ps.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/loop/router_units.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using Choices = std::vector<std::vector<std::uint16_t>>;
using Settings = std::vector<std::string>;

constexpr std::int64_t kUs = 1'000'000, kMs = 1'000'000'000;
const std::string kLognormal = R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })";
const Settings kCpu{
    "hardware.file=worked_cpu.toml", "parallel.router=cpu",
    R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "10 us" })"};
const Settings kSlowCpu{
    "hardware.file=worked_cpu.toml", "parallel.router=cpu",
    R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "1 ms" })"};

Settings with(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_sound(const MemoryRun& r) {
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
}

MemoryRun traced(const Choices& tokens, Settings settings) {
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=" + std::to_string(tokens.size()));
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), &trace);
  expect_sound(r);
  return r;
}

MemoryRun random_run(Settings settings) {
  settings.insert(settings.begin(), kLognormal);
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), nullptr);
  expect_sound(r);
  return r;
}

std::int64_t duration(const MemoryRun& r) {
  return r.data.steps[0].end_ps - r.data.steps[0].start_ps;
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

}  // namespace

TEST(Calendar, TakesTheFirstGapThatIsLongEnough) {
  Calendar c;
  EXPECT_EQ(c.take(100, 0), 100);
  EXPECT_EQ(c.take(0, 10), 0);
  EXPECT_EQ(c.take(20, 10), 20);
  EXPECT_EQ(c.take(5, 10), 10);  // [10, 20) is free.
  EXPECT_EQ(c.take(5, 5), 30);   // Until 30 all is taken.
  EXPECT_EQ(c.take(40, 10), 40);
  EXPECT_EQ(c.take(0, 6), 50);  // [35, 40) is too short.
  EXPECT_EQ(c.take(0, 5), 35);
  c.forget_before(40);
  EXPECT_EQ(c.take(38, 2), 38);
  EXPECT_EQ(c.take(40, 1), 56);
}

TEST(SharedRouter, StagesAskACard) {
  // Two stages of one layer; the second one's GPUs have a hop more to the card. Nothing overlaps.
  Choices own;
  for (std::uint16_t t = 0; t < 4; ++t) {
    own.push_back({static_cast<std::uint16_t>(2 * t), static_cast<std::uint16_t>(2 * t + 1)});
  }
  const Settings stages{"hardware.file=worked_card.toml",
                        "parallel.attention=pp",
                        "parallel.pp=2",
                        "parallel.dp=4",
                        "parallel.ep=4",
                        "parallel.micro_batches=1"};
  const auto way = [](std::int64_t hops) {
    return 2 * hops * 2 * kUs + 819'200 + (2 * kUs + 41'088 + 128) + 4'800;
  };
  const MemoryRun card = traced(own, with(stages, {"parallel.router=card"}));
  // Without the key the ninth card is a GPU: the eight alone.
  Settings gpus = stages;
  gpus[0] = "hardware.file=worked_cpu.toml";
  const std::int64_t norms = 1'004'096 + 1'006'144;
  EXPECT_EQ(duration(card) - duration(traced(own, gpus)),
            2 * (norms - 4'045'120) + way(2) + way(3));
}

TEST(SharedRouter, DecidesForOneMicroBatchAtATime) {
  // One CPU for both stages; two micro-batches in two stages of a layer are four batches of 1 ms.
  const auto machine = [](const std::string& count, const std::string& names) {
    return Settings{R"(hardware.devices=[{ name = "gpu", count = 8, kind = "gpu", type = "toy" }, )"
                    R"({ name = "switch", kind = "nvswitch" }, { name = "cpu", kind = "cpu")" +
                        count + " }]",
                    R"(hardware.links=[{ from = "gpu[0-7]", to = "switch", type = "cable" }, )"
                    R"({ from = "gpu[0-7]", to = ")" +
                        names + R"(", type = "wire" }])"};
  };
  const Settings one_cpu = machine("", "cpu"), two_cpus = machine(", count = 2", "cpu[0-1]");
  const Settings on =
      with(kSlowCpu, {"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4", "parallel.ep=4",
                      "parallel.micro_batches=2", "workload.batch=8"});
  for (const char* model : {"bottleneck", "auto", "coflow", "flow"}) {
    const Settings under{std::string("network.model=") + model};
    const MemoryRun one = random_run(with(with(on, one_cpu), under));
    const MemoryRun two = random_run(with(with(on, two_cpus), under));
    EXPECT_GE(duration(one), 4 * kMs) << model;
    EXPECT_LE(metric(one, "router CPU use"), 1) << model;
    // Each stage a CPU of its own: the first micro-batch's second stage is beside the second's
    // first.
    EXPECT_LT(duration(two), 3 * kMs + kMs / 2) << model;
    EXPECT_GE(duration(two), 3 * kMs) << model;
    EXPECT_EQ(one.data.totals.expert_kept, two.data.totals.expert_kept);
    EXPECT_EQ(metric(one, "router transfers per step"), metric(two, "router transfers per step"));
  }
}

TEST(SharedRouter, DecidesForOneReplicaAtATime) {
  // Four replicas of two GPUs, two on each CPU: a step takes two layers of 1 ms there.
  const Settings on =
      with(kSlowCpu,
           {"parallel.ep=2",
            "workload={kind=\"open\",arrivals={per_second=2000,requests=24},lengths={prompt=16,"
            "output=4},routing={synthetic=\"uniform\"},front_end={replicas=4}}"});
  for (const char* model : {"bottleneck", "auto", "coflow", "flow"}) {
    MemoryRun r = test::run_in_memory(
        test::worked_scenario(with(on, {std::string("network.model=") + model})), nullptr);
    expect_sound(r);
    for (const auto& q : r.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    }
    EXPECT_LE(metric(r, "router CPU use"), 1) << model;
    std::array<std::int64_t, 2> steps{};
    std::int64_t begin = INT64_MAX, end = 0;
    for (const run::StepScalars& s : r.data.steps) {
      ++steps[s.engine / 2];
      begin = std::min(begin, s.start_ps);
      end = std::max(end, s.end_ps);
    }
    EXPECT_GE(end - begin, *std::max_element(steps.begin(), steps.end()) * 2 * kMs) << model;
    EXPECT_GT(steps[0], 0);
    EXPECT_GT(steps[1], 0);
  }
}

TEST(SharedRouter, HalvesWaitForTheirDecisions) {
  // As TwoBatch.HidesTheExchangesBehindTheOtherHalf, with a router that takes 16,628,400.
  Choices tokens;
  for (std::uint16_t t = 0; t < 16; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const std::int64_t front = 11'318'080 + 16'628'400, experts = 14'607'488;
  const std::int64_t host = 12'000'000 + 1'008'192, head = 19'920'576;
  const MemoryRun r = traced(tokens, with(kCpu, {"network.two_batch=true"}));
  EXPECT_EQ(duration(r), host + 4 * (front + experts) + 3 * 1'008'192 + 2'040'960 + head);
  // In the queue of transfers, where nothing meets: the same.
  for (const char* model : {"auto", "coflow"}) {
    const MemoryRun q = traced(
        tokens, with(kCpu, {"network.two_batch=true", std::string("network.model=") + model}));
    EXPECT_NEAR(static_cast<double>(duration(q)), static_cast<double>(duration(r)), 20) << model;
  }
}

TEST(SharedRouter, StandsBesideAnExpertCache) {
  // Cold: a layer's GPUs load their expert when the router has decided, so nothing of the two
  // meets, and a layer takes as much more as without a cache.
  const Choices tokens{{0, 1}, {1, 2}, {1, 3}, {1, 4}};
  const Settings cache{"memory.residency={policy=\"lru\",slots=1}"};
  Settings gpu{"hardware.file=worked_cpu.toml"};
  for (const char* model : {"auto", "coflow"}) {
    const Settings under{std::string("network.model=") + model};
    const MemoryRun here = traced(tokens, with(with(gpu, cache), under));
    const MemoryRun there = traced(tokens, with(with(kCpu, cache), under));
    EXPECT_NEAR(static_cast<double>(duration(there) - duration(here)),
                2 * (16'628'400.0 - 4'045'120.0), 40)
        << model;
    EXPECT_GT(duration(here), 2 * kMs);  // 12.6 MB over 10 GB/s in either layer.
    EXPECT_EQ(metric(there, "expert bytes loaded per step"),
              metric(here, "expert bytes loaded per step"));
    EXPECT_EQ(there.data.totals.bytes_sent, here.data.totals.bytes_sent);
  }
  // Prefetched experts of the next layer are on the wire when its tokens' decisions come home.
  const Settings ahead{"memory.residency={policy=\"lru\",slots=1,prefetch=\"trace\"}"};
  const MemoryRun here = traced(tokens, with(gpu, with(ahead, {"network.model=auto"})));
  const MemoryRun there = traced(tokens, with(kCpu, with(ahead, {"network.model=auto"})));
  EXPECT_GT(duration(there), duration(here));
  EXPECT_EQ(metric(there, "expert bytes loaded per step"),
            metric(here, "expert bytes loaded per step"));
}

}  // namespace switchyard::sim
