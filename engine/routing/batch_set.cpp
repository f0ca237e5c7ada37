// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/batch_set.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard {

void batch_level_set(const RankedTokens& ranked, std::vector<double>& sum,
                     std::span<std::uint16_t> set) {
  SWITCHYARD_ASSERT(set.size() <= ranked.experts,
                    fmt::format("k {} of E {}", set.size(), ranked.experts));
  sum.assign(ranked.experts, 0.0);
  for (std::uint32_t t = 0; t < ranked.tokens; ++t) {
    for (std::uint32_t r = 0; r < ranked.width; ++r) {
      const std::uint64_t at = row_offset(t, ranked.width, r);
      if (ranked.ids[at] == kNoExpert) {
        break;
      }
      sum[ranked.ids[at]] += static_cast<double>(ranked.p[at]);
    }
  }
  for (std::size_t j = 0; j < set.size(); ++j) {
    const auto taken = set.first(j);
    std::uint16_t best = kNoExpert;
    for (std::uint32_t e = 0; e < ranked.experts; ++e) {
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
