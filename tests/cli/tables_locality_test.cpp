// SPDX-License-Identifier: Apache-2.0
// The table `locality`: reuse, caches and prefetching by hand, in closed form, and the reference
// values of GPT-OSS-20B.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "experiments/tables/locality.hpp"
#include "experiments/tables/routing_excerpts.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::uint16_t>;

fs::path scenarios() { return fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios"; }

ChoiceStream one_layer(std::uint32_t experts, const std::vector<Ids>& tokens,
                       std::vector<std::uint32_t> sequence = {}) {
  ChoiceStream s{"m", "t", experts, static_cast<std::uint32_t>(tokens.front().size()), {}, {}};
  s.sequence = sequence.empty() ? std::vector<std::uint32_t>(tokens.size(), 0) : sequence;
  s.layers = {tokens};
  return s;
}

TEST(Locality, ReuseByHand) {
  // Distances: 0 at t1: 1; 2 at t2: 1; 1 at t3: 3; 0 at t3: 2.
  const Reuse r = reuse(one_layer(4, {{0, 1}, {0, 2}, {2, 3}, {1, 0}}));
  EXPECT_EQ(r.distances, (std::vector<std::uint64_t>{1, 1, 2, 3}));
  EXPECT_EQ(r.first, 4U);
  EXPECT_DOUBLE_EQ(*r.repeat, (0.5 + 0.5 + 0) / 3);
  EXPECT_EQ(r.quantile(0.5), 1U);
  EXPECT_EQ(r.quantile(0.75), 2U);
  EXPECT_EQ(r.quantile(1), 3U);
}

TEST(Locality, AnotherSequenceForgets) {
  const Reuse r = reuse(one_layer(4, {{0, 1}, {0, 1}}, {0, 1}));
  EXPECT_TRUE(r.distances.empty());
  EXPECT_EQ(r.first, 4U);
  EXPECT_FALSE(r.repeat);
  EXPECT_EQ(r.quantile(0.5), 0U);
}

TEST(Locality, CachesByHand) {
  // Two slots of one expert each token: 0 1 2 0 1 2. LRU never hits; Belady keeps 0 and then 1
  // or 2.
  const ChoiceStream s = one_layer(3, {{0}, {1}, {2}, {0}, {1}, {2}});
  const CacheHits h = cache_hits(s, 2);
  EXPECT_EQ(h.accesses, 6U);
  EXPECT_EQ(h.lru, 0U);
  EXPECT_EQ(h.belady, 2U);
  EXPECT_EQ(h.fixed, 4U);               // 0 and 1 stay, from the start
  EXPECT_EQ(cache_hits(s, 3).lru, 3U);  // all but the first three
}

TEST(Locality, GptOssHasTheReferenceHits) {
  const auto streams = streams_of(read_excerpt(scenarios(), "gpt_oss_20b").trace);
  ASSERT_EQ(streams.size(), 2U);
  struct Case {
    const char* text;
    std::uint64_t accesses, hits[4];
    double repeat;
  };
  // derived_reference_values.csv, 4, 8, 16 and 32 slots.
  const Case cases[] = {{"instructions", 19968, {9137, 13044, 17648, 19359}, 0.459793},
                        {"chemistry", 3936, {1583, 2414, 3152, 3360}, 0.412240}};
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(streams[i].text, cases[i].text);
    EXPECT_NEAR(*reuse(streams[i]).repeat, cases[i].repeat, 5e-7);
    for (const std::uint32_t j : {0U, 1U, 2U, 3U}) {
      const CacheHits h = cache_hits(streams[i], 4U << j);
      EXPECT_EQ(h.accesses, cases[i].accesses);
      EXPECT_EQ(h.lru, cases[i].hits[j]) << cases[i].text << ", " << (4U << j) << " slots";
      EXPECT_GE(h.belady, h.lru);
      EXPECT_GE(h.belady, h.lfu);
    }
    // All experts fit: misses are first choices in the sequence, so every policy is the same.
    const CacheHits all = cache_hits(streams[i], 32);
    EXPECT_EQ(all.lru, all.belady);
    EXPECT_EQ(all.fixed, all.accesses);
    EXPECT_EQ(all.accesses - all.lru, reuse(streams[i]).first);
  }
}

/// Layer 1 is a permutation of layer 0, layer 2 of layer 1; layer 0 is drawn evenly.
ChoiceStream permuted(std::uint32_t tokens) {
  ChoiceStream s{"m", "t", 8, 2, std::vector<std::uint32_t>(tokens, 0), {}};
  s.layers.resize(3);
  std::uint64_t state = 7;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const auto draw = [&](std::uint64_t n) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      return static_cast<std::uint16_t>((state >> 33) % n);
    };
    const std::uint16_t a = draw(8);
    const auto b = static_cast<std::uint16_t>((a + 1 + draw(7)) % 8);
    for (auto& layer : s.layers) {
      const auto shift = static_cast<std::uint16_t>(&layer - s.layers.data());
      layer.push_back({static_cast<std::uint16_t>((a + 3 * shift) % 8),
                       static_cast<std::uint16_t>((b + 3 * shift) % 8)});
    }
  }
  return s;
}

TEST(Locality, PrefetchFindsAPermutationAndNothingElse) {
  const ChoiceStream s = permuted(4000);
  for (const std::uint32_t ahead : {1U, 2U}) {
    const PrefetchHits h = prefetch_hits(s, ahead, 2);
    EXPECT_GT(h.from_layer, 0.999) << ahead;
    // The layer itself is even and forgets: two of eight.
    EXPECT_NEAR(h.last_token, 0.25, 0.02) << ahead;
    EXPECT_NEAR(h.most_chosen, 0.25, 0.02) << ahead;
  }
  EXPECT_NEAR(prefetch_hits(s, 1, 4).most_chosen, 0.5, 0.02);
  EXPECT_DOUBLE_EQ(prefetch_hits(s, 1, 8).most_chosen, 1.0);
}

TEST(Locality, PrefetchByTheLastToken) {
  // Tokens alternate in pairs; layer 0 says nothing (always the same).
  ChoiceStream s{"m", "t", 4, 1, {0, 0, 0, 0, 0, 0, 0, 0}, {}};
  s.layers = {{{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}}, {{1}, {1}, {2}, {2}, {3}, {3}, {3}, {3}}};
  const PrefetchHits h = prefetch_hits(s, 1, 1);
  // Scored: tokens 4 to 7. Last token: 2 3 3 3 -> 3 of 4. Most chosen: 1 1 then 1 (tie of 1, 2 and
  // 3 to the lower id), then 3: 1 of 4, the same from layer 0.
  EXPECT_DOUBLE_EQ(h.last_token, 0.75);
  EXPECT_DOUBLE_EQ(h.most_chosen, 0.25);
  EXPECT_DOUBLE_EQ(h.from_layer, 0.25);
}

TEST(Locality, TablesOfAShortStream) {
  const auto tables = locality_tables({permuted(10)});
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_EQ(tables[0].rows.size(), 1U);
  EXPECT_EQ(tables[0].rows[0][10], "3");  // ceil(ln 0.5 / ln 0.75)
  EXPECT_EQ(tables[1].rows.size(), 4U);   // 1, 2, 4, 8 slots
  EXPECT_EQ(tables[2].rows.size(), 4U);   // 1 and 2 ahead, 2 and 4 fetched
  for (const auto& t : tables) {
    for (const auto& row : t.rows) EXPECT_EQ(row.size(), t.columns.size()) << t.name;
  }
}

}  // namespace
}  // namespace switchyard::tables
