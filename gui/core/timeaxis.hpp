// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the step axis that all panes share. No Qt: tested alone.
// Unit: steps, as real numbers; step s covers [s, s + 1). Pixels are logical pixels.
// Not modelled: an axis of simulated time (steps have equal width here).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::gui {

/// The steps on screen, [first, end).
struct TimeWindow {
  double first = 0, end = 0;
  [[nodiscard]] double length() const { return end - first; }
  bool operator==(const TimeWindow&) const = default;
};

/// A window never shrinks below this many steps, unless the run is shorter.
inline constexpr double kMinWindowSteps = 4;

/// The nearest window inside [0, steps] of a legal length.
TimeWindow clampWindow(TimeWindow window, double steps);
/// `factor` < 1 zooms in. The step position `at` stays where it is on screen, except where the
/// window would leave the run.
TimeWindow zoomAt(TimeWindow window, double at, double factor, double steps);
TimeWindow panBy(TimeWindow window, double delta, double steps);

/// Maps steps to pixels: x in [left, left + width] is [window.first, window.end].
class TimeAxis {
 public:
  TimeAxis(TimeWindow window, double left, double width);
  [[nodiscard]] double xOf(double t) const;
  [[nodiscard]] double tOf(double x) const;
  [[nodiscard]] double pixelsPerStep() const { return m_scale; }
  /// The step under x; none outside the window or the run.
  [[nodiscard]] std::optional<std::uint64_t> stepAt(double x, std::uint64_t steps) const;

 private:
  TimeWindow m_window;
  double m_left, m_width, m_scale;
};

/// Whole steps inside the window at 1, 2 or 5 times a power of ten, at most `most` of them (most
/// >= 2).
std::vector<std::uint64_t> stepTicks(TimeWindow window, std::uint64_t steps, int most);

/// Smallest of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10 times a power of ten that is >= value; 1 for
/// value <= 0 or not finite.
double niceCeiling(double value);

/// Parses "500", "500..900", "500-900", "10.4 ms" (needs starts) into a window: one step gives a
/// window of its own step only. `startsPs` are the start times of the steps, ascending; may be
/// empty (times are then refused). InputError("go to", …) otherwise.
TimeWindow parseGoTo(const std::string& text, std::uint64_t steps,
                     const std::vector<std::int64_t>& startsPs);

}  // namespace switchyard::gui
