// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/prompt_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::tables {
namespace {

constexpr double kNoise = 1e-3;
constexpr std::uint32_t kDraws = 3;
constexpr std::uint64_t kSeed = 1;
constexpr double kPrintedWidth = 500;  // of S4's logits, -200 to 300
constexpr double kAlike = 0.98;        // cosine of C62's pair
constexpr std::size_t kQuickPrompts = 24;
constexpr const char* kShort = "4-15";
constexpr const char* kLong = "over-128";

using Prompts = std::vector<PromptDecisions>;

PromptSetRow set_row(const Engine& engine, const std::string& set, const std::string& domain,
                     std::span<const PromptDecisions> prompts) {
  const RouterShape s = router_shape(engine);
  PromptSetRow row;
  row.set = set;
  row.domain = domain;
  row.prompts = prompts.size();
  row.all = load_spread(prompts, s, false);
  row.each = load_spread(prompts, s, true);
  row.tokens = gate_statistics(prompts, s, false);
  row.last = gate_statistics(prompts, s, true);
  row.share = largest_share(prompts, s);
  row.agreement = 1 - noise_effect(engine, prompts, {}, kNoise, kDraws, kSeed).changed;
  return row;
}

Prompts of_domain(const Prompts& prompts, const std::string& domain) {
  Prompts out;
  std::copy_if(prompts.begin(), prompts.end(), std::back_inserter(out),
               [&](const PromptDecisions& p) { return p.domain == domain; });
  return out;
}

std::vector<std::string> domains_of(const Prompts& prompts) {
  std::vector<std::string> out;
  for (const PromptDecisions& p : prompts) {
    if (std::find(out.begin(), out.end(), p.domain) == out.end()) {
      out.push_back(p.domain);
    }
  }
  return out;
}

/// Mean of the tokens' router input in the last MoE layer.
std::vector<double> vector_of(const PromptDecisions& p, const RouterShape& s) {
  std::vector<double> out(s.hidden, 0.0);
  const std::size_t first = (s.layers - 1) * p.tokens * s.hidden;
  for (std::size_t i = 0; i < p.tokens * s.hidden; ++i) {
    out[i % s.hidden] += p.input[first + i] / static_cast<double>(p.tokens);
  }
  return out;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const auto& x, const auto& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double size = std::sqrt(dot(a, a) * dot(b, b));
  return size > 0 ? dot(a, b) / size : 0;
}

const PromptSetRow& set_of(const PromptRoutingRun& run, const std::string& set,
                           const std::string& domain) {
  for (const PromptSetRow& row : run.sets) {
    if (row.set == set && row.domain == domain) {
      return row;
    }
  }
  throw InputError("prompt-routing", fmt::format("no prompts of {}, {}", set, domain));
}

const NormRow& norm_of(const PromptRoutingRun& run, const std::string& reading) {
  for (const NormRow& row : run.norms) {
    if (row.reading == reading) {
      return row;
    }
  }
  throw InputError("prompt-routing", "no router with " + reading);
}

/// Sets that differ in each of three runs of the model as it is.
double three_runs(const Engine& engine, const model::Tokenizer& tokenizer,
                  std::span<const cli::PromptText> prompts) {
  const RouterShape s = router_shape(engine);
  std::vector<Prompts> runs;
  for (std::uint32_t n = 0; n < kDraws; ++n) {
    runs.push_back(decide_prompts(engine, tokenizer, prompts, false));
  }
  std::uint64_t differ = 0;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t row = 0; row < s.layers * runs[0][i].tokens; ++row) {
      const auto best = [&](std::uint32_t n) {
        return best_experts(std::span(runs[n][i].logits).subspan(row * s.experts, s.experts),
                            s.top_k);
      };
      const auto a = best(0);
      const auto b = best(1);
      const auto c = best(2);
      differ += a != b && b != c && a != c ? 1U : 0U;
      ++all;
    }
  }
  return static_cast<double>(differ) / static_cast<double>(all);
}

std::string both(double a, double b) { return fmt::format("{} and {}", show(a), show(b)); }

