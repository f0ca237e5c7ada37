// SPDX-License-Identifier: Apache-2.0
// Who sends whom what when a sequence's pages go from a tensor-parallel group of tp GPUs to one of
// another width. Of `heads` KV heads GPU i of a group of tp has
//
//   tp <= heads: the heads i * heads / tp to (i + 1) * heads / tp - 1
//   tp > heads:  head i * heads / tp, which tp / heads neighbouring GPUs hold each
//
// (sim/scenario/shard.hpp; tp divides heads or the other way round). A GPU of the receiving group
// gets each of its heads from one GPU that has it. Where several have it, the m-th of the r' that
// want it gets it from the ⌊m * r / r'⌋-th of the r that do, so senders share the work and groups
// of one width pair off. MLA's latents are not divided: heads = 1, every GPU holds all of them, and
// every receiver gets a whole copy, as vLLM and SGLang keep it.
//
// Not modelled: a receiver that gets one copy and passes it on to those that want the same.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/loop/step_plan.hpp"

namespace switchyard::sim {

struct KvGroup {
  std::uint32_t first_gpu = 0, tp = 1;
};

/// `bytes` > 0 to each GPU of `to`, in the order of its GPUs, then of the senders; a pair of GPUs
/// once. Of several heads each sender's part is its share of the heads, to the byte below (the
/// parts add up to `bytes`).
[[nodiscard]] std::vector<KvTransfer> kv_shards(KvGroup from, KvGroup to, std::uint32_t heads,
                                                std::uint64_t bytes);

}  // namespace switchyard::sim
