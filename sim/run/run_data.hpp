// SPDX-License-Identifier: Apache-2.0
// What one simulation produced (contract 3 of the architecture), in memory.
//
// The simulator fills one StepRecord per step and hands it to RunWriter::append (run_file.hpp) or
// to append_step below; the window, the tables and `diff` read a RunData back. Which blocks exist
// follows from `detail`:
//   summary  meta, inventory, whole-run totals, requests, events, critical path, metrics, and the
//            levels of detail (lod.hpp)
//   steps    + per step, expert x step (sum over layers), GPU x step, link x step, reroutes
//   layers   + step x layer, layer x expert x step
//   tokens   + one row per token produced
// Times are integer picoseconds of simulated time (range about +-106 days), named *_ps. Arrays are
// row-major and their shape stands beside them: S steps, L MoE layers, E experts of a layer,
// G GPUs, K directed links, P phases, C memory categories. A floating-point value without data is
// NaN and prints as n/a. An index that names nothing is kNone.
// Not modelled: a second run in one file; replicas beyond the placement table (tokens of the
// replicas of an expert are counted together).
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/run/lod.hpp"

namespace switchyard::run {

inline constexpr std::uint32_t kNone = 0xFFFFFFFFU;       ///< An index that names nothing.
inline constexpr std::uint32_t kUnlimited = 0xFFFFFFFFU;  ///< A capacity without limit.
inline constexpr double kNoData = std::numeric_limits<double>::quiet_NaN();

enum class Detail : std::uint8_t { kSummary, kSteps, kLayers, kTokens };
/// Where the time of a step goes. `collective` holds all-reduces, all-gathers and pipeline
/// transfers; `dense` the dense layers and the shared experts as far as they are not hidden.
enum class Phase : std::uint8_t {
  kHost,
  kAttention,
  kRouter,
  kDispatch,
  kExpert,
  kCombine,
  kDense,
  kCollective,
  kHead,
  kWait,
};
inline constexpr std::size_t kPhases = 10;
enum class StepKind : std::uint8_t { kPrefill, kDecode, kMixed };
enum class MemoryCategory : std::uint8_t {
  kWeights,      ///< Everything but routed experts: attention, embeddings, norms, shared experts.
  kExperts,      ///< Routed experts.
  kKv,           ///< Key/value pages.
  kActivations,  ///< Tensors that live within a step.
  kBuffers,      ///< Send and receive buffers of exchanges.
  kRuntime,      ///< Context, library workspaces, allocator slack.
};
inline constexpr std::size_t kMemoryCategories = 6;
/// Why a GPU was the last of an exchange.
enum class StragglerReason : std::uint8_t { kNone, kLoad, kLink, kFault, kExpertLoadFromHost };
enum class RequestOutcome : std::uint8_t { kFinished, kRunning, kRejected, kFailed };
enum class EventKind : std::uint8_t {
  kOverflow,
  kReroute,
  kDrop,
  kOutOfMemory,
  kWatermark,
  kPreemption,
  kEviction,
  kFault,
  kAlarm,
  kPolicyAction,
  kLinkSaturated,
  kStraggler,
};

/// Names as they stand in files and tables; index = value of the enum.
inline constexpr std::array<std::string_view, 4> kDetailNames = {"summary", "steps", "layers",
                                                                 "tokens"};
inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "host",    "attention", "router",     "dispatch", "expert",
    "combine", "dense",     "collective", "head",     "wait"};
inline constexpr std::array<std::string_view, 3> kStepKindNames = {"prefill", "decode", "mixed"};
inline constexpr std::array<std::string_view, kMemoryCategories> kMemoryCategoryNames = {
    "weights", "experts", "kv", "activations", "buffers", "runtime"};
inline constexpr std::array<std::string_view, 5> kStragglerReasonNames = {
    "none", "load", "link", "fault", "expert load from host"};
inline constexpr std::array<std::string_view, 4> kRequestOutcomeNames = {"finished", "running",
                                                                         "rejected", "failed"};
inline constexpr std::array<std::string_view, 12> kEventKindNames = {
    "overflow", "reroute", "drop",  "out of memory", "watermark",      "preemption",
    "eviction", "fault",   "alarm", "policy action", "link saturated", "straggler"};

/// "summary", "steps", "layers", "tokens". InputError(where, …) with a suggestion otherwise.
Detail parse_detail(std::string_view name, const std::string& where);

