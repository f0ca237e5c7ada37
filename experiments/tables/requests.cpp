// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/trace/replay.hpp"
#include "experiments/tables/prompt_decisions.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint32_t kPurpose = random_purpose("one expert's share raised (tables)");
constexpr double kLoad = 0.7;
constexpr double kShare = 0.35;
constexpr std::uint16_t kHubExpert = 0, kFarExpert = 8;  // one expert a GPU: of gpu0, of gpu8

/// Everything of a scenario but its arrivals.
struct Service {
  std::string claim, name, system, workload, policy = {}, tail = {};
  int prompt = 512, output = 64;
};

std::string scenario(const Service& s, const std::string& kind, const std::string& arrivals) {
  return fmt::format(
      "{}[workload]\nkind = \"{}\"\n{}arrivals = {{ {} }}\nlengths = {{ prompt = {}, output = {} "
      "}}\n{}{}{}{}",
      s.system, kind, kShippedRouting, arrivals, s.prompt, s.output, s.workload, s.policy, s.tail,
      kRunTail);
}

RequestRun read(const run::RunData& run, std::string claim, std::string what) {
  RequestRun out{std::move(claim), std::move(what), {}};
  constexpr double kMs = 1e-9;
  double least = 0;
  double most = 0;
  double done = 0;
  for (const run::RequestRecord& r : run.requests) {
    if (r.first_token_ps < 0 || r.arrival_ps < 0) {
      continue;
    }
    const double ttft = kMs * static_cast<double>(r.first_token_ps - r.arrival_ps);
    least = done == 0 ? ttft : std::min(least, ttft);
    most = std::max(most, ttft);
    ++done;
  }
  if (done > 0) {
    out.values["TTFT least"] = least;
    out.values["TTFT most"] = most;
    const double span = 1e-3 * metric(run, "span");
    out.values["rate"] = done / span;
  }
  for (const run::Metric& m : run.metrics) {
    if (m.name == "TTFT p50") out.values["TTFT p50"] = m.value;
    if (m.name == "SLO attainment") out.values["attainment"] = m.value;
    if (m.name == "ITL jitter") out.values["jitter"] = m.value;
    if (m.name == "memory high water share") out.values["memory"] = m.value;
  }
  out.values["p95"] = 1e3 * step_p95(run);
  return out;
}

double value(const RequestRuns& runs, const std::string& run, const std::string& name) {
  const auto it = runs.runs.find(run);
  if (it == runs.runs.end() || !it->second.values.contains(name)) {
    throw InputError("requests", fmt::format("no {} of the run {}", name, run));
  }
  return it->second.values.at(name);
}

/// Requests per second that the service ends when users ask at once again.
double saturation(ShortRuns& runs, const Service& s, int users, int requests) {
  return read(runs.run(scenario(
                  s, "closed",
                  fmt::format("users = {}, think = \"0 us\", requests = {}", users, requests))),
              s.claim, "")
      .values.at("rate");
}

std::string poisson(double rate, int requests) {
  return fmt::format("per_second = {:.6f}, requests = {}", rate, requests);
}

void run_tiers(ShortRuns& runs, RequestRuns& out) {
  // 1.8 T parameters in FP8 are more than eight cards have: there the cards get 300 GB.
  const auto service = [&](const char* tier, const char* experts, const char* policy) {
    const bool fp8 = std::string(experts) == "fp8";
    Service s;
    s.claim = "C34";
    s.name = tier;
    s.system = fmt::format(
        "[model]\nfile = \"gpt4_s1\"\ndtype = {{ experts = \"{}\", shared = \"{}\" }}\n[hardware]\n"
        "file = \"hardware/hgx_b200.toml\"\ngpu_types = {{ b200 = {{ memory = \"{}\" }} }}\n"
        "[parallel]\nattention = \"tp\"\ntp = 8\nep = 8\n",
        experts, fp8 ? "fp8" : "bf16", fp8 ? "300 GB" : "192 GB");
    s.workload = "batching = { max_sequences = 32, kv = \"20 GB\" }\n";
    s.policy = policy;
    s.output = runs.quick() ? 8 : 64;
    return s;
  };
  for (const Service& s :
       {service("fast", "int4", "[policy]\nsoft = { experts = 1, requests = \"all\" }\n"),
        service("accurate", "fp8", ""),
        service("pinned", "int4", "[policy]\npinned = { requests = \"all\", expert = 0 }\n")}) {
    const int share = runs.quick() ? 16 : 1;
    const std::string what = fmt::format("gpt4_s1 on 8 x B200, tier {}", s.name);
    out.runs[s.name + ".alone"] =
        read(runs.run(scenario(s, "closed",
                               fmt::format("users = 1, requests = {}", runs.quick() ? 2 : 16))),
             s.claim, what + ", one user");
    const double rate = kLoad * saturation(runs, s, runs.quick() ? 16 : 32, 256 / share);
    out.runs[s.name + ".load 0.7"] =
        read(runs.run(scenario(s, "open", poisson(rate, 400 / share))), s.claim,
             fmt::format("{}, {} requests/s", what, show(rate)));
  }
}

