// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/domain_adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/error.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kBatch = 16, kChunk = 4096;  // whole prompts
constexpr std::size_t kQuickTexts = 24;
constexpr std::array kShop{"shop_complaint", "shop_product", "shop_promotion", "shop_after_sales"};

using Texts = std::vector<std::vector<std::uint32_t>>;

const DomainRow& row_of(const DomainRun& run, const std::string& router) {
  for (const DomainRow& row : run.rows) {
    if (row.router == router) {
      return row;
    }
  }
  throw InputError("domain-adapter", "no run of the router " + router);
}

RoutingEffect with_policy(const Engine& engine, const std::filesystem::path& policies,
                          const std::string& name, const Texts& texts) {
  PolicyFiles files;
  RoutingPolicy policy = scenario::read_policy_file((policies / (name + ".toml")).string(), &files);
  std::vector<std::uint32_t> layers;
  for (std::uint32_t l = 0; l < engine.weights().layers.size(); ++l) {
    if (engine.weights().layers[l].router.data != nullptr) {
      layers.push_back(l);
    }
  }
  const PolicyWeights weights =
      model::load_policy_weights(policy, files, engine.gate(), layers, engine.config().hidden_size);
  return routing_effect(engine, texts, policy, kBatch, kChunk, &weights);
}

}  // namespace

DomainScore domain_score(const RoutingEffect& run, const RoutingEffect& reference, std::size_t k) {
  SWITCHYARD_ASSERT(run.first.size() == reference.first.size() && !run.first.empty() && k > 0,
                    "the same texts");
  DomainScore out;
  out.perplexity = run.perplexity;
  const std::size_t tokens = run.first.size() / k;
  const auto n = static_cast<double>(tokens);
  for (std::size_t i = 0; i < run.first.size(); i += k) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    const auto to = static_cast<std::ptrdiff_t>(i + k);
    out.first += run.first[i] == reference.first[i] ? 1 / n : 0;
    out.set += std::is_permutation(run.first.begin() + at, run.first.begin() + to,
                                   reference.first.begin() + at)
                   ? 1 / n
                   : 0;
  }
  return out;
}

claims::Measurements measure_domain_adapter(const DomainRun& run) {
  const DomainRow& original = row_of(run, "original");
  const DomainRow& adapter = row_of(run, "adapter");
  claims::Measurements out;
  out.add_series("right.set", {0, 1}, {100 * original.fresh.set, 100 * adapter.fresh.set},
                 "same set as the router fine-tuned there as a whole");
  out.add_series("right.first expert", {0, 1},
                 {100 * original.fresh.first, 100 * adapter.fresh.first},
                 "same first expert as the router fine-tuned there as a whole");
  out.add("right_before.set", 100 * original.old.set, "prompts/mixed.jsonl, original router");
  out.add("right_before.first expert", 100 * original.old.first,
          "prompts/mixed.jsonl, original router");
  return out;
}

std::vector<Table> domain_adapter_tables(const DomainRun& run,
                                         const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "domain-adapter";
  t.title = "routers on a new domain against one fine-tuned there";
  t.columns = {"router",           "new: set [%]", "first [%]", "perplexity",
               "trained: set [%]", "first [%]",    "perplexity"};
  for (const DomainRow& row : run.rows) {
    std::vector<std::string> cells{row.router};
    for (const DomainScore* s : {&row.fresh, &row.old}) {
      cells.push_back(fmt::format("{:.2f}", 100 * s->set));
      cells.push_back(fmt::format("{:.2f}", 100 * s->first));
      cells.push_back(fmt::format("{:.3f}", s->perplexity));
    }
    t.rows.push_back(std::move(cells));
  }
  t.notes = {fmt::format("{}; {} tokens of prompts/shop_*.jsonl, {} of mixed.jsonl, "
                         "teacher-forced, whole prompts",
                         run.subject, run.fresh_tokens, run.old_tokens),
             "adapter: rank 4; reference: the whole router, fine-tuned from another start of the "
             "same texts; experiments/training/DOMAIN.md"};
  const auto judged = claims::judge(claims, measure_domain_adapter(run));
  return {t, claims_table("domain-adapter", judged), verdicts_table("domain-adapter", judged)};
}

std::vector<Table> make_domain_adapter(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  const auto read = [&](const std::string& set, Texts& texts) {
    for (const auto& p : cli::read_prompts(context.scenarios / "prompts" / (set + ".jsonl"))) {
      texts.push_back(tokenizer.encode(p.text));
    }
  };
  Texts fresh;
  Texts old;
  for (const char* set : kShop) {
    read(set, fresh);
  }
  read("mixed", old);
  if (context.quick) {
    old.resize(std::min(old.size(), kQuickTexts));
  }
  const std::size_t k = engine.gate().top_k;
  const auto policies = context.scenarios / "policies";
  const RoutingEffect best_fresh = with_policy(engine, policies, "router_domain", fresh);
  const RoutingEffect best_old = with_policy(engine, policies, "router_domain", old);
  DomainRun run;
  run.subject =
      fmt::format("{}, weights {}", engine.config().name, engine.checkpoint()->weight_hash().hex());
  run.fresh_tokens = best_fresh.tokens;
  run.old_tokens = best_old.tokens;
  const auto add = [&](const std::string& name, const RoutingEffect& a, const RoutingEffect& b) {
    run.rows.push_back({name, domain_score(a, best_fresh, k), domain_score(b, best_old, k)});
  };
  add("original", routing_effect(engine, fresh, {}, kBatch, kChunk),
      routing_effect(engine, old, {}, kBatch, kChunk));
  add("adapter", with_policy(engine, policies, "adapter_domain", fresh),
      with_policy(engine, policies, "adapter_domain", old));
  add("reference", best_fresh, best_old);
  auto tables = domain_adapter_tables(run, claims::claims_of("domain-adapter"));
  if (context.quick) {
    tables.front().notes.push_back(
        fmt::format("quick: the first {} prompts of mixed.jsonl only", kQuickTexts));
  }
  return tables;
}

}  // namespace switchyard::tables
