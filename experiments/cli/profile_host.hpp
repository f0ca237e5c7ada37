// SPDX-License-Identifier: Apache-2.0
// The host's own time per step and per sequence (simulation.md §1: host_us): what the engine's loop
// over decoding steps takes outside of the backend's calls. That is scheduling, batches, routing
// decisions, sampling where the backend leaves it to the host, bookkeeping. Launches are not among
// them: they are in the calls, and the simulator charges kernel_launch for each.
//
//   time(n sequences) = overhead + per_sequence · n      fitted to medians of whole steps
//
// Measured on a model of the same layers, experts, top-k and vocabulary whose hidden and inner
// sizes are small and whose weights are random: nothing that the host does depends on them.
//
// Not modelled: steps with prompts (a prompt's rows are decided by the host, too); an API server,
// tokenisation, detokenisation; host work that overlaps with a device's queue counts in full.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "engine/model/model_config.hpp"
#include "experiments/cli/timed_backend.hpp"
#include "sim/scenario/calibration.hpp"

namespace switchyard::cli {

struct HostScope {
  std::vector<std::size_t> sequences{1, 2, 4, 8, 16, 32, 64};  ///< Ascending, >= 1.
  std::size_t steps = 33;                                       ///< Decoding ones of each, >= 1.
};

/// Table `host` with a point for each number of sequences and the straight line through them, for
/// any launch mode. GQA. `backend` outlives the call. InputError: the engine cannot run the model.
[[nodiscard]] scenario::OpTable measure_host(Backend& backend, const model::ModelConfig& model,
                                             const HostScope& scope, const std::string& library);

}  // namespace switchyard::cli
