// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/routing/decode_rebalance.hpp"
#include "engine/routing/scores.hpp"
#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {
namespace {

/// The other experts of the step's tokens, or of an EP group's.
class OtherExperts final : public MoreCandidates {
 public:
  OtherExperts(RoutingSource& source, const StepTokens& tokens, std::uint32_t moe,
               std::span<const std::uint32_t> rows)
      : source_(source), tokens_(tokens), moe_(moe), rows_(rows) {}
  void all(std::uint32_t t, std::span<std::uint16_t> ids) override {
    source_.all_candidates(tokens_, moe_, rows_.empty() ? t : rows_[t], ids);
  }

 private:
  RoutingSource& source_;
  const StepTokens& tokens_;
  std::uint32_t moe_;
  std::span<const std::uint32_t> rows_;  // of tokens_; empty: all
};

}  // namespace

void Simulator::route(std::uint32_t moe, std::uint32_t copy, const StepContext& context,
                      const CandidatesView& candidates, std::span<const float> logits,
                      LayerDecision& out) {
  first_gpu_.clear();
  gpu_of_expert_.clear();
  for (std::uint32_t e = 0; e < experts_; ++e) {
    first_gpu_.push_back(static_cast<std::uint32_t>(gpu_of_expert_.size()));
    for (std::uint32_t i = 0; i < map().row(moe).copies(e); ++i) {
      gpu_of_expert_.push_back(map().gpu_of(moe, e, layout().first_of_copy(copy), i));
    }
  }
  first_gpu_.push_back(static_cast<std::uint32_t>(gpu_of_expert_.size()));
  const Signals signals{step_start_, memory_used_, memory_elastic_, first_gpu_, gpu_of_expert_};
  RouteInput input;
  input.candidates = candidates;
  input.logits = logits;
  input.gate_bias = source_->gate_bias(moe);
  input.signals = &signals;
  input.requests = state_.requests();
  input.table = table_ ? &*table_ : nullptr;
  input.weights = weights_.layer(moe);
  route_layer(source_->gate(), policy_, context, input, state_.layer(state_of(moe, copy)),
              workspace_, out);
}

