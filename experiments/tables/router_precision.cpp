// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/router_precision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kTexts = 16, kQuickTexts = 16;

struct Format {
  const char *name, *weights, *arithmetic, *options;
  bool bf16;
};
constexpr std::array<Format, 7> kFormats{
    {{"FP32", "as stored (BF16)", "FP32", "", false},
     {"BF16", "as stored (BF16)", "BF16 in and out, sums FP32", "", true},
     {"FP16", "FP16", "FP32", "router=fp16", false},
     {"FP8", "E4M3, scale per row", "FP32", "router=fp8", false},
     {"INT8", "scale per row", "FP32", "router=int8", false},
     {"INT4, groups of 32", "scale per group", "FP32", "router=int4,group=32", false},
     {"INT4, groups of 128", "scale per group", "FP32", "router=int4", false}}};

/// Nearest rank, share in (0, 1].
float quantile(std::vector<float> values, double share) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

std::string percent(double share) { return fmt::format("{:.3f}", 100 * share); }

Table formats_table(const RouterPrecision& run) {
  const ForcedRun& base = run.formats.front().run;
  const std::vector<float> gap = margins(base);
  Table t;
  t.name = "router-precision";
  t.title = "the router in smaller formats: who is chosen, and perplexity";
  t.columns = {"router",
               "weights",
               "arithmetic",
               "logit error, layer 0",
               "logit error",
               "set same, layer 0 [%]",
               "top-k set same [%]",
               "top-1 same [%]",
               "margin p50 where changed",
               "perplexity",
               "against FP32 [%]"};
  for (const RouterFormat& f : run.formats) {
    const Agreement same = agreement(base, f.run);
    const std::vector<bool> changed = changed_sets(base, f.run);
    std::vector<float> where;
    for (std::size_t i = 0; i < gap.size(); ++i) {
      if (changed[i]) where.push_back(gap[i]);
    }
    t.rows.push_back({f.name, f.weights, f.arithmetic,
                      fmt::format("{:.5f}", logit_error(base, f.run, true)),
                      fmt::format("{:.5f}", logit_error(base, f.run, false)),
                      percent(same.set_layer_0), percent(same.set), percent(same.first),
                      where.empty() ? "n/a" : fmt::format("{:.4f}", quantile(where, 0.5)),
                      fmt::format("{:.4f}", f.run.perplexity()),
                      fmt::format("{:+.3f}", 100 * (f.run.perplexity() / base.perplexity() - 1))});
  }
  t.notes.push_back(
      fmt::format("{}; {} tokens of prompts/mixed.jsonl, {} predicted; {} of {} experts",
                  run.subject, gap.size() / base.layers, base.predicted, base.top_k, base.experts));
  t.notes.emplace_back(
      "layer 0: the router's own rounding; all layers: changed inputs as well. Experts are as "
      "stored; the table quantisation rounds them too");
  t.notes.push_back(fmt::format(
      "margin between the k-th and the next logit, FP32: p1 {:.4f}, p50 {:.4f} of all decisions",
      quantile(gap, 0.01), quantile(gap, 0.5)));
  t.notes.emplace_back(
      "the stored weights are BF16, so BF16 weights change nothing: that row rounds the router's "
      "input and logits; FP16 loses only values below its range");
  t.notes.emplace_back(
      "perplexity: changes of some hundredths of a per cent are of either sign, which says that "
      "the sets that flip are about as good as those they replace");
  return t;
}

Table margins_table(const RouterPrecision& run) {
  const ForcedRun& base = run.formats.front().run;
  const std::vector<float> gap = margins(base);
  Table t;
  t.name = "router-precision-margin";
  t.title = "who changes: sets that differ from the FP32 router's, by its margin, % of each tenth";
  t.columns = {"tenth of decisions", "margin from", "margin to"};
  for (std::size_t f = 1; f < run.formats.size(); ++f) {
    t.columns.push_back(run.formats[f].name + " [%]");
  }
  std::vector<std::size_t> order(gap.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gap[a] < gap[b]; });
  for (std::size_t d = 0; d < 10; ++d) {
    const std::size_t from = order.size() * d / 10, to = order.size() * (d + 1) / 10;
    if (from == to) continue;
    std::vector<std::string> row = {fmt::to_string(d + 1), fmt::format("{:.4f}", gap[order[from]]),
                                    fmt::format("{:.4f}", gap[order[to - 1]])};
    for (std::size_t f = 1; f < run.formats.size(); ++f) {
      const std::vector<bool> changed = changed_sets(base, run.formats[f].run);
      std::size_t n = 0;
      for (std::size_t i = from; i < to; ++i) n += changed[order[i]] ? 1U : 0U;
      row.push_back(percent(static_cast<double>(n) / static_cast<double>(to - from)));
    }
    t.rows.push_back(std::move(row));
  }
  t.notes.emplace_back(
      "all layers; below the first, experts of other tokens and layers have changed the input, so "
      "sets with a wide margin change as well");
  return t;
}

