// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: what was put in differently, then what came out. The window's compare
// table shows these rows cell by cell.
// Not modelled: noise between seeds; one pair of runs is compared.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::run {

/// An input that differs. A text that one side does not have is "-".
struct InputDifference {
  std::string key, a, b;
};

/// The "key = value" lines of a canonical scenario text, in order. A "[table]" line prefixes the
/// keys below it; blank lines and lines that start with '#' are skipped; any other line is a key
/// without value.
std::vector<std::pair<std::string, std::string>> scenario_entries(const std::string& text);

/// Scenario keys (A's order, then those only B has), then what the scenario text does not say:
/// product version, seed, and the hashes of model, hardware and trace.
std::vector<InputDifference> input_differences(const RunMeta& a, const RunMeta& b);

/// True when both runs have the same metrics and totals (NaN = NaN).
bool same_results(const RunData& a, const RunData& b);

/// Columns: kind ("input" or "metric"), name, unit, A, B, B-A, B/A, better ("A", "B", "same", or
/// "-" where neither direction is better or a value is missing). Inputs come first and are those
/// that differ; metrics are A's, then those only B has. Needs meta, totals and metrics only.
Table diff_runs(const RunData& a, const RunData& b);

}  // namespace switchyard::run
