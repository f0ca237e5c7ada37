// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/batch_serving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"

namespace switchyard::tables {
namespace {

constexpr std::array<std::uint64_t, 7> kBatches{16, 32, 64, 128, 256, 512, 1024};
constexpr std::array<const char*, 2> kAttention{"dp", "hub"};
constexpr std::uint64_t kChosen = 128;
constexpr double kAnswer = 128;  // tokens of an answer: a request's share of tokens per second
constexpr double kRate = 120;    // requests per second of S4 3.2
constexpr double kScorerShare = 0.001;  // of the FLOPs, S4 4.2

std::string scenario(const std::string& attention, std::uint64_t batch, const std::string& policy,
                     bool quick) {
  return fmt::format(
      "[model]\nfile = \"gpt4_s4_int4\"\ndtype = {{ experts = \"int4\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"hardware/whatif_16xh200.toml\"\n"
      "[parallel]\nattention = \"{}\"\nep = 16\n{}{}"
      "[workload]\nkind = \"decode\"\nbatch = {}\ncontext = 512\nsteps = {}\nwarmup_steps = "
      "{}\n{}{}",
      attention, attention == "hub" ? "[memory]\nkv = { placement = \"hub\" }\n" : "dp = 16\n",
      policy, batch, quick ? 4 : 64, quick ? 1 : 16, kShippedRouting, kRunTail);
}

BatchPoint point(const run::RunData& run) {
  BatchPoint p;
  p.step_s = 1e-6 * metric(run, "step time mean");
  p.p95_s = step_p95(run);
  p.router = metric(run, "router share");
  p.dispatch = metric(run, "dispatch share");
  p.combine = metric(run, "combine share");
  p.busy = metric(run, "busy");
  p.link_use = metric(run, "link use max");
  p.top3 = metric(run, "top3_share mean");
  p.memory = metric(run, "memory high water share");
  // Kernels with communication, as the metric `busy`, of each GPU by itself.
  const double span_ps = 1e9 * metric(run, "span");
  const std::size_t gpus = run.inventory.gpus.size();
  double sum = 0, squares = 0;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    double busy = 0;
    for (std::size_t phase = 0; phase < run::kPhases; ++phase) {
      if (phase == static_cast<std::size_t>(run::Phase::kHost) ||
          phase == static_cast<std::size_t>(run::Phase::kWait)) {
        continue;
      }
      busy += static_cast<double>(run.totals.gpu_phase_ps[gpu * run::kPhases + phase]) / span_ps;
    }
    sum += busy;
    squares += busy * busy;
  }
  const double n = static_cast<double>(gpus);
  p.busy_std = std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
  return p;
}

/// M18's second tier: a scorer H -> width -> E on the hosts' CPUs, as wide as 0.1 % of a token's
/// FLOPs allow; every GPU has a PCIe 5 link of its own to one CPU.
void put_scorer_on_cpu(scenario::Scenario& s, std::uint64_t* width) {
  model::ModelConfig& m = s.model;
  const auto flops = static_cast<double>(model::flops_per_token(m, s.workload.context).total());
  const auto per_width =
      2.0 * static_cast<double>((m.hidden_size + m.num_experts) * m.num_moe_layers());
  *width = static_cast<std::uint64_t>(kScorerShare * flops / per_width);
  m.router = model::RouterKind::kHiddenMlp;
  m.router_hidden = {*width};
  scenario::HardwareSpec& h = s.hardware;
  const auto cpu = static_cast<std::uint32_t>(h.devices.size());
  scenario::Device device;
  device.name = "scorer";
  device.kind = scenario::DeviceKind::kCpu;
  h.devices.push_back(device);
  for (const std::uint32_t gpu : h.gpus) {
    scenario::Link link;
    link.name = fmt::format("{}--scorer", h.devices[gpu].name);
    link.a = gpu;
    link.b = cpu;
    link.link_class = scenario::LinkClass::kPcie5;
    link.bandwidth = {64e9};
    link.latency = SimTime::from_seconds(5e-6);
    h.links.push_back(link);
  }
  s.parallel.router = scenario::RouterPlacement::kCpu;
  s.parallel.router_cpu = {{2e12}, {200e9}, SimTime()};
}

const BatchPoint& at(const BatchServing& run, const std::string& name, std::uint64_t batch) {
  const auto it = run.points.find(name);
  if (it == run.points.end() || !it->second.contains(batch)) {
    throw InputError("batch-serving", fmt::format("no run of {} at batch {}", name, batch));
  }
  return it->second.at(batch);
}

/// C55e: links at the smallest batch that gives 120 requests per second.
void measure_link_use_at_rate(const BatchServing& run, const std::string& attention,
                              claims::Measurements& out) {
  double most = 0;
  for (const std::uint64_t batch : kBatches) {
    const BatchPoint& p = at(run, attention, batch);
    const double rate = static_cast<double>(batch) / p.step_s / kAnswer;
    most = std::max(most, rate);
    if (rate >= kRate) {
      out.add("link_use_120." + attention, 100 * p.link_use,
              fmt::format("busiest link, bytes / (bandwidth x time), at batch {}: {} requests/s of "
                          "{} tokens",
                          batch, show(rate), show(kAnswer)));
      return;
    }
  }
  out.add_undecided("link_use_120." + attention,
                    fmt::format("no batch up to {} gives 120 requests/s of {} tokens: {} at most",
                                kBatches.back(), show(kAnswer), show(most)));
}

}  // namespace

