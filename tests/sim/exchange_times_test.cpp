// SPDX-License-Identifier: Apache-2.0
// What a scenario takes from a calibration beside experts and attention: GEMMs of FFNs and latent
// projections, exchanges, the host's time. On the machine of the worked example (sim/README.md).
#include "sim/cost/exchange_times.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/cost/cost.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard {
namespace {

using test::MemoryRun;
using test::worked_scenario;

constexpr std::int64_t kUs = 1'000'000;
constexpr auto kDispatch = static_cast<std::size_t>(run::Phase::kDispatch);
constexpr auto kCombine = static_cast<std::size_t>(run::Phase::kCombine);
constexpr auto kCollective = static_cast<std::size_t>(run::Phase::kCollective);

const std::string kHead =
    "schema = \"switchyard-calibration 1\"\ndevice = \"toy\"\nsource = \"made up\"\n"
    "licence = \"Apache-2.0\"\nhbm = \"1000 GB/s\"\nlink = \"100 GB/s\"\n"
    "peak = { bf16 = \"100 TFLOP/s\", fp32 = \"100 TFLOP/s\" }\n";

std::string table(const std::string& op, const std::string& variant, const std::string& shape,
                  const std::string& points, const std::string& library = "lib") {
  return fmt::format(
      "[[tables]]\nop = \"{}\"\nlibrary = \"{}\"\n{}dtype = \"bf16\"\nshape = {}\n"
      "overhead = 0\nrate_share = 1\ncompute_share = 1\npoints = {}\n",
      op, library, variant.empty() ? "" : fmt::format("variant = \"{}\"\n", variant), shape,
      points);
}

/// The scenario's key for a calibration of these tables.
std::string calibration(const std::string& tables) {
  const auto path = std::filesystem::absolute("exchanges.toml").string();
  write_file(path, kHead + tables);
  return "cost.calibration=\"" + path + "\"";
}

/// Token t on GPU t chooses experts t + 1 and t + 2: every GPU sends and receives two copies of
/// 2,048 B each way in both layers. Uniform routing would send 7 · 1/4 copies of a token: 2 / 1.75
/// tokens, which is 1.
MemoryRun even(std::vector<std::string> settings) {
  std::vector<std::vector<std::uint16_t>> tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 8), static_cast<std::uint16_t>((t + 2) % 8)});
  }
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=8");
  MemoryRun r = test::run_in_memory(worked_scenario(std::move(settings)), &trace);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

MemoryRun uniform(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"workload.routing={ synthetic = \"uniform\" }",
                                     "workload.batch=8", "workload.context=64"});
  MemoryRun r = test::run_in_memory(worked_scenario(std::move(settings)), nullptr);
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
  return r;
}

std::int64_t duration(const MemoryRun& r) {
  return r.data.steps[0].end_ps - r.data.steps[0].start_ps;
}
std::int64_t phase(const MemoryRun& r, std::size_t p) { return r.data.steps[0].phase_ps[p]; }

bool says(const MemoryRun& r, const std::string& part) {
  return std::any_of(r.result.notes.begin(), r.result.notes.end(),
                     [&](const std::string& n) { return n.find(part) != std::string::npos; });
}
std::string all_notes(const MemoryRun& r) {
  return fmt::format("{}", fmt::join(r.result.notes, "\n"));
}

