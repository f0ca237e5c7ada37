// SPDX-License-Identifier: Apache-2.0
// Replay: decide again from the stored candidates with any policy, by calling the same
// switchyard::route_layer() as the engine. With the policy, the seed and the ranks of the recorded
// run the result is that run's decisions, bit for bit.
//
// Not modelled: the effect of a changed decision on later layers. The hidden states, and so the
// candidates, are those of the recorded run; the closed loop (engine with the policy in force) is
// exact. Tables say which of the two they used. With more than 64 experts a trace holds only the
// best few candidates: what a policy might have given to another expert is counted
// (truncated_slots).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/routing/route.hpp"
#include "engine/routing/signal_table.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {

struct ReplayOptions {
  RoutingPolicy policy;
  std::uint64_t seed = 1;
  /// Source rank of each sequence (index of the sequence table); empty: all on rank 0. Borrowed
  /// while the Replayer lives. Only scope = rank looks at it.
  std::span<const std::uint16_t> rank_of_sequence;
  std::uint32_t ranks = 1;                 ///< > every rank.
  const PolicyWeights* weights = nullptr;  ///< Of the files that the policy names; borrowed.
  const SignalTable* signals = nullptr;    ///< As the recorded run had; borrowed.
  const RoutingTable* table = nullptr;     ///< Of policy.table; borrowed.
  /// The options of the recorded run, but for what is borrowed.
  static ReplayOptions recorded(const TraceHeader& header) {
    ReplayOptions options;
    options.policy = header.policy;
    options.seed = header.seed;
    return options;
  }
};

/// Decides step after step and carries each layer's backlog (queue = defer) and what the policy
/// remembers from one to the next.
class Replayer {
 public:
  /// `trace` is borrowed. InputError: the policy does not fit the trace's gate, needs more slots
  /// than the trace has candidates, or what a trace does not hold (require_supply).
  Replayer(const RoutingTrace& trace, const ReplayOptions& options);
  /// Decides all layers of the next step into `decisions` (resized to L). Steps go 0, 1, 2, …;
  /// at most trace.steps() calls (asserted).
  void next_step(std::vector<LayerDecision>& decisions);
  [[nodiscard]] std::uint32_t step() const { return step_; }  ///< The step that comes next.

 private:
  const RoutingTrace& trace_;
  ReplayOptions options_;
  std::uint32_t step_ = 0;
  std::vector<std::vector<std::uint32_t>> backlog_;  // [L], each [E] or [ranks][E].
  RouteWorkspace workspace_;
  RoutingState state_;
  Candidates candidates_;
  std::vector<std::uint16_t> rank_;
  SignalCursor signals_;
};

/// What `policy` makes of the trace's requests, by sequence. InputError(where, …): a prompt's text
/// or first tokens are needed and not in the trace; the table is.
[[nodiscard]] std::vector<RequestInfo> trace_requests(const RoutingTrace& trace,
                                                      const RoutingPolicy& policy,
                                                      const RoutingTable* table,
                                                      const std::string& where);

/// The first tokens of each prompt as far as keys of routing tables need them, by sequence.
/// InputError(where, …): some are not in the trace.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> prompt_prefixes(const RoutingTrace& trace,
                                                                      const std::string& where);

/// Replays the whole trace and replaces its decisions (first, chosen, weights, outcome,
/// truncated_slots); header.policy and header.seed become those of `options`, header.slots grows to
/// what the policy needs.
void replay(RoutingTrace& trace, const ReplayOptions& options);

}  // namespace switchyard
