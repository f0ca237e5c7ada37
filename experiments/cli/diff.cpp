// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/diff.hpp"

#include <fmt/format.h>

#include "sim/run/diff.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {

int run_diff(const DiffOptions& options) {
  const h5::ReadOptions read{options.verify};
  const run::RunData a = run::read_run(options.a, run::RunParts::none(), read);
  const run::RunData b = run::read_run(options.b, run::RunParts::none(), read);
  fmt::print("{}", render(run::diff_runs(a, b), options.format));
  return 0;
}

}  // namespace switchyard::cli
