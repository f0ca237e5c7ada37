// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/topo_m.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "engine/base/error.hpp"
#include "experiments/import/hardware_text.hpp"

namespace switchyard::importers {
namespace {

using scenario::LinkClass;

constexpr std::size_t kMaxText = std::size_t{1} << 20U;
constexpr std::size_t kMaxLine = std::size_t{1} << 16U;
constexpr std::size_t kMaxGpus = 64;
constexpr std::size_t kMaxDevices = 128;

/// How far apart two devices are, nearest first; kLanes: NVLink hides it.
enum Distance : std::uint8_t { kSelf, kPix, kPxb, kPhb, kNode, kSys, kLanes };
constexpr std::array<std::string_view, 6> kDistanceNames{"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

struct Cell {
  Distance distance = kSelf;
  std::uint32_t lanes = 0;
  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Matrix {
  std::vector<std::string> names;
  std::vector<std::size_t> line;  // [n] line of each row
  std::vector<std::vector<Cell>> cells;
  std::vector<std::string> numa;  // [n] NUMA column of a GPU; "" = not stated
  std::size_t gpus = 0;           // GPUs come first
};

bool is_gpu(std::string_view name) { return name.starts_with("GPU"); }

/// nvidia-smi underlines the header on a terminal.
std::string without_escapes(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;
      while (i < text.size() && text[i] != 'm' && text[i] != '\n') {
        ++i;
      }
      if (i < text.size() && text[i] == '\n') {
        out += '\n';
      }
      continue;
    }
    out += text[i];
  }
  return out;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (!word.empty()) {
        words.push_back(std::move(word));
        word.clear();
      }
    } else {
      word += c;
    }
  }
  if (!word.empty()) {
    words.push_back(std::move(word));
  }
  return words;
}

std::string place(const std::string& where, std::size_t line) {
  return fmt::format("{}:{}", where, line);
}

/// A word of the input as shown in a message: short and printable.
std::string shown(std::string_view word) {
  std::string out;
  for (const char c : word.substr(0, 24)) {
    out += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  }
  return word.size() > 24 ? out + "..." : out;
}

bool is_device(std::string_view word) {
  const std::size_t digits = word.find_first_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) {
    return false;
  }
  return std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
}

