// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/capacity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

__extension__ using Int128 = __int128;

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// factor * a / b in exact arithmetic, the factor read as a decimal of 9 places.
std::uint64_t scaled(double factor, std::uint64_t a, std::uint64_t b, bool round_up) {
  constexpr std::uint64_t kNano = 1'000'000'000;
  const auto numerator = static_cast<Int128>(std::llround(factor * 1e9)) * static_cast<Int128>(a);
  const auto denominator = static_cast<Int128>(b) * static_cast<Int128>(kNano);
  Int128 q = numerator / denominator;
  if (round_up && numerator % denominator != 0) {
    ++q;
  }
  return q > static_cast<Int128>(kUnlimitedCapacity) ? kUnlimitedCapacity
                                                     : static_cast<std::uint64_t>(q);
}

std::uint64_t whole(double x) {
  return x >= static_cast<double>(kUnlimitedCapacity) ? kUnlimitedCapacity
         : x <= 0                                     ? 0
                                                      : static_cast<std::uint64_t>(x);
}

/// share, batch_tokens, batch_seqs for T tokens and S sequences.
std::uint64_t own_rule(CapacityRule rule, double factor, std::uint64_t tokens,
                       std::uint64_t sequences, std::uint32_t experts, std::uint32_t top_k) {
  switch (rule) {
    case CapacityRule::kShare:
      return scaled(factor, tokens * top_k, experts, true);
    case CapacityRule::kBatchTokens:
      return scaled(factor, tokens, 1, false);
    default:
      return scaled(factor, sequences, 1, false);
  }
}

}  // namespace

double log2_capacity_factor(std::uint64_t sequences) {
  return 1.0 + 0.01 * std::log2(static_cast<double>(std::max<std::uint64_t>(sequences, 1)));
}

std::uint64_t capacity_group_size(std::uint64_t tokens, std::uint32_t group_size) {
  if (tokens == 0) {
    return 1;
  }
  std::uint64_t groups = std::max<std::uint64_t>(1, tokens / group_size);
  while (groups < tokens && tokens % groups != 0) {
    ++groups;
  }
  return tokens / groups;
}

std::uint32_t expert_capacity(const CapacityPolicy& p, const ScopeCounts& counts,
                              std::uint32_t experts, std::uint32_t top_k) {
  const std::uint64_t tokens = counts.tokens[0] + counts.tokens[1] + counts.tokens[2];
  const std::uint64_t sequences = counts.sequences[0] + counts.sequences[1] + counts.sequences[2];
  const auto t = static_cast<double>(tokens);
  const auto e = static_cast<double>(experts);
  const auto k = static_cast<double>(top_k);
  std::uint64_t c = 0;
  switch (p.rule) {
    case CapacityRule::kNone:
      return kUnlimitedCapacity;
    case CapacityRule::kAbsolute:
      c = p.absolute;
      break;
    case CapacityRule::kShare:
    case CapacityRule::kBatchTokens:
    case CapacityRule::kBatchSeqs:
      if (p.dynamic == DynamicCapacity::kPhase) {
        c = own_rule(p.rule, p.prefill_factor, counts.tokens[0] + counts.tokens[2],
                     counts.sequences[0] + counts.sequences[2], experts, top_k) +
            own_rule(p.rule, p.decode_factor, counts.tokens[1], counts.sequences[1], experts,
                     top_k);
      } else {
        const double factor = p.dynamic == DynamicCapacity::kLog2
                                  ? log2_capacity_factor(counts.step_sequences)
                                  : p.factor;
        c = own_rule(p.rule, factor, tokens, sequences, experts, top_k);
      }
      break;
    // From here on the other systems' own arithmetic: doubles, in their order of operations.
    case CapacityRule::kMesh:
      c = std::min(tokens, whole(t * p.factor / e));
      break;
    case CapacityRule::kFlaxformer:
      c = whole(std::nearbyint(p.factor * t / e));  // ties to even, as Python's round
      break;
    case CapacityRule::kDeepSpeed:
      c = whole(std::ceil(t / e * (k * p.factor)));
      break;
    case CapacityRule::kMegatron:
      c = whole(std::ceil(t * k / e * p.factor));
      break;
    case CapacityRule::kTutel: {
      const std::uint64_t limit =
          top_k * whole(std::abs(p.factor) * static_cast<double>(ceil_div(tokens, experts)));
      c = p.factor > 0   ? limit
          : p.factor < 0 ? std::min(counts.largest_demand, limit)
                         : counts.largest_demand;
      break;
    }
    case CapacityRule::kMegaBlocks:
      c = whole(p.factor * k * t / e);
      if (c == 0) {
        return kUnlimitedCapacity;
      }
      break;
    case CapacityRule::kFastMoeGshard:
      c = whole(std::ceil(p.factor * t)) * top_k / experts;
      break;
    case CapacityRule::kFastMoeSwitch:
      c = whole(std::ceil(p.factor * t / e));
      break;
    case CapacityRule::kFairseqTrain:
      c = 2 * ceil_div(tokens, experts);
      break;
    case CapacityRule::kFairseqEval:
      c = whole(p.factor * t);
      break;
  }
  c = std::max<std::uint64_t>(c, resolved_min_capacity(p));
  c = ceil_div(c, p.alignment) * p.alignment;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(c, kUnlimitedCapacity));
}

}  // namespace switchyard
