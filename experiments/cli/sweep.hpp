// SPDX-License-Identifier: Apache-2.0
// The verb `sweep`: every point of a scenario's [[sweep]], one run file each.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct SweepOptions {
  std::string scenario;
  std::optional<std::string> trace;
  std::vector<std::string> settings;
  std::filesystem::path output;  ///< DIR: points/<index>-<hash8>.h5 and index.csv.
  unsigned jobs = 1;  ///< -j: points run at once, each in a process of its own. 1 to 256.
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Runs the points that are not there yet, writes index.csv, prints the table. A point's name holds
/// the hash of its resolved scenario; its file is made again when it is not a sound run, or was
/// made from another trace or by another version of the program. The results do not depend on
/// `jobs`. 0, or 1 when a point failed (named on stderr; the others are kept).
int run_sweep(const SweepOptions& options);

}  // namespace switchyard::cli
