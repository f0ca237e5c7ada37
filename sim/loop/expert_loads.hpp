// SPDX-License-Identifier: Apache-2.0
// What the step loop keeps while experts are loaded on demand (expert_loads.cpp; M34).
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sim/loop/host_experts.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/memory/residency.hpp"
#include "sim/memory/transfer_queue.hpp"

namespace switchyard::sim {

struct ExpertLoads {
  Residency residency;
  TransferQueue& queue;
  /// [G] endpoints of the queue; ssd: of the store, an SSD or a CXL pool, kNoGpu without.
  std::vector<std::uint32_t> host, ssd;
  const char* store_name = "SSD";
  std::uint64_t bytes_each = 0;          ///< Of one expert.
  std::unique_ptr<RoutingSource> ahead;  ///< Says what the next layer may ask for; or null.
  Candidates candidates{};               ///< Of `ahead`.
  std::unique_ptr<HostExperts> on_host;  ///< Null: what is missing is loaded.

  // The layer under way.
  std::vector<std::vector<TransferQueue::Id>> awaited;  ///< [G]
  std::vector<std::uint64_t> passing;                   ///< [G] bytes that are used and not kept.
  /// [G] prefetched for `prefetched_layer`.
  std::vector<std::vector<std::pair<std::uint16_t, TransferQueue::Id>>> prefetched;
  std::uint32_t prefetched_layer = UINT32_MAX;
  std::set<TransferQueue::Id> prefetched_from_ssd{};

  // The step under way, [G].
  struct Step {
    std::uint64_t from_host = 0, from_ssd = 0, evicted = 0;
    std::int64_t wait_ps = 0;
  };
  std::vector<Step> step;

  // Measured steps.
  std::uint64_t steps = 0, from_host = 0, from_ssd = 0, prefetches = 0, prefetches_used = 0,
                taken_back = 0;
  std::int64_t wait_ps = 0;  ///< Σ over steps and layers of the longest wait of a GPU.
};

}  // namespace switchyard::sim
