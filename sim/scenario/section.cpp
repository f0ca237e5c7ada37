// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/section.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::scenario {

void Context::record(std::string key, std::string value, std::string origin, bool in_hash) {
  values.push_back({std::move(key), std::move(value), std::move(origin), in_hash});
}

std::string Context::where(std::string_view key, const std::string& otherwise) const {
  for (const ResolvedValue& v : values) {
    if (v.key == key && v.origin != "default") {
      return v.origin;
    }
  }
  return otherwise;
}

std::string show_bytes(std::uint64_t bytes) {
  struct Unit {
    std::uint64_t factor;
    std::string_view name;
  };
  constexpr std::array<Unit, 6> kUnits{Unit{std::uint64_t{1} << 30U, "GiB"}, Unit{1000000000, "GB"},
                                       Unit{std::uint64_t{1} << 20U, "MiB"}, Unit{1000000, "MB"},
                                       Unit{std::uint64_t{1} << 10U, "KiB"}, Unit{1000, "kB"}};
  for (const Unit& u : kUnits) {
    if (bytes >= u.factor && bytes % u.factor == 0) {
      return fmt::format("{} {}", bytes / u.factor, u.name);
    }
  }
  return fmt::format("{} B", bytes);
}

std::string show_time(SimTime t) {
  struct Unit {
    std::int64_t factor;
    std::string_view name;
  };
  constexpr std::array<Unit, 4> kUnits{Unit{1000000000000, "s"}, Unit{1000000000, "ms"},
                                       Unit{1000000, "us"}, Unit{1000, "ns"}};
  for (const Unit& u : kUnits) {
    if (t.ps() >= u.factor && t.ps() % u.factor == 0) {
      return fmt::format("{} {}", t.ps() / u.factor, u.name);
    }
  }
  return t.ps() == 0 ? "0 us" : fmt::format("{} ps", t.ps());
}

std::string show_rate(BytesPerSecond r) {
  if (r.value >= 1e9) return fmt::format("{} GB/s", r.value / 1e9);
  if (r.value >= 1e6) return fmt::format("{} MB/s", r.value / 1e6);
  return fmt::format("{} B/s", r.value);
}
std::string show_flops(FlopsPerSecond r) { return fmt::format("{} TFLOP/s", r.value / 1e12); }
std::string show_percent(double share) { return fmt::format("{:.10g} %", share * 100); }

Section::Section(Context& context, const Node* table, std::string path,
                 std::vector<std::string> known, const Node& parent)
    : context_(context), table_(table), path_(std::move(path)), parent_(parent) {
  if (table_ == nullptr) {
    return;
  }
  if (table_->kind != Node::Kind::kTable) {
    const std::string shown = shown_key("", *table_);
    throw InputError(table_->where(), fmt::format("{} = {} is {}; expected a table", shown,
                                                  brief(*table_), table_->kind_name()));
  }
  for (const Node& child : table_->children) {
    if (std::find(known.begin(), known.end(), child.key) == known.end()) {
      throw InputError(child.key_where(),
                       fmt::format("{}: unknown key", shown_key(child.key, child)),
                       suggest_name(child.key, known));
    }
  }
}

const Node* Section::find(std::string_view key) const {
  return table_ == nullptr ? nullptr : table_->find(key);
}

std::string Section::full_key(std::string_view key) const {
  if (path_.empty() || key.empty()) {
    return path_.empty() ? std::string(key) : path_;
  }
  return fmt::format("{}.{}", path_, key);
}

std::string Section::shown_key(std::string_view key, const Node& at) const {
  const std::string full = full_key(key);
  const std::string prefix =
      at.source && !at.source->mount.empty() ? at.source->mount + "." : std::string();
  return !prefix.empty() && full.starts_with(prefix) ? full.substr(prefix.size()) : full;
}

std::string Section::where(std::string_view key) const {
  const Node* node = find(key);
  return node != nullptr ? node->where() : this->node().where();
}

void Section::violated(std::string_view key, const std::string& rule) const {
  const Node* node = find(key);
  throw InputError(where(key), fmt::format("{} = {}. Violated: {}",
                                           shown_key(key, node != nullptr ? *node : this->node()),
                                           node != nullptr ? brief(*node) : "(default)", rule));
}

void Section::fail(std::string_view key, const std::string& message,
                   const std::string& hint) const {
  const Node* node = find(key);
  throw InputError(where(key),
                   node != nullptr
                       ? fmt::format("{} = {}: {}", shown_key(key, *node), brief(*node), message)
                       : fmt::format("{} {}", shown_key(key, this->node()), message),
                   hint);
}

