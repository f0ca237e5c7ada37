// SPDX-License-Identifier: Apache-2.0
// The step loop behind simulate(), for the .cpp files of this folder only. One Simulator runs one
// scenario: simulator.cpp sets it up and runs the steps, a BatchSource (step_plan.hpp) says which
// sequences a step has, batch.cpp makes tokens and KV pages of that, deferral.cpp lets tokens wait,
// moe_layer.cpp times a layer, exchange.cpp moves bytes, rebalance.cpp moves experts, healing.cpp
// lets things break, and step_checks.cpp recounts what was done. sim/README.md has the equations.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/routing/route.hpp"
#include "sim/cost/cost.hpp"
#include "sim/cost/exchange_times.hpp"
#include "sim/faults/fault_clock.hpp"
#include "sim/health/alarm_board.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/exchange_timer.hpp"
#include "sim/loop/expert_loads.hpp"
#include "sim/loop/placement_source.hpp"
#include "sim/loop/router_units.hpp"
#include "sim/loop/routing_source.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/loop/step_cohesion.hpp"
#include "sim/loop/step_plan.hpp"
#include "sim/memory/ledger.hpp"
#include "sim/memory/loading.hpp"
#include "sim/network/collectives.hpp"
#include "sim/scenario/replicas.hpp"
#include "sim/scenario/shard.hpp"

namespace switchyard::sim {

using run::MemoryCategory;
using run::StragglerReason;
using scenario::AttentionPlacement;
using scenario::KvPlacement;
using scenario::shard_of;
using scenario::stage_begin;
using scenario::stage_of;
using scenario::WorkloadKind;
using PhaseTimes = std::array<std::int64_t, run::kPhases>;

/// An activity on the way to a clock: what, in which MoE layer (kNone: in none), on which GPU or
/// waiting for which, and why others wait for it.
struct Activity {
  run::Phase phase = run::Phase::kHost;
  std::uint32_t layer = run::kNone, gpu = run::kNone;
  StragglerReason reason = StragglerReason::kNone;
};
/// The way to a clock from the step's start: its time by phase, and its last piece (a place in
/// pieces_, kNone: none yet).
struct Path {
  PhaseTimes ps{};
  std::uint32_t last = run::kNone;
};

/// Chunk i's part of n when it is cut into k: those from ⌊i·n/k⌋ to ⌊(i+1)·n/k⌋.
constexpr std::uint64_t part_of_chunk(std::uint64_t n, std::uint64_t i, std::uint64_t k) {
  return n * (i + 1) / k - n * i / k;
}

inline constexpr std::int64_t kLongestTimePs = 4'600'000'000'000'000'000;  // 53 days: two add
inline constexpr std::int64_t kLongestSettingPs = 3'600'000'000'000'000;   // one hour

/// Index of straggler_ps_: why others waited.
inline constexpr std::size_t kByLoad = 0, kByLink = 1, kByHostLoad = 2, kByFault = 3;

/// Tables of exchanges for cost.exchange = "calibrated"; null without. InputError: none fits.
[[nodiscard]] std::unique_ptr<ExchangeTimes> make_exchange_times(const scenario::Scenario& scenario,
                                                                 ExchangeTimer& timer);

constexpr std::size_t at(run::Phase p) { return static_cast<std::size_t>(p); }

class Simulator {
 public:
  Simulator(const scenario::Scenario& scenario, const RoutingTrace* trace, RunSink& sink);

  SimulationResult run(const std::string& trace_hash, const ProgressCallback& progress,
                       const SimulationExtras& extras);
  [[nodiscard]] run::Inventory inventory() const;
  void prepare(const run::Inventory& inventory);

 private:
  /// The replicas of one layout: all of them, or with [parallel.prefill] those that prefill and the
  /// others. Stays where it is: the builder borrows the map.
  struct Pool {
    Pool(const scenario::Scenario& scenario, const scenario::Parallel& of,
         const RoutingTrace* trace);
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    void place(placement::Placement next);
    const scenario::Parallel& layout;
    placement::Placement places;
    ExpertMap map;
    model::ModelConfig shard;  ///< What one GPU holds of the model; the model itself without tp.
    TrafficBuilder traffic;
    std::uint32_t first_copy = 0;  ///< Of the experts, among all: place in state_.
  };
  // Of the step that is found or under way; before the first one, of the last replicas.
  [[nodiscard]] const scenario::Parallel& layout() const { return pool_->layout; }
  [[nodiscard]] const ExpertMap& map() const { return pool_->map; }
  [[nodiscard]] const model::ModelConfig& shard() const { return pool_->shard; }
  [[nodiscard]] Pool& pool_of(std::uint32_t gpu) const {
    return pools_.size() > 1 && pools_[0]->layout.has(gpu) ? *pools_[0] : *pools_.back();
  }
  [[nodiscard]] const scenario::Parallel& layout_of(std::uint32_t gpu) const {
    return pool_of(gpu).layout;
  }
  /// Place of a copy of the experts of the step's pool in state_.
  [[nodiscard]] std::size_t state_of(std::uint32_t moe, std::uint32_t copy) const {
    return std::size_t{moe} * copies_ + pool_->first_copy + copy;
  }
  static std::vector<std::uint32_t> nodes(const scenario::Scenario& s);
  static std::vector<std::uint64_t> capacities(const scenario::Scenario& s);
  void refuse_unsupported() const;
  /// A token that keeps to one GPU's experts must not be served by copies elsewhere.
  void refuse_groups_of_copies(const RoutingPolicy& policy, const std::string& where) const;
  [[nodiscard]] bool hub() const { return s_.parallel.attention == AttentionPlacement::kHub; }
  /// Whether a GPU belongs to the engine of the step.
  [[nodiscard]] bool of_engine(std::uint32_t gpu) const {
    return gpu >= plan_.first_gpu && gpu < plan_.last_gpu;
  }
  [[nodiscard]] bool sharded() const { return layout().tp > 1; }
  /// The experts are divided among several tensor-parallel groups.
  [[nodiscard]] bool wide() const { return sharded() && layout().ep > layout().tp; }
  /// The GPU that stands for those which divide the columns of its experts.
  [[nodiscard]] std::uint32_t first_column(std::uint32_t gpu) const {
    const scenario::Parallel& p = layout_of(gpu);
    return gpu - (gpu - p.first_gpu) % p.expert_tp;
  }
  [[nodiscard]] bool staged() const { return s_.parallel.pp > 1; }
  [[nodiscard]] std::uint32_t stage_of_gpu(std::uint32_t gpu) const {
    return staged() ? gpu / s_.parallel.stage_gpus() : 0;
  }
  /// GPUs that are homes of sequences: those of the first stage.
  [[nodiscard]] std::uint32_t homes() const { return gpus_ / s_.parallel.pp; }
  /// What norms and residuals of a GPU are of: 1 / shares() of its tokens.
  [[nodiscard]] std::uint32_t shares() const {
    return layout().sequence_parallel ? layout().tp : 1;
  }
  /// The tensor-parallel group [first, last) of a GPU: itself without.
  [[nodiscard]] std::uint32_t group_first(std::uint32_t gpu) const {
    return layout_of(gpu).group_first(gpu);
  }

