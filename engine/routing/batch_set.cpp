// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/batch_set.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/routing/gate.hpp"

namespace switchyard {

void batch_level_set(std::span<const float> p, std::uint32_t experts, std::vector<double>& sum,
                     std::span<std::uint16_t> set) {
  SWITCHYARD_ASSERT(set.size() <= experts && p.size() % experts == 0,
                    fmt::format("k {} of E {}, {} p", set.size(), experts, p.size()));
  sum.assign(experts, 0.0);
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum[i % experts] += static_cast<double>(p[i]);
  }
  for (std::size_t j = 0; j < set.size(); ++j) {
    const auto taken = set.first(j);
    std::uint16_t best = kNoExpert;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const auto id = static_cast<std::uint16_t>(e);
      if (std::find(taken.begin(), taken.end(), id) == taken.end() &&
          (best == kNoExpert || sum[e] > sum[best])) {
        best = id;
      }
    }
    set[j] = best;
  }
}

}  // namespace switchyard
