// SPDX-License-Identifier: Apache-2.0
// How long loading a checkpoint takes beside merely reading its weight files (what
// `cat FILE > /dev/null` does): with the files out of the page cache ("cold") and in it ("warm").
//
//   load_bench FOLDER [runs]      default: the shipped checkpoint, 3 runs
//
// Prints the medians and the ratio load / read, of time and of processor time: on a machine where
// others run too only the latter says something. A loaded engine is checked: its logits are the
// same every time. Cold runs ask the kernel to drop the files' pages; what stays is printed.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Times {
  std::vector<double> wall, cpu;  // seconds
};

double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void time_of(Times& times, const std::function<void()>& body) {
  const auto begin = Clock::now();
  const double cpu = cpu_seconds();
  body();
  times.cpu.push_back(cpu_seconds() - cpu);
  times.wall.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Bytes of the file, each seen once by read().
std::uint64_t read_all(const fs::path& file) {
  static std::vector<char> buffer(std::size_t{1} << 20U);
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::uint64_t bytes = 0;
  for (ssize_t n = 0; fd >= 0 && (n = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    bytes += static_cast<std::uint64_t>(n);
  }
  ::close(fd);
  return bytes;
}

void drop(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

/// Share of the files' pages in the page cache.
double resident(const std::vector<fs::path>& files) {
  std::uint64_t pages = 0;
  std::uint64_t held = 0;
  for (const fs::path& file : files) {
    const std::size_t size = fs::file_size(file);
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (map == MAP_FAILED) {
      continue;
    }
    std::vector<unsigned char> in((size + 4095) / 4096);
    if (::mincore(map, size, in.data()) == 0) {
      pages += in.size();
      held += static_cast<std::uint64_t>(
          std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1U) != 0; }));
    }
    ::munmap(map, size);
  }
  return pages == 0 ? 0 : static_cast<double>(held) / static_cast<double>(pages);
}

int run(const fs::path& folder, std::size_t runs) {
  const auto files = weight_files(folder);
  if (files.empty()) {
    fmt::print(stderr, "{}: no .safetensors file\n", folder.string());
    return 2;
  }
  std::uint64_t bytes = 0;
  std::vector<float> logits;
  for (const bool cold : {true, false}) {
    Times load;
    Times read;
    double left = 0;
    for (std::size_t i = 0; i < runs; ++i) {  // in turns
      const auto before = [&] {
        if (cold) {
          drop(files);
          left = std::max(left, resident(files));
        }
      };
      before();
      time_of(read, [&] {
        bytes = 0;
        for (const fs::path& file : files) {
          bytes += read_all(file);
        }
      });
      before();
      std::optional<Engine> engine;
      time_of(load, [&] { engine.emplace(Engine::load(folder, {.threads = 1})); });
      Session session(*engine, {});
      const std::vector<std::uint32_t> ids{1, 2, 3};
      const SequenceTokens work{session.add_sequence(), ids};
      const auto& r = session.step({&work, 1}, Phase::kPrefill);
      if (logits.empty()) {
        logits = r.logits;
      } else if (r.logits != logits) {
        fmt::print(stderr, "FAILED: a load gave other logits\n");
        return 1;
      }
    }
    const double gib = static_cast<double>(bytes) / (1U << 30U);
    for (const auto& [what, l, r] : {std::tuple{"time", median(load.wall), median(read.wall)},
                                     std::tuple{"processor", median(load.cpu), median(read.cpu)}}) {
      fmt::print(
          "{} {:9}  {:.3f} GiB: load {:.4f} s ({:.2f} GiB/s), read {:.4f} s ({:.2f} GiB/s), "
          "load / read {:.2f}\n",
          cold ? "cold" : "warm", what, gib, l, gib / l, r, gib / r, l / r);
    }
    if (cold) {
      fmt::print("pages of the files that could not be dropped: {:.0f} %\n", 100 * left);
    }
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  try {
    const std::filesystem::path folder =
        argc > 1 ? argv[1]
                 : std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios/checkpoints/sy-16x2";
    const std::size_t runs = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 3;
    return switchyard::run(folder, std::max<std::size_t>(1, runs));
  } catch (const switchyard::InputError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
