// SPDX-License-Identifier: Apache-2.0
// Coupled mode: the loop of rounds by itself, and the verb on a tiny checkpoint.
#include "experiments/coupled/coupled.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/trace/signals_file.hpp"
#include "experiments/cli/couple.hpp"
#include "sim/run/run_file.hpp"
#include "tests/cli/process.hpp"
#include "tests/engine/tokenizer_fixture.hpp"

namespace switchyard {
namespace {

using coupled::Changes;
using test::run_switchyard;
namespace fs = std::filesystem;

/// One decode row per expert given: sequence r, position 1, one MoE layer of four experts, k = 1.
RoutingTrace trace_of(const std::vector<std::uint16_t>& chosen) {
  RoutingTrace t;
  t.header.model = "test";
  t.header.gate = gate_mixtral(4, 1);
  t.header.layers = {0};
  t.header.candidates = 4;
  t.header.slots = 1;
  for (std::uint32_t r = 0; r < chosen.size(); ++r) {
    t.sequences.push_back({1, r, "", ""});
    t.tokens.sequence.push_back(r);
    t.tokens.position.push_back(1);
    t.tokens.token.push_back(0);
    t.tokens.phase.push_back(1);
    t.tokens.step.push_back(0);
  }
  t.step_begin = {0, chosen.size()};
  t.routing.chosen = chosen;
  return t;
}

/// A machine whose GPU 0 is as full as the share of rows that chose expert 0.
SignalTable machine_of(const RoutingTrace& t) {
  SignalTable s;
  s.gpus = 2;
  s.layers = 1;
  s.experts = 4;
  s.decodes = {1};
  s.start_ps = {0};
  s.end_ps = {1};
  double on_0 = 0;
  for (const std::uint16_t e : t.routing.chosen) on_0 += e == 0 ? 1 : 0;
  s.used = {on_0 / static_cast<double>(t.rows()), 0.5};
  s.elastic = {0, 0};
  s.placement = {0};
  s.first_gpu = {0, 1, 2, 3, 4};
  s.gpu = {0, 0, 1, 1};
  return s;
}

TEST(Coupled, IsStableInRoundOneWhenNothingReadsTheSignals) {
  std::uint32_t engines = 0, simulations = 0;
  const coupled::Outcome o = coupled::couple({[&](std::uint32_t round, const SignalTable* signals) {
                                                EXPECT_EQ(round, engines++);
                                                EXPECT_EQ(signals == nullptr, round == 0);
                                                return trace_of({0, 1, 2});
                                              },
                                              [&](std::uint32_t, const RoutingTrace& t) {
                                                ++simulations;
                                                return machine_of(t);
                                              }},
                                             5);
  EXPECT_TRUE(o.converged);
  EXPECT_EQ(o.rounds, (std::vector<Changes>{{0, 3}}));
  EXPECT_EQ(engines, 2U);
  EXPECT_EQ(simulations, 1U);
  EXPECT_EQ(coupled::describe(o), "converged in round 1 (changed decisions per round: 0 of 3)");
}

// All rows leave expert 0 when GPU 0 is more than half full, and come back when it is not: every
// round undoes the one before.
TEST(Coupled, NamesAnOscillation) {
  const coupled::Outcome o =
      coupled::couple({[](std::uint32_t, const SignalTable* signals) {
                         return signals != nullptr && signals->used[0] > 0.5 ? trace_of({2, 2, 2})
                                                                             : trace_of({0, 0, 0});
                       },
                       [](std::uint32_t, const RoutingTrace& t) { return machine_of(t); }},
                      5);
  EXPECT_FALSE(o.converged);
  EXPECT_EQ(o.rounds, (std::vector<Changes>{{3, 3}, {3, 3}}));
  ASSERT_TRUE(o.repeats.has_value());
  EXPECT_EQ(*o.repeats, 0U);
  EXPECT_EQ(
      coupled::describe(o),
      "NOT CONVERGED: round 2 repeats round 0, so it oscillates (changed decisions per round: "
      "3, 3 of 3)");
}

// One row more leaves in every round.
TEST(Coupled, SaysWhenTheRoundsAreOver) {
  const coupled::Outcome o =
      coupled::couple({[](std::uint32_t round, const SignalTable*) {
                         std::vector<std::uint16_t> chosen(8, 0);
                         for (std::uint32_t r = 0; r < round; ++r) chosen[r] = 1;
                         return trace_of(chosen);
                       },
                       [](std::uint32_t, const RoutingTrace& t) { return machine_of(t); }},
                      3);
  EXPECT_FALSE(o.converged);
  EXPECT_FALSE(o.repeats.has_value());
  EXPECT_EQ(o.trace.routing.chosen[2], 1);
  EXPECT_EQ(coupled::describe(o),
            "NOT CONVERGED in 3 rounds (changed decisions per round: 1, 1, 1 of 8)");
}

TEST(Coupled, CountsSetsNotOrdersAndRowsThatOnlyOneTraceHas) {
  RoutingTrace a = trace_of({0, 1, 2, 3});
  a.header.slots = 2;
  a.routing.chosen = {0, 1, 1, 2, 2, 3, 3, 0};
  RoutingTrace b = a;
  b.routing.chosen = {1, 0, 1, 2,
                      2, 3, 3, kNoExpert};  // the first in another order, the last lost one
  EXPECT_EQ(coupled::changed_decisions(a, a), (Changes{0, 4}));
  EXPECT_EQ(coupled::changed_decisions(a, b), (Changes{1, 4}));
  RoutingTrace longer = trace_of({0, 1, 2, 3, 0});
  EXPECT_EQ(coupled::changed_decisions(trace_of({0, 1, 2, 3}), longer), (Changes{1, 5}));
  EXPECT_EQ(coupled::changed_decisions(longer, trace_of({0, 1, 2, 3})), (Changes{1, 5}));
}

TEST(Coupled, KnowsWhatNeedsSignals) {
  const auto needs = [](const char* text) {
    return coupled::needs_signals(policy_from_text(text, "test"));
  };
  EXPECT_FALSE(needs(""));
  EXPECT_FALSE(needs("load_aware.u=queue capacity.rule=share"));
  EXPECT_TRUE(needs("load_aware.u=elastic"));
  EXPECT_TRUE(needs("groups.by=placement"));
  EXPECT_TRUE(needs("decode_rebalance.level=0.85"));
  EXPECT_TRUE(needs("temperature.place=before temperature.controller=across"));
  EXPECT_FALSE(needs("step_time=1 temperature.place=before temperature.controller=across"));
}

class CoupleVerb : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = testing_support::checkpoint_with_tokenizer("model");
    folder_ = test::fresh_folder("couple");
    write_file(folder_ / "p.txt", "int main()\nhello\nfor (;;)\n12345\n");
    // Every prompt has as many answer rows as the simulation has steps, so that the rows of a
    // simulated step are those of one engine step.
    write_file(folder_ / "s.toml",
               "[model]\nfile = \"" + model_.string() + "\"\n[hardware]\nfile = \"" +
                   test::source_path("scenarios/hardware/hgx_h100.toml").string() +
                   "\"\n[parallel]\nattention = \"dp\"\ndp = 8\n"
                   "ep = 8\n[workload]\nkind = \"decode\"\nbatch = 4\ncontext = 64\nsteps = 4\n"
                   "routing = { trace = \"trace.h5\" }\n[policy]\n"
                   "load_aware = { u = \"queue\", lambda = 0.4 }\n"
                   "capacity = { rule = \"share\", factor = 1.5 }\n[run]\ndetail = \"layers\"\n");
  }
  [[nodiscard]] std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> out{"couple",    "s.toml", "--model",   model_.string(),
                                 "--prompts", "p.txt",  "--max-new", "5",
                                 "-o",        "r.h5"};
    if (std::find(more.begin(), more.end(), "--rounds") == more.end()) {
      out.insert(out.end(), {"--rounds", "9"});
    }
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  [[nodiscard]] test::ProcessResult couple(std::vector<std::string> more = {}) const {
    return run_switchyard(arguments(std::move(more)), {folder_, {}});
  }
  fs::path model_, folder_;
};

