// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/nccl_xml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "experiments/import/hardware_text.hpp"

namespace switchyard::importers {
namespace {

using Tree = boost::property_tree::ptree;

constexpr std::size_t kMaxText = std::size_t{1} << 20U;
constexpr std::size_t kMaxDepth = 32, kMaxPci = 256, kMaxGpus = 64;

std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 32)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

/// The XML library goes into elements recursively: how deep is counted before.
void check_depth(std::string_view text, const std::string& where) {
  std::size_t depth = 0, line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ++line;
    if (text[i] != '<' || i + 1 >= text.size()) continue;
    if (text.substr(i).starts_with("<!--")) {
      const std::size_t end = text.find("-->", i);
      const std::string_view comment = text.substr(i, end - i);
      line += static_cast<std::size_t>(std::count(comment.begin(), comment.end(), '\n'));
      if (end == std::string_view::npos) return;
      i = end;
    } else if (text[i + 1] == '/') {
      depth -= depth > 0 ? 1U : 0U;
    } else if (text[i + 1] != '?' && text[i + 1] != '!') {
      const std::size_t end = text.find('>', i);
      if (end == std::string_view::npos) return;
      if (text[end - 1] != '/' && ++depth > kMaxDepth) {
        throw InputError(fmt::format("{}:{}", where, line),
                         fmt::format("elements more than {} deep", kMaxDepth));
      }
    }
  }
}

std::optional<std::string> attribute(const Tree& element, const char* name) {
  const auto value = element.get_optional<std::string>(std::string("<xmlattr>.") + name);
  if (!value) return std::nullopt;
  return *value;
}

