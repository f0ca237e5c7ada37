// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/kv_shards.hpp"

#include <algorithm>
#include <map>

namespace switchyard::sim {

std::vector<KvTransfer> kv_shards(KvGroup from, KvGroup to, std::uint32_t heads,
                                  std::uint64_t bytes) {
  // GPUs that hold a head, and heads of a GPU, on either side.
  const std::uint32_t have = std::max(from.tp / heads, 1U), want = std::max(to.tp / heads, 1U);
  const std::uint32_t each = std::max(heads / to.tp, 1U);
  const auto holder = [&](std::uint32_t head, std::uint32_t nth) {
    return from.tp > heads ? head * have + nth : head * from.tp / heads;
  };
  std::vector<KvTransfer> out;
  for (std::uint32_t j = 0; j < to.tp; ++j) {
    const std::uint32_t first = j / want * each, nth = j % want * have / want;
    std::map<std::uint32_t, std::uint32_t> parts;  // sender → heads
    for (std::uint32_t h = first; h < first + each; ++h) ++parts[holder(h, nth)];
    std::uint32_t before = 0;
    for (const auto& [sender, n] : parts) {
      const std::uint64_t part = bytes * (before + n) / each - bytes * before / each;
      before += n;
      if (part > 0) out.push_back({from.first_gpu + sender, to.first_gpu + j, part});
    }
  }
  return out;
}

}  // namespace switchyard::sim
