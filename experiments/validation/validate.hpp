// SPDX-License-Identifier: Apache-2.0
// Judges a calibration: simulated against measured times, row by row (simulation.md §6 of the
// specification). Never fits. Error of a row = simulated / measured − 1. Percentiles: nearest rank.
#pragma once
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/validation/measured_rows.hpp"
#include "sim/scenario/calibration.hpp"

namespace switchyard::validation {

struct JudgedRow {
  const MeasuredRow* row = nullptr;
  double simulated_us = 0;  ///< 0: the calibration has no table for the operation.
  bool extrapolated = false;
  bool below_floor = false;  ///< The *measured* time is below bytes and FLOPs at the peak rates.
  [[nodiscard]] bool known() const { return simulated_us > 0; }
  [[nodiscard]] double error() const { return simulated_us / row->point.us - 1; }
};

/// One entry per row, in their order. Borrows the rows.
std::vector<JudgedRow> judge(const scenario::Calibration& calibration,
                             const std::vector<MeasuredRow>& rows);

/// Median, 95th percentile and worst of the absolute errors; NaN without rows.
struct ErrorSummary {
  std::size_t rows = 0;
  double median = 0, p95 = 0, worst = 0;
};
ErrorSummary summarise(std::vector<double> absolute_errors);

/// Whether the rows that are judged, all but NCCL below 1 MiB, keep median <= 10 % and 95th
/// percentile <= 25 %; true without such rows.
bool goal_met(const std::vector<JudgedRow>& judged);

/// A line per group and one over all: n fitted, n judged, errors. Judged are rows with an odd hash.
Table summary_table(const scenario::Calibration& calibration, const MeasuredRows& measured,
                    const std::vector<JudgedRow>& judged);
/// A line per row, judged and not.
Table rows_table(const std::vector<JudgedRow>& judged);

/// The calibration of `hardware` fitted to the rows with an even hash; tables by operation.
scenario::Calibration fit_rows(scenario::Calibration without_tables,
                               const std::vector<MeasuredRow>& rows);

}  // namespace switchyard::validation
