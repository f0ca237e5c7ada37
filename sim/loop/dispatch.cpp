// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/dispatch.hpp"

#include <fmt/format.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

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

/// A row of copies: its sum, also added to the column sums `in`; times `size` it is in `bytes`,
/// where that is given.
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

void TrafficBuilder::begin_bytes(PortBytes& there, PortBytes& back,
                                 std::vector<std::uint64_t>* dispatch,
                                 std::vector<std::uint64_t>* combine) {
  const std::size_t g = map_.gpus;
  in_.assign(g, 0);
  for (auto* v : {&there.out, &there.in, &back.out, &back.in}) v->resize(g);
  there.total = back.total = 0;
  for (auto* matrix : {dispatch, combine}) {
    if (matrix != nullptr) matrix->resize(g * g);
  }
}

void TrafficBuilder::rows_to_bytes(const std::uint32_t* copies, std::size_t begin, std::size_t end,
                                   PortBytes& there, PortBytes& back,
                                   std::vector<std::uint64_t>* dispatch) {
  const std::size_t g = map_.gpus;
  std::uint64_t total = 0;
  for (std::size_t i = begin; i < end; ++i) {
    std::uint64_t* const bytes = dispatch == nullptr ? nullptr : dispatch->data() + i * g;
    const std::uint64_t sum = row_of(copies + i * g, g, dispatch_bytes_, in_.data(), bytes);
    there.out[i] = sum * dispatch_bytes_;
    back.in[i] = sum * combine_bytes_;
    total += sum;
  }
  there.total += total * dispatch_bytes_;
  back.total += total * combine_bytes_;
}

void TrafficBuilder::end_bytes(const std::uint32_t* copies, PortBytes& there, PortBytes& back,
                               std::vector<std::uint64_t>* combine) {
  const std::size_t g = map_.gpus;
  for (std::size_t j = 0; j < g; ++j) {
    there.in[j] = in_[j] * dispatch_bytes_;
    back.out[j] = in_[j] * combine_bytes_;
  }
  if (combine != nullptr) transposed(copies, g, combine_bytes_, combine->data());
}

void TrafficBuilder::to_bytes(const std::uint32_t* copies, PortBytes& there, PortBytes& back,
                              std::vector<std::uint64_t>* dispatch,
                              std::vector<std::uint64_t>* combine) {
  begin_bytes(there, back, dispatch, combine);
  rows_to_bytes(copies, 0, map_.gpus, there, back, dispatch);
  end_bytes(copies, there, back, combine);
}

/// The layers of a step ask for the same tokens again and again.
void TrafficBuilder::sort_by_tile(const std::vector<std::uint16_t>& rank) {
  if (sorted_ == rank && !tile_begin_.empty()) return;
  sorted_ = rank;
  tile_begin_.assign((map_.gpus + kTile - 1) / kTile + 1, 0);
  for (const std::uint16_t s : rank) ++tile_begin_[s / kTile + 1];
  std::partial_sum(tile_begin_.begin(), tile_begin_.end(), tile_begin_.begin());
  by_tile_.resize(rank.size());
  std::vector<std::uint32_t> next(tile_begin_.begin(), tile_begin_.end() - 1);
  for (std::uint32_t t = 0; t < rank.size(); ++t) by_tile_[next[rank[t] / kTile]++] = t;
}

