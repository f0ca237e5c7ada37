// SPDX-License-Identifier: Apache-2.0
// policy.capacity.queue = "defer" (M05): a decode sequence that finds an expert full waits a step.
//
// In MoE layer l of step s a decode token asks for an expert that is full and nobody takes its
// place: its slots that were accepted run now, the others wait. The token goes no further: the next
// layer needs what these experts give. In the sequence's next step the slots that wait are the
// backlog of layer l: they are the first that the expert takes, in the order in which they came, up
// to its capacity C, and load[e] of new tokens starts behind them (routing.md, M05). When the last
// of them has run, the sequence goes on with layer l + 1 in that step. It passes the head, and
// gives its token, at the end of the step in which it has passed the last layer.
//
// Bytes: the hidden state goes to the expert, and its output comes back, in the step that runs it.
// KV: the page of the token is there from its first step on. Counts: assignments, kept, queued and
// experts' loads are of the step that decided; times, bytes and GPUs' imbalance of the step that
// ran; tokens of the step in which they have passed the last layer.
//
// Prompt tokens take waves. A sequence that loses its pages, or gives them up, begins its token
// anew. A policy of an alarm without the queue runs all that waits, whatever its capacity.
//
// Not modelled: the room of the hidden states that wait.
#include <fmt/format.h>

#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {
namespace {

[[nodiscard]] bool defers(const RoutingPolicy& p) {
  return p.capacity.queue == QueueMode::kDefer &&
         (p.capacity.exhausted == Exhausted::kQueue || p.pinned.on());
}

}  // namespace

void Simulator::make_deferral() {
  defers_ = layers_ > 0 && defers(policy_);
  for (const scenario::AlarmRule& r : s_.alarms) {
    defers_ = defers_ || (r.action == scenario::AlarmAction::kPolicy && defers(r.policy));
  }
  if (!defers_) return;
  // The reader has said so with the key's place; a trace may bring a policy of its own.
  if (const auto why = scenario::no_deferral(s_)) {
    throw InputError("policy.capacity.queue", fmt::format("\"defer\" is unsupported {}", *why),
                     "use queue = \"wave\"");
  }
}

/// Who takes part in the first layer of the step.
void Simulator::begin_deferral() {
  if (!defers_) return;
  for (const std::uint32_t id : plan_.ended) waiting_.erase(id);
  part_of_.assign(plan_.sequences.size(), 1);
  for (std::size_t i = 0; i < plan_.sequences.size(); ++i) {
    const PlannedSequence& q = plan_.sequences[i];
    if (!q.resumes) {
      waiting_.erase(q.id);
      continue;
    }
    SWITCHYARD_ASSERT(waiting_.contains(q.id), fmt::format("sequence {} waits for nothing", q.id));
    part_of_[i] = 0;
  }
}

void Simulator::find_late(std::uint32_t moe) {
  late_.clear();
  new_waits_.clear();
  if (waiting_.empty()) return;
  for (std::size_t i = 0; i < plan_.sequences.size(); ++i) {
    const PlannedSequence& q = plan_.sequences[i];
    if (!q.resumes || part_of_[i] != 0) continue;
    const Waiting& w = waiting_.at(q.id);
    // One that began to wait in this step is of no earlier layer.
    if (w.layer != moe || w.since == step_) continue;
    for (const WaitingSlot& slot : w.slots) {
      late_.push_back({w.since, static_cast<std::uint32_t>(i), q.gpu + slot.member, slot, false});
    }
  }
  std::stable_sort(late_.begin(), late_.end(),
                   [](const LateSlot& a, const LateSlot& b) { return a.since < b.since; });
}

bool Simulator::any_late(std::uint32_t copy) const {
  return std::any_of(late_.begin(), late_.end(),
                     [&](const LateSlot& x) { return layout().copy_of(x.gpu) == copy; });
}

/// StepContext::backlog of a copy of the experts; empty: nothing waits.
void Simulator::count_backlog(std::uint32_t copy) {
  backlog_.clear();
  if (!any_late(copy) || resolved_scope(policy_.capacity) == CapacityScope::kGroup) return;
  const bool by_rank = resolved_scope(policy_.capacity) == CapacityScope::kRank && layout().ep > 1;
  backlog_.assign((by_rank ? layout().ep : 1) * std::size_t{experts_}, 0);
  for (const LateSlot& x : late_) {
    if (layout().copy_of(x.gpu) == copy) ++backlog_[backlog_place(x.gpu, x.slot.expert, by_rank)];
  }
}

