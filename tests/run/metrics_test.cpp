// SPDX-License-Identifier: Apache-2.0
#include "sim/run/metrics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/run/sample_run.hpp"

namespace switchyard::run {
namespace {

using testing::sample_run;

std::map<std::string, double> values(const RunData& run) {
  std::map<std::string, double> out;
  for (const Metric& m : compute_metrics(run)) out[m.name] = m.value;
  return out;
}

TEST(Metrics, OfTheSampleRunAreThoseComputedByHand) {
  // 10 steps of 100 us, 8 of them measured (2…9): span 0.8 ms, 32 tokens, 128 assignments. Steps 5
  // and 9 reroute one in layer 0, step 5 drops one in layer 1.
  const auto m = values(sample_run(10, Detail::kLayers));
  EXPECT_EQ(m.at("measured steps"), 8);
  EXPECT_EQ(m.at("tokens"), 32);
  EXPECT_DOUBLE_EQ(m.at("span"), 0.8);
  EXPECT_DOUBLE_EQ(m.at("tokens per second"), 40'000);
  EXPECT_DOUBLE_EQ(m.at("tokens per second and GPU"), 20'000);
  EXPECT_DOUBLE_EQ(m.at("step time mean"), 100);
  EXPECT_DOUBLE_EQ(m.at("step time p99"), 100);
  // Finished within 0.2…1.0 ms: TTFT 0.1, 0.2, 0.3 ms; TPOT 0.1 ms each.
  EXPECT_DOUBLE_EQ(m.at("TTFT mean"), 0.2);
  EXPECT_DOUBLE_EQ(m.at("TTFT p50"), 0.2);
  EXPECT_DOUBLE_EQ(m.at("TTFT p99"), 0.3);
  EXPECT_DOUBLE_EQ(m.at("TPOT p50"), 0.1);
  EXPECT_NEAR(m.at("attention share"), 0.30, 1e-12);
  EXPECT_NEAR(m.at("router share"), 0.05, 1e-12);
  EXPECT_NEAR(m.at("dispatch share"), 0.10, 1e-12);
  EXPECT_NEAR(m.at("combine share"), 0.10, 1e-12);
  EXPECT_NEAR(m.at("expert share"), 0.30, 1e-12);
  EXPECT_NEAR(m.at("host share"), 0.10, 1e-12);
  // GPU 1 waits 10 of every 100 us, GPU 0 never.
  EXPECT_NEAR(m.at("GPU wait share"), 0.05, 1e-12);
  double sum = 0;
  for (const char* part : {"attention", "router", "dispatch", "expert", "combine", "dense",
                           "collective", "head", "host", "step wait"}) {
    sum += m.at(std::string(part) + " share");
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(m.at("idle share"), 0);  // One step follows the other.
  // Imbalance: step 5 (1.5 + 10/7)/2, step 9 (1.5 + 1)/2, six steps of 1.
  EXPECT_NEAR(m.at("imbalance mean"), ((1.5 + 10.0 / 7) / 2 + 1.25 + 6) / 8, 1e-12);
  EXPECT_DOUBLE_EQ(m.at("imbalance max"), 1.5);
  // Layer 0: 18 18 16 12 of 64 (mean 16, variance (4+4+0+16)/4 = 6); layer 1: 17 16 16 14 of 63
  // (mean 15.75, variance (1.5625+0.0625+0.0625+3.0625)/4 = 1.1875).
  EXPECT_NEAR(m.at("load_cv"), (std::sqrt(6.0) / 16 + std::sqrt(1.1875) / 15.75) / 2, 1e-12);
  // sqrt((1 - 2/4) / (32 * 2/4)) = sqrt(1/32)
  EXPECT_NEAR(m.at("load_cv floor"), std::sqrt(1.0 / 32), 1e-12);
  EXPECT_NEAR(m.at("top3_share mean"), (52.0 / 64 + 49.0 / 63) / 2, 1e-12);
  EXPECT_NEAR(m.at("top3_share max"), 52.0 / 64, 1e-12);
  EXPECT_NEAR(m.at("expert load max"), 18.0 / 16, 1e-12);
  EXPECT_EQ(m.at("gate entropy"), 1.5);
  EXPECT_DOUBLE_EQ(m.at("overflow share"), 3.0 / 128);
  EXPECT_DOUBLE_EQ(m.at("reroute share"), 2.0 / 128);
  EXPECT_EQ(m.at("queue share"), 0);
  EXPECT_DOUBLE_EQ(m.at("drop share"), 1.0 / 128);
  EXPECT_EQ(m.at("longest queue"), 1);
  // Busy: GPU 0 90 of 100 us, GPU 1 80 (it waits 10). Compute: 70 and 60.
  EXPECT_NEAR(m.at("busy"), 0.85, 1e-12);
  EXPECT_NEAR(m.at("compute_busy"), 0.65, 1e-12);
  // 50 000 B per step of 100 us, peak 2 GB/s: 0.25. 4e7 FLOP per 100 us, peak 2e12/s: 0.2.
  EXPECT_NEAR(m.at("MBU"), 0.25, 1e-12);
  EXPECT_NEAR(m.at("MFU"), 0.2, 1e-12);
  // 4000 and 3000 B per 100 us of 1 GB/s.
  EXPECT_NEAR(m.at("link use mean"), 0.035, 1e-12);
  EXPECT_NEAR(m.at("link use max"), 0.04, 1e-12);
  EXPECT_NEAR(m.at("bytes sent per token"), 1.75, 1e-12);
  EXPECT_EQ(m.at("kernels per step"), 20);
  EXPECT_DOUBLE_EQ(m.at("memory high water"), 419e-9);
  EXPECT_DOUBLE_EQ(m.at("memory high water share"), 0.419);
}

TEST(Metrics, SharesOfAStepHoldWhateverItIsMadeOf) {
  // Steps of 100 us with collectives and waits that others leave out; two replicas that step in
  // turn, so each is idle for half of the time.
  RunData run = sample_run(10, Detail::kLayers);
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    auto& p = run.steps[i].phase_ps;
    p.fill(0);
    p[static_cast<std::size_t>(Phase::kCollective)] = 40'000'000;
    p[static_cast<std::size_t>(Phase::kWait)] = 35'000'000;
    p[static_cast<std::size_t>(Phase::kHead)] = 25'000'000;
    run.steps[i].engine = static_cast<std::uint32_t>(i % 2);
  }
  const auto m = values(run);
  EXPECT_NEAR(m.at("collective share"), 0.4, 1e-12);
  EXPECT_NEAR(m.at("step wait share"), 0.35, 1e-12);
  EXPECT_NEAR(m.at("head share"), 0.25, 1e-12);
  EXPECT_NEAR(m.at("idle share"), 0.5, 1e-12);
}

TEST(Metrics, DoNotDependOnTheDetail) {
  const auto a = compute_metrics(sample_run(10, Detail::kSummary));
  const auto b = compute_metrics(sample_run(10, Detail::kTokens));
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].value, b[i].value) << a[i].name;
}

TEST(Metrics, WithoutDataAreNotAvailable) {
  for (const auto& [name, value] : values(sample_run(0, Detail::kLayers))) {
    if (name == "measured steps" || name == "tokens" || name.starts_with("memory")) {
      EXPECT_EQ(value, 0) << name;
    } else {
      EXPECT_TRUE(std::isnan(value)) << name << " = " << value;
    }
  }
  RunData run = sample_run(10, Detail::kLayers);
  run.inventory.gpus[1].hbm.value = 0;
  run.inventory.gpus[1].peak.value = 0;
  run.requests.clear();
  const auto m = values(run);
  for (const char* name : {"MBU", "MFU", "TTFT p50", "TPOT p99"}) {
    EXPECT_TRUE(std::isnan(m.at(name))) << name;
  }
  EXPECT_EQ(format_value(m.at("MBU")), "n/a");
}

TEST(Metrics, CountsAreWrittenOut) {
  EXPECT_EQ(format_value(6946652160.0), "6946652160");
  EXPECT_EQ(format_value(-1234567), "-1234567");
  EXPECT_EQ(format_value(999999.4), "999999");
  EXPECT_EQ(format_value(0.0123456789), "0.0123457");
  EXPECT_EQ(format_value(1e18), "1e+18");
}

TEST(Metrics, HaveADefinitionEachAndNoNameTwice) {
  std::map<std::string, int> names;
  for (const MetricDefinition& d : metric_definitions()) {
    EXPECT_FALSE(d.definition.empty()) << d.name;
    EXPECT_EQ(++names[d.name], 1) << d.name;
    EXPECT_EQ(find_metric(d.name), &d);
  }
  for (const auto* more : {&serving_metric_definitions(), &stated_metric_definitions()}) {
    for (const MetricDefinition& d : *more) {
      EXPECT_FALSE(d.definition.empty()) << d.name;
      EXPECT_EQ(++names[d.name], 1) << d.name;
      EXPECT_EQ(find_metric(d.name), &d);
    }
  }
  EXPECT_EQ(find_metric("expert hit rate, layer 17"), find_metric("expert hit rate"));
  EXPECT_NE(find_metric("expert hit rate, Belady bound"), find_metric("expert hit rate"));
  EXPECT_EQ(find_metric("no such metric"), nullptr);
}

TEST(NearestRank, TakesTheValueAtTheRoundedUpRank) {
  const std::vector<double> five = {15, 20, 35, 40, 50};
  EXPECT_EQ(nearest_rank(five, 5), 15);   // rank 0.25 -> 1
  EXPECT_EQ(nearest_rank(five, 30), 20);  // 1.5 -> 2
  EXPECT_EQ(nearest_rank(five, 40), 20);  // 2
  EXPECT_EQ(nearest_rank(five, 50), 35);  // 2.5 -> 3
  EXPECT_EQ(nearest_rank(five, 100), 50);
  std::vector<double> hundred(100);
  for (std::size_t i = 0; i < 100; ++i) hundred[i] = static_cast<double>(i + 1);
  EXPECT_EQ(nearest_rank(hundred, 99), 99);
  EXPECT_TRUE(std::isnan(nearest_rank({}, 50)));
}

// 30 windows of 10 s with 100 values each: 1 ms, but 98 of them in every second window 1 ms and two
// 5 ms. The 99th of 100 is then 5: half the windows say 1, half 5, so the std is 2.
TEST(WindowedP99Std, IsTheStdOfTheWindowsPercentiles) {
  constexpr std::int64_t kSecond = 1'000'000'000'000;
  std::vector<std::int64_t> time;
  std::vector<double> value;
  for (std::int64_t w = 0; w < 30; ++w) {
    for (std::int64_t i = 1; i <= 100; ++i) {
      time.push_back(5 * kSecond + w * 10 * kSecond + i * kSecond / 10);
      value.push_back(w % 2 == 1 && i <= 2 ? 5.0 : 1.0);
    }
  }
  EXPECT_DOUBLE_EQ(windowed_p99_std(time, value, 5 * kSecond, 305 * kSecond), 2.0);
  // What lies after the last whole window or before the first does not count.
  time.push_back(306 * kSecond);
  value.push_back(1e9);
  time.push_back(5 * kSecond);
  value.push_back(1e9);
  EXPECT_DOUBLE_EQ(windowed_p99_std(time, value, 5 * kSecond, 314 * kSecond), 2.0);
  // 27 windows are too few, and so are 30 of which three are empty.
  EXPECT_TRUE(std::isnan(windowed_p99_std(time, value, 35 * kSecond, 305 * kSecond)));
  EXPECT_DOUBLE_EQ(windowed_p99_std(time, value, 25 * kSecond, 305 * kSecond), 2.0);
  EXPECT_TRUE(std::isnan(windowed_p99_std({}, {}, 0, 400 * kSecond)));
  EXPECT_TRUE(std::isnan(windowed_p99_std({}, {}, 5, 5)));
}

}  // namespace
}  // namespace switchyard::run
