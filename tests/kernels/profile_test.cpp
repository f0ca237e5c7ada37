// SPDX-License-Identifier: Apache-2.0
// `profile` on the CUDA backend, with the host executor in place of a GPU: the same operations as
// on the CPU, and a calibration that reads back.
#include "experiments/cli/profile.hpp"

#include <gtest/gtest.h>

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

TEST(Profile, RefusesWeightsBeyondItsScope) {
  const model::ModelConfig model = model::read_model_config(
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/qwen3_moe");
  const auto cpu = make_cpu_backend(1);
  EXPECT_THROW((void)measure_operations(*cpu, model, {100, 1, {1}, {1}, {1}, 1}, "cpu", true),
               InputError);
}

}  // namespace
}  // namespace switchyard::cli
