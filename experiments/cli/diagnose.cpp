// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/diagnose.hpp"

#include <fmt/format.h>

#include "experiments/cli/health_input.hpp"
#include "sim/health/diagnosis.hpp"

namespace switchyard::cli {

int run_diagnose(const DiagnoseOptions& options) {
  const run::RunData run = read_for_health(options.run, options.verify);
  fmt::print("{}", render_all(health::diagnose(run, options.run).tables, options.format));
  return 0;
}

}  // namespace switchyard::cli
