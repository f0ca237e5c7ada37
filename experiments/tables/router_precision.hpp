// SPDX-License-Identifier: Apache-2.0
// Table `router-precision`: the router alone in smaller formats, by the engine on the shipped
// checkpoint, teacher-forced. Two ways: its weights rounded, arithmetic in float32 (FP16, FP8,
// INT8, INT4: engine/nn/quantise.hpp); or the router computed in BF16, input, weights and logits
// rounded (EngineOptions::router_bf16). Experts and all else stay as stored.
//
//   margin       logit of the k-th minus that of the (k+1)-th expert of the float32 router, >= 0
//   logit error  root mean square of (logit - float32 logit) after both rows' means are taken out,
//                since a shift of all logits changes nothing
//   own, layer 0 the first MoE layer alone, whose inputs no expert has touched: the format's own
//                effect; further down changed inputs add up
//
// Batch: the same texts, b of them together (vllm-project/vllm#14027 and sgl-project/sglang#33764
// are about programs where that changes results). Not measured: GPUs, whose kernels add up in an
// order that depends on the batch; rounded activations other than BF16's.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "experiments/tables/quantisation.hpp"

namespace switchyard::tables {

struct RouterFormat {
  std::string name, weights, arithmetic;
  ForcedRun run;
};
struct RouterPrecision {
  std::string subject;
  std::vector<RouterFormat> formats;  ///< The first is float32, the others are held against it.
  struct Batch {
    std::size_t texts = 0;  ///< In a batch, at most.
    bool bf16 = false;
    ForcedRun run;
  };
  std::vector<Batch> batches;  ///< For each arithmetic the first has one text.
};
[[nodiscard]] RouterPrecision run_router_precision(
    const std::filesystem::path& checkpoint, std::span<const std::vector<std::uint32_t>> texts,
    unsigned threads);

/// [T, L] margins at k / k + 1; k < E (asserted).
[[nodiscard]] std::vector<float> margins(const ForcedRun& run);
/// By the definition above; `first_only`: layer 0. The two runs are of one shape (asserted).
[[nodiscard]] double logit_error(const ForcedRun& a, const ForcedRun& b, bool first_only);
/// Whether the sets of a decision [T, L] differ.
[[nodiscard]] std::vector<bool> changed_sets(const ForcedRun& a, const ForcedRun& b);

[[nodiscard]] std::vector<Table> router_precision_tables(const RouterPrecision& run);

}  // namespace switchyard::tables
