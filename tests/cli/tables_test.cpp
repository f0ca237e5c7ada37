// SPDX-License-Identifier: Apache-2.0
// Tables: the right values of claims.md, verdicts that change when the claim is flipped or our
// inputs are perturbed, and the verb.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/doctor.hpp"
#include "experiments/cli/table.hpp"
#include "experiments/tables/account.hpp"
#include "experiments/tables/batch_activation.hpp"
#include "experiments/tables/feedback.hpp"
#include "experiments/tables/fits.hpp"
#include "experiments/tables/mixed_fabric.hpp"
#include "tests/cli/process.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;
using claims::Claim;
using claims::Verdict;

fs::path scenarios() { return fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios"; }

Verdict verdict_of(const std::vector<claims::Judged>& judged, const std::string& row) {
  for (const auto& j : judged) {
    if (j.claim.row == row) {
      return j.verdict;
    }
  }
  throw InputError("test", "no row " + row);
}

Claim& edit(std::vector<Claim>& claims, const std::string& row) {
  const auto it =
      std::find_if(claims.begin(), claims.end(), [&](const Claim& c) { return c.row == row; });
  EXPECT_NE(it, claims.end()) << row;
  return *it;
}

class Account : public ::testing::Test {
 protected:
  AccountInputs inputs_ = account_inputs(scenarios());
  std::vector<Claim> claims_ = claims::claims_of("account");
  [[nodiscard]] claims::Measurements measure() const { return measure_account(inputs_, claims_); }
  [[nodiscard]] std::vector<claims::Judged> judge() const {
    return claims::judge(claims_, measure());
  }
};

TEST_F(Account, GivesTheRightValuesToTheLastDigitThatIsKnown) {
  const auto m = measure();
  const auto near = [&](const char* quantity, double right, double half_unit) {
    EXPECT_NEAR(m.value(quantity), right, half_unit * 1.001) << quantity;
  };
  near("total_fp16", 3.6, 1e-12);
  near("cards_188", 10, 1e-12);
  near("memory_8x188", 1504, 1e-9);
  near("kv_32k", 0.274878, 5e-7);
  near("kv_32k_printed", 0.137439, 5e-7);
  near("matrix", 1.53125, 1e-12);
  near("expert_16th", 225, 1e-9);
  near("expert_share", 207.7, 0.05);
  near("shared_share", 273.6, 0.05);
  near("share_experts", 93.14, 0.005);
  near("share_rest", 6.86, 0.005);
  near("router_bytes", 0.0339, 0.00005);
  near("attention", 196, 1e-9);
  near("norms", 0.0068, 0.00005);
  near("embedding", 3.5, 1e-12);
  near("all_to_all_buffer", 0.0273, 0.00005);
  near("routing_buffer", 4, 1e-12);
  near("items_sum", 31.2, 1e-9);
  near("items_right", 218.0, 0.05);
  near("items_total", 255.2, 1e-9);
  near("items_use", 91.1, 0.05);
  near("r1_wide", 5.60, 0.005);
  near("s2_narrow", 1.44, 0.005);
  near("s2_expert_fraction", 1.5625, 1e-12);
  near("r1_expert", 0.470, 0.0005);
  near("r1_attention", 0.268, 0.0005);
  near("r1_embedding", 0.927, 0.0005);
  near("s4_expert", 1.308622848, 1e-12);
  near("s4_layer", 20.937965568, 1e-12);
  near("s4_experts", 2.010044694528, 1e-12);
  near("s4_used", 251.26, 0.005);
  near("s4_layer_fraction", 0.145, 0.0005);
  near("s4_narrow", 13.96, 0.005);
}

TEST_F(Account, VerdictsFollow) {
  const auto judged = judge();
  for (const char* row : {"C01a", "C01b", "C01c", "C01d", "C03a", "C03b", "C03h", "C04a",
                          "C04d", "C05c", "C05d", "C05g", "C05h", "C05j", "C05k", "C05l",
                          "C35b", "C35d", "C51a", "C51b", "C51c", "C51d", "C51e", "C51g"}) {
    EXPECT_EQ(verdict_of(judged, row), Verdict::kReproduced) << row;
  }
  for (const char* row :
       {"C01e", "C02a", "C02b", "C03c", "C03e", "C04b", "C04c", "C04e", "C04f", "C05a", "C05b",
        "C05e", "C05f", "C05i", "C35a", "C35c", "C35e", "C35f", "C35g", "C51f", "C51h"}) {
    EXPECT_EQ(verdict_of(judged, row), Verdict::kContradicted) << row;
  }
}

TEST_F(Account, FlippingAClaimFlipsItsVerdict) {
  edit(claims_, "C02a").value = 0.275;
  edit(claims_, "C35a").value = 5.6;
  edit(claims_, "C01a").value = 36;
  const auto judged = judge();
  EXPECT_EQ(verdict_of(judged, "C02a"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C35a"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C01a"), Verdict::kContradicted);
}

TEST_F(Account, PerturbingOurModelsChangesTheVerdicts) {
  // 1.2 TB need 4.37 times the KV heads: 128 x 4.37 = 559.
  inputs_.models.at("gpt4_s0").num_kv_heads = 559;
  inputs_.models.at("gpt4_s0").vocab_size *= 2;
  inputs_.models.at("gpt4_s4").top_k = 4;
  inputs_.card_188 = 94'000'000'000;
  const auto judged = judge();
  EXPECT_EQ(verdict_of(judged, "C02a"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C05c"), Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judged, "C51d"), Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judged, "C01c"), Verdict::kContradicted);
}

TEST_F(Account, OneModelInTwoFormatsIsToldApart) {
  const auto formats = [](const Table& t, const std::string& model) {
    const auto at = [&](const char* column) {
      return static_cast<std::size_t>(std::find(t.columns.begin(), t.columns.end(), column) -
                                      t.columns.begin());
    };
    for (const auto& row : t.rows) {
      if (row.at(0) == model) return row.at(at("formats"));
    }
    return std::string("no such row");
  };
  EXPECT_EQ(formats(account_tables(inputs_, claims_)[0], "deepseek_r1"),
            "fp8 (file: embeddings, norms, head, router bf16)");
  const auto fits = fits_tables(fits_inputs(scenarios(), 0.92), claims::claims_of("fits"));
  EXPECT_EQ(formats(fits[0], "F05a"), "all fp8");
  EXPECT_EQ(formats(fits[0], "F04a"), "bf16");
}

TEST_F(Account, EveryMeasurementIsClaimedAndEveryRowIsPrinted) {
  std::set<std::string> asked;
  for (const Claim& c : claims_) {
    asked.insert(c.quantity);
  }
  const claims::Measurements measured = measure();
  for (const auto& [quantity, value] : measured.all()) {
    EXPECT_TRUE(asked.contains(quantity)) << quantity;
  }
  const auto tables = account_tables(inputs_, claims_);
  ASSERT_EQ(tables.size(), 4U);
  EXPECT_EQ(tables[2].rows.size(), claims_.size());
  std::size_t counted = 0;
  for (const auto& row : tables[3].rows) {
    counted += static_cast<std::size_t>(std::stoul(row[1]));
  }
  EXPECT_EQ(counted, claims_.size());
}

TEST(MixedFabric, RatiosAreThoseOfTheClosedForms) {
  // Ring: load S 15/2 on PCIe 32 or NVLink 300; hierarchical NVLink + NIC: 2 x 7/8 ... = 11.73 ms.
  const auto m = measure_mixed_fabric({});
  EXPECT_NEAR(m.value("ratio.fabric"), 300.0 / 32.0, 1e-6);
  EXPECT_NEAR(m.value("hierarchical.nvlink_nic"), 11.73, 0.005);
  EXPECT_NEAR(m.value("hierarchical.mixed_nic"), 24.24, 0.005);
  EXPECT_NEAR(m.value("ratio.both"), 120.0 / 11.73, 0.005);
  EXPECT_NEAR(m.value("ratio.nvlink"), 12.8 / 11.73, 0.001);
}

TEST(MixedFabric, VerdictsChangeWithTheClaimAndWithTheFabric) {
  auto claims = claims::claims_of("mixed-fabric");
  const auto before = claims::judge(claims, measure_mixed_fabric({}));
  EXPECT_EQ(verdict_of(before, "C21a"), Verdict::kDirection);
  EXPECT_EQ(verdict_of(before, "C21b"), Verdict::kDirection);
  edit(claims, "C21a").sign = claims::Sign::kDown;
  edit(claims, "C21b").value = 4.95;
  const auto flipped = claims::judge(claims, measure_mixed_fabric({}));
  EXPECT_EQ(verdict_of(flipped, "C21a"), Verdict::kContradicted);
  EXPECT_EQ(verdict_of(flipped, "C21b"), Verdict::kReproduced);
  // A NIC of 15 GB/s: 256 MB / 15 = 17.07 ms + 1.49 ms inside, ratio 120 / 18.6 = 6.5.
  network::FabricRates slow;
  slow.nic = {15e9};
  const auto perturbed =
      claims::judge(claims::claims_of("mixed-fabric"), measure_mixed_fabric(slow));
  EXPECT_EQ(verdict_of(perturbed, "C21a"), Verdict::kReproduced);
}

TEST(MixedFabric, PayloadsReachFromOneMegabyteToOneGigabyte) {
  const auto tables = mixed_fabric_tables({}, claims::claims_of("mixed-fabric"));
  EXPECT_EQ(tables[0].rows.size(), 7U * 4U);
  EXPECT_EQ(tables[0].rows.front()[0], "1");
  EXPECT_EQ(tables[0].rows.back()[0], "1000");
}

struct KnownFit {
  const char* row;
  double needs_gb, half_unit, has_gb;
  bool fits;
};

// F02a: 16 experts of 210.453 GB and 16 times the shared 248.076 GB (7335 with 248.0 in the
// specification, within its 2 %).
TEST(Fits, NeedsAreThoseOfTheSpecification) {
  const KnownFit known[] = {
      {"F01a", 3600, 0.5, 640, false},       {"F01b", 3600, 0.5, 1504, false},
      {"F02a", 7336.46, 0.005, 4480, false}, {"F02b", 3615, 0.5, 4480, true},
      {"F03a", 1200, 0.5, 640, false},       {"F04a", 114.8, 0.05, 160, true},
      {"F04b", 114.8, 0.05, 80, false},      {"F04c", 29.8, 0.05, 80, true},
      {"F05a", 671, 0.5, 320, false},        {"F05b", 335.5, 0.05, 320, false},
      {"F06a", 72, 0.5, 80, true},           {"F06b", 56, 0.5, 80, true},
      {"F07a", 32.8, 0.05, 320, true},       {"F07b", 812, 0.5, 320, false},
      {"F08a", 4141, 0.5, 1280, false},      {"F08b", 1126, 0.5, 1280, true},
  };
  ASSERT_EQ(recipes().size(), std::size(known));
  for (std::size_t i = 0; i < recipes().size(); ++i) {
    SCOPED_TRACE(known[i].row);
    ASSERT_EQ(recipes()[i].row, known[i].row);
    const Fit f = fit(recipes()[i], fits_inputs(scenarios(), 0.92));
    EXPECT_NEAR(f.needs / 1e9, known[i].needs_gb, known[i].half_unit * 1.001);
    EXPECT_NEAR(f.has() / 1e9, known[i].has_gb, 1e-9);
    EXPECT_EQ(f.fits(0.92), known[i].fits);
  }
}

std::string cell(const Table& t, const std::string& row, const std::string& column) {
  const auto c = std::find(t.columns.begin(), t.columns.end(), column) - t.columns.begin();
  for (const auto& r : t.rows) {
    if (r[0] == row) {
      return r.at(static_cast<std::size_t>(c));
    }
  }
  return "no such row";
}

TEST(Fits, TheWatermarkAndTheClaimDecide) {
  auto claims = claims::claims_of("fits");
  const auto at92 = fits_tables(fits_inputs(scenarios(), 0.92), claims);
  EXPECT_EQ(cell(at92[0], "F06a", "verdict"), "reproduced");  // 90 %
  EXPECT_EQ(cell(at92[0], "F05a", "verdict"), "contradicted");
  EXPECT_EQ(cell(at92[0], "F06b", "verdict"), "contradicted");  // claimed not to fit, and does
  EXPECT_EQ(cell(fits_tables(fits_inputs(scenarios(), 0.89), claims)[0], "F06a", "verdict"),
            "contradicted");
  Claim& flipped = edit(claims, "F05a");
  flipped.value = 0;
  flipped.printed = "no";
  EXPECT_EQ(cell(fits_tables(fits_inputs(scenarios(), 0.92), claims)[0], "F05a", "verdict"),
            "reproduced");
}

class Batch : public ::testing::Test {
 protected:
  Engine engine_ = Engine::load(fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/mixtral_tiny/f32",
                                {.threads = 1});
  std::vector<TokenPrompt> prompts_ = {{1, 2, 3}, {9, 8, 7, 6}, {20, 21}, {5}};
};

TEST_F(Batch, OneSequenceIsKnownByHand) {
  const BatchRow row = decode_batch(engine_, std::span(prompts_).first(1), 8);
  const double e = static_cast<double>(engine_.config().num_experts);
  const double k = static_cast<double>(engine_.config().top_k);
  EXPECT_EQ(row.steps, 8U);
  // One token touches exactly its k experts, each once.
  EXPECT_DOUBLE_EQ(row.rates.expert_fraction, k / e);
  EXPECT_DOUBLE_EQ(row.rates.touched_fraction, k / e);
  EXPECT_DOUBLE_EQ(row.rates.kept_fraction, k / e);
  EXPECT_TRUE(std::isnan(row.rates.slot_occupancy));
  EXPECT_NEAR(row.cv_step, std::sqrt(e / k - 1), 1e-12);
  EXPECT_NEAR(row.cv_step_floor, std::sqrt(e / k - 1), 1e-12);
  EXPECT_NEAR(row.entropy, std::log2(k) / std::log2(e), 1e-12);
  EXPECT_GE(row.index_variance, 0.25);  // two different ids
}

TEST_F(Batch, CopiesOfOnePromptRouteAsOne) {
  const std::vector<TokenPrompt> same(3, prompts_[1]);
  const BatchRow one = decode_batch(engine_, std::span(prompts_).subspan(1, 1), 6);
  const BatchRow three = decode_batch(engine_, same, 6);
  EXPECT_DOUBLE_EQ(three.rates.touched_fraction, one.rates.touched_fraction);
  EXPECT_NEAR(three.index_variance, one.index_variance, 1e-12);
  EXPECT_NEAR(three.cv_step, one.cv_step, 1e-12);
  EXPECT_LT(three.cv_step_floor, one.cv_step_floor);
}

TEST_F(Batch, VerdictsFollowTheMeasurement) {
  const std::uint32_t batches[] = {1, 4};
  BatchRun run = run_batches(engine_, prompts_, batches, 8);
  auto claims = claims::claims_of("batch-activation");
  auto judged = claims::judge(claims, measure_batch_activation(run, claims));
  EXPECT_EQ(verdict_of(judged, "C06a-expert_fraction@1"), Verdict::kNotDecided)
      << "constant over B";
  EXPECT_EQ(verdict_of(judged, "C06a-touched_fraction@4"), Verdict::kDirection);
  EXPECT_EQ(verdict_of(judged, "C06c@4"), Verdict::kReproduced);
  // Perturbed: had we measured what the article says, it would be reproduced; falling,
  // contradicted.
  run.distinct[0].rates.touched_fraction = 0.011;
  run.distinct[1].rates.touched_fraction = 0.014;
  judged = claims::judge(claims, measure_batch_activation(run, claims));
  EXPECT_EQ(verdict_of(judged, "C06a-touched_fraction@4"), Verdict::kReproduced);
  for (Claim& c : claims) {
    c.sign = c.sign == claims::Sign::kUp ? claims::Sign::kDown : c.sign;
  }
  judged = claims::judge(claims, measure_batch_activation(run, claims));
  EXPECT_EQ(verdict_of(judged, "C06a-touched_fraction@4"), Verdict::kContradicted);
  const auto tables = batch_activation_tables(run, claims);
  EXPECT_EQ(tables[0].rows.size(), 4U);
}

TEST(BatchOnTheShippedCheckpoint, TouchesMoreExpertsInLargerBatchesForAnyNumberOfThreads) {
  TableContext context;
  context.scenarios = scenarios();
  context.quick = true;
  context.threads = 1;
  const auto one = make_batch_activation(context);
  context.threads = 2;
  EXPECT_EQ(render_all(one, TableFormat::kText),
            render_all(make_batch_activation(context), TableFormat::kText));
  std::size_t direction = 0;
  for (const auto& row : one[1].rows) {
    if (row[3] == "touched_fraction") {
      EXPECT_EQ(row[8], "direction");
      ++direction;
    } else if (row[3] == "expert_fraction") {
      EXPECT_EQ(row[8], "not-decided");
    }
  }
  EXPECT_EQ(direction, 3U);
  std::set<std::string> ids;
  std::uint64_t without_sign = 0;
  for (const auto& row : one[1].rows) {
    EXPECT_TRUE(ids.insert(row[0]).second) << row[0] << " stands twice";
    if (row[7].ends_with("/ n/a")) {
      EXPECT_EQ(row[8], "not-decided") << row[0];
      ++without_sign;
    }
  }
  EXPECT_GE(without_sign, 3U) << "expert_fraction does not depend on the batch";
  EXPECT_EQ(one[2].columns.back(), "not-decided");
  EXPECT_EQ(one[2].rows[0].back(), std::to_string(without_sign));
  EXPECT_EQ(one[2].notes.size(), 1U);
}

/// Rows of a feedback table with the numbers that decide.
FeedbackRow feedback(std::vector<std::string> condition, double hot, double mean, double fraction,
                     double p99_std, double jitter) {
  FeedbackRow r;
  r.condition = std::move(condition);
  r.hot_gb = hot;
  r.mean_gb = mean;
  r.expert_fraction = fraction;
  r.p99_std_ms = p99_std;
  r.jitter_ms = jitter;
  return r;
}

TEST(Feedback, VerdictsFollowTheRuns) {
  FeedbackRun load;
  load.rows = {feedback({"by_expert", "none", "0"}, 240, 230, 0, 0, 0),
               feedback({"by_expert", "total", "0.8"}, 234, 230, 0, 0, 0),
               feedback({"by_expert", "elastic", "0.8"}, 238, 230, 0, 0, 0),
               feedback({"by_expert", "queue", "0"}, 236, 230, 0, 0, 0),
               feedback({"by_expert", "queue", "0.8"}, 237, 230, 0, 0, 0)};
  auto judged = claims::judge(claims::claims_of("load-aware"), measure_load_aware(load));
  EXPECT_EQ(verdict_of(judged, "C11a"), Verdict::kReproduced) << "4 of 10 GB are left";
  EXPECT_EQ(verdict_of(judged, "C11b"), Verdict::kDirection) << "8 of 10";
  EXPECT_EQ(verdict_of(judged, "C11c"), Verdict::kContradicted) << "more than the capacity alone";
  load.rows[0].hot_gb = 230;
  EXPECT_THROW((void)measure_load_aware(load), InputError) << "no hot GPU";
  load.rows.pop_back();
  load.rows[0].hot_gb = 240;
  EXPECT_THROW((void)measure_load_aware(load), InputError) << "a row is missing";

  FeedbackRun decode;
  for (const std::string kv : {"by_token", "by_expert"}) {
    decode.rows.push_back(feedback({kv, "off"}, 0, 0, 0, 40, 9));
    decode.rows.push_back(feedback({kv, "0.85"}, 0, 0, 0, 12, 8));
    decode.rows.push_back(feedback({kv, "0.80"}, 0, 0, 0, 12, 6));
  }
  judged = claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(decode));
  EXPECT_EQ(verdict_of(judged, "C15a@0"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C15a@85"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C15b@80"), Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judged, "C15c"), Verdict::kOutOfScope);
  EXPECT_EQ(verdict_of(judged, "C15d@85"), Verdict::kReproduced);
  decode.rows[1].p99_std_ms = 41;
  decode.rows[2].jitter_ms = 4;
  judged = claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(decode));
  EXPECT_EQ(verdict_of(judged, "C15a@85"), Verdict::kContradicted);
  EXPECT_EQ(verdict_of(judged, "C15b@80"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C15d@85"), Verdict::kReproduced) << "each place by itself";
  EXPECT_EQ(verdict_of(judged, "C15e@80"), Verdict::kContradicted);
  // Three seeds: the medians fall from 40 to 39, but one of them rises.
  FeedbackRun seeds;
  for (const std::string kv : {"by_token", "by_expert"}) {
    for (const auto& [off, on] : {std::pair{40.0, 39.0}, {30.0, 31.0}, {45.0, 44.0}}) {
      seeds.rows.push_back(feedback({kv, "off"}, 0, 0, 0, off, 9));
      seeds.rows.push_back(feedback({kv, "0.85"}, 0, 0, 0, on, 8));
      seeds.rows.push_back(feedback({kv, "0.80"}, 0, 0, 0, on, 6));
    }
  }
  judged = claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(seeds));
  EXPECT_EQ(verdict_of(judged, "C15a@85"), Verdict::kContradicted);
  seeds.rows[4].p99_std_ms = 29;
  judged = claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(seeds));
  EXPECT_EQ(verdict_of(judged, "C15a@85"), Verdict::kDirection) << "now every seed falls";

  FeedbackRun queue;
  queue.rows = {feedback({"none", "1.2"}, 0, 0, 0.125, 0, 0),
                feedback({"activate", "1.2"}, 0, 0, 0.18, 0, 0),
                feedback({"choose", "1.2"}, 0, 0, 0.125, 0, 0)};
  judged = claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(queue));
  EXPECT_EQ(verdict_of(judged, "C23a"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C23b"), Verdict::kDirection);
  EXPECT_EQ(verdict_of(judged, "C23c"), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(judged, "C23d"), Verdict::kContradicted);
  for (FeedbackRow& r : queue.rows) r.experts_per_token = 1;
  judged = claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(queue));
  EXPECT_NE(verdict_of(judged, "C23a"), Verdict::kReproduced) << "three of one are three times";
}