void measure_lengths(const PromptRoutingRun& run, claims::Measurements& out) {
  const PromptSetRow& brief = set_of(run, "lengths", kShort);
  const PromptSetRow& wide = set_of(run, "lengths", kLong);
  const auto spread = [&](const std::string& reading, const LoadSpread& a, const LoadSpread& b) {
    out.add("short_std." + reading, 100 * a.cv,
            fmt::format("load_cv; the floor of an even router is {} %", show(100 * a.floor)));
    out.add("std_falls." + reading, a.cv > b.cv ? 1 : 0,
            fmt::format("{} %, floors {} %", both(100 * a.cv, 100 * b.cv),
                        both(100 * a.floor, 100 * b.floor)));
  };
  spread("all prompts", brief.all, wide.all);
  spread("each prompt", brief.each, wide.each);
  out.add("variance_short", brief.tokens.logit_variance, "over E of raw logits, mean over tokens");
  out.add("variance_long", wide.tokens.logit_variance, "over E of raw logits, mean over tokens");
  out.add("variance_rises", wide.tokens.logit_variance > brief.tokens.logit_variance ? 1 : 0,
          both(brief.tokens.logit_variance, wide.tokens.logit_variance));
  out.add("right_long", 100 * wide.agreement, "same set as the FP32 router under noise of 1e-3");
  double chance = 1;  // one of the E over k sets
  for (std::size_t i = 0; i < run.shape.top_k; ++i) {
    chance *= static_cast<double>(i + 1) / static_cast<double>(run.shape.experts - i);
  }
  out.add("random_short", brief.agreement < (1 + chance) / 2 ? 1 : 0,
          fmt::format(
              "{} % keep their set under noise of 1e-3, {} % of {} bits of entropy; at "
              "random {} % would",
              show(100 * brief.agreement),
              show(100 * brief.tokens.entropy / std::log2(static_cast<double>(run.shape.experts))),
              show(std::log2(static_cast<double>(run.shape.experts))), show(100 * chance)));
}

void measure_pairs(const PromptRoutingRun& run, claims::Measurements& out) {
  double raw = 0;
  double centred = 0;
  double changed = 0;
  std::size_t alike = 0;
  std::size_t alike_changed = 0;
  const auto n = static_cast<double>(run.pairs.size());
  for (const PairRow& pair : run.pairs) {
    raw += pair.cosine / n;
    centred += pair.centred / n;
    changed += pair.top_changed / n;
    alike += pair.cosine >= kAlike ? 1U : 0U;
    alike_changed += pair.cosine >= kAlike && pair.top_changed > 0 ? 1U : 0U;
  }
  out.add("pair_cosine.as it is", raw, fmt::format("mean of {} pairs", run.pairs.size()));
  out.add("pair_cosine.centred", centred, "less the mean of all prompts of the set");
  if (alike == 0) {
    out.add_undecided("pair_jumps.some pair", "no pair has a cosine of 0.98 or more");
  } else {
    out.add("pair_jumps.some pair", alike_changed > 0 ? 1 : 0,
            fmt::format("{} of the {} pairs with a cosine of 0.98 or more change their top expert "
                        "in some layer",
                        alike_changed, alike));
  }
  out.add("pair_jumps.most pairs", changed > 0.5 ? 1 : 0,
          fmt::format("the top expert changes in {} % of pairs x layers", show(100 * changed)));
}

void measure_clarity(const PromptRoutingRun& run, claims::Measurements& out) {
  const PromptSetRow& vague = set_of(run, "vague_clear", "vague");
  const PromptSetRow& clear = set_of(run, "vague_clear", "clear");
  for (const bool last : {false, true}) {
    const GateStatistics& v = last ? vague.last : vague.tokens;
    const GateStatistics& c = last ? clear.last : clear.tokens;
    const std::string reading = last ? ".last token" : ".all tokens";
    out.add_series("p_first" + reading, {0, 1}, {v.p[0], c.p[0]}, "mean over tokens and layers");
    out.add_series("p_second" + reading, {0, 1}, {v.p[1], c.p[1]}, "mean over tokens and layers");
    out.add("p_third" + reading, v.p[2], "mean over tokens and layers, vague prompts");
    out.add("entropy_vague" + reading, v.entropy, "bits, mean over tokens and layers");
    out.add("entropy_clear" + reading, c.entropy, "bits, mean over tokens and layers");
  }
  out.add("entropy_bits", std::log2(static_cast<double>(run.shape.experts)),
          fmt::format("log2 of {} experts", run.shape.experts));
}

