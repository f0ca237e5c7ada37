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
//
// Several copies of an expert: scenario::ReplicaChoice says which one serves an assignment.
// Capacity is that of the expert, all its copies together.
//
// network.chunk_by = "experts": the copies of a GPU's experts are cut into k groups, copy i of n to
// group ⌊i·k/n⌋, and every group has exchanges of its own (an expert-grouped all-to-all): a token
// travels once per distinct (GPU, group); with per_node once per distinct (node, group), and from
// the relay once per distinct (GPU, group).
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/routing/decide.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/placement/placement.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// Where every expert lives. EP rank r of replica group q is GPU first + q·ep + r; where experts
/// are cut into columns it is `cut` GPUs from first + q·ep·cut + r·cut on, and the first one stands
/// for them. A copy is one physical slot of a rank; copies are numbered by expert, then in the
/// placement's order.
struct ExpertMap {
  struct Row {
    std::vector<std::uint32_t> first;  ///< [E + 1] copies of expert e: first[e] … first[e + 1] − 1.
    std::vector<std::uint32_t> rank;    ///< [C] EP rank of the copy.
    std::vector<std::uint32_t> local;   ///< [C] index among the copies of its rank.
    std::vector<std::uint32_t> expert;  ///< [C]
    /// [C] first copy of the same expert on the same rank: a rank runs an expert once, so that one
    /// takes what falls to any of them.
    std::vector<std::uint32_t> serves;
    std::vector<std::uint32_t> count;                 ///< [ep] copies that the rank holds.
    std::vector<std::vector<std::uint32_t>> of_rank;  ///< [ep] its copies, ascending.
    [[nodiscard]] std::uint32_t copies(std::uint32_t e) const { return first[e + 1] - first[e]; }
  };
  std::uint32_t gpus = 0;               ///< G of the whole cluster: size of the matrices.
  std::uint32_t first = 0, groups = 0;  ///< Replica groups are the GPUs from `first` on.
  std::uint32_t ep = 0, cut = 1;
  std::uint32_t most_copies = 1;  ///< Of any expert, in one EP group.

  /// The groups fill all GPUs.
  ExpertMap(std::uint32_t gpus, const placement::Placement& placement, std::uint32_t cut = 1);
  /// Those of a layout in a cluster of `gpus`.
  ExpertMap(std::uint32_t gpus, const placement::Placement& placement,
            const scenario::Parallel& layout);
  /// GPUs of a replica group.
  [[nodiscard]] std::uint32_t span() const { return ep * cut; }
  /// Of a GPU of the groups: its group, the group's first GPU, its EP rank.
  [[nodiscard]] std::uint32_t group_of(std::uint32_t gpu) const { return (gpu - first) / span(); }
  [[nodiscard]] std::uint32_t base_of(std::uint32_t gpu) const {
    return gpu - (gpu - first) % span();
  }
  [[nodiscard]] bool has(std::uint32_t gpu) const {
    return gpu >= first && gpu < first + groups * span();
  }
  [[nodiscard]] const Row& row(std::uint32_t layer) const {
    return rows_[rows_.size() == 1 ? 0 : layer];
  }
  /// GPU that holds copy i of expert e for tokens of GPU `source`.
  [[nodiscard]] std::uint32_t gpu_of(std::uint32_t layer, std::uint32_t expert,
                                     std::uint32_t source, std::uint32_t i = 0) const {
    const Row& r = row(layer);
    return base_of(source) + r.rank[r.first[expert] + i] * cut;
  }

 private:
  std::vector<Row> rows_;  // [L or 1]
};

/// Group of copy `local` of a rank's `count` when they are cut into k.
[[nodiscard]] constexpr std::uint32_t expert_group(std::uint64_t local, std::uint64_t count,
                                                   std::uint64_t k) {
  return static_cast<std::uint32_t>(local * k / count);
}

inline constexpr std::uint32_t kNoGpu = UINT32_MAX;
/// The outcomes of eight slots that were all kept, as one number.
inline constexpr std::uint64_t kEightKept =
    0x0101010101010101 * static_cast<std::uint64_t>(SlotOutcome::kKept);

/// What the GPUs send and receive in one exchange: row and column sums of its matrix.
struct PortBytes {
  std::vector<std::uint64_t> out, in;  ///< [G]
  std::uint64_t total = 0;
};
/// Of a matrix [G][G], row = sender; the diagonal does not count.
void sum_ports(const std::vector<std::uint64_t>& matrix, PortBytes& out);