  void load_weights();
  void start_up(std::vector<LoadJob>& jobs);
  void await_layer(std::uint32_t moe);
  void note_start_up(SimulationResult& result);
  void make_batch();
  [[nodiscard]] std::vector<std::uint64_t> kv_rooms();
  /// That step by themselves.
  [[nodiscard]] std::uint32_t replicas() const {
    return static_cast<std::uint32_t>(engine_gpus_.size());
  }
  [[nodiscard]] std::uint32_t engine_of(std::uint32_t gpu) const {
    std::uint32_t e = 0;
    while (gpu >= engine_gpus_[e].beyond) ++e;
    return e;
  }
  /// When the step that was found, or the next one, begins on its engine.
  [[nodiscard]] std::int64_t engine_time() const;
  void note_allocator(SimulationResult& result);
  void begin_step(std::uint64_t step, const run::Inventory& inv);
  void compute_layers();
  void note_idle_settings(bool one_server, SimulationResult& result) const;
  void note_result(const run::Inventory& inv, std::uint64_t steps, SimulationResult& result) const;
  void note_calibration(SimulationResult& result) const;
  void compose_step();
  void grow_kv(std::uint64_t step);
  /// Of a routed expert, what one GPU of the pool has of it.
  [[nodiscard]] std::uint64_t expert_bytes(const Pool& pool) const;
  bool rebalance_due(std::int64_t end_ps);
  void rebalance(std::uint64_t step);
  /// Bytes of the pages of so many tokens on each GPU of a home in the pool, of all layers or some.
  [[nodiscard]] std::uint64_t kv_bytes_of(const Pool& pool, std::uint64_t tokens) const;
  [[nodiscard]] std::uint64_t kv_bytes_of(const Pool& pool, std::uint64_t tokens,
                                          std::size_t first_layer, std::size_t beyond) const;

