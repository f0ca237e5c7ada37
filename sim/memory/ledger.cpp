// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {
std::size_t index(run::MemoryCategory c) { return static_cast<std::size_t>(c); }
}  // namespace

MemoryLedger::MemoryLedger(std::vector<std::uint64_t> capacity, double watermark)
    : watermark_(watermark),
      capacity_(std::move(capacity)),
      live_sum_(capacity_.size()),
      peak_sum_(capacity_.size()),
      live_(capacity_.size()),
      peak_(capacity_.size()),
      allocated_(capacity_.size()),
      freed_(capacity_.size()),
      oom_(capacity_.size()),
      over_watermark_(capacity_.size()) {}

void MemoryLedger::use_allocator(scenario::AllocatorKind kind, std::uint64_t page,
                                 std::uint64_t expert, std::uint64_t kv_page) {
  if (kind == scenario::AllocatorKind::kPool) return;
  for (const std::uint64_t bytes : capacity_) {
    blocks_.emplace_back().allocator = make_allocator(kind, bytes, page);
  }
  expandable_ = kind == scenario::AllocatorKind::kPaged;
  if (expandable_) return;
  unit_[index(run::MemoryCategory::kExperts)] = expert;
  unit_[index(run::MemoryCategory::kKv)] = kv_page;
}

bool MemoryLedger::place(std::uint32_t gpu, std::size_t category, std::uint64_t bytes) {
  Blocks& b = blocks_[gpu];
  if (expandable_ && !b.of[category].empty()) {
    const Blocks::Block segment = b.of[category].back();
    b.of[category].pop_back();
    if (segment.placed) b.allocator->free(segment.id);
    bytes += segment.bytes;
  }
  const std::uint64_t unit = unit_[category] > 0 ? unit_[category] : bytes;
  bool all = true;
  for (std::uint64_t left = bytes; left > 0;) {
    Blocks::Block block;
    block.bytes = std::min(left, unit);
    left -= block.bytes;
    if (const auto id = b.allocator->allocate(block.bytes)) {
      block.id = *id;
      block.placed = true;
    }
    all = all && block.placed;
    b.of[category].push_back(block);
  }
  if (b.allocator->reserved() > b.most.reserved) {
    b.most = {b.allocator->reserved(), b.allocator->in_use()};
  }
  return all;
}

void MemoryLedger::vacate(std::uint32_t gpu, std::size_t category, std::uint64_t bytes) {
  Blocks& b = blocks_[gpu];
  std::vector<Blocks::Block>& blocks = b.of[category];
  while (bytes > 0) {
    const Blocks::Block last = blocks.back();
    blocks.pop_back();
    if (last.placed) b.allocator->free(last.id);
    if (last.bytes <= bytes) {
      bytes -= last.bytes;
    } else {
      place(gpu, category, last.bytes - bytes);  // A smaller block stays.
      bytes = 0;
    }
  }
}

