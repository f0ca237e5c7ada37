// SPDX-License-Identifier: Apache-2.0
// The table `effective-parameters` (C45).
#include "experiments/tables/effective_parameters.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "engine/nn/perplexity.hpp"

namespace switchyard::tables {
namespace {

MaskRun by_hand() {
  MaskRun run;
  run.rows = {{1.0, {10, 10, 10}},
              {0.9, {10.1, 10.3, 10.2}},
              {0.5, {10.4, 10.6, 10.45}},
              {0.3, {10.5, 10.5, 10.6}},
              {0.1, {10.2, 14, 13}}};
  return run;
}

TEST(EffectiveParameters, TheShareIsTheSmallestBeforeFivePercent) {
  MaskRun run = by_hand();
  EXPECT_DOUBLE_EQ(run.rows[1].median(), 10.2);
  EXPECT_DOUBLE_EQ(effective_share(run), 0.5);  // at 0.3 the median is 10.5: not below
  run.rows[3].perplexity = {10.49, 10.6, 10.4};
  EXPECT_DOUBLE_EQ(effective_share(run), 0.3);
  run.rows[1].perplexity = {11, 11, 11};  // nothing below a share that already failed
  EXPECT_DOUBLE_EQ(effective_share(run), 1.0);
}

TEST(EffectiveParameters, VerdictsFollowTheMeasurementAndTheClaim) {
  auto claims = claims::claims_of("effective-parameters");
  const auto verdicts = [&](const MaskRun& run) {
    std::map<std::string, claims::Verdict> out;
    for (const auto& j : claims::judge(claims, measure_effective_parameters(run))) {
      out[j.claim.row] = j.verdict;
    }
    return out;
  };
  MaskRun run = by_hand();
  auto v = verdicts(run);
  EXPECT_EQ(v.at("C45a"), claims::Verdict::kContradicted);  // 50 %
  EXPECT_EQ(v.at("C45b"), claims::Verdict::kContradicted);  // + 30 %
  EXPECT_EQ(v.at("C45c"), claims::Verdict::kReproduced);
  EXPECT_EQ(v.at("C45d"), claims::Verdict::kContradicted);  // 3.6 B
  run.rows[3].perplexity = {10.2, 10.2, 10.2};
  EXPECT_EQ(verdicts(run).at("C45a"), claims::Verdict::kReproduced);  // 30 %
  run.rows[4].perplexity = {10.2, 10.2, 10.2};
  v = verdicts(run);
  EXPECT_EQ(v.at("C45a"), claims::Verdict::kContradicted);  // 10 %
  EXPECT_EQ(v.at("C45b"), claims::Verdict::kReproduced);
  for (auto& claim : claims) {
    if (claim.row == "C45d") {
      claim.value = 3.6;
    }
  }
  EXPECT_EQ(verdicts(run).at("C45d"), claims::Verdict::kReproduced);
}

TEST(EffectiveParameters, MaskingTheShippedCheckpointCostsMoreTheMoreIsMasked) {
  const auto folder =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios/checkpoints/sy-16x2";
  const Engine engine = Engine::load(folder, {.threads = 1});
  const std::vector<std::vector<std::uint32_t>> texts{{909, 993, 322, 265, 4052, 83, 1969, 300},
                                                      {3274, 328, 260, 1708, 3844, 803, 358}};
  const std::vector<double> kept{1.0, 0.5, 0.0};
  const MaskRun run = run_masks(engine, texts, kept, 2, 1);
  EXPECT_EQ(run.tokens, 13U);
  EXPECT_EQ(run.rows[0].perplexity[0], *perplexity(score_texts(engine, texts)));
  EXPECT_EQ(run.rows[0].perplexity[1], run.rows[0].perplexity[0]);
  EXPECT_NE(run.rows[1].perplexity[0], run.rows[1].perplexity[1]);  // another mask
  EXPECT_EQ(run.rows[2].perplexity[0], run.rows[2].perplexity[1]);  // nothing left of any expert
  EXPECT_GT(run.rows[1].median(), run.rows[0].median());
  EXPECT_GT(run.rows[2].median(), run.rows[1].median());
}

}  // namespace
}  // namespace switchyard::tables
