// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/feedback.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "experiments/cli/trace.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;
using coupled::CoupledRun;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint32_t kRounds = 5, kAnswer = 6;

/// A folder of its own that goes when this does.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "switchyard-table-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw InputError(name, "cannot make this folder");
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

/// The shipped checkpoint, prompts of the mixed set, and a trace without a policy.
class Bench {
 public:
  Bench(const TableContext& context, std::size_t prompts)
      : context_(context),
        engine_(Engine::load(context.scenarios / "checkpoints" / "sy-16x2",
                             {.threads = context.threads})) {
    const auto tokenizer = model::Tokenizer::load(context.scenarios / "checkpoints" / "sy-16x2");
    prompts_ = cli::read_trace_prompts(context.scenarios / "prompts" / "mixed.jsonl", kAnswer, {},
                                       engine_, tokenizer);
    if (prompts_.size() > prompts) prompts_.resize(prompts);
    TraceRunOptions run;
    run.batch = static_cast<std::uint32_t>(prompts_.size());
    run.seed = run.sampling.seed = 1;
    const fs::path file = scratch_.folder() / "plain.h5";
    (void)record_trace(engine_, prompts_, run, file);
    plain_ = read_trace(file);
  }
  [[nodiscard]] CoupledRun run(const std::string& text) const {
    return coupled::run_coupled(engine_, prompts_, text, kRounds, context_.scenarios,
                                scratch_.folder());
  }
  [[nodiscard]] run::RunData alone(const std::string& text) const {
    return coupled::run_alone(plain_, text, context_.scenarios);
  }
  [[nodiscard]] const RoutingTrace& plain() const { return plain_; }
  [[nodiscard]] std::size_t prompts() const { return prompts_.size(); }

 private:
  TableContext context_;
  Scratch scratch_;
  Engine engine_;
  std::vector<TracePrompt> prompts_;
  RoutingTrace plain_;
};

/// Rows of the policy beside the one with the same other conditions without it.
const FeedbackRow& row_of(const FeedbackRun& run, const std::vector<std::string>& condition) {
  const auto it = std::find_if(run.rows.begin(), run.rows.end(),
                               [&](const FeedbackRow& r) { return r.condition == condition; });
  if (it == run.rows.end()) {
    throw InputError("table", fmt::format("no run of {}", fmt::join(condition, ", ")));
  }
  return *it;
}
constexpr std::string_view kTail =
    "[network]\nmodel = \"bottleneck\"\n[host]\nper_step = \"500 us\"\nper_sequence = \"10 us\"\n"
    "[run]\nseed = 1\ndetail = \"steps\"\n";

/// S0's model on the article's 16 cards.
std::string s0_text(const std::string& workload, const std::string& kv, const std::string& policy) {
  return fmt::format(
      "[model]\nfile = \"gpt4_s0\"\ndtype = {{ experts = \"fp8\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"whatif_16x280\"\n[parallel]\nattention = \"dp\"\ndp = 16\nep = 16\n"
      "[memory]\nkv = {{ placement = \"{}\" }}\n{}{}{}",
      kv, policy.empty() ? "" : "[policy]\n" + policy + "\n", workload, kTail);
}

/// S1's model on eight B200.
std::string s1_text(const std::string& workload, const std::string& policy) {
  return fmt::format(
      "[model]\nfile = \"gpt4_s1\"\ndtype = {{ experts = \"int4\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"hgx_b200\"\n[parallel]\nattention = \"tp\"\ntp = 8\nep = 8\n{}{}{}",
      policy.empty() ? "" : "[policy]\n" + policy + "\n", workload, kTail);
}

constexpr std::string_view kCycle = "routing = { trace = \"round.h5\", layers = \"cycle\" }\n";

std::string requests(bool closed, double rate_or_users, std::uint64_t count, int prompt, int answer,
                     int sequences) {
  return fmt::format(
      "[workload]\nkind = \"{}\"\n{}arrivals = {{ {}, requests = {} }}\nlengths = {{ prompt = {}, "
      "output = {} }}\nbatching = {{ token_budget = 1024, max_sequences = {} }}\n",
      closed ? "closed" : "open", kCycle,
      closed ? fmt::format("users = {:.0f}", rate_or_users)
             : fmt::format("per_second = {:.6f}", rate_or_users),
      count, prompt, answer, sequences);
}

