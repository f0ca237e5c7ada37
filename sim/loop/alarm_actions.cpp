// SPDX-License-Identifier: Apache-2.0
// Alarms of a running simulation and what they do (M39, M56): [[monitor.alarms]].
//
// At the end of a step the rules look at it; what they ask for happens before the replica's next
// step. Several replicas: each rule watches each replica by itself, and acts on the one that raised
// it.
//   policy      routing follows the rule's policy while the alarm stands (of several: the last
//               rule)
//   migrate_kv  the longest sequence of the GPU that the alarm names goes to the replica's emptiest
//               one (signal memory), or to the one that was busy for the least time in the last
//               step (gpu_busy); its pages travel over the links before the step
//   shed        the replica takes no new requests while the alarm stands (of several rules: any);
//               the front end sends them to the others, and rejects them where there is none. Each
//               time the action is taken the newest `drop` of those that wait and have not begun
//               are rejected
//   reclaim     what leaked is freed on every GPU of the replica
//   reload      the holders of the slow or damaged expert load it from host memory, in every
//               replica: its fault is everywhere
//
// Not modelled: the time to notice (a rule's window is the delay), the time of a reclaim.
#include <fmt/format.h>

#include <algorithm>

#include "engine/trace/experts_only.hpp"
#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

using health::AlarmChange;
using scenario::AlarmAction;
using scenario::AlarmRule;

void Simulator::make_board(const run::Inventory& inventory) {
  if (s_.alarms.empty()) return;
  board_ = std::make_unique<health::AlarmBoard>(s_.alarms, inventory);
  own_policy_ = policy_;
  busy_ps_.assign(gpus_, 0);
  for (const AlarmRule& r : s_.alarms) {
    if (scenario::of_hidden_states(r.signal) && !cohesion_) {
      throw InputError(r.where,
                       fmt::format("signal = \"{}\" needs hidden states: {}",
                                   scenario::kHealthSignals[health::at(r.signal)].name,
                                   layers_ == 0       ? "the model is dense"
                                   : trace_ == nullptr ? "synthetic routing has none"
                                                       : "the routing trace has none"),
                       layers_ == 0 ? "watch another signal"
                                    : "use a trace made with --router-input (trace, couple)");
    }
    if (r.action != AlarmAction::kPolicy) continue;
    const RoutingPolicy plain;
    if (trace_ != nullptr) require_decidable(trace_->header, r.policy, r.where);
    require_supply(r.policy,
                   {.signals = true,
                    .all_logits = experts_ == stored_candidates(experts_, slots_),
                    .hidden = false,
                    .weights = false,
                    .recorded = &plain},
                   r.where);
    if (policy_slots(r.policy, source_->gate()) > stored_candidates(experts_, slots_)) {
      throw InputError(r.where, "the policy needs more candidates than there are",
                       "use a policy with as many experts per token as the scenario's");
    }
    refuse_groups_of_copies(r.policy, r.where + ": policy.groups");
    if (r.policy.table.on() || r.policy.soft.on() || r.policy.pinned.on()) {
      throw InputError(r.where,
                       "a policy that is decided by request (table, soft, pinned) is unsupported "
                       "as an action");
    }
  }
}

std::string Simulator::in_replica(std::uint32_t engine) const {
  return replicas() > 1 ? fmt::format(" (replica {})", engine) : std::string();
}

void Simulator::watch(const run::StepRecord& record, std::uint64_t step) {
  const scenario::GpuRange of = engine_gpus_[record.scalars.engine];
  for (std::uint32_t g = of.first; g < of.beyond; ++g) {
    busy_ps_[g] = 0;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      if (p != at(run::Phase::kWait)) {
        busy_ps_[g] += static_cast<double>(record.gpu_phase_ps[g * run::kPhases + p]);
      }
    }
  }
  for (AlarmChange& c : board_->push(record, static_cast<std::uint32_t>(step))) {
    const AlarmRule& r = s_.alarms[c.rule];
    if (c.kind != AlarmChange::Kind::kRepeated) {
      run::Event e;
      e.time_ps = c.time_ps;
      e.step = c.step;
      e.kind = run::EventKind::kAlarm;
      e.layer = c.place.layer;
      e.gpu = c.place.gpu;
      e.expert = c.place.expert;
      e.link = c.place.link;
      e.value = c.value;
      e.text = c.text;
      sink_.data().events.push_back(std::move(e));
    }
    alarms_ += c.kind == AlarmChange::Kind::kRaised ? 1 : 0;
    const bool acts = r.action == AlarmAction::kPolicy || r.action == AlarmAction::kShed ||
                      c.kind != AlarmChange::Kind::kCleared;
    if (r.action != AlarmAction::kRecord && acts) pending_.push_back(std::move(c));
  }
}

