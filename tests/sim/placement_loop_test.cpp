// SPDX-License-Identifier: Apache-2.0
// Placements inside the simulation: loads counted from the routing, copies of experts, and who
// serves an assignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/placement_source.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::decode_trace;
using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

constexpr const char* kSkewed = R"(workload.routing={ synthetic = "lognormal", sigma = 1.5 })";

MemoryRun skewed_run(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {kSkewed, "workload.batch=64", "workload.steps=4"});
  return run_in_memory(worked_scenario(std::move(settings)), nullptr);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

double mean_imbalance(const MemoryRun& r) {
  double sum = 0;
  for (const run::StepScalars& s : r.data.steps) sum += s.imbalance;
  return sum / static_cast<double>(r.data.steps.size());
}

}  // namespace

TEST(PlacedRun, EplbEvensOutWhatContiguousLeavesUneven) {
  const MemoryRun contiguous = skewed_run({"parallel.ep=4"});
  const MemoryRun packed = skewed_run({"parallel.ep=4", "parallel.placement=\"eplb\"",
                                       "parallel.placement_options={ profile_steps = 4 }"});
  const MemoryRun copied =
      skewed_run({"parallel.ep=4", "parallel.placement=\"eplb\"",
                  "parallel.placement_options={ redundant = 8, profile_steps = 4 }"});
  for (const MemoryRun* r : {&contiguous, &packed, &copied}) {
    EXPECT_TRUE(r->result.violations.empty());
    EXPECT_EQ(r->data.totals.expert_kept, contiguous.data.totals.expert_kept);
  }
  EXPECT_LT(mean_imbalance(packed), mean_imbalance(contiguous));
  EXPECT_LT(mean_imbalance(copied), mean_imbalance(packed));
  EXPECT_GT(copied.data.inventory.replicas, packed.data.inventory.replicas);
}

TEST(PlacedRun, EveryCopyTakesMemoryOfItsGpu) {
  const auto experts_bytes = [](const MemoryRun& r) {
    std::uint64_t sum = 0;
    for (std::size_t g = 0; g < 8; ++g) {
      sum += r.data.totals.gpu_memory[g * run::kMemoryCategories +
                                     static_cast<std::size_t>(run::MemoryCategory::kExperts)];
    }
    return sum;
  };
  const std::uint64_t one = experts_bytes(skewed_run({}));
  const std::uint64_t two = experts_bytes(skewed_run(
      {"parallel.placement=\"replicated\"", "parallel.placement_options={ redundant = 8 }"}));
  EXPECT_GT(one, 0U);
  EXPECT_EQ(two, 2 * one);
}

TEST(PlacedRun, WhatNeedsNoLinkSendsNothingWhenEveryGpuHoldsEveryExpert) {
  const MemoryRun r =
      skewed_run({"parallel.placement=\"replicated\"",
                  "parallel.placement_options={ redundant = 56, choice = \"nearest\" }"});
  EXPECT_TRUE(r.result.violations.empty());
  EXPECT_EQ(r.data.totals.bytes_sent, 0U);
  const MemoryRun hashed = skewed_run(
      {"parallel.placement=\"replicated\"", "parallel.placement_options={ redundant = 56 }"});
  EXPECT_GT(hashed.data.totals.bytes_sent, 0U);
  EXPECT_TRUE(hashed.result.violations.empty());
}

TEST(PlacedRun, ChoicesDifferAndEachIsTheSameEveryTime) {
  std::vector<std::vector<std::uint64_t>> sent;
  for (const char* choice : {"hash", "round_robin", "nearest", "least_loaded"}) {
    const std::vector<std::string> settings{
        "parallel.placement=\"replicated\"",
        std::string("parallel.placement_options={ redundant = 16, choice = \"") + choice + "\" }"};
    const MemoryRun a = skewed_run(settings);
    EXPECT_TRUE(a.result.violations.empty()) << choice;
    EXPECT_EQ(a.data.totals.pair_bytes, skewed_run(settings).data.totals.pair_bytes);
    sent.push_back(a.data.totals.pair_bytes);
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(sent[i], sent[j]) << i << ", " << j;
  }
}

