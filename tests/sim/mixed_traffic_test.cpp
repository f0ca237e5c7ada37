// SPDX-License-Identifier: Apache-2.0
// flow and coflow in every layout and with links that change; exchanges of groups and stages that
// share links. One process per case: SimGrid has one session a process.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using Settings = std::vector<std::string>;

Settings with(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

MemoryRun run(const Settings& settings, const std::string& model) {
  Settings all{R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })", "workload.batch=48",
               "workload.steps=3", "network.model=" + model};
  MemoryRun r = test::run_in_memory(test::worked_scenario(with(all, settings)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::int64_t duration(const MemoryRun& r, std::size_t step = 0) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}

void expect_equal(const MemoryRun& a, const MemoryRun& b, double slack_ps) {
  ASSERT_EQ(a.data.steps.size(), b.data.steps.size());
  for (std::size_t i = 0; i < a.data.steps.size(); ++i) {
    const auto want = static_cast<double>(b.data.steps[i].end_ps);
    EXPECT_NEAR(static_cast<double>(a.data.steps[i].end_ps), want, slack_ps + 1e-9 * want) << i;
  }
  EXPECT_EQ(a.data.totals.bytes_sent, b.data.totals.bytes_sent);
  EXPECT_EQ(a.data.links.bytes, b.data.links.bytes);
}

/// A fault that never comes: links may change, so the queue times every exchange.
const std::string kNever =
    R"(faults.events=[{ kind = "link_degraded", link = "gpu0--switch", factor = 0.5, step = 1000 }])";
/// From step 1 on what GPU 0 sends and receives has half the rate.
const std::string kSlowLink =
    R"(faults.events=[{ kind = "link_degraded", link = "gpu0--switch", factor = 0.5, step = 1 }])";
const std::string kCpu =
    R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "10 us" })";

struct Layout {
  const char* name;
  Settings settings;
};
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"Chunks", {"network.chunks=3"}},
      {"ChunksByExperts", {"parallel.ep=4", "network.chunks=2", "network.chunk_by=experts"}},
      {"TwoBatch", {"network.two_batch=true"}},
      {"TwoBatchOfGroups", {"network.two_batch=true", "parallel.ep=4"}},
      {"TwoBatchOfTensorParallelism",
       {"network.two_batch=true", "parallel.attention=tp", "parallel.dp=4", "parallel.tp=2",
        "parallel.ep=8"}},
      {"WideExperts", {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8"}},
      {"SequenceParallel",
       {"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4", "parallel.ep=4",
        "parallel.sequence_parallel=true"}},
      {"Router", {"hardware.file=worked_cpu.toml", "parallel.router=cpu", kCpu}},
      {"RingOfGroups", {"parallel.ep=4", "network.algorithm=ring"}},
      {"Stages",
       {"parallel.attention=pp", "parallel.dp=4", "parallel.pp=2", "parallel.ep=1",
        "parallel.micro_batches=3"}},
      {"SlowLink", {kSlowLink}},
      {"SlowLinkOfGroups", {kSlowLink, "parallel.ep=4"}},
  };
  return all;
}

class EveryLayout : public ::testing::TestWithParam<std::size_t> {};
std::string name_of(const ::testing::TestParamInfo<std::size_t>& info) {
  return layouts()[info.param].name;
}

}  // namespace

// The reference of the queue is SimGrid itself: plain layouts are timed by it.
TEST(FlowByTheQueue, IsTheFlowOfSimGrid) {
  const MemoryRun simgrid = run({}, "flow");
  const MemoryRun queue = run({kNever}, "flow");
  // A picosecond a copy at most.
  expect_equal(queue, simgrid, 60);
  for (std::size_t i = 0; i < simgrid.data.layer_steps.dispatch_ps.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(queue.data.layer_steps.dispatch_ps[i]),
                static_cast<double>(simgrid.data.layer_steps.dispatch_ps[i]), 20);
  }
  // And it is no closed form.
  EXPECT_GT(std::abs(duration(simgrid) - duration(run({}, "bottleneck"))), 1000);
}

TEST(FlowByTheQueue, IsTheFlowOfSimGridInPhases) {
  expect_equal(run({kNever, "network.algorithm=ring"}, "flow"),
               run({"network.algorithm=ring"}, "flow"), 200);
}

