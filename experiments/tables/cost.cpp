// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "experiments/tables/research_costs.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

constexpr double kHoursOfAYear = 8760;

// Idle power where the hardware file has none: 13 % of the TDP, as of the H100 (92 of 700 W).
constexpr std::array<PricedGpu, 5> kGpus{
    {{"A100", "hgx_a100", "S2 4.3 (claim C40)", 10'000, 0.13 * 400},
     {"H100", "hgx_h100", "AI Infrastructure Index (alpha-one-index), 2026-03-01", 30'000, 0},
     {"H200", "hgx_h200", "AI Infrastructure Index (alpha-one-index), 2026-03-01", 35'000, 0},
     {"B200", "hgx_b200", "AI Infrastructure Index (alpha-one-index), 2026-03-01", 40'000,
      0.13 * 1000},
     {"L40S", "l40s_pcie_8", "", 0, 0.13 * 350}}};

/// What 8 GPUs of a type do under the table's traffic.
struct Served {
  double rate = 0;  ///< Tokens per second and GPU, prompts and answers.
  double ttft_ms = 0, tpot_ms = 0;
  double busy_w = 0, idle_w = 0;  ///< Of a GPU.
};

Served serve(ShortRuns& runs, const PricedGpu& gpu) {
  const int users = runs.quick() ? 64 : 512;
  const std::string text = fmt::format(
      "[model]\nfile = \"mixtral_8x7b\"\n[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\n"
      "dp = 8\nep = 8\n[workload]\nkind = \"closed\"\n{}arrivals = {{ users = {}, think = \"0 "
      "us\", "
      "requests = {} }}\nlengths = {{ prompt = 1024, output = {} }}\nbatching = {{ max_sequences = "
      "128, token_budget = 2048 }}\n{}",
      gpu.hardware, kDrawnRouting, users, runs.quick() ? 96 : 2 * users, runs.quick() ? 16 : 256,
      kRunTail);
  double idle = 0;
  const auto run = runs.run(text, [&](scenario::Scenario& s) {
    for (scenario::GpuType& type : s.hardware.gpu_types) {
      type.idle_w = type.idle_w > 0 ? type.idle_w : gpu.idle_w;
      idle = type.idle_w;
    }
  });
  return {metric(run, "tokens per second and GPU"), metric(run, "TTFT p50"),
          metric(run, "TPOT p50"), metric(run, "mean power") / 8, idle};
}

}  // namespace

double usd_per_million(const CostInputs& in, double price, double rate, double busy_w,
                       double idle_w, double utilisation) {
  const double watts = in.pue * (utilisation * busy_w + (1 - utilisation) * idle_w);
  const double usd_per_hour = price / (in.years * kHoursOfAYear) + 1e-3 * watts * in.usd_per_kwh;
  return usd_per_hour / (utilisation * rate * 3600) * 1e6;
}

Table cost_table(ShortRuns& runs) {
  const CostInputs in;
  Table t;
  t.name = "cost";
  t.title =
      "mixtral_8x7b (BF16) on 8 GPUs, dp 8, ep 8, users who ask again at once: USD per million "
      "tokens";
  t.columns = {"GPU",
               "price [USD]",
               "utilisation [%]",
               "tokens/s per GPU",
               "TPOT p50 [ms]",
               "W per GPU",
               "USD per M tokens",
               "of it electricity [%]",
               "rent that meets the API [USD/GPU/h]",
               "price that meets the API [USD]",
               "break-even utilisation [%]",
               "price that meets the H100 [USD]"};
  std::array<Served, kGpus.size()> served;
  for (std::size_t i = 0; i < kGpus.size(); ++i) {
    served[i] = serve(runs, kGpus[i]);
  }
  for (std::size_t i = 0; i < kGpus.size(); ++i) {
    const Served& s = served[i];
    const double price = kGpus[i].price;
    for (const double u : {1.0, 0.5, 0.2}) {
      const auto usd = [&](double of) {
        return usd_per_million(in, of, s.rate, s.busy_w, s.idle_w, u);
      };
      const double power = usd(0);
      // USD per million tokens that a price of 1 USD adds.
      const double slope = usd(1) - power;
      const double even = (in.api_usd - power) / slope;
      // Income and electricity of the working hours bear depreciation and idle power.
      const double earned =
          s.rate * 3600e-6 * in.api_usd - 1e-3 * in.pue * (s.busy_w - s.idle_w) * in.usd_per_kwh;
      const double fixed =
          price / (in.years * kHoursOfAYear) + 1e-3 * in.pue * s.idle_w * in.usd_per_kwh;
      const double share = fixed / earned;
      const Served& h = served[1];
      const double h100 = usd_per_million(in, kGpus[1].price, h.rate, h.busy_w, h.idle_w, u);
      t.rows.push_back({std::string(kGpus[i].name),
                        price > 0 ? fmt::format("{:.0f}", price) : "n/a", percent(u),
                        fmt::format("{:.0f}", s.rate), fmt::format("{:.2f}", s.tpot_ms),
                        fmt::format("{:.0f}", u * s.busy_w + (1 - u) * s.idle_w),
                        price > 0 ? fmt::format("{:.4f}", usd(price)) : "n/a",
                        price > 0 ? percent(power / usd(price)) : "n/a",
                        fmt::format("{:.2f}", u * s.rate * 3600e-6 * in.api_usd),
                        fmt::format("{:.0f}", std::max(0.0, even)),
                        price > 0 ? (earned > 0 ? percent(share) : std::string("never")) : "n/a",
                        fmt::format("{:.0f}", (h100 - power) / slope)});
    }
  }
  t.notes.emplace_back(
      "tokens: prompts and answers; requests of 1024 in, 256 out, 512 users (quick: 16 out, 64 "
      "users); busy: mean power of the run, idle + (TDP - idle) x share of time in kernels, for "
      "the utilisation's share of time, idle power for the rest; x PUE 1.3, assumed; 0.12 USD/kWh "
      "and 3 years (S2 4.3, claim C40)");
  std::string prices = "prices of a card:";
  for (const PricedGpu& g : kGpus) {
    prices += g.price > 0 ? fmt::format(" {} {:.0f} USD ({});", g.name, g.price, g.price_source)
                          : fmt::format(" {}: none at hand", g.name);
  }
  t.notes.push_back(prices);
  t.notes.emplace_back(
      "API: 0.42 USD per million tokens in and out, Mixtral 8x7B Instruct at therouter.ai (2026); "
      "rent that meets it: of everything, electricity included (for scale: DeepSeek counts 2 USD "
      "per "
      "H800 and hour, 2025-03-01); break-even utilisation above 100: never at this price");
  t.notes.emplace_back(
      "idle power of A100, B200, L40S: 13 % of the TDP as of the H100, assumed; not modelled: the "
      "server beside its GPUs, network, staff, interest, prefix caching; requests beyond what "
      "users "
      "send");
  return t;
}

std::vector<Table> make_cost(const TableContext& context) {
  ShortRuns runs(context);
  return {cost_table(runs)};
}

}  // namespace switchyard::tables
