// SPDX-License-Identifier: Apache-2.0
// File: trace_run.hpp. Runs prompts through the engine and streams what the router did into a
// routing trace.
//
// Order of work: prompts in the order given, at most `batch` at a time. A step holds, of every
// sequence that runs, either its next `chunk` prompt tokens or, once its prompt is through, its
// last new token; so prompt rows of some may stand beside new rows of others, each with its phase.
// When a sequence ends, the next prompt takes its place in the next step. A prompt with max_new = n
// yields n tokens; the last of them is not fed back, so it has no row in the trace. The end-of-text
// token ends a sequence.
//
// With a memory limit for keys and values a prompt waits until all that it may need (prompt and
// max_new tokens) is left beside what those that run may need; so no step runs out of blocks.
//
// Under signals of several replicas (SessionOptions::signals) each replica's prompts run by
// themselves, `batch` at a time, one replica after the other: a step of the trace is of one replica.
//
// Not modelled: arrival times, preemption (the simulator's scheduler does that).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/health.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard {

struct TracePrompt {
  std::string name;                   ///< Shown in messages and stored in the trace.
  std::string domain;                 ///< May be empty.
  std::vector<std::uint32_t> tokens;  ///< >= 1.
  std::uint32_t max_new = 0;          ///< Tokens to generate; 0: prefill only.
  std::string text{};                 ///< As given; stored in the trace, may be empty.
  std::uint16_t expert = kNoExpert;   ///< Expert that the request names (M22), or none.
};

struct TraceRunOptions {
  std::uint32_t batch = 16;  ///< Prompts that run together, >= 1.
  std::uint32_t chunk = 0;   ///< Prefill tokens per prompt and step; 0: the whole prompt.
  RoutingPolicy policy;      ///< In closed loop.
  std::uint64_t seed = 1;
  bool router_input = false;   ///< Store what each router sees: 2 H bytes per row and layer.
  SamplingOptions sampling{};  ///< Greedy by default; has a seed of its own.
  const PolicyWeights* weights = nullptr;  ///< As SessionOptions.
  const SignalTable* signals = nullptr;    ///< As SessionOptions.
  const RoutingTable* table = nullptr;     ///< As SessionOptions.
  const TwoTierRouter* tiers = nullptr;    ///< As SessionOptions.
  KvOptions kv{};  ///< Paging; no effect on the trace but through a memory limit.
  /// Checks the weights between the steps; a step that it runs again stands once in the trace.
  /// Borrowed, of the same engine; null: nothing is checked.
  HealthMonitor* monitor = nullptr;
};

/// What the run did. Everything here follows from the inputs; nothing depends on time or threads.
struct TraceRunSummary {
  std::uint64_t sequences = 0, steps = 0;
  std::uint64_t prefill_tokens = 0, decode_tokens = 0;  ///< Rows of the trace by phase.
  std::uint64_t generated = 0;                          ///< New tokens, the unfed last ones too.
  std::uint64_t assignments = 0, kept = 0, rerouted = 0, queued = 0, dropped = 0;
  std::uint64_t overflowed = 0;        ///< First choices that found their expert full.
  std::uint64_t linear_fallbacks = 0;  ///< Tokens x layers of score.rule = linear made a softmax.
  std::uint64_t truncated = 0;   ///< Slots that wanted an expert outside the stored candidates.
  std::uint64_t nan_rows = 0;    ///< Row x layer with a NaN or +inf router logit.
  std::uint64_t nan_logits = 0;  ///< Rows whose output logits hold a NaN.
  std::uint64_t peak_kv_bytes = 0;
  std::uint64_t kv_block = 0;                                 ///< Tokens per block.
  std::uint64_t kv_allocated = 0, kv_freed = 0, kv_peak = 0;  ///< Blocks, see KvLedger.
  SetCounts sets;                                    ///< What step 10 did, all layers and steps.
  std::uint64_t table_hits = 0, collisions = 0;      ///< M14: requests, of `sequences`.
  std::uint64_t tier1_agreed = 0, tier2_agreed = 0;  ///< M18, of rows x layers.
  std::uint32_t layers = 0, experts = 0, top_k = 0;
  std::vector<std::uint64_t> load;          ///< [L][E] kept + rerouted
  std::optional<ExchangeTotals> exchanged;  ///< With several ranks.
  /// Population standard deviation / mean of load[l], the whole run as one window, mean over
  /// layers; no value without load.
  [[nodiscard]] std::optional<double> load_cv() const;
  /// Largest share of one expert in its layer's load, mean over layers; no value without load.
  [[nodiscard]] std::optional<double> top_share() const;
};

/// `phase` is "prefill" or "decode"; counts are tokens, `total` an upper bound known beforehand.
using TraceProgress =
    std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

/// Runs all prompts and writes `output` (complete, or not at all). `engine` was loaded from a
/// checkpoint. With several ranks each makes this call and gets the same summary; rank 0 writes the
/// file, with the same bytes as one rank alone. InputError: a prompt that is empty or too long for
/// the model, an unsupported policy, an output that cannot be written, a prompt whose keys and
/// values exceed the memory limit. No prompts: InputError too.
TraceRunSummary record_trace(const Engine& engine, std::span<const TracePrompt> prompts,
                             const TraceRunOptions& options, const std::filesystem::path& output,
                             const TraceProgress& progress = {});

}  // namespace switchyard
