// SPDX-License-Identifier: Apache-2.0
// Table `simulated`: claims that a few short simulations decide (C17, C26, C36, C41, C43, C60, C74,
// C81-C83, C94, C96). The table shows every run beside its claim; what a claim leaves open is ours
// and stands in the column "scenario".
//
// Models of 16 experts, top-2, are routed by the shipped checkpoint; the others by a lognormal law
// of sigma 0.9, fitted to none of them. C41's 0.5 and 5 ms per token are answers of 10 and 100
// tokens, one at a time on a replica: waiting depends on the ratio of service times and on the load
// only. C74 is not decided when re-mapping changes less than twice the standard error of the step
// times.
//
// Not modelled: page faults and kernel builds (C12), several conditions a claim does not state.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

struct SimulatedRun {
  std::map<std::string, double> values;  ///< By name; times in ms, shares 0…1, rates per second.
  std::string claim, scenario;           ///< "C17", "NVLink 300 GB/s".
};
/// By the name measure_simulated asks for, e.g. "c17.nvlink".
using SimulatedRuns = std::map<std::string, SimulatedRun>;

[[nodiscard]] SimulatedRuns run_simulated(ShortRuns& runs);
/// InputError when a run or value is missing.
[[nodiscard]] claims::Measurements measure_simulated(const SimulatedRuns& runs);
[[nodiscard]] std::vector<Table> simulated_tables(const SimulatedRuns& runs,
                                                  const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
