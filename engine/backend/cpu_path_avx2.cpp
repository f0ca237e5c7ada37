// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/backend/cpu_path.hpp"

namespace switchyard::cpu {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

struct Isa {
  using V = __m256;
  static constexpr std::size_t kWidth = 8;
  static constexpr int kParts = 2;
  static constexpr int kTileRows = 3;
  static constexpr int kTileOutputs = 4;
  static constexpr int kFewRows = 3;
  static constexpr int few_outputs(int rows) { return rows == 1 ? 4 : 2; }

  static V zero() { return _mm256_setzero_ps(); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load(const Bf16* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static V load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class T>
  static V load(const T* p, std::size_t n) {
    T padded[8] = {};
    std::memcpy(padded, p, n * sizeof(T));
    return load(padded);
  }
  static __m128 halves(const V* s) {
    const V eight = _mm256_add_ps(s[0], s[1]);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  }
  static float reduce(const V* s) {
    const __m128 four = halves(s);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static __m128 reduce4(const V* a, const V* b, const V* c, const V* d) {
    const __m128 va = halves(a);
    const __m128 vb = halves(b);
    const __m128 vc = halves(c);
    const __m128 vd = halves(d);
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(va, vb), _mm_unpackhi_ps(va, vb));
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(vc, vd), _mm_unpackhi_ps(vc, vd));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
  }
};

#include "engine/backend/cpu_path_body.inc"

}  // namespace

const Path kAvx2Path{"avx2",        dot,  few,           Isa::kFewRows,
                     Isa::kFewRows, many, packed_floats, sums_floats};

}  // namespace switchyard::cpu
