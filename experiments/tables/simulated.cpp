// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::tables {
namespace {

/// A fixed batch on one kind of hardware. `extra` is further sections; `policy` and `dtype` whole
/// lines or empty.
struct Fixed {
  std::string model, dtype, hardware, parallel;
  std::uint64_t batch = 1, context = 512;
  std::string policy = {}, extra = {};
  bool drawn = true;
  bool dense = false;
  std::uint64_t steps = 32, warm = 8;
};

std::string text(const Fixed& f, bool quick) {
  return fmt::format(
      "[model]\nfile = \"{}\"\n{}[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\n{}{}"
      "[workload]\nkind = \"decode\"\nbatch = {}\ncontext = {}\nsteps = {}\nwarmup_steps = {}\n{}"
      "{}{}",
      f.model, f.dtype, f.hardware, f.parallel, f.policy, f.batch, f.context,
      quick ? std::max<std::uint64_t>(f.steps / 4, 8) : f.steps, quick ? 1 : f.warm,
      f.dense   ? ""
      : f.drawn ? kDrawnRouting
                : kShippedRouting,
      f.extra, kRunTail);
}

constexpr const char* kSoftAll = "[policy]\nsoft = {{ experts = {}, requests = \"all\" }}\n";
constexpr const char* kTp8 = "attention = \"tp\"\ntp = 8\nep = 8\n";

/// The metrics that claims or readers ask for; those a run lacks are left out.
SimulatedRun read(const run::RunData& run, std::string claim, std::string scenario) {
  SimulatedRun out;
  out.claim = std::move(claim);
  out.scenario = std::move(scenario);
  for (const run::Metric& m : run.metrics) {
    if (m.name == "step time mean" || m.name == "step time p99") {
      out.values[m.name] = 1e-3 * m.value;
    } else if (m.name == "tokens per second" || m.name == "busy" || m.name == "compute_busy" ||
               m.name == "MBU" || m.name == "imbalance mean" || m.name == "TTFT mean" ||
               m.name == "queue wait p99" || m.name == "ITL jitter" ||
               m.name == "memory high water share") {
      out.values[m.name] = m.value;
    }
  }
  double alarms = 0, lost = 0;
  for (const run::Event& e : run.events) {
    alarms += e.kind == run::EventKind::kAlarm ? 1 : 0;
    lost += e.kind == run::EventKind::kOutOfMemory ? 1 : 0;
  }
  out.values["alarms"] = alarms;
  out.values["out of memory"] = lost;
  return out;
}

double value(const SimulatedRuns& runs, const std::string& run, const std::string& name) {
  const auto it = runs.find(run);
  if (it == runs.end() || !it->second.values.contains(name)) {
    throw InputError("simulated", fmt::format("no {} of the run {}", name, run));
  }
  return it->second.values.at(name);
}

void run_broadcast(ShortRuns& runs, SimulatedRuns& out) {
  for (const auto& [name, hardware, says] :
       {std::array{"c17.nvlink", "whatif_16x280", "NVLink, 300 GB/s"},
        std::array{"c17.pcie", "whatif_16x280_pcie", "PCIe 4, 32 GB/s, peer to peer"}}) {
    const std::string scenario = fmt::format(
        "[model]\nfile = \"gpt4_s0\"\ndtype = {{ experts = \"fp16\", shared = \"fp16\", kv = "
        "\"fp16\" }}\n[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\nattention = \"hub\"\n"
        "ep = 16\n[memory]\nkv = {{ placement = \"replicated\" }}\n[workload]\nkind = \"prefill\"\n"
        "batch = 1\ntokens = 128\nsteps = 2\nwarmup_steps = 1\n{}{}",
        hardware, kShippedRouting, kRunTail);
    out[name] = read(runs.run(scenario), "C17",
                     fmt::format("gpt4_s0 in FP16, 16 x 280 GB, hub, KV on all GPUs; {}", says));
  }
}

void run_dense_style(ShortRuns& runs, SimulatedRuns& out) {
  for (const auto& [reading, model, experts] :
       {std::tuple{"real", "qwen2_57b_a14b", 64}, std::tuple{"printed", "qwen2_57b_s1", 16}}) {
    Fixed f{model, "", "a100x2", "attention = \"tp\"\ntp = 2\nep = 2\n"};
    out[fmt::format("c26.{}", reading)] =
        read(runs.run(text(f, runs.quick())), "C26",
             fmt::format("{} on 2 x A100, chosen experts", model));
    f.policy = fmt::format(kSoftAll, experts);
    out[fmt::format("c26.dense_{}", reading)] =
        read(runs.run(text(f, runs.quick())), "C26",
             fmt::format("{} on 2 x A100, all {} experts of every token", model, experts));
  }
  for (const std::uint64_t batch : {1U, 32U}) {
    Fixed f{"gpt4_s2", "dtype = { experts = \"fp8\", shared = \"fp8\" }\n", "whatif_16xh200",
            "attention = \"tp\"\ntp = 16\nep = 16\n", batch};
    out[fmt::format("c81.moe_{}", batch)] =
        read(runs.run(text(f, runs.quick())), "C81",
             fmt::format("gpt4_s2 in FP8 on 16 x H200, batch {}, chosen experts", batch));
    f.policy = fmt::format(kSoftAll, 128);
    out[fmt::format("c81.dense_{}", batch)] =
        read(runs.run(text(f, runs.quick())), "C81",
             fmt::format("gpt4_s2 in FP8 on 16 x H200, batch {}, all 128 experts", batch));
  }
}

void run_equal_dense(ShortRuns& runs, SimulatedRuns& out) {
  for (const char* model : {"moe_70b_s3", "dense_70b", "dense_active"}) {
    for (const std::uint64_t context : {512U, 2000U}) {
      Fixed f{model, "", "hgx_a100", kTp8, 32, context};
      f.dense = std::string(model) != "moe_70b_s3";
      if (f.dense) {
        f.parallel = "attention = \"tp\"\ntp = 8\n";
      }
      out[fmt::format("c43.{}_{}", model, context)] =
          read(runs.run(text(f, runs.quick())), "C43",
               fmt::format("{} on 8 x A100, TP8, batch 32, {} tokens of context", model, context));
    }
  }
  Fixed dense{"dense_28b", "", "a100x1", ""};
  dense.dense = true;
  out["c36.dense"] =
      read(runs.run(text(dense, runs.quick())), "C36", "dense_28b on one A100, one sequence");
  out["c36.moe"] = read(runs.run(text({"deepseek_moe_16b", "", "a100x1", ""}, runs.quick())), "C36",
                        "deepseek_moe_16b on one A100, one sequence");
}

void run_launches(ShortRuns& runs, SimulatedRuns& out) {
  for (const std::uint64_t batch : {1U, 32U}) {
    for (const char* launch : {"eager", "graph", "fused"}) {
      Fixed f{"deepseek_moe_16b", "", "a100x1", "", batch};
      f.extra = fmt::format("[cost]\nlaunch = \"{}\"\n{}", launch,
                            std::string(launch) == "eager" ? "" : "graph_kernel = \"1 us\"\n");
      out[fmt::format("c82.{}_{}", launch, batch)] =
          read(runs.run(text(f, runs.quick())), "C82",
               fmt::format("deepseek_moe_16b on one A100, batch {}, {}{}", batch, launch,
                           std::string(launch) == "eager" ? "" : ", 1 us per kernel assumed"));
    }
  }
}

void run_faults(ShortRuns& runs, SimulatedRuns& out) {
  Fixed f{"qwen3_30b_a3b", "", "hgx_h100", "dp = 8\nep = 8\n", 64};
  f.steps = 64;
  // 2 ms against 0.8 are 2.5 times; an alarm at twice the mean of the layer's other experts.
  const std::string watch =
      "[[monitor.alarms]]\nname = \"sick expert\"\nsignal = \"expert_latency\"\nabove = 2\n"
      "window = 2\n";
  f.extra = watch;
  out["c83.healthy"] = read(runs.run(text(f, runs.quick())), "C83",
                            "qwen3_30b_a3b on 8 x H100, batch 64, alarm on expert latency");
  f.extra = watch +
            "[[faults.events]]\nkind = \"slow_expert\"\nexpert = 5\nfactor = 2.5\nstep = 4\n"
            "lasts = 6\n";
  out["c83.sick"] = read(runs.run(text(f, runs.quick())), "C83",
                         "the same, expert 5 takes 2.5 times as long in all layers for 6 steps");
  Fixed leak{"mixtral_8x7b", "", "hgx_h100", "dp = 8\nep = 8\n", 64};
  leak.steps = 64;
  const std::string leaks =
      "[[faults.events]]\nkind = \"kv_leak\"\ngpu = \"gpu3\"\nbytes = \"8 GB\"\nstep = 2\n";
  leak.extra = leaks;
  out["c60.leak"] = read(runs.run(text(leak, runs.quick())), "C60",
                         "mixtral_8x7b on 8 x H100, gpu3 leaks 8 GB a step (hours in steps)");
  leak.extra = leaks +
               "[[monitor.alarms]]\nsignal = \"memory\"\nabove = \"85 %\"\nclear = \"80 %\"\n"
               "window = 1\nstatistic = \"max\"\naction = \"reclaim\"\n";
  out["c60.watchdog"] = read(runs.run(text(leak, runs.quick())), "C60",
                             "the same, alarm on 85 % of memory that frees what leaked");
}

std::string arriving(const Fixed& f, const std::string& kind, const std::string& arrivals,
                     const std::string& lengths, const std::string& more) {
  return fmt::format(
      "[model]\nfile = \"{}\"\n{}[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\n{}"
      "[workload]\nkind = \"{}\"\n{}arrivals = {{ {} }}\nlengths = {{ {} }}\n{}{}",
      f.model, f.dtype, f.hardware, f.parallel, kind, f.drawn ? kDrawnRouting : kShippedRouting,
      arrivals, lengths, more, kRunTail);
}

void run_requests(ShortRuns& runs, SimulatedRuns& out) {
  const int share = runs.quick() ? 4 : 1;
  for (const char* balance : {"round_robin", "least_queue"}) {
    const Fixed f{"mixtral_8x7b", "", "hgx_h100", "dp = 8\nep = 2\n"};
    out[fmt::format("c41.{}", balance)] =
        read(runs.run(arriving(
                 f, "open", fmt::format("per_second = 18, requests = {}", 400 / share),
                 "prompt = 128, output = 64, output_cv = 1.4",
                 fmt::format("batching = {{ max_sequences = 4 }}\nfront_end = {{ replicas = 4, "
                             "balance = \"{}\" }}\n",
                             balance))),
             "C41",
             fmt::format("mixtral_8x7b, 4 replicas of 2 x H100, 18 requests/s, answers of very "
                         "unequal length, {}",
                         balance));
  }
  for (const int budget : {8192, 2048, 512}) {
    const Fixed f{"qwen2_57b_s1", "", "a100x2", "attention = \"tp\"\ntp = 2\nep = 2\n"};
    out[fmt::format("c94.{}", budget)] = read(
        runs.run(arriving(f, "open", fmt::format("per_second = 0.2, requests = {}", 40 / share),
                          "prompt = 4096, output = 32",
                          fmt::format("batching = {{ token_budget = {} }}\n", budget))),
        "C94",
        fmt::format("qwen2_57b_s1 on 2 x A100, prompts of 4096 tokens, steps of at most {}",
                    budget));
  }
  Fixed f{"gpt4_s0", "dtype = { experts = \"fp8\", shared = \"fp8\" }\n", "whatif_16x280",
          "attention = \"dp\"\ndp = 16\nep = 16\n"};
  f.drawn = false;
  out["c96"] =
      read(runs.run(arriving(f, "closed", fmt::format("users = 16, requests = {}", 64 / share),
                             "prompt = 128, output = 32", "")),
           "C96", "gpt4_s0 in FP8, 16 x 280 GB, 16 users, 128 tokens in, 32 out");
}

void run_remap(ShortRuns& runs, SimulatedRuns& out) {
  for (const char* placement : {"contiguous", "eplb"}) {
    const Fixed f{"qwen2_57b_s1", "", "a100x4",
                  fmt::format("dp = 4\nep = 4\nplacement = \"{}\"\n", placement), 64};
    out[fmt::format("c74.{}", placement)] =
        read(runs.run(text(f, runs.quick())), "C74",
             fmt::format("qwen2_57b_s1 on 4 x A100, batch 64, placement {}", placement));
  }
}

}  // namespace

