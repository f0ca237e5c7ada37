// SPDX-License-Identifier: Apache-2.0
// Table `simulators`: ours and published simulators against the same measurements, error per row.
// Ours is computed by the code of `switchyard validate`; the others' figures are as they publish
// them, with the source. Error = simulated / measured - 1.
//
// Not modelled: other simulators run by us (their figures are quoted); cases that only one side
// has.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "experiments/tables/tables.hpp"
#include "experiments/validation/deepseek_v3_case.hpp"
#include "experiments/validation/validate.hpp"
#include "experiments/validation/vllm_case.hpp"

namespace switchyard::tables {

struct SimulatorRow {
  std::string experiment, quantity, simulator;
  double measured = 0;
  std::optional<double> simulated;  ///< None: the simulator has no figure; `source` says why.
  std::string source;
  [[nodiscard]] double error() const { return *simulated / measured - 1; }
};
/// Ours beside LLMServingSim's figures, mean and percentiles of TTFT, TPOT and latency, in ms.
[[nodiscard]] std::vector<SimulatorRow> vllm_rows(const validation::VllmCase& result);
/// Ours beside InferSim's figures, tokens/s and GPU; `ours` empty: quick, not run.
[[nodiscard]] std::vector<SimulatorRow> infersim_rows(
    const std::vector<validation::Throughput>& ours);

/// Row by row, then a line per simulator and experiment, then our operation times.
[[nodiscard]] std::vector<Table> simulators_tables(const std::vector<SimulatorRow>& rows);

}  // namespace switchyard::tables
