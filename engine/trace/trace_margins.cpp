// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_margins.hpp"

#include <algorithm>
#include <cmath>

#include "engine/trace/trace_parts.hpp"

namespace switchyard {
namespace {

LayerMargins summary(std::uint32_t layer, std::vector<float> margins) {
  LayerMargins out;
  out.layer = layer;
  out.rows = margins.size();
  if (margins.empty()) {
    return out;
  }
  std::sort(margins.begin(), margins.end());
  out.near_ties = static_cast<std::uint64_t>(
      std::lower_bound(margins.begin(), margins.end(), kNearTie) - margins.begin());
  const auto rank = [&](double share) {
    const auto n = static_cast<double>(margins.size());
    return margins[static_cast<std::size_t>(std::max(1.0, std::ceil(share * n))) - 1];
  };
  out.least = margins.front();
  out.p1 = rank(0.01);
  out.p50 = rank(0.5);
  return out;
}

}  // namespace

std::vector<LayerMargins> trace_margins(const RoutingTrace& trace) {
  const TraceHeader& h = trace.header;
  const std::uint32_t k = h.top_k();
  std::vector<LayerMargins> out;
  std::vector<std::vector<float>> margins(h.layer_count());
  for_each_part(trace, [&](const TracePart& part) {
    for (std::uint64_t row = part.first; row < part.end && k < h.candidates; ++row) {
      if (trace.tokens.phase[row] == static_cast<std::uint8_t>(Phase::kWarmUp)) {
        continue;
      }
      for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
        const auto bias = trace.bias_of(l);
        const auto value = [&](std::uint32_t m) {
          const std::uint64_t at = part.candidate_at(row, l, m);
          const std::uint16_t e = part.routing->candidates[at];
          if (e == kNoExpert) {
            return -INFINITY;
          }
          const float z = part.routing->logit[at];
          return bias.empty()
                     ? z
                     : gate_probability(h.gate, z, part.routing->lse[part.layer_at(row, l)]) +
                           bias[e];
        };
        const float margin = value(k - 1) - value(k);
        if (std::isfinite(margin) && margin >= 0) {
          margins[l].push_back(margin);
        }
      }
    }
  });
  std::vector<float> all;
  for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
    all.insert(all.end(), margins[l].begin(), margins[l].end());
    out.push_back(summary(h.layers[l], std::move(margins[l])));
  }
  out.push_back(summary(0, std::move(all)));
  return out;
}

}  // namespace switchyard
