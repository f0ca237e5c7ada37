// SPDX-License-Identifier: Apache-2.0
// Numbers of the views that are not over steps: reroutes and traffic as a matrix, capacity per
// expert, requests. No Qt.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gui/core/runstore.hpp"

namespace switchyard::gui {

/// Which steps: [first, end), or the whole run without its warm-up.
struct StepSpan {
  std::uint64_t first = 0, end = 0;
  bool whole = true;
};

enum class MatrixKind {
  kReroutesExperts,  ///< Assignments, from the expert that was full to the one that ran them.
  kReroutesGpus,     ///< The same between the GPUs of their first replicas.
  kGpuBytes,         ///< Bytes sent; whole run only.
};
/// [from][to], row-major, n x n.
struct Matrix {
  std::size_t n = 0;
  std::vector<std::uint64_t> cells;
  std::uint64_t sum = 0, most = 0;
  std::string missing;  ///< Why there are no cells.
};
/// `layer` limits reroutes to one MoE layer (needs detail "layers" and a span).
Matrix matrixOf(const RunStore& run, MatrixKind kind, std::uint32_t layer, StepSpan span);

/// Assignments of one expert, mean per step.
struct CapacityBar {
  double own = 0;       ///< Kept by the expert that was the choice.
  double rerouted = 0;  ///< Taken over from a full expert.
  double queued = 0, dropped = 0;
  double capacity = -1;  ///< -1: no limit in any of the steps.
};
struct CapacityBars {
  std::vector<CapacityBar> bars;  ///< [E]
  std::string missing;
};
/// Steps that capacityBars sums at most.
inline constexpr std::uint64_t kCapacitySteps = 4096;
/// The span, or the whole run if it has no more than kCapacitySteps steps.
CapacityBars capacityBars(const RunStore& run, std::uint32_t layer, StepSpan span);

/// CSV of a dock, with a header line: "topology" (each link's mean use), "reroutes" (expert to
/// expert, pairs with any), "capacity" (per expert, mean per step). InputError where the run does
/// not have the numbers.
std::string dockCsv(const RunStore& run, const std::string& dock, std::uint32_t layer,
                    StepSpan span);

/// What one request went through, in ps; -1: not known.
struct RequestTimes {
  std::int64_t ttft = -1;  ///< First token - arrival.
  double tpot = -1;        ///< (end - first token) / (tokens - 1).
  std::int64_t whole = -1;
};
RequestTimes timesOf(const run::RequestRecord& request);
/// First and one past the last step that the request lived in: from its arrival (or the first
/// token) to its end. Empty without steps or times.
std::optional<StepSpan> stepsOf(const RunStore& run, const run::RequestRecord& request);
/// Equal bins from 0 to the largest value; values < 0 are left out.
std::vector<std::uint32_t> histogram(const std::vector<double>& values, std::size_t bins,
                                     double& top);

/// Share of the memory whose crossing is recorded, as the run's scenario says; 0.92 if it does not.
double watermarkOf(const run::RunData& run);

/// Numbers of experts that a run's totals do not hold. [E] each.
struct ExpertNumbers {
  std::vector<double> p99;  ///< Nearest rank over steps (no warm-up) of the tokens run there.
  bool bound = false;       ///< p99 is that of the largest steps of parts of the run: not less.
  /// Over the same steps: largest step; smallest, and standard deviation (of all steps, by n), the
  /// last two empty where steps are too many to be read.
  std::vector<double> most, least, deviation;
  std::vector<std::uint64_t> dropped;  ///< Assignments; empty where steps are too many to be read.
  /// [E][kSparkColumns] largest step of each part of the run.
  std::vector<float> spark;
};
inline constexpr std::size_t kSparkColumns = 40;
/// Steps up to which single steps are read.
inline constexpr std::uint64_t kExactSteps = 2048;
ExpertNumbers expertNumbers(const RunStore& run, std::uint32_t layer);

/// Meta, totals and metrics of a run (what diff_runs needs) with its times and energy divided by
/// tokens: span and energy by the run's tokens, step times by the mean tokens of a step. Units get
/// "/token"; numbers that are per token or relative already stay.
run::RunData perToken(const run::RunData& run);

}  // namespace switchyard::gui
