// SPDX-License-Identifier: Apache-2.0
// How alike the tokens of an expert are in one step of a simulation (engine/trace/cohesion.hpp),
// from the hidden states of the trace rows that its tokens follow. Experts are those that the
// simulation's policy decides in the last MoE layer, whether or not a token then waits for one;
// vectors are of the trace's last MoE layer, centred by all of the trace.
//
// Not modelled: rows that several sequences of a step follow count once for each.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/decide.hpp"
#include "engine/trace/cohesion.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::sim {

class StepCohesion {
 public:
  /// `trace` is borrowed; has_token_vectors(trace) (asserted).
  StepCohesion(const RoutingTrace& trace, std::uint32_t experts, std::uint64_t seed)
      : vectors_(trace), seed_(seed), members_(experts) {}
  void begin_step();
  /// Tokens of the step, or of a part of it, as layer `moe` decided them.
  void add(const RoutingSource& source, const StepTokens& tokens, std::uint32_t moe,
           const LayerDecision& decision);
  /// Sets cohesion and its baseline; NaN where no expert has two tokens.
  void finish(std::uint64_t step, run::StepScalars& out) const;

 private:
  TokenVectors vectors_;
  std::uint64_t seed_;
  std::uint64_t tokens_ = 0;
  std::vector<float> units_;
  std::vector<std::vector<std::uint64_t>> members_;  // [E]
};

/// Adds the run's mean cohesion and baseline, each over the steps that have one and are no warm-up.
void note_cohesion(run::RunData& run);

}  // namespace switchyard::sim
