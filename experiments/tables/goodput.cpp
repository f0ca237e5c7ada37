// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/goodput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

constexpr double kTtft = 0.3, kTpot = 0.025, kShare = 0.9;
constexpr int kPrompt = 1024;

/// Requests arrive for `seconds`; those of the first `warm_up` do not count.
struct Traffic {
  double seconds = 0, warm_up = 0;
  int answer = 0;
};
Traffic traffic(const ShortRuns& runs) {
  return runs.quick() ? Traffic{1, 0.2, 16} : Traffic{5.5, 2, 128};
}

struct Layout {
  const char *name, *ratio, *parallel, *front_end;
  bool quick;
};
constexpr std::array<Layout, 7> kLayouts{
    {{"aggregated, 4 replicas of 2 GPUs", "-", "ep = 2\n", "replicas = 4", true},
     {"aggregated, 2 replicas of 4 GPUs", "-", "ep = 4\n", "replicas = 2", false},
     {"aggregated, 1 replica of 8 GPUs", "-", "ep = 8\n", "replicas = 1", false},
     {"disaggregated, replicas of 2 GPUs", "2:6", "ep = 2\n", "replicas = 4, prefill_replicas = 1",
      false},
     {"disaggregated, replicas of 2 GPUs", "4:4", "ep = 2\n", "replicas = 4, prefill_replicas = 2",
      true},
     {"disaggregated, replicas of 2 GPUs", "6:2", "ep = 2\n", "replicas = 4, prefill_replicas = 3",
      false},
     {"disaggregated, replicas of 4 GPUs", "4:4", "ep = 4\n", "replicas = 2, prefill_replicas = 1",
      false}}};

struct Probe {
  Attainment held;
  double requests = 0;  ///< Counted.
  double tokens = 0;    ///< Per second and GPU, prompts and answers, at the rate of arrivals.
};

struct Grid {
  double from = 0, factor = 0;
  std::size_t points = 0;
  [[nodiscard]] double rate(std::size_t i) const {
    return from * std::pow(factor, static_cast<double>(i));
  }
};

Probe probe(ShortRuns& runs, const Layout& layout, double rate) {
  const Traffic t = traffic(runs);
  const auto run = runs.run(fmt::format(
      "[model]\nfile = \"mixtral_8x7b\"\n[hardware]\nfile = \"hardware/hgx_h100.toml\"\n"
      "[parallel]\n{}[workload]\nkind = \"open\"\n{}arrivals = {{ per_second = {:.6f}, duration = "
      "\"{} s\" }}\nlengths = {{ prompt = {}, prompt_cv = 0.8, output = {}, output_cv = 0.6 }}\n"
      "batching = {{ max_sequences = 128, token_budget = 2048 }}\nfront_end = {{ {} }}\n{}",
      layout.parallel, kDrawnRouting, rate, t.seconds, kPrompt, t.answer, layout.front_end,
      kRunTail));
  double tokens = 0, counted = 0;
  for (const run::RequestRecord& r : run.requests) {
    tokens += r.prompt_tokens + r.output_tokens;
    counted += static_cast<double>(r.arrival_ps) * 1e-12 < t.warm_up ? 0 : 1;
  }
  const auto n = static_cast<double>(std::max<std::size_t>(run.requests.size(), 1));
  return {attainment(run, kTtft, kTpot, t.warm_up), counted,
          rate * tokens / n / static_cast<double>(run.inventory.gpus.size())};
}

}  // namespace

Attainment attainment(const run::RunData& run, double ttft_s, double tpot_s, double from_s) {
  Attainment out;
  double n = 0;
  for (const run::RequestRecord& r : run.requests) {
    if (static_cast<double>(r.arrival_ps) * 1e-12 < from_s) {
      continue;
    }
    ++n;
    if (r.outcome != run::RequestOutcome::kFinished) {
      continue;
    }
    const double ttft = static_cast<double>(r.first_token_ps - r.arrival_ps) * 1e-12;
    const double rest = static_cast<double>(r.end_ps - r.first_token_ps) * 1e-12;
    const bool first = ttft <= ttft_s;
    const bool others = r.output_tokens < 2 || rest / (r.output_tokens - 1.0) <= tpot_s;
    out.ttft += first ? 1 : 0;
    out.tpot += others ? 1 : 0;
    out.both += first && others ? 1 : 0;
  }
  return n > 0 ? Attainment{out.both / n, out.ttft / n, out.tpot / n} : out;
}

