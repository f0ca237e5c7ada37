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
#include "sim/scenario/tree.hpp"

namespace switchyard::gui {
namespace {

namespace fs = std::filesystem;
using scenario::Node;
using scenario::ValueKind;

/// Sections in the order of scenarios/README.md.
constexpr std::array<std::string_view, 15> kSections = {
    "model",  "hardware", "parallel", "workload", "serving",   "policy", "memory", "network",
    "faults", "alarms",   "host",     "cost",     "economics", "run",    "sweep"};

constexpr std::size_t kSweepValuesTried = 16;

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

/// Keys that are shown but follow from others.
bool derived(const std::string& key) {
  static const std::set<std::string> kDerived = {"model.family",
                                                 "model.num_layers",
                                                 "model.hidden_size",
                                                 "model.vocab_size",
                                                 "model.attention",
                                                 "model.num_heads",
                                                 "model.num_kv_heads",
                                                 "model.head_dim",
                                                 "model.dense_intermediate",
                                                 "model.shared_intermediate",
                                                 "model.moe_layers",
                                                 "model.gate",
                                                 "model.mla",
                                                 "workload.routing.trace_path",
                                                 "parallel.placement_file",
                                                 "parallel.placement_options.loads_file",
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
      return "text";
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

fs::path scenarioWithText(const std::vector<fs::path>& files, const std::string& canonical) {
  for (const fs::path& file : files) {
    try {
      scenario::ReadOptions options;
      options.presets_root = scenariosFolder().string();
      options.require_trace = false;
      if (scenario::canonical_text(scenario::read_scenario(file.string(), options)) == canonical) {
        return file;
      }
    } catch (const InputError&) {
      // A scenario that cannot be read here is not the one.
    }
  }
  return {};
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
    // Reading one scenario does not look at what a sweep would make of it: try each value alone, as
    // far as a form can wait for.
    std::size_t tried = 0;
    for (const scenario::SweepAxis& axis : s.sweep) {
      for (const std::string& value : axis.values) {
        if (m_problem || ++tried > kSweepValuesTried) break;
        scenario::ReadOptions point = options;
        point.settings = {axis.key + "=" + value, "sweep=[]"};
        try {
          (void)scenario::read_scenario_text(m_text, m_path.string(), point);
        } catch (const InputError& e) {
          m_problem = fmt::format("{}: {} = {}: {}", axis.where, axis.key, value, e.message());
        }
      }
    }
  } catch (const InputError& e) {
    m_problem = e.what();
  }
}

void ScenarioDocument::set(const std::string& key, const std::string& value) {
  const std::string toml = scenario::parse_setting_value(value, sourceOf(m_path.string())).toml();
  const std::string text = setInText(m_text, m_path.string(), key, toml);
  if (text == m_text) return;
  m_undo.push_back(m_text);
  m_redo.clear();
  m_text = text;
  resolve();
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
  const std::map<std::string, std::string> before = leaves(m_saved, m_path.string());
  std::vector<std::string> out;
  for (const auto& [key, toml] : leaves(m_text, m_path.string())) {
    const auto old = before.find(key);
    if (old == before.end() || old->second != toml) out.push_back(key + "=" + toml);
  }
  return out;
}

void ScenarioDocument::save() { saveAs(m_path); }

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
