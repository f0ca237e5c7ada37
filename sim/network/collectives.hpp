// SPDX-License-Identifier: Apache-2.0
// Collectives of tensor parallelism and replication (M31, M42) as phases, like the all-to-alls of
// algorithms.hpp: the transfers of a phase run at once, a phase begins when the one before has
// ended. S = bytes of the whole buffer, n = members. The buffer is cut into n blocks, block i =
// bytes ⌊i·S/n⌋ … ⌊(i+1)·S/n⌋, so the blocks sum to S exactly.
//
//                  phases · bytes a member sends (S divisible by n)
//                  ring                    direct                 hierarchical
//   reduce_scatter n−1 · S(n−1)/n          1 · S(n−1)/n           –
//   all_gather     n−1 · S(n−1)/n          1 · S(n−1)/n           –
//   all_reduce     2(n−1) · 2S(n−1)/n      2 · 2S(n−1)/n          inside, between, inside
//   broadcast      n−1 · S (chain)         1 · root S(n−1)        root → leaders → members
//   all_reduce by one_shot                 1 · S(n−1): every member sends everything to all, and
//                                          each sums for itself (the low-latency kernel)
//   all_reduce by tree                     2⌈log2 n⌉ phases: binomial, sums up to the first member
//   and
//                                          the result down; S up and S down for each member but one
//   broadcast by tree                      ⌈log2 n⌉ phases, the senders double in each
// hierarchical all_reduce: ring reduce-scatter inside each server, direct all-reduce of the own
// block between the members with the same place in their servers, ring all-gather inside; servers
// must hold equally many members. Block b of a reduce-scatter ends at member b.
//
// The phases are one call: the step loop charges its start-up once (NetworkModel::exchange).
//
// Not modelled: chunks that overlap phases, the additions of a reduction (HBM traffic), NVLink
// SHARP (in-switch reduction), protocol overhead.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/algorithms.hpp"

namespace switchyard::network {

enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast };
enum class CollectiveAlgorithm : std::uint8_t { kRing, kDirect, kOneShot, kTree, kHierarchical };
[[nodiscard]] const char* name_of(Collective collective);
[[nodiscard]] const char* name_of(CollectiveAlgorithm algorithm);

/// Phases of one collective among `members` (endpoint numbers, distinct), ring order = their order.
/// bytes: the whole buffer. node: [endpoints] server of each endpoint, read by hierarchical only.
/// `root` is an index into members, read by broadcast only. Transfers of no bytes are left out; no
/// phases for one member or no bytes. InputError where the table above has no entry, or for
/// hierarchical with servers of unequal size.
std::vector<Phase> collective(Collective what, CollectiveAlgorithm algorithm, std::uint64_t bytes,
                              std::span<const std::uint32_t> members,
                              std::span<const std::uint32_t> node = {}, std::uint32_t root = 0);

}  // namespace switchyard::network
