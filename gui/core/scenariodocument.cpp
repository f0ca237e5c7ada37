// SPDX-License-Identifier: Apache-2.0
#include "gui/core/scenariodocument.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "gui/core/gallery.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/sweep_limit.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::gui {
namespace {

namespace fs = std::filesystem;
using scenario::Node;
using scenario::ValueKind;

/// Sections in the order of scenarios/README.md.
constexpr std::array<std::string_view, 15> kSections = {
    "model",  "hardware", "parallel", "workload", "serving",   "policy", "memory", "network",
    "faults", "monitor",  "host",     "cost",     "economics", "run",    "sweep"};

/// Points of a sweep that are resolved whenever something changes, as far as a form can wait.
constexpr std::size_t kSweepPointsTried = 24;

/// Lists of tables: key, what one item is.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLists = {{
    {"hardware.devices", "device"},
    {"hardware.links", "link"},
    {"workload.tiers", "tier"},
    {"faults.events", "fault"},
    {"monitor.alarms", "alarm"},
    {"sweep", "axis"},
}};

std::size_t sectionOrder(std::string_view name) {
  return static_cast<std::size_t>(std::find(kSections.begin(), kSections.end(), name) -
                                  kSections.begin());
}

std::shared_ptr<const scenario::Source> sourceOf(const std::string& name) {
  auto source = std::make_shared<scenario::Source>();
  source->name = name;
  source->folder = fs::path(name).parent_path();
  return source;
}

std::vector<std::string> split(const std::string& key) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  while (true) {
    const std::size_t dot = key.find('.', from);
    parts.push_back(key.substr(from, dot - from));
    if (dot == std::string::npos) return parts;
    from = dot + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::size_t first) {
  std::string out;
  for (std::size_t i = first; i < parts.size(); ++i) {
    if (i > first) out += '.';
    out += parts[i];
  }
  return out;
}

/// One part of a key: "tiers[1]" is the item 1 of "tiers".
struct Part {
  std::string name;
  std::optional<std::size_t> index;
};
/// InputError(name, …) for a malformed index.
std::vector<Part> partsOf(const std::string& key, const std::string& where) {
  std::vector<Part> out;
  for (const std::string& word : split(key)) {
    const std::size_t open = word.find('[');
    Part part{word.substr(0, open), std::nullopt};
    if (open != std::string::npos) {
      std::size_t index = 0;
      const char* from = word.data() + open + 1;
      const char* to = word.data() + word.size() - 1;
      const auto [end, error] = std::from_chars(from, to, index);
      if (word.back() != ']' || error != std::errc() || end != to || part.name.empty()) {
        throw InputError(where, fmt::format("\"{}\" is no item of an array", word),
                         "write e.g. tiers[0]");
      }
      part.index = index;
    }
    out.push_back(std::move(part));
  }
  return out;
}

/// The node of the first `count` parts; null if the document does not have it.
const Node* nodeAt(const Node& root, const std::vector<Part>& parts, std::size_t count) {
  const Node* at = &root;
  for (std::size_t i = 0; i < count; ++i) {
    at = at->kind == Node::Kind::kTable ? at->find(parts[i].name) : nullptr;
    if (at == nullptr) return nullptr;
    if (!parts[i].index) continue;
    if (at->kind != Node::Kind::kArray || *parts[i].index >= at->children.size()) return nullptr;
    at = &at->children[*parts[i].index];
  }
  return at;
}

bool holdsTables(const Node& node) {
  return node.kind == Node::Kind::kArray && !node.children.empty() &&
         std::all_of(node.children.begin(), node.children.end(),
                     [](const Node& n) { return n.kind == Node::Kind::kTable; });
}

/// Leaves of a document, "a.b" and "a.tables[0].b" → TOML text. An array of anything but tables is
/// a leaf.
void flatten(const Node& node, const std::string& prefix, std::map<std::string, std::string>& out) {
  for (const Node& child : node.children) {
    const std::string key = prefix.empty() ? child.key : prefix + "." + child.key;
    if (child.kind == Node::Kind::kTable) {
      flatten(child, key, out);
    } else if (holdsTables(child)) {
      for (std::size_t i = 0; i < child.children.size(); ++i) {
        flatten(child.children[i], fmt::format("{}[{}]", key, i), out);
      }
    } else {
      out[key] = child.toml();
    }
  }
}
std::map<std::string, std::string> leaves(const std::string& text, const std::string& name) {
  std::map<std::string, std::string> out;
  flatten(scenario::parse_toml(text, sourceOf(name)), "", out);
  return out;
}

/// Offset of a place; columns count code points.
std::size_t offsetOf(const std::string& text, std::uint32_t line, std::uint32_t column) {
  std::size_t at = 0;
  for (std::uint32_t l = 1; l < line; ++l) {
    at = text.find('\n', at);
    if (at == std::string::npos) return text.size();
    ++at;
  }
  for (std::uint32_t c = 1; c < column && at < text.size(); ++c) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  }
  return at;
}

/// End of the text or comment that starts at `at`, or `at` if neither does.
std::size_t skipQuoted(const std::string& text, std::size_t at) {
  if (text[at] == '#') return std::min(text.find('\n', at), text.size());
  for (const char quote : {'"', '\''}) {
    if (text[at] != quote) continue;
    const std::string three(3, quote);
    const bool many = text.compare(at, 3, three) == 0;
    std::size_t i = at + (many ? 3 : 1);
    while (i < text.size()) {
      if (quote == '"' && text[i] == '\\') {
        i += 2;
      } else if (many ? text.compare(i, 3, three) == 0 : text[i] == quote) {
        return i + (many ? 3 : 1);
      } else {
        ++i;
      }
    }
    return text.size();
  }
  return at;
}