/// What reading, or asking every question of the scenario, answers.
std::string error_of(std::vector<std::string> settings) {
  try {
    sim::check_scenario(worked_scenario(std::move(settings)));
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

const std::string kCalibrated = "cost.exchange=calibrated";

TEST(ExchangeTimes, DispatchAndCombineTakeTheTablesOfTheirShape) {
  const std::string both = table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]") +
                           table("combine", "normal", "[1024, 2, 8, 8, 20]", "[[1, 40]]");
  const MemoryRun plain = even({});
  const MemoryRun r = even({calibration(both), kCalibrated});
  // Combine also sums the rows.
  const std::int64_t model = 2'040'960;
  EXPECT_EQ(phase(r, kDispatch), 2 * 30 * kUs);
  EXPECT_EQ(phase(r, kCombine) - phase(plain, kCombine), 2 * (40 * kUs - model));
  EXPECT_EQ(duration(r) - duration(plain), 2 * (70 * kUs - 2 * model));
  EXPECT_EQ(r.data.steps[0].bytes_sent, plain.data.steps[0].bytes_sent);
  EXPECT_TRUE(says(r,
                   "4 exchanges are measured ones, 0 of them EXTRAPOLATED: dispatch by lib "
                   "normal of 20 SMs, combine by lib normal of 20 SMs"))
      << all_notes(r);
  EXPECT_TRUE(says(r,
                   "0 times of operations are measured ones, 0 of them EXTRAPOLATED by the "
                   "roofline; all other operations are the roofline's"))
      << all_notes(r);
  EXPECT_TRUE(says(r, "times came from 2 of its 2 tables: dispatch 1 of 1, combine 1 of 1"))
      << all_notes(r);
  // Without the key, and without the tables, the network model's.
  const MemoryRun model_run = even({calibration(both)});
  EXPECT_EQ(duration(model_run), duration(plain));
  EXPECT_TRUE(says(model_run, "the network model times exchanges (cost.exchange")) << all_notes(r);
  const MemoryRun half = even(
      {calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]")), kCalibrated});
  EXPECT_EQ(duration(half) - duration(plain), 2 * (30 * kUs - model));
  EXPECT_TRUE(says(half,
                   "the network model times combine (no normal table of hidden 1024, top 2 "
                   "of 8 experts, 8 GPUs"))
      << all_notes(half);
}

TEST(ExchangeTimes, TheBusiestPortSaysHowManyTokensTheyAreOf) {
  // Three tokens of GPU 0 and 5 of others go to experts 1 and 2: GPUs 1 and 2 receive the most.
  const std::string points = "[[1, 30], [2, 60], [4, 120], [8, 240]]";
  const auto tables = calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 20]", points));
  std::vector<std::vector<std::uint16_t>> hot(8, {1, 2});
  const RoutingTrace trace = test::decode_trace({hot, hot}, 8);
  const MemoryRun r =
      test::run_in_memory(worked_scenario({tables, kCalibrated, "workload.batch=8"}), &trace);
  EXPECT_TRUE(r.result.violations.empty());
  // GPUs 1 and 2 get 7 copies each: 7 / 1.75 = 4 tokens; even routing is 1 token.
  EXPECT_NEAR(static_cast<double>(phase(r, kDispatch)), 2 * 120.0 * kUs, 0.02 * 240 * kUs);
  EXPECT_NEAR(static_cast<double>(phase(even({tables, kCalibrated}), kDispatch)), 2 * 30.0 * kUs,
              0.02 * 60 * kUs);
}

TEST(ExchangeTimes, LowLatencyWantsOneCopyPerExpertAsItWasMeasured) {
  const std::string tables =
      calibration(table("dispatch", "low_latency", "[1024, 2, 8, 8, 0]", "[[1, 21]]"));
  const std::vector<std::string> as_measured{
      tables, kCalibrated, "network.dispatch=per_expert",
      "network.payload={ dispatch = \"fp8\", header = \"16 B\" }"};
  const MemoryRun r = even(as_measured);
  EXPECT_EQ(phase(r, kDispatch), 2 * 21 * kUs);
  EXPECT_TRUE(says(r, "dispatch by lib low_latency")) << all_notes(r);
  // Copies of another size are another exchange.
  EXPECT_NE(error_of({tables, kCalibrated, "network.dispatch=per_expert"})
                .find("copies have 2048 B, those of the low_latency tables 1072 B"),
            std::string::npos)
      << error_of({tables, kCalibrated, "network.dispatch=per_expert"});
  EXPECT_NE(error_of({tables, kCalibrated}).find("no normal table of hidden 1024"),
            std::string::npos);
}

TEST(ExchangeTimes, TheMostSmsUnlessStated) {
  const std::string tables =
      calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 8]", "[[1, 50]]") +
                  table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]"));
  EXPECT_EQ(phase(even({tables, kCalibrated}), kDispatch), 2 * 30 * kUs);
  EXPECT_EQ(phase(even({tables, kCalibrated, "cost.exchange_sms=8"}), kDispatch), 2 * 50 * kUs);
  // Another number is a mistake, also where an alltoall could serve.
  for (const std::string& more :
       {std::string(), table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl")}) {
    const std::string e = error_of(
        {calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 8]", "[[1, 50]]") +
                     table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]") + more),
         kCalibrated, "cost.exchange_sms=9"});
    EXPECT_NE(e.find("--set: cost.exchange_sms: no dispatch table of 9 SMs for hidden 1024, top 2 "
                     "of 8 experts, 8 GPUs: there are those of 8, 20 SMs"),
              std::string::npos)
        << e;
  }
  // Nothing that takes SMs at all.
  const std::string nccl =
      calibration(table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl"));
  EXPECT_EQ(error_of({nccl, kCalibrated}), "accepted");
  const std::string e = error_of({nccl, kCalibrated, "cost.exchange_sms=8"});
  EXPECT_NE(e.find("--set: cost.exchange_sms: means nothing: no exchange takes a table of its SMs "
                   "(dispatch: by nccl alltoall; combine: by nccl alltoall)"),
            std::string::npos)
      << e;
}

