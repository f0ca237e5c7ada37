// SPDX-License-Identifier: Apache-2.0
// The verb `monitor`: health read-outs of a run with alarms.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct MonitorOptions {
  std::string input;  ///< Run (.h5), or scenario (.toml), which is simulated first.
  std::optional<std::string>
      alarms;  ///< --alarms FILE; else the scenario's (also a run's own), else the defaults.
  std::optional<std::string> trace;   ///< --trace, scenarios only.
  std::vector<std::string> settings;  ///< --set, scenarios only.
  bool fail_on_alarm = false;
  bool verify = true;
  TableFormat format = TableFormat::kText;
};

/// Tables of `monitor` and `diagnose`: JSON and CSV have numbers in their cells and units in the
/// headers.
std::string render_health(const std::vector<Table>& tables, TableFormat format);

/// 0, or 1 when fail_on_alarm is set and an alarm was raised. Throws InputError.
int run_monitor(const MonitorOptions& options);

}  // namespace switchyard::cli
