// SPDX-License-Identifier: Apache-2.0
// Results of kernels brought to the host while the device goes on: a ring of slots, each a piece of
// device memory and as much pinned host memory.
//
//   CaptureRing ring(device, 8, memory);
//   std::byte* there = ring.begin(bytes);   // kernels write here
//   …launches…
//   ring.end([](std::span<const std::byte> bytes) { … });
//   ring.finish();                          // every taker was called, in the order of end()
//
// The copy of a slot runs on the capture queue behind what the compute queue was given before
// end(). A slot is used again when its taker was called: begin() waits for the oldest copy once all
// slots are out, so the device is never more than the ring ahead of the host, and a kernel never
// overwrites what is still to be copied.
// Not modelled: several threads of the host.
#ifndef SWITCHYARD_KERNELS_CAPTURE_RING_HPP_
#define SWITCHYARD_KERNELS_CAPTURE_RING_HPP_
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "kernels/device.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Device memory of the ring; take() throws what its owner throws when there is none.
struct CaptureMemory {
  std::function<void*(std::size_t bytes)> take;
  std::function<void(void* memory, std::size_t bytes)> give_back;
};

class CaptureRing {
 public:
  using Taker = std::function<void(std::span<const std::byte>)>;

  /// `device` and what `memory` refers to outlive the ring. slots >= 1.
  CaptureRing(gpu::Device& device, std::size_t slots, CaptureMemory memory)
      : device_(device), memory_(std::move(memory)), slots_(slots) {}
  CaptureRing(const CaptureRing&) = delete;
  CaptureRing& operator=(const CaptureRing&) = delete;
  ~CaptureRing() {
    drop();
    for (Slot& s : slots_) {
      release(s);
      give_back(s.filled);
      give_back(s.copied);
    }
  }

  /// Device memory of the next capture, aligned to 256; its content is whatever was there.
  std::byte* begin(std::size_t bytes) {
    Slot& s = slots_[next_];
    deliver(s);
    if (s.filled == nullptr) {
      s.filled = device_.make_event();
      s.copied = device_.make_event();
      check(s.filled != nullptr && s.copied != nullptr);
    }
    if (bytes > s.size) {
      release(s);
      auto* const here = static_cast<std::byte*>(device_.take_pinned(bytes));
      check(here != nullptr);
      s.here = here;
      s.there = static_cast<std::byte*>(memory_.take(bytes));
      s.size = bytes;
    }
    s.bytes = bytes;
    return s.there;
  }
  /// Queues the copy of what begin() gave; `take` is called by a later begin() or by finish().
  void end(Taker take) {
    Slot& s = slots_[next_];
    check(device_.record(s.filled, gpu::Queue::kCompute));
    check(device_.wait(s.filled, gpu::Queue::kCapture));
    s.take = std::move(take);  // from here on drop() waits
    check(device_.capture(s.here, s.there, s.bytes));
    check(device_.record(s.copied, gpu::Queue::kCapture));
    next_ = (next_ + 1) % slots_.size();
  }
  /// Waits for all copies and calls their takers, the oldest first.
  void finish() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      deliver(slots_[(next_ + i) % slots_.size()]);
    }
  }
  /// Waits for all copies and calls nobody.
  void drop() noexcept {
    for (Slot& s : slots_) {
      if (s.take) {
        (void)device_.finish(s.copied);
        s.take = {};
      }
    }
  }

 private:
  struct Slot {
    std::byte* there = nullptr;  // device
    std::byte* here = nullptr;   // pinned
    std::size_t size = 0, bytes = 0;
    gpu::Event filled = nullptr, copied = nullptr;
    Taker take;  // not empty: the slot is out
  };

  void check(bool good) {
    if (!good) {
      throw CapabilityError("--device cuda: captured results did not arrive: " + device_.error());
    }
  }
  void deliver(Slot& s) {
    if (!s.take) {
      return;
    }
    check(device_.finish(s.copied));
    const Taker take = std::exchange(s.take, {});
    take({s.here, s.bytes});
  }
  void release(Slot& s) noexcept {
    if (s.here != nullptr) {
      device_.give_back_pinned(std::exchange(s.here, nullptr));
    }
    if (s.there != nullptr) {
      memory_.give_back(std::exchange(s.there, nullptr), s.size);
    }
    s.size = 0;
  }
  void give_back(gpu::Event event) noexcept {
    if (event != nullptr) {
      device_.give_back_event(event);
    }
  }

  gpu::Device& device_;
  CaptureMemory memory_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace switchyard::SWITCHYARD_KERNELS

#endif  // SWITCHYARD_KERNELS_CAPTURE_RING_HPP_
