// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of engine/routing.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/random.hpp"
#include "engine/routing/decide.hpp"
#include "engine/routing/route.hpp"

namespace switchyard {

using Rows = std::vector<std::vector<double>>;

/// log(P) as the logits of softmax gates: the gate then gives P back.
inline std::vector<float> log_rows(const Rows& p) {
  std::vector<float> out;
  for (const auto& row : p) {
    for (const double v : row) {
      out.push_back(static_cast<float>(std::log(v)));
    }
  }
  return out;
}

/// One step of `tokens` decode tokens, one per sequence.
struct Step {
  std::vector<std::uint32_t> sequence, position;
  std::vector<std::uint8_t> phase;
  StepContext context;
  explicit Step(std::uint32_t tokens, Phase kind = Phase::kDecode, std::uint64_t seed = 1) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      sequence.push_back(t);
      position.push_back(100);
      phase.push_back(static_cast<std::uint8_t>(kind));
    }
    context = make_step(sequence, position, phase, seed, 0, 0);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
};

inline Candidates ranked(const GateSpec& gate, const std::vector<float>& logits,
                         const std::vector<float>& bias = {}, std::uint32_t width = 0) {
  RankWorkspace workspace;
  Candidates out;
  rank_candidates(gate, logits, bias,
                  width == 0 ? stored_candidates(gate.experts, gate.top_k) : width, workspace, out);
  return out;
}

inline LayerDecision decided(const GateSpec& gate, const RoutingPolicy& policy,
                             const StepContext& step, const Candidates& candidates,
                             const std::vector<float>& bias = {}) {
  validate(gate, "test");
  validate(policy, gate.experts, gate.top_k, "test");
  DecideWorkspace workspace;
  LayerDecision out;
  decide(gate, policy, step, candidates.view(), bias, workspace, out);
  return out;
}

/// Rank and decide a block of decode tokens.
inline LayerDecision route(const GateSpec& gate, const RoutingPolicy& policy,
                           const std::vector<float>& logits, const std::vector<float>& bias = {},
                           std::uint32_t width = 0) {
  const Candidates c = ranked(gate, logits, bias, width);
  const Step step(c.tokens);
  return decided(gate, policy, step.context, c, bias);
}

/// Policy from the short form of policy_from_text.
inline RoutingPolicy policy_of(const std::string& text) { return policy_from_text(text, "test"); }

/// Runs one layer step after step under a policy, with all logits known, as the engine does.
class Router {
 public:
  Router(const GateSpec& gate, const RoutingPolicy& policy, std::vector<float> bias = {})
      : gate_(gate), policy_(policy), bias_(std::move(bias)), state_(1) {
    validate(gate_, "test");
    validate(policy_, gate_.experts, gate_.top_k, "test");
  }
  Router(const GateSpec& gate, const std::string& policy, std::vector<float> bias = {})
      : Router(gate, policy_from_text(policy, "test"), std::move(bias)) {}

  /// `logits` [T][E]; one decode token of each sequence 0…T-1 unless `sequence` says otherwise,
  /// then positions go on from the sequence's last.
  const LayerDecision& step(const std::vector<float>& logits,
                            std::vector<std::uint32_t> sequence = {}) {
    const auto tokens = static_cast<std::uint32_t>(logits.size() / gate_.experts);
    for (std::uint32_t t = 0; sequence.size() < tokens; ++t) {
      sequence.push_back(t);
    }
    std::vector<std::uint32_t> position;
    for (const std::uint32_t s : sequence) {
      if (s >= length_.size()) {
        length_.resize(s + 1);
      }
      position.push_back(length_[s]++);
    }
    const std::vector<std::uint8_t> phase(tokens, static_cast<std::uint8_t>(Phase::kDecode));
    StepContext context = make_step(sequence, position, phase, seed, 0, steps_++);
    if (resolved_scope(policy_.capacity) != CapacityScope::kGroup) {
      context.backlog = backlog_;
    }
    const std::uint32_t k = policy_slots(policy_, gate_);
    rank_candidates(gate_, logits, bias_, width == 0 ? stored_candidates(gate_.experts, k) : width,
                    rank_, candidates_);
    RouteInput input;
    input.candidates = candidates_.view();
    input.logits = all_logits ? std::span<const float>(logits) : std::span<const float>();
    input.gate_bias = bias_;
    input.signals = signals;
    input.requests = state_.requests();
    input.weights = weights;
    input.hidden = hidden;
    input.table = table;
    input.tier2 = tier2;
    route_layer(gate_, policy_, context, input, state_.layer(0), workspace_, out_);
    backlog_ = out_.deferred;
    return out_;
  }
  LayerState& layer() { return state_.layer(0); }
  RoutingState& state() { return state_; }
  [[nodiscard]] const Candidates& candidates() const { return candidates_; }

