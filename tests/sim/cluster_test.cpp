// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>

#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/report.hpp"
#include "sim/cluster/route_table.hpp"

namespace switchyard::cluster {
namespace {

BytesPerSecond gb(double v) { return BytesPerSecond{v * 1e9}; }

std::string path(const RouteTable& t, std::uint32_t src, std::uint32_t dst) {
  std::string text;
  for (const std::uint32_t l : t.links_of(src, dst)) {
    text += (text.empty() ? "" : " ") + t.link_name[l];
  }
  return text;
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Routes, PreferFewHopsThenBandwidthThenDeviceOrder) {
  ClusterGraph g;
  const auto a = g.add_device("a", DeviceKind::kGpu), b = g.add_device("b", DeviceKind::kGpu);
  const auto slow = g.add_device("slow", DeviceKind::kPcieSwitch);
  const auto x = g.add_device("x", DeviceKind::kNvSwitch);
  const auto y = g.add_device("y", DeviceKind::kNvSwitch);
  const auto far = g.add_device("far", DeviceKind::kSwitch);
  for (const auto gpu : {a, b}) {
    g.add_cable(gpu, slow, gb(10), SimTime::from_ns(100));
    g.add_cable(gpu, y, gb(30), SimTime::from_ns(200));
    g.add_cable(gpu, x, gb(30), SimTime::from_ns(300));
  }
  g.add_cable(a, far, gb(900), SimTime());
  g.add_cable(far, y, gb(900), SimTime());
  const RouteTable t = g.routes();
  // Two hops at 30 GB/s by x or y; x was declared first. Three hops by "far" never count.
  EXPECT_EQ(path(t, 0, 1), "a>x x>b");
  EXPECT_EQ(path(t, 1, 0), "b>x x>a");
  EXPECT_EQ(t.latency(0, 1), SimTime::from_ns(600));
  EXPECT_TRUE(t.links_of(0, 0).empty());
  EXPECT_EQ(t.latency(0, 0), SimTime());
}

TEST(Routes, DirectionsHaveTheirOwnBandwidthAndASharedMediumIsOneLink) {
  ClusterGraph g;
  const auto a = g.add_device("a", DeviceKind::kGpu), b = g.add_device("b", DeviceKind::kGpu);
  const auto c = g.add_device("c", DeviceKind::kGpu);
  Cable up;
  up.a = a;
  up.b = b;
  up.a_to_b = gb(5);
  up.b_to_a = gb(7);
  g.add_cable(up);
  Cable bus;
  bus.a = b;
  bus.b = c;
  bus.a_to_b = bus.b_to_a = gb(3);
  bus.shared_medium = true;
  g.add_cable(bus);
  ASSERT_EQ(g.links().size(), 3u);
  EXPECT_EQ(g.links()[g.find_link("a>b")].bandwidth, gb(5));
  EXPECT_EQ(g.links()[g.find_link("b>a")].bandwidth, gb(7));
  const RouteTable t = g.routes();
  EXPECT_EQ(path(t, 1, 2), "b--c");
  EXPECT_EQ(path(t, 2, 1), "b--c");
  // Only b connects a and c, so b forwards.
  EXPECT_EQ(path(t, 2, 0), "b--c b>a");
  EXPECT_EQ(t.through_gpu[t.pair(2, 0)], 1);
  EXPECT_EQ(t.through_gpu[t.pair(1, 0)], 0);
}

TEST(Routes, AGpuForwardsOnlyWhereNoSwitchDoes) {
  ClusterGraph g;
  const auto a = g.add_device("a", DeviceKind::kGpu), b = g.add_device("b", DeviceKind::kGpu);
  const auto c = g.add_device("c", DeviceKind::kGpu);
  std::vector<std::uint32_t> chain{a};
  for (int i = 0; i < 4; ++i) {
    chain.push_back(g.add_device(fmt::format("s{}", i), DeviceKind::kSwitch));
  }
  chain.push_back(c);
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    g.add_cable(chain[i], chain[i + 1], gb(1), SimTime());
  }
  g.add_cable(a, b, gb(100), SimTime());
  g.add_cable(b, c, gb(100), SimTime());
  const RouteTable t = g.routes();
  EXPECT_EQ(path(t, 0, 2), "a>s0 s0>s1 s1>s2 s2>s3 s3>c");
  EXPECT_EQ(t.through_gpu[t.pair(0, 2)], 0);
}

/// Two sockets; GPUs 0, 1 on the first root, GPU 2 on the second; no peer-to-peer over PCIe.
ClusterGraph staged_box(bool with_cpu) {
  ClusterGraph g;
  for (const char* name : {"gpu0", "gpu1", "gpu2"}) {
    g.add_device(name, DeviceKind::kGpu);
  }
  std::vector<std::uint32_t> roots, cpus;
  for (int s = 0; s < 2; ++s) {
    roots.push_back(g.add_device(fmt::format("root{}", s), DeviceKind::kRootComplex));
    if (with_cpu) {
      cpus.push_back(g.add_device(fmt::format("cpu{}", s), DeviceKind::kCpu));
      g.add_cable(roots.back(), cpus.back(), gb(100), SimTime::from_ns(90));
    }
  }
  const auto pcie = [&](std::uint32_t gpu, std::uint32_t root) {
    Cable c;
    c.a = gpu;
    c.b = root;
    c.a_to_b = c.b_to_a = gb(26);
    c.latency = SimTime::from_ns(1000);
    c.p2p = false;
    g.add_cable(c);
  };
  pcie(0, roots[0]);
  pcie(1, roots[0]);
  pcie(2, roots[1]);
  g.add_cable(roots[0], roots[1], gb(60), SimTime::from_ns(150));
  return g;
}

TEST(Routes, WithoutPeerToPeerBothCopiesGoByTheSourcesHostMemory) {
  const RouteTable t = staged_box(true).routes();
  EXPECT_EQ(path(t, 0, 1), "gpu0>root0 root0>cpu0 cpu0>root0 root0>gpu1");
  EXPECT_EQ(t.latency(0, 1), SimTime::from_ns(1000 + 90 + 90 + 1000));
  EXPECT_EQ(t.staged[t.pair(0, 1)], 1);
  EXPECT_EQ(path(t, 2, 0), "gpu2>root1 root1>cpu1 cpu1>root1 root1>root0 root0>gpu0");
  EXPECT_EQ(report_routes(t).staged_pairs, 6u);
  EXPECT_EQ(message_of([] { static_cast<void>(staged_box(false).routes()); }),
            "hardware: no route from gpu0 to gpu1: the link allows no peer-to-peer traffic and no "
            "cpu device can stage the copy; add a device with kind = \"cpu\" and its link");
}

TEST(Routes, PeerToPeerOverNvlinkWinsOverStagingAndHostCopiesAreNotStaged) {
  ClusterGraph g = staged_box(true);
  const auto nv = g.add_device("nv", DeviceKind::kNvSwitch);
  g.add_cable(0, nv, gb(300), SimTime::from_ns(500));
  g.add_cable(1, nv, gb(300), SimTime::from_ns(500));
  EXPECT_EQ(path(g.routes(), 0, 1), "gpu0>nv nv>gpu1");
  const std::vector<std::uint32_t> ends{0, g.find_device("cpu0")};
  const RouteTable t = g.routes(ends);
  EXPECT_EQ(path(t, 1, 0), "cpu0>root0 root0>gpu0");
  EXPECT_EQ(t.staged[t.pair(1, 0)], 0);
}

TEST(Routes, DisconnectedGpusAndDeadEndsAreErrors) {
  ClusterGraph g;
  const auto a = g.add_device("a", DeviceKind::kGpu), b = g.add_device("b", DeviceKind::kGpu);
  EXPECT_EQ(message_of([&] { static_cast<void>(g.routes()); }),
            "hardware: no route from a to b; add the missing link");
  const auto ssd = g.add_device("ssd", DeviceKind::kSsd);
  g.add_cable(a, ssd, gb(7), SimTime());
  g.add_cable(ssd, b, gb(7), SimTime());
  EXPECT_EQ(message_of([&] { static_cast<void>(g.routes()); }),
            "hardware: no route from a to b; add the missing link");
}

TEST(ClusterGraph, RefusesImpossibleDevicesAndCables) {
  ClusterGraph g;
  const auto a = g.add_device("a", DeviceKind::kGpu), b = g.add_device("b", DeviceKind::kGpu);
  EXPECT_EQ(message_of([&] { g.add_device("a", DeviceKind::kCpu, 0, "h.toml:3:1"); }),
            "h.toml:3:1: device \"a\" is there twice");
  EXPECT_EQ(message_of([&] { g.add_device("", DeviceKind::kCpu); }),
            "cluster: a device has no name");
  EXPECT_EQ(message_of([&] { g.add_cable(a, b, gb(0), SimTime()); }),
            "cluster: link a--b: bandwidth = 0 B/s. Violated: 0 < bandwidth < infinity");
  EXPECT_EQ(message_of([&] { g.add_cable(a, b, BytesPerSecond{NAN}, SimTime()); }),
            "cluster: link a--b: bandwidth = nan B/s. Violated: 0 < bandwidth < infinity");
  EXPECT_EQ(message_of([&] { g.add_cable(a, b, gb(1), SimTime::from_ps(-1)); }),
            "cluster: link a--b: latency = -1 ps. Violated: latency >= 0");
  EXPECT_EQ(message_of([&] { g.add_cable(a, a, gb(1), SimTime()); }),
            "cluster: link from \"a\" to itself");
  EXPECT_EQ(message_of([&] { g.add_cable(a, 9, gb(1), SimTime()); }),
            "cluster: link between devices 0 and 9: there are only 2");
  Cable bus;
  bus.a = a;
  bus.b = b;
  bus.a_to_b = gb(1);
  bus.b_to_a = gb(2);
  bus.shared_medium = true;
  bus.where = "h.toml:9:1";
  EXPECT_EQ(message_of([&] { g.add_cable(bus); }),
            "h.toml:9:1: link a--b: a shared medium has one bandwidth");
  EXPECT_TRUE(g.links().empty());
  g.add_cable(a, b, gb(1), SimTime());
  g.add_cable(a, b, gb(2),
              SimTime());  // Parallel cables keep distinct names; the wider one is used.
  EXPECT_EQ(path(g.routes(), 0, 1), "a>b#2");
}

TEST(ClusterGraph, IsBuiltFromAHardwareDescription) {
  scenario::HardwareSpec hw;
  for (const char* name : {"gpu0", "gpu1"}) {
    scenario::Device d;
    d.name = name;
    hw.gpus.push_back(static_cast<std::uint32_t>(hw.devices.size()));
    hw.devices.push_back(d);
  }
  scenario::Device sw;
  sw.name = "sw";
  sw.kind = DeviceKind::kNvSwitch;
  hw.devices.push_back(sw);
  for (std::uint32_t i = 0; i < 2; ++i) {
    scenario::Link l;
    l.name = fmt::format("gpu{}--sw", i);
    l.a = i;
    l.b = 2;
    l.bandwidth = gb(450);
    l.latency = SimTime::from_us(3);
    l.link_class = LinkClass::kNvlink4;
    hw.links.push_back(l);
  }
  const ClusterGraph g = build_cluster(hw);
  const RouteTable t = g.routes();
  EXPECT_EQ(g.gpus(), hw.gpus);
  EXPECT_EQ(path(t, 0, 1), "gpu0>sw sw>gpu1");
  EXPECT_EQ(t.latency(0, 1), SimTime::from_us(6));
  EXPECT_EQ(t.bandwidth[0], 450e9);
  EXPECT_EQ(g.links()[0].link_class, LinkClass::kNvlink4);
}

TEST(RouteTable, SubsetKeepsRoutesAndLinkNumbers) {
  const RouteTable t = staged_box(true).routes();
  const std::vector<std::uint32_t> some{2, 0};
  const RouteTable s = t.subset(some);
  EXPECT_EQ(s.endpoint_name, (std::vector<std::string>{"gpu2", "gpu0"}));
  EXPECT_EQ(path(s, 0, 1), path(t, 2, 0));
  EXPECT_EQ(path(s, 1, 0), path(t, 0, 2));
  EXPECT_EQ(s.latency(0, 1), t.latency(2, 0));
  EXPECT_EQ(s.staged[s.pair(0, 1)], 1);
}

TEST(Bisection, OfAStarIsHalfTheGpusTimesTheirRate) {
  ClusterGraph g;
  for (int i = 0; i < 8; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu);
  }
  const auto hub = g.add_device("hub", DeviceKind::kNvSwitch);
  for (std::uint32_t i = 0; i < 8; ++i) {
    g.add_cable(i, hub, gb(450), SimTime());
  }
  const Bisection b = bisection(g);
  EXPECT_TRUE(b.exact);
  EXPECT_EQ(b.capacity, gb(4 * 450));
  EXPECT_EQ(b.half, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(Bisection, FindsTheNarrowTrunkBetweenInterleavedGroups) {
  ClusterGraph g;
  for (int i = 0; i < 6; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu);
  }
  const auto even = g.add_device("even", DeviceKind::kSwitch);
  const auto odd = g.add_device("odd", DeviceKind::kSwitch);
  for (std::uint32_t i = 0; i < 6; ++i) {
    g.add_cable(i, i % 2 == 0 ? even : odd, gb(100), SimTime());
  }
  Cable trunk;
  trunk.a = even;
  trunk.b = odd;
  trunk.a_to_b = gb(40);
  trunk.b_to_a = gb(30);
  g.add_cable(trunk);
  const Bisection b = bisection(g);
  EXPECT_EQ(b.capacity, gb(30));  // From the odd GPUs to the even ones.
  EXPECT_EQ(b.half, (std::vector<std::uint32_t>{1, 3, 5}));
}

TEST(RouteReport, NamesTheLinkThatLimitsAUniformExchange) {
  ClusterGraph g;
  for (int i = 0; i < 4; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu);
  }
  const auto left = g.add_device("left", DeviceKind::kSwitch);
  const auto right = g.add_device("right", DeviceKind::kSwitch);
  for (std::uint32_t i = 0; i < 4; ++i) {
    g.add_cable(i, i < 2 ? left : right, gb(100), SimTime::from_us(1));
  }
  g.add_cable(left, right, gb(80), SimTime::from_us(2));
  const RouteTable t = g.routes();
  const RouteReport r = report_routes(t);
  EXPECT_EQ(t.link_name[r.uniform_link], "left>right");  // 4 pairs / 80 against 3 / 100.
  EXPECT_EQ(r.pairs_on_link[r.uniform_link], 4u);
  EXPECT_EQ(r.uniform_per_gpu, gb(60));  // 3 peers · 80 / 4.
  EXPECT_EQ(r.longest_hops, 3u);
  EXPECT_EQ(r.longest_latency, SimTime::from_us(4));
  EXPECT_EQ(r.narrow_bandwidth, gb(80));
  EXPECT_EQ(link_table(g, t).rows.size(), g.links().size());
  const Table kinds = route_kind_table(t);  // Same switch, then the other one.
  ASSERT_EQ(kinds.rows.size(), 2u);
  EXPECT_EQ(kinds.rows[0], (std::vector<std::string>{"4", "2", "100.000", "2.000", "switches",
                                                     "gpu0>left left>gpu1"}));
  EXPECT_EQ(kinds.rows[1], (std::vector<std::string>{"8", "3", "80.000", "4.000", "switches",
                                                     "gpu0>left left>right right>gpu2"}));
  EXPECT_EQ(topology_table(g, t).rows[3][1], "80.000");  // Bisection: {0, 1} against {2, 3}.
}

