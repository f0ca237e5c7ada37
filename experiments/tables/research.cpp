// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/research.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "experiments/tables/table_text.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {
namespace {

constexpr std::array<std::uint64_t, 4> kBatches{8, 64, 256, 1024};

std::string lognormal(double sigma) {
  return sigma == 0 ? std::string("routing = { synthetic = \"uniform\" }\n")
                    : fmt::format("routing = {{ synthetic = \"lognormal\", sigma = {} }}\n", sigma);
}

constexpr const char* kDp8 = "dp = 8\nep = 8\n";

}  // namespace

Table step_breakdown_table(ShortRuns& runs) {
  Table t;
  t.name = "step-breakdown";
  t.title = "mixtral_8x7b on 8 x H100, dp 8, ep 8: where the time of a step goes, in % of it";
  constexpr std::array<const char*, 9> kShares{
      "attention share", "router share",     "dispatch share", "expert share", "combine share",
      "dense share",     "collective share", "head share",     "host share"};
  t.columns = {"step", "tokens", "time [ms]"};
  for (const char* share : kShares) {
    const std::string name = share;
    t.columns.push_back(name.substr(0, name.find(' ')));
  }
  for (const char* column : {"wait", "MFU [%]", "MBU [%]"}) {
    t.columns.emplace_back(column);
  }
  const auto add = [&](const char* step, std::uint64_t tokens, const std::string& workload) {
    const auto run = runs.run(fixed_batch("mixtral_8x7b", "hgx_h100", kDp8, workload));
    std::vector<std::string> row = {step, fmt::to_string(tokens),
                                    ms(metric(run, "step time mean"))};
    for (const char* share : kShares) {
      row.push_back(percent(metric(run, share)));
    }
    for (const char* share : {"step wait share", "MFU", "MBU"}) {
      row.push_back(percent(metric(run, share)));
    }
    t.rows.push_back(std::move(row));
  };
  for (const std::uint64_t batch : kBatches) {
    add("decode, 512 of context", batch, decode_steps(batch, 512, runs.quick()));
  }
  for (const std::uint64_t prompt : {128U, 1024U, 4096U}) {
    add("prefill, 8 prompts", 8 * prompt,
        fmt::format("kind = \"prefill\"\nbatch = 8\ntokens = {}\nsteps = {}\nwarmup_steps = 1\n{}",
                    prompt, runs.quick() ? 2 : 8, kDrawnRouting));
  }
  t.notes.emplace_back(
      "shares of the critical path; host 500 us a step and 10 us a sequence, assumed; routing "
      "drawn, "
      "lognormal with sigma 0.9");
  return t;
}

Table ep_scaling_table(ShortRuns& runs) {
  constexpr std::uint64_t kGpus = 32, kBatch = 1024;
  Table t;
  t.name = "ep-scaling";
  t.title = fmt::format(
      "deepseek_v2_lite on 4 servers of 8 H100 with NICs, dp {}, {} sequences: experts spread "
      "wider",
      kGpus, kBatch);
  t.columns = {"EP",
               "dispatch",
               "GPUs a token goes to, even routing",
               "sent per token [kB]",
               "imbalance",
               "step [ms]",
               "dispatch + combine [%]",
               "experts [GB/GPU]",
               "efficiency [%]"};
  for (const char* dispatch : {"per_rank", "per_node"}) {
    double one = 0;
    for (const std::uint64_t ep : {1U, 2U, 4U, 8U, 16U, 32U}) {
      const auto run = runs.run(fixed_batch("deepseek_v2_lite", "h100_4x8_rail",
                                            fmt::format("dp = {}\nep = {}\n", kGpus, ep),
                                            decode_steps(kBatch, 512, runs.quick())),
                                [&](scenario::Scenario& s) {
                                  s.network.dispatch = std::string(dispatch) == "per_node"
                                                           ? scenario::DispatchKind::kPerNode
                                                           : scenario::DispatchKind::kPerRank;
                                });
      const double step = metric(run, "step time mean");
      one = ep == 1 ? step : one;
      const double experts = run.inventory.experts;
      double none = 1;  // Chance that one GPU has none of the k experts.
      for (std::uint32_t i = 0; i < run.inventory.top_k; ++i) {
        none *= (experts - experts / static_cast<double>(ep) - i) / (experts - i);
      }
      std::uint64_t bytes = 0;
      for (std::size_t g = 0; g < kGpus; ++g) {
        bytes = std::max(
            bytes, run.totals.gpu_memory[g * run::kMemoryCategories +
                                         static_cast<std::size_t>(run::MemoryCategory::kExperts)]);
      }
      t.rows.push_back({fmt::to_string(ep), dispatch,
                        fmt::format("{:.3f}", static_cast<double>(ep) * (1 - std::max(none, 0.0))),
                        show(metric(run, "bytes sent per token")),
                        fmt::format("{:.3f}", metric(run, "imbalance mean")), ms(step),
                        percent(metric(run, "dispatch share") + metric(run, "combine share")),
                        fmt::format("{:.2f}", 1e-9 * static_cast<double>(bytes)),
                        percent(one / step)});
    }
  }
  t.notes.emplace_back(
      "efficiency: step time at EP 1 over step time, same GPUs and batch; wider EP reads fewer "
      "weights per GPU and sends more");
  t.notes.emplace_back("per_node: one copy per server and a fan-out inside it");
  return t;
}

