// SPDX-License-Identifier: Apache-2.0
// The serving side of the simulator: arrivals, batches, preemption, replicas, metrics. Most tests
// drive the scheduler with an engine whose step time is given, so every number can be computed by
// hand; the last ones run the whole step loop.
#include "sim/serving/serving.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/run/metrics.hpp"
#include "sim/serving/arrivals.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace {

using switchyard::InputError;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace sim = switchyard::sim;
namespace run = switchyard::run;
namespace scenario = switchyard::scenario;

constexpr std::int64_t kMs = 1'000'000'000;

std::string open_workload(const std::string& arrivals, const std::string& lengths,
                          const std::string& more = "") {
  return "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { " +
         arrivals + " }, lengths = { " + lengths + " }" + more + " }";
}

scenario::Scenario trace_scenario(std::vector<scenario::TracedRequest> requests,
                                  std::vector<std::string> more = {}) {
  std::vector<std::string> settings{
      open_workload("per_second = 1.0, requests = 1", "prompt = 1, output = 1")};
  settings.insert(settings.end(), more.begin(), more.end());
  scenario::Scenario s = worked_scenario(settings);
  auto trace = std::make_shared<scenario::RequestTrace>();
  trace->requests = std::move(requests);
  s.workload.kind = scenario::WorkloadKind::kTrace;
  s.workload.serving.arrivals.trace = trace;
  s.workload.serving.arrivals.requests = 0;
  return s;
}

scenario::TracedRequest at_ms(std::int64_t ms, std::uint32_t prompt, std::uint32_t output) {
  return {switchyard::SimTime::from_ps(ms * kMs), prompt, output};
}

struct Result {
  run::RunData data;
  std::vector<sim::StepPlan> plans;
  std::vector<std::int64_t> starts;
  std::vector<std::string> notes, violations;
  [[nodiscard]] double metric(const std::string& name) const {
    for (const run::Metric& m : data.metrics) {
      if (m.name == name) return m.value;
    }
    ADD_FAILURE() << "no metric " << name;
    return 0;
  }
  [[nodiscard]] std::int64_t first_ms(std::size_t id) const {
    return data.requests[id].first_token_ps / kMs;
  }
  [[nodiscard]] std::int64_t end_ms(std::size_t id) const { return data.requests[id].end_ps / kMs; }
};

/// One page is 16 tokens and 16 B; `pages` of them on each GPU. `time` gives a step's length.
/// `between` is asked after each step, as faults and alarms are.
Result drive(const scenario::Scenario& s, std::uint32_t gpus, std::uint64_t pages,
             const std::function<std::int64_t(const sim::StepPlan&)>& time, bool keep = true,
             const std::function<void(sim::ServingMachine&)>& change = {},
             const std::function<void(sim::BatchSource&, std::uint64_t)>& between = {}) {
  sim::ServingMachine machine;
  machine.gpus = gpus;
  machine.kv_capacity.assign(gpus, pages * 16);
  machine.kv_bytes = [](std::uint64_t tokens) { return (tokens + 15) / 16 * 16; };
  if (s.workload.serving.front_end.prefill_replicas > 0) {
    machine.routes = switchyard::cluster::build_cluster(s.hardware).routes();
  }
  if (change) change(machine);
  const auto batch = sim::make_serving(s, machine);
  Result r;
  sim::StepPlan plan;
  std::map<std::uint32_t, std::int64_t> clock;
  std::int64_t end = 0;
  std::map<std::uint32_t, std::int64_t> ledger;  // home → bytes of pages, from the plans alone
  for (std::uint64_t step = 0; batch->next(step, plan); ++step) {
    const std::int64_t start = std::max(clock[plan.engine], plan.earliest_ps);
    clock[plan.engine] = start + plan.host_ps + time(plan);
    end = std::max(end, clock[plan.engine]);
    if (keep) {
      for (const sim::KvChange& c : plan.kv) {
        ledger[c.gpu] += static_cast<std::int64_t>(machine.kv_bytes(c.after)) -
                         static_cast<std::int64_t>(machine.kv_bytes(c.before));
      }
      std::vector<std::uint64_t> held;
      for (std::uint32_t g = 0; g < gpus; ++g) {
        batch->holders(g, held);
        std::int64_t want = 0;
        for (const std::uint64_t t : held) want += static_cast<std::int64_t>(machine.kv_bytes(t));
        EXPECT_EQ(ledger[g], want) << "step " << step << ", GPU " << g;
        EXPECT_LE(want, static_cast<std::int64_t>(pages * 16));
      }
      r.plans.push_back(plan);
      r.starts.push_back(start);
    }
    batch->done(step, plan, start, clock[plan.engine], r.data);
    if (between) between(*batch, step);
  }
  batch->finish(end, r.data, r.notes, r.violations);
  for (const std::string& v : r.violations) ADD_FAILURE() << v;
  return r;
}

std::int64_t ten_ms(const sim::StepPlan&) { return 10 * kMs; }

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

struct Asked {
  std::int64_t ms = 0;
  std::uint32_t prompt = 0, output = 0;
  std::vector<std::uint64_t> ids;  // of blocks of 32 tokens, two pages
};

scenario::Scenario prefix_scenario(const std::vector<Asked>& asked,
                                   std::vector<std::string> more = {}) {
  std::vector<scenario::TracedRequest> requests;
  auto trace = std::make_shared<scenario::RequestTrace>();
  trace->hash_ids = true;
  for (const Asked& a : asked) {
    requests.push_back(at_ms(a.ms, a.prompt, a.output));
    trace->hash_begin.push_back(trace->hashes.size());
    trace->hashes.insert(trace->hashes.end(), a.ids.begin(), a.ids.end());
  }
  trace->hash_begin.push_back(trace->hashes.size());
  trace->requests = requests;
  scenario::Scenario s = trace_scenario(requests, std::move(more));
  s.workload.serving.arrivals.trace = trace;
  s.workload.serving.arrivals.hash_block = 32;
  s.workload.serving.batching.prefix_caching = true;
  return s;
}

/// One GPU has all pages.
std::vector<std::string> on_hub() {
  return {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"};
}

constexpr const char* kOneGpu = "parallel.ep=1";
constexpr int kArrivals = 200'000;

}  // namespace

TEST(Queue, WaitsAsMDOneSays) {
  // One server, D = 10 ms, ρ = 0.7: mean wait ρ D / (2 (1 − ρ)) = 11.6667 ms (Pollaczek–Khinchine).
  const auto s = worked_scenario(
      {open_workload("per_second = 70.0, requests = 250000", "prompt = 1, output = 1",
                     ", batching = { max_sequences = 1 }, front_end = { replicas = 1 }"),
       "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 100, ten_ms, false);
  EXPECT_NEAR(r.metric("queue wait mean"), 0.7 * 10 / (2 * 0.3), 0.02 * 11.6667);
  EXPECT_NEAR(r.metric("replica busy"), 0.7, 0.005);
  // Little: N = λ (W + D) = 70 · 21.6667 ms.
  EXPECT_NEAR(r.metric("requests in system mean"), 70 * 0.0216667, 0.03);
}

TEST(Slo, EveryTierSaysItsLimits) {
  auto s = trace_scenario({at_ms(0, 1, 1)}, {"workload.slo.tpot=\"5 ms\""});
  s.workload.serving.tiers = {{"paid", 0.5, 1, 0, 1, switchyard::SimTime::from_ps(20 * kMs),
                               switchyard::SimTime::from_ps(5 * kMs)},
                              {"free", 0.5, 0, 0, 1, {}, switchyard::SimTime::from_ps(9 * kMs)}};
  const Result r = drive(s, 8, 100, ten_ms);
  EXPECT_DOUBLE_EQ(r.metric("SLO TTFT, tier paid"), 20);
  EXPECT_DOUBLE_EQ(r.metric("SLO TPOT, tier paid"), 5);
  EXPECT_DOUBLE_EQ(r.metric("SLO TPOT, tier free"), 9);
  EXPECT_TRUE(std::none_of(r.data.metrics.begin(), r.data.metrics.end(), [](const run::Metric& m) {
    return m.name == "SLO TTFT, tier free" || m.name == "SLO TTFT";
  }));
}

TEST(Arrivals, GammaGapsHaveTheMeanAndTheVariation) {
  const auto s = worked_scenario(
      {open_workload("process = \"gamma\", cv = 2.5, per_second = 4.0, requests = 200000",
                     "prompt = 1, output = 1")});
  sim::ArrivalSource source(s);
  double sum = 0, square = 0, last = 0;
  std::size_t n = 0;
  while (const auto a = source.next()) {
    const double t = static_cast<double>(a->time_ps) * 1e-12;
    sum += t - last;
    square += (t - last) * (t - last);
    last = t;
    ++n;
  }
  ASSERT_EQ(n, 200000U);
  const double mean = sum / static_cast<double>(n);
  EXPECT_NEAR(mean, 0.25, 0.25 * 0.02);
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(n) - mean * mean) / mean, 2.5, 0.1);
}

