// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::placement {
namespace {

void require(bool holds, const std::string& rule) {
  if (!holds) throw InputError("placement", "Violated: " + rule);
}

void check_loads(std::span<const double> load) {
  for (std::size_t e = 0; e < load.size(); ++e) {
    if (!std::isfinite(load[e]) || load[e] < 0) {
      throw InputError("placement", fmt::format("the load of expert {} is {}", e, load[e]),
                       "loads are finite and not negative");
    }
  }
}

/// Indices by falling weight, lower index first among equals.
std::vector<std::uint32_t> heaviest_first(std::span<const double> weight) {
  std::vector<std::uint32_t> order(weight.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return weight[a] > weight[b]; });
  return order;
}

/// The expert that the next copy goes to: largest load per copy, lower id among equals; none that
/// has `most` copies, unless all have.
std::uint32_t most_loaded(std::span<const double> load, std::span<const std::uint32_t> copies,
                          std::uint32_t most) {
  std::uint32_t best = 0;
  for (std::uint32_t e = 1; e < load.size(); ++e) {
    const bool full = copies[e] >= most, best_full = copies[best] >= most;
    if (full != best_full ? best_full : load[e] / copies[e] > load[best] / copies[best]) best = e;
  }
  return best;
}

Row row_of_ranks(std::span<const std::uint32_t> rank) {
  Row row(rank.size());
  for (std::size_t e = 0; e < rank.size(); ++e) row[e] = {rank[e]};
  return row;
}

}  // namespace

Row contiguous(std::uint32_t experts, std::uint32_t ranks) {
  require(ranks > 0 && experts % ranks == 0,
          fmt::format("the {} ranks divide the {} experts", ranks, experts));
  Row row(experts);
  for (std::uint32_t e = 0; e < experts; ++e) row[e] = {e / (experts / ranks)};
  return row;
}

Row round_robin(std::uint32_t experts, std::uint32_t ranks) {
  require(ranks > 0 && experts % ranks == 0,
          fmt::format("the {} ranks divide the {} experts", ranks, experts));
  Row row(experts);
  for (std::uint32_t e = 0; e < experts; ++e) row[e] = {e % ranks};
  return row;
}

Packing balanced_packing(std::span<const double> weight, std::uint32_t packs) {
  const std::size_t n = weight.size();
  require(packs > 0 && n % packs == 0, fmt::format("{} packs divide {} items", packs, n));
  const std::size_t room = n / packs;
  Packing out;
  out.pack.assign(n, 0);
  out.place.assign(n, 0);
  if (room == 1) {
    std::iota(out.pack.begin(), out.pack.end(), 0U);
    return out;
  }
  std::vector<double> sum(packs, 0);
  std::vector<std::uint32_t> held(packs, 0);
  for (const std::uint32_t i : heaviest_first(weight)) {
    std::uint32_t best = packs;
    for (std::uint32_t p = 0; p < packs; ++p) {
      if (held[p] < room && (best == packs || sum[p] < sum[best])) best = p;
    }
    out.pack[i] = best;
    out.place[i] = held[best]++;
    sum[best] += weight[i];
  }
  return out;
}

