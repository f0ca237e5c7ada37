// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/feedback.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "experiments/cli/trace.hpp"
#include "experiments/tables/scratch_folder.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;
using coupled::CoupledRun;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint32_t kRounds = 5, kAnswer = 6;
constexpr double kProbe = 60, kWarmUp = 20;  // Seconds.

/// The shipped checkpoint, prompts of the mixed set, and a trace without a policy.
class Bench {
 public:
  Bench(const TableContext& context, std::size_t prompts, std::uint32_t answer, std::uint64_t seeds)
      : context_(context),
        engine_(Engine::load(context.scenarios / "checkpoints" / "sy-16x2",
                             {.threads = context.threads})) {
    const auto tokenizer = model::Tokenizer::load(context.scenarios / "checkpoints" / "sy-16x2");
    prompts_ = cli::read_trace_prompts(context.scenarios / "prompts" / "mixed.jsonl", answer, {},
                                       engine_, tokenizer);
    if (prompts_.size() > prompts) prompts_.resize(prompts);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      TraceRunOptions run;
      run.batch = static_cast<std::uint32_t>(prompts_.size());
      run.seed = run.sampling.seed = seed;
      const fs::path file = scratch_.folder() / "plain.h5";
      (void)record_trace(engine_, prompts_, run, file);
      plain_.push_back(read_trace(file));
    }
  }
  [[nodiscard]] CoupledRun run(const std::string& text) const {
    return coupled::run_coupled(engine_, prompts_, text, kRounds, context_.scenarios,
                                scratch_.folder());
  }
  [[nodiscard]] run::RunData alone(const std::string& text) const {
    return coupled::run_alone(plain_.front(), text, context_.scenarios);
  }
  /// One row per seed; `text` makes the scenario of a seed.
  template <typename Text>
  void add(FeedbackRun& out, const std::vector<std::string>& condition, const Text& text,
           double from_s = 0, double to_s = 0) const {
    for (std::size_t i = 0; i < plain_.size(); ++i) {
      out.rows.push_back(feedback_row(condition, i + 1, run(text(i + 1)), plain_[i], from_s, to_s));
    }
  }
  [[nodiscard]] std::size_t prompts() const { return prompts_.size(); }

 private:
  TableContext context_;
  ScratchFolder scratch_;
  Engine engine_;
  std::vector<TracePrompt> prompts_;
  std::vector<RoutingTrace> plain_;  // By seed.
};

