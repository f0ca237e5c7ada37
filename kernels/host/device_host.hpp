// SPDX-License-Identifier: Apache-2.0
// The host executor as a Device with a given amount of memory, for tests. New memory is filled with
// 0xFF bytes (NaN as floats), so that a read of what nobody wrote shows.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device.hpp"

namespace switchyard::host {

[[nodiscard]] std::unique_ptr<gpu::Device> make_device(std::uint64_t memory);

}  // namespace switchyard::host
