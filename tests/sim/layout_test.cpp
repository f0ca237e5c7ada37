// SPDX-License-Identifier: Apache-2.0
// Routers off the GPUs, pipeline stages, ep beside tp, sequence parallelism, overlapping halves and
// expert groups, on the machine of the worked example (sim/README.md) against arithmetic. Terms of
// one token in ps: embedding 1,004,096; attention 11,318,080; router 4,045,120 = norm 1,004,096 +
// gate 1,034,848 + top-k 1,000,032 + permutation 1,006,144; experts of one row 14,595,200; weighted
// sum 1,008,192; head 19,848,896. 2,048 B over a cable pair: 2,020,480.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using Choices = std::vector<std::vector<std::uint16_t>>;

const std::string kLognormal = R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })";
const std::string kCpu =
    R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "10 us" })";

void expect_sound(const MemoryRun& r) {
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
}

/// Token t of both layers has these experts.
MemoryRun traced(const Choices& tokens, std::vector<std::string> settings) {
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=" + std::to_string(tokens.size()));
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), &trace);
  expect_sound(r);
  return r;
}

MemoryRun random_run(std::vector<std::string> settings) {
  settings.insert(settings.begin(), kLognormal);
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), nullptr);
  expect_sound(r);
  return r;
}

std::int64_t duration(const MemoryRun& r) {
  return r.data.steps[0].end_ps - r.data.steps[0].start_ps;
}

