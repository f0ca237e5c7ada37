// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/synthetic_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::sim {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the i-th number of the stream that `key`
/// begins. One Philox draw gives the key.
std::uint64_t nth(std::uint64_t key, std::uint64_t i) {
  std::uint64_t z = key + (i + 1) * kGolden;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EB;
  return z ^ (z >> 31U);
}
/// [0, 1)
double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11U) * 0x1.0p-53; }
/// ln of a standard exponential variable; finite.
double log_exponential(std::uint64_t bits) {
  return std::log(-std::log((static_cast<double>(bits >> 11U) + 0.5) * 0x1.0p-53));
}
double log_add(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return low == kMinusInf ? high : high + std::log1p(std::exp(low - high));
}
// Streams of one draw.
constexpr std::uint64_t kClock = std::uint64_t{1} << 32U, kGap = std::uint64_t{1} << 33U;

/// ln of a Gamma(alpha, 1) variable: Marsaglia and Tsang, "A simple method for generating gamma
/// variables", TOMS 26 (2000), for alpha + 1, times U^(1 / alpha).
double log_gamma_draw(double alpha, std::uint64_t seed, std::uint32_t domain, std::uint32_t layer,
                      std::uint32_t expert) {
  const double d = alpha + 1 - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  double log_g = 0;
  for (std::uint32_t attempt = 0;; ++attempt) {
    const RandomCounter at{domain, layer, attempt, expert};
    const double x = random_normal(seed, random_purpose("synthetic dirichlet normal"), at);
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    const double u = random_uniform(seed, random_purpose("synthetic dirichlet accept"), at);
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      log_g = std::log(d * v);
      break;
    }
  }
  const double u =
      random_uniform(seed, random_purpose("synthetic dirichlet power"), {domain, layer, 0, expert});
  return log_g + std::log(u) / alpha;
}

}  // namespace

SyntheticRouting::SyntheticRouting(const scenario::RoutingSpec& law, std::uint32_t layers,
                                   std::uint32_t experts, std::uint64_t seed)
    : law_(law),
      experts_(experts),
      slices_(std::bit_ceil(experts) * 8),
      seed_(seed),
      token_limit_(static_cast<std::uint64_t>(law.token_correlation * 0x1.0p32)),
      layer_limit_(static_cast<std::uint64_t>(law.layer_correlation * 0x1.0p32)),
      drawn_(experts, 0) {
  tables_.resize(std::size_t{layers} * law.domains);
  for (std::uint32_t l = 0; l < layers; ++l) {
    for (std::uint32_t d = 0; d < law.domains; ++d) make_table(l, d);
  }
  switch (law.law) {
    case scenario::SyntheticLaw::kUniform:
      description_ = "uniform";
      break;
    case scenario::SyntheticLaw::kZipf:
      description_ = fmt::format("zipf({})", law.zipf_s);
      break;
    case scenario::SyntheticLaw::kLognormal:
      description_ = fmt::format("lognormal({})", law.sigma);
      break;
    case scenario::SyntheticLaw::kDirichlet:
      description_ = fmt::format("dirichlet({})", law.alpha);
      break;
  }
  if (law.domains > 1) description_ += fmt::format(", {} domains", law.domains);
  if (law.token_correlation > 0) {
    description_ += fmt::format(", token correlation {}", law.token_correlation);
  }
  if (law.layer_correlation > 0) {
    description_ += fmt::format(", layer correlation {}", law.layer_correlation);
  }
}

