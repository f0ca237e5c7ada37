// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu_kernels.hpp"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"

namespace switchyard::cpu {
namespace {

/// ((s0+s1)+(s2+s3)) + ((s4+s5)+(s6+s7)).
inline float reduce(__m256 s) {
  const __m256 pairs = _mm256_hadd_ps(s, s);
  const __m256 quads = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}

/// Memory of one thread, aligned to cache lines, that only grows.
class Scratch {
 public:
  float* floats(std::size_t n) {
    if (n > size_) {
      size_ = n;
      data_.reset(
          static_cast<float*>(::operator new (n * sizeof(float), std::align_val_t{kCacheLine})));
    }
    return data_.get();
  }

 private:
  static constexpr std::size_t kCacheLine = 64;
  struct Free {
    void operator()(float* p) const { ::operator delete (p, std::align_val_t{kCacheLine}); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<float, Free> data_;
};

/// All ones in the first n <= 8 lanes.
inline __m256 mask_of(std::size_t n) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
inline __m256 load_some(const float* p, std::size_t n) {
  return n == 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, _mm256_castps_si256(mask_of(n)));
}
inline void store_some(float* p, std::size_t n, __m256 v) {
  if (n == 8) {
    _mm256_storeu_ps(p, v);
  } else {
    _mm256_maskstore_ps(p, _mm256_castps_si256(mask_of(n)), v);
  }
}
/// body(i, count) for i = 0, 8, … with count = 8, less at the end.
template <class Body>
inline void for_each_8(std::size_t n, const Body& body) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    body(i, 8);
  }
  if (i < n) {
    body(i, n - i);
  }
}

/// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln(2)/2. A NaN operand comes second in max and min,
/// which then return it.
inline __m256 exp8(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.33F);
  __m256 c = _mm256_max_ps(lowest, x);
  c = _mm256_min_ps(_mm256_set1_ps(88.37F), c);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(c, _mm256_set1_ps(1.44269504088896341F)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375F), c);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4F), r);
  __m256 y = _mm256_set1_ps(1.9875691500e-4F);
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3F));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3F));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2F));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1F));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1F));
  y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0F));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  y = _mm256_mul_ps(y, _mm256_castsi256_ps(power));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), y);
}

/// weighted_sum() of 8 C columns, sums in registers.
template <int C>
inline void weighted_columns(const float* p, const float* values, std::size_t n, std::size_t d,
                             float* out) {
  __m256 acc[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    acc[c] = _mm256_setzero_ps();
  }
  for (std::size_t j = 0; j < n; ++j) {
    const __m256 weight = _mm256_broadcast_ss(p + j);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[c] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(values + j * d + 8 * c), acc[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    _mm256_storeu_ps(out + 8 * c, acc[c]);
  }
}

}  // namespace

std::span<const Path* const> paths() {
  static const std::vector<const Path*> runnable = [] {
    std::vector<const Path*> out;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      out.push_back(&kAvx512Path);
    }
    out.push_back(&kAvx2Path);
    return out;
  }();
  return runnable;
}

const Path& path() {
  static const Path& chosen = []() -> const Path& {
    const char* wanted = std::getenv("SWITCHYARD_CPU_PATH");
    if (wanted == nullptr || *wanted == 0) {
      return *paths().front();
    }
    std::string names;
    for (const Path* p : paths()) {
      if (std::strcmp(p->name, wanted) == 0) {
        return *p;
      }
      names += names.empty() ? p->name : std::string(", ") + p->name;
    }
    throw InputError("SWITCHYARD_CPU_PATH",
                     fmt::format("\"{}\" is no arithmetic path of this processor", wanted),
                     "it has: " + names);
  }();
  return chosen;
}

float dot(const float* a, const float* b, std::size_t n) { return path().dot(a, b, n); }

const void* weight_row(const WeightView& w, std::size_t output) {
  return output < w.rows && !is_packed(w)
             ? static_cast<const std::byte*>(w.data) + output * w.cols * weight_bytes(w.type)
             : nullptr;
}

void linear_block(const float* x, std::size_t ldx, std::size_t rows, const WeightView& w,
                  std::size_t first, std::size_t last, float* out, std::size_t ldo,
                  const void* next) {
  if (first >= last) {
    return;
  }
  if (is_packed(w)) {
    thread_local Scratch wide;
    for (std::size_t n = first; n < last; n += kBlockOutputs) {
      const std::size_t end = std::min(last, n + kBlockOutputs);
      float* rows_of_w = wide.floats(kBlockOutputs * w.cols);
      widen_rows(w, n, end, rows_of_w);
      multiply(path(), {x, ldx, rows, rows_of_w, WeightType::kF32, w.cols, end - n, out + n, ldo});
    }
    return;
  }
  multiply(path(), {x, ldx, rows, weight_row(w, first), w.type, w.cols, last - first, out + first,
                    ldo, next});
}

