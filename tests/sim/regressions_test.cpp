// SPDX-License-Identifier: Apache-2.0
// What an audit of the simulator found wrong, each as the scenario that showed it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/cost/cost.hpp"
#include "sim/serving/arrivals.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace {

using switchyard::InputError;
using switchyard::RoutingTrace;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace sim = switchyard::sim;
namespace run = switchyard::run;
namespace scenario = switchyard::scenario;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return text;
}

/// A scenario in the test's folder; "$S" is the folder of the shipped scenarios.
scenario::Scenario scenario_of(const std::string& text, std::vector<std::string> settings = {}) {
  const std::string shipped = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  switchyard::write_file("s.toml", replaced(text, "$S", shipped));
  scenario::ReadOptions options;
  options.settings = std::move(settings);
  options.presets_root = shipped;
  return scenario::read_scenario("s.toml", options);
}

MemoryRun sound_run(const scenario::Scenario& s, const RoutingTrace* trace = nullptr) {
  MemoryRun r = run_in_memory(s, trace);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

constexpr const char* kMixtral =
    "[model]\nfile = \"$S/models/mixtral_8x7b.json\"\n"
    "[hardware]\nfile = \"$S/hardware/hgx_h100.toml\"\n";

// ---- inputs ----

TEST(Audit, EveryShapeOfAModelIsInTheScenariosHash) {
  const std::string shipped =
      switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/models/gpt4_s1.json");
  const auto hash = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(shipped.find(from), std::string::npos) << from;
    switchyard::write_file("m.json", replaced(shipped, from, to));
    return scenario::scenario_hash(
        worked_scenario({"model.file=\"" + std::filesystem::absolute("m.json").string() + "\"",
                         "workload.routing={ synthetic = \"uniform\" }"}));
  };
  const auto plain = hash("64 layers", "64 layers");
  EXPECT_EQ(plain, hash("a total", "one total")) << "a note is no shape";
  EXPECT_NE(plain, hash("\"expert_matrices\": 3", "\"expert_matrices\": 2"));
  EXPECT_NE(plain, hash("[1024]", "[2048]"));
  EXPECT_NE(plain, hash("\"dense\"", "\"attention_only\""));
}

TEST(Audit, TheLastSettingOfAKeyCountsAlsoInsideAWholeSection) {
  const std::string section =
      "workload={ kind = \"decode\", batch = 4, context = 3, routing = { synthetic = \"uniform\" } "
      "}";
  EXPECT_EQ(worked_scenario({"workload.batch=9", section}).workload.batch, 4U);
  EXPECT_EQ(worked_scenario({section, "workload.batch=9"}).workload.batch, 9U);
  EXPECT_EQ(worked_scenario({"workload.steps=7", section}).workload.steps, 7U)
      << "a key that the section does not state stays";
}

TEST(Audit, LengthsKeepTheirMeanUnderTheCapOfTwentyMeans) {
  for (const std::string cv : {"0.5", "3.0", "10.0"}) {
    const auto s = worked_scenario(
        {"workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = { "
         "per_second = 1.0, requests = 1 }, lengths = { prompt = 1000, output = 1, prompt_cv = " +
         cv + " } }"});
    const sim::ArrivalSource source(s);
    constexpr std::uint32_t kDraws = 100'000;
    double sum = 0;
    for (std::uint32_t n = 0; n < kDraws; ++n) sum += source.at(n, 0).prompt;
    // Standard deviation of a capped length: at most sqrt(20 · mean · mean).
    EXPECT_NEAR(sum / kDraws, 1000, 5 * 4472 / std::sqrt(1.0 * kDraws)) << "cv " << cv;
  }
}

