// SPDX-License-Identifier: Apache-2.0
// From decisions to bytes: which GPU sends how much to which, counted assignment by assignment.
//
//   per_expert  one copy of the token per chosen expert that lives on another GPU
//   per_rank    one copy per distinct other GPU
//   per_node    one copy per distinct other node to that node's relay, which fans it out; the relay
//               of (source GPU s, node m) is the GPU of m with s's place in its own node
//
// Bytes of a copy: scenario::Payload. Combine goes the same ways backwards: per_rank and per_node
// return one partial sum per GPU (and, per_node, one per node).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/decide.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// Where every expert lives. EP rank r of replica group q is GPU q·ep + r.
struct ExpertMap {
  std::uint32_t gpus = 0, ep = 0;
  /// [L or 1][E] → EP rank.
  std::vector<std::vector<std::uint32_t>> rank;
  /// [L or 1][E] → index among the experts of its EP rank, in expert order.
  std::vector<std::vector<std::uint32_t>> local;
  /// [L or 1][ep] → how many experts the rank holds.
  std::vector<std::vector<std::uint32_t>> count;

  explicit ExpertMap(const scenario::Scenario& scenario);
  [[nodiscard]] std::size_t row(std::uint32_t layer) const { return rank.size() == 1 ? 0 : layer; }
  /// GPU that serves expert e for tokens of GPU `source`.
  [[nodiscard]] std::uint32_t gpu_of(std::uint32_t layer, std::uint32_t expert,
                                     std::uint32_t source) const {
    return source / ep * ep + rank[row(layer)][expert];
  }
};

/// One layer's traffic and work.
struct LayerTraffic {
  /// Exchanges in order; each [G][G] bytes, row = sender. One matrix, or two with per_node.
  std::vector<std::vector<std::uint64_t>> dispatch, combine;
  /// [G][local experts] rows of each GPU's experts, first wave first: rows[w][g][i].
  std::vector<std::vector<std::vector<std::uint32_t>>> waves;
  std::vector<std::uint64_t> assignments;  ///< [G] assignments run there.
  std::uint32_t distinct_experts = 0;      ///< Experts with at least one row, all GPUs.
};

class TrafficBuilder {
 public:
  /// `node[g]` is the server of GPU g; places within a node are in GPU order. Throws InputError for
  /// per_node when nodes differ in their number of GPUs.
  TrafficBuilder(const scenario::Scenario& scenario, const ExpertMap& map,
                 std::vector<std::uint32_t> node);
  /// `source[t]` is the GPU of token t. Queued slots run in extra waves of at most the capacity.
  void build(std::uint32_t layer, std::span<const std::uint16_t> source,
             const LayerDecision& decision, LayerTraffic& out);

 private:
  const ExpertMap& map_;
  scenario::DispatchKind kind_;
  std::uint64_t dispatch_bytes_, combine_bytes_;
  std::vector<std::uint32_t> node_, place_;
  std::vector<std::vector<std::uint32_t>> members_;  // node → GPUs
  std::vector<std::uint32_t> seen_gpu_, seen_node_, rows_, queued_;
  std::uint32_t stamp_ = 0;
};

}  // namespace switchyard::sim
