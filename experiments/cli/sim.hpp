// SPDX-License-Identifier: Apache-2.0
// The verb `sim`: simulate a scenario, write the run, print the summary.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::cli {

struct SimOptions {
  std::string scenario;
  std::optional<std::string> trace;   ///< --trace, replaces workload.routing.
  std::vector<std::string> settings;  ///< --set key=value
  std::filesystem::path output;       ///< -o
  std::filesystem::path signals;      ///< --signals-out, or empty.
  std::filesystem::path memory;       ///< --memory-out, or empty.
  std::string progress;               ///< "" or "json"
  bool base_point = false;  ///< Ignore [[sweep]] (set by the verb sweep, which sets its keys).
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// 0, or 1 when a conservation law does not hold (each is named on stderr; the run is still written
/// so that it can be looked at). Throws InputError.
int run_sim(const SimOptions& options);

/// The summary that run_sim prints.
[[nodiscard]] Table sim_summary_table(const run::RunData& run,
                                      const std::vector<std::string>& notes, bool sound);

/// The hash by which a run names the routing trace it was made from: of the file's bytes, hex.
[[nodiscard]] std::string trace_file_hash(const std::string& path);

/// Folder with models/ and hardware/ presets: $SWITCHYARD_SCENARIOS, else the installed one, else
/// scenarios/ of the source tree that built this; empty when there is none.
[[nodiscard]] std::filesystem::path scenarios_root();

}  // namespace switchyard::cli