Table skew_cost_table(ShortRuns& runs) {
  Table t;
  t.name = "skew-cost";
  t.title = "qwen3_30b_a3b on 8 x H100, dp 8, ep 8: what an uneven router costs";
  t.columns = {"batch",
               "sigma of the router",
               "load_cv",
               "imbalance",
               "expert time [ms]",
               "step [ms]",
               "step over even",
               "HBM reads and writes [GB/step]"};
  for (const std::uint64_t batch : {8U, 64U, 1024U, 8192U}) {
    if (runs.quick() && batch > 1024) {
      continue;
    }
    double even = 0;
    for (const double sigma : {0.0, 0.3, 0.6, 0.9, 1.5}) {
      const auto run =
          runs.run(fixed_batch("qwen3_30b_a3b", "hgx_h100", kDp8,
                               decode_steps(batch, 512, runs.quick(), lognormal(sigma))));
      const double step = metric(run, "step time mean");
      even = sigma == 0 ? step : even;
      double bytes = 0;
      double steps = 0;
      for (const run::StepScalars& s : run.steps) {
        if (!s.warmup) {
          bytes += static_cast<double>(s.hbm_bytes);
          steps += 1;
        }
      }
      t.rows.push_back(
          {fmt::to_string(batch), show(sigma), fmt::format("{:.3f}", metric(run, "load_cv")),
           fmt::format("{:.3f}", metric(run, "imbalance mean")),
           ms(step * metric(run, "expert share")), ms(step), fmt::format("{:.3f}", step / even),
           fmt::format("{:.2f}", 1e-9 * bytes / steps)});
    }
  }
  t.notes.emplace_back(
      "imbalance: assignments of the busiest GPU over the mean; a small batch reads fewer experts "
      "when the router is uneven, a large one waits for the busiest GPU");
  return t;
}

Table capacity_table(ShortRuns& runs) {
  struct Rule {
    const char *rule, *order, *reroute, *exhausted;
    double factor;
  };
  constexpr std::array<Rule, 11> kRules{{{"none", "position", "next", "top1", 1},
                                         {"share", "position", "next", "top1", 1.0},
                                         {"share", "position", "next", "top1", 1.25},
                                         {"share", "position", "next", "top1", 2.0},
                                         {"share", "prob", "next", "top1", 1.25},
                                         {"share", "position", "none", "top1", 1.25},
                                         {"share", "position", "none", "drop_token", 1.25},
                                         {"share", "position", "none", "queue", 1.25},
                                         {"share", "position", "none", "queue", 1.0},
                                         {"batch_tokens", "position", "next", "top1", 1.25},
                                         {"deepspeed", "position", "none", "top1", 1.25}}};
  Table t;
  t.name = "capacity";
  t.title = "gpt4_s4_int4 on 16 x H200, decode of 256: capacity rules on the shipped routing";
  t.columns = {"rule",         "CF",           "order",      "reroute",     "exhausted",
               "overflow [%]", "rerouted [%]", "queued [%]", "dropped [%]", "kept_fraction [%]",
               "imbalance",    "step p99 [ms]"};
  for (const Rule& r : kRules) {
    std::string policy;
    if (std::string(r.rule) != "none") {
      policy = fmt::format(
          "[policy]\ncapacity = {{ rule = \"{}\", factor = {:.2f}, order = \"{}\", reroute = "
          "\"{}\", exhausted = \"{}\" }}\n",
          r.rule, r.factor, r.order, r.reroute, r.exhausted);
    }
    const std::string scenario = fmt::format(
        "[model]\nfile = \"gpt4_s4_int4\"\ndtype = {{ experts = \"int4\", shared = \"fp8\" }}\n"
        "[hardware]\nfile = \"hardware/whatif_16xh200.toml\"\n[parallel]\ndp = 16\nep = 16\n"
        "[workload]\n{}{}{}",
        decode_steps(256, 512, runs.quick(), kShippedRouting), policy, kRunTail);
    const auto run = runs.run(scenario);
    double kept = 0;
    double places = 0;
    for (const run::StepScalars& s : run.steps) {
      if (!s.warmup) {
        kept += static_cast<double>(s.kept + s.rerouted + s.queued);
        places +=
            static_cast<double>(s.tokens * run.inventory.moe_layers.size()) * run.inventory.experts;
      }
    }
    const bool rule = std::string(r.rule) != "none";
    t.rows.push_back({r.rule, rule ? fmt::format("{:.2f}", r.factor) : "-", rule ? r.order : "-",
                      rule ? r.reroute : "-", rule ? r.exhausted : "-",
                      percent(metric(run, "overflow share")), percent(metric(run, "reroute share")),
                      percent(metric(run, "queue share")), percent(metric(run, "drop share")),
                      percent(kept / places), fmt::format("{:.3f}", metric(run, "imbalance mean")),
                      ms(metric(run, "step time p99"))});
  }
  t.notes.emplace_back(
      "kept_fraction: assignments that ran / (tokens x experts), k/E = 12.5 % at most");
  t.notes.emplace_back("perplexity under a rule: switchyard generate --perplexity with the policy");
  return t;
}

