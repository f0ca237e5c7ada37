// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/version.hpp"
#include "engine/model/accounting.hpp"
#include "sim/cost/cost.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/memory/ledger.hpp"

namespace switchyard::sim {
namespace {

using run::MemoryCategory;
using run::StragglerReason;
using scenario::AttentionPlacement;
using scenario::KvPlacement;
using scenario::WorkloadKind;
using PhaseTimes = std::array<std::int64_t, run::kPhases>;

std::size_t at(run::Phase p) { return static_cast<std::size_t>(p); }

/// Whether the scenario states a policy of its own; without one a trace's recorded policy applies.
bool states_policy(const scenario::Scenario& s) {
  return std::any_of(s.values.begin(), s.values.end(), [](const scenario::ResolvedValue& v) {
    return v.key.starts_with("policy.") && v.origin != "default";
  });
}

run::Detail detail_of(scenario::Detail d) {
  switch (d) {
    case scenario::Detail::kSummary:
      return run::Detail::kSummary;
    case scenario::Detail::kSteps:
      return run::Detail::kSteps;
    case scenario::Detail::kLayers:
      return run::Detail::kLayers;
    case scenario::Detail::kTokens:
      return run::Detail::kTokens;
  }
  return run::Detail::kLayers;
}

class Simulator {
 public:
  Simulator(const scenario::Scenario& scenario, const RoutingTrace* trace, RunSink& sink)
      : s_(scenario),
        sink_(sink),
        gpus_(static_cast<std::uint32_t>(scenario.hardware.gpu_count())),
        layers_(static_cast<std::uint32_t>(scenario.model.num_moe_layers())),
        experts_(static_cast<std::uint32_t>(scenario.model.num_experts)),
        map_(scenario),
        exchange_(scenario),
        traffic_builder_(scenario, map_, nodes(scenario)),
        ledger_(capacities(scenario), scenario.memory.watermark),
        policy_(scenario.policy) {
    refuse_unsupported();
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      cost_.emplace_back(s_.model, s_.dtype, s_.activations, s_.hardware.gpu_type(g));
    }
    if (layers_ > 0) {
      source_ = make_routing_source(s_, trace);
      if (trace != nullptr && !states_policy(s_)) {
        policy_ = trace->header.policy;
        policy_from_trace_ = true;
      }
      validate(policy_, experts_, static_cast<std::uint32_t>(s_.model.top_k), "policy");
    }
    backlog_.resize(layers_);
    ready_.assign(gpus_, 0);
    path_.assign(gpus_, PhaseTimes{});
    record_ = {};
  }

  SimulationResult run(const std::string& trace_hash, const ProgressCallback& progress);

 private:
  static std::vector<std::uint32_t> nodes(const scenario::Scenario& s) {
    std::vector<std::uint32_t> node;
    for (std::size_t g = 0; g < s.hardware.gpu_count(); ++g) node.push_back(s.hardware.gpu(g).node);
    return node;
  }
  static std::vector<std::uint64_t> capacities(const scenario::Scenario& s) {
    std::vector<std::uint64_t> bytes;
    for (std::size_t g = 0; g < s.hardware.gpu_count(); ++g) {
      bytes.push_back(s.hardware.gpu_type(g).memory_bytes);
    }
    return bytes;
  }
  void refuse_unsupported() const {
    if (policy_.capacity.exhausted == Exhausted::kQueue &&
        policy_.capacity.queue == QueueMode::kDefer) {
      throw InputError("policy.capacity.queue", "\"defer\" is unsupported in the simulator",
                       "use queue = \"wave\"");
    }
    if (s_.parallel.attention == AttentionPlacement::kHub && s_.parallel.ep != gpus_) {
      throw InputError("parallel.ep",
                       fmt::format("attention = \"hub\" with ep = {} of {} GPUs is unsupported",
                                   s_.parallel.ep, gpus_),
                       "set ep to the number of GPUs");
    }
  }
  [[nodiscard]] bool hub() const { return s_.parallel.attention == AttentionPlacement::kHub; }
  [[nodiscard]] std::uint32_t home(std::uint32_t sequence) const {
    return hub() ? s_.parallel.hub : sequence % gpus_;
  }

