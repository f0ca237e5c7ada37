// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/calibrated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

using scenario::Calibration;
using scenario::OpKind;
using scenario::OpPoint;
using scenario::OpTable;

constexpr double kTile = 128;  // Positions of a KV tile of FlashAttention-3.
constexpr double kActivation = 2;
constexpr double kMiB = 1 << 20;

double width_of(model::DType d) { return static_cast<double>(model::dtype_bits_x32(d)) / 256.0; }
double log2_of(double v) { return std::log2(std::max(v, 1.0)); }

double peak_of(const Calibration& c, model::DType d) {
  scenario::GpuType device;
  device.peak = c.peak;
  return device.peak_for(d).value;
}

/// Attended pairs of n new tokens after c cached ones, at most w positions back each.
double pairs_of(double n, double c, double w) {
  if (w <= 0 || c + n <= w) return n * c + n * (n + 1) / 2;
  const double growing = std::max(0.0, w - c);
  return growing * c + growing * (growing + 1) / 2 + (n - growing) * w;
}

/// 1 − C(E−R, k)/C(E, k): a token has an expert among R given ones.
double hit_share(double experts, double here, double k) {
  double miss = 1;
  for (double i = 0; i < k; ++i) miss *= std::max(0.0, experts - here - i) / (experts - i);
  return 1 - miss;
}

double base_us(const OpUse& use, double overhead, double rate_share, double compute_share) {
  return overhead + std::max(use.rate_us / rate_share, use.compute_us / compute_share);
}

bool travels(OpKind kind) { return kind >= OpKind::kCollective && kind != OpKind::kHost; }

/// Square of the distance in the logarithms.
double shape_distance(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  double distance = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d =
        std::log2(static_cast<double>(a[i]) + 1) - std::log2(static_cast<double>(b[i]) + 1);
    distance += d * d;
  }
  return distance;
}

}  // namespace