Table network_sensitivity_table(ShortRuns& runs) {
  Table t;
  t.name = "network-sensitivity";
  t.title =
      "mixtral_8x7b, decode: every link's latency or bandwidth times a factor, change of TPOT";
  t.columns = {"hardware",  "layout",  "batch",   "TPOT [ms]", "varied",
               "x 0.5 [%]", "x 2 [%]", "x 4 [%]", "swing [%]"};
  struct Case {
    const char *hardware, *layout, *parallel;
    std::uint64_t batch;
  };
  constexpr std::array<Case, 4> kCases{
      {{"hgx_h100", "dp 8, ep 8", "dp = 8\nep = 8\n", 64},
       {"hgx_h100", "dp 8, ep 8", "dp = 8\nep = 8\n", 1024},
       {"hgx_h100", "tp 8, ep 8", "attention = \"tp\"\ntp = 8\nep = 8\n", 64},
       {"l40s_pcie_8", "dp 8, ep 8", "dp = 8\nep = 8\n", 64}}};
  for (const Case& c : kCases) {
    const auto tpot = [&](double latency, double bandwidth) {
      const auto run = runs.run(
          fixed_batch("mixtral_8x7b", c.hardware, c.parallel,
                      decode_steps(c.batch, 512, runs.quick())),
          [&](scenario::Scenario& s) {
            for (scenario::Link& link : s.hardware.links) {
              link.latency = SimTime::from_seconds(link.latency.seconds() * latency);
              if (link.phase_latency) {
                link.phase_latency = SimTime::from_seconds(link.phase_latency->seconds() * latency);
              }
              link.bandwidth.value *= bandwidth;
            }
          });
      return metric(run, "step time mean");
    };
    const double base = tpot(1, 1);
    for (const bool latency : {true, false}) {
      std::vector<double> change;
      for (const double factor : {0.5, 2.0, 4.0}) {
        change.push_back((latency ? tpot(factor, 1) : tpot(1, factor)) / base - 1);
      }
      const auto [low, high] = std::minmax({change[0], change[1], change[2], 0.0});
      t.rows.push_back({c.hardware, c.layout, fmt::to_string(c.batch), ms(base),
                        latency ? "latency" : "bandwidth", percent(change[0]), percent(change[1]),
                        percent(change[2]), percent(high - low)});
    }
  }
  t.notes.emplace_back("the larger swing names the bound: latency or bandwidth");
  return t;
}

