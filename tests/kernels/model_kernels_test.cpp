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
