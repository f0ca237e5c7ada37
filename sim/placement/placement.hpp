// SPDX-License-Identifier: Apache-2.0
// Which rank holds which expert (M44, M45): pure functions of loads, co-activation and link speeds.
//
// Every policy fills equally many physical slots per rank; slot p belongs to rank p / (slots /
// ranks). Loads are any non-negative finite measure of work (assignments of a window); ties go to
// the lower id everywhere, so results do not depend on a sort's habits.
//
//   contiguous    expert e → rank e / (E / ranks)
//   round_robin   expert e → rank e mod ranks
//   replicated    contiguous, then further copies of the experts whose load per copy is largest (as
//                 many copies as ranks at most), each on the rank with the lightest load among
//                 those with room and, where one exists, without that expert
//   eplb          deepseek-ai/EPLB (MIT), re-implemented from its description: expert groups packed
//                 to nodes, replicas added inside a node, replicas packed to the node's ranks
//   affinity      experts chosen together stay together: greedy growth, then Kernighan–Lin swaps
//                 until none gains, under a bound on the load of a rank
//   topology_hot  heaviest expert first, each to the rank where (load + own) / speed is least:
//                 hot experts go where links are fast; speed is how fast the cluster reaches
//                 the rank
//
// Not modelled: a partition that is proven best (affinity ends in a local optimum), memory that
// differs between ranks, slots left empty.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace switchyard::placement {

/// One layer: [expert] → ranks that hold a copy, in slot order; a rank may appear twice (see
/// duplicates()).
using Row = std::vector<std::vector<std::uint32_t>>;

struct Placement {
  std::uint32_t ranks = 0;
  std::vector<Row> rows;  ///< One row that serves every layer, or one per MoE layer.
  [[nodiscard]] const Row& row(std::size_t layer) const {
    return rows[rows.size() == 1 ? 0 : layer];
  }
};

/// `experts` and `ranks` > 0; InputError("placement") unless ranks divides experts.
Row contiguous(std::uint32_t experts, std::uint32_t ranks);
Row round_robin(std::uint32_t experts, std::uint32_t ranks);

/// items → packs with n / packs items each: by weight, heaviest first, each to the lightest pack
/// with room. InputError unless packs divides the number of weights. With one item per pack: the
/// identity.
struct Packing {
  std::vector<std::uint32_t> pack;   ///< [n]
  std::vector<std::uint32_t> place;  ///< [n] place within the pack, in order of arrival
};
Packing balanced_packing(std::span<const double> weight, std::uint32_t packs);

struct EplbShape {
  std::uint32_t slots = 0;   ///< Physical experts in all, ≥ E; a multiple of ranks and nodes.
  std::uint32_t groups = 1;  ///< Expert groups; divides E.
  std::uint32_t nodes = 1;   ///< Divides ranks. Groups that nodes does not divide: packed globally.
  std::uint32_t ranks = 1;
};
/// [slots] → expert. InputError names the rule that the shape breaks, or a load that is negative or
/// not finite.
std::vector<std::uint32_t> eplb(std::span<const double> load, const EplbShape& shape);
/// Copies by expert from slots; every expert must have one (InputError).
Row row_of_slots(std::span<const std::uint32_t> slot_expert, std::uint32_t experts,
                 std::uint32_t ranks);

/// `slots` ≥ E, a multiple of ranks.
Row replicated(std::span<const double> load, std::uint32_t slots, std::uint32_t ranks);

/// together[e·E + f]: how often e and f were chosen by the same token, symmetric. `max_imbalance`:
/// a swap may not lift a rank above max_imbalance · mean load; 0: no bound. The start counts as
/// allowed if it is above already, and is then never made worse.
Row affinity(std::span<const double> load, std::span<const double> together, std::uint32_t ranks,
             double max_imbalance);
/// speed[ranks] > 0.
Row topology_hot(std::span<const double> load, std::span<const double> speed);

/// [rank] load, the load of an expert split evenly over its copies.
std::vector<double> rank_loads(const Row& row, std::span<const double> load, std::uint32_t ranks);
/// max / mean of rank_loads; 1 when there is no load.
double imbalance(const Row& row, std::span<const double> load, std::uint32_t ranks);
/// Share of co-activation that stays on one rank (first copies), in [0, 1]; 0 when there is none.
double kept_together(const Row& row, std::span<const double> together);

/// Second and further copies of an expert on one and the same rank: memory without effect
/// (deepseek-ai/EPLB#28).
struct Duplicate {
  std::uint32_t row = 0, expert = 0, rank = 0, copies = 0;
};
std::vector<Duplicate> duplicates(const Placement& placement);
/// One line for a person, or empty.
std::string describe(std::span<const Duplicate> duplicates);

}  // namespace switchyard::placement
