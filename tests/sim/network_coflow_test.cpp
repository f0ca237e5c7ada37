// SPDX-License-Identifier: Apache-2.0
// SimGrid ptask_L07 against the closed form; contended auto. One process per case.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/network_util.hpp"

namespace switchyard::network {
namespace {

using test::Draw;

void expect_equal_to_bottleneck(const cluster::RouteTable& routes, std::uint64_t seed) {
  const std::uint32_t n = routes.endpoints;
  NetworkModel coflow(Model::kCoflow, Algorithm::kDirect, routes);
  NetworkModel closed(Model::kBottleneck, Algorithm::kDirect, routes);
  Draw draw(seed);
  ExchangeResult c, b;
  for (int round = 0; round < 30; ++round) {
    const auto bytes = test::random_matrix(draw, n, draw.between(0.05, 1.0), 1, 1e9);
    std::vector<SimTime> ready;
    for (std::uint32_t e = 0; e < n; ++e) {
      ready.push_back(SimTime::from_us(draw.below(1000)));
    }
    coflow.exchange(bytes, ready, c);
    closed.exchange(bytes, ready, b);
    EXPECT_EQ(c.start, b.start);
    EXPECT_NEAR(static_cast<double>(c.duration.ps()), static_cast<double>(b.duration.ps()),
                static_cast<double>(b.duration.ps()) * 1e-9 + 1)
        << "seed " << seed << ", round " << round;
    EXPECT_GE(c.duration, c.floor);
    EXPECT_EQ(c.straggler, b.straggler);
    EXPECT_EQ(c.reason, b.reason);
    EXPECT_EQ(c.link_bytes, b.link_bytes);
  }
}

TEST(Coflow, EqualsTheBottleneckOnAStar) {
  expect_equal_to_bottleneck(test::star(8, 450e9, SimTime::from_us(6)).routes(), 1);
}
TEST(Coflow, EqualsTheBottleneckOnTwoTiers) {
  expect_equal_to_bottleneck(test::two_tier(2, true).routes(), 2);
}
class CoflowGraphs : public ::testing::TestWithParam<int> {};
TEST_P(CoflowGraphs, EqualsTheBottleneckOnARandomGraph) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  expect_equal_to_bottleneck(test::random_graph(seed, 7, 3, true).routes(), seed);
}
INSTANTIATE_TEST_SUITE_P(Seeds, CoflowGraphs, ::testing::Range(1, 6));

TEST(Coflow, RunsPhasesOneAfterAnother) {
  NetworkModel model(Model::kCoflow, Algorithm::kRing,
                     test::star(4, 1e9, SimTime::from_us(2)).routes());
  ExchangeResult r;
  model.exchange(test::uniform_matrix(4, 1000), std::vector<SimTime>(4, SimTime::from_us(7)), r);
  EXPECT_EQ(r.duration, SimTime::from_us(12));
  EXPECT_EQ(r.end, std::vector<SimTime>(4, SimTime::from_us(19)));
}

// The later phases of a call pay the phase latency, as in the closed form.
TEST(Coflow, PaysTheStartUpOfACallOnce) {
  cluster::ClusterGraph call;
  for (const char* name : {"a", "b", "c", "d"}) call.add_device(name, cluster::DeviceKind::kGpu);
  call.add_device("switch", cluster::DeviceKind::kNvSwitch);
  for (std::uint32_t i = 0; i < 4; ++i) {
    cluster::Cable c;
    c.a = i;
    c.b = 4;
    c.a_to_b = c.b_to_a = BytesPerSecond{1e9};
    c.latency = SimTime::from_us(1);
    c.phase_latency = SimTime::from_ns(100);
    call.add_cable(c);
  }
  // Phases of 3, 2 and 1 us; 2 us before the first, 0.2 us before the others.
  NetworkModel model(Model::kCoflow, Algorithm::kRing, call.routes());
  ExchangeResult r;
  model.exchange(test::uniform_matrix(4, 1000), std::vector<SimTime>(4), r);
  EXPECT_EQ(r.duration.ps(), 6'000'000 + 2'000'000 + 2 * 200'000);
  model.exchange(test::uniform_matrix(4, 1000), std::vector<SimTime>(4), r, true);
  EXPECT_EQ(r.duration.ps(), 6'000'000 + 3 * 200'000);
}

/// A KV copy that starts in the middle of an exchange, both over GPU 0's uplink (1 GB/s):
/// exchange 0 → 1, 0 → 2 with 5,000,000 B each from 0 (latency 0), copy 0 → 3 with 2,000,000 B from
/// 5,000 us. Alone the exchange has 5,000,000 B left then; equal shares of 0.5 GB/s: the copy ends
/// at 5,000 + 4,000 = 9,000 us, the exchange, with 3,000,000 B left and alone again, at 12,000 us.
std::vector<Activity> kv_copy_in_an_exchange() {
  std::vector<Activity> batch(3);
  batch[0].transfers = {{0, 1, 5000000}, {0, 2, 5000000}};
  batch[1].transfers = {{0, 3, 2000000}};
  batch[1].start = SimTime::from_us(5000);
  batch[2].transfers = {{1, 0, 1000000}};
  batch[2].after = {0};
  return batch;
}
void expect_kv_times(NetworkModel& model) {
  const auto r = model.run(kv_copy_in_an_exchange());
  EXPECT_NEAR(r[1].end.us(), 9000, 9000e-9);
  EXPECT_NEAR(r[0].end.us(), 12000, 12000e-9);
  EXPECT_NEAR(r[2].end.us(), 13000, 13000e-9);
}
TEST(Coflow, SharesALinkEquallyBetweenTasks) {
  NetworkModel model(Model::kCoflow, Algorithm::kDirect, test::star(4, 1e9, SimTime()).routes());
  expect_kv_times(model);
}
TEST(Auto, EndsAsCoflowDoesWhenACopyMeetsAnExchange) {
  NetworkModel model(Model::kAuto, Algorithm::kDirect, test::star(4, 1e9, SimTime()).routes());
  expect_kv_times(model);
}

/// Six GPUs and the host on one PCIe root; an all-to-all from 0, a KV copy 0 → 5 that starts in its
/// middle, and an expert's weights from the host to GPU 3 that start after a third of it: all on
/// the GPUs' own cables.
struct MixedTraffic {
  cluster::RouteTable routes;
  std::vector<Activity> batch;
};
MixedTraffic mixed_traffic(std::uint64_t seed) {
  cluster::ClusterGraph g = test::star(6, 26e9, SimTime::from_us(10));
  const std::uint32_t host = g.add_device("cpu", cluster::DeviceKind::kCpu);
  g.add_cable(host, 6, BytesPerSecond{26e9}, SimTime::from_us(5));
  std::vector<std::uint32_t> ends = g.gpus();
  ends.push_back(host);
  MixedTraffic t{g.routes(ends), std::vector<Activity>(3)};
  Draw draw(seed);
  for (std::uint32_t i = 0; i < 6; ++i) {
    for (std::uint32_t j = 0; j < 6; ++j) {
      if (i != j && draw.uniform() < 0.8) {
        t.batch[0].transfers.push_back({i, j, 1 + draw.below(40000000)});
      }
    }
  }
  t.batch[1].transfers = {{0, 5, 50000000}};
  t.batch[2].transfers = {{6, 3, 80000000}};
  BottleneckModel closed(t.routes);
  std::vector<std::uint64_t> links(t.routes.links());
  const SimTime alone = closed.evaluate(t.batch[0].transfers, links).duration;
  t.batch[1].start = SimTime::from_ps(alone.ps() / 2);
  t.batch[2].start = SimTime::from_ps(alone.ps() / 3);
  return t;
}

/// Ends in ps, run in a process of its own.
std::vector<std::int64_t> ends_in_a_child(Model kind, const MixedTraffic& t) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    NetworkModel model(kind, Algorithm::kDirect, t.routes);
    std::vector<std::int64_t> out;
    for (const ActivityResult& r : model.run(t.batch)) {
      out.push_back(r.end.ps());
    }
    const auto size = out.size() * sizeof(std::int64_t);
    _exit(write(ends[1], out.data(), size) == static_cast<ssize_t>(size) ? 0 : 1);
  }
  close(ends[1]);
  std::vector<std::int64_t> out(t.batch.size(), -1);
  const auto size = out.size() * sizeof(std::int64_t);
  EXPECT_EQ(read(ends[0], out.data(), size), static_cast<ssize_t>(size));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return out;
}

TEST(Auto, EqualsCoflowWhenKvAndExpertLoadsStartWithinAnExchange) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const MixedTraffic t = mixed_traffic(seed);
    const auto by_auto = ends_in_a_child(Model::kAuto, t);
    const auto by_coflow = ends_in_a_child(Model::kCoflow, t);
    const auto by_flow = ends_in_a_child(Model::kFlow, t);
    BottleneckModel closed(t.routes);
    std::vector<std::uint64_t> links(t.routes.links());
    std::int64_t delayed = 0;
    for (std::size_t a = 0; a < t.batch.size(); ++a) {
      const auto want = static_cast<double>(by_coflow[a]);
      EXPECT_NEAR(static_cast<double>(by_auto[a]), want, want * 1e-9) << "seed " << seed;
      // Company never makes traffic faster than alone, under either sharing rule.
      const BottleneckTime alone = closed.evaluate(t.batch[a].transfers, links);
      const std::int64_t least = (t.batch[a].start + alone.duration).ps();
      EXPECT_GE(by_coflow[a], least - 2) << "seed " << seed << ", activity " << a;
      EXPECT_GE(by_flow[a], least - 2) << "seed " << seed << ", activity " << a;
      delayed += by_coflow[a] - least;
    }
    EXPECT_GT(delayed, 1000000) << "seed " << seed << ": they must have met";
  }
}

