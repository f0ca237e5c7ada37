// SPDX-License-Identifier: Apache-2.0
#include "experiments/coupled/coupled.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"

namespace switchyard::coupled {
namespace {

/// Experts of one decision, ascending.
void chosen_set(const RoutingTrace& trace, std::uint64_t row, std::uint32_t layer,
                std::vector<std::uint16_t>& out) {
  out.clear();
  for (std::uint32_t j = 0; j < trace.header.slots; ++j) {
    const std::uint16_t e = trace.routing.chosen[trace.slot_at(row, layer, j)];
    if (e != kNoExpert) out.push_back(e);
  }
  std::sort(out.begin(), out.end());
}

/// Everything of a trace that the next simulation can depend on.
Hash128 fingerprint(const RoutingTrace& t) {
  Hasher128 hasher;
  hasher.update(policy_to_text(t.header.policy));
  const auto add = [&](const auto& values) { hasher.update(std::as_bytes(std::span(values))); };
  add(t.tokens.sequence);
  add(t.tokens.position);
  add(t.tokens.token);
  add(t.tokens.phase);
  add(t.tokens.step);
  add(t.routing.candidates);
  add(t.routing.logit);
  add(t.routing.lse);
  add(t.routing.chosen);
  return hasher.digest();
}

}  // namespace

Changes changed_decisions(const RoutingTrace& before, const RoutingTrace& after) {
  const std::uint32_t layers = before.header.layer_count();
  SWITCHYARD_ASSERT(
      layers == after.header.layer_count() && before.decisions_present && after.decisions_present,
      fmt::format("{} and {} MoE layers", layers, after.header.layer_count()));
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> rows;
  for (std::uint64_t r = 0; r < before.rows(); ++r) {
    rows[{before.tokens.sequence[r], before.tokens.position[r]}] = r;
  }
  Changes out;
  std::uint64_t common = 0;
  std::vector<std::uint16_t> a, b;
  for (std::uint64_t r = 0; r < after.rows(); ++r) {
    const auto found = rows.find({after.tokens.sequence[r], after.tokens.position[r]});
    if (found == rows.end()) continue;
    ++common;
    for (std::uint32_t l = 0; l < layers; ++l) {
      chosen_set(before, found->second, l, a);
      chosen_set(after, r, l, b);
      out.changed += a == b ? 0 : 1;
    }
  }
  const std::uint64_t lonely = before.rows() - common + (after.rows() - common);
  out.changed += lonely * layers;
  out.compared = (common + lonely) * layers;
  return out;
}

bool needs_signals(const RoutingPolicy& policy) {
  const PolicyNeeds needs = policy_needs(policy);
  return !needs.memory.empty() || !needs.placement.empty() ||
         (!needs.clock.empty() && policy.step_time == 0);
}

Outcome couple(const Hooks& hooks, std::uint32_t rounds) {
  SWITCHYARD_ASSERT(rounds >= 1, "rounds");
  Outcome out;
  out.trace = hooks.engine(0, nullptr);
  SignalTable signals = hooks.simulate(0, out.trace);
  std::vector<Hash128> seen;  // of rounds 0, 1, …
  seen.push_back(fingerprint(out.trace));
  for (std::uint32_t r = 1; r <= rounds; ++r) {
    RoutingTrace next = hooks.engine(r, &signals);
    out.rounds.push_back(changed_decisions(out.trace, next));
    out.trace = std::move(next);
    if (out.rounds.back().changed == 0) {
      out.converged = true;
      return out;
    }
    const Hash128 here = fingerprint(out.trace);
    const auto earlier = std::find(seen.begin(), seen.end(), here);
    if (earlier != seen.end()) {
      out.repeats = static_cast<std::uint32_t>(earlier - seen.begin());
      return out;
    }
    seen.push_back(here);
    if (r < rounds) signals = hooks.simulate(r, out.trace);
  }
  return out;
}

std::string describe(const Outcome& outcome) {
  std::string changes;
  for (const Changes& c : outcome.rounds) {
    changes += fmt::format("{}{}", changes.empty() ? "" : ", ", c.changed);
  }
  const std::size_t last = outcome.rounds.size();
  const std::string counts =
      fmt::format("changed decisions per round: {} of {}", changes, outcome.rounds.back().compared);
  if (outcome.converged) return fmt::format("converged in round {} ({})", last, counts);
  if (outcome.repeats) {
    return fmt::format("NOT CONVERGED: round {} repeats round {}, so it oscillates ({})", last,
                       *outcome.repeats, counts);
  }
  return fmt::format("NOT CONVERGED in {} rounds ({})", last, counts);
}

}  // namespace switchyard::coupled
