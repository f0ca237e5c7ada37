// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/quantisation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kBatch = 16;
constexpr std::size_t kQuickTexts = 24;
constexpr double kHarmless = 0.3;  // % of changed choices that S3 2.3 calls harmless

struct Combination {
  const char* router;
  const char* experts;
  const char* options;
};
/// The last but one is the recipe of S1 2.3 and S3 3.3; the last is INT4 everywhere, "uniform".
constexpr const char* kUniform = "router=int4,experts=int4,keep=0,backbone=bf16";
constexpr std::array<Combination, 13> kCombinations{{
    {"fp16", "", "router=fp16"},
    {"fp8", "", "router=fp8"},
    {"int8", "", "router=int8"},
    {"int4, groups of 128", "", "router=int4"},
    {"int4, groups of 32", "", "router=int4,group=32"},
    {"", "fp8", "experts=fp8"},
    {"", "int8", "experts=int8"},
    {"", "int4, 10 % of the channels fp16", "experts=int4"},
    {"", "int4, no channel kept", "experts=int4,keep=0"},
    {"fp8", "int4, 10 % of the channels fp16", "router=fp8,experts=int4,backbone=bf16"},
    {"int8", "int4, 10 % of the channels fp16", "router=int8,experts=int4,backbone=bf16"},
    {"fp16", "int4, 10 % of the channels fp16", "router=fp16,experts=int4,backbone=bf16"},
    {"int4, groups of 128", "int4, no channel kept", kUniform},
}};

const QuantisationRow& row_of(const QuantisationRun& run, const std::string& options) {
  const auto it = std::find_if(run.rows.begin(), run.rows.end(),
                               [&](const QuantisationRow& r) { return r.options == options; });
  SWITCHYARD_ASSERT(it != run.rows.end(), options);
  return *it;
}

double worse(const QuantisationRun& run, const QuantisationRow& row) {
  return 100 * (row.perplexity / run.perplexity - 1);
}

std::string cell_of(const std::vector<QuantisedPart>& parts, const std::string& name, bool bits) {
  for (const QuantisedPart& part : parts) {
    if (part.name == name) {
      return bits ? fmt::format("{:.2f}", part.bits_per_value())
                  : fmt::format("{:.2f}", 100 * part.relative_error());
    }
  }
  return "";
}

}  // namespace

double ForcedRun::perplexity() const {
  return predicted > 0 ? std::exp(nll / static_cast<double>(predicted)) : NAN;
}

ForcedRun forced_run(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts,
                     std::size_t batch) {
  ForcedRun out;
  out.layers = static_cast<std::uint32_t>(engine.config().num_moe_layers());
  out.top_k = engine.gate().top_k;
  out.experts = engine.gate().experts;
  for (std::size_t first = 0; first < texts.size(); first += batch) {
    Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
    std::vector<SequenceTokens> work;
    for (std::size_t i = first; i < std::min(texts.size(), first + batch); ++i) {
      work.push_back({session.add_sequence(), texts[i]});
    }
    const StepResult& r = session.step(work, Phase::kPrefill);
    for (std::size_t t = 0; t < r.tokens(); ++t) {
      for (std::size_t l = 0; l < r.layers.size(); ++l) {
        const Candidates& c = r.layers[l].candidates;
        const auto logit = r.router_logits.begin() +
                           static_cast<std::ptrdiff_t>((l * r.tokens() + t) * out.experts);
        out.router_logits.insert(out.router_logits.end(), logit, logit + out.experts);
        out.chosen.insert(out.chosen.end(),
                          c.ids.begin() + static_cast<std::ptrdiff_t>(t * c.width),
                          c.ids.begin() + static_cast<std::ptrdiff_t>(t * c.width + out.top_k));
      }
      if (t + 1 == r.tokens() || r.sequence[t + 1] != r.sequence[t]) {
        continue;
      }
      const auto logits = r.logits_of(t);
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float z : logits) {
        sum += std::exp(static_cast<double>(z) - top);
      }
      out.nll += top + std::log(sum) - static_cast<double>(logits[r.token[t + 1]]);
      ++out.predicted;
    }
  }
  return out;
}

Agreement agreement(const ForcedRun& a, const ForcedRun& b) {
  SWITCHYARD_ASSERT(a.chosen.size() == b.chosen.size() && a.top_k == b.top_k, "the same texts");
  const std::size_t k = a.top_k;
  std::uint64_t decisions = 0;
  std::uint64_t first = 0;
  std::uint64_t set = 0;
  std::uint64_t set_0 = 0;
  std::vector<std::uint16_t> x;
  std::vector<std::uint16_t> y;
  for (std::size_t i = 0; i < a.chosen.size(); i += k, ++decisions) {
    first += a.chosen[i] == b.chosen[i] ? 1 : 0;
    x.assign(a.chosen.begin() + static_cast<std::ptrdiff_t>(i),
             a.chosen.begin() + static_cast<std::ptrdiff_t>(i + k));
    y.assign(b.chosen.begin() + static_cast<std::ptrdiff_t>(i),
             b.chosen.begin() + static_cast<std::ptrdiff_t>(i + k));
    std::sort(x.begin(), x.end());
    std::sort(y.begin(), y.end());
    set += x == y ? 1 : 0;
    set_0 += x == y && decisions % a.layers == 0 ? 1 : 0;
  }
  const auto n = static_cast<double>(decisions);
  return {static_cast<double>(first) / n, static_cast<double>(set) / n,
          static_cast<double>(set_0) * a.layers / n};
}

