// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/static_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/static_table.hpp"
#include "experiments/validation/csv.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kTail = 32;  // tokens of its own behind a shared beginning
constexpr std::size_t kLength = kTablePrefixLength + kTail;
constexpr std::size_t kStride = 12347;  // prime: windows in an order that jumps through the text
constexpr std::size_t kRequests = 10'000;
constexpr std::size_t kSample = 512, kQuickSample = 32;
constexpr std::size_t kTemplates = 16;
constexpr std::uint64_t kSeed = 1;
constexpr std::array<int, 6> kShares{0, 25, 50, 75, 95, 100};
constexpr std::uint32_t kPurpose = random_purpose("traffic of a static routing table (tables)");
constexpr double kCpuBefore = 45, kCpuAfter = 8, kHits = 0.95;  // S0 4.1

/// The n-th window of `length` tokens; different starts for different n below the count of them.
std::vector<std::uint32_t> window(const std::vector<std::uint32_t>& text, std::size_t n,
                                  std::size_t length) {
  const std::size_t starts = text.size() - kLength;
  const auto from = text.begin() + static_cast<std::ptrdiff_t>(n * kStride % starts);
  return {from, from + static_cast<std::ptrdiff_t>(length)};
}

std::vector<std::uint32_t> joined(std::vector<std::uint32_t> head,
                                  const std::vector<std::uint32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

TableKey key_of(const std::vector<std::uint32_t>& tokens) {
  return table_key(TablePrefix::kTokens, tokens, "");
}

/// Counts per expert of each layer, [L][E].
class Loads {
 public:
  explicit Loads(const RouterShape& s) : s_(s), load_(s.layers * s.experts, 0) {}
  void add(std::size_t layer, std::span<const std::uint16_t> experts) {
    for (const std::uint16_t e : experts) {
      ++load_[layer * s_.experts + e];
    }
  }
  [[nodiscard]] double cv() const {
    double sum = 0;
    for (std::size_t l = 0; l < s_.layers; ++l) {
      double mean = 0;
      double squares = 0;
      for (std::size_t e = 0; e < s_.experts; ++e) {
        mean += static_cast<double>(load_[l * s_.experts + e]) / static_cast<double>(s_.experts);
      }
      for (std::size_t e = 0; e < s_.experts; ++e) {
        const double d = static_cast<double>(load_[l * s_.experts + e]) - mean;
        squares += d * d / static_cast<double>(s_.experts);
      }
      sum += std::sqrt(squares) / mean / static_cast<double>(s_.layers);
    }
    return sum;
  }
  /// Largest share of the choices in a layer, mean over layers.
  [[nodiscard]] double top() const {
    double sum = 0;
    for (std::size_t l = 0; l < s_.layers; ++l) {
      std::uint64_t all = 0;
      std::uint64_t most = 0;
      for (std::size_t e = 0; e < s_.experts; ++e) {
        all += load_[l * s_.experts + e];
        most = std::max(most, load_[l * s_.experts + e]);
      }
      sum += static_cast<double>(most) / static_cast<double>(all) / static_cast<double>(s_.layers);
    }
    return sum;
  }

 private:
  RouterShape s_;
  std::vector<std::uint64_t> load_;
};

/// The table of the build requests with these numbers (ascending), by the live router.
RoutingTable build_table(const Engine& engine, const TableTraffic& traffic,
                         const std::set<std::size_t>& numbers) {
  const RouterShape s = router_shape(engine);
  TableSpec spec;
  spec.layers = static_cast<std::uint32_t>(s.layers);
  spec.experts = static_cast<std::uint32_t>(s.experts);
  spec.top_k = static_cast<std::uint32_t>(s.top_k);
  spec.model = engine.config().name.empty() ? "unnamed" : engine.config().name;
  spec.weight_hash = "any";
  RoutingTable table(spec);
  std::vector<std::vector<std::uint32_t>> tokens;
  for (const std::size_t n : numbers) {
    tokens.push_back(traffic.build[n]);
  }
  std::vector<std::uint16_t> all(s.experts);
  for (std::size_t e = 0; e < s.experts; ++e) {
    all[e] = static_cast<std::uint16_t>(e);
  }
  for (std::size_t i = 0; const PromptDecisions& p : decide_tokens(engine, tokens, false)) {
    TableEntryBuilder builder(spec.layers, spec.experts);
    for (std::uint32_t l = 0; l < spec.layers; ++l) {
      for (std::size_t t = 0; t < p.tokens; ++t) {
        const auto q = probabilities(p.row(s, l, t));
        builder.add(l, all, std::vector<float>(q.begin(), q.end()));
      }
    }
    std::vector<std::uint16_t> ids;
    std::vector<float> mean;
    builder.finish(spec.top_k, ids, mean);
    const auto added = table.add(key_of(tokens[i++]), ids, mean);
    SWITCHYARD_ASSERT(added == RoutingTable::Added::kNew, "first requests of their keys");
  }
  return table;
}

std::vector<std::uint32_t> first_blocks(const validation::Csv& csv, const std::string& trace) {
  std::vector<std::uint32_t> out;
  for (std::size_t row = 0; row < csv.rows.size(); ++row) {
    if (csv.rows[row][0] == trace) {
      out.insert(out.end(), static_cast<std::size_t>(validation::number(csv, row, 2, 1)),
                 static_cast<std::uint32_t>(validation::number(csv, row, 1, 0)));
    }
  }
  if (out.size() < 2) {
    throw InputError("workloads/mooncake_first_blocks.csv", "has no requests of " + trace);
  }
  return out;
}

MeasuredLookup read_lookup(const std::filesystem::path& scenarios) {
  const auto csv =
      validation::read_csv(scenarios / "validation" / "cpu_router" / "router_lookup.csv",
                           "what,tokens,layers,experts,hidden,nanoseconds");
  MeasuredLookup out;
  for (std::size_t row = 0; row < csv.rows.size(); ++row) {
    (csv.rows[row][0] == "live" ? out.live_ns : out.lookup_ns) =
        validation::number(csv, row, 5, 1e-3);
  }
  if (!(out.live_ns > 0) || !(out.lookup_ns > 0)) {
    throw InputError("validation/cpu_router/router_lookup.csv", "needs the rows live and lookup");
  }
  return out;
}

double router_time(const StaticTableRow& row, const MeasuredLookup& measured) {
  return 1 - row.hit_rate() + measured.lookup_ns / measured.live_ns;
}

}  // namespace

