// SPDX-License-Identifier: Apache-2.0
#include "gui/core/health.hpp"

#include "engine/base/error.hpp"
#include "gui/core/views.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/health_series.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::gui {
namespace {

/// Thrown through the reader, which knows nothing of it.
struct Stopped {};

Table tableNamed(const std::vector<Table>& tables, const std::string& name) {
  for (const Table& t : tables) {
    if (t.name == name) return t;
  }
  return {};
}

/// `steps`: the run, or the file that its steps are read from.
template <class Steps>
HealthReport judge(const run::RunData& run, const Steps& steps, const std::string& name) {
  HealthReport out;
  try {
    const health::MonitorReport m =
        health::monitor_run(steps, scenario::default_alarms(watermarkOf(run)), name);
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

}  // namespace

HealthReport healthOf(const run::RunData& run, const std::string& name) {
  return judge(run, run, name);
}

HealthReport healthOf(const std::filesystem::path& file, const std::atomic<bool>* stop) {
  HealthReport out;
  try {
    h5::ReadOptions options;
    const auto check = [stop] {
      if (stop != nullptr && *stop) throw Stopped{};
    };
    options.progress = [&](std::uint64_t, std::uint64_t) { check(); };
    health::RecordedRun run = health::read_recorded(file, options);
    run.between = check;
    check();
    return judge(run.run, run, file.string());
  } catch (const Stopped&) {
    out.missing = "stopped";
  } catch (const InputError& e) {
    out.missing = e.what();
  }
  return out;
}

}  // namespace switchyard::gui
