// SPDX-License-Identifier: Apache-2.0
// What the inspector says of a range of steps: sums, and who stands out.
#pragma once
#include <cstdint>
#include <vector>

#include <QString>

#include "gui/models.hpp"

namespace switchyard::gui {

inline constexpr const char* kImbalanceTip =
    "imbalance = max/mean of the assignments run on each GPU; 1 is balanced";

/// "12 (3.4 %)"; without the share when there is nothing to take it of.
QString withShare(std::uint64_t n, std::uint64_t all);

/// Rows of single steps are read for the busiest link, the expert and the GPU: of at most
/// kCapacitySteps steps. `expert`, `gpu`: run::kNone for none. The run must have steps, the range
/// lies in it and is not empty. InputError where a page of the file is damaged.
std::vector<InspectorModel::Row> rowsOverRange(const RunStore& run, StepRange range,
                                               std::uint32_t expert, std::uint32_t layer,
                                               std::uint32_t gpu);

}  // namespace switchyard::gui
