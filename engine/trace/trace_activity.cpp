// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_activity.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/capacity.hpp"

namespace switchyard {
namespace {

constexpr std::uint64_t kMostPairs = 2000;

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

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

/// Mean cosine of pairs of `members` (rows of `vectors`, [n][width], unit length or zero).
std::optional<double> mean_cosine(const std::vector<std::uint64_t>& members,
                                  const std::vector<double>& vectors, std::size_t width,
                                  std::uint64_t seed, std::uint32_t purpose, std::uint32_t expert) {
  const std::uint64_t n = members.size();
  if (n < 2) {
    return std::nullopt;
  }
  double sum = 0;
  std::uint64_t pairs = 0;
  const auto add = [&](std::uint64_t a, std::uint64_t b) {
    const double* x = vectors.data() + members[a] * width;
    const double* y = vectors.data() + members[b] * width;
    double dot = 0;
    for (std::size_t i = 0; i < width; ++i) {
      dot += x[i] * y[i];
    }
    sum += dot;
    ++pairs;
  };
  if (n * (n - 1) / 2 <= kMostPairs) {
    for (std::uint64_t a = 0; a < n; ++a) {
      for (std::uint64_t b = a + 1; b < n; ++b) {
        add(a, b);
      }
    }
  } else {
    for (std::uint32_t i = 0; i < kMostPairs; ++i) {
      const std::uint64_t a = random_u64(seed, purpose, {0, 0, i, expert}) % n;
      const std::uint64_t b = random_u64(seed, purpose, {1, 0, i, expert}) % (n - 1);
      add(a, b < a ? b : b + 1);
    }
  }
  return sum / static_cast<double>(pairs);
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
  if (trace.routing.router_input.empty() || h.layer_count() == 0) {
    return std::nullopt;
  }
  const std::uint32_t last = h.layer_count() - 1;
  const std::size_t width = h.hidden;
  std::vector<std::uint64_t> rows;
  for (std::uint64_t r = 0; r < trace.rows(); ++r) {
    if (trace.tokens.phase[r] != static_cast<std::uint8_t>(Phase::kWarmUp)) {
      rows.push_back(r);
    }
  }
  if (rows.empty()) {
    return std::nullopt;
  }
  std::vector<double> vectors(rows.size() * width);
  std::vector<double> mean(width, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t c = 0; c < width; ++c) {
      const double v =
          from_bfloat16(trace.routing.router_input[trace.layer_at(rows[i], last) * width + c]);
      vectors[i * width + c] = v;
      mean[c] += v;
    }
  }
  for (double& m : mean) {
    m /= static_cast<double>(rows.size());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double squares = 0;
    for (std::size_t c = 0; c < width; ++c) {
      double& v = vectors[i * width + c];
      v -= mean[c];
      squares += v * v;
    }
    for (std::size_t c = 0; squares > 0 && c < width; ++c) {
      vectors[i * width + c] /= std::sqrt(squares);
    }
  }
  std::vector<std::vector<std::uint64_t>> members(h.experts());
  for (std::uint64_t i = 0; i < rows.size(); ++i) {
    for (std::uint32_t j = 0; j < h.slots; ++j) {
      const std::uint16_t e = trace.routing.chosen[trace.slot_at(rows[i], last, j)];
      if (e != kNoExpert) {
        members[e].push_back(i);
      }
    }
  }
  Cohesion out;
  out.layer = h.layers[last];
  double sum = 0;
  double base = 0;
  std::uint64_t counted = 0;
  for (std::uint32_t e = 0; e < h.experts(); ++e) {
    out.experts.push_back(
        mean_cosine(members[e], vectors, width, seed, random_purpose("cohesion"), e));
    if (!out.experts.back()) {
      continue;
    }
    // As many tokens, drawn without replacement.
    std::vector<std::uint64_t> any(rows.size());
    for (std::uint64_t i = 0; i < any.size(); ++i) {
      any[i] = i;
    }
    const std::size_t n = std::min(any.size(), members[e].size());
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t pick = random_u64(seed, random_purpose("cohesion baseline"),
                                            {0, 0, static_cast<std::uint32_t>(i), e}) %
                                 (any.size() - i);
      std::swap(any[i], any[i + pick]);
    }
    any.resize(n);
    sum += *out.experts.back();
    base += mean_cosine(any, vectors, width, seed, random_purpose("cohesion pairs"), e).value_or(0);
    ++counted;
  }
  if (counted > 0) {
    out.mean = sum / static_cast<double>(counted);
    out.baseline = base / static_cast<double>(counted);
  }
  return out;
}

}  // namespace switchyard
