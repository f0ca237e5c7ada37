// SPDX-License-Identifier: Apache-2.0
// What pipeline step 10 works on: a token's experts after step 9, and the set that the mechanisms
// of step 10 replace (M14, M19, M21, M22), re-rank (M18) or substitute in (M12, M13).
//
//   S[t] = first k_t of ids[t]     before the mechanisms of step 10
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/routing/gate.hpp"

namespace switchyard {

/// One token's experts, best first by selection score. Spans are of M entries and borrowed.
struct RankedRow {
  std::span<const std::uint16_t> ids;  ///< Distinct; kNoExpert ends the row early.
  std::span<const float> p;            ///< Probability of each, >= 0.
  std::span<const float> selection;    ///< What ids are sorted by; -inf: never a target.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(ids.size()); }
  /// True when candidate r exists and may be chosen instead of another.
  [[nodiscard]] bool open(std::uint32_t r) const {
    return ids[r] != kNoExpert && selection[r] > -std::numeric_limits<float>::infinity();
  }
  /// Place of an expert in the row, size() when it is not there.
  [[nodiscard]] std::uint32_t place(std::uint16_t expert) const {
    return static_cast<std::uint32_t>(std::find(ids.begin(), ids.end(), expert) - ids.begin());
  }
};

/// T tokens of one layer in canonical order, [T][M] each.
struct RankedTokens {
  std::uint32_t tokens = 0;   ///< T
  std::uint32_t width = 0;    ///< M, candidates per token
  std::uint32_t experts = 0;  ///< E
  std::span<const std::uint16_t> ids;
  std::span<const float> p;
  std::span<const float> selection;
  [[nodiscard]] RankedRow row(std::uint32_t t) const {
    const std::uint64_t at = row_offset(t, width);
    return {ids.subspan(at, width), p.subspan(at, width), selection.subspan(at, width)};
  }
};

/// S[t]: the experts of one token, then kNoExpert up to K slots. Distinct.
using TokenSet = std::span<std::uint16_t>;

/// k_t: experts of a set.
[[nodiscard]] inline std::uint32_t set_size(std::span<const std::uint16_t> set) {
  return static_cast<std::uint32_t>(std::find(set.begin(), set.end(), kNoExpert) - set.begin());
}
[[nodiscard]] inline bool holds(std::span<const std::uint16_t> set, std::uint16_t expert) {
  return std::find(set.begin(), set.end(), expert) != set.end();
}

}  // namespace switchyard
