// SPDX-License-Identifier: Apache-2.0
// Tables of what serving costs: overlap, energy, cost, goodput.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/tables/goodput.hpp"
#include "experiments/tables/research_costs.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

ShortRuns quick() { return ShortRuns({fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios", true, 1}); }

const std::string& cell(const Table& t, std::size_t row, const std::string& column) {
  const auto it = std::find(t.columns.begin(), t.columns.end(), column);
  EXPECT_NE(it, t.columns.end()) << column;
  return t.rows.at(row).at(static_cast<std::size_t>(it - t.columns.begin()));
}
double number(const Table& t, std::size_t row, const std::string& column) {
  return std::stod(cell(t, row, column));
}

TEST(Overlap, HidesNoMoreThanThereIsAndPaysForSmsAndHalves) {
  ShortRuns runs = quick();
  const Table t = overlap_table(runs);
  ASSERT_EQ(t.rows.size(), 6U);  // two exchanges x (one batch, two halves with 0 and 20 % of SMs)
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    EXPECT_NEAR(number(t, row, "exchange, exposed [ms]"),
                number(t, row, "time [ms]") - number(t, row, "work [ms]"), 0.0011);
    EXPECT_GE(number(t, row, "exchange, exposed [ms]"), 0) << "no faster than with free links";
    EXPECT_LE(number(t, row, "hidden [%]"), number(t, row, "hidden at best [%]") + 0.02) << row;
  }
  for (const std::size_t first : {0U, 3U}) {
    EXPECT_EQ(number(t, first, "hidden [%]"), 0);
    EXPECT_EQ(number(t, first, "speed-up"), 1);
    EXPECT_GT(number(t, first + 1, "hidden [%]"), 50) << "the other half's work";
    EXPECT_GT(number(t, first + 1, "work [ms]"), number(t, first, "work [ms]"))
        << "weights are read twice";
    const double all = number(t, first + 1, "work [ms]");
    const double fewer = number(t, first + 2, "work [ms]");
    EXPECT_GT(fewer, all);
    EXPECT_LE(fewer, all / 0.8 + 0.001) << "kernels by 1 / 0.8, launches and host not";
  }
  EXPECT_LT(number(t, 3, "exchange, exposed [ms]"), number(t, 0, "exchange, exposed [ms]"))
      << "one copy per server crosses the NICs";
}

TEST(Energy, PartsSumToTheRunsOwnMetricAndBatchOneReadsTheActiveWeights) {
  ShortRuns runs = quick();
  const auto run = runs.run(
      fixed_batch("mixtral_8x7b", "hgx_h100", "dp = 8\nep = 8\n", decode_steps(64, 1024, true)));
  const EnergySplit e = energy_split(run, 92, 700);
  EXPECT_NEAR(e.total(), metric(run, "energy per token"), 1e-9 * e.total());
  // By hand: eight GPUs at 92 W for the span, 64 tokens a step.
  const double steps = metric(run, "measured steps");
  EXPECT_NEAR(e.idle, 8 * 92 * 1e-3 * metric(run, "span") / (64 * steps), 1e-9);

  const auto tables = energy_tables(runs);
  ASSERT_EQ(tables.size(), 2U);
  const Table& t = tables[0];
  ASSERT_EQ(t.rows.size(), 10U);
  // 12.88 B active parameters less an embedding of 0.131 B, 2 B each; 1,024 cached tokens of
  // 131,072 B.
  const double weights = 2 * (12.88 - 0.131) + 1024 * 131072e-9;
  EXPECT_NEAR(number(t, 0, "HBM reads and writes [GB/token]"), weights, 0.01 * weights);
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    EXPECT_NEAR(
        number(t, row, "of it idle") + number(t, row, "compute") + number(t, row, "exchange"),
        number(t, row, "J/token"), 2e-3 * number(t, row, "J/token"));
    EXPECT_NEAR(number(t, row, "W per GPU") * 8 / number(t, row, "tokens/s"),
                number(t, row, "J/token"), 6e-3 * number(t, row, "J/token"));
  }
  for (const std::size_t layout : {0U, 5U}) {
    EXPECT_GT(number(t, layout, "J/token"), 10 * number(t, layout + 1, "J/token"));
    EXPECT_GT(number(t, layout + 1, "J/token"), number(t, layout + 2, "J/token"));
    EXPECT_GT(number(t, layout + 1, "J/token"), number(t, layout + 3, "J/token"))
        << "a prompt reads the weights once for all its tokens";
  }
  EXPECT_GT(number(t, 5, "exchange"), number(t, 0, "exchange")) << "all-reduces keep all GPUs busy";
  const Table& r = tables[1];
  ASSERT_EQ(r.rows.size(), 6U);
  EXPECT_NEAR(number(r, 0, "sum [J]"),
              1024 * number(t, 3, "J/token") + 256 * number(t, 0, "J/token"),
              2e-3 * number(r, 0, "sum [J]"));
}

TEST(Cost, IsTheArithmeticOfC40AndBreaksEvenWhereItSays) {
  // $10,000 over 26,280 h and 300 W at $0.12/kWh: $0.380518 + $0.036 an hour, 85 tokens/s.
  CostInputs c40;
  c40.pue = 1;
  EXPECT_NEAR(usd_per_million(c40, 10'000, 85, 300, 300, 1), 1.361, 5e-4);
  EXPECT_NEAR(4 * usd_per_million(c40, 10'000, 85, 300, 300, 1), 5.445, 5e-4);
  // Half the time idle at no power: depreciation doubles per token, electricity does not.
  EXPECT_NEAR(usd_per_million(c40, 10'000, 85, 300, 0, 0.5),
              (2 * 10'000 / 26'280.0 + 0.036) / (85 * 3600e-6), 1e-9);

  ShortRuns runs = quick();
  const Table t = cost_table(runs);
  ASSERT_EQ(t.rows.size(), 15U);
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    const double u = number(t, row, "utilisation [%]") / 100;
    const double rate = number(t, row, "tokens/s per GPU");
    EXPECT_NEAR(number(t, row, "rent that meets the API [USD/GPU/h]"), u * rate * 3600e-6 * 0.42,
                0.005 + 1e-4 * rate * 3600e-6);
    if (cell(t, row, "price [USD]") == "n/a") {
      EXPECT_EQ(cell(t, row, "USD per M tokens"), "n/a") << "no price is made up";
      continue;
    }
    // A price that meets the API's or the H100's is above the card's own where it is cheaper.
    EXPECT_EQ(number(t, row, "USD per M tokens") < 0.42,
              number(t, row, "price that meets the API [USD]") > number(t, row, "price [USD]"));
    const double even = number(t, row, "break-even utilisation [%]") / 100;
    if (u == 1) {
      // W per GPU at full use is the busy power, at half use its mean with the idle power.
      const double busy = number(t, row, "W per GPU");
      const double idle = 2 * number(t, row + 1, "W per GPU") - busy;
      EXPECT_NEAR(usd_per_million({}, number(t, row, "price [USD]"), rate, busy, idle, even), 0.42,
                  0.002);
      EXPECT_LT(number(t, row, "USD per M tokens"), number(t, row + 2, "USD per M tokens"));
    }
  }
  for (std::size_t row = 3; row < 6; ++row) {
    EXPECT_EQ(cell(t, row, "GPU"), "H100");
    EXPECT_EQ(number(t, row, "price that meets the H100 [USD]"), 30'000);
  }
  EXPECT_GT(number(t, 9, "tokens/s per GPU"), number(t, 6, "tokens/s per GPU")) << "B200, H200";
}

TEST(Goodput, BisectionFindsEveryTurn) {
  for (std::size_t n = 0; n <= 17; ++n) {
    for (std::size_t turn = 0; turn <= n; ++turn) {
      std::size_t calls = 0;
      const Turn found = find_turn(n, [&](std::size_t i) {
        EXPECT_LT(i, n);
        ++calls;
        return i < turn;
      });
      EXPECT_EQ(found.last_good.has_value(), turn > 0);
      EXPECT_EQ(found.first_bad.has_value(), turn < n);
      EXPECT_EQ(found.last_good.value_or(0), turn > 0 ? turn - 1 : 0);
      EXPECT_EQ(found.first_bad.value_or(turn), turn);
      EXPECT_LE(static_cast<double>(calls), std::ceil(std::log2(static_cast<double>(n) + 1)));
    }
  }
}

TEST(Goodput, AttainmentCountsWhatTheLimitsSay) {
  run::RunData run;
  const auto add = [&](std::int64_t first_ms, std::int64_t end_ms, std::uint32_t tokens) {
    run::RequestRecord r;
    r.arrival_ps = 1'000'000'000'000;
    r.first_token_ps = r.arrival_ps + first_ms * 1'000'000'000;
    r.end_ps = r.arrival_ps + end_ms * 1'000'000'000;
    r.output_tokens = tokens;
    r.outcome = run::RequestOutcome::kFinished;
    run.requests.push_back(r);
  };
  add(300, 400, 5);             // 300 ms, 25 ms: both at their limit
  add(301, 400, 5);             // late first token
  add(100, 205, 5);             // 26.25 ms a token
  add(100, 100, 1);             // one token: no TPOT
  run.requests.emplace_back();  // never finished
  const Attainment a = attainment(run, 0.3, 0.025);
  EXPECT_DOUBLE_EQ(a.both, 2.0 / 5);
  EXPECT_DOUBLE_EQ(a.ttft, 3.0 / 5);
  EXPECT_DOUBLE_EQ(a.tpot, 3.0 / 5);
  run.requests[1].arrival_ps = 0;  // before the warm-up ends, with what it would miss
  run.requests.pop_back();
  EXPECT_DOUBLE_EQ(attainment(run, 0.3, 0.025, 1).both, 2.0 / 3);
  EXPECT_DOUBLE_EQ(attainment(run, 0.3, 0.025, 1).ttft, 1);
  run.requests.clear();
  EXPECT_EQ(attainment(run, 1, 1).both, 0);
}

TEST(Goodput, HoldsAtTheRateAndNotAtTheNext) {
  ShortRuns runs = quick();
  const Table t = goodput_table(runs);
  ASSERT_EQ(t.rows.size(), 2U);
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    EXPECT_GE(number(t, row, "attainment [%]"), 90);
    EXPECT_LE(number(t, row, "attainment [%]"),
              std::min(number(t, row, "TTFT [%]"), number(t, row, "TPOT [%]")));
    EXPECT_LT(number(t, row, "attainment there [%]"), 90);
    EXPECT_NEAR(number(t, row, "next rate [requests/s]") / number(t, row, "goodput [requests/s]"),
                1.6, 0.01);
    const bool first = number(t, row, "TTFT there [%]") < number(t, row, "TPOT there [%]");
    EXPECT_EQ(cell(t, row, "limit"), first ? "TTFT" : "TPOT");
  }
  // Prompts never run beside answers on a decode replica: the time between tokens holds longer.
  EXPECT_GE(number(t, 1, "TPOT there [%]"), number(t, 0, "TPOT there [%]"));
}

TEST(Goodput, AttainmentIsTheSimulatorsOwn) {
  ShortRuns runs = quick();
  const auto run = runs.run(
      "[model]\nfile = \"mixtral_8x7b\"\n[hardware]\nfile = \"hardware/hgx_h100.toml\"\n"
      "[parallel]\nep = 4\n[workload]\nkind = \"open\"\nrouting = { synthetic = \"uniform\" }\n"
      "arrivals = { per_second = 60, requests = 40 }\nlengths = { prompt = 1024, output = 16 }\n"
      "front_end = { replicas = 2 }\nslo = { ttft = \"100 ms\", tpot = \"15 ms\" }\n" +
      std::string(kRunTail));
  const double ours = attainment(run, 0.1, 0.015).both;
  EXPECT_GT(ours, 0);
  EXPECT_LT(ours, 1) << "the case tells";
  EXPECT_DOUBLE_EQ(ours, metric(run, "SLO attainment"));
}

}  // namespace
}  // namespace switchyard::tables