TEST(CoflowByTheQueue, IsTheCoflowOfSimGrid) {
  expect_equal(run({kNever}, "coflow"), run({}, "coflow"), 60);
}

TEST_P(EveryLayout, CoflowIsTheClosedFormWhereExchangesAreAlone) {
  const Settings& s = layouts()[GetParam()].settings;
  expect_equal(run(s, "coflow"), run(s, "bottleneck"), 100);
}

TEST_P(EveryLayout, FlowIsNeverFasterThanItsExchangesMayBe) {
  const Settings& s = layouts()[GetParam()].settings;
  const MemoryRun flow = run(s, "flow"), closed = run(s, "bottleneck");
  EXPECT_EQ(flow.data.totals.bytes_sent, closed.data.totals.bytes_sent);
  EXPECT_EQ(flow.data.totals.expert_kept, closed.data.totals.expert_kept);
  EXPECT_EQ(flow.data.links.bytes, closed.data.links.bytes);
  // GPUs go on when their own copies have come, so a step may be shorter by parts in a hundred.
  EXPECT_GT(static_cast<double>(duration(flow)), 0.97 * static_cast<double>(duration(closed)));
  EXPECT_LT(static_cast<double>(duration(flow)), 1.1 * static_cast<double>(duration(closed)));
}
INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout, ::testing::Range<std::size_t>(0, 12), name_of);

// Every ordered pair carries the same bytes: max-min fairness is the closed form.
TEST(FlowByTheQueue, IsTheClosedFormOfEvenTraffic) {
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t from = 0; from < 8; ++from) {
    for (std::uint16_t e = 0; e < 8; e += 2) {
      tokens.push_back({e, static_cast<std::uint16_t>(e + 1)});
    }
  }
  // Sequence i is at home on GPU i mod 8: every GPU asks every other for the same.
  std::vector<std::vector<std::uint16_t>> even(32);
  for (std::size_t g = 0; g < 8; ++g) {
    for (std::size_t i = 0; i < 4; ++i) even[i * 8 + g] = tokens[g * 4 + i];
  }
  const RoutingTrace trace = test::decode_trace({even, even}, 8);
  const auto timed = [&](const Settings& more, const std::string& model) {
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(with({"workload.batch=32", "network.model=" + model}, more)), &trace);
    EXPECT_TRUE(r.result.violations.empty());
    return duration(r);
  };
  const std::string slow =
      R"(faults.events=[{ kind = "link_degraded", link = "gpu0--switch", factor = 0.5, step = 0 }])";
  for (const Settings& s :
       {Settings{"network.chunks=2"}, Settings{"network.two_batch=true"}, Settings{slow}}) {
    const auto want = static_cast<double>(timed(s, "bottleneck"));
    // With the slow link the flows beside it end sooner, and their GPUs wait for GPU 0 later.
    EXPECT_NEAR(static_cast<double>(timed(s, "flow")), want, 100) << s[0];
    EXPECT_NEAR(static_cast<double>(timed(s, "coflow")), want, 100) << s[0];
  }
}

TEST(LinkFaults, ActUnderFlowAndCoflowAsUnderAuto) {
  for (const char* model : {"auto", "coflow"}) {
    const MemoryRun r = run({kSlowLink, "network.payload={ header = \"64 KiB\" }"}, model);
    const MemoryRun healthy = run({"network.payload={ header = \"64 KiB\" }"}, "auto");
    EXPECT_NEAR(static_cast<double>(duration(r, 0)), static_cast<double>(duration(healthy, 0)), 20);
    EXPECT_GT(duration(r, 1), duration(healthy, 1));
  }
  const MemoryRun a = run({kSlowLink}, "auto");
  expect_equal(run({kSlowLink}, "coflow"), a, 60);
  const MemoryRun f = run({kSlowLink}, "flow");
  EXPECT_GT(duration(f, 1), duration(run({kNever}, "flow"), 1));
}

