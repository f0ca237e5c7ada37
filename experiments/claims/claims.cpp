// SPDX-License-Identifier: Apache-2.0
#include "experiments/claims/claims.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::claims {
namespace {

using scenario::Node;

constexpr std::array<std::string_view, kVerdictCount> kVerdictNames{
    "reproduced", "direction", "contradicted", "needs-silicon", "out-of-scope", "not-decided"};
constexpr std::array<std::string_view, 7> kDecidedByNames{
    "arithmetic", "engine", "replay", "coupled", "simulation", "silicon", "human"};
constexpr std::array<std::string_view, 3> kToleranceNames{"arithmetic", "ratio", "absolute"};
constexpr std::array<std::string_view, 3> kSignNames{"none", "+", "-"};
constexpr std::array<std::string_view, 3> kRelationNames{"=", "<=", ">="};

/// One [[claim]] with its keys checked.
class Entry {
 public:
  explicit Entry(const Node& node) : node_(node) {
    static const std::array<std::string, 17> kKeys{
        "id",       "row",   "source",    "text",       "reading", "readings",
        "quantity", "value", "relation",  "reference",  "at",      "at_name",
        "unit",     "sign",  "tolerance", "decided_by", "to"};
    if (node.kind != Node::Kind::kTable) {
      throw InputError(node.where(), "claim is not a table", "write [[claim]]");
    }
    for (const Node& child : node.children) {
      if (std::find(kKeys.begin(), kKeys.end(), child.key) == kKeys.end()) {
        throw InputError(child.key_where(), fmt::format("claim.{}: unknown key", child.key),
                         suggest_name(child.key, kKeys));
      }
    }
  }

  [[nodiscard]] const Node* find(std::string_view key) const { return node_.find(key); }
  [[nodiscard]] const Node& need(std::string_view key) const {
    const Node* node = find(key);
    if (node == nullptr) {
      throw InputError(node_.where(), fmt::format("claim.{} is missing", key));
    }
    return *node;
  }
  [[nodiscard]] static std::string text(const Node& node) {
    if (node.kind != Node::Kind::kString || node.text.empty()) {
      throw InputError(node.where(),
                       fmt::format("claim.{} = {} is not a text", node.key, scenario::brief(node)));
    }
    return node.text;
  }
  [[nodiscard]] std::string text(std::string_view key) const { return text(need(key)); }
  [[nodiscard]] std::string text_or_empty(std::string_view key) const {
    const Node* node = find(key);
    return node == nullptr ? std::string() : text(*node);
  }
  [[nodiscard]] static double number(const Node& node) {
    if (node.kind == Node::Kind::kInteger || node.kind == Node::Kind::kFloat) {
      return node.number;
    }
    throw InputError(node.where(),
                     fmt::format("claim.{} = {} is not a number", node.key, scenario::brief(node)));
  }
  [[nodiscard]] std::size_t choice(std::string_view key, std::span<const std::string_view> names,
                                   std::optional<std::size_t> fallback) const {
    if (find(key) == nullptr && fallback) {
      return *fallback;
    }
    const std::string value = text(key);
    const auto it = std::find(names.begin(), names.end(), value);
    if (it == names.end()) {
      const std::vector<std::string> known(names.begin(), names.end());
      throw InputError(need(key).where(),
                       fmt::format("claim.{} = \"{}\": unknown value", key, value),
                       suggest_name(value, known));
    }
    return static_cast<std::size_t>(it - names.begin());
  }
  [[nodiscard]] std::vector<const Node*> list(std::string_view key) const {
    const Node& node = need(key);
    if (node.kind != Node::Kind::kArray || node.children.empty()) {
      throw InputError(node.where(), fmt::format("claim.{} is not a list with members", key));
    }
    std::vector<const Node*> out;
    for (const Node& child : node.children) {
      out.push_back(&child);
    }
    return out;
  }
  [[nodiscard]] std::string where() const { return node_.where(); }

