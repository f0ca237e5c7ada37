// SPDX-License-Identifier: Apache-2.0
// Table `batch-serving`: S4's model with INT4 experts on 16 x H200 at batches of 16 to 1024, with
// attention spread over the GPUs (dp) and on one of them (hub): C52, C55, C56, C58, C59, C90, C91.
//
// C58's second tier (M18) decides in the engine, on the shipped checkpoint and the mixed prompts:
// right is the set of the FP32 router, load std is load_cv over the whole run.
//
// Not modelled: C57 (an expert next to its prompt's GPU) needs requests with domains of their own;
// the time of the second tier, which the simulator does not charge (not decided).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

struct BatchPoint {
  double step_s = 0, p95_s = 0;
  double router = 0, dispatch = 0, combine = 0;  ///< Shares of the step, 0…1.
  double busy = 0, link_use = 0, top3 = 0;       ///< 0…1.
  double busy_std = 0;                           ///< Of the GPUs' busy shares, population.
  double memory = 0;  ///< High water over the GPU's memory; above 1 the batch does not fit.
};
/// Of one engine run.
struct TierRun {
  double load_cv = 0;            ///< 0…
  double first = 0, second = 0;  ///< Share of decisions that are the FP32 router's, 0…1.
};
struct BatchServing {
  /// [attention][batch]; "dp round_robin", "dp soft", … at batch 128.
  std::map<std::string, std::map<std::uint64_t, BatchPoint>> points;
  std::map<std::string, TierRun> tiers;  ///< "none" (its shares are 0), "int4", "rank".
  /// [attention] What a scorer on the CPU adds to a step at batch 128, milliseconds.
  std::map<std::string, double> scorer_ms;
  std::uint64_t scorer_width = 0;  ///< Inner width of that scorer.
};

[[nodiscard]] BatchServing run_batch_serving(ShortRuns& runs);
[[nodiscard]] claims::Measurements measure_batch_serving(const BatchServing& run);
[[nodiscard]] std::vector<Table> batch_serving_tables(const BatchServing& run,
                                                      const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