  /// Advances a GPU's clock; returns what was charged (0 for a GPU that is out of service).
  std::int64_t work(std::uint32_t gpu, run::Phase phase, const OpCost& cost);
  /// With 1 / factor of the SMs. Launches are the host's and the driver's and take as long as
  /// before.
  [[nodiscard]] SimTime stretched(std::uint32_t gpu, const OpCost& cost, double factor) const;
  /// Which of the exchanges given to exchange() or issue() are phases of one call: `phases` of them
  /// from `first` on, the first `calls` of those begin one each (two calls in turn where the
  /// payload goes in halves). The others pay the phase latency. Default: every exchange is a call.
  struct OneCall {
    std::size_t first = 0, phases = 0, calls = 1;
    [[nodiscard]] bool continues(std::size_t i) const {
      return i >= first + calls && i < first + phases;
    }
  };
  void exchange(run::Phase phase, std::uint32_t moe,
                const std::vector<std::vector<std::uint64_t>>& matrices, std::int64_t& duration,
                std::int64_t& floor, Among among = Among::kGroups,
                const std::vector<PortBytes>* ports = nullptr, const GroupTime* time = nullptr,
                const OneCall& call = {0, 0, 1});
  /// A group's collective in place of its dispatch or combine, as moe_front() left its phases.
  [[nodiscard]] OneCall inside_call(std::size_t phases, std::size_t first = 0) const;
  /// Whether dispatch and combine of a layer need no matrices of bytes: the copies tell.
  [[nodiscard]] bool copies_suffice();
  /// The layer's dispatch, or its way back, by traffic_.copies; count_copies_sent() has their
  /// bytes.
  void exchange_copies(run::Phase phase, std::uint32_t moe, bool back, std::int64_t& duration,
                       std::int64_t& floor);
  void count_copies_sent();
  /// What timings_ say of an exchange: clocks, waits, paths, links.
  void apply_timings(run::Phase phase, std::uint32_t moe, std::int64_t& duration,
                     std::int64_t& floor);
  // exchange.cpp: times of a calibration (cost.exchange)
  [[nodiscard]] GroupTime all_to_all_time(run::Phase phase, Among among);
  [[nodiscard]] GroupTime inside_time(run::Phase phase,
                                      const std::vector<std::vector<std::uint64_t>>& phases);
  [[nodiscard]] std::int64_t count_time(ExchangeTimes::Kind kind, std::uint64_t bytes);
  /// What a collective is of: so many values (0: a hidden state) for each of rows[first GPU].
  struct Buffers {
    network::Collective what = network::Collective::kAllReduce;
    const std::vector<std::uint64_t>* rows = nullptr;
    std::uint64_t values = 0;
  };
  [[nodiscard]] GroupTime collective_time(const Buffers& of,
                                          const std::vector<std::vector<std::uint64_t>>& phases);
  /// What the policy makes of the requests of this workload.
  void describe_requests(const RoutingTrace* trace);
  /// The same for the sequences of the plan that are new.
  void describe_new();
  /// Whether the tokens of a sequence pass through the router.
  [[nodiscard]] bool uses_router(std::uint32_t sequence) const;
  void compose_reduce();
  /// In the groups of tp.
  void collective(std::uint32_t moe, const std::vector<std::vector<std::uint64_t>>& phases,
                  const Buffers& of);
  void gather_hidden(std::uint32_t moe);
  void reduce_hidden(std::uint32_t moe);
  /// Phases [G][G] of a collective of `values` activations (0: a hidden state) per row, rows[first
  /// GPU] of each group.
  [[nodiscard]] std::vector<std::vector<std::uint64_t>> group_collective(
      network::Collective what, const std::vector<std::uint64_t>& rows,
      std::uint64_t values = 0) const;
  void gather_samples();
  void gather_logits();
  void note_vocabulary(std::uint64_t steps);
  /// The tokens of one micro-batch on the GPUs of one stage.
  void compose_part(std::uint32_t micro, std::uint32_t micros, std::uint32_t stage);
  void begin_hosts();
  [[nodiscard]] std::size_t planned_of(std::uint32_t gpu) const;
  void attention(std::size_t layer, std::uint32_t moe);
  [[nodiscard]] const std::vector<OpCost>& attention_costs(std::size_t layer);
  void run_layers(std::size_t first, std::size_t beyond);
  void dense_layer(std::size_t layer);
  void embed();
  void head();
  void add_entropy();
  void make_router_units();
  void note_router(std::uint64_t steps, SimulationResult& result);
  // moe_layer.cpp: what comes before the exchanges of a layer and after them
  void moe_front(std::uint32_t moe);
  void moe_finish(std::uint32_t moe);
  void count_experts(std::uint32_t moe, bool again);
  void route_away(std::uint32_t moe, std::int64_t& longest);
  // held_steps.cpp
  /// The step that was computed ends as record_ says, for all that is known now.
  void hold_step();
  /// When the step that an engine computes ends as far as is known now.
  [[nodiscard]] std::int64_t held_end(std::uint32_t engine);
  /// When a step of these clocks ends as far as is known now.
  [[nodiscard]] std::int64_t end_by(const run::StepRecord& record, std::uint32_t first_gpu,
                                    const std::vector<ExchangeTimer::StepClock>& clocks);
  /// The engine goes on: its last step has ended, and its record goes to the sink.
  void settle_step(std::uint32_t engine);
  /// The exchanges in timings_, whose longest was added to `duration`, may still take longer.
  void keep_times(std::uint32_t moe, const std::int64_t& duration);
  // stages.cpp
  [[nodiscard]] std::uint32_t stage_of_moe(std::uint32_t moe) const;
  void pipeline();
  void note_stages(SimulationResult& result);
  // two_batch.cpp
  /// The layers of the micro-batch in two halves; false, and nothing done: one would be empty.
  bool two_batch(std::uint32_t micro, std::uint32_t micros, std::uint32_t stage, std::size_t first,
                 std::size_t beyond);
  void swap_half();
  void issue(run::Phase phase, std::uint32_t moe,
             const std::vector<std::vector<std::uint64_t>>& matrices, std::int64_t& duration,
             std::int64_t& floor, Among among = Among::kGroups, bool only_senders = false,
             const GroupTime* time = nullptr, const OneCall& call = {0, 0, 1});
  void await_exchange(run::Phase phase);
  void issue_dispatch(std::uint32_t moe, run::Phase phase);
  void issue_combine(std::uint32_t moe, run::Phase phase, std::uint32_t chunk);
  void keep_arrival(std::uint32_t chunk);
  void await_chunk(run::Phase phase, std::uint32_t chunk);
  void halves(std::size_t first, std::size_t beyond, std::uint32_t moe);
  /// What the exchange is on the way of those that waited for it.
  Activity note_straggler(std::uint32_t moe, run::Phase phase, const ExchangeTiming& t);
  void pack(run::Phase phase, bool sender, std::uint32_t chunk = run::kNone);
  void halve(std::vector<std::vector<std::uint64_t>>& matrices, std::uint64_t copy) const;
  void sample_memory();
  void sample_by_clock();
  void measure_memory();
  void check_sampling() const;
  // signals.cpp
  void begin_signals(SignalTable* table);
  /// What the policy sees in the step that is about to be computed.
  void note_signals();
  void end_signals(std::int64_t end_ps);
  /// Others' traffic has moved the end of a step of several replicas.
  void settle_signals(std::uint64_t step, std::int64_t end_ps);
  /// Routes tokens of one copy of the experts, the one of GPUs copy * ep …
  void route(std::uint32_t moe, std::uint32_t copy, const StepContext& context,
             const CandidatesView& candidates, std::span<const float> logits, LayerDecision& out);
  void decide_layer(std::uint32_t moe, std::uint32_t step);
  std::uint64_t longest_queue_ = 0;  ///< Of the layer: most demand beyond one copy's capacity.
  // deferral.cpp
  struct WaitingSlot {
    std::uint32_t token = 0;   // Of the sequence's new tokens,
    std::uint16_t member = 0;  // whose row is of this GPU after the sequence's home,
    std::uint16_t expert = 0;
  };
  void make_deferral();
  void begin_deferral();
  /// Slots of the layer that wait, of sequences of the step; nothing is decided yet.
  void find_late(std::uint32_t moe);
  [[nodiscard]] bool any_late(std::uint32_t copy) const;
  void count_backlog(std::uint32_t copy);
  [[nodiscard]] std::size_t backlog_place(std::uint32_t gpu, std::uint32_t expert,
                                          bool by_rank) const;
  void settle_backlog(std::uint32_t copy, const LayerDecision& part,
                      std::span<const std::uint32_t> rows);
  void choose_what_runs();
  /// [G] tokens_of_ and, of each home, the tokens whose slots waited and run now.
  [[nodiscard]] std::vector<std::uint64_t> with_late() const;
  void end_deferral(std::uint32_t moe);
  void note_deferral();
  void note_deferral(SimulationResult& result);
  /// Makes the ports of traffic_ anew from its matrices.
  void sum_traffic();
  void transient(std::uint32_t gpu, std::uint64_t values, model::DType format, const char* cause);
  /// All waves of GPU g when soft tokens take the stacked first product. They run in the first
  /// waves.
  [[nodiscard]] OpCost stacked_experts(std::uint32_t moe, std::uint32_t g) const;
  void check_traffic(std::uint32_t moe);
  void check_step(std::uint64_t step);
  void check_time(std::int64_t ps) const;
  void violation(const std::string& check, const std::string& where, const std::string& message);
  /// GPUs that may hold pages of the sequences with this home; found once.
  [[nodiscard]] const std::vector<std::uint32_t>& kv_holders(std::uint32_t home);
  /// Whether a GPU holds the pages of the sequences with this home.
  [[nodiscard]] bool holds_kv(std::uint32_t gpu, std::uint32_t home) const {
    if (staged()) return group_first(gpu % homes()) == home;
    return s_.memory.kv_placement == KvPlacement::kReplicated ||
           (s_.memory.kv_placement == KvPlacement::kHub ? gpu == s_.parallel.hub
                                                        : group_first(gpu) == home);
  }
  [[nodiscard]] bool spread_kv() const { return s_.memory.kv_placement == KvPlacement::kByToken; }
  [[nodiscard]] bool kv_by_expert() const {
    return s_.memory.kv_placement == KvPlacement::kByExpert;
  }
  /// Keys and values are kept elsewhere too than on their sequences' homes.
  [[nodiscard]] bool kv_travels() const {
    return spread_kv() || kv_by_expert() || s_.memory.kv_placement == KvPlacement::kReplicated;
  }
  // With one pool only: by_token and by_expert keep pages on the tensor-parallel groups (tp = 1:
  // GPUs) of one copy of the experts: how many there are, which one a GPU is of, and the copy's
  // first GPU (in the first stage).
  [[nodiscard]] std::uint32_t kv_round() const { return s_.parallel.ep / s_.parallel.tp; }
  [[nodiscard]] std::uint32_t kv_place(std::uint32_t gpu) const {
    return gpu % s_.parallel.ep / s_.parallel.tp;
  }
  [[nodiscard]] std::uint32_t kv_copy(std::uint32_t gpu) const {
    return gpu % homes() / s_.parallel.ep * s_.parallel.ep;
  }
  /// Home of a sequence of the plan in the composed stage.
  [[nodiscard]] std::uint32_t home_of(const PlannedSequence& q) const {
    return stage_ * homes() + q.gpu;
  }
  /// Whether sequence `p` of the plan is in the composed part.
  [[nodiscard]] bool in_part(std::size_t p) const {
    return micro_of_[p] == micro_ && (part_of_.empty() || part_of_[p] != 0);
  }
  /// by_token: how many of a sequence's first n tokens a GPU keeps.
  [[nodiscard]] std::uint64_t kv_tokens_on(std::uint32_t gpu, std::uint32_t home,
                                           std::uint64_t n) const;
  /// Bytes of pages on a GPU of a sequence with `tokens` > 0 tokens.
  [[nodiscard]] std::uint64_t kv_bytes_on(std::uint32_t gpu, std::uint32_t home,
                                          std::uint64_t tokens) const;
  /// Keys and values travel between their places and the sequences' homes. `moe`: index of the
  /// layer among the MoE layers, kNone for others.
  void move_kv(std::size_t layer, std::uint32_t moe);
  void move_values(std::uint32_t moe, const std::vector<std::vector<std::uint64_t>>& matrices,
                   Among among = Among::kGroups);
  void pull_kv(const std::vector<std::uint64_t>& bytes, const std::vector<std::uint64_t>& pulled);
  // kv_merge.cpp
  [[nodiscard]] std::uint64_t part_values() const;
  void begin_merge();
  [[nodiscard]] bool merges(const PlannedSequence& q) const { return merge_on_ && !q.prefill; }
  /// The next sequence of the plan: its home's attention sees so many of its cached tokens, if it
  /// merges.
  void keep_at_home(const PlannedSequence& q, std::uint64_t tokens);
  /// `tokens` of the sequence's cache lie on `holder`, which computes attention over them.
  void merge_with(const PlannedSequence& q, std::uint32_t holder, std::uint64_t tokens);
  void finish_merge(std::uint32_t moe, std::int64_t& slowest);
  // by_expert.
  /// Where the tokens are that are cached before the run: GPUs of their first candidates.
  void place_context_kv(const RoutingTrace* trace);
  /// The layer is decided: its new keys and values go where the tokens' first choices run.
  void keep_kv(std::uint32_t moe);
  struct KeptKv {
    std::uint32_t first = 0;       // kv_copy().
    std::vector<std::uint32_t> n;  // [L][kv_round()] tokens kept there.
    bool out = false;              // Swapped out: they have no pages.
  };
  [[nodiscard]] KeptKv& kept_kv(std::uint32_t sequence, std::uint32_t gpu);
  /// GPU of the sequence's copy of the experts.
  [[nodiscard]] std::uint32_t& kv_count(std::uint32_t sequence, std::uint32_t moe,
                                        std::uint32_t gpu) {
    return kept_kv(sequence, gpu).n[std::size_t{moe} * kv_round() + kv_place(gpu)];
  }
  /// Bytes of a sequence's pages of the MoE layers on a GPU if `more` tokens of each layer came; in
  /// any copy of the experts, as if they were there.
  [[nodiscard]] std::uint64_t kept_bytes(const KeptKv& kept, std::uint32_t gpu,
                                         std::uint64_t more) const;
  /// ServingMachine::kv_on.
  [[nodiscard]] std::uint64_t kv_most_on(std::uint32_t id, std::uint32_t gpu, std::uint32_t home,
                                         std::uint64_t had, std::uint64_t tokens) const;
  /// by_token, by_expert: whether a GPU has pages of a sequence.
  [[nodiscard]] bool keeps_kv(std::uint32_t gpu, std::uint32_t id, std::uint32_t home,
                              std::uint64_t tokens) const;
  /// ServingMachine::kv_moves.
  [[nodiscard]] std::vector<KvTransfer> kv_moves(std::uint32_t id, std::uint32_t from,
                                                 std::uint32_t to, std::uint64_t tokens) const;
  [[nodiscard]] std::uint64_t moe_layers_of(std::uint32_t stage) const;
  void change_kept_kv(const KvChange& change, std::int64_t now);
  /// One page of one layer.
  [[nodiscard]] std::uint64_t kv_layer_page() const;
  /// Bytes of the MoE layers' pages on a GPU.
  [[nodiscard]] std::uint64_t expert_kv_bytes(std::uint32_t gpu);
  /// Pages of preempted requests to and from host memory; their GPUs wait for them.
  void swap_pages();
  /// Nothing begins before: neither in this step nor in a later one.
  [[nodiscard]] std::int64_t earliest() const;
  /// A copy to or from a GPU beside the exchanges; its bytes count to the step's links.
  TransferQueue::Id copy(std::uint32_t lane, std::uint32_t from, std::uint32_t to,
                         std::uint64_t bytes, std::int64_t ready_ps);
  void count_copies();
  void moe_layer(std::uint64_t step, std::uint32_t moe);
  // Experts that are loaded on demand (expert_loads.cpp); only with loads_.
  void make_expert_loads(const RoutingTrace* trace);
  /// [L][G] distinct experts of each GPU.
  [[nodiscard]] std::vector<std::vector<std::vector<std::uint16_t>>> local_experts() const;
  /// The placement changed: what a GPU no longer has goes, what it has now is loaded when asked
  /// for.
  void relocate_experts();
  void queue_loads(std::uint32_t moe, std::uint32_t gpu, const LayerLoads& found,
                   std::vector<TransferQueue::Id>& ids);
  void ask_experts(std::uint32_t moe);
  void await_experts(std::uint32_t moe);
  void drop_passing();
  void wait_for_expert(std::uint32_t moe, std::uint32_t gpu, std::int64_t ps);
  void note_expert_wait(std::uint32_t moe, std::uint32_t gpu, std::int64_t ps);
  // host_experts.cpp: experts that the CPU computes; only with loads_->on_host.
  /// host: [G] endpoints of the CPUs. Null: what is missing is loaded.
  [[nodiscard]] std::unique_ptr<HostExperts> make_host_experts(
      const std::vector<std::uint32_t>& host) const;
  [[nodiscard]] SimTime copy_alone(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) const;
  void leave_to_host(std::uint32_t gpu, std::span<const std::uint32_t> rows, LayerLoads& found);
  void compute_on_host(std::span<const std::int64_t> there_ps);
  [[nodiscard]] bool on_host(std::uint32_t gpu, std::uint32_t expert) const;
  [[nodiscard]] std::span<const std::uint32_t> own_rows(std::uint32_t moe, std::uint32_t gpu,
                                                        const std::vector<std::uint32_t>& wave);
  void await_host(std::uint32_t moe);
  void note_host_experts(SimulationResult& result);
  void end_loads(std::uint64_t step);
  void note_loads(SimulationResult& result);
  void end_step(std::uint64_t step);
  /// The step has this end: first token cold, last step warm.
  void note_length(const run::StepScalars& scalars, std::uint64_t step);
  void merge_reroutes();
  // critical_path.cpp
  void extend(Path& path, const Activity& what, std::int64_t ps);
  /// The pieces of a way of this step to `end`, in order; a violation when they do not begin with
  /// the step.
  [[nodiscard]] std::vector<run::CriticalEntry> critical_path(const Path& path, std::int64_t end);
  /// Keeps the path of the slowest step that is no warm-up.
  void offer_critical(const run::StepScalars& step, std::vector<run::CriticalEntry>&& path);