/// End of the value that starts at `at`.
std::size_t valueEnd(const std::string& text, std::size_t at) {
  if (const std::size_t end = skipQuoted(text, at); end != at) return end;
  if (text[at] == '[' || text[at] == '{') {
    int depth = 0;
    while (at < text.size()) {
      if (const std::size_t end = skipQuoted(text, at); end != at) {
        at = end;
        continue;
      }
      if (text[at] == '[' || text[at] == '{') ++depth;
      if (text[at] == ']' || text[at] == '}') --depth;
      ++at;
      if (depth == 0) return at;
    }
    return at;
  }
  return std::min(text.find_first_of(",]}# \t\r\n", at), text.size());
}

struct Header {
  std::string name;
  bool array = false;
  std::size_t begin = 0, end = 0;  ///< Of its line, and of its block.
};
/// "[name]" and "[[name]]" lines outside of texts and values over several lines.
std::vector<Header> headers(const std::string& text) {
  std::vector<Header> found;
  std::size_t at = 0;
  bool lineStart = true;
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      lineStart = true;
      ++at;
      continue;
    }
    if (lineStart && depth == 0 && c == '[') {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::size_t close = text.find(']', at);
      if (close < end) {
        const bool array = text.compare(at, 2, "[[") == 0;
        std::string name = text.substr(at + (array ? 2 : 1), close - at - (array ? 2 : 1));
        std::erase_if(name, [](char x) { return x == ' ' || x == '\t'; });
        if (!found.empty()) found.back().end = at;
        found.push_back({name, array, at, text.size()});
      }
      at = end;
      continue;
    }
    if (c != ' ' && c != '\t') lineStart = false;
    if (const std::size_t end = skipQuoted(text, at); end != at) {
      at = end;
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    ++at;
  }
  return found;
}

/// Where a block's next key goes: after its last line that is neither empty nor a comment.
std::size_t endOfKeys(const std::string& text, std::size_t begin, std::size_t end) {
  std::size_t last = begin;
  for (std::size_t line = begin; line < end;) {
    const std::size_t next = std::min(text.find('\n', line), end);
    const std::size_t first = text.find_first_not_of(" \t\r", line);
    if (first < next && text[first] != '#') last = std::min(next + 1, text.size());
    line = next + 1;
  }
  return last;
}

std::string withLine(std::string text, std::size_t at, const std::string& line) {
  const bool needsBreak = at > 0 && text[at - 1] != '\n';
  return text.insert(at, (needsBreak ? "\n" : "") + line + "\n");
}

/// A key inside an array of tables, "faults.events[0].step": the value where it stands, or a new
/// line (a new entry between braces) of the item that is there.
std::string placeInItem(const std::string& text, const std::string& name, const std::string& key,
                        const std::string& toml) {
  const std::vector<Part> parts = partsOf(key, name);
  const Node root = scenario::parse_toml(text, sourceOf(name));
  std::string out = text;
  if (const Node* node = nodeAt(root, parts, parts.size())) {
    const std::size_t begin = offsetOf(text, node->line, node->column);
    return out.replace(begin, valueEnd(text, begin) - begin, toml);
  }
  const Node* item = nodeAt(root, parts, parts.size() - 1);
  const Part& holder = parts.size() > 1 ? parts[parts.size() - 2] : parts[0];
  if (item == nullptr || item->kind != Node::Kind::kTable || !holder.index || parts.back().index) {
    throw InputError(name, fmt::format("there is no such item for {}", key),
                     "add it to the file by hand");
  }
  const std::size_t begin = offsetOf(text, item->line, item->column);
  if (begin < text.size() && text[begin] == '{') {
    std::size_t close = valueEnd(text, begin) - 1;
    while (close > begin + 1 && (text[close - 1] == ' ' || text[close - 1] == '\t')) --close;
    return out.insert(
        close, fmt::format("{} {} = {}", close == begin + 1 ? "" : ",", parts.back().name, toml));
  }
  std::string table;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i].index && i + 2 < parts.size()) {
      throw InputError(name, fmt::format("cannot add {} to an array inside an array", key),
                       "edit the file by hand");
    }
    table += (i > 0 ? "." : "") + parts[i].name;
  }
  std::size_t seen = 0;
  for (const Header& h : headers(text)) {
    if (!h.array || h.name != table) continue;
    if (seen++ != *holder.index) continue;
    return withLine(out, endOfKeys(text, h.begin, h.end),
                    fmt::format("{} = {}", parts.back().name, toml));
  }
  throw InputError(name, fmt::format("the item of {} was not found in the text", key),
                   "edit the file by hand");
}

std::string place(const std::string& text, const std::string& name, const std::string& key,
                  const std::string& toml) {
  if (key.find('[') != std::string::npos) return placeInItem(text, name, key, toml);
  const std::vector<std::string> parts = split(key);
  const Node root = scenario::parse_toml(text, sourceOf(name));
  const Node* at = &root;
  std::size_t depth = 0;
  while (depth < parts.size()) {
    const Node* next = at->kind == Node::Kind::kTable ? at->find(parts[depth]) : nullptr;
    if (next == nullptr) break;
    at = next;
    ++depth;
  }
  std::string out = text;
  if (depth == parts.size()) {
    const std::size_t begin = offsetOf(text, at->line, at->column);
    return out.replace(begin, valueEnd(text, begin) - begin, toml);
  }
  if (depth > 0 && at->kind != Node::Kind::kTable) {
    // placement = "eplb" cannot hold placement.x.
    throw InputError(
        at->where(),
        fmt::format("{} has a value and takes no keys below it",
                    join({parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(depth)}, 0)));
  }
  if (depth > 0) {
    const std::size_t begin = offsetOf(text, at->line, at->column);
    if (begin < text.size() && text[begin] == '{') {
      std::size_t close = valueEnd(text, begin) - 1;
      while (close > begin + 1 && (text[close - 1] == ' ' || text[close - 1] == '\t')) --close;
      const bool empty = close == begin + 1;
      return out.insert(close,
                        fmt::format("{} {} = {}", empty ? "" : ",", join(parts, depth), toml));
    }
  }
  // The longest header that holds the key.
  const std::vector<Header> all = headers(text);
  const Header* best = nullptr;
  std::size_t used = 0;
  for (const Header& h : all) {
    const std::size_t n = split(h.name).size();
    if (!h.array && n < parts.size() && n > used && key.starts_with(h.name + ".")) {
      best = &h;
      used = n;
    }
  }
  if (best != nullptr) {
    return withLine(out, endOfKeys(text, best->begin, best->end),
                    fmt::format("{} = {}", join(parts, used), toml));
  }
  if (parts.size() == 1) {
    const std::size_t end = all.empty() ? text.size() : all.front().begin;
    return withLine(out, endOfKeys(text, 0, end), fmt::format("{} = {}", key, toml));
  }
  const std::string section = fmt::format("[{}]\n{} = {}\n", parts[0], join(parts, 1), toml);
  for (const Header& h : all) {
    if (sectionOrder(split(h.name)[0]) > sectionOrder(parts[0])) {
      // Above the comments that belong to the header.
      std::size_t line = h.begin;
      while (line > 1) {
        const std::size_t before = text.rfind('\n', line - 2);
        const std::size_t start = before == std::string::npos ? 0 : before + 1;
        if (text[start] != '#' || start == 0) break;
        line = start;
      }
      return out.insert(line, section + "\n");
    }
  }
  const bool broken = !out.empty() && out.back() != '\n';
  return out + (broken ? "\n" : "") + "\n" + section;
}

