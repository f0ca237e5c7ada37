// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>

namespace switchyard::cli {

/// The file `name` (when it has a / or ends in .toml), else scenarios/<folder>/<name>.toml.
/// InputError (option) with a suggestion when it is not there.
[[nodiscard]] std::filesystem::path find_named(const std::string& name, const char* folder,
                                               const std::string& option);

/// Makes the folders above an output file, so that -o takes a path that is not there yet.
/// InputError (option) when they cannot be made.
void make_parents(const std::string& option, const std::filesystem::path& output);

}  // namespace switchyard::cli
