// SPDX-License-Identifier: Apache-2.0
// Private to the kernels: switchyard::random_u64 (engine/base/random.hpp) on the device, to the
// bit. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once
#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

SWITCHYARD_DEVICE std::uint64_t random_u64(std::uint64_t seed, std::uint32_t purpose,
                                           std::uint32_t sequence, std::uint32_t layer,
                                           std::uint32_t position, std::uint32_t expert) {
  std::uint64_t k = seed + 0x9E3779B97F4A7C15ULL * (std::uint64_t{purpose} + 1);
  k = (k ^ (k >> 30)) * 0xBF58476D1CE4E5B9ULL;
  k = (k ^ (k >> 27)) * 0x94D049BB133111EBULL;
  k ^= k >> 31;
  auto key0 = static_cast<std::uint32_t>(k);
  auto key1 = static_cast<std::uint32_t>(k >> 32);
  std::uint32_t c0 = sequence, c1 = layer, c2 = position, c3 = expert;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<std::uint32_t>(p0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return (std::uint64_t{c1} << 32) | c0;
}

}  // namespace switchyard::gpu