  run::Inventory inventory() const;
  void load_weights();
  void compose_step(std::uint64_t step);
  void grow_kv(std::uint64_t step);
  std::uint64_t kv_bytes_of(std::uint64_t tokens) const;

  void work(std::uint32_t gpu, run::Phase phase, const OpCost& cost);
  void exchange(run::Phase phase, const std::vector<std::vector<std::uint64_t>>& matrices,
                std::int64_t& duration, std::int64_t& floor, std::int64_t* late);
  void moe_layer(std::uint64_t step, std::uint32_t moe);
  void end_step(std::uint64_t step, std::int64_t start);
  void note_tokens(std::uint64_t step);
  void note_requests();
  void note_critical(std::uint32_t layer, run::Phase phase, std::uint32_t gpu,
                     StragglerReason reason, std::int64_t start, std::int64_t duration);

  const scenario::Scenario& s_;
  RunSink& sink_;
  std::uint32_t gpus_, layers_, experts_;
  ExpertMap map_;
  ExchangeTimer exchange_;
  TrafficBuilder traffic_builder_;
  MemoryLedger ledger_;
  RoutingPolicy policy_;
  bool policy_from_trace_ = false;
  std::vector<CostModel> cost_;
  std::unique_ptr<RoutingSource> source_;
  std::vector<std::vector<std::uint32_t>> backlog_;

  // State of the step under way.
  std::vector<std::int64_t> ready_;       // [G] clock of each GPU
  std::vector<PhaseTimes> path_;          // [G] how the critical path to ready_[g] is made up
  std::vector<PhaseTimes> gpu_phase_;     // [G] what the GPU itself did
  std::vector<std::int64_t> waited_for_;  // [G] how long others waited for this GPU
  std::vector<std::int64_t> link_bound_;  // [G] exchange time bound by this GPU's link
  StepTokens tokens_;
  std::vector<std::vector<SequenceWork>> sequences_;  // [G]
  std::vector<std::uint64_t> tokens_of_;              // [G]
  run::StepRecord record_;
  Candidates candidates_;
  DecideWorkspace workspace_;
  LayerDecision decision_;
  LayerTraffic traffic_;
  ExchangeTiming timing_;
  std::vector<std::uint64_t> kv_tokens_;  // [sequence] tokens whose pages are allocated
  std::vector<run::CriticalEntry> critical_, slowest_critical_;
  std::int64_t slowest_step_ps_ = -1;
  std::int64_t first_start_ps_ = -1, first_end_ps_ = -1;  // first measured step
};

run::Inventory Simulator::inventory() const {
  run::Inventory inv;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const scenario::GpuType& type = s_.hardware.gpu_type(g);
    run::GpuInfo info;
    info.name = s_.hardware.gpu(g).name;
    info.node = s_.hardware.gpu(g).node;
    info.memory_bytes = type.memory_bytes;
    info.hbm = type.hbm;
    info.peak = type.peak_for(s_.dtype.experts);
    inv.gpus.push_back(std::move(info));
  }
  for (const LinkDescription& l : exchange_.links()) {
    inv.links.push_back({l.name, l.from, l.to, l.link_class, l.bandwidth});
  }
  inv.experts = experts_;
  inv.top_k = static_cast<std::uint32_t>(s_.model.top_k);
  inv.moe_layers = s_.model.moe_layers();
  inv.replicas = gpus_ / s_.parallel.ep;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      for (std::uint32_t r = 0; r < inv.replicas; ++r) {
        inv.placement.push_back(map_.gpu_of(l, e, r * s_.parallel.ep));
      }
    }
  }
  return inv;
}

