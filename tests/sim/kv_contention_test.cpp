// SPDX-License-Identifier: Apache-2.0
// KV pages of prefill replicas and the exchanges of steps on the same links, in the step loop. One
// process per case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/base/error.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

constexpr std::int64_t kUs = 1'000'000;
/// Pages of 16 tokens of two layers, 1,024 B each, at 1 GB/s.
constexpr std::int64_t kPages = 16 * 2 * 1024 * 1000;

/// GPUs 0 and 1 prefill behind a switch of their own. GPUs 2 and 3 decode; between them is a cable
/// of 1 GB/s, and what goes from GPUs 0 and 1 to GPU 3 crosses it, too. A dispatched copy is 1 MiB
/// long and takes longer than the pages; a combined one is short and goes the other way.
scenario::Scenario apart(std::vector<scenario::TracedRequest> requests, const std::string& model,
                         std::vector<std::string> more = {}) {
  std::vector<std::string> settings{
      R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { )"
      R"(per_second = 1.0, requests = 1 }, lengths = { prompt = 1, output = 1 }, )"
      R"(front_end = { replicas = 2, prefill_replicas = 1 } })",
      "parallel.ep=2",
      "parallel.dp=4",
      "network.model=" + model,
      "network.payload={ header = \"1 MiB\" }",
      R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
      R"({ name = "p", kind = "switch" }, { name = "a", kind = "switch" }, )"
      R"({ name = "b", kind = "switch" }])",
      R"(hardware.links=[{ from = "gpu[0-1]", to = "p", type = "cable" }, )"
      R"({ from = "p", to = "a", type = "cable" }, { from = "gpu2", to = "a", type = "cable" }, )"
      R"({ from = "gpu3", to = "b", type = "cable" }, { from = "a", to = "b", class = "other", )"
      R"(bandwidth = "1 GB/s", latency = "1 us" }])"};
  settings.insert(settings.end(), more.begin(), more.end());
  scenario::Scenario s = worked_scenario(settings);
  auto trace = std::make_shared<scenario::RequestTrace>();
  trace->requests = std::move(requests);
  s.workload.kind = scenario::WorkloadKind::kTrace;
  s.workload.serving.arrivals.trace = trace;
  s.workload.serving.arrivals.requests = 0;
  return s;
}

/// Request 0 decodes on GPU 2; request 1 comes at `us` and goes on on GPU 3.
MemoryRun two(std::int64_t us, const std::string& model) {
  const MemoryRun r =
      run_in_memory(apart({{SimTime(), 16, 30}, {SimTime::from_us(us), 16, 3}}, model), nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
  return r;
}
double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}
/// The decode step under way when the second prompt is done.
std::size_t step_at(const MemoryRun& r, std::int64_t time) {
  for (std::size_t i = 0; i < r.data.steps.size(); ++i) {
    const run::StepScalars& s = r.data.steps[i];
    if (s.engine == 1 && s.start_ps <= time && time < s.end_ps) return i;
  }
  return r.data.steps.size();
}

}  // namespace

