// SPDX-License-Identifier: Apache-2.0
// The verb `export`: writes what Switchyard holds as another tool's file. This version: gguf; the
// expert placement of a run, and its requests, steps or events as CSV.
#pragma once
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct ExportOptions {
  std::string kind;              ///< gguf, placement, csv; perfetto, dot, svg are refused by name
  std::filesystem::path input;   ///< gguf: checkpoint folder or .gguf file; the others: run
  std::filesystem::path output;  ///< -o
  std::string type;              ///< gguf: f32, bf16 (if empty), f16, q8_0, q4_0, q4_k
  std::string what;              ///< csv: requests (if empty), steps, events
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError.
int run_export(const ExportOptions& options);

}  // namespace switchyard::cli
