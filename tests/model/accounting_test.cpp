// SPDX-License-Identifier: Apache-2.0
// Every number of the published table (46.7028 B and so on) and of claims C02–C05, C35, C51 and the
// "2 %" table, to the last unit given there.
#include "engine/model/accounting.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/base/error.hpp"

namespace switchyard::model {
namespace {

ModelConfig model(const std::string& name) {
  return read_model_config(find_model(name, SWITCHYARD_SOURCE_DIR));
}

double total(const std::string& name) {
  return static_cast<double>(count_parameters(model(name)).total());
}
double active(const std::string& name) {
  return static_cast<double>(count_active(model(name)).total());
}

TEST(Accounting, ExactTotals) {
  EXPECT_EQ(count_parameters(model("mixtral_8x7b")).total(), 46'702'792'704U);
  EXPECT_EQ(weight_bytes(count_parameters(model("mixtral_8x7b")), {}), 93'405'585'408U);
  EXPECT_EQ(count_parameters(model("qwen2_57b_a14b")).total(), 57'408'658'944U);
}

struct Published {
  const char* name;
  double total_billion, active_billion, unit_total, unit_active;  // half units of the last digit
  double gigabytes, unit_gigabytes;
  double expert_mib;
  double routed_gb, unit_routed;
  std::uint64_t kv;
};

TEST(Accounting, PublishedTableToTheLastUnit) {
  const Published rows[] = {
      {"mixtral_8x7b", 46.7028, 12.8799, 5e-5, 5e-5, 93.41, 5e-3, 336, 2.819, 5e-4, 131'072},
      {"qwen1_5_moe_a2_7b", 14.3158, 2.6892, 5e-5, 5e-5, 28.63, 5e-3, 16.5, 1.038, 5e-4, 196'608},
      {"qwen2_57b_a14b", 57.409, 14.249, 5e-4, 5e-4, 114.8, 5e-2, 52.5, 3.523, 5e-4, 57'344},
      {"qwen3_30b_a3b", 30.5321, 3.3530, 5e-5, 5e-5, 61.06, 5e-3, 9, 1.208, 5e-4, 98'304},
      {"qwen3_235b_a22b", 235.094, 22.19, 5e-4, 5e-3, 470.2, 5e-2, 36, 4.832, 5e-4, 192'512},
      {"olmoe_1b_7b", 6.9192, 1.2820, 5e-5, 5e-5, 13.84, 5e-3, 12, 0.805, 5e-4, 131'072},
      {"deepseek_v2_lite", 15.7065, 2.6612, 5e-5, 5e-5, 31.41, 5e-3, 16.5, 1.107, 5e-4, 31'104},
      {"deepseek_v2", 235.741, 21.38, 5e-4, 5e-3, 471.5, 5e-2, 45, 7.550, 5e-4, 69'120},
      {"deepseek_v3", 671.026, 37.55, 5e-4, 5e-3, 1342, 0.5, 84, 22.55, 5e-3, 70'272},
  };
  for (const auto& r : rows) {
    SCOPED_TRACE(r.name);
    const auto c = model(r.name);
    EXPECT_NEAR(total(r.name) / 1e9, r.total_billion, r.unit_total * 1.001);
    EXPECT_NEAR(active(r.name) / 1e9, r.active_billion, r.unit_active * 1.001);
    EXPECT_NEAR(static_cast<double>(weight_bytes(count_parameters(c), {})) / 1e9, r.gigabytes,
                r.unit_gigabytes * 1.001);
    EXPECT_EQ(static_cast<double>(expert_bytes(c, DType::kBf16)) / 1048576.0, r.expert_mib);
    EXPECT_NEAR(static_cast<double>(routed_bytes_per_layer(c, DType::kBf16)) / 1e9, r.routed_gb,
                r.unit_routed * 1.001);
    EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), r.kv);
  }
}

TEST(Accounting, Mixtral8x22bHasTwoVocabularies) {
  // The published v0.1 config has 32,000 tokens; the table's row was made with 32,768.
  auto c = model("mixtral_8x22b");
  EXPECT_EQ(count_parameters(c).total(), 140'620'634'112U);
  EXPECT_EQ(expert_bytes(c, DType::kBf16), 576ULL << 20U);
  EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), 229'376U);
  EXPECT_NEAR(static_cast<double>(routed_bytes_per_layer(c, DType::kBf16)) / 1e9, 4.832, 5e-4);
  c.vocab_size = 32768;
  EXPECT_NEAR(static_cast<double>(count_parameters(c).total()) / 1e9, 140.630, 5e-4);
  EXPECT_NEAR(static_cast<double>(count_active(c).total()) / 1e9, 39.16, 5e-3);
  EXPECT_NEAR(static_cast<double>(weight_bytes(count_parameters(c), {})) / 1e9, 281.3, 5e-2);
}

TEST(Accounting, GptOss) {
  EXPECT_NEAR(total("gpt_oss_20b") / 1e9, 20.915, 5e-4);
  EXPECT_NEAR(active("gpt_oss_20b") / 1e9, 4.19, 5e-3);
  EXPECT_NEAR(static_cast<double>(active_without_input_embedding(model("gpt_oss_20b"))) / 1e9, 3.61,
              5e-3);
  EXPECT_NEAR(total("gpt_oss_120b") / 1e9, 116.829, 5e-4);
  EXPECT_NEAR(active("gpt_oss_120b") / 1e9, 5.71, 5e-3);
  EXPECT_NEAR(static_cast<double>(active_without_input_embedding(model("gpt_oss_120b"))) / 1e9,
              5.13, 5e-3);
  // Published as 13.8 and "65.3" GB: 120b is 65,248,815,744 bytes, which rounds to 65.2.
  for (const auto& [name, gigabytes, kv] :
       {std::tuple{"gpt_oss_20b", 13.76, 49'152U}, std::tuple{"gpt_oss_120b", 65.25, 73'728U}}) {
    const auto c = model(name);
    EXPECT_NEAR(static_cast<double>(weight_bytes(count_parameters(c), default_dtypes(c))) / 1e9,
                gigabytes, 5e-3);
    EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), kv);
    // Half of the layers keep 128 tokens only.
    EXPECT_EQ(kv_bytes(c, DType::kBf16, 1000), kv / 2 * (1000 + 128));
    EXPECT_EQ(kv_bytes(c, DType::kBf16, 100), kv * 100);
  }
}

TEST(Accounting, DeepSeekDetails) {
  const auto v3 = model("deepseek_v3");
  EXPECT_NEAR(static_cast<double>(active_without_input_embedding(v3)) / 1e9, 36.63, 5e-3);
  EXPECT_EQ(kv_bytes_per_token_naive(v3, DType::kBf16), 4'997'120U);
  EXPECT_NEAR(total("deepseek_v2_lite") / 1e9, 15.706, 1e-3);
  // FP8 file: one byte a parameter, two for embeddings, norms, head and router.
  const auto p = count_parameters(v3);
  EXPECT_EQ(weight_bytes(p, default_dtypes(v3)),
            p.total() + p.embedding + p.head + p.norms + p.router);
  // "real deepseek-moe-16b: 32.8 GB".
  EXPECT_NEAR(2 * total("deepseek_moe_16b") / 1e9, 32.8, 0.05);
}

TEST(Accounting, KvOfMixtralAtTwoContexts) {
  const auto c = model("mixtral_8x7b");
  EXPECT_EQ(kv_bytes(c, DType::kBf16, 4096), 512ULL << 20U);
  EXPECT_EQ(kv_bytes(c, DType::kBf16, 32768), 4ULL << 30U);
}

TEST(Accounting, ClaimC02) {
  const auto c = model("gpt4_s0");
  EXPECT_EQ(kv_bytes_per_token(c, DType::kF16), 8'388'608U);
  EXPECT_EQ(kv_bytes(c, DType::kF16, 32768), 274'877'906'944U);  // 256 GiB
}

TEST(Accounting, ClaimC03) {
  const auto c = model("gpt4_s0");
  EXPECT_EQ(c.hidden_size * c.expert_intermediate, 822'083'584U);
  EXPECT_EQ(static_cast<double>(dtype_bytes(DType::kF16, 822'083'584U)) / (1ULL << 30U), 1.53125);
  // One expert over all layers: 210.5 GB in FP16.
  EXPECT_EQ(dtype_bytes(DType::kF16, expert_parameters_all_layers(c)), 210'453'397'504U);
}

TEST(Accounting, ClaimC04) {
  const auto p = count_parameters(model("gpt4-s0"));
  const auto share = [](std::uint64_t part, const ParameterCount& all) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(all.total());
  };
  EXPECT_NEAR(static_cast<double>(p.total()) / 1e12, 1.8076, 1e-4);
  EXPECT_NEAR(share(p.experts, p), 93.14, 5e-3);
  EXPECT_NEAR(share(p.router, p), 0.001, 5e-4);
  EXPECT_NEAR(share(p.dense() - p.router, p), 6.86, 5e-3);
  EXPECT_EQ(p.router, 16'925'968U);
  EXPECT_EQ(dtype_bytes(DType::kF16, p.router), 33'851'936U);
  const auto literal = count_parameters(model("gpt4-s0-literal"));
  EXPECT_NEAR(share(literal.experts, literal), 97.9, 0.05);
  EXPECT_NEAR(share(literal.router, literal), 0.0003, 5e-5);
  EXPECT_NEAR(share(literal.dense() - literal.router, literal), 2.1, 0.05);
  // 5.18 T within the arithmetic tolerance of 2 % (5.16 with square attention matrices).
  EXPECT_NEAR(static_cast<double>(literal.total()) / 1e12, 5.18, 0.02 * 5.18);
}

TEST(Accounting, ClaimC05) {
  const auto c = model("gpt4_s0_literal");
  const auto gib = [](std::uint64_t parameters) {
    return static_cast<double>(dtype_bytes(DType::kF16, parameters)) / (1ULL << 30U);
  };
  const auto p = count_parameters(c);
  EXPECT_EQ(gib(count_layer(c, 0).attention), 1.53125);
  EXPECT_EQ(gib(p.attention), 196.0);
  EXPECT_EQ(p.norms * 2, 7'340'032U);
  EXPECT_NEAR(gib(p.norms), 0.0068, 5e-5);
  EXPECT_EQ(gib(p.embedding), 3.5);
  EXPECT_EQ(gib(p.head), 3.5);
  // 218.0 GB of shared weights on one card.
  EXPECT_NEAR(static_cast<double>(2 * (p.dense() - p.router)) / 1e9, 218.0, 0.05);
}

TEST(Accounting, ClaimC51) {
  const auto c = model("gpt4_s4");
  const auto p = count_parameters(c);
  EXPECT_EQ(expert_parameters(c), 1'308'622'848U);
  EXPECT_EQ(count_layer(c, 0).experts, 20'937'965'568U);
  EXPECT_EQ(p.experts, 2'010'044'694'528U);
  EXPECT_EQ(p.attention, 57'982'058'496U);
  EXPECT_NEAR(static_cast<double>(count_active(c).experts) / 1e9, 251.26, 5e-3);
  EXPECT_NEAR(static_cast<double>(p.total()) / 1e12, 2.0705, 5e-5);
  EXPECT_NEAR(static_cast<double>(2 * (p.embedding + p.head)) / 1e9, 4.92, 5e-3);
  EXPECT_NEAR(2 * static_cast<double>(p.total()) / 1e9, 4141, 0.5);
  const auto packed = model("gpt4_s4_int4");
  EXPECT_NEAR(
      static_cast<double>(weight_bytes(count_parameters(packed), default_dtypes(packed))) / 1e9,
      1126, 0.5);
}

ActivationRates rates(const std::string& name, std::uint64_t stated_total = 0) {
  const auto c = model(name);
  return activation_rates(c, default_dtypes(c), expected_step(c, 64), stated_total);
}

TEST(Accounting, TheTwoPercentTable) {
  const auto near = [](double fraction, double percent, double half_unit) {
    // Half a unit of the last printed digit or 2 %, whichever is larger.
    EXPECT_NEAR(100 * fraction, percent, std::max(half_unit, 0.02 * percent));
  };
  EXPECT_EQ(rates("gpt4_s0").expert_fraction, 0.125);
  EXPECT_NEAR(100 * rates("gpt4_s0").param_narrow, 11.64, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s0").param_wide, 18.50, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s1").param_narrow, 11.11, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s1").param_wide, 22.2, 5e-2);
  EXPECT_NEAR(100 * rates("gpt4_s1_110").param_wide, 21.4, 5e-2);
  EXPECT_NEAR(total("gpt4_s1") / 1e12, 1.8, 1e-3);
  EXPECT_NEAR(total("gpt4_s1_110") / 1e12, 1.96, 1e-3);
  EXPECT_EQ(rates("gpt4_s2").expert_fraction, 0.015625);
  EXPECT_NEAR(100 * rates("gpt4_s2", 1'800'000'000'000U).param_narrow, 1.44, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s2").param_narrow, 1.29, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s2").param_wide, 18.7, 5e-2);
  EXPECT_NEAR(total("gpt4_s2") / 1e12, 2.014, 5e-4);
  EXPECT_EQ(rates("gpt4_s3").expert_fraction, 0.015625);
  const auto s3 = model("gpt4_s3");
  EXPECT_EQ(100 * s3.stated.at("active") / s3.stated.at("total"), 2U);
  EXPECT_EQ(rates("gpt4_s4").expert_fraction, 0.125);
  near(rates("gpt4_s4").param_narrow, 12.13, 5e-3);
  near(rates("gpt4_s4").param_wide, 15.05, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s4", 1'800'000'000'000U).param_narrow, 13.96, 5e-3);
  EXPECT_NEAR(100 * rates("gpt4_s4", 1'800'000'000'000U).layer_fraction, 0.145, 5e-4);
  EXPECT_EQ(rates("deepseek_r1").expert_fraction, 0.03125);
  EXPECT_NEAR(100 * rates("deepseek_r1").param_narrow, 3.05, 5e-3);
  EXPECT_NEAR(100 * rates("deepseek_r1").param_wide, 5.60, 5e-3);
  EXPECT_EQ(rates("mixtral_8x7b").expert_fraction, 0.25);
  EXPECT_NEAR(100 * rates("mixtral_8x7b").param_narrow, 24.14, 5e-3);
  EXPECT_NEAR(100 * rates("mixtral_8x7b").param_wide, 27.58, 5e-3);
  EXPECT_EQ(rates("qwen2_57b_a14b").expert_fraction, 0.125);
  EXPECT_NEAR(100 * rates("qwen2_57b_a14b").param_narrow, 10.74, 5e-3);
  EXPECT_NEAR(100 * rates("qwen2_57b_a14b").param_wide, 24.82, 5e-3);
}

TEST(Accounting, ClaimC35) {
  const auto c = model("deepseek_r1");
  const auto all = count_parameters(c);
  const auto used = count_active(c);
  const auto percent = [&](std::uint64_t part) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(all.total());
  };
  EXPECT_NEAR(static_cast<double>(all.total()) / 1e9, 671.03, 5e-3);
  EXPECT_NEAR(static_cast<double>(used.total()) / 1e9, 37.55, 5e-3);
  EXPECT_NEAR(percent(used.total()), 5.60, 5e-3);
  EXPECT_NEAR(percent(active_without_input_embedding(c)), 5.46, 5e-3);
  EXPECT_NEAR(percent(used.experts), 3.05, 5e-3);
  EXPECT_NEAR(percent(used.experts + used.shared_experts), 3.43, 5e-3);
  // The article's own figures: (150 + 268 + 2 · 4.7)/671 = 63.7 %.
  const auto printed = model("r1_s2");
  const auto u = count_active(printed);
  EXPECT_NEAR(100.0 * static_cast<double>(u.embedding + u.attention + u.experts) /
                  static_cast<double>(printed.stated.at("total")),
              63.7, 5e-2);
  EXPECT_EQ(expert_matrix_elements(printed), 469'762'048U);
  EXPECT_EQ(count_layer(printed, 0).attention, 268'435'456U);
}

TEST(Accounting, RecipesOfTheFitsTable) {
  EXPECT_NEAR(2 * total("gpt4_s0") / 1e9, 3615, 0.5);
  const auto s0 = count_parameters(model("gpt4_s0"));
  const double shared = 2.0 * static_cast<double>(s0.dense());
  EXPECT_NEAR((16 * shared + 2.0 * static_cast<double>(s0.experts)) / 1e9, 7335, 0.02 * 7335);
  EXPECT_NEAR(2 * total("ds_moe_16b_s3") / 1e9, 812, 0.02 * 812);
  EXPECT_NEAR(static_cast<double>(dtype_bytes(DType::kInt4G128,
                                              count_parameters(model("qwen2_57b_a14b")).total())) /
                  1e9,
              29.8, 0.05);
  EXPECT_NEAR(total("dense_28b") / 1e9, 28, 0.05);
  EXPECT_NEAR(total("dense_70b") / total("moe_70b_s3"), 1, 1e-3);
  // The router is all that separates the equal-active baseline.
  EXPECT_EQ(active("moe_70b_s3") - active("dense_active"), 32.0 * 64 * 4096);
  EXPECT_NEAR(total("qwen2_57b_s1") / total("qwen2_57b_a14b"), 1, 1e-3);
}

TEST(Accounting, EightRatesOfOneStep) {
  const auto c = model("mixtral_8x7b");  // 32 MoE layers, E 8, k 2
  StepActivity s;
  s.tokens = 16;
  s.accepted = 32 * 30;
  s.touched_experts = 32 * 6;
  s.capacity = 5;
  const auto r = activation_rates(c, {}, s);
  EXPECT_DOUBLE_EQ(r.expert_fraction, 0.25);
  EXPECT_DOUBLE_EQ(r.touched_fraction, 0.75);
  EXPECT_DOUBLE_EQ(r.slot_occupancy, 30.0 / 40.0);
  EXPECT_DOUBLE_EQ(r.kept_fraction, 30.0 / 128.0);
  EXPECT_DOUBLE_EQ(r.layer_fraction, 2.0 * 176'160'768 / 46'702'792'704);
  const double dense = static_cast<double>(count_parameters(c).dense()) - 32000.0 * 4096;
  EXPECT_NEAR(r.traffic_share, (dense + 16 * 4096 + 192.0 * 176'160'768) / 46'702'792'704, 1e-15);
  EXPECT_EQ(activation_definitions().size(), 8U);
  s.capacity = 0;
  EXPECT_TRUE(std::isnan(activation_rates(c, {}, s).slot_occupancy));
  s.tokens = 0;
  EXPECT_THROW(activation_rates(c, {}, s), InputError);
  const auto dense_model = model("dense_28b");
  const auto d = activation_rates(dense_model, {}, expected_step(dense_model, 200000));
  EXPECT_TRUE(std::isnan(d.expert_fraction));
  EXPECT_EQ(d.param_wide, 1.0);
  EXPECT_EQ(d.traffic_share, 1.0);
}

TEST(Accounting, ExpectedDistinctExperts) {
  EXPECT_NEAR(expected_distinct_experts(8, 2, 16), 7.9198, 5e-5);
  EXPECT_NEAR(expected_distinct_experts(128, 8, 32), 111.771, 5e-4);
  EXPECT_NEAR(expected_distinct_experts(256, 8, 128), 251.601, 5e-4);
  // C06: touched 12.5 / 41.4 / 65.6 / 88.2 / 98.6 / 99.98 % at batch 1, 4, 8, 16, 32, 64.
  const double expected[] = {12.5, 41.4, 65.6, 88.2, 98.6, 99.98};
  const std::uint64_t batches[] = {1, 4, 8, 16, 32, 64};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(100 * expected_distinct_experts(16, 2, batches[i]) / 16, expected[i],
                i == 5 ? 5e-3 : 5e-2);
  }
}

TEST(Accounting, FlopsFollowTheParameters) {
  const auto c = model("mixtral_8x7b");
  const auto f = flops_per_token(c, 0);
  const auto p = count_active(c);
  // Two per weight; norms are left out and the input embedding is a look-up.
  EXPECT_EQ(f.total(), 2 * (p.total() - p.embedding - p.norms));
  EXPECT_EQ(flops_per_token(c, 10).scores, 2ULL * 32 * 256 * 10 * 32);
  const auto windowed = flops_per_token(model("gpt_oss_20b"), 1000);
  EXPECT_EQ(windowed.scores, 2ULL * 64 * 128 * (12 * 1000 + 12 * 128));
  EXPECT_THROW(flops_per_token(c, 1ULL << 40U), InputError);
}

TEST(Accounting, PackedFormatsAreExact) {
  EXPECT_EQ(dtype_bytes(DType::kInt4, 3), 2U);
  EXPECT_EQ(dtype_bytes(DType::kMxfp4, 64), 34U);
  EXPECT_EQ(dtype_bytes(DType::kInt4G128, 256), 133U);
  EXPECT_THROW(dtype_bytes(DType::kF32, 1ULL << 62U), InputError);
}

}  // namespace
}  // namespace switchyard::model