 private:
  const Node& node_;
};

/// "42.3" → 42.3 and half a unit 0.05; "yes" → 1, "no" → 0 and 0.5.
void set_value(Claim& claim, const std::string& printed, const std::string& where) {
  claim.printed = printed;
  if (claim.yes_no()) {
    if (printed != "yes" && printed != "no") {
      throw InputError(where, fmt::format("claim.value = \"{}\". Violated: yes or no", printed));
    }
    claim.value = printed == "yes" ? 1 : 0;
    claim.half_unit = 0.5;
    return;
  }
  const char* const end = printed.data() + printed.size();
  const auto [stop, error] =
      std::from_chars(printed.data(), end, claim.value, std::chars_format::fixed);
  if (error != std::errc{} || stop != end || !std::isfinite(claim.value)) {
    throw InputError(where, fmt::format("claim.value = \"{}\" is not a plain decimal", printed),
                     "write the digits as the article prints them");
  }
  const std::size_t dot = printed.find('.');
  const std::size_t decimals = dot == std::string::npos ? 0 : printed.size() - dot - 1;
  claim.half_unit = 0.5 * std::pow(10.0, -static_cast<double>(decimals));
}

void append_points(const Entry& entry, const Claim& common, std::vector<Claim>& out) {
  const Node& value = entry.need("value");
  if (entry.find("at") == nullptr) {
    Claim claim = common;
    set_value(claim, Entry::text(value), value.where());
    if (const Node* to = entry.find("to")) {
      Claim upper = common;
      set_value(upper, Entry::text(*to), to->where());
      if (claim.yes_no() || entry.find("relation") != nullptr || upper.value <= claim.value) {
        throw InputError(
            to->where(),
            fmt::format("claim.to = \"{}\". Violated: above value = \"{}\", of numbers, "
                        "without a relation",
                        upper.printed, claim.printed));
      }
      claim.to = upper.value;
      claim.relation = Relation::kWithin;
      claim.printed = fmt::format("{} to {}", claim.printed, upper.printed);
    }
    if (claim.sign != Sign::kNone && !claim.reference) {
      throw InputError(entry.where(), "claim.sign needs `reference` or a series with `at`");
    }
    out.push_back(std::move(claim));
    return;
  }
  if (const Node* to = entry.find("to")) {
    throw InputError(to->where(), "claim.to: unsupported with a series");
  }
  const auto at = entry.list("at");
  const auto values = entry.list("value");
  if (at.size() != values.size()) {
    throw InputError(value.where(), fmt::format("claim.value has {} members and claim.at {}",
                                                values.size(), at.size()));
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    Claim claim = common;
    claim.at = Entry::number(*at[i]);
    claim.row = fmt::format("{}@{}", common.row, *claim.at);
    set_value(claim, Entry::text(*values[i]), values[i]->where());
    out.push_back(std::move(claim));
  }
}

void append_claims(const Entry& entry, std::vector<Claim>& out) {
  Claim common;
  common.id = entry.text("id");
  common.row = entry.text("row");
  if (!common.row.starts_with(common.id)) {
    throw InputError(entry.need("row").where(),
                     fmt::format("claim.row = \"{}\". Violated: starts with the id \"{}\"",
                                 common.row, common.id));
  }
  common.source = entry.text("source");
  common.text = entry.text("text");
  common.reading = entry.text_or_empty("reading");
  common.quantity = entry.text("quantity");
  common.unit = entry.text_or_empty("unit");
  common.at_name = entry.text_or_empty("at_name");
  if (const Node* node = entry.find("reference")) {
    common.reference = Entry::number(*node);
  }
  common.sign = static_cast<Sign>(entry.choice("sign", kSignNames, 0));
  common.relation = static_cast<Relation>(entry.choice("relation", kRelationNames, 0));
  common.tolerance = static_cast<Tolerance>(entry.choice("tolerance", kToleranceNames, {}));
  common.decided_by = static_cast<DecidedBy>(entry.choice("decided_by", kDecidedByNames, {}));
  if (entry.find("readings") == nullptr) {
    append_points(entry, common, out);
    return;
  }
  for (const Node* reading : entry.list("readings")) {
    Claim claim = common;
    claim.reading = Entry::text(*reading);
    claim.quantity = fmt::format("{}.{}", common.quantity, claim.reading);
    std::string suffix = claim.reading;
    std::replace(suffix.begin(), suffix.end(), ' ', '_');
    claim.row = fmt::format("{}-{}", common.row, suffix);
    append_points(entry, claim, out);
  }
}

bool value_holds(const Claim& claim, double ours) {
  switch (claim.relation) {
    case Relation::kAtMost:
      return ours <= claim.value;
    case Relation::kAtLeast:
      return ours >= claim.value;
    case Relation::kWithin:
      return ours >= claim.value && ours <= claim.to;
    case Relation::kEqual:
      break;
  }
  return std::abs(ours - claim.value) <= allowed_deviation(claim);
}

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i;
    while (j < order.size() && values[order[j]] == values[order[i]]) {
      ++j;
    }
    const double rank = static_cast<double>(i + j - 1) / 2.0;  // average of i … j-1
    for (; i < j; ++i) {
      out[order[i]] = rank;
    }
  }
  return out;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  return kVerdictNames[static_cast<std::size_t>(verdict)];
}
std::string_view name_of(DecidedBy decided_by) {
  return kDecidedByNames[static_cast<std::size_t>(decided_by)];
}
std::string_view name_of(Tolerance tolerance) {
  return kToleranceNames[static_cast<std::size_t>(tolerance)];
}