void measure_norm(const PromptRoutingRun& run, claims::Measurements& out) {
  for (const NormRow& row : run.norms) {
    out.add("norm_range." + row.reading, std::max(-row.with.lowest, row.with.highest),
            fmt::format("largest |logit|; {} to {} without LayerNorm, {} to {} with it",
                        show(row.without.lowest), show(row.without.highest), show(row.with.lowest),
                        show(row.with.highest)));
    const std::string how =
        fmt::format("noise of 1e-3 changes {} % of sets without, {} % with",
                    show(100 * row.without.changed), show(100 * row.with.changed));
    if (row.with.changed > 0) {
      out.add("norm_stability." + row.reading, 100 * (row.without.changed / row.with.changed - 1),
              how);
    } else {
      out.add_undecided("norm_stability." + row.reading, how);
    }
  }
  out.add("three_sets.as it is", 100 * run.three_clean, "three runs of the engine, equal prompts");
  out.add("three_sets.noise of 1e-3", 100 * norm_of(run, "as shipped").without.all_differ,
          "three draws of the noise");
}

Table sets_table(const PromptRoutingRun& run) {
  Table t;
  t.name = "prompt-routing";
  t.title = "what the router makes of the prompt sets";
  t.columns = {"set",
               "domain",
               "prompts",
               "tokens",
               "load_cv",
               "floor",
               "load_cv each",
               "floor each",
               "logit var",
               "entropy [bit]",
               "p1",
               "p2",
               "p3",
               "margin",
               "kept [%]",
               "most requests [%]",
               "most first [%]",
               "most tokens [%]"};
  for (const PromptSetRow& r : run.sets) {
    const auto f = [](double v) { return fmt::format("{:.3f}", v); };
    const auto percent = [](double v) { return fmt::format("{:.2f}", 100 * v); };
    t.rows.push_back({r.set, r.domain, fmt::to_string(r.prompts), fmt::to_string(r.tokens.tokens),
                      f(r.all.cv), f(r.all.floor), f(r.each.cv), f(r.each.floor),
                      f(r.tokens.logit_variance), f(r.tokens.entropy), f(r.tokens.p[0]),
                      f(r.tokens.p[1]), f(r.tokens.p[2]), f(r.tokens.margin), percent(r.agreement),
                      percent(r.share.requests), percent(r.share.first), percent(r.share.tokens)});
  }
  t.notes = {fmt::format("{}; prefill, every prompt by itself", run.subject),
             "load_cv: all prompts as one window, and each prompt as one; floor: of an even router "
             "with as many tokens",
             "margin: logit of the last chosen less that of the first not chosen; kept: sets that "
             "a relative noise of 1e-3 on the router's input leaves (mean of 3 draws)",
             "most: of the busiest expert of a layer, largest over the layers: prompts whose top "
             "expert (mean probability) it is, tokens whose first choice, tokens that choose it"};
  return t;
}

