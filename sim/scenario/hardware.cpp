// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/hardware.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "sim/scenario/hardware_reader.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::size_t kMaxNames = 65536;
constexpr std::uint64_t kMaxNode = 65535;
constexpr std::array<model::DType, 7> kPeakTypes{
    model::DType::kF32, model::DType::kF16,  model::DType::kBf16, model::DType::kF8E4M3,
    model::DType::kI8,  model::DType::kInt4, model::DType::kMxfp4};

std::uint64_t parse_index(std::string_view text, const std::string& where, const std::string& shown,
                          std::string_view pattern) {
  std::uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc{} || end != text.data() + text.size() || value >= 10000000) {
    throw InputError(where, fmt::format("{} = \"{}\": malformed pattern", shown, pattern),
                     "write e.g. \"gpu[0-7]\" or \"gpu[0,2,4]\"");
  }
  return value;
}

GpuType read_gpu_type(Section& s, const std::string& name) {
  GpuType t;
  t.name = name;
  t.memory_bytes = s.bytes("memory");
  if (t.memory_bytes == 0) {
    s.violated("memory", "memory > 0");
  }
  t.hbm = s.rate("hbm");
  if (!(t.hbm.value > 0)) {
    s.violated("hbm", "hbm > 0");
  }
  std::vector<std::string> formats;
  for (const model::DType d : kPeakTypes) {
    formats.emplace_back(model::dtype_name(d));
  }
  formats.emplace_back("source");
  if (!s.has("peak")) {
    s.fail("peak", "is missing", "write e.g. peak = { bf16 = \"989 TFLOP/s\" }");
  }
  Section peak = s.section("peak", formats);
  bool any = false;
  for (const model::DType d : kPeakTypes) {
    const std::string_view key = model::dtype_name(d);
    if (!peak.has(key)) {
      continue;
    }
    const FlopsPerSecond v = peak.flops(key);
    if (!(v.value > 0)) {
      peak.violated(key, "peak > 0");
    }
    t.peak[static_cast<std::size_t>(d)] = v;
    any = true;
  }
  if (!any) {
    s.violated("peak", "at least one format has a peak rate");
  }
  peak.sources();
  t.mbu = s.number("mbu", {0, 1, true}, 1.0);
  t.mfu = s.number("mfu", {0, 1, true}, 1.0);
  t.mfu_grouped = s.number("mfu_grouped", {0, 1, true}, t.mfu);
  if (s.has("sms")) t.sms = static_cast<std::uint32_t>(s.count("sms", 1, 65535));
  t.kernel_launch = s.duration("kernel_launch", SimTime());
  t.tdp_w = s.power("tdp");
  if (!(t.tdp_w > 0)) {
    s.violated("tdp", "tdp > 0");
  }
  t.idle_w = s.power("idle", 0.0);
  if (t.idle_w > t.tdp_w) {
    s.violated("idle", "idle <= tdp");
  }
  s.sources();
  return t;
}

/// Figures a link can state itself, take from its type, or from [network].
const std::vector<std::string> kLinkFigures{"class",         "bandwidth", "achievable", "latency",
                                            "phase_latency", "duplex",    "p2p",        "source"};
constexpr std::array<std::string_view, 2> kDuplexNames{"full", "shared"};

std::uint32_t find_root(std::vector<std::uint32_t>& parent, std::uint32_t i) {
  while (parent[i] != i) {
    parent[i] = parent[parent[i]];
    i = parent[i];
  }
  return i;
}

}  // namespace