double metric(const run::RunData& run, const std::string& name) {
  for (const run::Metric& m : run.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << name;
  return -1;
}

TEST_F(CoupleVerb, FindsAFixedPointWhereSimulatorAndEngineDecideAlike) {
  const auto r = couple({"--keep", "rounds", "--threads", "1"});
  ASSERT_EQ(r.exit_code, 0) << r.err << r.out;
  EXPECT_NE(r.out.find("converged in round"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("applied by coupled"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("conservation checks: all hold"), std::string::npos) << r.out;
  const run::RunData run = run::read_run(folder_ / "r.h5");
  EXPECT_EQ(run.meta.policy_way, "coupled");
  EXPECT_NE(run.meta.routing_source.find("under the signals of this model"), std::string::npos);
  EXPECT_EQ(metric(run, "coupled converged"), 1);
  const auto rounds = static_cast<std::uint32_t>(metric(run, "coupled rounds"));
  ASSERT_GE(rounds, 2U) << "the feedback must change a decision, or this test shows nothing";
  EXPECT_GT(metric(run, "coupled changed decisions, round 1"), 0);
  EXPECT_EQ(metric(run, "coupled changed decisions, round " + std::to_string(rounds)), 0);
  // The simulator, which decides again from the trace's candidates, gives every expert what the
  // engine gave it, step by step.
  const fs::path last = folder_ / "rounds" / ("round" + std::to_string(rounds));
  const RoutingTrace trace = read_trace(last / "trace.h5");
  std::uint32_t decode_steps = 0;
  for (std::uint32_t step = 0; step < trace.steps(); ++step) {
    const auto [begin, end] = trace.step_rows(step);
    if (trace.tokens.phase[begin] != 1) continue;
    std::vector<std::uint32_t> ran(2 * 8, 0);
    for (std::uint64_t row = begin; row < end; ++row) {
      for (std::uint32_t l = 0; l < 2; ++l) {
        for (std::uint32_t j = 0; j < trace.header.slots; ++j) {
          const std::uint16_t e = trace.routing.chosen[trace.slot_at(row, l, j)];
          if (e != kNoExpert) ++ran[l * 8 + e];
        }
      }
    }
    ASSERT_LT(decode_steps, 4U);
    for (std::size_t cell = 0; cell < 16; ++cell) {
      const run::ExpertSteps& experts = run.layer_experts[cell / 8];
      EXPECT_EQ(experts.kept[decode_steps * 8 + cell % 8], ran[cell])
          << "step " << decode_steps << " cell " << cell;
    }
    ++decode_steps;
  }
  EXPECT_EQ(decode_steps, 4U);
  // `trace --signals` with the kept signals is the engine's round.
  const fs::path before = folder_ / "rounds" / ("round" + std::to_string(rounds - 1));
  write_file(folder_ / "policy.toml",
             "load_aware = { u = \"queue\", lambda = 0.4 }\n"
             "capacity = { rule = \"share\", factor = 1.5 }\n");
  const auto t = run_switchyard(
      {"trace", "--model", model_.string(), "--prompts", "p.txt", "--max-new", "5", "--policy",
       "policy.toml", "--signals", (before / "signals.h5").string(), "-o", "t.h5"},
      {folder_, {}});
  ASSERT_EQ(t.exit_code, 0) << t.err;
  EXPECT_EQ(read_file(folder_ / "t.h5"), read_file(last / "trace.h5"));
  // `sim --signals-out` on the round's trace is the simulator's.
  const auto s = run_switchyard({"sim", "s.toml", "--trace", (before / "trace.h5").string(), "-o",
                                 "x.h5", "--signals-out", "x.signals.h5"},
                                {folder_, {}});
  ASSERT_EQ(s.exit_code, 0) << s.err;
  EXPECT_EQ(read_signals(folder_ / "x.signals.h5").table,
            read_signals(before / "signals.h5").table);
  // Any number of threads: the same bytes.
  const std::string one = read_file(folder_ / "r.h5");
  ASSERT_EQ(couple({"--threads", "2", "--quiet"}).exit_code, 0);
  EXPECT_EQ(read_file(folder_ / "r.h5"), one);
}

// Requests in pairs that arrive together, dealt in turns to two replicas of four GPUs, against each
// of them once on one such replica: the same machine, so the same decisions.
TEST_F(CoupleVerb, TwoReplicasWithTheSameRequestsDecideAsOne) {
  const std::vector<std::string> lines{"int main()", "hello", "for (;;)", "12345", "return 0"};
  std::string hardware = read_file(test::source_path("tests/sim/data/worked_hardware.toml"));
  write_file(folder_ / "eight.toml", hardware);
  for (const auto& [eight, four] : {std::pair<std::string, std::string>{"count = 8", "count = 4"},
                                    {"gpu[0-7]", "gpu[0-3]"}}) {
    const std::size_t at = hardware.find(eight);
    ASSERT_NE(at, std::string::npos);
    hardware.replace(at, eight.size(), four);
  }
  write_file(folder_ / "four.toml", hardware);
  const auto couple_of = [&](std::uint32_t replicas) {
    const std::string n = std::to_string(replicas);
    std::string prompts, arrivals = "arrival_ns,prompt_tokens,output_tokens\n";
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (std::uint32_t r = 0; r < replicas; ++r) {
        prompts += lines[i] + "\n";
        arrivals += std::to_string(1000 * i) + ",6,5\n";
      }
    }
    write_file(folder_ / ("p" + n + ".txt"), prompts);
    write_file(folder_ / ("a" + n + ".csv"), arrivals);
    write_file(folder_ / ("s" + n + ".toml"),
               "[model]\nfile = \"" + model_.string() + "\"\n[hardware]\nfile = \"" +
                   (replicas == 1 ? "four" : "eight") +
                   ".toml\"\n[parallel]\nep = 4\n[workload]\nkind = \"trace\"\n"
                   "routing = { trace = \"trace.h5\" }\n[workload.arrivals]\nfile = \"a" + n +
                   ".csv\"\n[workload.front_end]\nreplicas = " + n +
                   "\nbalance = \"round_robin\"\n[network]\nmodel = \"bottleneck\"\n"
                   "[policy]\nload_aware = { u = \"queue\", lambda = 0.4 }\n"
                   "capacity = { rule = \"share\", factor = 1.5 }\n");
    const auto r = run_switchyard(
        {"couple", "s" + n + ".toml", "--model", model_.string(), "--prompts", "p" + n + ".txt",
         "--max-new", "5", "--rounds", "12", "--keep", "rounds" + n, "-o", "r" + n + ".h5"},
        {folder_, {}});
    EXPECT_EQ(r.exit_code, 0) << r.err << r.out;
    EXPECT_NE(r.out.find("converged in round"), std::string::npos) << r.out;
    const run::RunData run = run::read_run(folder_ / ("r" + n + ".h5"));
    EXPECT_GT(metric(run, "coupled changed decisions, round 1"), 0);
    const auto rounds = static_cast<std::uint32_t>(metric(run, "coupled rounds"));
    return folder_ / ("rounds" + n) / ("round" + std::to_string(rounds));
  };
  const fs::path one = couple_of(1), two = couple_of(2);
  const RoutingTrace a = read_trace(one / "trace.h5"), b = read_trace(two / "trace.h5");
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> row_of;
  for (std::uint64_t r = 0; r < a.rows(); ++r) {
    row_of[{a.tokens.sequence[r], a.tokens.position[r]}] = r;
  }
  EXPECT_EQ(b.rows(), 2 * a.rows());
  for (std::uint64_t r = 0; r < b.rows(); ++r) {
    const auto same = row_of.find({b.tokens.sequence[r] / 2, b.tokens.position[r]});
    ASSERT_NE(same, row_of.end()) << r;
    for (std::uint32_t l = 0; l < 2; ++l) {
      for (std::uint32_t j = 0; j < b.header.slots; ++j) {
        ASSERT_EQ(b.routing.chosen[b.slot_at(r, l, j)],
                  a.routing.chosen[a.slot_at(same->second, l, j)])
            << "sequence " << b.tokens.sequence[r] << " position " << b.tokens.position[r];
      }
    }
  }
  // The signals say which replica each request and step were of, and where its experts are.
  const fs::path before = two.parent_path() / "round0";
  const SignalTable signals = read_signals(before / "signals.h5").table;
  ASSERT_EQ(signals.replicas(), 2U);
  EXPECT_EQ(signals.sequence_replica,
            (std::vector<std::uint32_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  for (std::uint32_t s = 0; s < signals.steps(); ++s) {
    const std::size_t first = std::size_t{signals.placement[s]} * 2 * 9;
    for (std::uint32_t at = signals.first_gpu[first]; at < signals.first_gpu[first + 17]; ++at) {
      EXPECT_EQ(signals.gpu[at] / 4, signals.replica[s]) << s;
    }
  }
  EXPECT_EQ(read_signals(one.parent_path() / "round0" / "signals.h5").table.replica.size(), 0U);
}

TEST_F(CoupleVerb, RefusesPrefillReplicas) {
  write_file(folder_ / "a.csv", "arrival_ns,prompt_tokens,output_tokens\n0,6,5\n");
  const auto r = couple({"--set", "parallel.ep=4", "--set",
                         "workload={kind=\"trace\",routing={trace=\"trace.h5\"},arrivals={file="
                         "\"a.csv\"},front_end={replicas=2,prefill_replicas=1}}"});
  EXPECT_EQ(r.exit_code, 2) << r.out;
  testing_support::expect_contains(r.err, "unsupported with prefill replicas");
  EXPECT_FALSE(fs::exists(folder_ / "r.h5"));
}

TEST_F(CoupleVerb, SaysNotConvergedAndStillWritesTheRun) {
  const auto r = couple({"--rounds", "1", "--quiet"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.out, "");
  const run::RunData run = run::read_run(folder_ / "r.h5");
  EXPECT_EQ(metric(run, "coupled converged"), 0);
  EXPECT_EQ(metric(run, "coupled rounds"), 1);
  EXPECT_NE(run.meta.routing_source.find("NOT CONVERGED in 1 rounds"), std::string::npos);
  // A policy that nothing of the machine reaches.
  const auto plain = couple({"--set", "policy={capacity={rule=\"share\",factor=1.5}}", "--json"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_NE(plain.out.find("converged in round 1 (changed decisions per round: 0 of"),
            std::string::npos)
      << plain.out;
}

TEST_F(CoupleVerb, RunsAPolicyThatCannotDoWithoutSignals) {
  const auto r = couple({"--set", "policy={load_aware={u=\"total\"}}"});
  EXPECT_EQ(r.exit_code, 0) << r.err << r.out;
  EXPECT_NE(r.out.find("no policy (it needs signals)"), std::string::npos) << r.out;
}

TEST_F(CoupleVerb, RefusesBadInputWithAPlace) {
  const auto refused = [&](std::vector<std::string> more) {
    const auto r = couple(std::move(more));
    EXPECT_EQ(r.exit_code, 2) << r.out;
    EXPECT_FALSE(fs::exists(folder_ / "r.h5"));
    return r.err;
  };
  const auto expect = [&](std::vector<std::string> more, const std::string& part) {
    testing_support::expect_contains(refused(std::move(more)), part);
  };
  expect({"--rounds", "0"}, "--rounds: rounds = 0. Violated: 1 <= rounds <= 100");
  expect({"--set", "model.file=\"mixtral_8x7b\""}, "2 MoE layers");
  expect({"--set", "workload.batch=0"}, "batch");
  expect({"--keep", "p.txt"}, "p.txt");
  expect({"--set", "policy={load_aware={u=\"quue\"}}"}, "did you mean");
  write_file(folder_ / "p.txt", "");
  expect({}, "p.txt");
  // The run file is no signals file; signals of another shape; signals without queues.
  const auto trace = [&](const std::string& policy, const std::string& signals) {
    write_file(folder_ / "p.txt", "hello\n");
    write_file(folder_ / "policy.toml", policy);
    const auto r = run_switchyard({"trace", "--model", model_.string(), "--prompts", "p.txt",
                                   "--policy", "policy.toml", "--signals", signals, "-o", "t.h5"},
                                  {folder_, {}});
    EXPECT_EQ(r.exit_code, 2) << r.out;
    return r.err;
  };
  write_file(folder_ / "p.txt", "int main()\nhello\nfor (;;)\n12345\n");
  ASSERT_EQ(
      couple({"--keep", "k", "--quiet", "--set", "policy={load_aware={u=\"total\"}}"}).exit_code,
      0);
  testing_support::expect_contains(trace("load_aware = { u = \"total\" }\n", "r.h5"),
                                   "this is a run file, expected a signals file");
  testing_support::expect_contains(
      trace("load_aware = { u = \"queue\" }\ncapacity = { rule = \"share\" }\n",
            "k/round0/signals.h5"),
      "holds no queues");
}

}  // namespace
}  // namespace switchyard
