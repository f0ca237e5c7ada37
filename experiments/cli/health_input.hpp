// SPDX-License-Identifier: Apache-2.0
// What `monitor` and `diagnose` read of a run file.
#pragma once
#include <string>

#include "sim/run/run_data.hpp"

namespace switchyard::cli {

/// All but tokens, reroutes and levels of detail; of a very long run also without the experts of
/// single layers. Throws InputError when the file is not a sound run.
run::RunData read_for_health(const std::string& path, bool verify);

}  // namespace switchyard::cli