TEST(Feedback, SeedsGiveTheirMedianAndAnUnsettledRunIsNotJudged) {
  FeedbackRun queue;
  queue.columns = {"third expert", "load"};
  const std::vector<double> rises{1.1, 1.45, 2};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const std::string k3 : {"none", "activate", "choose"}) {
      FeedbackRow r = feedback({k3, "1.2"}, 0, 0, 0.125, 0, 0);
      r.seed = seed;
      if (k3 == "activate") r.expert_fraction *= rises[seed - 1];
      queue.rows.push_back(r);
    }
  }
  auto judged = claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(queue));
  EXPECT_EQ(verdict_of(judged, "C23c"), Verdict::kReproduced) << "1.45 is the median";
  auto tables = feedback_tables("queue-limits", queue, judged);
  ASSERT_EQ(tables[0].rows.size(), 3U) << "one line a condition";
  EXPECT_EQ(tables[0].rows[1][2], "18.12 (13.75 to 25)");
  EXPECT_EQ(tables[0].rows[1].back(), "yes");
  queue.rows[4].converged = false;  // activate, seed 2
  queue.rows[4].rounds = 5;
  judged = claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(queue));
  EXPECT_EQ(verdict_of(judged, "C23c"), Verdict::kNotDecided);
  EXPECT_EQ(verdict_of(judged, "C23a"), Verdict::kReproduced) << "arithmetic stays";
  tables = feedback_tables("queue-limits", queue, judged);
  EXPECT_EQ(tables[0].rows[1].back(), "no: not judged");
  EXPECT_EQ(tables[0].rows[0].back(), "yes");

  FeedbackRun decode;
  const double none = std::nan("");
  for (const std::string kv : {"by_token", "by_expert"}) {
    decode.rows.push_back(feedback({kv, "off"}, 0, 0, 0, none, 9));
    decode.rows.push_back(feedback({kv, "0.85"}, 0, 0, 0, none, 8));
    decode.rows.push_back(feedback({kv, "0.80"}, 0, 0, 0, none, 4));
  }
  judged = claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(decode));
  EXPECT_EQ(verdict_of(judged, "C15a@85"), Verdict::kNotDecided) << "shown, not left out";
  EXPECT_EQ(verdict_of(judged, "C15b@80"), Verdict::kReproduced);
}

