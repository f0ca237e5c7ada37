// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/cohesion.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard {
namespace {

constexpr std::uint64_t kMostPairs = 2000;

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

/// All pairs: (|sum of u|^2 - sum of |u|^2) / (n (n - 1)).
double all_pairs(const std::vector<std::uint64_t>& members, std::span<const float> units,
                 std::size_t width) {
  std::vector<double> sum(width, 0.0);
  double own = 0;
  for (const std::uint64_t i : members) {
    for (std::size_t c = 0; c < width; ++c) {
      const double v = units[i * width + c];
      sum[c] += v;
      own += v * v;
    }
  }
  double all = 0;
  for (const double v : sum) all += v * v;
  const auto n = static_cast<double>(members.size());
  return (all - own) / (n * (n - 1));
}

std::optional<double> mean_cosine(const std::vector<std::uint64_t>& members,
                                  std::span<const float> units, std::size_t width,
                                  std::uint64_t seed, std::uint32_t purpose, std::uint32_t draw,
                                  std::uint32_t expert) {
  const std::uint64_t n = members.size();
  if (n < 2) return std::nullopt;
  double mean = 0;
  if (n * (n - 1) / 2 <= kMostPairs) {
    mean = all_pairs(members, units, width);
  } else {
    for (std::uint32_t i = 0; i < kMostPairs; ++i) {
      const std::uint64_t a = random_u64(seed, purpose, {0, draw, i, expert}) % n;
      const std::uint64_t b = random_u64(seed, purpose, {1, draw, i, expert}) % (n - 1);
      const float* x = units.data() + members[a] * width;
      const float* y = units.data() + members[b < a ? b : b + 1] * width;
      for (std::size_t c = 0; c < width; ++c) mean += double{x[c]} * double{y[c]};
    }
    mean /= static_cast<double>(kMostPairs);
  }
  return std::clamp(mean, -1.0, 1.0);  // Units are of length 1 to a float's rounding.
}

}  // namespace

bool has_token_vectors(const RoutingTrace& trace) {
  return trace.header.layer_count() > 0 &&
         (!trace.routing.router_input.empty() || !trace.last_input.values.empty());
}

std::span<const std::uint16_t> TokenVectors::input(std::uint64_t row) const {
  const std::size_t width = mean_.size();
  if (!trace_.last_input.values.empty()) {
    return std::span(trace_.last_input.values).subspan(row * width, width);
  }
  const std::uint64_t cell = trace_.layer_at(row, trace_.header.layer_count() - 1);
  return std::span(trace_.routing.router_input).subspan(cell * width, width);
}

TokenVectors::TokenVectors(const RoutingTrace& trace) : trace_(trace) {
  SWITCHYARD_ASSERT(has_token_vectors(trace), "no router input");
  mean_.assign(trace.last_input.values.empty() ? trace.header.hidden : trace.last_input.width, 0.0);
  std::uint64_t rows = 0;
  for (std::uint64_t r = 0; r < trace.rows(); ++r) {
    if (trace.tokens.phase[r] == static_cast<std::uint8_t>(Phase::kWarmUp)) continue;
    const auto values = input(r);
    for (std::size_t c = 0; c < mean_.size(); ++c) mean_[c] += from_bfloat16(values[c]);
    ++rows;
  }
  for (double& m : mean_) m /= static_cast<double>(std::max<std::uint64_t>(rows, 1));
}

void TokenVectors::append_unit(std::uint64_t row, std::vector<float>& out) const {
  const auto values = input(row);
  double squares = 0;
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    const double v = from_bfloat16(values[c]) - mean_[c];
    squares += v * v;
  }
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    out.push_back(static_cast<float>((from_bfloat16(values[c]) - mean_[c]) * scale));
  }
}

ExpertCohesion expert_cohesion(std::span<const float> units, std::size_t width,
                               std::span<const std::vector<std::uint64_t>> members,
                               std::uint64_t seed, std::uint32_t draw) {
  const std::size_t tokens = width == 0 ? 0 : units.size() / width;
  ExpertCohesion out;
  double sum = 0, base = 0;
  std::uint64_t counted = 0;
  for (std::uint32_t e = 0; e < members.size(); ++e) {
    out.experts.push_back(
        mean_cosine(members[e], units, width, seed, random_purpose("cohesion"), draw, e));
    if (!out.experts.back()) continue;
    // As many tokens, drawn without replacement.
    std::vector<std::uint64_t> any(tokens);
    std::iota(any.begin(), any.end(), 0U);
    const std::size_t n = std::min(any.size(), members[e].size());
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t pick = random_u64(seed, random_purpose("cohesion baseline"),
                                            {0, draw, static_cast<std::uint32_t>(i), e}) %
                                 (any.size() - i);
      std::swap(any[i], any[i + pick]);
    }
    any.resize(n);
    sum += *out.experts.back();
    base += mean_cosine(any, units, width, seed, random_purpose("cohesion pairs"), draw, e)
                .value_or(0);
    ++counted;
  }
  if (counted > 0) {
    out.mean = sum / static_cast<double>(counted);
    out.baseline = base / static_cast<double>(counted);
  }
  return out;
}

}  // namespace switchyard
