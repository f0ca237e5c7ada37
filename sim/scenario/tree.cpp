// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/base/error.hpp"

namespace {
/// Some malformed documents reach asserts inside toml++ 3.3 ("[ = 1" is one). They must
/// become an InputError in every build type, so its assert throws and NDEBUG is off for the header.
struct TomlAssert {};
}  // namespace
#undef NDEBUG
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wterminate"
#define TOML_ASSERT(condition) \
  do {                         \
    if (!(condition)) {        \
      throw TomlAssert{};      \
    }                          \
  } while (false)
#include <toml++/toml.h>
#pragma GCC diagnostic pop

namespace switchyard::scenario {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxFileBytes = 16U << 20U;

std::string place(const std::shared_ptr<const Source>& source, std::uint32_t line,
                  std::uint32_t column) {
  if (!source) {
    return {};
  }
  if (source->is_setting || line == 0) {
    return source->name;
  }
  return fmt::format("{}:{}:{}", source->name, line, column);
}

Node convert(const toml::node& in, const std::shared_ptr<const Source>& source) {
  Node out;
  out.source = source;
  out.line = in.source().begin.line;
  out.column = in.source().begin.column;
  if (const auto* table = in.as_table()) {
    out.kind = Node::Kind::kTable;
    for (const auto& [key, value] : *table) {
      Node child = convert(value, source);
      child.key = std::string(key.str());
      child.key_line = key.source().begin.line;
      child.key_column = key.source().begin.column;
      if (child.line == 0) {  // a table made by a dotted key
        child.line = child.key_line;
        child.column = child.key_column;
      }
      out.children.push_back(std::move(child));
    }
    std::stable_sort(out.children.begin(), out.children.end(), [](const Node& a, const Node& b) {
      return std::pair(a.key_line, a.key_column) < std::pair(b.key_line, b.key_column);
    });
  } else if (const auto* array = in.as_array()) {
    out.kind = Node::Kind::kArray;
    for (const auto& value : *array) {
      out.children.push_back(convert(value, source));
    }
  } else if (const auto* text = in.as_string()) {
    out.kind = Node::Kind::kString;
    out.text = text->get();
  } else if (const auto* integer = in.as_integer()) {
    out.kind = Node::Kind::kInteger;
    out.integer = integer->get();
    out.number = static_cast<double>(out.integer);
  } else if (const auto* number = in.as_floating_point()) {
    out.kind = Node::Kind::kFloat;
    out.number = number->get();
  } else if (const auto* boolean = in.as_boolean()) {
    out.kind = Node::Kind::kBoolean;
    out.boolean = boolean->get();
  } else {
    out.kind = Node::Kind::kOther;
    std::ostringstream text;
    text << toml::node_view<const toml::node>(in);
    out.text = text.str();
  }
  return out;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20 || u == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(u));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Place of damage that toml++ does not report: the first line whose addition to the ones before it
/// meets the assert.
std::pair<std::uint32_t, std::uint32_t> damage(std::string_view text) {
  std::uint32_t line = 1;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', end + 1)) {
    try {
      static_cast<void>(toml::parse(text.substr(0, end + 1)));
    } catch (const TomlAssert&) {
      return {line, 1};
    } catch (const toml::parse_error&) {
      // An unfinished table or text; the damage comes later.
    }
    ++line;
  }
  return {line, 1};
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

}  // namespace

std::string Node::where() const { return place(source, line, column); }
std::string Node::key_where() const {
  return key_line == 0 ? where() : place(source, key_line, key_column);
}

const Node* Node::find(std::string_view name) const {
  if (kind != Kind::kTable) {
    return nullptr;
  }
  const auto it = std::find_if(children.begin(), children.end(),
                               [&](const Node& child) { return child.key == name; });
  return it == children.end() ? nullptr : &*it;
}
Node* Node::find(std::string_view name) {
  return const_cast<Node*>(static_cast<const Node*>(this)->find(name));
}

