// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/locality.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/base/error.hpp"
#include "experiments/tables/routing_statistics.hpp"
#include "sim/memory/expert_cache.hpp"

namespace switchyard::tables {
namespace {

using Ids = std::vector<std::uint16_t>;

std::string share(double v) { return fmt::format("{:.4f}", v); }
double as_double(std::uint64_t v) { return static_cast<double>(v); }

/// The `n` ids with the largest scores, ties to the lower id.
Ids largest(std::span<const double> score, std::size_t n) {
  Ids ids(score.size());
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(),
                    [&](std::uint16_t a, std::uint16_t b) {
                      return score[a] != score[b] ? score[a] > score[b] : a < b;
                    });
  ids.resize(n);
  return ids;
}

double hit_share(const Ids& fetched, const Ids& chosen) {
  std::size_t hits = 0;
  for (const std::uint16_t e : chosen) {
    hits += std::find(fetched.begin(), fetched.end(), e) != fetched.end() ? 1U : 0U;
  }
  return chosen.empty() ? 0 : static_cast<double>(hits) / static_cast<double>(chosen.size());
}

/// Counts of one pair of layers, token after token.
class Predictor {
 public:
  explicit Predictor(std::size_t experts)
      : experts_(experts), pairs_(experts * experts, 0), here_(experts, 0), there_(experts, 0) {}
  void learn(const Ids& here, const Ids& there) {
    for (const std::uint16_t a : here) {
      ++here_[a];
      for (const std::uint16_t b : there) ++pairs_[a * experts_ + b];
    }
    for (const std::uint16_t b : there) ++there_[b];
  }
  [[nodiscard]] Ids from_layer(const Ids& here, std::size_t n) const {
    std::vector<double> score(experts_, 0);
    for (const std::uint16_t a : here) {
      for (std::size_t b = 0; b < experts_ && here_[a] > 0; ++b) {
        score[b] += pairs_[a * experts_ + b] / here_[a];
      }
    }
    return largest(score, n);
  }
  [[nodiscard]] Ids last_token(const Ids& last, std::size_t n) const {
    std::vector<double> score = there_;
    for (const std::uint16_t b : last) score[b] += 1e12;
    return largest(score, n);
  }
  [[nodiscard]] Ids most_chosen(std::size_t n) const { return largest(there_, n); }

