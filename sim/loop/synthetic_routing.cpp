// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/synthetic_routing.hpp"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::sim {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kMixA = 0xBF58476D1CE4E5B9, kMixB = 0x94D049BB133111EB;
constexpr std::uint16_t kSeveral = 0xFFFF;
/// Experts of draw_all()'s fast way have the top bit free for kSeveral and fillers.
constexpr std::uint32_t kFewExperts = 0x8000;
constexpr std::size_t kBlock = 64;                              // Tokens drawn at a time.
constexpr std::uint64_t kFineBytes = std::uint64_t{16} << 20U;  // Of all tables.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the i-th number of the stream that `key`
/// begins. One Philox draw gives the key.
std::uint64_t nth(std::uint64_t key, std::uint64_t i) {
  std::uint64_t z = key + (i + 1) * kGolden;
  z = (z ^ (z >> 30U)) * kMixA;
  z = (z ^ (z >> 27U)) * kMixB;
  return z ^ (z >> 31U);
}
using FourLanes = std::uint64_t __attribute__((vector_size(32)));
using EightLanes = std::uint64_t __attribute__((vector_size(64)));
/// The first eight numbers of each key's stream, [keys][8].
template <typename Lanes>
[[gnu::always_inline]] inline void first_eight_of(std::span<const std::uint64_t> keys,
                                                  std::uint64_t* out) {
  constexpr std::size_t n = sizeof(Lanes) / 8;
  for (const std::uint64_t key : keys) {
    for (std::uint64_t part = 0; part < 8; part += n, out += n) {
      Lanes z;
      for (std::size_t i = 0; i < n; ++i) z[i] = (part + i + 1) * kGolden;
      z += key;
      z = (z ^ (z >> 30U)) * kMixA;
      z = (z ^ (z >> 27U)) * kMixB;
      z ^= z >> 31U;
      std::memcpy(out, &z, sizeof z);
    }
  }
}
void first_eight(std::span<const std::uint64_t> keys, std::uint64_t* out) {
  first_eight_of<FourLanes>(keys, out);
}
/// The same integers, with the 64-bit products of AVX-512.
__attribute__((target("avx512f,avx512dq"))) void first_eight_avx512(
    std::span<const std::uint64_t> keys, std::uint64_t* out) {
  first_eight_of<EightLanes>(keys, out);
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
/// Draws after which the rest is ranked by clocks.
constexpr std::uint32_t patience_for(std::uint32_t first) { return 4 * first + 16; }
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
      slice_shift_(64U - static_cast<unsigned>(std::countr_zero(slices_))),
      seed_(seed),
      token_limit_(static_cast<std::uint64_t>(law.token_correlation * 0x1.0p32)),
      layer_limit_(static_cast<std::uint64_t>(law.layer_correlation * 0x1.0p32)),
      drawn_(experts, 0) {
  tables_.resize(std::size_t{layers} * law.domains);
  if (experts < kFewExperts) {
    std::uint64_t fine = std::uint64_t{slices_} * 16;
    while (fine > slices_ / 2 && 2 * fine * tables_.size() > kFineBytes) fine /= 2;
    fine_shift_ = 64U - static_cast<unsigned>(std::countr_zero(fine));
  }
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
  const std::size_t fine = fine_shift_ == 64 ? 0 : std::size_t{1} << (64U - fine_shift_);
  t.only.resize(fine);
  for (std::size_t s = 0, rank = 0; s < fine; ++s) {
    // Exact: the number of slices is a power of two.
    const double from = static_cast<double>(s) / static_cast<double>(fine);
    const double to = static_cast<double>(s + 1) / static_cast<double>(fine);
    while (t.below[rank + 1] <= from) ++rank;
    t.only[s] = t.below[rank + 1] >= to ? t.expert[rank] : kSeveral;
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

std::uint16_t SyntheticRouting::look_up(const Table& t, std::uint64_t bits) const {
  const double u = unit(bits);
  std::uint32_t rank = t.first_rank[bits >> slice_shift_];
  while (t.below[rank + 1] <= u) ++rank;
  return t.expert[rank];
}

/// one_by_one() of n <= 8 experts with some patience, whose first eight draws have these bits;
/// false: it takes longer.
bool SyntheticRouting::eight(const Table& t, std::uint64_t key, const std::uint64_t* bits,
                             std::uint32_t n, std::uint32_t patience, std::uint16_t* ids) const {
  const std::uint16_t* const only = t.only.data();
  const auto expert = [&](std::size_t i) {
    return static_cast<short>(only[bits[i] >> fine_shift_]);
  };
  // Draws beyond the n-th are other numbers than any expert's, each its own.
  const __m128i filler = _mm_set_epi16(-9, -8, -7, -6, -5, -4, -3, -2);
  const __m128i place = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0);
  const __m128i wanted = _mm_cmpgt_epi16(_mm_set1_epi16(static_cast<short>(n)), place);
  __m128i x = _mm_set_epi16(expert(7), expert(6), expert(5), expert(4), expert(3), expert(2),
                            expert(1), expert(0));
  x = _mm_blendv_epi8(filler, x, wanted);
  static_assert(kSeveral == 0xFFFF);
  alignas(16) std::array<std::uint16_t, 8> drawn;
  auto* const lanes = reinterpret_cast<__m128i*>(drawn.data());
  if (const int several = _mm_movemask_epi8(_mm_cmpeq_epi16(x, _mm_set1_epi16(-1))); several != 0) {
    _mm_store_si128(lanes, x);
    for (auto rest = static_cast<unsigned>(several); rest != 0;
         rest &= rest - 1, rest &= rest - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(rest)) / 2;  // Two bits a lane.
      drawn[i] = look_up(t, bits[i]);
    }
    x = _mm_load_si128(lanes);
  }
  // Lane i against those before it; lanes that come in from the left equal none.
  const __m128i none = _mm_set1_epi16(-10);
  __m128i same = _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 14));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 12)));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 10)));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 8)));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 6)));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 4)));
  same = _mm_or_si128(same, _mm_cmpeq_epi16(x, _mm_alignr_epi8(x, none, 2)));
  const auto repeated = static_cast<unsigned>(_mm_movemask_epi8(same));
  if (repeated == 0) {
    if (n == 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(ids), x);
    } else {
      _mm_store_si128(lanes, x);
      std::copy_n(drawn.begin(), n, ids);
    }
    return true;
  }
  _mm_store_si128(lanes, x);
  std::uint32_t have = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    ids[have] = drawn[i];
    have += (repeated >> (2 * i) & 1U) ^ 1U;
  }
  const std::uint32_t among_eight = have;
  for (std::uint32_t i = n; have < n && i < patience; ++i) {
    const std::uint64_t b = i < 8 ? bits[i] : nth(key, i);
    std::uint16_t e = only[b >> fine_shift_];
    if (e == kSeveral) e = look_up(t, b);
    const __m128i met = _mm_cmpeq_epi16(x, _mm_set1_epi16(static_cast<short>(e)));
    if (_mm_movemask_epi8(met) != 0) continue;
    if (std::find(ids + among_eight, ids + have, e) == ids + have) ids[have++] = e;
  }
  return have == n;
}

