// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/routing/selection.hpp"

namespace switchyard {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
}  // namespace

float log_sum_exp(std::span<const float> logits) {
  float top = kMinusInf;
  for (const float z : logits) {
    top = std::max(top, z);
  }
  if (top == kMinusInf) {
    return kMinusInf;
  }
  double sum = 0;
  for (const float z : logits) {
    if (z != kMinusInf) {
      sum += std::exp(static_cast<double>(z) - static_cast<double>(top));
    }
  }
  return static_cast<float>(static_cast<double>(top) + std::log(sum));
}

void rank_row(std::span<const float> value, std::uint32_t width,
              std::vector<std::uint16_t>& order) {
  const auto better = [&](std::uint16_t a, std::uint16_t b) {
    return value[a] != value[b] ? value[a] > value[b] : a < b;
  };
  if (std::size_t{width} * 4 > value.size()) {
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    std::sort(order.begin(), order.end(), better);
    return;
  }
  // Few of many: insertion into a sorted prefix. Ids come in ascending order, so a tie never moves
  // in front of an earlier id.
  std::size_t have = 0;
  for (std::size_t e = 0; e < value.size(); ++e) {
    if (have == width && value[e] <= value[order[have - 1]]) {
      continue;
    }
    std::size_t at = have < width ? have++ : have - 1;
    while (at > 0 && value[e] > value[order[at - 1]]) {
      order[at] = order[at - 1];
      --at;
    }
    order[at] = static_cast<std::uint16_t>(e);
  }
}

void keep_groups(const GateSpec& gate, std::span<const float> selection, std::span<float> score,
                 std::span<std::uint8_t> kept) {
  const std::uint32_t size = gate.experts / gate.n_group;
  for (std::uint32_t g = 0; g < gate.n_group; ++g) {
    float best = kMinusInf;
    float second = kMinusInf;
    for (std::uint32_t e = g * size; e < (g + 1) * size; ++e) {
      const float s = selection[e];
      if (s > best) {
        second = best;
        best = s;
      } else if (s > second) {
        second = s;
      }
    }
    score[g] = gate.group_score == GroupScore::kMax || size == 1 ? best : best + second;
    kept[g] = 0;
  }
  for (std::uint32_t n = 0; n < gate.topk_group; ++n) {
    std::uint32_t pick = gate.n_group;
    for (std::uint32_t g = 0; g < gate.n_group; ++g) {
      if (kept[g] == 0 && (pick == gate.n_group || score[g] > score[pick])) {
        pick = g;
      }
    }
    kept[pick] = 1;
  }
}

void Candidates::resize(std::uint32_t token_count, std::uint32_t candidate_count) {
  tokens = token_count;
  width = candidate_count;
  const std::uint64_t n = row_offset(token_count, candidate_count);
  ids.resize(n);
  logit.resize(n);
  lse.resize(token_count);
  nan_rows = 0;
}

std::uint32_t stored_candidates(std::uint32_t experts, std::uint32_t top_k) {
  return experts <= 64 ? experts : std::min(experts, top_k + 2);
}

void rank_candidates(const GateSpec& gate, std::span<const float> logits,
                     std::span<const float> bias, std::uint32_t width, RankWorkspace& w,
                     Candidates& out) {
  const std::uint32_t experts = gate.experts;
  SWITCHYARD_ASSERT(
      experts > 0 && gate.n_group > 0 && gate.n_group <= experts && logits.size() % experts == 0 &&
          width >= gate.top_k && width <= experts && (bias.empty() || bias.size() == experts),
      fmt::format("E {} logits {} M {} bias {}", experts, logits.size(), width, bias.size()));
  const auto tokens = static_cast<std::uint32_t>(logits.size() / experts);
  out.resize(tokens, width);
  w.value.resize(experts);
  w.selection.resize(experts);
  w.order.resize(experts);
  w.group_score.resize(gate.n_group);
  w.group_kept.resize(gate.n_group);
  // The score grows with the logit, so without a bias the logits rank the experts. V2's mask value
  // 0.0 can tie with an underflowed probability and needs the scores.
  const bool by_score = !bias.empty() || (gate.grouped() && gate.group_mask == GroupMask::kZero);
  const bool need_score = by_score || gate.grouped();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const std::span<const float> row = logits.subspan(row_offset(t, experts), experts);
    bool bad = false;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const bool broken = std::isnan(row[e]) || row[e] == std::numeric_limits<float>::infinity();
      bad = bad || broken;
      w.value[e] = broken ? kMinusInf : row[e];
    }
    out.nan_rows += bad ? 1 : 0;
    const float lse = log_sum_exp(w.value);
    out.lse[t] = lse;
    if (need_score) {
      for (std::uint32_t e = 0; e < experts; ++e) {
        const float z = w.value[e];
        float s = kMinusInf;
        if (z != kMinusInf) {
          s = gate.score == GateScore::kIdentity ? z : gate_probability(gate, z, lse);
          s = bias.empty() ? s : s + bias[e];
          s = std::isnan(s) ? kMinusInf : s;
        }
        w.selection[e] = s;
      }
      if (gate.grouped()) {
        keep_groups(gate, w.selection, w.group_score, w.group_kept);
      }
      const std::uint32_t size = experts / gate.n_group;
      for (std::uint32_t e = 0; e < experts; ++e) {
        if (by_score) {
          w.value[e] = w.selection[e];
        }
        if (gate.grouped() && w.group_kept[e / size] == 0) {
          const bool zero = gate.group_mask == GroupMask::kZero && w.selection[e] != kMinusInf;
          w.value[e] = zero ? 0.0F : kMinusInf;
        }
      }
    }
    rank_row(w.value, width, w.order);
    const std::uint64_t base = row_offset(t, width);
    for (std::uint32_t r = 0; r < width; ++r) {
      const std::uint16_t e = w.order[r];
      const float z = row[e];
      const bool broken = std::isnan(z) || z == std::numeric_limits<float>::infinity();
      out.ids[base + r] = e;
      out.logit[base + r] = broken ? kMinusInf : z;
    }
  }
}

}  // namespace switchyard
