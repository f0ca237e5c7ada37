// SPDX-License-Identifier: Apache-2.0
// The memory of every GPU as a ledger: each allocation and each free is an entry with its time,
// step, category and cause (MemoryEntry). The ledger keeps the sums, so that what is live is always
// explained; entries go to whoever watches (watch(), `switchyard sim --memory-out`) and are not
// kept otherwise: a step of a large model has tens of thousands. A GPU that cannot hold an
// allocation records an out-of-memory event with what was needed and what was free, and the run
// goes on with the ledger over capacity: out of memory in the model is a result, not a crash.
//
// With an allocator model (allocator.hpp) every allocation also needs a place. Experts and KV
// caches are blocks of one expert and one page; a category gives back its newest blocks first. An
// allocation that fits the sum but finds no place is out of memory as well, and the event says what
// was free, the largest free block, and how much of what is reserved is not in use.
//
// Not modelled: paging to the host, blocks that are freed in another order than newest first.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/memory/allocator.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::sim {

/// One allocation or free. Of zero bytes there is none.
struct MemoryEntry {
  std::int64_t time_ps = 0;         ///< On the GPU's clock.
  std::uint32_t step = run::kNone;  ///< run::kNone: outside of steps (start, end of the run).
  std::uint32_t gpu = 0;
  run::MemoryCategory category = run::MemoryCategory::kWeights;
  bool freed = false;
  std::uint64_t bytes = 0;  ///< > 0.
  std::string_view cause;   ///< Never empty; valid during the call.
};

class MemoryLedger {
 public:
  using Watch = std::function<void(const MemoryEntry&)>;
  /// Told of every entry from now on, in the order in which they are made.
  void watch(Watch watch) { watch_ = std::move(watch); }

  /// `capacity[g]` bytes per GPU; `watermark` in (0, 1]: the share whose upward crossing is
  /// recorded.
  MemoryLedger(std::vector<std::uint64_t> capacity, double watermark);

  /// Uses an allocator model from now on; before the first allocation. `expert` and `kv_page`:
  /// bytes of a block of these categories, 0: not divided.
  void use_allocator(scenario::AllocatorKind kind, std::uint64_t page, std::uint64_t expert,
                     std::uint64_t kv_page);
  /// What the allocator of a GPU had reserved at most, and how much of that was in use then.
  struct Reserved {
    std::uint64_t reserved = 0, in_use = 0;
  };
  [[nodiscard]] Reserved most_reserved(std::uint32_t gpu) const { return blocks_[gpu].most; }
  [[nodiscard]] bool has_allocator() const { return !blocks_.empty(); }

  /// Adds `bytes` (may be 0) to a GPU's category. Events that follow (watermark, out of memory) go
  /// to events(), with `cause` in their text; an out-of-memory event is recorded once per GPU.
  void allocate(std::uint32_t gpu, run::MemoryCategory category, std::uint64_t bytes,
                std::int64_t time_ps, std::uint32_t step, std::string_view cause);
  /// Takes `bytes` away; asserted ≤ live bytes of the category.
  void release(std::uint32_t gpu, run::MemoryCategory category, std::uint64_t bytes,
               std::int64_t time_ps, std::uint32_t step, std::string_view cause);

  [[nodiscard]] std::uint64_t live(std::uint32_t gpu) const { return live_sum_[gpu]; }
  [[nodiscard]] std::uint64_t live(std::uint32_t gpu, run::MemoryCategory c) const;
  [[nodiscard]] std::uint64_t capacity(std::uint32_t gpu) const { return capacity_[gpu]; }
  [[nodiscard]] bool out_of_memory(std::uint32_t gpu) const { return oom_[gpu]; }
  [[nodiscard]] bool any_out_of_memory() const;
  /// High water since the last call of reset_high_water (or the start).
  [[nodiscard]] std::uint64_t high_water(std::uint32_t gpu, run::MemoryCategory c) const;
  [[nodiscard]] std::uint64_t high_water(std::uint32_t gpu) const { return peak_sum_[gpu]; }
  /// Begins a new period (a step). A watermark crossing is an event once, and again only after a
  /// period that stayed below the mark.
  void reset_high_water();
  /// Events recorded since the last call; the caller takes them over.
  std::vector<run::Event> take_events();
  /// Conservation: allocated = freed + live, per GPU and category. Empty, or what does not hold.
  [[nodiscard]] std::string check() const;
  /// allocated and freed bytes of one GPU over the run.
  [[nodiscard]] std::uint64_t allocated(std::uint32_t gpu) const;
  [[nodiscard]] std::uint64_t freed(std::uint32_t gpu) const;

 private:
  /// Places of a GPU's allocations.
  struct Blocks {
    std::unique_ptr<BlockAllocator> allocator;
    struct Block {
      std::uint64_t bytes = 0;
      BlockAllocator::Id id = 0;
      bool placed = false;  ///< false: there was no place for it.
    };
    std::array<std::vector<Block>, run::kMemoryCategories> of;
    Reserved most;
  };
  /// Finds places; false when one is missing.
  bool place(std::uint32_t gpu, std::size_t category, std::uint64_t bytes);
  void vacate(std::uint32_t gpu, std::size_t category, std::uint64_t bytes);

  using PerCategory = std::array<std::uint64_t, run::kMemoryCategories>;
  double watermark_;
  std::vector<std::uint64_t> capacity_, live_sum_, peak_sum_;
  std::vector<PerCategory> live_, peak_, allocated_, freed_;
  std::vector<bool> oom_, over_watermark_;
  bool expandable_ = false;     // One block for each category, which grows and shrinks.
  std::vector<Blocks> blocks_;  // [G], or empty without an allocator model.
  std::array<std::uint64_t, run::kMemoryCategories> unit_{};
  std::vector<run::Event> events_;
  Watch watch_;
};

}  // namespace switchyard::sim
