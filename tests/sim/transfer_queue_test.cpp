// SPDX-License-Identifier: Apache-2.0
// Copies beside exchanges: hand computation, and SimGrid's parallel tasks. One process per case.
#include "sim/memory/transfer_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "tests/sim/network_util.hpp"

namespace switchyard::sim {
namespace {

using network::Activity;
using network::Transfer;
using network::test::Draw;

constexpr std::int64_t kMs = 1'000'000'000;

/// n GPUs and a host on one PCIe switch, an SSD on the host. Endpoints: GPUs, host n, SSD n + 1.
cluster::RouteTable pcie(std::uint32_t n, SimTime hop = SimTime()) {
  cluster::ClusterGraph g;
  std::vector<std::uint32_t> ends;
  for (std::uint32_t i = 0; i < n; ++i) {
    ends.push_back(g.add_device(fmt::format("gpu{}", i), cluster::DeviceKind::kGpu));
  }
  ends.push_back(g.add_device("cpu", cluster::DeviceKind::kCpu));
  ends.push_back(g.add_device("ssd", cluster::DeviceKind::kSsd));
  const std::uint32_t hub = g.add_device("pcie", cluster::DeviceKind::kPcieSwitch);
  for (std::uint32_t i = 0; i < n; ++i) g.add_cable(i, hub, BytesPerSecond{10e9}, hop);
  g.add_cable(n, hub, BytesPerSecond{20e9}, hop);
  g.add_cable(n + 1, n, BytesPerSecond{5e9}, hop);
  return g.routes(ends);
}

TransferQueue::Exchange exchange(std::vector<Transfer> transfers, std::int64_t begin,
                                 std::uint32_t endpoints) {
  TransferQueue::Exchange e;
  e.phases.push_back(std::move(transfers));
  e.begin_ps = begin;
  e.ready_ps.assign(endpoints, begin);
  return e;
}

void expect_near(std::int64_t got, std::int64_t want, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want),
              1.0 + 1e-9 * static_cast<double>(want))
      << what;
}

}  // namespace

TEST(TransferQueue, AnExchangeUnderWayFollowsItsLinksRates) {
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    cluster::RouteTable routes = pcie(2, SimTime::from_us(1)), slow = routes;
    for (double& rate : slow.bandwidth) rate /= 5;
    TransferQueue q(slow, 2, sharing, true);
    // 1 MB at 2 GB/s and two hops: 502 us.
    const auto e = exchange({{0, 1, 1'000'000}}, 0, 4);
    const auto id = q.run({&e, 1})[0].id;
    expect_near(q.exchange_end(id), 502'000'000, "slow");
    EXPECT_FALSE(q.exchange_floor(id).has_value());
    // After 102 us, a fifth of the bytes, the rest goes at 10 GB/s.
    q.advance(102'000'000);
    q.rewire(routes);
    expect_near(q.exchange_end(id), 182'000'000, "mended");
    expect_near(q.exchange_floor(id).value_or(0), 100'000'000, "least");
    // Slow again: the best rate that there was is the bound, also when it has ended.
    q.advance(142'000'000);
    q.rewire(slow);
    expect_near(q.exchange_end(id), 342'000'000, "slow again");
    q.advance(400'000'000);
    expect_near(q.exchange_end(id), 342'000'000, "ended");
    expect_near(q.exchange_floor(id).value_or(0), 100'000'000, "least, ended");
  }
}

TEST(TransferQueue, LaterPhasesOfACallPayThePhaseLatency) {
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    cluster::RouteTable routes = pcie(2, SimTime::from_us(3));
    routes.phase_latency_ps = routes.latency_ps;
    for (std::int64_t& ps : routes.phase_latency_ps) ps /= 10;
    TransferQueue q(routes, 2, sharing, true);
    // Two phases of 1 MB at 10 GB/s over two hops: 6 us, 100 us, 0.6 us, 100 us.
    auto e = exchange({{0, 1, 1'000'000}}, 0, 4);
    e.phases.push_back({{1, 0, 1'000'000}});
    expect_near(q.run({&e, 1})[0].end_ps, 206'600'000, "a call");
    e.begin_ps = kMs;
    e.ready_ps.assign(4, kMs);
    e.continues = true;
    expect_near(q.run({&e, 1})[0].end_ps, kMs + 201'200'000, "goes on with a call");
  }
}