TEST(Audit, ATraceWhoseRowsEndEarlyMayPlaceExperts) {
  RoutingTrace trace =
      decode_trace({{{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, 8);
  const std::size_t width = trace.header.candidates;
  for (std::size_t i = 1; i < width; ++i) trace.routing.candidates[i] = switchyard::kNoExpert;
  trace.decisions_present = false;
  switchyard::replay(trace, switchyard::ReplayOptions::recorded(trace.header));
  for (const char* placement : {"eplb", "affinity", "topology_hot", "replicated"}) {
    std::vector<std::string> settings{std::string("parallel.placement=\"") + placement + "\""};
    if (std::string(placement) == "replicated") {
      settings.push_back("parallel.placement_options={ redundant = 8 }");
    }
    sound_run(worked_scenario(settings), &trace);
  }
}

// ---- the step loop ----

TEST(Audit, ALostGpuInPrefillFromATrace) {
  RoutingTrace trace =
      decode_trace({{{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, 8);
  std::fill(trace.tokens.phase.begin(), trace.tokens.phase.end(), std::uint8_t{0});
  const MemoryRun r = sound_run(worked_scenario({"workload.kind=\"prefill\"", "workload.tokens=4",
                                                 "workload.batch=8", "workload.steps=4",
                                                 "faults={ reload = \"25 GB/s\", events = [{ kind "
                                                 "= \"gpu_loss\", gpu = \"gpu1\", step = 2 }] }"}),
                                &trace);
  EXPECT_EQ(r.data.steps.size(), 4U);
}

TEST(Audit, APromptInChunksSamplesFromItsLastOne) {
  const MemoryRun r =
      sound_run(worked_scenario({"workload={ kind = \"prefill\", batch = 8, tokens = 4, steps = 3, "
                                 "warmup_steps = 1, routing = { synthetic = \"uniform\" } }"}),
                nullptr);
  // Embedding: 4 rows read and written, in one kernel; the head has one row a GPU.
  constexpr auto kHead = static_cast<std::size_t>(run::Phase::kHead);
  const std::int64_t embedding = r.data.steps[0].phase_ps[kHead];
  ASSERT_EQ(r.data.steps.size(), 4U);
  for (std::size_t s = 1; s < 3; ++s) EXPECT_EQ(r.data.steps[s].phase_ps[kHead], embedding) << s;
  EXPECT_EQ(embedding, 1'000'000 + 4 * 2 * 2048);
  // As in the worked example, of one token.
  EXPECT_EQ(r.data.steps[3].phase_ps[kHead], embedding + 19'848'896);
}

TEST(Audit, AnMlpRouterTakesItsTime) {
  const std::string shipped =
      switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/models/gpt4_s1.json");
  const auto cost = [&](const std::string& router) {
    switchyard::write_file(
        "m.json", replaced(shipped, "{\"kind\": \"hidden_mlp\", \"hidden\": [1024]}", router));
    const auto s =
        worked_scenario({"model.file=\"" + std::filesystem::absolute("m.json").string() + "\"",
                         "workload.routing={ synthetic = \"uniform\" }"});
    return sim::CostModel(s.model, s.dtype, s.activations, s.hardware.gpu_type(0), s.cost)
        .router(4, 4);
  };
  const sim::OpCost narrow = cost("{\"kind\": \"hidden_mlp\", \"hidden\": [1024]}");
  const sim::OpCost wide = cost("{\"kind\": \"hidden_mlp\", \"hidden\": [2048]}");
  // H·w + w·E weights in FP32, two FLOPs each for each of 4 rows; w values between them, BF16,
  // written and read.
  EXPECT_DOUBLE_EQ(wide.flops - narrow.flops, 2.0 * 4 * 1024 * (16384 + 16));
  EXPECT_DOUBLE_EQ(wide.bytes - narrow.bytes, 4.0 * 1024 * (16384 + 16) + 4 * 2 * 1024 * 2);
  EXPECT_GT(wide.time, narrow.time);
}

TEST(Audit, FlowsThatStartEarlyKeepToTheFloor) {
  const auto s = scenario_of(
      "[model]\nfile = \"$S/models/mixtral_8x7b.json\"\ndtype = { experts = \"int4\" }\n"
      "[hardware]\nfile = \"$S/hardware/l40s_pcie_8.toml\"\n"
      "[parallel]\nattention = \"hub\"\n"
      "[workload]\nkind = \"prefill\"\nbatch = 1\ntokens = 512\nsteps = 1\n"
      "routing = { synthetic = \"lognormal\", sigma = 1.5 }\n"
      "[network]\nmodel = \"flow\"\n");
  sound_run(s);
}

TEST(Audit, TheLongestQueueIsOfOneCopyOfTheExpert) {
  const auto s =
      scenario_of(std::string(kMixtral) +
                      "[parallel]\nep = 2\n"
                      "[workload]\nkind = \"decode\"\nbatch = 24\ncontext = 100\n"
                      "routing = { synthetic = \"uniform\" }\n"
                      "[policy]\n"
                      "capacity = { rule = \"share\", factor = 1.5, reroute = \"none\" }\n",
                  {"model.dtype.experts=\"int4\""});
  const MemoryRun r = sound_run(s);
  std::uint64_t overflow = 0, longest = 0;
  for (const run::StepScalars& step : r.data.steps) {
    overflow += step.overflow;
    longest = std::max(longest, step.longest_queue);
  }
  EXPECT_GT(overflow, 0U);
  EXPECT_GT(longest, 0U);
}

TEST(Audit, MfuIsOfTheFormatThatComputes) {
  const std::string rest =
      "[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 100\nsteps = 1\n"
      "routing = { synthetic = \"uniform\" }\n";
  const MemoryRun wide = sound_run(scenario_of(kMixtral + rest));
  const MemoryRun stored =
      sound_run(scenario_of(kMixtral + rest, {"model.dtype.experts=\"int4\""}));
  EXPECT_EQ(wide.data.inventory.gpus[0].peak.value, stored.data.inventory.gpus[0].peak.value)
      << "weights of 4 bits are computed in the activations' BF16";
}

TEST(Audit, APrefillOfFewPromptsHasFewMicroBatches) {
  const auto s =
      scenario_of(std::string(kMixtral) +
                  "[parallel]\nattention = \"pp\"\ndp = 2\npp = 4\nep = 2\nmicro_batches = 4\n"
                  "[workload]\nkind = \"prefill\"\nbatch = 2\ntokens = 64\nsteps = 1\n"
                  "routing = { synthetic = \"uniform\" }\n");
  const MemoryRun r = sound_run(s);
  const bool one =
      std::any_of(r.result.notes.begin(), r.result.notes.end(), [](const std::string& n) {
        return n.starts_with("pipeline") && n.find("1 micro-batches") != std::string::npos &&
               n.find("would 75 %") != std::string::npos;
      });
  EXPECT_TRUE(one);
}

TEST(Audit, HierarchicalInOneServerSaysThatItIsTheDirectExchange) {
  const MemoryRun r = sound_run(worked_scenario(
      {"workload.routing={ synthetic = \"uniform\" }", "network.algorithm=\"hierarchical\""}));
  EXPECT_TRUE(std::any_of(r.result.notes.begin(), r.result.notes.end(), [](const std::string& n) {
    return n.find("the exchanges are the direct ones") != std::string::npos;
  }));
}

// ---- several replicas ----

std::string serving(const std::string& rest) {
  return std::string(kMixtral) +
         "[parallel]\nep = 4\n[workload]\nkind = \"closed\"\n"
         "routing = { synthetic = \"uniform\" }\n"
         "[workload.arrivals]\nusers = 16\nrequests = 32\n"
         "[workload.lengths]\nprompt = 512\noutput = 2\n"
         "[workload.front_end]\nreplicas = 2\n" +
         rest;
}

TEST(Audit, AStepOfOneReplicaIsComparedWithItsOwnGpus) {
  const MemoryRun r = sound_run(scenario_of(serving("")));
  double imbalance = 0, waits = 0;
  for (std::size_t i = 0; i < r.data.steps.size(); ++i) {
    imbalance += r.data.steps[i].imbalance / static_cast<double>(r.data.steps.size());
    // Phases of the four GPUs of the step fill its time; those of the others are 0.
    double phases = 0;
    for (std::size_t j = 0; j < 8 * run::kPhases; ++j) {
      phases += static_cast<double>(r.data.gpus.phase_ps[i * 8 * run::kPhases + j]);
    }
    waits += phases / static_cast<double>(r.data.steps[i].end_ps - r.data.steps[i].start_ps);
  }
  EXPECT_LT(imbalance, 1.6) << "max / mean of four GPUs with uniform routing; of eight it is 2 up";
  EXPECT_NEAR(waits / static_cast<double>(r.data.steps.size()), 4, 1e-6);
}

TEST(Audit, OneReplicasStepDoesNotWaitForTheOthersWeights) {
  sound_run(scenario_of(serving("[memory.loading]\nfrom = \"host\"\nstart = \"by_layer\"\n")));
}

TEST(Audit, RequestsThatArriveWhileWeightsLoadShareTheFirstStep) {
  const auto s = scenario_of(std::string(kMixtral) +
                             "[parallel]\nep = 4\n[workload]\nkind = \"open\"\n"
                             "routing = { synthetic = \"uniform\" }\n"
                             "[workload.arrivals]\nper_second = 200.0\nrequests = 16\n"
                             "[workload.lengths]\nprompt = 128\noutput = 2\n"
                             "[workload.front_end]\nreplicas = 1\n"
                             "[memory.loading]\nfrom = \"host\"\n");
  const MemoryRun r = sound_run(s);
  ASSERT_EQ(r.data.requests.size(), 16U);
  const std::int64_t begin = r.data.requests[0].scheduled_ps;
  ASSERT_GT(begin, 0);
  for (const run::RequestRecord& q : r.data.requests) {
    if (q.arrival_ps < begin) {
      EXPECT_EQ(q.scheduled_ps, begin) << "request " << q.id;
    }
  }
}

TEST(Audit, AnAlarmsPolicyWithMoreExpertsPaysForThem) {
  const std::string policy =
      "[soft_balance]\nlimit = 100000\nk3 = \"activate\"\nk3_memory = 0.0001\n";
  switchyard::write_file("p3.toml", policy);
  const std::string work = std::string(kMixtral) +
                           "[workload]\nkind = \"decode\"\nbatch = 2048\ncontext = 16\nsteps = 3\n"
                           "routing = { synthetic = \"uniform\" }\n";
  const MemoryRun own = sound_run(scenario_of(work + "[policy]\nfile = \"p3.toml\"\n"));
  const MemoryRun alarm =
      sound_run(scenario_of(
          work + "[[monitor.alarms]]\nsignal = \"step_time\"\nabove = \"1 us\"\nwindow = 1\n"
                 "action = \"policy\"\npolicy = \"p3.toml\"\n"));
  // Norm, gate and the permutation of three copies; which experts they go to is drawn otherwise.
  const std::vector<std::int64_t>& a = own.data.layer_steps.router_ps;
  const std::vector<std::int64_t>& b = alarm.data.layer_steps.router_ps;
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  EXPECT_EQ(a.back(), b.back());
  EXPECT_LT(b.front(), b.back()) << "two copies before the alarm";
}

}  // namespace