TableTraffic template_traffic(const std::vector<std::uint32_t>& text,
                              const std::vector<std::vector<std::uint32_t>>& templates,
                              double share, std::size_t requests, std::uint64_t seed) {
  SWITCHYARD_ASSERT(!templates.empty() && text.size() >= 2 * requests + kLength,
                    "a window of its own for every request");
  TableTraffic out;
  out.name = fmt::format("template {} %", show(100 * share));
  for (std::size_t n = 0; n < 2 * requests; ++n) {
    const auto at = static_cast<std::uint32_t>(n);
    std::vector<std::uint32_t> tokens = window(text, n, kLength);
    if (random_uniform(seed, kPurpose, {.sequence = at}) < share) {
      const double pick = random_uniform(seed, kPurpose, {.sequence = at, .layer = 1});
      const auto& chosen =
          templates[static_cast<std::size_t>(pick * static_cast<double>(templates.size()))];
      SWITCHYARD_ASSERT(chosen.size() >= kTablePrefixLength, "a template makes a whole key");
      std::copy_n(chosen.begin(), kTablePrefixLength, tokens.begin());
    }
    (n < requests ? out.build : out.test).push_back(std::move(tokens));
  }
  return out;
}

TableTraffic block_traffic(const std::string& name, const std::vector<std::uint32_t>& text,
                           const std::vector<std::uint32_t>& blocks) {
  SWITCHYARD_ASSERT(text.size() > 2 * blocks.size() + kLength, "a window for every block");
  // Blocks are numbered in order of appearance; requests' own tokens come from other windows.
  std::map<std::uint32_t, std::size_t> number;
  TableTraffic out;
  out.name = name;
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    const std::size_t block = number.try_emplace(blocks[n], number.size()).first->second;
    auto tokens =
        joined(window(text, block, kTablePrefixLength), window(text, blocks.size() + n, kTail));
    (n < blocks.size() / 2 ? out.build : out.test).push_back(std::move(tokens));
  }
  return out;
}

