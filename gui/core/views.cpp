// SPDX-License-Identifier: Apache-2.0
#include "gui/core/views.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "gui/core/columns.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::gui {
namespace {

std::uint32_t gpuOf(const run::Inventory& inv, std::uint32_t layer, std::uint32_t expert) {
  const std::size_t l = layer < inv.moe_layers.size() ? layer : 0;
  return inv.placement[(l * inv.experts + expert) * inv.replicas];
}

void finish(Matrix& m) {
  for (const std::uint64_t v : m.cells) {
    m.sum += v;
    m.most = std::max(m.most, v);
  }
}

}  // namespace

Matrix matrixOf(const RunStore& run, MatrixKind kind, std::uint32_t layer, StepSpan span) {
  const run::RunData& d = run.data();
  const run::Inventory& inv = d.inventory;
  Matrix m;
  m.n = kind == MatrixKind::kReroutesExperts ? run.experts() : run.gpus();
  if (m.n == 0) {
    m.missing = "the model has no routed experts";
    return m;
  }
  if (kind == MatrixKind::kGpuBytes) {
    m.cells = d.totals.pair_bytes;
    finish(m);
    return m;
  }
  if (span.whole && layer == kAllLayers) {
    m.cells =
        kind == MatrixKind::kReroutesExperts ? d.totals.reroute_experts : d.totals.reroute_gpus;
    finish(m);
    return m;
  }
  if (!run.hasSteps()) {
    m.missing = "this run has no reroutes per step (detail \"steps\")";
    return m;
  }
  if (layer != kAllLayers && !run.hasLayers()) {
    m.missing = "this run has no reroutes per layer (detail \"layers\")";
    return m;
  }
  m.cells.assign(m.n * m.n, 0);
  const auto [begin, end] = span.whole
                                ? std::pair<std::size_t, std::size_t>(0, d.reroutes.step.size())
                                : run.rerouteRows(span.first, span.end);
  for (std::size_t i = begin; i < end; ++i) {
    if (span.whole && d.steps[d.reroutes.step[i]].warmup) continue;
    if (layer != kAllLayers && d.reroutes.layer[i] != layer) continue;
    std::uint32_t from = d.reroutes.from[i];
    std::uint32_t to = d.reroutes.to[i];
    if (kind == MatrixKind::kReroutesGpus) {
      from = gpuOf(inv, d.reroutes.layer[i], from);
      to = gpuOf(inv, d.reroutes.layer[i], to);
      if (from == run::kNone || to == run::kNone) continue;
    }
    m.cells[from * m.n + to] += d.reroutes.count[i];
  }
  finish(m);
  return m;
}

std::string dockCsv(const RunStore& run, const std::string& dock, std::uint32_t layer,
                    StepSpan span) {
  const auto check = [&](const std::string& missing) {
    if (!missing.empty()) throw InputError(run.name(), missing);
  };
  // A comma or a quote in a name must not end its cell.
  const auto cell = [](const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) {
      out += c;
      if (c == '"') out += c;
    }
    return out + "\"";
  };
  const run::Inventory& inv = run.data().inventory;
  std::string out;
  if (dock == "topology") {
    const double end = static_cast<double>(run.steps());
    const TimeWindow w =
        span.whole ? TimeWindow{0, end}
                   : TimeWindow{static_cast<double>(span.first), static_cast<double>(span.end)};
    const Columns<float> use = linkColumns(run, w, 1);
    out = "link,from,to,bandwidth [bytes/s],mean use (share of capacity)\n";
    for (std::size_t k = 0; k < run.links(); ++k) {
      const run::LinkInfo& l = inv.links[k];
      out += fmt::format("{},{},{},{},{}\n", cell(l.name), cell(l.from), cell(l.to),
                         l.bandwidth.value, use.mean(0, k));
    }
  } else if (dock == "reroutes") {
    const Matrix m = matrixOf(run, MatrixKind::kReroutesExperts, layer, span);
    check(m.missing);
    out = "from expert,to expert,assignments\n";
    for (std::size_t i = 0; i < m.cells.size(); ++i) {
      if (m.cells[i] > 0) out += fmt::format("{},{},{}\n", i / m.n, i % m.n, m.cells[i]);
    }
  } else {
    SWITCHYARD_ASSERT(dock == "capacity", dock);
    const CapacityBars bars = capacityBars(run, layer, span);
    check(bars.missing);
    out = "expert,kept,taken over,queued,dropped,capacity\n";
    for (std::size_t e = 0; e < bars.bars.size(); ++e) {
      const CapacityBar& b = bars.bars[e];
      out += fmt::format("{},{},{},{},{},{}\n", e, b.own, b.rerouted, b.queued, b.dropped,
                         b.capacity < 0 ? std::string() : fmt::format("{}", b.capacity));
    }
  }
  return out;
}