std::uint64_t carried(const MemoryRun& r, const std::string& link) {
  for (std::size_t k = 0; k < r.data.inventory.links.size(); ++k) {
    if (r.data.inventory.links[k].name == link) return r.data.links.bytes[k];
  }
  ADD_FAILURE() << "no link " << link;
  return 0;
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

std::uint64_t held(const MemoryRun& r, std::uint32_t gpu, run::MemoryCategory category) {
  return r.data.totals
      .gpu_memory[gpu * run::kMemoryCategories + static_cast<std::size_t>(category)];
}

/// What the reader or the simulator refuses.
std::string refusal(std::vector<std::string> settings) {
  settings.insert(settings.begin(), kLognormal);
  try {
    static_cast<void>(test::run_in_memory(test::worked_scenario(std::move(settings)), nullptr));
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

void expect_refused(std::vector<std::string> settings, const std::string& part) {
  const std::string message = refusal(std::move(settings));
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

Choices every_token(std::size_t n, std::vector<std::uint16_t> experts) {
  return Choices(n, std::move(experts));
}

}  // namespace

// ---- router on the CPU or a card ----

TEST(RouterOffTheGpu, OnTheCpuPaysTheWayAndTheHost) {
  // The worked example: 4 tokens on GPUs 0 to 3, all of cpu0. A layer's router: norm; 2,048 B over
  // a wire of 10 GB/s and 2 us, 2,204,800; 10 us + (8,192·4 + 4·(2,048 + 64)) B / 100 GB/s,
  // 10,412,160; 2 slots of 6 B back, 2,001,200; permutation. In all 16,628,400 for 4,045,120.
  const RoutingTrace trace =
      test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const std::vector<std::string> set{"hardware.file=worked_cpu.toml"};
  const MemoryRun gpu = test::run_in_memory(test::worked_scenario(set), &trace);
  EXPECT_EQ(duration(gpu), 102'040'128);
  const MemoryRun cpu =
      test::run_in_memory(test::worked_scenario({set[0], "parallel.router=cpu", kCpu}), &trace);
  expect_sound(cpu);
  EXPECT_EQ(duration(cpu), 102'040'128 + 2 * (16'628'400 - 4'045'120));
  EXPECT_EQ(cpu.data.layer_steps.router_ps[0], 16'628'400);
  EXPECT_EQ(carried(cpu, "gpu0>cpu0"), 2U * 2048);
  EXPECT_EQ(carried(cpu, "cpu0>gpu0"), 2U * 12);
  EXPECT_EQ(carried(cpu, "gpu4>cpu1"), 0U);
  EXPECT_DOUBLE_EQ(metric(cpu, "router CPU use"), 2 * 10'412'160.0 / 127'206'688.0);
  EXPECT_DOUBLE_EQ(metric(cpu, "router transfers per step"), 2 * 4 * (2048 + 12));
  EXPECT_TRUE(std::any_of(cpu.result.notes.begin(), cpu.result.notes.end(), [](const auto& note) {
    return note.find("router on the CPU: busy cpu0 16.4 % (4 GPUs, 8 tokens") == 0;
  }));
  // Nothing of it passes between GPUs, and the gate's weights are not on them.
  EXPECT_EQ(cpu.data.totals.bytes_sent, gpu.data.totals.bytes_sent);
  EXPECT_EQ(
      held(gpu, 0, run::MemoryCategory::kWeights) - held(cpu, 0, run::MemoryCategory::kWeights),
      2U * 8 * 1024 * 4);
}

TEST(RouterOffTheGpu, OnACardSharesItsWire) {
  // Two hops of 2 us; the card's wire carries 4 · 2,048 B in and 4 · 12 B out; the card reads
  // 41,088 B for the gate and 128 B for the top-k in two kernels.
  const RoutingTrace trace =
      test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const MemoryRun r = test::run_in_memory(
      test::worked_scenario({"hardware.file=worked_card.toml", "parallel.router=card"}), &trace);
  expect_sound(r);
  const std::int64_t way = (4'000'000 + 819'200) + (2'000'000 + 41'088 + 128) + (4'000'000 + 4'800);
  EXPECT_EQ(duration(r), 102'040'128 + 2 * (1'004'096 + way + 1'006'144 - 4'045'120));
  EXPECT_EQ(r.data.inventory.gpus.size(), 8U);
  EXPECT_EQ(carried(r, "cpu0>gpu8"), 2U * 4 * 2048);
  EXPECT_GT(metric(r, "router card use"), 0);
}

TEST(RouterOffTheGpu, GroupsOfTensorParallelismSendEachTokenOnce) {
  const MemoryRun r =
      random_run({"hardware.file=worked_cpu.toml", "workload.batch=12", "parallel.attention=tp",
                  "parallel.dp=2", "parallel.tp=4", "parallel.ep=4", "parallel.router=cpu", kCpu});
  // 12 tokens in two layers up, the decisions for all 6 of a group to each of its 4 GPUs.
  EXPECT_DOUBLE_EQ(metric(r, "router transfers per step"), 2 * (12 * 2048 + 8 * 6 * 12));
}

TEST(RouterOffTheGpu, GoesWithFaultsThatLeaveEverythingInPlace) {
  const std::vector<std::string> on{"hardware.file=worked_cpu.toml", "workload.batch=12",
                                    "workload.steps=2", "parallel.router=cpu", kCpu};
  const std::int64_t well = duration(random_run(on));
  for (const char* fault : {R"({kind="slow_gpu",gpu="gpu1",factor=4,step=0})",
                            R"({kind="host_stall",stall="1 ms",step=0})",
                            R"({kind="kv_leak",gpu="gpu1",bytes="1 MB",step=0})"}) {
    auto set = on;
    set.push_back(std::string("faults.events=[") + fault + "]");
    const MemoryRun r = random_run(set);
    EXPECT_EQ(metric(r, "faults"), 1);
    EXPECT_EQ(duration(r) > well, std::string(fault).find("leak") == std::string::npos) << fault;
  }
}

TEST(WideExperts, GoWithFaultsThatLeaveEverythingInPlace) {
  const std::vector<std::string> on{
      kLognormal,      "workload.batch=12", "workload.steps=2", "parallel.attention=tp",
      "parallel.tp=2", "parallel.dp=4",     "parallel.ep=8"};
  const std::int64_t well = duration(random_run(on));
  for (const char* fault : {R"({kind="slow_gpu",gpu="gpu1",factor=4,step=0})",
                            R"({kind="link_degraded",factor=0.1,probability=1})"}) {
    auto set = on;
    set.push_back(std::string("faults.events=[") + fault + "]");
    EXPECT_GT(duration(random_run(set)), well) << fault;
  }
  auto lost = on;
  lost.emplace_back("faults.events=[{kind=\"gpu_loss\",gpu=\"gpu1\",step=0}]");
  lost.emplace_back("faults.reload=1 GB/s");
  expect_refused(lost, "one group of GPUs that need each other: nobody is left");
}

namespace {
/// What the ten kinds of faults leave behind: nothing is lost, nothing is served twice.
void expect_faults(const std::vector<std::string>& layout, bool migrates) {
  std::vector<std::string> base = layout;
  base.insert(base.end(), {kLognormal, "workload.batch=24", "workload.steps=6"});
  const MemoryRun healthy = random_run(base);
  const auto broken = [&](const std::string& fault, std::vector<std::string> more = {}) {
    std::vector<std::string> set = base;
    set.push_back("faults.events=[" + fault + "]");
    set.insert(set.end(), more.begin(), more.end());
    MemoryRun r = random_run(set);
    EXPECT_GE(metric(r, "faults"), 1) << fault;
    return r;
  };
  const MemoryRun slow = broken(R"({kind="slow_expert",expert=5,layer=1,factor=4,step=0})");
  EXPECT_NEAR(static_cast<double>(slow.data.totals.expert_time_ps[8 + 5]),
              4.0 * static_cast<double>(healthy.data.totals.expert_time_ps[8 + 5]), 24);
  const MemoryRun flip = broken(R"({kind="bit_flip",expert=2,layer=0,step=1})",
                                {"faults.reload=1 GB/s", "faults.check_every=4"});
  EXPECT_GT(metric(flip, "assignments on damaged weights"), 0);
  EXPECT_GT(metric(flip, "recovery time"), 0);
  const MemoryRun gather =
      broken(R"({kind="gather_failure",gpu="gpu2",timeout="50 us",tries=2,step=3,lasts=1})");
  EXPECT_EQ(metric(gather, "failed gathers"), 2 * 2);
  EXPECT_GT(gather.data.steps[3].end_ps - gather.data.steps[3].start_ps,
            healthy.data.steps[3].end_ps - healthy.data.steps[3].start_ps + 200'000'000);
  const MemoryRun lies = broken(R"({kind="mis_sharding",expert=1,layer=0,gpu="gpu3",step=1})",
                                {"faults.check_every=4"});
  EXPECT_GT(metric(lies, "assignments sent on"), 0);
  const MemoryRun thin =
      broken(R"({kind="link_degraded",link="gpu3--switch",factor=0.01,step=2,lasts=1})");
  EXPECT_GT(thin.data.steps[2].end_ps - thin.data.steps[2].start_ps,
            healthy.data.steps[2].end_ps - healthy.data.steps[2].start_ps);
  EXPECT_EQ(thin.data.steps[4].end_ps - thin.data.steps[4].start_ps,
            healthy.data.steps[4].end_ps - healthy.data.steps[4].start_ps);
  for (const std::string& lost : {std::string(R"({kind="gpu_loss",gpu="gpu1",step=2)"),
                                  std::string(R"({kind="link_down",link="gpu1--switch",step=2)")}) {
    const MemoryRun restarted =
        broken(lost + "}", {"faults.reload=10 GB/s", "faults.reaction=restart",
                            "faults.restart=100 us", "faults.detection=10 us"});
    EXPECT_GT(restarted.data.steps[2].end_ps - restarted.data.steps[2].start_ps, 110'000'000)
        << lost;
    EXPECT_EQ(restarted.data.totals.expert_kept.size(), healthy.data.totals.expert_kept.size());
    if (!migrates) continue;
    const MemoryRun moved =
        broken(lost + ",lasts=2}", {"faults.reload=10 GB/s", "faults.detection=10 us"});
    EXPECT_EQ(moved.data.steps[3].tokens, healthy.data.steps[3].tokens) << lost;
    EXPECT_EQ(moved.data.steps[5].tokens, healthy.data.steps[5].tokens) << lost;
  }
}
}  // namespace

TEST(WideExperts, GoWithEveryFault) {
  expect_faults({"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4", "parallel.ep=8"},
                false);
  expect_faults({"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4", "parallel.ep=4"}, true);
}

TEST(RouterOffTheGpu, GoesWithEveryFault) {
  const std::vector<std::string> on{"hardware.file=worked_cpu.toml", "parallel.router=cpu", kCpu};
  expect_faults(on, true);
  auto groups = on;
  groups.emplace_back("parallel.ep=4");
  expect_faults(groups, true);
}

TEST(RouterOffTheGpu, FeelsASlowWire) {
  // The worked example of OnTheCpuPaysTheWayAndTheHost: the wire of GPU 1 at half of its 10 GB/s.
  const RoutingTrace trace =
      test::decode_trace({{{0, 1}, {1, 2}, {1, 3}, {1, 4}}, {{4, 5}, {5, 6}, {6, 7}, {7, 0}}}, 8);
  const std::vector<std::string> on{"hardware.file=worked_cpu.toml", "parallel.router=cpu", kCpu};
  auto slow = on;
  slow.emplace_back(
      R"(faults.events=[{kind="link_degraded",link="gpu1--cpu0",factor=0.5,step=0}])");
  const MemoryRun well = test::run_in_memory(test::worked_scenario(on), &trace);
  const MemoryRun r = test::run_in_memory(test::worked_scenario(slow), &trace);
  expect_sound(r);
  // 2,048 B and 12 B take as long again on that wire, and all of cpu0 wait.
  EXPECT_EQ(r.data.layer_steps.router_ps[0], well.data.layer_steps.router_ps[0] + 204'800 + 1'200);
  EXPECT_EQ(duration(r), duration(well) + 2 * (204'800 + 1'200));
  EXPECT_EQ(carried(r, "gpu1>cpu0"), 2U * 2048);
}

// flow and coflow time what goes to the CPU in the queue of transfers, with the exchanges.
TEST(RouterOffTheGpu, UnderFlowAndCoflow) {
  // Four GPUs on a PCIe switch with each CPU; groups of two.
  const std::vector<std::string> on{
      "hardware.file=worked_cpu.toml",
      "parallel.router=cpu",
      kCpu,
      "parallel.ep=2",
      "workload.batch=24",
      R"(hardware.devices=[{ name = "gpu", count = 8, kind = "gpu", type = "toy" }, )"
      R"({ name = "s", count = 2, kind = "pcie_switch" }, { name = "cpu", count = 2, kind = "cpu" }])",
      R"(hardware.links=[{ from = "gpu[0-7]", to = "s[0-1]", type = "wire" }, )"
      R"({ from = "s[0-1]", to = "cpu[0-1]", type = "wire" }, { from = "cpu0", to = "cpu1", )"
      R"(type = "wire" }])"};
  const auto under = [&](const std::string& model) {
    auto set = on;
    set.push_back("network.model=" + model);
    return random_run(set);
  };
  const MemoryRun closed = under("bottleneck"), coflow = under("coflow"), flow = under("flow");
  EXPECT_NEAR(static_cast<double>(duration(coflow)), static_cast<double>(duration(closed)), 20);
  // GPUs with fewer tokens have their decisions sooner.
  EXPECT_LT(duration(flow), duration(closed));
  EXPECT_NEAR(static_cast<double>(duration(flow)), static_cast<double>(duration(closed)),
              0.1 * static_cast<double>(duration(closed)));
  for (const MemoryRun* r : {&coflow, &flow}) {
    EXPECT_EQ(r->data.links.bytes, closed.data.links.bytes);
    EXPECT_EQ(metric(*r, "router transfers per step"), metric(closed, "router transfers per step"));
  }
}

TEST(RouterOffTheGpu, IsRefusedWithTheReason) {
  expect_refused({"parallel.router=cpu", kCpu}, "hardware worked has no cpu device");
  expect_refused({"parallel.router=card"}, "hardware worked has no card besides its GPUs");
  expect_refused({"hardware.file=worked_cpu.toml", "parallel.router=cpu"},
                 "the speed of the CPU is not stated");
  expect_refused({"parallel.card=1"}, "there is no card");
  expect_refused({kCpu}, "the router does not run on the CPU");
  const std::vector<std::string> on{"hardware.file=worked_cpu.toml", "parallel.router=cpu", kCpu};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), on.begin(), on.end());
    return more;
  };
  expect_refused(with({"memory.residency={policy=\"lru\",slots=1}"}),
                 "is unsupported with memory.residency and network.model = \"bottleneck\"");
}

// ---- stages of a pipeline ----

TEST(Stages, TakeTheTimeOfTheirTurns) {
  // Two stages of one layer and four GPUs, two micro-batches of one token a GPU; token t chooses
  // the two experts of its own GPU, so nothing else travels. A layer X = 43,561,792 (experts
  // 27,190,400). Head > embedding, so the last stage never waits after its first micro-batch:
  //   12 us + embedding + 3 X + 2,020,480 + 2 heads + 2,000,040 (4 B back) = 187,407,784
  Choices own;
  for (std::uint16_t t = 0; t < 8; ++t) {
    const auto e = static_cast<std::uint16_t>(t % 4 * 2);
    own.push_back({e, static_cast<std::uint16_t>(e + 1)});
  }
  const std::vector<std::string> stages{"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4",
                                        "parallel.ep=4"};
  const MemoryRun r = traced(own, stages);
  EXPECT_EQ(duration(r), 187'407'784);
  EXPECT_EQ(r.data.layer_steps.expert_ps[0], 2 * 27'190'400);
  EXPECT_EQ(r.data.totals.assignments, 8U * 2 * 2);
  // 8 hidden states to the second stage and 8 tokens back.
  EXPECT_EQ(r.data.totals.bytes_sent, 8U * 2048 + 8 * 4);
  EXPECT_EQ(r.data.totals.pair_bytes[0 * 8 + 4], 2U * 2048);
  EXPECT_EQ(r.data.totals.pair_bytes[4 * 8 + 0], 2U * 4);
  // What the GPUs of each stage hold.
  using run::MemoryCategory;
  const std::uint64_t layer = 1'572'864 + 1'048'576 + 2 * 1024;
  EXPECT_EQ(held(r, 0, MemoryCategory::kWeights), 2 * (8'388'608 + layer) + 4 * 8192);
  EXPECT_EQ(held(r, 4, MemoryCategory::kWeights), 2 * (8'388'608 + layer + 1024) + 4 * 8192);
  for (const std::uint32_t g : {0U, 7U}) {
    EXPECT_EQ(held(r, g, MemoryCategory::kExperts), 2U * 12'582'912);
    EXPECT_EQ(held(r, g, MemoryCategory::kKv), 2U * 1040 * 512 * 2);
  }
  EXPECT_GT(metric(r, "pipeline idle share"), 1.0 / 3);
  // One micro-batch: nothing overlaps. 12 us + embedding + 2 X of two tokens + transfers + head.
  auto whole = stages;
  whole.push_back("parallel.micro_batches=1");
  const MemoryRun one = traced(own, whole);
  const std::int64_t attention = 5'000'000 + 8'192 + (3'145'728 + 10'240) + 12'288 +
                                 (2 * 1'049'600 + 8'192) + (2'097'152 + 12'288);
  const std::int64_t router = 4'000'000 + 8'192 + (32'768 + 4'096 + 64) + 64 + 12'288;
  const std::int64_t experts = 2'000'000 + 25'165'824 + 4 * 12'288, sum = 1'000'000 + 16'384;
  EXPECT_EQ(duration(one), 12'000'000 + 1'008'192 + 2 * (attention + router + experts + sum) +
                               2'040'960 + 19'920'576 + 2'000'080);
}