TEST(ExchangeTimes, TheMostSmsAreThoseOfTheLibraryThatIsTaken) {
  const std::string tables =
      table("dispatch", "normal", "[1024, 2, 8, 8, 24]", "[[1, 30]]", "deepep") +
      table("dispatch", "normal", "[1024, 2, 8, 8, 8]", "[[1, 70]]", "mori") +
      table("dispatch", "normal", "[1024, 2, 8, 8, 16]", "[[1, 50]]", "mori") +
      table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl");
  const auto with = [&](std::vector<std::string> more) {
    more.push_back(calibration(tables));
    more.push_back(kCalibrated);
    return more;
  };
  EXPECT_EQ(phase(even(with({"cost.exchange_library=mori"})), kDispatch), 2 * 50 * kUs);
  EXPECT_EQ(phase(even(with({"cost.library=mori"})), kDispatch), 2 * 50 * kUs);
  EXPECT_EQ(phase(even(with({"cost.exchange_library=deepep"})), kDispatch), 2 * 30 * kUs);
  // The larger number of SMs chooses no library.
  EXPECT_NE(error_of(with({})).find("--set: cost.calibration: the calibration has dispatch of "
                                    "deepep and mori for hidden 1024"),
            std::string::npos)
      << error_of(with({}));
  // One stated number does, where one library has it.
  EXPECT_EQ(phase(even(with({"cost.exchange_sms=8"})), kDispatch), 2 * 70 * kUs);
}

TEST(ExchangeTimes, ANamedLibraryIsTheOneThatIsTaken) {
  const std::string both =
      table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]", "deepep") +
      table("combine", "normal", "[1024, 2, 8, 8, 20]", "[[1, 40]]", "deepep") +
      table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl");
  const std::string tables =
      calibration(both + table("collective", "all_reduce", "[8]", "[[16384, 9]]", "custom"));
  EXPECT_EQ(phase(even({tables, kCalibrated}), kDispatch), 2 * 30 * kUs);
  const MemoryRun nccl = even({tables, kCalibrated, "cost.exchange_library=nccl"});
  EXPECT_EQ(phase(nccl, kDispatch), 2 * 25 * kUs);
  EXPECT_TRUE(says(nccl, "combine by nccl alltoall")) << all_notes(nccl);
  // No alltoall of another library in place of a table that the named one lacks.
  const MemoryRun half =
      even({calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]", "deepep") +
                        table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl")),
            kCalibrated, "cost.exchange_library=deepep"});
  EXPECT_EQ(phase(half, kDispatch), 2 * 30 * kUs);
  EXPECT_TRUE(says(half, "the network model times combine (no normal table of \"deepep\" of "))
      << all_notes(half);
  // A library that no exchange of the layout takes anything of.
  const std::string custom = error_of(
      {calibration(both + table("collective", "all_reduce", "[8]", "[[16384, 9]]", "custom")),
       kCalibrated, "cost.exchange_library=custom"});
  EXPECT_NE(custom.find("--set: cost.exchange_library: means nothing: no exchange takes a table of "
                        "\"custom\" (dispatch: by deepep normal; combine: by deepep normal)"),
            std::string::npos)
      << custom;
}

