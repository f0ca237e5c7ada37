// SPDX-License-Identifier: Apache-2.0
// Private to engine/routing: what step 10 of the pipeline hands to steps 11 and 12.
//
// A row is made when step 11 comes to its token, because M12's queues and the choices of a
// sequence's previous tokens must be known then:
//   mode = sequential: a token's row is made after all earlier tokens have been accepted, rerouted
//   or dropped. Otherwise (rounds, no capacity rule, tutel with factor <= 0) all rows are made
//   first, in canonical order, and "accepted" stands for the first choices of earlier tokens.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/decide.hpp"

namespace switchyard {

/// How the weights of a row come about.
enum class RowWeights : std::uint8_t {
  kFamily,  ///< The family's rule on the set that runs (policy's weights.renorm).
  kTable,   ///< The same on the p of a table; there are no logits that score.rule could take.
  kRaw,     ///< p of each, times the family's scale.
  kShare,   ///< p / sum of p over the set that runs, times the family's scale.
};

/// T rows of width W: first the set S[t] in slot order, then the reroute targets in order.
struct RouteRows {
  std::uint32_t tokens = 0, width = 0, slots = 0;  ///< T, W, K.
  std::vector<std::uint16_t> ids;  ///< [T][W] distinct in a row; kNoExpert ends a row early.
  std::vector<float> logit;        ///< [T][W] effective logit (steps 2 to 7); -inf: masked, NaN.
  std::vector<float> p;            ///< [T][W]
  std::vector<float> sel;          ///< [T][W] selection score, for max_score_drop.
  std::vector<float> lse;          ///< [T] not read; keeps the shape of CandidatesView.
  std::vector<std::uint16_t> set_size;  ///< [T] k_t <= K.
  std::vector<std::uint16_t> usable;    ///< [T] set and targets together: entries of the row.
  std::vector<std::uint8_t> open;       ///< [T] experts outside the known ones might follow.
  std::vector<std::uint8_t> waits;      ///< [T] a full expert makes the slot wait: no reroute.
  std::vector<RowWeights> weights;      ///< [T]
  void resize(std::uint32_t token_count, std::uint32_t row_width, std::uint32_t slot_count);
};

class RowMaker {
 public:
  virtual ~RowMaker() = default;
  /// Fills row t of rows(). `queue` [E] = q_e(t) = backlog + accepted before t, all scopes
  /// together. `sets` [T][K]: what earlier tokens of the step run on (sequential) or chose (else).
  virtual void make_row(std::uint32_t t, std::span<const std::uint32_t> queue,
                        std::span<const std::uint16_t> sets) = 0;
  [[nodiscard]] virtual const RouteRows& rows() const = 0;
};

/// Steps 11 and 12 over rows that are made on the way. `maker.rows()` has its sizes before the call
/// and no row reallocates it.
void decide_rows(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
                 RowMaker& maker, DecideWorkspace& workspace, LayerDecision& out);

}  // namespace switchyard
