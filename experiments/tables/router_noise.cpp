// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/router_noise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kBatch = 8;
constexpr std::size_t kChunk = 16;
constexpr std::size_t kQuickTexts = 24;
constexpr std::uint32_t kRun = 5;
constexpr double kStepTime = 0.05;  // seconds, the controller's clock
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<double, 4> kTemperatures{0.1, 0.5, 1.0, 1.2};
constexpr std::array<double, 2> kTaus{1.0, 1.2};

/// -ln p(next) by the logits of one row.
double nll_of(std::span<const float> logits, std::uint32_t next) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) {
    sum += std::exp(static_cast<double>(z) - top);
  }
  return top + std::log(sum) - static_cast<double>(logits[next]);
}

/// Counts of one layer.
struct LayerCounts {
  std::vector<std::uint64_t> first, load;
  std::map<std::uint32_t, std::pair<std::uint16_t, std::uint32_t>> run;  // by sequence
  std::uint64_t runs = 0;
};

double cv_of(const std::vector<std::uint64_t>& load) {
  double mean = 0;
  for (const std::uint64_t n : load) {
    mean += static_cast<double>(n);
  }
  mean /= static_cast<double>(load.size());
  double squares = 0;
  for (const std::uint64_t n : load) {
    squares += (static_cast<double>(n) - mean) * (static_cast<double>(n) - mean);
  }
  return std::sqrt(squares / static_cast<double>(load.size())) / mean;
}

const EffectRow& row_of(const EffectRun& run, const std::string& condition, double value) {
  const auto it = std::find_if(run.rows.begin(), run.rows.end(), [&](const EffectRow& r) {
    return r.condition == condition && r.value == value;
  });
  SWITCHYARD_ASSERT(it != run.rows.end(), condition);
  return *it;
}

/// Share of decisions with the same set of experts in the same order, among the first `slots`
/// slots.
double same_choice(const RoutingEffect& a, const RoutingEffect& b, std::size_t k,
                   std::size_t slots) {
  SWITCHYARD_ASSERT(a.first.size() == b.first.size() && k > 0 && slots <= a.first.size(),
                    "the same texts");
  std::uint64_t same = 0;
  for (std::size_t i = 0; i < slots; i += k) {
    same += std::equal(a.first.begin() + static_cast<std::ptrdiff_t>(i),
                       a.first.begin() + static_cast<std::ptrdiff_t>(i + k),
                       b.first.begin() + static_cast<std::ptrdiff_t>(i))
                ? 1U
                : 0U;
  }
  return static_cast<double>(same) * static_cast<double>(k) / static_cast<double>(slots);
}

double mean_first_weight(const RoutingEffect& a, std::size_t k) {
  double sum = 0;
  for (std::size_t i = 0; i < a.weights.size(); i += k) {
    sum += static_cast<double>(
        *std::max_element(a.weights.begin() + static_cast<std::ptrdiff_t>(i),
                          a.weights.begin() + static_cast<std::ptrdiff_t>(i + k)));
  }
  return sum * static_cast<double>(k) / static_cast<double>(a.weights.size());
}

EffectRun start(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts) {
  EffectRun out;
  out.subject =
      fmt::format("{}, weights {}", engine.config().name, engine.checkpoint()->weight_hash().hex());
  out.experts = engine.gate().experts;
  out.top_k = engine.gate().top_k;
  out.plain = routing_effect(engine, texts, {}, kBatch, kChunk);
  return out;
}

RoutingPolicy with_temperature(TemperaturePlace place, double value) {
  RoutingPolicy policy;
  if (value != 1) {  // T = 1 changes nothing, and a policy that says so is refused
    policy.temperature.place = place;
    policy.temperature.value = value;
  }
  return policy;
}

std::vector<Table> make(const std::string& name, const TableContext& context,
                        EffectRun (*run)(const Engine&,
                                         std::span<const std::vector<std::uint32_t>>),
                        claims::Measurements (*measure)(const EffectRun&)) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  std::vector<std::vector<std::uint32_t>> texts;
  for (const auto& p : cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl")) {
    texts.push_back(tokenizer.encode(p.text));
  }
  if (context.quick && texts.size() > kQuickTexts) {
    texts.resize(kQuickTexts);
  }
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const EffectRun result = run(engine, texts);
  auto tables =
      effect_tables(name, result, claims::judge(claims::claims_of(name), measure(result)));
  if (context.quick) {
    tables.front().notes.push_back(fmt::format("quick: the first {} prompts only", kQuickTexts));
  }
  return tables;
}

}  // namespace

