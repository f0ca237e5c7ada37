// SPDX-License-Identifier: Apache-2.0
// --device cuda: opens libswitchyard_cuda.so by dlopen, so that the program links no CUDA, and says
// in one line what is missing when it cannot be used.
// Not modelled: choosing a device other than the first; CUDA_VISIBLE_DEVICES does that.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/backend/backend.hpp"

namespace switchyard::cli {

/// What the library and the first GPU are.
struct CudaDevice {
  std::string library_version;
  std::int32_t count = 0;  ///< >= 1.
  std::string name;
  std::int32_t major = 0, minor = 0;  ///< Compute capability, >= 8.0.
  std::uint64_t memory_bytes = 0;
};

/// Where the library is looked for first: beside the running program.
[[nodiscard]] std::filesystem::path cuda_library();

/// Opens `library` (if that file does not exist: the loader's search path, by file name) and asks
/// it. Throws CapabilityError, one line: no library, a library of another build, no usable driver,
/// no GPU, or a GPU older than compute capability 8.0. The library stays open.
[[nodiscard]] CudaDevice probe_cuda(const std::filesystem::path& library = cuda_library());

/// The backend of the first GPU, in float32 or BF16. CapabilityError: that of probe_cuda(), a library of another
/// version than this program, or a device that does not open.
[[nodiscard]] std::unique_ptr<Backend> open_cuda(
    bool bf16, const std::filesystem::path& library = cuda_library());

}  // namespace switchyard::cli
