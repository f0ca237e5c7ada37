// SPDX-License-Identifier: Apache-2.0
// Faults of a scenario (M38, M65, M69): what breaks, when, for how long, and what is done then.
//
//   [faults]
//   detection = "5 ms"               # how long everybody hangs before a loss is noticed
//   reaction = "migrate"             # migrate | restart
//   [[faults.events]]
//   kind = "gpu_loss"                # kFaultKindNames
//   gpu = "gpu3"
//   step = 40                        # or time = "2 s", or probability = 1e-4 (a step and target)
//   lasts = 60                       # steps; without it: to the end of the run
//
//   kind           needs                 effect while it lasts
//   gpu_loss       gpu                   the GPU is gone; see sim/loop/healing.cpp
//   slow_gpu       gpu, factor           kernels of the GPU take factor times as long
//   link_down      link                  the cable is gone; routes are found anew
//   link_degraded  link, factor          the cable carries factor (< 1) of its bandwidth
//   slow_expert    expert, layer, factor kernels of the expert take factor times as long
//   bit_flip       expert, layer         the expert's weights are damaged until a check finds it
//                                        (memory.residency: or it is loaded again; the damage is of
//                                        the copy in GPU memory, so none where that is not)
//   host_stall     stall                 the host adds stall to the step on gpu, or everywhere
//   kv_leak        gpu, bytes            bytes are not given back at the end of every step
//   hot_gpu        gpu, factor           the GPU's clock is at factor (< 1): its arithmetic takes
//                                        1 / factor times as long, its memory and launches do not
//   gather_failure gpu, timeout, tries,  the first `tries` tries of the layer's combine fail at the
//                  layer                 GPU; the exchange is repeated (retries, below). Of every
//                                        micro-batch, chunk or half
//   mis_sharding   expert, layer, gpu    the expert's weights lie on that GPU in place of its own,
//                                        which sends the rows on, until a check finds it
//
// gather_failure: a try that fails is the whole exchange, then `timeout` in which all that take
// part wait; then it is repeated, at most faults.retries times. If the last one fails as well, the
// group's tokens get nothing from experts on other GPUs in that layer, and it is counted how many
// assignments that are.
// A bad placement and damaged weights are found by the same check, every faults.check_every steps.
// The articles name these three without figures; what they cost is ours.
//
// Not modelled: copies and pages under way when a cable breaks (they arrive as if it had not),
// faults inside a step (they take effect when a step begins; the step that hangs is
// counted as lost and run again), wrong numbers that a bit flip or a lost gather produces (only how
// many assignments it touched), a clock that changes with the load, the power of a hot GPU.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"

namespace switchyard::scenario {

enum class FaultKind : std::uint8_t {
  kGpuLoss,
  kSlowGpu,
  kLinkDown,
  kLinkDegraded,
  kSlowExpert,
  kBitFlip,
  kHostStall,
  kKvLeak,
  kHotGpu,
  kGatherFailure,
  kMisSharding
};
inline constexpr std::array<std::string_view, 11> kFaultKindNames{
    "gpu_loss",   "slow_gpu", "link_down", "link_degraded",  "slow_expert", "bit_flip",
    "host_stall", "kv_leak",  "hot_gpu",   "gather_failure", "mis_sharding"};

/// What follows the loss of a GPU.
enum class FaultReaction : std::uint8_t {
  /// The others take its experts (copies, else from host memory) and its sequences, whose lost KV
  /// pages are computed again. When the GPU comes back, experts and sequences return over the
  /// links.
  kMigrate,
  /// All wait until the GPU is back with its weights; its lost KV pages are computed again.
  kRestart
};
inline constexpr std::array<std::string_view, 2> kFaultReactionNames{"migrate", "restart"};

inline constexpr std::uint32_t kAnyTarget = UINT32_MAX;

struct FaultRule {
  FaultKind kind = FaultKind::kGpuLoss;
  std::optional<std::uint32_t> step;  ///< Begins with this step (warm-up included), or
  std::optional<SimTime> time;        ///< with the first step that begins at or after this, or
  double probability = 0;             ///< with this chance, drawn for every step and target.
  std::uint32_t lasts = 0;            ///< Steps; 0: to the end. > 0.
  std::uint32_t gpu = kAnyTarget;     ///< Rank.
  std::uint32_t link = kAnyTarget;    ///< Index into HardwareSpec::links.
  std::uint32_t layer = kAnyTarget;   ///< MoE layer (index); kAnyTarget: all.
  std::uint32_t expert = kAnyTarget;
  double factor = 1;
  SimTime stall;
  std::uint64_t bytes = 0;
  SimTime timeout;          ///< gather_failure: after each try that fails, > 0.
  std::uint32_t tries = 1;  ///< gather_failure: tries that fail, > 0.
  std::string where;
};

struct FaultSpec {
  SimTime detection;  ///< Between a loss (GPU, cable) and the reaction: everybody hangs.
  FaultReaction reaction = FaultReaction::kMigrate;
  SimTime restart;        ///< kRestart: until the GPU runs again, without loading its weights.
  BytesPerSecond reload;  ///< Weights from host memory to a GPU; 0: over the hardware's links.
  std::uint32_t recompute_chunk = 2048;  ///< Tokens per sequence and step when KV is computed anew.
  std::uint32_t check_every = 16;        ///< Steps between two checks of weights and their places.
  std::uint32_t retries = 3;  ///< Repetitions of an exchange that fails (gather_failure).
  std::vector<FaultRule> events;
  [[nodiscard]] bool on() const { return !events.empty(); }
};

}  // namespace switchyard::scenario
