// SPDX-License-Identifier: Apache-2.0
// The run file (contract 3): writer and reader. Datasets, shapes and units: FORMAT.md, which is
// printed from run_schema(). The container (user block, hash, HDF5) is engine/h5.
//
//   RunWriter writer("r.h5", meta, inventory);
//   for (…) writer.append(step);
//   writer.data().requests = …;          // events, critical path, own metrics likewise
//   writer.finish();                     // levels of detail, metrics; renames into place
//
//   RunReader reader("r.h5");
//   RunLod first = reader.overview();    // < 1 MB whatever the length of the run
//   ExpertSteps window = reader.experts(12200, 60);
//
// The writer streams: the blocks of a step leave memory after at most 64 steps; scalars, totals and
// the levels of detail of steps, GPUs and links stay. Levels of detail of experts are made when the
// run ends, one layer after the other, from the blocks that are in the file by then (detail steps
// and above); so at most one layer's are in memory, S*E*39/7 bytes. Same content → same bytes. The
// reader checks the hash, every shape and every range it reads; InputError names file, dataset and
// row. Not modelled: reading a file that is still being written.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/h5/file_reader.hpp"
#include "engine/h5/schema.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::run {

/// Attributes and datasets of a run file.
const h5::SchemaTable& run_schema();
/// Text of sim/run/FORMAT.md.
std::string run_format_markdown();

class RunWriter {
 public:
  /// InputError when the target's folder is missing or not writable. The inventory must have a GPU,
  /// positive finite bandwidths and a full placement (asserted).
  RunWriter(const std::filesystem::path& target, RunMeta meta, Inventory inventory);
  ~RunWriter();  ///< Without finish(), nothing is left behind.
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  /// As append_step (run_data.hpp), and checks the step (conservation.hpp).
  void append(const StepRecord& step);
  /// The run so far: meta, inventory, totals and scalars are complete, blocks and the experts'
  /// levels of detail are not. The caller fills requests, tokens, events, critical_path, and
  /// metrics of its own.
  [[nodiscard]] RunData& data();
  /// Puts compute_metrics() in front of the caller's metrics, writes everything, closes, seals and
  /// renames. InputError on any failure (full disk included). Returns what check_conservation
  /// found; a run with violations is written all the same, so that it can be looked at.
  std::vector<Violation> finish();
  /// Most bytes of blocks, of rows that wait to be packed and of levels of detail that were held at
  /// once so far. The scalars of the steps (about 300 B each) come on top.
  [[nodiscard]] std::uint64_t peak_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a whole run that is in memory, with the blocks of its detail (asserted to be complete).
/// Its metrics are written as they are.
void write_run(const std::filesystem::path& target, const RunData& run);

/// What read_run reads besides meta, inventory, totals and metrics, where the detail has it.
struct RunParts {
  bool steps = true, layers = true, experts = true, layer_experts = true, gpus = true, links = true,
       reroutes = true, requests = true, tokens = true, events = true, critical_path = true,
       lod = true;
  static RunParts none() {
    return {false, false, false, false, false, false, false, false, false, false, false, false};
  }
};
RunData read_run(const std::filesystem::path& path, const RunParts& parts = {},
                 const h5::ReadOptions& options = {});

/// Columns of steps that can be read one by one; their names, units and types stand in FORMAT.md.
enum class StepColumn : std::uint8_t {
  kKept,  ///< u32, as are the next five.
  kOverflow,
  kReroutedIn,
  kQueued,
  kDropped,
  kCapacity,
  kFill,           ///< f32
  kGpuPhase,       ///< i64 [G][P]
  kGpuMemory,      ///< u64 [G][C]
  kGpuMemoryPeak,  ///< u64 [G]
  kLinkBytes,      ///< u64 [K]
};
/// Series that have levels of detail (RunLod and ExpertLod).
enum class LodSeries : std::uint8_t {
  kSteps,           ///< Lod<f64, f64>
  kStepStart,       ///< Lod<i64, i64>
  kGpuPhase,        ///< Lod<i64, i64>
  kLinkBytes,       ///< Lod<u64, u64>
  kLinkUse,         ///< Lod<f32, f64>
  kExpertKept,      ///< Lod<u32, u64>
  kExpertOverflow,  ///< Lod<u32, u64>
  kExpertFill,      ///< Lod<f32, f64>
};
/// Which arrays of bins to read.
enum class LodPart : std::uint8_t { kMaxAndFlag, kSum };

/// Reads on demand. Row ranges are [first, first + count) in steps; out of range is an InputError.
/// A block that the file's detail leaves out is an InputError that names the detail needed.
class RunReader {
 public:
  explicit RunReader(const std::filesystem::path& path, const h5::ReadOptions& options = {});
  ~RunReader();
  RunReader(RunReader&&) noexcept;
  RunReader& operator=(RunReader&&) noexcept;