void Simulator::load_weights() {
  const model::ParameterCount all = model::count_parameters(s_.model);
  // A preset with a stated backbone counts it in place of the parts.
  const std::uint64_t rest = all.embedding + all.attention + all.norms + all.shared_experts +
                             all.dense_ffn + all.head + all.stated_backbone;
  const std::uint64_t backbone =
      model::dtype_bytes(s_.dtype.shared, rest) + model::dtype_bytes(s_.dtype.router, all.router);
  const std::uint64_t per_expert =
      layers_ == 0 || experts_ == 0
          ? 0
          : model::dtype_bytes(s_.dtype.experts, all.experts / (std::uint64_t{layers_} * experts_));
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (!hub() || g == s_.parallel.hub) {
      ledger_.allocate(g, MemoryCategory::kWeights, backbone, 0, run::kNone, "weights");
    }
    std::uint64_t held = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      held += map_.count[map_.row(l)][g % s_.parallel.ep];
    }
    ledger_.allocate(g, MemoryCategory::kExperts, held * per_expert, 0, run::kNone,
                     fmt::format("{} expert weights", held));
    ledger_.allocate(g, MemoryCategory::kRuntime, s_.memory.reserve, 0, run::kNone,
                     "memory.reserve");
  }
}

std::uint64_t Simulator::kv_bytes_of(std::uint64_t tokens) const {
  // Whole pages of kv.block tokens; windowed layers keep what model::kv_bytes says.
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t held = (tokens + block - 1) / block * block;
  std::uint64_t values = 0;
  const std::uint64_t per_token = model::kv_values_per_token_layer(s_.model);
  for (const model::LayerSpec& l : s_.model.layers) {
    values += per_token * (l.sliding_window == 0 ? held : std::min(held, l.sliding_window));
  }
  return model::dtype_bytes(s_.dtype.kv, values);
}

void Simulator::compose_step(std::uint64_t step) {
  const std::uint32_t fresh = s_.workload.tokens;
  const std::size_t n = std::size_t{s_.workload.batch} * fresh;
  tokens_.sequence.resize(n);
  tokens_.position.resize(n);
  tokens_.phase.assign(n, s_.workload.kind == WorkloadKind::kDecode ? 1 : 0);
  tokens_.rank.resize(n);
  tokens_.ordinal.resize(n);
  sequences_.assign(gpus_, {});
  tokens_of_.assign(gpus_, 0);
  std::size_t i = 0;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint32_t g = home(b);
    const std::uint64_t had = s_.workload.context + step * fresh;
    sequences_[g].push_back({fresh, had});
    tokens_of_[g] += fresh;
    for (std::uint32_t j = 0; j < fresh; ++j, ++i) {
      tokens_.sequence[i] = b;
      tokens_.position[i] = static_cast<std::uint32_t>(had + j);
      tokens_.rank[i] = static_cast<std::uint16_t>(g);
      tokens_.ordinal[i] = static_cast<std::uint32_t>(step * fresh + j);
    }
  }
}

void Simulator::grow_kv(std::uint64_t step) {
  const std::int64_t now = *std::max_element(ready_.begin(), ready_.end());
  const auto index = static_cast<std::uint32_t>(step);
  kv_tokens_.resize(s_.workload.batch, 0);
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint64_t want = s_.workload.context + (step + 1) * s_.workload.tokens;
    const std::uint64_t have = kv_tokens_[b] == 0 ? 0 : kv_bytes_of(kv_tokens_[b]);
    const std::uint64_t more = kv_bytes_of(want) - have;
    kv_tokens_[b] = want;
    if (more == 0) continue;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      const bool here =
          s_.memory.kv_placement == KvPlacement::kReplicated ||
          (s_.memory.kv_placement == KvPlacement::kHub ? g == s_.parallel.hub : g == home(b));
      if (here) ledger_.allocate(g, MemoryCategory::kKv, more, now, index, "KV pages");
    }
  }
}

