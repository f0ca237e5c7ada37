// SPDX-License-Identifier: Apache-2.0
#include "sim/run/conservation.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "sim/run/run_file.hpp"
#include "tests/run/sample_run.hpp"

namespace switchyard::run {
namespace {

using testing::sample_run;

/// "check | where | message" of what the spoilt run violates.
std::vector<std::string> violations_with(const std::function<void(RunData&)>& spoil) {
  RunData run = sample_run(10, Detail::kLayers);
  spoil(run);
  std::vector<std::string> out;
  for (const Violation& v : check_conservation(run)) {
    out.push_back(v.check + " | " + v.where + " | " + v.message);
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST(Conservation, HoldsInASoundRunOfAnyDetail) {
  for (const Detail detail : {Detail::kSummary, Detail::kSteps, Detail::kLayers}) {
    EXPECT_TRUE(check_conservation(sample_run(10, detail)).empty());
  }
  EXPECT_TRUE(check_conservation(sample_run(0, Detail::kLayers)).empty());
}

TEST(Conservation, FindsALostAssignment) {
  EXPECT_EQ(violations_with([](RunData& r) { r.steps[5].dropped = 0; }),
            (Lines{"assignments | step 5 | assignments = 16, kept + rerouted + queued + dropped = "
                   "15",
                   "assignments | step 5, experts | dropped over experts = 1, dropped = 0"}));
  EXPECT_EQ(violations_with([](RunData& r) { r.totals.kept -= 1; }),
            (Lines{"assignments | run | assignments = 160, kept + rerouted + queued + dropped = "
                   "159"}));
}

TEST(Conservation, FindsAnExpertThatRanMoreThanItGot) {
  // Expert 0 of layer 0 in step 2.
  EXPECT_EQ(violations_with([](RunData& r) {
              r.experts.kept[2 * 4] += 1;
              r.layer_experts[0].kept[2 * 4] += 1;
            }),
            (Lines{"assignments | step 2, experts | sum over experts = 17 exceeds kept + rerouted "
                   "+ queued = 16"}));
}

TEST(Conservation, FindsLayersThatDoNotSumToTheWhole) {
  EXPECT_EQ(violations_with([](RunData& r) { r.layer_experts[1].kept[3 * 4 + 2] = 7; }),
            (Lines{"assignments | step 3, expert 2 | kept over layers = 9, kept = 4"}));
}

TEST(Conservation, AcceptsAQueueThatRanAndOneThatWaits) {
  const auto queued = [](bool ran) {
    return [ran](RunData& r) {
      // One assignment of step 2 at expert 1 waits; with `ran` it ran in a wave of the step.
      r.steps[2].kept -= 1;
      r.steps[2].queued += 1;
      r.totals.kept -= 1;
      r.totals.queued += 1;
      r.experts.queued[2 * 4 + 1] = 1;
      if (!ran) {
        r.experts.kept[2 * 4 + 1] -= 1;
        r.layer_experts[0].kept[2 * 4 + 1] -= 1;
      }
    };
  };
  EXPECT_EQ(violations_with(queued(true)), Lines{});
  EXPECT_EQ(violations_with(queued(false)), Lines{});
}

TEST(Conservation, FindsBytesThatArriveNowhere) {
  EXPECT_EQ(violations_with([](RunData& r) { r.gpus.bytes_in[4 * 2 + 1] = 3999; }),
            (Lines{"bytes | step 4 | sum of GPUs' bytes in = 6999, received = 7000"}));
}

TEST(Conservation, FindsTimeThatIsMissing) {
  EXPECT_EQ(violations_with([](RunData& r) { r.steps[1].phase_ps[1] -= 1; }),
            (Lines{"time | step 1 | sum of phases [ps] = 99999999, duration [ps] = 100000000"}));
  EXPECT_EQ(violations_with([](RunData& r) { r.gpus.phase_ps[(3 * 2 + 1) * kPhases] += 5; }),
            (Lines{"time | step 3, GPU 1 | sum of phases [ps] = 100000005, duration [ps] = "
                   "100000000"}));
}

TEST(Conservation, FindsAnExchangeFasterThanItsFloor) {
  EXPECT_EQ(violations_with([](RunData& r) { r.layer_steps.dispatch_ps[6 * 2 + 1] = 3'999'999; }),
            (Lines{"floor | step 6, layer 3 | floor of dispatch [ps] = 4000000 exceeds dispatch "
                   "[ps] = 3999999"}));
}

TEST(Conservation, FindsALinkFasterThanItsBandwidth) {
  // 100 us at 1 GB/s carry 100 000 B.
  EXPECT_EQ(violations_with([](RunData& r) { r.links.bytes[2 * 7 + 1] = 100'000; }), Lines{});
  EXPECT_EQ(violations_with([](RunData& r) { r.links.bytes[2 * 7 + 1] = 100'010; }),
            (Lines{"floor | step 7, link down | 100010 B in 100000000 ps at 1e+09 B/s"}));
}

TEST(Conservation, FindsMemoryBeyondTheGpuUnlessItRanOut) {
  EXPECT_EQ(violations_with([](RunData& r) { r.totals.gpu_memory_peak[1] = 1001; }),
            (Lines{"memory | GPU 1 | high water [B] = 1001 exceeds its memory [B] = 1000"}));
  EXPECT_EQ(violations_with([](RunData& r) {
              r.totals.gpu_memory_peak[1] = 1001;
              Event oom;
              oom.kind = EventKind::kOutOfMemory;
              oom.gpu = 1;
              r.events.push_back(oom);
            }),
            Lines{});
  EXPECT_EQ(violations_with([](RunData& r) { r.gpus.memory_peak[8 * 2] = 500; }),
            (Lines{"memory | step 8, GPU 0 | high water [B] = 500 exceeds sum of categories [B] = "
                   "418"}));
}

TEST(Conservation, FindsARequestThatEndsBeforeItBegins) {
  EXPECT_EQ(violations_with([](RunData& r) { r.requests[0].first_token_ps = 5; }),
            (Lines{"requests | request 10 | arrival [ps] = 100000000 exceeds first token [ps] = "
                   "5"}));
}

TEST(Conservation, OfAFileIsThatOfTheRunWhateverTheWindow) {
  RunData run = sample_run(23, Detail::kLayers);
  run.experts.dropped[9 * 4 + 1] += 1;
  run.gpus.bytes_out[22 * 2] += 5;
  run.steps[7].bytes_received += 1;
  run.layer_experts[1].kept[16 * 4] += 2;
  write_run("broken.h5", run);
  const auto lines = [](const std::vector<Violation>& violations) {
    Lines out;
    for (const Violation& v : violations) {
      out.push_back(v.check + " | " + v.where + " | " + v.message);
    }
    return out;
  };
  const Lines expected = lines(check_conservation(run));
  EXPECT_GT(expected.size(), 3U);
  const RunReader reader("broken.h5");
  for (const std::uint64_t window : {0, 1, 7, 8, 23, 64}) {
    EXPECT_EQ(lines(check_conservation(reader, window)), expected) << window;
  }
}

TEST(Conservation, ListsTwentyOfEachKindAndCountsTheRest) {
  RunData run = sample_run(100, Detail::kSummary);
  for (StepScalars& s : run.steps) s.bytes_received += 1;
  const std::vector<Violation> v = check_conservation(run);
  ASSERT_EQ(v.size(), 21U);
  EXPECT_EQ(v.back().message, "80 more");
}

}  // namespace
}  // namespace switchyard::run