Turn find_turn(std::size_t n, const std::function<bool(std::size_t)>& holds) {
  std::size_t good = 0;  // One beyond the last index that is known to hold.
  std::size_t bad = n;   // The first that is known not to.
  while (good < bad) {
    const std::size_t middle = good + (bad - good) / 2;
    if (holds(middle)) {
      good = middle + 1;
    } else {
      bad = middle;
    }
  }
  Turn out;
  if (good > 0) {
    out.last_good = good - 1;
  }
  if (bad < n) {
    out.first_bad = bad;
  }
  return out;
}

Table goodput_table(ShortRuns& runs) {
  const Grid grid = runs.quick() ? Grid{4, 1.6, 7} : Grid{9, 1.08, 31};
  Table t;
  t.name = "goodput";
  t.title = fmt::format(
      "mixtral_8x7b (BF16) on 8 x H100: requests/s of which {:.0f} % have TTFT <= {:.0f} ms and "
      "TPOT "
      "<= {:.0f} ms",
      100 * kShare, 1e3 * kTtft, 1e3 * kTpot);
  t.columns = {"layout",
               "P:D [GPUs]",
               "goodput [requests/s]",
               "attainment [%]",
               "TTFT [%]",
               "TPOT [%]",
               "requests counted",
               "tokens/s per GPU",
               "next rate [requests/s]",
               "attainment there [%]",
               "TTFT there [%]",
               "TPOT there [%]",
               "limit"};
  for (const Layout& layout : kLayouts) {
    if (runs.quick() && !layout.quick) {
      continue;
    }
    std::map<std::size_t, Probe> probes;
    const Turn turn = find_turn(grid.points, [&](std::size_t i) {
      probes[i] = probe(runs, layout, grid.rate(i));
      return probes[i].held.both >= kShare;
    });
    std::vector<std::string> row = {layout.name, layout.ratio};
    if (turn.last_good) {
      const Probe& p = probes.at(*turn.last_good);
      row.insert(row.end(), {fmt::format("{:.2f}", grid.rate(*turn.last_good)),
                             percent(p.held.both), percent(p.held.ttft), percent(p.held.tpot),
                             fmt::format("{:.0f}", p.requests), fmt::format("{:.0f}", p.tokens)});
    } else {
      row.insert(row.end(),
                 {fmt::format("< {:.2f}", grid.rate(0)), "n/a", "n/a", "n/a", "n/a", "n/a"});
    }
    if (turn.first_bad) {
      const Attainment& a = probes.at(*turn.first_bad).held;
      row.insert(row.end(), {fmt::format("{:.2f}", grid.rate(*turn.first_bad)), percent(a.both),
                             percent(a.ttft), percent(a.tpot),
                             a.ttft < a.tpot ? "TTFT" : (a.tpot < a.ttft ? "TPOT" : "both")});
    } else {
      row.insert(row.end(), {"n/a", "n/a", "n/a", "n/a", "none on the grid"});
    }
    t.rows.push_back(std::move(row));
  }
  const Traffic arrivals = traffic(runs);
  t.notes.push_back(fmt::format(
      "Poisson arrivals for {} s, seed 1 (the same draws at every rate), those after {} s count "
      "(an "
      "attainment of 90 % of n requests has a standard error of 30 / sqrt(n) points); prompts of "
      "{} "
      "tokens on average (lognormal, coefficient of variation 0.8), answers of {} (0.6); rates a "
      "factor {} apart, by bisection",
      arrivals.seconds, arrivals.warm_up, kPrompt, arrivals.answer, grid.factor));
  t.notes.emplace_back(
      "limit: what fewer requests hold at the next rate; tokens/s: of prompts and answers, at the "
      "rate of arrivals; a rate hardly beyond what can be served for ever may hold for so long");
  t.notes.emplace_back(
      "all: 128 sequences a GPU and prompts in chunks, token budget 2048; front end by least "
      "queue, dp inside a replica, ep over it; routing drawn, lognormal with sigma 0.9; host "
      "500 us a step and 10 us a sequence, assumed; KV pages travel over NVLink, each transfer "
      "alone");
  return t;
}

std::vector<Table> make_goodput(const TableContext& context) {
  ShortRuns runs(context);
  return {goodput_table(runs)};
}

}  // namespace switchyard::tables
