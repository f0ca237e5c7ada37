// SPDX-License-Identifier: Apache-2.0
// `diagnose`: each rule on a run that shows its symptom and on one that does not; golden text.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "sim/health/diagnosis.hpp"
#include "tests/run/sample_run.hpp"
#include "tests/sim/golden_text.hpp"

namespace switchyard::health {
namespace {

using run::Detail;
using run::Phase;
using run::testing::sample_inventory;
using run::testing::sample_meta;
using run::testing::sample_step;

constexpr std::int64_t kUs = 1'000'000;

std::optional<Finding> find(const Diagnosis& d, const std::string& id) {
  const auto it = std::find_if(d.findings.begin(), d.findings.end(),
                               [&](const Finding& f) { return f.id == id; });
  return it == d.findings.end() ? std::nullopt : std::optional(*it);
}

/// A run of the sample's steps, each changed by `change`.
template <class F>
run::RunData changed(F&& change, std::uint32_t steps = 8) {
  run::RunData r = run::make_run(sample_meta(Detail::kLayers), sample_inventory());
  for (std::uint32_t s = 0; s < steps; ++s) {
    run::StepRecord record = sample_step(r.inventory, s);
    change(record, s);
    run::append_step(r, record);
  }
  return r;
}

}  // namespace

TEST(Diagnosis, PrintsWhatTheSampleRunShows) {
  const run::RunData run = run::testing::sample_run(12, Detail::kLayers);
  test::expect_golden("diagnose.txt",
                      render_all(diagnose(run, "sample.h5").tables, TableFormat::kText));
}

TEST(Diagnosis, WorksAtEveryDetail) {
  for (const Detail d : {Detail::kSummary, Detail::kSteps, Detail::kLayers, Detail::kTokens}) {
    run::RunData run = run::testing::sample_run(12, d);
    if (d == Detail::kSummary) run.steps.clear();  // As a file gives it back.
    const Diagnosis result = diagnose(run, "sample.h5");
    EXPECT_EQ(result.tables.size(), 5U);
    EXPECT_NE(find(result, "drops"), std::nullopt);
    EXPECT_EQ(result.not_decidable.empty(), d >= Detail::kLayers);
  }
}

TEST(Diagnosis, BoundsImbalanceByTheTimeGpusDiffer) {
  // GPU 1 needs 10 us less for its experts in each step of 100 us: with the mean of both, 5 us.
  const run::RunData run = changed([](run::StepRecord&, std::uint32_t) {});
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "imbalance");
  ASSERT_TRUE(f);
  // Step 5 of the 6 measured has 3/2 (layer 0) and 10/7 (layer 1) times the mean on the fuller GPU:
  // its exchanges, 4 + 3 us of floors a layer, shrink to 2/3 and 7/10.
  EXPECT_NEAR(f->bound, 0.05 + 7 * (1.0 / 3 + 3.0 / 10) / 600, 1e-8);
  const run::RunData even = changed([](run::StepRecord& r, std::uint32_t) {
    r.gpu_phase_ps[run::kPhases + static_cast<std::size_t>(Phase::kExpert)] += 10 * kUs;
    r.gpu_phase_ps[run::kPhases + static_cast<std::size_t>(Phase::kWait)] -= 10 * kUs;
  });
  EXPECT_EQ(find(diagnose(even, "r.h5"), "imbalance"), std::nullopt);
}

TEST(Diagnosis, BoundsLatencyByWhatIsNotHidden) {
  // Dispatch and combine are 20 us of the 100 us of a step; beside other work they take far longer.
  const run::RunData run = changed([](run::StepRecord& r, std::uint32_t) {
    for (run::LayerRecord& l : r.layers) {
      l.dispatch_ps = l.combine_ps = 90 * kUs;
      l.dispatch_floor_ps = l.combine_floor_ps = kUs;
    }
  });
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "latency");
  ASSERT_TRUE(f);
  EXPECT_NEAR(f->bound, 0.2, 1e-12);
}

TEST(Diagnosis, CutExpertsAreAssignmentsOfEveryGpuThatHasColumns) {
  run::RunData r = changed([](run::StepRecord&, std::uint32_t) {});
  const auto column = [](const run::RunData& of) {
    const Diagnosis d = diagnose(of, "r.h5");
    std::vector<std::string> out;
    for (const Table& t : d.tables) {
      if (t.name != "stragglers") continue;
      for (const auto& row : t.rows) out.push_back(row[5]);
    }
    return out;
  };
  for (std::uint32_t& g : r.inventory.placement) g = 0;  // First columns only.
  EXPECT_EQ(column(r), (std::vector<std::string>{"2.000", "0.000"}));
  r.meta.scenario_text += "parallel.tp = 2\nparallel.ep = 1\n";
  EXPECT_EQ(column(r), (std::vector<std::string>{"1.000", "1.000"}));
}

