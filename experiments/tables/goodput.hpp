// SPDX-License-Identifier: Apache-2.0
// Goodput of aggregated against disaggregated serving on the same GPUs (as DistServe and Mooncake
// show it): the highest rate of arrivals at which 90 % of the requests hold their limits.
//
//   goodput = largest rate of the grid with attainment >= 90 %, where the next one has less
//   attainment = requests with TTFT <= a and TPOT <= b / requests that arrived
//
// by bisection over the grid, which takes for granted that attainment falls with the rate. All
// rates have the same draws (seed): the times between arrivals shrink with the rate. Counted are
// the requests that arrive after a warm-up.
//
// Not modelled: KV pages of different replicas on the same link at once (closed-form exchanges:
// each transfer alone), prefix caching, a search over batching limits for each layout.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

struct Attainment {
  double both = 0, ttft = 0, tpot = 0;  ///< Shares (0…1) of the requests that arrived.
};
/// Limits in seconds; of requests that arrived at `from_s` or later. A request that did not finish
/// holds neither; an answer of one token has no TPOT and holds that limit.
[[nodiscard]] Attainment attainment(const run::RunData& run, double ttft_s, double tpot_s,
                                    double from_s = 0);

/// The two neighbours of the grid 0 … n−1 between which `holds` turns false; no value: beyond an
/// end. Calls `holds` at most ceil(log2(n + 1)) times.
struct Turn {
  std::optional<std::size_t> last_good, first_bad;
};
[[nodiscard]] Turn find_turn(std::size_t n, const std::function<bool(std::size_t)>& holds);

[[nodiscard]] Table goodput_table(ShortRuns& runs);

}  // namespace switchyard::tables
