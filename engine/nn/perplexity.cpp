// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/perplexity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard {
double next_token_loss(std::span<const float> logits, std::uint32_t next) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) {
    sum += std::exp(static_cast<double>(z) - top);
  }
  return std::log(sum) + top - static_cast<double>(logits[next]);
}

double TextScore::sum() const {
  double total = 0;
  for (const double v : nll) {
    total += v;
  }
  return total;
}

std::vector<TextScore> score_texts(const Engine& engine,
                                   std::span<const std::vector<std::uint32_t>> texts,
                                   const PerplexityOptions& options) {
  SWITCHYARD_ASSERT(options.batch >= 1, "batch");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) {
      throw InputError(fmt::format("text {}", i + 1), "has no tokens");
    }
    if (texts[i].size() > engine.config().max_position_embeddings) {
      throw InputError(fmt::format("text {}", i + 1),
                       fmt::format("{} tokens exceed the model's {} positions", texts[i].size(),
                                   engine.config().max_position_embeddings),
                       "cut it into shorter ones");
    }
    for (const std::uint32_t token : texts[i]) {
      if (token >= engine.config().vocab_size) {
        throw InputError(fmt::format("text {}", i + 1),
                         fmt::format("token id {} is outside the model's vocabulary of {}", token,
                                     engine.config().vocab_size),
                         "does the tokenizer belong to this checkpoint?");
      }
    }
  }
  std::vector<TextScore> out(texts.size());
  Session session(engine, {.policy = options.policy,
                           .seed = options.seed,
                           .all_logits = true,
                           .weights = options.weights,
                           .tiers = options.tiers});
  for (std::size_t first = 0; first < texts.size(); first += options.batch) {
    const std::size_t end = std::min(texts.size(), first + options.batch);
    const std::uint32_t base = session.add_sequence();
    for (std::size_t i = first + 1; i < end; ++i) {
      (void)session.add_sequence();
    }
    for (std::size_t at = 0;;) {
      std::vector<SequenceTokens> work;
      std::size_t longest = 0;
      for (std::size_t i = first; i < end; ++i) {
        if (at < texts[i].size()) {
          const std::size_t rest = texts[i].size() - at;
          const std::size_t take =
              options.chunk == 0 ? rest : std::min<std::size_t>(rest, options.chunk);
          work.push_back({base + static_cast<std::uint32_t>(i - first),
                          std::span(texts[i]).subspan(at, take)});
          longest = std::max(longest, take);
        }
      }
      if (work.empty()) {
        break;
      }
      const StepResult& r = session.step(work, Phase::kPrefill);
      if (r.nan_logits > 0 || r.nan_rows > 0) {
        throw InputError("perplexity",
                         fmt::format("the model's {} are not numbers (NaN, infinite)",
                                     r.nan_rows > 0 ? "router logits" : "logits"),
                         "the weights are broken; compare them with their source");
      }
      for (std::size_t row = 0; row < r.tokens(); ++row) {
        const std::size_t i = first + (r.sequence[row] - base);
        const std::size_t next = std::size_t{r.position[row]} + 1;
        if (next < texts[i].size()) {
          out[i].nll.push_back(next_token_loss(r.logits_of(row), texts[i][next]));
        }
      }
      at += longest;
    }
    for (std::size_t i = first; i < end; ++i) {
      session.end_sequence(base + static_cast<std::uint32_t>(i - first));
    }
  }
  return out;
}

std::optional<double> perplexity(std::span<const TextScore> scores) {
  double sum = 0;
  std::size_t n = 0;
  for (const TextScore& s : scores) {
    sum += s.sum();
    n += s.nll.size();
  }
  return n == 0 ? std::nullopt : std::optional(std::exp(sum / static_cast<double>(n)));
}

}  // namespace switchyard
