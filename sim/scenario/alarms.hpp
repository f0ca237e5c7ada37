// SPDX-License-Identifier: Apache-2.0
// Alarms: which series of a run is watched, when an alarm is raised and cleared, and what is done
// then (M39, M56). The same rules serve a scenario ([[monitor.alarms]], acting while it runs) and a
// finished run (`switchyard monitor --alarms FILE`, where actions are only named).
//
//   [[alarms]]                      # in a file of its own; [[monitor.alarms]] in a scenario
//   signal = "memory"               # kHealthSignals
//   above = "95 %"                  # or below; a text with a unit for times and shares
//   clear = "90 %"                  # default: the threshold itself (no hysteresis)
//   window = 8                      # steps
//   statistic = "mean"              # mean | max | min | p95 | growth (last - first)
//
// An alarm is raised at the end of a step when the window is full and its statistic is beyond the
// threshold (strictly), and cleared when the statistic is no longer beyond `clear`.
//
// Not modelled: alarms on single requests, alarms that compare two series.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/policy.hpp"

namespace switchyard::scenario {

/// Series of a run, one value per step; definitions: kHealthSignals.
enum class HealthSignal : std::uint8_t {
  kStepTime,
  kImbalance,
  kLoadCv,
  kColdExpert,
  kExpertLatency,
  kDropShare,
  kOverflowShare,
  kLongestQueue,
  kGateEntropy,
  kExpertFraction,
  kMemory,
  kRuntimeMemory,
  kLinkUse,
  kLinkSpread,
  kWaitShare,
  kSparsityRatio,
  kGpuBusy,
  kCohesion,
  kCohesionBaseline,
};
inline constexpr std::size_t kHealthSignalCount = 19;
enum class SignalUnit : std::uint8_t { kTime, kShare, kRatio, kCount, kBits, kCosine };

struct HealthSignalInfo {
  std::string_view name;
  SignalUnit unit;
  /// Computed from the experts' counters summed over the window, so it takes no statistic.
  bool summed;
  std::string_view definition;
};
inline constexpr std::array<HealthSignalInfo, kHealthSignalCount> kHealthSignals{{
    {"step_time", SignalUnit::kTime, false, "duration of the step"},
    {"imbalance", SignalUnit::kRatio, false, "max/mean over GPUs of assignments, mean over layers"},
    {"load_cv", SignalUnit::kRatio, true,
     "std/mean over experts of the window's kept assignments, mean over layers"},
    {"cold_expert", SignalUnit::kRatio, true,
     "kept assignments of the least used expert / mean of its layer, least over layers"},
    {"expert_latency", SignalUnit::kRatio, true,
     "kernel time per step of the slowest expert / mean of its layer, largest over layers"},
    {"drop_share", SignalUnit::kShare, false, "dropped / assignments"},
    {"overflow_share", SignalUnit::kShare, false, "first choices that found it full / assignments"},
    {"longest_queue", SignalUnit::kCount, false, "most assignments beyond capacity at one expert"},
    {"gate_entropy", SignalUnit::kBits, false, "of softmax over all experts, mean over tokens"},
    {"expert_fraction", SignalUnit::kShare, false,
     "assignments that ran / (tokens layers experts)"},
    {"memory", SignalUnit::kShare, false, "high water / memory, fullest GPU"},
    {"runtime_memory", SignalUnit::kShare, false,
     "memory that is no weight, KV page, activation or buffer / memory, largest over GPUs"},
    {"link_use", SignalUnit::kShare, false, "bytes / (bandwidth step time), busiest link"},
    {"link_spread", SignalUnit::kShare, false, "std over links of that share"},
    {"wait_share", SignalUnit::kShare, false, "time GPUs wait for others / (GPUs step time)"},
    {"sparsity_ratio", SignalUnit::kRatio, false,
     "experts that ran per token and layer / the model's top k (expert parameters of a token / "
     "param_narrow)"},
    {"gpu_busy", SignalUnit::kShare, false,
     "time a GPU computes or exchanges / step time, busiest GPU"},
    {"cohesion", SignalUnit::kCosine, false,
     "mean cosine of the hidden states of an expert's tokens, mean over experts; of traces with "
     "--router-input"},
    {"cohesion_baseline", SignalUnit::kCosine, false, "cohesion of as many random tokens"},
}};

/// Signals that only a run of a trace with hidden states has.
constexpr bool of_hidden_states(HealthSignal s) {
  return s == HealthSignal::kCohesion || s == HealthSignal::kCohesionBaseline;
}

enum class AlarmStatistic : std::uint8_t { kMean, kMax, kMin, kP95, kGrowth };
inline constexpr std::array<std::string_view, 5> kAlarmStatisticNames{"mean", "max", "min", "p95",
                                                                      "growth"};

/// What a simulation does when an alarm is raised (sim/loop/alarm_actions.cpp).
enum class AlarmAction : std::uint8_t {
  kRecord,  ///< Nothing but the event.
  kPolicy,  ///< Routes with another policy until the alarm is cleared (k3, reroute, temperature).
  kMigrateKv,  ///< Moves a sequence from the GPU that the alarm names (the fullest, the busiest) to
               ///< the emptiest or idlest; KV travels over the links.
  kReclaim,    ///< Frees leaked memory (a watchdog restarts what leaked).
  kReload,     ///< Loads the expert anew that the alarm names (a slow or damaged one).
  kShed,       ///< Rejects new requests until the alarm is cleared, and some that wait.
};
inline constexpr std::array<std::string_view, 6> kAlarmActionNames{
    "record", "policy", "migrate_kv", "reclaim", "reload", "shed"};

struct AlarmRule {
  std::string name;  ///< For people; default: the signal's name. Unique.
  HealthSignal signal = HealthSignal::kStepTime;
  bool above = true;     ///< false: raised when the statistic is below the threshold.
  double threshold = 0;  ///< Times in seconds, shares and ratios as fractions.
  double clear = 0;
  std::uint32_t window = 8;  ///< Steps, > 0.
  AlarmStatistic statistic = AlarmStatistic::kMean;
  AlarmAction action = AlarmAction::kRecord;
  /// Steps after which the action is taken again while the alarm stands; 0: once.
  std::uint32_t repeat = 0;
  std::uint64_t drop = 0;  ///< kShed: waiting requests to reject each time the action is taken.
  RoutingPolicy policy;    ///< kPolicy only.
  std::string where;       ///< Place of the rule, for messages.
};

/// What the articles call healthy (M39), without actions: gate entropy p95 > 3.2 bits, load_cv >
/// 0.3, an expert below 30 % of the mean or slower than 2.5x it, any drop, memory above the
/// watermark, a link above 90 %, expert parameters per token outside param_narrow x [0.8, 2],
/// growth of unexplained memory by 1 % of a GPU in 64 steps.
std::vector<AlarmRule> default_alarms(double watermark);

/// "0.35", "12.5 %", "431 us": a signal's value with its unit.
std::string show_signal(HealthSignal signal, double value);

/// Reads a file of [[alarms]]. Throws InputError with the place.
std::vector<AlarmRule> read_alarm_file(const std::string& path);

}  // namespace switchyard::scenario
