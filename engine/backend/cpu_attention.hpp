// SPDX-License-Identifier: Apache-2.0
// File: cpu_attention.hpp. Causal attention of the CPU backend over paged keys and values.
//
// Scores are dot products in the order of cpu::dot(), softmax is cpu::softmax() over the positions
// that a row sees, in ascending order, and values are summed with one fused multiply-add per
// position in ascending order. None of these depends on the size of a block, on how rows are
// grouped into units of work, or on the number of threads.
//
// A unit of work: a few consecutive rows of one sequence and the query heads that share one KV head
// (at most kUnitQueries queries), so that a block of keys read once serves all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_kv.hpp"

namespace switchyard::cpu {

/// Queries (rows x heads) of one unit of work.
inline constexpr std::size_t kUnitQueries = 12;

/// out[g][i] = fma(p[g][j], values[j * stride + i], out[g][i]) for j = 0, 1, … n-1, i < width,
/// g < p.size(). Continues what out holds.
void accumulate(std::span<const float* const> p, const float* values, std::size_t n,
                std::size_t width, std::size_t stride, std::span<float* const> out);

class CpuAttention {
 public:
  /// Calls body(i) for i in [0, items), on several threads if `work` multiply-adds are worth it.
  using Share = std::function<void(std::size_t items, std::size_t work,
                                   const std::function<void(std::size_t)>& body)>;

  /// Backend::attention().
  void run(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
           std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
           const AttentionRule& rule, float* out, const Share& share);

 private:
  struct Unit {
    std::size_t row, rows;    // of the step
    std::size_t head, heads;  // query heads
  };
  void prepare_rotation(const AttentionRule& rule, std::size_t last);
  void store(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
             std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
             const AttentionShape& shape);
  void attend(const Unit& unit, std::size_t layer, const float* q, const CpuKvCache& cache,
              std::span<const std::uint32_t> positions, const AttentionRule& rule, float scale,
              float* out) const;

  float rotation_gain_ = 1;
  std::vector<float> frequency_, cosine_, sine_;
  std::vector<float> sinks_;
  std::vector<Unit> units_;
};

}  // namespace switchyard::cpu