Matrix parse(std::string_view raw, const std::string& where) {
  if (raw.size() > kMaxText) {
    throw InputError(where, fmt::format("{} bytes. Violated: at most 1 MiB", raw.size()),
                     "give the output of nvidia-smi topo -m alone");
  }
  const std::string text = without_escapes(raw);
  Matrix m;
  std::size_t number = 0;
  std::map<std::string, std::size_t> column;
  std::vector<std::uint8_t> seen;
  std::string_view rest = text;
  while (!rest.empty()) {
    ++number;
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto fail = [&](const std::string& message, const std::string& hint = {}) {
      throw InputError(place(where, number), message, hint);
    };
    if (line.size() > kMaxLine) {
      fail("the line is longer than 64 KiB");
    }
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) {
      continue;
    }
    if (m.names.empty()) {
      // The header: device names, then CPU Affinity, NUMA Affinity, GPU NUMA ID.
      for (const std::string& w : words) {
        if (w == "CPU") {
          break;
        }
        if (!is_device(w)) {
          fail(fmt::format("\"{}\" is no device of the header of nvidia-smi topo -m", shown(w)),
               "the first line names the columns: GPU0 GPU1 ...");
        }
        if (!column.emplace(w, m.names.size()).second) {
          fail(fmt::format("column {} comes twice", shown(w)));
        }
        if (is_gpu(w)) {
          if (m.gpus != m.names.size()) {
            fail(fmt::format("{} stands after a device that is no GPU", shown(w)));
          }
          ++m.gpus;
        }
        m.names.push_back(w);
      }
      if (m.gpus == 0) {
        fail("there is no GPU in the header");
      }
      if (m.gpus > kMaxGpus || m.names.size() > kMaxDevices) {
        fail(fmt::format("{} GPUs of {} devices. Violated: at most {} and {}", m.gpus,
                         m.names.size(), kMaxGpus, kMaxDevices));
      }
      seen.assign(m.names.size(), 0);
      m.line.assign(m.names.size(), 0);
      m.cells.resize(m.names.size());
      m.numa.resize(m.names.size());
      continue;
    }
    const auto it = column.find(words[0]);
    if (it == column.end()) {
      if (std::all_of(seen.begin(), seen.end(), [](std::uint8_t s) { return s != 0; })) {
        break;  // The legend.
      }
      fail(fmt::format("\"{}\" is no row of the matrix", shown(words[0])),
           "every column needs its row");
    }
    const std::size_t row = it->second;
    if (seen[row] != 0) {
      fail(fmt::format("row {} comes twice", m.names[row]));
    }
    seen[row] = 1;
    m.line[row] = number;
    if (words.size() < m.names.size() + 1) {
      fail(fmt::format("row {} has {} of {} columns", m.names[row], words.size() - 1,
                       m.names.size()));
    }
    for (std::size_t c = 0; c < m.names.size(); ++c) {
      const std::string& w = words[c + 1];
      Cell cell;
      const auto known = std::find(kDistanceNames.begin(), kDistanceNames.end(), w);
      if (known != kDistanceNames.end()) {
        cell.distance = static_cast<Distance>(known - kDistanceNames.begin());
      } else if (w == "SOC") {  // Old drivers' word for SYS.
        cell.distance = kSys;
      } else {
        const char* const stop = w.data() + w.size();
        const auto lanes = w.starts_with("NV")
                               ? std::from_chars(w.data() + 2, stop, cell.lanes)
                               : std::from_chars_result{w.data(), std::errc::invalid_argument};
        if (lanes.ec != std::errc{} || lanes.ptr != stop || cell.lanes == 0) {
          fail(fmt::format("\"{}\" is no distance", shown(w)),
               "known: X, NV<lanes>, PIX, PXB, PHB, NODE, SYS");
        }
        cell.distance = kLanes;
      }
      if ((cell.distance == kSelf) != (c == row)) {
        fail(c == row ? fmt::format("{} with itself is {}, not X", m.names[row], shown(w))
                      : fmt::format("{} with {} is X", m.names[row], m.names[c]));
      }
      if (cell.distance == kLanes && (row >= m.gpus || c >= m.gpus)) {
        fail(fmt::format("NVLink between {} and {}, which are not both GPUs", m.names[row],
                         m.names[c]));
      }
      m.cells[row].push_back(cell);
    }
    // CPU affinity, then the NUMA column; "N/A" where the machine has but one.
    if (row < m.gpus && words.size() > m.names.size() + 2) {
      const std::string& numa = words[m.names.size() + 2];
      std::uint32_t id = 0;
      const auto end_of = std::from_chars(numa.data(), numa.data() + numa.size(), id);
      if (end_of.ec == std::errc{} && end_of.ptr == numa.data() + numa.size()) {
        m.numa[row] = numa;
      } else if (numa != "N/A" && numa.find_first_not_of("0123456789,-") != std::string::npos) {
        fail(fmt::format("\"{}\" is no NUMA node", shown(numa)));
      }
    }
  }
  if (m.names.empty()) {
    throw InputError(where, "there is no matrix", "give the output of nvidia-smi topo -m");
  }
  for (std::size_t i = 0; i < m.names.size(); ++i) {
    if (seen[i] == 0) {
      throw InputError(where, fmt::format("row {} is missing", m.names[i]));
    }
  }
  for (std::size_t i = 0; i < m.names.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!(m.cells[i][j] == m.cells[j][i])) {
        throw InputError(place(where, m.line[i]),
                         fmt::format("{} to {} differs from {} to {}: the matrix is not symmetric",
                                     m.names[i], m.names[j], m.names[j], m.names[i]));
      }
    }
  }
  return m;
}

/// Groups of devices at most `limit` apart, as a label per device; refuses what is no equivalence.
std::vector<std::size_t> groups_within(const Matrix& m, Distance limit, const std::string& where,
                                       const std::vector<std::size_t>& inner) {
  const std::size_t n = m.names.size();
  std::vector<std::size_t> label(n);
  std::iota(label.begin(), label.end(), std::size_t{0});
  const auto join = [&](std::size_t i, std::size_t j) {
    const std::size_t from = std::max(label[i], label[j]), to = std::min(label[i], label[j]);
    std::replace(label.begin(), label.end(), from, to);
  };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Cell& c = m.cells[i][j];
      if ((c.distance != kLanes && c.distance <= limit) ||
          (!inner.empty() && inner[i] == inner[j])) {
        join(i, j);
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Cell& c = m.cells[i][j];
      if (label[i] == label[j] && c.distance != kLanes && c.distance > limit) {
        throw InputError(
            place(where, m.line[i]),
            fmt::format("{} and {} are {} apart, but others put them within {}: no such tree",
                        m.names[i], m.names[j], kDistanceNames[c.distance], kDistanceNames[limit]));
      }
    }
  }
  return label;
}