StaticTableRow run_static_table(const Engine& engine, const TableTraffic& traffic,
                                std::size_t sample) {
  SWITCHYARD_ASSERT(!traffic.build.empty() && !traffic.test.empty() && sample >= 1, traffic.name);
  const RouterShape s = router_shape(engine);
  StaticTableRow out;
  out.traffic = traffic.name;
  out.built = traffic.build.size();
  out.tested = traffic.test.size();
  std::map<TableKey, std::size_t> first;  // of the build requests with this key
  for (std::size_t n = 0; n < traffic.build.size(); ++n) {
    first.try_emplace(key_of(traffic.build[n]), n);
  }
  out.entries = first.size();
  std::vector<std::vector<std::uint32_t>> sampled;
  std::set<std::size_t> needed;
  for (std::size_t n = 0; n < traffic.test.size(); ++n) {
    const auto hit = first.find(key_of(traffic.test[n]));
    out.hits += hit != first.end() ? 1U : 0U;
    // The n with a multiple of tested / sample between n - 1 and n.
    if (n * sample / traffic.test.size() != (n + 1) * sample / traffic.test.size() ||
        sample >= traffic.test.size()) {
      sampled.push_back(traffic.test[n]);
      if (hit != first.end()) {
        needed.insert(hit->second);
      }
    }
  }
  const RoutingTable table = build_table(engine, traffic, needed);
  Loads live(s);
  Loads under(s);
  double agreed = 0;
  double slots = 0;
  const auto decisions = decide_tokens(engine, sampled, false);
  out.sampled = sampled.size();
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    const auto hit = table.find(key_of(sampled[i]));
    out.sampled_hits += hit ? 1U : 0U;
    out.tokens += decisions[i].tokens;
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      for (std::size_t t = 0; t < decisions[i].tokens; ++t) {
        const auto chosen = best_experts(decisions[i].row(s, l, t), s.top_k);
        live.add(l, chosen);
        if (!hit) {
          under.add(l, chosen);
          continue;
        }
        const auto entry = table.ids(hit->entry, l);
        under.add(l, entry);
        slots += static_cast<double>(s.top_k);
        for (const std::uint16_t e : chosen) {
          agreed += std::find(entry.begin(), entry.end(), e) != entry.end() ? 1 : 0;
        }
      }
    }
  }
  out.agreement = slots > 0 ? agreed / slots : std::numeric_limits<double>::quiet_NaN();
  out.cv_live = live.cv();
  out.cv_table = under.cv();
  out.top_live = live.top();
  out.top_table = under.top();
  const double share = static_cast<double>(s.top_k) / static_cast<double>(s.experts);
  out.floor = std::sqrt((1 - share) / (static_cast<double>(out.tokens) * share));
  return out;
}

