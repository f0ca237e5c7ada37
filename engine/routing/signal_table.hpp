// SPDX-License-Identifier: Apache-2.0
// What a simulation knew of the machine, step by step: the input of `trace --signals` and of
// coupled mode, so that the engine can run with policies that look at memory, queues, placement and
// time.
//
// Which sample an engine step sees (SignalCursor). Steps of the two are paired by kind, each kind
// counted from 0:
//
//   an engine step with a decoding token, the n-th such one  sees the simulation's n-th step with a
//                                                            decoding token (warm-up steps count)
//   an engine step of prompts only, the n-th such one        sees the n-th simulated step of
//                                                            prompts only
//   n beyond the last one of its kind   the last one's sample; the clock goes on from its end by
//   the
//                                       mean length of a simulated step
//   the simulation has no such step     prompts: the first sample of all; decoding: the last one
//
// The clock never goes back: a step's start is at least that of the engine step before.
//
// Several replicas step by themselves, and a row of the table is of the one that stepped: its
// placement and queues are of that replica's copies of the experts. An engine step holds sequences
// of one replica, and steps are counted by replica and kind. Sequence q is of the replica that
// computed the simulated sequence q last; where the simulation never computed one of that number,
// of the (q mod n)-th of the n replicas that stepped.
//
// With the
// fixed decode workload, every prompt in one batch and --chunk 0 this is the very step in which the
// simulator uses the rows that the engine step makes.
//
// Not modelled: samples within a step; a schedule of the engine that follows the simulated one.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/routing/route.hpp"

namespace switchyard {

inline constexpr std::uint32_t kNoReplica = 0xFFFFFFFFU;

/// S steps, G GPUs, L MoE layers, E experts, P placements, Q simulated sequences.
struct SignalTable {
  std::uint32_t gpus = 0, layers = 0, experts = 0;
  std::vector<std::uint8_t> decodes;           ///< [S] 1: the step has a decoding token.
  std::vector<std::int64_t> start_ps, end_ps;  ///< [S] starts ascend from 0.
  std::vector<double> used;     ///< [S][G] memory in use / capacity at the step's start, >= 0.
  std::vector<double> elastic;  ///< [S][G] the part that comes and goes / (capacity - rest).
  std::vector<std::uint32_t> placement;  ///< [S] < P
  /// [P][L][E + 1] GPUs of placement p's, layer l's expert e: gpu[first_gpu[(p L + l)(E + 1) + e]]
  /// … exclusive of the next.
  std::vector<std::uint32_t> first_gpu;
  std::vector<std::uint32_t> gpu;
  std::vector<float> queue;                  ///< [S][L][E] Signals::queue, or empty.
  std::vector<std::uint32_t> longest_queue;  ///< [S][L], or empty.
  // Both empty: there is one replica.
  std::vector<std::uint32_t> replica;           ///< [S] that stepped.
  std::vector<std::uint32_t> sequence_replica;  ///< [Q] kNoReplica: it computed no token.
  [[nodiscard]] std::uint32_t steps() const { return static_cast<std::uint32_t>(start_ps.size()); }
  [[nodiscard]] std::uint32_t placements() const {
    return static_cast<std::uint32_t>(first_gpu.size() / (std::size_t{layers} * (experts + 1)));
  }
  /// 1 + the largest number of a replica that stepped.
  [[nodiscard]] std::uint32_t replicas() const;
  bool operator==(const SignalTable&) const = default;
};

/// Throws InputError(where, …) naming the array and the place: no steps, sizes that disagree,
/// values out of range, an expert without a GPU.
void validate_signals(const SignalTable& table, const std::string& where);
/// Throws InputError(where, …) when the policy reads queues of the last step and the table has none
/// (M04 u = queue, the batch rule of M12): a table of a simulation under another policy.
void require_queues(const SignalTable& table, const RoutingPolicy& policy,
                    const std::string& where);
/// Whether the policy reads queues that an earlier step left: M04's u, M12's batch rule.
[[nodiscard]] bool reads_queue_levels(const RoutingPolicy& policy);
[[nodiscard]] bool reads_longest_queue(const RoutingPolicy& policy);

/// Goes through the table beside the steps of an engine run or of a replay.
class SignalCursor {
 public:
  /// `table` is borrowed; null: no signals. It has passed validate_signals().
  explicit SignalCursor(const SignalTable* table);
  [[nodiscard]] bool on() const { return table_ != nullptr; }
  /// Numbers of replicas are below this; 1 without a table.
  [[nodiscard]] std::uint32_t replicas() const { return replicas_; }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t sequence) const;
  /// Once at the beginning of every step, which is of that replica.
  void begin_step(bool decodes, std::uint32_t replica = 0);
  /// What the step sees in MoE layer `layer` < L. Borrowed from the table. After begin_step().
  [[nodiscard]] Signals view(std::uint32_t layer) const;
  [[nodiscard]] std::uint32_t sample() const { return sample_; }  ///< Row of the table.

 private:
  const SignalTable* table_;
  struct Replica {
    std::array<std::vector<std::uint32_t>, 2> steps;  // [decodes] rows of the table
    std::array<std::uint32_t, 2> count{};             // engine steps so far
    std::vector<std::uint32_t> all;                   // rows of either kind
    double clock = 0;
  };
  std::map<std::uint32_t, Replica> stepping_;
  std::uint32_t replicas_ = 1;
  std::uint32_t sample_ = 0;
  double clock_ = 0;  // of the step
};

}  // namespace switchyard
