// SPDX-License-Identifier: Apache-2.0
// Which experts of one MoE layer are kept in a memory that holds only some of them (M34, M51):
// policies LRU, LFU and static, prefetching, and Belady's bound.
//
// One access is one layer of one step: the set of distinct experts that the step's tokens ask for,
// in order of first use. It is atomic, as in moe-cache-eval (shijiuzhang/moe-cache-eval,
// Apache-2.0) and in the definitions of the reference values for GPT-OSS: what is a hit is decided
// against the content before the access; then the hits become the most recent, in order; then the
// misses are loaded, in order, each over the victim of the policy that is not part of this access.
// When all slots hold experts of this access, the rest *pass through*: they are loaded, used and
// not kept.
//
//   lru     victim: the one used longest ago.
//   lfu     victim: the one used in the fewest accesses of the whole history, resident or not;
//           among equals the one used longest ago.
//   static  no victim: what fill() put there stays, every other expert passes through.
//
// Belady's bound (Belady 1966, with bypassing): after each access keep, of the content and the
// access, those that are needed again soonest. No policy that loads on demand has more hits.
//
// Not modelled: parts of an expert, experts of different size, costs that differ by expert.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::sim {

enum class CachePolicy : std::uint8_t { kLru, kLfu, kStatic };

struct CacheAccess {
  std::vector<std::uint16_t> hits;     ///< Resident before the access.
  std::vector<std::uint16_t> misses;   ///< To be loaded, in this order.
  std::vector<std::uint16_t> passing;  ///< Those of `misses` that are not kept.
  std::vector<std::uint16_t> evicted;  ///< Their slots are free before the loads begin.
};

class ExpertCache {
 public:
  /// `experts` ids 0 … experts − 1; `slots` ≥ 0, more than `experts` are never used.
  ExpertCache(CachePolicy policy, std::uint32_t experts, std::uint32_t slots);

  /// Puts experts into free slots without loading, the first one counting as the most recent.
  /// Distinct, not resident, at most the free slots (asserted).
  void fill(std::span<const std::uint16_t> experts);
  /// One access; `experts` distinct and < E (asserted). Valid until the next call.
  const CacheAccess& access(std::span<const std::uint16_t> experts);
  /// Brings `experts` in beforehand, most wanted first: each that is not resident takes a free slot
  /// or that of the policy's victim among those not in `experts` and not in `in_use`; what finds
  /// none is left out. Counts as no use. In the result `hits` is empty and nothing passes. A static
  /// cache brings in nothing.
  const CacheAccess& prefetch(std::span<const std::uint16_t> experts,
                              std::span<const std::uint16_t> in_use = {});

  /// Gives up a resident expert (a prefetch that was taken back).
  void discard(std::uint16_t expert);

  /// Another number of slots, at least size() (asserted).
  void set_slots(std::uint32_t slots);

  [[nodiscard]] bool resident(std::uint16_t expert) const { return resident_[expert] != 0; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t slots() const { return slots_; }
  /// Accesses that asked for the expert so far.
  [[nodiscard]] std::uint64_t uses(std::uint16_t expert) const { return uses_[expert]; }

 private:
  /// Resident expert to give up, or −1; never one that is marked.
  [[nodiscard]] std::int32_t victim() const;
  void insert(std::uint16_t expert);

  CachePolicy policy_;
  std::uint32_t slots_, size_ = 0;
  std::uint64_t clock_ = 0;
  std::vector<std::uint8_t> resident_, marked_;  // [E]
  std::vector<std::uint64_t> stamp_, uses_;      // [E] last use, accesses
  CacheAccess out_;
};

/// Hits that no demand policy can beat, per access. `filled`: the cache may begin with any `slots`
/// experts (the best are taken) instead of empty. Cost O(accesses · (slots + size of an access)).
std::vector<std::uint32_t> belady_hits(const std::vector<std::vector<std::uint16_t>>& accesses,
                                       std::uint32_t experts, std::uint32_t slots, bool filled);

}  // namespace switchyard::sim
