// SPDX-License-Identifier: Apache-2.0
// `trace --signals RUN.h5`: the memory levels, placement and step times of a simulated run, as the
// policies of the engine read them.
//
//   start(s)   = start of the run's step s
//   used(s)    = memory that outlives a step (weights, experts, KV, runtime) at the end of step s -
//   1
//                / capacity; of step 0: without the KV cache
//   elastic(s) = the KV part of it / (capacity - the rest)
//
// Not modelled: samples within a step.
#pragma once
#include <filesystem>

#include "engine/routing/signal_table.hpp"

namespace switchyard::cli {

/// InputError: no run file, a run at detail "summary", without steps, or whose experts and MoE
/// layers are not the model's.
[[nodiscard]] SignalTable read_signals(const std::filesystem::path& run, std::uint32_t layers,
                                       std::uint32_t experts);

}  // namespace switchyard::cli