TEST(TransferQueue, RunsTheCopiesOfALaneOneAfterAnother) {
  TransferQueue q(pcie(2, SimTime::from_us(1)), 2, Sharing::kTask);
  // 10 MB at 10 GB/s: 1 ms and two hops of 1 us; the second waits, the third begins late.
  const auto a = q.add(0, 2, 0, 10'000'000, 5);
  const auto b = q.add(0, 2, 0, 10'000'000, 5);
  const auto c = q.add(0, 2, 0, 10'000'000, 3 * kMs);
  const std::int64_t one = kMs + 2'000'000;
  EXPECT_EQ(q.begin(a), 5);
  EXPECT_EQ(q.end(a), 5 + one);
  EXPECT_EQ(q.end(b), 5 + 2 * one);
  EXPECT_EQ(q.begin(c), 3 * kMs);
  EXPECT_EQ(q.end(c), 3 * kMs + one);
  // From the SSD the slowest link decides, and there are three hops.
  const auto d = q.add(1, 3, 1, 10'000'000, 4 * kMs);
  EXPECT_EQ(q.end(d), 4 * kMs + 2 * kMs + 3'000'000);
}

TEST(TransferQueue, SharesALinkBetweenLanes) {
  // Three lanes at 10 GB/s each from a host whose link has 20: a third of it each.
  TransferQueue q(pcie(3), 3, Sharing::kTask);
  std::vector<TransferQueue::Id> ids;
  for (std::uint32_t g = 0; g < 3; ++g) ids.push_back(q.add(g, 3, g, 20'000'000, 0));
  for (const auto id : ids) expect_near(q.end(id), 3 * kMs, "20 MB at 20/3 GB/s");
  EXPECT_EQ(q.in_flight(), 3U);
  q.advance(4 * kMs);
  EXPECT_EQ(q.in_flight(), 0U);
}

TEST(TransferQueue, SlowsDownForExchangesAndCatchesUp) {
  // 100 MB to GPU 1 over its 10 GB/s link. Alone until 2 ms, with an exchange of 20 MB into the
  // same link half of it until 6 ms, alone until 8 ms, half for another 10 MB until 10 ms:
  // 20 + 20 + 20 + 10 MB are there, 30 remain: 13 ms.
  TransferQueue q(pcie(2), 2, Sharing::kTask);
  const auto load = q.add(1, 2, 1, 100'000'000, 0);
  EXPECT_EQ(q.end(load), 10 * kMs);
  const auto first = q.run(std::vector{exchange({{0, 1, 20'000'000}}, 2 * kMs, 2)});
  ASSERT_TRUE(first[0].met);
  expect_near(first[0].end_ps, 6 * kMs, "first exchange");
  expect_near(q.end(load), 12 * kMs, "the copy after one exchange");
  q.advance(first[0].end_ps);
  const auto second = q.run(std::vector{exchange({{0, 1, 10'000'000}}, 8 * kMs, 2)});
  expect_near(second[0].end_ps, 10 * kMs, "second exchange");
  expect_near(q.end(load), 13 * kMs, "the copy after two");
  // The other direction is another link.
  EXPECT_FALSE(q.run(std::vector{exchange({{1, 0, 10'000'000}}, 11 * kMs, 2)})[0].met);
  expect_near(q.end(load), 13 * kMs, "and stays so");
}

TEST(TransferQueue, CountsTheBytesOfEachLinkOnce) {
  TransferQueue q(pcie(2), 2, Sharing::kTask);
  q.add(0, 3, 0, 10'000'000, 0);  // 5 GB/s: 2 ms
  std::vector<std::uint64_t> bytes(q.routes().links(), 0);
  q.count_bytes(kMs / 2, bytes);
  std::uint64_t sum = 0;
  for (const std::uint64_t b : bytes) sum += b;
  EXPECT_EQ(sum, 3U * 2'500'000);  // SSD, host, switch
  q.count_bytes(3 * kMs, bytes);
  q.count_bytes(4 * kMs, bytes);
  for (const std::uint32_t link : q.routes().links_of(3, 0)) EXPECT_EQ(bytes[link], 10'000'000U);
}

