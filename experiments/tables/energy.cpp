// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "experiments/tables/research_costs.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint64_t kPrompt = 1024, kAnswer = 256;

struct Layout {
  const char *name, *parallel;
};
constexpr std::array<Layout, 2> kLayouts{
    {{"dp 8, ep 8", "dp = 8\nep = 8\n"}, {"tp 8, ep 8", "attention = \"tp\"\ntp = 8\nep = 8\n"}}};

std::string joules(double value) { return fmt::format("{:.4g}", value); }

}  // namespace

EnergySplit energy_split(const run::RunData& run, double idle_w, double tdp_w) {
  std::int64_t begin = -1, end = 0;
  double tokens = 0;
  for (const run::StepScalars& s : run.steps) {
    if (s.warmup) {
      continue;
    }
    begin = begin < 0 ? s.start_ps : std::min(begin, s.start_ps);
    end = std::max(end, s.end_ps);
    tokens += static_cast<double>(s.tokens);
  }
  EnergySplit out;
  const std::size_t gpus = run.inventory.gpus.size();
  out.idle = idle_w * static_cast<double>(gpus) * static_cast<double>(end - begin) * 1e-12 / tokens;
  for (std::size_t g = 0; g < gpus; ++g) {
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      const auto phase = static_cast<run::Phase>(p);
      if (phase == run::Phase::kWait || phase == run::Phase::kHost) {
        continue;
      }
      const bool wires = phase == run::Phase::kDispatch || phase == run::Phase::kCombine ||
                         phase == run::Phase::kCollective;
      (wires ? out.exchange : out.compute) +=
          (tdp_w - idle_w) * 1e-12 *
          static_cast<double>(run.totals.gpu_phase_ps[g * run::kPhases + p]) / tokens;
    }
  }
  return out;
}

std::vector<Table> energy_tables(ShortRuns& runs) {
  Table t;
  t.name = "energy";
  t.title = "mixtral_8x7b (BF16) on 8 x H100: energy per token by batch and phase";
  t.columns = {"layout",     "phase",    "tokens a step", "step [ms]",
               "tokens/s",   "busy [%]", "W per GPU",     "J/token",
               "of it idle", "compute",  "exchange",      "HBM reads and writes [GB/token]"};
  std::map<std::string, std::map<std::uint64_t, double>> decode;  // [layout][batch] J per token
  std::map<std::string, double> prefill;
  const auto add = [&](const Layout& layout, const std::string& phase, std::uint64_t tokens,
                       const std::string& workload) {
    double idle = 0, tdp = 0;
    const auto run = runs.run(fixed_batch("mixtral_8x7b", "hgx_h100", layout.parallel, workload),
                              [&](scenario::Scenario& s) {
                                idle = s.hardware.gpu_type(0).idle_w;
                                tdp = s.hardware.gpu_type(0).tdp_w;
                              });
    const EnergySplit e = energy_split(run, idle, tdp);
    double hbm = 0, count = 0;
    for (const run::StepScalars& s : run.steps) {
      hbm += s.warmup ? 0 : static_cast<double>(s.hbm_bytes);
      count += s.warmup ? 0 : static_cast<double>(s.tokens);
    }
    t.rows.push_back(
        {layout.name, phase, fmt::to_string(tokens), ms(metric(run, "step time mean")),
         fmt::format("{:.0f}", metric(run, "tokens per second")), percent(metric(run, "busy")),
         fmt::format("{:.0f}", metric(run, "mean power") / 8), joules(e.total()), joules(e.idle),
         joules(e.compute), joules(e.exchange), fmt::format("{:.4g}", 1e-9 * hbm / count)});
    return e.total();
  };
  const std::vector<std::uint64_t> batches =
      runs.quick() ? std::vector<std::uint64_t>{1, 64, 1024}
                   : std::vector<std::uint64_t>{1, 8, 64, 256, 512, 1024};
  for (const Layout& layout : kLayouts) {
    for (const std::uint64_t batch : batches) {
      decode[layout.name][batch] = add(layout, fmt::format("decode, {} of context", kPrompt), batch,
                                       decode_steps(batch, kPrompt, runs.quick()));
    }
    for (const std::uint64_t prompt : {kPrompt, std::uint64_t{4096}}) {
      const double j =
          add(layout, fmt::format("prefill, 8 prompts of {}", prompt), 8 * prompt,
              fmt::format(
                  "kind = \"prefill\"\nbatch = 8\ntokens = {}\nsteps = {}\nwarmup_steps = 1\n{}",
                  prompt, runs.quick() ? 2 : 8, kDrawnRouting));
      if (prompt == kPrompt) {
        prefill[layout.name] = j;
      }
    }
  }
  t.notes.emplace_back(
      "GPUs alone: idle 92 W, 700 W while a kernel runs, a communication kernel too (M40); idle: "
      "92 "
      "W of every GPU for all the time; compute and exchange: the other 608 W for the time of such "
      "kernels; exchange: dispatch, combine with its weighted sum, all-reduces");
  t.notes.emplace_back(
      "not modelled: power by what a kernel does (a memory-bound one draws less than the TDP, so "
      "decode is an upper bound), clocks, power caps, NVSwitches; server beside its GPUs: at most "
      "4.6 kW of a DGX H100 (10.2 kW less 8 x 700 W, NVIDIA data sheet), not counted");
  t.notes.emplace_back(
      "host 500 us a step and 10 us a sequence, assumed; routing drawn, lognormal with sigma 0.9, "
      "seed 1");

  Table r;
  r.name = "energy-request";
  r.title =
      fmt::format("the same, a request of {} tokens in and {} out, by the batch it decodes in",
                  kPrompt, kAnswer);
  r.columns = {"layout", "batch", "prefill [J]", "decode [J]", "sum [J]", "decode [%]"};
  for (const Layout& layout : kLayouts) {
    for (const auto& [batch, j] : decode[layout.name]) {
      const double in = static_cast<double>(kPrompt) * prefill[layout.name];
      const double out = static_cast<double>(kAnswer) * j;
      r.rows.push_back({layout.name, fmt::to_string(batch), joules(in), joules(out),
                        joules(in + out), percent(out / (in + out))});
    }
  }
  r.notes.emplace_back(fmt::format(
      "{} x J/token of the prefill of 8 prompts + {} x J/token of decode with {} of context",
      kPrompt, kAnswer, kPrompt));
  return {t, r};
}

std::vector<Table> make_energy(const TableContext& context) {
  ShortRuns runs(context);
  return energy_tables(runs);
}

}  // namespace switchyard::tables
