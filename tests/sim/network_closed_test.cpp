// SPDX-License-Identifier: Apache-2.0
// Closed form and algorithms: no SimGrid session is made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/error.hpp"
#include "sim/network/from_scenario.hpp"
#include "sim/network/mixed_fabric.hpp"
#include "tests/sim/network_util.hpp"

namespace switchyard::network {
namespace {

using test::Draw;

/// The definition, pair by pair, in plain arithmetic.
struct Oracle {
  double seconds = 0;  // Without latency.
  std::int64_t alpha_ps = 0;
  std::vector<std::uint64_t> link_bytes;
};
Oracle oracle(const cluster::RouteTable& t, const std::vector<std::uint64_t>& bytes) {
  Oracle o;
  o.link_bytes.assign(t.links(), 0);
  for (std::uint32_t i = 0; i < t.endpoints; ++i) {
    for (std::uint32_t j = 0; j < t.endpoints; ++j) {
      const std::uint64_t b = i == j ? 0 : bytes[t.pair(i, j)];
      for (const std::uint32_t l : t.links_of(i, j)) {
        o.link_bytes[l] += b;
      }
      o.alpha_ps = std::max(o.alpha_ps, b == 0 ? 0 : t.latency(i, j).ps());
    }
  }
  for (std::size_t l = 0; l < t.links(); ++l) {
    o.seconds = std::max(o.seconds, static_cast<double>(o.link_bytes[l]) / t.bandwidth[l]);
  }
  return o;
}

ExchangeResult exchange(Algorithm algorithm, const cluster::RouteTable& t,
                        const std::vector<std::uint64_t>& bytes,
                        const std::vector<SimTime>& ready = {}) {
  NetworkModel model(Model::kBottleneck, algorithm, t);
  ExchangeResult r;
  model.exchange(bytes, ready.empty() ? std::vector<SimTime>(t.endpoints) : ready, r);
  return r;
}

SimTime star_time(std::uint32_t n, std::uint64_t per_pair, double rate, std::int64_t latency_us) {
  const auto routes = test::star(n, rate, SimTime::from_us(latency_us)).routes();
  return exchange(Algorithm::kDirect, routes, test::uniform_matrix(n, per_pair)).duration;
}

TEST(Bottleneck, EightGpusWith256MiBEachAtNvlink4) {
  // 7/8 · 2^28 B / 450 GB/s = 521.957831 us, plus 6 us.
  EXPECT_EQ(star_time(8, (256ULL << 20) / 8, 450e9, 6).ps(), 527957831);
}

TEST(Bottleneck, FluidAllToAllAt400GigabitPerSecond) {
  // (n − 1) · 65,536 B / 50 GB/s = (n − 1) · 1,310,720 ps, plus 2 us.
  EXPECT_EQ(star_time(2, 64 << 10, 50e9, 2).ps(), 3310720);
  EXPECT_EQ(star_time(4, 64 << 10, 50e9, 2).ps(), 5932160);
  EXPECT_EQ(star_time(8, 64 << 10, 50e9, 2).ps(), 11175040);
}

TEST(Bottleneck, StarAt50GigabytePerSecond) {
  EXPECT_NEAR(star_time(8, (256ULL << 20) / 8, 50e9, 5).us(), 4702.620, 0.0005);
  EXPECT_NEAR(star_time(2, (256ULL << 20) / 2, 50e9, 5).us(), 2689.355, 0.0005);
}

// ASTRA-sim, congestion-unaware network backend, unit tests: 50 GiB/s, 500 ns a hop, 1 MiB from NPU
// 1 to 4 of 16. 2^20 B / (50 · 2^30 B/s) = 19,531.25 ns; three hops on the ring, one when fully
// connected; ASTRA-sim truncates to ns.
TEST(Bottleneck, AstraRingAndFullyConnected) {
  cluster::ClusterGraph ring, full;
  for (auto* g : {&ring, &full}) {
    for (int i = 0; i < 16; ++i) {
      g->add_device(fmt::format("npu{}", i), cluster::DeviceKind::kGpu);
    }
  }
  const BytesPerSecond rate{50.0 * (1ULL << 30)};
  for (std::uint32_t i = 0; i < 16; ++i) {
    ring.add_cable(i, (i + 1) % 16, rate, SimTime::from_ns(500));
    for (std::uint32_t j = 0; j < i; ++j) {
      full.add_cable(i, j, rate, SimTime::from_ns(500));
    }
  }
  std::vector<std::uint64_t> bytes(256, 0);
  bytes[1 * 16 + 4] = 1 << 20;
  EXPECT_EQ(exchange(Algorithm::kDirect, ring.routes(), bytes).duration.ps() / 1000, 21031);
  EXPECT_EQ(exchange(Algorithm::kDirect, full.routes(), bytes).duration.ps() / 1000, 20031);
}

void compare_with_oracle(const cluster::RouteTable& t, bool tiered, std::uint64_t seed) {
  BottleneckModel model(t);
  EXPECT_EQ(model.tiered(), tiered);
  Draw draw(seed);
  std::vector<std::uint64_t> links(t.links()), by_list(t.links());
  for (const double density : {0.0, 0.02, 0.3, 1.0}) {
    const auto bytes = test::random_matrix(draw, t.endpoints, density, 1, 1e9);
    const Oracle o = oracle(t, bytes);
    const BottleneckTime r = model.evaluate(bytes, links);
    EXPECT_EQ(links, o.link_bytes) << "density " << density;
    for (std::uint32_t i = 0; i < t.endpoints; ++i) {
      bool takes_part = false;
      for (std::uint32_t j = 0; j < t.endpoints; ++j) {
        takes_part |= i != j && (bytes[t.pair(i, j)] > 0 || bytes[t.pair(j, i)] > 0);
      }
      EXPECT_EQ(model.participants()[i] != 0, takes_part) << i;
    }
    if (r.bytes == 0) {
      EXPECT_EQ(r.duration, SimTime());
      EXPECT_EQ(r.link, kNone);
      EXPECT_EQ(r.straggler, kNone);
      continue;
    }
    EXPECT_EQ(r.alpha.ps(), o.alpha_ps);
    EXPECT_NEAR(static_cast<double>(r.duration.ps() - o.alpha_ps), o.seconds * 1e12, 0.51);
    EXPECT_LE(r.floor, r.duration);
    const auto phases = all_to_all(Algorithm::kDirect, bytes, t.node);
    ASSERT_EQ(phases.size(), 1u);
    const BottleneckTime s = model.evaluate(phases[0], by_list);
    EXPECT_EQ(by_list, links);
    EXPECT_EQ(s.duration, r.duration);
    EXPECT_EQ(s.link, r.link);
    EXPECT_EQ(s.straggler, r.straggler);
    EXPECT_EQ(s.reason, r.reason);
  }
}

bool same(const BottleneckTime& a, const BottleneckTime& b) {
  return a.duration == b.duration && a.alpha == b.alpha && a.floor == b.floor &&
         a.bytes == b.bytes && a.link == b.link && a.straggler == b.straggler &&
         a.reason == b.reason && a.extrapolated == b.extrapolated;
}

/// Copies of one size, there and back, against the matrices of their bytes.
void compare_copies(const cluster::RouteTable& t, std::uint64_t seed) {
  constexpr std::uint64_t kThere = 7600, kBack = 14336;
  BottleneckModel by_copies(t), by_bytes(t);
  ASSERT_TRUE(by_copies.tiered());
  Draw draw(seed);
  const std::uint32_t n = t.endpoints;
  std::vector<std::uint64_t> links(t.links()), expected(t.links());
  for (const double density : {0.0, 0.02, 0.3, 1.0}) {
    std::vector<std::uint32_t> copies(std::size_t{n} * n, 0);
    std::vector<std::uint64_t> there(copies.size(), 0), back(copies.size(), 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      for (std::uint32_t j = 0; j < n; ++j) {
        if (draw.uniform() >= density) continue;
        copies[t.pair(i, j)] = 1 + draw.below(100);
        there[t.pair(i, j)] = copies[t.pair(i, j)] * kThere;
        back[t.pair(j, i)] = copies[t.pair(i, j)] * kBack;
      }
    }
    by_copies.sum_copies(copies);
    for (const bool home : {false, true, false}) {
      const BottleneckTime a = by_copies.evaluate_copies(home ? kBack : kThere, home, links);
      const BottleneckTime b = by_bytes.evaluate(home ? back : there, expected);
      EXPECT_TRUE(same(a, b)) << "density " << density << (home ? ", back" : ", there");
      EXPECT_EQ(links, expected) << "density " << density << (home ? ", back" : ", there");
      EXPECT_TRUE(std::ranges::equal(by_copies.participants(), by_bytes.participants()));
    }
  }
}

TEST(Bottleneck, CopiesOfOneSizeTakeTheTimeOfTheirBytesThereAndBack) {
  compare_copies(test::star(8, 450e9, SimTime::from_us(6)).routes(), 11);
  compare_copies(test::star(13, 450e9, SimTime::from_us(6)).routes(), 12);
  compare_copies(test::two_tier(8, true).routes(), 13);
  compare_copies(test::two_tier(4, false).routes(), 14);  // Links without an owner.
}

TEST(Exchange, OfCopiesIsThatOfTheirBytes) {
  const auto routes = test::two_tier(2, true).routes();
  NetworkModel by_copies(Model::kAuto, Algorithm::kDirect, routes);
  NetworkModel by_bytes(Model::kAuto, Algorithm::kDirect, routes);
  ASSERT_TRUE(by_copies.takes_copies());
  EXPECT_FALSE(NetworkModel(Model::kAuto, Algorithm::kRing, routes).takes_copies());
  Draw draw(15);
  const std::uint32_t n = routes.endpoints;
  for (int run = 0; run < 20; ++run) {
    // Some GPUs take no part; now and then nobody sends, or one is ready long after the others.
    std::vector<std::uint32_t> copies(std::size_t{n} * n, 0);
    std::vector<std::uint64_t> there(copies.size(), 0), back(copies.size(), 0);
    std::vector<SimTime> ready(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      ready[i] = SimTime::from_ps(draw.below(run % 3 == 0 ? 2'000'000'000 : 1000));
      for (std::uint32_t j = 0; j < n; ++j) {
        if (i == j || run == 7 || draw.uniform() > 0.1) continue;
        copies[routes.pair(i, j)] = 1 + draw.below(9);
        there[routes.pair(i, j)] = copies[routes.pair(i, j)] * 100;
        back[routes.pair(j, i)] = copies[routes.pair(i, j)] * 300;
      }
    }
    by_copies.sum_copies(copies);
    for (const bool home : {false, true}) {
      ExchangeResult a, b;
      by_copies.exchange_copies(home ? 300 : 100, home, ready, a);
      by_bytes.exchange(home ? back : there, ready, b);
      EXPECT_EQ(a.start, b.start);
      EXPECT_EQ(a.duration, b.duration);
      EXPECT_EQ(a.end, b.end);
      EXPECT_EQ(a.link_bytes, b.link_bytes);
      EXPECT_EQ(a.participates, b.participates);
      EXPECT_EQ(a.bytes, b.bytes);
      EXPECT_EQ(a.floor, b.floor);
      EXPECT_EQ(a.alpha, b.alpha);
      EXPECT_EQ(a.straggler, b.straggler);
      EXPECT_EQ(a.reason, b.reason);
      EXPECT_EQ(a.last_ready, b.last_ready);
    }
  }
}

TEST(Bottleneck, TierSumsEqualTheDefinition) {
  compare_with_oracle(test::star(8, 450e9, SimTime::from_us(6)).routes(), true, 1);
  compare_with_oracle(test::star(13, 450e9, SimTime::from_us(6)).routes(), true, 2);
  compare_with_oracle(test::two_tier(8, true).routes(), true, 3);
  compare_with_oracle(test::two_tier(4, false).routes(), true, 4);
}

TEST(Bottleneck, TierSumsHoldForServersOfUnequalSizeAndAnyOrderOfGpus) {
  const auto t = test::two_tier(4, true).routes();
  const std::vector<std::uint32_t> uneven{0,  1,  2,  8,  9,  10, 11, 12,
                                          13, 16, 24, 25, 26, 27, 28, 29};
  compare_with_oracle(t.subset(uneven), true, 5);
  std::vector<std::uint32_t> mixed(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    mixed[i] = (i * 11) % 32;
  }
  BottleneckModel straight(t), permuted(t.subset(mixed));
  Draw draw(6);
  const auto bytes = test::random_matrix(draw, 32, 0.4, 1, 1e8);
  std::vector<std::uint64_t> same(bytes.size()), a(t.links()), b(t.links());
  for (std::uint32_t i = 0; i < 32; ++i) {
    for (std::uint32_t j = 0; j < 32; ++j) {
      same[i * 32 + j] = bytes[mixed[i] * 32 + mixed[j]];
    }
  }
  const BottleneckTime x = straight.evaluate(bytes, a), y = permuted.evaluate(same, b);
  EXPECT_EQ(a, b);
  EXPECT_EQ(x.duration, y.duration);
  EXPECT_EQ(x.straggler, mixed[y.straggler]);
}

TEST(Bottleneck, RandomGraphsEqualTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto t = test::random_graph(seed, 9, 4, true).routes();
    compare_with_oracle(t, BottleneckModel(t).tiered(), seed);
  }
}

TEST(Bottleneck, MoreBandwidthIsNeverSlowerAndMoreBytesNeverFaster) {
  Draw draw(7);
  auto bytes = test::random_matrix(draw, 8, 0.6, 1, 1e8);
  const auto slow = test::star(8, 50e9, SimTime::from_us(1)).routes();
  const auto fast = test::star(8, 51e9, SimTime::from_us(1)).routes();
  const SimTime t = exchange(Algorithm::kDirect, slow, bytes).duration;
  EXPECT_LT(exchange(Algorithm::kDirect, fast, bytes).duration, t);
  for (auto& b : bytes) {
    const std::uint64_t before = b;
    b += 1000000;
    EXPECT_GE(exchange(Algorithm::kDirect, slow, bytes).duration, t);
    b = before;
  }
}

TEST(Bottleneck, OneByteTakesAtLeastAPicosecondAndNoBytesNoTime) {
  const auto t = test::star(2, 1e15, SimTime()).routes();
  EXPECT_EQ(exchange(Algorithm::kDirect, t, {0, 1, 0, 0}).duration, SimTime::from_ps(1));
  const ExchangeResult none =
      exchange(Algorithm::kDirect, t, {5, 0, 0, 7}, {SimTime::from_ns(3), SimTime::from_ns(9)});
  EXPECT_EQ(none.duration, SimTime());
  EXPECT_EQ(none.bytes, 0u);
  EXPECT_EQ(none.end, (std::vector<SimTime>{SimTime::from_ns(3), SimTime::from_ns(9)}));
}

TEST(Exchange, StartsWithTheLastParticipantAndLeavesTheOthersAlone) {
  const auto t = test::star(4, 1e9, SimTime::from_us(2)).routes();
  std::vector<std::uint64_t> bytes(16, 0);
  bytes[0 * 4 + 1] = 3000;  // 3 us on the links of 0 and 1.
  bytes[1 * 4 + 0] = 1000;
  const std::vector<SimTime> ready{SimTime::from_us(10), SimTime::from_us(11), SimTime::from_us(50),
                                   SimTime::from_us(0)};
  const ExchangeResult r = exchange(Algorithm::kDirect, t, bytes, ready);
  EXPECT_EQ(r.start, SimTime::from_us(11));
  EXPECT_EQ(r.duration, SimTime::from_us(5));
  EXPECT_EQ(r.end, (std::vector<SimTime>{SimTime::from_us(16), SimTime::from_us(16),
                                         SimTime::from_us(50), SimTime::from_us(0)}));
  EXPECT_EQ(r.bytes, 4000u);
  EXPECT_EQ(t.link_name[r.bottleneck_link], "gpu0>switch");
  EXPECT_EQ(r.straggler, 0u);
  EXPECT_EQ(r.reason, StragglerReason::kLoad);
}

TEST(Exchange, NamesTheReasonOfTheStraggler) {
  const auto t = test::star(3, 1e9, SimTime()).routes();
  std::vector<std::uint64_t> bytes(9, 1000);
  const ExchangeResult late =
      exchange(Algorithm::kDirect, t, bytes, {SimTime(), SimTime::from_us(7), SimTime()});
  EXPECT_EQ(late.straggler, 1u);
  EXPECT_EQ(late.reason, StragglerReason::kLate);
  bytes[2 * 3 + 0] = 9000;
  EXPECT_EQ(exchange(Algorithm::kDirect, t, bytes).reason, StragglerReason::kLoad);

  cluster::ClusterGraph g;
  for (int i = 0; i < 3; ++i) {
    g.add_device(fmt::format("gpu{}", i), cluster::DeviceKind::kGpu);
  }
  const auto hub = g.add_device("hub", cluster::DeviceKind::kSwitch);
  for (std::uint32_t i = 0; i < 3; ++i) {
    g.add_cable(i, hub, BytesPerSecond{i == 2 ? 0.5e9 : 1e9}, SimTime());
  }
  const ExchangeResult link =
      exchange(Algorithm::kDirect, g.routes(), test::uniform_matrix(3, 1000));
  EXPECT_EQ(link.straggler, 2u);
  EXPECT_EQ(link.reason, StragglerReason::kLink);
}

/// Replays the phases: what each GPU holds, by (source, final destination) — the algorithms say
/// which bytes travel, the amounts must allow a delivery.
TEST(Algorithms, DeliverWhatTheMatrixSays) {
  const std::vector<std::uint32_t> node{0, 0, 0, 1, 1, 2, 2, 2};
  Draw draw(8);
  const auto bytes = test::random_matrix(draw, 8, 0.7, 1, 1e6);
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing,
                                    Algorithm::kRingBidirectional, Algorithm::kHierarchical}) {
    std::vector<std::int64_t> net(8, 0);
    for (const Phase& phase : all_to_all(algorithm, bytes, node)) {
      std::map<std::pair<std::uint32_t, std::uint32_t>, int> seen;
      for (const Transfer& t : phase) {
        EXPECT_NE(t.src, t.dst);
        EXPECT_GT(t.bytes, 0u);
        EXPECT_EQ((seen[{t.src, t.dst}]++), 0) << name_of(algorithm);
        net[t.src] -= static_cast<std::int64_t>(t.bytes);
        net[t.dst] += static_cast<std::int64_t>(t.bytes);
      }
    }
    for (std::uint32_t i = 0; i < 8; ++i) {
      std::int64_t expected = 0;
      for (std::uint32_t j = 0; j < 8; ++j) {
        expected += i == j ? 0
                           : static_cast<std::int64_t>(bytes[j * 8 + i]) -
                                 static_cast<std::int64_t>(bytes[i * 8 + j]);
      }
      EXPECT_EQ(net[i], expected) << name_of(algorithm) << ", GPU " << i;
    }
  }
}

std::uint64_t sent_up(const std::vector<Phase>& phases, std::uint32_t n) {
  std::uint64_t sum = 0;
  for (const Phase& phase : phases) {
    for (const Transfer& t : phase) {
      sum += t.src == 0 && t.dst == 1 % n ? t.bytes : 0;
    }
  }
  return sum;
}

TEST(Algorithms, RingLoadsAreThoseOfTheFormulas) {
  for (const std::uint32_t n : {3u, 4u, 5u, 8u, 16u}) {
    const std::uint64_t b = 1000;  // S = n · b.
    const std::vector<std::uint32_t> node(n, 0);
    const auto uniform = test::uniform_matrix(n, b);
    const auto one = all_to_all(Algorithm::kRing, uniform, node);
    EXPECT_EQ(one.size(), n - 1);
    EXPECT_EQ(sent_up(one, n), n * b * (n - 1) / 2);
    const auto two = all_to_all(Algorithm::kRingBidirectional, uniform, node);
    EXPECT_EQ(two.size(), n / 2);
    EXPECT_EQ(sent_up(two, n), n % 2 == 0 ? n * n * b / 8 : (n * n - 1) * b / 8) << n;
  }
  // n = 16: 3.75 times as much one way.
  EXPECT_EQ(16 * 15 / 2 * 8, 3.75 * 16 * 16);
}

TEST(Algorithms, RingPassesEachBlockOnlyAsFarAsItMustGo) {
  std::vector<std::uint64_t> bytes(16, 0);
  bytes[1 * 4 + 3] = 10;  // Two steps: 1 → 2, then 2 → 3.
  const auto phases = all_to_all(Algorithm::kRing, bytes, std::vector<std::uint32_t>(4, 0));
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].size(), 1u);
  EXPECT_EQ(phases[0][0].src, 1u);
  EXPECT_EQ(phases[1][0].src, 2u);
  EXPECT_EQ(phases[1][0].dst, 3u);
}

