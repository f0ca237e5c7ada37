// SPDX-License-Identifier: Apache-2.0
// The step loop (equations and a worked example: sim/README.md).
//
// A step: host → embedding → per layer [ attention → router → dispatch → experts → combine ] (dense
// layers: attention → FFN) → head. Every GPU has its own clock, an integer number of picoseconds;
// local work advances one clock, an exchange advances the clocks of its members. Overflow waves add
// passes of the expert phase. Shared experts run beside dispatch.
//
// parallel.rebalance: between two steps experts may move; the moves are an exchange like the
// others.
//
// attention = "tp": GPUs in groups of tp share the heads (shard.hpp); each layer has an all-reduce
// after attention and one after the experts or the dense FFN, phase "collective", and no dispatch.
//
// memory.residency: experts that are not on the GPU are asked for when the router has decided and
// travel beside dispatch; the experts of the layer wait for them (expert_loads.cpp).
//
// Requests that arrive: sim/serving plans the steps; replicas step by themselves.
//
// Not modelled: pipelines that do not drain, transfers to a router or between stages on links that
// exchanges use, the time of a policy's own steps (noise, penalties, a new placement: far below the
// router's GEMM). A policy sees memory levels as they are when the step begins, or as of
// memory.sample_every. sim/README.md has the whole list.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/routing/signal_table.hpp"
#include "engine/trace/trace.hpp"
#include "sim/memory/ledger.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// Where the steps of a simulation go.
class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual void begin(run::RunMeta meta, run::Inventory inventory) = 0;
  virtual void append(const run::StepRecord& step) = 0;
  /// For events, the critical path and metrics of the simulator's own.
  virtual run::RunData& data() = 0;
  /// Adds the metrics, checks the conservation laws, and completes the output.
  virtual std::vector<run::Violation> finish() = 0;
};

/// Writes a run file: it appears when finish() succeeds.
std::unique_ptr<RunSink> file_sink(const std::filesystem::path& target);
/// Keeps the run in memory; data() is the whole run after finish().
std::unique_ptr<RunSink> memory_sink();

struct SimulationResult {
  /// Conservation laws that do not hold; empty for a sound run.
  std::vector<run::Violation> violations;
  /// Lines a reader of the results should know ("trace rows re-used", …).
  std::vector<std::string> notes;
  std::string policy;  ///< That the tokens were routed by at the start, key=value.
};

/// What coupled mode adds to a simulation.
struct SimulationExtras {
  /// Filled with what the policy saw, step by step (steps without a token left out): the input of
  /// `trace --signals`. Null: not kept. InputError for a dense model, prefill replicas, and layers
  /// of a cycled trace that share a trace's layer and not its placement.
  SignalTable* signals = nullptr;
  MemoryLedger::Watch memory;        ///< Told of every allocation and free; empty: nobody is.
  std::string policy_way;            ///< In place of "replay"; empty: as it is.
  std::string routing_note;          ///< Added to the run's line about its routing.
  std::vector<run::Metric> metrics;  ///< Added to the run's.
  std::vector<std::string> notes;    ///< Before the simulation's own.
};

/// Called after each step with (steps done, steps in all, simulated time in ps).
using ProgressCallback = std::function<void(std::uint64_t, std::uint64_t, std::int64_t)>;

/// Simulates into `sink`. `trace` may be null for synthetic routing; borrowed for the call.
/// `trace_hash` names the trace in the run. Throws InputError for combinations that are not
/// supported.
SimulationResult simulate(const scenario::Scenario& scenario, const RoutingTrace* trace,
                          const std::string& trace_hash, RunSink& sink,
                          const ProgressCallback& progress = {},
                          const SimulationExtras& extras = {});

/// Throws what simulate() would refuse before its first step, at the place of the key that is to
/// blame: weights that leave no room for KV pages, policies that the requests cannot serve, …
/// Computes no step. `trace`: of a scenario that replays one, borrowed for the call; null where it
/// is not there: then such a scenario is checked as far as the trace is not needed.
void check_scenario(const scenario::Scenario& scenario, const RoutingTrace* trace = nullptr);

}  // namespace switchyard::sim