std::vector<std::string> expand_pattern(std::string_view pattern, const std::string& where,
                                        const std::string& shown) {
  const auto malformed = [&] {
    throw InputError(where, fmt::format("{} = \"{}\": malformed pattern", shown, pattern),
                     "write e.g. \"gpu[0-7]\" or \"gpu[0,2,4]\"");
  };
  const std::size_t open = pattern.find('[');
  const std::string_view stem = pattern.substr(0, open);
  const bool stem_ok = !stem.empty() && std::all_of(stem.begin(), stem.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (!stem_ok) {
    malformed();
  }
  if (open == std::string_view::npos) {
    return {std::string(stem)};
  }
  if (pattern.back() != ']' || open + 2 >= pattern.size()) {
    malformed();
  }
  std::string_view list = pattern.substr(open + 1, pattern.size() - open - 2);
  std::vector<std::string> names;
  while (true) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma);
    const std::size_t dash = item.find('-');
    const std::uint64_t first = parse_index(item.substr(0, dash), where, shown, pattern);
    const std::uint64_t last = dash == std::string_view::npos
                                   ? first
                                   : parse_index(item.substr(dash + 1), where, shown, pattern);
    if (last < first || last - first >= kMaxNames || names.size() + last - first >= kMaxNames) {
      throw InputError(where, fmt::format("{} = \"{}\". Violated: an ascending range of at most {} "
                                          "names",
                                          shown, pattern, kMaxNames));
    }
    for (std::uint64_t i = first; i <= last; ++i) {
      names.push_back(fmt::format("{}{}", stem, i));
    }
    if (comma == list.size()) {
      break;
    }
    list.remove_prefix(comma + 1);
  }
  return names;
}

FlopsPerSecond GpuType::peak_for(model::DType format) const {
  using model::DType;
  const auto at = [&](DType d) { return peak[static_cast<std::size_t>(d)]; };
  std::vector<DType> order;
  switch (format) {
    case DType::kMxfp4:
      order = {DType::kMxfp4, DType::kF8E4M3, DType::kBf16, DType::kF16, DType::kF32};
      break;
    case DType::kInt4:
    case DType::kInt4G128:
      order = {DType::kInt4, DType::kF8E4M3, DType::kBf16, DType::kF16, DType::kF32};
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      order = {DType::kF8E4M3, DType::kBf16, DType::kF16, DType::kF32};
      break;
    case DType::kI8:
      order = {DType::kI8, DType::kBf16, DType::kF16, DType::kF32};
      break;
    case DType::kBf16:
      order = {DType::kBf16, DType::kF32};
      break;
    case DType::kF16:
      order = {DType::kF16, DType::kF32};
      break;
    case DType::kF32:
      order = {DType::kF32};
      break;
    default:
      break;
  }
  for (const DType d : order) {
    if (at(d).value > 0) {
      return at(d);
    }
  }
  return {};
}

