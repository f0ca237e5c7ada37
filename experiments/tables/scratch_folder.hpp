// SPDX-License-Identifier: Apache-2.0
// A temporary folder of one table.
#pragma once
#include <stdlib.h>  // mkdtemp

#include <filesystem>
#include <string>
#include <system_error>

#include "engine/base/error.hpp"

namespace switchyard::tables {

/// A new folder among the temporary ones that goes with all it holds when this does. InputError
/// when none can be made.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "switchyard-table-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw InputError(name, "cannot make this folder");
    folder_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace switchyard::tables