void run_prefix(const TableContext& context, RequestRuns& out) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const RouterShape s = router_shape(engine);
  const auto prompts =
      decide_prompts(engine, model::Tokenizer::load(folder),
                     cli::read_prompts(context.scenarios / "prompts" / "code_prefix.jsonl"), false);
  // [with prefix][layer][expert]
  std::array<std::vector<double>, 2> tokens;
  std::array<std::vector<double>, 2> requests;
  std::array<double, 2> rows{};
  std::array<double, 2> count{};
  for (auto* shares : {&tokens, &requests}) {
    for (auto& v : *shares) {
      v.assign(s.layers * s.experts, 0.0);
    }
  }
  for (const PromptDecisions& p : prompts) {
    const std::size_t with = p.domain == "prefix" ? 1 : 0;
    rows[with] += static_cast<double>(p.tokens);
    ++count[with];
    for (std::size_t l = 0; l < s.layers; ++l) {
      ++requests[with][l * s.experts + top_expert(p, s, l)];
      for (std::size_t t = 0; t < p.tokens; ++t) {
        for (const std::uint16_t e : best_experts(p.row(s, l, t), s.top_k)) {
          ++tokens[with][l * s.experts + e];
        }
      }
    }
  }
  const auto at_most = [](const std::array<std::vector<double>, 2>& counts,
                          const std::array<double, 2>& of) {
    const auto most = static_cast<std::size_t>(
        std::max_element(counts[1].begin(), counts[1].end()) - counts[1].begin());
    return std::pair{counts[0][most] / of[0], counts[1][most] / of[1]};
  };
  out.prefix = {{"tokens", at_most(tokens, rows)}, {"requests", at_most(requests, count)}};
}

/// A hub keeps the cache of all: more than a card has, which gets 400 GB there.
Service serving_s4(const std::string& attention, bool quick) {
  const bool hub = attention == "hub";
  Service s;
  s.claim = "C57";
  s.name = attention;
  s.system = fmt::format(
      "[model]\nfile = \"gpt4_s4_int4\"\ndtype = {{ experts = \"int4\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"hardware/whatif_16xh200.toml\"\n{}[parallel]\nattention = \"{}\"\nep = "
      "16\n{}",
      hub ? "gpu_types = { h200 = { memory = \"400 GB\" } }\n" : "", attention,
      hub ? "" : "dp = 16\n");
  s.workload =
      fmt::format("batching = {{ max_sequences = 128, kv = \"{} GB\" }}\n", hub ? 210 : 15);
  s.tail = hub ? "[memory]\nkv = { placement = \"hub\" }\n" : "";
  s.output = quick ? 16 : 128;
  return s;
}

void run_shares(ShortRuns& runs, RequestRuns& out) {
  const Service s = serving_s4("hub", runs.quick());
  const auto fixed = [&](const RoutingTrace* routing) {
    return runs.run(fmt::format("{}[workload]\nkind = \"decode\"\nbatch = 128\ncontext = 512\n"
                                "steps = {}\nwarmup_steps = {}\n{}{}{}",
                                s.system, runs.quick() ? 8 : 64, runs.quick() ? 1 : 16,
                                kShippedRouting, s.tail, kRunTail),
                    {}, routing);
  };
  out.runs["even"] =
      read(fixed(nullptr), "C57", "gpt4_s4_int4 on 16 x H200, hub, batch 128, the shipped routing");
  for (const auto& [name, expert] :
       {std::pair{"hub GPU", kHubExpert}, {"remote GPU", kFarExpert}}) {
    const RoutingTrace more = with_share(runs.shipped(), expert, kShare);
    out.runs[name] =
        read(fixed(&more), "C57",
             fmt::format("the same, 35 % of the tokens take the expert of the {}", name));
  }
  for (const std::string attention : {"dp", "hub"}) {
    for (const std::string domain : {"vague", "clear"}) {
      const RoutingTrace routing = runs.trace("vague_clear", domain);
      const int requests = runs.quick() ? 24 : 256;
      out.runs[fmt::format("{}.{}", domain, attention)] = read(
          runs.run(
              scenario(serving_s4(attention, runs.quick()), "closed",
                       fmt::format("users = {}, requests = {}", runs.quick() ? 16 : 64, requests)),
              {}, &routing),
          "C57",
          fmt::format("gpt4_s4_int4 on 16 x H200, {}, {} users, routing of {} prompts", attention,
                      runs.quick() ? 16 : 64, domain));
    }
  }
}