// A cable that is gone takes its GPU with it; what is left exchanges under flow as under auto.
TEST(LinkFaults, ALostCableUnderFlow) {
  const Settings down{
      R"(faults.events=[{ kind = "link_down", link = "gpu0--switch", step = 1, lasts = 1 }])",
      "faults.reload=25 GB/s"};
  const MemoryRun a = run(down, "auto"), c = run(down, "coflow"), f = run(down, "flow");
  expect_equal(c, a, 100);
  EXPECT_EQ(f.data.totals.bytes_sent, a.data.totals.bytes_sent);
  EXPECT_EQ(f.data.events.size(), a.data.events.size());
}

// ---- stages share links with the exchanges inside them ----

namespace {
/// Two stages of four GPUs: hidden states of a micro-batch leave the first while it dispatches
/// copies of the next one.
const Settings kStages{
    "parallel.attention=pp",    "parallel.dp=4",    "parallel.pp=2", "parallel.ep=4",
    "parallel.micro_batches=3", "workload.batch=96"};
}  // namespace

TEST(Stages, ShareLinksUnderEveryModelThatKnowsOfThem) {
  // Slow cables: transfers take long enough to meet the next micro-batch's exchanges.
  const Settings slow =
      with(kStages,
           {R"(hardware.links=[{ from = "gpu[0-7]", to = "switch", class = "other", bandwidth = )"
            R"("0.25 GB/s", latency = "1 us" }])"});
  const MemoryRun closed = run(slow, "bottleneck"), a = run(slow, "auto"), c = run(slow, "coflow"),
                  f = run(slow, "flow");
  expect_equal(c, a, 200);
  EXPECT_GT(duration(a), duration(closed) + 1'000'000) << "the case must arise";
  EXPECT_EQ(f.data.totals.bytes_sent, a.data.totals.bytes_sent);
  EXPECT_GT(static_cast<double>(duration(f)), 0.9 * static_cast<double>(duration(closed)));
  EXPECT_LT(static_cast<double>(duration(f)), 1.2 * static_cast<double>(duration(a)));
}

// ---- groups that share links ----

namespace {
/// Two groups of two GPUs: 0 and 1, 2 and 3, on either side of one cable of 50 GB/s per direction.
Settings one_cable(const Settings& more, const std::string& bandwidth = "50 GB/s") {
  return with({"parallel.ep=2", "parallel.dp=4",
               R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
               R"({ name = "a", kind = "switch" }, { name = "b", kind = "switch" }])",
               R"(hardware.links=[{ from = "gpu0", to = "a", type = "cable" }, )"
               R"({ from = "gpu2", to = "a", type = "cable" }, )"
               R"({ from = "gpu1", to = "b", type = "cable" }, )"
               R"({ from = "gpu3", to = "b", type = "cable" }, { from = "a", to = "b", )"
               R"(class = "other", bandwidth = ")" +
                   bandwidth + R"(", latency = "1 us" }])"},
              more);
}
}  // namespace

TEST(Groups, TheExchangeThatWasTimedFirstIsSlowedDownByOneThatBeginsLater) {
  // Everything of GPUs 0 and 2 crosses the cable in both layers: 2,048 B + 1 MiB a copy, 21 us at
  // 50 GB/s. GPU 2 is late by less than that, so the first group's dispatch, which is timed first,
  // is joined by the second's: each loses half of what they share, and both end with the same two
  // copies' bytes behind them.
  const RoutingTrace trace =
      test::decode_trace({{{4, 5}, {6, 7}, {4, 5}, {6, 7}}, {{4, 5}, {6, 7}, {4, 5}, {6, 7}}}, 8);
  const auto timed = [&](const std::string& model, const std::string& stall) {
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(
            one_cable({"network.model=" + model, "network.payload={ header = \"1 MiB\" }",
                       R"(workload.routing={ trace = "t.h5" })",
                       R"(faults.events=[{ kind = "host_stall", gpu = "gpu2", stall = ")" + stall +
                           R"(", step = 0 }])"})),
        &trace);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    return r;
  };
  constexpr double kCopy = (2048 + 1048576) * 20.0;  // ps at 50 GB/s
  constexpr double kLate = 5'000'000;
  // Alone: far apart.
  const MemoryRun alone = timed("auto", "10 ms");
  EXPECT_NEAR(static_cast<double>(alone.data.layer_steps.dispatch_ps[0]), kCopy + 3e6, 2);
  const MemoryRun met = timed("auto", "5 us");
  // First group: [0, late) alone, then half the rate until kCopy − late more have gone.
  const double first = kLate + 2 * (kCopy - kLate) + 3e6;
  EXPECT_NEAR(static_cast<double>(met.data.layer_steps.dispatch_ps[0]), first, 4);
  const MemoryRun coflow = timed("coflow", "5 us");
  expect_equal(coflow, met, 30);
}

