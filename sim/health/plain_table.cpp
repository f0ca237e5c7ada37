// SPDX-License-Identifier: Apache-2.0
#include "sim/health/plain_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::health {
namespace {

struct Unit {
  std::string_view name, to;
  int exponent;  // Of ten, from `name` to `to`.
};
constexpr std::array<Unit, 10> kUnits{{{"%", "%", 0},
                                       {"bit", "bit", 0},
                                       {"ps", "us", -6},
                                       {"ns", "us", -3},
                                       {"us", "us", 0},
                                       {"ms", "us", 3},
                                       {"s", "us", 6},
                                       {"MB/s", "GB/s", -3},
                                       {"GB/s", "GB/s", 0},
                                       {"TB/s", "GB/s", 3}}};

struct Quantity {
  std::string number;
  std::string_view unit;  // Empty: a number alone.
};

bool missing(const std::string& cell) { return cell == "-" || cell == "n/a" || cell.empty(); }

std::optional<Quantity> quantity(const std::string& cell) {
  const std::size_t space = cell.find(' ');
  const std::string number = cell.substr(0, space);
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || error != std::errc() || end != number.data() + number.size()) return {};
  if (space == std::string::npos) return Quantity{number, {}};
  const std::string_view name = std::string_view(cell).substr(space + 1);
  for (const Unit& u : kUnits) {
    if (u.name != name) continue;
    if (u.exponent == 0) return Quantity{number, u.to};
    // By the text, so that no digit changes: 6.25 ms is 6250 us.
    double scaled = 0;
    const std::string shifted = fmt::format("{}e{}", number, u.exponent);
    std::from_chars(shifted.data(), shifted.data() + shifted.size(), scaled);
    return Quantity{fmt::format("{}", scaled), u.to};
  }
  return {};
}

void make_plain(Table& t) {
  std::vector<std::string> unit_of(t.rows.size());
  bool by_row = false;
  for (std::size_t c = 0; c < t.columns.size(); ++c) {
    std::vector<std::string_view> units;
    bool numbers = true, any_unit = false;
    for (const auto& row : t.rows) {
      if (missing(row[c])) continue;
      const auto q = quantity(row[c]);
      numbers = numbers && q.has_value();
      if (!numbers) break;
      units.push_back(q->unit);
      any_unit = any_unit || !q->unit.empty();
    }
    if (!numbers || units.empty()) continue;
    const bool one = std::all_of(units.begin(), units.end(),
                                 [&](std::string_view u) { return u == units.front(); });
    for (std::size_t r = 0; r < t.rows.size(); ++r) {
      std::string& cell = t.rows[r][c];
      if (missing(cell)) {
        cell.clear();
        continue;
      }
      const Quantity q = *quantity(cell);
      if (!one) unit_of[r] = q.unit;
      cell = q.number;
    }
    if (one && any_unit) t.columns[c] += fmt::format(" [{}]", units.front());
    by_row = by_row || !one;
  }
  if (!by_row) return;
  t.columns.insert(t.columns.begin() + 1, "unit");
  for (std::size_t r = 0; r < t.rows.size(); ++r) {
    t.rows[r].insert(t.rows[r].begin() + 1, unit_of[r]);
  }
}

}  // namespace

std::vector<Table> plain_tables(std::vector<Table> tables) {
  for (Table& t : tables) make_plain(t);
  return tables;
}

}  // namespace switchyard::health
