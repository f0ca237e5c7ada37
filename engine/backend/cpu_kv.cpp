// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu_kv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kLargestBlock = 65536;

class HostBlocks final : public BlockMemory {
 public:
  float* take(std::size_t floats) override {
    return static_cast<float*>(::operator new[](floats * sizeof(float), kAlignment));
  }
  void give_back(float* block) noexcept override { ::operator delete[](block, kAlignment); }
};

}  // namespace

std::shared_ptr<BlockMemory> host_blocks() { return std::make_shared<HostBlocks>(); }

KvStore::KvStore(AttentionShape attention, const KvOptions& kv, std::shared_ptr<BlockMemory> source)
    : memory(std::move(source)), shape(std::move(attention)), options(kv) {
  if (options.block < 1 || options.block > kLargestBlock) {
    throw InputError("--kv-block", fmt::format("block = {}. Violated: 1 <= block <= {}",
                                               options.block, kLargestBlock));
  }
  SWITCHYARD_ASSERT(shape.windows.empty() || shape.windows.size() == shape.layers, "windows");
  for (std::size_t l = 0; l < shape.layers; ++l) {
    std::size_t g = 0;
    while (g < groups.size() && groups[g].window != shape.window(l)) {
      ++g;
    }
    if (g == groups.size()) {
      groups.emplace_back();
      groups.back().window = shape.window(l);
    }
    group_of.push_back(g);
    place.push_back(groups[g].layers++);
  }
  const std::size_t strips = shape.latent > 0 ? 1 : 2;
  for (Group& g : groups) {
    g.block_floats = options.block * g.layers * shape.kv_heads * shape.head_dim * strips;
  }
}

Block KvStore::lend(std::size_t group) {
  Group& g = groups[group];
  const std::uint64_t bytes = g.block_floats * sizeof(float);
  Block block;
  if (!g.spare.empty()) {
    block = std::move(g.spare.back());
    g.spare.pop_back();
  } else {
    for (Group& other : groups) {
      while (options.memory > 0 && held_bytes_ + bytes > options.memory && !other.spare.empty()) {
        other.spare.pop_back();
        held_bytes_ -= other.block_floats * sizeof(float);
      }
    }
    block = Block(memory->take(g.block_floats), BlockReturn{memory.get()});
    held_bytes_ += bytes;
  }
  ++ledger.allocated;
  ++ledger.live;
  ledger.live_bytes += bytes;
  ledger.peak = std::max(ledger.peak, ledger.live);
  ledger.peak_bytes = std::max(ledger.peak_bytes, ledger.live_bytes);
  return block;
}

void KvStore::take_back(std::size_t group, Block block) {
  Group& g = groups[group];
  ++ledger.freed;
  --ledger.live;
  ledger.live_bytes -= g.block_floats * sizeof(float);
  g.spare.push_back(std::move(block));
}

CpuKvCache::CpuKvCache(std::shared_ptr<KvStore> store)
    : store_(std::move(store)), tables_(store_->groups.size()) {}

CpuKvCache::~CpuKvCache() {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    for (Block& block : tables_[g].blocks) {
      store_->take_back(g, std::move(block));
    }
  }
}

std::size_t CpuKvCache::blocks() const {
  std::size_t sum = 0;
  for (const Table& t : tables_) {
    sum += t.blocks.size();
  }
  return sum;
}

std::size_t CpuKvCache::bytes() const {
  std::size_t sum = 0;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    sum += tables_[g].blocks.size() * store_->groups[g].block_floats * sizeof(float);
  }
  return sum;
}

std::size_t CpuKvCache::missing(std::size_t group, std::size_t tokens) const {
  const Table& t = tables_[group];
  const std::size_t wanted = (tokens + store_->options.block - 1) / store_->options.block;
  const std::size_t have = t.first + t.blocks.size();
  return wanted > have ? wanted - have : 0;
}

void CpuKvCache::reserve(std::size_t tokens) {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    for (std::size_t n = missing(g, tokens); n > 0; --n) {
      tables_[g].blocks.push_back(store_->lend(g));
    }
  }
}

void CpuKvCache::advance(std::size_t tokens) {
  length_ += tokens;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const std::size_t window = store_->groups[g].window;
    // The next token, at position length_, sees length_ - window + 1 and later ones.
    if (window == 0 || length_ < window) {
      continue;
    }
    Table& t = tables_[g];
    const std::size_t first =
        std::min((length_ - window + 1) / store_->options.block, t.first + t.blocks.size());
    const auto gone = static_cast<std::ptrdiff_t>(first - t.first);
    for (auto it = t.blocks.begin(); it != t.blocks.begin() + gone; ++it) {
      store_->take_back(g, std::move(*it));
    }
    t.blocks.erase(t.blocks.begin(), t.blocks.begin() + gone);
    t.first = first;
  }
}

std::uint64_t CpuKvPool::bytes_to_append(const KvCache& cache, std::size_t tokens) const {
  const auto& own = static_cast<const CpuKvCache&>(cache);
  std::uint64_t sum = 0;
  for (std::size_t g = 0; g < store_->groups.size(); ++g) {
    sum += own.missing(g, own.length() + tokens) * store_->groups[g].block_floats * sizeof(float);
  }
  return sum;
}

std::uint64_t CpuKvPool::peak_bytes(std::size_t tokens, std::size_t step) const {
  const std::size_t block = store_->options.block;
  const std::size_t all = (tokens + block - 1) / block;
  std::uint64_t sum = 0;
  for (const KvStore::Group& g : store_->groups) {
    std::size_t most = all;
    if (g.window > 0) {
      // window - 1 old tokens and `step` new ones; they may start anywhere within a block.
      const std::size_t span = g.window - 1 + std::min(step, tokens);
      most = std::min(all, (span + block - 2) / block + 1);
    }
    sum += most * g.block_floats * sizeof(float);
  }
  return sum;
}

}  // namespace switchyard::cpu
