// SPDX-License-Identifier: Apache-2.0
#include "engine/base/random.hpp"

#include <Random123/philox.h>
#include <immintrin.h>

#include <cmath>
#include <numbers>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

/// The purpose enters through the key by a 64-bit mix (SplitMix64 finaliser), so that seeds s and
/// s+1 with different purposes do not collide.
std::uint64_t key_of(std::uint64_t seed, std::uint32_t purpose) {
  std::uint64_t k = seed + 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(purpose) + 1);
  k = (k ^ (k >> 30)) * 0xBF58476D1CE4E5B9ULL;
  k = (k ^ (k >> 27)) * 0x94D049BB133111EBULL;
  return k ^ (k >> 31);
}

/// Both halves of eight products of 32 bits.
void multiply(__m256i a, __m256i by, __m256i& low, __m256i& high) {
  const __m256i even = _mm256_mul_epu32(a, by);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

double to_unit(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53; }
}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint32_t purpose,
                                    const RandomCounter& c) {
  const std::uint64_t k = key_of(seed, purpose);
  using Generator = r123::Philox4x32;
  const Generator::ctr_type counter{{c.sequence, c.layer, c.position, c.expert}};
  const Generator::key_type key{
      {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)}};
  const Generator::ctr_type out = Generator{}(counter, key);
  return {out[0], out[1], out[2], out[3]};
}

void philox_upper(std::uint64_t seed, std::uint32_t purpose,
                  std::span<const std::uint32_t> sequence, std::uint32_t layer,
                  std::span<const std::uint32_t> position, std::uint32_t expert,
                  std::span<std::uint64_t> out) {
  SWITCHYARD_ASSERT(sequence.size() == out.size() && position.size() == out.size(),
                    "counters of different lengths");
  const auto fill = [](std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); };
  const auto load = [](const std::uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  const std::uint64_t k = key_of(seed, purpose);
  std::size_t i = 0;
  for (; i + 8 <= out.size(); i += 8) {
    __m256i c0 = load(sequence.data() + i), c1 = fill(layer), c2 = load(position.data() + i),
            c3 = fill(expert);
    auto k0 = static_cast<std::uint32_t>(k), k1 = static_cast<std::uint32_t>(k >> 32);
    for (int round = 0; round < 10; ++round) {
      __m256i low0, high0, low1, high1;
      multiply(c0, fill(PHILOX_M4x32_0), low0, high0);
      multiply(c2, fill(PHILOX_M4x32_1), low1, high1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), fill(k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), fill(k1));
      c1 = low1;
      c3 = low0;
      k0 += PHILOX_W32_0;
      k1 += PHILOX_W32_1;
    }
    // Words 2 and 3 side by side, in the order of the counters.
    const __m256i a = _mm256_unpacklo_epi32(c2, c3), b = _mm256_unpackhi_epi32(c2, c3);
    auto* const to = reinterpret_cast<__m256i*>(out.data() + i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, b, 0x31));
  }
  for (; i < out.size(); ++i) {
    const auto w = philox(seed, purpose, {sequence[i], layer, position[i], expert});
    out[i] = static_cast<std::uint64_t>(w[3]) << 32 | w[2];
  }
}

std::uint64_t random_u64(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter) {
  const auto w = philox(seed, purpose, counter);
  return (static_cast<std::uint64_t>(w[1]) << 32) | w[0];
}
double random_uniform(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter) {
  return to_unit(random_u64(seed, purpose, counter));
}
double random_normal(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter) {
  const auto w = philox(seed, purpose, counter);
  const double u = to_unit((static_cast<std::uint64_t>(w[1]) << 32) | w[0]);
  const double v = to_unit((static_cast<std::uint64_t>(w[3]) << 32) | w[2]);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}
double random_gumbel(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter) {
  return -std::log(-std::log(random_uniform(seed, purpose, counter)));
}

}  // namespace switchyard