TEST(TransferQueue, TakesBackWhatHasNotBegun) {
  TransferQueue q(pcie(2), 2, Sharing::kTask);
  const auto a = q.add(0, 2, 0, 10'000'000, 0);
  const auto b = q.add(0, 2, 0, 10'000'000, 0);
  const auto c = q.add(0, 2, 0, 10'000'000, 0);
  EXPECT_FALSE(q.cancel(a, kMs / 2));
  EXPECT_TRUE(q.cancel(b, kMs / 2));
  EXPECT_EQ(q.end(a), kMs);
  EXPECT_EQ(q.end(c), 2 * kMs);
}

TEST(TransferQueue, RefusesMeetingsOnlyWhenTheyHappen) {
  TransferQueue q(pcie(2), 2, Sharing::kRefused);
  const auto a = q.add(1, 2, 1, 10'000'000, 0);
  const auto timed = q.run(std::vector{exchange({{0, 1, 10'000'000}}, 2 * kMs, 2)});
  EXPECT_EQ(q.end(a), kMs);
  EXPECT_EQ(timed[0].end_ps, 3 * kMs);
  q.add(1, 2, 1, 10'000'000, 2 * kMs);
  try {
    q.run(std::vector{exchange({{0, 1, 10'000'000}}, 3 * kMs, 2)});
    FAIL() << "the two were on one link";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("use link pcie>gpu1 at the same time as an exchange"),
              std::string::npos)
        << e.what();
  }
}

