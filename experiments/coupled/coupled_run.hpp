// SPDX-License-Identifier: Apache-2.0
// Coupled mode inside one process, for the tables: the engine's traces lie in a folder of the
// caller's, the simulations are in memory. The scenario's exchanges are timed in closed form
// (network.model = "bottleneck"), because SimGrid allows one engine per process.
//
// Not modelled: several processes, policies with weights or tables of their own.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/nn/session.hpp"
#include "engine/nn/trace_run.hpp"
#include "experiments/coupled/coupled.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::coupled {

struct CoupledRun {
  Outcome outcome;
  run::RunData data;  ///< The simulation of the last round's decisions.
};

/// `scenario_text` is TOML whose routing is a trace by any name, cycled or exact; its policy and
/// seed are the engine's as well. All prompts run in one batch with whole prompts. `presets`: the
/// folder with models/ and hardware/; `scratch` exists. rounds >= 1. InputError: what scenario,
/// engine or simulator refuse, and a simulation that breaks a conservation law.
[[nodiscard]] CoupledRun run_coupled(const Engine& engine, std::span<const TracePrompt> prompts,
                                     const std::string& scenario_text, std::uint32_t rounds,
                                     const std::filesystem::path& presets,
                                     const std::filesystem::path& scratch);

/// A simulation of the text as it is, without an engine (its policy is applied by replay).
[[nodiscard]] run::RunData run_alone(const RoutingTrace& trace, const std::string& scenario_text,
                                     const std::filesystem::path& presets);

/// The metric's value; InputError when the run has none of the name.
[[nodiscard]] double metric_of(const run::RunData& run, const std::string& name);

}  // namespace switchyard::coupled