TEST(PlacedRun, RoundRobinAndLeastLoadedSplitAHotExpertEvenly) {
  // Four tokens choose expert 0; its copies are on ranks 0 and 5.
  std::string csv = "layer,expert,rank\n*,0,0\n*,0,5\n";
  for (int e = 1; e < 8; ++e) csv += "*," + std::to_string(e) + "," + std::to_string(e) + "\n";
  write_file("copies.csv", csv);
  const auto trace =
      decode_trace({{{0, 1}, {0, 2}, {0, 3}, {0, 4}}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}}, 8);
  for (const char* choice : {"round_robin", "least_loaded"}) {
    const auto s = worked_scenario(
        {"parallel.placement=\"./copies.csv\"",
         std::string("parallel.placement_options={ choice = \"") + choice + "\" }"});
    const placement::Placement placed = resolve_placement(s, &trace);
    ASSERT_EQ(placed.rows.size(), 1U);
    EXPECT_EQ(placed.rows[0][0], (std::vector<std::uint32_t>{0, 5}));
    const MemoryRun r = run_in_memory(s, &trace);
    EXPECT_TRUE(r.result.violations.empty());
    // Busiest GPU: 2 of 8 assignments; with one copy of expert 0 it has 4.
    EXPECT_EQ(r.data.layer_steps.imbalance[0], 2.0) << choice;
    EXPECT_EQ(run_in_memory(worked_scenario(), &trace).data.layer_steps.imbalance[0], 4.0);
    EXPECT_EQ(r.data.inventory.replicas, 2U);
    EXPECT_EQ(r.data.inventory.placement[1], 5U);
    EXPECT_EQ(r.data.inventory.placement[3], run::kNone);
  }
}

TEST(PlacedRun, CopiesThatShareAGpuAreReported) {
  std::string csv = "layer,expert,rank\n*,3,3\n";
  for (int e = 0; e < 8; ++e) csv += "*," + std::to_string(e) + "," + std::to_string(e) + "\n";
  write_file("twice.csv", csv);
  const MemoryRun r = skewed_run({"parallel.placement=\"./twice.csv\""});
  EXPECT_TRUE(r.result.violations.empty());
  ASSERT_EQ(r.result.notes.size(), 1U);
  EXPECT_EQ(r.result.notes[0],
            "placement: 1 copy of an expert on a rank that has one already (first: expert 3 of row "
            "0, 2 copies on rank 3): memory without effect");
}

TEST(PlacedRun, AffinityKeepsPairsTogetherAndSendsLess) {
  // Pairs 0-4, 1-5, 2-6, 3-7 on 4 ranks: contiguous parts every one of them.
  const std::vector<std::vector<std::uint16_t>> pairs{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  const auto trace = decode_trace({pairs, pairs}, 8);
  const std::vector<std::string> base{"parallel.ep=4"};
  const MemoryRun contiguous = run_in_memory(worked_scenario(base), &trace);
  const MemoryRun together =
      run_in_memory(worked_scenario({"parallel.ep=4", "parallel.placement=\"affinity\"",
                                     "parallel.placement_options={ profile_steps = 1 }"}),
                    &trace);
  EXPECT_TRUE(together.result.violations.empty());
  EXPECT_LT(together.data.totals.bytes_sent, contiguous.data.totals.bytes_sent);
  const auto& place = together.data.inventory.placement;  // two EP groups
  for (std::size_t e = 0; e < 4; ++e) EXPECT_EQ(place[2 * e], place[2 * (e + 4)]);
}

TEST(PlacedRun, LoadsOfAFileDecide) {
  std::string csv = "layer,expert,load\n";
  for (int e = 0; e < 8; ++e) csv += "*," + std::to_string(e) + "," + (e < 2 ? "50" : "1") + "\n";
  write_file("loads.csv", csv);
  const auto s = worked_scenario({kSkewed, "parallel.ep=2", "parallel.placement=\"topology_hot\"",
                                  "parallel.placement_options={ loads = \"./loads.csv\" }"});
  const placement::Placement p = resolve_placement(s, nullptr);
  ASSERT_EQ(p.rows.size(), 1U);
  EXPECT_EQ(p.rows[0], (placement::Row{{0}, {1}, {0}, {1}, {0}, {1}, {0}, {1}}));
}

TEST(PlacedRun, GroupsByPlacementRefuseCopies) {
  EXPECT_NE(message_of([] {
              skewed_run({"parallel.ep=2", "parallel.placement=\"replicated\"",
                          "parallel.placement_options={ redundant = 2 }",
                          "policy.groups={ by = \"placement\" }"});
            }).find("policy.groups: by = \"placement\" with several copies"),
            std::string::npos);
}

}  // namespace switchyard::sim
