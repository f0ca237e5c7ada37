// SPDX-License-Identifier: Apache-2.0
#include "engine/base/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace switchyard {
namespace {

/// Philox4x32-10 written from the paper (Salmon et al., SC11, section 3.3), independent of
/// Random123.
std::array<std::uint32_t, 4> reference_philox(std::array<std::uint32_t, 4> c, std::uint32_t k0,
                                              std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ULL * c[0];
    const std::uint64_t b = 0xCD9E8D57ULL * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Philox, TheReferenceGivesThePublishedAnswers) {
  EXPECT_EQ(reference_philox({0, 0, 0, 0}, 0, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(reference_philox({0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}, 0xffffffffU,
                             0xffffffffU),
            (std::array<std::uint32_t, 4>{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
}

TEST(Philox, IsPhiloxKeyedByTheMixedSeedAndPurpose) {
  const auto mixed = [](std::uint64_t seed, std::uint32_t purpose) {
    std::uint64_t k = seed + 0x9E3779B97F4A7C15ULL * (std::uint64_t{purpose} + 1);
    k = (k ^ (k >> 30)) * 0xBF58476D1CE4E5B9ULL;
    k = (k ^ (k >> 27)) * 0x94D049BB133111EBULL;
    return k ^ (k >> 31);
  };
  for (const std::uint64_t seed : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
    for (const std::uint32_t purpose : {0U, random_purpose("noise")}) {
      const std::uint64_t k = mixed(seed, purpose);
      EXPECT_EQ(philox(seed, purpose, {1, 2, 3, 4}),
                reference_philox({1, 2, 3, 4}, static_cast<std::uint32_t>(k),
                                 static_cast<std::uint32_t>(k >> 32)));
    }
  }
}

TEST(Philox, ChangesWithEveryInput) {
  const std::uint32_t p = random_purpose("noise");
  const std::set<std::uint64_t> values{random_u64(1, p, {1, 2, 3, 4}),
                                       random_u64(2, p, {1, 2, 3, 4}),
                                       random_u64(1, p, {9, 2, 3, 4}),
                                       random_u64(1, p, {1, 9, 3, 4}),
                                       random_u64(1, p, {1, 2, 9, 4}),
                                       random_u64(1, p, {1, 2, 3, 9}),
                                       random_u64(1, random_purpose("gumbel"), {1, 2, 3, 4})};
  EXPECT_EQ(values.size(), 7U);
}

TEST(RandomPurpose, IsTheFnvHashOfItsName) {
  EXPECT_EQ(random_purpose(""), 2166136261U);
  EXPECT_EQ(random_purpose("a"), 0xE40C292CU);  // published FNV-1a 32 test vectors
  EXPECT_EQ(random_purpose("foobar"), 0xBF9CF968U);
}

// 100,000 draws; the bounds are five standard errors of the sample mean and variance.
TEST(Distributions, HaveTheirMeansAndVariances) {
  const std::uint32_t n = 100000;
  const std::uint32_t p = random_purpose("test");
  double u1 = 0, u2 = 0, n1 = 0, n2 = 0, g1 = 0, g2 = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const double u = random_uniform(1, p, {0, 0, 0, i});
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    u1 += u;
    u2 += u * u;
    const double z = random_normal(2, p, {0, 0, 0, i});
    n1 += z;
    n2 += z * z;
    const double g = random_gumbel(3, p, {0, 0, 0, i});
    ASSERT_TRUE(std::isfinite(g));
    g1 += g;
    g2 += g * g;
  }
  const double root = std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(u1 / n, 0.5, 5 * std::sqrt(1.0 / 12) / root);
  EXPECT_NEAR(u2 / n - u1 / n * u1 / n, 1.0 / 12, 5 * std::sqrt(1.0 / 180) / root);
  EXPECT_NEAR(n1 / n, 0.0, 5 / root);
  EXPECT_NEAR(n2 / n, 1.0, 5 * std::sqrt(2.0) / root);
  const double gumbel_variance = std::pow(std::acos(-1.0), 2) / 6;
  EXPECT_NEAR(g1 / n, 0.5772156649, 5 * std::sqrt(gumbel_variance) / root);
  // Fourth central moment of a Gumbel: 5.4 var^2, so var(s^2) = 4.4 var^2 / n.
  EXPECT_NEAR(g2 / n - g1 / n * g1 / n, gumbel_variance,
              5 * gumbel_variance * std::sqrt(4.4) / root);
}

}  // namespace
}  // namespace switchyard

TEST(Philox, EightAtATimeGivesTheUpperHalfOfEach) {
  std::vector<std::uint32_t> sequence, position;
  for (std::uint32_t i = 0; i < 19; ++i) {  // Two blocks of eight and a rest.
    sequence.push_back(0xFFFFFFF0U + i);    // Wraps round.
    position.push_back(i * 0x9E3779B9U);
  }
  std::vector<std::uint64_t> out(sequence.size());
  const std::uint32_t purpose = switchyard::random_purpose("test");
  switchyard::philox_upper(77, purpose, sequence, 5, position, 9, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto w = switchyard::philox(77, purpose, {sequence[i], 5, position[i], 9});
    EXPECT_EQ(out[i], std::uint64_t{w[3]} << 32U | w[2]) << i;
  }
}
