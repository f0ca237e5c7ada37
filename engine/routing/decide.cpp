// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/decide.hpp"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/rows.hpp"
#include "engine/routing/scores.hpp"

namespace switchyard {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr std::uint8_t kKept = static_cast<std::uint8_t>(SlotOutcome::kKept);
constexpr std::uint8_t kRerouted = static_cast<std::uint8_t>(SlotOutcome::kRerouted);
constexpr std::uint8_t kQueued = static_cast<std::uint8_t>(SlotOutcome::kQueued);
constexpr std::uint8_t kDropped = static_cast<std::uint8_t>(SlotOutcome::kDropped);

/// A token that keeps its eight first choices; false, and nothing done: one of them is no expert.
bool keep_eight(const std::uint16_t* ids, std::uint32_t experts, std::uint32_t* demand,
                std::uint16_t* first, std::uint16_t* chosen, std::uint8_t* outcome) {
  static_assert(kNoExpert == 0xFFFF);
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(ids));
  const __m128i beyond = _mm_set1_epi16(static_cast<short>(std::min(experts, 0xFFFFU)));
  if (_mm_movemask_epi8(_mm_cmpeq_epi16(_mm_max_epu16(x, beyond), x)) != 0) return false;
  for (std::size_t j = 0; j < 8; ++j) ++demand[ids[j]];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(first), x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(chosen), x);
  std::memset(outcome, kKept, 8);
  return true;
}

/// One call of decide(): the inputs by reference and the algorithm's parts.
class Decider {
 public:
  /// `maker` is null for the family's plain choice: the first k candidates.
  Decider(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
          const CandidatesView& candidates, std::span<const float> bias, RowMaker* maker,
          DecideWorkspace& workspace, LayerDecision& out)
      : gate_(gate),
        cap_(policy.capacity),
        renorm_(policy.renorm),
        linear_(policy.score == ScoreRule::kLinear),
        by_sel_(!policy.two_tier.on()),
        weighs_(maker != nullptr || !candidates.logit.empty() || candidates.tokens == 0),
        step_(step),
        cand_(candidates),
        bias_(bias),
        maker_(maker),
        rows_(maker == nullptr ? nullptr : &maker->rows()),
        w_(workspace),
        out_(out),
        tokens_(candidates.tokens),
        slots_(rows_ == nullptr ? gate.top_k : rows_->slots),
        width_(candidates.width),
        experts_(gate.experts) {}

  void run() {
    prepare();
    if (maker_ == nullptr && cap_.rule == CapacityRule::kNone) {
      keep_first_choices();
      return;
    }
    const bool sequential = resolved_mode(cap_) == OverflowMode::kSequential;
    if (maker_ != nullptr && cap_.rule != CapacityRule::kNone && sequential && !needs_demand()) {
      set_capacities();
      for (std::uint32_t t = 0; t < tokens_; ++t) {
        maker_->make_row(t, w_.queue, out_.chosen);
        take_row(t);
        accept_in_turn(t);
      }
    } else {
      if (maker_ != nullptr) {
        for (std::uint32_t t = 0; t < tokens_; ++t) {
          maker_->make_row(t, w_.queue, out_.first);
          take_row(t);
          for (std::uint32_t j = 0; j < w_.next[t]; ++j) {
            ++w_.queue[out_.first[slot_at(t, j)]];
          }
        }
      } else {
        take_first_choices();
      }
      if (cap_.rule == CapacityRule::kNone) {
        keep_all();
      } else {
        set_capacities();
        if (maker_ == nullptr) {
          find_usable();
        }
        if (sequential) {
          for (std::uint32_t t = 0; t < tokens_; ++t) {
            accept_in_turn(t);
          }
        } else {
          rounds();
        }
      }
    }
    count_and_weigh();
    set_waves();
  }

