// SPDX-License-Identifier: Apache-2.0
// The keys of a policy file: their order, spelling, legal values, and how each is read and written.
// A mechanism that is added gets its lines in kFields, in pipeline order.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/routing/policy.hpp"
#include "engine/routing/policy_names.hpp"

namespace switchyard {
namespace {

namespace names = policy_names;

struct Place {
  std::string_view text;
  const std::string& where;
  const std::string& key;  // "policy.capacity.rule"
};

struct Field {
  std::string_view key;
  std::string_view legal;
  void (*set)(RoutingPolicy&, const Place&);
  std::string (*get)(const RoutingPolicy&);
  bool file = false;
  bool list = false;
};

/// The member `Member` of the part `Part` of a policy.
template <auto Part, auto Member>
auto& member(RoutingPolicy& p) {
  return p.*Part.*Member;
}
template <auto Part, auto Member>
const auto& member(const RoutingPolicy& p) {
  return p.*Part.*Member;
}

template <auto Part, auto Member>
constexpr Field real(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            member<Part, Member>(p) = text_fields::parse_real(s.text, s.where, s.key);
          },
          [](const RoutingPolicy& p) { return fmt::format("{}", member<Part, Member>(p)); }};
}
template <auto Part, auto Member>
constexpr Field count(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            member<Part, Member>(p) = text_fields::parse_count(s.text, s.where, s.key);
          },
          [](const RoutingPolicy& p) { return fmt::format("{}", member<Part, Member>(p)); }};
}
template <auto Part, auto Member, const auto& Names>
constexpr Field name(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            member<Part, Member>(p) = text_fields::parse_name(Names, s.text, s.where, s.key);
          },
          [](const RoutingPolicy& p) {
            return std::string(names::name_of(Names, member<Part, Member>(p)));
          }};
}
/// The name of a file without its folder; "off" is the empty name.
template <auto Part, auto Member>
constexpr Field file(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            std::string& out = member<Part, Member>(p);
            if (s.text == "off") {
              out.clear();
              return;
            }
            out = std::filesystem::path(s.text).filename().string();
            if (out.empty() || out == "off" ||
                std::any_of(out.begin(), out.end(), [](unsigned char c) { return c <= ' '; })) {
              throw InputError(s.where,
                               fmt::format("{} = \"{}\" is not the name of a file", s.key, s.text),
                               "without spaces");
            }
          },
          [](const RoutingPolicy& p) {
            const std::string& name = member<Part, Member>(p);
            return name.empty() ? std::string("off") : name;
          },
          true};
}
/// "any" or 16 hex digits.
template <auto Part, auto Member>
constexpr Field hash(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            const bool hex = s.text.size() == 16 &&
                             s.text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
            if (s.text != "any" && !hex) {
              throw InputError(
                  s.where, fmt::format("{} = \"{}\" is neither any nor 16 lower-case hex digits",
                                       s.key, s.text));
            }
            member<Part, Member>(p) = s.text;
          },
          [](const RoutingPolicy& p) { return member<Part, Member>(p); }};
}
/// An optional number; `Off` is the word for "unset".
template <auto Part, auto Member, const auto& Off>
constexpr Field maybe_real(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            member<Part, Member>(p).reset();
            if (s.text != Off) {
              member<Part, Member>(p) = text_fields::parse_real(s.text, s.where, s.key);
            }
          },
          [](const RoutingPolicy& p) {
            const auto& v = member<Part, Member>(p);
            return v ? fmt::format("{}", *v) : std::string(Off);
          }};
}

/// An optional whole number; "off" is unset.
template <auto Part, auto Member>
constexpr Field maybe_count(std::string_view key, std::string_view legal) {
  return {key, legal,
          [](RoutingPolicy& p, const Place& s) {
            member<Part, Member>(p).reset();
            if (s.text != "off") {
              member<Part, Member>(p) = text_fields::parse_count(s.text, s.where, s.key);
            }
          },
          [](const RoutingPolicy& p) {
            const auto& v = member<Part, Member>(p);
            return v ? fmt::format("{}", *v) : std::string("off");
          }};
}
void set_keywords(RoutingPolicy& p, const Place& s) {
  p.soft.keywords.clear();
  for (const std::string_view piece : text_fields::split_list(s.text == "off" ? "" : s.text)) {
    p.soft.keywords.push_back(text_fields::unescape(piece, s.where, s.key));
    if (piece.empty()) {
      throw InputError(s.where, fmt::format("{}: an empty keyword is in every prompt", s.key));
    }
  }
}
std::string get_keywords(const RoutingPolicy& p) {
  std::string out;
  for (const std::string& keyword : p.soft.keywords) {
    out += (out.empty() ? "" : "|") + text_fields::escape(keyword);
  }
  if (out == "off") {
    return "%6Fff";  // the keyword, not the absence of one
  }
  return out.empty() ? "off" : out;
}

