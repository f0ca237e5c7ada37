// SPDX-License-Identifier: Apache-2.0
#include "sim/network/algorithms.hpp"

#include <fmt/format.h>

#include <map>

#include "engine/base/error.hpp"

namespace switchyard::network {
namespace {

/// Collects transfers with their pairs in order, each pair once.
class PhaseBuilder {
 public:
  void add(std::uint32_t src, std::uint32_t dst, std::uint64_t bytes) {
    if (src != dst && bytes != 0) {
      sum_[{src, dst}] += bytes;
    }
  }
  void close(std::vector<Phase>& phases) {
    if (!sum_.empty()) {
      Phase phase;
      for (const auto& [pair, bytes] : sum_) {
        phase.push_back({pair.first, pair.second, bytes});
      }
      phases.push_back(std::move(phase));
      sum_.clear();
    }
  }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> sum_;
};

/// What one direction of the ring carries: share(o, d) bytes from o to the GPU d steps further on.
template <class Share>
void ring_direction(std::uint32_t n, bool upward, std::uint32_t longest, Share share,
                    std::vector<PhaseBuilder>& phases) {
  for (std::uint32_t o = 0; o < n; ++o) {
    std::uint64_t travelling = 0;
    for (std::uint32_t d = 1; d <= longest; ++d) {
      travelling += share(o, d);
    }
    for (std::uint32_t s = 1; s <= longest; ++s) {
      const std::uint32_t at = upward ? (o + s - 1) % n : (o + n - (s - 1)) % n;
      const std::uint32_t next = upward ? (at + 1) % n : (at + n - 1) % n;
      phases[s - 1].add(at, next, travelling);
      travelling -= share(o, s);
    }
  }
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRingBidirectional:
      return "ring_bidirectional";
    case Algorithm::kHierarchical:
      break;
  }
  return "hierarchical";
}

std::vector<Phase> all_to_all(Algorithm algorithm, std::span<const std::uint64_t> bytes,
                              std::span<const std::uint32_t> node) {
  const auto n = static_cast<std::uint32_t>(node.size());
  SWITCHYARD_ASSERT(bytes.size() == static_cast<std::size_t>(n) * n,
                    fmt::format("{} bytes for {} GPUs", bytes.size(), n));
  const auto at = [&](std::uint32_t i, std::uint32_t j) {
    return bytes[static_cast<std::size_t>(i) * n + j];
  };
  std::vector<Phase> result;
  std::vector<PhaseBuilder> phases;
  switch (algorithm) {
    case Algorithm::kDirect: {
      Phase phase;
      for (std::uint32_t i = 0; i < n; ++i) {
        for (std::uint32_t j = 0; j < n; ++j) {
          if (i != j && at(i, j) != 0) {
            phase.push_back({i, j, at(i, j)});
          }
        }
      }
      if (!phase.empty()) {
        result.push_back(std::move(phase));
      }
      return result;
    }
    case Algorithm::kRing:
      phases.resize(n > 1 ? n - 1 : 0);
      ring_direction(
          n, true, n - 1, [&](std::uint32_t o, std::uint32_t d) { return at(o, (o + d) % n); },
          phases);
      break;
    case Algorithm::kRingBidirectional: {
      phases.resize(n / 2);
      const auto opposite = [&](std::uint32_t d) { return n % 2 == 0 && d == n / 2; };
      ring_direction(
          n, true, n / 2,
          [&](std::uint32_t o, std::uint32_t d) {
            const std::uint64_t b = at(o, (o + d) % n);
            return opposite(d) ? b / 2 : b;
          },
          phases);
      ring_direction(
          n, false, n / 2,
          [&](std::uint32_t o, std::uint32_t d) {
            const std::uint64_t b = at(o, (o + n - d) % n);
            return opposite(d) ? b - b / 2 : b;
          },
          phases);
      break;
    }
    case Algorithm::kHierarchical: {
      phases.resize(3);
      std::map<std::uint32_t, std::vector<std::uint32_t>> members;
      std::vector<std::uint32_t> local(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        local[i] = static_cast<std::uint32_t>(members[node[i]].size());
        members[node[i]].push_back(i);
      }
      for (std::uint32_t i = 0; i < n; ++i) {
        for (std::uint32_t j = 0; j < n; ++j) {
          if (node[i] == node[j]) {
            phases[0].add(i, j, at(i, j));
            continue;
          }
          const auto& there = members[node[j]];
          const std::uint32_t relay = there[local[i] % there.size()];
          phases[1].add(i, relay, at(i, j));
          phases[2].add(relay, j, at(i, j));
        }
      }
      break;
    }
  }
  for (PhaseBuilder& phase : phases) {
    phase.close(result);
  }
  return result;
}

}  // namespace switchyard::network
