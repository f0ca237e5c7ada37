// SPDX-License-Identifier: Apache-2.0
// Where the files that ship with the program lie: scenarios, models, hardware, checkpoints.
#pragma once
#include <filesystem>

namespace switchyard::scenario {

/// $SWITCHYARD_SCENARIOS; else share/switchyard/scenarios beside the bin/ that `program` lies in,
/// as `cmake --install` puts it; else `source`, the folder of the source tree; empty when none of
/// the last two is a folder. `program` empty: the running program.
std::filesystem::path shipped_scenarios(const std::filesystem::path& source,
                                        const std::filesystem::path& program = {});

}  // namespace switchyard::scenario
