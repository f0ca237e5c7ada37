// SPDX-License-Identifier: Apache-2.0
// From a run to what limits it: where the time of a step goes, the critical path of the slowest
// step, the stragglers and why, the links, and findings: symptom → cause → check → cure (M57).
// Every number is computed from the run. A cure comes with the most it can save, a bound that holds
// by arithmetic (time on the critical path that would be gone), never a promise.
//
// Bounds, as shares of the measured steps' time T on the critical path:
//   imbalance      (expert time on the critical path - mean over GPUs of their expert time) / T:
//                  not the imbalance of assignments, since a GPU's time also follows the experts it
//                  reads; plus what an even spread saves of dispatch and combine
//                  (sim/health/exchange_share.hpp), since its cure moves assignments
//   hot expert     the larger of that and of expert time · (1 - mean / slowest expert), plus the same
//   exchange-bound dispatch, combine and collectives on the critical path / T
//   link           exchange time · (1 - floor with every link at the load's mean) / T: the busiest
//                  link carries busy_max, links of its class busy_mean on average:
//                  exchange · (1 - busy_mean / busy_max); hot link: at least what an even spread
//                  saves of the exchanges, plus the same of the experts
//   collapse, uneven router   what an even spread saves of experts and exchanges
//   latency        (exchange time - its floors) / T: path latency, not bytes
//   host, waves    the phase's own time / T
//
// Not modelled: what two cures give together (their bounds overlap), the cost of a cure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::health {

struct Finding {
  std::string id;       ///< Stable word, e.g. "imbalance".
  std::string symptom;  ///< With the numbers it was found by.
  std::string cause, check, cure;
  double bound = 0;     ///< Share of the time the cure can save at most; NaN: not a matter of time.
  double severity = 0;  ///< Findings are listed by it, highest first; 2 and more: results are lost.
};

struct Diagnosis {
  std::vector<Finding> findings;
  std::vector<std::string>
      not_decidable;          ///< Rules whose data this run lacks, with what is missing.
  std::vector<Table> tables;  ///< "time", "critical path", "stragglers", "links", "findings".
};

/// `name` stands for the run's file in commands. Works at every detail; says what a detail lacks.
Diagnosis diagnose(const run::RunData& run, const std::string& name);

/// Rules that no run of the simulator can decide, named with the reason.
const std::vector<std::string>& undecidable_rules();

}  // namespace switchyard::health
