// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/dispatch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard::sim {

ExpertMap::ExpertMap(std::uint32_t gpu_count, const placement::Placement& placement)
    : gpus(gpu_count), ep(placement.ranks) {
  for (const placement::Row& from : placement.rows) {
    Row row;
    row.count.assign(ep, 0);
    row.first.push_back(0);
    for (std::uint32_t e = 0; e < from.size(); ++e) {
      for (const std::uint32_t r : from[e]) {
        row.rank.push_back(r);
        row.local.push_back(row.count[r]++);
        row.expert.push_back(e);
      }
      row.first.push_back(static_cast<std::uint32_t>(row.rank.size()));
      most_copies = std::max(most_copies, row.copies(e));
    }
    rows_.push_back(std::move(row));
  }
}

TrafficBuilder::TrafficBuilder(const scenario::Scenario& scenario, const ExpertMap& map,
                               std::vector<std::uint32_t> node)
    : map_(map),
      kind_(scenario.network.dispatch),
      choice_(scenario.parallel.placement_options.choice),
      dispatch_bytes_(scenario.network.payload.dispatch_bytes(scenario.model.hidden_size)),
      combine_bytes_(scenario.network.payload.combine_bytes(scenario.model.hidden_size)),
      node_(std::move(node)),
      place_(node_.size()) {
  members_.resize(node_.empty() ? 0 : *std::max_element(node_.begin(), node_.end()) + 1);
  for (std::uint32_t g = 0; g < node_.size(); ++g) {
    place_[g] = static_cast<std::uint32_t>(members_[node_[g]].size());
    members_[node_[g]].push_back(g);
  }
  std::erase_if(members_, [](const auto& m) { return m.empty(); });
  if (kind_ == scenario::DispatchKind::kPerNode) {
    for (const auto& m : members_) {
      if (m.size() != members_[0].size()) {
        throw InputError("network.dispatch", "per_node needs the same number of GPUs in every node",
                         "use per_rank");
      }
    }
    // Node numbers without gaps, so that members_[node_[g]] holds.
    for (std::uint32_t n = 0; n < members_.size(); ++n) {
      for (const std::uint32_t g : members_[n]) node_[g] = n;
    }
  }
  if (scenario.network.chunk_by == scenario::ChunkBy::kExperts) {
    expert_groups_ = scenario.network.chunks;
  }
  seen_gpu_.assign(node_.size() * expert_groups_, 0);
  seen_node_.assign(std::max<std::size_t>(members_.size(), 1), 0);
}

std::uint32_t TrafficBuilder::choose(const ExpertMap::Row& row, std::uint32_t expert,
                                     std::uint32_t token, const StepTokens& tokens,
                                     const LayerTraffic& out) {
  const std::uint32_t n = row.copies(expert), first = row.first[expert];
  if (n == 1) return first;
  const std::uint32_t s = tokens.rank[token];
  const std::uint32_t group = s / map_.ep * map_.ep;
  const auto hashed = [&](std::uint32_t of) {
    // The finaliser of splitmix64: neighbouring positions spread evenly.
    std::uint64_t z = (std::uint64_t{tokens.sequence[token]} << 32U | tokens.position[token]) +
                      0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EB;
    return static_cast<std::uint32_t>((z ^ (z >> 31U)) % of);
  };
  switch (choice_) {
    case scenario::ReplicaChoice::kHash:
      break;
    case scenario::ReplicaChoice::kRoundRobin:
      return first + turn_[s / map_.ep * (row.first.size() - 1) + expert]++ % n;
    case scenario::ReplicaChoice::kNearest:
      near_.clear();
      for (std::uint32_t c = first; c < first + n; ++c) {
        if (group + row.rank[c] == s) return c;
        if (node_[group + row.rank[c]] == node_[s]) near_.push_back(c);
      }
      if (!near_.empty()) return near_[hashed(static_cast<std::uint32_t>(near_.size()))];
      break;
    case scenario::ReplicaChoice::kLeastLoaded: {
      std::uint32_t best = first;
      for (std::uint32_t c = first + 1; c < first + n; ++c) {
        if (out.assignments[group + row.rank[c]] < out.assignments[group + row.rank[best]]) {
          best = c;
        }
      }
      return best;
    }
  }
  return first + hashed(n);
}

