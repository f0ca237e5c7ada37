// SPDX-License-Identifier: Apache-2.0
// The verbs validate and fit: judged rows are never fitted, errors are the ones of the rows given.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/profile_host.hpp"
#include "experiments/validation/deepep_h800.hpp"
#include "experiments/validation/deepseek_v3_case.hpp"
#include "experiments/validation/default_network.hpp"
#include "experiments/validation/fit_routing.hpp"
#include "experiments/validation/left_out.hpp"
#include "experiments/validation/validate.hpp"
#include "experiments/validation/vllm_case.hpp"
#include "sim/cost/calibrated.hpp"
#include "sim/loop/synthetic_routing.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"
#include "tests/cli/process.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::run_switchyard;
using test::source_path;
using validation::expected_loads;

fs::path excerpt() { return source_path("scenarios/validation/h200"); }

/// The rows of a folder with the last column (or dispatch_us and combine_us) of judged rows times
/// `factor`.
void copy_with_times(const fs::path& to, double factor, bool judged_only) {
  for (const auto& entry : fs::directory_iterator(excerpt())) {
    std::istringstream in(read_file(entry.path()));
    std::string out;
    std::vector<std::string> header;
    for (std::string line; std::getline(in, line);) {
      std::vector<std::string> fields;
      std::istringstream cut(line);
      for (std::string f; std::getline(cut, f, ',');) fields.push_back(f);
      if (header.empty()) {
        header = fields;
      } else {
        std::string key;
        for (std::size_t i = 0; i < header.size(); ++i) {
          if (header[i].ends_with("_us") || header[i].ends_with("GBps")) continue;
          key += (i == 0 ? "" : ",") + fields[i];
        }
        const bool judged = validation::fnv1a(key) % 2 == 1;
        for (std::size_t i = 0; i < header.size(); ++i) {
          if (header[i].ends_with("_us") && !header[i].ends_with("notify_us") &&
              (judged || !judged_only)) {
            fields[i] = fmt::format("{}", std::strtod(fields[i].c_str(), nullptr) * factor);
          }
        }
      }
      out += fmt::format("{}\n", fmt::join(fields, ","));
    }
    write_file(to / entry.path().filename(), out);
  }
}