TEST(ExchangeTimes, AWholeNameMeansThatLibrary) {
  const std::string tables =
      calibration(table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl2.29.2") +
                  table("collective", "alltoall", "[8]", "[[4681, 35]]", "nccl"));
  EXPECT_EQ(phase(even({tables, kCalibrated, "cost.exchange_library=nccl"}), kDispatch),
            2 * 35 * kUs);
  EXPECT_EQ(phase(even({tables, kCalibrated, "cost.exchange_library=nccl2"}), kDispatch),
            2 * 25 * kUs);
  EXPECT_NE(error_of({tables, kCalibrated, "cost.exchange_library=ncc"})
                .find("collective of nccl2.29.2 and nccl"),
            std::string::npos);
}

TEST(ExchangeTimes, AnAllToAllServesLayoutsWithoutATableOfTheirOwn) {
  // 4,096 B at the busiest port are 7/8 of a buffer of 4,681.
  const std::string tables =
      calibration(table("collective", "alltoall", "[8]", "[[4681, 25]]", "nccl"));
  const MemoryRun r = even({tables, kCalibrated});
  EXPECT_EQ(phase(r, kDispatch), 2 * 25 * kUs);
  EXPECT_TRUE(says(r, "combine by nccl alltoall")) << all_notes(r);
}

TEST(ExchangeTimes, CollectivesTakeTheirBuffer) {
  // Eight sequences of one token: 8 · 1,024 · 2 B.
  const std::vector<std::string> tp{"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8"};
  const auto with = [&](const std::string& tables, std::vector<std::string> more = {}) {
    more.insert(more.end(), tp.begin(), tp.end());
    more.push_back(calibration(tables));
    more.push_back(kCalibrated);
    return more;
  };
  const std::string reduce = table("collective", "all_reduce", "[8]", "[[16384, 50]]", "nccl");
  const MemoryRun r = uniform(with(reduce));
  EXPECT_EQ(phase(r, kCollective), 4 * 50 * kUs) << "after attention and experts of two layers";
  EXPECT_EQ(phase(uniform(with(reduce, {"network.collective=tree"})), kCollective), 4 * 50 * kUs)
      << "the library has its own algorithm";
  const std::string parts = table("collective", "reduce_scatter", "[8]", "[[16384, 31]]", "nccl") +
                            table("collective", "all_gather", "[8]", "[[16384, 17]]", "nccl");
  // One more gather before the head.
  EXPECT_EQ(phase(uniform(with(parts, {"parallel.sequence_parallel=true"})), kCollective),
            (4 * 31 + 5 * 17) * kUs);
  // Groups of two have tables of two.
  std::vector<std::string> pairs = with(reduce);
  for (const char* s : {"parallel.dp=4", "parallel.tp=2", "parallel.ep=2"}) pairs.emplace_back(s);
  EXPECT_NE(error_of(pairs).find("all-reduce: no all_reduce of 2 GPUs"), std::string::npos)
      << error_of(pairs);
}

TEST(ExchangeTimes, SeveralLibrariesAreForTheScenarioToChoose) {
  const std::vector<std::string> tp{
      "parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", kCalibrated,
      calibration(table("collective", "all_reduce", "[8]", "[[16384, 50]]", "nccl") +
                  table("collective", "all_reduce", "[8]", "[[16384, 9]]", "custom"))};
  EXPECT_NE(error_of(tp).find(
                "--set: cost.calibration: the calibration has collective of nccl and custom"),
            std::string::npos)
      << error_of(tp);
  auto chosen = tp;
  chosen.emplace_back("cost.exchange_library=custom");
  EXPECT_EQ(phase(uniform(chosen), kCollective), 4 * 9 * kUs);
  chosen.back() = "cost.exchange_library=cust0m";
  EXPECT_NE(error_of(chosen).find("did you mean \"custom\"?"), std::string::npos);
}

