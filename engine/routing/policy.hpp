// SPDX-License-Identifier: Apache-2.0
// Every choice of the routing pipeline beyond the family's gate, one struct per mechanism, all off
// by default: what changes the logits (M03, M04, M09-M11, M47), what is added to the selection
// (M15, M16), expert groups (M20), and what happens when an expert is full: capacity rules (M06),
// their scope, dynamic capacity (M07), overflow order (M08), reroute and exhaustion (M05), and the
// weights of what runs (M01 linear). routing.md is the law; engines.md 2.1-2.3 describes the
// systems whose capacity rules are offered beside ours. The pipeline itself: route.hpp. Not
// modelled: M23 (training losses): statistics of a trace, not decisions.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/routing/decode_rebalance.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/soft_balance.hpp"
#include "engine/routing/soft_routing.hpp"

namespace switchyard {

/// T tokens, S sequences, both of the scope; E experts, k slots, CF the capacity factor.
enum class CapacityRule : std::uint8_t {
  kNone,           ///< none: no limit (dropless, as inference engines). The default.
  kShare,          ///< share: ceil(CF T k / E).
  kBatchTokens,    ///< batch_tokens: floor(CF T). Never binds for CF >= 1.
  kBatchSeqs,      ///< batch_seqs: floor(CF S).
  kAbsolute,       ///< absolute: N.
  kMesh,           ///< mesh: max(min(G, int(G CF / E)), 4), G = group.
  kFlaxformer,     ///< flaxformer: max(round_half_even(CF G / E), 4).
  kDeepSpeed,      ///< deepspeed: max(ceil(T / E (k CF)), 4).
  kMegatron,       ///< megatron: ceil(T k / E CF).
  kTutel,          ///< tutel: k int(CF ceil(T / E)); CF = 0: largest demand; CF < 0: min of both.
  kMegaBlocks,     ///< megablocks: int(CF k T / E); a result of 0 means no limit.
  kFastMoeGshard,  ///< fastmoe_gshard: ceil(CF T) k // E.
  kFastMoeSwitch,  ///< fastmoe_switch: ceil(CF T / E).
  kFairseqTrain,   ///< fairseq_train: 2 ceil(T / E). k = 2 only.
  kFairseqEval,    ///< fairseq_eval: int(CF T).
};

/// Over which tokens T is counted, and hence whose assignments share one limit.
enum class CapacityScope : std::uint8_t {
  kAuto,    ///< auto: the rule's own. mesh, flaxformer: group; deepspeed, megatron, tutel,
            ///< fastmoe_gshard, fairseq_*: rank; the others: global.
  kGlobal,  ///< global: all tokens of the step.
  kRank,    ///< rank: the tokens of one source rank (StepContext::rank); loads count per rank.
  kGroup,   ///< group: equal consecutive blocks of at most group_size tokens (Mesh-TensorFlow's
            ///< _split_into_groups on one mesh row).
};

enum class OverflowOrder : std::uint8_t { kPosition, kProb, kRandom };
/// kAuto: sequential with order = position, else rounds.
enum class OverflowMode : std::uint8_t { kAuto, kSequential, kRounds };
enum class Reroute : std::uint8_t { kNext, kNone };
enum class Exhausted : std::uint8_t { kTop1, kDropToken, kQueue };
enum class QueueMode : std::uint8_t { kWave, kDefer };
enum class DynamicCapacity : std::uint8_t { kFixed, kPhase, kLog2 };
enum class WeightRenorm : std::uint8_t { kFinal, kNone, kFirst };

struct CapacityPolicy {
  CapacityRule rule = CapacityRule::kNone;
  /// CF. Finite, > 0; megablocks also 0; tutel any. Read as a decimal of at most 9 places by share
  /// and batch_*, so that 1.1 * 10 is 11; the other systems' rules keep their own double
  /// arithmetic. Must be 1 where the rule does not use it.
  double factor = 1.0;
  std::uint32_t absolute = 0;  ///< N of rule = absolute; 0 for every other rule.
  /// Lower bound of C. Unset ("auto"): 4 for mesh, flaxformer, deepspeed; 1 for share and batch_*;
  /// else 0.
  std::optional<std::uint32_t> min_capacity;
  CapacityScope scope = CapacityScope::kAuto;
  std::uint32_t group_size = 1024;  ///< Largest group of scope = group, >= 1.
  std::uint32_t alignment = 1;      ///< C is rounded up to a multiple (Tutel), >= 1.
  /// M07. fixed: factor. phase: prefill_factor for prefill (and warm-up) tokens, decode_factor for
  /// decode tokens; C = sum over phases of the rule applied to that phase's tokens. log2:
  /// CF = 1 + 0.01 log2(B), B = sequences in the step. Only for share and batch_*; `factor` must
  /// then be 1, for modes never multiply.
  DynamicCapacity dynamic = DynamicCapacity::kFixed;
  double prefill_factor = 1.0;  ///< > 0.
  double decode_factor = 1.25;  ///< > 0.
  OverflowOrder order = OverflowOrder::kPosition;
  OverflowMode mode = OverflowMode::kAuto;
  /// next: an overflowing slot goes to its token's next untried candidate. none: exhausted at once.
  Reroute reroute = Reroute::kNext;
  /// top1: the slot is dropped. drop_token: all the token's slots are dropped and those already
  /// accepted are given back. queue: it waits for its first choice.
  Exhausted exhausted = Exhausted::kTop1;
  /// wave: extra waves of <= C in the same layer. defer: decode tokens wait one step (they become
  /// the next step's backlog); prefill tokens still take waves.
  QueueMode queue = QueueMode::kWave;
  /// d in [0, 1]: a reroute target f of first choice e needs sel[f] >= (1 - d) sel[e]. Unset: off.
  /// Identity gates use p in place of sel. sel is that of step 8, so under M18 the first tier's.
  std::optional<double> max_score_drop;
  bool operator==(const CapacityPolicy&) const = default;
};

/// M47, in step 1. layer_norm (without weights, eps 1e-5) and the adapter act in the engine, before
/// the logits that a trace records; clamp acts on those.
struct ConditionPolicy {
  bool layer_norm = false;  ///< The gate sees (x - mean) / sqrt(var + 1e-5); the experts see x.
  double clamp = 0;         ///< z = min(max(z, -clamp), clamp); 0: off. The articles' value is 50.
  /// File of the low-rank adapter, z += B (A x); empty: off. Format:
  /// engine/model/policy_weights.hpp.
  std::string adapter;
  std::string adapter_hash = "any";  ///< 16 hex digits of the file's tensors.
  bool operator==(const ConditionPolicy&) const = default;
};

/// M10. jitter: the gate sees x U(1 - jitter, 1 + jitter), element by element, before step 1 (in
/// the engine; the experts see x). Step 2, fixed: z += N(0, std). adaptive: std starts at its value
/// here; every 50 steps it grows by 0.01, to at most 0.2, if one expert took more than 40 % of the
/// layer's assignments of those steps.
enum class NoiseMode : std::uint8_t { kOff, kFixed, kAdaptive };
struct NoisePolicy {
  NoiseMode mode = NoiseMode::kOff;
  double std = 0.05;  ///< > 0, in logits.
  double jitter = 0;  ///< In [0, 1); 0: off.
  bool operator==(const NoisePolicy&) const = default;
};

/// M03, step 3. mlp: z' = W2 gelu(W1 z + b1) + b2 (on = input: of the router's input x) with the
/// weights of `file`. Baselines: identity, z' = z; ema, z' = alpha z + (1 - alpha) z' of the
/// sequence's previous token. A row with a logit of -inf stays as it is.
enum class SemanticMode : std::uint8_t { kOff, kMlp, kEma, kIdentity };
enum class SemanticInput : std::uint8_t { kLogits, kInput };
struct SemanticPolicy {
  SemanticMode mode = SemanticMode::kOff;
  SemanticInput on = SemanticInput::kLogits;
  std::string file;          ///< With mlp. Format: engine/model/policy_weights.hpp.
  std::string hash = "any";  ///< 16 hex digits of the file's tensors.
  double alpha = 0.5;        ///< With ema, in (0, 1].
  bool operator==(const SemanticPolicy&) const = default;
};

/// M09. before: step 4, z /= T. after: step 7, score(z / T): the selection of a gate without bias
/// or bonus is the same for every T.
enum class TemperaturePlace : std::uint8_t { kOff, kBefore, kAfter };
/// What counts as "in a row": the tokens of one sequence, or the whole stream in canonical order.
enum class TemperatureController : std::uint8_t { kOff, kSequence, kAcross };
struct TemperaturePolicy {
  TemperaturePlace place = TemperaturePlace::kOff;
  double value = 1.0;  ///< T0 > 0.
  /// Per layer: `run` equal top-1 in a row raise T to raise * T0 from the next step on; it falls
  /// back `hold` seconds after the last such run. Needs a clock.
  TemperatureController controller = TemperatureController::kOff;
  std::uint32_t run = 5;  ///< >= 2.
  double raise = 1.5;     ///< > 0.
  double hold = 30.0;     ///< Seconds of simulated time, >= 0.
  bool operator==(const TemperaturePolicy&) const = default;
};

/// M11, step 5. tau_noise: z / tau + G. tau_all: (z + G) / tau, whose selection does not depend on
/// tau. G is keyed by (seed, sequence, layer, position, expert).
enum class GumbelMode : std::uint8_t { kOff, kTauNoise, kTauAll };
struct GumbelPolicy {
  GumbelMode mode = GumbelMode::kOff;
  double tau = 1.0;  ///< > 0.
  bool operator==(const GumbelPolicy&) const = default;
};

/// M04, step 6: z -= lambda(B) u[e]. total: used / capacity of the memory of e's GPU. elastic:
/// dynamic / (capacity - static). queue: q_e / C at the end of the previous step (0 in the first),
/// so it needs a capacity rule. Copies of an expert: the least loaded.
enum class LoadLevel : std::uint8_t { kOff, kTotal, kElastic, kQueue };
struct LoadAwarePolicy {
  LoadLevel u = LoadLevel::kOff;
  std::optional<double> lambda;  ///< Unset ("auto"): load_aware_lambda(B).
  bool operator==(const LoadAwarePolicy&) const = default;
};

/// M01 linear: ranks like the logits; w = z / sum z over the set when all z > 0, else their softmax
/// (LayerDecision::linear_fallbacks counts those tokens).
enum class ScoreRule : std::uint8_t { kFamily, kLinear };

/// M15, step 8: sel += lambda if e ran for the previous token of the sequence in this layer.
struct BonusPolicy {
  double lambda = 0;  ///< >= 0; 0: off. The article's value is 0.05.
  bool operator==(const BonusPolicy&) const = default;
};

/// M16, step 8: sel += beta h_e, h_e = sum_{i=1..10} gamma^(i-1) [e ran for token t - i] / the sum
/// of the weights. Missing predecessors count as zero.
struct WindowPolicy {
  double beta = 0;     ///< >= 0; 0: off.
  double gamma = 0.8;  ///< In (0, 1].
  bool operator==(const WindowPolicy&) const = default;
};
inline constexpr std::uint32_t kWindowLength = 10;

/// M20, step 9: only the experts of one group. Its score is the sum of its k best p; ties: lower
/// group. block: `count` contiguous blocks of E / count experts. placement: one group per GPU.
enum class GroupBy : std::uint8_t { kOff, kBlock, kPlacement };
enum class GroupTake : std::uint8_t { kTopK, kAll };
struct GroupPolicy {
  GroupBy by = GroupBy::kOff;
  std::uint32_t count = 0;                  ///< With block: divides E.
  GroupTake k_in_group = GroupTake::kTopK;  ///< all: every expert of the group runs (block only).
  bool operator==(const GroupPolicy&) const = default;
};

/// M14, step 10: requests whose prompt begins like one of the table's take that one's experts
/// (static_table.hpp).
struct TablePolicy {
  std::string file;          ///< Name without folder; empty: off.
  std::string hash = "any";  ///< 16 hex digits of the file's bytes.
  [[nodiscard]] bool on() const { return !file.empty(); }
  bool operator==(const TablePolicy&) const = default;
};

/// Step 10, rules that replace every token's S: M19 (round_robin.hpp) and M21 (batch_set.hpp).
enum class SetRule : std::uint8_t { kTopK, kRoundRobin, kBatch };

/// M22, step 10: one expert in every MoE layer, weight 1, k = 1; full: waits, never rerouted.
/// named: for requests that name one. all: `expert` for those that name none.
enum class PinnedRequests : std::uint8_t { kOff, kNamed, kAll };
struct PinnedPolicy {
  PinnedRequests requests = PinnedRequests::kOff;
  std::optional<std::uint32_t> expert;                       ///< < E, with `all`.
  std::vector<std::pair<std::string, std::uint32_t>> names;  ///< Names that requests may use.
  bool operator==(const PinnedPolicy&) const = default;
  [[nodiscard]] bool on() const { return requests != PinnedRequests::kOff; }
};

/// M18, step 10 (two_tier.hpp): tier 1 replaces the gate, tier 2 re-ranks its first k + 2.
enum class FirstTier : std::uint8_t { kOff, kInt4, kRank };
struct TwoTierPolicy {
  FirstTier first = FirstTier::kOff;
  std::uint32_t rank = 0;    ///< Of first = rank, 1…E.
  std::string scorer;        ///< Tier 2's .safetensors file, name without folder.
  std::string hash = "any";  ///< 16 hex digits of the file's bytes.
  [[nodiscard]] bool on() const { return first != FirstTier::kOff; }
  bool operator==(const TwoTierPolicy&) const = default;
};

/// A policy that was default-constructed changes nothing: every token gets its first k choices.
struct RoutingPolicy {
  double step_time = 0;  ///< Seconds per step, the clock of a run without signals; 0: none.
  ConditionPolicy condition;
  NoisePolicy noise;
  SemanticPolicy semantic;
  TemperaturePolicy temperature;
  GumbelPolicy gumbel;
  LoadAwarePolicy load_aware;
  ScoreRule score = ScoreRule::kFamily;
  BonusPolicy bonus;
  WindowPolicy window;
  GroupPolicy groups;
  SoftRoutingPolicy soft;                  ///< M17
  TablePolicy table;                       ///< M14
  SetRule set = SetRule::kTopK;            ///< M19, M21
  PinnedPolicy pinned;                     ///< M22
  TwoTierPolicy two_tier;                  ///< M18
  SoftBalancePolicy soft_balance;          ///< M12
  DecodeRebalancePolicy decode_rebalance;  ///< M13
  CapacityPolicy capacity;
  /// final: the family rule over the set that really runs. none: the family rule without its
  /// normalisation (p of each, times scale). first: the denominator of the first choices.
  WeightRenorm renorm = WeightRenorm::kFinal;
  bool operator==(const RoutingPolicy&) const = default;
};

/// Mode and scope after resolving auto.
[[nodiscard]] OverflowMode resolved_mode(const CapacityPolicy& capacity);
[[nodiscard]] CapacityScope resolved_scope(const CapacityPolicy& capacity);
[[nodiscard]] std::uint32_t resolved_min_capacity(const CapacityPolicy& capacity);

/// Whether any step before 11 does something, so that route_layer() has more to do than decide().
[[nodiscard]] bool has_policy_steps(const RoutingPolicy& policy);
/// Experts that step 10 takes before any other policy of the step: top_k, or with
/// groups.k_in_group = all the experts of a group.
[[nodiscard]] std::uint32_t first_set_size(const RoutingPolicy& policy, const GateSpec& gate);
/// K, the most slots any token has: the array width of every decision under the policy. >= top_k.
[[nodiscard]] std::uint32_t policy_slots(const RoutingPolicy& policy, const GateSpec& gate);

/// What a policy needs beside logits: each is the key that asks for it, or empty.
struct PolicyNeeds {
  std::string memory;     ///< Memory use of every GPU (Signals).
  std::string placement;  ///< The GPUs of every expert (Signals).
  std::string clock;  ///< Start time of a step (Signals, or step_time, which is not empty then).
  std::string all_logits;  ///< The logits of all E experts, M = E in a replay.
  std::string hidden;      ///< The router's input.
  std::string weights;     ///< PolicyWeights.
};
[[nodiscard]] PolicyNeeds policy_needs(const RoutingPolicy& policy);
/// What the caller of route_layer() can supply.
struct PolicySupply {
  bool signals = false;     ///< Memory use, placement and time.
  bool all_logits = false;  ///< All E logits of every token.
  bool hidden = false;      ///< The router's input of every token.
  bool weights = false;     ///< The tensors of the files that the policy names.
  /// Policy under which the logits were made, whose layer_norm, adapter and jitter they bear
  /// already. Null: the caller applies them itself (the engine).
  const RoutingPolicy* recorded = nullptr;
};
/// Throws InputError(where, …) naming the key and the missing thing.
void require_supply(const RoutingPolicy& policy, const PolicySupply& supply,
                    const std::string& where);

/// lambda(B) = 0.3 + 0.5 min(1, log2(max(B, 1)) / 6), B = sequences in the step (M04).
[[nodiscard]] double load_aware_lambda(std::uint64_t sequences);

/// Throws InputError(where, "policy.capacity.factor = 0. Violated: …") for values outside their
/// range and for options that would do nothing.
void validate(const RoutingPolicy& policy, std::uint32_t experts, std::uint32_t top_k,
              const std::string& where);

/// One key of a policy, as written below [policy]: "capacity.rule", "weights.renorm", …
struct PolicyField {
  std::string_view key;
  std::string_view legal;  ///< Legal values, for messages and help.
  /// The value is the name of a file, without its folder; whoever reads a policy keeps the path.
  bool file = false;
  bool list = false;  ///< Takes a list, or a table of whole numbers, in TOML.
};
/// Where the files that a policy names lie, by key.
using PolicyFiles = std::map<std::string, std::filesystem::path>;
/// All keys in the canonical order.
[[nodiscard]] std::span<const PolicyField> policy_fields();

/// Sets one field from text. Throws InputError(where, …): unknown key with a suggestion, value not
/// legal. Ranges that involve several fields are validate()'s business.
void set_policy_field(RoutingPolicy& policy, std::string_view key, std::string_view value_text,
                      const std::string& where);
/// The current value of a field as set_policy_field takes it.
[[nodiscard]] std::string get_policy_field(const RoutingPolicy& policy, std::string_view key);

/// A word of a list (soft.keywords, pinned.names) as the one-line text holds it: spaces, '=', '|',
/// ':', '%' and control characters become %XX.
[[nodiscard]] std::string policy_word(std::string_view text);

/// Canonical line "capacity.rule=share capacity.factor=1.25 …" in fixed order: the capacity and
/// weights keys, and every other key that has not its default; and its exact inverse.
/// policy_from_text accepts any subset of keys in any order, each at most once.
[[nodiscard]] std::string policy_to_text(const RoutingPolicy& policy);
[[nodiscard]] RoutingPolicy policy_from_text(std::string_view text, const std::string& where);

/// The active steps of routing.md's pipeline in order, one line each, beginning with the step
/// number.
[[nodiscard]] std::vector<std::string> explain_policy(const GateSpec& gate,
                                                      const RoutingPolicy& policy);

}  // namespace switchyard
