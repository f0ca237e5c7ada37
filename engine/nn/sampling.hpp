// SPDX-License-Identifier: Apache-2.0
// File: sampling.hpp. From the logits of one row to the next token. Random numbers are a pure
// function of (seed, sequence, position), so a sequence continues the same way in any batch.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace switchyard {

struct SamplingOptions {
  double temperature = 0.0;  ///< >= 0; 0: greedy (the highest logit, ties to the lower id).
  double top_p = 1.0;        ///< (0, 1]: the fewest most probable tokens whose sum reaches it.
  std::uint64_t seed = 1;
  std::uint32_t top_k = 0;  ///< Only the k most probable tokens, before top_p; 0: all.
};

/// Throws InputError(where, "--temperature = …. Violated: …").
void validate(const SamplingOptions& options, const std::string& where);

/// Next token. softmax(logits / temperature) in double precision; candidates by descending
/// probability, ties to the lower id; first top_k of them, then top_p of what these sum to. NaN
/// counts as -inf; when no logit is finite, id 0.
/// `position` is that of the token being chosen.
[[nodiscard]] std::uint32_t sample(std::span<const float> logits, const SamplingOptions& options,
                                   std::uint32_t sequence, std::uint32_t position);

}  // namespace switchyard
