// SPDX-License-Identifier: Apache-2.0
// A scenario: what is simulated. TOML file → resolved, validated, plain data with the origin of
// every value. Form: scenarios/README.md, scenarios/normative.toml, `switchyard explain`.
//
// Rules. Every dimensioned value is a text with its unit; counts and factors are bare numbers.
// Unknown keys, missing units, wrong types and impossible values are InputErrors with
// file:line:column (or "--set"). Paths are relative to the file that names them. Keys beside `file`
// override the file's. Several [[sweep]] make a cartesian product, the first one varying slowest.
//
// Not modelled, and refused by name: prefix caching.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.hpp"
#include "engine/model/accounting.hpp"
#include "engine/model/model_config.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/policy.hpp"
#include "sim/scenario/alarms.hpp"
#include "sim/scenario/bandwidth_table.hpp"
#include "sim/scenario/calibration.hpp"
#include "sim/scenario/faults.hpp"
#include "sim/scenario/hardware.hpp"
#include "sim/scenario/serving.hpp"

namespace switchyard::scenario {

/// Who runs attention. dp: every GPU its own sequences. hub: one GPU for all. tp: groups of tp GPUs
/// with the heads divided among them; every GPU of a group sees all tokens of the group, and two
/// all-reduces a layer add up what each computed. pp: as dp, in pipeline stages; tp has stages,
/// too, with pp > 1.
enum class AttentionPlacement : std::uint8_t { kDp, kHub, kTp, kPp };
/// Who runs the gate and the top-k of a MoE layer: every GPU for its own tokens; the CPU nearest to
/// it; or one card for all (sim/loop/router_units.hpp).
enum class RouterPlacement : std::uint8_t { kGpu, kCpu, kCard };
/// The first three are known from the scenario alone; the others need loads and are computed when
/// the simulation begins (sim/loop/placement_source.hpp).
enum class PlacementKind : std::uint8_t {
  kContiguous,
  kRoundRobin,
  kExplicit,
  kReplicated,
  kEplb,
  kAffinity,
  kTopologyHot
};
/// Which copy of an expert serves an assignment. Fixed rules, no random draw: hash of the token;
/// copies in turn; the sender's own GPU, else its node, else hash; the GPU with the fewest
/// assignments of this layer and step so far.
enum class ReplicaChoice : std::uint8_t { kHash, kRoundRobin, kNearest, kLeastLoaded };

/// A copy of an expert beyond the first.
struct ReplicaPlace {
  std::uint32_t row = 0;  ///< As in Parallel::expert_rank.
  std::uint32_t expert = 0, rank = 0;
};

/// How placements that need loads are made; which options a kind has: scenarios/README.md.
struct PlacementOptions {
  std::uint32_t redundant = 0;  ///< Physical slots beyond one per expert, over all EP ranks.
  std::uint32_t groups = 1, nodes = 1;  ///< eplb: expert groups, servers of the EP ranks.
  /// [MoE layer][expert] loads from a file; empty: counted in the first profile_steps steps of the
  /// scenario's own routing, without capacity.
  std::vector<std::vector<double>> loads;
  std::uint32_t profile_steps = 0;
  double max_imbalance = 0;  ///< affinity: bound on a rank's load in units of the mean; 0: none.
  ReplicaChoice choice = ReplicaChoice::kHash;
};

/// When a placement is made anew from the loads of the last steps: the mean of the signal over
/// `window` steps is above `threshold`, and `cooldown` steps have passed since the last time. The
/// experts that move do so before the next step, over the same links.
enum class RebalanceSignal : std::uint8_t { kOff, kLoad, kCongestion };
struct RebalanceSpec {
  RebalanceSignal signal = RebalanceSignal::kOff;
  /// load: max / mean of the assignments per GPU, mean over the layers. congestion: share of the
  /// step in which the busiest link carries data.
  double threshold = 0;
  std::uint32_t window = 8, cooldown = 8;  ///< Steps, warm-up included.
  /// How the new one is made: eplb, replicated or topology_hot. The placement's own way if that
  /// follows loads; eplb and topology_hot may follow one that does not, with as many copies.
  PlacementKind to = PlacementKind::kEplb;
};

/// What a CPU can do that computes the router (router = cpu) or experts (memory.residency.miss).
struct CpuRates {
  FlopsPerSecond flops;      ///< Of the GEMMs, > 0.
  BytesPerSecond bandwidth;  ///< Of the CPU's memory, > 0.
  SimTime per_batch;         ///< Fixed time of one layer's tokens (experts: of one GPU's), >= 0.
};

/// dp · tp · pp = GPUs. Stage s of the pipeline is the GPUs from s · dp · tp on and has the layers
/// from ⌊s · L / pp⌋ on; ep divides a stage's GPUs (GPUs / ep replicas of the expert set of a
/// layer). tp > 1 needs attention = tp. ep = tp: the experts are divided inside the group, nothing
/// is dispatched. ep a multiple of tp: every GPU dispatches its share of its group's tokens.
struct Parallel {
  AttentionPlacement attention = AttentionPlacement::kDp;
  std::uint32_t dp = 1, tp = 1, pp = 1, ep = 1;
  std::uint32_t hub = 0;  ///< GPU rank of the hub; only with attention = hub.
  /// Parts of the batch that follow each other through the stages, ≥ 1; 1 without stages.
  std::uint32_t micro_batches = 1;
  /// attention = tp: hidden states between the operations are divided among a group by tokens
  /// (reduce-scatter and all-gather in place of all-reduces).
  bool sequence_parallel = false;
  /// attention = tp and ep < tp: GPUs that divide the columns of each expert, tp / ep; else 1.
  std::uint32_t expert_tp = 1;
  /// attention = tp: embedding and head are divided by rows of the vocabulary.
  bool vocab_parallel = false;
  /// The layout is of the GPUs [first_gpu, first_gpu + gpus()); 0 unless prefill replicas have a
  /// layout of their own (Scenario::prefill). Ranks, groups, copies and stages count from there.
  std::uint32_t first_gpu = 0;
  [[nodiscard]] std::uint32_t gpus() const { return dp * tp * pp; }
  [[nodiscard]] bool has(std::uint32_t gpu) const {
    return gpu >= first_gpu && gpu < first_gpu + gpus();
  }
  /// GPUs of one copy of the experts. EP rank r of copy q is on the GPUs first_of_copy(q) +
  /// r·expert_tp to that + expert_tp − 1. The others below are of GPUs of the layout.
  [[nodiscard]] std::uint32_t copy_gpus() const { return ep * expert_tp; }
  /// Copies of the experts, in a pipeline those of each stage's layers.
  [[nodiscard]] std::uint32_t copies() const { return gpus() / copy_gpus(); }
  [[nodiscard]] std::uint32_t copy_of(std::uint32_t gpu) const {
    return (gpu - first_gpu) / copy_gpus();
  }
  [[nodiscard]] std::uint32_t first_of_copy(std::uint32_t copy) const {
    return first_gpu + copy * copy_gpus();
  }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t gpu) const {
    return (gpu - first_gpu) % copy_gpus() / expert_tp;
  }
  /// First GPU of the tensor-parallel group of a GPU: itself with tp = 1.
  [[nodiscard]] std::uint32_t group_first(std::uint32_t gpu) const {
    return gpu - (gpu - first_gpu) % tp;
  }
  /// GPUs of a group that exchanges by itself: a copy of the experts or, without experts or with a
  /// smaller ep, a tensor-parallel group.
  [[nodiscard]] std::uint32_t exchange_gpus() const { return ep > tp ? ep : tp; }
  RouterPlacement router = RouterPlacement::kGpu;
  CpuRates router_cpu;
  /// router = card: index of the card in hardware.devices. It is no GPU rank then.
  std::uint32_t router_card = 0;
  [[nodiscard]] std::uint32_t stage_gpus() const { return dp * tp; }
  PlacementKind placement = PlacementKind::kContiguous;
  /// [MoE layer][expert] → EP rank in 0…ep−1 of its first copy; one row that serves every layer, or
  /// one per MoE layer. Empty for the kinds that need loads.
  std::vector<std::vector<std::uint32_t>> expert_rank;
  std::vector<ReplicaPlace> replicas;  ///< Further copies of a placement file, in file order.
  PlacementOptions placement_options;
  RebalanceSpec rebalance;  ///< Only with kReplicated, kEplb, kTopologyHot.
};

