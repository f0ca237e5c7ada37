// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/nearest_name.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::string_view kSchema = "switchyard-calibration 1";
constexpr std::size_t kMaxTables = 65536;
constexpr double kMaxArgument = 1e15, kMaxUs = 1e12;
constexpr std::array<model::DType, 7> kPeakTypes{
    model::DType::kF32, model::DType::kF16,  model::DType::kBf16, model::DType::kF8E4M3,
    model::DType::kI8,  model::DType::kInt4, model::DType::kMxfp4};

/// One table of the file; asks for its keys by name and knows the ones it was asked for.
class Keys {
 public:
  Keys(const Node& table, std::string path, std::vector<std::string> known)
      : table_(table), path_(std::move(path)) {
    if (table.kind != Node::Kind::kTable) fail(table, path_, "expected a table");
    for (const Node& n : table.children) {
      if (std::find(known.begin(), known.end(), n.key) == known.end()) {
        throw InputError(n.key_where(), fmt::format("{}{}: unknown key", path_, n.key),
                         suggest_name(n.key, known));
      }
    }
  }
  [[nodiscard]] const Node* find(std::string_view key) const { return table_.find(key); }
  [[nodiscard]] const Node& need(std::string_view key) const {
    const Node* n = table_.find(key);
    if (n == nullptr) {
      throw InputError(table_.where(), fmt::format("{}{} is missing", path_, key));
    }
    return *n;
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Node& n = need(key);
    if (n.kind != Node::Kind::kString || n.text.empty()) fail(n, name(key), "expected text");
    return n.text;
  }
  [[nodiscard]] std::string name(std::string_view key) const {
    return fmt::format("{}{}", path_, key);
  }
  [[noreturn]] static void fail(const Node& at, const std::string& what, const std::string& message,
                                const std::string& hint = {}) {
    throw InputError(at.where(), fmt::format("{}: {}", what, message), hint);
  }
  static double number(const Node& n, const std::string& what, double low, bool open, double high) {
    double v = 0;
    if (n.kind == Node::Kind::kInteger) {
      v = static_cast<double>(n.integer);
    } else if (n.kind == Node::Kind::kFloat) {
      v = n.number;
    } else {
      fail(n, what, "expected a number");
    }
    if (!(open ? v > low : v >= low) || !(v <= high)) {
      fail(n, fmt::format("{} = {}", what, v),
           fmt::format("Violated: {} {} {} <= {}", low, open ? "<" : "<=", "value", high));
    }
    return v;
  }

 private:
  const Node& table_;
  std::string path_;
};

void read_points(const Keys& keys, OpTable& t, const std::string& op) {
  const Node& points = keys.need("points");
  if (points.kind != Node::Kind::kArray || points.children.empty()) {
    Keys::fail(points, keys.name("points"), "expected a list of points");
  }
  for (const Node& p : points.children) {
    const std::size_t n = kPointArguments[static_cast<std::size_t>(t.kind)];
    if (p.kind != Node::Kind::kArray || p.children.size() != n + 1) {
      Keys::fail(p, keys.name("points"), fmt::format("a point of {} has {} numbers", op, n + 1));
    }
    OpPoint point;
    for (std::size_t i = 0; i < n; ++i) {
      // Only the number of cached tokens may be 0.
      const bool may_be_zero = t.kind == OpKind::kAttentionPrefill && i == 2;
      point.at[i] = Keys::number(p.children[i], keys.name("points"), may_be_zero ? 0 : 1, false,
                                 kMaxArgument);
    }
    point.us = Keys::number(p.children[n], keys.name("points"), 0, true, kMaxUs);
    t.points.push_back(point);
  }
}

constexpr std::array<std::string_view, 3> kLaunchModes{"eager", "graph", "fused"};

