// SPDX-License-Identifier: Apache-2.0
// Alarm rules of a run. Apart from health.hpp, because rules hold a routing policy, whose header
// has a member `signals`: a macro where Qt's headers come first.
#pragma once
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::gui {

/// The rules that a run is judged by.
struct AlarmRules {
  std::vector<scenario::AlarmRule> rules;
  bool own = false;    ///< They are those of the run's own scenario (monitor.alarms).
  std::string source;  ///< Whose they are, in words; why not the run's own, where it has some.
};
/// monitor.alarms of the run's scenario text, actions named but without what they need (a finished
/// run takes none); those of `switchyard monitor` with the scenario's watermark where it has none
/// or they cannot be read. Throws nothing.
AlarmRules alarmRulesOf(const run::RunData& run);

}  // namespace switchyard::gui
