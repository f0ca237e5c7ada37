// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/kv_links.hpp"

#include <algorithm>

#include "engine/base/units.hpp"

namespace switchyard::sim {

KvLinks::KvLinks(cluster::RouteTable routes)
    : routes_(std::move(routes)), free_ps_(routes_.links(), 0) {}

std::int64_t KvLinks::send(std::uint32_t from, std::uint32_t to, std::uint32_t width,
                           std::uint64_t bytes, std::int64_t now) {
  std::int64_t last = now + 1;
  for (std::uint32_t i = 0; i < width; ++i) {
    const auto links = routes_.links_of(from + i, to + i);
    double seconds = 0;
    std::int64_t begin = now;
    for (const std::uint32_t k : links) {
      seconds = std::max(seconds, static_cast<double>(bytes) / routes_.bandwidth[k]);
      begin = std::max(begin, free_ps_[k]);
    }
    if (routes_.staged[routes_.pair(from + i, to + i)] != 0) seconds *= 2;
    const std::int64_t end = begin + std::max<std::int64_t>(1, SimTime::from_seconds(seconds).ps());
    for (const std::uint32_t k : links) free_ps_[k] = end;
    last = std::max(last, end + routes_.latency(from + i, to + i).ps());
  }
  return last;
}

}  // namespace switchyard::sim
