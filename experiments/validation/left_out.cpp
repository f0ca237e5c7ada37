// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/left_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/cost/calibrated.hpp"

namespace switchyard::validation {
namespace {

constexpr std::size_t kFew = 4;  // Points below which fit_table() looks at other shapes.

std::string percent(double v) { return fmt::format("{:.1f}", 100 * v); }

bool is_of(const MeasuredRow& r, const scenario::OpTable& t) {
  return r.kind == t.kind && r.variant == t.variant && r.dtype == t.dtype &&
         r.library == t.library && r.shape == t.shape;
}

/// The calibration without table `out`; the table that stands in for it does not know its points.
scenario::Calibration without(const scenario::Calibration& calibration, std::size_t out) {
  scenario::Calibration rest = calibration;
  const scenario::OpTable gone = rest.tables[out];
  rest.tables.erase(rest.tables.begin() + static_cast<std::ptrdiff_t>(out));
  const sim::TableMatch next =
      sim::find_table(rest, gone.kind, gone.library, gone.variant, gone.dtype, gone.shape);
  if (next.table != nullptr && next.table->points.size() < kFew) {
    sim::fit_table(rest, static_cast<std::size_t>(next.table - rest.tables.data()));
  }
  return rest;
}

}  // namespace

LeftOut judge_left_out(const scenario::Calibration& calibration,
                       const std::vector<MeasuredRow>& rows) {
  LeftOut out;
  for (std::size_t t = 0; t < calibration.tables.size(); ++t) {
    const scenario::OpTable& table = calibration.tables[t];
    if (table.kind == scenario::OpKind::kHost) continue;  // Has no shape.
    std::vector<const MeasuredRow*> own;
    for (const MeasuredRow& r : rows) {
      if (!r.fitted() && is_of(r, table)) own.push_back(&r);
    }
    if (own.empty()) continue;
    const scenario::Calibration rest = without(calibration, t);
    std::vector<MeasuredRow> copies;
    for (const MeasuredRow* r : own) copies.push_back(*r);
    std::vector<JudgedRow> part = judge(rest, copies);
    for (std::size_t i = 0; i < own.size(); ++i) {
      part[i].row = own[i];
      out.rows.push_back(part[i]);
      out.shape.push_back(static_cast<std::uint32_t>(t));
    }
  }
  return out;
}

Table left_out_table(const scenario::Calibration& calibration, const LeftOut& judged) {
  Table table;
  table.name = "validate-left-out-shapes";
  table.title = fmt::format("Shapes left out of the calibration, {}", calibration.device);
  table.columns = {"operations",      "shapes",
                   "rows judged",     "median |error| [%]",
                   "p95 |error| [%]", "worst |error| [%]",
                   "mean error [%]",  "median of the worst shape [%]"};
  std::vector<std::string> groups;
  std::size_t alone = 0;
  for (const JudgedRow& j : judged.rows) {
    alone += j.known() ? 0 : 1;
    if (j.known() && std::find(groups.begin(), groups.end(), j.row->group) == groups.end()) {
      groups.push_back(j.row->group);
    }
  }
  for (const std::string& g : groups) {
    std::vector<double> errors;
    std::map<std::uint32_t, std::vector<double>> by_shape;
    double sum = 0;
    for (std::size_t i = 0; i < judged.rows.size(); ++i) {
      const JudgedRow& j = judged.rows[i];
      if (!j.known() || j.row->group != g) continue;
      errors.push_back(std::abs(j.error()));
      by_shape[judged.shape[i]].push_back(std::abs(j.error()));
      sum += j.error();
    }
    double worst_shape = 0;
    for (const auto& [shape, own] : by_shape) {
      worst_shape = std::max(worst_shape, summarise(own).median);
    }
    const ErrorSummary s = summarise(errors);
    table.rows.push_back({g, fmt::format("{}", by_shape.size()), fmt::format("{}", s.rows),
                          percent(s.median), percent(s.p95), percent(s.worst),
                          percent(sum / static_cast<double>(s.rows)), percent(worst_shape)});
  }
  table.notes.push_back(
      "each shape in turn is taken out with all its sizes and judged by the nearest other shape of "
      "its library and format: the roofline with that one's overhead and shares; no part of the "
      "goal");
  if (alone > 0) {
    table.notes.push_back(fmt::format(
        "{} rows are of the only shape of their library and format: not judged here", alone));
  }
  return table;
}

}  // namespace switchyard::validation
