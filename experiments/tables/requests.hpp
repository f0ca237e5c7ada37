// SPDX-License-Identifier: Apache-2.0
// The table `requests`: claims about requests that short simulations and the shipped checkpoint's
// routing decide (C34, C57, C78).
//
//   C34   gpt4_s1 on 8 x B200; a tier is a deployment: fast = one expert per token, INT4 experts;
//         accurate = two, FP8; pinned = every request names one expert, INT4. 512 tokens in, 64
//         out; one user, and open arrivals at 0.7 of the rate that the tier saturates at; FP8 does
//         not fit 8 x 192 GB and is timed on 8 x 300 GB
//   C57   the share of a code prefix, by the engine; the step's p95 with gpt4_s4_int4 on 16 x H200,
//         hub, when one expert's share rises to 35 % in the shipped routing (second choices of as
//         many tokens as that needs become it), on the hub's GPU or on another; jitter with the
//         routing of our vague and of our clear prompts
//   C78   qwen2_57b_s1 in INT4 on one A100 with host and SSD, TTFT <= 1 s, arrivals at 0.7 of
//         saturation: service that begins with loading the weights against one that has them, and
//         experts in host memory with an empty cache against a warm one
//
// Saturation: requests per second that 32 users end who never think. One seed; arrivals, lengths
// and the routing are the same for the sides that are compared.
//
// Not modelled: tiers of different formats in one run; quality.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/short_run.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

struct RequestRun {
  std::string claim, scenario;
  /// "TTFT p50", "TTFT least", "TTFT most" [ms], "attainment", "jitter", "p95" [ms], "memory",
  /// "rate" [requests/s]; those a run has.
  std::map<std::string, double> values;
};
struct RequestRuns {
  std::map<std::string, RequestRun> runs;
  /// Of code prompts without and with the prefix: share of tokens that take the expert (and layer)
  /// that most take with it, and of prompts whose top expert is the one that most have with it.
  std::map<std::string, std::pair<double, double>> prefix;
};

/// The trace with one expert taking `share` of each layer's tokens, k >= 2 of E: in as many tokens
/// as that needs, drawn with a seed, the last of the k choices and the expert change places. Layers
/// where it has more already stay.
[[nodiscard]] RoutingTrace with_share(const RoutingTrace& trace, std::uint16_t expert,
                                      double share);
/// Share of a layer's tokens that have the expert among their k first candidates.
[[nodiscard]] double share_of(const RoutingTrace& trace, std::uint16_t expert, std::uint32_t layer);

[[nodiscard]] RequestRuns run_requests_table(ShortRuns& runs, const TableContext& context);
[[nodiscard]] claims::Measurements measure_requests(const RequestRuns& runs);
[[nodiscard]] std::vector<Table> requests_tables(const RequestRuns& runs,
                                                 const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