struct Range {
  std::size_t begin = 0, end = 0;
};
/// The [[key]] blocks, each with the tables below it, without the blank lines and comments that
/// follow.
std::vector<Range> blocksOf(const std::string& text, const std::string& key) {
  std::vector<Range> out;
  const std::vector<Header> all = headers(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].array || all[i].name != key) continue;
    std::size_t last = i;
    while (last + 1 < all.size() && all[last + 1].name.starts_with(key + ".")) ++last;
    out.push_back({all[i].begin, endOfKeys(text, all[i].begin, all[last].end)});
  }
  return out;
}

std::size_t startOfLine(const std::string& text, std::size_t at) {
  const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  return before == std::string::npos ? 0 : before + 1;
}

/// From the first of the comment lines that stand directly above it.
Range withCommentAbove(const std::string& text, Range range) {
  std::size_t line = startOfLine(text, range.begin);
  // Something else stands before it on its line.
  if (text.find_first_not_of(" \t", line) != range.begin) return range;
  while (line > 0) {
    const std::size_t above = startOfLine(text, line - 1);
    const std::size_t first = text.find_first_not_of(" \t", above);
    if (text[first] != '#') break;
    range.begin = first;
    line = above;
  }
  return range;
}

/// With the texts of `a` and `b` exchanged; a stands before b.
std::string exchanged(const std::string& text, Range a, Range b) {
  std::string first = text.substr(a.begin, a.end - a.begin);
  std::string second = text.substr(b.begin, b.end - b.begin);
  // The last line of a file need not be ended.
  if (first.back() == '\n' && second.back() != '\n') second += '\n';
  return text.substr(0, a.begin) + second + text.substr(a.end, b.begin - a.end) + first +
         text.substr(b.end);
}

/// Exchanges two neighbours of a list between brackets, with the comments above them and those that
/// end their lines. Empty where such a comment would have no line's end to stand at.
std::string exchangedInline(const std::string& text, Range a, Range b) {
  /// Where a comment behind an item begins (with the blanks before it), and its end.
  const auto comment = [&](const Range& item) {
    std::size_t at = text.find_first_not_of(" \t", item.end);
    if (at != std::string::npos && text[at] == ',') at = text.find_first_not_of(" \t", at + 1);
    const bool ends = at == std::string::npos || text[at] == '\n' || text[at] == '\r';
    const bool there = !ends && text[at] == '#';
    const std::size_t comma = text.find_first_not_of(" \t", item.end);
    const std::size_t from =
        comma != std::string::npos && text[comma] == ',' ? comma + 1 : item.end;
    struct Found {
      bool possible;
      Range range;
    };
    const std::size_t to = there ? std::min(text.find_first_of("\r\n", at), text.size()) : from;
    return Found{ends || there, {from, to}};
  };
  const auto ofA = comment(a);
  const auto ofB = comment(b);
  const auto of = [&](const Range& r) { return text.substr(r.begin, r.end - r.begin); };
  const std::string afterA = of(ofA.range);
  const std::string afterB = of(ofB.range);
  if ((!afterB.empty() && !ofA.possible) || (!afterA.empty() && !ofB.possible)) return {};
  const Range wholeA = withCommentAbove(text, a);
  const Range wholeB = withCommentAbove(text, b);
  return text.substr(0, wholeA.begin) + of(wholeB) + text.substr(a.end, ofA.range.begin - a.end) +
         afterB + text.substr(ofA.range.end, wholeB.begin - ofA.range.end) + of(wholeA) +
         text.substr(b.end, ofB.range.begin - b.end) + afterA + text.substr(ofB.range.end);
}

/// Without the lines of [section] up to the next header; comments above it stay.
std::string withoutSection(std::string text, const std::string& section) {
  for (const Header& h : headers(text)) {
    if (h.array || h.name != section) continue;
    std::size_t end = endOfKeys(text, h.begin, h.end);
    while (end < text.size() && text[end] == '\n') ++end;
    return text.erase(h.begin, end - h.begin);
  }
  return text;
}

/// Where a new [[key]] block goes: behind the last block of its section, else before the sections
/// that are documented after it, above their comments.
std::size_t placeOfBlock(const std::string& text, const std::string& section) {
  const std::vector<Header> all = headers(text);
  for (std::size_t i = all.size(); i-- > 0;) {
    if (split(all[i].name)[0] == section) return endOfKeys(text, all[i].begin, all[i].end);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (sectionOrder(split(all[i].name)[0]) <= sectionOrder(section)) continue;
    return i == 0 ? endOfKeys(text, 0, all[i].begin)
                  : endOfKeys(text, all[i - 1].begin, all[i - 1].end);
  }
  return text.size();
}