void MemoryLedger::allocate(std::uint32_t gpu, run::MemoryCategory category, std::uint64_t bytes,
                            std::int64_t time_ps, std::uint32_t step, std::string_view cause) {
  const std::size_t c = index(category);
  if (watch_ && bytes > 0) watch_({time_ps, step, gpu, category, false, bytes, cause});
  const std::uint64_t before = live_sum_[gpu];
  live_[gpu][c] += bytes;
  live_sum_[gpu] += bytes;
  allocated_[gpu][c] += bytes;
  peak_[gpu][c] = std::max(peak_[gpu][c], live_[gpu][c]);
  peak_sum_[gpu] = std::max(peak_sum_[gpu], live_sum_[gpu]);
  const double limit = watermark_ * static_cast<double>(capacity_[gpu]);
  if (!over_watermark_[gpu] && static_cast<double>(live_sum_[gpu]) > limit) {
    over_watermark_[gpu] = true;
    run::Event e;
    e.time_ps = time_ps;
    e.step = step;
    e.kind = run::EventKind::kWatermark;
    e.gpu = gpu;
    e.value = static_cast<double>(live_sum_[gpu]) / static_cast<double>(capacity_[gpu]);
    e.text =
        fmt::format("memory above the {:.4g} % watermark at {} ({}); value: share of capacity",
                    100 * watermark_, format_bytes(static_cast<double>(live_sum_[gpu])), cause);
    events_.push_back(std::move(e));
  }
  if (!blocks_.empty() && bytes > 0 && !place(gpu, c, bytes) && !oom_[gpu] &&
      live_sum_[gpu] <= capacity_[gpu]) {
    oom_[gpu] = true;
    const BlockAllocator& a = *blocks_[gpu].allocator;
    const std::uint64_t block = unit_[c] > 0 ? std::min(unit_[c], bytes) : bytes;
    run::Event e;
    e.time_ps = time_ps;
    e.step = step;
    e.kind = run::EventKind::kOutOfMemory;
    e.gpu = gpu;
    e.value = static_cast<double>(a.reserved() - a.in_use());
    e.text = fmt::format(
        "{} needs a block of {}: {} of {} are free, the largest free block is {} ({} reserved and "
        "not in use); value: bytes reserved and not in use",
        cause, format_bytes(static_cast<double>(block)),
        format_bytes(static_cast<double>(capacity_[gpu] - before)),
        format_bytes(static_cast<double>(capacity_[gpu])),
        format_bytes(static_cast<double>(a.largest_free())),
        format_bytes(static_cast<double>(a.reserved() - a.in_use())));
    events_.push_back(std::move(e));
  }
  if (!oom_[gpu] && live_sum_[gpu] > capacity_[gpu]) {
    oom_[gpu] = true;
    run::Event e;
    e.time_ps = time_ps;
    e.step = step;
    e.kind = run::EventKind::kOutOfMemory;
    e.gpu = gpu;
    e.value = static_cast<double>(live_sum_[gpu] - capacity_[gpu]);
    e.text = fmt::format(
        "{} needs {}, free {} of {}; value: bytes over capacity", cause,
        format_bytes(static_cast<double>(bytes)),
        format_bytes(static_cast<double>(capacity_[gpu] > before ? capacity_[gpu] - before : 0)),
        format_bytes(static_cast<double>(capacity_[gpu])));
    events_.push_back(std::move(e));
  }
}

void MemoryLedger::release(std::uint32_t gpu, run::MemoryCategory category, std::uint64_t bytes,
                           std::int64_t time_ps, std::uint32_t step, std::string_view cause) {
  const std::size_t c = index(category);
  if (watch_ && bytes > 0) watch_({time_ps, step, gpu, category, true, bytes, cause});
  SWITCHYARD_ASSERT(live_[gpu][c] >= bytes,
                    fmt::format("GPU {}: release of {} from {}", gpu, bytes, live_[gpu][c]));
  if (!blocks_.empty()) vacate(gpu, c, bytes);
  live_[gpu][c] -= bytes;
  live_sum_[gpu] -= bytes;
  freed_[gpu][c] += bytes;
}

std::uint64_t MemoryLedger::live(std::uint32_t gpu, run::MemoryCategory c) const {
  return live_[gpu][index(c)];
}
std::uint64_t MemoryLedger::high_water(std::uint32_t gpu, run::MemoryCategory c) const {
  return peak_[gpu][index(c)];
}
bool MemoryLedger::any_out_of_memory() const {
  return std::find(oom_.begin(), oom_.end(), true) != oom_.end();
}
void MemoryLedger::reset_high_water() {
  // A crossing is news again only after a whole period below the mark.
  for (std::size_t g = 0; g < capacity_.size(); ++g) {
    over_watermark_[g] =
        static_cast<double>(peak_sum_[g]) > watermark_ * static_cast<double>(capacity_[g]);
  }
  peak_ = live_;
  peak_sum_ = live_sum_;
}
std::vector<run::Event> MemoryLedger::take_events() { return std::exchange(events_, {}); }

std::uint64_t MemoryLedger::allocated(std::uint32_t gpu) const {
  return std::accumulate(allocated_[gpu].begin(), allocated_[gpu].end(), std::uint64_t{0});
}
std::uint64_t MemoryLedger::freed(std::uint32_t gpu) const {
  return std::accumulate(freed_[gpu].begin(), freed_[gpu].end(), std::uint64_t{0});
}

std::string MemoryLedger::check() const {
  for (std::size_t g = 0; g < capacity_.size(); ++g) {
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      if (allocated_[g][c] != freed_[g][c] + live_[g][c]) {
        return fmt::format("GPU {} {}: allocated {} != freed {} + live {}", g,
                           run::kMemoryCategoryNames[c], allocated_[g][c], freed_[g][c],
                           live_[g][c]);
      }
    }
    if (live_sum_[g] != std::accumulate(live_[g].begin(), live_[g].end(), std::uint64_t{0})) {
      return fmt::format("GPU {}: the categories do not sum to the live bytes", g);
    }
  }
  return {};
}

}  // namespace switchyard::sim
