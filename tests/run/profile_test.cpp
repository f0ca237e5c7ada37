// SPDX-License-Identifier: Apache-2.0
// inspect --profile on the run that can be checked by hand: 8 steps of 100 us, the first two are
// warm-up.
#include "experiments/cli/inspect_profile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/run/sample_run.hpp"

namespace switchyard::run {
namespace {

RunData eight_steps(Detail detail) {
  RunData run = make_run(testing::sample_meta(detail), testing::sample_inventory());
  for (std::uint32_t s = 0; s < 8; ++s) {
    append_step(run, testing::sample_step(run.inventory, s));
  }
  return run;
}

using Cells = std::vector<std::string>;

Cells row_of(const Table& table, const std::string& name) {
  for (const auto& row : table.rows) {
    if (row[0] == name) return row;
  }
  return {"no row " + name};
}

TEST(InspectProfile, MatchesAHandCalculation) {
  const auto tables = cli::profile_tables(eight_steps(Detail::kLayers));
  ASSERT_EQ(tables.size(), 4U);
  // 6 steps: 30 us each; GPU 1 computes 10 us less and waits. 2 x 600 us of GPU time.
  EXPECT_EQ(row_of(tables[0], "attention"),
            (Cells{"attention", "0.1800", "30.00", "0.3600", "30.00"}));
  EXPECT_EQ(row_of(tables[0], "expert"), (Cells{"expert", "0.1800", "30.00", "0.3000", "25.00"}));
  EXPECT_EQ(row_of(tables[0], "wait"), (Cells{"wait", "0.0000", "0.00", "0.0600", "5.00"}));
  // 6 x 50 kB over 2 x 600 us; peak 1 GB/s each.
  EXPECT_EQ(row_of(tables[1], "HBM read and written, per GPU")[1], "0.2500");
  EXPECT_EQ(row_of(tables[1], "of the peak")[1], "25.0000");
  EXPECT_EQ(row_of(tables[1], "communication share of the step time")[1], "20.0000");
  EXPECT_EQ(row_of(tables[1], "of it collectives")[1], "0.0000");
  EXPECT_EQ(row_of(tables[1], "kernels launched per step, all GPUs")[1], "20.0000");
  EXPECT_EQ(row_of(tables[1], "GPU time per kernel")[1], "10.0000");
  // Attention and expert 15 us in both layers, router 2 and 3, dispatch and combine 5.
  EXPECT_EQ(tables[2].rows, (std::vector<Cells>{{"1.024 to 2.048", "0", "6", "0", "0", "0"},
                                                {"2.048 to 4.096", "0", "6", "0", "0", "0"},
                                                {"4.096 to 8.192", "0", "0", "12", "0", "12"},
                                                {"8.192 to 16.384", "12", "0", "0", "12", "0"}}));
  // 4000 B of 7000 a step.
  ASSERT_EQ(tables[3].rows.size(), 4U);
  EXPECT_EQ(tables[3].rows[0],
            (Cells{"GPU pair", "gpu0", "gpu1", "0.0240", "57.14", "0.0400", "n/a"}));
  EXPECT_EQ(tables[3].rows[2],
            (Cells{"link", "gpu0", "gpu1", "0.0240", "57.14", "0.0400", "4.00"}));
}

TEST(InspectProfile, RatesAreOverTheSpanWhenReplicasStepBesideEachOther) {
  // The same steps by two engines, each on one GPU, at the same time: half the span, twice the rate.
  RunData run = eight_steps(Detail::kSteps);
  const std::int64_t half = (run.steps[4].start_ps - run.steps[0].start_ps);
  for (std::size_t s = 0; s < run.steps.size(); ++s) {
    run.steps[s].warmup = false;
    run.steps[s].engine = s < 4 ? 0 : 1;
    if (s >= 4) {
      run.steps[s].start_ps -= half;
      run.steps[s].end_ps -= half;
    }
  }
  const auto tables = cli::profile_tables(run);
  const double span = static_cast<double>(run.steps[3].end_ps - run.steps[0].start_ps) * 1e-12;
  double bytes = 0;
  for (const auto& s : run.steps) bytes += static_cast<double>(s.hbm_bytes);
  EXPECT_EQ(row_of(tables[1], "HBM read and written, per GPU")[1],
            fmt::format("{:.4f}", bytes / (2 * span) * 1e-9));
  // All that the GPUs did is all of their time.
  double share = 0;
  for (const auto& row : tables[0].rows) share += std::stod(row[4]);
  EXPECT_NEAR(share, 100, 0.1);
}

TEST(InspectProfile, SaysWhatARunDoesNotHold) {
  RunData run = eight_steps(Detail::kSteps);
  run.inventory.gpus[1].hbm = {};
  const auto tables = cli::profile_tables(run);
  EXPECT_EQ(row_of(tables[1], "of the peak")[1], "n/a");
  EXPECT_TRUE(tables[2].rows.empty());
  EXPECT_EQ(tables[2].notes.front(), "n/a: needs run.detail = \"layers\", this run has \"steps\"");
  const auto none = cli::profile_tables(
      make_run(testing::sample_meta(Detail::kLayers), testing::sample_inventory()));
  EXPECT_EQ(row_of(none[0], "expert"), (Cells{"expert", "n/a", "n/a", "n/a", "n/a"}));
  EXPECT_EQ(row_of(none[1], "communication share of the step time")[1], "n/a");
  EXPECT_TRUE(none[3].rows.empty());
}

}  // namespace
}  // namespace switchyard::run