std::size_t Simulator::backlog_place(std::uint32_t gpu, std::uint32_t expert, bool by_rank) const {
  return (by_rank ? layout().rank_of(gpu) : 0) * std::size_t{experts_} + expert;
}

/// What ran of a copy's backlog, and what waits anew. `rows`: the tokens that were decided, empty:
/// all.
void Simulator::settle_backlog(std::uint32_t copy, const LayerDecision& part,
                               std::span<const std::uint32_t> rows) {
  const bool by_rank = resolved_scope(policy_.capacity) == CapacityScope::kRank && layout().ep > 1;
  std::vector<std::uint64_t> left(part.deferred.begin(), part.deferred.end());
  const bool defer = defers(policy_);
  std::size_t at = 0;  // Of the token's sequence in the plan: both are in the order of sequences.
  for (std::uint32_t i = 0; i < part.tokens; ++i) {
    const std::uint32_t t = rows.empty() ? i : rows[i];
    if (!defer || tokens_.phase[t] != static_cast<std::uint8_t>(switchyard::Phase::kDecode)) {
      continue;
    }
    for (std::uint32_t j = 0; j < part.slots; ++j) {
      if (static_cast<SlotOutcome>(part.outcome[std::size_t{i} * part.slots + j]) !=
          SlotOutcome::kQueued) {
        continue;
      }
      const std::uint16_t e = part.first[std::size_t{i} * part.slots + j];
      while (plan_.sequences[at].id != tokens_.sequence[t]) ++at;
      const PlannedSequence& q = plan_.sequences[at];
      new_waits_[q.id].push_back({static_cast<std::uint32_t>(tokens_.position[t] - q.had),
                                  static_cast<std::uint16_t>(tokens_.rank[t] - q.gpu), e});
      --left[backlog_place(tokens_.rank[t], e, by_rank)];
    }
  }
  for (const LateSlot& x : late_) {
    if (backlog_.empty() || layout().copy_of(x.gpu) != copy) continue;
    longest_queue_ = std::max<std::uint64_t>(
        longest_queue_, part.deferred[backlog_place(x.gpu, x.slot.expert, by_rank)]);
  }
  // The first of each expert run; `left` of them go on waiting.
  std::vector<std::uint64_t> runs(backlog_.begin(), backlog_.end());
  for (std::size_t p = 0; p < runs.size(); ++p) runs[p] -= left[p];
  for (LateSlot& x : late_) {
    if (layout().copy_of(x.gpu) != copy) continue;
    if (backlog_.empty() || !defer) {  // A policy without a next step.
      x.runs = true;
      continue;
    }
    std::uint64_t& n = runs[backlog_place(x.gpu, x.slot.expert, by_rank)];
    x.runs = n > 0;
    n -= x.runs ? 1 : 0;
  }
}

