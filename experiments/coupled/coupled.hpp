// SPDX-License-Identifier: Apache-2.0
// Coupled mode (architecture.md, "Three ways to apply a policy"): engine and simulator in turns
// until the decisions are stable.
//
//   round 0      the engine runs without signals: with the policy, or with none when the policy
//                cannot do without (policy_needs: memory, placement, clock)
//   round r >= 1 the simulation of round r - 1's trace says what the machine was like in each step;
//                the engine runs again with these signals and the policy
//   changed      decisions of a round whose chosen experts differ from those of the round before
//   end          no decision changed: converged, and the trace is a fixed point: its simulation
//                gives the signals that it was made with. Or a round whose trace is that of an
//                earlier one: it oscillates for ever. Or `rounds` are over: not converged.
//
// Of several replicas each sequence sees the one that computed it in the simulation of the round
// before (signal_table.hpp); in round 0 the engine runs all of them together.
//
// A decision is the set of experts of one token row in one MoE layer; rows are the same when
// sequence and position are. A row that only one of the two traces has (another token ended a
// sequence) is changed in every layer.
//
// Not modelled: the engine's batches are its own, not the simulator's (signal_table.hpp says how
// steps are paired); damping of the signals between rounds; prefill replicas (refused by name): a
// sequence's prompt and answer would see two machines.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/routing/signal_table.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::coupled {

struct Changes {
  std::uint64_t changed = 0;
  std::uint64_t compared = 0;  ///< Rows of either trace x MoE layers.
  bool operator==(const Changes&) const = default;
};
/// Both traces have decisions and the same number of MoE layers (asserted).
[[nodiscard]] Changes changed_decisions(const RoutingTrace& before, const RoutingTrace& after);

/// Whether the engine cannot run the policy without signals.
[[nodiscard]] bool needs_signals(const RoutingPolicy& policy);

struct Hooks {
  /// The engine's trace; `signals` is null in round 0.
  std::function<RoutingTrace(std::uint32_t round, const SignalTable* signals)> engine;
  /// What the policy saw when the trace was simulated.
  std::function<SignalTable(std::uint32_t round, const RoutingTrace& trace)> simulate;
};

struct Outcome {
  RoutingTrace trace;           ///< Of the last round.
  std::vector<Changes> rounds;  ///< Of rounds 1, 2, …
  bool converged = false;
  /// The earlier round whose trace the last one is: the rounds between them repeat for ever.
  std::optional<std::uint32_t> repeats;
};

/// `rounds` >= 1 (asserted). Both hooks must be functions of their arguments.
[[nodiscard]] Outcome couple(const Hooks& hooks, std::uint32_t rounds);

/// "converged in round 2 (changed decisions: 812, 0 of 4096)", or why not.
[[nodiscard]] std::string describe(const Outcome& outcome);

}  // namespace switchyard::coupled
