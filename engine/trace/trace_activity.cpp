// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_activity.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/routing/capacity.hpp"
#include "engine/trace/cohesion.hpp"

namespace switchyard {
namespace {

/// One C for all rows of the step, if the policy has one.
std::optional<std::uint64_t> capacity_of(const RoutingTrace& trace, std::uint64_t begin,
                                         std::uint64_t end, std::uint32_t step) {
  const CapacityPolicy& policy = trace.header.policy.capacity;
  if (policy.rule == CapacityRule::kNone || resolved_scope(policy) == CapacityScope::kGroup ||
      (policy.rule == CapacityRule::kTutel && policy.factor <= 0)) {
    return std::nullopt;
  }
  const TraceTokens& t = trace.tokens;
  const auto rows = static_cast<std::size_t>(end - begin);
  const StepContext context = make_step(
      std::span(t.sequence).subspan(begin, rows), std::span(t.position).subspan(begin, rows),
      std::span(t.phase).subspan(begin, rows), trace.header.seed, 0, step);
  ScopeCounts counts;
  counts.tokens = context.tokens;
  counts.sequences = context.sequences;
  std::set<std::uint32_t> distinct(t.sequence.begin() + static_cast<std::ptrdiff_t>(begin),
                                   t.sequence.begin() + static_cast<std::ptrdiff_t>(end));
  counts.step_sequences = distinct.size();
  const std::uint32_t c =
      expert_capacity(policy, counts, trace.header.experts(), trace.header.top_k());
  return c == kUnlimitedCapacity ? std::nullopt : std::optional<std::uint64_t>(c);
}

}  // namespace

TraceActivity trace_activity(const RoutingTrace& trace) {
  SWITCHYARD_ASSERT(trace.decisions_present, "replay() first");
  const TraceHeader& h = trace.header;
  TraceActivity out;
  std::vector<std::uint64_t> load(h.experts());
  for (std::uint32_t s = 0; s < trace.steps(); ++s) {
    const auto [begin, end] = trace.step_rows(s);
    StepActivityRow row;
    row.step = s;
    bool prefill = false;
    bool decode = false;
    std::set<std::uint32_t> sequences;
    std::vector<std::uint64_t> rows;
    for (std::uint64_t r = begin; r < end; ++r) {
      const auto phase = static_cast<Phase>(trace.tokens.phase[r]);
      if (phase != Phase::kWarmUp) {
        rows.push_back(r);
        sequences.insert(trace.tokens.sequence[r]);
        (phase == Phase::kPrefill ? prefill : decode) = true;
      }
    }
    if (rows.empty()) {
      continue;
    }
    row.mix = prefill && decode ? StepMix::kMixed : prefill ? StepMix::kPrefill : StepMix::kDecode;
    row.tokens = rows.size();
    row.sequences = sequences.size();
    row.capacity = capacity_of(trace, begin, end, s);
    row.fewest = h.layer_count() > 0 ? h.experts() : 0;
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      std::fill(load.begin(), load.end(), 0U);
      for (const std::uint64_t r : rows) {
        for (std::uint32_t j = 0; j < h.slots; ++j) {
          const std::uint64_t at = trace.slot_at(r, l, j);
          const auto outcome = static_cast<SlotOutcome>(trace.routing.outcome[at]);
          if (outcome == SlotOutcome::kKept || outcome == SlotOutcome::kRerouted) {
            ++load[trace.routing.chosen[at]];
          }
        }
      }
      std::uint32_t touched = 0;
      for (const std::uint64_t n : load) {
        row.accepted += n;
        row.busiest = std::max(row.busiest, n);
        touched += n > 0 ? 1U : 0U;
        const auto bin = static_cast<std::size_t>(std::bit_width(n));
        if (out.histogram.size() <= bin) {
          out.histogram.resize(bin + 1, 0);
        }
        ++out.histogram[bin];
      }
      row.touched += touched;
      row.fewest = std::min(row.fewest, touched);
      row.most = std::max(row.most, touched);
    }
    out.steps.push_back(row);
  }
  return out;
}

std::optional<Cohesion> trace_cohesion(const RoutingTrace& trace, std::uint64_t seed) {
  SWITCHYARD_ASSERT(trace.decisions_present, "replay() first");
  const TraceHeader& h = trace.header;
  if (!has_token_vectors(trace)) return std::nullopt;
  const std::uint32_t last = h.layer_count() - 1;
  const TokenVectors vectors(trace);
  std::vector<float> units;
  std::vector<std::vector<std::uint64_t>> members(h.experts());
  std::uint64_t tokens = 0;
  for (std::uint64_t r = 0; r < trace.rows(); ++r) {
    if (trace.tokens.phase[r] == static_cast<std::uint8_t>(Phase::kWarmUp)) continue;
    vectors.append_unit(r, units);
    for (std::uint32_t j = 0; j < h.slots; ++j) {
      const std::uint16_t e = trace.routing.chosen[trace.slot_at(r, last, j)];
      if (e != kNoExpert) members[e].push_back(tokens);
    }
    ++tokens;
  }
  if (tokens == 0) return std::nullopt;
  ExpertCohesion found = expert_cohesion(units, vectors.width(), members, seed);
  return Cohesion{h.layers[last], std::move(found.experts), found.mean, found.baseline};
}

}  // namespace switchyard
