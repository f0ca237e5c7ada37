// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/named_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "experiments/cli/sim.hpp"

namespace switchyard::cli {

std::filesystem::path find_named(const std::string& name, const char* folder,
                                 const std::string& option) {
  std::error_code ec;
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) {
    if (!std::filesystem::is_regular_file(name, ec))
      throw InputError(option, fmt::format("there is no file {}", name));
    return name;
  }
  const std::filesystem::path base = scenarios_root() / folder;
  std::filesystem::path file = base / (name + ".toml");
  if (std::filesystem::is_regular_file(file, ec)) return file;
  std::vector<std::string> known;
  for (const auto& entry : std::filesystem::directory_iterator(base, ec)) {
    if (entry.path().extension() == ".toml") known.push_back(entry.path().stem().string());
  }
  std::sort(known.begin(), known.end());
  throw InputError(option, fmt::format("\"{}\" is not in scenarios/{}", name, folder),
                   suggest_name(name, known));
}

void ParentFolders::make(const std::string& option, const std::filesystem::path& output) {
  namespace fs = std::filesystem;
  const fs::path folder = output.parent_path();
  if (folder.empty()) return;
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    missing.push_back(at);
    if (at == at.parent_path()) break;
  }
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder, error)) {
    throw InputError(option, fmt::format("cannot make the folder {}", folder.string()),
                     error ? error.message() : "there is a file of that name");
  }
  made_.insert(made_.end(), missing.rbegin(), missing.rend());
}

ParentFolders::~ParentFolders() {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    // rmdir, which leaves what is not empty.
    rmdir(folder->c_str());
  }
}

}  // namespace switchyard::cli