std::string number(double v) { return std::isnan(v) ? "n/a" : fmt::format("{:.4g}", v); }

}  // namespace

FeedbackRow feedback_row(std::vector<std::string> condition, const CoupledRun& run,
                         const RoutingTrace& plain) {
  FeedbackRow out;
  out.condition = std::move(condition);
  const auto& peak = run.data.totals.gpu_memory_peak;
  SWITCHYARD_ASSERT(!peak.empty(), "a run has GPUs");
  out.hot_gb = static_cast<double>(*std::max_element(peak.begin(), peak.end())) * 1e-9;
  out.mean_gb = static_cast<double>(std::accumulate(peak.begin(), peak.end(), std::uint64_t{0})) *
                1e-9 / static_cast<double>(peak.size());
  out.load_cv = coupled::metric_of(run.data, "load_cv");
  const coupled::Changes changes = coupled::changed_decisions(plain, run.outcome.trace);
  out.flips = 1000.0 * static_cast<double>(changes.changed) / static_cast<double>(changes.compared);
  const double places =
      static_cast<double>(run.data.inventory.moe_layers.size()) * run.data.inventory.experts;
  double assignments = 0, tokens = 0, steps = 0, more = 0;
  for (const run::StepScalars& s : run.data.steps) {
    if (s.warmup || s.tokens == 0) continue;
    assignments += static_cast<double>(s.assignments);
    tokens += static_cast<double>(s.tokens);
    steps += 1;
    const double k =
        static_cast<double>(s.assignments) /
        (static_cast<double>(s.tokens) * static_cast<double>(run.data.inventory.moe_layers.size()));
    more += k > run.data.inventory.top_k + 1e-9 ? 1 : 0;
  }
  out.expert_fraction = assignments / (tokens * places);
  out.experts_per_token = run.data.inventory.top_k;
  out.busiest = more / steps;
  out.p99_std_ms = out.jitter_ms = kNaN;
  for (const run::Metric& m : run.data.metrics) {
    if (m.name == "ITL p99 std") out.p99_std_ms = m.value;
    if (m.name == "ITL jitter") out.jitter_ms = m.value;
  }
  out.rounds = run.outcome.rounds.size();
  out.converged = run.outcome.converged;
  return out;
}

claims::Measurements measure_load_aware(const FeedbackRun& run) {
  claims::Measurements out;
  const FeedbackRow& none = row_of(run, {"by_expert", "none", "0"});
  for (const std::string u : {"total", "elastic", "queue"}) {
    const FeedbackRow& with = row_of(run, {"by_expert", u, "0.8"});
    // Queues need a capacity, which moves tokens by itself.
    const FeedbackRow& base = u == "queue" ? row_of(run, {"by_expert", u, "0"}) : none;
    const double left = with.hot_gb - with.mean_gb, whole = base.hot_gb - base.mean_gb;
    if (!(whole > 0)) throw InputError("load-aware", "there is no hot GPU to relieve");
    out.add("excess." + u, left / whole,
            fmt::format("hottest GPU above the mean: {:.4g} GB, without {:.4g} GB", left, whole));
  }
  return out;
}

claims::Measurements measure_decode_rebalance(const FeedbackRun& run) {
  claims::Measurements out;
  std::vector<double> at, std_ms, jitter_at, jitter_ms;
  for (const auto& [level, place] : {std::pair{"off", 0.0}, {"0.85", 85.0}, {"0.80", 80.0}}) {
    const auto it = std::find_if(run.rows.begin(), run.rows.end(), [&](const FeedbackRow& r) {
      return r.condition == std::vector<std::string>{level};
    });
    if (it == run.rows.end()) continue;
    if (!std::isnan(it->p99_std_ms) && place != 80) {
      at.push_back(place);
      std_ms.push_back(it->p99_std_ms);
    }
    if (!std::isnan(it->jitter_ms) && place == 80) {
      jitter_at.push_back(place);
      jitter_ms.push_back(it->jitter_ms);
    }
  }
  out.add_series("p99_std", at, std_ms,
                 "population std over windows of 10 s of the window's ITL p99");
  out.add_series("jitter", jitter_at, jitter_ms, "std of an answer's ITL, median over requests");
  return out;
}