/// Decides a layer: one EP group after the other, since each holds its own copy of the experts and
/// fills it with its own tokens.
void Simulator::decide_layer(std::uint32_t moe, std::uint32_t step) {
  const scenario::Parallel& layout = pool_->layout;
  const std::uint32_t ep = layout.ep;
  longest_queue_ = 0;
  // Of one copy of an expert: a full one is not helped by another group's that has room.
  const auto count_queue = [&](const LayerDecision& d) {
    if (d.capacity == kUnlimitedCapacity) return;
    for (const std::uint32_t demand : d.demand) {
      if (demand > d.capacity) {
        longest_queue_ = std::max<std::uint64_t>(longest_queue_, demand - d.capacity);
      }
    }
  };
  if (ep == gpus_) {
    StepContext context =
        make_step(tokens_.sequence, tokens_.position, tokens_.phase, s_.run.seed, moe, step);
    context.rank = tokens_.rank;
    context.ranks = gpus_;
    if (defers_) {
      context.batch = plan_.sequences.size();
      count_backlog(0);
      context.backlog = backlog_;
    }
    OtherExperts others(*source_, tokens_, moe, {});
    CandidatesView view = candidates_.view();
    if (source_->knows_all()) view.more = &others;
    route(moe, 0, context, view, source_->logits(), decision_);
    count_queue(decision_);
    if (defers_) settle_backlog(0, decision_, {});
    return;
  }
  const std::size_t k = slots_, m = candidates_.width;
  const auto tokens = static_cast<std::uint32_t>(tokens_.size());
  const std::uint64_t batch =
      defers_ ? plan_.sequences.size()
              : make_step(tokens_.sequence, tokens_.position, tokens_.phase, s_.run.seed, moe, step)
                    .batch_size();
  LayerDecision& all = decision_;
  all = LayerDecision{};
  all.tokens = tokens;
  all.slots = static_cast<std::uint32_t>(k);
  all.first.assign(tokens * k, kNoExpert);
  all.chosen.assign(tokens * k, kNoExpert);
  all.outcome.assign(tokens * k, 0);
  all.demand.assign(experts_, 0);
  all.overflow.assign(experts_, 0);
  all.load.assign(experts_, 0);
  all.queued.assign(experts_, 0);
  all.capacity = 0;
  const std::uint32_t first_gpu = std::max(plan_.first_gpu, stage_ * homes());
  const std::uint32_t last_gpu = staged() ? first_gpu + homes() : plan_.last_gpu;
  const auto decode = static_cast<std::uint8_t>(switchyard::Phase::kDecode);
  const bool decodes =
      std::find(tokens_.phase.begin(), tokens_.phase.end(), decode) != tokens_.phase.end();
  for (std::uint32_t q = 0; q < layout.copies(); ++q) {
    const std::uint32_t base = layout.first_of_copy(q);
    group_rows_.clear();
    group_tokens_ = StepTokens{};
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (layout.copy_of(tokens_.rank[t]) != q) continue;
      group_rows_.push_back(t);
      group_tokens_.sequence.push_back(tokens_.sequence[t]);
      group_tokens_.position.push_back(tokens_.position[t]);
      group_tokens_.phase.push_back(tokens_.phase[t]);
      group_tokens_.rank.push_back(static_cast<std::uint16_t>(layout.rank_of(tokens_.rank[t])));
    }
    const auto rows = static_cast<std::uint32_t>(group_rows_.size());
    if (base >= first_gpu && base < last_gpu) {
      // Copies without a token, or without one that decodes, are in the engine's step all the same.
      LayerState& state = state_.layer(state_of(moe, q));
      const bool own = std::find(group_tokens_.phase.begin(), group_tokens_.phase.end(), decode) !=
                       group_tokens_.phase.end();
      if (policy_.decode_rebalance.on() && decodes && !own) {
        std::vector<double> level(experts_, 1);
        for (std::uint32_t e = 0; e < experts_; ++e) {
          for (std::uint32_t i = 0; i < map().row(moe).copies(e); ++i) {
            level[e] = std::min(level[e], memory_used_[map().gpu_of(moe, e, base, i)]);
          }
        }
        begin_decode_step(policy_.decode_rebalance, level, state.rebalance);
      }
      if (rows == 0 && !any_late(q)) {
        state.longest_queue = 0;
        std::fill(state.queue_level.begin(), state.queue_level.end(), 0.0F);
      }
    }
    if (rows == 0 && !any_late(q)) continue;
    group_candidates_.resize(rows, static_cast<std::uint32_t>(m));
    const bool scored = !candidates_.lse.empty();
    if (!scored) {
      group_candidates_.logit.clear();
      group_candidates_.lse.clear();
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t from = group_rows_[i] * m;
      std::copy_n(candidates_.ids.begin() + static_cast<std::ptrdiff_t>(from), m,
                  group_candidates_.ids.begin() + static_cast<std::ptrdiff_t>(i * m));
      if (!scored) continue;
      std::copy_n(candidates_.logit.begin() + static_cast<std::ptrdiff_t>(from), m,
                  group_candidates_.logit.begin() + static_cast<std::ptrdiff_t>(i * m));
      group_candidates_.lse[i] = candidates_.lse[group_rows_[i]];
    }
    group_logits_.clear();
    if (!source_->logits().empty()) {
      for (const std::uint32_t t : group_rows_) {
        const auto row = source_->logits().subspan(std::size_t{t} * experts_, experts_);
        group_logits_.insert(group_logits_.end(), row.begin(), row.end());
      }
    }
    StepContext context = make_step(group_tokens_.sequence, group_tokens_.position,
                                    group_tokens_.phase, s_.run.seed, moe, step);
    context.rank = group_tokens_.rank;
    context.ranks = ep;
    context.batch = batch;
    if (defers_) {
      count_backlog(q);
      context.backlog = backlog_;
    }
    OtherExperts others(*source_, tokens_, moe, group_rows_);
    CandidatesView view = group_candidates_.view();
    if (source_->knows_all()) view.more = &others;
    route(moe, q, context, view, group_logits_, group_decision_);
    const LayerDecision& part = group_decision_;
    count_queue(part);
    if (defers_) settle_backlog(q, part, group_rows_);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t to = group_rows_[i] * k;
      for (std::size_t j = 0; j < k; ++j) {
        all.first[to + j] = part.first[i * k + j];
        all.chosen[to + j] = part.chosen[i * k + j];
        all.outcome[to + j] = part.outcome[i * k + j];
      }
    }
    for (std::uint32_t e = 0; e < experts_; ++e) {
      all.demand[e] += part.demand[e];
      all.overflow[e] += part.overflow[e];
      all.load[e] += part.load[e];
      all.queued[e] += part.queued[e];
    }
    all.assignments += part.assignments;
    all.kept += part.kept;
    all.rerouted += part.rerouted;
    all.queued_slots += part.queued_slots;
    all.dropped += part.dropped;
    all.overflowed += part.overflowed;
    all.truncated_slots += part.truncated_slots;
    all.linear_fallbacks += part.linear_fallbacks;
    all.sets += part.sets;
    all.waves = std::max(all.waves, part.waves);
    if (rows == 0) continue;
    // The copies of an expert together hold the sum of the groups' capacities.
    all.capacity = part.capacity == kUnlimitedCapacity || all.capacity == kUnlimitedCapacity
                       ? kUnlimitedCapacity
                       : all.capacity + part.capacity;
  }
}

