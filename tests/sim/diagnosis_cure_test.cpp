// SPDX-License-Identifier: Apache-2.0
// "Saves at most" against the cure applied: the same scenario with copies of hot experts is never
// faster by more than `diagnose` states.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "sim/health/diagnosis.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

double seconds_of(const run::RunData& r) {
  double sum = 0;
  for (const run::StepScalars& s : r.steps) {
    if (!s.warmup) sum += static_cast<double>(s.end_ps - s.start_ps) * 1e-12;
  }
  return sum;
}

/// DeepSeek-V3's decode on 4 servers of 8 GPUs: exchanges on the NICs are the largest phase.
run::RunData decode(double sigma, unsigned seed, const std::string& detail,
                    std::vector<std::string> more = {}) {
  scenario::ReadOptions options;
  options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  more.push_back(fmt::format("workload.routing={{ synthetic = \"lognormal\", sigma = {} }}", sigma));
  more.push_back(fmt::format("run.seed={}", seed));
  more.push_back(fmt::format("run.detail=\"{}\"", detail));
  options.settings = std::move(more);
  const auto s = scenario::read_scenario(
      std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/exchange_bound.toml", options);
  return test::run_in_memory(s, nullptr).data;
}

const health::Finding* find(const health::Diagnosis& d, const std::string& id) {
  for (const health::Finding& f : d.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

}  // namespace

TEST(DiagnosisCure, CopiesOfHotExpertsSaveNoMoreThanTheBound) {
  const std::vector<std::pair<double, unsigned>> cases{{0.5, 1}, {0.9, 2}, {1.4, 3}};
  for (const auto& [sigma, seed] : cases) {
    const run::RunData sick = decode(sigma, seed, "layers");
    const run::RunData cured =
        decode(sigma, seed, "steps",
               {"parallel.placement=\"eplb\"",
                "parallel.placement_options={ redundant = 32, profile_steps = 3 }"});
    const double saved = 1 - seconds_of(cured) / seconds_of(sick);
    EXPECT_GT(saved, 0.02) << sigma;
    const health::Diagnosis full = health::diagnose(sick, "r.h5");
    const health::Diagnosis brief =
        health::diagnose(decode(sigma, seed, "steps"), "r.h5");  // Its bounds are looser.
    std::size_t bounds = 0;
    for (const health::Finding& f : full.findings) {
      if (f.cure.find("eplb") == std::string::npos || std::isnan(f.bound)) continue;
      ++bounds;
      EXPECT_LT(saved, f.bound) << f.id << ", sigma " << sigma;
      EXPECT_LT(f.bound, 0.9) << f.id;
      const health::Finding* same = find(brief, f.id);
      ASSERT_NE(same, nullptr) << f.id;
      EXPECT_LT(f.bound, same->bound + 1e-12) << f.id;
    }
    EXPECT_GT(bounds, 0U) << sigma;
  }
}

TEST(DiagnosisCure, SaysThatExchangesAreTheLargestPhase) {
  const run::RunData r = decode(0.9, 1, "layers");
  const health::Diagnosis d = health::diagnose(r, "r.h5");
  const health::Finding* f = find(d, "exchange-bound");
  ASSERT_NE(f, nullptr);
  double exchange = 0, all = 0, expert = 0;
  for (const run::StepScalars& s : r.steps) {
    if (s.warmup) continue;
    for (const run::Phase p : {run::Phase::kDispatch, run::Phase::kCombine,
                               run::Phase::kCollective}) {
      exchange += static_cast<double>(s.phase_ps[static_cast<std::size_t>(p)]);
    }
    expert += static_cast<double>(s.phase_ps[static_cast<std::size_t>(run::Phase::kExpert)]);
    all += static_cast<double>(s.end_ps - s.start_ps);
  }
  EXPECT_GT(exchange, expert);
  EXPECT_NEAR(f->bound, exchange / all, 1e-12);
  EXPECT_NE(f->symptom.find("most of it on ib links"), std::string::npos) << f->symptom;
  EXPECT_NE(f->symptom.find(fmt::format("are {:.1f} % of a step", 100 * exchange / all)),
            std::string::npos)
      << f->symptom;
  EXPECT_NE(f->cause.find("uneven loads: the fullest GPU has"), std::string::npos) << f->cause;
  // The same exchanges beside a longer phase are not what bounds the run.
  const run::RunData alone =
      decode(0.9, 1, "layers", {fmt::format("host.per_step={:.0f} us", exchange * 1e-6)});
  EXPECT_EQ(find(health::diagnose(alone, "r.h5"), "exchange-bound"), nullptr);
}

TEST(DiagnosisCure, TextsNameTheModelsLayerNumber) {
  // DeepSeek-V3 has three dense layers: MoE layer with index 2 is layer 5 of the model.
  const run::RunData r =
      decode(0.9, 1, "steps",
             {"faults.events=[{ kind = \"slow_expert\", expert = 5, layer = 2, factor = 4, step = 1 }]"});
  std::size_t seen = 0;
  for (const run::Event& e : r.events) {
    if (e.kind != run::EventKind::kFault) continue;
    ++seen;
    EXPECT_EQ(e.layer, 2U);
    EXPECT_EQ(e.text, "slow_expert expert 5 of MoE layer 5: x 4");
  }
  EXPECT_EQ(seen, 1U);
}

}  // namespace switchyard::sim