TEST(Feedback, AQueueThatGrowsIsNotBounded) {
  // Ten a second for 60 s; each waits so long.
  const auto waits = [](auto&& wait_s) {
    std::vector<run::RequestRecord> out(600);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double t = static_cast<double>(i) / 10;
      out[i].arrival_ps = static_cast<std::int64_t>(t * 1e12);
      out[i].scheduled_ps = static_cast<std::int64_t>((t + wait_s(t)) * 1e12);
    }
    return out;
  };
  EXPECT_TRUE(queue_is_bounded(waits([](double) { return 3.0; }), 60));
  EXPECT_FALSE(queue_is_bounded(waits([](double t) { return 0.05 * t; }), 60));
  // 10 wait in the middle, 12 at the end.
  EXPECT_FALSE(queue_is_bounded(waits([](double t) { return 0.7 + 0.01 * t; }), 60));
  auto never = waits([](double) { return 0.0; });
  for (std::size_t i = 400; i < never.size(); ++i) never[i].scheduled_ps = -1;
  EXPECT_FALSE(queue_is_bounded(never, 60));
}

TEST(Feedback, SaturationIsBetweenARateThatHoldsAndOneThatDoesNot) {
  const auto below = [](double limit, std::vector<double>& asked) {
    return [limit, &asked](double rate) {
      asked.push_back(rate);
      return rate <= limit;
    };
  };
  // Ends are probed, and others sought where they are none.
  for (const double limit : {100.0, 150.0, 20.0, 60.0, 400.0}) {
    std::vector<double> asked;
    const Saturation s = saturation_rate(100, below(limit, asked));
    EXPECT_EQ(asked.front(), 60);
    EXPECT_LE(s.rate, limit);
    EXPECT_GT(s.beyond, limit);
    EXPECT_NE(std::find(asked.begin(), asked.end(), s.rate), asked.end()) << "probed";
    EXPECT_NE(std::find(asked.begin(), asked.end(), s.beyond), asked.end()) << "probed";
    EXPECT_LT(s.beyond - s.rate, 0.02 * limit + 2);
    EXPECT_EQ(s.probes, static_cast<int>(asked.size()));
  }
  std::vector<double> asked;
  EXPECT_THROW((void)saturation_rate(100, below(0, asked)), InputError);
  EXPECT_THROW((void)saturation_rate(100, below(1e9, asked)), InputError);
}