void set_names(RoutingPolicy& p, const Place& s) {
  p.pinned.names.clear();
  for (const std::string_view piece : text_fields::split_list(s.text == "off" ? "" : s.text)) {
    const std::size_t colon = piece.find(':');
    if (colon == std::string_view::npos || colon == 0) {
      throw InputError(s.where, fmt::format("{}: \"{}\" is not name:expert", s.key, piece),
                       "e.g. names = [\"code:3\", \"poetry:5\"]");
    }
    std::string name = text_fields::unescape(piece.substr(0, colon), s.where, s.key);
    for (const auto& [known, expert] : p.pinned.names) {
      if (known == name) {
        throw InputError(s.where, fmt::format("{}: \"{}\" stands twice", s.key, name));
      }
    }
    p.pinned.names.emplace_back(std::move(name),
                                text_fields::parse_count(piece.substr(colon + 1), s.where, s.key));
  }
}
std::string get_names(const RoutingPolicy& p) {
  std::string out;
  for (const auto& [name, expert] : p.pinned.names) {
    out += fmt::format("{}{}:{}", out.empty() ? "" : "|", text_fields::escape(name), expert);
  }
  return out.empty() ? "off" : out;
}

constexpr std::string_view kOff = "off";
constexpr std::string_view kAuto = "auto";
using P = RoutingPolicy;
using C = CapacityPolicy;
using T = TemperaturePolicy;

