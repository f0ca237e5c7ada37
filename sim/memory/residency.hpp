// SPDX-License-Identifier: Apache-2.0
// Expert residency (M34, M51, M61): a GPU keeps `slots` of its experts of every MoE layer, the
// memory of its host `host_slots` of all experts of the layer, the SSD or a CXL pool
// (memory.residency.store) has them all. This file
// decides what is loaded from where; transfer_queue.hpp says when it is there.
//
// A layer's access of a GPU is the set of its experts that got at least one assignment, in order of
// first use by token and slot. Misses ask the host's cache, GPU after GPU; what the host misses
// comes from the SSD, through host memory, and stays there under the same policy (an inclusive
// hierarchy). Prefetching asks the same way, one MoE layer ahead; the first layer of a step is
// never prefetched. A prefetch whose expert turns out not to be needed and which has not begun is
// taken back; one on its way is finished.
//
// The hit rate counts experts that were resident or on their way when the layer asked for them.
// Belady's bound is of demand loading from the same sequence of accesses: from an empty cache when
// the run begins cold with its first step measured, else from the best content there is. When
// experts change GPUs (parallel.rebalance) it takes spec.slots and keeps what a GPU gave up, so it
// stays a bound.
//
// With memory.residency.miss = "cpu" what a GPU lacks is computed elsewhere (host_experts.hpp): its
// accesses are the same, nothing is loaded.
//
// Not modelled: a pool's own rate beyond that of its ports; writing back (weights do not change),
// host caches of files, experts kept on other GPUs.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/memory/expert_cache.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

struct ExpertLoad {
  std::uint16_t expert = 0;
  bool from_ssd = false;
  bool passing = false;  ///< Used once and not kept.
};
struct LayerLoads {
  std::vector<std::uint16_t> hits;
  std::vector<ExpertLoad> loads;  ///< In the order in which they travel.
  std::uint32_t evicted = 0;
};

class Residency {
 public:
  /// local: [L][G] experts of each GPU. host: [G] index of the GPU's host, 0 … hosts − 1.
  /// hot: [L] experts by falling demand; empty when the caches begin empty.
  Residency(const scenario::ResidencySpec& spec, std::uint32_t experts,
            std::vector<std::vector<std::vector<std::uint16_t>>> local,
            std::vector<std::uint32_t> host, std::uint32_t hosts,
            const std::vector<std::vector<std::uint16_t>>& hot);

  /// Experts of a layer resident on a GPU at the moment.
  [[nodiscard]] std::uint64_t resident(std::uint32_t layer, std::uint32_t gpu) const {
    return gpu_cache_[at(layer, gpu)].size();
  }
  [[nodiscard]] bool resident(std::uint32_t layer, std::uint32_t gpu, std::uint16_t expert) const {
    return gpu_cache_[at(layer, gpu)].resident(expert);
  }
  /// Free slots of a GPU, all layers.
  [[nodiscard]] std::uint64_t room(std::uint32_t gpu) const;
  /// One layer of one GPU asks. `measured`: counts in the statistics.
  const LayerLoads& demand(std::uint32_t layer, std::uint32_t gpu,
                           std::span<const std::uint16_t> experts, bool measured);
  /// Brings in what `wanted` lacks, as far as there is room.
  const LayerLoads& prefetch(std::uint32_t layer, std::uint32_t gpu,
                             std::span<const std::uint16_t> wanted);
  /// The experts of a GPU that were asked for most, at most spec.prefetch_experts of them.
  [[nodiscard]] std::vector<std::uint16_t> frequent(std::uint32_t layer, std::uint32_t gpu) const;
  /// Experts of the GPUs from now on, [L][G]; residents that are no longer among them are dropped.
  /// Returns how many, [G]. Not with a static cache, which could not take in what is new.
  std::vector<std::uint32_t> relocate(std::vector<std::vector<std::vector<std::uint16_t>>> local);
  /// A prefetch was taken back.
  void discard(std::uint32_t layer, std::uint32_t gpu, std::uint16_t expert);

  struct LayerCount {
    std::uint64_t asked = 0, hits = 0, belady_hits = 0;
  };
  /// [L], measured accesses only. Runs Belady's bound over all of them.
  [[nodiscard]] std::vector<LayerCount> counts() const;

 private:
  [[nodiscard]] std::size_t at(std::uint32_t layer, std::uint32_t gpu) const {
    return std::size_t{layer} * gpus_ + gpu;
  }
  void ask_host(std::uint32_t layer, std::uint32_t gpu, const CacheAccess& access);

  scenario::ResidencySpec spec_;
  std::uint32_t experts_, layers_, gpus_;
  std::vector<std::vector<std::uint16_t>> local_;                 // [L][G]
  std::vector<std::uint32_t> host_;                               // [G]
  std::vector<ExpertCache> gpu_cache_;                            // [L][G]
  std::vector<ExpertCache> host_cache_;                           // [hosts][L]
  std::vector<std::vector<std::vector<std::uint16_t>>> history_;  // [L][G] measured accesses
  std::vector<std::uint64_t> asked_, hits_;                       // [L]
  bool warm_ = false;                                             // Before the first measured one.
  bool relocated_ = false;
  LayerLoads out_;
  std::vector<std::uint16_t> ids_;
};

}  // namespace switchyard::sim
