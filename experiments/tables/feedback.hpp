// SPDX-License-Identifier: Apache-2.0
// The tables of policies that read the machine, by coupled mode (experiments/coupled): engine and
// simulator in turns until no decision changes.
//
//   load-aware        C11  M04: penalty lambda u on the logits, u = total, elastic or queue, keys
//                          and values by sequence or by expert. Workload decode(64, 256).
//   decode-rebalance  C15  M13 off, above 85 %, above 80 %, keys and values by token and by expert.
//                          Requests arrive at 0.85 of the saturation rate, 256 prompt and 64
//                          answer tokens, for 320 s.
//   queue-limits      C23  M12: limits 128 / 64, third expert activated or chosen from. Requests at
//                          0.5 … 1.2 of the saturation rate, 512 prompt and 256 answer tokens,
//                          120 s after 20 s
//
// The router is that of the shipped checkpoint (16 experts, k = 2), its four layers cycled over the
// MoE layers of the article's model; the machine is the article's: S0's model on 16 cards of 280 GB
// with one byte a weight (with two it does not fit under attention = dp, which keys and values by
// expert want), S1's model on eight B200 with experts of four bits (with more it does not fit).
// Saturation rate: the highest open rate with a bounded queue, by probes of 60 s on seed 1: the
// ends, 0.6 and 1.4 of what a closed loop of as many users as the machine takes sequences gets
// through (wider until one is bounded and one is not), then six between them; bounded: in the last
// 20 s at most 1.05 times as many requests wait on average as in the 20 s before, and half a one. A
// minute sees queues that grow within it (the tables say so); near saturation long answers fill a
// machine for longer. Requests: seeds 1 to 3, median and range; decode: seed 1
// (nothing arrives).
// --quick: one seed, the closed loop's rate itself, shorter runs.
//
// A coupled run that has not settled after 5 rounds is shown and not judged.
//
// Not modelled: what the policies do to the answers' quality.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/coupled/coupled_run.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// One coupled run in numbers. Memory: high water of a GPU over the run.
struct FeedbackRow {
  std::vector<std::string> condition;  ///< As the table's first columns.
  std::uint64_t seed = 1;
  double hot_gb = 0, mean_gb = 0;  ///< Hottest GPU, mean over the GPUs; 1 GB = 1e9 B.
  double load_cv = 0;              ///< claims.md section 1.
  double flips = 0;                ///< Of 1000 decisions, against the run without.
  /// Assignments / (tokens · MoE layers · experts): mean and largest of the seconds counted.
  double expert_fraction = 0, most_fraction = 0;
  double p99_std_ms = 0, jitter_ms = 0;  ///< NaN where there are no requests or windows.
  double busiest = 0;                    ///< Share of steps with an expert_fraction above k/E.
  std::uint32_t experts_per_token = 2;   ///< k of the model.
  std::uint64_t rounds = 0;              ///< Engine runs after the first.
  bool converged = true;
};
/// expert_fraction is of each second of simulated time from `from_s` to `to_s` (by the ends of
/// steps), or of the whole run when no step ends there.
[[nodiscard]] FeedbackRow feedback_row(std::vector<std::string> condition, std::uint64_t seed,
                                       const coupled::CoupledRun& run, const RoutingTrace& plain,
                                       double from_s, double to_s);
/// Whether the waiting requests stay as many over arrivals of `seconds` (see above).
[[nodiscard]] bool queue_is_bounded(const std::vector<run::RequestRecord>& requests,
                                    double seconds);

struct Saturation {
  double rate = 0;    ///< The highest with a bounded queue, requests per second.
  double beyond = 0;  ///< The lowest whose queue grows; 0: not probed.
  int probes = 0;
};
/// Between 0.6 and 1.4 of `closed` > 0, or beyond where these are not ends. InputError: no end
/// after six steps (2^-6 or 1.5^6 of them). `bounded` is asked for rates.
[[nodiscard]] Saturation saturation_rate(double closed, const std::function<bool(double)>& bounded);

struct FeedbackRun {
  std::vector<std::string> columns;  ///< Of FeedbackRow::condition.
  std::vector<FeedbackRow> rows;     ///< One per condition and seed.
  std::vector<std::string> notes;
};
/// Medians over the seeds; not decided where a run that it needs has not settled or has no such
/// number. InputError when a row that the measurement wants is not there.
[[nodiscard]] claims::Measurements measure_load_aware(const FeedbackRun& run);
[[nodiscard]] claims::Measurements measure_decode_rebalance(const FeedbackRun& run);
[[nodiscard]] claims::Measurements measure_queue_limits(const FeedbackRun& run);
/// `name`: of the three tables.
[[nodiscard]] std::vector<Table> feedback_tables(const std::string& name, const FeedbackRun& run,
                                                 const std::vector<claims::Judged>& judged);

}  // namespace switchyard::tables
