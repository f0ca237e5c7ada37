// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/dispatch.hpp"

#include <fmt/format.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.hpp"

namespace switchyard::sim {

ExpertMap::ExpertMap(std::uint32_t gpu_count, const placement::Placement& placement,
                     const scenario::Parallel& layout)
    : ExpertMap(gpu_count, placement, layout.expert_tp) {
  first = layout.first_gpu;
  groups = layout.copies();
}

ExpertMap::ExpertMap(std::uint32_t gpu_count, const placement::Placement& placement,
                     std::uint32_t columns)
    : gpus(gpu_count), ep(placement.ranks), cut(columns) {
  if (ep > 0) groups = gpus / span();
  for (const placement::Row& from : placement.rows) {
    Row row;
    row.count.assign(ep, 0);
    row.first.push_back(0);
    row.of_rank.resize(ep);
    for (std::uint32_t e = 0; e < from.size(); ++e) {
      for (const std::uint32_t r : from[e]) {
        const auto copy = static_cast<std::uint32_t>(row.rank.size());
        const auto own = row.rank.begin() + row.first.back();
        row.serves.push_back(
            static_cast<std::uint32_t>(std::find(own, row.rank.end(), r) - row.rank.begin()));
        row.of_rank[r].push_back(copy);
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
                               std::vector<std::uint32_t> node, scenario::ReplicaChoice choice)
    : map_(map),
      kind_(scenario.network.dispatch),
      choice_(choice),
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
  seen_node_.assign(std::max<std::size_t>(members_.size(), 1) * expert_groups_, 0);
}

std::uint32_t TrafficBuilder::choose(const ExpertMap::Row& row, std::uint32_t expert,
                                     std::uint32_t token, const StepTokens& tokens,
                                     const LayerTraffic& out) {
  const std::uint32_t n = row.copies(expert), first = row.first[expert];
  if (n == 1) return first;
  const std::uint32_t s = tokens.rank[token];
  const std::uint32_t group = map_.base_of(s);
  const auto at = [&](std::uint32_t c) { return group + row.rank[c] * map_.cut; };
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
      return first + turn_[map_.group_of(s) * (row.first.size() - 1) + expert]++ % n;
    case scenario::ReplicaChoice::kNearest:
      near_.clear();
      for (std::uint32_t c = first; c < first + n; ++c) {
        if (at(c) == s) return c;
        if (node_[at(c)] == node_[s]) near_.push_back(c);
      }
      if (!near_.empty()) return near_[hashed(static_cast<std::uint32_t>(near_.size()))];
      break;
    case scenario::ReplicaChoice::kLeastLoaded: {
      std::uint32_t best = first;
      for (std::uint32_t c = first + 1; c < first + n; ++c) {
        if (out.assignments[at(c)] < out.assignments[at(best)]) best = c;
      }
      return best;
    }
  }
  return first + hashed(n);
}

void sum_ports(const std::vector<std::uint64_t>& matrix, PortBytes& out) {
  const auto g = static_cast<std::size_t>(std::llround(std::sqrt(matrix.size())));
  out.out.assign(g, 0);
  out.in.assign(g, 0);
  out.total = 0;
  for (std::size_t i = 0; i < g; ++i) {
    const std::uint64_t* const row = matrix.data() + i * g;
    std::uint64_t sum = 0;
    for (std::size_t j = 0; j < g; ++j) {
      sum += row[j];
      out.in[j] += row[j];
    }
    out.in[i] -= row[i];
    out.out[i] = sum - row[i];
    out.total += out.out[i];
  }
}

namespace {

/// A row of copies: its sum, also added to the column sums `in`; times `size` it is in `bytes`, where
/// that is given.
std::uint32_t row_of(const std::uint32_t* __restrict from, std::size_t g, std::uint64_t size,
                     std::uint32_t* __restrict in, std::uint64_t* __restrict bytes) {
  std::uint32_t sum = 0;
  for (std::size_t j = 0; j < g; ++j) {
    sum += from[j];
    in[j] += from[j];
  }
  if (bytes != nullptr) {
    for (std::size_t j = 0; j < g; ++j) bytes[j] = from[j] * size;
  }
  return sum;
}

/// Side of a tile of the transposition: a cache line of bytes.
constexpr std::size_t kTile = 8;

#ifdef __AVX2__
/// out[j][i] = from[i][j] · size for a whole tile; size below 2^32. Rows are g apart in both.
void transposed_tile(const std::uint32_t* from, std::size_t g, std::uint64_t size,
                     std::uint64_t* out) {
  const __m256i by = _mm256_set1_epi64x(static_cast<std::int64_t>(size));
  const auto put = [by](std::uint64_t* to, __m128i four) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_mul_epu32(_mm256_cvtepu32_epi64(four), by));
  };
  // half[h][j]: column j of the rows 4 h to 4 h + 3 in its lower lane, column j + 4 in its upper.
  __m256i half[2][4];
  for (std::size_t h = 0; h < 2; ++h) {
    __m256i row[4];
    for (std::size_t i = 0; i < 4; ++i) {
      row[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + (4 * h + i) * g));
    }
    const __m256i low_a = _mm256_unpacklo_epi32(row[0], row[1]);
    const __m256i low_b = _mm256_unpacklo_epi32(row[2], row[3]);
    const __m256i high_a = _mm256_unpackhi_epi32(row[0], row[1]);
    const __m256i high_b = _mm256_unpackhi_epi32(row[2], row[3]);
    half[h][0] = _mm256_unpacklo_epi64(low_a, low_b);
    half[h][1] = _mm256_unpackhi_epi64(low_a, low_b);
    half[h][2] = _mm256_unpacklo_epi64(high_a, high_b);
    half[h][3] = _mm256_unpackhi_epi64(high_a, high_b);
  }
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t h = 0; h < 2; ++h) {
      put(out + j * g + 4 * h, _mm256_castsi256_si128(half[h][j]));
      put(out + (j + 4) * g + 4 * h, _mm256_extracti128_si256(half[h][j], 1));
    }
  }
}
#endif