QuantisationRun run_quantisation(const std::filesystem::path& checkpoint,
                                 std::span<const std::vector<std::uint32_t>> texts,
                                 unsigned threads) {
  QuantisationRun out;
  const auto run = [&](const QuantiseOptions& options, std::vector<QuantisedPart>* parts) {
    const Engine engine = Engine::load(checkpoint, {.threads = threads, .quantise = options});
    if (parts != nullptr) {
      *parts = engine.quantised();
    } else {
      out.subject = fmt::format("{}, weights {}", engine.config().name,
                                engine.checkpoint()->weight_hash().hex());
    }
    return forced_run(engine, texts, kBatch);
  };
  const ForcedRun plain = run({}, nullptr);
  out.perplexity = plain.perplexity();
  out.predicted = plain.predicted;
  out.tokens = plain.chosen.size() / plain.layers / plain.top_k;
  for (const Combination& c : kCombinations) {
    QuantisationRow row{c.router, c.experts, c.options, {}, {}, 0};
    const ForcedRun rounded = run(parse_quantise(c.options, "table"), &row.parts);
    row.agreement = agreement(plain, rounded);
    row.perplexity = rounded.perplexity();
    out.rows.push_back(std::move(row));
  }
  return out;
}

claims::Measurements measure_quantisation(const QuantisationRun& run) {
  claims::Measurements out;
  const auto changed = [](double share) { return 100 * (1 - share); };
  const QuantisationRow& router = row_of(run, "router=int4");
  const QuantisationRow& uniform = row_of(run, kUniform);
  const QuantisationRow& mixed = row_of(run, "router=fp16,experts=int4,backbone=bf16");
  out.add("router_int4.all layers", changed(router.agreement.set), "100 - top-k set agreement");
  out.add("router_int4.first layer", changed(router.agreement.set_layer_0),
          "100 - top-k set agreement, first MoE layer");
  out.add("experts_int4.channels kept", worse(run, row_of(run, "experts=int4")),
          "perplexity against as stored");
  out.add("experts_int4.none kept", worse(run, row_of(run, "experts=int4,keep=0")),
          "perplexity against as stored");
  out.add("uniform_breaks.choices", changed(router.agreement.set_layer_0) > kHarmless ? 1 : 0,
          fmt::format("an int4 router changes {:.3g} % of the sets",
                      changed(router.agreement.set_layer_0)));
  out.add("uniform_breaks.perplexity", worse(run, uniform) > 2 * worse(run, mixed) ? 1 : 0,
          fmt::format("uniform int4 {:+.3g} %, with an fp16 router and kept channels {:+.3g} %",
                      worse(run, uniform), worse(run, mixed)));
  return out;
}

std::vector<Table> quantisation_tables(const QuantisationRun& run,
                                       const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "quantisation";
  t.title = "weights rounded to smaller formats: routing agreement and perplexity";
  t.columns = {"router",
               "experts",
               "router bits",
               "router error [%]",
               "expert bits",
               "expert error [%]",
               "top-1 same [%]",
               "top-k set same [%]",
               "set same, layer 0 [%]",
               "perplexity",
               "against stored [%]"};
  t.rows.push_back({"as stored", "as stored", "", "", "", "", "100", "100", "100",
                    fmt::format("{:.4f}", run.perplexity), "0"});
  for (const QuantisationRow& row : run.rows) {
    const auto share = [](double v) { return fmt::format("{:.3f}", 100 * v); };
    t.rows.push_back({row.router.empty() ? "as stored" : row.router,
                      row.experts.empty() ? "as stored" : row.experts,
                      cell_of(row.parts, "router", true), cell_of(row.parts, "router", false),
                      cell_of(row.parts, "experts", true), cell_of(row.parts, "experts", false),
                      share(row.agreement.first), share(row.agreement.set),
                      share(row.agreement.set_layer_0), fmt::format("{:.4f}", row.perplexity),
                      fmt::format("{:+.3f}", worse(run, row))});
  }
  t.notes.push_back(
      fmt::format("{}; {} tokens of prompts/mixed.jsonl, teacher-forced, {} predicted", run.subject,
                  run.tokens, run.predicted));
  t.notes.emplace_back(
      "error = |rounded - w| / |w| (L2); bits include scales, zero points and kept channels; "
      "formats: engine/nn/quantise.hpp; arithmetic stays f32");
  t.notes.emplace_back(
      "agreement: the same token and layer as stored; in layer 0 only the router's own rounding "
      "can change it, below it changed inputs add up");
  std::vector<Table> out = {std::move(t)};
  const auto judged = claims::judge(claims, measure_quantisation(run));
  out.push_back(claims_table("quantisation", judged));
  out.push_back(verdicts_table("quantisation", judged));
  return out;
}

std::vector<Table> make_quantisation(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  std::vector<std::vector<std::uint32_t>> texts;
  for (const auto& p : cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl")) {
    texts.push_back(tokenizer.encode(p.text));
  }
  if (context.quick && texts.size() > kQuickTexts) {
    texts.resize(kQuickTexts);
  }
  auto tables = quantisation_tables(run_quantisation(folder, texts, context.threads),
                                    claims::claims_of("quantisation"));
  if (context.quick) {
    tables.front().notes.push_back(fmt::format("quick: the first {} prompts only", kQuickTexts));
  }
  return tables;
}

}  // namespace switchyard::tables