TEST(Diagnosis, SharesOfTheCriticalPathAreOfTheStep) {
  // Loads of experts for 30 us of a step of 100 us.
  run::RunData run = changed([](run::StepRecord& r, std::uint32_t) {
    r.scalars.phase_ps[static_cast<std::size_t>(Phase::kExpert)] -= 30 * kUs;
    r.scalars.phase_ps[static_cast<std::size_t>(Phase::kWait)] += 30 * kUs;
  });
  run.critical_path = {{0, 0, Phase::kWait, 0, run::StragglerReason::kExpertLoadFromHost,
                        run.steps[0].start_ps, 30 * kUs}};
  const Diagnosis d = diagnose(run, "r.h5");
  const std::optional<Finding> f = find(d, "expert loads");
  ASSERT_TRUE(f);
  EXPECT_NE(f->symptom.find("30.0 % of the slowest step"), std::string::npos) << f->symptom;
  EXPECT_NEAR(f->bound, 0.3, 1e-12);
  EXPECT_NE(f->cure.find("prefetch"), std::string::npos) << f->cure;
  // The same wait for experts that the CPU computes.
  run.metrics.push_back({"experts on the CPU per step", 2.5, ""});
  const std::optional<Finding> cpu = find(diagnose(run, "r.h5"), "expert loads");
  ASSERT_TRUE(cpu);
  EXPECT_NE(cpu->symptom.find("30.0 % of the slowest step waits for experts that are not on the "
                              "GPU, 2.5 a step computed by the CPU"),
            std::string::npos)
      << cpu->symptom;
  EXPECT_NE(cpu->cure.find("memory bandwidth (memory.residency.cpu)"), std::string::npos);
  EXPECT_EQ(cpu->cure.find("prefetch"), std::string::npos) << "a static set brings nothing in";
}

TEST(Diagnosis, TellsASickExpertFromAHotOne) {
  const auto slow = [](run::StepRecord& r, std::uint32_t) {
    r.expert_time_ps.assign(8, 2 * kUs);
    r.expert_time_ps[6] = 20 * kUs;  // Layer 1, expert 2: 20 against a mean of 6.5, load as others.
  };
  const run::RunData sick = changed(slow);
  const std::optional<Finding> f = find(diagnose(sick, "r.h5"), "sick expert");
  ASSERT_TRUE(f);
  EXPECT_NE(f->symptom.find("gpu1 MoE layer 3 expert 2"), std::string::npos) << f->symptom;
  EXPECT_NE(f->symptom.find("3.08 times"), std::string::npos) << f->symptom;
  run::RunData there = sick;  // On a CPU it is as slow as that.
  there.metrics.push_back({"experts on the CPU per step", 1, ""});
  EXPECT_EQ(find(diagnose(there, "r.h5"), "sick expert"), std::nullopt);
  const run::RunData hot = changed([&](run::StepRecord& r, std::uint32_t s) {
    slow(r, s);
    r.expert_kept = {2, 2, 2, 2, 1, 1, 5, 1};
  });
  EXPECT_EQ(find(diagnose(hot, "r.h5"), "sick expert"), std::nullopt);
  EXPECT_NE(find(diagnose(hot, "r.h5"), "hot expert"), std::nullopt);
}

TEST(Diagnosis, NamesTheFactorThatHoldsEverything) {
  // The sample drops one assignment where 3 were kept and C = 3: demand 4/3 of the capacity, at the
  // scenario's factor 1.5.
  const run::RunData run = run::testing::sample_run(12, Detail::kLayers);
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "drops");
  ASSERT_TRUE(f);
  EXPECT_NE(f->cure.find("policy.capacity.factor = 2 "), std::string::npos) << f->cure;
}

TEST(Diagnosis, FindsALeakOnlyWhereNothingElseExplainsIt) {
  const auto runtime = static_cast<std::size_t>(run::MemoryCategory::kRuntime);
  const run::RunData leak =
      changed([&](run::StepRecord& r, std::uint32_t s) { r.gpu_memory[runtime] = 10 + 5 * s; }, 12);
  const std::optional<Finding> found = find(diagnose(leak, "r.h5"), "leak");
  ASSERT_TRUE(found);
  // The time of all steps, whichever is recorded last (replicas step by themselves).
  run::RunData replicas = leak;
  std::swap(replicas.steps.front(), replicas.steps.back());
  const std::optional<Finding> same = find(diagnose(replicas, "r.h5"), "leak");
  ASSERT_TRUE(same);
  EXPECT_EQ(same->symptom, found->symptom);
  // The KV cache of the sample grows by a byte a step: that is explained.
  EXPECT_EQ(find(diagnose(changed([](run::StepRecord&, std::uint32_t) {}, 12), "r.h5"), "leak"),
            std::nullopt);
}

TEST(Diagnosis, FindsMisSharding) {
  const run::RunData run = changed([](run::StepRecord& r, std::uint32_t) {
    r.gpu_memory = {100, 700, 50, 0, 0, 0, 100, 0, 50, 0, 0, 0};
    r.gpu_memory_peak = {850, 150};
  });
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "mis-sharding");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->cause, "experts are not spread over all GPUs");
}

