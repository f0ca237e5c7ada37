// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/run/conservation.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {
namespace {

Table run_table(const run::RunData& run) {
  Table table;
  table.name = "run";
  table.title = "Run";
  table.columns = {"what", "value"};
  const auto add = [&table](const char* what, const std::string& value) {
    table.rows.push_back({what, value.empty() ? "-" : value});
  };
  const run::RunMeta& m = run.meta;
  add("scenario", m.scenario_name);
  add("scenario hash", m.scenario_hash);
  add("seed", std::to_string(m.seed));
  add("product version", m.product_version);
  add("model", m.model_name);
  add("hardware", m.hardware_name);
  add("network model", m.network_model);
  add("routing source", m.routing_source);
  add("policy applied by", m.policy_way);
  add("trace hash", m.trace_hash);
  add("detail", std::string(run::kDetailNames[static_cast<std::size_t>(m.detail)]));
  add("steps", std::to_string(run.totals.steps));
  add("GPUs", std::to_string(run.inventory.gpus.size()));
  add("directed links", std::to_string(run.inventory.links.size()));
  add("MoE layers", std::to_string(run.inventory.moe_layers.size()));
  add("experts per layer", std::to_string(run.inventory.experts));
  add("experts per token", std::to_string(run.inventory.top_k));
  add("assignments", std::to_string(run.totals.assignments));
  add("kept", std::to_string(run.totals.kept));
  add("rerouted", std::to_string(run.totals.rerouted));
  add("queued", std::to_string(run.totals.queued));
  add("dropped", std::to_string(run.totals.dropped));
  add("overflow", std::to_string(run.totals.overflow));
  add("requests", std::to_string(run.requests.size()));
  add("events", std::to_string(run.events.size()));
  for (std::size_t k = 0; k < run::kEventKindNames.size(); ++k) {
    const auto n = std::count_if(run.events.begin(), run.events.end(), [k](const run::Event& e) {
      return static_cast<std::size_t>(e.kind) == k;
    });
    if (n > 0) {
      table.rows.push_back({fmt::format("events: {}", run::kEventKindNames[k]), std::to_string(n)});
    }
  }
  table.notes = run.notes;
  return table;
}

Table metrics_table(const run::RunData& run, bool definitions) {
  Table table;
  table.name = "metrics";
  table.title = "Summary metrics (without warm-up steps)";
  table.columns = {"metric", "value", "unit"};
  if (definitions) table.columns.emplace_back("definition");
  for (const run::Metric& m : run.metrics) {
    std::vector<std::string> row = {m.name, run::format_value(m.value), m.unit};
    if (definitions) {
      const run::MetricDefinition* d = run::find_metric(m.name);
      row.push_back(d != nullptr ? d->definition : "-");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table conservation_table(const run::RunReader& reader, const InspectRunOptions& options) {
  Table table;
  table.name = "conservation";
  table.title = "Conservation laws that do not hold";
  table.columns = {"check", "where", "what"};
  const run::RunData& base = reader.base();
  const double numbers = static_cast<double>(base.totals.steps) *
                         static_cast<double>(base.inventory.moe_layers.size()) *
                         base.inventory.experts;
  const bool layers = options.layers || numbers <= options.most_layer_numbers;
  for (const run::Violation& v : run::check_conservation(reader, 0, layers)) {
    table.rows.push_back({v.check, v.where, v.message});
  }
  if (table.rows.empty()) {
    table.notes.push_back(
        fmt::format("all hold, as far as detail = \"{}\" shows",
                    run::kDetailNames[static_cast<std::size_t>(base.meta.detail)]));
  }
  if (!layers && reader.has(run::Detail::kLayers)) {
    table.notes.push_back(fmt::format(
        "blocks of single layers are not among it ({:.2g} numbers each; the writer checked them): "
        "--layers checks them too",
        numbers));
  }
  return table;
}

}  // namespace

std::vector<Table> inspect_run(const std::string& path, const InspectRunOptions& options) {
  // Blocks are checked a window at a time: a run may be longer than memory.
  const run::RunReader reader(path, h5::ReadOptions{options.verify});
  run::RunData run = reader.base();
  run.totals = reader.read_totals();
  run.requests = reader.read_requests();
  run.events = reader.read_events();
  return {run_table(run), metrics_table(run, options.definitions),
          conservation_table(reader, options)};
}

}  // namespace switchyard::cli
