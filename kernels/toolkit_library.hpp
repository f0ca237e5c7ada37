// SPDX-License-Identifier: Apache-2.0
// Libraries of NVIDIA that are opened at run time, where a machine has them.
#pragma once
#include <dlfcn.h>

#include <string>

namespace switchyard::gpu {

/// dlopen() of `file` ("libcublas.so.13") on the loader's path, else in /usr/local/cuda/lib64,
/// which toolkits of a distribution's package do not always tell the loader. Null: in neither.
/// Stays open.
inline void* open_of_toolkit(const char* file) {
  void* const found = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  return found != nullptr ? found
                          : dlopen((std::string("/usr/local/cuda/lib64/") + file).c_str(),
                                   RTLD_NOW | RTLD_LOCAL);
}

}  // namespace switchyard::gpu
