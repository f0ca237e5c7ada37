// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/routing/text_fields.hpp"

namespace switchyard {
namespace {

using text_fields::Name;
constexpr std::array kScores{Name<GateScore>{"softmax", GateScore::kSoftmax},
                             Name<GateScore>{"sigmoid", GateScore::kSigmoid},
                             Name<GateScore>{"identity", GateScore::kIdentity}};
constexpr std::array kGroupScores{Name<GroupScore>{"max", GroupScore::kMax},
                                  Name<GroupScore>{"sum_top2", GroupScore::kSumTop2}};
constexpr std::array kGroupMasks{Name<GroupMask>{"-inf", GroupMask::kMinusInfinity},
                                 Name<GroupMask>{"zero", GroupMask::kZero}};

GateSpec base_gate(std::uint32_t experts, std::uint32_t top_k) {
  GateSpec g;
  g.experts = experts;
  g.top_k = top_k;
  return g;
}

}  // namespace

GateSpec gate_mixtral(std::uint32_t experts, std::uint32_t top_k) {
  GateSpec g = base_gate(experts, top_k);
  g.renorm = true;
  return g;
}

GateSpec gate_qwen(std::uint32_t experts, std::uint32_t top_k, bool norm_topk_prob) {
  GateSpec g = base_gate(experts, top_k);
  g.renorm = norm_topk_prob;
  return g;
}

GateSpec gate_deepseek_v2(std::uint32_t experts, std::uint32_t top_k, std::uint32_t n_group,
                          std::uint32_t topk_group, float scale, bool norm_topk_prob) {
  GateSpec g = base_gate(experts, top_k);
  g.renorm = norm_topk_prob;
  g.eps = 1e-20F;
  g.scale = scale;
  g.exclusive_scale = true;
  g.n_group = n_group;
  g.topk_group = topk_group;
  g.group_score = GroupScore::kMax;
  g.group_mask = GroupMask::kZero;
  return g;
}

GateSpec gate_deepseek_v3(std::uint32_t experts, std::uint32_t top_k, std::uint32_t n_group,
                          std::uint32_t topk_group, float scale) {
  GateSpec g = base_gate(experts, top_k);
  g.score = GateScore::kSigmoid;
  g.renorm = true;
  g.eps = 1e-20F;
  g.scale = scale;
  g.n_group = n_group;
  g.topk_group = topk_group;
  g.group_score = GroupScore::kSumTop2;
  return g;
}

GateSpec gate_gpt_oss(std::uint32_t experts, std::uint32_t top_k) {
  GateSpec g = base_gate(experts, top_k);
  g.score = GateScore::kIdentity;
  return g;
}

void validate(const GateSpec& g, const std::string& where) {
  const auto fail = [&](std::string_view key, std::string value, std::string_view rule) {
    throw InputError(where, fmt::format("gate.{} = {}. Violated: {}", key, value, rule));
  };
  const auto show = [](auto v) { return fmt::format("{}", v); };
  if (g.experts < 1 || g.experts >= kNoExpert) {
    fail("experts", show(g.experts), "1 <= experts <= 65534");
  }
  if (g.n_group < 1 || g.experts % g.n_group != 0) {
    fail("n_group", show(g.n_group), fmt::format("n_group divides experts = {}", g.experts));
  }
  if (g.topk_group < 1 || g.topk_group > g.n_group) {
    fail("topk_group", show(g.topk_group),
         fmt::format("1 <= topk_group <= n_group = {}", g.n_group));
  }
  const std::uint32_t open = g.topk_group * (g.experts / g.n_group);
  if (g.top_k < 1 || g.top_k > std::min(open, 255U)) {
    fail("top_k", show(g.top_k),
         g.grouped() ? fmt::format("1 <= top_k <= {} experts of the {} kept groups",
                                   std::min(open, 255U), g.topk_group)
                     : fmt::format("1 <= top_k <= min(255, experts = {})", g.experts));
  }
  if (!std::isfinite(g.eps) || g.eps < 0) {
    fail("eps", show(g.eps), "finite and >= 0");
  }
  if (!std::isfinite(g.scale) || g.scale <= 0) {
    fail("scale", show(g.scale), "finite and > 0");
  }
}

std::string gate_to_text(const GateSpec& g) {
  return fmt::format(
      "experts={} top_k={} score={} renorm={} eps={} scale={} exclusive_scale={} n_group={} "
      "topk_group={} group_score={} group_mask={}",
      g.experts, g.top_k, text_fields::name_of(kScores, g.score), g.renorm, g.eps, g.scale,
      g.exclusive_scale, g.n_group, g.topk_group, text_fields::name_of(kGroupScores, g.group_score),
      text_fields::name_of(kGroupMasks, g.group_mask));
}

GateSpec gate_from_text(std::string_view text, const std::string& where) {
  const std::vector<std::string> keys{"experts",     "top_k",      "score",          "renorm",
                                      "eps",         "scale",      "n_group",        "topk_group",
                                      "group_score", "group_mask", "exclusive_scale"};
  GateSpec g;
  for (const auto& field : text_fields::split(text, where)) {
    const std::string_view key = field.first;
    const std::string_view value = field.second;
    const std::string name = fmt::format("gate.{}", key);
    const auto real = [&] {
      float v = 0;
      const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), v);
      if (ec != std::errc{} || end != value.data() + value.size()) {
        throw InputError(where, fmt::format("{} = \"{}\" is not a number", name, value));
      }
      return v;
    };
    if (key == "experts") {
      g.experts = text_fields::parse_count(value, where, name);
    } else if (key == "top_k") {
      g.top_k = text_fields::parse_count(value, where, name);
    } else if (key == "score") {
      g.score = text_fields::parse_name(kScores, value, where, name);
    } else if (key == "renorm") {
      g.renorm = text_fields::parse_bool(value, where, name);
    } else if (key == "eps") {
      g.eps = real();
    } else if (key == "scale") {
      g.scale = real();
    } else if (key == "exclusive_scale") {
      g.exclusive_scale = text_fields::parse_bool(value, where, name);
    } else if (key == "n_group") {
      g.n_group = text_fields::parse_count(value, where, name);
    } else if (key == "topk_group") {
      g.topk_group = text_fields::parse_count(value, where, name);
    } else if (key == "group_score") {
      g.group_score = text_fields::parse_name(kGroupScores, value, where, name);
    } else if (key == "group_mask") {
      g.group_mask = text_fields::parse_name(kGroupMasks, value, where, name);
    } else {
      throw InputError(where, fmt::format("{}: unknown key", name), suggest_name(key, keys));
    }
  }
  validate(g, where);
  return g;
}

float gate_probability(const GateSpec& gate, float logit, float lse) {
  if (logit == -std::numeric_limits<float>::infinity()) {
    return 0.0F;
  }
  const double z = logit;
  if (gate.score == GateScore::kSigmoid) {
    return static_cast<float>(1.0 / (1.0 + std::exp(-z)));
  }
  // lse was rounded to float, so exp(z - lse) may exceed 1 by a rounding.
  return static_cast<float>(std::min(1.0, std::exp(z - static_cast<double>(lse))));
}

}  // namespace switchyard
