// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/batch_activation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/sampling.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::array<std::uint32_t, 6> kBatches{1, 4, 8, 16, 32, 64};
constexpr std::array<std::uint32_t, 3> kQuickBatches{1, 4, 8};
constexpr std::uint32_t kSteps = 64, kQuickSteps = 16;

double floor_of(double experts, double top_k, double window) {
  return std::sqrt((1.0 - top_k / experts) / (window * top_k / experts));
}

double load_cv(std::span<const std::uint64_t> load) {
  double sum = 0;
  double squares = 0;
  for (const std::uint64_t n : load) {
    const auto v = static_cast<double>(n);
    sum += v;
    squares += v * v;
  }
  const double mean = sum / static_cast<double>(load.size());
  return std::sqrt(std::max(0.0, squares / static_cast<double>(load.size()) - mean * mean)) / mean;
}

/// Sums over the steps of a run.
class Tally {
 public:
  explicit Tally(const Engine& engine)
      : config_(engine.config()),
        dtype_(model::default_dtypes(engine.config())),
        experts_(engine.gate().experts),
        run_load_(config_.num_moe_layers() * experts_, 0) {}

  void add(const StepResult& r) {
    model::StepActivity activity;
    activity.tokens = r.tokens();
    for (std::size_t l = 0; l < r.layers.size(); ++l) {
      const LayerDecision& d = r.layers[l].decision;
      activity.accepted += d.kept + d.rerouted;
      const std::vector<std::uint64_t> load(d.load.begin(), d.load.end());
      double entropy = 0;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        run_load_[l * experts_ + e] += load[e];
        if (load[e] > 0) {
          ++activity.touched_experts;
          const double p = static_cast<double>(load[e]) / static_cast<double>(d.kept + d.rerouted);
          entropy -= p * std::log2(p);
        }
      }
      entropy_ += entropy / std::log2(static_cast<double>(experts_));
      cv_ += load_cv(load);
      variance_ += id_variance(d);
      ++layer_steps_;
    }
    const auto rates = model::activation_rates(config_, dtype_, activity);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      sums_[i] += rates.*model::activation_definitions()[i].value;
    }
    ++steps_;
    tokens_ += r.tokens();
  }

  [[nodiscard]] BatchRow row(std::uint32_t batch) const {
    BatchRow out;
    out.batch = batch;
    out.steps = steps_;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      out.rates.*model::activation_definitions()[i].value = sums_[i] / steps_;
    }
    const auto n = static_cast<double>(layer_steps_);
    out.index_variance = variance_ / n;
    out.cv_step = cv_ / n;
    out.entropy = entropy_ / n;
    const std::size_t layers = run_load_.size() / experts_;
    for (std::size_t l = 0; l < layers; ++l) {
      out.cv_run += load_cv(std::span(run_load_).subspan(l * experts_, experts_)) /
                    static_cast<double>(layers);
    }
    const auto k = static_cast<double>(config_.top_k);
    out.cv_step_floor = floor_of(experts_, k, batch);
    out.cv_run_floor = floor_of(experts_, k, static_cast<double>(tokens_));
    return out;
  }

 private:
  static double id_variance(const LayerDecision& d) {
    double sum = 0;
    double squares = 0;
    double n = 0;
    for (const std::uint16_t id : d.chosen) {
      if (id != kNoExpert) {
        sum += id;
        squares += static_cast<double>(id) * id;
        n += 1;
      }
    }
    const double mean = sum / n;
    return squares / n - mean * mean;
  }

  const model::ModelConfig& config_;
  model::DTypeChoice dtype_;
  std::uint32_t experts_;
  std::vector<std::uint64_t> run_load_;  // [L][E]
  std::array<double, 8> sums_{};
  double variance_ = 0, cv_ = 0, entropy_ = 0;
  std::uint64_t layer_steps_ = 0, tokens_ = 0;
  std::uint32_t steps_ = 0;
};

std::vector<Table> judged_tables(const BatchRun& run, const std::vector<claims::Claim>& claims) {
  const auto judged = claims::judge(claims, measure_batch_activation(run, claims));
  return {claims_table("batch-activation", judged), verdicts_table("batch-activation", judged)};
}