nlohmann::json summary(const std::vector<std::string>& arguments, int exit_code = 0) {
  std::vector<std::string> all{"validate", "--json"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto result = run_switchyard(all);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return nlohmann::json::parse(result.out);
}

/// The line over all groups.
nlohmann::json total(const nlohmann::json& tables) { return tables.at(0).at("rows").back(); }

TEST(MeasuredRows, HashIsFnv1a) {
  EXPECT_EQ(validation::fnv1a(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(validation::fnv1a("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(validation::fnv1a("foobar"), 0x85944171f73967e8ULL);
}

TEST(MeasuredRows, LoadsOfADistributionAddUpAndFitTheTokens) {
  for (const std::string law : {"balanced", "power_law_1.01", "power_law_1.2"}) {
    for (const std::uint64_t experts : {8, 128}) {
      for (const std::uint64_t tokens : {1, 2, 5, 64, 4096}) {
        const std::uint64_t k = experts == 8 ? 2 : 8;
        const auto loads = expected_loads(law, experts, tokens, k, "here");
        EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::uint64_t{0}), tokens * k);
        EXPECT_LE(*std::max_element(loads.begin(), loads.end()), tokens);
        EXPECT_GE(std::count_if(loads.begin(), loads.end(), [](auto n) { return n > 0; }),
                  static_cast<std::ptrdiff_t>(k));
      }
    }
  }
  const auto even = expected_loads("balanced", 128, 4, 8, "here");
  EXPECT_EQ(std::count(even.begin(), even.end(), 1U), 32);
  const auto skewed = expected_loads("power_law_1.2", 128, 4096, 8, "here");
  EXPECT_GT(skewed[0], 4 * 4096 * 8 / 128) << "a power law has a hot expert";
  EXPECT_THROW(expected_loads("zipf", 8, 4, 2, "here"), InputError);
  EXPECT_THROW(expected_loads("power_law_x", 8, 4, 2, "here"), InputError);
  EXPECT_THROW(expected_loads("balanced", 8, 4, 9, "here"), InputError);
}

TEST(MeasuredRows, TheHostsTimeBecomesATableByLaunchMode) {
  const fs::path folder = fresh_folder("host_rows");
  const std::string head = "library,launch,sequences,latency_us\n";
  std::string rows;
  for (int n = 1; n <= 64; ++n) {
    rows += fmt::format("vllm,graph,{},{}\nvllm,any,{},{}\n", n, 300 + 5 * n, n, 900 + n);
  }
  write_file(folder / "toy_host_us.csv", head + rows);
  const auto measured = validation::read_measured(folder, "toy");
  ASSERT_EQ(measured.rows.size(), 128U);
  scenario::Calibration c;
  c.hbm.value = c.link.value = 1e12;
  c = validation::fit_rows(std::move(c), measured.rows);
  ASSERT_EQ(c.tables.size(), 2U);
  EXPECT_EQ(c.tables[0].variant, "") << "any launch mode";
  EXPECT_NEAR(c.tables[0].overhead_us, 900, 1e-6);
  EXPECT_EQ(c.tables[1].variant, "graph");
  EXPECT_NEAR(c.tables[1].overhead_us, 300, 1e-6);
  EXPECT_NEAR(c.tables[1].per_sequence_us, 5, 1e-6);
  for (const auto& j : validation::judge(c, measured.rows)) {
    ASSERT_TRUE(j.known());
    EXPECT_NEAR(j.error(), 0, 1e-9);
  }
  write_file(folder / "toy_host_us.csv", head + "vllm,warp,1,300\n");
  EXPECT_THROW((void)validation::read_measured(folder, "toy"), InputError);
}

/// Groups of a device's shipped rows that meet the goal, and how many rows there are at least.
struct Shipped {
  std::string device;
  std::vector<std::string> groups;
  std::size_t rows, rows_of_a_group;
};

class ShippedCalibration : public ::testing::TestWithParam<Shipped> {};

TEST_P(ShippedCalibration, MeetsTheGoalOnRowsItHasNotSeen) {
  const Shipped& p = GetParam();
  const auto rows =
      validation::read_measured(source_path("scenarios/validation") / p.device, p.device).rows;
  ASSERT_GT(rows.size(), p.rows);
  EXPECT_TRUE(std::none_of(rows.begin(), rows.end(), [](const auto& r) { return r.fitted(); }));
  const auto c = scenario::read_calibration(
      source_path("scenarios/calibrations/" + p.device + ".toml").string());
  const auto judged = validation::judge(c, rows);
  std::vector<double> all;
  for (const auto& j : judged) {
    if (j.row->group != "NCCL, below 1 MiB") all.push_back(std::abs(j.error()));
  }
  EXPECT_LE(validation::summarise(all).median, 0.10);
  EXPECT_LE(validation::summarise(all).p95, 0.25);
  for (const std::string& group : p.groups) {
    std::vector<double> errors;
    for (const auto& j : judged) {
      if (j.row->group != group) continue;
      ASSERT_TRUE(j.known()) << j.row->label;
      errors.push_back(std::abs(j.error()));
    }
    const auto s = validation::summarise(errors);
    EXPECT_GE(s.rows, p.rows_of_a_group) << group;
    EXPECT_LE(s.median, 0.10) << group;
    EXPECT_LE(s.p95, 0.25) << group;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, ShippedCalibration,
    ::testing::Values(Shipped{"h200",
                              {"MoE layer", "attention, decode", "attention, prefill",
                               "DeepEP, low latency", "DeepEP, normal", "NCCL, 1 MiB and more"},
                              900,
                              21},
                      Shipped{"h100",
                              {"MoE layer", "GEMM", "DeepEP, low latency", "DeepEP, normal",
                               "NCCL, 1 MiB and more"},
                              900,
                              50},
                      Shipped{"a100", {"MoE layer", "NCCL, 1 MiB and more"}, 200, 10},
                      Shipped{"h800", {"MLA, decode", "GEMM", "grouped GEMM"}, 50, 5}),
    [](const auto& info) { return info.param.device; });

TEST(Validate, DoublingTheJudgedTimesHalvesWhatIsSimulatedOfThem) {
  const fs::path folder = fresh_folder("doubled");
  copy_with_times(folder, 2, true);
  const auto before = total(summary({}));
  // The goal is missed: the check failed.
  const auto after = total(summary({"--data", folder.string()}, 1));
  EXPECT_LT(before.at("median |error| [%]").get<double>(), 10);
  EXPECT_NEAR(after.at("median |error| [%]").get<double>(), 50, 3);
  EXPECT_EQ(before.at("rows judged"), after.at("rows judged"));
}

TEST(Validate, FitDoesNotLookAtJudgedRows) {
  // The shipped rows are all judged ones: with the parity turned by one column they become a mix.
  const fs::path plain = fresh_folder("plain"), changed = fresh_folder("changed");
  const std::string header = "op,num_gpus,dtype,message_elements,bytes,latency_us\n";
  std::string a = header, b = header;
  int fitted = 0, judged = 0;
  for (int i = 0; i < 64; ++i) {
    const std::string key =
        fmt::format("alltoall,8,half,{},{}", 1000000 * (i + 1), 2000000 * (i + 1));
    const bool even = validation::fnv1a(key) % 2 == 0;
    (even ? fitted : judged) += 1;
    a += fmt::format("{},{}\n", key, 20 + 5 * i);
    b += fmt::format("{},{}\n", key, even ? 20 + 5 * i : 9999);
  }
  ASSERT_GT(fitted, 10);
  ASSERT_GT(judged, 10);
  write_file(plain / "x_nccl_1_us.csv", a);
  write_file(changed / "x_nccl_1_us.csv", b);
  std::vector<std::string> texts;
  for (const fs::path& folder : {plain, changed}) {
    const std::string out = (folder / "c.toml").string();
    const auto r = run_switchyard({"fit", "--measured", folder.string(), "--device", "x",
                                   "--hardware", "hgx_h200", "--source", "a \"test\"", "--licence",
                                   "Apache-2.0", "-o", out});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_NE(r.out.find(fmt::format("{} of 64 rows", fitted)), std::string::npos) << r.out;
    texts.push_back(read_file(out));
    const auto j = run_switchyard({"fit", "--measured", folder.string(), "--device", "x",
                                   "--hardware", "hgx_h200", "--source", "s", "--licence", "l",
                                   "-o", (folder / "j.toml").string(), "--json"});
    ASSERT_EQ(j.exit_code, 0) << j.err;
    const auto row = nlohmann::json::parse(j.out).at(0).at("rows").at(0);
    EXPECT_EQ(row.at("rows fitted"), fitted);
    EXPECT_EQ(row.at("rows"), 64);
  }
  EXPECT_EQ(texts[0], texts[1]);
  const auto mine =
      total(summary({"--hardware", (plain / "c.toml").string(), "--data", plain.string()}));
  EXPECT_LT(mine.at("median |error| [%]").get<double>(), 2);
}

validation::MeasuredRow nccl(const std::string& op, std::uint64_t gpus, double bytes, double us,
                             std::uint64_t hash = 1) {
  validation::MeasuredRow r;
  r.kind = scenario::OpKind::kCollective;
  r.library = "nccl1";
  r.variant = op;
  r.shape = {gpus};
  r.point.at[0] = bytes;
  r.point.us = us;
  r.hash = hash;
  r.label = fmt::format("{} of {}", op, bytes);
  return r;
}

/// 8 GPUs on a switch: 100 GB/s of which half is reached; 3 us a hop, 0.5 us in later phases.
scenario::HardwareSpec eight_gpus() {
  scenario::HardwareSpec h;
  h.name = "eight";
  for (std::uint32_t g = 0; g < 9; ++g) {
    scenario::Device d;
    d.name = g < 8 ? fmt::format("gpu{}", g) : "switch";
    d.kind = g < 8 ? scenario::DeviceKind::kGpu : scenario::DeviceKind::kNvSwitch;
    h.devices.push_back(d);
    if (g == 8) break;
    h.gpus.push_back(g);
    scenario::Link l;
    l.name = fmt::format("l{}", g);
    l.a = g;
    l.b = 8;
    l.bandwidth = BytesPerSecond{100e9};
    l.achievable = 0.5;
    l.latency = SimTime::from_us(3);
    l.phase_latency = SimTime::from_ns(500);
    h.links.push_back(l);
  }
  return h;
}

TEST(DefaultNetwork, JudgesTheLinksOfTheFileByArithmetic) {
  const std::vector<validation::MeasuredRow> rows{
      // 7/8 of 8 MB at 50 GB/s: 140 us, and 6 us.
      nccl("alltoall", 8, 8e6, 146 / 0.5),
      // 14 phases of 20 us, 6 us before the first, 1 us before the other 13.
      nccl("all_reduce", 8, 8e6, 299), nccl("all_gather", 8, 8e6, (140 + 6 + 6) * 2),
      nccl("reduce_scatter", 4, 8e6, (120 + 6 + 2) / 1.25),
      nccl("alltoall", 2, 1e5, 7),  // 1 us and 6 us.
      nccl("alltoall", 8, 8e6, 1, 2), nccl("alltoall", 16, 8e6, 1), nccl("broadcast", 8, 8e6, 1)};
  const auto hardware = eight_gpus();
  const auto judged = validation::judge_default_network(hardware, rows);
  EXPECT_EQ(judged.skipped, 2U) << "16 GPUs, and a broadcast";
  ASSERT_EQ(judged.rows.size(), 5U) << "the row with an even hash is not judged";
  const std::array<double, 5> want{146, 299, 152, 128, 7};
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(judged.rows[i].simulated_us, want[i], 1e-6) << i;
  }
  const Table t = validation::default_network_table(hardware, judged);
  ASSERT_EQ(t.rows.size(), 6U);
  const auto line = [&](std::size_t i) {
    return std::vector<std::string>(t.rows[i].begin(), t.rows[i].begin() + 6);
  };
  using Line = std::vector<std::string>;
  EXPECT_EQ(line(0), (Line{"alltoall, 1 MiB and more", "1", "50.0", "50.0", "50.0", "-50.0"}));
  EXPECT_EQ(line(1), (Line{"all_gather, 1 MiB and more", "1", "50.0", "50.0", "50.0", "-50.0"}));
  EXPECT_EQ(line(2), (Line{"reduce_scatter, 1 MiB and more", "1", "25.0", "25.0", "25.0", "25.0"}));
  EXPECT_EQ(line(3), (Line{"all_reduce, 1 MiB and more", "1", "0.0", "0.0", "0.0", "0.0"}));
  EXPECT_EQ(line(4), (Line{"all, 1 MiB and more", "4", "25.0", "50.0", "50.0", "-18.8"}));
  EXPECT_EQ(line(5), (Line{"all, below 1 MiB", "1", "0.0", "0.0", "0.0", "0.0"}));
  EXPECT_NE(t.notes.at(0).find("nothing was fitted here"), std::string::npos);
  EXPECT_NE(t.notes.at(0).find("100 GB/s, of it 0.5 achievable, 3 us a hop, 0.5 us in later"),
            std::string::npos)
      << t.notes.at(0);
}

// The shipped rows and hardware file: what the default settings err by may not grow.
TEST(DefaultNetwork, TheShippedServersStayWithinWhatTheyErrBy) {
  for (const auto& [device, most] : {std::pair{"h200", 0.13}, std::pair{"h100", 0.19}}) {
    const auto rows =
        validation::read_measured(source_path("scenarios/validation") / device, device).rows;
    const auto hardware = scenario::read_hardware(
        source_path(fmt::format("scenarios/hardware/hgx_{}.toml", device)).string());
    const auto judged = validation::judge_default_network(hardware, rows);
    std::vector<double> large, small;
    for (const auto& r : judged.rows) {
      (r.row->point.at[0] < (1 << 20) ? small : large).push_back(std::abs(r.error()));
    }
    EXPECT_GE(large.size(), 40U) << device;
    EXPECT_LE(validation::summarise(large).median, most) << device;
    EXPECT_LE(validation::summarise(small).median, 0.13) << device;
  }
}

/// Times of a law with half of the peaks and 10 us of overhead, `slower` times as long.
scenario::OpTable gemm_table(const scenario::Calibration& c, const std::string& library,
                             std::uint64_t n, const std::vector<double>& ms, double slower) {
  scenario::OpTable t;
  t.kind = scenario::OpKind::kGemm;
  t.library = library;
  t.shape = {n, 4096};
  for (const double m : ms) {
    scenario::OpPoint p;
    p.at[0] = m;
    const sim::OpUse use = sim::use_of(c, t, p.at);
    p.us = slower * (10 + std::max(use.rate_us, use.compute_us) / 0.5);
    t.points.push_back(p);
  }
  return t;
}

validation::MeasuredRow row_of(const scenario::OpTable& t, const scenario::OpPoint& p) {
  validation::MeasuredRow r;
  r.kind = t.kind;
  r.library = t.library;
  r.shape = t.shape;
  r.point = p;
  r.hash = 1;
  r.group = "GEMM";
  return r;
}

scenario::Calibration peaks() {
  scenario::Calibration c;
  c.device = "toy";
  c.hbm.value = 3e12;
  c.link.value = 1e11;
  c.peak.fill(FlopsPerSecond{1e15});
  return c;
}

TEST(LeftOutShapes, AreJudgedByTheNearestOtherShape) {
  scenario::Calibration c = peaks();
  const std::vector<double> ms{1, 16, 256, 4096, 16384};
  c.tables = {gemm_table(c, "a", 4096, ms, 1), gemm_table(c, "a", 8192, ms, 1),
              gemm_table(c, "a", 32768, ms, 2), gemm_table(c, "b", 4096, ms, 1)};
  // The parameters of the laws, as a perfect fit finds them.
  for (scenario::OpTable& t : c.tables) {
    const double slower = t.shape[0] == 32768 ? 2 : 1;
    t.overhead_us = 10 * slower;
    t.rate_share = t.compute_share = 0.5 / slower;
  }
  std::vector<validation::MeasuredRow> rows;
  for (const scenario::OpTable& t : c.tables) {
    for (const scenario::OpPoint& p : t.points) rows.push_back(row_of(t, p));
  }
  rows.push_back(rows[0]);
  rows.back().hash = 2;  // Fitted.
  rows.push_back(rows[0]);
  rows.back().shape = {999, 4096};  // Has no table that could be taken out.
  const auto judged = validation::judge_left_out(c, rows);
  ASSERT_EQ(judged.rows.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    const auto& j = judged.rows[i];
    EXPECT_EQ(judged.shape[i], i / 5);
    EXPECT_EQ(j.row, &rows[i]);
    if (i >= 15) {
      EXPECT_FALSE(j.known()) << "library b has no other shape";
      continue;
    }
    EXPECT_NEAR(j.error(), i < 10 ? 0.0 : -0.5, 1e-9) << i;
  }
  const Table t = validation::left_out_table(c, judged);
  ASSERT_EQ(t.rows.size(), 1U);
  EXPECT_EQ(t.rows[0][0], "GEMM");
  EXPECT_EQ(t.rows[0][1], "3");
  EXPECT_EQ(t.rows[0][2], "15");
  EXPECT_EQ(t.rows[0][3], "0.0") << "the median is of the ten that follow the law";
  EXPECT_EQ(t.rows[0][4], "50.0");
  EXPECT_EQ(t.rows[0][5], "50.0");
  EXPECT_EQ(t.rows[0][6], "-16.7");
  EXPECT_EQ(t.rows[0][7], "50.0") << "the worst shape";
  EXPECT_NE(t.notes.at(0).find("no part of the goal"), std::string::npos);
  EXPECT_NE(t.notes.at(1).find("5 rows are of the only shape"), std::string::npos);
}

TEST(LeftOutShapes, ANeighbourWithFewPointsForgetsTheOneThatWasTakenOut) {
  // The middle shape has two points and is fitted with those of its kin: most of them are of the
  // slow shape, twice as long as the law of the others, until that one is taken out.
  scenario::Calibration c = peaks();
  const std::vector<double> many{1, 4, 16, 64, 256, 1024, 4096, 16384};
  c.tables = {gemm_table(c, "a", 1024, {1, 64, 1024, 16384}, 1),
              gemm_table(c, "a", 8192, {16, 4096}, 1), gemm_table(c, "a", 12288, many, 2)};
  sim::fit_tables(c);
  std::vector<validation::MeasuredRow> slow;
  for (const scenario::OpPoint& p : c.tables[2].points) slow.push_back(row_of(c.tables[2], p));
  const auto median = [](const std::vector<validation::JudgedRow>& judged) {
    std::vector<double> ratios;
    for (const auto& j : judged) ratios.push_back(1 + j.error());
    return run::nearest_rank(ratios, 50);
  };
  scenario::Calibration knows = c;
  knows.tables.pop_back();
  EXPECT_GT(median(validation::judge(knows, slow)), 0.8) << "its neighbour knows its points";
  const auto left_out = validation::judge_left_out(c, slow);
  ASSERT_EQ(left_out.rows.size(), 8U);
  EXPECT_NEAR(median(left_out.rows), 0.5, 0.1);
}

TEST(Validate, PrintsEveryRowWhenAsked) {
  const auto tables = summary({"--rows"});
  ASSERT_EQ(tables.size(), 5U);
  const auto measured = validation::read_measured(excerpt(), "h200");
  EXPECT_EQ(tables.at(1).at("rows").size(), measured.rows.size());
}

double mean(const std::vector<validation::RequestTimes>& times,
            double validation::RequestTimes::*member) {
  double sum = 0;
  for (const auto& t : times) sum += t.*member;
  return sum / static_cast<double>(times.size());
}

fs::path vllm_folder() { return source_path("scenarios/validation/rtx_pro_6000_qwen3_30b"); }

TEST(VllmCase, MeetsTheGoalOfTheSpecification) {
  const validation::VllmCase r = validation::run_vllm_case(vllm_folder());
  ASSERT_EQ(r.measured.size(), 300U);
  using Times = validation::RequestTimes;
  // The published means of the measurement.
  EXPECT_NEAR(mean(r.measured, &Times::ttft_ms), 1085.98, 0.05);
  EXPECT_NEAR(mean(r.measured, &Times::tpot_ms), 47.286, 0.001);
  EXPECT_NEAR(mean(r.measured, &Times::latency_ms), 32344.6, 0.5);
  const auto error = [&](double Times::*m) {
    return mean(r.simulated, m) / mean(r.measured, m) - 1;
  };
  EXPECT_LE(std::abs(error(&Times::ttft_ms)), 0.10);
  EXPECT_LE(std::abs(error(&Times::tpot_ms)), 0.02);
  EXPECT_LE(std::abs(error(&Times::latency_ms)), 0.02);
}

TEST(VllmCase, TheStepLoopAgreesWithTheLoopOfItsOwn) {
  // The first 40 requests: two implementations of one machine, of which only the scheduler, the
  // kernels beside the table and the routing differ. All 300: validate --step-loop.
  const fs::path folder = fresh_folder("vllm_loop");
  for (const auto& entry : fs::directory_iterator(vllm_folder())) {
    fs::copy_file(entry.path(), folder / entry.path().filename());
  }
  std::istringstream in(read_file(folder / "requests.csv"));
  std::string out, line;
  for (int i = 0; i <= 40 && std::getline(in, line); ++i) out += line + "\n";
  write_file(folder / "requests.csv", out);
  const auto own = validation::run_vllm_case(folder);
  const auto loop =
      validation::run_vllm_loop(folder, source_path("scenarios"), validation::MoeRows::kGathered);
  ASSERT_EQ(loop.size(), 40U);
  using Times = validation::RequestTimes;
  // Steps of about 11 ms at this load. The loop runs gate, top-k, permutation and sum beside the
  // MoE table: in 48 layers 5 kernels of 1.9 us at least, 0.46 ms.
  for (double Times::*m : {&Times::tpot_ms, &Times::latency_ms}) {
    const double ratio = mean(loop, m) / mean(own.simulated, m);
    EXPECT_GT(ratio, 1.0);
    EXPECT_LT(ratio, 1.06);
  }
}

TEST(DeepSeekV3, DecodeOnH800IsWithinTheGoal) {
  const validation::Throughput r = validation::run_deepseek_decode(source_path("scenarios"));
  EXPECT_EQ(r.measured, 2324);
  EXPECT_LE(std::abs(r.simulated / r.measured - 1), 0.15);
  EXPECT_GT(r.simulated, 1.1 * r.serial) << "two micro-batches hide exchanges";
  // The phases are the whole step: 128 tokens a GPU.
  EXPECT_NEAR(128 / std::accumulate(r.seconds.begin(), r.seconds.end(), 0.0), r.serial,
              1e-6 * r.serial);
}

TEST(DeepEpOnH800, TheLinksGiveTheRowsThatWereNotFitted) {
  const validation::DeepEpCase c = validation::run_deepep_h800(source_path("scenarios"));
  ASSERT_EQ(c.rows.size(), 20U);
  std::vector<double> low, normal;
  for (const validation::DeepEpRow& r : c.rows) {
    EXPECT_GE(r.simulated_us, r.floor_us);
    if (r.judged) (r.kernel == "low_latency" ? low : normal).push_back(std::abs(r.error()));
  }
  ASSERT_GE(low.size(), 5U);
  ASSERT_GE(normal.size(), 3U);
  EXPECT_LE(validation::summarise(low).worst, 0.10);
  EXPECT_LE(validation::summarise(normal).median, 0.10);
  EXPECT_LE(validation::summarise(normal).worst, 0.15);
  // By hand, 32 GPUs: 24 of 32 copies of 7408 B leave over the NIC, 128 x 8 of them.
  for (const validation::DeepEpRow& r : c.rows) {
    if (r.kernel != "low_latency" || r.ep != 32 || r.phase != "dispatch") continue;
    EXPECT_NEAR(r.floor_us, 128.0 * 8 * 0.75 * 7408 / 50e9 * 1e6, 0.1);
  }
  // The published rate of 32 GPUs, 58 GB/s, is of 4 (1 - C(192, 8) / C(256, 8)) = 3.6142 copies a
  // token.
  for (const validation::DeepEpRow& r : c.rows) {
    if (r.kernel != "normal" || r.ep != 32 || r.phase != "dispatch") continue;
    EXPECT_NEAR(r.measured_us, 4096 * 3.6142 * 7392 / 58e9 * 1e6, 1);
  }
}

TEST(GroupedGemmRows, AreThoseThatTheBenchDrew) {
  // 256 groups of nominally one row: each has floor(u), u in [0.7, 1.3], which is none for half.
  const auto few = validation::grouped_rows(256, 1, 127, 136);
  EXPECT_EQ(few, (std::array<double, 3>{130, 130, 1}));
  // One group: its rows are all rows, FLOPs of the first product count twice.
  EXPECT_EQ(validation::grouped_rows(1, 4096, 2969, 3700), (std::array<double, 3>{3213, 1, 3213}));
  // Four groups of 256: the largest of four draws is 0.7 + 0.6 * 4 / 5 of it on average.
  EXPECT_EQ(validation::grouped_rows(4, 256, 919, 1108), (std::array<double, 3>{982, 4, 302}));
  // The columns are no part of the key: the split into fitted and judged stays.
  const auto rows =
      validation::read_measured(source_path("scenarios/validation/h800"), "h800").rows;
  const auto one = std::find_if(rows.begin(), rows.end(), [](const validation::MeasuredRow& r) {
    return r.label == "deepgemm_masked,fp8,7168,2048,256,1";
  });
  ASSERT_NE(one, rows.end());
  EXPECT_EQ(one->library, "deepgemm");
  EXPECT_EQ(one->variant, "masked");
  EXPECT_EQ(one->point.at, few);
  EXPECT_EQ(one->hash, validation::fnv1a(one->label));
}

TEST(DeepEpOnH800, ABadTableIsRefused) {
  const fs::path root = fresh_folder("deepep");
  fs::create_directories(root / "validation" / "h800_deepep");
  write_file(root / "validation" / "h800_deepep" / "published.csv",
             "kernel,ep,tokens,phase,bandwidth_GBps,latency_us\nnormal,12,4096,dispatch,153,0\n");
  try {
    (void)validation::run_deepep_h800(root);
    FAIL() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("published.csv:2: not a row of DeepEP's table"),
              std::string::npos)
        << e.what();
  }
}

TEST(DeepSeekV3, ABadKernelTableIsRefused) {
  const fs::path root = fresh_folder("deepseek");
  fs::create_directories(root / "models");
  fs::create_directories(root / "validation" / "h800_deepseek_v3");
  fs::copy_file(source_path("scenarios/models/deepseek_v3.json"),
                root / "models" / "deepseek_v3.json");
  write_file(root / "validation" / "h800_deepseek_v3" / "grouped_gemm.csv",
             "phase,local_experts,tokens_per_expert,up_us,down_us,up_rows,down_rows\n"
             "prefill,8,16,1,1,128,128\n");
  try {
    (void)validation::run_deepseek_decode(root);
    FAIL() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("there is no row of phase \"decode\""), std::string::npos)
        << e.what();
  }
}

TEST(VllmCase, DoesNotLookAtTheMeasuredTimes) {
  const fs::path folder = fresh_folder("vllm");
  for (const auto& entry : fs::directory_iterator(vllm_folder())) {
    fs::copy_file(entry.path(), folder / entry.path().filename());
  }
  std::istringstream in(read_file(folder / "requests.csv"));
  std::string out, line;
  std::getline(in, line);
  out = line + "\n";
  while (std::getline(in, line)) {
    std::size_t cut = 0;
    for (int i = 0; i < 3; ++i) cut = line.find(',', cut) + 1;
    out += line.substr(0, cut) + "0,1,2\n";
  }
  fs::remove(folder / "requests.csv");
  write_file(folder / "requests.csv", out);
  const auto a = validation::run_vllm_case(vllm_folder()), b = validation::run_vllm_case(folder);
  EXPECT_EQ(mean(a.simulated, &validation::RequestTimes::latency_ms),
            mean(b.simulated, &validation::RequestTimes::latency_ms));
  EXPECT_NEAR(mean(b.measured, &validation::RequestTimes::ttft_ms), 1000, 1e-9);
  write_file(folder / "moe.csv", "tokens,activated_experts,time_us\n1,8,zero\n");
  try {
    validation::run_vllm_case(folder);
    FAIL() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("moe.csv:2"), std::string::npos) << e.what();
  }
}

