// SPDX-License-Identifier: Apache-2.0
// Private to engine/routing: steps 1 to 10 of route_layer() (route.hpp).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/ranked.hpp"
#include "engine/routing/route.hpp"
#include "engine/routing/rows.hpp"

namespace switchyard {

class Pipeline final : public RowMaker {
 public:
  void run(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
           const RouteInput& input, LayerState& state, DecideWorkspace& decide_workspace,
           LayerDecision& out);

  void make_row(std::uint32_t t, std::span<const std::uint32_t> queue,
                std::span<const std::uint16_t> sets) override;
  [[nodiscard]] const RouteRows& rows() const override { return rows_; }

 private:
  // ---- the step ----
  /// Before any row: controllers take effect.
  void begin_step();
  void begin_sets();
  /// After step 12: controllers and histories learn from the decision.
  void end_step(LayerDecision& out);
  [[nodiscard]] double now() const;

  // ---- steps 1 to 7 of token t: fills z_, p_ ----
  void load_logits(std::uint32_t t);
  void change_logits(std::uint32_t t);
  void apply_semantic_gate(std::uint32_t t);
  void score(std::uint32_t t);

  // ---- steps 8 to 10 of token t, with sel_, key_, order_, set_ ----
  void select(std::uint32_t t, std::span<const std::uint16_t> sets);
  void add_bonuses(std::uint32_t t, std::span<const std::uint16_t> sets);
  void mask_groups(std::uint32_t t);
  /// M14, M17, M19, M21, M22: replaces set_ (and tail_begin_, row_weights_, set_score()). The first
  /// that applies: pinned, table, rule for all, soft.
  void choose_set(std::uint32_t t);
  /// Steps 8 to 10 of token t as the other mechanisms take them: order_, open or not.
  RankedRow ranked_row();
  /// set_ as an array of slots_ entries, and back.
  void open_set();
  void close_set();
  /// M18: re-ranks the first candidates of order_, then takes S anew.
  void rerank(std::uint32_t t);
  /// M12, M13: replace experts of set_ one by one.
  void substitute(std::uint32_t t, std::span<const std::uint32_t> queue);
  void write_row(std::uint32_t t);

  /// Gives expert e of the row under work the probability p (identity gates: the logit log p).
  void set_score(std::uint16_t e, float p);
  /// Set of token t's i-th predecessor in its sequence (i >= 1); empty when there is none.
  [[nodiscard]] std::span<const std::uint16_t> previous_set(std::uint32_t t, std::uint32_t i,
                                                            std::span<const std::uint16_t> sets);
  [[nodiscard]] double u_of(std::uint32_t e) const;
  [[nodiscard]] bool known(std::uint32_t e) const { return !partial_ || known_[e] != 0; }

  // Inputs of the call.
  const GateSpec* gate_ = nullptr;
  const RoutingPolicy* policy_ = nullptr;
  const StepContext* step_ = nullptr;
  const RouteInput* input_ = nullptr;
  LayerState* state_ = nullptr;
  std::uint32_t experts_ = 0, slots_ = 0;
  bool partial_ = false;      // experts outside the candidates are unknown
  bool transformed_ = false;  // steps 1 to 6 change logits, or T scales the score
  bool additive_ = false;     // sel is more than a growing function of z
  double temperature_ = 1, noise_std_ = 0, lambda_ = 0;

  // All tokens: [T][E]. Effective logits before and after the T of step 7, and p.
  std::vector<float> z_, p_;
  std::vector<float> ranking_;       // [T][E] logits that rank, before the T of step 7
  std::vector<std::uint16_t> top1_;  // [T] best candidate by sel (M09)
  // The row under work.
  std::vector<double> raw_;                       // [E]
  std::vector<double> gate_input_, gate_hidden_;  // of the semantic gate
  std::vector<float> row_z_, row_p_;              // [E] copies that a mechanism may overwrite
  std::vector<float> sel_, key_;                  // [E] selection score; what orders the candidates
  std::vector<std::uint8_t> masked_;              // [E] no reroute target
  std::vector<std::uint8_t> known_;               // [E] among the stored candidates
  std::vector<std::uint16_t> order_;              // [E] all experts, best first
  std::vector<std::uint16_t> set_;                // S[t] in slot order
  std::uint32_t tail_begin_ = 0;                  // reroute targets: order_ from here on, without S
  std::uint32_t set_size_ = 0;                    // k_t
  float unsure_ = 0;                              // best key an unknown expert may have
  std::uint64_t unsure_slots_ = 0;                // slots of the step that such a one may have won
  RowWeights row_weights_ = RowWeights::kFamily;
  bool replaced_ = false;  // the row's set does not come from order_
  bool waits_ = false;     // M22
  // Step 10.
  std::vector<double> level_, free_;         // [E] of the GPU of each expert; empty: not known
  std::vector<double> batch_sum_;            // [E] M21
  std::vector<std::uint16_t> batch_set_;     // [k] M21
  std::vector<std::uint32_t> queue_at_end_;  // [E] M12
  bool third_for_all_ = false;               // M12: the batch rule fired
  std::vector<float> ordered_p_, ordered_sel_;
  std::vector<std::uint16_t> proposed_;
  SoftBalanceCounts balance_;
  DecodeRebalanceCounts rebalance_;
  SetCounts counts_;
  std::vector<float> group_score_;
  std::vector<std::uint8_t> group_kept_;
  std::vector<std::uint32_t> group_best_;
  std::vector<float> best_;
  RouteRows rows_;
};

}  // namespace switchyard
