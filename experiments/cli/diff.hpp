// SPDX-License-Identifier: Apache-2.0
// `switchyard diff A B`: two runs side by side.
#pragma once
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct DiffOptions {
  std::string a, b;  ///< Run files.
  TableFormat format = TableFormat::kText;
  bool verify = true;  ///< false: --no-verify, only for files above 4 GiB.
};

/// Prints the table on stdout; returns 0. InputError when a file is not a sound run.
int run_diff(const DiffOptions& options);

}  // namespace switchyard::cli
