// SPDX-License-Identifier: Apache-2.0
// Table `arithmetic`: right values, verdicts, and that each verdict follows the claim and the
// inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/error.hpp"
#include "experiments/tables/arithmetic.hpp"
#include "experiments/tables/conflicts.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;
using claims::Claim;
using claims::Verdict;

class Arithmetic : public ::testing::Test {
 protected:
  ArithmeticInputs inputs_ = arithmetic_inputs(fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios");
  std::vector<Claim> claims_ = claims::claims_of("arithmetic");
  [[nodiscard]] claims::Measurements measure() const {
    return measure_arithmetic(inputs_, claims_);
  }
  [[nodiscard]] std::vector<claims::Judged> judge() const {
    return claims::judge(claims_, measure());
  }
  [[nodiscard]] std::map<std::string, Verdict> verdicts() const {
    std::map<std::string, Verdict> out;
    for (const auto& j : judge()) {
      out[j.claim.row] = j.verdict;
    }
    return out;
  }
};

struct Known {
  const char* quantity;
  double right, half_unit;
};

// Each by hand, with the arithmetic of the specification where it gives it.
constexpr Known kKnown[] = {
    {"c07.complaints", 2.38, 0.005},  // 1 / 42
    {"c07.product", 5.56, 0.005},     // 1 / 18
    {"c10.batch_tokens", 0, 1e-9},    // floor(1.25 x 128) = 160 never binds
    {"c10.absolute", 64, 1e-9},       //
    {"c10.share_1", 112, 1e-9},       // 128 - 16
    {"c10.share_125", 108, 1e-9},     // 128 - 20
    {"c14.linear_low", 0.36207, 5e-6},
    {"c14.softmax_high", 0.83202, 5e-6},
    {"c17.p2p", 449.6, 0.05},  // 16.106 GB / 32 - / 300
    {"c24.direction", 488.9, 0.05},
    {"c24.payload", 0.004194304, 1e-12},  // 4 MiB
    {"c24.time", 0.4818, 0.0001},         // 8.2 us and 64 x 7.4 us
    {"c25.ssd7", 42857, 1},               // 300 GB / 7 GB/s
    {"c25.one", 97.66, 0.01},             // 6.25 GB / 64 GB/s
    {"c29.once", 0.235, 0.0005},
    {"c31.floor", 8.37, 0.005},
    {"c32.gpus2", 0.652, 0.0005},
    {"c32.gpus4", 0.556, 0.0005},
    {"c32.gpus8", 0.862, 0.0005},
    {"c32.gpus16", 1.0, 1e-9},
    {"c38.cv16", 2.04, 0.005},
    {"c38.std16", 0.128, 0.0005},
    {"c38.cv128", 6.32, 0.005},
    {"c38.std128", 0.049, 0.0005},
    {"c46.after", 13.5, 1e-9},
    {"c47.scratch", 16, 1e-9},
    {"c49.short", 8.533, 0.0005},  // Little: 100 x 128 / 1500
    {"c50.cv", 4.44, 0.005},
    {"c53.english", 41.7, 0.05},
    {"c53.chinese", 36.1, 0.05},
    {"c54.expert", 251.3, 0.05},
    {"c54.kv", 19.3, 0.05},
    {"c55.one", 25.17, 0.005},
    {"c56.use", 27.6, 0.05},
    {"c56.p95", 31.6, 0.05},
    {"c60.quick", 17.5, 1e-9},
    {"c63.hours", 2.09, 0.005},
    {"c63.batch", 2.61, 0.005},
    {"c63.length", 2.44, 0.005},
    {"c64.nvlink", 57.27, 0.005},  // 274.878 GB / 16 / 300 GB/s
    {"c65.long", 859.0, 0.05},     // 15/16 of 274.878 GB / 300 GB/s
    {"c54.ends", 4.92, 0.005},
    {"c70.whole", 77.8, 0.05},
    {"c71.own", 87.8, 0.05},
    {"c73.flops", 313.5, 0.05},
    {"c76.buffer", 0.47, 0.005},
    {"c77.own", 709.7, 0.05},
    {"c80.total", 2.014, 0.0005},
    {"c81.ratio", 47.2, 0.05},
    {"c84.product", 2.147, 0.0005},
    {"c86.active", 37.55, 0.005},
    {"c88.printed", 406.2, 0.05},
    {"c90.implied", 83, 0.5},
    {"c93.fp16", -202.8, 0.05},
    {"c95.any32", 1.16, 0.005},  // 0.0116 expected pairs
};

TEST_F(Arithmetic, GivesTheRightValues) {
  const auto m = measure();
  for (const Known& k : kKnown) {
    EXPECT_NEAR(m.value(k.quantity), k.right, k.half_unit * 1.001) << k.quantity;
  }
}

TEST_F(Arithmetic, VerdictsFollow) {
  const auto v = verdicts();
  for (const char* row :
       {"C07a", "C14a", "C14b", "C19a", "C19b", "C24a", "C25a", "C36c", "C61a", "C63a", "C64a",
        "C69a", "C70a", "C77b", "C81a", "C85a", "C86a", "C93a", "C95a"}) {
    EXPECT_EQ(v.at(row), Verdict::kReproduced) << row;
  }
  for (const char* row : {"C08a", "C10a", "C10b", "C10c", "C14c", "C17a", "C24c", "C29a", "C31a",
                          "C32a", "C38a", "C46a", "C48a", "C49a", "C53a", "C54a", "C60a", "C68a",
                          "C72a", "C76a", "C79a", "C84a", "C88a", "C90a", "C93c", "C96a"}) {
    EXPECT_EQ(v.at(row), Verdict::kContradicted) << row;
  }
  EXPECT_EQ(v.at("C10e"), Verdict::kOutOfScope);
  EXPECT_EQ(v.at("C12f"), Verdict::kNeedsSilicon);
  EXPECT_EQ(v.at("C40b"), Verdict::kNotDecided);
}

TEST_F(Arithmetic, EveryDecidedVerdictFollowsItsClaim) {
  const auto before = judge();
  std::size_t decided = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].verdict != Verdict::kReproduced && before[i].verdict != Verdict::kContradicted) {
      continue;
    }
    ++decided;
    Claim claim = before[i].claim;
    const double ours = *before[i].measured.value;
    const auto verdict = [&](double claimed) {
      claim.value = claimed;
      return claims::verdict(claim, before[i].measured);
    };
    EXPECT_EQ(verdict(ours), Verdict::kReproduced) << claim.row;
    const double far = std::abs(ours) + 2 * claim.half_unit + 1;
    const bool at_least = claim.relation == claims::Relation::kAtLeast;
    EXPECT_EQ(verdict(at_least ? ours + far : ours - far), Verdict::kContradicted) << claim.row;
  }
  EXPECT_GT(decided, 150U);
}

