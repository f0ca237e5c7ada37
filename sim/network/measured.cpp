// SPDX-License-Identifier: Apache-2.0
#include "sim/network/measured.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "engine/base/error.hpp"

namespace switchyard::network {
namespace {

constexpr std::size_t kMaxRows = 4096;
constexpr std::string_view kHeader = "bytes,GB/s";

}  // namespace

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

MeasuredCurve parse_measured(std::string_view text, const std::string& name) {
  std::vector<MeasuredPoint> points;
  std::size_t number = 0;
  bool header = false;
  const auto fail = [&](const std::string& message, const std::string& hint = {}) {
    throw InputError(fmt::format("{}:{}", name, number), message, hint);
  };
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    if (line.empty() || line.front() == '#') {
      continue;
    }
    if (!header) {
      if (line != kHeader) {
        fail(fmt::format("the first line must be \"{}\"", kHeader));
      }
      header = true;
      continue;
    }
    if (points.size() == kMaxRows) {
      fail(fmt::format("more than {} rows", kMaxRows));
    }
    const std::size_t comma = line.find(',');
    if (comma == std::string_view::npos) {
      fail("expected two fields: bytes,GB/s");
    }
    MeasuredPoint p;
    const char* const stop = line.data() + line.size();
    const auto bytes = std::from_chars(line.data(), line.data() + comma, p.bytes);
    double rate = 0;
    const auto gb = std::from_chars(line.data() + comma + 1, stop, rate);
    if (bytes.ec != std::errc{} || bytes.ptr != line.data() + comma || p.bytes == 0) {
      fail("bytes must be a whole number > 0");
    }
    if (gb.ec != std::errc{} || gb.ptr != stop || !(rate > 0) || rate > 1e9) {
      fail("GB/s must be a number with 0 < GB/s <= 1e9");
    }
    if (!points.empty() && p.bytes <= points.back().bytes) {
      fail(fmt::format("bytes = {}. Violated: ascending", p.bytes));
    }
    p.bandwidth = BytesPerSecond{rate * 1e9};
    points.push_back(p);
  }
  return {std::move(points), name};
}

MeasuredCurve read_measured(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    throw InputError(path, "cannot read the table of measured bandwidths");
  }
  return parse_measured(text.str(), path);
}

}  // namespace switchyard::network