/// decode and prefill: the same sequences in every step. The others: requests arrive (serving.hpp).
enum class WorkloadKind : std::uint8_t { kDecode, kPrefill, kOpen, kClosed, kTrace };
enum class RoutingSource : std::uint8_t { kTrace, kSynthetic };
enum class TraceLayers : std::uint8_t { kExact, kCycle };
enum class SyntheticLaw : std::uint8_t { kUniform, kZipf, kLognormal, kDirichlet };

/// Where the decisions come from.
struct RoutingSpec {
  RoutingSource source = RoutingSource::kSynthetic;
  std::string trace_path;  ///< Ready to open; kTrace only.
  TraceLayers layers = TraceLayers::kExact;
  SyntheticLaw law = SyntheticLaw::kUniform;
  double zipf_s =
      0;  ///< Exponent of zipf, ≥ 0: p(rank r) ∝ r^−s; the expert order is seeded by layer.
  double sigma = 0;  ///< lognormal: p(e) ∝ exp(sigma·N(0,1)) drawn per layer and expert, ≥ 0.
  double alpha = 0;  ///< dirichlet: p ~ Dirichlet(alpha, …, alpha) per layer, in [0.001, 1000].
  /// Kinds of sequences, each with a p of its own, 1 … 256; 1 with the uniform law.
  std::uint32_t domains = 1;
  /// Synthetic only, in [0, 0.99]: how likely a token takes the experts of the position before it;
  /// if not, how likely it takes its random numbers from the layer below.
  double token_correlation = 0, layer_correlation = 0;
};