std::optional<std::uint32_t> whole(const std::optional<std::string>& text) {
  std::uint32_t v = 0;
  if (!text) return std::nullopt;
  const auto [end, ec] = std::from_chars(text->data(), text->data() + text->size(), v);
  if (ec != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return v;
}

struct Pcie {
  double rate = 0;  ///< bytes/s per direction; 0: not stated
  std::string source;
  LinkClass link_class = LinkClass::kOther;
};

/// "16 GT/s", "32.0 GT/s PCIe" and a width in lanes.
Pcie pcie_of(const Tree& element, const std::string& place) {
  const std::string speed = attribute(element, "link_speed").value_or("");
  const std::optional<std::string> width_text = attribute(element, "link_width");
  const std::optional<std::uint32_t> width = whole(width_text);
  if (width_text && !width_text->empty() && !width) {
    throw InputError(place, fmt::format("link_width = \"{}\"", shown(*width_text)));
  }
  Pcie out;
  if (speed.empty() || speed.starts_with("Unknown") || !width || *width == 0) return out;
  double gt = 0;
  const auto [end, ec] = std::from_chars(speed.data(), speed.data() + speed.size(), gt);
  const std::string_view unit(end, static_cast<std::size_t>(speed.data() + speed.size() - end));
  if (ec != std::errc{} || (unit != " GT/s" && unit != " GT/s PCIe")) {
    throw InputError(place, fmt::format("link_speed = \"{}\"", shown(speed)),
                     "e.g. \"16 GT/s\" or \"32.0 GT/s PCIe\"");
  }
  double coding = 128.0 / 130;
  if (gt == 2.5 || gt == 5) {
    coding = 0.8;
  } else if (gt == 16) {
    out.link_class = LinkClass::kPcie4;
  } else if (gt == 32) {
    out.link_class = LinkClass::kPcie5;
  } else if (gt == 64) {
    out.link_class = LinkClass::kPcie6;
    coding = 242.0 / 256;
  } else if (gt != 8) {
    throw InputError(place, fmt::format("link_speed of {} GT/s", gt),
                     "known: 2.5, 5, 8, 16, 32, 64");
  }
  if (*width > 32) throw InputError(place, fmt::format("link_width = {}", *width));
  out.rate = gt * 1e9 * *width / 8 * coding;
  out.source = fmt::format("{} GT/s x{}, as the XML states", gt, *width);
  return out;
}

struct Lane {
  std::string target, tclass;
  std::uint32_t count = 0;
};

enum class Kind : std::uint8_t { kSwitch, kGpu, kNic };

struct Node {
  Kind kind = Kind::kSwitch;
  std::string bus, name, up;  ///< `up`: name of the parent, set once all names are.
  std::int64_t parent = -1;   ///< Index of the switch, or −1: the socket.
  std::size_t socket = 0;
  Pcie link;
  std::vector<Lane> lanes;
  std::optional<std::uint32_t> dev;
};

struct Reader {
  std::string where;
  std::vector<Node> nodes;
  std::set<std::string> seen;
  std::uint32_t left_out = 0;

  void pci(const Tree& element, std::int64_t parent, std::size_t socket) {
    const std::string bus = attribute(element, "busid").value_or("");
    const std::string place = fmt::format("{}: pci {}", where, shown(bus));
    if (bus.empty()) throw InputError(where, "a pci element without busid");
    if (!seen.insert(bus).second) throw InputError(place, "the bus id comes twice");
    if (seen.size() > kMaxPci) {
      throw InputError(where, fmt::format("more than {} pci elements", kMaxPci));
    }
    const std::string type = attribute(element, "class").value_or("");
    const bool has_gpu = element.get_child_optional("gpu").has_value();
    const bool has_nic = element.get_child_optional("nic").has_value();
    const bool has_pci = element.get_child_optional("pci").has_value();
    Node n;
    n.bus = bus;
    n.parent = parent;
    n.socket = socket;
    n.link = pcie_of(element, place);
    if (has_gpu || type.starts_with("0x0302") || type.starts_with("0x0300")) {
      n.kind = Kind::kGpu;
      if (has_gpu) gpu(element.get_child("gpu"), n, place);
    } else if (has_nic || type.starts_with("0x02")) {
      n.kind = Kind::kNic;
    } else if (type.starts_with("0x0604") || has_pci) {
      n.kind = Kind::kSwitch;
    } else {
      ++left_out;
      return;
    }
    if (has_pci && n.kind != Kind::kSwitch) throw InputError(place, "a device that others hang on");
    const auto at = static_cast<std::int64_t>(nodes.size());
    nodes.push_back(std::move(n));
    for (const auto& [name, child] : element) {
      if (name == "pci") pci(child, at, socket);
    }
  }

  static void gpu(const Tree& element, Node& n, const std::string& place) {
    n.dev = whole(attribute(element, "dev"));
    for (const auto& [name, child] : element) {
      if (name != "nvlink") {
        if (name == "xgmi" || name == "c2c") {
          throw InputError(place, fmt::format("unsupported: {} links", name));
        }
        continue;
      }
      Lane lane;
      lane.target = attribute(child, "target").value_or("");
      lane.tclass = attribute(child, "tclass").value_or("");
      lane.count = whole(attribute(child, "count")).value_or(0);
      if (lane.target.empty() || lane.count == 0 || lane.count > 64) {
        throw InputError(place, "an nvlink without target, or whose count is not 1 to 64");
      }
      n.lanes.push_back(std::move(lane));
    }
  }
};

}  // namespace

