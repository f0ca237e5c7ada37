// SPDX-License-Identifier: Apache-2.0
// Allocator models: places, rounding, fragmentation; then the ledger over them.
#include "sim/memory/allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "sim/memory/ledger.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using run::MemoryCategory;
using scenario::AllocatorKind;

constexpr std::uint64_t kMiB = 1024 * 1024;

}  // namespace

TEST(CachingAllocator, RoundsAsPyTorchDoes) {
  const auto a = make_allocator(AllocatorKind::kCaching, 1024 * kMiB, 0);
  a->allocate(1);  // 512 B of a segment of 2 MiB
  EXPECT_EQ(a->in_use(), 512U);
  EXPECT_EQ(a->reserved(), 2 * kMiB);
  a->allocate(kMiB + 1);  // 1 MiB + 512 B of a segment of 20 MiB
  EXPECT_EQ(a->in_use(), 512 + kMiB + 512);
  EXPECT_EQ(a->reserved(), 22 * kMiB);
  a->allocate(11 * kMiB);  // what is left of the 20 MiB serves it
  EXPECT_EQ(a->reserved(), 22 * kMiB);
  a->allocate(11 * kMiB);  // not twice: a segment of its own, a multiple of 2 MiB
  EXPECT_EQ(a->reserved(), 34 * kMiB);
  // 1 MiB or less of a large block is not split off.
  EXPECT_EQ(a->in_use(), 512 + kMiB + 512 + 11 * kMiB + 12 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestThatFitsAndMergesNeighbours) {
  const auto a = make_allocator(AllocatorKind::kCaching, 100 * kMiB, 0);
  std::vector<BlockAllocator::Id> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(a->allocate(4 * kMiB).value());  // one segment of 20
  EXPECT_EQ(a->reserved(), 20 * kMiB);
  a->free(ids[0]);
  a->free(ids[2]);
  a->free(ids[3]);  // merges with 2: holes of 4 and 8
  EXPECT_EQ(a->allocate(4 * kMiB).value(), ids[0]);
  EXPECT_EQ(a->allocate(8 * kMiB).value(), ids[2]);
  EXPECT_EQ(a->reserved(), 20 * kMiB);
}

TEST(CachingAllocator, FailsWithFreeMemoryLeftAndGivesBackWholeSegmentsFirst) {
  const auto a = make_allocator(AllocatorKind::kCaching, 60 * kMiB, 0);
  std::vector<BlockAllocator::Id> ids;
  for (int i = 0; i < 15; ++i) ids.push_back(a->allocate(4 * kMiB).value());  // three segments
  for (std::size_t i = 0; i < ids.size(); i += 2) a->free(ids[i]);
  EXPECT_EQ(a->in_use(), 28 * kMiB);
  EXPECT_FALSE(a->allocate(12 * kMiB).has_value());  // 32 MiB are free, in pieces of 4 and 8
  EXPECT_LE(a->largest_free(), 8 * kMiB);
  for (const std::size_t i : {1U, 3U}) a->free(ids[i]);  // the first segment is free as a whole
  EXPECT_TRUE(a->allocate(30 * kMiB) == std::nullopt);
  EXPECT_TRUE(a->allocate(20 * kMiB).has_value());
}

TEST(PagedAllocator, LosesOnlyTheRestOfTheLastPage) {
  const auto a = make_allocator(AllocatorKind::kPaged, 10 * kMiB, 2 * kMiB);
  std::vector<BlockAllocator::Id> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(a->allocate(kMiB + 1).value());
  EXPECT_EQ(a->in_use(), 10 * kMiB);
  EXPECT_FALSE(a->allocate(1).has_value());
  a->free(ids[0]);
  a->free(ids[3]);
  EXPECT_TRUE(a->allocate(4 * kMiB).has_value());  // two pages that are no neighbours
}

TEST(BumpAllocator, GivesBackOnlyFromTheTop) {
  const auto a = make_allocator(AllocatorKind::kBump, 10 * kMiB, 0);
  const auto x = a->allocate(4 * kMiB).value(), y = a->allocate(4 * kMiB).value();
  a->free(x);
  EXPECT_EQ(a->reserved(), 8 * kMiB);
  EXPECT_EQ(a->in_use(), 4 * kMiB);
  EXPECT_FALSE(a->allocate(4 * kMiB).has_value());
  a->free(y);
  EXPECT_EQ(a->reserved(), 0U);
  EXPECT_TRUE(a->allocate(10 * kMiB).has_value());
}

TEST(Allocators, KeepTheirBooksOverManyAllocations) {
  for (const AllocatorKind kind :
       {AllocatorKind::kCaching, AllocatorKind::kPaged, AllocatorKind::kBump}) {
    const std::uint64_t capacity = 256 * kMiB;
    const auto a = make_allocator(kind, capacity, 2 * kMiB);
    std::vector<std::pair<BlockAllocator::Id, std::uint64_t>> live;
    std::uint64_t asked = 0;
    for (std::uint32_t i = 0; i < 3000; ++i) {
      const auto word = philox(7, random_purpose("allocator test"), {i, 0, 0, 0});
      if (word[0] % 5 < 3 || live.empty()) {
        const std::uint64_t bytes = 1 + word[1] % (word[2] % 4 == 0 ? 24 * kMiB : kMiB / 2);
        const std::uint64_t largest = a->largest_free();
        if (const auto id = a->allocate(bytes)) {
          EXPECT_TRUE(std::none_of(live.begin(), live.end(),
                                   [&](const auto& l) { return l.first == *id; }));
          live.emplace_back(*id, bytes);
          asked += bytes;
        } else if (bytes >= 10 * kMiB) {
          EXPECT_LT(largest, bytes);  // Smaller blocks need a segment of 2 or 20 MiB.
        }
      } else {
        const std::size_t j = word[1] % live.size();
        a->free(live[j].first);
        asked -= live[j].second;
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(j));
      }
      EXPECT_LE(asked, a->in_use());
      EXPECT_LE(a->in_use(), a->reserved());
      EXPECT_LE(a->reserved(), capacity);
    }
    for (const auto& [id, bytes] : live) a->free(id);
    EXPECT_EQ(a->in_use(), 0U);
  }
}