RoutingEffect routing_effect(const Engine& engine,
                             std::span<const std::vector<std::uint32_t>> texts,
                             const RoutingPolicy& policy, std::size_t batch, std::size_t chunk,
                             const PolicyWeights* policy_weights) {
  const auto layers = static_cast<std::size_t>(engine.config().num_moe_layers());
  const std::uint32_t k = engine.gate().top_k;
  SWITCHYARD_ASSERT(layers > 0 && batch > 0 && chunk > 0, "a MoE model in steps");
  RoutingEffect out;
  std::vector<LayerCounts> counts(layers);
  for (LayerCounts& c : counts) {
    c.first.assign(engine.gate().experts, 0);
    c.load.assign(engine.gate().experts, 0);
  }
  std::vector<std::vector<std::uint16_t>> first(layers);
  std::vector<std::vector<float>> weights(layers);
  double nll = 0;
  Session session(engine,
                  {.policy = policy, .seed = 1, .all_logits = true, .weights = policy_weights});
  for (std::size_t begin = 0; begin < texts.size(); begin += batch) {
    const std::size_t end = std::min(texts.size(), begin + batch);
    std::vector<std::uint32_t> ids;
    std::size_t longest = 0;
    for (std::size_t i = begin; i < end; ++i) {
      SWITCHYARD_ASSERT(!texts[i].empty(), "texts are not empty");
      ids.push_back(session.add_sequence());
      longest = std::max(longest, texts[i].size());
    }
    for (std::size_t at = 0; at < longest; at += chunk) {
      std::vector<SequenceTokens> work;
      for (std::size_t i = begin; i < end; ++i) {
        if (at < texts[i].size()) {
          work.push_back({ids[i - begin],
                          std::span(texts[i]).subspan(at, std::min(chunk, texts[i].size() - at))});
        }
      }
      const StepResult& r = session.step(work, Phase::kPrefill);
      for (std::size_t t = 0; t < r.tokens(); ++t) {
        const auto& text = texts[begin + (r.sequence[t] - ids.front())];
        if (r.position[t] + 1 < text.size()) {
          nll += nll_of(r.logits_of(t), text[r.position[t] + 1]);
          ++out.predicted;
        }
      }
      out.tokens += r.tokens();
      for (std::size_t l = 0; l < layers; ++l) {
        const LayerDecision& d = r.layers[l].decision;
        first[l].insert(first[l].end(), d.first.begin(), d.first.end());
        weights[l].insert(weights[l].end(), d.weights.begin(), d.weights.end());
        for (std::size_t e = 0; e < d.load.size(); ++e) {
          counts[l].load[e] += d.load[e];
        }
        for (std::size_t t = 0; t < r.tokens(); ++t) {
          const std::uint16_t best = d.first[t * d.slots];
          ++counts[l].first[best];
          auto& [expert, length] = counts[l].run[r.sequence[t]];
          length = length > 0 && expert == best ? length + 1 : 1;
          expert = best;
          counts[l].runs += length >= kRun ? 1U : 0U;
        }
      }
    }
    for (const std::uint32_t id : ids) {
      session.end_sequence(id);
    }
  }
  const auto tokens = static_cast<double>(out.tokens);
  for (std::size_t l = 0; l < layers; ++l) {
    const LayerCounts& c = counts[l];
    const double share =
        static_cast<double>(*std::max_element(c.first.begin(), c.first.end())) / tokens;
    out.top1_share_mean += share / static_cast<double>(layers);
    out.top1_share_max = std::max(out.top1_share_max, share);
    out.load_cv += cv_of(c.load) / static_cast<double>(layers);
    out.runs_share += static_cast<double>(c.runs) / tokens / static_cast<double>(layers);
    out.first.insert(out.first.end(), first[l].begin(), first[l].end());
    out.weights.insert(out.weights.end(), weights[l].begin(), weights[l].end());
  }
  SWITCHYARD_ASSERT(out.first.size() == layers * out.tokens * k, "k slots per decision");
  out.perplexity = out.predicted > 0 ? std::exp(nll / static_cast<double>(out.predicted)) : kNaN;
  return out;
}