void Simulator::work(std::uint32_t gpu, run::Phase phase, const OpCost& cost) {
  const std::int64_t t = cost.time.ps();
  ready_[gpu] += t;
  path_[gpu][at(phase)] += t;
  gpu_phase_[gpu][at(phase)] += t;
  record_.scalars.hbm_bytes += static_cast<std::uint64_t>(std::llround(cost.bytes));
  record_.scalars.flops += cost.flops;
  record_.scalars.kernels += cost.kernels;
}

void Simulator::note_critical(std::uint32_t layer, run::Phase phase, std::uint32_t gpu,
                              StragglerReason reason, std::int64_t start, std::int64_t duration) {
  if (duration <= 0) return;
  run::CriticalEntry e;
  e.layer = layer;
  e.phase = phase;
  e.gpu = gpu;
  e.reason = reason;
  e.start_ps = start;
  e.duration_ps = duration;
  critical_.push_back(e);
}

void Simulator::exchange(run::Phase phase, const std::vector<std::vector<std::uint64_t>>& matrices,
                         std::int64_t& duration, std::int64_t& floor, std::int64_t* late) {
  for (const std::vector<std::uint64_t>& matrix : matrices) {
    if (std::all_of(matrix.begin(), matrix.end(), [](std::uint64_t b) { return b == 0; })) continue;
    exchange_.run(matrix, ready_, timing_);
    duration += timing_.duration_ps;
    floor += timing_.floor_ps;
    const std::uint32_t last = timing_.last_ready;
    waited_for_[last] += timing_.lateness_ps;
    if (late != nullptr) *late += timing_.lateness_ps;
    if (timing_.bottleneck_gpu < gpus_) link_bound_[timing_.bottleneck_gpu] += timing_.duration_ps;
    const PhaseTimes path_of_last = path_[last];
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (timing_.participates[g] == 0) continue;
      const std::int64_t end = timing_.end_ps[g];
      const std::int64_t begin = std::clamp(timing_.begin_ps, ready_[g], end);
      gpu_phase_[g][at(run::Phase::kWait)] += begin - ready_[g];
      gpu_phase_[g][at(phase)] += end - begin;
      if (end >= timing_.begin_ps) {
        // The path to this GPU's end goes through the GPU that was ready last.
        path_[g] = path_of_last;
        path_[g][at(phase)] += end - timing_.begin_ps;
      } else {
        path_[g][at(phase)] += end - ready_[g];
      }
      ready_[g] = end;
    }
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      for (std::uint32_t d = 0; d < gpus_; ++d) {
        if (d == g) continue;
        const std::uint64_t bytes = matrix[std::size_t{g} * gpus_ + d];
        record_.gpu_bytes_out[g] += bytes;
        record_.gpu_bytes_in[d] += bytes;
        record_.pair_bytes[std::size_t{g} * gpus_ + d] += bytes;
        record_.scalars.bytes_sent += bytes;
        record_.scalars.bytes_received += bytes;
      }
    }
    for (std::size_t k = 0; k < timing_.link_bytes.size(); ++k) {
      record_.link_bytes[k] += timing_.link_bytes[k];
      record_.link_busy_ps[k] += timing_.link_busy_ps[k];
    }
    const bool by_link =
        timing_.duration_ps > timing_.lateness_ps && timing_.bottleneck_gpu < gpus_;
    note_critical(run::kNone, phase, by_link ? timing_.bottleneck_gpu : last,
                  by_link ? StragglerReason::kLink : StragglerReason::kLoad, timing_.begin_ps,
                  timing_.duration_ps);
  }
}

