// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/decode_rebalance.hpp"

#include <fmt/format.h>

#include <tuple>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

/// Replacement of expert e of the set; e itself: stays and pays; kNoExpert: there is none.
std::uint16_t replacement(const DecodeRebalancePolicy& policy, const DecodeRebalanceInput& in,
                          std::span<const std::uint16_t> set, std::uint16_t e) {
  const RankedRow& row = in.row;
  const std::uint32_t top = std::min(std::max(3U, set_size(set) + 1), row.size());
  const std::uint32_t from = row.place(e);
  const auto allowed = [&](std::uint32_t r) {
    return row.open(r) && (!policy.max_score_drop || from == row.size() ||
                           static_cast<double>(row.selection[r]) >=
                               (1.0 - *policy.max_score_drop) * row.selection[from]);
  };
  if (policy.target == RebalanceTarget::kThird) {
    for (std::uint32_t r = top - 1; r < row.size(); ++r) {
      if (allowed(r) && !holds(set, row.ids[r])) {
        return row.ids[r];
      }
    }
    return kNoExpert;
  }
  std::uint16_t best = e;
  bool alternative = false;
  const auto load = [&](std::uint16_t f) { return std::tuple(in.level[f], in.queue[f], f); };
  for (std::uint32_t r = 0; r < top; ++r) {
    if (allowed(r) && !holds(set, row.ids[r])) {
      alternative = true;
      best = load(row.ids[r]) < load(best) ? row.ids[r] : best;
    }
  }
  return alternative ? best : kNoExpert;
}

}  // namespace

void begin_decode_step(const DecodeRebalancePolicy& policy, std::span<const double> level,
                       DecodeRebalanceState& state) {
  SWITCHYARD_ASSERT(policy.on() && policy.period >= 1, "M13 is off");
  state.credit.resize(level.size(), 0);
  ++state.decode_steps;
  if (state.decode_steps % policy.period == 0) {
    for (std::size_t e = 0; e < level.size(); ++e) {
      state.credit[e] = level[e] > *policy.level ? policy.credits : 0;
    }
  }
}

void decode_rebalance(const DecodeRebalancePolicy& policy, const DecodeRebalanceInput& input,
                      DecodeRebalanceState& state, TokenSet set, DecodeRebalanceCounts& counts) {
  SWITCHYARD_ASSERT(policy.on() && input.level.size() == input.queue.size() &&
                        state.credit.size() == input.queue.size(),
                    fmt::format("E {}: levels {}, credits {}", input.queue.size(),
                                input.level.size(), state.credit.size()));
  const std::uint32_t size = set_size(set);
  for (std::uint32_t j = 0; j < size; ++j) {
    const std::uint16_t e = set[j];
    if (state.credit[e] == 0) {
      continue;
    }
    const std::uint16_t f = replacement(policy, input, set, e);
    if (f == kNoExpert) {
      continue;
    }
    --state.credit[e];
    ++counts.credits;
    counts.replaced += f != e ? 1 : 0;
    set[j] = f;
  }
}

}  // namespace switchyard