TEST(Algorithms, BidirectionalRingSplitsTheOppositeBlockAndTwoGpusSendDirectly) {
  std::vector<std::uint64_t> bytes(16, 0);
  bytes[0 * 4 + 2] = 7;
  const auto phases =
      all_to_all(Algorithm::kRingBidirectional, bytes, std::vector<std::uint32_t>(4, 0));
  ASSERT_EQ(phases.size(), 2u);
  ASSERT_EQ(phases[0].size(), 2u);
  EXPECT_EQ(phases[0][0].dst, 1u);
  EXPECT_EQ(phases[0][0].bytes, 3u);
  EXPECT_EQ(phases[0][1].dst, 3u);
  EXPECT_EQ(phases[0][1].bytes, 4u);
  const auto pair =
      all_to_all(Algorithm::kRingBidirectional, std::vector<std::uint64_t>{0, 9, 4, 0},
                 std::vector<std::uint32_t>(2, 0));
  ASSERT_EQ(pair.size(), 1u);
  ASSERT_EQ(pair[0].size(), 2u);
  EXPECT_EQ(pair[0][0].bytes, 9u);
}

TEST(Algorithms, HierarchicalGoesInsideBetweenInside) {
  // GPU 1 (second of server 0) to GPU 4 (third of server 1): 1 → 3, the second there, → 4.
  const std::vector<std::uint32_t> node{0, 0, 1, 1, 1};
  std::vector<std::uint64_t> bytes(25, 0);
  bytes[1 * 5 + 4] = 6;
  bytes[1 * 5 + 0] = 2;
  const auto phases = all_to_all(Algorithm::kHierarchical, bytes, node);
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0][0].dst, 0u);
  EXPECT_EQ(phases[0][0].bytes, 2u);
  EXPECT_EQ(phases[1][0].src, 1u);
  EXPECT_EQ(phases[1][0].dst, 3u);
  EXPECT_EQ(phases[2][0].src, 3u);
  EXPECT_EQ(phases[2][0].dst, 4u);
}

