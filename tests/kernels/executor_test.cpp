// SPDX-License-Identifier: Apache-2.0
// The host executor: what CUDA's collectives return, and that each fault is found and named.
#include "kernels/host/executor.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda_compat.hpp"

namespace switchyard {
namespace {

using gpu::kAllLanes;

/// Runs `body` in each thread; the fault's text, empty when there was none.
std::string fault_of(unsigned threads, const std::function<void()>& body, std::size_t shared = 0,
                     std::uint64_t blocks = 1) {
  const bool clean = host::run({"test", blocks, 1, threads, shared}, body);
  std::string text = host::take_fault();
  EXPECT_EQ(clean, text.empty());
  return text;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

class HostExecutor : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { host::set_schedule({0xA5, GetParam()}); }
  void TearDown() override { host::set_schedule({}); }
};
INSTANTIATE_TEST_SUITE_P(BothOrders, HostExecutor, testing::Bool());

TEST_P(HostExecutor, ShufflesAsTheHardware) {
  std::array<std::array<unsigned, 64>, 4> got{};
  EXPECT_EQ(fault_of(64,
                     [&] {
                       const unsigned i = gpu::thread_index();
                       got[0][i] = gpu::shuffle(kAllLanes, i, 5);
                       got[1][i] = gpu::shuffle_xor(kAllLanes, i, 3);
                       got[2][i] = gpu::shuffle_up(kAllLanes, i, 2);
                       got[3][i] = gpu::shuffle_down(kAllLanes, i, 30);
                     }),
            "");
  for (unsigned i = 0; i < 64; ++i) {
    const unsigned lane = i % 32;
    EXPECT_EQ(got[0][i], i - lane + 5);
    EXPECT_EQ(got[1][i], i ^ 3U);
    EXPECT_EQ(got[2][i], lane < 2 ? i : i - 2);
    EXPECT_EQ(got[3][i], lane >= 2 ? i : i + 30);
  }
}

TEST_P(HostExecutor, VotesAndMatchesUnderMasks) {
  constexpr unsigned kEven = 0x55555555U;
  std::array<unsigned, 32> votes{};
  std::array<unsigned, 32> peers{};
  EXPECT_EQ(fault_of(32,
                     [&] {
                       const unsigned i = gpu::thread_index();
                       // Even and odd lanes meet in two ballots of their own.
                       votes[i] = gpu::ballot(i % 2 == 0 ? kEven : ~kEven, i < 8);
                       peers[i] = gpu::match_any(kAllLanes, i / 8);
                     }),
            "");
  for (unsigned i = 0; i < 32; ++i) {
    EXPECT_EQ(votes[i], i % 2 == 0 ? 0x55U : 0xAAU);
    EXPECT_EQ(peers[i], 0xFFU << (i / 8 * 8));
  }
}

TEST_P(HostExecutor, CarriesDoublesAndSharesMemoryAcrossTheBarrier) {
  std::vector<double> out(256);
  EXPECT_EQ(fault_of(
                128,
                [&] {
                  SWITCHYARD_SHARED(double, values, 128);
                  SWITCHYARD_DYNAMIC_SHARED(raw);
                  const unsigned i = gpu::thread_index();
                  values[i] = gpu::shuffle_xor(kAllLanes, 0.5 + i, 1);
                  raw[i] = static_cast<unsigned char>(i);
                  gpu::sync_block();
                  out[gpu::block_x() * 128 + i] = values[127 - i] + raw[127 - i];
                },
                128, 2),
            "");
  for (unsigned i = 0; i < 256; ++i) {
    const unsigned j = 127 - i % 128;
    EXPECT_EQ(out[i], 0.5 + (j ^ 1U) + j);
  }
}

// Warps that run in step would hide the missing barrier: both would write before either reads.
TEST_P(HostExecutor, DoesNotKeepWarpsInStep) {
  std::array<unsigned char, 2> seen{};
  EXPECT_EQ(fault_of(64,
                     [&] {
                       SWITCHYARD_SHARED(unsigned char, written, 2);
                       const unsigned warp = gpu::thread_index() / 32;
                       gpu::sync_warp();
                       written[warp] = 1;
                       gpu::sync_warp();
                       seen[warp] = written[1 - warp];
                     }),
            "");
  EXPECT_EQ(seen[GetParam() ? 1 : 0], 0xA5) << "the warp that runs first";
  EXPECT_EQ(seen[GetParam() ? 0 : 1], 1);
}

TEST_P(HostExecutor, CountsByAtomics) {
  std::uint32_t sum = 0;
  EXPECT_EQ(fault_of(
                96, [&] { gpu::atomic_add(&sum, gpu::thread_index()); }, 0, 3),
            "");
  EXPECT_EQ(sum, 3U * 96 * 95 / 2);
}

TEST(HostExecutorMemory, StartsWithThePattern) {
  for (const std::uint8_t fill : {std::uint8_t{0xA5}, std::uint8_t{0x3C}}) {
    host::set_schedule({fill, false});
    std::array<unsigned char, 2> seen{};
    EXPECT_EQ(fault_of(
                  1,
                  [&] {
                    SWITCHYARD_SHARED(unsigned char, bytes, 7);
                    SWITCHYARD_DYNAMIC_SHARED(raw);
                    seen = {bytes[6], raw[3]};
                    bytes[6] = raw[3] = 0;
                  },
                  4, 2),
              "");
    EXPECT_EQ(seen[0], fill);
    EXPECT_EQ(seen[1], fill);
  }
  host::set_schedule({});
}

TEST_P(HostExecutor, ReportsADivergentBarrier) {
  const std::string text = fault_of(64, [] {
    if (gpu::thread_index() < 32) {
      gpu::sync_block();
    } else {
      gpu::sync_block();
    }
  });
  expect_contains(text, "kernel test, block (0, 0): divergent barrier");
  expect_contains(text, "thread 0 (and 31 more) at barrier");
  expect_contains(text, "executor_test.cpp:");
}

TEST_P(HostExecutor, ReportsABarrierThatSomeThreadsLeft) {
  expect_contains(fault_of(64,
                           [] {
                             if (gpu::thread_index() >= 60) {
                               return;
                             }
                             gpu::sync_block();
                           }),
                  "4 of 64 threads have left the kernel");
}

TEST_P(HostExecutor, ReportsALaneThatLeft) {
  expect_contains(fault_of(32,
                           [] {
                             if (gpu::thread_index() == 7) {
                               return;
                             }
                             (void)gpu::ballot(kAllLanes, true);
                           }),
                  "lane 7 has left the kernel");
}

TEST_P(HostExecutor, ReportsMasksThatLackTheCallerOrTheSource) {
  expect_contains(fault_of(32, [] { (void)gpu::ballot(0x7FFFFFFFU, true); }),
                  "the caller is not in the mask");
  expect_contains(fault_of(32,
                           [] {
                             if (gpu::thread_index() < 16) {
                               (void)gpu::shuffle(0xFFFFU, 1U, 20);
                             }
                           }),
                  "reads lane 20 outside the mask");
}

TEST_P(HostExecutor, ReportsThreadsThatWaitForever) {
  expect_contains(fault_of(64,
                           [] {
                             if (gpu::thread_index() % 2 == 0) {
                               gpu::sync_block();
                             } else {
                               gpu::sync_warp();
                             }
                           }),
                  "wait for each other forever");
}

TEST_P(HostExecutor, ReportsWritesBesideSharedMemory) {
  expect_contains(fault_of(32,
                           [] {
                             SWITCHYARD_SHARED(std::uint32_t, values, 8);
                             values[gpu::thread_index() == 0 ? 8 : 1] = 1;
                           }),
                  "behind the shared array of");
  expect_contains(fault_of(
                      32,
                      [] {
                        SWITCHYARD_DYNAMIC_SHARED(raw);
                        raw[8] = 1;
                      },
                      8),
                  "behind the shared array of the launch");
  expect_contains(fault_of(32,
                           [] {
                             SWITCHYARD_SHARED(float, values, 12289);
                             values[0] = 1;
                           }),
                  "bytes of shared memory");
}

TEST_P(HostExecutor, LetsNoExceptionOut) {
  int unwound = 0;
  struct Counter {
    int* n;
    ~Counter() { ++*n; }
  };
  expect_contains(fault_of(32,
                           [&] {
                             const Counter counter{&unwound};
                             if (gpu::thread_index() == 3) {
                               throw std::runtime_error("three");
                             }
                             gpu::sync_block();
                           }),
                  "thread 3 threw: three");
  EXPECT_EQ(unwound, 32);
  expect_contains(fault_of(32, [] { throw 5; }), "threw an unknown exception");
  EXPECT_EQ(fault_of(32, [] { gpu::sync_block(); }), "") << "and runs again after a fault";
}

TEST_P(HostExecutor, RefusesImpossibleLaunches) {
  expect_contains(fault_of(1025, [] {}), "blocks of 1025 threads");
  expect_contains(fault_of(
                      32, [] {}, 0, 0),
                  "launch of 0 x 1 blocks");
  expect_contains(fault_of(
                      32, [] {}, 48 * 1024 + 1),
                  "bytes of shared memory");
  expect_contains(fault_of(1,
                           [] {
                             (void)host::run({"inner", 1, 1, 1, 0}, [] {});
                           }),
                  "a launch inside a kernel");
}

// PTX ISA, mma.m16n8k16: element (row, k) of a by lane and register, against the plain product.
TEST(Mma, MultipliesByTheDocumentedLayout) {
  std::array<std::array<float, 16>, 16> a{};
  std::array<std::array<float, 8>, 16> b{};
  for (unsigned i = 0; i < 16; ++i) {
    for (unsigned j = 0; j < 16; ++j) {
      a[i][j] = static_cast<float>(i * 3 + j * 5 % 7) - 8;
    }
    for (unsigned j = 0; j < 8; ++j) {
      b[i][j] = static_cast<float>(i % 5 + j) - 3;
    }
  }
  const auto pair = [](float low, float high) {
    return (__builtin_bit_cast(std::uint32_t, high) & 0xFFFF0000U) |
           (__builtin_bit_cast(std::uint32_t, low) >> 16);
  };
  std::array<std::array<float, 8>, 16> d{};
  ASSERT_TRUE(host::run({"mma", 1, 1, 32, 0}, [&] {
    const unsigned lane = gpu::thread_index();
    const unsigned g = lane >> 2;
    const unsigned c = lane % 4 * 2;
    host::MmaOperands o{};
    o.a[0] = pair(a[g][c], a[g][c + 1]);
    o.a[1] = pair(a[g + 8][c], a[g + 8][c + 1]);
    o.a[2] = pair(a[g][c + 8], a[g][c + 9]);
    o.a[3] = pair(a[g + 8][c + 8], a[g + 8][c + 9]);
    o.b[0] = pair(b[c][g], b[c + 1][g]);
    o.b[1] = pair(b[c + 8][g], b[c + 9][g]);
    o.d[3] = 1000;
    host::mma(o, {__FILE__, __LINE__});
    d[g][c] = o.d[0];
    d[g][c + 1] = o.d[1];
    d[g + 8][c] = o.d[2];
    d[g + 8][c + 1] = o.d[3];
  }));
  for (unsigned i = 0; i < 16; ++i) {
    for (unsigned j = 0; j < 8; ++j) {
      float sum = i >= 8 && j % 2 == 1 ? 1000.0F : 0.0F;
      for (unsigned k = 0; k < 16; ++k) {
        sum += a[i][k] * b[k][j];
      }
      EXPECT_EQ(d[i][j], sum) << i << ", " << j;
    }
  }
}

TEST(AsyncCopy, ArrivesWhenItsGroupIsWaitedFor) {
  alignas(16) std::array<unsigned char, 32> from{};
  from.fill(7);
  alignas(16) std::array<unsigned char, 32> to{};
  to.fill(1);
  std::array<int, 3> seen{};
  ASSERT_TRUE(host::run({"copy", 1, 1, 1, 0}, [&] {
    host::copy_async(to.data(), from.data(), 16, {__FILE__, __LINE__});
    host::commit_async();
    host::copy_async(to.data() + 16, from.data() + 16, 4, {__FILE__, __LINE__});
    host::commit_async();
    seen[0] = to[0];
    host::wait_async(1);
    seen[1] = to[0] * 10 + to[16];
    host::wait_async(0);
    seen[2] = to[16] * 100 + to[19] * 10 + to[20];
  }));
  EXPECT_EQ(seen[0], 1) << "not before the wait";
  EXPECT_EQ(seen[1], 71) << "the first group, not the second";
  EXPECT_EQ(seen[2], 770) << "4 bytes and zeros";
}

TEST(AsyncCopy, NeverWaitedForOrMisalignedIsAFault) {
  alignas(16) std::array<unsigned char, 32> bytes{};
  EXPECT_FALSE(host::run({"copy", 1, 1, 1, 0}, [&] {
    host::copy_async(bytes.data(), bytes.data() + 16, 16, {__FILE__, __LINE__});
  }));
  EXPECT_NE(host::take_fault().find("thread 0 ended before 1 of its cp.async"), std::string::npos);
  EXPECT_FALSE(host::run({"copy", 1, 1, 1, 0}, [&] {
    host::copy_async(bytes.data() + 8, bytes.data() + 16, 16, {__FILE__, __LINE__});
  }));
  EXPECT_NE(host::take_fault().find("addresses modulo 16: 8 and 0"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
