// SPDX-License-Identifier: Apache-2.0
// How a calibration errs on a shape it has no table of. Each table with rows to judge is taken out
// in turn, with all its sizes, and the rows of its shape are judged by what is left (judge()): the
// roofline with overhead and shares of the nearest shape of the same operation, library and format.
// Where that shape has few points, its shares are fitted anew without the points of the one taken
// out. Rows whose shape has no table in the first place are not among these.
//
// A simulation whose shape has no table takes the achievable shares of the hardware file instead;
// this says what one would get by measuring a neighbour.
#pragma once
#include <cstdint>
#include <vector>

#include "experiments/validation/validate.hpp"

namespace switchyard::validation {

struct LeftOut {
  std::vector<JudgedRow> rows;       ///< Judged rows (odd hash), by table; unknown: no other shape.
  std::vector<std::uint32_t> shape;  ///< [rows] number of the table that was taken out.
};

/// Borrows the rows.
LeftOut judge_left_out(const scenario::Calibration& calibration,
                       const std::vector<MeasuredRow>& rows);
/// A line per group: shapes, rows, errors, and the median of the worst shape. No goal.
Table left_out_table(const scenario::Calibration& calibration, const LeftOut& judged);

}  // namespace switchyard::validation
