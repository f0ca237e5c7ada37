// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/soft_balance.hpp"

#include <fmt/format.h>

#include <array>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

class SoftBalancer {
 public:
  SoftBalancer(const SoftBalancePolicy& policy, const SoftBalanceInput& input, TokenSet set,
               SoftBalanceCounts& counts)
      : policy_(policy), in_(input), set_(set), counts_(counts) {
    SWITCHYARD_ASSERT(
        policy.on() && (in_.free_memory.empty() || in_.free_memory.size() == in_.queue.size()),
        fmt::format("E {} memory {}", in_.queue.size(), in_.free_memory.size()));
  }

  void run() {
    const std::uint32_t wanted = set_size(set_);
    if (wanted > 0 && wanted < SoftBalancePolicy::kThree && needs_third()) {
      ++counts_.third;
      take_three(wanted);
    }
    const std::uint32_t size = set_size(set_);
    for (std::uint32_t j = 0; j < size; ++j) {
      substitute(j);
    }
  }

 private:
  [[nodiscard]] bool memory_below(std::uint16_t e, double threshold) const {
    return !in_.free_memory.empty() && in_.free_memory[e] < threshold;
  }
  [[nodiscard]] bool above_limit(std::uint16_t e) const {
    return in_.queue[e] >
           (memory_below(e, policy_.low_memory) ? policy_.low_limit : *policy_.limit);
  }

  [[nodiscard]] bool needs_third() const {
    return in_.third_for_all || std::any_of(set_.begin(), set_.end(), [&](std::uint16_t e) {
             return e != kNoExpert && memory_below(e, policy_.k3_memory);
           });
  }

  /// The set and the next candidates, three in all as far as there are as many; `choose` keeps
  /// `wanted` of them.
  void take_three(std::uint32_t wanted) {
    std::array<std::uint16_t, SoftBalancePolicy::kThree> three{};
    std::copy_n(set_.begin(), wanted, three.begin());
    std::uint32_t n = wanted;
    for (std::uint32_t r = 0; r < in_.row.size() && n < three.size(); ++r) {
      if (in_.row.open(r) && !holds(set_, in_.row.ids[r])) {
        three[n++] = in_.row.ids[r];
      }
    }
    if (policy_.k3 == ThirdExpert::kChoose) {
      // Drop the longest queue until `wanted` are left; ties: the later candidate goes.
      for (; n > wanted; --n) {
        std::uint32_t longest = 0;
        for (std::uint32_t j = 1; j < n; ++j) {
          longest = in_.queue[three[j]] >= in_.queue[three[longest]] ? j : longest;
        }
        std::copy(three.begin() + longest + 1, three.begin() + n, three.begin() + longest);
      }
    }
    SWITCHYARD_ASSERT(n <= set_.size(), fmt::format("{} experts in {} slots", n, set_.size()));
    std::copy_n(three.begin(), n, set_.begin());
  }

  void substitute(std::uint32_t j) {
    if (!above_limit(set_[j])) {
      return;
    }
    for (std::uint32_t r = 0; r < in_.row.size(); ++r) {
      if (in_.row.open(r) && !holds(set_, in_.row.ids[r]) && !above_limit(in_.row.ids[r])) {
        set_[j] = in_.row.ids[r];
        ++counts_.replaced;
        return;
      }
    }
    ++counts_.stuck;
  }

  const SoftBalancePolicy& policy_;
  const SoftBalanceInput& in_;
  const TokenSet set_;
  SoftBalanceCounts& counts_;
};

}  // namespace

void soft_balance(const SoftBalancePolicy& policy, const SoftBalanceInput& input, TokenSet set,
                  SoftBalanceCounts& counts) {
  SoftBalancer(policy, input, set, counts).run();
}

bool third_in_next_step(const SoftBalancePolicy& policy,
                        std::span<const std::uint32_t> queue_at_end) {
  return policy.on() && policy.batch_limit &&
         std::any_of(queue_at_end.begin(), queue_at_end.end(),
                     [&](std::uint32_t q) { return q > *policy.batch_limit; });
}

}  // namespace switchyard
