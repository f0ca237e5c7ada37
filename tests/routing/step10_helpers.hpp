// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of pipeline step 10: ranked tokens from rows of probabilities.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/routing/ranked.hpp"

namespace switchyard {

/// Ranks rows of p over all E experts (ties: lower id) and takes the first k of each into sets of
/// `slots`.
struct Ranked {
  std::vector<std::uint16_t> ids, sets;
  std::vector<float> p, selection;
  RankedTokens view;
  std::uint32_t slots;
  Ranked(const std::vector<std::vector<float>>& rows, std::uint32_t k, std::uint32_t slot_count = 0)
      : slots(slot_count == 0 ? k : slot_count) {
    for (const auto& row : rows) {
      std::vector<std::uint16_t> order(row.size());
      std::iota(order.begin(), order.end(), std::uint16_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint16_t a, std::uint16_t b) { return row[a] > row[b]; });
      for (std::uint32_t r = 0; r < order.size(); ++r) {
        ids.push_back(order[r]);
        p.push_back(std::max(row[order[r]], 0.0F));
        selection.push_back(row[order[r]]);
      }
      for (std::uint32_t j = 0; j < slots; ++j) {
        sets.push_back(j < k ? order[j] : kNoExpert);
      }
    }
    const auto tokens = static_cast<std::uint32_t>(rows.size());
    const auto width = static_cast<std::uint32_t>(rows.empty() ? k : rows[0].size());
    view = {tokens, width, width, ids, p, selection};
  }
  Ranked(const Ranked&) = delete;
  Ranked& operator=(const Ranked&) = delete;
  [[nodiscard]] TokenSet at(std::uint32_t t) {
    return TokenSet(sets).subspan(row_offset(t, slots), slots);
  }
  /// One more in the queue of each of token t's experts.
  void enqueue(std::uint32_t t, std::vector<std::uint32_t>& queue) {
    for (const std::uint16_t e : at(t).first(set_size(at(t)))) {
      ++queue[e];
    }
  }
  /// S[t] without the empty slots.
  [[nodiscard]] std::vector<int> set(std::uint32_t t) {
    std::vector<int> out;
    for (const std::uint16_t e : at(t)) {
      if (e != kNoExpert) {
        out.push_back(e);
      }
    }
    return out;
  }
};

}  // namespace switchyard
