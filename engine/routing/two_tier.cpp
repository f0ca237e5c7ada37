// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/two_tier.hpp"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard {

bool rerank_proposed(const RankedTokens& ranked, std::uint32_t t, std::uint32_t proposed,
                     std::uint32_t top_k, std::span<const float> score,
                     std::span<std::uint16_t> row) {
  SWITCHYARD_ASSERT(top_k <= row.size() && top_k <= proposed && proposed <= ranked.width &&
                        score.size() == ranked.experts,
                    fmt::format("k {} of {} proposed of M {}, E {} scores {}", top_k, proposed,
                                ranked.width, ranked.experts, score.size()));
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const auto ids = ranked.ids_of(t);
  const auto value = [&](std::uint32_t r) {
    const float s = ranked.open(t, r) ? score[ids[r]] : kMinusInf;
    return std::isnan(s) ? kMinusInf : s;
  };
  bool changed = false;
  const auto taken = [&](std::uint32_t j, std::uint16_t e) {
    return std::find(row.begin(), row.begin() + j, e) != row.begin() + j;
  };
  for (std::uint32_t j = 0; j < top_k; ++j) {
    std::uint32_t best = proposed;
    for (std::uint32_t r = 0; r < proposed && ids[r] != kNoExpert; ++r) {
      if (!taken(j, ids[r]) && (best == proposed || value(r) > value(best))) {
        best = r;
      }
    }
    if (best == proposed) {
      break;  // fewer candidates than slots
    }
    row[j] = ids[best];
    changed = changed || best >= top_k;
  }
  return changed;
}

}  // namespace switchyard
