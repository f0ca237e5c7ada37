// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/trace/experts_only.hpp"
#include "engine/trace/trace_parts.hpp"

namespace switchyard {
namespace {
template <class T>
std::span<const T> rows_of(const std::vector<T>& all, std::uint64_t begin, std::uint64_t end) {
  return std::span<const T>(all).subspan(begin, end - begin);
}
}  // namespace

std::vector<std::vector<std::uint32_t>> prompt_prefixes(const RoutingTrace& trace,
                                                        const std::string& where) {
  std::vector<std::vector<std::uint32_t>> out(trace.sequences.size());
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    // Rows of a sequence ascend by position.
    std::vector<std::uint32_t>& prefix = out[trace.tokens.sequence[row]];
    if (trace.tokens.position[row] == prefix.size() && prefix.size() < kTablePrefixLength &&
        prefix.size() < trace.sequences[trace.tokens.sequence[row]].prompt_length) {
      prefix.push_back(trace.tokens.token[row]);
    }
  }
  for (std::size_t s = 0; s < out.size(); ++s) {
    if (out[s].size() <
        std::min<std::size_t>(kTablePrefixLength, trace.sequences[s].prompt_length)) {
      throw InputError(where, fmt::format("the trace lacks the first tokens of prompt {}", s),
                       "keys of a routing table are made of them");
    }
  }
  return out;
}

std::vector<RequestInfo> trace_requests(const RoutingTrace& trace, const RoutingPolicy& policy,
                                        const RoutingTable* table, const std::string& where) {
  if (policy.table.on() && table == nullptr) {
    throw InputError(where,
                     fmt::format("policy.table.file = {} needs the table", policy.table.file),
                     "name the policy file, which says where it is");
  }
  std::vector<RequestInfo> out;
  if (!policy.table.on() && !policy.soft.on() && !policy.pinned.on()) {
    return out;
  }
  std::vector<std::vector<std::uint32_t>> prefixes(trace.sequences.size());
  if (table != nullptr && table->spec().prefix == TablePrefix::kTokens) {
    prefixes = prompt_prefixes(trace, where);
  }
  for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
    const TraceSequence& sequence = trace.sequences[s];
    require_text(policy, table, sequence.text, where);
    out.push_back(request_info(policy, table, prefixes[s], sequence.text, sequence.expert));
  }
  return out;
}

Replayer::Replayer(const RoutingTrace& trace, const ReplayOptions& options)
    : trace_(trace),
      options_(options),
      backlog_(trace.header.layer_count()),
      signals_(options.signals) {
  state_ = RoutingState(std::size_t{trace.header.layer_count()} * signals_.replicas());
  const TraceHeader& h = trace.header;
  if (is_experts_only(h)) {
    throw InputError("replay",
                     "unsupported: the routing trace states the experts taken and no logits, so "
                     "nothing can be decided again",
                     "trace the model with switchyard trace");
  }
  validate(options_.policy, h.experts(), h.top_k(), "replay");
  require_supply(options_.policy,
                 {.signals = options.signals != nullptr,
                  .all_logits = h.candidates == h.experts(),
                  .hidden = false,
                  .weights = options.weights != nullptr,
                  .recorded = &h.policy},
                 "replay");
  if (const std::uint32_t slots = policy_slots(options_.policy, h.gate); slots > h.candidates) {
    throw InputError("replay",
                     fmt::format("the policy gives a token up to {} experts, the trace holds {} "
                                 "candidates",
                                 slots, h.candidates),
                     "trace the model with the policy in force");
  }
  SWITCHYARD_ASSERT(options_.rank_of_sequence.empty() ||
                        options_.rank_of_sequence.size() == trace.sequences.size(),
                    fmt::format("ranks of {} sequences for {}", options_.rank_of_sequence.size(),
                                trace.sequences.size()));
  const std::vector<RequestInfo> requests =
      trace_requests(trace, options_.policy, options_.table, "replay");
  for (std::uint32_t s = 0; s < requests.size(); ++s) {
    state_.request(s) = requests[s];
  }
}

