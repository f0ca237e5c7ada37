// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/prefix_cache.hpp"

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard::sim {

PrefixCache::Hit PrefixCache::find(std::span<const std::uint64_t> ids, std::size_t most) const {
  Hit hit;
  for (std::size_t i = 0; i < std::min(ids.size(), most); ++i) {
    const auto it = next_.find({hit.last, ids[i]});
    if (it == next_.end()) break;
    hit.last = it->second;
    ++hit.blocks;
    hit.idle += all_[hit.last].users == 0 ? 1 : 0;
  }
  return hit;
}

void PrefixCache::take(std::uint32_t last) {
  for (std::uint32_t b = last; b != kRoot; b = all_[b].before) {
    if (all_[b].users++ == 0) idle_.erase(place(b));
  }
}

void PrefixCache::release(std::uint32_t last) {
  ++clock_;
  for (std::uint32_t b = last; b != kRoot; b = all_[b].before) {
    SWITCHYARD_ASSERT(all_[b].users > 0, "a block without users is released");
    if (--all_[b].users > 0) continue;
    all_[b].released = clock_;
    idle_.insert(place(b));
  }
}

std::pair<std::uint32_t, bool> PrefixCache::extend(std::uint32_t last, std::uint64_t id) {
  if (const auto it = next_.find({last, id}); it != next_.end()) {
    const std::uint32_t b = it->second;
    if (all_[b].users++ == 0) idle_.erase(place(b));
    return {b, false};
  }
  auto b = static_cast<std::uint32_t>(all_.size());
  if (unused_.empty()) {
    all_.emplace_back();
  } else {
    b = unused_.back();
    unused_.pop_back();
  }
  all_[b] = {last, all_[last].depth + 1, 1, id, 0};
  next_.emplace(std::pair{last, id}, b);
  ++blocks_;
  return {b, true};
}

void PrefixCache::evict() {
  SWITCHYARD_ASSERT(!idle_.empty(), "every block has users");
  const std::uint32_t b = std::get<2>(*idle_.begin());
  idle_.erase(idle_.begin());
  next_.erase({all_[b].before, all_[b].id});
  unused_.push_back(b);
  --blocks_;
}

bool PrefixCache::counts(std::span<const std::uint32_t> users) const {
  std::vector<std::uint32_t> found(all_.size(), 0);
  for (std::uint32_t b : users) {
    for (; b != kRoot; b = all_[b].before) ++found[b];
  }
  std::uint64_t idle = 0;
  for (const auto& [name, b] : next_) {
    if (found[b] != all_[b].users) return false;
    if (name.first != kRoot && all_[name.first].users < all_[b].users) return false;
    idle += found[b] == 0 ? 1 : 0;
  }
  return idle == idle_.size() && next_.size() == blocks_;
}

void PrefixCache::clear() { *this = PrefixCache(); }

}  // namespace switchyard::sim
