// SPDX-License-Identifier: Apache-2.0
// Experts that the CPU computes (memory.residency.miss): what a layer takes, who waits for whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using test::run_in_memory;

// The worked model: H = 1024, I = 2048, BF16; PCIe of 10 GB/s and 1 us a hop.
constexpr std::int64_t kWeights = 3LL * 1024 * 2048, kRow = 2 * 1024, kUs = 1'000'000;
constexpr std::int64_t kTrip = kRow * 100 + kUs;  // One row, one way.
/// One expert on the GPU with one row: two kernels, weights and activations at 1 TB/s.
constexpr std::int64_t kOnGpu = 2 * kUs + kWeights * 2 + 2 * 2 * (1024 + 2048);
/// 100 GB/s, 1 TFLOP/s: 10 ps a byte, the FLOPs of one row take a tenth of that.
constexpr std::int64_t kJob = 5 * kUs + (kWeights * 2 + 2 * kRow) * 10;
const std::string kCpu = R"({ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "5 us" })";

/// Experts of a layer: `hot` first, so that with one slot it is resident.
std::string loads_file(const std::vector<int>& hot) {
  std::string text = "layer,expert,load\n";
  for (int l = 0; l < 2; ++l) {
    for (int e = 0; e < 8; ++e) {
      const bool first = std::find(hot.begin(), hot.end(), 10 * l + e) != hot.end();
      text += std::to_string(l) + "," + std::to_string(e) + (first ? ",2\n" : ",1\n");
    }
  }
  return text;
}

scenario::Scenario offload(std::vector<std::string> settings) {
  scenario::ReadOptions options;
  options.settings = std::move(settings);
  options.require_trace = false;
  return scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/residency/offload.toml", options);
}
/// Static, one slot a layer and GPU: expert 0 (GPU 1: 4) in the first, 2 (GPU 1: 6) in the second.
std::vector<std::string> on_cpu(std::vector<std::string> more = {}, const std::string& cpu = kCpu) {
  write_file("loads.csv", loads_file({0, 4, 12, 16}));
  std::vector<std::string> all{"memory.residency.policy=static",     "memory.residency.slots=1",
                               "memory.residency.loads=./loads.csv", "memory.residency.miss=cpu",
                               "memory.residency.cpu=" + cpu,        "workload.steps=1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
MemoryRun run(const std::vector<std::string>& settings, const RoutingTrace* trace) {
  MemoryRun r = run_in_memory(offload(settings), trace);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
  return r;
}
MemoryRun resident(std::vector<std::string> more, const RoutingTrace* trace) {
  more.insert(more.begin(), {"memory.residency={ policy = \"all\" }", "workload.steps=1"});
  return run(more, trace);
}

std::int64_t duration(const MemoryRun& r, std::size_t step = 0) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}
std::int64_t phase(const MemoryRun& r, run::Phase p) {
  return r.data.steps[0].phase_ps[static_cast<std::size_t>(p)];
}
std::int64_t sum(const std::vector<std::int64_t>& v) {
  return std::accumulate(v.begin(), v.end(), std::int64_t{0});
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

/// One token on GPU 0: a hit and a miss in both layers.
const std::vector<std::vector<std::vector<std::uint16_t>>> kOneToken{{{0, 1}}, {{2, 3}}};

}  // namespace

TEST(HostExperts, ALayerEndsWithTheLaterOfGpuAndCpu) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun all = resident({}, &trace);
  const std::int64_t others = duration(all) - sum(all.data.layer_steps.expert_ps);
  const MemoryRun slow = run(on_cpu(), &trace);
  EXPECT_EQ(slow.data.layer_steps.expert_ps[0], kOnGpu);
  EXPECT_EQ(duration(slow), others + 2 * (kTrip + kJob + kTrip));
  EXPECT_EQ(phase(slow, run::Phase::kWait), 2 * (kTrip + kJob + kTrip - kOnGpu));
  EXPECT_EQ(slow.data.steps[0].straggler_reason, run::StragglerReason::kExpertLoadFromHost);
  EXPECT_EQ(slow.data.layer_steps.straggler_reason[1],
            static_cast<std::uint8_t>(run::StragglerReason::kExpertLoadFromHost));
  std::int64_t on_path = 0;
  for (const run::CriticalEntry& e : slow.data.critical_path) {
    on_path += e.reason == run::StragglerReason::kExpertLoadFromHost ? e.duration_ps : 0;
  }
  EXPECT_EQ(on_path, phase(slow, run::Phase::kWait));
  // 1e15 B/s: the job is 5 us + 12.587 ns, less than the GPU's own expert.
  const std::string quick =
      R"({ flops = "1e6 TFLOP/s", bandwidth = "1e6 GB/s", per_batch = "5 us" })";
  const MemoryRun fast = run(on_cpu({}, quick), &trace);
  EXPECT_EQ(duration(fast), others + 2 * kOnGpu);
  EXPECT_EQ(phase(fast, run::Phase::kWait), 0);
  // 10 GFLOP/s: 2 · W / flops decide.
  const MemoryRun weak =
      run(on_cpu({}, R"({ flops = "0.01 TFLOP/s", bandwidth = "100 GB/s" })"), &trace);
  EXPECT_EQ(duration(weak), others + 2 * (2 * kTrip + kWeights * 200));
}