void Simulator::take_actions(std::uint64_t step) {
  const std::int64_t now = engine_time();
  std::vector<AlarmChange> now_due;
  std::erase_if(pending_, [&](AlarmChange& c) {
    if (c.engine != plan_.engine) return false;
    now_due.push_back(std::move(c));
    return true;
  });
  bool policies = false;
  for (const AlarmChange& c : now_due) {
    const AlarmRule& r = s_.alarms[c.rule];
    switch (r.action) {
      case AlarmAction::kRecord:
        break;
      case AlarmAction::kPolicy:
        policies = true;
        break;
      case AlarmAction::kMigrateKv:
        migrate_kv(step, c);
        break;
      case AlarmAction::kShed:
        shed(step, c);
        break;
      case AlarmAction::kReclaim: {
        std::uint64_t freed = 0;
        for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
          ledger_.release(g, MemoryCategory::kRuntime, leaked_[g], ready_[g],
                          static_cast<std::uint32_t>(step), "leaked pages are reclaimed");
          freed += leaked_[g];
          leaked_[g] = 0;
        }
        event(run::EventKind::kPolicyAction, now, step, c.place.gpu, static_cast<double>(freed),
              fmt::format("alarm \"{}\": {} B reclaimed{}", r.name, freed, in_replica(c.engine)));
        break;
      }
      case AlarmAction::kReload: {
        if (c.place.layer == run::kNone || c.place.expert == run::kNone) break;
        reload_expert(c.place.layer, c.place.expert);
        const bool wrong = faults_->repair_expert(c.place.layer, c.place.expert);
        event(
            run::EventKind::kPolicyAction, now, step, c.place.gpu, c.value,
            fmt::format("alarm \"{}\": expert {} of MoE layer {} loaded anew{}", r.name,
                        c.place.expert, s_.model.moe_layers()[c.place.layer],
                        wrong ? "" : "; nothing was wrong with it"));
        break;
      }
    }
  }
  use_policy();
  if (!policies) return;
  event(
      run::EventKind::kPolicyAction, now, step, run::kNone, run::kNoData,
      (policy_of_ != nullptr ? fmt::format("alarm \"{}\": its policy is in force", policy_of_->name)
                             : std::string("the scenario's policy is in force again")) +
          in_replica(plan_.engine));
}

const AlarmRule* Simulator::policy_rule(std::uint32_t engine) const {
  const AlarmRule* in_force = nullptr;
  for (std::size_t i = 0; i < s_.alarms.size(); ++i) {
    if (s_.alarms[i].action == AlarmAction::kPolicy && board_->raised(i, engine)) {
      in_force = &s_.alarms[i];
    }
  }
  return in_force;
}

void Simulator::use_policy() {
  const AlarmRule* const rule = policy_rule(plan_.engine);
  if (rule == policy_of_) return;
  policy_of_ = rule;
  policy_ = rule != nullptr ? rule->policy : own_policy_;
  slots_ = policy_slots(policy_, source_->gate());
  for (CostModel& c : cost_) c.use_slots(slots_);
}

void Simulator::shed(std::uint64_t step, const AlarmChange& change) {
  const AlarmRule& r = s_.alarms[change.rule];
  bool on = false;
  for (std::size_t i = 0; i < s_.alarms.size(); ++i) {
    on = on || (s_.alarms[i].action == AlarmAction::kShed && board_->raised(i, change.engine));
  }
  const bool cleared = change.kind == AlarmChange::Kind::kCleared;
  const std::uint64_t dropped = batch_->shed(change.engine, on, cleared ? 0 : r.drop);
  std::string text = fmt::format("alarm \"{}\": new requests are {}{}", r.name,
                                 on ? "rejected" : "admitted again", in_replica(change.engine));
  if (dropped > 0) text += fmt::format(", {} that waited are rejected", dropped);
  event(run::EventKind::kPolicyAction, engine_time(), step, run::kNone,
        static_cast<double>(dropped), std::move(text));
}

void Simulator::migrate_kv(std::uint64_t step, const AlarmChange& change) {
  const std::int64_t now = engine_time();
  const std::uint32_t width = homes();
  const std::uint32_t from = group_first(change.place.gpu % width);  // In the first stage.
  const bool busy = s_.alarms[change.rule].signal == scenario::HealthSignal::kGpuBusy;
  // Of a home's GPUs in all stages: the fullest, or in the step that raised the alarm (the
  // replica's last one) the busiest.
  const auto level = [&](std::uint32_t home) {
    double most = 0;
    for (std::uint32_t first = home; first < (staged() ? gpus_ : home + 1); first += width) {
      for (std::uint32_t g = first; g < first + layout().tp; ++g) {
        most = std::max(most, busy ? busy_ps_[g]
                                   : static_cast<double>(ledger_.live(g)) /
                                         static_cast<double>(ledger_.capacity(g)));
      }
    }
    return most;
  };
  const std::uint32_t last = staged() ? width : plan_.last_gpu;
  std::uint32_t to = run::kNone;
  for (std::uint32_t g = plan_.first_gpu; g < last; g += layout().tp) {
    if (g != from && out_[g] == 0 && (to == run::kNone || level(g) < level(to))) to = g;
  }
  const std::string& name = s_.alarms[change.rule].name;
  const std::vector<MovedSequence> moved = to == run::kNone || level(to) >= level(from)
                                               ? std::vector<MovedSequence>()
                                               : batch_->move_one(from, to);
  if (moved.empty()) {
    event(run::EventKind::kPolicyAction, now, step, from, 0,
          fmt::format("alarm \"{}\": no sequence to move, or no {} GPU", name,
                      busy ? "idler" : "emptier"));
    return;
  }
  for (const MovedSequence& m : moved) {
    carry_kv(m);
    event(run::EventKind::kPolicyAction, now, step, from, static_cast<double>(m.tokens),
          fmt::format("alarm \"{}\": sequence {} moves from {} to {} with {} tokens of KV", name,
                      m.id, s_.hardware.gpu(from).name, s_.hardware.gpu(to).name, m.tokens));
  }
}

}  // namespace switchyard::sim
