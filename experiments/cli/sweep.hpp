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
  unsigned jobs = 1;  ///< -j: points run at once (of each rank), each in an own process. 1 to 256.
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Runs the points that are not there yet, writes index.csv, prints the table. A point's name holds
/// the hash of its resolved scenario; its file is made again when it is not a sound run, or was
/// made from another trace or by another version of the program. Under mpirun the ranks divide the
/// points (they must see the same folder) and rank 0 writes the index. The results do not depend on
/// ranks and `jobs`. 0, or 1 when a point failed (named on stderr; the others are kept).
int run_sweep(const SweepOptions& options);

}  // namespace switchyard::cli