void multiply(const Path& on, const Product& p) {
  if (p.rows == 0 || p.outputs == 0) {
    return;
  }
  if (p.rows <= on.few_rows) {
    on.few(p);
    return;
  }
  // Weights of a shallow block stay in a near cache, so that passing over them as they are stored
  // costs less than widening them for so few rows.
  constexpr std::size_t kShallow = 512;
  constexpr std::size_t kMostPasses = 4;
  if (p.depth <= kShallow && p.rows <= kMostPasses * on.pass_rows) {
    for (std::size_t r = 0; r < p.rows; r += on.pass_rows) {
      Product some = p;
      some.x += r * p.ldx;
      some.out += r * p.ldo;
      some.rows = std::min(on.pass_rows, p.rows - r);
      on.few(some);
    }
    return;
  }
  thread_local Scratch packed;
  thread_local Scratch sums;
  on.many(p, packed.floats(on.packed_floats(p.outputs, p.depth)),
          sums.floats(on.sums_floats(p.outputs, p.rows, p.depth)));
}

void widen(const WeightView& w, std::size_t offset, std::size_t count, float* out) {
  switch (w.type) {
    case WeightType::kF32:
      std::memcpy(out, static_cast<const std::byte*>(w.data) + offset * 4, count * 4);
      break;
    case WeightType::kBf16: {
      const auto* p = static_cast<const std::byte*>(w.data) + offset * 2;
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half;
        std::memcpy(&half, p + 2 * i, 2);
        const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
        std::memcpy(out + i, &bits, sizeof bits);
      }
      break;
    }
    case WeightType::kF16: {
      const auto* p = static_cast<const std::byte*>(w.data) + offset * 2;
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half;
        std::memcpy(&half, p + 2 * i, 2);
        out[i] = _cvtsh_ss(half);
      }
      break;
    }
    default:
      SWITCHYARD_ASSERT(false, "packed weights widen by rows");
  }
}

void axpy(float a, const float* x, float* y, std::size_t n) {
  const __m256 av = _mm256_set1_ps(a);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(av, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
  for (; i < n; ++i) {
    y[i] = std::fma(a, x[i], y[i]);
  }
}

void swiglu(float* gate, const float* up, std::size_t n) {
  const __m256 one = _mm256_set1_ps(1.0F);
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    const __m256 z = load_some(gate + i, count);
    const __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), z));
    store_some(gate + i, count,
               _mm256_mul_ps(_mm256_div_ps(z, _mm256_add_ps(one, e)), load_some(up + i, count)));
  });
}

void swiglu_clamped(float* gate, const float* up, std::size_t n, float limit) {
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 high = _mm256_set1_ps(limit);
  const __m256 low = _mm256_set1_ps(-limit);
  const __m256 slope = _mm256_set1_ps(-1.702F);
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    // A NaN operand comes second in min and max, which then return it.
    const __m256 z = _mm256_min_ps(high, load_some(gate + i, count));
    const __m256 u = _mm256_min_ps(high, _mm256_max_ps(low, load_some(up + i, count)));
    const __m256 e = exp8(_mm256_mul_ps(slope, z));
    store_some(gate + i, count,
               _mm256_mul_ps(_mm256_div_ps(z, _mm256_add_ps(one, e)), _mm256_add_ps(u, one)));
  });
}

void exponential(float* x, std::size_t n) {
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    store_some(x + i, count, exp8(load_some(x + i, count)));
  });
}

void softmax(float* x, std::size_t n, float scale) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256 lowest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 top = lowest;
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    const __m256 z = _mm256_mul_ps(load_some(x + i, count), factor);
    store_some(x + i, count, z);
    top = _mm256_max_ps(top, _mm256_blendv_ps(lowest, z, mask_of(count)));
  });
  alignas(32) std::array<float, 8> lanes;
  _mm256_store_ps(lanes.data(), top);
  const __m256 highest = _mm256_set1_ps(*std::max_element(lanes.begin(), lanes.end()));
  __m256 sum = _mm256_setzero_ps();
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    __m256 e = exp8(_mm256_sub_ps(load_some(x + i, count), highest));
    e = _mm256_and_ps(e, mask_of(count));
    store_some(x + i, count, e);
    sum = _mm256_add_ps(sum, e);
  });
  const __m256 inverse = _mm256_set1_ps(1.0F / reduce(sum));
  for_each_8(n, [&](std::size_t i, std::size_t count) {
    store_some(x + i, count, _mm256_mul_ps(load_some(x + i, count), inverse));
  });
}

void weighted_sum(const float* p, const float* values, std::size_t n, std::size_t d, float* out) {
  weighted_sum(p, values, n, d, d, out);
}

void weighted_sum(const float* p, const float* values, std::size_t n, std::size_t d,
                  std::size_t stride, float* out) {
  std::size_t i = 0;
  for (; i + 32 <= d; i += 32) {
    weighted_columns<4>(p, values + i, n, stride, out + i);
  }
  for (; i + 8 <= d; i += 8) {
    weighted_columns<1>(p, values + i, n, stride, out + i);
  }
  for (; i < d; ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < n; ++j) {
      sum = std::fma(p[j], values[j * stride + i], sum);
    }
    out[i] = sum;
  }
}

void rope(float* head, std::size_t n, const float* cosine, const float* sine) {
  const std::size_t half = n / 2;
  float* other = head + half;
  for (std::size_t i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = other[i];
    head[i] = a * cosine[i] - b * sine[i];
    other[i] = b * cosine[i] + a * sine[i];
  }
}

void rope_interleaved(float* head, std::size_t n, const float* cosine, const float* sine) {
  for (std::size_t i = 0; i < n / 2; ++i) {
    const float a = head[2 * i];
    const float b = head[2 * i + 1];
    head[2 * i] = a * cosine[i] - b * sine[i];
    head[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace switchyard::cpu
