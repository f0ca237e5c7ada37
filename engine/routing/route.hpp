// SPDX-License-Identifier: Apache-2.0
// The whole pipeline of routing.md for one layer of one step, under any policy. The engine calls it
// in closed loop with all E logits; the replay of a trace and the simulator call it with the M
// candidates that the trace stores.
//
//    1 z from the candidates (or the logits); clamp (M47)
//    2 noise (M10)   3 semantic gate (M03)   4 temperature (M09)   5 Gumbel (M11)
//    6 load penalty (M04)
//    7 p = score(z)  8 sel = p + bias + bonuses (M15, M16)  9 groups (the family's, M20)
//   10 candidates by sel, S[t] = the first k_t
//   11 capacity, overflow, reroute  12 weights              (decide.hpp)
//
// M = E (always when E <= 64): a replay with the policy, seed and signals of the recorded run gives
// that run's decisions, bit for bit. M < E: an expert outside the candidates is taken to have the
// largest logit that its absence allows; a slot that it might win is counted as truncated, and its
// share of the log-sum-exp is that of equal experts. The engine, which has all logits, decides
// exactly and counts the slots whose expert is not among the candidates.
//
// How to add a mechanism (all files in engine/routing):
//   1. policy.hpp: a struct of options, off by default, as a member of RoutingPolicy in pipeline
//      order; policy_names.hpp: names of its enumerations; policy_fields.cpp: its keys;
//      policy.cpp: ranges in check_steps() (a key without effect is refused), policy_slots() when a
//      token may have more than top_k slots, policy_needs(); policy_explain.cpp: its line.
//   2. State that lives longer than a step: LayerState (per layer), SequenceState (per layer and
//      sequence), RequestInfo (per sequence, all layers, set by the caller).
//   3. pipeline.cpp, class Pipeline: begin_step() before the first row, choose_set(), rerank(),
//      substitute() while a row is made, end_step() with the finished decision.
//   4. Tests in tests/routing/<mechanism>_test.cpp; a replay case in
//   tests/trace/policy_replay_test.
//
// Not modelled: the family's group limit is not recomputed while M < E (the groups seen among the
// candidates are kept).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/candidates.hpp"
#include "engine/routing/decide.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/policy.hpp"
#include "engine/routing/policy_weights.hpp"
#include "engine/routing/rows.hpp"
#include "engine/routing/static_table.hpp"

