// SPDX-License-Identifier: Apache-2.0
// Stage 1 of routing: from the logits of a layer to each token's ranked candidates. What stage 1
// leaves behind is what a routing trace stores, so the engine, the replay and the simulator start
// stage 2 (decide.hpp) from the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/gate.hpp"

namespace switchyard {

/// The experts of a token beyond the M of a CandidatesView, for who can make them when they are
/// asked for (a law's draws; a trace cannot).
class MoreCandidates {
 public:
  virtual ~MoreCandidates() = default;
  /// Fills `ids` [E] with all experts of token t (a row of the view), best first. The first M are
  /// the view's. The same for every call.
  virtual void all(std::uint32_t t, std::span<std::uint16_t> ids) = 0;
};

/// Read-only candidates of T tokens of one layer. All spans are borrowed for the call.
struct CandidatesView {
  std::uint32_t tokens = 0;  ///< T.
  std::uint32_t width = 0;   ///< M, top_k…E.
  /// [T][M], best first by the family's own selection score (bias and group mask applied); distinct
  /// within a row. kNoExpert ends a row early; a row that starts with it is a padding token, which
  /// has no slots and no load.
  std::span<const std::uint16_t> ids;
  std::span<const float> logit;  ///< [T][M] raw gate logits; NaN and +inf are stored as -inf.
  std::span<const float> lse;    ///< [T] log-sum-exp of all E logits.
  /// Read by decide() for tokens whose M candidates are full or refused them, only where logit is
  /// empty; null: there are no more. Borrowed.
  MoreCandidates* more = nullptr;
};

/// Caller-owned candidates; resize() reuses the buffers.
struct Candidates {
  std::uint32_t tokens = 0, width = 0;
  std::vector<std::uint16_t> ids;
  std::vector<float> logit, lse;
  /// Rows with at least one NaN or +inf logit (flag nan_router of the trace).
  std::uint64_t nan_rows = 0;
  void resize(std::uint32_t token_count, std::uint32_t candidate_count);
  [[nodiscard]] CandidatesView view() const { return {tokens, width, ids, logit, lse, nullptr}; }
};

/// M for E experts and k slots: E when E <= 64, else min(E, k + 2).
[[nodiscard]] std::uint32_t stored_candidates(std::uint32_t experts, std::uint32_t top_k);

/// Scratch of rank_candidates, reusable; no allocation after the first call of a shape.
struct RankWorkspace {
  std::vector<float> value, selection, group_score;
  std::vector<std::uint16_t> order;
  std::vector<std::uint8_t> group_kept;
};

/// Ranks `width` candidates of each row of `logits` ([T][E], row-major) into `out` (resized, all
/// fields overwritten). `bias` is the selection bias [E] (e_score_correction_bias) or empty.
/// lse is summed in double over e = 0…E-1 after subtracting the maximum, then rounded to float;
/// a row without a finite logit has lse = -inf.
/// Order: higher selection score, then lower id. Without a bias the score grows with the logit, so
/// the logits are compared: scores that would only tie by rounding keep their order.
/// Shapes are the caller's promise (asserted); `gate` is valid.
void rank_candidates(const GateSpec& gate, std::span<const float> logits,
                     std::span<const float> bias, std::uint32_t width, RankWorkspace& workspace,
                     Candidates& out);

}  // namespace switchyard
