// SPDX-License-Identifier: Apache-2.0
// Measured operation times as CSV files, one kind a file, named <device>_<kind>:
//   moe_layer_us.csv model,hidden,inter,topk,experts,dtype,engine,kernel_source,distribution,
//                            tokens,latency_us
//   grouped_gemm_us.csv     kernel_source,dtype,hidden,inter,local_experts,tokens_per_expert,up_us,
//                           down_us         (both products of an expert, without permutation);
//                           optional up_rows,down_rows (grouped_rows); a kernel_source that ends in
//                           _masked or _contiguous names the variant of its library
//   gemm_us.csv             kernel_source,dtype,m,n,k,latency_us
//   mla_decode_us.csv       kernel_source,kv_dtype,heads,rank,rope,batch,positions,latency_us
//   attn_decode_us.csv, attn_prefill_us.csv
//                            batch,isl,step,heads,kv_heads,head_dim,window,attn_dtype,kv_dtype,
//                            latency_us
//   nccl_<version>_us.csv    op,num_gpus,dtype,message_elements,bytes,latency_us
//   custom_allreduce_us.csv  backend,dtype,num_gpus,message_elements,latency_us
//   deepep_ll_us.csv         nodes,hidden,tokens,topk,experts,dispatch_us,…,combine_us,…
//   deepep_normal_us.csv nodes,hidden,tokens,topk,experts,dispatch_sms,combine_sms,dispatch_us,…,
//                            combine_us,…
//   host_us.csv              library,launch,sequences,latency_us (a step's time of the host; launch:
//                            eager, graph, fused or any)
// A row's key is the text of its columns that are not measured, joined with commas; rows whose key
// has an even FNV-1a (64 bits) are for fitting, the others for judging.
//
// MoE rows state a distribution of tokens over experts, not the draw: "balanced" touches
// min(E, T·k) experts; "power_law_a" is the draw of aiconfigurator's collector at its quantiles
// (loads ∝ ((hi^(1−a) − lo^(1−a)) u + lo^(1−a))^(1/(1−a)), lo … hi = 1 … 0.8 T, or 0.01 … 2 when
// T·k <= E; rounded, at most T each).
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/calibration.hpp"

namespace switchyard::validation {

/// Rows, distinct experts and most rows of one expert in a measured grouped GEMM of `experts`
/// groups and nominally `tokens` each, of which the first product had `up` rows in all and the last
/// one `down`: they are drawn anew for each, floor(tokens · u) per group with u uniform in
/// [0.7, 1.3] (DeepGEMM's test generator, which InferSim's bench uses). Rows are their mean by
/// FLOPs; with fewer rows than experts, so many experts have one; most rows are the expected
/// largest draw.
std::array<double, 3> grouped_rows(double experts, double tokens, double up, double down);

struct MeasuredRow {
  scenario::OpKind kind = scenario::OpKind::kExperts;
  std::string library, variant;
  model::DType dtype = model::DType::kBf16;
  std::vector<std::uint64_t> shape;
  scenario::OpPoint point;
  std::uint64_t hash = 0;
  std::string group;  ///< Line of the summary: "MoE layer", "NCCL, 1 MiB and more", …
  std::string label;  ///< The key, for people.
  [[nodiscard]] bool fitted() const { return hash % 2 == 0; }
};

struct MeasuredRows {
  std::vector<MeasuredRow> rows;     ///< By file name, then line.
  std::vector<std::string> ignored;  ///< CSV files of another device or of no known kind.
};

std::uint64_t fnv1a(std::string_view text);

/// Loads (assignments per expert, all experts) that stand for a distribution; sum tokens · top_k.
/// InputError(where, …) for an unknown name.
std::vector<std::uint64_t> expected_loads(const std::string& distribution, std::uint64_t experts,
                                          std::uint64_t tokens, std::uint64_t top_k,
                                          const std::string& where);

/// Reads every <device>_*.csv of a folder. InputError with file:line for missing columns and values
/// that are no numbers > 0, and when the folder has no such file.
MeasuredRows read_measured(const std::filesystem::path& folder, const std::string& device);

}  // namespace switchyard::validation
