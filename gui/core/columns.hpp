// SPDX-License-Identifier: Apache-2.0
// From steps to pixel columns. Each column of the picture takes all steps (or bins of a level of
// detail) that it overlaps: the largest value, the sum, the OR of the flags. So a single step of
// overflow lights a column however far out one zooms; a bin that straddles two columns lights both.
// No Qt.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gui/core/runstore.hpp"
#include "gui/core/timeaxis.hpp"

namespace switchyard::gui {

enum class Aggregate { kMax, kMean };
/// What the colour of a cell means. kCapacity: demand / capacity, largest layer. kFairShare: tokens
/// of the expert / mean tokens of an expert over the same steps.
enum class Scale { kTokens, kCapacity, kFairShare };

/// Row-major [columns][width].
template <class T>
struct Columns {
  std::size_t columns = 0, width = 0;
  std::size_t level = 0;           ///< Level of detail they came from; 0 = single steps.
  std::vector<T> max;              ///< Largest value of a step.
  std::vector<double> sum;         ///< Over the steps of the bins it overlaps.
  std::vector<std::uint8_t> flag;  ///< 1 if any step's flag is set.
  std::vector<double> steps;       ///< [columns] number of steps summed.
  [[nodiscard]] double mean(std::size_t column, std::size_t i) const {
    return steps[column] > 0 ? sum[column * width + i] / steps[column] : 0;
  }
};

/// The coarsest level whose bins are no wider than a column, but at least `finest`.
std::size_t levelForColumns(TimeWindow window, std::size_t columns, std::size_t finest,
                            std::size_t levels);

/// `row(step, values, flags)` fills the values of one step; called only for level 0.
template <class T, class Sum, class Row>
Columns<T> aggregate(const run::Lod<T, Sum>& lod, TimeWindow window, std::size_t columns,
                     bool haveSteps, Row&& row) {
  Columns<T> out;
  out.columns = columns;
  out.width = lod.width();
  const std::uint64_t steps = lod.steps();
  const std::size_t n = columns * out.width;
  out.max.assign(n, T{});
  out.sum.assign(n, 0.0);
  out.flag.assign(n, 0);
  out.steps.assign(columns, 0.0);
  if (steps == 0 || columns == 0 || !(window.length() > 0)) return out;
  out.level = levelForColumns(window, columns, haveSteps ? 0 : 1, lod.levels());
  const std::uint64_t binSteps = run::lod_bin_steps(out.level);
  const std::uint64_t bins = run::lod_bins(steps, out.level);
  const double perColumn = window.length() / static_cast<double>(columns);
  std::vector<T> values(out.width);
  std::vector<std::uint8_t> flags(out.width);
  std::uint64_t loaded = bins;  // which step is in values, flags
  for (std::size_t c = 0; c < columns; ++c) {
    const double t0 = window.first + static_cast<double>(c) * perColumn;
    const double t1 = t0 + perColumn;
    const auto width = static_cast<double>(binSteps);
    // A sliver below 1e-9 of a bin is rounding, not overlap.
    auto b0 = static_cast<std::uint64_t>(std::max(0.0, std::floor(t0 / width + 1e-9)));
    b0 = std::min(b0, bins - 1);
    auto b1 = static_cast<std::uint64_t>(std::max(0.0, std::ceil(t1 / width - 1e-9)));
    b1 = std::clamp(b1, b0 + 1, bins);
    T* max = out.max.data() + c * out.width;
    double* sum = out.sum.data() + c * out.width;
    std::uint8_t* flag = out.flag.data() + c * out.width;
    for (std::uint64_t b = b0; b < b1; ++b) {
      const bool first = b == b0;
      if (out.level == 0) {
        if (loaded != b) {
          row(b, values.data(), flags.data());
          loaded = b;
        }
        for (std::size_t i = 0; i < out.width; ++i) {
          max[i] = first ? values[i] : std::max(max[i], values[i]);
          sum[i] += static_cast<double>(values[i]);
          flag[i] = static_cast<std::uint8_t>(flag[i] | flags[i]);
        }
        out.steps[c] += 1;
      } else {
        const auto& level = lod.level(out.level);
        const std::size_t base = static_cast<std::size_t>(b) * out.width;
        for (std::size_t i = 0; i < out.width; ++i) {
          max[i] = first ? level.max[base + i] : std::max(max[i], level.max[base + i]);
          sum[i] += static_cast<double>(level.sum[base + i]);
          flag[i] = static_cast<std::uint8_t>(flag[i] | level.flag[base + i]);
        }
        out.steps[c] += static_cast<double>(std::min(binSteps, steps - b * binSteps));
      }
    }
  }
  return out;
}

/// Expert heat map: [columns][E] in expert order. NaN = no capacity (scale kCapacity only).
struct HeatColumns {
  std::size_t columns = 0, experts = 0, level = 0;
  std::vector<float> value;
  std::vector<std::uint8_t> over;  ///< Overflow in a step of the column: over capacity.
};
HeatColumns heatColumns(const RunStore& run, std::uint32_t layer, Scale scale, Aggregate aggregate,
                        TimeWindow window, std::size_t columns);
/// Value at the top of the colour bar for the whole run: 1 for kCapacity, else the largest value
/// rounded up (niceCeiling), so that colours keep their meaning when zooming.
double heatTop(const RunStore& run, std::uint32_t layer, Scale scale);

/// All kStepSeries of run.lod.steps, raw units (durations in ps). NaN of single steps counts as 0.
Columns<double> seriesColumns(const RunStore& run, TimeWindow window, std::size_t columns);
/// Share of capacity of each link; flag = at least 0.9.
Columns<float> linkColumns(const RunStore& run, TimeWindow window, std::size_t columns);
/// [G*P] ps.
Columns<std::int64_t> phaseColumns(const RunStore& run, TimeWindow window, std::size_t columns);

/// The K links with the largest mean use over the run (then the largest step, then the number).
std::vector<std::size_t> busiestLinks(const RunStore& run, std::size_t most);

/// Steps first … end, exclusive, as the file gives them; CSV with a header line and "\n" ends.
/// panel: "all", "heatmap", "imbalance", "links". InputError where the run has no steps (detail).
std::string csvOf(const RunStore& run, const std::string& panel, std::uint32_t layer,
                  TimeWindow window);

/// "12 250" with no-break spaces (UTF-8).
std::string groupDigits(std::uint64_t n);
/// Four significant digits, no exponent for the ranges seen here: "1.243", "23.51", "0".
std::string shortNumber(double v);
/// "10.41 s", "23.51 ms", "7.2 us" with four significant digits.
std::string timeText(double ps);
/// "e079", as wide as the largest number of the model.
std::string expertName(std::uint32_t e, std::uint32_t experts);
/// "12.3 %"; small shares with two significant digits, "0.034 %".
std::string percentText(double share);
/// "1.5 GB" with four significant digits; decimal units.
std::string bytesText(double bytes);

}  // namespace switchyard::gui
