// SPDX-License-Identifier: Apache-2.0
// The verb `export`: writes what Switchyard holds as another tool's file: gguf; the expert
// placement of a run, and its requests, steps or events as CSV; a run as Chrome trace (perfetto) or
// picture (svg); the topology of a scenario or hardware file for Graphviz (dot).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct ExportOptions {
  std::string kind;              ///< gguf, placement, csv, perfetto, dot, svg
  std::filesystem::path input;   ///< gguf: checkpoint folder or .gguf file; dot: .toml; else: run
  std::filesystem::path output;  ///< -o
  std::string type;              ///< gguf: f32, bf16 (if empty), f16, q8_0, q4_0, q4_k
  std::string what;              ///< csv: requests (if empty), steps, events
  std::uint64_t first = 0;       ///< perfetto: first step
  std::uint64_t steps = 0;       ///< perfetto: how many; 0: all that follow
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError.
int run_export(const ExportOptions& options);
/// The kinds of these names. svg: CapabilityError without switchyard-gui beside this program or in
/// PATH; its exit code otherwise.
int export_perfetto(const ExportOptions& options);
int export_dot(const ExportOptions& options);
int export_svg(const ExportOptions& options);

}  // namespace switchyard::cli
