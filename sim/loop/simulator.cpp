// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/version.hpp"
#include "engine/model/accounting.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/routing/route.hpp"
#include "engine/trace/replay.hpp"
#include "sim/cost/cost.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/loop/placement_source.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/loop/shard.hpp"
#include "sim/memory/ledger.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {
namespace {

using run::MemoryCategory;
using run::StragglerReason;
using scenario::AttentionPlacement;
using scenario::KvPlacement;
using scenario::WorkloadKind;
using PhaseTimes = std::array<std::int64_t, run::kPhases>;

constexpr std::int64_t kLongestTimePs = 4'600'000'000'000'000'000;  // 53 days: two of them add
constexpr std::int64_t kLongestSettingPs = 3'600'000'000'000'000;   // one hour

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
        placement_(resolve_placement(scenario, trace)),
        map_(gpus_, placement_),
        exchange_(scenario),
        traffic_builder_(scenario, map_, nodes(scenario)),
        ledger_(capacities(scenario), scenario.memory.watermark),
        policy_(scenario.policy),
        shard_(shard_of(scenario.model, scenario.parallel.tp)) {
    refuse_unsupported();
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      cost_.emplace_back(shard_, s_.dtype, s_.activations, s_.hardware.gpu_type(g));
    }
    if (layers_ > 0) {
      source_ = make_routing_source(s_, trace);
      if (trace != nullptr && !states_policy(s_)) {
        policy_ = trace->header.policy;
        policy_from_trace_ = true;
      }
      refuse_groups_of_copies();
      validate(policy_, experts_, static_cast<std::uint32_t>(s_.model.top_k), "policy");
      const std::vector<std::uint32_t> numbers = s_.model.moe_layers();
      weights_ = model::load_policy_weights(policy_, s_.policy_files, source_->gate(), numbers,
                                            s_.model.hidden_size);
      const RoutingPolicy plain;
      require_supply(policy_,
                     {.signals = true,
                      .all_logits = trace == nullptr || trace->header.candidates == experts_,
                      .hidden = false,
                      .weights = !weights_.layers.empty(),
                      .recorded = trace == nullptr ? &plain : &trace->header.policy},
                     "policy");
      slots_ = policy_slots(policy_, source_->gate());
      if (trace != nullptr && slots_ > trace->header.candidates) {
        throw InputError("policy",
                         fmt::format("a token may get {} experts, the trace holds {} candidates",
                                     slots_, trace->header.candidates),
                         "trace the model with the policy in force");
      }
      state_ = RoutingState(std::size_t{layers_} * (gpus_ / s_.parallel.ep));
      const bool cycled =
          trace != nullptr && s_.workload.routing.layers == scenario::TraceLayers::kCycle;
      table_ = load_table(policy_, s_.policy_files, source_->gate(),
                          cycled ? trace->header.layer_count() : layers_);
      describe_requests(trace);
    }
    ready_.assign(gpus_, 0);
    path_.assign(gpus_, PhaseTimes{});
    node_ = nodes(s_);
    duplicates_ = placement::describe(placement::duplicates(placement_));
    if (s_.parallel.rebalance.signal != scenario::RebalanceSignal::kOff &&
        s_.parallel.placement == scenario::PlacementKind::kTopologyHot) {
      speed_ = rank_speeds(s_);
    }
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
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (s_.hardware.gpu_type(g).kernel_launch.ps() > kLongestSettingPs) {
        throw InputError("hardware.gpu_types", "kernel_launch is beyond 1 h");
      }
    }
    if (std::max(s_.host.per_step.ps(), s_.host.per_sequence.ps()) > kLongestSettingPs) {
      throw InputError("host", "per_step and per_sequence must be at most 1 h");
    }
    if (s_.parallel.attention == AttentionPlacement::kHub && s_.parallel.ep != gpus_) {
      throw InputError("parallel.ep",
                       fmt::format("attention = \"hub\" with ep = {} of {} GPUs is unsupported",
                                   s_.parallel.ep, gpus_),
                       "set ep to the number of GPUs");
    }
  }
  /// A token that keeps to one GPU's experts must not be served by copies elsewhere.
  void refuse_groups_of_copies() const {
    if (policy_.groups.by == GroupBy::kPlacement && map_.most_copies > 1) {
      throw InputError("policy.groups",
                       "by = \"placement\" with several copies of an expert is "
                       "unsupported",
                       "use a placement without redundant slots");
    }
  }
  [[nodiscard]] bool hub() const { return s_.parallel.attention == AttentionPlacement::kHub; }
  [[nodiscard]] std::uint32_t home(std::uint32_t sequence) const {
    if (hub()) return s_.parallel.hub;
    return sequence % (gpus_ / s_.parallel.tp) * s_.parallel.tp;
  }
  [[nodiscard]] bool sharded() const { return s_.parallel.tp > 1; }
  /// The tensor-parallel group [first, last) of a GPU: itself without.
  [[nodiscard]] std::uint32_t group_first(std::uint32_t gpu) const {
    return gpu / s_.parallel.tp * s_.parallel.tp;
  }

  run::Inventory inventory() const;
  void load_weights();
  void compose_step(std::uint64_t step);
  void grow_kv(std::uint64_t step);
  [[nodiscard]] std::uint64_t expert_bytes() const;
  bool rebalance_due();
  void rebalance(std::uint64_t step);
  std::uint64_t kv_bytes_of(std::uint64_t tokens) const;

  void work(std::uint32_t gpu, run::Phase phase, const OpCost& cost);
  void exchange(run::Phase phase, std::uint32_t moe,
                const std::vector<std::vector<std::uint64_t>>& matrices, std::int64_t& duration,
                std::int64_t& floor);
  /// What the policy makes of the requests of this workload.
  void describe_requests(const RoutingTrace* trace);
  /// Whether the tokens of a sequence pass through the router.
  [[nodiscard]] bool uses_router(std::uint32_t sequence) const;
  void compose_reduce();
  void all_reduce(std::uint32_t moe);
  void pack(run::Phase phase, bool sender);
  void halve(std::vector<std::vector<std::uint64_t>>& matrices, std::uint64_t copy) const;
  void sample_memory();
  /// Routes tokens of one copy of the experts, the one of GPUs copy * ep …
  void route(std::uint32_t moe, std::uint32_t copy, const StepContext& context,
             const CandidatesView& candidates, std::span<const float> logits, LayerDecision& out);
  void decide_layer(std::uint32_t moe, std::uint32_t step);
  void transient(std::uint32_t gpu, std::uint64_t values, model::DType format, const char* cause);
  /// All waves of GPU g when soft tokens take the stacked first product. They run in the first
  /// waves.
  [[nodiscard]] OpCost stacked_experts(std::uint32_t moe, std::uint32_t g) const;
  void check_traffic(std::uint32_t moe);
  void check_step(std::uint64_t step);
  void check_time(std::int64_t ps) const;
  void violation(const std::string& check, const std::string& where, const std::string& message);
  [[nodiscard]] bool holds_kv(std::uint32_t gpu, std::uint32_t sequence) const {
    return s_.memory.kv_placement == KvPlacement::kReplicated ||
           (s_.memory.kv_placement == KvPlacement::kHub ? gpu == s_.parallel.hub
                                                        : group_first(gpu) == home(sequence));
  }
  void moe_layer(std::uint64_t step, std::uint32_t moe);
  void end_step(std::uint64_t step, std::int64_t start);
  void note_tokens(std::uint64_t step);
  void note_requests();
  void note_critical(std::uint32_t layer, run::Phase phase, std::uint32_t gpu,
                     StragglerReason reason, std::int64_t start, std::int64_t duration);

  const scenario::Scenario& s_;
  RunSink& sink_;
  std::uint32_t gpus_, layers_, experts_;
  placement::Placement placement_;
  ExpertMap map_;
  ExchangeTimer exchange_;
  TrafficBuilder traffic_builder_;
  MemoryLedger ledger_;
  RoutingPolicy policy_;
  bool policy_from_trace_ = false;
  model::ModelConfig shard_;  // What one GPU holds of the model; the model itself without tp.
  std::vector<std::vector<std::uint64_t>> reduce_;  // Phases of this step's all-reduce, [G][G].
  std::uint64_t extrapolated_ = 0, exchanges_ = 0;
  std::int64_t pack_ps_ = 0;
  std::vector<CostModel> cost_;
  std::unique_ptr<RoutingSource> source_;
  PolicyWeights weights_;
  std::optional<RoutingTable> table_;
  RoutingState state_;  // [L][copies of the experts]
  // Rebalancing: signal and expert_kept of the last steps.
  std::deque<double> window_signal_;
  std::deque<std::vector<std::uint32_t>> window_kept_;
  std::vector<double> speed_;
  double window_mean_ = 0;
  std::uint64_t steps_since_move_ = 0, tries_ = 0, moves_ = 0;
  std::string duplicates_;  // of the first placement that has any
  std::uint64_t truncated_ = 0, linear_fallbacks_ = 0;
  SetCounts sets_;           // what step 10 of the policy did
  std::uint32_t slots_ = 0;  // K of a decision
  // What the policy may know: memory levels at the start of the step, and the GPU of each expert.
  std::vector<double> memory_used_, memory_elastic_;  // [G]
  std::vector<std::uint32_t> first_gpu_, gpu_of_expert_;
  double step_start_ = 0;  // seconds

  // State of the step under way.
  std::vector<std::int64_t> ready_;    // [G] clock of each GPU
  std::vector<PhaseTimes> path_;       // [G] how the critical path to ready_[g] is made up
  std::vector<PhaseTimes> gpu_phase_;  // [G] what the GPU itself did
  // [reason: load, link][G] waits and transfers that this GPU stands for.
  std::array<std::vector<std::int64_t>, 2> straggler_ps_;
  std::int64_t layer_straggler_ps_ = 0;
  std::uint64_t step_ = 0;
  std::vector<std::uint32_t> node_;  // [G]
  StepTokens tokens_;
  std::vector<std::vector<SequenceWork>> sequences_;  // [G]
  std::vector<std::uint64_t> tokens_of_;              // [G]
  std::vector<std::uint64_t> routed_of_;              // [G] of these, what the router sees
  run::StepRecord record_;
  Candidates candidates_;
  RouteWorkspace workspace_;
  LayerDecision decision_;
  LayerTraffic traffic_;
  std::vector<ExchangeTiming> timings_;
  std::vector<std::uint32_t> group_rows_;
  StepTokens group_tokens_;
  Candidates group_candidates_;
  std::vector<float> group_logits_;
  LayerDecision group_decision_;
  std::vector<run::Violation> violations_;
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
  const std::uint32_t groups = gpus_ / s_.parallel.ep;
  inv.replicas = groups * map_.most_copies;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const std::uint32_t copies = map_.row(l).copies(e);
      for (std::uint32_t q = 0; q < groups; ++q) {
        for (std::uint32_t i = 0; i < copies; ++i) {
          inv.placement.push_back(map_.gpu_of(l, e, q * s_.parallel.ep, i));
        }
      }
      inv.placement.resize(inv.placement.size() + groups * (map_.most_copies - copies), run::kNone);
    }
  }
  return inv;
}

