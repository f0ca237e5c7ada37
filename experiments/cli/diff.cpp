// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/diff.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {

int run_diff(const DiffOptions& options) {
  const h5::ReadOptions read{options.verify};
  const run::RunData a = run::read_run(options.a, run::RunParts::none(), read);
  const run::RunData b = run::read_run(options.b, run::RunParts::none(), read);
  if (options.more.empty()) {
    fmt::print("{}", render(run::diff_runs(a, b), options.format));
    return 0;
  }
  // The first file's scenario is A, the other one B, whatever the order of the files.
  std::vector<run::RunData> rest;
  for (const std::string& file : options.more) {
    rest.push_back(run::read_run(file, run::RunParts::none(), read));
  }
  std::vector<std::pair<const run::RunData*, std::string>> all = {{&a, options.a}, {&b, options.b}};
  for (std::size_t i = 0; i < rest.size(); ++i) all.emplace_back(&rest[i], options.more[i]);
  std::vector<const run::RunData*> of_a, of_b;
  for (const auto& [data, file] : all) {
    if (of_a.empty() || run::same_but_seed(of_a.front()->meta, data->meta)) {
      of_a.push_back(data);
    } else if (of_b.empty() || run::same_but_seed(of_b.front()->meta, data->meta)) {
      of_b.push_back(data);
    } else {
      throw InputError(file, "is of a third scenario",
                       "diff compares two, each with as many seeds as you like");
    }
  }
  fmt::print("{}", render(run::diff_seeds(of_a, of_b), options.format));
  return 0;
}

}  // namespace switchyard::cli
