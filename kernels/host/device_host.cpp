// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/device_host.hpp"

#include <cstring>
#include <map>
#include <new>

#include "kernels/host/executor.hpp"

namespace switchyard::host {
namespace {

constexpr std::align_val_t kAlignment{256};

class HostDevice final : public gpu::Device {
 public:
  explicit HostDevice(std::uint64_t memory) : free_(memory) {}
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;
  ~HostDevice() override {
    while (!taken_.empty()) {
      give_back(taken_.begin()->first);
    }
  }
  std::string name() const override { return "host executor"; }
  void* take(std::size_t bytes) override {
    if (bytes > free_) {
      return nullptr;
    }
    void* const memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0xFF, bytes);
    free_ -= bytes;
    taken_[memory] = bytes;
    return memory;
  }
  void give_back(void* memory) noexcept override {
    const auto it = taken_.find(memory);
    if (it != taken_.end()) {
      free_ += it->second;
      taken_.erase(it);
      ::operator delete(memory, kAlignment);
    }
  }
  std::uint64_t free_bytes() const override { return free_; }
  bool copy_in(void* device, const void* host, std::size_t bytes) override {
    std::memcpy(device, host, bytes);
    return true;
  }
  bool copy_out(void* host, const void* device, std::size_t bytes) override {
    std::memcpy(host, device, bytes);
    return true;
  }
  gpu::Stream stream() override { return nullptr; }
  std::string error() override { return take_fault(); }

 private:
  std::uint64_t free_;
  std::map<void*, std::size_t> taken_;
};

}  // namespace

std::unique_ptr<gpu::Device> make_device(std::uint64_t memory) {
  return std::make_unique<HostDevice>(memory);
}

}  // namespace switchyard::host

namespace switchyard::gpu {

std::unique_ptr<Device> open_device(std::string& why) {
  why.clear();
  constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;
  return host::make_device(kMemory);
}

}  // namespace switchyard::gpu
