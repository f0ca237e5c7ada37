// SPDX-License-Identifier: Apache-2.0
// Launch modes, calibrations inside the step loop, energy and money.
#include "sim/cost/cost.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/cost/economics.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard {
namespace {

using test::MemoryRun;
using test::run_in_memory;
using test::worked_scenario;

// The worked model: H 1024, 8 heads and 2 KV heads of 128, 8 experts of 2048, 1 byte per ps of HBM.
constexpr std::int64_t kGraph = 400'000;

sim::CostModel model_of(const scenario::Scenario& s) {
  return {s.model, s.dtype, s.activations, s.hardware.gpu_type(0), s.cost};
}

MemoryRun synthetic(std::vector<std::string> settings) {
  settings.insert(settings.begin(), "workload.routing={ synthetic = \"uniform\" }");
  return run_in_memory(worked_scenario(std::move(settings)), nullptr);
}

double metric(const MemoryRun& r, const std::string& name) {
  for (const run::Metric& m : r.data.metrics) {
    if (m.name == name) return m.value;
  }
  ADD_FAILURE() << name << " is not among the metrics";
  return 0;
}

std::string error_of(std::vector<std::string> settings) {
  try {
    worked_scenario(std::move(settings));
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

/// A calibration in the test's folder; `tables` is TOML.
std::string write_calibration(const std::string& tables) {
  const auto path = std::filesystem::absolute("c.toml").string();
  write_file(path,
             "schema = \"switchyard-calibration 1\"\ndevice = \"toy\"\nsource = \"made up\"\n"
             "licence = \"Apache-2.0\"\nhbm = \"1000 GB/s\"\nlink = \"100 GB/s\"\n"
             "peak = { bf16 = \"100 TFLOP/s\", fp32 = \"100 TFLOP/s\" }\n" +
                 tables);
  return path;
}

std::string table(const std::string& op, const std::string& shape, const std::string& points,
                  const std::string& library = "lib1") {
  return fmt::format(
      "[[tables]]\nop = \"{}\"\nlibrary = \"{}\"\ndtype = \"bf16\"\nshape = {}\n"
      "overhead = 0\nrate_share = 1\ncompute_share = 1\npoints = {}\n",
      op, library, shape, points);
}

TEST(LaunchMode, GraphPaysEachKernelLessAndTheStepOnce) {
  const auto eager = worked_scenario();
  const auto graph = worked_scenario({"cost.launch=graph", "cost.graph_kernel=\"0.4 us\""});
  const std::uint32_t rows[] = {3};
  EXPECT_EQ(model_of(eager).experts(rows).time.ps() - model_of(graph).experts(rows).time.ps(),
            2 * (1'000'000 - kGraph));
  EXPECT_EQ(model_of(eager).experts(rows).kernels, model_of(graph).experts(rows).kernels);
  EXPECT_EQ(model_of(eager).step_launch().time.ps(), 0);
  EXPECT_EQ(model_of(graph).step_launch().time.ps(), 1'000'000);
}

TEST(LaunchMode, FusedKeepsIntermediatesOnTheChip) {
  const auto s = worked_scenario({"cost.launch=fused", "cost.graph_kernel=\"0.4 us\""});
  const sim::CostModel cost = model_of(s);
  // Norm, QKV and RoPE without the normalised row (2·2,048) and Q, K, V (2·3,072): 3,150,848; core
  // and output as they are.
  const sim::SequenceWork one[] = {{1, 1024}};
  EXPECT_EQ(cost.attention(0, one).time.ps(), 3 * kGraph + 3'150'848 + 1'053'696 + 2'103'296);
  EXPECT_EQ(cost.attention(0, one).kernels, 3U);
  // One expert: 12,582,912 of weights, a row in and out, 2·2,048·2 B of inner values stay.
  const std::uint32_t rows[] = {1};
  EXPECT_EQ(cost.experts(rows).time.ps(), kGraph + 12'582'912 + 12'288 - 8'192);
  EXPECT_EQ(cost.experts(rows).kernels, 1U);
  // The normalised rows go on to the experts; logits and the gate's reading of the rows stay.
  EXPECT_EQ(cost.router(1, 1).time.ps(), 2 * kGraph + 4'096 + 32'768 + 3 * 2'048);
}

TEST(LaunchMode, EveryModeIsFasterThanTheOneBefore) {
  const double eager = metric(synthetic({}), "step time mean");
  const double graph =
      metric(synthetic({"cost.launch=graph", "cost.graph_kernel=\"0.4 us\""}), "step time mean");
  const double fused =
      metric(synthetic({"cost.launch=fused", "cost.graph_kernel=\"0.4 us\""}), "step time mean");
  EXPECT_LT(graph, eager);
  EXPECT_LT(fused, graph);
}

TEST(LaunchMode, RefusesWhatWouldDoNothing) {
  EXPECT_NE(error_of({"cost.launch=graph"}).find("cost.graph_kernel"), std::string::npos);
  EXPECT_NE(error_of({"cost.graph_kernel=\"1 us\""}).find("no effect"), std::string::npos);
  EXPECT_NE(error_of({"cost.launch=eagre"}).find("did you mean \"eager\"?"), std::string::npos);
  EXPECT_NE(error_of({"cost.library=\"x\""}).find("no calibration"), std::string::npos);
}

TEST(CalibratedCost, ReplacesTheTimeOfTheShapeItHas) {
  const std::string path = write_calibration(
      table("experts", "[1024, 2048, 3]", "[[4, 2, 2, 50], [8, 4, 2, 100]]") +
      table("experts", "[1024, 2048, 3]", "[[4, 2, 2, 500], [8, 4, 2, 1000]]", "lib2"));
  const auto s = worked_scenario({"cost.calibration=\"" + path + "\"", "cost.library=lib1"});
  const sim::CostModel cost = model_of(s), plain = model_of(worked_scenario());
  const std::uint32_t rows[] = {2, 2};
  const sim::OpCost c = cost.experts(rows);
  EXPECT_NEAR(c.time.us(), 50, 1);
  EXPECT_EQ(c.measured, 1U);
  EXPECT_EQ(c.extrapolated, 0U);
  EXPECT_EQ(c.bytes, plain.experts(rows).bytes) << "what is counted stays the roofline's";
  // No table for the head: the roofline as before.
  EXPECT_EQ(cost.head(1).time.ps(), plain.head(1).time.ps());
  EXPECT_EQ(cost.head(1).measured, 0U);
  // Another library.
  const auto other = worked_scenario({"cost.calibration=\"" + path + "\"", "cost.library=lib2"});
  EXPECT_NEAR(model_of(other).experts(rows).time.us(), 500, 10);
  // Far outside: marked.
  const std::uint32_t many[] = {4000, 4000};
  EXPECT_EQ(cost.experts(many).extrapolated, 1U);
  // Another shape has no measured time at all.
  const auto wide =
      worked_scenario({"cost.calibration=\"" + path + "\"", "model.expert_intermediate=1024"});
  EXPECT_EQ(model_of(wide).experts(rows).measured, 0U);
}

TEST(CalibratedCost, TwoLibrariesThatFitAreRefusedUntilOneIsNamed) {
  const std::string points = "[[4, 2, 2, 50]]";
  const std::string path =
      write_calibration(table("experts", "[1024, 2048, 3]", points, "one1") +
                        table("experts", "[1024, 2048, 3]", points, "other1") +
                        table("attention_decode", "[8, 2, 128, 0]", "[[2, 1025, 70]]", "flash"));
  const std::string calibration = "cost.calibration=\"" + path + "\"";
  EXPECT_NE(error_of({calibration})
                .find("2 libraries have times of this model's experts: one1, "
                      "other1"),
            std::string::npos)
      << error_of({calibration});
  EXPECT_NE(error_of({calibration, "cost.library=o"}).find("cost.library"), std::string::npos);
  const auto s = worked_scenario({calibration, "cost.library=one"});
  EXPECT_EQ(model_of(s).experts(std::vector<std::uint32_t>{2, 2}).measured, 1U);
  // An operation that the library knows nothing of takes the only one that does.
  const sim::SequenceWork two[] = {{1, 1024}, {1, 1024}};
  EXPECT_EQ(model_of(s).attention(0, two).measured, 1U);
}

TEST(CalibratedCost, TakesTheGroupedGemmOfTheStep) {
  const auto grouped = [](const char* variant, const char* points) {
    std::string t = table("experts", "[1024, 2048, 3]", points);
    return t.insert(t.find("dtype"), fmt::format("variant = \"{}\"\n", variant));
  };
  const std::string path = write_calibration(grouped("contiguous", "[[4, 2, 2, 500]]") +
                                             grouped("masked", "[[4, 2, 2, 50]]"));
  const std::string calibration = "cost.calibration=\"" + path + "\"";
  const std::uint32_t rows[] = {2, 2};
  sim::CostModel cost = model_of(worked_scenario({calibration}));
  cost.use_decode(true);
  EXPECT_NEAR(cost.experts(rows).time.us(), 50, 1);
  cost.use_decode(false);
  EXPECT_NEAR(cost.experts(rows).time.us(), 500, 1);
  cost.use_decode(true);
  EXPECT_NEAR(cost.experts(rows).time.us(), 50, 1);
  sim::CostModel always = model_of(worked_scenario({calibration, "cost.grouped_gemm=contiguous"}));
  always.use_decode(true);
  EXPECT_NEAR(always.experts(rows).time.us(), 500, 1);
  // The loop says which one: a step of one token a sequence, and one with prompts.
  const auto step = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> all{calibration, "workload.batch=32"};
    all.insert(all.end(), sets.begin(), sets.end());
    return metric(synthetic(all), "step time mean");
  };
  EXPECT_EQ(step({}), step({"cost.grouped_gemm=masked"}));
  EXPECT_LT(step({}), step({"cost.grouped_gemm=contiguous"}));
  const std::vector<std::string> prefill{"workload.kind=prefill", "workload.tokens=8"};
  const auto with = [&](const char* set) {
    std::vector<std::string> sets = prefill;
    sets.emplace_back(set);
    return step(sets);
  };
  EXPECT_EQ(step(prefill), with("cost.grouped_gemm=contiguous"));
  EXPECT_GT(step(prefill), with("cost.grouped_gemm=masked"));
}

TEST(CalibratedCost, RefusesAGroupedGemmThatIsNotThere) {
  const std::string path = write_calibration(table("gemm", "[8, 8]", "[[1, 5]]"));
  EXPECT_NE(error_of({"cost.calibration=\"" + path + "\"", "cost.grouped_gemm=masked"})
                .find("no masked grouped GEMM"),
            std::string::npos);
  EXPECT_NE(error_of({"cost.grouped_gemm=masked"}).find("no calibration"), std::string::npos);
  std::string odd = table("experts", "[1024, 2048, 3]", "[[4, 2, 2, 50]]");
  odd.insert(odd.find("dtype"), "variant = \"maskd\"\n");
  EXPECT_NE(error_of({"cost.calibration=\"" + write_calibration(odd) + "\""})
                .find("did you mean \"masked\"?"),
            std::string::npos);
}

TEST(CalibratedCost, AsksDecodeAndPrefillApart) {
  const std::string path =
      write_calibration(table("attention_decode", "[8, 2, 128, 0]", "[[2, 1025, 70]]") +
                        table("attention_prefill", "[8, 2, 128, 0]", "[[1, 512, 0, 300]]"));
  const auto s = worked_scenario({"cost.calibration=\"" + path + "\""});
  const sim::CostModel cost = model_of(s), plain = model_of(worked_scenario());
  const sim::SequenceWork mixed[] = {{1, 1024}, {512, 0}, {1, 1024}};
  const sim::OpCost c = cost.attention(0, mixed);
  EXPECT_EQ(c.measured, 2U);
  EXPECT_EQ(c.extrapolated, 0U);
  const double others = (plain.attention(0, mixed).time - plain.attention(0, {}).time).us();
  EXPECT_GT(c.time.us(), 370 * 0.99);
  EXPECT_LT(c.time.us(), 370 + others);
}

TEST(CalibratedCost, SaysInTheRunHowMuchWasMeasured) {
  const std::string path =
      write_calibration(table("experts", "[1024, 2048, 3]", "[[4, 2, 2, 50], [8, 4, 2, 100]]"));
  const MemoryRun r = synthetic({"cost.calibration=\"" + path + "\"", "workload.batch=32"});
  EXPECT_TRUE(r.result.violations.empty());
  const auto note =
      std::find_if(r.result.notes.begin(), r.result.notes.end(),
                   [](const std::string& n) { return n.starts_with("calibration toy"); });
  ASSERT_NE(note, r.result.notes.end());
  EXPECT_NE(note->find("EXTRAPOLATED"), std::string::npos) << *note;
  // The hash names the content, not the place.
  const auto a = worked_scenario({"cost.calibration=\"" + path + "\""});
  EXPECT_NE(scenario::scenario_hash(a), scenario::scenario_hash(worked_scenario()));
  EXPECT_EQ(scenario::canonical_text(a).find(path), std::string::npos);
}

TEST(CalibratedCost, BadFilesAreNamed) {
  EXPECT_NE(error_of({"cost.calibration=\"none.toml\""}).find("none.toml"), std::string::npos);
  const std::string path = write_calibration(table("gemm", "[8, 8]", "[[1, nan]]"));
  EXPECT_NE(error_of({"cost.calibration=\"" + path + "\""}).find("c.toml:16"), std::string::npos)
      << error_of({"cost.calibration=\"" + path + "\""});
  const std::string good = write_calibration(table("gemm", "[8, 8]", "[[1, 5]]"));
  EXPECT_NE(error_of({"cost.calibration=\"" + good + "\"", "cost.library=lib9"})
                .find("did you mean \"lib1\"?"),
            std::string::npos);
}

// C40: 300 W at 0.12 USD/kWh are 315.36 USD a year, 10,000 USD over three years 3,333.33; at 85
// tokens/s 1.361 USD per million tokens, 8.6 % of it electricity.
TEST(Economics, OneCardForAYear) {
  auto s = worked_scenario();
  s.hardware.gpus.resize(1);
  s.hardware.gpu_types[0].tdp_w = 300;
  s.hardware.gpu_types[0].idle_w = 300;
  s.economics.stated = true;
  s.economics.usd_per_kwh = 0.12;
  s.economics.gpu_usd = 10000;
  s.economics.years = 3;
  run::RunData run;
  run.totals.gpu_phase_ps.assign(run::kPhases, 0);
  run::StepScalars step;
  step.end_ps = 1'000'000'000'000'000;  // 1000 s
  step.tokens = 85'000;
  run.steps.push_back(step);
  const auto metrics = sim::energy_metrics(s, run);
  ASSERT_EQ(metrics.size(), 6U);
  EXPECT_NEAR(metrics[0].value, 300, 1e-9);
  EXPECT_NEAR(metrics[1].value, 300'000, 1e-6);
  EXPECT_NEAR(metrics[2].value, 300.0 / 85, 1e-9);
  EXPECT_NEAR(metrics[3].value, 3648.69 / (85 * 31.536), 1e-3);
  EXPECT_NEAR(metrics[4].value, 0.0864, 1e-4);
  // Steps of two replicas, recorded as they were planned: the second one ends first.
  step.start_ps = 100'000'000'000'000;
  step.end_ps = 400'000'000'000'000;
  step.tokens = 0;
  run.steps.push_back(step);
  const auto two = sim::energy_metrics(s, run);
  ASSERT_EQ(two.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(two[i].value, metrics[i].value) << i;
}

TEST(Economics, BreaksEvenAgainstAnApi) {
  // The card of C40: 85 tokens/s, 300 W at 0.12 USD/kWh, 10,000 USD over three years.
  auto s =
      worked_scenario({"economics={ electricity = \"0.12 USD\", gpu_price = \"10000 USD\", "
                       "api_price = \"2 USD\" }",
                       fmt::format("hardware.gpu_types.{}.idle=\"300 W\"",
                                   worked_scenario().hardware.gpu_types[0].name)});
  EXPECT_EQ(s.economics.api_usd, 2);
  s.hardware.gpus.resize(1);
  s.hardware.gpu_types[0].tdp_w = 300;
  run::RunData run;
  run.totals.gpu_phase_ps.assign(run::kPhases, 0);
  run::StepScalars step;
  step.end_ps = 1'000'000'000'000'000;  // 1000 s
  step.tokens = 85'000;
  run.steps.push_back(step);
  const auto of = [&](const std::string& name) {
    for (const run::Metric& m : sim::energy_metrics(s, run)) {
      if (m.name == name) return m.value;
    }
    ADD_FAILURE() << name;
    return 0.0;
  };
  const double dollars_a_second = 3648.693333 / 31'536'000;
  EXPECT_NEAR(of("break-even rate"), dollars_a_second / 2e-6, 1e-6);
  EXPECT_NEAR(of("break-even utilisation"), dollars_a_second / 2e-6 / 85, 1e-8);
  EXPECT_NEAR(of("GPU price per token rate"), 10000.0 / 85, 1e-9);
  // 85 tokens/s sell for 5,361.12 USD a year, electricity is 315.36.
  EXPECT_NEAR(of("payback"), 10000 / (85 * 2e-6 * 31'536'000 - 315.36), 1e-9);
  // Below the electricity alone nothing pays ever.
  s.economics.api_usd = 0.1;
  EXPECT_TRUE(std::isnan(of("payback")));
  EXPECT_GT(of("break-even utilisation"), 1);
  EXPECT_NE(error_of({"economics={ electricity = \"0.1 USD\", gpu_price = \"1 USD\", api_price = "
                      "\"0 USD\" }"})
                .find("api_price > 0 USD"),
            std::string::npos);
}

TEST(Economics, PowerFollowsTheBusyShare) {
  const auto s = worked_scenario();
  const std::string type = s.hardware.gpu_types[0].name;
  const std::vector<std::string> settings{
      fmt::format("hardware.gpu_types.{}.idle=\"100 W\"", type),
      fmt::format("hardware.gpu_types.{}.tdp=\"500 W\"", type), "workload.batch=16",
      "economics={ electricity = \"0.1 USD\", gpu_price = \"0 USD\", pue = 1.5, host_power = \"40 "
      "W\" }"};
  const MemoryRun r = synthetic(settings);
  const double watts = 1.5 * (8 * (100 + 400 * metric(r, "busy")) + 40);
  EXPECT_NEAR(metric(r, "mean power"), watts, watts * 1e-9);
  EXPECT_NEAR(metric(r, "energy"), watts * metric(r, "span") * 1e-3, watts * 1e-9);
  EXPECT_NEAR(metric(r, "electricity share of cost"), 1, 1e-12);
  EXPECT_NEAR(metric(r, "cost per million tokens"),
              metric(r, "energy per token") / 3.6e6 * 0.1 * 1e6, 1e-9);
}

TEST(Economics, IsNotGuessedWithoutIdlePower) {
  EXPECT_NE(error_of({"economics={ electricity = \"0.1 USD\", gpu_price = \"1 USD\" }"})
                .find("idle is not stated"),
            std::string::npos);
  const MemoryRun r = synthetic({});
  EXPECT_TRUE(std::none_of(r.data.metrics.begin(), r.data.metrics.end(),
                           [](const run::Metric& m) { return m.name == "energy"; }));
  EXPECT_NE(error_of({"economics={ electricity = 3, gpu_price = \"1 USD\" }"}).find("electricity"),
            std::string::npos);
}

TEST(Cost, Fp8WeightsRunInBf16UnlessTheInputsAreRounded) {
  // 8,192 tokens of the worked model: experts are bound by arithmetic, 2 FLOPs a weight and row.
  const std::vector<std::string> fp8{"model.dtype.experts=fp8", "model.dtype.shared=fp8",
                                     "hardware.gpu_types.toy.peak.fp8=200 TFLOP/s"};
  const auto with = [&](const char* more) {
    auto settings = fp8;
    if (*more != 0) settings.emplace_back(more);
    return worked_scenario(std::move(settings));
  };
  const std::vector<std::uint32_t> rows{65'536};
  const scenario::Scenario alone = with(""), rounded = with("model.dtype.gemm_inputs=fp8");
  const double launches = 0, slow = model_of(alone).experts(rows).time.seconds(),
               fast = model_of(rounded).experts(rows).time.seconds();
  const double flops = 65'536.0 * 3 * 2 * 1024 * 2048;
  const scenario::GpuType& gpu = alone.hardware.gpu_type(0);
  const auto at = [&](model::DType p) {
    return flops / (gpu.mfu_grouped * gpu.peak_for(p).value) + launches;
  };
  const double kernels = slow - at(model::DType::kBf16);
  EXPECT_GT(kernels, 0);
  EXPECT_LT(kernels, 20e-6) << "what is left is launches";
  EXPECT_NEAR(fast, kernels + at(model::DType::kF8E4M3), 1e-9);
  // The attention core, the traffic of hidden states and all-reduces keep the activations' format.
  EXPECT_EQ(model_of(alone).experts(rows).bytes, model_of(rounded).experts(rows).bytes);
  const std::vector<sim::SequenceWork> work{{.new_tokens = 512, .context = 512}};
  EXPECT_EQ(model_of(alone).partial_attention(work).time, model_of(rounded).partial_attention(work).time);
  EXPECT_EQ(rounded.network.payload.dispatch, model::DType::kBf16);
  EXPECT_NE(error_of({"model.dtype.gemm_inputs=fp32"}).find("is wider than the activations it is made of"),
            std::string::npos)
      << error_of({"model.dtype.gemm_inputs=fp32"});
}

TEST(Cost, PermutationAndSumCopyARowForEachSlotOfThePolicy) {
  const auto s = worked_scenario();
  sim::CostModel two = model_of(s);
  sim::CostModel four = model_of(s);
  four.use_slots(4);
  // HBM bytes: T (1 + k) H a and T (k + 2) H a.
  const double row = static_cast<double>(s.model.hidden_size) * 2;
  EXPECT_DOUBLE_EQ(two.router_permute(1000).bytes, 3000 * row);
  EXPECT_DOUBLE_EQ(four.router_permute(1000).bytes, 5000 * row);
  EXPECT_DOUBLE_EQ(two.combine_sum(1000).bytes, 4000 * row);
  EXPECT_DOUBLE_EQ(four.combine_sum(1000).bytes, 6000 * row);
}

TEST(Cost, LatentAttentionExpandsKeysAndValuesWhereThatIsLess) {
  // DeepSeek-V3: 128 heads, rank 512, rope 64, nope 128, v 128. Only the core depends on the cache.
  const model::ModelConfig v3 = model::read_model_config(std::string(SWITCHYARD_SOURCE_DIR) +
                                                         "/scenarios/models/deepseek_v3.json");
  const sim::CostModel cost = {
      v3, {}, model::DType::kBf16, worked_scenario().hardware.gpu_type(0), {}};
  const auto core = [&](std::uint64_t fresh, std::uint64_t cached) {
    const sim::SequenceWork one[] = {{fresh, cached}};
    const double projections = static_cast<double>(fresh) * 2 * 187'105'280.0;
    return cost.attention(0, one).flops - projections;
  };
  constexpr double kAbsorbed = 2.0 * 128 * (2 * 512 + 64), kExpanded = 2.0 * 128 * (192 + 128);
  constexpr double kAgain = 2.0 * 128 * 512 * (128 + 128);  // per cached token
  EXPECT_NEAR(core(4096, 0), 4096.0 * 4097 / 2 * kExpanded, 1);
  EXPECT_NEAR(core(1, 4096), 4097 * kAbsorbed, 1);
  EXPECT_NEAR(core(1024, 3072), (1024.0 * 3072 + 1024.0 * 1025 / 2) * kExpanded + 3072 * kAgain, 1);
  // Two tokens after a long cache: to make its keys and values again would be 80 times as much.
  EXPECT_NEAR(core(2, 100'000), 200'003 * kAbsorbed, 1);
  // A cached token: its row of the cache, then 320 values a head in BF16, written and read.
  const sim::SequenceWork more[] = {{4096, 1024}}, prompt[] = {{4096, 0}};
  EXPECT_NEAR(cost.attention(0, more).bytes - cost.attention(0, prompt).bytes,
              1024.0 * (576 * 2 + 2 * 128 * 320 * 2), 1);
}

TEST(CalibratedCost, AsksLatentAttentionOfOneNewTokenOnly) {
  const std::string root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
  const model::ModelConfig v3 = model::read_model_config(root + "models/deepseek_v3.json");
  scenario::CostSpec spec;
  spec.calibration = std::make_shared<const scenario::Calibration>(
      scenario::read_calibration(root + "calibrations/h800.toml"));
  const scenario::HardwareSpec h800 = scenario::read_hardware(root + "hardware/hgx_h800.toml");
  const auto cost_of = [&](const scenario::CostSpec& s) {
    return sim::CostModel(v3, {}, model::DType::kBf16, h800.gpu_type(0), s);
  };
  const sim::CostModel with = cost_of(spec), without = cost_of({});
  const std::vector<sim::SequenceWork> decode(64, {1, 16383}), prefill{{4096, 0}};
  EXPECT_EQ(with.attention(0, decode).measured, 1U);
  EXPECT_EQ(with.attention(0, prefill).measured, 0U);
  // FlashMLA takes 619 us for 64 sequences of 16,384 positions (InferSim); others are unchanged.
  const double others = without.attention(0, decode).time.us();
  sim::OpTimer timer(
      *spec.calibration,
      *sim::find_table(*spec.calibration, scenario::OpKind::kMlaDecode, "", "", model::DType::kBf16,
                       std::array<std::uint64_t, 3>{128, 512, 64})
           .table);
  EXPECT_NEAR(timer.time(std::array<double, 3>{64, 16384, 0}).us, 619, 0.15 * 619);
  EXPECT_LT(std::abs(with.attention(0, decode).time.us() - others), 0.25 * others);
  EXPECT_NE(with.attention(0, decode).time.ps(), without.attention(0, decode).time.ps());
}

TEST(Hardware, EveryFileThatShipsRunsAModelWithTheDefaultFormats) {
  const model::ModelConfig mixtral = model::read_model_config(
      std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/models/mixtral_8x7b.json");
  std::size_t types = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SWITCHYARD_SOURCE_DIR) +
                                                               "/scenarios/hardware")) {
    if (entry.path().extension() != ".toml") continue;
    const scenario::HardwareSpec hardware = scenario::read_hardware(entry.path().string());
    for (const scenario::GpuType& type : hardware.gpu_types) {
      ++types;
      EXPECT_NO_THROW(sim::CostModel(mixtral, {}, model::DType::kBf16, type, {}))
          << entry.path() << " " << type.name;
    }
  }
  EXPECT_GE(types, 18U);
}

}  // namespace
}  // namespace switchyard
