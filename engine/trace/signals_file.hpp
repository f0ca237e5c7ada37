// SPDX-License-Identifier: Apache-2.0
// The signals file: what a simulation tells the engine, step by step (`sim --signals-out`,
// `trace --signals`, coupled mode). Datasets, shapes and units: SIGNALS_FORMAT.md, which is
// generated from signals_schema(). Which sample an engine step sees:
// engine/routing/signal_table.hpp.
//
// Not modelled: files of several simulations; layers that a cycled trace folds together and that
// have different placements (the simulator refuses to write those).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/routing/signal_table.hpp"

namespace switchyard {

namespace h5 {
struct SchemaTable;
}  // namespace h5

struct SignalsFile {
  std::string model;          ///< The simulated model, which may be larger than the traced one.
  std::string hardware;       ///< Name of the cluster.
  std::string scenario;       ///< Name and hash of the scenario.
  std::string scenario_hash;  ///< Of the resolved scenario, hex.
  std::string trace_hash;     ///< Of the routing trace that was simulated, hex; empty: synthetic.
  std::string policy;         ///< In force in the simulation, key=value.
  std::string program;        ///< That wrote the file, with its version.
  std::uint64_t seed = 1;
  SignalTable table;
  bool operator==(const SignalsFile&) const = default;
};

[[nodiscard]] const h5::SchemaTable& signals_schema();
/// The text of SIGNALS_FORMAT.md.
[[nodiscard]] std::string signals_format_text();

/// The table passes validate_signals() (asserted). InputError: the folder is not writable. The file
/// appears complete or not at all.
void write_signals(const std::filesystem::path& path, const SignalsFile& file);
/// InputError(path, …): no signals file (a run file is named as such), damaged, a newer schema,
/// arrays that disagree or hold values out of range, a policy that cannot be read.
[[nodiscard]] SignalsFile read_signals(const std::filesystem::path& path);
/// read_signals() and: InputError(where, …) when layers or experts are not `layers` and `experts`,
/// or require_queues() fails.
[[nodiscard]] SignalsFile read_signals_for(const std::filesystem::path& path, std::uint32_t layers,
                                           std::uint32_t experts, const RoutingPolicy& policy,
                                           const std::string& where);

}  // namespace switchyard
