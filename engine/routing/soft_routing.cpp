// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/soft_routing.hpp"

#include <algorithm>

namespace switchyard {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool holds_keyword(std::span<const std::string> keywords, std::string_view prompt) {
  return std::any_of(keywords.begin(), keywords.end(), [&](const std::string& word) {
    return std::search(prompt.begin(), prompt.end(), word.begin(), word.end(),
                       [](char a, char b) { return lower(a) == lower(b); }) != prompt.end();
  });
}

}  // namespace switchyard
