// SPDX-License-Identifier: Apache-2.0
// Faults that leave every GPU in place (scenario/faults.hpp has their definitions).
//
// hot_gpu. The GPU's cost model is made anew with its peak rates times the share of the clock that
// is left; memory rate and launch times stay.
//
// mis_sharding. Expert e of a layer belongs to GPU o and lies on GPU a. Dispatch and combine are
// those of the placement. Between them o sends every row of e on to a (one copy of the dispatch
// payload each) and gets it back (one copy of the combine payload each): two exchanges more, in the
// layer's dispatch and combine, of every chunk or half where the layer has these. With expert
// groups (network.chunk_by) e stays in the group that it has on o: all its rows travel on and are
// computed in that chunk. a computes the rows beside its own experts. The check of weights finds
// it; the weights then travel from a to o. A reload (alarm action) brings them from the host.
//
// gather_failure. n = tries of the rule (of several in one group of experts, the largest). The
// group's combine runs min(n, retries + 1) times in vain: its whole exchange, then the time-out in
// which all that take part wait; of a combine in chunks or halves each of them. With n <= retries
// it then runs once more and succeeds; otherwise it is given up for the group.
//
// Not modelled: a try that ends before all bytes have moved, memory for the weights that the wrong
// GPU was not planned to have (the ledger counts them; KV rooms of ranks do not shrink).
#include <fmt/format.h>

#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

using scenario::FaultKind;
using scenario::FaultRule;

void Simulator::set_clocks() {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const double share = faults_->clock(g);
    if (share == clock_[g]) continue;
    clock_[g] = share;
    scenario::GpuType type = s_.hardware.gpu_type(g);
    for (FlopsPerSecond& peak : type.peak) peak.value *= share;
    cost_[g] = CostModel(pool_of(g).shard, s_.dtype, s_.activations, type, s_.cost);
    if (layers_ > 0) cost_[g].use_slots(slots_);
  }
}

void Simulator::check_fault_places() const {
  const auto of_stage = [&](std::uint32_t layer, std::uint32_t gpu) {
    return !staged() || stage_of_moe(layer) == stage_of_gpu(gpu);
  };
  for (const FaultRule& r : s_.faults.events) {
    const bool any_layer = r.layer == scenario::kAnyTarget, any_gpu = r.gpu == scenario::kAnyTarget;
    if (r.kind == FaultKind::kGatherFailure && !any_layer && !any_gpu &&
        !of_stage(r.layer, r.gpu)) {
      throw InputError(r.where,
                       fmt::format("gather_failure: MoE layer {} is of another stage than {}",
                                   s_.model.moe_layers()[r.layer], s_.hardware.gpu(r.gpu).name),
                       "name a GPU of the layer's stage");
    }
    if (r.kind == FaultKind::kBitFlip && loads_) {
      for (std::uint32_t l = 0; l < layers_; ++l) {
        if (map().row(l).copies(r.expert) < 2) continue;
        throw InputError(r.where,
                         fmt::format("bit_flip of expert {}: unsupported with memory.residency and "
                                     "several copies of it: each is loaded at a time of its own",
                                     r.expert),
                         "use a placement without redundant slots");
      }
    }
    if (r.kind != FaultKind::kMisSharding) continue;
    bool elsewhere = false;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      if (r.layer != scenario::kAnyTarget && r.layer != l) continue;
      if (!of_stage(l, r.gpu)) continue;
      if (map().row(l).copies(r.expert) > 1) {
        throw InputError(r.where,
                         fmt::format("mis_sharding of expert {}: unsupported with several copies "
                                     "of it in one group",
                                     r.expert),
                         "use a placement without redundant slots");
      }
      elsewhere = elsewhere || map().gpu_of(l, r.expert, r.gpu) != r.gpu;
    }
    if (!elsewhere) {
      throw InputError(
          r.where,
          fmt::format("mis_sharding: {} is where expert {} belongs{}", s_.hardware.gpu(r.gpu).name,
                      r.expert, staged() ? ", or of another stage than its layers" : ""),
          "name another GPU");
    }
  }
}

