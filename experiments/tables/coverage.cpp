// SPDX-License-Identifier: Apache-2.0
// Table `coverage`: C01 to C96, in which tables their rows are and what decides them, and parts
// that are missing. Counted from the claim files, so it cannot go stale.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "experiments/tables/tables.hpp"

namespace switchyard::tables {
namespace {

/// Claims without a row and parts of one that have none or rest on less than the claim asks.
struct Part {
  const char *id, *why;
};
constexpr std::array kParts{
    Part{"C13",
         "the Mooncake traces whole: of 12,031 and 3,993 requests the first 3,486 and 2,050 "
         "are there, so that less than 10,000 build and test a table"},
    Part{"C34",
         "tiers of several formats in one run: a run has one format of its experts, so a "
         "tier is a deployment; FP8 needs cards of more than 192 GB"},
    Part{"C62", "embeddings of another model: the cosine is of our engine's hidden states"},
    Part{"C75", "quality of the answers: people judge it (H08)"},
    Part{"C78",
         "the article's SLO and load: it states none; ours are TTFT <= 1 s and 0.7 of "
         "saturation"}};

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
    const auto it = found.find(id);
    const auto* const part =
        std::find_if(kParts.begin(), kParts.end(), [&](const Part& p) { return id == p.id; });
    if (it == found.end()) {
      t.rows.push_back({id, "", "0", "", "", part == kParts.end() ? "not listed" : part->why});
      continue;
    }
    const Found& f = it->second;
    ++judged;
    t.rows.push_back(
        {id, f.source, fmt::to_string(f.rows), fmt::format("{}", fmt::join(f.tables, ", ")),
         fmt::format("{}", fmt::join(f.deciders, ", ")), part == kParts.end() ? "" : part->why});
  }
  t.notes.push_back(fmt::format(
      "{} of 96 have rows; a claim of several parts may have parts without one", judged));
  return t;
}

std::vector<Table> make_coverage(const TableContext&) { return {coverage_table()}; }

}  // namespace switchyard::tables