void run_warm_up(ShortRuns& runs, RequestRuns& out) {
  Service s;
  s.claim = "C78";
  s.system =
      "[model]\nfile = \"qwen2_57b_s1\"\ndtype = { experts = \"int4_g128\", shared = \"int4_g128\" "
      "}\n[hardware]\nfile = \"hardware/a100x1.toml\"\n"
      "devices = [{ name = \"gpu0\", kind = \"gpu\", type = \"a100\" }, { name = \"cpu0\", kind = "
      "\"cpu\", memory = \"256 GB\" }, { name = \"ssd0\", kind = \"ssd\", memory = \"4 TB\", "
      "bandwidth = \"7 GB/s\" }]\n"
      "links = [{ from = \"gpu0\", to = \"cpu0\", class = \"pcie4\", bandwidth = \"26 GB/s\", "
      "latency = \"5 us\" }, { from = \"ssd0\", to = \"cpu0\", class = \"pcie4\", bandwidth = \"8 "
      "GB/s\", latency = \"80 us\" }]\n";
  s.workload = "batching = { max_sequences = 32 }\nslo = { ttft = \"1 s\" }\n";
  const int seconds = runs.quick() ? 10 : 120;
  struct Way {
    const char *name, *cold, *warm;
  };
  for (const Way& way :
       {Way{"loading", "[memory.loading]\nfrom = \"ssd\"\nwarm_up = { tokens = 128 }\n", ""},
        Way{"offloaded", "[memory.residency]\npolicy = \"lru\"\nslots = 8\n",
            "[memory.residency]\npolicy = \"lru\"\nslots = 8\ninitial = \"hot\"\n"}}) {
    s.tail = way.warm;
    const double rate = kLoad * saturation(runs, s, 32, runs.quick() ? 32 : 256);
    for (const bool warm : {false, true}) {
      s.tail = warm ? way.warm : way.cold;
      const int requests = std::max(8, static_cast<int>(std::lround(rate * seconds)));
      out.runs[fmt::format("{}.{}", way.name, warm ? "warm" : "cold")] =
          read(runs.run(scenario(s, "open", poisson(rate, requests))), "C78",
               fmt::format("qwen2_57b_s1 in INT4 on one A100, {}, {}, {} requests/s, {} requests",
                           way.name, warm ? "warm" : "cold", show(rate), requests));
    }
  }
}

}  // namespace

double share_of(const RoutingTrace& trace, std::uint16_t expert, std::uint32_t layer) {
  const std::uint32_t k = trace.header.top_k();
  double taken = 0;
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    const auto from = trace.routing.candidates.begin() +
                      static_cast<std::ptrdiff_t>(trace.candidate_at(row, layer));
    taken += std::find(from, from + k, expert) != from + k ? 1 : 0;
  }
  return taken / static_cast<double>(trace.rows());
}

RoutingTrace with_share(const RoutingTrace& trace, std::uint16_t expert, double share) {
  const TraceHeader& h = trace.header;
  SWITCHYARD_ASSERT(h.candidates == h.experts() && expert < h.experts() && h.top_k() >= 2 &&
                        share > 0 && share < 1,
                    "all experts are candidates");
  RoutingTrace out = trace;
  for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
    const double now = share_of(trace, expert, l);
    const double turn = (share - now) / (1 - now);  // of the tokens that do not take it
    for (std::uint64_t row = 0; row < trace.rows(); ++row) {
      const auto from =
          out.routing.candidates.begin() + static_cast<std::ptrdiff_t>(out.candidate_at(row, l));
      const auto at = std::find(from, from + h.candidates, expert);
      if (at - from < h.top_k()) {
        continue;
      }
      if (random_uniform(1, kPurpose, {.layer = l, .position = static_cast<std::uint32_t>(row)}) <
          turn) {
        std::iter_swap(from + (h.top_k() - 1), at);
      }
    }
  }
  ReplayOptions options;
  options.seed = h.seed;
  replay(out, options);  // the decisions that follow from the candidates
  return out;
}

RequestRuns run_requests_table(ShortRuns& runs, const TableContext& context) {
  RequestRuns out;
  run_tiers(runs, out);
  run_prefix(context, out);
  run_shares(runs, out);
  run_warm_up(runs, out);
  return out;
}

