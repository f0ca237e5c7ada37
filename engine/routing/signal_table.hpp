// SPDX-License-Identifier: Apache-2.0
// What a simulation knew of the machine, step by step: the input of `trace --signals`, so that the
// engine can run with policies that look at memory, placement and time.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/routing/route.hpp"

namespace switchyard {

/// S steps, G GPUs, L MoE layers, E experts. A step beyond the last one sees the last sample; its
/// clock goes on by the mean length of a step.
struct SignalTable {
  std::uint32_t gpus = 0, layers = 0, experts = 0;
  std::vector<double> start;          ///< [S] seconds, ascending.
  double end = 0;                     ///< Seconds, end of the last step.
  std::vector<double> used, elastic;  ///< [S][G] at the start of the step.
  /// GPUs of layer l's expert e: gpu[first_gpu[l (E + 1) + e]] … exclusive of the next.
  std::vector<std::uint32_t> first_gpu;  ///< [L][E + 1]
  std::vector<std::uint32_t> gpu;
  [[nodiscard]] std::uint32_t steps() const { return static_cast<std::uint32_t>(start.size()); }
  /// Borrowed from the table. layer < L; the table has at least one step.
  [[nodiscard]] Signals view(std::uint32_t step, std::uint32_t layer) const;
};

}  // namespace switchyard