BatchServing run_batch_serving(ShortRuns& runs) {
  BatchServing out;
  for (const std::string attention : kAttention) {
    for (const std::uint64_t batch : kBatches) {
      out.points[attention][batch] = point(runs.run(scenario(attention, batch, "", runs.quick())));
    }
    const auto with = [&](const char* name, const char* policy) {
      out.points[fmt::format("{} {}", attention, name)][kChosen] =
          point(runs.run(scenario(attention, kChosen, policy, runs.quick())));
    };
    with("round_robin", "[policy]\nset = { rule = \"round_robin\" }\n");
    with("soft", "[policy]\nsoft = { experts = 4, requests = \"all\" }\n");
    const BatchPoint scored =
        point(runs.run(scenario(attention, kChosen, "", runs.quick()),
                       [&](scenario::Scenario& s) { put_scorer_on_cpu(s, &out.scorer_width); }));
    out.scorer_ms[attention] = 1e3 * (scored.step_s - out.points[attention][kChosen].step_s);
  }
  for (const std::string first : {"none", "int4", "rank"}) {
    const TraceRunSummary s = runs.engine(first == "none" ? "" : "two_tier_" + first);
    const auto decisions = static_cast<double>((s.prefill_tokens + s.decode_tokens) * s.layers);
    out.tiers[first] = {s.load_cv().value_or(0), static_cast<double>(s.tier1_agreed) / decisions,
                        static_cast<double>(s.tier2_agreed) / decisions};
  }
  return out;
}

