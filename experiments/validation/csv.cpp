// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace switchyard::validation {

Csv read_csv(const std::filesystem::path& path, std::string_view header) {
  const std::string content = read_file(path);
  std::string_view text = content;
  Csv out;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const std::string where = fmt::format("{}:{}", path.string(), number);
    if (number == 1) {
      if (line != header) throw InputError(where, fmt::format("expected the header {}", header));
      continue;
    }
    if (line.empty()) continue;
    std::vector<std::string> fields;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t comma = std::min(line.find(',', at), line.size());
      fields.emplace_back(line.substr(at, comma - at));
      at = comma + 1;
    }
    const auto wanted = static_cast<std::size_t>(std::count(header.begin(), header.end(), ',')) + 1;
    if (fields.size() != wanted) {
      throw InputError(where, fmt::format("{} fields, expected {}", fields.size(), wanted));
    }
    out.rows.push_back(std::move(fields));
    out.where.push_back(where);
  }
  if (out.rows.empty()) throw InputError(path.string(), "there is no row");
  return out;
}

double number(const Csv& csv, std::size_t row, std::size_t column, double low) {
  const std::string& t = csv.rows[row][column];
  double v = 0;
  const auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
  if (ec != std::errc{} || end != t.data() + t.size() || !(v >= low) || v > 1e18) {
    throw InputError(csv.where[row], fmt::format("\"{}\": expected a number >= {}", t, low));
  }
  return v;
}

}  // namespace switchyard::validation
