// SPDX-License-Identifier: Apache-2.0
// Tables with the routing of real models: offload, placement.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "experiments/tables/offload.hpp"
#include "experiments/tables/placement_table.hpp"
#include "sim/placement/placement.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

const fs::path kScenarios = fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios";

ShortRuns quick() { return ShortRuns({kScenarios, true, 1}); }
ShortRuns whole() { return ShortRuns({kScenarios, false, 1}); }

const std::string& cell(const Table& t, std::size_t row, const std::string& column) {
  const auto it = std::find(t.columns.begin(), t.columns.end(), column);
  EXPECT_NE(it, t.columns.end()) << column;
  return t.rows.at(row).at(static_cast<std::size_t>(it - t.columns.begin()));
}
double number(const Table& t, std::size_t row, const std::string& column) {
  return std::stod(cell(t, row, column));
}

TEST(Offload, HostAndCopyMeetWhereTheArithmeticSays) {
  const HostRates host{100e9, 10e12};
  // 100 MB of 50 M weights: read in 1 ms; 100 M FLOPs a row: 10 us each.
  EXPECT_DOUBLE_EQ(host_expert_seconds(host, 1e8, 5e7, 1), 1e-3);
  EXPECT_DOUBLE_EQ(host_expert_seconds(host, 1e8, 5e7, 1000), 10e-3);
  // 25 GB/s: a copy takes 4 ms, the host as long for 400 rows.
  EXPECT_EQ(copy_wins_from(host, 1e8, 5e7, 25e9), 400);
  EXPECT_EQ(copy_wins_from(host, 1e8, 5e7, 200e9), 1) << "a link faster than the host's memory";
  const Table t = offload_host_table(kScenarios);
  ASSERT_EQ(t.rows.size(), 12U);
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    EXPECT_GT(number(t, row, "copy [ms]"), number(t, row, "host, 1 row [ms]"))
        << "PCIe is slower than eight channels of memory";
  }
  // Mixtral: 3 x 4096 x 14336 x 2 B = 352.3 MB at 26 GB/s.
  EXPECT_NEAR(number(t, 7, "copy [ms]"), 352.3 / 26, 0.01);
}

TEST(Offload, HitsAreThoseOfTheTraceAndTpotIsBytesOverPcie) {
  ShortRuns runs = whole();
  const auto excerpt = read_excerpt(kScenarios, "gpt_oss_20b");
  const Table t = offload_table(runs, excerpt.trace);
  ASSERT_EQ(t.rows.size(), 3U * 5 * 6);
  // simulation.md 6: hit rates of the first answer, LRU with 4, 8, 16 slots, one sequence.
  const auto at = [](std::size_t pcie, std::size_t slots, std::size_t batch) {
    return pcie * 30 + slots * 6 + batch;
  };
  EXPECT_NEAR(number(t, at(1, 0, 0), "hit rate [%]"), 45.76, 0.006);
  EXPECT_NEAR(number(t, at(1, 1, 0), "hit rate [%]"), 65.32, 0.006);
  EXPECT_NEAR(number(t, at(1, 2, 0), "hit rate [%]"), 88.38, 0.006);
  for (std::size_t pcie = 0; pcie < 3; ++pcie) {
    const double rate = number(t, at(pcie, 0, 0), "GB/s");
    for (std::size_t slots = 0; slots < 4; ++slots) {
      for (std::size_t batch = 0; batch < 6; ++batch) {
        const std::size_t row = at(pcie, slots, batch);
        // Missing experts travel one after another, 5 us and bytes / rate each, while a layer
        // waits: TPOT = that of resident experts + these.
        const double loads = number(t, row, "experts loaded a step") * 5e-3 +
                             1e3 * number(t, row, "loaded [GB/step]") / rate;
        EXPECT_NEAR(number(t, row, "TPOT [ms]"), number(t, at(pcie, 4, batch), "TPOT [ms]") + loads,
                    0.01 * loads + 0.01)
            << row;
        EXPECT_LE(number(t, row, "hit rate [%]"), number(t, row, "Belady [%]") + 0.01);
        if (slots > 0) {
          EXPECT_LE(number(t, row, "experts loaded a step"),
                    number(t, at(pcie, slots - 1, batch), "experts loaded a step"));
        }
      }
    }
    for (std::size_t slots = 0; slots < 4; ++slots) {
      for (std::size_t batch = 0; batch < 6; ++batch) {
        const std::size_t row = at(pcie, slots, batch);
        const double cpu = number(t, row, "CPU: TPOT [ms]");
        const double arithmetic = number(t, row, "CPU: by arithmetic [ms]");
        const double all = number(t, at(pcie, 4, batch), "TPOT [ms]");
        const double missed = number(t, row, "CPU: experts a step");
        // 13.24 MB (MXFP4) at 307.2 GB/s; few rows an expert, so reading decides.
        EXPECT_NEAR(arithmetic, all + missed * 13.24e-3 / 307.2 * 1e3, 0.002 * arithmetic) << row;
        // Simulated: the GPU has less to do meanwhile, rows take 5 us and little more each way in
        // each of 24 layers.
        EXPECT_LE(cpu, arithmetic + 24 * 2 * 0.006) << row;
        EXPECT_GE(cpu, arithmetic - all) << row;
        EXPECT_NEAR(number(t, row, "CPU: apart [%]"), 100 * (arithmetic / cpu - 1), 0.06) << row;
        EXPECT_LT(cpu, number(t, row, "TPOT [ms]")) << "307 GB/s of memory against PCIe";
        if (slots > 0) {
          EXPECT_LE(missed, number(t, at(pcie, slots - 1, batch), "CPU: experts a step"));
        }
      }
    }
    EXPECT_EQ(number(t, at(pcie, 4, 0), "over resident"), 1);
    EXPECT_EQ(cell(t, at(pcie, 4, 0), "CPU: TPOT [ms]"), "-");
    EXPECT_EQ(cell(t, at(pcie, 4, 0), "hit rate [%]"), "-");
  }
}