claims::Measurements measure_batch_serving(const BatchServing& run) {
  claims::Measurements out;
  const auto longer = [](double then, double before) { return 100 * (then / before - 1); };
  for (const std::string a : kAttention) {
    const auto name = [&](const char* quantity) { return fmt::format("{}.{}", quantity, a); };
    const BatchPoint& chosen = at(run, a, kChosen);
    const BatchPoint& small = at(run, a, 16);
    std::vector<double> share;
    for (const std::uint64_t batch : {kChosen, std::uint64_t{1024}}) {
      const BatchPoint& p = at(run, a, batch);
      share.push_back(100 * (p.router + p.dispatch));
    }
    out.add_series(name("routing_share"), {128, 1024}, share,
                   "router with permutation and dispatch on the critical path");
    out.add(name("scatter_gather"), 100 * (chosen.dispatch + chosen.combine),
            "dispatch and combine on the critical path");
    measure_link_use_at_rate(run, a, out);
    out.add(name("link_use"), 100 * chosen.link_use, "busiest link, bytes / (bandwidth x time)");
    double peak = 0;
    std::uint64_t best = 0;
    for (const std::uint64_t batch : kBatches) {
      const double rate = static_cast<double>(batch) / at(run, a, batch).step_s;
      best = rate > peak ? batch : best;
      peak = std::max(peak, rate);
    }
    out.add(name("rate_of_peak"), 100 * static_cast<double>(kChosen) / chosen.step_s / peak,
            fmt::format("the peak is at batch {}", best));
    out.add(name("p95_256"), longer(at(run, a, 256).p95_s, chosen.p95_s),
            "95th percentile of step times");
    out.add(name("p95_share"), 100 * chosen.p95_s / at(run, a, 256).p95_s,
            "95th percentile of step times, batch 128 of 256's");
    out.add(name("busy_std"), 100 * chosen.busy_std, "population std over the GPUs");
    out.add(name("busy_128"), 100 * chosen.busy, "GPU time in kernels with communication");
    out.add(name("round_robin"), longer(at(run, a + " round_robin", kChosen).p95_s, chosen.p95_s),
            "policy set.rule = round_robin against top-2");
    out.add(name("soft"), longer(at(run, a + " soft", kChosen).p95_s, chosen.p95_s),
            "policy soft.experts = 4 for all requests against top-2");
    const auto per_token = [&](std::uint64_t batch) {
      const BatchPoint& p = at(run, a, batch);
      return (p.router + p.dispatch) * p.step_s / static_cast<double>(batch);
    };
    out.add(name("overhead"), 100 * (1 - per_token(256) / per_token(32)),
            fmt::format("router and dispatch, {} us per token at 32, {} at 256",
                        show(1e6 * per_token(32)), show(1e6 * per_token(256))));
    out.add(name("busy_16"), 100 * small.busy, "GPU time in kernels with communication");
    out.add(name("link_use_16"), 100 * small.link_use, "busiest link, bytes / (bandwidth x time)");
    out.add(name("exchange_16"), 100 * (small.dispatch + small.combine),
            "dispatch and combine on the critical path");
    out.add(name("doubling"), 2 * small.step_s / at(run, a, 32).step_s,
            "tokens per second at 32 over those at 16");
  }
  const auto tier = [&](const std::string& first) -> const TierRun& {
    const auto it = run.tiers.find(first);
    if (it == run.tiers.end()) {
      throw InputError("batch-serving", fmt::format("no engine run with first tier {}", first));
    }
    return it->second;
  };
  out.add("tier_std_before", 100 * tier("none").load_cv, "load_cv of the FP32 router, whole run");
  for (const std::string first : {"int4", "rank"}) {
    const TierRun& t = tier(first);
    out.add_series("tier_std." + first, {0, 1}, {100 * tier("none").load_cv, 100 * t.load_cv},
                   "load_cv of the whole run, without and with two tiers");
    out.add("tier_right." + first, 100 * (t.second - t.first),
            fmt::format("points: {} % of sets are the FP32 router's, {} % of the first tier alone",
                        show(100 * t.second), show(100 * t.first)));
  }
  for (const auto& [attention, ms] : run.scorer_ms) {
    out.add("tier_time." + attention, ms,
            fmt::format("a scorer of width {} in every layer on a CPU of 2 TFLOP/s and 200 GB/s, "
                        "hidden states there and back over PCIe 5",
                        run.scorer_width));
  }
  std::vector<double> batches, shares;
  for (const std::uint64_t batch : kBatches) {
    batches.push_back(static_cast<double>(batch));
    shares.push_back(100 * at(run, "dp", batch).top3);
  }
  out.add_series("top3", batches, shares, "over the run, mean over layers; a fair share is 18.75");
  return out;
}

std::vector<Table> batch_serving_tables(const BatchServing& run,
                                        const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "batch-serving";
  t.title = "gpt4_s4_int4 on 16 x H200, decode with 512 tokens of context";
  t.columns = {"attention, policy", "batch",        "step [ms]",       "p95 [ms]",
               "tokens/s",          "router [%]",   "dispatch [%]",    "combine [%]",
               "busy [%]",          "link use [%]", "top-3 share [%]", "memory [%]"};
  const auto percent = [](double share) { return fmt::format("{:.2f}", 100 * share); };
  for (const auto& [name, points] : run.points) {
    for (const auto& [batch, p] : points) {
      t.rows.push_back({name, fmt::to_string(batch), fmt::format("{:.3f}", 1e3 * p.step_s),
                        fmt::format("{:.3f}", 1e3 * p.p95_s),
                        fmt::format("{:.1f}", static_cast<double>(batch) / p.step_s),
                        percent(p.router), percent(p.dispatch), percent(p.combine), percent(p.busy),
                        percent(p.link_use), percent(p.top3), percent(p.memory)});
    }
  }
  t.notes.emplace_back(
      "routing: the shipped checkpoint's (16 experts, top-2), cycled over layers; shares are of "
      "the "
      "critical path; memory above 100 %: the batch does not fit and is timed all the same");
  t.notes.emplace_back(
      "C58's two tiers: the engine with the shipped checkpoint and scorer, mixed prompts and 16 "
      "tokens after each; first tier the router in INT4 or of rank 4; its time: the step with such "
      "a scorer as the router on the CPU less the step with the router on the GPU");
  const auto judged = claims::judge(claims, measure_batch_serving(run));
  return {t, claims_table("batch-serving", judged), verdicts_table("batch-serving", judged)};
}

std::vector<Table> make_batch_serving(const TableContext& context) {
  ShortRuns runs(context);
  return batch_serving_tables(run_batch_serving(runs), claims::claims_of("batch-serving"));
}

}  // namespace switchyard::tables