Table pairs_table(const PromptRoutingRun& run) {
  Table t;
  t.name = "prompt-routing-pairs";
  t.title = "paraphrases, by cosine of the two prompts";
  t.columns = {
      "cosine",         "pairs", "centred cosine", "top expert changes [%]", "last token's [%]",
      "top-2 same [%]", "lead"};
  constexpr std::array<double, 5> kEdges{-1, 0.9, 0.95, kAlike, 1.01};
  for (std::size_t i = 0; i + 1 < kEdges.size(); ++i) {
    PairRow sum;
    double n = 0;
    for (const PairRow& p : run.pairs) {
      if (p.cosine >= kEdges[i] && p.cosine < kEdges[i + 1]) {
        ++n;
        sum.centred += p.centred;
        sum.top_changed += p.top_changed;
        sum.last_changed += p.last_changed;
        sum.top2_same += p.top2_same;
        sum.lead += p.lead;
      }
    }
    const auto cell = [&](double v, double scale) {
      return n > 0 ? fmt::format("{:.3f}", scale * v / n) : std::string("-");
    };
    t.rows.push_back({i == 0                   ? fmt::format("below {}", kEdges[1])
                      : i + 2 == kEdges.size() ? fmt::format("{} and more", kAlike)
                                               : fmt::format("{} to {}", kEdges[i], kEdges[i + 1]),
                      show(n), cell(sum.centred, 1), cell(sum.top_changed, 100),
                      cell(sum.last_changed, 100), cell(sum.top2_same, 100), cell(sum.lead, 1)});
  }
  t.notes = {
      "cosine of the mean router input in the last MoE layer; of pairs x layers: top expert "
      "by mean probability, the last token's first choice, the two most probable experts",
      "lead: mean probability of the first expert less that of the second, the smaller of "
      "the two prompts'"};
  return t;
}

Table norm_table(const PromptRoutingRun& run) {
  Table t;
  t.name = "prompt-routing-norm";
  t.title = "LayerNorm on the router's input under relative noise";
  t.columns = {"router",        "factor",           "LayerNorm",     "lowest logit",
               "highest logit", "sets changed [%]", "three sets [%]"};
  for (const NormRow& row : run.norms) {
    for (const bool with : {false, true}) {
      const NoiseEffect& e = with ? row.with : row.without;
      t.rows.push_back({row.reading, show(row.factor), with ? "yes" : "no",
                        fmt::format("{:.3f}", e.lowest), fmt::format("{:.3f}", e.highest),
                        fmt::format("{:.3f}", 100 * e.changed),
                        fmt::format("{:.3f}", 100 * e.all_differ)});
    }
  }
  t.notes = {
      "noise: 1e-3 of the input's root mean square, normal, 3 draws; large: inputs or "
      "weights times the factor that spreads the logits over 500, as -200 to 300",
      "a common factor of the logits moves margins and noise alike, so it changes no set"};
  return t;
}

}  // namespace

std::vector<PairRow> compare_pairs(std::span<const PromptDecisions> prompts, const RouterShape& s) {
  SWITCHYARD_ASSERT(!prompts.empty() && prompts.size() % 2 == 0, "pairs");
  std::vector<std::vector<double>> vectors;
  std::vector<double> mean(s.hidden, 0.0);
  for (const PromptDecisions& p : prompts) {
    vectors.push_back(vector_of(p, s));
    for (std::size_t h = 0; h < s.hidden; ++h) {
      mean[h] += vectors.back()[h] / static_cast<double>(prompts.size());
    }
  }
  std::vector<PairRow> out;
  const auto layers = static_cast<double>(s.layers);
  for (std::size_t i = 0; i < prompts.size(); i += 2) {
    PairRow row;
    row.cosine = cosine(vectors[i], vectors[i + 1]);
    auto a = vectors[i];
    auto b = vectors[i + 1];
    for (std::size_t h = 0; h < s.hidden; ++h) {
      a[h] -= mean[h];
      b[h] -= mean[h];
    }
    row.centred = cosine(a, b);
    for (std::size_t l = 0; l < s.layers; ++l) {
      std::array<std::vector<std::uint16_t>, 2> best;
      double lead = 1;
      for (std::size_t n = 0; n < 2; ++n) {
        const auto p = mean_probability(prompts[i + n], s, l);
        const std::vector<float> as_float(p.begin(), p.end());
        best[n] = best_experts(as_float, 2);
        lead = std::min(lead, p[best[n][0]] - p[best[n][1]]);
      }
      const auto last = [&](std::size_t n) {
        const PromptDecisions& p = prompts[i + n];
        return best_experts(p.row(s, l, p.tokens - 1), 1).front();
      };
      row.top_changed += best[0][0] != best[1][0] ? 1 / layers : 0;
      row.last_changed += last(0) != last(1) ? 1 / layers : 0;
      for (const std::uint16_t e : best[0]) {
        row.top2_same +=
            std::find(best[1].begin(), best[1].end(), e) != best[1].end() ? 0.5 / layers : 0;
      }
      row.lead += lead / layers;
    }
    out.push_back(row);
  }
  return out;
}

