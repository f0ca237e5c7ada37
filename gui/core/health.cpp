// SPDX-License-Identifier: Apache-2.0
#include "gui/core/health.hpp"

#include "engine/base/error.hpp"
#include "gui/core/views.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::gui {
namespace {

/// As `monitor`: above this many steps x layers x experts the sum over layers is watched.
constexpr double kMostLayerExperts = 2e7;

/// Thrown through the reader, which knows nothing of it.
struct Stopped {};

Table tableNamed(const std::vector<Table>& tables, const std::string& name) {
  for (const Table& t : tables) {
    if (t.name == name) return t;
  }
  return {};
}

}  // namespace

HealthReport healthOf(const run::RunData& run, const std::string& name) {
  HealthReport out;
  try {
    const health::MonitorReport m =
        health::monitor_run(run, scenario::default_alarms(watermarkOf(run)), name);
    out.watched = tableNamed(m.tables, "health");
    out.alarms = tableNamed(m.tables, "alarms");
  } catch (const InputError& e) {
    out.missing = e.what();
  }
  const health::Diagnosis d = health::diagnose(run, name);
  out.findings.name = "findings";
  out.findings.columns = {"symptom", "cause", "check", "cure"};
  for (const health::Finding& f : d.findings) {
    out.findings.rows.push_back({f.symptom, f.cause, f.check, f.cure});
  }
  return out;
}

HealthReport healthOf(const std::filesystem::path& file, const std::atomic<bool>* stop) {
  HealthReport out;
  try {
    h5::ReadOptions options;
    const auto check = [stop] {
      if (stop != nullptr && *stop) throw Stopped{};
    };
    options.progress = [&](std::uint64_t, std::uint64_t) { check(); };
    run::RunParts parts;
    parts.lod = parts.tokens = parts.reroutes = false;
    {
      const run::RunReader reader(file, options);
      const run::RunData& base = reader.base();
      parts.layer_experts = static_cast<double>(base.totals.steps) *
                                static_cast<double>(base.inventory.moe_layers.size()) *
                                base.inventory.experts <=
                            kMostLayerExperts;
    }
    check();
    const run::RunData run = run::read_run(file, parts, options);
    check();
    return healthOf(run, file.string());
  } catch (const Stopped&) {
    out.missing = "stopped";
  } catch (const InputError& e) {
    out.missing = e.what();
  }
  return out;
}

}  // namespace switchyard::gui