std::vector<double> SyntheticRouting::log_weights(std::uint32_t l, std::uint32_t domain) const {
  std::vector<double> z(experts_, 0.0);
  switch (law_.law) {
    case scenario::SyntheticLaw::kUniform:
      break;
    case scenario::SyntheticLaw::kZipf: {
      std::vector<std::pair<std::uint64_t, std::uint32_t>> order(experts_);
      for (std::uint32_t e = 0; e < experts_; ++e) {
        order[e] = {random_u64(seed_, random_purpose("synthetic rank"), {domain, l, 0, e}), e};
      }
      std::sort(order.begin(), order.end());
      for (std::uint32_t rank = 0; rank < experts_; ++rank) {
        z[order[rank].second] = -law_.zipf_s * std::log(rank + 1.0);
      }
      break;
    }
    case scenario::SyntheticLaw::kLognormal:
      for (std::uint32_t e = 0; e < experts_; ++e) {
        z[e] = law_.sigma *
               random_normal(seed_, random_purpose("synthetic expert"), {domain, l, 0, e});
      }
      break;
    case scenario::SyntheticLaw::kDirichlet:
      for (std::uint32_t e = 0; e < experts_; ++e) {
        z[e] = log_gamma_draw(law_.alpha, seed_, domain, l, e);
      }
      break;
  }
  return z;
}

void SyntheticRouting::make_table(std::uint32_t layer, std::uint32_t domain) {
  Table& t = tables_[index(layer, domain)];
  t.log_p = log_weights(layer, domain);
  const double top = *std::max_element(t.log_p.begin(), t.log_p.end());
  double sum = 0;
  for (const double z : t.log_p) sum += std::exp(z - top);
  for (double& z : t.log_p) z -= top + std::log(sum);
  // By falling p; equal ones in an order of the layer's own, or correlated layers would share
  // expert numbers.
  std::vector<std::uint64_t> tie(experts_);
  for (std::uint32_t e = 0; e < experts_; ++e) {
    tie[e] = random_u64(seed_, random_purpose("synthetic tie"), {domain, layer, 0, e});
  }
  t.expert.resize(experts_);
  std::iota(t.expert.begin(), t.expert.end(), std::uint16_t{0});
  std::sort(t.expert.begin(), t.expert.end(), [&](std::uint16_t a, std::uint16_t b) {
    if (t.log_p[a] != t.log_p[b]) return t.log_p[a] > t.log_p[b];
    return tie[a] != tie[b] ? tie[a] < tie[b] : a < b;
  });
  t.p.resize(experts_);
  t.below.assign(1, 0.0);
  for (std::uint32_t e = 0; e < experts_; ++e) {
    t.p[e] = std::exp(t.log_p[e]);
    if (t.p[e] > 0) t.entropy -= t.p[e] * t.log_p[e] / std::log(2.0);
  }
  for (const std::uint16_t e : t.expert) t.below.push_back(t.below.back() + t.p[e]);
  // Rounding: the last rank takes all that is left of [0, 1).
  t.below.back() = 2;
  t.first_rank.resize(slices_);
  for (std::uint32_t s = 0, rank = 0; s < slices_; ++s) {
    while (t.below[rank + 1] <= static_cast<double>(s) / slices_) ++rank;
    t.first_rank[s] = static_cast<std::uint16_t>(rank);
  }
}

std::uint32_t SyntheticRouting::domain_of(std::uint32_t sequence) const {
  if (law_.domains == 1) return 0;
  return philox(seed_, random_purpose("synthetic domain"), {sequence, 0, 0, 0})[0] % law_.domains;
}

std::span<const double> SyntheticRouting::p(std::uint32_t layer, std::uint32_t domain) const {
  return tables_[index(layer, domain)].p;
}

/// Follows the correlated tokens and layers to the draw that is its own.
std::uint64_t SyntheticRouting::key_of(std::uint32_t sequence, std::uint32_t layer,
                                       std::uint32_t position) const {
  while (true) {
    const auto w = philox(seed_, random_purpose("synthetic token"), {sequence, layer, position, 0});
    if (position > 0 && w[0] < token_limit_) {
      --position;
    } else if (layer > 0 && w[1] < layer_limit_) {
      --layer;
    } else {
      return std::uint64_t{w[3]} << 32U | w[2];
    }
  }
}