/// What was simulated. Texts are UTF-8 without NUL; all may be empty except product_version.
struct RunMeta {
  std::string product_version;  ///< version() of the program that wrote the run.
  std::string scenario_name;    ///< Name for people, e.g. "normative".
  std::string scenario_text;    ///< Canonical text: the scenario as resolved, `key = value` lines.
  std::string scenario_hash;    ///< Hex digits.
  std::string model_name, model_hash;
  std::string hardware_name, hardware_hash;
  std::string trace_hash;      ///< Of the routing trace; empty for synthetic routing.
  std::string routing_source;  ///< One line, e.g. "routing: cycled 4 -> 64 from demo.h5".
  std::string policy_way;      ///< "replay", "closed loop", "coupled" or "synthetic".
  std::string network_model;   ///< "flow", "coflow", "bottleneck" or "auto".
  std::uint64_t seed = 0;
  Detail detail = Detail::kLayers;
};

struct GpuInfo {
  std::string name;
  std::uint32_t node = 0;
  std::uint64_t memory_bytes = 0;
  BytesPerSecond hbm;        ///< Peak HBM rate; 0 = not known (MBU is then n/a).
  FlopsPerSecond peak;       ///< Peak at the experts' dtype; 0 = not known (MFU n/a).
  std::uint32_t engine = 0;  ///< The replica it belongs to; replicas step by themselves.
};
/// One direction of a link.
struct LinkInfo {
  std::string name, from, to;
  std::string link_class;    ///< "nvlink4", "pcie5", …
  BytesPerSecond bandwidth;  ///< Per direction, > 0.
};
struct Inventory {
  std::vector<GpuInfo> gpus;              ///< [G]
  std::vector<LinkInfo> links;            ///< [K]
  std::uint32_t experts = 0;              ///< E, routed experts of one MoE layer.
  std::uint32_t top_k = 0;                ///< Of the model.
  std::vector<std::uint32_t> moe_layers;  ///< [L] real layer numbers, ascending.
  std::uint32_t replicas = 1;             ///< R, most places one expert has.
  std::vector<std::uint32_t> placement;   ///< [L][E][R] GPU index; kNone = no further replica.
};

/// One MoE layer of one step.
struct LayerRecord {
  std::int64_t attention_ps = 0, router_ps = 0, dispatch_ps = 0, expert_ps = 0, combine_ps = 0;
  /// Physical floors of the two exchanges: max over links of bytes/bandwidth (0 = nothing sent).
  std::int64_t dispatch_floor_ps = 0, combine_floor_ps = 0;
  double imbalance = kNoData;  ///< max/mean over GPUs of the assignments run there.
  std::uint32_t distinct_experts = 0;
  std::uint32_t straggler_gpu = kNone;
  StragglerReason straggler_reason = StragglerReason::kNone;
};
/// `count` assignments of one layer whose first choice was `from` and which ran on `to`.
struct Reroute {
  std::uint32_t layer = 0;  ///< Index into moe_layers.
  std::uint32_t from = 0, to = 0, count = 0;
};
/// Scalars of one step.
struct StepScalars {
  /// end >= start. Starts ascend; steps of one engine do not overlap.
  std::int64_t start_ps = 0, end_ps = 0;
  std::uint32_t engine = 0;  ///< The replica that stepped; the other GPUs have no part in it.
  StepKind kind = StepKind::kDecode;
  bool warmup = false;  ///< Not in metrics.
  std::uint64_t tokens = 0, sequences = 0;
  /// Along the step's critical path; sums to end - start.
  std::array<std::int64_t, kPhases> phase_ps{};
  /// Assignments over all layers: assignments = kept + rerouted + queued + dropped. `overflow`
  /// counts first choices that found the expert full (whatever became of them).
  std::uint64_t assignments = 0, kept = 0, rerouted = 0, queued = 0, dropped = 0, overflow = 0;
  std::uint64_t longest_queue = 0;  ///< Max over experts of assignments beyond C.
  double gate_entropy = kNoData;    ///< Mean over tokens and layers, bits; in [0, log2 E].
  /// Mean cosine of the hidden states of an expert's tokens, mean over experts; of random tokens.
  double cohesion = kNoData, cohesion_baseline = kNoData;
  double imbalance = kNoData;  ///< Mean over layers of LayerRecord::imbalance.
  double imbalance_max = kNoData;   ///< Largest over layers.
  std::uint64_t hbm_bytes = 0;      ///< Read and written by all GPUs.
  double flops = 0;                 ///< Done by all GPUs.
  std::uint64_t kernels = 0;        ///< Kernels launched, all GPUs.
  std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< Summed over GPUs.
  std::uint32_t straggler_gpu = kNone;               ///< The GPU others waited for longest.
  StragglerReason straggler_reason = StragglerReason::kNone;
};
/// Everything the simulator says about one step. All arrays have full length whatever the detail is
/// (append_step keeps what the detail asks for); asserted.
struct StepRecord {
  StepScalars scalars;
  std::vector<LayerRecord> layers;  ///< [L]
  // Experts, [L][E], assignments. kept: run there in this step (own, rerouted to it, waves
  // included); overflow: first choices that found it full; capacity: C, kUnlimited without a limit.
  std::vector<std::uint32_t> expert_kept, expert_overflow, expert_rerouted_in, expert_queued,
      expert_dropped, expert_capacity;
  std::vector<std::int64_t> expert_time_ps;  ///< [L][E] kernel time; may be empty (no data).
  /// [G][P]; each row sums to end - start, or to 0 for a GPU of another engine.
  std::vector<std::int64_t> gpu_phase_ps;
  std::vector<std::uint64_t> gpu_bytes_out, gpu_bytes_in;  ///< [G]
  std::vector<std::uint64_t> gpu_memory;                   ///< [G][C] high water of each category.
  std::vector<std::uint64_t> gpu_memory_peak;              ///< [G] high water of the sum.
  std::vector<std::uint64_t> link_bytes;                   ///< [K]
  std::vector<std::int64_t> link_busy_ps;                  ///< [K]
  std::vector<std::uint64_t> pair_bytes;                   ///< [G][G] from, to; diagonal 0.
  std::vector<Reroute> reroutes;                           ///< Ascending (layer, from, to).
};

