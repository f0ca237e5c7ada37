// SPDX-License-Identifier: Apache-2.0
// Table top-k: shapes of equal FLOPs against closed forms of even routing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "experiments/tables/table_text.hpp"
#include "experiments/tables/top_k.hpp"

namespace switchyard::tables {
namespace {

ShortRuns quick() {
  return ShortRuns({std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios", true, 1});
}
constexpr const char* kEven = "routing = { synthetic = \"uniform\" }\n";
// deepseek_v2_lite: 26 MoE layers, hidden 2048, three matrices an expert, BF16.
constexpr double kLayers = 26, kHidden = 2048, kBytes = 2;

double number(const Table& t, std::size_t row, const std::string& column) {
  const auto it = std::find(t.columns.begin(), t.columns.end(), column);
  EXPECT_NE(it, t.columns.end()) << column;
  return std::stod(t.rows.at(row).at(static_cast<std::size_t>(it - t.columns.begin())));
}

/// Chance that none of k of E experts, drawn evenly without repetition, is among E/8.
double none_of_an_eighth(double experts, double k) {
  double none = 1;
  for (double i = 0; i < k; ++i) {
    none *= (experts * 7 / 8 - i) / (experts - i);
  }
  return none;
}

TEST(TopK, ShapesAreEqualInFlopsAndEvenRoutingGivesTheClosedForms) {
  ShortRuns runs = quick();
  constexpr double kTokens = 64;
  std::vector<ExpertShape> shapes(kSharedShapes.begin(), kSharedShapes.end());
  shapes.insert(shapes.end(), kGrainShapes.begin(), kGrainShapes.end());
  ASSERT_EQ(shapes.size(), 7U);
  for (const ExpertShape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.experts << " " << s.top_k << " + " << s.shared);
    const ShapePoint p = measure_shape(runs, s, 64, kEven);
    const auto experts = static_cast<double>(s.experts);
    const auto k = static_cast<double>(s.top_k);
    // Eight experts of 3 x 2048 x 1408 weights, two FLOPs each.
    EXPECT_EQ(p.ffn_flops, 2 * kLayers * 8 * 3 * kHidden * 1408);
    EXPECT_EQ(p.expert_bytes, kBytes * kLayers * 64 * 3 * kHidden * 1408);
    EXPECT_EQ(p.shared_bytes,
              kBytes * kLayers * static_cast<double>(s.shared) * 3 * kHidden * 1408);
    const double distinct = experts * (1 - std::pow(1 - k / experts, kTokens));
    EXPECT_NEAR(p.distinct_experts, distinct, 0.01 * distinct);
    // Of seven other GPUs, to each with one expert or more: one row there and one back.
    const double sent = kLayers * 7 * (1 - none_of_an_eighth(experts, k)) * 2 * kHidden * kBytes;
    EXPECT_NEAR(p.sent_per_token, sent, 0.01 * sent);
    // The router of E columns in each MoE layer is all that tells the shapes' FLOPs apart.
    const ShapePoint own = measure_shape(runs, kOwnShape, 64, kEven);
    EXPECT_EQ(p.flops - own.flops, 2 * kLayers * kHidden * (experts - 64));
  }
}

TEST(TopK, EveryGpuReadsTheSharedExpertsOnceALayer) {
  ShortRuns runs = quick();
  const ShapePoint none = measure_shape(runs, {.shared = 0}, 64, kEven);
  const ShapePoint two = measure_shape(runs, {.shared = 2}, 64, kEven);
  EXPECT_EQ(none.distinct_experts, two.distinct_experts) << "the same draws";
  EXPECT_EQ(none.sent_per_token, two.sent_per_token);
  EXPECT_EQ(none.expert_bytes, two.expert_bytes);
  // Eight tokens a GPU: their activations are 1 % of the weights at most.
  EXPECT_GE(two.hbm_bytes - none.hbm_bytes, 8 * two.shared_bytes);
  EXPECT_LE(two.hbm_bytes - none.hbm_bytes, 8 * 1.01 * two.shared_bytes);
  EXPECT_GT(two.dense, none.dense) << "they outlast the dispatch of 64 tokens";
  EXPECT_GT(two.tpot_s, none.tpot_s);
}

TEST(TopK, TableReadsItsOwnRows) {
  ShortRuns runs = quick();
  const Table t = top_k_table(runs);
  ASSERT_EQ(t.rows.size(), 7U);
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    EXPECT_EQ(t.rows[row].size(), t.columns.size());
    EXPECT_EQ(number(t, row, "expert GFLOP/token"), 3.5987);
    EXPECT_NEAR(number(t, row, "over the model's own"),
                number(t, row, "TPOT [ms]") / number(t, 2, "TPOT [ms]"), 0.001);
    EXPECT_LE(number(t, row, "distinct experts per GPU and layer"), number(t, row, "E") / 8);
    EXPECT_GE(number(t, row, "imbalance"), 1);
  }
  EXPECT_EQ(t.rows[2], [&] {
    auto same = t.rows[5];
    same[0] = t.rows[2][0];
    return same;
  }()) << "the model's own shape stands in both sweeps";
  // A drawn law sends to no more GPUs than the even one of the same k.
  EXPECT_LT(number(t, 3, "sent [kB/token]"), number(t, 0, "sent [kB/token]"));
  EXPECT_LT(number(t, 4, "sent [kB/token]"), number(t, 6, "sent [kB/token]"));
  const auto ratio = [&](std::size_t to, std::size_t from) {
    return fmt::format("TPOT x {:.2f}", number(t, to, "TPOT [ms]") / number(t, from, "TPOT [ms]"));
  };
  EXPECT_NE(t.notes.front().find(ratio(3, 0)), std::string::npos) << t.notes.front();
  EXPECT_NE(t.notes.front().find(ratio(6, 4)), std::string::npos) << t.notes.front();
}

}  // namespace
}  // namespace switchyard::tables
