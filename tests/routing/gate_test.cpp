// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/gate.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

std::string error_of(const GateSpec& gate) {
  try {
    validate(gate, "config.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(GateSpec, TextRoundTripsExactlyForEveryFamily) {
  const GateSpec all[] = {gate_mixtral(8, 2),
                          gate_qwen(60, 4, false),
                          gate_qwen(128, 8, true),
                          gate_deepseek_v2(160, 6, 8, 3, 16.0F),
                          gate_deepseek_v2(64, 6, 1, 1, 1.0F),
                          gate_deepseek_v3(256, 8, 8, 4),
                          gate_gpt_oss(32, 4)};
  for (const GateSpec& gate : all) {
    validate(gate, "family");
    EXPECT_EQ(gate_from_text(gate_to_text(gate), "text"), gate) << gate_to_text(gate);
  }
  EXPECT_EQ(gate_to_text(gate_deepseek_v3(256, 8, 8, 4)),
            "experts=256 top_k=8 score=sigmoid renorm=true eps=1e-20 scale=2.5 "
            "exclusive_scale=false n_group=8 topk_group=4 group_score=sum_top2 group_mask=-inf");
}

TEST(GateSpec, RefusesImpossibleShapesWithThePlaceAndTheRule) {
  EXPECT_EQ(error_of(gate_mixtral(8, 2)), "no error");
  EXPECT_EQ(error_of(gate_mixtral(8, 9)),
            "config.json: gate.top_k = 9. Violated: 1 <= top_k <= min(255, experts = 8)");
  EXPECT_EQ(error_of(gate_mixtral(0, 1)),
            "config.json: gate.experts = 0. Violated: 1 <= experts <= 65534");
  EXPECT_EQ(error_of(gate_deepseek_v3(256, 8, 7, 4)),
            "config.json: gate.n_group = 7. Violated: n_group divides experts = 256");
  EXPECT_EQ(error_of(gate_deepseek_v3(256, 8, 8, 9)),
            "config.json: gate.topk_group = 9. Violated: 1 <= topk_group <= n_group = 8");
  // k > number of groups' experts (routing.md): 2 groups of 2 leave 4 experts.
  EXPECT_EQ(error_of(gate_deepseek_v3(8, 5, 4, 2)),
            "config.json: gate.top_k = 5. Violated: 1 <= top_k <= 4 experts of the 2 kept groups");
  EXPECT_EQ(error_of(gate_deepseek_v3(8, 2, 4, 2, -1.0F)),
            "config.json: gate.scale = -1. Violated: finite and > 0");
}

TEST(GateSpec, RefusesUnknownKeysAndValuesWithASuggestion) {
  const auto error = [](const char* text) {
    try {
      (void)gate_from_text(text, "trace.h5");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error("experts=8 topk=2"), "trace.h5: gate.topk: unknown key; did you mean \"top_k\"?");
  EXPECT_EQ(error("experts=8 top_k=2 score=softmx"),
            "trace.h5: gate.score = \"softmx\": unknown value; did you mean \"softmax\"?");
  EXPECT_EQ(error("experts=8 experts=9"), "trace.h5: experts: given twice");
  EXPECT_EQ(error("experts"), "trace.h5: \"experts\" is not of the form key=value");
  EXPECT_EQ(error("experts=8 top_k=2 renorm=yes"),
            "trace.h5: gate.renorm = \"yes\": unknown value; known: true, false");
  EXPECT_EQ(error("experts=8 top_k=two"),
            "trace.h5: gate.top_k = \"two\" is not a whole number in 0…4294967295");
}

TEST(GateProbability, IsFiniteAndInUnitRangeForExtremeLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const GateSpec& gate :
       {gate_mixtral(8, 2), gate_deepseek_v3(8, 2, 1, 1), gate_gpt_oss(8, 2)}) {
    EXPECT_EQ(gate_probability(gate, -inf, -inf), 0.0F);
    EXPECT_EQ(gate_probability(gate, -1000.0F, 1000.0F), 0.0F);
    EXPECT_EQ(gate_probability(gate, 1000.0F, 1000.0F), 1.0F);
  }
  // sigmoid(0) = 1/2; exp(log 2 - log 4) = 1/2.
  EXPECT_EQ(gate_probability(gate_deepseek_v3(8, 2, 1, 1), 0.0F, 3.0F), 0.5F);
  EXPECT_NEAR(gate_probability(gate_mixtral(8, 2), 0.69314718F, 1.38629436F), 0.5F, 1e-7);
}

// engines.md 5, row 12 (sglang#4727): 7168 * 56000 * 8 and 131072 * 16384 do not fit into 32 bits.
TEST(IssueRow12, OffsetsAreSixtyFourBitWide) {
  EXPECT_EQ(row_offset(std::uint32_t{56000} * 8U, std::uint32_t{7168}), 3'211'264'000U);
  EXPECT_EQ(row_offset(std::uint32_t{131072}, std::uint32_t{16384}), 2'147'483'648U);
  EXPECT_EQ(row_offset(std::uint32_t{61681}, std::uint32_t{7168} * 8U, 5U),
            61681ULL * 7168ULL * 8ULL + 5ULL);
  EXPECT_EQ(row_offset(0xFFFFFFFFU, 0xFFFFFFFFU), 18446744065119617025ULL);
}

}  // namespace
}  // namespace switchyard
