// SPDX-License-Identifier: Apache-2.0
// File: trace_margins.hpp. How close the router's choices were: per MoE layer, over the rows that
// are not warm-up, the margin between the k-th and the (k+1)-th stored candidate. A program that
// computes the router in another precision or order may choose other experts where the margin is
// about as small as its rounding (engines.md 5, row 10).
//
// margin = value of candidate k - value of candidate k + 1; the value is what candidates are ranked
// by: the raw logit; with a selection bias the score + bias.
//
// Not modelled: margins between groups of experts (a row whose next candidate is of a group that
// was not kept has none); policies that change the choice.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard {

/// What counts as a near tie.
inline constexpr float kNearTie = 1e-4F;

struct LayerMargins {
  std::uint32_t layer = 0;              ///< Number of the layer in the model.
  std::uint64_t rows = 0;               ///< With a margin.
  std::uint64_t near_ties = 0;          ///< Margins below kNearTie.
  std::optional<float> least, p1, p50;  ///< Nearest rank; none without rows.
};

/// [L], then all layers together (its `layer` means nothing).
[[nodiscard]] std::vector<LayerMargins> trace_margins(const RoutingTrace& trace);

}  // namespace switchyard
