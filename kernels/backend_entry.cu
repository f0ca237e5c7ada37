// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend_entry.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda_backend.hpp"
#include "kernels/join_entry.hpp"

#define SWITCHYARD_EXPORT extern "C" __attribute__((visibility("default")))

SWITCHYARD_EXPORT int32_t switchyard_cuda_abi(void) { return SWITCHYARD_CUDA_ABI; }

SWITCHYARD_EXPORT const char* switchyard_cuda_version(void) { return SWITCHYARD_VERSION; }

SWITCHYARD_EXPORT int32_t switchyard_cuda_probe(SwitchyardCudaDevice* device, char* message,
                                                uint64_t message_size) {
  std::memset(device, 0, sizeof(*device));
  message[0] = '\0';
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    std::snprintf(message, message_size, "no CUDA driver is installed");
    return -1;
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0)) {
    return 0;
  }
  const auto fail = [&](cudaError_t error) {
    std::snprintf(message, message_size, "%s", cudaGetErrorString(error));
    return -1;
  };
  if (counted != cudaSuccess) {
    return fail(counted);
  }
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0); error != cudaSuccess) {
    return fail(error);
  }
  std::snprintf(device->name, sizeof(device->name), "%s", properties.name);
  device->major = properties.major;
  device->minor = properties.minor;
  device->memory_bytes = properties.totalGlobalMem;
  return count;
}

SWITCHYARD_EXPORT void* switchyard_cuda_open(int32_t number, int32_t bf16, char* message,
                                             uint64_t message_size) {
  message[0] = '\0';
  std::string why;
  std::unique_ptr<switchyard::gpu::Device> device =
      switchyard::gpu::open_device(why, static_cast<unsigned>(number));
  if (device == nullptr) {
    std::snprintf(message, message_size, "%s", why.c_str());
    return nullptr;
  }
  // As the interface that the program deletes it through.
  // Without the library our own kernel multiplies; the backend's name says so.
  std::unique_ptr<switchyard::gpu::DenseLibrary> dense =
      bf16 != 0 ? switchyard::gpu::open_cublas_lt(why) : nullptr;
  switchyard::Backend* const backend =
      switchyard::gpu::make_cuda_backend(std::move(device), {.bf16 = bf16 != 0}, std::move(dense))
          .release();
  return backend;
}

SWITCHYARD_EXPORT void* switchyard_cuda_join(void* backend, void* job, uint64_t timeout_ms,
                                             char* message, uint64_t message_size) {
  return switchyard::gpu::join_entry(static_cast<switchyard::Backend*>(backend),
                                     static_cast<switchyard::Communicator*>(job), timeout_ms,
                                     switchyard::gpu::nccl::kFile, message, message_size);
}