void TrafficBuilder::build(std::uint32_t layer, const StepTokens& tokens,
                           const LayerDecision& decision, LayerTraffic& out) {
  const std::size_t g = map_.gpus;
  const bool per_node = kind_ == scenario::DispatchKind::kPerNode && members_.size() > 1;
  const std::size_t phases = per_node ? 2 : 1;
  out.dispatch.resize(phases);
  out.combine.resize(phases);
  for (std::size_t p = 0; p < phases; ++p) {
    out.dispatch[p].assign(g * g, 0);
    out.combine[p].assign(g * g, 0);
  }
  const std::size_t k_groups = expert_groups_;
  out.group_dispatch.assign(k_groups > 1 ? k_groups : 0, std::vector<std::uint64_t>(g * g, 0));
  out.group_combine = out.group_dispatch;
  out.assignments.assign(g, 0);
  const ExpertMap::Row& row = map_.row(layer);
  const std::size_t copies = row.rank.size();
  const std::size_t groups = g / map_.ep;
  rows_.assign(groups * copies, 0);    // assignments of (replica group, copy)
  queued_.assign(groups * copies, 0);  // those of them that were queued
  turn_.assign(groups * (row.first.size() - 1), 0);
  out.gpu.assign(decision.outcome.size(), kNoGpu);

  const std::size_t k = decision.slots;
  for (std::uint32_t t = 0; t < decision.tokens; ++t) {
    const std::uint32_t s = tokens.rank[t];
    ++stamp_;
    for (std::size_t j = 0; j < k; ++j) {
      const std::size_t at = t * k + j;
      const auto outcome = static_cast<SlotOutcome>(decision.outcome[at]);
      // A queued slot waits for its first choice and runs there in a later wave.
      const std::uint16_t e = outcome == SlotOutcome::kQueued ? decision.first[at]
                              : outcome == SlotOutcome::kKept || outcome == SlotOutcome::kRerouted
                                  ? decision.chosen[at]
                                  : kNoExpert;
      if (e == kNoExpert) continue;
      const std::uint32_t copy = choose(row, e, t, tokens, out);
      const std::uint32_t d = s / map_.ep * map_.ep + row.rank[copy];
      ++rows_[s / map_.ep * copies + copy];
      if (outcome == SlotOutcome::kQueued) ++queued_[s / map_.ep * copies + copy];
      ++out.assignments[d];
      out.gpu[at] = d;
      if (d == s) continue;
      const std::uint32_t of =
          k_groups > 1 ? expert_group(row.local[copy], row.count[row.rank[copy]], k_groups) : 0;
      const auto count = [&](std::size_t back) {
        out.dispatch[0][s * g + d] += dispatch_bytes_;
        out.combine[back][d * g + s] += combine_bytes_;
        if (k_groups == 1) return;
        out.group_dispatch[of][s * g + d] += dispatch_bytes_;
        out.group_combine[of][d * g + s] += combine_bytes_;
      };
      if (kind_ == scenario::DispatchKind::kPerExpert) {
        count(0);
        continue;
      }
      std::uint32_t& seen = seen_gpu_[d * k_groups + of];
      if (seen == stamp_) continue;
      seen = stamp_;
      if (!per_node || node_[d] == node_[s]) {
        count(phases - 1);
        continue;
      }
      const std::uint32_t relay = members_[node_[d]][place_[s]];
      if (seen_node_[node_[d]] != stamp_) {
        seen_node_[node_[d]] = stamp_;
        out.dispatch[0][s * g + relay] += dispatch_bytes_;
        out.combine[1][relay * g + s] += combine_bytes_;
      }
      if (relay != d) {
        out.dispatch[1][relay * g + d] += dispatch_bytes_;
        out.combine[0][d * g + relay] += combine_bytes_;
      }
    }
  }

  // Waves: what was accepted runs in the first pass; what was queued runs in further passes of at
  // most as many rows as the expert took in the first one (its capacity: a queued slot found it
  // full).
  out.distinct_experts = 0;
  std::size_t waves = 1;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i] == 0) continue;
    ++out.distinct_experts;
    const std::uint32_t pass = std::max(rows_[i] - queued_[i], std::uint32_t{1});
    waves = std::max<std::size_t>(waves, 1 + (queued_[i] + pass - 1) / pass);
  }
  out.waves.resize(waves);
  for (std::size_t w = 0; w < waves; ++w) {
    out.waves[w].resize(g);
    for (std::size_t gpu = 0; gpu < g; ++gpu) {
      out.waves[w][gpu].assign(row.count[gpu % map_.ep], 0);
    }
  }
  for (std::size_t q = 0; q < groups; ++q) {
    for (std::size_t c = 0; c < copies; ++c) {
      const std::size_t i = q * copies + c;
      const std::size_t gpu = q * map_.ep + row.rank[c];
      const std::uint32_t local = row.local[c];
      const std::uint32_t accepted = rows_[i] - queued_[i];
      const std::uint32_t pass = std::max(accepted, std::uint32_t{1});
      out.waves[0][gpu][local] = accepted;
      std::uint32_t left = queued_[i];
      for (std::size_t w = 1; left > 0; ++w) {
        const std::uint32_t now = std::min(left, pass);
        out.waves[w][gpu][local] = now;
        left -= now;
      }
    }
  }
}

}  // namespace switchyard::sim