claims::Measurements measure_queue_limits(const FeedbackRun& run) {
  claims::Measurements out;
  const FeedbackRow& none = row_of(run, {"none", "1.2"});
  const double base = none.expert_fraction;
  for (const std::string k3 : {"activate", "choose"}) {
    const double ratio = row_of(run, {k3, "1.2"}).expert_fraction / base;
    out.add("rise." + k3, ratio,
            fmt::format("expert_fraction at 1.2 of saturation over {:.4g} %", 100 * base));
  }
  out.add("rise.most", 3.0 / none.experts_per_token,
          fmt::format("three experts in place of {}, for every token", none.experts_per_token));
  return out;
}

std::vector<Table> feedback_tables(const std::string& name, const FeedbackRun& run,
                                   const std::vector<claims::Judged>& judged) {
  Table t;
  t.name = name;
  t.title = name == "load-aware" ? "M04, coupled: memory of the GPUs under a penalty on the logits"
            : name == "decode-rebalance" ? "M13, coupled: variation of the time between tokens"
                                         : "M12, coupled: activation under load";
  t.columns = run.columns;
  const bool memory = name != "queue-limits", latency = name == "decode-rebalance",
             activation = name == "queue-limits";
  if (memory) {
    for (const char* c : {"hottest GPU [GB]", "mean GPU [GB]"}) t.columns.emplace_back(c);
  }
  if (latency) {
    for (const char* c : {"ITL p99 std [ms]", "ITL jitter [ms]"}) t.columns.emplace_back(c);
  }
  if (activation) {
    for (const char* c : {"expert_fraction [%]", "steps with k above 2 [%]"}) {
      t.columns.emplace_back(c);
    }
  }
  for (const char* c : {"load_cv", "flips per 1000 decisions", "rounds", "converged"}) {
    t.columns.emplace_back(c);
  }
  for (const FeedbackRow& r : run.rows) {
    std::vector<std::string> row = r.condition;
    if (memory) {
      row.push_back(number(r.hot_gb));
      row.push_back(number(r.mean_gb));
    }
    if (latency) {
      row.push_back(number(r.p99_std_ms));
      row.push_back(number(r.jitter_ms));
    }
    if (activation) {
      row.push_back(number(100 * r.expert_fraction));
      row.push_back(number(100 * r.busiest));
    }
    row.push_back(number(r.load_cv));
    row.push_back(number(r.flips));
    row.push_back(fmt::to_string(r.rounds));
    row.emplace_back(r.converged ? "yes" : "no");
    t.rows.push_back(std::move(row));
  }
  t.notes = run.notes;
  if (name != "load-aware") {
    t.notes.emplace_back(
        "saturation is the rate of a closed loop, ramp and drain included, where claims.md asks "
        "for "
        "the highest open rate whose queue stays bounded");
  }
  t.notes.emplace_back("one seed");
  t.notes.emplace_back(
      "a decision is the set of experts of a token in a MoE layer; flips: against the engine's run "
      "without a policy; not converged: the numbers are of the last round");
  std::vector<Table> out = {std::move(t)};
  out.push_back(claims_table(name, judged));
  out.push_back(verdicts_table(name, judged));
  return out;
}

std::vector<Table> make_load_aware(const TableContext& context) {
  const Bench bench(context, context.quick ? 16 : 64);
  const auto text = [&](const std::string& kv, const std::string& policy) {
    return s0_text(fmt::format("[workload]\nkind = \"decode\"\nbatch = {}\ncontext = 256\nsteps = "
                               "4\nwarmup_steps = 1\n{}",
                               bench.prompts(), kCycle),
                   kv, policy);
  };
  FeedbackRun run;
  run.columns = {"KV", "u", "lambda"};
  const std::vector<std::string> lambdas = context.quick
                                               ? std::vector<std::string>{"0.8"}
                                               : std::vector<std::string>{"0.3", "0.8", "8", "80"};
  for (const std::string kv : {"by_sequence", "by_expert"}) {
    const std::string cap = "capacity = { rule = \"share\", factor = 1.25 }";
    run.rows.push_back(feedback_row({kv, "none", "0"}, bench.run(text(kv, "")), bench.plain()));
    for (const std::string u : {"total", "elastic", "queue"}) {
      if (u == "queue") {
        run.rows.push_back(feedback_row({kv, u, "0"}, bench.run(text(kv, cap)), bench.plain()));
      }
      for (const std::string& lambda : lambdas) {
        const std::string policy = fmt::format("load_aware = {{ u = \"{}\", lambda = {} }}\n{}", u,
                                               lambda, u == "queue" ? cap : "");
        run.rows.push_back(
            feedback_row({kv, u, lambda}, bench.run(text(kv, policy)), bench.plain()));
      }
    }
  }
  run.notes.push_back(fmt::format(
      "decode({}, 256), 4 steps after 1, where claims.md asks for 64 after 16; u = queue comes "
      "with "
      "capacity share 1.25, which makes the queues, and is compared with lambda 0 under it",
      bench.prompts()));
  run.notes.emplace_back(
      "activations of 64 tokens on one GPU are 18.4 MB, 2.3e-4 of 80 GB: without keys and values "
      "that follow the routing, lambda 0.8 moves a logit by at most 1.8e-4");
  return feedback_tables("load-aware", run,
                         claims::judge(claims::claims_of("load-aware"), measure_load_aware(run)));
}