// The first group has twice the bytes and ends the step; the second one, timed after it, moves that
// end. Whoever asks for the step's end gets the one that it had.
TEST(Groups, AStepThatEndsLaterThanItWasTimedSaysSoEverywhere) {
  const RoutingTrace trace = test::decode_trace(
      {{{4, 5}, {6, 7}, {4, 5}, {6, 7}, {4, 5}}, {{4, 5}, {6, 7}, {4, 5}, {6, 7}, {4, 5}}}, 8);
  const scenario::Scenario s = test::worked_scenario(
      one_cable({"network.model=auto", "network.payload={ header = \"1 MiB\" }", "workload.batch=5",
                 "run.detail=tokens", R"(workload.routing={ trace = "t.h5" })"}));
  SignalTable signals;
  SimulationExtras extras;
  extras.signals = &signals;
  const auto sink = memory_sink();
  const SimulationResult result = simulate(s, &trace, "", *sink, {}, extras);
  EXPECT_TRUE(result.violations.empty());
  const run::RunData& data = sink->data();
  ASSERT_EQ(data.steps.size(), 1U);
  const run::StepScalars& step = data.steps[0];
  // 42 us of two copies alone; with the other's one beside it almost 21 us more: GPU 0 has a
  // sequence more and begins some 2 us later.
  constexpr double kCopy = (2048 + 1048576) * 20.0;
  const auto dispatch = static_cast<double>(data.layer_steps.dispatch_ps[0]);
  EXPECT_GT(dispatch, 3 * kCopy + 3e6 - 2.5e6);
  EXPECT_LT(dispatch, 3 * kCopy + 3e6);
  ASSERT_EQ(signals.end_ps.size(), 1U);
  EXPECT_EQ(signals.end_ps[0], step.end_ps);
  std::int64_t phases = 0;
  for (const std::int64_t ps : step.phase_ps) phases += ps;
  EXPECT_EQ(phases, step.end_ps - step.start_ps);
  ASSERT_FALSE(data.critical_path.empty());
  const run::CriticalEntry& last = data.critical_path.back();
  EXPECT_EQ(last.start_ps + last.duration_ps, step.end_ps);
}

// Group 0 and 1: GPU 1's token goes to GPU 0 and back; group 2 and 3: GPU 2's goes to GPU 3. So the
// combine of the first and the dispatch of the second, which is late by a stall, meet on the cable
// from a to b; the second's combine is alone on the way back, after the dispatch that was timed
// before they met.
TEST(Groups, WhatFollowsAnExchangeThatOthersLengthenedIsAsLateAlsoWhereItIsAloneOnItsLinks) {
  const auto timed = [&](const std::string& model, bool first, bool second) {
    using Choice = std::vector<std::uint16_t>;
    const Choice low{0, 1}, high{4, 5};  // On GPUs 0 and 2; on GPUs 1 and 3.
    const std::vector<Choice> moves{low, first ? low : high, second ? high : low, high};
    const std::vector<Choice> stays{low, high, low, high};
    const RoutingTrace trace = test::decode_trace({moves, stays}, 8);
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(
            one_cable({"network.model=" + model, R"(workload.routing={ trace = "t.h5" })",
                       R"(faults.events=[{ kind = "host_stall", gpu = "gpu2", stall = "40 us", )"
                       R"(step = 0 }])"},
                      "0.1 GB/s")),
        &trace);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    return r;
  };
  constexpr double kCopy = 2048 * 10'000.0, kPath = 3e6, kStall = 40e6;  // ps at 0.1 GB/s
  for (const char* model : {"auto", "coflow"}) {
    SCOPED_TRACE(model);
    const MemoryRun first = timed(model, true, false), second = timed(model, false, true);
    EXPECT_NEAR(static_cast<double>(first.data.layer_steps.combine_ps[0]), kCopy + kPath, 2);
    EXPECT_NEAR(static_cast<double>(second.data.layer_steps.dispatch_ps[0]), kCopy + kPath, 2);
    // The first one's combine begins with its experts' end. By then the second one's dispatch has
    // moved bytes for kCopy - left; each of the two takes twice as long for what is left of it.
    const auto expert = static_cast<double>(first.data.layer_steps.expert_ps[0]);
    const double left = kStall - kPath - expert;
    ASSERT_GT(left, 1e6);
    ASSERT_LT(left, kCopy - 1e6);
    const MemoryRun both = timed(model, true, true);
    EXPECT_NEAR(static_cast<double>(both.data.layer_steps.dispatch_ps[0]), kCopy + kPath + left, 4);
    EXPECT_NEAR(static_cast<double>(both.data.layer_steps.combine_ps[0]), kCopy + kPath + left, 4);
    // The second group ends the step, its experts, combine and all that follows as much later.
    EXPECT_NEAR(static_cast<double>(both.data.steps[0].end_ps),
                static_cast<double>(second.data.steps[0].end_ps) + left, 6);
  }
}

