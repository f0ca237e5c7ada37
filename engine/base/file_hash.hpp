// SPDX-License-Identifier: Apache-2.0
// Hash of a file of any size, read through a buffer of 1 MiB.
#pragma once
#include <cstdint>
#include <filesystem>

namespace switchyard {

/// hash64 (XXH3-64) of the file's bytes. InputError as read_file: missing, a folder, not readable.
std::uint64_t hash64_of_file(const std::filesystem::path& path);

}  // namespace switchyard
