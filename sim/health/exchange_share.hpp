// SPDX-License-Identifier: Apache-2.0
// What the exchanges of a run would take if assignments were spread evenly over the GPUs.
//
// In MoE layer l of a step the busiest link works for floor_l; a layer whose fullest GPU has
// u_l = max/mean times the assignments of the mean one would keep it busy for floor_l / u_l. So
// moving assignments saves at most
//   gain = Σ (dispatch floor_l + combine floor_l) · (1 − 1/u_l)
// and no more than the exchange time on the critical path. Path latency stays. Without detail
// "layers" a step's dispatch and combine stand for its floors, and the largest u of its layers for
// all: a looser bound.
//
// Not modelled: assignments that a cure brings next to their tokens, so that their bytes cross no
// link any more (placement = "affinity").
#pragma once
#include <cstdint>

#include "sim/run/run_data.hpp"

namespace switchyard::health {

/// Sums over the measured steps [ps].
struct ExchangeShare {
  double took = 0;       ///< Dispatch and combine, layer by layer; NaN without detail "layers".
  double floor = 0;      ///< Of which the busiest link works; NaN likewise.
  double even_gain = 0;  ///< The bound above.
  /// Max/mean of assignments over the GPUs: mean over the layers, weighted by their exchange time,
  /// and the largest layer; NaN likewise.
  double unevenness = run::kNoData, unevenness_max = run::kNoData;
  std::uint32_t most_uneven = run::kNone;  ///< Index into moe_layers of the largest, by its mean.
};

ExchangeShare exchange_share(const run::RunData& run);

}  // namespace switchyard::health
