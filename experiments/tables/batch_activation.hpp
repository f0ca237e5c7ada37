// SPDX-License-Identifier: Apache-2.0
// Table `batch-activation` (C06): the engine decodes B prompts at once and we look at what the
// router did in each decode step.
//
//   rates           the eight definitions per step (engine/model/accounting.hpp), mean over steps;
//                   no capacity limit, so slot_occupancy has no value
//   index_variance  population variance of the B*k chosen ids of a step and layer, mean over both
//   load_cv(W)      population std / mean of the assignments per expert over W tokens, mean over
//                   windows and layers; floor sqrt((1 - k/E) / (W k/E)) of an even router; for
//                   W = B (one step) and W = all tokens of the run
//   entropy         of the load of a step / log2(E), mean over steps and layers
//
// Greedy decoding; an end-of-text token is fed back like any other, so that B stays what it says.
// Prefill is not counted. Not modelled: capacity limits (table `account` shows what they change).
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/model/accounting.hpp"
#include "engine/nn/session.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

using TokenPrompt = std::vector<std::uint32_t>;

/// What one run of B sequences showed.
struct BatchRow {
  std::uint32_t batch = 0;
  std::uint32_t steps = 0;
  model::ActivationRates rates{};
  double index_variance = 0;
  double cv_step = 0, cv_step_floor = 0;  ///< W = B
  double cv_run = 0, cv_run_floor = 0;    ///< W = B * steps
  double entropy = 0;
};

/// Decodes `prompts` together for `steps` steps, >= 1. The engine's model has MoE layers.
[[nodiscard]] BatchRow decode_batch(const Engine& engine, std::span<const TokenPrompt> prompts,
                                    std::uint32_t steps);

struct BatchRun {
  std::vector<BatchRow> distinct;  ///< B different prompts.
  std::vector<BatchRow> copies;    ///< B copies of the first prompt.
  std::string subject;             ///< Model and weight hash.
  std::uint32_t experts = 0, top_k = 0;
};
/// The first B prompts for each B of `batches`, ascending; there are enough of them.
[[nodiscard]] BatchRun run_batches(const Engine& engine, std::span<const TokenPrompt> prompts,
                                   std::span<const std::uint32_t> batches, std::uint32_t steps);

[[nodiscard]] claims::Measurements measure_batch_activation(
    const BatchRun& run, const std::vector<claims::Claim>& claims);
[[nodiscard]] std::vector<Table> batch_activation_tables(const BatchRun& run,
                                                         const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
