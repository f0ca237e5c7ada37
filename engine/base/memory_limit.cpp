// SPDX-License-Identifier: Apache-2.0
#include "engine/base/memory_limit.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

/// "MemTotal:  16384 kB" of /proc/meminfo, in bytes.
std::uint64_t meminfo(const fs::path& root, const std::string& key) {
  std::ifstream in(root / "proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == key + ":") {
      return kib * 1024;
    }
  }
  return kNone;
}

/// A file that holds one number; "max" and what is no number set no limit.
std::uint64_t limit_in(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t bytes = 0;
  return in >> bytes ? bytes : kNone;
}

/// The limits of `group` ("/a/b") and of the groups above it. In a container the group's path may
/// be that of the host, and only the root is there.
std::uint64_t tightest(const fs::path& mount, const std::string& group, const char* file) {
  std::uint64_t least = kNone;
  for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
    least = std::min(least, limit_in(mount / at / file));
    if (at.empty()) {
      return least;
    }
  }
}

}  // namespace

std::uint64_t memory_limit(const fs::path& root) {
  std::uint64_t least = meminfo(root, "MemTotal");
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "number:controllers:path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, tightest(root / "sys/fs/cgroup", group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least =
          std::min(least, tightest(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

std::uint64_t memory_available(const fs::path& root) {
  return std::min(memory_limit(root), meminfo(root, "MemAvailable"));
}

}  // namespace switchyard
