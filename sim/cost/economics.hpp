// SPDX-License-Identifier: Apache-2.0
// Energy and money of a run (M40).
//
//   energy  = PUE · ( Σ over GPUs (idle + (TDP − idle) · busy) + servers · host ) · span
//   money   = energy · price + GPUs · GPU price · span / (years · 8760 h)
//
// With api_price (what others ask for a million tokens) the break-even of own machines:
//
//   break-even rate         (money / span) / (api_price / 1e6), tokens/s at the power of this run
//   break-even utilisation  that / tokens per second; above 1: never at this speed
//   payback                 GPUs · GPU price / (tokens/s · api_price / 1e6 − electricity / s),
//   years;
//                           n/a when the electricity alone is dearer
//
// and always GPU price / (tokens per second and GPU), the ratio by which cards of other prices and
// speeds compare (electricity aside: the smaller, the cheaper the token).
//
// over the measured steps; busy: share of the span in kernels, communication included (nvidia-smi's
// meaning). Watts come from the hardware file, the rest from [economics].
//
// Not modelled: demand below the rate of the run (idle hours), power that depends on what a kernel
// does, clocks, power caps, networking gear beyond host_power, staff, interest.
#pragma once
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// energy, mean power, energy per token; with [economics] also cost per million tokens, the share
/// of electricity in it, GPU price per token rate, and with api_price the break-even. Empty when a
/// GPU's idle power is not stated.
std::vector<run::Metric> energy_metrics(const scenario::Scenario& scenario,
                                        const run::RunData& run);

}  // namespace switchyard::sim