SimulatedRuns run_simulated(ShortRuns& runs) {
  SimulatedRuns out;
  run_broadcast(runs, out);
  run_dense_style(runs, out);
  run_equal_dense(runs, out);
  run_launches(runs, out);
  run_faults(runs, out);
  run_requests(runs, out);
  run_remap(runs, out);
  return out;
}

claims::Measurements measure_simulated(const SimulatedRuns& runs) {
  claims::Measurements out;
  const auto v = [&](const std::string& run, const std::string& name) {
    return value(runs, run, name);
  };
  const auto step = [&](const std::string& run) { return v(run, "step time mean"); };
  const auto rate = [&](const std::string& run) { return v(run, "tokens per second"); };

  out.add_series("prefill", {32, 300}, {step("c17.pcie"), step("c17.nvlink")}, "time of the step");
  out.add_series("busy", {32, 300}, {100 * v("c17.pcie", "busy"), 100 * v("c17.nvlink", "busy")},
                 "a GPU that sends is busy: the share rises where links are slow");
  out.add_series("compute_busy", {32, 300},
                 {100 * v("c17.pcie", "compute_busy"), 100 * v("c17.nvlink", "compute_busy")},
                 "the hub computes attention, the others wait");
  for (const std::string reading : {"real", "printed"}) {
    const double sparse = step("c26." + reading);
    const double dense = step("c26.dense_" + reading);
    out.add("tpot." + reading, sparse, "one sequence, step time");
    out.add("tpot_dense." + reading, dense, "one sequence, all experts computed");
    out.add("tpot_ratio." + reading, dense / sparse,
            fmt::format("{} / {} ms", show(dense), show(sparse)));
  }
  out.add("mbu_dense", 100 * v("c36.dense", "MBU"), "a dense step is one long read of weights");
  out.add("mbu_moe", 100 * v("c36.moe", "MBU"), "smaller reads, as many launches");
  const double queued = v("c41.round_robin", "queue wait p99");
  const double least = v("c41.least_queue", "queue wait p99");
  out.add("queue_p99", queued / least, fmt::format("{} / {} ms", show(queued), show(least)));
  for (const auto& [reading, model] :
       {std::pair{"equal total", "dense_70b"}, std::pair{"equal active", "dense_active"}}) {
    const std::string moe = "c43.moe_70b_s3_";
    const std::string dense = fmt::format("c43.{}_", model);
    out.add(fmt::format("throughput.{}", reading), rate(moe + "512") / rate(dense + "512"),
            fmt::format("{} / {} tokens/s, {}", show(rate(moe + "512")), show(rate(dense + "512")),
                        model));
    out.add(
        fmt::format("latency.{}", reading), 100 * (1 - step(moe + "512") / step(dense + "512")),
        fmt::format("{} against {} ms a step", show(step(moe + "512")), show(step(dense + "512"))));
    const double p99 = v(moe + "2000", "step time p99");
    const double other = v(dense + "2000", "step time p99");
    out.add(fmt::format("p99_2000.{}", reading), 100 * (1 - p99 / other),
            fmt::format("{} against {} ms a step", show(p99), show(other)));
  }
  out.add("leak", v("c60.leak", "out of memory") > 0 ? 1 : 0,
          fmt::format("{} allocations fail", show(v("c60.leak", "out of memory"))));
  out.add("watchdog", v("c60.watchdog", "out of memory") == 0 ? 1 : 0,
          fmt::format("memory stays at or below {} % with {} alarms",
                      show(100 * v("c60.watchdog", "memory high water share")),
                      show(v("c60.watchdog", "alarms"))));
  out.add("remap", rate("c74.eplb") / rate("c74.contiguous"),
          fmt::format("{} / {} tokens/s", show(rate("c74.eplb")), show(rate("c74.contiguous"))));
  out.add("remap_spread", 100 * (v("c74.eplb", "imbalance mean") - 1),
          "busiest GPU above the mean, mean over layers and steps");
  out.add("dense_rate", rate("c81.dense_1"), "all experts");
  out.add("moe_rate", rate("c81.moe_1"), "chosen experts");
  for (const int batch : {1, 32}) {
    const std::string b = fmt::format("_{}", batch);
    out.add(
        fmt::format("rate_ratio.batch {}", batch), rate("c81.moe" + b) / rate("c81.dense" + b),
        fmt::format("{} / {} tokens/s", show(rate("c81.moe" + b)), show(rate("c81.dense" + b))));
    const double eager = step("c82.eager" + b);
    out.add(fmt::format("graph.batch {}", batch), 100 * (eager / step("c82.graph" + b) - 1),
            "captured graph against eager launches");
    out.add(fmt::format("fused.batch {}", batch), 100 * (1 - step("c82.fused" + b) / eager),
            "fused kernels in a graph against eager launches");
  }
  out.add("sick_p99",
          100 * (v("c83.sick", "step time p99") / v("c83.healthy", "step time p99") - 1),
          "p99 of step times, sick against healthy");
  out.add("sick_mean", 100 * (step("c83.sick") / step("c83.healthy") - 1), "mean step time");
  out.add("sick_found", v("c83.sick", "alarms") > 0 && v("c83.healthy", "alarms") == 0 ? 1 : 0,
          fmt::format("alarms on expert latency: {} when sick, {} when healthy",
                      show(v("c83.sick", "alarms")), show(v("c83.healthy", "alarms"))));
  for (const int budget : {512, 2048}) {
    out.add(fmt::format("chunked.{}", budget),
            100 * (v(fmt::format("c94.{}", budget), "TTFT mean") / v("c94.8192", "TTFT mean") - 1),
            fmt::format("chunks of {} tokens against whole prompts of 4096, mean", budget));
  }
  out.add("jitter", v("c96", "ITL jitter"), "std of the times between tokens, median of answers");
  return out;
}