TEST(KvContention, AStepUnderWayAndPagesThatJoinItDelayEachOtherByTheSame) {
  // Half a link each for a time L costs both L / 2, whichever ends first. Under bottleneck neither
  // knows of the other.
  int inside = 0, partly = 0, beside = 0;
  for (std::int64_t us = 10'000; us < 14'000; us += 130) {
    const MemoryRun alone = two(us, "bottleneck"), shared = two(us, "auto");
    const std::int64_t done = alone.data.requests[1].first_token_ps;
    ASSERT_EQ(shared.data.requests[1].first_token_ps, done);
    const std::size_t n = step_at(alone, done);
    if (n == alone.data.steps.size()) continue;  // Between two steps.
    const run::StepScalars &a = alone.data.steps[n], &s = shared.data.steps[n];
    ASSERT_EQ(s.start_ps, a.start_ps);
    const std::int64_t delay = s.end_ps - a.end_ps;
    // Mean of two transfers, the first of which met nobody.
    const double longer =
        2e9 * (metric(shared, "KV transfer mean") - metric(alone, "KV transfer mean"));
    EXPECT_GE(delay, 0) << us;
    EXPECT_LE(delay, kPages + 2) << us;
    inside += delay >= kPages - 2 ? 1 : 0;
    beside += delay == 0 ? 1 : 0;
    partly += delay > 2 && delay < kPages - 2 ? 1 : 0;
    // The pages may also meet the next dispatch; in the step under way they cannot meet less.
    EXPECT_GE(longer, static_cast<double>(delay) - 4) << us;
    if (delay >= kPages - 2) {
      EXPECT_NEAR(longer, static_cast<double>(kPages), 4) << us;
    }
    // What the step takes longer is its dispatch; the layers show it.
    const auto on_wires = [n](const MemoryRun& r) {
      const std::size_t layers = r.data.inventory.moe_layers.size();
      std::int64_t sum = 0;
      for (std::size_t i = n * layers; i < (n + 1) * layers; ++i) {
        sum += r.data.layer_steps.dispatch_ps[i] + r.data.layer_steps.combine_ps[i];
      }
      return sum;
    };
    EXPECT_NEAR(static_cast<double>(on_wires(shared) - on_wires(alone)), static_cast<double>(delay),
                4)
        << us;
    // Every GPU's phases fill the longer step (conservation), the excess as waiting.
    EXPECT_EQ(s.phase_ps[static_cast<std::size_t>(run::Phase::kWait)] -
                  a.phase_ps[static_cast<std::size_t>(run::Phase::kWait)],
              delay);
  }
  EXPECT_GT(inside, 3);
  EXPECT_GT(beside + partly, 0);
}

TEST(KvContention, AutoGivesTheTimesOfCoflow) {
  for (const std::int64_t us : {10'000, 10'700, 11'300, 12'900}) {
    const MemoryRun a = two(us, "auto"), c = two(us, "coflow");
    ASSERT_EQ(a.data.steps.size(), c.data.steps.size());
    for (std::size_t i = 0; i < a.data.steps.size(); ++i) {
      const auto want = static_cast<double>(c.data.steps[i].end_ps);
      EXPECT_NEAR(static_cast<double>(a.data.steps[i].end_ps), want, 1 + 1e-9 * want) << i;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(a.data.requests[i].end_ps, c.data.requests[i].end_ps);
    }
  }
}

// An alarm on the length of a step sees what pages made of it.
TEST(KvContention, AlarmsSeeAStepAsLongAsItWasInTheEnd) {
  int raised = 0;
  for (std::int64_t us = 10'000; us < 14'000; us += 130) {
    const MemoryRun alone = two(us, "bottleneck");
    const std::size_t n = step_at(alone, alone.data.requests[1].first_token_ps);
    if (n == alone.data.steps.size()) continue;
    const auto length = [](const run::StepScalars& s) { return s.end_ps - s.start_ps; };
    // Above what the step took when it was first timed.
    const std::int64_t mark = length(alone.data.steps[n]) + kPages / 2;
    const MemoryRun shared =
        run_in_memory(apart({{SimTime(), 16, 30}, {SimTime::from_us(us), 16, 3}}, "auto",
                            {"monitor.alarms=[{ signal = \"step_time\", window = 1, above = \"" +
                             std::to_string(static_cast<double>(mark) * 1e-6) + " us\" }]"}),
                      nullptr);
    for (const run::Event& e : shared.data.events) {
      if (e.kind != run::EventKind::kAlarm || e.step != n) continue;
      raised += length(shared.data.steps[n]) > mark ? 1 : 0;
    }
  }
  EXPECT_GT(raised, 0) << "the case must arise";
}

class KvFlow : public ::testing::TestWithParam<int> {};

