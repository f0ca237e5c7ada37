// SPDX-License-Identifier: Apache-2.0
#include "experiments/export/dot.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace switchyard::exporters {
namespace {

/// A text of the DOT language: only " and \ have a meaning in quotes, and a line end is \n.
std::string dot_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string rate(BytesPerSecond r) { return fmt::format("{:.6g} GB/s", r.value / 1e9); }

std::string time(SimTime t) {
  return t.ps() >= 1'000'000 ? fmt::format("{:.6g} us", static_cast<double>(t.ps()) / 1e6)
                             : fmt::format("{:.6g} ns", static_cast<double>(t.ps()) / 1e3);
}

std::string label_of(const scenario::HardwareSpec& h, const scenario::Device& d) {
  std::string text =
      d.name + "\n" + std::string(scenario::kDeviceKindNames[static_cast<std::size_t>(d.kind)]);
  std::uint64_t memory = d.memory_bytes;
  if (d.gpu_type >= 0) {
    const scenario::GpuType& type = h.gpu_types[static_cast<std::size_t>(d.gpu_type)];
    text = d.name + "\n" + type.name;
    memory = type.memory_bytes;
  }
  if (memory > 0) text += fmt::format("\n{:.6g} GB", static_cast<double>(memory) / 1e9);
  return text;
}

}  // namespace

std::string hardware_dot(const scenario::HardwareSpec& h, const std::string& title) {
  constexpr std::array<std::string_view, 9> kShapes{"box",     "hexagon",  "hexagon",
                                                    "diamond", "diamond",  "house",
                                                    "ellipse", "cylinder", "cylinder"};
  static_assert(kShapes.size() == scenario::kDeviceKindNames.size());
  // Okabe and Ito's colours, and greys: told apart without red and green.
  constexpr std::array<std::string_view, scenario::kLinkClassNames.size()> kColors{
      "#009E73", "#009E73", "#009E73", "#0072B2", "#0072B2", "#0072B2",
      "#D55E00", "#E69F00", "#777777", "#CC79A7", "#000000"};
  std::string out = fmt::format(
      "graph {} {{\n  label = {};\n  graph [fontname = \"sans-serif\", nodesep = 0.4, ranksep = "
      "0.9];\n  node [fontname = \"sans-serif\", fontsize = 10];\n  edge [fontname = "
      "\"sans-serif\", fontsize = 8];\n",
      dot_text(h.name), dot_text(title));
  for (std::uint32_t node = 0; node < h.nodes; ++node) {
    std::string inside;
    for (std::size_t i = 0; i < h.devices.size(); ++i) {
      const scenario::Device& d = h.devices[i];
      if (d.node != node) continue;
      // A router card is a GPU.
      const std::size_t kind =
          d.kind == scenario::DeviceKind::kRouterCard ? 0 : static_cast<std::size_t>(d.kind);
      inside += fmt::format("    d{} [label = {}, shape = {}];\n", i, dot_text(label_of(h, d)),
                            kShapes[kind]);
    }
    if (inside.empty()) continue;
    out += h.nodes == 1 ? inside
                        : fmt::format(
                              "  subgraph cluster_{} {{\n    label = \"server {}\";\n{}  "
                              "}}\n",
                              node, node, inside);
  }
  for (const scenario::Link& l : h.links) {
    const auto kind = static_cast<std::size_t>(l.link_class);
    out += fmt::format(
        "  d{} -- d{} [label = {}, color = \"{}\", style = {}];\n", l.a, l.b,
        dot_text(fmt::format("{}\n{}{}\n{}", scenario::kLinkClassNames[kind], rate(l.bandwidth),
                             l.shared_medium ? " shared" : "", time(l.latency))),
        kColors[kind],
        !l.p2p            ? "dashed"
        : l.shared_medium ? "bold"
                          : "solid");
  }
  return out + "}\n";
}

}  // namespace switchyard::exporters