TEST_F(Arithmetic, PerturbingOurModelsAndHardwareChangesVerdicts) {
  auto& s0 = inputs_.models.at("gpt4_s0");
  s0.num_experts = 2;                                  // C69d: 1 / 2
  inputs_.models.at("gpt4_s1").num_experts = 4;        // C25a: 0.8 TB
  inputs_.models.at("deepseek_r1").num_experts = 128;  // C86b
  inputs_.models.at("gpt4_s4").hidden_size = 6144;     // C55b: 25 MB in two copies
  inputs_.models.at("ds_moe_16b_s3").num_experts = 2;  // C88a: 16 B
  inputs_.card = 720e9;                                // C39d: 4 cards hold R1
  inputs_.pcie4 = 7.662e9;                             // C17a: the rate it needs
  inputs_.nvlink3 = 50e9;                              // C64a
  inputs_.nccl_largest = 150e9;                        // C77b
  inputs_.optical = 6e12;                              // C33a: 36.7 ms
  const auto v = verdicts();
  for (const char* row : {"C25a", "C64a", "C69d", "C77b", "C86b"}) {
    EXPECT_EQ(v.at(row), Verdict::kContradicted) << row;
  }
  for (const char* row : {"C17a", "C33a", "C39d", "C55b", "C88a"}) {
    EXPECT_EQ(v.at(row), Verdict::kReproduced) << row;
  }
}

