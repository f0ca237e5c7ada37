// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/router_oracle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/nn/perplexity.hpp"

namespace switchyard {
namespace {

constexpr std::uint64_t kMostSets = 4096;
constexpr std::size_t kMostTokens = 65;  // of a text; the last has no next token

using Set = std::vector<std::uint16_t>;

/// All sets of k of E experts, ascending.
std::vector<Set> all_sets(std::uint32_t experts, std::uint32_t k) {
  std::vector<Set> out;
  Set s(k);
  std::iota(s.begin(), s.end(), std::uint16_t{0});
  for (;;) {
    out.push_back(s);
    std::uint32_t j = k;
    while (j > 0 && s[j - 1] == experts - k + j - 1) {
      --j;
    }
    if (j == 0) {
      return out;
    }
    for (++s[j - 1]; j < k; ++j) {
      s[j] = static_cast<std::uint16_t>(s[j - 1] + 1);
    }
  }
}

/// Row t runs on sets[t], best first, with the family's weights.
void run_on(const GateSpec& gate, std::span<const float> bias, std::span<const Set> sets,
            const Candidates& candidates, LayerDecision& decision) {
  Candidates forced = candidates;
  for (std::uint32_t t = 0; t < candidates.tokens; ++t) {
    const std::uint64_t at = row_offset(t, candidates.width);
    const auto in_set = [&](std::uint32_t r) {
      const Set& s = sets[t];
      return std::find(s.begin(), s.end(), candidates.ids[at + r]) != s.end();
    };
    std::uint64_t to = at;
    for (const bool wanted : {true, false}) {
      for (std::uint32_t r = 0; r < candidates.width; ++r) {
        if (in_set(r) == wanted) {
          forced.ids[to] = candidates.ids[at + r];
          forced.logit[to++] = candidates.logit[at + r];
        }
      }
    }
  }
  StepContext context;
  context.tokens[static_cast<std::size_t>(Phase::kDecode)] = candidates.tokens;
  context.sequences = context.tokens;
  DecideWorkspace workspace;
  decide(gate, {}, context, forced.view(), bias, workspace, decision);
}

}  // namespace

std::uint64_t set_count(std::uint32_t experts, std::uint32_t k) {
  std::uint64_t n = 1;
  for (std::uint32_t j = 1; j <= k; ++j) {
    n = n * (experts - k + j) / j;  // exact: C(experts - k + j, j)
    if (n > kMostSets) {
      return 0;
    }
  }
  return n;
}

OracleRun router_oracle(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts,
                        std::uint64_t tokens, const RoutingPolicy& policy,
                        const TwoTierRouter* tiers) {
  SWITCHYARD_ASSERT(tokens >= 1, "tokens");
  const model::ModelConfig& config = engine.config();
  const std::vector<std::uint32_t> layers = config.moe_layers();
  if (layers.empty()) {
    throw InputError("--oracle", "the model is dense: there is no set to choose");
  }
  if (engine.job() != nullptr) {
    throw InputError("--oracle", "unsupported over several ranks", "run it in one process");
  }
  const GateSpec& gate = engine.gate();
  RoutingPolicy rest = policy;
  rest.two_tier = {};
  if (rest != RoutingPolicy{}) {
    throw InputError("--oracle", "unsupported with a policy other than two_tier",
                     "the oracle looks at one token at a time");
  }
  if (set_count(gate.experts, gate.top_k) == 0 || gate.experts > 64) {
    throw InputError("--oracle",
                     fmt::format("unsupported: {} of {} experts are more than {} sets", gate.top_k,
                                 gate.experts, kMostSets),
                     "it runs every token on every set");
  }
  const std::vector<Set> sets = all_sets(gate.experts, gate.top_k);
  OracleRun out;
  out.sets = sets.size();
  for (const std::uint32_t l : layers) {
    out.layers.push_back({.layer = l});
  }
  std::size_t forced = layers.size();  // the layer under work, or none
  SessionOptions options{.policy = policy, .all_logits = true, .tiers = tiers};
  options.after_routing = [&](std::size_t moe_layer, const Candidates& candidates,
                              LayerDecision& decision) {
    if (moe_layer == forced) {
      run_on(gate, engine.weights().layers[layers[moe_layer]].gate_bias(), sets, candidates,
             decision);
    }
  };
  Session session(engine, options);
  std::vector<double> loss(sets.size());
  for (const std::vector<std::uint32_t>& text : texts) {
    const std::size_t length = std::min(text.size(), kMostTokens);
    std::vector<std::uint32_t> sequence;
    std::generate_n(std::back_inserter(sequence), sets.size(),
                    [&] { return session.add_sequence(); });
    for (std::size_t t = 0; t + 1 < length && out.layers[0].tokens < tokens; ++t) {
      std::vector<SequenceTokens> work;
      for (const std::uint32_t s : sequence) {
        work.push_back({s, std::span(text).subspan(t, 1)});
      }
      std::vector<std::vector<double>> losses;
      for (forced = 0; forced < layers.size(); ++forced) {
        const StepResult& r = session.peek(work, Phase::kDecode);
        for (std::size_t i = 0; i < sets.size(); ++i) {
          loss[i] = next_token_loss(r.logits_of(i), text[t + 1]);
        }
        losses.push_back(loss);
      }
      const StepResult& r = session.step(work, Phase::kDecode);  // as the router has it
      const double plain = next_token_loss(r.logits_of(0), text[t + 1]);
      for (std::size_t l = 0; l < layers.size(); ++l) {
        OracleLayer& o = out.layers[l];
        const std::vector<double>& all = losses[l];
        const auto first = r.layers[l].decision.first.begin();
        Set own(first, first + gate.top_k);
        std::sort(own.begin(), own.end());
        const auto best =
            static_cast<std::size_t>(std::min_element(all.begin(), all.end()) - all.begin());
        ++o.tokens;
        o.router += plain;
        o.oracle += all[best];
        o.every += std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
        o.same += own == sets[best] ? 1 : 0;
        for (const std::uint16_t e : own) {
          o.shared += std::find(sets[best].begin(), sets[best].end(), e) != sets[best].end();
        }
        const auto place = static_cast<std::size_t>(
            std::lower_bound(sets.begin(), sets.end(), own) - sets.begin());
        o.better += static_cast<std::uint64_t>(
            std::count_if(all.begin(), all.end(), [&](double v) { return v < all[place]; }));
      }
    }
    for (const std::uint32_t s : sequence) {
      session.end_sequence(s);
    }
  }
  return out;
}

}  // namespace switchyard
