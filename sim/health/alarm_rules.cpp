// SPDX-License-Identifier: Apache-2.0
#include "sim/health/alarm_rules.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "engine/base/error.hpp"
#include "sim/run/diff.hpp"
#include "sim/scenario/alarm_reader.hpp"

namespace switchyard::health {
namespace {

constexpr std::string_view kOwnRules = "the rules of the run's own scenario (monitor.alarms)";

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
std::string value_text(std::string_view key, const std::string& value) {
  if (key == "signal" || key == "name" || key == "statistic") return quoted(value);
  char* end = nullptr;
  (void)std::strtod(value.c_str(), &end);
  return end != value.c_str() && *end == '\0' ? value : quoted(value);
}

/// [[alarms]] of the run's scenario text, and the action of each rule. Empty: it has none.
std::string alarms_text(const run::RunData& run, std::vector<scenario::AlarmAction>& actions) {
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
      out.append(name).append(" = ").append(value_text(name, value)).append("\n");
    }
  }
  return out;
}

double watermark_of(const run::RunData& run) {
  for (const auto& [key, value] : run::scenario_entries(run.meta.scenario_text)) {
    if (key != "memory.watermark") continue;
    const double percent = std::strtod(value.c_str() + (value.starts_with('"') ? 1 : 0), nullptr);
    if (percent > 0 && percent <= 100) return percent / 100;
  }
  return 0.92;
}

}  // namespace

AlarmRules alarm_rules_of(const run::RunData& run, const std::vector<scenario::AlarmRule>& stated) {
  return stated.empty() ? alarm_rules_of(run) : AlarmRules{stated, true, std::string(kOwnRules)};
}

AlarmRules alarm_rules_of(const run::RunData& run) {
  AlarmRules out;
  out.source = "the default rules: the run's scenario has no monitor.alarms";
  try {
    std::vector<scenario::AlarmAction> actions;
    if (const std::string text = alarms_text(run, actions); !text.empty()) {
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
      out.source = kOwnRules;
      return out;
    }
  } catch (const InputError& e) {
    out.source = std::string("the default rules: those of the run cannot be read: ") + e.what();
  }
  out.rules = scenario::default_alarms(watermark_of(run));
  return out;
}

}  // namespace switchyard::health
