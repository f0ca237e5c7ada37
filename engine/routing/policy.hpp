// SPDX-License-Identifier: Apache-2.0
// What happens when an expert is full: capacity rules (M06), their scope, dynamic capacity (M07),
// overflow order (M08), reroute and exhaustion (M05), and the weights of what runs. routing.md is
// the law; engines.md 2.1-2.3 describes the systems whose rules are offered beside ours.
// Not modelled: the policies of pipeline steps 2-6 and 8 (M03, M04, M09-M23); their keys are
// refused.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/gate.hpp"

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
  /// Identity gates use p in place of sel.
  std::optional<double> max_score_drop;
  bool operator==(const CapacityPolicy&) const = default;
};

/// A policy that was default-constructed changes nothing: every token gets its first k choices.
struct RoutingPolicy {
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

/// Throws InputError(where, "policy.capacity.factor = 0. Violated: …") for values outside their
/// range and for options that would do nothing.
void validate(const RoutingPolicy& policy, std::uint32_t experts, std::uint32_t top_k,
              const std::string& where);

/// One key of a policy, as written below [policy]: "capacity.rule", "weights.renorm", …
struct PolicyField {
  std::string_view key;
  std::string_view legal;  ///< Legal values, for messages and help.
};
/// All keys in the canonical order.
[[nodiscard]] std::span<const PolicyField> policy_fields();

/// Sets one field from text. Throws InputError(where, …): unknown key with a suggestion, value not
/// legal. Ranges that involve several fields are validate()'s business.
void set_policy_field(RoutingPolicy& policy, std::string_view key, std::string_view value_text,
                      const std::string& where);
/// The current value of a field as set_policy_field takes it.
[[nodiscard]] std::string get_policy_field(const RoutingPolicy& policy, std::string_view key);

/// Canonical line "capacity.rule=share capacity.factor=1.25 …": every key, fixed order; and its
/// exact inverse. policy_from_text accepts any subset of keys in any order, each at most once.
[[nodiscard]] std::string policy_to_text(const RoutingPolicy& policy);
[[nodiscard]] RoutingPolicy policy_from_text(std::string_view text, const std::string& where);

/// The active steps of routing.md's pipeline in order, one line each, beginning with the step
/// number.
[[nodiscard]] std::vector<std::string> explain_policy(const GateSpec& gate,
                                                      const RoutingPolicy& policy);

}  // namespace switchyard
