// SPDX-License-Identifier: Apache-2.0
// Summary metrics of a run (claims.md §1), computed from scalars, totals, requests and tokens, so
// that they do not depend on the run's detail. Warm-up steps are left out. A metric without data is
// NaN and prints n/a; none is guessed.
// Not modelled: energy and cost (they need power figures), quality of the answers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/run/run_data.hpp"

namespace switchyard::run {

enum class Better { kLower, kHigher, kNeither };

struct MetricDefinition {
  std::string name;
  std::string unit;  ///< Empty for pure numbers and ratios.
  Better better = Better::kNeither;
  std::string definition;  ///< One sentence or formula.
};

/// All metrics of compute_metrics, in its order.
const std::vector<MetricDefinition>& metric_definitions();
/// What runs have besides when requests arrive; the simulator computes them (sim/serving).
const std::vector<MetricDefinition>& serving_metric_definitions();
/// What runs have besides when the scenario states it: objectives, prices, faults, an expert cache.
const std::vector<MetricDefinition>& stated_metric_definitions();
/// A name may end with ", tier NAME", ", layer N" or ", round N". Null when it is none of ours;
/// runs of this simulator have no such metric.
const MetricDefinition* find_metric(std::string_view name);

/// One value per definition, in order.
std::vector<Metric> compute_metrics(const RunData& run);

/// Nearest rank: the ceil(percent/100·n)-th smallest value; NaN for none. percent in (0, 100].
double nearest_rank(std::vector<double> values, double percent);

inline constexpr std::int64_t kP99WindowPs = 10'000'000'000'000;  ///< 10 s
inline constexpr std::size_t kP99Windows = 28;
/// p99_std of claims.md §1: population std, over the whole 10 s windows (begin, begin + 10 s], … of
/// [begin, end], of the window's 99th percentile (nearest rank) of `values`, each with its time.
/// NaN with fewer than 28 windows that have values. Sizes are equal (asserted).
double windowed_p99_std(const std::vector<std::int64_t>& time_ps, const std::vector<double>& values,
                        std::int64_t begin_ps, std::int64_t end_ps);

/// "1.234", up to six digits; "n/a" for NaN.
std::string format_value(double value);

}  // namespace switchyard::run