EffectRun run_temperature(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts) {
  EffectRun out = start(engine, texts);
  const auto add = [&](double t, const std::string& condition, const RoutingPolicy& policy) {
    out.rows.push_back({fmt::format("T = {}, {}", t, condition), t, condition,
                        routing_effect(engine, texts, policy, kBatch, kChunk)});
  };
  for (const double t : kTemperatures) {
    for (const TemperaturePlace place : {TemperaturePlace::kAfter, TemperaturePlace::kBefore}) {
      const std::string where = place == TemperaturePlace::kAfter ? "after" : "before";
      RoutingPolicy policy = with_temperature(place, t);
      add(t, where, policy);
      policy.noise.mode = NoiseMode::kFixed;
      add(t, where + ", noise 0.05", policy);
      policy.noise.mode = NoiseMode::kOff;
      policy.load_aware.u = LoadLevel::kQueue;
      policy.capacity.rule = CapacityRule::kShare;
      policy.capacity.factor = 1.25;
      add(t, where + ", load penalty", policy);
    }
    RoutingPolicy policy;
    policy.temperature.place = TemperaturePlace::kBefore;
    policy.temperature.value = t;
    policy.temperature.controller = TemperatureController::kSequence;
    policy.step_time = kStepTime;
    add(t, "before, controller", policy);
    policy.temperature.place = TemperaturePlace::kAfter;
    add(t, "after, controller", policy);
  }
  return out;
}

EffectRun run_gumbel(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts) {
  EffectRun out = start(engine, texts);
  const auto add = [&](const std::string& name, double value, const std::string& condition,
                       const RoutingPolicy& policy) {
    out.rows.push_back(
        {name, value, condition, routing_effect(engine, texts, policy, kBatch, kChunk)});
  };
  for (const double std : {0.05, 0.1}) {
    RoutingPolicy policy;
    policy.noise.mode = NoiseMode::kFixed;
    policy.noise.std = std;
    add(fmt::format("noise, std {}", std), std, "noise", policy);
  }
  RoutingPolicy adaptive;
  adaptive.noise.mode = NoiseMode::kAdaptive;
  add("noise, adaptive from 0.05", kNaN, "adaptive", adaptive);
  for (const GumbelMode mode : {GumbelMode::kTauNoise, GumbelMode::kTauAll}) {
    for (const double tau : kTaus) {
      RoutingPolicy policy;
      policy.gumbel.mode = mode;
      policy.gumbel.tau = tau;
      const std::string condition = mode == GumbelMode::kTauNoise ? "tau_noise" : "tau_all";
      add(fmt::format("Gumbel, {} = {}",
                      mode == GumbelMode::kTauNoise ? "z/tau + G, tau" : "(z + G)/tau, tau", tau),
          tau, condition, policy);
    }
  }
  return out;
}

claims::Measurements measure_temperature(const EffectRun& run) {
  claims::Measurements out;
  for (const std::string condition :
       {"after", "before", "before, noise 0.05", "before, load penalty"}) {
    const double share = 100 * row_of(run, condition, 0.1).effect.top1_share_max;
    out.add("top1_share." + condition, share,
            fmt::format("largest share over the layers; at T = 1 {:.3g} %",
                        100 * row_of(run, condition, 1.0).effect.top1_share_max));
    out.add("share_rises." + condition,
            share - 100 * row_of(run, condition, 1.0).effect.top1_share_max,
            "share at T = 0.1 less that at T = 1");
  }
  for (const std::string place : {"before", "after"}) {
    const double off = row_of(run, place, 0.1).effect.top1_share_max;
    const double on = row_of(run, place + ", controller", 0.1).effect.top1_share_max;
    out.add("controller_recovers." + place, on < 0.8 * off ? 1 : 0,
            fmt::format("largest share at T0 = 0.1: {:.4g} % without, {:.4g} % with; recovers: a "
                        "fifth less",
                        100 * off, 100 * on));
  }
  return out;
}