void Simulator::load_weights() {
  const model::ParameterCount all = model::count_parameters(shard_);
  // A preset with a stated backbone counts it in place of the parts.
  const std::uint64_t rest = all.embedding + all.attention + all.norms + all.shared_experts +
                             all.dense_ffn + all.head + all.stated_backbone;
  const std::uint64_t backbone =
      model::dtype_bytes(s_.dtype.shared, rest) + model::dtype_bytes(s_.dtype.router, all.router);
  const std::uint64_t per_expert = expert_bytes();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (!hub() || g == s_.parallel.hub) {
      ledger_.allocate(g, MemoryCategory::kWeights, backbone, 0, run::kNone, "weights");
    }
    std::uint64_t held = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      held += map_.row(l).count[g % s_.parallel.ep];
    }
    ledger_.allocate(g, MemoryCategory::kExperts, held * per_expert, 0, run::kNone,
                     fmt::format("{} expert weights", held));
    ledger_.allocate(g, MemoryCategory::kRuntime, s_.memory.reserve, 0, run::kNone,
                     "memory.reserve");
  }
}

std::uint64_t Simulator::expert_bytes() const {
  if (layers_ == 0 || experts_ == 0) return 0;
  return model::dtype_bytes(s_.dtype.experts, model::count_parameters(s_.model).experts /
                                                  (std::uint64_t{layers_} * experts_));
}

