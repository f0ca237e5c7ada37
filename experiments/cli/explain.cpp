// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/explain.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>

#include "engine/routing/policy.hpp"
#include "engine/trace/trace_parts.hpp"
#include "sim/cluster/report.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard {
namespace {

/// "hardware.gpu_types.h100.source.hbm" or "hardware.links[0].source".
bool is_source(const scenario::ResolvedValue& v) {
  return !v.in_hash && (v.key.ends_with(".source") || v.key.find(".source.") != std::string::npos);
}

/// A limit whose 0 stands for none (the reader takes no 0 from a file).
bool no_limit(const scenario::ResolvedValue& v) {
  return v.value == "0" &&
         (v.key == "workload.batching.max_waiting" || v.key == "workload.max_steps");
}

/// What the file says about where a figure comes from: its own source, else its table's.
std::string source_of(const scenario::Scenario& scenario, const std::string& key) {
  const std::size_t dot = key.rfind('.');
  if (dot == std::string::npos) {
    return {};
  }
  const std::string table = key.substr(0, dot);
  const std::string own = table + ".source" + key.substr(dot);
  const std::string shared = table + ".source";
  for (const scenario::ResolvedValue& v : scenario.values) {
    if (!v.in_hash && (v.key == own || v.key == shared)) {
      return v.value;
    }
  }
  return {};
}

/// The routing traces that a file and its sweep replay, each opened once, as `sim` opens it.
class Traces {
 public:
  /// Null where the scenario replays none, or it is not there.
  const RoutingTrace* of(const scenario::Scenario& s) {
    if (s.workload.routing.source != scenario::RoutingSource::kTrace) return nullptr;
    const std::string& path = s.workload.routing.trace_path;
    const auto [at, fresh] = open_.try_emplace(path);
    std::error_code ignored;
    if (fresh && std::filesystem::exists(path, ignored)) {
      at->second = open_trace(path, true, kTraceBytesInMemory, true);
    }
    if (!at->second) missing_ = true;
    return at->second ? &*at->second : nullptr;
  }
  [[nodiscard]] bool missing() const { return missing_; }

 private:
  std::map<std::string, std::optional<RoutingTrace>> open_;
  bool missing_ = false;
};

}  // namespace

Table explain_scenario(const scenario::Scenario& scenario) {
  Table table;
  table.name = "explain";
  table.title = fmt::format("{} on {}: {} GPUs, every value with its origin", scenario.model.name,
                            scenario.hardware.name, scenario.hardware.gpu_count());
  table.columns = {"key", "value", "origin", "source of the figure"};
  for (const scenario::ResolvedValue& v : scenario.values) {
    if (!is_source(v)) {
      table.rows.push_back(
          {v.key, no_limit(v) ? "no limit" : v.value, v.origin, source_of(scenario, v.key)});
    }
  }
  std::size_t points = 1;
  for (const scenario::SweepAxis& axis : scenario.sweep) {
    table.rows.push_back(
        {"sweep " + axis.key, fmt::format("{}", fmt::join(axis.values, ", ")), axis.where, ""});
    points *= axis.values.size();
  }
  if (scenario.gate.experts > 0) {
    table.notes.emplace_back("routing pipeline (routing.md), active steps in order:");
    // A synthetic law states probabilities: the model's group limit has no meaning for it.
    GateSpec gate = scenario.gate;
    if (scenario.workload.routing.source != scenario::RoutingSource::kTrace) {
      gate.n_group = 1;
      gate.topk_group = 1;
    }
    for (const std::string& step : explain_policy(gate, scenario.policy)) {
      table.notes.push_back("  " + step);
    }
  } else {
    table.notes.emplace_back("routing pipeline: none, the model has no MoE layer");
  }
  if (!scenario.sweep.empty()) {
    table.notes.push_back(
        fmt::format("{} sweep points; the values above are those without the sweep", points));
  }
  table.notes.push_back(cluster::rates_in_words(network::cluster_of(scenario)));
  table.notes.push_back("scenario hash " + scenario::scenario_hash(scenario));
  return table;
}

Table explain_file(const std::string& path, scenario::ReadOptions options) {
  options.require_trace = false;
  const scenario::Scenario read = scenario::read_scenario(path, options);
  // Every point is checked here, so that a sweep does not stop half way. Of very many, placing
  // experts and counting memory would take long.
  constexpr std::size_t kMostPoints = 200;
  Table table = explain_scenario(read);
  Traces traces;
  std::vector<scenario::SweepPoint> points;
  if (read.sweep.empty()) {
    sim::check_scenario(read, traces.of(read));
  } else {
    points = scenario::read_sweep(path, options);
  }
  for (std::size_t i = 0; i < points.size() && i < kMostPoints; ++i) {
    sim::check_scenario(points[i].scenario, traces.of(points[i].scenario));
  }
  for (std::size_t i = kMostPoints; i < points.size(); ++i) {
    sim::check_groups(points[i].scenario);
  }
  if (traces.missing()) {
    table.notes.emplace_back(
        "the routing trace is not there: nothing is checked that needs it (its layers, the "
        "policy)");
  }
  if (points.size() > kMostPoints) {
    table.notes.push_back(
        fmt::format("memory and placement are checked for the first {} points", kMostPoints));
  }
  return table;
}

}  // namespace switchyard
