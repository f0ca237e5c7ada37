// SPDX-License-Identifier: Apache-2.0
#include "engine/base/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace switchyard {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0U : 1U)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1])) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > 200) {
    return {};
  }
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string found;
  for (const std::string& c : candidates) {
    const std::size_t d = edit_distance(name, c);
    if (d < best && d < c.size()) {
      best = d;
      found = c;
    }
  }
  return found;
}

std::string suggest_name(std::string_view name, std::span<const std::string> candidates) {
  const std::string near = nearest_name(name, candidates);
  if (!near.empty()) {
    return fmt::format("did you mean \"{}\"?", near);
  }
  return candidates.empty() ? std::string() : fmt::format("known: {}", fmt::join(candidates, ", "));
}

}  // namespace switchyard