std::uint32_t SyntheticRouting::one_by_one(const Table& t, std::uint64_t key, std::uint32_t first,
                                           std::span<std::uint16_t> ids) {
  if (++stamp_ == 0) {
    std::fill(drawn_.begin(), drawn_.end(), 0);
    stamp_ = 1;
  }
  const std::uint32_t patience = 4 * first + 16;
  const auto most = std::min(first, static_cast<std::uint32_t>(ids.size()));
  std::uint32_t have = 0;
  for (std::uint32_t i = 0; have < most && i < patience; ++i) {
    const double u = unit(nth(key, i));
    std::uint32_t rank = t.first_rank[static_cast<std::uint32_t>(u * slices_)];
    while (t.below[rank + 1] <= u) ++rank;
    const std::uint16_t e = t.expert[rank];
    if (drawn_[e] == stamp_) continue;
    drawn_[e] = stamp_;
    ids[have++] = e;
  }
  return have;
}

void SyntheticRouting::by_clocks(const Table& t, std::uint64_t key, double from, std::uint32_t have,
                                 std::span<std::uint16_t> ids, std::span<float> logits) {
  clocks_.clear();
  for (std::uint32_t i = 0; i < experts_; ++i) {
    // Correlated layers share the popularity of what is drawn, not the experts' numbers.
    const std::uint16_t e = layer_limit_ > 0 ? t.expert[i] : static_cast<std::uint16_t>(i);
    if (drawn_[e] == stamp_) continue;
    const double ring = log_exponential(nth(key, kClock + i)) - t.log_p[e];
    clocks_.emplace_back(ring, e);
    if (!logits.empty()) logits[e] = static_cast<float>(-log_add(from, ring));
  }
  const std::size_t wanted = ids.size() - have;
  std::partial_sort(clocks_.begin(), clocks_.begin() + static_cast<std::ptrdiff_t>(wanted),
                    clocks_.end());
  for (std::size_t i = 0; i < wanted; ++i) ids[have + i] = clocks_[i].second;
}

void SyntheticRouting::draw(std::uint32_t sequence, std::uint32_t layer, std::uint32_t position,
                            std::uint32_t first, std::span<std::uint16_t> ids) {
  const Table& t = tables_[index(layer, domain_of(sequence))];
  const std::uint64_t key = key_of(sequence, layer, position);
  const std::uint32_t have = one_by_one(t, key, first, ids);
  if (have < ids.size()) by_clocks(t, key, kMinusInf, have, ids, {});
}

void SyntheticRouting::draw(std::uint32_t sequence, std::uint32_t layer, std::uint32_t position,
                            std::uint32_t first, std::span<std::uint16_t> ids,
                            std::span<float> logits) {
  const Table& t = tables_[index(layer, domain_of(sequence))];
  const std::uint64_t key = key_of(sequence, layer, position);
  const std::uint32_t have = one_by_one(t, key, first, ids);
  // The next clock rings after Exp(1) over the p that is left.
  double time = kMinusInf, left = 1;
  for (std::uint32_t r = 0; r < have; ++r) {
    double log_left = std::log(left);
    if (left < 1e-6) {
      // The difference has lost its digits: add up what is left.
      double top = kMinusInf, sum = 0;
      const auto among = ids.first(r);
      const auto rest = [&](std::uint32_t e) {
        return std::find(among.begin(), among.end(), e) == among.end();
      };
      for (std::uint32_t e = 0; e < experts_; ++e) top = rest(e) ? std::max(top, t.log_p[e]) : top;
      for (std::uint32_t e = 0; e < experts_; ++e) sum += rest(e) ? std::exp(t.log_p[e] - top) : 0;
      log_left = top + std::log(sum);
    }
    time = log_add(time, log_exponential(nth(key, kGap + r)) - log_left);
    logits[ids[r]] = static_cast<float>(-time);
    left -= t.p[ids[r]];
  }
  by_clocks(t, key, time, have, ids, logits);
}

}  // namespace switchyard::sim
