// SPDX-License-Identifier: Apache-2.0
// What switchyard-device needs beside the checks: all of its heap is managed memory, so that the
// checks hand vectors to kernels as they do on the host executor.
#include <cuda_runtime_api.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "kernels/host/executor.hpp"

namespace {

/// One region of managed memory; freed blocks wait in lists by power of two and are handed out
/// again. Under SWITCHYARD_SANITIZE blocks of 256 bytes and more are allocations of their own,
/// whose ends compute-sanitizer knows. One thread.
class ManagedHeap {
 public:
  void* take(std::size_t bytes) {
    if (alone() && bytes >= 256) {
      Block* own = nullptr;
      if (cudaMallocManaged(reinterpret_cast<void**>(&own), sizeof(Block) + bytes,
                            cudaMemAttachGlobal) != cudaSuccess) {
        throw std::bad_alloc();
      }
      own->size_class = kAlone;
      return own + 1;
    }
    const unsigned size_class = class_of(bytes);
    if (free_[size_class] != nullptr) {
      Block* const block = free_[size_class];
      free_[size_class] = block->next;
      return block + 1;
    }
    const std::size_t size = std::size_t{1} << size_class;
    if (base_ == nullptr && cudaMallocManaged(reinterpret_cast<void**>(&base_), kRegion,
                                              cudaMemAttachGlobal) != cudaSuccess) {
      base_ = static_cast<char*>(std::malloc(kRegion));  // no GPU; main() will say so
    }
    if (base_ == nullptr || used_ + size > kRegion) {
      throw std::bad_alloc();
    }
    Block* const block = reinterpret_cast<Block*>(base_ + used_);
    used_ += size;
    block->size_class = size_class;
    return block + 1;
  }
  void give_back(void* memory) {
    Block* const block = static_cast<Block*>(memory) - 1;
    if (block->size_class == kAlone) {
      cudaFree(block);
      return;
    }
    block->next = free_[block->size_class];
    free_[block->size_class] = block;
  }

 private:
  struct alignas(64) Block {
    Block* next;
    std::uint64_t size_class;
  };
  static unsigned class_of(std::size_t bytes) {
    return static_cast<unsigned>(std::bit_width(bytes + sizeof(Block) - 1));
  }
  static constexpr std::size_t kRegion = std::size_t{8} << 30;
  static constexpr std::uint64_t kAlone = 63;
  static bool alone() {
    static const bool on = std::getenv("SWITCHYARD_SANITIZE") != nullptr;
    return on;
  }
  char* base_ = nullptr;
  std::size_t used_ = 0;
  std::array<Block*, 48> free_{};
};

ManagedHeap heap;
switchyard::host::Schedule current;

}  // namespace

void* operator new(std::size_t bytes) { return heap.take(bytes); }
void* operator new[](std::size_t bytes) { return heap.take(bytes); }
void operator delete(void* memory) noexcept {
  if (memory != nullptr) {
    heap.give_back(memory);
  }
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }

namespace switchyard::host {
// On a GPU a schedule only chooses the garbage that outputs start with.
void set_schedule(Schedule schedule) { current = schedule; }
Schedule schedule() { return current; }
std::string take_fault() { return {}; }
}  // namespace switchyard::host

namespace switchyard::kernels {
bool finish_launches(std::string& why);
bool finish_launches(std::string& why) {
  const cudaError_t result = cudaDeviceSynchronize();
  why = result == cudaSuccess ? "" : cudaGetErrorString(result);
  return result == cudaSuccess;
}
}  // namespace switchyard::kernels
