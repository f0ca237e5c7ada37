// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/alarms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "sim/scenario/alarm_reader.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::uint64_t kLongestWindow = 4096;
constexpr std::uint64_t kMostRules = 1000;
constexpr std::uint64_t kMostDropped = 1'000'000'000;

const HealthSignalInfo& info(HealthSignal s) { return kHealthSignals[static_cast<std::size_t>(s)]; }

/// A threshold in the signal's own unit.
double threshold(Section& s, std::string_view key, HealthSignal signal,
                 std::optional<double> fallback = {}) {
  switch (info(signal).unit) {
    case SignalUnit::kTime:
      return s
          .duration(key, fallback ? std::optional(SimTime::from_seconds(*fallback))
                                  : std::optional<SimTime>())
          .seconds();
    case SignalUnit::kShare:
      return s.percent(key, fallback);
    case SignalUnit::kCosine:
      return s.number(key, {-1, 1}, fallback);
    default:
      return s.number(key, {0, 1e12}, fallback);
  }
}

}  // namespace

std::string show_signal(HealthSignal signal, double value) {
  if (std::isnan(value)) return "n/a";
  switch (info(signal).unit) {
    case SignalUnit::kTime:
      return fmt::format("{:.4g} us", value * 1e6);
    case SignalUnit::kShare:
      return fmt::format("{:.4g} %", value * 100);
    case SignalUnit::kBits:
      return fmt::format("{:.4g} bit", value);
    default:
      return fmt::format("{:.4g}", value);
  }
}

std::vector<AlarmRule> alarms_from(Context& context, const Node* list, const std::string& path,
                                   const Node& parent, const PolicyLoader& policy) {
  std::vector<AlarmRule> rules;
  if (list == nullptr) return rules;
  if (list->kind != Node::Kind::kArray || list->children.empty()) {
    throw InputError(list->where(), path + ": expected a list of tables",
                     fmt::format("write [[{}]]", path));
  }
  if (list->children.size() > kMostRules) {
    throw InputError(list->where(), fmt::format("{}: more than {} rules", path, kMostRules));
  }
  std::vector<std::string_view> names;
  for (const HealthSignalInfo& i : kHealthSignals) names.push_back(i.name);
  for (std::size_t i = 0; i < list->children.size(); ++i) {
    Section s(context, &list->children[i], fmt::format("{}[{}]", path, i),
              {"name", "signal", "above", "below", "clear", "window", "statistic", "action",
               "repeat", "policy", "drop"},
              parent);
    AlarmRule r;
    r.where = list->children[i].where();
    if (!s.has("signal"))
      s.fail("signal", "is missing", fmt::format("one of {}", fmt::join(names, ", ")));
    r.signal = static_cast<HealthSignal>(s.choice("signal", names));
    r.name = s.text("name", std::string(info(r.signal).name));
    for (const AlarmRule& other : rules) {
      if (other.name == r.name)
        s.fail("name", fmt::format("\"{}\" is the name of another alarm", r.name));
    }
    if (s.has("above") == s.has("below")) {
      s.fail(s.has("above") ? "below" : "above",
             s.has("above") ? "there is an upper threshold already" : "is missing",
             "give above or below");
    }
    r.above = s.has("above");
    const std::string_view side = r.above ? "above" : "below";
    r.threshold = threshold(s, side, r.signal);
    r.clear = threshold(s, "clear", r.signal, r.threshold);
    if (r.above ? r.clear > r.threshold : r.clear < r.threshold) {
      s.violated("clear", r.above ? "clear <= above" : "clear >= below");
    }
    r.window = static_cast<std::uint32_t>(s.count("window", 1, kLongestWindow, 8));
    if (info(r.signal).summed) {
      if (s.has("statistic")) {
        s.fail("statistic",
               fmt::format("{} is computed from the window's sums", info(r.signal).name));
      }
    } else {
      r.statistic = static_cast<AlarmStatistic>(s.choice("statistic", kAlarmStatisticNames, 0));
      if (r.statistic == AlarmStatistic::kGrowth && r.window < 2) {
        s.violated("window", "window >= 2 for statistic = \"growth\"");
      }
    }
    r.action = static_cast<AlarmAction>(s.choice("action", kAlarmActionNames, 0));
    if (s.has("repeat") && (r.action == AlarmAction::kRecord || r.action == AlarmAction::kPolicy)) {
      s.fail("repeat", fmt::format("means nothing with action = \"{}\"",
                                   kAlarmActionNames[static_cast<std::size_t>(r.action)]));
    }
    if (r.action == AlarmAction::kShed) {
      r.drop = s.count("drop", 0, kMostDropped, 0);
      if (r.drop == 0 && s.has("repeat")) {
        s.fail("repeat", "means nothing with action = \"shed\" and drop = 0");
      }
    } else if (s.has("drop")) {
      s.fail("drop", "means nothing without action = \"shed\"");
    }
    if (r.action != AlarmAction::kRecord && r.action != AlarmAction::kPolicy) {
      r.repeat = static_cast<std::uint32_t>(s.count("repeat", 0, kLongestWindow, 0));
    }
    if (r.action == AlarmAction::kReload && r.signal != HealthSignal::kExpertLatency) {
      s.fail("action", "\"reload\" needs an alarm that names an expert",
             "use signal = \"expert_latency\"");
    }
    if (r.action == AlarmAction::kMigrateKv && r.signal != HealthSignal::kMemory &&
        r.signal != HealthSignal::kGpuBusy) {
      s.fail("action", "\"migrate_kv\" needs an alarm that names a full GPU or a busy one",
             "use signal = \"memory\" or \"gpu_busy\"");
    }
    const Node* file = s.find("policy");
    if (r.action == AlarmAction::kPolicy) {
      if (file == nullptr) s.fail("policy", "is missing", "name a policy file");
      r.policy = policy(*file, s.full_key("policy"));
    } else if (file != nullptr) {
      s.fail("policy", "means nothing without action = \"policy\"");
    }
    rules.push_back(std::move(r));
  }
  return rules;
}