 private:
  std::size_t experts_;
  std::vector<double> pairs_, here_, there_;
};

std::vector<std::uint32_t> slot_counts(const ChoiceStream& s) {
  std::set<std::uint32_t> slots;
  for (const std::uint32_t n : {s.top_k, 2 * s.top_k, 4 * s.top_k, s.experts / 8, s.experts / 4,
                                s.experts / 2, s.experts}) {
    if (n >= 1 && n <= s.experts) slots.insert(n);
  }
  return {slots.begin(), slots.end()};
}

Table reuse_table(const std::vector<ChoiceStream>& streams) {
  Table t;
  t.name = "locality";
  t.title = "locality of real routing: repeated experts and reuse distance, in tokens";
  t.columns = {"model",
               "text",
               "E",
               "k",
               "layers",
               "tokens",
               "repeat rate",
               "repeat by chance",
               "first choices [%]",
               "reuse p50",
               "p50 by chance",
               "reuse p90",
               "p90 by chance"};
  for (const ChoiceStream& s : streams) {
    const Reuse r = reuse(s);
    const double chance = static_cast<double>(s.top_k) / s.experts;
    const auto geometric = [&](double quantile) {
      return fmt::format("{:.0f}", std::ceil(std::log(1 - quantile) / std::log(1 - chance)));
    };
    const double choices = as_double(r.first + r.distances.size());
    t.rows.push_back({s.model, s.text, fmt::to_string(s.experts), fmt::to_string(s.top_k),
                      fmt::to_string(s.layers.size()), fmt::to_string(s.tokens()),
                      r.repeat ? share(*r.repeat) : "n/a", share(chance),
                      fmt::format("{:.2f}", 100 * as_double(r.first) / choices),
                      fmt::to_string(r.quantile(0.5)), geometric(0.5),
                      fmt::to_string(r.quantile(0.9)), geometric(0.9)});
  }
  t.notes.emplace_back(
      "repeat rate: share of a token's experts that the token before chose, mean over layers; "
      "reuse "
      "distance 1 is the token before; first choices of a sequence have no distance");
  t.notes.emplace_back(
      "short sequences cut long distances off; by chance: an even router with independent tokens");
  t.notes.emplace_back(
      "sources: scenarios/routing/PROVENANCE.md; sy-16x2: prompts/mixed.jsonl and 16 tokens after "
      "each, by our engine; deepseek_v2_lite, granite and ours include tokens of prompts");
  return t;
}

Table cache_table(const std::vector<ChoiceStream>& streams) {
  Table t;
  t.name = "locality-cache";
  t.title = "a cache of experts in every layer: hit rate by slots, one token at a time";
  t.columns = {"model", "text",   "slots",  "of the experts [%]", "LRU",
               "LFU",   "static", "Belady", "LRU of Belady [%]"};
  for (const ChoiceStream& s : streams) {
    for (const std::uint32_t slots : slot_counts(s)) {
      const CacheHits h = cache_hits(s, slots);
      const auto rate = [&](std::uint64_t hits) {
        return share(as_double(hits) / as_double(h.accesses));
      };
      t.rows.push_back(
          {s.model, s.text, fmt::to_string(slots), fmt::format("{:.1f}", 100.0 * slots / s.experts),
           rate(h.lru), rate(h.lfu), rate(h.fixed), rate(h.belady),
           h.belady > 0 ? fmt::format("{:.1f}", 100 * as_double(h.lru) / as_double(h.belady))
                        : "n/a"});
    }
  }
  t.notes.emplace_back(
      "cold at first, hits counted against the content before the token, sequences one after "
      "another; with all experts in slots what misses is the first choice of each");
  t.notes.emplace_back(
      "static: the experts this text chooses most, in place from the start, so it has no cold "
      "misses and may beat Belady's bound, which is of caches that load on demand from cold");
  return t;
}

Table prefetch_table(const std::vector<ChoiceStream>& streams) {
  Table t;
  t.name = "locality-prefetch";
  t.title = "prefetch: share of a layer's chosen experts that were fetched d layers before";
  t.columns = {"model",      "text",       "layers ahead", "fetched",
               "from layer", "last token", "most chosen",  "by chance"};
  for (const ChoiceStream& s : streams) {
    for (const std::uint32_t fetched : {s.top_k, 2 * s.top_k}) {
      for (const std::uint32_t ahead : {1U, 2U, 4U, 8U, 16U}) {
        if (ahead >= s.layers.size() || fetched > s.experts) continue;
        const PrefetchHits h = prefetch_hits(s, ahead, fetched);
        t.rows.push_back({s.model, s.text, fmt::to_string(ahead), fmt::to_string(fetched),
                          share(h.from_layer), share(h.last_token), share(h.most_chosen),
                          share(static_cast<double>(fetched) / s.experts)});
      }
    }
  }
  t.notes.emplace_back(
      "from layer: pairs of experts counted between the two layers; last token: the token before's "
      "choice in that layer, then the most chosen; all learn from the tokens before; scored on the "
      "second half of the tokens");
  t.notes.emplace_back(
      "counts of some hundred tokens are few for E x E pairs: more text helps \"from layer\" most");
  t.notes.emplace_back(
      "not measured: the next gate on this layer's hidden state, which the excerpts lack");
  return t;
}

}  // namespace

std::vector<ChoiceStream> streams_of(const RoutingTrace& trace) {
  const TraceHeader& h = trace.header;
  std::vector<ChoiceStream> out;
  for (const std::uint32_t row : rows_by_sequence(trace)) {
    const std::uint32_t q = trace.tokens.sequence[row];
    const std::string& text = trace.sequences[q].domain;
    auto it =
        std::find_if(out.begin(), out.end(), [&](const ChoiceStream& s) { return s.text == text; });
    if (it == out.end()) {
      out.push_back({h.model, text, h.experts(), h.top_k(), {}, {}});
      it = out.end() - 1;
      it->layers.resize(h.layer_count());
    }
    it->sequence.push_back(q);
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      Ids ids;
      for (std::uint32_t j = 0; j < h.slots; ++j) {
        const std::uint16_t e = trace.routing.chosen[trace.slot_at(row, l, j)];
        if (e != kNoExpert) ids.push_back(e);
      }
      it->layers[l].push_back(std::move(ids));
    }
  }
  return out;
}

