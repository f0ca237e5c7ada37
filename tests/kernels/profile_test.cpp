// SPDX-License-Identifier: Apache-2.0
// `profile` on the CUDA backend, with the host executor in place of a GPU: the same operations as
// on the CPU, and a calibration that reads back.
#include "experiments/cli/profile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.hpp"
#include "kernels/cuda_backend.hpp"
#include "kernels/host/device_host.hpp"

namespace switchyard::cli {
namespace {

TEST(Profile, MeasuresTheOperationsOfAnyBackend) {
  const model::ModelConfig model = model::read_model_config(
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/gpt_oss");
  const ProfileScope scope{1'000'000, 4, {1, 3, 6}, {1, 2}, {2, 5}, 2};
  const auto cpu = make_cpu_backend(1);
  const auto gpu =
      gpu::make_cuda_backend(host::make_device(std::uint64_t{1} << 30), {.bf16 = true});
  const auto expected = measure_operations(*cpu, model, scope, "cpu", true);
  auto got = measure_operations(*gpu, model, scope, "gpu", true);
  ASSERT_EQ(got.tables.size(), expected.tables.size());
  std::size_t windows = 0;
  for (std::size_t i = 0; i < got.tables.size(); ++i) {
    const auto& g = got.tables[i];
    EXPECT_EQ(g.kind, expected.tables[i].kind);
    EXPECT_EQ(g.shape, expected.tables[i].shape);
    EXPECT_EQ(g.dtype, expected.tables[i].dtype);
    EXPECT_EQ(g.library, "gpu");
    ASSERT_EQ(g.points.size(), expected.tables[i].points.size());
    for (std::size_t p = 0; p < g.points.size(); ++p) {
      EXPECT_EQ(g.points[p].at, expected.tables[i].points[p].at);
      EXPECT_GT(g.points[p].us, 0);
    }
    windows += g.kind == scenario::OpKind::kAttentionDecode ? 1 : 0;
  }
  EXPECT_EQ(windows, 2U) << "layers with a window and without";
  got.device = "host executor";
  got.source = "test";
  const auto again = scenario::parse_calibration(scenario::calibration_text(got), "test");
  EXPECT_EQ(again.tables.size(), got.tables.size());
}

/// FLOPs of a point, counted by hand: no tile, no masked pair.
double flops_of(const scenario::OpTable& t, const scenario::OpPoint& p) {
  const auto s = [&](std::size_t i) { return static_cast<double>(t.shape[i]); };
  const double heads = t.shape.size() > 2 ? 4 * s(0) * s(2) : 0;  // Of one pair of positions.
  const std::uint64_t window = t.shape.size() > 3 ? t.shape[3] : 0;
  const auto seen = [&](std::uint64_t n) { return window > 0 ? std::min(n, window) : n; };
  switch (t.kind) {
    case scenario::OpKind::kGemm:
      return 2 * p.at[0] * s(0) * s(1);
    case scenario::OpKind::kExperts:
      return 2 * 3 * p.at[0] * s(0) * s(1);
    case scenario::OpKind::kAttentionDecode:
      return heads * p.at[0] * static_cast<double>(seen(static_cast<std::uint64_t>(p.at[1])));
    case scenario::OpKind::kAttentionPrefill: {
      double pairs = 0;
      for (std::uint64_t i = 1; i <= static_cast<std::uint64_t>(p.at[1]); ++i) {
        pairs += static_cast<double>(seen(i));
      }
      return heads * p.at[0] * pairs;
    }
    default:
      ADD_FAILURE() << "an operation that no profile has";
      return 0;
  }
}

TEST(Profile, ThePeakIsARateThatARowReached) {
  const model::ModelConfig model = model::read_model_config(
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/gpt_oss");
  const auto cpu = make_cpu_backend(1);
  const scenario::Calibration c =
      measure_operations(*cpu, model, {1'000'000, 4, {1, 3, 6}, {1, 2}, {2, 5}, 2}, "cpu", true);
  double best = 0;
  for (const auto& t : c.tables) {
    for (const auto& p : t.points) best = std::max(best, flops_of(t, p) / p.us * 1e6);
  }
  EXPECT_GT(best, 0);
  for (const model::DType d : {model::DType::kF32, model::DType::kBf16}) {
    EXPECT_NEAR(c.peak[static_cast<std::size_t>(d)].value / best, 1, 1e-9);
  }
  // Bytes: the best row moved at least its weights, or the cached values it saw.
  double most = 0;
  for (const auto& t : c.tables) {
    const double w = t.dtype == model::DType::kF32 ? 4 : 2;
    for (const auto& p : t.points) {
      if (t.kind == scenario::OpKind::kGemm) {
        most = std::max(most, static_cast<double>(t.shape[0] * t.shape[1]) * w / p.us * 1e6);
      }
    }
  }
  EXPECT_GE(c.hbm.value * (1 + 1e-9), most);
}

TEST(Profile, RefusesWeightsBeyondItsScope) {
  const model::ModelConfig model = model::read_model_config(
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/qwen3_moe");
  const auto cpu = make_cpu_backend(1);
  EXPECT_THROW((void)measure_operations(*cpu, model, {100, 1, {1}, {1}, {1}, 1}, "cpu", true),
               InputError);
}

}  // namespace
}  // namespace switchyard::cli
