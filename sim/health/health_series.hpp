// SPDX-License-Identifier: Apache-2.0
// What is watched in a run: one value per step and signal (definitions: kHealthSignals), and the
// GPU, link or expert that the value is of. The same function serves a simulation while it runs and
// a run that was read.
//
// Not modelled: values between two steps.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/alarms.hpp"

namespace switchyard::health {

using scenario::HealthSignal;
using scenario::kHealthSignalCount;

constexpr std::size_t at(HealthSignal s) { return static_cast<std::size_t>(s); }

/// Who a value is of; run::kNone where that says nothing. `layer` indexes moe_layers.
struct Place {
  std::uint32_t gpu = run::kNone, link = run::kNone, layer = run::kNone, expert = run::kNone;
  bool operator==(const Place&) const = default;
};
/// "gpu3", "link gpu0>nvswitch", "MoE layer 2 expert 5", or "-".
std::string describe(const Place& place, const run::Inventory& inventory);

struct HealthSample {
  std::uint32_t step = 0;
  std::int64_t end_ps = 0;
  std::array<double, kHealthSignalCount> value{};  ///< NaN: no data (and for the summed signals).
  std::array<Place, kHealthSignalCount> place{};
};

/// Values of one step; signals that are computed from a window's sums stay NaN.
HealthSample sample_step(const run::StepRecord& record, std::uint32_t step,
                         const run::Inventory& inventory);

/// Experts' counters summed over some steps: [L][E], L = size / experts.
struct ExpertSums {
  std::vector<double> kept;
  std::vector<double> time_ps;  ///< Empty: no data.
  std::uint32_t steps = 0;
};
struct SummedValue {
  double value = 0;  ///< NaN: no data.
  Place place;
  double floor = 0;  ///< load_cv: what counting alone gives; else NaN.
};
/// load_cv, cold_expert or expert_latency of these sums.
SummedValue summed_signal(HealthSignal signal, const ExpertSums& sums,
                          const run::Inventory& inventory);

/// A run file as monitor_run and diagnose need it, without its blocks in memory: experts, GPUs and
/// links are read a few hundred steps at a time. `run` has meta, inventory, totals, scalars of
/// steps, memory by step, requests, events, critical path and metrics; of layer_steps the exchanges
/// and their floors; of experts.fill one row, the largest of each expert.
struct RecordedRun {
  run::RunData run;
  std::unique_ptr<run::RunReader> blocks;
  /// Experts of single layers are looked at: up to 2e7 steps x layers x experts.
  bool layers = false;
  std::function<void()> between;  ///< Called before each part is read; what it throws ends it.
};
/// InputError when the file is not a sound run.
RecordedRun read_recorded(const std::filesystem::path& file, const h5::ReadOptions& options = {});

/// A run's steps one after the other, as records (blocks that the run's detail leaves out are zero
/// or empty; below detail "layers" the experts are those of the sum over layers). InputError when
/// the run has no steps in it (detail "summary").
class RecordedSteps {
 public:
  /// `run` is borrowed. `name` stands for it in messages.
  RecordedSteps(const run::RunData& run, const std::string& name);
  /// Of a file; at most kWindow steps are in memory. `file` is borrowed.
  RecordedSteps(const RecordedRun& file, const std::string& name);
  static constexpr std::uint32_t kWindow = 256;
  [[nodiscard]] std::uint32_t size() const;
  /// Valid until the next call.
  const run::StepRecord& record(std::uint32_t step);

 private:
  void load(std::uint32_t step);

  const run::RunData& run_;
  const RecordedRun* file_ = nullptr;
  run::RunData window_;  // blocks of steps first_ … end_ − 1
  std::uint32_t first_ = 0, end_ = 0;
  run::StepRecord record_;
};

}  // namespace switchyard::health
