// SPDX-License-Identifier: Apache-2.0
// One run as the panes see it: scalars of steps in memory, everything else in pages on demand.
// Opened from a file (RunReader) or from a RunData in memory. No Qt.
//
// Of a file, a page is one column of the steps that lie together in the file, or one array of the
// bins of a level of detail, about 128 KiB to 1 MiB. Pages are kept up to a byte budget, the one
// longest unused goes first. So opening a run and its first picture do not read what is not shown,
// however many layers and steps there are; a layer costs nothing until it is chosen.
// Threads: one at a time (a store may be made in one thread and used in another); the caches change
// behind const functions. Errors: InputError, also later when a page cannot be read. Not modelled:
// reading of pages in the background; scalars, events, requests and reroutes are read whole.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/hash.hpp"
#include "sim/run/run_data.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::gui {

/// Share of the work done so far, 0 … 1, never falling. What it throws ends the loading.
using LoadProgress = std::function<void(double)>;

/// A layer index into moe_layers, or the sum over layers.
inline constexpr std::uint32_t kAllLayers = run::kNone;

/// Columns of an ExpertRow to read; those left out stay null.
enum ExpertColumns : unsigned {
  kKeptColumn = 1,
  kOverflowColumn = 2,
  kReroutedInColumn = 4,
  kQueuedColumn = 8,
  kDroppedColumn = 16,
  kCapacityColumn = 32,
  kFillColumn = 64,
  kAllColumns = 127,
};
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
/// Bins first … first + count − 1 of a level, row-major; borrowed until the next call on the store.
/// What was not asked for is null.
template <class T, class Sum>
struct BinRows {
  std::uint64_t first = 0, count = 0;
  const T* max = nullptr;
  const std::uint8_t* flag = nullptr;
  const Sum* sum = nullptr;
};
/// An expert's place: row of the heat map.
struct ExpertPlace {
  std::uint32_t expert = 0;
  std::uint32_t gpu = run::kNone;  ///< Of the first replica; kNone = nowhere.
};

class RunStore {
 public:
  static constexpr std::uint64_t kPageBudget = 160ULL << 20;
  /// InputError for a missing, foreign, truncated, damaged or newer file. `budget`: bytes of pages.
  explicit RunStore(const std::filesystem::path& path, const LoadProgress& progress = {},
                    std::uint64_t budget = kPageBudget);
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

  /// Of the file's content when it was opened; zero for a run in memory.
  [[nodiscard]] const Hash128& contentHash() const { return m_contentHash; }
  /// Whether another file stands at path() now (its content hash, from the header alone). False for
  /// a run in memory, and where no sound file stands there: the pages of the open one are as good.
  [[nodiscard]] bool replacedOnDisk() const;

  /// Largest level of detail; levels 1 … levels() exist.
  [[nodiscard]] std::size_t levels() const { return run::lod_levels(steps()); }
  /// Columns of a series.
  [[nodiscard]] std::size_t width(run::LodSeries series) const;
  /// Bins of a level, `bin` among them; of `layer` (needs hasLayers()) or the sum (kAllLayers).
  /// T and Sum are the series' types (run_file.hpp; asserted).
  template <class T, class Sum>
  [[nodiscard]] BinRows<T, Sum> bins(run::LodSeries series, std::uint32_t layer, run::LodPart part,
                                     std::size_t level, std::uint64_t bin) const;

  // Rows of one step; need hasSteps(), a layer needs hasLayers().
  [[nodiscard]] ExpertRow expertRow(std::uint32_t layer, std::uint64_t step,
                                    unsigned columns = kAllColumns) const;
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
  /// Places in events() of those of one kind, ascending: nobody looks for a few among all.
  [[nodiscard]] const std::vector<std::uint32_t>& eventsOf(run::EventKind kind) const {
    return m_eventsOf[static_cast<std::size_t>(kind)];
  }
  /// Bytes of pages held now.
  [[nodiscard]] std::uint64_t cachedBytes() const { return m_cachedBytes; }
  /// Bytes of values read from the file so far, unpacked; 0 for a run in memory.
  [[nodiscard]] std::uint64_t bytesRead() const;
  /// Pages read from the file so far.
  [[nodiscard]] std::uint64_t pagesRead() const { return m_pagesRead; }

 private:
  struct Page;
  /// (0 = column, 1 = level of detail), what, layer, level, page
  struct Key {
    std::uint8_t kind = 0, what = 0, part = 0;
    std::uint32_t layer = 0, level = 0;
    std::uint64_t page = 0;
    auto operator<=>(const Key&) const = default;
  };
  void sortEvents();
  const Page* find(const Key& key) const;
  const Page& keep(const Key& key, Page page) const;
  /// The row of `step`, [width].
  template <class T>
  const T* columnRow(run::StepColumn column, std::uint32_t layer, std::uint64_t step,
                     std::size_t width) const;

  std::string m_name;
  std::filesystem::path m_path;
  Hash128 m_contentHash{};
  std::uint64_t m_budget = kPageBudget;
  std::shared_ptr<const run::RunData> m_data;
  std::array<std::vector<std::uint32_t>, run::kEventKindNames.size()> m_eventsOf;
  std::unique_ptr<run::RunReader> m_reader;  // null for a run in memory
  mutable std::list<Page> m_pages;           // most recently used first
  mutable std::map<Key, std::list<Page>::iterator> m_index;
  mutable std::uint64_t m_cachedBytes = 0, m_pagesRead = 0;
};

}  // namespace switchyard::gui
