// SPDX-License-Identifier: Apache-2.0
// --device cuda: opens libswitchyard_cuda.so by dlopen, so that the program links no CUDA, and says
// in one line what is missing when it cannot be used.
// Alone the first GPU is taken (CUDA_VISIBLE_DEVICES chooses another); in a job each rank of a
// machine takes the next one, starting over when there are more ranks than GPUs.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/backend/backend.hpp"
#include "engine/parallel/communicator.hpp"

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

/// The backend of a GPU, in float32 or BF16: of number local_rank mod their count. CapabilityError:
/// that of probe_cuda(), a library of another version than this program, or a device that does not
/// open.
[[nodiscard]] std::unique_ptr<Backend> open_cuda(
    bool bf16, const std::filesystem::path& library = cuda_library(), unsigned local_rank = 0);

/// Lets the ranks' GPUs exchange rows by NCCL; `backend` is one of open_cuda(). Every rank of `job`
/// calls it. Null on every rank, with one reason in `why`: they cannot, and rows go by the job
/// itself. InputError: a rank did not come within `timeout`. Borrows both until finish().
[[nodiscard]] std::unique_ptr<Communicator> join_gpus(
    Backend& backend, Communicator& job, std::chrono::milliseconds timeout, std::string& why,
    const std::filesystem::path& library = cuda_library());

}  // namespace switchyard::cli
