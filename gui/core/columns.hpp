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
/// of the expert / their mean over the experts, of the means over the steps or of each expert's
/// largest step.
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

/// What of a Columns is wanted; the rest stays empty (`steps` never does).
enum class Wanted { kMax, kSum, kBoth };

/// Columns of one series of `layer` (kAllLayers: the sum). `row(step, values, flags)` fills the
/// values of one step; called only for level 0.
template <class T, class Sum, class Row>
Columns<T> aggregate(const RunStore& run, run::LodSeries series, std::uint32_t layer,
                     TimeWindow window, std::size_t columns, Wanted wanted, Row&& row) {
  Columns<T> out;
  out.columns = columns;
  out.width = run.width(series);
  const std::uint64_t steps = run.steps();
  const std::size_t width = out.width;
  const bool max = wanted != Wanted::kSum;
  const bool sum = wanted != Wanted::kMax;
  if (max) out.max.assign(columns * width, T{});
  if (max) out.flag.assign(columns * width, 0);
  if (sum) out.sum.assign(columns * width, 0.0);
  out.steps.assign(columns, 0.0);
  if (steps == 0 || columns == 0 || width == 0 || !(window.length() > 0)) return out;
  out.level = levelForColumns(window, columns, run.hasSteps() ? 0 : 1, run.levels());
  const std::uint64_t binSteps = run::lod_bin_steps(out.level);
  const std::uint64_t bins = run::lod_bins(steps, out.level);
  const double perColumn = window.length() / static_cast<double>(columns);
  std::vector<T> values(width);
  std::vector<std::uint8_t> flags(width);
  std::uint64_t loaded = bins;  // which step is in values, flags
  BinRows<T, Sum> most, sums;   // pages of a level
  const auto add = [&](std::size_t c, bool first, const T* m, const std::uint8_t* f) {
    T* to = out.max.data() + c * width;
    std::uint8_t* flag = out.flag.data() + c * width;
    if (first) {
      std::copy_n(m, width, to);
      std::copy_n(f, width, flag);
      return;
    }
    for (std::size_t i = 0; i < width; ++i) to[i] = m[i] > to[i] ? m[i] : to[i];
    for (std::size_t i = 0; i < width; ++i) flag[i] = static_cast<std::uint8_t>(flag[i] | f[i]);
  };
  const auto addSum = [&](std::size_t c, const auto* s) {
    double* to = out.sum.data() + c * width;
    for (std::size_t i = 0; i < width; ++i) to[i] += static_cast<double>(s[i]);
  };
  for (std::size_t c = 0; c < columns; ++c) {
    const double t0 = window.first + static_cast<double>(c) * perColumn;
    const double t1 = t0 + perColumn;
    const auto binWidth = static_cast<double>(binSteps);
    // A sliver below 1e-9 of a bin is rounding, not overlap.
    auto b0 = static_cast<std::uint64_t>(std::max(0.0, std::floor(t0 / binWidth + 1e-9)));
    b0 = std::min(b0, bins - 1);
    auto b1 = static_cast<std::uint64_t>(std::max(0.0, std::ceil(t1 / binWidth - 1e-9)));
    b1 = std::clamp(b1, b0 + 1, bins);
    for (std::uint64_t b = b0; b < b1; ++b) {
      if (out.level == 0) {
        if (loaded != b) {
          row(b, values.data(), flags.data());
          loaded = b;
        }
        if (max) add(c, b == b0, values.data(), flags.data());
        if (sum) addSum(c, values.data());
        out.steps[c] += 1;
        continue;
      }
      if (max) {
        if (b < most.first || b >= most.first + most.count) {
          most = run.bins<T, Sum>(series, layer, run::LodPart::kMaxAndFlag, out.level, b);
        }
        const std::size_t at = static_cast<std::size_t>(b - most.first) * width;
        add(c, b == b0, most.max + at, most.flag + at);
      }
      if (sum) {
        // A page of sums may push the page of maxima out of the store: ask for both again.
        if (b < sums.first || b >= sums.first + sums.count) {
          sums = run.bins<T, Sum>(series, layer, run::LodPart::kSum, out.level, b);
          if (max) most = run.bins<T, Sum>(series, layer, run::LodPart::kMaxAndFlag, out.level, b);
        }
        addSum(c, sums.sum + static_cast<std::size_t>(b - sums.first) * width);
      }
      out.steps[c] += static_cast<double>(std::min(binSteps, steps - b * binSteps));
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
/// Largest demand / capacity of an expert in a step of the run, at least 1; 1 without capacities.
double overTop(const RunStore& run, std::uint32_t layer);

/// All kStepSeries of LodSeries::kSteps, raw units (durations in ps). NaN of single steps counts as
/// 0.
Columns<double> seriesColumns(const RunStore& run, TimeWindow window, std::size_t columns);
/// Share of capacity of each link; flag = at least 0.9.
Columns<float> linkColumns(const RunStore& run, TimeWindow window, std::size_t columns);
/// [G*P] ps; sums only.
Columns<std::int64_t> phaseColumns(const RunStore& run, TimeWindow window, std::size_t columns);

/// 5th, 50th and 95th percentile over the MoE layers of the imbalance of each step (nearest rank,
/// as in the metrics); NaN where a step has none.
struct LayerSpread {
  std::vector<float> low, middle, high;  ///< [S]
  /// `imbalance` [count][layers], of further steps.
  void append(const std::vector<float>& imbalance, std::size_t layers);
};

/// The K links with the largest mean use over the run (then the largest step, then the number).
std::vector<std::size_t> busiestLinks(const RunStore& run, std::size_t most);

/// Steps first … end, exclusive, as the file gives them; CSV with a header line and "\n" ends.
/// panel: "all", "heatmap", "imbalance", "links", "memory". InputError where the run has no steps
/// (detail).
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