/// One layer's traffic and work.
struct LayerTraffic {
  /// [phases][G][G] copies that travel, row = sender; two phases with per_node, else one.
  std::vector<std::uint32_t> copies;
  /// Exchanges in order; each [G][G] bytes, row = sender. One matrix, or two with per_node; none
  /// where only the copies were asked for.
  std::vector<std::vector<std::uint64_t>> dispatch, combine;
  std::vector<PortBytes> dispatch_ports, combine_ports;  ///< Of each of them.
  /// chunk_by = experts: [k] parts of dispatch and combine by expert group, the exchanges of each
  /// in order; else empty.
  std::vector<std::vector<std::vector<std::uint64_t>>> group_dispatch, group_combine;
  /// [G][local experts] rows of each GPU's experts, first wave first: rows[w][g][i]. GPUs that
  /// divide an expert have the same rows.
  std::vector<std::vector<std::vector<std::uint32_t>>> waves;
  /// [G] assignments run there; of GPUs that divide experts the first one has them.
  std::vector<std::uint64_t> assignments;
  std::vector<std::uint32_t> gpu;        ///< [T][K] who runs the slot; kNoGpu: nobody.
  std::vector<std::uint64_t> passed_on;  ///< [G] per_node: dispatched copies it only relays.
  std::vector<std::vector<std::uint64_t>> group_passed_on;  ///< [k] the same of expert groups.
  std::uint32_t distinct_experts = 0;  ///< Copies of experts with at least one row, all GPUs.
};

class TrafficBuilder {
 public:
  /// `node[g]` is the server of GPU g; places within a node are in GPU order. Throws InputError for
  /// per_node when nodes differ in their number of GPUs. `choice`: of several copies of an expert.
  TrafficBuilder(const scenario::Scenario& scenario, const ExpertMap& map,
                 std::vector<std::uint32_t> node, scenario::ReplicaChoice choice);
  /// Queued slots run in extra waves of at most the capacity. `matrices`: of bytes, beside that of
  /// copies.
  void build(std::uint32_t layer, const StepTokens& tokens, const LayerDecision& decision,
             LayerTraffic& out, bool matrices = true);
  /// Whether every exchange is of one matrix of copies, there and back.
  [[nodiscard]] bool one_phase() const {
    return expert_groups_ == 1 &&
           (kind_ != scenario::DispatchKind::kPerNode || members_.size() <= 1);
  }
  /// What a copy brings there, and what comes back for it.
  [[nodiscard]] std::uint64_t dispatch_bytes() const { return dispatch_bytes_; }
  [[nodiscard]] std::uint64_t combine_bytes() const { return combine_bytes_; }

 private:
  /// Copy (index into the row's copies) that serves an assignment.
  std::uint32_t choose(const ExpertMap::Row& row, std::uint32_t expert, std::uint32_t token,
                       const StepTokens& tokens, const LayerTraffic& out);

  /// One copy of each expert and of the token for it, as in most runs: counts and bytes, a tile of
  /// sending GPUs after the other.
  void count_plain(const ExpertMap::Row& row, const StepTokens& tokens,
                   const LayerDecision& decision, LayerTraffic& out);
  void sort_by_tile(const std::vector<std::uint16_t>& rank);
  void count_tile(std::size_t tile, const LayerDecision& decision, LayerTraffic& out);
  /// Bytes from copies[from][to], which go there as dispatch and come back as combine: of the
  /// ports, and of each pair where matrices are given (both or none).
  void to_bytes(const std::uint32_t* copies, PortBytes& there, PortBytes& back,
                std::vector<std::uint64_t>* dispatch, std::vector<std::uint64_t>* combine);
  /// Its parts: before the rows, each row once, after them.
  void begin_bytes(PortBytes& there, PortBytes& back, std::vector<std::uint64_t>* dispatch,
                   std::vector<std::uint64_t>* combine);
  void rows_to_bytes(const std::uint32_t* copies, std::size_t begin, std::size_t end,
                     PortBytes& there, PortBytes& back, std::vector<std::uint64_t>* dispatch);
  void end_bytes(const std::uint32_t* copies, PortBytes& there, PortBytes& back,
                 std::vector<std::uint64_t>* combine);

  const ExpertMap& map_;
  scenario::DispatchKind kind_;
  scenario::ReplicaChoice choice_;
  std::uint64_t dispatch_bytes_, combine_bytes_;
  std::vector<std::uint32_t> node_, place_;
  std::vector<std::vector<std::uint32_t>> members_;  // node → GPUs
  std::vector<std::uint32_t> seen_gpu_, seen_node_, rows_, queued_, turn_;
  std::vector<std::uint32_t> near_;
  // Tokens by tile of source GPUs: tile i has by_tile_[tile_begin_[i] … tile_begin_[i + 1]).
  std::vector<std::uint16_t> sorted_;  // [T] sources of the tokens that are sorted
  std::vector<std::uint32_t> tile_begin_, by_tile_;
  std::vector<std::uint32_t> column_;        // [C] GPU of a copy, from its replica group's first on
  std::vector<std::uint32_t> group_copies_;  // [groups][phases][G][G] sent there
  std::vector<std::uint32_t> in_;            // [G] of them received
  std::vector<std::pair<std::uint32_t, std::uint32_t>> relays_;  // GPU, group of a token
  std::uint32_t expert_groups_ = 1;                              // 1: not grouped.
  std::uint32_t stamp_ = 0;
};

}  // namespace switchyard::sim