TEST(ExchangeTimes, ChunksAndHalvesOfABatchTakeThemToo) {
  const auto tables = [](const char* us) {
    return calibration(
        table("dispatch", "normal", "[1024, 2, 8, 8, 20]", fmt::format("[[1, {}]]", us)));
  };
  EXPECT_GE(duration(even({tables("300"), kCalibrated, "network.chunks=2"})),
            duration(even({tables("30"), kCalibrated, "network.chunks=2"})) + 2 * 2 * 270 * kUs);
  const std::vector<std::string> halves{"network.two_batch=true", "workload.batch=16"};
  const auto run = [&](const char* us) {
    std::vector<std::string> s{tables(us), kCalibrated};
    s.insert(s.end(), halves.begin(), halves.end());
    return uniform(s);
  };
  EXPECT_GT(duration(run("300")), duration(run("30")) + 2 * 270 * kUs);
}

TEST(ExchangeTimes, NoTableIsFasterThanTheLinks) {
  const MemoryRun r =
      even({calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 0.001]]")),
            kCalibrated});
  // 4,096 B at 100 GB/s.
  EXPECT_NEAR(static_cast<double>(phase(r, kDispatch)), 2 * 40'960, 4);
}

TEST(ExchangeTimes, AreRefusedWhereTheTablesSayNothing) {
  const std::string tables =
      calibration(table("dispatch", "normal", "[1024, 2, 8, 8, 20]", "[[1, 30]]"));
  const auto refused = [&](std::vector<std::string> more, const std::string& part) {
    more.push_back(tables);
    more.push_back(kCalibrated);
    const std::string e = error_of(more);
    EXPECT_NE(e.find(part), std::string::npos) << e;
    EXPECT_NE(e.find("--set"), std::string::npos) << e;
  };
  refused({"network.model=flow"}, "unsupported with network.model = \"flow\"");
  refused({"network.algorithm=ring"}, "unsupported with network.algorithm");
  refused({"network.dispatch=per_node"}, "unsupported with network.dispatch");
  refused({"network.payload={ wire = \"int4\" }"}, "unsupported with network.payload.wire");
  refused({"parallel.attention=hub"}, "unsupported with parallel.attention");
  refused({"faults={ events = [{ kind = \"link_degraded\", factor = 0.5, probability = 1 }] }"},
          "unsupported with cost.exchange = \"calibrated\"");
  refused({"parallel.ep=4"},
          "cost.exchange: no table of the calibration fits (dispatch: no normal");
  refused({"parallel.ep=1"}, "means nothing: the layout has no dispatch");
  // Hidden states pass between two stages beside the exchanges inside them.
  const auto four = [](std::vector<std::string> more) {
    more.push_back(calibration(table("collective", "all_reduce", "[4]", "[[16384, 50]]", "nccl")));
    for (const char* key : {"cost.exchange=calibrated", "parallel.attention=tp", "parallel.tp=4",
                            "parallel.ep=4", "network.model=bottleneck"}) {
      more.emplace_back(key);
    }
    return error_of(more);
  };
  EXPECT_EQ(four({"parallel.dp=2"}), "accepted");
  const std::string staged = four({"parallel.dp=1", "parallel.pp=2"});
  EXPECT_NE(staged.find("all-reduce: groups, stages or copies of experts share links"),
            std::string::npos)
      << staged;
  EXPECT_NE(error_of({kCalibrated}).find("there is no calibration"), std::string::npos);
  EXPECT_NE(error_of({tables, "cost.exchange_sms=8"}).find("means nothing"), std::string::npos);
}

/// Costs of DeepSeek-V3 on one H800 with these tables; without any the roofline's.
sim::CostModel v3(const std::string& tables) {
  const std::string root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
  scenario::CostSpec spec;
  if (!tables.empty()) {
    spec.calibration = std::make_shared<const scenario::Calibration>(
        scenario::parse_calibration(kHead + tables, "v3.toml"));
  }
  return {model::read_model_config(root + "models/deepseek_v3.json"),
          {},
          model::DType::kBf16,
          scenario::read_hardware(root + "hardware/hgx_h800.toml").gpu_type(0),
          spec};
}