void Simulator::moe_layer(std::uint64_t step, std::uint32_t moe) {
  const auto index = static_cast<std::uint32_t>(step);
  run::LayerRecord& out = record_.layers[moe];
  const std::size_t critical_from = critical_.size();

  std::int64_t slowest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const OpCost c = cost_[g].router(tokens_of_[g]);
    work(g, run::Phase::kRouter, c);
    slowest = std::max(slowest, c.time.ps());
  }
  out.router_ps = slowest;

  source_->candidates(tokens_, moe, candidates_);
  StepContext context =
      make_step(tokens_.sequence, tokens_.position, tokens_.phase, s_.run.seed, moe, index);
  context.rank = tokens_.rank;
  context.ranks = gpus_;
  decide(source_->gate(), policy_, context, candidates_.view(), source_->gate_bias(moe), workspace_,
         decision_);
  traffic_builder_.build(moe, tokens_.rank, decision_, traffic_);

  // Memory that lives during the exchange and the expert phase.
  std::vector<std::uint64_t> buffers(gpus_, 0), activations(gpus_, 0);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    for (const auto* matrices : {&traffic_.dispatch, &traffic_.combine}) {
      std::uint64_t largest = 0;
      for (const auto& m : *matrices) {
        std::uint64_t bytes = 0;
        for (std::uint32_t d = 0; d < gpus_; ++d) {
          if (d != g) bytes += m[std::size_t{g} * gpus_ + d] + m[std::size_t{d} * gpus_ + g];
        }
        largest = std::max(largest, bytes);
      }
      buffers[g] += largest;
    }
    activations[g] = model::dtype_bytes(
        s_.activations, tokens_of_[g] * 3 * s_.model.hidden_size +
                            traffic_.assignments[g] *
                                (2 * s_.model.hidden_size + 2 * s_.model.expert_intermediate));
    ledger_.allocate(g, MemoryCategory::kBuffers, buffers[g], ready_[g], index, "exchange buffers");
    ledger_.allocate(g, MemoryCategory::kActivations, activations[g], ready_[g], index,
                     "activations");
  }

  const std::vector<std::int64_t> before_dispatch = ready_;
  std::int64_t late = 0;
  exchange(run::Phase::kDispatch, traffic_.dispatch, out.dispatch_ps, out.dispatch_floor_ps,
           nullptr);
  // Shared experts run beside dispatch on the GPU that owns the tokens.
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const OpCost c = cost_[g].shared(tokens_of_[g]);
    const std::int64_t excess = before_dispatch[g] + c.time.ps() - ready_[g];
    OpCost visible = c;
    visible.time = SimTime::from_ps(std::max<std::int64_t>(excess, 0));
    work(g, run::Phase::kDense, visible);
  }

  slowest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    OpCost total;
    for (const auto& wave : traffic_.waves) total += cost_[g].experts(wave[g]);
    work(g, run::Phase::kExpert, total);
    slowest = std::max(slowest, total.time.ps());
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (map_.rank[map_.row(moe)][e] != g % s_.parallel.ep) continue;
      std::int64_t t = 0;
      for (const auto& wave : traffic_.waves) {
        t += cost_[g].expert_alone(wave[g][map_.local[map_.row(moe)][e]]).ps();
      }
      record_.expert_time_ps[std::size_t{moe} * experts_ + e] += t;
    }
  }
  out.expert_ps = slowest;

  const std::uint32_t busiest =
      static_cast<std::uint32_t>(std::max_element(ready_.begin(), ready_.end()) - ready_.begin());
  exchange(run::Phase::kCombine, traffic_.combine, out.combine_ps, out.combine_floor_ps, &late);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    work(g, run::Phase::kCombine, cost_[g].combine_sum(tokens_of_[g]));
    ledger_.release(g, MemoryCategory::kBuffers, buffers[g], ready_[g]);
    ledger_.release(g, MemoryCategory::kActivations, activations[g], ready_[g]);
  }

  out.distinct_experts = traffic_.distinct_experts;
  const std::uint64_t sum =
      std::accumulate(traffic_.assignments.begin(), traffic_.assignments.end(), std::uint64_t{0});
  if (sum > 0) {
    out.imbalance = static_cast<double>(*std::max_element(traffic_.assignments.begin(),
                                                          traffic_.assignments.end())) *
                    gpus_ / static_cast<double>(sum);
    const bool by_link = out.dispatch_ps + out.combine_ps > late && timing_.bottleneck_gpu < gpus_;
    out.straggler_gpu = by_link ? timing_.bottleneck_gpu : busiest;
    out.straggler_reason = by_link ? StragglerReason::kLink : StragglerReason::kLoad;
    if (gpus_ == 1) {
      out.straggler_gpu = run::kNone;
      out.straggler_reason = StragglerReason::kNone;
    }
  }
  for (std::size_t i = critical_from; i < critical_.size(); ++i) critical_[i].layer = moe;

  // What happened to the assignments.
  run::StepScalars& sc = record_.scalars;
  sc.assignments += decision_.assignments;
  sc.kept += decision_.kept;
  sc.rerouted += decision_.rerouted;
  sc.queued += decision_.queued_slots;
  sc.dropped += decision_.dropped;
  sc.overflow += decision_.overflowed;
  const std::size_t base = std::size_t{moe} * experts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> moved;
  for (std::size_t i = 0; i < decision_.outcome.size(); ++i) {
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
    record_.expert_overflow[base + e] = decision_.overflow[e];
    record_.expert_capacity[base + e] = decision_.capacity;
    if (decision_.overflow[e] > 0 &&
        (worst == run::kNone || decision_.overflow[e] > decision_.overflow[worst])) {
      worst = e;
    }
    if (decision_.capacity != kUnlimitedCapacity && decision_.demand[e] > decision_.capacity) {
      sc.longest_queue =
          std::max<std::uint64_t>(sc.longest_queue, decision_.demand[e] - decision_.capacity);
    }
  }
  for (const auto& [pair, count] : moved) {
    record_.reroutes.push_back({moe, pair.first, pair.second, count});
  }
  if (worst != run::kNone) {
    run::Event e;
    e.time_ps = before_dispatch[0];
    e.step = index;
    e.kind = run::EventKind::kOverflow;
    e.layer = moe;
    e.expert = worst;
    e.gpu = map_.gpu_of(moe, worst, 0);
    e.value = static_cast<double>(decision_.overflowed);
    e.text =
        fmt::format("{} refused, {} at this expert (C = {}); {} rerouted, {} dropped, {} queued",
                    decision_.overflowed, decision_.overflow[worst], decision_.capacity,
                    decision_.rerouted, decision_.dropped, decision_.queued_slots);
    sink_.data().events.push_back(std::move(e));
  }
}