struct Workload {
  WorkloadKind kind = WorkloadKind::kDecode;
  std::uint32_t batch = 1;    ///< Sequences of a step, over the whole cluster. > 0.
  std::uint32_t context = 0;  ///< Tokens each sequence has in its KV cache before the first step.
  std::uint32_t tokens =
      1;  ///< New tokens per sequence and step: 1 in decode, the chunk in prefill.
  std::uint32_t steps = 1;         ///< Measured steps, > 0.
  std::uint32_t warmup_steps = 0;  ///< Steps before them that no statistic sees.
  Serving serving;  ///< kOpen, kClosed, kTrace; batch, context, tokens and steps mean nothing then.
  RoutingSpec routing;
  /// Whether requests arrive.
  [[nodiscard]] bool serves() const { return kind >= WorkloadKind::kOpen; }
};

enum class NetworkModelKind : std::uint8_t { kAuto, kFlow, kCoflow, kBottleneck };
enum class ExchangeAlgorithm : std::uint8_t { kDirect, kRing, kRingBidirectional, kHierarchical };
/// One copy per chosen expert, per distinct destination GPU, or per distinct node with a fan-out.
enum class DispatchKind : std::uint8_t { kPerExpert, kPerRank, kPerNode };

/// Bytes of one token copy = dtype_bytes(format, H) + scales + header;
/// scales = 4 · ceil(H / scale_block) for 8- and 4-bit formats when scale_block > 0.
/// (DeepEP low latency: fp8, block 128, header 16 B: 7168 + 224 + 16 per copy.)
enum class WireFormat : std::uint8_t { kNative, kInt4, kInt2Halves };

