// SPDX-License-Identifier: Apache-2.0
// Random numbers without state: each value is a pure function of a seed, a purpose and four
// counters, so it does not depend on the order of calls, on threads or on ranks (Philox4x32-10,
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11, through Random123).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace switchyard {

/// What a stream is for; streams of different purposes are independent.
/// Compile-time hash of the purpose's name (FNV-1a, 32 bit).
constexpr std::uint32_t random_purpose(std::string_view name) {
  std::uint32_t h = 2166136261U;
  for (const char c : name) {
    h = (h ^ static_cast<std::uint8_t>(c)) * 16777619U;
  }
  return h;
}

/// Counters of one draw; the meaning of the fields is the caller's ("sequence, layer, position,
/// expert" in routing).
struct RandomCounter {
  std::uint32_t sequence = 0;
  std::uint32_t layer = 0;
  std::uint32_t position = 0;
  std::uint32_t expert = 0;
};

/// Four 32-bit words of Philox4x32-10 with key (seed mixed with purpose) and the given counter.
std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint32_t purpose,
                                    const RandomCounter& counter);
/// philox() of many counters that differ in sequence and position, eight at a time: out[i] is the
/// upper half (words 3 and 2) of philox(seed, purpose, {sequence[i], layer, position[i], expert}).
/// All three are of one length.
void philox_upper(std::uint64_t seed, std::uint32_t purpose,
                  std::span<const std::uint32_t> sequence, std::uint32_t layer,
                  std::span<const std::uint32_t> position, std::uint32_t expert,
                  std::span<std::uint64_t> out);
/// 64 random bits.
std::uint64_t random_u64(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter);
/// Uniform in the open interval (0, 1): (53 random bits + 0.5) / 2^53, never 0 or 1.
double random_uniform(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter);
/// Standard normal (Box–Muller on the two 64-bit halves of one draw).
double random_normal(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter);
/// Standard Gumbel, −log(−log U).
double random_gumbel(std::uint64_t seed, std::uint32_t purpose, const RandomCounter& counter);

}  // namespace switchyard