constexpr std::array kFields{
    Field{
        "step_time", "seconds >= 0; 0: no clock",
        [](P& p, const Place& s) { p.step_time = text_fields::parse_real(s.text, s.where, s.key); },
        [](const P& p) { return fmt::format("{}", p.step_time); }},
    real<&P::condition, &ConditionPolicy::clamp>("condition.clamp", "number >= 0; 0: off"),
    name<&P::condition, &ConditionPolicy::layer_norm, names::kSwitch>("condition.layer_norm",
                                                                      "off, on"),
    file<&P::condition, &ConditionPolicy::adapter>("condition.adapter", "off or a file"),
    hash<&P::condition, &ConditionPolicy::adapter_hash>(
        "condition.adapter_hash", "any or 16 hex digits; with condition.adapter"),
    real<&P::noise, &NoisePolicy::jitter>("noise.jitter", "in [0, 1); 0: off"),
    name<&P::noise, &NoisePolicy::mode, names::kNoiseModes>("noise.mode", "off, fixed, adaptive"),
    real<&P::noise, &NoisePolicy::std>("noise.std", "> 0, with noise.mode"),
    name<&P::semantic, &SemanticPolicy::mode, names::kSemanticModes>("semantic.mode",
                                                                     "off, mlp, ema, identity"),
    name<&P::semantic, &SemanticPolicy::on, names::kSemanticInputs>("semantic.on", "logits, input"),
    file<&P::semantic, &SemanticPolicy::file>("semantic.file", "off or a file; with mode = mlp"),
    hash<&P::semantic, &SemanticPolicy::hash>("semantic.hash",
                                              "any or 16 hex digits; with semantic.file"),
    real<&P::semantic, &SemanticPolicy::alpha>("semantic.alpha", "> 0 and <= 1, with mode = ema"),
    name<&P::temperature, &T::place, names::kTemperaturePlaces>("temperature.place",
                                                                "off, before, after"),
    real<&P::temperature, &T::value>("temperature.value", "> 0, with temperature.place"),
    name<&P::temperature, &T::controller, names::kControllers>("temperature.controller",
                                                               "off, sequence, across"),
    count<&P::temperature, &T::run>("temperature.run", "whole number >= 2, with a controller"),
    real<&P::temperature, &T::raise>("temperature.raise", "> 0, with a controller"),
    real<&P::temperature, &T::hold>("temperature.hold", "seconds >= 0, with a controller"),
    name<&P::gumbel, &GumbelPolicy::mode, names::kGumbelModes>("gumbel.mode",
                                                               "off, tau_noise, tau_all"),
    real<&P::gumbel, &GumbelPolicy::tau>("gumbel.tau", "> 0, with gumbel.mode"),
    name<&P::load_aware, &LoadAwarePolicy::u, names::kLoadLevels>("load_aware.u",
                                                                  "off, total, elastic, queue"),
    maybe_real<&P::load_aware, &LoadAwarePolicy::lambda, kAuto>(
        "load_aware.lambda", "auto or a number >= 0, with load_aware.u"),
    Field{"score.rule", "family, linear",
          [](P& p, const Place& s) {
            p.score = text_fields::parse_name(names::kScoreRules, s.text, s.where, s.key);
          },
          [](const P& p) { return std::string(names::name_of(names::kScoreRules, p.score)); }},
    real<&P::bonus, &BonusPolicy::lambda>("bonus.lambda", "number >= 0; 0: off"),
    real<&P::window, &WindowPolicy::beta>("window.beta", "number >= 0; 0: off"),
    real<&P::window, &WindowPolicy::gamma>("window.gamma", "> 0 and <= 1, with window.beta"),
    name<&P::groups, &GroupPolicy::by, names::kGroupBys>("groups.by", "off, block, placement"),
    count<&P::groups, &GroupPolicy::count>("groups.count", "whole number, with groups.by = block"),
    name<&P::groups, &GroupPolicy::k_in_group, names::kGroupTakes>("groups.k_in_group", "k, all"),
    count<&P::soft, &SoftRoutingPolicy::experts>("soft.experts", "whole number; 0: off"),
    name<&P::soft, &SoftRoutingPolicy::renorm, names::kBools>("soft.renorm", "false, true"),
    name<&P::soft, &SoftRoutingPolicy::cost, names::kSoftCosts>("soft.cost", "gathered, stacked"),
    name<&P::soft, &SoftRoutingPolicy::all_requests, names::kSoftRequests>("soft.requests",
                                                                           "keyword, all"),
    Field{"soft.keywords", "off or [keyword|keyword|…] with soft.requests = keyword", set_keywords,
          get_keywords, false, true},
    file<&P::table, &TablePolicy::file>("table.file", "off or a file"),
    hash<&P::table, &TablePolicy::hash>("table.hash", "any or 16 hex digits; with table.file"),
    Field{"set.rule", "top_k, round_robin, batch",
          [](P& p, const Place& s) {
            p.set = text_fields::parse_name(names::kSetRules, s.text, s.where, s.key);
          },
          [](const P& p) { return std::string(names::name_of(names::kSetRules, p.set)); }},
    name<&P::pinned, &PinnedPolicy::requests, names::kPinnedRequests>("pinned.requests",
                                                                      "off, named, all"),
    maybe_count<&P::pinned, &PinnedPolicy::expert>("pinned.expert",
                                                   "[expert] with pinned.requests = all"),
    Field{"pinned.names", "off or [name:expert|…] with pinned.requests", set_names, get_names,
          false, true},
    name<&P::two_tier, &TwoTierPolicy::first, names::kFirstTiers>("two_tier.first",
                                                                  "off, int4, rank"),
    count<&P::two_tier, &TwoTierPolicy::rank>("two_tier.rank",
                                              "whole number, with two_tier.first = rank"),
    file<&P::two_tier, &TwoTierPolicy::scorer>("two_tier.scorer",
                                               "off or a file; with two_tier.first"),
    hash<&P::two_tier, &TwoTierPolicy::hash>("two_tier.hash",
                                             "any or 16 hex digits; with two_tier.scorer"),
    maybe_count<&P::soft_balance, &SoftBalancePolicy::limit>("soft_balance.limit",
                                                             "off or [whole number]"),
    count<&P::soft_balance, &SoftBalancePolicy::low_limit>(
        "soft_balance.low_limit", "whole number, with soft_balance.low_memory"),
    real<&P::soft_balance, &SoftBalancePolicy::low_memory>(
        "soft_balance.low_memory", "number in [0, 1]; 0: off, with soft_balance.limit"),
    real<&P::soft_balance, &SoftBalancePolicy::k3_memory>(
        "soft_balance.k3_memory", "number in [0, 1]; 0: off, with soft_balance.limit"),
    name<&P::soft_balance, &SoftBalancePolicy::k3, names::kThirdExperts>("soft_balance.k3",
                                                                         "activate, choose"),
    maybe_count<&P::soft_balance, &SoftBalancePolicy::batch_limit>(
        "soft_balance.batch_limit", "off or [whole number] with soft_balance.limit"),
    maybe_real<&P::decode_rebalance, &DecodeRebalancePolicy::level, kOff>("decode_rebalance.level",
                                                                          "off or > 0 and <= 1"),
    count<&P::decode_rebalance, &DecodeRebalancePolicy::period>(
        "decode_rebalance.period", "whole number >= 1, with decode_rebalance.level"),
    count<&P::decode_rebalance, &DecodeRebalancePolicy::credits>(
        "decode_rebalance.credits", "whole number >= 1, with decode_rebalance.level"),
    name<&P::decode_rebalance, &DecodeRebalancePolicy::target, names::kRebalanceTargets>(
        "decode_rebalance.target", "least_loaded, third"),
    maybe_real<&P::decode_rebalance, &DecodeRebalancePolicy::max_score_drop, kOff>(
        "decode_rebalance.max_score_drop",
        "off or a number in [0, 1], with decode_rebalance.level"),
    name<&P::capacity, &C::rule, names::kRules>(
        "capacity.rule",
        "none, share, batch_tokens, batch_seqs, absolute, mesh, flaxformer, deepspeed, "
        "megatron, tutel, megablocks, fastmoe_gshard, fastmoe_switch, fairseq_train, "
        "fairseq_eval"),
    real<&P::capacity, &C::factor>("capacity.factor", "> 0 (tutel: any; megablocks: >= 0)"),
    count<&P::capacity, &C::absolute>("capacity.absolute", "whole number, with rule = absolute"),
    Field{"capacity.min_capacity", "auto or a whole number",
          [](P& p, const Place& s) {
            p.capacity.min_capacity.reset();
            if (s.text != kAuto) {
              p.capacity.min_capacity = text_fields::parse_count(s.text, s.where, s.key);
            }
          },
          [](const P& p) {
            return p.capacity.min_capacity ? fmt::format("{}", *p.capacity.min_capacity)
                                           : std::string(kAuto);
          }},
    name<&P::capacity, &C::scope, names::kScopes>("capacity.scope", "auto, global, rank, group"),
    count<&P::capacity, &C::group_size>("capacity.group_size",
                                        "whole number >= 1, with scope = group"),
    count<&P::capacity, &C::alignment>("capacity.alignment", "whole number >= 1"),
    name<&P::capacity, &C::dynamic, names::kDynamics>("capacity.dynamic", "fixed, phase, log2"),
    real<&P::capacity, &C::prefill_factor>("capacity.prefill_factor", "> 0, with dynamic = phase"),
    real<&P::capacity, &C::decode_factor>("capacity.decode_factor", "> 0, with dynamic = phase"),
    name<&P::capacity, &C::order, names::kOrders>("capacity.order", "position, prob, random"),
    name<&P::capacity, &C::mode, names::kModes>("capacity.mode", "auto, sequential, rounds"),
    name<&P::capacity, &C::reroute, names::kReroutes>("capacity.reroute", "next, none"),
    name<&P::capacity, &C::exhausted, names::kExhausted>("capacity.exhausted",
                                                         "top1, drop_token, queue"),
    name<&P::capacity, &C::queue, names::kQueues>("capacity.queue", "wave, defer"),
    maybe_real<&P::capacity, &C::max_score_drop, kOff>("capacity.max_score_drop",
                                                       "off or a number in [0, 1]"),
    Field{"weights.renorm", "final, none, first",
          [](P& p, const Place& s) {
            p.renorm = text_fields::parse_name(names::kRenorms, s.text, s.where, s.key);
          },
          [](const P& p) { return std::string(names::name_of(names::kRenorms, p.renorm)); }}};