TEST(TransferQueue, EqualsTheParallelTasksOfSimGrid) {
  // Copies on four lanes from host and SSD, exchanges beside them, all known from the start for
  // SimGrid, one after the other for us.
  constexpr std::uint32_t kGpus = 4;
  const cluster::RouteTable routes = pcie(kGpus, SimTime::from_us(2));
  network::NetworkModel coflow(network::Model::kCoflow, network::Algorithm::kDirect, routes);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Draw draw(seed);
    TransferQueue q(routes, kGpus, Sharing::kTask);
    std::vector<Activity> batch;
    std::vector<TransferQueue::Id> ids;
    for (std::uint32_t lane = 0; lane < kGpus; ++lane) {
      const auto ready = static_cast<std::int64_t>(draw.below(2'000)) * 1'000'000;
      for (std::uint32_t i = 0; i < 3; ++i) {
        const std::uint32_t src = kGpus + draw.below(2);
        const std::uint64_t bytes = 1'000'000 + draw.below(20'000'000);
        Activity a;
        a.transfers.push_back({src, lane, bytes});
        a.start = SimTime::from_ps(ready);
        if (i > 0) a.after.push_back(static_cast<std::uint32_t>(batch.size() - 1));
        batch.push_back(a);
        ids.push_back(q.add(lane, src, lane, bytes, ready));
      }
    }
    std::vector<std::int64_t> ends;
    std::int64_t begin = kMs;
    for (int x = 0; x < 3; ++x) {
      std::vector<Transfer> transfers;
      for (std::uint32_t i = 0; i < kGpus; ++i) {
        for (std::uint32_t j = 0; j < kGpus; ++j) {
          if (i != j) transfers.push_back({i, j, 100'000 + draw.below(3'000'000)});
        }
      }
      Activity a;
      a.transfers = transfers;
      a.start = SimTime::from_ps(begin);
      batch.push_back(a);
      ends.push_back(q.run(std::vector{exchange(transfers, begin, kGpus)})[0].end_ps);
      q.advance(begin);
      begin = ends.back() + static_cast<std::int64_t>(draw.below(3'000)) * 1'000'000;
    }
    const std::vector<network::ActivityResult> want = coflow.run(batch);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expect_near(q.end(ids[i]), want[i].end.ps(), fmt::format("seed {}, copy {}", seed, i));
    }
    for (std::size_t x = 0; x < ends.size(); ++x) {
      expect_near(ends[x], want[ids.size() + x].end.ps(), fmt::format("seed {}, x {}", seed, x));
    }
  }
}

TEST(TransferQueue, KeepsExchangesThatLaterTrafficSlowsDown) {
  // Two chains of exchanges are timed before anybody knows of the copies: in the end everything
  // ends as if all had been known from the start.
  constexpr std::uint32_t kGpus = 4;
  const cluster::RouteTable routes = pcie(kGpus, SimTime::from_us(2));
  network::NetworkModel coflow(network::Model::kCoflow, network::Algorithm::kDirect, routes);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Draw draw(seed);
    TransferQueue q(routes, kGpus, Sharing::kTask, true);
    std::vector<Activity> batch;
    std::vector<TransferQueue::Id> exchanges, copies;
    for (std::uint32_t chain = 0; chain < 2; ++chain) {
      std::int64_t begin = static_cast<std::int64_t>(draw.below(500)) * 1'000'000;
      TransferQueue::Timed before;
      for (int x = 0; x < 4; ++x) {
        std::vector<Transfer> transfers{
            {2 * chain, 2 * chain + 1, 500'000 + draw.below(9'000'000)},
            {2 * chain + 1, 2 * chain, 500'000 + draw.below(9'000'000)},
            {2 * chain, (2 * chain + 2) % kGpus, 500'000 + draw.below(5'000'000)}};
        Activity a;
        a.transfers = transfers;
        a.start = SimTime::from_ps(begin);
        TransferQueue::Exchange e = exchange(transfers, begin, kGpus);
        if (x > 0) {
          a.start = SimTime();
          a.after.push_back(static_cast<std::uint32_t>(batch.size() - 1));
          e.after.push_back({before.id, 0, begin});
        }
        batch.push_back(a);
        before = q.run(std::vector{e})[0];
        exchanges.push_back(before.id);
        begin = before.end_ps;
      }
    }
    std::int64_t ready = 0;
    for (std::uint32_t i = 0; i < 6; ++i) {
      ready += static_cast<std::int64_t>(draw.below(900)) * 1'000'000;
      Activity a;
      const std::uint32_t lane = i % kGpus;
      const std::uint64_t bytes = 500'000 + draw.below(9'000'000);
      a.transfers.push_back({kGpus + draw.below(2), lane, bytes});
      a.start = SimTime::from_ps(ready);
      if (i >= kGpus) a.after.push_back(static_cast<std::uint32_t>(batch.size() - kGpus));
      batch.push_back(a);
      q.advance(ready);
      copies.push_back(q.add(lane, a.transfers[0].src, lane, bytes, ready, true));
    }
    const std::vector<network::ActivityResult> want = coflow.run(batch);
    const auto check = [&](const char* when) {
      for (std::size_t i = 0; i < exchanges.size(); ++i) {
        expect_near(q.exchange_end(exchanges[i]), want[i].end.ps(),
                    fmt::format("{}, seed {}, exchange {}", when, seed, i));
      }
      for (std::size_t i = 0; i < copies.size(); ++i) {
        expect_near(q.end(copies[i]), want[exchanges.size() + i].end.ps(),
                    fmt::format("{}, seed {}, copy {}", when, seed, i));
      }
    };
    check("at once");
    // What has ended is still known, until it is forgotten.
    std::vector<std::uint64_t> bytes(routes.links(), 0);
    q.count_bytes(ready + 3 * kMs, bytes);
    check("later");
    q.forget_exchanges(exchanges.back());
  }
}

// The same of flows: pairs of GPUs that begin when what their own GPUs did before has ended.
TEST(TransferQueue, KeepsFlowsThatLaterTrafficSlowsDown) {
  constexpr std::uint32_t kGpus = 4;
  const cluster::RouteTable routes = pcie(kGpus, SimTime::from_us(2));
  network::NetworkModel flow(network::Model::kFlow, network::Algorithm::kDirect, routes);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Draw draw(seed);
    TransferQueue q(routes, kGpus, Sharing::kPairs, true);
    std::vector<Activity> batch;
    std::vector<TransferQueue::Id> exchanges, copies;
    // Exchange x: pairs 0 → 1 and 2 → 3, later 1 → 2 and 3 → 0. Each pair is an activity.
    std::vector<TransferQueue::Exchange::Clock> clocks(kGpus);
    std::vector<std::vector<std::uint32_t>> before(kGpus);
    std::vector<std::int64_t> ready(kGpus);
    for (std::uint32_t g = 0; g < kGpus; ++g) {
      ready[g] = static_cast<std::int64_t>(draw.below(500)) * 1'000'000;
      clocks[g].floor_ps = ready[g];
    }
    for (std::uint32_t x = 0; x < 4; ++x) {
      std::vector<Transfer> pairs;
      std::vector<std::vector<std::uint32_t>> now(kGpus);
      for (const std::uint32_t src : {x % 2, x % 2 + 2}) {
        pairs.push_back({src, (src + 1) % kGpus, 500'000 + draw.below(9'000'000)});
        Activity a;
        a.transfers = {pairs.back()};
        const std::uint32_t dst = pairs.back().dst;
        if (x == 0) a.start = SimTime::from_ps(std::max(ready[src], ready[dst]));
        for (const std::uint32_t g : {src, dst}) {
          a.after.insert(a.after.end(), before[g].begin(), before[g].end());
          now[g].push_back(static_cast<std::uint32_t>(batch.size()));
        }
        std::sort(a.after.begin(), a.after.end());
        a.after.erase(std::unique(a.after.begin(), a.after.end()), a.after.end());
        batch.push_back(a);
      }
      TransferQueue::Exchange e =
          exchange(pairs, *std::max_element(ready.begin(), ready.end()), kGpus);
      e.ready_ps = ready;
      e.clocks = clocks;
      const TransferQueue::Timed t = q.run(std::vector{e})[0];
      exchanges.push_back(t.id);
      for (std::size_t p = 0; p < pairs.size(); ++p) {
        for (const std::uint32_t g : {pairs[p].src, pairs[p].dst}) {
          ready[g] = t.transfer_end_ps[p];
          clocks[g] = {{{t.id, 0, ready[g], false, g}}, 0};
        }
      }
      before = now;
    }
    std::int64_t later = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      later += static_cast<std::int64_t>(draw.below(900)) * 1'000'000;
      Activity a;
      const std::uint64_t bytes = 500'000 + draw.below(9'000'000);
      a.transfers.push_back({kGpus + draw.below(2), i, bytes});
      a.start = SimTime::from_ps(later);
      batch.push_back(a);
      q.advance(later);
      copies.push_back(q.add(i, a.transfers[0].src, i, bytes, later, true));
    }
    const std::vector<network::ActivityResult> want = flow.run(batch);
    const auto check = [&](const char* when) {
      for (std::uint32_t x = 0; x < exchanges.size(); ++x) {
        for (std::uint32_t p = 0; p < 2; ++p) {
          for (const std::uint32_t g : {x % 2 + 2 * p, (x % 2 + 2 * p + 1) % kGpus}) {
            expect_near(q.exchange_end(exchanges[x], g), want[2 * x + p].end.ps(),
                        fmt::format("{}, seed {}, exchange {}, GPU {}", when, seed, x, g));
          }
        }
      }
      for (std::size_t i = 0; i < copies.size(); ++i) {
        expect_near(q.end(copies[i]), want[2 * exchanges.size() + i].end.ps(),
                    fmt::format("{}, seed {}, copy {}", when, seed, i));
      }
    };
    check("at once");
    std::vector<std::uint64_t> bytes(routes.links(), 0);
    q.count_bytes(later + 10 * kMs, bytes);
    check("later");
  }
}

TEST(TransferQueue, AnExchangeFollowsTheEndOfOneThatWasLengthenedAndIsOver) {
  // 10 MB take 1 ms alone, 2 ms beside a copy to the same GPU. The next exchange follows 1 ms
  // later: at 3 ms, whatever its caller knew before the copy came.
  const cluster::RouteTable routes = pcie(2);
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    TransferQueue q(routes, 2, sharing, true);
    const std::vector<Transfer> first{{0, 1, 10'000'000}}, second{{1, 0, 10'000'000}};
    const TransferQueue::Timed t = q.run(std::vector{exchange(first, 0, 2)})[0];
    EXPECT_EQ(t.end_ps, kMs);
    q.add(1, 2, 1, 10'000'000, 0);
    q.advance(2 * kMs + kMs / 2);
    TransferQueue::Exchange e = exchange(second, 2 * kMs, 2);
    const TransferQueue::Exchange::After after{t.id, kMs, 2 * kMs};
    if (sharing == Sharing::kTask) {
      e.after = {after};
    } else {
      e.clocks = {{{after}, 0}, {{after}, 0}};
    }
    const TransferQueue::Timed next = q.run(std::vector{e})[0];
    EXPECT_EQ(q.exchange_end(t.id), 2 * kMs);
    EXPECT_EQ(q.exchange_begin(next.id), 3 * kMs);
    EXPECT_EQ(next.end_ps, 4 * kMs);
  }
}

// Page transfers are forgotten when they arrive, which is before the next step counts their bytes;
// loads of experts nobody forgets.
// The same where the committed state has not come that far: the first one's true end is before the
// second is timed.
TEST(TransferQueue, AnExchangeFollowsTheTrueEndOfOneThatIsOverOnlyForIt) {
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    TransferQueue q(pcie(3), 3, sharing, true);
    // 10 MB at 10 GB/s: 1 ms; a second one on the same link makes it 2 ms after it was timed.
    const std::vector<TransferQueue::Exchange> first{exchange({{0, 1, 10'000'000}}, 0, 5)};
    const TransferQueue::Timed a = q.run(first)[0];
    ASSERT_EQ(a.end_ps, kMs);
    const std::vector<TransferQueue::Exchange> joins{exchange({{0, 2, 10'000'000}}, 0, 5)};
    static_cast<void>(q.run(joins));
    // Its caller takes it to begin 1 ms after the first one's end: at 2 ms as it knows, 3 truly.
    TransferQueue::Exchange next = exchange({{1, 0, 10'000'000}}, 2 * kMs + 1, 5);
    next.after.push_back({a.id, kMs, 2 * kMs + 1});
    if (sharing == Sharing::kPairs) {
      next.clocks.resize(5);
      next.clocks[1].after = {{a.id, kMs, 2 * kMs + 1}};
    }
    const std::vector<TransferQueue::Exchange> third{next};
    const TransferQueue::Timed b = q.run(third)[0];
    expect_near(q.exchange_end(a.id), 2 * kMs, "the first");
    expect_near(b.end_ps, 4 * kMs, "as timed");
    EXPECT_EQ(q.exchange_end(b.id), b.end_ps);
  }
}

TEST(TransferQueue, KeepsNoEndThatNobodyAsksForAgain) {
  const cluster::RouteTable routes = pcie(4, SimTime::from_us(2));
  TransferQueue q(routes, 4, Sharing::kTask, true);
  std::vector<std::uint64_t> bytes(routes.links(), 0);
  std::int64_t now = 0;
  for (int i = 0; i < 50; ++i) {
    q.add(0, 4, 0, 1'000'000, now);
    const TransferQueue::Id page = q.add(1, 4, 1, 1'000'000, now, true);
    now = q.end(page);
    q.advance(now);
    q.forget_copy(page);
    now += kMs;
    q.count_bytes(now, bytes);
    EXPECT_EQ(q.kept_ends(), 0U);
  }
  const TransferQueue::Id late = q.add(1, 4, 1, 1'000'000, now, true);
  const std::int64_t end = q.end(late);
  q.count_bytes(end + kMs, bytes);
  EXPECT_EQ(q.kept_ends(), 1U);
  EXPECT_EQ(q.end(late), end);
  q.forget_copy(late);
  EXPECT_EQ(q.kept_ends(), 0U);
}

TEST(TransferQueue, EqualsTheFlowsOfSimGridWithPairs) {
  constexpr std::uint32_t kGpus = 5;
  const cluster::RouteTable routes = pcie(kGpus);
  network::NetworkModel flow(network::Model::kFlow, network::Algorithm::kDirect, routes);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Draw draw(seed);
    TransferQueue q(routes, kGpus, Sharing::kPairs);
    std::vector<Activity> batch;
    std::vector<TransferQueue::Id> ids;
    for (std::uint32_t lane = 0; lane < kGpus; ++lane) {
      const std::uint64_t bytes = 5'000'000 + draw.below(20'000'000);
      Activity a;
      a.transfers.push_back({kGpus, lane, bytes});
      batch.push_back(a);
      ids.push_back(q.add(lane, kGpus, lane, bytes, 0));
    }
    std::vector<Transfer> transfers;
    for (std::uint32_t i = 0; i < kGpus; ++i) {
      for (std::uint32_t j = 0; j < kGpus; ++j) {
        if (i != j) transfers.push_back({i, j, 100'000 + draw.below(9'000'000)});
      }
    }
    Activity a;
    a.transfers = transfers;
    a.start = SimTime::from_ps(kMs);
    batch.push_back(a);
    const auto got = q.run(std::vector{exchange(transfers, kMs, kGpus)})[0];
    const std::vector<network::ActivityResult> want = flow.run(batch);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expect_near(q.end(ids[i]), want[i].end.ps(), fmt::format("seed {}, copy {}", seed, i));
    }
    for (std::size_t t = 0; t < transfers.size(); ++t) {
      expect_near(got.transfer_end_ps[t], want[kGpus].transfer_end[t].ps(),
                  fmt::format("pair {}", t));
    }
  }
}

}  // namespace switchyard::sim
