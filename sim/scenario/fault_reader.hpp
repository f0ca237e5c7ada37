// SPDX-License-Identifier: Apache-2.0
// Internal: reads a scenario's [faults].
#pragma once
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/section.hpp"

namespace switchyard::scenario {

/// Needs the model, hardware, parallel, workload, network and memory sections of `out` to have been
/// read.
void read_faults(Context& context, const Node& root, Scenario& out);

}  // namespace switchyard::scenario
