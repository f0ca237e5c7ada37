// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/policy_weights.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "engine/base/error.hpp"

namespace switchyard {

double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2)); }

void semantic_gate(const SemanticWeights& w, std::span<const double> x,
                   std::vector<double>& scratch, std::span<double> out) {
  SWITCHYARD_ASSERT(
      x.size() == w.inputs && out.size() == w.outputs,
      fmt::format("{} of {} inputs, {} of {} outputs", x.size(), w.inputs, out.size(), w.outputs));
  scratch.resize(w.hidden);
  for (std::size_t d = 0; d < w.hidden; ++d) {
    double sum = w.b1[d];
    for (std::size_t i = 0; i < w.inputs; ++i) {
      sum += double{w.w1[d * w.inputs + i]} * x[i];
    }
    scratch[d] = gelu(sum);
  }
  for (std::size_t e = 0; e < w.outputs; ++e) {
    double sum = w.b2[e];
    for (std::size_t d = 0; d < w.hidden; ++d) {
      sum += double{w.w2[e * w.hidden + d]} * scratch[d];
    }
    out[e] = sum;
  }
}

}  // namespace switchyard