OpUse use_of(const Calibration& c, const OpTable& t, std::span<const double> at) {
  const auto shape = [&](std::size_t i) { return static_cast<double>(t.shape[i]); };
  const double w = width_of(t.dtype);
  double bytes = 0, flops = 0, floor_bytes = 0, floor_flops = 0;
  OpUse use;
  switch (t.kind) {
    case OpKind::kExperts: {
      const double rows = at[0], distinct = at[1], most = at[2];
      bytes = distinct * shape(2) * shape(0) * shape(1) * w +
              rows * (2 * shape(0) + shape(2) * shape(1)) * kActivation;
      flops = 2 * shape(2) * rows * shape(0) * shape(1);
      floor_bytes = distinct * shape(2) * shape(0) * shape(1) * w;
      floor_flops = flops;
      use.place = {log2_of(rows), 0.5 * log2_of(distinct), 0.25 * log2_of(most * distinct / rows)};
      break;
    }
    case OpKind::kAttentionDecode: {
      const double window = shape(3);
      const double span = window > 0 ? std::min(at[1], window + kTile - 1) : at[1];
      const double tiles = std::ceil(span / kTile), kv = 2 * shape(1) * shape(2) * w;
      const double q = 2 * shape(0) * shape(2) * kActivation;
      bytes = at[0] * (tiles * kTile * kv + q);
      flops = 4 * at[0] * shape(0) * shape(2) * tiles * kTile;
      const double seen = window > 0 ? std::min(at[1], window) : at[1];
      floor_bytes = at[0] * (seen * kv + q);
      floor_flops = 4 * at[0] * shape(0) * shape(2) * seen;
      use.place = {log2_of(at[0]), log2_of(tiles), 0};
      break;
    }
    case OpKind::kAttentionPrefill: {
      const double n = at[1], cached = at[2], window = shape(3);
      const double kv = 2 * shape(1) * shape(2) * w, q = 2 * shape(0) * shape(2) * kActivation;
      const double seen = window > 0 ? std::min(n + cached, window + n) : n + cached;
      bytes = at[0] * (seen * kv + n * q);
      // Whole tiles, also where the mask hides a part of them.
      const double wide = window > 0 ? std::ceil((window + kTile - 1) / kTile) : 0;
      flops = 4 * at[0] * shape(0) * shape(2) * kTile * kTile *
              pairs_of(std::ceil(n / kTile), std::ceil(cached / kTile), wide);
      floor_bytes = bytes;
      floor_flops = 4 * at[0] * shape(0) * shape(2) * pairs_of(n, cached, window);
      use.place = {log2_of(at[0]), log2_of(n), log2_of((n + cached) / n)};
      break;
    }
    case OpKind::kMlaDecode: {
      const double per_pair = 2 * shape(1) + shape(2);
      bytes = at[0] * (at[1] * (shape(1) + shape(2)) * w + shape(0) * per_pair * kActivation);
      flops = 2 * at[0] * shape(0) * at[1] * per_pair;
      floor_bytes = bytes;
      floor_flops = flops;
      use.place = {log2_of(at[0]), log2_of(at[1]), 0};
      break;
    }
    case OpKind::kGemm:
      bytes = shape(0) * shape(1) * w + at[0] * (shape(0) + shape(1)) * kActivation;
      flops = 2 * at[0] * shape(0) * shape(1);
      floor_bytes = shape(0) * shape(1) * w;
      floor_flops = flops;
      use.place = {log2_of(at[0]), 0, 0};
      break;
    case OpKind::kCollective: {
      const double gpus = shape(0);
      const bool reduce = t.variant == "all_reduce";
      bytes = at[0] * (gpus - 1) / gpus * (reduce ? 2 : 1);
      // A switch that adds up spares each GPU all but one way of its own buffer.
      floor_bytes = reduce ? std::min(bytes, at[0]) : bytes;
      use.place = {log2_of(at[0]), 0, 0};
      break;
    }
    case OpKind::kDispatch:
    case OpKind::kCombine: {
      const double hidden = shape(0), k = shape(1), experts = shape(2), gpus = shape(3);
      const bool low_latency = t.variant == "low_latency";
      const double copies = low_latency
                                ? at[0] * k * (gpus - 1) / gpus
                                : at[0] * (gpus - 1) * hit_share(experts, experts / gpus, k);
      const bool packed = low_latency && t.kind == OpKind::kDispatch;
      bytes = copies * (packed ? hidden + 4 * std::ceil(hidden / 128) + 16 : 2 * hidden);
      // Which experts a measured batch touched is not known: at least one copy of a token leaves.
      floor_bytes = 0;
      use.place = {log2_of(at[0]), 0, 0};
      break;
    }
    case OpKind::kHost:
      use.place = {log2_of(at[0]), 0, 0};
      break;
  }
  const double rate = travels(t.kind) ? c.link.value : c.hbm.value;
  use.rate_us = bytes / rate * 1e6;
  use.floor_us = floor_bytes / rate * 1e6;
  if (flops > 0) {
    const double peak = peak_of(c, t.dtype);
    use.compute_us = flops / peak * 1e6;
    use.floor_us = std::max(use.floor_us, floor_flops / peak * 1e6);
  }
  return use;
}

OpTimer::OpTimer(const Calibration& calibration, const OpTable& table)
    : calibration_(calibration), table_(table) {
  low_.fill(std::numeric_limits<double>::infinity());
  high_.fill(-std::numeric_limits<double>::infinity());
  least_ = std::numeric_limits<double>::infinity();
  most_ = -least_;
  for (const OpPoint& p : table.points) {
    const OpUse use = use_of(calibration, table, p.at);
    const double base =
        table.kind == OpKind::kHost
            ? p.us  // The straight line itself is the answer.
            : base_us(use, table.overhead_us, table.rate_share, table.compute_share);
    known_.push_back({use.place, std::log(p.us / base)});
    least_ = std::min(least_, known_.back().ratio);
    most_ = std::max(most_, known_.back().ratio);
    for (std::size_t i = 0; i < 3; ++i) {
      low_[i] = std::min(low_[i], use.place[i]);
      high_[i] = std::max(high_[i], use.place[i]);
    }
  }
}

