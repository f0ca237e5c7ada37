// SPDX-License-Identifier: Apache-2.0
// Table `locality`: does a token choose what was chosen before, and can a choice be foreseen?
// E experts, k per token; tokens in the order of their sequence, one sequence after another, as a
// batch of one would run them.
//
//   repeat rate     mean over layers and neighbouring tokens of |S_t and S_{t-1}| / k; by chance
//   k/E reuse distance  tokens since the same sequence last chose the expert in this layer (1: the
//   token
//                   before); first choices of a sequence have none. By chance geometric, median
//                   ceil(ln 0.5 / ln(1 - k/E))
//   cache           one cache per layer, cold at first, an access is a token's k experts in their
//                   order (sim/memory/expert_cache.hpp); static holds the experts that the whole
//                   text chose most, as if known beforehand; Belady's bound is of all demand
//                   policies
//   prefetch        at layer l of a token, F experts of layer l + d are fetched; hit rate = share
//   of
//                   the k chosen there that were fetched. Predictors know only tokens before:
//                     from layer l   largest sum over e in S_l of n(e, e') / n(e), counts of pairs
//                     last token     the token before's k in layer l + d, then the most chosen
//                     most chosen    largest count in layer l + d
//                   ties to the lower id; scored on the second half of the tokens, so that counts
//                   come from at least the first half; by chance F/E
//
// Not modelled: time and bytes of loads (offload_lru.toml, `sim`), batches of several tokens, which
// share experts; predictors that read hidden states (the next layer's gate on this layer's input),
// which the excerpts do not have.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/trace/trace.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// What one text chose, token by token.
struct ChoiceStream {
  std::string model, text;
  std::uint32_t experts = 0, top_k = 0;
  std::vector<std::uint32_t> sequence;                          ///< [T]
  std::vector<std::vector<std::vector<std::uint16_t>>> layers;  ///< [L][T][<= k]
  [[nodiscard]] std::size_t tokens() const { return sequence.size(); }
};
/// One stream per domain of the trace's sequences, in the order in which domains occur.
[[nodiscard]] std::vector<ChoiceStream> streams_of(const RoutingTrace& trace);

struct Reuse {
  std::optional<double> repeat;          ///< None without neighbours.
  std::vector<std::uint64_t> distances;  ///< Ascending, over layers.
  std::uint64_t first = 0;               ///< Choices without a distance.
  /// Nearest rank, share in (0, 1]; 0 without distances.
  [[nodiscard]] std::uint64_t quantile(double share) const;
};
[[nodiscard]] Reuse reuse(const ChoiceStream& stream);

/// Hits of all layers.
struct CacheHits {
  std::uint64_t accesses = 0, lru = 0, lfu = 0, fixed = 0, belady = 0;
};
[[nodiscard]] CacheHits cache_hits(const ChoiceStream& stream, std::uint32_t slots);

/// Hit rates, means over layers l with l + ahead < L and the scored tokens.
struct PrefetchHits {
  double from_layer = 0, last_token = 0, most_chosen = 0;
};
/// `ahead` in 1 … L - 1, `fetched` in 1 … E (asserted); at least two tokens.
[[nodiscard]] PrefetchHits prefetch_hits(const ChoiceStream& stream, std::uint32_t ahead,
                                         std::uint32_t fetched);

/// Reuse, caches, prefetching: a line per text; per text and slots; per text, distance and fetched.
[[nodiscard]] std::vector<Table> locality_tables(const std::vector<ChoiceStream>& streams);

}  // namespace switchyard::tables
