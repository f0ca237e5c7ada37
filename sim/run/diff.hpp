// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: what was put in differently, then what came out. The window's compare
// table shows these rows cell by cell. Of two scenarios with several seeds each: the medians, the
// ranges, and whether the seeds alone explain a difference (the ranges touch; no distribution is
// assumed).
// Not modelled: tests of significance; two or three seeds tell little, more make ranges wider.
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

/// True when nothing was put in differently but the seed, if that.
bool same_but_seed(const RunMeta& a, const RunMeta& b);

/// Values of one metric over runs with several seeds, in its unit. Runs without the value do not
/// count; NaN when none has it.
struct Spread {
  std::size_t runs = 0;
  double median = kNoData, least = kNoData, most = kNoData;
};
Spread spread_of(const std::vector<const RunData*>& runs, const std::string& metric);
/// Whether the seeds explain the difference: the ranges touch, and one side has two values or more.
bool within_noise(const Spread& a, const Spread& b);

/// True when both runs have the same metrics and totals (NaN = NaN).
bool same_results(const RunData& a, const RunData& b);

/// Columns: kind ("input" or "metric"), name, unit, A, B, B-A, B/A, better ("A", "B", "same", or
/// "-" where neither direction is better or a value is missing). Inputs come first and are those
/// that differ; metrics are A's, then those only B has. Needs meta, totals and metrics only.
Table diff_runs(const RunData& a, const RunData& b);

/// Runs of one scenario each, with different seeds; `b` may be empty: the spread of `a` alone.
/// Columns: kind, name, unit, A (median), A range, B, B range, B-A, B/A (of the medians), better
/// ("noise" where within_noise()). InputError(title of the table, …) when the runs of a side differ
/// in more than the seed, or have the same one. Needs meta and metrics only.
Table diff_seeds(const std::vector<const RunData*>& a, const std::vector<const RunData*>& b);

}  // namespace switchyard::run
