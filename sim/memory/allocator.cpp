// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class CachingAllocator final : public BlockAllocator {
 public:
  explicit CachingAllocator(std::uint64_t capacity) : capacity_(capacity) {}

  std::optional<Id> allocate(std::uint64_t bytes) override {
    const std::uint64_t size = round_up(bytes, 512);
    const bool small = size <= kMiB;
    std::optional<std::uint64_t> at = take_free(size, small);
    if (!at) {
      const std::uint64_t segment = small              ? 2 * kMiB
                                    : size < 10 * kMiB ? 20 * kMiB
                                                       : round_up(size, 2 * kMiB);
      if (reserved_ + segment > capacity_) give_back();
      if (reserved_ + segment > capacity_) return std::nullopt;
      // Addresses are never used again, so segments are never neighbours of each other.
      const std::uint64_t address = next_address_;
      next_address_ += segment;
      reserved_ += segment;
      segments_[address] = segment;
      blocks_[address] = {segment, small, true};
      free_[small ? 1 : 0].insert({segment, address});
      at = take_free(size, small);
      SWITCHYARD_ASSERT(at.has_value(), "a new segment holds the block");
    }
    in_use_ += blocks_[*at].size;
    return *at;
  }

  void free(Id id) override {
    auto block = blocks_.find(id);
    SWITCHYARD_ASSERT(block != blocks_.end() && !block->second.is_free,
                      fmt::format("block {} is not in use", id));
    in_use_ -= block->second.size;
    block->second.is_free = true;
    auto& pool = free_[block->second.small ? 1 : 0];
    const auto next = std::next(block);
    if (next != blocks_.end() && next->second.is_free && !segments_.contains(next->first)) {
      pool.erase({next->second.size, next->first});
      block->second.size += next->second.size;
      blocks_.erase(next);
    }
    if (!segments_.contains(block->first)) {
      const auto before = std::prev(block);
      if (before->second.is_free) {
        pool.erase({before->second.size, before->first});
        before->second.size += block->second.size;
        blocks_.erase(block);
        block = before;
      }
    }
    pool.insert({block->second.size, block->first});
  }

  [[nodiscard]] std::uint64_t reserved() const override { return reserved_; }
  [[nodiscard]] std::uint64_t in_use() const override { return in_use_; }
  [[nodiscard]] std::uint64_t largest_free() const override {
    const std::uint64_t room = capacity_ - reserved_;
    std::uint64_t best = room >= 10 * kMiB ? room / (2 * kMiB) * (2 * kMiB) : 0;
    if (!free_[0].empty()) best = std::max(best, free_[0].rbegin()->first);
    return best;
  }

 private:
  struct Block {
    std::uint64_t size = 0;
    bool small = false, is_free = false;
  };

  std::optional<std::uint64_t> take_free(std::uint64_t size, bool small) {
    auto& pool = free_[small ? 1 : 0];
    const auto found = pool.lower_bound({size, 0});
    if (found == pool.end()) return std::nullopt;
    const auto [have, at] = *found;
    pool.erase(found);
    Block& block = blocks_[at];
    block.is_free = false;
    const std::uint64_t rest = have - size;
    if (small ? rest >= 512 : rest > kMiB) {
      block.size = size;
      blocks_[at + size] = {rest, small, true};
      pool.insert({rest, at + size});
    }
    return at;
  }

  void give_back() {
    for (auto s = segments_.begin(); s != segments_.end();) {
      const auto block = blocks_.find(s->first);
      if (block->second.is_free && block->second.size == s->second) {
        free_[block->second.small ? 1 : 0].erase({block->second.size, block->first});
        reserved_ -= s->second;
        blocks_.erase(block);
        s = segments_.erase(s);
      } else {
        ++s;
      }
    }
  }

  std::uint64_t capacity_, reserved_ = 0, in_use_ = 0, next_address_ = 0;
  std::map<std::uint64_t, std::uint64_t> segments_;            // address → bytes
  std::map<std::uint64_t, Block> blocks_;                      // by address
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_[2];  // size, address; large, small
};

class PagedAllocator final : public BlockAllocator {
 public:
  PagedAllocator(std::uint64_t capacity, std::uint64_t page)
      : capacity_(capacity / page * page), page_(page) {}
  std::optional<Id> allocate(std::uint64_t bytes) override {
    const std::uint64_t size = round_up(bytes, page_);
    if (in_use_ + size > capacity_) return std::nullopt;
    in_use_ += size;
    size_[next_] = size;
    return next_++;
  }
  void free(Id id) override {
    const auto found = size_.find(id);
    SWITCHYARD_ASSERT(found != size_.end(), fmt::format("block {} is not in use", id));
    in_use_ -= found->second;
    size_.erase(found);
  }
  [[nodiscard]] std::uint64_t reserved() const override { return in_use_; }
  [[nodiscard]] std::uint64_t in_use() const override { return in_use_; }
  [[nodiscard]] std::uint64_t largest_free() const override { return capacity_ - in_use_; }

 private:
  std::uint64_t capacity_, page_, in_use_ = 0;
  Id next_ = 0;
  std::map<Id, std::uint64_t> size_;
};

class BumpAllocator final : public BlockAllocator {
 public:
  explicit BumpAllocator(std::uint64_t capacity) : capacity_(capacity) {}
  std::optional<Id> allocate(std::uint64_t bytes) override {
    const std::uint64_t size = round_up(bytes, 512);
    if (top_ + size > capacity_) return std::nullopt;
    const Id at = top_;
    blocks_[at] = {size, true};
    top_ += size;
    in_use_ += size;
    return at;
  }
  void free(Id id) override {
    const auto found = blocks_.find(id);
    SWITCHYARD_ASSERT(found != blocks_.end() && found->second.second,
                      fmt::format("block {} is not in use", id));
    found->second.second = false;
    in_use_ -= found->second.first;
    while (!blocks_.empty() && !blocks_.rbegin()->second.second) {
      top_ = blocks_.rbegin()->first;
      blocks_.erase(std::prev(blocks_.end()));
    }
  }
  [[nodiscard]] std::uint64_t reserved() const override { return top_; }
  [[nodiscard]] std::uint64_t in_use() const override { return in_use_; }
  [[nodiscard]] std::uint64_t largest_free() const override {
    return (capacity_ - top_) / 512 * 512;
  }

 private:
  std::uint64_t capacity_, top_ = 0, in_use_ = 0;
  std::map<Id, std::pair<std::uint64_t, bool>> blocks_;  // by address: bytes, in use
};

}  // namespace

std::unique_ptr<BlockAllocator> make_allocator(scenario::AllocatorKind kind, std::uint64_t capacity,
                                               std::uint64_t page) {
  switch (kind) {
    case scenario::AllocatorKind::kCaching:
      return std::make_unique<CachingAllocator>(capacity);
    case scenario::AllocatorKind::kPaged:
      return std::make_unique<PagedAllocator>(capacity, page);
    case scenario::AllocatorKind::kBump:
      return std::make_unique<BumpAllocator>(capacity);
    case scenario::AllocatorKind::kPool:
      break;
  }
  return nullptr;
}

}  // namespace switchyard::sim
