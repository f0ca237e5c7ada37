// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace switchyard {
namespace {

TEST(ThreadPool, RunsEveryItemOnceForAnySizeAndCount) {
  for (const unsigned threads : {1U, 2U, 3U, 7U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const std::size_t count : {0U, 1U, 2U, 5U, 1000U}) {
      std::vector<std::atomic<int>> seen(count);
      pool.for_each(count, [&](std::size_t i) { ++seen[i]; });
      for (const auto& n : seen) {
        ASSERT_EQ(n, 1);
      }
    }
  }
}

TEST(ThreadPool, TheItemsThreadIsItsIndexModuloTheSize) {
  ThreadPool pool(3);
  std::vector<std::thread::id> by(30);
  pool.for_each(30, [&](std::size_t i) { by[i] = std::this_thread::get_id(); });
  EXPECT_EQ(by[0], std::this_thread::get_id());
  for (std::size_t i = 3; i < 30; ++i) {
    EXPECT_EQ(by[i], by[i - 3]);
  }
  EXPECT_NE(by[0], by[1]);
  EXPECT_NE(by[1], by[2]);
}

TEST(ThreadPool, RethrowsTheExceptionOfTheLowestItemAndStaysUsable) {
  for (const unsigned threads : {1U, 4U}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      try {
        pool.for_each(100, [](std::size_t i) {
          if (i % 10 == 7) {
            throw std::runtime_error(std::to_string(i));
          }
        });
        FAIL() << "nothing thrown";
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "7");
      }
      std::atomic<int> done{0};
      pool.for_each(10, [&](std::size_t) { ++done; });
      EXPECT_EQ(done, 10);
    }
  }
}

TEST(ThreadPool, ZeroMeansTheCoresOfThisProcess) { EXPECT_GE(ThreadPool(0).size(), 1U); }

}  // namespace
}  // namespace switchyard
