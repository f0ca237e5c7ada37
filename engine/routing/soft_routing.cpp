// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/soft_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool escaped(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u <= 0x20 || u == 0x7F || c == '%' || c == '|' || c == '=';
}

}  // namespace

bool holds_keyword(std::span<const std::string> keywords, std::string_view prompt) {
  return std::any_of(keywords.begin(), keywords.end(), [&](const std::string& word) {
    return std::search(prompt.begin(), prompt.end(), word.begin(), word.end(),
                       [](char a, char b) { return lower(a) == lower(b); }) != prompt.end();
  });
}

std::string keywords_to_text(std::span<const std::string> keywords) {
  std::string out;
  for (std::size_t i = 0; i < keywords.size(); ++i) {
    out += i == 0 ? "" : "|";
    for (const char c : keywords[i]) {
      if (escaped(c)) {
        out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
      } else {
        out += c;
      }
    }
  }
  return out;
}

std::vector<std::string> keywords_from_text(std::string_view text, const std::string& where) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('|', begin), text.size());
    std::string word;
    for (std::size_t i = begin; i < end; ++i) {
      if (text[i] != '%') {
        word += text[i];
        continue;
      }
      unsigned value = 0;
      const char* digits = text.data() + i + 1;
      if (i + 2 >= end || std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
        throw InputError(where, fmt::format("\"{}\": % is not followed by two hex digits", text),
                         "write %25 for a percent sign");
      }
      word += static_cast<char>(value);
      i += 2;
    }
    if (word.empty()) {
      throw InputError(where, "an empty keyword would match every prompt");
    }
    out.push_back(std::move(word));
    begin = end + 1;
  }
  return out;
}

}  // namespace switchyard
