// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX-512 F, BW, DQ and VL; called only where paths() lists it.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

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
  using V = __m512;
  static constexpr std::size_t kWidth = 16;
  static constexpr int kParts = 1;
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs = 6;
  static constexpr int kFewRows = 8;
  static constexpr int few_outputs(int rows) { return rows <= 6 ? 4 : 2; }

  static __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static V wide(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static V zero() { return _mm512_setzero_ps(); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const Bf16* p) {
    return wide(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V load(const float* p, std::size_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static V load(const Bf16* p, std::size_t n) {
    return wide(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static V load(const F16* p, std::size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static __m128 halves(const V* s) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(*s), _mm512_extractf32x8_ps(*s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  }
  static float reduce(const V* s) {
    const __m128 four = halves(s);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static __m128 reduce4(const V* a, const V* b, const V* c, const V* d) {
    // Lanes of 128 bits: [a0+a2, a1+a3, b0+b2, b1+b3], then [a, b, c, d].
    const V ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(*a, *b, 0x44), _mm512_shuffle_f32x4(*a, *b, 0xEE));
    const V cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(*c, *d, 0x44), _mm512_shuffle_f32x4(*c, *d, 0xEE));
    V all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4E));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xB1));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all));
  }
};

#include "engine/backend/cpu_path_body.inc"

}  // namespace

const Path kAvx512Path{"avx512", dot, few, Isa::kFewRows, 6, many, packed_floats, sums_floats};

}  // namespace switchyard::cpu