const Node* Section::need(std::string_view key, bool optional) const {
  const Node* node = find(key);
  if (node == nullptr && !optional) {
    throw InputError(this->node().where(),
                     fmt::format("{} is missing", shown_key(key, this->node())));
  }
  return node;
}

void Section::record(std::string_view key, std::string value, const Node* node, ValueKind kind,
                     std::span<const std::string_view> choices) {
  context_.record(full_key(key), std::move(value), node != nullptr ? node->where() : "default");
  context_.values.back().kind = kind;
  context_.values.back().choices.assign(choices.begin(), choices.end());
}

std::string Section::unit_text(std::string_view key, const Node& node) const {
  if (node.kind == Node::Kind::kString) {
    return node.text;
  }
  if (node.kind == Node::Kind::kInteger || node.kind == Node::Kind::kFloat) {
    return node.kind == Node::Kind::kInteger ? fmt::format("{}", node.integer)
                                             : fmt::format("{}", node.number);
  }
  throw InputError(node.where(), fmt::format("{} = {} is {}; expected text with a unit",
                                             shown_key(key, node), brief(node), node.kind_name()));
}

std::string Section::text(std::string_view key, std::optional<std::string> fallback) {
  const Node* node = need(key, fallback.has_value());
  if (node == nullptr) {
    record(key, *fallback, nullptr);
    return *fallback;
  }
  if (node->kind != Node::Kind::kString) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected text", shown_key(key, *node),
                                 brief(*node), node->kind_name()));
  }
  record(key, node->text, node);
  return node->text;
}

std::uint64_t Section::count(std::string_view key, std::uint64_t low, std::uint64_t high,
                             std::optional<std::uint64_t> fallback) {
  const Node* node = need(key, fallback.has_value());
  if (node == nullptr) {
    record(key, fmt::format("{}", *fallback), nullptr, ValueKind::kCount);
    return *fallback;
  }
  if (node->kind != Node::Kind::kInteger) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected a whole number", shown_key(key, *node),
                                 brief(*node), node->kind_name()));
  }
  if (node->integer < 0 || static_cast<std::uint64_t>(node->integer) < low ||
      static_cast<std::uint64_t>(node->integer) > high) {
    violated(key, fmt::format("{} <= {} <= {}", low, key, high));
  }
  record(key, fmt::format("{}", node->integer), node, ValueKind::kCount);
  return static_cast<std::uint64_t>(node->integer);
}

double Section::number(std::string_view key, NumberRange range, std::optional<double> fallback) {
  const Node* node = need(key, fallback.has_value());
  if (node == nullptr) {
    record(key, fmt::format("{}", *fallback), nullptr, ValueKind::kNumber);
    return *fallback;
  }
  if (node->kind != Node::Kind::kInteger && node->kind != Node::Kind::kFloat) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected a number", shown_key(key, *node),
                                 brief(*node), node->kind_name()));
  }
  const bool ok = std::isfinite(node->number) && node->number <= range.high &&
                  (range.low_open ? node->number > range.low : node->number >= range.low);
  if (!ok) {
    violated(key, fmt::format("{} {} {} <= {}", range.low, range.low_open ? "<" : "<=", key,
                              range.high));
  }
  record(key, fmt::format("{}", node->number), node, ValueKind::kNumber);
  return node->number;
}

bool Section::boolean(std::string_view key, std::optional<bool> fallback) {
  const Node* node = need(key, fallback.has_value());
  if (node == nullptr) {
    record(key, *fallback ? "true" : "false", nullptr, ValueKind::kBoolean);
    return *fallback;
  }
  if (node->kind != Node::Kind::kBoolean) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected true or false", shown_key(key, *node),
                                 brief(*node), node->kind_name()));
  }
  record(key, node->boolean ? "true" : "false", node, ValueKind::kBoolean);
  return node->boolean;
}

