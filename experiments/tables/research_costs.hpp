// SPDX-License-Identifier: Apache-2.0
// Tables of what serving costs, by simulation, without a claim to judge: overlap, energy, cost.
// Each says its model and hardware in its title, its inputs with their source in its notes.
//
// Not modelled: power that depends on what a kernel does (a busy GPU draws its TDP, mechanism M40),
// clocks and power caps; a rate of exchanges that depends on the SMs they get.
#pragma once
#include <string_view>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// One or two micro-batches x SMs given to communication x exchange algorithm, prefill and decode:
/// exposed = step − step with free links and one batch; hidden = 1 − exposed / that of one batch.
[[nodiscard]] Table overlap_table(ShortRuns& runs);

/// Joules per token processed, of GPUs alone; sums over GPUs of a run's measured steps:
/// idle = idle W · span; compute, exchange = (TDP − idle) · time in such kernels.
struct EnergySplit {
  double idle = 0, compute = 0, exchange = 0;
  [[nodiscard]] double total() const { return idle + compute + exchange; }
};
/// `idle_w` and `tdp_w` of every GPU of the run. Exchange: dispatch, combine (its weighted sum
/// too), collectives.
[[nodiscard]] EnergySplit energy_split(const run::RunData& run, double idle_w, double tdp_w);
/// Phase x batch x layout, and a request of 1,024 tokens in and 256 out from its two phases.
[[nodiscard]] std::vector<Table> energy_tables(ShortRuns& runs);

/// A GPU type of the cost table; prices in USD, power in W.
struct PricedGpu {
  std::string_view name, hardware, price_source;
  double price = 0;   ///< Of one card; 0: none at hand.
  double idle_w = 0;  ///< 0: the hardware file's.
};
struct CostInputs {
  double usd_per_kwh = 0.12, years = 3, pue = 1.3, api_usd = 0.42;
};
/// USD per million tokens of a GPU that does `rate` tokens/s when busy and draws `busy_w` then,
/// used for `utilisation` (0, 1] of the time and idle for the rest.
[[nodiscard]] double usd_per_million(const CostInputs& inputs, double price, double rate,
                                     double busy_w, double idle_w, double utilisation);
/// GPU type x utilisation: USD per million tokens, break-even against an API's price.
[[nodiscard]] Table cost_table(ShortRuns& runs);

}  // namespace switchyard::tables
