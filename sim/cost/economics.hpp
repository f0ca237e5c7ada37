// SPDX-License-Identifier: Apache-2.0
// Energy and money of a run (M40).
//
//   energy  = PUE · ( Σ over GPUs (idle + (TDP − idle) · busy) + servers · host ) · span
//   money   = energy · price + GPUs · GPU price · span / (years · 8760 h)
//
// over the measured steps; busy: share of the span in kernels, communication included (nvidia-smi's
// meaning). Watts come from the hardware file, the rest from [economics].
//
// Not modelled: power that depends on what a kernel does, clocks, power caps, networking gear
// beyond host_power, staff, interest.
#pragma once
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// energy, mean power, energy per token; with [economics] also cost per million tokens and the
/// share of electricity in it. Empty when a GPU's idle power is not stated.
std::vector<run::Metric> energy_metrics(const scenario::Scenario& scenario,
                                        const run::RunData& run);

}  // namespace switchyard::sim
