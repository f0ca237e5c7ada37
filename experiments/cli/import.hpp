// SPDX-License-Identifier: Apache-2.0
// The verb `import`: other tools' files as Switchyard's own. An option that a kind does not
// take is refused.
//   eplb                  an expert placement as the CSV of parallel.placement
//   topo-m, nccl-xml      nvidia-smi's or NCCL's topology as a hardware file
//   requests-*            published request traces as the CSV of workload.arrivals.file
//   nccl-tests            printed times as the CSV of network.measured
//   expert-counts         assignments per layer and expert as the CSV of placement_options.loads
//   megatron-jsonl        Megatron's tokens per expert, a file a rank, likewise
//   routing-vllm, -sglang experts per token of a response as a routing trace without logits
//   moe-balance           routing traces of johanna-rock/moe-balance, likewise
//   vllm-args             a vllm serve command as a scenario
//   deepep                printed times of dispatch and combine as a CSV of `fit --measured`
// Forms and formulas: sim/scenario/request_trace.hpp, experiments/import/*.hpp.
//
// Forms of a placement that are recognised by their content:
//   JSON      physical_to_logical_map (SGLang, vLLM), phy2log or expected_phy2log (EPLB):
//             [layers][slots] → expert; num_gpus, or --gpus
//   CSV       layer,device,experts with experts separated by blanks
//   text      "devices layers experts", then devices · layers · experts zeros and ones (omni-infer)
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct ImportOptions {
  std::string kind;
  std::filesystem::path input, output;
  std::uint32_t gpus = 0;         ///< Ranks of a JSON map that does not state them; 0: not given.
  std::uint32_t first_layer = 0;  ///< Layer number of the model for row 0.
  std::string like;               ///< topo-m: hardware file the figures come from.
  std::string numa;               ///< topo-m: rate between two sockets, "" = from `like`.
  std::string collective;         ///< nccl-tests: which of the text's tables.
  std::string buffer;             ///< nccl-tests: out-of-place (if empty) or in-place.
  std::string model;              ///< routing-*: what ran; vllm-args: in place of the command's.
  std::string requests;           ///< vllm-args: the CSV of workload.arrivals.file.
  std::vector<std::uint64_t> tokens;  ///< deepep: tokens of a rank, one for each run of the text.
  std::uint64_t hidden = 0, top_k = 0, experts = 0;  ///< deepep: the shape of all runs.
  std::optional<std::uint32_t> ep, etp, edp;         ///< megatron-jsonl: sizes of the job; else 1.
  std::vector<std::uint32_t> stage_layers;  ///< megatron-jsonl: layers of each pipeline stage.
  std::string iterations;                   ///< megatron-jsonl: "100" or "100-200"; "" = all.
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError.
int run_import(const ImportOptions& options);
/// The kinds topo-m and nccl-xml. The output appears only if it reads back as a hardware file.
int import_topo_m(const ImportOptions& options);
/// The kinds requests-azure, requests-burstgpt, requests-mooncake.
int import_requests(const ImportOptions& options);
/// The kinds nccl-tests, expert-counts and deepep (experiments/import/nccl_tests.hpp,
/// expert_counts.hpp, deepep.hpp).
int import_deepep(const ImportOptions& options);
int import_nccl_tests(const ImportOptions& options);
int import_expert_counts(const ImportOptions& options);
/// The kind megatron-jsonl (experiments/import/megatron_counts.hpp).
int import_megatron(const ImportOptions& options);
/// The kinds routing-vllm and routing-sglang (experiments/import/routing_dump.hpp).
int import_routing(const ImportOptions& options);
/// The kind moe-balance (experiments/import/moe_balance.hpp).
int import_moe_balance(const ImportOptions& options);
/// The kind vllm-args (experiments/import/vllm_args.hpp); the scenario appears only if it can run.
int import_vllm_args(const ImportOptions& options);

}  // namespace switchyard::cli
