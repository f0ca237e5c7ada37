// SPDX-License-Identifier: Apache-2.0
// Judges the network as a simulation without a calibration file has it: the links of a shipped
// hardware file and the default settings of [network], against NCCL's measured collectives.
//
//   alltoall                             one exchange, S/n bytes to each other GPU
//   all_gather, reduce_scatter, all_reduce   the phases of sim/network/collectives.hpp by a ring,
//                                        one call
// S: the buffer as NCCL counts it, among the first n GPUs of the file. Nothing is fitted here. What
// a hardware file takes from measured rows (achievable, phase_latency) is of rows with an even
// hash; judged are the odd ones.
//
// Not modelled: what MeasuredRow does not say (channels, protocols, in-switch reduction).
#pragma once
#include <cstdint>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/validation/measured_rows.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::validation {

struct DefaultRow {
  const MeasuredRow* row = nullptr;
  double simulated_us = 0;
  [[nodiscard]] double error() const { return simulated_us / row->point.us - 1; }
};

struct DefaultNetwork {
  std::vector<DefaultRow> rows;  ///< Judged rows (odd hash) of NCCL, in their order.
  std::size_t skipped = 0;       ///< Of more GPUs than the file has, or of another collective.
};

/// Borrows the rows.
DefaultNetwork judge_default_network(const scenario::HardwareSpec& hardware,
                                     const std::vector<MeasuredRow>& rows);
/// A line per collective of 1 MiB and more, one over these, one below 1 MiB.
Table default_network_table(const scenario::HardwareSpec& hardware, const DefaultNetwork& judged);

}  // namespace switchyard::validation