std::string Node::toml() const {
  switch (kind) {
    case Kind::kString:
      return toml_string(text);
    case Kind::kInteger:
      return fmt::format("{}", integer);
    case Kind::kFloat: {
      std::string shown = fmt::format("{}", number);
      if (shown.find_first_of(".en") == std::string::npos) {
        shown += ".0";  // stays a float when read back
      }
      return shown;
    }
    case Kind::kBoolean:
      return boolean ? "true" : "false";
    case Kind::kOther:
      return text;
    case Kind::kArray: {
      std::string out = "[";
      for (std::size_t i = 0; i < children.size(); ++i) {
        out += (i > 0 ? ", " : "") + children[i].toml();
      }
      return out + "]";
    }
    case Kind::kTable: {
      std::string out = "{ ";
      for (std::size_t i = 0; i < children.size(); ++i) {
        const std::string& name = children[i].key;
        out += fmt::format("{}{} = {}", i > 0 ? ", " : "",
                           is_bare_key(name) ? name : toml_string(name), children[i].toml());
      }
      return out + (children.empty() ? "}" : " }");
    }
  }
  return {};
}

std::string brief(const Node& node) {
  std::string text = node.toml();
  if (text.size() > 80) {
    std::size_t cut = 77;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) {
      --cut;  // not inside a UTF-8 sequence
    }
    text.resize(cut);
    text += "...";
  }
  return text;
}

std::string_view Node::kind_name() const {
  switch (kind) {
    case Kind::kTable:
      return "a table";
    case Kind::kArray:
      return "a list";
    case Kind::kString:
      return "text";
    case Kind::kInteger:
      return "a whole number";
    case Kind::kFloat:
      return "a number";
    case Kind::kBoolean:
      return "true or false";
    case Kind::kOther:
      break;
  }
  return "a date or time";
}

/// toml++ takes a dotted key part by part, each deeper in the stack.
void refuse_long_keys(std::string_view text, const std::shared_ptr<const Source>& source) {
  constexpr std::uint32_t kMostParts = 256;
  std::uint32_t line = 1, column = 0, parts = 1;
  for (const char c : text) {
    ++column;
    const auto u = static_cast<unsigned char>(c);
    if (c == '.') {
      if (++parts > kMostParts) {
        throw InputError(place(source, line, column),
                         fmt::format("a key of more than {} parts", kMostParts));
      }
    } else if (c == '\n') {
      ++line;
      column = 0;
      parts = 1;
    } else if (std::isalnum(u) == 0 && u < 0x80 && std::strchr("_- \t\"'", c) == nullptr) {
      parts = 1;
    }
  }
}

Node parse_toml(std::string_view text, const std::shared_ptr<const Source>& source) {
  refuse_long_keys(text, source);
  try {
    const toml::table table = toml::parse(text, std::string_view(source->name));
    return convert(table, source);
  } catch (const toml::parse_error& e) {
    throw InputError(place(source, e.source().begin.line, e.source().begin.column),
                     fmt::format("not valid TOML: {}", e.description()));
  } catch (const TomlAssert&) {
    const auto [line, column] = damage(text);
    throw InputError(place(source, line, column), "not valid TOML here or just before");
  }
}

Node parse_setting_value(std::string_view text, const std::shared_ptr<const Source>& source) {
  Node word;
  word.kind = Node::Kind::kString;
  word.source = source;
  word.text = std::string(text);
  if (text.find_first_of("\r\n") != std::string_view::npos) {
    throw InputError(source->name, "a value is one line");
  }
  try {
    const toml::table table = toml::parse(fmt::format("v = {}", text));
    if (table.size() == 1 && table.get("v") != nullptr) {
      return convert(*table.get("v"), source);
    }
  } catch (const TomlAssert&) {
  } catch (const toml::parse_error&) {
    // Not TOML: the word itself, so that --set network.model=flow needs no quotes.
  }
  const std::string_view digits =
      text.substr(text.starts_with('+') || text.starts_with('-') ? 1 : 0);
  if (digits.size() > 18 && digits.find_first_not_of("0123456789") == std::string_view::npos) {
    throw InputError(
        source->name,
        fmt::format("{} is out of range: whole numbers lie within -2^63 and 2^63 - 1", text));
  }
  return word;
}

