// SPDX-License-Identifier: Apache-2.0
// Table `coverage`: C01 to C96, in which tables their rows are and what decides them; for a claim
// without a row, what is missing. Counted from the claim files, so it cannot go stale.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "experiments/tables/tables.hpp"

namespace switchyard::tables {
namespace {

struct Missing {
  const char *id, *source, *claim, *why;
};
constexpr std::array<Missing, 10> kMissing{
    {{"C13", "S0 4.1", "a routing table hits 95 % and takes the router's CPU use from 45 to 8 %",
      "needs 10,000 prompts of a workload for the table and as many to test it; `inspect "
      "--build-table` and policy table.file are there"},
     {"C30", "S1 4.2", "prompts below 16 tokens are routed nearly at random",
      "needs a table over scenarios/prompts/lengths.jsonl with the agreement of a noisy router"},
     {"C34", "S1 5.3", "API tiers of 800, 1500 and 650 ms to the first token",
      "top-1 with INT4 and FP8 per tier in one run: a run has one format of its experts"},
     {"C57", "S4 4.1", "a code prefix lifts one expert to 35 %: p95 falls by 17 %",
      "requests of one domain whose expert is placed beside them"},
     {"C62", "S0 2.2", "two paraphrases change their first expert",
      "needs a table over scenarios/prompts/paraphrase.jsonl"},
     {"C67", "S0 3.2", "one expert takes 68 % of the after-sales requests",
      "needs a table over the scenarios/prompts/shop_*.jsonl"},
     {"C75", "S1 2.3", "a router adapter takes accuracy on a new domain from 61 to 91 %",
      "a router tuned on one domain as the reference"},
     {"C78", "S1 3.3, 4.4", "warm-up takes SLO attainment from 82 to 99.3 %",
      "the claim states no SLO and no load; loading and SLO are keys of a scenario"},
     {"C89", "S4 4.1, 4.4", "gate entropy of vague and clear prompts",
      "needs a table over scenarios/prompts/vague_clear.jsonl"},
     {"C92", "S4 5.2", "LayerNorm before the router steadies it by 300 %",
      "needs the agreement of noisy routers with and without policy condition.layer_norm"}}};

}  // namespace

Table coverage_table() {
  struct Found {
    std::string source;
    std::set<std::string> tables, deciders;
    std::size_t rows = 0;
  };
  std::map<std::string, Found> found;
  for (const TableEntry& entry : table_entries()) {
    if (!entry.judges) {
      continue;
    }
    for (const claims::Claim& claim : claims::claims_of(entry.name)) {
      Found& f = found[claim.id];
      f.source = f.source.empty() ? claim.source : f.source;
      f.tables.insert(entry.name);
      f.deciders.emplace(name_of(claim.decided_by));
      ++f.rows;
    }
  }
  Table t;
  t.name = "coverage";
  t.title = "C01 to C96: where each claim is judged";
  t.columns = {"claim", "source", "rows", "tables", "decided by", "what is missing"};
  std::size_t judged = 0;
  for (int i = 1; i <= 96; ++i) {
    const std::string id = fmt::format("C{:02}", i);
    if (const auto it = found.find(id); it != found.end()) {
      const Found& f = it->second;
      ++judged;
      t.rows.push_back({id, f.source, fmt::to_string(f.rows),
                        fmt::format("{}", fmt::join(f.tables, ", ")),
                        fmt::format("{}", fmt::join(f.deciders, ", ")), ""});
      continue;
    }
    const auto* const m = std::find_if(kMissing.begin(), kMissing.end(),
                                       [&](const Missing& x) { return id == x.id; });
    t.rows.push_back(m == kMissing.end()
                         ? std::vector<std::string>{id, "", "0", "", "", "not listed"}
                         : std::vector<std::string>{id, m->source, "0", "", "",
                                                    fmt::format("{}: {}", m->claim, m->why)});
  }
  t.notes.push_back(fmt::format(
      "{} of 96 have rows; a claim of several parts may have parts without one", judged));
  return t;
}

std::vector<Table> make_coverage(const TableContext&) { return {coverage_table()}; }

}  // namespace switchyard::tables