TEST(Stages, DecideAndCountAsWithoutThem) {
  const MemoryRun plain = random_run({"workload.batch=48", "workload.steps=3", "parallel.ep=4"});
  for (const char* m : {"1", "3", "5"}) {
    const MemoryRun r = random_run({"workload.batch=48", "workload.steps=3",
                                    "parallel.attention=pp", "parallel.dp=4", "parallel.pp=2",
                                    "parallel.ep=2", std::string("parallel.micro_batches=") + m});
    EXPECT_EQ(r.data.totals.expert_kept, plain.data.totals.expert_kept) << m;
    EXPECT_EQ(r.data.steps[0].gate_entropy > 0, plain.data.steps[0].gate_entropy > 0);
    EXPECT_NEAR(r.data.steps[2].gate_entropy, plain.data.steps[2].gate_entropy, 1e-9);
    // Every expert of a layer is on the GPUs of its stage.
    const run::Inventory& inv = r.data.inventory;
    ASSERT_EQ(inv.replicas, 2U);
    for (std::size_t i = 0; i < inv.placement.size(); ++i) {
      EXPECT_EQ(inv.placement[i] / 4, i / (8 * 2)) << i;
    }
  }
}

TEST(Stages, OverflowAndCapacityAddUpOverMicroBatches) {
  const MemoryRun r =
      random_run({"workload.batch=64", "workload.steps=2", "parallel.attention=pp", "parallel.dp=4",
                  "parallel.ep=4", "parallel.pp=2", "parallel.micro_batches=2",
                  "policy.capacity={ rule = \"absolute\", absolute = 5 }"});
  // Two micro-batches of C = 5 in the one group of a stage.
  for (const std::uint32_t c : r.data.layer_experts[0].capacity) EXPECT_EQ(c, 10U);
  EXPECT_GT(r.data.totals.overflow, 0U);
}

