// SPDX-License-Identifier: Apache-2.0
// Routing traces of johanna-rock/moe-balance (sim/trace_format.md at feb96fe) as a routing trace.
//
// JSON lines, each of one batch and one layer:
//   {"layer": 0, "batch_id": 12, "topk_experts": [[3, 7], [7, 3]], "origin_rows": [0, 1]}
// topk_experts is [tokens][k]; batch_id a whole number or a text; origin_rows (the device of each
// token; absent in what sim/convert_npz_to_trace.py writes), topk_weights, request_id and
// source_file may stand beside them. Lines are in any order; every batch has the same layers, and
// each of its lines the same number of tokens. The layers are the model's (those without experts
// are passed over), or its MoE layers numbered from 0. Experts are logical ids.
//
// A batch is one sequence, all of whose tokens are its prompt and run in one step: batches are
// steps in the order of their first lines. Where the converter put a request with its answer into a
// batch, the file does not say where the answer begins. A last token with zeros in every layer
// (k > 1) is one that a server returned and never ran; it is left out.
//
// Not kept, since a routing trace has no place for it (engine/trace/experts_only.hpp): origin_rows,
// topk_weights, source_file; token ids are 0.
#pragma once
#include <cstdint>
#include <filesystem>

#include "engine/model/model_config.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::importers {

struct MoeBalanceTrace {
  RoutingTrace trace;
  std::uint32_t passed_over = 0;          ///< Layers of the file without experts.
  std::uint64_t never_ran = 0;            ///< Last tokens of zeros, left out.
  bool origins = false, weights = false;  ///< The file has some; not kept.
};

/// One line is in memory at a time, and 2 bytes for each id of the file. InputError with file and
/// line: no such object, an expert beyond the model's E or twice in a token, another k, another
/// number of tokens than the batch's first line, a batch and layer twice; with the line of a
/// batch's first line: a layer that is missing; with the file: layers that are not the model's.
MoeBalanceTrace read_moe_balance(const std::filesystem::path& input,
                                 const model::ModelConfig& model);

}  // namespace switchyard::importers
