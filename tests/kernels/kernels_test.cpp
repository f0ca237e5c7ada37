// SPDX-License-Identifier: Apache-2.0
// Every kernel against its CPU twin on the host executor, and the refusals of the host side.
#include <gtest/gtest.h>

#include "tests/kernels/checks.hpp"

namespace switchyard::kernels {
namespace {

using gpu::Status;

template <class Shape>
void expect_all(const std::vector<Shape>& shapes, std::size_t at_least) {
  EXPECT_GE(shapes.size(), at_least);
  for (const Shape& s : shapes) {
    EXPECT_EQ(check(s), "");
  }
}

TEST(RouterKernel, RanksAsTheCpuToTheBit) { expect_all(router_shapes(), 250); }
TEST(ExpertSortKernel, SortsStablyAsTheDefinition) { expect_all(sort_shapes(), 60); }
TEST(CombineKernel, SumsAsTheCpuToTheBit) { expect_all(combine_shapes(), 50); }
TEST(ChooseKernel, TakesWhatTheCpuTakesToTheBit) { expect_all(choose_shapes(), 30); }
TEST(ChooseKernel, RefusesWhatItCannotRun) {
  ChooseParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no gate";
  p.gate = gate_mixtral(64, 33);
  p.width = 64;
  EXPECT_EQ(can_run(p), Status::kUnsupported) << "more than 32 slots";
  p.gate = gate_mixtral(64, 2);
  p.tokens = 3;
  EXPECT_EQ(workspace_bytes(p), 16U) << "2 bytes for each of 6 slots, to 16";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
}
TEST(CapacityKernel, DecidesAsTheCpuToTheBit) { expect_all(capacity_shapes(), 100); }

// Each fate must occur in the shapes above, or their agreement says little.
TEST(CapacityKernel, ShapesReachEveryFate) {
  std::array<std::uint64_t, 5> seen{};
  for (const CapacityShape& s : capacity_shapes()) {
    Candidates c;
    RankWorkspace scratch;
    const std::vector<float> logits = make_logits(s.kind, s.tokens, s.gate.experts, 3 + s.tokens);
    rank_candidates(s.gate, logits, {}, s.width, scratch, c);
    RoutingPolicy policy = policy_from_text(s.policy, "test");
    if (resolved_scope(policy.capacity) != CapacityScope::kGlobal) {
      continue;
    }
    if (policy.capacity.order == OverflowOrder::kRandom) {
      continue;
    }
    StepContext step;
    step.tokens[1] = step.sequences[1] = s.tokens;
    LayerDecision d;
    DecideWorkspace decide_scratch;
    decide(s.gate, policy, step, c.view(), {}, decide_scratch, d);
    seen[0] += d.kept;
    seen[1] += d.rerouted;
    seen[2] += d.queued_slots;
    seen[3] += d.dropped;
    seen[4] += d.truncated_slots;
  }
  for (const std::uint64_t n : seen) {
    EXPECT_GT(n, 20U);
  }
}

TEST(RouterKernel, RefusesWhatItCannotRun) {
  RouterParams p;
  p.gate = gate_mixtral(512, 8);
  p.width = 10;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.gate.experts = 513;
  EXPECT_EQ(can_run(p), Status::kUnsupported);
  p.gate = gate_deepseek_v3(256, 2, 128, 4);
  EXPECT_EQ(can_run(p), Status::kUnsupported);
  p.gate = gate_mixtral(8, 2);
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "10 candidates of 8 experts";
  p.width = 1;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "fewer candidates than slots";
  p.gate.n_group = 3;
  p.width = 2;
  EXPECT_EQ(launch(p, nullptr), Status::kInvalidShape) << "3 groups of 8 experts";
}

TEST(ExpertSortKernel, RefusesWhatItCannotRun) {
  ExpertSortParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no experts";
  p.experts = 1025;
  EXPECT_EQ(can_run(p), Status::kUnsupported);
  p.experts = 1024;
  p.assignments = 1025;
  EXPECT_EQ(workspace_bytes(p), 2U * 1024 * 4) << "two chunks";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
}

TEST(CombineKernel, RefusesWhatItCannotRun) {
  CombineParams p;
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "no slots";
  p.slots = 2;
  p.hidden = 256 * 65535;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.hidden += 1;
  EXPECT_EQ(can_run(p), Status::kUnsupported);
  p.hidden = 64;
  p.tokens = 0x80000000U;
  EXPECT_EQ(launch(p, nullptr), Status::kUnsupported);
}

TEST(CapacityKernel, RefusesWhatItCannotRun) {
  CapacityParams p;
  p.gate = gate_mixtral(1024, 8);
  p.width = 10;
  p.partitions = 8;
  EXPECT_EQ(can_run(p), Status::kOk);
  p.partitions = 9;
  EXPECT_EQ(can_run(p), Status::kUnsupported) << "9216 loads";
  p.partitions = 0;
  EXPECT_EQ(can_run(p), Status::kInvalidShape);
  p.partitions = 1;
  p.tokens = 1;
  EXPECT_EQ(workspace_bytes(p), 32U) << "8 slots and 2 counts of 2 bytes, to 16";
  EXPECT_EQ(launch(p, nullptr), Status::kWorkspaceTooSmall);
  p.policy = policy_from_text("capacity.rule=share capacity.order=prob", "test");
  EXPECT_EQ(workspace_bytes(p), 4240U) << "16 bytes a slot, 6, 1024 loads, to 16";
  p.policy = policy_from_text("capacity.rule=share capacity.order=random", "test");
  EXPECT_EQ(can_run(p), Status::kInvalidShape) << "random order without sequence and position";
  p.gate.top_k = 33;
  p.width = 64;
  p.policy = {};
  EXPECT_EQ(can_run(p), Status::kUnsupported) << "33 slots";
}

// Ties to even at the 16 dropped bits; the largest float becomes infinite; a NaN stays one.
TEST(Bf16, RoundsToNearestEven) {
  const auto rounded = [](std::uint32_t bits) {
    gpu::Bf16 b{};
    gpu::store(&b, gpu::bits_float(bits));
    return b.bits;
  };
  EXPECT_EQ(rounded(0x3F808000U), 0x3F80U);
  EXPECT_EQ(rounded(0x3F818000U), 0x3F82U);
  EXPECT_EQ(rounded(0x3F808001U), 0x3F81U);
  EXPECT_EQ(rounded(0xBF817FFFU), 0xBF81U);
  EXPECT_EQ(rounded(0x7F7FFFFFU), 0x7F80U);
  EXPECT_EQ(rounded(0x7F800001U), 0x7FC0U);
}

}  // namespace
}  // namespace switchyard::kernels
