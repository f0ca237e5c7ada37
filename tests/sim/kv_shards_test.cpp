// SPDX-License-Identifier: Apache-2.0
// Shards of keys and values between groups of different widths, by hand.
#include "sim/serving/kv_shards.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace switchyard::sim {
namespace {

using Copy = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;  // from, to, bytes

/// Prefill groups begin at GPU 0, decode groups at GPU 100.
std::vector<Copy> copies(std::uint32_t from, std::uint32_t to, std::uint32_t heads,
                         std::uint64_t bytes) {
  std::vector<Copy> out;
  for (const KvTransfer& t : kv_shards({0, from}, {100, to}, heads, bytes)) {
    EXPECT_EQ(t.width, 1U);
    out.emplace_back(t.from, t.to, t.bytes);
  }
  return out;
}

}  // namespace

TEST(KvShards, GroupsOfOneWidthPairOff) {
  EXPECT_EQ(copies(1, 1, 8, 800), (std::vector<Copy>{{0, 100, 800}}));
  EXPECT_EQ(copies(4, 4, 8, 800),
            (std::vector<Copy>{{0, 100, 800}, {1, 101, 800}, {2, 102, 800}, {3, 103, 800}}));
  // Two GPUs for each of the two heads.
  EXPECT_EQ(copies(4, 4, 2, 800),
            (std::vector<Copy>{{0, 100, 800}, {1, 101, 800}, {2, 102, 800}, {3, 103, 800}}));
}

TEST(KvShards, ANarrowerGroupCollectsItsHeads) {
  // Eight heads: a GPU of four has two of them, one of two has four.
  EXPECT_EQ(copies(4, 2, 8, 800),
            (std::vector<Copy>{{0, 100, 400}, {1, 100, 400}, {2, 101, 400}, {3, 101, 400}}));
  EXPECT_EQ(copies(4, 1, 8, 800),
            (std::vector<Copy>{{0, 100, 200}, {1, 100, 200}, {2, 100, 200}, {3, 100, 200}}));
  // Two heads on four GPUs: only one of the two that hold a head is asked.
  EXPECT_EQ(copies(4, 1, 2, 800), (std::vector<Copy>{{0, 100, 400}, {2, 100, 400}}));
  EXPECT_EQ(copies(4, 2, 2, 800), (std::vector<Copy>{{0, 100, 800}, {2, 101, 800}}));
}

TEST(KvShards, AWiderGroupGetsPartsOrTheSameHeadAgain) {
  EXPECT_EQ(copies(1, 4, 8, 200),
            (std::vector<Copy>{{0, 100, 200}, {0, 101, 200}, {0, 102, 200}, {0, 103, 200}}));
  // Two heads: GPUs 0 and 1 of the four hold head 0, which GPU 0 of the two has.
  EXPECT_EQ(copies(2, 4, 2, 200),
            (std::vector<Copy>{{0, 100, 200}, {0, 101, 200}, {1, 102, 200}, {1, 103, 200}}));
}

TEST(KvShards, LatentsGoWholeToEveryGpuFromSendersInTurn) {
  EXPECT_EQ(copies(4, 1, 1, 800), (std::vector<Copy>{{0, 100, 800}}));
  EXPECT_EQ(copies(4, 2, 1, 800), (std::vector<Copy>{{0, 100, 800}, {2, 101, 800}}));
  EXPECT_EQ(copies(2, 4, 1, 800),
            (std::vector<Copy>{{0, 100, 800}, {0, 101, 800}, {1, 102, 800}, {1, 103, 800}}));
}

TEST(KvShards, PartsAddUpWhereTheyDoNotDivide) {
  EXPECT_EQ(copies(4, 1, 4, 7),
            (std::vector<Copy>{{0, 100, 1}, {1, 100, 2}, {2, 100, 2}, {3, 100, 2}}));
  // A sender whose part is less than a byte sends nothing.
  EXPECT_EQ(copies(4, 1, 4, 1), (std::vector<Copy>{{3, 100, 1}}));
}

TEST(KvShards, EveryGpuGetsItsShardFromGpusThatHaveIt) {
  for (const std::uint32_t heads : {1U, 2U, 4U, 8U, 16U}) {
    for (const std::uint32_t from : {1U, 2U, 4U, 8U, 16U}) {
      for (const std::uint32_t to : {1U, 2U, 4U, 8U, 16U}) {
        const std::uint64_t bytes = 960 * 1024;
        std::map<std::uint32_t, std::uint64_t> got;
        std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
        // Heads [first, beyond) of GPU i of a group, in 16ths of all heads.
        const auto span = [&](std::uint32_t tp, std::uint32_t i) {
          const std::uint32_t head = i * heads / tp * 16 / heads;
          return std::pair(head, head + 16 / std::min(tp, heads));
        };
        for (const KvTransfer& t : kv_shards({0, from}, {100, to}, heads, bytes)) {
          got[t.to] += t.bytes;
          EXPECT_TRUE(pairs.insert({t.from, t.to}).second);
          const auto [a, b] = span(from, t.from);
          const auto [c, d] = span(to, t.to - 100);
          const std::uint32_t common = std::min(b, d) - std::max(a, c);
          ASSERT_LT(std::max(a, c), std::min(b, d)) << heads << ' ' << from << ' ' << to;
          EXPECT_EQ(t.bytes, bytes * common / (d - c));
        }
        EXPECT_EQ(got.size(), to);
        for (const auto& [gpu, sum] : got) EXPECT_EQ(sum, bytes);
      }
    }
  }
}

}  // namespace switchyard::sim
