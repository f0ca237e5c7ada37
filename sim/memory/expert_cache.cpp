// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/expert_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.hpp"

namespace switchyard::sim {

ExpertCache::ExpertCache(CachePolicy policy, std::uint32_t experts, std::uint32_t slots)
    : policy_(policy),
      slots_(std::min(slots, experts)),
      resident_(experts),
      marked_(experts),
      stamp_(experts),
      uses_(experts) {}

void ExpertCache::fill(std::span<const std::uint16_t> experts) {
  SWITCHYARD_ASSERT(experts.size() <= slots_ - size_,
                    fmt::format("{} experts for {} free slots", experts.size(), slots_ - size_));
  for (auto e = experts.rbegin(); e != experts.rend(); ++e) {
    SWITCHYARD_ASSERT(resident_[*e] == 0, fmt::format("expert {} twice", *e));
    insert(*e);
  }
}

void ExpertCache::set_slots(std::uint32_t slots) {
  SWITCHYARD_ASSERT(size_ <= slots, fmt::format("{} experts, {} slots", size_, slots));
  slots_ = slots;
}

void ExpertCache::insert(std::uint16_t expert) {
  resident_[expert] = 1;
  stamp_[expert] = ++clock_;
  ++size_;
}

void ExpertCache::discard(std::uint16_t expert) {
  SWITCHYARD_ASSERT(resident_[expert] != 0, fmt::format("expert {} is not here", expert));
  resident_[expert] = 0;
  --size_;
}

std::int32_t ExpertCache::victim() const {
  if (policy_ == CachePolicy::kStatic) {
    return -1;
  }
  std::int32_t best = -1;
  for (std::size_t e = 0; e < resident_.size(); ++e) {
    if (resident_[e] == 0 || marked_[e] != 0) continue;
    if (best >= 0) {
      const auto b = static_cast<std::size_t>(best);
      const std::uint64_t mine = policy_ == CachePolicy::kLfu ? uses_[e] : 0;
      const std::uint64_t its = policy_ == CachePolicy::kLfu ? uses_[b] : 0;
      if (mine > its || (mine == its && stamp_[e] > stamp_[b])) continue;
    }
    best = static_cast<std::int32_t>(e);
  }
  return best;
}

const CacheAccess& ExpertCache::access(std::span<const std::uint16_t> experts) {
  out_.hits.clear();
  out_.misses.clear();
  out_.passing.clear();
  out_.evicted.clear();
  for (const std::uint16_t e : experts) {
    SWITCHYARD_ASSERT(marked_[e] == 0, fmt::format("expert {} twice", e));
    marked_[e] = 1;
    ++uses_[e];
    (resident_[e] != 0 ? out_.hits : out_.misses).push_back(e);
  }
  for (const std::uint16_t e : out_.hits) stamp_[e] = ++clock_;
  for (const std::uint16_t e : out_.misses) {
    if (size_ == slots_ || policy_ == CachePolicy::kStatic) {
      const std::int32_t v = victim();
      if (v < 0) {
        out_.passing.push_back(e);
        continue;
      }
      resident_[static_cast<std::size_t>(v)] = 0;
      --size_;
      out_.evicted.push_back(static_cast<std::uint16_t>(v));
    }
    insert(e);
  }
  for (const std::uint16_t e : experts) marked_[e] = 0;
  return out_;
}

const CacheAccess& ExpertCache::prefetch(std::span<const std::uint16_t> experts,
                                         std::span<const std::uint16_t> in_use) {
  out_.hits.clear();
  out_.misses.clear();
  out_.passing.clear();
  out_.evicted.clear();
  if (policy_ == CachePolicy::kStatic) {
    return out_;
  }
  for (const std::uint16_t e : experts) marked_[e] = 1;
  for (const std::uint16_t e : in_use) marked_[e] = 1;
  for (const std::uint16_t e : experts) {
    if (resident_[e] != 0) continue;
    if (size_ == slots_) {
      const std::int32_t v = victim();
      if (v < 0) break;
      resident_[static_cast<std::size_t>(v)] = 0;
      --size_;
      out_.evicted.push_back(static_cast<std::uint16_t>(v));
    }
    insert(e);
    out_.misses.push_back(e);
  }
  for (const std::uint16_t e : experts) marked_[e] = 0;
  for (const std::uint16_t e : in_use) marked_[e] = 0;
  return out_;
}

std::vector<std::uint32_t> belady_hits(const std::vector<std::vector<std::uint16_t>>& accesses,
                                       std::uint32_t experts, std::uint32_t slots, bool filled) {
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  // next[i][j]: access after i that asks for accesses[i][j] again.
  std::vector<std::vector<std::size_t>> next(accesses.size());
  std::vector<std::size_t> soonest(experts, kNever);
  for (std::size_t i = accesses.size(); i-- > 0;) {
    for (const std::uint16_t e : accesses[i]) next[i].push_back(soonest[e]);
    for (const std::uint16_t e : accesses[i]) soonest[e] = i;
  }
  struct Held {
    std::size_t next;
    std::uint16_t expert;
    bool operator<(const Held& o) const {
      return next != o.next ? next < o.next : expert < o.expert;
    }
  };
  std::vector<Held> held;
  std::vector<std::uint8_t> resident(experts, 0);
  const auto keep_soonest = [&] {
    if (held.size() > slots) {
      std::nth_element(held.begin(), held.begin() + slots, held.end());
      for (std::size_t i = slots; i < held.size(); ++i) resident[held[i].expert] = 0;
      held.resize(slots);
    }
  };
  if (filled) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      if (soonest[e] == kNever) continue;
      held.push_back({soonest[e], static_cast<std::uint16_t>(e)});
      resident[e] = 1;
    }
    keep_soonest();
  }
  std::vector<std::uint32_t> hits(accesses.size(), 0);
  std::vector<std::size_t> when(experts, kNever);
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    for (std::size_t j = 0; j < accesses[i].size(); ++j) {
      const std::uint16_t e = accesses[i][j];
      hits[i] += resident[e];
      when[e] = next[i][j];
    }
    for (Held& h : held) {
      if (h.next == i) h.next = when[h.expert];
    }
    for (const std::uint16_t e : accesses[i]) {
      if (resident[e] != 0) continue;
      resident[e] = 1;
      held.push_back({when[e], e});
    }
    // What is never needed again holds no slot.
    std::erase_if(held, [&](const Held& h) {
      if (h.next == kNever) resident[h.expert] = 0;
      return h.next == kNever;
    });
    keep_soonest();
  }
  return hits;
}

}  // namespace switchyard::sim