/// A trace of `tokens` tokens whose first choices are drawn from a zipf law by a fixed sequence.
RoutingTrace zipf_trace(double s, std::uint32_t tokens) {
  constexpr std::uint32_t kExperts = 32, kChosen = 2, kLayers = 3;
  RoutingTrace t;
  t.header.gate = gate_mixtral(kExperts, kChosen);
  t.header.layers = {0, 1, 2};
  t.header.slots = kChosen;
  t.header.candidates = kExperts;
  t.tokens.phase.assign(tokens, 1);
  t.tokens.step.assign(tokens, 0);
  t.tokens.position.assign(tokens, 0);
  for (std::uint32_t i = 0; i < tokens; ++i) t.tokens.sequence.push_back(i);
  std::uint64_t state = 12345;
  const auto uniform = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (static_cast<double>(state >> 11U) + 0.5) / 9007199254740992.0;
  };
  for (std::uint32_t i = 0; i < tokens * kLayers; ++i) {
    std::array<std::pair<double, std::uint16_t>, kExperts> row;
    for (std::uint16_t e = 0; e < kExperts; ++e) {
      row[e] = {s * std::log(e + 1.0) + std::log(-std::log(uniform())), e};  // −(ln p + Gumbel)
    }
    std::sort(row.begin(), row.end());
    for (std::uint32_t j = 0; j < kChosen; ++j) t.routing.first.push_back(row[j].second);
  }
  return t;
}

