// SPDX-License-Identifier: Apache-2.0
// Which faults are there when a step begins. Scheduled ones by step or time, random ones drawn for
// every step and target: philox(seed, "fault"; rule, target, step), so neither the order of calls
// nor other faults change them.
//
// Not modelled: faults that cause others.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// A fault that begins or ends.
struct FaultChange {
  std::size_t rule = 0;  ///< Index into FaultSpec::events.
  bool begins = true;
  std::uint32_t target = 0;  ///< GPU rank or index of the cable; kAnyTarget: all.
};

class FaultClock {
 public:
  /// `scenario` is borrowed.
  explicit FaultClock(const scenario::Scenario& scenario);

  /// Advances to a step that begins at `now_ps`; steps in order. What ends comes before what
  /// begins, each in the order of the rules, then of the targets.
  std::vector<FaultChange> advance(std::uint64_t step, std::int64_t now_ps);
  /// Ends faults early (a repair); true when there was one. slow_expert, bit_flip and mis_sharding
  /// of an expert in one layer (index; a rule for all layers goes on in the others, and is over
  /// when each layer has been repaired); a loss or leak of a GPU, a cable that is down.
  bool repair_expert(std::uint32_t layer, std::uint32_t expert);
  bool repair(scenario::FaultKind kind, std::uint32_t target);
  /// The expert was loaded anew in that layer: its bit_flip is over there, and nothing else is.
  bool load_sound(std::uint32_t layer, std::uint32_t expert);
  /// Whether a fault of this kind is there: a GPU may have several causes to be gone.
  [[nodiscard]] bool active(scenario::FaultKind kind, std::uint32_t target) const;

  /// Kernels of the GPU take this times as long, >= 1.
  [[nodiscard]] double gpu_factor(std::uint32_t gpu) const { return gpu_factor_[gpu]; }
  [[nodiscard]] bool any_slow_expert() const { return any_slow_expert_; }
  [[nodiscard]] double expert_factor(std::uint32_t layer, std::uint32_t expert) const;
  /// Share of a cable's bandwidth that is left; 0: it is down.
  [[nodiscard]] const std::vector<double>& link_factor() const { return link_factor_; }
  [[nodiscard]] bool damaged(std::uint32_t layer, std::uint32_t expert) const;
  [[nodiscard]] bool any_damaged() const { return any_damaged_; }
  /// Share of its clock that a GPU has, (0, 1].
  [[nodiscard]] double clock(std::uint32_t gpu) const { return clock_[gpu]; }
  /// Rules of the gathers of a layer that fail now, in the order in which they began.
  struct BadGather {
    const scenario::FaultRule* rule = nullptr;
    std::uint32_t gpu = 0;
  };
  [[nodiscard]] std::vector<BadGather> bad_gathers(std::uint32_t layer) const;
  [[nodiscard]] bool any_bad_gather() const { return any_bad_gather_; }
  /// Added to the host's time of this step.
  [[nodiscard]] std::int64_t stall_ps(std::uint32_t gpu) const { return stall_ps_[gpu]; }
  /// Not given back at the end of this step.
  [[nodiscard]] std::uint64_t leak(std::uint32_t gpu) const { return leak_[gpu]; }
  /// Whether a fault slows the GPU or a cable at it.
  [[nodiscard]] bool touches(std::uint32_t gpu) const { return touches_[gpu] != 0; }

 private:
  struct Active {
    std::size_t rule;
    std::uint32_t target;
    std::uint64_t until;                    // Ends with the step of this number.
    std::set<std::uint32_t> repaired = {};  // Layers of a rule for all of them.
  };
  void refresh();
  bool end_in_layer(std::uint32_t layer, std::uint32_t expert, bool flips_only);
  /// Whether an active fault is one of this expert in this layer.
  [[nodiscard]] bool hits(const Active& a, std::uint32_t layer, std::uint32_t expert) const;

  const scenario::Scenario& s_;
  std::vector<Active> active_;
  std::vector<std::uint8_t> done_;    // [rule] a scheduled fault that has begun
  std::uint64_t drawn_ = UINT64_MAX;  // the step whose random faults are drawn
  std::vector<double> gpu_factor_, link_factor_, clock_;
  std::vector<std::int64_t> stall_ps_;
  std::vector<std::uint64_t> leak_;
  std::vector<std::uint8_t> touches_;
  bool any_slow_expert_ = false, any_damaged_ = false, any_bad_gather_ = false;
};

}  // namespace switchyard::sim