Table failure_table(ShortRuns& runs) {
  struct Case {
    const char *name, *event, *more;
  };
  constexpr std::array<Case, 6> kCases{
      {{"none", "", ""},
       {"GPU lost, experts and pages move", "kind = \"gpu_loss\"\ngpu = \"gpu3\"\n",
        "detection = \"200 ms\"\nreaction = \"migrate\"\n"},
       {"GPU lost, all wait for a restart", "kind = \"gpu_loss\"\ngpu = \"gpu3\"\n",
        "detection = \"200 ms\"\nreaction = \"restart\"\nrestart = \"10 s\"\n"},
       {"link at 50 %", "kind = \"link_degraded\"\nlink = \"gpu3--nvswitch\"\nfactor = 0.5\n", ""},
       {"slow GPU, kernels x 2", "kind = \"slow_gpu\"\ngpu = \"gpu3\"\nfactor = 2\n", ""},
       {"combine fails once a step",
        "kind = \"gather_failure\"\ngpu = \"gpu3\"\nlayer = 0\ntimeout = "
        "\"5 ms\"\n",
        ""}}};
  Table t;
  t.name = "failure";
  t.title = "mixtral_8x7b on 8 x H100, dp 8, ep 8, decode of 64: a fault in step 8 for 16 steps";
  t.columns = {"fault",           "spare copies",    "step before [ms]",
               "worst step [ms]", "steady p99 [ms]", "steps over 1.1 x before",
               "time lost [ms]",  "after [ms]"};
  for (const bool spare : {false, true}) {
    for (const Case& c : kCases) {
      const std::string placement =
          spare ? "placement = \"replicated\"\nplacement_options = { redundant = 8 }\n" : "";
      std::string faults;
      if (*c.event != '\0') {
        // A restart brings the GPU back by itself.
        const bool restarts = std::string(c.more).find("restart") != std::string::npos;
        faults = fmt::format("[faults]\n{}[[faults.events]]\n{}step = 8\n{}", c.more, c.event,
                             restarts ? "" : "lasts = 16\n");
      }
      const auto run = runs.run(fixed_batch(
          "mixtral_8x7b", "hgx_h100", kDp8 + placement,
          fmt::format(
              "kind = \"decode\"\nbatch = 64\ncontext = 512\nsteps = 40\nwarmup_steps = 0\n{}",
              kDrawnRouting),
          faults));
      std::vector<double> steps;
      steps.reserve(run.steps.size());
      for (const run::StepScalars& s : run.steps) {
        steps.push_back(1e-9 * static_cast<double>(s.end_ps - s.start_ps));
      }
      SWITCHYARD_ASSERT(steps.size() >= 40, "steps of the failure table");
      double before = 0, after = 0, lost = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        before += steps[i] / 8;
        after += steps[steps.size() - 8 + i] / 8;
      }
      std::uint64_t slow = 0;
      std::vector<double> during;
      for (std::size_t i = 8; i < steps.size(); ++i) {
        lost += std::max(0.0, steps[i] - before);
        slow += steps[i] > 1.1 * before ? 1 : 0;
        if (i >= 10 && i < 24) {  // The fault holds and its reaction is over.
          during.push_back(steps[i]);
        }
      }
      std::sort(during.begin(), during.end());
      t.rows.push_back({c.name, spare ? "1 per expert" : "0", fmt::format("{:.3f}", before),
                        fmt::format("{:.3f}", *std::max_element(steps.begin(), steps.end())),
                        fmt::format("{:.3f}", during.back()), fmt::to_string(slow),
                        fmt::format("{:.1f}", lost), fmt::format("{:.3f}", after)});
    }
  }
  t.notes.emplace_back(
      "steady p99: steps 10 to 23 (14 steps: their slowest); time lost: sum over steps of what "
      "they "
      "take beyond the mean of steps 0 to 7; detection 200 ms and restart 10 s assumed");
  return t;
}

Table context_length_table(ShortRuns& runs) {
  Table t;
  t.name = "context-length";
  t.title = "8 x H100, dp 8, ep 8: keys and values by context";
  t.columns = {"model",           "attention",      "context",      "KV [MB/sequence]",
               "batch that fits", "step of 8 [ms]", "attention [%]"};
  for (const char* model : {"olmoe_1b_7b", "mixtral_8x7b", "deepseek_v2_lite"}) {
    for (const std::uint64_t context : {1024U, 4096U, 16384U, 32768U, 131072U}) {
      model::ModelConfig config;
      const auto run =
          runs.run(fixed_batch(model, "hgx_h100", kDp8, decode_steps(8, context, runs.quick())),
                   [&](scenario::Scenario& s) { config = s.model; });
      const double kv = static_cast<double>(model::kv_bytes(config, model::DType::kBf16, context));
      double fits = 0;
      for (std::size_t g = 0; g < run.inventory.gpus.size(); ++g) {
        const auto held = [&](run::MemoryCategory c) {
          return static_cast<double>(
              run.totals.gpu_memory[g * run::kMemoryCategories + static_cast<std::size_t>(c)]);
        };
        const double room = scenario::MemorySpec{}.watermark *
                                static_cast<double>(run.inventory.gpus[g].memory_bytes) -
                            held(run::MemoryCategory::kWeights) -
                            held(run::MemoryCategory::kExperts);
        fits += std::max(0.0, std::floor(room / kv));
      }
      t.rows.push_back({model,
                        config.attention == model::AttentionKind::kMla ? "MLA"
                        : config.num_kv_heads == config.num_heads      ? "MHA"
                                                                       : "GQA",
                        fmt::to_string(context), fmt::format("{:.2f}", 1e-6 * kv),
                        fmt::format("{:.0f}", fits), ms(metric(run, "step time mean")),
                        percent(metric(run, "attention share"))});
    }
  }
  t.notes.emplace_back(
      "batch that fits: whole sequences in what weights leave under the watermark, all GPUs; "
      "contexts beyond a model's trained length are a question of memory here, not of quality");
  return t;
}