TEST(FitRouting, FindsTheLawATraceWasDrawnFrom) {
  const validation::RoutingFit skewed = validation::fit_routing(zipf_trace(1.0, 1500), "t");
  ASSERT_EQ(skewed.laws.size(), 4U);
  EXPECT_NEAR(skewed.laws[1].parameter, 1.0, 0.06);
  EXPECT_EQ(skewed.best().law, "zipf");
  EXPECT_LT(skewed.best().distance, 0.02);
  EXPECT_GT(skewed.laws[0].distance, 0.2) << "uniform is far away";
  const std::string text = validation::workload_text(skewed, "t.h5");
  EXPECT_NE(text.find("synthetic = \"zipf\", s = "), std::string::npos) << text;
  const validation::RoutingFit even = validation::fit_routing(zipf_trace(0.0, 1500), "t");
  EXPECT_LT(even.laws[0].distance, 0.02);
  EXPECT_LT(even.laws[1].parameter, 0.1);
  EXPECT_EQ(skewed.domains, 1U);
  EXPECT_EQ(skewed.token_correlation, 0) << "sequences of one token have no neighbours";
  EXPECT_LT(skewed.layer_correlation, 0.2);
  RoutingTrace warm = zipf_trace(1, 4);
  warm.tokens.phase.assign(4, 2);
  EXPECT_THROW(validation::fit_routing(warm, "t"), InputError);
}

