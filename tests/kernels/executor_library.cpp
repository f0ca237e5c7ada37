// SPDX-License-Identifier: Apache-2.0
// Stands in for libswitchyard_cuda.so with the same backend, over the host executor.
#include <cstdio>
#include <cstring>
#include <string>

#include "engine/base/version.hpp"
#include "kernels/backend_entry.h"
#include "kernels/cuda_backend.hpp"
#include "kernels/join_entry.hpp"

extern "C" {

int32_t switchyard_cuda_abi() { return SWITCHYARD_CUDA_ABI; }
const char* switchyard_cuda_version() {
  static const std::string text = switchyard::version();
  return text.c_str();
}
int32_t switchyard_cuda_probe(SwitchyardCudaDevice* device, char* message, uint64_t) {
  std::memset(device, 0, sizeof(*device));
  message[0] = '\0';
  std::strcpy(device->name, "host executor");
  device->major = 9;
  device->memory_bytes = 1 << 30;
  return 1;
}
void* switchyard_cuda_open(int32_t, int32_t bf16, char* message, uint64_t) {
  message[0] = '\0';
  std::string why;
  switchyard::Backend* const backend =
      switchyard::gpu::make_cuda_backend(switchyard::gpu::open_device(why), {.bf16 = bf16 != 0})
          .release();
  return backend;
}
void* switchyard_cuda_join(void* backend, void* job, uint64_t timeout_ms, char* message,
                           uint64_t message_size) {
  return switchyard::gpu::join_entry(static_cast<switchyard::Backend*>(backend),
                                     static_cast<switchyard::Communicator*>(job), timeout_ms,
                                     "libnccl_of_the_executor.so.2", message, message_size);
}

}  // extern "C"
