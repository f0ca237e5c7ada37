// SPDX-License-Identifier: Apache-2.0
// A device's memory and its two queues of work, as the backend needs them: of a GPU
// (device_cuda.cu), or of the host executor in tests (host/device_host.cpp).
// The compute queue takes kernels and copies; the capture queue copies results to the host beside
// it. Nothing orders the two but record() and wait().
// Not modelled: more queues, copies between devices (NCCL does those: nccl_communicator.hpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

enum class Queue : std::uint8_t { kCompute, kCapture };

/// A mark in a queue; owned by the device that made it. Null: none.
using Event = void*;

class Device {
 public:
  virtual ~Device() = default;
  /// "sm_90 NVIDIA H200"; goes into the engine build that traces record.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Different for every device of a job, the same for two processes on one device.
  [[nodiscard]] virtual std::string identity() const = 0;
  /// Bytes aligned to 256, not initialised; null: not so much is free.
  [[nodiscard]] virtual void* take(std::size_t bytes) = 0;
  /// Waits for queued work first.
  virtual void give_back(void* memory) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes() const = 0;
  /// Copies behind the compute queue's work; the host memory may change after the return. False:
  /// the device failed.
  [[nodiscard]] virtual bool copy_in(void* device, const void* host, std::size_t bytes) = 0;
  /// Copies behind the compute queue's work and waits until the bytes are there.
  [[nodiscard]] virtual bool copy_out(void* host, const void* device, std::size_t bytes) = 0;
  /// Copies within the device, on the compute queue; returns at once.
  [[nodiscard]] virtual bool copy(void* to, const void* from, std::size_t bytes) = 0;
  /// The compute queue, for launches.
  [[nodiscard]] virtual Stream stream() = 0;
  /// What failed, after a false or Status::kLaunchFailed; one line.
  [[nodiscard]] virtual std::string error() = 0;

  /// Host memory that queued copies may write; null: there is none.
  [[nodiscard]] virtual void* take_pinned(std::size_t bytes) = 0;
  /// No copy to it is queued any more.
  virtual void give_back_pinned(void* memory) noexcept = 0;
  /// Null: the device failed. give_back_event() before the device ends.
  [[nodiscard]] virtual Event make_event() = 0;
  virtual void give_back_event(Event event) noexcept = 0;
  /// The event comes when all that `queue` was given so far is done; replaces an earlier mark.
  [[nodiscard]] virtual bool record(Event event, Queue queue) = 0;
  /// What `queue` is given from now on begins after the event's last mark.
  [[nodiscard]] virtual bool wait(Event event, Queue queue) = 0;
  /// The host waits for the event's last mark.
  [[nodiscard]] virtual bool finish(Event event) = 0;
  /// Asks without waiting whether the event's last mark is reached. False: the device failed.
  [[nodiscard]] virtual bool reached(Event event, bool& there) = 0;
  /// Copies on the capture queue; returns at once.
  [[nodiscard]] virtual bool capture(void* pinned, const void* device, std::size_t bytes) = 0;
};

/// Device `number` of those that CUDA_VISIBLE_DEVICES leaves; at most one a process. Null: none,
/// with a reason in `why`.
[[nodiscard]] std::unique_ptr<Device> open_device(std::string& why, unsigned number = 0);

}  // namespace switchyard::gpu
