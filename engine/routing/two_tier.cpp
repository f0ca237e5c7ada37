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
    return std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
  };
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    if (row.open(a) != row.open(b)) {
      return row.open(a);
    }
    return value(a) != value(b) ? value(a) > value(b) : row.ids[a] < row.ids[b];
  };
  bool changed = false;
  for (std::uint32_t j = 0; j < top_k; ++j) {
    std::uint32_t best = proposed;
    for (std::uint32_t r = 0; r < proposed && row.ids[r] != kNoExpert; ++r) {
      if (!holds(set.first(j), row.ids[r]) && (best == proposed || better(r, best))) {
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
