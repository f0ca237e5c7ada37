// SPDX-License-Identifier: Apache-2.0
#include "gui/core/timeaxis.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/base/units.hpp"

namespace switchyard::gui {
namespace {

std::string trimmed(std::string_view s) {
  const std::size_t a = s.find_first_not_of(" \t");
  if (a == std::string_view::npos) return {};
  return std::string(s.substr(a, s.find_last_not_of(" \t") - a + 1));
}

std::optional<std::uint64_t> wholeNumber(const std::string& s) {
  std::uint64_t v = 0;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (s.empty() || ec != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return v;
}

}  // namespace

TimeWindow clampWindow(TimeWindow w, double steps) {
  if (!(steps > 0)) return {0, 0};
  const double length = std::clamp(w.length(), std::min(kMinWindowSteps, steps), steps);
  const double middle = (w.first + w.end) / 2;
  double first = w.length() == length ? w.first : middle - length / 2;
  first = std::clamp(first, 0.0, steps - length);
  return {first, std::min(first + length, steps)};
}

TimeWindow zoomAt(TimeWindow w, double at, double factor, double steps) {
  if (!(steps > 0) || !(w.length() > 0)) return clampWindow(w, steps);
  const double length = std::clamp(w.length() * factor, std::min(kMinWindowSteps, steps), steps);
  const double share = (at - w.first) / w.length();
  const double first = std::clamp(at - share * length, 0.0, steps - length);
  return {first, std::min(first + length, steps)};
}

TimeWindow panBy(TimeWindow w, double delta, double steps) {
  return clampWindow({w.first + delta, w.end + delta}, steps);
}

TimeScale::TimeScale(std::vector<std::int64_t> startsPs, std::uint64_t stride, std::uint64_t steps,
                     std::int64_t endPs)
    : m_starts(std::move(startsPs)), m_stride(stride), m_steps(steps), m_end(endPs) {
  SWITCHYARD_ASSERT(stride > 0 && steps > 0 && m_starts.size() == (steps + stride - 1) / stride,
                    fmt::format("{} starts of {} steps by {}", m_starts.size(), steps, stride));
  // A mean over a bin may lie a little behind the next one; the axis must not go back.
  for (std::size_t i = 1; i < m_starts.size(); ++i) {
    m_starts[i] = std::max(m_starts[i], m_starts[i - 1]);
  }
  m_end = std::max(m_end, m_starts.back());
}

double TimeScale::psOf(double step) const {
  const double last = static_cast<double>(m_steps);
  step = std::clamp(step, 0.0, last);
  const std::size_t k =
      std::min(static_cast<std::size_t>(step / static_cast<double>(m_stride)), m_starts.size() - 1);
  const bool inner = k + 1 < m_starts.size();
  const double s0 = static_cast<double>(k * m_stride);
  const double s1 = inner ? s0 + static_cast<double>(m_stride) : last;
  const auto t0 = static_cast<double>(m_starts[k]);
  const auto t1 = static_cast<double>(inner ? m_starts[k + 1] : m_end);
  return t0 + (step - s0) / (s1 - s0) * (t1 - t0);
}

double TimeScale::stepOf(double ps) const {
  if (!(ps > firstPs())) return 0;
  if (ps >= endPs()) return static_cast<double>(m_steps);
  const auto after =
      std::upper_bound(m_starts.begin(), m_starts.end(), ps,
                       [](double a, std::int64_t b) { return a < static_cast<double>(b); });
  const auto k = static_cast<std::size_t>(after - m_starts.begin()) - 1;
  const bool inner = after != m_starts.end();
  const double s0 = static_cast<double>(k * m_stride);
  const double s1 = inner ? s0 + static_cast<double>(m_stride) : static_cast<double>(m_steps);
  const auto t0 = static_cast<double>(m_starts[k]);
  const auto t1 = static_cast<double>(inner ? *after : m_end);
  return t1 > t0 ? s0 + (ps - t0) / (t1 - t0) * (s1 - s0) : s0;
}

namespace {

/// [p0, p1) of time as steps, moved into the run and never shorter than a window may be.
TimeWindow inSteps(const TimeScale& scale, double p0, double p1, double steps) {
  const double length = std::min(p1 - p0, scale.endPs() - scale.firstPs());
  p0 = std::clamp(p0, scale.firstPs(), scale.endPs() - length);
  return clampWindow({scale.stepOf(p0), scale.stepOf(p0 + length)}, steps);
}

}  // namespace

TimeWindow zoomInTime(const TimeScale& scale, TimeWindow w, double at, double factor,
                      double steps) {
  const double p0 = scale.psOf(w.first);
  const double p1 = scale.psOf(w.end);
  if (!(p1 > p0)) return zoomAt(w, at, factor, steps);
  const double p = scale.psOf(at);
  const TimeWindow out = inSteps(scale, p - (p - p0) * factor, p + (p1 - p) * factor, steps);
  // Narrower than the least window: stay, so that the step under the mouse does not run away.
  const bool least = out.length() <= std::min(kMinWindowSteps, steps) * (1 + 1e-9);
  return least && factor < 1 && w.length() <= std::min(kMinWindowSteps, steps) * 1.25 ? w : out;
}

TimeWindow panInTime(const TimeScale& scale, TimeWindow w, double share, double steps) {
  const double p0 = scale.psOf(w.first);
  const double p1 = scale.psOf(w.end);
  return inSteps(scale, p0 + share * (p1 - p0), p1 + share * (p1 - p0), steps);
}

TimeAxis::TimeAxis(TimeWindow window, double left, double width, const TimeScale* scale)
    : m_window(window), m_left(left), m_width(width), m_times(scale) {
  double length = window.length();
  if (scale != nullptr) {
    m_firstPs = scale->psOf(window.first);
    length = scale->psOf(window.end) - m_firstPs;
  }
  m_scale = length > 0 ? width / length : 0;
}

double TimeAxis::xOf(double t) const {
  const double from = m_times != nullptr ? m_times->psOf(t) - m_firstPs : t - m_window.first;
  return m_left + from * m_scale;
}

double TimeAxis::xOfPs(double ps) const {
  SWITCHYARD_ASSERT(m_times != nullptr, "an axis of steps");
  return m_left + (ps - m_firstPs) * m_scale;
}

double TimeAxis::tOf(double x) const {
  if (m_scale <= 0) return m_window.first;
  const double from = (x - m_left) / m_scale;
  return m_times != nullptr ? m_times->stepOf(m_firstPs + from) : m_window.first + from;
}

std::optional<std::uint64_t> TimeAxis::stepAt(double x, std::uint64_t steps) const {
  if (x < m_left || x > m_left + m_width || m_scale <= 0 || steps == 0) return std::nullopt;
  const double t = std::floor(tOf(x));
  // The right edge belongs to the last step on screen.
  const double last = std::min(std::ceil(m_window.end), static_cast<double>(steps)) - 1;
  return static_cast<std::uint64_t>(std::clamp(t, 0.0, std::max(last, 0.0)));
}

std::vector<std::uint64_t> stepTicks(TimeWindow w, std::uint64_t steps, int most) {
  std::vector<std::uint64_t> ticks;
  if (steps == 0 || !(w.length() > 0)) return ticks;
  SWITCHYARD_ASSERT(most >= 2, fmt::format("{}", most));
  const double rough = std::max(1.0, w.length() / most);
  double unit = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0, 10.0}) {
    if (m * unit >= rough) {
      unit *= m;
      break;
    }
  }
  const auto every = static_cast<std::uint64_t>(std::llround(std::max(unit, 1.0)));
  const auto from = static_cast<std::uint64_t>(std::max(0.0, std::ceil(w.first)));
  for (std::uint64_t s = (from + every - 1) / every * every; static_cast<double>(s) <= w.end;
       s += every) {
    if (ticks.size() == static_cast<std::size_t>(most)) break;
    ticks.push_back(s);
  }
  return ticks;
}

