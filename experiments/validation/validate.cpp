// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "engine/base/error.hpp"
#include "sim/cost/calibrated.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::validation {
namespace {

constexpr std::string_view kNoise = "NCCL, below 1 MiB";
constexpr double kMostMedian = 0.10, kMostP95 = 0.25;  // The goal.

std::string percent(double v) { return std::isnan(v) ? "n/a" : fmt::format("{:.1f}", 100 * v); }

std::vector<std::string> groups_of(const std::vector<JudgedRow>& judged) {
  std::vector<std::string> out;
  for (const JudgedRow& j : judged) {
    if (std::find(out.begin(), out.end(), j.row->group) == out.end()) out.push_back(j.row->group);
  }
  return out;
}

}  // namespace

std::vector<JudgedRow> judge(const scenario::Calibration& calibration,
                             const std::vector<MeasuredRow>& rows) {
  std::map<const scenario::OpTable*, std::unique_ptr<sim::OpTimer>> timers;
  std::vector<JudgedRow> out;
  for (const MeasuredRow& r : rows) {
    JudgedRow j;
    j.row = &r;
    // The library must be the row's own: another one's kernels are another calibration.
    const sim::TableMatch match =
        sim::find_table(calibration, r.kind, r.library, r.variant, r.dtype, r.shape);
    if (match.table != nullptr && match.table->library == r.library) {
      auto& timer = timers[match.table];
      if (!timer) timer = std::make_unique<sim::OpTimer>(calibration, *match.table);
      if (match.exact) {
        const sim::OpTime t = timer->time(r.point.at);
        j.simulated_us = t.us;
        j.extrapolated = t.extrapolated;
      } else {
        // Another shape: the roofline with the shares of the nearest one.
        scenario::OpTable nearest = *match.table;
        nearest.shape = r.shape;
        const sim::OpUse use = sim::use_of(calibration, nearest, r.point.at);
        j.simulated_us = std::max(
            use.floor_us, nearest.overhead_us + std::max(use.rate_us / nearest.rate_share,
                                                         use.compute_us / nearest.compute_share));
        j.extrapolated = true;
      }
      scenario::OpTable own = *match.table;
      own.shape = r.shape;
      own.points.clear();
      j.below_floor = r.point.us < sim::use_of(calibration, own, r.point.at).floor_us;
    }
    out.push_back(j);
  }
  return out;
}

ErrorSummary summarise(std::vector<double> errors) {
  ErrorSummary s;
  s.rows = errors.size();
  s.median = run::nearest_rank(errors, 50);
  s.p95 = run::nearest_rank(errors, 95);
  s.worst = run::nearest_rank(errors, 100);
  return s;
}

Table summary_table(const scenario::Calibration& calibration, const MeasuredRows& measured,
                    const std::vector<JudgedRow>& judged) {
  Table table;
  table.name = "validate";
  table.title = fmt::format("Simulated against measured operation times, {}", calibration.device);
  table.columns = {
      "operations",        "rows judged",    "median |error| [%]", "p95 |error| [%]",
      "worst |error| [%]", "mean error [%]", "extrapolated",       "not in the calibration",
      "worst row"};
  std::size_t even = 0, below = 0, unknown = 0;
  std::vector<double> all;
  const auto add = [&](const std::string& name, auto&& chosen) {
    std::vector<double> errors;
    std::size_t extrapolated = 0, missing = 0;
    double sum = 0;
    const JudgedRow* worst = nullptr;
    for (const JudgedRow& j : judged) {
      if (j.row->fitted() || !chosen(*j.row)) continue;
      if (!j.known()) {
        ++missing;
        continue;
      }
      const double e = j.error();
      errors.push_back(std::abs(e));
      sum += e;
      extrapolated += j.extrapolated ? 1 : 0;
      if (worst == nullptr || std::abs(e) > std::abs(worst->error())) worst = &j;
    }
    const ErrorSummary s = summarise(errors);
    table.rows.push_back({name, fmt::format("{}", s.rows), percent(s.median), percent(s.p95),
                          percent(s.worst),
                          percent(s.rows == 0 ? std::nan("") : sum / static_cast<double>(s.rows)),
                          fmt::format("{}", extrapolated), fmt::format("{}", missing),
                          worst == nullptr ? "n/a" : worst->row->label});
    return s;
  };
  for (const std::string& g : groups_of(judged)) {
    add(g, [&](const MeasuredRow& r) { return r.group == g; });
  }
  const ErrorSummary s =
      add("all but NCCL below 1 MiB", [](const MeasuredRow& r) { return r.group != kNoise; });
  std::size_t fitted = 0;
  for (const scenario::OpTable& t : calibration.tables) fitted += t.points.size();
  for (const JudgedRow& j : judged) {
    even += j.row->fitted() ? 1 : 0;
    below += j.below_floor ? 1 : 0;
    unknown += j.known() ? 0 : 1;
  }
  table.notes.push_back(
      fmt::format("fitted: {} times in {} tables of the calibration; judged: {} others, whose key "
                  "has an odd FNV-1a; "
                  "{} rows here have an even one and are not judged",
                  fitted, calibration.tables.size(), judged.size() - even, even));
  if (s.rows > 0) {
    table.notes.push_back(fmt::format("goal: median <= 10 %: {}; 95th percentile <= 25 %: {}",
                                      s.median <= kMostMedian ? "met" : "MISSED",
                                      s.p95 <= kMostP95 ? "met" : "MISSED"));
  }
  table.notes.push_back(
      "error = simulated / measured - 1; extrapolated: by the roofline, outside the measured "
      "shapes or sizes");
  if (below > 0) {
    table.notes.push_back(
        fmt::format("{} measured times are below the physical floor of the stated peaks: no model "
                    "can follow them",
                    below));
  }
  if (unknown > 0)
    table.notes.push_back(fmt::format(
        "{} rows are of a library or format that the calibration does not have", unknown));
  for (const std::string& name : measured.ignored) {
    table.notes.push_back(fmt::format("ignored: {} (another device, or no known kind)", name));
  }
  table.notes.push_back(fmt::format("measured by others: {}", calibration.source));
  return table;
}