TEST(Stages, AndTensorParallelismInsideThem) {
  const MemoryRun r = random_run({"workload.batch=16", "parallel.attention=tp", "parallel.pp=2",
                                  "parallel.dp=2", "parallel.tp=2", "parallel.ep=2"});
  EXPECT_EQ(r.data.totals.assignments, 16U * 2 * 2);
  const MemoryRun wide = random_run({"workload.batch=16", "parallel.attention=tp", "parallel.pp=2",
                                     "parallel.dp=2", "parallel.tp=2", "parallel.ep=4"});
  EXPECT_EQ(wide.data.totals.expert_kept, r.data.totals.expert_kept);
}

TEST(Stages, ServeRequestsThatArrive) {
  // Two stages of four GPUs, one layer each: a page of 16 tokens takes 16,384 B on either.
  const std::vector<std::string> serve{
      R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
      R"(per_second = 2000.0, requests = 40 }, lengths = { prompt = 100, output = 12, )"
      R"(prompt_cv = 0.5 }, batching = { token_budget = 64, max_sequences = 8, )"
      R"(kv = "1 MB" } })",
      "parallel.attention=pp", "parallel.dp=4", "parallel.pp=2", "parallel.ep=4"};
  const MemoryRun r = random_run(serve);
  EXPECT_EQ(r.data.requests.size(), 40U);
  std::uint64_t tokens = 0, want = 0;
  for (const auto& s : r.data.steps) tokens += s.tokens;
  for (const auto& q : r.data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    want += q.prompt_tokens + q.output_tokens - 1;
  }
  EXPECT_GE(tokens, want);
  EXPECT_GT(metric(r, "pipeline idle share"), 0);
  // Both stages hold their layer's pages, and no more than they may.
  for (std::uint32_t g = 0; g < 8; ++g) {
    EXPECT_GT(held(r, g, run::MemoryCategory::kKv), 0U) << g;
    EXPECT_LE(held(r, g, run::MemoryCategory::kKv), 1'000'000U) << g;
    EXPECT_EQ(held(r, g, run::MemoryCategory::kKv), held(r, g % 4, run::MemoryCategory::kKv)) << g;
  }
  std::vector<std::string> replicas = serve;
  replicas[0].replace(replicas[0].rfind(" }"), 2, ", front_end = { replicas = 2 } }");
  expect_refused(replicas, "several replicas");
}

TEST(Stages, AreRefusedWithTheReason) {
  const std::vector<std::string> on{"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4",
                                    "parallel.ep=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), on.begin(), on.end());
    return more;
  };
  expect_refused({"parallel.attention=pp", "parallel.pp=4"}, "pp <= 2 layers");
  expect_refused({"parallel.attention=pp", "parallel.pp=1"}, "needs at least two stages");
  expect_refused({"parallel.pp=2", "parallel.dp=4"}, "stages need attention = \"pp\"");
  expect_refused({"parallel.micro_batches=2"}, "there is no pipeline");
  expect_refused(with({"parallel.ep=8"}), "ep divides the 4 GPUs of a stage");
  expect_refused(with({"parallel.dp=8"}), "dp * tp * pp = 8 GPUs");
  expect_refused(with({"network.dispatch=per_node"}), "a relay may be of another stage");
  expect_refused(with({"memory.kv={placement=\"replicated\"}"}),
                 "unsupported with memory.kv.placement = \"replicated\"");
  expect_refused(
      with({"parallel.placement=\"eplb\"", "parallel.rebalance={signal=\"load\",threshold=1.1}"}),
      "unsupported with parallel.rebalance");
  expect_refused({"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4", "parallel.ep=4",
                  "workload={kind=\"open\",arrivals={per_second=10,requests=4},lengths={prompt=8,"
                  "output=2},routing={synthetic=\"uniform\"},front_end={replicas=2}}"},
                 "parallel.pp = 2 is unsupported with several replicas");
}

// ---- ep beside tp, sequence parallelism ----

TEST(WideExperts, DispatchTheGroupsShares) {
  // tp = 2, ep = 8, two tokens, one a group; its second GPU owns it. Attention of half the heads
  // 8,164,160; all-reduce and all-gather of 2,048 B in two GPUs: 2 + 1 phases of 1,024 B, 2,010,240
  // each; the token goes to the other GPU of its group.
  const MemoryRun r = traced({{0, 1}, {2, 3}}, {"parallel.attention=tp", "parallel.tp=2",
                                                "parallel.dp=4", "parallel.ep=8"});
  const std::int64_t layer =
      8'164'160 + 3 * 2'010'240 + 4'045'120 + 2 * 2'020'480 + 14'595'200 + 1'008'192;
  EXPECT_EQ(duration(r), 11'000'000 + 1'004'096 + 2 * layer + 19'848'896);
  EXPECT_EQ(r.data.totals.pair_bytes[1 * 8 + 0], 2U * (2048 + 3 * 1024));
}

TEST(WideExperts, RunTheSameAssignments) {
  const MemoryRun dp = random_run({"workload.batch=40"});
  for (const char* tp : {"2", "4"}) {
    for (const char* sequence : {"false", "true"}) {
      const MemoryRun r = random_run(
          {"workload.batch=40", "parallel.attention=tp", std::string("parallel.tp=") + tp,
           tp[0] == '2' ? "parallel.dp=4" : "parallel.dp=2", "parallel.ep=8",
           std::string("parallel.sequence_parallel=") + sequence, "network.dispatch=per_expert"});
      EXPECT_EQ(r.data.totals.expert_kept, dp.data.totals.expert_kept) << tp << sequence;
    }
  }
}

