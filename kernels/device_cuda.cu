// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <new>

#include "kernels/device.hpp"

namespace switchyard::gpu {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(cudaStream_t stream, cudaStream_t capture, const cudaDeviceProp& properties)
      : stream_(stream),
        capture_(capture),
        name_("sm_" + std::to_string(properties.major * 10 + properties.minor) + " " +
              properties.name),
        identity_(hex(properties.uuid.bytes, sizeof properties.uuid.bytes)),
        reads_host_pages_(properties.pageableMemoryAccessUsesHostPageTables != 0) {}
  ~CudaDevice() override {
    cudaStreamDestroy(capture_);
    cudaStreamDestroy(stream_);
  }

  std::string name() const override { return name_; }
  std::string identity() const override { return identity_; }
  void* take(std::size_t bytes) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();  // out of memory is the caller's to tell
      return nullptr;
    }
    return memory;
  }
  void give_back(void* memory) noexcept override { cudaFree(memory); }
  std::uint64_t free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  bool copy_in(void* device, const void* host, std::size_t bytes) override {
    if (!good(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_))) {
      return false;
    }
    // From pageable memory the call returns when the bytes are staged, unless the GPU reads the
    // host's page tables (Grace Hopper): then, and from pinned and managed memory (all of
    // switchyard-device's), they may be read later.
    cudaPointerAttributes from{};
    const bool staged = !reads_host_pages_ &&
                        cudaPointerGetAttributes(&from, host) == cudaSuccess &&
                        from.type == cudaMemoryTypeUnregistered;
    return staged || good(cudaStreamSynchronize(stream_));
  }
  bool copy_out(void* host, const void* device, std::size_t bytes) override {
    return good(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_)) &&
           good(cudaStreamSynchronize(stream_));
  }
  bool copy(void* to, const void* from, std::size_t bytes) override {
    return good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  Stream stream() override { return stream_; }
  std::string error() override {
    const cudaError_t now = cudaGetLastError();
    return cudaGetErrorString(last_ != cudaSuccess ? last_ : now);
  }

  void* take_pinned(std::size_t bytes) override {
    void* memory = nullptr;
    return good(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault)) ? memory : nullptr;
  }
  void give_back_pinned(void* memory) noexcept override { cudaFreeHost(memory); }
  Event make_event() override {
    cudaEvent_t event = nullptr;
    return good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)) ? event : nullptr;
  }
  void give_back_event(Event event) noexcept override {
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  bool record(Event event, Queue queue) override {
    return good(cudaEventRecord(static_cast<cudaEvent_t>(event), of(queue)));
  }
  bool wait(Event event, Queue queue) override {
    return good(cudaStreamWaitEvent(of(queue), static_cast<cudaEvent_t>(event), 0));
  }
  bool finish(Event event) override {
    return good(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
  }
  bool reached(Event event, bool& there) override {
    const cudaError_t now = cudaEventQuery(static_cast<cudaEvent_t>(event));
    there = now == cudaSuccess;
    if (now == cudaErrorNotReady) {
      cudaGetLastError();  // no error, but kept as one
      return true;
    }
    return good(now);
  }
  bool capture(void* pinned, const void* device, std::size_t bytes) override {
    return good(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, capture_));
  }

 private:
  static std::string hex(const char* bytes, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      out += "0123456789abcdef"[byte / 16];
      out += "0123456789abcdef"[byte % 16];
    }
    return out;
  }
  cudaStream_t of(Queue queue) const { return queue == Queue::kCompute ? stream_ : capture_; }
  bool good(cudaError_t result) {
    last_ = result == cudaSuccess ? last_ : result;
    return result == cudaSuccess;
  }
  cudaStream_t stream_;
  cudaStream_t capture_;
  std::string name_;
  std::string identity_;
  bool reads_host_pages_;
  cudaError_t last_ = cudaSuccess;
};

}  // namespace

std::unique_ptr<Device> open_device(std::string& why, unsigned number) {
  cudaDeviceProp properties{};
  cudaStream_t stream = nullptr;
  cudaStream_t capture = nullptr;
  cudaError_t result = cudaSetDevice(static_cast<int>(number));
  if (result == cudaSuccess) {
    result = cudaGetDeviceProperties(&properties, static_cast<int>(number));
  }
  if (result == cudaSuccess) {
    result = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  if (result == cudaSuccess) {
    result = cudaStreamCreateWithFlags(&capture, cudaStreamNonBlocking);
    if (result != cudaSuccess) {
      cudaStreamDestroy(stream);
    }
  }
  if (result != cudaSuccess) {
    why = cudaGetErrorString(result);
    return nullptr;
  }
  return std::make_unique<CudaDevice>(stream, capture, properties);
}

}  // namespace switchyard::gpu
