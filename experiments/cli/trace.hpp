// SPDX-License-Identifier: Apache-2.0
// The verb `trace`: run the engine over prompts, write the routing trace, print a summary.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"
#include "engine/nn/trace_run.hpp"
#include "experiments/cli/ranks.hpp"

namespace switchyard::cli {

struct TraceOptions {
  std::filesystem::path model;    ///< Checkpoint folder.
  std::filesystem::path prompts;  ///< .txt or .jsonl
  std::filesystem::path output;   ///< -o
  std::filesystem::path policy;   ///< Empty: no capacity limit.
  std::filesystem::path signals;  ///< Run file of a simulation of this model, or empty.
  std::uint32_t max_new = 32;  ///< Per prompt, unless the prompt says otherwise; 0: prefill only.
  std::uint32_t batch = 16;    ///< >= 1
  std::uint32_t chunk = 0;     ///< 0: whole prompts.
  bool router_input = false;   ///< Store the router's input of every row and layer.
  std::uint64_t seed = 1;      ///< Of the policy and of sampling.
  double temperature = 0;      ///< 0: greedy.
  double top_p = 1;
  std::uint32_t top_k = 0;      ///< 0: all.
  std::uint32_t kv_block = 16;  ///< Tokens per block of the KV cache. No effect on the trace.
  std::string kv_memory;        ///< "2 GiB"; empty: no limit.
  std::string dtype = "f32";    ///< f32; bf16 is refused by the CPU engine.
  std::string device = "cpu";   ///< cpu | cuda
  unsigned threads = 0;         ///< 0: the cores this process may use. No effect on any output.
  RankOptions ranks;            ///< Under mpirun; no effect on the trace.
  bool quiet = false;           ///< No summary, no progress on the terminal.
  std::string progress;         ///< "" or "json".
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError. Writes `output`, prints the summary table
/// (or, with progress = json, event lines) to stdout, progress and speed to a terminal's stderr.
/// Under mpirun every rank makes this call; rank 0 writes and prints.
int run_trace(const TraceOptions& options);

/// InputError("--kv-memory", …) for text that is no amount of memory, or zero.
[[nodiscard]] KvOptions kv_options(std::uint32_t block, const std::string& memory);

/// The table that run_trace prints.
[[nodiscard]] Table trace_summary_table(const TraceRunSummary& summary);

/// InputError or CapabilityError when the CPU engine cannot serve the options.
void require_device(const std::string& device, const std::string& dtype, unsigned threads);

}  // namespace switchyard::cli