bool goal_met(const std::vector<JudgedRow>& judged) {
  std::vector<double> errors;
  for (const JudgedRow& j : judged) {
    if (j.row->fitted() || !j.known() || j.row->group == kNoise) continue;
    errors.push_back(std::abs(j.error()));
  }
  const ErrorSummary s = summarise(std::move(errors));
  return s.rows == 0 || (s.median <= kMostMedian && s.p95 <= kMostP95);
}

Table rows_table(const std::vector<JudgedRow>& judged) {
  Table table;
  table.name = "validate-rows";
  table.title = "Row by row";
  table.columns = {"operation",      "library",   "row", "measured [us]",
                   "simulated [us]", "error [%]", "set", "extrapolated"};
  for (const JudgedRow& j : judged) {
    table.rows.push_back(
        {std::string(scenario::kOpKindNames[static_cast<std::size_t>(j.row->kind)]), j.row->library,
         j.row->label, fmt::format("{:.6g}", j.row->point.us),
         j.known() ? fmt::format("{:.6g}", j.simulated_us) : "n/a",
         j.known() ? percent(j.error()) : "n/a", j.row->fitted() ? "even" : "judged",
         j.extrapolated ? "yes" : "no"});
  }
  return table;
}

scenario::Calibration fit_rows(scenario::Calibration c, const std::vector<MeasuredRow>& rows) {
  c.tables.clear();
  std::size_t used = 0;
  for (const MeasuredRow& r : rows) {
    if (!r.fitted()) continue;
    ++used;
    auto it = std::find_if(c.tables.begin(), c.tables.end(), [&](const scenario::OpTable& t) {
      return t.kind == r.kind && t.library == r.library && t.variant == r.variant &&
             t.dtype == r.dtype && t.shape == r.shape;
    });
    if (it == c.tables.end()) {
      scenario::OpTable t;
      t.kind = r.kind;
      t.library = r.library;
      t.variant = r.variant;
      t.dtype = r.dtype;
      t.shape = r.shape;
      c.tables.push_back(std::move(t));
      it = c.tables.end() - 1;
    }
    it->points.push_back(r.point);
  }
  if (used == 0) {
    throw InputError("fit", "no row has a key with an even hash", "give more rows");
  }
  std::stable_sort(c.tables.begin(), c.tables.end(),
                   [](const scenario::OpTable& a, const scenario::OpTable& b) {
                     return std::tie(a.kind, a.library, a.variant, a.dtype, a.shape) <
                            std::tie(b.kind, b.library, b.variant, b.dtype, b.shape);
                   });
  for (scenario::OpTable& t : c.tables) {
    std::stable_sort(t.points.begin(), t.points.end(),
                     [](const scenario::OpPoint& a, const scenario::OpPoint& b) {
                       return std::tie(a.at, a.us) < std::tie(b.at, b.us);
                     });
  }
  sim::fit_tables(c);
  return c;
}

}  // namespace switchyard::validation