TEST(SequenceParallelism, ReplacesAllReducesByTheirHalves) {
  // tp = ep = 2, one token a group that chooses an expert of each GPU. Norm and residual of half a
  // token: attention 8,161,088, weighted sum 1,007,168; two all-gathers and two reduce-scatters of
  // one phase a layer; one all-gather of the rows that sample.
  const MemoryRun r =
      traced(every_token(4, {0, 4}), {"parallel.attention=tp", "parallel.tp=2", "parallel.dp=4",
                                      "parallel.ep=2", "parallel.sequence_parallel=true"});
  const std::int64_t layer = 8'161'088 + 4'045'120 + 14'595'200 + 1'007'168 + 4 * 2'010'240;
  EXPECT_EQ(duration(r), 11'000'000 + 1'004'096 + 2 * layer + 2'010'240 + 19'848'896);
  const MemoryRun plain = traced(every_token(4, {0, 4}), {"parallel.attention=tp", "parallel.tp=2",
                                                          "parallel.dp=4", "parallel.ep=2"});
  const std::int64_t reduced = 8'164'160 + 4'045'120 + 14'595'200 + 1'008'192 + 4 * 2'010'240;
  EXPECT_EQ(duration(plain), 11'000'000 + 1'004'096 + 2 * reduced + 19'848'896);
}

TEST(TensorParallelism, ServesCopiesOfExpertsInsideItsGroups) {
  const std::vector<std::string> tp{"workload.batch=64", "parallel.attention=tp", "parallel.dp=2",
                                    "parallel.tp=4", "parallel.ep=4"};
  auto copies = tp;
  copies.emplace_back("parallel.placement=\"eplb\"");
  copies.emplace_back("parallel.placement_options={ redundant = 4, choice = \"least_loaded\" }");
  const MemoryRun a = random_run(tp), b = random_run(copies);
  EXPECT_EQ(a.data.totals.expert_kept, b.data.totals.expert_kept);
  EXPECT_EQ(a.data.totals.bytes_sent, b.data.totals.bytes_sent) << "all-reduces only";
  EXPECT_LT(b.data.steps[0].imbalance, a.data.steps[0].imbalance);
  EXPECT_GT(held(b, 0, run::MemoryCategory::kExperts), held(a, 0, run::MemoryCategory::kExperts));
}

TEST(CutExperts, TakeTheTimeOfTheirColumns) {
  // One token, experts 0 and 1, tp = 8. An expert is 12,582,912 B, a row 1,024 values in and 2,048
  // columns. ep = 1: every GPU reads an eighth of both and has both rows; ep = 2: both are of rank
  // 0, four GPUs with a quarter each; ep = 4: of rank 0, two GPUs with halves; ep = 8: one each.
  const auto of = [](const std::string& ep, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=" + ep});
    return traced({{0, 1}}, more);
  };
  const auto experts = [](const MemoryRun& r) { return r.data.layer_steps.expert_ps[0]; };
  const MemoryRun whole = of("8");
  EXPECT_EQ(experts(of("1")), 2'000'000 + 2 * 12'582'912 / 8 + 2 * 2 * (1024 + 256) * 2);
  EXPECT_EQ(experts(of("2")), 2'000'000 + 2 * 12'582'912 / 4 + 2 * 2 * (1024 + 512) * 2);
  EXPECT_EQ(experts(of("4")), 2'000'000 + 2 * 12'582'912 / 2 + 2 * 2 * (1024 + 1024) * 2);
  EXPECT_EQ(experts(whole), 14'595'200);
  const auto phase = [](const MemoryRun& r, std::uint32_t gpu) {
    return r.data.totals
        .gpu_phase_ps[gpu * run::kPhases + static_cast<std::size_t>(run::Phase::kExpert)];
  };
  for (std::uint32_t g = 0; g < 8; ++g) {
    EXPECT_EQ(phase(of("2"), g), g < 4 ? 2 * experts(of("2")) : 0) << g;
    EXPECT_EQ(phase(of("1"), g), 2 * experts(of("1"))) << g;
  }
  for (const char* ep : {"1", "2", "4"}) {
    const MemoryRun r = of(ep);
    // The same all-reduces and the same arithmetic; what differs is who does it.
    EXPECT_EQ(r.data.totals.bytes_sent, whole.data.totals.bytes_sent) << ep;
    EXPECT_EQ(r.data.steps[0].flops, whole.data.steps[0].flops) << ep;
    EXPECT_EQ(duration(r) - duration(whole), 2 * (experts(r) - experts(whole))) << ep;
    // All of them divide the layers' experts, and together hold them once.
    for (std::uint32_t g = 0; g < 8; ++g) {
      EXPECT_EQ(held(r, g, run::MemoryCategory::kExperts), 2U * 12'582'912) << ep << " " << g;
    }
  }
  // Assignments per rank: both on one of two ranks, or on the only one.
  EXPECT_DOUBLE_EQ(of("2").data.steps[0].imbalance, 2);
  EXPECT_DOUBLE_EQ(of("1").data.steps[0].imbalance, 1);
  EXPECT_DOUBLE_EQ(whole.data.steps[0].imbalance, 4);
}

TEST(CutExperts, RunTheSameAssignmentsInEveryLayout) {
  const MemoryRun dp = random_run({"workload.batch=40", "workload.steps=2"});
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.dp=1", "parallel.tp=8", "parallel.ep=1"},
        {"parallel.dp=1", "parallel.tp=8", "parallel.ep=4", "parallel.sequence_parallel=true"},
        {"parallel.dp=2", "parallel.tp=4", "parallel.ep=1", "parallel.vocab_parallel=true"},
        {"parallel.dp=2", "parallel.tp=4", "parallel.ep=2", "parallel.placement=round_robin"},
        {"parallel.dp=4", "parallel.tp=2", "parallel.ep=1", "network.model=coflow"},
        {"parallel.dp=1", "parallel.pp=2", "parallel.tp=4", "parallel.ep=2"},
        {"parallel.dp=2", "parallel.tp=4", "parallel.ep=2", "parallel.placement=eplb",
         "parallel.placement_options={ redundant = 2, choice = \"least_loaded\" }"}}) {
    std::vector<std::string> set{"workload.batch=40", "workload.steps=2", "parallel.attention=tp"};
    set.insert(set.end(), layout.begin(), layout.end());
    const MemoryRun r = random_run(set);
    EXPECT_EQ(r.data.totals.expert_kept, dp.data.totals.expert_kept) << layout[1] << layout[2];
    EXPECT_EQ(r.data.totals.assignments, dp.data.totals.assignments);
  }
}

