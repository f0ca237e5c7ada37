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

/// Names of a control group's files.
struct Version {
  const char* limit;
  const char* usage;
  const char* inactive;  ///< Page cache that can be dropped, lines of memory.stat.
  const char* active;
};
constexpr Version kSecond{"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Version kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                         "total_active_file"};

/// What a group's limit leaves beside what it cannot give back; kNone without a limit.
std::uint64_t left_in(const fs::path& folder, const Version& names) {
  const std::uint64_t limit = limit_in(folder / names.limit);
  std::uint64_t used = limit_in(folder / names.usage);
  if (limit == kNone || used == kNone) {
    return limit;
  }
  std::ifstream in(folder / "memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; in >> name >> bytes;) {
    if (name == names.inactive || name == names.active) {
      used -= std::min(used, bytes);
    }
  }
  return limit - std::min(limit, used);
}

/// The limits of `group` ("/a/b") and of the groups above it, or what they leave. In a container
/// the group's path may be that of the host, and only the root is there.
std::uint64_t tightest(const fs::path& mount, const std::string& group, const Version& names,
                       bool left) {
  std::uint64_t least = kNone;
  for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
    least = std::min(least, left ? left_in(mount / at, names) : limit_in(mount / at / names.limit));
    if (at.empty()) {
      return least;
    }
  }
}

}  // namespace

namespace {

std::uint64_t of_groups(const fs::path& root, bool left) {
  std::uint64_t least = kNone;
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
      least = std::min(least, tightest(root / "sys/fs/cgroup", group, kSecond, left));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, tightest(root / "sys/fs/cgroup/memory", group, kFirst, left));
    }
  }
  return least;
}

}  // namespace

std::uint64_t memory_limit(const fs::path& root) {
  return std::min(meminfo(root, "MemTotal"), of_groups(root, false));
}

std::uint64_t memory_available(const fs::path& root) {
  return std::min({memory_limit(root), meminfo(root, "MemAvailable"), of_groups(root, true)});
}

}  // namespace switchyard