void SyntheticRouting::draw_all(std::span<const std::uint32_t> sequence, std::uint32_t layer,
                                std::span<const std::uint32_t> position,
                                std::span<const std::uint16_t> domains, std::uint32_t first,
                                std::uint32_t width, std::span<std::uint16_t> ids) {
  static const bool wide =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  const bool few = width > 0 && width <= std::min(first, 8U) && fine_shift_ != 64;
  const bool own = token_limit_ == 0 && (layer_limit_ == 0 || layer == 0);
  std::array<std::uint64_t, kBlock> keys;
  std::array<std::uint64_t, kBlock * 8> bits;
  for (std::size_t begin = 0; begin < sequence.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, sequence.size() - begin);
    const std::span<std::uint64_t> block = std::span(keys).first(n);
    if (own) {
      philox_upper(seed_, random_purpose("synthetic token"), sequence.subspan(begin, n), layer,
                   position.subspan(begin, n), 0, block);
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        block[i] = key_of(sequence[begin + i], layer, position[begin + i]);
      }
    }
    if (few) (wide ? first_eight_avx512 : first_eight)(block, bits.data());
    for (std::size_t i = 0; i < n; ++i) {
      const Table& t = tables_[index(layer, domains.empty() ? 0 : domains[begin + i])];
      const std::span<std::uint16_t> to = ids.subspan((begin + i) * width, width);
      if (few && eight(t, keys[i], bits.data() + i * 8, width, patience_for(first), to.data()))
        continue;
      const std::uint32_t have = one_by_one(t, keys[i], first, to);
      if (have < width) by_clocks(t, keys[i], kMinusInf, have, to, {});
    }
  }
}

std::uint32_t SyntheticRouting::one_by_one(const Table& t, std::uint64_t key, std::uint32_t first,
                                           std::span<std::uint16_t> ids) {
  if (++stamp_ == 0) {
    std::fill(drawn_.begin(), drawn_.end(), 0);
    stamp_ = 1;
  }
  const std::uint32_t patience = patience_for(first);
  const auto most = std::min(first, static_cast<std::uint32_t>(ids.size()));
  std::uint32_t have = 0;
  for (std::uint32_t i = 0; have < most && i < patience; ++i) {
    const std::uint16_t e = look_up(t, nth(key, i));
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
