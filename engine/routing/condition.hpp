// SPDX-License-Identifier: Apache-2.0
// What the gate sees of a hidden state: M47's LayerNorm and M10's jitter, before step 1 of the
// pipeline. The experts see the hidden state as it is.
#pragma once
#include <cstdint>
#include <span>

#include "engine/routing/decide.hpp"

namespace switchyard {

/// Each row of `x` [T][width] becomes (x - mean) / sqrt(var + 1e-5), var the population variance;
/// sums in double in index order.
void layer_norm_rows(std::span<float> x, std::size_t width);

/// x[t][i] *= 1 - eps + 2 eps U, U keyed by (seed, "jitter", sequence, layer, position, i). `step`
/// has sequence and position of every row.
void jitter_rows(std::span<float> x, std::size_t width, double eps, const StepContext& step);

}  // namespace switchyard