TEST(Algorithms, OneGpuOrNoBytesNeedNoPhase) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing,
                                    Algorithm::kRingBidirectional, Algorithm::kHierarchical}) {
    EXPECT_TRUE(all_to_all(algorithm, std::vector<std::uint64_t>{5}, std::vector<std::uint32_t>{0})
                    .empty());
    EXPECT_TRUE(
        all_to_all(algorithm, std::vector<std::uint64_t>(9, 0), std::vector<std::uint32_t>(3, 0))
            .empty());
  }
}

TEST(Exchange, PhasesAddUpInTimeBytesAndFloor) {
  // Ring of 4 on a star at 1 GB/s, 1000 B a pair, 2 us: phases carry 3000, 2000, 1000 B per link.
  const auto t = test::star(4, 1e9, SimTime::from_us(2)).routes();
  const ExchangeResult r = exchange(Algorithm::kRing, t, test::uniform_matrix(4, 1000));
  EXPECT_EQ(r.duration, SimTime::from_us(3 + 2 + 1 + 3 * 2));
  EXPECT_EQ(r.bytes, 12000u);
  EXPECT_EQ(r.link_bytes, (std::vector<std::uint64_t>(8, 6000)));
  EXPECT_NEAR(r.floor.us(), 6.0, 1e-4);
  EXPECT_LE(r.floor, r.duration);
}

