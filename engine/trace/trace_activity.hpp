// SPDX-License-Identifier: Apache-2.0
// What each step of a routing trace asked of the experts (M59), and how alike the tokens of an
// expert are.
//
// A step is prefill, decode or mixed by the rows it holds; warm-up rows are left out, and steps of
// nothing else. touched: experts with >= 1 token that ran there (kept + rerouted), summed over
// layers. capacity: C of the recorded policy, where one C holds for the step.
//
// Cohesion: cohesion.hpp; here of all tokens of the trace.
//
// Not modelled: C of policies that count by groups of tokens, of tutel with factor <= 0 and of
// policies other than capacity: no value. Ranks: a trace is of one.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard {

enum class StepMix : std::uint8_t { kPrefill, kDecode, kMixed };

struct StepActivityRow {
  std::uint32_t step = 0;
  StepMix mix = StepMix::kDecode;
  std::uint64_t tokens = 0, sequences = 0;
  std::uint64_t accepted = 0;             ///< Kept + rerouted, all layers.
  std::uint64_t touched = 0;              ///< Summed over layers.
  std::uint64_t busiest = 0;              ///< Most tokens of one expert in one layer.
  std::uint32_t fewest = 0, most = 0;     ///< Touched experts of one layer.
  std::optional<std::uint64_t> capacity;  ///< Unset: no limit, or not one for the step.
};

struct TraceActivity {
  std::vector<StepActivityRow> steps;
  /// How many (step, layer, expert) got 0, 1, 2-3, 4-7, … tokens: [0] none, [i] 2^(i-1) … 2^i - 1.
  std::vector<std::uint64_t> histogram;
};
/// The trace must have its decisions (asserted).
[[nodiscard]] TraceActivity trace_activity(const RoutingTrace& trace);

struct Cohesion {
  std::uint32_t layer = 0;                     ///< Number of the last MoE layer.
  std::vector<std::optional<double>> experts;  ///< [E]; no value for fewer than two tokens.
  std::optional<double> mean, baseline;        ///< Mean over experts with a value.
};
/// No value without router_input (read it with TraceReadOptions::router_input or last_input).
[[nodiscard]] std::optional<Cohesion> trace_cohesion(const RoutingTrace& trace,
                                                     std::uint64_t seed = 1);

}  // namespace switchyard