OpCost Simulator::stacked_experts(std::uint32_t moe, std::uint32_t g) const {
  std::vector<std::uint32_t> left(traffic_.waves.empty() ? 0 : traffic_.waves[0][g].size(), 0);
  std::uint64_t soft_tokens = 0;
  const ExpertMap::Row& row = map().row(moe);
  const std::vector<RequestInfo>& requests = state_.requests();
  for (std::size_t t = 0; t < ran_tokens_->size(); ++t) {
    const RequestInfo& request = requests[ran_tokens_->sequence[t]];
    if (!request.soft || request.expert != kNoExpert || request.table_entry != kNoTableEntry) {
      continue;
    }
    bool here = false;
    for (std::size_t j = 0; j < slots_; ++j) {
      if (traffic_.gpu[t * slots_ + j] != first_column(g)) {
        continue;
      }
      here = true;
      const std::uint16_t e = ran_->chosen[t * slots_ + j];
      for (std::uint32_t c = row.first[e]; c < row.first[e + 1]; ++c) {
        if (row.rank[c] == layout().rank_of(g)) {
          ++left[row.local[c]];
          break;
        }
      }
    }
    soft_tokens += here ? 1 : 0;
  }
  OpCost total;
  std::vector<std::uint32_t> soft(left.size());
  for (const auto& wave : traffic_.waves) {
    bool any = false;
    for (std::size_t i = 0; i < left.size(); ++i) {
      soft[i] = std::min(left[i], wave[g][i]);
      left[i] -= soft[i];
      any = any || soft[i] > 0;
    }
    total += cost_[g].experts_stacked(wave[g], soft, any ? soft_tokens : 0);
    soft_tokens = any ? 0 : soft_tokens;
  }
  return total;
}

/// Tensors that live only while an operation runs.
void Simulator::transient(std::uint32_t gpu, std::uint64_t values, model::DType format,
                          const char* cause) {
  if (values == 0) return;
  const std::uint64_t bytes = model::dtype_bytes(format, values);
  ledger_.allocate(gpu, MemoryCategory::kActivations, bytes, ready_[gpu],
                   static_cast<std::uint32_t>(step_), cause);
  ledger_.release(gpu, MemoryCategory::kActivations, bytes, ready_[gpu],
                  static_cast<std::uint32_t>(step_), cause);
}

