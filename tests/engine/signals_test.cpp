// SPDX-License-Identifier: Apache-2.0
// `trace --signals`: what the engine reads of a simulated run.
#include "experiments/cli/signals.hpp"

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "sim/run/run_file.hpp"
#include "tests/run/sample_run.hpp"

namespace switchyard {
namespace {

std::filesystem::path write_run(run::Detail detail) {
  const run::Inventory inv = run::testing::sample_inventory();
  run::RunWriter writer("signals.h5", run::testing::sample_meta(detail), inv);
  for (std::uint32_t s = 0; s < 3; ++s) {
    run::StepRecord step = run::testing::sample_step(inv, s);
    // weights, experts, KV, activations, buffers, runtime; the activations do not outlive the step.
    step.gpu_memory = {100, 300, 50 + 10 * s, 200, 20, 80, 100, 300, 0, 200, 20, 80};
    step.gpu_memory_peak = {750, 700};
    writer.append(step);
  }
  (void)writer.finish();
  return "signals.h5";
}

TEST(Signals, AreMemoryThatOutlivesAStepPlacementAndTime) {
  const SignalTable t = cli::read_signals(write_run(run::Detail::kLayers), 2, 4);
  ASSERT_EQ(t.steps(), 3U);
  EXPECT_DOUBLE_EQ(t.view(0, 0).start, 0);
  EXPECT_DOUBLE_EQ(t.view(2, 0).start, 200e-6);
  // Step 0 begins without a KV cache, step 2 with what step 1 left: 60 bytes of 1000.
  EXPECT_DOUBLE_EQ(t.view(0, 0).used[0], 0.48);
  EXPECT_DOUBLE_EQ(t.view(2, 0).used[0], 0.54);
  EXPECT_DOUBLE_EQ(t.view(2, 0).elastic[0], 60.0 / 520);
  EXPECT_DOUBLE_EQ(t.view(2, 0).elastic[1], 0);
  // Experts 0 and 1 on GPU 0, 2 and 3 on GPU 1.
  for (std::uint32_t l = 0; l < 2; ++l) {
    const Signals s = t.view(1, l);
    for (std::uint32_t e = 0; e < 4; ++e) {
      EXPECT_EQ(s.first_gpu[e + 1] - s.first_gpu[e], 1U);
      EXPECT_EQ(s.gpu[s.first_gpu[e]], e / 2);
    }
  }
}

TEST(Signals, OfAnotherModelOrWithoutStepsAreRefused) {
  const auto refusal = [](run::Detail detail, std::uint32_t layers) {
    try {
      (void)cli::read_signals(write_run(detail), layers, 4);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal(run::Detail::kLayers, 3),
            "--signals: signals.h5 is of a model with 2 MoE layers of 4 experts, this one has 3 of "
            "4; simulate this model");
  EXPECT_EQ(refusal(run::Detail::kSummary, 2),
            "--signals: signals.h5 holds no steps; simulate with run.detail = \"steps\" or more");
  EXPECT_EQ(refusal(run::Detail::kSteps, 2), "accepted");
}

}  // namespace
}  // namespace switchyard
