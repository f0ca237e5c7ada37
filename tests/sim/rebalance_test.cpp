// SPDX-License-Identifier: Apache-2.0
// Placements that follow the load during a run: when they change, what travels, what it costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/loop/placement_source.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

constexpr std::uint64_t kExpertBytes = 3ULL * 1024 * 2048 * 2;

/// Skewed routing on 4 ranks with 3 slots each; the first placement knows nothing of it.
MemoryRun moving_run(const std::string& rebalance, std::vector<std::string> settings = {}) {
  std::string csv = "layer,expert,load\n";
  for (int e = 0; e < 8; ++e) csv += "*," + std::to_string(e) + ",1\n";
  write_file("flat.csv", csv);
  settings.insert(
      settings.begin(),
      {R"(workload.routing={ synthetic = "lognormal", sigma = 1.5 })", "workload.batch=64",
       "workload.steps=8", "parallel.ep=8", "parallel.placement=\"eplb\"",
       R"(parallel.placement_options={ redundant = 8, loads = "./flat.csv" })"});
  if (!rebalance.empty()) settings.push_back("parallel.rebalance=" + rebalance);
  return run_in_memory(worked_scenario(std::move(settings)), nullptr);
}

std::vector<run::Event> actions(const MemoryRun& r) {
  std::vector<run::Event> out;
  for (const run::Event& e : r.data.events) {
    if (e.kind == run::EventKind::kPolicyAction) out.push_back(e);
  }
  return out;
}

std::int64_t migration_ps(const run::StepScalars& s) {
  return s.phase_ps[static_cast<std::size_t>(run::Phase::kCollective)];
}

}  // namespace

TEST(Rebalance, EvensOutTheLoadOnceAndPaysForTheWay) {
  const MemoryRun r =
      moving_run(R"({ signal = "load", threshold = 1.05, window = 2, cooldown = 100 })");
  EXPECT_TRUE(r.result.violations.empty());
  const std::vector<run::Event> events = actions(r);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].step, 2U);
  EXPECT_NE(events[0].text.find("rebalance: load "), std::string::npos) << events[0].text;
  const auto& steps = r.data.steps;
  EXPECT_LT((steps[2].imbalance + steps[3].imbalance), (steps[0].imbalance + steps[1].imbalance));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(migration_ps(steps[i]) > 0, i == 2) << "step " << i;
  }
  // Whole experts over links of 100 GB/s: n experts on the busiest link, then 2 us of latency.
  const std::int64_t expert_ps = static_cast<std::int64_t>(kExpertBytes) * 10;
  EXPECT_GE(migration_ps(steps[2]), expert_ps);
  EXPECT_EQ((migration_ps(steps[2]) - 2'000'000) % expert_ps, 0);
  EXPECT_EQ(static_cast<std::uint64_t>(events[0].value) % kExpertBytes, 0U);
  EXPECT_EQ(r.result.notes.back(),
            "the placement changed 1 time (events); the run's placement table is the first one");
}

TEST(Rebalance, AContiguousPlacementBecomesOneThatFollowsTheLoad) {
  const auto run = [](const char* placement, const char* to) {
    std::vector<std::string> set{R"(workload.routing={ synthetic = "lognormal", sigma = 1.5 })",
                                 "workload.batch=64", "workload.steps=8", "parallel.ep=4",
                                 std::string("parallel.placement=") + placement};
    if (to != nullptr) {
      set.push_back(
          std::string("parallel.rebalance={ signal = \"load\", threshold = 1.05, window = "
                      "2, cooldown = 100, to = \"") +
          to + "\" }");
    }
    const MemoryRun r = run_in_memory(worked_scenario(std::move(set)), nullptr);
    EXPECT_TRUE(r.result.violations.empty()) << placement;
    return r;
  };
  for (const char* placement : {"contiguous", "round_robin", "affinity"}) {
    const MemoryRun still = run(placement, nullptr);
    for (const char* to : {"eplb", "topology_hot"}) {
      const MemoryRun r = run(placement, to);
      ASSERT_EQ(actions(r).size(), 1U) << placement << to;
      EXPECT_GT(migration_ps(r.data.steps[2]), 0) << placement << to;
      EXPECT_LT(r.data.steps[7].imbalance, still.data.steps[7].imbalance) << placement << to;
    }
  }
}