/// Prompts of the file, one of each domain in turn (domains in order of appearance).
std::vector<cli::PromptText> round_robin(const std::vector<cli::PromptText>& prompts) {
  std::vector<std::string> domains;
  for (const auto& p : prompts) {
    if (std::find(domains.begin(), domains.end(), p.domain) == domains.end()) {
      domains.push_back(p.domain);
    }
  }
  std::vector<std::size_t> next(domains.size(), 0);
  std::vector<cli::PromptText> out;
  while (out.size() < prompts.size()) {
    for (std::size_t d = 0; d < domains.size(); ++d) {
      while (next[d] < prompts.size() && prompts[next[d]].domain != domains[d]) {
        ++next[d];
      }
      if (next[d] < prompts.size()) {
        out.push_back(prompts[next[d]++]);
      }
    }
  }
  return out;
}

}  // namespace

BatchRow decode_batch(const Engine& engine, std::span<const TokenPrompt> prompts,
                      std::uint32_t steps) {
  SWITCHYARD_ASSERT(!prompts.empty() && steps >= 1 && engine.gate().experts > 0,
                    fmt::format("{} prompts, {} steps", prompts.size(), steps));
  Session session(engine, {});
  std::vector<SequenceTokens> work;
  for (const TokenPrompt& prompt : prompts) {
    work.push_back({session.add_sequence(), prompt});
  }
  const StepResult* r = &session.step(work, Phase::kPrefill);
  std::vector<std::uint32_t> token(prompts.size());
  Tally tally(engine);
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::uint32_t s = work[i].sequence;
      token[i] = sample(r->logits_of(i), {}, s, static_cast<std::uint32_t>(session.length(s)));
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      work[i].tokens = std::span(token).subspan(i, 1);
    }
    r = &session.step(work, Phase::kDecode);
    tally.add(*r);
  }
  return tally.row(static_cast<std::uint32_t>(prompts.size()));
}

BatchRun run_batches(const Engine& engine, std::span<const TokenPrompt> prompts,
                     std::span<const std::uint32_t> batches, std::uint32_t steps) {
  BatchRun run;
  run.experts = engine.gate().experts;
  run.top_k = engine.gate().top_k;
  run.subject = engine.config().name;
  if (engine.checkpoint() != nullptr) {
    run.subject += fmt::format(", weights {}", engine.checkpoint()->weight_hash().hex());
  }
  for (const std::uint32_t b : batches) {
    SWITCHYARD_ASSERT(b <= prompts.size(), fmt::format("{} of {} prompts", b, prompts.size()));
    run.distinct.push_back(decode_batch(engine, prompts.first(b), steps));
    const std::vector<TokenPrompt> same(b, prompts.front());
    run.copies.push_back(decode_batch(engine, same, steps));
  }
  return run;
}

claims::Measurements measure_batch_activation(const BatchRun& run,
                                              const std::vector<claims::Claim>& claims) {
  claims::Measurements out;
  std::vector<double> at;
  at.reserve(run.distinct.size());
  for (const BatchRow& row : run.distinct) {
    at.push_back(row.batch);
  }
  const auto series = [&](const std::string& quantity, const std::vector<BatchRow>& rows,
                          const std::string& how, const auto& value) {
    std::vector<double> values;
    values.reserve(rows.size());
    for (const BatchRow& row : rows) {
      values.push_back(value(row));
    }
    out.add_series(quantity, at, values, how);
  };
  for (const auto& d : model::activation_definitions()) {
    series("activation." + d.name, run.distinct, "mean over decode steps, distinct prompts",
           [&](const BatchRow& row) { return 100.0 * (row.rates.*d.value); });
  }
  const auto variance = [](const BatchRow& row) { return row.index_variance; };
  series("index_variance.distinct prompts", run.distinct, "mean over decode steps and layers",
         variance);
  series("index_variance.copies of one prompt", run.copies, "mean over decode steps and layers",
         variance);
  std::vector<double> points;
  std::vector<double> saving;
  for (const auto& claim : claims) {
    if (claim.row.starts_with("C06a-expert_fraction@")) {
      points.push_back(*claim.at);
      saving.push_back(100.0 - claim.value);
    }
  }
  out.add_series("saving", points, saving, "100 - the article's activation");
  return out;
}

