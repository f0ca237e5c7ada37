// SPDX-License-Identifier: Apache-2.0
// How a framework cuts a GPU's memory into blocks (M32, M33): whether an allocation finds a place,
// not only whether the sum fits.
//
//   caching  PyTorch's CUDACachingAllocator (c10/cuda/CUDACachingAllocator.cpp, v2.x defaults).
//            Sizes are rounded up to 512 B. Up to 1 MiB a block comes from segments of 2 MiB, below
//            10 MiB from segments of 20 MiB, else from a segment of its own size rounded up to 2
//            MiB. The smallest free block of the right kind that fits is taken (the lowest address
//            among equals) and split when 512 B (small) or more than 1 MiB (large) remain; free
//            neighbours merge. Segments stay reserved; when the device has no room for a new one,
//            those that are wholly free are given back first.
//   paged    Virtual memory in pages (CUDA's virtual memory management, "expandable segments"): an
//            allocation is rounded up to whole pages, which need not be neighbours.
//   bump     One pointer: an allocation lies above the last; freeing lowers the pointer only as far
//            as the topmost blocks are free.
//
// Not modelled: streams, rounding options, the driver's own granularity, defragmentation.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

class BlockAllocator {
 public:
  using Id = std::uint64_t;
  virtual ~BlockAllocator() = default;
  /// A block of `bytes` > 0, or nothing when none can be made.
  virtual std::optional<Id> allocate(std::uint64_t bytes) = 0;
  /// Frees a block that allocate() gave.
  virtual void free(Id id) = 0;
  /// Bytes taken from the device; bytes of blocks in use, rounding included.
  [[nodiscard]] virtual std::uint64_t reserved() const = 0;
  [[nodiscard]] virtual std::uint64_t in_use() const = 0;
  /// The largest allocation that would succeed now without giving segments back.
  [[nodiscard]] virtual std::uint64_t largest_free() const = 0;
};

/// `page`: bytes, for kPaged. Null for kPool, which is the sum alone.
std::unique_ptr<BlockAllocator> make_allocator(scenario::AllocatorKind kind, std::uint64_t capacity,
                                               std::uint64_t page);

}  // namespace switchyard::sim