OpTable read_table(const Node& node, const std::string& path) {
  const bool host = node.kind == Node::Kind::kTable && node.find("op") != nullptr &&
                    node.find("op")->text == kOpKindNames[static_cast<std::size_t>(OpKind::kHost)];
  const Keys keys(
      node, path,
      host ? std::vector<std::string>{"op", "library", "variant", "overhead", "per_sequence",
                                      "points"}
           : std::vector<std::string>{"op", "library", "variant", "dtype", "shape", "overhead",
                                      "rate_share", "compute_share", "points"});
  OpTable t;
  t.where = node.where();
  const std::string op = keys.text("op");
  const auto it = std::find(kOpKindNames.begin(), kOpKindNames.end(), op);
  if (it == kOpKindNames.end()) {
    const std::vector<std::string> names(kOpKindNames.begin(), kOpKindNames.end());
    Keys::fail(keys.need("op"), fmt::format("{} = \"{}\"", keys.name("op"), op),
               "unknown operation", suggest_name(op, names));
  }
  t.kind = static_cast<OpKind>(it - kOpKindNames.begin());
  const auto kind = static_cast<std::size_t>(t.kind);
  t.library = keys.text("library");
  const bool has_variant = t.kind >= OpKind::kCollective && !host;
  if (has_variant) {
    t.variant = keys.text("variant");
  } else if (host) {
    if (keys.find("variant") != nullptr) t.variant = keys.text("variant");
    if (!t.variant.empty() &&
        std::find(kLaunchModes.begin(), kLaunchModes.end(), t.variant) == kLaunchModes.end()) {
      Keys::fail(keys.need("variant"), fmt::format("{} = \"{}\"", keys.name("variant"), t.variant),
                 "unknown launch mode",
                 suggest_name(t.variant,
                              std::vector<std::string>(kLaunchModes.begin(), kLaunchModes.end())));
    }
  } else if (t.kind == OpKind::kExperts && keys.find("variant") != nullptr) {
    t.variant = keys.text("variant");
    const std::vector<std::string> names{std::string(kMasked), std::string(kContiguous)};
    if (t.variant != kMasked && t.variant != kContiguous) {
      Keys::fail(keys.need("variant"), fmt::format("{} = \"{}\"", keys.name("variant"), t.variant),
                 "unknown grouped GEMM", suggest_name(t.variant, names));
    }
  } else if (keys.find("variant") != nullptr) {
    Keys::fail(keys.need("variant"), keys.name("variant"), fmt::format("{} has no variants", op));
  }
  t.overhead_us = Keys::number(keys.need("overhead"), keys.name("overhead"), 0, false, kMaxUs);
  if (host) {
    t.per_sequence_us =
        Keys::number(keys.need("per_sequence"), keys.name("per_sequence"), 0, false, kMaxUs);
    read_points(keys, t, op);
    return t;
  }
  t.dtype = model::parse_dtype(keys.text("dtype"), keys.need("dtype").where());
  const Node& shape = keys.need("shape");
  if (shape.kind != Node::Kind::kArray || shape.children.size() != kShapeNumbers[kind]) {
    Keys::fail(shape, keys.name("shape"), fmt::format("expected {} numbers", kShapeNumbers[kind]));
  }
  for (const Node& n : shape.children) {
    // Only a window and the SMs of a low-latency exchange may be 0.
    const double v = Keys::number(n, keys.name("shape"), 0, false, 1e9);
    if (v != std::floor(v)) Keys::fail(n, keys.name("shape"), "expected whole numbers");
    const bool may_be_zero = &n == &shape.children.back() &&
                             (t.kind == OpKind::kAttentionDecode ||
                              t.kind == OpKind::kAttentionPrefill || t.kind >= OpKind::kDispatch);
    if (v == 0 && !may_be_zero) Keys::fail(n, keys.name("shape"), "a number is 0");
    t.shape.push_back(static_cast<std::uint64_t>(v));
  }
  t.rate_share = Keys::number(keys.need("rate_share"), keys.name("rate_share"), 0, true, 1);
  t.compute_share =
      Keys::number(keys.need("compute_share"), keys.name("compute_share"), 0, true, 1);
  read_points(keys, t, op);
  return t;
}

Calibration from_tree(const Node& root, std::string_view text) {
  const Keys keys(root, "",
                  {"schema", "device", "hbm", "link", "peak", "source", "licence", "tables"});
  if (const std::string schema = keys.text("schema"); schema != kSchema) {
    Keys::fail(keys.need("schema"), fmt::format("schema = \"{}\"", schema),
               fmt::format("this program reads \"{}\"", kSchema));
  }
  Calibration c;
  c.device = keys.text("device");
  c.source = keys.text("source");
  c.licence = keys.text("licence");
  const auto rate = [&](std::string_view key) {
    const BytesPerSecond r = parse_rate(keys.text(key), keys.need(key).where(), std::string(key));
    if (!(r.value > 0)) Keys::fail(keys.need(key), std::string(key), "Violated: rate > 0");
    return r;
  };
  c.hbm = rate("hbm");
  c.link = rate("link");
  std::vector<std::string> formats;
  for (const model::DType d : kPeakTypes) formats.emplace_back(model::dtype_name(d));
  const Keys peak(keys.need("peak"), "peak.", formats);
  for (const model::DType d : kPeakTypes) {
    const std::string_view key = model::dtype_name(d);
    if (peak.find(key) == nullptr) continue;
    const FlopsPerSecond v =
        parse_flops(peak.text(key), peak.need(key).where(), fmt::format("peak.{}", key));
    if (!(v.value > 0)) Keys::fail(peak.need(key), peak.name(key), "Violated: peak > 0");
    c.peak[static_cast<std::size_t>(d)] = v;
  }
  const Node& tables = keys.need("tables");
  if (tables.kind != Node::Kind::kArray || tables.children.empty() ||
      tables.children.size() > kMaxTables) {
    Keys::fail(tables, "tables", fmt::format("expected 1 to {} [[tables]]", kMaxTables));
  }
  for (std::size_t i = 0; i < tables.children.size(); ++i) {
    c.tables.push_back(read_table(tables.children[i], fmt::format("tables[{}].", i)));
    OpTable& t = c.tables.back();
    const bool computes = t.kind <= OpKind::kGemm;
    GpuType device;
    device.peak = c.peak;
    if (computes && !(device.peak_for(t.dtype).value > 0)) {
      throw InputError(t.where, fmt::format("there is no peak for {}", model::dtype_name(t.dtype)),
                       "add it to peak");
    }
    for (std::size_t j = 0; j < i; ++j) {
      const OpTable& o = c.tables[j];
      if (o.kind == t.kind && o.library == t.library && o.variant == t.variant &&
          o.dtype == t.dtype && o.shape == t.shape) {
        throw InputError(t.where, fmt::format("the same table as the one at {}", o.where));
      }
    }
  }
  c.hash = hex64(hash64(text));
  return c;
}

}  // namespace

