// SPDX-License-Identifier: Apache-2.0
// What a GGUF file holds: its metadata and its tensors by type.
#pragma once
#include <filesystem>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

/// Two tables: "gguf" (tensors and bytes by type) and "gguf-metadata" (every key; arrays by
/// length). Does not need to know the architecture.
[[nodiscard]] std::vector<Table> inspect_gguf(const std::filesystem::path& path);

}  // namespace switchyard::cli