TEST(CutExperts, ServeRequestsAndMoveOverTheLinks) {
  const std::vector<std::string> tp{"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4",
                                    "parallel.ep=2"};
  auto serve = tp;
  serve.emplace_back(
      R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
      R"(per_second = 2000.0, requests = 20 }, lengths = { prompt = 60, output = 6 } })");
  for (const auto& q : random_run(serve).data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
  }
  // A rank that moves an expert moves it column by column: every GPU a half.
  auto moves = tp;
  for (const char* more :
       {"workload.batch=64", "workload.steps=12",
        "workload.routing={ synthetic = \"zipf\", s = 2 }", "parallel.placement=eplb",
        "parallel.placement_options={ loads = \"profile\" }",
        "parallel.rebalance={ signal = \"load\", threshold = 1.0, window = 2 }"}) {
    moves.emplace_back(more);
  }
  const MemoryRun r = random_run(moves);
  std::uint64_t sum = 0;
  for (std::uint32_t g = 0; g < 8; ++g) sum += r.data.totals.pair_bytes[g * 8 + (g ^ 2U)] > 0;
  EXPECT_GT(sum, 0U);
}

TEST(EpWithoutTp, CountsWhatTheGpusHold) {
  // TP = 1 with EP = 8: experts divided, all else whole on each GPU. TP = 8 with any EP: the same
  // bytes of experts, heads divided. Together the GPUs hold the experts once for each copy.
  using run::MemoryCategory;
  const std::uint64_t all = 2 * 8 * 12'582'912ULL;
  const auto sum = [](const MemoryRun& r, MemoryCategory c) {
    std::uint64_t bytes = 0;
    for (std::uint32_t g = 0; g < 8; ++g) bytes += held(r, g, c);
    return bytes;
  };
  const MemoryRun ep = random_run({"parallel.ep=8"}), one = random_run({"parallel.ep=1"});
  EXPECT_EQ(sum(ep, MemoryCategory::kExperts), all);
  EXPECT_EQ(sum(one, MemoryCategory::kExperts), 8 * all);
  EXPECT_EQ(held(ep, 0, MemoryCategory::kWeights), held(one, 0, MemoryCategory::kWeights));
  for (const char* n : {"1", "2", "4", "8"}) {
    const MemoryRun tp = random_run({"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8",
                                     std::string("parallel.ep=") + n});
    EXPECT_EQ(sum(tp, MemoryCategory::kExperts), all) << n;
    const MemoryRun two = random_run({"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4",
                                      std::string("parallel.ep=") + n});
    EXPECT_EQ(sum(two, MemoryCategory::kExperts), n[0] == '8' ? all : 2 * all) << n;
  }
}

TEST(VocabularyParallel, DividesEmbeddingAndHeadAndGathersLogits) {
  // One token, 8,192 entries of 1,024 values, tp = 8. Looked up: an eighth of a row of weights, a
  // whole one written; all-reduce of 2,048 B, 14 phases of 256 B. Head: 1,024 rows of weights, as
  // many logits of 2 B; all-gather of 16,384 B, 7 phases of 2,048 B; sampling apart.
  const std::vector<std::string> tp{"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8",
                                    "parallel.ep=8"};
  auto split = tp;
  split.emplace_back("parallel.vocab_parallel=true");
  const MemoryRun plain = traced({{0, 1}}, tp), r = traced({{0, 1}}, split);
  const std::int64_t embedding = 1'000'000 + 2048 / 8 + 2048;
  const std::int64_t reduce = 14 * (2'000'000 + 256 * 10);
  const std::int64_t product = 1'000'000 + 16'777'216 / 8 + 2048 + 1024 * 2;
  const std::int64_t gather = 7 * (2'000'000 + 2048 * 10);
  const std::int64_t sampling = 1'000'000 + 8192 * 4;
  EXPECT_EQ(duration(r) - duration(plain), embedding + reduce + (1'000'000 + 4096) + product +
                                               gather + sampling - 1'004'096 - 19'848'896);
  EXPECT_DOUBLE_EQ(metric(r, "embedding collective per step"), 14 * 8 * 256);
  EXPECT_DOUBLE_EQ(metric(r, "logits all-gather per step"), 7 * 8 * 2048);
  EXPECT_EQ(r.data.totals.bytes_sent - plain.data.totals.bytes_sent, 14U * 8 * 256 + 7 * 8 * 2048);
  // Embedding and head are not tied: 2 x 16,777,216 B, of which seven eighths are elsewhere.
  using run::MemoryCategory;
  EXPECT_EQ(held(plain, 3, MemoryCategory::kWeights) - held(r, 3, MemoryCategory::kWeights),
            2U * 16'777'216 / 8 * 7);
  // With sequence parallelism the look-up ends in a reduce-scatter, half of the phases.
  split.emplace_back("parallel.sequence_parallel=true");
  EXPECT_DOUBLE_EQ(metric(traced({{0, 1}}, split), "embedding collective per step"), 7 * 8 * 256);
  // Stages: the first one embeds, the last one has the logits.
  const MemoryRun staged =
      random_run({"workload.batch=8", "parallel.attention=tp", "parallel.pp=2", "parallel.dp=2",
                  "parallel.tp=2", "parallel.ep=1", "parallel.vocab_parallel=true"});
  EXPECT_DOUBLE_EQ(metric(staged, "logits all-gather per step"), 8 * 2 * 8192);
}

TEST(TensorParallelism, ACollectivePaysItsStartUpOnce) {
  // A hop takes 1 us in the first phase of a call, 0.1 us in the others: each of those is 1.8 us
  // shorter. Ring all-reduces of 8 GPUs have 13 further phases, their halves 6. Per layer one
  // all-reduce after attention and one after the experts; with sequence parallelism a gather before
  // either and a reduce-scatter after it, and a gather before the head.
  const std::string phase = R"(hardware.link_types.cable.phase_latency="0.1 us")";
  for (const char* model : {"bottleneck", "auto", "coflow", "flow"}) {
    for (const bool sequences : {false, true}) {
      // Under coflow and flow without sequence parallelism SimGrid would time them: one session.
      const bool simgrid = !sequences && (model[0] == 'c' || model[0] == 'f');
      if (simgrid) continue;
      std::vector<std::string> tp{"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8",
                                  "parallel.ep=8", std::string("network.model=") + model};
      if (sequences) tp.emplace_back("parallel.sequence_parallel=true");
      auto once = tp;
      once.push_back(phase);
      const std::int64_t further = sequences ? (2 * 4 + 1) * 6 : 2 * 2 * 13;
      EXPECT_NEAR(
          static_cast<double>(duration(traced({{0, 1}}, tp)) - duration(traced({{0, 1}}, once))),
          static_cast<double>(further * 1'800'000), 200.0)
          << model << (sequences ? ", sequence parallel" : "");
    }
  }
  // Two halves take their turns on the wires, and are no slower for it.
  std::vector<std::string> halves{"parallel.attention=tp",  "parallel.dp=1",
                                  "parallel.tp=8",          "parallel.ep=8",
                                  "network.two_batch=true", "network.model=auto"};
  const std::int64_t before = duration(traced({{0, 1}, {2, 3}}, halves));
  halves.push_back(phase);
  EXPECT_LT(duration(traced({{0, 1}, {2, 3}}, halves)), before - 2 * 2 * 13 * 1'800'000);
  // A dispatch has one phase: nothing changes.
  EXPECT_EQ(duration(traced({{0, 1}}, {phase})), duration(traced({{0, 1}}, {})));
  // Keys and values copied to 7 others along a chain: 6 further phases a layer, of two GPUs each.
  const std::vector<std::string> chain{"memory.kv.placement=replicated", "network.broadcast=ring"};
  auto copied = chain;
  copied.push_back(phase);
  const auto busy = [](const MemoryRun& r) {
    std::int64_t sum = 0;
    for (std::size_t g = 0; g < 8; ++g) {
      sum +=
          r.data.totals
              .gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(run::Phase::kCollective)];
    }
    return sum;
  };
  EXPECT_EQ(busy(traced({{0, 1}}, chain)) - busy(traced({{0, 1}}, copied)), 2 * 6 * 2 * 1'800'000);
}