std::vector<Table> make_decode_rebalance(const TableContext& context) {
  constexpr int kPrompt = 256, kAnswers = 64, kSequences = 8, kGpus = 16;
  const Bench bench(context, context.quick ? 16 : 64);
  FeedbackRun run;
  run.columns = {"M13 above"};
  const double seconds = context.quick ? 15 : 310;
  const std::string kv = "by_sequence";
  const double most = coupled::metric_of(
      bench.alone(s0_text(requests(true, kSequences * kGpus, context.quick ? 128 : 512, kPrompt,
                                   kAnswers, kSequences),
                          kv, "")),
      "requests per second");
  const double rate = 0.85 * most;
  const auto count = static_cast<std::uint64_t>(std::ceil(rate * seconds));
  for (const std::string level : {"off", "0.85", "0.80"}) {
    const std::string policy =
        level == "off" ? "" : fmt::format("decode_rebalance = {{ level = {} }}", level);
    run.rows.push_back(feedback_row(
        {level},
        bench.run(s0_text(requests(false, rate, count, kPrompt, kAnswers, kSequences), kv, policy)),
        bench.plain()));
  }
  run.notes.push_back(fmt::format(
      "saturation {:.4g} requests/s; {} requests at 0.85 of it, {} + {} tokens; keys and values by "
      "sequence, because the simulator refuses other places for requests that arrive",
      most, count, kPrompt, kAnswers));
  return feedback_tables(
      "decode-rebalance", run,
      claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(run)));
}

std::vector<Table> make_queue_limits(const TableContext& context) {
  constexpr int kPrompt = 512, kAnswers = 256, kSequences = 64;
  const Bench bench(context, context.quick ? 16 : 64);
  const double most = coupled::metric_of(
      bench.alone(s1_text(requests(true, kSequences, context.quick ? 64 : 256, kPrompt,
                                   context.quick ? 32 : kAnswers, kSequences),
                          "")),
      "requests per second");
  FeedbackRun run;
  run.columns = {"third expert", "load"};
  const std::vector<std::string> loads = context.quick
                                             ? std::vector<std::string>{"1.2"}
                                             : std::vector<std::string>{"0.5", "0.8", "1.0", "1.2"};
  for (const std::string k3 : {"none", "activate", "choose"}) {
    for (const std::string& load : loads) {
      const double rate = std::strtod(load.c_str(), nullptr) * most;
      const auto count = context.quick ? 64 : static_cast<std::uint64_t>(std::ceil(rate * 140.0));
      const std::string policy =
          k3 == "none" ? "" : fmt::format("soft_balance = {{ limit = 128, k3 = \"{}\" }}", k3);
      run.rows.push_back(feedback_row(
          {k3, load},
          bench.run(s1_text(
              requests(false, rate, count, kPrompt, context.quick ? 32 : kAnswers, kSequences),
              policy)),
          bench.plain()));
    }
  }
  run.notes.push_back(fmt::format("saturation {:.4g} requests/s; load 1 is that rate", most));
  run.notes.emplace_back(
      "expert_fraction is the mean of the whole run, its first seconds included, where claims.md "
      "asks for each second after the first 20: a rise at the peak is larger");
  run.notes.emplace_back(
      "k = 2 of 16 experts is 12.5 %, not 2 %; a third expert makes any such rate 1.5 times as "
      "large "
      "at most: 2 % becomes 3 %, and 5 % is out of reach");
  return feedback_tables(
      "queue-limits", run,
      claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(run)));
}

}  // namespace switchyard::tables
