// SPDX-License-Identifier: Apache-2.0
// Which GPUs a replica has (workload.front_end.replicas): equal shares of all of them in order, the
// prefill replicas first; with [parallel.prefill] equal shares of the GPUs of each layout. The
// scenario reader has checked that they divide.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::scenario {

/// GPUs [first, beyond).
struct GpuRange {
  std::uint32_t first = 0, beyond = 0;
};

/// By replica; one of all GPUs where no requests arrive.
[[nodiscard]] inline std::vector<GpuRange> replica_gpus(const Scenario& s) {
  const auto gpus = static_cast<std::uint32_t>(s.hardware.gpu_count());
  const FrontEnd& f = s.workload.serving.front_end;
  const std::uint32_t replicas = s.workload.serves() ? f.replicas : 1;
  const std::uint32_t prefill = s.prefill ? f.prefill_replicas : 0;
  const std::uint32_t before = s.prefill ? s.prefill->gpus() : 0;
  std::vector<GpuRange> out;
  for (std::uint32_t e = 0; e < replicas; ++e) {
    const bool first = e < prefill;
    const std::uint32_t each = first ? before / prefill : (gpus - before) / (replicas - prefill);
    const std::uint32_t begin = first ? e * each : before + (e - prefill) * each;
    out.push_back({begin, begin + each});
  }
  return out;
}

}  // namespace switchyard::scenario
