// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/economics.hpp"

#include <algorithm>

namespace switchyard::sim {

std::vector<run::Metric> energy_metrics(const scenario::Scenario& s, const run::RunData& run) {
  const std::size_t gpus = s.hardware.gpu_count();
  std::int64_t begin = -1, end = 0;
  double tokens = 0;
  for (const run::StepScalars& step : run.steps) {
    if (step.warmup) continue;
    // Replicas record their steps as they are planned: the last one need not end last.
    begin = begin < 0 ? step.start_ps : std::min(begin, step.start_ps);
    end = std::max(end, step.end_ps);
    tokens += static_cast<double>(step.tokens);
  }
  if (begin < 0 || end <= begin) return {};
  for (std::size_t g = 0; g < gpus; ++g) {
    if (s.hardware.gpu_type(g).idle_w <= 0) return {};
  }
  const double span = static_cast<double>(end - begin) * 1e-12;
  double watts = s.economics.host_w * s.hardware.nodes;
  for (std::size_t g = 0; g < gpus; ++g) {
    std::int64_t busy = 0;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      const auto phase = static_cast<run::Phase>(p);
      if (phase == run::Phase::kWait || phase == run::Phase::kHost) continue;
      busy += run.totals.gpu_phase_ps[g * run::kPhases + p];
    }
    const scenario::GpuType& t = s.hardware.gpu_type(g);
    watts +=
        t.idle_w + (t.tdp_w - t.idle_w) * std::min(1.0, static_cast<double>(busy) * 1e-12 / span);
  }
  watts *= s.economics.pue;
  const double joules = watts * span;
  const auto per = [](double a, double b) { return b > 0 ? a / b : run::kNoData; };
  std::vector<run::Metric> out{{"mean power", watts, "W"},
                               {"energy", joules, "J"},
                               {"energy per token", per(joules, tokens), "J"}};
  if (s.economics.stated) {
    constexpr double kSecondsOfAYear = 8760.0 * 3600;
    const double electricity = joules / 3.6e6 * s.economics.usd_per_kwh;
    const double machines = static_cast<double>(gpus) * s.economics.gpu_usd * span /
                            (s.economics.years * kSecondsOfAYear);
    out.push_back({"cost per million tokens", per((electricity + machines) * 1e6, tokens), "USD"});
    out.push_back({"electricity share of cost", per(electricity, electricity + machines), ""});
    const double rate = tokens / span;
    const double price = static_cast<double>(gpus) * s.economics.gpu_usd;
    out.push_back({"GPU price per token rate", per(price, rate), "USD s"});
    if (s.economics.api_usd > 0) {
      const double usd_per_token = s.economics.api_usd * 1e-6;
      const double even = (electricity + machines) / span / usd_per_token;
      out.push_back({"break-even rate", even, "1/s"});
      out.push_back({"break-even utilisation", per(even, rate), ""});
      out.push_back({"payback",
                     per(price, (rate * usd_per_token - electricity / span) * kSecondsOfAYear),
                     "years"});
    }
  }
  return out;
}

}  // namespace switchyard::sim