constexpr auto kPublicFields = [] {
  std::array<PolicyField, kFields.size()> out{};
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    out[i] = {kFields[i].key, kFields[i].legal, kFields[i].file, kFields[i].list};
  }
  return out;
}();

const Field* find_field(std::string_view key) {
  const auto* it =
      std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.key == key; });
  return it == kFields.end() ? nullptr : it;
}

}  // namespace

std::span<const PolicyField> policy_fields() { return kPublicFields; }

void set_policy_field(RoutingPolicy& policy, std::string_view key, std::string_view value_text,
                      const std::string& where) {
  const std::string full = fmt::format("policy.{}", key);
  const Field* field = find_field(key);
  if (field == nullptr) {
    // Within a known table suggest the last part only, as the scenario reader does.
    const std::size_t dot = key.rfind('.');
    const std::string_view table = dot == std::string_view::npos ? "" : key.substr(0, dot + 1);
    std::vector<std::string> inside;
    std::vector<std::string> all;
    for (const Field& f : kFields) {
      all.emplace_back(f.key);
      if (!table.empty() && f.key.starts_with(table)) {
        inside.emplace_back(f.key.substr(table.size()));
      }
    }
    throw InputError(
        where, fmt::format("{}: unknown key", full),
        inside.empty() ? suggest_name(key, all) : suggest_name(key.substr(table.size()), inside));
  }
  field->set(policy, Place{value_text, where, full});
}

std::string get_policy_field(const RoutingPolicy& policy, std::string_view key) {
  const Field* field = find_field(key);
  SWITCHYARD_ASSERT(field != nullptr, std::string(key));
  return field->get(policy);
}

std::string policy_word(std::string_view text) { return text_fields::escape(text); }

std::string policy_to_text(const RoutingPolicy& policy) {
  static const RoutingPolicy kDefault;
  std::string text;
  for (const Field& f : kFields) {
    const std::string value = f.get(policy);
    const bool always = f.key.starts_with("capacity.") || f.key.starts_with("weights.");
    if (always || value != f.get(kDefault)) {
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", f.key, value);
    }
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

}  // namespace switchyard
