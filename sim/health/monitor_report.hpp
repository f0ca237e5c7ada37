// SPDX-License-Identifier: Apache-2.0
// Health read-outs of a finished run, with alarms (verb `monitor`).
//
// Not modelled: actions (a finished run cannot be changed; the table names what a rule would do).
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/health/health_series.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::health {

struct MonitorReport {
  /// "health": every signal's mean, p95, worst value with step and place, and state. "alarms": what
  /// the rules raise and clear, and what the run recorded itself, in the order of time.
  std::vector<Table> tables;
  /// Alarms that the rules raised, and those that the run raised itself (circuit breakers that
  /// opened among them) and the rules did not.
  std::size_t raised = 0;
};

/// All steps, warm-up included (a leak begins there too). `name` stands for the run in messages.
/// Throws InputError for a run of detail "summary".
MonitorReport monitor_run(const run::RunData& run, const std::vector<scenario::AlarmRule>& rules,
                          const std::string& name);
/// The same of a file, whose blocks are read by parts.
MonitorReport monitor_run(const RecordedRun& file, const std::vector<scenario::AlarmRule>& rules,
                          const std::string& name);

}  // namespace switchyard::health