std::string lower(std::string s) {
  for (char& c : s) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return s;
}

}  // namespace

std::string hardware_from_topo_m(std::string_view text, const std::string& where,
                                 const TopoMOptions& options) {
  const Matrix m = parse(text, where);
  const std::size_t n = m.names.size();
  const scenario::HardwareSpec& like = options.like;
  const auto& [figures, gpu, pcie, nvlink, numa] = figures_of(like);

  HardwareWriter out;
  std::vector<std::string> name;
  for (std::size_t i = 0; i < n; ++i) {
    name.push_back(lower(m.names[i]));
    out.device(name[i], i < m.gpus ? "gpu" : "nic", i < m.gpus ? gpu.name : std::string());
  }
  {
    std::vector<std::string> sorted = name;
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        twice != sorted.end()) {
      throw InputError(where, fmt::format("two devices are called {}", *twice));
    }
  }

  // NVLink.
  std::vector<std::uint8_t> type_made(512, 0);
  const auto lane_type = [&](std::size_t i, std::uint32_t lanes) {
    if (nvlink == nullptr) {
      throw InputError(
          "--like",
          fmt::format("{} has no NVLink cable, but {} has NV{}", like.name, m.names[i], lanes),
          "name a hardware file of such a server");
    }
    const std::uint32_t most = lanes_of(nvlink->link_class);
    if (lanes > most) {
      throw InputError(place(where, m.line[i]), fmt::format("NV{}: a GPU of {} has {} NVLink lanes",
                                                            lanes, like.name, most));
    }
    const std::string type = fmt::format("nv{}", lanes);
    if (type_made[lanes] == 0) {
      type_made[lanes] = 1;
      // The cable of `like` carries all lanes of a GPU.
      out.link_type(
          type, nvlink->link_class, nvlink->bandwidth.value / most * lanes, *nvlink,
          fmt::format("{} of {} lanes of {}: {}", lanes, most,
                      scenario::kLinkClassNames[static_cast<std::size_t>(nvlink->link_class)],
                      figures));
    }
    return type;
  };
  std::vector<std::uint8_t> on_switch(m.gpus, 0);
  std::size_t switches = 0;
  for (std::size_t i = 0; i < m.gpus; ++i) {
    if (on_switch[i] != 0) {
      continue;
    }
    std::vector<std::size_t> group{i};
    std::uint32_t lanes = 0;
    bool uniform = true;
    for (std::size_t j = 0; j < m.gpus; ++j) {
      if (j != i && m.cells[i][j].distance == kLanes) {
        group.push_back(j);
        uniform = uniform && (lanes == 0 || lanes == m.cells[i][j].lanes);
        lanes = m.cells[i][j].lanes;
      }
    }
    for (const std::size_t a : group) {
      for (const std::size_t b : group) {
        uniform = uniform &&
                  (a == b || (m.cells[a][b].distance == kLanes && m.cells[a][b].lanes == lanes));
      }
      // A switched group is closed: its members see nobody else over NVLink.
      for (std::size_t b = 0; b < m.gpus; ++b) {
        uniform = uniform && (m.cells[a][b].distance != kLanes ||
                              std::find(group.begin(), group.end(), b) != group.end());
      }
    }
    if (group.size() > 2 && uniform && nvlink != nullptr &&
        lanes * (group.size() - 1) > lanes_of(nvlink->link_class)) {
      const std::string hub = fmt::format("nvswitch{}", switches++);
      const std::string type = lane_type(i, lanes);
      out.device(hub, "nvswitch");
      std::sort(group.begin(), group.end());
      for (const std::size_t a : group) {
        on_switch[a] = 1;
        out.link(name[a], hub, type);
      }
    }
  }
  for (std::size_t i = 0; i < m.gpus; ++i) {
    std::uint64_t sum = 0;
    for (std::size_t j = 0; j < m.gpus; ++j) {
      if (m.cells[i][j].distance != kLanes || on_switch[i] != 0) {
        continue;
      }
      const std::string type = lane_type(i, m.cells[i][j].lanes);
      sum += m.cells[i][j].lanes;
      if (i < j) {
        out.link(name[i], name[j], type);
      }
    }
    if (sum > 0 && sum > lanes_of(nvlink->link_class)) {
      throw InputError(place(where, m.line[i]),
                       fmt::format("{} has {} lanes in all; a GPU of {} has {}", m.names[i], sum,
                                   like.name, lanes_of(nvlink->link_class)));
    }
  }

  // PCIe: a tree of switches, root complexes and sockets.
  out.link_type("pcie", pcie->link_class, pcie->bandwidth.value, *pcie, figures, pcie->p2p);
  const auto pix = groups_within(m, kPix, where, {});
  const auto pxb = groups_within(m, kPxb, where, pix);
  const auto phb = groups_within(m, kPhb, where, pxb);
  auto node = groups_within(m, kNode, where, phb);
  // NVLink hides distances: the NUMA column joins those that share a node.
  for (std::size_t i = 0; i < m.gpus; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool hidden = m.cells[i][j].distance == kLanes;
      if (hidden && m.numa[i] == m.numa[j] && node[i] != node[j]) {
        const std::size_t from = std::max(node[i], node[j]), to = std::min(node[i], node[j]);
        std::replace(node.begin(), node.end(), from, to);
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (node[i] == node[j] && m.cells[i][j].distance == kSys) {
        throw InputError(place(where, m.line[i]),
                         fmt::format("{} and {} are SYS apart, but others put them on one socket",
                                     m.names[i], m.names[j]));
      }
    }
  }
  std::map<std::size_t, std::string> socket;
  for (std::size_t i = 0; i < n; ++i) {
    if (socket.emplace(node[i], fmt::format("cpu{}", socket.size())).second) {
      out.device(socket[node[i]], "cpu");
    }
  }
  /// One device per group of a level that holds more than one group or device of the level below.
  std::vector<std::string> up(n);  // What the device hangs on so far.
  for (std::size_t i = 0; i < n; ++i) {
    up[i] = name[i];
  }
  const auto level = [&](const std::vector<std::size_t>& label, std::string_view kind,
                         const char* stem) {
    std::size_t made = 0;
    std::map<std::size_t, std::string> hub;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t g = label[i];
      std::set<std::string> distinct;
      for (std::size_t j = 0; j < n; ++j) {
        if (label[j] == g) {
          distinct.insert(up[j]);
        }
      }
      if (distinct.size() < 2 || hub.count(g) != 0) {
        continue;
      }
      hub[g] = fmt::format("{}{}", stem, made++);
      out.device(hub[g], kind);
    }
    std::vector<std::string> next = up;
    std::map<std::string, std::string> joined;
    for (std::size_t i = 0; i < n; ++i) {
      const auto it = hub.find(label[i]);
      if (it != hub.end()) {
        if (joined.emplace(up[i], it->second).second) {
          out.link(up[i], it->second, "pcie");
        }
        next[i] = it->second;
      }
    }
    up = next;
  };
  level(pix, "pcie_switch", "pcie");
  level(pxb, "pcie_switch", "pcie_upper");
  // A root complex of its own only where a socket has several.
  std::vector<std::size_t> roots = phb;
  for (std::size_t i = 0; i < n; ++i) {
    bool several = false;
    for (std::size_t j = 0; j < n; ++j) {
      several =
          several || (node[j] == node[i] && phb[j] != phb[i] && m.cells[i][j].distance == kNode);
    }
    if (!several) {
      roots[i] = n + i;  // alone: no device
    }
  }
  level(roots, "root_complex", "root");
  std::map<std::string, std::string> joined;
  for (std::size_t i = 0; i < n; ++i) {
    if (joined.emplace(up[i], socket[node[i]]).second) {
      out.link(up[i], socket[node[i]], "pcie");
    }
  }
  if (socket.size() > 1) {
    if (!options.numa && numa == nullptr) {
      throw InputError(
          "--numa",
          fmt::format("{} sockets, and {} has no cable between sockets", socket.size(), like.name),
          "state it per direction, e.g. --numa \"67.2 GB/s\"");
    }
    out.link_type("numa", LinkClass::kNuma,
                  options.numa ? options.numa->value : numa->bandwidth.value,
                  numa != nullptr ? *numa : *pcie, options.numa ? "stated with --numa" : figures,
                  numa == nullptr || numa->p2p);
    for (auto a = socket.begin(); a != socket.end(); ++a) {
      for (auto b = std::next(a); b != socket.end(); ++b) {
        out.link(a->second, b->second, "numa");
      }
    }
  }
  const std::string head = fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n# From nvidia-smi topo -m ({} GPUs, {} NICs). "
      "Figures of GPU and "
      "cables: {}.\n# Bandwidths are per direction.\nname = \"{}\"\n\n{}",
      m.gpus, n - m.gpus, like.name, options.name, gpu_type_text(gpu, figures));
  return out.text(head);
}

}  // namespace switchyard::importers
