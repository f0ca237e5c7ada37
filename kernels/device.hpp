// SPDX-License-Identifier: Apache-2.0
// A device's memory and its one stream, as the backend needs them: of a GPU (device_cuda.cu), or of
// the host executor in tests (host/device_host.cpp).
// Not modelled: several streams, pinned host memory, several devices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

class Device {
 public:
  virtual ~Device() = default;
  /// "sm_90 NVIDIA H200"; goes into the engine build that traces record.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Bytes aligned to 256, not initialised; null: not so much is free.
  [[nodiscard]] virtual void* take(std::size_t bytes) = 0;
  /// Waits for queued work first.
  virtual void give_back(void* memory) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes() const = 0;
  /// Copies behind all queued work; the host memory may change after the return. False: the device
  /// failed.
  [[nodiscard]] virtual bool copy_in(void* device, const void* host, std::size_t bytes) = 0;
  /// Waits until the bytes are there.
  [[nodiscard]] virtual bool copy_out(void* host, const void* device, std::size_t bytes) = 0;
  [[nodiscard]] virtual Stream stream() = 0;
  /// What failed, after a false or Status::kLaunchFailed; one line.
  [[nodiscard]] virtual std::string error() = 0;
};

/// Device 0 (CUDA_VISIBLE_DEVICES chooses it). Null: none, with a reason in `why`.
[[nodiscard]] std::unique_ptr<Device> open_device(std::string& why);

}  // namespace switchyard::gpu