TEST(TensorParallelism, RefusesWhatItDoesNotHave) {
  const std::vector<std::string> tp{"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tp.begin(), tp.end());
    return more;
  };
  expect_refused(with({"parallel.ep=1", "network.chunks=2"}), "there is no dispatch");
  expect_refused(with({"parallel.ep=2", "network.dispatch=per_expert"}), "all-reduces only");
  expect_refused(with({"parallel.vocab_parallel=true", "network.collective=tree"}),
                 "there is no such reduce-scatter");
  expect_refused({"parallel.vocab_parallel=true"}, "there is no group of GPUs");
  expect_refused({"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=3"},
                 "ep divides the 8 GPUs");
  expect_refused(with({"parallel.ep=2", "faults.reload=1 GB/s",
                       "faults.events=[{kind=\"mis_sharding\",expert=0,gpu=\"gpu3\",step=0}]"}),
                 "ep not above tp: nothing is dispatched");
  expect_refused({"parallel.sequence_parallel=true"}, "there is no group of GPUs");
  expect_refused(with({"parallel.sequence_parallel=true", "network.collective=one_shot"}),
                 "there is no such reduce-scatter");
  expect_refused(with({"parallel.ep=8", "network.collective=hierarchical"}),
                 "there is no such reduce-scatter");
  expect_refused(with({"parallel.ep=4", "network.chunks=2"}), "there is no dispatch");
}

// ---- relays ----

TEST(Relays, PassPackedRowsOnInADispatchAndAddThemInACombine) {
  // Two servers of four. GPU 0's token goes to GPUs 5 and 6, in the other server through GPU 4,
  // which is no destination. Packing or unpacking n rows: 1 us + n · (2,048 + 544) B at 1 B/ps.
  // Dispatch: GPU 0 packs one row, GPUs 5 and 6 unpack one each. Combine: they pack one each, GPU 4
  // unpacks two, packs their sum, GPU 0 unpacks it. Two layers.
  const MemoryRun r = traced(
      {{5, 6}}, {R"(hardware.devices=[{ name = "gpu", count = 8, per_node = 4, kind = "gpu", )"
                 R"(type = "toy" }, { name = "switch", kind = "nvswitch" }])",
                 "network.dispatch=per_node", "network.payload={ wire = \"int4\" }"});
  const auto phase = [&](std::uint32_t gpu, run::Phase p) {
    return r.data.totals.gpu_phase_ps[gpu * run::kPhases + static_cast<std::size_t>(p)];
  };
  const std::int64_t one = 1'000'000 + 2592, two = 1'000'000 + 2 * 2592;
  // Beside the kernels every GPU shows the exchanges: GPU 4 both, 0 the first, 5 the second.
  const std::int64_t first = phase(0, run::Phase::kDispatch) - 2 * one;
  const std::int64_t second = phase(5, run::Phase::kDispatch) - 2 * one;
  EXPECT_EQ(phase(4, run::Phase::kDispatch), first + second);
  EXPECT_TRUE(std::any_of(r.result.notes.begin(), r.result.notes.end(), [&](const auto& note) {
    return note.find("packing and unpacking took " +
                     format_time(SimTime::from_ps(2 * (7 * one + two)))) != std::string::npos;
  })) << testing::PrintToString(r.result.notes);
}

// ---- halves that overlap, expert groups ----

TEST(TwoBatch, HidesTheExchangesBehindTheOtherHalf) {
  // 16 tokens, two a GPU, one a half; every GPU sends two copies and runs two rows of its expert:
  // exchange 2,040,960, experts 14,607,488, front (attention, router) 15,363,200. Everything but
  // the last combine is hidden, and of that the first half's weighted sum:
  //   2 layers · 2 halves · (front + experts) + 2 sums + exchange + sum
  Choices tokens;
  for (std::uint16_t t = 0; t < 16; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const std::int64_t host = 12'000'000 + 1'008'192, head = 19'920'576;
  const MemoryRun r = traced(tokens, {"network.two_batch=true"});
  EXPECT_EQ(duration(r), host + 4 * (15'363'200 + 14'607'488) + 3 * 1'008'192 + 2'040'960 + head);
  EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 2 * 2'040'960);
  EXPECT_EQ(r.data.layer_steps.expert_ps[1], 2 * 14'607'488);
  EXPECT_EQ(r.data.layer_steps.distinct_experts[0], 8U);
  EXPECT_EQ(r.data.totals.bytes_sent, traced(tokens, {}).data.totals.bytes_sent);
  // Half of the SMs: the kernels of the layers take twice as long, but for their launches of 1 us
  // (attention 5, router 4, experts 2, weighted sum 1).
  const MemoryRun half = traced(tokens, {"network.two_batch=true", "network.comm_sms=50 %"});
  const std::int64_t launches = 4 * (9 + 2) * 1'000'000 + 3 * 1'000'000;
  EXPECT_EQ(duration(half), host + 2 * (4 * (15'363'200 + 14'607'488) + 3 * 1'008'192) - launches +
                                2'040'960 + head);
}

TEST(TwoBatch, RunsTheSameAssignmentsAndOneTokenUndivided) {
  const std::vector<std::string> base{"workload.batch=64", "workload.steps=3"};
  auto overlapped = base;
  overlapped.emplace_back("network.two_batch=true");
  EXPECT_EQ(random_run(base).data.totals.expert_kept,
            random_run(overlapped).data.totals.expert_kept);
  EXPECT_EQ(duration(random_run({"workload.batch=8", "network.two_batch=true"})),
            duration(random_run({"workload.batch=8"})));
}

