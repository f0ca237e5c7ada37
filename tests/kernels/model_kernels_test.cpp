// SPDX-License-Identifier: Apache-2.0
// The kernels of a whole model against the CPU backend on the host executor.
#include <gtest/gtest.h>

#include "tests/kernels/model_checks.hpp"

namespace switchyard::kernels {
namespace {

using gpu::Status;

template <class Shape>
void expect_all(const std::vector<Shape>& shapes) {
  for (const Shape& s : shapes) {
    EXPECT_EQ(check(s), "");
  }
}

TEST(LinearKernel, MultipliesAsTheCpuAndARowAloneAsAmongOthers) { expect_all(linear_shapes()); }
TEST(ExpertFfnKernel, RunsTheExpertsAsTheCpu) { expect_all(moe_shapes()); }
TEST(AttentionKernel, AttendsAsTheCpu) { expect_all(attention_cases()); }
TEST(RowKernels, DoTheSmallOperationsAsTheCpu) { expect_all(rows_shapes()); }

TEST(GroupedGemmKernel, RunsTheExpertsAsTheCpuWithinBf16) { expect_all(grouped_shapes()); }
TEST(DenseGemmKernel, MultipliesAsTheCpuAndARowAlikeInAnyPlace) { expect_all(dense_shapes()); }
TEST(GateRouterKernel, MultipliesAndRanksAsTheCpu) { expect_all(gate_shapes()); }
TEST(SamplingKernel, DrawsTheTokensOfTheCpu) { expect_all(sampling_shapes()); }

TEST(GroupedGemmKernel, RefusesWhatItCannotRun) {
  GroupedGemmParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no slots";
  p.slots = p.experts = 1;
  p.hidden = 12;
  p.inner = 8;
  EXPECT_EQ(can_run(p), Status::kUnsupported) << "rows that do not begin at 16 bytes";
  p.hidden = 16;
  p.tokens = 300;
  EXPECT_EQ(workspace_bytes(p), 48U) << "3 tiles of 12 bytes and their number, to 16";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
}

TEST(DenseGemmKernel, RefusesWhatItCannotRun) {
  DenseGemmParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no outputs";
  p.outputs = 1;
  p.depth = 12;
  p.x_stride = 12;
  EXPECT_EQ(can_run(p), Status::kUnsupported) << "rows that do not begin at 16 bytes";
  p.depth = 16;
  p.x_stride = 16;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.heads = 2;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "two heads without their matrices";
  p.heads = 1;
  p.rows = 65535 * 128 + 1;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
}

// What decode computes in BF16: the inner values are those of float32, rounded.
TEST(ExpertFfnKernel, RoundsInnerValuesWhereAsked) {
  Dice dice(5);
  constexpr std::uint32_t kTokens = 3, kHidden = 16, kInner = 24;
  const StoredMatrix gate(WeightType::kBf16, kInner, kHidden, dice);
  const StoredMatrix up(WeightType::kBf16, kInner, kHidden, dice);
  const StoredMatrix down(WeightType::kBf16, kHidden, kInner, dice);
  const ExpertPointers expert{gate.data(), up.data(), down.data(), nullptr, nullptr, nullptr};
  const std::vector<float> x = normals(std::size_t{kTokens} * kHidden, dice);
  const std::vector<std::uint32_t> offsets{0, kTokens}, order{0, 1, 2};
  ExpertFfnParams p;
  p.tokens = kTokens;
  p.slots = p.experts = 1;
  p.hidden = kHidden;
  p.inner = kInner;
  p.weights = &expert;
  p.x = x.data();
  p.offsets = offsets.data();
  p.order = order.data();
  std::vector<float> plain(std::size_t{kTokens} * kInner), rounded(plain),
      y(std::size_t{kTokens} * kHidden);
  std::vector<std::uint32_t> space(workspace_bytes(p) / 4);
  p.workspace = space.data();
  p.workspace_size = workspace_bytes(p);
  p.y = y.data();
  p.h = plain.data();
  ASSERT_EQ(launch(p, nullptr), Status::kOk);
  p.round_inner = true;
  p.h = rounded.data();
  ASSERT_EQ(launch(p, nullptr), Status::kOk);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(rounded[i], model::bf16_to_float(model::float_to_bf16(plain[i])));
    changed += rounded[i] != plain[i] ? 1 : 0;
  }
  EXPECT_GT(changed, plain.size() / 2);
}

TEST(GateRouterKernel, RefusesWhatItCannotRun) {
  GateRouterParams p;
  p.router.gate = gate_mixtral(8, 2);
  p.router.width = 8;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no inputs";
  p.depth = 4;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.router.gate.experts = 513;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
}

TEST(SamplingKernel, RefusesWhatItCannotRun) {
  SamplingParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no tokens";
  p.vocab = 10;
  p.rows = 2;
  EXPECT_EQ(can_run(p), Status::kOk);
  EXPECT_EQ(workspace_bytes(p), 0U) << "greedy";
  p.temperature = 1;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "a draw without sequence and position";
  p.rows = 0;
  p.top_p = 0;
  EXPECT_EQ(launch(p, nullptr), Status::kInvalidShape);
}

TEST(LinearKernel, RefusesWhatItCannotRun) {
  LinearParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no outputs";
  p.outputs = p.depth = 8;
  p.rows = 524280;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.rows += 1;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
  p.rows = 1;
  p.heads = 2;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "two heads without their matrices";
}

TEST(ExpertFfnKernel, RefusesWhatItCannotRun) {
  ExpertFfnParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no slots";
  p.slots = p.hidden = p.inner = 1;
  p.experts = 1025;
  EXPECT_EQ(can_run(p), Status::kUnsupported);
  p.experts = 8;
  p.tokens = 16;
  EXPECT_EQ(workspace_bytes(p), 128U) << "10 tiles of 12 bytes and their number, to 16";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
}

TEST(AttentionKernel, RefusesWhatItCannotRun) {
  AttentionParams p;
  p.heads = 4;
  p.kv_heads = 3;
  p.head_dim = p.value_dim = 64;
  p.block = 16;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "4 heads on 3";
  p.kv_heads = 2;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.half = 33;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "66 rotated entries of 64";
  p.half = 0;
  p.value_dim = 32;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "narrow values without a latent";
  p.value_dim = 64;
  p.rows = 2;
  p.longest = 128;
  EXPECT_EQ(workspace_bytes(p), 0U) << "one part";
  p.longest = 129;
  EXPECT_EQ(workspace_bytes(p), 2U * 4 * 2 * 66 * 4) << "two parts of 2 rows and 4 heads";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
  p.rows = 1024;
  EXPECT_EQ(workspace_bytes(p), 0U) << "enough blocks without";
  p.head_dim = p.value_dim = 1025;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
}

TEST(RowKernels, RefuseWhatTheyCannotRun) {
  RowParams p;
  p.operation = RowOperation::kGather;
  p.rows = 1;
  p.columns = 8;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no index";
  p.operation = RowOperation::kCopy;
  p.rows = 0x40000000;
  p.columns = 513;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
  RmsNormParams norm;
  EXPECT_EQ(can_run(norm), Status::kInvalidShape) << "no columns";
}

}  // namespace
}  // namespace switchyard::kernels