std::vector<std::uint32_t> eplb(std::span<const double> load, const EplbShape& shape) {
  const auto experts = static_cast<std::uint32_t>(load.size());
  check_loads(load);
  require(experts > 0 && shape.ranks > 0 && shape.nodes > 0 && shape.groups > 0,
          "experts, ranks, nodes and groups are above 0");
  require(experts % shape.groups == 0,
          fmt::format("the {} groups divide the {} experts", shape.groups, experts));
  require(shape.ranks % shape.nodes == 0,
          fmt::format("the {} nodes divide the {} ranks", shape.nodes, shape.ranks));
  require(shape.slots % shape.ranks == 0,
          fmt::format("the {} ranks divide the {} slots", shape.ranks, shape.slots));
  require(shape.slots >= experts,
          fmt::format("{} slots hold the {} experts", shape.slots, experts));
  const bool hierarchical = shape.groups % shape.nodes == 0;
  const std::uint32_t groups = hierarchical ? shape.groups : 1;
  const std::uint32_t nodes = hierarchical ? shape.nodes : 1;
  const std::uint32_t group_size = experts / groups;
  const std::uint32_t of_node = experts / nodes;
  const std::uint32_t slots_of_node = shape.slots / nodes;
  const std::uint32_t ranks_of_node = shape.ranks / nodes;
  const std::uint32_t per_rank = shape.slots / shape.ranks;

  // Groups to nodes; `at` is the order in which the nodes hold the experts.
  std::vector<double> group_load(groups, 0);
  for (std::uint32_t e = 0; e < experts; ++e) group_load[e / group_size] += load[e];
  const Packing node_of = balanced_packing(group_load, nodes);
  std::vector<std::uint32_t> at(experts);
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::uint32_t g = e / group_size;
    at[(node_of.pack[g] * (groups / nodes) + node_of.place[g]) * group_size + e % group_size] = e;
  }

  std::vector<std::uint32_t> out(shape.slots);
  std::vector<double> local(of_node), weight(slots_of_node);
  std::vector<std::uint32_t> copies(of_node), expert_of(slots_of_node);
  for (std::uint32_t n = 0; n < nodes; ++n) {
    for (std::uint32_t i = 0; i < of_node; ++i) local[i] = load[at[n * of_node + i]];
    std::fill(copies.begin(), copies.end(), 1U);
    for (std::uint32_t p = 0; p < slots_of_node; ++p) {
      if (p < of_node) {
        expert_of[p] = p;
        continue;
      }
      expert_of[p] = most_loaded(local, copies, slots_of_node);
      ++copies[expert_of[p]];
    }
    for (std::uint32_t p = 0; p < slots_of_node; ++p) {
      weight[p] = local[expert_of[p]] / copies[expert_of[p]];
    }
    const Packing rank_of = balanced_packing(weight, ranks_of_node);
    for (std::uint32_t p = 0; p < slots_of_node; ++p) {
      out[n * slots_of_node + rank_of.pack[p] * per_rank + rank_of.place[p]] =
          at[n * of_node + expert_of[p]];
    }
  }
  return out;
}

Row row_of_slots(std::span<const std::uint32_t> slot_expert, std::uint32_t experts,
                 std::uint32_t ranks) {
  require(ranks > 0 && slot_expert.size() % ranks == 0,
          fmt::format("the {} ranks divide the {} slots", ranks, slot_expert.size()));
  const std::size_t per_rank = slot_expert.size() / ranks;
  Row row(experts);
  for (std::size_t p = 0; p < slot_expert.size(); ++p) {
    require(slot_expert[p] < experts,
            fmt::format("slot {} holds an expert below {}, not {}", p, experts, slot_expert[p]));
    row[slot_expert[p]].push_back(static_cast<std::uint32_t>(p / per_rank));
  }
  for (std::uint32_t e = 0; e < experts; ++e) {
    require(!row[e].empty(), fmt::format("expert {} has a slot", e));
  }
  return row;
}

Row replicated(std::span<const double> load, std::uint32_t slots, std::uint32_t ranks) {
  const auto experts = static_cast<std::uint32_t>(load.size());
  check_loads(load);
  require(experts > 0 && ranks > 0 && slots % ranks == 0 && slots >= experts,
          fmt::format("the {} ranks divide the {} slots, which hold the {} experts", ranks, slots,
                      experts));
  // Contiguous as far as it goes: with E not a multiple of the ranks the first ones hold one more.
  Row row(experts);
  std::vector<std::uint32_t> copies(experts, 1), held(ranks, 0);
  std::uint32_t next = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (std::uint32_t i = 0; i < experts / ranks + (r < experts % ranks ? 1 : 0); ++i, ++next) {
      row[next] = {r};
      ++held[r];
    }
  }
  std::vector<std::uint32_t> further;
  for (std::uint32_t p = experts; p < slots; ++p) {
    further.push_back(most_loaded(load, copies, ranks));
    ++copies[further.back()];
  }
  // Heaviest copies first, as in EPLB's packing.
  std::stable_sort(further.begin(), further.end(), [&](std::uint32_t a, std::uint32_t b) {
    return load[a] / copies[a] > load[b] / copies[b];
  });
  std::vector<double> sum(ranks, 0);
  for (std::uint32_t e = 0; e < experts; ++e) sum[row[e][0]] += load[e] / copies[e];
  const std::uint32_t per_rank = slots / ranks;
  for (const std::uint32_t e : further) {
    std::uint32_t best = ranks;
    bool best_has = false;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (held[r] >= per_rank) continue;
      const bool has = std::find(row[e].begin(), row[e].end(), r) != row[e].end();
      if (best == ranks || (best_has && !has) || (best_has == has && sum[r] < sum[best])) {
        best = r;
        best_has = has;
      }
    }
    row[e].push_back(best);
    ++held[best];
    sum[best] += load[e] / copies[e];
  }
  return row;
}

