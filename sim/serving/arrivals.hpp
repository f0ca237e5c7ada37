// SPDX-License-Identifier: Apache-2.0
// When requests arrive, how long they are and which tier they belong to. Every draw is a pure
// function of the seed and the request's number, so the order of calls does not matter.
//
//   poisson  gaps −ln U / λ
//   gamma    gaps of shape 1 / cv² and mean 1 / λ (Marsaglia and Tsang, ACM TOMS 26, 2000)
//   think    −ln U · mean, or the mean
//   length   lognormal: exp(μ + σN) with σ² = ln(1 + cv²), μ = ln mean − σ²/2, at most 20 means;
//            where that cuts more than 0.1 % off the mean (cv above about 1), μ is raised until the
//            mean is the stated one again
//
// Not modelled: rates that change over the day (give a trace), lengths that depend on each other.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/base/units.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

struct Arrival {
  std::int64_t time_ps = 0;
  std::uint32_t prompt = 1, output = 1;
  std::uint32_t tier = 0;
};

class ArrivalSource {
 public:
  /// `scenario` is borrowed.
  explicit ArrivalSource(const scenario::Scenario& scenario);
  /// Request number n of an open or trace workload; n ascends by one from call to call. No value:
  /// there are no more.
  std::optional<Arrival> next();
  /// Lengths and tier of request n of a closed workload that arrives at time_ps.
  [[nodiscard]] Arrival at(std::uint32_t n, std::int64_t time_ps) const;
  /// Thinking time of a user before request `turn`.
  [[nodiscard]] std::int64_t think_ps(std::uint32_t user, std::uint32_t turn) const;
  /// Arrivals from this time on do not count.
  [[nodiscard]] std::int64_t limit_ps() const { return limit_ps_; }
  [[nodiscard]] std::uint64_t limit() const { return limit_; }

 private:
  [[nodiscard]] double gap_seconds(std::uint32_t n) const;
  [[nodiscard]] std::uint32_t length(std::uint32_t n, std::uint32_t mean, double cv, double scale,
                                     std::uint32_t purpose) const;
  [[nodiscard]] std::uint32_t tier(std::uint32_t n) const;

  const scenario::Serving& s_;
  scenario::WorkloadKind kind_;
  std::uint64_t seed_;
  std::uint64_t limit_;  // requests
  std::int64_t limit_ps_;
  double prompt_scale_ = 1, output_scale_ = 1;  // against the cut tail
  std::uint32_t n_ = 0;
  std::int64_t time_ps_ = 0;
};

}  // namespace switchyard::sim
