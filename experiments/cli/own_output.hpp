// SPDX-License-Identifier: Apache-2.0
// An output that is one of the inputs, or another output, would destroy it.
#pragma once
#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::cli {

/// Throws InputError when `output` (of option `name`) is the same file as one of `others`, pairs of
/// what it is and its path; empty paths are passed over. Links and "./" are seen through.
inline void require_own_output(
    const std::string& name, const std::filesystem::path& output,
    std::initializer_list<std::pair<const char*, std::filesystem::path>> others) {
  std::error_code failed;
  for (const auto& [what, path] : others) {
    if (path.empty() || output.empty()) continue;
    const bool same = std::filesystem::equivalent(output, path, failed) ||
                      std::filesystem::weakly_canonical(output, failed) ==
                          std::filesystem::weakly_canonical(path, failed);
    if (same) {
      throw InputError(name, output.string() + " is " + what + " itself; it would be overwritten",
                       "give another file");
    }
  }
}

}  // namespace switchyard::cli