/// The rows of a condition, by seed.
std::vector<const FeedbackRow*> rows_of(const FeedbackRun& run,
                                        const std::vector<std::string>& condition) {
  std::vector<const FeedbackRow*> out;
  for (const FeedbackRow& r : run.rows) {
    if (r.condition == condition) out.push_back(&r);
  }
  if (out.empty()) {
    throw InputError("table", fmt::format("no run of {}", fmt::join(condition, ", ")));
  }
  return out;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/// Why the rows cannot be judged; "" when they can.
std::string doubt(const std::vector<const FeedbackRow*>& rows) {
  for (const FeedbackRow* r : rows) {
    if (!r->converged) {
      return fmt::format("not judged: {} with seed {} has not settled after {} rounds",
                         fmt::join(r->condition, ", "), r->seed, r->rounds);
    }
  }
  return {};
}

constexpr std::string_view kTail =
    "[network]\nmodel = \"bottleneck\"\n[host]\nper_step = \"500 us\"\nper_sequence = \"10 us\"\n"
    "[run]\ndetail = \"steps\"\n";

/// S0's model on the article's 16 cards.
std::string s0_text(const std::string& workload, const std::string& kv, const std::string& policy,
                    std::uint64_t seed) {
  return fmt::format(
      "[model]\nfile = \"gpt4_s0\"\ndtype = {{ experts = \"fp8\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"whatif_16x280\"\n[parallel]\nattention = \"dp\"\ndp = 16\nep = 16\n"
      "[memory]\nkv = {{ placement = \"{}\" }}\n{}{}{}seed = {}\n",
      kv, policy.empty() ? "" : "[policy]\n" + policy + "\n", workload, kTail, seed);
}

/// S1's model on eight B200.
std::string s1_text(const std::string& workload, const std::string& policy, std::uint64_t seed) {
  return fmt::format(
      "[model]\nfile = \"gpt4_s1\"\ndtype = {{ experts = \"int4\", shared = \"fp8\" }}\n"
      "[hardware]\nfile = \"hgx_b200\"\n[parallel]\nattention = \"tp\"\ntp = 8\nep = 8\n{}{}{}seed "
      "= {}\n",
      policy.empty() ? "" : "[policy]\n" + policy + "\n", workload, kTail, seed);
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

/// Median and range over the seeds.
std::string numbers(const std::vector<const FeedbackRow*>& rows, double FeedbackRow::*field,
                    double scale = 1) {
  std::vector<double> v;
  for (const FeedbackRow* r : rows) v.push_back(scale * (r->*field));
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  const std::string middle = number(median(v)), least = number(*low), most = number(*high);
  return least == most ? middle : fmt::format("{} ({} to {})", middle, least, most);
}

/// Of saturation_rate() on seed 1; `text` makes the scenario of a rate and a count.
template <typename Text>
Saturation saturation(const Bench& bench, double closed, const Text& text) {
  return saturation_rate(closed, [&](double rate) {
    const run::RunData data =
        // A few more: arrivals of the number that is expected may be over before the time is.
        bench.alone(text(rate, static_cast<std::uint64_t>(std::ceil(1.25 * rate * kProbe))));
    return queue_is_bounded(data.requests, kProbe);
  });
}

/// What a table says of its saturation rate.
std::string describe(const Saturation& s) {
  return fmt::format(
      " (the highest of {} probed rates whose queue does not grow within {:.0f} s of arrivals; at "
      "{:.4g} it does; queues that take longer to grow are not seen: the true rate may be lower)",
      s.probes, kProbe, s.beyond);
}

}  // namespace

bool queue_is_bounded(const std::vector<run::RequestRecord>& requests, double seconds) {
  // Waiting requests at each second, summed over a third of the time.
  const auto waiting = [&](double from, double to) {
    double sum = 0;
    int times = 0;
    for (double t = from; t < to; t += 1, ++times) {
      const auto now = static_cast<std::int64_t>(t * 1e12);
      for (const run::RequestRecord& r : requests) {
        if (r.arrival_ps <= now && (r.scheduled_ps < 0 || r.scheduled_ps > now)) sum += 1;
      }
    }
    return sum / times;
  };
  return waiting(2 * seconds / 3, seconds) <= 1.05 * waiting(seconds / 3, 2 * seconds / 3) + 0.5;
}

Saturation saturation_rate(double closed, const std::function<bool(double)>& bounded) {
  constexpr int kWiden = 6, kHalve = 6;
  Saturation s;
  const auto probe = [&](double rate) {
    ++s.probes;
    return bounded(rate);
  };
  double low = 0.6 * closed, high = 1.4 * closed;
  int tries = 0;
  while (!probe(low)) {
    if (++tries > kWiden) {
      throw InputError("table", fmt::format("the queue grows even at {:.4g} requests/s", low));
    }
    high = low;
    low /= 2;
  }
  // Below it a rate has been probed already whose queue grows.
  for (tries = 0; high > closed && probe(high);) {
    if (++tries > kWiden) {
      throw InputError("table",
                       fmt::format("the queue is bounded even at {:.4g} requests/s", high));
    }
    low = high;
    high *= 1.5;
  }
  for (int i = 0; i < kHalve; ++i) {
    const double rate = (low + high) / 2;
    (probe(rate) ? low : high) = rate;
  }
  s.rate = low;
  s.beyond = high;
  return s;
}

FeedbackRow feedback_row(std::vector<std::string> condition, std::uint64_t seed,
                         const CoupledRun& run, const RoutingTrace& plain, double from_s,
                         double to_s) {
  FeedbackRow out;
  out.condition = std::move(condition);
  out.seed = seed;
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
  std::map<std::int64_t, std::pair<double, double>> seconds;  // Assignments, tokens.
  for (const run::StepScalars& s : run.data.steps) {
    if (s.warmup || s.tokens == 0) continue;
    assignments += static_cast<double>(s.assignments);
    tokens += static_cast<double>(s.tokens);
    steps += 1;
    const double end_s = static_cast<double>(s.end_ps) * 1e-12;
    if (end_s >= from_s && end_s < to_s) {
      auto& second = seconds[static_cast<std::int64_t>(end_s)];
      second.first += static_cast<double>(s.assignments);
      second.second += static_cast<double>(s.tokens);
    }
    const double k =
        static_cast<double>(s.assignments) /
        (static_cast<double>(s.tokens) * static_cast<double>(run.data.inventory.moe_layers.size()));
    more += k > run.data.inventory.top_k + 1e-9 ? 1 : 0;
  }
  out.expert_fraction = out.most_fraction = assignments / (tokens * places);
  if (!seconds.empty()) {
    out.expert_fraction = out.most_fraction = 0;
    for (const auto& [second, sums] : seconds) {
      const double fraction = sums.first / (sums.second * places);
      out.expert_fraction += fraction / static_cast<double>(seconds.size());
      out.most_fraction = std::max(out.most_fraction, fraction);
    }
  }
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

namespace {

/// A direction that not all seeds agree on is none. `change`: with the policy less without, by
/// seed.
void note_noise(claims::Measurements& out, const std::string& quantity,
                const std::vector<double>& change) {
  const auto up = std::count_if(change.begin(), change.end(), [](double c) { return c > 0; });
  const auto down = std::count_if(change.begin(), change.end(), [](double c) { return c < 0; });
  if (up > 0 && down > 0) {
    out.no_trend(quantity, fmt::format("no direction: up with {} of {} seeds, down with {}", up,
                                       change.size(), down));
  }
}

}  // namespace

claims::Measurements measure_load_aware(const FeedbackRun& run) {
  claims::Measurements out;
  const auto none = rows_of(run, {"by_expert", "none", "0"});
  for (const std::string u : {"total", "elastic", "queue"}) {
    const auto with = rows_of(run, {"by_expert", u, "0.8"});
    // Queues need a capacity, which moves tokens by itself.
    const auto base = u == "queue" ? rows_of(run, {"by_expert", u, "0"}) : none;
    const std::string unsettled = doubt(with).empty() ? doubt(base) : doubt(with);
    if (!unsettled.empty()) {
      out.add_undecided("excess." + u, unsettled);
      continue;
    }
    std::vector<double> left, whole, share;
    for (std::size_t i = 0; i < std::min(with.size(), base.size()); ++i) {
      left.push_back(with[i]->hot_gb - with[i]->mean_gb);
      whole.push_back(base[i]->hot_gb - base[i]->mean_gb);
      if (!(whole.back() > 0)) throw InputError("load-aware", "there is no hot GPU to relieve");
      share.push_back(left.back() / whole.back());
    }
    out.add("excess." + u, median(share),
            fmt::format("hottest GPU above the mean: {:.4g} GB, without {:.4g} GB", median(left),
                        median(whole)));
    for (double& v : share) v -= 1;
    note_noise(out, "excess." + u, share);
  }
  return out;
}

claims::Measurements measure_decode_rebalance(const FeedbackRun& run) {
  claims::Measurements out;
  const auto add =
      [&](const std::string& quantity, double FeedbackRow::*field, const std::string& kv,
          const std::vector<std::pair<std::string, double>>& levels, const std::string& how) {
        std::vector<double> at, values;
        std::vector<std::vector<double>> by_seed;
        for (const auto& [level, place] : levels) {
          const auto rows = rows_of(run, {kv, level});
          std::string why = doubt(rows);
          for (const FeedbackRow* r : rows) {
            if (why.empty() && std::isnan(r->*field)) {
              why = "this run is too short: 28 windows of 10 s are the least";
            }
          }
          if (!why.empty()) {
            out.add_undecided(quantity, why);
            return;
          }
          std::vector<double> seeds;
          for (const FeedbackRow* r : rows) seeds.push_back(r->*field);
          at.push_back(place);
          values.push_back(median(seeds));
          by_seed.push_back(std::move(seeds));
        }
        out.add_series(quantity, at, values, how);
        if (by_seed.size() < 2) return;
        std::vector<double> change;
        for (std::size_t i = 0; i < by_seed.front().size(); ++i) {
          change.push_back(by_seed.back()[i] - by_seed.front()[i]);
        }
        note_noise(out, quantity, change);
      };
  for (const std::string kv : {"by_token", "by_expert"}) {
    add("p99_std." + kv, &FeedbackRow::p99_std_ms, kv, {{"off", 0}, {"0.85", 85}},
        "population std over windows of 10 s of the window's ITL p99");
    add("jitter." + kv, &FeedbackRow::jitter_ms, kv, {{"0.80", 80}},
        "std of an answer's ITL, median over requests");
  }
  return out;
}

claims::Measurements measure_queue_limits(const FeedbackRun& run) {
  claims::Measurements out;
  const auto none = rows_of(run, {"none", "1.2"});
  for (const std::string k3 : {"activate", "choose"}) {
    const auto with = rows_of(run, {k3, "1.2"});
    const std::string unsettled = doubt(with).empty() ? doubt(none) : doubt(with);
    if (!unsettled.empty()) {
      out.add_undecided("rise." + k3, unsettled);
      continue;
    }
    std::vector<double> ratio, base;
    for (std::size_t i = 0; i < std::min(with.size(), none.size()); ++i) {
      base.push_back(none[i]->expert_fraction);
      ratio.push_back(with[i]->expert_fraction / base.back());
    }
    out.add("rise." + k3, median(ratio),
            fmt::format("expert_fraction at 1.2 of saturation over {:.4g} %", 100 * median(base)));
    for (double& v : ratio) v -= 1;
    note_noise(out, "rise." + k3, ratio);
  }
  out.add("rise.most", 3.0 / none.front()->experts_per_token,
          fmt::format("three experts in place of {}, for every token",
                      none.front()->experts_per_token));
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
    for (const char* c :
         {"expert_fraction [%]", "largest second [%]", "steps with k above 2 [%]"}) {
      t.columns.emplace_back(c);
    }
  }
  for (const char* c : {"load_cv", "flips per 1000 decisions", "rounds", "converged"}) {
    t.columns.emplace_back(c);
  }
  std::size_t seeds = 1;
  for (const FeedbackRow& first : run.rows) {
    if (first.seed != run.rows.front().seed) continue;
    const auto rows = rows_of(run, first.condition);
    seeds = std::max(seeds, rows.size());
    std::vector<std::string> row = first.condition;
    const auto cell = [&](double FeedbackRow::*field, double scale = 1) {
      row.push_back(numbers(rows, field, scale));
    };
    if (memory) {
      cell(&FeedbackRow::hot_gb);
      cell(&FeedbackRow::mean_gb);
    }
    if (latency) {
      cell(&FeedbackRow::p99_std_ms);
      cell(&FeedbackRow::jitter_ms);
    }
    if (activation) {
      cell(&FeedbackRow::expert_fraction, 100);
      cell(&FeedbackRow::most_fraction, 100);
      cell(&FeedbackRow::busiest, 100);
    }
    cell(&FeedbackRow::load_cv);
    cell(&FeedbackRow::flips);
    std::uint64_t rounds = 0;
    for (const FeedbackRow* r : rows) rounds = std::max(rounds, r->rounds);
    row.push_back(fmt::to_string(rounds));
    row.emplace_back(doubt(rows).empty() ? "yes" : "no: not judged");
    t.rows.push_back(std::move(row));
  }
  t.notes = run.notes;
  t.notes.push_back(seeds == 1 ? std::string("one seed")
                               : fmt::format("seeds 1 to {}: median, and range where they differ; "
                                             "rounds: the most; a direction "
                                             "that they disagree on is none",
                                             seeds));
  t.notes.emplace_back(
      "a decision is the set of experts of a token in a MoE layer; flips: against the engine's run "
      "without a policy; not converged: the numbers are of the last round");
  std::vector<Table> out = {std::move(t)};
  out.push_back(claims_table(name, judged));
  out.push_back(verdicts_table(name, judged));
  return out;
}

std::vector<Table> make_load_aware(const TableContext& context) {
  constexpr int kContext = 256;
  const int steps = context.quick ? 4 : 64, warm_up = context.quick ? 1 : 16;
  // Answers as long as the run, so that no token's routing is used twice.
  const Bench bench(context, context.quick ? 16 : 64,
                    context.quick ? kAnswer : static_cast<std::uint32_t>(steps + warm_up + 1), 1);
  const auto add = [&](FeedbackRun& run, const std::vector<std::string>& condition,
                       const std::string& policy) {
    bench.add(run, condition, [&](std::uint64_t seed) {
      return s0_text(
          fmt::format("[workload]\nkind = \"decode\"\nbatch = {}\ncontext = {}\nsteps = {}\n"
                      "warmup_steps = {}\n{}",
                      bench.prompts(), kContext, steps, warm_up, kCycle),
          condition.front(), policy, seed);
    });
  };
  FeedbackRun run;
  run.columns = {"KV", "u", "lambda"};
  const std::vector<std::string> lambdas = context.quick
                                               ? std::vector<std::string>{"0.8"}
                                               : std::vector<std::string>{"0.3", "0.8", "8", "80"};
  for (const std::string kv : {"by_sequence", "by_expert"}) {
    const std::string cap = "capacity = { rule = \"share\", factor = 1.25 }";
    add(run, {kv, "none", "0"}, "");
    for (const std::string u : {"total", "elastic", "queue"}) {
      if (u == "queue") add(run, {kv, u, "0"}, cap);
      for (const std::string& lambda : lambdas) {
        add(run, {kv, u, lambda},
            fmt::format("load_aware = {{ u = \"{}\", lambda = {} }}\n{}", u, lambda,
                        u == "queue" ? cap : ""));
      }
    }
  }
  run.notes.push_back(fmt::format(
      "decode({}, {}), {} steps after {}{}; u = queue comes with capacity share 1.25, which makes "
      "the queues, and is compared with lambda 0 under it",
      bench.prompts(), kContext, steps, warm_up,
      context.quick ? ", where claims.md asks for 64 after 16 of 64 sequences" : ""));
  run.notes.emplace_back(
      "activations of 64 tokens on one GPU are 18.4 MB, 2.3e-4 of 80 GB: without keys and values "
      "that follow the routing, lambda 0.8 moves a logit by at most 1.8e-4");
  const auto none = rows_of(run, {"by_expert", "none", "0"});
  std::vector<double> above;
  for (const FeedbackRow* r : none) above.push_back(r->hot_gb - r->mean_gb);
  run.notes.push_back(fmt::format(
      "why little or nothing is removed: (1) of {} tokens of a sequence at the end, {} ({:.1f} %) "
      "were routed while the policy acted; keys and values of the others lie where they lay; (2) u "
      "= total of the hottest of these cards of 280 GB is {:.2g} above the mean's, so lambda 0.8 "
      "moves its experts' logits by {:.2g}; (3) u = queue evens out the next step's tokens "
      "(load_cv), which is not where the most keys and values already lie",
      kContext + steps + warm_up, steps + warm_up,
      100.0 * (steps + warm_up) / (kContext + steps + warm_up), median(above) / 280,
      0.8 * median(above) / 280));
  return feedback_tables("load-aware", run,
                         claims::judge(claims::claims_of("load-aware"), measure_load_aware(run)));
}

std::vector<Table> make_decode_rebalance(const TableContext& context) {
  constexpr int kPrompt = 256, kAnswers = 64, kSequences = 8, kGpus = 16;
  const Bench bench(context, context.quick ? 16 : 64, kAnswer, context.quick ? 1 : 3);
  FeedbackRun run;
  run.columns = {"KV", "M13 above"};
  const double seconds = context.quick ? 8 : 320;
  for (const std::string kv : {"by_token", "by_expert"}) {
    const auto open = [&](double rate, std::uint64_t count, const std::string& policy,
                          std::uint64_t seed) {
      return s0_text(requests(false, rate, count, kPrompt, kAnswers, kSequences), kv, policy, seed);
    };
    const double closed = coupled::metric_of(
        bench.alone(s0_text(requests(true, kSequences * kGpus, context.quick ? 128 : 512, kPrompt,
                                     kAnswers, kSequences),
                            kv, "", 1)),
        "requests per second");
    const Saturation most = context.quick
                                ? Saturation{closed}
                                : saturation(bench, closed, [&](double rate, std::uint64_t count) {
                                    return open(rate, count, "", 1);
                                  });
    const double rate = 0.85 * most.rate;
    const auto count = static_cast<std::uint64_t>(std::ceil(rate * seconds));
    for (const std::string level : {"off", "0.85", "0.80"}) {
      const std::string policy =
          level == "off" ? "" : fmt::format("decode_rebalance = {{ level = {} }}", level);
      bench.add(run, {kv, level},
                [&](std::uint64_t seed) { return open(rate, count, policy, seed); });
    }
    run.notes.push_back(fmt::format(
        "{}: saturation {:.4g} requests/s{}; {} requests at 0.85 of it, {} + {} tokens", kv,
        most.rate, context.quick ? " (of a closed loop, ramp and drain included)" : describe(most),
        count, kPrompt, kAnswers));
  }
  double fullest = 0;
  for (const FeedbackRow& r : run.rows) {
    if (r.condition.back() == "off") fullest = std::max(fullest, r.hot_gb / 280);
  }
  run.notes.push_back(fmt::format(
      "the weights alone fill 82 % of a card, which is above 0.80 at all times; without M13 the "
      "fullest card reaches {:.1f} %, so 0.85 is passed {}; a step with prompts in it takes longer "
      "than one without, whichever experts M13 lets them choose",
      100 * fullest, fullest > 0.85 ? "at times" : "never"));
  return feedback_tables(
      "decode-rebalance", run,
      claims::judge(claims::claims_of("decode-rebalance"), measure_decode_rebalance(run)));
}

std::vector<Table> make_queue_limits(const TableContext& context) {
  constexpr int kPrompt = 512, kSequences = 64;
  const int answers = context.quick ? 32 : 256;
  const Bench bench(context, context.quick ? 16 : 64, kAnswer, context.quick ? 1 : 3);
  const auto open = [&](double rate, std::uint64_t count, const std::string& policy,
                        std::uint64_t seed) {
    return s1_text(requests(false, rate, count, kPrompt, answers, kSequences), policy, seed);
  };
  const double closed = coupled::metric_of(
      bench.alone(s1_text(
          requests(true, kSequences, context.quick ? 64 : 256, kPrompt, answers, kSequences), "",
          1)),
      "requests per second");
  const Saturation most = context.quick
                              ? Saturation{closed}
                              : saturation(bench, closed, [&](double rate, std::uint64_t count) {
                                  return open(rate, count, "", 1);
                                });
  FeedbackRun run;
  run.columns = {"third expert", "load"};
  const std::vector<std::string> loads = context.quick
                                             ? std::vector<std::string>{"1.2"}
                                             : std::vector<std::string>{"0.5", "0.8", "1.0", "1.2"};
  constexpr double kSeconds = 120;
  for (const std::string k3 : {"none", "activate", "choose"}) {
    for (const std::string& load : loads) {
      const double rate = std::strtod(load.c_str(), nullptr) * most.rate;
      const auto count =
          context.quick ? 64 : static_cast<std::uint64_t>(std::ceil(rate * (kWarmUp + kSeconds)));
      const std::string policy =
          k3 == "none" ? "" : fmt::format("soft_balance = {{ limit = 128, k3 = \"{}\" }}", k3);
      bench.add(
          run, {k3, load}, [&](std::uint64_t seed) { return open(rate, count, policy, seed); },
          context.quick ? 0 : kWarmUp, context.quick ? 0 : kWarmUp + kSeconds);
    }
  }
  run.notes.push_back(
      fmt::format("saturation {:.4g} requests/s{}; load 1 is that rate", most.rate,
                  context.quick ? " (of a closed loop, ramp and drain included)" : describe(most)));
  run.notes.emplace_back(
      context.quick
          ? "expert_fraction is of the whole run, where the full table takes each second from 20 s "
            "to 140 s"
          : "expert_fraction is the mean of the seconds from 20 s to 140 s of simulated time; the "
            "largest of them beside it");
  run.notes.emplace_back(
      "k = 2 of 16 experts is 12.5 %, not 2 %; a third expert makes any such rate 1.5 times as "
      "large at most: 2 % becomes 3 %, and 5 % is out of reach");
  return feedback_tables(
      "queue-limits", run,
      claims::judge(claims::claims_of("queue-limits"), measure_queue_limits(run)));
}

}  // namespace switchyard::tables