/// Notes the step's signal and loads; true when the placement is due for a change.
bool Simulator::rebalance_due() {
  const scenario::RebalanceSpec& r = s_.parallel.rebalance;
  if (r.signal == scenario::RebalanceSignal::kOff) return false;
  const run::StepScalars& sc = record_.scalars;
  double signal = sc.imbalance;
  if (r.signal == scenario::RebalanceSignal::kCongestion) {
    std::int64_t busiest = 0;
    for (const std::int64_t ps : record_.link_busy_ps) busiest = std::max(busiest, ps);
    signal = static_cast<double>(busiest) /
             static_cast<double>(std::max<std::int64_t>(sc.end_ps - sc.start_ps, 1));
  }
  window_signal_.push_back(signal);
  window_kept_.push_back(record_.expert_kept);
  if (window_signal_.size() > r.window) {
    window_signal_.pop_front();
    window_kept_.pop_front();
  }
  ++steps_since_move_;
  if (window_signal_.size() < r.window || (tries_ > 0 && steps_since_move_ < r.cooldown)) {
    return false;
  }
  window_mean_ = std::accumulate(window_signal_.begin(), window_signal_.end(), 0.0) / r.window;
  return window_mean_ > r.threshold;
}

/// Makes the placement anew from the window's loads and moves the experts, before the step's own
/// work: the weights travel over the links, and while they do both copies take memory.
void Simulator::rebalance(std::uint64_t step) {
  const scenario::RebalanceSpec& r = s_.parallel.rebalance;
  const auto index = static_cast<std::uint32_t>(step);
  std::vector<std::vector<double>> loads(layers_, std::vector<double>(experts_, 0));
  for (const auto& kept : window_kept_) {
    for (std::size_t i = 0; i < kept.size(); ++i) loads[i / experts_][i % experts_] += kept[i];
  }
  placement::Placement next = place_by_loads(s_, loads, speed_);
  const std::uint64_t bytes_each = expert_bytes();
  const Migration m = plan_migration(s_, placement_, next, bytes_each);
  const std::int64_t begin = *std::max_element(ready_.begin(), ready_.end());
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.allocate(g, MemoryCategory::kExperts, m.arriving[g] * bytes_each, ready_[g], index,
                     fmt::format("{} experts arrive", m.arriving[g]));
  }
  std::int64_t duration = 0, floor = 0;
  exchange(run::Phase::kCollective, run::kNone, {m.bytes}, duration, floor);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.release(g, MemoryCategory::kExperts, m.leaving[g] * bytes_each, ready_[g]);
  }
  const auto mean_imbalance = [&](const placement::Placement& p) {
    double sum = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      sum += placement::imbalance(p.row(l), loads[l], s_.parallel.ep);
    }
    return sum / layers_;
  };
  const std::uint64_t moved = std::accumulate(m.bytes.begin(), m.bytes.end(), std::uint64_t{0});
  run::Event e;
  e.time_ps = begin;
  e.step = index;
  e.kind = run::EventKind::kPolicyAction;
  e.value = static_cast<double>(moved);
  e.text = fmt::format(
      "rebalance: {} {:.4g} > {:.4g} over {} steps; {} copies of experts arrive, {} B over links "
      "in "
      "{:.4g} us; imbalance of these loads {:.4g} -> {:.4g}",
      r.signal == scenario::RebalanceSignal::kLoad ? "load" : "congestion", window_mean_,
      r.threshold, r.window, m.copies, moved, static_cast<double>(duration) * 1e-6,
      mean_imbalance(placement_), mean_imbalance(next));
  sink_.data().events.push_back(std::move(e));
  placement_ = std::move(next);
  map_ = ExpertMap(gpus_, placement_);
  if (duplicates_.empty()) duplicates_ = placement::describe(placement::duplicates(placement_));
  window_signal_.clear();
  window_kept_.clear();
  steps_since_move_ = 0;
  ++tries_;
  if (m.copies > 0) ++moves_;
}

