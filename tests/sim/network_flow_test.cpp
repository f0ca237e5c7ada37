// SPDX-License-Identifier: Apache-2.0
// SimGrid CM02 against closed numbers and against the max-min oracle. One process per case.
#include <gtest/gtest.h>

#include "tests/sim/network_util.hpp"

namespace switchyard::network {
namespace {

using test::Draw;

SimTime star_time(std::uint32_t n, std::uint64_t per_pair, double rate, std::int64_t latency_us) {
  NetworkModel model(Model::kFlow, Algorithm::kDirect,
                     test::star(n, rate, SimTime::from_us(latency_us)).routes());
  ExchangeResult r;
  model.exchange(test::uniform_matrix(n, per_pair), std::vector<SimTime>(n), r);
  EXPECT_EQ(r.end, std::vector<SimTime>(n, r.duration));
  return r.duration;
}

TEST(Flow, EightGpusWith256MiBEachAtNvlink4) {
  EXPECT_EQ(star_time(8, (256ULL << 20) / 8, 450e9, 6).ps(), 527957831);
}
TEST(Flow, TwoRanksAt400GigabitPerSecond) {
  EXPECT_EQ(star_time(2, 64 << 10, 50e9, 2).ps(), 3310720);
}
TEST(Flow, FourRanksAt400GigabitPerSecond) {
  EXPECT_EQ(star_time(4, 64 << 10, 50e9, 2).ps(), 5932160);
}
TEST(Flow, EightRanksAt400GigabitPerSecond) {
  EXPECT_EQ(star_time(8, 64 << 10, 50e9, 2).ps(), 11175040);
}
TEST(Flow, StarOfEightAt50GigabytePerSecond) {
  EXPECT_NEAR(star_time(8, (256ULL << 20) / 8, 50e9, 5).us(), 4702.620, 0.0005);
}
TEST(Flow, TwoRanksAt50GigabytePerSecond) {
  EXPECT_NEAR(star_time(2, (256ULL << 20) / 2, 50e9, 5).us(), 2689.355, 0.0005);
}

/// A latency inside SimGrid would share the link 5 : 1 between a 2 us and a 10 us path.
TEST(Flow, LatencyDoesNotChangeTheShare) {
  cluster::ClusterGraph g;
  for (int i = 0; i < 3; ++i) {
    g.add_device(fmt::format("gpu{}", i), cluster::DeviceKind::kGpu);
  }
  const auto hub = g.add_device("hub", cluster::DeviceKind::kSwitch);
  g.add_cable(0, hub, BytesPerSecond{1e9}, SimTime());
  g.add_cable(1, hub, BytesPerSecond{1e9}, SimTime::from_us(2));
  g.add_cable(2, hub, BytesPerSecond{1e9}, SimTime::from_us(10));
  NetworkModel model(Model::kFlow, Algorithm::kDirect, g.routes());
  Activity a;
  a.transfers = {{0, 1, 1000000}, {0, 2, 1000000}};
  const auto r = model.run(std::vector<Activity>{a});
  // 0 → 1 runs alone for 8 us (8,000 B), then both at 0.5 GB/s: 2 + 8 + 992,000 · 2 / 1e9 = 1994
  // us; 0 → 2 has 8,000 B left then.
  EXPECT_EQ(r[0].transfer_end[0], SimTime::from_us(1994));
  EXPECT_EQ(r[0].transfer_end[1], SimTime::from_us(2002));
}

/// Sizes over four decades: many changes of rate in the life of the long flows.
TEST(Flow, SparseMatricesOnAStarEqualProgressiveFilling) {
  constexpr std::uint32_t kN = 24;
  const auto routes = test::star(kN, 50e9, SimTime()).routes();
  NetworkModel model(Model::kFlow, Algorithm::kDirect, routes);
  Draw draw(11);
  for (int round = 0; round < 4; ++round) {
    Activity a;
    std::vector<test::OracleFlow> flows;
    for (std::uint32_t i = 0; i < kN; ++i) {
      for (std::uint32_t j = 0; j < kN; ++j) {
        if (i != j && draw.uniform() < 0.15) {
          const auto b = static_cast<std::uint64_t>(std::pow(10.0, draw.between(5, 9)));
          const auto links = routes.links_of(i, j);
          a.transfers.push_back({i, j, b});
          flows.push_back({0, static_cast<double>(b), {links.begin(), links.end()}});
        }
      }
    }
    test::max_min(flows, routes.bandwidth);
    const auto r = model.run(std::vector<Activity>{a});
    for (std::size_t f = 0; f < flows.size(); ++f) {
      const double expected = flows[f].end * 1e12;
      EXPECT_NEAR(static_cast<double>(r[0].transfer_end[f].ps()), expected, expected * 1e-9 + 1)
          << "round " << round << ", flow " << f;
    }
  }
}

class MaxMin : public ::testing::TestWithParam<int> {};

/// Random sparse matrices on random graphs, every pair with its own start; 1e-9 relative, or the
/// half picosecond of rounding at each end.
TEST_P(MaxMin, SimGridEqualsProgressiveFilling) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  const auto gpus = static_cast<std::uint32_t>(4 + GetParam() % 6);
  const auto routes = test::random_graph(seed, gpus, 1 + seed % 4, true).routes();
  NetworkModel model(Model::kFlow, Algorithm::kDirect, routes);
  Draw draw(100 + seed);
  for (int round = 0; round < 6; ++round) {
    std::vector<Activity> batch(3);
    std::vector<test::OracleFlow> flows;
    for (Activity& a : batch) {
      a.start = SimTime::from_us(draw.below(20000));
      for (std::uint32_t e = 0; e < gpus; ++e) {
        a.ready.push_back(SimTime::from_us(draw.below(40000)));
      }
      const auto bytes = test::random_matrix(draw, gpus, 0.35, 1e6, 1e9);
      for (std::uint32_t i = 0; i < gpus; ++i) {
        for (std::uint32_t j = 0; j < gpus; ++j) {
          const std::uint64_t b = bytes[i * gpus + j];
          if (i == j || b == 0) {
            continue;
          }
          a.transfers.push_back({i, j, b});
          const auto links = routes.links_of(i, j);
          const SimTime start = std::max({a.start, a.ready[i], a.ready[j]}) + routes.latency(i, j);
          flows.push_back({start.seconds(), static_cast<double>(b), {links.begin(), links.end()}});
        }
      }
    }
    test::max_min(flows, routes.bandwidth);
    const auto results = model.run(batch);
    std::size_t f = 0;
    for (const ActivityResult& r : results) {
      for (const SimTime end : r.transfer_end) {
        const double expected = flows[f].end * 1e12;
        EXPECT_NEAR(static_cast<double>(end.ps()), expected, expected * 1e-9 + 1)
            << "seed " << seed << ", round " << round << ", flow " << f;
        ++f;
      }
    }
    ASSERT_EQ(f, flows.size());
    ASSERT_GT(f, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(Graphs, MaxMin, ::testing::Range(1, 11));

TEST(Flow, IsNeverFasterThanTheBottleneckAndEqualWhenUniform) {
  constexpr std::uint32_t kN = 8;
  const auto routes = test::star(kN, 50e9, SimTime::from_us(5)).routes();
  NetworkModel flow(Model::kFlow, Algorithm::kDirect, routes);
  NetworkModel closed(Model::kBottleneck, Algorithm::kDirect, routes);
  const std::vector<SimTime> ready(kN);
  ExchangeResult f, b;
  std::vector<double> ratio;
  Draw draw(9);
  for (int round = 0; round < 200; ++round) {
    const double density = draw.between(0.1, 1.0);
    const auto bytes = test::random_matrix(draw, kN, density, 1, 1e9);
    flow.exchange(bytes, ready, f);
    closed.exchange(bytes, ready, b);
    EXPECT_EQ(f.link_bytes, b.link_bytes);
    if (b.bytes == 0) {
      continue;
    }
    EXPECT_GE(static_cast<double>(f.duration.ps()),
              static_cast<double>(b.duration.ps()) * (1 - 1e-9));
    EXPECT_GE(f.duration, f.floor);
    EXPECT_EQ(*std::max_element(f.end.begin(), f.end.end()), f.duration);
    EXPECT_EQ(f.end[f.straggler], f.duration);
    ratio.push_back(f.duration.seconds() / b.duration.seconds());
  }
  std::sort(ratio.begin(), ratio.end());
  fmt::print("flow / bottleneck on a star of 8: median {:.4f}, 95 % {:.4f}, worst {:.4f}, n {}\n",
             ratio[ratio.size() / 2], ratio[ratio.size() * 95 / 100], ratio.back(), ratio.size());
  EXPECT_GT(ratio.back(), 1.0001);  // Max-min fairness is not makespan-optimal.
  for (const std::uint64_t per_pair : {1000ULL, 123456789ULL}) {
    flow.exchange(test::uniform_matrix(kN, per_pair), ready, f);
    closed.exchange(test::uniform_matrix(kN, per_pair), ready, b);
    EXPECT_NEAR(static_cast<double>(f.duration.ps()), static_cast<double>(b.duration.ps()),
                static_cast<double>(b.duration.ps()) * 1e-9);
  }
}

TEST(Flow, LateGpusDelayOnlyTheirOwnPairs) {
  NetworkModel model(Model::kFlow, Algorithm::kDirect,
                     test::star(4, 1e9, SimTime::from_us(1)).routes());
  std::vector<std::uint64_t> bytes(16, 0);
  bytes[0 * 4 + 1] = 2000;
  bytes[2 * 4 + 3] = 2000;
  const std::vector<SimTime> ready{SimTime::from_us(100), SimTime::from_us(101),
                                   SimTime::from_us(100), SimTime::from_us(150)};
  ExchangeResult r;
  model.exchange(bytes, ready, r);
  EXPECT_EQ(r.end, (std::vector<SimTime>{SimTime::from_us(104), SimTime::from_us(104),
                                         SimTime::from_us(153), SimTime::from_us(153)}));
  EXPECT_EQ(r.start, SimTime::from_us(150));
  EXPECT_EQ(r.duration, SimTime::from_us(3));
  EXPECT_EQ(r.straggler, 3u);
  EXPECT_EQ(r.reason, StragglerReason::kLate);
}

TEST(Flow, RunsPhasesOneAfterAnother) {
  const auto routes = test::star(4, 1e9, SimTime::from_us(2)).routes();
  NetworkModel model(Model::kFlow, Algorithm::kRing, routes);
  ExchangeResult r;
  model.exchange(test::uniform_matrix(4, 1000), std::vector<SimTime>(4, SimTime::from_us(7)), r);
  EXPECT_EQ(r.duration, SimTime::from_us(12));  // As in network_closed_test.
  EXPECT_EQ(r.end, std::vector<SimTime>(4, SimTime::from_us(19)));
}

/// The second pass starts at another SimGrid clock and must give the same integers.
TEST(Flow, PaysTheStartUpOfACallOnce) {
  cluster::ClusterGraph g;
  for (const char* name : {"a", "b", "c", "d"}) g.add_device(name, cluster::DeviceKind::kGpu);
  const std::uint32_t hub = g.add_device("switch", cluster::DeviceKind::kNvSwitch);
  for (std::uint32_t i = 0; i < 4; ++i) {
    cluster::Cable c;
    c.a = i;
    c.b = hub;
    c.a_to_b = c.b_to_a = BytesPerSecond{1e9};
    c.latency = SimTime::from_us(1);
    c.phase_latency = SimTime::from_ns(100);
    g.add_cable(c);
  }
  // Phases of 3, 2 and 1 us; 2 us before the first, 0.2 us before the others.
  NetworkModel model(Model::kFlow, Algorithm::kRing, g.routes());
  ExchangeResult r;
  model.exchange(test::uniform_matrix(4, 1000), std::vector<SimTime>(4), r);
  EXPECT_EQ(r.duration.ps(), 6'000'000 + 2'000'000 + 2 * 200'000);
}

TEST(Flow, ASecondPassGivesTheSameBytes) {
  const auto routes = test::random_graph(3, 8, 3, true).routes();
  NetworkModel model(Model::kFlow, Algorithm::kDirect, routes);
  Draw draw(10);
  const auto bytes = test::random_matrix(draw, 8, 0.5, 1, 1e9);
  ExchangeResult a, b;
  model.exchange(bytes, std::vector<SimTime>(8), a);
  model.exchange(bytes, std::vector<SimTime>(8, SimTime::from_us(1234567)), b);
  EXPECT_EQ(a.duration, b.duration);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(a.end[i], b.end[i] - SimTime::from_us(1234567)) << i;
  }
}

TEST(Flow, BytesOfOnePairGivenTwiceAreOneFlow) {
  NetworkModel model(Model::kFlow, Algorithm::kDirect, test::star(3, 1e9, SimTime()).routes());
  Activity a;
  a.transfers = {{0, 1, 1000}, {0, 2, 2000}, {0, 1, 1000}, {1, 1, 99}, {2, 1, 0}};
  const auto r = model.run(std::vector<Activity>{a});
  // Two flows of 2,000 B at 0.5 GB/s each; three flows would end at 3 and 4 us.
  EXPECT_EQ(r[0].transfer_end, (std::vector<SimTime>{SimTime::from_us(4), SimTime::from_us(4),
                                                     SimTime::from_us(4), SimTime(), SimTime()}));
}

TEST(Session, ASecondOneInTheProcessThrows) {
  const auto routes = test::star(2, 1e9, SimTime()).routes();
  NetworkModel first(Model::kFlow, Algorithm::kDirect, routes);
  EXPECT_THROW(NetworkModel(Model::kFlow, Algorithm::kDirect, routes), std::logic_error);
  EXPECT_THROW(NetworkModel(Model::kCoflow, Algorithm::kDirect, routes), std::logic_error);
}

TEST(Session, ADeadlockNamesWhoWaitsForWhomAndEndsTheSession) {
  const auto routes = test::star(3, 1e9, SimTime()).routes();
  ContentionSession session(ContentionKind::kFlow, routes);
  std::vector<Activity> batch(4);
  batch[0].transfers = {{0, 1, 1000}};
  batch[1].name = "gather";
  batch[1].transfers = {{1, 2, 1000}};
  batch[1].after = {0, 2};
  batch[2].after = {1};
  try {
    session.run(batch);
    FAIL() << "no error";
  } catch (const DeadlockError& e) {
    ASSERT_EQ(e.table().size(), 2u);
    EXPECT_STREQ(e.what(),
                 "deadlock in the network model; gather waits for activity 2 since 1000000 ps; "
                 "activity 2 waits for gather since 0 ps");
  }
  EXPECT_THROW(session.run(batch), std::logic_error);
}

}  // namespace
}  // namespace switchyard::network
