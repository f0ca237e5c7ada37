// SPDX-License-Identifier: Apache-2.0
#include "gui/core/warp.hpp"

#include <algorithm>

namespace switchyard::gui {

std::shared_ptr<const TimeScale> timeScaleOf(const RunStore& run) {
  const std::uint64_t steps = run.steps();
  if (steps == 0) return nullptr;
  if (run.hasSteps()) {
    // Replicas step by themselves: the last step to start need not be the last to end.
    std::int64_t end = 0;
    for (const run::StepScalars& s : run.data().steps) end = std::max(end, s.end_ps);
    return std::make_shared<const TimeScale>(run.starts(), 1, steps, end);
  }
  std::vector<std::int64_t> starts;
  for (std::uint64_t s = 0; s < steps; s += run::kLodFactor) starts.push_back(run.startPs(s));
  // The last bin ends after the time of its steps.
  const auto first = static_cast<double>((steps - 1) / run::kLodFactor * run::kLodFactor);
  const Columns<double> c = seriesColumns(run, {first, static_cast<double>(steps)}, 1);
  const double last = c.sum[static_cast<std::size_t>(run::StepSeries::kDurationPs)];
  return std::make_shared<const TimeScale>(starts, run::kLodFactor, steps,
                                           starts.back() + static_cast<std::int64_t>(last));
}

std::vector<double> columnEdges(const TimeScale* scale, TimeWindow window, std::size_t columns) {
  std::vector<double> edges;
  edges.reserve(columns + 1);
  const TimeAxis axis(window, 0, static_cast<double>(columns), scale);
  for (std::size_t c = 0; c <= columns; ++c) edges.push_back(axis.tOf(static_cast<double>(c)));
  // Columns of no width would hold nothing.
  for (std::size_t c = 1; c < edges.size(); ++c) edges[c] = std::max(edges[c], edges[c - 1] + 1e-7);
  return edges;
}

namespace {

/// `make(window, columns)` of B in the columns of A's window, as many as B fills.
template <class Make>
std::vector<double> otherColumns(const RunStore& other, const TimeScale* scale,
                                 const TimeScale* otherScale, TimeWindow window,
                                 std::size_t columns, Make&& make) {
  if (columns == 0 || !(window.length() > 0) || other.steps() == 0) return {};
  const auto steps = static_cast<double>(other.steps());
  if (scale == nullptr || otherScale == nullptr) {
    const double end = std::min(window.end, steps);
    const double share = (end - window.first) / window.length();
    const auto n = static_cast<std::size_t>(std::max(0.0, share * static_cast<double>(columns)));
    if (n == 0) return {};
    const double last =
        window.first + static_cast<double>(n) * window.length() / static_cast<double>(columns);
    return make(TimeWindow{window.first, last}, n);
  }
  std::vector<double> out;
  const double p0 = scale->psOf(window.first);
  const double per = (scale->psOf(window.end) - p0) / static_cast<double>(columns);
  for (std::size_t col = 0; col < columns; ++col) {
    const double at = p0 + static_cast<double>(col) * per;
    if (at >= otherScale->endPs()) break;
    const double s0 = std::min(otherScale->stepOf(at), steps - 1e-7);
    const double s1 = std::max(otherScale->stepOf(at + per), s0 + 1e-7);
    out.push_back(make(TimeWindow{s0, s1}, std::size_t{1}).front());
  }
  return out;
}

}  // namespace

std::vector<double> otherSeries(const RunStore& other, const TimeScale* scale,
                                const TimeScale* otherScale, TimeWindow window, std::size_t columns,
                                run::StepSeries series) {
  const auto i = static_cast<std::size_t>(series);
  return otherColumns(other, scale, otherScale, window, columns, [&](TimeWindow w, std::size_t n) {
    const Columns<double> c = seriesColumns(other, w, n);
    std::vector<double> out;
    for (std::size_t col = 0; col < n; ++col) out.push_back(c.mean(col, i));
    return out;
  });
}

std::vector<double> otherLinkUse(const RunStore& other, const TimeScale* scale,
                                 const TimeScale* otherScale, TimeWindow window,
                                 std::size_t columns) {
  if (other.links() == 0) return {};
  return otherColumns(other, scale, otherScale, window, columns, [&](TimeWindow w, std::size_t n) {
    const Columns<float> c = linkColumns(other, w, n);
    std::vector<double> out(n, 0.0);
    for (std::size_t col = 0; col < n; ++col) {
      for (std::size_t k = 0; k < c.width; ++k) {
        out[col] = std::max(out[col], static_cast<double>(c.max[col * c.width + k]));
      }
    }
    return out;
  });
}

std::uint32_t enginesOf(const run::Inventory& inventory) {
  std::uint32_t n = 1;
  for (const run::GpuInfo& g : inventory.gpus) n = std::max(n, g.engine + 1);
  return n;
}

}  // namespace switchyard::gui