/// The layer's work and bytes are those of what runs now: without the slots that wait from now on,
/// with those that waited.
void Simulator::choose_what_runs() {
  ran_ = &decision_;
  ran_tokens_ = &tokens_;
  late_rows_.assign(gpus_, 0);
  late_of_home_.assign(gpus_, 0);
  const bool any = std::any_of(late_.begin(), late_.end(), [](const auto& x) { return x.runs; });
  if (new_waits_.empty() && !any) return;
  late_decision_ = decision_;
  late_tokens_ = tokens_;
  LayerDecision& d = late_decision_;
  const std::uint32_t k = d.slots;
  for (std::uint32_t t = 0; t < d.tokens && !new_waits_.empty(); ++t) {
    if (tokens_.phase[t] != static_cast<std::uint8_t>(switchyard::Phase::kDecode)) continue;
    for (std::size_t i = std::size_t{t} * k; i < std::size_t{t + 1} * k; ++i) {
      if (static_cast<SlotOutcome>(d.outcome[i]) != SlotOutcome::kQueued) continue;
      d.outcome[i] = static_cast<std::uint8_t>(SlotOutcome::kNoSlot);
      d.first[i] = d.chosen[i] = kNoExpert;
    }
  }
  // One row for the slots of a token, in the order of sequences.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const LateSlot*>> rows;
  for (const LateSlot& x : late_) {
    if (x.runs) rows[{x.at, x.slot.token}].push_back(&x);
  }
  for (const auto& [key, slots] : rows) {
    const PlannedSequence& q = plan_.sequences[key.first];
    const std::uint32_t gpu = slots.front()->gpu;
    if (sharded() && !wide()) {
      for (std::uint32_t g = q.gpu; g < q.gpu + layout().tp; ++g) ++late_rows_[g];
    } else {
      ++late_rows_[gpu];
    }
    ++late_of_home_[q.gpu];
    for (std::size_t first = 0; first < slots.size(); first += k) {
      late_tokens_.sequence.push_back(q.id);
      late_tokens_.position.push_back(static_cast<std::uint32_t>(q.had + key.second));
      late_tokens_.phase.push_back(static_cast<std::uint8_t>(switchyard::Phase::kDecode));
      late_tokens_.rank.push_back(static_cast<std::uint16_t>(gpu));
      late_tokens_.answer.push_back(1);
      late_tokens_.ordinal.push_back(0);
      for (std::size_t j = first; j < first + k; ++j) {
        const bool one = j < slots.size();
        d.first.push_back(one ? slots[j]->slot.expert : kNoExpert);
        d.chosen.push_back(d.first.back());
        d.outcome.push_back(
            static_cast<std::uint8_t>(one ? SlotOutcome::kKept : SlotOutcome::kNoSlot));
      }
      ++d.tokens;
    }
  }
  ran_ = &late_decision_;
  ran_tokens_ = &late_tokens_;
}

std::vector<std::uint64_t> Simulator::with_late() const {
  std::vector<std::uint64_t> rows = tokens_of_;
  for (std::uint32_t g = 0; g < gpus_; ++g) rows[g] += late_of_home_[g];
  return rows;
}

/// After a MoE layer: who stays behind, and who has caught up.
void Simulator::end_deferral(std::uint32_t moe) {
  if (new_waits_.empty() && late_.empty()) return;
  bool changed = false;
  std::map<std::uint32_t, std::vector<WaitingSlot>> still;
  for (const LateSlot& x : late_) {
    std::vector<WaitingSlot>& slots = still[x.at];
    if (!x.runs) slots.push_back(x.slot);
  }
  for (auto& [at, slots] : still) {
    const std::uint32_t id = plan_.sequences[at].id;
    if (!slots.empty()) {
      waiting_.at(id).slots = std::move(slots);
      continue;
    }
    waiting_.erase(id);
    part_of_[at] = 1;
    changed = true;
  }
  for (std::size_t i = 0; i < plan_.sequences.size() && !new_waits_.empty(); ++i) {
    const auto it = new_waits_.find(plan_.sequences[i].id);
    if (it == new_waits_.end()) continue;
    deferred_slots_ += it->second.size();
    waiting_[it->first] = {moe, 0, step_, std::move(it->second)};
    part_of_[i] = 0;
    changed = true;
  }
  if (!changed) return;
  compose_part(0, 1, 0);
  compose_reduce();
  attention_costs_.clear();
}

/// Who gives no token in this step.
void Simulator::note_deferral() {
  if (!defers_) return;
  record_.scalars.tokens = 0;
  for (std::size_t i = 0; i < plan_.sequences.size(); ++i) {
    PlannedSequence& q = plan_.sequences[i];
    q.deferred = part_of_[i] == 0;
    if (!q.deferred) {
      record_.scalars.tokens += q.fresh;
      continue;
    }
    ++deferrals_;
    longest_wait_ = std::max(longest_wait_, ++waiting_.at(q.id).steps);
  }
}

void Simulator::note_deferral(SimulationResult& result) {
  if (!defers_) return;
  std::vector<run::Metric>& m = sink_.data().metrics;
  m.push_back({"assignments deferred", static_cast<double>(deferred_slots_), ""});
  m.push_back({"tokens that came no further in a step", static_cast<double>(deferrals_), ""});
  if (deferrals_ == 0) return;
  result.notes.push_back(fmt::format(
      "deferred: {} assignments ran in a later step; {} times a sequence gave no token in a step; "
      "the longest wait at a layer was {} step{}",
      deferred_slots_, deferrals_, longest_wait_, longest_wait_ == 1 ? "" : "s"));
}

}  // namespace switchyard::sim
