// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/arrivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::sim {

using scenario::WorkloadKind;

namespace {
constexpr std::int64_t kLongestPs = 3'900'000'000'000'000'000;  // 45 days
constexpr double kLongestLength = 20;                           // times the mean

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

/// f with E[min(f·X, 20)] = 1 for the lognormal X of mean 1 and the given cv: what is cut off the
/// tail is given back, so that lengths keep their mean. 1 where the tail holds less than 0.1 %.
double capped_scale(double cv) {
  const double s2 = std::log1p(cv * cv), s = std::sqrt(s2);
  const auto mean = [&](double f) {
    const double c = std::log(kLongestLength / f);
    return f * normal_below((c - s2 / 2) / s) + kLongestLength * normal_below(-(c + s2 / 2) / s);
  };
  if (cv == 0 || mean(1) > 0.999) return 1;
  double low = 1, high = 2;
  while (mean(high) < 1) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (mean(middle) < 1 ? low : high) = middle;
  }
  return 0.5 * (low + high);
}
}  // namespace

ArrivalSource::ArrivalSource(const scenario::Scenario& scenario)
    : s_(scenario.workload.serving),
      kind_(scenario.workload.kind),
      seed_(scenario.run.seed),
      limit_(s_.arrivals.requests == 0 ? UINT32_MAX : s_.arrivals.requests),
      limit_ps_(s_.arrivals.duration ? s_.arrivals.duration->ps() : INT64_MAX),
      prompt_scale_(capped_scale(s_.lengths.prompt_cv)),
      output_scale_(capped_scale(s_.lengths.output_cv)) {}

double ArrivalSource::gap_seconds(std::uint32_t n) const {
  const scenario::Arrivals& a = s_.arrivals;
  constexpr std::uint32_t kGap = random_purpose("serving gap");
  if (a.process == scenario::ArrivalProcess::kPoisson) {
    return -std::log(random_uniform(seed_, kGap, {n, 0, 0, 0})) / a.per_second;
  }
  const double shape = 1 / (a.cv * a.cv);
  // A shape below one is drawn with one more and multiplied by U^(1/shape).
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  double value = 0;
  for (std::uint32_t attempt = 0;; ++attempt) {
    const double x = random_normal(seed_, kGap, {n, 1, attempt, 0});
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    const double u = random_uniform(seed_, kGap, {n, 2, attempt, 0});
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      value = d * v;
      break;
    }
  }
  if (shape < 1) value *= std::pow(random_uniform(seed_, kGap, {n, 3, 0, 0}), 1 / shape);
  return value / shape / a.per_second;
}

std::uint32_t ArrivalSource::length(std::uint32_t n, std::uint32_t mean, double cv, double scale,
                                    std::uint32_t purpose) const {
  if (cv == 0) return mean;
  const double s2 = std::log1p(cv * cv);
  const double value =
      scale * std::exp(std::log(static_cast<double>(mean)) - s2 / 2 +
                       std::sqrt(s2) * random_normal(seed_, purpose, {n, 0, 0, 0}));
  return static_cast<std::uint32_t>(
      std::clamp(std::round(value), 1.0, kLongestLength * static_cast<double>(mean)));
}

std::uint32_t ArrivalSource::tier(std::uint32_t n) const {
  if (s_.tiers.size() == 1) return 0;
  double u = random_uniform(seed_, random_purpose("serving tier"), {n, 0, 0, 0});
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < s_.tiers.size(); ++i) {
    if (s_.tiers[i].share == 0) continue;
    last = i;
    if (u < s_.tiers[i].share) return i;
    u -= s_.tiers[i].share;
  }
  return last;
}

Arrival ArrivalSource::at(std::uint32_t n, std::int64_t time_ps) const {
  const scenario::Lengths& l = s_.lengths;
  return {
      time_ps, length(n, l.prompt, l.prompt_cv, prompt_scale_, random_purpose("serving prompt")),
      length(n, l.output, l.output_cv, output_scale_, random_purpose("serving output")), tier(n)};
}

std::optional<Arrival> ArrivalSource::next() {
  if (n_ >= limit_) return std::nullopt;
  Arrival a;
  if (kind_ == WorkloadKind::kTrace) {
    const auto& requests = s_.arrivals.trace->requests;
    if (n_ >= requests.size()) return std::nullopt;
    const scenario::TracedRequest& r = requests[n_];
    const double speedup = s_.arrivals.speedup;
    a.time_ps = speedup == 1 ? r.arrival.ps()
                             : static_cast<std::int64_t>(
                                   std::llround(static_cast<double>(r.arrival.ps()) / speedup));
    a.prompt = r.prompt_tokens;
    a.output = r.output_tokens;
    a.tier = tier(n_);
  } else {
    time_ps_ += SimTime::from_seconds(gap_seconds(n_)).ps();
    if (time_ps_ > kLongestPs && time_ps_ < limit_ps_) {
      throw InputError("workload.arrivals.per_second",
                       fmt::format("request {} would arrive after 45 days", n_),
                       "raise per_second, or give a duration");
    }
    a = at(n_, time_ps_);
  }
  if (a.time_ps >= limit_ps_) return std::nullopt;
  ++n_;
  return a;
}

std::int64_t ArrivalSource::think_ps(std::uint32_t user, std::uint32_t turn) const {
  const scenario::Arrivals& a = s_.arrivals;
  if (a.think_law == scenario::ThinkLaw::kFixed || a.think.ps() == 0) return a.think.ps();
  const double u = random_uniform(seed_, random_purpose("serving think"), {user, 0, turn, 0});
  return SimTime::from_seconds(-std::log(u) * a.think.seconds()).ps();
}

}  // namespace switchyard::sim