TEST(Ledger, SaysWhyAnAllocationThatFitsFindsNoPlace) {
  MemoryLedger ledger({60 * kMiB}, 1.0);
  ledger.use_allocator(AllocatorKind::kBump, 0, 0, 0);
  ledger.allocate(0, MemoryCategory::kWeights, 20 * kMiB, 0, 0, "weights");
  ledger.allocate(0, MemoryCategory::kBuffers, 20 * kMiB, 0, 0, "buffers");
  ledger.allocate(0, MemoryCategory::kKv, 10 * kMiB, 0, 0, "pages");
  ledger.release(0, MemoryCategory::kBuffers, 20 * kMiB, 0, 0, "test");
  EXPECT_TRUE(ledger.take_events().empty());
  ledger.allocate(0, MemoryCategory::kExperts, 15 * kMiB, 5, 1, "experts");
  const std::vector<run::Event> events = ledger.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, run::EventKind::kOutOfMemory);
  EXPECT_EQ(events[0].text,
            "experts needs a block of 15.00 MiB: 30.00 MiB of 60.00 MiB are free, the largest free "
            "block is 10.00 MiB (20.00 MiB reserved and not in use); value: bytes reserved and not "
            "in use");
  EXPECT_TRUE(ledger.out_of_memory(0));
  EXPECT_EQ(ledger.live(0), 45 * kMiB);
  ledger.release(0, MemoryCategory::kExperts, 15 * kMiB, 6, 0, "test");
  ledger.release(0, MemoryCategory::kKv, 10 * kMiB, 6, 0, "test");
  EXPECT_EQ(ledger.check(), "");
  EXPECT_EQ(ledger.most_reserved(0).reserved, 50 * kMiB);
  EXPECT_EQ(ledger.most_reserved(0).in_use, 50 * kMiB);
}

TEST(Ledger, GivesBackBlocksAndPartsOfThem) {
  MemoryLedger ledger({100 * kMiB}, 1.0);
  ledger.use_allocator(AllocatorKind::kPaged, kMiB, 8 * kMiB, 2 * kMiB);
  ledger.allocate(0, MemoryCategory::kExperts, 24 * kMiB, 0, 0, "three experts");
  ledger.allocate(0, MemoryCategory::kKv, 5 * kMiB, 0, 0, "pages");
  ledger.release(0, MemoryCategory::kExperts, 8 * kMiB, 0, 0, "test");
  ledger.release(0, MemoryCategory::kKv, 2 * kMiB, 0, 0, "test");
  EXPECT_EQ(ledger.live(0), 19 * kMiB);
  ledger.allocate(0, MemoryCategory::kBuffers, 81 * kMiB, 0, 0, "the rest");
  EXPECT_FALSE(ledger.out_of_memory(0));
}

TEST(AllocatorInARun, ReportsWhatIsReservedAndNotInUse) {
  for (const char* kind : {"caching", "paged", "bump"}) {
    const auto s = test::worked_scenario(
        {R"(workload.routing={ synthetic = "uniform" })", std::string("memory.allocator=") + kind});
    const test::MemoryRun r = test::run_in_memory(s, nullptr);
    EXPECT_TRUE(r.result.violations.empty()) << r.result.violations[0].message;
    double reserved = -1, idle = -1;
    for (const run::Metric& m : r.data.metrics) {
      if (m.name == "memory reserved") reserved = m.value;
      if (m.name == "memory reserved and not in use") idle = m.value;
    }
    std::uint64_t peak = 0;
    for (const std::uint64_t p : r.data.totals.gpu_memory_peak) peak = std::max(peak, p);
    EXPECT_GE(reserved * 1e9, static_cast<double>(peak) - 1) << kind;
    EXPECT_LT(reserved * 1e9, static_cast<double>(peak) + 64.0 * kMiB) << kind;
    EXPECT_GE(idle, 0) << kind;
    EXPECT_LT(idle, 0.5) << kind;
  }
}

TEST(AllocatorInARun, SaysWhatItDoesNotTake) {
  const auto says = [](std::vector<std::string> settings, const char* part) {
    try {
      static_cast<void>(test::worked_scenario(std::move(settings)));
      ADD_FAILURE() << "accepted, not: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  says({"memory.allocator=buddy"}, "buddy");
  says({"memory.page=\"2 MiB\""}, "means nothing");
  says({"memory.allocator=paged", "memory.page=\"0 B\""}, "page");
  says({"memory.allocator=paged", "memory.page=2"}, "no unit");
}

}  // namespace switchyard::sim