struct RequestRecord {
  std::uint64_t id = 0;
  std::int64_t arrival_ps = 0;       ///< -1 = not known (a decode batch begins in the middle).
  std::int64_t first_token_ps = -1;  ///< Simulated time of the first token; -1 = none yet.
  std::int64_t end_ps = -1;          ///< Time of the last token; -1 = not finished.
  std::uint32_t prompt_tokens = 0, output_tokens = 0;
  RequestOutcome outcome = RequestOutcome::kRunning;
  // Of requests that arrive (workload.kind = open, closed, trace):
  std::uint32_t tier = 0;          ///< Index into workload.tiers.
  std::uint32_t replica = kNone;   ///< Where it was last; kNone: nowhere.
  std::int64_t scheduled_ps = -1;  ///< First step began; -1 = none.
  std::uint32_t preemptions = 0;
  std::uint8_t met_slo = 0;         ///< 1: finished within its tier's TTFT and TPOT.
  std::uint32_t cached_tokens = 0;  ///< With prefix_caching: found in a cache in place of computed.
};
struct TokenRecord {
  std::uint64_t request = 0;
  std::uint32_t index = 0;  ///< 0 = first token of the answer.
  std::uint32_t step = 0;
  std::int64_t time_ps = 0;
};
struct Event {
  std::int64_t time_ps = 0;
  std::uint32_t step = kNone;
  EventKind kind = EventKind::kAlarm;
  std::uint32_t layer = kNone;  ///< Index into moe_layers.
  std::uint32_t gpu = kNone, expert = kNone, link = kNone;
  double value = kNoData;  ///< Meaning and unit stand in `text`.
  std::string text;
};
/// One piece of the chain of activities that fixed the run's end (or a step's), in time order.
struct CriticalEntry {
  std::uint32_t step = 0;
  std::uint32_t layer = kNone;  ///< Index into moe_layers; kNone outside MoE layers.
  Phase phase = Phase::kHost;
  std::uint32_t gpu = kNone;  ///< Who did the work, or the straggler of an exchange.
  StragglerReason reason = StragglerReason::kNone;
  std::int64_t start_ps = 0, duration_ps = 0;
};
struct Metric {
  std::string name;  ///< From metrics.hpp's definitions or the simulator's own, unique.
  double value = kNoData;
  std::string unit;
};

/// Whole-run sums; they exist at every detail. The counters and the memory cover all steps, so that
/// they can be checked for conservation; the arrays below them leave warm-up steps out.
struct Totals {
  std::uint64_t steps = 0, assignments = 0, kept = 0, rerouted = 0, queued = 0, dropped = 0,
                overflow = 0, bytes_sent = 0, bytes_received = 0;
  std::vector<std::uint64_t> gpu_memory;       ///< [G][C] high water.
  std::vector<std::uint64_t> gpu_memory_peak;  ///< [G]
  // Without warm-up steps:
  std::vector<std::uint64_t> expert_kept, expert_overflow;  ///< [L][E]
  std::vector<std::int64_t> expert_time_ps;                 ///< [L][E]; empty without data.
  std::vector<std::uint64_t> reroute_experts;  ///< [E][E] from, to; summed over layers.
  std::vector<std::uint64_t> reroute_gpus;     ///< [G][G] from, to (first replica's GPU).
  std::vector<std::uint64_t> pair_bytes;       ///< [G][G]
  std::vector<std::int64_t> gpu_phase_ps;      ///< [G][P]
  std::vector<std::uint64_t> link_bytes;       ///< [K]
  std::vector<std::int64_t> link_busy_ps;      ///< [K]
};

