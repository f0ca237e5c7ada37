// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <tuple>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "sim/health/diagnosis.hpp"
#include "sim/scenario/request_trace.hpp"

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
  std::uint64_t steps = 64, warm = 16;  ///< As claims.md has it.
};

/// Claims on a model of 16 experts, top-2, take the shipped checkpoint's own decisions.
bool is_drawn(std::string_view model) { return model != "qwen2_57b_s1"; }

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
constexpr int kReplicas = 4, kUnequalPrompt = 16;  // Of C41.
constexpr const char* kTp8 = "attention = \"tp\"\ntp = 8\nep = 8\n";

/// The metrics that claims or readers ask for; those a run lacks are left out.
SimulatedRun read(const run::RunData& run, std::string claim, std::string scenario) {
  SimulatedRun out;
  out.claim = std::move(claim);
  out.scenario = std::move(scenario);
  for (const run::Metric& m : run.metrics) {
    if (m.name == "step time mean" || m.name == "step time p99") {
      out.values[m.name] = 1e-3 * m.value;
    } else if (m.name == "memory high water") {
      out.values["memory GB"] = m.value;
    } else if (m.name == "tokens per second" || m.name == "busy" || m.name == "compute_busy" ||
               m.name == "MBU" || m.name == "imbalance mean" || m.name == "TTFT mean" ||
               m.name == "queue wait p99" || m.name == "replica busy" || m.name == "ITL jitter" ||
               m.name == "memory high water share") {
      out.values[m.name] = m.value;
    }
  }
  double alarms = 0, lost = 0, moves = 0;
  for (const run::Event& e : run.events) {
    if (e.kind == run::EventKind::kAlarm) {
      if (alarms == 0 && e.step != run::kNone) out.values["first alarm"] = e.step;
      ++alarms;
    }
    lost += e.kind == run::EventKind::kOutOfMemory ? 1 : 0;
    moves += e.kind == run::EventKind::kPolicyAction ? 1 : 0;
  }
  // Standard error of the mean step, ms: what two runs may differ by without meaning anything.
  double count = 0, sum = 0, squares = 0;
  for (const run::StepScalars& step : run.steps) {
    if (step.warmup) continue;
    const double ms = 1e-9 * static_cast<double>(step.end_ps - step.start_ps);
    ++count;
    sum += ms;
    squares += ms * ms;
  }
  if (count > 1) {
    const double variance = std::max(0.0, squares - sum * sum / count) / (count - 1);
    out.values["step time error"] = std::sqrt(variance / count);
  }
  if (out.claim == "C83") {
    const auto found = health::diagnose(run, out.scenario).findings;
    out.values["sick experts"] =
        static_cast<double>(std::count_if(found.begin(), found.end(), [](const health::Finding& f) {
          return f.id == "sick expert";
        }));
  }
  out.values["moves"] = moves;
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

std::string arriving(const Fixed& f, const std::string& kind, const std::string& arrivals,
                     const std::string& lengths, const std::string& more) {
  return fmt::format(
      "[model]\nfile = \"{}\"\n{}[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\n{}{}"
      "[workload]\nkind = \"{}\"\n{}arrivals = {{ {} }}\nlengths = {{ {} }}\n{}{}",
      f.model, f.dtype, f.hardware, f.parallel, f.policy, kind,
      f.drawn ? kDrawnRouting : kShippedRouting, arrivals, lengths, more, kRunTail);
}

void run_dense_style(ShortRuns& runs, SimulatedRuns& out) {
  for (const auto& [reading, model, experts] :
       {std::tuple{"real", "qwen2_57b_a14b", 64}, std::tuple{"printed", "qwen2_57b_s1", 16}}) {
    Fixed f{model, "", "a100x2", "attention = \"tp\"\ntp = 2\nep = 2\n"};
    f.drawn = is_drawn(model);
    for (const bool dense : {false, true}) {
      f.policy = dense ? fmt::format(kSoftAll, experts) : std::string();
      f.batch = 1;
      const std::string style =
          dense ? fmt::format("all {} experts of every token", experts) : "chosen experts";
      const std::string name = fmt::format("c26.{}{}", dense ? "dense_" : "", reading);
      out[name] = read(runs.run(text(f, runs.quick())), "C26",
                       fmt::format("{} on 2 x A100, {}", model, style));
      // One stream: 512 tokens in, 256 out (the first token is that of the prompt).
      out[name + "_first"] = read(
          runs.run(arriving(f, "closed", "users = 1, requests = 2",
                            fmt::format("prompt = 512, output = {}", runs.quick() ? 8 : 256), "")),
          "C26", fmt::format("{} on 2 x A100, one user, 512 tokens in, {}", model, style));
    }
    f.policy = fmt::format(kSoftAll, 3);
    for (const std::uint64_t batch : {1U, 16U, 32U, 64U}) {
      if (is_drawn(model)) break;  // Its k is 8: a third expert is nothing new.
      f.batch = batch;
      out[fmt::format("c26.top3_{}", batch)] =
          read(runs.run(text(f, runs.quick())), "C26",
               fmt::format("{} on 2 x A100, 3 experts of every token, {} at a time", model, batch));
    }
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
  for (const std::uint64_t batch : {1U, 8U, 64U, 256U}) {
    for (const auto& [name, model] :
         {std::pair{"dense", "dense_28b"}, std::pair{"moe", "deepseek_moe_16b"}}) {
      Fixed f{model, "", "a100x1", "", batch};
      f.dense = std::string_view(name) == "dense";
      out[fmt::format("c36.{}_{}", name, batch)] =
          read(runs.run(text(f, runs.quick())), "C36",
               fmt::format("{} on one A100, batch {}", model, batch));
    }
  }
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

constexpr int kLeakStep = 2;

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
  const std::string sick =
      watch + "[[faults.events]]\nkind = \"slow_expert\"\nexpert = 5\nfactor = 2.5\n";
  f.extra = sick + "step = 0\n";
  out["c83.from the start"] =
      read(runs.run(text(f, runs.quick())), "C83",
           "the same, expert 5 takes 2.5 times as long in all layers from the start");
  f.extra = sick + fmt::format("step = {}\nlasts = 6\n", runs.quick() ? 4 : 20);
  out["c83.6 steps"] = read(runs.run(text(f, runs.quick())), "C83",
                            "the same, expert 5 takes 2.5 times as long in all layers for 6 steps");
  Fixed leak{"mixtral_8x7b", "", "hgx_h100", "dp = 8\nep = 8\n", 64};
  leak.steps = 64;
  const std::string leaks = fmt::format(
      "[[faults.events]]\nkind = \"kv_leak\"\ngpu = \"gpu3\"\nbytes = \"8 GB\"\nstep = {}\n",
      kLeakStep);
  leak.extra = leaks;
  out["c60.leak"] = read(runs.run(text(leak, runs.quick())), "C60",
                         "mixtral_8x7b on 8 x H100, gpu3 leaks 8 GB a step (hours in steps)");
  leak.extra = leaks +
               "[[monitor.alarms]]\nsignal = \"memory\"\nabove = \"85 %\"\nclear = \"80 %\"\n"
               "window = 1\nstatistic = \"max\"\naction = \"reclaim\"\n";
  out["c60.watchdog"] = read(runs.run(text(leak, runs.quick())), "C60",
                             "the same, alarm on 85 % of memory that frees what leaked");
}

/// C41's requests: one in ten takes ten times as long, as 5 ms per token to 0.5; Poisson arrivals
/// at `per_second`, or one at a time far apart when that is 0.
std::shared_ptr<const scenario::RequestTrace> unequal_requests(double per_second,
                                                               std::uint32_t count) {
  constexpr std::uint32_t kPurpose = random_purpose("table simulated, C41");
  std::string csv = "arrival_ns,prompt_tokens,output_tokens\n";
  double at = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool drawn = per_second > 0;
    const bool slow =
        drawn ? random_uniform(1, kPurpose, {.sequence = i, .layer = 1}) < 0.1 : i % 10 == 9;
    csv += fmt::format("{:.0f},{},{}\n", 1e9 * at, kUnequalPrompt, slow ? 100 : 10);
    at += drawn ? -std::log(random_uniform(1, kPurpose, {.sequence = i})) / per_second : 30;
  }
  return std::make_shared<const scenario::RequestTrace>(
      scenario::parse_request_trace(csv, "requests of C41", scenario::RequestFormat::kCsv));
}

void run_balance(ShortRuns& runs, SimulatedRuns& out) {
  const Fixed f{"mixtral_8x7b", "", "hgx_h100", "attention = \"tp\"\ntp = 2\ndp = 4\nep = 2\n"};
  const auto with = [&](const char* balance, double per_second, std::uint32_t count) {
    return runs.run(
        arriving(f, "open", "per_second = 1, requests = 1",
                 fmt::format("prompt = {}, output = 100", kUnequalPrompt),
                 fmt::format("batching = {{ max_sequences = 1 }}\nfront_end = {{ replicas = {}, "
                             "balance = \"{}\" }}\n",
                             kReplicas, balance)),
        [&](scenario::Scenario& s) {
          s.workload.kind = scenario::WorkloadKind::kTrace;
          s.workload.serving.arrivals = {};
          s.workload.serving.arrivals.trace = unequal_requests(per_second, count);
        });
  };
  // A replica serves one request after another: the highest rate with a bounded queue is the
  // replicas' number over the mean time of service, which requests that meet nobody show.
  double service_s = 0;
  const run::RunData alone = with("round_robin", 0, 10);
  for (const run::RequestRecord& r : alone.requests) {
    SWITCHYARD_ASSERT(r.end_ps > r.scheduled_ps, "a request that meets nobody is served");
    service_s += 1e-12 * static_cast<double>(r.end_ps - r.scheduled_ps) /
                 static_cast<double>(alone.requests.size());
  }
  const double rate = 0.8 * kReplicas / service_s;
  for (const char* balance : {"round_robin", "least_queue"}) {
    out[fmt::format("c41.{}", balance)] =
        read(with(balance, rate, runs.quick() ? 120 : 2000), "C41",
             fmt::format("mixtral_8x7b, {} replicas of 2 x H100, one request at a time each, 90 % "
                         "of 10 tokens and 10 % of 100; {} requests/s, 0.8 of what they can; {}",
                         kReplicas, show(rate), balance));
  }
}

void run_requests(ShortRuns& runs, SimulatedRuns& out) {
  const int share = runs.quick() ? 4 : 1;
  for (const int budget : {8192, 2048, 512}) {
    Fixed f{"qwen2_57b_s1", "", "a100x2", "attention = \"tp\"\ntp = 2\nep = 2\n"};
    f.drawn = is_drawn(f.model);
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
  for (const bool on : {false, true}) {
    Fixed f{"qwen2_57b_s1", "", "a100x4", "dp = 4\nep = 4\n", 64};
    f.drawn = is_drawn(f.model);
    f.steps = 1024;
    if (on) {
      f.parallel +=
          "rebalance = { signal = \"load\", threshold = 1.08, window = 8, cooldown = 256, to = "
          "\"eplb\" }\n";
    }
    out[on ? "c74.on" : "c74.off"] =
        read(runs.run(text(f, runs.quick())), "C74",
             fmt::format("qwen2_57b_s1 on 4 x A100, batch 64, {}",
                         on ? "re-mapped when the imbalance of 8 steps is above 1.08, weights "
                              "travel over the links"
                            : "experts stay"));
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
  run_balance(runs, out);
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
    const double first = v(fmt::format("c26.{}_first", reading), "TTFT mean");
    const double dense_first = v(fmt::format("c26.dense_{}_first", reading), "TTFT mean");
    out.add("ttft." + reading, first, "one user, 512 tokens in");
    out.add("ttft_dense." + reading, dense_first, "one user, 512 tokens in, all experts computed");
    out.add("ttft_longer." + reading, 100 * (first / dense_first - 1),
            fmt::format("{} against {} ms", show(first), show(dense_first)));
    out.add("gigabytes." + reading, v("c26." + reading, "memory GB"),
            "most on a card: all experts are resident, chosen or not");
  }
  for (const int batch : {1, 16, 32, 64}) {
    out.add(fmt::format("top3.{} at a time", batch),
            rate(fmt::format("c26.top3_{}", batch)) / batch,
            fmt::format("of each user; {} of all", show(rate(fmt::format("c26.top3_{}", batch)))));
  }
  for (const int batch : {1, 8, 64, 256}) {
    out.add(fmt::format("mbu_dense.batch {}", batch),
            100 * v(fmt::format("c36.dense_{}", batch), "MBU"),
            "a dense step is one long read of weights");
    out.add(fmt::format("mbu_moe.batch {}", batch),
            100 * v(fmt::format("c36.moe_{}", batch), "MBU"), "smaller reads, as many launches");
  }
  const double queued = v("c41.round_robin", "queue wait p99");
  const double least = v("c41.least_queue", "queue wait p99");
  out.add("queue_p99", queued / least,
          fmt::format("{} / {} ms, replicas busy {} and {} % of the time", show(queued),
                      show(least), show(100 * v("c41.round_robin", "replica busy")),
                      show(100 * v("c41.least_queue", "replica busy"))));
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
          fmt::format("memory stays at or below {} % with {} alarms, the first {} steps after the "
                      "leak begins",
                      show(100 * v("c60.watchdog", "memory high water share")),
                      show(v("c60.watchdog", "alarms")),
                      v("c60.watchdog", "alarms") > 0
                          ? show(v("c60.watchdog", "first alarm") - kLeakStep)
                          : std::string("of them never")));
  // A ratio of mean steps is nothing below twice its standard error.
  const double remap = rate("c74.on") / rate("c74.off");
  const double noise = 2 * std::hypot(v("c74.on", "step time error") / step("c74.on"),
                                      v("c74.off", "step time error") / step("c74.off"));
  const std::string rates = fmt::format("{} / {} tokens/s, {} re-mappings", show(rate("c74.on")),
                                        show(rate("c74.off")), show(v("c74.on", "moves")));
  if (std::abs(remap - 1) <= noise) {
    out.add_undecided("remap", fmt::format("{}: {} x differs by less than its noise of {}", rates,
                                           show(remap), show(noise)));
  } else {
    out.add("remap", remap, rates);
  }
  out.add("remap_spread", 100 * (v("c74.on", "imbalance mean") - 1),
          fmt::format("busiest GPU above the mean, mean over layers and steps; {} % without",
                      show(100 * (v("c74.off", "imbalance mean") - 1))));
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
  for (const std::string reading : {"from the start", "6 steps"}) {
    const std::string sick = "c83." + reading;
    out.add("sick_p99." + reading,
            100 * (v(sick, "step time p99") / v("c83.healthy", "step time p99") - 1),
            "p99 of step times, sick against healthy");
    out.add("sick_mean." + reading, 100 * (step(sick) / step("c83.healthy") - 1), "mean step time");
    out.add("sick_diagnosed." + reading,
            v(sick, "sick experts") > 0 && v("c83.healthy", "sick experts") == 0 ? 1 : 0,
            fmt::format("findings of a sick expert: {} when sick, {} when healthy",
                        show(v(sick, "sick experts")), show(v("c83.healthy", "sick experts"))));
    out.add("sick_found." + reading,
            v(sick, "alarms") > 0 && v("c83.healthy", "alarms") == 0 ? 1 : 0,
            fmt::format("alarms on expert latency: {} when sick, {} when healthy",
                        show(v(sick, "alarms")), show(v("c83.healthy", "alarms"))));
  }
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
  t.notes.emplace_back(
      "routing: models of 16 experts, top-2 (gpt4_s0, qwen2_57b_s1) take the shipped checkpoint's "
      "decisions, cycled over steps and layers; the others a lognormal law with sigma 0.9, the one "
      "of the shipped scenarios, assumed for all of them and fitted to none");
  const auto judged = claims::judge(claims, measure_simulated(runs));
  return {t, claims_table("simulated", judged), verdicts_table("simulated", judged)};
}

std::vector<Table> make_simulated(const TableContext& context) {
  ShortRuns runs(context);
  return simulated_tables(run_simulated(runs), claims::claims_of("simulated"));
}

}  // namespace switchyard::tables
