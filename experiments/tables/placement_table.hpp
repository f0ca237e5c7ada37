// SPDX-License-Identifier: Apache-2.0
// How fast placements rot: experts placed by one set of tokens of a real model, run on another.
//
// Evaluated are two requests of DeepSeek-V2-Lite on legal texts (scenarios/routing). A placement is
// made from these tokens themselves (hindsight: what is the best it could do), from two other
// requests of the domain, from as many tokens of another domain (summaries), and from all tokens
// of each domain that the source has.
//
// Not modelled: the cost of moving experts (parallel.rebalance has it), decode (the source recorded
// prompts).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/tables/routing_excerpts.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// The sequences [from, from + count) of a trace, as a trace.
[[nodiscard]] RoutingTrace some_sequences(const RoutingTrace& trace, std::uint32_t from,
                                          std::uint32_t count);

/// What a placement is made from: loads [L][E], and how often two experts were chosen by a token
/// [L][E·E], empty where only counts are known.
struct PlacementSource {
  std::string age;
  std::uint64_t tokens = 0;
  std::vector<std::vector<double>> load, together;
};
[[nodiscard]] PlacementSource source_of(const std::string& age, const RoutingTrace& trace);

[[nodiscard]] Table placement_table(ShortRuns& runs, const std::filesystem::path& scenarios);

}  // namespace switchyard::tables
