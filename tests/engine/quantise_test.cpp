// SPDX-License-Identifier: Apache-2.0
// Rounding of weights to smaller formats, by hand and on a model.
#include "engine/nn/quantise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/trace_run.hpp"
#include "engine/trace/trace.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::expect_contains;
using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::input_error_of;

std::vector<float> rounded(std::vector<float> values, std::size_t rows, QuantFormat format,
                           std::size_t group = 128, const std::vector<bool>& kept = {}) {
  (void)round_matrix(values, rows, values.size() / rows, format, group, kept);
  return values;
}

TEST(Rounding, OfE4m3IsTheNearestOfItsValues) {
  // All finite values of OCP E4M3, from its definition.
  std::vector<double> all;
  for (int bits = 0; bits < 127; ++bits) {
    const int exponent = bits >> 3;
    const int mantissa = bits & 7;
    all.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                : std::ldexp(8 + mantissa, exponent - 10));
  }
  EXPECT_EQ(all.back(), 448);
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const double middle = (all[i] + all[i + 1]) / 2;
    const auto low = static_cast<float>(all[i]);
    const auto high = static_cast<float>(all[i + 1]);
    EXPECT_EQ(round_e4m3(low), low);
    EXPECT_EQ(round_e4m3(-low), -low);
    EXPECT_EQ(round_e4m3(std::nextafter(static_cast<float>(middle), 0.0F)), low) << middle;
    EXPECT_EQ(round_e4m3(std::nextafter(static_cast<float>(middle), 1e9F)), high) << middle;
    EXPECT_EQ(round_e4m3(static_cast<float>(middle)), i % 2 == 0 ? low : high) << middle;
  }
  EXPECT_EQ(round_e4m3(1e6F), 448);
  EXPECT_EQ(round_e4m3(-1e6F), -448);
  EXPECT_TRUE(std::isnan(round_e4m3(NAN)));
}

TEST(Rounding, ToInt8ScalesEachRowByItsLargestValue) {
  // Row 0: scale 127 / 127 = 1. Row 1: scale 2. Row 2: nothing but zeros.
  const std::vector<float> got =
      rounded({127, 0.4F, -3.5F, -254, 5, 2.9F, 0, 0, 0}, 3, QuantFormat::kInt8);
  EXPECT_EQ(got, (std::vector<float>{127, 0, -4, -254, 4, 2, 0, 0, 0}));
}

TEST(Rounding, ToInt4UsesAScaleAndAZeroPointPerGroup) {
  // Group 1: -3 … 12: scale 1, zero 3. Group 2 (short): 0 … 7.5: scale 0.5, zero 0.
  const std::vector<float> got =
      rounded({-3, 0, 12, 4.4F, -0.6F, 7.5F, 0.3F, 3.2F}, 1, QuantFormat::kInt4, 5);
  EXPECT_EQ(got, (std::vector<float>{-3, 0, 12, 4, -1, 7.5F, 0.5F, 3}));
  // A group of positive values still represents 0 exactly: minimum 0, not 6.
  EXPECT_EQ(rounded({6, 15, 9.6F}, 1, QuantFormat::kInt4), (std::vector<float>{6, 15, 10}));
}

TEST(Rounding, ToInt4LeavesKeptColumnsInFp16AndOutOfTheScale) {
  // The kept column's 1000.3 does not widen the others' scale of 1.
  const std::vector<bool> kept{false, true, false};
  std::vector<float> values{0.2F, 1000.3F, 15, 1.6F, 0.1F, 15};
  const double bits = round_matrix(values, 2, 3, QuantFormat::kInt4, 128, kept);
  EXPECT_EQ(values, (std::vector<float>{0, round_fp16(1000.3F), 15, 2, round_fp16(0.1F), 15}));
  EXPECT_EQ(round_fp16(1000.3F), 1000.5F);
  EXPECT_EQ(bits, 2 * (16 + 2 * 4 + 20));
}

TEST(Rounding, ToBf16AndFp16IsToNearestEven) {
  // bf16 has 7 bits of fraction, fp16 10.
  const float step = std::ldexp(1.0F, -7);
  EXPECT_EQ(rounded({1 + step / 2, 1 + 1.5F * step}, 1, QuantFormat::kBf16),
            (std::vector<float>{1, 1 + 2 * step}));
  const float fine = std::ldexp(1.0F, -10);
  EXPECT_EQ(rounded({1 + fine / 2, 1 + 1.5F * fine}, 1, QuantFormat::kFp16),
            (std::vector<float>{1, 1 + 2 * fine}));
}