NcclXml hardware_from_nccl_xml(std::string_view text, const std::string& where,
                               const TopoMOptions& options) {
  if (text.size() > kMaxText) {
    throw InputError(where, fmt::format("{} bytes. Violated: at most 1 MiB", text.size()));
  }
  check_depth(text, where);
  Tree root;
  try {
    std::istringstream in{std::string(text)};
    boost::property_tree::read_xml(in, root,
                                   boost::property_tree::xml_parser::no_comments |
                                       boost::property_tree::xml_parser::trim_whitespace);
  } catch (const boost::property_tree::xml_parser_error& e) {
    throw InputError(fmt::format("{}:{}", where, std::max(e.line(), 1UL)),
                     fmt::format("no XML: {}", e.message()), "give what NCCL_TOPO_DUMP_FILE wrote");
  }
  if (root.size() != 1 || root.front().first != "system") {
    throw InputError(where + ":1", "no <system>", "give what NCCL_TOPO_DUMP_FILE wrote");
  }
  NcclXml out;
  Reader reader;
  reader.where = where;
  std::vector<std::string> sockets;
  for (const auto& [name, cpu] : root.front().second) {
    if (name != "cpu") continue;
    const std::string numa = attribute(cpu, "numaid").value_or(std::to_string(sockets.size()));
    if (std::find(sockets.begin(), sockets.end(), numa) != sockets.end()) {
      throw InputError(
          where, fmt::format("unsupported: cpu numaid {} twice (several servers?)", shown(numa)));
    }
    sockets.push_back(numa);
    for (const auto& [inner, element] : cpu) {
      if (inner == "pci") reader.pci(element, -1, sockets.size() - 1);
    }
  }
  std::vector<Node>& nodes = reader.nodes;
  std::vector<std::size_t> gpus;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kind == Kind::kGpu) gpus.push_back(i);
  }
  if (gpus.empty() || gpus.size() > kMaxGpus) {
    throw InputError(where, fmt::format("{} GPUs. Violated: 1 to {}", gpus.size(), kMaxGpus));
  }
  if (std::all_of(gpus.begin(), gpus.end(),
                  [&](std::size_t g) { return nodes[g].dev.has_value(); })) {
    std::stable_sort(gpus.begin(), gpus.end(),
                     [&](std::size_t a, std::size_t b) { return nodes[a].dev < nodes[b].dev; });
  }

  const scenario::HardwareSpec& like = options.like;
  const auto& [figures, gpu, pcie, nvlink, numa] = figures_of(like);
  HardwareWriter writer;
  std::map<std::string, std::size_t> by_bus;
  for (std::size_t g = 0; g < gpus.size(); ++g) {
    Node& n = nodes[gpus[g]];
    n.name = fmt::format("gpu{}", g);
    by_bus[n.bus] = gpus[g];
    writer.device(n.name, "gpu", gpu.name);
  }
  std::size_t switches = 0, nics = 0;
  for (Node& n : nodes) {
    if (n.kind == Kind::kSwitch) {
      n.name = fmt::format("pcie{}", switches++);
      writer.device(n.name, "pcie_switch");
    } else if (n.kind == Kind::kNic) {
      n.name = fmt::format("nic{}", nics++);
      writer.device(n.name, "nic");
    }
  }
  for (std::size_t s = 0; s < sockets.size(); ++s) writer.device(fmt::format("cpu{}", s), "cpu");

  // NVLink.
  std::set<std::uint32_t> lane_types;
  const auto lane_type = [&](const Node& n, std::uint32_t lanes) {
    if (nvlink == nullptr) {
      throw InputError("--like",
                       fmt::format("{} has no NVLink cable, but {} has", like.name, n.bus),
                       "name a hardware file of such a server");
    }
    const std::uint32_t most = lanes_of(nvlink->link_class);
    std::string type = fmt::format("nv{}", lanes);
    if (lane_types.insert(lanes).second) {
      writer.link_type(
          type, nvlink->link_class, nvlink->bandwidth.value / most * lanes, *nvlink,
          fmt::format("{} of {} lanes of {}: {}", lanes, most,
                      scenario::kLinkClassNames[static_cast<std::size_t>(nvlink->link_class)],
                      figures));
    }
    return type;
  };
  std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> pairs;
  std::map<std::size_t, std::uint32_t> to_switch;
  for (const std::size_t g : gpus) {
    std::uint32_t sum = 0;
    for (const Lane& lane : nodes[g].lanes) {
      const std::string place = fmt::format("{}: gpu {}", where, nodes[g].bus);
      sum += lane.count;
      const auto other = by_bus.find(lane.target);
      if (other != by_bus.end()) {
        if (other->second == g) throw InputError(place, "NVLink to itself");
        pairs[{g, other->second}] += lane.count;
      } else if (lane.tclass.starts_with("0x0680")) {
        to_switch[g] += lane.count;
      } else {
        throw InputError(place, fmt::format("NVLink to {}, which is no GPU here and no NVSwitch",
                                            shown(lane.target)));
      }
    }
    if (sum == 0) continue;
    out.nvlink = true;
    if (nvlink != nullptr && sum > lanes_of(nvlink->link_class)) {
      throw InputError(fmt::format("{}: gpu {}", where, nodes[g].bus),
                       fmt::format("{} NVLink lanes; a GPU of {} has {}", sum, like.name,
                                   lanes_of(nvlink->link_class)));
    }
  }
  if (!to_switch.empty()) writer.device("nvswitch0", "nvswitch");
  for (const auto& [g, lanes] : to_switch) {
    writer.link(nodes[g].name, "nvswitch0", lane_type(nodes[g], lanes));
  }
  for (const auto& [ends, lanes] : pairs) {
    const auto back = pairs.find({ends.second, ends.first});
    if (back == pairs.end() || back->second != lanes) {
      throw InputError(fmt::format("{}: gpu {}", where, nodes[ends.first].bus),
                       fmt::format("{} NVLink lanes to {}, which states {}", lanes,
                                   nodes[ends.second].bus, back == pairs.end() ? 0 : back->second));
    }
    if (ends.first < ends.second) {
      writer.link(nodes[ends.first].name, nodes[ends.second].name,
                  lane_type(nodes[ends.first], lanes));
    }
  }

  // PCIe.
  std::map<std::string, std::string> pcie_types;  // source → type
  for (const Node& n : nodes) {
    Pcie link = n.link;
    if (!(link.rate > 0)) {
      ++out.unstated;
      link = {pcie->bandwidth.value, figures, pcie->link_class};
    }
    auto& type = pcie_types[link.source];
    if (type.empty()) {
      type = fmt::format("pcie_{}", pcie_types.size() - 1);
      writer.link_type(type, link.link_class, link.rate, *pcie, link.source, pcie->p2p);
    }
    const std::string up = n.parent < 0 ? fmt::format("cpu{}", n.socket)
                                        : nodes[static_cast<std::size_t>(n.parent)].name;
    writer.link(n.name, up, type);
  }
  if (sockets.size() > 1) {
    if (!options.numa && numa == nullptr) {
      throw InputError(
          "--numa",
          fmt::format("{} sockets, and {} has no cable between sockets", sockets.size(), like.name),
          "state it per direction, e.g. --numa \"67.2 GB/s\"");
    }
    writer.link_type("numa", LinkClass::kNuma,
                     options.numa ? options.numa->value : numa->bandwidth.value,
                     numa != nullptr ? *numa : *pcie, options.numa ? "stated with --numa" : figures,
                     numa == nullptr || numa->p2p);
    for (std::size_t a = 0; a < sockets.size(); ++a) {
      for (std::size_t b = a + 1; b < sockets.size(); ++b) {
        writer.link(fmt::format("cpu{}", a), fmt::format("cpu{}", b), "numa");
      }
    }
  }
  out.left_out = reader.left_out;
  out.toml = writer.text(fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n# From an NCCL topology XML ({} GPUs, {} NICs){}. "
      "Figures of the GPU, of NVLink lanes and latencies: {}.\n# Bandwidths are per direction.\n"
      "name = \"{}\"\n\n{}",
      gpus.size(), nics, out.nvlink ? "" : ", which states no NVLink", like.name, options.name,
      gpu_type_text(gpu, figures)));
  return out;
}

}  // namespace switchyard::importers