std::vector<double> timeTicks(double firstPs, double endPs, int most) {
  std::vector<double> ticks;
  if (!(endPs > firstPs)) return ticks;
  SWITCHYARD_ASSERT(most >= 2, fmt::format("{}", most));
  const double rough = std::max(1.0, (endPs - firstPs) / most);
  double every = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0, 10.0}) {
    if (m * every >= rough) {
      every *= m;
      break;
    }
  }
  const double from = std::ceil(firstPs / every - 1e-9);
  for (int i = 0; i < most && (from + i) * every <= endPs; ++i) ticks.push_back((from + i) * every);
  return ticks;
}

std::string tickText(double ps) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e12, "s"}, {1e9, "ms"}, {1e6, "us"}, {1e3, "ns"}}};
  if (ps == 0) return "0 s";
  for (const auto& [unit, name] : kUnits) {
    if (std::abs(ps) >= unit) return fmt::format("{:.9g} {}", ps / unit, name);
  }
  return fmt::format("{:.0f} ps", ps);
}

std::string roundedTickText(double ps) {
  if (!(std::abs(ps) > 0) || !std::isfinite(ps)) return tickText(0);
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(ps))) - 3);
  return tickText(std::round(ps / unit) * unit);
}

double niceFloor(double value) {
  if (!(value > 0) || !std::isfinite(value)) return 1;
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  for (const double m : {5.0, 2.0}) {
    if (m * unit <= value * (1 + 1e-12)) return m * unit;
  }
  return unit;
}

double niceCeiling(double value) {
  if (!(value > 0) || !std::isfinite(value)) return 1;
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  for (const double m : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (m * unit >= value * (1 - 1e-12)) return m * unit;
  }
  return 10 * unit;
}

TimeWindow parseGoTo(const std::string& text, std::uint64_t steps,
                     const std::vector<std::int64_t>& startsPs) {
  const std::string where = "go to";
  const std::string all = trimmed(text);
  if (steps == 0) throw InputError(where, "the run has no steps");
  const auto position = [&](const std::string& part) -> double {
    if (const auto n = wholeNumber(part)) {
      if (*n >= steps) {
        throw InputError(where, fmt::format("step {} is beyond the last step {}", *n, steps - 1));
      }
      return static_cast<double>(*n);
    }
    if (part.empty() || part.find_first_of("0123456789") == std::string::npos) {
      throw InputError(where, fmt::format("\"{}\" is neither a step nor a time", part),
                       "write e.g. 500, 500..900 or 10.4 ms");
    }
    if (startsPs.empty()) {
      throw InputError(where, fmt::format("\"{}\": this run file has no times per step", part),
                       "give a step number");
    }
    const std::int64_t ps = parse_duration(part, where, "time").ps();
    const auto it = std::upper_bound(startsPs.begin(), startsPs.end(), ps);
    return it == startsPs.begin() ? 0.0 : static_cast<double>(it - startsPs.begin() - 1);
  };
  std::size_t dots = all.find("..");
  std::size_t skip = 2;
  if (dots == std::string::npos) {
    dots = all.find('-');
    skip = 1;
  }
  if (dots == std::string::npos) dots = all.find(','), skip = 1;
  if (dots == std::string::npos) {
    const double s = position(all);
    return {s, s + 1};
  }
  const double a = position(trimmed(all.substr(0, dots)));
  const double b = position(trimmed(all.substr(dots + skip)));
  if (b < a) throw InputError(where, fmt::format("\"{}\" ends before it begins", all));
  return {a, b + 1};
}

}  // namespace switchyard::gui