double allowed_deviation(const Claim& claim) {
  switch (claim.tolerance) {
    case Tolerance::kArithmetic:
      return std::max(claim.half_unit, 0.02 * std::abs(claim.value));
    case Tolerance::kRatio:
      return 0.20 * std::abs(claim.value);
    case Tolerance::kAbsolute:
      return 0.25 * std::abs(claim.value);
  }
  return 0;
}

Verdict verdict(const Claim& claim, const Measured& measured) {
  if (claim.decided_by == DecidedBy::kHuman) {
    return Verdict::kOutOfScope;
  }
  if (claim.decided_by == DecidedBy::kSilicon && !measured.on_silicon) {
    return Verdict::kNeedsSilicon;
  }
  SWITCHYARD_ASSERT(measured.value.has_value(), claim.row);
  const bool value_passes = value_holds(claim, *measured.value);
  if (claim.sign == Sign::kNone) {
    return value_passes ? Verdict::kReproduced : Verdict::kContradicted;
  }
  if (!measured.trend) {
    return Verdict::kNotDecided;
  }
  const double trend = *measured.trend;
  const bool sign_passes = claim.sign == Sign::kUp ? trend > 0 : trend < 0;
  if (!sign_passes) {
    return Verdict::kContradicted;
  }
  return value_passes ? Verdict::kReproduced : Verdict::kDirection;
}

std::optional<double> spearman(const std::vector<double>& x, const std::vector<double>& y) {
  SWITCHYARD_ASSERT(x.size() == y.size(), fmt::format("{} and {} points", x.size(), y.size()));
  if (x.size() < 2) {
    return std::nullopt;
  }
  const auto a = ranks(x);
  const auto b = ranks(y);
  const double mean = static_cast<double>(x.size() - 1) / 2.0;
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  if (aa == 0 || bb == 0) {
    return std::nullopt;
  }
  return ab / std::sqrt(aa * bb);
}

void Measurements::add(const std::string& quantity, double value, std::string how) {
  SWITCHYARD_ASSERT(!quantities_.contains(quantity), quantity);
  quantities_[quantity] = {{{std::nullopt, value}}, std::move(how)};
}

void Measurements::add_series(const std::string& quantity, const std::vector<double>& at,
                              const std::vector<double>& values, std::string how) {
  SWITCHYARD_ASSERT(!quantities_.contains(quantity) && at.size() == values.size(), quantity);
  Quantity q;
  q.how = std::move(how);
  for (std::size_t i = 0; i < at.size(); ++i) {
    q.points.push_back({at[i], values[i]});
  }
  quantities_[quantity] = std::move(q);
}

void Measurements::add_undecided(const std::string& quantity, std::string why) {
  SWITCHYARD_ASSERT(!quantities_.contains(quantity), quantity);
  quantities_[quantity] = {{}, std::move(why), true};
}

