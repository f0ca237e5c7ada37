// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/device.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <system_error>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "kernels/backend_entry.h"

namespace switchyard::cli {
namespace {

constexpr const char* kLibrary = "libswitchyard_cuda.so";
constexpr std::int32_t kOldestMajor = 8;

[[noreturn]] void missing(const std::string& what) {
  throw CapabilityError(fmt::format("--device cuda: {}; or use --device cpu", what));
}

/// The text up to its first line break: messages of the loader and the driver may have several.
std::string first_line(const char* text) {
  std::string line = text == nullptr ? "unknown reason" : text;
  return line.substr(0, line.find('\n'));
}

template <class F>
F entry(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    missing(fmt::format("{} has no entry {}; build it from the same sources as this program",
                        kLibrary, name));
  }
  return reinterpret_cast<F>(symbol);
}

/// Stays open: what it made may live as long as the program.
void* open_library(const std::filesystem::path& library) {
  std::error_code error;
  const bool there = std::filesystem::exists(library, error);
  void* const handle = dlopen(there ? library.c_str() : kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    missing(there ? fmt::format("{} does not load: {}", kLibrary, first_line(dlerror()))
                  : fmt::format("{} is not here; build it (cmake --preset cuda && cmake --build "
                                "--preset cuda, needs nvcc) and put it beside the program",
                                kLibrary));
  }
  return handle;
}

}  // namespace

std::filesystem::path cuda_library() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path(kLibrary) : program.parent_path() / kLibrary;
}

CudaDevice probe_cuda(const std::filesystem::path& library) {
  void* const handle = open_library(library);
  const auto abi = entry<SwitchyardCudaAbi>(handle, SWITCHYARD_CUDA_ABI_NAME)();
  if (abi != SWITCHYARD_CUDA_ABI) {
    missing(fmt::format("{} has interface {}, this program {}; build both from the same sources",
                        kLibrary, abi, SWITCHYARD_CUDA_ABI));
  }
  CudaDevice found;
  found.library_version = entry<SwitchyardCudaVersion>(handle, SWITCHYARD_CUDA_VERSION_NAME)();
  SwitchyardCudaDevice device{};
  std::array<char, 512> reason{};
  found.count = entry<SwitchyardCudaProbe>(handle, SWITCHYARD_CUDA_PROBE_NAME)(
      &device, reason.data(), reason.size());
  if (found.count < 0) {
    missing(fmt::format("CUDA does not start: {}", first_line(reason.data())));
  }
  if (found.count == 0) {
    missing("this machine has no CUDA GPU");
  }
  found.name = device.name;
  found.major = device.major;
  found.minor = device.minor;
  found.memory_bytes = device.memory_bytes;
  if (found.major < kOldestMajor) {
    missing(fmt::format("{} has compute capability {}.{}, {}.0 is needed", found.name, found.major,
                        found.minor, kOldestMajor));
  }
  return found;
}

std::unique_ptr<Backend> open_cuda(bool bf16, const std::filesystem::path& library,
                                   unsigned local_rank) {
  const CudaDevice device = probe_cuda(library);
  // Objects cross the border, so both sides must come from the same sources.
  if (device.library_version != version()) {
    missing(fmt::format("{} has version {}, this program {}; build both from the same sources",
                        kLibrary, device.library_version, version()));
  }
  void* const handle = open_library(library);
  std::array<char, 512> reason{};
  void* const backend = entry<SwitchyardCudaOpen>(handle, SWITCHYARD_CUDA_OPEN_NAME)(
      static_cast<std::int32_t>(local_rank % static_cast<unsigned>(device.count)), bf16 ? 1 : 0,
      reason.data(), reason.size());
  if (backend == nullptr) {
    missing(fmt::format("{} does not open: {}", device.name, first_line(reason.data())));
  }
  return std::unique_ptr<Backend>(static_cast<Backend*>(backend));
}

std::unique_ptr<Communicator> join_gpus(Backend& backend, Communicator& job,
                                        std::chrono::milliseconds timeout, std::string& why,
                                        const std::filesystem::path& library) {
  std::array<char, 512> reason{};
  void* const joined = entry<SwitchyardCudaJoin>(open_library(library), SWITCHYARD_CUDA_JOIN_NAME)(
      &backend, &job, static_cast<std::uint64_t>(timeout.count()), reason.data(), reason.size());
  why = joined == nullptr ? first_line(reason.data()) : "";
  return std::unique_ptr<Communicator>(static_cast<Communicator*>(joined));
}

}  // namespace switchyard::cli
