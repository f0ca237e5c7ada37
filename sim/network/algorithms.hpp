// SPDX-License-Identifier: Apache-2.0
// All-to-all algorithms (M31): a byte matrix becomes a sequence of phases; every GPU enters a phase
// when all have ended the one before, and the transfers of a phase run at once. S = bytes a GPU
// sends in all, its own block included; "uniform" = S/n to each.
//
//   direct               one phase, each ordered pair sends its bytes.
//   ring                 unidirectional store-and-forward: in phase s = 1 … n−1 GPU i passes to
//                        i+1 all bytes of source i−s+1 that still travel on. Uniform load of the
//                        link i → i+1 over all phases: S(n−1)/2.
//   ring_bidirectional   the shorter way round, ⌊n/2⌋ phases; the opposite GPU (n even) gets half
//                        of its bytes each way (the odd byte goes down). Uniform load: S·n/8 for
//                        even n, S(n²−1)/(8n) for odd n.
//   hierarchical         by server: (1) direct inside each server; (2) GPU l of a server sends all
//                        its bytes for another server to GPU (l mod size) there; (3) that one
//                        hands them out inside. Phases without bytes are left out, so on one
//                        server it is direct.
// A phase never holds one pair twice.
//
// Not modelled here: pipelining of phases (a phase boundary is a barrier), chunking, overlap with
// compute.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/network/bottleneck.hpp"

namespace switchyard::network {

enum class Algorithm : std::uint8_t { kDirect, kRing, kRingBidirectional, kHierarchical };
[[nodiscard]] const char* name_of(Algorithm algorithm);

using Phase = std::vector<Transfer>;

/// bytes: [n][n] row-major, the diagonal is ignored. node: [n] server of each GPU (read by
/// hierarchical only). Phases hold no empty transfers and may be none at all.
std::vector<Phase> all_to_all(Algorithm algorithm, std::span<const std::uint64_t> bytes,
                              std::span<const std::uint32_t> node);

}  // namespace switchyard::network
