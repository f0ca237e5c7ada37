// SPDX-License-Identifier: Apache-2.0
// File: health.hpp. Health checks of a running model (mechanisms M29, M62): notices damaged weights
// and repairs them from the checkpoint while generation goes on.
//
// At the start each tensor's CRC-32C and L2 norm are noted. Before every `every`-th step each
// tensor is compared: a NaN or infinity among its values, a norm that differs by more than 5 %,
// another CRC. After each step: router logits beyond ±100, NaN or infinite router or output logits;
// such an alarm checks all weights at once. The unit that holds a damaged tensor (an expert with
// its three matrices and biases; else the tensor alone) is read from the checkpoint again, into
// memory of its own: as it is stored, a packed tensor as the float32 values that it means.
//
// With every = 1 no step computes with weights that were damaged before it began, so its results
// are those of an undisturbed run. With more, an alarm after a step that leads to a repair drops
// the step: its sequences' tokens go through the model again (Session::redo), so what follows is
// free of the damage. Tokens that earlier steps sampled, and damage that raises no alarm until the
// next check, stay; the report counts those steps.
//
// Not modelled: damage to keys and values or activations, damage while a step runs; the INT4 or
// low-rank copy of a router that a two-tier policy makes when it starts; reading again less than
// the checkpoint's index (formats that are widened or transposed at load are widened again as a
// whole, and let go afterwards); devices that copy weights (the CPU backend reads them in place).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/session.hpp"

namespace switchyard {

struct HealthOptions {
  std::uint32_t every = 1;       ///< Steps from one check of the weights to the next, >= 1.
  bool norms = true;             ///< Compare values and norms.
  bool crc = true;               ///< Compare CRCs.
  double norm_tolerance = 0.05;  ///< Relative.
  float logit_limit = 100;       ///< Of router logits.
};

/// Damage to do before a step: bit `bit` of value `element` of a tensor flips in memory. Of a
/// packed tensor (FP8, MXFP4, GGUF blocks, stored transposed) the float32 value that it means
/// flips.
struct BitFlip {
  std::string tensor;  ///< As for_each_named_view names it.
  std::uint64_t element = 0;
  unsigned bit = 0;
  std::uint32_t step = 0;
};

/// "layers.1.experts.3.gate:17:14@2": tensor, value, bit, step. InputError(where, …).
[[nodiscard]] BitFlip parse_bit_flip(std::string_view text, const std::string& where);

/// What is noted of a tensor.
struct WeightState {
  double norm = 0;        ///< L2.
  bool finite = true;     ///< No NaN, no infinity.
  std::uint32_t crc = 0;  ///< CRC-32C of its bytes; of a packed tensor, of its values in float32.
  bool operator==(const WeightState&) const = default;
};
[[nodiscard]] WeightState state_of(const WeightView& view, bool norm = true, bool crc = true);
/// Bits per value that a BitFlip can flip: 16 or 32.
[[nodiscard]] unsigned flippable_bits(const WeightView& view);
/// A copy of the tensor with one bit flipped; `view` points to it afterwards.
[[nodiscard]] std::vector<std::byte> flip_bit(WeightView& view, std::uint64_t element,
                                              unsigned bit);

struct HealthReport {
  std::uint64_t checks = 0;           ///< Of all weights.
  std::uint64_t tensors = 0;          ///< Of the model.
  std::uint64_t flips = 0;            ///< Injected.
  std::uint64_t not_finite = 0;       ///< Tensors found with a NaN or infinity.
  std::uint64_t norm = 0;             ///< Tensors found by their norm (the above not counted).
  std::uint64_t crc = 0;              ///< Tensors found by their CRC, those above included.
  std::uint64_t router_alarms = 0;    ///< Steps with a router logit beyond the limit.
  std::uint64_t nan_alarms = 0;       ///< Steps with a NaN or infinite logit.
  std::uint64_t reloads = 0;          ///< Units read again.
  std::uint64_t damaged_steps = 0;    ///< Steps that ran since an injected flip, before its repair.
  std::uint64_t redone = 0;           ///< Of these, steps dropped and run again.
  std::vector<std::string> events{};  ///< In order; for people.
};

class HealthMonitor {
 public:
  /// Notes the state of `engine`, which stays alive. InputError when the engine was not loaded from
  /// a checkpoint or runs over several ranks, when `every` is 0, or when neither norms nor crc is
  /// on.
  HealthMonitor(Engine& engine, const HealthOptions& options);

  /// InputError("--flip", …): no such tensor, value or bit.
  void inject(const BitFlip& flip);
  /// Does the damage that is due, then checks and repairs if it is time. InputError when what is
  /// read again differs from what was loaded: the checkpoint has changed.
  void before_step(std::uint32_t step);
  /// Looks at the logits of a step; checks and repairs when they are out of bounds. True: something
  /// was repaired, and the step computed with damaged weights.
  bool after_step(const StepResult& result);
  /// One step of `session` (of this engine, with may_redo) between the two: run again, once, when
  /// after_step() repaired something. `step` as before_step().
  const StepResult& step(Session& session, std::span<const SequenceTokens> work, Phase phase,
                         std::uint32_t step);
  [[nodiscard]] const HealthReport& report() const { return report_; }
  /// Flips whose step has not come.
  [[nodiscard]] const std::vector<BitFlip>& pending() const { return flips_; }

 private:
  struct Noted {
    WeightView* view = nullptr;  // in the engine
    WeightState state{};
  };
  /// The number of units read again.
  std::size_t check(std::uint32_t step);
  void reload(std::span<const std::string> units, std::uint32_t step);

  Engine& engine_;
  HealthOptions options_;
  std::map<std::string, Noted> noted_;
  std::map<std::string, std::vector<std::byte>> copies_;  // of damaged and of repaired tensors
  std::vector<BitFlip> flips_;                            // not yet done
  std::vector<std::string> damaged_;                      // by a flip, not yet repaired
  HealthReport report_;
};

}  // namespace switchyard