TEST(Rebalance, MovesNothingBelowTheThreshold) {
  const MemoryRun still = moving_run("");
  for (const char* spec :
       {R"({ signal = "load", threshold = 8, window = 1 })",
        R"({ signal = "congestion", threshold = 1, window = 1 })", R"({ signal = "off" })"}) {
    const MemoryRun r = moving_run(spec);
    EXPECT_TRUE(actions(r).empty()) << spec;
    EXPECT_EQ(r.data.steps.back().end_ps, still.data.steps.back().end_ps);
  }
}

TEST(Rebalance, CongestionIsTheBusiestLinksShareOfTheStep) {
  const MemoryRun still = moving_run("");
  std::int64_t busiest = 0;
  for (std::size_t k = 0; k < still.data.inventory.links.size(); ++k) {
    busiest = std::max(busiest, still.data.links.busy_ps[k]);
  }
  const double share =
      static_cast<double>(busiest) /
      static_cast<double>(still.data.steps[0].end_ps - still.data.steps[0].start_ps);
  const auto spec = [&](double threshold) {
    return "{ signal = \"congestion\", threshold = " + std::to_string(threshold) +
           ", window = 1, cooldown = 100 }";
  };
  const std::vector<run::Event> below = actions(moving_run(spec(share * 0.9)));
  ASSERT_EQ(below.size(), 1U);
  EXPECT_EQ(below[0].step, 1U);
  const std::vector<run::Event> above = actions(moving_run(spec(share * 1.05)));
  EXPECT_TRUE(above.empty() || above[0].step > 1U);
}

TEST(Rebalance, WaitsForTheCooldown) {
  const std::vector<run::Event> events =
      actions(moving_run(R"({ signal = "load", threshold = 1, window = 1, cooldown = 3 })"));
  ASSERT_GE(events.size(), 2U);
  for (std::size_t i = 1; i < events.size(); ++i) {
    EXPECT_GE(events[i].step - events[i - 1].step, 3U);
  }
}

TEST(Rebalance, BothCopiesTakeMemoryWhileAnExpertMoves) {
  const MemoryRun still = moving_run("");
  const MemoryRun r =
      moving_run(R"({ signal = "load", threshold = 1.05, window = 2, cooldown = 100 })");
  const auto peak = [](const MemoryRun& run, std::size_t gpu) {
    return run.data.totals.gpu_memory[gpu * run::kMemoryCategories +
                                      static_cast<std::size_t>(run::MemoryCategory::kExperts)];
  };
  std::uint64_t more = 0;
  for (std::size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(peak(still, g), 2 * 2 * kExpertBytes);
    more += peak(r, g) - peak(still, g);
  }
  // Every arrival is held beside what it replaces.
  const run::Event e = actions(r).at(0);
  EXPECT_EQ(more % kExpertBytes, 0U);
  EXPECT_NE(e.text.find(std::to_string(more / kExpertBytes) + " copies of experts arrive"),
            std::string::npos)
      << e.text;
}

TEST(Migration, TakesACopyFromTheReceiversNodeAndNoneFromItself) {
  const auto s = worked_scenario();
  placement::Placement from{8, {placement::contiguous(8, 8)}}, to = from;
  to.rows[0][0] = {3, 3};  // leaves rank 0, arrives twice at rank 3: one transfer
  to.rows[0][1] = {1, 1};  // a second copy on its own rank: no link
  const Migration m = plan_migration(s, from, to, 10);
  EXPECT_EQ(m.copies, 2U * 3);  // two layers share the row
  EXPECT_EQ(m.arriving[3], 4U);
  EXPECT_EQ(m.arriving[1], 2U);
  EXPECT_EQ(m.leaving[0], 2U);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(m.bytes[i], i == 3 ? 20U : 0U) << i;
}

}  // namespace switchyard::sim
