// SPDX-License-Identifier: Apache-2.0
// Private to engine/routing: one-line "key=value key=value" texts and the parsing of their values.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::text_fields {

template <class T>
using Name = std::pair<std::string_view, T>;

template <class T, std::size_t N>
std::string_view name_of(const std::array<Name<T>, N>& names, T value) {
  for (const auto& [name, v] : names) {
    if (v == value) {
      return name;
    }
  }
  return "?";
}

template <class T, std::size_t N>
T parse_name(const std::array<Name<T>, N>& names, std::string_view text, const std::string& where,
             std::string_view key) {
  std::vector<std::string> known;
  for (const auto& [name, v] : names) {
    if (name == text) {
      return v;
    }
    known.emplace_back(name);
  }
  throw InputError(where, fmt::format("{} = \"{}\": unknown value", key, text),
                   suggest_name(text, known));
}

inline double parse_real(std::string_view text, const std::string& where, std::string_view key) {
  double v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc{} || end != text.data() + text.size() || !std::isfinite(v)) {
    throw InputError(where, fmt::format("{} = \"{}\" is not a finite number", key, text));
  }
  return v;
}

inline std::uint32_t parse_count(std::string_view text, const std::string& where,
                                 std::string_view key) {
  std::uint32_t v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc{} || end != text.data() + text.size()) {
    throw InputError(where,
                     fmt::format("{} = \"{}\" is not a whole number in 0…4294967295", key, text));
  }
  return v;
}

inline bool parse_bool(std::string_view text, const std::string& where, std::string_view key) {
  if (text == "true" || text == "false") {
    return text == "true";
  }
  throw InputError(where, fmt::format("{} = \"{}\": unknown value", key, text),
                   "known: true, false");
}

/// A word that may hold anything, in a form without spaces, '=', '|', ':' and control characters
/// (they become %XX); and back. `key` and `where` name the place of a bad escape.
inline std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u <= 0x20 || u == 0x7F || c == '%' || c == '|' || c == '=' || c == ':') {
      out += fmt::format("%{:02X}", u);
    } else {
      out += c;
    }
  }
  return out;
}
inline std::string unescape(std::string_view text, const std::string& where, std::string_view key) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
      throw InputError(where,
                       fmt::format("{} = \"{}\": % is not followed by two hex digits", key, text),
                       "write %25 for a percent sign");
    }
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

/// Pieces between '|'; none for an empty text.
inline std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const std::size_t end = std::min(text.find('|', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// Splits "a=1 b=2"; every key at most once.
inline std::vector<std::pair<std::string_view, std::string_view>> split(std::string_view text,
                                                                        const std::string& where) {
  std::vector<std::pair<std::string_view, std::string_view>> fields;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view item = text.substr(at, end - at);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw InputError(where, fmt::format("\"{}\" is not of the form key=value", item));
    }
    for (const auto& [key, value] : fields) {
      if (key == item.substr(0, equals)) {
        throw InputError(where, fmt::format("{}: given twice", key));
      }
    }
    fields.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    at = end;
  }
  return fields;
}

}  // namespace switchyard::text_fields