  /// Meta, inventory, metrics, notes and the counters of the totals.
  [[nodiscard]] const RunData& base() const;
  [[nodiscard]] std::uint64_t steps() const { return base().totals.steps; }
  [[nodiscard]] bool has(Detail needed) const { return base().meta.detail >= needed; }

  /// Counters and arrays.
  [[nodiscard]] Totals read_totals() const;
  [[nodiscard]] std::vector<StepScalars> read_steps(std::uint64_t first, std::uint64_t count) const;
  [[nodiscard]] LayerSteps read_layers(std::uint64_t first, std::uint64_t count) const;
  /// Sum over layers.
  [[nodiscard]] ExpertSteps read_experts(std::uint64_t first, std::uint64_t count) const;
  /// One MoE layer; `layer` indexes moe_layers.
  [[nodiscard]] ExpertSteps read_layer_experts(std::uint32_t layer, std::uint64_t first,
                                               std::uint64_t count) const;
  [[nodiscard]] GpuSteps read_gpus(std::uint64_t first, std::uint64_t count) const;
  [[nodiscard]] LinkSteps read_links(std::uint64_t first, std::uint64_t count) const;
  /// One column of the above for viewers: [count][…]. `layer` kNone: the sum over layers; of expert
  /// columns only. T must be the column's type (asserted).
  template <class T>
  [[nodiscard]] std::vector<T> read_column(StepColumn column, std::uint32_t layer,
                                           std::uint64_t first, std::uint64_t count) const;
  /// Rows that lie together in the file: reading fewer unpacks as many.
  [[nodiscard]] std::uint64_t rows_together(StepColumn column) const;
  [[nodiscard]] RerouteSteps read_reroutes() const;
  [[nodiscard]] std::vector<RequestRecord> read_requests() const;
  /// Whether the requests arrived (RunData::serving).
  [[nodiscard]] bool has_served_requests() const;
  [[nodiscard]] std::vector<TokenRecord> read_tokens() const;
  [[nodiscard]] std::vector<Event> read_events() const;
  [[nodiscard]] std::vector<CriticalEntry> read_critical_path() const;

  /// Levels `finest` and coarser of all series but the layers' (finest ≥ 1; beyond the coarsest:
  /// the coarsest).
  [[nodiscard]] RunLod read_lod(std::size_t finest) const;
  [[nodiscard]] ExpertLod read_layer_lod(std::uint32_t layer, std::size_t finest) const;
  /// Bins first … first + count − 1 of one level; arrays that `part` leaves out are empty. `layer`
  /// kNone: the sum over layers; of expert series only. T and Sum must be the series' types
  /// (asserted). InputError out of range.
  template <class T, class Sum>
  [[nodiscard]] typename Lod<T, Sum>::Level read_lod_bins(LodSeries series, std::uint32_t layer,
                                                          LodPart part, std::size_t level,
                                                          std::uint64_t first,
                                                          std::uint64_t count) const;
  /// The finest level with which read_lod brings what was read, base() included, to at most
  /// `most_bytes`; the coarsest if none does.
  [[nodiscard]] std::size_t overview_level(std::uint64_t most_bytes = 1'000'000) const;
  /// read_lod(overview_level()): the first picture.
  [[nodiscard]] RunLod overview() const;

  /// Bytes of values read so far (unpacked), base included.
  [[nodiscard]] std::uint64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// check_conservation of a file, `window` steps at a time (0: as many as a few hundred MB hold):
/// memory does not grow with the steps but for their scalars. `layers` false: without the blocks of
/// single layers, which are nearly all of a run of detail layers.
std::vector<Violation> check_conservation(const RunReader& reader, std::uint64_t window = 0,
                                          bool layers = true);

}  // namespace switchyard::run