std::vector<Table> simulated_tables(const SimulatedRuns& runs,
                                    const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "simulated";
  t.title = "short simulations behind the rows below";
  t.columns = {"claim",    "scenario", "step [ms]", "p99 [ms]", "tokens/s",
               "busy [%]", "MBU [%]",  "TTFT [ms]", "alarms",   "memory [%]"};
  for (const auto& [name, run] : runs) {
    const auto cell = [&](const char* metric, double scale) {
      const auto it = run.values.find(metric);
      return it == run.values.end() ? std::string("-") : show(scale * it->second);
    };
    t.rows.push_back({run.claim, run.scenario, cell("step time mean", 1), cell("step time p99", 1),
                      cell("tokens per second", 1), cell("busy", 100), cell("MBU", 100),
                      cell("TTFT mean", 1), cell("alarms", 1),
                      cell("memory high water share", 100)});
  }
  t.notes.emplace_back(
      "decode with 512 tokens of context where nothing else is said; host 500 us a step and 10 us "
      "a "
      "sequence, assumed; memory above 100 % does not fit and is timed all the same");
  const auto judged = claims::judge(claims, measure_simulated(runs));
  return {t, claims_table("simulated", judged), verdicts_table("simulated", judged)};
}

std::vector<Table> make_simulated(const TableContext& context) {
  ShortRuns runs(context);
  return simulated_tables(run_simulated(runs), claims::claims_of("simulated"));
}

}  // namespace switchyard::tables
