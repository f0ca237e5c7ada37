// SPDX-License-Identifier: Apache-2.0
#include "sim/health/exchange_share.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace switchyard::health {
namespace {

/// Share that is gone when the fullest GPU has the mean load.
double gone(double unevenness) { return unevenness > 1 ? 1 - 1 / unevenness : 0; }

double visible(const run::StepScalars& s) {
  return static_cast<double>(s.phase_ps[static_cast<std::size_t>(run::Phase::kDispatch)] +
                             s.phase_ps[static_cast<std::size_t>(run::Phase::kCombine)]);
}

}  // namespace

ExchangeShare exchange_share(const run::RunData& run) {
  ExchangeShare out;
  const run::LayerSteps& x = run.layer_steps;
  const std::size_t layers = run.inventory.moe_layers.size();
  const bool by_layer = !x.dispatch_ps.empty();
  if (!by_layer) out.took = out.floor = run::kNoData;
  std::vector<double> weight(layers, 0), sum(layers, 0);
  for (std::size_t s = 0; s < run.steps.size(); ++s) {
    const run::StepScalars& step = run.steps[s];
    if (step.warmup) continue;
    double gain = 0;
    if (!by_layer) {
      gain = visible(step) * gone(step.imbalance_max);
    }
    for (std::size_t l = 0; by_layer && l < layers; ++l) {
      const std::size_t i = s * layers + l;
      const auto took = static_cast<double>(x.dispatch_ps[i] + x.combine_ps[i]);
      const auto floor = static_cast<double>(x.dispatch_floor_ps[i] + x.combine_floor_ps[i]);
      const double u = x.imbalance[i];
      out.took += took;
      out.floor += floor;
      gain += floor * gone(u);
      if (!std::isnan(u)) {
        weight[l] += took;
        sum[l] += took * u;
      }
    }
    out.even_gain += std::min(gain, visible(step));
  }
  double all = 0, weighted = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    if (weight[l] <= 0) continue;
    all += weight[l];
    weighted += sum[l];
    const double mean = sum[l] / weight[l];
    if (out.most_uneven == run::kNone || mean > out.unevenness_max) {
      out.unevenness_max = mean;
      out.most_uneven = static_cast<std::uint32_t>(l);
    }
  }
  if (all > 0) out.unevenness = weighted / all;
  return out;
}

}  // namespace switchyard::health
