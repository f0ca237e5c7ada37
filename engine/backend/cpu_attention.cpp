// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu_attention.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"

namespace switchyard::cpu {
namespace {

constexpr std::size_t kMostAhead = 8192;  // bytes fetched ahead of their use

/// accumulate() of G queries and 8 C columns, sums in registers (G * C <= 8 of 16).
template <int G, int C>
inline void accumulate_tile(const float* const* p, const float* values, std::size_t n,
                            std::size_t stride, float* const* out, std::size_t at) {
  __m256 acc[G][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[g][c] = _mm256_loadu_ps(out[g] + at + 8 * c);
    }
  }
  for (std::size_t j = 0; j < n; ++j) {
    __m256 value[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      value[c] = _mm256_loadu_ps(values + j * stride + at + 8 * c);
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const __m256 weight = _mm256_broadcast_ss(p[g] + j);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        acc[g][c] = _mm256_fmadd_ps(weight, value[c], acc[g][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      _mm256_storeu_ps(out[g] + at + 8 * c, acc[g][c]);
    }
  }
}

template <int G, int C>
void accumulate_some(const float* const* p, const float* values, std::size_t n, std::size_t width,
                     std::size_t stride, float* const* out) {
  std::size_t i = 0;
  for (; i + 8 * C <= width; i += 8 * C) {
    accumulate_tile<G, C>(p, values, n, stride, out, i);
  }
  for (; i + 8 <= width; i += 8) {
    accumulate_tile<G, 1>(p, values, n, stride, out, i);
  }
  for (; i < width; ++i) {
    for (int g = 0; g < G; ++g) {
      float sum = out[g][i];
      for (std::size_t j = 0; j < n; ++j) {
        sum = std::fma(p[g][j], values[j * stride + i], sum);
      }
      out[g][i] = sum;
    }
  }
}

/// body(first position of the run, positions, keys of the run, floats before its first row) over
/// [begin, end), block by block. A block's rows lie in a page or two of their own, where the
/// hardware begins to look ahead anew: what the body reads of the next block, `offset` floats after
/// its keys, is fetched meanwhile.
template <class Body>
void for_each_run(const CpuKvCache& cache, std::size_t layer, std::size_t head, std::size_t begin,
                  std::size_t end, std::size_t offset, const Body& body) {
  const std::size_t block = cache.block_tokens();
  const std::size_t d = cache.shape().head_dim;
  float* keys = begin < end ? cache.keys(layer, head, begin) : nullptr;
  for (std::size_t t = begin; t < end;) {
    const std::size_t skip = t % block;
    const std::size_t n = std::min(block - skip, end - t);
    float* const now = keys;
    if (t + n < end) {
      keys = cache.keys(layer, head, t + n);
      const char* ahead = reinterpret_cast<const char*>(keys + offset);
      const std::size_t bytes = std::min(block, end - t - n) * d * sizeof(float);
      for (std::size_t i = 0; i < std::min(bytes, kMostAhead); i += 64) {
        _mm_prefetch(ahead + i, _MM_HINT_T0);
      }
    }
    body(t, n, now, skip * d);
    t += n;
  }
}

}  // namespace

void accumulate(std::span<const float* const> p, const float* values, std::size_t n,
                std::size_t width, std::size_t stride, std::span<float* const> out) {
  std::size_t g = 0;
  for (; g + 4 <= p.size(); g += 4) {
    accumulate_some<4, 2>(p.data() + g, values, n, width, stride, out.data() + g);
  }
  switch (p.size() - g) {
    case 3:
      accumulate_some<3, 2>(p.data() + g, values, n, width, stride, out.data() + g);
      break;
    case 2:
      accumulate_some<2, 4>(p.data() + g, values, n, width, stride, out.data() + g);
      break;
    case 1:
      accumulate_some<1, 4>(p.data() + g, values, n, width, stride, out.data() + g);
      break;
    default:
      break;
  }
}

void CpuAttention::run(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                       std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                       const AttentionRule& rule, float* out, const Share& share) {
  if (rows == 0) {
    return;
  }
  const AttentionShape& shape = static_cast<CpuKvCache*>(caches[0])->shape();
  SWITCHYARD_ASSERT(rule.sliding_window == shape.window(layer), "the window of the KV pool");
  prepare_rotation(rule, *std::max_element(positions.begin(), positions.end()));
  store(layer, q, k, v, rows, caches, positions, shape);
  if (rule.sinks.data != nullptr) {
    sinks_.resize(shape.heads);
    widen(rule.sinks, 0, shape.heads, sinks_.data());
  }
  const std::size_t group = shape.heads / shape.kv_heads;
  const std::size_t together = std::min(group, kUnitQueries);
  const std::size_t tall = together == group ? std::max<std::size_t>(1, kUnitQueries / group) : 1;
  units_.clear();
  std::size_t seen = 0;
  for (std::size_t row = 0; row < rows;) {
    std::size_t n = 1;
    while (n < tall && row + n < rows && caches[row + n] == caches[row]) {
      ++n;
    }
    for (std::size_t head = 0; head < shape.heads; head += group) {
      for (std::size_t j = 0; j < group; j += together) {
        units_.push_back({row, n, head + j, std::min(together, group - j)});
      }
    }
    for (std::size_t r = row; r < row + n; ++r) {
      const std::size_t length = positions[r] + std::size_t{1};
      seen += rule.sliding_window > 0 ? std::min(length, rule.sliding_window) : length;
    }
    row += n;
  }
  const float scale =
      rule.scale > 0 ? rule.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  share(units_.size(), seen * shape.heads * shape.head_dim * 2, [&](std::size_t i) {
    attend(units_[i], layer, q, *static_cast<const CpuKvCache*>(caches[units_[i].row]), positions,
           rule, scale, out);
  });
}

void CpuAttention::store(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                         std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                         const AttentionShape& shape) {
  const std::size_t d = shape.head_dim;
  const std::size_t half = frequency_.size();
  const std::size_t still = d - 2 * half;  // leading entries that are not rotated
  for (std::size_t r = 0; r < rows; ++r) {
    auto& cache = *static_cast<CpuKvCache*>(caches[r]);
    const std::size_t position = positions[r];
    cache.reserve(position + 1);
    const std::size_t at = position % cache.block_tokens() * d;
    const auto rotate = [&](float* head) {
      (shape.interleaved ? rope_interleaved : rope)(
          head + still, 2 * half, cosine_.data() + position * half, sine_.data() + position * half);
    };
    for (std::size_t h = 0; h < shape.heads; ++h) {
      rotate(q + (r * shape.heads + h) * d);
    }
    for (std::size_t h = 0; h < shape.kv_heads; ++h) {
      float* key = k + (r * shape.kv_heads + h) * d;
      rotate(key);
      float* keys = cache.keys(layer, h, position);
      std::copy_n(key, d, keys + at);
      if (shape.latent == 0) {
        std::copy_n(v + (r * shape.kv_heads + h) * d, d, cache.values(keys) + at);
      }
    }
  }
}

void CpuAttention::attend(const Unit& unit, std::size_t layer, const float* q,
                          const CpuKvCache& cache, std::span<const std::uint32_t> positions,
                          const AttentionRule& rule, float scale, float* out) const {
  const AttentionShape& shape = cache.shape();
  const std::size_t d = shape.head_dim;
  const std::size_t width = shape.value_dim();
  const std::size_t kv_head = unit.head / (shape.heads / shape.kv_heads);
  const std::size_t queries = unit.rows * unit.heads;
  const bool sinks = rule.sinks.data != nullptr;
  const auto end_of = [&](std::size_t r) { return positions[unit.row + r] + std::size_t{1}; };
  const auto begin_of = [&](std::size_t r) {
    const std::size_t end = end_of(r);
    return rule.sliding_window > 0 && end > rule.sliding_window ? end - rule.sliding_window : 0;
  };
  const std::size_t begin = begin_of(0);
  const std::size_t end = end_of(unit.rows - 1);
  const std::size_t ld = end - begin + 1;  // one place more, for a sink

  // Queries of the unit in a row: query r * heads + j is row r, head j.
  thread_local std::vector<float> packed;
  thread_local std::vector<float> score;  // [queries][ld]
  const float* mine = q + (unit.row * shape.heads + unit.head) * d;
  if (unit.rows > 1) {
    packed.resize(queries * d);
    for (std::size_t r = 0; r < unit.rows; ++r) {
      std::copy_n(mine + r * shape.heads * d, unit.heads * d, packed.data() + r * unit.heads * d);
    }
    mine = packed.data();
  }
  if (score.size() < queries * ld) {
    score.resize(std::max(queries * ld, score.size() * 2));
  }
  // Scores of positions a row may not see are computed and never read.
  for_each_run(cache, layer, kv_head, begin, end, 0,
               [&](std::size_t t, std::size_t n, const float* keys, std::size_t skip) {
                 linear_block(mine, d, queries, {keys + skip, WeightType::kF32, n, d}, 0, n,
                              score.data() + (t - begin), ld);
               });

  std::array<const float*, kUnitQueries> p{};  // p[query][t - begin]
  std::array<float*, kUnitQueries> to{};
  for (std::size_t r = 0; r < unit.rows; ++r) {
    const std::size_t n = end_of(r) - begin_of(r);
    for (std::size_t j = 0; j < unit.heads; ++j) {
      const std::size_t query = r * unit.heads + j;
      float* own = score.data() + query * ld + (begin_of(r) - begin);
      if (!rule.slopes.empty()) {  // softmax() multiplies by scale
        const float slope = rule.slopes[unit.head + j] / scale;
        for (std::size_t i = 0; i < n; ++i) {
          own[i] -= slope * static_cast<float>(n - 1 - i);
        }
      }
      if (sinks) {
        own[n] = sinks_[unit.head + j] / scale;  // softmax() multiplies by scale
      }
      softmax(own, n + (sinks ? 1 : 0), scale);
      p[query] = score.data() + query * ld;
      to[query] = out + ((unit.row + r) * shape.heads + unit.head + j) * width;
      std::fill_n(to[query], width, 0.0F);
    }
  }
  const std::size_t values_at = shape.latent > 0 ? 0 : cache.block_tokens() * d;
  const auto add_values = [&](std::size_t first, std::size_t count, std::size_t from,
                              std::size_t until) {
    for_each_run(cache, layer, kv_head, from, until, values_at,
                 [&](std::size_t t, std::size_t n, float* keys, std::size_t skip) {
                   std::array<const float*, kUnitQueries> at{};
                   for (std::size_t i = 0; i < count; ++i) {
                     at[i] = p[first + i] + (t - begin);
                   }
                   accumulate({at.data(), count}, cache.values(keys) + skip, n, width, d,
                              {to.data() + first, count});
                 });
  };
  // What all rows see is read once for all of them; before and after it each row has its own part.
  const std::size_t shared_begin = begin_of(unit.rows - 1);
  const std::size_t shared_end = std::max(end_of(0), shared_begin);
  for (std::size_t r = 0; r + 1 < unit.rows; ++r) {
    add_values(r * unit.heads, unit.heads, begin_of(r), std::min(end_of(r), shared_begin));
  }
  add_values(0, queries, shared_begin, std::min(shared_end, end_of(0)));
  for (std::size_t r = 0; r < unit.rows; ++r) {
    add_values(r * unit.heads, unit.heads, std::max(begin_of(r), shared_end), end_of(r));
  }
}

/// Cosines and sines of all positions up to `last`, [position][d/2]. The angle is rounded to
/// float32 as transformers does, its cosine computed in double and rounded once.
void CpuAttention::prepare_rotation(const AttentionRule& rule, std::size_t last) {
  const std::span<const float> inverse_frequency = rule.inverse_frequency;
  const std::size_t half = inverse_frequency.size();
  if (rotation_gain_ != rule.rotation_gain ||
      !std::equal(frequency_.begin(), frequency_.end(), inverse_frequency.begin(),
                  inverse_frequency.end())) {
    frequency_.assign(inverse_frequency.begin(), inverse_frequency.end());
    rotation_gain_ = rule.rotation_gain;
    cosine_.clear();
    sine_.clear();
  }
  for (std::size_t p = half > 0 ? cosine_.size() / half : 0; half > 0 && p <= last; ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * inverse_frequency[i];
      cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * rotation_gain_);
      sine_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * rotation_gain_);
    }
  }
}

}  // namespace switchyard::cpu