 private:
  [[nodiscard]] std::uint64_t slot_at(std::uint32_t t, std::uint32_t j) const {
    return row_offset(t, slots_, j);
  }
  [[nodiscard]] std::uint64_t cand_at(std::uint32_t t, std::uint32_t r) const {
    return row_offset(t, width_, r);
  }
  /// Candidate r of token t, one beyond the given ones too once fetch_more() has got them.
  [[nodiscard]] std::uint16_t id(std::uint32_t t, std::uint32_t r) const {
    return r < width_ ? cand_.ids[cand_at(t, r)] : w_.more[row_offset(w_.more_of[t], experts_, r)];
  }
  [[nodiscard]] std::uint32_t partition_of(std::uint32_t t) const {
    return w_.partition.empty() ? 0 : w_.partition[t];
  }
  [[nodiscard]] std::uint32_t place_of(std::uint32_t t, std::uint32_t r) const {
    return partition_of(t) * experts_ + id(t, r);
  }
  [[nodiscard]] bool has_room(std::uint32_t place) const {
    return w_.load[place] < w_.capacity[place / experts_];
  }
  [[nodiscard]] float probability(std::uint32_t t, std::uint32_t r) const {
    if (rows_ != nullptr) {
      return rows_->p[cand_at(t, r)];
    }
    return gate_probability(gate_, cand_.logit[cand_at(t, r)], cand_.lse[t]);
  }
  /// Selection score for max_score_drop.
  [[nodiscard]] double selection(std::uint32_t t, std::uint32_t r) const {
    if (rows_ != nullptr) {
      return rows_->sel[cand_at(t, r)];
    }
    const float p = probability(t, r);
    const bool biased = !bias_.empty() && gate_.score != GateScore::kIdentity;
    return biased ? p + bias_[cand_.ids[cand_at(t, r)]] : p;
  }
  [[nodiscard]] bool score_allows(std::uint32_t t, std::uint32_t first, std::uint32_t r) const {
    return !cap_.max_score_drop ||
           selection(t, r) >= (1.0 - *cap_.max_score_drop) * selection(t, first);
  }
  [[nodiscard]] bool is_decode(std::uint32_t t) const {
    const auto decode = static_cast<std::uint8_t>(Phase::kDecode);
    return step_.phase.empty() ? step_.tokens[decode] != 0 : step_.phase[t] == decode;
  }

  /// Whether C depends on how many first choices each expert got.
  [[nodiscard]] bool needs_demand() const {
    return cap_.rule == CapacityRule::kTutel && cap_.factor <= 0;
  }

  void prepare() {
    const std::uint64_t n = row_offset(tokens_, slots_);
    SWITCHYARD_ASSERT(
        width_ >= slots_ && width_ <= experts_ && cand_.ids.size() == row_offset(tokens_, width_) &&
            ((cand_.logit.size() == cand_.ids.size() && cand_.lse.size() == tokens_) ||
             (!weighs_ && cand_.logit.empty() && cand_.lse.empty())) &&
            (bias_.empty() || bias_.size() == experts_),
        fmt::format("T {} K {} M {} E {} ids {} logit {} lse {} bias {}", tokens_, slots_, width_,
                    experts_, cand_.ids.size(), cand_.logit.size(), cand_.lse.size(),
                    bias_.size()));
    const auto fits = [&](std::size_t size) { return size == 0 || size == tokens_; };
    const int phases = (step_.tokens[0] != 0) + (step_.tokens[1] != 0) + (step_.tokens[2] != 0);
    SWITCHYARD_ASSERT(step_.tokens[0] + step_.tokens[1] + step_.tokens[2] == tokens_ &&
                          fits(step_.sequence.size()) && fits(step_.position.size()) &&
                          fits(step_.phase.size()) && fits(step_.rank.size()) &&
                          (!step_.phase.empty() || phases <= 1),
                      fmt::format("T {} counted {} + {} + {}", tokens_, step_.tokens[0],
                                  step_.tokens[1], step_.tokens[2]));
    out_.tokens = tokens_;
    out_.slots = slots_;
    out_.weights.assign(weighs_ ? n : 0, 0.0F);
    if (maker_ == nullptr && cap_.rule == CapacityRule::kNone) {
      out_.first.resize(n);
      out_.chosen.resize(n);
      out_.outcome.resize(n);
    } else {
      out_.first.assign(n, kNoExpert);
      out_.chosen.assign(n, kNoExpert);
      out_.outcome.assign(n, 0);
    }
    w_.slot_rank.assign(weighs_ || cap_.rule != CapacityRule::kNone ? n : 0, 0);
    w_.tried.assign(checks_each() ? cand_.ids.size() : 0, 0);
    out_.demand.assign(experts_, 0);
    out_.overflow.assign(experts_, 0);
    out_.load.assign(experts_, 0);
    out_.queued.assign(experts_, 0);
    out_.capacity = kUnlimitedCapacity;
    out_.capacity_sum = kUnlimitedCapacity;
    out_.waves = 0;
    out_.assignments = out_.kept = out_.rerouted = out_.queued_slots = out_.dropped = 0;
    out_.overflowed = out_.truncated_slots = out_.linear_fallbacks = 0;
    out_.sets = {};
    // A scope of several token sets is several experts of the same number: "place" counts them all.
    w_.partition.clear();
    partitions_ = 1;
    const CapacityScope scope = resolved_scope(cap_);
    if (scope == CapacityScope::kRank && step_.ranks > 1) {
      SWITCHYARD_ASSERT(step_.rank.size() == tokens_,
                        fmt::format("scope = rank, {} ranks", step_.ranks));
      partitions_ = step_.ranks;
      for (std::uint32_t t = 0; t < tokens_; ++t) {
        SWITCHYARD_ASSERT(step_.rank[t] < step_.ranks, fmt::format("rank {}", step_.rank[t]));
        w_.partition.push_back(step_.rank[t]);
      }
    } else if (scope == CapacityScope::kGroup && tokens_ > 0) {
      const std::uint64_t size = capacity_group_size(tokens_, cap_.group_size);
      partitions_ = static_cast<std::uint32_t>(tokens_ / size);
      for (std::uint32_t t = 0; t < tokens_; ++t) {
        w_.partition.push_back(static_cast<std::uint32_t>(t / size));
      }
    }
    const std::uint64_t places = row_offset(partitions_, experts_);
    SWITCHYARD_ASSERT(places <= std::numeric_limits<std::uint32_t>::max(),
                      fmt::format("{} partitions of {} experts", partitions_, experts_));
    SWITCHYARD_ASSERT(
        step_.backlog.empty() || (scope != CapacityScope::kGroup && step_.backlog.size() == places),
        fmt::format("backlog {} places {}", step_.backlog.size(), places));
    w_.more.clear();
    w_.more_of.clear();
    w_.load.assign(step_.backlog.begin(), step_.backlog.end());
    w_.load.resize(places, 0);
    w_.count.assign(places, 0);
    if (maker_ != nullptr) {
      w_.next.assign(tokens_, 0);
      w_.usable.assign(tokens_, 0);
      w_.queue.assign(experts_, 0);
      for (std::uint64_t place = 0; place < places; ++place) {
        w_.queue[place % experts_] += w_.load[place];
      }
    }
    // One group per token block has no next step; its backlog is always empty.
    out_.deferred.assign(scope == CapacityScope::kGroup ? experts_ : places, 0);
  }