Table frontier_table(ShortRuns& runs) {
  struct Layout {
    const char *name, *parallel;
  };
  constexpr std::array<Layout, 4> kLayouts{
      {{"dp 8, ep 8", "dp = 8\nep = 8\n"},
       {"tp 8, ep 8", "attention = \"tp\"\ntp = 8\nep = 8\n"},
       {"dp 2 x tp 4, ep 8", "attention = \"tp\"\ntp = 4\ndp = 2\nep = 8\n"},
       {"dp 4 x tp 2, ep 8", "attention = \"tp\"\ntp = 2\ndp = 4\nep = 8\n"}}};
  struct Point {
    std::string layout;
    std::uint64_t batch;
    double user, gpu, memory;
  };
  std::vector<Point> points;
  for (const Layout& layout : kLayouts) {
    for (const std::uint64_t batch : {8U, 16U, 32U, 64U, 128U, 256U, 512U, 1024U}) {
      const auto run = runs.run(fixed_batch("mixtral_8x7b", "hgx_h100", layout.parallel,
                                            decode_steps(batch, 2048, runs.quick())));
      points.push_back({layout.name, batch, 1e6 / metric(run, "step time mean"),
                        metric(run, "tokens per second and GPU"),
                        metric(run, "memory high water share")});
    }
  }
  Table t;
  t.name = "frontier";
  t.title =
      "mixtral_8x7b on 8 x H100, decode with 2048 tokens of context: throughput against speed";
  t.columns = {"layout",           "batch",      "tokens/s per user",
               "tokens/s per GPU", "memory [%]", "frontier"};
  for (const Point& p : points) {
    const bool beaten = std::any_of(points.begin(), points.end(), [&](const Point& o) {
      return o.memory <= 1 && o.user >= p.user && o.gpu >= p.gpu &&
             (o.user > p.user || o.gpu > p.gpu);
    });
    t.rows.push_back({p.layout, fmt::to_string(p.batch), fmt::format("{:.1f}", p.user),
                      fmt::format("{:.1f}", p.gpu), percent(p.memory),
                      p.memory > 1 ? "does not fit"
                      : beaten     ? ""
                                   : "*"});
  }
  t.notes.emplace_back("*: no other point that fits is at least as fast for both");
  return t;
}

std::vector<Table> make_step_breakdown(const TableContext& context) {
  ShortRuns runs(context);
  return {step_breakdown_table(runs)};
}
std::vector<Table> make_ep_scaling(const TableContext& context) {
  ShortRuns runs(context);
  return {ep_scaling_table(runs)};
}
std::vector<Table> make_skew_cost(const TableContext& context) {
  ShortRuns runs(context);
  return {skew_cost_table(runs)};
}
std::vector<Table> make_capacity(const TableContext& context) {
  ShortRuns runs(context);
  return {capacity_table(runs)};
}
std::vector<Table> make_network_sensitivity(const TableContext& context) {
  ShortRuns runs(context);
  return {network_sensitivity_table(runs)};
}
std::vector<Table> make_failure(const TableContext& context) {
  ShortRuns runs(context);
  return {failure_table(runs)};
}
std::vector<Table> make_context_length(const TableContext& context) {
  ShortRuns runs(context);
  return {context_length_table(runs)};
}
std::vector<Table> make_frontier(const TableContext& context) {
  ShortRuns runs(context);
  return {frontier_table(runs)};
}

}  // namespace switchyard::tables
