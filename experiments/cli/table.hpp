// SPDX-License-Identifier: Apache-2.0
// The verb `table`: paper-style tables beside the published claims, with computed verdicts.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct TableOptions {
  std::vector<std::string> names;  ///< Tables to print; a misspelt one is an InputError.
  bool all = false;                ///< Every table.
  bool list = false;               ///< Names and one-line descriptions only.
  bool quick = false;              ///< Smaller inputs where a table runs the engine.
  bool quiet = false;              ///< With `output`: print nothing.
  std::filesystem::path output;  ///< Folder for one file per table, made if missing; empty: stdout.
  TableFormat format = TableFormat::kText;
};

/// 0. Throws InputError.
int run_table(const TableOptions& options);

}  // namespace switchyard::cli