// The dispatch is one pair of GPUs, which shares the cable with pages as the task of auto does:
// under flow, too, a step that was timed ends later. (A process runs one scenario under flow.)
TEST_P(KvFlow, GivesTheTimesOfAutoWhereAnExchangeIsOnePair) {
  const std::int64_t us = 10'000 + 390 * GetParam();
  const MemoryRun a = two(us, "auto"), f = two(us, "flow"), alone = two(us, "bottleneck");
  ASSERT_EQ(a.data.steps.size(), f.data.steps.size());
  const std::size_t n = step_at(alone, alone.data.requests[1].first_token_ps);
  ASSERT_LT(n, alone.data.steps.size());
  EXPECT_GT(f.data.steps[n].end_ps, alone.data.steps[n].end_ps + kUs) << "the case must arise";
  for (std::size_t i = 0; i < a.data.steps.size(); ++i) {
    const auto want = static_cast<double>(a.data.steps[i].end_ps);
    EXPECT_NEAR(static_cast<double>(f.data.steps[i].end_ps), want, 40 + 1e-9 * want) << i;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const auto want = static_cast<double>(a.data.requests[i].end_ps);
    EXPECT_NEAR(static_cast<double>(f.data.requests[i].end_ps), want, 40 + 1e-9 * want);
  }
}
INSTANTIATE_TEST_SUITE_P(Arrivals, KvFlow, ::testing::Values(0, 1, 2, 4));

// Two prompts are done at once and only one finds a decode rank: its pages slow down the step under
// way all the same, whose tokens are out when it ends.
TEST(KvContention, AHandOverThatStopsHalfWayStillMovesTheStepUnderWay) {
  int longer = 0;
  for (std::int64_t us = 10'000; us < 14'000; us += 130) {
    const auto run = [&](const std::string& model) {
      return run_in_memory(
          apart({{SimTime(), 16, 30}, {SimTime::from_us(us), 16, 3}, {SimTime::from_us(us), 16, 3}},
                model, {"run.detail=tokens", "workload.batching={ max_sequences = 1 }"}),
          nullptr);
    };
    const MemoryRun alone = run("bottleneck"), shared = run("auto");
    for (const auto& v : shared.result.violations) ADD_FAILURE() << v.where << ": " << v.message;
    ASSERT_FALSE(shared.data.tokens.empty());
    for (const run::TokenRecord& t : shared.data.tokens) {
      ASSERT_EQ(t.time_ps, shared.data.steps[t.step].end_ps) << us << " us, request " << t.request;
    }
    const std::size_t n = step_at(alone, alone.data.requests[1].first_token_ps);
    if (n == alone.data.steps.size()) continue;
    longer += shared.data.steps[n].end_ps > alone.data.steps[n].end_ps + 2 ? 1 : 0;
  }
  EXPECT_GT(longer, 3) << "the case must arise";
}