Node load_toml(const fs::path& path, const std::string& mount, const std::string& where) {
  const std::string name = path.generic_string();
  if (name.empty()) throw InputError(where.empty() ? "SCENARIO" : where, "names no file");
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) {
    throw InputError(where,
                     where == name ? "No such file" : fmt::format("\"{}\": No such file", name));
  }
  if (fs::is_directory(status)) {
    throw InputError(where, fmt::format("\"{}\" is a folder; expected a TOML file", name));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw InputError(where, fmt::format("cannot read \"{}\"", name));
  }
  std::string text;
  char buffer[1U << 16U];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMaxFileBytes) {
      throw InputError(where, fmt::format("\"{}\" is larger than 16 MiB; no scenario is", name));
    }
  }
  auto source = std::make_shared<Source>();
  source->name = name;
  source->folder = path.parent_path();
  source->mount = mount;
  return parse_toml(text, source);
}

void merge(Node& base, const Node& over) {
  if (base.kind != Node::Kind::kTable || over.kind != Node::Kind::kTable) {
    Node replacement = over;
    replacement.key = base.key;
    base = std::move(replacement);
    return;
  }
  for (const Node& child : over.children) {
    if (Node* mine = base.find(child.key)) {
      merge(*mine, child);
      mine->key_line = child.key_line;
      mine->key_column = child.key_column;
    } else {
      base.children.push_back(child);
    }
  }
}

void set_path(Node& root, std::string_view path, Node value) {
  const auto source = value.source;
  const auto fail = [&](const std::string& message, const std::string& hint = {}) {
    throw InputError(value.where(), fmt::format("\"{}\": {}", path, message), hint);
  };
  // "a.b[2].c" → a, b, [2], c
  std::vector<std::string> parts;
  std::vector<bool> is_index;
  std::size_t at = 0;
  while (at < path.size()) {
    if (path[at] == '[') {
      const std::size_t close = path.find(']', at);
      if (close == std::string_view::npos) {
        fail("\"[\" without \"]\"");
      }
      parts.emplace_back(path.substr(at + 1, close - at - 1));
      is_index.push_back(true);
      at = close + 1;
      if (at < path.size() && path[at] != '[' && path[at] != '.') {
        fail("expected \".\" after \"]\"");
      }
      at += at < path.size() && path[at] == '.' ? 1U : 0U;
    } else {
      const std::size_t end = std::min(path.find_first_of(".[", at), path.size());
      parts.emplace_back(path.substr(at, end - at));
      is_index.push_back(false);
      if (parts.back().empty()) {
        fail("empty key");
      }
      at = end < path.size() && path[end] == '.' ? end + 1 : end;
      if (at == path.size() && end < path.size()) {
        fail("empty key");
      }
    }
  }
  if (parts.empty()) {
    fail("empty key", "write --set section.key=value");
  }
  Node* here = &root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_index[i]) {
      std::size_t index = 0;
      const auto [end, ec] =
          std::from_chars(parts[i].data(), parts[i].data() + parts[i].size(), index);
      if (ec != std::errc{} || end != parts[i].data() + parts[i].size()) {
        fail(fmt::format("[{}] is no list position", parts[i]));
      }
      if (here->kind != Node::Kind::kArray || index >= here->children.size()) {
        fail(fmt::format("there is no entry [{}]", index));
      }
      here = &here->children[index];
      continue;
    }
    if (here->kind != Node::Kind::kTable) {
      fail(fmt::format("\"{}\" is inside {}, not a table", parts[i], here->kind_name()));
    }
    Node* next = here->find(parts[i]);
    if (next == nullptr) {
      Node table;
      table.source = source;
      table.key = parts[i];
      here->children.push_back(std::move(table));
      next = &here->children.back();
    }
    here = next;
  }
  value.key = here->key;
  value.key_line = value.line;
  value.key_column = value.column;
  *here = std::move(value);
}

}  // namespace switchyard::scenario