void Simulator::end_step(std::uint64_t step, std::int64_t start) {
  run::StepScalars& sc = record_.scalars;
  const auto last =
      static_cast<std::uint32_t>(std::max_element(ready_.begin(), ready_.end()) - ready_.begin());
  sc.start_ps = start;
  sc.end_ps = ready_[last];
  sc.phase_ps = path_[last];
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    gpu_phase_[g][at(run::Phase::kWait)] += sc.end_ps - ready_[g];
    std::copy(gpu_phase_[g].begin(), gpu_phase_[g].end(),
              record_.gpu_phase_ps.begin() + static_cast<std::ptrdiff_t>(g * run::kPhases));
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      record_.gpu_memory[g * run::kMemoryCategories + c] =
          ledger_.high_water(g, static_cast<MemoryCategory>(c));
    }
    record_.gpu_memory_peak[g] = ledger_.high_water(g);
  }
  if (gpus_ > 1) {
    const auto load = std::max_element(waited_for_.begin(), waited_for_.end());
    const auto link = std::max_element(link_bound_.begin(), link_bound_.end());
    if (*link > *load) {
      sc.straggler_gpu = static_cast<std::uint32_t>(link - link_bound_.begin());
      sc.straggler_reason = StragglerReason::kLink;
    } else if (*load > 0) {
      sc.straggler_gpu = static_cast<std::uint32_t>(load - waited_for_.begin());
      sc.straggler_reason = StragglerReason::kLoad;
    }
  }
  double sum = 0;
  std::size_t n = 0;
  for (const run::LayerRecord& l : record_.layers) {
    if (!std::isnan(l.imbalance)) {
      sum += l.imbalance;
      sc.imbalance_max = n == 0 ? l.imbalance : std::max(sc.imbalance_max, l.imbalance);
      ++n;
    }
  }
  if (n > 0) sc.imbalance = sum / static_cast<double>(n);
  if (!sc.warmup && sc.end_ps - start > slowest_step_ps_) {
    slowest_step_ps_ = sc.end_ps - start;
    slowest_critical_ = critical_;
    for (run::CriticalEntry& e : slowest_critical_) e.step = static_cast<std::uint32_t>(step);
  }
  for (run::Event& e : ledger_.take_events()) sink_.data().events.push_back(std::move(e));
  // The next step begins when this one has ended everywhere.
  std::fill(ready_.begin(), ready_.end(), sc.end_ps);
}

