// SPDX-License-Identifier: Apache-2.0
// Measured links (network.measured) beside other traffic: the queue of transfers against hand
// computation and SimGrid, and the step loop under coflow and flow against the closed form. One
// process per case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/memory/transfer_queue.hpp"
#include "tests/sim/network_util.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using network::Activity;
using network::MeasuredCurve;
using network::MeasuredLinks;
using network::Transfer;
using network::test::Draw;
using test::MemoryRun;
using Settings = std::vector<std::string>;

/// 1 GB/s at 1 kB, straight in log-log to 80 GB/s at 100 MB.
MeasuredCurve curve() {
  return MeasuredCurve({{1000, BytesPerSecond{1e9}}, {100'000'000, BytesPerSecond{80e9}}}, "test");
}
/// A file of its own for each case, which run beside each other.
std::string table_file() {
  return std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".csv";
}
std::string measured_key() {
  return "network.measured={ file = \"" + table_file() + "\", class = \"nvlink4\" }";
}
/// Its rate, in its own words.
double rate(double bytes) {
  return 1e9 * std::pow(80.0, std::log(bytes / 1000) / std::log(100'000'000.0 / 1000));
}
MeasuredLinks all_links(const cluster::RouteTable& routes) {
  return {curve(), std::vector<std::uint8_t>(routes.links(), 1)};
}

TransferQueue::Exchange exchange(std::vector<Transfer> transfers, std::int64_t begin,
                                 std::uint32_t endpoints) {
  TransferQueue::Exchange e;
  e.phases.push_back(std::move(transfers));
  e.begin_ps = begin;
  e.ready_ps.assign(endpoints, begin);
  return e;
}

void expect_near(std::int64_t got, double want_seconds, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(got), want_seconds * 1e12, 2.0 + 1e-9 * want_seconds * 1e12)
      << what;
}

/// Against SimGrid, which gets each exchange's bound as a link of its own: exchange c runs between
/// the endpoints c · n …, which are the same GPUs, on routes that hold the bound beside each link.
void expect_simgrid(Sharing sharing) {
  constexpr std::uint32_t kGpus = 5, kTwo = 2;
  const cluster::RouteTable base = network::test::star(kGpus, 100e9, SimTime()).routes();
  for (std::uint64_t seed = 1; seed <= 1; ++seed) {
    Draw draw(seed);
    std::vector<std::vector<Transfer>> exchanges(kTwo);
    for (auto& transfers : exchanges) {
      for (std::uint32_t i = 0; i < kGpus; ++i) {
        for (std::uint32_t j = 0; j < kGpus; ++j) {
          if (i != j) transfers.push_back({i, j, 10'000 + draw.below(9'000'000)});
        }
      }
    }
    const std::int64_t later = 100'000'000;  // 100 us, in the middle of the first.
    TransferQueue q(base, kGpus, sharing, true);
    q.measure(all_links(base));
    const std::vector<TransferQueue::Exchange> both{exchange(exchanges[0], 0, kGpus),
                                                    exchange(exchanges[1], later, kGpus)};
    const auto got = q.run(both);

    cluster::RouteTable wide;
    wide.endpoints = kTwo * kGpus;
    wide.bandwidth = base.bandwidth;
    wide.link_name = base.link_name;
    for (std::uint32_t c = 0; c < kTwo; ++c) {
      std::vector<double> bytes(base.links(), 0);
      for (const Transfer& x : exchanges[c]) {
        for (const std::uint32_t l : base.links_of(x.src, x.dst)) {
          bytes[l] += static_cast<double>(x.bytes);
        }
      }
      for (const double b : bytes) {
        wide.bandwidth.push_back(rate(b));
        wide.link_name.push_back("bound");
      }
    }
    const auto links = static_cast<std::uint32_t>(base.links());
    wide.offset.push_back(0);
    for (std::uint32_t i = 0; i < wide.endpoints; ++i) {
      for (std::uint32_t j = 0; j < wide.endpoints; ++j) {
        const std::uint32_t c = i / kGpus;
        if (i != j && c == j / kGpus) {
          for (const std::uint32_t l : base.links_of(i % kGpus, j % kGpus)) {
            wide.link.push_back(l);
            wide.link.push_back((c + 1) * links + l);
          }
        }
        wide.offset.push_back(static_cast<std::uint32_t>(wide.link.size()));
        wide.latency_ps.push_back(0);
        wide.staged.push_back(0);
        wide.through_gpu.push_back(0);
      }
      wide.node.push_back(0);
      wide.endpoint_name.push_back("gpu");
    }
    const bool pairs = sharing == Sharing::kPairs;
    network::NetworkModel simgrid(pairs ? network::Model::kFlow : network::Model::kCoflow,
                                  network::Algorithm::kDirect, wide);
    std::vector<Activity> batch(kTwo);
    for (std::uint32_t c = 0; c < kTwo; ++c) {
      for (Transfer x : exchanges[c]) {
        x.src += c * kGpus;
        x.dst += c * kGpus;
        batch[c].transfers.push_back(x);
      }
      batch[c].start = SimTime::from_ps(c * later);
    }
    const std::vector<network::ActivityResult> want = simgrid.run(batch);
    for (std::uint32_t c = 0; c < kTwo; ++c) {
      expect_near(q.exchange_end(got[c].id), want[c].end.seconds(), fmt::format("exchange {}", c));
      for (std::size_t t = 0; pairs && t < exchanges[c].size(); ++t) {
        expect_near(got[c].transfer_end_ps[t], want[c].transfer_end[t].seconds(),
                    fmt::format("exchange {}, pair {}", c, t));
      }
    }
    // The bounds matter: without them it would end sooner.
    TransferQueue plain(base, kGpus, sharing, true);
    EXPECT_LT(plain.run(both)[1].end_ps, got[1].end_ps);
  }
}

MemoryRun run(const Settings& settings, const std::string& model,
              const std::string& table = "bytes,GB/s\n1024,0.5\n1048576,60\n") {
  write_file(table_file(), table);
  Settings all{"network.model=" + model, measured_key()};
  const bool fixed = std::none_of(settings.begin(), settings.end(),
                                  [](const std::string& x) { return x.starts_with("workload="); });
  if (fixed) {
    all.insert(all.end(), {R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })",
                           "workload.batch=48", "workload.steps=2"});
  }
  all.insert(all.end(), settings.begin(), settings.end());
  MemoryRun r = test::run_in_memory(test::worked_scenario(all), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::int64_t duration(const MemoryRun& r, std::size_t step = 0) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}

bool says_extrapolated(const MemoryRun& r) {
  return std::any_of(r.result.notes.begin(), r.result.notes.end(), [](const std::string& n) {
    return n.find("EXTRAPOLATED") != std::string::npos;
  });
}

}  // namespace

