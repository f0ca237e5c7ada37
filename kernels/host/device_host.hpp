// SPDX-License-Identifier: Apache-2.0
// A Device whose memory is the host's and whose launches the host executor runs. Nothing queued
// runs before somebody waits for it, and then in the order that shows most mistakes: one queue as
// far as it gets, then the other. So a copy that waits for no kernel reads what was there before
// (kCaptureFirst), a kernel that waits for no copy overwrites what it was to read (kComputeFirst),
// and a host that waits for nothing reads old bytes; results that differ between the two orders, or
// from the right ones, mean a missing wait.
// Not modelled: queues that run beside each other in pieces; the cost of anything.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device.hpp"

namespace switchyard::host {

enum class QueueOrder : std::uint8_t { kComputeFirst, kCaptureFirst };

/// `memory` bytes in all. New memory is filled with 0xFF: NaN as a float.
[[nodiscard]] std::unique_ptr<gpu::Device> make_device(
    std::uint64_t memory, QueueOrder order = QueueOrder::kComputeFirst);

}  // namespace switchyard::host
