// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/routing/text_fields.hpp"

namespace switchyard {
namespace {

using text_fields::Name;
using text_fields::name_of;

constexpr std::array kRules{Name<CapacityRule>{"none", CapacityRule::kNone},
                            Name<CapacityRule>{"share", CapacityRule::kShare},
                            Name<CapacityRule>{"batch_tokens", CapacityRule::kBatchTokens},
                            Name<CapacityRule>{"batch_seqs", CapacityRule::kBatchSeqs},
                            Name<CapacityRule>{"absolute", CapacityRule::kAbsolute},
                            Name<CapacityRule>{"mesh", CapacityRule::kMesh},
                            Name<CapacityRule>{"flaxformer", CapacityRule::kFlaxformer},
                            Name<CapacityRule>{"deepspeed", CapacityRule::kDeepSpeed},
                            Name<CapacityRule>{"megatron", CapacityRule::kMegatron},
                            Name<CapacityRule>{"tutel", CapacityRule::kTutel},
                            Name<CapacityRule>{"megablocks", CapacityRule::kMegaBlocks},
                            Name<CapacityRule>{"fastmoe_gshard", CapacityRule::kFastMoeGshard},
                            Name<CapacityRule>{"fastmoe_switch", CapacityRule::kFastMoeSwitch},
                            Name<CapacityRule>{"fairseq_train", CapacityRule::kFairseqTrain},
                            Name<CapacityRule>{"fairseq_eval", CapacityRule::kFairseqEval}};
constexpr std::array kScopes{Name<CapacityScope>{"auto", CapacityScope::kAuto},
                             Name<CapacityScope>{"global", CapacityScope::kGlobal},
                             Name<CapacityScope>{"rank", CapacityScope::kRank},
                             Name<CapacityScope>{"group", CapacityScope::kGroup}};
constexpr std::array kOrders{Name<OverflowOrder>{"position", OverflowOrder::kPosition},
                             Name<OverflowOrder>{"prob", OverflowOrder::kProb},
                             Name<OverflowOrder>{"random", OverflowOrder::kRandom}};
constexpr std::array kModes{Name<OverflowMode>{"auto", OverflowMode::kAuto},
                            Name<OverflowMode>{"sequential", OverflowMode::kSequential},
                            Name<OverflowMode>{"rounds", OverflowMode::kRounds}};
constexpr std::array kReroutes{Name<Reroute>{"next", Reroute::kNext},
                               Name<Reroute>{"none", Reroute::kNone}};
constexpr std::array kExhausted{Name<Exhausted>{"top1", Exhausted::kTop1},
                                Name<Exhausted>{"drop_token", Exhausted::kDropToken},
                                Name<Exhausted>{"queue", Exhausted::kQueue}};
constexpr std::array kQueues{Name<QueueMode>{"wave", QueueMode::kWave},
                             Name<QueueMode>{"defer", QueueMode::kDefer}};
constexpr std::array kDynamics{Name<DynamicCapacity>{"fixed", DynamicCapacity::kFixed},
                               Name<DynamicCapacity>{"phase", DynamicCapacity::kPhase},
                               Name<DynamicCapacity>{"log2", DynamicCapacity::kLog2}};
constexpr std::array kRenorms{Name<WeightRenorm>{"final", WeightRenorm::kFinal},
                              Name<WeightRenorm>{"none", WeightRenorm::kNone},
                              Name<WeightRenorm>{"first", WeightRenorm::kFirst}};

struct Place {
  std::string_view text;
  const std::string& where;
  const std::string& key;  // "policy.capacity.rule"
};

struct Accessor {
  std::string_view key;
  void (*set)(RoutingPolicy&, const Place&);
  std::string (*get)(const RoutingPolicy&);
};

constexpr std::array kFields{
    PolicyField{"capacity.rule",
                "none, share, batch_tokens, batch_seqs, absolute, mesh, flaxformer, deepspeed, "
                "megatron, tutel, megablocks, fastmoe_gshard, fastmoe_switch, fairseq_train, "
                "fairseq_eval"},
    PolicyField{"capacity.factor", "> 0 (tutel: any; megablocks: >= 0)"},
    PolicyField{"capacity.absolute", "whole number, with rule = absolute"},
    PolicyField{"capacity.min_capacity", "auto or a whole number"},
    PolicyField{"capacity.scope", "auto, global, rank, group"},
    PolicyField{"capacity.group_size", "whole number >= 1, with scope = group"},
    PolicyField{"capacity.alignment", "whole number >= 1"},
    PolicyField{"capacity.dynamic", "fixed, phase, log2"},
    PolicyField{"capacity.prefill_factor", "> 0, with dynamic = phase"},
    PolicyField{"capacity.decode_factor", "> 0, with dynamic = phase"},
    PolicyField{"capacity.order", "position, prob, random"},
    PolicyField{"capacity.mode", "auto, sequential, rounds"},
    PolicyField{"capacity.reroute", "next, none"},
    PolicyField{"capacity.exhausted", "top1, drop_token, queue"},
    PolicyField{"capacity.queue", "wave, defer"},
    PolicyField{"capacity.max_score_drop", "off or a number in [0, 1]"},
    PolicyField{"weights.renorm", "final, none, first"}};

template <auto Member>
void set_real(RoutingPolicy& p, const Place& s) {
  p.capacity.*Member = text_fields::parse_real(s.text, s.where, s.key);
}
template <auto Member>
void set_count(RoutingPolicy& p, const Place& s) {
  p.capacity.*Member = text_fields::parse_count(s.text, s.where, s.key);
}
template <auto Member>
std::string get_number(const RoutingPolicy& p) {
  return fmt::format("{}", p.capacity.*Member);
}
template <auto Member, const auto& Names>
void set_name(RoutingPolicy& p, const Place& s) {
  p.capacity.*Member = text_fields::parse_name(Names, s.text, s.where, s.key);
}
template <auto Member, const auto& Names>
std::string get_name(const RoutingPolicy& p) {
  return std::string(name_of(Names, p.capacity.*Member));
}

using C = CapacityPolicy;
/// Same order as kFields (checked when used).
constexpr std::array kAccessors{
    Accessor{"capacity.rule", set_name<&C::rule, kRules>, get_name<&C::rule, kRules>},
    Accessor{"capacity.factor", set_real<&C::factor>, get_number<&C::factor>},
    Accessor{"capacity.absolute", set_count<&C::absolute>, get_number<&C::absolute>},
    Accessor{"capacity.min_capacity",
             [](RoutingPolicy& p, const Place& s) {
               p.capacity.min_capacity.reset();
               if (s.text != "auto") {
                 p.capacity.min_capacity = text_fields::parse_count(s.text, s.where, s.key);
               }
             },
             [](const RoutingPolicy& p) {
               return p.capacity.min_capacity ? fmt::format("{}", *p.capacity.min_capacity)
                                              : std::string("auto");
             }},
    Accessor{"capacity.scope", set_name<&C::scope, kScopes>, get_name<&C::scope, kScopes>},
    Accessor{"capacity.group_size", set_count<&C::group_size>, get_number<&C::group_size>},
    Accessor{"capacity.alignment", set_count<&C::alignment>, get_number<&C::alignment>},
    Accessor{"capacity.dynamic", set_name<&C::dynamic, kDynamics>,
             get_name<&C::dynamic, kDynamics>},
    Accessor{"capacity.prefill_factor", set_real<&C::prefill_factor>,
             get_number<&C::prefill_factor>},
    Accessor{"capacity.decode_factor", set_real<&C::decode_factor>, get_number<&C::decode_factor>},
    Accessor{"capacity.order", set_name<&C::order, kOrders>, get_name<&C::order, kOrders>},
    Accessor{"capacity.mode", set_name<&C::mode, kModes>, get_name<&C::mode, kModes>},
    Accessor{"capacity.reroute", set_name<&C::reroute, kReroutes>,
             get_name<&C::reroute, kReroutes>},
    Accessor{"capacity.exhausted", set_name<&C::exhausted, kExhausted>,
             get_name<&C::exhausted, kExhausted>},
    Accessor{"capacity.queue", set_name<&C::queue, kQueues>, get_name<&C::queue, kQueues>},
    Accessor{"capacity.max_score_drop",
             [](RoutingPolicy& p, const Place& s) {
               p.capacity.max_score_drop.reset();
               if (s.text != "off") {
                 p.capacity.max_score_drop = text_fields::parse_real(s.text, s.where, s.key);
               }
             },
             [](const RoutingPolicy& p) {
               return p.capacity.max_score_drop ? fmt::format("{}", *p.capacity.max_score_drop)
                                                : std::string("off");
             }},
    Accessor{"weights.renorm",
             [](RoutingPolicy& p, const Place& s) {
               p.renorm = text_fields::parse_name(kRenorms, s.text, s.where, s.key);
             },
             [](const RoutingPolicy& p) { return std::string(name_of(kRenorms, p.renorm)); }}};
static_assert(kAccessors.size() == kFields.size());

const Accessor* find_accessor(std::string_view key) {
  const auto* it = std::find_if(kAccessors.begin(), kAccessors.end(),
                                [&](const Accessor& a) { return a.key == key; });
  return it == kAccessors.end() ? nullptr : it;
}

bool own_rule(CapacityRule rule) {
  return rule == CapacityRule::kShare || rule == CapacityRule::kBatchTokens ||
         rule == CapacityRule::kBatchSeqs;
}

bool uses_factor(const CapacityPolicy& c) {
  return c.rule != CapacityRule::kNone && c.rule != CapacityRule::kAbsolute &&
         c.rule != CapacityRule::kFairseqTrain && c.dynamic == DynamicCapacity::kFixed;
}

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

}  // namespace

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
  const auto fail = [&](std::string_view key, std::string_view rule, std::string hint = {}) {
    throw InputError(
        where,
        fmt::format("policy.{} = {}. Violated: {}", key, get_policy_field(policy, key), rule),
        std::move(hint));
  };
  const std::string rule(name_of(kRules, c.rule));
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
                             name_of(kDynamics, c.dynamic))
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
    fail("capacity.mode", fmt::format("mode = rounds with order = {}", name_of(kOrders, c.order)),
         "sequential takes tokens by position");
  }
  if (c.queue == QueueMode::kDefer) {
    if (c.exhausted != Exhausted::kQueue) {
      fail("capacity.queue", "queue = wave unless exhausted = queue");
    }
    if (resolved_scope(c) == CapacityScope::kGroup) {
      fail("capacity.queue", "queue = wave with scope = group",
           "a group of tokens has no next step");
    }
  }
  if (c.exhausted == Exhausted::kQueue && !no_rule) {
    if (c.rule == CapacityRule::kAbsolute) {
      if (c.absolute == 0) {
        fail("capacity.absolute", "absolute >= 1 with exhausted = queue");
      }
    } else if (resolved_min_capacity(c) == 0) {
      fail("capacity.min_capacity", "min_capacity >= 1 with exhausted = queue",
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
  if (c.rule == CapacityRule::kFairseqTrain && top_k != 2) {
    fail("capacity.rule", fmt::format("top_k = 2 (it is {})", top_k),
         "fairseq's rule is written for its top-2 gate");
  }
}

std::span<const PolicyField> policy_fields() { return kFields; }

void set_policy_field(RoutingPolicy& policy, std::string_view key, std::string_view value_text,
                      const std::string& where) {
  const std::string full = fmt::format("policy.{}", key);
  const Accessor* accessor = find_accessor(key);
  if (accessor == nullptr) {
    // Within a known table suggest the last part only, as the scenario reader does.
    const std::size_t dot = key.rfind('.');
    const std::string_view table = dot == std::string_view::npos ? "" : key.substr(0, dot + 1);
    std::vector<std::string> inside;
    std::vector<std::string> all;
    for (const PolicyField& f : kFields) {
      all.emplace_back(f.key);
      if (!table.empty() && f.key.starts_with(table)) {
        inside.emplace_back(f.key.substr(table.size()));
      }
    }
    throw InputError(
        where, fmt::format("{}: unknown key", full),
        inside.empty() ? suggest_name(key, all) : suggest_name(key.substr(table.size()), inside));
  }
  accessor->set(policy, Place{value_text, where, full});
}

std::string get_policy_field(const RoutingPolicy& policy, std::string_view key) {
  const Accessor* accessor = find_accessor(key);
  SWITCHYARD_ASSERT(accessor != nullptr, std::string(key));
  return accessor->get(policy);
}

std::string policy_to_text(const RoutingPolicy& policy) {
  std::string text;
  for (const PolicyField& f : kFields) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", f.key, get_policy_field(policy, f.key));
  }
  return text;
}

RoutingPolicy policy_from_text(std::string_view text, const std::string& where) {
  RoutingPolicy policy;
  for (const auto& [key, value] : text_fields::split(text, where)) {
    set_policy_field(policy, key, value, where);
  }
  return policy;
}

std::vector<std::string> explain_policy(const GateSpec& g, const RoutingPolicy& policy) {
  const CapacityPolicy& c = policy.capacity;
  std::vector<std::string> lines;
  lines.push_back(fmt::format(" 1 z = gate(x), E = {}; NaN and +inf count as -inf", g.experts));
  lines.emplace_back(g.score == GateScore::kSoftmax   ? " 7 p = softmax(z) over all E"
                     : g.score == GateScore::kSigmoid ? " 7 p = sigmoid(z)"
                                                      : " 7 p = z (identity)");
  if (g.score == GateScore::kSigmoid) {
    lines.emplace_back(" 8 sel = p + bias; weights never see the bias");
  }
  if (g.grouped()) {
    lines.push_back(fmt::format(
        " 9 sel = {} outside the best {} of {} groups by {}",
        g.group_mask == GroupMask::kZero ? "0" : "-inf", g.topk_group, g.n_group,
        g.group_score == GroupScore::kMax ? "their best sel" : "the sum of their two best sel"));
  }
  lines.push_back(fmt::format("10 S = first {} by sel; ties: lower expert id", g.top_k));
  if (c.rule == CapacityRule::kNone) {
    lines.emplace_back("11 capacity: no limit (rule = none)");
  } else {
    std::string limit =
        fmt::format("11 capacity: C = {} (rule = {}", formula(c), name_of(kRules, c.rule));
    if (resolved_min_capacity(c) > 0) {
      limit += fmt::format(", min {}", resolved_min_capacity(c));
    }
    if (c.alignment > 1) {
      limit += fmt::format(", multiple of {}", c.alignment);
    }
    limit += fmt::format("), scope {}", name_of(kScopes, resolved_scope(c)));
    if (resolved_scope(c) == CapacityScope::kGroup) {
      limit += fmt::format(" of <= {} tokens", c.group_size);
    }
    lines.push_back(limit);
    std::string overflow =
        fmt::format("11 overflow: {}, order {}; reroute {}", name_of(kModes, resolved_mode(c)),
                    name_of(kOrders, c.order), name_of(kReroutes, c.reroute));
    if (c.max_score_drop) {
      overflow += fmt::format(" if sel >= {} sel of the first choice", 1 - *c.max_score_drop);
    }
    overflow += fmt::format("; exhausted {}", name_of(kExhausted, c.exhausted));
    if (c.exhausted == Exhausted::kQueue) {
      overflow += fmt::format(" ({})", name_of(kQueues, c.queue));
    }
    lines.push_back(overflow);
  }
  std::string weights = "12 w = ";
  if (g.score == GateScore::kIdentity) {
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