std::vector<Table> batch_activation_tables(const BatchRun& run,
                                           const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "batch-activation";
  t.title = "batch size, activation and expert variance in decode steps";
  t.columns = {"prompts", "B"};
  for (const auto& d : model::activation_definitions()) {
    t.columns.push_back(d.name + " [%]");
  }
  for (const char* column : {"index_variance", "load_cv(W=B)", "floor(W=B)", "entropy(W=B)",
                             "load_cv(W=run)", "floor(W=run)", "W=run [tokens]"}) {
    t.columns.emplace_back(column);
  }
  const auto add = [&](const char* name, const std::vector<BatchRow>& rows) {
    for (const BatchRow& r : rows) {
      std::vector<std::string> cells = {name, fmt::to_string(r.batch)};
      for (const auto& d : model::activation_definitions()) {
        const double v = 100.0 * (r.rates.*d.value);
        cells.push_back(std::isnan(v) ? "n/a" : fmt::format("{:.2f}", v));
      }
      for (const double v :
           {r.index_variance, r.cv_step, r.cv_step_floor, r.entropy, r.cv_run, r.cv_run_floor}) {
        cells.push_back(fmt::format("{:.3f}", v));
      }
      cells.push_back(fmt::to_string(std::uint64_t{r.batch} * r.steps));
      t.rows.push_back(std::move(cells));
    }
  };
  add("distinct", run.distinct);
  add("copies", run.copies);
  const double e = run.experts;
  const double k = run.top_k;
  t.notes.push_back(
      fmt::format("{}; E = {}, k = {}; greedy, {} decode steps, engine in closed loop", run.subject,
                  run.experts, run.top_k, run.distinct.front().steps));
  t.notes.push_back(fmt::format(
      "expected touched_fraction of B independent uniform tokens: 1 - (1 - k/E)^B; index_variance "
      "of uniform ids (E^2 - 1)/12 = {}, at most ((E - 1)/2)^2 = {}",
      show((e * e - 1) / 12), show((e - 1) * (e - 1) / 4)));
  for (const auto& claim : claims) {
    if (claim.row == "C06a-expert_fraction@1") {
      t.notes.push_back(fmt::format(
          "{} % at B = 1 would need E = {} at k = {}; a token of this model touches {} %",
          claim.printed, show(std::round(100.0 * k / claim.value)), run.top_k,
          show(100.0 * k / e)));
    }
    if (claim.row == "C06b-distinct_prompts@1") {
      t.notes.push_back(
          fmt::format("index_variance depends on how experts are numbered: {} at B = 1 only says "
                      "that two ids differ by {:.1f}; load_cv and entropy do not",
                      claim.printed, 2.0 * std::sqrt(claim.value)));
    }
  }
  t.notes.emplace_back(
      "load_cv = std / mean of assignments per expert; floor = sqrt((1 - k/E) / (W k/E)); entropy "
      "= "
      "of the load of a step / log2(E); slot_occupancy needs a capacity, there is none");
  std::vector<Table> out = {std::move(t)};
  for (Table& table : judged_tables(run, claims)) {
    out.push_back(std::move(table));
  }
  return out;
}

std::vector<Table> make_batch_activation(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const auto texts = round_robin(cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl"));
  const Engine engine = Engine::load(folder, {context.threads});
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  std::vector<TokenPrompt> prompts;
  prompts.reserve(texts.size());
  for (const auto& p : texts) {
    prompts.push_back(tokenizer.encode(p.text));
  }
  const std::span<const std::uint32_t> batches =
      context.quick ? std::span<const std::uint32_t>(kQuickBatches) : kBatches;
  if (prompts.size() < batches.back()) {
    throw InputError("prompts/mixed.jsonl", fmt::format("has {} prompts; the table needs {}",
                                                        prompts.size(), batches.back()));
  }
  auto tables = batch_activation_tables(
      run_batches(engine, prompts, batches, context.quick ? kQuickSteps : kSteps),
      claims::claims_of("batch-activation"));
  if (context.quick) {
    tables.front().notes.emplace_back(
        "quick: smaller batches and fewer steps; points of the claim that were not measured are "
        "left out");
  }
  return tables;
}

}  // namespace switchyard::tables
