// SPDX-License-Identifier: Apache-2.0
// The table `static-table` (M14, claim C13): a static routing table built on one half of a traffic
// and tested on the other. What it hits is a property of the traffic, so the traffic is varied:
//
//   template n %     so many of the requests begin with one of 16 templates (the first 32 tokens of
//                    our complaint prompts), the others with a text of their own (windows of
//                    prompts/long_32k.jsonl); drawn with a seed; 10,000 build, 10,000 test
//   Mooncake         the first 512-token block of each request of the two published traces as far
//                    as they are shipped (scenarios/workloads/mooncake_first_blocks.csv): the first
//                    half builds, the second tests; equal blocks get equal tokens of ours
//
// A request has 64 tokens: 32 that make the key, 32 of its own. Keys are looked up for all
// requests; the engine routes evenly spaced test requests (and the build requests they hit), from
// which:
//
//   agreement@k    of a hit's tokens and layers: |live set and entry| / k, mean
//   load_cv, top   of all sampled tokens as one window: with the live router, and with the table
//                  (hits take the entry's experts); mean over layers
//   router time    CPU time of the router under the table over that without: (1 - hits) + lookup /
//                  live, both measured (scenarios/validation/cpu_router/router_lookup.csv)
//
// Not modelled: hidden states under the table (the live decisions are those of the live model);
// tables that are filled while serving; blocks that differ but begin alike (they count as different).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/prompt_decisions.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// Requests of one traffic, in order.
struct TableTraffic {
  std::string name;
  std::vector<std::vector<std::uint32_t>> build, test;  ///< Tokens of each request.
};
/// `texts`: at least `requests` + 64 tokens; `templates`: of at least 32 tokens each. share in
/// [0, 1]; `requests` build and as many test.
[[nodiscard]] TableTraffic template_traffic(
    const std::vector<std::uint32_t>& text,
    const std::vector<std::vector<std::uint32_t>>& templates, double share, std::size_t requests,
    std::uint64_t seed);
/// Requests that begin with the given blocks; the first half builds.
[[nodiscard]] TableTraffic block_traffic(const std::string& name,
                                         const std::vector<std::uint32_t>& text,
                                         const std::vector<std::uint32_t>& blocks);

struct MeasuredLookup {
  double live_ns = 0, lookup_ns = 0;  ///< Of one request's router, and of its lookup.
};

struct StaticTableRow {
  std::string traffic;
  std::uint64_t built = 0, tested = 0, entries = 0, hits = 0;
  std::uint64_t sampled = 0, sampled_hits = 0, tokens = 0;  ///< tokens: of the sampled requests.
  double agreement = 0;                                     ///< NaN without hits.
  double cv_live = 0, cv_table = 0, floor = 0, top_live = 0, top_table = 0;
  [[nodiscard]] double hit_rate() const {
    return static_cast<double>(hits) / static_cast<double>(tested);
  }
};
/// `sample`: test requests that the engine routes, at most.
[[nodiscard]] StaticTableRow run_static_table(const Engine& engine, const TableTraffic& traffic,
                                              std::size_t sample);

struct StaticTableRun {
  std::string subject;
  std::vector<StaticTableRow> rows;
  MeasuredLookup lookup;
};
[[nodiscard]] claims::Measurements measure_static_table(const StaticTableRun& run);
[[nodiscard]] std::vector<Table> static_table_tables(const StaticTableRun& run,
                                                     const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
