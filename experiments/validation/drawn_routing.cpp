// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/drawn_routing.hpp"

#include <cstdint>
#include <vector>

#include "engine/base/random.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/trace/replay.hpp"

namespace switchyard::validation {

RoutingTrace drawn_routing(const GateSpec& gate) {
  constexpr std::uint32_t kSequences = 64, kRows = 256, kTraceLayers = 4;
  const std::uint32_t experts = gate.experts;
  RoutingTrace t;
  t.header.model = "drawn";
  t.header.gate = gate;
  for (std::uint32_t l = 0; l < kTraceLayers; ++l) t.header.layers.push_back(l);
  t.header.candidates = stored_candidates(experts, gate.top_k);
  t.header.slots = gate.top_k;
  t.header.config_hash = t.header.weight_hash = "0000000000000000";
  t.header.engine = "drawn";
  t.header.precision = "f32";
  t.step_begin = {0, std::uint64_t{kSequences} * kRows};
  RankWorkspace workspace;
  Candidates c;
  std::vector<float> logits(experts);
  for (std::uint32_t q = 0; q < kSequences; ++q) {
    t.sequences.push_back({kRows / 2, q, "", ""});
    for (std::uint32_t p = 0; p < kRows; ++p) {
      t.tokens.sequence.push_back(q);
      t.tokens.position.push_back(p);
      t.tokens.token.push_back(p);
      t.tokens.phase.push_back(p < kRows / 2 ? 0 : 1);
      t.tokens.step.push_back(0);
      for (std::uint32_t l = 0; l < kTraceLayers; ++l) {
        for (std::uint32_t e = 0; e < experts; ++e) {
          logits[e] =
              static_cast<float>(random_gumbel(1, random_purpose("vllm case"), {q, l, p, e}));
        }
        rank_candidates(gate, logits, {}, t.header.candidates, workspace, c);
        t.routing.candidates.insert(t.routing.candidates.end(), c.ids.begin(), c.ids.end());
        t.routing.logit.insert(t.routing.logit.end(), c.logit.begin(), c.logit.end());
        t.routing.lse.push_back(c.lse[0]);
      }
    }
  }
  t.decisions_present = false;
  replay(t, ReplayOptions::recorded(t.header));
  return t;
}

}  // namespace switchyard::validation