PromptRoutingRun run_prompt_routing(const Engine& engine, const model::Tokenizer& tokenizer,
                                    const std::filesystem::path& folder, std::size_t most) {
  PromptRoutingRun run;
  run.shape = router_shape(engine);
  run.subject =
      fmt::format("{}, weights {}", engine.config().name, engine.checkpoint()->weight_hash().hex());
  const auto read = [&](const std::string& set) {
    return decide_prompts(engine, tokenizer, cli::read_prompts(folder / (set + ".jsonl")), true);
  };
  for (const std::string set : {"lengths", "vague_clear", "paraphrase", "shop_complaint",
                                "shop_product", "shop_promotion", "shop_after_sales"}) {
    const Prompts prompts = read(set);
    for (const std::string& domain : domains_of(prompts)) {
      run.sets.push_back(set_row(engine, set, domain, of_domain(prompts, domain)));
    }
    if (set == "paraphrase") {
      run.pairs = compare_pairs(prompts, run.shape);
    }
  }
  auto mixed = cli::read_prompts(folder / "mixed.jsonl");
  if (most > 0 && mixed.size() > most) {
    mixed.resize(most);
  }
  run.three_clean = three_runs(engine, tokenizer, mixed);
  const Prompts prompts = decide_prompts(engine, tokenizer, mixed, true);
  const auto effect = [&](const RouterView& view) {
    return noise_effect(engine, prompts, view, kNoise, kDraws, kSeed);
  };
  run.norms.push_back({"as shipped", 1, effect({}), effect({.layer_norm = true})});
  const NoiseEffect& plain = run.norms.front().without;
  const double factor = kPrintedWidth / (plain.highest - plain.lowest);
  run.norms.push_back({"large inputs", factor, effect({.inputs = factor}),
                       effect({.inputs = factor, .layer_norm = true})});
  run.norms.push_back({"large weights", factor, effect({.weights = factor}),
                       effect({.weights = factor, .layer_norm = true})});
  return run;
}

claims::Measurements measure_prompt_routing(const PromptRoutingRun& run) {
  claims::Measurements out;
  measure_lengths(run, out);
  measure_pairs(run, out);
  const PromptSetRow& after_sales = set_of(run, "shop_after_sales", "shop_after_sales");
  out.add("after_sales.requests", 100 * after_sales.share.requests,
          "prompts whose top expert it is, largest over the layers");
  out.add("after_sales.first choices", 100 * after_sales.share.first,
          "tokens whose first choice it is, largest over the layers");
  out.add("after_sales.tokens", 100 * after_sales.share.tokens,
          "tokens that choose it, largest over the layers");
  measure_clarity(run, out);
  measure_norm(run, out);
  return out;
}

std::vector<Table> prompt_routing_tables(const PromptRoutingRun& run,
                                         const std::vector<claims::Claim>& claims) {
  const auto judged = claims::judge(claims, measure_prompt_routing(run));
  return {sets_table(run), pairs_table(run), norm_table(run),
          claims_table("prompt-routing", judged), verdicts_table("prompt-routing", judged)};
}

std::vector<Table> make_prompt_routing(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const auto run =
      run_prompt_routing(engine, model::Tokenizer::load(folder), context.scenarios / "prompts",
                         context.quick ? kQuickPrompts : 0);
  auto tables = prompt_routing_tables(run, claims::claims_of("prompt-routing"));
  if (context.quick) {
    tables[2].notes.push_back(
        fmt::format("quick: the first {} prompts of mixed.jsonl only", kQuickPrompts));
  }
  return tables;
}

}  // namespace switchyard::tables