std::uint64_t Reuse::quantile(double share) const {
  if (distances.empty()) return 0;
  const double rank = std::ceil(share * as_double(distances.size()));
  return distances[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

Reuse reuse(const ChoiceStream& s) {
  Reuse out;
  double common = 0;
  std::uint64_t pairs = 0;
  for (const auto& layer : s.layers) {
    std::vector<std::size_t> last(s.experts, 0);  // 1 + token of the last choice
    for (std::size_t t = 0; t < s.tokens(); ++t) {
      const bool begins = t == 0 || s.sequence[t] != s.sequence[t - 1];
      if (begins) {
        std::fill(last.begin(), last.end(), 0);
      } else {
        common += hit_share(layer[t - 1], layer[t]);
        ++pairs;
      }
      for (const std::uint16_t e : layer[t]) {
        if (last[e] > 0) {
          out.distances.push_back(t + 1 - last[e]);
        } else {
          ++out.first;
        }
        last[e] = t + 1;
      }
    }
  }
  if (pairs > 0) out.repeat = common / as_double(pairs);
  std::sort(out.distances.begin(), out.distances.end());
  return out;
}

CacheHits cache_hits(const ChoiceStream& s, std::uint32_t slots) {
  CacheHits out;
  for (const auto& layer : s.layers) {
    std::vector<double> uses(s.experts, 0);
    for (const Ids& ids : layer) {
      out.accesses += ids.size();
      for (const std::uint16_t e : ids) ++uses[e];
    }
    sim::ExpertCache lru(sim::CachePolicy::kLru, s.experts, slots);
    sim::ExpertCache lfu(sim::CachePolicy::kLfu, s.experts, slots);
    sim::ExpertCache fixed(sim::CachePolicy::kStatic, s.experts, slots);
    fixed.fill(largest(uses, std::min(slots, s.experts)));
    for (const Ids& ids : layer) {
      out.lru += lru.access(ids).hits.size();
      out.lfu += lfu.access(ids).hits.size();
      out.fixed += fixed.access(ids).hits.size();
    }
    for (const std::uint32_t hits : sim::belady_hits(layer, s.experts, slots, false)) {
      out.belady += hits;
    }
  }
  return out;
}

PrefetchHits prefetch_hits(const ChoiceStream& s, std::uint32_t ahead, std::uint32_t fetched) {
  SWITCHYARD_ASSERT(ahead >= 1 && ahead < s.layers.size() && fetched >= 1 && fetched <= s.experts &&
                        s.tokens() >= 2,
                    "a layer to foresee, and tokens to learn from");
  PrefetchHits out;
  std::uint64_t n = 0;
  for (std::size_t l = 0; l + ahead < s.layers.size(); ++l) {
    const auto& here = s.layers[l];
    const auto& there = s.layers[l + ahead];
    Predictor p(s.experts);
    for (std::size_t t = 0; t < s.tokens(); ++t) {
      if (t >= (s.tokens() + 1) / 2) {
        out.from_layer += hit_share(p.from_layer(here[t], fetched), there[t]);
        out.last_token += hit_share(p.last_token(there[t - 1], fetched), there[t]);
        out.most_chosen += hit_share(p.most_chosen(fetched), there[t]);
        ++n;
      }
      p.learn(here[t], there[t]);
    }
  }
  for (double* sum : {&out.from_layer, &out.last_token, &out.most_chosen}) *sum /= as_double(n);
  return out;
}

std::vector<Table> locality_tables(const std::vector<ChoiceStream>& streams) {
  return {reuse_table(streams), cache_table(streams), prefetch_table(streams)};
}

std::vector<Table> make_locality(const TableContext& context) {
  ShortRuns runs(context);
  std::vector<ChoiceStream> streams = streams_of(runs.shipped());
  for (const std::string& name : excerpt_names()) {
    for (ChoiceStream& s : streams_of(read_excerpt(context.scenarios, name).trace)) {
      streams.push_back(std::move(s));
    }
  }
  return locality_tables(streams);
}

}  // namespace switchyard::tables
