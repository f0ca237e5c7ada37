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

TimeAxis::TimeAxis(TimeWindow window, double left, double width)
    : m_window(window),
      m_left(left),
      m_width(width),
      m_scale(window.length() > 0 ? width / window.length() : 0) {}

double TimeAxis::xOf(double t) const { return m_left + (t - m_window.first) * m_scale; }

double TimeAxis::tOf(double x) const {
  return m_scale > 0 ? m_window.first + (x - m_left) / m_scale : m_window.first;
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
  if (b <= a) throw InputError(where, fmt::format("\"{}\" is an empty range", all));
  return {a, b};
}

}  // namespace switchyard::gui
