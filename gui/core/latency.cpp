// SPDX-License-Identifier: Apache-2.0
#include "gui/core/latency.hpp"

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "gui/core/views.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::gui {

LatencySeries::LatencySeries(const RunStore& run) {
  if (run.steps() == 0) return;
  const std::vector<std::int64_t> starts = run.starts();
  const auto stepOf = [&](std::int64_t ps) -> std::uint64_t {
    if (!starts.empty()) {
      const auto after = std::lower_bound(starts.begin(), starts.end(), ps);
      return after == starts.begin() ? 0 : static_cast<std::uint64_t>(after - starts.begin()) - 1;
    }
    // Only bins have starts.
    std::uint64_t low = 0;
    std::uint64_t high = run.steps();
    while (high - low > 1) {
      const std::uint64_t middle = low + (high - low) / 2;
      (run.startPs(middle) < ps ? low : high) = middle;
    }
    return low;
  };
  const auto keep = [this](std::vector<Value>& to, std::uint64_t step, double ps) {
    m_smallest = m_largest == 0 ? ps : std::min(m_smallest, ps);
    m_largest = std::max(m_largest, ps);
    to.push_back({step, ps});
  };
  for (const run::RequestRecord& r : run.data().requests) {
    const RequestTimes t = timesOf(r);
    if (t.ttft > 0) keep(m_ttft, stepOf(r.first_token_ps), static_cast<double>(t.ttft));
    if (t.tpot > 0) keep(m_tpot, stepOf(r.end_ps), t.tpot);
  }
  for (std::vector<Value>* v : {&m_ttft, &m_tpot}) {
    std::stable_sort(v->begin(), v->end(),
                     [](const Value& a, const Value& b) { return a.step < b.step; });
  }
}

std::vector<LatencySeries::Bin> LatencySeries::bins(const std::vector<double>& edges) const {
  std::vector<Bin> out(edges.empty() ? 0 : edges.size() - 1);
  std::vector<double> values;
  const auto collect = [&](const std::vector<Value>& from, double t0, double t1) {
    const auto before = [](const Value& v, double t) {
      return static_cast<double>(v.step) + 0.5 < t;
    };
    const auto a = std::lower_bound(from.begin(), from.end(), t0, before);
    const auto b = std::lower_bound(a, from.end(), t1, before);
    values.clear();
    for (auto it = a; it != b; ++it) values.push_back(it->ps);
    return values.size();
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    Bin& bin = out[i];
    bin.first = collect(m_ttft, edges[i], edges[i + 1]);
    if (bin.first > 0) {
      bin.ttft50 = run::nearest_rank(values, 50);
      bin.ttft99 = run::nearest_rank(values, 99);
    }
    bin.ended = collect(m_tpot, edges[i], edges[i + 1]);
    if (bin.ended > 0) {
      bin.tpot50 = run::nearest_rank(values, 50);
      bin.tpot99 = run::nearest_rank(values, 99);
    }
  }
  return out;
}

std::vector<double> sloTargets(const run::RunData& run, const std::string& which) {
  std::vector<double> out;
  double slo = 0;
  bool tiers = false;
  for (const auto& [key, value] : run::scenario_entries(run.meta.scenario_text)) {
    const bool tier = key.starts_with("workload.tiers[") && key.ends_with("]." + which);
    if (!tier && key != "workload.slo." + which) continue;
    std::string text = value;
    std::erase(text, '"');
    double ps = 0;
    try {
      ps = static_cast<double>(parse_duration(text, run.meta.scenario_name, key).ps());
    } catch (const InputError&) {
      continue;  // a run of another version: no target that we can read
    }
    if (tier) {
      tiers = true;
      if (ps > 0) out.push_back(ps);
    } else {
      slo = ps;
    }
  }
  // Tiers have the targets of workload.slo where they name none of their own.
  if (!tiers && slo > 0) out.push_back(slo);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace switchyard::gui
