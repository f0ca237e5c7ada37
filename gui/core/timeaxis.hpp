// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the step axis that all panes share. No Qt: tested alone.
// Unit: steps, as real numbers; step s covers [s, s + 1). Pixels are logical pixels. Steps have
// equal width, or with a TimeScale a width that is proportional to their simulated time: then step
// s covers the time from its start to the start of the next one, so an idle time belongs to the
// step before.
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

/// Simulated time at every step of a run, piecewise linear between the starts of steps; both
/// directions. Where several steps start at once the last of them has the width.
class TimeScale {
 public:
  /// startsPs[i]: start of step i * stride in ps, ascending; endPs: end of the run, not before the
  /// last start. One start per `stride` steps (asserted); steps > 0, stride > 0.
  TimeScale(std::vector<std::int64_t> startsPs, std::uint64_t stride, std::uint64_t steps,
            std::int64_t endPs);
  /// Clamped to the run. stepOf(psOf(s)) == s but for steps of no width.
  [[nodiscard]] double psOf(double step) const;
  [[nodiscard]] double stepOf(double ps) const;
  [[nodiscard]] double firstPs() const { return static_cast<double>(m_starts.front()); }
  [[nodiscard]] double endPs() const { return static_cast<double>(m_end); }

 private:
  std::vector<std::int64_t> m_starts;
  std::uint64_t m_stride, m_steps;
  std::int64_t m_end;
};

/// zoomAt and a shift by a share of the window's length on an axis of time; both in steps.
TimeWindow zoomInTime(const TimeScale& scale, TimeWindow window, double at, double factor,
                      double steps);
TimeWindow panInTime(const TimeScale& scale, TimeWindow window, double share, double steps);

/// Maps steps to pixels: x in [left, left + width] is [window.first, window.end].
class TimeAxis {
 public:
  /// `scale` is borrowed; null: steps of equal width.
  TimeAxis(TimeWindow window, double left, double width, const TimeScale* scale = nullptr);
  [[nodiscard]] double xOf(double t) const;
  [[nodiscard]] double tOf(double x) const;
  /// Mean over the window.
  [[nodiscard]] double pixelsPerStep() const {
    return m_window.length() > 0 ? m_width / m_window.length() : 0;
  }
  /// Pixels per ps; 0 on an axis of steps.
  [[nodiscard]] double pixelsPerPs() const { return m_times != nullptr ? m_scale : 0; }
  /// Of a time in ps; only on an axis of time (asserted).
  [[nodiscard]] double xOfPs(double ps) const;
  /// The step under x; none outside the window or the run.
  [[nodiscard]] std::optional<std::uint64_t> stepAt(double x, std::uint64_t steps) const;

 private:
  TimeWindow m_window;
  double m_left, m_width, m_scale;
  const TimeScale* m_times;
  double m_firstPs = 0;
};

/// Whole steps inside the window at 1, 2 or 5 times a power of ten, at most `most` of them (most
/// >= 2).
std::vector<std::uint64_t> stepTicks(TimeWindow window, std::uint64_t steps, int most);

/// Times in [firstPs, endPs] at 1, 2 or 5 times a power of ten (ps), at most `most` of them (most
/// >= 2).
std::vector<double> timeTicks(double firstPs, double endPs, int most);
/// "1.2 s", "10.4 ms": a tick's time without trailing zeros.
std::string tickText(double ps);
/// The same of any time, rounded to four digits.
std::string roundedTickText(double ps);

/// Smallest of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10 times a power of ten that is >= value; 1 for
/// value <= 0 or not finite.
double niceCeiling(double value);

/// Largest of 1, 2, 5 times a power of ten that is <= value; 1 for value <= 0 or not finite.
double niceFloor(double value);

/// Parses "500", "500..900", "500-900", "10.4 ms" (needs starts) into a window: one step gives a
/// window of its own step only, a range holds both of its ends. `startsPs` are the start times of
/// the steps, ascending; may be empty (times are then refused). InputError("go to", …) otherwise.
TimeWindow parseGoTo(const std::string& text, std::uint64_t steps,
                     const std::vector<std::int64_t>& startsPs);

}  // namespace switchyard::gui
