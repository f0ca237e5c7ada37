// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard {

void validate(const SamplingOptions& options, const std::string& where) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    throw InputError(where, fmt::format("temperature = {}. Violated: 0 <= temperature < inf",
                                        options.temperature));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw InputError(where, fmt::format("top_p = {}. Violated: 0 < top_p <= 1", options.top_p));
  }
}

std::uint32_t sample(std::span<const float> logits, const SamplingOptions& options,
                     std::uint32_t sequence, std::uint32_t position) {
  std::uint32_t best = 0;
  float top = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > top) {  // false for NaN
      top = logits[i];
      best = static_cast<std::uint32_t>(i);
    }
  }
  if (options.temperature == 0 || !std::isfinite(top)) {
    return best;
  }
  std::vector<double> p(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    p[i] = std::isnan(logits[i])
               ? 0.0
               : std::exp((static_cast<double>(logits[i]) - top) / options.temperature);
    sum += p[i];
  }
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return p[a] > p[b]; });
  if (options.top_k > 0 && options.top_k < order.size()) {
    order.resize(options.top_k);
    sum = 0;
    for (const std::uint32_t i : order) {
      sum += p[i];
    }
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p * sum)) {
    kept += p[order[count++]];
  }
  const double u =
      kept * random_uniform(options.seed, random_purpose("sample"), {sequence, 0, position, 0});
  double seen = 0;
  for (std::size_t i = 0; i < count; ++i) {
    seen += p[order[i]];
    if (u < seen) {
      return order[i];
    }
  }
  return order[count - 1];
}

}  // namespace switchyard