void Measurements::no_trend(const std::string& quantity, const std::string& why) {
  Quantity& q = quantities_.at(quantity);
  q.no_trend = true;
  q.how += "; " + why;
}

const Measurements::Quantity* Measurements::find(const std::string& quantity) const {
  const auto it = quantities_.find(quantity);
  return it == quantities_.end() ? nullptr : &it->second;
}

double Measurements::value(const std::string& quantity) const {
  const Quantity* q = find(quantity);
  if (q == nullptr || q->points.size() != 1) {
    throw InputError("claims", fmt::format("no single value of \"{}\" was measured", quantity));
  }
  return q->points.front().value;
}

std::vector<Judged> judge(const std::vector<Claim>& claims, const Measurements& measurements) {
  std::vector<Judged> out;
  for (const Claim& claim : claims) {
    Judged j;
    j.claim = claim;
    const bool ours =
        claim.decided_by != DecidedBy::kHuman && claim.decided_by != DecidedBy::kSilicon;
    const Measurements::Quantity* q = measurements.find(claim.quantity);
    if (q == nullptr && ours) {
      std::vector<std::string> names;
      for (const auto& [name, quantity] : measurements.all()) {
        names.push_back(name);
      }
      throw InputError(fmt::format("claim {}", claim.row),
                       fmt::format("its quantity \"{}\" is not measured", claim.quantity),
                       suggest_name(claim.quantity, names));
    }
    if (q != nullptr) {
      j.how = q->how;
      if (q->undecided && ours) {
        j.verdict = Verdict::kNotDecided;
        out.push_back(std::move(j));
        continue;
      }
      std::vector<double> at;
      std::vector<double> values;
      for (const auto& point : q->points) {
        if (point.at == claim.at) {
          j.measured.value = point.value;
        }
        at.push_back(point.at.value_or(0));
        values.push_back(point.value);
      }
      if (!j.measured.value && ours) {
        if (claim.at) {
          continue;
        }
        throw InputError(fmt::format("claim {}", claim.row),
                         fmt::format("\"{}\" is measured as a series only", claim.quantity));
      }
      if (claim.sign != Sign::kNone) {
        j.measured.trend =
            claim.at ? spearman(at, values) : std::optional(*j.measured.value - *claim.reference);
        if (q->no_trend) j.measured.trend = 0;
      }
    }
    j.verdict = verdict(claim, j.measured);
    out.push_back(std::move(j));
  }
  return out;
}

std::vector<Claim> parse_claims(std::string_view toml, const std::string& name) {
  auto source = std::make_shared<scenario::Source>();
  source->name = name;
  const Node root = scenario::parse_toml(toml, source);
  for (const Node& child : root.children) {
    if (child.key != "claim") {
      throw InputError(child.key_where(), fmt::format("{}: unknown key", child.key),
                       "a claim file holds [[claim]] only");
    }
  }
  const Node* list = root.find("claim");
  if (list == nullptr || list->kind != Node::Kind::kArray || list->children.empty()) {
    throw InputError(name, "there is no claim in it", "write [[claim]]");
  }
  std::vector<Claim> out;
  for (const Node& node : list->children) {
    append_claims(Entry(node), out);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (out[i].row == out[j].row) {
        throw InputError(name, fmt::format("row {} is there twice", out[i].row));
      }
    }
  }
  return out;
}

std::vector<Claim> claims_of(const std::string& table) {
  std::string stem = table;
  std::replace(stem.begin(), stem.end(), '-', '_');
  for (const EmbeddedFile& file : embedded_files()) {
    if (stem == file.name) {
      return parse_claims(file.text, fmt::format("experiments/claims/{}.toml", stem));
    }
  }
  throw InputError(table, "there is no claim file of that name");
}

const Claim& claim_by_row(const std::vector<Claim>& claims, std::string_view row) {
  for (const Claim& claim : claims) {
    if (claim.row == row) {
      return claim;
    }
  }
  throw InputError("claims", fmt::format("there is no row {}", row));
}

}  // namespace switchyard::claims