TEST(HostExperts, SaysWhatItComputedAndWhatTravelled) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const MemoryRun r = run(on_cpu(), &trace);
  EXPECT_DOUBLE_EQ(metric(r, "expert hit rate"), 0.5);
  EXPECT_DOUBLE_EQ(metric(r, "experts loaded per step"), 0);
  EXPECT_DOUBLE_EQ(metric(r, "experts on the CPU per step"), 2);
  EXPECT_DOUBLE_EQ(metric(r, "rows to the CPU per step"), 2);
  EXPECT_DOUBLE_EQ(metric(r, "expert CPU transfers per step"), 4 * kRow);
  EXPECT_NEAR(metric(r, "expert CPU wait per step"),
              1e-9 * static_cast<double>(phase(r, run::Phase::kWait)), 1e-12);
  EXPECT_NEAR(metric(r, "expert CPU use"), 2.0 * kJob / static_cast<double>(duration(r)), 1e-12);
  std::uint64_t links = 0;
  for (const std::uint64_t b : r.data.totals.link_bytes) links += b;
  EXPECT_EQ(links, 4U * kRow);
  EXPECT_EQ(r.data.totals.bytes_sent, 0U);
  // The set on the GPU is the same all the time, and nothing passes through.
  const auto at = [](run::MemoryCategory c) { return static_cast<std::size_t>(c); };
  EXPECT_EQ(r.data.totals.gpu_memory[at(run::MemoryCategory::kExperts)], 2U * 2 * kWeights);
  EXPECT_EQ(r.data.totals.gpu_memory[at(run::MemoryCategory::kBuffers)], 0U);
  // Times of experts by themselves: the GPU's without launches, the CPU's without its fixed time.
  EXPECT_EQ(r.data.totals.expert_time_ps[0], kOnGpu - 2 * kUs);
  EXPECT_EQ(r.data.totals.expert_time_ps[1], kJob - 5 * kUs);
}

TEST(HostExperts, ReadsWeightsAsTheyAreStored) {
  const RoutingTrace trace = test::decode_trace(kOneToken, 8);
  const std::string fp8 =
      "model.dtype={ experts = \"fp8\", shared = \"bf16\", router = \"bf16\", kv = \"bf16\" }";
  const std::vector<std::string> peak{
      fp8, "hardware.gpu_types.toy.peak={ fp32 = \"50 TFLOP/s\", bf16 = \"100 TFLOP/s\" }"};
  const MemoryRun all = resident(peak, &trace);
  const MemoryRun r = run(on_cpu(peak), &trace);
  EXPECT_EQ(duration(r), duration(all) - sum(all.data.layer_steps.expert_ps) +
                             2 * (2 * kTrip + kJob - kWeights * 10));
}

