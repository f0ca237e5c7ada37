// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/soft_balance.hpp"

#include <fmt/format.h>

#include <array>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

/// One step of one layer.
class SoftBalancer {
 public:
  SoftBalancer(const SoftBalancePolicy& policy, const SoftBalanceInput& input,
               std::vector<std::uint32_t>& queue, const TokenSets& sets)
      : policy_(policy), in_(input), queue_(queue), sets_(sets) {
    SWITCHYARD_ASSERT(policy.on(), "M12 is off");
    SWITCHYARD_ASSERT((in_.backlog.empty() || in_.backlog.size() == in_.ranked.experts) &&
                          (in_.free_memory.empty() || in_.free_memory.size() == in_.ranked.experts),
                      fmt::format("E {} backlog {} memory {}", in_.ranked.experts,
                                  in_.backlog.size(), in_.free_memory.size()));
    queue_.assign(in_.backlog.begin(), in_.backlog.end());
    queue_.resize(in_.ranked.experts, 0);
  }

  SoftBalanceCounts run() {
    for (std::uint32_t t = 0; t < in_.ranked.tokens; ++t) {
      const std::uint32_t wanted = sets_.size(t);
      if (wanted == 0) {
        continue;
      }
      if (wanted < SoftBalancePolicy::kThree && needs_third(t)) {
        ++counts_.third;
        take_three(t, wanted);
      }
      for (std::uint32_t j = 0; j < sets_.size(t); ++j) {
        substitute(t, j);
      }
      for (const std::uint16_t e : sets_.of(t).first(sets_.size(t))) {
        ++queue_[e];
      }
    }
    return counts_;
  }

 private:
  [[nodiscard]] bool memory_below(std::uint16_t e, double threshold) const {
    return !in_.free_memory.empty() && in_.free_memory[e] < threshold;
  }
  [[nodiscard]] std::uint32_t limit(std::uint16_t e) const {
    return memory_below(e, policy_.low_memory) ? policy_.low_limit : *policy_.limit;
  }

  [[nodiscard]] bool needs_third(std::uint32_t t) const {
    const auto row = sets_.of(t);
    return in_.third_for_all || std::any_of(row.begin(), row.end(), [&](std::uint16_t e) {
             return e != kNoExpert && memory_below(e, policy_.k3_memory);
           });
  }

  /// The set and the next candidates, three in all as far as there are as many; `choose` keeps
  /// `wanted` of them.
  void take_three(std::uint32_t t, std::uint32_t wanted) {
    std::array<std::uint16_t, SoftBalancePolicy::kThree> three{};
    const auto row = sets_.of(t);
    std::copy_n(row.begin(), wanted, three.begin());
    std::uint32_t n = wanted;
    for (std::uint32_t r = 0; r < in_.ranked.width && n < three.size(); ++r) {
      if (in_.ranked.open(t, r) && !sets_.holds(t, in_.ranked.ids_of(t)[r])) {
        three[n++] = in_.ranked.ids_of(t)[r];
      }
    }
    if (policy_.k3 == ThirdExpert::kChoose) {
      // Drop the longest queue until `wanted` are left; ties: the later candidate goes.
      for (; n > wanted; --n) {
        std::uint32_t longest = 0;
        for (std::uint32_t j = 1; j < n; ++j) {
          longest = queue_[three[j]] >= queue_[three[longest]] ? j : longest;
        }
        std::copy(three.begin() + longest + 1, three.begin() + n, three.begin() + longest);
      }
    }
    SWITCHYARD_ASSERT(n <= row.size(), fmt::format("{} experts in {} slots", n, row.size()));
    std::copy_n(three.begin(), n, row.begin());
  }

  void substitute(std::uint32_t t, std::uint32_t j) {
    const auto row = sets_.of(t);
    if (queue_[row[j]] <= limit(row[j])) {
      return;
    }
    for (std::uint32_t r = 0; r < in_.ranked.width; ++r) {
      if (!in_.ranked.open(t, r)) {
        continue;
      }
      const std::uint16_t f = in_.ranked.ids_of(t)[r];
      if (!sets_.holds(t, f) && queue_[f] <= limit(f)) {
        row[j] = f;
        ++counts_.replaced;
        return;
      }
    }
    ++counts_.stuck;
  }

  const SoftBalancePolicy& policy_;
  const SoftBalanceInput& in_;
  std::vector<std::uint32_t>& queue_;
  const TokenSets& sets_;
  SoftBalanceCounts counts_;
};

}  // namespace

SoftBalanceCounts soft_balance(const SoftBalancePolicy& policy, const SoftBalanceInput& input,
                               std::vector<std::uint32_t>& queue, const TokenSets& sets) {
  return SoftBalancer(policy, input, queue, sets).run();
}

bool third_in_next_step(const SoftBalancePolicy& policy,
                        std::span<const std::uint32_t> queue_at_end) {
  return policy.on() && policy.batch_limit &&
         std::any_of(queue_at_end.begin(), queue_at_end.end(),
                     [&](std::uint32_t q) { return q > *policy.batch_limit; });
}

}  // namespace switchyard
