// SPDX-License-Identifier: Apache-2.0
#include "gui/core/health.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "engine/base/error.hpp"
#include "gui/core/views.hpp"
#include "sim/health/alarm_rules.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/health_series.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/run/run_file.hpp"

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
    const health::AlarmRules rules = health::alarm_rules_of(run);
    const health::MonitorReport m = health::monitor_run(steps, rules.rules, name);
    out.rules = rules.source;
    out.ownRules = rules.own;
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

std::optional<EntropyAlarm> entropyAlarmOf(const run::RunData& run) {
  for (const scenario::AlarmRule& r : health::alarm_rules_of(run).rules) {
    if (r.signal == scenario::HealthSignal::kGateEntropy) return EntropyAlarm{r.threshold, r.above};
  }
  return std::nullopt;
}

HealthReport healthOf(const run::RunData& run, const std::string& name) {
  return judge(run, run, name);
}

HealthReport healthOf(const std::filesystem::path& file, const std::atomic<bool>* stop,
                      std::atomic<int>* permille) {
  HealthReport out;
  // Checking the file takes about a third of the time.
  constexpr double kChecked = 333;
  const auto tell = [permille](double done) {
    if (permille != nullptr) *permille = static_cast<int>(std::min(done, 1000.0));
  };
  try {
    h5::ReadOptions options;
    const auto check = [stop] {
      if (stop != nullptr && *stop) throw Stopped{};
    };
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      check();
      tell(kChecked * static_cast<double>(done) /
           static_cast<double>(std::max<std::uint64_t>({1, done, total})));
    };
    health::RecordedRun run = health::read_recorded(file, options);
    const double parts = std::max(
        1.0, std::ceil(static_cast<double>(run.run.steps.size()) / health::RecordedSteps::kWindow));
    run.between = [&, read = 0.0]() mutable {
      check();
      tell(kChecked + (1000 - kChecked) * read / parts);
      read += 1;
    };
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
