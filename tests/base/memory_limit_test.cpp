// SPDX-License-Identifier: Apache-2.0
#include "engine/base/memory_limit.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// A machine of 16 MB with 9 MB available, whose process is in `groups`.
fs::path machine(const std::string& name, const std::string& groups) {
  const fs::path root = fs::current_path() / name;
  fs::remove_all(root);
  put(root / "proc/meminfo",
      "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    9000 kB\n");
  put(root / "proc/self/cgroup", groups);
  return root;
}

TEST(MemoryLimit, IsTheMachinesWithoutControlGroups) {
  const fs::path root = machine("plain", "0::/\n");
  EXPECT_EQ(memory_limit(root), 16'000U * 1024);
  EXPECT_EQ(memory_available(root), 9'000U * 1024);
}

TEST(MemoryLimit, IsTheTightestOfTheGroupAndThoseAboveIt) {
  const fs::path root = machine("two", "0::/pod/job\n");
  put(root / "sys/fs/cgroup/pod/job/memory.max", "max\n");
  EXPECT_EQ(memory_limit(root), 16'000U * 1024);
  put(root / "sys/fs/cgroup/pod/memory.max", "4000000\n");
  EXPECT_EQ(memory_limit(root), 4'000'000U);
  EXPECT_EQ(memory_available(root), 4'000'000U);
  put(root / "sys/fs/cgroup/pod/job/memory.max", "5000000\n");
  EXPECT_EQ(memory_limit(root), 4'000'000U);
}

TEST(MemoryLimit, ReadsTheFirstVersionAndARootWithoutTheHostsPath) {
  const fs::path root =
      machine("one", "12:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n0::/docker/ab\n");
  put(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  EXPECT_EQ(memory_limit(root), 3'000'000U);
  put(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_EQ(memory_limit(root), 16'000U * 1024);
}

TEST(MemoryLimit, WhatAGroupUsesIsNotAvailableButItsPageCacheIs) {
  const fs::path root = machine("used", "0::/pod/job\n");
  put(root / "sys/fs/cgroup/pod/memory.max", "4000000\n");
  put(root / "sys/fs/cgroup/pod/memory.current", "3500000\n");
  put(root / "sys/fs/cgroup/pod/memory.stat",
      "anon 2000000\ninactive_file 1000000\nactive_file 500000\n");
  EXPECT_EQ(memory_limit(root), 4'000'000U);
  EXPECT_EQ(memory_available(root), 2'000'000U);
  const fs::path one = machine("used_one", "5:memory:/\n");
  put(one / "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  put(one / "sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000\n");
  put(one / "sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1000\n");
  EXPECT_EQ(memory_available(one), 1000U);
}

TEST(MemoryLimit, OfThisMachineIsSensible) {
  EXPECT_GT(memory_limit(), 64U << 20U);
  EXPECT_LE(memory_available(), memory_limit());
}

}  // namespace
}  // namespace switchyard