  /// All there is to do without capacities: every first choice runs.
  void keep_first_choices() {
    // The bytes of `outcome` could be anything to the compiler: it would read all pointers again.
    std::uint32_t* const demand = out_.demand.data();
    const std::uint32_t slots = slots_, experts = experts_;
    std::uint64_t assignments = 0;
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      const std::uint16_t* const ids = cand_.ids.data() + cand_at(t, 0);
      const std::uint64_t at = slot_at(t, 0);
      std::uint16_t* const first = out_.first.data() + at;
      std::uint16_t* const chosen = out_.chosen.data() + at;
      std::uint8_t* const outcome = out_.outcome.data() + at;
      if (slots == 8 && keep_eight(ids, experts, demand, first, chosen, outcome)) {
        assignments += 8;
      } else {
        std::uint32_t j = 0;
        for (; j < slots && ids[j] != kNoExpert; ++j) {
          const std::uint16_t e = ids[j];
          SWITCHYARD_ASSERT(e < experts, fmt::format("expert {} of {}", e, experts));
          ++demand[e];
          first[j] = chosen[j] = e;
          outcome[j] = kKept;
        }
        assignments += j;
        for (; j < slots; ++j) {
          first[j] = chosen[j] = kNoExpert;
          outcome[j] = 0;
        }
      }
      if (!weighs_) continue;
      std::iota(w_.slot_rank.begin() + static_cast<std::ptrdiff_t>(at),
                w_.slot_rank.begin() + static_cast<std::ptrdiff_t>(at + slots), std::uint16_t{0});
      weigh(t);
    }
    out_.assignments = assignments;
    out_.load = out_.demand;
    out_.kept = out_.assignments;
    out_.waves = out_.assignments > 0 ? 1 : 0;
  }

  void take_first_choices() {
    w_.next.assign(tokens_, 0);
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      take(t, slots_);
    }
  }

  void take_row(std::uint32_t t) {
    take(t, rows_->set_size[t]);
    w_.usable[t] = rows_->usable[t];
  }

  /// The first `wanted` candidates are token t's first choices.
  void take(std::uint32_t t, std::uint32_t wanted) {
    std::uint32_t j = 0;
    for (; j < wanted; ++j) {
      const std::uint16_t e = cand_.ids[cand_at(t, j)];
      if (e == kNoExpert) {
        break;
      }
      SWITCHYARD_ASSERT(e < experts_, fmt::format("expert {} of {}", e, experts_));
      out_.first[slot_at(t, j)] = e;
      w_.slot_rank[slot_at(t, j)] = static_cast<std::uint16_t>(j);
      ++out_.demand[e];
      ++w_.count[place_of(t, j)];
    }
    w_.next[t] = static_cast<std::uint16_t>(j);  // first candidate that is no first choice
  }

  void keep_all() {
    for (std::uint64_t i = 0; i < out_.first.size(); ++i) {
      if (out_.first[i] != kNoExpert) {
        out_.chosen[i] = out_.first[i];
        out_.outcome[i] = kKept;
      }
    }
  }

  void set_capacities() {
    w_.capacity.assign(partitions_, 0);
    w_.scopes.assign(partitions_, ScopeCounts{});
    const std::uint64_t step_sequences = step_.batch_size();
    if (partitions_ == 1) {
      w_.scopes[0].tokens = step_.tokens;
      w_.scopes[0].sequences = step_.sequences;
    } else {
      SWITCHYARD_ASSERT(!step_.sequence.empty() || cap_.rule != CapacityRule::kBatchSeqs,
                        "batch_seqs counts sequences per scope");
      for (std::uint32_t t = 0; t < tokens_; ++t) {
        ScopeCounts& s = w_.scopes[w_.partition[t]];
        const std::size_t phase = step_.phase.empty() ? (is_decode(t) ? 1U : 0U) : step_.phase[t];
        ++s.tokens[phase];
        if (!step_.sequence.empty() && (t == 0 || step_.sequence[t] != step_.sequence[t - 1] ||
                                        w_.partition[t] != w_.partition[t - 1])) {
          ++s.sequences[phase];
        }
      }
    }
    out_.capacity = 0;
    out_.capacity_sum = 0;
    for (std::uint32_t p = 0; p < partitions_; ++p) {
      w_.scopes[p].step_sequences = step_sequences;
      const auto* begin = w_.count.data() + row_offset(p, experts_);
      w_.scopes[p].largest_demand = *std::max_element(begin, begin + experts_);
      w_.capacity[p] = expert_capacity(cap_, w_.scopes[p], experts_, gate_.top_k);
      out_.capacity = std::max(out_.capacity, w_.capacity[p]);
      out_.capacity_sum += w_.capacity[p];
    }
  }

  /// usable[t]: how many leading candidates have a finite selection score, hence may be reroute
  /// targets. The kept groups are the first topk_group distinct groups met in rank order, because
  /// every finite expert of a kept group ranks before all experts outside.
  void find_usable() {
    w_.usable.assign(tokens_, 0);
    const std::uint32_t group_size = experts_ / gate_.n_group;
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      w_.groups_seen.clear();
      std::uint32_t r = 0;
      for (; r < width_; ++r) {
        const std::uint16_t e = cand_.ids[cand_at(t, r)];
        if (e == kNoExpert || (!cand_.logit.empty() && cand_.logit[cand_at(t, r)] == kMinusInf) ||
            (!bias_.empty() && !(bias_[e] > kMinusInf))) {
          break;
        }
        if (gate_.grouped()) {
          const std::uint32_t g = e / group_size;
          if (std::find(w_.groups_seen.begin(), w_.groups_seen.end(), g) == w_.groups_seen.end()) {
            if (w_.groups_seen.size() == gate_.topk_group) {
              break;
            }
            w_.groups_seen.push_back(g);
          }
        }
      }
      w_.usable[t] = static_cast<std::uint16_t>(r);
    }
  }

  /// All stored candidates were usable, and experts beyond them might have been.
  [[nodiscard]] bool beyond_store(std::uint32_t t) const {
    if (rows_ != nullptr) {
      return rows_->open[t] != 0;
    }
    const std::uint32_t open =
        gate_.grouped() ? gate_.topk_group * (experts_ / gate_.n_group) : experts_;
    return w_.usable[t] == width_ && width_ < open;
  }

  /// Token t has met all its M candidates. True: the others are known from now on.
  bool fetch_more(std::uint32_t t) {
    if (cand_.more == nullptr || !cand_.logit.empty() || rows_ != nullptr || !beyond_store(t)) {
      return false;
    }
    if (w_.more_of.empty()) w_.more_of.assign(tokens_, kNone);
    w_.more_of[t] = static_cast<std::uint32_t>(w_.more.size() / experts_);
    w_.more.resize(w_.more.size() + experts_);
    const auto ids = std::span(w_.more).last(experts_);
    cand_.more->all(t, ids);
    for (std::uint32_t r = 0; r < width_; ++r) {
      SWITCHYARD_ASSERT(ids[r] == cand_.ids[cand_at(t, r)], fmt::format("token {} rank {}", t, r));
    }
    // Biases of -inf and limits to groups end a row before its M candidates do, not after them:
    // who has more candidates has neither.
    SWITCHYARD_ASSERT(bias_.empty() && !gate_.grouped(), "more candidates of a masked row");
    w_.usable[t] = static_cast<std::uint16_t>(experts_);
    return true;
  }

  void accept(std::uint32_t t, std::uint32_t j, std::uint32_t rank) {
    const std::uint64_t i = slot_at(t, j);
    ++w_.load[place_of(t, rank)];
    if (maker_ != nullptr) {
      ++w_.queue[id(t, rank)];
    }
    w_.slot_rank[i] = static_cast<std::uint16_t>(rank);
    out_.chosen[i] = id(t, rank);
    out_.outcome[i] = rank == j ? kKept : kRerouted;
  }

  /// The slot has no candidate left. Returns true if the whole token was dropped.
  bool exhaust(std::uint32_t t, std::uint32_t j) {
    const std::uint64_t i = slot_at(t, j);
    const bool waits = rows_ != nullptr && rows_->waits[t] != 0;
    switch (waits ? Exhausted::kQueue : cap_.exhausted) {
      case Exhausted::kTop1:
        out_.outcome[i] = kDropped;
        return false;
      case Exhausted::kQueue:
        out_.chosen[i] = out_.first[i];
        out_.outcome[i] = kQueued;
        w_.slot_rank[i] = static_cast<std::uint16_t>(j);
        return false;
      case Exhausted::kDropToken:
        break;
    }
    for (std::uint32_t s = 0; s < slots_; ++s) {
      const std::uint64_t at = slot_at(t, s);
      if (out_.first[at] == kNoExpert) {
        continue;
      }
      if (out_.outcome[at] == kKept || out_.outcome[at] == kRerouted) {
        --w_.load[place_of(t, w_.slot_rank[at])];
        if (maker_ != nullptr) {
          --w_.queue[out_.chosen[at]];
        }
      }
      out_.chosen[at] = kNoExpert;
      out_.outcome[at] = kDropped;
    }
    return true;
  }

  /// Token t's turn in mode = sequential.
  void accept_in_turn(std::uint32_t t) {
    const std::uint32_t first_slots = w_.next[t];
    for (std::uint32_t j = 0; j < first_slots; ++j) {
      if (has_room(place_of(t, j))) {
        accept(t, j, j);
        continue;
      }
      ++out_.overflow[out_.first[slot_at(t, j)]];
      const std::uint32_t target = cap_.reroute == Reroute::kNext ? find_target(t, j) : kNone;
      if (target != kNone) {
        accept(t, j, target);
      } else if (exhaust(t, j)) {
        break;
      }
    }
  }

  /// Next candidate of slot j that has room now; kNone when there is none. Candidates passed over
  /// because they are full stay full while this token is decided, so next[t] need not go back.
  std::uint32_t find_target(std::uint32_t t, std::uint32_t j) {
    if (checks_each()) {
      const std::uint32_t r = next_untried(
          t, [&](std::uint32_t i) { return has_room(place_of(t, i)) && score_allows(t, j, i); });
      if (r == kNone) {
        note_truncation(t, j);
      }
      return r;
    }
    for (; w_.next[t] < w_.usable[t] || fetch_more(t); ++w_.next[t]) {
      const std::uint32_t r = w_.next[t];
      if (!has_room(place_of(t, r))) {
        continue;
      }
      if (!score_allows(t, j, r)) {
        return kNone;  // and so would every later one be: selection scores only fall
      }
      ++w_.next[t];
      return r;
    }
    note_truncation(t, j);
    return kNone;
  }

  /// max_score_drop over targets in another order than that of their scores (M18): one that a slot
  /// must not take can be followed by one that it may, and stays free for the token's other slots.
  [[nodiscard]] bool checks_each() const { return cap_.max_score_drop && !by_sel_; }

  /// First target of token t that no slot of it has tried and that `fits`; it is tried then.
  template <class F>
  std::uint32_t next_untried(std::uint32_t t, const F& fits) {
    for (std::uint32_t r = w_.next[t]; r < w_.usable[t]; ++r) {
      std::uint8_t& tried = w_.tried[cand_at(t, r)];
      if (tried == 0 && fits(r)) {
        tried = 1;
        return r;
      }
    }
    return kNone;
  }

  void note_truncation(std::uint32_t t, std::uint32_t j) {
    if (beyond_store(t) && score_allows(t, j, width_ - 1)) {
      ++out_.truncated_slots;
    }
  }

  DecideWorkspace::Pending ask(std::uint32_t t, std::uint32_t j, std::uint32_t rank) const {
    std::uint64_t key = 0;
    switch (cap_.order) {
      case OverflowOrder::kPosition:
        key = (static_cast<std::uint64_t>(j) << 32) | t;
        break;
      case OverflowOrder::kProb:
        // Bits of a non-negative float grow with it.
        key = ~static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(probability(t, rank)));
        break;
      case OverflowOrder::kRandom: {
        SWITCHYARD_ASSERT(!step_.sequence.empty() && !step_.position.empty(),
                          "order = random is keyed by sequence and position");
        static constexpr std::uint32_t kPurpose = random_purpose("overflow_order");
        key = random_u64(step_.seed, kPurpose,
                         {step_.sequence[t], step_.layer, step_.position[t], id(t, rank)});
        break;
      }
    }
    return {key, t, place_of(t, rank), static_cast<std::uint16_t>(j),
            static_cast<std::uint16_t>(rank)};
  }

  void rounds() {
    w_.pending.clear();
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      for (std::uint32_t j = 0; j < w_.next[t]; ++j) {
        w_.pending.push_back(ask(t, j, j));
      }
    }
    const auto before = [](const DecideWorkspace::Pending& a, const DecideWorkspace::Pending& b) {
      if (a.key != b.key) {
        return a.key < b.key;
      }
      return a.token != b.token ? a.token < b.token : a.slot < b.slot;
    };
    while (!w_.pending.empty()) {
      sort_by_place();
      w_.pending.clear();
      for (std::size_t begin = 0; begin < w_.sorted.size();) {
        const std::uint32_t place = w_.sorted[begin].place;
        std::size_t end = begin;
        while (end < w_.sorted.size() && w_.sorted[end].place == place) {
          ++end;
        }
        const std::uint32_t limit = w_.capacity[place / experts_];
        const std::size_t room = limit > w_.load[place] ? limit - w_.load[place] : 0;
        const std::size_t win = begin + std::min(room, end - begin);
        const auto at = [&](std::size_t i) {
          return w_.sorted.begin() + static_cast<std::ptrdiff_t>(i);
        };
        if (win < end) {
          std::nth_element(at(begin), at(win), at(end), before);
        }
        for (std::size_t i = begin; i < win; ++i) {
          accept(w_.sorted[i].token, w_.sorted[i].slot, w_.sorted[i].rank);
        }
        w_.pending.insert(w_.pending.end(), at(win), at(end));
        begin = end;
      }
      place_losers();
    }
  }

  /// Counting sort of pending into sorted.
  void sort_by_place() {
    w_.count.assign(w_.count.size(), 0);
    for (const auto& p : w_.pending) {
      ++w_.count[p.place];
    }
    std::uint32_t offset = 0;
    for (std::uint32_t& c : w_.count) {
      const std::uint32_t n = c;
      c = offset;
      offset += n;
    }
    w_.sorted.resize(w_.pending.size());
    for (const auto& p : w_.pending) {
      w_.sorted[w_.count[p.place]++] = p;
    }
  }

  /// Losers of a round, by token and then slot, take their token's next untried candidate.
  void place_losers() {
    w_.sorted.swap(w_.pending);
    w_.pending.clear();
    std::sort(w_.sorted.begin(), w_.sorted.end(), [](const auto& a, const auto& b) {
      return a.token != b.token ? a.token < b.token : a.slot < b.slot;
    });
    std::uint32_t dead = kNone;  // token dropped in this round
    for (const auto& p : w_.sorted) {
      const std::uint32_t t = p.token;
      const std::uint32_t j = p.slot;
      if (p.rank == j) {
        ++out_.overflow[out_.first[slot_at(t, j)]];
      }
      if (t == dead) {
        continue;
      }
      if (cap_.reroute == Reroute::kNext && checks_each()) {
        const std::uint32_t r =
            next_untried(t, [&](std::uint32_t i) { return score_allows(t, j, i); });
        if (r != kNone) {
          w_.pending.push_back(ask(t, j, r));
          continue;
        }
        note_truncation(t, j);
      } else if (cap_.reroute == Reroute::kNext) {
        if (w_.next[t] < w_.usable[t] || fetch_more(t)) {
          if (score_allows(t, j, w_.next[t])) {
            w_.pending.push_back(ask(t, j, w_.next[t]++));
            continue;
          }
        } else {
          note_truncation(t, j);
        }
      }
      if (exhaust(t, j)) {
        dead = t;
        while (!w_.pending.empty() && w_.pending.back().token == t) {
          w_.pending.pop_back();
        }
      }
    }
  }

  [[nodiscard]] bool renormalises() const {
    return gate_.renorm && renorm_ != WeightRenorm::kNone &&
           !(gate_.exclusive_scale && gate_.top_k == 1);
  }

  /// p of each running slot, or its share in their sum, times the family's scale (not a share where
  /// the family either renormalises or scales).
  void weigh_by_p(std::uint32_t t, bool share) {
    float sum = 0;
    for (std::uint32_t j = 0; j < slots_; ++j) {
      const std::uint64_t i = slot_at(t, j);
      sum += out_.chosen[i] == kNoExpert ? 0.0F : probability(t, w_.slot_rank[i]);
    }
    const float divisor = share ? sum : 1.0F;
    const float scale = share && gate_.exclusive_scale ? 1.0F : gate_.scale;
    for (std::uint32_t j = 0; j < slots_; ++j) {
      const std::uint64_t i = slot_at(t, j);
      if (out_.chosen[i] != kNoExpert && divisor > 0) {
        out_.weights[i] = probability(t, w_.slot_rank[i]) / divisor * scale;
      }
    }
  }

  /// The family's weights over the slots that run; sums in slot order.
  void weigh(std::uint32_t t) {
    const RowWeights kind = rows_ == nullptr ? RowWeights::kFamily : rows_->weights[t];
    if (kind == RowWeights::kRaw || kind == RowWeights::kShare) {
      weigh_by_p(t, kind == RowWeights::kShare);
      return;
    }
    // Slots of the denominator: those that run, or (renorm = first) the first choices.
    const auto denominator_rank = [&](std::uint32_t j) -> std::uint32_t {
      const std::uint64_t i = slot_at(t, j);
      if (renorm_ == WeightRenorm::kFirst) {
        return out_.first[i] == kNoExpert ? kNone : j;
      }
      return out_.chosen[i] == kNoExpert ? kNone : w_.slot_rank[i];
    };
    const bool scored = linear_ && kind == RowWeights::kFamily;
    bool linear = scored;
    for (std::uint32_t j = 0; linear && j < slots_; ++j) {
      const std::uint32_t r = denominator_rank(j);
      const std::uint64_t i = slot_at(t, j);
      linear = (r == kNone || cand_.logit[cand_at(t, r)] > 0) &&
               (out_.chosen[i] == kNoExpert || cand_.logit[cand_at(t, w_.slot_rank[i])] > 0);
    }
    out_.linear_fallbacks += scored && !linear && out_.first[slot_at(t, 0)] != kNoExpert ? 1 : 0;
    const bool softmax_of_chosen = !linear && (linear_ || gate_.score == GateScore::kIdentity) &&
                                   renorm_ != WeightRenorm::kNone;
    float top = kMinusInf;
    if (softmax_of_chosen) {
      for (std::uint32_t j = 0; j < slots_; ++j) {
        if (const std::uint32_t r = denominator_rank(j); r != kNone) {
          top = std::max(top, cand_.logit[cand_at(t, r)]);
        }
      }
    }
    const auto value = [&](std::uint32_t r) {
      if (linear) {
        return cand_.logit[cand_at(t, r)];
      }
      if (!softmax_of_chosen) {
        return probability(t, r);
      }
      const float z = cand_.logit[cand_at(t, r)];
      return z == kMinusInf
                 ? 0.0F
                 : static_cast<float>(std::exp(static_cast<double>(z) - static_cast<double>(top)));
    };
    float divisor = 1.0F;
    if (linear || softmax_of_chosen || renormalises()) {
      float sum = 0;
      for (std::uint32_t j = 0; j < slots_; ++j) {
        if (const std::uint32_t r = denominator_rank(j); r != kNone) {
          sum += value(r);
        }
      }
      divisor = linear || softmax_of_chosen ? sum : sum + gate_.eps;
    }
    const bool scaled = !(gate_.exclusive_scale && renormalises());
    for (std::uint32_t j = 0; j < slots_; ++j) {
      const std::uint64_t i = slot_at(t, j);
      if (out_.chosen[i] == kNoExpert) {
        continue;
      }
      // A divisor of 0 means that every p is 0 (a row of NaN): nothing is added to the residual.
      const float v = value(w_.slot_rank[i]);
      const float weight = divisor > 0 ? v / divisor : 0.0F;
      out_.weights[i] = scaled ? weight * gate_.scale : weight;
    }
  }

  void count_and_weigh() {
    w_.count.assign(w_.count.size(), 0);  // from here on: slots queued as waves, by place
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      for (std::uint32_t j = 0; j < slots_; ++j) {
        const std::uint64_t i = slot_at(t, j);
        const std::uint16_t e = out_.chosen[i];
        switch (static_cast<SlotOutcome>(out_.outcome[i])) {
          case SlotOutcome::kNoSlot:
            continue;
          case SlotOutcome::kKept:
            ++out_.kept;
            ++out_.load[e];
            break;
          case SlotOutcome::kRerouted:
            ++out_.rerouted;
            ++out_.load[e];
            break;
          case SlotOutcome::kQueued:
            ++out_.queued_slots;
            ++out_.queued[e];
            if (cap_.queue == QueueMode::kDefer && is_decode(t)) {
              ++out_.deferred[place_of(t, w_.slot_rank[i])];
            } else {
              ++w_.count[place_of(t, w_.slot_rank[i])];
            }
            break;
          case SlotOutcome::kDropped:
            ++out_.dropped;
            break;
        }
        ++out_.assignments;
      }
      if (weighs_) weigh(t);
    }
    for (const std::uint32_t n : out_.overflow) {
      out_.overflowed += n;
    }
  }

  void set_waves() {
    const bool any = out_.kept + out_.rerouted + out_.queued_slots > 0;
    out_.waves = any ? 1 : 0;
    if (cap_.rule == CapacityRule::kNone) {
      return;
    }
    for (std::uint32_t p = 0; p < partitions_; ++p) {
      const std::uint32_t limit = w_.capacity[p];
      for (std::uint32_t e = 0; e < experts_; ++e) {
        const std::uint64_t place = row_offset(p, experts_, e);
        const std::uint32_t waiting = step_.backlog.empty() ? 0 : step_.backlog[place];
        if (waiting > limit) {
          out_.deferred[place] += waiting - limit;
        }
        if (w_.count[place] > 0) {
          SWITCHYARD_ASSERT(limit > 0, "a queue needs a capacity of at least 1");
          const std::uint64_t work =
              std::uint64_t{std::min(w_.load[place], limit)} + w_.count[place];
          out_.waves = std::max(out_.waves, static_cast<std::uint32_t>((work + limit - 1) / limit));
        }
      }
    }
  }

  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  const GateSpec& gate_;
  const CapacityPolicy& cap_;
  const WeightRenorm renorm_;
  const bool linear_;
  const bool by_sel_;  // targets are in the order of their selection score
  const bool weighs_;  // the candidates have logits
  const StepContext& step_;
  const CandidatesView& cand_;
  const std::span<const float> bias_;
  RowMaker* const maker_;
  const RouteRows* const rows_;
  DecideWorkspace& w_;
  LayerDecision& out_;
  const std::uint32_t tokens_, slots_, width_, experts_;
  std::uint32_t partitions_ = 1;
};

}  // namespace

