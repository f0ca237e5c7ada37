// SPDX-License-Identifier: Apache-2.0
// Times one exchange of the step loop with the scenario's network model and algorithm.
//
// Every EP group (replica group) exchanges by itself, and groups do not wait for each other. Under
// auto and coflow groups that share links share their bandwidth as parallel tasks do
// (transfer_queue.hpp). Under bottleneck, flow, with per_node dispatch and under auto with measured
// links groups that share links are timed as one exchange. An
// exchange synchronises its participants, the GPUs that send, receive or relay: it begins when the
// last of them is ready. bottleneck, auto and coflow give all the same end; flow starts and ends
// each pair by itself. A matrix without bytes takes no time and synchronises nobody.
//
// Straggler of an exchange: the GPU that others waited for, when the senders' mean wait for the
// last sender exceeds the transfer (duration less path latency): reason load. Otherwise the GPU
// whose link was busy longest: reason load when that link carries the most bytes, reason link when
// a slower link decides although others carry as much.
//
// Under flow SimGrid times the exchanges of the plain layouts one by one. Where several may be
// under way at the same time, or links change (stages, chunks, two halves, routers off the GPUs,
// groups of tp inside a wider ep, rings of groups, replicas that share links, link faults, measured
// links), flow
// and coflow are the queue of transfers: max-min fair pairs or parallel tasks as SimGrid has them,
// to 1e-9 (tests), whatever else is on the links.
//
// In that case, and where KV pages travel between replicas (auto, coflow, flow), stages of a
// pipeline or groups share links (auto, coflow), every exchange is kept in the queue: what is on a
// link at the same time shares it, whichever was known first. An exchange that has been timed then
// ends later (under flow those of its pairs that share a link with what came), and with it
// everything after it on its GPUs: step_end(). So does a load of experts or a swap of pages that a
// GPU waited for, or would have had to.
//
// Not modelled: under flow in plain layouts, what pairs that are still under way take from those of
// the next exchange on links beyond the GPUs' own.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/memory/transfer_queue.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

struct ExchangeTiming {
  std::vector<std::int64_t> end_ps;        ///< [G] on each GPU's clock; own ready time if idle.
  std::vector<std::uint8_t> participates;  ///< [G] sends, receives or relays.
  std::int64_t begin_ps = 0;               ///< The last participant's ready time.
  std::int64_t duration_ps = 0;            ///< Latest end − begin; > 0.
  std::int64_t floor_ps = 0;               ///< No model may be faster (bytes / bandwidth).
  std::uint32_t last_ready = 0;            ///< Participant that begin_ps is of.
  std::uint32_t straggler = UINT32_MAX;    ///< See above; UINT32_MAX: none.
  bool link_bound = false;                 ///< The straggler's reason is its link.
  std::int64_t straggler_ps = 0;           ///< The wait or the transfer it stands for.
  bool extrapolated = false;               ///< A measured link was asked beyond its table.
  std::vector<std::uint64_t> link_bytes;   ///< [K]
  bool kept = false;                       ///< Others may still lengthen it: exchange `id`.
  TransferQueue::Id id = 0;
};

/// Who exchanges by itself. kGroups: every group of ep GPUs (of tp without experts). kShards: every
/// group of tp, all-reduces and their like, whatever the algorithm of the all-to-alls. kAll: bytes
/// may go from one group to another, all as one exchange. kDirect: as kAll, and every pair sends
/// directly (stages of a pipeline).
enum class Among : std::uint8_t { kGroups, kShards, kAll, kDirect };

/// Time of a group's exchange in place of the network model's, in ps, or less than 0: the model's.
/// `bytes`: its own [n][n], row = sender; `members`: its n GPUs. Called once per group with
/// traffic.
using GroupTime = std::function<std::int64_t(std::span<const std::uint64_t> bytes,
                                             std::span<const std::uint32_t> members)>;

/// Refuses what only the links can tell, with the place of the key: a ring of groups whose links
/// meet where their exchanges are one. For `explain`; ExchangeTimer does the same.
void check_groups(const scenario::Scenario& scenario);

/// Links that changed leave GPUs, or the memory they load from, without a way to each other.
class CutError : public InputError {
  using InputError::InputError;
};

/// A directed link of the cluster, for the run's inventory.
struct LinkDescription {
  std::string name, from, to, link_class;
  BytesPerSecond bandwidth;
};

class ExchangeTimer {
 public:
  /// Builds the graph and its routes. InputError: disconnected GPUs.
  explicit ExchangeTimer(const scenario::Scenario& scenario);
  ~ExchangeTimer();
  ExchangeTimer(const ExchangeTimer&) = delete;
  ExchangeTimer& operator=(const ExchangeTimer&) = delete;