TEST(Shipped, RoutesOfTheHardwareFilesAreThoseOfTheMachines) {
  const auto shipped = [](const std::string& name) {
    return build_cluster(scenario::read_hardware(std::string(SWITCHYARD_SOURCE_DIR) +
                                                 "/scenarios/hardware/" + name + ".toml"));
  };
  {
    const RouteTable t = shipped("h100_4x8_rail").routes();
    ASSERT_EQ(t.endpoints, 32u);
    EXPECT_EQ(path(t, 0, 7), "gpu0>nvswitch0 nvswitch0>gpu7");
    EXPECT_EQ(path(t, 0, 8), "gpu0>nic0 nic0>rail0 rail0>nic8 nic8>gpu8");  // Its own rail.
    EXPECT_EQ(path(t, 0, 9), "gpu0>nic0 nic0>rail0 rail0>spine spine>rail1 rail1>nic9 nic9>gpu9");
    EXPECT_EQ(t.latency(0, 8), SimTime::from_us(10));
    EXPECT_EQ(report_routes(t).through_gpu_pairs, 0u);
    // 24 peers elsewhere share a NIC's 50 GB/s: 31 / 24 · 50.
    EXPECT_NEAR(report_routes(t).uniform_per_gpu.value, 50e9 * 31 / 24, 1);
  }
  {
    const ClusterGraph g = shipped("h100_4x8_fat_tree");
    const RouteTable t = g.routes();
    EXPECT_EQ(path(t, 0, 9), "gpu0>nic0 nic0>leaf0 leaf0>spine spine>leaf1 leaf1>nic9 nic9>gpu9");
    EXPECT_NEAR(report_routes(t).uniform_per_gpu.value, 50e9 * 31 / 24, 1);
    EXPECT_EQ(bisection(g).capacity, gb(800));  // Two servers' leaves: 2 · 400 GB/s.
  }
  {
    const RouteTable t = shipped("l40s_pcie_8").routes();
    EXPECT_EQ(path(t, 0, 3), "gpu0>cpu0 cpu0>gpu3");
    EXPECT_EQ(report_routes(t).staged_pairs, 32u);  // Each card and the four of the other socket.
  }
  {
    const RouteTable t = shipped("hgx_h100_router_card").routes();
    ASSERT_EQ(t.endpoints, 9u);
    EXPECT_EQ(path(t, 8, 0), "gpu8>cpu0 cpu0>gpu0");
    EXPECT_EQ(path(t, 8, 7), "gpu8>cpu0 cpu0>cpu1 cpu1>gpu7");
    EXPECT_EQ(report_routes(t).through_gpu_pairs, 0u);
  }
  {
    const ClusterGraph g = shipped("whatif_cxl_pool");
    const std::vector<std::uint32_t> ends{g.gpus()[0], g.gpus()[7], g.find_device("pool")};
    const RouteTable t = g.routes(ends);
    EXPECT_EQ(path(t, 0, 2), "gpu0>cpu0 cpu0>pool");
    EXPECT_EQ(path(t, 2, 1), "pool>cpu1 cpu1>gpu7");
    EXPECT_EQ(bisection(g).capacity, gb(3600));  // Nothing passes through the pool.
  }
  EXPECT_EQ(bisection(shipped("whatif_optical")).capacity, gb(20000));
}

