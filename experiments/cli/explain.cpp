// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/explain.hpp"

#include <fmt/format.h>

#include "engine/routing/policy.hpp"

namespace switchyard {

Table explain_scenario(const scenario::Scenario& scenario) {
  Table table;
  table.name = "explain";
  table.title = fmt::format("{} on {}: {} GPUs, every value with its origin", scenario.model.name,
                            scenario.hardware.name, scenario.hardware.gpu_count());
  table.columns = {"key", "value", "origin"};
  for (const scenario::ResolvedValue& v : scenario.values) {
    table.rows.push_back({v.key, v.value, v.origin});
  }
  std::size_t points = 1;
  for (const scenario::SweepAxis& axis : scenario.sweep) {
    table.rows.push_back(
        {"sweep " + axis.key, fmt::format("{}", fmt::join(axis.values, ", ")), axis.where});
    points *= axis.values.size();
  }
  if (scenario.gate.experts > 0) {
    table.notes.emplace_back("routing pipeline (routing.md), active steps in order:");
    for (const std::string& step : explain_policy(scenario.gate, scenario.policy)) {
      table.notes.push_back("  " + step);
    }
  } else {
    table.notes.emplace_back("routing pipeline: none, the model has no MoE layer");
  }
  if (!scenario.sweep.empty()) {
    table.notes.push_back(
        fmt::format("{} sweep points; the values above are those without the sweep", points));
  }
  table.notes.push_back("scenario hash " + scenario::scenario_hash(scenario));
  return table;
}

Table explain_file(const std::string& path, scenario::ReadOptions options) {
  options.require_trace = false;
  return explain_scenario(scenario::read_scenario(path, options));
}

}  // namespace switchyard
