// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace switchyard::cli {

/// The file `name` (when it has a / or ends in .toml), else scenarios/<folder>/<name>.toml.
/// InputError (option) with a suggestion when it is not there.
[[nodiscard]] std::filesystem::path find_named(const std::string& name, const char* folder,
                                               const std::string& option);

/// Makes the folders above output files, so that -o takes a path that is not there yet. Those that
/// it made and that are empty when it goes are removed, so that work that was refused leaves none.
class ParentFolders {
 public:
  ParentFolders() = default;
  ~ParentFolders();
  ParentFolders(const ParentFolders&) = delete;
  ParentFolders& operator=(const ParentFolders&) = delete;
  /// InputError (option) when the folders above `output` cannot be made.
  void make(const std::string& option, const std::filesystem::path& output);

 private:
  std::vector<std::filesystem::path> made_;  // Outer ones first.
};

}  // namespace switchyard::cli