OpCost Simulator::expert_work(std::uint32_t moe, std::uint32_t g) {
  OpCost total;
  if (!map().has(g)) return total;  // Of replicas with another layout.
  if (policy_.soft.on() && policy_.soft.cost == SoftCost::kStacked) {
    total = stacked_experts(moe, g);
  } else {
    for (const auto& wave : traffic_.waves) total += cost_[g].experts(own_rows(moe, g, wave[g]));
  }
  const ExpertMap::Row& row = map().row(moe);
  const bool slow = faults_ != nullptr && faults_->any_slow_expert();
  for (const std::uint32_t c : row.of_rank[layout().rank_of(g)]) {
    if (on_host(g, row.expert[c])) continue;  // await_host() has its time.
    std::int64_t t = 0;
    for (const auto& wave : traffic_.waves) {
      t += cost_[g].expert_alone(wave[g][row.local[c]]).ps();
    }
    if (slow && t > 0) {
      // Its kernel holds the GPU for longer; the others run as before.
      const double factor = faults_->expert_factor(moe, row.expert[c]);
      const SimTime more = SimTime::from_seconds(static_cast<double>(t) * 1e-12 * (factor - 1));
      total.time += more;
      t += more.ps();
    }
    record_.expert_time_ps[std::size_t{moe} * experts_ + row.expert[c]] += t;
  }
  for (const SentOn& x : sent_on_) {
    if (x.gpu != g) continue;
    std::int64_t t = 0;
    for (const auto& wave : traffic_.waves) t += cost_[g].expert_alone(wave[g][x.local]).ps();
    if (slow && t > 0) {
      const SimTime more = SimTime::from_seconds(static_cast<double>(t) * 1e-12 *
                                                 (faults_->expert_factor(moe, x.expert) - 1));
      total.time += more;
      t += more.ps();
    }
    record_.expert_time_ps[std::size_t{moe} * experts_ + x.expert] += t;
  }
  return total;
}

void Simulator::shared_experts(const std::vector<std::int64_t>& before_dispatch) {
  // Shared experts run beside dispatch on the GPU that owns the tokens.
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const OpCost c = cost_[g].shared(rows_of_[g]);
    const std::int64_t excess = before_dispatch[g] + c.time.ps() - ready_[g];
    OpCost visible = c;
    visible.time = SimTime::from_ps(std::max<std::int64_t>(excess, 0));
    work(g, run::Phase::kDense, visible);
  }
}

/// Router units: tokens go there, decisions come back. Adds the longest of it to `longest`.
void Simulator::route_away(std::uint32_t moe, std::int64_t& longest) {
  std::vector<std::uint64_t> up = routed_rows_of_;
  if (sharded() && !wide()) {
    // Every GPU of a group has all its tokens: each sends a share and gets all decisions.
    const std::uint64_t tp = layout().tp;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      up[g] = routed_rows_of_[g] * (g % tp + 1) / tp - routed_rows_of_[g] * (g % tp) / tp;
    }
  }
  constexpr std::uint64_t kSlotBytes = 6;  // An expert's number and its weight.
  std::uint64_t sent = 0, wanted = 0;
  for (const std::uint64_t n : up) sent += n;
  for (std::size_t t = 0; t < tokens_.size(); ++t)
    wanted += uses_router(tokens_.sequence[t]) ? 1 : 0;
  if (sent != wanted) {
    violation("router", fmt::format("step {}, MoE layer {}", step_, s_.model.moe_layers()[moe]),
              fmt::format("{} tokens went to the router, {} need it", sent, wanted));
  }
  std::int64_t most = 0;
  for (const RouterUnits::Batch& b : router_units_->run(
           ready_, up, routed_rows_of_, model::dtype_bytes(s_.activations, s_.model.hidden_size),
           slots_ * kSlotBytes)) {
    check_time(b.end_ps);
    most = std::max(most, b.end_ps - b.begin_ps);
    const Path path_of_last = path_[b.last_ready];
    Path joint;
    std::int64_t joint_end = -1;
    for (std::size_t i = 0; i < b.gpus.size(); ++i) {
      // The GPU waits; what it waits for is on the path as the router.
      const std::uint32_t g = b.gpus[i];
      const std::int64_t end = b.gpu_end_ps[i];
      if (end != joint_end) {
        joint = path_of_last;
        extend(joint, {run::Phase::kRouter, moe, b.last_ready, StragglerReason::kNone},
               end - b.begin_ps);
        joint_end = end;
      }
      gpu_phase_[g][at(run::Phase::kWait)] += end - ready_[g];
      path_[g] = joint;
      ready_[g] = end;
    }
  }
  longest += most;
}

