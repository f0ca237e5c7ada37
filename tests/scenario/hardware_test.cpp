// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/scenario/hardware_reader.hpp"

namespace {

namespace fs = std::filesystem;
using switchyard::InputError;
using switchyard::SimTime;
using switchyard::model::DType;
using namespace switchyard::scenario;  // NOLINT(google-build-using-namespace): the unit under test

HardwareSpec shipped(const std::string& name) {
  return read_hardware(std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/hardware/" + name +
                       ".toml");
}

std::vector<std::string> shipped_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios/hardware")) {
    if (entry.path().extension() == ".toml") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Message of reading `text` as the file scenarios/hardware/h200.toml below the test's folder.
std::string refusal(const std::string& text) {
  fs::create_directories("scenarios/hardware");
  switchyard::write_file("scenarios/hardware/h200.toml", text);
  try {
    static_cast<void>(read_hardware("scenarios/hardware/h200.toml"));
  } catch (const InputError& e) {
    return e.what();
  }
  return "(accepted)";
}

/// A hardware file whose line 17 is `line`, inside [network].
std::string with_line_17(const std::string& line) {
  return "# SPDX-License-Identifier: Apache-2.0\n"
         "name = \"h200\"\n"
         "[gpu_types.h200]\n"
         "memory = \"141 GB\"\n"
         "hbm = \"4.8 TB/s\"\n"
         "peak = { bf16 = \"989 TFLOP/s\" }\n"
         "sms = 132\n"
         "tdp = \"700 W\"\n"
         "[[devices]]\n"
         "name = \"gpu\"\n"
         "count = 2\n"
         "kind = \"gpu\"\n"
         "type = \"h200\"\n"
         "\n"
         "[network]\n"
         "latency = \"3 us\"\n" +
         line +
         "\n"
         "[[links]]\nfrom = \"gpu0\"\nto = \"gpu1\"\n";
}

TEST(Hardware, MissingUnitIsRefusedWithTheWordsOfTheStyleGuide) {
  EXPECT_EQ(refusal(with_line_17("bandwidth = 400")),
            "scenarios/hardware/h200.toml:17:13: network.bandwidth = 400 has no unit; write e.g. "
            "\"400 Gbit/s\" or \"50 GB/s\"");
}

TEST(Hardware, UnknownKeyIsRefusedWithTheNearestOne) {
  EXPECT_EQ(refusal(with_line_17("bandwith = \"400 Gbit/s\"")),
            "scenarios/hardware/h200.toml:17:1: network.bandwith: unknown key; did you mean "
            "\"bandwidth\"?");
  EXPECT_EQ(refusal(with_line_17("bandwidth = \"400 Gbit/s\"")), "(accepted)");
}

TEST(Hardware, MissingFileIsNamed) {
  try {
    static_cast<void>(read_hardware("scenarios/hardware/nowhere.toml"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "scenarios/hardware/nowhere.toml: No such file");
  }
}

TEST(Hardware, LinkTakesItsOwnFigureThenItsTypesThenTheDefault) {
  fs::create_directories("scenarios/hardware");
  switchyard::write_file(
      "scenarios/hardware/layers.toml",
      "[gpu_types.g]\nmemory = \"1 GiB\"\nhbm = \"1 TB/s\"\npeak = { fp16 = \"1 TFLOP/s\" }\n"
      "sms = 1\ntdp = \"1 W\"\n"
      "[network]\nbandwidth = \"10 GB/s\"\nlatency = \"1 us\"\nduplex = \"shared\"\n"
      "[link_types.fast]\nbandwidth = \"80 Gbit/s\"\np2p = false\nclass = \"pcie5\"\n"
      "[[devices]]\nname = \"g[0,2-3]\"\nkind = \"gpu\"\ntype = \"g\"\nper_node = 2\n"
      "[[devices]]\nname = \"s\"\nkind = \"switch\"\n"
      "[[links]]\nfrom = \"g0\"\nto = \"s\"\n"
      "[[links]]\nname = \"f\"\nfrom = \"g[2-3]\"\nto = \"s\"\ntype = \"fast\"\nlatency = \"2 "
      "us\"\n"
      "duplex = \"full\"\n");
  const HardwareSpec h = read_hardware("scenarios/hardware/layers.toml");
  EXPECT_EQ(h.name, "layers");
  ASSERT_EQ(h.devices.size(), 4U);
  EXPECT_EQ(h.devices[1].name, "g2");
  EXPECT_EQ(h.devices[1].node, 0U);
  EXPECT_EQ(h.devices[2].node, 1U);  // the third device of per_node = 2
  EXPECT_EQ(h.nodes, 2U);
  EXPECT_EQ(h.gpus, (std::vector<std::uint32_t>{0, 1, 2}));
  ASSERT_EQ(h.links.size(), 3U);
  EXPECT_EQ(h.links[0].name, "g0--s");
  EXPECT_EQ(h.links[0].bandwidth.value, 10e9);
  EXPECT_EQ(h.links[0].latency, SimTime::from_us(1));
  EXPECT_TRUE(h.links[0].shared_medium);
  EXPECT_TRUE(h.links[0].p2p);
  EXPECT_EQ(h.links[0].link_class, LinkClass::kOther);
  EXPECT_EQ(h.links[2].name, "f1");
  EXPECT_EQ(h.links[2].bandwidth.value, 10e9);  // 80 Gbit/s
  EXPECT_EQ(h.links[2].latency, SimTime::from_us(2));
  EXPECT_FALSE(h.links[2].shared_medium);
  EXPECT_FALSE(h.links[2].p2p);
  EXPECT_EQ(h.links[2].link_class, LinkClass::kPcie5);
}

TEST(Hardware, ALinkSaysWhatExchangesReachAndWhatLaterPhasesPay) {
  const std::string line = "bandwidth = \"400 GB/s\"\n";
  EXPECT_EQ(refusal(with_line_17(line)), "(accepted)");
  const Link plain = read_hardware("scenarios/hardware/h200.toml").links[0];
  EXPECT_EQ(plain.achievable, 1.0);
  EXPECT_FALSE(plain.phase_latency.has_value());
  EXPECT_EQ(refusal(with_line_17(line + "achievable = 0.62\nphase_latency = \"390 ns\"\n")),
            "(accepted)");
  const Link stated = read_hardware("scenarios/hardware/h200.toml").links[0];
  EXPECT_EQ(stated.achievable, 0.62);
  EXPECT_EQ(stated.phase_latency, SimTime::from_ns(390));
  EXPECT_EQ(stated.latency, SimTime::from_us(3));
  EXPECT_EQ(stated.bandwidth.value, 400e9) << "the nominal rate stays what it is";

  const auto has = [&](const std::string& more, const std::string& text) {
    EXPECT_NE(refusal(with_line_17(line + more)).find(text), std::string::npos)
        << refusal(with_line_17(line + more));
  };
  has("achievable = 0\n", "h200.toml:18:14: network.achievable = 0");
  has("achievable = 1.2\n", "network.achievable = 1.2");
  has("achievable = \"62 %\"\n", "network.achievable");
  has("phase_latency = 0.4\n", "network.phase_latency = 0.4 has no unit");
  has("phase_latency = \"3.1 us\"\n", "Violated: phase_latency <= latency");
}

TEST(Hardware, PatternNamesSeveralDevices) {
  EXPECT_EQ(expand_pattern("gpu[0-2,7]", "x", "k"),
            (std::vector<std::string>{"gpu0", "gpu1", "gpu2", "gpu7"}));
  EXPECT_EQ(expand_pattern("nvswitch", "x", "k"), std::vector<std::string>{"nvswitch"});
  for (const char* bad :
       {"", "[0-1]", "gpu[]", "gpu[0-1]x", "gpu[a]", "gpu[0,]", "gpu[-1]", "g u"}) {
    EXPECT_THROW(static_cast<void>(expand_pattern(bad, "x", "k")), InputError) << bad;
  }
}

TEST(Hardware, HgxH100IsAStarOfEightWithTwoSockets) {
  const HardwareSpec h = shipped("hgx_h100");
  EXPECT_EQ(h.gpu_count(), 8U);
  EXPECT_EQ(h.gpu_type(0).memory_bytes, 80000000000U);
  EXPECT_EQ(h.gpu_type(0).hbm.value, 3.35e12);
  EXPECT_EQ(h.gpu_type(0).peak_for(DType::kBf16).value, 989e12);
  EXPECT_EQ(h.gpu_type(7).sms, 132U);
  ASSERT_EQ(h.links.size(), 16U);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(h.devices[h.links[i].b].name, "nvswitch");
    EXPECT_EQ(h.links[i].bandwidth.value, 450e9);  // per direction, not the vendor's 900
    EXPECT_EQ(h.links[i].latency, SimTime::from_us(3));
    // Four GPUs on each socket: gpu0-gpu3 on cpu0, gpu4-gpu7 on cpu1.
    EXPECT_EQ(h.devices[h.links[8 + i].a].name, "gpu" + std::to_string(i));
    EXPECT_EQ(h.devices[h.links[8 + i].b].name, i < 4 ? "cpu0" : "cpu1");
  }
}

TEST(Hardware, MixedSixteenHasEightOnNvlinkAndAllOnPcie) {
  const HardwareSpec h = shipped("mixed_16");
  EXPECT_EQ(h.gpu_count(), 16U);
  std::size_t nvlink = 0;
  std::size_t pcie = 0;
  for (const Link& link : h.links) {
    if (link.link_class == LinkClass::kNvlink3) {
      ++nvlink;
      EXPECT_EQ(link.bandwidth.value, 300e9);
      EXPECT_LT(link.a, 8U);
    } else {
      ++pcie;
      EXPECT_EQ(link.link_class, LinkClass::kPcie4);
      EXPECT_EQ(link.bandwidth.value, 32e9);
    }
  }
  EXPECT_EQ(nvlink, 8U);
  EXPECT_EQ(pcie, 16U);
}

TEST(Hardware, FormatWithoutUnitsRunsAtTheNextWiderOne) {
  const HardwareSpec h = shipped("hgx_a100");
  const GpuType& a100 = h.gpu_type(0);
  EXPECT_EQ(a100.peak_for(DType::kF8E4M3).value, 312e12);    // no fp8 units: bf16
  EXPECT_EQ(a100.peak_for(DType::kInt4G128).value, 312e12);  // widened to bf16
  EXPECT_EQ(a100.peak_for(DType::kI8).value, 624e12);
  EXPECT_EQ(a100.peak_for(DType::kF32).value, 19.5e12);
  EXPECT_EQ(a100.peak_for(DType::kI64).value, 0);
}

TEST(Hardware, EveryShippedFileIsValidAndNamesTheSourceOfEveryFigure) {
  const std::vector<std::string> figures{"memory",      "hbm",    "mbu",           "mfu",
                                         "mfu_grouped", "sms",    "kernel_launch", "tdp",
                                         "bandwidth",   "latency"};
  const std::vector<std::string> names = shipped_names();
  EXPECT_GE(names.size(), 11U);
  for (const std::string& name : names) {
    const std::string path =
        std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/hardware/" + name + ".toml";
    Context context;
    const HardwareSpec h =
        hardware_from(context, load_toml(path, "hardware", path), "no name stated");
    EXPECT_EQ(h.name, name);
    const auto has = [&](const std::string& key) {
      return std::any_of(context.values.begin(), context.values.end(),
                         [&](const ResolvedValue& v) { return v.key == key && !v.value.empty(); });
    };
    std::size_t checked = 0;
    for (const ResolvedValue& v : context.values) {
      const std::size_t dot = v.key.rfind('.');
      const std::string table = v.key.substr(0, dot);
      const std::string leaf = v.key.substr(dot + 1);
      const bool peak = table.ends_with(".peak");
      if (!v.in_hash || v.origin == "default" ||
          (!peak && std::find(figures.begin(), figures.end(), leaf) == figures.end())) {
        continue;
      }
      ++checked;
      EXPECT_TRUE(has(table + ".source." + leaf) || has(table + ".source"))
          << name << ": " << v.key << " names no source";
    }
    EXPECT_GE(checked, 8U) << name;
  }
}

TEST(Hardware, WhoeverTakesTheLatencyOfACallKnowsWhatItsLaterPhasesPay) {
  std::size_t checked = 0;
  for (const std::string& name : shipped_names()) {
    for (const Link& l : shipped(name).links) {
      const bool nvlink = l.link_class == LinkClass::kNvlink3 ||
                          l.link_class == LinkClass::kNvlink4 ||
                          l.link_class == LinkClass::kNvlink5;
      if (!nvlink) continue;
      ++checked;
      EXPECT_TRUE(l.phase_latency && *l.phase_latency < l.latency) << name << ": " << l.name;
    }
  }
  EXPECT_GT(checked, 100U);
}

TEST(Hardware, AKeyOfTooManyPartsIsRefused) {
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += "a.";
  const char* const said = "a key of more than 256 parts";
  for (const std::string& text : {deep + "b = 1\n", "[" + deep + "b]\n", "[[" + deep + "b]]\n"}) {
    EXPECT_EQ(refusal("name = \"x\"\n" + text).find("scenarios/hardware/h200.toml:2:"), 0U);
    EXPECT_NE(refusal("name = \"x\"\n" + text).find(said), std::string::npos);
  }
  // Numbers and sentences have points, too.
  std::string numbers = "x = [";
  for (int i = 0; i < 1'000; ++i) numbers += "0.5, ";
  EXPECT_EQ(refusal(numbers + "]\n").find(said), std::string::npos);
}

TEST(Hardware, AThousandGpusAreReadQuickly) {
  std::string text =
      "[gpu_types.g]\nmemory = \"80 GB\"\nhbm = \"1 TB/s\"\npeak = { bf16 = \"1 TFLOP/s\" }\n"
      "sms = 1\ntdp = \"1 W\"\n[network]\nbandwidth = \"50 GB/s\"\nlatency = \"1 us\"\n"
      "[[devices]]\nname = \"gpu\"\ncount = 1024\nper_node = 8\nkind = \"gpu\"\ntype = \"g\"\n"
      "[[devices]]\nname = \"nv\"\ncount = 128\nper_node = 1\nkind = \"nvswitch\"\n"
      "[[devices]]\nname = \"spine\"\nkind = \"switch\"\n"
      "[[links]]\nfrom = \"gpu[0-1023]\"\nto = \"nv[0-127]\"\n"
      "[[links]]\nfrom = \"nv[0-127]\"\nto = \"spine\"\n";
  switchyard::write_file("thousand.toml", text);
  const HardwareSpec h = read_hardware("thousand.toml");
  EXPECT_EQ(h.gpu_count(), 1024U);
  EXPECT_EQ(h.nodes, 128U);
  EXPECT_EQ(h.links.size(), 1024U + 128U);
  EXPECT_EQ(h.devices[h.links[1023].b].name, "nv127");  // blocks of 8 GPUs per switch
}

}  // namespace
