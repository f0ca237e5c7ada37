// SPDX-License-Identifier: Apache-2.0
// Counts of assignments per layer and expert as the CSV "layer,expert,load" that
// parallel.placement_options.loads and memory.residency.loads read.
//
// Forms, recognised by their content:
//   CSV   a header with the columns layer, expert and count (or load), in any order; other columns
//         must hold one value in the whole file, since two tables cannot be told apart
//   JSON  a matrix [layers][experts]; or an object with one under "logical_count" (SGLang's
//         --init-expert-location) or "weight" (EPLB); [passes][layers][experts] is summed over
//         passes (SGLang's recorder). Row 0 is layer `first_layer`.
// Every layer needs every expert, so that nothing is guessed: an expert without tokens is a 0.
//
// Not modelled: SGLang's .pt files (Python pickles): refused, convert them to JSON.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::importers {

struct ExpertCounts {
  std::uint32_t layers = 0, experts = 0;
  double total = 0, largest = 0;  ///< Of all loads; the largest single one.
  std::string csv;
};

/// Layer number → [E]; below 0: not stated.
using ExpertLoads = std::map<std::uint32_t, std::vector<double>>;

/// The CSV of loads. InputError (where): a layer that does not state every expert of the widest
/// one; no load above 0.
ExpertCounts expert_counts(const ExpertLoads& loads, const std::string& where);

/// InputError with `where`:line (CSV) or the index (JSON). `first_layer` must be 0 for a CSV, which
/// names its layers.
ExpertCounts read_expert_counts(std::string_view text, const std::string& where,
                                std::uint32_t first_layer);

}  // namespace switchyard::importers