TEST(Auto, NeedsNoSessionWhileNothingMeets) {
  const auto routes = test::star(4, 1e9, SimTime()).routes();
  NetworkModel model(Model::kAuto, Algorithm::kDirect, routes);
  auto batch = kv_copy_in_an_exchange();
  batch[1].start = SimTime::from_us(10000);
  const auto r = model.run(batch);
  EXPECT_EQ(r[0].end, SimTime::from_us(10000));
  EXPECT_EQ(r[1].end, SimTime::from_us(12000));
  EXPECT_EQ(r[2].end, SimTime::from_us(11000));
  EXPECT_NO_THROW(
      ContentionSession(ContentionKind::kCoflow, routes));  // The process still has its.
}

TEST(Coflow, ADeadlockNamesWhoWaitsForWhom) {
  const auto routes = test::star(2, 1e9, SimTime()).routes();
  ContentionSession session(ContentionKind::kCoflow, routes);
  std::vector<Activity> batch(1);
  batch[0].after = {0};
  try {
    session.run(batch);
    FAIL() << "no error";
  } catch (const DeadlockError& e) {
    EXPECT_STREQ(e.what(),
                 "deadlock in the network model; activity 0 waits for activity 0 since 0 ps");
  }
}

}  // namespace
}  // namespace switchyard::network
