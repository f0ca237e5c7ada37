// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/signals.hpp"

#include <fmt/format.h>

#include <utility>

namespace switchyard::cli {

SignalsFile signals_file(const run::RunMeta& run, std::string policy, SignalTable table) {
  SignalsFile f;
  f.model = run.model_name;
  f.hardware = run.hardware_name;
  f.scenario = run.scenario_name;
  f.scenario_hash = run.scenario_hash;
  f.trace_hash = run.trace_hash;
  f.policy = std::move(policy);
  f.program = fmt::format("switchyard {}", run.product_version);
  f.seed = run.seed;
  f.table = std::move(table);
  return f;
}

}  // namespace switchyard::cli
