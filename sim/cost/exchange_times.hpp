// SPDX-License-Identifier: Apache-2.0
// Times of exchanges from a calibration (cost.exchange = "calibrated"): dispatch and combine of the
// MoE layers and the collectives of tensor parallelism, in place of the network model's. Bytes,
// stragglers and the links' loads stay those of the routing and the links.
//
//   table               taken when                              asked for
//   dispatch, combine   hidden, top-k, experts and GPUs (ep)    T = bytes of the busiest port /
//   bytes
//                       are the scenario's; low_latency for     of a token there under uniform
//                       network.dispatch = per_expert, normal   routing, at least 1, rounded
//                       for per_rank; copies as measured:
//                       2H bytes, low-latency dispatch
//                       H + 4·⌈H/128⌉ + 16
//   collective alltoall GPUs are ep; where there is no such     S = bytes of the busiest port ·
//                       table: any format and routing           G/(G−1)
//   collective          GPUs are tp; all_reduce,                S of the buffer: T·H·a (logits
//   n·V·a)
//                       reduce_scatter, all_gather
//
// A library that cost.exchange_library names gives dispatch and combine alone where it has any
// dispatch, combine or alltoall; what it has no table of for the layout stays the model's. Without
// a number of SMs (cost.exchange_sms) the most of that library's tables of the layout.
//
// The busiest port is the GPU that sends or receives most in its group: imbalance lengthens an
// exchange as more tokens would. All participants begin when the last of them is ready and end
// together. Every group must lie in one server and be alone on its links, and no copy of experts or
// pages may share them. No time is below the bytes over the scenario's links. A collective's time
// is divided evenly over the phases of the scenario's algorithm. Tries of
// a combine that fail take its time; rows of an expert that lies elsewhere (mis_sharding) travel on
// in exchanges of their own.
//
// Not modelled: measured batches have busiest ports, too, so small batches come out as somewhat
// larger ones; what measured dispatch and combine do beside moving rows (layout, packing) is in
// their times, and the router's permutation is charged all the same.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "sim/cost/calibrated.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

class ExchangeTimes {
 public:
  enum class Kind : std::uint8_t { kDispatch, kCombine, kAllReduce, kReduceScatter, kAllGather };
  static constexpr std::size_t kKinds = 5;
  static constexpr std::array<std::string_view, kKinds> kNames{"dispatch", "combine", "all-reduce",
                                                               "reduce-scatter", "all-gather"};

  /// Finds the tables for the layout; borrows the scenario's calibration. InputError: several
  /// libraries of one exchange (cost.exchange_library), tables of the layout of other numbers of
  /// SMs alone (cost.exchange_sms).
  explicit ExchangeTimes(const scenario::Scenario& scenario);
  /// Whether the layout has such exchanges at all.
  [[nodiscard]] bool wanted(Kind kind) const { return of(kind).wanted; }
  [[nodiscard]] bool has(Kind kind) const { return of(kind).timer != nullptr; }
  /// The table that is asked; only with has().
  [[nodiscard]] const scenario::OpTable& table(Kind kind) const { return of(kind).timer->table(); }
  /// Why a wanted exchange has no table; empty when it has.
  [[nodiscard]] const std::string& why_not(Kind kind) const { return of(kind).why_not; }
  /// The network model times this kind after all.
  void leave(Kind kind, std::string why);
  /// InputError with the reasons when no exchange has a table (cost.exchange), none of the library
  /// that is named (cost.exchange_library), or none of stated SMs (cost.exchange_sms).
  void require_used() const;
  /// dispatch, combine: bytes of the busiest port, > 0. Others: of the buffer, > 0.
  [[nodiscard]] OpTime time(Kind kind, std::uint64_t bytes);

 private:
  struct Of {
    bool wanted = false;
    std::unique_ptr<OpTimer> timer;
    double scale = 1;  // Bytes → argument of the table.
    std::string why_not;
    std::map<double, OpTime> known;
  };
  [[nodiscard]] const Of& of(Kind kind) const { return of_[static_cast<std::size_t>(kind)]; }
  void find_all_to_all(const scenario::Scenario& s, Kind kind, const std::string& library);
  void find_collective(const scenario::Scenario& s, Kind kind, const std::string& library);
  /// Of the exchanges that are wanted: the table, or why there is none.
  [[nodiscard]] std::string taken() const;
  std::shared_ptr<const scenario::Calibration> calibration_;
  std::string named_;      // cost.exchange_library
  std::uint32_t sms_ = 0;  // cost.exchange_sms
  std::array<Of, kKinds> of_;
};

}  // namespace switchyard::sim