std::string gemm(std::uint64_t n, std::uint64_t k, double us, std::uint64_t m = 16,
                 const std::string& library = "lib") {
  return table("gemm", "", fmt::format("[{}, {}]", n, k), fmt::format("[[{}, {}]]", m, us),
               library);
}

TEST(CalibratedGemms, DenseAndSharedFfnsTakeTheTablesOfTheirShapes) {
  // 18,432 columns in the dense layers, 2,048 of the shared expert; 7,168 hidden.
  const sim::OpCost roof = v3("").dense(0, 16);
  const sim::OpCost both = v3(gemm(36864, 7168, 900) + gemm(7168, 18432, 500)).dense(0, 16);
  EXPECT_EQ(both.measured, 2U);
  EXPECT_EQ(
      v3(gemm(36864, 7168, 950) + gemm(7168, 18432, 500)).dense(0, 16).time.ps() - both.time.ps(),
      50 * kUs);
  // Norm and activation are the roofline's: a launch each, 2 · 16 · 7,168 and 3 · 16 · 18,432
  // values of 2 B. The weights and rows of the two GEMMs are in the bytes all the same.
  EXPECT_EQ(both.kernels, 4U);
  EXPECT_DOUBLE_EQ(both.bytes, 2.0 * (2 * 16 * 7168 + 3 * 16 * 18432 + 3.0 * 7168 * 18432 +
                                      16 * (7168 + 36864) + 16 * (18432 + 7168)));
  const scenario::GpuType gpu = v3("").gpu();
  const auto kernel_us = [&](double bytes) {
    return gpu.kernel_launch.us() + bytes / (gpu.mbu * gpu.hbm.value) * 1e6;
  };
  EXPECT_NEAR(both.time.us() - 1400,
              kernel_us(2.0 * 2 * 16 * 7168) + kernel_us(2.0 * 3 * 16 * 18432), 1e-4);
  // Gate and up by themselves, where there is no table of both.
  const sim::OpCost apart = v3(gemm(18432, 7168, 450) + gemm(7168, 18432, 500)).dense(0, 16);
  EXPECT_EQ(apart.measured, 3U);
  EXPECT_EQ(apart.time.ps(), both.time.ps());
  // Another shape: as without a calibration.
  const sim::OpCost none = v3(gemm(36865, 7168, 900)).dense(0, 16);
  EXPECT_EQ(none.measured, 0U);
  EXPECT_EQ(none.time.ps(), roof.time.ps());
  // More rows than were measured: the roofline goes on, and it is said.
  EXPECT_EQ(v3(gemm(7168, 18432, 500)).dense(0, 64).extrapolated, 1U);
  const sim::OpCost shared = v3(gemm(4096, 7168, 80) + gemm(7168, 2048, 40)).shared(16);
  EXPECT_NEAR(shared.time.us(), 120 + kernel_us(2.0 * 3 * 16 * 2048), 1e-4);
}

