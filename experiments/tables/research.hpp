// SPDX-License-Identifier: Apache-2.0
// Tables that researchers of mixtures of experts look for, by simulation, without a claim to judge:
// step-breakdown, ep-scaling, skew-cost, capacity, network-sensitivity, failure, context-length,
// frontier. Each says its model and hardware in its title and its assumptions in its notes.
//
// Not modelled: perplexity under a capacity rule (an engine's business: `generate --perplexity`
// with a policy), prefill and decode replicas in the frontier.
#pragma once
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// Phases x batch x (prefill, decode): share of the step, MFU, MBU.
[[nodiscard]] Table step_breakdown_table(ShortRuns& runs);
/// EP 1 … 32 on four servers, copies sent per GPU or per server.
[[nodiscard]] Table ep_scaling_table(ShortRuns& runs);
/// Skew of the router x batch: what an uneven load costs, memory-bound and compute-bound.
[[nodiscard]] Table skew_cost_table(ShortRuns& runs);
/// Capacity rule, factor, order, reroute, exhausted: what overflows, and p99.
[[nodiscard]] Table capacity_table(ShortRuns& runs);
/// Latency and bandwidth of all links x 0.5 … 4: time per token.
[[nodiscard]] Table network_sensitivity_table(ShortRuns& runs);
/// Faults, with and without a spare copy of the experts: time lost, recovery, steady p99.
[[nodiscard]] Table failure_table(ShortRuns& runs);
/// Context 1 k … 128 k for MHA, GQA and MLA: KV bytes, attention share, sequences that fit.
[[nodiscard]] Table context_length_table(ShortRuns& runs);
/// Tokens per second per GPU against those per user over layouts and batches; * on the frontier.
[[nodiscard]] Table frontier_table(ShortRuns& runs);

}  // namespace switchyard::tables