// Claim C21 at 0.512 GB per GPU (claims.md): the fluid values.
/// A star whose hops pay 3 us in the first phase of a call and 0.4 us in the others.
cluster::RouteTable call_star(std::uint32_t n, double rate, double achievable = 1) {
  cluster::ClusterGraph g;
  for (std::uint32_t i = 0; i < n; ++i) {
    g.add_device(fmt::format("gpu{}", i), cluster::DeviceKind::kGpu);
  }
  const std::uint32_t hub = g.add_device("switch", cluster::DeviceKind::kNvSwitch);
  for (std::uint32_t i = 0; i < n; ++i) {
    cluster::Cable c;
    c.a = i;
    c.b = hub;
    c.a_to_b = c.b_to_a = BytesPerSecond{rate * achievable};
    c.latency = SimTime::from_us(3);
    c.phase_latency = SimTime::from_ns(400);
    c.achievable = achievable;
    g.add_cable(c);
  }
  return g.routes();
}

// The start-up of a call is paid once: a ring all-reduce of 8 MB on 8 GPUs at 100 GB/s is 14 phases
// of 1 MB, 10 us each, 6 us before the first and 0.8 us before the other 13.
TEST(Calls, ARingPaysTheStartUpOnceAndThePhaseLatencyAfterIt) {
  const cluster::RouteTable routes = call_star(8, 100e9);
  EXPECT_EQ(routes.latency(0, 5), SimTime::from_us(6));
  EXPECT_EQ(routes.phase_latency(0, 5), SimTime::from_ns(800));
  EXPECT_EQ(routes.phase_latency(3, 3), SimTime());
  NetworkModel model(Model::kAuto, Algorithm::kDirect, routes);
  std::vector<std::uint32_t> members(8);
  std::iota(members.begin(), members.end(), 0U);
  SimTime sum, alpha;
  bool continues = false;
  ExchangeResult r;
  for (const Phase& phase :
       collective(Collective::kAllReduce, CollectiveAlgorithm::kRing, 8000000, members)) {
    std::vector<std::uint64_t> bytes(64, 0);
    for (const Transfer& t : phase) bytes[t.src * 8 + t.dst] += t.bytes;
    model.exchange(bytes, std::vector<SimTime>(8), r, continues);
    sum += r.duration;
    alpha += r.alpha;
    continues = true;
  }
  EXPECT_EQ(sum.ps(), 14 * 10'000'000 + 6'000'000 + 13 * 800'000);
  EXPECT_EQ(alpha.ps(), 6'000'000 + 13 * 800'000);
}

// Ring all-to-all of 4 GPUs: phases of 3, 2 and 1 of 1,000,000 B on each link, one call.
TEST(Calls, PhasesOfAnAllToAllAreOneCall) {
  const auto bytes = test::uniform_matrix(4, 1000000);
  const cluster::RouteTable routes = call_star(4, 100e9);
  const ExchangeResult r = exchange(Algorithm::kRing, routes, bytes);
  EXPECT_EQ(r.duration.ps(), 60'000'000 + 6'000'000 + 2 * 800'000);
  // An exchange that goes on with a call pays the phase latency throughout; direct has one phase.
  NetworkModel model(Model::kBottleneck, Algorithm::kDirect, routes);
  ExchangeResult one;
  model.exchange(bytes, std::vector<SimTime>(4), one);
  EXPECT_EQ(one.duration.ps(), 30'000'000 + 6'000'000);
  model.exchange(bytes, std::vector<SimTime>(4), one, true);
  EXPECT_EQ(one.duration.ps(), 30'000'000 + 800'000);
  // Some of the endpoints keep theirs.
  const std::vector<std::uint32_t> two{3, 1};
  EXPECT_EQ(routes.subset(two).phase_latency(0, 1), SimTime::from_ns(800));
  // Without a phase latency of its own every phase pays the path's.
  const auto plain = test::star(4, 100e9, SimTime::from_us(6)).routes();
  EXPECT_TRUE(plain.phase_latency_ps.empty());
  EXPECT_EQ(exchange(Algorithm::kRing, plain, bytes).duration.ps(), 60'000'000 + 3 * 6'000'000);
}

// 62 % of 450 GB/s: 1 MB to each of 7 others takes 7 MB / 279 GB/s; no model beats 7 MB / 450 GB/s.
TEST(Calls, TheFloorIsAtTheNominalRate) {
  const ExchangeResult r =
      exchange(Algorithm::kDirect, call_star(8, 450e9, 0.62), test::uniform_matrix(8, 1000000));
  EXPECT_NEAR(static_cast<double>(r.duration.ps()), 7e6 / 279e9 * 1e12 + 6e6, 1);
  EXPECT_NEAR(static_cast<double>(r.floor.ps()), 7e6 / 450e9 * 1e12, 1);
  EXPECT_LT(static_cast<double>(r.floor.ps()), 7e6 / 450e9 * 1e12);
}

TEST(FromScenario, LinksGiveExchangesTheirAchievableShare) {
  scenario::Scenario s;
  for (const char* name : {"gpu0", "gpu1"}) {
    scenario::Device d;
    d.name = name;
    s.hardware.gpus.push_back(static_cast<std::uint32_t>(s.hardware.devices.size()));
    s.hardware.devices.push_back(d);
  }
  scenario::Link l;
  l.b = 1;
  l.link_class = scenario::LinkClass::kNvlink4;
  l.bandwidth = BytesPerSecond{100e9};
  l.achievable = 0.5;
  l.latency = SimTime::from_us(3);
  l.phase_latency = SimTime::from_us(1);
  s.hardware.links.push_back(l);
  ExchangeResult r;
  const std::vector<std::uint64_t> bytes{0, 1000000, 0, 0};
  NetworkModel half = make_network(s);
  half.exchange(bytes, std::vector<SimTime>(2), r);
  EXPECT_EQ(r.duration.ps(), 20'000'000 + 3'000'000);
  EXPECT_NEAR(static_cast<double>(r.floor.ps()), 10'000'000, 1);
  half.exchange(bytes, std::vector<SimTime>(2), r, true);
  EXPECT_EQ(r.duration.ps(), 20'000'000 + 1'000'000);
  // Measured links have their start-up and what they reach in the table: 1 MB in 12.5 us, twice.
  s.network.measured.link_class = scenario::LinkClass::kNvlink4;
  s.network.measured.points = {{1000, BytesPerSecond{80e9}}, {1000000, BytesPerSecond{80e9}}};
  NetworkModel table = make_network(s);
  for (const bool continues : {false, true}) {
    table.exchange(bytes, std::vector<SimTime>(2), r, continues);
    EXPECT_EQ(r.duration.ps(), 12'500'000);
  }
}

TEST(MixedFabric, GivesTheFluidValuesOfTheClaim) {
  const auto ms = [](Fabric f, Algorithm a) {
    return fabric_all_to_all(f, a, 512000000).duration.us() / 1000;
  };
  EXPECT_NEAR(ms(Fabric::kMixedServer, Algorithm::kRing), 120.0, 1e-9);       // 3.84 GB / 32 GB/s
  EXPECT_NEAR(ms(Fabric::kNvlinkDomain, Algorithm::kRing), 12.8, 1e-9);       // 3.84 / 300
  EXPECT_NEAR(ms(Fabric::kMixedNic, Algorithm::kHierarchical), 24.24, 1e-9);  // 7 + 10.24 + 7
  EXPECT_NEAR(ms(Fabric::kNvlinkNic, Algorithm::kHierarchical), 11.7333333, 1e-6);
  EXPECT_NEAR(ms(Fabric::kMixedNic, Algorithm::kRing), 153.6, 1e-9);  // 3.84 / 25
  // S·n/8 = 1.024 GB to each neighbour; a GPU with one port sends both through it.
  EXPECT_NEAR(ms(Fabric::kMixedServer, Algorithm::kRingBidirectional), 2 * 1.024e3 / 32, 1e-9);
  EXPECT_NEAR(ms(Fabric::kMixedServer, Algorithm::kDirect), 15.0, 1e-9);        // 0.48 / 32
  EXPECT_NEAR(ms(Fabric::kMixedServer, Algorithm::kHierarchical), 22.0, 1e-9);  // 7 + 8 + 7
  const FabricCell cell = fabric_all_to_all(Fabric::kMixedServer, Algorithm::kRing, 512000000);
  EXPECT_EQ(cell.phases, 15u);
  EXPECT_EQ(cell.busiest_link_bytes, 3840000000u);
  EXPECT_THROW(static_cast<void>(fabric_all_to_all(Fabric::kMixedNic, Algorithm::kRing, 100)),
               InputError);
}

// With the vendor's both-directions figures the claim's ring takes half as long.
TEST(MixedFabric, TakesTheClaimsOwnFiguresAsAnOverride) {
  const FabricRates both{BytesPerSecond{600e9}, BytesPerSecond{64e9}, BytesPerSecond{25e9}};
  EXPECT_NEAR(
      fabric_all_to_all(Fabric::kMixedServer, Algorithm::kRing, 512000000, both).duration.us(),
      60000.0, 1e-6);
}

// The shipped server: one node per group, so hierarchical goes NVLink group, PCIe between, PCIe
// group. b to each of 16 GPUs; a PCIe GPU sends 15 b directly, and 7 + 8 + 7 b hierarchically.
TEST(MixedFabric, TheShippedHardwareHasTwoGroupsForTheHierarchicalExchange) {
  const auto spec = scenario::read_hardware(std::string(SWITCHYARD_SOURCE_DIR) +
                                            "/scenarios/hardware/mixed_16.toml");
  const cluster::ClusterGraph graph = cluster::build_cluster(spec);
  const auto routes = graph.routes();
  constexpr std::uint64_t b = 32000000;  // 1 ms of a PCIe link
  const auto bytes = test::uniform_matrix(16, b);
  const auto of_class = [&](const ExchangeResult& r, cluster::LinkClass wanted) {
    std::uint64_t sum = 0;
    for (std::size_t l = 0; l < r.link_bytes.size(); ++l) {
      if (graph.links()[l].link_class == wanted) sum += r.link_bytes[l];
    }
    return sum;
  };
  const auto direct = exchange(Algorithm::kDirect, routes, bytes);
  const auto ring = exchange(Algorithm::kRing, routes, bytes);
  const auto hierarchical = exchange(Algorithm::kHierarchical, routes, bytes);
  // Each transfer loads a link up and a link down. Direct: 8 GPUs send 7 b each over NVLink; over
  // PCIe 8 send 8 b (to the other group) and 8 send 15 b.
  EXPECT_EQ(of_class(direct, cluster::LinkClass::kNvlink3), 2 * 8 * 7 * b);
  EXPECT_EQ(of_class(direct, cluster::LinkClass::kPcie4), 2 * (8 * 8 + 8 * 15) * b);
  // Hierarchical: the first group's relays hand on 7 of 8 b over NVLink, the second's over PCIe.
  EXPECT_EQ(of_class(hierarchical, cluster::LinkClass::kNvlink3), 2 * 8 * (7 + 7) * b);
  EXPECT_EQ(of_class(hierarchical, cluster::LinkClass::kPcie4), 2 * (8 * 8 + 8 * (7 + 8 + 7)) * b);
  // Paths over PCIe have 2 hops of 5 us. Ring: 15 phases, S (n - 1) / 2 = 120 b on each link.
  EXPECT_EQ(direct.duration, SimTime::from_us(15000 + 10));
  EXPECT_EQ(hierarchical.duration, SimTime::from_us(22000 + 3 * 10));
  EXPECT_EQ(ring.duration, SimTime::from_us(120000 + 15 * 10));
}

TEST(FromScenario, BuildsTheNamedModelOverTheDescribedCluster) {
  scenario::Scenario s;
  s.network.model = scenario::NetworkModelKind::kBottleneck;
  s.network.algorithm = scenario::ExchangeAlgorithm::kRing;
  for (const char* name : {"gpu0", "gpu1"}) {
    scenario::Device d;
    d.name = name;
    s.hardware.gpus.push_back(static_cast<std::uint32_t>(s.hardware.devices.size()));
    s.hardware.devices.push_back(d);
  }
  scenario::Link l;
  l.b = 1;
  l.bandwidth = BytesPerSecond{1e9};
  l.latency = SimTime::from_us(1);
  s.hardware.links.push_back(l);
  NetworkModel model = make_network(s);
  EXPECT_EQ(model.model(), Model::kBottleneck);
  EXPECT_EQ(model.algorithm(), Algorithm::kRing);
  ExchangeResult r;
  model.exchange(std::vector<std::uint64_t>{0, 1000, 0, 0}, std::vector<SimTime>(2), r);
  EXPECT_EQ(r.duration, SimTime::from_us(2));
  // The names of a scenario and of the models are the same list.
  using scenario::ExchangeAlgorithm, scenario::NetworkModelKind;
  EXPECT_STREQ(name_of(model_of(NetworkModelKind::kAuto)), "auto");
  EXPECT_STREQ(name_of(model_of(NetworkModelKind::kFlow)), "flow");
  EXPECT_STREQ(name_of(model_of(NetworkModelKind::kCoflow)), "coflow");
  EXPECT_STREQ(name_of(algorithm_of(ExchangeAlgorithm::kDirect)), "direct");
  EXPECT_STREQ(name_of(algorithm_of(ExchangeAlgorithm::kRingBidirectional)), "ring_bidirectional");
  EXPECT_STREQ(name_of(algorithm_of(ExchangeAlgorithm::kHierarchical)), "hierarchical");
}

Activity copy(const char* name, std::uint32_t src, std::uint32_t dst, std::uint64_t bytes,
              SimTime start) {
  Activity a;
  a.name = name;
  a.transfers = {{src, dst, bytes}};
  a.start = start;
  return a;
}

TEST(Exchange, AMeasuredLinkTakesItsCurvesTimeAndSaysWhenItExtrapolates) {
  const auto routes = test::star(4, 100e9, SimTime()).routes();
  // Half the nominal rate at 1 MB, nominal at 4 MB: at 2 MB sqrt(50 · 100) GB/s.
  const MeasuredLinks links{
      MeasuredCurve({{1000000, BytesPerSecond{50e9}}, {4000000, BytesPerSecond{100e9}}}, "test"),
      std::vector<std::uint8_t>(routes.links(), 1)};
  NetworkModel model(Model::kAuto, Algorithm::kDirect, routes, &links);
  ExchangeResult r;
  std::vector<std::uint64_t> bytes(16, 0);
  const auto run = [&](std::uint64_t one) {
    bytes[1] = one;
    model.exchange(bytes, std::vector<SimTime>(4), r);
    return r.duration;
  };
  EXPECT_EQ(run(1000000), SimTime::from_us(20));
  EXPECT_FALSE(r.extrapolated);
  EXPECT_NEAR(run(2000000).us(), 2e6 / std::sqrt(50e9 * 100e9) * 1e6, 1e-6);
  EXPECT_FALSE(r.extrapolated);
  EXPECT_EQ(run(5000000), SimTime::from_us(50));  // 40 us + 1 MB at the nominal rate
  EXPECT_TRUE(r.extrapolated);
  EXPECT_EQ(run(1), SimTime::from_us(20));
  EXPECT_TRUE(r.extrapolated);
  EXPECT_LE(r.floor, r.duration);
  EXPECT_THROW(NetworkModel(Model::kCoflow, Algorithm::kDirect, routes, &links), InputError);
  std::vector<Activity> batch(2);
  batch[0].transfers = batch[1].transfers = {{0, 1, 1000000}};
  EXPECT_THROW(model.run(batch), InputError);
}

TEST(Run, ClosedFormTimesActivitiesThatDoNotMeet) {
  NetworkModel model(Model::kBottleneck, Algorithm::kDirect,
                     test::star(4, 1e9, SimTime::from_us(2)).routes());
  std::vector<Activity> batch{copy("third", 0, 1, 1000, SimTime()),
                              copy("first", 0, 1, 1000, SimTime::from_us(1)),
                              copy("aside", 2, 3, 500000, SimTime())};
  batch[0].after = {1};
  const auto r = model.run(batch);
  EXPECT_EQ(r[1].end, SimTime::from_us(1 + 2 + 1));
  EXPECT_EQ(r[0].start, SimTime::from_us(4));
  EXPECT_EQ(r[0].end, SimTime::from_us(7));
  EXPECT_EQ(r[2].end, SimTime::from_us(502));
}

TEST(Run, ClosedFormRefusesActivitiesThatMeet) {
  NetworkModel model(Model::kBottleneck, Algorithm::kDirect,
                     test::star(3, 1e9, SimTime()).routes());
  const std::vector<Activity> batch{copy("exchange", 0, 1, 5000, SimTime()),
                                    copy("kv copy", 0, 2, 5000, SimTime::from_us(4))};
  try {
    model.run(batch);
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "network.model: exchange and kv copy use link gpu0>switch at the same time; the "
                 "closed form holds only for traffic alone on its links; use model = \"auto\", "
                 "\"coflow\" or \"flow\"");
  }
}

TEST(Run, ReportsWhoWaitsForWhomInADeadlock) {
  NetworkModel model(Model::kAuto, Algorithm::kDirect, test::star(3, 1e9, SimTime()).routes());
  std::vector<Activity> batch{copy("a", 0, 1, 1000, SimTime()), copy("b", 1, 2, 1000, SimTime()),
                              copy("c", 2, 0, 1000, SimTime())};
  batch[1].after = {0, 2};
  batch[2].after = {1};
  try {
    model.run(batch);
    FAIL() << "no error";
  } catch (const DeadlockError& e) {
    EXPECT_STREQ(e.what(),
                 "deadlock in the network model; b waits for c since 1000000 ps; c waits for b "
                 "since 0 ps");
  }
}

}  // namespace
}  // namespace switchyard::network