std::uint64_t Section::bytes(std::string_view key, std::optional<std::uint64_t> fallback) {
  const Node* node = need(key, fallback.has_value());
  const std::uint64_t v =
      node == nullptr ? *fallback
                      : parse_bytes(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, show_bytes(v), node, ValueKind::kBytes);
  return v;
}
SimTime Section::duration(std::string_view key, std::optional<SimTime> fallback) {
  const Node* node = need(key, fallback.has_value());
  const SimTime v =
      node == nullptr ? *fallback
                      : parse_duration(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, show_time(v), node, ValueKind::kDuration);
  return v;
}
BytesPerSecond Section::rate(std::string_view key, std::optional<BytesPerSecond> fallback) {
  const Node* node = need(key, fallback.has_value());
  const BytesPerSecond v =
      node == nullptr ? *fallback
                      : parse_rate(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, show_rate(v), node, ValueKind::kRate);
  return v;
}
FlopsPerSecond Section::flops(std::string_view key, std::optional<FlopsPerSecond> fallback) {
  const Node* node = need(key, fallback.has_value());
  const FlopsPerSecond v =
      node == nullptr ? *fallback
                      : parse_flops(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, show_flops(v), node, ValueKind::kFlops);
  return v;
}
double Section::percent(std::string_view key, std::optional<double> fallback) {
  const Node* node = need(key, fallback.has_value());
  const double v = node == nullptr
                       ? *fallback
                       : parse_percent(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, show_percent(v), node, ValueKind::kPercent);
  return v;
}
double Section::power(std::string_view key, std::optional<double> fallback) {
  const Node* node = need(key, fallback.has_value());
  const double v = node == nullptr
                       ? *fallback
                       : parse_power(unit_text(key, *node), node->where(), shown_key(key, *node));
  record(key, fmt::format("{} W", v), node, ValueKind::kPower);
  return v;
}

model::DType Section::dtype(std::string_view key, std::optional<model::DType> fallback) {
  static constexpr std::array<std::string_view, 8> kNames{"fp32", "bf16", "fp16",      "fp8",
                                                          "int8", "int4", "int4_g128", "mxfp4"};
  static constexpr std::array<model::DType, 8> kTypes{
      model::DType::kF32, model::DType::kBf16, model::DType::kF16,      model::DType::kF8E4M3,
      model::DType::kI8,  model::DType::kInt4, model::DType::kInt4G128, model::DType::kMxfp4};
  std::optional<std::size_t> index;
  if (fallback) {
    index = static_cast<std::size_t>(std::find(kTypes.begin(), kTypes.end(), *fallback) -
                                     kTypes.begin());
  }
  return kTypes[choice(key, kNames, index)];
}

std::size_t Section::choice(std::string_view key, std::span<const std::string_view> names,
                            std::optional<std::size_t> fallback,
                            std::span<const std::string_view> unsupported) {
  const Node* node = need(key, fallback.has_value());
  if (node == nullptr) {
    record(key, std::string(names[*fallback]), nullptr, ValueKind::kChoice, names);
    return *fallback;
  }
  if (node->kind != Node::Kind::kString) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected one of {}", shown_key(key, *node),
                                 brief(*node), node->kind_name(), fmt::join(names, ", ")));
  }
  const auto it = std::find(names.begin(), names.end(), node->text);
  if (it == names.end()) {
    if (std::find(unsupported.begin(), unsupported.end(), node->text) != unsupported.end()) {
      fail(key, "unsupported in this version",
           fmt::format("supported: {}", fmt::join(names, ", ")));
    }
    const std::vector<std::string> candidates(names.begin(), names.end());
    fail(key, "unknown value", suggest_name(node->text, candidates));
  }
  record(key, node->text, node, ValueKind::kChoice, names);
  return static_cast<std::size_t>(it - names.begin());
}

Section Section::section(std::string_view key, std::vector<std::string> known) {
  return {context_, find(key), full_key(key), std::move(known), node()};
}

void Section::sources() {
  const Node* node = find("source");
  if (node == nullptr) {
    return;
  }
  if (node->kind == Node::Kind::kString) {
    context_.record(full_key("source"), node->text, node->where(), false);
    return;
  }
  if (node->kind != Node::Kind::kTable) {
    throw InputError(node->where(),
                     fmt::format("{} = {} is {}; expected text or a table of texts",
                                 shown_key("source", *node), brief(*node), node->kind_name()));
  }
  for (const Node& child : node->children) {
    const std::string key = fmt::format("source.{}", child.key);
    if (child.kind != Node::Kind::kString) {
      throw InputError(child.where(),
                       fmt::format("{} = {} is {}; expected text", shown_key(key, child),
                                   brief(child), child.kind_name()));
    }
    if (table_->find(child.key) == nullptr) {
      throw InputError(
          child.key_where(),
          fmt::format("{}: there is no figure of that name to explain", shown_key(key, child)));
    }
    context_.record(full_key(key), child.text, child.where(), false);
  }
}

}  // namespace switchyard::scenario
