// SPDX-License-Identifier: Apache-2.0
#include "engine/model/mapping.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "engine/base/error.hpp"

namespace switchyard::model {
namespace {

constexpr std::size_t kWorthHugePages = std::size_t{64} << 20U;

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

Mapping::Mapping(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    throw InputError(path.string(), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw InputError(path.string(), "not a regular file");
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (p == MAP_FAILED) {
      throw InputError(path.string(), fmt::format("cannot map: {}", std::strerror(error)));
    }
    data_ = static_cast<const std::byte*>(p);
    // Weights are read from end to end for every token: huge pages raise that bandwidth by a tenth
    // to a fifth. A kernel that has none for files says no, and nothing is lost. Small files would
    // lose: their tensors share huge pages, and a rank would hold what it does not read.
    if (size_ >= kWorthHugePages) (void)::madvise(p, size_, MADV_HUGEPAGE);
  } else {
    ::close(fd);
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void release_pages(std::span<const std::byte> mapped) {
  const std::size_t page = page_size();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + mapped.size()) / page * page;
  if (first < last) {
    // A private mapping that is never written: dropped pages come back from the file.
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

void page_in(std::span<const std::byte> mapped) {
  const std::size_t page = page_size();
  if (!mapped.empty()) {
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) / page * page;
    ::madvise(reinterpret_cast<void*>(begin),
              reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size() - begin,
              MADV_WILLNEED);
  }
  for (std::size_t at = 0; at < mapped.size(); at += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(mapped.data() + at));
  }
}

namespace {

/// Where a process gets none, the kernel takes the advice all the same.
bool has_huge_pages() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  return std::getline(in, modes) && modes.find("[never]") == std::string::npos &&
         ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0;
}

}  // namespace

double share_in_huge_pages(std::span<const std::byte> mapped) {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  std::ifstream in("/proc/self/smaps");
  bool inside = false;
  double all = 0;
  double huge = 0;
  for (std::string line; std::getline(in, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    unsigned long kib = 0;
    // "7f00-7f80 r--p …" begins a range; "Key:   12 kB" follows.
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      inside = first < begin + mapped.size() && last > begin;
      all += inside ? static_cast<double>(last - first) : 0;
    } else if (inside && (std::sscanf(line.c_str(), "FilePmdMapped: %lu kB", &kib) == 1 ||
                          std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1)) {
      huge += 1024.0 * static_cast<double>(kib);
    }
  }
  return all > 0 ? std::min(1.0, huge / all) : 0;
}

std::size_t into_huge_pages(std::span<const std::byte> mapped) {
  constexpr std::size_t kBlock = std::size_t{2} << 20U;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t first = (begin + kBlock - 1) / kBlock * kBlock;
  const std::uintptr_t last = (begin + mapped.size()) / kBlock * kBlock;
  if (last <= first || !has_huge_pages()) {
    return 0;
  }
  // Few pieces, since each is an entry in the kernel's list; small ones, since each is held twice.
  const std::size_t step = std::clamp<std::size_t>((last - first) / 64 / kBlock, 1, 16) * kBlock;
  for (std::uintptr_t at = first; at < last; at += step) {
    const std::size_t bytes = std::min<std::size_t>(step, last - at);
    // Room for an aligned start: a moved block stays huge only between aligned addresses.
    void* room = ::mmap(nullptr, bytes + kBlock, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
      return at - first;
    }
    const auto start = reinterpret_cast<std::uintptr_t>(room);
    const std::uintptr_t aligned = (start + kBlock - 1) / kBlock * kBlock;
    auto* copy = reinterpret_cast<void*>(aligned);
    auto* place = reinterpret_cast<void*>(at);
    bool moved = ::madvise(copy, bytes, MADV_HUGEPAGE) == 0;
    if (moved) {
      std::memcpy(copy, place, bytes);
      moved = ::mprotect(copy, bytes, PROT_READ) == 0 &&
              ::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place;
    }
    if (!moved) {
      ::munmap(room, bytes + kBlock);
      return at - first;
    }
    ::munmap(room, aligned - start);
    ::munmap(reinterpret_cast<void*>(aligned + bytes), start + kBlock - aligned);
  }
  return last - first;
}

}  // namespace switchyard::model