/// The matrices were replaced by others.
void Simulator::sum_traffic() {
  traffic_.dispatch_ports.resize(traffic_.dispatch.size());
  traffic_.combine_ports.resize(traffic_.combine.size());
  for (std::size_t i = 0; i < traffic_.dispatch.size(); ++i) {
    sum_ports(traffic_.dispatch[i], traffic_.dispatch_ports[i]);
  }
  for (std::size_t i = 0; i < traffic_.combine.size(); ++i) {
    sum_ports(traffic_.combine[i], traffic_.combine_ports[i]);
  }
}

/// Router, decisions and what they ask for.
void Simulator::moe_front(std::uint32_t moe) {
  at_layer_ = moe;
  const auto index = static_cast<std::uint32_t>(step_);
  std::int64_t slowest = 0;
  if (router_units_) {
    std::int64_t norm = 0, permute = 0;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      norm = std::max(norm, work(g, run::Phase::kRouter, cost_[g].router_norm(rows_of_[g])));
    }
    route_away(moe, slowest);
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      permute =
          std::max(permute, work(g, run::Phase::kRouter, cost_[g].router_permute(rows_of_[g])));
    }
    slowest += norm + permute;
  } else {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      const OpCost c = cost_[g].router(rows_of_[g], routed_rows_of_[g]);
      slowest = std::max(slowest, work(g, run::Phase::kRouter, c));
    }
  }
  record_.layers[moe].router_ps += slowest;

  // Without capacities nothing looks beyond the chosen experts. An alarm's policy with more of them
  // than the scenario's reads scores: it has steps (policy_slots()).
  const bool plain = policy_.capacity.rule == CapacityRule::kNone;
  source_->candidates(tokens_, moe, candidates_,
                      reads_scores(policy_) ? RoutingSource::Need::kScored
                      : plain               ? RoutingSource::Need::kChosen
                                            : RoutingSource::Need::kRanked);
  if (s_.memory.sample_every.ps() > 0) sample_by_clock();
  if (defers_) find_late(moe);
  decide_layer(moe, index);
  if (cohesion_ && moe + 1 == layers_) cohesion_->add(*source_, tokens_, moe, decision_);
  if (defers_) choose_what_runs();
  by_copies_ = copies_suffice();
  pool_->traffic.build(moe, *ran_tokens_, *ran_, traffic_, !by_copies_);
  check_traffic(moe);
  sent_on_.clear();
  if (!astray_.empty()) send_on(moe);
  if (kv_by_expert()) keep_kv(moe);
  if (sharded() && !wide()) {
    // Every GPU has the group's tokens already; an all-reduce adds up what their experts gave.
    traffic_.dispatch.clear();
    traffic_.combine = layout().sequence_parallel ? scatter_ : reduce_;
    if (layout().sequence_parallel) traffic_.dispatch = gather_;
    if (defers_) {
      using network::Collective;
      traffic_.combine = group_collective(
          layout().sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
          with_late());
      if (layout().sequence_parallel) {
        traffic_.dispatch = group_collective(Collective::kAllGather, with_late());
      }
    }
    sum_traffic();
  }
  if (s_.network.payload.wire != scenario::WireFormat::kNative) {
    halve(traffic_.dispatch, s_.network.payload.dispatch_bytes(s_.model.hidden_size));
    halve(traffic_.combine, s_.network.payload.combine_bytes(s_.model.hidden_size));
    for (Matrices& m : traffic_.group_dispatch) {
      halve(m, s_.network.payload.dispatch_bytes(s_.model.hidden_size));
    }
    for (Matrices& m : traffic_.group_combine) {
      halve(m, s_.network.payload.combine_bytes(s_.model.hidden_size));
    }
    sum_traffic();
  }

  // Memory that lives during the exchange and the expert phase.
  buffers_.assign(gpus_, 0);
  activations_.assign(gpus_, 0);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    for (const auto* exchanges : {&traffic_.dispatch_ports, &traffic_.combine_ports}) {
      std::uint64_t largest = 0;
      for (const PortBytes& p : *exchanges) largest = std::max(largest, p.out[g] + p.in[g]);
      buffers_[g] += largest;
    }
    activations_[g] = model::dtype_bytes(
        s_.activations, rows_of_[g] * 3 * s_.model.hidden_size +
                            rows_of_[g] * 2 * shard().shared_intermediate +
                            traffic_.assignments[first_column(g)] *
                                (2 * s_.model.hidden_size + 2 * shard().expert_intermediate));
    ledger_.allocate(g, MemoryCategory::kBuffers, buffers_[g], ready_[g], index,
                     "exchange buffers");
    ledger_.allocate(g, MemoryCategory::kActivations, activations_[g], ready_[g], index,
                     "activations");
  }
  before_dispatch_ = ready_;
}