TEST(Placement, SomeSequencesAreThoseRows) {
  const RoutingTrace law = read_excerpt(kScenarios, "deepseek_v2_lite").trace;
  ASSERT_EQ(law.sequences.size(), 4U);
  const RoutingTrace part = some_sequences(law, 2, 2);
  ASSERT_EQ(part.sequences.size(), 2U);
  EXPECT_EQ(part.rows(), part.sequences[0].prompt_length + part.sequences[1].prompt_length);
  const PlacementSource a = source_of("", some_sequences(law, 0, 2));
  const PlacementSource b = source_of("", part);
  const PlacementSource all = source_of("", law);
  EXPECT_EQ(a.tokens + b.tokens, law.rows());
  for (std::size_t l = 0; l < all.load.size(); ++l) {
    EXPECT_EQ(std::accumulate(all.load[l].begin(), all.load[l].end(), 0.0),
              6.0 * static_cast<double>(law.rows()));
    EXPECT_EQ(std::accumulate(all.together[l].begin(), all.together[l].end(), 0.0),
              30.0 * static_cast<double>(law.rows()))
        << "six experts, five others each";
    for (std::size_t e = 0; e < 64; ++e) {
      EXPECT_EQ(a.load[l][e] + b.load[l][e], all.load[l][e]);
    }
  }
}

/// What the table's prefill sends to each expert: sequence b repeats prompt b mod 2 from row
/// 997 (b div 2) on (sim/loop/routing_source.hpp); of the 16 sequences of one copy of the experts.
std::vector<std::vector<double>> loads_of_copy(const RoutingTrace& trace, std::uint32_t copy,
                                               std::uint32_t tokens) {
  std::vector<std::vector<std::uint64_t>> rows(trace.sequences.size());
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    rows[trace.tokens.sequence[row]].push_back(row);
  }
  std::vector<std::vector<double>> load(trace.header.layer_count(), std::vector<double>(64, 0));
  for (std::uint32_t b = 0; b < 32; ++b) {
    if (b / 16 != copy) {
      continue;
    }
    const auto& own = rows[b % rows.size()];
    for (std::uint32_t i = 0; i < tokens; ++i) {
      const std::uint64_t row = own[(997 * (b / rows.size()) + i) % own.size()];
      for (std::uint32_t l = 0; l < load.size(); ++l) {
        for (std::uint32_t k = 0; k < 6; ++k) {
          load[l][trace.routing.candidates[trace.candidate_at(row, l, k)]] += 1;
        }
      }
    }
  }
  return load;
}

TEST(Placement, StalePlacementsPromiseMoreThanTheyKeep) {
  ShortRuns runs = quick();
  const Table t = placement_table(runs, kScenarios);
  ASSERT_EQ(t.rows.size(), 2U + 2 * 5);
  // contiguous by hand: the load of GPU r is that of experts 4r … 4r + 3. Both copies of the
  // experts are GPUs of one step: its imbalance is over all 32.
  const RoutingTrace eval =
      some_sequences(read_excerpt(kScenarios, "deepseek_v2_lite").trace, 2, 2);
  std::vector<std::vector<std::vector<double>>> copies;
  for (const std::uint32_t copy : {0U, 1U}) {
    copies.push_back(loads_of_copy(eval, copy, 128));
  }
  double mean = 0;
  for (std::size_t l = 0; l < 26; ++l) {
    std::vector<double> gpu;
    for (const auto& copy : copies) {
      const auto ranks = placement::rank_loads(placement::contiguous(64, 16), copy[l], 16);
      gpu.insert(gpu.end(), ranks.begin(), ranks.end());
    }
    mean += *std::max_element(gpu.begin(), gpu.end()) /
            (std::accumulate(gpu.begin(), gpu.end(), 0.0) / static_cast<double>(gpu.size())) / 26;
  }
  EXPECT_NEAR(number(t, 0, "imbalance"), mean, 6e-4);
  for (const std::size_t way : {2U, 7U}) {  // eplb, eplb with 32 replicas
    EXPECT_LT(number(t, way, "imbalance"), number(t, 0, "imbalance")) << "hindsight helps";
    for (std::size_t age = 1; age < 5; ++age) {
      EXPECT_GT(number(t, way + age, "imbalance"), number(t, way, "imbalance")) << age;
      EXPECT_GT(number(t, way + age, "imbalance"), number(t, way + age, "imbalance on what it saw"))
          << age;
    }
    EXPECT_LT(number(t, way + 3, "imbalance"), number(t, way + 4, "imbalance"))
        << "long window of the domain against that of another";
    EXPECT_EQ(number(t, way, "gain kept [%]"), 100);
  }
  EXPECT_EQ(number(t, 7, "slots a GPU"), 6);
  EXPECT_LT(number(t, 7, "imbalance"), number(t, 2, "imbalance")) << "replicas help";
}

}  // namespace
}  // namespace switchyard::tables