/// Expert x step numbers of one layer or of the sum over layers. Each [S][E].
struct ExpertSteps {
  std::vector<std::uint32_t> kept, overflow, rerouted_in, queued, dropped;
  std::vector<std::uint32_t> capacity;  ///< kUnlimited when (any of) the layer(s) has no limit.
  /// Demand over capacity, (kept + overflow) / max(C, 1); in the sum over layers: the largest of
  /// them, so one overfull layer shows. NaN without a limit. > 1 only where overflow > 0, or where
  /// a queue wave ran.
  std::vector<float> fill;
};
struct LayerSteps {  ///< Each [S][L].
  std::vector<std::int64_t> attention_ps, router_ps, dispatch_ps, expert_ps, combine_ps,
      dispatch_floor_ps, combine_floor_ps;
  std::vector<float> imbalance;
  std::vector<std::uint32_t> distinct_experts, straggler_gpu;
  std::vector<std::uint8_t> straggler_reason;
};
struct GpuSteps {
  std::vector<std::int64_t> phase_ps;              ///< [S][G][P]
  std::vector<std::uint64_t> bytes_out, bytes_in;  ///< [S][G]
  std::vector<std::uint64_t> memory;               ///< [S][G][C]
  std::vector<std::uint64_t> memory_peak;          ///< [S][G]
};
struct LinkSteps {  ///< Each [S][K].
  std::vector<std::uint64_t> bytes;
  std::vector<std::int64_t> busy_ps;
};
struct RerouteSteps {  ///< One row per (step, layer, from, to); layer kNone below detail layers.
  std::vector<std::uint32_t> step, layer, from, to, count;
};

/// Levels of detail of expert x step, one layer or all. Width E.
struct ExpertLod {
  Lod<std::uint32_t, std::uint64_t> kept, overflow;  ///< flag = overflow > 0 in any layer
  Lod<float, double> fill;                           ///< NaN counts as 0; flag as above
};
/// Scalars per step that have levels of detail; the width of RunLod::steps.
enum class StepSeries : std::uint8_t {
  kDurationPs,
  kTokens,
  kOverflow,
  kRerouted,
  kQueued,
  kDropped,
  kImbalance,
  kImbalanceMax,
};
inline constexpr std::size_t kStepSeries = 8;
inline constexpr std::array<std::string_view, kStepSeries> kStepSeriesNames = {
    "duration", "tokens",  "overflow",  "rerouted",
    "queued",   "dropped", "imbalance", "imbalance max"};
struct RunLod {
  Lod<double, double> steps;                     ///< Width kStepSeries; flag: overflow > 0.
  Lod<std::int64_t, std::int64_t> step_start;    ///< Width 1: max = start of the bin's last step.
  ExpertLod experts;                             ///< Sum over layers.
  std::vector<ExpertLod> layers;                 ///< [L] at detail layers and above.
  Lod<std::int64_t, std::int64_t> gpu_phase;     ///< Width G*P, ps; flag: GPU is the straggler.
  Lod<std::uint64_t, std::uint64_t> link_bytes;  ///< Width K.
  Lod<float, double> link_use;  ///< Width K, share of capacity in a step; flag: >= 0.9.
};

/// A whole run, or those parts of it that were read. Blocks that the detail leaves out, or that
/// were not read, are empty.
struct RunData {
  RunMeta meta;
  Inventory inventory;
  Totals totals;
  RunLod lod;
  std::vector<StepScalars> steps;  ///< [S]
  LayerSteps layer_steps;
  ExpertSteps experts;                     ///< Sum over layers.
  std::vector<ExpertSteps> layer_experts;  ///< [L]
  GpuSteps gpus;
  LinkSteps links;
  RerouteSteps reroutes;
  std::vector<RequestRecord> requests;
  bool serving = false;  ///< The requests arrived; their last five members have a meaning.
  bool cohesion = false;  ///< The trace had hidden states: steps know their cohesion.
  std::vector<TokenRecord> tokens;
  std::vector<Event> events;
  std::vector<CriticalEntry> critical_path;
  std::vector<Metric> metrics;
  std::vector<std::string> notes;  ///< What a reader should know ("routing: cycled 4 -> 64", …).
};

/// A run without steps, its arrays sized for the inventory.
RunData make_run(RunMeta meta, Inventory inventory);
/// Appends one step: totals, levels of detail, and the blocks of `meta.detail`. The scalars are
/// always kept in memory; experts' levels of detail only where make_run's are still there (the
/// writer takes them away and makes them from its blocks). Cost O(L*E + G*P + K). Array lengths are
/// asserted.
void append_step(RunData& run, const StepRecord& step);
/// A StepRecord with all arrays of full length and zero, capacities kUnlimited.
StepRecord make_step(const Inventory& inventory);

/// Share of a link's capacity used in a step: bytes / (bandwidth * duration); 0 for an empty step.
double link_use(std::uint64_t bytes, BytesPerSecond bandwidth, std::int64_t duration_ps);

}  // namespace switchyard::run