struct Payload {
  model::DType dispatch = model::DType::kBf16;
  model::DType combine = model::DType::kBf16;
  std::uint32_t scale_block = 128;
  std::uint64_t header = 0;          ///< Bytes per dispatched copy.
  std::uint64_t combine_header = 0;  ///< Bytes per returned copy.
  /// int4 and int2_halves: both ways as 4-bit values packed by the sender and unpacked by the
  /// receiver, whose kernels cost their HBM traffic; `dispatch` and `combine` are the formats
  /// before and after. Halves travel as two exchanges, scales and header with the first.
  WireFormat wire = WireFormat::kNative;
  /// Bytes of one copy of a token of `hidden` values.
  [[nodiscard]] std::uint64_t dispatch_bytes(std::uint64_t hidden) const;
  [[nodiscard]] std::uint64_t combine_bytes(std::uint64_t hidden) const;
  /// Bytes of the second half of a copy; 0 unless int2_halves.
  [[nodiscard]] std::uint64_t second_half(std::uint64_t hidden) const;
};

/// Algorithm of the all-reduces of attention = tp (sim/network/collectives.hpp).
enum class ReduceAlgorithm : std::uint8_t { kRing, kDirect, kOneShot, kHierarchical, kTree };
/// Algorithm of the broadcasts of kv.placement = replicated (sim/network/collectives.hpp).
enum class BroadcastAlgorithm : std::uint8_t { kDirect, kRing, kTree, kHierarchical };

/// Measured bandwidths that replace bytes / bandwidth on links of one class.
struct MeasuredSpec {
  LinkClass link_class = LinkClass::kOther;
  std::vector<BandwidthPoint> points;  ///< Empty: no measured links.
};

/// What a chunk of a layer is: a part of every pair's bytes and every expert's rows, or the rows of
/// some of each GPU's experts.
enum class ChunkBy : std::uint8_t { kRows, kExperts };

struct NetworkSpec {
  NetworkModelKind model = NetworkModelKind::kAuto;
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
  DispatchKind dispatch = DispatchKind::kPerRank;
  Payload payload;
  ReduceAlgorithm collective = ReduceAlgorithm::kRing;  ///< Only with attention = tp.
  /// Only with kv.placement = replicated.
  BroadcastAlgorithm broadcast = BroadcastAlgorithm::kDirect;
  /// Dispatch, experts and combine of a layer run in so many equal chunks, the exchange of one
  /// beside the experts of another (sim/loop/chunks.cpp). 1: one after the other.
  std::uint32_t chunks = 1;
  /// Share of a GPU's SMs that communication takes from the experts while chunks overlap: their
  /// time is divided by 1 - comm_sms. [0, 0.9].
  double comm_sms = 0;
  ChunkBy chunk_by = ChunkBy::kRows;
  /// The batch in two halves, the exchanges of one beside the work of the other, attention included
  /// (sim/loop/two_batch.cpp); comm_sms is taken from all kernels of the layers then.
  bool two_batch = false;
  MeasuredSpec measured;
};

/// by_sequence: on the GPU that runs the sequence's attention. replicated: on every GPU. hub: on
/// the hub. by_token: blocks of kv.block tokens of a sequence go round the GPUs of one copy of the
/// experts, its home first; each layer's attention pulls the others' keys and values over the links
/// and sends new ones to their place. by_expert: what a MoE layer keeps of a token lies on the GPU
/// that serves the token's first choice there, so memory follows routing; pulled as by_token.
enum class KvPlacement : std::uint8_t { kBySequence, kReplicated, kHub, kByToken, kByExpert };

/// How decode attention reads keys and values that lie on other GPUs (by_token, by_expert). pull:
/// they travel to the sequence's home. merge: the queries travel to them, every holder computes its
/// part of the softmax, and the home merges the parts (sim/loop/kv_merge.cpp).
enum class KvDecode : std::uint8_t { kPull, kMerge };

/// What follows when a GPU would go above the watermark (sim/serving/serving.hpp); besides the
/// event. The last two need requests that arrive.
enum class WatermarkAction : std::uint8_t { kRecord, kStopAdmission, kPreempt };

