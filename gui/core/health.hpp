// SPDX-License-Identifier: Apache-2.0
// Health of a run, as `switchyard monitor` and `switchyard diagnose` print it. No Qt.
#pragma once
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::gui {

/// Threshold of the first rule on gate_entropy that the run is judged by (health::alarm_rules_of),
/// bits; nullopt: no rule watches it.
struct EntropyAlarm {
  double threshold = 0;
  bool above = true;  ///< Raised above it, or below.
};
std::optional<EntropyAlarm> entropyAlarmOf(const run::RunData& run);

struct HealthReport {
  Table watched;        ///< Every watched signal: mean, p95, worst with its step and place, state.
  Table alarms;         ///< What the rules raise and clear, and what the run recorded.
  Table findings;       ///< Symptom, cause, check, cure.
  std::string missing;  ///< Why there are none.
  std::string rules;    ///< AlarmRules::source; empty where nothing was judged.
  bool ownRules = false;
};
/// Reads the file's steps (its layers only where they are not too many) and judges them by
/// health::alarm_rules_of() the run. Errors are in
/// `missing`; so is that `stop` (may be null) became true while it read.
/// `permille` (may be null): thousandths of the reading that are done.
HealthReport healthOf(const std::filesystem::path& file, const std::atomic<bool>* stop = nullptr,
                      std::atomic<int>* permille = nullptr);
/// The same of a run in memory.
HealthReport healthOf(const run::RunData& run, const std::string& name);

}  // namespace switchyard::gui