/// Keys that are shown but follow from others.
bool derived(const std::string& key) {
  // Of a model's shape only these may differ from its file.
  static const std::set<std::string> kOfModel = {"model.file", "model.name", "model.num_experts",
                                                 "model.top_k", "model.expert_intermediate"};
  if (key.starts_with("model.") && !key.starts_with("model.dtype.")) return !kOfModel.contains(key);
  static const std::set<std::string> kDerived = {"workload.routing.trace_path",
                                                 "parallel.placement_file",
                                                 "parallel.placement_options.loads_file",
                                                 "parallel.prefill.placement_file",
                                                 "parallel.prefill.placement_options.loads_file",
                                                 "network.measured.points",
                                                 "hardware.note"};
  return kDerived.contains(key) || key.find('[') != std::string::npos ||
         key.find(".source") != std::string::npos || key.starts_with("hardware.devices") ||
         key.starts_with("hardware.links") || key.ends_with("_path");
}

std::string legalText(const scenario::ResolvedValue& v) {
  if (!v.legal.empty()) return v.legal;
  switch (v.kind) {
    case ValueKind::kText:
      // A few keys take a number and are read as text: top_k of a model, by its file's own word.
      return !v.value.empty() && v.value.find_first_not_of("0123456789") == std::string::npos
                 ? "a whole number"
                 : "text";
    case ValueKind::kCount:
      return "a whole number";
    case ValueKind::kNumber:
      return "a number";
    case ValueKind::kBoolean:
      return "true or false";
    case ValueKind::kBytes:
      return "bytes with a unit: 80 GB, 16 GiB";
    case ValueKind::kDuration:
      return "a time with a unit: 6 us, 2 ms";
    case ValueKind::kRate:
      return "a rate with a unit, per direction: 450 GB/s, 400 Gbit/s";
    case ValueKind::kFlops:
      return "a rate with a unit: 989 TFLOP/s";
    case ValueKind::kPercent:
      return "a share: 92 %";
    case ValueKind::kPower:
      return "a power with a unit: 700 W";
    case ValueKind::kChoice: {
      std::string text;
      for (const std::string& c : v.choices) text += (text.empty() ? "" : ", ") + c;
      return text;
    }
  }
  return {};
}

