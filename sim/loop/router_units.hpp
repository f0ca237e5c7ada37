// SPDX-License-Identifier: Apache-2.0
// Routers that are not on the GPUs (parallel.router = "cpu" and "card", M43).
//
// In each MoE layer every GPU norms its tokens and sends those that the router decides to its unit:
// H · a bytes a token. The unit runs the gate's GEMM and the top-k for all of them together and
// sends back K slots of 6 bytes a token (expert 2, weight 4). The GPU then permutes.
//
//   cpu   unit = the cpu device nearest to the GPU: same server, fewest links, lowest device.
//         time = per_batch + max( (H·E·w_r + R·(H·a + 8·E)) / bandwidth, 2·R·H·E / flops )
//   card  one unit for all: the card's roofline of the same two kernels (cost.hpp)
//
// The tokens of a unit begin to travel when the last of its GPUs is ready; compute begins when the
// last has arrived, decisions leave when all are made. Units whose routes share a link (and all of
// them while they do) are timed as one. Transfers are closed form: path latency + max over links of
// bytes / bandwidth. Where exchanges are kept in the queue of transfers (exchange_timer.hpp: flow,
// coflow, groups that share links) these are, too: there they share links with the exchanges of
// other groups, and under flow each GPU's tokens begin when it is ready and its decisions arrive by
// themselves. Their bytes are on the links, not in what GPUs send to each other.
//
// Stages of a pipeline, replicas and halves of a batch share the units. A unit decides for one
// batch at a time (Calendar): what is known first has its time, what is known later takes the first
// gap long enough. So of stages the older micro-batch comes first, of replicas the one whose step
// was computed first. The time is kept when traffic that is known later delays the tokens on their
// way (decisions then come as much later). Halves (network.two_batch): a GPU waits for its half's
// decisions before it goes on with the other half. Under auto their transfers are in the queue,
// too, with stages, several replicas, halves and an expert cache, whose loads pass over the same
// links.
//
// Not modelled: other work of the CPU beside the router, several units that agree on capacities
// (the decision takes no time beyond the gate), a GPU that runs the card's attention, energy and
// price of the card, pinned-memory copies inside the host.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/bottleneck.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// When a unit is busy.
class Calendar {
 public:
  /// Takes the first `length` ps that are free from `ready_ps` on; returns where they begin. Of
  /// length 0: `ready_ps`.
  std::int64_t take(std::int64_t ready_ps, std::int64_t length_ps);
  /// Nothing is asked for before.
  void forget_before(std::int64_t now_ps);

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> taken_;  // [begin, end), ascending, apart.
};

class RouterUnits {
 public:
  /// `gate(rows)`: how long a unit computes for so many tokens. InputError: a GPU reaches no unit.
  RouterUnits(const scenario::Scenario& scenario, std::function<SimTime(std::uint64_t)> gate);

  /// One layer of one set of units. Times are on the clocks given.
  struct Batch {
    std::vector<std::uint32_t> gpus;  ///< Who takes part, ascending; never empty.
    std::uint32_t last_ready = 0;     ///< The GPU that begin_ps is of; lowest among equals.
    std::int64_t begin_ps = 0, end_ps = 0;
    std::vector<std::int64_t> gpu_end_ps;  ///< [gpus above] when its decisions are there.
  };
  /// Tokens to units and decisions back, of one set. Endpoints of transfers: GPU ranks, and
  /// gpus + i for units()[i].
  struct Trip {
    std::vector<network::Transfer> up, down;
    /// Between the last that goes up, which arrives at `arrival_ps`, and the first down. Called
    /// once.
    std::function<std::int64_t(std::int64_t arrival_ps)> compute;
  };
  /// Times a trip in place of the closed form: sets end_ps and gpu_end_ps of the batch.
  using TimeTrip =
      std::function<void(const Trip& trip, std::span<const std::int64_t> ready_ps, Batch& batch)>;
  void time_by(TimeTrip time) { time_ = std::move(time); }
  /// No step begins before.
  void forget_before(std::int64_t now_ps);
  /// Routes over the links of `changed`: some of those it was built with, under the same names, at
  /// other bandwidths. A GPU keeps its unit. CutError, without effect: it does not reach it.
  void rewire(const scenario::Scenario& changed);
  /// up[g] tokens go from GPU g to its unit, the slots of down[g] tokens come back. Adds what the
  /// links carry until take_links().
  const std::vector<Batch>& run(std::span<const std::int64_t> ready_ps,
                                std::span<const std::uint64_t> up,
                                std::span<const std::uint64_t> down, std::uint64_t up_bytes,
                                std::uint64_t down_bytes);
  /// Adds the bytes of each link ([links] of the cluster) since the last call.
  void take_links(std::vector<std::uint64_t>& bytes);

  struct Unit {
    std::uint32_t device = 0;
    std::string name;
    std::vector<std::uint32_t> gpus;
    std::int64_t busy_ps = 0;  ///< Computing, since the beginning.
    std::uint64_t rows = 0;    ///< Tokens it decided.
    Calendar calendar;
  };
  [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  /// Endpoints: GPUs, then units.
  [[nodiscard]] cluster::RouteTable routes_of(const cluster::ClusterGraph& graph) const;
  /// Units whose routes share a link.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> sets_of(
      const cluster::RouteTable& routes) const;

  std::vector<Unit> units_;
  std::vector<std::vector<std::uint32_t>> sets_;  // Of units that are timed as one.
  std::uint32_t gpus_ = 0;
  std::function<SimTime(std::uint64_t)> gate_;
  std::unique_ptr<network::BottleneckModel> links_;  // Endpoints: GPUs, then units.
  std::vector<std::string> names_;                   // [links of the cluster]
  std::vector<std::uint32_t> link_of_;               // Of links_ → of the cluster; empty: same.
  std::vector<std::uint64_t> carried_, scratch_;     // [links of the cluster], [links_]
  std::uint64_t bytes_ = 0;
  TimeTrip time_;  // Empty: the closed form.
  std::vector<Batch> batches_;
};

}  // namespace switchyard::sim