CapacityBars capacityBars(const RunStore& run, std::uint32_t layer, StepSpan span) {
  CapacityBars out;
  if (run.experts() == 0) {
    out.missing = "the model has no routed experts";
    return out;
  }
  if (!run.hasSteps() || (layer != kAllLayers && !run.hasLayers())) {
    out.missing = "this run has no experts per step (detail \"steps\", for one layer \"layers\")";
    return out;
  }
  if (span.whole) {
    span.first = 0;
    span.end = run.steps();
    if (span.end > kCapacitySteps) {
      out.missing = "put the cursor on a step, or select some";
      return out;
    }
  }
  if (span.end - span.first > kCapacitySteps) {
    out.missing = "select at most " + std::to_string(kCapacitySteps) + " steps";
    return out;
  }
  out.bars.resize(run.experts());
  double steps = 0;
  std::vector<double> limited(run.experts(), 0);  // steps in which the expert had a capacity
  for (std::uint64_t s = span.first; s < span.end; ++s) {
    if (span.whole && run.data().steps[static_cast<std::size_t>(s)].warmup) continue;
    const ExpertRow r = run.expertRow(layer, s);
    ++steps;
    for (std::size_t e = 0; e < out.bars.size(); ++e) {
      CapacityBar& b = out.bars[e];
      // A wave that drains a queue may run what was rerouted in an earlier step.
      const std::uint32_t moved = std::min(r.rerouted_in[e], r.kept[e]);
      b.own += r.kept[e] - moved;
      b.rerouted += moved;
      b.queued += r.queued[e];
      b.dropped += r.dropped[e];
      if (r.capacity[e] != run::kUnlimited) {
        b.capacity = std::max(b.capacity, 0.0) + r.capacity[e];
        ++limited[e];
      }
    }
  }
  for (std::size_t e = 0; e < out.bars.size(); ++e) {
    CapacityBar& b = out.bars[e];
    if (steps == 0) continue;
    b.own /= steps;
    b.rerouted /= steps;
    b.queued /= steps;
    b.dropped /= steps;
    if (limited[e] > 0) b.capacity /= limited[e];
  }
  return out;
}

RequestTimes timesOf(const run::RequestRecord& r) {
  RequestTimes t;
  if (r.arrival_ps >= 0 && r.first_token_ps >= 0) t.ttft = r.first_token_ps - r.arrival_ps;
  if (r.first_token_ps >= 0 && r.end_ps >= 0 && r.output_tokens > 1) {
    t.tpot = static_cast<double>(r.end_ps - r.first_token_ps) / (r.output_tokens - 1.0);
  }
  if (r.arrival_ps >= 0 && r.end_ps >= 0) t.whole = r.end_ps - r.arrival_ps;
  return t;
}

std::optional<StepSpan> stepsOf(const RunStore& run, const run::RequestRecord& r) {
  if (!run.hasSteps() || run.steps() == 0) return std::nullopt;
  const std::int64_t begin = r.arrival_ps >= 0 ? r.arrival_ps : r.first_token_ps;
  if (begin < 0) return std::nullopt;
  const auto& steps = run.data().steps;
  const std::int64_t end = r.end_ps >= 0 ? r.end_ps : steps.back().end_ps;
  // The first step that ends after the arrival; the last that starts before the end.
  const auto first = std::partition_point(
      steps.begin(), steps.end(), [&](const run::StepScalars& s) { return s.end_ps <= begin; });
  const auto last = std::partition_point(
      steps.begin(), steps.end(), [&](const run::StepScalars& s) { return s.start_ps < end; });
  if (first >= last) return std::nullopt;
  return StepSpan{static_cast<std::uint64_t>(first - steps.begin()),
                  static_cast<std::uint64_t>(last - steps.begin()), false};
}

