// SPDX-License-Identifier: Apache-2.0
// Caches of experts against the answers of others and against all choices there are.
#include "sim/memory/expert_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/capacity.hpp"

namespace switchyard::sim {
namespace {

using Accesses = std::vector<std::vector<std::uint16_t>>;
using Ids = std::vector<std::uint16_t>;

std::string data(const std::string& name) {
  return read_file(std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/" + name);
}

/// [24 layers] accesses of GPT-OSS-20B, four experts a token.
std::vector<Accesses> gpt_oss(const std::string& file) {
  std::vector<Accesses> out(24);
  std::istringstream in(data("residency/" + file));
  for (std::string line; std::getline(in, line);) {
    EXPECT_EQ(line.size(), 96U);
    for (std::size_t l = 0; l < 24; ++l) {
      Ids ids;
      for (std::size_t j = 0; j < 4; ++j) {
        const char c = line[l * 4 + j];
        ids.push_back(static_cast<std::uint16_t>(c <= '9' ? c - '0' : c - 'a' + 10));
      }
      out[l].push_back(ids);
    }
  }
  return out;
}

std::uint64_t hits(CachePolicy policy, const Accesses& accesses, std::uint32_t experts,
                   std::uint32_t slots, const Ids& fill = {}) {
  ExpertCache cache(policy, experts, slots);
  cache.fill(fill);
  std::uint64_t sum = 0;
  for (const Ids& a : accesses) sum += cache.access(a).hits.size();
  return sum;
}

std::uint64_t bound(const Accesses& accesses, std::uint32_t experts, std::uint32_t slots,
                    bool filled = false) {
  std::uint64_t sum = 0;
  for (const std::uint32_t h : belady_hits(accesses, experts, slots, filled)) sum += h;
  return sum;
}

/// Random accesses of 1 … 3 of `experts` experts.
Accesses random_accesses(std::uint64_t seed, std::uint32_t experts, std::size_t n) {
  Accesses out;
  for (std::size_t i = 0; i < n; ++i) {
    Ids ids;
    const auto word = [&](std::uint32_t j) {
      return philox(seed, random_purpose("test"), {static_cast<std::uint32_t>(i), j, 0, 0})[0];
    };
    for (std::uint32_t j = 0; j < 1 + word(99) % 3; ++j) {
      const auto e = static_cast<std::uint16_t>(word(j) % experts);
      if (std::find(ids.begin(), ids.end(), e) == ids.end()) ids.push_back(e);
    }
    out.push_back(ids);
  }
  return out;
}

/// Most hits of all demand policies that may drop what they load: every subset is tried.
std::uint64_t exhaustive(const Accesses& accesses, std::uint32_t slots, std::size_t i,
                         std::uint32_t held) {
  if (i == accesses.size()) return 0;
  std::uint32_t asked = 0;
  for (const std::uint16_t e : accesses[i]) asked |= 1U << e;
  const auto now = static_cast<std::uint64_t>(__builtin_popcount(asked & held));
  const std::uint32_t pool = asked | held;
  std::uint64_t best = 0;
  for (std::uint32_t keep = pool;; keep = (keep - 1) & pool) {
    if (__builtin_popcount(keep) <= static_cast<int>(slots)) {
      best = std::max(best, exhaustive(accesses, slots, i + 1, keep));
    }
    if (keep == 0) break;
  }
  return now + best;
}

}  // namespace

TEST(ExpertCache, CountsTheHitsOfGptOssAsPublished) {
  // Hits of LRU with 4, 8, 16 and 32 slots a layer from cold, as the specification's data state
  // them.
  struct Case {
    const char* file;
    std::uint64_t asked;
    std::uint64_t hits[4];
  };
  for (const Case& c : {Case{"gpt_oss_20b_tulu3_if.txt", 19968, {9137, 13044, 17648, 19359}},
                        Case{"gpt_oss_20b_hs_chemistry.txt", 3936, {1583, 2414, 3152, 3360}}}) {
    const std::vector<Accesses> layers = gpt_oss(c.file);
    std::size_t i = 0;
    for (const std::uint32_t slots : {4U, 8U, 16U, 32U}) {
      std::uint64_t sum = 0, asked = 0, best = 0;
      for (const Accesses& layer : layers) {
        for (const Ids& a : layer) asked += a.size();
        sum += hits(CachePolicy::kLru, layer, 32, slots);
        best += bound(layer, 32, slots);
      }
      EXPECT_EQ(asked, c.asked);
      EXPECT_EQ(sum, c.hits[i]) << c.file << ", " << slots << " slots";
      EXPECT_GE(best, sum);
      ++i;
    }
  }
  // The rates of the specification.
  EXPECT_NEAR(9137.0 / 19968, 0.4576, 5e-5);
  EXPECT_NEAR(13044.0 / 19968, 0.6532, 5e-5);
  EXPECT_NEAR(17648.0 / 19968, 0.8838, 5e-5);
}

TEST(ExpertCache, AgreesWithTheToyTraceOfMoeCacheEval) {
  std::istringstream in(data("residency/moe_cache_eval_toy.csv"));
  std::string line;
  std::getline(in, line);
  std::vector<ExpertCache> layers(3, ExpertCache(CachePolicy::kLru, 4, 2));
  std::uint64_t hits = 0, misses = 0, evictions = 0;
  while (std::getline(in, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream row(line);
    std::uint32_t event = 0, step = 0, layer = 0;
    std::vector<std::uint32_t> rest;
    row >> event >> step >> layer;
    for (std::uint32_t v = 0; row >> v;) rest.push_back(v);
    ASSERT_GE(rest.size(), 3U);
    const Ids asked(rest.begin(), rest.end() - 2);
    const CacheAccess& a = layers[layer].access(asked);
    EXPECT_EQ(a.misses.size(), rest[rest.size() - 2]) << "event " << event;
    EXPECT_EQ(a.hits.size(), rest.back()) << "event " << event;
    hits += a.hits.size();
    misses += a.misses.size();
    evictions += a.evicted.size();
  }
  EXPECT_EQ(hits, 12U);
  EXPECT_EQ(misses, 18U);
  EXPECT_EQ(evictions, 12U);
}

TEST(ExpertCache, DropsTheLeastRecentOrTheLeastFrequent) {
  // 0 is used often and long ago, 1 once and lately.
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
    ExpertCache cache(policy, 4, 2);
    for (int i = 0; i < 3; ++i) cache.access(Ids{0});
    cache.access(Ids{1});
    const CacheAccess a = cache.access(Ids{2});
    EXPECT_EQ(a.misses, Ids{2});
    EXPECT_EQ(a.evicted, Ids{static_cast<std::uint16_t>(policy == CachePolicy::kLru ? 0 : 1)});
    EXPECT_EQ(cache.uses(0), 3U);
  }
}

TEST(ExpertCache, LetsPassWhatFindsNoSlot) {
  ExpertCache cache(CachePolicy::kLru, 8, 2);
  cache.fill(Ids{5, 6});
  const CacheAccess a = cache.access(Ids{6, 0, 1, 2});
  EXPECT_EQ(a.hits, Ids{6});
  EXPECT_EQ(a.misses, (Ids{0, 1, 2}));
  EXPECT_EQ(a.evicted, Ids{5});
  EXPECT_EQ(a.passing, (Ids{1, 2}));
  EXPECT_TRUE(cache.resident(6) && cache.resident(0) && cache.size() == 2);
  ExpertCache none(CachePolicy::kLru, 8, 0);
  EXPECT_EQ(none.access(Ids{3}).passing, Ids{3});
  EXPECT_EQ(none.access(Ids{3}).misses, Ids{3});
}

TEST(ExpertCache, NeverChangesWhenStatic) {
  const Accesses accesses = random_accesses(3, 8, 200);
  ExpertCache cache(CachePolicy::kStatic, 8, 3);
  cache.fill(Ids{1, 4, 7});
  std::uint64_t want = 0, got = 0;
  for (const Ids& a : accesses) {
    for (const std::uint16_t e : a) want += e == 1 || e == 4 || e == 7 ? 1 : 0;
    const CacheAccess& c = cache.access(a);
    got += c.hits.size();
    EXPECT_EQ(c.passing, c.misses);
    EXPECT_TRUE(c.evicted.empty());
    EXPECT_TRUE(cache.prefetch(a).misses.empty());
  }
  EXPECT_EQ(got, want);
  // With free slots as well: a static cache takes nothing in.
  ExpertCache empty(CachePolicy::kStatic, 8, 3);
  EXPECT_EQ(empty.access(Ids{2}).passing, Ids{2});
}

TEST(ExpertCache, PrefetchBringsInTheMostWantedAndSparesWhatIsInUse) {
  ExpertCache cache(CachePolicy::kLru, 8, 3);
  cache.access(Ids{0, 1, 2});
  const CacheAccess p = cache.prefetch(Ids{2, 5, 6, 7}, Ids{1});
  EXPECT_EQ(p.misses, Ids{5});   // over 0; 1 is in use, 2 is wanted
  EXPECT_EQ(p.evicted, Ids{0});  // and then no victim is left
  EXPECT_EQ(cache.access(Ids{5}).hits, Ids{5});
  EXPECT_EQ(cache.uses(5), 1U);
  EXPECT_EQ(cache.uses(6), 0U);
}

TEST(Belady, IsTheBestOfAllChoices) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Accesses accesses = random_accesses(seed, 5, 5);
    for (std::uint32_t slots = 0; slots <= 3; ++slots) {
      EXPECT_EQ(bound(accesses, 5, slots), exhaustive(accesses, slots, 0, 0))
          << "seed " << seed << ", " << slots << " slots";
      std::uint64_t best = 0;
      for (std::uint32_t start = 0; start < 32; ++start) {
        if (__builtin_popcount(start) <= static_cast<int>(slots)) {
          best = std::max(best, exhaustive(accesses, slots, 0, start));
        }
      }
      EXPECT_EQ(bound(accesses, 5, slots, true), best) << "seed " << seed;
    }
  }
}