std::vector<AlarmRule> default_alarms(double watermark) {
  const auto rule = [](std::string name, HealthSignal signal, bool above, double threshold,
                       std::uint32_t window, AlarmStatistic statistic) {
    AlarmRule r;
    r.name = std::move(name);
    r.signal = signal;
    r.above = above;
    r.threshold = r.clear = threshold;
    r.window = window;
    r.statistic = statistic;
    r.where = "default";
    return r;
  };
  using H = HealthSignal;
  using S = AlarmStatistic;
  return {rule("gate entropy", H::kGateEntropy, true, 3.2, 16, S::kP95),
          rule("load CV", H::kLoadCv, true, 0.3, 16, S::kMean),
          rule("cold expert", H::kColdExpert, false, 0.3, 16, S::kMean),
          rule("sick expert", H::kExpertLatency, true, 2.5, 4, S::kMean),
          rule("sparsity, high", H::kSparsityRatio, true, 2, 16, S::kMean),
          rule("sparsity, low", H::kSparsityRatio, false, 0.8, 16, S::kMean),
          rule("drops", H::kDropShare, true, 0, 1, S::kMean),
          rule("memory", H::kMemory, true, watermark, 1, S::kMax),
          rule("leak", H::kRuntimeMemory, true, 0.01, 64, S::kGrowth),
          rule("link use", H::kLinkUse, true, 0.9, 4, S::kMean),
          rule("waiting", H::kWaitShare, true, 0.3, 8, S::kMean)};
}

std::vector<AlarmRule> read_alarm_file(const std::string& path) {
  const Node root = load_toml(path, "", path);
  Context context;
  Section top(context, &root, "", {"alarms"}, root);
  if (!top.has("alarms")) {
    throw InputError(path, "holds no [[alarms]]", "see scenarios/README.md, monitor.alarms");
  }
  return alarms_from(context, top.find("alarms"), "alarms", root,
                     [&](const Node& node, const std::string& key) -> RoutingPolicy {
                       if (node.kind != Node::Kind::kString) {
                         throw InputError(node.where(), key + ": expected the name of a file");
                       }
                       const auto file = (node.source->folder / node.text).lexically_normal();
                       return read_policy_file(file.generic_string());
                     });
}

}  // namespace switchyard::scenario
