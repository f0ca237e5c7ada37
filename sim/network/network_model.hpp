// SPDX-License-Identifier: Apache-2.0
// The one interface through which the simulator times data exchange (M31, simulation.md §2).
//
// exchange(): one exchange that is alone on its links while it runs. The caller promises that; the
// step loop of one batch keeps it, because its exchanges follow each other.
// run(): any set of activities with staggered starts and dependencies.
//
//   model        exchange()                        run()
//   bottleneck   closed form (bottleneck.hpp)      closed form; InputError if two activities carry
//                                                  bytes over one link at the same time
//   auto         closed form                       closed form while no two meet on a link; if any
//                                                  do, the whole batch is run as coflow
//   coflow       one parallel task per phase       SimGrid ptask_L07 (contention.hpp)
//   flow         one Comm per pair and phase       SimGrid CM02
// Under `auto` a batch in which activities meet therefore ends exactly as under coflow, which is
// what continuing the remaining fraction as a coflow gives (progress before the meeting is linear).
//
// Algorithms other than direct run their phases one after another with a barrier (algorithms.hpp).
// They are one call: the first phase pays the path latency, with the start-up of the call in it,
// the others the phase latency (RouteTable::phase_latency). So does an exchange that `continues` a
// call.
//
// Ready times. Only GPUs with bytes to send or receive take part; the others end when they were
// ready. bottleneck, auto, coflow: the exchange starts when the last participant is ready and all
// of them end together. flow: a pair starts when both its GPUs are ready, and a GPU ends with the
// last pair it sends or receives in (with several phases: with the last phase, as the others do).
//
// Measured links (measured.hpp) exist in the closed form only: `flow` and `coflow` with them, and
// traffic that meets on a link under `auto`, are refused here. In the step loop the queue of
// transfers has them (sim/memory/transfer_queue.hpp).
//
// Not modelled: see bottleneck.hpp, contention.hpp, algorithms.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/network/algorithms.hpp"
#include "sim/network/bottleneck.hpp"
#include "sim/network/contention.hpp"

namespace switchyard::network {

enum class Model : std::uint8_t { kAuto, kFlow, kCoflow, kBottleneck };
[[nodiscard]] const char* name_of(Model model);

/// Reused from call to call; exchange() sizes the vectors.
struct ExchangeResult {
  SimTime start;                          ///< Latest ready time of the participants.
  SimTime duration;                       ///< Last end − start; 0 without bytes.
  SimTime alpha;                          ///< Path latency in it, summed over phases.
  SimTime floor;                          ///< No model may be faster: Σ over phases of the largest
                                          ///< bytes/bandwidth, without latency.
  std::vector<SimTime> end;               ///< [n]
  std::vector<std::uint64_t> link_bytes;  ///< [links], over all phases.
  std::vector<std::uint8_t> participates;  ///< [n] sends, receives or relays.
  std::uint32_t last_ready = kNone;        ///< Participant that `start` is of; lowest among equals.
  std::uint64_t bytes = 0;  ///< Sent between different GPUs by the matrix (relaying not counted).
  std::uint32_t bottleneck_link = kNone;  ///< Of the longest phase.
  std::uint32_t straggler = kNone;        ///< GPU rank that was last, and why.
  StragglerReason reason = StragglerReason::kNone;
  bool extrapolated = false;  ///< A measured link was asked beyond its table.
};

/// A measured curve and the links it stands for ([links] of the routes, 1 = this one).
struct MeasuredLinks {
  MeasuredCurve curve;
  std::vector<std::uint8_t> on_link;
};

class NetworkModel {
 public:
  /// flow and coflow create the process's SimGrid session here, auto at the first contended batch:
  /// std::logic_error if the process has had one.
  /// With measured links, InputError for flow and coflow.
  NetworkModel(Model model, Algorithm algorithm, cluster::RouteTable routes,
               const MeasuredLinks* measured = nullptr);
  ~NetworkModel();
  NetworkModel(NetworkModel&&) noexcept;

  [[nodiscard]] const cluster::RouteTable& routes() const { return *routes_; }
  [[nodiscard]] Model model() const { return model_; }
  [[nodiscard]] Algorithm algorithm() const { return algorithm_; }

  /// bytes: [n][n] row-major, row = sender, the diagonal is ignored, sum ≤ 2^53. ready: [n].
  /// continues: it is a later phase of a call (a collective whose phases are run one by one).
  void exchange(std::span<const std::uint64_t> bytes, std::span<const SimTime> ready,
                ExchangeResult& result, bool continues = false);
  /// Whether the next two may be asked: a direct exchange in closed form over tiered routes.
  [[nodiscard]] bool takes_copies() const {
    return algorithm_ == Algorithm::kDirect && closed_.tiered() &&
           (model_ == Model::kBottleneck || model_ == Model::kAuto);
  }
  /// exchange() of a matrix whose entries are copies of one size, in two parts
  /// (BottleneckModel::sum_copies).
  void sum_copies(std::span<const std::uint32_t> copies) { closed_.sum_copies(copies); }
  void exchange_copies(std::uint64_t bytes, bool back, std::span<const SimTime> ready,
                       ExchangeResult& result);
  /// Times count from the origin of the batch. Throws DeadlockError for a cycle in `after`.
  std::vector<ActivityResult> run(std::span<const Activity> activities);

 private:
  /// What `form` says of an exchange that is one phase.
  void take(const BottleneckModel& form, const BottleneckTime& time, ExchangeResult& result);
  /// The first and the last ready time of the participants; start and last_ready of the result.
  SimTime find_ready(std::span<const SimTime> ready, ExchangeResult& result) const;
  /// All participants end together, `duration` after the last was ready.
  void end_together(SimTime duration, ExchangeResult& result) const;
  /// The straggler is the GPU that all waited for, if they waited longer than it took.
  static void blame_late(SimTime first_ready, ExchangeResult& result);
  /// False if two activities meet on a link; then `results` is incomplete and `meeting` says where.
  bool run_closed(std::span<const Activity> activities, std::vector<ActivityResult>& results,
                  std::string& meeting);
  ContentionSession& session();
  /// The closed form of later phases; closed_ where they pay the same latency.
  BottleneckModel& later();

  Model model_;
  Algorithm algorithm_;
  std::unique_ptr<cluster::RouteTable> routes_;  // Stable address: the session keeps a reference.
  BottleneckModel closed_;
  std::unique_ptr<BottleneckModel> later_;   // Made when it is first asked for.
  std::unique_ptr<MeasuredLinks> measured_;  // Or null.
  std::unique_ptr<ContentionSession> session_;
  std::vector<std::uint64_t> scratch_;    // [links]
  std::vector<std::uint8_t> takes_part_;  // [n]
};

}  // namespace switchyard::network
