// SPDX-License-Identifier: Apache-2.0
// Capture beside the computation, on the host executor's two queues.
#include <gtest/gtest.h>

#include "tests/kernels/capture_checks.hpp"

namespace switchyard::kernels {
namespace {

TEST(CaptureRing, BringsEveryCaptureInOrderInEitherOrderOfTheQueues) {
  EXPECT_EQ(check_capture(), "");
}

TEST(CaptureRing, ForgetsWhatIsDropped) {
  const auto device = host::make_device(1 << 20, host::QueueOrder::kCaptureFirst);
  CaptureRing ring(*device, 2,
                   {[&](std::size_t bytes) { return device->take(bytes); },
                    [&](void* memory, std::size_t) { device->give_back(memory); }});
  int taken = 0;
  for (int i = 0; i < 2; ++i) {
    (void)ring.begin(16);
    ring.end([&](std::span<const std::byte>) { ++taken; });
  }
  ring.drop();
  ring.finish();
  EXPECT_EQ(taken, 0);
  (void)ring.begin(64);
  ring.end([&](std::span<const std::byte> bytes) { taken += static_cast<int>(bytes.size()); });
  ring.finish();
  EXPECT_EQ(taken, 64);
}

TEST(CaptureRing, GivesItsMemoryBack) {
  const auto device = host::make_device(4096);
  {
    CaptureRing ring(*device, 3,
                     {[&](std::size_t bytes) { return device->take(bytes); },
                      [&](void* memory, std::size_t) { device->give_back(memory); }});
    for (std::size_t i = 0; i < 7; ++i) {
      (void)ring.begin(64 * (i + 1));
      ring.end([](std::span<const std::byte>) {});
    }
    EXPECT_EQ(device->free_bytes(), 4096U - 64 * (5 + 6 + 7));
  }
  EXPECT_EQ(device->free_bytes(), 4096U);
}

// The queues themselves: what waits for nothing may come at any time.
TEST(HostQueues, RunNothingBeforeSomebodyWaitsAndThenInTheGivenOrder) {
  for (const bool compute_first : {true, false}) {
    const auto device = host::make_device(
        4096, compute_first ? host::QueueOrder::kComputeFirst : host::QueueOrder::kCaptureFirst);
    auto* const there = static_cast<std::uint32_t*>(device->take(4));
    auto* const here = static_cast<std::uint32_t*>(device->take_pinned(4));
    const gpu::Event copied = device->make_event();
    std::uint32_t value = 1;
    ASSERT_TRUE(device->copy_in(there, &value, 4));
    ASSERT_TRUE(device->capture(here, there, 4));  // without a wait
    ASSERT_TRUE(device->record(copied, gpu::Queue::kCapture));
    value = 2;
    ASSERT_TRUE(device->copy_in(there, &value, 4));
    EXPECT_EQ(*here, 0xFFFFFFFFU) << "nobody waited yet";
    ASSERT_TRUE(device->finish(copied));
    EXPECT_EQ(*here, compute_first ? 2U : 1U);
    device->give_back_event(copied);
    device->give_back_pinned(here);
  }
}

TEST(HostQueues, TellAFaultToWhoeverWaits) {
  const auto device = host::make_device(4096);
  device->stream()->push([] { return false; });
  std::uint32_t word = 0;
  void* const there = device->take(4);
  EXPECT_FALSE(device->copy_out(&word, there, 4));
  EXPECT_TRUE(device->copy_out(&word, there, 4)) << "told once";
}

}  // namespace
}  // namespace switchyard::kernels