void Simulator::note_tokens(std::uint64_t step) {
  const run::StepScalars& sc = record_.scalars;
  if (first_start_ps_ < 0) {
    first_start_ps_ = sc.start_ps;
    first_end_ps_ = sc.end_ps;
  }
  if (s_.run.detail != scenario::Detail::kTokens || s_.workload.kind != WorkloadKind::kDecode) {
    return;
  }
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    run::TokenRecord t;
    t.request = b;
    t.index = static_cast<std::uint32_t>(step - s_.workload.warmup_steps);
    t.step = static_cast<std::uint32_t>(step);
    t.time_ps = sc.end_ps;
    sink_.data().tokens.push_back(t);
  }
}

void Simulator::note_requests() {
  // Decode: the batch is caught in the middle of its answers, so the first token here is not the
  // answer's first and the arrival is unknown. Prefill: the chunks of all steps make one prompt.
  const bool decode = s_.workload.kind == WorkloadKind::kDecode;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    run::RequestRecord r;
    r.id = b;
    r.arrival_ps = decode ? -1 : first_start_ps_;
    r.first_token_ps = decode ? first_end_ps_ : ready_[0];
    r.end_ps = ready_[0];
    r.prompt_tokens = decode ? s_.workload.context : s_.workload.tokens * s_.workload.steps;
    r.output_tokens = decode ? s_.workload.steps : 1;
    r.outcome = run::RequestOutcome::kFinished;
    sink_.data().requests.push_back(r);
  }
}