TEST(Arrivals, LengthsHaveTheMeanAndTheVariation) {
  const auto s = worked_scenario({open_workload("per_second = 4.0, requests = 50000",
                                                "prompt = 500, prompt_cv = 0.8, output = 100")});
  sim::ArrivalSource source(s);
  double sum = 0, square = 0;
  std::size_t n = 0;
  while (const auto a = source.next()) {
    EXPECT_EQ(a->output, 100U);
    sum += a->prompt;
    square += static_cast<double>(a->prompt) * a->prompt;
    ++n;
  }
  const double mean = sum / static_cast<double>(n);
  EXPECT_NEAR(mean, 500, 10);
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(n) - mean * mean) / mean, 0.8, 0.05);
}

TEST(Preemption, SwapsOfAShrunkRoomAndOfTheNextPlanAddUp) {
  // Three requests with a page of 16 B each. The room becomes two pages, so the last one goes; the
  // first one's 17th token needs a second page, so the next one goes too, over the same wire.
  const auto s =
      trace_scenario({at_ms(0, 16, 16), at_ms(0, 16, 16), at_ms(0, 16, 16)},
                     {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }",
                      "workload.batching={ preemption = \"swap\", swap_bandwidth = \"16 kB/s\" }"});
  sim::ServingMachine machine;
  machine.gpus = 8;
  machine.kv_capacity.assign(8, 6 * 16);
  machine.kv_bytes = [](std::uint64_t tokens) { return (tokens + 15) / 16 * 16; };
  const auto batch = sim::make_serving(s, machine);
  run::RunData data;
  sim::StepPlan plan;
  ASSERT_TRUE(batch->next(0, plan));
  ASSERT_EQ(plan.sequences.size(), 3U);
  batch->done(0, plan, 0, 10 * kMs, data);
  ASSERT_TRUE(batch->await(1, plan));
  batch->set_kv_rooms(std::vector<std::uint64_t>(8, 2 * 16));
  ASSERT_TRUE(batch->plan(1, plan));
  EXPECT_EQ(plan.sequences.size(), 1U);
  EXPECT_EQ(plan.host_ps, 2 * kMs);
}

TEST(Batching, CutsAPromptIntoChunksOfTheBudget) {
  // 1,000 tokens at 256 a step: 4 steps; the first token comes with the fourth, 4 more follow.
  const auto s = trace_scenario({at_ms(0, 1000, 5)}, {"workload.batching.token_budget=256"});
  const Result r = drive(s, 8, 100, ten_ms);
  ASSERT_EQ(r.plans.size(), 8U);
  EXPECT_EQ(r.plans[3].sequences[0].fresh, 1000U - 3 * 256);
  EXPECT_EQ(r.plans[3].sequences[0].had, 3U * 256);
  EXPECT_FALSE(r.plans[2].sequences[0].samples);
  EXPECT_TRUE(r.plans[3].sequences[0].samples);
  EXPECT_EQ(r.plans[3].kind, run::StepKind::kPrefill);
  EXPECT_EQ(r.plans[4].kind, run::StepKind::kDecode);
  EXPECT_EQ(r.first_ms(0), 40);
  EXPECT_EQ(r.end_ms(0), 80);
  EXPECT_DOUBLE_EQ(r.metric("ITL mean"), 10);
  EXPECT_DOUBLE_EQ(r.metric("ITL jitter"), 0);
}

