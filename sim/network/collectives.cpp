// SPDX-License-Identifier: Apache-2.0
#include "sim/network/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.hpp"

namespace switchyard::network {
namespace {

using Members = std::vector<std::uint32_t>;

/// Blocks of a buffer of S bytes among n members, without overflow for any S.
class Blocks {
 public:
  Blocks(std::uint64_t bytes, std::size_t n) : bytes_(bytes), n_(n) {}
  [[nodiscard]] std::uint64_t operator[](std::size_t i) const { return begin(i + 1) - begin(i); }

 private:
  [[nodiscard]] std::uint64_t begin(std::size_t i) const {
    return bytes_ / n_ * i + bytes_ % n_ * i / n_;
  }
  std::uint64_t bytes_;
  std::size_t n_;
};

void append(std::vector<Phase>& phases, Phase phase) {
  std::erase_if(phase, [](const Transfer& t) { return t.bytes == 0 || t.src == t.dst; });
  if (!phase.empty()) {
    phases.push_back(std::move(phase));
  }
}

/// Ring: in phase s member i passes block (i + shift − s) mod n to the next one. Reduce-scatter
/// passes partial sums so that block i ends at member i; all-gather starts with the own block.
void ring(const Members& m, const Blocks& block, bool reduce, std::vector<Phase>& phases) {
  const std::size_t n = m.size();
  for (std::size_t s = 0; s + 1 < n; ++s) {
    Phase phase;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t b = (i + 2 * n - s - (reduce ? 1 : 0)) % n;
      phase.push_back({m[i], m[(i + 1) % n], block[b]});
    }
    append(phases, std::move(phase));
  }
}

/// One phase: a reduce-scatter sends block j to member j, an all-gather the own block to all.
void direct(const Members& m, const Blocks& block, bool reduce, std::vector<Phase>& phases) {
  Phase phase;
  for (std::size_t i = 0; i < m.size(); ++i) {
    for (std::size_t j = 0; j < m.size(); ++j) {
      if (i != j) {
        phase.push_back({m[i], m[j], block[reduce ? j : i]});
      }
    }
  }
  append(phases, std::move(phase));
}

/// Phases of groups that work side by side: phase p of all groups together.
void side_by_side(std::vector<std::vector<Phase>> groups, std::vector<Phase>& phases) {
  std::size_t longest = 0;
  for (const auto& g : groups) {
    longest = std::max(longest, g.size());
  }
  for (std::size_t p = 0; p < longest; ++p) {
    Phase all;
    for (auto& g : groups) {
      if (p < g.size()) {
        all.insert(all.end(), g[p].begin(), g[p].end());
      }
    }
    append(phases, std::move(all));
  }
}

/// Binomial tree from order[0]: those that have it double in each phase.
void tree_down(const Members& order, std::uint64_t bytes, std::vector<Phase>& phases) {
  const std::size_t n = order.size();
  for (std::size_t have = 1; have < n; have *= 2) {
    Phase phase;
    for (std::size_t i = 0; i < have && have + i < n; ++i) {
      phase.push_back({order[i], order[have + i], bytes});
    }
    append(phases, std::move(phase));
  }
}

std::vector<Members> by_server(const Members& members, std::span<const std::uint32_t> node) {
  std::map<std::uint32_t, Members> servers;
  for (const std::uint32_t e : members) {
    SWITCHYARD_ASSERT(e < node.size(), fmt::format("endpoint {} of {}", e, node.size()));
    servers[node[e]].push_back(e);
  }
  std::vector<Members> out;
  for (auto& [server, list] : servers) {
    out.push_back(std::move(list));
  }
  return out;
}

[[noreturn]] void no_such(Collective what, CollectiveAlgorithm algorithm) {
  throw InputError("network.collective",
                   fmt::format("{} by \"{}\" is unsupported", name_of(what), name_of(algorithm)),
                   "use \"ring\" or \"direct\"");
}

}  // namespace

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kBroadcast:
      break;
  }
  return "broadcast";
}

const char* name_of(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kDirect:
      return "direct";
    case CollectiveAlgorithm::kOneShot:
      return "one_shot";
    case CollectiveAlgorithm::kTree:
      return "tree";
    case CollectiveAlgorithm::kHierarchical:
      break;
  }
  return "hierarchical";
}