/// out[j][i] = copies[i][j] · size, both [g][g].
void transposed(const std::uint32_t* copies, std::size_t g, std::uint64_t size,
                std::uint64_t* out) {
  // In tiles, along the rows of `out`: it is the larger of the two.
  for (std::size_t left = 0; left < g; left += kTile) {
    const std::size_t right = std::min(g, left + kTile);
    for (std::size_t top = 0; top < g; top += kTile) {
      const std::size_t bottom = std::min(g, top + kTile);
#ifdef __AVX2__
      if (right - left == kTile && bottom - top == kTile && size <= UINT32_MAX) {
        transposed_tile(copies + top * g + left, g, size, out + left * g + top);
        continue;
      }
#endif
      for (std::size_t j = left; j < right; ++j) {
        for (std::size_t i = top; i < bottom; ++i) out[j * g + i] = copies[i * g + j] * size;
      }
    }
  }
}

}  // namespace

void TrafficBuilder::to_bytes(const std::uint32_t* copies, PortBytes& there, PortBytes& back,
                              std::vector<std::uint64_t>* dispatch,
                              std::vector<std::uint64_t>* combine) {
  const std::size_t g = map_.gpus;
  in_.assign(g, 0);
  for (auto* v : {&there.out, &there.in, &back.out, &back.in}) v->resize(g);
  if (dispatch != nullptr) {
    dispatch->resize(g * g);
    combine->resize(g * g);
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < g; ++i) {
    const std::uint32_t* const from = copies + i * g;
    std::uint64_t* const bytes = dispatch == nullptr ? nullptr : dispatch->data() + i * g;
    const std::uint64_t sum = row_of(from, g, dispatch_bytes_, in_.data(), bytes);
    there.out[i] = sum * dispatch_bytes_;
    back.in[i] = sum * combine_bytes_;
    total += sum;
  }
  for (std::size_t j = 0; j < g; ++j) {
    there.in[j] = in_[j] * dispatch_bytes_;
    back.out[j] = in_[j] * combine_bytes_;
  }
  there.total = total * dispatch_bytes_;
  back.total = total * combine_bytes_;
  if (combine == nullptr) return;
  transposed(copies, g, combine_bytes_, combine->data());
}