std::uint64_t Simulator::kv_bytes_of(std::uint64_t tokens) const {
  // Whole pages of kv.block tokens; windowed layers keep what model::kv_bytes says.
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t held = (tokens + block - 1) / block * block;
  std::uint64_t values = 0;
  const std::uint64_t per_token = model::kv_values_per_token_layer(shard_);
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
  routed_of_.assign(gpus_, 0);
  std::size_t i = 0;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint32_t g = home(b);
    const std::uint64_t had = s_.workload.context + step * fresh;
    for (std::uint32_t member = g; member < g + s_.parallel.tp; ++member) {
      sequences_[member].push_back({fresh, had});
      tokens_of_[member] += fresh;
      routed_of_[member] += uses_router(b) ? fresh : 0;
    }
    for (std::uint32_t j = 0; j < fresh; ++j, ++i) {
      tokens_.sequence[i] = b;
      tokens_.position[i] = static_cast<std::uint32_t>(had + j);
      tokens_.rank[i] = static_cast<std::uint16_t>(g);
      tokens_.ordinal[i] = static_cast<std::uint32_t>(step * fresh + j);
    }
  }
}

/// The all-reduce of one hidden state per token of each group, side by side.
void Simulator::compose_reduce() {
  reduce_.clear();
  if (!sharded()) return;
  std::vector<std::uint32_t> members(s_.parallel.tp);
  for (std::uint32_t first = 0; first < gpus_; first += s_.parallel.tp) {
    std::iota(members.begin(), members.end(), first);
    const auto phases = network::collective(
        network::Collective::kAllReduce, network::collective_of(s_.network.collective),
        model::dtype_bytes(s_.activations, tokens_of_[first] * s_.model.hidden_size), members,
        node_);
    if (reduce_.size() < phases.size()) {
      reduce_.resize(phases.size(), std::vector<std::uint64_t>(std::size_t{gpus_} * gpus_, 0));
    }
    for (std::size_t p = 0; p < phases.size(); ++p) {
      for (const network::Transfer& t : phases[p]) {
        reduce_[p][std::size_t{t.src} * gpus_ + t.dst] += t.bytes;
      }
    }
  }
}

void Simulator::all_reduce(std::uint32_t moe) {
  std::int64_t duration = 0, floor = 0;
  exchange(run::Phase::kCollective, moe, reduce_, duration, floor);
}

/// What the kernels cost that pack the rows a GPU sends or unpack those it received: the row in its
/// own format and as it travels, once each.
void Simulator::pack(run::Phase phase, bool sender) {
  const bool out = phase == run::Phase::kDispatch;
  const scenario::Payload& p = s_.network.payload;
  const std::uint64_t hidden = s_.model.hidden_size;
  const std::uint64_t copy = out ? p.dispatch_bytes(hidden) : p.combine_bytes(hidden);
  const std::uint64_t own = model::dtype_bytes(out ? p.dispatch : p.combine, hidden);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::uint64_t bytes = 0;
    for (const auto& m : out ? traffic_.dispatch : traffic_.combine) {
      for (std::uint32_t d = 0; d < gpus_; ++d) {
        if (d != g) {
          bytes += sender ? m[std::size_t{g} * gpus_ + d] : m[std::size_t{d} * gpus_ + g];
        }
      }
    }
    if (bytes == 0) continue;
    const auto rows = static_cast<double>(bytes / copy);
    const OpCost c =
        cost_[g].roofline(rows * static_cast<double>(own + copy), 0, s_.activations, 1.0, 1);
    pack_ps_ += c.time.ps();
    work(g, phase, c);
  }
}

/// Each exchange becomes two: the first half of every copy with scales and header, then the second.
void Simulator::halve(std::vector<std::vector<std::uint64_t>>& matrices, std::uint64_t copy) const {
  const std::uint64_t second = s_.network.payload.second_half(s_.model.hidden_size);
  if (second == 0) return;
  std::vector<std::vector<std::uint64_t>> halves;
  for (std::vector<std::uint64_t>& m : matrices) {
    std::vector<std::uint64_t> rest(m.size());
    for (std::size_t i = 0; i < m.size(); ++i) {
      rest[i] = m[i] / copy * second;
      m[i] -= rest[i];
    }
    halves.push_back(std::move(m));
    halves.push_back(std::move(rest));
  }
  matrices = std::move(halves);
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
      if (holds_kv(g, b)) ledger_.allocate(g, MemoryCategory::kKv, more, now, index, "KV pages");
    }
  }
}