// A cable that is itself again while another replica's exchange is under way: that one ends earlier
// than it was timed, and so does its step, for the serving as for the record.
TEST(LinkFaults, ThatEndMakeWhatIsUnderWayShorter) {
  const auto timed = [](const std::string& model, const std::string& factor, int step) {
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(one_cable(
            {"network.model=" + model, "network.payload={ header = \"1 MiB\" }",
             R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
             R"(per_second = 20000.0, requests = 8 }, lengths = { prompt = 16, output = 6 }, )"
             R"(front_end = { replicas = 2, balance = "round_robin" } })",
             R"(faults.events=[{ kind = "link_degraded", link = "a--b", factor = )" + factor +
                 ", step = " + std::to_string(step) + ", lasts = 1 }]"})),
        nullptr);
    for (const auto& v : r.result.violations) {
      ADD_FAILURE() << model << ", " << factor << ": " << v.check << " " << v.where << ": "
                    << v.message;
    }
    return r;
  };
  for (const char* model : {"auto", "coflow", "flow"}) {
    SCOPED_TRACE(model);
    const MemoryRun slow = timed(model, "0.05", 4);
    timed(model, "0.2", 2);
    timed(model, "0.5", 4);
    // The bytes of layer 0 need 840.5 us at a twentieth of the rate, 42 us at the whole.
    const auto dispatch = static_cast<double>(slow.data.layer_steps.dispatch_ps[4 * 2]);
    const auto floor = static_cast<double>(slow.data.layer_steps.dispatch_floor_ps[4 * 2]);
    EXPECT_GT(dispatch, 2 * 42.02e6);
    EXPECT_LT(dispatch, 0.5 * 840.5e6);
    EXPECT_GT(floor, 41e6);
    EXPECT_LE(floor, 42.025e6);
    for (const run::RequestRecord& q : slow.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    }
  }
}

// Chunks: experts run beside exchanges. When those become shorter, the work is what is left.
TEST(LinkFaults, ThatEndLeaveAStepTheWorkOfItsGpus) {
  for (const char* model : {"auto", "coflow", "flow"}) {
    SCOPED_TRACE(model);
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(one_cable(
            {std::string("network.model=") + model, "run.seed=23", "network.chunks=2",
             R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
             R"(per_second = 20000.0, requests = 8 }, lengths = { prompt = 200, output = 6 }, )"
             R"(front_end = { replicas = 2, balance = "round_robin" } })",
             R"(faults.events=[{ kind = "link_degraded", link = "a--b", factor = 0.1, step = 0, )"
             R"(lasts = 1 }])"})),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    for (std::size_t s = 0; s < r.data.steps.size(); ++s) {
      const run::StepScalars& step = r.data.steps[s];
      std::int64_t phases = 0;
      for (const std::int64_t ps : step.phase_ps) phases += ps;
      EXPECT_EQ(phases, step.end_ps - step.start_ps) << s;
    }
  }
}