  [[nodiscard]] const std::vector<LinkDescription>& links() const;
  /// Routes are found anew over the links of `changed`: some of the cables it was built with, under
  /// the same names, at other bandwidths. links() and their indices stay; a link that is not there
  /// carries nothing new. What is under way at `now_ps`, before which nothing begins any more,
  /// keeps its route, at the new bandwidths (over a link that is not there: at the old one).
  /// Without effect where it throws: CutError, and InputError for what the reader refuses of such
  /// links.
  void rewire(const scenario::Scenario& changed, std::int64_t now_ps);
  /// What a link carries now; its first bandwidth if it is not there.
  [[nodiscard]] BytesPerSecond bandwidth(std::size_t link) const;
  /// GPU rank at an end of a link, or UINT32_MAX.
  [[nodiscard]] std::uint32_t gpu_at_start(std::size_t link) const;
  [[nodiscard]] std::uint32_t gpu_at_end(std::size_t link) const;
  /// Copies from and to host memory and SSDs beside the exchanges; null unless memory.residency or
  /// memory.loading is on or preempted requests swap over the links. Lanes: GPU g's copy engine
  /// towards the GPU is g, the one away from it GPUs + g.
  [[nodiscard]] TransferQueue* copies();
  /// Whether pages travel between replicas beside the exchanges.
  [[nodiscard]] bool carries_pages() const;
  /// Whether exchanges that have been timed may still end later: step_end().
  [[nodiscard]] bool ends_move() const;
  /// `bytes` > 0 from one GPU to another from `now_ps` on, after what that GPU sends already.
  TransferQueue::Id send_pages(std::uint32_t from, std::uint32_t to, std::uint64_t bytes,
                               std::int64_t now_ps);
  /// Where ends move: transfers between GPUs and devices beyond them, in the queue: `up` from GPUs
  /// ready at `ready_ps` [G], then `compute(when the last has arrived)` ps later `down`. Endpoints:
  /// GPU ranks, and G + i for devices[i] (the router's unit). `end_ps`: of `gpus` (ascending),
  /// under flow of each one's own, otherwise of all.
  void run_trip(std::span<const network::Transfer> up, std::span<const network::Transfer> down,
                const std::function<std::int64_t(std::int64_t)>& compute,
                std::span<const std::uint32_t> devices, std::span<const std::int64_t> ready_ps,
                std::span<const std::uint32_t> gpus, std::span<std::int64_t> end_ps);
  /// The GPUs [first, beyond) begin a step: nothing before it matters to it.
  void begin_step(std::uint32_t first, std::uint32_t beyond);
  /// What a GPU's clock follows: `off_ps` after the end of an exchange or a copy, or after 0.
  struct Anchor {
    enum class Of : std::uint8_t { kTime, kExchange, kCopy } of = Of::kTime;
    TransferQueue::Id id = 0;
    std::int64_t off_ps = 0;
    std::uint32_t gpu = TransferQueue::kAll;  ///< kExchange under flow: whose pairs.
  };
  /// When a GPU's step ends: at the latest of these.
  using StepClock = std::vector<Anchor>;
  /// The GPU, ready before at `ready_ps`, has waited for copies until `there_ps`: its clock follows
  /// them too from now on. Without effect where ends do not move.
  void follow(std::uint32_t gpu, std::span<const TransferQueue::Id> copies, std::int64_t ready_ps,
              std::int64_t there_ps);
  [[nodiscard]] std::vector<StepClock> end_step(std::uint32_t first, std::uint32_t beyond,
                                                std::span<const std::int64_t> ready_ps) const;
  /// When a GPU's step ends as far as is known now.
  [[nodiscard]] std::int64_t step_end(const StepClock& clock);
  /// The clock is not asked for any more.
  void forget(const StepClock& clock);
  /// No exchange before this one is asked for any more.
  void forget_before(TransferQueue::Id exchange);
  /// [G] endpoints of copies(): the cpu and the ssd that a GPU loads from. The nearest, in this
  /// order: same server, fewest links, lowest device. ssd_of: UINT32_MAX where no host tier needs
  /// it.
  [[nodiscard]] const std::vector<std::uint32_t>& host_of() const;
  [[nodiscard]] const std::vector<std::uint32_t>& ssd_of() const;
  /// The same of CXL pools.
  [[nodiscard]] const std::vector<std::uint32_t>& pool_of() const;
  /// Device of an endpoint of copies().
  [[nodiscard]] std::uint32_t device_of(std::uint32_t endpoint) const;
  /// True when the bytes on a GPU's own links are the bytes it sends and receives: direct
  /// algorithm, no GPU forwards, nothing is staged, no shared medium. Then the run can be
  /// cross-checked.
  [[nodiscard]] bool ports_tell_bytes() const;
  /// Times `bytes` ([G][G], row = sender, diagonal ignored) for GPUs ready at `ready_ps` [G]. One
  /// entry per group with traffic; their participants are disjoint. Bytes between the groups of
  /// `among` are not looked at.
  /// `time`, if any: how long an exchange takes, at least its floor; all its participants end
  /// together then. Only where it is alone().
  /// `all_ready_ps` [G]: clocks before which no later exchange begins, where these are not
  /// `ready_ps` (an exchange that waits for a wire begins after others that are run later).
  /// `continues`: a later phase of a collective, which pays the links' phase latency.
  void run(std::span<const std::uint64_t> bytes, std::span<const std::int64_t> ready_ps,
           std::vector<ExchangeTiming>& out, Among among = Among::kGroups,
           std::span<const std::int64_t> all_ready_ps = {}, const GroupTime* time = nullptr,
           bool continues = false);
  /// Whether run_copies() may be asked of kGroups: all GPUs are one group, in closed form over tiers,
  /// and nothing else is ever on their links.
  [[nodiscard]] bool takes_copies();
  /// Copies of one size between the GPUs, [G][G], row = sender, 0 on the diagonal: kept (borrowed)
  /// for run_copies().
  void sum_copies(std::span<const std::uint32_t> copies);
  /// run() of those copies with `bytes` each, or (back) of what each brings back to its sender.
  /// `sends` [G]: bytes that each GPU sends.
  void run_copies(std::uint64_t bytes, bool back, std::span<const std::uint64_t> sends,
                  std::span<const std::int64_t> ready_ps, std::vector<ExchangeTiming>& out);
  /// Whether every group of `size` neighbouring GPUs of `among` exchanges by itself and nothing
  /// else may be on its links.
  [[nodiscard]] bool alone(Among among, std::uint32_t size);

 private:
  struct State;
  static void find_hosts(const cluster::ClusterGraph& graph, bool ssd, bool pool,
                         std::uint32_t card, State& s);
  std::unique_ptr<State> state_;
};

}  // namespace switchyard::sim
