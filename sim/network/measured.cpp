// SPDX-License-Identifier: Apache-2.0
#include "sim/network/measured.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard::network {
MeasuredCurve::MeasuredCurve(std::vector<MeasuredPoint> points, const std::string& where)
    : points_(std::move(points)) {
  if (points_.size() < 2) {
    throw InputError(where, fmt::format("{} points. Violated: at least 2", points_.size()));
  }
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const MeasuredPoint& p = points_[i];
    if (!(p.bandwidth.value > 0) || !std::isfinite(p.bandwidth.value)) {
      throw InputError(where, fmt::format("point {}: bandwidth {} B/s. Violated: positive, finite",
                                          i + 1, p.bandwidth.value));
    }
    if (p.bytes == 0 || (i > 0 && p.bytes <= points_[i - 1].bytes)) {
      throw InputError(
          where, fmt::format("point {}: {} bytes. Violated: bytes > 0, ascending", i + 1, p.bytes));
    }
    log_bytes_.push_back(std::log(static_cast<double>(p.bytes)));
    log_rate_.push_back(std::log(p.bandwidth.value));
  }
}

MeasuredCurve::Time MeasuredCurve::time(std::uint64_t bytes, BytesPerSecond limit) const {
  const auto point_time = [](const MeasuredPoint& p) {
    return static_cast<double>(p.bytes) / p.bandwidth.value;
  };
  if (bytes == 0) {
    return {0, false};
  }
  const MeasuredPoint& first = points_.front();
  const MeasuredPoint& last = points_.back();
  if (bytes < first.bytes) {
    return {point_time(first), true};
  }
  if (bytes > last.bytes) {
    return {point_time(last) + static_cast<double>(bytes - last.bytes) / limit.value, true};
  }
  const auto upper =
      std::lower_bound(points_.begin(), points_.end(), bytes,
                       [](const MeasuredPoint& p, std::uint64_t b) { return p.bytes < b; });
  const auto i = static_cast<std::size_t>(upper - points_.begin());
  if (points_[i].bytes == bytes) {
    return {point_time(points_[i]), false};
  }
  const double b = static_cast<double>(bytes);
  const double t = (std::log(b) - log_bytes_[i - 1]) / (log_bytes_[i] - log_bytes_[i - 1]);
  const double rate = std::exp(log_rate_[i - 1] + t * (log_rate_[i] - log_rate_[i - 1]));
  return {b / rate, false};
}

}  // namespace switchyard::network