void Simulator::work(std::uint32_t gpu, run::Phase phase, const OpCost& cost) {
  const std::int64_t t = cost.time.ps();
  check_time(t);
  ready_[gpu] += t;
  check_time(ready_[gpu]);
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

void Simulator::exchange(run::Phase phase, std::uint32_t moe,
                         const std::vector<std::vector<std::uint64_t>>& matrices,
                         std::int64_t& duration, std::int64_t& floor) {
  for (const std::vector<std::uint64_t>& matrix : matrices) {
    exchange_.run(matrix, ready_, timings_);
    std::int64_t longest = 0, highest_floor = 0;
    for (const ExchangeTiming& t : timings_) {
      longest = std::max(longest, t.duration_ps);
      highest_floor = std::max(highest_floor, t.floor_ps);
      ++exchanges_;
      extrapolated_ += t.extrapolated ? 1 : 0;
      const PhaseTimes path_of_last = path_[t.last_ready];
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        if (t.participates[g] == 0) continue;
        const std::int64_t end = t.end_ps[g];
        check_time(end);
        const std::int64_t begin = std::clamp(t.begin_ps, ready_[g], end);
        gpu_phase_[g][at(run::Phase::kWait)] += begin - ready_[g];
        gpu_phase_[g][at(phase)] += end - begin;
        if (end >= t.begin_ps) {
          // The path to this GPU's end goes through the GPU that was ready last.
          path_[g] = path_of_last;
          path_[g][at(phase)] += end - t.begin_ps;
        } else {
          path_[g][at(phase)] += end - ready_[g];
        }
        ready_[g] = end;
      }
      for (std::size_t k = 0; k < t.link_bytes.size(); ++k) {
        record_.link_bytes[k] += t.link_bytes[k];
        record_.link_busy_ps[k] += SimTime::from_seconds(static_cast<double>(t.link_bytes[k]) /
                                                         exchange_.links()[k].bandwidth.value)
                                       .ps();
      }
      const StragglerReason reason = t.link_bound ? StragglerReason::kLink : StragglerReason::kLoad;
      if (t.straggler < gpus_) {
        straggler_ps_[t.link_bound ? 1 : 0][t.straggler] += t.straggler_ps;
        if (moe != run::kNone) {
          run::LayerRecord& layer = record_.layers[moe];
          if (layer.straggler_gpu == run::kNone || t.straggler_ps > layer_straggler_ps_) {
            layer_straggler_ps_ = t.straggler_ps;
            layer.straggler_gpu = t.straggler;
            layer.straggler_reason = reason;
          }
        }
      }
      note_critical(moe, phase, t.straggler < gpus_ ? t.straggler : t.last_ready, reason,
                    t.begin_ps, t.duration_ps);
    }
    duration += longest;
    floor += highest_floor;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      for (std::uint32_t d = 0; d < gpus_; ++d) {
        if (d == g) continue;
        const std::uint64_t bytes = matrix[std::size_t{g} * gpus_ + d];
        record_.gpu_bytes_out[g] += bytes;
        record_.gpu_bytes_in[d] += bytes;
        record_.pair_bytes[std::size_t{g} * gpus_ + d] += bytes;
        record_.scalars.bytes_sent += bytes;
      }
    }
  }
}

/// Recounts what the layer sends from the decisions, by sorting each token's destinations, and
/// compares: an independent count of the copies.
void Simulator::check_traffic(std::uint32_t moe) {
  std::uint64_t copies = 0;
  std::vector<std::uint32_t> to, others;
  for (std::uint32_t t = 0; t < decision_.tokens; ++t) {
    const std::uint32_t s = tokens_.rank[t];
    to.clear();
    for (std::uint32_t j = 0; j < decision_.slots; ++j) {
      const std::size_t i = std::size_t{t} * decision_.slots + j;
      const auto outcome = static_cast<SlotOutcome>(decision_.outcome[i]);
      if (outcome == SlotOutcome::kNoSlot || outcome == SlotOutcome::kDropped) continue;
      const std::uint16_t e =
          outcome == SlotOutcome::kQueued ? decision_.first[i] : decision_.chosen[i];
      const std::uint32_t d = traffic_.gpu[i];
      bool holds = false;
      for (std::uint32_t c = 0; c < map_.row(moe).copies(e); ++c) {
        holds = holds || map_.gpu_of(moe, e, s, c) == d;
      }
      if (!holds) {
        violation("placement", fmt::format("step {}, MoE layer {}", step_, moe),
                  fmt::format("expert {} ran on GPU {}, which holds no copy", e, d));
      }
      if (d != s) to.push_back(d);
    }
    if (s_.network.dispatch == scenario::DispatchKind::kPerExpert) {
      copies += to.size();
      continue;
    }
    std::sort(to.begin(), to.end());
    to.erase(std::unique(to.begin(), to.end()), to.end());
    copies += to.size();
    if (s_.network.dispatch != scenario::DispatchKind::kPerNode) continue;
    // One copy more for every other node whose relay is not itself a destination.
    others.clear();
    for (const std::uint32_t d : to) {
      if (node_[d] != node_[s]) others.push_back(node_[d]);
    }
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const std::uint32_t n : others) {
      std::uint32_t place = 0, relay = 0;
      for (std::uint32_t g = 0; g < s; ++g) place += node_[g] == node_[s] ? 1 : 0;
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        if (node_[g] == n && place-- == 0) {
          relay = g;
          break;
        }
      }
      if (!std::binary_search(to.begin(), to.end(), relay)) ++copies;
    }
  }
  const auto sum = [](const std::vector<std::vector<std::uint64_t>>& matrices) {
    std::uint64_t bytes = 0;
    for (const auto& m : matrices) bytes = std::accumulate(m.begin(), m.end(), bytes);
    return bytes;
  };
  const std::uint64_t out = s_.network.payload.dispatch_bytes(s_.model.hidden_size) * copies;
  const std::uint64_t back = s_.network.payload.combine_bytes(s_.model.hidden_size) * copies;
  if (sum(traffic_.dispatch) != out || sum(traffic_.combine) != back) {
    violation("bytes", fmt::format("step {}, MoE layer {}", step_, moe),
              fmt::format("dispatch {} and combine {} bytes, the decisions ask for {} and {}",
                          sum(traffic_.dispatch), sum(traffic_.combine), out, back));
  }
}

