// SPDX-License-Identifier: Apache-2.0
// Where the simulated tokens' candidates come from: a routing trace, or a synthetic law. Either way
// a layer's candidates go through switchyard::route_layer with the scenario's policy, so capacity,
// drops and reroutes are computed, never assumed.
//
// Trace. The tokens of the workload's phase (decode rows, or prefill rows) form one pool in trace
// order, and one list per trace sequence. Simulated sequence b follows trace sequence b mod S from
// row 997·(b div S), one row per new token, and starts again at its first row when it reaches the
// end; reused() tells whether any row was taken twice. `cycle`: MoE layer l of the model reads
// trace layer l mod L_trace at pool row + 997·(l div L_trace), modulo the pool.
//
// Requests that arrive (serving) have both pools, their prompts' tokens follow the one and their
// answers' the other: request b < S follows sequence b, a later one a sequence drawn with the seed,
// both from its first row.
//
// Synthetic: synthetic_routing.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/routing/candidates.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/policy.hpp"
#include "engine/trace/trace.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// The tokens of one step in canonical order (sequence, position).
struct StepTokens {
  std::vector<std::uint32_t> sequence, position;
  std::vector<std::uint8_t> phase;
  std::vector<std::uint16_t> rank;  ///< GPU that owns the token.
  /// Row of its sequence that the token follows in a trace, counted within the prompt's rows or the
  /// answer's; `answer` says which (1: the answer's).
  std::vector<std::uint32_t> ordinal;
  std::vector<std::uint8_t> answer;
  [[nodiscard]] std::size_t size() const { return sequence.size(); }
};

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  /// What a caller reads of the candidates. kChosen: the ids of the scenario policy's slots, rows
  /// may be no wider. kRanked: all ids that are at hand (all_candidates() may have more). kScored:
  /// logit and lse too, and logits(), and the ids of all experts if the source knows them; the
  /// other two leave these empty. The ids are the same under each.
  enum class Need : std::uint8_t { kChosen, kRanked, kScored };
  /// Candidates of every token of the step in MoE layer `layer` (index among MoE layers).
  virtual void candidates(const StepTokens& tokens, std::uint32_t layer, Candidates& out,
                          Need need) = 0;
  /// Whether all_candidates() may be called: a law knows all experts, a trace its M.
  [[nodiscard]] virtual bool knows_all() const = 0;
  /// All E experts of token t, best first; those of candidates() come first.
  virtual void all_candidates(const StepTokens& tokens, std::uint32_t layer, std::uint32_t t,
                              std::span<std::uint16_t> ids) = 0;
  /// Sequence of the trace that simulated sequence b follows; no value: a synthetic request.
  [[nodiscard]] virtual std::optional<std::uint32_t> trace_sequence(std::uint32_t b) const = 0;
  /// Row of the trace whose candidates token t has in layer `layer`; no value: synthetic.
  [[nodiscard]] virtual std::optional<std::uint64_t> trace_row(const StepTokens& /*tokens*/,
                                                               std::uint32_t /*layer*/,
                                                               std::uint32_t /*t*/) const {
    return std::nullopt;
  }
  /// All E logits of the last call's tokens, [T][E], or empty when only the candidates are known.
  [[nodiscard]] virtual std::span<const float> logits() const = 0;
  /// Selection bias of the layer, [E] or empty.
  [[nodiscard]] virtual std::span<const float> gate_bias(std::uint32_t layer) const = 0;
  [[nodiscard]] virtual const GateSpec& gate() const = 0;
  /// Mean over the last call's tokens of the entropy of the gate's softmax over all E (synthetic:
  /// of the law's p), in bits; NaN when the source cannot tell.
  [[nodiscard]] virtual double mean_entropy() const = 0;
  /// One line for the run and every table.
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual bool reused() const = 0;
};

/// `trace` is borrowed and must outlive the source (null for synthetic routing). Throws InputError
/// when trace and model disagree (E, k, MoE layer count under `exact`), or when the trace has no
/// row of the workload's phase.
std::unique_ptr<RoutingSource> make_routing_source(const scenario::Scenario& scenario,
                                                   const RoutingTrace* trace);

}  // namespace switchyard::sim