/// 64 sequences of 64 tokens from a law of the simulator; another seed than the fit's.
RoutingTrace law_trace(const scenario::RoutingSpec& law) {
  constexpr std::uint32_t kExperts = 32, kChosen = 4, kLayers = 4, kLength = 64;
  sim::SyntheticRouting routing(law, kLayers, kExperts, 77);
  RoutingTrace t;
  t.header.gate = gate_mixtral(kExperts, kChosen);
  t.header.slots = kChosen;
  t.header.candidates = kExperts;
  for (std::uint32_t l = 0; l < kLayers; ++l) t.header.layers.push_back(l);
  std::array<std::uint16_t, kChosen> ids;
  for (std::uint32_t q = 0; q < 64; ++q) {
    for (std::uint32_t p = 0; p < kLength; ++p) {
      t.tokens.sequence.push_back(q);
      t.tokens.position.push_back(p);
      t.tokens.phase.push_back(1);
      t.tokens.step.push_back(0);
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        routing.draw(q, l, p, kChosen, ids);
        t.routing.first.insert(t.routing.first.end(), ids.begin(), ids.end());
      }
    }
  }
  return t;
}

TEST(FitRouting, MeasuresDomainsAndCorrelationsBack) {
  scenario::RoutingSpec law;
  law.law = scenario::SyntheticLaw::kDirichlet;
  law.alpha = 0.3;
  law.token_correlation = 0.5;
  law.layer_correlation = 0.6;
  const validation::RoutingFit one = validation::fit_routing(law_trace(law), "t");
  EXPECT_EQ(one.domains, 1U);
  EXPECT_NEAR(one.token_correlation, 0.5, 0.05);
  EXPECT_NEAR(one.layer_correlation, 0.6, 0.12);
  EXPECT_NEAR(one.drawn_dependence, one.layer_dependence, 0.03);
  EXPECT_NEAR(one.drawn_token_overlap, one.token_overlap, 0.02);
  EXPECT_LT(one.best().distance, 0.05);
  // Four layers tell alpha roughly.
  EXPECT_GT(one.laws[3].parameter, 0.15);
  EXPECT_LT(one.laws[3].parameter, 0.6);

  law.domains = 4;
  law.token_correlation = law.layer_correlation = 0;
  const validation::RoutingFit four = validation::fit_routing(law_trace(law), "t");
  EXPECT_GE(four.domains, 3U);
  EXPECT_LE(four.domains, 6U);
  EXPECT_LT(four.token_correlation, 0.05);

  // The reader takes what was written.
  const fs::path f = fresh_folder("fit_routing");
  std::ofstream(f / "w.toml") << validation::workload_text(one, "t.h5");
  scenario::ReadOptions options;
  options.settings = {"workload.file=\"w.toml\""};
  const scenario::Scenario s = scenario::read_scenario_text(
      fmt::format("[model]\nfile = \"{}\"\n[hardware]\nfile = \"{}\"\n[workload]\nkind = "
                  "\"decode\"\nbatch = 8\ncontext = 64\n",
                  source_path("scenarios/models/mixtral_8x7b.json").string(),
                  source_path("scenarios/hardware/hgx_h100.toml").string()),
      (f / "s.toml").string(), options);
  EXPECT_EQ(s.workload.routing.token_correlation, one.token_correlation);
  EXPECT_EQ(s.workload.routing.layer_correlation, one.layer_correlation);
}