std::vector<Phase> collective(Collective what, CollectiveAlgorithm algorithm, std::uint64_t bytes,
                              std::span<const std::uint32_t> members,
                              std::span<const std::uint32_t> node, std::uint32_t root) {
  const Members m(members.begin(), members.end());
  const std::size_t n = m.size();
  std::vector<Phase> phases;
  if (what == Collective::kBroadcast) {
    SWITCHYARD_ASSERT(n == 0 || root < n, fmt::format("root {} of {}", root, n));
  }
  const bool one_shot = algorithm == CollectiveAlgorithm::kOneShot;
  const bool tree = algorithm == CollectiveAlgorithm::kTree;
  const bool hierarchical = algorithm == CollectiveAlgorithm::kHierarchical;
  const bool reduce = what == Collective::kReduceScatter;
  if ((one_shot && what != Collective::kAllReduce) ||
      (tree && what != Collective::kBroadcast && what != Collective::kAllReduce) ||
      (hierarchical && (reduce || what == Collective::kAllGather))) {
    no_such(what, algorithm);
  }
  if (n < 2 || bytes == 0) {
    return phases;
  }
  const Blocks block(bytes, n);
  if (what == Collective::kAllGather || reduce) {
    algorithm == CollectiveAlgorithm::kRing ? ring(m, block, reduce, phases)
                                            : direct(m, block, reduce, phases);
    return phases;
  }
  if (what == Collective::kAllReduce && !hierarchical) {
    if (one_shot) {
      Phase phase;
      for (const std::uint32_t i : m) {
        for (const std::uint32_t j : m) {
          phase.push_back({i, j, bytes});
        }
      }
      append(phases, std::move(phase));
      return phases;
    }
    if (tree) {
      // Sums go up the tree that the result comes down.
      std::vector<Phase> down;
      tree_down(m, bytes, down);
      for (auto phase = down.rbegin(); phase != down.rend(); ++phase) {
        Phase up;
        for (const Transfer& t : *phase) up.push_back({t.dst, t.src, t.bytes});
        phases.push_back(std::move(up));
      }
      phases.insert(phases.end(), down.begin(), down.end());
      return phases;
    }
    for (const bool first : {true, false}) {
      algorithm == CollectiveAlgorithm::kRing ? ring(m, block, first, phases)
                                              : direct(m, block, first, phases);
    }
    return phases;
  }
  if (what == Collective::kAllReduce) {
    const std::vector<Members> servers = by_server(m, node);
    const std::size_t size = servers.front().size();
    for (const Members& s : servers) {
      if (s.size() != size) {
        throw InputError(
            "network.collective",
            fmt::format("\"hierarchical\" with servers of {} and {} members", size, s.size()),
            "use \"ring\"");
      }
    }
    const Blocks own(bytes, size);
    std::vector<std::vector<Phase>> inside(servers.size()), between(size), back(servers.size());
    for (std::size_t s = 0; s < servers.size(); ++s) {
      ring(servers[s], own, true, inside[s]);
      ring(servers[s], own, false, back[s]);
    }
    for (std::size_t l = 0; l < size && servers.size() > 1; ++l) {
      Members place;
      for (const Members& s : servers) {
        place.push_back(s[l]);
      }
      const Blocks part(own[l], place.size());
      direct(place, part, true, between[l]);
      direct(place, part, false, between[l]);
    }
    side_by_side(std::move(inside), phases);
    side_by_side(std::move(between), phases);
    side_by_side(std::move(back), phases);
    return phases;
  }
  // Broadcast.
  Members order;
  for (std::size_t i = 0; i < n; ++i) {
    order.push_back(m[(root + i) % n]);
  }
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      for (std::size_t i = 0; i + 1 < n; ++i) {
        append(phases, {{order[i], order[i + 1], bytes}});
      }
      break;
    case CollectiveAlgorithm::kTree:
      tree_down(order, bytes, phases);
      break;
    case CollectiveAlgorithm::kHierarchical: {
      std::vector<Members> servers = by_server(order, node);
      Phase leaders, inside;
      for (Members& s : servers) {
        // The root leads its own server, wherever it stands in it.
        if (const auto it = std::find(s.begin(), s.end(), order[0]); it != s.end()) {
          std::iter_swap(s.begin(), it);
        }
        leaders.push_back({order[0], s[0], bytes});
        for (std::size_t i = 1; i < s.size(); ++i) {
          inside.push_back({s[0], s[i], bytes});
        }
      }
      append(phases, std::move(leaders));
      append(phases, std::move(inside));
      break;
    }
    default: {
      Phase phase;
      for (std::size_t i = 1; i < n; ++i) {
        phase.push_back({order[0], order[i], bytes});
      }
      append(phases, std::move(phase));
    }
  }
  return phases;
}

}  // namespace switchyard::network