  void count_links(const ExchangeTiming& timing);
  void count_ports(const PortBytes& ports);
  void count_bytes(const std::vector<std::uint64_t>& matrix, const PortBytes* ports = nullptr);
  /// Pages on their way between replicas, to the links of the step that has been computed.
  void count_transfers();
  // chunks.cpp
  void chunked_layer(std::uint32_t moe);
  using Matrices = std::vector<std::vector<std::uint64_t>>;  // [exchanges][G][G] bytes
  /// Exchanges of a chunk of the layer's dispatch or combine, and of rows that lie elsewhere.
  [[nodiscard]] Matrices chunk_of_layer(run::Phase phase, std::uint32_t chunk) const;
  [[nodiscard]] std::vector<std::uint64_t> astray_chunk(run::Phase phase,
                                                        std::uint32_t chunk) const;
  [[nodiscard]] OpCost chunk_experts(std::uint32_t moe, std::uint32_t gpu,
                                     std::uint32_t chunk) const;
  [[nodiscard]] SimTime slow_extra(std::uint32_t moe, std::uint32_t gpu, std::uint32_t chunk) const;
  [[nodiscard]] std::uint32_t rows_of_chunk(std::uint32_t moe, std::uint32_t gpu,
                                            const std::vector<std::uint32_t>& rows,
                                            std::size_t local, std::uint32_t chunk) const;
  void shared_experts(const std::vector<std::int64_t>& before);
  void beside(run::Phase phase, std::uint32_t moe, const std::vector<std::uint64_t>& matrix,
              std::vector<std::int64_t>& clock, std::vector<Path>& paths, std::int64_t& duration,
              std::int64_t& floor);
  /// Time of a GPU's routed experts, slow ones with their factor; adds to the experts' times of the
  /// record.
  [[nodiscard]] OpCost expert_work(std::uint32_t moe, std::uint32_t gpu);
  // alarm_actions.cpp
  void make_board(const run::Inventory& inventory);
  void watch(const run::StepRecord& record, std::uint64_t step);
  void take_actions(std::uint64_t step);
  /// Routes as the alarms of the step's replica ask for.
  void use_policy();
  [[nodiscard]] const scenario::AlarmRule* policy_rule(std::uint32_t engine) const;
  [[nodiscard]] std::string in_replica(std::uint32_t engine) const;
  void migrate_kv(std::uint64_t step, const health::AlarmChange& change);
  void shed(std::uint64_t step, const health::AlarmChange& change);
  // healing.cpp
  void reset_healing();
  /// Keeps the time at which what is to be paid began.
  void note_healing();
  void begin_faults(std::uint64_t step);
  void pay_faults(std::uint64_t step);
  void end_faults(std::uint64_t step);
  void note_faults(SimulationResult& result);
  void rewire(std::vector<std::uint32_t>& lost, std::vector<std::uint32_t>& back);
  /// All that are lost in one step at a time: none of them takes over from another. What moves is
  /// added to `moved`.
  void lose_gpus(std::uint64_t step, const std::vector<std::uint32_t>& gpus,
                 std::vector<MovedSequence>& moved);
  void restart_gpus(std::uint64_t step, const std::vector<std::uint32_t>& gpus);
  void return_gpu(std::uint64_t step, std::uint32_t gpu, std::vector<MovedSequence>& moved);
  void place_again();
  void check_weights(std::uint64_t step, std::int64_t now);
  void reload_expert(std::uint32_t layer, std::uint32_t expert);
  void carry_kv(const MovedSequence& moved);
  /// Cost models of the GPUs whose clock changed.
  void set_clocks();
  /// mis_sharding begins or is found: weights of `expert` in `layer` lie on another GPU than its
  /// own, in the ledger and for expert_work().
  void mislay(std::uint32_t layer, std::uint32_t expert, std::uint32_t gpu);
  bool bring_home(std::uint32_t layer, std::uint32_t expert, bool over_links);
  /// Rows of experts that lie elsewhere go from their own GPU's work to that GPU's.
  void send_on(std::uint32_t moe);
  using Attempt = std::function<void(const Matrices& part)>;
  using Pause = std::function<void(std::uint32_t gpu, std::int64_t ps, std::uint32_t culprit)>;
  /// Tries of the layer's combine, or of one part of it, that fail, before the one that does not:
  /// `attempt` times each, `pause` has a GPU wait for the time-out. What is given up is taken out
  /// of `combine`: true if anything is. `counts`: the assignments that then come to nothing are
  /// counted, once a layer.
  bool failed_gathers(std::uint32_t moe, std::vector<std::vector<std::uint64_t>>& combine,
                      const Attempt& attempt, const Pause& pause, bool counts);
  void end_gathers(std::uint64_t step);
  void check_fault_places() const;
  /// A damaged expert that no GPU holds is none.
  [[nodiscard]] bool resident(std::uint32_t layer, std::uint32_t expert) const;
  /// Replicas with a route between their GPUs over a cable: they hang when it breaks.
  [[nodiscard]] std::vector<std::uint32_t> engines_over(std::uint32_t cable) const;
  /// A GPU waits, for `whose` (kNone: for nobody) and why.
  void wait(std::uint32_t gpu, std::int64_t ps, std::uint32_t whose, StragglerReason reason);
  [[nodiscard]] std::vector<std::int64_t> host_load_ps() const;
  [[nodiscard]] std::uint64_t backbone_bytes(const Pool& pool, std::uint32_t stage = 0) const;
  /// Of stage `stage` of `pp`, for a model or what one GPU holds of it.
  [[nodiscard]] std::uint64_t backbone_bytes(const model::ModelConfig& shard, std::uint32_t pp,
                                             std::uint32_t stage) const;
  // Devices that weights come from (weight_sources.cpp).
  /// Error where host memory or an SSD cannot hold what is loaded from it.
  void check_weight_sources() const;
  /// Error at `where` if the device has less than `need`, the weights of `gpus`.
  void require_room(std::uint32_t device, std::uint64_t need,
                    const std::vector<std::uint32_t>& gpus, const std::string& where,
                    const std::string& hint) const;
  /// Bytes of the weights that the GPUs hold, each part of the model once.
  [[nodiscard]] std::uint64_t distinct_weights(const std::vector<std::uint32_t>& gpus) const;
  [[nodiscard]] std::uint64_t distinct_experts_bytes(const Pool& pool,
                                                     const std::vector<std::uint32_t>& gpus) const;
  /// [G] the CPU (device) that a GPU loads from after a fault: of its node, then by fewest links;
  /// kNone without any.
  [[nodiscard]] std::vector<std::uint32_t> hosts_to_reload_from() const;
  /// GPUs that cannot work without each other: the group of the GPU, or the GPU.
  [[nodiscard]] std::vector<std::uint32_t> unit_of(std::uint32_t gpu) const;
  [[nodiscard]] std::string describe(const FaultChange& change) const;
  void event(run::EventKind kind, std::int64_t time, std::uint64_t step, std::uint32_t gpu,
             double value, std::string text);

