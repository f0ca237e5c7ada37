// SPDX-License-Identifier: Apache-2.0
// How long loading a checkpoint takes beside merely reading its weight files (what
// `cat FILE > /dev/null` does): with the files out of the page cache ("cold") and in it ("warm").
//
//   load_bench FOLDER [runs]      default: the shipped checkpoint, 3 runs
//
// Prints the medians and the ratio load / read. A loaded engine is checked: its logits are the same
// every time. Cold runs ask the kernel to drop the files' pages; what stays is printed.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
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
    std::vector<double> load;
    std::vector<double> read;
    double left = 0;
    for (std::size_t i = 0; i < runs; ++i) {  // in turns
      const auto before = [&] {
        if (cold) {
          drop(files);
          left = std::max(left, resident(files));
        }
      };
      before();
      read.push_back(seconds_of([&] {
        bytes = 0;
        for (const fs::path& file : files) {
          bytes += read_all(file);
        }
      }));
      before();
      std::optional<Engine> engine;
      load.push_back(seconds_of([&] { engine.emplace(Engine::load(folder, {.threads = 1})); }));
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
    fmt::print(
        "{:4}  {:.2f} GiB: load {:.4f} s ({:.2f} GiB/s), read {:.4f} s ({:.2f} GiB/s), "
        "load / read {:.2f}{}\n",
        cold ? "cold" : "warm", gib, median(load), gib / median(load), median(read),
        gib / median(read), median(load) / median(read),
        cold ? fmt::format(", pages that could not be dropped {:.0f} %", 100 * left) : "");
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
