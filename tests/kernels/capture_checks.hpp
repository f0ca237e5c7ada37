// SPDX-License-Identifier: Apache-2.0
// The check of the capture ring on the host executor's queues, in both of their orders; also
// compiled against changed copies of it (see checks.hpp).
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/capture_ring.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/host/device_host.hpp"
#include "kernels/host/executor.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Ten captures through a ring of `slots`: capture i holds i + 1 floats that a kernel copies from
/// an input, which the next capture overwrites.
inline std::string check_ring(host::QueueOrder order, std::size_t slots) {
  const std::unique_ptr<gpu::Device> device = host::make_device(1 << 20, order);
  CaptureRing ring(*device, slots,
                   {[&](std::size_t bytes) { return device->take(bytes); },
                    [&](void* memory, std::size_t) { device->give_back(memory); }});
  constexpr std::size_t kCaptures = 10;
  auto* const input = static_cast<float*>(device->take(kCaptures * sizeof(float)));
  std::vector<std::vector<float>> got;
  std::string what;
  for (std::size_t i = 0; i < kCaptures; ++i) {
    const std::vector<float> values(i + 1, static_cast<float>(i));
    const std::size_t bytes = values.size() * sizeof(float);
    std::byte* const there = ring.begin(bytes);
    RowParams p;
    p.operation = RowOperation::kCopy;
    p.rows = 1;
    p.columns = values.size();
    p.x = input;
    p.out = there;
    if (!device->copy_in(input, values.data(), bytes) ||
        launch(p, device->stream()) != gpu::Status::kOk) {
      return "the device failed: " + device->error();
    }
    ring.end([&got](std::span<const std::byte> from) {
      got.emplace_back(from.size() / sizeof(float));
      std::memcpy(got.back().data(), from.data(), from.size());
    });
  }
  ring.finish();
  device->give_back(input);
  for (std::size_t i = 0; i < kCaptures && what.empty(); ++i) {
    if (i >= got.size() || got[i] != std::vector<float>(i + 1, static_cast<float>(i))) {
      what = "order " + std::to_string(static_cast<int>(order)) + ", " + std::to_string(slots) +
             " slots: capture " + std::to_string(i) + " is not what was computed";
    }
  }
  return got.size() == kCaptures || !what.empty() ? what : "a capture was delivered twice";
}

inline std::string check_capture() {
  for (const auto order : {host::QueueOrder::kComputeFirst, host::QueueOrder::kCaptureFirst}) {
    for (const std::size_t slots : {std::size_t{1}, std::size_t{3}, std::size_t{16}}) {
      const std::string what = check_ring(order, slots);
      if (!what.empty()) {
        return what;
      }
    }
  }
  return {};
}

}  // namespace switchyard::SWITCHYARD_KERNELS
