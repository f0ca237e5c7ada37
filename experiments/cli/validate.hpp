// SPDX-License-Identifier: Apache-2.0
// The verbs `validate` (simulated against measured; never fits) and `fit` (a calibration from
// measured times, or synthetic routing from a trace).
#pragma once
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct ValidateOptions {
  std::string hardware = "h200";  ///< A calibration of scenarios/calibrations, or a file.
  std::filesystem::path data;     ///< Empty: the shipped excerpt and the end-to-end case.
  bool rows = false;              ///< Every row besides the summary.
  bool step_loop = false;         ///< End-to-end cases through the step loop as well.
  TableFormat format = TableFormat::kText;
};
/// Prints the tables. 0; 1 when the goal over all judged rows is missed.
int run_validate(const ValidateOptions& options);

struct FitOptions {
  std::string trace;               ///< A routing trace; then only `output` besides.
  std::filesystem::path measured;  ///< Folder with <device>_*_us.csv.
  std::filesystem::path output;
  std::string device;    ///< Prefix of the files, name of the calibration.
  std::string hardware;  ///< Hardware file or name: peaks of its first GPU type.
  std::string source, licence;
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};
/// Writes a calibration fitted to the rows with an even hash, or a workload file with the synthetic
/// law nearest to the trace. 0.
int run_fit(const FitOptions& options);

}  // namespace switchyard::cli