  const scenario::Scenario& s_;
  RunSink& sink_;
  std::uint32_t gpus_, layers_, experts_;
  bool windows_ = false;                      ///< Some layer has a sliding window.
  std::vector<std::unique_ptr<Pool>> pools_;  // One, or prefill replicas and the others.
  Pool* pool_ = nullptr;                      // of the step
  std::size_t copies_ = 0;                    // of the experts, in all pools
  std::vector<scenario::GpuRange> engine_gpus_;
  ExchangeTimer exchange_;
  MemoryLedger ledger_;
  RoutingPolicy policy_;
  bool policy_from_trace_ = false;
  // Phases of the collectives of one hidden state per token of each group, [G][G]: all-reduce;
  // reduce-scatter and all-gather where a layer needs them.
  std::vector<std::vector<std::uint64_t>> reduce_, scatter_, gather_;
  std::uint64_t embedding_bytes_ = 0, logit_bytes_ = 0;  // of the vocabulary's collectives
  std::unique_ptr<RouterUnits> router_units_;            // Null: the GPUs route.
  std::uint64_t extrapolated_ = 0, exchanges_ = 0;
  std::int64_t pack_ps_ = 0;
  std::vector<CostModel> cost_;
  std::uint64_t measured_ops_ = 0, extrapolated_ops_ = 0;  // of the calibration
  std::unique_ptr<ExchangeTimes> exchange_times_;          // null: the network model times all
  struct TimedExchanges {
    std::uint64_t all = 0, extrapolated = 0;
  };
  std::array<TimedExchanges, ExchangeTimes::kKinds> timed_exchanges_{};
  std::map<std::uint32_t, KeptKv> kv_on_;  // by_expert: sequences that keep any.
  // by_expert: what sequences left behind in a copy of the experts when they went to another one.
  std::multimap<std::pair<std::uint32_t, std::uint32_t>, KeptKv> kv_left_;
  std::vector<std::uint64_t> first_used_;  // [G] when KV rooms were asked for first.
  bool merge_on_ = false;                  // The rest is of the layer under way.
  std::vector<std::vector<SequenceWork>> merge_work_, merge_home_;  // [G]
  std::vector<std::size_t> merge_seen_;                             // [G] of the plan's sequences
  std::vector<std::uint64_t> merge_parts_;                          // [G] that come to a home.
  std::vector<std::uint64_t> merge_queries_, merge_results_;        // [G][G] bytes
  std::vector<std::uint64_t> copy_bytes_;  // [links] of copies that this step asked for.
  std::vector<std::uint64_t> peak_other_;  // [G] at most in its last step, beside KV pages.
  std::int64_t warm_up_ps_ = 0;            // of an expert, by the cost model
  std::vector<LoadTimeline> timelines_;    // [G] of the start-up; empty: the weights are there.
  std::int64_t first_step_end_ps_ = -1, last_step_ps_ = 0;
  std::uint64_t last_step_ = 0;          // that last_step_ps_ is of
  std::unique_ptr<ExpertLoads> loads_;   // Null: all experts are resident.
  std::vector<std::uint32_t> own_rows_;  // Scratch of own_rows().
  std::unique_ptr<RoutingSource> source_;
  std::unique_ptr<BatchSource> batch_;
  PolicyWeights weights_;
  std::optional<RoutingTable> table_;
  RoutingState state_;  // [L][copies of the experts in all pools]
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
  double step_start_ = 0;                // seconds
  std::int64_t next_sample_ps_ = 0;      // memory.sample_every: no new sample before
  const RoutingTrace* trace_ = nullptr;  // null: synthetic
  SignalTable* signals_ = nullptr;       // null: nobody wants them
  bool signal_queues_ = false, signal_longest_ = false;
  bool signalled_ = false;                            // the step under way has a row in the table
  std::map<std::uint64_t, std::size_t> signal_rows_;  // of steps of several replicas

