// SPDX-License-Identifier: Apache-2.0
// Routing of real models as shipped in scenarios/routing (source, licence and form:
// PROVENANCE.md there): which experts each token took, and counts per text.
//
// Not modelled: logits and weights, which the excerpts leave out (engine/trace/experts_only.hpp).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard::tables {

struct RoutingExcerpt {
  RoutingTrace trace;   ///< Experts only; each sequence's prompt is a step, then each answer token.
  bool ranked = false;  ///< A token's experts are best first; else their order means nothing.
};

/// InputError with `where`:line: header incomplete, a line of another length, an expert >= E or
/// twice in a layer, no token.
[[nodiscard]] RoutingExcerpt parse_excerpt(std::string_view text, const std::string& where);
/// scenarios/routing/NAME.txt
[[nodiscard]] RoutingExcerpt read_excerpt(const std::filesystem::path& scenarios,
                                          const std::string& name);
/// The names of the excerpts, in the tables' order.
[[nodiscard]] const std::vector<std::string>& excerpt_names();

/// Choices of one text in one layer.
struct ExpertCounts {
  std::string model, text;
  std::uint32_t top_k = 0, layer = 0;
  std::vector<std::uint64_t> load;  ///< [E]
  [[nodiscard]] std::uint64_t choices() const;
  [[nodiscard]] std::uint64_t tokens() const { return choices() / top_k; }
};
/// scenarios/routing/expert_counts.csv, ordered by model, text, layer. InputError with file:line.
[[nodiscard]] std::vector<ExpertCounts> read_counts(const std::filesystem::path& scenarios);

/// Entropy of a gate over all experts, mean over tokens.
struct GateEntropy {
  std::string model;
  std::uint32_t experts = 0, top_k = 0, layer = 0;
  std::uint64_t tokens = 0;
  double normalised = 0;  ///< Over log E, 0 … 1.
};
/// scenarios/routing/gate_entropy.csv. InputError with file:line.
[[nodiscard]] std::vector<GateEntropy> read_gate_entropy(const std::filesystem::path& scenarios);

}  // namespace switchyard::tables