/// What each GPU's own links carried must be what it sent and received, the KV cache must be what
/// the sequences need, and nothing of the step may outlive it.
void Simulator::check_step(std::uint64_t step) {
  const std::string where = fmt::format("step {}", step);
  std::vector<std::uint64_t> out = record_.gpu_bytes_out, in = record_.gpu_bytes_in;
  if (exchange_.ports_tell_bytes()) {
    std::fill(out.begin(), out.end(), 0);
    std::fill(in.begin(), in.end(), 0);
    for (std::size_t k = 0; k < record_.link_bytes.size(); ++k) {
      if (exchange_.gpu_at_start(k) < gpus_) {
        out[exchange_.gpu_at_start(k)] += record_.link_bytes[k];
      }
      if (exchange_.gpu_at_end(k) < gpus_) in[exchange_.gpu_at_end(k)] += record_.link_bytes[k];
    }
    if (out != record_.gpu_bytes_out || in != record_.gpu_bytes_in) {
      violation("bytes", where, "a GPU's links carried other bytes than it sent or received");
    }
  }
  record_.scalars.bytes_received = std::accumulate(in.begin(), in.end(), std::uint64_t{0});
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::uint64_t want = 0;
    for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
      if (holds_kv(g, b)) {
        want += kv_bytes_of(s_.workload.context + (step + 1) * s_.workload.tokens);
      }
    }
    if (ledger_.live(g, MemoryCategory::kKv) != want) {
      violation("memory", where,
                fmt::format("GPU {}: {} bytes of KV pages, the sequences need {}", g,
                            ledger_.live(g, MemoryCategory::kKv), want));
    }
    for (const MemoryCategory c : {MemoryCategory::kBuffers, MemoryCategory::kActivations}) {
      if (ledger_.live(g, c) != 0) {
        violation("memory", where,
                  fmt::format("GPU {}: {} outlive the step", g,
                              run::kMemoryCategoryNames[static_cast<std::size_t>(c)]));
      }
    }
  }
}

void Simulator::violation(const std::string& check, const std::string& where,
                          const std::string& message) {
  if (violations_.size() < 20) violations_.push_back({check, where, message});
}

void Simulator::check_time(std::int64_t ps) const {
  if (ps < 0 || ps > kLongestTimePs) {
    throw InputError("simulated time", fmt::format("step {} goes beyond 53 days", step_),
                     "look for a bandwidth, latency or launch time with the wrong unit");
  }
}

void Simulator::describe_requests(const RoutingTrace* trace) {
  const RoutingTable* table = table_ ? &*table_ : nullptr;
  if (s_.workload.routing.source == scenario::RoutingSource::kTrace) {
    const std::vector<RequestInfo> requests =
        trace_requests(*trace, policy_, table, s_.workload.routing.trace_path);
    for (std::uint32_t b = 0; b < s_.workload.batch && !requests.empty(); ++b) {
      state_.request(b) = requests[*source_->trace_sequence(b)];
    }
    return;
  }
  const auto refuse = [](bool on, std::string_view key, std::string_view what) {
    if (on) {
      throw InputError("policy",
                       fmt::format("policy.{} needs {}: synthetic requests have none", key, what),
                       "give a trace");
    }
  };
  refuse(policy_.table.on(), "table.file", "prompts");
  refuse(policy_.soft.on() && !policy_.soft.all_requests, "soft.keywords", "prompts");
  refuse(policy_.pinned.requests == PinnedRequests::kNamed, "pinned.requests = named",
         "requests that name an expert");
  if (policy_.soft.on() || policy_.pinned.on()) {
    for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
      state_.request(b) = request_info(policy_, nullptr, {}, "", kNoExpert);
    }
  }
}

bool Simulator::uses_router(std::uint32_t sequence) const {
  if (policy_.set == SetRule::kRoundRobin) {
    return false;
  }
  const std::vector<RequestInfo>& requests = state_.requests();
  return sequence >= requests.size() || (requests[sequence].expert == kNoExpert &&
                                         requests[sequence].table_entry == kNoTableEntry);
}

/// Memory levels as the policies of this step see them.
void Simulator::sample_memory() {
  memory_used_.resize(gpus_);
  memory_elastic_.resize(gpus_);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const auto capacity = static_cast<double>(ledger_.capacity(g));
    double fixed = 0;
    for (const MemoryCategory c :
         {MemoryCategory::kWeights, MemoryCategory::kExperts, MemoryCategory::kRuntime}) {
      fixed += static_cast<double>(ledger_.live(g, c));
    }
    const auto live = static_cast<double>(ledger_.live(g));
    memory_used_[g] = live / capacity;
    // A GPU that its weights fill has no room left for anything.
    memory_elastic_[g] = capacity > fixed ? (live - fixed) / (capacity - fixed) : 1.0;
  }
  step_start_ = static_cast<double>(ready_[0]) * 1e-12;
}

