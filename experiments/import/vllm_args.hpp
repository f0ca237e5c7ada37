// SPDX-License-Identifier: Apache-2.0
// A `vllm serve` command line as a scenario.
//
//   flag                              becomes
//   --tensor-parallel-size, -tp       parallel.tp (attention = tp, vocab_parallel)
//   --data-parallel-size, -dp         parallel.dp
//   --pipeline-parallel-size, -pp     parallel.pp
//   --enable-expert-parallel, -ep     parallel.ep = dp · tp; else 1: every expert over the tp group
//   --max-num-seqs                    workload.batching.max_sequences (both are per DP rank)
//   --max-num-batched-tokens          workload.batching.token_budget (likewise)
//   --[no-]enable-chunked-prefill     workload.batching.chunked_prefill
//   --gpu-memory-utilization          workload.batching.memory_share
//   --block-size                      memory.kv.block
//   --dtype, --quantization           model.dtype.experts and shared
//   --kv-cache-dtype                  model.dtype.kv
// (docs.vllm.ai, cli/serve; serving/data_parallel_deployment and expert_parallel_deployment.) What
// is not given keeps Switchyard's default, since vLLM's defaults differ by version and GPU. Flags
// that change what runs and have no counterpart (speculative decoding, offload, KV transfer, …) are
// refused; all others are named in a comment at the top. The command says nothing about the load:
// requests come from a file (switchyard import requests-…), and the experts are drawn uniformly
// unless the scenario is given a trace.
//
// Not modelled: a config file (--config), environment variables, quantised attention of checkpoints
// that say so themselves.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::importers {

struct VllmArgs {
  std::string model;                  ///< As the command names it.
  std::string scenario;               ///< TOML.
  std::vector<std::string> left_out;  ///< Flags that became nothing.
};

struct VllmArgsOptions {
  std::string model_file;     ///< For model.file; a path as it shall stand in the scenario.
  std::string hardware_file;  ///< For hardware.file.
  std::string requests_file;  ///< For workload.arrivals.file.
};

/// The model that the command names. InputError(where:line) when it is no such command.
std::string model_of_vllm_args(std::string_view text, const std::string& where);
/// InputError with `where`:line of the flag.
VllmArgs scenario_from_vllm_args(std::string_view text, const std::string& where,
                                 const VllmArgsOptions& options);

}  // namespace switchyard::importers