Table batch_table(const RouterPrecision& run) {
  Table t;
  t.name = "router-precision-batch";
  t.title = "batch invariance: the same texts, more of them at a time";
  t.columns = {"router",
               "texts in a batch",
               "sets that differ from alone",
               "router logits that differ",
               "largest difference",
               "perplexity",
               "bits of the loss alike"};
  const ForcedRun* alone = nullptr;
  for (const RouterPrecision::Batch& b : run.batches) {
    alone = b.texts == 1 ? &b.run : alone;
    SWITCHYARD_ASSERT(alone != nullptr && alone->router_logits.size() == b.run.router_logits.size(),
                      "the first batch has one text");
    const std::vector<bool> changed = changed_sets(*alone, b.run);
    std::size_t differ = 0;
    double most = 0;
    for (std::size_t i = 0; i < alone->router_logits.size(); ++i) {
      const double d = std::abs(static_cast<double>(alone->router_logits[i]) -
                                static_cast<double>(b.run.router_logits[i]));
      differ += d != 0 ? 1U : 0U;
      most = std::max(most, d);
    }
    t.rows.push_back({b.bf16 ? "BF16" : "FP32", fmt::to_string(b.texts),
                      fmt::to_string(std::count(changed.begin(), changed.end(), true)),
                      fmt::to_string(differ), fmt::format("{:.3g}", most),
                      fmt::format("{:.4f}", b.run.perplexity()),
                      alone->nll == b.run.nll ? "yes" : "no"});
  }
  t.notes.emplace_back(
      "our CPU engine adds up each output in one order whatever the batch (CONTRIBUTING.md, "
      "decision "
      "6), so nothing may differ; measured here, not assumed");
  t.notes.emplace_back(
      "not measured: GPUs and other engines, where the batch picks the kernel and its order of "
      "sums (vllm-project/vllm#14027); what that does to sets follows from the margins above");
  return t;
}

}  // namespace

RouterPrecision run_router_precision(const std::filesystem::path& checkpoint,
                                     std::span<const std::vector<std::uint32_t>> texts,
                                     unsigned threads) {
  RouterPrecision out;
  for (const Format& f : kFormats) {
    EngineOptions options{.threads = threads};
    options.router_bf16 = f.bf16;
    if (*f.options != '\0') options.quantise = parse_quantise(f.options, "table");
    const Engine engine = Engine::load(checkpoint, options);
    out.subject = fmt::format("{}, weights {}", engine.config().name,
                              engine.checkpoint()->weight_hash().hex());
    out.formats.push_back({f.name, f.weights, f.arithmetic, forced_run(engine, texts, kTexts)});
    if (*f.options != '\0') continue;
    for (const std::size_t batch : {std::size_t{1}, std::size_t{4}, kTexts, std::size_t{64}}) {
      out.batches.push_back(
          {batch, f.bf16,
           batch == kTexts ? out.formats.back().run : forced_run(engine, texts, batch)});
    }
  }
  return out;
}

std::vector<float> margins(const ForcedRun& run) {
  SWITCHYARD_ASSERT(run.top_k < run.experts, "there is a next expert");
  std::vector<float> out;
  for (std::size_t i = 0; i < run.router_logits.size(); i += run.experts) {
    std::vector<float> z(run.router_logits.begin() + static_cast<std::ptrdiff_t>(i),
                         run.router_logits.begin() + static_cast<std::ptrdiff_t>(i + run.experts));
    std::partial_sort(z.begin(), z.begin() + run.top_k + 1, z.end(), std::greater<>());
    out.push_back(z[run.top_k - 1] - z[run.top_k]);
  }
  return out;
}

double logit_error(const ForcedRun& a, const ForcedRun& b, bool first_only) {
  SWITCHYARD_ASSERT(a.router_logits.size() == b.router_logits.size() && a.experts == b.experts,
                    "the same texts");
  const std::size_t n = a.experts;
  double sum = 0;
  std::uint64_t values = 0;
  for (std::size_t i = 0; i < a.router_logits.size(); i += n) {
    if (first_only && i / n % a.layers != 0) continue;
    double mean = 0;
    for (std::size_t e = 0; e < n; ++e) {
      mean += (static_cast<double>(b.router_logits[i + e]) -
               static_cast<double>(a.router_logits[i + e])) /
              static_cast<double>(n);
    }
    for (std::size_t e = 0; e < n; ++e) {
      const double d = static_cast<double>(b.router_logits[i + e]) -
                       static_cast<double>(a.router_logits[i + e]) - mean;
      sum += d * d;
    }
    values += n;
  }
  return values > 0 ? std::sqrt(sum / static_cast<double>(values)) : 0;
}

std::vector<bool> changed_sets(const ForcedRun& a, const ForcedRun& b) {
  SWITCHYARD_ASSERT(a.chosen.size() == b.chosen.size() && a.top_k == b.top_k, "the same texts");
  std::vector<bool> out;
  for (std::size_t i = 0; i < a.chosen.size(); i += a.top_k) {
    const auto x = a.chosen.begin() + static_cast<std::ptrdiff_t>(i);
    const auto y = b.chosen.begin() + static_cast<std::ptrdiff_t>(i);
    out.push_back(!std::is_permutation(x, x + a.top_k, y));
  }
  return out;
}

std::vector<Table> router_precision_tables(const RouterPrecision& run) {
  return {formats_table(run), margins_table(run), batch_table(run)};
}

std::vector<Table> make_router_precision(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  std::vector<std::vector<std::uint32_t>> texts;
  for (const auto& p : cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl")) {
    texts.push_back(tokenizer.encode(p.text));
  }
  if (context.quick && texts.size() > kQuickTexts) texts.resize(kQuickTexts);
  auto tables = router_precision_tables(run_router_precision(folder, texts, context.threads));
  if (context.quick) {
    tables.front().notes.push_back(fmt::format("quick: the first {} prompts only", kQuickTexts));
  }
  return tables;
}

}  // namespace switchyard::tables