void Simulator::moe_layer(std::uint64_t, std::uint32_t moe) {
  moe_front(moe);
  run::LayerRecord& out = record_.layers[moe];
  if (s_.network.chunks > 1) {
    chunked_layer(moe);
  } else {
    const bool packs = s_.network.payload.wire != scenario::WireFormat::kNative;
    const bool inside = sharded() && !wide();  // The group's collectives in place of all-to-alls.
    if (loads_) ask_experts(moe);
    if (packs) pack(run::Phase::kDispatch, true);
    const auto time_of = [&](run::Phase phase, const auto& matrices) {
      return inside ? inside_time(phase, matrices) : all_to_all_time(phase, Among::kGroups);
    };
    const auto call_of = [&](const auto& matrices) {
      return inside ? inside_call(matrices.size()) : OneCall{};
    };
    if (by_copies_) {
      exchange_copies(run::Phase::kDispatch, moe, false, out.dispatch_ps, out.dispatch_floor_ps);
    } else {
      const GroupTime there = time_of(run::Phase::kDispatch, traffic_.dispatch);
      exchange(inside ? run::Phase::kCollective : run::Phase::kDispatch, moe, traffic_.dispatch,
               out.dispatch_ps, out.dispatch_floor_ps, Among::kGroups, &traffic_.dispatch_ports,
               &there, call_of(traffic_.dispatch));
    }
    if (packs) pack(run::Phase::kDispatch, false);
    if (!sent_on_.empty()) {
      exchange(run::Phase::kDispatch, moe, {there_}, out.dispatch_ps, out.dispatch_floor_ps);
    }
    if (loads_ && loads_->on_host) compute_on_host(ready_);
    shared_experts(before_dispatch_);
    if (loads_) await_experts(moe);
    if (s_.memory.loading.by_layer) await_layer(moe);

    std::int64_t slowest = 0;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      slowest = std::max(slowest, work(g, run::Phase::kExpert, expert_work(moe, g)));
    }
    out.expert_ps += slowest;
    if (loads_ && loads_->on_host) await_host(moe);

    if (!sent_on_.empty()) {
      exchange(run::Phase::kCombine, moe, {back_}, out.combine_ps, out.combine_floor_ps);
    }
    if (packs) pack(run::Phase::kCombine, true);
    const run::Phase home = inside ? run::Phase::kCollective : run::Phase::kCombine;
    if (faults_ != nullptr && faults_->any_bad_gather() &&
        failed_gathers(
            moe, traffic_.combine,
            [&](const auto& part) {
              const GroupTime time = time_of(run::Phase::kCombine, part);
              exchange(home, moe, part, out.combine_ps, out.combine_floor_ps, Among::kGroups,
                       nullptr, &time, call_of(part));
            },
            [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
              wait(g, ps, culprit, StragglerReason::kFault);
            },
            true)) {
      sum_traffic();
    }
    if (by_copies_) {
      exchange_copies(run::Phase::kCombine, moe, true, out.combine_ps, out.combine_floor_ps);
    } else {
      const GroupTime back = time_of(run::Phase::kCombine, traffic_.combine);
      exchange(home, moe, traffic_.combine, out.combine_ps, out.combine_floor_ps, Among::kGroups,
               &traffic_.combine_ports, &back, call_of(traffic_.combine));
    }
    if (packs) pack(run::Phase::kCombine, false);
  }
  moe_finish(moe);
}