SetCounts& SetCounts::operator+=(const SetCounts& o) {
  balanced += o.balanced;
  unbalanced += o.unbalanced;
  third += o.third;
  rebalanced += o.rebalanced;
  table_tokens += o.table_tokens;
  table_slots += o.table_slots;
  table_agreed += o.table_agreed;
  soft_tokens += o.soft_tokens;
  reranked += o.reranked;
  pinned_tokens += o.pinned_tokens;
  return *this;
}

StepContext make_step(std::span<const std::uint32_t> sequence,
                      std::span<const std::uint32_t> position, std::span<const std::uint8_t> phase,
                      std::uint64_t seed, std::uint32_t layer, std::uint32_t step) {
  SWITCHYARD_ASSERT(sequence.size() == position.size() && sequence.size() == phase.size(),
                    fmt::format("{} {} {}", sequence.size(), position.size(), phase.size()));
  StepContext c;
  c.seed = seed;
  c.layer = layer;
  c.step = step;
  c.sequence = sequence;
  c.position = position;
  c.phase = phase;
  for (std::size_t t = 0; t < sequence.size(); ++t) {
    SWITCHYARD_ASSERT(phase[t] < 3, fmt::format("phase {}", phase[t]));
    ++c.tokens[phase[t]];
    if (t == 0 || sequence[t] != sequence[t - 1]) {
      ++c.sequences[phase[t]];
    }
  }
  return c;
}