TEST(MeasuredQueue, BoundsAnExchangeAndLeavesTheRestToOthers) {
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    const cluster::RouteTable routes = network::test::star(4, 100e9, SimTime()).routes();
    const double own = rate(1e6);  // About 6.8 GB/s of 100.
    ASSERT_LT(own, 25e9);
    TransferQueue q(routes, 4, sharing, true);
    q.measure(all_links(routes));
    // Three messages of 1 MB into GPU 3 at once use a part of its link: each as if alone.
    const std::vector<TransferQueue::Exchange> three{exchange({{0, 3, 1'000'000}}, 0, 4),
                                                     exchange({{1, 3, 1'000'000}}, 0, 4),
                                                     exchange({{2, 3, 1'000'000}}, 0, 4)};
    for (const auto& t : q.run(three)) expect_near(t.end_ps, 1e6 / own, "alone");
    // One exchange of the same three pairs is a message of 3 MB on that link.
    const auto one =
        exchange({{0, 3, 1'000'000}, {1, 3, 1'000'000}, {2, 3, 1'000'000}}, 1'000'000'000, 4);
    expect_near(q.run({&one, 1})[0].end_ps - 1'000'000'000, 3e6 / rate(3e6), "together");
  }
}

TEST(MeasuredQueue, SharesALinkThatIsFull) {
  // 100 MB reach 80 GB/s of 100: two of them have half the link each, a third joins at 30 GB/s.
  for (const Sharing sharing : {Sharing::kTask, Sharing::kPairs}) {
    const cluster::RouteTable routes = network::test::star(4, 100e9, SimTime()).routes();
    TransferQueue q(routes, 4, sharing, true);
    q.measure(all_links(routes));
    const std::vector<TransferQueue::Exchange> two{exchange({{0, 3, 100'000'000}}, 0, 4),
                                                   exchange({{1, 3, 100'000'000}}, 0, 4)};
    for (const auto& t : q.run(two)) expect_near(t.end_ps, 100e6 / 50e9, "half the link");
    // Beside one that its table holds at r: the other has the rest.
    TransferQueue beside(routes, 4, sharing, true);
    beside.measure(all_links(routes));
    const std::vector<TransferQueue::Exchange> uneven{exchange({{0, 3, 10'000}}, 0, 4),
                                                      exchange({{1, 3, 100'000'000}}, 0, 4)};
    const auto t = beside.run(uneven);
    expect_near(t[0].end_ps, 1e4 / rate(1e4), "small");
    expect_near(t[1].end_ps, 100e6 / 80e9, "large");
  }
}

TEST(MeasuredQueue, NeverBeatsTheLink) {
  // A table above the link's rate: the link decides, in the queue and in the closed form.
  const cluster::RouteTable routes = network::test::star(3, 10e9, SimTime()).routes();
  TransferQueue q(routes, 3, Sharing::kTask, true);
  q.measure(all_links(routes));
  const auto e = exchange({{0, 1, 100'000'000}}, 0, 3);
  expect_near(q.run({&e, 1})[0].end_ps, 100e6 / 10e9, "nominal");
  network::BottleneckModel closed(routes);
  const MeasuredLinks links = all_links(routes);
  closed.measure(links.curve, links.on_link);
  std::vector<std::uint64_t> carried(routes.links());
  const std::vector<Transfer> one{{0, 1, 100'000'000}};
  EXPECT_EQ(closed.evaluate(one, carried).duration, SimTime::from_us(10'000));
}

TEST(MeasuredQueue, IsTheCoflowOfSimGridWithALinkForEachBound) { expect_simgrid(Sharing::kTask); }
TEST(MeasuredQueue, IsTheFlowOfSimGridWithALinkForEachBound) { expect_simgrid(Sharing::kPairs); }

// A coflow alone on its links is the closed form: 1e-9, and a picosecond for each rounding.
TEST(MeasuredLoop, CoflowIsTheClosedFormWhereExchangesAreAlone) {
  const std::vector<Settings> layouts{
      {},
      {"parallel.ep=4"},
      {"network.algorithm=ring"},
      {"network.chunks=3"},
      {"network.two_batch=true"},
      {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8"},
      {"parallel.attention=pp", "parallel.dp=4", "parallel.pp=2", "parallel.ep=1"}};
  for (const Settings& s : layouts) {
    const MemoryRun coflow = run(s, "coflow"), closed = run(s, "bottleneck");
    for (std::size_t i = 0; i < 2; ++i) {
      const auto want = static_cast<double>(duration(closed, i));
      EXPECT_NEAR(static_cast<double>(duration(coflow, i)), want, 100 + 1e-9 * want)
          << testing::PrintToString(s);
    }
    EXPECT_EQ(coflow.data.links.bytes, closed.data.links.bytes);
    EXPECT_EQ(says_extrapolated(coflow), says_extrapolated(closed));
  }
}

TEST(MeasuredLoop, FlowIsTheClosedFormOfEvenTrafficAndNeverFaster) {
  // Two copies of 2,048 B from and to every GPU: a link's message is 4,096 B. The table: 0.5 GB/s
  // at 1,024 B, 60 at 1 MiB.
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  const double r = 0.5e9 * std::pow(120.0, std::log(4.0) / std::log(1024.0));
  write_file(table_file(), "bytes,GB/s\n1024,0.5\n1048576,60\n");
  for (const char* model : {"bottleneck", "auto", "coflow", "flow"}) {
    const MemoryRun even = test::run_in_memory(
        test::worked_scenario(
            {"workload.batch=8", std::string("network.model=") + model, measured_key()}),
        &trace);
    EXPECT_TRUE(even.result.violations.empty());
    EXPECT_NEAR(static_cast<double>(even.data.layer_steps.dispatch_ps[0]), 4096 / r * 1e12, 3)
        << model;
    EXPECT_NEAR(static_cast<double>(even.data.layer_steps.combine_ps[1]), 4096 / r * 1e12, 3)
        << model;
  }
  // Uneven traffic: max-min sharing ends no exchange sooner than the busiest link allows.
  const MemoryRun flow = run({}, "flow"), closed = run({}, "bottleneck");
  EXPECT_EQ(flow.data.links.bytes, closed.data.links.bytes);
  EXPECT_GE(flow.data.layer_steps.dispatch_ps[0] + 3, closed.data.layer_steps.dispatch_ps[0]);
  EXPECT_LT(static_cast<double>(duration(flow)), 1.1 * static_cast<double>(duration(closed)));
}

TEST(MeasuredLoop, GoesWithRoutersAndReplicas) {
  const std::string cpu =
      R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "10 us" })";
  for (const char* model : {"coflow", "flow"}) {
    const MemoryRun r = run({"hardware.file=worked_cpu.toml", "parallel.router=cpu", cpu}, model);
    EXPECT_GT(duration(r), 0);
    const MemoryRun pages = run(
        {"parallel.ep=4",
         "workload={kind=\"open\",arrivals={per_second=2000,requests=8},lengths={prompt=64,"
         "output=4},routing={synthetic=\"uniform\"},front_end={replicas=2,prefill_replicas=1}}"},
        model);
    for (const auto& q : pages.data.requests) {
      EXPECT_EQ(q.outcome, run::RequestOutcome::kFinished);
    }
  }
  try {
    run({"hardware.file=worked_cpu.toml", "parallel.router=cpu", cpu}, "auto");
    ADD_FAILURE() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("network.measured and this network.model"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace switchyard::sim