/// Weighted sum, what the layer gives back, and what happened to the assignments.
void Simulator::moe_finish(std::uint32_t moe) {
  at_layer_ = moe;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    // A wide ep has the residual of its own rows only, whatever is divided elsewhere.
    const std::uint64_t rows = rows_of_[g] + (defers_ ? late_rows_[g] : 0);
    work(g, run::Phase::kCombine, cost_[g].combine_sum(rows, wide() ? 1 : shares()));
    ledger_.release(g, MemoryCategory::kBuffers, buffers_[g], ready_[g],
                    static_cast<std::uint32_t>(step_), "the MoE layer ends");
    if (!sent_on_.empty()) {
      ledger_.release(g, MemoryCategory::kBuffers, relay_bytes_[g], ready_[g],
                      static_cast<std::uint32_t>(step_), "the MoE layer ends");
    }
    ledger_.release(g, MemoryCategory::kActivations, activations_[g], ready_[g],
                    static_cast<std::uint32_t>(step_), "the MoE layer ends");
  }
  if (wide() && !layout().sequence_parallel) {
    if (defers_) {
      const std::vector<std::uint64_t> rows = with_late();
      collective(moe, group_collective(network::Collective::kAllGather, rows),
                 {network::Collective::kAllGather, &rows});
    } else {
      gather_hidden(moe);
    }
  }
  if (loads_) drop_passing();

  const bool again = layer_begun_[moe] != 0;
  layer_begun_[moe] = 1;
  count_experts(moe, again);

  // What happened to the assignments.
  run::StepScalars& sc = record_.scalars;
  sc.assignments += decision_.assignments;
  sc.kept += decision_.kept;
  sc.rerouted += decision_.rerouted;
  sc.queued += decision_.queued_slots;
  sc.dropped += decision_.dropped;
  sc.overflow += decision_.overflowed;
  truncated_ += decision_.truncated_slots;
  linear_fallbacks_ += decision_.linear_fallbacks;
  sets_ += decision_.sets;
  const std::size_t base = std::size_t{moe} * experts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> moved;
  // Mostly every first choice runs.
  const bool all_kept = decision_.kept == decision_.assignments;
  for (std::uint32_t e = 0; all_kept && e < experts_; ++e) {
    record_.expert_kept[base + e] += decision_.load[e];
  }
  for (std::size_t i = 0; !all_kept && i < decision_.outcome.size(); ++i) {
    const std::uint16_t from = decision_.first[i];
    switch (static_cast<SlotOutcome>(decision_.outcome[i])) {
      case SlotOutcome::kNoSlot:
        break;
      case SlotOutcome::kKept:
        ++record_.expert_kept[base + decision_.chosen[i]];
        break;
      case SlotOutcome::kRerouted:
        ++record_.expert_kept[base + decision_.chosen[i]];
        ++record_.expert_rerouted_in[base + decision_.chosen[i]];
        ++moved[{from, decision_.chosen[i]}];
        break;
      case SlotOutcome::kQueued:
        ++record_.expert_kept[base + from];
        ++record_.expert_queued[base + from];
        break;
      case SlotOutcome::kDropped:
        ++record_.expert_dropped[base + from];
        break;
    }
  }
  std::uint32_t worst = run::kNone;
  for (std::uint32_t e = 0; e < experts_; ++e) {
    record_.expert_overflow[base + e] += decision_.overflow[e];
    // Micro-batches have their capacities one after the other.
    std::uint32_t& capacity = record_.expert_capacity[base + e];
    const bool endless =
        decision_.capacity == kUnlimitedCapacity || (again && capacity == run::kUnlimited);
    capacity = endless ? run::kUnlimited : decision_.capacity + (again ? capacity : 0);
    if (decision_.overflow[e] > 0 &&
        (worst == run::kNone || decision_.overflow[e] > decision_.overflow[worst])) {
      worst = e;
    }
  }
  sc.longest_queue = std::max(sc.longest_queue, longest_queue_);
  for (const auto& [pair, count] : moved) {
    record_.reroutes.push_back({moe, pair.first, pair.second, count});
  }
  if (worst != run::kNone) {
    const std::uint32_t first = std::max(stage_ * homes(), layout().first_gpu);
    run::Event e;
    e.time_ps = before_dispatch_[std::max(first, plan_.first_gpu)];
    e.step = static_cast<std::uint32_t>(step_);
    e.kind = run::EventKind::kOverflow;
    e.layer = moe;
    e.expert = worst;
    e.gpu = map().gpu_of(moe, worst, first);
    e.value = static_cast<double>(decision_.overflowed);
    e.text =
        fmt::format("{} refused, {} at this expert (C = {}); {} rerouted, {} dropped, {} queued",
                    decision_.overflowed, decision_.overflow[worst], decision_.capacity,
                    decision_.rerouted, decision_.dropped, decision_.queued_slots);
    sink_.data().events.push_back(std::move(e));
  }
}

