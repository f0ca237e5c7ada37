// SPDX-License-Identifier: Apache-2.0
#include "engine/model/json_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::model {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.is_structured() ? std::string(value.is_array() ? "a list" : "an object")
                                           : value.dump(-1, ' ', true);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

std::string place(std::string_view text, std::size_t byte, const std::string& where) {
  const std::size_t end = std::min(byte == 0 ? 0 : byte - 1, text.size());
  const auto head = text.substr(0, end);
  const auto line = 1 + std::count(head.begin(), head.end(), '\n');
  const auto newline = head.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? end + 1 : end - newline;
  return fmt::format("{}:{}:{}", where, line, column);
}

std::string escape_pointer(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

/// Parses with bounded depth and no duplicate key.
json parse_strictly(std::string_view text, const std::string& where) {
  std::vector<std::unordered_set<std::string>> keys;
  const auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) {
          throw InputError(where, fmt::format("JSON nested deeper than {} levels", kMaxJsonDepth));
        }
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys.back().insert(key).second) {
          throw InputError(where, fmt::format("duplicate key \"{}\"", key));
        }
        break;
      }
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  return json::parse(text.begin(), text.end(), callback);
}

/// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …" without its
/// number, and without the place that parse_json counts itself.
std::string reason(const json::exception& e) {
  std::string message = e.what();
  if (dynamic_cast<const json::parse_error*>(&e) != nullptr) {
    if (const auto colon = message.find(": "); colon != std::string::npos) {
      return message.substr(colon + 2);
    }
  } else if (const auto bracket = message.find("] "); bracket != std::string::npos) {
    return message.substr(bracket + 2);
  }
  return message;
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  try {
    return parse_strictly(text, where);
  } catch (const json::parse_error& e) {
    throw InputError(place(text, e.byte, where), "not valid JSON: " + reason(e));
  } catch (const json::exception& e) {
    throw InputError(where, "not valid JSON: " + reason(e));
  }
}

json parse_json_line(std::string_view text, const std::string& where) {
  try {
    return parse_strictly(text, where);
  } catch (const json::exception& e) {
    throw InputError(where, "no JSON: " + reason(e));
  }
}

JsonObject::JsonObject(const json& value, std::string where, std::string pointer)
    : value_(&value), where_(std::move(where)), pointer_(std::move(pointer)) {
  if (!value.is_object()) {
    throw InputError(fmt::format("{}: {}", where_, pointer_.empty() ? "/" : pointer_),
                     fmt::format("expected an object, found {}", shown(value)));
  }
}

void JsonObject::fail(const std::string& key, const std::string& message,
                      const std::string& hint) const {
  throw InputError(fmt::format("{}: {}/{}", where_, pointer_, escape_pointer(key)), message, hint);
}

bool JsonObject::has(const std::string& key) const {
  const auto it = value_->find(key);
  return it != value_->end() && !it->is_null();
}

bool JsonObject::contains(const std::string& key) const { return value_->contains(key); }

const json& JsonObject::raw(const std::string& key) const {
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) {
    fail(key, "missing");
  }
  return *it;
}

JsonObject JsonObject::object(const std::string& key) const {
  return {raw(key), where_, pointer_ + "/" + escape_pointer(key)};
}

std::uint64_t JsonObject::count(const std::string& key, std::uint64_t lowest,
                                std::uint64_t highest) const {
  const json& v = raw(key);
  if (!v.is_number_integer()) {
    fail(key, fmt::format("expected a whole number, found {}", shown(v)));
  }
  if (!v.is_number_unsigned() || v.get<std::uint64_t>() < lowest ||
      v.get<std::uint64_t>() > highest) {
    fail(key, fmt::format("{} is outside [{}, {}]", shown(v), lowest, highest));
  }
  return v.get<std::uint64_t>();
}

std::uint64_t JsonObject::count_or(const std::string& key, std::uint64_t fallback,
                                   std::uint64_t lowest, std::uint64_t highest) const {
  if (!has(key)) {
    defaults_.push_back(key);
    return fallback;
  }
  return count(key, lowest, highest);
}

double JsonObject::number(const std::string& key, double lowest, double highest) const {
  const json& v = raw(key);
  if (!v.is_number()) {
    fail(key, fmt::format("expected a number, found {}", shown(v)));
  }
  const auto d = v.get<double>();
  if (!std::isfinite(d) || d < lowest || d > highest) {
    fail(key, fmt::format("{} is outside [{}, {}]", shown(v), lowest, highest));
  }
  return d;
}

double JsonObject::number_or(const std::string& key, double fallback, double lowest,
                             double highest) const {
  if (!has(key)) {
    return fallback;
  }
  return number(key, lowest, highest);
}

bool JsonObject::flag_or(const std::string& key, bool fallback) const {
  if (!has(key)) {
    return fallback;
  }
  const json& v = raw(key);
  if (!v.is_boolean()) {
    fail(key, fmt::format("expected true or false, found {}", shown(v)));
  }
  return v.get<bool>();
}

std::string JsonObject::text(const std::string& key) const {
  const json& v = raw(key);
  if (!v.is_string()) {
    fail(key, fmt::format("expected a text, found {}", shown(v)));
  }
  return v.get<std::string>();
}

std::string JsonObject::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<std::string> JsonObject::texts(const std::string& key) const {
  const json& v = raw(key);
  if (!v.is_array()) {
    fail(key, fmt::format("expected a list, found {}", shown(v)));
  }
  std::vector<std::string> out;
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (!v[i].is_string()) {
      throw InputError(fmt::format("{}: {}/{}/{}", where_, pointer_, escape_pointer(key), i),
                       fmt::format("expected a text, found {}", shown(v[i])));
    }
    out.push_back(v[i].get<std::string>());
  }
  return out;
}

std::vector<std::uint64_t> JsonObject::counts(const std::string& key, std::uint64_t lowest,
                                              std::uint64_t highest) const {
  const json& v = raw(key);
  if (!v.is_array()) {
    fail(key, fmt::format("expected a list, found {}", shown(v)));
  }
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto at = fmt::format("{}: {}/{}/{}", where_, pointer_, escape_pointer(key), i);
    if (!v[i].is_number_integer()) {
      throw InputError(at, fmt::format("expected a whole number, found {}", shown(v[i])));
    }
    if (!v[i].is_number_unsigned() || v[i].get<std::uint64_t>() < lowest ||
        v[i].get<std::uint64_t>() > highest) {
      throw InputError(at, fmt::format("{} is outside [{}, {}]", shown(v[i]), lowest, highest));
    }
    out.push_back(v[i].get<std::uint64_t>());
  }
  return out;
}

void JsonObject::only(const std::vector<std::string>& known) const {
  for (const auto& item : value_->items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      fail(item.key(), "unknown key", suggest_name(item.key(), known));
    }
  }
}

}  // namespace switchyard::model