TEST(Belady, BoundsEveryPolicyAndGrowsWithTheSlots) {
  const Accesses accesses = random_accesses(77, 16, 400);
  std::uint64_t before = 0;
  for (std::uint32_t slots = 0; slots <= 16; ++slots) {
    const std::uint64_t best = bound(accesses, 16, slots);
    EXPECT_GE(best, before);
    before = best;
    EXPECT_GE(best, hits(CachePolicy::kLru, accesses, 16, slots));
    EXPECT_GE(best, hits(CachePolicy::kLfu, accesses, 16, slots));
  }
  // All slots: only the first use of each expert misses.
  std::uint64_t asked = 0;
  for (const Ids& a : accesses) asked += a.size();
  EXPECT_EQ(before, asked - 16);
}

TEST(RealRouting, OverflowsOfDeepSeekV2LiteLawUnderShare) {
  // Whole file as one step without reroute: what an expert is asked beyond C overflows.
  // ceil(CF choices / 64): specification, simulation.md 6. floor: its data.
  std::vector<std::vector<std::uint64_t>> count;
  std::istringstream in(data("placement/deepseek_v2_lite_law.csv"));
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream row(line);
    std::uint64_t layer = 0, expert = 0, n = 0;
    row >> layer >> expert >> n;
    if (expert == 0) count.emplace_back();
    count.back().push_back(n);
  }
  ASSERT_EQ(count.size(), 26U);
  struct Case {
    double factor;
    std::uint64_t share, floor;
  };
  for (const Case& c : {Case{1.0, 280622, 281293}, Case{1.25, 176482, 176892},
                        Case{1.5, 115393, 115629}, Case{2.0, 54923, 55018}}) {
    CapacityPolicy policy;
    policy.rule = CapacityRule::kShare;
    policy.factor = c.factor;
    ScopeCounts scope;
    scope.tokens[0] = 8327;
    scope.sequences[0] = scope.step_sequences = 33;
    const std::uint64_t ceil_c = expert_capacity(policy, scope, 64, 6);
    const auto floor_c = static_cast<std::uint64_t>(c.factor * 8327 * 6 / 64);
    std::uint64_t over_ceil = 0, over_floor = 0;
    for (const auto& layer : count) {
      for (const std::uint64_t n : layer) {
        over_ceil += n > ceil_c ? n - ceil_c : 0;
        over_floor += n > floor_c ? n - floor_c : 0;
      }
    }
    EXPECT_EQ(over_ceil, c.share) << c.factor;
    EXPECT_EQ(over_floor, c.floor) << c.factor;
  }
}

}  // namespace switchyard::sim