/// Distinct experts and imbalance of a layer, over the micro-batches of the step.
void Simulator::count_experts(std::uint32_t moe, bool again) {
  run::LayerRecord& out = record_.layers[moe];
  const std::vector<std::uint64_t>* assignments = &traffic_.assignments;
  out.distinct_experts = traffic_.distinct_experts;
  if (parts_ > 1) {
    layer_assignments_.resize(layers_);
    layer_experts_.resize(std::size_t{layers_} * gpus_);
    std::vector<std::uint64_t>& all = layer_assignments_[moe];
    if (!again) all.assign(gpus_, 0);
    out.distinct_experts = 0;
    const scenario::Parallel& p = layout();
    for (std::uint32_t g = p.first_gpu; p.has(g); g += p.expert_tp) {
      all[g] += traffic_.assignments[g];
      std::vector<std::uint8_t>& had = layer_experts_[std::size_t{moe} * gpus_ + g];
      if (!again) had.clear();
      for (const auto& wave : traffic_.waves) {
        // Experts astray come behind the GPU's own.
        had.resize(std::max(had.size(), wave[g].size()), 0);
        for (std::size_t i = 0; i < wave[g].size(); ++i) {
          if (wave[g][i] > 0) had[i] = 1;
        }
      }
      out.distinct_experts += static_cast<std::uint32_t>(std::count(had.begin(), had.end(), 1));
    }
    assignments = &all;
  }
  const std::uint64_t sum =
      std::accumulate(assignments->begin(), assignments->end(), std::uint64_t{0});
  if (sum > 0) {
    out.imbalance =
        static_cast<double>(*std::max_element(assignments->begin(), assignments->end())) *
        ((plan_.last_gpu - plan_.first_gpu) / layout().pp / layout().expert_tp) /
        static_cast<double>(sum);
  }
}

}  // namespace switchyard::sim