OpTime OpTimer::time(std::span<const double> at) const {
  const OpUse use = use_of(calibration_, table_, at);
  const std::size_t n = scenario::kPointArguments[static_cast<std::size_t>(table_.kind)];
  OpTime out;
  std::array<double, 3> place = use.place;
  for (std::size_t i = 0; i < n; ++i) {
    place[i] = std::clamp(place[i], low_[i], high_[i]);
    if (std::abs(place[i] - use.place[i]) > 1e-9) out.extrapolated = true;
  }
  if (table_.kind == OpKind::kHost) {
    out.us = table_.overhead_us + table_.per_sequence_us * at[0];
    return out;
  }
  std::vector<double> distance(known_.size());
  for (std::size_t j = 0; j < known_.size(); ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      const double d = known_[j].place[i] - place[i];
      distance[j] += d * d;
    }
  }
  std::vector<double> sorted = distance;
  const std::size_t nth = std::min(sorted.size() - 1, 2 * n + 1);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(nth), sorted.end());
  const double h2 = std::max(sorted[nth], 0.1);
  // Normal equations of the weighted straight line; the ridge keeps slopes small where points on
  // one side only would set them.
  std::array<std::array<double, 5>, 4> m{};
  for (std::size_t j = 0; j < known_.size(); ++j) {
    const double weight = std::exp(-2 * distance[j] / h2);
    std::array<double, 4> x{1, 0, 0, 0};
    for (std::size_t i = 0; i < n; ++i) x[i + 1] = known_[j].place[i] - place[i];
    for (std::size_t r = 0; r <= n; ++r) {
      for (std::size_t s = 0; s <= n; ++s) m[r][s] += weight * x[r] * x[s];
      m[r][4] += weight * x[r] * known_[j].ratio;
    }
  }
  m[0][0] += 1e-3;
  for (std::size_t i = 1; i <= n; ++i) m[i][i] += 0.1;
  // Symmetric and positive definite: elimination needs no pivot.
  for (std::size_t c = n; c > 0; --c) {
    for (std::size_t r = 0; r < c; ++r) {
      const double f = m[r][c] / m[c][c];
      for (std::size_t s = 0; s < c; ++s) m[r][s] -= f * m[c][s];
      m[r][4] -= f * m[c][4];
    }
  }
  const double ratio = std::clamp(m[0][4] / m[0][0], least_, most_);
  const double base = base_us(use, table_.overhead_us, table_.rate_share, table_.compute_share);
  out.us = std::max(base * std::exp(ratio), use.floor_us);
  return out;
}

TableMatch find_table(const Calibration& calibration, OpKind kind, std::string_view library,
                      std::string_view variant, model::DType dtype,
                      std::span<const std::uint64_t> shape) {
  TableMatch best;
  double nearest = std::numeric_limits<double>::infinity();
  for (const OpTable& t : calibration.tables) {
    if (t.kind != kind || t.variant != variant || t.dtype != dtype ||
        !t.library.starts_with(library)) {
      continue;
    }
    const double distance = shape_distance(t.shape, shape);
    if (distance < nearest) {
      nearest = distance;
      best = {&t, std::equal(shape.begin(), shape.end(), t.shape.begin(), t.shape.end())};
    }
  }
  return best;
}