TEST(Batching, DecodeGoesOnBesideAChunk) {
  const auto s = trace_scenario(
      {at_ms(0, 10, 10), at_ms(15, 500, 2)},
      {kOneGpu, "workload.batching={ token_budget = 101 }", "parallel.attention=\"hub\"",
       "parallel.ep=8", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 100, ten_ms);
  // Step at 20 ms: one token of request 0 and 100 of request 1's prompt; it ends after five.
  EXPECT_EQ(r.plans[2].kind, run::StepKind::kMixed);
  EXPECT_EQ(r.plans[2].sequences[1].fresh, 100U);
  EXPECT_EQ(r.first_ms(1), 70);
  EXPECT_EQ(r.end_ms(0), 100);
}

TEST(Batching, WithoutChunksAPromptWaitsForAWholePlace) {
  const auto s =
      trace_scenario({at_ms(0, 60, 1), at_ms(0, 60, 1), at_ms(0, 150, 1)},
                     {"workload.batching={ token_budget = 100, chunked_prefill = false }",
                      "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 100, ten_ms);
  ASSERT_EQ(r.plans.size(), 3U);
  EXPECT_EQ(r.plans[2].sequences[0].fresh, 150U);  // beyond the budget: a step for itself
}

TEST(Preemption, RecomputesWhatItLost) {
  // 4 pages of 16 tokens. Two requests of 16 + 32 tokens take 3 pages each: the later one gives up.
  const std::vector<std::string> settings{"parallel.attention=\"hub\"",
                                          "memory.kv={ placement = \"hub\" }"};
  const auto s = trace_scenario({at_ms(0, 16, 32), at_ms(0, 16, 32)}, settings);
  const Result r = drive(s, 8, 4, ten_ms);
  EXPECT_EQ(r.metric("preemptions"), 1);
  EXPECT_EQ(r.data.requests[0].preemptions, 0U);
  EXPECT_EQ(r.data.requests[1].preemptions, 1U);
  // Both have 32 tokens in the cache when the first one needs its third page.
  EXPECT_EQ(r.metric("tokens computed anew"), 32);
  EXPECT_EQ(r.end_ms(0), 320);
  ASSERT_EQ(r.data.events.size(), 1U);
  EXPECT_EQ(r.data.events[0].kind, run::EventKind::kPreemption);

  auto swap = s;
  swap.workload.serving.batching.preemption = scenario::Preemption::kSwap;
  swap.workload.serving.batching.swap_bandwidth.value = 3200;  // 32 B take 10 ms
  const Result w = drive(swap, 8, 4, ten_ms);
  EXPECT_EQ(w.metric("tokens computed anew"), 0);
  EXPECT_DOUBLE_EQ(w.metric("KV swapped"), 64e-9);  // out and in
  EXPECT_EQ(w.end_ms(0), 330);                      // the swap out held the step up
}

TEST(Preemption, SwapsOverTheLinksWhereNoBandwidthIsStated) {
  auto s = trace_scenario({at_ms(0, 16, 32), at_ms(0, 16, 32)},
                          {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  s.workload.serving.batching.preemption = scenario::Preemption::kSwap;
  const Result r = drive(s, 8, 4, ten_ms);
  std::vector<std::pair<bool, std::uint64_t>> swaps;
  for (const sim::StepPlan& p : r.plans) {
    EXPECT_EQ(p.host_ps, 0);
    for (const sim::KvSwap& w : p.swaps) swaps.emplace_back(w.out, w.bytes);
  }
  // Two pages go and come back.
  EXPECT_EQ(swaps, (std::vector<std::pair<bool, std::uint64_t>>{{true, 32}, {false, 32}}));
  EXPECT_DOUBLE_EQ(r.metric("KV swapped"), 64e-9);
}

TEST(Preemption, SwapsOnlyWhatTheHostsMemoryHolds) {
  auto s = trace_scenario({at_ms(0, 16, 32), at_ms(0, 16, 32)},
                          {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  s.workload.serving.batching.preemption = scenario::Preemption::kSwap;
  s.workload.serving.batching.swap_bandwidth.value = 3200;
  scenario::Device cpu;
  cpu.name = "cpu";
  cpu.kind = scenario::DeviceKind::kCpu;
  // Two pages of 16 B swap: they fit into 32 B, not into 31.
  for (const std::uint64_t memory : {32U, 31U}) {
    auto with = s;
    cpu.memory_bytes = memory;
    with.hardware.devices.push_back(cpu);
    const Result r = drive(with, 8, 4, ten_ms);
    const bool fits = memory == 32;
    EXPECT_EQ(r.metric("preemptions"), 1);
    EXPECT_DOUBLE_EQ(r.metric("KV swapped"), fits ? 64e-9 : 0);
    EXPECT_EQ(r.metric("tokens computed anew"), fits ? 0 : 32);
    ASSERT_EQ(r.data.events.size(), 1U);
    EXPECT_EQ(r.data.events[0].text,
              fits ? "request 1: 32 tokens move to host memory"
                   : "request 1: 32 tokens are computed again later: no room for them in host "
                     "memory");
  }
  // Two are swapped out and back one after the other: the room is given back.
  auto four = trace_scenario({at_ms(0, 16, 32), at_ms(0, 16, 32), at_ms(900, 16, 32),
                              at_ms(900, 16, 32)},
                             {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  four.workload.serving.batching = s.workload.serving.batching;
  cpu.memory_bytes = 32;
  four.hardware.devices.push_back(cpu);
  const Result r = drive(four, 8, 4, ten_ms);
  EXPECT_EQ(r.metric("preemptions"), 2);
  EXPECT_DOUBLE_EQ(r.metric("KV swapped"), 128e-9);
  EXPECT_EQ(r.metric("tokens computed anew"), 0);
}

/// A GPU with `other` B beside its pages and a watermark at 128 B.
std::function<void(sim::ServingMachine&)> marked(std::uint64_t other) {
  return [other](sim::ServingMachine& m) {
    m.watermark.assign(m.gpus, 128);
    m.other_bytes = [other](std::uint32_t) { return other; };
  };
}

TEST(Watermark, StopsAdmissionWhileSomebodyRuns) {
  // Room for 2 pages below the mark. The first request holds 2 from its second step on, and may
  // grow beyond; the second one waits for its end.
  auto s = trace_scenario({at_ms(0, 16, 32), at_ms(5, 16, 2)},
                          {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  EXPECT_EQ(drive(s, 8, 8, ten_ms).first_ms(1), 20);
  s.memory.watermark_action = scenario::WatermarkAction::kStopAdmission;
  const Result r = drive(s, 8, 8, ten_ms, true, marked(96));
  EXPECT_EQ(r.end_ms(0), 320);
  EXPECT_EQ(r.first_ms(1), 330);
  EXPECT_EQ(r.metric("preemptions"), 0);
  EXPECT_EQ(r.metric("steps without admission (watermark)"), 31);
  ASSERT_EQ(r.data.events.size(), 2U);
  EXPECT_NE(r.data.events[0].text.find("no admission, 1 requests wait"), std::string::npos);
  EXPECT_NE(r.data.events[1].text.find("admitted again"), std::string::npos);
  // With room for both nothing is held back.
  EXPECT_EQ(drive(s, 8, 8, ten_ms, true, marked(0)).first_ms(1), 20);
}

TEST(Watermark, PreemptsAsIfPagesHadRunOut) {
  // As Preemption.RecomputesWhatItLost, but 8 pages are there and 4 of them below the mark.
  auto s = trace_scenario({at_ms(0, 16, 32), at_ms(0, 16, 32)},
                          {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  EXPECT_EQ(drive(s, 8, 8, ten_ms).metric("preemptions"), 0);
  s.memory.watermark_action = scenario::WatermarkAction::kPreempt;
  const Result r = drive(s, 8, 8, ten_ms, true, marked(64));
  EXPECT_EQ(r.metric("preemptions"), 1);
  EXPECT_EQ(r.metric("preemptions at the watermark"), 1);
  EXPECT_EQ(r.metric("tokens computed anew"), 32);
  EXPECT_EQ(r.end_ms(0), 320);
  // Above the mark from the start: one after the other, and both get their answer.
  const Result full = drive(s, 8, 8, ten_ms, true, marked(500));
  EXPECT_EQ(full.end_ms(0), 320);
  EXPECT_EQ(full.end_ms(1), 640);
}

TEST(Watermark, HoldsRequestsBackWhileALeakLasts) {
  const auto leaking = [](const char* action) {
    return run_in_memory(
        worked_scenario(
            {open_workload("per_second = 20000.0, requests = 60", "prompt = 64, output = 20"),
             "faults.events=[{kind=\"kv_leak\",gpu=\"gpu7\",bytes=\"20 GB\",step=0,"
             "lasts=4}]",
             std::string("memory.watermark_action=") + action}),
        nullptr);
  };
  for (const char* action : {"record", "stop_admission", "preempt"}) {
    const MemoryRun r = leaking(action);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    std::size_t held = 0;
    for (const run::Event& e : r.data.events) {
      const bool one = e.text.find("watermark: no admission") != std::string::npos;
      held += one ? 1 : 0;
      if (one) {
        EXPECT_EQ(e.gpu, 7U);
      }
    }
    EXPECT_EQ(held > 0, std::string(action) != "record") << action;
    for (const auto& q : r.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << action;
    }
  }
}

TEST(Preemption, SparesTheHigherTier) {
  auto s = trace_scenario({at_ms(0, 16, 32), at_ms(1, 16, 32)},
                          {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  s.run.seed = 3;
  s.workload.serving.tiers = {{"free", 0.5, 0, 0, 1, {}, {}}, {"paid", 0.5, 5, 0, 1, {}, {}}};
  for (s.run.seed = 1; s.run.seed < 100; ++s.run.seed) {
    sim::ArrivalSource source(s);
    if (source.next()->tier == 0 && source.next()->tier == 1) break;
  }
  const Result r = drive(s, 8, 4, ten_ms);
  EXPECT_EQ(r.data.requests[0].preemptions, 1U);  // came first, pays nothing
  EXPECT_EQ(r.data.requests[1].preemptions, 0U);
}

TEST(Admission, RejectsWhatCouldNeverFitOrIsTooMuch) {
  auto s = trace_scenario({at_ms(0, 100, 1), at_ms(1, 16, 1), at_ms(2, 16, 1), at_ms(3, 16, 1)},
                          {"workload.batching={ max_sequences = 1, max_waiting = 1 }",
                           "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 4, ten_ms);
  EXPECT_EQ(r.data.requests[0].outcome, run::RequestOutcome::kRejected);  // 7 pages of 4
  EXPECT_EQ(r.data.requests[1].outcome, run::RequestOutcome::kFinished);
  EXPECT_EQ(r.data.requests[2].outcome, run::RequestOutcome::kFinished);
  EXPECT_EQ(r.data.requests[3].outcome, run::RequestOutcome::kRejected);  // one waits already
  EXPECT_EQ(r.notes.size(), 2U);
}

TEST(Tiers, ARateLimitIsATokenBucket) {
  // 2 at once, then one per 100 ms: of 11 requests 10 ms apart the first two and the eleventh.
  std::vector<scenario::TracedRequest> requests;
  for (int i = 0; i < 11; ++i) requests.push_back(at_ms(10 * i, 1, 1));
  auto s = trace_scenario(requests);
  s.workload.serving.tiers[0].per_second = 10;
  s.workload.serving.tiers[0].burst = 2;
  const Result r = drive(s, 8, 100, [](const sim::StepPlan&) { return kMs; });
  for (std::size_t i = 0; i < 11; ++i) {
    EXPECT_EQ(r.data.requests[i].outcome == run::RequestOutcome::kFinished, i < 2 || i == 10) << i;
  }
}

TEST(Slo, AttainmentAndGoodputCountTheRequestsInTime) {
  // One at a time, 10 ms each: TTFT 10, 20, 30, 40 ms against 25 ms.
  auto s = trace_scenario({at_ms(0, 1, 1), at_ms(0, 1, 1), at_ms(0, 1, 1), at_ms(0, 1, 1)},
                          {"workload.batching={ max_sequences = 1 }", "workload.slo.ttft=\"25 ms\"",
                           "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 100, ten_ms);
  EXPECT_DOUBLE_EQ(r.metric("SLO attainment"), 0.5);
  EXPECT_DOUBLE_EQ(r.metric("goodput"), 2 / 0.040);
  EXPECT_DOUBLE_EQ(r.metric("SLO TTFT"), 25);
  // Beside the attainment, and only what is stated.
  const auto& all = r.data.metrics;
  const auto at = std::find_if(all.begin(), all.end(),
                               [](const run::Metric& m) { return m.name == "SLO attainment"; });
  ASSERT_NE(at, all.begin());
  EXPECT_EQ((at - 1)->name, "SLO TTFT");
  EXPECT_EQ(run::find_metric("SLO TTFT, tier paid")->unit, "ms");
  EXPECT_EQ(r.data.requests[1].met_slo, 1);
  EXPECT_EQ(r.data.requests[2].met_slo, 0);
}

TEST(Replicas, RoundRobinAndLeastQueueSpreadRequests) {
  for (const char* balance : {"round_robin", "least_queue"}) {
    std::vector<scenario::TracedRequest> requests(16, at_ms(0, 1, 1));
    const auto s = trace_scenario(
        requests, {"parallel.ep=4", std::string("workload.front_end={ replicas = 2, balance = \"") +
                                        balance + "\" }"});
    const Result r = drive(s, 8, 100, ten_ms);
    ASSERT_EQ(r.plans.size(), 2U) << balance;
    for (const sim::StepPlan& p : r.plans) {
      EXPECT_EQ(p.last_gpu - p.first_gpu, 4U);
      std::map<std::uint32_t, int> per_gpu;
      for (const auto& q : p.sequences) ++per_gpu[q.gpu];
      EXPECT_EQ(per_gpu.size(), 4U);
      for (const auto& [gpu, n] : per_gpu) EXPECT_EQ(n, 2) << balance << " GPU " << gpu;
    }
  }
}

TEST(Replicas, StepByThemselves) {
  const auto s = trace_scenario({at_ms(0, 1, 4), at_ms(0, 1, 4)},
                                {"parallel.ep=4", "workload.front_end={ replicas = 2 }"});
  const Result r =
      drive(s, 8, 100, [](const sim::StepPlan& p) { return p.engine == 0 ? 10 * kMs : 4 * kMs; });
  EXPECT_EQ(r.end_ms(0), 40);
  EXPECT_EQ(r.end_ms(1), 16);
  EXPECT_TRUE(std::is_sorted(r.starts.begin(), r.starts.end()));
}

TEST(Replicas, ABreakerOpensAndTheWorkStartsAgainElsewhere) {
  // Replica 0 is silent from 5 to 1000 ms; checks at 100 and 200 ms fail, the second opens.
  for (const bool retry : {true, false}) {
    const auto s = trace_scenario(
        {at_ms(0, 16, 100), at_ms(0, 16, 100), at_ms(1500, 16, 1)},
        {"parallel.ep=4",
         std::string(
             "workload.front_end={ replicas = 2, failures = 2, health_interval = \"100 ms\", "
             "on_failure = \"") +
             (retry ? "retry" : "fail") +
             "\", outages = [{ replica = 0, from = \"5 ms\", until = \"1 s\" }] }"});
    const Result r = drive(s, 8, 100, ten_ms);
    EXPECT_EQ(r.end_ms(1), 1000);
    EXPECT_EQ(r.data.requests[2].replica, 0U);  // closed again at 1 s
    if (retry) {
      // One token was out at 10 ms; 16 + 1 are computed again with the step at 200 ms.
      EXPECT_EQ(r.end_ms(0), 200 + 990);
      EXPECT_EQ(r.data.requests[0].replica, 1U);
      EXPECT_EQ(r.metric("tokens computed anew"), 16);
    } else {
      EXPECT_EQ(r.data.requests[0].outcome, run::RequestOutcome::kFailed);
    }
    std::size_t alarms = 0;
    for (const run::Event& e : r.data.events) alarms += e.kind == run::EventKind::kAlarm ? 1 : 0;
    EXPECT_EQ(alarms, 2U);
  }
}

TEST(Replicas, TokensThatABreakerThrowsAwayAreNotRecorded) {
  // Replica 0's first step lasts 1 s; its breaker opens at 100 ms and the request goes elsewhere.
  const auto s = trace_scenario(
      {at_ms(0, 16, 4), at_ms(0, 16, 4)},
      {"parallel.ep=4", "run.detail=\"tokens\"",
       "workload.front_end={ replicas = 2, failures = 1, health_interval = \"100 ms\", "
       "outages = [{ replica = 0, from = \"5 ms\", until = \"3 s\" }] }"});
  const Result r = drive(
      s, 8, 100, [](const sim::StepPlan& p) { return p.engine == 0 ? 1000 * kMs : 10 * kMs; });
  std::map<std::pair<std::uint64_t, std::uint32_t>, int> seen;
  for (const run::TokenRecord& t : r.data.tokens) {
    EXPECT_EQ(++seen[std::pair(t.request, t.index)], 1) << t.request << " " << t.index;
    EXPECT_EQ(t.time_ps, r.starts[t.step] + 10 * kMs);
    EXPECT_EQ(r.plans[t.step].engine, 1U);
  }
  EXPECT_EQ(r.data.tokens.size(), 8U);
}

TEST(Disaggregation, PagesTravelOverTheLinks) {
  // GPU 0's rank to a decode rank: 2 links of 100 GB/s and 1 µs each. 1600 B are 16 ns + 2 µs.
  const auto s = trace_scenario(
      {at_ms(0, 1600, 3)},
      {"parallel.ep=4", "workload.front_end={ replicas = 2, prefill_replicas = 1 }"});
  const Result r = drive(s, 8, 200, ten_ms);
  ASSERT_EQ(r.plans.size(), 3U);
  EXPECT_EQ(r.plans[0].engine, 0U);
  EXPECT_EQ(r.plans[1].engine, 1U);
  EXPECT_EQ(r.data.requests[0].first_token_ps, 10 * kMs);
  EXPECT_EQ(r.starts[1], 10 * kMs + 16'000 + 2'000'000);
  EXPECT_NEAR(r.metric("KV transferred"), 1600e-9, 1e-15);
  EXPECT_NEAR(r.metric("KV transfer mean"), 2.016e-3, 1e-9);
  // Prefill does not hold decode up: a second prompt comes while the first one decodes.
  const auto two = trace_scenario(
      {at_ms(0, 16, 11), at_ms(15, 1000, 1)},
      {"parallel.ep=4", "workload.front_end={ replicas = 2, prefill_replicas = 1 }"});
  const Result p = drive(two, 8, 200, [](const sim::StepPlan& plan) {
    return plan.engine == 0 ? 50 * kMs : 10 * kMs;
  });
  EXPECT_NEAR(p.metric("ITL max"), 10.00200016, 1e-9);
}

TEST(Disaggregation, RequestsOnTheirWayCountInTheQueue) {
  // 64 prompts end in one step. Decode: 3 replicas of 2 ranks, 10 or 11 requests each.
  const auto s = trace_scenario(
      std::vector<scenario::TracedRequest>(64, at_ms(0, 16, 3)),
      {"parallel.ep=2", "workload.front_end={ replicas = 4, prefill_replicas = 1 }"});
  const Result r = drive(s, 8, 100, ten_ms);
  std::map<std::uint32_t, int> served;
  for (const auto& q : r.data.requests) ++served[q.replica];
  EXPECT_EQ(served, (std::map<std::uint32_t, int>{{1, 22}, {2, 21}, {3, 21}}));
  // 6 prompts end in one step, the 2 decode ranks take one sequence each: the others stay.
  const auto one = trace_scenario(std::vector<scenario::TracedRequest>(6, at_ms(0, 16, 3)),
                                  {"parallel.ep=2", "workload.batching={ max_sequences = 1 }",
                                   "workload.front_end={ replicas = 4, prefill_replicas = 3 }"});
  const Result few = drive(one, 8, 100, ten_ms);
  int travelled = 0;
  for (const sim::StepPlan& p : few.plans) {
    for (const sim::KvChange& c : p.kv) travelled += c.gpu >= 6 && c.before == 0 ? 1 : 0;
    if (p.engine == 3) break;
  }
  EXPECT_EQ(travelled, 2);
}

TEST(Disaggregation, ABreakerForgetsRequestsOnTheirWay) {
  // Request 0 travels from 10 ms on, for more than 2 us; its destination's breaker opens 1 us
  // later. Of five later ones the ranks of replica 1 get as many as if it had never been on its
  // way.
  std::vector<scenario::TracedRequest> requests(6, at_ms(100, 16, 3));
  requests[0] = at_ms(0, 16, 3);
  const auto s = trace_scenario(
      requests, {"parallel.ep=2",
                 "workload.front_end={ replicas = 4, prefill_replicas = 1, failures = 1, "
                 "health_interval = \"10001 us\", outages = [{ replica = 1, from = \"5 ms\", "
                 "until = \"15 ms\" }] }"});
  const Result r = drive(s, 8, 100, ten_ms);
  EXPECT_EQ(r.metric("tokens computed anew"), 16);
  EXPECT_EQ(r.data.requests[0].replica, 2U);
  std::map<std::uint32_t, int> served;
  for (std::size_t i = 1; i < 6; ++i) ++served[r.data.requests[i].replica];
  EXPECT_EQ(served, (std::map<std::uint32_t, int>{{1, 2}, {2, 2}, {3, 1}}));
}

TEST(Disaggregation, AGpuLostLaterTakesNothingFromPagesThatComeFromAnother) {
  // Request 0 leaves GPU 0 at 10 ms, its destination's breaker opens, and at 20 ms it leaves GPU 2;
  // pages travel for 100 ms. GPU 0 is lost while those of both journeys are on their way.
  const auto s = trace_scenario(
      {at_ms(0, 16, 3), at_ms(30, 16, 3)},
      {"parallel.ep=2",
       "workload.front_end={ replicas = 4, prefill_replicas = 3, balance = \"round_robin\", "
       "failures = 1, health_interval = \"10001 us\", outages = [{ replica = 3, from = \"5 ms\", "
       "until = \"15 ms\" }] }"});
  std::vector<std::int64_t> arrivals;
  std::vector<std::uint32_t> sources;
  const auto slow = [&](sim::ServingMachine& m) {
    m.pages.send = [&](std::uint32_t from, std::uint32_t, std::uint64_t, std::int64_t now) {
      sources.push_back(from);
      arrivals.push_back(now + 100 * kMs);
      return std::uint64_t{arrivals.size() - 1};
    };
    m.pages.arrival = [&](std::uint64_t i) { return arrivals[i]; };
    m.pages.forget = [](std::uint64_t) {};
  };
  const Result r =
      drive(s, 8, 100, ten_ms, false, slow, [](sim::BatchSource& batch, std::uint64_t step) {
        if (step == 2) batch.lose_kv(0);
      });
  EXPECT_EQ(sources, (std::vector<std::uint32_t>{0, 2, 4}));
  EXPECT_EQ(r.metric("tokens computed anew"), 16) << "by the breaker";
  EXPECT_EQ(
      std::count(r.notes.begin(), r.notes.end(), "requests that lost their pages with a GPU: 1"),
      0);
}

TEST(ClosedLoop, ObeysTheInteractiveResponseTimeLaw) {
  // N = X (R + Z) for N users with mean thinking time Z.
  const auto s = worked_scenario(
      {"workload={ kind = \"closed\", routing = { synthetic = \"uniform\" }, arrivals = { users = "
       "8, "
       "think = \"50 ms\", requests = 20000 }, lengths = { prompt = 1, output = 2 }, batching = { "
       "max_sequences = 1 } }",
       "parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }"});
  const Result r = drive(s, 8, 100, ten_ms, false);
  const double x = r.metric("requests per second");
  const double w = r.metric("request latency mean") * 1e-3;
  EXPECT_NEAR(x * (w + 0.050), 8, 0.05);
  EXPECT_LE(x, 50.0);  // 20 ms each
}

TEST(ServingLoop, OneServerWaitsAsMDOneSays) {
  // The step loop itself, one GPU, one token a request and one request a step: every step is as
  // long as the one before.
  const auto serve = [](double per_second, int requests) {
    return run_in_memory(
        worked_scenario(
            {open_workload(fmt::format("per_second = {:.9f}, requests = {}", per_second, requests),
                           "prompt = 1, output = 1", ", batching = { max_sequences = 1 }"),
             fmt::format("hardware.file=\"{}/scenarios/hardware/a100x1.toml\"",
                         SWITCHYARD_SOURCE_DIR),
             "parallel={ dp = 1, ep = 1 }", "run.detail=\"summary\""}),
        nullptr);
  };
  const auto metric = [](const MemoryRun& r, const std::string& name) {
    for (const run::Metric& m : r.data.metrics) {
      if (m.name == name) return m.value;
    }
    ADD_FAILURE() << name;
    return 0.0;
  };
  const double step_ms = metric(serve(1, 3), "step time mean") * 1e-3;
  const MemoryRun r = serve(0.7 / step_ms * 1e3, kArrivals);
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_NEAR(metric(r, "step time mean") * 1e-3, step_ms, 1e-9 * step_ms);
  const double wait = 0.7 * step_ms / (2 * 0.3);  // Pollaczek-Khinchine
  EXPECT_NEAR(metric(r, "queue wait mean"), wait, 0.02 * wait);
}

TEST(ServingLoop, RunsTheWholeLoopSoundly) {
  const MemoryRun r = run_in_memory(
      worked_scenario(
          {open_workload(
               "per_second = 2000.0, requests = 60",
               "prompt = 100, prompt_cv = 0.5, output = 12, output_cv = 0.5",
               ", batching = { token_budget = 64, max_sequences = 8 }, slo = { ttft = \"5 "
               "ms\", tpot = \"1 ms\" }"),
           "run.detail=\"tokens\""}),
      nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
  EXPECT_EQ(r.data.requests.size(), 60U);
  std::uint64_t tokens = 0, answers = 0, want = 0;
  for (const auto& s : r.data.steps) tokens += s.tokens;
  for (const auto& q : r.data.requests) {
    EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    want += q.prompt_tokens + q.output_tokens - 1;
    answers += q.output_tokens;
  }
  EXPECT_EQ(tokens, want);
  EXPECT_EQ(r.data.tokens.size(), answers);
}

TEST(ServingLoop, ReplicasAndDisaggregationConserveEverything) {
  for (const char* front : {"{ replicas = 2 }", "{ replicas = 2, prefill_replicas = 1 }"}) {
    const MemoryRun r = run_in_memory(
        worked_scenario(
            {open_workload("per_second = 4000.0, requests = 80",
                           "prompt = 200, prompt_cv = 1.0, output = 20, output_cv = 1.0",
                           std::string(", batching = { token_budget = 128, kv = \"2 MB\" "
                                       "}, front_end = ") +
                               front),
             "parallel.ep=4"}),
        nullptr);
    for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
    std::map<std::uint32_t, int> engines;
    for (const auto& s : r.data.steps) ++engines[s.engine];
    EXPECT_EQ(engines.size(), 2U) << front;
    for (const auto& q : r.data.requests) EXPECT_NE(q.outcome, run::RequestOutcome::kRunning);
  }
}

TEST(ServingLoop, PagesBetweenReplicasAreOnTheLinks) {
  const auto s = worked_scenario(
      {"workload={ kind = \"closed\", routing = { synthetic = \"uniform\" }, arrivals = { users = "
       "2, requests = 6 }, lengths = { prompt = 64, output = 3 } }",
       "parallel.ep=1", "parallel.placement=contiguous",
       "workload.front_end={ replicas = 8, prefill_replicas = 4 }"});
  const MemoryRun r = run_in_memory(s, nullptr);
  EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
  // With one GPU a replica nothing else is sent.
  std::uint64_t sent = 0, on_links = 0;
  for (const run::StepScalars& step : r.data.steps) sent += step.bytes_sent;
  for (const std::uint64_t bytes : r.data.links.bytes) on_links += bytes;
  double moved = 0;
  for (const run::Metric& m : r.data.metrics) moved = m.name == "KV transferred" ? m.value : moved;
  EXPECT_GT(moved, 0);
  EXPECT_NEAR(static_cast<double>(sent), moved * 1e9, 1);
  EXPECT_EQ(on_links, 2 * sent);  // GPU to switch, switch to GPU
}

TEST(ServingLoop, PromptsAndAnswersFollowTheirRowsOfATrace) {
  // Two sequences of the trace with one prompt row and one answer row each.
  auto trace =
      decode_trace({{{0, 1}, {2, 3}, {4, 5}, {6, 7}}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}}, 8);
  trace.tokens.phase = {0, 1, 0, 1};
  trace.tokens.sequence = {0, 0, 1, 1};
  trace.sequences.resize(2);
  const auto settings = [](const std::string& requests) {
    return std::vector<std::string>{
        "workload={ kind = \"open\", routing = { trace = \"t.h5\" }, arrivals = { per_second = "
        "10.0, "
        "requests = " +
        requests + " }, lengths = { prompt = 3, output = 3 } }"};
  };
  const MemoryRun one = run_in_memory(worked_scenario(settings("1")), &trace);
  EXPECT_TRUE(one.result.violations.empty());
  // 3 prompt tokens follow row 0, 2 of the answer row 1.
  const auto& kept = one.data.totals.expert_kept;
  EXPECT_EQ(std::vector<std::uint64_t>(kept.begin(), kept.begin() + 8),
            (std::vector<std::uint64_t>{3, 3, 2, 2, 0, 0, 0, 0}));
  const MemoryRun many = run_in_memory(worked_scenario(settings("40")), &trace);
  EXPECT_TRUE(many.result.violations.empty());
  const auto& all = many.data.totals.expert_kept;
  EXPECT_EQ(all[0] + all[4], 40U * 3);
  EXPECT_EQ(all[2] + all[6], 40U * 2);
  EXPECT_GT(all[0], 3U * 8);  // both sequences are drawn
  EXPECT_GT(all[4], 3U * 8);
  EXPECT_NE(many.data.meta.routing_source.find("drawn with the seed"), std::string::npos);
  trace.tokens.phase = {1, 1, 1, 1};
  EXPECT_NE(message_of([&] {
              run_in_memory(worked_scenario(settings("1")), &trace);
            }).find("no prefill token"),
            std::string::npos);
}

TEST(ServingLoop, FaultsBeginWithAStep) {
  // Two steps at 0, two at 100 ms. A fault in between begins with the third step, not with the
  // fourth; one of a fifth step never does.
  const auto s =
      trace_scenario({at_ms(0, 8, 2), at_ms(100, 8, 2)},
                     {"faults.events=[{kind=\"host_stall\",stall=\"1 ms\",time=\"50 ms\",lasts=1},"
                      "{kind=\"host_stall\",stall=\"1 ms\",step=4}]"});
  const MemoryRun r = run_in_memory(s, nullptr);
  for (const auto& v : r.result.violations) ADD_FAILURE() << v.check << v.where << v.message;
  ASSERT_EQ(r.data.steps.size(), 4U);
  std::vector<run::Event> faults;
  for (const run::Event& e : r.data.events) {
    if (e.kind == run::EventKind::kFault && !e.text.ends_with(": over")) faults.push_back(e);
  }
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].step, 2U);
  EXPECT_EQ(faults[0].time_ps, 100 * kMs);
  EXPECT_GE(r.data.steps[2].end_ps - r.data.steps[2].start_ps, kMs);
  const auto counted = std::find_if(r.data.metrics.begin(), r.data.metrics.end(),
                                    [](const run::Metric& m) { return m.name == "faults"; });
  ASSERT_NE(counted, r.data.metrics.end());
  EXPECT_EQ(counted->value, 1);
}

TEST(ServingLoop, TwoRunsAreTheSame) {
  const auto s = worked_scenario({open_workload("per_second = 3000.0, requests = 40",
                                                "prompt = 50, prompt_cv = 0.5, output = 8")});
  const MemoryRun a = run_in_memory(s, nullptr), b = run_in_memory(s, nullptr);
  ASSERT_EQ(a.data.metrics.size(), b.data.metrics.size());
  for (std::size_t i = 0; i < a.data.metrics.size(); ++i) {
    const double x = a.data.metrics[i].value, y = b.data.metrics[i].value;
    EXPECT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << a.data.metrics[i].name;
  }
}

TEST(PrefixCaching, APromptBeginsBehindTheBlocksThatAreThere) {
  // Blocks of 32 tokens; each request comes when the one before has left.
  const auto s = prefix_scenario({{0, 96, 2, {1, 2, 3}},    // nothing is there
                                  {100, 80, 1, {1, 2, 9}},  // 64 of 80 tokens are
                                  {200, 96, 1, {1, 2, 3}},  // all are, but one must be computed
                                  {300, 96, 1, {7, 2, 3}},  // another beginning: none
                                  {400, 130, 1, {1, 2, 3, 4, 5}}},  // 96, the third block as well
                                 on_hub());
  const Result r = drive(s, 8, 100, ten_ms);
  std::vector<std::pair<std::uint64_t, std::uint32_t>> computed;  // cached before, new
  for (const sim::StepPlan& p : r.plans) {
    for (const sim::PlannedSequence& q : p.sequences) computed.emplace_back(q.had, q.fresh);
  }
  EXPECT_EQ(computed, (std::vector<std::pair<std::uint64_t, std::uint32_t>>{
                          {0, 96}, {96, 1}, {64, 16}, {64, 32}, {0, 96}, {96, 34}}));
  EXPECT_EQ(r.metric("prefix tokens not computed"), 64 + 64 + 96);
  EXPECT_DOUBLE_EQ(r.metric("prefix hit rate"), 224.0 / (96 + 80 + 96 + 96 + 130));
  EXPECT_EQ(r.metric("prefix blocks evicted"), 0);
  EXPECT_EQ(r.metric("tokens computed anew"), 0);
  std::vector<std::uint32_t> found;
  for (const run::RequestRecord& q : r.data.requests) found.push_back(q.cached_tokens);
  EXPECT_EQ(found, (std::vector<std::uint32_t>{0, 64, 64, 0, 96}));
}

TEST(PrefixCaching, BlocksThatNobodyUsesMakePlaceTheOldestFirst) {
  // Room for four blocks of 32 tokens.
  const auto s = prefix_scenario({{0, 64, 1, {1, 2}},
                                  {100, 64, 1, {3, 4}},
                                  {200, 96, 1, {1, 2, 5}},   // finds 1 and 2; 4 makes place
                                  {300, 64, 1, {3, 6}},      // finds 3; 5 makes place
                                  {400, 96, 1, {1, 2, 5}}},  // finds 1 and 2, not 5; 6 goes
                                 on_hub());
  const Result r = drive(s, 8, 8, ten_ms);
  std::vector<std::uint32_t> found;
  for (const run::RequestRecord& q : r.data.requests) found.push_back(q.cached_tokens);
  EXPECT_EQ(found, (std::vector<std::uint32_t>{0, 0, 64, 32, 64}));
  EXPECT_EQ(r.metric("prefix blocks evicted"), 3);
  EXPECT_EQ(std::count_if(r.data.events.begin(), r.data.events.end(),
                          [](const run::Event& e) { return e.kind == run::EventKind::kEviction; }),
            3);
  EXPECT_EQ(r.metric("preemptions"), 0);
  EXPECT_EQ(r.metric("KV use max"), 0.75);  // pages in use, not what is kept as cache
}

TEST(PrefixCaching, OfABlockComputedTwiceOneIsGivenBack) {
  const auto s =
      prefix_scenario({{0, 64, 3, {1, 2}}, {0, 64, 3, {1, 2}}, {15, 70, 1, {1, 2, 3}}}, on_hub());
  const Result r = drive(s, 8, 100, ten_ms);
  ASSERT_EQ(r.plans.size(), 3U);
  // Two prompts of four pages; then one copy of them goes and each has a page of its answer.
  std::vector<std::int64_t> pages;
  std::int64_t live = 0;
  for (const sim::StepPlan& p : r.plans) {
    for (const sim::KvChange& c : p.kv) {
      live += static_cast<std::int64_t>((c.after + 15) / 16) -
              static_cast<std::int64_t>((c.before + 15) / 16);
    }
    pages.push_back(live);
  }
  // The third: 64 tokens found while both run, one page of its own.
  EXPECT_EQ(pages, (std::vector<std::int64_t>{8, 6, 7}));
  EXPECT_EQ(r.data.requests[2].cached_tokens, 64U);
}

TEST(PrefixCaching, SharedPagesLeaveRoomForMoreRequests) {
  std::vector<Asked> asked;
  for (int i = 0; i < 4; ++i) asked.push_back({20 * i, 64, 30, {1, 2}});
  auto s = prefix_scenario(asked, on_hub());
  const Result shared = drive(s, 8, 13, ten_ms);  // 4 pages of the prompt, 2 of each answer
  EXPECT_EQ(shared.metric("preemptions"), 0);
  s.workload.serving.batching.prefix_caching = false;
  const Result alone = drive(s, 8, 13, ten_ms);
  EXPECT_GT(alone.metric("request latency p99"), shared.metric("request latency p99"));
}

TEST(PrefixCaching, WhoIsPreemptedFindsItsPromptAgain) {
  // Seven pages: the answers outgrow what two requests have beside the shared four.
  const auto s = prefix_scenario({{0, 64, 40, {1, 2}}, {20, 64, 40, {1, 2}}}, on_hub());
  const Result r = drive(s, 8, 7, ten_ms);
  EXPECT_GT(r.metric("preemptions"), 0);
  EXPECT_GT(r.data.requests[1].cached_tokens, 32U);
  for (const run::RequestRecord& q : r.data.requests) EXPECT_EQ(q.output_tokens, 40U);
  // Not the prompt, the tokens of the answer were computed again.
  EXPECT_LT(r.metric("tokens computed anew"), 64 * r.metric("preemptions"));
}

TEST(PrefixCaching, SwappedPagesComeBackAndAreSharedAgain) {
  const auto s =
      prefix_scenario({{0, 64, 40, {1, 2}}, {20, 64, 40, {1, 2}}, {900, 96, 1, {1, 2, 3}}},
                      {"parallel.attention=\"hub\"", "memory.kv={ placement = \"hub\" }",
                       "workload.batching={ preemption = \"swap\", swap_bandwidth = \"1 GB/s\" }"});
  const Result r = drive(s, 8, 7, ten_ms);
  EXPECT_GT(r.metric("preemptions"), 0);
  EXPECT_GT(r.metric("KV swapped"), 0);
  EXPECT_EQ(r.metric("tokens computed anew"), 0);
  EXPECT_EQ(r.data.requests[2].cached_tokens, 64U);
}

TEST(PrefixCaching, ADecodeRankTakesOnlyThePagesThatItLacks) {
  const auto s = prefix_scenario(
      {{0, 64, 3, {1, 2}}, {500, 64, 3, {1, 2}}, {1000, 80, 3, {1, 2, 9}}},
      {"parallel.ep=4", "workload.front_end={ replicas = 2, prefill_replicas = 1 }"});
  const Result r = drive(s, 8, 100, ten_ms);
  // 16 B a page: four, none, one; found there: none, four, four.
  EXPECT_DOUBLE_EQ(r.metric("KV transferred"), 80e-9);
  EXPECT_DOUBLE_EQ(r.metric("prefix KV not sent"), 128e-9);
  EXPECT_EQ(r.metric("prefix tokens not computed"), 32 + 64);
}

TEST(PrefixCaching, ADecodeRankHasRoomForWhatItsCacheHas) {
  // Six pages on each of four prefill and four decode ranks; a prompt has four of them, an answer
  // one. The second request of a decode rank needs only the last one.
  std::vector<Asked> asked(8, {0, 64, 10, {1, 2}});
  const auto s = prefix_scenario(
      asked, {"parallel.ep=4", "workload.front_end={ replicas = 2, prefill_replicas = 1 }"});
  const Result r = drive(s, 8, 6, ten_ms);
  // The second ones are prompts until 20 ms. The first ones' blocks are the decode ranks' when
  // their first step there ends, and the step after it has the second ones as well.
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(r.end_ms(i), i < 4 ? 100 : 120) << i;
  EXPECT_DOUBLE_EQ(r.metric("prefix KV not sent"), 4 * 64e-9);
  EXPECT_DOUBLE_EQ(r.metric("KV use max"), 1);
}

TEST(PrefixCaching, ARequestMayLeaveOneGpuTwiceBeforeItsFirstPagesArrive) {
  // Its destination's breaker opens on the way; it finds its prompt where it was computed, and is
  // handed over again as soon as the breaker closes. Pages travel for 100 ms.
  const auto s = prefix_scenario(
      {{0, 80, 3, {1, 2, 3}}},
      {"parallel.ep=4",
       "workload.front_end={ replicas = 2, prefill_replicas = 1, failures = 1, health_interval = "
       "\"10001 us\", outages = [{ replica = 1, from = \"5 ms\", until = \"15 ms\" }] }"});
  std::vector<std::int64_t> arrivals;
  const auto slow = [&](sim::ServingMachine& m) {
    m.pages.send = [&](std::uint32_t, std::uint32_t, std::uint64_t, std::int64_t now) {
      arrivals.push_back(now + 100 * kMs);
      return std::uint64_t{arrivals.size() - 1};
    };
    m.pages.arrival = [&](std::uint64_t i) { return arrivals[i]; };
    m.pages.forget = [](std::uint64_t) {};
  };
  const Result r = drive(s, 8, 20, ten_ms, true, slow);
  EXPECT_EQ(arrivals.size(), 2U);
  EXPECT_EQ(r.data.requests[0].cached_tokens, 64U);
  EXPECT_EQ(r.data.requests[0].outcome, run::RequestOutcome::kFinished);
}

TEST(PrefixCaching, OnlyBlocksThatMakePlaceAreEvicted) {
  // Two blocks each stay on two GPUs; then, while a request of a page is on the first one, the
  // second one leaves service, and so do its blocks, or the room shrinks to one block.
  const std::vector<Asked> asked{{0, 64, 1, {1, 2}}, {0, 64, 1, {1, 2}}, {50, 16, 1, {3}}};
  const auto s = prefix_scenario(asked, {"parallel={ dp = 8, ep = 8 }"});
  const auto evictions = [](const Result& r) {
    return std::count_if(r.data.events.begin(), r.data.events.end(),
                         [](const run::Event& e) { return e.kind == run::EventKind::kEviction; });
  };
  const Result left = drive(s, 8, 10, ten_ms, true, {}, [](sim::BatchSource& batch, auto step) {
    const std::vector<std::uint32_t> others{0, 2, 3, 4, 5, 6, 7};
    if (step == 1) {
      EXPECT_TRUE(batch.evacuate(1, others, true).empty());
    }
  });
  EXPECT_EQ(left.metric("prefix blocks evicted"), 0);
  EXPECT_EQ(evictions(left), 0);
  const Result shrunk = drive(s, 8, 10, ten_ms, true, {}, [](sim::BatchSource& batch, auto step) {
    if (step == 1) batch.set_kv_rooms(std::vector<std::uint64_t>(8, 32));
  });
  EXPECT_EQ(shrunk.metric("prefix blocks evicted"), 2 + 1);
  EXPECT_EQ(evictions(shrunk), 2);
}

TEST(PrefixCaching, EveryRankHasACacheOfItsOwn) {
  // Round robin over two replicas of four ranks: the ninth request is the first one's rank again.
  std::vector<Asked> asked;
  for (int i = 0; i < 9; ++i) asked.push_back({100 * i, 64, 1, {1, 2}});
  const auto s = prefix_scenario(
      asked, {"parallel.ep=4", "workload.front_end={ replicas = 2, balance = \"round_robin\" }"});
  const Result r = drive(s, 8, 100, ten_ms);
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(r.data.requests[i].cached_tokens, i == 8 ? 32U : 0U) << i;
  }
}

TEST(PrefixCaching, HoldsThroughFaultsPreemptionAndTheWholeLoop) {
  // Prompts out of 3 families that share one to five blocks, in little memory.
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const std::uint32_t blocks = 1 + i % 5, family = i % 3;
    Asked a{static_cast<std::int64_t>(i / 6), blocks * 32 + 1 + i % 30, 3 + i % 9, {}};
    for (std::uint32_t b = 0; b < blocks; ++b) a.ids.push_back(100 * family + b);
    a.ids.push_back(1000 + i);
    asked.push_back(a);
  }
  const std::string tight = "workload.batching={ kv = \"1 MiB\", token_budget = 64 }";
  const std::string swap =
      "workload.batching={ kv = \"1 MiB\", preemption = \"swap\", swap_bandwidth = \"1 GB/s\" }";
  const std::string pd =
      "workload.front_end={ replicas = 2, prefill_replicas = 1, health_interval = \"1 ms\" }";
  const std::string two =
      "workload.front_end={ replicas = 2, failures = 1, health_interval = \"1 ms\" }";
  const auto reaction = [](const std::string& what) {
    const std::string more = what == "migrate" ? " }] }" : " }], restart = \"2 ms\" }";
    return "faults={ detection = \"100 us\", reload = \"10 GB/s\", reaction = \"" + what +
           "\", events = [{ kind = \"gpu_loss\", gpu = \"gpu1\", step = 9" +
           (what == "migrate" ? ", lasts = 20" : "") + more;
  };
  const std::vector<std::vector<std::string>> layouts{
      {tight},
      {swap},
      {tight, "memory={ watermark = \"1 %\", watermark_action = \"preempt\" }"},
      {tight, "parallel.ep=4", pd},
      {tight, "parallel={ dp = 4, tp = 2, ep = 8, attention = \"tp\" }"},
      {tight, reaction("migrate")},
      {tight, reaction("restart")},
      {tight, "parallel.ep=4", pd, reaction("restart")},
      {tight, "parallel.ep=4", two, reaction("restart")},
      {tight, "parallel={ dp = 4, pp = 2, ep = 4, attention = \"pp\" }"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    const std::string shown = fmt::format("{}", fmt::join(layout, " "));
    const auto s = prefix_scenario(asked, layout);
    const MemoryRun r = run_in_memory(s, nullptr);
    for (const run::Violation& v : r.result.violations) {
      ADD_FAILURE() << shown << ": " << v.check << " " << v.where << ": " << v.message;
    }
    std::uint32_t found = 0;
    for (const run::RequestRecord& q : r.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished) << shown;
      found += q.cached_tokens;
    }
    EXPECT_GT(found, 0U) << shown;
  }
}

TEST(ServingScenario, PrefixCachingIsReadAndWhatMakesNoSenseRefused) {
  const auto write = [](const std::string& name, const std::string& rows) {
    switchyard::write_file(name, "arrival_ns,prompt_tokens,output_tokens,hash_ids\n" + rows);
    return "workload={ kind = \"trace\", routing = { synthetic = \"uniform\" }, arrivals = { file "
           "= "
           "\"" +
           std::filesystem::absolute(name).string() +
           "\", hash_block = 64 }, batching = { prefix_caching = true } }";
  };
  const std::string good = write("good.csv", "0,100,2,1 2\n5,64,2,1\n");
  const scenario::Scenario s = worked_scenario({good});
  EXPECT_TRUE(s.workload.serving.batching.prefix_caching);
  EXPECT_EQ(s.workload.serving.arrivals.hash_block, 64U);
  const auto expect = [](std::vector<std::string> settings, const std::string& part) {
    const std::string e = message_of([&] { (void)worked_scenario(std::move(settings)); });
    EXPECT_NE(e.find(part), std::string::npos) << e;
  };
  expect({write("few.csv", "0,100,2,1 2\n5,65,2,1\n")}, "few.csv:3: 1 hash_ids for a prompt of 65");
  expect({write("none.csv", "0,100,2,\n")}, "none.csv:2: 0 hash_ids");
  expect({write("word.csv", "0,100,2,1 x\n")},
         "word.csv:2: 0 hash_ids that are whole numbers >= 0 for a prompt of 100");
  std::string unused = write("word.csv", "0,100,2,1 x\n");
  unused = unused.substr(0, unused.find(", hash_block")) + " } }";
  EXPECT_TRUE(worked_scenario({unused}).workload.serving.arrivals.trace->hash_ids);
  expect({good, "workload.arrivals.hash_block=512"}, "good.csv:2: 2 hash_ids for a prompt of 100");
  expect({good, "workload.batching.prefix_caching=false"},
         "means nothing without workload.batching.prefix_caching");
  expect({good, "memory.kv={ placement = \"by_token\" }"}, "by_token");
  expect({good, "memory.kv={ block = 48 }"}, "48 tokens");
  // 800 values a token of 133 / 256 B each: blocks of 4 tokens have 1662.5 B.
  std::string model = switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                            "/tests/sim/data/worked_model.json");
  model.replace(model.find("\"head_dim\": 128"), 15, "\"head_dim\": 100");
  switchyard::write_file("odd.json", model);
  const std::vector<std::string> odd{
      write("one.csv", "0,4,2,1\n"), "model.file=" + std::filesystem::absolute("odd.json").string(),
      "model.dtype.kv=int4_g128", "memory.kv={ block = 4 }", "workload.arrivals.hash_block=4"};
  expect(odd, "the pages of blocks of 4 tokens do not add up to whole bytes");
  expect({open_workload("per_second = 1.0, requests = 1", "prompt = 1, output = 1",
                        ", batching = { prefix_caching = true }")},
         "needs a request trace with hash_ids");
}

TEST(ServingScenario, RefusesWhatMakesNoSense) {
  const std::string good = "per_second = 4.0, requests = 10", lengths = "prompt = 8, output = 2";
  const auto error = [](std::vector<std::string> settings) {
    return message_of([&] { (void)worked_scenario(std::move(settings)); });
  };
  const auto expect = [&](std::vector<std::string> settings, const std::string& part) {
    const std::string e = error(std::move(settings));
    EXPECT_NE(e.find(part), std::string::npos) << e;
  };
  expect({open_workload("per_second = 4.0", lengths)}, "requests is missing");
  expect({open_workload("per_second = -1.0, requests = 1", lengths)}, "0 < per_second");
  expect({open_workload("per_second = nan, requests = 1", lengths)}, "0 < per_second");
  expect({open_workload("per_second = 4.0, cv = 2.0, requests = 1", lengths)}, "means nothing");
  expect({open_workload(good, lengths, ", batch = 3")}, "means nothing when requests arrive");
  expect({open_workload(good, lengths, ", batching = { preemption = \"swap\" }")},
         "swap_bandwidth is missing: the hardware has no cpu");
  expect({"memory.watermark_action=preempt"}, "a fixed batch admits and preempts nobody");
  expect({open_workload(good, lengths, ", front_end = { replicas = 3 }")},
         "whole number of groups");
  expect({open_workload(good, lengths, ", front_end = { replicas = 1, prefill_replicas = 1 }")},
         "prefill_replicas < replicas");
  expect({open_workload(good, lengths, ", tiers = [{ name = \"a\", share = 0.4 }]")},
         "shares add up to 0.4");
  expect({open_workload(good, lengths), "memory.kv={ placement = \"replicated\" }"}, "unsupported");
  expect({"workload.slo.ttft=\"1 s\""}, "means nothing with kind = \"decode\"");
}

TEST(ServingScenario, AModelThatFillsTheMemoryIsAnError) {
  const std::string e = message_of([&] {
    run_in_memory(
        worked_scenario({open_workload("per_second = 4.0, requests = 10", "prompt = 8, output = 2",
                                       ", batching = { memory_share = \"0.001 %\" }")}),
        nullptr);
  });
  EXPECT_NE(e.find("for KV pages"), std::string::npos) << e;
}