SimulationResult Simulator::run(const std::string& trace_hash, const ProgressCallback& progress) {
  SimulationResult result;
  run::RunMeta meta;
  meta.product_version = version();
  meta.scenario_name = std::filesystem::path(s_.path).stem().string();
  meta.scenario_text = scenario::canonical_text(s_);
  meta.scenario_hash = hex64(hash64(std::string_view(meta.scenario_text)));
  meta.model_name = s_.model.name;
  meta.hardware_name = s_.hardware.name;
  meta.hardware_hash = hex64(hash64(std::string_view(s_.hardware.canonical)));
  meta.trace_hash = trace_hash;
  meta.routing_source = source_ ? source_->description() : "routing: none (dense model)";
  const bool from_trace = s_.workload.routing.source == scenario::RoutingSource::kTrace;
  meta.policy_way = !source_ ? "none" : from_trace ? "replay" : "synthetic";
  if (policy_from_trace_) meta.routing_source += ", policy of the trace";
  constexpr std::array<std::string_view, 4> kModels{"auto", "flow", "coflow", "bottleneck"};
  meta.network_model = kModels[static_cast<std::size_t>(s_.network.model)];
  meta.seed = s_.run.seed;
  meta.detail = detail_of(s_.run.detail);
  const run::Inventory inv = inventory();
  sink_.begin(meta, inv);
  load_weights();

  const std::uint64_t steps = std::uint64_t{s_.workload.warmup_steps} + s_.workload.steps;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::int64_t start = ready_[0];
    record_ = run::make_step(inv);
    record_.expert_time_ps.assign(std::size_t{layers_} * experts_, 0);
    record_.scalars.kind = s_.workload.kind == WorkloadKind::kDecode ? run::StepKind::kDecode
                                                                     : run::StepKind::kPrefill;
    record_.scalars.warmup = step < s_.workload.warmup_steps;
    record_.scalars.tokens = std::uint64_t{s_.workload.batch} * s_.workload.tokens;
    record_.scalars.sequences = s_.workload.batch;
    path_.assign(gpus_, PhaseTimes{});
    gpu_phase_.assign(gpus_, PhaseTimes{});
    waited_for_.assign(gpus_, 0);
    link_bound_.assign(gpus_, 0);
    critical_.clear();
    ledger_.reset_high_water();
    compose_step(step);
    grow_kv(step);

    double entropy = 0;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      OpCost host;
      if (tokens_of_[g] > 0 || !hub()) {
        host.time = SimTime::from_ps(s_.host.per_step.ps() +
                                     s_.host.per_sequence.ps() *
                                         static_cast<std::int64_t>(sequences_[g].size()));
      }
      work(g, run::Phase::kHost, host);
      work(g, run::Phase::kHead, cost_[g].embedding(tokens_of_[g]));
    }
    std::uint32_t moe = 0;
    for (std::size_t layer = 0; layer < s_.model.layers.size(); ++layer) {
      std::int64_t slowest = 0;
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        const OpCost c = cost_[g].attention(layer, sequences_[g]);
        work(g, run::Phase::kAttention, c);
        slowest = std::max(slowest, c.time.ps());
      }
      if (s_.model.is_moe(layer)) {
        record_.layers[moe].attention_ps = slowest;
        moe_layer(step, moe);
        entropy += source_->mean_entropy();
        ++moe;
      } else {
        for (std::uint32_t g = 0; g < gpus_; ++g) {
          work(g, run::Phase::kDense, cost_[g].dense(layer, tokens_of_[g]));
        }
      }
    }
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      // Every sequence samples from its last token only.
      work(g, run::Phase::kHead, cost_[g].head(sequences_[g].size()));
    }
    if (moe > 0) record_.scalars.gate_entropy = entropy / moe;
    end_step(step, start);
    if (!record_.scalars.warmup) note_tokens(step);
    sink_.append(record_);
    if (progress) progress(step + 1, steps, ready_[0]);
  }

  note_requests();
  // Everything is given back, so that the ledger must come out even.
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      ledger_.release(g, category, ledger_.live(g, category), ready_[g]);
    }
  }
  sink_.data().critical_path = slowest_critical_;
  if (const std::string uneven = ledger_.check(); !uneven.empty()) {
    result.violations.push_back({"memory", "run", uneven});
  }
  for (run::Violation& v : sink_.finish()) result.violations.push_back(std::move(v));
  if (source_ && source_->reused()) {
    result.notes.push_back("trace rows were used more than once: the run is longer than the trace");
  }
  if (policy_from_trace_) result.notes.push_back("policy: the one recorded in the trace");
  if (ledger_.any_out_of_memory()) {
    std::string which;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (ledger_.out_of_memory(g)) which += (which.empty() ? "" : ", ") + inv.gpus[g].name;
    }
    result.notes.push_back(
        fmt::format("OUT OF MEMORY on {}: the times are of a machine that does "
                    "not exist",
                    which));
  }
  return result;
}

}  // namespace

SimulationResult simulate(const scenario::Scenario& scenario, const RoutingTrace* trace,
                          const std::string& trace_hash, RunSink& sink,
                          const ProgressCallback& progress) {
  Simulator simulator(scenario, trace, sink);
  return simulator.run(trace_hash, progress);
}

}  // namespace switchyard::sim
