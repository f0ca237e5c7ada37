// SPDX-License-Identifier: Apache-2.0
// `switchyard inspect R.h5 --profile` (M60): where the time and the bytes of a run went, as a
// profiler would list them.
#pragma once
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::cli {

/// Tables "profile" (time by kind of kernel), "profile-rates" (HBM, communication, kernels),
/// "profile-histogram" (lengths of the MoE layers' kernels; needs detail = layers) and
/// "profile-copies" (most bytes between two GPUs and over a link). Warm-up steps are left out; what
/// the run does not hold is n/a.
[[nodiscard]] std::vector<Table> profile_tables(const run::RunData& run);
[[nodiscard]] std::vector<Table> inspect_profile(const std::string& path, bool verify);

}  // namespace switchyard::cli
