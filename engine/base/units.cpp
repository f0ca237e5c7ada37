// SPDX-License-Identifier: Apache-2.0
#include "engine/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKi = 1024.0;
constexpr std::array kByteUnits{Unit{"B", 1},
                                Unit{"kB", 1e3},
                                Unit{"KB", 1e3},
                                Unit{"MB", 1e6},
                                Unit{"GB", 1e9},
                                Unit{"TB", 1e12},
                                Unit{"KiB", kKi},
                                Unit{"MiB", kKi* kKi},
                                Unit{"GiB", kKi* kKi* kKi},
                                Unit{"TiB", kKi* kKi* kKi* kKi}};
constexpr std::array kRateUnits{Unit{"B/s", 1},          Unit{"kB/s", 1e3},
                                Unit{"MB/s", 1e6},       Unit{"GB/s", 1e9},
                                Unit{"TB/s", 1e12},      Unit{"KiB/s", kKi},
                                Unit{"MiB/s", kKi* kKi}, Unit{"GiB/s", kKi* kKi* kKi},
                                Unit{"bit/s", 0.125},    Unit{"kbit/s", 125},
                                Unit{"Mbit/s", 125e3},   Unit{"Gbit/s", 125e6},
                                Unit{"Tbit/s", 125e9}};
constexpr std::array kTimeUnits{Unit{"ps", 1},     Unit{"ns", 1e3}, Unit{"us", 1e6},
                                Unit{"ms", 1e9},   Unit{"s", 1e12}, Unit{"min", 60e12},
                                Unit{"h", 3600e12}};
constexpr std::array kFlopUnits{Unit{"FLOP/s", 1},     Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12},
                                Unit{"PFLOP/s", 1e15}, Unit{"GFLOPS", 1e9},  Unit{"TFLOPS", 1e12},
                                Unit{"PFLOPS", 1e15}};
constexpr std::array kPowerUnits{Unit{"W", 1}, Unit{"kW", 1e3}, Unit{"mW", 1e-3}};
constexpr std::array kPercentUnits{Unit{"%", 0.01}};
constexpr std::array kMoneyUnits{Unit{"USD", 1}};
constexpr std::array kEnergyPriceUnits{Unit{"USD/kWh", 1}, Unit{"USD", 1}};

double parse_value(std::string_view text, std::span<const Unit> units, std::string_view example,
                   const std::string& where, const std::string& key) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin != end && *begin == ' ') {
    ++begin;
  }
  double number = 0;
  const auto [rest, status] = std::from_chars(begin, end, number);
  if (status != std::errc{}) {
    throw InputError(where, fmt::format("{} = \"{}\" is not a number with a unit", key, text),
                     fmt::format("write e.g. {}", example));
  }
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  while (!unit.empty() && unit.back() == ' ') {
    unit.remove_suffix(1);
  }
  if (unit.empty()) {
    throw InputError(where, fmt::format("{} = {} has no unit", key, text),
                     fmt::format("write e.g. {}", example));
  }
  if (!std::isfinite(number) || number < 0) {
    throw InputError(where, fmt::format("{} = \"{}\". Violated: finite and >= 0", key, text));
  }
  for (const Unit& u : units) {
    if (u.name == unit) {
      const double value = number * u.factor;
      if (!std::isfinite(value)) {
        throw InputError(where, fmt::format("{} = \"{}\". Violated: finite and >= 0", key, text));
      }
      return value;
    }
  }
  std::vector<std::string> names;
  for (const Unit& u : units) {
    names.emplace_back(u.name);
  }
  // "Gb/s" and "Gbps" are bits to some and bytes to others: naming the nearest would hide a factor
  // of 8.
  if (units.data() == kRateUnits.data() && unit.find("bit") == std::string_view::npos &&
      (unit.ends_with("bps") || unit.ends_with("Bps") || unit.ends_with("b/s"))) {
    throw InputError(where, fmt::format("{} = \"{}\": unknown unit \"{}\"", key, text, unit),
                     "write \"Gbit/s\" for bits or \"GB/s\" for bytes");
  }
  const std::string near = nearest_name(unit, names);
  throw InputError(where, fmt::format("{} = \"{}\": unknown unit \"{}\"", key, text, unit),
                   near.empty() ? fmt::format("write e.g. {}", example)
                                : fmt::format("did you mean \"{}\"?", near));
}

}  // namespace

