// SPDX-License-Identifier: Apache-2.0
// The verb `trace`: run the engine over prompts, write the routing trace, print a summary.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/health.hpp"
#include "engine/nn/trace_run.hpp"
#include "experiments/cli/ranks.hpp"

namespace switchyard::cli {

struct TraceOptions {
  std::filesystem::path model;    ///< Checkpoint folder.
  std::filesystem::path prompts;  ///< .txt or .jsonl
  std::filesystem::path output;   ///< -o
  std::filesystem::path policy;   ///< Empty: no capacity limit.
  std::filesystem::path signals;  ///< Signals file of a simulation (sim --signals-out), or empty.
  std::uint32_t max_new = 32;  ///< Per prompt, unless the prompt says otherwise; 0: prefill only.
  std::uint32_t batch = 16;    ///< >= 1
  std::uint32_t chunk = 0;     ///< 0: whole prompts.
  bool router_input = false;   ///< Store the router's input of every row and layer.
  std::uint64_t seed = 1;      ///< Of the policy and of sampling.
  double temperature = 0;      ///< 0: greedy.
  double top_p = 1;
  std::uint32_t top_k = 0;         ///< 0: all.
  std::uint32_t kv_block = 16;     ///< Tokens per block of the KV cache. No effect on the trace.
  std::string kv_memory;           ///< "2 GiB"; empty: no limit.
  std::string quantise;            ///< See parse_quantise(); empty: weights as stored.
  std::string router_dtype;        ///< See router_bf16().
  std::uint32_t health = 0;        ///< Check the weights before every n-th step; 0: never.
  std::vector<std::string> flips;  ///< See parse_bit_flip().
  std::string dtype = "f32";       ///< f32; bf16 with --device cuda only.
  std::string device = "cpu";      ///< cpu | cuda
  unsigned threads = 0;            ///< 0: the cores this process may use. No effect on any output.
  RankOptions ranks;               ///< Under mpirun; no effect on the trace.
  bool quiet = false;              ///< No summary, no progress on the terminal.
  std::string progress;            ///< "" or "json".
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError. Writes `output`, prints the summary table
/// (or, with progress = json, event lines) to stdout, progress and speed to a terminal's stderr.
/// Under mpirun every rank makes this call; rank 0 writes and prints.
int run_trace(const TraceOptions& options);

/// The prompts of a .txt or .jsonl file as tokens; `max_new` where a prompt says nothing.
/// InputError names file and line.
[[nodiscard]] std::vector<TracePrompt> read_trace_prompts(const std::filesystem::path& file,
                                                          std::uint32_t max_new,
                                                          const RoutingPolicy& policy,
                                                          const Engine& engine,
                                                          const model::Tokenizer& tokenizer);

/// InputError("--kv-memory", …) for text that is no amount of memory, or zero.
[[nodiscard]] KvOptions kv_options(std::uint32_t block, const std::string& memory);

/// --quantise; empty text: nothing is rounded.
[[nodiscard]] QuantiseOptions quantise_options(const std::string& text);
/// --router-dtype f32 or bf16; empty text: as the checkpoint's config.json says.
[[nodiscard]] std::optional<bool> router_bf16(const std::string& text);
/// The monitor of --health and --flip; null when neither is given. InputError: --flip without
/// --health, which would do harm that nothing notices.
[[nodiscard]] std::unique_ptr<HealthMonitor> make_monitor(Engine& engine, std::uint32_t every,
                                                          const std::vector<std::string>& flips);
/// What the monitor saw, as rows and notes of the trace's table.
void add_health(Table& table, const HealthReport& report);
/// What rounding did, one row for each part of the model.
void add_quantised(Table& table, const std::vector<QuantisedPart>& parts);

/// The table that run_trace prints.
[[nodiscard]] Table trace_summary_table(const TraceRunSummary& summary);

/// InputError: a device or a type that there is not, BF16 on the CPU, too many threads.
void check_device(const std::string& device, const std::string& dtype, unsigned threads);
/// check_device(), then the GPU's backend (of several ranks on a machine each its own while there
/// are enough), or null for the CPU's, which Engine::load makes with its threads. InputError or
/// CapabilityError when the engine cannot serve the options; InputError: BF16 on several ranks.
[[nodiscard]] std::unique_ptr<Backend> device_backend(const std::string& device,
                                                      const std::string& dtype, unsigned threads,
                                                      const Communicator* job = nullptr);
/// What carries rows between the ranks of `job`: NCCL on `backend`'s GPUs, or null for the job
/// itself, with the reason in `why` ("" without a GPU or other ranks). Every rank calls it.
[[nodiscard]] std::unique_ptr<Communicator> gpu_ranks(Backend* backend, Communicator* job,
                                                      const RankOptions& options, std::string& why);
/// Engine::load, on `backend` if there is one. InputError: options that a GPU cannot serve
/// (--health).
[[nodiscard]] Engine load_engine(const std::filesystem::path& model,
                                 std::unique_ptr<Backend> backend, const EngineOptions& options,
                                 std::uint32_t health);

}  // namespace switchyard::cli
