// SPDX-License-Identifier: Apache-2.0
// Alarm rules that a run is judged by: `switchyard monitor` and the app's Health.
//
// Not modelled: actions and policies of rules (a finished run takes none).
#pragma once
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::health {

struct AlarmRules {
  std::vector<scenario::AlarmRule> rules;
  bool own = false;    ///< They are those of the run's own scenario (monitor.alarms).
  std::string source;  ///< Whose they are, in words; why not the run's own, where it has some.
};
/// monitor.alarms of the run's scenario text, actions named but without what they need; those of
/// scenario::default_alarms() with the scenario's watermark where it has none or they cannot be
/// read. Throws nothing.
[[nodiscard]] AlarmRules alarm_rules_of(const run::RunData& run);
/// The same of a run just made from a scenario: its own rules where it states some.
[[nodiscard]] AlarmRules alarm_rules_of(const run::RunData& run,
                                        const std::vector<scenario::AlarmRule>& stated);

}  // namespace switchyard::health
