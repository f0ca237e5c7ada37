// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/bandwidth_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/base/error.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::size_t kMaxRows = 4096;
constexpr std::string_view kHeader = "bytes,GB/s";

}  // namespace

std::vector<BandwidthPoint> parse_bandwidth_table(std::string_view text, const std::string& name) {
  std::vector<BandwidthPoint> points;
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
    BandwidthPoint p;
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
  if (points.size() < 2) {
    throw InputError(name, fmt::format("{} points. Violated: at least 2", points.size()));
  }
  return points;
}

}  // namespace switchyard::scenario
