// SPDX-License-Identifier: Apache-2.0
// File: perplexity.hpp. How well a model predicts given texts.
//
//   nll[i]      -ln softmax(logits of token i)[token i + 1], nats; softmax in double precision
//   perplexity  exp(mean of nll over the tokens counted)
// The first token of a text has nothing before it and is not scored. Texts run together as prompts
// do in record_trace, so a capacity policy makes their tokens compete (closed loop).
//
// Not modelled: sliding evaluation of texts longer than the model's positions (an error);
// other scores of quality.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/nn/session.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard {

/// -ln softmax(logits)[next], in double precision.
[[nodiscard]] double next_token_loss(std::span<const float> logits, std::uint32_t next);

struct PerplexityOptions {
  RoutingPolicy policy;
  std::uint64_t seed = 1;
  std::uint32_t batch = 8;  ///< Texts that run together, >= 1. Without a policy it changes nothing.
  std::uint32_t chunk = 0;  ///< Tokens of each text per step; 0: the whole text.
  const PolicyWeights* weights = nullptr;  ///< As in SessionOptions; borrowed.
  const TwoTierRouter* tiers = nullptr;    ///< As in SessionOptions; borrowed.
};

struct TextScore {
  std::vector<double> nll;  ///< [tokens - 1] nats.
  [[nodiscard]] double sum() const;
};

/// One score per text, in order. InputError("text n", …): empty, or more tokens than positions; a
/// token outside the vocabulary; logits that are NaN.
[[nodiscard]] std::vector<TextScore> score_texts(const Engine& engine,
                                                 std::span<const std::vector<std::uint32_t>> texts,
                                                 const PerplexityOptions& options = {});

/// exp of the mean over all scored tokens; no value when there is none.
[[nodiscard]] std::optional<double> perplexity(std::span<const TextScore> scores);

}  // namespace switchyard