Row affinity(std::span<const double> load, std::span<const double> together, std::uint32_t ranks,
             double max_imbalance) {
  const auto experts = static_cast<std::uint32_t>(load.size());
  check_loads(load);
  require(ranks > 0 && experts % ranks == 0,
          fmt::format("the {} ranks divide the {} experts", ranks, experts));
  require(together.size() == std::size_t{experts} * experts, "together is a square of the experts");
  const std::uint32_t room = experts / ranks;
  const auto weight = [&](std::uint32_t a, std::uint32_t b) {
    return together[std::size_t{a} * experts + b];
  };
  const double mean = std::accumulate(load.begin(), load.end(), 0.0) / ranks;
  const double most = max_imbalance > 0 ? max_imbalance * mean : 0;

  // Growth: each rank starts with the heaviest expert left and takes those that belong to it most.
  std::vector<std::uint32_t> rank(experts, ranks);
  const std::vector<std::uint32_t> order = heaviest_first(load);
  std::vector<double> sum(ranks, 0);
  std::vector<double> pull(experts);
  std::vector<std::uint32_t> seeds;
  for (const std::uint32_t e : order) {
    if (seeds.size() < ranks) {
      rank[e] = static_cast<std::uint32_t>(seeds.size());
      sum[rank[e]] = load[e];
      seeds.push_back(e);
    }
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (std::uint32_t e = 0; e < experts; ++e) pull[e] = weight(e, seeds[r]);
    for (std::uint32_t i = 1; i < room; ++i) {
      std::uint32_t best = experts;
      bool best_fits = false;
      for (std::uint32_t e = 0; e < experts; ++e) {
        if (rank[e] != ranks) continue;
        const bool fits = most <= 0 || sum[r] + load[e] <= most;
        // Where nothing fits the lightest expert does the least harm.
        if (best == experts || (fits && !best_fits) ||
            (fits == best_fits && (fits ? pull[e] > pull[best] : load[e] < load[best]))) {
          best = e;
          best_fits = fits;
        }
      }
      rank[best] = r;
      sum[r] += load[best];
      for (std::uint32_t e = 0; e < experts; ++e) pull[e] += weight(e, best);
    }
  }

  // bond[e·ranks + r]: co-activation of e with the experts of rank r.
  std::vector<double> bond(std::size_t{experts} * ranks, 0);
  for (std::uint32_t e = 0; e < experts; ++e) {
    for (std::uint32_t f = 0; f < experts; ++f) {
      if (f != e) bond[std::size_t{e} * ranks + rank[f]] += weight(e, f);
    }
  }
  const auto swap = [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t ra = rank[a], rb = rank[b];
    for (std::uint32_t e = 0; e < experts; ++e) {
      double* const own = bond.data() + std::size_t{e} * ranks;
      if (e != a) {
        own[ra] -= weight(e, a);
        own[rb] += weight(e, a);
      }
      if (e != b) {
        own[rb] -= weight(e, b);
        own[ra] += weight(e, b);
      }
    }
    sum[ra] += load[b] - load[a];
    sum[rb] += load[a] - load[b];
    std::swap(rank[a], rank[b]);
  };
  constexpr int kPasses = 50;  // each pass gains; few are needed
  const double tiny = 1e-9 * std::accumulate(together.begin(), together.end(), 1.0);
  for (int pass = 0; pass < kPasses; ++pass) {
    bool moved = false;
    for (std::uint32_t a = 0; a < experts; ++a) {
      std::uint32_t best = experts;
      double best_gain = tiny;
      for (std::uint32_t b = 0; b < experts; ++b) {
        const std::uint32_t ra = rank[a], rb = rank[b];
        if (ra == rb) continue;
        if (most > 0) {
          const double now = std::max(sum[ra], sum[rb]);
          const double then = std::max(sum[ra] + load[b] - load[a], sum[rb] + load[a] - load[b]);
          if (then > most && then > now) continue;
        }
        const double gain = bond[std::size_t{a} * ranks + rb] - bond[std::size_t{a} * ranks + ra] +
                            bond[std::size_t{b} * ranks + ra] - bond[std::size_t{b} * ranks + rb] -
                            2 * weight(a, b);
        if (gain > best_gain) {
          best = b;
          best_gain = gain;
        }
      }
      if (best != experts) {
        swap(a, best);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return row_of_ranks(rank);
}

Row topology_hot(std::span<const double> load, std::span<const double> speed) {
  const auto experts = static_cast<std::uint32_t>(load.size());
  const auto ranks = static_cast<std::uint32_t>(speed.size());
  check_loads(load);
  require(ranks > 0 && experts % ranks == 0,
          fmt::format("the {} ranks divide the {} experts", ranks, experts));
  for (const double v : speed) require(std::isfinite(v) && v > 0, "speeds are above 0 and finite");
  std::vector<std::uint32_t> rank(experts), held(ranks, 0);
  std::vector<double> sum(ranks, 0);
  for (const std::uint32_t e : heaviest_first(load)) {
    std::uint32_t best = ranks;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (held[r] >= experts / ranks) continue;
      if (best == ranks || (sum[r] + load[e]) / speed[r] < (sum[best] + load[e]) / speed[best]) {
        best = r;
      }
    }
    rank[e] = best;
    ++held[best];
    sum[best] += load[e];
  }
  return row_of_ranks(rank);
}

std::vector<double> rank_loads(const Row& row, std::span<const double> load, std::uint32_t ranks) {
  std::vector<double> sum(ranks, 0);
  for (std::size_t e = 0; e < row.size(); ++e) {
    for (const std::uint32_t r : row[e]) sum[r] += load[e] / static_cast<double>(row[e].size());
  }
  return sum;
}

double imbalance(const Row& row, std::span<const double> load, std::uint32_t ranks) {
  const std::vector<double> sum = rank_loads(row, load, ranks);
  const double all = std::accumulate(sum.begin(), sum.end(), 0.0);
  return all > 0 ? *std::max_element(sum.begin(), sum.end()) * ranks / all : 1.0;
}

double kept_together(const Row& row, std::span<const double> together) {
  double kept = 0, all = 0;
  const std::size_t n = row.size();
  for (std::size_t e = 0; e < n; ++e) {
    for (std::size_t f = 0; f < n; ++f) {
      if (e == f) continue;
      all += together[e * n + f];
      if (row[e][0] == row[f][0]) kept += together[e * n + f];
    }
  }
  return all > 0 ? kept / all : 0;
}

std::vector<Duplicate> duplicates(const Placement& placement) {
  std::vector<Duplicate> out;
  std::vector<std::uint32_t> count(placement.ranks, 0);
  for (std::uint32_t l = 0; l < placement.rows.size(); ++l) {
    for (std::uint32_t e = 0; e < placement.rows[l].size(); ++e) {
      const std::vector<std::uint32_t>& ranks = placement.rows[l][e];
      if (ranks.size() < 2) continue;
      for (const std::uint32_t r : ranks) {
        if (++count[r] == 2) out.push_back({l, e, r, 0});
      }
      for (auto d = out.rbegin(); d != out.rend() && d->row == l && d->expert == e; ++d) {
        d->copies = count[d->rank];
      }
      for (const std::uint32_t r : ranks) count[r] = 0;
    }
  }
  return out;
}

std::string describe(std::span<const Duplicate> duplicates) {
  if (duplicates.empty()) return {};
  std::uint64_t idle = 0;
  for (const Duplicate& d : duplicates) idle += d.copies - 1;
  const Duplicate& d = duplicates.front();
  return fmt::format(
      "placement: {} cop{} of an expert on a rank that has one already (first: expert {} of row "
      "{}, "
      "{} copies on rank {}): memory without effect",
      idle, idle == 1 ? "y" : "ies", d.expert, d.row, d.copies, d.rank);
}

}  // namespace switchyard::placement
