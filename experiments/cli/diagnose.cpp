// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/diagnose.hpp"

#include <fmt/format.h>

#include "experiments/cli/monitor.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/health_series.hpp"

namespace switchyard::cli {

int run_diagnose(const DiagnoseOptions& options) {
  const health::RecordedRun file =
      health::read_recorded(options.run, h5::ReadOptions{options.verify});
  fmt::print("{}", render_health(health::diagnose(file.run, options.run).tables, options.format));
  return 0;
}

}  // namespace switchyard::cli
