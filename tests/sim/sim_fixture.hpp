// SPDX-License-Identifier: Apache-2.0
// Traces and scenarios made in memory for the tests of the step loop.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::test {

inline scenario::Scenario worked_scenario(std::vector<std::string> settings = {}) {
  scenario::ReadOptions options;
  options.settings = std::move(settings);
  options.require_trace = false;
  options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  return scenario::read_scenario(std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/worked.toml",
                                 options);
}

/// One decode step of T tokens (sequence t, one row each): choices[layer][token] = ordered experts.
/// The first choices get the logits 3, 2, …, the others −4, −5, … in id order.
inline RoutingTrace decode_trace(
    const std::vector<std::vector<std::vector<std::uint16_t>>>& choices, std::uint32_t experts) {
  RoutingTrace t;
  const auto layers = static_cast<std::uint32_t>(choices.size());
  const auto rows = static_cast<std::uint32_t>(choices[0].size());
  const auto k = static_cast<std::uint32_t>(choices[0][0].size());
  t.header.model = "test";
  t.header.gate = gate_mixtral(experts, k);
  for (std::uint32_t l = 0; l < layers; ++l) t.header.layers.push_back(l);
  t.header.candidates = stored_candidates(experts, k);
  t.header.slots = k;
  t.header.config_hash = "0000000000000000";
  t.header.weight_hash = "0000000000000000";
  t.header.engine = "test";
  t.header.precision = "f32";
  RankWorkspace workspace;
  t.step_begin = {0, rows};
  for (std::uint32_t r = 0; r < rows; ++r) {
    t.sequences.push_back({1, r, "", ""});
    t.tokens.sequence.push_back(r);
    t.tokens.position.push_back(1);
    t.tokens.token.push_back(r);
    t.tokens.phase.push_back(1);
    t.tokens.step.push_back(0);
    for (std::uint32_t l = 0; l < layers; ++l) {
      std::vector<float> logits(experts);
      for (std::uint32_t e = 0; e < experts; ++e) logits[e] = -4.0F - static_cast<float>(e);
      for (std::uint32_t j = 0; j < k; ++j) logits[choices[l][r][j]] = 3.0F - static_cast<float>(j);
      Candidates c;
      rank_candidates(t.header.gate, logits, {}, t.header.candidates, workspace, c);
      t.routing.candidates.insert(t.routing.candidates.end(), c.ids.begin(), c.ids.end());
      t.routing.logit.insert(t.routing.logit.end(), c.logit.begin(), c.logit.end());
      t.routing.lse.push_back(c.lse[0]);
    }
  }
  t.decisions_present = false;
  replay(t, ReplayOptions::recorded(t.header));
  return t;
}

struct MemoryRun {
  run::RunData data;
  sim::SimulationResult result;
};

inline MemoryRun run_in_memory(const scenario::Scenario& s, const RoutingTrace* trace) {
  const auto sink = sim::memory_sink();
  MemoryRun out;
  out.result = sim::simulate(s, trace, "", *sink);
  out.data = sink->data();
  return out;
}

}  // namespace switchyard::test