/// Counts what the GPUs of a tile send, in their rows of out.copies, and the rows of the experts.
void TrafficBuilder::count_tile(std::size_t tile, const LayerDecision& decision,
                                LayerTraffic& out) {
  const std::size_t g = map_.gpus, k = decision.slots, copies = column_.size();
  const std::uint32_t span = map_.span(), origin = map_.first, groups = map_.groups;
  // Stores of bytes could change anything to the compiler: it would read all pointers again.
  const std::uint32_t* const column = column_.data();
  const std::uint32_t* const tokens = by_tile_.data();
  const std::uint16_t* const source = sorted_.data();
  const std::uint8_t* const outcomes = decision.outcome.data();
  const std::uint16_t *const first = decision.first.data(), *const chosen = decision.chosen.data();
  std::uint32_t *const gpu = out.gpu.data(), *const matrix = out.copies.data();
  std::uint32_t *const all_rows = rows_.data(), *const all_queued = queued_.data();
  for (std::uint32_t i = tile_begin_[tile], end = tile_begin_[tile + 1]; i < end; ++i) {
    const std::size_t t = tokens[i];
    const std::uint32_t s = source[t];
    const std::uint32_t group = groups == 1 ? 0 : (s - origin) / span;
    const std::uint32_t base = origin + group * span;
    std::uint32_t* const sent = matrix + s * g;
    std::uint32_t* const rows = all_rows + group * copies;
    // Most tokens of most runs: eight choices, all kept.
    std::uint64_t eight = 0;
    if (k == 8) std::memcpy(&eight, outcomes + t * k, 8);
    if (eight == kEightKept) {
      // Four are loaded at once and stored two by two: loads and stores are what it costs.
      std::uint64_t fours[2];
      std::memcpy(fours, chosen + t * 8, sizeof fours);
      for (std::size_t half = 0; half < 2; ++half) {
        const std::uint64_t four = fours[half];
        const std::uint32_t e0 = four & 0xFFFF, e1 = four >> 16U & 0xFFFF;
        const std::uint32_t e2 = four >> 32U & 0xFFFF, e3 = static_cast<std::uint32_t>(four >> 48U);
        const std::uint32_t d0 = base + column[e0], d1 = base + column[e1];
        const std::uint32_t d2 = base + column[e2], d3 = base + column[e3];
        ++rows[e0];
        ++rows[e1];
        ++rows[e2];
        ++rows[e3];
        ++sent[d0];
        ++sent[d1];
        ++sent[d2];
        ++sent[d3];
        const std::uint64_t pairs[2] = {d0 | std::uint64_t{d1} << 32U,
                                        d2 | std::uint64_t{d3} << 32U};
        std::memcpy(gpu + t * 8 + half * 4, &pairs[0], 8);
        std::memcpy(gpu + t * 8 + half * 4 + 2, &pairs[1], 8);
      }
      continue;
    }
    for (std::size_t at = t * k; at < (t + 1) * k; ++at) {
      const auto outcome = static_cast<SlotOutcome>(outcomes[at]);
      if (outcome == SlotOutcome::kNoSlot || outcome == SlotOutcome::kDropped) {
        gpu[at] = kNoGpu;
        continue;
      }
      const bool queued = outcome == SlotOutcome::kQueued;
      const std::uint32_t e = queued ? first[at] : chosen[at];
      if (queued) ++all_queued[group * copies + e];
      const std::uint32_t d = base + column[e];  // Copy e is that of expert e.
      ++rows[e];
      ++sent[d];
      gpu[at] = d;
    }
  }
}

void TrafficBuilder::count_plain(const ExpertMap::Row& row, const StepTokens& tokens,
                                 const LayerDecision& decision, LayerTraffic& out) {
  const std::size_t g = map_.gpus, copies = row.rank.size();
  SWITCHYARD_ASSERT(tokens.rank.size() == decision.tokens, "decisions of other tokens");
  sort_by_tile(tokens.rank);
  column_.resize(copies);
  for (std::size_t c = 0; c < copies; ++c) column_[c] = row.rank[c] * map_.cut;
  auto* const dispatch = out.dispatch.empty() ? nullptr : out.dispatch.data();
  auto* const combine = out.combine.empty() ? nullptr : out.combine.data();
  PortBytes &there = out.dispatch_ports[0], &back = out.combine_ports[0];
  begin_bytes(there, back, dispatch, combine);
  // A tile of rows is in the nearest cache while it is counted and turned to bytes.
  for (std::size_t begin = 0; begin < g; begin += kTile) {
    const std::size_t end = std::min(g, begin + kTile);
    std::fill_n(out.copies.data() + begin * g, (end - begin) * g, 0);
    count_tile(begin / kTile, decision, out);
    // What a GPU keeps does not travel.
    for (std::size_t s = begin; s < end; ++s) {
      out.assignments[s] = std::exchange(out.copies[s * g + s], 0);
    }
    rows_to_bytes(out.copies.data(), begin, end, there, back, dispatch);
  }
  end_bytes(out.copies.data(), there, back, combine);
  for (std::size_t s = 0; s < g; ++s) out.assignments[s] += in_[s];
}

void TrafficBuilder::build(std::uint32_t layer, const StepTokens& tokens,
                           const LayerDecision& decision, LayerTraffic& out, bool matrices) {
  const std::size_t g = map_.gpus;
  const bool per_node = kind_ == scenario::DispatchKind::kPerNode && members_.size() > 1;
  const std::size_t phases = per_node ? 2 : 1;
  const std::size_t k_groups = expert_groups_;
  const bool plain = kind_ == scenario::DispatchKind::kPerExpert && k_groups == 1 &&
                     map_.row(layer).rank.size() + 1 == map_.row(layer).first.size() &&
                     map_.most_copies == 1;
  out.copies.resize(phases * g * g);
  if (!plain) std::fill(out.copies.begin(), out.copies.end(), 0);
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

  for (auto* v : {&out.dispatch, &out.combine}) v->resize(matrices ? phases : 0);
  for (auto* v : {&out.dispatch_ports, &out.combine_ports}) v->resize(phases);

  const std::size_t k = decision.slots;
  if (plain) {
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
  for (std::size_t p = 0; p < phases && !plain; ++p) {
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