TEST(HostExperts, GpusWaitForTheOneCpuInOrderOfArrival) {
  // A token on each GPU, its experts there: nothing is dispatched.
  const RoutingTrace one = test::decode_trace(kOneToken, 8);
  const RoutingTrace two = test::decode_trace({{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}, 8);
  const MemoryRun a = run(on_cpu(), &one);
  const MemoryRun b = run(on_cpu({"workload.batch=2"}), &two);
  // From the results of the first layer to the rows of the second; less than a job.
  const std::int64_t combine = phase(a, run::Phase::kCombine) / 2;
  const std::int64_t between = kTrip + combine + a.data.layer_steps.attention_ps[1] +
                               a.data.layer_steps.router_ps[1] + kTrip;
  ASSERT_LT(between, kJob);
  // GPU 0 begins its second job when GPU 1's first is over, GPU 1 when that one is: four jobs with
  // nothing between them, where GPU 0 alone has two and the way between them.
  EXPECT_EQ(duration(b), duration(a) + 2 * kJob - between);
  const auto wait = [&](const MemoryRun& r, std::size_t gpu) {
    return r.data.totals
        .gpu_phase_ps[gpu * run::kPhases + static_cast<std::size_t>(run::Phase::kWait)];
  };
  // GPU 0 waits for GPU 1's first job, and at the end of the step for its second.
  EXPECT_EQ(wait(b, 0), wait(a, 0) + (kJob - between) + kJob);
  EXPECT_EQ(wait(b, 1), wait(b, 0));
  EXPECT_NEAR(metric(b, "expert CPU use"), 4.0 * kJob / static_cast<double>(duration(b)), 1e-12);
  // With a CPU for each GPU nobody waits for the other.
  const MemoryRun apart = run(
      on_cpu({"workload.batch=2",
              "hardware.devices=[{ name = \"gpu\", count = 2, kind = \"gpu\", type = \"toy\" }, { "
              "name = \"cpu\", count = 2, kind = \"cpu\" }]",
              "hardware.links=[{ from = \"gpu[0-1]\", to = \"cpu[0-1]\", type = \"pcie\" }, { from "
              "= \"cpu0\", to = \"cpu1\", type = \"pcie\" }]"}),
      &two);
  EXPECT_EQ(duration(apart), duration(a));
}

TEST(HostExperts, RowsShareTheLinksOfTheOthers) {
  const RoutingTrace two = test::decode_trace({{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}, 8);
  const MemoryRun r = run(
      on_cpu({"workload.batch=2", "hardware.link_types.pcie.latency=\"20 us\"",
              "hardware.devices=[{ name = \"gpu\", count = 2, kind = \"gpu\", type = \"toy\" }, { "
              "name = \"sw\", kind = \"pcie_switch\" }, { name = \"cpu\", kind = \"cpu\" }]",
              "hardware.links=[{ from = \"gpu[0-1]\", to = \"sw\", type = \"pcie\" }, { from = "
              "\"sw\", to = \"cpu\", type = \"pcie\" }]"}),
      &two);
  // Both GPUs' rows leave together and halve the link to the CPU; the results come one by one. GPU
  // 1's are the later ones: of the first layer two jobs after the rows.
  EXPECT_EQ(r.data.layer_steps.expert_ps[0], kOnGpu);
  const std::int64_t up = 2 * 20 * kUs + 2 * kRow * 100, back = 2 * 20 * kUs + kRow * 100;
  const std::int64_t first = up + 2 * kJob + back - kOnGpu;
  // In the second layer GPU 0's rows travel a job before GPU 1's, alone.
  const std::int64_t combine = phase(r, run::Phase::kCombine) / 2;
  const std::int64_t between =
      back + combine + r.data.layer_steps.attention_ps[1] + r.data.layer_steps.router_ps[1] + back;
  const std::int64_t second = between < kJob ? 3 * kJob - between : 2 * kJob;
  EXPECT_EQ(phase(r, run::Phase::kWait), first + (back + second - kJob + back - kOnGpu));
}

TEST(HostExperts, WithoutMissesOrTimeItIsAllResident) {
  const RoutingTrace trace =
      test::decode_trace({{{0, 1}, {4, 2}, {7, 0}}, {{2, 3}, {6, 1}, {3, 4}}}, 8);
  const std::vector<std::string> batch{"workload.batch=3", "workload.steps=3"};
  const MemoryRun all = resident(batch, &trace);
  std::vector<std::string> every = batch;
  every.push_back("memory.residency.slots=4");
  const MemoryRun none = run(on_cpu(every), &trace);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(duration(none, i), duration(all, i)) << i;
  EXPECT_DOUBLE_EQ(metric(none, "experts on the CPU per step"), 0);
  EXPECT_DOUBLE_EQ(metric(none, "expert hit rate"), 1);
  // A CPU and links that take no time: what is left is the GPUs' own part.
  std::vector<std::string> free = batch;
  free.insert(free.end(), {"hardware.link_types.pcie.latency=\"0 us\"",
                           "hardware.link_types.pcie.bandwidth=\"1e9 GB/s\""});
  const MemoryRun own = resident(free, &trace);
  const MemoryRun cpu =
      run(on_cpu(free, R"({ flops = "1e12 TFLOP/s", bandwidth = "1e12 GB/s" })"), &trace);
  EXPECT_LE(phase(cpu, run::Phase::kWait), 20);
  std::int64_t less = 0;
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_LE(cpu.data.layer_steps.expert_ps[l], own.data.layer_steps.expert_ps[l]);
    less += own.data.layer_steps.expert_ps[l] - cpu.data.layer_steps.expert_ps[l];
  }
  EXPECT_GT(less, 0);
  EXPECT_NEAR(static_cast<double>(duration(cpu)), static_cast<double>(duration(own) - less), 20);
}

TEST(HostExperts, TheCheaperWayDependsOnTheRowsOfAnExpert) {
  // GPU 0 serves all: expert 0 is there, 1 has two rows, 2 and 3 have one.
  const RoutingTrace trace = test::decode_trace({{{1, 2}, {1, 3}}, {{2, 1}, {2, 3}}}, 8);
  const auto cheaper = [&](const char* flops) {
    return run(on_cpu({"workload.batch=2", "memory.residency.miss=cheaper"},
                      std::string("{ bandwidth = \"100 GB/s\", flops = ") + flops + " }"),
               &trace);
  };
  // A copy takes 1259.29 us. At 20 GFLOP/s a row takes 629.1 us, two 1258.3 and their way 2.8.
  const MemoryRun mixed = cheaper("\"0.02 TFLOP/s\"");
  EXPECT_DOUBLE_EQ(metric(mixed, "experts loaded per step"), 1);
  EXPECT_DOUBLE_EQ(metric(mixed, "experts on the CPU per step"), 4);
  EXPECT_DOUBLE_EQ(metric(mixed, "rows to the CPU per step"), 4);
  EXPECT_DOUBLE_EQ(metric(mixed, "expert hit rate"), 1.0 / 6);
  const MemoryRun slow = cheaper("\"0.001 TFLOP/s\"");
  const MemoryRun loads =
      run({"memory.residency.policy=static", "memory.residency.slots=1",
           "memory.residency.loads=./loads.csv", "workload.steps=1", "workload.batch=2"},
          &trace);
  EXPECT_EQ(duration(slow), duration(loads));
  EXPECT_DOUBLE_EQ(metric(slow, "experts on the CPU per step"), 0);
  EXPECT_DOUBLE_EQ(metric(slow, "experts loaded per step"), 5);
  const MemoryRun fast = cheaper("\"1 TFLOP/s\"");
  EXPECT_DOUBLE_EQ(metric(fast, "experts on the CPU per step"), 5);
  EXPECT_LT(duration(fast), duration(mixed));
  EXPECT_LT(duration(mixed), duration(slow));
}

namespace {

/// What holds of every run in which the CPU computes: of many tokens, or of requests that arrive.
MemoryRun busy_run(const std::vector<std::string>& more) {
  std::vector<std::string> settings = on_cpu();
  if (!more[0].starts_with("workload=")) {
    settings.insert(settings.end(),
                    {"workload.routing={ synthetic = \"uniform\" }", "workload.batch=16"});
  } else {
    settings.pop_back();  // workload.steps
  }
  settings.insert(settings.end(), more.begin(), more.end());
  MemoryRun r = run(settings, nullptr);
  EXPECT_GT(metric(r, "experts on the CPU per step"), 0);
  EXPECT_DOUBLE_EQ(metric(r, "experts loaded per step"), 0);
  EXPECT_GE(metric(r, "rows to the CPU per step"), metric(r, "experts on the CPU per step"));
  EXPECT_GT(metric(r, "expert CPU use"), 0);
  EXPECT_LE(metric(r, "expert CPU use"), 1);
  return r;
}

}  // namespace

TEST(HostExperts, GoesWithWhatElseALayerDoes) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"policy.capacity={ rule = \"absolute\", absolute = 2, exhausted = \"queue\" }"},
           {"parallel={ attention = \"tp\", tp = 2, ep = 2 }"},
           {"parallel={ attention = \"hub\" }"},
           {"memory.loading.from=ssd"},
           {"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { "
            "per_second = 300.0, requests = 30 }, lengths = { prompt = 40, output = 20 }, batching "
            "= { token_budget = 64 }, front_end = { replicas = 2 } }",
            "parallel.ep=1", "parallel.dp=2"}}) {
    SCOPED_TRACE(more[0]);
    const MemoryRun r = busy_run(more), again = busy_run(more);
    ASSERT_EQ(again.data.steps.size(), r.data.steps.size());
    for (std::size_t i = 0; i < r.data.steps.size(); ++i) {
      EXPECT_EQ(again.data.steps[i].end_ps, r.data.steps[i].end_ps);
    }
  }
}

