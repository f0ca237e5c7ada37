// SPDX-License-Identifier: Apache-2.0
// The signals file that `sim --signals-out` and `couple --keep` write of a simulation.
#pragma once
#include <string>

#include "engine/trace/signals_file.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::cli {

/// `table` with the names and hashes of its simulation. `policy` is SimulationResult::policy.
[[nodiscard]] SignalsFile signals_file(const run::RunMeta& run, std::string policy,
                                       SignalTable table);

}  // namespace switchyard::cli
