// SPDX-License-Identifier: Apache-2.0
// The table `simulators`: published figures give the published errors, ours follow from what
// `validate` computes.
#include <gtest/gtest.h>

#include <algorithm>

#include "experiments/tables/simulators.hpp"

namespace switchyard::tables {
namespace {

const SimulatorRow& row(const std::vector<SimulatorRow>& rows, const std::string& quantity,
                        const std::string& simulator) {
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const SimulatorRow& r) {
    return r.quantity == quantity && r.simulator == simulator;
  });
  EXPECT_NE(it, rows.end()) << quantity << " " << simulator;
  return *it;
}

TEST(Simulators, PublishedFiguresGiveTheirPublishedErrors) {
  validation::VllmCase ours =
      validation::run_vllm_case(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios" /
                                "validation" / "rtx_pro_6000_qwen3_30b");
  const auto rows = vllm_rows(ours);
  ASSERT_EQ(rows.size(), 30U);
  // casys-kaist/LLMServingSim, validation/summary.txt prints these in %.
  struct Error {
    const char* quantity;
    double percent;
  };
  for (const Error& e : {Error{"TTFT mean [ms]", -13.6},
                         {"TTFT p90 [ms]", -10.9},
                         {"TTFT p99 [ms]", -1.0},
                         {"TPOT mean [ms]", -1.7},
                         {"TPOT p95 [ms]", -0.8},
                         {"latency mean [ms]", -2.2},
                         {"latency p99 [ms]", -1.8}}) {
    // Its TPOT is printed to 0.1 of 50 ms: 0.2 %; the others' rounding is far below 0.05.
    const double rounding = std::string(e.quantity).starts_with("TPOT") ? 0.2 : 0.06;
    EXPECT_NEAR(100 * row(rows, e.quantity, "LLMServingSim").error(), e.percent, rounding)
        << e.quantity;
  }
  // simulation.md section 6.
  EXPECT_LT(std::abs(row(rows, "TTFT mean [ms]", "ours").error()), 0.10);
  EXPECT_LT(std::abs(row(rows, "TPOT mean [ms]", "ours").error()), 0.02);
  EXPECT_LT(std::abs(row(rows, "latency mean [ms]", "ours").error()), 0.02);
  // Every simulated time doubled: errors of ours double and more, the others' stay.
  for (auto& t : ours.simulated) t.ttft_ms *= 2;
  const auto doubled = vllm_rows(ours);
  EXPECT_GT(row(doubled, "TTFT mean [ms]", "ours").error(), 0.8);
  EXPECT_EQ(row(doubled, "TTFT mean [ms]", "LLMServingSim").error(),
            row(rows, "TTFT mean [ms]", "LLMServingSim").error());
}

TEST(Simulators, InferSimBesideOursAndSummary) {
  validation::Throughput prefill;
  prefill.phase = "prefill";
  prefill.simulated = 7839 * 1.1;
  const auto rows = infersim_rows({prefill});
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_NEAR(100 * rows[1].error(), 15.2, 0.05);  // 9034 / 7839
  EXPECT_NEAR(100 * rows[3].error(), 15.1, 0.05);  // 2675 / 2324
  EXPECT_NEAR(rows[0].error(), 0.1, 1e-12);
  EXPECT_FALSE(rows[2].simulated);
  EXPECT_NE(rows[2].source.find("--quick"), std::string::npos);
  EXPECT_NE(rows[4].source.find("H20"), std::string::npos);
  const auto tables = simulators_tables(rows);
  ASSERT_EQ(tables[1].rows.size(), 3U);  // ours and InferSim on V3, InferSim on Qwen3
  EXPECT_EQ(tables[1].rows[0][3], "10.0");
  EXPECT_EQ(tables[1].rows[1][6], "prefill [tokens/s/GPU]");
}

}  // namespace
}  // namespace switchyard::tables