TEST(HostExperts, GoesWithCoflow) { busy_run({"network.model=coflow"}); }
TEST(HostExperts, GoesWithFlow) { busy_run({"network.model=flow"}); }

TEST(HostExperts, SaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> more, const char* part,
                       const std::string& cpu = kCpu) {
    more.insert(more.begin(), "workload.routing={ synthetic = \"uniform\" }");
    std::string got = "accepted";
    try {
      run_in_memory(offload(on_cpu(more, cpu)), nullptr);
    } catch (const InputError& e) {
      got = e.what();
    }
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  says({}, "accepted");
  says({"memory.residency.miss=gpu"}, "gpu");
  says({}, "flops", R"({ bandwidth = "100 GB/s" })");
  says({}, "bandwidth", R"({ flops = "1 TFLOP/s" })");
  says({}, "Violated: bandwidth > 0", R"({ flops = "1 TFLOP/s", bandwidth = "0 GB/s" })");
  says({}, "Violated: flops > 0", R"({ flops = "0 TFLOP/s", bandwidth = "1 GB/s" })");
  says({}, "cores", R"({ flops = "1 TFLOP/s", bandwidth = "1 GB/s", cores = 8 })");
  says({"memory.residency.miss=load"}, "no expert is computed on the CPU");
  says({"memory.residency.policy=lru", "memory.residency.initial=hot"},
       "\"cpu\" is unsupported with policy = \"lru\"");
  says({"memory.residency.policy=lfu", "memory.residency.initial=hot"},
       "\"cpu\" is unsupported with policy = \"lfu\"");
  says({"memory.residency.host_slots=7"}, "host memory must keep all 8 experts");
  says(
      {"hardware.devices=[{ name = \"gpu\", count = 2, kind = \"gpu\", type = \"toy\" }, { name = "
       "\"cpu\", kind = \"cpu\" }, { name = \"pool\", kind = \"cxl\", memory = \"1 TB\" }]",
       "hardware.links=[{ from = \"gpu[0-1]\", to = \"cpu\", type = \"pcie\" }, { from = \"pool\", "
       "to = \"cpu\", type = \"pcie\" }]",
       "memory.residency.store=cxl"},
      "unsupported with store = \"cxl\"");
  says({"parallel.router=cpu", "parallel.router_cpu=" + kCpu}, "a router off the GPUs");
  says({"parallel={ attention = \"tp\", tp = 2, ep = 1 }"}, "divide by columns");
  says({"faults={ restart = \"1 s\", events=[{ step = 1, kind = \"slow_gpu\", gpu = \"gpu1\", "
        "factor "
        "= 2 }] }"},
       "faults is unsupported with memory.residency.miss");
  says({"hardware.devices=[{ name = \"gpu\", count = 4, kind = \"gpu\", type = \"toy\" }, { name = "
        "\"cpu\", kind = \"cpu\" }, { name = \"sw\", kind = \"pcie_switch\" }, { name = \"sv\", "
        "kind "
        "= \"pcie_switch\" }]",
        "hardware.links=[{ from = \"gpu[0,2]\", to = \"sw\", type = \"pcie\" }, { from = "
        "\"gpu[1,3]\", to = \"sv\", type = \"pcie\" }, { from = \"sw\", to = \"cpu\", type = "
        "\"pcie\" "
        "}, { from = \"sv\", to = \"cpu\", type = \"pcie\" }]",
        "parallel.dp=4", "parallel.ep=2"},
       "several groups of GPUs exchange over the same links");
  // A scenario without the table says where, and what to write.
  std::vector<std::string> without = on_cpu();
  std::erase_if(without,
                [](const std::string& s) { return s.starts_with("memory.residency.cpu"); });
  try {
    offload(without);
    FAIL() << "no speed of the CPU";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("the speed of the CPU is not stated"), std::string::npos);
    EXPECT_FALSE(e.where().empty());
    EXPECT_NE(e.hint().find("cpu = { flops"), std::string::npos);
  }
}

}  // namespace switchyard::sim
