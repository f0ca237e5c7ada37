// SPDX-License-Identifier: Apache-2.0
// Which GPUs hold an expert. An expert may stand on several (replicas that EPLB or a placement file
// made, one per replica of the server, one per group of GPUs); the placement table lists them, the
// first one first. Of all layers together the table of the first MoE layer is meant.
// The table is that of the run's beginning (FORMAT.md); from when on it does not hold, events say.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "gui/core/runstore.hpp"

namespace switchyard::gui {

/// GPUs that hold the expert, first replica first, each once. Empty: nowhere.
[[nodiscard]] std::vector<std::uint32_t> placesOf(const run::Inventory& inventory,
                                                  std::uint32_t layer, std::uint32_t expert);

/// GPUs that hold the expert's first replica in some MoE layer, in the order of the layers: with
/// stages one per stage.
[[nodiscard]] std::vector<std::uint32_t> firstPlaces(const run::Inventory& inventory,
                                                     std::uint32_t expert);

/// A row of the heat map.
struct HeatRow {
  std::uint32_t expert = 0;
  std::uint32_t gpu = run::kNone;  ///< That the row stands for; kNone = nowhere.
  bool copy = false;               ///< Not the first replica.
};
/// By GPU: the experts whose first replica it holds, ascending, then its copies of experts that
/// stand first on another GPU of the same engine. GPUs that hold nothing but copies have no rows,
/// and neither have copies in other engines: those run steps of their own.
[[nodiscard]] std::vector<HeatRow> rowsByGpu(const RunStore& run, std::uint32_t layer);

/// Steps [from, to) in which a GPU is lost (a fault event "gpu_loss"): its experts stand elsewhere.
struct LostGpu {
  std::uint32_t gpu = run::kNone;
  std::uint64_t from = 0, to = 0;
};
/// In the order of the events; one that never comes back is lost to the run's end.
[[nodiscard]] std::vector<LostGpu> lostGpus(const RunStore& run);

/// Step of the first rebalance: from then on the table is not what the run had. None: never.
[[nodiscard]] std::optional<std::uint64_t> movedSince(const RunStore& run);

}  // namespace switchyard::gui
