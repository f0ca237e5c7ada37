// SPDX-License-Identifier: Apache-2.0
// Units are types. Simulated time is an integer, so sums do not depend on the order of addition.
// Text with a unit is parsed here and nowhere else; a number without a unit is an error.
// GB = 1e9 B, GiB = 2^30 B; "bit" and "B" are never mixed.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

/// A span of simulated time. Integer picoseconds; range about ±106 days.
class SimTime {
 public:
  constexpr SimTime() = default;
  static constexpr SimTime from_ps(std::int64_t v) { return SimTime(v); }
  static constexpr SimTime from_ns(std::int64_t v) { return SimTime(v * 1000); }
  static constexpr SimTime from_us(std::int64_t v) { return SimTime(v * 1000000); }
  /// Converts a *duration* in seconds, rounded to the nearest picosecond (halves away from zero).
  /// InputError beyond ±53 days (4.6e18 ps, so that two still add) or for NaN: a rate or latency in
  /// the user's files was absurd. Never use it for absolute times.
  static SimTime from_seconds(double seconds);
  [[nodiscard]] constexpr std::int64_t ps() const { return ps_; }
  [[nodiscard]] constexpr double seconds() const { return static_cast<double>(ps_) * 1e-12; }
  [[nodiscard]] constexpr double us() const { return static_cast<double>(ps_) * 1e-6; }
  constexpr auto operator<=>(const SimTime&) const = default;
  constexpr SimTime operator+(SimTime o) const { return SimTime(ps_ + o.ps_); }
  constexpr SimTime operator-(SimTime o) const { return SimTime(ps_ - o.ps_); }
  constexpr SimTime& operator+=(SimTime o) {
    ps_ += o.ps_;
    return *this;
  }

 private:
  constexpr explicit SimTime(std::int64_t ps) : ps_(ps) {}
  std::int64_t ps_ = 0;
};

/// Link or memory rate. Bytes per second; a vendor's "400 Gb/s" is 50e9 here. Per direction.
struct BytesPerSecond {
  double value = 0;
  constexpr auto operator<=>(const BytesPerSecond&) const = default;
};

/// Arithmetic rate. Floating point operations per second (a multiply-add is two).
struct FlopsPerSecond {
  double value = 0;
  constexpr auto operator<=>(const FlopsPerSecond&) const = default;
};

/// The parsers below throw InputError(where, …) for a missing or unknown unit, a NaN, an infinite
/// or a negative value. `key` is the name shown in the message: "network.bandwidth = 400 has no
/// unit; write e.g. …". A space between number and unit is optional. "80 GiB", "512 MB", "1024 B" →
/// bytes (rounded to the nearest byte, < 2^63).
std::uint64_t parse_bytes(std::string_view text, const std::string& where, const std::string& key);
/// "900 GB/s", "400 Gbit/s", "50 GiB/s".
BytesPerSecond parse_rate(std::string_view text, const std::string& where, const std::string& key);
/// "6 us", "1.5 ms", "3 s", "500 ns", "20 ps", "3 min", "1 h".
SimTime parse_duration(std::string_view text, const std::string& where, const std::string& key);
/// "92 %" → 0.92. Range [0, 1e6] %.
double parse_percent(std::string_view text, const std::string& where, const std::string& key);
/// "989 TFLOP/s", "989 TFLOPS".
FlopsPerSecond parse_flops(std::string_view text, const std::string& where, const std::string& key);
/// "700 W", "1.2 kW" → watts.
double parse_power(std::string_view text, const std::string& where, const std::string& key);
/// "10000 USD" → dollars.
double parse_money(std::string_view text, const std::string& where, const std::string& key);
/// USD per kWh: "0.1 USD/kWh", or "0.1 USD".
double parse_energy_price(std::string_view text, const std::string& where, const std::string& key);

/// Shortest exact-looking text in the C locale: "1.50 GiB", "2.35 us". For people, not for files.
std::string format_bytes(double bytes);
std::string format_time(SimTime t);
std::string format_rate(BytesPerSecond r);
/// Large plain counts with a thin separator for people: 46702792704 → "46,702,792,704".
std::string format_count(std::uint64_t n);

}  // namespace switchyard