  std::uint64_t seed = 1;
  std::uint32_t width = 0;  ///< M; 0: stored_candidates().
  bool all_logits = true;   ///< false: as a replay, which knows the candidates only.
  const Signals* signals = nullptr;
  const LayerPolicyWeights* weights = nullptr;
  std::vector<float> hidden;  ///< [T][H] of the next step.
  const RoutingTable* table = nullptr;
  std::vector<float> tier2;  ///< [T][E]

 private:
  GateSpec gate_;
  RoutingPolicy policy_;
  std::vector<float> bias_;
  RoutingState state_;
  std::uint32_t steps_ = 0;
  std::vector<std::uint32_t> length_, backlog_;
  RankWorkspace rank_;
  Candidates candidates_;
  RouteWorkspace workspace_;
  LayerDecision out_;
};

/// T k_t = kept + rerouted + queued + dropped, by slots and by the decision's own counts.
inline std::string not_conserved(const LayerDecision& d) {
  std::uint64_t by[5] = {};
  for (std::size_t i = 0; i < d.outcome.size(); ++i) {
    ++by[d.outcome[i]];
    const bool slot = d.first[i] != kNoExpert;
    if (slot != (d.outcome[i] != 0)) {
      return fmt::format("slot {} has an outcome and no first choice, or the reverse", i);
    }
    if (!std::isfinite(d.weights[i]) || (d.chosen[i] == kNoExpert && d.weights[i] != 0)) {
      return fmt::format("slot {} weighs {}", i, d.weights[i]);
    }
  }
  std::uint64_t load = 0;
  for (const std::uint32_t n : d.load) {
    load += n;
  }
  if (by[1] != d.kept || by[2] != d.rerouted || by[3] != d.queued_slots || by[4] != d.dropped ||
      d.assignments != by[1] + by[2] + by[3] + by[4] || load != d.kept + d.rerouted) {
    return fmt::format("{} assignments; {} kept, {} rerouted, {} queued, {} dropped; load {}",
                       d.assignments, by[1], by[2], by[3], by[4], load);
  }
  return {};
}

/// "0K 1D" of token t: expert and K kept, R rerouted, Q queued, D dropped (the first choice), "-"
/// for a slot without expert.
inline std::string show(const LayerDecision& d, std::uint32_t t) {
  std::string text;
  for (std::uint32_t j = 0; j < d.slots; ++j) {
    const std::uint64_t i = row_offset(t, d.slots, j);
    text += j == 0 ? "" : " ";
    switch (static_cast<SlotOutcome>(d.outcome[i])) {
      case SlotOutcome::kNoSlot:
        text += "-";
        break;
      case SlotOutcome::kDropped:
        text += fmt::format("{}D", d.first[i]);
        break;
      default:
        text += fmt::format("{}{}", d.chosen[i], "?KRQ"[d.outcome[i]]);
    }
  }
  return text;
}

inline std::string show(const LayerDecision& d) {
  std::string text;
  for (std::uint32_t t = 0; t < d.tokens; ++t) {
    text += (t == 0 ? "" : " | ") + show(d, t);
  }
  return text;
}

/// Reproducible random draws for property tests.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return random_uniform(seed_, random_purpose("test"), {0, 0, 0, n_++}); }
  /// 0…n-1.
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(uniform() * static_cast<double>(n));
  }
  std::vector<float> logits(std::uint32_t count) {
    std::vector<float> z(count);
    for (float& v : z) {
      v = static_cast<float>(4.0 * uniform() - 2.0);
    }
    return z;
  }

 private:
  std::uint64_t seed_;
  std::uint32_t n_ = 0;
};

}  // namespace switchyard
