// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/step_cohesion.hpp"

#include <cmath>

namespace switchyard::sim {

void StepCohesion::begin_step() {
  tokens_ = 0;
  units_.clear();
  for (auto& m : members_) m.clear();
}

void StepCohesion::add(const RoutingSource& source, const StepTokens& tokens, std::uint32_t moe,
                       const LayerDecision& decision) {
  for (std::uint32_t t = 0; t < tokens.size(); ++t) {
    const std::optional<std::uint64_t> row = source.trace_row(tokens, moe, t);
    if (!row) continue;
    vectors_.append_unit(*row, units_);
    for (std::size_t j = 0; j < decision.slots; ++j) {
      const std::uint16_t e = decision.chosen[t * decision.slots + j];
      if (e != kNoExpert) members_[e].push_back(tokens_);
    }
    ++tokens_;
  }
}

void StepCohesion::finish(std::uint64_t step, run::StepScalars& out) const {
  const ExpertCohesion c = expert_cohesion(units_, vectors_.width(), members_, seed_,
                                           static_cast<std::uint32_t>(step));
  out.cohesion = c.mean.value_or(run::kNoData);
  out.cohesion_baseline = c.baseline.value_or(run::kNoData);
}

void note_cohesion(run::RunData& run) {
  double sum = 0, base = 0;
  std::uint64_t steps = 0;
  for (const run::StepScalars& s : run.steps) {
    if (s.warmup || std::isnan(s.cohesion) || std::isnan(s.cohesion_baseline)) continue;
    sum += s.cohesion;
    base += s.cohesion_baseline;
    ++steps;
  }
  const auto n = static_cast<double>(steps);
  run.metrics.push_back({"cohesion", steps == 0 ? run::kNoData : sum / n, ""});
  run.metrics.push_back({"cohesion of random tokens", steps == 0 ? run::kNoData : base / n, ""});
}

}  // namespace switchyard::sim