TEST(FitRouting, WantsATraceOrMeasuredTimesAndNotBoth) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"fit", "-o", "x"},
                                                {"fit", "t.h5", "--measured", "d", "-o", "x"},
                                                {"fit", "t.h5", "--device", "d", "-o", "x"},
                                                {"fit", "--measured", "d", "-o", "x"},
                                                {"fit", "no.h5", "-o", "x"}}) {
    const auto r = run_switchyard(words);
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_FALSE(fs::exists("x"));
  }
}

TEST(Profile, MeasuresACalibrationThatTheSimulatorTakes) {
  const fs::path f = fresh_folder("profile");
  const std::string model = source_path("scenarios/checkpoints/sy-16x2").string();
  const auto r = run_switchyard({"profile", "--model", model, "-o", "cpu.toml"},
                                {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto c = scenario::read_calibration((f / "cpu.toml").string());
  std::size_t gemms = 0, experts = 0, attention = 0, host = 0;
  for (const auto& t : c.tables) {
    gemms += t.kind == scenario::OpKind::kGemm ? 1 : 0;
    experts += t.kind == scenario::OpKind::kExperts ? 1 : 0;
    attention += t.kind == scenario::OpKind::kAttentionDecode ||
                         t.kind == scenario::OpKind::kAttentionPrefill
                     ? 1
                     : 0;
    host += t.kind == scenario::OpKind::kHost ? 1 : 0;
    EXPECT_GE(t.points.size(), 7U);
    EXPECT_LE(t.rate_share, 1);
  }
  EXPECT_EQ(host, 1U);
  EXPECT_GE(gemms, 3U);
  EXPECT_EQ(experts, 1U);
  EXPECT_EQ(attention, 2U);
  const auto sim = run_switchyard({"sim", source_path("scenarios/demo.toml").string(), "--set",
                                   "cost.calibration=\"" + (f / "cpu.toml").string() + "\"",
                                   "--set", "cost.other_device=true", "--set",
                                   "workload.routing={ synthetic = \"uniform\" }", "--set",
                                   "model.file=\"" + model + "\"", "-o", (f / "r.h5").string()});
  EXPECT_EQ(sim.exit_code, 0) << sim.err;
  EXPECT_NE(sim.out.find("calibration cpu: "), std::string::npos) << sim.out;
  EXPECT_EQ(sim.out.find("calibration cpu: 0 times"), std::string::npos) << sim.out;
  // The host's times are on every step, to the picosecond: 16 sequences on 8 GPUs, two on each.
  const auto steps_of = [&](std::vector<std::string> more, const std::string& out) {
    std::vector<std::string> words{"sim",
                                   source_path("scenarios/demo.toml").string(),
                                   "--set",
                                   "cost.calibration=\"" + (f / "cpu.toml").string() + "\"",
                                   "--set",
                                   "cost.other_device=true",
                                   "--set",
                                   "workload.batch=16",
                                   "--set",
                                   "workload.routing={ synthetic = \"uniform\" }",
                                   "--set",
                                   "model.file=\"" + model + "\"",
                                   "--quiet",
                                   "-o",
                                   (f / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto ran = run_switchyard(words);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return run::read_run(f / out).steps;
  };
  const auto with = steps_of({"--set", "host={}"}, "with.h5");
  const auto without =
      steps_of({"--set", "host={per_step=\"0 us\",per_sequence=\"0 us\"}"}, "without.h5");
  const auto& table = *std::find_if(c.tables.begin(), c.tables.end(), [](const auto& t) {
    return t.kind == scenario::OpKind::kHost;
  });
  const std::int64_t each = SimTime::from_seconds(table.overhead_us * 1e-6).ps() +
                            2 * SimTime::from_seconds(table.per_sequence_us * 1e-6).ps();
  ASSERT_GT(each, 0);
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t s = 0; s < with.size(); ++s) {
    EXPECT_EQ(with[s].end_ps - with[s].start_ps - (without[s].end_ps - without[s].start_ps), each)
        << s;
  }
  const auto latent = run_switchyard({"profile", "--model", "deepseek_v3", "-o", "x.toml"},
                                     {.folder = f, .environment = {}});
  EXPECT_EQ(latent.exit_code, 2) << latent.err;
  EXPECT_NE(latent.err.find("latent attention"), std::string::npos) << latent.err;
  EXPECT_FALSE(fs::exists(f / "x.toml"));
}

/// A backend whose norms take two milliseconds more.
class SlowBackend : public cli::TimedBackend {
 public:
  using TimedBackend::TimedBackend;
  void rms_norm(const float* x, std::size_t rows, const WeightView& weight, float eps,
                float* out) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    TimedBackend::rms_norm(x, rows, weight, eps, out);
  }
};

TEST(Profile, TheHostsTimeIsWhatIsNotInTheBackendsCalls) {
  const model::ModelConfig model =
      model::read_model_config(source_path("scenarios/checkpoints/sy-16x2"));
  const auto cpu = make_cpu_backend(1);
  SlowBackend slow(*cpu);
  const cli::HostScope scope{{1, 4}, 15};
  const scenario::OpTable fast = cli::measure_host(*cpu, model, scope, "x");
  const auto begin = std::chrono::steady_clock::now();
  const scenario::OpTable same = cli::measure_host(slow, model, scope, "x");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2 * 16 * 9 * 2))
      << "2 x 16 steps of 4 layers have 9 norms each";
  for (const scenario::OpTable* t : {&fast, &same}) {
    EXPECT_EQ(t->kind, scenario::OpKind::kHost);
    EXPECT_EQ(t->variant, "");
    ASSERT_EQ(t->points.size(), 2U);
    EXPECT_EQ(t->points[1].at[0], 4);
    for (const auto& p : t->points) {
      EXPECT_GT(p.us, 0);
      EXPECT_LT(p.us, 2000) << "not one of the norms";
    }
    // Two points: the line goes through both, unless one part would be negative.
    if (t->overhead_us > 0 && t->per_sequence_us > 0) {
      EXPECT_NEAR(t->overhead_us + 4 * t->per_sequence_us, t->points[1].us, 1e-6 * t->points[1].us);
    }
  }
}

