// SPDX-License-Identifier: Apache-2.0
#include "sim/run/diff.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/base/error.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::run {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

const Metric* find(const std::vector<Metric>& metrics, const std::string& name) {
  const auto it = std::find_if(metrics.begin(), metrics.end(),
                               [&name](const Metric& m) { return m.name == name; });
  return it == metrics.end() ? nullptr : &*it;
}

std::string better_of(const Metric& a, const Metric& b) {
  if (std::isnan(a.value) || std::isnan(b.value)) return "-";
  if (a.value == b.value) return "same";
  const MetricDefinition* d = find_metric(a.name);
  if (d == nullptr || d->better == Better::kNeither) return "-";
  return (b.value > a.value) == (d->better == Better::kHigher) ? "B" : "A";
}

std::vector<std::string> metric_row(const std::string& name, const Metric* a, const Metric* b) {
  const double va = a != nullptr ? a->value : kNoData;
  const double vb = b != nullptr ? b->value : kNoData;
  const std::string unit = a != nullptr ? a->unit : b->unit;
  const bool comparable = a != nullptr && b != nullptr && a->unit == b->unit;
  return {"metric",
          name,
          unit,
          format_value(va),
          format_value(vb),
          format_value(comparable ? vb - va : kNoData),
          format_value(comparable && va != 0 ? vb / va : kNoData),
          comparable ? better_of(*a, *b) : "-"};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> scenario_entries(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> out;
  std::string prefix;
  std::istringstream lines(text);
  for (std::string raw; std::getline(lines, raw);) {
    const std::string line = trimmed(raw);
    if (line.empty() || line[0] == '#') continue;
    const std::size_t equals = line.find('=');
    if (line.front() == '[' && line.back() == ']' && equals == std::string::npos) {
      prefix = line.substr(1, line.size() - 2) + ".";
      continue;
    }
    out.emplace_back(prefix + trimmed(line.substr(0, equals)),
                     equals == std::string::npos ? "" : trimmed(line.substr(equals + 1)));
  }
  return out;
}

std::vector<InputDifference> input_differences(const RunMeta& a, const RunMeta& b) {
  std::vector<InputDifference> out;
  const auto in_a = scenario_entries(a.scenario_text);
  const auto in_b = scenario_entries(b.scenario_text);
  const auto find_key = [](const auto& entries, const std::string& key) {
    return std::find_if(entries.begin(), entries.end(),
                        [&key](const auto& e) { return e.first == key; });
  };
  for (const auto& [key, value] : in_a) {
    const auto other = find_key(in_b, key);
    if (other == in_b.end()) {
      out.push_back({key, value, "-"});
    } else if (other->second != value) {
      out.push_back({key, value, other->second});
    }
  }
  for (const auto& [key, value] : in_b) {
    if (find_key(in_a, key) == in_a.end()) out.push_back({key, "-", value});
  }
  const auto add = [&out](const char* key, const std::string& x, const std::string& y) {
    if (x != y) out.push_back({key, x.empty() ? "-" : x, y.empty() ? "-" : y});
  };
  add("product version", a.product_version, b.product_version);
  if (find_key(in_a, "run.seed") == in_a.end()) {
    add("seed", std::to_string(a.seed), std::to_string(b.seed));
  }
  add("model hash", a.model_hash, b.model_hash);
  add("hardware hash", a.hardware_hash, b.hardware_hash);
  add("trace hash", a.trace_hash, b.trace_hash);
  add("routing source", a.routing_source, b.routing_source);
  add("policy applied by", a.policy_way, b.policy_way);
  return out;
}

namespace {

bool is_seed(const InputDifference& d) { return d.key == "run.seed" || d.key == "seed"; }

std::vector<std::uint64_t> seeds_of(const std::vector<const RunData*>& runs) {
  std::vector<std::uint64_t> seeds;
  for (const RunData* r : runs) {
    if (!same_but_seed(runs.front()->meta, r->meta)) {
      throw InputError("diff", fmt::format("the runs of scenario {} differ in more than the seed",
                                           runs.front()->meta.scenario_name));
    }
    if (std::find(seeds.begin(), seeds.end(), r->meta.seed) != seeds.end()) {
      throw InputError("diff",
                       fmt::format("two runs of scenario {} have the seed {}",
                                   r->meta.scenario_name, r->meta.seed),
                       "name each run once");
    }
    seeds.push_back(r->meta.seed);
  }
  return seeds;
}

std::string range_text(const Spread& s) {
  if (s.runs == 0) return "n/a";
  return format_value(s.least) + " .. " + format_value(s.most);
}

std::string side_text(const std::vector<const RunData*>& runs,
                      const std::vector<std::uint64_t>& seeds) {
  return fmt::format("{} ({} seed{}: {})", runs.front()->meta.scenario_name, seeds.size(),
                     seeds.size() == 1 ? "" : "s", fmt::join(seeds, ", "));
}

}  // namespace

bool same_but_seed(const RunMeta& a, const RunMeta& b) {
  const std::vector<InputDifference> all = input_differences(a, b);
  return std::all_of(all.begin(), all.end(), is_seed);
}

Spread spread_of(const std::vector<const RunData*>& runs, const std::string& metric) {
  std::vector<double> values;
  for (const RunData* r : runs) {
    const Metric* m = find(r->metrics, metric);
    if (m != nullptr && !std::isnan(m->value)) values.push_back(m->value);
  }
  Spread s;
  s.runs = values.size();
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  s.median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  s.least = values.front();
  s.most = values.back();
  return s;
}

bool within_noise(const Spread& a, const Spread& b) {
  if (a.runs == 0 || b.runs == 0 || a.runs + b.runs < 3) return false;
  return std::max(a.least, b.least) <= std::min(a.most, b.most);
}

Table diff_seeds(const std::vector<const RunData*>& a, const std::vector<const RunData*>& b) {
  SWITCHYARD_ASSERT(!a.empty(), "no runs");
  Table table;
  table.name = "diff";
  table.title = "A = " + side_text(a, seeds_of(a));
  if (!b.empty()) table.title += ", B = " + side_text(b, seeds_of(b));
  table.columns = {"kind", "name", "unit", "A", "A range", "B", "B range", "B-A", "B/A", "better"};
  if (!b.empty()) {
    for (const InputDifference& d : input_differences(a.front()->meta, b.front()->meta)) {
      if (!is_seed(d)) table.rows.push_back({"input", d.key, "", d.a, "", d.b, "", "", "", ""});
    }
  }
  // Metrics in the order in which the runs have them, A's first.
  std::vector<std::string> names;
  for (const auto* side : {&a, &b}) {
    for (const RunData* r : *side) {
      for (const Metric& m : r->metrics) {
        if (std::find(names.begin(), names.end(), m.name) == names.end()) names.push_back(m.name);
      }
    }
  }
  const auto one = [](const std::vector<const RunData*>& runs, const std::string& name) {
    const Metric* m = nullptr;
    for (std::size_t i = 0; i < runs.size() && m == nullptr; ++i) m = find(runs[i]->metrics, name);
    return m;
  };
  for (const std::string& name : names) {
    const Spread sa = spread_of(a, name);
    const Spread sb = spread_of(b, name);
    const Metric* ma = one(a, name);
    const Metric* mb = one(b, name);
    const bool comparable = ma != nullptr && mb != nullptr && ma->unit == mb->unit;
    std::string better = "-";
    if (comparable) {
      better = better_of({name, sa.median, ma->unit}, {name, sb.median, mb->unit});
      if (better != "same" && within_noise(sa, sb)) better = "noise";
    }
    table.rows.push_back(
        {"metric", name, ma != nullptr ? ma->unit : mb->unit, format_value(sa.median),
         range_text(sa), b.empty() ? "" : format_value(sb.median), b.empty() ? "" : range_text(sb),
         b.empty() ? "" : format_value(comparable ? sb.median - sa.median : kNoData),
         b.empty() ? ""
                   : format_value(comparable && sa.median != 0 ? sb.median / sa.median : kNoData),
         b.empty() ? "" : better});
  }
  return table;
}

bool same_results(const RunData& a, const RunData& b) {
  if (a.metrics.size() != b.metrics.size()) return false;
  for (std::size_t i = 0; i < a.metrics.size(); ++i) {
    if (a.metrics[i].name != b.metrics[i].name || !same(a.metrics[i].value, b.metrics[i].value)) {
      return false;
    }
  }
  const Totals& x = a.totals;
  const Totals& y = b.totals;
  return x.steps == y.steps && x.assignments == y.assignments && x.kept == y.kept &&
         x.rerouted == y.rerouted && x.queued == y.queued && x.dropped == y.dropped &&
         x.overflow == y.overflow && x.bytes_sent == y.bytes_sent &&
         x.bytes_received == y.bytes_received && x.gpu_memory == y.gpu_memory &&
         x.gpu_memory_peak == y.gpu_memory_peak && x.expert_kept == y.expert_kept &&
         x.expert_overflow == y.expert_overflow && x.expert_time_ps == y.expert_time_ps &&
         x.reroute_experts == y.reroute_experts && x.reroute_gpus == y.reroute_gpus &&
         x.pair_bytes == y.pair_bytes && x.gpu_phase_ps == y.gpu_phase_ps &&
         x.link_bytes == y.link_bytes && x.link_busy_ps == y.link_busy_ps;
}

Table diff_runs(const RunData& a, const RunData& b) {
  Table table;
  table.name = "diff";
  table.title = fmt::format("A = {} (scenario {}, seed {}), B = {} (scenario {}, seed {})",
                            a.meta.scenario_name, a.meta.scenario_hash, a.meta.seed,
                            b.meta.scenario_name, b.meta.scenario_hash, b.meta.seed);
  table.columns = {"kind", "name", "unit", "A", "B", "B-A", "B/A", "better"};
  const std::vector<InputDifference> inputs = input_differences(a.meta, b.meta);
  for (const InputDifference& d : inputs) {
    table.rows.push_back({"input", d.key, "", d.a, d.b, "", "", ""});
  }
  for (const Metric& m : a.metrics) {
    table.rows.push_back(metric_row(m.name, &m, find(b.metrics, m.name)));
  }
  for (const Metric& m : b.metrics) {
    if (find(a.metrics, m.name) == nullptr) {
      table.rows.push_back(metric_row(m.name, nullptr, &m));
    }
  }
  const bool equal = same_results(a, b);
  if (inputs.empty()) {
    table.notes.push_back(equal ? "inputs and results are the same"
                                : "results differ although no input does: this breaks determinism");
  } else if (equal) {
    std::string keys;
    for (const InputDifference& d : inputs) keys += (keys.empty() ? "" : ", ") + d.key;
    table.notes.push_back(fmt::format("changed input that changed no result: {}", keys));
  }
  return table;
}

}  // namespace switchyard::run