/// Files that a key may name, as the scenario would write them.
std::vector<std::string> filesFor(const std::string& key) {
  static const std::map<std::string, std::pair<std::string, std::string>> kFolders = {
      {"model.file", {"models", ".json"}},
      {"hardware.file", {"hardware", ".toml"}},
      {"workload.file", {"workloads", ".toml"}},
      {"policy.file", {"policies", ".toml"}}};
  std::vector<std::string> out;
  const auto found = kFolders.find(key);
  if (found == kFolders.end()) return out;
  std::error_code ignored;
  for (const auto& f : fs::directory_iterator(scenariosFolder() / found->second.first, ignored)) {
    if (f.path().extension() == found->second.second) {
      out.push_back(found->second.first + "/" + f.path().filename().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::string setInText(const std::string& text, const std::string& name, const std::string& key,
                      const std::string& toml) {
  const auto refuse = [&](const std::string& why) {
    throw InputError(name, fmt::format("cannot set {} = {} in this file: {}", key, toml, why),
                     "edit the file by hand");
  };
  std::map<std::string, std::string> before = leaves(text, name);
  std::string out = place(text, name, key, toml);
  std::map<std::string, std::string> after;
  try {
    after = leaves(out, name);
  } catch (const InputError& e) {
    refuse(e.message());
  }
  // Nothing else may have changed. A table that is replaced as a whole loses its keys.
  const auto drop = [&](std::map<std::string, std::string>& all) {
    std::erase_if(all, [&](const auto& leaf) {
      return leaf.first == key || leaf.first.starts_with(key + ".");
    });
  };
  if (!after.contains(key) && toml.find('{') == std::string::npos) refuse("it would not be found");
  drop(before);
  drop(after);
  if (before != after) refuse("other keys would change");
  return out;
}

std::string editList(const std::string& text, const std::string& name, const std::string& key,
                     ListEdit edit, std::size_t index, const std::string& toml) {
  const auto refuse = [&](const std::string& why) {
    throw InputError(name, fmt::format("cannot change the list {} in this file: {}", key, why),
                     "edit the file by hand");
  };
  const std::vector<Part> parts = partsOf(key, name);
  const Node root = scenario::parse_toml(text, sourceOf(name));
  const Node* node = nodeAt(root, parts, parts.size());
  if (node != nullptr && node->kind != Node::Kind::kArray) refuse("it is no list");
  std::vector<std::string> wanted;
  for (std::size_t i = 0; node != nullptr && i < node->children.size(); ++i) {
    wanted.push_back(node->children[i].toml());
  }
  if (edit != ListEdit::kAdd && index >= wanted.size()) refuse("there is no such item");
  Node item;
  if (edit == ListEdit::kAdd) {
    item = scenario::parse_setting_value(toml, sourceOf(name));
    if (item.kind != Node::Kind::kTable) refuse("the new item is no table");
    wanted.push_back(item.toml());
  } else if (edit == ListEdit::kDuplicate) {
    const std::string same = wanted[index];
    wanted.insert(wanted.begin() + static_cast<std::ptrdiff_t>(index) + 1, same);
  } else if (edit == ListEdit::kUp || edit == ListEdit::kDown) {
    if (edit == ListEdit::kUp ? index == 0 : index + 1 == wanted.size()) {
      refuse(edit == ListEdit::kUp ? "its first item cannot go up"
                                   : "its last item cannot go down");
    }
    std::swap(wanted[index], wanted[edit == ListEdit::kUp ? index - 1 : index + 1]);
  } else {
    wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(index));
  }
  std::string out = text;
  // The first of two neighbours that are exchanged.
  std::optional<std::size_t> moved;
  if (edit == ListEdit::kUp) moved = index - 1;
  if (edit == ListEdit::kDown) moved = index;
  const std::vector<Range> blocks = blocksOf(text, key);
  if (node == nullptr || !blocks.empty()) {
    if (node != nullptr && blocks.size() != node->children.size()) {
      refuse("its items stand in more than one form");
    }
    const auto insert = [&](std::size_t at, const std::string& block) {
      const bool broken = at > 0 && out[at - 1] != '\n';
      const bool close = at < out.size() && out[at] != '\n';
      out.insert(at, (broken ? "\n\n" : at > 0 ? "\n" : "") + block + (close ? "\n" : ""));
    };
    if (edit == ListEdit::kAdd) {
      std::string block = fmt::format("[[{}]]\n", key);
      for (const Node& member : item.children) {
        block += fmt::format("{} = {}\n", member.key, member.toml());
      }
      insert(blocks.empty() ? placeOfBlock(text, parts[0].name) : blocks.back().end, block);
    } else {
      const Range r = blocks[index];
      if (edit == ListEdit::kDuplicate) {
        std::string block = text.substr(r.begin, r.end - r.begin);
        if (block.back() != '\n') block += '\n';
        insert(r.end, block);
      } else if (moved) {
        out = exchanged(text, withCommentAbove(text, blocks[*moved]),
                        withCommentAbove(text, blocks[*moved + 1]));
      } else {
        std::size_t end = r.end;
        while (end < out.size() && out[end] == '\n') ++end;
        out.erase(r.begin, end - r.begin);
      }
    }
  } else {
    // list = [ { … }, { … } ]
    const std::size_t open = offsetOf(text, node->line, node->column);
    const auto rangeOf = [&](const Node& n) {
      const std::size_t begin = offsetOf(text, n.line, n.column);
      return Range{begin, valueEnd(text, begin)};
    };
    if (edit == ListEdit::kRemove && wanted.empty()) {
      // A list without items is refused by most readers: the key goes.
      std::size_t begin = text.rfind('\n', offsetOf(text, node->key_line, node->key_column));
      begin = begin == std::string::npos ? 0 : begin + 1;
      const std::size_t end = valueEnd(text, open);
      out.erase(begin, std::min(text.find('\n', end), text.size() - 1) + 1 - begin);
    } else if (edit == ListEdit::kRemove) {
      Range r = rangeOf(node->children[index]);
      if (index + 1 < node->children.size()) {
        r.end = rangeOf(node->children[index + 1]).begin;
      } else {
        r.begin = rangeOf(node->children[index - 1]).end;
      }
      out.erase(r.begin, r.end - r.begin);
    } else if (moved) {
      out = exchangedInline(text, rangeOf(node->children[*moved]),
                            rangeOf(node->children[*moved + 1]));
      if (out.empty()) refuse("a comment at the end of a line cannot go with its item");
    } else {
      const std::size_t after = edit == ListEdit::kAdd ? node->children.size() - 1 : index;
      const Range r =
          node->children.empty() ? Range{open, open + 1} : rangeOf(node->children[after]);
      const std::string added =
          edit == ListEdit::kAdd ? item.toml() : text.substr(r.begin, r.end - r.begin);
      out.insert(r.end, (node->children.empty() ? "" : ", ") + added);
    }
  }
  // Exactly the list may have changed.
  Node after;
  try {
    after = scenario::parse_toml(out, sourceOf(name));
  } catch (const InputError& e) {
    refuse(e.message());
  }
  std::vector<std::string> got;
  if (const Node* n = nodeAt(after, parts, parts.size()); n != nullptr) {
    for (const Node& child : n->children) got.push_back(child.toml());
  }
  if (got != wanted) refuse("it would not be what is wanted");
  const auto others = [&](const std::string& of) {
    std::map<std::string, std::string> all = leaves(of, name);
    std::erase_if(all, [&](const auto& leaf) {
      return leaf.first == key || leaf.first.starts_with(key + "[");
    });
    return all;
  };
  if (others(text) != others(out)) refuse("other keys would change");
  return out;
}

fs::path ScenarioTexts::withText(const std::vector<fs::path>& files, const std::string& canonical) {
  const std::scoped_lock lock(m_mutex);
  for (const fs::path& file : files) {
    std::error_code missing;
    const fs::file_time_type written = fs::last_write_time(file, missing);
    if (missing) continue;
    const auto known = m_known.find(file);
    if (known == m_known.end() || known->second.written != written) {
      std::string text;
      try {
        scenario::ReadOptions options;
        options.presets_root = scenariosFolder().string();
        options.require_trace = false;
        text = scenario::canonical_text(scenario::read_scenario(file.string(), options));
      } catch (const InputError&) {
        // A scenario that cannot be read here is not the one.
      }
      ++m_resolved;
      m_known[file] = {written, std::move(text)};
    }
    const std::string& text = m_known.at(file).text;
    if (!text.empty() && text == canonical) return file;
  }
  return {};
}

std::size_t ScenarioTexts::resolved() const {
  const std::scoped_lock lock(m_mutex);
  return m_resolved;
}

ScenarioDocument::ScenarioDocument(const fs::path& path)
    : m_path(path), m_text(read_file(path)), m_saved(m_text) {
  (void)leaves(m_text, m_path.string());
  resolve();
}

const ScenarioDocument::Entry* ScenarioDocument::entry(std::string_view key) const {
  const auto found = std::find_if(m_entries.begin(), m_entries.end(),
                                  [&](const Entry& e) { return e.key == key; });
  return found == m_entries.end() ? nullptr : &*found;
}

std::optional<std::string> ScenarioDocument::sweepProblem(
    const std::vector<scenario::SweepAxis>& axes, const scenario::ReadOptions& options) const {
  // Reading one scenario does not look at what a sweep would make of it. Values are tried together,
  // as the sweep sets them: what is impossible alone (a degree without its partner) may be possible
  // in every point.
  const auto wrong =
      [&](const std::vector<std::pair<const scenario::SweepAxis*, std::string>>& point)
      -> std::optional<std::string> {
    scenario::ReadOptions set = options;
    set.settings = {"sweep=[]"};
    for (const auto& [axis, value] : point) set.settings.push_back(axis->key + "=" + value);
    try {
      (void)scenario::read_scenario_text(m_text, m_path.string(), set);
    } catch (const InputError& e) {
      return e.message();
    }
    return std::nullopt;
  };
  std::size_t points = 1;
  for (const scenario::SweepAxis& axis : axes) {
    if (points > scenario::kMaxPoints / axis.values.size()) {
      return fmt::format("{}: the sweep has more than {} points", axis.where, scenario::kMaxPoints);
    }
    points *= axis.values.size();
  }
  const std::size_t tried = std::min(points, kSweepPointsTried);
  for (std::size_t t = 0; t < tried; ++t) {
    // Spread over all of them, the first and the last among them.
    const std::size_t at = tried < 2 ? 0 : t * (points - 1) / (tried - 1);
    std::vector<std::pair<const scenario::SweepAxis*, std::string>> point;
    std::size_t stride = points;
    for (const scenario::SweepAxis& axis : axes) {
      stride /= axis.values.size();
      point.emplace_back(&axis, axis.values[at / stride % axis.values.size()]);
    }
    const auto message = wrong(point);
    if (!message) continue;
    // The axis that fails by itself, or that the message names, is to blame; else all are.
    for (const auto& one : point) {
      if (wrong({one}) == message) {
        return fmt::format("{}: {} = {}: {}", one.first->where, one.first->key, one.second,
                           *message);
      }
    }
    const auto* blamed = &point.front();
    std::string all;
    for (const auto& one : point) {
      all += (all.empty() ? "" : ", ") + one.first->key + " = " + one.second;
    }
    for (const auto& one : point) {
      if (message->find(one.first->key) != std::string::npos) blamed = &one;
    }
    return fmt::format("{}: {}: {}", blamed->first->where, all, *message);
  }
  return std::nullopt;
}

std::vector<ScenarioDocument::List> ScenarioDocument::listsOf(const scenario::Node& root,
                                                              const scenario::Scenario& s) const {
  std::vector<List> out;
  for (const auto& [key, item] : kLists) {
    if (key == "workload.tiers" && !s.workload.serves()) continue;
    List list;
    list.key = std::string(key);
    list.section = list.key.substr(0, list.key.find('.'));
    list.item = std::string(item);
    const std::vector<Part> parts = partsOf(list.key, m_path.string());
    const Node* node = nodeAt(root, parts, parts.size());
    list.inFile = node != nullptr && node->kind == Node::Kind::kArray;
    if (list.inFile) {
      list.items = node->children.size();
    } else {
      while (std::any_of(s.values.begin(), s.values.end(), [&](const scenario::ResolvedValue& v) {
        return v.key.starts_with(fmt::format("{}[{}].", list.key, list.items));
      })) {
        ++list.items;
      }
    }
    out.push_back(std::move(list));
  }
  return out;
}

void ScenarioDocument::resolve() {
  m_problem.reset();
  try {
    scenario::ReadOptions options;
    options.presets_root = scenariosFolder().string();
    options.require_trace = false;
    const scenario::Scenario s = scenario::read_scenario_text(m_text, m_path.string(), options);
    const Node root = scenario::parse_toml(m_text, sourceOf(m_path.string()));
    const auto nodeOf = [&](const std::string& key) {
      const std::vector<Part> parts = partsOf(key, m_path.string());
      return nodeAt(root, parts, parts.size());
    };
    // What stands in an item of an array can be set where the item is in this file.
    const auto inItem = [&](const std::string& key) {
      return key.find('[') != std::string::npos && nodeOf(key.substr(0, key.rfind('.'))) != nullptr;
    };
    std::vector<Entry> entries;
    for (const scenario::ResolvedValue& v : s.values) {
      Entry e;
      e.key = v.key;
      e.section = v.key.substr(0, v.key.find('.'));
      e.value = v.value;
      e.origin = v.origin;
      e.kind = v.kind;
      e.choices = v.choices;
      e.legal = legalText(v);
      e.editable = !derived(v.key) || inItem(v.key);
      if (const Node* node = nodeOf(v.key); node != nullptr && e.editable) {
        e.inFile = true;
        if (node->kind != Node::Kind::kTable) {
          e.value = node->kind == Node::Kind::kString ? node->text : node->toml();
        }
      }
      if (std::vector<std::string> files = filesFor(v.key); !files.empty()) {
        e.choices = std::move(files);
        e.legal = "a file; paths start at the scenario's folder";
      }
      entries.push_back(std::move(e));
    }
    // A sweep is no value of one scenario: its axes are shown as the file has them.
    if (const Node* sweep = root.find("sweep"); sweep != nullptr && holdsTables(*sweep)) {
      for (std::size_t i = 0; i < sweep->children.size(); ++i) {
        for (const Node& n : sweep->children[i].children) {
          Entry e;
          e.key = fmt::format("sweep[{}].{}", i, n.key);
          e.section = "sweep";
          e.value = n.kind == Node::Kind::kString ? n.text : n.toml();
          e.origin = n.where();
          e.inFile = true;
          e.legal = n.kind == Node::Kind::kArray ? "a list of values: [1.0, 1.25, 2.0]"
                                                 : "a key of the scenario";
          entries.push_back(std::move(e));
        }
      }
    }
    m_entries = std::move(entries);
    m_sweep = !s.sweep.empty();
    m_hash = scenario::scenario_hash(s);
    if (s.hardware.gpu_count() > 0) m_firstGpu = s.hardware.gpu(0).name;
    m_lists = listsOf(root, s);
    if (!s.sweep.empty()) m_problem = sweepProblem(s.sweep, options);
  } catch (const InputError& e) {
    m_problem = e.what();
    keepItems();
  }
}

void ScenarioDocument::keepItems() {
  // The text does not resolve; its lists are shown as they stand, so that a copied item can be
  // made another one.
  const Node root = scenario::parse_toml(m_text, sourceOf(m_path.string()));
  for (Entry& e : m_entries) {
    const std::vector<Part> parts = partsOf(e.key, m_path.string());
    const Node* node = e.editable ? nodeAt(root, parts, parts.size()) : nullptr;
    if (node == nullptr || node->kind == Node::Kind::kTable) continue;
    e.value = node->kind == Node::Kind::kString ? node->text : node->toml();
  }
  for (List& list : m_lists) {
    const std::vector<Part> parts = partsOf(list.key, m_path.string());
    const Node* node = nodeAt(root, parts, parts.size());
    const bool there = node != nullptr && holdsTables(*node);
    if (!there && !list.inFile) continue;  // those of another file
    const std::string start = list.key + "[";
    const auto tail = [&](const Entry& e) { return e.key.substr(e.key.find(']') + 1); };
    std::vector<Entry> known;
    for (const Entry& e : m_entries) {
      if (e.key.starts_with(start)) known.push_back(e);
    }
    const auto first = std::find_if(m_entries.begin(), m_entries.end(),
                                    [&](const Entry& e) { return e.key.starts_with(start); });
    auto at = static_cast<std::size_t>(first - m_entries.begin());
    if (first == m_entries.end()) {
      // Behind the last key of the section.
      for (std::size_t i = 0; i < m_entries.size(); ++i) {
        if (m_entries[i].section == list.section) at = i + 1;
      }
    }
    std::erase_if(m_entries, [&](const Entry& e) { return e.key.starts_with(start); });
    list.inFile = there;
    list.items = there ? node->children.size() : 0;
    std::vector<Entry> now;
    for (std::size_t i = 0; i < list.items; ++i) {
      for (const Node& n : node->children[i].children) {
        Entry e;
        e.key = fmt::format("{}{}].{}", start, i, n.key);
        const auto like = std::find_if(known.begin(), known.end(),
                                       [&](const Entry& k) { return tail(k) == "." + n.key; });
        if (like != known.end()) {
          e.kind = like->kind;
          e.choices = like->choices;
          e.legal = like->legal;
        }
        e.section = list.section;
        e.value = n.kind == Node::Kind::kString ? n.text : n.toml();
        e.origin = n.where();
        e.inFile = true;
        now.push_back(std::move(e));
      }
    }
    m_entries.insert(m_entries.begin() + static_cast<std::ptrdiff_t>(at), now.begin(), now.end());
  }
}

void ScenarioDocument::set(const std::string& key, const std::string& value) {
  const std::string toml = scenario::parse_setting_value(value, sourceOf(m_path.string())).toml();
  replace(setInText(m_text, m_path.string(), key, toml));
}

void ScenarioDocument::replace(const std::string& text) {
  if (text == m_text) return;
  m_undo.push_back(m_text);
  m_redo.clear();
  m_text = text;
  resolve();
}

std::string ScenarioDocument::ownText(const List& list) const {
  const std::string name = m_path.string();
  std::string text = m_text;
  if (!list.inFile && list.items > 0) {
    // The file of the list is where its first value stands.
    const std::string first = list.key + "[0].";
    const auto entry = std::find_if(m_entries.begin(), m_entries.end(), [&](const Entry& e) {
      return e.key.starts_with(first) && e.origin.find(".toml:") != std::string::npos;
    });
    if (entry == m_entries.end()) {
      throw InputError(name, "the file that holds " + list.key + " is not known",
                       "write the list into the scenario by hand");
    }
    const std::string file = entry->origin.substr(0, entry->origin.find(".toml:") + 5);
    const Node preset = scenario::load_toml(file, list.section, file);
    const Node* items = preset.find(list.key.substr(list.section.size() + 1));
    if (items == nullptr || !holdsTables(*items)) {
      throw InputError(file, "holds no list of tables " + list.key);
    }
    for (const Node& item : items->children) {
      text = editList(text, name, list.key, ListEdit::kAdd, 0, item.toml());
    }
  }
  return text;
}

std::string ScenarioDocument::listWith(const std::string& key, const std::string& item) const {
  const std::string name = m_path.string();
  const auto list =
      std::find_if(m_lists.begin(), m_lists.end(), [&](const List& l) { return l.key == key; });
  if (list == m_lists.end()) throw InputError(name, "has no list " + key);
  const std::string text = editList(ownText(*list), name, key, ListEdit::kAdd, 0, item);
  const Node root = scenario::parse_toml(text, sourceOf(name));
  const std::vector<Part> parts = partsOf(key, name);
  return nodeAt(root, parts, parts.size())->toml();
}

void ScenarioDocument::edit(const std::string& key, ListEdit how, std::size_t index) {
  const std::string name = m_path.string();
  const auto list =
      std::find_if(m_lists.begin(), m_lists.end(), [&](const List& l) { return l.key == key; });
  if (list == m_lists.end()) throw InputError(name, "has no list " + key);
  if (!list->inFile && list->items == 1 && how == ListEdit::kRemove) {
    throw InputError(name,
                     "the only item of " + key + " is another file's, which would apply again",
                     "change the item, or name another file");
  }
  std::string text = ownText(*list);
  if (how != ListEdit::kAdd) {
    if (index >= list->items) throw InputError(name, fmt::format("{}: no item {}", key, index));
    text = editList(text, name, key, how, index);
    if (how == ListEdit::kRemove && list->items == 1 &&
        (key == "faults.events" || key == "monitor.alarms")) {
      text = withoutSection(text, list->section);
    }
  } else if (key.starts_with("hardware.") && list->items > 0) {
    text = editList(text, name, key, ListEdit::kDuplicate, list->items - 1);
  } else {
    text = editList(text, name, key, ListEdit::kAdd, 0, newItem(key, list->items));
  }
  replace(text);
}

std::string ScenarioDocument::newItem(const std::string& key, std::size_t items) const {
  if (key == "faults.events") {
    return fmt::format("{{ kind = \"slow_gpu\", gpu = \"{}\", factor = 2.0, step = 1 }}",
                       m_firstGpu);
  }
  if (key == "monitor.alarms") return "{ signal = \"imbalance\", above = 1.5 }";
  if (key == "workload.tiers") {
    return fmt::format("{{ name = \"tier{}\", share = {} }}", items + 1,
                       items == 0 ? "1.0" : "0.0");
  }
  if (key == "sweep") {
    // A key that is not swept yet.
    for (const auto& [swept, values] : {std::pair("run.seed", "[1, 2, 3]"),
                                        std::pair("policy.capacity.factor", "[1.0, 1.25, 2.0]"),
                                        std::pair("workload.context", "[512, 1024]")}) {
      const std::string quoted = fmt::format("\"{}\"", swept);
      bool taken = false;
      for (const Entry& e : m_entries) {
        taken = taken || (e.key.starts_with("sweep[") && e.key.ends_with("].key") &&
                          (e.value == swept || e.value == quoted));
      }
      if (!taken) return fmt::format("{{ key = {}, values = {} }}", quoted, values);
    }
  }
  throw InputError(m_path.string(), "cannot make up another item of " + key,
                   "duplicate one that is there");
}

bool ScenarioDocument::undo() {
  if (m_undo.empty()) return false;
  m_redo.push_back(m_text);
  m_text = m_undo.back();
  m_undo.pop_back();
  resolve();
  return true;
}

bool ScenarioDocument::redo() {
  if (m_redo.empty()) return false;
  m_undo.push_back(m_text);
  m_text = m_redo.back();
  m_redo.pop_back();
  resolve();
  return true;
}

std::vector<std::string> ScenarioDocument::settings() const {
  const std::string name = m_path.string();
  const Node old = scenario::parse_toml(m_saved, sourceOf(name));
  const Node now = scenario::parse_toml(m_text, sourceOf(name));
  std::map<std::string, std::string> out;
  std::vector<std::string> whole;  // lists that are set as a whole
  for (const auto& [list, item] : kLists) {
    const std::string key(list);
    const std::vector<Part> parts = partsOf(key, name);
    const Node* a = nodeAt(old, parts, parts.size());
    const Node* b = nodeAt(now, parts, parts.size());
    const std::size_t before = a != nullptr ? a->children.size() : 0;
    const std::size_t after = b != nullptr ? b->children.size() : 0;
    // Key by key only where no item has lost or won one: what is gone would come back from the
    // file.
    bool alike = before == after;
    for (std::size_t i = 0; alike && i < after; ++i) {
      const auto keys = [](const Node& item) {
        std::set<std::string> names;
        for (const Node& n : item.children) names.insert(n.key);
        return names;
      };
      alike = keys(a->children[i]) == keys(b->children[i]);
    }
    if (alike) continue;
    whole.push_back(key + "[");
    if (after > 0) {
      out[key] = b->toml();
    } else if (key == "sweep") {
      out[key] = "[]";
    } else {
      throw InputError(name, fmt::format("all of {} were removed", key),
                       "save the scenario, then run it");
    }
  }
  const std::map<std::string, std::string> before = leaves(m_saved, name);
  const std::map<std::string, std::string> after = leaves(m_text, name);
  const auto in_whole = [&](const std::string& key) {
    return std::any_of(whole.begin(), whole.end(),
                       [&](const std::string& l) { return key.starts_with(l); });
  };
  for (const auto& [key, toml] : before) {
    // A setting cannot take a key away.
    if (!after.contains(key) && !in_whole(key)) {
      throw InputError(name, key + " was removed", "save the scenario, then run it");
    }
  }
  for (const auto& [key, toml] : after) {
    const auto same = before.find(key);
    if (same != before.end() && same->second == toml) continue;
    if (!in_whole(key)) out[key] = toml;
  }
  std::vector<std::string> text;
  for (const auto& [key, toml] : out) text.push_back(key + "=" + toml);
  return text;
}

ScenarioDocument::OnDisk ScenarioDocument::onDisk() const {
  std::error_code ignored;
  if (!fs::exists(m_path, ignored)) return OnDisk::kGone;
  try {
    return read_file(m_path) == m_saved ? OnDisk::kSame : OnDisk::kOther;
  } catch (const InputError&) {
    return OnDisk::kOther;  // there, and not to be read
  }
}

void ScenarioDocument::reload() {
  const std::string text = read_file(m_path);
  (void)leaves(text, m_path.string());
  m_saved = text;
  replace(text);
}

void ScenarioDocument::save(bool overwrite) {
  if (!overwrite && onDisk() == OnDisk::kOther) {
    throw InputError(m_path.string(),
                     "not saved: another program has written to it since it was read",
                     "reload it, save under another name, or overwrite it");
  }
  saveAs(m_path);
}

void ScenarioDocument::saveAs(const fs::path& path) {
  if (!m_problem && fs::absolute(path).parent_path() != fs::absolute(m_path).parent_path()) {
    scenario::ReadOptions options;
    options.presets_root = scenariosFolder().string();
    options.require_trace = false;
    try {
      (void)scenario::read_scenario_text(m_text, path.string(), options);
    } catch (const InputError& e) {
      throw InputError(path.string(),
                       fmt::format("not saved: paths in it start at its folder ({})", e.what()),
                       "save it beside " + m_path.string());
    }
  }
  write_file(path, m_text);
  m_path = path;
  m_saved = m_text;
  resolve();
}

}  // namespace switchyard::gui
