// SPDX-License-Identifier: Apache-2.0
// Pixel columns of equal width on either axis: of steps (columns.hpp takes the window as it is) or
// of simulated time (every column gets the steps that its time holds; the rules of columns.hpp hold
// for each, so no step of overflow is lost). No Qt.
#pragma once
#include <memory>
#include <vector>

#include "gui/core/columns.hpp"
#include "gui/core/timeaxis.hpp"

namespace switchyard::gui {

/// The starts of the run's steps (of bins of steps where it has none). Null for a run without
/// steps.
std::shared_ptr<const TimeScale> timeScaleOf(const RunStore& run);

/// Boundaries of the columns in steps, [columns + 1], ascending. `scale` null: an axis of steps.
std::vector<double> columnEdges(const TimeScale* scale, TimeWindow window, std::size_t columns);

/// Puts the columns of `from` behind those of `to`; the same width and kind.
template <class T>
void append(Columns<T>& to, const Columns<T>& from) {
  to.columns += from.columns;
  to.max.insert(to.max.end(), from.max.begin(), from.max.end());
  to.sum.insert(to.sum.end(), from.sum.begin(), from.sum.end());
  to.flag.insert(to.flag.end(), from.flag.begin(), from.flag.end());
  to.steps.insert(to.steps.end(), from.steps.begin(), from.steps.end());
}
inline void append(HeatColumns& to, const HeatColumns& from) {
  to.columns += from.columns;
  to.value.insert(to.value.end(), from.value.begin(), from.value.end());
  to.over.insert(to.over.end(), from.over.begin(), from.over.end());
}

/// `make(window, columns)` on the axis at hand. On an axis of time it is called for each column.
template <class Make>
auto overColumns(const TimeScale* scale, TimeWindow window, std::size_t columns, Make&& make) {
  if (scale == nullptr || columns == 0) return make(window, columns);
  const std::vector<double> edges = columnEdges(scale, window, columns);
  auto out = make(TimeWindow{edges[0], edges[1]}, std::size_t{1});
  for (std::size_t c = 1; c < columns; ++c) {
    append(out, make(TimeWindow{edges[c], edges[c + 1]}, std::size_t{1}));
  }
  return out;
}

/// Series i of B in the columns of A's window, mean per column: the same step lies under the same
/// pixel, or the same time on axes of time (both scales given). As many columns as B fills.
std::vector<double> otherSeries(const RunStore& other, const TimeScale* scale,
                                const TimeScale* otherScale, TimeWindow window, std::size_t columns,
                                run::StepSeries series);

/// The same of the busiest of B's links: largest use per column, share of its capacity.
std::vector<double> otherLinkUse(const RunStore& other, const TimeScale* scale,
                                 const TimeScale* otherScale, TimeWindow window,
                                 std::size_t columns);

/// Number of engines (replicas that step by themselves), at least 1.
std::uint32_t enginesOf(const run::Inventory& inventory);

}  // namespace switchyard::gui