std::vector<std::uint32_t> histogram(const std::vector<double>& values, std::size_t bins,
                                     double& top) {
  top = 0;
  for (const double v : values) top = std::max(top, v);
  std::vector<std::uint32_t> out(bins, 0);
  for (const double v : values) {
    if (!(v >= 0)) continue;
    const auto bin = top > 0 ? static_cast<std::size_t>(v / top * static_cast<double>(bins)) : 0;
    ++out[std::min(bin, bins - 1)];
  }
  return out;
}

double watermarkOf(const run::RunData& run) {
  for (const auto& [key, value] : run::scenario_entries(run.meta.scenario_text)) {
    if (key != "memory.watermark") continue;
    const double percent = std::strtod(value.c_str() + (value.starts_with('"') ? 1 : 0), nullptr);
    if (percent > 0 && percent <= 100) return percent / 100;
  }
  return 0.92;
}

ExpertNumbers expertNumbers(const RunStore& run, std::uint32_t layer) {
  ExpertNumbers out;
  const std::size_t experts = run.experts();
  if (experts == 0 || run.steps() == 0) return out;
  const TimeWindow whole{0, static_cast<double>(run.steps())};
  const auto columns = [&](std::size_t n) {
    return heatColumns(run, layer, Scale::kTokens, Aggregate::kMax, whole, n);
  };
  const HeatColumns spark = columns(kSparkColumns);
  out.spark.resize(experts * kSparkColumns);
  for (std::size_t c = 0; c < kSparkColumns; ++c) {
    for (std::size_t e = 0; e < experts; ++e) {
      out.spark[e * kSparkColumns + c] = spark.value[c * experts + e];
    }
  }
  std::vector<std::vector<double>> tokens(experts);
  const bool exact =
      run.hasSteps() && run.steps() <= kExactSteps && (layer == kAllLayers || run.hasLayers());
  if (exact) {
    out.dropped.assign(experts, 0);
    for (std::uint64_t s = 0; s < run.steps(); ++s) {
      if (run.data().steps[static_cast<std::size_t>(s)].warmup) continue;
      const ExpertRow r = run.expertRow(layer, s);
      for (std::size_t e = 0; e < experts; ++e) {
        tokens[e].push_back(r.kept[e]);
        out.dropped[e] += r.dropped[e];
      }
    }
  } else {
    // At most 1 % of equal parts have a larger largest step, so at most 1 % of the steps are
    // larger.
    out.bound = true;
    const HeatColumns parts = columns(128);
    for (std::size_t c = 0; c < parts.columns; ++c) {
      for (std::size_t e = 0; e < experts; ++e) {
        tokens[e].push_back(static_cast<double>(parts.value[c * experts + e]));
      }
    }
  }
  for (std::vector<double>& t : tokens) {
    const auto n = static_cast<double>(t.size());
    out.most.push_back(t.empty() ? run::kNoData : *std::max_element(t.begin(), t.end()));
    if (exact) {
      const double mean = std::accumulate(t.begin(), t.end(), 0.0) / n;
      double squares = 0;
      for (const double v : t) squares += (v - mean) * (v - mean);
      out.least.push_back(t.empty() ? run::kNoData : *std::min_element(t.begin(), t.end()));
      out.deviation.push_back(t.empty() ? run::kNoData : std::sqrt(squares / n));
    }
    out.p99.push_back(run::nearest_rank(std::move(t), 99));
  }
  return out;
}

run::RunData perToken(const run::RunData& run) {
  run::RunData out;
  out.meta = run.meta;
  out.totals = run.totals;
  out.metrics = run.metrics;
  const auto value = [&](const char* name) {
    const auto found = std::find_if(run.metrics.begin(), run.metrics.end(),
                                    [&](const run::Metric& m) { return m.name == name; });
    return found == run.metrics.end() ? run::kNoData : found->value;
  };
  const double tokens = value("tokens");
  const double perStep = tokens / value("measured steps");
  for (run::Metric& m : out.metrics) {
    double by = 0;
    if (m.name == "span" || m.name == "energy") by = tokens;
    if (m.name.starts_with("step time ")) by = perStep;
    if (by == 0) continue;
    m.value = by > 0 ? m.value / by : run::kNoData;
    m.unit += "/token";
  }
  return out;
}

}  // namespace switchyard::gui