bool reads_scores(const RoutingPolicy& policy) {
  if (has_policy_steps(policy) || policy.score == ScoreRule::kLinear) return true;
  const CapacityPolicy& c = policy.capacity;
  if (c.rule == CapacityRule::kNone) return false;
  return c.max_score_drop.has_value() ||
         (resolved_mode(c) == OverflowMode::kRounds && c.order == OverflowOrder::kProb);
}

void decide(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
            const CandidatesView& candidates, std::span<const float> gate_bias,
            DecideWorkspace& workspace, LayerDecision& out) {
  SWITCHYARD_ASSERT(!has_policy_steps(policy), "route_layer() runs the steps before 11");
  SWITCHYARD_ASSERT(!candidates.logit.empty() || candidates.ids.empty() || !reads_scores(policy),
                    "the policy reads logits");
  Decider(gate, policy, step, candidates, gate_bias, nullptr, workspace, out).run();
}

void RouteRows::resize(std::uint32_t token_count, std::uint32_t row_width,
                       std::uint32_t slot_count) {
  tokens = token_count;
  width = row_width;
  slots = slot_count;
  const std::uint64_t n = row_offset(tokens, width);
  ids.assign(n, kNoExpert);
  logit.assign(n, kMinusInf);
  p.assign(n, 0.0F);
  sel.assign(n, kMinusInf);
  lse.assign(tokens, 0.0F);
  set_size.assign(tokens, 0);
  usable.assign(tokens, 0);
  open.assign(tokens, 0);
  waits.assign(tokens, 0);
  weights.assign(tokens, RowWeights::kFamily);
}

void decide_rows(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
                 RowMaker& maker, DecideWorkspace& workspace, LayerDecision& out) {
  const RouteRows& rows = maker.rows();
  const CandidatesView view{rows.tokens, rows.width, rows.ids, rows.logit, rows.lse};
  Decider(gate, policy, step, view, {}, &maker, workspace, out).run();
}

}  // namespace switchyard
