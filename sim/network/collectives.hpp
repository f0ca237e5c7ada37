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
// Not modelled: chunks that overlap phases, the additions of a reduction (HBM traffic), NVLink
// SHARP (in-switch reduction), protocol overhead.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.hpp"
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

/// An expert-grouped all-to-all: the exchange cut into the destination's groups of experts, so that
/// a group's GEMM can start when its rows are there. group_bytes: [groups][n·n]; each group without
/// bytes is left out. The phases of the groups follow each other.
std::vector<Phase> grouped_all_to_all(Algorithm algorithm,
                                      std::span<const std::vector<std::uint64_t>> group_bytes,
                                      std::span<const std::uint32_t> node);

// ---- quantised payload ----

/// How a row of `values` travels. int2_halves: an INT4 value as two INT2 halves, high bits first;
/// the receiver can begin with the first half at quarter precision (S1 2.2).
enum class WireFormat : std::uint8_t { kNative, kInt4, kInt2Halves };

struct WireCost {
  std::uint64_t bytes = 0;      ///< On the wire, scales included, all transfers.
  std::uint64_t first = 0;      ///< Of the first transfer (all of them unless halved).
  std::uint32_t transfers = 1;  ///< 2 for halves: each pays the path latency.
  SimTime pack, unpack;         ///< HBM time at either end: read one format, write the other.
};
/// rows · values, native `native_bits` per value (a multiple of 8), one FP32 scale per `block`
/// values (0: none; native has none). hbm: achieved bytes/s of the packing kernel, > 0. pack reads
/// native and writes packed; unpack the reverse. Both 0 for kNative.
WireCost wire_cost(WireFormat format, std::uint64_t rows, std::uint64_t values,
                   std::uint32_t native_bits, std::uint32_t block, BytesPerSecond hbm);

// ---- pipelining with compute ----

/// Time of `k` equal chunks through stages of a pipeline (dispatch, experts, combine; one resource
/// each). Stage s takes fixed[s] per chunk (path latency, launches) and divided[s] for all chunks
/// together:  chunk time c_s = fixed_s + divided_s / k,  total = Σ c_s + (k − 1) · max c_s.
/// k = 1 is the sequence; for fixed = 0 and k → ∞ it falls to the bound max(divided).
SimTime pipelined(std::span<const SimTime> fixed, std::span<const SimTime> divided,
                  std::uint32_t k);

}  // namespace switchyard::network