TEST(CalibratedGemms, ProjectionsOfLatentAttentionToo) {
  const std::vector<sim::SequenceWork> decode(16, {1, 1000}), prompt{{16, 0}};
  const sim::CostModel roof = v3("");
  // 1,536 + 512 + 64 down in one; 128 heads of 192 up; 128 heads of 256 from the latent.
  const std::string down = gemm(2112, 7168, 60), queries = gemm(24576, 1536, 110),
                    values = gemm(32768, 512, 70), out = gemm(7168, 16384, 300);
  const auto moves = [&](const std::string& table_of, const std::string& slower,
                         const std::vector<sim::SequenceWork>& work) {
    return v3(slower).attention(0, work).time.ps() - v3(table_of).attention(0, work).time.ps();
  };
  for (const auto* work : {&decode, &prompt}) {
    EXPECT_EQ(moves(down, gemm(2112, 7168, 61), *work), kUs);
    EXPECT_EQ(moves(queries, gemm(24576, 1536, 111), *work), kUs);
    EXPECT_EQ(moves(out, gemm(7168, 16384, 301), *work), kUs);
  }
  EXPECT_EQ(moves(values, gemm(32768, 512, 71), prompt), kUs);
  // One new token runs absorbed: no product with all heads' keys and values.
  EXPECT_EQ(v3(values).attention(0, decode).measured, 0U);
  EXPECT_EQ(v3(values).attention(0, decode).time.ps(), roof.attention(0, decode).time.ps());
  EXPECT_EQ(v3(down + queries + values + out).attention(0, prompt).measured, 4U);
  EXPECT_EQ(v3(gemm(1536, 7168, 50) + gemm(576, 7168, 20)).attention(0, decode).measured, 2U)
      << "down by themselves";
  // What both together were measured as is not asked of each: the notes count tables in use.
  const sim::CostModel all = v3(down + gemm(1536, 7168, 50) + gemm(576, 7168, 20));
  EXPECT_EQ(all.attention(0, decode).time.ps(), v3(down).attention(0, decode).time.ps());
  std::set<const scenario::OpTable*> used;
  all.add_used(used);
  ASSERT_EQ(used.size(), 1U);
  EXPECT_EQ((*used.begin())->shape.front(), 2112U);
  EXPECT_EQ(v3(gemm(9, 9, 1)).attention(0, prompt).time.ps(), roof.attention(0, prompt).time.ps());
}

TEST(CalibratedGemms, SeveralLibrariesAreRefusedBeforeTheRunAtTheirPlace) {
  // QKV of the worked model: (8 + 2 · 2) · 128 rows of 1,024.
  const std::string two =
      calibration(gemm(1536, 1024, 9, 1, "lib1") + gemm(1536, 1024, 8, 1, "a2"));
  EXPECT_NE(error_of({two}).find(
                "--set: cost.calibration: the calibration has gemm of lib1 and a2 for shape "
                "[1536, 1024]; name one of them with cost.library"),
            std::string::npos)
      << error_of({two});
  EXPECT_EQ(error_of({two, "cost.library=a2"}), "accepted");
  // No question of this workload: a table of prompts.
  const std::string prompts =
      calibration(table("attention_prefill", "", "[8, 2, 128, 0]", "[[1, 64, 0, 20]]", "lib1") +
                  table("attention_prefill", "", "[8, 2, 128, 0]", "[[1, 64, 0, 21]]", "a2"));
  EXPECT_EQ(error_of({prompts}), "accepted");
  EXPECT_NE(error_of({prompts, "workload.kind=prefill", "workload.tokens=64"})
                .find("attention_prefill of lib1 and a2"),
            std::string::npos);
}

/// The worked scenario without [host], and these lines in it.
scenario::Scenario without_host(const std::string& more, const std::string& host = "") {
  const std::string folder = std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/";
  std::string text = read_file(folder + "worked.toml");
  text.resize(text.find("[host]"));
  scenario::ReadOptions options;
  options.require_trace = false;
  return scenario::read_scenario_text(text + host + "[cost]\n" + more, folder + "worked2.toml",
                                      options);
}

std::string host_table(const std::string& variant, double step, double each,
                       const std::string& library = "lib") {
  return fmt::format(
      "[[tables]]\nop = \"host\"\nlibrary = \"{}\"\n{}overhead = {}\nper_sequence = {}\n"
      "points = [[1, {}]]\n",
      library, variant.empty() ? "" : fmt::format("variant = \"{}\"\n", variant), step, each,
      step + each);
}