Calibration parse_calibration(std::string_view text, const std::string& name) {
  auto source = std::make_shared<Source>();
  source->name = name;
  source->folder = std::filesystem::path(name).parent_path();
  return from_tree(parse_toml(text, source), text);
}

Calibration read_calibration(const std::string& path) {
  return parse_calibration(read_file(path), path);
}

std::string calibration_text(const Calibration& c) {
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char ch : text) {
      if (ch == '"' || ch == '\\') out += '\\';
      out += ch;
    }
    return out + "\"";
  };
  std::string out =
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# Written by switchyard fit or profile. Form and units: sim/scenario/calibration.hpp.\n";
  out += fmt::format("schema = \"{}\"\ndevice = {}\nsource = {}\nlicence = {}\n", kSchema,
                     quoted(c.device), quoted(c.source), quoted(c.licence));
  out +=
      fmt::format("hbm = \"{} GB/s\"\nlink = \"{} GB/s\"\n", c.hbm.value / 1e9, c.link.value / 1e9);
  std::string peaks;
  for (const model::DType d : kPeakTypes) {
    const FlopsPerSecond v = c.peak[static_cast<std::size_t>(d)];
    if (v.value > 0) {
      peaks += fmt::format("{}{} = \"{} TFLOP/s\"", peaks.empty() ? "" : ", ", model::dtype_name(d),
                           v.value / 1e12);
    }
  }
  out += fmt::format("peak = {{ {} }}\n", peaks);
  for (const OpTable& t : c.tables) {
    out += fmt::format("\n[[tables]]\nop = \"{}\"\nlibrary = {}\n",
                       kOpKindNames[static_cast<std::size_t>(t.kind)], quoted(t.library));
    if (!t.variant.empty()) out += fmt::format("variant = {}\n", quoted(t.variant));
    if (t.kind == OpKind::kHost) {
      out += fmt::format("overhead = {:.6g}\nper_sequence = {:.6g}\npoints = [", t.overhead_us,
                         t.per_sequence_us);
    } else {
      out += fmt::format("dtype = \"{}\"\nshape = [{}]\n", model::dtype_name(t.dtype),
                         fmt::join(t.shape, ", "));
      out +=
          fmt::format("overhead = {:.6g}\nrate_share = {:.6g}\ncompute_share = {:.6g}\npoints = [",
                      t.overhead_us, t.rate_share, t.compute_share);
    }
    std::string line;
    for (std::size_t i = 0; i < t.points.size(); ++i) {
      std::string p = "[";
      for (std::size_t a = 0; a < kPointArguments[static_cast<std::size_t>(t.kind)]; ++a) {
        p += fmt::format("{:.0f}, ", t.points[i].at[a]);
      }
      p += fmt::format("{:.6g}]{}", t.points[i].us, i + 1 < t.points.size() ? "," : "");
      if (line.size() + p.size() > 96) {
        out += "\n  " + line;
        line.clear();
      }
      line += (line.empty() ? "" : " ") + p;
    }
    out += "\n  " + line + "\n]\n";
  }
  return out;
}

const OpTable* choose_table(const Calibration& calibration, OpKind kind, std::string_view library,
                            std::string_view variant, model::DType dtype,
                            std::span<const std::uint64_t> shape, std::string_view key) {
  std::vector<const OpTable*> own, others;
  bool knows = false;  // The library has tables of this operation.
  for (const OpTable& t : calibration.tables) {
    knows = knows || (t.kind == kind && t.library.starts_with(library));
    if (t.kind != kind || t.dtype != dtype || (!t.variant.empty() && t.variant != variant) ||
        !std::equal(shape.begin(), shape.end(), t.shape.begin(), t.shape.end())) {
      continue;
    }
    (t.library.starts_with(library) ? own : others).push_back(&t);
  }
  const OpTable* best = nullptr;
  for (const OpTable* t : knows ? own : others) {
    if (best != nullptr && t->library != best->library) {
      if (!knows) return nullptr;
      throw InputError(
          std::string(library.empty() ? "cost.calibration" : key),
          fmt::format("the calibration has {} of {} and {}{}",
                      kOpKindNames[static_cast<std::size_t>(kind)], best->library, t->library,
                      shape.empty() ? "" : fmt::format(" for shape [{}]", fmt::join(shape, ", "))),
          fmt::format("name one of them with {}: their {} differ", key,
                      kind == OpKind::kHost ? "times" : "kernels"));
    }
    // The table of the very kernel goes before one that stands for both.
    if (best == nullptr || best->variant.empty()) best = t;
  }
  return best;
}

}  // namespace switchyard::scenario