TEST(Feedback, TheShippedRouterUnderLoadIsCoupledAndSettles) {
  const auto tables = make_load_aware({scenarios(), true, 1});
  ASSERT_EQ(tables.size(), 3U);
  ASSERT_EQ(tables[0].rows.size(), 10U);
  const auto& columns = tables[0].columns;
  const auto at = [&](std::size_t row, const std::string& column) {
    const auto it = std::find(columns.begin(), columns.end(), column);
    return tables[0].rows[row][static_cast<std::size_t>(it - columns.begin())];
  };
  for (std::size_t row = 0; row < 10; ++row) EXPECT_EQ(at(row, "converged"), "yes") << row;
  // Without a policy, and by sequence where memory does not follow the routing: nothing flips.
  EXPECT_EQ(at(0, "flips per 1000 decisions"), "0");
  EXPECT_EQ(at(1, "flips per 1000 decisions"), "0");
  // By expert the penalty on memory carries a signal; the queue's is far larger.
  EXPECT_NE(at(7, "flips per 1000 decisions"), "0");
  EXPECT_GT(std::stod(at(9, "flips per 1000 decisions")),
            std::stod(at(7, "flips per 1000 decisions")));
  EXPECT_EQ(at(8, "lambda"), "0");
  EXPECT_LT(std::stod(at(9, "load_cv")), std::stod(at(8, "load_cv")));
}