TEST_F(Arithmetic, EveryMeasurementIsClaimedAndContradictedRowsShowTheirFactor) {
  std::set<std::string> asked;
  for (const Claim& c : claims_) {
    asked.insert(c.quantity);
  }
  const claims::Measurements measured = measure();
  for (const auto& [quantity, value] : measured.all()) {
    EXPECT_TRUE(asked.contains(quantity)) << quantity;
  }
  const auto tables = arithmetic_tables(inputs_, claims_);
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_EQ(tables[0].name, "arithmetic");
  EXPECT_EQ(tables[1].rows.size(), claims_.size());
  const auto row = std::find_if(tables[0].rows.begin(), tables[0].rows.end(),
                                [](const auto& r) { return r[0] == "C79a"; });
  ASSERT_NE(row, tables[0].rows.end());
  EXPECT_EQ(row->back(), "10");
  for (const auto& r : tables[0].rows) {
    EXPECT_NE(r[0], "C14a") << "a reproduced row";
  }
}

TEST(Conflicts, EveryPositionStandsBesideWhatTheModelsGive) {
  const Table t = conflicts_table(fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios");
  std::map<std::string, std::size_t> positions;
  const auto computed = [&](const std::string& topic, const std::string& source) {
    for (const auto& row : t.rows) {
      if (row[0] == topic && row[1] == source) {
        return row[3];
      }
    }
    return std::string("no such row");
  };
  for (const auto& row : t.rows) {
    ++positions[row[0]];
    EXPECT_FALSE(row[3].empty()) << row[1];
  }
  EXPECT_EQ(positions.size(), 7U);
  EXPECT_EQ(positions.at("what 2 % is"), 5U) << "one of each article";
  // k/E = 2/16; 2 x 13 B of 1.8 T; 36 of 1800; 2 x 1.3086 B x 96 of 1.8 T.
  EXPECT_NE(computed("what 2 % is", "S0 3.2").find("12.5 %"), std::string::npos);
  EXPECT_NE(computed("what 2 % is", "S2 2.2").find("1.444 %"), std::string::npos);
  EXPECT_NE(computed("what 2 % is", "S3 3.1").find("2 %"), std::string::npos);
  EXPECT_NE(computed("what 2 % is", "S4 2.2").find("13.96 %"), std::string::npos);
  // 1 - (14/16)^8 = 65.6 %.
  EXPECT_NE(computed("larger batch", "S0 3.2, S4 3.3").find("65.62 %"), std::string::npos);
  EXPECT_NE(computed("larger batch", "S4 2.3").find("42.96 % at batch 32, 11.55 % at 256"),
            std::string::npos);
  EXPECT_NE(computed("KV cache", "S1 4.1").find("4398.05 GB"), std::string::npos);
  EXPECT_NE(computed("KV growth to out of memory", "S4 5.3").find("17.5 to 35 h"),
            std::string::npos);
}

TEST(Coverage, EveryClaimHasRows) {
  const Table t = coverage_table();
  ASSERT_EQ(t.rows.size(), 96U);
  std::size_t parts = 0;
  for (const auto& row : t.rows) {
    EXPECT_NE(row[2], "0") << row[0];
    EXPECT_FALSE(row[3].empty() || row[4].empty()) << row[0];
    EXPECT_NE(row[5], "not listed") << row[0];
    parts += row[5].empty() ? 0U : 1U;
  }
  EXPECT_EQ(parts, 5U);
  EXPECT_EQ(t.rows[20][3], "mixed-fabric");           // C21
  EXPECT_EQ(t.rows[16][3], "arithmetic, simulated");  // C17
  EXPECT_EQ(t.rows[12][3], "static-table");           // C13
  EXPECT_NE(t.rows[12][5].find("Mooncake"), std::string::npos);
  EXPECT_NE(t.notes[0].find("96 of 96"), std::string::npos);
}

TEST(OutOfScope, ListsTheHumanNumbersAndWhatNeedsAGpu) {
  const auto tables = out_of_scope_tables(claims::claims_of("out-of-scope"));
  ASSERT_EQ(tables.size(), 2U);
  std::map<std::string, std::size_t> verdicts;
  for (const auto& row : tables[0].rows) {
    ++verdicts[row[5]];
    EXPECT_FALSE(row[6].empty()) << row[0] << " says no reason";
  }
  EXPECT_EQ(verdicts.at("out-of-scope"), 20U);
  EXPECT_EQ(verdicts.at("needs-silicon"), 3U);
  EXPECT_EQ(verdicts.size(), 2U);
}

}  // namespace
}  // namespace switchyard::tables