void TrafficBuilder::count_plain(const ExpertMap::Row& row, const StepTokens& tokens,
                                 const LayerDecision& decision, LayerTraffic& out) {
  const std::size_t g = map_.gpus, k = decision.slots, copies = row.rank.size();
  const std::uint32_t span = map_.span(), cut = map_.cut, origin = map_.first;
  const std::uint32_t* const rank = row.rank.data();
  for (std::uint32_t t = 0; t < decision.tokens; ++t) {
    const std::uint32_t s = tokens.rank[t];
    const std::uint32_t group = map_.groups == 1 ? 0 : (s - origin) / span;
    const std::uint32_t base = origin + group * span;
    std::uint32_t* const sent = out.copies.data() + s * g;
    std::uint32_t* const rows = rows_.data() + group * copies;
    std::uint32_t* const queued = queued_.data() + group * copies;
    // Most tokens of most runs: eight choices, all kept.
    std::uint64_t eight = 0;
    if (k == 8) std::memcpy(&eight, decision.outcome.data() + t * k, 8);
    if (eight == kEightKept) {
      const std::uint16_t* const chosen = decision.chosen.data() + t * 8;
      std::uint32_t* const gpu = out.gpu.data() + t * 8;
      for (std::size_t j = 0; j < 8; ++j) {
        const std::uint32_t e = chosen[j], d = base + rank[e] * cut;
        ++rows[e];
        ++sent[d];
        gpu[j] = d;
      }
      continue;
    }
    for (std::size_t at = t * k; at < (t + 1) * k; ++at) {
      const auto outcome = static_cast<SlotOutcome>(decision.outcome[at]);
      std::uint32_t e = decision.chosen[at];
      if (outcome == SlotOutcome::kQueued) {
        e = decision.first[at];
        ++queued[e];
      } else if (outcome == SlotOutcome::kNoSlot || outcome == SlotOutcome::kDropped) {
        out.gpu[at] = kNoGpu;
        continue;
      }
      const std::uint32_t d = base + rank[e] * cut;  // Copy e is that of expert e.
      ++rows[e];
      ++sent[d];
      out.gpu[at] = d;
    }
  }
  for (std::size_t i = 0; i < g; ++i) out.copies[i * g + i] = 0;
  for (std::size_t q = 0; q < rows_.size() / copies; ++q) {
    for (std::size_t c = 0; c < copies; ++c) {
      out.assignments[origin + q * span + row.rank[c] * cut] += rows_[q * copies + c];
    }
  }
}

