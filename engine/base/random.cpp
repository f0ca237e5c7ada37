// SPDX-License-Identifier: Apache-2.0
#include "engine/base/random.hpp"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>

namespace switchyard {
namespace {
double to_unit(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53; }
}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint32_t purpose,
                                    const RandomCounter& c) {
  // The purpose enters through the key by a 64-bit mix (SplitMix64 finaliser), so that seeds s and
  // s+1 with different purposes do not collide.
  std::uint64_t k = seed + 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(purpose) + 1);
  k = (k ^ (k >> 30)) * 0xBF58476D1CE4E5B9ULL;
  k = (k ^ (k >> 27)) * 0x94D049BB133111EBULL;
  k ^= k >> 31;
  using Generator = r123::Philox4x32;
  const Generator::ctr_type counter{{c.sequence, c.layer, c.position, c.expert}};
  const Generator::key_type key{
      {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)}};
  const Generator::ctr_type out = Generator{}(counter, key);
  return {out[0], out[1], out[2], out[3]};
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
