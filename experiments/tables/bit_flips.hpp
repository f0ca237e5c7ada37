// SPDX-License-Identifier: Apache-2.0
// The table `bit-flips`: one bit of one expert weight flips; does the norm (5 %), a check for NaN,
// or a CRC notice, and what does it do to the logits (claim C18, mechanisms M29 and M62)?
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/session.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// All draws of one bit position.
struct FlipRow {
  std::string dtype;  ///< "bf16", "fp16": how expert weights are stored.
  unsigned bit = 0;   ///< 15: sign.
  std::uint32_t draws = 0;
  std::uint32_t by_norm = 0, not_finite = 0, by_crc = 0;  ///< Of the draws.
  std::uint32_t runs = 0;                                 ///< Draws that the model ran with.
  std::uint32_t rerouted = 0;          ///< Runs in which a token's top-k set changed in a layer.
  std::uint32_t other_token = 0;       ///< Runs in which a position's best token changed.
  std::vector<double> norm_change{};   ///< |norm / norm before - 1| of each draw; infinity for NaN.
  std::vector<double> logit_change{};  ///< Largest |difference| of a logit in each run.
};

/// Draws weights of routed experts evenly over tensors, then over their values, by a fixed seed.
/// The first `runs` of each position's draws run over `tokens` (one sequence). `engine` is loaded
/// with 2-byte expert weights and is as before afterwards.
[[nodiscard]] std::vector<FlipRow> flip_bits(Engine& engine, const std::string& dtype,
                                             std::span<const std::uint32_t> tokens,
                                             std::uint32_t draws, std::uint32_t runs);

[[nodiscard]] claims::Measurements measure_bit_flips(const std::vector<FlipRow>& rows);
[[nodiscard]] std::vector<Table> bit_flip_tables(const std::vector<FlipRow>& rows,
                                                 const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
