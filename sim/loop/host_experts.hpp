// SPDX-License-Identifier: Apache-2.0
// Experts that the CPU computes where their weights are (memory.residency.miss = "cpu" and
// "cheaper"), as Fiddler (arXiv 2402.07033) and ktransformers do.
//
// Of a MoE layer, a GPU that has the layer's rows and lacks n of the experts that it serves sends
// the R rows of those to its CPU (memory.residency: the nearest), one copy of R·H·a bytes on the
// engine away from the GPU, and computes the experts that it has. The CPU computes the n experts as
// one job, and the results come back as a copy of R·H·a bytes:
//
//   job = per_batch + max( (n·W·w + 2·R·H·a) / bandwidth, 2·W·R / flops )
//
// W weights of an expert, w bytes each as stored, a bytes per activation. The layer's combine
// begins when both the GPU's own experts and the results are there. The experts on the GPU never
// change.
//
// A CPU computes one job at a time. Jobs of a layer take their turn by when their rows arrive, then
// by GPU; replicas that step by themselves share it as routers do (Calendar, router_units.hpp).
//
// cheaper: an expert of r rows is copied to the GPU (and dropped after use) where that takes less,
// each by itself: latency + W·w / narrowest link there, against the two copies of r·H·a bytes and
// the job of that expert alone.
//
// Not modelled: NUMA and caches of the CPU, what copies take of its memory's bandwidth, other work
// of the CPU beside the experts (the host's times of a step come from [host]), rows of an exchange
// that is still under way elsewhere in the group (network.model = "flow"), energy that depends on
// what the CPU does.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/loop/router_units.hpp"
#include "sim/memory/transfer_queue.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

class HostExperts {
 public:
  /// What an expert and a row of it are: weights, their bytes, bytes of a row (each way).
  struct Shape {
    std::uint64_t weights = 0, bytes = 0, row_bytes = 0;
  };
  HostExperts(const scenario::CpuRates& cpu, const Shape& shape) : cpu_(cpu), shape_(shape) {}

  /// One job of so many distinct experts and rows, > 0; error: rounded once to a picosecond.
  [[nodiscard]] SimTime job(std::uint64_t experts, std::uint64_t rows) const {
    return cpu_.per_batch + alone(experts, rows);
  }
  /// The same without its fixed time.
  [[nodiscard]] SimTime alone(std::uint64_t experts, std::uint64_t rows) const;
  [[nodiscard]] const Shape& shape() const { return shape_; }

  struct Miss {
    std::uint16_t expert = 0;
    std::uint32_t rows = 0;
  };
  struct Unit {
    std::uint32_t endpoint = 0;  ///< Of the queue of transfers.
    std::string name;
    std::int64_t busy_ps = 0;  ///< Since the beginning.
    Calendar calendar = {};
  };
  std::vector<Unit> units;
  std::vector<std::uint32_t> unit_of;  ///< [G]

  // The layer under way, [G].
  std::vector<std::vector<Miss>> missed;
  std::vector<std::vector<TransferQueue::Id>> back;  ///< Results on their way: none or one.

  // Measured steps.
  std::uint64_t experts = 0, rows = 0, bytes = 0;
  std::int64_t wait_ps = 0;  ///< Σ over steps and layers of the longest wait of a GPU.

 private:
  scenario::CpuRates cpu_;
  Shape shape_;
};

}  // namespace switchyard::sim