void Replayer::next_step(std::vector<LayerDecision>& decisions) {
  SWITCHYARD_ASSERT(step_ < trace_.steps(), fmt::format("step {} of {}", step_, trace_.steps()));
  const TraceHeader& h = trace_.header;
  const auto [begin, end] = trace_.step_rows(step_);
  const auto rows = static_cast<std::uint32_t>(end - begin);
  decisions.resize(h.layer_count());
  candidates_.resize(rows, h.candidates);
  rank_.clear();
  if (!options_.rank_of_sequence.empty()) {
    for (std::uint64_t row = begin; row < end; ++row) {
      rank_.push_back(options_.rank_of_sequence[trace_.tokens.sequence[row]]);
    }
  }
  std::uint32_t replica = 0;
  for (std::uint64_t row = begin; row < end && signals_.replicas() > 1; ++row) {
    const std::uint32_t of = signals_.replica_of(trace_.tokens.sequence[row]);
    if (row > begin && of != replica) {
      throw InputError("replay",
                       fmt::format("step {} of the trace has sequences of replicas {} and {}",
                                   step_, replica, of),
                       "use the signals that the trace was made with");
    }
    replica = of;
  }
  signals_.begin_step(std::find(trace_.tokens.phase.begin() + static_cast<std::ptrdiff_t>(begin),
                                trace_.tokens.phase.begin() + static_cast<std::ptrdiff_t>(end),
                                static_cast<std::uint8_t>(Phase::kDecode)) !=
                          trace_.tokens.phase.begin() + static_cast<std::ptrdiff_t>(end),
                      replica);
  for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
    for (std::uint32_t t = 0; t < rows; ++t) {
      const TraceCell cell = trace_cell(trace_, begin + t, l);
      const auto to = static_cast<std::ptrdiff_t>(row_offset(t, h.candidates));
      std::copy_n(cell.candidates.begin(), h.candidates, candidates_.ids.begin() + to);
      std::copy_n(cell.logit.begin(), h.candidates, candidates_.logit.begin() + to);
      candidates_.lse[t] = cell.lse;
    }
    StepContext context = make_step(
        rows_of(trace_.tokens.sequence, begin, end), rows_of(trace_.tokens.position, begin, end),
        rows_of(trace_.tokens.phase, begin, end), options_.seed, l, step_);
    context.rank = rank_;
    context.ranks = options_.ranks;
    context.backlog = backlog_[l];
    RouteInput input;
    input.candidates = candidates_.view();
    input.gate_bias = trace_.bias_of(l);
    input.requests = state_.requests();
    input.table = options_.table;
    input.weights = options_.weights == nullptr ? nullptr : options_.weights->layer(l);
    Signals signals;
    if (signals_.on()) {
      signals = signals_.view(l);
      input.signals = &signals;
    }
    route_layer(h.gate, options_.policy, context, input,
                state_.layer(std::size_t{replica} * h.layer_count() + l), workspace_, decisions[l]);
    backlog_[l] = decisions[l].deferred;
  }
  ++step_;
}

void replay(RoutingTrace& trace, const ReplayOptions& options) {
  SWITCHYARD_ASSERT(trace.parts == nullptr, "a trace by parts has no room for decisions");
  Replayer replayer(trace, options);
  TraceHeader& h = trace.header;
  h.slots = std::max(h.slots, policy_slots(options.policy, h.gate));
  const std::uint64_t slots = trace.rows() * h.layer_count() * h.slots;
  TraceRouting& r = trace.routing;
  r.first.assign(slots, kNoExpert);
  r.chosen.assign(slots, kNoExpert);
  r.weights.assign(slots, 0.0F);
  r.outcome.assign(slots, 0);
  trace.truncated_slots = 0;
  std::vector<LayerDecision> decisions;
  for (std::uint32_t step = 0; step < trace.steps(); ++step) {
    replayer.next_step(decisions);
    const auto [begin, end] = trace.step_rows(step);
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      const LayerDecision& d = decisions[l];
      trace.truncated_slots += d.truncated_slots;
      for (std::uint64_t row = begin; row < end; ++row) {
        for (std::uint32_t j = 0; j < d.slots; ++j) {
          const std::uint64_t from = row_offset(row - begin, d.slots, j);
          const std::uint64_t to = trace.slot_at(row, l, j);
          r.first[to] = d.first[from];
          r.chosen[to] = d.chosen[from];
          r.weights[to] = d.weights[from];
          r.outcome[to] = d.outcome[from];
        }
      }
    }
  }
  trace.decisions_present = true;
  trace.header.policy = options.policy;
  trace.header.seed = options.seed;
}

}  // namespace switchyard