TEST(KvContention, ManyRequestsStaySoundUnderEveryModel) {
  std::vector<scenario::TracedRequest> requests;
  for (std::uint32_t i = 0; i < 24; ++i) {
    requests.push_back({SimTime::from_us(3'000 * i), 16 + 40 * (i % 3), 2 + i % 7});
  }
  std::vector<double> mean;
  for (const char* model : {"bottleneck", "auto", "coflow", "flow"}) {
    const MemoryRun r = run_in_memory(apart(requests, model, {"run.detail=tokens"}), nullptr);
    // Under bottleneck pages and exchanges take the same link for themselves: a link may carry more
    // than it can, and the run says so.
    for (const auto& v : r.result.violations) {
      if (model == std::string("bottleneck") && v.check == "floor") continue;
      ADD_FAILURE() << model << ": " << v.check << " " << v.where << ": " << v.message;
    }
    for (const run::RequestRecord& q : r.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << model;
    }
    for (const run::TokenRecord& t : r.data.tokens) {
      EXPECT_EQ(t.time_ps, r.data.steps[t.step].end_ps) << model;
    }
    for (std::size_t i = 1; i < r.data.steps.size(); ++i) {
      EXPECT_LE(r.data.steps[i].start_ps, r.data.steps[i].end_ps);
      for (std::size_t j = 0; j < i; ++j) {
        if (r.data.steps[j].engine != r.data.steps[i].engine) continue;
        EXPECT_LE(r.data.steps[j].end_ps, r.data.steps[i].start_ps) << model << " " << i;
      }
    }
    mean.push_back(metric(r, "KV transfer mean"));
  }
  for (std::size_t i = 1; i < mean.size(); ++i) EXPECT_GT(mean[i], mean[0]);
}

// Exchange after exchange of random bytes and work between them: pages that join the first one move
// the end of the step by as much, whatever the closed form and the queue round differently.
TEST(KvContention, AStepsEndMovesWithItsFirstExchangeHoweverManyFollow) {
  constexpr std::uint64_t kBytes = 1'000'000;
  constexpr double kCable = 0.7e9;  // A byte is no whole number of picoseconds.
  std::uint64_t state = 1;
  const auto draw = [&state](std::uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33U) % below;
  };
  for (int run = 0; run < 20; ++run) {
    scenario::Scenario s = apart({{SimTime(), 16, 3}}, run % 2 == 0 ? "auto" : "coflow");
    s.hardware.links.back().bandwidth.value = kCable;
    ExchangeTimer timer(s);
    std::vector<std::int64_t> ready(4, 0);
    std::vector<ExchangeTiming> timings;
    timer.begin_step(2, 4);
    for (int x = 0; x < 20; ++x) {
      std::vector<std::uint64_t> bytes(16, 0);
      bytes[2 * 4 + 3] = (x == 0 ? 4 * kBytes : 0) + 1 + draw(700'000);
      bytes[3 * 4 + 2] = 1 + draw(700'000);
      timer.run(bytes, ready, timings);
      // Every other exchange follows at once.
      for (std::uint32_t g = 2; g < 4; ++g) {
        ready[g] =
            timings.at(0).end_ps[g] + (x % 2 == 0 ? 0 : static_cast<std::int64_t>(draw(1'000'000)));
      }
    }
    const auto end = [&, clocks = timer.end_step(2, 4, ready)] {
      return std::max(timer.step_end(clocks[0]), timer.step_end(clocks[1]));
    };
    const std::int64_t before = end();
    EXPECT_NEAR(static_cast<double>(before), static_cast<double>(std::max(ready[2], ready[3])), 20);
    timer.send_pages(0, 3, kBytes, kUs);
    EXPECT_NEAR(static_cast<double>(end() - before), 1e12 * kBytes / kCable, 40) << run;
  }
}

// A load that a GPU waits for shares the cable with pages that come later: the step ends later,
// with or without an exchange after the load.
TEST(KvContention, ALoadThatPagesDelayMovesItsStepsEnd) {
  constexpr std::uint64_t kBytes = 1'000'000;
  const scenario::Scenario s = apart({{SimTime(), 16, 3}}, "auto");
  for (const bool exchange : {false, true}) {
    ExchangeTimer timer(s);
    std::vector<std::int64_t> ready(4, 0);
    timer.begin_step(2, 4);
    TransferQueue& queue = *timer.copies();
    const std::vector<TransferQueue::Id> load{queue.add(3, 2, 3, 4 * kBytes, 0)};
    const std::int64_t there = queue.end(load[0]);
    timer.follow(3, load, ready[3], there);
    ready[3] = there + 5 * kUs;
    if (exchange) {
      std::vector<ExchangeTiming> timings;
      std::vector<std::uint64_t> bytes(16, 0);
      bytes[3 * 4 + 2] = 1000;
      timer.run(bytes, ready, timings);
      ready[2] = ready[3] = timings.at(0).end_ps[3] + kUs;
    }
    const auto clocks = timer.end_step(2, 4, ready);
    EXPECT_NEAR(static_cast<double>(timer.step_end(clocks[1])), static_cast<double>(ready[3]), 2);
    timer.send_pages(0, 3, kBytes, kUs);
    EXPECT_NEAR(static_cast<double>(timer.step_end(clocks[1]) - ready[3]), 1000.0 * kUs, 4)
        << exchange;
    // It is over: its end is still known until it is forgotten.
    std::vector<std::uint64_t> carried(queue.routes().links(), 0);
    queue.count_bytes(ready[3] + 2000 * kUs, carried);
    EXPECT_NEAR(static_cast<double>(timer.step_end(clocks[1]) - ready[3]), 1000.0 * kUs, 4);
    EXPECT_EQ(queue.kept_ends(),
              exchange ? 1U : 2U);  // The pages, and the load if nothing follows.
    for (const auto& c : clocks) timer.forget(c);
    EXPECT_EQ(queue.kept_ends(), 1U);
  }
}

namespace {

/// Groups (0, 1) and (2, 3) of experts, each on either side of one cable of 1 GB/s.
scenario::Scenario across(std::vector<std::string> more = {}) {
  std::vector<std::string> settings{
      "parallel.ep=2", "parallel.dp=4", "network.model=auto",
      R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
      R"({ name = "a", kind = "switch" }, { name = "b", kind = "switch" }])",
      R"(hardware.links=[{ from = "gpu0", to = "a", type = "cable" }, )"
      R"({ from = "gpu2", to = "a", type = "cable" }, { from = "gpu1", to = "b", type = "cable" }, )"
      R"({ from = "gpu3", to = "b", type = "cable" }, { from = "a", to = "b", class = "other", )"
      R"(bandwidth = "1 GB/s", latency = "1 us" }])"};
  settings.insert(settings.end(), more.begin(), more.end());
  return worked_scenario(settings);
}

}  // namespace

TEST(KvContention, ACableThatChangesLeavesOtherGroupsExchangesUnderWay) {
  // 4 MB of the first group begin at 0. At 1 ms the second group sends 1 MB, which takes 2 ms
  // beside them; at half the bandwidth from then on 4 ms. A second cable that is gone changes
  // nothing.
  const scenario::Scenario whole = across();
  const auto end = [&](double factor, bool rewired) {
    ExchangeTimer timer(whole);
    std::vector<ExchangeTiming> timings;
    std::vector<std::int64_t> ready(4, 0);
    std::vector<std::uint64_t> first(16, 0), second(16, 0);
    first[0 * 4 + 1] = 4'000'000;
    second[2 * 4 + 3] = 1'000'000;
    timer.run(first, ready, timings);
    ready = {timings.at(0).end_ps[0], timings[0].end_ps[1], 1000 * kUs, 1000 * kUs};
    if (rewired) {
      scenario::Scenario now = whole;
      now.hardware.links.back().bandwidth.value *= factor;
      timer.rewire(now, 1000 * kUs);
    }
    timer.run(second, ready, timings);
    return timings.at(0).end_ps[3];
  };
  const double latency = 1.0 * kUs;  // Where the two do not meet: before the first bytes move.
  const auto undisturbed = static_cast<double>(end(1, false));
  EXPECT_NEAR(undisturbed, 3000.0 * kUs, 10 * latency);
  EXPECT_NEAR(static_cast<double>(end(1, true)), undisturbed, 2);
  EXPECT_NEAR(static_cast<double>(end(0.5, true)), 5000.0 * kUs, 10 * latency);
}

// Exchanges of pages begin at the GPUs' clocks, those of the halves when the wires are free: the
// queue is never taken beyond what comes next.
TEST(KvContention, HalvesOfABatchAndReplicatedPagesShareACable) {
  std::vector<std::int64_t> ends;
  for (const char* kv : {"by_sequence", "replicated"}) {
    const MemoryRun r =
        run_in_memory(across({"network.two_batch=true", std::string("memory.kv.placement=") + kv,
                              "workload.batch=16", "workload.steps=3",
                              R"(workload.routing={ synthetic = "uniform" })"}),
                      nullptr);
    for (const auto& v : r.result.violations) {
      ADD_FAILURE() << kv << ": " << v.check << " " << v.where << ": " << v.message;
    }
    ASSERT_EQ(r.data.steps.size(), 3U);
    ends.push_back(r.data.steps.back().end_ps);
  }
  EXPECT_GT(ends[1], ends[0]);
}

}  // namespace switchyard::sim
