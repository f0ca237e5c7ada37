// SPDX-License-Identifier: Apache-2.0
// `switchyard diff A B`: two runs side by side; with more files, two scenarios with several seeds.
#pragma once
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct DiffOptions {
  std::string a, b;  ///< Run files.
  TableFormat format = TableFormat::kText;
  bool verify = true;  ///< false: --no-verify, only for files above 4 GiB.
  /// Further seeds of the scenarios of a and b, in any order.
  std::vector<std::string> more = {};
};

/// Prints the table on stdout; returns 0. InputError when a file is not a sound run; with `more`,
/// also when there are more than two scenarios, or the same seed twice.
int run_diff(const DiffOptions& options);

}  // namespace switchyard::cli