// Replicas step by themselves, and no pages travel; what crosses the cable of both takes longer.
TEST(Groups, ReplicasSlowEachOtherDownOnLinksInCommon) {
  const auto timed = [](const std::string& model, const std::string& rate) {
    const MemoryRun r = test::run_in_memory(
        test::worked_scenario(one_cable(
            {"network.model=" + model, "network.payload={ header = \"1 MiB\" }",
             R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
             R"(per_second = )" +
                 rate +
                 R"(, requests = 12 }, lengths = { prompt = 16, output = 6 }, )"
                 R"(front_end = { replicas = 2, balance = "round_robin" } })"})),
        nullptr);
    for (const auto& v : r.result.violations) {
      // Two take a link for themselves.
      if (model == "bottleneck" && v.check == "floor") continue;
      ADD_FAILURE() << model << ": " << v.check << " " << v.where << ": " << v.message;
    }
    return r;
  };
  const auto end = [](const MemoryRun& r) {
    std::int64_t last = 0;
    for (const run::StepScalars& s : r.data.steps) last = std::max(last, s.end_ps);
    return last;
  };
  const MemoryRun a = timed("auto", "100000.0"), c = timed("coflow", "100000.0"),
                  f = timed("flow", "100000.0");
  EXPECT_NEAR(static_cast<double>(end(c)), static_cast<double>(end(a)), 1e-9 * 1e12);
  // Under bottleneck neither replica knows of the other.
  const MemoryRun closed = timed("bottleneck", "100000.0");
  const auto mean = [](const MemoryRun& r) {
    double sum = 0;
    for (const run::StepScalars& s : r.data.steps)
      sum += static_cast<double>(s.end_ps - s.start_ps);
    return sum / static_cast<double>(r.data.steps.size());
  };
  EXPECT_GT(mean(a), 1.2 * mean(closed));
  EXPECT_GT(mean(f), 1.2 * mean(closed));
  // One request at a time: nobody is beside it.
  EXPECT_NEAR(mean(timed("auto", "1.0")), mean(timed("bottleneck", "1.0")), 20);
  for (const MemoryRun* r : {&a, &c, &f}) {
    for (const run::RequestRecord& q : r->data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    }
  }
}