TEST(Diagnosis, FindsOneExpertThatAllTokensTake) {
  const run::RunData run = changed([](run::StepRecord& r, std::uint32_t) {
    r.expert_kept = {4, 2, 1, 1, 2, 2, 2, 2};  // Expert 0 of layer 0: 4 of 4 tokens.
  });
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "one expert");
  ASSERT_TRUE(f);
  EXPECT_NE(f->symptom.find("100.0 % of the tokens choose MoE layer 1 expert 0"), std::string::npos)
      << f->symptom;
}

TEST(Diagnosis, FindsTheSlowLinkBesideAnIdleFastOne) {
  run::RunData r = run::make_run(sample_meta(Detail::kLayers), sample_inventory());
  r.inventory.links[1].bandwidth = {1e8};
  r.inventory.links[1].link_class = "pcie4";
  for (std::uint32_t s = 0; s < 8; ++s) {
    run::StepRecord record = sample_step(r.inventory, s);
    record.link_busy_ps[1] = 30 * kUs;
    run::append_step(r, record);
  }
  const std::optional<Finding> f = find(diagnose(r, "r.h5"), "slow link");
  ASSERT_TRUE(f);
  // 30 us busy, exchanges 20 us of 100 us: no more than 20 us can go, of which a tenth stays.
  EXPECT_NEAR(f->bound, 0.18, 1e-12);
}

TEST(Diagnosis, BlamesLatencyWhenTheBytesAreFew) {
  const run::RunData run = changed([](run::StepRecord& r, std::uint32_t) {
    for (run::LayerRecord& l : r.layers) {
      l.dispatch_ps = l.combine_ps = 5 * kUs;
      l.dispatch_floor_ps = l.combine_floor_ps = 1 * kUs;
    }
  });
  const std::optional<Finding> f = find(diagnose(run, "r.h5"), "latency");
  ASSERT_TRUE(f);
  EXPECT_NEAR(f->bound, 0.16, 1e-12);  // 4 exchanges, 4 us each, of 100 us.
}

TEST(Diagnosis, SaysWhatExchangesWaitForWhenTheyAreTheLargestPhase) {
  // 35 us of dispatch and 10 us of combine against 30 us each of attention and experts. Floors are
  // 14 of the layers' 20 us; layer 1 always has 3/2 times the mean on one GPU.
  const auto busy = [](run::StepRecord& r, std::uint32_t) {
    r.scalars.phase_ps[static_cast<std::size_t>(Phase::kDispatch)] += 25 * kUs;
    r.scalars.phase_ps[static_cast<std::size_t>(Phase::kExpert)] -= 25 * kUs;
    for (run::LayerRecord& l : r.layers) l.imbalance = 1;
    r.layers[1].imbalance = 1.5;
  };
  const Diagnosis d = diagnose(changed(busy), "r.h5");
  const std::optional<Finding> f = find(d, "exchange-bound");
  ASSERT_TRUE(f);
  EXPECT_NEAR(f->bound, 0.45, 1e-12);
  EXPECT_EQ(f->symptom,
            "dispatch 35.0 %, combine 10.0 % and collectives 0.0 % are 45.0 % of a step, more than "
            "any other phase; most of it on nvlink4 links (busiest up: 4.0 % of the time)");
  // 6 of 20 us latency; 7 us of layer 1 shrink by a third: 2.33 of 20 us.
  EXPECT_EQ(f->cause,
            "of dispatch and combine 30.0 % is path latency, 11.7 % uneven loads: the fullest GPU "
            "has 1.25 times the mean in a layer, 1.5 in MoE layer 3");
  EXPECT_EQ(find(diagnose(changed([](run::StepRecord&, std::uint32_t) {}), "r.h5"),
                 "exchange-bound"),
            std::nullopt);
}

TEST(Diagnosis, NamesTheStepAndPhaseOfATail) {
  run::RunData r = run::make_run(sample_meta(Detail::kLayers), sample_inventory());
  std::int64_t now = 0;
  for (std::uint32_t s = 0; s < 10; ++s) {
    run::StepRecord record = sample_step(r.inventory, s);
    record.scalars.start_ps = now;
    record.scalars.end_ps = now += 100 * kUs;
    if (s == 7) {
      record.scalars.end_ps = now += 200 * kUs;
      record.scalars.phase_ps[static_cast<std::size_t>(Phase::kCombine)] += 200 * kUs;
    }
    run::append_step(r, record);
  }
  const std::optional<Finding> f = find(diagnose(r, "r.h5"), "tail");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->symptom, "p99 of step time is 3 times the median");
  EXPECT_NE(f->cause.find("step 7: 175 us more combine"), std::string::npos) << f->cause;
}

}  // namespace switchyard::health