SimTime SimTime::from_seconds(double seconds) {
  const double ps = seconds * 1e12;
  if (!(std::abs(ps) < 4.6e18)) {
    throw InputError("simulated time", fmt::format("a duration of {} s is beyond 53 days", seconds),
                     "look for a rate or latency with the wrong unit");
  }
  // std::round() of it, halves away from zero, without a call: the difference is exact.
  const auto whole = static_cast<std::int64_t>(ps);
  const double rest = ps - static_cast<double>(whole);
  return SimTime(whole + (rest >= 0.5 ? 1 : 0) - (rest <= -0.5 ? 1 : 0));
}

std::uint64_t parse_bytes(std::string_view text, const std::string& where, const std::string& key) {
  const double v = std::round(parse_value(text, kByteUnits, "\"80 GiB\" or \"80 GB\"", where, key));
  if (v >= 9.2e18) {
    throw InputError(where, fmt::format("{} = \"{}\". Violated: < 2^63 bytes", key, text));
  }
  return static_cast<std::uint64_t>(v);
}
BytesPerSecond parse_rate(std::string_view text, const std::string& where, const std::string& key) {
  return {parse_value(text, kRateUnits, "\"400 Gbit/s\" or \"50 GB/s\"", where, key)};
}
SimTime parse_duration(std::string_view text, const std::string& where, const std::string& key) {
  const double ps = std::round(parse_value(text, kTimeUnits, "\"6 us\"", where, key));
  if (ps >= 9.2e18) {
    throw InputError(where, fmt::format("{} = \"{}\". Violated: < 106 days", key, text));
  }
  return SimTime::from_ps(static_cast<std::int64_t>(ps));
}
double parse_percent(std::string_view text, const std::string& where, const std::string& key) {
  const double v = parse_value(text, kPercentUnits, "\"92 %\"", where, key);
  if (v > 1e4) {
    throw InputError(where, fmt::format("{} = \"{}\". Violated: <= 1e6 %", key, text));
  }
  return v;
}
FlopsPerSecond parse_flops(std::string_view text, const std::string& where,
                           const std::string& key) {
  return {parse_value(text, kFlopUnits, "\"989 TFLOP/s\"", where, key)};
}
double parse_power(std::string_view text, const std::string& where, const std::string& key) {
  return parse_value(text, kPowerUnits, "\"700 W\"", where, key);
}
double parse_money(std::string_view text, const std::string& where, const std::string& key) {
  return parse_value(text, kMoneyUnits, "\"10000 USD\"", where, key);
}

double parse_energy_price(std::string_view text, const std::string& where, const std::string& key) {
  return parse_value(text, kEnergyPriceUnits, "\"0.1 USD/kWh\"", where, key);
}

std::string format_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t i = 0;
  while (std::abs(bytes) >= kKi && i + 1 < names.size()) {
    bytes /= kKi;
    ++i;
  }
  return i == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, names[i]);
}
std::string format_time(SimTime t) {
  const double ps = static_cast<double>(t.ps());
  const double a = std::abs(ps);
  if (a < 1e3) return fmt::format("{:.0f} ps", ps);
  if (a < 1e6) return fmt::format("{:.3f} ns", ps * 1e-3);
  if (a < 1e9) return fmt::format("{:.3f} us", ps * 1e-6);
  if (a < 1e12) return fmt::format("{:.3f} ms", ps * 1e-9);
  return fmt::format("{:.3f} s", ps * 1e-12);
}
std::string format_rate(BytesPerSecond r) {
  if (r.value >= 1e12) return fmt::format("{:.3g} TB/s", r.value * 1e-12);
  if (r.value >= 1e9) return fmt::format("{:.4g} GB/s", r.value * 1e-9);
  return fmt::format("{:.4g} MB/s", r.value * 1e-6);
}
std::string format_count(std::uint64_t n) {
  const std::string digits = fmt::format("{}", n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      out += ',';
    }
    out += digits[i];
  }
  return out;
}

}  // namespace switchyard
