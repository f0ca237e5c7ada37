// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/condition.hpp"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard {

void layer_norm_rows(std::span<float> x, std::size_t width) {
  constexpr double kEps = 1e-5;
  for (std::size_t at = 0; at < x.size(); at += width) {
    const std::span<float> row = x.subspan(at, width);
    double sum = 0;
    for (const float v : row) {
      sum += v;
    }
    const double mean = sum / static_cast<double>(width);
    double squares = 0;
    for (const float v : row) {
      squares += (v - mean) * (v - mean);
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + kEps);
    for (float& v : row) {
      v = static_cast<float>((v - mean) * scale);
    }
  }
}

void jitter_rows(std::span<float> x, std::size_t width, double eps, const StepContext& step) {
  static constexpr std::uint32_t kPurpose = random_purpose("jitter");
  SWITCHYARD_ASSERT(
      x.size() == step.sequence.size() * width && step.position.size() == step.sequence.size(),
      fmt::format("{} values, {} rows of {}", x.size(), step.sequence.size(), width));
  for (std::size_t t = 0; t < step.sequence.size(); ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      const double u = random_uniform(
          step.seed, kPurpose,
          {step.sequence[t], step.layer, step.position[t], static_cast<std::uint32_t>(i)});
      float& v = x[t * width + i];
      v = static_cast<float>(v * (1.0 - eps + 2.0 * eps * u));
    }
  }
}

}  // namespace switchyard
