// SPDX-License-Identifier: Apache-2.0
// nvidia-smi topo -m and NCCL's topology XML → hardware file: real texts, trees of PCIe switches,
// hostile input.
#include "experiments/import/topo_m.hpp"
#include "experiments/import/nccl_xml.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/report.hpp"
#include "sim/scenario/hardware_reader.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::importers {
namespace {

scenario::HardwareSpec like(const std::string& name) {
  return scenario::read_hardware(std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/hardware/" +
                                 name + ".toml");
}

std::string fixture(const std::string& name) {
  return read_file(std::string(SWITCHYARD_SOURCE_DIR) + "/tests/fixtures/topo_m/" + name + ".txt");
}

scenario::HardwareSpec imported(const std::string& text, const std::string& like_name,
                                bool numa = false) {
  TopoMOptions o;
  o.name = "mine";
  o.like = like(like_name);
  if (numa) o.numa = BytesPerSecond{67.2e9};
  const std::string toml = hardware_from_topo_m(text, "topo.txt", o);
  auto source = std::make_shared<scenario::Source>();
  source->name = "mine.toml";
  scenario::Context context;
  return scenario::hardware_from(context, scenario::parse_toml(toml, source), "?");
}

std::string path(const cluster::RouteTable& t, std::uint32_t a, std::uint32_t b) {
  std::string out;
  for (const std::uint32_t l : t.links_of(a, b)) out += (out.empty() ? "" : " ") + t.link_name[l];
  return out;
}

TEST(TopoM, AnHgxIsOneNvswitchAndTwoSockets) {
  for (const std::string name : {"hgx_a100", "hgx_h100"}) {
    const scenario::HardwareSpec h = imported(fixture(name + "_8gpu"), name, true);
    EXPECT_EQ(h.name, "mine");
    ASSERT_EQ(h.gpu_count(), 8U);
    // 8 GPUs, the NVSwitch, 2 sockets; 8 NVLink and 8 PCIe cables and one between the sockets.
    EXPECT_EQ(h.devices.size(), 11U);
    EXPECT_EQ(h.links.size(), 17U);
    const scenario::HardwareSpec shipped = like(name);
    EXPECT_EQ(h.gpu_type(0).memory_bytes, shipped.gpu_type(0).memory_bytes);
    EXPECT_EQ(h.gpu_type(0).hbm, shipped.gpu_type(0).hbm);
    EXPECT_EQ(h.gpu_type(0).peak, shipped.gpu_type(0).peak);
    EXPECT_EQ(h.gpu_type(0).kernel_launch, shipped.gpu_type(0).kernel_launch);
    const cluster::RouteTable a = cluster::build_cluster(h).routes();
    const cluster::RouteTable b = cluster::build_cluster(shipped).routes();
    EXPECT_EQ(path(a, 0, 7), "gpu0>nvswitch0 nvswitch0>gpu7");
    EXPECT_EQ(a.phase_latency_ps, b.phase_latency_ps);
    EXPECT_EQ(h.links[0].achievable, shipped.links[0].achievable);
    EXPECT_EQ(a.latency_ps, b.latency_ps);  // NV12 and NV18 are all lanes: the same figures.
    EXPECT_DOUBLE_EQ(cluster::report_routes(a).narrow_bandwidth.value,
                     cluster::report_routes(b).narrow_bandwidth.value);
  }
}

TEST(TopoM, TwoLanesBetweenTwoCardsAreOneCable) {
  const scenario::HardwareSpec h = imported(fixture("dual_nv2"), "hgx_a100");
  ASSERT_EQ(h.gpu_count(), 2U);
  EXPECT_EQ(h.devices.size(), 3U);  // and one socket: the NUMA column says N/A
  ASSERT_EQ(h.links.size(), 3U);
  EXPECT_EQ(h.links[0].name, "gpu0--gpu1");
  EXPECT_DOUBLE_EQ(h.links[0].bandwidth.value, 50e9);  // 2 of 12 lanes of 300 GB/s
  EXPECT_EQ(h.links[0].link_class, scenario::LinkClass::kNvlink3);
}

TEST(TopoM, FourCardsWithFourLanesEachArePairedWithoutASwitch) {
  // 4 · 3 = 12 lanes: all a card has, so they go from card to card.
  const std::string text =
      "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
      "GPU0\t X \tNV4\tNV4\tNV4\t0-31\t0\nGPU1\tNV4\t X \tNV4\tNV4\t0-31\t0\n"
      "GPU2\tNV4\tNV4\t X \tNV4\t0-31\t0\nGPU3\tNV4\tNV4\tNV4\t X \t0-31\t0\n";
  const scenario::HardwareSpec h = imported(text, "hgx_a100");
  EXPECT_EQ(h.devices.size(), 5U);
  std::size_t cables = 0;
  for (const scenario::Link& l : h.links) cables += l.bandwidth.value == 100e9 ? 1 : 0;
  EXPECT_EQ(cables, 6U);
}

/// Two sockets; on each: two cards behind one switch (PIX), a NIC beside them under another switch
/// (PXB), and a card on a second root complex (NODE) in socket 0. With the header underlined as on
/// a terminal, a legend, and Windows line ends.
const char* const kTree =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\r\n"
    "GPU0\t X \tPIX\tNODE\tSYS\tPXB\t0-31\t0\t\tN/A\r\n"
    "GPU1\tPIX\t X \tNODE\tSYS\tPXB\t0-31\t0\t\tN/A\r\n"
    "GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-31\t0\t\tN/A\r\n"
    "GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A\r\n"
    "NIC0\tPXB\tPXB\tNODE\tSYS\t X \r\n"
    "\r\nLegend:\r\n\r\n  X    = Self\r\n  SYS  = Connection traversing PCIe as well\r\n"
    "NIC Legend:\r\n\r\n  NIC0: mlx5_0\r\n";

TEST(TopoM, PcieDistancesBecomeATree) {
  const scenario::HardwareSpec h = imported(kTree, "l40s_pcie_8");
  const cluster::ClusterGraph g = cluster::build_cluster(h);
  std::vector<std::uint32_t> ends = g.gpus();
  ends.push_back(g.find_device("nic0"));
  ASSERT_NE(ends.back(), cluster::kNone);
  const cluster::RouteTable t = g.routes(ends);
  EXPECT_EQ(path(t, 0, 1), "gpu0>pcie0 pcie0>gpu1");
  EXPECT_EQ(path(t, 0, 4), "gpu0>pcie0 pcie0>pcie_upper0 pcie_upper0>nic0");
  // The pair's group is the only one of socket 0 besides GPU 2: its root is the upper switch's own.
  EXPECT_EQ(path(t, 0, 2), "gpu0>pcie0 pcie0>pcie_upper0 pcie_upper0>cpu0 cpu0>gpu2");
  EXPECT_EQ(t.staged[t.pair(0, 3)], 1);  // Between sockets of this kind of server.
  EXPECT_EQ(t.staged[t.pair(0, 2)], 0);
  EXPECT_EQ(h.gpus.size(), 4U);
}

std::string message(const std::string& text, const std::string& like_name = "hgx_a100",
                    bool numa = true) {
  try {
    imported(text, like_name, numa);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

void expect_refused(const std::string& text, const std::string& part) {
  const std::string m = message(text);
  EXPECT_NE(m.find(part), std::string::npos) << m << "\nwanted: " << part;
  EXPECT_EQ(m.find('\n'), std::string::npos) << m;
}

TEST(TopoM, HostileTextsAreRefusedWithTheirLine) {
  expect_refused("", "there is no matrix");
  expect_refused("\n\n \t\n", "there is no matrix");
  expect_refused("not a matrix\n", "topo.txt:1: \"not\" is no device");
  expect_refused("GPU0 GPU0\n", "column GPU0 comes twice");
  expect_refused("NIC0 GPU0\n", "after a device that is no GPU");
  expect_refused("NIC0 CPU Affinity\n", "no GPU in the header");
  expect_refused("GPU0 GPU1\nGPU0 X PIX\n", "row GPU1 is missing");
  expect_refused("GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\n", "topo.txt:3: row GPU0 comes twice");
  expect_refused("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n", "topo.txt:2: row GPU0 has 1 of 2 columns");
  expect_refused("GPU0 GPU1\nGPU0 X PIX\nGPU7 PIX X\n", "\"GPU7\" is no row");
  expect_refused("GPU0 GPU1\nGPU0 X PIY\nGPU1 PIX X\n", "\"PIY\" is no distance");
  expect_refused("GPU0 GPU1\nGPU0 X NV\nGPU1 NV X\n", "\"NV\" is no distance");
  expect_refused("GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n", "\"NV0\" is no distance");
  expect_refused("GPU0 GPU1\nGPU0 X NV99999999999\nGPU1 NV1 X\n", "is no distance");
  expect_refused("GPU0 GPU1\nGPU0 X NV13\nGPU1 NV13 X\n", "a GPU of hgx_a100 has 12 NVLink lanes");
  expect_refused("GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X\n", "GPU0 with itself is PIX");
  expect_refused("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", "GPU0 with GPU1 is X");
  expect_refused("GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n", "the matrix is not symmetric");
  expect_refused("GPU0 NIC0\nGPU0 X NV1\nNIC0 NV1 X\n", "which are not both GPUs");
  // 0–1 and 1–2 on one switch, yet 0–2 on different sockets.
  expect_refused("GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n",
                 "no such tree");
  expect_refused("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3 abc\nGPU1 PIX X 0-3 0\n",
                 "\"abc\" is no NUMA node");
  // More lanes than a GPU has, pair by pair: 8 + 8.
  expect_refused("GPU0 GPU1 GPU2\nGPU0 X NV8 NV8\nGPU1 NV8 X PIX\nGPU2 NV8 PIX X\n",
                 "GPU0 has 16 lanes in all");
  expect_refused("GPU0 gpu0\nGPU0 X PIX\ngpu0 PIX X\n", "two devices are called gpu0");
  expect_refused("\x01\x02\xff GPU0\n", "\"???\" is no device");
  expect_refused(std::string(70000, 'G'), "longer than 64 KiB");
  expect_refused(std::string(2U << 20U, ' '), "at most 1 MiB");
  std::string wide;
  for (int i = 0; i < 65; ++i) wide += "GPU" + std::to_string(i) + " ";
  expect_refused(wide + "\n", "65 GPUs of 65 devices. Violated: at most 64");
}

TEST(TopoM, MissingFiguresAreAskedFor) {
  const std::string pair = "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n";
  EXPECT_NE(message(pair, "hgx_h100", false).find("2 sockets, and hgx_h100 has no cable"),
            std::string::npos);
  EXPECT_EQ(message(pair, "hgx_h100", true), "no error");
  EXPECT_NE(
      message("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n", "l40s_pcie_8").find("has no NVLink cable"),
      std::string::npos);
}

/// splitmix64, as in the scenario corpus.
TEST(TopoM, DamagedTextsAreReadOrRefusedButNeverAnythingElse) {
  std::uint64_t state = 7;
  const auto next = [&state](std::uint64_t n) {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return (z ^ (z >> 31U)) % n;
  };
  std::size_t accepted = 0, refused = 0;
  TopoMOptions o;
  o.name = "mine";
  o.like = like("hgx_a100");
  o.numa = BytesPerSecond{67.2e9};
  for (int round = 0; round < 2000; ++round) {
    std::string text = round % 2 == 0 ? std::string(kTree) : fixture("hgx_a100_8gpu");
    for (std::uint64_t e = 0; e <= next(3); ++e) {
      const std::size_t at = next(text.size());
      switch (next(3)) {
        case 0:
          text[at] = static_cast<char>(next(256));
          break;
        case 1:
          text.erase(at, 1 + next(20));
          break;
        default:
          text.insert(at, text.substr(next(text.size()), next(30)));
      }
    }
    try {
      const std::string toml = hardware_from_topo_m(text, "t", o);
      auto source = std::make_shared<scenario::Source>();
      source->name = "m";
      scenario::Context context;
      static_cast<void>(scenario::hardware_from(context, scenario::parse_toml(toml, source), "?"));
      ++accepted;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100U);
  EXPECT_GT(refused, 100U);
}

scenario::HardwareSpec from_xml(const std::string& text, const std::string& like_name,
                                bool numa = true) {
  TopoMOptions o;
  o.name = "mine";
  o.like = like(like_name);
  if (numa) o.numa = BytesPerSecond{67.2e9};
  const NcclXml xml = hardware_from_nccl_xml(text, "t.xml", o);
  auto source = std::make_shared<scenario::Source>();
  source->name = "mine.toml";
  scenario::Context context;
  return scenario::hardware_from(context, scenario::parse_toml(xml.toml, source), "?");
}

/// Two GPUs behind one switch; `a` and `b` are their nvlink elements.
std::string two_gpus(const std::string& a, const std::string& b,
                     const std::string& speed = "16.0 GT/s PCIe") {
  const auto gpu = [&](const std::string& bus, const std::string& dev, const std::string& lanes) {
    return "<pci busid=\"" + bus + "\" class=\"0x030200\" link_speed=\"" + speed +
           "\" link_width=\"16\">\n<gpu dev=\"" + dev + "\" sm=\"80\">" + lanes + "</gpu></pci>\n";
  };
  return "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\" "
         "class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\n" +
         gpu("0000:03:00.0", "1", a) + gpu("0000:02:00.0", "0", b) + "</pci>\n</cpu>\n</system>\n";
}

std::string lanes(const std::string& target, int count, const std::string& type) {
  return "<nvlink target=\"" + target + "\" count=\"" + std::to_string(count) + "\" tclass=\"" +
         type + "\"/>";
}

std::string xml_refusal(const std::string& text, const std::string& like_name = "hgx_a100") {
  try {
    static_cast<void>(from_xml(text, like_name));
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(NcclXml, ACloudsFileIsATreeOfPcieSwitches) {
  const std::string text = read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                     "/tests/fixtures/nccl_xml/azure_ndv5-topo.xml");
  const scenario::HardwareSpec h = from_xml(text, "hgx_h100");
  ASSERT_EQ(h.gpu_count(), 8U);
  // 8 GPUs, 8 switches, 8 NICs, 2 sockets; a cable for each but the sockets, and one between them.
  EXPECT_EQ(h.devices.size(), 26U);
  EXPECT_EQ(h.links.size(), 25U);
  // 32 GT/s · 16 lanes / 8 · 128/130
  EXPECT_NEAR(h.links[0].bandwidth.value, 63.0154e9, 1e5);
  EXPECT_EQ(h.links[0].link_class, scenario::LinkClass::kPcie5);
  const cluster::RouteTable t = cluster::build_cluster(h).routes();
  EXPECT_EQ(path(t, 0, 7), "gpu0>pcie0 pcie0>cpu0 cpu0>cpu1 cpu1>pcie7 pcie7>gpu7");
}

TEST(NcclXml, NvlinkToAGpuIsACableAndToSwitchesOneCable) {
  const scenario::HardwareSpec pair =
      from_xml(two_gpus(lanes("0000:02:00.0", 4, "0x030200"), lanes("0000:03:00.0", 4, "0x030200")),
               "hgx_a100", false);
  ASSERT_EQ(pair.gpu_count(), 2U);
  EXPECT_EQ(pair.links[0].name, "gpu1--gpu0");
  EXPECT_DOUBLE_EQ(pair.links[0].bandwidth.value, 100e9);  // 4 of 12 lanes of 300 GB/s
  // 16 GT/s x16 of a GPU, 8 GT/s x16 of the switch.
  EXPECT_NEAR(pair.links[2].bandwidth.value, 31.5077e9, 1e5);
  EXPECT_NEAR(pair.links[1].bandwidth.value, 15.7538e9, 1e5);
  EXPECT_EQ(pair.links[1].link_class, scenario::LinkClass::kOther);

  const std::string both =
      lanes("0000:05:00.0", 5, "0x068000") + lanes("0000:06:00.0", 7, "0x068000");
  const scenario::HardwareSpec hub = from_xml(two_gpus(both, both, ""), "hgx_a100", false);
  const cluster::RouteTable t = cluster::build_cluster(hub).routes();
  EXPECT_EQ(path(t, 0, 1), "gpu0>nvswitch0 nvswitch0>gpu1");
  EXPECT_DOUBLE_EQ(hub.links[0].bandwidth.value, 300e9);
}

TEST(NcclXml, BadInputNamesThePlace) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(xml_refusal("GPU0 GPU1\n"), "t.xml:1: no "));
  EXPECT_TRUE(has(xml_refusal("<system>\n<cpu>\n</system>"), "t.xml:3: no XML"));
  EXPECT_TRUE(has(xml_refusal("<topology/>"), "t.xml:1: no <system>"));
  EXPECT_TRUE(has(xml_refusal("<system version=\"1\"/>"), "t.xml: 0 GPUs"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<pci>";
  EXPECT_TRUE(has(xml_refusal(deep), "t.xml:1: elements more than 32 deep"));
  const std::string one = lanes("0000:02:00.0", 4, "0x030200");
  EXPECT_TRUE(has(xml_refusal(two_gpus(one, "")),
                  "t.xml: gpu 0000:03:00.0: 4 NVLink lanes to 0000:02:00.0, which states 0"));
  EXPECT_TRUE(has(xml_refusal(two_gpus(lanes("0000:09:00.0", 4, "0x020000"), "")),
                  "NVLink to 0000:09:00.0, which is no GPU here and no NVSwitch"));
  EXPECT_TRUE(has(xml_refusal(two_gpus(lanes("0000:09:00.0", 13, "0x068000"), "")),
                  "13 NVLink lanes; a GPU of hgx_a100 has 12"));
  EXPECT_TRUE(has(xml_refusal(two_gpus(one, "", "sixteen")),
                  "t.xml: pci 0000:03:00.0: link_speed = \"sixteen\""));
  EXPECT_TRUE(has(xml_refusal(two_gpus(one, "", "7 GT/s")), "link_speed of 7 GT/s"));
  std::string twice = two_gpus("", "");
  twice.replace(twice.find("0000:02:00.0"), 12, "0000:03:00.0");
  EXPECT_TRUE(has(xml_refusal(twice), "t.xml: pci 0000:03:00.0: the bus id comes twice"));
}

}  // namespace
}  // namespace switchyard::importers
