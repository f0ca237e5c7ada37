// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/named_file.hpp"

#include <fmt/format.h>

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
  const std::filesystem::path file = base / (name + ".toml");
  if (std::filesystem::is_regular_file(file, ec)) return file;
  std::vector<std::string> known;
  for (const auto& entry : std::filesystem::directory_iterator(base, ec)) {
    if (entry.path().extension() == ".toml") known.push_back(entry.path().stem().string());
  }
  std::sort(known.begin(), known.end());
  throw InputError(option, fmt::format("\"{}\" is not in scenarios/{}", name, folder),
                   suggest_name(name, known));
}

void make_parents(const std::string& option, const std::filesystem::path& output) {
  const std::filesystem::path folder = output.parent_path();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    throw InputError(option, fmt::format("cannot make the folder {}", folder.string()),
                     error ? error.message() : "there is a file of that name");
  }
}

}  // namespace switchyard::cli