namespace switchyard {

/// What is known of the machine at the start of a step, for one layer. Spans are borrowed.
struct Signals {
  double start = 0;                 ///< Seconds since the run began: the end of the last step.
  std::span<const double> used;     ///< [G] memory in use / capacity, 0…1.
  std::span<const double> elastic;  ///< [G] dynamic / (capacity - static), 0…1.
  /// GPUs of expert e in this layer: gpu[first_gpu[e]] … gpu[first_gpu[e + 1] - 1], at least one.
  std::span<const std::uint32_t> first_gpu;  ///< [E + 1]
  std::span<const std::uint32_t> gpu;        ///< Numbers < G.
  /// [E] q_e / C of this layer as the machine's last step left it, read by M04 u = queue; empty:
  /// the queues of the caller's own last step.
  std::span<const float> queue{};
  /// This layer's longest queue at the end of the machine's last step, read by the batch rule of
  /// M12; no value: that of the caller's own last step.
  std::optional<std::uint32_t> longest_queue{};
  /// 1 - used, the free share of a GPU's memory.
  [[nodiscard]] double free(std::uint32_t g) const { return 1.0 - used[g]; }
  /// The least of `level` over the copies of expert e.
  [[nodiscard]] double least(std::span<const double> level, std::uint32_t e) const;
};

inline constexpr std::uint32_t kNoTableEntry = 0xFFFFFFFFU;

/// What a request brings to routing beside its tokens; decided once (request_info()).
struct RequestInfo {
  bool soft = false;                          ///< M17
  bool table_collision = false;               ///< M14: the entry is of another prompt.
  std::uint16_t expert = kNoExpert;           ///< M22: the expert of all its tokens.
  std::uint32_t table_entry = kNoTableEntry;  ///< M14: a hit.
  bool operator==(const RequestInfo&) const = default;
};

/// Reads the table that the policy names (none: no value), checks it against the model and
/// policy.table.hash, and sets the latter. InputError names the file. `weight_hash` is that of the
/// model that runs: a table that was built with other weights is refused, unless its own says
/// "any"; empty: not compared.
[[nodiscard]] std::optional<RoutingTable> load_table(RoutingPolicy& policy,
                                                     const PolicyFiles& files, const GateSpec& gate,
                                                     std::uint32_t moe_layers,
                                                     const std::string& weight_hash = {});

/// What `policy` makes of a request: its prompt's tokens and text, and the expert that it names
/// (kNoExpert: none). `table` is load_table()'s; null only when the policy names none (asserted).
[[nodiscard]] RequestInfo request_info(const RoutingPolicy& policy, const RoutingTable* table,
                                       std::span<const std::uint32_t> tokens, std::string_view text,
                                       std::uint16_t expert);
/// Throws InputError(where, …) when the policy reads prompts' texts and `text` is empty.
void require_text(const RoutingPolicy& policy, const RoutingTable* table, std::string_view text,
                  const std::string& where);

/// Per layer and sequence.
struct SequenceState {
  std::uint16_t last_top1 = kNoExpert;  ///< M09: best candidate by sel, before step 10.
  std::uint32_t run = 0;                ///< M09: length of the run of equal top-1.
  std::uint32_t past = 0;               ///< M15, M16: sets written so far.
  std::vector<std::uint16_t> history;  ///< [kWindowLength][K] ring, slot past % kWindowLength next.
  std::vector<float> smooth;           ///< [E] M03 ema: z' of the last token, or empty.
};

/// Per layer.
struct LayerState {
  /// M09: a run was long enough in the last step. The clock of the step's end is known at the
  /// layer's next step only.
  bool triggered = false;
  bool raised = false;  ///< M09: the temperature is raised until `until` (seconds).
  double until = 0;
  SequenceState stream;                    ///< M09 across: the run of the whole stream.
  double noise_std = -1;                   ///< M10 adaptive; < 0: not begun.
  std::uint32_t noise_steps = 0;           ///< M10: steps of the window so far.
  std::vector<std::uint64_t> noise_taken;  ///< [E] M10: assignments of the window.
  std::vector<float> queue_level;          ///< [E] M04 queue: q_e / C at the last step's end.
  std::uint32_t round_robin = 0;           ///< M19: the next expert.
  std::uint32_t longest_queue = 0;         ///< M12: at the end of the last step.
  DecodeRebalanceState rebalance;          ///< M13
  std::vector<SequenceState> sequences;    ///< By sequence number.
  SequenceState& of(std::uint32_t sequence);
};

/// Everything a policy remembers from step to step. One per run: the session, the replay and the
/// simulator carry it.
class RoutingState {
 public:
  /// `layers`: MoE layers (the simulator has one per layer and copy of the experts).
  explicit RoutingState(std::size_t layers = 0) : layers_(layers) {}
  [[nodiscard]] LayerState& layer(std::size_t l) { return layers_[l]; }
  /// Created on first use.
  [[nodiscard]] RequestInfo& request(std::uint32_t sequence);
  [[nodiscard]] const std::vector<RequestInfo>& requests() const { return requests_; }
  /// Frees what the sequence holds; its number is not used again.
  void end_sequence(std::uint32_t sequence);

 private:
  std::vector<LayerState> layers_;
  std::vector<RequestInfo> requests_;
};

/// One layer's tokens of one step, as stage 1 left them.
struct RouteInput {
  CandidatesView candidates;         ///< Raw, family order, M wide; padding rows as in decide().
  std::span<const float> logits;     ///< [T][E] raw logits, read when M < E; empty: not known.
  std::span<const float> gate_bias;  ///< [E] or empty.
  const Signals* signals = nullptr;  ///< Null: none; require_supply() has passed then.
  std::span<const RequestInfo> requests;        ///< By sequence number; shorter: defaults.
  std::span<const float> hidden;                ///< [T][H] the router's input, or empty.
  const LayerPolicyWeights* weights = nullptr;  ///< Of this layer, or null.
  const RoutingTable* table = nullptr;          ///< Of the requests' table entries.
  std::span<const float> tier2;                 ///< [T][E] M18: the scorer's values, when it is on.
};

class Pipeline;
/// Scratch of route_layer(), reusable; no allocation after warm-up.
class RouteWorkspace {
 public:
  RouteWorkspace();
  ~RouteWorkspace();
  RouteWorkspace(RouteWorkspace&&) noexcept;
  RouteWorkspace& operator=(RouteWorkspace&&) noexcept;
  DecideWorkspace decide;
  [[nodiscard]] Pipeline& pipeline() { return *pipeline_; }

 private:
  std::unique_ptr<Pipeline> pipeline_;
};

/// Steps 1 to 12. `gate` and `policy` have passed validate(), require_supply() too. out.slots =
/// policy_slots(policy, gate) <= M. `state` is that of this layer, advanced by one step.
/// step.sequence and step.position are needed (T entries). A policy without steps before 11 takes
/// the way of decide(). Throws InputError only for what signals say (a GPU with fewer than k
/// experts under groups.by = placement).
void route_layer(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
                 const RouteInput& input, LayerState& state, RouteWorkspace& workspace,
                 LayerDecision& out);

}  // namespace switchyard
