// SPDX-License-Identifier: Apache-2.0
// One run as the panes see it: levels of detail in memory, rows of single steps on demand.
// Opened from a file (RunReader; step blocks are read when a pane zooms in and kept up to a byte
// budget) or from a RunData in memory. No Qt.
//
// Of a file, levels 1 and coarser are held: at most 1/7 of the rows (lod.hpp). A layer's levels are
// read when it is first shown.
// Threads: one at a time (a store may be made in one thread and used in another); the caches change
// behind const functions. Errors: InputError, also later when a block cannot be read. Not modelled:
// reading of step blocks in the background.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::gui {

/// Share of the work done so far, 0 … 1, never falling. What it throws ends the loading.
using LoadProgress = std::function<void(double)>;

/// A layer index into moe_layers, or the sum over layers.
inline constexpr std::uint32_t kAllLayers = run::kNone;

/// Expert numbers of one step, each of length E; borrowed until the next call on the store.
struct ExpertRow {
  const std::uint32_t* kept = nullptr;
  const std::uint32_t* overflow = nullptr;
  const std::uint32_t* rerouted_in = nullptr;
  const std::uint32_t* queued = nullptr;
  const std::uint32_t* dropped = nullptr;
  const std::uint32_t* capacity = nullptr;
  const float* fill = nullptr;
};
/// An expert's place: row of the heat map.
struct ExpertPlace {
  std::uint32_t expert = 0;
  std::uint32_t gpu = run::kNone;  ///< Of the first replica; kNone = nowhere.
};

class RunStore {
 public:
  /// InputError for a missing, foreign, truncated, damaged or newer file.
  explicit RunStore(const std::filesystem::path& path, const LoadProgress& progress = {});
  /// `name` stands where a file name would. The run must be complete for its detail.
  RunStore(std::shared_ptr<const run::RunData> run, std::string name);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  [[nodiscard]] const std::string& name() const { return m_name; }
  /// Empty for a run in memory.
  [[nodiscard]] const std::filesystem::path& path() const { return m_path; }
  /// Meta, inventory, totals, metrics, notes, events; scalars where hasSteps().
  [[nodiscard]] const run::RunData& data() const { return *m_data; }
  [[nodiscard]] std::uint64_t steps() const { return m_data->totals.steps; }
  [[nodiscard]] std::uint32_t experts() const { return m_data->inventory.experts; }
  [[nodiscard]] std::size_t gpus() const { return m_data->inventory.gpus.size(); }
  [[nodiscard]] std::size_t links() const { return m_data->inventory.links.size(); }
  [[nodiscard]] bool hasSteps() const { return m_data->meta.detail >= run::Detail::kSteps; }
  [[nodiscard]] bool hasLayers() const { return m_data->meta.detail >= run::Detail::kLayers; }
  /// Whether any expert ever had a capacity (fill is NaN otherwise).
  [[nodiscard]] bool hasCapacity() const;

  [[nodiscard]] const run::RunLod& lod() const { return m_data->lod; }
  /// Levels of the sum or of one layer (needs hasLayers()).
  [[nodiscard]] const run::ExpertLod& expertLod(std::uint32_t layer) const;

  // Rows of one step; need hasSteps(), a layer needs hasLayers().
  [[nodiscard]] ExpertRow expertRow(std::uint32_t layer, std::uint64_t step) const;
  /// [G*P] ps.
  [[nodiscard]] const std::int64_t* gpuPhases(std::uint64_t step) const;
  /// [K] bytes.
  [[nodiscard]] const std::uint64_t* linkBytes(std::uint64_t step) const;
  /// [G*C] bytes, and [G] bytes: high water of each category, and of their sum.
  [[nodiscard]] const std::uint64_t* gpuMemory(std::uint64_t step) const;
  [[nodiscard]] const std::uint64_t* gpuMemoryPeak(std::uint64_t step) const;
  /// Rows of data().reroutes that belong to the steps [first, end), as [begin, end) indices.
  [[nodiscard]] std::pair<std::size_t, std::size_t> rerouteRows(std::uint64_t first,
                                                                std::uint64_t end) const;
  /// Share of capacity of link k in one step.
  [[nodiscard]] double linkUse(std::uint64_t step, std::size_t k) const;

  /// Start of the step in ps; of the bin that holds it where the file has no steps.
  [[nodiscard]] std::int64_t startPs(std::uint64_t step) const;
  /// All starts; empty without hasSteps().
  [[nodiscard]] std::vector<std::int64_t> starts() const;

  /// Experts sorted by GPU, then by number; in the sum over layers, placement of the first layer.
  [[nodiscard]] std::vector<ExpertPlace> expertOrder(std::uint32_t layer) const;
  /// Whether the layers' placements differ.
  [[nodiscard]] bool placementVaries() const;

  /// Events in time order as the file has them.
  [[nodiscard]] const std::vector<run::Event>& events() const { return m_data->events; }
  /// Bytes of step blocks held now.
  [[nodiscard]] std::uint64_t cachedBytes() const { return m_cachedBytes; }

 private:
  struct Block;
  enum class Kind { kExperts, kGpus, kLinks };
  const Block& block(Kind kind, std::uint32_t layer, std::uint64_t step) const;

  std::string m_name;
  std::filesystem::path m_path;
  std::shared_ptr<const run::RunData> m_data;
  std::unique_ptr<run::RunReader> m_reader;  // null for a run in memory
  mutable std::vector<std::unique_ptr<run::ExpertLod>> m_layerLods;
  mutable std::list<Block> m_blocks;  // most recently used first
  mutable std::uint64_t m_cachedBytes = 0;
};

}  // namespace switchyard::gui
