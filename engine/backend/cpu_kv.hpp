// SPDX-License-Identifier: Apache-2.0
// File: cpu_kv.hpp. The paged KV cache of a backend, in float32. Tables and ledger are on the host;
// the blocks come from BlockMemory: ordinary memory, or that of a device
// (kernels/cuda_backend.hpp).
//
// A block is [layer of the group][KV head][keys: block x head_dim | values: block x head_dim], so
// one layer and head reads `block` rows in a row. Blocks given back wait in a list per group and
// are lent again; they are released when another group needs their bytes under the memory limit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/kv_cache.hpp"

namespace switchyard::cpu {

/// Where blocks come from.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  /// Floats, aligned to 64 bytes, not initialised. InputError: there are none left.
  [[nodiscard]] virtual float* take(std::size_t floats) = 0;
  virtual void give_back(float* block) noexcept = 0;
};
/// The process's own memory.
[[nodiscard]] std::shared_ptr<BlockMemory> host_blocks();

struct BlockReturn {
  BlockMemory* memory = nullptr;
  void operator()(float* block) const { memory->give_back(block); }
};
using Block = std::unique_ptr<float[], BlockReturn>;

class CpuKvCache;

/// What the pool and its sequences share.
class KvStore {
 public:
  /// InputError("--kv-block", …) for a block outside 1 … 65536.
  KvStore(AttentionShape shape, const KvOptions& options, std::shared_ptr<BlockMemory> memory);

  struct Group {
    std::size_t window = 0;
    std::size_t layers = 0;
    std::size_t block_floats = 0;
    std::vector<Block> spare;
  };
  [[nodiscard]] Block lend(std::size_t group);
  void take_back(std::size_t group, Block block);

  std::shared_ptr<BlockMemory> memory;  ///< Before the groups, whose blocks go back to it.
  AttentionShape shape;
  KvOptions options;
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;  ///< [layer]
  std::vector<std::size_t> place;     ///< [layer] its number within the group
  KvLedger ledger;

 private:
  std::uint64_t held_bytes_ = 0;  // live and spare
};

class CpuKvCache final : public KvCache {
 public:
  explicit CpuKvCache(std::shared_ptr<KvStore> store);
  ~CpuKvCache() override;
  CpuKvCache(const CpuKvCache&) = delete;
  CpuKvCache& operator=(const CpuKvCache&) = delete;

  [[nodiscard]] std::size_t length() const override { return length_; }
  [[nodiscard]] std::size_t blocks() const override;
  [[nodiscard]] std::size_t bytes() const override;
  [[nodiscard]] const AttentionShape& shape() const { return store_->shape; }
  [[nodiscard]] std::size_t block_tokens() const { return store_->options.block; }
  [[nodiscard]] const KvStore& store() const { return *store_; }

  /// Blocks of `group` that are missing for positions below `tokens`.
  [[nodiscard]] std::size_t missing(std::size_t group, std::size_t tokens) const;
  /// Has blocks for all positions below `tokens`.
  void reserve(std::size_t tokens);
  /// Declares `tokens` more rows complete and gives back what fell out of the windows.
  void advance(std::size_t tokens);

  /// First key of the block that holds `position`, of one layer and KV head; rows of head_dim.
  [[nodiscard]] float* keys(std::size_t layer, std::size_t head, std::size_t position) const {
    const std::size_t group = store_->group_of[layer];
    const Table& table = tables_[group];
    const AttentionShape& s = store_->shape;
    const std::size_t strip = store_->options.block * s.head_dim;
    const std::size_t strips = s.latent > 0 ? 1 : 2;
    return table.blocks[position / store_->options.block - table.first].get() +
           (store_->place[layer] * s.kv_heads + head) * strips * strip;
  }
  /// The blocks of a layer's table, the number of the first of them, and floats from a block's
  /// beginning to the layer's keys.
  [[nodiscard]] std::span<const Block> held(std::size_t layer) const {
    return tables_[store_->group_of[layer]].blocks;
  }
  [[nodiscard]] std::size_t first_block(std::size_t layer) const {
    return tables_[store_->group_of[layer]].first;
  }
  [[nodiscard]] std::size_t layer_offset(std::size_t layer) const {
    const AttentionShape& s = store_->shape;
    return store_->place[layer] * s.kv_heads * (s.latent > 0 ? 1 : 2) * store_->options.block *
           s.head_dim;
  }
  /// The values that belong to keys(); the same rows when latent.
  [[nodiscard]] float* values(float* keys) const {
    return store_->shape.latent > 0 ? keys : keys + store_->options.block * store_->shape.head_dim;
  }

 private:
  struct Table {
    std::size_t first = 0;  // number of the first block held
    std::vector<Block> blocks;
  };
  std::shared_ptr<KvStore> store_;
  std::vector<Table> tables_;  // [group]
  std::size_t length_ = 0;
};

class CpuKvPool final : public KvPool {
 public:
  CpuKvPool(const AttentionShape& shape, const KvOptions& options,
            std::shared_ptr<BlockMemory> memory = host_blocks())
      : store_(std::make_shared<KvStore>(shape, options, std::move(memory))) {}
  [[nodiscard]] std::unique_ptr<KvCache> make_cache() override {
    return std::make_unique<CpuKvCache>(store_);
  }
  [[nodiscard]] KvLedger ledger() const override { return store_->ledger; }
  [[nodiscard]] const KvOptions& options() const override { return store_->options; }
  [[nodiscard]] std::uint64_t bytes_to_append(const KvCache& cache,
                                              std::size_t tokens) const override;
  [[nodiscard]] std::uint64_t peak_bytes(std::size_t tokens, std::size_t step) const override;

 private:
  std::shared_ptr<KvStore> store_;
};

}  // namespace switchyard::cpu
