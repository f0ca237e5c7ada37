// SPDX-License-Identifier: Apache-2.0
#include "kernels/nccl_api.hpp"
#include "kernels/toolkit_library.hpp"

namespace switchyard::gpu::nccl {

bool open(const char* file, Functions& functions, std::string& why) {
  void* const library = open_of_toolkit(file);
  if (library == nullptr) {
    why = std::string(file) + " is not on this machine";
    return false;
  }
#define SWITCHYARD_NCCL_LOAD(name, result, arguments)                                   \
  functions.name = reinterpret_cast<result(*) arguments>(dlsym(library, "nccl" #name)); \
  if (functions.name == nullptr) {                                                      \
    why = std::string(file) + " has no nccl" #name;                                     \
    return false;                                                                       \
  }
  SWITCHYARD_NCCL_FUNCTIONS(SWITCHYARD_NCCL_LOAD)
#undef SWITCHYARD_NCCL_LOAD
  return true;
}

std::string version_text(int number) {
  const int major = number < 10000 ? 1000 : 10000;
  return std::to_string(number / major) + "." + std::to_string(number % major / 100) + "." +
         std::to_string(number % 100);
}

}  // namespace switchyard::gpu::nccl
