// SPDX-License-Identifier: Apache-2.0
// Health of a run, as `switchyard monitor` and `switchyard diagnose` print it. No Qt.
#pragma once
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::gui {

struct HealthReport {
  Table watched;        ///< Every watched signal: mean, p95, worst with its step and place, state.
  Table alarms;         ///< What the default rules raise and clear, and what the run recorded.
  Table findings;       ///< Symptom, cause, check, cure.
  std::string missing;  ///< Why there are none.
};
/// Reads the file's steps (its layers only where they are not too many) and judges them by the
/// rules of monitor without --alarms, with the watermark of the run's own scenario. Errors are in
/// `missing`; so is that `stop` (may be null) became true while it read.
HealthReport healthOf(const std::filesystem::path& file, const std::atomic<bool>* stop = nullptr);
/// The same of a run in memory.
HealthReport healthOf(const run::RunData& run, const std::string& name);

}  // namespace switchyard::gui
