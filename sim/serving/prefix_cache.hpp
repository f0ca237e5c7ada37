// SPDX-License-Identifier: Apache-2.0
// Pages of prompts that requests of one rank share: a tree of blocks, each named by its id and by
// all blocks before it. A block that a request uses stays; one that nobody uses any more is kept as
// cache until its pages are needed, the least recently used first (of one request's the last first,
// so a block never outlives the one before it). Radix attention: Zheng et al., SGLang, 2024; ids of
// blocks: Qin et al., Mooncake, FAST 2025.
//
// Only counts blocks: bytes and the ledger are the scheduler's (serving.cpp).
//
// Not modelled: blocks of answers (a trace names those of prompts only); fetching blocks from
// another rank or from host memory.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace switchyard::sim {

class PrefixCache {
 public:
  /// The leading blocks of a prompt that are there.
  struct Hit {
    std::uint32_t last = kRoot;  ///< Block at their end; kRoot: there is none.
    std::uint32_t blocks = 0;
    std::uint32_t idle = 0;  ///< Of those: used by nobody.
  };
  static constexpr std::uint32_t kRoot = 0;

  /// At most `most` of `ids`.
  [[nodiscard]] Hit find(std::span<const std::uint64_t> ids, std::size_t most) const;
  /// One user more of all blocks up to `last`.
  void take(std::uint32_t last);
  /// One user fewer.
  void release(std::uint32_t last);
  /// A user of all blocks up to `last` has computed the next one; it is its user from now on.
  /// True: the block is new; false: it was there, so the user's own pages of it are one too many.
  std::pair<std::uint32_t, bool> extend(std::uint32_t last, std::uint64_t id);
  /// Drops the block that nobody has used for longest; needs idle() > 0.
  void evict();
  /// All of them, with their users.
  void clear();

  /// Each user is named by its last block: nobody else, and all of them, are counted. For checks.
  [[nodiscard]] bool counts(std::span<const std::uint32_t> users) const;

  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }
  [[nodiscard]] std::uint64_t idle() const { return idle_.size(); }

 private:
  struct Block {
    std::uint32_t before = kRoot, depth = 0, users = 0;
    std::uint64_t id = 0, released = 0;
  };
  /// Order of eviction: when its last user left, then the last block first.
  using Place = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;
  [[nodiscard]] Place place(std::uint32_t b) const {
    return {all_[b].released, UINT32_MAX - all_[b].depth, b};
  }

  std::vector<Block> all_{Block{}};  // [0] is what comes before the first block
  std::vector<std::uint32_t> unused_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> next_;  // (block before, id)
  std::set<Place> idle_;
  std::uint64_t blocks_ = 0, clock_ = 0;
};

}  // namespace switchyard::sim