claims::Measurements measure_static_table(const StaticTableRun& run) {
  claims::Measurements out;
  for (const StaticTableRow& row : run.rows) {
    out.add("hits." + row.traffic, 100 * row.hit_rate(),
            fmt::format("{} of {} requests; {} entries of {} requests", row.hits, row.tested,
                        row.entries, row.built));
    out.add("router_cpu." + row.traffic, router_time(row, run.lookup),
            fmt::format("router time with over without: misses and, for all, a lookup of {} of the "
                        "router's time; agreement {} %, load_cv {} (live {})",
                        show(run.lookup.lookup_ns / run.lookup.live_ns), show(100 * row.agreement),
                        show(row.cv_table), show(row.cv_live)));
  }
  const double hit_cost = (kCpuAfter - (1 - kHits) * kCpuBefore) / kHits;
  out.add("consistent", hit_cost > 0 && hit_cost < kCpuBefore ? 1 : 0,
          fmt::format("a hit would cost (8 - 0.05 x 45) / 0.95 = {} % of the CPU, {} of a pass",
                      show(hit_cost), show(hit_cost / kCpuBefore)));
  return out;
}

std::vector<Table> static_table_tables(const StaticTableRun& run,
                                       const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "static-table";
  t.title = "a static routing table by traffic";
  t.columns = {"traffic",        "build",           "test",         "entries",    "hits [%]",
               "routed",         "agreement@k [%]", "load_cv live", "with table", "floor",
               "top share live", "with table",      "router time"};
  for (const StaticTableRow& r : run.rows) {
    const auto f = [](double v) { return fmt::format("{:.4f}", v); };
    t.rows.push_back(
        {r.traffic, fmt::to_string(r.built), fmt::to_string(r.tested), fmt::to_string(r.entries),
         fmt::format("{:.2f}", 100 * r.hit_rate()), fmt::to_string(r.sampled),
         std::isnan(r.agreement) ? "n/a" : fmt::format("{:.2f}", 100 * r.agreement), f(r.cv_live),
         f(r.cv_table), f(r.floor), f(r.top_live), f(r.top_table), f(router_time(r, run.lookup))});
  }
  t.notes = {
      fmt::format("{}; requests of {} tokens, keys of the first {}", run.subject, kLength,
                  kTablePrefixLength),
      "routed: test requests that the engine routed; agreement of a hit's tokens with the live "
      "router; load_cv and share of the busiest expert (of choices; mean over layers) of all "
      "their tokens",
      fmt::format("router time: CPU time of the router over that without a table, {} us live and "
                  "{} us for a lookup of one request as measured; 1 is no gain",
                  show(1e-3 * run.lookup.live_ns), show(1e-3 * run.lookup.lookup_ns))};
  const auto judged = claims::judge(claims, measure_static_table(run));
  return {t, claims_table("static-table", judged), verdicts_table("static-table", judged)};
}

std::vector<Table> make_static_table(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const auto prompts = context.scenarios / "prompts";
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  const auto text = tokenizer.encode(cli::read_prompts(prompts / "long_32k.jsonl").front().text);
  std::vector<std::vector<std::uint32_t>> templates;
  for (const auto& p : cli::read_prompts(prompts / "shop_complaint.jsonl")) {
    if (templates.size() < kTemplates) {
      templates.push_back(tokenizer.encode(p.text));
    }
  }
  const auto csv = validation::read_csv(
      context.scenarios / "workloads" / "mooncake_first_blocks.csv", "trace,block,requests");
  const std::size_t sample = context.quick ? kQuickSample : kSample;
  StaticTableRun run;
  run.subject =
      fmt::format("{}, weights {}", engine.config().name, engine.checkpoint()->weight_hash().hex());
  run.lookup = read_lookup(context.scenarios);
  for (const int share : kShares) {
    run.rows.push_back(run_static_table(
        engine, template_traffic(text, templates, 0.01 * share, kRequests, kSeed), sample));
  }
  for (const std::string trace : {"conversation", "synthetic"}) {
    run.rows.push_back(run_static_table(
        engine, block_traffic("Mooncake " + trace, text, first_blocks(csv, trace)), sample));
  }
  auto tables = static_table_tables(run, claims::claims_of("static-table"));
  if (context.quick) {
    tables.front().notes.push_back(
        fmt::format("quick: the engine routes {} requests of each traffic", kQuickSample));
  }
  return tables;
}

}  // namespace switchyard::tables