TEST(Shipped, WhatIsLeftOfALinkDoesNotSendItsTrafficOverPcie) {
  scenario::HardwareSpec h = scenario::read_hardware(std::string(SWITCHYARD_SOURCE_DIR) +
                                                     "/scenarios/hardware/hgx_h100.toml");
  const RouteTable whole = build_cluster(h).routes();
  const std::string way = path(whole, 2, 0);
  ASSERT_EQ(way.find("cpu"), std::string::npos) << way;
  for (const double left : {0.3, 0.1, 0.01}) {
    scenario::HardwareSpec worn = h;
    for (scenario::Link& l : worn.links) {
      const bool own = worn.devices[l.a].name == "gpu2" || worn.devices[l.b].name == "gpu2";
      if (own && l.link_class == scenario::LinkClass::kNvlink4) l.achievable *= left;
    }
    const RouteTable t = build_cluster(worn).routes();
    EXPECT_EQ(path(t, 2, 0), way) << left;
    EXPECT_EQ(path(t, 0, 2), path(whole, 0, 2)) << left;
    const std::uint32_t first = t.links_of(2, 0)[0];
    EXPECT_NEAR(t.bandwidth[first], left * whole.bandwidth[first], 1) << left;
  }
}

TEST(Routes, AThousandGpusTakeUnderASecond) {
  // 128 servers of 8 GPUs, NVSwitch inside, one NIC per GPU, rail switches and a spine.
  ClusterGraph g;
  for (std::uint32_t i = 0; i < 1024; ++i) {
    g.add_device(fmt::format("gpu{}", i), DeviceKind::kGpu, i / 8);
  }
  std::vector<std::uint32_t> rails;
  const auto spine = g.add_device("spine", DeviceKind::kSwitch);
  for (int r = 0; r < 8; ++r) {
    rails.push_back(g.add_device(fmt::format("rail{}", r), DeviceKind::kSwitch));
    g.add_cable(rails.back(), spine, gb(6400), SimTime::from_us(1));
  }
  for (std::uint32_t s = 0; s < 128; ++s) {
    const auto nv = g.add_device(fmt::format("nv{}", s), DeviceKind::kNvSwitch, s);
    for (std::uint32_t k = 0; k < 8; ++k) {
      const auto nic = g.add_device(fmt::format("nic{}_{}", s, k), DeviceKind::kNic, s);
      g.add_cable(s * 8 + k, nv, gb(450), SimTime::from_us(1));
      g.add_cable(s * 8 + k, nic, gb(55), SimTime::from_us(1));
      g.add_cable(nic, rails[k], gb(50), SimTime::from_us(1));
    }
  }
  const std::clock_t begin = std::clock();
  const RouteTable t = g.routes();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(path(t, 0, 1), "gpu0>nv0 nv0>gpu1");
  EXPECT_EQ(path(t, 0, 1016), "gpu0>nic0_0 nic0_0>rail0 rail0>nic127_0 nic127_0>gpu1016");
  EXPECT_EQ(t.links_of(0, 1023).size(), 6u);  // Another rail: over the spine, never over a GPU.
  EXPECT_EQ(report_routes(t).through_gpu_pairs, 0u);
  RecordProperty("cpu_seconds", fmt::format("{:.3f}", seconds));
  fmt::print("routes of 1,024 GPUs: {:.3f} s CPU\n", seconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1.0);  // A promise of the product's build, not of an instrumented one.
#endif
}

}  // namespace
}  // namespace switchyard::cluster