void TrafficBuilder::build(std::uint32_t layer, const StepTokens& tokens,
                           const LayerDecision& decision, LayerTraffic& out, bool matrices) {
  const std::size_t g = map_.gpus;
  const bool per_node = kind_ == scenario::DispatchKind::kPerNode && members_.size() > 1;
  const std::size_t phases = per_node ? 2 : 1;
  const std::size_t k_groups = expert_groups_;
  out.copies.assign(phases * g * g, 0);
  group_copies_.assign(k_groups > 1 ? k_groups * phases * g * g : 0, 0);
  out.assignments.assign(g, 0);
  out.passed_on.assign(per_node ? g : 0, 0);
  out.group_passed_on.assign(per_node && k_groups > 1 ? k_groups : 0,
                             std::vector<std::uint64_t>(g, 0));
  const ExpertMap::Row& row = map_.row(layer);
  const std::size_t copies = row.rank.size();
  const std::uint32_t span = map_.span(), cut = map_.cut, origin = map_.first;
  const std::size_t groups = map_.groups;
  rows_.assign(groups * copies, 0);    // assignments of (replica group, copy)
  queued_.assign(groups * copies, 0);  // those of them that were queued
  turn_.assign(groups * (row.first.size() - 1), 0);

  const std::size_t k = decision.slots;
  if (kind_ == scenario::DispatchKind::kPerExpert && k_groups == 1 &&
      copies + 1 == row.first.size() && map_.most_copies == 1) {
    out.gpu.resize(decision.outcome.size());
    count_plain(row, tokens, decision, out);
  } else {
    out.gpu.assign(decision.outcome.size(), kNoGpu);
    for (std::uint32_t t = 0; t < decision.tokens; ++t) {
      const std::uint32_t s = tokens.rank[t];
      const std::uint32_t base = map_.base_of(s);
      const std::size_t group = map_.group_of(s);
      ++stamp_;
      relays_.clear();
      for (std::size_t j = 0; j < k; ++j) {
        const std::size_t at = t * k + j;
        const auto outcome = static_cast<SlotOutcome>(decision.outcome[at]);
        // A queued slot waits for its first choice and runs there in a later wave.
        const std::uint16_t e = outcome == SlotOutcome::kQueued ? decision.first[at]
                                : outcome == SlotOutcome::kKept || outcome == SlotOutcome::kRerouted
                                    ? decision.chosen[at]
                                    : kNoExpert;
        if (e == kNoExpert) continue;
        const std::uint32_t copy = row.serves[choose(row, e, t, tokens, out)];
        const std::uint32_t d = base + row.rank[copy] * cut;
        ++rows_[group * copies + copy];
        if (outcome == SlotOutcome::kQueued) ++queued_[group * copies + copy];
        ++out.assignments[d];
        out.gpu[at] = d;
        if (d == s) continue;
        const std::uint32_t of =
            k_groups > 1 ? expert_group(row.local[copy], row.count[row.rank[copy]], k_groups) : 0;
        if (kind_ != scenario::DispatchKind::kPerExpert) {
          std::uint32_t& seen = seen_gpu_[d * k_groups + of];
          if (seen == stamp_) continue;
          seen = stamp_;
        }
        if (!per_node || node_[d] == node_[s]) {
          ++out.copies[s * g + d];
          if (k_groups > 1) ++group_copies_[(of * phases * g + s) * g + d];
          continue;
        }
        const std::uint32_t relay = members_[node_[d]][place_[s]];
        if (std::uint32_t& seen = seen_node_[node_[d] * k_groups + of]; seen != stamp_) {
          seen = stamp_;
          ++out.copies[s * g + relay];
          if (k_groups > 1) ++group_copies_[(of * phases * g + s) * g + relay];
          relays_.emplace_back(relay, of);
        }
        if (relay == d) continue;
        ++out.copies[(g + relay) * g + d];
        if (k_groups > 1) ++group_copies_[((of * phases + 1) * g + relay) * g + d];
      }
      for (const auto& [relay, of] : relays_) {
        if (seen_gpu_[relay * k_groups + of] == stamp_) continue;
        ++out.passed_on[relay];
        if (k_groups > 1) ++out.group_passed_on[of][relay];
      }
    }
  }

  // The last of the ways there is the first of the ways back.
  for (auto* v : {&out.dispatch, &out.combine}) v->resize(matrices ? phases : 0);
  for (auto* v : {&out.dispatch_ports, &out.combine_ports}) v->resize(phases);
  for (std::size_t p = 0; p < phases; ++p) {
    const std::size_t q = phases - 1 - p;
    to_bytes(out.copies.data() + p * g * g, out.dispatch_ports[p], out.combine_ports[q],
             matrices ? &out.dispatch[p] : nullptr, matrices ? &out.combine[q] : nullptr);
  }
  out.group_dispatch.resize(k_groups > 1 ? k_groups : 0);
  out.group_combine.resize(out.group_dispatch.size());
  for (std::size_t of = 0; of < out.group_dispatch.size(); ++of) {
    out.group_dispatch[of].resize(phases);
    out.group_combine[of].resize(phases);
    for (std::size_t p = 0; p < phases; ++p) {
      PortBytes there, back;  // Those of the parts are asked for by nobody.
      to_bytes(group_copies_.data() + (of * phases + p) * g * g, there, back,
               &out.group_dispatch[of][p], &out.group_combine[of][phases - 1 - p]);
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
  const std::size_t beyond = origin + groups * span;
  for (std::size_t w = 0; w < waves; ++w) {
    out.waves[w].resize(g);
    for (std::size_t gpu = 0; gpu < g; ++gpu) {
      const bool holds = gpu >= origin && gpu < beyond;
      out.waves[w][gpu].assign(holds ? row.count[(gpu - origin) % span / cut] : 0, 0);
    }
  }
  for (std::size_t q = 0; q < groups; ++q) {
    for (std::size_t c = 0; c < copies; ++c) {
      const std::size_t i = q * copies + c;
      const std::size_t gpu = origin + q * span + row.rank[c] * cut;
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
  for (std::size_t w = 0; w < waves && cut > 1; ++w) {
    for (std::size_t gpu = origin; gpu < beyond; ++gpu) {
      const std::size_t column = (gpu - origin) % cut;
      if (column > 0) out.waves[w][gpu] = out.waves[w][gpu - column];
    }
  }
}

}  // namespace switchyard::sim