namespace {

struct Parameters {
  double overhead = 0, rate_share = 0.8, compute_share = 0.6;
};
struct Sample {
  OpUse use;
  double us = 0;
};

double misfit(const std::vector<Sample>& samples, const Parameters& p) {
  double sum = 0;
  for (const Sample& s : samples) {
    const double base = base_us(s.use, p.overhead, p.rate_share, p.compute_share);
    sum += std::abs(std::log(s.us / std::max(base, 1e-9)));
  }
  return sum;
}

/// Coordinate search from a grid: three numbers, a sum of absolute values.
Parameters fit(const std::vector<Sample>& samples) {
  double least = std::numeric_limits<double>::infinity();
  for (const Sample& s : samples) least = std::min(least, s.us);
  Parameters best;
  best.overhead = 0.9 * least;
  double cost = misfit(samples, best);
  const auto attempt = [&](const Parameters& p) {
    const double c = misfit(samples, p);
    if (c < cost - 1e-12) {
      cost = c;
      best = p;
      return true;
    }
    return false;
  };
  for (int pass = 0; pass < 6; ++pass) {
    for (const double share : {0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0}) {
      Parameters p = best;
      p.overhead = share * least;
      attempt(p);
    }
    for (double v = 1; v > 0.007; v *= 0.8) {
      Parameters p = best;
      p.rate_share = v;
      attempt(p);
      p = best;
      p.compute_share = v;
      attempt(p);
    }
  }
  // All neighbours at once: overhead and rate trade places along a valley.
  for (double step = 0.1; step > 1e-3;) {
    bool better = false;
    const std::array<double, 3> factors{1, 1 + step, 1 / (1 + step)};
    for (std::size_t i = 1; i < 27; ++i) {
      Parameters p = best;
      p.overhead *= factors[i % 3];
      p.rate_share = std::min(1.0, p.rate_share * factors[i / 3 % 3]);
      p.compute_share = std::min(1.0, p.compute_share * factors[i / 9]);
      better = attempt(p) || better;
    }
    if (!better) step /= 2;
  }
  return best;
}

/// The straight line with the smallest sum of squared relative errors, neither part negative.
void fit_host(OpTable& t) {
  double ww = 0, wn = 0, nn = 0, wy = 0, ny = 0;
  for (const OpPoint& p : t.points) {
    const double w = 1 / (p.us * p.us), n = p.at[0];
    ww += w;
    wn += w * n;
    nn += w * n * n;
    wy += w * p.us;
    ny += w * n * p.us;
  }
  const double d = ww * nn - wn * wn;
  double each = d > 1e-9 * ww * nn ? (ww * ny - wn * wy) / d : 0;
  each = std::max(each, 0.0);
  double step = (wy - each * wn) / ww;
  if (step < 0) {
    step = 0;
    each = ny / nn;
  }
  t.overhead_us = step;
  t.per_sequence_us = each;
}

/// Times below 1 MiB, ascending in the bytes: neighbours that fall are replaced by their
/// geometric mean.
void smooth(std::vector<OpPoint>& points) {
  std::stable_sort(points.begin(), points.end(),
                   [](const OpPoint& a, const OpPoint& b) { return a.at[0] < b.at[0]; });
  struct Block {
    double sum;
    std::size_t count;
    [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Block> blocks;
  std::size_t small = 0;
  for (; small < points.size() && points[small].at[0] < kMiB; ++small) {
    blocks.push_back({std::log(points[small].us), 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() > blocks.back().mean()) {
      blocks[blocks.size() - 2].sum += blocks.back().sum;
      blocks[blocks.size() - 2].count += blocks.back().count;
      blocks.pop_back();
    }
  }
  std::size_t i = 0;
  for (const Block& b : blocks) {
    for (std::size_t k = 0; k < b.count; ++k, ++i) points[i].us = std::exp(b.mean());
  }
}

}  // namespace

void fit_table(Calibration& calibration, std::size_t index) {
  constexpr std::size_t kFew = 4, kEnough = 24;
  OpTable& t = calibration.tables[index];
  if (t.kind == OpKind::kHost) {
    fit_host(t);
    return;
  }
  const auto samples_of = [&](const OpTable& of, std::vector<Sample>& out) {
    for (const OpPoint& p : of.points) out.push_back({use_of(calibration, of, p.at), p.us});
  };
  std::vector<Sample> samples;
  samples_of(t, samples);
  if (t.points.size() < kFew) {
    // The nearest shapes of its own library and format, else all of its operation.
    std::vector<std::pair<double, const OpTable*>> kin, others;
    for (const OpTable& o : calibration.tables) {
      if (&o == &t || o.kind != t.kind || o.variant != t.variant) continue;
      (o.library == t.library && o.dtype == t.dtype ? kin : others)
          .emplace_back(shape_distance(o.shape, t.shape), &o);
    }
    std::stable_sort(kin.begin(), kin.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < kin.size() && samples.size() < kEnough; ++i) {
      samples_of(*kin[i].second, samples);
    }
    if (samples.size() < kFew) {
      for (const auto& [distance, o] : others) samples_of(*o, samples);
    }
  }
  const Parameters p = fit(samples);
  t.overhead_us = p.overhead;
  t.rate_share = p.rate_share;
  t.compute_share = p.compute_share;
}

void fit_tables(Calibration& calibration) {
  for (OpTable& t : calibration.tables) {
    if (t.kind == OpKind::kCollective) smooth(t.points);
  }
  for (std::size_t i = 0; i < calibration.tables.size(); ++i) fit_table(calibration, i);
}

}  // namespace switchyard::sim
