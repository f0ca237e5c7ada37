// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/two_tier.hpp"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard {

bool rerank_proposed(const RankedRow& row, std::uint32_t proposed, std::uint32_t top_k,
                     std::span<const float> score, TokenSet set) {
  SWITCHYARD_ASSERT(top_k <= set.size() && top_k <= proposed && proposed <= row.size(),
                    fmt::format("k {} of {} proposed of M {}", top_k, proposed, row.size()));
  const auto value = [&](std::uint32_t r) {
    const float s = score[row.ids[r]];
    return row.open(r) && !std::isnan(s) ? s : -std::numeric_limits<float>::infinity();
  };
  bool changed = false;
  for (std::uint32_t j = 0; j < top_k; ++j) {
    std::uint32_t best = proposed;
    for (std::uint32_t r = 0; r < proposed && row.ids[r] != kNoExpert; ++r) {
      if (!holds(set.first(j), row.ids[r]) && (best == proposed || value(r) > value(best))) {
        best = r;
      }
    }
    if (best == proposed) {
      break;  // fewer candidates than slots
    }
    set[j] = row.ids[best];
    changed = changed || best >= top_k;
  }
  return changed;
}

}  // namespace switchyard
