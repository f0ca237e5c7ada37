// SPDX-License-Identifier: Apache-2.0
// What every fuzz target shares: hostile bytes as a file, and the one kind of error a reader may
// answer with. Anything else (another exception, an assert, a sanitizer report) is a finding.
#pragma once
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/base/error.hpp"

namespace switchyard::fuzz {

/// The bytes as a file in memory, for readers that map or open a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", 0)) {
    for (std::size_t at = 0; fd_ >= 0 && at < bytes.size();) {
      const ssize_t n = ::write(fd_, bytes.data() + at, bytes.size() - at);
      if (n <= 0) {
        std::abort();
      }
      at += static_cast<std::size_t>(n);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

/// Runs a reader; an InputError is a good answer. Its text must be one line.
template <class Body>
void expect_input_error_or_success(const Body& body) {
  try {
    body();
  } catch (const InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) {
      fmt::print(stderr, "an error of several lines: {}\n", e.what());
      std::abort();
    }
  }
}

}  // namespace switchyard::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