TEST(CalibratedHost, IsTheDefaultOfWhatTheScenarioDoesNotState) {
  std::string file = calibration(host_table("graph", 420, 3.5) + host_table("", 900, 7));
  file = "calibration = " + file.substr(file.find('=') + 1) + "\n";
  const scenario::Scenario eager = without_host(file);
  EXPECT_EQ(eager.host.per_step, SimTime::from_us(900));
  EXPECT_EQ(eager.host.per_sequence, SimTime::from_us(7));
  EXPECT_NE(scenario::origin_of(eager, "host.per_step").find("exchanges.toml:15:"),
            std::string::npos)
      << scenario::origin_of(eager, "host.per_step");
  const scenario::Scenario graph =
      without_host(file + "launch = \"graph\"\ngraph_kernel = \"1 us\"\n");
  EXPECT_EQ(graph.host.per_step, SimTime::from_us(420));
  EXPECT_EQ(graph.host.per_sequence, SimTime::from_ps(3'500'000));
  EXPECT_NE(scenario::canonical_text(graph).find("host.per_step = 420 us"), std::string::npos)
      << scenario::canonical_text(graph);
  // What is stated stays.
  const scenario::Scenario stated = without_host(file, "[host]\nper_step = \"10 us\"\n");
  EXPECT_EQ(stated.host.per_step, SimTime::from_us(10));
  EXPECT_EQ(stated.host.per_sequence, SimTime::from_us(7));
  EXPECT_EQ(without_host("").host.per_step, SimTime());

  scenario::Scenario s = eager;
  s.workload.routing.source = scenario::RoutingSource::kSynthetic;
  const MemoryRun r = test::run_in_memory(s, nullptr);
  EXPECT_EQ(r.data.steps[0].phase_ps[static_cast<std::size_t>(run::Phase::kHost)], 907 * kUs);
  EXPECT_TRUE(says(r, "host 1 of 2")) << all_notes(r);

  file = calibration(host_table("", 1, 1, "a") + host_table("", 2, 2, "b"));
  file = "calibration = " + file.substr(file.find('=') + 1) + "\n";
  try {
    static_cast<void>(without_host(file));
    ADD_FAILURE() << "two libraries were accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("host of a and b; name one of them with cost.library: "
                                         "their times differ"),
              std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("worked2.toml:"), std::string::npos) << e.what();
  }
  // One key is open still; with both stated no table is asked for.
  EXPECT_THROW(without_host(file, "[host]\nper_step = \"10 us\"\n"), InputError);
  const scenario::Scenario both =
      without_host(file, "[host]\nper_step = \"10 us\"\nper_sequence = \"2 us\"\n");
  EXPECT_EQ(both.host.per_step, SimTime::from_us(10));
  EXPECT_EQ(both.host.per_sequence, SimTime::from_us(2));
  EXPECT_EQ(both.host.measured, nullptr);
}

TEST(CalibratedHost, FitsStepAndSequences) {
  scenario::Calibration c =
      scenario::parse_calibration(kHead + host_table("eager", 1, 1), "h.toml");
  c.tables[0].points.clear();
  for (const double n : {1.0, 4.0, 16.0, 64.0})
    c.tables[0].points.push_back({{n, 0, 0}, 300 + 5 * n});
  sim::fit_tables(c);
  EXPECT_NEAR(c.tables[0].overhead_us, 300, 1e-6);
  EXPECT_NEAR(c.tables[0].per_sequence_us, 5, 1e-6);
  const sim::OpTimer timer(c, c.tables[0]);
  EXPECT_NEAR(timer.time(std::vector{10.0}).us, 350, 1e-6);
  EXPECT_FALSE(timer.time(std::vector{10.0}).extrapolated);
  EXPECT_TRUE(timer.time(std::vector{65.0}).extrapolated);
  const std::string text = scenario::calibration_text(c);
  EXPECT_EQ(scenario::calibration_text(scenario::parse_calibration(text, "again.toml")), text);
  // One number of sequences cannot tell the two apart.
  c.tables[0].points = {{{8, 0, 0}, 100}};
  sim::fit_tables(c);
  EXPECT_NEAR(c.tables[0].overhead_us, 100, 1e-9);
  EXPECT_EQ(c.tables[0].per_sequence_us, 0);
  EXPECT_THROW(scenario::parse_calibration(kHead + host_table("graphs", 1, 1), "h.toml"),
               InputError);
  std::string shaped = host_table("", 1, 1);
  EXPECT_THROW(scenario::parse_calibration(kHead + shaped + "dtype = \"bf16\"\n", "h.toml"),
               InputError);
}

}  // namespace
}  // namespace switchyard
