// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/doctor.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "engine/model/model_config.hpp"
#include "engine/parallel/communicator.hpp"
#include "experiments/cli/sim.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

/// Text after "key : " in a file of /proc; empty when there is none.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with(key)) {
      const std::size_t colon = line.find(':');
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      return colon == std::string::npos || begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return {};
}

std::string gib(double kib) { return fmt::format("{:.1f} GiB", kib / 1048576.0); }

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 0;
}

fs::path program_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path();
}

/// First file of that name beside the program or in ../lib; empty when there is none.
fs::path installed(const std::string& name) {
  std::error_code error;
  for (const fs::path& folder : {program_folder(), program_folder().parent_path() / "lib"}) {
    if (fs::is_regular_file(folder / name, error)) {
      return folder / name;
    }
  }
  return {};
}

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    if (!folder.empty() && access((fs::path(folder) / program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

/// Devices that the CUDA driver lists; no value without a driver.
std::optional<int> cuda_devices() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return std::nullopt;
  }
  using Init = int (*)(unsigned);
  using Count = int (*)(int*);
  const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<Count>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0) {
    devices = 0;
  }
  return devices;
}

std::size_t files_in(const fs::path& folder, const char* extension) {
  std::error_code error;
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    n += entry.path().extension() == extension ? 1 : 0;
  }
  return n;
}

/// What went wrong, or empty.
std::string write_here() {
  std::error_code error;
  const fs::path probe = fs::current_path(error) / fmt::format(".switchyard-doctor-{}", getpid());
  try {
    write_file(probe, "doctor");
  } catch (const InputError& e) {
    return e.message();
  }
  fs::remove(probe, error);
  return {};
}

class Report {
 public:
  Report() {
    table_.name = "doctor";
    table_.title = "what this machine and this build can do";
    table_.columns = {"part", "status", "detail", "Debian packages"};
  }
  void ok(const std::string& part, const std::string& detail) { add(part, "ok", detail, ""); }
  void missing(const std::string& part, const std::string& detail, const std::string& packages) {
    add(part, "missing", detail, packages);
  }
  void either(bool fine, const std::string& part, const std::string& yes, const std::string& no,
              const std::string& packages) {
    fine ? ok(part, yes) : missing(part, no, packages);
  }
  void add(const std::string& part, const std::string& status, const std::string& detail,
           const std::string& packages) {
    table_.rows.push_back({part, status, detail, packages});
  }
  Table table_;
};

void report_machine(Report& report) {
  report.ok("switchyard",
            fmt::format("{}, built {} by g++ {}", version(), SWITCHYARD_BUILD_TYPE, __VERSION__));
  report.ok("libraries", fmt::format("HDF5 {}, SimGrid {}, fmt {}.{}.{}", SWITCHYARD_HDF5_VERSION,
                                     SWITCHYARD_SIMGRID_VERSION, FMT_VERSION / 10000,
                                     FMT_VERSION / 100 % 100, FMT_VERSION % 100));
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  const std::string flags = " " + proc_value("/proc/cpuinfo", "flags") + " ";
  std::string features;
  for (const char* flag :
       {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}) {
    if (flags.find(fmt::format(" {} ", flag)) != std::string::npos) {
      features += fmt::format("{}{}", features.empty() ? "" : " ", flag);
    }
  }
  report.ok("CPU", model.empty() ? "not named by the system" : model);
  report.ok("CPU features", features);
  report.ok("arithmetic path", cpu::path().name);
  report.ok("cores", fmt::format("{} usable by this process", usable_cores()));
  const auto memory = [](const char* key) {
    return gib(std::strtod(proc_value("/proc/meminfo", key).c_str(), nullptr));
  };
  report.ok("memory", fmt::format("{}, {} free", memory("MemTotal"), memory("MemAvailable")));
  std::error_code error;
  const auto space = fs::space(".", error);
  const std::string trouble = write_here();
  report.either(
      trouble.empty(), "working folder",
      fmt::format("writable, {} free", gib(static_cast<double>(space.available) / 1024.0)), trouble,
      "");
}

void report_optional(Report& report) {
  std::error_code error;
  const auto devices = cuda_devices();
  report.either(devices.value_or(0) > 0, "CUDA device",
                fmt::format("{} listed by the driver", devices.value_or(0)),
                devices ? "driver found, no device" : "no driver (libcuda.so.1)",
                "nvidia-driver libcuda1 (non-free)");
  report.either(!installed("libswitchyard_cuda.so").empty(), "CUDA library",
                "libswitchyard_cuda.so is there", "libswitchyard_cuda.so is not there: preset cuda",
                "nvidia-cuda-toolkit (non-free), or NVIDIA's cuda-toolkit-13-0");
  // Asked for at run time, as the CUDA library does.
  const bool nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL) != nullptr ||
                    fs::exists("/usr/local/cuda/lib64/libnccl.so.2", error);
  report.either(nccl, "NCCL",
                "libnccl.so.2 is there: ranks on GPUs of their own exchange rows by it",
                "libnccl.so.2 is not there: ranks on GPUs exchange rows through host memory",
                "libnccl2, of NVIDIA's repository");
  report.either(on_path("nvcc"), "nvcc", "on PATH", "not on PATH",
                "nvidia-cuda-toolkit (non-free), or NVIDIA's cuda-toolkit-13-0");
  const std::string mpi = mpi_version();
  report.either(!mpi.empty() && on_path("mpirun"), "MPI",
                fmt::format("{}: mpirun -n N switchyard trace …", mpi),
                mpi.empty() ? "built without it: everything runs in one process"
                            : fmt::format("{}, but mpirun is not on PATH", mpi),
                "openmpi-bin libopenmpi-dev");
  const bool gui = !installed("switchyard-gui").empty();
  report.either(gui, "desktop app", "switchyard-gui is there", "switchyard-gui is not built",
                "qt6-base-dev qt6-svg-dev");
  const bool display =
      std::getenv("DISPLAY") != nullptr || std::getenv("WAYLAND_DISPLAY") != nullptr;
  report.either(display, "display", "set", "none: switchyard-gui --render works without one", "");
}

void report_data(Report& report) {
  const fs::path root = scenarios_root();
  report.either(
      !root.empty(), "presets",
      fmt::format("{} models, {} hardware files in {}", files_in(root / "models", ".json"),
                  files_in(root / "hardware", ".toml"), root.string()),
      "no scenarios folder: set SWITCHYARD_SCENARIOS", "");
  const fs::path checkpoint = root / "checkpoints" / "sy-16x2";
  std::string trouble;
  std::string detail;
  try {
    const auto config = model::read_model_config(checkpoint);
    detail = fmt::format("{}: {} layers, {} experts, top-{}", config.name, config.num_layers,
                         config.num_experts, config.top_k);
    std::error_code error;
    if (!fs::is_regular_file(checkpoint / "model.safetensors", error)) {
      trouble = "model.safetensors is not there";
    }
  } catch (const InputError& e) {
    trouble = e.message();
  }
  report.either(trouble.empty(), "checkpoint", detail, trouble, "");
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  Report report;
  report_machine(report);
  report_optional(report);
  report_data(report);
  fmt::print("{}", render(report.table_, options.format));
  return 0;
}

}  // namespace switchyard::cli
