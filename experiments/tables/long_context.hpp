// SPDX-License-Identifier: Apache-2.0
// Table `long-context` (M48, C66): what routing does at the tail of a context much longer than the
// trained one, on lab checkpoints that differ only in how they tell positions apart.
//
// The same last tokens of one text are run twice: at the end of a context of `length` tokens, and
// cut into fresh sequences of the trained length. So the tokens are equal and only the positions
// (and how much stands before them) differ.
//
//   loss           mean cross-entropy of the next token over the tail
//   top-1 share    of the busiest expert among the top-1 choices; load_cv of all choices; mean over
//                  layers
//   top-1 kept     share of tail tokens whose top-1 is that of the fresh run, mean over layers
//   PCA1           first principal axis of the fresh rows' router input in the last MoE layer,
//                  centred, in standard deviations of the fresh rows
//   span           distance of the 5th and 95th percentile on PCA1, tail / fresh
//   within 0.1     share of rows that far or less from their median on PCA1
//   dimensions     participation ratio (tr C)^2 / tr C^2 of the covariance C
//   moved          distance of the two means / root of tr C of the fresh rows
//
// Not modelled: contexts that models were fine-tuned to; windows; other cures than ALiBi and rope.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/session.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// One run over the tail's tokens.
struct TailRun {
  double loss = 0;                                 ///< nats per token
  std::vector<std::vector<std::uint16_t>> chosen;  ///< [L][rows * k], first of each k is the top-1
  std::vector<float> states;                       ///< [rows][H], last MoE layer
  std::size_t rows = 0;
};

/// Runs `tokens` cut into sequences of at most `span` tokens and keeps the rows of the last `tail`
/// tokens; the loss leaves out each sequence's last token, whose successor it does not see.
/// `span` = tokens.size(): one context. 2 <= tail <= tokens.size().
[[nodiscard]] TailRun run_tail(const Engine& engine, std::span<const std::uint32_t> tokens,
                               std::size_t span, std::size_t tail);

struct Spread {
  double top1_share = 0, load_cv = 0;
  double within = 0;      ///< share within 0.1
  double dimensions = 0;  ///< participation ratio
  double span = 0;        ///< on PCA1, in standard deviations of the fresh rows
};
struct TailComparison {
  std::size_t length = 0;
  double loss = 0, fresh_loss = 0;
  Spread tail, fresh;
  double kept = 0;   ///< top-1 kept
  double moved = 0;  ///< see above
};
/// Both runs hold the same tokens in the same order, at least 2 rows.
[[nodiscard]] TailComparison compare(const TailRun& tail, const TailRun& fresh,
                                     std::uint32_t experts, std::uint32_t top_k);

}  // namespace switchyard::tables