void Simulator::mislay(std::uint32_t layer, std::uint32_t expert, std::uint32_t gpu) {
  const std::uint32_t owner = map().gpu_of(layer, expert, gpu);
  if (owner == gpu || !astray_.try_emplace({layer, expert}, gpu).second) return;
  ledger_.release(owner, MemoryCategory::kExperts, expert_bytes(*pool_), ready_[owner],
                  static_cast<std::uint32_t>(step_), "experts lie on another GPU");
  ledger_.allocate(gpu, MemoryCategory::kExperts, expert_bytes(*pool_), ready_[gpu],
                   static_cast<std::uint32_t>(step_), "experts of another GPU");
}

bool Simulator::bring_home(std::uint32_t layer, std::uint32_t expert, bool over_links) {
  const auto it = astray_.find({layer, expert});
  if (it == astray_.end()) return false;
  const std::uint32_t from = it->second, owner = map().gpu_of(layer, expert, from);
  astray_.erase(it);
  ledger_.allocate(owner, MemoryCategory::kExperts, expert_bytes(*pool_), ready_[owner],
                   static_cast<std::uint32_t>(step_), "experts come home");
  leaving_[from] += expert_bytes(*pool_);
  if (over_links) travel_[std::size_t{from} * gpus_ + owner] += expert_bytes(*pool_);
  return true;
}

void Simulator::send_on(std::uint32_t moe) {
  sent_on_.clear();
  there_.assign(std::size_t{gpus_} * gpus_, 0);
  back_.assign(std::size_t{gpus_} * gpus_, 0);
  const bool grouped = s_.network.chunk_by == scenario::ChunkBy::kExperts;
  const std::uint32_t groups = grouped ? s_.network.chunks : 0;
  group_there_.assign(groups, there_);
  group_back_.assign(groups, back_);
  const ExpertMap::Row& row = map().row(moe);
  for (const auto& [key, gpu] : astray_) {
    if (key.first != moe) continue;
    const std::uint32_t owner = map().gpu_of(moe, key.second, gpu);
    const std::uint32_t local = row.local[row.first[key.second]];
    std::uint64_t rows = 0;
    const std::size_t place = traffic_.waves.empty() ? 0 : traffic_.waves[0][gpu].size();
    for (auto& wave : traffic_.waves) {
      rows += wave[owner][local];
      wave[gpu].push_back(wave[owner][local]);
      wave[owner][local] = 0;
    }
    const std::uint32_t group =
        grouped ? expert_group(local, row.count[layout().rank_of(owner)], groups) : 0;
    sent_on_.push_back({key.second, gpu, group, place});
    traffic_.assignments[owner] -= rows;
    traffic_.assignments[gpu] += rows;
    rows_sent_on_ += rows;
    const std::size_t out = std::size_t{owner} * gpus_ + gpu,
                      home = std::size_t{gpu} * gpus_ + owner;
    const std::uint64_t out_bytes = rows * s_.network.payload.dispatch_bytes(s_.model.hidden_size);
    const std::uint64_t home_bytes = rows * s_.network.payload.combine_bytes(s_.model.hidden_size);
    there_[out] += out_bytes;
    back_[home] += home_bytes;
    if (!grouped) continue;
    group_there_[group][out] += out_bytes;
    group_back_[group][home] += home_bytes;
  }
  for (std::uint32_t g = 0; g < gpus_ && !sent_on_.empty(); ++g) {
    std::uint64_t bytes = 0;
    for (std::uint32_t d = 0; d < gpus_; ++d) {
      bytes += there_[std::size_t{g} * gpus_ + d] + there_[std::size_t{d} * gpus_ + g] +
               back_[std::size_t{g} * gpus_ + d] + back_[std::size_t{d} * gpus_ + g];
    }
    relay_bytes_[g] = bytes;
    ledger_.allocate(g, MemoryCategory::kBuffers, bytes, ready_[g],
                     static_cast<std::uint32_t>(step_), "rows that are sent on");
  }
}