claims::Measurements measure_requests(const RequestRuns& runs) {
  claims::Measurements out;
  const auto v = [&](const std::string& run, const char* name) { return value(runs, run, name); };
  for (const std::string load : {"alone", "load 0.7"}) {
    double least = 0;
    double most = 0;
    std::map<std::string, double> median;
    for (const std::string tier : {"fast", "accurate", "pinned"}) {
      const std::string run = fmt::format("{}.{}", tier, load);
      median[tier] = v(run, "TTFT p50");
      least = least == 0 ? v(run, "TTFT least") : std::min(least, v(run, "TTFT least"));
      most = std::max(most, v(run, "TTFT most"));
      out.add(fmt::format("ttft_{}.{}", tier, load), median[tier],
              fmt::format("median; {} to {} ms, memory {} %", show(v(run, "TTFT least")),
                          show(v(run, "TTFT most")), show(100 * v(run, "memory"))));
    }
    const auto ratio = [&](const char* a, const char* b) {
      out.add(fmt::format("ttft_{}_{}.{}", a, b, load), median[a] / median[b],
              fmt::format("{} / {} ms", show(median[a]), show(median[b])));
    };
    ratio("fast", "accurate");
    ratio("pinned", "fast");
    out.add("ttft_least." + load, least, "of all requests of the three tiers");
    out.add("ttft_most." + load, most, "of all requests of the three tiers");
  }
  for (const auto& [reading, share] : runs.prefix) {
    out.add_series("prefix_share." + reading, {0, 1}, {100 * share.first, 100 * share.second},
                   "code prompts without and with the prefix, the expert and layer that most take "
                   "with it");
  }
  for (const std::string where : {"hub GPU", "remote GPU"}) {
    out.add("prefix_p95." + where, 100 * (1 - v(where, "p95") / v("even", "p95")),
            fmt::format("p95 of the step {} against {} ms", show(v(where, "p95")),
                        show(v("even", "p95"))));
  }
  for (const std::string attention : {"dp", "hub"}) {
    const double vague = v("vague." + attention, "jitter");
    const double clear = v("clear." + attention, "jitter");
    const std::string how = fmt::format("{} against {} ms", show(clear), show(vague));
    if (vague > 0) {
      out.add("clear_jitter." + attention, 100 * (1 - clear / vague), how);
    } else {
      out.add_undecided("clear_jitter." + attention, how);
    }
  }
  for (const std::string way : {"loading", "offloaded"}) {
    const double cold = 100 * v(way + ".cold", "attainment");
    const double warm = 100 * v(way + ".warm", "attainment");
    out.add_series(
        "attainment." + way, {0, 1}, {cold, warm},
        fmt::format("TTFT of at most 1 s; longest {} ms cold, {} ms warm",
                    show(v(way + ".cold", "TTFT most")), show(v(way + ".warm", "TTFT most"))));
    out.add("attainment_final." + way, warm, "TTFT of at most 1 s, warm");
  }
  return out;
}

std::vector<Table> requests_tables(const RequestRuns& runs,
                                   const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "requests";
  t.title = "short simulations behind the rows below";
  t.columns = {"claim",          "scenario",    "TTFT p50 [ms]", "least [ms]", "most [ms]",
               "attainment [%]", "jitter [ms]", "step p95 [ms]", "memory [%]"};
  for (const auto& [name, run] : runs.runs) {
    const auto cell = [&](const char* key, double scale) {
      const auto it = run.values.find(key);
      return it == run.values.end() || std::isnan(it->second) ? std::string("-")
                                                              : show(scale * it->second);
    };
    t.rows.push_back({run.claim, run.scenario, cell("TTFT p50", 1), cell("TTFT least", 1),
                      cell("TTFT most", 1), cell("attainment", 100), cell("jitter", 1),
                      cell("p95", 1), cell("memory", 100)});
  }
  t.notes.emplace_back(
      "512 tokens in, 64 out (C57: 128 out); host 500 us a step and 10 us a sequence, assumed; "
      "routing: the shipped checkpoint's, cycled over layers");
  t.notes.emplace_back(
      "what does not fit is timed on cards with more memory: gpt4_s1 in FP8 on 8 x 300 GB, the hub "
      "with its cache on 400 GB");
  const auto judged = claims::judge(claims, measure_requests(runs));
  return {t, claims_table("requests", judged), verdicts_table("requests", judged)};
}

std::vector<Table> make_requests(const TableContext& context) {
  ShortRuns runs(context);
  auto tables = requests_tables(run_requests_table(runs, context), claims::claims_of("requests"));
  if (context.quick) {
    tables.front().notes.emplace_back("quick: fewer users and requests, C57 with 16 out");
  }
  return tables;
}

}  // namespace switchyard::tables
