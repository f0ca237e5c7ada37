// SPDX-License-Identifier: Apache-2.0
// File: kv_cache.hpp. Paged keys and values: a pool lends blocks of a fixed number of tokens, a
// sequence holds a table of the blocks it was lent.
//
// Layers with the same sliding window share a table; one block holds `block` tokens of all of them.
// A layer with a window of W needs the last W - 1 tokens only, so its blocks that lie wholly before
// them go back to the pool after each step (rolling). A full layer keeps all of them until the
// sequence ends. No result depends on the size of a block: attention walks positions in order.
//
// Bytes of a block: block * layers * kv_heads * head_dim * 2 * 4 (keys and values in float32), with
// latent attention half of it, as the values are part of the keys.
//
// Conservation, at any time: blocks lent (ever) = blocks given back + blocks held now.
//
// Not modelled: keys and values in fewer bits, sharing of equal prefixes, swapping out, preemption
// (a sequence is admitted only when all it may need is left; see trace_run.hpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace switchyard {

/// Geometry of the attention of one model; all layers alike but for their window.
struct AttentionShape {
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t kv_heads = 0;  ///< Divides heads.
  std::size_t head_dim = 0;  ///< Of queries and keys.
  /// Multi-head latent attention, absorbed form: the values of a KV head are the first `latent`
  /// entries of its keys, so one row of head_dim floats is all that is cached. 0: values apart.
  std::size_t latent = 0;
  bool interleaved = false;  ///< Rotation pairs (2i, 2i + 1) instead of (i, i + half).
  /// [layers] sliding window in tokens, 0: none. Empty: no layer has one.
  std::vector<std::size_t> windows{};
  [[nodiscard]] std::size_t value_dim() const { return latent > 0 ? latent : head_dim; }
  [[nodiscard]] std::size_t window(std::size_t layer) const {
    return windows.empty() ? 0 : windows[layer];
  }
};

struct KvOptions {
  std::size_t block = 16;    ///< Tokens per block, 1 … 65536.
  std::uint64_t memory = 0;  ///< Most bytes of blocks held at once; 0: as much as there is.
};

/// What a pool did. In blocks; a block of a windowed group may be smaller than one of the others.
struct KvLedger {
  std::uint64_t allocated = 0;   ///< Lent, ever.
  std::uint64_t freed = 0;       ///< Given back, ever.
  std::uint64_t live = 0;        ///< Held by sequences now.
  std::uint64_t peak = 0;        ///< Most held at once.
  std::uint64_t live_bytes = 0;  ///< Of the blocks held now.
  std::uint64_t peak_bytes = 0;  ///< Most at once.
};

/// Keys and values of one sequence, all layers. Gives its blocks back when destroyed.
class KvCache {
 public:
  virtual ~KvCache() = default;
  /// Tokens so far; position p of the sequence is its p-th token.
  [[nodiscard]] virtual std::size_t length() const = 0;
  /// Blocks in its tables now, and their bytes: counted from the tables, not from the ledger.
  [[nodiscard]] virtual std::size_t blocks() const = 0;
  [[nodiscard]] virtual std::size_t bytes() const = 0;
};

/// Lends blocks to the sequences of one model. Not thread-safe.
class KvPool {
 public:
  virtual ~KvPool() = default;
  /// An empty sequence. It may outlive the pool object.
  [[nodiscard]] virtual std::unique_ptr<KvCache> make_cache() = 0;
  [[nodiscard]] virtual KvLedger ledger() const = 0;
  [[nodiscard]] virtual const KvOptions& options() const = 0;
  /// Bytes of blocks that `cache` must be lent before a step that appends `tokens` tokens to it.
  [[nodiscard]] virtual std::uint64_t bytes_to_append(const KvCache& cache,
                                                      std::size_t tokens) const = 0;
  /// The most that a sequence of `tokens` tokens holds at once when no step appends more than
  /// `step` tokens.
  [[nodiscard]] virtual std::uint64_t peak_bytes(std::size_t tokens, std::size_t step) const = 0;
};

}  // namespace switchyard
