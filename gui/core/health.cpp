// SPDX-License-Identifier: Apache-2.0
#include "gui/core/health.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "engine/base/error.hpp"
#include "gui/core/alarmrules.hpp"
#include "gui/core/views.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/health/health_series.hpp"
#include "sim/health/monitor_report.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/alarm_reader.hpp"

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

constexpr std::string_view kAlarmsKey = "monitor.alarms[";

/// A TOML value of what the canonical text writes without quotes: "2.5" is a number where the key
/// takes one, "431 us" a text.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}
std::string valueText(std::string_view key, const std::string& value) {
  if (key == "signal" || key == "name" || key == "statistic") return quoted(value);
  char* end = nullptr;
  (void)std::strtod(value.c_str(), &end);
  return end != value.c_str() && *end == '\0' ? value : quoted(value);
}

/// [[alarms]] of the run's scenario text, and the action of each rule. Empty: it has none.
std::string alarmsText(const run::RunData& run, std::vector<scenario::AlarmAction>& actions) {
  static constexpr std::array<std::string_view, 7> kKeys = {"signal", "name",   "above",    "below",
                                                            "clear",  "window", "statistic"};
  std::string out;
  std::string item;
  for (const auto& [key, value] : run::scenario_entries(run.meta.scenario_text)) {
    if (!key.starts_with(kAlarmsKey)) continue;
    const std::size_t dot = key.find("].");
    if (dot == std::string::npos) continue;
    if (const std::string now = key.substr(0, dot); now != item) {
      item = now;
      out += "[[alarms]]\n";
      actions.push_back(scenario::AlarmAction::kRecord);
    }
    const std::string_view name = std::string_view(key).substr(dot + 2);
    if (name == "action") {
      const auto& names = scenario::kAlarmActionNames;
      const auto at = std::find(names.begin(), names.end(), value);
      if (at != names.end()) {
        actions.back() = static_cast<scenario::AlarmAction>(at - names.begin());
      }
    } else if (std::find(kKeys.begin(), kKeys.end(), name) != kKeys.end()) {
      out.append(name).append(" = ").append(valueText(name, value)).append("\n");
    }
  }
  return out;
}

/// `steps`: the run, or the file that its steps are read from.
template <class Steps>
HealthReport judge(const run::RunData& run, const Steps& steps, const std::string& name) {
  HealthReport out;
  try {
    const AlarmRules rules = alarmRulesOf(run);
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

AlarmRules alarmRulesOf(const run::RunData& run) {
  AlarmRules out;
  out.source = "the default rules: the run's scenario has no monitor.alarms";
  try {
    std::vector<scenario::AlarmAction> actions;
    if (const std::string text = alarmsText(run, actions); !text.empty()) {
      const auto source = std::make_shared<scenario::Source>();
      source->name = "the run's scenario";
      const scenario::Node root = scenario::parse_toml(text, source);
      scenario::Context context;
      scenario::Section top(context, &root, "", {"alarms"}, root);
      out.rules = scenario::alarms_from(
          context, top.find("alarms"), "monitor.alarms", root,
          [](const scenario::Node&, const std::string&) { return RoutingPolicy{}; });
      for (std::size_t i = 0; i < out.rules.size(); ++i) out.rules[i].action = actions[i];
      out.own = true;
      out.source = "the rules of the run's own scenario (monitor.alarms)";
      return out;
    }
  } catch (const InputError& e) {
    out.source = std::string("the default rules: those of the run cannot be read: ") + e.what();
  }
  out.rules = scenario::default_alarms(watermarkOf(run));
  return out;
}

std::optional<EntropyAlarm> entropyAlarmOf(const run::RunData& run) {
  for (const scenario::AlarmRule& r : alarmRulesOf(run).rules) {
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