TEST(TableVerb, EveryFormatPrintsTheVerdictsAndDecidedBy) {
  for (const std::string format : {"text", "md", "csv", "tex", "json"}) {
    const auto r = test::run_switchyard({"table", "fits", "mixed-fabric", "--format", format});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    for (const char* word :
         {"reproduced", "contradicted", "direction", "simulation", "arithmetic"}) {
      EXPECT_NE(r.out.find(word), std::string::npos) << format << " lacks " << word;
    }
    if (format == "json") {
      const auto json = nlohmann::json::parse(r.out);
      ASSERT_EQ(json.size(), 5U);
      EXPECT_EQ(json[0]["name"], "fits");
    }
  }
}

TEST(TableVerb, WritesOneFilePerTable) {
  const auto folder = test::fresh_folder("table_files");
  const auto r = test::run_switchyard(
      {"table", "fits", "account", "-o", (folder / "a" / "b").string(), "--quiet"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "");
  for (const char* file : {"fits.txt", "fits-verdicts.txt", "account.txt", "account-claims.txt"}) {
    EXPECT_TRUE(fs::is_regular_file(folder / "a" / "b" / file)) << file;
  }
}

TEST(TableVerb, RefusesWhatItCannotDo) {
  const auto refused = [](std::vector<std::string> arguments) {
    const auto r = test::run_switchyard(std::move(arguments));
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_EQ(r.out, "");
    return r.err;
  };
  EXPECT_NE(refused({"table", "acount"}).find("did you mean \"account\"?"), std::string::npos);
  EXPECT_NE(refused({"table"}).find("--list"), std::string::npos);
  EXPECT_NE(refused({"table", "fits", "--all"}).find("one or the other"), std::string::npos);
  EXPECT_NE(refused({"table", "fits", "--quiet"}).find("-o DIR"), std::string::npos);
  const auto r = test::run_switchyard(
      {"table", "fits"},
      {.folder = {}, .environment = {{"SWITCHYARD_SCENARIOS", "no/such/folder"}}});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("no/such/folder"), std::string::npos) << r.err;
}

TEST(TableVerb, ListNamesEveryTable) {
  const auto r = test::run_switchyard({"table", "--list"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const auto& entry : table_entries()) {
    EXPECT_NE(r.out.find(entry.name), std::string::npos);
  }
}

TEST(Doctor, ReportsPartsAndPackages) {
  const auto r = test::run_switchyard({"doctor", "--format", "json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto json = nlohmann::json::parse(r.out);
  const auto& rows = json.is_array() ? json[0]["rows"] : json["rows"];
  std::set<std::string> parts;
  for (const auto& row : rows) {
    parts.insert(row["part"].get<std::string>());
    EXPECT_TRUE(row["status"] == "ok" || row["status"] == "missing" ||
                row["status"] == "not built");
  }
  for (const char* part : {"CPU features", "cores", "memory", "CUDA device", "NCCL", "MPI",
                           "desktop app", "working folder", "checkpoint"}) {
    EXPECT_TRUE(parts.contains(part)) << part;
  }
}

}  // namespace
}  // namespace switchyard::tables