claims::Measurements measure_gumbel(const EffectRun& run) {
  claims::Measurements out;
  for (const std::string mode : {"tau_noise", "tau_all"}) {
    std::vector<double> values;
    for (const double tau : kTaus) {
      values.push_back(100 * row_of(run, mode, tau).effect.load_cv);
    }
    out.add_series("load_std." + mode, {kTaus.begin(), kTaus.end()}, values,
                   "100 load_cv, W = all tokens");
  }
  return out;
}

std::vector<Table> effect_tables(const std::string& name, const EffectRun& run,
                                 const std::vector<claims::Judged>& judged) {
  Table t;
  t.name = name;
  t.title = name == "temperature"
                ? "temperature of the router, its place, and the controller (M09)"
                : "noise on the router's logits: normal, adaptive, Gumbel in both readings (M11)";
  t.columns = {
      "policy",          "top-1 share, mean [%]",  "top-1 share, max [%]", "load_std [%]",
      "same choice [%]", "in the first layer [%]", "largest weight, mean", "ends a run of 5 [%]",
      "perplexity",      "against plain [%]"};
  const auto add = [&](const std::string& label, const RoutingEffect& e) {
    const auto same = [&](std::size_t slots) {
      return fmt::format("{:.3f}", 100 * same_choice(run.plain, e, run.top_k, slots));
    };
    t.rows.push_back(
        {label, fmt::format("{:.3f}", 100 * e.top1_share_mean),
         fmt::format("{:.3f}", 100 * e.top1_share_max), fmt::format("{:.3f}", 100 * e.load_cv),
         same(e.first.size()), same(e.tokens * run.top_k),
         fmt::format("{:.4f}", mean_first_weight(e, run.top_k)),
         fmt::format("{:.3f}", 100 * e.runs_share), fmt::format("{:.4f}", e.perplexity),
         fmt::format("{:+.3f}", 100 * (e.perplexity / run.plain.perplexity - 1))});
  };
  add("plain", run.plain);
  for (const EffectRow& row : run.rows) {
    add(row.name, row.effect);
  }
  const double share = static_cast<double>(run.top_k) / run.experts;
  t.notes.push_back(fmt::format(
      "{}; {} tokens of prompts/mixed.jsonl, teacher-forced, {} predicted; closed loop: the engine "
      "runs with the policy; {} sequences a step, {} tokens of each",
      run.subject, run.plain.tokens, run.plain.predicted, kBatch, kChunk));
  t.notes.push_back(fmt::format(
      "top-1 share: tokens whose first choice is the layer's most popular expert (fair "
      "{:.3f} %); load_std: 100 load_cv, W = {} tokens, counting floor {:.3f}; same "
      "choice: the plain run's experts in its order; deeper layers see what other weights did to "
      "their input",
      100.0 / run.experts, run.plain.tokens,
      100 * std::sqrt((1 - share) / (static_cast<double>(run.plain.tokens) * share))));
  if (name == "temperature") {
    t.notes.push_back(fmt::format(
        "the controller would raise T at every token that ends a run of {} equal first choices: in "
        "the plain run that is a false alarm; its clock here: {} s per step",
        kRun, kStepTime));
    t.notes.emplace_back(
        "a temperature alone, before or after, keeps the order of the logits; the load penalty "
        "(M04, "
        "u = queue, with capacity share 1.25, so with its reroutes) comes between the two places");
    t.notes.push_back(fmt::format(
        "60 % of 80 GB in 10 s are {:.0f} tokens/s with keys and values kept by expert (8.39 MB a "
        "token): a rate, not a consequence of the temperature",
        0.6 * 80e9 / 10 / 8.39e6));
  } else {
    t.notes.emplace_back(
        "(z + G)/tau has the same order for every tau: only the weights move, and with them what "
        "deeper layers see. The first layer's choices are equal");
  }
  std::vector<Table> out = {std::move(t)};
  out.push_back(claims_table(name, judged));
  out.push_back(verdicts_table(name, judged));
  return out;
}

std::vector<Table> make_temperature(const TableContext& context) {
  return make("temperature", context, run_temperature, measure_temperature);
}

std::vector<Table> make_gumbel(const TableContext& context) {
  return make("gumbel", context, run_gumbel, measure_gumbel);
}

}  // namespace switchyard::tables