/// Which experts a GPU keeps when not all fit (M34; sim/memory/expert_cache.hpp). kAll: all.
enum class ResidencyPolicy : std::uint8_t { kAll, kLru, kLfu, kStatic };
/// Experts of the next MoE layer that are brought in before it is known which are needed: the first
/// top-k that the trace (or the synthetic law) has for this step's tokens, before the policy; or
/// the ones used most so far.
enum class PrefetchKind : std::uint8_t { kNone, kTrace, kFrequency };
/// Which device has all experts: an SSD, or a pool of memory behind CXL ports.
enum class ExpertStore : std::uint8_t { kSsd, kCxl };
/// What becomes of an expert that is asked for and not on the GPU (sim/loop/host_experts.hpp).
/// load: its weights come. cpu: its rows go to host memory, the CPU computes them. cheaper: what
/// takes less for this expert by itself.
enum class MissKind : std::uint8_t { kLoad, kCpu, kCheaper };
struct ResidencySpec {
  ResidencyPolicy policy = ResidencyPolicy::kAll;
  std::uint32_t slots = 0;  ///< Experts of a MoE layer that a GPU keeps; 1 … E.
  /// The same of its host's memory, 1 … E; the store has all. 0 … E with a pool: at 0 a GPU loads
  /// straight from it.
  std::uint32_t host_slots = 0;
  ExpertStore store = ExpertStore::kSsd;
  MissKind miss = MissKind::kLoad;
  CpuRates cpu;  ///< Of experts there; unless miss = load.
  PrefetchKind prefetch = PrefetchKind::kNone;
  std::uint32_t prefetch_experts = 0;  ///< Of a layer and GPU at most, frequency only.
  /// Both caches begin with the experts that the first steps of the scenario's own routing ask for
  /// most, instead of empty.
  bool hot = false;
  std::uint32_t profile_steps = 0;  ///< Those steps; only with `hot` and without `loads`.
  /// [MoE layer][expert] in place of those steps: from a file, of a run or trace of its own; or
  /// empty.
  std::vector<std::vector<double>> loads;
  [[nodiscard]] bool on() const { return policy != ResidencyPolicy::kAll; }
};

/// How the weights get onto the GPUs before the first step (M35; sim/memory/loading.hpp).
struct LoadingSpec {
  enum class From : std::uint8_t { kResident, kHost, kSsd };
  From from = From::kResident;  ///< kResident: they are there when the run begins.
  std::uint32_t shards = 16;    ///< Parts of the stream, 1 … 65536.
  std::uint32_t in_flight = 2;  ///< Host buffers, in shards, 1 … shards; only from the SSD.
  BytesPerSecond checksum;      ///< Of the host over each shard; 0: none.
  /// Warm-up of an expert: stated, or what a batch of so many dummy tokens takes there by the cost
  /// model. At most one of them is not 0.
  SimTime warm_up_per_expert;
  std::uint32_t warm_up_tokens = 0;
  std::uint64_t workspace = 0;  ///< Bytes per GPU during the warm-up.
  std::uint64_t table = 0;      ///< Bytes per GPU of a routing table, kept.
  bool parallel = false;        ///< Warm-up and table at once.
  bool by_layer = false;        ///< The first step may begin when the shared weights are there.
  [[nodiscard]] bool on() const { return from != From::kResident; }
  [[nodiscard]] bool warms_up() const { return warm_up_per_expert.ps() > 0 || warm_up_tokens > 0; }
};

/// How allocations find a place (sim/memory/allocator.hpp). pool: only the sum counts.
enum class AllocatorKind : std::uint8_t { kPool, kCaching, kPaged, kBump };

struct MemorySpec {
  double watermark = 0.92;  ///< Share of a GPU's memory; a crossing is recorded. (0, 1].
  WatermarkAction watermark_action = WatermarkAction::kRecord;
  std::uint64_t reserve = 0;  ///< Bytes per GPU the framework keeps for itself.
  /// How often the memory levels that policy.load_aware sees are measured (M04; the article's value
  /// is 1 ms); 0: at the start of every step.
  SimTime sample_every;
  KvPlacement kv_placement = KvPlacement::kBySequence;
  KvDecode kv_decode = KvDecode::kPull;
  std::uint32_t kv_block = 16;  ///< Tokens per KV page, > 0.
  AllocatorKind allocator = AllocatorKind::kPool;
  std::uint64_t page = 0;  ///< Bytes of a page; kPaged only.
  ResidencySpec residency;
  LoadingSpec loading;
};

