// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/prefix_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace {

using switchyard::sim::PrefixCache;
using Ids = std::vector<std::uint64_t>;

std::uint32_t compute(PrefixCache& cache, const Ids& ids) {
  std::uint32_t last = PrefixCache::kRoot;
  for (const std::uint64_t id : ids) last = cache.extend(last, id).first;
  return last;
}

}  // namespace

TEST(PrefixCache, ABlockIsOneOnlyBehindTheSameBlocks) {
  PrefixCache cache;
  compute(cache, {1, 2, 3});
  EXPECT_EQ(cache.find(Ids{1, 2, 3, 4}, 9).blocks, 3U);
  EXPECT_EQ(cache.find(Ids{1, 2, 3, 4}, 2).blocks, 2U);
  EXPECT_EQ(cache.find(Ids{2, 3}, 9).blocks, 0U);
  EXPECT_EQ(cache.find(Ids{1, 3}, 9).blocks, 1U);
}

TEST(PrefixCache, CountsUsersAndTellsWhatIsIdle) {
  PrefixCache cache;
  const std::uint32_t a = compute(cache, {1, 2, 3});
  const std::uint32_t b = compute(cache, {1, 2, 4});
  EXPECT_EQ(cache.blocks(), 4U);
  EXPECT_EQ(cache.idle(), 0U);
  EXPECT_TRUE(cache.counts(std::array{a, b}));
  EXPECT_FALSE(cache.counts(std::array{a}));
  cache.release(a);
  EXPECT_EQ(cache.idle(), 1U);
  EXPECT_EQ(cache.find(Ids{1, 2, 3}, 9).idle, 1U);
  EXPECT_TRUE(cache.counts(std::array{b}));
  cache.release(b);
  EXPECT_EQ(cache.idle(), 4U);
  cache.take(a);
  EXPECT_EQ(cache.idle(), 1U);
  EXPECT_TRUE(cache.counts(std::array{a}));
}

TEST(PrefixCache, EvictsTheOldestAndOfOneChainTheLast) {
  PrefixCache cache;
  const std::uint32_t a = compute(cache, {1, 2});
  const std::uint32_t b = compute(cache, {1, 3});
  cache.release(b);
  cache.release(a);
  cache.evict();  // 3: its user left first
  EXPECT_EQ(cache.find(Ids{1, 3}, 9).blocks, 1U);
  EXPECT_EQ(cache.find(Ids{1, 2}, 9).blocks, 2U);
  cache.evict();  // 2 before 1
  EXPECT_EQ(cache.find(Ids{1, 2}, 9).blocks, 1U);
  cache.evict();
  EXPECT_EQ(cache.blocks(), 0U);
  // Places are used again.
  const std::uint32_t c = compute(cache, {5, 6, 7});
  EXPECT_LE(c, 3U);
  EXPECT_TRUE(cache.counts(std::array{c}));
}

TEST(PrefixCache, ABlockComputedTwiceIsToldApart) {
  PrefixCache cache;
  const auto first = cache.extend(PrefixCache::kRoot, 1);
  const auto second = cache.extend(PrefixCache::kRoot, 1);
  EXPECT_TRUE(first.second);
  EXPECT_FALSE(second.second);
  EXPECT_EQ(first.first, second.first);
  EXPECT_EQ(cache.blocks(), 1U);
  cache.release(first.first);
  EXPECT_EQ(cache.idle(), 0U);
  cache.clear();
  EXPECT_EQ(cache.blocks(), 0U);
}
