// SPDX-License-Identifier: Apache-2.0
// The table `router-precision`: margins and logit errors by hand; formats and batches by the
// engine.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/tokenizer.hpp"
#include "experiments/tables/router_precision.hpp"

namespace switchyard::tables {
namespace {

/// Two tokens, one layer, 2 of 4 experts.
ForcedRun by_hand() {
  ForcedRun run{1, 2, {0, 1, 3, 2}, 2 * std::log(8.0), 2};
  run.experts = 4;
  run.router_logits = {4, 3, 1, 0, -1, 0, 0.5F, 2};
  return run;
}

TEST(RouterPrecision, MarginsAreBetweenTheKthAndTheNext) {
  EXPECT_EQ(margins(by_hand()), (std::vector<float>{2, 0.5F}));  // 3 - 1, 0.5 - 0
}

TEST(RouterPrecision, LogitErrorIgnoresAShiftOfAll) {
  ForcedRun other = by_hand();
  for (float& z : other.router_logits) z += 7;
  EXPECT_DOUBLE_EQ(logit_error(by_hand(), other, false), 0);
  // +0.5 and -0.5 on two of eight logits: sqrt(2 x 0.25 / 8).
  other = by_hand();
  other.router_logits[0] += 0.5F;
  other.router_logits[1] -= 0.5F;
  EXPECT_DOUBLE_EQ(logit_error(by_hand(), other, false), 0.25);
  // Of two layers only the first counts: the first token's four logits.
  ForcedRun two = by_hand(), two_other = other;
  two.layers = two_other.layers = 2;
  EXPECT_DOUBLE_EQ(logit_error(two, two_other, true), std::sqrt(0.125));
  two_other = two;
  two_other.router_logits[5] += 1;
  EXPECT_DOUBLE_EQ(logit_error(two, two_other, true), 0);
}

TEST(RouterPrecision, ASetIsTheSameInAnyOrder) {
  ForcedRun other = by_hand();
  other.chosen = {1, 0, 3, 1};
  EXPECT_EQ(changed_sets(by_hand(), other), (std::vector<bool>{false, true}));
}

TEST(RouterPrecision, CoarserFormatsChangeMoreAndNarrowMarginsFirst) {
  const auto folder =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios" / "checkpoints" / "sy-16x2";
  const auto tokenizer = model::Tokenizer::load(folder);
  std::vector<std::vector<std::uint32_t>> texts;
  for (const char* text : {"A compiler reads a program and writes another one that a machine runs.",
                           "for (int i = 0; i < n; ++i) { sum += values[i]; } return sum / n;",
                           "What is the largest planet of the solar system, and how far is it?"}) {
    texts.push_back(tokenizer.encode(text));
  }
  const RouterPrecision run = run_router_precision(folder, texts, 1);
  ASSERT_EQ(run.formats.size(), 7U);
  std::vector<double> error;
  for (const RouterFormat& f : run.formats) {
    error.push_back(logit_error(run.formats[0].run, f.run, true));
  }
  EXPECT_EQ(error[0], 0);
  for (std::size_t i = 1; i < 7; ++i) EXPECT_GT(error[i] + (i == 2 ? 1e-9 : 0), 0) << i;
  EXPECT_LT(error[2], error[4]);  // FP16 < INT8
  EXPECT_LT(error[4], error[3]);  // INT8 < FP8 (3 bits of fraction)
  EXPECT_LT(error[3], error[6]);  // FP8 < INT4
  EXPECT_LT(error[5], error[6]);  // groups of 32 < of 128
  // By design the batch changes nothing, in either arithmetic.
  ASSERT_EQ(run.batches.size(), 8U);
  for (const auto& b : run.batches) {
    const auto& alone = run.batches[b.bf16 ? 4 : 0].run;
    EXPECT_EQ(b.run.router_logits, alone.router_logits) << b.texts;
    EXPECT_EQ(b.run.nll, alone.nll) << b.texts;
  }
  const auto tables = router_precision_tables(run);
  EXPECT_EQ(tables[0].rows[0][6], "100.000");
  EXPECT_EQ(tables[1].rows.size(), 10U);
  for (const auto& row : tables[2].rows) EXPECT_EQ(row[2], "0");
  // INT4: the narrowest tenth changes most.
  EXPECT_GT(std::stod(tables[1].rows[0].back()), std::stod(tables[1].rows[9].back()));
}

}  // namespace
}  // namespace switchyard::tables