// GPUs without peer-to-peer copies: what group 2, 3 exchanges goes through the CPU, which is where
// the tokens of GPU 0 go to be routed.
TEST(RouterTrips, ShareAPcieSegmentWithTheExchangesOfAnotherGroup) {
  const scenario::Scenario s = test::worked_scenario(
      {"hardware.file=worked_cpu.toml", "parallel.router=cpu", kCpu, "parallel.ep=2",
       "parallel.dp=4", "network.model=flow", R"(workload.routing={ synthetic = "uniform" })",
       R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
       R"({ name = "s", kind = "pcie_switch" }, { name = "cpu0", kind = "cpu" }])",
       R"(hardware.links=[{ from = "gpu[0-3]", to = "s", class = "pcie4", bandwidth = "10 GB/s", )"
       R"(latency = "1 us", p2p = false }, { from = "s", to = "cpu0", class = "pcie4", )"
       R"(bandwidth = "10 GB/s", latency = "1 us", p2p = false }])"});
  const std::vector<std::uint32_t> units{5}, who{0};  // Device 5: cpu0.
  const std::vector<std::int64_t> ready(4, 0);
  const std::vector<network::Transfer> up{{0, 4, 500'000}}, down{{4, 0, 100}};
  const auto trip = [&](ExchangeTimer& timer) {
    std::vector<std::int64_t> end(1);
    timer.run_trip(
        up, down, [](std::int64_t) { return std::int64_t{7'000'000}; }, units, ready, who, end);
    return end[0];
  };
  constexpr std::int64_t kHops = 2'000'000;
  ExchangeTimer alone(s);
  // 50 us up, 7 us there, 10 ns down.
  EXPECT_NEAR(static_cast<double>(trip(alone)), 50e6 + 7e6 + 10'000 + 2.0 * kHops, 3);
  ExchangeTimer timer(s);
  std::vector<std::uint64_t> bytes(16, 0);
  bytes[2 * 4 + 3] = 1'000'000;  // 100 us through the CPU, on the way there and back.
  std::vector<ExchangeTiming> timings;
  timer.begin_step(0, 4);
  timer.run(bytes, ready, timings);
  ASSERT_EQ(timings.size(), 1U);
  EXPECT_NEAR(static_cast<double>(timings[0].duration_ps), 100e6 + 4e6, 1e6);
  // Half the rate to the CPU while both are there: the trip's tokens take twice as long, and the
  // exchange, which was timed before, ends as much later.
  EXPECT_NEAR(static_cast<double>(trip(timer)), 100e6 + 7e6 + 10'000 + 2.0 * kHops, 5e6);
  const auto clocks = timer.end_step(0, 4, timings[0].end_ps);
  EXPECT_NEAR(static_cast<double>(timer.step_end(clocks[3])),
              static_cast<double>(timings[0].end_ps[3]) + 50e6, 5e6);
}

// ---- a change of links that is refused leaves everything as it was ----

// What the refusal of a ring of groups names is what would help.
TEST(RingOfGroups, IsRefusedWithTheWayOut) {
  const auto refusal = [](const std::string& model, bool table) {
    scenario::Scenario s =
        test::worked_scenario(one_cable({"network.model=" + model, "network.algorithm=ring",
                                         R"(workload.routing={ synthetic = "uniform" })"}));
    if (table) {
      s.network.measured.points = {{1024, BytesPerSecond{1e9}}, {1048576, BytesPerSecond{50e9}}};
      s.network.measured.link_class = scenario::LinkClass::kOther;
    }
    try {
      const ExchangeTimer timer(s);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("auto", false), "accepted");
  const std::string closed = refusal("bottleneck", false), measured = refusal("auto", true);
  EXPECT_NE(closed.find("use model = \"auto\""), std::string::npos) << closed;
  EXPECT_NE(measured.find("with network.measured"), std::string::npos) << measured;
  EXPECT_NE(measured.find("use model = \"coflow\" or \"flow\""), std::string::npos) << measured;
  EXPECT_EQ(refusal("coflow", true), "accepted");
}

TEST(Rewire, ThatIsRefusedChangesNothing) {
  // GPUs 0 and 1 meet in switch a, 2 and 3 by the cable from b to c. Without gpu0's own cable to a
  // its way to gpu1 is that cable, too: the rings of both groups would be one.
  const Settings base{
      "parallel.ep=2",
      "parallel.dp=4",
      "network.algorithm=ring",
      "network.model=auto",
      R"(workload.routing={ synthetic = "uniform" })",
      R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
      R"({ name = "a", kind = "switch" }, { name = "b", kind = "switch" }, )"
      R"({ name = "c", kind = "switch" }])",
      R"(hardware.links=[{ from = "gpu[0-1]", to = "a", type = "cable" }, )"
      R"({ from = "gpu2", to = "b", type = "cable" }, { from = "gpu3", to = "c", type = "cable" }, )"
      R"({ from = "gpu0", to = "b", type = "cable" }, { from = "gpu1", to = "c", type = "cable" }, )"
      R"({ from = "b", to = "c", type = "cable" }])"};
  const scenario::Scenario s = test::worked_scenario(base);
  ExchangeTimer timer(s);
  const std::vector<std::uint64_t> bytes{0, 1000, 0, 0,    1000, 0, 0,    0,
                                         0, 0,    0, 1000, 0,    0, 1000, 0};
  const std::vector<std::int64_t> ready(4, 0);
  std::vector<ExchangeTiming> before, after;
  timer.run(bytes, ready, before);
  scenario::Scenario changed = s;
  std::erase_if(changed.hardware.links,
                [](const scenario::Link& l) { return l.name == "gpu0--a"; });
  ASSERT_LT(changed.hardware.links.size(), s.hardware.links.size());
  for (scenario::Link& l : changed.hardware.links) l.bandwidth.value /= 2;
  try {
    timer.rewire(changed, 0);
    FAIL() << "the rings of both groups pass gpu0's detour";
  } catch (const CutError& e) {
    FAIL() << "nothing is cut: " << e.what();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("their links meet"), std::string::npos) << e.what();
  }
  for (std::size_t k = 0; k < timer.links().size(); ++k) {
    EXPECT_EQ(timer.bandwidth(k).value, timer.links()[k].bandwidth.value);
  }
  timer.run(bytes, ready, after);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].end_ps, before[i].end_ps);
}

}  // namespace switchyard::sim