TEST(Validate, BadInputNamesFileAndLine) {
  const auto bad = [](const std::string& content, const std::string& name) {
    const fs::path folder = fresh_folder("bad");
    write_file(folder / name, content);
    const auto r = run_switchyard({"validate", "--data", folder.string()});
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_EQ(r.out, "");
    return r.err;
  };
  const std::string name = "h200_nccl_1_us.csv";
  const std::string header = "op,num_gpus,dtype,message_elements,bytes,latency_us\n";
  EXPECT_NE(bad(header + "alltoall,8,half,1,2,nan\n", name).find(name + ":2"), std::string::npos);
  EXPECT_NE(bad(header + "alltoall,8,half,1,2,-1\n", name).find("latency_us"), std::string::npos);
  EXPECT_NE(bad(header + "alltoall,8,half,1,2\n", name).find("5 fields"), std::string::npos);
  EXPECT_NE(bad(header + "alltoall,1,half,1,2,3\n", name).find("num_gpus"), std::string::npos);
  EXPECT_NE(bad("op,num_gpus\nx,8\n", name).find("no column"), std::string::npos);
  EXPECT_NE(bad("a,b\n1,2\n", "other.csv").find("no measured time of h200"), std::string::npos);
  const auto both = run_switchyard({"validate", "--step-loop", "--data", excerpt().string()});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("--step-loop: has no effect with --data"), std::string::npos) << both.err;
  const auto unknown = run_switchyard({"validate", "--hardware", "h20"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("did you mean \"h200\"?"), std::string::npos) << unknown.err;
}

TEST(Validate, RowsOfAnUnknownLibraryAreCountedNotGuessed) {
  const fs::path folder = fresh_folder("unknown");
  std::string rows = "op,num_gpus,dtype,message_elements,bytes,latency_us\n";
  for (int i = 1; i < 9; ++i) rows += fmt::format("alltoall,8,half,{},{},20\n", i, 2 * i);
  write_file(folder / "h200_nccl_9.9_us.csv", rows);
  const auto tables = summary({"--data", folder.string()});
  EXPECT_EQ(total(tables).at("rows judged"), 0);
  EXPECT_GT(tables.at(0).at("rows").at(0).at("not in the calibration").get<int>(), 0);
}

}  // namespace
}  // namespace switchyard
