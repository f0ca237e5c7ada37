// SPDX-License-Identifier: Apache-2.0
// File: memory_limit.hpp. How much memory this process may use: the machine's, or less where it
// runs in a container or another control group with a limit.
// Not modelled: limits per NUMA node, ulimit -v, swap.
#pragma once
#include <cstdint>
#include <filesystem>

namespace switchyard {

/// Bytes: the least of the machine's memory and the limits of this process's control groups and of
/// all above them (version 2: memory.max, version 1: memory.limit_in_bytes). `root` is where /proc
/// and /sys are found. What cannot be read sets no limit.
[[nodiscard]] std::uint64_t memory_limit(const std::filesystem::path& root = "/");

/// Bytes that can be had without swapping: MemAvailable, and of each control group with a limit what
/// it leaves. Page cache that can be dropped counts as free. At most memory_limit().
[[nodiscard]] std::uint64_t memory_available(const std::filesystem::path& root = "/");

}  // namespace switchyard
