// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/routing/policy_names.hpp"

namespace switchyard {
namespace {

namespace names = policy_names;

/// fail(key, rule, hint) throws "policy.key = value. Violated: rule; hint".
struct Fail {
  template <class F>
  Fail(F f) : call(std::move(f)) {}  // NOLINT: made from a lambda
  void operator()(std::string_view key, std::string_view rule, std::string hint = {}) const {
    call(key, rule, std::move(hint));
  }
  std::function<void(std::string_view, std::string_view, std::string)> call;
};

bool own_rule(CapacityRule rule) {
  return rule == CapacityRule::kShare || rule == CapacityRule::kBatchTokens ||
         rule == CapacityRule::kBatchSeqs;
}

bool uses_factor(const CapacityPolicy& c) {
  return c.rule != CapacityRule::kNone && c.rule != CapacityRule::kAbsolute &&
         c.rule != CapacityRule::kFairseqTrain && c.dynamic == DynamicCapacity::kFixed;
}

/// Steps 1 to 9: ranges, and keys that would do nothing.
void check_steps(const RoutingPolicy& p, std::uint32_t experts, std::uint32_t top_k,
                 const Fail& fail) {
  static const RoutingPolicy kDefault;
  const auto finite = [&](std::string_view key, double v, double low, bool open) {
    if (!std::isfinite(v) || v > 1e6 || v < low || (open && v == low)) {
      fail(key, fmt::format("{} {} value <= 1e6", low, open ? "<" : "<="));
    }
  };
  /// A key that is not at its default although nothing reads it.
  const auto only_with = [&](std::string_view key, bool used, std::string_view condition) {
    if (!used && get_policy_field(p, key) != get_policy_field(kDefault, key)) {
      fail(key, fmt::format("{} unless {}", get_policy_field(kDefault, key), condition));
    }
  };
  finite("step_time", p.step_time, 0, false);
  const bool controlled = p.temperature.controller != TemperatureController::kOff;
  only_with("step_time", !policy_needs(p).clock.empty(), "a policy needs a clock");
  finite("condition.clamp", p.condition.clamp, 0, false);
  only_with("condition.adapter_hash", !p.condition.adapter.empty(), "there is a condition.adapter");
  if (!(p.noise.jitter >= 0 && p.noise.jitter < 1)) {
    fail("noise.jitter", "0 <= jitter < 1");
  }
  const bool mlp = p.semantic.mode == SemanticMode::kMlp;
  only_with("semantic.on", mlp, "semantic.mode = mlp");
  only_with("semantic.file", mlp, "semantic.mode = mlp");
  only_with("semantic.hash", mlp, "semantic.mode = mlp");
  if (mlp && p.semantic.file.empty()) {
    fail("semantic.file", "a file of weights with semantic.mode = mlp");
  }
  only_with("semantic.alpha", p.semantic.mode == SemanticMode::kEma, "semantic.mode = ema");
  if (!(p.semantic.alpha > 0 && p.semantic.alpha <= 1)) {
    fail("semantic.alpha", "0 < alpha <= 1");
  }
  finite("noise.std", p.noise.std, 0, true);
  only_with("noise.std", p.noise.mode != NoiseMode::kOff, "noise.mode is fixed or adaptive");
  if (p.noise.mode == NoiseMode::kAdaptive && p.noise.std > 0.2) {
    fail("noise.std", "std <= 0.2 with mode = adaptive", "it grows to 0.2 and stops there");
  }
  const bool tempered = p.temperature.place != TemperaturePlace::kOff;
  finite("temperature.value", p.temperature.value, 0, true);
  finite("temperature.raise", p.temperature.raise, 0, true);
  finite("temperature.hold", p.temperature.hold, 0, false);
  only_with("temperature.value", tempered, "temperature.place is before or after");
  only_with("temperature.controller", tempered, "temperature.place is before or after");
  if (tempered && p.temperature.value == 1.0 && !controlled) {
    fail("temperature.value", "value != 1 without a controller", "T = 1 changes nothing");
  }
  if (p.temperature.run < 2) {
    fail("temperature.run", "run >= 2");
  }
  for (const std::string_view key : {"temperature.run", "temperature.raise", "temperature.hold"}) {
    only_with(key, controlled, "there is a temperature.controller");
  }
  finite("gumbel.tau", p.gumbel.tau, 0, true);
  only_with("gumbel.tau", p.gumbel.mode != GumbelMode::kOff, "gumbel.mode is tau_noise or tau_all");
  if (p.load_aware.lambda) {
    finite("load_aware.lambda", *p.load_aware.lambda, 0, false);
    only_with("load_aware.lambda", p.load_aware.u != LoadLevel::kOff, "there is a load_aware.u");
  }
  if (p.load_aware.u == LoadLevel::kQueue && p.capacity.rule == CapacityRule::kNone) {
    fail("load_aware.u", "a capacity rule with u = queue", "u is q_e / C");
  }
  if (p.score == ScoreRule::kLinear && p.renorm == WeightRenorm::kNone) {
    fail("weights.renorm", "renorm = final or first with score.rule = linear",
         "linear weights are normalised logits");
  }
  finite("bonus.lambda", p.bonus.lambda, 0, false);
  finite("window.beta", p.window.beta, 0, false);
  if (!(p.window.gamma > 0 && p.window.gamma <= 1)) {
    fail("window.gamma", "0 < gamma <= 1");
  }
  only_with("window.gamma", p.window.beta > 0, "window.beta > 0");
  only_with("groups.count", p.groups.by == GroupBy::kBlock, "groups.by = block");
  only_with("groups.k_in_group", p.groups.by == GroupBy::kBlock, "groups.by = block");
  if (p.groups.by == GroupBy::kBlock) {
    const std::uint32_t n = p.groups.count;
    if (n < 2 || experts % n != 0) {
      fail("groups.count", fmt::format("2 <= count, and count divides experts = {}", experts));
    }
    if (experts / n < top_k) {
      fail("groups.count",
           fmt::format("groups of at least top_k = {} experts (they have {})", top_k, experts / n));
    }
    if (p.groups.k_in_group == GroupTake::kAll && experts / n > 255) {
      fail("groups.count", "at most 255 experts per group with k_in_group = all");
    }
  }
}

/// Step 10's mechanisms.
void check_sets(const RoutingPolicy& p, std::uint32_t experts, std::uint32_t top_k,
                const Fail& fail) {
  static const RoutingPolicy kDefault;
  const auto only_with = [&](std::string_view key, bool used, std::string_view condition) {
    if (!used && get_policy_field(p, key) != get_policy_field(kDefault, key)) {
      fail(key, fmt::format("{} unless {}", get_policy_field(kDefault, key), condition));
    }
  };
  const auto fraction = [&](std::string_view key, double v) {
    if (!(v >= 0 && v <= 1)) {
      fail(key, "0 <= value <= 1");
    }
  };
  const SoftRoutingPolicy& soft = p.soft;
  if (soft.experts > std::min(experts, 255U)) {
    fail("soft.experts", fmt::format("experts <= {}", std::min(experts, 255U)));
  }
  if (soft.on() && p.groups.by == GroupBy::kBlock && soft.experts > experts / p.groups.count) {
    fail("soft.experts",
         fmt::format("experts <= {}, the experts of a group", experts / p.groups.count));
  }
  if (p.set != SetRule::kTopK && (soft.on() || p.two_tier.on())) {
    fail(soft.on() ? "soft.experts" : "two_tier.first", "off unless set.rule = top_k",
         "set.rule decides every token's experts alone");
  }
  const bool own_weights =
      (p.set != SetRule::kTopK || (soft.on() && soft.all_requests)) && !p.table.on();
  if (p.renorm != WeightRenorm::kFinal &&
      (own_weights || p.pinned.requests == PinnedRequests::kAll)) {
    fail("weights.renorm",
         fmt::format("renorm = final with {}", p.pinned.requests == PinnedRequests::kAll
                                                   ? "pinned.requests = all"
                                               : soft.on() ? "soft.requests = all"
                                                           : "set.rule = round_robin or batch"),
         "every token then has weights of its own rule");
  }
  for (const std::string_view key :
       {"soft.renorm", "soft.cost", "soft.requests", "soft.keywords"}) {
    only_with(key, soft.on(), "soft.experts > 0");
  }
  if (soft.on() && soft.all_requests != soft.keywords.empty()) {
    fail("soft.keywords",
         soft.all_requests ? "off with soft.requests = all"
                           : "at least one with soft.requests = keyword",
         "keywords choose the requests that are soft");
  }
  only_with("table.hash", p.table.on(), "there is a table.file");
  const PinnedPolicy& pinned = p.pinned;
  only_with("pinned.expert", pinned.requests == PinnedRequests::kAll, "pinned.requests = all");
  only_with("pinned.names", pinned.on(), "pinned.requests is named or all");
  if (pinned.requests == PinnedRequests::kAll && !pinned.expert) {
    fail("pinned.expert", "an expert with pinned.requests = all");
  }
  if (pinned.expert && *pinned.expert >= experts) {
    fail("pinned.expert", fmt::format("expert < {}", experts));
  }
  for (const auto& [name, expert] : pinned.names) {
    if (expert >= experts) {
      fail("pinned.names", fmt::format("experts < {}", experts));
    }
  }
  const TwoTierPolicy& tiers = p.two_tier;
  only_with("two_tier.rank", tiers.first == FirstTier::kRank, "two_tier.first = rank");
  only_with("two_tier.scorer", tiers.on(), "two_tier.first is int4 or rank");
  only_with("two_tier.hash", tiers.on(), "two_tier.first is int4 or rank");
  if (tiers.on() && !p.condition.adapter.empty()) {
    fail("condition.adapter", "off with two_tier.first", "tier 1 takes the router's place");
  }
  if (tiers.first == FirstTier::kRank && (tiers.rank < 1 || tiers.rank > experts)) {
    fail("two_tier.rank", fmt::format("1 <= rank <= experts = {}", experts));
  }
  if (tiers.on() && tiers.scorer.empty()) {
    fail("two_tier.scorer", "a file with two_tier.first");
  }
  const SoftBalancePolicy& balance = p.soft_balance;
  for (const std::string_view key :
       {"soft_balance.low_limit", "soft_balance.low_memory", "soft_balance.k3_memory",
        "soft_balance.k3", "soft_balance.batch_limit"}) {
    only_with(key, balance.on(), "there is a soft_balance.limit");
  }
  fraction("soft_balance.low_memory", balance.low_memory);
  fraction("soft_balance.k3_memory", balance.k3_memory);
  only_with("soft_balance.low_limit", balance.low_memory > 0, "soft_balance.low_memory > 0");
  if (balance.on() && balance.low_memory > 0 && balance.low_limit > *balance.limit) {
    fail("soft_balance.low_limit", fmt::format("low_limit <= limit = {}", *balance.limit));
  }
  if (balance.takes_third()) {
    if (top_k >= SoftBalancePolicy::kThree || experts < SoftBalancePolicy::kThree) {
      fail(balance.k3_memory > 0 ? "soft_balance.k3_memory" : "soft_balance.batch_limit",
           fmt::format("top_k < 3 <= experts for a third expert (top_k = {}, experts = {})", top_k,
                       experts),
           "write k3_memory = 0 and batch_limit = \"off\"");
    }
  } else {
    only_with("soft_balance.k3", false, "k3_memory or batch_limit is on");
  }
  const DecodeRebalancePolicy& rebalance = p.decode_rebalance;
  for (const std::string_view key :
       {"decode_rebalance.period", "decode_rebalance.credits", "decode_rebalance.target",
        "decode_rebalance.max_score_drop"}) {
    only_with(key, rebalance.on(), "there is a decode_rebalance.level");
  }
  if (rebalance.level && !(*rebalance.level > 0 && *rebalance.level <= 1)) {
    fail("decode_rebalance.level", "0 < level <= 1");
  }
  if (rebalance.period < 1) {
    fail("decode_rebalance.period", "period >= 1");
  }
  if (rebalance.credits < 1) {
    fail("decode_rebalance.credits", "credits >= 1");
  }
  if (rebalance.max_score_drop) {
    fraction("decode_rebalance.max_score_drop", *rebalance.max_score_drop);
  }
}

}  // namespace

bool has_policy_steps(const RoutingPolicy& policy) {
  RoutingPolicy rest;
  rest.capacity = policy.capacity;
  rest.renorm = policy.renorm;
  // In the engine, before the logits.
  rest.condition.layer_norm = policy.condition.layer_norm;
  rest.condition.adapter = policy.condition.adapter;
  rest.condition.adapter_hash = policy.condition.adapter_hash;
  rest.noise.jitter = policy.noise.jitter;
  return policy != rest;
}

std::uint32_t first_set_size(const RoutingPolicy& policy, const GateSpec& gate) {
  return policy.groups.k_in_group == GroupTake::kAll && policy.groups.count > 0
             ? std::max(gate.top_k, gate.experts / policy.groups.count)
             : gate.top_k;
}

std::uint32_t policy_slots(const RoutingPolicy& policy, const GateSpec& gate) {
  std::uint32_t slots = std::max(first_set_size(policy, gate), policy.soft.experts);
  const SoftBalancePolicy& balance = policy.soft_balance;
  if (balance.takes_third() && balance.k3 == ThirdExpert::kActivate) {
    slots = std::max(slots, SoftBalancePolicy::kThree);
  }
  return slots;
}

PolicyNeeds policy_needs(const RoutingPolicy& p) {
  PolicyNeeds needs;
  if (p.load_aware.u == LoadLevel::kTotal || p.load_aware.u == LoadLevel::kElastic) {
    needs.memory = "load_aware.u";
  }
  if (p.groups.by == GroupBy::kPlacement) {
    needs.placement = "groups.by";
  }
  if (p.soft_balance.needs_memory()) {
    needs.memory =
        p.soft_balance.k3_memory > 0 ? "soft_balance.k3_memory" : "soft_balance.low_memory";
  }
  if (p.decode_rebalance.on()) {
    needs.memory = "decode_rebalance.level";
  }
  if (p.set == SetRule::kBatch) {
    needs.all_logits = "set.rule";
  }
  if (p.two_tier.on()) {
    needs.hidden = "two_tier.first";
  }
  if (p.temperature.controller != TemperatureController::kOff) {
    needs.clock = "temperature.controller";
  }
  if (p.semantic.mode == SemanticMode::kMlp) {
    needs.weights = "semantic.file";
    (p.semantic.on == SemanticInput::kInput ? needs.hidden : needs.all_logits) = "semantic.on";
  } else if (p.semantic.mode == SemanticMode::kEma) {
    needs.all_logits = "semantic.mode";
  }
  if (!p.condition.adapter.empty()) {
    needs.weights = "condition.adapter";
  }
  return needs;
}

void require_supply(const RoutingPolicy& policy, const PolicySupply& supply,
                    const std::string& where) {
  const PolicyNeeds needs = policy_needs(policy);
  const auto refuse = [&](const std::string& key, std::string_view what, std::string hint) {
    if (!key.empty()) {
      throw InputError(
          where, fmt::format("policy.{} = {} needs {}", key, get_policy_field(policy, key), what),
          std::move(hint));
    }
  };
  if (!supply.signals) {
    refuse(needs.memory, "the memory use of each GPU", "give --signals, or use the simulator");
    refuse(needs.placement, "the GPU of each expert", "give --signals, or use the simulator");
    if (policy.step_time <= 0) {
      refuse(needs.clock, "a clock", "give --signals, or set step_time (seconds per step)");
    }
  }
  if (!supply.all_logits) {
    refuse(needs.all_logits, "the logits of all experts",
           "traces hold them all for up to 64 experts; run the engine with the policy");
  }
  if (!supply.hidden) {
    refuse(needs.hidden, "the router's input, which a trace does not hold",
           "run the engine with the policy");
  }
  if (!supply.weights && needs.weights != "condition.adapter") {
    refuse(needs.weights, "its weights", "name the policy file, which says where they are");
  }
  if (supply.recorded != nullptr) {
    for (const std::string_view key :
         {"condition.layer_norm", "condition.adapter", "condition.adapter_hash", "noise.jitter",
          "two_tier.first", "two_tier.rank"}) {
      const std::string want = get_policy_field(policy, key);
      const std::string have = get_policy_field(*supply.recorded, key);
      const bool any = key == "condition.adapter_hash" && (want == "any" || have == "any");
      if (want != have && !any) {
        throw InputError(
            where,
            fmt::format("policy.{} = {} acts before the logits, and these were made with "
                        "{}",
                        key, want, have),
            "run the engine with the policy");
      }
    }
  }
}

double load_aware_lambda(std::uint64_t sequences) {
  const double b = static_cast<double>(std::max<std::uint64_t>(sequences, 1));
  return 0.3 + 0.5 * std::min(1.0, std::log2(b) / 6.0);
}

OverflowMode resolved_mode(const CapacityPolicy& c) {
  if (c.mode != OverflowMode::kAuto) {
    return c.mode;
  }
  return c.order == OverflowOrder::kPosition ? OverflowMode::kSequential : OverflowMode::kRounds;
}

CapacityScope resolved_scope(const CapacityPolicy& c) {
  if (c.scope != CapacityScope::kAuto) {
    return c.scope;
  }
  switch (c.rule) {
    case CapacityRule::kMesh:
    case CapacityRule::kFlaxformer:
      return CapacityScope::kGroup;
    case CapacityRule::kDeepSpeed:
    case CapacityRule::kMegatron:
    case CapacityRule::kTutel:
    case CapacityRule::kFastMoeGshard:
    case CapacityRule::kFairseqTrain:
    case CapacityRule::kFairseqEval:
      return CapacityScope::kRank;
    default:
      return CapacityScope::kGlobal;
  }
}

std::uint32_t resolved_min_capacity(const CapacityPolicy& c) {
  if (c.min_capacity) {
    return *c.min_capacity;
  }
  switch (c.rule) {
    case CapacityRule::kMesh:
    case CapacityRule::kFlaxformer:
    case CapacityRule::kDeepSpeed:
      return 4;
    case CapacityRule::kShare:
    case CapacityRule::kBatchTokens:
    case CapacityRule::kBatchSeqs:
      return 1;
    default:
      return 0;
  }
}

void validate(const RoutingPolicy& policy, std::uint32_t experts, std::uint32_t top_k,
              const std::string& where) {
  const CapacityPolicy& c = policy.capacity;
  const Fail fail = [&](std::string_view key, std::string_view rule, std::string hint) {
    throw InputError(
        where,
        fmt::format("policy.{} = {}. Violated: {}", key, get_policy_field(policy, key), rule),
        std::move(hint));
  };
  const std::string rule(names::name_of(names::kRules, c.rule));
  if (top_k < 1 || top_k > experts) {
    throw InputError(
        where, fmt::format("top_k = {}. Violated: 1 <= top_k <= experts = {}", top_k, experts));
  }
  if (!std::isfinite(c.factor) || std::abs(c.factor) > 1e6) {
    fail("capacity.factor", "|factor| <= 1e6");
  }
  if (!uses_factor(c)) {
    if (c.factor != 1.0) {
      fail("capacity.factor",
           c.dynamic != DynamicCapacity::kFixed
               ? fmt::format("factor = 1 with dynamic = {} (modes never multiply)",
                             names::name_of(names::kDynamics, c.dynamic))
               : fmt::format("factor = 1 with rule = {}, which does not use it", rule));
    }
  } else if (c.rule == CapacityRule::kMegaBlocks
                 ? c.factor < 0
                 : c.rule != CapacityRule::kTutel && c.factor <= 0) {
    fail("capacity.factor", c.rule == CapacityRule::kMegaBlocks ? "factor >= 0" : "factor > 0");
  } else if (own_rule(c.rule) && std::llround(c.factor * 1e9) == 0) {
    fail("capacity.factor", "factor >= 1e-9");
  }
  if (c.absolute != 0 && c.rule != CapacityRule::kAbsolute) {
    fail("capacity.absolute", fmt::format("absolute = 0 with rule = {}", rule),
         "capacity.rule = \"absolute\" uses it");
  }
  const bool no_rule = c.rule == CapacityRule::kNone;
  if (c.min_capacity && (no_rule || c.rule == CapacityRule::kAbsolute)) {
    fail("capacity.min_capacity", fmt::format("min_capacity = auto with rule = {}", rule));
  }
  if (no_rule && c.scope != CapacityScope::kAuto) {
    fail("capacity.scope", "scope = auto with rule = none");
  }
  if (c.group_size < 1) {
    fail("capacity.group_size", "group_size >= 1");
  }
  if (c.group_size != 1024 && resolved_scope(c) != CapacityScope::kGroup) {
    fail("capacity.group_size", "group_size = 1024 unless scope = group");
  }
  if (c.alignment < 1) {
    fail("capacity.alignment", "alignment >= 1");
  }
  if (c.alignment != 1 && no_rule) {
    fail("capacity.alignment", "alignment = 1 with rule = none");
  }
  if (no_rule) {
    // mode = sequential is what auto stands for beside order = position.
    for (const auto& [key, kept] :
         {std::pair{"capacity.order", c.order == OverflowOrder::kPosition},
          std::pair{"capacity.mode", c.mode != OverflowMode::kRounds},
          std::pair{"capacity.reroute", c.reroute == Reroute::kNext},
          std::pair{"capacity.exhausted", c.exhausted == Exhausted::kTop1},
          std::pair{"capacity.queue", c.queue == QueueMode::kWave},
          std::pair{"capacity.max_score_drop", !c.max_score_drop}}) {
      if (!kept) {
        fail(key, "a capacity rule with it", "with rule = none no expert is ever full");
      }
    }
  }
  if (c.dynamic != DynamicCapacity::kFixed && !own_rule(c.rule)) {
    fail("capacity.dynamic", fmt::format("dynamic = fixed with rule = {}", rule),
         "share, batch_tokens and batch_seqs can be dynamic");
  }
  for (const std::string_view key : {"capacity.prefill_factor", "capacity.decode_factor"}) {
    const bool prefill = key == "capacity.prefill_factor";
    const double value = prefill ? c.prefill_factor : c.decode_factor;
    if (!std::isfinite(value) || value < 1e-9 || value > 1e6) {
      fail(key, "1e-9 <= factor <= 1e6");
    }
    if (c.dynamic != DynamicCapacity::kPhase && value != (prefill ? 1.0 : 1.25)) {
      fail(key, fmt::format("{} unless dynamic = phase", prefill ? "1" : "1.25"));
    }
  }
  if (c.mode == OverflowMode::kSequential && c.order != OverflowOrder::kPosition) {
    fail("capacity.mode",
         fmt::format("mode = rounds with order = {}", names::name_of(names::kOrders, c.order)),
         "sequential takes tokens by position");
  }
  if (c.queue == QueueMode::kDefer) {
    if (c.exhausted != Exhausted::kQueue && !policy.pinned.on()) {
      fail("capacity.queue", "queue = wave unless exhausted = queue");
    }
    if (resolved_scope(c) == CapacityScope::kGroup) {
      fail("capacity.queue", "queue = wave with scope = group",
           "a group of tokens has no next step");
    }
  }
  if ((c.exhausted == Exhausted::kQueue || policy.pinned.on()) && !no_rule) {
    const std::string_view with =
        c.exhausted == Exhausted::kQueue ? "exhausted = queue" : "pinned requests";
    if (c.rule == CapacityRule::kAbsolute) {
      if (c.absolute == 0) {
        fail("capacity.absolute", fmt::format("absolute >= 1 with {}", with));
      }
    } else if (resolved_min_capacity(c) == 0) {
      fail("capacity.min_capacity", fmt::format("min_capacity >= 1 with {}", with),
           "an expert of capacity 0 would never empty its queue");
    }
  }
  if (c.max_score_drop) {
    if (!(*c.max_score_drop >= 0 && *c.max_score_drop <= 1)) {
      fail("capacity.max_score_drop", "0 <= max_score_drop <= 1");
    }
    if (c.reroute == Reroute::kNone) {
      fail("capacity.max_score_drop", "max_score_drop = off with reroute = none");
    }
  }
  check_steps(policy, experts, top_k, fail);
  check_sets(policy, experts, top_k, fail);
  if (c.rule == CapacityRule::kFairseqTrain && top_k != 2) {
    fail("capacity.rule", fmt::format("top_k = 2 (it is {})", top_k),
         "fairseq's rule is written for its top-2 gate");
  }
}

}  // namespace switchyard
