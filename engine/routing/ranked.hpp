// SPDX-License-Identifier: Apache-2.0
// What pipeline step 10 works on: the tokens of one layer after step 9, and the sets that the
// mechanisms of step 10 replace (M14, M19, M21, M22), re-rank (M18) or substitute in (M12, M13).
//
//   S[t] = first k_t of ids[t]     before the mechanisms of step 10
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/routing/gate.hpp"

namespace switchyard {

/// T tokens of one layer in canonical order. Spans are borrowed for the call.
struct RankedTokens {
  std::uint32_t tokens = 0;   ///< T
  std::uint32_t width = 0;    ///< M, candidates per token
  std::uint32_t experts = 0;  ///< E
  std::span<const std::uint16_t>
      ids;                           ///< [T][M] best first by selection score; kNoExpert ends a row
  std::span<const float> p;          ///< [T][M] probability of each, >= 0
  std::span<const float> selection;  ///< [T][M] what ids are sorted by; -inf: never a target
  [[nodiscard]] std::span<const std::uint16_t> ids_of(std::uint32_t t) const {
    return ids.subspan(row_offset(t, width), width);
  }
  /// True when candidate r of token t exists and may be chosen instead of another.
  [[nodiscard]] bool open(std::uint32_t t, std::uint32_t r) const {
    const std::uint64_t at = row_offset(t, width, r);
    return ids[at] != kNoExpert && selection[at] > -std::numeric_limits<float>::infinity();
  }
};

/// S[t] for every token: the first experts of a row, then kNoExpert. Distinct within a row.
struct TokenSets {
  std::uint32_t slots = 0;       ///< K, the largest k_t
  std::span<std::uint16_t> ids;  ///< [T][K]
  [[nodiscard]] std::span<std::uint16_t> of(std::uint32_t t) const {
    return ids.subspan(row_offset(t, slots), slots);
  }
  /// k_t: experts of the row.
  [[nodiscard]] std::uint32_t size(std::uint32_t t) const {
    const auto row = of(t);
    return static_cast<std::uint32_t>(std::find(row.begin(), row.end(), kNoExpert) - row.begin());
  }
  [[nodiscard]] bool holds(std::uint32_t t, std::uint16_t expert) const {
    const auto row = of(t);
    return std::find(row.begin(), row.end(), expert) != row.end();
  }
};

}  // namespace switchyard