HardwareSpec hardware_from(Context& context, const Node& table, const std::string& name) {
  const std::size_t first_value = context.values.size();
  HardwareSpec spec;
  Section root(context, &table, "hardware",
               {"name", "note", "gpu_types", "link_types", "network", "devices", "links"}, table);
  spec.name = root.text("name", name);
  if (root.has("note")) {
    const Node& note = *root.find("note");
    if (note.kind != Node::Kind::kString) {
      root.fail("note", "expected text");
    }
    context.record("hardware.note", note.text, note.where(), false);
  }

  // GPU types.
  std::vector<std::string> type_names;
  if (const Node* types = root.find("gpu_types")) {
    if (types->kind != Node::Kind::kTable) {
      root.fail("gpu_types", "expected a table of GPU types", "write [gpu_types.h100]");
    }
    for (const Node& type : types->children) {
      Section s(context, &type, fmt::format("hardware.gpu_types.{}", type.key),
                {"memory", "hbm", "peak", "mbu", "mfu", "mfu_grouped", "sms", "kernel_launch",
                 "tdp", "idle", "source"},
                type);
      spec.gpu_types.push_back(read_gpu_type(s, type.key));
      type_names.push_back(type.key);
    }
  }

  // Devices.
  const Node* devices = root.find("devices");
  if (devices == nullptr) {
    root.fail("devices", "is missing", "write [[devices]] with name, kind and type");
  }
  if (devices->kind != Node::Kind::kArray) {
    root.fail("devices", "expected a list of tables", "write [[devices]]");
  }
  std::map<std::string, std::uint32_t> index_of;
  for (std::size_t i = 0; i < devices->children.size(); ++i) {
    const Node& entry = devices->children[i];
    Section s(
        context, &entry, fmt::format("hardware.devices[{}]", i),
        {"name", "count", "kind", "type", "node", "per_node", "memory", "bandwidth", "source"},
        entry);
    const std::string pattern = s.text("name");
    std::vector<std::string> names =
        expand_pattern(pattern, s.where("name"), s.shown_key("name", entry));
    if (s.has("count")) {
      if (pattern.find('[') != std::string::npos) {
        s.fail("count", "the name has a range already", "give one of the two");
      }
      names.clear();
      const std::uint64_t count = s.count("count", 1, kMaxNames);
      for (std::uint64_t k = 0; k < count; ++k) {
        names.push_back(fmt::format("{}{}", pattern, k));
      }
    }
    Device d;
    d.where = entry.where();
    d.kind = static_cast<DeviceKind>(s.choice("kind", kDeviceKindNames));
    if (d.kind == DeviceKind::kGpu) {
      const std::string type = s.text("type");
      const auto it = std::find(type_names.begin(), type_names.end(), type);
      if (it == type_names.end()) {
        s.fail("type", "no such [gpu_types] entry", suggest_name(type, type_names));
      }
      d.gpu_type = static_cast<std::int32_t>(it - type_names.begin());
      const GpuType& t = spec.gpu_types[static_cast<std::size_t>(d.gpu_type)];
      d.memory_bytes = t.memory_bytes;
      d.memory_rate = t.hbm;
      for (const std::string_view key : {"memory", "bandwidth"}) {
        if (s.has(key)) {
          s.fail(key, "a GPU has the memory of its type", "state it in [gpu_types]");
        }
      }
    } else {
      if (s.has("type")) {
        s.fail("type", "only a GPU has a type");
      }
      const bool stores =
          d.kind == DeviceKind::kCpu || d.kind == DeviceKind::kSsd || d.kind == DeviceKind::kCxl;
      for (const std::string_view key : {"memory", "bandwidth"}) {
        if (s.has(key) && !stores) {
          s.fail(key, fmt::format("a {} has no memory",
                                  kDeviceKindNames[static_cast<std::size_t>(d.kind)]));
        }
      }
      if (s.has("memory")) {
        d.memory_bytes = s.bytes("memory");
      }
      if (s.has("bandwidth")) {
        d.memory_rate = s.rate("bandwidth");
      }
    }
    const std::uint64_t node = s.count("node", 0, kMaxNode, 0);
    const std::uint64_t per_node =
        s.has("per_node") ? s.count("per_node", 1, kMaxNames) : names.size();
    s.sources();
    for (std::size_t k = 0; k < names.size(); ++k) {
      d.name = names[k];
      d.node = static_cast<std::uint32_t>(node + k / per_node);
      spec.nodes = std::max(spec.nodes, d.node + 1);
      const auto index = static_cast<std::uint32_t>(spec.devices.size());
      if (!index_of.emplace(d.name, index).second) {
        s.fail("name", fmt::format("device \"{}\" is named twice", d.name));
      }
      if (spec.devices.size() >= kMaxNames) {
        s.fail("name", fmt::format("more than {} devices", kMaxNames));
      }
      if (d.kind == DeviceKind::kGpu) {
        spec.gpus.push_back(index);
      }
      spec.devices.push_back(d);
    }
  }
  if (spec.gpus.empty()) {
    root.fail("devices", "there is no GPU among them", "add an entry with kind = \"gpu\"");
  }

  // Link types, defaults, links.
  Section defaults = root.section("network", kLinkFigures);
  std::vector<std::string> link_type_names;
  std::vector<Section> link_types;
  if (const Node* types = root.find("link_types")) {
    if (types->kind != Node::Kind::kTable) {
      root.fail("link_types", "expected a table of link types", "write [link_types.nvlink4]");
    }
    link_types.reserve(types->children.size());
    for (const Node& type : types->children) {
      link_types.emplace_back(context, &type, fmt::format("hardware.link_types.{}", type.key),
                              kLinkFigures, type);
      link_type_names.push_back(type.key);
    }
  }
  // A figure is checked and written down once, where it is stated.
  struct Figures {
    std::optional<LinkClass> link_class;
    std::optional<BytesPerSecond> bandwidth;
    std::optional<double> achievable;
    std::optional<SimTime> latency, phase_latency;
    std::optional<bool> shared_medium, p2p;
  };
  const auto read_figures = [](Section& s) {
    Figures f;
    if (s.has("class")) {
      f.link_class = static_cast<LinkClass>(s.choice("class", kLinkClassNames));
    }
    if (s.has("bandwidth")) {
      f.bandwidth = s.rate("bandwidth");
      if (!(f.bandwidth->value > 0)) {
        s.violated("bandwidth", "bandwidth > 0");
      }
    }
    if (s.has("achievable")) {
      f.achievable = s.number("achievable", {0, 1, true});
    }
    if (s.has("latency")) {
      f.latency = s.duration("latency");
    }
    if (s.has("phase_latency")) {
      f.phase_latency = s.duration("phase_latency");
    }
    if (s.has("duplex")) {
      f.shared_medium = s.choice("duplex", kDuplexNames) == 1;
    }
    if (s.has("p2p")) {
      f.p2p = s.boolean("p2p");
    }
    s.sources();
    return f;
  };
  const Figures default_figures = read_figures(defaults);
  std::vector<Figures> type_figures;
  for (Section& s : link_types) {
    type_figures.push_back(read_figures(s));
  }
  const Node* links = root.find("links");
  if (links != nullptr && links->kind != Node::Kind::kArray) {
    root.fail("links", "expected a list of tables", "write [[links]]");
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> joined;
  std::set<std::string> link_names;
  std::vector<std::string> device_names;
  for (const Device& d : spec.devices) {
    device_names.push_back(d.name);
  }
  for (std::size_t i = 0; links != nullptr && i < links->children.size(); ++i) {
    const Node& entry = links->children[i];
    std::vector<std::string> keys{"name", "from", "to", "type"};
    keys.insert(keys.end(), kLinkFigures.begin(), kLinkFigures.end());
    Section s(context, &entry, fmt::format("hardware.links[{}]", i), keys, entry);
    const auto ends = [&](std::string_view key) {
      const std::string pattern = s.text(key);
      std::vector<std::uint32_t> out;
      for (const std::string& device :
           expand_pattern(pattern, s.where(key), s.shown_key(key, entry))) {
        const auto it = index_of.find(device);
        if (it == index_of.end()) {
          s.fail(key, fmt::format("there is no device \"{}\"", device),
                 device_names.size() <= 4096 ? suggest_name(device, device_names) : std::string());
        }
        out.push_back(it->second);
      }
      return out;
    };
    const std::vector<std::uint32_t> from = ends("from");
    const std::vector<std::uint32_t> to = ends("to");
    Figures f;
    const Figures* type = nullptr;
    if (s.has("type")) {
      const std::string type_name = s.text("type");
      const auto it = std::find(link_type_names.begin(), link_type_names.end(), type_name);
      if (it == link_type_names.end()) {
        s.fail("type", "no such [link_types] entry", suggest_name(type_name, link_type_names));
      }
      type = &type_figures[static_cast<std::size_t>(it - link_type_names.begin())];
    }
    f = read_figures(s);
    const auto pick = [&](auto member) {
      if (!(f.*member) && type != nullptr) {
        f.*member = type->*member;
      }
      if (!(f.*member)) {
        f.*member = default_figures.*member;
      }
    };
    pick(&Figures::link_class);
    pick(&Figures::bandwidth);
    pick(&Figures::achievable);
    pick(&Figures::latency);
    pick(&Figures::phase_latency);
    pick(&Figures::shared_medium);
    pick(&Figures::p2p);
    if (!f.bandwidth) {
      s.fail("bandwidth", "is missing", "state it here, in the link's type, or in [network]");
    }
    if (!f.latency) {
      s.fail("latency", "is missing", "state it here, in the link's type, or in [network]");
    }
    if (f.phase_latency && *f.phase_latency > *f.latency) {
      s.fail("phase_latency",
             fmt::format("= {} with latency = {}. Violated: phase_latency <= latency",
                         format_time(*f.phase_latency), format_time(*f.latency)));
    }
    const std::size_t n = std::max(from.size(), to.size());
    if (n % from.size() != 0 || n % to.size() != 0) {
      s.fail("to", fmt::format("{} devices cannot be paired with {}", to.size(), from.size()),
             "lengths must be equal, or one a multiple of the other");
    }
    const std::string base = s.has("name") ? s.text("name") : std::string();
    for (std::size_t k = 0; k < n; ++k) {
      Link link;
      link.a = from[k / (n / from.size())];
      link.b = to[k / (n / to.size())];
      link.where = entry.where();
      const std::string& a = spec.devices[link.a].name;
      const std::string& b = spec.devices[link.b].name;
      if (link.a == link.b) {
        s.fail("to", fmt::format("links {} with itself", a));
      }
      if (!joined.insert(std::minmax(link.a, link.b)).second) {
        s.fail("to", fmt::format("a second link between {} and {}", a, b),
               "state one link with the summed bandwidth");
      }
      link.name = base.empty() ? fmt::format("{}--{}", a, b)
                  : n == 1     ? base
                               : fmt::format("{}{}", base, k);
      if (!link_names.insert(link.name).second) {
        s.fail(base.empty() ? "from" : "name",
               fmt::format("link \"{}\" is named twice", link.name));
      }
      link.link_class = f.link_class.value_or(LinkClass::kOther);
      link.bandwidth = *f.bandwidth;
      link.achievable = f.achievable.value_or(1.0);
      link.latency = *f.latency;
      link.phase_latency = f.phase_latency;
      link.shared_medium = f.shared_medium.value_or(false);
      link.p2p = f.p2p.value_or(true);
      spec.links.push_back(std::move(link));
    }
  }

  // One connected cluster: a device nothing can reach would silently do nothing.
  std::vector<std::uint32_t> parent(spec.devices.size());
  std::iota(parent.begin(), parent.end(), 0U);
  for (const Link& link : spec.links) {
    parent[find_root(parent, link.a)] = find_root(parent, link.b);
  }
  const std::uint32_t home = find_root(parent, spec.gpus.front());
  for (std::uint32_t i = 0; i < spec.devices.size(); ++i) {
    if (find_root(parent, i) != home) {
      throw InputError(spec.devices[i].where,
                       fmt::format("device \"{}\" is not connected to \"{}\"", spec.devices[i].name,
                                   spec.devices[spec.gpus.front()].name),
                       "add a [[links]] entry");
    }
  }

  for (std::size_t i = first_value; i < context.values.size(); ++i) {
    const ResolvedValue& v = context.values[i];
    if (v.in_hash) {
      spec.canonical += fmt::format("{} = {}\n", v.key, v.value);
    }
  }
  return spec;
}

HardwareSpec read_hardware(const std::string& path) {
  const std::filesystem::path file(path);
  const Node table = load_toml(file, "hardware", file.generic_string());
  Context context;
  return hardware_from(context, table, file.stem().string());
}

}  // namespace switchyard::scenario