TEST(TwoBatch, GoesWithGroupsOfTensorParallelism) {
  const std::vector<std::vector<std::string>> layouts{
      {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8"},
      {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8",
       "parallel.sequence_parallel=true"},
      {"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4", "parallel.ep=4"},
      {"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4", "parallel.ep=2"}};
  for (const std::vector<std::string>& layout : layouts) {
    // Long prompts: exchanges that cost something, of as many tokens in both halves.
    std::vector<std::string> plain = layout;
    plain.insert(plain.end(), {"workload={kind=\"prefill\",batch=16,tokens=512,steps=2,"
                               "routing={synthetic=\"uniform\"}}"});
    std::vector<std::string> halves = plain;
    halves.emplace_back("network.two_batch=true");
    MemoryRun one = test::run_in_memory(test::worked_scenario(plain), nullptr);
    MemoryRun two = test::run_in_memory(test::worked_scenario(halves), nullptr);
    expect_sound(one);
    expect_sound(two);
    EXPECT_EQ(two.data.totals.expert_kept, one.data.totals.expert_kept);
    EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent);
    // Weights are read twice, which prompts of this length do not feel; what is hidden they do.
    EXPECT_LT(duration(two), duration(one)) << testing::PrintToString(layout);
    EXPECT_GT(duration(two), duration(one) / 2);
  }
}

TEST(TwoBatch, PacksEachHalf) {
  // As many tokens a GPU in both halves; int4 of 1024 values and 8 scales: 544 B in place of 2,048.
  Choices tokens;
  for (std::uint16_t t = 0; t < 16; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const MemoryRun r = traced(tokens, {"network.two_batch=true", "network.payload.wire=int4"});
  const MemoryRun native = traced(tokens, {"network.two_batch=true"});
  EXPECT_EQ(r.data.totals.bytes_sent, native.data.totals.bytes_sent / 2048 * 544);
  // Every GPU packs two rows and unpacks two, there and back, of either half and layer: a launch
  // of 1 us and 2 rows of 2,048 + 544 B at 1 B/ps.
  const std::int64_t pack = 1'000'000 + 2 * (2048 + 544);
  EXPECT_TRUE(std::any_of(r.result.notes.begin(), r.result.notes.end(), [&](const auto& note) {
    return note.find("packing and unpacking took " +
                     format_time(SimTime::from_ps(8 * 2 * 2 * 4 * pack))) != std::string::npos;
  })) << testing::PrintToString(r.result.notes);
  // As above; the last combine, of 2 us and 1,088 B, is hidden behind the first half's unpacking
  // and weighted sum.
  EXPECT_EQ(duration(r), 12'000'000 + 1'008'192 + 4 * (15'363'200 + 14'607'488) + 4 * 4 * pack +
                             4 * 1'008'192 + 19'920'576);
}

TEST(TwoBatch, IsRefusedWhereItMeansNothing) {
  const std::string on = "network.two_batch=true";
  expect_refused({on, "parallel.ep=1"}, "there is no exchange to hide");
}

TEST(ExpertGroups, ReadEveryWeightOnceAndSendTwice) {
  // ep = 4: token t of rank r chooses both experts of rank r + 1. Whole: one copy, experts of two
  // rows and two weights 27,190,400. Two groups: two copies of 2,048 B, one expert each,
  // Σ c + max c = 2 · 2,020,480 + 2 · 14,595,200.
  Choices tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    const auto e = static_cast<std::uint16_t>((t + 1) % 4 * 2);
    tokens.push_back({e, static_cast<std::uint16_t>(e + 1)});
  }
  const MemoryRun whole = traced(tokens, {"parallel.ep=4"});
  const MemoryRun grouped =
      traced(tokens, {"parallel.ep=4", "network.chunks=2", "network.chunk_by=experts"});
  EXPECT_EQ(duration(grouped) - duration(whole),
            2 * (2 * 2'020'480 + 2 * 14'595'200 - 2 * 2'020'480 - 27'190'400));
  EXPECT_EQ(grouped.data.totals.bytes_sent, 2 * whole.data.totals.bytes_sent);
  // A destination that a token reaches by one expert only gets one copy.
  Choices apart;
  for (std::uint16_t t = 0; t < 8; ++t) {
    apart.push_back({static_cast<std::uint16_t>((t + 1) % 4 * 2),
                     static_cast<std::uint16_t>((t + 2) % 4 * 2 + 1)});
  }
  EXPECT_EQ(traced(apart, {"parallel.ep=4", "network.chunks=2", "network.chunk_by=experts"})
                .data.totals.bytes_sent,
            traced(apart, {"parallel.ep=4"}).data.totals.bytes_sent);
}

TEST(ExpertGroups, AreSoundForRandomRouting) {
  const MemoryRun plain = random_run({"workload.batch=96", "parallel.ep=2"});
  for (const char* dispatch : {"per_rank", "per_expert"}) {
    const MemoryRun r =
        random_run({"workload.batch=96", "parallel.ep=2", "network.chunks=3",
                    "network.chunk_by=experts", std::string("network.dispatch=") + dispatch});
    EXPECT_EQ(r.data.totals.expert_kept, plain.data.totals.expert_kept);
    EXPECT_GT(r.data.totals.bytes_sent, plain.data.totals.bytes_sent);
  }
  expect_refused({"network.chunk_by=experts"}, "means nothing with chunks = 1");
}

TEST(ExpertGroups, CopiesOnOneRankAreServedAsOne) {
  // Of 14 slots two ranks hold seven each of 8 experts, so hot experts lie twice on a rank, in
  // different groups. The rank runs such an expert once: its rows and bytes count in one group.
  write_file("twice.csv",
             "layer,expert,rank\n*,0,0\n*,1,0\n*,2,0\n*,3,0\n*,0,0\n*,0,0\n"
             "*,4,1\n*,5,1\n*,6,1\n*,7,1\n*,4,1\n*,4,1\n");
  const std::vector<std::string> once{"workload.batch=96", "parallel.ep=2", "network.chunks=3",
                                      "network.chunk_by=experts"};
  for (const char* choice : {"hash", "round_robin", "nearest", "least_loaded"}) {
    auto twice = once;
    twice.emplace_back("parallel.placement=" + std::filesystem::absolute("twice.csv").string());
    twice.emplace_back(std::string("parallel.placement_options={ choice = \"") + choice + "\" }");
    const MemoryRun a = random_run(once), b = random_run(twice);
    EXPECT_EQ(a.data.totals.expert_kept, b.data.totals.expert_kept) << choice;
    // The copies lie in other groups than the first ones alone would, so bytes may differ; what a
    // GPU works on may not.
    EXPECT_EQ(a.data.steps[0].imbalance, b.data.steps[0].imbalance) << choice;
    EXPECT_GT(held(b, 0, run::MemoryCategory::kExperts), held(a, 0, run::MemoryCategory::kExperts));
  }
}

}  // namespace switchyard::sim
