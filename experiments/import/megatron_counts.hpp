// SPDX-License-Identifier: Apache-2.0
// Tokens per expert that Megatron-LM logs (NVIDIA/Megatron-LM#3842, megatron/training/
// activation_logging.py, --save-tokens-per-experts-interval) as loads of experts.
//
// Each rank appends to tokens_per_expert/rank<N>.jsonl one object a line:
//   {"iter": 100, "block": "decoder", "layer": 3, "tpe": [[128, 64], [96, 80]]}
//   {"iter": 100, "block": "mtp", "mtp_idx": 0, "layer": 1, "tpe": [[50, 50]]}
// with a list per micro-batch of how many rows each of the rank's own experts got. Of E experts
// EP rank e holds e · E/ep … (e + 1) · E/ep − 1. Which rank is what follows from Megatron's order
// "tp-cp-ep-dp-pp" for experts (megatron/core/parallel_state.py, initialize_model_parallel):
//   rank = etp + ETP · (ep + EP · (edp + EDP · stage))
// ETP is --expert-tensor-parallel-size (unless stated Megatron takes the tensor parallel size), EDP
// the copies of the experts that train on different tokens. Over EDP counts add up; the ETP ranks
// of an expert see the same rows, which is checked, and count once. `layer` is the position in the
// stage's own list (transformer_block.py numbers from 0 in each), so stages state how many layers
// they hold, those without experts included: layer of the model = layers of the stages before + it.
//
// Not read: multi-token prediction ("mtp"), whose layers are none of the model's: counted and left
// out. Not modelled, since a file does not show it: --use-tp-pp-dp-mapping with EDP and stages both
// above 1 (another order of ranks); virtual stages (two layers under one number); recomputation of
// MoE layers (each micro-batch logged twice, all shares as they are); FP8 and FP4, whose counts are
// padded to the kernels' multiple; tokens that a capacity dropped (not in the counts).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/import/expert_counts.hpp"

namespace switchyard::importers {

/// Sizes of the job; each ≥ 1. Their product with the stages is the number of ranks.
struct MegatronJob {
  std::uint32_t ep = 1, etp = 1, edp = 1;
  std::vector<std::uint32_t> stage_layers;  ///< Layers of each pipeline stage; empty: one stage.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> iterations;  ///< First and last; else all.
};

struct MegatronCounts {
  ExpertCounts counts;
  std::uint32_t ranks = 0;
  std::uint64_t iterations = 0, first = 0, last = 0;  ///< How many, the first and the last number.
  std::uint64_t micro_batches = 0;                    ///< Of a layer and EDP rank, all iterations.
  std::uint64_t mtp_lines = 0;                        ///< Left out.
  std::vector<std::uint32_t> layers, gaps;            ///< With counts; those between them without.
};

/// The files that read_megatron_counts() opens: rank0.jsonl … of a folder, or of its folder
/// tokens_per_expert, in the order of ranks; or the one file. InputError: none, one is missing, or
/// a single one of several.
std::vector<std::filesystem::path> megatron_rank_files(const std::filesystem::path& input);

/// One line is in memory at a time, and 32 bytes for each line of one rank. InputError with file
/// and line: no such object, a count that is no whole number, lists of another length, a layer and
/// iteration twice; with the file: lines that another rank of its stage has and it has not, other
/// counts than its ETP ranks.
MegatronCounts read_megatron_counts(const std::filesystem::path& input, const MegatronJob& job);

}  // namespace switchyard::importers
