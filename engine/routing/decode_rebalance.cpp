// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/decode_rebalance.hpp"

#include <fmt/format.h>

#include <tuple>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

constexpr std::uint16_t kNone = kNoExpert;

struct Chooser {
  const DecodeRebalancePolicy& policy;
  const DecodeRebalanceInput& in;
  const std::vector<std::uint32_t>& queue;
  const TokenSets& sets;

  [[nodiscard]] bool allowed(std::uint32_t t, std::uint32_t r, float from) const {
    if (!in.ranked.open(t, r)) {
      return false;
    }
    const float to = in.ranked.selection[row_offset(t, in.ranked.width, r)];
    return !policy.max_score_drop ||
           static_cast<double>(to) >= (1.0 - *policy.max_score_drop) * static_cast<double>(from);
  }

  /// Replacement of expert e in token t's set; e itself: stays and pays; kNone: there is none.
  [[nodiscard]] std::uint16_t of(std::uint32_t t, std::uint16_t e) const {
    const auto ids = in.ranked.ids_of(t);
    const std::uint32_t top = std::max(3U, sets.size(t) + 1);
    const auto place =
        static_cast<std::uint32_t>(std::find(ids.begin(), ids.end(), e) - ids.begin());
    const float from = place < ids.size()
                           ? in.ranked.selection[row_offset(t, in.ranked.width, place)]
                           : -std::numeric_limits<float>::infinity();
    if (policy.target == RebalanceTarget::kThird) {
      for (std::uint32_t r = top - 1; r < ids.size(); ++r) {
        if (allowed(t, r, from) && !sets.holds(t, ids[r])) {
          return ids[r];
        }
      }
      return kNone;
    }
    std::uint16_t best = kNone;
    bool alternative = false;
    const auto load = [&](std::uint16_t f) { return std::tuple(in.level[f], queue[f], f); };
    for (std::uint32_t r = 0; r < std::min<std::size_t>(top, ids.size()); ++r) {
      if (!allowed(t, r, from) || (ids[r] != e && sets.holds(t, ids[r]))) {
        continue;
      }
      alternative = alternative || ids[r] != e;
      if (best == kNone || load(ids[r]) < load(best)) {
        best = ids[r];
      }
    }
    return alternative ? best : kNone;
  }
};

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

DecodeRebalanceCounts decode_rebalance(const DecodeRebalancePolicy& policy,
                                       const DecodeRebalanceInput& input,
                                       DecodeRebalanceState& state,
                                       std::vector<std::uint32_t>& queue, const TokenSets& sets) {
  const RankedTokens& ranked = input.ranked;
  SWITCHYARD_ASSERT(
      policy.on() && input.decode.size() == ranked.tokens && input.level.size() == ranked.experts &&
          state.credit.size() == ranked.experts &&
          (input.backlog.empty() || input.backlog.size() == ranked.experts),
      fmt::format("T {} E {}: phases {}, levels {}, credits {}", ranked.tokens, ranked.experts,
                  input.decode.size(), input.level.size(), state.credit.size()));
  queue.assign(input.backlog.begin(), input.backlog.end());
  queue.resize(ranked.experts, 0);
  DecodeRebalanceCounts counts;
  const Chooser chooser{policy, input, queue, sets};
  for (std::uint32_t t = 0; t < ranked.tokens; ++t) {
    const auto row = sets.of(t);
    const std::uint32_t size = sets.size(t);
    for (std::uint32_t j = 0; input.decode[t] != 0 && j < size; ++j) {
      const std::uint16_t e = row[j];
      if (state.credit[e] == 0) {
        continue;
      }
      const std::uint16_t f = chooser.of(t, e);
      if (f == kNone) {
        continue;
      }
      --state.credit[e];
      ++counts.credits;
      counts.replaced += f != e ? 1 : 0;
      row[j] = f;
    }
    for (std::uint32_t j = 0; j < size; ++j) {
      ++queue[row[j]];
    }
  }
  return counts;
}

}  // namespace switchyard
