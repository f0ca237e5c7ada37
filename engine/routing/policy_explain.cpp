// SPDX-License-Identifier: Apache-2.0
// A policy in words: the active steps of routing.md's pipeline.
#include <fmt/format.h>

#include "engine/routing/policy.hpp"
#include "engine/routing/policy_names.hpp"

namespace switchyard {
namespace {

namespace names = policy_names;

/// The capacity rule as a formula with its numbers.
std::string formula(const CapacityPolicy& c) {
  std::string cf = fmt::format("{}", c.factor);
  if (c.dynamic == DynamicCapacity::kPhase) {
    cf = fmt::format("({} prefill, {} decode)", c.prefill_factor, c.decode_factor);
  } else if (c.dynamic == DynamicCapacity::kLog2) {
    cf = "(1 + 0.01 log2 B)";
  }
  switch (c.rule) {
    case CapacityRule::kNone:
      return "none";
    case CapacityRule::kShare:
      return fmt::format("ceil({} T k / E)", cf);
    case CapacityRule::kBatchTokens:
      return fmt::format("floor({} T)", cf);
    case CapacityRule::kBatchSeqs:
      return fmt::format("floor({} S)", cf);
    case CapacityRule::kAbsolute:
      return fmt::format("{}", c.absolute);
    case CapacityRule::kMesh:
      return fmt::format("min(T, int(T {} / E))", cf);
    case CapacityRule::kFlaxformer:
      return fmt::format("round({} T / E)", cf);
    case CapacityRule::kDeepSpeed:
      return fmt::format("ceil(T / E (k {}))", cf);
    case CapacityRule::kMegatron:
      return fmt::format("ceil(T k / E {})", cf);
    case CapacityRule::kTutel:
      return c.factor == 0  ? "largest demand"
             : c.factor < 0 ? fmt::format("min(largest demand, k int({} ceil(T / E)))", -c.factor)
                            : fmt::format("k int({} ceil(T / E))", cf);
    case CapacityRule::kMegaBlocks:
      return fmt::format("int({} k T / E), 0: no limit", cf);
    case CapacityRule::kFastMoeGshard:
      return fmt::format("ceil({} T) k // E", cf);
    case CapacityRule::kFastMoeSwitch:
      return fmt::format("ceil({} T / E)", cf);
    case CapacityRule::kFairseqTrain:
      return "2 ceil(T / E)";
    case CapacityRule::kFairseqEval:
      return fmt::format("int({} T)", cf);
  }
  return {};
}

std::string temperature_text(const TemperaturePolicy& t) {
  std::string text = fmt::format("T = {}", t.value);
  if (t.controller != TemperatureController::kOff) {
    text += fmt::format(
        "; {} equal top-1 in a row {} raise it to {} from the next step, for {} s", t.run,
        t.controller == TemperatureController::kSequence ? "within a sequence" : "in the stream",
        t.raise * t.value, t.hold);
  }
  return text;
}

/// Steps 1b to 6.
void explain_logits(const RoutingPolicy& p, std::vector<std::string>& lines) {
  if (p.condition.clamp > 0) {
    lines.push_back(fmt::format(" 1 z = clamp(z, -{0}, {0})", p.condition.clamp));
  }
  if (p.noise.mode != NoiseMode::kOff) {
    std::string text = fmt::format(" 2 z += N(0, {})", p.noise.std);
    if (p.noise.mode == NoiseMode::kAdaptive) {
      text += ", std + 0.01 (up to 0.2) after every 50 steps in which one expert took > 40 %";
    }
    lines.push_back(text);
  }
  switch (p.semantic.mode) {
    case SemanticMode::kOff:
      break;
    case SemanticMode::kMlp:
      lines.push_back(fmt::format(" 3 z = W2 gelu(W1 {} + b1) + b2, weights of {}",
                                  p.semantic.on == SemanticInput::kInput ? "x" : "z",
                                  p.semantic.file));
      break;
    case SemanticMode::kEma:
      lines.push_back(
          fmt::format(" 3 z = {} z + {} z of the sequence's previous token (baseline EMA)",
                      p.semantic.alpha, 1 - p.semantic.alpha));
      break;
    case SemanticMode::kIdentity:
      lines.emplace_back(" 3 z = z (baseline identity)");
      break;
  }
  if (p.temperature.place == TemperaturePlace::kBefore) {
    lines.push_back(" 4 z = z / T, " + temperature_text(p.temperature));
  }
  if (p.gumbel.mode != GumbelMode::kOff) {
    const double tau = p.gumbel.tau;
    lines.push_back(p.gumbel.mode == GumbelMode::kTauNoise
                        ? fmt::format(" 5 z = z / {} + G, G = -log(-log U) (tau_noise)", tau)
                        : fmt::format(" 5 z = (z + G) / {}, G = -log(-log U) (tau_all)", tau));
  }
  if (p.load_aware.u != LoadLevel::kOff) {
    lines.push_back(fmt::format(
        " 6 z -= {} u, u = {}",
        p.load_aware.lambda ? fmt::format("{}", *p.load_aware.lambda)
                            : std::string("(0.3 + 0.5 min(1, log2(B) / 6))"),
        p.load_aware.u == LoadLevel::kTotal     ? "memory in use / capacity of the expert's GPU"
        : p.load_aware.u == LoadLevel::kElastic ? "dynamic / (capacity - static) of its GPU"
                                                : "q / C of the expert at the last step's end"));
  }
}

std::string off_or(const std::optional<std::uint32_t>& v) {
  return v ? fmt::format("{}", *v) : std::string("off");
}

/// Step 10 beyond the first k.
void explain_sets(const RoutingPolicy& p, const GateSpec& g, std::vector<std::string>& lines) {
  if (p.pinned.on()) {
    lines.push_back(
        fmt::format("10 pinned: S = the expert that the request names{}, weight 1; full: waits",
                    p.pinned.expert ? fmt::format(" (or {})", *p.pinned.expert) : std::string()));
  }
  if (p.table.on()) {
    lines.push_back(fmt::format(
        "10 table: S and p from {} where the prompt's prefix is in it, else the live router",
        p.table.file));
  }
  if (p.set == SetRule::kRoundRobin) {
    lines.push_back(fmt::format("10 round-robin: S = the next {} of 0…{}, weights 1/{}", g.top_k,
                                g.experts - 1, g.top_k));
  }
  if (p.set == SetRule::kBatch) {
    lines.push_back(fmt::format(
        "10 batch: S = the {} best by sum of p over the step's tokens, one set for all; "
        "weights p / sum p",
        g.top_k));
  }
  if (p.soft.on()) {
    lines.push_back(fmt::format(
        "10 soft: {} run {} experts, weights {}{}",
        p.soft.all_requests
            ? std::string("all requests")
            : fmt::format("requests with one of {} keywords", p.soft.keywords.size()),
        p.soft.experts, p.soft.renorm ? "p / sum p" : "p",
        p.soft.cost == SoftCost::kStacked ? "; simulated as one product over all experts of a GPU"
                                          : ""));
  }
  if (p.two_tier.on()) {
    lines.push_back(fmt::format("10 two-tier: the gate is the router {}; {} re-ranks its first {}",
                                p.two_tier.first == FirstTier::kInt4
                                    ? std::string("in INT4")
                                    : fmt::format("of rank {}", p.two_tier.rank),
                                p.two_tier.scorer, g.top_k + 2));
  }
  const SoftBalancePolicy& b = p.soft_balance;
  if (b.on()) {
    lines.push_back(fmt::format(
        "10 soft balance: q > {} ({} where < {} of memory is free): next candidate with room",
        *b.limit, b.low_limit, b.low_memory));
    if (b.takes_third()) {
      lines.push_back(
          fmt::format("10 soft balance: k = 3 ({}) where < {} is free, or after a step with q > {}",
                      b.k3 == ThirdExpert::kActivate ? "three run" : "the best of three by queue",
                      b.k3_memory, off_or(b.batch_limit)));
    }
  }
  const DecodeRebalancePolicy& d = p.decode_rebalance;
  if (d.on()) {
    lines.push_back(fmt::format(
        "10 decode rebalance: every {} decode steps an expert whose GPU is above {} gives its next "
        "{} tokens to {}{}",
        d.period, *d.level, d.credits,
        d.target == RebalanceTarget::kThird ? "the third candidate"
                                            : "the least loaded of the top 3",
        d.max_score_drop ? fmt::format(" if sel >= {} sel", 1 - *d.max_score_drop) : ""));
  }
}

}  // namespace

std::vector<std::string> explain_policy(const GateSpec& g, const RoutingPolicy& policy) {
  const CapacityPolicy& c = policy.capacity;
  std::vector<std::string> lines;
  if (policy.condition.layer_norm) {
    lines.emplace_back(" 1 x = (x - mean) / sqrt(var + 1e-5), for the gate only");
  }
  if (policy.noise.jitter > 0) {
    lines.push_back(fmt::format(" 1 x *= U({}, {}), for the gate only", 1 - policy.noise.jitter,
                                1 + policy.noise.jitter));
  }
  lines.push_back(fmt::format(" 1 z = gate(x), E = {}; NaN and +inf count as -inf", g.experts));
  if (!policy.condition.adapter.empty()) {
    lines.push_back(fmt::format(" 1 z += B (A x), the adapter of {}", policy.condition.adapter));
  }
  explain_logits(policy, lines);
  const bool after = policy.temperature.place == TemperaturePlace::kAfter;
  const std::string_view z = after ? "z / T" : "z";
  if (policy.score == ScoreRule::kLinear) {
    lines.push_back(fmt::format(" 7 p = {} (linear)", z));
  } else {
    lines.push_back(g.score == GateScore::kSoftmax ? fmt::format(" 7 p = softmax({}) over all E", z)
                    : g.score == GateScore::kSigmoid ? fmt::format(" 7 p = sigmoid({})", z)
                                                     : fmt::format(" 7 p = {} (identity)", z));
  }
  if (after) {
    lines.push_back(" 7 " + temperature_text(policy.temperature));
  }
  if (g.score == GateScore::kSigmoid) {
    lines.emplace_back(" 8 sel = p + bias; weights never see the bias");
  }
  if (policy.bonus.lambda > 0) {
    lines.push_back(fmt::format(
        " 8 sel += {} if the expert ran for the sequence's previous token; weights never see it",
        policy.bonus.lambda));
  }
  if (policy.window.beta > 0) {
    lines.push_back(
        fmt::format(" 8 sel += {} h, h = share of the sequence's last {} tokens that ran on the "
                    "expert, token i "
                    "back weighted {}^(i-1)",
                    policy.window.beta, kWindowLength, policy.window.gamma));
  }
  if (g.grouped()) {
    lines.push_back(fmt::format(
        " 9 sel = {} outside the best {} of {} groups by {}",
        g.group_mask == GroupMask::kZero ? "0" : "-inf", g.topk_group, g.n_group,
        g.group_score == GroupScore::kMax ? "their best sel" : "the sum of their two best sel"));
  }
  if (policy.groups.by != GroupBy::kOff) {
    lines.push_back(fmt::format(
        " 9 sel = -inf outside the best {} by the sum of its {} best p",
        policy.groups.by == GroupBy::kPlacement
            ? std::string("GPU's experts")
            : fmt::format("of {} blocks of {} experts", policy.groups.count,
                          policy.groups.count > 0 ? g.experts / policy.groups.count : 0),
        g.top_k));
  }
  lines.push_back(
      fmt::format("10 S = first {} by sel; ties: lower expert id", first_set_size(policy, g)));
  explain_sets(policy, g, lines);
  if (c.rule == CapacityRule::kNone) {
    lines.emplace_back("11 capacity: no limit (rule = none)");
  } else {
    std::string limit = fmt::format("11 capacity: C = {} (rule = {}", formula(c),
                                    names::name_of(names::kRules, c.rule));
    if (resolved_min_capacity(c) > 0) {
      limit += fmt::format(", min {}", resolved_min_capacity(c));
    }
    if (c.alignment > 1) {
      limit += fmt::format(", multiple of {}", c.alignment);
    }
    limit += fmt::format("), scope {}", names::name_of(names::kScopes, resolved_scope(c)));
    if (resolved_scope(c) == CapacityScope::kGroup) {
      limit += fmt::format(" of <= {} tokens", c.group_size);
    }
    lines.push_back(limit);
    std::string overflow = fmt::format(
        "11 overflow: {}, order {}; reroute {}", names::name_of(names::kModes, resolved_mode(c)),
        names::name_of(names::kOrders, c.order), names::name_of(names::kReroutes, c.reroute));
    if (c.max_score_drop) {
      overflow += fmt::format(" if sel >= {} sel of the first choice", 1 - *c.max_score_drop);
    }
    overflow += fmt::format("; exhausted {}", names::name_of(names::kExhausted, c.exhausted));
    if (c.exhausted == Exhausted::kQueue) {
      overflow += fmt::format(" ({})", names::name_of(names::kQueues, c.queue));
    }
    lines.push_back(overflow);
  }
  std::string weights = "12 w = ";
  if (policy.score == ScoreRule::kLinear) {
    weights += "z / sum z if all z > 0, else softmax(z),";
  } else if (g.score == GateScore::kIdentity) {
    weights += policy.renorm == WeightRenorm::kNone ? "exp(z - lse)" : "softmax(z)";
  } else if (policy.renorm == WeightRenorm::kNone || !g.renorm ||
             (g.exclusive_scale && g.top_k == 1)) {
    weights += "p";
  } else {
    weights += "p / sum p";
  }
  weights += policy.renorm == WeightRenorm::kFinal   ? " over the set that runs"
             : policy.renorm == WeightRenorm::kFirst ? " with the sum of the first choices"
                                                     : " of each";
  if (g.scale != 1.0F) {
    const bool skipped =
        g.exclusive_scale && g.renorm && g.top_k > 1 && policy.renorm != WeightRenorm::kNone;
    weights += skipped ? std::string() : fmt::format(", times {}", g.scale);
  }
  lines.push_back(weights);
  return lines;
}

}  // namespace switchyard