/// Host time on the critical path of a step: step + sequences · sequence.
struct HostSpec {
  SimTime per_step;
  SimTime per_sequence;
  /// Table of cost.calibration that either came from; null: stated, or none.
  const OpTable* measured = nullptr;
};

/// How kernels reach a GPU (M49). eager: each pays the GPU's kernel_launch. graph: a step is one
/// launch, each kernel in it takes graph_kernel. fused: as graph, and neighbours become one kernel
/// whose intermediates stay on the chip (sim/cost/cost.hpp says which).
enum class LaunchMode : std::uint8_t { kEager, kGraph, kFused };

/// Where the times of operations come from, besides the hardware's figures.
/// Which grouped GEMM runs the experts where a calibration tells them apart.
enum class GroupedGemm : std::uint8_t {
  kAuto,  ///< Masked in steps that only decode, contiguous in all others.
  kMasked,
  kContiguous
};

/// What times dispatch, combine and the collectives of tensor parallelism: the network model, or
/// tables of the calibration (sim/cost/exchange_times.hpp).
enum class ExchangeCost : std::uint8_t { kModel, kCalibrated };

struct CostSpec {
  std::shared_ptr<const Calibration> calibration;  ///< Null: the roofline alone.
  /// Tables whose library begins with this; for operations that such a library has no table of, the
  /// only library that has one. Several that fit are refused.
  std::string library;
  GroupedGemm grouped_gemm = GroupedGemm::kAuto;
  ExchangeCost exchange = ExchangeCost::kModel;
  std::string exchange_library;  ///< As `library`, for the tables of exchanges.
  std::uint32_t exchange_sms =
      0;  ///< SMs of normal dispatch and combine; 0: the most of the library's tables.
  LaunchMode launch = LaunchMode::kEager;
  SimTime graph_kernel;  ///< graph, fused: fixed time of a kernel inside a captured graph, >= 0.
  /// model.dtype.gemm_inputs: what GEMMs round their inputs to as they run (W8A8: fp8), so the rate
  /// they run at; nothing: the activations' format.
  std::optional<model::DType> gemm_inputs;
};

/// What a run costs (M40). Metrics in sim/cost/economics.hpp.
struct EconomicsSpec {
  bool stated = false;            ///< The scenario has an [economics] section.
  double usd_per_kwh = 0;         ///< >= 0
  double pue = 1;                 ///< Energy of the site over that of the servers, >= 1.
  double gpu_usd = 0, years = 3;  ///< Price of one GPU with its part of the server; written off.
  double host_w = 0;              ///< Per server, besides its GPUs; >= 0.
  double api_usd = 0;             ///< What others ask for a million tokens; 0: not stated.
};

enum class Detail : std::uint8_t { kSummary, kSteps, kLayers, kTokens };

struct RunSpec {
  std::uint64_t seed = 1;
  Detail detail = Detail::kLayers;
};

/// What a key takes; the window's form picks its editor and checks by it.
enum class ValueKind : std::uint8_t {
  kText,  ///< Also what has no kind of its own: policy fields, lists, files.
  kCount,
  kNumber,
  kBoolean,
  kBytes,
  kDuration,
  kRate,
  kFlops,
  kPercent,
  kPower,
  kChoice,
};

/// One resolved value, for `explain`, the run file and `diff`.
struct ResolvedValue {
  std::string key;      ///< "policy.capacity.factor".
  std::string value;    ///< Canonical text.
  std::string origin;   ///< "scenarios/x.toml:17:13", "default", "--set", "from the model".
  bool in_hash = true;  ///< false: shown, but no part of the canonical text (paths).
  ValueKind kind = ValueKind::kText;
  std::vector<std::string> choices = {};  ///< Of kChoice: the supported ones, in documented order.
  std::string legal = {};                 ///< Legal values of a policy field, for people.
};

