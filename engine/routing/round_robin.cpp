// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/round_robin.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard {

std::uint32_t round_robin_set(std::uint32_t experts, std::uint32_t top_k, std::uint32_t counter,
                              std::span<std::uint16_t> row) {
  SWITCHYARD_ASSERT(
      top_k >= 1 && top_k <= experts && top_k <= row.size() && counter < experts,
      fmt::format("E {} k {} row {} counter {}", experts, top_k, row.size(), counter));
  std::fill(row.begin(), row.end(), kNoExpert);
  for (std::uint32_t j = 0; j < top_k; ++j) {
    row[j] = static_cast<std::uint16_t>(counter);
    counter = counter + 1 == experts ? 0 : counter + 1;
  }
  return counter;
}

}  // namespace switchyard