void Simulator::route(std::uint32_t moe, std::uint32_t copy, const StepContext& context,
                      const CandidatesView& candidates, std::span<const float> logits,
                      LayerDecision& out) {
  first_gpu_.clear();
  gpu_of_expert_.clear();
  for (std::uint32_t e = 0; e < experts_; ++e) {
    first_gpu_.push_back(static_cast<std::uint32_t>(gpu_of_expert_.size()));
    for (std::uint32_t i = 0; i < map_.row(moe).copies(e); ++i) {
      gpu_of_expert_.push_back(map_.gpu_of(moe, e, copy * s_.parallel.ep, i));
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
  const std::size_t copies = gpus_ / s_.parallel.ep;
  route_layer(source_->gate(), policy_, context, input, state_.layer(moe * copies + copy),
              workspace_, out);
}

/// Decides a layer: one EP group after the other, since each holds its own copy of the experts and
/// fills it with its own tokens.
void Simulator::decide_layer(std::uint32_t moe, std::uint32_t step) {
  const std::uint32_t ep = s_.parallel.ep;
  if (ep == gpus_) {
    StepContext context =
        make_step(tokens_.sequence, tokens_.position, tokens_.phase, s_.run.seed, moe, step);
    context.rank = tokens_.rank;
    context.ranks = gpus_;
    route(moe, 0, context, candidates_.view(), source_->logits(), decision_);
    return;
  }
  const std::size_t k = slots_, m = candidates_.width;
  const auto tokens = static_cast<std::uint32_t>(tokens_.size());
  const std::uint64_t batch =
      make_step(tokens_.sequence, tokens_.position, tokens_.phase, s_.run.seed, moe, step)
          .batch_size();
  LayerDecision& all = decision_;
  all = LayerDecision{};
  all.tokens = tokens;
  all.slots = static_cast<std::uint32_t>(k);
  all.first.assign(tokens * k, kNoExpert);
  all.chosen.assign(tokens * k, kNoExpert);
  all.weights.assign(tokens * k, 0.0F);
  all.outcome.assign(tokens * k, 0);
  all.demand.assign(experts_, 0);
  all.overflow.assign(experts_, 0);
  all.load.assign(experts_, 0);
  all.queued.assign(experts_, 0);
  all.capacity = 0;
  for (std::uint32_t q = 0; q < gpus_ / ep; ++q) {
    group_rows_.clear();
    group_tokens_ = StepTokens{};
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (tokens_.rank[t] / ep != q) continue;
      group_rows_.push_back(t);
      group_tokens_.sequence.push_back(tokens_.sequence[t]);
      group_tokens_.position.push_back(tokens_.position[t]);
      group_tokens_.phase.push_back(tokens_.phase[t]);
      group_tokens_.rank.push_back(static_cast<std::uint16_t>(tokens_.rank[t] - q * ep));
    }
    const auto rows = static_cast<std::uint32_t>(group_rows_.size());
    if (rows == 0) continue;
    group_candidates_.resize(rows, static_cast<std::uint32_t>(m));
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t from = group_rows_[i] * m;
      std::copy_n(candidates_.ids.begin() + static_cast<std::ptrdiff_t>(from), m,
                  group_candidates_.ids.begin() + static_cast<std::ptrdiff_t>(i * m));
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
    route(moe, q, context, group_candidates_.view(), group_logits_, group_decision_);
    const LayerDecision& part = group_decision_;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t to = group_rows_[i] * k;
      for (std::size_t j = 0; j < k; ++j) {
        all.first[to + j] = part.first[i * k + j];
        all.chosen[to + j] = part.chosen[i * k + j];
        all.weights[to + j] = part.weights[i * k + j];
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
    // The copies of an expert together hold the sum of the groups' capacities.
    all.capacity = part.capacity == kUnlimitedCapacity || all.capacity == kUnlimitedCapacity
                       ? kUnlimitedCapacity
                       : all.capacity + part.capacity;
  }
}

OpCost Simulator::stacked_experts(std::uint32_t moe, std::uint32_t g) const {
  std::vector<std::uint32_t> left(traffic_.waves.empty() ? 0 : traffic_.waves[0][g].size(), 0);
  std::uint64_t soft_tokens = 0;
  const ExpertMap::Row& row = map_.row(moe);
  const std::vector<RequestInfo>& requests = state_.requests();
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const RequestInfo& request = requests[tokens_.sequence[t]];
    if (!request.soft || request.expert != kNoExpert || request.table_entry != kNoTableEntry) {
      continue;
    }
    bool here = false;
    for (std::size_t j = 0; j < slots_; ++j) {
      if (traffic_.gpu[t * slots_ + j] != g) {
        continue;
      }
      here = true;
      const std::uint16_t e = decision_.chosen[t * slots_ + j];
      for (std::uint32_t c = row.first[e]; c < row.first[e + 1]; ++c) {
        if (row.rank[c] == g % s_.parallel.ep) {
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
  ledger_.release(gpu, MemoryCategory::kActivations, bytes, ready_[gpu]);
}

void Simulator::moe_layer(std::uint64_t step, std::uint32_t moe) {
  const auto index = static_cast<std::uint32_t>(step);
  run::LayerRecord& out = record_.layers[moe];

  std::int64_t slowest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const OpCost c = cost_[g].router(tokens_of_[g], routed_of_[g]);
    work(g, run::Phase::kRouter, c);
    slowest = std::max(slowest, c.time.ps());
  }
  out.router_ps = slowest;

  source_->candidates(tokens_, moe, candidates_);
  decide_layer(moe, index);
  traffic_builder_.build(moe, tokens_, decision_, traffic_);
  check_traffic(moe);
  if (sharded()) {
    // Every GPU has the group's tokens already; an all-reduce adds up what their experts gave.
    traffic_.dispatch.clear();
    traffic_.combine = reduce_;
  }
  const bool packs = s_.network.payload.wire != scenario::WireFormat::kNative;
  if (packs) {
    halve(traffic_.dispatch, s_.network.payload.dispatch_bytes(s_.model.hidden_size));
    halve(traffic_.combine, s_.network.payload.combine_bytes(s_.model.hidden_size));
  }

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
                            tokens_of_[g] * 2 * shard_.shared_intermediate +
                            traffic_.assignments[g] *
                                (2 * s_.model.hidden_size + 2 * s_.model.expert_intermediate));
    ledger_.allocate(g, MemoryCategory::kBuffers, buffers[g], ready_[g], index, "exchange buffers");
    ledger_.allocate(g, MemoryCategory::kActivations, activations[g], ready_[g], index,
                     "activations");
  }

  const std::vector<std::int64_t> before_dispatch = ready_;
  layer_straggler_ps_ = 0;
  if (packs) pack(run::Phase::kDispatch, true);
  exchange(run::Phase::kDispatch, moe, traffic_.dispatch, out.dispatch_ps, out.dispatch_floor_ps);
  if (packs) pack(run::Phase::kDispatch, false);
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
    if (policy_.soft.on() && policy_.soft.cost == SoftCost::kStacked) {
      total = stacked_experts(moe, g);
    } else {
      for (const auto& wave : traffic_.waves) total += cost_[g].experts(wave[g]);
    }
    work(g, run::Phase::kExpert, total);
    slowest = std::max(slowest, total.time.ps());
    const ExpertMap::Row& row = map_.row(moe);
    for (std::size_t c = 0; c < row.rank.size(); ++c) {
      if (row.rank[c] != g % s_.parallel.ep) continue;
      std::int64_t t = 0;
      for (const auto& wave : traffic_.waves) {
        t += cost_[g].expert_alone(wave[g][row.local[c]]).ps();
      }
      record_.expert_time_ps[std::size_t{moe} * experts_ + row.expert[c]] += t;
    }
  }
  out.expert_ps = slowest;

  if (packs) pack(run::Phase::kCombine, true);
  exchange(sharded() ? run::Phase::kCollective : run::Phase::kCombine, moe, traffic_.combine,
           out.combine_ps, out.combine_floor_ps);
  if (packs) pack(run::Phase::kCombine, false);
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
  }

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
  std::int64_t largest = 0;
  for (std::size_t reason = 0; reason < 2; ++reason) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (straggler_ps_[reason][g] > largest) {
        largest = straggler_ps_[reason][g];
        sc.straggler_gpu = g;
        sc.straggler_reason = reason == 0 ? StragglerReason::kLoad : StragglerReason::kLink;
      }
    }
  }
  check_step(step);
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
  bool due = false;
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
    for (auto& per_gpu : straggler_ps_) per_gpu.assign(gpus_, 0);
    step_ = step;
    critical_.clear();
    ledger_.reset_high_water();
    sample_memory();
    compose_step(step);
    compose_reduce();
    grow_kv(step);
    if (due) rebalance(step);

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
        transient(
            g,
            tokens_of_[g] * (3 * s_.model.hidden_size + shard_.num_heads * s_.model.head_dim * 2 +
                             model::kv_values_per_token_layer(shard_)),
            s_.activations, "attention activations");
        work(g, run::Phase::kAttention, c);
        slowest = std::max(slowest, c.time.ps());
      }
      if (sharded()) all_reduce(s_.model.is_moe(layer) ? moe : run::kNone);
      if (s_.model.is_moe(layer)) {
        record_.layers[moe].attention_ps = slowest;
        moe_layer(step, moe);
        entropy += source_->mean_entropy();
        ++moe;
      } else {
        for (std::uint32_t g = 0; g < gpus_; ++g) {
          if (s_.model.layers[layer].ffn == model::FfnKind::kDense) {
            transient(g, tokens_of_[g] * (2 * s_.model.hidden_size + 2 * shard_.dense_intermediate),
                      s_.activations, "dense FFN activations");
          }
          work(g, run::Phase::kDense, cost_[g].dense(layer, tokens_of_[g]));
        }
        if (sharded() && s_.model.layers[layer].ffn == model::FfnKind::kDense) {
          all_reduce(run::kNone);
        }
      }
    }
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      // Every sequence samples from its last token only.
      transient(g, sequences_[g].size() * s_.model.vocab_size, model::DType::kF32, "logits");
      work(g, run::Phase::kHead, cost_[g].head(sequences_[g].size()));
    }
    if (moe > 0) record_.scalars.gate_entropy = entropy / moe;
    end_step(step, start);
    due = rebalance_due();
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
  result.violations = violations_;
  if (const std::string uneven = ledger_.check(); !uneven.empty()) {
    result.violations.push_back({"memory", "run", uneven});
  }
  for (run::Violation& v : sink_.finish()) result.violations.push_back(std::move(v));
  if (source_ && source_->reused()) {
    result.notes.push_back("trace rows were used more than once: the run is longer than the trace");
  }
  if (policy_from_trace_) result.notes.push_back("policy: the one recorded in the trace");
  if (!duplicates_.empty()) result.notes.push_back(duplicates_);
  if (moves_ > 0) {
    result.notes.push_back(
        fmt::format("the placement changed {} time{} (events); the run's placement table is the "
                    "first one",
                    moves_, moves_ == 1 ? "" : "s"));
  }
  if (truncated_ > 0) {
    result.notes.push_back(
        fmt::format("truncated: {} slots wanted, or may have wanted, an expert outside the trace's "
                    "candidates",
                    truncated_));
  }
  if (linear_fallbacks_ > 0) {
    result.notes.push_back(
        fmt::format("linear scores: {} tokens x layers had a logit <= 0 and became a softmax",
                    linear_fallbacks_));
  }
  const auto did = [&](std::uint64_t n, std::string_view what) {
    if (n > 0) {
      result.notes.push_back(fmt::format("{}: {}", what, n));
    }
  };
  did(sets_.balanced, "soft balance, slots moved off long queues");
  did(sets_.unbalanced, "soft balance, slots on long queues with nowhere to go");
  did(sets_.third, "soft balance, tokens x layers with a third expert");
  did(sets_.rebalanced, "decode rebalance, slots moved off hot GPUs");
  did(sets_.table_tokens, "routing table, tokens x layers decided by it");
  did(sets_.soft_tokens, "soft routing, tokens x layers");
  did(sets_.pinned_tokens, "pinned, tokens x layers");
  if (extrapolated_ > 0) {
    result.notes.push_back(
        fmt::format("EXTRAPOLATED: {} of {} exchanges lie outside the table of measured bandwidths",
                    extrapolated_, exchanges_));
  }
  if (pack_ps_ > 0) {
    result.notes.push_back(fmt::format(
        "payload: {} on the wire; packing and unpacking took {} of GPU time in all, {} a step",
        s_.network.payload.wire == scenario::WireFormat::kInt4 ? "INT4" : "two INT2 halves",
        format_time(SimTime::from_ps(pack_ps_)),
        format_time(SimTime::from_ps(pack_ps_ / static_cast<std::int64_t>(steps)))));
  }
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