bool Simulator::failed_gathers(std::uint32_t moe, std::vector<std::vector<std::uint64_t>>& combine,
                               const Attempt& attempt, const Pause& pause, bool counts) {
  const std::vector<FaultClock::BadGather> bad = faults_->bad_gathers(moe);
  if (bad.empty()) return false;
  bool given_up = false;
  const run::LayerRecord& out = record_.layers[moe];
  const bool inside = sharded() && !wide();
  for (std::uint32_t q = 0; q < layout().copies(); ++q) {
    const std::uint32_t first = layout().first_of_copy(q), beyond = layout().first_of_copy(q + 1);
    // The group's part of the combine, and who takes part in it.
    std::vector<std::vector<std::uint64_t>> part;
    std::vector<std::uint8_t> member(gpus_, 0);
    for (const auto& m : combine) {
      std::vector<std::uint64_t> own(m.size(), 0);
      for (std::uint32_t g = first; g < beyond; ++g) {
        for (std::uint32_t d = first; d < beyond; ++d) {
          const std::size_t i = std::size_t{g} * gpus_ + d;
          own[i] = m[i];
          if (g != d && m[i] > 0) member[g] = member[d] = 1;
        }
      }
      part.push_back(std::move(own));
    }
    std::uint32_t tries = 0;
    for (const FaultClock::BadGather& b : bad) {
      if (member[b.gpu] != 0) tries = std::max(tries, b.rule->tries);
    }
    if (tries == 0) continue;
    for (std::uint32_t n = 0; n < std::min(tries, s_.faults.retries + 1); ++n) {
      std::int64_t timeout = 0;
      std::uint32_t culprit = run::kNone;
      for (const FaultClock::BadGather& b : bad) {
        if (member[b.gpu] == 0 || b.rule->tries <= n || b.rule->timeout.ps() <= timeout) continue;
        timeout = b.rule->timeout.ps();
        culprit = b.gpu;
      }
      const std::int64_t before = out.combine_ps;
      attempt(part);
      for (std::uint32_t g = first; g < beyond; ++g) {
        if (member[g] != 0) pause(g, timeout, culprit);
      }
      const std::int64_t cost = out.combine_ps - before + timeout;
      straggler_ps_[kByFault][culprit] += cost;
      step_gather_ps_ += cost;
      ++step_tries_;
    }
    if (tries <= s_.faults.retries) continue;
    // Nothing comes back: the group's exchange is given up.
    given_up = true;
    for (auto& m : combine) {
      for (std::uint32_t g = first; g < beyond; ++g) {
        for (std::uint32_t d = first; d < beyond; ++d) m[std::size_t{g} * gpus_ + d] = 0;
      }
    }
    for (std::size_t t = 0; counts && t < ran_tokens_->size(); ++t) {
      const std::uint32_t home = ran_tokens_->rank[t];
      if (layout().copy_of(home) != q) continue;
      for (std::size_t j = 0; j < slots_; ++j) {
        const std::uint32_t ran = traffic_.gpu[t * slots_ + j];
        step_lost_ += ran != kNoGpu && (inside || ran != home) ? 1 : 0;
      }
    }
  }
  return given_up;
}

/// One event for the gathers of a step that failed.
void Simulator::end_gathers(std::uint64_t step) {
  if (step_tries_ == 0) return;
  failed_tries_ += step_tries_;
  lost_in_gathers_ += step_lost_;
  gather_ps_ += step_gather_ps_;
  event(run::EventKind::kPolicyAction, record_.scalars.end_ps, step, run::kNone,
        static_cast<double>(step_tries_),
        fmt::format("gathers: {} tr{} failed and took {}; {} assignments came to nothing",
                    step_tries_, step_tries_ == 1 ? "y" : "ies",
                    format_time(SimTime::from_ps(step_gather_ps_)), step_lost_));
  step_tries_ = step_lost_ = 0;
  step_gather_ps_ = 0;
}

}  // namespace switchyard::sim
