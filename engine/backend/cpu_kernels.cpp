// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu_kernels.hpp"

#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace switchyard::cpu {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const Bf16* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline __m256 load8(const F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// The first n < 8 elements, the rest zero.
template <class T>
inline __m256 load_tail(const T* p, std::size_t n) {
  std::array<T, 8> padded{};
  std::memcpy(padded.data(), p, n * sizeof(T));
  return load8(padded.data());
}

inline float reduce(__m256 s) {
  const __m256 pairs = _mm256_hadd_ps(s, s);
  const __m256 quads = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}
/// reduce() of four vectors at once, same order of additions.
inline __m128 reduce4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}

/// R rows times N outputs, all sums in registers (R * N <= 12 of 16).
template <int R, int N, class T>
inline void tile(const float* x, std::size_t ldx, const T* w, std::size_t ldw, std::size_t depth,
                 float* out, std::size_t ldo) {
  __m256 acc[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      acc[r][n] = _mm256_setzero_ps();
    }
  }
  std::size_t k = 0;
  for (; k + 8 <= depth; k += 8) {
    __m256 xv[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      xv[r] = load8(x + static_cast<std::size_t>(r) * ldx + k);
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      const __m256 wv = load8(w + static_cast<std::size_t>(n) * ldw + k);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        acc[r][n] = _mm256_fmadd_ps(xv[r], wv, acc[r][n]);
      }
    }
  }
  if (k < depth) {
    const std::size_t rest = depth - k;
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      const __m256 wv = load_tail(w + static_cast<std::size_t>(n) * ldw + k, rest);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        acc[r][n] = _mm256_fmadd_ps(load_tail(x + static_cast<std::size_t>(r) * ldx + k, rest), wv,
                                    acc[r][n]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    float* row = out + static_cast<std::size_t>(r) * ldo;
    int n = 0;
#pragma GCC unroll 3
    for (; n + 4 <= N; n += 4) {
      _mm_storeu_ps(row + n, reduce4(acc[r][n], acc[r][n + 1], acc[r][n + 2], acc[r][n + 3]));
    }
#pragma GCC unroll 12
    for (; n < N; ++n) {
      row[n] = reduce(acc[r][n]);
    }
  }
}

template <int R, int N, class T>
inline void sweep(const float* x, std::size_t ldx, const T* w, std::size_t ldw, std::size_t depth,
                  std::size_t outputs, float* out, std::size_t ldo) {
  std::size_t n = 0;
  for (; n + N <= outputs; n += N) {
    tile<R, N>(x, ldx, w + n * ldw, ldw, depth, out + n, ldo);
  }
  for (; n < outputs; ++n) {
    tile<R, 1>(x, ldx, w + n * ldw, ldw, depth, out + n, ldo);
  }
}

template <class T>
void all_rows(const float* x, std::size_t ldx, std::size_t rows, const T* w, std::size_t ldw,
              std::size_t depth, std::size_t outputs, float* out, std::size_t ldo) {
  std::size_t r = 0;
  for (; r + 3 <= rows; r += 3) {
    sweep<3, 4>(x + r * ldx, ldx, w, ldw, depth, outputs, out + r * ldo, ldo);
  }
  if (rows - r == 2) {
    sweep<2, 4>(x + r * ldx, ldx, w, ldw, depth, outputs, out + r * ldo, ldo);
  } else if (rows - r == 1) {
    sweep<1, 8>(x + r * ldx, ldx, w, ldw, depth, outputs, out + r * ldo, ldo);
  }
}

template <class T>
void linear_typed(const float* x, std::size_t ldx, std::size_t rows, const T* w, std::size_t depth,
                  std::size_t outputs, float* out, std::size_t ldo) {
  if constexpr (!std::is_same_v<T, float>) {
    if (rows > 3) {
      // Several passes over the weights: widen them once.
      thread_local std::vector<float> wide;
      if (wide.size() < outputs * depth) {
        wide.resize(outputs * depth);
      }
      for (std::size_t i = 0; i < outputs * depth; i += 8) {
        const std::size_t rest = outputs * depth - i;
        if (rest >= 8) {
          _mm256_storeu_ps(wide.data() + i, load8(w + i));
        } else {
          alignas(32) std::array<float, 8> last;
          _mm256_store_ps(last.data(), load_tail(w + i, rest));
          std::memcpy(wide.data() + i, last.data(), rest * sizeof(float));
        }
      }
      all_rows(x, ldx, rows, wide.data(), depth, depth, outputs, out, ldo);
      return;
    }
  }
  all_rows(x, ldx, rows, w, depth, depth, outputs, out, ldo);
}

}  // namespace

float dot(const float* a, const float* b, std::size_t n) {
  float out;
  tile<1, 1>(a, n, b, n, n, &out, 1);
  return out;
}

void linear_block(const float* x, std::size_t ldx, std::size_t rows, const WeightView& w,
                  std::size_t first, std::size_t last, float* out, std::size_t ldo) {
  const std::size_t begin = first * w.cols;
  const std::size_t outputs = last - first;
  switch (w.type) {
    case WeightType::kF32:
      linear_typed(x, ldx, rows, static_cast<const float*>(w.data) + begin, w.cols, outputs,
                   out + first, ldo);
      break;
    case WeightType::kBf16:
      linear_typed(x, ldx, rows, static_cast<const Bf16*>(w.data) + begin, w.cols, outputs,
                   out + first, ldo);
      break;
    case WeightType::kF16:
      linear_typed(x, ldx, rows, static_cast<const F16*>(w.data) + begin, w.cols, outputs,
                   out + first, ldo);
      break;
  }
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
  for (std::size_t i = 0; i < n; ++i) {
    gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
  }
}

void rope(float* head, std::size_t n, std::uint32_t position, const float* inverse_frequency) {
  const std::size_t half = n / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inverse_frequency[i];
    const float c = std::cos(angle);
    const float s = std::sin(angle);
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * c - b * s;
    head[i + half] = b * c + a * s;
  }
}

}  // namespace switchyard::cpu