  // Faults: null and empty without.
  std::unique_ptr<FaultClock> faults_;
  placement::Placement whole_;                    // With all GPUs there.
  std::vector<std::uint8_t> lost_, out_;          // [G] gone; gone or of a group out of service.
  std::map<std::size_t, std::uint32_t> cut_off_;  // Cable that is down → GPU without it.
  std::vector<std::uint64_t> leaked_;             // [G] bytes.
  std::uint64_t faults_seen_ = 0, lost_tokens_ = 0, damaged_ = 0;
  std::vector<double> clock_;  // [G] that cost_ is of.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> astray_;  // layer, expert → GPU
  // Of the layer under way: rows that lie elsewhere, and what travels once more for them.
  struct SentOn {
    std::uint32_t expert, gpu;  // GPU that has the weights,
    std::uint32_t group;        // the group that the expert has on its own GPU,
    std::size_t local;          // and the place of its rows there.
  };
  std::vector<SentOn> sent_on_;
  std::vector<std::uint64_t> there_, back_;  // [G][G] bytes
  // chunk_by = experts: [k] parts of them.
  std::vector<std::vector<std::uint64_t>> group_there_, group_back_;
  std::uint64_t rows_sent_on_ = 0, failed_tries_ = 0, lost_in_gathers_ = 0;
  std::int64_t gather_ps_ = 0;
  std::uint64_t step_tries_ = 0, step_lost_ = 0;  // of the step under way
  std::int64_t step_gather_ps_ = 0;
  std::vector<std::uint64_t> relay_bytes_;  // [G]
  std::int64_t recovery_ps_ = 0;
  // Alarms: null without.
  std::unique_ptr<health::AlarmBoard> board_;
  RoutingPolicy own_policy_;  // In force while no alarm asks for another.
  std::vector<health::AlarmChange>
      pending_;  // Whose actions come before their replica's next step.
  const scenario::AlarmRule* policy_of_ = nullptr;  // Whose policy_ is; null: the scenario's.
  std::vector<double> busy_ps_;                     // [G] in its last step.
  std::uint64_t alarms_ = 0;
  // Of the step about to begin: what healing takes.
  std::int64_t hang_ps_ = 0;
  std::int64_t healing_since_ = -1;        ///< When the hang or the loads began; -1: there is none.
  std::vector<std::int64_t> loads_until_;  ///< [G] Loads that another replica's step asked for.
  std::vector<std::int64_t> hang_until_;   ///< [replicas] Of several: nothing begins there before.
  std::uint64_t checked_step_ = UINT64_MAX;  ///< Whose check of the weights is done.
  std::uint32_t hang_gpu_ = run::kNone;
  std::vector<std::uint64_t> host_load_, travel_, leaving_, arriving_;  // [G], [G][G], [G], [G] B
  std::vector<std::string> healing_;