struct SweepAxis {
  std::string key;
  std::vector<std::string> values;  ///< TOML text of each value.
  std::string where;
};

struct Scenario {
  std::string path;  ///< As given.
  model::ModelConfig model;
  /// Formats of the weights and the KV cache. Default: bf16, router fp32.
  model::DTypeChoice dtype{.router = model::DType::kF32};
  /// Format of hidden states: traffic of activations and the default payload of exchanges.
  model::DType activations = model::DType::kBf16;
  HardwareSpec hardware;
  Parallel parallel;
  /// [parallel.prefill]: the prefill replicas have the first GPUs and this layout; `parallel` is
  /// that of the decode replicas then.
  std::optional<Parallel> prefill;
  [[nodiscard]] const Parallel& layout_of(std::uint32_t gpu) const {
    return prefill && prefill->has(gpu) ? *prefill : parallel;
  }
  /// One, or that of the prefill replicas and that of the others: in the order of their GPUs.
  /// Borrowed from the scenario.
  [[nodiscard]] std::vector<const Parallel*> layouts() const {
    if (!prefill) return {&parallel};
    return {&*prefill, &parallel};
  }
  Workload workload;
  GateSpec gate;  ///< The family's gate; gate.experts = 0 for a dense model.
  RoutingPolicy policy;
  PolicyFiles policy_files;  ///< Where the files that the policy names lie.
  NetworkSpec network;
  MemorySpec memory;
  HostSpec host;
  CostSpec cost;
  EconomicsSpec economics;
  FaultSpec faults;
  std::vector<AlarmRule> alarms;  ///< [[monitor.alarms]]: watched while the simulation runs.
  RunSpec run;
  std::vector<SweepAxis> sweep;
  std::vector<ResolvedValue> values;  ///< Fixed order, whatever the order in the file.
};

struct ReadOptions {
  /// `--set key=value` in order; a later one wins. The value is TOML, or a bare word.
  std::vector<std::string> settings;
  /// `--trace T.h5`: replaces workload.routing. Relative to the working directory.
  std::optional<std::string> trace;
  /// Folder that model preset names are looked up in besides the scenario's own: "" = none.
  std::string presets_root;
  /// false: a routing trace that does not exist yet is no error (explain, tests).
  bool require_trace = true;
};

/// Reads, merges, checks. Throws InputError.
Scenario read_scenario(const std::string& path, const ReadOptions& options = {});
/// The same from text; `name` stands for the file in messages, relative paths start at its folder.
Scenario read_scenario_text(std::string_view text, const std::string& name,
                            const ReadOptions& options = {});

/// One point of the cartesian product.
struct SweepPoint {
  std::size_t index = 0;
  std::vector<std::pair<std::string, std::string>> settings;  ///< key, TOML text.
  Scenario scenario;
};
/// All points in order (one, with no settings, if there is no [[sweep]]); each is fully validated.
/// At most 100,000.
std::vector<SweepPoint> read_sweep(const std::string& path, const ReadOptions& options = {});

/// Place of a key's value: "file:line:column", "--set", or the key itself for a default.
std::string origin_of(const Scenario& scenario, std::string_view key);

/// "key = value" lines of everything that decides the result: no paths, no origins. Stored in the
/// run.
std::string canonical_text(const Scenario& scenario);
/// XXH3-128 of canonical_text, 32 hex digits.
std::string scenario_hash(const Scenario& scenario);

/// Why policy.capacity.queue = "defer" does not go with the scenario: "with …"; empty if it does.
std::optional<std::string> no_deferral(const Scenario& scenario);

/// A policy file (scenarios/policies/*.toml): the keys of a scenario's [policy] at top level.
/// The places of files it names go to `files` when that is not null.
RoutingPolicy read_policy_file(const std::string& path, PolicyFiles* files = nullptr);

}  // namespace switchyard::scenario
