// SPDX-License-Identifier: Apache-2.0
// What switchyard_cuda_join of backend_entry.h does, for the library and its stand-in in tests.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "kernels/cuda_backend.hpp"
#include "kernels/nccl_api.hpp"
#include "kernels/nccl_communicator.hpp"

namespace switchyard::gpu {

inline Communicator* join_entry(Backend* backend, Communicator* job, std::uint64_t timeout_ms,
                                const char* file, char* message, std::uint64_t message_size) {
  message[0] = '\0';
  std::string why;
  auto joined = join_nccl(*job, static_cast<CudaBackend*>(backend)->device(), file,
                          std::chrono::milliseconds(timeout_ms), why);
  std::snprintf(message, message_size, "%s", why.c_str());
  return joined.release();
}

}  // namespace switchyard::gpu