  // State of the step under way.
  std::vector<std::int64_t> ready_;    // [G] clock of each GPU
  std::vector<Path> path_;             // [G] how the critical path to ready_[g] is made up
  std::vector<PhaseTimes> gpu_phase_;  // [G] what the GPU itself did
  // [kByLoad, kByLink, kByHostLoad, kByFault][G] waits and transfers that this GPU stands for.
  std::array<std::vector<std::int64_t>, 4> straggler_ps_;
  std::vector<std::int64_t> layer_straggler_ps_;  // [L], over all parts of the step
  std::uint64_t step_ = 0;
  std::vector<std::uint32_t> node_;  // [G]
  StepPlan plan_;
  // Steps whose end may still move, in order; those of other engines wait behind them for the sink.
  // One matrix of a layer's dispatch or combine: what `time` counts of it, the longest of its
  // groups' times.
  struct LayerTime {
    std::uint32_t moe = 0;
    std::int64_t run::LayerRecord::*time = nullptr;
    std::int64_t run::LayerRecord::*floor = nullptr;
    std::int64_t longest_ps = 0;
    std::vector<TransferQueue::Id> exchanges;
    std::vector<std::int64_t> floors;  // [exchanges] as they were first timed, in ps
  };
  struct HeldStep {
    std::uint64_t step = 0;
    std::uint32_t first_gpu = 0;
    std::vector<ExchangeTimer::StepClock> clocks;  // Empty: it has ended.
    std::vector<LayerTime> times;
    run::StepRecord record;
    std::vector<run::CriticalEntry> path;
  };
  std::deque<HeldStep> held_steps_;
  std::vector<LayerTime> times_;                  // of the step under way
  std::vector<ExchangeTimer::StepClock> clocks_;  // of the step that has been computed
  std::vector<KvTransfer> moving_;  // Pages whose bytes no step counts yet, of single GPUs.
  std::optional<cluster::RouteTable> transfer_routes_;  // of pages between replicas
  StepTokens tokens_;
  std::vector<std::vector<SequenceWork>> sequences_;  // [G]
  std::vector<std::uint64_t> tokens_of_;              // [G]
  std::vector<std::uint64_t> routed_of_;              // [G] of these, what the router sees
  std::vector<std::uint64_t> sampled_of_;             // [G] sequences that pass through the head
  // Rows of the MoE layer: tokens_of_ and routed_of_, or with a wide ep this GPU's share of its
  // group's.
  std::vector<std::uint64_t> rows_of_, routed_rows_of_;
  std::vector<std::uint64_t> buffers_, activations_;  // [G] that live during a MoE layer
  std::vector<std::int64_t> before_dispatch_;         // [G]
  std::uint32_t parts_ = 1;                           // micro-batches of this step
  std::uint32_t stage_ = 0;                           // whose layers are under way
  // Of the layers of this step, over the micro-batches.
  std::vector<std::vector<std::uint64_t>> layer_assignments_;  // [L][G]
  std::vector<std::vector<std::uint8_t>> layer_experts_;       // [L*G] copies that had a row
  std::vector<std::uint8_t> layer_begun_;                      // [L]
  double entropy_ = 0;
  // When a chunk's exchange begins and arrives, [G] each (two_batch.cpp).
  struct Arrival {
    std::vector<std::int64_t> begin, end;
    std::vector<Path> path;
  };
  std::vector<Arrival> arrivals_;  // [chunks]
  // The other half of the batch, and what is on its way for either (two_batch.cpp).
  struct Half {
    StepTokens tokens;
    std::uint32_t micro = 0;
    std::vector<std::vector<SequenceWork>> sequences;
    std::vector<std::uint64_t> tokens_of, routed_of, sampled_of, rows_of, routed_rows_of, buffers,
        activations;
    LayerDecision decision;
    LayerTraffic traffic;
    std::vector<std::int64_t> before_dispatch;
    std::vector<std::int64_t> begin, arrival;  // [G] of the exchange under way
    std::vector<Path> path;                    // [G] to the arrival
    std::vector<std::vector<std::uint64_t>> reduce, scatter, gather;
    std::vector<SentOn> sent_on;
    std::vector<std::uint64_t> there, back, relay_bytes;
    std::vector<std::vector<std::uint64_t>> group_there, group_back;
    std::vector<Arrival> arrivals;
  };
  Half other_;
  bool in_halves_ = false;  // The layers of two halves are under way.
  // [G] of an exchange that runs beside work: when it begins and arrives; when the wire is free.
  std::vector<std::int64_t> begin_, arrival_, wire_, wire_in_;
  std::vector<Path> arrival_path_, wire_path_, wire_in_path_;  // [G]
  double slowdown_ = 1;                                        // of all kernels but the host's
  // queue = "defer". Between steps: who waits, for what.
  struct Waiting {
    std::uint32_t layer = 0;  // MoE layer
    std::uint32_t steps = 0;  // that ended meanwhile
    std::uint64_t since = 0;  // step
    std::vector<WaitingSlot> slots;
  };
  std::unique_ptr<StepCohesion> cohesion_;  // Null: there are no hidden states.
  bool defers_ = false;
  std::map<std::uint32_t, Waiting> waiting_;  // by sequence
  std::uint64_t deferred_slots_ = 0, deferrals_ = 0;
  std::uint32_t longest_wait_ = 0;
  // Of the step and the layer under way.
  std::vector<std::uint8_t> part_of_;    // [plan's sequences] in the layer; empty: all
  std::vector<std::uint32_t> micro_of_;  // [plan's sequences] micro-batch or half
  std::uint32_t micro_ = 0;              // of those the composed one
  struct LateSlot {
    std::uint64_t since = 0;
    std::uint32_t at = 0, gpu = 0;  // Place in the plan; GPU of the token's row.
    WaitingSlot slot;
    bool runs = false;
  };
  std::vector<LateSlot> late_;
  std::map<std::uint32_t, std::vector<WaitingSlot>> new_waits_;
  std::vector<std::uint32_t> backlog_;
  std::vector<std::uint64_t> late_rows_, late_of_home_;  // [G]
  LayerDecision late_decision_;
  StepTokens late_tokens_;
  std::uint32_t empty_layers_ = 0;  // Without a token, of the step.
  // What the layer runs: decision_ of tokens_, or with deferred slots the two above.
  const LayerDecision* ran_ = &decision_;
  const StepTokens* ran_tokens_ = &tokens_;
  run::StepRecord record_;
  Candidates candidates_;
  RouteWorkspace workspace_;
  LayerDecision decision_;
  LayerTraffic traffic_;
  bool by_copies_ = false;                  // The layer's traffic has no matrices of bytes.
  std::vector<std::uint32_t> step_copies_;  // [G][G] that travelled so; empty: none in this step
  std::vector<ExchangeTiming> timings_;
  std::vector<std::uint32_t> group_rows_;
  StepTokens group_tokens_;
  Candidates group_candidates_;
  std::vector<float> group_logits_;
  LayerDecision group_decision_;
  std::vector<run::Violation> violations_;
  std::vector<RequestInfo> trace_requests_;  // [trace sequence] as the policy sees them
  std::uint32_t described_ = 0;              // requests below have been described
  // Attention by sliding window, [G]; while the layers of one part follow each other.
  std::vector<std::pair<std::uint64_t, std::vector<OpCost>>> attention_costs_;
  bool same_rows_ = false;
  std::vector<std::uint64_t> held_;                     // scratch of check_step
  std::vector<std::vector<std::uint32_t>> kv_holders_;  // [G] of kv_holders(), empty: not found yet
  PortBytes ports_;                                     // scratch of count_bytes
  // Scratch of check_traffic: when a (GPU, group) and a node were last met; GPUs of each node and
  // the place of a GPU among them.
  std::vector<std::uint32_t> met_, met_node_, node_place_;
  std::vector<std::vector<std::uint32_t>> node_gpus_;
  std::uint32_t met_stamp_ = 0;
  // Pieces of all ways through the step, each after the one at `before`; the layer of what is
  // computed; the path of the step that has been computed, where its end may still move.
  struct PathPiece {
    std::int64_t ps = 0;
    Activity what;
    std::uint32_t before = run::kNone;
  };
  std::vector<PathPiece> pieces_;
  std::uint32_t at_layer_ = run::kNone;
  std::vector<run::CriticalEntry> step_critical_, slowest_critical_;
  std::int64_t slowest_step_ps_ = -1;
};

}  // namespace switchyard::sim
