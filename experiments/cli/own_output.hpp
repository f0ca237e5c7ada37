// SPDX-License-Identifier: Apache-2.0
// An output that is one of the inputs, or another output, would destroy it. What a process that was
// killed has left beside an output goes when that output is written again.
#pragma once
#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::cli {

/// Throws InputError when `output` (of option `name`) is the same file as one of `others`, pairs of
/// what it is and its path, or of a folder (a checkpoint) one of its files that hold a model; empty
/// paths are passed over. Links and "./" are seen through.
inline void require_own_output(
    const std::string& name, const std::filesystem::path& output,
    std::initializer_list<std::pair<const char*, std::filesystem::path>> others) {
  std::error_code failed;
  for (const auto& [what, path] : others) {
    if (path.empty() || output.empty()) continue;
    const bool same = std::filesystem::equivalent(output, path, failed) ||
                      std::filesystem::weakly_canonical(output, failed) ==
                          std::filesystem::weakly_canonical(path, failed);
    const std::string kind = output.extension().string();
    if ((kind == ".json" || kind == ".safetensors" || kind == ".gguf" || kind == ".txt") &&
        std::filesystem::is_directory(path, failed) &&
        std::filesystem::is_regular_file(output, failed) &&
        std::filesystem::equivalent(
            output.has_parent_path() ? output.parent_path() : std::filesystem::path("."), path,
            failed)) {
      throw InputError(
          name, fmt::format("{} is a file of {}; it would be overwritten", output.string(), what),
          "give another file");
    }
    if (same) {
      throw InputError(name, output.string() + " is " + what + " itself; it would be overwritten",
                       "give another file");
    }
  }
}

/// Removes "<output>.<pid>.tmp" (engine/base/atomic_file.hpp) of processes that are no more: kill
/// -9 leaves them no time to do it. Of another machine's processes on a shared disk nothing is
/// known here: two of them must not write one output at the same time.
inline void remove_stale_temporaries(const std::filesystem::path& output) {
  namespace fs = std::filesystem;
  if (output.empty()) return;
  const std::string begin = output.filename().string() + ".", end = ".tmp";
  std::error_code failed;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  for (fs::directory_iterator at(folder, failed), last; !failed && at != last;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end) ||
        name.size() <= begin.size() + end.size()) {
      continue;
    }
    const char* const number = name.data() + begin.size();
    const char* const stop = name.data() + name.size() - end.size();
    pid_t process = 0;
    const auto [read, wrong] = std::from_chars(number, stop, process);
    if (wrong != std::errc{} || read != stop || process <= 0) continue;
    std::error_code ignored;
    if (kill(process, 0) != 0 && errno == ESRCH) fs::remove(at->path(), ignored);
  }
}

}  // namespace switchyard::cli