TEST(Quantise, ReadsItsOptionsAndNamesMistakes) {
  const auto parse = [](const char* text) { return parse_quantise(text, "--quantise"); };
  const QuantiseOptions o = parse("router=fp8,experts=int4,backbone=bf16,group=64,keep=0.25");
  EXPECT_EQ(o.router, QuantFormat::kFp8);
  EXPECT_EQ(o.experts, QuantFormat::kInt4);
  EXPECT_EQ(o.backbone, QuantFormat::kBf16);
  EXPECT_EQ(to_text(o), "router=fp8,experts=int4,backbone=bf16,group=64,keep=0.25");
  EXPECT_EQ(to_text(parse("experts=int4")), "experts=int4,group=128,keep=0.1");
  EXPECT_EQ(to_text(parse("router=none")), "");
  const auto error = [&](const char* text) { return input_error_of([&] { (void)parse(text); }); };
  expect_contains(error("ruoter=int4"), "did you mean \"router\"?");
  expect_contains(error("router=int5"), "router = int5: unknown format");
  expect_contains(error("router"), "\"router\" is no key=value");
  expect_contains(error("backbone=int4"), "unsupported: backbone = int4");
  expect_contains(error("experts=int4,keep=1"), "keep = 1. Violated: 0 <= keep < 1");
  expect_contains(error("experts=int8,keep=0.1"), "keep has an effect on experts=int4 only");
  expect_contains(error("experts=int8,group=64"), "group has an effect on int4 only");
  expect_contains(error("router=int4,group=4"), "Violated: 8 <= group");
  expect_contains(error("router=int8,router=int4"), "\"router\" stands twice");
  expect_contains(error("router=int4,group=x"), "group = x is not a number");
}

std::vector<float> values_of(const WeightView& view) {
  std::vector<float> out(view.rows * view.cols);
  cpu::widen(view, 0, out.size(), out.data());
  return out;
}

TEST(Quantise, RoundsThePartsItNamesAndNoOther) {
  const Engine plain = Engine::load(fixture("f32"), {});
  const Engine engine = Engine::load(
      fixture("f32"), {.quantise = parse_quantise("router=int8,experts=int4,group=16", "test")});
  for (std::size_t l = 0; l < 2; ++l) {
    const LayerWeights& a = plain.weights().layers[l];
    const LayerWeights& b = engine.weights().layers[l];
    EXPECT_EQ(values_of(a.q), values_of(b.q));
    EXPECT_EQ(values_of(b.router), rounded(values_of(a.router), a.router.rows, QuantFormat::kInt8));
    // The column of the largest norm stays: 32 inputs, a tenth rounded up is 4.
    const auto before = values_of(a.experts[3].up);
    const auto after = values_of(b.experts[3].up);
    std::size_t fp16_columns = 0;
    for (std::size_t c = 0; c < 32; ++c) {
      bool all = true;
      for (std::size_t r = 0; r < a.experts[3].up.rows; ++r) {
        all = all && after[r * 32 + c] == round_fp16(before[r * 32 + c]);
      }
      fp16_columns += all ? 1 : 0;
    }
    EXPECT_EQ(fp16_columns, 4U);
  }
  ASSERT_EQ(engine.quantised().size(), 2U);
  const QuantisedPart& router = engine.quantised()[0];
  EXPECT_EQ(router.name, "router");
  EXPECT_EQ(router.tensors, 2U);
  EXPECT_EQ(router.bits_per_value(), 8 + 32.0 / 32);
  EXPECT_GT(router.relative_error(), 1e-4);
  EXPECT_LT(router.relative_error(), 1e-2);
  const QuantisedPart& experts = engine.quantised()[1];
  EXPECT_EQ(experts.tensors, 2U * 8 * 3);
  EXPECT_GT(experts.relative_error(), 0.02);
  EXPECT_LT(experts.relative_error(), 0.1);
}

TEST(Quantise, ToWhatTheCheckpointHoldsChangesNoBit) {
  const std::vector<std::uint32_t> ids{3, 77, 12, 5, 90, 41, 41};
  const auto logits = [&](const QuantiseOptions& options) {
    const Engine engine = Engine::load(fixture("bf16"), {.quantise = options});
    Session session(engine, {});
    const SequenceTokens work{session.add_sequence(), ids};
    return session.step({&work, 1}, Phase::kPrefill).logits;
  };
  const auto plain = logits({});
  EXPECT_EQ(logits(parse_quantise("router=bf16,experts=bf16,backbone=bf16", "test")), plain);
  EXPECT_NE(logits(parse_quantise("router=int4", "test")), plain);
  EXPECT_NE(logits(parse_quantise("experts=int8", "test")), plain);
  EXPECT_NE(logits(parse_quantise("backbone=fp16,experts=fp8", "test")), plain);
}

TEST(Quantise, IsSaidInTheTrace) {
  const auto folder = fresh_folder("quantised");
  const Engine engine = Engine::load(
      fixture("bf16"), {.quantise = parse_quantise("router=int4,experts=int8", "test")});
  const std::vector<TracePrompt> prompts{{"a", "", {8, 7, 9}, 0}};
  (void)record_trace(engine, prompts, {}, folder / "t.h5");
  EXPECT_EQ(read_trace(folder / "t.h5").header.precision,
            "f32 (router=int4,experts=int8,group=128)");
}

}  // namespace
}  // namespace switchyard
